/* completion_message.c - the answers of /v1/messages: a chat of one choice, shown as a message of Anthropic's API. */
#include "completion_internal.h"

#include <assert.h>

static struct messages_view message_view(const struct completion *c) {
    const struct completion_choice *choice = &c->choices[0];
    assert(c->kind == API_CHAT && c->is_message && c->n_choices == 1 && *c->answer_id);
    return (struct messages_view){.id = c->answer_id,
                                  .model = c->model ? c->model : c->server->model_name,
                                  .text = choice->text.len ? choice->text.data : "",
                                  .text_len = choice->text.len,
                                  .reason = choice->reason,
                                  .stop_string = choice->stop_string,
                                  .called = choice->split.n_calls && choice->split.whole,
                                  .usage = &c->usage,
                                  .session = completion_session_of(c),
                                  .session_version = c->session_version};
}

void completion_message_opening(struct completion *c) {
    const struct messages_view v = message_view(c);
    messages_render_opening(&c->frame, &v);
}

void completion_message_text(struct completion *c, const char *text, size_t len) {
    if (len) messages_render_text(&c->frame, &c->blocks, text, len);
}

void completion_message_part(struct completion *c, const struct api_part *part, const char *call_id) {
    if (part->kind == API_PART_TEXT)
        completion_message_text(c, part->text, part->len);
    else if (part->kind == API_PART_CALL)
        messages_render_call(&c->frame, &c->blocks, call_id, part->name);
    else
        messages_render_arguments(&c->frame, &c->blocks, part->text, part->len);
}

void completion_message_ending(struct completion *c) {
    const struct messages_view v = message_view(c);
    messages_render_ending(&c->frame, &c->blocks, &v);
}

void completion_message_whole(struct completion *c, const struct api_choice *choice, struct buf *out) {
    struct messages_view v = message_view(c);
    v.calls = choice->calls;
    v.n_calls = choice->n_calls;
    messages_render_message(out, &v);
}

void completion_message_error(struct completion *c, const struct api_error *err) {
    messages_render_error_event(&c->frame, err, c->call->id);
}
