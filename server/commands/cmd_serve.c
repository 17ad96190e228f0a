/* cmd_serve.c - rodimus serve: from the configuration to a clean end.
 *
 * The port is taken first (a port in use is known at once), the model is loaded on a thread of its own while
 * /health/ready answers 503 or, with `listen` ready, connections are refused; then requests are taken. The first
 * SIGTERM or SIGINT drains, the second ends the process.
 */
#include "server/base/buf.h"
#include "commands.h"
#include "server/http/http_listen.h"
#include "server/http/http_tls.h"
#include "server/settings/model_path.h"
#include "server/base/notify.h"
#include "server/base/nonblocking_writer.h"
#include "server/base/pool.h"
#include "server/base/progress.h"
#include "server/server.h"
#include "server/base/version.h"

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAME "rodimus serve"
/* So long the loop takes events before others have their turn. */
#define EVENTS_NS 5000000
/* So long before the port closes nobody new begins to connect, and who has begun gets in. */
#define HANDSHAKE_MS 20
/* Who connected in the last moment before the port closed sends his request now, and is served: a balancer that asks
 * nobody's health could not know. Who comes in as much time again gets his 503. */
#define SETTLE_MS 150
/* What is not gone so long after the drain's time is over is cut. */
#define CUT_MS 2000
/* After a device fault nothing goes on; what has its error need only be read. */
#define FAULT_MS 2000
/* How often the loop says that it turns, and counts what left the queue. */
#define BEAT_MS 500

extern char **environ;

struct service {
    struct server server;
    uv_loop_t loop;
    uv_signal_t sigint, sigterm, sighup;
    uv_async_t wake, loaded_wake;
    uv_timer_t drain, beat;
    uv_thread_t loader;
    struct http_tls *tls; /* NULL = the port is plain */
    struct admin *admin;  /* NULL = no second listener */
    int argc;
    char **argv;
    uint64_t watchdog_ms, watchdog_at_ms;
    char model_dir[PATH_MAX];
    struct rod_engine *loaded;
    struct rod_error load_error;
    int load_rc, exit_code;
    uint64_t drain_began_ms, notice_ms;
    size_t n_cut;             /* requests that the drain ended */
    bool stopping, abandoned; /* abandoned: end at once, nothing is closed */
};

/* ---- the end ---- */

static void stop(struct service *v) {
    if (v->stopping) return;
    v->stopping = true;
    uv_timer_stop(&v->drain);
    uv_stop(&v->loop);
}

static void take_no_more(struct server *s) {
    s->draining = true;
    rod_engine_drain(s->engine);
}

static void on_drain(uv_timer_t *timer) {
    struct service *v = timer->data;
    struct server *s = &v->server;
    const uint64_t waited = uv_now(&v->loop) - v->drain_began_ms, closes = v->notice_ms + HANDSHAKE_MS;
    uint64_t limit = v->notice_ms + s->config.drain_ms;
    if (s->failed && limit > FAULT_MS) limit = FAULT_MS;
    /* The port closes first, so that a balancer sees a refused connection and asks another replica at once. */
    if (s->failed || waited >= v->notice_ms) http_turn_newcomers_away(s->http);
    if (s->failed || waited >= closes) http_quiesce(s->http);
    if (!s->draining && (s->failed || waited >= closes + SETTLE_MS)) take_no_more(s);
    if (!s->draining) return;
    if (!s->n_turns && !s->n_jobs && waited >= closes + 2 * SETTLE_MS) {
        if (v->n_cut)
            log_text(&s->log, LOG_WARN, "drained in %llu ms: %zu requests were cut, as their time was over",
                     (unsigned long long)waited, v->n_cut);
        else
            log_text(&s->log, LOG_INFO, "drained in %llu ms: no request is left", (unsigned long long)waited);
        stop(v);
    } else if (waited >= limit + CUT_MS) {
        log_text(&s->log, LOG_WARN, "%zu requests did not end in time and are cut", s->n_turns);
        stop(v);
    } else if (waited >= limit && s->n_turns) {
        if (!v->n_cut) v->n_cut = s->n_turns;
        turn_end_all(s);
    }
}

static void drain(struct service *v, uint64_t notice_ms) {
    struct server *s = &v->server;
    s->leaving = true;
    notify_send("STOPPING=1");
    v->notice_ms = notice_ms;
    v->drain_began_ms = uv_now(&v->loop);
    uv_timer_start(&v->drain, on_drain, 0, 20);
}

static void on_signal(uv_signal_t *signal, int number) {
    struct service *v = signal->data;
    struct server *s = &v->server;
    if (s->leaving || !s->engine) { /* the second one, or nothing to drain yet */
        log_text(&s->log, LOG_WARN, "stopped at once by %s", number == SIGINT ? "SIGINT" : "SIGTERM");
        v->abandoned = true;
        v->exit_code = 128 + number;
        stop(v);
        return;
    }
    log_text(&s->log, LOG_INFO, "%s: draining, %zu requests in progress; once more ends at once",
             number == SIGINT ? "SIGINT" : "SIGTERM", s->n_turns);
    drain(v, number == SIGINT ? 0 : s->config.drain_notice_ms);
}

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
    const char *why = routes_unready(s);
    if (why && (!strcmp(why, "stalled") || !strcmp(why, "failed"))) return; /* systemd then restarts the process */
    v->watchdog_at_ms = uv_now(&v->loop) + v->watchdog_ms;
    notify_send("WATCHDOG=1");
}

/* ---- the engine's events ---- */

static void on_wake(uv_async_t *wake) {
    struct service *v = wake->data;
    struct server *s = &v->server;
    if (!s->engine) return;
    struct rod_event *event;
    const uint64_t until = uv_hrtime() + EVENTS_NS;
    while ((event = rod_next_event(s->engine))) {
        turn_event(event);
        if (uv_hrtime() < until) continue;
        uv_async_send(wake); /* the rest comes in the next turn of the loop */
        return;
    }
    if (s->failed || !rod_engine_failed(s->engine)) return;
    log_text(&s->log, LOG_ERROR, "the device has failed: ending");
    s->failed = true;
    v->exit_code = 1;
    if (!s->leaving) drain(v, 0);
}

static void wake_loop(void *arg) { uv_async_send(arg); }

static void engine_log(void *arg, int level, const char *line) {
    struct log *log = arg;
    log_text(log, level < LOG_DEBUG ? LOG_DEBUG : level > LOG_ERROR ? LOG_ERROR : (enum log_level)level, "%s", line);
}

/* ---- the model ---- */

static void log_progress(void *arg, const char *text) { log_text(arg, LOG_INFO, "%s", text); }

struct watch { /* of a load: for the log, and for clients that come too early */
    struct rod_progress_to lines;
    struct loading *loading;
};

static void on_progress(void *arg, const struct rod_progress *at) {
    const struct watch *w = arg;
    loading_report(w->loading, at, uv_hrtime());
    w->lines.report(w->lines.arg, at);
}

/* A thread of its own, not the pool's: libuv waits for its pool when the process ends, and nobody waits for a load. */
static void load(void *arg) {
    struct service *v = arg;
    struct server *s = &v->server;
    const struct config *c = &s->config;
    struct progress progress;
    progress_open_lines(&progress, log_progress, &s->log);
    struct watch watch = {progress_to(&progress), &s->loading};
    struct rod_engine_config config = {
        .model_dir = *c->synthetic ? NULL : v->model_dir,
        .synthetic = *c->synthetic ? c->synthetic : NULL,
        .device = c->device,
        .precision = c->precision,
        .deterministic = c->deterministic,
        .n_slots = (uint32_t)c->slots,
        .n_threads = (uint32_t)c->threads,
        .max_batch_tok = (uint32_t)c->max_batch_tokens,
        .max_queue = (uint32_t)c->max_queue_requests,
        .max_queue_tok = c->max_queue_tokens,
        .max_prompt_tok = c->max_prompt_tokens,
        .prefix_cache_bytes = c->prefix_cache_bytes,
        .state_dir = c->state_dir,
        .state_host_bytes = c->state_host_bytes,
        .state_disk_bytes = c->state_disk_bytes,
        .session_ttl_s = c->session_ttl_s,
        .max_sessions = c->max_sessions,
        .session_lazy = !strcmp(c->session_durability, "lazy"),
        .session_reject = !strcmp(c->session_busy, "reject"),
        .wake = wake_loop,
        .wake_arg = &v->wake,
        .log = engine_log,
        .log_arg = &s->log,
        .progress = {on_progress, &watch},
    };
    v->load_rc = rod_engine_open(&config, &v->loaded, &v->load_error);
    uv_async_send(&v->loaded_wake);
}

static const char *vocab_bytes(void *arg, int32_t id, size_t *len) {
    bool special = false;
    return rod_token_bytes(arg, id, len, &special);
}

/* The name of a directory is bytes, and answers and metrics are text: who reads them would refuse all of it. */
static void set_name(struct server *s, const char *name) {
    static const char replacement[] = "\xef\xbf\xbd";
    size_t n = 0;
    while (*name) {
        const size_t given = buf_utf8(name, strlen(name)), len = given ? given : sizeof replacement - 1;
        if (n + len >= sizeof s->model_name) break;
        memcpy(s->model_name + n, given ? name : replacement, len);
        n += len;
        name += given ? given : 1;
    }
    s->model_name[n] = 0;
}

static void set_defaults(struct server *s, struct rod_engine *engine) {
    const struct rod_model_info *i = s->info;
    s->defaults = (struct openai_defaults){
        .model_name = s->model_name,
        .vocab_size = i->vocab_size,
        .temperature = isnan(i->default_temperature) ? 1 : i->default_temperature,
        .top_p = isnan(i->default_top_p) ? 1 : i->default_top_p,
        .min_p = isnan(i->default_min_p) ? 0 : i->default_min_p,
        .repetition_penalty = isnan(i->default_repetition_penalty) ? 1 : i->default_repetition_penalty,
        .top_k = i->default_top_k,
        .chat_max_tokens = (uint32_t)s->config.default_max_tokens,
    };
    s->vocab = (struct openai_vocab){vocab_bytes, engine};
}

static void announce(struct service *v) {
    struct server *s = &v->server;
    const struct rod_model_info *i = s->info;
    const char *host = s->config.host, *admin_host = s->config.admin_host;
    bool six = strchr(host, ':') != NULL, admin_six = strchr(admin_host, ':') != NULL,
         any = !strcmp(host, "0.0.0.0") || !strcmp(host, "::");
    unsigned port = http_port(s->http);
    const char *scheme = v->tls ? "https" : "http";
    struct buf b = {0};
    buf_addf(&b, "rodimus %s serves %s (%s, %.1f M parameters, %s, %s, %u slots) on %s://%s%s%s:%u\n", version_string(),
             s->model_name, i->arch, (double)i->n_params / 1e6, i->weight_dtype, i->device, i->n_slots, scheme,
             six ? "[" : "", host, six ? "]" : "", port);
    /* Who reads the log alone, as JSON, hears of it too. */
    const size_t name_len = strlen("rodimus ") + strlen(version_string()) + 1;
    if (s->log.json && !b.failed) log_text(&s->log, LOG_INFO, "%.*s", (int)(b.len - name_len - 1), b.data + name_len);
    if (v->admin)
        buf_addf(&b, "admin: http://%s%s%s:%u\n", admin_six ? "[" : "", admin_host, admin_six ? "]" : "",
                 admin_port(v->admin));
    char url[320]; /* from this machine */
    snprintf(url, sizeof url, "%s://%s%s%s:%u", scheme, six && !any ? "[" : "", any ? "127.0.0.1" : host,
             six && !any ? "]" : "", port);
    buf_addf(&b, "playground: %s/\n", url);
    buf_addf(&b,
             "try: curl -N %s/v1/completions -H 'Content-Type: application/json'%s "
             "-d '{\"prompt\": \"Once upon a time there was\", \"max_tokens\": 100, \"stream\": true}'\n",
             url, s->keys.n ? " -H 'Authorization: Bearer KEY'" : "");
    struct nonblocking_writer out; /* a server does not wait for who reads its first lines */
    nonblocking_writer_open(&out, STDOUT_FILENO);
    if (!b.failed) nonblocking_writer_put(&out, b.data, b.len);
    nonblocking_writer_close(&out);
    buf_fini(&b);
}

static bool listens_when_ready(const struct server *s) { return !strcmp(s->config.listen, "ready"); }

/* A setting that is wrong for this model, or on this machine, ends the start as those do that are wrong for any: no
 * restart cures it. These two return the exit status. */
static int say_load_error(struct service *v) {
    const struct rod_error *err = &v->load_error;
    const struct option_set set = {config_options, config_n_options, NULL};
    if (!options_find(&set, err->param)) {
        log_failure(&v->server.log, NAME, "", "cannot serve %s: %s", v->model_dir, err->message);
        return 1;
    }
    char source[512];
    config_source(err->param, v->argc, v->argv, environ, source, sizeof source);
    log_failure(&v->server.log, NAME, "", "cannot serve %s: %s (%s)", v->model_dir, err->message, source);
    return 2;
}

static int say_port_error(struct service *v, int rc, const char *host, const char *message) {
    char source[512];
    config_source(host, v->argc, v->argv, environ, source, sizeof source);
    if (rc == HTTP_NO_HOST)
        log_failure(&v->server.log, NAME, "", "%s = %s (%s)", host, message, source);
    else
        log_failure(&v->server.log, NAME, "", "%s%s", strcmp(host, "host") ? "admin_port: " : "", message);
    return rc == HTTP_NO_HOST ? 2 : 1;
}

static void on_loaded(uv_async_t *wake) {
    struct service *v = wake->data;
    struct server *s = &v->server;
    uv_thread_join(&v->loader);
    if (v->load_rc) {
        v->exit_code = say_load_error(v);
        stop(v);
        return;
    }
    struct rod_engine *engine = v->loaded;
    char message[512];
    if (listens_when_ready(s) && http_start(s->http, message, sizeof message)) {
        log_failure(&s->log, NAME, "", "%s", message);
        s->engine = engine; /* to be closed */
        v->exit_code = 1;
        stop(v);
        return;
    }
    s->info = rod_engine_info(engine);
    set_name(s, *s->config.model_name ? s->config.model_name : s->info->name);
    set_defaults(s, engine);
    s->engine = engine; /* from here on other threads look */
    announce(v);
    notify_send("READY=1\nSTATUS=serving");
}

/* ---- the beginning ---- */

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

static int find_model(struct service *v) {
    struct server *s = &v->server;
    const char *given = s->config.model, *synthetic = s->config.synthetic;
    if (*given || *synthetic) { /* what is loaded, for messages */
        snprintf(v->model_dir, sizeof v->model_dir, "%s", *given ? given : synthetic);
        return 0;
    }
    if (!model_path_bundled(v->model_dir, sizeof v->model_dir)) return 0;
    log_failure(&s->log, NAME, "", "the demo model is not at %s; name one with --model DIR", v->model_dir);
    return -1;
}

/* Every connection is a file; the model, the log and the pool need some more, and so do probes and sessions while all
 * connections are taken. */
static unsigned connection_limit(struct server *s) {
    const uint64_t others = 64;
    uint64_t wanted = s->config.connection_limit, files = http_raise_files(wanted + others);
    if (files >= wanted + others) return (unsigned)wanted;
    uint64_t left = files > 2 * others ? files - others : files > 32 ? files / 2 - 8 : 8;
    log_text(&s->log, LOG_WARN,
             "connection_limit is lowered from %llu to %llu: the limit of open files is %llu (ulimit -n)",
             (unsigned long long)wanted, (unsigned long long)left, (unsigned long long)files);
    return (unsigned)left;
}

static bool loopback(const char *host) {
    return !strncmp(host, "127.", 4) || !strcmp(host, "::1") || !strcmp(host, "localhost");
}

/* Certificate, keys and the second listener: all that a wrong setting can keep from working. */
static int start_access(struct service *v, char *message, size_t size) {
    struct server *s = &v->server;
    const struct config *c = &s->config;
    struct option_error err;
    if (keys_open(&s->keys, &c->api_keys, c->api_key_file, c->admin_key, &err)) {
        snprintf(message, size, "%s", err.message);
        return -1;
    }
    if (!s->keys.n && !loopback(c->host))
        log_text(&s->log, LOG_WARN, "there are no API keys: whoever reaches %s may use it", c->host);
    const bool admin_beyond = c->admin_port && !loopback(c->admin_host);
    if (!s->keys.n && !*c->admin_key && admin_beyond)
        log_text(&s->log, LOG_WARN,
                 "there are no keys: whoever reaches admin_port on %s may read and put states of sessions",
                 c->admin_host);
    if (*c->tls_cert && admin_beyond)
        log_text(&s->log, LOG_WARN, "admin_port speaks HTTP without TLS, on %s: the admin key can be read on the way",
                 c->admin_host);
    if (*c->tls_cert && http_tls_open(c->tls_cert, c->tls_key, &v->tls, message, size)) return -1;
    reload_warn(s, v->tls);
    return 0;
}

/* It asks for a reload and never ends the process, so until there is a handler it waits. */
static void hold_sighup(int how) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(how, &set, NULL);
}

static int start(struct service *v) {
    struct server *s = &v->server;
    char message[512];
    if (start_access(v, message, sizeof message)) {
        config_add_source(message, sizeof message, v->argc, v->argv, environ);
        log_failure(&s->log, NAME, "", "%s", message);
        v->exit_code = 2;
        return -1;
    }
    loading_begin(&s->loading, uv_hrtime());
    struct http_config http = {.host = s->config.host,
                               .port = (uint16_t)s->config.port,
                               .connection_limit = connection_limit(s),
                               .body_max_bytes = s->config.body_max_bytes,
                               .idle_timeout_ms = s->config.idle_timeout_ms,
                               .tls = v->tls,
                               .handlers = routes_handlers(s)};
    int rc = http_open(&v->loop, &http, &s->http, message, sizeof message);
    if (rc) {
        v->exit_code = say_port_error(v, rc, "host", message);
        return -1;
    }
    if (!listens_when_ready(s) && http_start(s->http, message, sizeof message)) {
        log_failure(&s->log, NAME, "", "%s", message);
        http_close(s->http);
        return -1;
    }
    if (s->config.admin_port && (rc = admin_open(s, &v->admin, message, sizeof message))) {
        v->exit_code = say_port_error(v, rc, "admin_host", message);
        http_close(s->http);
        return -1;
    }
    uv_async_init(&v->loop, &v->wake, on_wake);
    uv_async_init(&v->loop, &v->loaded_wake, on_loaded);
    uv_timer_init(&v->loop, &v->drain);
    uv_timer_init(&v->loop, &v->beat);
    uv_timer_init(&v->loop, &s->tick);
    uv_signal_init(&v->loop, &v->sigint);
    uv_signal_init(&v->loop, &v->sigterm);
    uv_signal_init(&v->loop, &v->sighup);
    v->wake.data = v->loaded_wake.data = v->drain.data = v->beat.data = v;
    v->sigint.data = v->sigterm.data = v->sighup.data = v;
    s->tick.data = s;
    uv_signal_start(&v->sigint, on_signal, SIGINT);
    uv_signal_start(&v->sigterm, on_signal, SIGTERM);
    uv_signal_start(&v->sighup, on_sighup, SIGHUP);
    hold_sighup(SIG_UNBLOCK);
    v->watchdog_ms = notify_watchdog_ms();
    uv_timer_start(&v->beat, on_beat, 0, BEAT_MS);
    log_text(&s->log, LOG_INFO, "loading %s%s", v->model_dir,
             listens_when_ready(s) ? "; until then the port refuses connections" : "");
    if (uv_thread_create(&v->loader, load, v)) {
        log_failure(&s->log, NAME, "", "cannot start a thread");
        v->exit_code = 1;
        stop(v);
    }
    return 0;
}

/* The loop does not run any more: from here on a second signal ends the process at once, also when a device hangs in
 * its last step. No clock does: sessions may still be on their way to a slow disk. */
static void let_go(void) {
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
}

static void finish(struct service *v) {
    struct server *s = &v->server;
    let_go();
    admin_close(v->admin); /* it looks at the engine */
    http_close(s->http);
    while (s->n_jobs || turn_any_works(s))
        uv_run(&v->loop, UV_RUN_ONCE); /* so does the pool; what has not begun is cancelled */
    const uint64_t n_lost = s->engine ? rod_engine_close(s->engine) : 0;
    if (n_lost) { /* each has its line of the engine; whoever stopped the server is to know it, too */
        log_text(&s->log, LOG_ERROR, "%llu sessions are lost at their last version", (unsigned long long)n_lost);
        v->exit_code = 1;
    }
    uv_close((uv_handle_t *)&v->wake, NULL);
    uv_close((uv_handle_t *)&v->loaded_wake, NULL);
    uv_close((uv_handle_t *)&v->drain, NULL);
    uv_close((uv_handle_t *)&v->beat, NULL);
    uv_close((uv_handle_t *)&s->tick, NULL);
    uv_close((uv_handle_t *)&v->sigint, NULL);
    uv_close((uv_handle_t *)&v->sigterm, NULL);
    uv_close((uv_handle_t *)&v->sighup, NULL);
    signal(SIGHUP, SIG_IGN); /* there is nothing left to reload */
    turn_free_all(s);
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
        log_failure(&s->log, NAME, "('rodimus serve --help' lists the settings)", "%s", err.message);
    if (result == CONFIG_OK) {
        rc = 1;
        signal(SIGPIPE, SIG_IGN);
        signal(SIGXFSZ, SIG_IGN); /* a limit of file sizes is a write that fails */
        umask(S_IRWXG | S_IRWXO); /* whatever is written is nobody else's: mode 0600 */
        v->argc = argc;
        v->argv = argv;
        uv_loop_init(&v->loop);
        s->loop = &v->loop;
        char message[512];
        const bool pool = !pool_start(&s->pool, &v->loop, message, sizeof message);
        if (!pool) log_failure(&s->log, NAME, "", "%s", message);
        if (!pool || find_model(v) || start(v)) {
            if (v->exit_code) rc = v->exit_code;
            uv_run(&v->loop, UV_RUN_DEFAULT); /* what was begun ends */
        } else {
            uv_run(&v->loop, UV_RUN_DEFAULT);
            if (v->abandoned) return v->exit_code;
            finish(v);
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
