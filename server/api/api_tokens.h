/* api_tokens.h - tokens as answers show them: spelled, as ids, with their log-probabilities.
 *
 * Ownership: rendering appends to a buf. Threads: any. Pure: bytes of tokens come from a callback.
 */
#ifndef API_TOKENS_H
#define API_TOKENS_H

#include "server/base/buf.h"

#include "engine/rodimus.h"

struct api_vocab { /* the bytes of a token, or NULL */
    const char *(*bytes)(void *arg, int32_t id, size_t *len);
    void *arg;
    bool as_ids; /* log-probabilities of answers show "token_id:7" in place of text */
};

struct api_logprobs { /* JSON fragments that grow with the tokens; chat uses `tokens` alone */
    struct buf tokens, values, tops, offsets;
    uint64_t n_chars; /* begun in the text so far; a broken one is U+FFFD there */
    char part[4];     /* of the last of them, while it is not whole */
    uint32_t n_part;
};
void api_logprobs_clear(struct api_logprobs *l); /* empty, but the text goes on */
void api_logprobs_fini(struct api_logprobs *l);
/* prompt_logprobs as a fragment: {"7": {"logprob", "rank", "decoded_token"}, ...} a token, null for the first; token
 * NULL = the first. */
void api_prompt_logprobs_add(struct buf *out, const struct rod_token *token, const struct api_vocab *vocab);
/* "1,2,3" */
void api_render_ids(struct buf *out, const int32_t *ids, size_t n_ids);
/* One token as text: its UTF-8, "bytes:\xE2\x80" where it is a part of a character, "token_id:7" without a tokenizer,
 * or where ids are asked for. */
void api_put_token(struct buf *out, int32_t id, bool as_id, const struct api_vocab *vocab);
/* {"id":7,"piece":" a"},...; a piece that is no text is an array of its bytes. */
void api_render_pieces(struct buf *out, const int32_t *ids, size_t n_ids, const struct api_vocab *vocab);
/* "[[0,4],...]": where each token lies in the text, in characters; a part of a character has the whole one, and what
 * the text does not show (skip_special, or a token that was put in front of it) is empty. "null" where the tokens are
 * not the text: a normalizer has changed it. */
void api_render_offsets(struct buf *out, const char *text, size_t len, const int32_t *ids, size_t n_ids,
                        const struct api_vocab *vocab);

#endif
