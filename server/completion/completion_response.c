/* completion_response.c - the answers of /v1/responses: one choice, shown as items of a response. */
#include "completion_internal.h"

#include <assert.h>
#include <stdlib.h>

static struct api_response_view response_view(const struct completion *c) {
    assert(c->kind == API_RESPONSE && c->n_choices == 1 && *c->response_id);
    return (struct api_response_view){.id = c->response_id,
                                      .model = c->model ? c->model : c->server->model_name,
                                      .created_unix_s = c->created_unix_s,
                                      .echo = &c->request.response.echo,
                                      .reason = c->choices[0].reason,
                                      .usage = &c->usage,
                                      .session = c->request.response.store ? completion_session_of(c) : NULL,
                                      .session_version = c->session_version};
}

/* ended: the answer is over, and the last item may be cut. */
static struct api_item item_view(const struct completion_choice *choice, size_t i, bool ended) {
    const struct completion_item *item = &choice->items[i];
    const bool last = ended && i + 1 == choice->n_items;
    return (struct api_item){.index = (uint32_t)i,
                             .name = item->name,
                             .call_id = item->id,
                             .text = item->text.len ? item->text.data : "",
                             .len = item->text.len,
                             .cut =
                                 last && (choice->reason == ROD_FINISH_LENGTH || (item->name && !choice->split.whole))};
}

static void end_item(struct completion *c, bool ended) {
    const struct completion_choice *choice = &c->choices[0];
    if (!choice->n_items || !c->request.stream) return;
    const struct api_item view = item_view(choice, choice->n_items - 1, ended);
    api_render_item_end(&c->frame, c->response_id, &view, &c->sequence);
}

static void begin_item(struct completion *c, const char *name, const char *id) {
    struct completion_choice *choice = &c->choices[0];
    end_item(c, false);
    if (!completion_item_add(choice, name, id) || !c->request.stream) return;
    const struct api_item view = item_view(choice, choice->n_items - 1, false);
    api_render_item_begin(&c->frame, c->response_id, &view, &c->sequence);
}

static void add_text(struct completion *c, const char *text, size_t len) {
    struct completion_choice *choice = &c->choices[0];
    if (!choice->n_items || choice->text.failed) return;
    struct completion_item *item = &choice->items[choice->n_items - 1];
    buf_add(&item->text, text, len);
    if (item->text.failed) choice->text.failed = true;
    if (!len || !c->request.stream) return;
    struct api_item view = item_view(choice, choice->n_items - 1, false);
    view.text = text;
    view.len = len;
    api_render_item_delta(&c->frame, c->response_id, &view, &c->sequence);
}

/* What will come is known only with the first part, if there are tools. */
void completion_response_opening(struct completion *c) {
    const struct api_response_view v = response_view(c);
    api_render_response_opening(&c->frame, &v, &c->sequence);
    if (!c->request.tools.n) begin_item(c, NULL, NULL);
}

void completion_response_text(struct completion *c, const char *text, size_t len) {
    const struct completion_choice *choice = &c->choices[0];
    if (!choice->n_items || choice->items[choice->n_items - 1].name) begin_item(c, NULL, NULL);
    add_text(c, text, len);
}

void completion_response_call(struct completion *c, const char *name, const char *id) { begin_item(c, name, id); }

void completion_response_arguments(struct completion *c, const char *text, size_t len) { add_text(c, text, len); }

/* The finished answer with its items, to be freed; NULL: out of memory. An answer without a word is an empty message.
 */
static struct api_item *finished_items(struct completion *c, struct api_response_view *v) {
    const struct completion_choice *choice = &c->choices[0];
    if (!choice->n_items) begin_item(c, NULL, NULL);
    *v = response_view(c);
    struct api_item *items = choice->text.failed ? NULL : calloc(choice->n_items, sizeof *items);
    for (size_t i = 0; items && i < choice->n_items; i++) items[i] = item_view(choice, i, true);
    v->items = items;
    v->n_items = items ? choice->n_items : 0;
    return items;
}

void completion_response_ending(struct completion *c) {
    struct api_response_view v;
    struct api_item *items = finished_items(c, &v);
    if (!items) c->frame.failed = true;
    end_item(c, true);
    api_render_response_ending(&c->frame, &v, &c->sequence);
    free(items);
}

void completion_response_whole(struct completion *c, struct buf *out) {
    struct api_response_view v;
    struct api_item *items = finished_items(c, &v);
    if (!items) out->failed = true;
    api_render_response(out, &v);
    free(items);
}
