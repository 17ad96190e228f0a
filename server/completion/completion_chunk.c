/* completion_chunk.c - a chunk of a stream: what a choice shows next, as a frame. */
#include "completion_internal.h"

#include "server/api/sse.h"

/* A choice's opening comes with its first token and does not count it. */
void completion_push_chunk(struct completion *c, const struct completion_choice *choice,
                           const struct api_choice *shown) {
    struct api_usage usage = {.prompt_tok = c->prompts[choice->prompt].n_ids,
                              .completion_tok = choice->role_sent ? choice->completion_tok : 0};
    if (*c->session_id) usage = c->usage;
    sse_begin(&c->frame);
    api_render_chunk(&c->frame, c->kind, &c->prefix, shown, c->request.continuous_usage ? &usage : NULL,
                     c->request.include_usage);
    sse_end(&c->frame);
}
