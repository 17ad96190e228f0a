/* object_request.h - what goes to the store for each kind of request: method, URL, the lines of headers that are
 * signed.
 *
 * libcurl 7.88.1 signs them. What it signs wrongly is not asked of it: it takes the query as it stands (here: sorted,
 * encoded), makes no x-amz-content-sha256, signs a header that is not sent ("Expect:"), and puts a name behind a longer
 * one that begins with it (x-amz-copy-source-if-match; a key of aws:kms).
 * Pure; any thread. The struct holds a token: object_request_wipe.
 */
#ifndef OBJECT_REQUEST_H
#define OBJECT_REQUEST_H

#include "object_store.h"
#include "object_url.h"

enum object_kind { OBJECT_PUT, OBJECT_GET, OBJECT_HEAD, OBJECT_DELETE, OBJECT_COPY, OBJECT_LIST, OBJECT_KINDS };

#define OBJECT_UNSIGNED "UNSIGNED-PAYLOAD"
#define OBJECT_NO_BODY  "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" /* SHA-256 of nothing */

struct object_ask {
    enum object_kind kind;
    const char *key;                 /* of LIST: the prefix; below url's prefix */
    enum object_condition condition; /* of PUT, DELETE, HEAD */
    bool is_bare;                    /* If-Match without the ETag's quotes */
    const char *etag;                /* of OBJECT_IF_SAME; of GET: the version that is known, or NULL */
    const char *payload;             /* of PUT: SHA-256, or OBJECT_UNSIGNED */
    const char *mark, *replaces;     /* of PUT */
    const char *start;               /* of PUT: object_start_text of the body */
    const char *from;                /* of COPY */
    const char *after;               /* of LIST: with url's prefix; "" = from the beginning */
    const char *encryption;          /* of PUT and COPY; "" = none */
    uint64_t n_start;                /* of GET: 0 = all */
};

enum { OBJECT_MAX_LINES = 12, OBJECT_LINES_BYTES = 16384 };
struct object_request {
    const char *method;
    char url[OBJECT_URL_BYTES * 2];
    char text[OBJECT_LINES_BYTES];
    const char *lines[OBJECT_MAX_LINES];
    size_t n_lines, n_text;
};

const char *object_kind_name(enum object_kind kind);
/* token: "" = none. ROD_EINVALID: a key or an ETag that cannot be sent. */
int object_request_make(const struct object_url *url, const struct object_ask *ask, const char *token,
                        struct object_request *out, struct rod_error *err);
void object_request_wipe(struct object_request *r);

#endif
