/* object_reader.c - see object_store.h: GET, as a stream. */
#include "object_call.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"

#include <stdlib.h>
#include <string.h>

struct object_reader {
    struct object_call call;
    char start[OBJECT_START_BYTES]; /* [n_start], read and compared already, given out up to at_start */
    size_t n_start, at_start;
    uint64_t n_left;  /* behind the start */
    uint64_t idle_ns; /* since when the caller does something else */
};

static int check(const struct object_answer *a, const char *key, struct rod_error *err) {
    if (!a->has_length || !a->etag_fits)
        return rod_fail(err, ROD_EIO, "The object store's answer for %.120s has no %s.", key,
                        a->has_length ? "ETag of 1 to 63 characters" : "length");
    return 0;
}

static int say_short(struct object_reader *r, struct rod_error *err) {
    const struct object_exchange *x = &r->call.channel->exchange;
    bool again;
    char what[160];
    snprintf(what, sizeof what, "GET %.110s", r->call.ask.key);
    if (object_exchange_failed(x) && x->code != CURLE_PARTIAL_FILE) return object_exchange_say(x, what, &again, err);
    return rod_fail(err, ROD_EIO, "The object store's answer to %s ended %llu bytes early.", what,
                    (unsigned long long)r->n_left);
}

/* The next bytes behind the start. */
static int read_on(struct object_reader *r, void *dst, size_t n, struct rod_error *err) {
    const size_t n_read = n ? object_exchange_read(&r->call.channel->exchange, dst, n) : 0;
    r->n_left -= n_read;
    r->idle_ns = clock_now_ns();
    return n_read == n ? 0 : say_short(r, err);
}

/* Other bytes than were written with this metadata: changed on the way, or of another version. */
static int read_start(struct object_reader *r, struct rod_error *err) {
    const char *written = object_call_answer(&r->call)->start;
    char got[OBJECT_START_TEXT_BYTES];
    r->n_start = r->n_left < sizeof r->start ? (size_t)r->n_left : sizeof r->start;
    const int rc = read_on(r, r->start, r->n_start, err);
    if (rc) return rc;
    object_start_text(&(struct state_bytes){r->start, r->n_start}, 1, got);
    return !*written || !strcmp(written, got)
               ? 0
               : rod_fail(err, ROD_EIO,
                          "The object store's answer for %.120s begins with other bytes than were written.",
                          r->call.ask.key);
}

/* *broken: its answer is at fault. */
static int open_body(struct object_reader *r, const struct object_ask *ask, struct object_version *version,
                     bool *broken, struct rod_error *err) {
    struct object_store *store = r->call.store;
    const struct object_answer *a = object_call_answer(&r->call);
    int rc = check(a, ask->key, err);
    *broken = rc;
    if (a->etag_fits) *version = a->version;
    if (rc) return rc;
    r->n_left = a->n_body;
    if (ask->n_start && r->n_left > ask->n_start) r->n_left = ask->n_start;
    rc = r->n_left ? object_pool_take_bytes(store->pool, r->n_left, r->call.pace.end_ns, &r->call.n_bytes, err) : 0;
    if (!rc) *broken = (rc = read_start(r, err)) && !r->call.channel->exchange.is_late;
    return rc;
}

/* *out NULL and 0: the object is the known version, or (416) has no byte of a range. *broken: an answer came, and is at
 * fault. */
static int get_once(struct object_store *store, const struct object_ask *ask, struct object_reader **out,
                    struct object_version *version, bool *broken, struct rod_error *err) {
    *out = NULL;
    struct object_reader *r = calloc(1, sizeof *r);
    if (!r) return rod_fail_no_memory(err);
    int rc = object_call_begin(&r->call, store, ask, NULL, store->time_ns, NULL, err);
    if (!rc) rc = object_call_run(&r->call, err);
    if (!rc && r->call.verdict == OBJECT_MISSING)
        rc = rod_fail(err, ROD_ENOTFOUND, "There is no object %.120s.", ask->key);
    const int status = rc ? 0 : object_call_answer(&r->call)->status;
    if (status == 200 || status == 206) {
        rc = open_body(r, ask, version, broken, err);
        if (!rc) *out = r;
    }
    if (!rc && status && !*out && status != 304 && status != 416)
        rc = rod_fail(err, ROD_EIO, "The object store answers GET with %d.", status);
    if (!*out) object_reader_close(r);
    return status == 416 ? object_store_head(store, ask->key, version, err) : object_call_note(store, rc, err);
}

/* What is at fault is read once more. */
static int get(struct object_store *store, const struct object_ask *ask, struct object_reader **out,
               struct object_version *version, struct rod_error *err) {
    bool broken = false, again = false;
    *version = (struct object_version){0};
    const int rc = get_once(store, ask, out, version, &broken, err);
    return broken ? get_once(store, ask, out, version, &again, err) : rc;
}

int object_store_get(struct object_store *store, const char *key, const char *known, struct object_reader **out,
                     struct object_version *version, struct rod_error *err) {
    struct rod_error own;
    const struct object_ask ask = {.kind = OBJECT_GET, .key = key, .etag = known};
    return get(store, &ask, out, version, err ? err : &own);
}

int object_reader_get(struct object_reader *r, void *dst, size_t n_bytes, size_t *n_read, struct rod_error *err) {
    struct rod_error own;
    const size_t n_there = r->n_start - r->at_start, n_first = n_bytes < n_there ? n_bytes : n_there;
    const uint64_t n_more = n_bytes - n_first < r->n_left ? n_bytes - n_first : r->n_left;
    const uint64_t n_left = r->n_left;
    if (!err) err = &own;
    if (n_first) memcpy(dst, r->start + r->at_start, n_first);
    r->at_start += n_first;
    object_pace_idle(&r->call.pace, clock_now_ns() - r->idle_ns);
    const int rc = read_on(r, (char *)dst + n_first, (size_t)n_more, err);
    *n_read = n_first + (size_t)(n_left - r->n_left);
    return rc ? object_call_note(r->call.store, rc, err) : 0;
}

void object_reader_close(struct object_reader *reader) {
    if (!reader) return;
    object_call_end(&reader->call);
    free(reader);
}

int object_store_get_start(struct object_store *store, const char *key, void *dst, size_t n_bytes, size_t *n_read,
                           struct object_version *version, struct rod_error *err) {
    struct rod_error own;
    const size_t n_start = n_bytes < OBJECT_START_BYTES ? OBJECT_START_BYTES : n_bytes;
    const struct object_ask ask = {.kind = OBJECT_GET, .key = key, .n_start = n_start};
    struct object_reader *r;
    if (!err) err = &own;
    *n_read = 0;
    int rc = get(store, &ask, &r, version, err);
    if (!rc && r) rc = object_reader_get(r, dst, n_bytes, n_read, err);
    object_reader_close(r);
    return rc;
}
