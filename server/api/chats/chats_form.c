/* chats_form.c - the form of chats: a message, or its deltas; log-probabilities are an object a token. */
#include "chats.h"
#include "server/api/api_choice.h"
#include "server/api/api_put.h"

static void put_content(struct buf *out, const struct api_choice *c) {
    buf_puts(out, "\"content\":");
    if (c->no_text)
        buf_puts(out, "null");
    else
        buf_json(out, c->text, c->text_len);
}

/* ,"tool_calls":[...], or nothing; index tells the pieces of a stream apart. */
static void put_calls(struct buf *out, const struct api_choice *c, bool indexed) {
    for (size_t i = 0; i < c->n_calls; i++) {
        const struct api_call *call = &c->calls[i];
        buf_puts(out, i ? ",{" : "\"tool_calls\":[{");
        if (indexed) buf_addf(out, "\"index\":%u,", call->index);
        if (call->id) buf_addf(out, "\"id\":\"%s\",\"type\":\"function\",", call->id);
        buf_puts(out, "\"function\":{");
        if (call->name) {
            buf_puts(out, "\"name\":");
            api_put_text(out, call->name);
            buf_putc(out, ',');
        }
        buf_puts(out, "\"arguments\":");
        buf_json(out, call->arguments, call->len);
        buf_puts(out, "}}");
    }
    if (c->n_calls) buf_putc(out, ']');
}

static void put_delta(struct buf *out, const struct api_choice *c) {
    buf_puts(out, "\"delta\":{");
    if (c->role) buf_puts(out, "\"role\":\"assistant\",");
    if (c->n_calls)
        put_calls(out, c, true);
    else if (!c->finished)
        put_content(out, c);
    buf_putc(out, '}');
}

static void put_message(struct buf *out, const struct api_choice *c) {
    buf_puts(out, "\"message\":{\"role\":\"assistant\",");
    put_content(out, c);
    buf_puts(out, ",\"refusal\":null");
    if (c->n_calls) buf_putc(out, ',');
    put_calls(out, c, false);
    buf_putc(out, '}');
}

static void put_said(struct buf *out, const struct api_choice *c, bool chunk) {
    if (chunk)
        put_delta(out, c);
    else
        put_message(out, c);
}

/* {"token":..,"logprob":..,"bytes":[..] with the brace left open. */
static void put_chat_token(struct buf *out, int32_t id, float logprob, const struct api_vocab *vocab) {
    size_t n = 0;
    const char *bytes = vocab->bytes(vocab->arg, id, &n);
    buf_puts(out, "{\"token\":");
    api_put_token(out, id, vocab->as_ids, vocab);
    buf_puts(out, ",\"logprob\":");
    buf_logprob(out, logprob);
    buf_puts(out, ",\"bytes\":");
    if (!bytes) {
        buf_puts(out, "null");
        return;
    }
    buf_putc(out, '[');
    for (size_t i = 0; i < n; i++) {
        api_put_comma(out, i);
        buf_int(out, (unsigned char)bytes[i]);
    }
    buf_putc(out, ']');
}

static void score(struct api_logprobs *l, const struct rod_token *t, bool in_text, const struct api_vocab *vocab) {
    struct buf *out = &l->tokens;
    (void)in_text;
    if (out->len) buf_putc(out, ',');
    put_chat_token(out, t->id, t->logprob, vocab);
    buf_puts(out, ",\"top_logprobs\":[");
    for (uint32_t i = 0; i < t->n_top; i++) {
        api_put_comma(out, i);
        put_chat_token(out, t->top[i].id, t->top[i].logprob, vocab);
        buf_putc(out, '}');
    }
    buf_puts(out, "]}");
}

static void put_logprobs(struct buf *out, const struct api_logprobs *l) {
    api_put_fragment(out, "content", &l->tokens);
    buf_puts(out, ",\"refusal\":null");
}

static const struct choice_style chats_style = {.id_prefix = "chatcmpl-",
                                                .object = "chat.completion",
                                                .chunk_object = "chat.completion.chunk",
                                                .together = true,
                                                .before_text = "\"delta\":{\"content\":",
                                                .behind_text = "}",
                                                .put_said = put_said,
                                                .put_logprobs = put_logprobs,
                                                .score = score};

const struct answer_form chats_form = {.name = "chats",
                                       .number = 1,
                                       .input = "messages",
                                       .style = &chats_style,
                                       .state_bytes = sizeof(struct choice_state),
                                       .parse = chats_parse,
                                       .join = api_join_session,
                                       .session_fault = api_session_fault,
                                       .prompt = api_choice_prompt,
                                       .token = api_choice_token,
                                       .open = api_choice_open,
                                       .text = api_choice_text,
                                       .call = api_choice_call,
                                       .arguments = api_choice_call,
                                       .finish = api_choice_finish,
                                       .whole = api_choice_whole,
                                       .error = api_choice_error,
                                       .refuse = api_refuse,
                                       .close = api_choice_close};
