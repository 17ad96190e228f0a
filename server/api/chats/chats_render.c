/* chats_render.c - chunks and whole answers of chats. */
#include "chats.h"
#include "server/api/api_put.h"

#include <assert.h>

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
    buf_puts(out, ",\"delta\":{");
    if (c->role) buf_puts(out, "\"role\":\"assistant\",");
    if (c->n_calls)
        put_calls(out, c, true);
    else if (!c->finished)
        put_content(out, c);
    buf_putc(out, '}');
}

static void put_message(struct buf *out, const struct api_choice *c) {
    buf_puts(out, ",\"message\":{\"role\":\"assistant\",");
    put_content(out, c);
    buf_puts(out, ",\"refusal\":null");
    if (c->n_calls) buf_putc(out, ',');
    put_calls(out, c, false);
    buf_putc(out, '}');
}

static void put_logprobs(struct buf *out, const struct api_logprobs *l) {
    buf_puts(out, ",\"logprobs\":");
    if (!l) {
        buf_puts(out, "null");
        return;
    }
    buf_putc(out, '{');
    api_put_fragment(out, "content", &l->tokens);
    buf_puts(out, ",\"refusal\":null}");
}

/* Behind what the choice says. */
static void put_rest(struct buf *out, const struct api_choice *c) {
    put_logprobs(out, c->logprobs);
    api_put_token_ids(out, c);
    api_put_finish(out, c);
}

void chats_render_chunk(struct buf *out, const struct buf *head, const struct api_choice *c,
                        const struct api_usage *usage, bool null_usage) {
    assert((!c->role && !c->n_calls) || !c->finished);
    api_put_part(out, head);
    buf_puts(out, "\"choices\":[{\"index\":");
    buf_int(out, c->index);
    put_delta(out, c);
    put_rest(out, c);
    buf_putc(out, ']');
    api_put_prompt(out, c); /* beside the choices, which have one prompt */
    api_put_chunk_end(out, c, usage, null_usage);
}

void chats_render_answer(struct buf *out, const struct buf *head, const struct api_choice *choices, size_t n_choices,
                         const struct api_usage *usage) {
    assert(n_choices);
    api_put_part(out, head);
    buf_puts(out, "\"choices\":[");
    for (size_t i = 0; i < n_choices; i++) {
        buf_puts(out, i ? ",{\"index\":" : "{\"index\":");
        buf_int(out, choices[i].index);
        put_message(out, &choices[i]);
        put_rest(out, &choices[i]);
    }
    buf_putc(out, ']');
    api_put_prompt(out, &choices[0]);
    api_put_chunk_end(out, &choices[0], usage, false);
}
