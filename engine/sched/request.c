/* request.c - defaults, validation and events. */
#include "request.h"
#include "engine/base/fail.h"

#include "engine/base/utf8.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

struct rod_request *rod_request_new(void) {
    struct rod_request *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->sampling = rod_sampling_neutral();
    /* Without a seed of the caller's no two requests draw alike. */
    if (getrandom(&r->sampling.seed, sizeof r->sampling.seed, GRND_NONBLOCK) != (ssize_t)sizeof r->sampling.seed) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        r->sampling.seed = (uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15u ^ (uint64_t)now.tv_sec ^ (uint64_t)(uintptr_t)r;
    }
    r->max_tokens = 16;
    r->n_logprobs = r->n_prompt_logprobs = -1;
    return r;
}

static void request_free_turn(struct rod_turn *turn) {
    if (!turn) return;
    free(turn->tenant);
    free(turn->session);
    free(turn->from);
    free(turn->if_empty);
    free(turn->if_open);
    free(turn->if_known);
    free(turn->if_known_open);
    free(turn->idempotency_key);
    free(turn->label);
    free(turn->text);
    free(turn);
}

void rod_request_free(struct rod_request *request) {
    if (!request) return;
    request_free_turn(request->turn);
    free(request->prompt);
    free(request->bias);
    for (size_t i = 0; i < request->n_stop; i++) free(request->stop[i]);
    free(request->stop);
    free(request->stop_ids);
    free(request->prediction);
    free(request->allowed_ids);
    free(request->tenant);
    free(request->cache_salt);
    free(request->marks);
    free(request->conversation);
    for (size_t i = 0; i < request->n_bad; i++) free(request->bad[i].ids);
    free(request->bad);
    free(request->grammar_open);
    free(request->grammar_begun);
    rod_grammar_close(request->grammar);
    rod_state_free(request->state);
    free(request);
}

/* ---- validation ---- */

/* NaN fails every comparison, so it fails here too. */
static int request_check_range(struct rod_error *err, const char *param, double value, double low, double high) {
    if (value >= low && value <= high) return 0;
    return rod_fail_at(err, ROD_EINVALID, param, "%s is %g, it must be at least %g and at most %g.", param, value, low,
                       high);
}

/* Penalised logits stay finite. */
static int request_check_sampling(const struct rod_sampling *s, struct rod_error *err) {
    int rc = 0;
    for (size_t i = 0; !rc && i < ROD_N_SAMPLING; i++) {
        const struct rod_sampling_option *o = &rod_sampling_options[i];
        if (o->whole) continue; /* any is good */
        const double value = (double)*(const float *)(const void *)((const char *)s + o->offset);
        rc = request_check_range(err, o->name, value, (double)(float)o->low, o->high);
        if (!rc && o->above && value <= o->low)
            rc = rod_fail_at(err, ROD_EINVALID, o->name, "%s is %g and must be above %g and at most %g.", o->name,
                             value, o->low, o->high);
    }
    return rc;
}

static int request_check_ids(const int32_t *ids, size_t n, uint32_t V, const char *param, struct rod_error *err) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= V)
            return rod_fail_at(err, ROD_EINVALID, param, "Token id %d of %s is outside the vocabulary of %u tokens.",
                               ids[i], param, V);
    return 0;
}

static int request_check_stops(const struct rod_request *r, uint32_t V, struct rod_error *err) {
    size_t n_bytes = 0;
    if (r->n_stop > REQUEST_MAX_STOP)
        return rod_fail_at(err, ROD_EINVALID, "stop", "There are %zu stop strings; the limit is %u.", r->n_stop,
                           REQUEST_MAX_STOP);
    for (size_t i = 0; i < r->n_stop; i++) {
        if (!r->stop[i] || !r->stop[i][0]) return rod_fail_at(err, ROD_EINVALID, "stop", "A stop string is empty.");
        size_t len = strlen(r->stop[i]);
        if (utf8_check(r->stop[i], len) != len)
            return rod_fail_at(err, ROD_EINVALID, "stop", "A stop string is not valid UTF-8.");
        n_bytes += len;
    }
    if (n_bytes > REQUEST_MAX_STOP_BYTES)
        return rod_fail_at(err, ROD_EINVALID, "stop", "The stop strings have %zu bytes; the limit is %u.", n_bytes,
                           REQUEST_MAX_STOP_BYTES);
    if (r->n_stop_ids > REQUEST_MAX_STOP_IDS)
        return rod_fail_at(err, ROD_EINVALID, "stop_token_ids", "There are %zu stop token ids; the limit is %u.",
                           r->n_stop_ids, REQUEST_MAX_STOP_IDS);
    return request_check_ids(r->stop_ids, r->n_stop_ids, V, "stop_token_ids", err);
}

static int request_check_choice(const struct rod_request *r, uint32_t V, struct rod_error *err) {
    size_t n = 0;
    if (r->n_allowed_ids > V)
        return rod_fail_at(err, ROD_EINVALID, "allowed_token_ids",
                           "allowed_token_ids has more entries than the vocabulary has tokens.");
    int rc = request_check_ids(r->allowed_ids, r->n_allowed_ids, V, "allowed_token_ids", err);
    for (size_t i = 0; !rc && i < r->n_bad; i++) {
        if (!r->bad[i].n_ids) return rod_fail_at(err, ROD_EINVALID, "bad_words", "One of bad_words has no tokens.");
        n += r->bad[i].n_ids;
        rc = request_check_ids(r->bad[i].ids, r->bad[i].n_ids, V, "bad_words", err);
    }
    if (n > REQUEST_MAX_BAD_TOK)
        return rod_fail_at(err, ROD_EINVALID, "bad_words", "bad_words have %zu tokens together; the limit is %u.", n,
                           REQUEST_MAX_BAD_TOK);
    return rc;
}

int request_check(const struct rod_request *r, uint32_t V, uint64_t max_prompt_tok, struct rod_error *err) {
    assert(r->n_breakpoints <= ROD_MAX_BREAKPOINTS);
    const bool pending = r->state && r->state->pending >= 0;
    if (r->n_prompt == 0 && !pending && !r->turn) /* of a turn the session knows */
        return rod_fail_at(err, ROD_EINVALID, "prompt", "The prompt is empty: at least one token is needed.");
    if (max_prompt_tok && r->n_prompt > max_prompt_tok) {
        rod_fail(err, ROD_ETOOLONG, "The prompt has %zu tokens and the limit is %llu.", r->n_prompt,
                 (unsigned long long)max_prompt_tok);
        if (err) snprintf(err->param, sizeof err->param, "prompt");
        return ROD_ETOOLONG;
    }
    if (r->key >= ROD_MAX_KEYS) return rod_fail_at(err, ROD_EINVALID, "", "The number of the key is out of range.");
    int rc = request_check_ids(r->prompt, r->n_prompt, V, "prompt", err);
    if (!rc) rc = request_check_sampling(&r->sampling, err);
    if (!rc) rc = request_check_stops(r, V, err);
    if (!rc) rc = request_check_choice(r, V, err);
    if (rc) return rc;
    if (r->n_bias > V)
        return rod_fail_at(err, ROD_EINVALID, "logit_bias",
                           "logit_bias has more entries than the vocabulary has tokens.");
    for (size_t i = 0; i < r->n_bias; i++) {
        if ((rc = request_check_ids(&r->bias[i].id, 1, V, "logit_bias", err))) return rc;
        float bias = r->bias[i].bias; /* -INFINITY forbids the token */
        if (bias != -INFINITY && (rc = request_check_range(err, "logit_bias", bias, -100, 100))) return rc;
    }
    if (r->min_tokens > r->max_tokens)
        return rod_fail_at(err, ROD_EINVALID, "min_tokens", "min_tokens is %u and above max_tokens, which is %u.",
                           r->min_tokens, r->max_tokens);
    if (r->n_logprobs < -1 || r->n_logprobs > 20)
        return rod_fail_at(err, ROD_EINVALID, "logprobs", "logprobs is %d and must be between 0 and 20.",
                           r->n_logprobs);
    if (r->n_prompt_logprobs < -1 || r->n_prompt_logprobs > 20)
        return rod_fail_at(err, ROD_EINVALID, "prompt_logprobs", "prompt_logprobs is %d and must be between 0 and 20.",
                           r->n_prompt_logprobs);
    return 0;
}

/* ---- events ---- */

struct event *event_new(size_t text_cap, size_t n_tokens, uint32_t n_top, size_t extra) {
    size_t tokens = n_tokens * sizeof(struct rod_token), tops = n_tokens * n_top * sizeof(struct rod_logprob);
    struct event *e = malloc(sizeof *e + tokens + tops + text_cap + 1 + extra);
    if (!e) return NULL;
    memset(e, 0, sizeof *e + tokens);
    char *at = (char *)(e + 1);
    e->pub.tokens = (struct rod_token *)(void *)at;
    e->pub.n_tokens = n_tokens;
    at += tokens;
    for (size_t i = 0; i < n_tokens; i++) {
        e->pub.tokens[i].top = (struct rod_logprob *)(void *)at;
        at += n_top * sizeof(struct rod_logprob);
    }
    e->pub.text = at;
    e->pub.text[0] = 0;
    e->pub.stop_id = -1;
    return e;
}

/* The text begins where the tokens end, so the extra bytes come first and the text moves behind them. */
char *event_extra(struct event *e, size_t extra) {
    char *at = e->pub.text;
    e->pub.text += extra;
    e->pub.text[0] = 0;
    return at;
}

struct event *event_of_link(struct mailbox_event *link) {
    return link ? (struct event *)(void *)((char *)link - offsetof(struct event, link)) : NULL;
}

void event_free(struct event *event) {
    if (event) rod_state_free(event->pub.state);
    free(event);
}

void events_free(struct mailbox_events *events) {
    for (struct mailbox_event *at = events->head, *next; at; at = next) {
        next = at->next;
        event_free(event_of_link(at));
    }
    *events = (struct mailbox_events){0};
}

void rod_event_free(struct rod_event *event) {
    if (event) event_free((struct event *)(void *)((char *)event - offsetof(struct event, pub)));
}
