/* fuzz_grammar.c - the compiler of schemas, regexes, choices and grammars: any text is compiled or refused with a
 * reason; and what was compiled can be walked: from each state that is no end a byte leads on, and by the masks of a
 * vocabulary of all bytes the same ones do. The first byte of the input names the kind. */
#include "engine/grammar.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(struct grammar *g, const struct vocab *v, uint64_t random) {
    struct grammar_walk w;
    struct rod_error err;
    grammar_walk_init(&w, g);
    for (int i = 0; i < 24 && !grammar_walk_finished(&w); i++) {
        const uint64_t *mask;
        if (grammar_walk_mask(&w, v, &mask, &err)) {
            if (err.code != ROD_EINVALID || !err.message[0]) abort(); /* too ambiguous: said, not hung */
            break;
        }
        char allowed[256];
        size_t n = 0;
        for (unsigned byte = 0; byte < 256; byte++)
            if (mask[byte / 64] >> (byte % 64) & 1) allowed[n++] = (char)byte;
        if (n == 0) abort();
        random = random * 6364136223846793005u + 1442695040888963407u;
        if (grammar_walk_push(&w, &allowed[(random >> 33) % n], 1, &err)) abort();
    }
    grammar_walk_fini(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const enum rod_grammar_kind kinds[] = {ROD_GRAMMAR_JSON_SCHEMA, ROD_GRAMMAR_REGEX, ROD_GRAMMAR_EBNF,
                                                  ROD_GRAMMAR_CHOICE};
    if (size == 0) return 0;
    struct rod_error err = {0};
    struct grammar *g = NULL;
    int rc = grammar_compile(kinds[data[0] & 3], (const char *)data + 1, size - 1, &g, &err);
    if (rc) {
        if (rc != ROD_EINVALID || !err.message[0] || g) abort();
        return 0;
    }
    char bytes[256];
    const char *tokens[256];
    size_t lens[256];
    for (unsigned i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        tokens[i] = &bytes[i];
        lens[i] = 1;
    }
    struct vocab *v = NULL;
    if (vocab_new_bytes(tokens, lens, 256, &v, &err)) abort();
    if (grammar_bytes(g) > 3 * GRAMMAR_STATE_BYTES) abort();
    for (uint64_t i = 0; i < 3; i++) walk(g, v, size * 3 + i);
    vocab_free(v);
    grammar_free(g);
    return 0;
}
