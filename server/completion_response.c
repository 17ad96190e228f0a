/* completion_response.c - the answers of /v1/responses: one choice, shown as an item of a response. */
#include "completion_internal.h"

#include <assert.h>

static struct openai_response_view response_view(const struct completion *c) {
    const struct completion_choice *choice = &c->choices[0];
    assert(c->kind == OPENAI_RESPONSE && c->n_choices == 1 && *c->response_id);
    return (struct openai_response_view){.id = c->response_id,
                                         .model = c->model ? c->model : c->server->model_name,
                                         .created_unix_s = c->created_unix_s,
                                         .echo = &c->request.response.echo,
                                         .text = choice->text.len ? choice->text.data : "",
                                         .text_len = choice->text.len,
                                         .reason = choice->reason,
                                         .usage = &c->usage,
                                         .session = c->request.response.store ? completion_session_of(c) : NULL,
                                         .session_version = c->session_version};
}

void completion_response_opening(struct completion *c) {
    const struct openai_response_view v = response_view(c);
    openai_render_response_opening(&c->frame, &v, &c->sequence);
}

void completion_response_delta(struct completion *c, const char *text, size_t len) {
    buf_add(&c->choices[0].text, text, len);
    if (!len || !c->request.stream) return;
    struct openai_response_view v = response_view(c);
    v.text = text;
    v.text_len = len;
    openai_render_response_delta(&c->frame, &v, &c->sequence);
}

void completion_response_ending(struct completion *c) {
    const struct openai_response_view v = response_view(c);
    if (c->choices[0].text.failed) c->frame.failed = true;
    openai_render_response_ending(&c->frame, &v, &c->sequence);
}

void completion_response_whole(struct completion *c, struct buf *out) {
    const struct openai_response_view v = response_view(c);
    if (c->choices[0].text.failed) out->failed = true;
    openai_render_response(out, &v);
}
