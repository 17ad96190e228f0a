/* http_internal.h - what the files of the transport share; see http.h for a request's life. Threads: that of the loop.
 */
#ifndef HTTP_INTERNAL_H
#define HTTP_INTERNAL_H

#include "engine/base/list.h"
#include "http.h"
#include "server/base/buf.h"

#include <assert.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

enum { HTTP_MAX_HEADERS = 12 };
#define HTTP_DRAIN_MAX_BYTES                                                                                           \
    ((size_t)256 << 20) /* a refused body is read and dropped up to here: the client sees why */

struct http_connection { /* an open socket; its socket context */
    struct http *http;
    struct list_link link;             /* of all connections */
    struct http_request *request;      /* in progress, or NULL */
    uint64_t since_ns;                 /* opened, or last request done */
    struct http_tls_pair *certificate; /* the certificate of its handshake, or NULL */
    struct MHD_Connection *connection;
    const char *uri, *uri_end; /* as the request's line has it, in the library's memory until the request ends */
    int fd;
    bool dropped;      /* shut down: evicted, or behind a refusal */
    bool old_tls;      /* its hello is of a version before TLS 1.2 */
    bool used;         /* it has had a request */
    uint64_t received; /* bytes, when its last request ended */
};

struct http_header_line {
    char *name, *value;
};

/* Two kinds of looks for stuck requests: the sweep's, and while the daemon does not sleep. */
enum http_look { LOOK_SWEEP, LOOK_AWAKE, N_LOOKS };
struct http_look_at {
    size_t received;
    bool stands; /* there was something to read, or the daemon did not sleep */
};

struct http_request {
    struct http *http;
    struct http_connection *socket;
    struct MHD_Connection *connection;
    struct list_link link;  /* of all requests */
    struct list_link woken; /* of those to be resumed */
    char *path, method[16];
    void *user;
    /* body */
    char *body;
    size_t body_len, body_cap, body_max, received, declared, swept; /* swept: received when last swept */
    uint64_t body_due_ns;                                           /* by then more of it must have come */
    size_t *counter;                                                /* see http_count_body; or NULL */
    struct http_look_at looks[N_LOOKS];
    bool chunked, large; /* large: a limit of its own, and not among bodies_bytes */
    /* answer */
    struct http_header_line headers[HTTP_MAX_HEADERS];
    unsigned n_headers, status;
    char *content_type;
    struct buf out; /* the body of http_respond, or what a stream has not sent; out_at: read so far */
    size_t out_at;
    uint64_t sent;
    bool answered, streaming, ended, close_after,
        aborted; /* answered: an answer exists; ended: the stream's last byte is in */
    /* state */
    bool dispatched, queued, suspended, gone, watching, discard, /* discard: its body is read and not kept */
        refused;                                                 /* refused: the transport itself answered */
    uv_poll_t watch;
    uint64_t started_ns;
};

struct http {
    uv_loop_t *loop;
    struct MHD_Daemon *daemon; /* NULL before http_start */
    struct http_handlers on;
    uv_poll_t poll;
    uv_timer_t timer, sweep;
    uv_prepare_t prepare;
    struct list connections, requests;
    struct list woken;                /* requests whose answers have moved on: resumed before the loop sleeps */
    struct http_connection *in_hello; /* whose hello GnuTLS is reading just now, or NULL */
    struct http_connection *in_line;  /* whose request line the library is taking apart just now, or NULL */
    atomic_size_t n_connections;      /* for other threads */
    unsigned limit;                   /* of connections */
    size_t n_large, body_max, bodies_bytes;
    const struct http_tls *tls;
    uint64_t idle_ns;
    int listener;
    bool given; /* the listener, from others: see http.h */
    char host[256];
    uint16_t port;
    unsigned n_handles; /* open uv handles of the server itself */
    bool evict_waiting; /* see http.h */
    bool slept;         /* the daemon, since the last sweep */
    unsigned n_awake;   /* rounds since it slept */
    pthread_t thread;   /* of the loop, since it runs */
    bool runs;
    bool pump, closed; /* closed: a connection, in the last run: where no more were taken, the next run listens again */
};

/* Before the loop runs, the thread that prepares it has all to itself. */
static inline bool http_on_loop(const struct http *h) { return !h->runs || pthread_equal(h->thread, pthread_self()); }

/* ---- http_framing.c: what a request says about its own length ---- */
struct http_framing {
    bool chunked, expect;
    size_t length; /* Content-Length, 0 = none */
};
/* In the handler's first call, with its method and version (they point into the bytes that came). NULL, or the fault:
 * what a proxy in front might read differently than we do. The connection then closes, so that no second request is
 * smuggled in the body of the first. */
const char *http_framing_fault(struct MHD_Connection *connection, const char *method, const char *version,
                               struct http_framing *out);

/* ---- http_body.c ---- */
void http_refuse(struct http_request *r, unsigned status, const char *code, const char *message);
/* What has come of the body goes at once, as the rest may take long to come, and it holds no place among the large. */
void http_body_discard(struct http_request *r);
/* Whether the body may take so many bytes of memory. False after a refusal. */
bool http_body_fits(struct http_request *r, size_t cap);
/* n more bytes of it have come. MHD_NO: the connection is given up. */
enum MHD_Result http_body_add(struct http_request *r, const char *bytes, size_t n);
bool http_body_is_late(struct http_request *r, uint64_t now_ns); /* asked once a sweep */

/* ---- http_request.c ---- */
struct http_request *http_request_new(struct http *h, struct MHD_Connection *connection, const char *url,
                                      const char *method);
void http_request_end(struct http_request *r); /* tells of it (done) and frees it */
/* The answer of r has moved on: its connection is resumed before the loop sleeps again. */
void http_wake(struct http_request *r);
void http_watch(struct http_request *r);   /* notices from now on when the client leaves */
void http_suspend(struct http_request *r); /* until http_wake; watched */
void http_client_left(struct http_request *r);

/* ---- http_answer.c ---- */
/* Hands what http_respond or http_stream_begin left to the daemon. */
enum MHD_Result http_queue_answer(struct http_request *r);

/* ---- http_refusal.c ---- */
void *http_on_line(void *http, const char *uri, struct MHD_Connection *connection); /* a request's line has come */
void http_line_done(struct http *h, const char *text); /* text was decoded: of the line the path is the last */
bool http_line_holds_zero(const struct http_connection *c, const char *method, const char *version);
void http_watch_hello(struct http_connection *c); /* of a new connection, TLS or not */
void http_on_failed_handshake(struct http *h);    /* the library says that it ends one: the client is told why */
/* The library says that it answers a request by itself, with this status: where its answer would be broken, another one
 * goes out, and the connection ends. */
void http_on_library_refusal(struct http *h, unsigned status);

#endif
