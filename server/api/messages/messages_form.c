/* messages_form.c - the form of Anthropic's messages: blocks of text and calls, streams of named events, and errors in
 * its words. */
#include "messages.h"
#include "server/api/api_put.h"
#include "server/api/sse.h"

#include <assert.h>
#include <stdlib.h>
#include <time.h>

struct blocks { /* the state: of a stream, so far; each is a text or a call */
    uint32_t n;
    bool text_open, call_open; /* the last one */
};

/* Of a message that has begun nothing is known but its prompt. Tokens from and for a cache are not among the
 * input_tokens. */
static void put_usage(struct buf *out, const struct api_usage *u, bool finished) {
    assert(u->cached_tok + u->created_tok <= u->prompt_tok && u->created_long_tok <= u->created_tok);
    buf_addf(out,
             "\"usage\":{\"input_tokens\":%llu,\"cache_creation_input_tokens\":%llu,\"cache_read_input_tokens\":%llu,"
             "\"cache_creation\":{\"ephemeral_5m_input_tokens\":%llu,\"ephemeral_1h_input_tokens\":%llu},"
             "\"output_tokens\":%llu",
             (unsigned long long)(u->prompt_tok - u->cached_tok - u->created_tok), (unsigned long long)u->created_tok,
             (unsigned long long)u->cached_tok, (unsigned long long)(u->created_tok - u->created_long_tok),
             (unsigned long long)u->created_long_tok, (unsigned long long)(finished ? u->completion_tok : 0));
    if (u->kept_tools) buf_addf(out, ",\"kept_tools\":%llu", (unsigned long long)u->kept_tools);
    buf_putc(out, '}');
}

/* "stop_reason":...,"stop_sequence":... */
static void put_reason(struct buf *out, const struct answer_choice *choice) {
    const bool called = choice->split.n_calls && choice->split.whole;
    buf_addf(out, "\"stop_reason\":\"%s\",\"stop_sequence\":",
             choice->reason == ROD_FINISH_LENGTH ? "max_tokens"
             : called                            ? "tool_use"
             : choice->stop_string               ? "stop_sequence"
                                                 : "end_turn");
    api_put_text_or_null(out, choice->stop_string);
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
static void put_content(struct buf *out, const struct answer_choice *choice) {
    struct buf joined = {0};
    size_t len, n;
    const char *text = answer_text(choice, &joined, &len);
    struct api_call *calls = answer_calls(choice, &n);
    if (choice->failed || joined.failed || (n && !calls)) out->failed = true;
    if (len || !n) {
        buf_puts(out, "{\"type\":\"text\",\"text\":");
        buf_json(out, text, len);
        buf_putc(out, '}');
    }
    for (size_t i = 0; calls && i < n; i++) {
        if (i || len) buf_putc(out, ',');
        buf_puts(out, "{\"type\":\"tool_use\",\"id\":");
        put_call_id(out, calls[i].id);
        buf_puts(out, ",\"name\":");
        api_put_text(out, calls[i].name);
        buf_puts(out, ",\"input\":");
        put_input(out, &calls[i]);
        buf_putc(out, '}');
    }
    free(calls);
    buf_fini(&joined);
}

static void put_message(struct buf *out, const struct answer_choice *choice, bool finished) {
    const struct answer *a = choice->answer;
    assert(a->n_choices == 1 && *a->id);
    buf_puts(out, "{\"id\":\"msg_");
    buf_puts(out, a->id);
    buf_puts(out, "\",\"type\":\"message\",\"role\":\"assistant\",\"model\":");
    api_put_text(out, answer_model(a));
    buf_puts(out, ",\"content\":[");
    if (finished) {
        put_content(out, choice);
        buf_puts(out, "],");
        put_reason(out, choice);
    } else {
        buf_puts(out, "],\"stop_reason\":null,\"stop_sequence\":null");
    }
    buf_putc(out, ',');
    put_usage(out, &a->usage, finished);
    if (finished) api_put_session(out, answer_session(a), a->session_version, a->session_unseen);
    buf_putc(out, '}');
}

static void messages_whole(struct answer *a, struct buf *out) { put_message(out, &a->choices[0], true); }

/* ---- the stream ---- */

static void begin_event(struct buf *out, const char *type) {
    buf_addf(out, SSE_NAME "%s\n" SSE_DATA "{\"type\":\"%s\"", type, type);
}

static void end_event(struct buf *out) { buf_puts(out, "}" SSE_END); }

static void messages_open(struct answer_choice *choice) {
    struct buf *out = &choice->answer->frame;
    const size_t before = out->len;
    begin_event(out, "message_start");
    buf_puts(out, ",\"message\":");
    put_message(out, choice, false);
    end_event(out);
    choice->answer->opening_bytes += out->len - before;
    choice->opened = true;
}

static void begin_block_event(struct answer *a, const char *type) {
    const struct blocks *b = a->state;
    assert(b->n && (b->text_open || b->call_open));
    begin_event(&a->frame, type);
    buf_addf(&a->frame, ",\"index\":%u", b->n - 1);
}

static void close_block(struct answer *a) {
    struct blocks *b = a->state;
    if (!b->text_open && !b->call_open) return;
    begin_block_event(a, "content_block_stop");
    end_event(&a->frame);
    b->text_open = b->call_open = false;
}

static void open_text(struct answer *a) {
    struct blocks *b = a->state;
    if (b->text_open) return;
    close_block(a);
    b->n++;
    b->text_open = true;
    begin_block_event(a, "content_block_start");
    buf_puts(&a->frame, ",\"content_block\":{\"type\":\"text\",\"text\":\"\"}");
    end_event(&a->frame);
}

static void messages_text(struct answer_choice *choice, const char *text, size_t len) {
    struct answer *a = choice->answer;
    if (!len) return;
    open_text(a);
    begin_block_event(a, "content_block_delta");
    buf_puts(&a->frame, ",\"delta\":{\"type\":\"text_delta\",\"text\":");
    buf_json(&a->frame, text, len);
    buf_putc(&a->frame, '}');
    end_event(&a->frame);
}

static void messages_call(struct answer_choice *choice, const struct api_call *call) {
    struct answer *a = choice->answer;
    struct blocks *b = a->state;
    close_block(a);
    b->n++;
    b->call_open = true;
    begin_block_event(a, "content_block_start");
    buf_puts(&a->frame, ",\"content_block\":{\"type\":\"tool_use\",\"id\":");
    put_call_id(&a->frame, call->id);
    buf_puts(&a->frame, ",\"name\":");
    api_put_text(&a->frame, call->name);
    buf_puts(&a->frame, ",\"input\":{}}");
    end_event(&a->frame);
}

static void messages_arguments(struct answer_choice *choice, const struct api_call *call) {
    struct answer *a = choice->answer;
    begin_block_event(a, "content_block_delta");
    buf_puts(&a->frame, ",\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":");
    buf_json(&a->frame, call->arguments, call->len);
    buf_putc(&a->frame, '}');
    end_event(&a->frame);
}

static void messages_finish(struct answer_choice *choice, bool last) {
    struct answer *a = choice->answer;
    const struct blocks *b = a->state;
    assert(last);
    if (!b->n) open_text(a);
    close_block(a);
    begin_event(&a->frame, "message_delta");
    buf_puts(&a->frame, ",\"delta\":{");
    put_reason(&a->frame, choice);
    buf_puts(&a->frame, "},");
    put_usage(&a->frame, &a->usage, true);
    api_put_session(&a->frame, answer_session(a), a->session_version, a->session_unseen);
    end_event(&a->frame);
    begin_event(&a->frame, "message_stop");
    end_event(&a->frame);
}

static void messages_ping(struct answer *a) {
    begin_event(&a->frame, "ping");
    end_event(&a->frame);
}

static void messages_model(struct buf *out, const char *name, int64_t created_unix_s) {
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

static void messages_refuse(struct buf *out, const struct api_error *e, const char *request_id) {
    buf_puts(out, "{\"type\":\"error\",");
    put_error(out, e, request_id);
    buf_putc(out, '}');
}

static void messages_error(struct answer *a, const struct api_error *e, const char *request_id) {
    begin_event(&a->frame, "error");
    buf_putc(&a->frame, ',');
    put_error(&a->frame, e, request_id);
    end_event(&a->frame);
}

const struct answer_form messages_form = {.name = "messages",
                                          .number = 17,
                                          .input = "messages",
                                          .id_header = "request-id",
                                          .client_header = "anthropic-version",
                                          .state_bytes = sizeof(struct blocks),
                                          .parse = messages_parse,
                                          .join = api_join_session,
                                          .session_fault = api_session_fault,
                                          .open = messages_open,
                                          .ping = messages_ping,
                                          .text = messages_text,
                                          .call = messages_call,
                                          .arguments = messages_arguments,
                                          .finish = messages_finish,
                                          .whole = messages_whole,
                                          .error = messages_error,
                                          .refuse = messages_refuse,
                                          .model = messages_model};
