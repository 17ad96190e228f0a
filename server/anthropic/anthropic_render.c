/* anthropic_render.c - messages, their streams of named events, and errors in Anthropic's words; see anthropic.h. */
#include "anthropic.h"
#include "server/openai/openai_put.h"
#include "server/openai/sse.h"

#include <assert.h>

/* Of a message that has begun nothing is known but its prompt. Tokens from a cache are not among the input_tokens. */
static void put_usage(struct buf *out, const struct openai_usage *u, bool finished) {
    assert(u->cached_tok <= u->prompt_tok);
    buf_addf(out,
             "\"usage\":{\"input_tokens\":%llu,\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%llu,"
             "\"output_tokens\":%llu}",
             (unsigned long long)(u->prompt_tok - u->cached_tok), (unsigned long long)u->cached_tok,
             (unsigned long long)(finished ? u->completion_tok : 0));
}

/* "stop_reason":...,"stop_sequence":... */
static void put_reason(struct buf *out, const struct anthropic_view *v) {
    buf_addf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":",
             v->reason == ROD_FINISH_LENGTH ? "max_tokens"
             : v->stop_string               ? "stop_sequence"
                                            : "end_turn");
    openai_put_text_or_null(out, v->stop_string);
}

static void put_message(struct buf *out, const struct anthropic_view *v, bool finished) {
    buf_puts(out, "{\"id\":\"msg_");
    buf_puts(out, v->id);
    buf_puts(out, "\",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    openai_put_text(out, v->model);
    buf_puts(out, ",\"content\":[");
    if (finished) {
        buf_puts(out, "{\"type\":\"text\",\"text\":");
        buf_json(out, v->text, v->text_len);
        buf_puts(out, "}],");
        put_reason(out, v);
    } else {
        buf_puts(out, "],\"stop_reason\":null,\"stop_sequence\":null");
    }
    buf_putc(out, ',');
    put_usage(out, v->usage, finished);
    if (finished) openai_render_session_of(out, v->session, v->session_version);
    buf_putc(out, '}');
}

void anthropic_render_message(struct buf *out, const struct anthropic_view *v) { put_message(out, v, true); }

/* ---- the stream ---- */

static void begin_event(struct buf *out, const char *type) {
    sse_name(out, type);
    sse_begin(out);
    buf_addf(out, "{\"type\":\"%s\"", type);
}

static void end_event(struct buf *out) {
    buf_putc(out, '}');
    sse_end(out);
}

void anthropic_render_opening(struct buf *out, const struct anthropic_view *v) {
    begin_event(out, "message_start");
    buf_puts(out, ",\"message\":");
    put_message(out, v, false);
    end_event(out);
    begin_event(out, "content_block_start");
    buf_puts(out, ",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
    end_event(out);
}

void anthropic_render_delta(struct buf *out, const struct anthropic_view *v) {
    begin_event(out, "content_block_delta");
    buf_puts(out, ",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":");
    buf_json(out, v->text, v->text_len);
    buf_putc(out, '}');
    end_event(out);
}

void anthropic_render_ending(struct buf *out, const struct anthropic_view *v) {
    begin_event(out, "content_block_stop");
    buf_puts(out, ",\"index\":0");
    end_event(out);
    begin_event(out, "message_delta");
    buf_puts(out, ",\"delta\":{");
    put_reason(out, v);
    buf_puts(out, "},");
    put_usage(out, v->usage, true);
    openai_render_session_of(out, v->session, v->session_version);
    end_event(out);
    begin_event(out, "message_stop");
    end_event(out);
}

/* ---- errors ---- */

static const char *error_type(unsigned http) {
    switch (http) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    default: return http < 500 ? "invalid_request_error" : "api_error";
    }
}

/* param and code are this server's addition. */
static void put_error(struct buf *out, const struct openai_error *e, const char *request_id) {
    buf_addf(out, "\"error\":{\"type\":\"%s\",\"message\":", error_type(e->http));
    openai_put_any(out, e->message);
    buf_puts(out, ",\"param\":");
    openai_put_any_or_null(out, e->param);
    buf_puts(out, ",\"code\":");
    openai_put_text_or_null(out, e->code);
    openai_put_trace(out, e);
    buf_puts(out, "},\"request_id\":");
    openai_put_text(out, request_id);
}

void anthropic_render_error(struct buf *out, const struct openai_error *e, const char *request_id) {
    buf_puts(out, "{\"type\":\"error\",");
    put_error(out, e, request_id);
    buf_putc(out, '}');
}

void anthropic_render_error_event(struct buf *out, const struct openai_error *e, const char *request_id) {
    begin_event(out, "error");
    buf_putc(out, ',');
    put_error(out, e, request_id);
    end_event(out);
}
