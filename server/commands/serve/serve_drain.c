/* serve_drain.c - see serve.h: the shutdown. The first SIGTERM or SIGINT drains, the second exits. */
#include "serve.h"

#include <assert.h>
#include <signal.h>
#include <string.h>

/* So long before the port closes, new connections are not answered; those that have begun get in. Where other processes
 * share the port there may be no balancer, and clients are far: their handshake takes longer, and a client without an
 * answer asks again after 1 s and gets through to the others. */
#define HANDSHAKE_MS     20
#define FAR_HANDSHAKE_MS 300
/* A client that connected in the last moment before the port closed sends its request now, and is served: a balancer
 * without health checks could not know. A request that comes in as much time again gets a 503. */
#define SETTLE_MS 150
/* Where nobody is refused, so long a client may take to its first request, and to its next one. A request that is on
 * its way while its connection is closed is lost, so active clients get time to send one more, whose answer ends the
 * connection. */
#define PATIENCE_NS 3000000000ull
/* Requests that have not ended so long after the drain's deadline are abandoned. */
#define CUT_MS 2000
/* After a device fault no request goes on; its error need only be read. */
#define FAULT_MS 2000

void serve_stop(struct service *v) {
    if (v->stopping) return;
    v->stopping = true;
    uv_timer_stop(&v->drain);
    uv_stop(&v->loop);
}

static void refuse_requests(struct server *s) {
    assert(s->leaving && !s->draining);
    s->draining = true;
    rod_engine_drain(s->engine);
}

/* The port outlives this process, or has other takers. */
static bool port_goes_on(const struct service *v) {
    return v->given.port || !strcmp(v->server.config.listen, "shared");
}

/* Where the port goes on without this process, all that still comes on open connections is served, each for the last
 * time: a client on the next connection gets through to another process, and no request is refused on the way. */
static bool is_over(struct service *v, uint64_t waited, uint64_t closes) {
    struct server *s = &v->server;
    if (s->completions.n || s->n_jobs || waited < closes + 2 * SETTLE_MS) return false;
    return s->draining || !http_is_awaited(s->http, PATIENCE_NS);
}

static void finish(struct service *v, uint64_t waited) {
    struct server *s = &v->server;
    if (v->n_cut)
        log_text(&s->log, LOG_WARN, "Drain finished after %llu ms; %zu requests cancelled at the deadline.",
                 (unsigned long long)waited, v->n_cut);
    else
        log_text(&s->log, LOG_INFO, "Drain finished after %llu ms; no requests left.", (unsigned long long)waited);
    serve_stop(v);
}

static void on_drain(uv_timer_t *timer) {
    struct service *v = timer->data;
    struct server *s = &v->server;
    assert(s->leaving && !v->stopping);
    const bool goes_on = port_goes_on(v);
    const uint64_t waited = uv_now(&v->loop) - v->drain_began_ms;
    if (!v->turned_away && (s->failed || waited >= v->notice_ms)) {
        http_turn_newcomers_away(s->http);
        v->turned_away = true;
        v->notice_ms = waited; /* on a busy machine later: handshakes have their whole time from here */
    }
    const uint64_t handshake_ms = v->given.port ? 0 : goes_on ? FAR_HANDSHAKE_MS : HANDSHAKE_MS;
    const uint64_t closes = v->notice_ms + handshake_ms;
    uint64_t limit = v->notice_ms + s->config.drain_ms;
    if (s->failed && limit > FAULT_MS) limit = FAULT_MS;
    const uint64_t refuses = goes_on && limit > closes ? limit : closes + SETTLE_MS;
    /* The port closes first, so that a balancer sees a refused connection and asks another replica at once. */
    if (s->failed || waited >= closes) http_quiesce(s->http);
    if (!s->draining && (s->failed || waited >= refuses || is_over(v, waited, closes))) refuse_requests(s);
    if (!s->draining) return;
    if (waited >= limit) s->cut = true;
    if (is_over(v, waited, closes)) {
        finish(v, waited);
    } else if (waited >= limit + CUT_MS) {
        log_text(&s->log, LOG_WARN, "Drain aborted after %llu ms; %u requests did not end.", (unsigned long long)waited,
                 s->completions.n);
        serve_stop(v);
    } else if (waited >= limit && s->completions.n) {
        if (!v->n_cut) v->n_cut = s->completions.n;
        completion_end_all(s);
    }
}

void serve_drain(struct service *v, uint64_t notice_ms) {
    struct server *s = &v->server;
    assert(!s->leaving);
    s->leaving = true;
    notify_send("STOPPING=1");
    v->notice_ms = notice_ms;
    v->drain_began_ms = uv_now(&v->loop);
    uv_timer_start(&v->drain, on_drain, 0, 20);
}

void serve_on_signal(uv_signal_t *signal, int number) {
    struct service *v = signal->data;
    struct server *s = &v->server;
    if (s->leaving || !s->engine) { /* the second one, or nothing to drain yet */
        log_text(&s->log, LOG_WARN, "%s: exiting without a drain.", number == SIGINT ? "SIGINT" : "SIGTERM");
        v->abandoned = s->cut = true;
        v->exit_code = 128 + number;
        serve_stop(v);
        return;
    }
    log_text(&s->log, LOG_INFO, "%s: draining, %u requests in progress; a second signal exits at once.",
             number == SIGINT ? "SIGINT" : "SIGTERM", s->completions.n);
    serve_drain(v, number == SIGINT ? 0 : s->config.drain_notice_ms);
}
