/* http_request.c - a request: what it says of itself, how its connection sleeps and wakes, its end. See http.h.
 *
 * Invariant: a suspended request is woken at most once: it is in the list `woken` until the loop resumes it.
 */
#include "http_internal.h"
#include "http_listen.h"

#include <assert.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- accessors ---- */

const char *http_method(const struct http_request *r) { return r->method; }
const char *http_path(const struct http_request *r) { return r->path; }
void http_set_user(struct http_request *r, void *user) { r->user = user; }
void *http_user(const struct http_request *r) { return r->user; }
uint64_t http_started_ns(const struct http_request *r) { return r->started_ns; }
unsigned http_status(const struct http_request *r) { return r->status; }
uint64_t http_sent_bytes(const struct http_request *r) { return r->sent; }
bool http_left(const struct http_request *r) { return r->gone; }
size_t http_stream_pending(const struct http_request *r) { return r->out.len - r->out_at; }

const char *http_header(const struct http_request *r, const char *name) {
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

struct named {
    const char *name;
    unsigned n;
};

static enum MHD_Result count_if_named(void *cls, enum MHD_ValueKind kind, const char *key, const char *value) {
    struct named *named = cls;
    (void)kind, (void)value;
    named->n += !strcasecmp(key, named->name);
    return MHD_YES;
}

const char *http_only_header(const struct http_request *r, const char *name) {
    struct named named = {name, 0};
    const char *value = http_header(r, name);
    if (value) MHD_get_connection_values(r->connection, MHD_HEADER_KIND, count_if_named, &named);
    return named.n == 1 ? value : NULL;
}

static enum MHD_Result wipe_if_named(void *name, enum MHD_ValueKind kind, const char *key, const char *value) {
    (void)kind;
    if (value && !strcasecmp(key, name)) explicit_bzero((char *)(uintptr_t)value, strlen(value));
    return MHD_YES;
}

void http_wipe_header(struct http_request *r, const char *name) {
    MHD_get_connection_values(r->connection, MHD_HEADER_KIND, wipe_if_named, (void *)(uintptr_t)name);
}

const char *http_query(const struct http_request *r, const char *name) {
    return MHD_lookup_connection_value(r->connection, MHD_GET_ARGUMENT_KIND, name);
}

struct other {
    const char *name, *value, *found;
};

static enum MHD_Result find_other(void *cls, enum MHD_ValueKind kind, const char *key, const char *value) {
    struct other *other = cls;
    (void)kind;
    if (value && !strcasecmp(key, other->name) && strcmp(value, other->value) != 0) other->found = value;
    return other->found ? MHD_NO : MHD_YES;
}

const char *http_query_other(const struct http_request *r, const char *name, const char *value) {
    struct other other = {name, value, NULL};
    MHD_get_connection_values(r->connection, MHD_GET_ARGUMENT_KIND, find_other, &other);
    return other.found;
}

void http_peer(const struct http_request *r, char *text, size_t size) {
    /* The address when the connection came: a connection that was reset has no address any more. */
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(r->connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const struct sockaddr *address = info ? info->client_addr : NULL;
    const bool six = address && address->sa_family == AF_INET6;
    const socklen_t len = six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    if (!address || getnameinfo(address, len, text, (socklen_t)size, NULL, 0, NI_NUMERICHOST))
        snprintf(text, size, "?");
}

/* ---- a connection sleeps and wakes ---- */

void http_wake(struct http_request *r) {
    assert(http_on_loop(r->http));
    if (!r->suspended || r->woken.next) return;
    list_push_first(&r->http->woken, &r->woken);
}

void http_client_left(struct http_request *r) {
    assert(http_on_loop(r->http));
    if (r->gone) return;
    r->gone = true;
    if (!r->refused) r->http->on.gone(r->http->on.arg, r);
    http_wake(r);
}

/* Any status below 0 counts too: a reset arrives as UV_EBADF. */
static void on_watch(uv_poll_t *watch, int status, int events) {
    struct http_request *r = watch->data;
    if (status >= 0 && !(events & UV_DISCONNECT)) return;
    uv_poll_stop(watch);
    http_client_left(r);
}

void http_watch(struct http_request *r) {
    if (r->watching || uv_poll_init_socket(r->http->loop, &r->watch, r->socket->fd)) return;
    r->watching = true;
    r->watch.data = r;
    uv_poll_start(&r->watch, UV_DISCONNECT, on_watch);
}

void http_suspend(struct http_request *r) {
    assert(r->dispatched && !r->suspended && !r->woken.next); /* once for each time that it is woken */
    http_watch(r);
    r->suspended = true;
    MHD_suspend_connection(r->connection);
}

/* ---- its life ---- */

/* "http://host/path", the form that proxies are sent, names the same path. */
static const char *path_of(const char *url) {
    const char *host = !strncasecmp(url, "http://", 7) ? url + 7 : !strncasecmp(url, "https://", 8) ? url + 8 : NULL;
    if (!host) return url;
    const char *slash = strchr(host, '/');
    return slash ? slash : "/";
}

struct http_request *http_request_new(struct http *h, struct MHD_Connection *connection, const char *url,
                                      const char *method) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_request *r = calloc(1, sizeof *r);
    char *path = strdup(path_of(url));
    if (!r || !path || !info || !info->socket_context) {
        free(r);
        free(path);
        return NULL;
    }
    r->http = h;
    r->socket = info->socket_context;
    assert(r->socket->http == h && !r->socket->request); /* one after the other */
    r->socket->request = r;
    r->socket->used = true;
    r->connection = connection;
    r->path = path;
    r->started_ns = uv_hrtime();
    r->body_due_ns = r->started_ns + h->idle_ns;
    r->body_max = h->body_max;
    snprintf(r->method, sizeof r->method, "%s", method);
    list_push_first(&h->requests, &r->link);
    return r;
}

static void free_request(struct http_request *r) {
    for (unsigned i = 0; i < r->n_headers; i++) {
        free(r->headers[i].name);
        free(r->headers[i].value);
    }
    free(r->content_type);
    free(r->path);
    buf_fini(&r->out);
    free(r);
}

static void on_watch_closed(uv_handle_t *handle) { free_request(handle->data); }

void http_request_end(struct http_request *r) {
    struct http *h = r->http;
    assert(!r->suspended && !r->woken.next && r->socket->request == r);
    http_body_discard(r); /* first, as what its room counts for may end with the application's request */
    h->on.done(h->on.arg, r);
    list_remove(&h->requests, &r->link);
    r->socket->request = NULL;
    r->socket->since_ns = uv_hrtime();
    r->socket->received = http_received_bytes(r->socket->fd);
    if (r->watching) {
        uv_poll_stop(&r->watch); /* before the daemon closes the descriptor */
        uv_close((uv_handle_t *)&r->watch, on_watch_closed);
    } else {
        free_request(r);
    }
}
