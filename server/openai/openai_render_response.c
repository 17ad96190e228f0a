/* openai_render_response.c - answers of /v1/responses, whole and as a stream of named events; see openai.h. */
#include "openai_put.h"
#include "sse.h"

#include <assert.h>
#include <string.h>

static const char *response_status(const struct openai_response_view *v) {
    return v->reason == ROD_FINISH_LENGTH ? "incomplete" : "completed";
}

static void put_item_id(struct buf *out, const struct openai_response_view *v) {
    const char *at = strchr(v->id, '_');
    buf_puts(out, "\"msg_");
    buf_puts(out, at ? at + 1 : v->id);
    buf_putc(out, '"');
}

static void put_part(struct buf *out, const char *text, size_t len) {
    buf_puts(out, "{\"type\":\"output_text\",\"text\":");
    buf_json(out, text, len);
    buf_puts(out, ",\"annotations\":[],\"logprobs\":[]}");
}

/* text NULL: nothing has been said yet. */
static void put_item(struct buf *out, const struct openai_response_view *v, const char *text) {
    buf_puts(out, "{\"id\":");
    put_item_id(out, v);
    buf_addf(out, ",\"type\":\"message\",\"status\":\"%s\",\"role\":\"assistant\",\"content\":[",
             text ? response_status(v) : "in_progress");
    if (text) put_part(out, text, v->text_len);
    buf_puts(out, "]}");
}

static void put_response_usage(struct buf *out, const struct openai_usage *u) {
    buf_addf(out,
             "{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":%llu},\"output_tokens\":%llu,"
             "\"output_tokens_details\":{\"reasoning_tokens\":0},\"total_tokens\":%llu}",
             (unsigned long long)u->prompt_tok, (unsigned long long)u->cached_tok,
             (unsigned long long)u->completion_tok, (unsigned long long)(u->prompt_tok + u->completion_tok));
}

static void put_response(struct buf *out, const struct openai_response_view *v, bool finished) {
    assert(!finished || v->usage);
    buf_puts(out, "{\"id\":");
    openai_put_text(out, v->id);
    buf_addf(out,
             ",\"object\":\"response\",\"created_at\":%lld,\"status\":\"%s\",\"error\":null,\"incomplete_details\":",
             (long long)v->created_unix_s, finished ? response_status(v) : "in_progress");
    const bool cut = finished && v->reason == ROD_FINISH_LENGTH;
    buf_puts(out, cut ? "{\"reason\":\"max_output_tokens\"}" : "null");
    buf_puts(out, ",\"model\":");
    openai_put_text(out, v->model);
    buf_puts(out, ",\"output\":[");
    if (finished) put_item(out, v, v->text);
    buf_puts(out, "],");
    buf_add(out, v->echo->data, v->echo->len);
    buf_puts(out, ",\"usage\":");
    if (finished) {
        put_response_usage(out, v->usage);
        openai_render_session_of(out, v->session, v->session_version);
    } else {
        buf_puts(out, "null");
    }
    buf_putc(out, '}');
}

void openai_render_response(struct buf *out, const struct openai_response_view *v) { put_response(out, v, true); }

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

static void put_response_event(struct buf *out, const char *type, const struct openai_response_view *v, bool finished,
                               uint64_t *seq) {
    begin_event(out, type, seq);
    buf_puts(out, ",\"response\":");
    put_response(out, v, finished);
    end_event(out);
}

static void put_item_event(struct buf *out, const char *type, const struct openai_response_view *v, const char *text,
                           uint64_t *seq) {
    begin_event(out, type, seq);
    buf_puts(out, ",\"output_index\":0,\"item\":");
    put_item(out, v, text);
    end_event(out);
}

/* Where in the answer a part lies: there is one item, and one part in it. */
static void begin_part_event(struct buf *out, const char *type, const struct openai_response_view *v, uint64_t *seq) {
    begin_event(out, type, seq);
    buf_puts(out, ",\"item_id\":");
    put_item_id(out, v);
    buf_puts(out, ",\"output_index\":0,\"content_index\":0");
}

void openai_render_response_opening(struct buf *out, const struct openai_response_view *v, uint64_t *seq) {
    put_response_event(out, "response.created", v, false, seq);
    put_response_event(out, "response.in_progress", v, false, seq);
    put_item_event(out, "response.output_item.added", v, NULL, seq);
    begin_part_event(out, "response.content_part.added", v, seq);
    buf_puts(out, ",\"part\":");
    put_part(out, "", 0);
    end_event(out);
}

void openai_render_response_delta(struct buf *out, const struct openai_response_view *v, uint64_t *seq) {
    begin_part_event(out, "response.output_text.delta", v, seq);
    buf_puts(out, ",\"delta\":");
    buf_json(out, v->text, v->text_len);
    buf_puts(out, ",\"logprobs\":[]");
    end_event(out);
}

void openai_render_response_ending(struct buf *out, const struct openai_response_view *v, uint64_t *seq) {
    begin_part_event(out, "response.output_text.done", v, seq);
    buf_puts(out, ",\"text\":");
    buf_json(out, v->text, v->text_len);
    buf_puts(out, ",\"logprobs\":[]");
    end_event(out);
    begin_part_event(out, "response.content_part.done", v, seq);
    buf_puts(out, ",\"part\":");
    put_part(out, v->text, v->text_len);
    end_event(out);
    put_item_event(out, "response.output_item.done", v, v->text, seq);
    put_response_event(out, v->reason == ROD_FINISH_LENGTH ? "response.incomplete" : "response.completed", v, true,
                       seq);
}

void openai_render_response_error(struct buf *out, const struct openai_error *e, uint64_t *seq) {
    begin_event(out, "error", seq);
    buf_puts(out, ",\"code\":");
    openai_put_text(out, *e->code ? e->code : e->type);
    buf_puts(out, ",\"message\":");
    openai_put_any(out, e->message);
    buf_puts(out, ",\"param\":");
    openai_put_any_or_null(out, e->param);
    openai_put_trace(out, e);
    end_event(out);
}
