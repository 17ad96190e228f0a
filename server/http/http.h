/* http.h - the transport: libmicrohttpd on a libuv loop. Knows no OpenAI.
 *
 * A request passes `headers` (may answer early), `request` (the body is complete), perhaps `gone` (the client left
 * before the answer ended: write no more) and in the end always `done`, after which the pointer is dead. Between
 * `request` and the answer the connection is suspended and costs nothing; a leaving client is noticed all the same.
 * Ownership: http owns every connection and request; a body given to http_respond or http_stream_write is copied.
 * Threads: the loop's. Invariant: connections are resumed and the daemon is run in one place, the prepare handle, once
 * for all writes of one iteration of the loop.
 */
#ifndef HTTP_H
#define HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct buf;
struct http;
struct http_request;
struct http_tls;

struct http_handlers {
    void *arg;
    void (*headers)(void *arg, struct http_request *r);
    void (*request)(void *arg, struct http_request *r);
    void (*gone)(void *arg, struct http_request *r);
    void (*done)(void *arg, struct http_request *r);
    /* The transport itself refuses (bad framing, body too large): the application words it with http_respond. */
    void (*refuse)(void *arg, struct http_request *r, unsigned status, const char *code, const char *message);
    void (*log)(void *arg, const char *line); /* the daemon's own remarks */
};

struct http_config {
    const char *host;
    uint16_t port; /* 0 = a free one */
    int given;   /* a socket that listens, in place of host and port; others hold it too, and go on with its queue when
                    this process ends. 0 = none */
    bool shared; /* other processes may listen on the port, too */
    unsigned connection_limit;
    size_t body_max_bytes;
    uint64_t idle_timeout_ms;
    bool evict_waiting; /* at the limit, the connection that has waited longest without a whole request is closed, or
                           else the one longest answered; for few connections */
    const struct http_tls *tls; /* NULL = plain; outlives the transport */
    struct http_handlers handlers;
};

/* Takes the port; until http_start connections are refused. 0, or with message filled (a sentence: "Cannot listen on
 * 127.0.0.1 port 8080: Address already in use.") -1, or HTTP_NO_HOST (http_listen.h). */
int http_open(uv_loop_t *loop, const struct http_config *config, struct http **out, char *message, size_t size);
int http_start(struct http *h, char *message, size_t size); /* once: takes connections. 0, or -1 with message filled */
uint16_t http_port(const struct http *h);
const char *http_host(const struct http *h);   /* as configured, or where the given socket listens */
size_t http_connections(const struct http *h); /* any thread, and so the next */
unsigned http_connection_limit(const struct http *h);
/* Before http_quiesce: no client begins to connect any more; those that have begun get in, if there is time between. Of
 * a given socket no client is turned away: clients in its queue wait for the next process. */
void http_turn_newcomers_away(struct http *h);
void http_quiesce(struct http *h); /* no new connections; open ones go on */
/* Whether a client has begun a request and is not answered, or may be about to begin one: its connection was opened, or
 * its last request ended, less than patience_ns ago. */
bool http_is_awaited(struct http *h, uint64_t patience_ns);
/* Ends every request (gone, done), stops the daemon; started or not. The memory is freed when the loop has run once
 * more. */
void http_close(struct http *h);

/* ---- a request ---- */
const char *http_method(const struct http_request *r);
const char *http_path(const struct http_request *r);                     /* decoded, without the query */
const char *http_header(const struct http_request *r, const char *name); /* in `headers` and `request` only; or NULL */
const char *http_only_header(const struct http_request *r,
                             const char *name); /* likewise; NULL, too, where it stands twice */
/* In `headers` and `refuse`: no byte of the value is left in memory; it is empty from then on. */
void http_wipe_header(struct http_request *r, const char *name);
const char *http_query(const struct http_request *r, const char *name); /* likewise; decoded */
/* A value of this name that differs from `value`; NULL: no such value. */
const char *http_query_other(const struct http_request *r, const char *name, const char *value);
void http_set_body_max(struct http_request *r, size_t bytes); /* in `headers`: a limit of its own, for a body that does
                                                                 not count among the others, few at a time */
/* In `headers`: the route takes no body. A body is read and dropped; one that is larger than this is refused, with 413.
 */
void http_drop_body(struct http_request *r, size_t max_bytes);
/* In `headers`: the memory of the body also counts there, until before `done`. Of the memory of all bodies one counter
 * has a quota (quota_fits); beyond it the body is refused, with 429. Not for a body with a limit of its own.
 */
void http_count_body(struct http_request *r, size_t *counter);
size_t http_body_max(const struct http_request *r);
size_t http_content_length(const struct http_request *r, bool *chunked); /* as declared */
size_t http_body_bytes(const struct http_request *r);      /* there to be taken; 0 of one with a limit of its own */
char *http_take_body(struct http_request *r, size_t *len); /* moved out, NUL-terminated; NULL if empty */
void http_set_user(struct http_request *r, void *user);
void *http_user(const struct http_request *r);
void http_peer(const struct http_request *r, char *text, size_t size); /* numeric address */
uint64_t http_started_ns(const struct http_request *r);                /* uv_hrtime at the headers */
unsigned http_status(const struct http_request *r);                    /* 0 before an answer */
uint64_t http_sent_bytes(const struct http_request *r);                /* of the body, handed to the daemon */
bool http_left(const struct http_request *r);                          /* the client left before the end */

/* ---- the answer: one http_respond, or http_stream_begin, writes, http_stream_end ---- */
void http_add_header(struct http_request *r, const char *name, const char *value); /* before the answer; copied */
void http_close_after(struct http_request *r);                                     /* Connection: close */
/* content_type NULL: none, for a status without a body. */
void http_respond(struct http_request *r, unsigned status, const char *content_type, const void *body, size_t len);
void http_respond_buf(struct http_request *r, unsigned status, const char *content_type,
                      struct buf *body);                                  /* emptied */
void http_stream_begin(struct http_request *r, const char *content_type); /* kept by no cache, gathered by no proxy */
size_t http_stream_write(struct http_request *r, const void *bytes, size_t len); /* http_stream_pending behind it */
size_t http_stream_pending(const struct http_request *r); /* bytes that the client has not taken yet */
void http_stream_end(struct http_request *r);
/* Drops the connection without a proper end (the client must see that the answer is incomplete). */
void http_abort(struct http_request *r);

#endif
