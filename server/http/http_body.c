/* http_body.c - the body of a request: bytes that come in, their limits, and the room of all bodies together. See
 * http.h.
 *
 * Invariant: bodies_bytes of a transport is the sum of body_cap over its requests without a limit of their own; so is
 * the counter of each http_count_body.
 */
#include "engine/base/quota.h"
#include "http_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BODIES_MAX_BYTES ((size_t)512 << 20) /* all bodies being gathered */
#define SHORT_BODY_BYTES 65536 /* so much any request may bring, or long ones that trickle would shut all out */
#define SLOWEST_BODY_BPS 16384 /* a body that falls behind this by more than the idle timeout is given up */
#define LONGEST_BODY_S   3600  /* and so is one that would need longer than this for the largest of its kind */

size_t http_body_bytes(const struct http_request *r) { return r->large ? 0 : r->body_len; }
size_t http_body_max(const struct http_request *r) { return r->body_max; }

void http_set_body_max(struct http_request *r, size_t bytes) {
    assert(!r->body && !r->dispatched);
    r->body_max = bytes;
    if (!r->large) r->http->n_large++;
    r->large = true;
}

void http_count_body(struct http_request *r, size_t *counter) {
    assert(!r->body_cap && !r->counter); /* else the sums would not hold */
    r->counter = counter;
}

void http_drop_body(struct http_request *r, size_t max_bytes) {
    r->body_max = max_bytes;
    r->discard = true;
}

/* The body has so many bytes of memory from now on. */
static void body_set_cap(struct http_request *r, size_t cap) {
    assert((cap != 0) == (r->body != NULL) && r->body_len <= cap);
    assert(r->large || r->http->bodies_bytes >= r->body_cap);
    assert(r->large || !r->counter || *r->counter >= r->body_cap);
    if (!r->large) r->http->bodies_bytes += cap - r->body_cap;
    if (!r->large && r->counter) *r->counter += cap - r->body_cap;
    r->body_cap = cap;
}

void http_body_discard(struct http_request *r) {
    r->discard = true;
    free(r->body);
    r->body = NULL;
    r->body_len = 0;
    body_set_cap(r, 0);
    assert(!r->large || r->http->n_large);
    if (r->large) r->http->n_large--;
    r->large = false;
}

size_t http_content_length(const struct http_request *r, bool *chunked) {
    *chunked = r->chunked;
    return r->declared;
}

char *http_take_body(struct http_request *r, size_t *len) {
    char *body = r->body;
    assert(r->dispatched);
    *len = r->body_len;
    r->body = NULL;
    r->body_len = 0;
    body_set_cap(r, 0);
    return body;
}

void http_refuse(struct http_request *r, unsigned status, const char *code, const char *message) {
    assert(http_on_loop(r->http) && !r->dispatched);
    r->refused = true;
    http_body_discard(r);
    r->http->on.refuse(r->http->on.arg, r, status, code, message);
}

/* Asked again whenever a body grows, as all may have begun while there was room. One alone may have it all, however
 * much it is. False after a refusal. */
bool http_body_fits(struct http_request *r, size_t cap) {
    const size_t others = r->http->bodies_bytes - r->body_cap;
    const size_t mine = r->counter ? *r->counter - r->body_cap : 0;
    if (r->large || cap <= SHORT_BODY_BYTES || !others) return true;
    if (others + cap > BODIES_MAX_BYTES) {
        http_refuse(r, 503, "overloaded", NULL);
        return false;
    }
    if (!r->counter || quota_fits(mine, others, cap, BODIES_MAX_BYTES)) return true;
    http_refuse(r, 429, "key_bodies", NULL);
    return false;
}

enum MHD_Result http_body_add(struct http_request *r, const char *bytes, size_t n) {
    assert(!r->dispatched && !r->suspended);
    r->received += n;
    if (!r->answered && !r->refused && r->received > r->body_max) http_refuse(r, 413, "body_too_large", NULL);
    if (r->discard) return r->received > HTTP_DRAIN_MAX_BYTES ? MHD_NO : MHD_YES;
    if (r->body_len + n + 1 > r->body_cap) {
        size_t cap = r->body_cap ? r->body_cap * 2 : r->large ? r->declared + 1 : 1024;
        while (cap < r->body_len + n + 1) cap *= 2;
        if (!http_body_fits(r, cap)) return MHD_YES;
        char *grown = realloc(r->body, cap);
        if (!grown) {
            http_refuse(r, 503, "overloaded", NULL);
            return MHD_YES;
        }
        r->body = grown;
        body_set_cap(r, cap);
    }
    assert(r->body_len + n < r->body_cap);
    memcpy(r->body + r->body_len, bytes, n);
    r->body_len += n;
    r->body[r->body_len] = 0;
    return MHD_YES;
}

/* What has come buys time at the least rate, and no more ahead than the idle timeout: so neither a body that comes
 * quickly but for its last byte nor one that drips is there for long. */
bool http_body_is_late(struct http_request *r, uint64_t now) {
    const uint64_t least = r->body_max / LONGEST_BODY_S, latest = now + r->http->idle_ns;
    const uint64_t bps = least > SLOWEST_BODY_BPS ? least : SLOWEST_BODY_BPS;
    assert(r->received >= r->swept && !r->dispatched);
    r->body_due_ns += (uint64_t)(r->received - r->swept) * 1000000000u / bps;
    r->swept = r->received;
    if (r->body_due_ns > latest) r->body_due_ns = latest;
    return now > r->body_due_ns;
}
