/* state_guard.c - see state_guard.h. */
#include "state_guard.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"

#include <stdlib.h>

/* Failures in a row until the home counts as out of reach; the pause between two trials. */
enum { MOST_FAILURES = 3 };
#define PAUSE_NS ((uint64_t)300 * 1000000u)

void state_guard_init(struct state_guard *g, const struct state_home *home) {
    *g = (struct state_guard){.inner = *home};
    pthread_mutex_init(&g->lock, NULL);
}

void state_guard_fini(struct state_guard *g) { pthread_mutex_destroy(&g->lock); }

bool state_guard_down(struct state_guard *g, struct rod_error *why) {
    pthread_mutex_lock(&g->lock);
    const bool down = g->n_failed >= MOST_FAILURES;
    if (down && why) *why = g->reason;
    pthread_mutex_unlock(&g->lock);
    return down;
}

void state_guard_forgive(struct state_guard *g) {
    pthread_mutex_lock(&g->lock);
    if (g->n_failed >= MOST_FAILURES) g->n_failed = MOST_FAILURES - 1;
    pthread_mutex_unlock(&g->lock);
}

/* ---- around a call ---- */

/* 0: it may go through, and guard_after is told how it went. */
static int guard_before(struct state_guard *g, bool *trial, struct rod_error *err) {
    const uint64_t now_ns = clock_now_ns();
    int rc = 0;
    *trial = false;
    pthread_mutex_lock(&g->lock);
    if (g->n_failed >= MOST_FAILURES) {
        *trial = !g->trying && now_ns - g->tried_ns >= PAUSE_NS;
        if (*trial) g->trying = true;
        if (!*trial) rc = rod_fail(err, ROD_EIO, "The store is out of reach: %.300s", g->reason.message);
    }
    if (!rc) g->tried_ns = now_ns;
    pthread_mutex_unlock(&g->lock);
    return rc;
}

/* An answer, whatever it says, is one. */
static int guard_after(struct state_guard *g, bool trial, int rc, const struct rod_error *err) {
    pthread_mutex_lock(&g->lock);
    if (trial) g->trying = false;
    if (rc != ROD_EIO && rc != ROD_EUNSURE) {
        g->n_failed = 0;
    } else {
        if (g->n_failed < MOST_FAILURES) g->n_failed++;
        if (err) g->reason = *err;
    }
    g->tried_ns = clock_now_ns();
    pthread_mutex_unlock(&g->lock);
    return rc;
}

/* err of the caller may be NULL, and the reason is wanted all the same. */
#define GUARDED(g, err, call)                                                                                          \
    do {                                                                                                               \
        struct rod_error why = {0};                                                                                    \
        bool trial;                                                                                                    \
        int rc = guard_before(g, &trial, &why);                                                                        \
        if (!rc) rc = guard_after(g, trial, call, &why);                                                               \
        if (rc && (err)) *(err) = why;                                                                                 \
        return rc;                                                                                                     \
    } while (0)

/* ---- the calls ---- */

static int guard_open(void *arg, const char *name, const char *known_etag, struct state_home_file *out,
                      struct rod_error *err) {
    struct state_guard *g = arg;
    out->calls = g->inner.calls; /* which read on and close; a body that does not come is the next call's to notice */
    struct rod_error why = {0};
    bool trial;
    int rc = guard_before(g, &trial, &why);
    if (!rc) {
        rc = g->inner.calls->open(g->inner.arg, name, known_etag, out, &why);
        guard_after(g, trial, *out->version.etag ? 0 : rc, &why); /* what it gives may be at fault: it is in reach */
    }
    if (rc && err) *err = why;
    return rc;
}

static int guard_peek(void *arg, const char *name, void *dst, size_t n_bytes, size_t *n_read,
                      struct state_disk_version *version, struct rod_error *err) {
    struct state_guard *g = arg;
    GUARDED(g, err, g->inner.calls->peek(g->inner.arg, name, dst, n_bytes, n_read, version, &why));
}

static int guard_stat(void *arg, const char *name, struct state_disk_version *out, struct rod_error *err) {
    struct state_guard *g = arg;
    GUARDED(g, err, g->inner.calls->stat(g->inner.arg, name, out, &why));
}

static void guard_write(void *arg, struct state_disk_item *items, size_t n) {
    struct state_guard *g = arg;
    struct rod_error err;
    bool trial;
    if (!n) return;
    const int rc = guard_before(g, &trial, &err);
    if (!rc) g->inner.calls->write(g->inner.arg, items, n);
    const struct state_disk_item *worst = items; /* some may be well: then it is in reach */
    for (size_t i = 0; i < n; i++) {
        if (rc) {
            items[i].rc = rc;
            items[i].err = err;
        }
        if (items[i].rc != ROD_EIO && items[i].rc != ROD_EUNSURE) worst = &items[i];
    }
    if (!rc) guard_after(g, trial, worst->rc, &worst->err);
}

static int guard_copy(void *arg, const char *name, const char *known_etag, const char *second, struct rod_error *err) {
    struct state_guard *g = arg;
    GUARDED(g, err, g->inner.calls->copy(g->inner.arg, name, known_etag, second, &why));
}

static int guard_remove(void *arg, const char *name, const char *known_etag, struct rod_error *err) {
    struct state_guard *g = arg;
    GUARDED(g, err, g->inner.calls->remove(g->inner.arg, name, known_etag, &why));
}

static void guard_drop(void *arg, const char *name) {
    struct state_guard *g = arg;
    if (!state_guard_down(g, NULL)) g->inner.calls->drop(g->inner.arg, name);
}

static int guard_list(void *arg, const char *prefix, const char *after,
                      void (*found)(void *arg, const char *name, const struct state_disk_version *version),
                      void *found_arg, bool *more, struct rod_error *err) {
    struct state_guard *g = arg;
    GUARDED(g, err, g->inner.calls->list(g->inner.arg, prefix, after, found, found_arg, more, &why));
}

static void guard_hurry(void *arg, uint64_t until_ns) {
    const struct state_guard *g = arg;
    state_home_hurry(&g->inner, until_ns);
}

static const struct state_home_calls guard_calls = {.open = guard_open,
                                                    .peek = guard_peek,
                                                    .stat = guard_stat,
                                                    .write = guard_write,
                                                    .copy = guard_copy,
                                                    .remove = guard_remove,
                                                    .drop = guard_drop,
                                                    .list = guard_list,
                                                    .hurry = guard_hurry};

struct state_home state_guard_home(struct state_guard *g) {
    struct state_home home = g->inner;
    home.calls = &guard_calls;
    home.arg = g;
    return home;
}
