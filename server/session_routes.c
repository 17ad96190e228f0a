/* session_routes.c - the routes of sessions and of their states, all on the pool, as they may wait for files. */
#include "server/call/job.h"
#include "server/api/api_routes.h"
#include "session_routes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_DEFAULT = 100, LIST_MAX = 1000 };
/* Beside the slot's bytes a file has a header, with the last answer if its request had an idempotency key. */
#define STATE_FILE_MORE_BYTES ((size_t)32 << 20)

static bool check_result(struct job *j, int rc, const struct rod_error *rod) {
    if (rc) job_fail(j, rod);
    return !rc;
}

static void answer_info(struct job *j, int rc, const struct rod_session_info *info, const struct rod_error *rod) {
    if (check_result(j, rc, rod)) api_render_session(&j->out, info);
}

/* ---- on the pool ---- */

static void run_create(struct job *j) {
    struct api_session_new asked;
    struct rod_session_info info;
    struct rod_error rod = {0};
    j->failed = api_parse_session_new(j->body, j->body_len, false, &asked, &j->err) != 0;
    if (j->failed) return;
    const struct rod_session_new what = {.id = asked.id,
                                         .from = asked.from,
                                         .ttl_s = asked.ttl_s,
                                         .has_ttl = asked.has_ttl,
                                         .pin = asked.pin,
                                         .max_sessions = j->max_sessions};
    answer_info(j, rod_session_create(j->server->engine, j->tenant, &what, &info, &rod), &info, &rod);
    api_session_new_fini(&asked);
}

static void run_fork(struct job *j) {
    struct api_session_new asked;
    struct rod_session_info info;
    struct rod_error rod = {0};
    j->failed = api_parse_session_new(j->body, j->body_len, true, &asked, &j->err) != 0;
    if (j->failed) return;
    const struct rod_session_new what = {.id = asked.id, .from = j->name, .max_sessions = j->max_sessions};
    const int rc = rod_session_create(j->server->engine, j->tenant, &what, &info, &rod);
    if (!strcmp(rod.param, "from")) rod.param[0] = 0; /* here the name is in the path, and no field */
    answer_info(j, rc, &info, &rod);
    api_session_new_fini(&asked);
}

static void run_get(struct job *j) {
    struct rod_session_info info;
    struct rod_error rod = {0};
    answer_info(j, rod_session_get(j->server->engine, j->tenant, j->name, &info, &rod), &info, &rod);
}

static void run_change(struct job *j) {
    struct rod_session_change asked;
    struct rod_session_info info;
    struct rod_error rod = {0};
    j->failed = api_parse_session_change(j->body, j->body_len, &asked, &j->err) != 0;
    if (j->failed) return;
    answer_info(j, rod_session_change(j->server->engine, j->tenant, j->name, &asked, &info, &rod), &info, &rod);
}

static void run_list(struct job *j) {
    struct rod_session_info *infos = NULL;
    struct rod_error rod = {0};
    size_t n = 0;
    bool more = false;
    assert(j->limit && j->limit <= LIST_MAX);
    int rc =
        rod_session_list(j->server->engine, j->tenant, *j->after ? j->after : NULL, j->limit, &infos, &n, &more, &rod);
    if (check_result(j, rc, &rod)) api_render_sessions(&j->out, infos, n, more);
    free(infos);
}

static void run_delete(struct job *j) {
    struct rod_error rod = {0};
    int rc = rod_session_delete(j->server->engine, j->tenant, j->name, &rod);
    if (check_result(j, rc, &rod)) api_render_deleted(&j->out, "session", j->name);
}

static void run_delete_response(struct job *j) {
    struct rod_error rod = {0};
    int rc = rod_session_delete(j->server->engine, j->tenant, j->name, &rod);
    if (rc == ROD_ENOTFOUND) snprintf(rod.message, sizeof rod.message, "There is no response %s.", j->name);
    if (check_result(j, rc, &rod)) api_render_deleted(&j->out, "response", j->name);
}

static void run_export(struct job *j) {
    struct rod_error rod = {0};
    void *bytes = NULL;
    size_t n = 0;
    if (!check_result(j, rod_session_export(j->server->engine, j->tenant, j->name, &bytes, &n, &rod), &rod)) return;
    assert(bytes && n);
    char *grown = realloc(bytes, n + 1); /* the NUL of a taken buffer; a large copy, which the loop must not make */
    j->out = (struct buf){.data = grown ? grown : bytes, .len = n, .cap = n + 1, .failed = !grown};
    j->type = "application/octet-stream";
}

static void run_import(struct job *j) {
    struct rod_session_info info;
    struct rod_error rod = {0};
    int rc =
        rod_session_import(j->server->engine, j->tenant, j->name, j->body ? j->body : "", j->body_len, &info, &rod);
    answer_info(j, rc, &info, &rod);
}

/* ---- on the loop ---- */

static struct job *new_job(struct http_call *call, void (*run)(struct job *j)) {
    struct job *j = job_new(call->server, call, run);
    if (!j) return NULL;
    snprintf(j->tenant, sizeof j->tenant, "%s", call->tenant);
    j->max_sessions = call->key ? call->key->max_sessions : 0;
    return j;
}

struct job *session_routes_job(struct http_call *call, void (*run)(struct job *j)) {
    char name[API_SESSION_ID_MAX + 1];
    if (!http_call_name(call, name, sizeof name) || !api_session_id(name)) {
        http_call_invalid(call, 400, "", "id", "id must be 1 to %d characters of A-Z, a-z, 0-9, '.', '_' and '-'.",
                          API_SESSION_ID_MAX);
        return NULL;
    }
    struct job *j = new_job(call, run);
    if (j) memcpy(j->name, name, sizeof name);
    return j;
}

static void start_named(struct http_call *call, void (*run)(struct job *j)) {
    struct job *j = session_routes_job(call, run);
    if (j) job_start(j, true);
}

void session_routes_create(struct http_call *call) {
    struct job *j = new_job(call, run_create);
    if (j) job_start(j, true);
}

void session_routes_list(struct http_call *call) {
    const char *after = http_query(call->http, "after");
    size_t n = LIST_DEFAULT;
    if (!http_call_limit(call, LIST_MAX, &n)) return;
    if (after && !api_session_id(after)) {
        http_call_invalid(call, 400, "", "after", "after must be the id of a session.");
        return;
    }
    struct job *j = new_job(call, run_list);
    if (!j) return;
    j->limit = n;
    snprintf(j->after, sizeof j->after, "%s", after ? after : "");
    job_start(j, true);
}

void session_routes_get(struct http_call *call) { start_named(call, run_get); }
void session_routes_change(struct http_call *call) { start_named(call, run_change); }
void session_routes_delete(struct http_call *call) { start_named(call, run_delete); }
void session_routes_delete_response(struct http_call *call) { start_named(call, run_delete_response); }
void session_routes_fork(struct http_call *call) { start_named(call, run_fork); }
void session_routes_export(struct http_call *call) { start_named(call, run_export); }
void session_routes_import(struct http_call *call) { start_named(call, run_import); }

size_t session_routes_state_max(const struct server *s) {
    return s->info ? (size_t)s->info->session_bytes + STATE_FILE_MORE_BYTES : STATE_FILE_MORE_BYTES;
}
