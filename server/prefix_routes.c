/* prefix_routes.c - see side_routes.h. */
#include "side_routes.h"
#include "server/api/api_routes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *info_json(const struct rod_prefix_info *i) {
    return json_pack("{s:s,s:s,s:I,s:I,s:I,s:I,s:b}", "object", "prefix", "id", i->id, "tokens", i->n_tok,
                     "state_bytes", i->state_bytes, "created_at", i->created_unix_s, "used", i->n_used, "durable",
                     i->durable);
}

static int show(struct job *j, int rc, const struct rod_prefix_info *info) {
    if (!rc) buf_pack(&j->out, "o", info_json(info));
    return rc;
}

/* Its client has left, or the drain is over. */
static bool pin_is_unwanted(void *arg) {
    const struct job *j = arg;
    return j->left || j->server->cut;
}

/* The body is that of /tokenize: prompt, or messages with their tools. The prompt of a chat goes on behind its
 * messages, so the prefix has no role of an answer. */
int prefix_routes_pin(struct job *j, struct rod_error *err) {
    const struct server *s = j->server;
    struct api_tokenize t;
    struct rod_prefix_info info;
    int32_t *ids = NULL;
    size_t n = 0;
    if (api_parse_tokenize(j->body, j->body_len, &s->defaults, &t, &j->err)) return JOB_REFUSED;
    const struct rod_chat chat = {.messages = t.messages,
                                  .n_messages = t.n_messages,
                                  .tools = (const char *const *)t.tools.lines,
                                  .n_tools = t.tools.n_head};
    int rc = t.n_messages ? rod_chat_encode(s->engine, &chat, &ids, &n, err)
                          : rod_tokenize(s->engine, t.text, t.len, t.parse_special, t.add_special, &ids, &n, err);
    const struct rod_prefix_new wanted = {.id = j->name, .ids = ids, .n_ids = n, .stopped = pin_is_unwanted, .arg = j};
    if (!rc) rc = rod_prefix_pin(s->engine, &wanted, &info, err);
    if (t.n_messages && !strcmp(err->param, "prompt")) snprintf(err->param, sizeof err->param, "messages");
    free(ids);
    api_tokenize_fini(&t);
    return show(j, rc, &info);
}

int prefix_routes_get(struct job *j, struct rod_error *err) {
    struct rod_prefix_info info;
    return show(j, rod_prefix_get(j->server->engine, j->name, &info, err), &info);
}

int prefix_routes_list(struct job *j, struct rod_error *err) {
    struct rod_prefix_info *infos = NULL;
    size_t n = 0;
    const int rc = rod_prefix_list(j->server->engine, &infos, &n, err);
    if (rc) return rc;
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(list, info_json(&infos[i]))) j->out.failed = true;
    buf_pack(&j->out, "{s:s,s:o}", "object", "list", "data", list);
    free(infos);
    return 0;
}

int prefix_routes_unpin(struct job *j, struct rod_error *err) {
    const int rc = rod_prefix_unpin(j->server->engine, j->name, err);
    if (!rc) api_render_deleted(&j->out, "prefix", j->name);
    return rc;
}
