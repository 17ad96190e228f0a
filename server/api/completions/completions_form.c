/* completions_form.c - the form of completions: text that goes on. */
#include "completions.h"
#include "server/api/api_choice.h"
#include "server/api/api_put.h"

#include <assert.h>
#include <string.h>

/* ---- log-probabilities: parallel arrays, with the place of each token in the text ---- */

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

static void score_first(struct api_logprobs *l, int32_t id, const struct api_vocab *vocab) {
    add_place(l, id, true, vocab);
    buf_puts(&l->values, "null");
    buf_puts(&l->tops, "null");
}

/* The sampled token is in the top list even when it is not among the best. */
static void score(struct api_logprobs *l, const struct rod_token *t, bool in_text, const struct api_vocab *vocab) {
    add_place(l, t->id, in_text, vocab);
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

static void put_logprobs(struct buf *out, const struct api_logprobs *l) {
    api_put_fragment(out, "tokens", &l->tokens);
    buf_putc(out, ',');
    api_put_fragment(out, "token_logprobs", &l->values);
    buf_putc(out, ',');
    api_put_fragment(out, "top_logprobs", &l->tops);
    buf_putc(out, ',');
    api_put_fragment(out, "text_offset", &l->offsets);
}

static const struct choice_style completions_style = {.id_prefix = "cmpl-",
                                                      .object = "text_completion",
                                                      .chunk_object = "text_completion",
                                                      .before_text = "\"text\":",
                                                      .behind_text = "",
                                                      .put_logprobs = put_logprobs,
                                                      .score = score,
                                                      .score_first = score_first};

const struct answer_form completions_form = {.name = "completions",
                                             .number = 0,
                                             .input = "prompt",
                                             .style = &completions_style,
                                             .state_bytes = sizeof(struct choice_state),
                                             .parse = completions_parse,
                                             .join = api_join_session,
                                             .session_fault = api_session_fault,
                                             .prompt = api_choice_prompt,
                                             .token = api_choice_token,
                                             .open = api_choice_open,
                                             .text = api_choice_text,
                                             .finish = api_choice_finish,
                                             .whole = api_choice_whole,
                                             .error = api_choice_error,
                                             .refuse = api_refuse,
                                             .close = api_choice_close};
