/* object_answer.h - what a store answers: lines of headers, the XML of errors and of a page of keys.
 *
 * Pure; any thread. Invariant: a function reads no byte outside of what it was given, and texts are cut to their room
 * or refused, never run over. XML is read as far as the two shapes go: elements by name, text with entities; what is
 * none is refused.
 */
#ifndef OBJECT_ANSWER_H
#define OBJECT_ANSWER_H

#include "object_store.h"

enum {
    OBJECT_MARK_BYTES = 33,
    OBJECT_START_BYTES = 128,
    OBJECT_START_TEXT_BYTES = 17,
    OBJECT_MAX_HEADERS = 1 << 16,
    OBJECT_MAX_ERROR = 1 << 16,
    OBJECT_MAX_LIST = 4 << 20
};

struct object_answer {
    int status;                    /* 0 = none came */
    bool is_complete;              /* of the headers */
    struct object_version version; /* n_bytes: of the whole object */
    bool has_length, has_etag, etag_fits;
    uint64_t n_body;                                        /* Content-Length */
    char mark[OBJECT_MARK_BYTES], after[OBJECT_ETAG_BYTES]; /* metadata of object_put.c */
    char start[OBJECT_START_TEXT_BYTES];
    int64_t date_s; /* 0 = none */
    uint32_t retry_after_s;
    size_t n_headers;            /* bytes */
    char code[64], message[160]; /* of an error, printable */
};

/* Of a body's first OBJECT_START_BYTES, in its metadata: a state's have its version and checksum, so another version's
 * body is known by them, whatever its ETag says. */
void object_start_text(const struct state_bytes *parts, size_t n_parts, char text[OBJECT_START_TEXT_BYTES]);

/* The next line of headers with its end; a status line begins anew. false: more than OBJECT_MAX_HEADERS. */
bool object_answer_header(struct object_answer *a, const char *line, size_t n);
/* The body of a status that is an error, or of a copy: fills code and message if it is XML of that shape. */
void object_answer_error(struct object_answer *a, const char *xml, size_t n);

enum object_verdict {
    OBJECT_DONE,    /* 2xx, 304 */
    OBJECT_MISSING, /* 404 of a key */
    OBJECT_LOST,    /* a condition did not hold */
    OBJECT_AGAIN,   /* it may go better soon */
    OBJECT_RENEW,   /* with other credentials, perhaps */
    OBJECT_REFUSED
};
enum object_verdict object_answer_verdict(const struct object_answer *a);
/* Whether the write may have been done although the answer is an error. */
bool object_answer_unsure(const struct object_answer *a);
/* The answer is of something before the store, which may do the write yet. */
static inline bool object_answer_gateway(const struct object_answer *a) { return a->status == 502 || a->status == 504; }

struct object_page {
    const char *prefix; /* of all keys */
    size_t n_skip;      /* of a key, that `found` is not told */
    const char *after;  /* with prefix: each key comes later */
    void (*found)(void *arg, const char *key,
                  const struct object_version *version); /* only keys of object_url_is_key */
    void *arg;
    bool more;
    char last[1100]; /* the last key of the page, whatever it is */
    size_t n_keys;   /* all */
};
/* ROD_EIO: no such XML, keys out of order or without the prefix. found may have been called before that. */
int object_answer_list(const char *xml, size_t n, struct object_page *page, struct rod_error *err);

#endif
