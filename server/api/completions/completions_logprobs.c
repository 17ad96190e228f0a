/* completions_logprobs.c - log-probabilities as completions show them: parallel arrays, with the place of each token in
 * the text. */
#include "completions.h"

#include <assert.h>
#include <string.h>

/* The byte is of the character that is not whole yet; behind its second byte any two of a tail would do. */
static bool of_part(const struct api_logprobs *l, char byte) {
    char whole[4] = {'\x80', '\x80', '\x80', '\x80'};
    memcpy(whole, l->part, l->n_part);
    if (l->n_part) whole[l->n_part] = byte;
    return l->n_part && buf_utf8(whole, sizeof whole) > l->n_part;
}

/* Counts characters as the text has them: bytes that cannot become a character are one, which ends at the first byte
 * that does not continue it. */
static void count_chars(struct api_logprobs *l, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const unsigned char byte = (unsigned char)bytes[i];
        const bool inside = of_part(l, bytes[i]);
        if (!inside) {
            l->n_chars++;
            l->n_part = 0;
        }
        assert(l->n_part < sizeof l->part);
        if (inside || (byte >= 0xc2 && byte <= 0xf4)) l->part[l->n_part++] = bytes[i];
        if (l->n_part && buf_utf8(l->part, l->n_part)) l->n_part = 0;
    }
}

/* What every token has in the legacy object of parallel arrays: its text and where that begins. */
static void add_place(struct api_logprobs *l, int32_t id, bool shown, const struct api_vocab *vocab) {
    if (l->tokens.len) {
        buf_putc(&l->tokens, ',');
        buf_putc(&l->values, ',');
        buf_putc(&l->tops, ',');
        buf_putc(&l->offsets, ',');
    }
    api_put_token(&l->tokens, id, vocab->as_ids, vocab);
    size_t n = 0;
    const char *bytes = vocab->bytes(vocab->arg, id, &n);
    if (!bytes || !shown) n = 0;
    const bool inside = n && of_part(l, bytes[0]);
    buf_int(&l->offsets, (int64_t)(l->n_chars - inside));
    count_chars(l, bytes, n);
}

void completions_logprobs_add_first(struct api_logprobs *l, int32_t id, const struct api_vocab *vocab) {
    add_place(l, id, true, vocab);
    buf_puts(&l->values, "null");
    buf_puts(&l->tops, "null");
}

/* The sampled token is in the top list even when it is not among the best. */
static void add_legacy(struct api_logprobs *l, const struct rod_token *t, bool shown, const struct api_vocab *vocab) {
    add_place(l, t->id, shown, vocab);
    buf_logprob(&l->values, t->logprob);
    buf_putc(&l->tops, '{');
    bool seen = false;
    for (uint32_t i = 0; i < t->n_top; i++) {
        if (i) buf_putc(&l->tops, ',');
        api_put_token(&l->tops, t->top[i].id, vocab->as_ids, vocab);
        buf_putc(&l->tops, ':');
        buf_logprob(&l->tops, t->top[i].logprob);
        seen = seen || t->top[i].id == t->id;
    }
    if (!seen) {
        if (t->n_top) buf_putc(&l->tops, ',');
        api_put_token(&l->tops, t->id, vocab->as_ids, vocab);
        buf_putc(&l->tops, ':');
        buf_logprob(&l->tops, t->logprob);
    }
    buf_putc(&l->tops, '}');
}

void completions_logprobs_add(struct api_logprobs *l, const struct rod_token *tokens, size_t n_tokens, bool shown,
                              const struct api_vocab *vocab) {
    for (size_t i = 0; i < n_tokens; i++) add_legacy(l, &tokens[i], shown, vocab);
}
