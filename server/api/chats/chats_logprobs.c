/* chats_logprobs.c - log-probabilities as chats show them: an object a token. */
#include "chats.h"
#include "server/api/api_put.h"

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

static void add_chat(struct api_logprobs *l, const struct rod_token *t, const struct api_vocab *vocab) {
    struct buf *out = &l->tokens;
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

void chats_logprobs_add(struct api_logprobs *l, const struct rod_token *tokens, size_t n_tokens, bool shown,
                        const struct api_vocab *vocab) {
    (void)shown;
    for (size_t i = 0; i < n_tokens; i++) add_chat(l, &tokens[i], vocab);
}
