/* prefix_routes.c - see prefix_routes.h. */
#include "prefix_routes.h"
#include "server/api/api_routes.h"
#include "server/call/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_info(struct buf *out, const struct rod_prefix_info *info) {
    buf_puts(out, "{\"object\":\"prefix\",\"id\":");
    buf_json(out, info->id, strlen(info->id));
    buf_addf(out, ",\"tokens\":%llu,\"state_bytes\":%llu,\"created_at\":%lld,\"used\":%llu,\"durable\":%s}",
             (unsigned long long)info->n_tok, (unsigned long long)info->state_bytes, (long long)info->created_unix_s,
             (unsigned long long)info->n_used, info->durable ? "true" : "false");
}

static void answer_info(struct job *j, int rc, const struct rod_prefix_info *info, const struct rod_error *rod) {
    if (rc)
        job_fail(j, rod);
    else
        put_info(&j->out, info);
}

/* Its client has left, or the drain is over. */
static bool pin_is_unwanted(void *arg) {
    const struct job *j = arg;
    return j->left || j->server->cut;
}

/* The body is that of /tokenize: prompt, or messages with their tools. The prompt of a chat goes on behind its
 * messages, so the prefix has no role of an answer. */
static void run_pin(struct job *j) {
    const struct server *s = j->server;
    struct api_tokenize t;
    struct rod_prefix_info info;
    struct rod_error rod = {0};
    int32_t *ids = NULL;
    size_t n = 0;
    j->failed = api_parse_tokenize(j->body, j->body_len, &s->defaults, &t, &j->err) != 0;
    if (j->failed) return;
    const struct rod_chat chat = {.messages = t.messages,
                                  .n_messages = t.n_messages,
                                  .tools = (const char *const *)t.tools.lines,
                                  .n_tools = t.tools.n};
    int rc = t.n_messages ? rod_chat_encode(s->engine, &chat, &ids, &n, &rod)
                          : rod_tokenize(s->engine, t.text, t.len, t.parse_special, t.add_special, &ids, &n, &rod);
    const struct rod_prefix_new wanted = {.id = j->name, .ids = ids, .n_ids = n, .stopped = pin_is_unwanted, .arg = j};
    if (!rc) rc = rod_prefix_pin(s->engine, &wanted, &info, &rod);
    if (t.n_messages && !strcmp(rod.param, "prompt")) snprintf(rod.param, sizeof rod.param, "messages");
    answer_info(j, rc, &info, &rod);
    free(ids);
    api_tokenize_fini(&t);
}

static void run_get(struct job *j) {
    struct rod_prefix_info info;
    struct rod_error rod = {0};
    answer_info(j, rod_prefix_get(j->server->engine, j->name, &info, &rod), &info, &rod);
}

static void run_list(struct job *j) {
    struct rod_prefix_info *infos = NULL;
    struct rod_error rod = {0};
    size_t n = 0;
    if (rod_prefix_list(j->server->engine, &infos, &n, &rod)) {
        job_fail(j, &rod);
        return;
    }
    buf_puts(&j->out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < n; i++) {
        if (i) buf_putc(&j->out, ',');
        put_info(&j->out, &infos[i]);
    }
    buf_puts(&j->out, "]}");
    free(infos);
}

static void run_unpin(struct job *j) {
    struct rod_error rod = {0};
    if (rod_prefix_unpin(j->server->engine, j->name, &rod))
        job_fail(j, &rod);
    else
        api_render_deleted(&j->out, "prefix", j->name);
}

/* name: "" or the path's, which the engine checks. */
static void start(struct http_call *call, void (*run)(struct job *j), const char *name) {
    struct job *j = job_new(call->server, call, run);
    if (!j) return;
    snprintf(j->name, sizeof j->name, "%s", name);
    job_start(j, true);
}

static void start_named(struct http_call *call, void (*run)(struct job *j)) {
    char name[API_SESSION_ID_MAX + 1];
    if (http_call_name(call, name, sizeof name))
        start(call, run, name);
    else
        http_call_invalid(call, 400, "", "id", "id must be 1 to %d characters of A-Z, a-z, 0-9, '.', '_' and '-'.",
                          API_SESSION_ID_MAX);
}

void prefix_routes_pin(struct http_call *call) { start_named(call, run_pin); }
void prefix_routes_get(struct http_call *call) { start_named(call, run_get); }
void prefix_routes_list(struct http_call *call) { start(call, run_list, ""); }
void prefix_routes_unpin(struct http_call *call) { start_named(call, run_unpin); }
