/* http.c - see http.h: the daemon on the loop, its connections, and what it calls back for. The facts about
 * libmicrohttpd 0.9.75 that shape this file:
 * - resuming walks the list of suspended connections: resume many, then run once;
 * - a content reader that returns 0 without suspending burns a core: suspend first;
 * - a suspended connection neither times out nor notices that its client left: a uv_poll for UV_DISCONNECT does;
 * - an answer queued in the first handler call closes the connection: answer in a later one, but for framing errors;
 * - the line before a chunk that is longer than its buffer it awaits without sleeping, whether or not the client is
 * there still (drop_stuck). */
#include "http_internal.h"
#include "http_listen.h"
#include "http_tls.h"

#include <assert.h>
#include <gnutls/gnutls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define POOL_BYTES   16384 /* of a connection: 15.4 KiB a stream in all */
#define RESUME_BATCH 1024
#define LARGE_BODIES 2  /* bodies with a limit of their own that may come in at once */
#define AWAKE_RUNS   20 /* after so many rounds without sleep: is somebody stuck? */

/* ---- waking connections ---- */

static void on_timer(uv_timer_t *timer) { ((struct http *)timer->data)->pump = true; }

/* MHD spins on a chunk-size line that is longer than its buffer. A request is dropped if its body did not grow between
 * two looks and either bytes stay unread or MHD did not sleep. False positive: a slow client that pauses with more than
 * a quarter of the buffer sent. */
static bool is_stuck(struct http_request *r, enum http_look which, bool slept) {
    struct http_look_at *l = &r->looks[which];
    int unread = 0;
    ioctl(r->socket->fd, FIONREAD, &unread);
    const bool full = !slept && http_received_bytes(r->socket->fd) - r->received >= POOL_BYTES / 4;
    const bool stands = unread > 0 || full, stuck = stands && l->stands && l->received == r->received;
    *l = (struct http_look_at){r->received, stands};
    return stuck;
}

static void drop_stuck(struct http *h, enum http_look which, bool slept) {
    for (struct list_link *at = list_first(&h->requests); at; at = list_next(&h->requests, at)) {
        struct http_request *r = LIST_OF(at, struct http_request, link);
        if (r->chunked && !r->dispatched && is_stuck(r, which, slept)) shutdown(r->socket->fd, SHUT_RDWR);
    }
}

static void run_daemon(struct http *h) {
    MHD_UNSIGNED_LONG_LONG wait_ms = 0;
    enum MHD_Result waits = MHD_NO;
    for (int i = 0; i < 64; i++) { /* a bound, so that timers and the engine's events get their turn */
        h->closed = false;
        MHD_run(h->daemon);
        waits = MHD_get_timeout(h->daemon, &wait_ms);
        if ((waits != MHD_YES || wait_ms) && !h->closed) break;
    }
    if (waits != MHD_YES || wait_ms) {
        h->slept = true;
        h->n_awake = 0;
    } else if (++h->n_awake % AWAKE_RUNS == 0) {
        drop_stuck(h, LOOK_AWAKE, true);
    }
    if (waits == MHD_YES) {
        uv_timer_start(&h->timer, on_timer, wait_ms, 0);
    } else {
        uv_timer_stop(&h->timer);
    }
}

/* Before the loop sleeps: resume what has moved on, in batches, and let the daemon work. */
static void on_prepare(uv_prepare_t *prepare) {
    struct http *h = prepare->data;
    if (!h->runs) h->thread = pthread_self();
    h->runs = true;
    assert(http_on_loop(h));
    while (h->woken.n || h->pump) {
        for (int i = 0; i < RESUME_BATCH && h->woken.n; i++) {
            struct http_request *r = LIST_OF(list_first(&h->woken), struct http_request, woken);
            assert(r->suspended);
            list_remove(&h->woken, &r->woken);
            r->suspended = false;
            /* Of connections that end while they are answered, the library closes those with a timeout of their own at
             * once; others when all that are older have ended, which an idle one may not for long. */
            if (r->gone || r->aborted) MHD_set_connection_option(r->connection, MHD_CONNECTION_OPTION_TIMEOUT, 1u);
            MHD_resume_connection(r->connection);
        }
        h->pump = false;
        run_daemon(h);
    }
}

static void on_poll(uv_poll_t *poll, int status, int events) {
    (void)status;
    (void)events;
    ((struct http *)poll->data)->pump = true;
}

/* ---- requests come in ---- */

/* A path with a NUL would end there for code that reads it as a string, so it stays as it was sent and is refused
 * below.
 * "%2500" looks the same then; it names nothing either. */
static size_t unescape_path(void *cls, struct MHD_Connection *connection, char *text) {
    (void)connection;
    http_line_done(cls, text);
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

/* The headers are in. An answer queued here closes the connection, so only what must close it is queued here. */
static enum MHD_Result request_take_headers(struct http_request *r, const char *method, const char *version) {
    struct http *h = r->http;
    struct http_framing f;
    const char *fault = http_framing_fault(r->connection, method, version, &f);
    if (!fault && strstr(r->path, "%00")) fault = "a path holds no NUL";
    if (http_line_holds_zero(r->socket, method, version)) fault = "the request line holds a zero byte";
    if (!fault) {
        r->chunked = f.chunked;
        r->declared = f.length;
        h->on.headers(h->on.arg, r);
        if (!r->answered && r->declared > r->body_max) http_refuse(r, 413, "body_too_large", NULL);
        if (!r->answered && r->large && h->n_large > LARGE_BODIES) http_refuse(r, 503, "overloaded", NULL);
        if (!r->answered && !r->discard) http_body_fits(r, r->declared);
    } else {
        http_close_after(r);
        http_refuse(r, 400, "bad_framing", fault);
        return http_queue_answer(r);
    }
    if (!r->answered) return MHD_YES;
    http_body_discard(r);
    bool wait = r->declared <= HTTP_DRAIN_MAX_BYTES && !f.expect;
    return wait ? MHD_YES : http_queue_answer(r);
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                                 const char *version, const char *data, size_t *n_data, void **context) {
    struct http *h = cls;
    struct http_request *r = *context;
    if (!r) {
        r = http_request_new(h, connection, url, method);
        *context = r;
        return r ? request_take_headers(r, method, version) : MHD_NO;
    }
    assert(r->http == h && !r->suspended);
    if (*n_data) {
        size_t n = *n_data;
        *n_data = 0;
        return http_body_add(r, data, n);
    }
    if (!r->dispatched) {
        r->dispatched = true;
        /* Trailers have no use here, and lines among them may end them early as they do headers. */
        if (r->chunked && MHD_get_connection_values(connection, MHD_FOOTER_KIND, NULL, NULL) > 0) http_close_after(r);
        if (!r->answered) h->on.request(h->on.arg, r);
    }
    if (r->gone || r->aborted) return MHD_NO;
    if (r->answered) return r->queued ? MHD_YES : http_queue_answer(r);
    http_suspend(r);
    return MHD_YES;
}

/* ---- requests and connections end ---- */

static void on_completed(void *cls, struct MHD_Connection *connection, void **context,
                         enum MHD_RequestTerminationCode reason) {
    struct http_request *r = *context;
    (void)cls;
    (void)connection;
    if (!r) return;
    *context = NULL;
    assert(!r->woken.next && !r->suspended); /* the daemon completes no suspended connection */
    if (reason != MHD_REQUEST_TERMINATED_COMPLETED_OK && !r->aborted) http_client_left(r);
    http_request_end(r);
}

static uint64_t waiting_since_ns(const struct http_connection *c) {
    return c->request ? c->request->started_ns : c->since_ns;
}

/* First connections without an answer: idle ones, and those whose request is not whole yet; then those that do not
 * read. */
static void evict_longest_waiting(struct http *h) {
    struct http_connection *longest = NULL;
    bool longest_answered = true;
    for (struct list_link *at = list_first(&h->connections); at; at = list_next(&h->connections, at)) {
        struct http_connection *c = LIST_OF(at, struct http_connection, link);
        const bool answered = c->request && c->request->dispatched;
        if (c->dropped || answered > longest_answered) continue;
        if (!longest || answered < longest_answered || waiting_since_ns(c) < waiting_since_ns(longest))
            longest = c, longest_answered = answered;
    }
    if (!longest) return;
    longest->dropped = true;
    shutdown(longest->fd, SHUT_RDWR);
}

/* Whether the client has sent the last byte that it will send, and all are read. */
static bool has_ended(int fd) {
    char byte;
    return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static void on_socket(void *cls, struct MHD_Connection *connection, void **context,
                      enum MHD_ConnectionNotificationCode code) {
    struct http *h = cls;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        struct http_connection *c = *context;
        if (!c) return;
        assert(http_on_loop(h) && !c->request);
        list_remove(&h->connections, &c->link);
        if (h->in_line == c) h->in_line = NULL;
        if (h->in_hello == c) h->in_hello = NULL;
        h->n_connections--;
        assert(h->n_connections == h->connections.n);
        h->closed = true;
        http_tls_drop(c->certificate);
        free(c);
        *context = NULL;
        return;
    }
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct http_connection *c = calloc(1, sizeof *c);
    if (!c || !info) {
        free(c);
        return; /* without a context its requests are refused in http_request_new */
    }
    *c = (struct http_connection){.http = h, .since_ns = uv_hrtime(), .connection = connection, .fd = info->connect_fd};
    list_push_first(&h->connections, &c->link);
    h->n_connections++;
    *context = c;
    http_tune_socket(c->fd, h->idle_ns / 1000000);
    if (h->tls) http_watch_hello(c);
    if (h->evict_waiting && h->n_connections >= h->limit) evict_longest_waiting(h);
}

/* The daemon's own timeout counts from the last byte, so a client that drips bytes could hold a connection for ever. A
 * request must have its headers within the idle timeout, and its body at a least rate. And it reads until there is
 * nothing, but is told once of what came together: an end behind the last bytes is found here. */
static void on_sweep(uv_timer_t *timer) {
    struct http *h = timer->data;
    uint64_t now = uv_hrtime();
    for (struct list_link *at = list_first(&h->connections); at; at = list_next(&h->connections, at)) {
        struct http_connection *c = LIST_OF(at, struct http_connection, link);
        struct http_request *r = c->request;
        if (r && r->dispatched) continue;
        const bool late = r ? http_body_is_late(r, now) : now - c->since_ns > h->idle_ns;
        if (late || has_ended(c->fd)) shutdown(c->fd, SHUT_RDWR);
    }
    drop_stuck(h, LOOK_SWEEP, h->slept);
    h->slept = false;
}

/* ---- the server ---- */

uint16_t http_port(const struct http *h) { return h->port; }
const char *http_host(const struct http *h) { return h->host; }
unsigned http_connection_limit(const struct http *h) { return h->limit; }
size_t http_connections(const struct http *h) { return h->n_connections; }

__attribute__((nonnull(2))) static void on_daemon_log(void *cls, const char *format, va_list args) {
    struct http *h = cls;
    char line[256];
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(line, sizeof line, format, args);
    if (!strncmp(format, "Error processing request", 24)) http_on_library_refusal(h, va_arg(again, unsigned));
    if (!strncmp(format, "Error: received handshake", 25)) http_on_failed_handshake(h);
    va_end(again);
    while (n > 0 && n < (int)sizeof line && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = 0;
    if (h->on.log) h->on.log(h->on.arg, line);
}

/* For each handshake; the session's pointer is the connection, as the library's own callbacks have it. */
static int on_certificate(gnutls_session_t session, const gnutls_datum_t *issuers, int n_issuers,
                          const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **chain,
                          unsigned *n_chain, gnutls_privkey_t *key) {
    struct MHD_Connection *connection = gnutls_session_get_ptr(session);
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_connection *c = info ? info->socket_context : NULL;
    (void)issuers, (void)n_issuers, (void)algorithms, (void)n_algorithms;
    if (!c) return -1;
    if (!c->certificate) c->certificate = http_tls_hold(c->http->tls);
    http_tls_show(c->certificate, chain, n_chain, key);
    return 0;
}

static int start_daemon(struct http *h) {
    unsigned idle_s = (unsigned)((h->idle_ns + 999999999) / 1000000000);
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (h->tls ? MHD_USE_TLS : 0);
    const struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(intptr_t)on_certificate},
                                         {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(intptr_t)HTTP_TLS_PRIORITIES},
                                         {MHD_OPTION_END, 0, NULL}};
    const struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_access, h, /* */
                                 MHD_OPTION_EXTERNAL_LOGGER, on_daemon_log, h, MHD_OPTION_LISTEN_SOCKET, h->listener,
                                 MHD_OPTION_CONNECTION_LIMIT, h->limit, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                                 (size_t)POOL_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, idle_s, MHD_OPTION_NOTIFY_COMPLETED,
                                 on_completed, h, MHD_OPTION_NOTIFY_CONNECTION, on_socket, h,
                                 MHD_OPTION_UNESCAPE_CALLBACK, unescape_path, h, MHD_OPTION_URI_LOG_CALLBACK,
                                 http_on_line, h, MHD_OPTION_ARRAY, h->tls ? tls : none, MHD_OPTION_END);
    return h->daemon ? 0 : -1;
}

int http_open(uv_loop_t *loop, const struct http_config *config, struct http **out, char *message, size_t size) {
    struct http *h = calloc(1, sizeof *h);
    if (!h) {
        snprintf(message, size, "Out of memory.");
        return -1;
    }
    list_init(&h->connections);
    list_init(&h->requests);
    list_init(&h->woken);
    h->loop = loop;
    h->on = config->handlers;
    h->body_max = config->body_max_bytes;
    h->idle_ns = config->idle_timeout_ms * 1000000;
    h->tls = config->tls;
    h->limit = config->connection_limit;
    h->evict_waiting = config->evict_waiting;
    h->given = config->given != 0;
    if (h->given) {
        h->listener = config->given;
        http_local_address(h->listener, h->host, sizeof h->host, &h->port);
    } else {
        snprintf(h->host, sizeof h->host, "%s", config->host);
        h->listener = http_bind(config->host, config->port, config->shared, &h->port, message, size);
    }
    if (h->listener < 0) {
        const int rc = h->listener;
        free(h);
        return rc;
    }
    *out = h;
    return 0;
}

int http_start(struct http *h, char *message, size_t size) {
    assert(!h->daemon && h->listener >= 0);
    if (!h->given && http_listen(h->listener, h->port, message, size)) return -1;
    if (start_daemon(h)) {
        snprintf(message, size, "libmicrohttpd did not start on port %u.", h->port);
        return -1;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    uv_poll_init(h->loop, &h->poll, info->epoll_fd);
    uv_timer_init(h->loop, &h->timer);
    uv_timer_init(h->loop, &h->sweep);
    uv_prepare_init(h->loop, &h->prepare);
    h->poll.data = h->timer.data = h->sweep.data = h->prepare.data = h;
    h->n_handles = 4;
    uv_poll_start(&h->poll, UV_READABLE, on_poll);
    uv_timer_start(&h->sweep, on_sweep, 1000, 1000);
    uv_prepare_start(&h->prepare, on_prepare);
    return 0;
}

/* Clients whose handshake is complete would be reset when the listener closes: they are taken first. */
static void accept_pending(struct http *h, int listener) {
    struct sockaddr_storage from;
    for (;;) {
        socklen_t len = sizeof from;
        int fd = accept4(listener, (struct sockaddr *)&from, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) break;
        MHD_add_connection(h->daemon, fd, (struct sockaddr *)&from, len); /* closes it where it fails */
    }
    h->pump = true;
}

void http_turn_newcomers_away(struct http *h) {
    if (h->listener >= 0 && !h->given) http_turn_away(h->listener);
}

void http_quiesce(struct http *h) {
    if (h->listener < 0) return;
    assert(http_on_loop(h) && h->daemon);
    int fd = MHD_quiesce_daemon(h->daemon);
    if (fd >= 0) {
        if (!h->given) accept_pending(h, fd);
        close(fd);
    }
    h->listener = -1;
}

bool http_is_awaited(struct http *h, uint64_t patience_ns) {
    assert(http_on_loop(h));
    const uint64_t now = uv_hrtime();
    for (struct list_link *at = list_first(&h->connections); at; at = list_next(&h->connections, at)) {
        const struct http_connection *c = LIST_OF(at, struct http_connection, link);
        if (c->dropped) continue;
        if (c->request || now - c->since_ns < patience_ns) return true;
        if (c->used && http_received_bytes(c->fd) != c->received) return true; /* the first bytes of its next one */
    }
    return false;
}

static void on_handle_closed(uv_handle_t *handle) {
    struct http *h = handle->data;
    assert(h->n_handles);
    if (--h->n_handles == 0) free(h);
}

void http_close(struct http *h) {
    if (!h->daemon) { /* it never took a connection */
        close(h->listener);
        free(h);
        return;
    }
    http_quiesce(h);
    for (struct list_link *at = list_first(&h->requests); at; at = list_next(&h->requests, at))
        http_client_left(LIST_OF(at, struct http_request, link));
    h->pump = true;
    on_prepare(&h->prepare); /* stopping with a suspended connection aborts the process: resume them all first */
    MHD_stop_daemon(h->daemon);
    assert(!h->requests.n && !h->connections.n && !h->woken.n);
    assert(!h->bodies_bytes && !h->n_large);
    uv_close((uv_handle_t *)&h->poll, on_handle_closed);
    uv_close((uv_handle_t *)&h->timer, on_handle_closed);
    uv_close((uv_handle_t *)&h->sweep, on_handle_closed);
    uv_close((uv_handle_t *)&h->prepare, on_handle_closed);
}
