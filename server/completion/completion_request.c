/* completion_request.c - the requests of the engine that a completion is: made of what was parsed and encoded, and
 * submitted, perhaps twice. */
#include "completion_internal.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *copy_bytes(const void *from, size_t bytes, bool *ok) {
    if (!bytes) return NULL;
    void *to = malloc(bytes);
    if (to) {
        memcpy(to, from, bytes);
    } else {
        *ok = false;
    }
    return to;
}

/* Results of tools are no texts of the user. */
static uint32_t user_texts(const struct api_request *q) {
    uint32_t n = 0;
    for (size_t i = 0; i < q->n_messages; i++) n += !strcmp(q->messages[i].role, "user") && q->messages[i].content_len;
    return n;
}

static struct rod_request *engine_request(struct completion *c, struct completion_choice *choice) {
    const struct api_request *q = &c->request;
    const struct completion_prompt *p = &c->prompts[choice->prompt];
    assert(choice->prompt < c->n_prompts);
    assert(!c->turn.asked || c->answer.n_choices == 1); /* a session takes one request at a time */
    assert(!c->turn.asked || (q->n_prompt_logprobs < 0 && !q->suffix && !q->truncate_tok));
    struct rod_request *r = rod_request_new();
    if (!r) return NULL;
    bool ok = true;
    size_t n_head;
    snprintf(r->id, sizeof r->id, "%s", c->call->id);
    r->prompt = copy_bytes(p->shown.ids, p->shown.n_ids * sizeof *p->shown.ids, &ok);
    r->n_prompt = p->shown.n_ids;
    r->tenant = copy_bytes(c->way.tenant, strlen(c->way.tenant) + 1, &ok);
    if (q->session.cache_salt)
        r->cache_salt = copy_bytes(q->session.cache_salt, strlen(q->session.cache_salt) + 1, &ok);
    if (q->session.conversation) {
        r->conversation = copy_bytes(q->session.conversation, strlen(q->session.conversation) + 1, &ok);
        r->n_user_texts = user_texts(q);
    }
    r->waited_ns = c->way.waited_ns;
    r->marks = copy_bytes(p->marks, p->n_marks * sizeof *p->marks, &ok);
    r->n_marks = p->n_marks;
    completion_head(c, &n_head);
    r->has_head = n_head || (q->n_messages && strcmp(q->messages[0].role, "user") != 0);
    memcpy(r->breakpoints, p->breakpoints, sizeof r->breakpoints);
    r->n_breakpoints = p->n_breakpoints;
    r->sampling = q->sampling;
    r->sampling.seed += choice->index; /* so that choices differ */
    r->bias = copy_bytes(q->bias, q->n_bias * sizeof *q->bias, &ok);
    r->n_bias = q->n_bias;
    r->stop_ids = copy_bytes(q->stop_ids, q->n_stop_ids * sizeof *q->stop_ids, &ok);
    r->n_stop_ids = q->n_stop_ids;
    r->stop = q->n_stop ? calloc(q->n_stop, sizeof *r->stop) : NULL;
    for (size_t i = 0; r->stop && ok && i < q->n_stop; i++) {
        r->stop[i] = copy_bytes(q->stop[i], strlen(q->stop[i]) + 1, &ok);
        r->n_stop = i + 1;
    }
    r->allowed_ids = copy_bytes(q->allowed_ids, q->n_allowed_ids * sizeof *q->allowed_ids, &ok);
    r->n_allowed_ids = q->n_allowed_ids;
    r->bad = c->way.n_bad ? calloc(c->way.n_bad, sizeof *r->bad) : NULL;
    for (size_t i = 0; r->bad && ok && i < c->way.n_bad; i++) {
        r->bad[i].ids = copy_bytes(c->way.bad[i].ids, c->way.bad[i].n_ids * sizeof *c->way.bad[i].ids, &ok);
        r->bad[i].n_ids = c->way.bad[i].n_ids;
        r->n_bad = i + 1;
    }
    r->never_speculate = q->never_speculate;
    r->prediction = copy_bytes(q->prediction.ids, q->prediction.n_ids * sizeof *q->prediction.ids, &ok);
    r->n_prediction = q->prediction.n_ids;
    r->same_before = choice->index % q->n;
    r->max_tokens = q->max_tokens;
    r->min_tokens = q->min_tokens;
    r->ignore_eos = q->ignore_eos;
    r->include_stop = q->include_stop;
    r->keep_special = q->keep_special;
    r->n_logprobs = q->n_logprobs;
    r->n_prompt_logprobs = q->n_prompt_logprobs;
    /* what opens an answer with scores or restricted tokens is known behind the prompt */
    r->report_start =
        q->stream && !q->echo && q->n_prompt_logprobs < 0 && !q->n_allowed_ids && !q->n_bias && !q->n_bad_words;
    r->report_end = q->echo && q->n_logprobs >= 0; /* a client that scores takes the last entry for a generated token */
    if (q->echo && q->n_logprobs > r->n_prompt_logprobs) r->n_prompt_logprobs = q->n_logprobs;
    r->grammar = rod_grammar_ref(c->grammar);
    if (c->way.lazy) r->grammar_open = copy_bytes(c->answer.tags.open, strlen(c->answer.tags.open) + 1, &ok);
    if (c->way.begun) r->grammar_begun = copy_bytes(c->way.begun->content, c->way.begun->content_len, &ok);
    r->n_grammar_begun = c->way.begun ? c->way.begun->content_len : 0;
    r->grammar_again = c->way.lazy && api_tools_again(q);
    if (c->account.key) {
        r->key = c->account.key->index;
        r->weight = c->account.key->priority;
        r->queue_quota = c->account.queue_share;
    }
    r->queue_timeout_ns = c->server->config.request_timeout_ms * 1000000;
    r->user = choice;
    r->turn = c->turn.asked; /* a turn of a session has one choice */
    c->turn.asked = NULL;
    if (r->turn && !q->stream && !r->turn->beside && !c->turn.tried)
        ok = (c->turn.again = completion_session_copy(r->turn)) && ok;
    if (ok && (r->stop || !q->n_stop) && (r->bad || !c->way.n_bad)) return r;
    rod_request_free(r);
    return NULL;
}

/* Submits all choices at once, so that those of one prompt share its prefill. */
int completion_request_submit(struct completion *c, struct rod_error *err) {
    assert(!c->n_open && c->answer.n_choices == c->n_prompts * c->request.n);
    struct rod_request **requests = calloc(c->answer.n_choices, sizeof *requests);
    uint64_t *tickets = calloc(c->answer.n_choices, sizeof *tickets);
    int rc = requests && tickets ? 0 : rod_fail_no_memory(err);
    for (uint32_t i = 0; !rc && i < c->answer.n_choices; i++) {
        struct completion_choice *choice = &c->choices[i];
        *choice = (struct completion_choice){.completion = c, .index = i, .prompt = i / c->request.n};
        answer_set_prompt(&c->answer.choices[i], &c->prompts[choice->prompt].shown);
        requests[i] = engine_request(c, choice);
        if (!requests[i]) rc = rod_fail_no_memory(err);
        /* all choices have the same lists, which may be long: check one before copying a hundred */
        if (!rc && !i && c->answer.n_choices > 1) rc = rod_request_fits(c->server->engine, requests[i], err);
    }
    if (!rc) rc = rod_submit_all(c->server->engine, requests, c->answer.n_choices, tickets, err);
    for (uint32_t i = 0; i < c->answer.n_choices; i++) {
        if (rc && requests) rod_request_free(requests[i]);
        if (rc) continue;
        c->choices[i].ticket = tickets[i];
        c->choices[i].open = true;
        c->n_open++;
    }
    assert(c->n_open == (rc ? 0 : c->answer.n_choices)); /* all or none */
    free(requests);
    free(tickets);
    return rc;
}

/* The key pays for one answer. The engine gives a known Idempotency-Key its answer, and refuses expected_version. */
int completion_request_again(struct completion *c, struct rod_error *err) {
    assert(c->turn.again && !c->turn.tried && !c->n_open);
    assert(c->answer.n_choices == 1);
    free(c->choices->said.ids); /* the recall keeps what is said now */
    c->choices->said = (struct rod_ids){0};
    c->turn.asked = c->turn.again;
    c->turn.again = NULL;
    c->turn.tried = true;
    c->account.answer_tok = 0;
    if (!answer_restart(&c->answer)) return rod_fail_no_memory(err);
    const int rc = completion_session_label(c, err);
    return rc ? rc : completion_request_submit(c, err);
}
