/* http_call.h - one HTTP request with its route, id and key: how it is answered, by any route.
 *
 * Ownership: routes.c makes a call at the headers and frees it when the request is done; a call owns nothing but its
 * hold on the key. Threads: that of its loop. Invariant: a call gets one answer.
 */
#ifndef HTTP_CALL_H
#define HTTP_CALL_H

#include "server.h"
#include "server/api/form.h"
#include "server/base/traceparent.h"

struct http_call { /* the user pointer of its http_request */
    struct server *server;
    struct http_request *http;
    char id[SERVER_ID_BYTES];      /* the client's or a random one; in X-Request-Id and in logs */
    char trace_id[TRACE_ID_BYTES]; /* of the header traceparent; "" = none */
    uv_loop_t *loop;               /* where it is answered: the main one, or the admin thread's */
    unsigned route;
    const char *name; /* in the path, where its route has one, else NULL; a part of http_path */
    size_t name_len;
    struct completion *completion;  /* of a completion, or NULL */
    struct job *job;                /* of work on the thread pool, or NULL */
    struct key *key;                /* NULL without keys. Held until done */
    bool counted, on_admin;         /* counted: among the key's requests in flight; on_admin: on the admin thread */
    const struct answer_form *form; /* of its answers and errors */
    const char *outcome;            /* for the log: static text, NULL = nothing to say beyond the status */
    char tenant[72];                /* owner of the sessions it sees: a name of its API key, "" without keys */
};

void http_call_respond(struct http_call *call, unsigned status, const char *content_type,
                       struct buf *body); /* empties body */
void http_call_fail(struct http_call *call, const struct api_error *err);
/* The error as the client of the call is shown it: with the id of its trace. */
struct api_error http_call_traced(const struct http_call *call, const struct api_error *err);
void http_call_refuse(struct http_call *call, unsigned status, const char *type, const char *code, const char *param,
                      const char *format, ...) __attribute__((format(printf, 6, 7)));
#define http_call_invalid(call, status, code, ...) http_call_refuse(call, status, API_INVALID, code, __VA_ARGS__)
void http_call_no_memory(struct http_call *call);
/* For a fault of files: the log gets the message, the client another one, as paths are not for clients. */
void http_call_hide_files(struct server *server, const char *name, struct api_error *err);
/* The header of a 429 or 503. known_s: when to come again; 0 = as the queue, or the loading, tells. */
void http_call_retry_after(struct http_call *call, unsigned status, const char *code, uint64_t known_s);
/* The query's limit, 1 to most; *n stays without one. False, after an answer of 400: it is out of range. */
bool http_call_limit(struct http_call *call, size_t most, size_t *n);
/* The name in the path; false: it does not fit, or the route has none. */
bool http_call_name(const struct http_call *call, char *name, size_t size);

#endif
