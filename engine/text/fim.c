/* fim.c - fill in the middle; see fim.h. */
#include "fim.h"
#include "engine/base/fail.h"

#include <string.h>

int fim_encode(const struct tokenizer *t, const char *before, size_t n_before, const char *after, size_t n_after,
               int32_t **ids, size_t *n_ids, struct rod_error *err) {
    static const char *const frame[] = {"<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"};
    bool plain = true;
    for (int i = 0; i < 3; i++) {
        const size_t len = strlen(frame[i]);
        if (tokenizer_find(t, frame[i]) < 0)
            return rod_fail_at(err, ROD_EUNSUPPORTED, "suffix",
                               "suffix needs a tokenizer with %s, which this model's lacks", frame[i]);
        /* A file about such models may spell them: then it is all plain text, so that the hole stays where it is. */
        plain = plain && !memmem(before, n_before, frame[i], len) && !memmem(after, n_after, frame[i], len);
    }
    const struct tokenizer_piece pieces[] = {{frame[0], strlen(frame[0]), true},
                                             {before, n_before, plain},
                                             {frame[1], strlen(frame[1]), true},
                                             {after, n_after, plain},
                                             {frame[2], strlen(frame[2]), true}};
    return tokenizer_encode_pieces(t, pieces, 5, ids, n_ids, err);
}
