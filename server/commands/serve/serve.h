/* serve.h - a running `rodimus serve`, which its files share: cmd_serve.c (start and exit), serve_model.c (loading, and
 * the engine's events), serve_drain.c (shutdown), serve_stall.c (the end of a process that hangs).
 *
 * Ownership: cmd_serve owns the service. It is on the heap, and is not freed when the process exits without waiting for
 * the loader or the engine, whose threads still use it. Threads: the loop's, but the loader, which writes loaded,
 * load_rc and load_error before it wakes the loop. Invariant: starting, serving, leaving (drain), stopping, in this
 * order.
 */
#ifndef SERVE_H
#define SERVE_H

#include "server/admin.h"
#include "server/base/systemd.h"
#include "server/reload.h"
#include "server/routes.h"
#include "server/completion/completion.h"

#include <limits.h>

#define SERVE_NAME "rodimus serve"

extern char **environ;

struct serve_stall {
    bool watches; /* there is a thread */
    uv_thread_t thread;
    uv_mutex_t lock;
    uv_cond_t wake;
    bool over;
    /* for the last line */
    struct log *log;
    uint64_t seconds;
    atomic_bool said;
};

struct service {
    struct server server;
    uv_loop_t loop;
    uv_signal_t sigint, sigterm, sighup;
    uv_async_t wake, loaded_wake;
    uv_timer_t drain, beat;
    uv_thread_t loader;
    struct http_tls *tls; /* NULL = the port is plain */
    struct admin *admin;  /* NULL = no second listener */
    struct listen_fds given;
    struct serve_stall stall;
    int argc;
    char **argv;
    uint64_t watchdog_ms, watchdog_at_ms;
    char model_dir[PATH_MAX];
    struct rod_engine *loaded;
    struct rod_error load_error;
    int load_rc, exit_code;
    uint64_t drain_began_ms, notice_ms;
    bool turned_away;         /* newcomers, at the end of the notice */
    size_t n_cut;             /* requests that the drain cancelled */
    bool stopping, abandoned; /* abandoned: end at once, nothing is closed */
};

/* ---- serve_drain.c ---- */
void serve_stop(struct service *v); /* ends the loop */
/* Takes requests for notice_ms more, then closes the port, refuses requests, and stops when all have ended. */
void serve_drain(struct service *v, uint64_t notice_ms);
void serve_on_signal(uv_signal_t *signal, int number); /* SIGTERM, SIGINT */

/* ---- serve_stall.c ---- */
int serve_stall_open(struct service *v); /* 0, or -1 without a thread */
void serve_stall_close(struct service *v);

/* ---- serve_model.c ---- */
int serve_find_model(struct service *v); /* 0, or -1 after a line in the log */
int serve_load_model(struct service *v); /* on a thread of its own. 0, or -1 after a line in the log */
void serve_on_loaded(uv_async_t *wake);  /* the loader has ended */
void serve_on_events(uv_async_t *wake);  /* the engine has events */
bool serve_listens_when_ready(const struct service *v);

#endif
