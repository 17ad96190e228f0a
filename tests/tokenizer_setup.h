/* tokenizer_setup.h - for tests of the tokenizer: that of tales, and those of the families that published
 * checkpoints have, with the reference implementation's results. */
#ifndef TOKENIZER_SETUP_H
#define TOKENIZER_SETUP_H

#include "engine/text/tokenizer_parts.h"
#include "read_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TALES    "config/models/tales"
#define FAMILIES "tests/vectors/tokenizers/"

static const char *const families[] = {"deepseek-stages",       "gpt2-prefix-space",    "llama3-ignore-merges",
                                       "neox-nfc-spaces",       "o200k-removed-invert", "odd-patterns",
                                       "published-added-flags", "starcoder-digits"};
#define N_FAMILIES (sizeof families / sizeof *families)

static inline json_t *load_json(const char *path) {
    json_error_t where;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &where);
    if (!root) fail_msg("%s: %s (line %d)", path, where.text, where.line);
    return root;
}

static inline json_t *load_family(size_t i) {
    char path[256];
    snprintf(path, sizeof path, FAMILIES "%s.json", families[i]);
    return load_json(path);
}

static inline struct tokenizer *parse_object(const json_t *object) {
    struct rod_error err;
    struct tokenizer *t = NULL;
    char *text = json_dumps(object, JSON_COMPACT);
    assert_non_null(text);
    if (tokenizer_parse(text, strlen(text), NULL, 0, &t, &err)) fail_msg("%s", err.message);
    free(text);
    return t;
}

static inline struct tokenizer *open_tokenizer(const char *model) {
    struct rod_error err;
    struct tokenizer *t = NULL;
    if (tokenizer_open(model, &t, &err)) fail_msg("%s", err.message);
    return t;
}
static inline struct tokenizer *open_tales(void) { return open_tokenizer(TALES); }

static inline uint64_t next_random(uint64_t *state) { /* xorshift64* */
    *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
    return *state * UINT64_C(2685821657736338717);
}

#endif
