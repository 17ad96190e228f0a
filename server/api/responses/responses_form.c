/* responses_form.c - the form of responses: one choice, shown as items. In a stream each item begins, grows and ends in
 * events of its own; the last event says all of it again. */
#include "responses.h"
#include "server/api/api_choice.h"

#include <assert.h>
#include <stdlib.h>

struct state {
    uint64_t sequence; /* of the stream's events */
    size_t n_begun;    /* items; the last one has not ended */
};

static struct responses_view view_of(const struct answer *a) {
    const struct api_request *q = a->request;
    assert(a->n_choices == 1 && *a->id);
    return (struct responses_view){.id = a->id,
                                   .model = answer_model(a),
                                   .created_unix_s = a->created_unix_s,
                                   .echo = &q->again,
                                   .reason = a->choices[0].reason,
                                   .usage = &a->usage,
                                   .session = q->session.discard ? NULL : answer_session(a),
                                   .session_version = a->session_version};
}

/* Item i, which may have begun without a word: then it is a text. ended: the answer is over, and the last item may be
 * cut. */
static struct responses_item item_view(const struct answer_choice *choice, size_t i, bool ended) {
    static const struct answer_item nothing = {0};
    const struct answer_item *item = i < choice->n_items ? &choice->items[i] : &nothing;
    const bool last = ended && i + 1 >= choice->n_items;
    return (struct responses_item){
        .index = (uint32_t)i,
        .name = item->name,
        .call_id = item->id,
        .text = item->text.len ? item->text.data : "",
        .len = item->text.len,
        .cut = last && (choice->reason == ROD_FINISH_LENGTH || (item->name && !choice->split.whole))};
}

static void end_item(struct answer_choice *choice, bool ended) {
    struct answer *a = choice->answer;
    struct state *s = a->state;
    if (!s->n_begun) return;
    const struct responses_item view = item_view(choice, s->n_begun - 1, ended);
    responses_render_item_end(&a->frame, a->id, &view, &s->sequence);
}

static void begin_item(struct answer_choice *choice) {
    struct answer *a = choice->answer;
    struct state *s = a->state;
    end_item(choice, false);
    struct responses_item view = item_view(choice, s->n_begun++, false);
    responses_render_item_begin(&a->frame, a->id, &view, &s->sequence);
}

/* What will come is known only with the first part, if there are tools. */
static void responses_open(struct answer_choice *choice) {
    struct answer *a = choice->answer;
    struct state *s = a->state;
    const struct responses_view v = view_of(a);
    const size_t before = a->frame.len;
    responses_render_opening(&a->frame, &v, &s->sequence);
    if (!a->request->tools.n) begin_item(choice);
    a->opening_bytes += a->frame.len - before;
    choice->opened = true;
}

static void add_text(struct answer_choice *choice, const char *text, size_t len) {
    struct answer *a = choice->answer;
    struct state *s = a->state;
    if (!len || choice->failed) return;
    struct responses_item view = item_view(choice, s->n_begun - 1, false);
    view.text = text;
    view.len = len;
    responses_render_item_delta(&a->frame, a->id, &view, &s->sequence);
}

static void responses_text(struct answer_choice *choice, const char *text, size_t len) {
    const struct state *s = choice->answer->state;
    if (s->n_begun < choice->n_items) begin_item(choice);
    add_text(choice, text, len);
}

static void responses_call(struct answer_choice *choice, const struct api_call *call) {
    (void)call; /* the last item */
    begin_item(choice);
}

static void responses_arguments(struct answer_choice *choice, const struct api_call *call) {
    add_text(choice, call->arguments, call->len);
}

/* The items of an answer that has ended, to be freed; NULL: out of memory. An answer without a word is an empty text.
 */
static struct responses_item *finished_items(const struct answer_choice *choice, struct responses_view *v) {
    const size_t n = choice->n_items ? choice->n_items : 1;
    struct responses_item *items = choice->failed ? NULL : calloc(n, sizeof *items);
    *v = view_of(choice->answer);
    for (size_t i = 0; items && i < n; i++) items[i] = item_view(choice, i, true);
    v->items = items;
    v->n_items = items ? n : 0;
    return items;
}

static void responses_finish(struct answer_choice *choice) {
    struct answer *a = choice->answer;
    struct state *s = a->state;
    struct responses_view v;
    if (!s->n_begun) begin_item(choice);
    struct responses_item *items = finished_items(choice, &v);
    if (!items) a->frame.failed = true;
    end_item(choice, true);
    responses_render_ending(&a->frame, &v, &s->sequence);
    free(items);
}

static void responses_whole(struct answer *a, struct buf *out) {
    struct responses_view v;
    struct responses_item *items = finished_items(&a->choices[0], &v);
    if (items)
        responses_render(out, &v);
    else
        out->failed = true;
    free(items);
}

static void responses_error(struct answer *a, const struct api_error *err, const char *request_id) {
    struct state *s = a->state;
    (void)request_id;
    responses_render_error(&a->frame, err, &s->sequence);
}

const struct answer_form responses_form = {.name = "responses",
                                           .number = 2,
                                           .input = "input",
                                           .state_bytes = sizeof(struct state),
                                           .repeats = true,
                                           .parse = responses_parse,
                                           .join = responses_join,
                                           .session_fault = responses_session_fault,
                                           .open = responses_open,
                                           .text = responses_text,
                                           .call = responses_call,
                                           .arguments = responses_arguments,
                                           .finish = responses_finish,
                                           .whole = responses_whole,
                                           .error = responses_error,
                                           .refuse = api_refuse};
