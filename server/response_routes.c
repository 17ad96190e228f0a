/* response_routes.c - see side_routes.h. */
#include "side_routes.h"
#include "server/api/api_routes.h"
#include "server/api/responses/responses.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ITEMS_DEFAULT = 20, ITEMS_MAX = 100 };

static int fail_not_kept(struct job *j, const char *why) {
    api_error_set(&j->err, 404, API_INVALID, "response_not_stored", "", "The texts of %s are not kept: %s.", j->name,
                  why);
    return JOB_REFUSED;
}

static int name_missing(const struct job *j, int rc, struct rod_error *err) {
    if (rc == ROD_ENOTFOUND) snprintf(err->message, sizeof err->message, "There is no response %s.", j->name);
    return rc;
}

/* Its label begins with the response's id. */
static bool is_of(const struct rod_answer *a, const char *id) {
    const size_t n = strlen(id);
    return !strncmp(a->label, id, n) && a->label[n] == ' ';
}

/* The session's first answer is the response's. */
static int take_kept(struct job *j, struct rod_answer *a, struct responses_kept *kept, struct rod_error *err) {
    *a = (struct rod_answer){0};
    *kept = (struct responses_kept){0};
    const int rc = rod_session_answer(j->server->engine, j->tenant, j->name, a, err);
    if (rc) return name_missing(j, rc, err);
    if (!a->label || !is_of(a, j->name))
        return fail_not_kept(j, "its answer was too long, later turns of its session have taken its place, or it was "
                                "not made by POST /v1/responses of this version");
    static_assert(ROD_MAX_TURN_TEXT == 1 << 20, "the message says so");
    if (!a->text)
        return fail_not_kept(j, "those of its request have more than 1 MiB, or are of a version that kept none");
    return responses_parse_kept(a->text, a->n_text, kept, &j->err) ? JOB_REFUSED : 0;
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
    snprintf(a.session, sizeof a.session, "%.*s", API_SESSION_ID_MAX, j->name);
    if (ours) tell_again(&a, &q, s->engine, from, &j->out);
    if (a.failed) j->out.failed = true; /* the label found no memory */
    const bool done = ours || a.failed;
    answer_fini(&a);
    api_request_fini(&q);
    return done;
}

static int run_get(struct job *j, struct rod_error *err) {
    struct rod_answer a;
    struct responses_kept kept;
    int rc = take_kept(j, &a, &kept, err);
    if (!rc && !answer_again(j, &a, &kept))
        rc = rod_fail(err, ROD_ESTATE, "The answer that is kept of the response is damaged.");
    responses_kept_fini(&kept);
    free(a.label);
    return rc;
}

static int run_items(struct job *j, struct rod_error *err) {
    struct rod_answer a;
    struct responses_kept kept;
    const struct responses_page page = {j->page.limit, j->page.rising, *j->page.after ? j->page.after : NULL};
    int rc = take_kept(j, &a, &kept, err);
    if (!rc && !responses_render_input_items(&j->out, j->name, kept.input, &page, &j->err)) rc = JOB_REFUSED;
    responses_kept_fini(&kept);
    free(a.label);
    return rc;
}

int response_routes_delete(struct job *j, struct rod_error *err) {
    const int rc = rod_session_delete(j->server->engine, j->tenant, j->name, err);
    if (!rc) api_render_deleted(&j->out, "response", j->name);
    return name_missing(j, rc, err);
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
    struct job *j = check_include(call) ? job_new_named(call, run_get, false) : NULL;
    if (j) job_start(j, true);
}

void response_routes_items(struct http_call *call) {
    const char *order = http_query(call->http, "order");
    struct job_page page = {.limit = ITEMS_DEFAULT, .rising = order && !strcmp(order, "asc")};
    if (!job_take_page(call, ITEMS_MAX, "an item", &page) || !check_include(call)) return;
    if (order && !page.rising && strcmp(order, "desc") != 0) {
        http_call_invalid(call, 400, "", "order", "order must be asc or desc.");
        return;
    }
    struct job *j = job_new_named(call, run_items, false);
    if (!j) return;
    j->page = page;
    job_start(j, true);
}
