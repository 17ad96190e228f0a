/* grammar_reads.h - for tests of grammars: what a text of any kind accepts, byte by byte, and by which name it is
 * refused. */
#ifndef GRAMMAR_READS_H
#define GRAMMAR_READS_H

#include "engine/grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static inline struct grammar *compiled(enum rod_grammar_kind kind, const char *text) {
    struct grammar *g = NULL;
    struct rod_error err = {0};
    if (grammar_compile(kind, text, strlen(text), &g, &err)) fail_msg("%s: %s", text, err.message);
    return g;
}

/* 2: the whole text matches; 1: it is the beginning of one that does; 0: it is not. */
static inline int reads(struct grammar *g, const char *text) {
    struct grammar_walk w;
    struct rod_error err;
    grammar_walk_init(&w, g);
    int rc = grammar_walk_push(&w, text, strlen(text), &err);
    int out = rc ? 0 : grammar_walk_accepts(&w) ? 2 : 1;
    grammar_walk_fini(&w);
    return out;
}

static inline void check(enum rod_grammar_kind kind, const char *text, const char *const *yes, const char *const *no) {
    struct grammar *g = compiled(kind, text);
    for (; *yes; yes++) {
        int got = reads(g, *yes);
        if (got != 2) fail_msg("%s on '%s' gives %d", text, *yes, got);
        for (size_t n = 0; n < strlen(*yes); n++) {
            char part[512];
            snprintf(part, sizeof part, "%.*s", (int)n, *yes);
            if (!reads(g, part)) fail_msg("%s rejects '%s', a beginning of '%s'", text, part, *yes);
        }
    }
    for (; *no; no++) {
        int got = reads(g, *no);
        if (got == 2) fail_msg("%s accepts '%s'", text, *no);
    }
    grammar_free(g);
}

#define LIST(...)             ((const char *const[]){__VA_ARGS__, NULL})
#define REGEX(text, yes, no)  check(ROD_GRAMMAR_REGEX, text, yes, no)
#define SCHEMA(text, yes, no) check(ROD_GRAMMAR_JSON_SCHEMA, text, yes, no)
#define EBNF(text, yes, no)   check(ROD_GRAMMAR_EBNF, text, yes, no)

static inline void refused(enum rod_grammar_kind kind, const char *text, const char *because) {
    struct grammar *g = NULL;
    struct rod_error err = {0};
    int rc = grammar_compile(kind, text, strlen(text), &g, &err);
    if (rc != ROD_EINVALID || !strstr(err.message, because))
        fail_msg("%.200s: %d '%s', not '%s'", text, rc, rc ? err.message : "", because);
}

#endif
