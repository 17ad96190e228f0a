/* http_refusal.c - requests that libmicrohttpd 0.9.75 answers by itself, and badly, handshakes that it ends without a
 * word, and request lines that it does not hand on whole. What it answers well (headers beyond its memory, broken
 * chunks, other versions) it goes on answering. The facts that shape this file:
 * - of a Content-Length that is no number, or beyond 64 bits, and of cookies beyond its memory, the answer carries the
 *   status line and the headers twice; of a query with too many fields it keeps its answer to itself, and waits;
 * - it says in its log that it refuses, before it does so, and of no connection; but there is only one whose headers
 *   are in and that no handler has seen, or whose line is being taken apart;
 * - of a handshake that fails it closes the connection without an alert, and its log does not say of which;
 * - of the request's line it hands on three strings, so that what follows a zero byte is not seen. The line with the
 *   zero byte is complete in its memory: the parts must lie one behind the other.
 * 1.0 refuses zero bytes and answers once. */
#include "http_internal.h"

#include <gnutls/gnutls.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define UNREAD_BYTES ((size_t)1 << 20) /* read and dropped: what is unread at the close resets the answer */

static bool old_library(void) { return !strncmp(MHD_get_version(), "0.", 2); }

/* ---- the request's line ---- */

void *http_on_line(void *http, const char *uri, struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_connection *c = info ? info->socket_context : NULL;
    if (!c || !uri) return NULL;
    c->uri = uri;
    c->uri_end = uri + strlen(uri);
    ((struct http *)http)->in_line = c;
    return NULL;
}

void http_line_done(struct http *h, const char *text) {
    if (h->in_line && h->in_line->uri == text) h->in_line = NULL;
}

bool http_line_holds_zero(const struct http_connection *c, const char *method, const char *version) {
    if (!c->uri || !old_library()) return false;
    const char *at = method + strlen(method) + 1;
    while (at < c->uri && *at == ' ') at++;
    return at != c->uri || c->uri_end + 1 != version;
}

/* ---- handshakes ---- */

static gnutls_session_t session_of(const struct http_connection *c) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(c->connection, MHD_CONNECTION_INFO_GNUTLS_SESSION);
    return info ? info->tls_session : NULL;
}

/* Before the hello is read, and behind it if it could be taken. */
static int on_hello(gnutls_session_t session, unsigned type, unsigned when, unsigned incoming,
                    const gnutls_datum_t *hello) {
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(gnutls_session_get_ptr(session), MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_connection *c = info ? info->socket_context : NULL;
    (void)type, (void)incoming;
    if (!c) return 0;
    c->http->in_hello = when == GNUTLS_HOOK_PRE ? c : NULL;
    c->old_tls = hello && hello->size >= 2 && hello->data[0] == 3 && hello->data[1] < 3;
    return 0;
}

void http_watch_hello(struct http_connection *c) {
    gnutls_session_t session = session_of(c);
    if (session) gnutls_handshake_set_hook_function(session, GNUTLS_HANDSHAKE_CLIENT_HELLO, GNUTLS_HOOK_BOTH, on_hello);
}

void http_on_failed_handshake(struct http *h) {
    struct http_connection *c = h->in_hello;
    h->in_hello = NULL;
    if (!c) return;
    gnutls_alert_send(session_of(c), GNUTLS_AL_FATAL,
                      c->old_tls ? GNUTLS_A_PROTOCOL_VERSION : GNUTLS_A_HANDSHAKE_FAILURE);
}

/* ---- refusals ---- */

static struct http_connection *refused_connection(const struct http *h) {
    if (h->in_line) return h->in_line;
    for (struct list_link *at = list_first(&h->connections); at; at = list_next(&h->connections, at)) {
        struct http_connection *c = LIST_OF(at, struct http_connection, link);
        if (!c->request && !c->dropped &&
            MHD_get_connection_info(c->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE))
            return c;
    }
    return NULL;
}

static enum MHD_Result find_end(void *end, enum MHD_ValueKind kind, const char *name, const char *value) {
    (void)kind, (void)name;
    if (value) *(const char **)end = value + strlen(value);
    return MHD_YES;
}

/* The library does not tell it; the headers are so long from its first letter to the second of two ends of line. Where
 * these are one byte each, its end alone is found, which is no method: "?". */
static void find_method(const struct http_connection *c, char *out, size_t size) {
    static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"};
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    const char *end = NULL;
    snprintf(out, size, "?");
    MHD_get_connection_values(c->connection, MHD_HEADER_KIND, find_end, &end);
    if (!info || !end || !c->uri) return;
    const char *method = end + 4 - info->header_size;
    for (size_t i = 0; method < c->uri && i < sizeof methods / sizeof *methods; i++)
        if (!strncmp(method, methods[i], (size_t)(c->uri - method))) snprintf(out, size, "%s", methods[i]);
}

static void add_head(struct buf *out, const struct http_request *r) {
    buf_addf(out, "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %zu\r\n", r->status,
             MHD_get_reason_phrase_for(r->status), r->content_type ? r->content_type : "text/plain", r->out.len);
    for (unsigned i = 0; i < r->n_headers; i++) buf_addf(out, "%s: %s\r\n", r->headers[i].name, r->headers[i].value);
    buf_puts(out, "\r\n");
}

/* Nothing is before it on the way: the library reads a request when the answers before it have gone out. What the
 * client does not take at once it does not get. */
static void send_answer(struct http_connection *c, const struct buf *b) {
    gnutls_session_t tls = session_of(c);
    if (tls) {
        gnutls_record_send(tls, b->data, b->len);
        gnutls_bye(tls, GNUTLS_SHUT_WR);
    } else {
        (void)!send(c->fd, b->data, b->len, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    (void)!recv(c->fd, NULL, UNREAD_BYTES, MSG_DONTWAIT | MSG_TRUNC);
}

static void refusal_describe(struct http_request *r, unsigned status, bool in_line) {
    struct http *h = r->http;
    r->refused = true;
    if (status == 413)
        h->on.refuse(h->on.arg, r, status, "body_too_large", NULL);
    else if (status == 400)
        h->on.refuse(h->on.arg, r, status, "bad_framing", "Content-Length is not a number");
    else
        h->on.refuse(h->on.arg, r, status, "headers_too_large",
                     in_line ? "the query has too many fields" : "the cookies do not fit beside the other headers");
}

void http_on_library_refusal(struct http *h, unsigned status) {
    struct http_connection *c = old_library() ? refused_connection(h) : NULL;
    if (!c || c->request) return;
    assert(c->http == h);
    char method[16];
    struct buf answer = {0};
    find_method(c, method, sizeof method);
    struct http_request *r = http_request_new(h, c->connection, c->uri ? c->uri : "?", method);
    if (r) {
        refusal_describe(r, status, h->in_line == c);
        add_head(&answer, r);
        if (strcmp(method, "HEAD") != 0) {
            buf_add(&answer, r->out.data, r->out.len);
            r->sent = r->out.len;
        }
        if (!answer.failed && r->answered) send_answer(c, &answer);
        http_request_end(r);
    }
    buf_fini(&answer);
    c->dropped = true;
    shutdown(c->fd, SHUT_RDWR); /* before the library's own answer, which fails at this */
}
