/* admin.c - the second, small listener: health, metrics and states on a thread of its own, so that they answer whatever
 * the loop thread is busy with, and however many connections stand before the main port.
 *
 * Ownership: the admin thread owns its loop, its transport and the calls on it. Threads: admin_open and
 * admin_close on the loop thread; the rest on the admin thread, see server.h for what it may touch. */
#include "admin.h"
#include "routes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

enum { ADMIN_CONNECTIONS = 64, ADMIN_BODY_BYTES = 1024 };

struct admin {
    struct server *server;
    uv_loop_t loop;
    uv_async_t end;
    uv_thread_t thread;
    struct http *http;
};

static void on_end(uv_async_t *end) {
    struct admin *a = end->data;
    http_close(a->http);
    uv_close((uv_handle_t *)end, NULL);
}

static void admin_run(void *arg) {
    struct admin *a = arg;
    uv_run(&a->loop, UV_RUN_DEFAULT);
}

int admin_open(struct server *s, int given, struct admin **out, char *message, size_t size) {
    assert(server_on_loop(s) && !s->admin_loop);
    struct admin *a = calloc(1, sizeof *a);
    if (!a) {
        snprintf(message, size, "out of memory");
        return -1;
    }
    a->server = s;
    const struct http_config config = {.host = s->config.admin_host,
                                       .port = (uint16_t)s->config.admin_port,
                                       .given = given,
                                       .connection_limit = ADMIN_CONNECTIONS,
                                       .body_max_bytes = ADMIN_BODY_BYTES,
                                       .idle_timeout_ms = s->config.idle_timeout_ms,
                                       .evict_waiting = true, /* a probe must not wait for silent connections */
                                       .handlers = routes_handlers(s)};
    uv_loop_init(&a->loop);
    int rc = http_open(&a->loop, &config, &a->http, message, size);
    if (!rc && http_start(a->http, message, size)) {
        http_close(a->http);
        rc = -1;
    }
    if (rc) {
        uv_loop_close(&a->loop);
        free(a);
        return rc;
    }
    uv_async_init(&a->loop, &a->end, on_end);
    a->end.data = a;
    s->admin_loop = &a->loop;
    if (uv_thread_create(&a->thread, admin_run, a)) {
        snprintf(message, size, "The admin thread did not start.");
        on_end(&a->end);
        admin_run(a);
        uv_loop_close(&a->loop);
        free(a);
        return -1;
    }
    *out = a;
    return 0;
}

uint16_t admin_port(const struct admin *a) { return http_port(a->http); }
const char *admin_host(const struct admin *a) { return http_host(a->http); }

void admin_close(struct admin *a) {
    if (!a) return;
    assert(server_on_loop(a->server) && a->server->admin_loop == &a->loop);
    uv_async_send(&a->end);
    uv_thread_join(&a->thread);
    a->server->admin_loop = NULL;
    uv_loop_close(&a->loop);
    free(a);
}
