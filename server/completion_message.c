/* completion_message.c - the answers of /v1/messages: a chat of one choice, shown as a message of Anthropic's API. */
#include "completion_internal.h"
#include "server/anthropic/anthropic.h"

#include <assert.h>

static struct anthropic_view message_view(const struct completion *c) {
    const struct completion_choice *choice = &c->choices[0];
    assert(c->kind == OPENAI_CHAT && c->is_message && c->n_choices == 1 && *c->message_id);
    return (struct anthropic_view){.id = c->message_id,
                                   .model = c->model ? c->model : c->server->model_name,
                                   .text = choice->text.len ? choice->text.data : "",
                                   .text_len = choice->text.len,
                                   .reason = choice->reason,
                                   .stop_string = choice->stop_string,
                                   .usage = &c->usage,
                                   .session = completion_session_of(c),
                                   .session_version = c->session_version};
}

void completion_message_opening(struct completion *c) {
    const struct anthropic_view v = message_view(c);
    anthropic_render_opening(&c->frame, &v);
}

void completion_message_delta(struct completion *c, const char *text, size_t len) {
    struct anthropic_view v = message_view(c);
    if (!len) return;
    v.text = text;
    v.text_len = len;
    anthropic_render_delta(&c->frame, &v);
}

void completion_message_ending(struct completion *c) {
    const struct anthropic_view v = message_view(c);
    anthropic_render_ending(&c->frame, &v);
}

void completion_message_whole(struct completion *c, struct buf *out) {
    const struct anthropic_view v = message_view(c);
    if (c->choices[0].text.failed) out->failed = true;
    anthropic_render_message(out, &v);
}

void completion_message_error(struct completion *c, const struct openai_error *err) {
    anthropic_render_error_event(&c->frame, err, c->call->id);
}
