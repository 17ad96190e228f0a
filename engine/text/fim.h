/* fim.h - code completion: what stands before and after a hole, as one prompt through the fill-in-the-middle tokens.
 * Any thread. */
#ifndef FIM_H
#define FIM_H

#include "tokenizer.h"

/* <|fim_begin|>before<|fim_hole|>after<|fim_end|>; ROD_EUNSUPPORTED with param "suffix" where the tokenizer lacks one
 * of these. Special tokens in before and after are recognised, as in every text prompt, but for these three. *ids
 * malloc'd. */
int fim_encode(const struct tokenizer *t, const char *before, size_t n_before, const char *after, size_t n_after,
               int32_t **ids, size_t *n_ids, struct rod_error *err);

#endif
