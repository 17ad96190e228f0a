/* cmd_serve.c - rodimus serve: from the configuration to a clean exit.
 *
 * The port is taken first (a port in use is known at once), the model is loaded on a thread of its own while
 * /health/ready answers 503 or, with `listen` ready, connections are refused; then requests are taken.
 */
#include "serve.h"
#include "server/completion/recall.h"
#include "server/completion/replies.h"

#include "server/base/pool.h"
#include "server/commands/commands.h"
#include "server/http/http_listen.h"
#include "server/http/http_tls.h"

#include "engine/base/clock.h"

#include <assert.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* How often the loop says that it turns, and counts what left the queue. */
#define BEAT_MS 500

static void on_sighup(uv_signal_t *signal, int number) {
    struct service *v = signal->data;
    char text[64];
    (void)number;
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(uv_hrtime() / 1000));
    notify_send(text);
    reload_settings(&v->server, v->tls, v->argc, v->argv);
    if (v->server.engine) notify_send("READY=1");
}

static void on_beat(uv_timer_t *timer) {
    struct service *v = timer->data;
    struct server *s = &v->server;
    struct rod_stats stats;
    s->beat_ns = uv_hrtime();
    if (s->engine) {
        rod_engine_stats(s->engine, &stats);
        admission_sample(&s->admission, s->beat_ns,
                         stats.requests_finished + stats.requests_cancelled + stats.requests_failed + stats.running,
                         stats.queued, stats.n_slots);
    }
    if (!v->watchdog_ms || uv_now(&v->loop) < v->watchdog_at_ms) return;
    if (routes_want_restart(routes_unready(s))) return; /* systemd then restarts the process */
    v->watchdog_at_ms = uv_now(&v->loop) + v->watchdog_ms;
    notify_send("WATCHDOG=1");
}

static int log_port_error(struct service *v, int rc, const char *host, const char *message) {
    char source[512];
    config_source(host, v->argc, v->argv, environ, source, sizeof source);
    if (rc == HTTP_NO_HOST)
        log_failure(&v->server.log, SERVE_NAME, "", "%s (%s): %s", host, source, message);
    else
        log_failure(&v->server.log, SERVE_NAME, "", "%s%s", strcmp(host, "host") ? "admin_port: " : "", message);
    return rc == HTTP_NO_HOST ? 2 : 1;
}

/* ---- start ---- */

static void print_help(void) {
    struct config config = {0};
    struct option_set set = config_set(&config);
    printf("Usage: rodimus serve [flags]\n\n"
           "Serves a Rodimus or Rodimus+ checkpoint over the OpenAI HTTP API. Without --model it serves the bundled\n"
           "demo model. Every flag is also an environment variable and a key of the configuration file:\n"
           "  --max-queue-requests 64  =  RODIMUS_MAX_QUEUE_REQUESTS=64  =  \"max_queue_requests\": 64\n"
           "A flag goes before the environment, the environment before the file, the file before the default\n"
           "(in brackets below; config/default.json lists them all).\n\n"
           "  --config FILE                   JSON file of settings\n"
           "  -h, --help                      this text\n");
    options_help(&set, stdout, 110);
    printf("\nExamples\n"
           "  rodimus serve\n"
           "  rodimus serve --model /models/rodimus-plus-coder-1.6b --host 0.0.0.0 --slots 64\n"
           "  RODIMUS_API_KEY_FILE=/run/secrets/keys rodimus serve --config server.json --log-format json\n");
}

/* Every connection is a file; the model, the log and the pool need some more, and so do probes and sessions while all
 * connections are taken. */
static unsigned connection_limit(struct server *s) {
    const uint64_t others = 64;
    uint64_t wanted = s->config.connection_limit, files = http_raise_files(wanted + others);
    if (files >= wanted + others) return (unsigned)wanted;
    uint64_t left = files > 2 * others ? files - others : files > 32 ? files / 2 - 8 : 8;
    log_text(&s->log, LOG_WARN,
             "connection_limit lowered from %llu to %llu: the limit of open files is %llu (ulimit -n).",
             (unsigned long long)wanted, (unsigned long long)left, (unsigned long long)files);
    return (unsigned)left;
}

static bool is_loopback(const char *host) {
    return !strncmp(host, "127.", 4) || !strcmp(host, "::1") || !strcmp(host, "localhost");
}

/* Certificate and keys: all that a wrong setting can keep from working. */
static int start_access(struct service *v, char *message, size_t size) {
    struct server *s = &v->server;
    const struct config *c = &s->config;
    struct option_error err;
    if (keys_open(&s->keys, &c->api_keys, c->api_key_file, c->admin_key, &err)) {
        snprintf(message, size, "%s", err.message);
        return -1;
    }
    return *c->tls_cert ? http_tls_open(c->tls_cert, c->tls_key, &v->tls, message, size) : 0;
}

/* What is open to more than its operator may think. */
static void warn_of_access(struct service *v) {
    struct server *s = &v->server;
    const char *host = http_host(s->http), *admin = v->admin ? admin_host(v->admin) : "localhost";
    if (!s->keys.n && !is_loopback(host))
        log_text(&s->log, LOG_WARN, "No API keys: anyone who reaches %s can use the server.", host);
    if (!s->keys.n && !*s->config.admin_key && !is_loopback(admin))
        log_text(&s->log, LOG_WARN, "No keys: anyone who reaches admin_port on %s can read and write session states.",
                 admin);
    if (v->tls && !is_loopback(admin))
        log_text(&s->log, LOG_WARN, "admin_port on %s is HTTP without TLS: the admin key can be read on the network.",
                 admin);
    reload_warn(s, v->tls);
}

/* The main port and, where there is one, the second listener. 0, or -1 after a line in the log. */
static int open_ports(struct service *v) {
    struct server *s = &v->server;
    char message[512];
    const struct http_config http = {.host = s->config.host,
                                     .port = (uint16_t)s->config.port,
                                     .given = v->given.port,
                                     .shared = !strcmp(s->config.listen, "shared"),
                                     .connection_limit = connection_limit(s),
                                     .body_max_bytes = s->config.body_max_bytes,
                                     .idle_timeout_ms = s->config.idle_timeout_ms,
                                     .tls = v->tls,
                                     .handlers = routes_handlers(s)};
    int rc = http_open(&v->loop, &http, &s->http, message, sizeof message);
    if (rc) {
        v->exit_code = log_port_error(v, rc, "host", message);
        return -1;
    }
    if (!serve_listens_when_ready(v) && http_start(s->http, message, sizeof message)) {
        log_failure(&s->log, SERVE_NAME, "", "%s", message);
        http_close(s->http);
        return -1;
    }
    const bool admin = s->config.admin_port || v->given.admin;
    if (admin && (rc = admin_open(s, v->given.admin, &v->admin, message, sizeof message))) {
        v->exit_code = log_port_error(v, rc, "admin_host", message);
        http_close(s->http);
        return -1;
    }
    if (v->given.port)
        log_text(&s->log, LOG_INFO, "LISTEN_FDS: the port is handed over; host, port and listen do not count.");
    if (v->given.admin)
        log_text(&s->log, LOG_INFO,
                 "LISTEN_FDS: the admin port is handed over; admin_host and admin_port do not count.");
    return 0;
}

/* It asks for a reload and never ends the process, so until there is a handler it waits. */
static void hold_sighup(int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(how, &set, NULL);
}

static int server_start(struct service *v) {
    struct server *s = &v->server;
    char message[512];
    if (start_access(v, message, sizeof message)) {
        config_add_source(message, sizeof message, v->argc, v->argv, environ);
        log_failure(&s->log, SERVE_NAME, "", "%s", message);
        v->exit_code = 2;
        return -1;
    }
    loading_begin(&s->loading, uv_hrtime());
    if (open_ports(v)) return -1;
    warn_of_access(v);
    uv_async_init(&v->loop, &v->wake, serve_on_events);
    uv_async_init(&v->loop, &v->loaded_wake, serve_on_loaded);
    uv_timer_init(&v->loop, &v->drain);
    uv_timer_init(&v->loop, &v->beat);
    uv_timer_init(&v->loop, &s->tick);
    uv_signal_init(&v->loop, &v->sigint);
    uv_signal_init(&v->loop, &v->sigterm);
    uv_signal_init(&v->loop, &v->sighup);
    v->wake.data = v->loaded_wake.data = v->drain.data = v->beat.data = v;
    v->sigint.data = v->sigterm.data = v->sighup.data = v;
    s->tick.data = s;
    uv_signal_start(&v->sigint, serve_on_signal, SIGINT);
    uv_signal_start(&v->sigterm, serve_on_signal, SIGTERM);
    uv_signal_start(&v->sighup, on_sighup, SIGHUP);
    hold_sighup(SIG_UNBLOCK);
    v->watchdog_ms = notify_watchdog_ms();
    uv_timer_start(&v->beat, on_beat, 0, BEAT_MS);
    const bool watched = !serve_stall_open(v);
    if (!watched) log_failure(&s->log, SERVE_NAME, "", "stall_exit_s: the thread that watches did not start.");
    if (!watched || serve_load_model(v)) {
        v->exit_code = 1;
        serve_stop(v);
    }
    return 0;
}

/* The loop does not run any more: from here on a second signal ends the process at once, also when a device hangs in
 * its last step. No clock does: sessions may still be on their way to a slow disk. */
static void reset_signals(void) {
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
}

static void close_handle(uv_handle_t *handle, void *arg) {
    (void)arg;
    if (!uv_is_closing(handle)) uv_close(handle, NULL);
}

static void server_finish(struct service *v) {
    struct server *s = &v->server;
    assert(v->stopping && !v->abandoned);
    reset_signals();
    serve_stall_close(v);  /* what follows may wait for a slow disk, and the loop does not turn */
    admin_close(v->admin); /* it looks at the engine */
    http_close(s->http);
    while (s->n_jobs || completion_any_works(s))
        uv_run(&v->loop, UV_RUN_ONCE); /* so does the pool; what has not begun is cancelled */
    const uint64_t n_lost = s->engine ? rod_engine_close(s->engine) : 0;
    rod_store_close(s->store);
    s->store = NULL;
    if (n_lost) { /* the engine has logged each; the exit status tells the operator */
        log_text(&s->log, LOG_ERROR, "Lost %llu sessions at their last version.", (unsigned long long)n_lost);
        v->exit_code = 1;
    }
    uv_walk(&v->loop, close_handle, NULL);
    signal(SIGHUP, SIG_IGN); /* there is nothing left to reload */
    completion_free_all(s);
    recall_close(s->recall);
    replies_close(s->replies);
}

/* Before there is another thread the environment may still change. 0, or -1 after a line in the log. */
static int begin(struct service *v) {
    struct server *s = &v->server;
    char message[512];
    if (listen_fds_take(&v->given, message, sizeof message)) {
        log_failure(&s->log, SERVE_NAME, "", "%s", message);
        v->exit_code = 2;
        return -1;
    }
    if (pool_start(&s->pool, &v->loop, message, sizeof message)) {
        log_failure(&s->log, SERVE_NAME, "", "%s", message);
        return -1;
    }
    return serve_find_model(v) || server_start(v) ? -1 : 0;
}

int cmd_serve(int argc, char **argv) {
    /* On the heap: when the end does not wait for the loader or the engine, their threads still look at it. */
    struct service *v = calloc(1, sizeof *v);
    if (!v) return 1;
    hold_sighup(SIG_BLOCK);
    struct server *s = &v->server;
    struct option_error err;
    enum config_result result = config_load(&s->config, argc, argv, environ, &err);
    int rc = result == CONFIG_HELP ? 0 : 2;
    log_init(&s->log, result == CONFIG_OK ? s->config.log_level : "info",
             s->config.log_format ? s->config.log_format : "text", STDERR_FILENO);
    if (result == CONFIG_HELP) print_help();
    if (result == CONFIG_USAGE)
        log_failure(&s->log, SERVE_NAME, "('rodimus serve --help' lists the settings.)", "%s", err.message);
    if (result == CONFIG_OK) {
        rc = 1;
        signal(SIGPIPE, SIG_IGN);
        signal(SIGXFSZ, SIG_IGN);             /* a limit of file sizes is a write that fails */
        umask(S_IRWXG | S_IRWXO);             /* files are written with mode 0600 */
        mallopt(M_MMAP_THRESHOLD, 256 << 10); /* what is this large goes back when it is freed: compiled grammars */
        v->argc = argc;
        v->argv = argv;
        uv_loop_init(&v->loop);
        s->loop = &v->loop;
        s->thread = uv_thread_self();
        list_init(&s->completions);
        s->metrics.started_s = clock_unix_s();
        if (begin(v)) {
            if (v->exit_code) rc = v->exit_code;
            uv_run(&v->loop, UV_RUN_DEFAULT); /* what was begun ends */
        } else {
            uv_run(&v->loop, UV_RUN_DEFAULT);
            if (v->abandoned) return v->exit_code;
            server_finish(v);
            uv_run(&v->loop, UV_RUN_DEFAULT);
            rc = v->exit_code;
        }
        uv_loop_close(&v->loop);
        http_tls_close(v->tls);
        keys_fini(&s->keys);
    }
    log_fini(&s->log);
    config_fini(&s->config);
    free(v);
    return rc;
}
