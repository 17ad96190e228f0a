/* session_routes.c - the routes of sessions and of their states, all on the pool, as they may wait for files. */
#include "server/api/api_routes.h"
#include "side_routes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_DEFAULT = 100, LIST_MAX = 1000 };
/* Beside the slot's bytes a file has a header, with the last answer if its request had an idempotency key. */
#define STATE_FILE_MORE_BYTES ((size_t)32 << 20)

static int show(struct job *j, int rc, const struct rod_session_info *info) {
    if (!rc) api_render_session(&j->out, info);
    return rc;
}

static int create(struct job *j, bool fork, struct rod_error *err) {
    struct api_session_new asked;
    struct rod_session_info info;
    if (api_parse_session_new(j->body, j->body_len, fork, &asked, &j->err)) return JOB_REFUSED;
    const struct rod_session_new what = {.id = asked.id,
                                         .from = fork ? j->name : asked.from,
                                         .ttl_s = asked.ttl_s,
                                         .has_ttl = asked.has_ttl,
                                         .pin = asked.pin,
                                         .has_keep = asked.has_keep,
                                         .keep_turns = asked.keep_turns,
                                         .max_sessions = j->max_sessions};
    const int rc = rod_session_create(j->server->engine, j->tenant, &what, &info, err);
    api_session_new_fini(&asked);
    return show(j, rc, &info);
}

int session_routes_create(struct job *j, struct rod_error *err) { return create(j, false, err); }

int session_routes_fork(struct job *j, struct rod_error *err) {
    const int rc = create(j, true, err);
    if (!strcmp(err->param, "from")) err->param[0] = 0; /* here the name is in the path, and no field */
    return rc;
}

static int run_get(struct job *j, struct rod_error *err) {
    struct rod_session_info info;
    return show(j, rod_session_get(j->server->engine, j->tenant, j->name, &info, err), &info);
}

int session_routes_change(struct job *j, struct rod_error *err) {
    struct rod_session_change asked;
    struct rod_session_info info;
    if (api_parse_session_change(j->body, j->body_len, &asked, &j->err)) return JOB_REFUSED;
    return show(j, rod_session_change(j->server->engine, j->tenant, j->name, &asked, &info, err), &info);
}

int session_routes_rewind(struct job *j, struct rod_error *err) {
    struct rod_session_rewind asked;
    struct rod_session_info info;
    if (api_parse_session_rewind(j->body, j->body_len, &asked, &j->err)) return JOB_REFUSED;
    return show(j, rod_session_rewind(j->server->engine, j->tenant, j->name, &asked, &info, err), &info);
}

static int run_list(struct job *j, struct rod_error *err) {
    struct rod_session_info *infos = NULL;
    size_t n = 0;
    bool more = false;
    const char *after = *j->page.after ? j->page.after : NULL;
    assert(j->page.limit && j->page.limit <= LIST_MAX);
    const int rc = rod_session_list(j->server->engine, j->tenant, after, j->page.limit, &infos, &n, &more, err);
    if (!rc) api_render_sessions(&j->out, infos, n, more);
    free(infos);
    return rc;
}

static int run_list_conversations(struct job *j, struct rod_error *err) {
    struct rod_conversation_info *infos = NULL;
    size_t n = 0;
    bool more = false;
    const char *after = *j->page.after ? j->page.after : NULL;
    const int rc = rod_conversation_list(j->server->engine, j->tenant, after, j->page.limit, &infos, &n, &more, err);
    if (!rc) api_render_conversations(&j->out, infos, n, more);
    free(infos);
    return rc;
}

static int run_get_conversation(struct job *j, struct rod_error *err) {
    struct rod_conversation_info info;
    const int rc = rod_conversation_get(j->server->engine, j->tenant, j->name, &info, err);
    if (!rc) api_render_conversation(&j->out, &info);
    return rc;
}

static int run_delete_conversation(struct job *j, struct rod_error *err) {
    const int rc = rod_conversation_delete(j->server->engine, j->tenant, j->name, err);
    if (!rc) api_render_deleted(&j->out, "conversation", j->name);
    return rc;
}

int session_routes_finish(struct job *j, struct rod_error *err) {
    if (api_parse_finish(j->body, j->body_len, j->name, &j->err)) return JOB_REFUSED;
    return run_delete_conversation(j, err);
}

/* Of the query's kind: sessions, or conversations. False after a 400. */
static bool take_kind(struct http_call *call, bool *conversations) {
    const char *kind = http_query(call->http, "kind");
    *conversations = kind && !strcmp(kind, "conversation");
    if (!kind || *conversations || !strcmp(kind, "session")) return true;
    http_call_invalid(call, 400, "", "kind", "kind must be session or conversation.");
    return false;
}

void session_routes_list(struct http_call *call) {
    struct job_page page = {.limit = LIST_DEFAULT};
    bool conversations;
    if (!take_kind(call, &conversations)) return;
    const bool ok = conversations ? job_take_conversations(call, LIST_MAX, &page)
                                  : job_take_page(call, LIST_MAX, "a session", &page);
    struct job *j = ok ? job_new(call->server, call, conversations ? run_list_conversations : run_list) : NULL;
    if (!j) return;
    j->page = page;
    job_start(j, true);
}

static void start_named(struct http_call *call, int (*of_session)(struct job *j, struct rod_error *err),
                        int (*of_conversation)(struct job *j, struct rod_error *err)) {
    bool conversation;
    if (!take_kind(call, &conversation)) return;
    struct job *j = conversation ? job_new_conversation(call, of_conversation) : job_new_named(call, of_session, false);
    if (j) job_start(j, true);
}

void session_routes_get(struct http_call *call) { start_named(call, run_get, run_get_conversation); }

static int run_delete(struct job *j, struct rod_error *err) {
    const int rc = rod_session_delete(j->server->engine, j->tenant, j->name, err);
    if (!rc) api_render_deleted(&j->out, "session", j->name);
    return rc;
}

void session_routes_delete(struct http_call *call) { start_named(call, run_delete, run_delete_conversation); }

int session_routes_export(struct job *j, struct rod_error *err) {
    void *bytes = NULL;
    size_t n = 0;
    const int rc = rod_session_export(j->server->engine, j->tenant, j->name, &bytes, &n, err);
    if (rc) return rc;
    assert(bytes && n);
    char *grown = realloc(bytes, n + 1); /* the NUL of a taken buffer; a large copy, which the loop must not make */
    j->out = (struct buf){.data = grown ? grown : bytes, .len = n, .cap = n + 1, .failed = !grown};
    j->type = "application/octet-stream";
    return 0;
}

int session_routes_import(struct job *j, struct rod_error *err) {
    struct rod_session_info info;
    const char *body = j->body ? j->body : "";
    return show(j, rod_session_import(j->server->engine, j->tenant, j->name, body, j->body_len, &info, err), &info);
}

size_t session_routes_state_max(const struct server *s) {
    return s->info ? (size_t)s->info->session_bytes + STATE_FILE_MORE_BYTES : STATE_FILE_MORE_BYTES;
}
