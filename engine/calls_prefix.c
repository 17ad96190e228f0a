/* calls_prefix.c - the public calls of pinned prefixes. */
#include "core.h"
#include "engine/state/pinned.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int calls_need_pinned(const struct rod_engine *e, struct rod_error *err) {
    return e->pinned
               ? 0
               : rod_fail(err, ROD_EUNSUPPORTED, "Pinned prefixes need the prefix cache: set prefix_cache_bytes.");
}

struct calls_reading {
    sem_t ended;
    struct rod_event *end;
};

static void calls_on_end(void *user, struct rod_event *event) {
    struct calls_reading *reading = user;
    reading->end = event;
    sem_post(&reading->ended);
}

/* A request that reads ids and leaves its state. It must not begin from an entry of the prefix cache, since some
 * entries are states that generated their tokens. So it has a salt of its own. */
static struct rod_request *calls_reading_request(const int32_t *ids, size_t n) {
    struct rod_request *r = rod_request_new();
    if (!r) return NULL;
    r->prompt = malloc(n * sizeof *ids);
    r->cache_salt = malloc(32);
    if (!r->prompt || !r->cache_salt) {
        rod_request_free(r);
        return NULL;
    }
    memcpy(r->prompt, ids, n * sizeof *ids);
    r->n_prompt = n;
    snprintf(r->cache_salt, 32, "pin-%016llx", (unsigned long long)r->sampling.seed);
    snprintf(r->id, sizeof r->id, "%s", r->cache_salt);
    r->max_tokens = 0;
    r->keep_state = true;
    return r;
}

enum { LOOK_MS = 50 };

/* Until the request ends; where the caller wants no more of it, it is cancelled, and ends within a step. */
static void calls_wait(struct rod_engine *e, struct calls_reading *reading, uint64_t ticket,
                       const struct rod_prefix_new *wanted) {
    for (bool cancelled = false;;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += LOOK_MS * 1000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        if (!sem_timedwait(&reading->ended, &until)) return;
        if (cancelled || !wanted->stopped || !wanted->stopped(wanted->arg)) continue;
        rod_cancel(e, ticket);
        cancelled = true;
    }
}

/* *out: the state behind the first n tokens, the caller's. */
static int calls_read(struct rod_engine *e, const struct rod_prefix_new *wanted, size_t n, struct rod_state **out,
                      struct rod_error *err) {
    struct calls_reading reading = {0};
    uint64_t ticket;
    struct rod_request *r = calls_reading_request(wanted->ids, n);
    if (!r) return rod_fail_no_memory(err);
    sem_init(&reading.ended, 0, 0);
    r->on_end = calls_on_end;
    r->user = &reading;
    int rc = rod_submit(e, r, &ticket, err);
    if (rc) {
        rod_request_free(r);
    } else {
        calls_wait(e, &reading, ticket, wanted);
        if (reading.end->kind == ROD_EVENT_ERROR) {
            *err = reading.end->error;
            rc = err->code;
        } else if (!reading.end->state) {
            rc = rod_fail(err, ROD_EDRAINING, "The server cancelled the request.");
        } else {
            *out = reading.end->state;
            reading.end->state = NULL;
        }
        rod_event_free(reading.end);
    }
    sem_destroy(&reading.ended);
    return rc;
}

int rod_prefix_pin(struct rod_engine *e, const struct rod_prefix_new *wanted, struct rod_prefix_info *out,
                   struct rod_error *err) {
    int rc = calls_need_pinned(e, err);
    if (rc) return rc;
    const uint32_t chunk = e->backend_info.chunk_tok;
    const size_t n = wanted->n_ids, n_tok = n ? (n - 1) - (n - 1) % chunk : 0;
    if (!n_tok || n > PINNED_MAX_TOK)
        rc = rod_fail_at(err, ROD_EINVALID, "prompt", "The prefix has %zu tokens and must have %u to %d.", n, chunk + 1,
                         PINNED_MAX_TOK);
    if (!rc) rc = pinned_check(e->pinned, wanted->id, n_tok, err);
    if (rc) return rc;
    if (atomic_exchange(&e->pinning, true))
        return rod_fail(err, ROD_EQUEUEFULL, "Another prefix is being read: wait for its end.");
    struct rod_state *state = NULL;
    rc = calls_read(e, wanted, n_tok, &state, err);
    if (!rc) rc = pinned_put(e->pinned, wanted->id, wanted->ids, n_tok, state->buffer, out, err);
    rod_state_free(state);
    atomic_store(&e->pinning, false);
    return rc;
}

int rod_prefix_get(struct rod_engine *e, const char *id, struct rod_prefix_info *out, struct rod_error *err) {
    const int rc = calls_need_pinned(e, err);
    return rc ? rc : pinned_get(e->pinned, id, out, err);
}

int rod_prefix_list(struct rod_engine *e, struct rod_prefix_info **infos, size_t *n, struct rod_error *err) {
    const int rc = calls_need_pinned(e, err);
    return rc ? rc : pinned_list(e->pinned, infos, n, err);
}

int rod_prefix_unpin(struct rod_engine *e, const char *id, struct rod_error *err) {
    const int rc = calls_need_pinned(e, err);
    return rc ? rc : pinned_remove(e->pinned, id, err);
}
