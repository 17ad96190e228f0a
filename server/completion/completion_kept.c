/* completion_kept.c - the answer of a stored response once more: a completion that has ended, made of what the
 * response's session has kept. */
#include "completion_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void kept_answer(struct completion *c, const char *text, size_t len, struct buf *out) {
    struct completion_choice *choice = &c->choices[0];
    /* A chat format without calls has replaced the one of then: what they were is text. */
    if (c->request.tools.n && !rod_chat_call_tags(c->server->engine, &c->tags)) api_tools_fini(&c->request.tools);
    completion_calls_begin(c, choice);
    if (c->request.tools.n) {
        completion_calls_push(choice, text, len, NULL);
        completion_calls_end(choice);
    } else {
        completion_response_text(c, text, len);
    }
    completion_response_whole(c, out);
}

bool completion_kept(struct server *s, const char *id, const struct rod_answer *a, struct api_kept *kept,
                     struct buf *out) {
    struct completion c = {
        .server = s,
        .kind = API_RESPONSE,
        .n_choices = 1,
        .of_session = true,
        .session_version = a->version,
        .request = {.response = {.store = true, .echo = kept->echo}, .tools = kept->tools},
        .usage = {.prompt_tok = a->prompt_tok, .cached_tok = a->cached_tok, .completion_tok = a->completion_tok}};
    struct completion_choice choice = {.completion = &c, .reason = a->reason};
    c.choices = &choice;
    kept->echo = (struct buf){0};
    kept->tools = (struct api_tools){0};
    memcpy(c.digest, a->digest, sizeof c.digest);
    completion_session_relabel(&c, a->label);
    const bool ours = !strcmp(c.answer_id, id) && strlen(id) < sizeof c.response_id;
    if (ours) {
        snprintf(c.response_id, sizeof c.response_id, "%s", id);
        snprintf(c.session_id, sizeof c.session_id, "%s", id);
        kept_answer(&c, a->output, a->n_output, out);
    }
    if (c.prefix.failed) out->failed = true; /* the label found no memory */
    const bool done = ours || c.prefix.failed;
    completion_items_free(&choice);
    api_split_fini(&choice.split);
    buf_fini(&choice.text);
    api_request_fini(&c.request);
    free(c.model);
    return done;
}
