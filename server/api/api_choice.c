/* api_choice.c - see api_choice.h. Streams run through here for every token, so it writes text. */
#include "api_choice.h"
#include "api_put.h"
#include "sse.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- scores ---- */

static bool utf8_complete(const char *bytes, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t len = buf_utf8(bytes + i, n - i);
        if (!len) return false;
        i += len;
    }
    return true;
}

void api_put_token(struct buf *out, int32_t id, bool as_id, const struct api_vocab *vocab) {
    size_t n = 0;
    const char *bytes = as_id ? NULL : vocab->bytes(vocab->arg, id, &n);
    if (!bytes) {
        buf_addf(out, "\"token_id:%d\"", id);
    } else if (utf8_complete(bytes, n)) {
        buf_json(out, bytes, n);
    } else {
        buf_puts(out, "\"bytes:");
        for (size_t i = 0; i < n; i++) buf_addf(out, "\\\\x%02x", (unsigned char)bytes[i]);
        buf_putc(out, '"');
    }
}

static void put_ranked(struct buf *out, int32_t id, float logprob, uint32_t rank, const struct api_vocab *vocab) {
    buf_putc(out, '"');
    buf_int(out, id);
    buf_puts(out, "\":{\"logprob\":");
    buf_logprob(out, logprob);
    buf_puts(out, ",\"rank\":");
    buf_int(out, rank);
    buf_puts(out, ",\"decoded_token\":");
    api_put_token(out, id, false, vocab);
    buf_putc(out, '}');
}

/* {"7": {"logprob", "rank", "decoded_token"}, ...}, or null for a prompt's first token. */
static void add_prompt(struct buf *out, const struct rod_token *t, uint32_t n_asked, const struct api_vocab *vocab) {
    if (out->len) buf_putc(out, ',');
    if (!t) {
        buf_puts(out, "null");
        return;
    }
    buf_putc(out, '{');
    put_ranked(out, t->id, t->logprob, t->rank, vocab);
    for (uint32_t i = 0; i < t->n_top && i < n_asked; i++) {
        if (t->top[i].id == t->id) continue;
        buf_putc(out, ',');
        put_ranked(out, t->top[i].id, t->top[i].logprob, i + 1, vocab);
    }
    buf_putc(out, '}');
}

/* The prompt was scored for the more demanding of logprobs and prompt_logprobs; each gets as many as it asks for. */
void api_choice_prompt(struct answer_choice *c, const struct rod_token *token) {
    const struct answer *a = c->answer;
    const struct api_request *q = a->request;
    const struct choice_style *style = a->form->style;
    if (q->n_prompt_logprobs >= 0) add_prompt(&c->prompt_logprobs, token, (uint32_t)q->n_prompt_logprobs, &a->vocab);
    if (!q->echo || q->n_logprobs < 0) return;
    if (!token) {
        style->score_first(&c->logprobs, c->prompt->ids[0], &a->vocab);
        return;
    }
    struct rod_token scored = *token;
    if (scored.n_top > (uint32_t)q->n_logprobs) scored.n_top = (uint32_t)q->n_logprobs;
    style->score(&c->logprobs, &scored, true, &a->vocab);
}

/* The end token has a score, and no id among the answer's. */
void api_choice_token(struct answer_choice *c, const struct rod_token *token, enum answer_token place) {
    const struct answer *a = c->answer;
    const bool in_text = place == ANSWER_TOKEN_SHOWN;
    if (a->request->n_logprobs >= 0) a->form->style->score(&c->logprobs, token, in_text, &a->vocab);
    if (a->request->return_token_ids && place != ANSWER_TOKEN_END) {
        if (c->ids.len) buf_putc(&c->ids, ',');
        buf_int(&c->ids, token->id);
    }
    c->due = true;
}

void api_logprobs_clear(struct api_logprobs *l) {
    buf_clear(&l->tokens);
    buf_clear(&l->values);
    buf_clear(&l->tops);
    buf_clear(&l->offsets);
}

void api_logprobs_fini(struct api_logprobs *l) {
    buf_fini(&l->tokens);
    buf_fini(&l->values);
    buf_fini(&l->tops);
    buf_fini(&l->offsets);
}

/* ---- parts of JSON ---- */

static void put_usage(struct buf *out, const struct api_usage *u) {
    const unsigned long long prompt = u->prompt_tok, completion = u->completion_tok;
    buf_addf(out, "\"usage\":{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu", prompt,
             completion, prompt + completion);
    buf_addf(out, ",\"prompt_tokens_details\":{\"cached_tokens\":%llu", (unsigned long long)u->cached_tok);
    if (u->created_tok) buf_addf(out, ",\"cache_creation_tokens\":%llu", (unsigned long long)u->created_tok);
    if (u->kept_tools) buf_addf(out, ",\"kept_tools\":%llu", (unsigned long long)u->kept_tools);
    buf_putc(out, '}');
    if (u->accepted_tok || u->rejected_tok)
        buf_addf(out,
                 ",\"completion_tokens_details\":{\"accepted_prediction_tokens\":%llu,"
                 "\"rejected_prediction_tokens\":%llu}",
                 (unsigned long long)u->accepted_tok, (unsigned long long)u->rejected_tok);
    buf_putc(out, '}');
}

static void put_ids(struct buf *out, const char *name, const struct buf *fragment) {
    if (!fragment) return;
    buf_putc(out, ',');
    api_put_fragment(out, name, fragment);
}

static void put_prompt(struct buf *out, const struct api_choice *c) {
    put_ids(out, "prompt_token_ids", c->prompt_ids);
    put_ids(out, "prompt_logprobs", c->prompt_logprobs);
}

static void put_finish(struct buf *out, const struct api_choice *c) {
    if (!c->finished) {
        buf_puts(out, ",\"finish_reason\":null,\"stop_reason\":null}");
        return;
    }
    buf_addf(out, ",\"finish_reason\":\"%s\"",
             c->reason == ROD_FINISH_LENGTH ? "length"
             : c->called                    ? "tool_calls"
                                            : "stop");
    buf_puts(out, ",\"stop_reason\":");
    if (c->stop_string) {
        api_put_text(out, c->stop_string);
    } else if (c->stop_id >= 0) {
        buf_int(out, c->stop_id);
    } else {
        buf_puts(out, "null");
    }
    buf_putc(out, '}');
}

void api_put_head(struct buf *out, const struct choice_style *style, bool stream, const struct answer *a) {
    buf_addf(out, "{\"id\":\"%s%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", style->id_prefix, a->id,
             stream ? style->chunk_object : style->object, (long long)a->created_unix_s);
    api_put_text(out, answer_model(a));
    buf_puts(out, ",\"system_fingerprint\":");
    api_put_text(out, a->fingerprint);
    buf_putc(out, ',');
}

static void put_choice(struct buf *out, const struct choice_style *style, const struct api_choice *c, bool chunk) {
    assert((!c->role && !c->n_calls) || !c->finished || !chunk);
    buf_puts(out, "{\"index\":");
    buf_int(out, c->index);
    buf_putc(out, ',');
    if (style->put_said && (!chunk || c->role || c->n_calls || c->finished)) {
        style->put_said(out, c, chunk);
    } else {
        buf_puts(out, style->before_text);
        buf_json(out, c->text, c->text_len);
        buf_puts(out, style->behind_text);
    }
    if (c->logprobs) {
        buf_puts(out, ",\"logprobs\":{");
        style->put_logprobs(out, c->logprobs);
        buf_putc(out, '}');
    } else {
        buf_puts(out, ",\"logprobs\":null");
    }
    if (!style->together) put_prompt(out, c); /* each may have another */
    put_ids(out, "token_ids", c->token_ids);
    put_finish(out, c);
}

/* Behind the choices. */
static void put_rest(struct buf *out, const struct choice_style *style, const struct api_choice *first,
                     const struct api_usage *usage) {
    buf_putc(out, ']');
    if (style->together) put_prompt(out, first);
    api_put_session(out, first->session, first->session_version, first->session_unseen);
    if (!usage) return;
    buf_putc(out, ',');
    put_usage(out, usage);
}

void api_render_chunk(struct buf *out, const struct choice_style *style, const struct buf *head,
                      const struct api_choice *c, const struct api_usage *usage, bool null_usage) {
    api_put_part(out, head);
    buf_puts(out, "\"choices\":[");
    put_choice(out, style, c, true);
    put_rest(out, style, c, usage);
    buf_puts(out, !usage && null_usage ? ",\"usage\":null}" : "}");
}

void api_render_answer(struct buf *out, const struct choice_style *style, const struct buf *head,
                       const struct api_choice *choices, size_t n_choices, const struct api_usage *usage) {
    assert(n_choices && usage);
    api_put_part(out, head);
    buf_puts(out, "\"choices\":[");
    for (size_t i = 0; i < n_choices; i++) {
        api_put_comma(out, i);
        put_choice(out, style, &choices[i], false);
    }
    put_rest(out, style, &choices[0], usage);
    buf_putc(out, '}');
}

void api_render_usage_chunk(struct buf *out, const struct buf *head, const struct api_usage *usage) {
    api_put_part(out, head);
    buf_puts(out, "\"choices\":[],");
    put_usage(out, usage);
    buf_putc(out, '}');
}

/* ---- frames ---- */

static const struct buf *head_of(const struct answer *a) {
    struct choice_state *s = a->state;
    if (!s->head.len) api_put_head(&s->head, a->form->style, a->request->stream, a);
    return &s->head;
}

/* An opening comes with the first token and does not count it. */
static void push(struct answer_choice *c, const struct api_choice *shown, bool opening) {
    struct answer *a = c->answer;
    const struct api_request *q = a->request;
    struct api_usage usage = {.prompt_tok = c->prompt->n_ids, .completion_tok = opening ? 0 : c->completion_tok};
    if (*a->session) usage = a->usage;
    buf_puts(&a->frame, SSE_DATA);
    api_render_chunk(&a->frame, a->form->style, head_of(a), shown, q->continuous_usage ? &usage : NULL,
                     q->include_usage);
    buf_puts(&a->frame, SSE_END);
}

/* The first chunk of a choice has its prompt's ids. */
static void push_first(struct answer_choice *c, struct api_choice *shown, bool opening) {
    struct answer *a = c->answer;
    struct buf ids = {0};
    const size_t before = a->frame.len;
    if (a->request->return_token_ids) {
        api_put_ids(&ids, c->prompt->ids, c->prompt->n_ids);
        shown->prompt_ids = &ids;
    }
    push(c, shown, opening);
    if (opening || shown->prompt_ids) a->opening_bytes += a->frame.len - before;
    buf_fini(&ids);
    c->opened = true;
}

/* A role, or the prompt where it is echoed or was scored, leaves with the first token. */
static void open_one(struct answer_choice *c) {
    const struct api_request *q = c->answer->request;
    struct api_choice opening = {.index = c->index, .text = "", .stop_id = -1};
    opening.role = c->answer->form->style->together;
    assert(!c->opened);
    if (!opening.role && !q->echo && q->n_prompt_logprobs < 0) {
        c->due = q->return_token_ids;
        return;
    }
    opening.no_text = q->tools.n && q->tools.choice != API_TOOLS_AUTO; /* there will be calls alone */
    if (c->prompt->echo) {
        opening.text = c->prompt->echo;
        opening.text_len = c->prompt->echo_len;
    }
    if (q->echo && q->n_logprobs >= 0) opening.logprobs = &c->logprobs;
    if (q->n_prompt_logprobs >= 0) opening.prompt_logprobs = &c->prompt_logprobs;
    push_first(c, &opening, true);
    buf_fini(&c->prompt_logprobs); /* they may be long */
    api_logprobs_fini(&c->logprobs);
}

/* Clients make their list of choices from the chunks with roles: all open with the first token of any, in order. */
void api_choice_open(struct answer_choice *c) {
    struct answer *a = c->answer;
    const bool all = a->form->style->together;
    for (uint32_t i = 0; i < a->n_choices; i++)
        if (all || i == c->index) open_one(&a->choices[i]);
}

/* With the scores and ids of its tokens, if it is fresh, which it is no more. */
static void push_next(struct answer_choice *c, struct api_choice *shown) {
    const struct api_request *q = c->answer->request;
    if (c->fresh && q->n_logprobs >= 0) shown->logprobs = &c->logprobs;
    if (c->fresh && q->return_token_ids) shown->token_ids = &c->ids;
    if (c->opened)
        push(c, shown, false);
    else
        push_first(c, shown, false);
    if (shown->logprobs) api_logprobs_clear(&c->logprobs);
    buf_clear(&c->ids);
    c->fresh = c->due = false;
}

void api_choice_text(struct answer_choice *c, const char *text, size_t len) {
    struct api_choice shown = {.index = c->index, .text = text, .text_len = len, .stop_id = -1};
    push_next(c, &shown);
}

void api_choice_call(struct answer_choice *c, const struct api_call *call) {
    struct api_choice shown = {.index = c->index, .text = "", .calls = call, .n_calls = 1, .stop_id = -1};
    push_next(c, &shown);
}

/* The client is to make its last call: it is complete, and the client did not name it. */
static bool called(const struct answer_choice *c) {
    const struct api_split *s = &c->split;
    return s->n_calls && s->whole && c->answer->request->tools.choice != API_TOOLS_NAMED;
}

static struct api_choice finished(const struct answer_choice *c) {
    return (struct api_choice){.index = c->index,
                               .text = "",
                               .called = called(c),
                               .finished = true,
                               .reason = c->reason,
                               .stop_string = c->stop_string,
                               .stop_id = c->stop_id,
                               .session = answer_session(c->answer),
                               .session_version = c->answer->session_version,
                               .session_unseen = c->answer->session_unseen};
}

void api_choice_finish(struct answer_choice *c, bool last) {
    struct answer *a = c->answer;
    const struct api_choice shown = finished(c);
    push(c, &shown, false);
    if (last && a->request->include_usage) {
        buf_puts(&a->frame, SSE_DATA);
        api_render_usage_chunk(&a->frame, head_of(a), &a->usage);
        buf_puts(&a->frame, SSE_END);
    }
    if (last) buf_puts(&a->frame, SSE_DONE);
}

void api_choice_error(struct answer *a, const struct api_error *e, const char *request_id) {
    (void)request_id;
    buf_puts(&a->frame, SSE_DATA);
    api_render_error(&a->frame, e);
    buf_puts(&a->frame, SSE_END SSE_DONE);
}

/* ---- the whole answer ---- */

struct told { /* a choice, and what holds its parts */
    struct api_call *calls;
    struct buf text, prompt_ids;
};

static void tell(const struct answer_choice *c, struct api_choice *shown, struct told *told, struct buf *out) {
    const struct api_request *q = c->answer->request;
    *shown = finished(c);
    if (q->n_logprobs >= 0) shown->logprobs = &c->logprobs;
    if (q->n_prompt_logprobs >= 0) shown->prompt_logprobs = &c->prompt_logprobs;
    shown->text = answer_text(c, &told->text, &shown->text_len);
    shown->calls = told->calls = answer_calls(c, &shown->n_calls);
    shown->no_text = (shown->n_calls || c->split.cut_head) && !shown->text_len;
    if (c->failed || told->text.failed || (shown->n_calls && !told->calls)) out->failed = true;
    if (!q->return_token_ids) return;
    api_put_ids(&told->prompt_ids, c->prompt->ids, c->prompt->n_ids);
    shown->prompt_ids = &told->prompt_ids;
    shown->token_ids = &c->ids;
}

void api_choice_whole(struct answer *a, struct buf *out) {
    struct api_choice *choices = calloc(a->n_choices, sizeof *choices);
    struct told *told = calloc(a->n_choices, sizeof *told);
    const uint32_t n = choices && told ? a->n_choices : 0;
    if (!n) out->failed = true;
    for (uint32_t i = 0; i < n; i++) tell(&a->choices[i], &choices[i], &told[i], out);
    if (!out->failed) api_render_answer(out, a->form->style, head_of(a), choices, n, &a->usage);
    for (uint32_t i = 0; i < n; i++) {
        free(told[i].calls);
        buf_fini(&told[i].text);
        buf_fini(&told[i].prompt_ids);
    }
    free(told);
    free(choices);
}

void api_choice_close(struct answer *a) {
    struct choice_state *s = a->state;
    buf_fini(&s->head);
    for (uint32_t i = 0; i < a->n_choices; i++) {
        buf_fini(&a->choices[i].ids);
        buf_fini(&a->choices[i].prompt_logprobs);
        api_logprobs_fini(&a->choices[i].logprobs);
    }
}

void api_refuse(struct buf *out, const struct api_error *e, const char *request_id) {
    (void)request_id;
    api_render_error(out, e);
}
