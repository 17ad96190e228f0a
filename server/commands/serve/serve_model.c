/* serve_model.c - see serve.h: the model is found, loaded on a thread of its own, and announced; then its events. */
#include "serve.h"

#include "server/base/buf.h"
#include "server/base/nonblocking_writer.h"
#include "server/base/progress.h"
#include "server/base/version.h"
#include "server/completion/recall.h"
#include "server/completion/replies.h"
#include "server/kept_response.h"
#include "server/settings/model_path.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* So long the loop takes events before others have their turn. */
#define EVENTS_NS 5000000

int serve_find_model(struct service *v) {
    struct server *s = &v->server;
    const char *given = s->config.model, *synthetic = s->config.synthetic;
    if (*given || *synthetic) { /* what is loaded, for messages */
        snprintf(v->model_dir, sizeof v->model_dir, "%s", *given ? given : synthetic);
        return 0;
    }
    if (!model_path_bundled(v->model_dir, sizeof v->model_dir)) return 0;
    log_failure(&s->log, SERVE_NAME, "", MODEL_PATH_MISSING, v->model_dir);
    return -1;
}

/* ---- it is loaded ---- */

static void wake_loop(void *arg) { uv_async_send(arg); }

static void engine_log(void *arg, int level, const char *line) {
    struct log *log = arg;
    log_text(log, level < LOG_DEBUG ? LOG_DEBUG : level > LOG_ERROR ? LOG_ERROR : (enum log_level)level, "%s", line);
}

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

/* It answers, and does what it says; or the start ends. */
static int open_store(struct service *v) {
    struct server *s = &v->server;
    const struct config *c = &s->config;
    struct rod_store *store;
    if (!*c->state_url) return 0;
    const struct rod_store_config config = {
        .url = c->state_url,
        .endpoint = c->state_endpoint,
        .region = c->state_region,
        .style = c->state_style,
        .credentials = c->state_credentials,
        .encryption = strcmp(c->state_encryption, "none") ? c->state_encryption : "",
        .timeout_ms = (uint32_t)c->state_timeout_ms,
        .n_connections = (uint32_t)c->state_connections,
        .bytes_in_flight = c->state_flight_bytes,
        .cache_dir = c->state_dir,
        .cache_bytes = c->state_disk_bytes,
        .log = engine_log,
        .log_arg = &s->log,
    };
    const int rc = rod_store_open(&config, &store, &v->load_error);
    if (rc) return rc;
    s->store = store;
    log_text(&s->log, LOG_INFO, "states of sessions, conversations and pinned prefixes are objects of %s",
             c->state_url);
    if (*c->state_dir) log_text(&s->log, LOG_INFO, "state_dir %s is a cache of these objects", c->state_dir);
    return 0;
}

/* A thread of its own, not the pool's: libuv waits for its pool when the process ends, and must not wait for a load. */
static void load_model(void *arg) {
    struct service *v = arg;
    struct server *s = &v->server;
    const struct config *c = &s->config;
    struct progress progress;
    progress_open_lines(&progress, log_progress, &s->log);
    struct watch watch = {progress_to(&progress), &s->loading};
    struct rod_engine_config config = {
        .model_dir = *c->synthetic ? NULL : v->model_dir,
        .synthetic = *c->synthetic ? c->synthetic : NULL,
        .adapter_dir = c->adapter,
        .device = c->device,
        .precision = c->precision,
        .weights = c->weights,
        .window_dtype = c->window_dtype,
        .state_dtype = c->state_dtype,
        .deterministic = c->deterministic,
        .speculative = !strcmp(c->speculative, "none")     ? ROD_SPECULATIVE_NONE
                       : !strcmp(c->speculative, "lookup") ? ROD_SPECULATIVE_LOOKUP
                                                           : ROD_SPECULATIVE_AUTO,
        .n_slots = (uint32_t)c->slots,
        .n_threads = (uint32_t)c->threads,
        .max_batch_tok = (uint32_t)c->max_batch_tokens,
        .prompt_share = isnan(c->prompt_share) ? -1 : c->prompt_share,
        .max_queue = (uint32_t)c->max_queue_requests,
        .max_queue_tok = c->max_queue_tokens,
        .max_prompt_tok = c->max_prompt_tokens,
        .prefix_cache_bytes = c->prefix_cache_bytes,
        .state_dir = *c->state_url ? "" : c->state_dir, /* a store's cache */
        .state_host_bytes = c->state_host_bytes,
        /* A cache's limit is none of what all servers have in the store. */
        .state_disk_bytes = *c->state_url && *c->state_dir ? 0 : c->state_disk_bytes,
        .state_store_bytes = c->state_store_bytes,
        .session_ttl_s = c->session_ttl_s,
        .max_sessions = c->max_sessions,
        .session_keep_turns = (uint32_t)c->session_keep_turns,
        .session_lazy = !strcmp(c->session_durability, "lazy"),
        .session_reject = !strcmp(c->session_busy, "reject"),
        .wake = wake_loop,
        .wake_arg = &v->wake,
        .log = engine_log,
        .log_arg = &s->log,
        .progress = {on_progress, &watch},
    };
    v->load_rc = open_store(v);
    config.store = s->store;
    if (!v->load_rc) v->load_rc = rod_engine_open(&config, &v->loaded, &v->load_error);
    uv_async_send(&v->loaded_wake);
}

static const char *vocab_bytes(void *arg, int32_t id, size_t *len) {
    bool special = false;
    return rod_token_bytes(arg, id, len, &special);
}

/* The name of a directory is bytes, and answers and metrics are text: a reader would refuse all of it. */
static void copy_name(const char *name, char end, char *out, size_t size) {
    static const char replacement[] = "\xef\xbf\xbd";
    size_t n = 0;
    while (*name && *name != end) {
        const size_t given = buf_utf8(name, strlen(name)), len = given ? given : sizeof replacement - 1;
        if (n + len >= size) break;
        memcpy(out + n, given ? name : replacement, len);
        n += len;
        name += given ? given : 1;
    }
    out[n] = 0;
}

static void server_set_names(struct server *s) {
    const char *name = s->config.model_name;
    const bool set = *name && strcmp(name, "*") != 0; /* the first of several */
    copy_name(set ? name : s->info->name, set ? ',' : 0, s->model_name, sizeof s->model_name);
    copy_name(s->info->adapter, 0, s->adapter, sizeof s->adapter);
}

/* Of what decides the bits of an answer beside the request: program, weights, device and formats of states. */
static void server_set_fingerprint(struct server *s) {
    const struct rod_model_info *i = s->info;
    struct buf text = {0};
    buf_addf(&text, "%s %s %s %s %s %s %s %llu %d", version_string(), version_commit(), i->name, i->arch, i->device,
             i->weight_dtype, i->weights, (unsigned long long)i->n_params, s->config.deterministic);
    buf_addf(&text, " %s %s %s %s", i->fingerprint, s->config.precision, i->window_dtype, i->state_dtype);
    if (*i->adapter) buf_addf(&text, " %s", i->adapter);
    if (*i->products) buf_addf(&text, " %s", i->products);
    const uint64_t hash = XXH3_64bits(text.data, text.len);
    buf_fini(&text);
    snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%012llx", (unsigned long long)(hash >> 16));
}

/* Where a state may lie behind an answer: not where each text is read as it stands. */
static void server_set_recall(struct server *s, const struct rod_engine *engine) {
    if (s->config.deterministic || !s->config.prefix_cache_bytes) return;
    s->recall = recall_new(RECALL_BYTES, rod_conversation_seed(engine));
}

static void server_set_defaults(struct server *s, struct rod_engine *engine) {
    enum { DEFAULT_MAX_TOKENS = 2048 };
    const struct rod_model_info *i = s->info;
    const uint64_t limit = s->config.default_max_tokens;
    s->defaults = (struct api_defaults){
        .model_name = s->model_name,
        .model_names = *s->config.model_name ? s->config.model_name : NULL,
        .vocab_size = i->vocab_size,
        .sampling = i->sampling,
        .chat_max_tokens = limit ? (uint32_t)limit : DEFAULT_MAX_TOKENS,
        .context_tok = limit ? 0 : (uint32_t)s->config.max_prompt_tokens,
    };
    s->stored = (struct api_stored){.items = kept_response_items, .arg = s};
    s->vocab = (struct api_vocab){.bytes = vocab_bytes, .arg = engine};
}

static void announce_server(struct service *v) {
    struct server *s = &v->server;
    const struct rod_model_info *i = s->info;
    const char *host = http_host(s->http), *admin = v->admin ? admin_host(v->admin) : "";
    bool six = strchr(host, ':') != NULL, admin_six = strchr(admin, ':') != NULL,
         any = !strcmp(host, "0.0.0.0") || !strcmp(host, "::");
    unsigned port = http_port(s->http);
    const char *scheme = v->tls ? "https" : "http";
    struct buf b = {0};
    buf_addf(&b,
             "rodimus %s serves %s%s%s (%s, %.1f M parameters, %s, %.1f MB, %s, %u slots%s%s%s%s) on %s://%s%s%s:%u\n",
             version_string(), s->model_name, *s->adapter ? " with adapter " : "", s->adapter, i->arch,
             (double)i->n_params / 1e6, i->weights, (double)i->weight_bytes / 1e6, i->device, i->n_slots,
             *i->state_dtype ? ", S " : "", i->state_dtype, *i->window_dtype ? ", window " : "", i->window_dtype,
             scheme, six ? "[" : "", host, six ? "]" : "", port);
    /* Also for readers of the log alone, as JSON. */
    const size_t name_len = strlen("rodimus ") + strlen(version_string()) + 1;
    if (s->log.json && !b.failed) log_text(&s->log, LOG_INFO, "%.*s", (int)(b.len - name_len - 1), b.data + name_len);
    if (v->admin)
        buf_addf(&b, "admin: http://%s%s%s:%u\n", admin_six ? "[" : "", admin, admin_six ? "]" : "",
                 admin_port(v->admin));
    char url[320]; /* from this machine */
    snprintf(url, sizeof url, "%s://%s%s%s:%u", scheme, six && !any ? "[" : "", any ? "127.0.0.1" : host,
             six && !any ? "]" : "", port);
    buf_addf(&b, "playground: %s/\n", url);
    buf_addf(&b,
             "try: curl -N %s/v1/completions -H 'Content-Type: application/json'%s "
             "-d '{\"prompt\": \"Once upon a time there was\", \"max_tokens\": 100, \"stream\": true}'\n",
             url, s->keys.n ? " -H 'Authorization: Bearer KEY'" : "");
    struct nonblocking_writer out; /* a server does not wait for a reader of its first lines */
    nonblocking_writer_open(&out, STDOUT_FILENO);
    if (!b.failed) nonblocking_writer_put(&out, b.data, b.len);
    nonblocking_writer_close(&out);
    buf_fini(&b);
}

/* Of a given socket, too: who comes while the model is loaded waits in its queue, where an early answer were a 503. */
bool serve_listens_when_ready(const struct service *v) {
    return v->given.port || strcmp(v->server.config.listen, "early") != 0;
}

/* A setting that is wrong for this model, or on this machine, ends the start as those do that are wrong for any: no
 * restart cures it. Returns the exit status. */
static int log_load_error(struct service *v) {
    const struct rod_error *err = &v->load_error;
    const struct option_set set = config_set(NULL);
    if (!options_find(&set, err->param)) {
        log_failure(&v->server.log, SERVE_NAME, "", "Cannot serve %s: %s", v->model_dir, err->message);
        return 1;
    }
    char source[512];
    config_source(err->param, v->argc, v->argv, environ, source, sizeof source);
    log_failure(&v->server.log, SERVE_NAME, "", "Cannot serve %s: %s (%s)", v->model_dir, err->message, source);
    return 2;
}

void serve_on_loaded(uv_async_t *wake) {
    struct service *v = wake->data;
    struct server *s = &v->server;
    uv_thread_join(&v->loader);
    assert(!s->engine && (v->load_rc ? !v->loaded : v->loaded != NULL));
    if (v->load_rc) {
        v->exit_code = log_load_error(v);
        serve_stop(v);
        return;
    }
    struct rod_engine *engine = v->loaded;
    char message[512];
    if (serve_listens_when_ready(v) && http_start(s->http, message, sizeof message)) {
        log_failure(&s->log, SERVE_NAME, "", "%s", message);
        s->engine = engine; /* to be closed */
        v->exit_code = 1;
        serve_stop(v);
        return;
    }
    s->info = rod_engine_info(engine);
    server_set_names(s);
    server_set_fingerprint(s);
    server_set_defaults(s, engine);
    server_set_recall(s, engine);
    s->replies = replies_new(REPLIES_BYTES);
    s->engine = engine; /* from here on other threads look */
    announce_server(v);
    notify_send("READY=1\nSTATUS=serving");
}

int serve_load_model(struct service *v) {
    struct server *s = &v->server;
    const char *meanwhile = v->given.port                 ? "; clients wait in the queue of the port meanwhile"
                            : serve_listens_when_ready(v) ? "; the port refuses connections until the model is loaded"
                                                          : "";
    log_text(&s->log, LOG_INFO, "loading %s%s", v->model_dir, meanwhile);
    if (!uv_thread_create(&v->loader, load_model, v)) return 0;
    log_failure(&s->log, SERVE_NAME, "", "Cannot start the loader thread.");
    return -1;
}

/* ---- its events ---- */

void serve_on_events(uv_async_t *wake) {
    struct service *v = wake->data;
    struct server *s = &v->server;
    if (!s->engine) return;
    struct rod_event *event;
    const uint64_t until = uv_hrtime() + EVENTS_NS;
    while ((event = rod_next_event(s->engine))) {
        completion_event(event);
        if (uv_hrtime() < until) continue;
        uv_async_send(wake); /* the rest comes in the next turn of the loop */
        return;
    }
    if (s->failed || !rod_engine_failed(s->engine)) return;
    log_text(&s->log, LOG_ERROR, "Device failed; shutting down.");
    s->failed = true;
    v->exit_code = 1;
    if (!s->leaving) serve_drain(v, 0);
}
