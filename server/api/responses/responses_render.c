/* responses_render.c - answers of /v1/responses, whole and as a stream of named events; see responses.h. */
#include "responses.h"
#include "server/api/api_put.h"
#include "server/api/api_routes.h"
#include "server/api/sse.h"

#include <assert.h>
#include <string.h>

static const char *response_status(const struct responses_view *v) {
    return v->reason == ROD_FINISH_LENGTH ? "incomplete" : "completed";
}

/* The first message has the response's own number. */
static void put_item_id(struct buf *out, const char *response, const struct responses_item *item) {
    const char *at = strchr(response, '_');
    buf_puts(out, item->name ? "\"fc_" : "\"msg_");
    buf_puts(out, at ? at + 1 : response);
    if (item->index) buf_addf(out, "_%u", item->index);
    buf_putc(out, '"');
}

static void put_part(struct buf *out, const char *text, size_t len) {
    buf_puts(out, "{\"type\":\"output_text\",\"text\":");
    buf_json(out, text, len);
    buf_puts(out, ",\"annotations\":[],\"logprobs\":[]}");
}

/* finished false: nothing has been said yet. */
static void put_item(struct buf *out, const char *response, const struct responses_item *item, bool finished) {
    buf_puts(out, "{\"id\":");
    put_item_id(out, response, item);
    buf_addf(out, ",\"type\":\"%s\",\"status\":\"%s\"", item->name ? "function_call" : "message",
             !finished   ? "in_progress"
             : item->cut ? "incomplete"
                         : "completed");
    if (item->name) {
        buf_addf(out, ",\"call_id\":\"%s\",\"name\":", item->call_id);
        api_put_text(out, item->name);
        buf_puts(out, ",\"arguments\":");
        buf_json(out, item->text, finished ? item->len : 0);
    } else {
        buf_puts(out, ",\"role\":\"assistant\",\"content\":[");
        if (finished) put_part(out, item->text, item->len);
        buf_putc(out, ']');
    }
    buf_putc(out, '}');
}

static void put_response_usage(struct buf *out, const struct api_usage *u) {
    buf_addf(out,
             "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu,\"cache_write_tokens\":0},"
             "\"output_tokens\":%llu,"
             "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%llu}",
             (unsigned long long)u->prompt_tok, (unsigned long long)u->cached_tok,
             (unsigned long long)u->completion_tok, (unsigned long long)(u->prompt_tok + u->completion_tok));
}

static void put_response(struct buf *out, const struct responses_view *v, bool finished) {
    assert(!finished || v->usage);
    buf_puts(out, "{\"id\":");
    api_put_text(out, v->id);
    buf_addf(out,
             ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":null,\"incomplete_details\":",
             (long long)v->created_unix_s, finished ? response_status(v) : "in_progress");
    const bool cut = finished && v->reason == ROD_FINISH_LENGTH;
    buf_puts(out, cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    buf_puts(out, ",\"model\":");
    api_put_text(out, v->model);
    buf_puts(out, ",\"output\":[");
    for (size_t i = 0; finished && i < v->n_items; i++) {
        api_put_comma(out, i);
        put_item(out, v->id, &v->items[i], true);
    }
    buf_puts(out, "],");
    buf_add(out, v->echo->data, v->echo->len);
    buf_puts(out, ",\"usage\":");
    if (finished) {
        put_response_usage(out, v->usage);
        api_render_session_of(out, v->session, v->session_version);
    } else {
        buf_puts(out, "null");
    }
    buf_putc(out, '}');
}

void responses_render(struct buf *out, const struct responses_view *v) { put_response(out, v, true); }

/* ---- the stream ---- */

static void begin_event(struct buf *out, const char *type, uint64_t *seq) {
    sse_name(out, type);
    sse_begin(out);
    buf_addf(out, "{\"type\":\"%s\",\"sequence_number\":%llu", type, (unsigned long long)(*seq)++);
}

static void end_event(struct buf *out) {
    buf_putc(out, '}');
    sse_end(out);
}

static void put_response_event(struct buf *out, const char *type, const struct responses_view *v, bool finished,
                               uint64_t *seq) {
    begin_event(out, type, seq);
    buf_puts(out, ",\"response\":");
    put_response(out, v, finished);
    end_event(out);
}

static void put_item_event(struct buf *out, const char *type, const char *response, const struct responses_item *item,
                           bool finished, uint64_t *seq) {
    begin_event(out, type, seq);
    buf_addf(out, ",\"output_index\":%u,\"item\":", item->index);
    put_item(out, response, item, finished);
    end_event(out);
}

/* Where in the answer it lies: a message has one part. */
static void begin_part_event(struct buf *out, const char *type, const char *response, const struct responses_item *item,
                             uint64_t *seq) {
    begin_event(out, type, seq);
    buf_puts(out, ",\"item_id\":");
    put_item_id(out, response, item);
    buf_addf(out, ",\"output_index\":%u", item->index);
    if (!item->name) buf_puts(out, ",\"content_index\":0");
}

void responses_render_opening(struct buf *out, const struct responses_view *v, uint64_t *seq) {
    put_response_event(out, "response.created", v, false, seq);
    put_response_event(out, "response.in_progress", v, false, seq);
}

void responses_render_item_begin(struct buf *out, const char *response, const struct responses_item *item,
                                 uint64_t *seq) {
    put_item_event(out, "response.output_item.added", response, item, false, seq);
    if (item->name) return;
    begin_part_event(out, "response.content_part.added", response, item, seq);
    buf_puts(out, ",\"part\":");
    put_part(out, "", 0);
    end_event(out);
}

void responses_render_item_delta(struct buf *out, const char *response, const struct responses_item *item,
                                 uint64_t *seq) {
    begin_part_event(out, item->name ? "response.function_call_arguments.delta" : "response.output_text.delta",
                     response, item, seq);
    buf_puts(out, ",\"delta\":");
    buf_json(out, item->text, item->len);
    if (!item->name) buf_puts(out, ",\"logprobs\":[]");
    end_event(out);
}

static void put_message_end(struct buf *out, const char *response, const struct responses_item *item, uint64_t *seq) {
    begin_part_event(out, "response.output_text.done", response, item, seq);
    buf_puts(out, ",\"text\":");
    buf_json(out, item->text, item->len);
    buf_puts(out, ",\"logprobs\":[]");
    end_event(out);
    begin_part_event(out, "response.content_part.done", response, item, seq);
    buf_puts(out, ",\"part\":");
    put_part(out, item->text, item->len);
    end_event(out);
}

static void put_call_end(struct buf *out, const char *response, const struct responses_item *item, uint64_t *seq) {
    begin_part_event(out, "response.function_call_arguments.done", response, item, seq);
    buf_puts(out, ",\"name\":");
    api_put_text(out, item->name);
    buf_puts(out, ",\"arguments\":");
    buf_json(out, item->text, item->len);
    end_event(out);
}

void responses_render_item_end(struct buf *out, const char *response, const struct responses_item *item,
                               uint64_t *seq) {
    if (item->name)
        put_call_end(out, response, item, seq);
    else
        put_message_end(out, response, item, seq);
    put_item_event(out, "response.output_item.done", response, item, true, seq);
}

void responses_render_ending(struct buf *out, const struct responses_view *v, uint64_t *seq) {
    put_response_event(out, v->reason == ROD_FINISH_LENGTH ? "response.incomplete" : "response.completed", v, true,
                       seq);
}

void responses_render_error(struct buf *out, const struct api_error *e, uint64_t *seq) {
    begin_event(out, "error", seq);
    buf_puts(out, ",\"code\":");
    api_put_text(out, *e->code ? e->code : e->type);
    buf_puts(out, ",\"message\":");
    api_put_any(out, e->message);
    buf_puts(out, ",\"param\":");
    api_put_any_or_null(out, e->param);
    api_put_trace(out, e);
    end_event(out);
}
