/* routes.c - the table of routes, what every request passes on its way to one (id, key, method, type of the body), and
 * the routes that need no engine. */
#include "server/call/access.h"
#include "engine/base/quota.h"
#include "routes.h"
#include "side_routes.h"
#include "server/api/chats/chats.h"
#include "server/api/completions/completions.h"
#include "server/api/messages/messages.h"
#include "server/api/responses/responses.h"
#include "server/completion/completion.h"
#include "server/base/version.h"

#include <ctype.h>
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define BYTES "application/octet-stream"
/* Clients that send "{}" with every method are served. */
#define NO_BODY_MAX_BYTES 65536

struct route {
    const char *method, *path; /* a path that ends in '/' takes what follows as a name */
    const char *tail; /* what follows the name, which then has no '/'; NULL: the name is the rest of the path */
    void (*run)(struct http_call *call);
    /* What the pool does in its place. */
    int (*job)(struct job *j, struct rod_error *err);
    bool open;      /* needs no key */
    bool engine;    /* 503 while loading or draining */
    bool loaded;    /* 503 while loading */
    bool bare;      /* its body may be left out */
    bool slot;      /* takes a slot: refused while the queue is full */
    bool tokens;    /* uses tokens of its key's minute */
    bool files;     /* of a job that does: it may wait for files too, as all others may */
    bool any_name;  /* the job checks the characters of its name */
    bool admin;     /* asks for the admin key, if there is one */
    bool on_admin;  /* on the admin port too: its handler touches what any thread may */
    bool bare_path; /* /v1/x also as /x, for clients whose base URL lacks /v1 */
    bool tenants;   /* of all tenants: a server with API keys and no admin key refuses it */
    bool state;     /* a state goes in or out, as bytes */
    /* Answers in it, and errors of all paths below. Without one: OpenAI's, or where clients of several APIs come, that
     * of the client's header (client_header). */
    const struct answer_form *form;
    bool by_client;
    bool deep; /* the name of a conversation may have a '/' */
};

static void get_health(struct http_call *call);
static void get_live(struct http_call *call);
static void get_metrics(struct http_call *call);
static void get_version(struct http_call *call);
static void get_slots(struct http_call *call);
static void get_openapi(struct http_call *call);
static void get_page(struct http_call *call);
static void post_answer(struct http_call *call);

static const struct route routes[] = {
    {"POST", "/v1/completions", .run = post_answer, .form = &completions_form, .engine = true, .slot = true,
     .tokens = true, .bare_path = true},
    {"POST", "/v1/chat/completions", .run = post_answer, .form = &chats_form, .engine = true, .slot = true,
     .tokens = true, .bare_path = true},
    {"POST", "/v1/responses", .run = post_answer, .form = &responses_form, .engine = true, .slot = true, .tokens = true,
     .bare_path = true},
    {"POST", "/v1/messages", .run = post_answer, .form = &messages_form, .engine = true, .slot = true, .tokens = true},
    {"POST", "/v1/messages/count_tokens", .job = text_routes_count_message, .engine = true, .tokens = true},
    {"POST", "/v1/responses/input_tokens", .job = text_routes_count_response, .files = true, .engine = true,
     .tokens = true, .bare_path = true},
    {"GET", "/v1/responses/", .tail = "", .run = response_routes_get, .engine = true, .bare_path = true},
    {"GET", "/v1/responses/", .tail = "/input_items", .run = response_routes_items, .engine = true, .bare_path = true},
    {"DELETE", "/v1/responses/", .tail = "", .job = response_routes_delete, .engine = true, .bare_path = true},
    {"GET", "/v1/sessions", .run = session_routes_list, .engine = true},
    {"POST", "/v1/sessions", .job = session_routes_create, .engine = true, .bare = true},
    {"GET", "/v1/sessions/", .tail = "", .run = session_routes_get, .engine = true, .deep = true},
    {"PATCH", "/v1/sessions/", .tail = "", .job = session_routes_change, .engine = true, .bare = true},
    {"DELETE", "/v1/sessions/", .tail = "", .run = session_routes_delete, .engine = true, .deep = true},
    {"POST", "/finish_session", .job = session_routes_finish, .engine = true},
    {"POST", "/v1/sessions/", .tail = "/fork", .job = session_routes_fork, .engine = true, .bare = true},
    {"POST", "/v1/sessions/", .tail = "/rewind", .job = session_routes_rewind, .engine = true},
    {"POST", "/v1/sessions/", .tail = "/ask", .run = post_answer, .form = &chats_form, .engine = true, .slot = true,
     .tokens = true},
    {"GET", "/v1/sessions/", .tail = "/state", .job = session_routes_export, .engine = true, .admin = true,
     .on_admin = true, .tenants = true, .state = true},
    {"PUT", "/v1/sessions/", .tail = "/state", .job = session_routes_import, .engine = true, .admin = true,
     .on_admin = true, .tenants = true, .state = true},
    {"GET", "/v1/prefixes", .job = prefix_routes_list, .engine = true, .admin = true, .tenants = true},
    {"PUT", "/v1/prefixes/", .tail = "", .job = prefix_routes_pin, .engine = true, .admin = true, .tenants = true,
     .any_name = true},
    {"GET", "/v1/prefixes/", .tail = "", .job = prefix_routes_get, .engine = true, .admin = true, .tenants = true,
     .any_name = true},
    {"DELETE", "/v1/prefixes/", .tail = "", .job = prefix_routes_unpin, .engine = true, .admin = true, .tenants = true,
     .any_name = true},
    {"GET", "/v1/models", .run = info_routes_models, .loaded = true, .bare_path = true, .by_client = true},
    {"GET", "/v1/models/", .run = info_routes_model, .loaded = true, .bare_path = true, .by_client = true},
    {"POST", "/tokenize", .job = text_routes_tokenize, .engine = true, .tokens = true},
    {"POST", "/detokenize", .job = text_routes_detokenize, .engine = true, .tokens = true},
    {"POST", "/apply-template", .job = text_routes_apply_template, .engine = true, .tokens = true},
    {"GET", "/health", .run = get_health, .open = true, .on_admin = true},
    {"GET", "/health/ready", .run = get_health, .open = true, .on_admin = true},
    {"GET", "/health/live", .run = get_live, .open = true, .on_admin = true},
    {"GET", "/metrics", .run = get_metrics, .admin = true, .on_admin = true},
    {"GET", "/tokenizer_info", .run = info_routes_tokenizer, .loaded = true},
    {"GET", "/server_info", .run = info_routes_server, .loaded = true},
    {"GET", "/get_server_info", .run = info_routes_server, .loaded = true},
    {"GET", "/model_info", .run = info_routes_model_facts, .loaded = true},
    {"GET", "/get_model_info", .run = info_routes_model_facts, .loaded = true},
    {"GET", "/version", .run = get_version, .on_admin = true},
    {"GET", "/slots", .run = get_slots, .loaded = true, .admin = true, .on_admin = true},
    {"GET", "/openapi.json", .run = get_openapi},
    {"GET", "/", .run = get_page, .open = true},
};
#define N_ROUTES ((unsigned)(sizeof routes / sizeof *routes))

static void post_answer(struct http_call *call) { completion_start(call, routes[call->route].form); }

/* ---- readiness ---- */

static uint64_t since_ns(uint64_t now, uint64_t then) { return then && now > then ? now - then : 0; }

/* No step has ended although work waits; or, seen from another thread, the loop does not turn. Work after an idle hour
 * has waited since it came, not for an hour. */
static uint64_t stalled_ns(const struct server *s, const struct rod_stats *stats) {
    const uint64_t busy = s->busy_since_ns, beat = s->beat_ns, now = uv_hrtime();
    const uint64_t since = stats->last_step_end_ns > busy ? stats->last_step_end_ns : busy;
    const uint64_t engine = stats->running || stats->queued ? since_ns(now, since) : 0, loop = since_ns(now, beat);
    return engine > loop ? engine : loop;
}

uint64_t routes_stalled_ns(const struct server *s) {
    struct rod_stats stats = {0};
    if (s->engine) rod_engine_stats(s->engine, &stats);
    return stalled_ns(s, &stats);
}

const char *routes_unready(const struct server *s) {
    if (s->failed) return "failed";
    if (s->leaving) return "draining";
    if (!s->engine) return "loading";
    struct rod_stats stats;
    rod_engine_stats(s->engine, &stats);
    if (stats.failed) return "failed";
    return stalled_ns(s, &stats) > s->config.stall_ms * 1000000 ? "stalled" : NULL;
}

bool routes_want_restart(const char *why) { return why && (!strcmp(why, "stalled") || !strcmp(why, "failed")); }

static bool store_is_down(struct rod_store *store) {
    struct rod_store_counts counts;
    rod_store_count(store, &counts);
    return counts.down;
}

/* A store that is down is told and no reason to send requests elsewhere: all servers of it have the same. */
static void put_health(struct http_call *call, const char *why) {
    struct buf body = {0};
    struct rod_store *const store = call->server->store;
    buf_addf(&body, "{\"status\":\"%s\"", why ? why : "ok");
    if (store) buf_addf(&body, ",\"store\":\"%s\"", store_is_down(store) ? "down" : "ok");
    buf_putc(&body, '}');
    http_call_respond(call, why ? 503 : 200, JSON, &body);
}

static void get_health(struct http_call *call) {
    const char *why = routes_unready(call->server);
    if (why) http_call_retry_after(call, 503, why, 0);
    put_health(call, why);
}

/* 503 for what a restart cures: loading and draining are no faults. */
static void get_live(struct http_call *call) {
    const char *why = routes_unready(call->server);
    put_health(call, routes_want_restart(why) ? why : NULL);
}

/* ---- the plain routes ---- */

static void get_metrics(struct http_call *call) {
    struct server *s = call->server;
    static_assert(N_ROUTES < METRICS_ROUTES, "each route has a series, and so have unknown paths");
    const char *names[METRICS_ROUTES];
    char whole[N_ROUTES][40];
    struct rod_stats stats = {0};
    struct buf body = {0};
    for (unsigned i = 0; i < N_ROUTES; i++) {
        const bool named = routes[i].tail && *routes[i].tail;
        snprintf(whole[i], sizeof whole[i], "%s%s%s", routes[i].path, named ? ":id" : "", named ? routes[i].tail : "");
        names[i] = whole[i];
    }
    names[N_ROUTES] = "other";
    struct rod_store_counts store = {0};
    struct rod_store *const open_store = s->store;
    if (open_store) rod_store_count(open_store, &store);
    const char *why = routes_unready(s);
    const struct metrics_view view = {.route_names = names,
                                      .n_routes = N_ROUTES + 1,
                                      .stats = s->engine ? &stats : NULL,
                                      .info = s->engine ? s->info : NULL,
                                      .store = &store,
                                      .model_name = s->model_name,
                                      .keys = &s->keys,
                                      .connections = http_connections(s->http),
                                      .connections_limit = http_connection_limit(s->http),
                                      .log_lines_dropped = s->log.n_dropped,
                                      .ready = !why,
                                      .stalled = why && !strcmp(why, "stalled")};
    if (s->engine) rod_engine_stats(s->engine, &stats);
    metrics_render(&s->metrics, &view, &body);
    http_call_respond(call, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static void get_version(struct http_call *call) {
    struct buf body = {0};
    buf_addf(&body, "{\"version\":\"%s\",\"commit\":\"%s\"}", version_string(), version_commit());
    http_call_respond(call, 200, JSON, &body);
}

static void get_slots(struct http_call *call) {
    struct rod_stats s;
    rod_engine_stats(call->server->engine, &s);
    struct buf body = {0};
    buf_pack(&body, "{s:i,s:i,s:i,s:i,s:i,s:I,s:I}", "slots", s.n_slots, "used", s.slots_used, "free",
             s.n_slots - s.slots_used, "running", s.running, "queued", s.queued, "queued_tokens", s.queued_tok,
             "session_bytes", call->server->info->session_bytes);
    http_call_respond(call, 200, JSON, &body);
}

static void get_openapi(struct http_call *call) {
    struct buf body = {0};
    buf_add(&body, openapi_json, openapi_json_len);
    http_call_respond(call, 200, JSON, &body);
}

/* The playground. It asks for a key where one is needed, and keeps the key in its own memory. */
static void get_page(struct http_call *call) {
    struct buf body = {0};
    buf_add(&body, page_html, page_html_len);
    http_add_header(call->http, "Content-Security-Policy", page_policy);
    http_add_header(call->http, "X-Content-Type-Options", "nosniff");
    http_add_header(call->http, "Referrer-Policy", "no-referrer");
    http_add_header(call->http, "Cache-Control", "no-cache");
    http_call_respond(call, 200, "text/html; charset=utf-8", &body);
}

/* ---- on the way to a route ---- */

/* The client's id if it is safe in a header and a log line, else a random one. */
static void choose_id(struct http_call *call) {
    static const char allowed[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._:-";
    const char *given = http_header(call->http, "X-Request-Id");
    size_t n = given ? strlen(given) : 0;
    if (n && n < sizeof call->id && strspn(given, allowed) == n) {
        memcpy(call->id, given, n + 1);
        return;
    }
    unsigned char random[16] = {0};
    getrandom(random, sizeof random, 0);
    for (size_t i = 0; i < sizeof random; i++) snprintf(call->id + 2 * i, 3, "%02x", random[i]);
}

static void choose_trace(struct http_call *call) {
    traceparent_read(http_only_header(call->http, "traceparent"), call->trace_id);
}

#define VERSION_PREFIX "/v1"

/* The route's path as the request has it: with or without /v1. */
static const char *path_of(const struct route *route, const char *path) {
    const size_t n = strlen(VERSION_PREFIX);
    return route->bare_path && strncmp(path, VERSION_PREFIX "/", n + 1) != 0 ? route->path + n : route->path;
}

/* The name is the rest of the path. */
static bool name_is_rest(const struct route *route, struct http_request *r) {
    const char *kind = route->deep ? http_query(r, "kind") : NULL;
    return !route->tail || (kind && !strcmp(kind, "conversation"));
}

static bool path_matches(const struct route *route, struct http_request *r) {
    const char *path = http_path(r), *own = path_of(route, path);
    const size_t n = strlen(own);
    if (own[n - 1] != '/' || n == 1) return !strcmp(path, own);
    if (strncmp(path, own, n) != 0 || !path[n]) return false;
    const size_t n_name = strcspn(path + n, "/");
    return name_is_rest(route, r) || (n_name && !strcmp(path + n + n_name, route->tail));
}

static void set_name(struct http_call *call) {
    const struct route *route = &routes[call->route];
    call->name = http_path(call->http) + strlen(path_of(route, http_path(call->http)));
    call->name_len = name_is_rest(route, call->http) ? strlen(call->name) : strcspn(call->name, "/");
}

static bool method_matches(const struct route *route, const char *method) {
    return !strcmp(method, route->method) || (!strcmp(method, "HEAD") && !strcmp(route->method, "GET"));
}

/* A path that is a route's own is no name below another: of /v1/responses/input_tokens there is no GET. */
static bool path_is_own(const char *path) {
    const size_t n = strlen(path);
    if (n > 1 && path[n - 1] == '/') return false;
    for (unsigned i = 0; i < N_ROUTES; i++)
        if (!strcmp(path, path_of(&routes[i], path))) return true;
    return false;
}

/* Whether the path is `own`, or below it. Of a request that is refused in its line a query may follow. */
static bool path_is_under(const char *path, const char *own) {
    const size_t n = strlen(own);
    return !strncmp(path, own, n) && (!path[n] || strchr("/?", path[n]));
}

/* What clients of OpenAI's API look for, and what is here in its place. NULL: nothing is known of the path. */
static const char *absent_why(const char *method, const char *path) {
    const size_t n = strlen(VERSION_PREFIX);
    if (!strncmp(path, VERSION_PREFIX "/", n + 1)) path += n;
    if (path_is_under(path, "/conversations")) return "conversations go on with previous_response_id";
    const bool compacts = !strcmp(path, "/responses/compact") && !strcmp(method, "POST");
    return compacts ? "the state of a conversation does not grow, so nothing is to be compacted" : NULL;
}

/* N_ROUTES after an answer of 404 or 405. */
static unsigned match_route(struct http_call *call) {
    const char *path = http_path(call->http), *method = http_method(call->http);
    char allow[64] = "";
    const char *why = absent_why(method, path);
    const bool own = path_is_own(path);
    if (why) {
        http_call_invalid(call, 404, "not_found", "", "There is no %s %.100s: %s.", method, path, why);
        return N_ROUTES;
    }
    for (unsigned i = 0; i < N_ROUTES; i++) {
        if (own ? strcmp(path, path_of(&routes[i], path)) != 0 : !path_matches(&routes[i], call->http)) continue;
        if (call->on_admin && !routes[i].on_admin) continue;
        if (method_matches(&routes[i], method)) return i;
        const size_t n = strlen(allow);
        snprintf(allow + n, sizeof allow - n, "%s%s", n ? ", " : "",
                 strcmp(routes[i].method, "GET") ? routes[i].method : "GET, HEAD");
    }
    if (*allow) {
        http_add_header(call->http, "Allow", allow);
        http_call_invalid(call, 405, "method_not_allowed", "", "%s is not allowed on %.100s: use %s.", method, path,
                          allow);
    } else {
        http_call_invalid(call, 404, "not_found", "", "There is no %s %.160s; GET /openapi.json lists the routes.",
                          method, path);
    }
    return N_ROUTES;
}

static bool refuse_type(struct http_call *call, const char *message) {
    http_call_invalid(call, 415, "unsupported_media_type", "", "%s", message);
    return false;
}

/* JSON, or no type at all. What a foreign page may send without the browser's question is refused, so that it cannot
 * use a server on the visitor's machine: the types of forms (text/plain, urlencoded), and none, which a body of plain
 * bytes has and a POST without a body. For a PUT the browser asks anyway. */
static bool body_acceptable(struct http_call *call) {
    const struct route *route = &routes[call->route];
    const char *type = http_header(call->http, "Content-Type");
    bool chunked = false;
    size_t declared = http_content_length(call->http, &chunked);
    if ((!type || !*type) && !strcmp(route->method, "POST") && access_foreign(call))
        return refuse_type(call, "A page of another origin must send the header Content-Type: application/json.");
    if (!chunked && !declared && !http_header(call->http, "Content-Length")) {
        if (route->bare) return true;
        http_call_invalid(call, 411, "length_required", "", "A body with a Content-Length is required.");
        return false;
    }
    const char *encoding = http_header(call->http, "Content-Encoding");
    if (encoding && strcasecmp(encoding, "identity") != 0) {
        http_call_invalid(call, 415, "unsupported_encoding", "",
                          "Content-Encoding is not supported: send the body as it is.");
        return false;
    }
    if (route->state) http_set_body_max(call->http, session_routes_state_max(call->server));
    if (!type || !*type) return true;
    size_t n = strcspn(type, "; \t");
    if (route->state)
        return (n == strlen(BYTES) && !strncasecmp(type, BYTES, n)) ||
               refuse_type(call, "A state is sent with the header Content-Type: " BYTES ".");
    if ((n == 16 && !strncasecmp(type, JSON, n)) || (n > 5 && !strncasecmp(type + n - 5, "+json", 5))) return true;
    return refuse_type(call, "The body must be JSON: send the header Content-Type: application/json.");
}

static bool is_loaded(struct http_call *call) {
    if (call->server->engine) return true;
    http_call_refuse(call, 503, "unavailable", "loading", "", "The model is still loading.");
    return false;
}

static bool taking_requests(struct http_call *call) {
    const struct server *s = call->server;
    if (!s->failed && !s->draining) return is_loaded(call);
    if (s->failed)
        http_call_refuse(call, 503, "unavailable", "device_fault", "",
                         "The device has failed; the server is restarting.");
    else
        http_call_refuse(call, 503, "unavailable", "draining", "", "The server is shutting down.");
    return false;
}

/* Before the body is read, so that a refusal costs next to nothing however many come. Where requests enter the queue
 * the engine counts again. */
static bool queue_has_room(struct http_call *call) {
    struct server *s = call->server;
    struct rod_stats stats;
    rod_engine_stats(s->engine, &stats);
    bool full = (uint64_t)stats.running + stats.queued >= (uint64_t)stats.n_slots + stats.queued_max;
    const uint64_t limit_tok = s->config.max_queue_tokens;
    full = full || (limit_tok && stats.queued_tok >= limit_tok);
    const struct key *key = call->key;
    if (!full && (!key || rod_queue_fits(s->engine, key->index, keys_queue_share(&s->keys, key)))) return true;
    s->metrics.refused_early++;
    http_call_refuse(call, 429, "rate_limit", "queue_full", "", "%s: %u requests run and %u wait.",
                     full ? "The queue is full" : "This key has its share of the queue", stats.running, stats.queued);
    return false;
}

/* Counts a call that the engine or the pool will work for. While the key has no token left, no body that needs some is
 * read. */
static bool key_has_room(struct http_call *call) {
    const struct route *route = &routes[call->route];
    struct api_error err;
    if (!call->key) return true;
    const uint64_t closed_s = route->tokens ? key_closed_s(call->key, uv_hrtime()) : 0;
    call->counted = !closed_s && key_begin(call->key);
    http_count_body(call->http, &call->key->body_bytes);
    if (call->counted) return true;
    if (closed_s) {
        access_key_spent(&err, call->key, closed_s);
    } else {
        access_key_busy(&err, call->key);
    }
    http_call_fail(call, &err);
    return false;
}

/* The form whose clients send this header. */
static const struct answer_form *form_of_client(struct http_request *r) {
    for (unsigned i = 0; i < N_ROUTES; i++) {
        const struct answer_form *form = routes[i].form;
        if (form && form->client_header && http_header(r, form->client_header)) return form;
    }
    return &chats_form;
}

static const struct answer_form *form_of(struct http_request *r) {
    const char *path = http_path(r);
    for (unsigned i = 0; i < N_ROUTES; i++) {
        if (!path_is_under(path, path_of(&routes[i], path))) continue;
        if (routes[i].form) return routes[i].form;
        if (routes[i].by_client) return form_of_client(r);
    }
    return &chats_form;
}

static struct http_call *new_http_call(struct server *s, struct http_request *r) {
    const bool on_admin = !server_on_loop(s); /* there are two */
    struct http_call *call = calloc(1, sizeof *call);
    if (!call) return NULL;
    *call = (struct http_call){.server = s, .http = r, .route = N_ROUTES, .on_admin = on_admin};
    call->loop = on_admin ? s->admin_loop : s->loop;
    assert(call->loop);
    http_set_user(r, call);
    choose_id(call);
    choose_trace(call);
    http_add_header(r, "X-Request-Id", call->id);
    call->form = form_of(r);
    if (call->form->id_header) http_add_header(r, call->form->id_header, call->id);
    if (!on_admin) access_cors(call);
    return call;
}

static bool takes_body(const struct route *route) {
    return strcmp(route->method, "GET") != 0 && strcmp(route->method, "DELETE") != 0;
}

static void begin_call(struct server *s, struct http_request *r) {
    struct http_call *call = new_http_call(s, r);
    if (!call) {
        http_abort(r);
        return;
    }
    if (!call->on_admin) s->beat_ns = http_started_ns(r); /* the loop turns, however long this callback takes */
    if (!call->on_admin && access_preflight(call)) return;
    call->route = match_route(call);
    if (call->route == N_ROUTES) return;
    set_name(call);
    const struct route *route = &routes[call->route];
    if (!route->open && !access_allowed(call, route->admin || call->on_admin)) return;
    if (route->tenants && !access_tenants(call)) return;
    if (route->state && !access_choose_tenant(call)) return;
    if (!takes_body(route)) http_drop_body(r, NO_BODY_MAX_BYTES);
    if (takes_body(route) && !body_acceptable(call)) return;
    if (route->engine && !taking_requests(call)) return;
    if (route->engine && key_has_room(call) && route->slot) queue_has_room(call);
}

static void on_headers(void *arg, struct http_request *r) {
    begin_call(arg, r);
    access_wipe_key(r);
}

static void key_has_share_of_bodies(struct http_call *call) {
    struct api_error err;
    api_error_set(&err, 429, "rate_limit", "key_bodies", "", "This key has its share of the room for request bodies.");
    err.retry_s = 1;
    call->key->rejected_total++;
    http_call_fail(call, &err);
}

/* The transport bounds the bodies that come in, this function those that are complete. One alone may be of any size. */
static bool pool_has_room(struct http_call *call) {
    const size_t bytes = http_body_bytes(call->http), others = call->server->pool.n_bytes;
    if (bytes <= SERVER_INLINE_BYTES || !others) return true;
    if (others + bytes > SERVER_POOL_BYTES) {
        http_call_refuse(call, 503, "unavailable", "overloaded", "", "Too many long requests wait to be read.");
        return false;
    }
    if (!call->key || quota_fits(call->key->queue.n_bytes, others, bytes, SERVER_POOL_BYTES)) return true;
    key_has_share_of_bodies(call);
    return false;
}

static void start_job(struct http_call *call, const struct route *route) {
    if (route->tokens) {
        job_start_text(call, route->job, route->files);
        return;
    }
    struct job *j =
        route->tail ? job_new_named(call, route->job, route->any_name) : job_new(call->server, call, route->job);
    if (j) job_start(j, true);
}

static void on_request(void *arg, struct http_request *r) {
    struct http_call *call = http_user(r);
    (void)arg;
    if (!call) return;
    assert(call->route < N_ROUTES); /* a call without a route was answered at its headers */
    const struct route *route = &routes[call->route];
    if (!pool_has_room(call)) return;
    if (route->engine && !taking_requests(call)) return; /* a drain may have begun while the body came in */
    if (route->loaded && !is_loaded(call)) return;
    if (route->job)
        start_job(call, route);
    else
        route->run(call);
}

static void on_gone(void *arg, struct http_request *r) {
    struct http_call *call = http_user(r);
    (void)arg;
    if (!call) return;
    if (call->completion) completion_gone(call->completion);
    if (call->job) job_gone(call->job);
    call->job = NULL;
}

static void log_access(struct http_call *call, unsigned status) {
    char peer[64];
    enum { OF_CALLS = 10 };
    struct log_field fields[OF_CALLS + COMPLETION_LOG_FIELDS];
    int n = 0;
    http_peer(call->http, peer, sizeof peer);
    fields[n++] = log_words("id", call->id);
    if (*call->trace_id) fields[n++] = log_words("trace_id", call->trace_id);
    fields[n++] = log_words("peer", peer);
    if (call->key) fields[n++] = log_words("key", call->key->name);
    fields[n++] = log_words("method", http_method(call->http));
    fields[n++] = log_words("path", http_path(call->http));
    fields[n++] = log_number("status", status);
    fields[n++] = log_words("outcome", call->outcome ? call->outcome : http_left(call->http) ? "client_left" : "ok");
    fields[n++] = log_number("ms", (double)((uv_hrtime() - http_started_ns(call->http)) / 10000) / 100);
    fields[n++] = log_number("bytes", (double)http_sent_bytes(call->http));
    assert(n <= OF_CALLS);
    if (call->completion) n += completion_log_fields(call->completion, fields + n);
    /* Probes and scrapes come every few seconds: their lines are of level debug. */
    bool probe =
        call->route < N_ROUTES && status == 200 && (routes[call->route].open || routes[call->route].run == get_metrics);
    log_line(&call->server->log, probe ? LOG_DEBUG : LOG_INFO, "request", fields, n);
}

/* Routes of one path are one series of the counter. */
static unsigned series_of(unsigned route) {
    for (unsigned i = 0; i < route && route < N_ROUTES; i++) {
        const char *tail = routes[i].tail ? routes[i].tail : "", *own = routes[route].tail ? routes[route].tail : "";
        if (!strcmp(routes[i].path, routes[route].path) && !strcmp(tail, own)) return i;
    }
    return route;
}

static void on_done(void *arg, struct http_request *r) {
    struct server *s = arg;
    struct http_call *call = http_user(r);
    if (!call) return;
    unsigned status = http_left(r) ? 499 : http_status(r);
    log_access(call, status);
    metrics_request(&s->metrics, series_of(call->route), status);
    assert(!call->completion || !call->job);
    assert(!call->counted || call->key);
    if (call->completion) completion_done(call->completion);
    if (call->job) job_gone(call->job);
    if (call->counted) key_end(call->key, 1);
    if (call->key) key_drop(&s->keys, call->key);
    free(call);
}

static void on_refuse(void *arg, struct http_request *r, unsigned status, const char *code, const char *message) {
    struct http_call *call = http_user(r);
    access_wipe_key(r);
    if (!call) call = new_http_call(arg, r);
    if (!call) return;
    if (status == 413) {
        const bool none = call->route < N_ROUTES && !takes_body(&routes[call->route]);
        http_call_invalid(call, status, code, "", "The body is larger than %zu bytes%s.", http_body_max(r),
                          none ? ", and this route takes none" : "");
    } else if (status == 503) {
        http_call_refuse(call, status, "unavailable", code, "", "Too many request bodies are arriving at once.");
    } else if (status == 429) {
        key_has_share_of_bodies(call);
    } else {
        http_call_invalid(call, status, code, "", "%c%s.", toupper((unsigned char)*message), message + 1);
    }
}

static void on_log(void *arg, const char *line) {
    struct server *s = arg;
    log_text(&s->log, LOG_DEBUG, "http: %s", line);
}

/* Which flags of a route go together. */
static void check_table(void) {
    for (unsigned i = 0; i < N_ROUTES; i++) {
        const struct route *r = &routes[i];
        assert(!r->run != !r->job && *r->path == '/');
        assert(!r->bare_path || !strncmp(r->path, VERSION_PREFIX "/", strlen(VERSION_PREFIX "/")));
        assert(!r->tail || r->path[strlen(r->path) - 1] == '/'); /* a name stands before a tail */
        assert(!r->slot || (r->engine && r->tokens && !r->open && !r->on_admin));
        assert(!r->tokens || r->engine);
        assert(!r->files || (r->job && r->tokens));
        assert(!r->any_name || (r->job && r->tail));
        assert(!r->bare || takes_body(r));
        assert((r->run == post_answer) == (r->form != NULL) && !(r->form && r->by_client));
        assert(!r->open || (!r->admin && !r->engine)); /* without a key nothing runs */
        assert(!r->tenants || r->admin);
        assert(!r->state || (r->tenants && r->engine && r->on_admin));
    }
}

struct http_handlers routes_handlers(struct server *s) {
    check_table();
    return (struct http_handlers){s, on_headers, on_request, on_gone, on_done, on_refuse, on_log};
}
