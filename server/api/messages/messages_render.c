/* messages_render.c - messages, their streams of named events, and errors in Anthropic's words; see messages.h. */
#include "messages.h"
#include "server/api/api_put.h"
#include "server/api/sse.h"

#include <assert.h>
#include <time.h>

/* Of a message that has begun nothing is known but its prompt. Tokens from and for a cache are not among the
 * input_tokens. */
static void put_usage(struct buf *out, const struct api_usage *u, bool finished) {
    assert(u->cached_tok + u->created_tok <= u->prompt_tok && u->created_long_tok <= u->created_tok);
    buf_addf(out,
             "\"usage\":{\"input_tokens\":%llu,\"cache_creation_input_tokens\":%llu,\"cache_read_input_tokens\":%llu,"
             "\"cache_creation\":{\"ephemeral_5m_input_tokens\":%llu,\"ephemeral_1h_input_tokens\":%llu},"
             "\"output_tokens\":%llu}",
             (unsigned long long)(u->prompt_tok - u->cached_tok - u->created_tok), (unsigned long long)u->created_tok,
             (unsigned long long)u->cached_tok, (unsigned long long)(u->created_tok - u->created_long_tok),
             (unsigned long long)u->created_long_tok, (unsigned long long)(finished ? u->completion_tok : 0));
}

/* "stop_reason":...,"stop_sequence":... */
static void put_reason(struct buf *out, const struct messages_view *v) {
    buf_addf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":",
             v->reason == ROD_FINISH_LENGTH ? "max_tokens"
             : v->called                    ? "tool_use"
             : v->stop_string               ? "stop_sequence"
                                            : "end_turn");
    api_put_text_or_null(out, v->stop_string);
}

static void put_call_id(struct buf *out, const char *id) {
    const char *at = strchr(id, '_');
    buf_addf(out, "\"toolu_%s\"", at ? at + 1 : id);
}

/* A call that was cut has the beginning of an object: the object without what it says is left. */
static void put_input(struct buf *out, const struct api_call *call) {
    json_t *input = json_loadb(call->arguments, call->len, JSON_ALLOW_NUL, NULL);
    if (json_is_object(input))
        buf_add(out, call->arguments, call->len);
    else
        buf_puts(out, "{}");
    json_decref(input);
}

/* A message without calls has a text, be it empty. */
static void put_content(struct buf *out, const struct messages_view *v) {
    if (v->text_len || !v->n_calls) {
        buf_puts(out, "{\"type\":\"text\",\"text\":");
        buf_json(out, v->text, v->text_len);
        buf_putc(out, '}');
    }
    for (size_t i = 0; i < v->n_calls; i++) {
        if (i || v->text_len) buf_putc(out, ',');
        buf_puts(out, "{\"type\":\"tool_use\",\"id\":");
        put_call_id(out, v->calls[i].id);
        buf_puts(out, ",\"name\":");
        api_put_text(out, v->calls[i].name);
        buf_puts(out, ",\"input\":");
        put_input(out, &v->calls[i]);
        buf_putc(out, '}');
    }
}

static void put_message(struct buf *out, const struct messages_view *v, bool finished) {
    buf_puts(out, "{\"id\":\"msg_");
    buf_puts(out, v->id);
    buf_puts(out, "\",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    api_put_text(out, v->model);
    buf_puts(out, ",\"content\":[");
    if (finished) {
        put_content(out, v);
        buf_puts(out, "],");
        put_reason(out, v);
    } else {
        buf_puts(out, "],\"stop_reason\":null,\"stop_sequence\":null");
    }
    buf_putc(out, ',');
    put_usage(out, v->usage, finished);
    if (finished) api_render_session_of(out, v->session, v->session_version);
    buf_putc(out, '}');
}

void messages_render_message(struct buf *out, const struct messages_view *v) { put_message(out, v, true); }

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

void messages_render_opening(struct buf *out, const struct messages_view *v) {
    begin_event(out, "message_start");
    buf_puts(out, ",\"message\":");
    put_message(out, v, false);
    end_event(out);
}

static void begin_block_event(struct buf *out, const char *type, const struct messages_blocks *b) {
    assert(b->n && (b->text_open || b->call_open));
    begin_event(out, type);
    buf_addf(out, ",\"index\":%u", b->n - 1);
}

static void close_block(struct buf *out, struct messages_blocks *b) {
    if (!b->text_open && !b->call_open) return;
    begin_block_event(out, "content_block_stop", b);
    end_event(out);
    b->text_open = b->call_open = false;
}

static void open_text(struct buf *out, struct messages_blocks *b) {
    if (b->text_open) return;
    close_block(out, b);
    b->n++;
    b->text_open = true;
    begin_block_event(out, "content_block_start", b);
    buf_puts(out, ",\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
    end_event(out);
}

void messages_render_text(struct buf *out, struct messages_blocks *b, const char *text, size_t len) {
    open_text(out, b);
    begin_block_event(out, "content_block_delta", b);
    buf_puts(out, ",\"delta\":{\"type\":\"text_delta\",\"text\":");
    buf_json(out, text, len);
    buf_putc(out, '}');
    end_event(out);
}

void messages_render_call(struct buf *out, struct messages_blocks *b, const char *id, const char *name) {
    close_block(out, b);
    b->n++;
    b->call_open = true;
    begin_block_event(out, "content_block_start", b);
    buf_puts(out, ",\"content_block\":{\"type\":\"tool_use\",\"id\":");
    put_call_id(out, id);
    buf_puts(out, ",\"name\":");
    api_put_text(out, name);
    buf_puts(out, ",\"input\":{}}");
    end_event(out);
}

void messages_render_arguments(struct buf *out, const struct messages_blocks *b, const char *text, size_t len) {
    assert(b->call_open);
    begin_block_event(out, "content_block_delta", b);
    buf_puts(out, ",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":");
    buf_json(out, text, len);
    buf_putc(out, '}');
    end_event(out);
}

void messages_render_ending(struct buf *out, struct messages_blocks *b, const struct messages_view *v) {
    if (!b->n) open_text(out, b);
    close_block(out, b);
    begin_event(out, "message_delta");
    buf_puts(out, ",\"delta\":{");
    put_reason(out, v);
    buf_puts(out, "},");
    put_usage(out, v->usage, true);
    api_render_session_of(out, v->session, v->session_version);
    end_event(out);
    begin_event(out, "message_stop");
    end_event(out);
}

void messages_render_model(struct buf *out, const char *name, int64_t created_unix_s) {
    const time_t created = (time_t)created_unix_s;
    char when[32] = "";
    struct tm utc;
    if (gmtime_r(&created, &utc)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc);
    buf_puts(out, "{\"type\":\"model\",\"id\":");
    api_put_text(out, name);
    buf_puts(out, ",\"display_name\":");
    api_put_text(out, name);
    buf_addf(out, ",\"created_at\":\"%s\"}", when);
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
static void put_error(struct buf *out, const struct api_error *e, const char *request_id) {
    buf_addf(out, "\"error\":{\"type\":\"%s\",\"message\":", error_type(e->http));
    api_put_any(out, e->message);
    buf_puts(out, ",\"param\":");
    api_put_any_or_null(out, e->param);
    buf_puts(out, ",\"code\":");
    api_put_text_or_null(out, e->code);
    api_put_trace(out, e);
    buf_puts(out, "},\"request_id\":");
    api_put_text(out, request_id);
}

void messages_render_error(struct buf *out, const struct api_error *e, const char *request_id) {
    buf_puts(out, "{\"type\":\"error\",");
    put_error(out, e, request_id);
    buf_putc(out, '}');
}

void messages_render_error_event(struct buf *out, const struct api_error *e, const char *request_id) {
    begin_event(out, "error");
    buf_putc(out, ',');
    put_error(out, e, request_id);
    end_event(out);
}
