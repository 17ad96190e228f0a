/* response_routes.c - see response_routes.h. */
#include "response_routes.h"
#include "server/api/responses/responses.h"
#include "server/completion/completion.h"
#include "engine/base/fail.h"
#include "server/call/job.h"
#include "session_routes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS_DEFAULT = 20, ITEMS_MAX = 100 };

static struct rod_chat chat_of(const struct api_request *q) {
    return (struct rod_chat){.messages = q->messages,
                             .n_messages = q->n_messages,
                             .tools = (const char *const *)q->tools.lines,
                             .n_tools = q->tools.n,
                             .generation = q->end.generation};
}

/* Of the whole conversation, as usage has it when the request is answered. */
static int count_turn(const struct job *j, const struct api_request *q, uint64_t *n, struct rod_error *err) {
    const struct rod_engine *e = j->server->engine;
    const struct rod_chat chat = chat_of(q);
    struct rod_session_info before;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    int rc = rod_session_get(j->server->engine, j->tenant, q->session.from, &before, err);
    if (rc == ROD_ENOTFOUND) snprintf(err->param, sizeof err->param, "previous_response_id");
    struct rod_turn *turn = rc ? NULL : calloc(1, sizeof *turn);
    if (!rc && !turn) rc = rod_fail_no_memory(err);
    if (!rc) rc = rod_chat_encode_turn(e, &chat, turn, &ids, &n_ids, err);
    if (!rc) *n = rod_turn_tokens(turn, &before, n_ids);
    completion_session_free(turn);
    free(ids);
    return rc;
}

static int count_alone(const struct job *j, const struct api_request *q, uint64_t *n, struct rod_error *err) {
    const struct rod_chat chat = chat_of(q);
    int32_t *ids = NULL;
    size_t n_ids = 0;
    const int rc = rod_chat_encode(j->server->engine, &chat, &ids, &n_ids, err);
    *n = n_ids;
    free(ids);
    return rc;
}

static void run_count(struct job *j) {
    struct api_request q;
    struct rod_error rod = {0};
    uint64_t n = 0;
    j->failed = responses_parse(j->body ? j->body : "", j->body_len, &j->server->defaults, &q, &j->err) != 0;
    if (j->failed) return;
    if (q.session.from ? count_turn(j, &q, &n, &rod) : count_alone(j, &q, &n, &rod)) {
        if (!strncmp(rod.param, "messages", 8)) snprintf(rod.param, sizeof rod.param, "input");
        job_fail(j, &rod);
        if (rod.code == ROD_ENOTFOUND) j->err.code = "previous_response_not_found";
    } else {
        buf_addf(&j->out, "{\"object\":\"response.input_tokens\",\"input_tokens\":%llu}", (unsigned long long)n);
        j->n_tok = n;
    }
    api_request_fini(&q);
}

void response_routes_count(struct http_call *call) { job_start_text(call, run_count, true); }

/* ---- a response that is kept ---- */

static void fail_not_kept(struct job *j, const char *why) {
    j->failed = true;
    api_error_set(&j->err, 404, API_INVALID, "response_not_stored", "", "The texts of %s are not kept: %s.", j->name,
                  why);
}

/* Its label begins with the response's id. */
static bool is_of(const struct rod_answer *a, const char *id) {
    const size_t n = strlen(id);
    return !strncmp(a->label, id, n) && a->label[n] == ' ';
}

/* The session's first answer is the response's. False: the job has failed. */
static bool take_kept(struct job *j, struct rod_answer *a, struct responses_kept *kept) {
    struct rod_error rod = {0};
    *a = (struct rod_answer){0};
    *kept = (struct responses_kept){0};
    if (rod_session_answer(j->server->engine, j->tenant, j->name, a, &rod)) {
        if (rod.code == ROD_ENOTFOUND) snprintf(rod.message, sizeof rod.message, "There is no response %s.", j->name);
        job_fail(j, &rod);
    } else if (!a->label || !is_of(a, j->name)) {
        fail_not_kept(j, "its answer was too long, later turns of its session have taken its place, or it was not made "
                         "by POST /v1/responses of this version");
    } else if (!a->text) {
        static_assert(ROD_MAX_TURN_TEXT == 1 << 20, "the message says so");
        fail_not_kept(j, "those of its request have more than 1 MiB, or are of a version that kept none");
    } else {
        j->failed = responses_parse_kept(a->text, a->n_text, kept, &j->err) != 0;
    }
    return !j->failed;
}

/* A chat format without calls has replaced the one of then: what they were is text. */
static void tell_again(struct answer *a, struct api_request *q, const struct rod_engine *engine,
                       const struct rod_answer *from, struct buf *out) {
    if (q->tools.n && !rod_chat_call_tags(engine, &a->tags)) api_tools_fini(&q->tools);
    if (!answer_begin(a, 1)) {
        out->failed = true;
        return;
    }
    a->choices[0].reason = from->reason;
    answer_push(&a->choices[0], from->output, from->n_output);
    answer_end(&a->choices[0]);
    a->form->whole(a, out);
}

/* The answer once more, by the code that made it. False: what is kept is not of this response, or damaged. */
static bool answer_again(struct job *j, const struct rod_answer *from, struct responses_kept *kept) {
    const struct server *s = j->server;
    struct api_request q = {.again = kept->echo, .tools = kept->tools};
    struct answer a = {.form = &responses_form,
                       .request = &q,
                       .served_model = s->model_name,
                       .fingerprint = s->fingerprint,
                       .session_version = from->version,
                       .usage = {.prompt_tok = from->prompt_tok,
                                 .cached_tok = from->cached_tok,
                                 .completion_tok = from->completion_tok}};
    kept->echo = (struct buf){0};
    kept->tools = (struct api_tools){0};
    memcpy(a.digest, from->digest, sizeof a.digest);
    answer_relabel(&a, from->label);
    const bool ours = !strcmp(a.id, j->name);
    snprintf(a.session, sizeof a.session, "%s", j->name);
    if (ours) tell_again(&a, &q, s->engine, from, &j->out);
    if (a.failed) j->out.failed = true; /* the label found no memory */
    const bool done = ours || a.failed;
    answer_fini(&a);
    api_request_fini(&q);
    return done;
}

static void run_get(struct job *j) {
    struct rod_answer a;
    struct responses_kept kept;
    struct rod_error damaged;
    if (take_kept(j, &a, &kept) && !answer_again(j, &a, &kept)) {
        rod_fail(&damaged, ROD_ESTATE, "The answer that is kept of the response is damaged.");
        job_fail(j, &damaged);
    }
    responses_kept_fini(&kept);
    free(a.label);
}

static void run_items(struct job *j) {
    struct rod_answer a;
    struct responses_kept kept;
    const struct responses_page page = {j->limit, j->rising, *j->after ? j->after : NULL};
    if (take_kept(j, &a, &kept))
        j->failed = !responses_render_input_items(&j->out, j->name, kept.input, &page, &j->err);
    responses_kept_fini(&kept);
    free(a.label);
}

/* What is to be shown beside the texts, as in the body of a POST: there is no reasoning to show. */
static bool check_include(struct http_call *call) {
    static const char *const names[] = {"include", "include[]"};
    for (size_t i = 0; i < 2; i++) {
        const char *other = http_query_other(call->http, names[i], "reasoning.encrypted_content");
        if (!other) continue;
        http_call_invalid(call, 400, "", "include",
                          "include is not available with '%.60s': only reasoning.encrypted_content passes.", other);
        return false;
    }
    return true;
}

void response_routes_get(struct http_call *call) {
    const char *stream = http_query_other(call->http, "stream", "false");
    if (stream) {
        http_call_invalid(call, 400, "", "stream", "stream must be false: a response that is kept comes whole.");
        return;
    }
    struct job *j = check_include(call) ? session_routes_job(call, run_get) : NULL;
    if (j) job_start(j, true);
}

void response_routes_items(struct http_call *call) {
    const char *after = http_query(call->http, "after"), *order = http_query(call->http, "order");
    size_t limit = ITEMS_DEFAULT;
    if (!http_call_limit(call, ITEMS_MAX, &limit) || !check_include(call)) return;
    if (order && strcmp(order, "asc") != 0 && strcmp(order, "desc") != 0) {
        http_call_invalid(call, 400, "", "order", "order must be asc or desc.");
        return;
    }
    if (after && !api_session_id(after)) {
        http_call_invalid(call, 400, "", "after", "after must be the id of an item.");
        return;
    }
    struct job *j = session_routes_job(call, run_items);
    if (!j) return;
    j->limit = limit;
    j->rising = order && !strcmp(order, "asc");
    snprintf(j->after, sizeof j->after, "%s", after ? after : "");
    job_start(j, true);
}
