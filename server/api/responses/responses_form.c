/* responses_form.c - the form of responses: one choice, shown as items, each a message or a call. In a stream each item
 * begins, grows and ends in events of its own; the last event says all of it again. */
#include "responses.h"
#include "responses_parts.h"
#include "server/api/api_choice.h"
#include "server/api/api_put.h"
#include "server/api/sse.h"

#include <assert.h>
#include <string.h>

struct state {
    uint64_t sequence; /* of the stream's events */
    size_t n_begun;    /* items; the last one has not ended */
    size_t n_read;     /* bytes of its arguments that frames have shown, of a custom tool */
};

/* ---- the response and its items ---- */

/* An answer without a word has one item, an empty text. */
static size_t n_items(const struct answer_choice *choice) { return choice->n_items ? choice->n_items : 1; }

static const struct answer_item *item_at(const struct answer_choice *choice, size_t i) {
    static const struct answer_item nothing = {0};
    return i < choice->n_items ? &choice->items[i] : &nothing;
}

/* How the API calls what item i is; NULL: a message. */
static const struct api_tool_form *form_at(const struct answer_choice *choice, size_t i) {
    static const struct api_tool_form function = {0};
    const struct api_tools *tools = &choice->answer->request->tools;
    const char *name = item_at(choice, i)->name;
    for (size_t t = 0; name && t < tools->n; t++)
        if (tools->names[t] == name) return &tools->forms[t];
    return name ? &function : NULL;
}

/* The first message has the response's own number. */
static void put_item_id(struct buf *out, const struct answer_choice *choice, size_t i) {
    const char *id = choice->answer->id, *at = strchr(id, '_');
    static const char *const kinds[] = {
        [API_TOOL_FUNCTION] = "\"fc_", [API_TOOL_CUSTOM] = "\"ctc_", [API_TOOL_SEARCH] = "\"tsc_"};
    const struct api_tool_form *form = form_at(choice, i);
    buf_puts(out, form ? kinds[form->kind] : "\"msg_");
    buf_puts(out, at ? at + 1 : id);
    if (i) buf_addf(out, "_%zu", i);
    buf_putc(out, '"');
}

static void put_text(struct buf *out, const struct answer_item *item) {
    buf_json(out, item->text.len ? item->text.data : "", item->text.len);
}

static void put_part(struct buf *out, const struct answer_item *item) {
    buf_puts(out, "{\"type\":\"output_text\",\"text\":");
    put_text(out, item);
    buf_puts(out, ",\"annotations\":[],\"logprobs\":[]}");
}

enum progress { BEGUN, ENDED, OVER }; /* an item has said nothing yet; said all; and so has the answer */

/* The last item of an answer may be cut. */
static const char *item_status(const struct answer_choice *choice, size_t i, enum progress progress) {
    const bool last = progress == OVER && i + 1 == n_items(choice);
    if (progress == BEGUN) return "in_progress";
    if (last && choice->reason == ROD_FINISH_LENGTH) return "incomplete";
    return last && item_at(choice, i)->name && !choice->split.whole ? "incomplete" : "completed";
}

/* The text of a custom tool. */
static void put_input(struct buf *out, const struct answer_item *item) {
    struct buf input = {0};
    responses_custom_input(item->text.data, item->text.len, 0, &input);
    if (input.failed) out->failed = true;
    buf_json(out, input.len ? input.data : "", input.len);
    buf_fini(&input);
}

/* A call that was cut has the beginning of an object: the object without what it says is left. */
static void put_object(struct buf *out, const struct answer_item *item) {
    json_t *object = json_loadb(item->text.data, item->text.len, JSON_ALLOW_NUL, NULL);
    if (json_is_object(object))
        buf_add(out, item->text.data, item->text.len);
    else
        buf_puts(out, "{}");
    json_decref(object);
}

static void put_name(struct buf *out, const struct answer_item *item, const struct api_tool_form *form) {
    const size_t n = form->n_space;
    buf_puts(out, "\"name\":");
    api_put_text(out, n ? item->name + n + 1 : item->name);
    if (!n) return;
    buf_puts(out, ",\"namespace\":");
    buf_json(out, item->name, n);
}

static void put_call(struct buf *out, const struct answer_item *item, const struct api_tool_form *form, bool begun) {
    static const struct answer_item nothing = {0};
    const struct answer_item *said = begun ? &nothing : item;
    buf_addf(out, ",\"call_id\":\"%s\",", item->id);
    if (form->kind == API_TOOL_SEARCH) {
        buf_puts(out, "\"execution\":\"client\",\"arguments\":");
        put_object(out, said);
        return;
    }
    put_name(out, item, form);
    buf_puts(out, form->kind == API_TOOL_CUSTOM ? ",\"input\":" : ",\"arguments\":");
    (form->kind == API_TOOL_CUSTOM ? put_input : put_text)(out, said);
}

static void put_item(struct buf *out, const struct answer_choice *choice, size_t i, enum progress progress) {
    static const char *const types[] = {[API_TOOL_FUNCTION] = "function_call",
                                        [API_TOOL_CUSTOM] = "custom_tool_call",
                                        [API_TOOL_SEARCH] = "tool_search_call"};
    const struct answer_item *item = item_at(choice, i);
    const struct api_tool_form *form = form_at(choice, i);
    buf_puts(out, "{\"id\":");
    put_item_id(out, choice, i);
    buf_addf(out, ",\"type\":\"%s\",\"status\":\"%s\"", form ? types[form->kind] : "message",
             item_status(choice, i, progress));
    if (form) {
        put_call(out, item, form, progress == BEGUN);
    } else {
        buf_puts(out, ",\"role\":\"assistant\",\"content\":[");
        if (progress != BEGUN) put_part(out, item);
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
}

static void put_usage(struct buf *out, const struct api_usage *u) {
    buf_addf(out, "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu,\"cache_write_tokens\":0",
             (unsigned long long)u->prompt_tok, (unsigned long long)u->cached_tok);
    if (u->kept_tools) buf_addf(out, ",\"kept_tools\":%llu", (unsigned long long)u->kept_tools);
    buf_addf(out,
             "},\"output_tokens\":%llu,"
             "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%llu}",
             (unsigned long long)u->completion_tok, (unsigned long long)(u->prompt_tok + u->completion_tok));
}

/* What stands in a response that is over. */
static void put_end(struct buf *out, const struct answer *a) {
    put_usage(out, &a->usage);
    if (!a->request->session.discard) api_put_session(out, answer_session(a), a->session_version, a->session_unseen);
}

static void put_response(struct buf *out, const struct answer *a, bool over) {
    const struct answer_choice *choice = &a->choices[0];
    const bool cut = over && choice->reason == ROD_FINISH_LENGTH;
    assert(a->n_choices == 1 && *a->id);
    if (over && choice->failed) out->failed = true;
    buf_puts(out, "{\"id\":");
    api_put_text(out, a->id);
    buf_addf(out,
             ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":null,"
             "\"incomplete_details\":%s,\"model\":",
             (long long)a->created_unix_s,
             cut    ? "incomplete"
             : over ? "completed"
                    : "in_progress",
             cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    api_put_text(out, answer_model(a));
    buf_puts(out, ",\"output\":[");
    for (size_t i = 0; over && i < n_items(choice); i++) {
        api_put_comma(out, i);
        put_item(out, choice, i, OVER);
    }
    buf_puts(out, "],");
    buf_add(out, a->request->again.data, a->request->again.len);
    buf_puts(out, ",\"usage\":");
    if (over)
        put_end(out, a);
    else
        buf_puts(out, "null");
    buf_putc(out, '}');
}

static void responses_whole(struct answer *a, struct buf *out) { put_response(out, a, true); }

/* ---- the stream ---- */

static void begin_event(struct answer *a, const char *type) {
    struct state *s = a->state;
    buf_addf(&a->frame, SSE_NAME "%s\n" SSE_DATA "{\"type\":\"%s\",\"sequence_number\":%llu", type, type,
             (unsigned long long)s->sequence++);
}

static void end_event(struct answer *a) { buf_puts(&a->frame, "}" SSE_END); }

static void put_response_event(struct answer *a, const char *type, bool over) {
    begin_event(a, type);
    buf_puts(&a->frame, ",\"response\":");
    put_response(&a->frame, a, over);
    end_event(a);
}

static void put_item_event(const struct answer_choice *choice, const char *type, size_t i, enum progress progress) {
    struct answer *a = choice->answer;
    begin_event(a, type);
    buf_addf(&a->frame, ",\"output_index\":%zu,\"item\":", i);
    put_item(&a->frame, choice, i, progress);
    end_event(a);
}

/* Where in the answer it lies: a message has one part. next: the event's own member. */
static void begin_part_event(const struct answer_choice *choice, const char *type, size_t i, const char *next) {
    struct answer *a = choice->answer;
    begin_event(a, type);
    buf_puts(&a->frame, ",\"item_id\":");
    put_item_id(&a->frame, choice, i);
    buf_addf(&a->frame, ",\"output_index\":%zu%s,\"%s\":", i, item_at(choice, i)->name ? "" : ",\"content_index\":0",
             next);
}

static void end_message(const struct answer_choice *choice, size_t i) {
    struct answer *a = choice->answer;
    const struct answer_item *item = item_at(choice, i);
    begin_part_event(choice, "response.output_text.done", i, "text");
    put_text(&a->frame, item);
    buf_puts(&a->frame, ",\"logprobs\":[]");
    end_event(a);
    begin_part_event(choice, "response.content_part.done", i, "part");
    put_part(&a->frame, item);
    end_event(a);
}

/* A search has no events between its beginning and its end. */
static void end_call(const struct answer_choice *choice, size_t i, const struct api_tool_form *form) {
    struct answer *a = choice->answer;
    const struct answer_item *item = item_at(choice, i);
    if (form->kind == API_TOOL_SEARCH) return;
    if (form->kind == API_TOOL_CUSTOM) {
        begin_part_event(choice, "response.custom_tool_call_input.done", i, "input");
        put_input(&a->frame, item);
    } else {
        begin_part_event(choice, "response.function_call_arguments.done", i, "arguments");
        put_text(&a->frame, item);
        buf_putc(&a->frame, ',');
        put_name(&a->frame, item, form);
    }
    end_event(a);
}

static void end_item(const struct answer_choice *choice, enum progress progress) {
    const struct state *s = choice->answer->state;
    if (!s->n_begun) return;
    const size_t i = s->n_begun - 1;
    const struct api_tool_form *form = form_at(choice, i);
    if (form)
        end_call(choice, i, form);
    else
        end_message(choice, i);
    put_item_event(choice, "response.output_item.done", i, progress);
}

static void begin_item(const struct answer_choice *choice) {
    static const struct answer_item nothing = {0};
    struct answer *a = choice->answer;
    struct state *s = a->state;
    end_item(choice, ENDED);
    const size_t i = s->n_begun++;
    s->n_read = 0;
    put_item_event(choice, "response.output_item.added", i, BEGUN);
    if (item_at(choice, i)->name) return;
    begin_part_event(choice, "response.content_part.added", i, "part");
    put_part(&a->frame, &nothing);
    end_event(a);
}

/* What will come is known only with the first part, if there are tools. */
static void responses_open(struct answer_choice *choice) {
    struct answer *a = choice->answer;
    const size_t before = a->frame.len;
    put_response_event(a, "response.created", false);
    put_response_event(a, "response.in_progress", false);
    if (!a->request->tools.n) begin_item(choice);
    a->opening_bytes += a->frame.len - before;
    choice->opened = true;
}

/* Clients count events as life, and comments not. */
static void responses_ping(struct answer *a) {
    if (a->choices[0].opened)
        put_response_event(a, "response.in_progress", false);
    else
        responses_open(&a->choices[0]);
}

static void add_delta(const struct answer_choice *choice, const char *type, const char *text, size_t len) {
    struct answer *a = choice->answer;
    const struct state *s = a->state;
    begin_part_event(choice, type, s->n_begun - 1, "delta");
    buf_json(&a->frame, text, len);
    if (!item_at(choice, s->n_begun - 1)->name) buf_puts(&a->frame, ",\"logprobs\":[]");
    end_event(a);
}

/* What has come of a custom tool's text, behind what was shown. */
static void add_input(const struct answer_choice *choice) {
    struct answer *a = choice->answer;
    struct state *s = a->state;
    const struct answer_item *item = item_at(choice, s->n_begun - 1);
    struct buf input = {0};
    s->n_read = responses_custom_input(item->text.data, item->text.len, s->n_read, &input);
    if (input.failed) a->frame.failed = true;
    if (input.len) add_delta(choice, "response.custom_tool_call_input.delta", input.data, input.len);
    buf_fini(&input);
}

/* The next part of the item that has begun last. */
static void add_text(const struct answer_choice *choice, const char *text, size_t len) {
    const struct state *s = choice->answer->state;
    if (!len || choice->failed) return;
    const struct api_tool_form *form = form_at(choice, s->n_begun - 1);
    if (form && form->kind == API_TOOL_CUSTOM)
        add_input(choice);
    else if (!form || form->kind == API_TOOL_FUNCTION)
        add_delta(choice, form ? "response.function_call_arguments.delta" : "response.output_text.delta", text, len);
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

static void responses_finish(struct answer_choice *choice, bool last) {
    struct answer *a = choice->answer;
    const struct state *s = a->state;
    assert(last);
    if (!s->n_begun) begin_item(choice);
    end_item(choice, OVER);
    put_response_event(a, choice->reason == ROD_FINISH_LENGTH ? "response.incomplete" : "response.completed", true);
}

static void responses_error(struct answer *a, const struct api_error *e, const char *request_id) {
    (void)request_id;
    begin_event(a, "error");
    buf_puts(&a->frame, ",\"code\":");
    api_put_text(&a->frame, *e->code ? e->code : e->type);
    buf_puts(&a->frame, ",\"message\":");
    api_put_any(&a->frame, e->message);
    buf_puts(&a->frame, ",\"param\":");
    api_put_any_or_null(&a->frame, e->param);
    api_put_trace(&a->frame, e);
    end_event(a);
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
                                           .ping = responses_ping,
                                           .text = responses_text,
                                           .call = responses_call,
                                           .arguments = responses_arguments,
                                           .finish = responses_finish,
                                           .whole = responses_whole,
                                           .error = responses_error,
                                           .refuse = api_refuse};
