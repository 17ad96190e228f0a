/* vocab_of_bytes.h - for tests of grammars: a vocabulary of given tokens; one of 0 bytes is never chosen. */
#ifndef VOCAB_OF_BYTES_H
#define VOCAB_OF_BYTES_H

#include "engine/grammar/grammar.h"

#include <stdlib.h>

static inline int vocab_of_bytes(const char *const *bytes, const size_t *lens, uint32_t n, struct vocab **out,
                                 struct rod_error *err) {
    struct vocab_entry *e = malloc((n + 1) * sizeof *e);
    size_t n_entries = 0;
    if (!e) return ROD_ENOMEM;
    for (uint32_t i = 0; i < n; i++)
        if (lens[i]) e[n_entries++] = (struct vocab_entry){bytes[i], lens[i], (int32_t)i};
    const int rc = vocab_from_entries(e, n_entries, n, out, err);
    free(e);
    return rc;
}

#endif
