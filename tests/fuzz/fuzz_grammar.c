/* fuzz_grammar.c - the compiler of schemas, regexes, choices and grammars: any text is compiled or refused with a
 * reason; and what was compiled can be walked: from each state that is no end a token leads on, and masks are the same
 * however they are made. The first byte of the input names the kind; t: a
 * schema of a tool. */
#include "engine/grammar/grammar.h"
#include "tests/vocab_of_bytes.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { PIECES = 512, PIECE_BYTES = 12 };

struct pieces { /* tokens: each byte, then parts of the input */
    const char *bytes[PIECES];
    size_t lens[PIECES];
    char each[256];
};

static void cut(struct pieces *p, const char *text, size_t n, uint64_t random) {
    for (unsigned i = 0; i < PIECES; i++) {
        p->lens[i] = 1;
        if (i < 256) {
            p->each[i] = (char)i;
            p->bytes[i] = &p->each[i];
            continue;
        }
        random = random * 6364136223846793005u + 1442695040888963407u;
        const size_t at = n ? (random >> 40) % n : 0, len = 2 + (random >> 33) % (PIECE_BYTES - 1);
        p->bytes[i] = text + at;
        p->lens[i] = len < n - at ? len : n - at;
    }
}

/* Equal masks with the tables of repeated parts and without, unless one of them is too ambiguous to make. */
static void walk(struct grammar *g, struct grammar *plain, const struct vocab *v, const struct pieces *p,
                 uint64_t random) {
    struct grammar_walk w, same;
    struct rod_error err;
    grammar_walk_init(&w, g);
    grammar_walk_init(&same, plain);
    for (int i = 0; i < 24 && !grammar_walk_finished(&w); i++) {
        const uint64_t *mask, *other;
        if (grammar_walk_mask(&w, v, &mask, &err) || grammar_walk_mask(&same, v, &other, &err)) {
            if (err.code != ROD_EINVALID || !err.message[0]) abort(); /* too ambiguous: said, not hung */
            break;
        }
        if (memcmp(mask, other, PIECES / 8) != 0) abort();
        unsigned allowed[PIECES], n = 0;
        for (unsigned id = 0; id < PIECES; id++)
            if (mask[id / 64] >> (id % 64) & 1) allowed[n++] = id;
        if (n == 0) abort();
        random = random * 6364136223846793005u + 1442695040888963407u;
        const unsigned one = allowed[(random >> 33) % n];
        if (grammar_walk_push(&w, p->bytes[one], p->lens[one], &err)) abort();
        if (grammar_walk_push(&same, p->bytes[one], p->lens[one], &err)) abort();
    }
    grammar_walk_fini(&w);
    grammar_walk_fini(&same);
}

/* Whatever the schema of its arguments, a tool beside another one can be called, unless a limit refuses it. */
static void call_tool(const char *schema, size_t size) {
    static const char head[] =
        "{\"open\":\"<c>\",\"close\":\"</c>\",\"tools\":[{\"name\":\"a\"},{\"name\":\"b\",\"parameters\":",
                      call[] = "<c>\n{\"name\": \"b\", \"arguments\": {";
    json_t *read = json_loadb(schema, size, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, NULL);
    char *text = malloc(sizeof head + size + 3);
    struct rod_error err = {0};
    struct grammar *g = NULL;
    if (!text) abort();
    memcpy(text, head, sizeof head - 1);
    memcpy(text + sizeof head - 1, schema, size);
    memcpy(text + sizeof head - 1 + size, "}]}", 3);
    const int rc = grammar_compile(ROD_GRAMMAR_CALLS, text, sizeof head - 1 + size + 3, &g, &err);
    if (rc && json_is_object(read) && strncmp(err.message, "is too ", 7) && strncmp(err.message, "has more than ", 14))
        abort();
    if (!rc && json_is_object(read)) {
        struct grammar_walk w;
        grammar_walk_init(&w, g);
        if (grammar_walk_push(&w, call, sizeof call - 1, &err)) abort();
        grammar_walk_fini(&w);
    }
    grammar_free(g);
    free(text);
    json_decref(read);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const enum rod_grammar_kind kinds[] = {ROD_GRAMMAR_JSON_SCHEMA, ROD_GRAMMAR_REGEX, ROD_GRAMMAR_EBNF,
                                                  ROD_GRAMMAR_CHOICE};
    if (size == 0) return 0;
    if (data[0] == 't') return call_tool((const char *)data + 1, size - 1), 0;
    const enum rod_grammar_kind kind = data[0] == 'c' ? ROD_GRAMMAR_CALLS : kinds[data[0] & 3];
    struct rod_error err = {0};
    struct grammar *g = NULL;
    int rc = grammar_compile(kind, (const char *)data + 1, size - 1, &g, &err);
    if (rc) {
        if (rc != ROD_EINVALID || !err.message[0] || g) abort();
        return 0;
    }
    struct grammar *plain = NULL;
    if (grammar_compile(kind, (const char *)data + 1, size - 1, &plain, &err)) abort();
    struct pieces pieces;
    cut(&pieces, (const char *)data + 1, size - 1, size);
    struct vocab *v = NULL;
    if (vocab_of_bytes(pieces.bytes, pieces.lens, PIECES, &v, &err)) abort();
    if (grammar_prepare(g, v, &err)) abort();
    if (grammar_bytes(g) > 3 * GRAMMAR_STATE_BYTES) abort();
    for (uint64_t i = 0; i < 3; i++) walk(g, plain, v, &pieces, size * 3 + i);
    grammar_free(plain);
    grammar_free(g);
    vocab_free(v);
    return 0;
}
