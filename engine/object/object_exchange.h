/* object_exchange.h - one request and its answer over libcurl, in the thread of the caller.
 *
 * A body that is sent is read from the caller's parts as they are. A body that is received goes to where the caller
 * wants it, as far as he wants it: then libcurl is paused. What is no object's body (errors, lists) is collected, up to
 * a bound.
 * Ownership: one call's at a time. Invariant: between begin and end the request, the parts and the pace stay.
 */
#ifndef OBJECT_EXCHANGE_H
#define OBJECT_EXCHANGE_H

#include "object_answer.h"
#include "object_credentials.h"
#include "object_pace.h"
#include "object_request.h"

#include <curl/curl.h>

enum { OBJECT_BUFFER_BYTES = 256 << 10 };

/* What is the same for all exchanges with a store. */
struct object_line {
    char provider[OBJECT_REGION_BYTES + 16]; /* of CURLOPT_AWS_SIGV4 */
    char ca_file[1024];                      /* "" = libcurl's own */
    bool is_tls;
};

struct object_exchange {
    CURLM *multi;
    CURL *easy;
    struct curl_slist *lines;
    struct object_pace *pace;
    char fault[CURL_ERROR_SIZE];

    const struct state_bytes *parts; /* to be sent */
    size_t n_parts, part, at_part;
    uint64_t n_out, n_sent;
    bool was_sent;    /* to its end, at least once */
    bool is_repeated; /* by libcurl, behind that */

    struct object_answer answer;
    bool is_stream; /* the body of 200 or 206 goes to dst */
    char *dst;      /* [n_dst], of which n_got are there */
    size_t n_dst, n_got;
    char *spill; /* [OBJECT_BUFFER_BYTES], what came behind dst's end */
    size_t n_spill, at_spill;
    char *kept; /* collected */
    size_t n_kept, kept_cap, max_kept;
    uint64_t n_in;

    bool is_begun, is_done, is_paused, is_late, is_too_long, has_no_memory;
    CURLcode code;
};

bool object_exchange_init(struct object_exchange *x); /* of zeros; false: no memory */
void object_exchange_fini(struct object_exchange *x);

struct object_body {
    const struct state_bytes *parts;
    size_t n_parts;
};
/* max_kept: of an answer that is collected. ROD_ENOMEM. */
int object_exchange_begin(struct object_exchange *x, const struct object_line *line,
                          const struct object_request *request, const struct object_credentials *who,
                          const struct object_body *body, bool is_stream, size_t max_kept, struct object_pace *pace);
/* Until the answer is complete, of a stream its headers; or it has failed. */
void object_exchange_answer(struct object_exchange *x);
/* The next bytes of a stream; fewer than n only where it has ended or failed. */
size_t object_exchange_read(struct object_exchange *x, void *dst, size_t n);
/* The connection stays if the answer has come to its end. */
void object_exchange_end(struct object_exchange *x);

/* An exchange that has failed: no answer, or not all of it. */
static inline bool object_exchange_failed(const struct object_exchange *x) {
    return x->is_late || (x->is_done && x->code != CURLE_OK);
}
/* Says so: ROD_EIO or ROD_ENOMEM. *again: another attempt may go better. */
int object_exchange_say(const struct object_exchange *x, const char *what, bool *again, struct rod_error *err);

#endif
