/* response_routes.c - see response_routes.h. */
#include "response_routes.h"
#include "completion_internal.h"
#include "engine/base/fail.h"
#include "job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct rod_chat chat_of(const struct openai_request *q) {
    return (struct rod_chat){.messages = q->messages,
                             .n_messages = q->n_messages,
                             .tools = (const char *const *)q->tools.lines,
                             .n_tools = q->tools.n,
                             .generation = q->end.generation};
}

/* Of the whole conversation, as usage has it when the request is answered. */
static int count_turn(const struct job *j, const struct openai_request *q, uint64_t *n, struct rod_error *err) {
    const struct rod_engine *e = j->server->engine;
    const struct rod_chat chat = chat_of(q);
    struct rod_session_info before;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int rc = rod_session_get(j->server->engine, j->tenant, q->response.previous, &before, err);
    if (rc == ROD_ENOTFOUND) snprintf(err->param, sizeof err->param, "previous_response_id");
    struct rod_turn *turn = rc ? NULL : calloc(1, sizeof *turn);
    if (!rc && !turn) rc = rod_fail_no_memory(err);
    if (!rc) rc = rod_chat_encode_turn(e, &chat, turn, &ids, &n_ids, err);
    if (!rc) *n = rod_turn_tokens(turn, &before, n_ids);
    completion_session_free(turn);
    free(ids);
    return rc;
}

static int count_alone(const struct job *j, const struct openai_request *q, uint64_t *n, struct rod_error *err) {
    const struct rod_chat chat = chat_of(q);
    int32_t *ids = NULL;
    size_t n_ids = 0;
    const int rc = rod_chat_encode(j->server->engine, &chat, &ids, &n_ids, err);
    *n = n_ids;
    free(ids);
    return rc;
}

static void run_count(struct job *j) {
    struct openai_request q;
    struct rod_error rod = {0};
    uint64_t n = 0;
    j->failed =
        openai_parse(OPENAI_RESPONSE, j->body ? j->body : "", j->body_len, &j->server->defaults, &q, &j->err) != 0;
    if (j->failed) return;
    if (q.response.previous ? count_turn(j, &q, &n, &rod) : count_alone(j, &q, &n, &rod)) {
        if (!strncmp(rod.param, "messages", 8)) snprintf(rod.param, sizeof rod.param, "input");
        job_fail(j, &rod);
        if (rod.code == ROD_ENOTFOUND) j->err.code = "previous_response_not_found";
    } else {
        buf_addf(&j->out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%llu}", (unsigned long long)n);
        j->n_tok = n;
    }
    openai_request_fini(&q);
}

void response_routes_count(struct http_call *call) { job_start_text(call, run_count, true); }
