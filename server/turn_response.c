/* turn_response.c - the answers of /v1/responses: one choice, shown as an item of a response. */
#include "turn_internal.h"

static struct openai_response_view view(const struct turn *t) {
    const struct turn_choice *c = &t->choices[0];
    return (struct openai_response_view){.id = t->response_id,
                                         .model = t->model ? t->model : t->server->model_name,
                                         .created_unix_s = t->created_unix_s,
                                         .echo = &t->request.response.echo,
                                         .text = c->text.len ? c->text.data : "",
                                         .text_len = c->text.len,
                                         .reason = c->reason,
                                         .usage = &t->usage,
                                         .session = t->request.response.store ? turn_session_of(t) : NULL,
                                         .session_version = t->session_version};
}

void turn_response_opening(struct turn *t) {
    const struct openai_response_view v = view(t);
    openai_render_response_opening(&t->frame, &v, &t->sequence);
}

void turn_response_delta(struct turn *t, const char *text, size_t len) {
    buf_add(&t->choices[0].text, text, len);
    if (!len || !t->request.stream) return;
    struct openai_response_view v = view(t);
    v.text = text;
    v.text_len = len;
    openai_render_response_delta(&t->frame, &v, &t->sequence);
}

void turn_response_ending(struct turn *t) {
    const struct openai_response_view v = view(t);
    if (t->choices[0].text.failed) t->frame.failed = true;
    openai_render_response_ending(&t->frame, &v, &t->sequence);
}

void turn_response_whole(struct turn *t, struct buf *out) {
    const struct openai_response_view v = view(t);
    if (t->choices[0].text.failed) out->failed = true;
    openai_render_response(out, &v);
}
