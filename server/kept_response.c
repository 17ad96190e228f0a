/* kept_response.c - see kept_response.h. */
#include "kept_response.h"
#include "server/call/http_call.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail_not_kept(const char *id, const char *why, struct api_error *err) {
    api_error_set(err, 404, API_INVALID, "response_not_stored", "", "The texts of %s are not kept: %s.", id, why);
    return -1;
}

static int fail_session(struct server *s, const char *id, struct rod_error *rod, struct api_error *err) {
    if (rod->code == ROD_ENOTFOUND) snprintf(rod->message, sizeof rod->message, "There is no response %s.", id);
    api_error_from(err, rod);
    if (rod->code == ROD_EIO) http_call_hide_files(s, id, err);
    return -1;
}

static int fail_damaged(struct api_error *err) {
    struct rod_error rod;
    rod_fail(&rod, ROD_ESTATE, "The answer that is kept of the response is damaged.");
    api_error_from(err, &rod);
    return -1;
}

/* Its label begins with the response's id. */
static bool is_of(const struct rod_answer *a, const char *id) {
    const size_t n = strlen(id);
    return !strncmp(a->label, id, n) && a->label[n] == ' ';
}

/* The session's first answer is the response's. */
static int take(struct server *s, const char *tenant, const char *id, bool input, struct kept_response *out,
                struct api_error *err) {
    struct rod_answer *a = &out->answer;
    struct rod_error rod;
    if (rod_session_answer(s->engine, tenant, id, a, &rod)) return fail_session(s, id, &rod, err);
    if (!a->label || !is_of(a, id))
        return fail_not_kept(id,
                             "its answer was too long, later turns of its session have taken its place, or it was "
                             "not made by POST /v1/responses of this version",
                             err);
    static_assert(ROD_MAX_TURN_TEXT == 1 << 20, "the message says so");
    if (!a->text)
        return fail_not_kept(id, "those of its request have more than 1 MiB, or are of a version that kept none", err);
    return responses_parse_kept(a->text, a->n_text, input, &out->request, err);
}

int kept_response_take(struct server *s, const char *tenant, const char *id, bool input, struct kept_response *out,
                       struct api_error *err) {
    *out = (struct kept_response){0};
    const int rc = take(s, tenant, id, input, out, err);
    if (rc) kept_response_fini(out);
    return rc;
}

void kept_response_fini(struct kept_response *k) {
    responses_kept_fini(&k->request);
    free(k->answer.label);
    *k = (struct kept_response){0};
}

/* A chat format without calls has replaced the one of then: what they were is text. */
static void tell(struct answer *a, struct api_request *q, const struct rod_engine *engine,
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

int kept_response_tell(struct server *s, const char *id, struct kept_response *k, struct buf *out,
                       struct api_error *err) {
    const struct rod_answer *from = &k->answer;
    struct api_request q = {.again = k->request.echo, .tools = k->request.tools};
    struct answer a = {.form = &responses_form,
                       .request = &q,
                       .served_model = s->model_name,
                       .fingerprint = s->fingerprint,
                       .session_version = from->version,
                       .usage = {.prompt_tok = from->prompt_tok,
                                 .cached_tok = from->cached_tok,
                                 .completion_tok = from->completion_tok}};
    k->request.echo = (struct buf){0};
    k->request.tools = (struct api_tools){0};
    memcpy(a.digest, from->digest, sizeof a.digest);
    answer_relabel(&a, from->label);
    const bool ours = !strcmp(a.id, id);
    snprintf(a.session, sizeof a.session, "%.*s", API_SESSION_ID_MAX, id);
    if (ours) tell(&a, &q, s->engine, from, out);
    if (a.failed) out->failed = true; /* the label found no memory */
    answer_fini(&a);
    api_request_fini(&q);
    if (out->failed) api_error_no_memory(err);
    return out->failed ? -1 : ours ? 0 : fail_damaged(err);
}

/* ---- items ---- */

/* A member of an object, which is an array. NULL: out of memory. */
static json_t *array_of(const struct buf *object, const char *name, struct api_error *err) {
    json_t *root = object->failed ? NULL : json_loadb(object->data, object->len, JSON_ALLOW_NUL, NULL);
    json_t *array = json_incref(json_object_get(root, name));
    json_decref(root);
    if (!array) api_error_no_memory(err);
    return array;
}

static json_t *input_of(const char *id, const struct kept_response *k, struct api_error *err) {
    const struct responses_page all = {.limit = SIZE_MAX, .rising = true};
    struct buf list = {0};
    json_t *items = NULL;
    if (responses_render_input_items(&list, id, k->request.input, &all, err)) items = array_of(&list, "data", err);
    buf_fini(&list);
    return items;
}

static json_t *output_of(struct server *s, const char *id, struct kept_response *k, struct api_error *err) {
    struct buf whole = {0};
    json_t *items = NULL;
    if (!kept_response_tell(s, id, k, &whole, err)) items = array_of(&whole, "output", err);
    buf_fini(&whole);
    return items;
}

json_t *kept_response_items(void *server, const char *tenant, const char *id, bool input, struct api_error *err) {
    struct kept_response k;
    if (kept_response_take(server, tenant, id, input, &k, err)) return NULL;
    json_t *items = input ? input_of(id, &k, err) : output_of(server, id, &k, err);
    kept_response_fini(&k);
    return items;
}
