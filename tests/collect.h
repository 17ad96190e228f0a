/* collect.h - for tests of the engine: submits requests and gathers their answers by ticket.
 *
 * A collector is the consumer of one engine: its wake callback posts a semaphore, collect_until pulls events. Every
 * rule about events that holds for all requests is asserted here.
 */
#ifndef COLLECT_H
#define COLLECT_H

#include "engine/rodimus.h"
#include "engine/base/utf8.h"

#include <errno.h>
#include <math.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

struct answer {
    uint64_t ticket;
    char *text;
    size_t text_len;
    int32_t *ids;
    float *logprobs;
    size_t n_ids;
    uint32_t n_top;
    struct rod_logprob top[20]; /* of the first token */
    struct answer_token {
        int32_t id;
        float logprob;
        uint32_t rank, n_top;
        struct rod_logprob top[20];
    } * prompt; /* as scored, from the second token on */
    size_t n_prompt;
    uint32_t n_starts, n_deltas;
    bool ended, failed;
    struct rod_event end; /* its pointers are not kept, but for state */
    char stop_string[64];
};

struct collector {
    sem_t woken;
    atomic_uint n_wakes;
    struct rod_engine *engine;
};

static inline void collect_wake(void *arg) {
    struct collector *c = arg;
    atomic_fetch_add(&c->n_wakes, 1);
    sem_post(&c->woken);
}

static inline void collect_init(struct collector *c, struct rod_engine_config *config) {
    memset(c, 0, sizeof *c);
    sem_init(&c->woken, 0, 0);
    config->wake = collect_wake;
    config->wake_arg = c;
}

/* ids are copied; everything else of the request may be set before collect_submit. */
static inline struct rod_request *collect_request(const int32_t *ids, size_t n, struct answer *answer) {
    struct rod_request *r = rod_request_new();
    assert_non_null(r);
    r->prompt = malloc((n ? n : 1) * sizeof *ids);
    if (n) memcpy(r->prompt, ids, n * sizeof *ids);
    r->n_prompt = n;
    r->user = answer;
    r->sampling.temperature = 0;
    memset(answer, 0, sizeof *answer);
    answer->text = calloc(1, 1);
    return r;
}

static inline void collect_stop(struct rod_request *r, const char *stop) {
    r->stop = realloc(r->stop, (r->n_stop + 1) * sizeof *r->stop);
    r->stop[r->n_stop++] = strdup(stop);
}

static inline void collect_submit(struct collector *c, struct rod_request *r) {
    struct rod_error err = {0};
    struct answer *a = r->user;
    if (rod_submit(c->engine, r, &a->ticket, &err)) fail_msg("submit: %s", err.message);
}

static inline void collect_event(struct rod_event *e) {
    struct answer *a = e->user;
    assert_non_null(a);
    assert_false(a->ended);
    assert_true(a->ticket == 0 || a->ticket == e->ticket);
    if (e->kind == ROD_EVENT_ERROR) {
        assert_true(e->error.code < 0 && e->error.message[0]);
        a->ended = a->failed = true;
    } else {
        assert_non_null(e->text);
        assert_int_equal(e->text[e->text_len], 0);
        assert_int_equal(utf8_check(e->text, e->text_len), e->text_len); /* never half a character */
        a->text = realloc(a->text, a->text_len + e->text_len + 1);
        memcpy(a->text + a->text_len, e->text, e->text_len + 1);
        a->text_len += e->text_len;
    }
    if (e->kind == ROD_EVENT_START) {
        assert_int_equal(a->n_starts + a->n_prompt + a->n_deltas, 0);
        a->n_starts++;
    }
    if (e->kind == ROD_EVENT_PROMPT) {
        assert_int_equal(a->n_deltas, 0);
        assert_true(e->n_tokens >= 1);
        a->prompt = realloc(a->prompt, (a->n_prompt + e->n_tokens) * sizeof *a->prompt);
        for (size_t i = 0; i < e->n_tokens; i++) {
            const struct rod_token *t = &e->tokens[i];
            struct answer_token *to = &a->prompt[a->n_prompt++];
            *to = (struct answer_token){t->id, t->logprob, t->rank, t->n_top, {{0}}};
            memcpy(to->top, t->top, t->n_top * sizeof *to->top);
        }
    }
    if (e->kind == ROD_EVENT_DELTA) {
        a->n_deltas++;
        assert_true(e->n_tokens >= 1);
        a->ids = realloc(a->ids, (a->n_ids + e->n_tokens) * sizeof *a->ids);
        a->logprobs = realloc(a->logprobs, (a->n_ids + e->n_tokens) * sizeof *a->logprobs);
        for (size_t i = 0; i < e->n_tokens; i++) {
            if (a->n_ids == 0) {
                a->n_top = e->tokens[i].n_top;
                memcpy(a->top, e->tokens[i].top, a->n_top * sizeof *a->top);
            }
            a->ids[a->n_ids] = e->tokens[i].id;
            a->logprobs[a->n_ids++] = e->tokens[i].logprob;
        }
    }
    if (e->kind == ROD_EVENT_FINISH) {
        assert_int_equal(e->n_tokens, 0);
        assert_int_equal(e->completion_tok, a->n_ids); /* every token is reported exactly once */
        a->ended = true;
        if (e->stop_string) snprintf(a->stop_string, sizeof a->stop_string, "%s", e->stop_string);
    }
    a->end = *e;
    a->end.text = NULL;
    a->end.tokens = NULL;
    a->end.stop_string = NULL;
    e->state = NULL;
    rod_event_free(e);
}

/* Pulls what is there now. */
static inline void collect_now(struct collector *c) {
    for (struct rod_event *e; (e = rod_next_event(c->engine));) collect_event(e);
}

static inline bool collect_wait(struct collector *c, int64_t ms) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
    int rc;
    while ((rc = sem_timedwait(&c->woken, &until)) && errno == EINTR) {}
    return rc == 0;
}

/* Until n answers (an array) have ended. */
static inline void collect_until(struct collector *c, const struct answer *answers, size_t n) {
    for (size_t at = 0;;) {
        collect_now(c);
        while (at < n && answers[at].ended) at++;
        if (at == n) return;
        if (!collect_wait(c, 60000)) fail_msg("no event for 60 s; request %zu of %zu has not ended", at, n);
    }
}

static inline void collect_free(struct answer *a) {
    free(a->text);
    free(a->ids);
    free(a->logprobs);
    free(a->prompt);
    rod_state_free(a->end.state);
    memset(a, 0, sizeof *a);
}

static inline void collect_close(struct collector *c) {
    rod_engine_close(c->engine);
    sem_destroy(&c->woken);
}

static inline struct rod_stats stats_of(const struct rod_engine *engine) {
    struct rod_stats stats;
    rod_engine_stats(engine, &stats);
    return stats;
}

static inline void collect_assert_ids(const struct answer *a, const int32_t *ids, size_t n, const char *what) {
    if (a->failed) fail_msg("%s: failed: %s", what, a->end.error.message);
    if (a->n_ids != n) fail_msg("%s: %zu tokens, want %zu", what, a->n_ids, n);
    for (size_t i = 0; i < n; i++)
        if (a->ids[i] != ids[i]) fail_msg("%s: token %zu is %d, want %d", what, i, a->ids[i], ids[i]);
}

#endif
