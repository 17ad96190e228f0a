/* object_put.c - see object_store.h: PUT, once or not at all, and many at the same time.
 *
 * Each put has a random mark in the object's metadata, which all its attempts share, and beside it the version that it
 * replaces. Where an answer was lost, or a condition did not hold, HEAD says whose mark is there.
 */
#include "object_call.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { SHA_BYTES = 32, SHA_TEXT_BYTES = 2 * SHA_BYTES + 1, CONFLICTS_MAX = 4 };

static void hex(const uint8_t *bytes, size_t n, char *dst) {
    for (size_t i = 0; i < n; i++) snprintf(dst + 2 * i, 3, "%02x", bytes[i]);
}

static int make_mark(char mark[OBJECT_MARK_BYTES], struct rod_error *err) {
    uint8_t bytes[(OBJECT_MARK_BYTES - 1) / 2];
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) return rod_fail(err, ROD_EINTERNAL, "No random bytes.");
    hex(bytes, sizeof bytes, mark);
    return 0;
}

/* Over TLS the way protects the body. */
static int make_payload(bool is_tls, const struct state_bytes *parts, size_t n_parts, char text[SHA_TEXT_BYTES],
                        struct rod_error *err) {
    gnutls_hash_hd_t hash;
    uint8_t digest[SHA_BYTES];
    if (is_tls) {
        memcpy(text, OBJECT_UNSIGNED, sizeof OBJECT_UNSIGNED);
        return 0;
    }
    if (gnutls_hash_init(&hash, GNUTLS_DIG_SHA256)) return rod_fail_no_memory(err);
    for (size_t i = 0; i < n_parts; i++) gnutls_hash(hash, parts[i].data, parts[i].n);
    gnutls_hash_deinit(hash, digest);
    hex(digest, sizeof digest, text);
    return 0;
}

/* Whose object is there. */
enum there {
    THERE_OURS,
    THERE_SAME,  /* what was to be replaced */
    THERE_NEXT,  /* another's, in the place of that: ours is not done, and will not be */
    THERE_OTHER, /* ours may lie between */
    THERE_UNKNOWN
};

struct putting {
    struct object_store *store;
    struct object_put *put;
    struct object_call call;
    char mark[OBJECT_MARK_BYTES], payload[SHA_TEXT_BYTES], start[OBJECT_START_TEXT_BYTES];
    const char *after; /* the version that it replaces */
    enum there there;  /* when it was looked at last */
};

/* ---- whose object is there ---- */

static enum there judge(const struct putting *p, const struct object_answer *a) {
    const struct object_put *put = p->put;
    if (!strcmp(a->mark, p->mark)) return THERE_OURS;
    if (put->condition == OBJECT_ANY) return THERE_SAME;
    if (put->condition == OBJECT_IF_SAME && !strcmp(a->version.etag, put->etag)) return THERE_SAME;
    return !strcmp(a->after, p->after) ? THERE_NEXT : THERE_OTHER;
}

static enum there look(struct putting *p, struct object_version *version, struct rod_error *err) {
    const struct object_ask ask = {.kind = OBJECT_HEAD, .key = p->put->key};
    struct object_call call;
    enum there there = THERE_UNKNOWN;
    int rc = object_call_begin(&call, p->store, &ask, NULL, p->store->time_ns / 4, p->call.channel, err);
    if (!rc) rc = object_call_run(&call, err);
    if (!rc && call.verdict == OBJECT_MISSING) there = p->put->condition == OBJECT_IF_SAME ? THERE_OTHER : THERE_SAME;
    if (!rc && call.verdict == OBJECT_DONE && object_call_answer(&call)->etag_fits) {
        *version = object_call_answer(&call)->version;
        there = judge(p, object_call_answer(&call));
    }
    object_call_end(&call);
    return there;
}

/* err: what the last attempt was told. */
static int unsure(struct rod_error *err, const struct putting *p) {
    char why[256];
    snprintf(why, sizeof why, "%.255s", err->message);
    return rod_fail(err, ROD_EUNSURE, "The object store does not say whether %.120s was written%s%s", p->put->key,
                    *why ? ": " : ".", why);
}
static int conflict(struct rod_error *err, const struct putting *p) {
    return rod_fail(err, ROD_ECONFLICT, "Another server has written %.120s in between.", p->put->key);
}

/* The store says that the condition did not hold: also of what an attempt before has done. */
static int after_loss(struct putting *p, bool maybe_done, struct rod_error *err) {
    struct rod_error own;
    const enum there there = look(p, &p->put->version, &own);
    if (there == THERE_OURS) return 0;
    return maybe_done && there != THERE_NEXT ? unsure(err, p) : conflict(err, p);
}

static int take_version(struct putting *p, struct rod_error *err) {
    const struct object_answer *a = object_call_answer(&p->call);
    struct object_put *put = p->put;
    if (a->etag_fits) {
        put->version = a->version;
        put->version.n_bytes = p->call.channel->exchange.n_out;
        put->version.modified_s = a->date_s;
        return 0;
    }
    struct rod_error own;
    if (look(p, &put->version, &own) == THERE_OURS) return 0;
    rod_fail(err, ROD_EUNSURE, "The answer has no ETag of 1 to %d characters.", OBJECT_ETAG_BYTES - 1);
    return unsure(err, p);
}

/* ---- attempts ---- */

/* A conflict of two requests at once, not of versions; where it stays it is one. */
static bool is_lost(const struct putting *p, int rc) {
    const struct object_answer *a = object_call_answer(&p->call);
    if (p->put->condition == OBJECT_ANY) return false;
    if (a->status == 409 && p->call.pace.n_attempts >= CONFLICTS_MAX) return true;
    return !rc && (p->call.verdict == OBJECT_LOST || p->call.verdict == OBJECT_MISSING);
}

/* An answer that was lost, or that says little. true: what is there decides, and *rc is the outcome. */
static bool is_settled(struct putting *p, int *rc, struct rod_error *err) {
    struct rod_error own;
    p->there = look(p, &p->put->version, &own);
    switch (p->there) {
    case THERE_OURS: *rc = 0; return true;
    case THERE_NEXT: *rc = conflict(err, p); return true;
    case THERE_OTHER: *rc = unsure(err, p); return true;
    case THERE_SAME:
    case THERE_UNKNOWN: break;
    }
    return false;
}

/* true: it is over, with *rc. */
static bool attempt(struct putting *p, int *rc, struct rod_error *err) {
    *rc = object_call_attempt(&p->call, err);
    const struct object_answer *a = object_call_answer(&p->call);
    const enum object_verdict verdict = p->call.verdict;
    const bool maybe_done = p->call.maybe_done;
    if (!*rc && verdict == OBJECT_DONE) {
        *rc = take_version(p, err);
        return true;
    }
    if (is_lost(p, *rc)) {
        *rc = after_loss(p, maybe_done, err);
        return true;
    }
    if (!*rc) *rc = rod_fail(err, ROD_EIO, "The object store has no bucket %s.", p->store->url.bucket);
    if (maybe_done && (!a->is_complete || object_answer_unsure(a)) && is_settled(p, rc, err)) return true;
    return verdict != OBJECT_AGAIN;
}

static int put_one(struct putting *p, struct rod_error *err) {
    struct object_put *put = p->put;
    p->after = put->condition == OBJECT_IF_SAME ? put->etag : put->condition == OBJECT_IF_NEW ? "new" : "any";
    const struct object_body body = {put->parts, put->n_parts};
    const struct object_ask ask = {.kind = OBJECT_PUT,
                                   .key = put->key,
                                   .condition = put->condition,
                                   .etag = put->etag,
                                   .payload = p->payload,
                                   .mark = p->mark,
                                   .start = p->start,
                                   .is_bare = atomic_load(&p->store->bare_etags),
                                   .replaces = p->after};
    object_start_text(put->parts, put->n_parts, p->start);
    int rc = make_mark(p->mark, err);
    if (!rc) rc = make_payload(p->store->url.is_tls, put->parts, put->n_parts, p->payload, err);
    if (!rc) rc = object_call_begin(&p->call, p->store, &ask, &body, p->store->time_ns, NULL, err);
    if (rc) return rc;
    while (!attempt(p, &rc, err) && object_call_again(&p->call)) {}
    const bool failed = p->there == THERE_SAME && !p->call.is_silent; /* each attempt, and the store says so */
    if (rc && rc != ROD_ECONFLICT && rc != ROD_EUNSURE && p->call.maybe_done && !failed) rc = unsure(err, p);
    object_call_end(&p->call);
    return rc;
}

/* ---- many ---- */

struct batch {
    struct object_store *store;
    struct object_put *puts;
    size_t n;
    atomic_size_t next;
    uint64_t until_ns; /* as of the thread that asked */
};

static void *run_batch(void *arg) {
    struct batch *b = arg;
    object_store_hurry(b->store, b->until_ns);
    for (size_t i; (i = atomic_fetch_add(&b->next, 1)) < b->n;) {
        struct putting p = {.store = b->store, .put = &b->puts[i], .there = THERE_UNKNOWN};
        p.put->version = (struct object_version){0};
        p.put->rc = object_call_note(b->store, put_one(&p, &p.put->err), &p.put->err);
    }
    return NULL;
}

/* One that no thread can be had for waits for the others. */
void object_store_put(struct object_store *store, struct object_put *puts, size_t n) {
    struct batch b = {store, puts, n, 0, object_call_until(store)};
    pthread_t threads[8];
    size_t n_threads = 0;
    while (n_threads + 1 < n && n_threads < sizeof threads / sizeof *threads &&
           !pthread_create(&threads[n_threads], NULL, run_batch, &b))
        n_threads++;
    run_batch(&b);
    while (n_threads) pthread_join(threads[--n_threads], NULL);
}
