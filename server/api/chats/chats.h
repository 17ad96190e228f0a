/* chats.h - OpenAI's chats, /v1/chat/completions.
 *
 * Threads: any, one at a time for an answer. Pure.
 */
#ifndef CHATS_H
#define CHATS_H

#include "server/api/api_choice.h"

extern const struct answer_form chats_form;

int chats_parse(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                struct api_error *err);

/* A chunk of a stream. head: api_put_head. usage NULL: left out; null_usage: "usage":null, which clients expect on the
 * other chunks when they asked for usage. */
void chats_render_chunk(struct buf *out, const struct buf *head, const struct api_choice *choice,
                        const struct api_usage *usage, bool null_usage);
void chats_render_answer(struct buf *out, const struct buf *head, const struct api_choice *choices, size_t n_choices,
                         const struct api_usage *usage);
void chats_logprobs_add(struct api_logprobs *l, const struct rod_token *tokens, size_t n_tokens, bool shown,
                        const struct api_vocab *vocab);

#endif
