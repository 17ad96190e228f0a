/* api_tokens.c - see api_tokens.h. */
#include "api_put.h"
#include "api_tokens.h"

#include <assert.h>
#include <string.h>

static bool utf8_complete(const char *bytes, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t len = buf_utf8(bytes + i, n - i);
        if (!len) return false;
        i += len;
    }
    return true;
}

void api_put_token(struct buf *out, int32_t id, bool as_id, const struct api_vocab *vocab) {
    size_t n = 0;
    const char *bytes = as_id ? NULL : vocab->bytes(vocab->arg, id, &n);
    if (!bytes) {
        buf_addf(out, "\"token_id:%d\"", id);
    } else if (utf8_complete(bytes, n)) {
        buf_json(out, bytes, n);
    } else {
        buf_puts(out, "\"bytes:");
        for (size_t i = 0; i < n; i++) buf_addf(out, "\\\\x%02x", (unsigned char)bytes[i]);
        buf_putc(out, '"');
    }
}

void api_render_ids(struct buf *out, const int32_t *ids, size_t n_ids) {
    for (size_t i = 0; i < n_ids; i++) {
        api_put_comma(out, i);
        buf_int(out, ids[i]);
    }
}

void api_render_pieces(struct buf *out, const int32_t *ids, size_t n_ids, const struct api_vocab *vocab) {
    for (size_t i = 0; i < n_ids; i++) {
        size_t n = 0, at = 0;
        const char *bytes = vocab->bytes(vocab->arg, ids[i], &n);
        if (!bytes) n = 0;
        while (at < n && buf_utf8(bytes + at, n - at)) at += buf_utf8(bytes + at, n - at);
        api_put_comma(out, i);
        buf_addf(out, "{\"id\":%d,\"piece\":", ids[i]);
        if (at == n)
            buf_json(out, n ? bytes : "", n);
        else
            for (size_t k = 0; k < n; k++) buf_addf(out, "%c%u", k ? ',' : '[', (unsigned char)bytes[k]);
        buf_puts(out, at == n ? "}" : "]}");
    }
}

/* Where in text the token's bytes begin, from at on; a token that is not there may be one that is not shown. */
void api_render_offsets(struct buf *out, const char *text, size_t len, const int32_t *ids, size_t n_ids,
                        const struct api_vocab *vocab) {
    const size_t mark = out->len;
    size_t at = 0, n_chars = 0; /* bytes of text passed, and characters begun in them */
    buf_putc(out, '[');
    for (size_t i = 0; i < n_ids; i++) {
        size_t n = 0;
        const char *bytes = vocab->bytes(vocab->arg, ids[i], &n);
        if (!bytes || n > len - at || memcmp(bytes, text + at, n) != 0) n = 0;
        const bool inside = n && ((unsigned char)text[at] & 0xc0) == 0x80;
        const size_t begin = n_chars - inside;
        for (size_t k = 0; k < n; k++) n_chars += ((unsigned char)text[at + k] & 0xc0) != 0x80;
        at += n;
        assert(at <= len && begin <= n_chars);
        api_put_comma(out, i);
        buf_putc(out, '[');
        buf_int(out, (int64_t)begin);
        buf_putc(out, ',');
        buf_int(out, (int64_t)n_chars);
        buf_putc(out, ']');
    }
    buf_putc(out, ']');
    if (at == len || out->failed) return;
    out->len = mark; /* the tokens are not this text */
    buf_puts(out, "null");
}

static void put_ranked(struct buf *out, int32_t id, float logprob, uint32_t rank, const struct api_vocab *vocab) {
    buf_putc(out, '"');
    buf_int(out, id);
    buf_puts(out, "\":{\"logprob\":");
    buf_logprob(out, logprob);
    buf_puts(out, ",\"rank\":");
    buf_int(out, rank);
    buf_puts(out, ",\"decoded_token\":");
    api_put_token(out, id, false, vocab);
    buf_putc(out, '}');
}

void api_prompt_logprobs_add(struct buf *out, const struct rod_token *t, const struct api_vocab *vocab) {
    if (out->len) buf_putc(out, ',');
    if (!t) {
        buf_puts(out, "null");
        return;
    }
    buf_putc(out, '{');
    put_ranked(out, t->id, t->logprob, t->rank, vocab);
    for (uint32_t i = 0; i < t->n_top; i++) {
        if (t->top[i].id == t->id) continue;
        buf_putc(out, ',');
        put_ranked(out, t->top[i].id, t->top[i].logprob, i + 1, vocab);
    }
    buf_putc(out, '}');
}

void api_logprobs_clear(struct api_logprobs *l) {
    buf_clear(&l->tokens);
    buf_clear(&l->values);
    buf_clear(&l->tops);
    buf_clear(&l->offsets);
}

void api_logprobs_fini(struct api_logprobs *l) {
    buf_fini(&l->tokens);
    buf_fini(&l->values);
    buf_fini(&l->tops);
    buf_fini(&l->offsets);
}
