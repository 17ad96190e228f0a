/* completions_render.c - chunks and whole answers of completions. */
#include "completions.h"

#include <assert.h>

static void put_logprobs(struct buf *out, const struct api_logprobs *l) {
    buf_puts(out, ",\"logprobs\":");
    if (!l) {
        buf_puts(out, "null");
        return;
    }
    buf_putc(out, '{');
    api_put_fragment(out, "tokens", &l->tokens);
    buf_putc(out, ',');
    api_put_fragment(out, "token_logprobs", &l->values);
    buf_putc(out, ',');
    api_put_fragment(out, "top_logprobs", &l->tops);
    buf_putc(out, ',');
    api_put_fragment(out, "text_offset", &l->offsets);
    buf_putc(out, '}');
}

/* What is the prompt's stands in the choice: each may have another prompt. */
static void put_choice(struct buf *out, const struct api_choice *c) {
    assert(!c->role && !c->n_calls);
    buf_puts(out, "{\"index\":");
    buf_int(out, c->index);
    buf_puts(out, ",\"text\":");
    buf_json(out, c->text, c->text_len);
    put_logprobs(out, c->logprobs);
    api_put_prompt(out, c);
    api_put_token_ids(out, c);
    api_put_finish(out, c);
}

void completions_render(struct buf *out, const struct buf *head, const struct api_choice *choices, size_t n_choices,
                        const struct api_usage *usage, bool null_usage) {
    assert(n_choices);
    api_put_part(out, head);
    buf_puts(out, "\"choices\":[");
    for (size_t i = 0; i < n_choices; i++) {
        if (i) buf_putc(out, ',');
        put_choice(out, &choices[i]);
    }
    buf_putc(out, ']');
    api_put_chunk_end(out, &choices[0], usage, null_usage);
}
