/* test_grammar_work.c - what one mask may take. Masks are made between two steps, where everybody waits: a grammar
 * whose states are as many as its texts is refused when its mask would take too long, and holds little memory until
 * then. And the states move while a mask is made. */
#include "engine/grammar/grammar.h"
#include "engine/base/philox.h"
#include "tests/vocab_of_bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

/* All words of up to three of these: 47,988 tokens. */
static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
enum { N_LETTERS = sizeof letters - 1, V = N_LETTERS * (1 + N_LETTERS * (1 + N_LETTERS)) };
#ifdef __SANITIZE_THREAD__ /* thirty times slower */
enum { N_TOKENS = 8 };
#else
enum { N_TOKENS = 60 };
#endif

static char text_of[V][4];
static void word_of(uint32_t id, char *out) { memcpy(out, text_of[id], 4); }

static struct vocab *words(void) {
    char(*text)[4] = text_of;
    const char **bytes = malloc(V * sizeof *bytes);
    size_t *lens = malloc(V * sizeof *lens);
    uint32_t n = 0;
    for (int i = 0; i < N_LETTERS; i++)
        for (int j = -1; j < N_LETTERS; j++)
            for (int k = -1; k < (j < 0 ? 0 : N_LETTERS); k++)
                snprintf(text[n++], 4, "%c%c%c", letters[i], j < 0 ? 0 : letters[j], k < 0 ? 0 : letters[k]);
    assert_int_equal(n, V);
    for (uint32_t i = 0; i < V; i++) bytes[i] = text[i], lens[i] = strlen(text[i]);
    struct vocab *v;
    struct rod_error err;
    if (vocab_of_bytes(bytes, lens, V, &v, &err)) fail_msg("%s", err.message);
    free(bytes), free(lens);
    return v;
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Where one of these letters was among the last so many: a state for nearly every text. */
static const char *const hostile[] = {
    "(.*[acegikmoqsuwy].{60}|.*[abefijmnqruvyz].{60}|.*[abcdijklqrstyz].{60}|.*[a-hq-x].{60}|.*[a-p].{60})x",
    "(.*[acegikmoqsuwy].{90}|.*[abefijmnqruvyz].{80}|.*[abcdijklqrstyz].{70})x",
    ".*[a-m].{200}x",
};

static void a_mask_takes_bounded_work_and_memory(void **state) {
    (void)state;
    struct vocab *v = words();
    const uint64_t seed = getenv("RODIMUS_TEST_SEED") ? strtoull(getenv("RODIMUS_TEST_SEED"), NULL, 10) : 7;
    uint32_t n_refused = 0;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        struct grammar *g;
        struct grammar_walk w;
        struct rod_error err;
        if (grammar_compile(ROD_GRAMMAR_REGEX, hostile[i], strlen(hostile[i]), &g, &err) || grammar_prepare(g, v, &err))
            fail_msg("%s", err.message);
        grammar_walk_init(&w, g);
        for (uint64_t n = 0; n < N_TOKENS; n++) {
            const uint64_t *mask;
            const double begin_s = now_s();
            const int rc = grammar_walk_mask(&w, v, &mask, &err);
            const double s = now_s() - begin_s, mb = (double)grammar_bytes(g) * 1e-6;
            if (mb > 32) fail_msg("grammar %zu, token %zu: %.0f MB of states", i, (size_t)n, mb);
            if (s > 1) fail_msg("grammar %zu, token %zu: a mask took %.2f s", i, (size_t)n, s);
            if (rc) {
                assert_int_equal(rc, ROD_EINVALID);
                assert_non_null(strstr(err.message, "too ambiguous"));
                n_refused++;
            }
            const char *letter = &letters[(size_t)(philox_uniform(seed, n, 0) * N_LETTERS)];
            if (grammar_walk_push(&w, letter, 1, &err)) break; /* too ambiguous, too */
        }
        grammar_walk_fini(&w);
        grammar_free(g);
    }
    assert_true(n_refused > 0);
    vocab_free(v);
}

/* Others who share the grammar are not refused with who asked too much, nor is who asks for less afterwards. */
static void what_one_mask_took_is_not_held_against_the_next(void **state) {
    (void)state;
    struct vocab *v = words();
    struct grammar *g;
    struct grammar_walk far, near;
    struct rod_error err;
    const uint64_t *mask;
    const char *text = "(a(b.*[a-m].{200}|b.*[acegikmoqsuwy].{200}|b.*[abefijmnqruvyz].{200})x|c[0-9]{5})";
    if (grammar_compile(ROD_GRAMMAR_REGEX, text, strlen(text), &g, &err) || grammar_prepare(g, v, &err))
        fail_msg("%s", err.message);
    grammar_walk_init(&far, g);
    grammar_walk_init(&near, g);
    if (grammar_walk_push(&far, "ab", 2, &err) || grammar_walk_push(&near, "c", 1, &err)) fail_msg("%s", err.message);
    uint32_t n_refused = 0;
    for (uint64_t n = 0; n < N_TOKENS; n++) {
        n_refused += grammar_walk_mask(&far, v, &mask, &err) != 0;
        const char *letter = &letters[(size_t)(philox_uniform(9, n, 0) * N_LETTERS)];
        if (grammar_walk_push(&far, letter, 1, &err)) fail_msg("far: %s", err.message);
        if (grammar_walk_mask(&near, v, &mask, &err)) fail_msg("near: %s", err.message);
        if (n < 5 && grammar_walk_push(&near, "7", 1, &err)) fail_msg("near: %s", err.message);
    }
    assert_true(n_refused > 0);
    assert_true(grammar_walk_finished(&near));
    grammar_walk_fini(&far), grammar_walk_fini(&near);
    grammar_free(g);
    vocab_free(v);
}

static uint32_t drawn(uint64_t seed, uint64_t *n, uint32_t below) {
    return (uint32_t)(philox_uniform(seed, (*n)++, 0) * below);
}

/* In pieces of any effort, with others' pieces, pushes and dropped states between them; and no piece is much more than
 * its effort. */
static void a_mask_made_in_pieces_is_the_one_made_at_once(void **state) {
    (void)state;
    enum { WALKS = 3, EXCESS = 100000 }; /* a look at all places of a state, and what follows them */
    static const char *const texts[] = {"(.*[a-m].{10}x?)+", "([a-l]{1,3}[0-9]){2,50}x?", "[a-z0-9]{4,200}",
                                        "(a{1,4}|[a-e]{2,3}|[ab]{5}|.*[a-m].{6})z?.*"};
    struct vocab *v = words();
    const uint64_t seed = getenv("RODIMUS_TEST_SEED") ? strtoull(getenv("RODIMUS_TEST_SEED"), NULL, 10) : 11;
    uint64_t n = 0, n_pieces = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct grammar *pieces, *once;
        struct grammar_walk w[WALKS], whole[WALKS];
        struct rod_error err;
        if (grammar_compile(ROD_GRAMMAR_REGEX, texts[i], strlen(texts[i]), &pieces, &err) ||
            grammar_compile(ROD_GRAMMAR_REGEX, texts[i], strlen(texts[i]), &once, &err) ||
            grammar_prepare(pieces, v, &err) || grammar_prepare(once, v, &err))
            fail_msg("%s", err.message);
        for (int k = 0; k < WALKS; k++) grammar_walk_init(&w[k], pieces), grammar_walk_init(&whole[k], once);
        for (int t = 0; t < 400; t++) {
            const uint32_t k = drawn(seed, &n, WALKS);
            const uint64_t *mask, *same;
            const int64_t least = 1 + drawn(seed, &n, drawn(seed, &n, 2) ? 400000 : 3000);
            int64_t effort = least;
            if (grammar_walk_mask_some(&w[k], v, &effort, &mask, &err)) fail_msg("%s", err.message);
            if (effort < -EXCESS) fail_msg("a piece of %zd took %zd more", (ssize_t)least, (ssize_t)-effort);
            n_pieces++;
            if (!mask) continue;
            assert_true(grammar_walk_has_mask(&w[k]));
            if (grammar_walk_mask(&whole[k], v, &same, &err)) fail_msg("%s", err.message);
            if (memcmp(mask, same, (V + 63) / 64 * sizeof *mask) != 0)
                fail_msg("RODIMUS_TEST_SEED=%llu: %s: another mask", (unsigned long long)seed, texts[i]);
            uint32_t id = drawn(seed, &n, V);
            while (!(same[id / 64] >> id % 64 & 1)) id = id + 1 == V ? 0 : id + 1;
            char word[4];
            word_of(id, word);
            if (grammar_walk_push(&w[k], word, strlen(word), &err) ||
                grammar_walk_push(&whole[k], word, strlen(word), &err))
                fail_msg("%s", err.message);
            if (!grammar_walk_finished(&w[k])) continue;
            grammar_walk_fini(&w[k]), grammar_walk_fini(&whole[k]);
            grammar_walk_init(&w[k], pieces), grammar_walk_init(&whole[k], once);
        }
        for (int k = 0; k < WALKS; k++) grammar_walk_fini(&w[k]), grammar_walk_fini(&whole[k]);
        grammar_free(pieces), grammar_free(once);
    }
    assert_true(n_pieces > 1000);
    vocab_free(v);
}

static struct grammar *opened(const char *text, struct vocab *v) {
    struct grammar *g;
    struct rod_error err;
    if (grammar_compile(ROD_GRAMMAR_EBNF, text, strlen(text), &g, &err) || (v && grammar_prepare(g, v, &err)))
        fail_msg("%s\n%s", err.message, text);
    return g;
}

/* Behind the letters stand ever more rules in rules, and with them frames: at one of these depths their array is full
 * and moves while the letters are looked at, which what follows could begin with too. The sanitizer sees who looks
 * where it was; the mask is what one without tables is. */
static void a_mask_does_not_look_where_the_frames_were(void **state) {
    (void)state;
    struct vocab *v = words();
    for (int depth = 1; depth < 80; depth++) {
        char text[4096];
        int n = snprintf(text, sizeof text, "root ::= p*\np ::= \"0\" [a-z]* r1 \"1\"\n");
        for (int d = 1; d < depth; d++)
            n += snprintf(text + n, sizeof text - (size_t)n, "r%d ::= r%d \"%d\"\n", d, d + 1, d % 10);
        snprintf(text + n, sizeof text - (size_t)n, "r%d ::= [x-z]\n", depth);
        struct grammar *with = opened(text, v), *without = opened(text, NULL);
        struct grammar_walk w, plain;
        struct rod_error err;
        grammar_walk_init(&w, with);
        grammar_walk_init(&plain, without);
        for (int t = 0; t < 3; t++) {
            const uint64_t *mask, *same;
            if (grammar_walk_mask(&w, v, &mask, &err) || grammar_walk_mask(&plain, v, &same, &err))
                fail_msg("depth %d: %s", depth, err.message);
            for (uint32_t i = 0; i < (V + 63) / 64; i++)
                if (mask[i] != same[i])
                    fail_msg("depth %d, token %d: %llx with tables, %llx without", depth, t,
                             (unsigned long long)mask[i], (unsigned long long)same[i]);
            const char *token = t ? "a" : "0";
            if (grammar_walk_push(&w, token, 1, &err) || grammar_walk_push(&plain, token, 1, &err))
                fail_msg("depth %d: %s", depth, err.message);
        }
        grammar_walk_fini(&w), grammar_walk_fini(&plain);
        grammar_free(with), grammar_free(without);
    }
    vocab_free(v);
}

/* Names of properties are looked up, not compared with each one that is required. */
static void a_long_list_of_required_names_costs_little(void **state) {
    (void)state;
    enum { N_NAMES = 1000, N_TIMES = 40000 };
    static char text[2][GRAMMAR_MAX_TEXT];
    double took_s[2];
    for (int listed = 0; listed < 2; listed++) {
        size_t n = (size_t)snprintf(text[listed], sizeof text[0], "{\"properties\":{");
        for (int i = 0; i < N_NAMES; i++)
            n += (size_t)snprintf(text[listed] + n, sizeof text[0] - n, "%s\"%d\":true", i ? "," : "", i);
        n +=
            (size_t)snprintf(text[listed] + n, sizeof text[0] - n, "},\"%s\":[\"0\"", listed ? "required" : "examples");
        for (int i = 1; i < N_TIMES; i++) n += (size_t)snprintf(text[listed] + n, sizeof text[0] - n, ",\"0\"");
        n += (size_t)snprintf(text[listed] + n, sizeof text[0] - n, "]}");
        struct grammar *g;
        struct rod_error err;
        const double begin_s = now_s();
        if (grammar_compile(ROD_GRAMMAR_JSON_SCHEMA, text[listed], n, &g, &err)) fail_msg("%s", err.message);
        took_s[listed] = now_s() - begin_s;
        grammar_free(g);
    }
    if (took_s[1] > 10 * took_s[0])
        fail_msg("%.0f ms, and %.0f ms without a list of what is required", took_s[1] * 1e3, took_s[0] * 1e3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mask_takes_bounded_work_and_memory),
        cmocka_unit_test(what_one_mask_took_is_not_held_against_the_next),
        cmocka_unit_test(a_mask_made_in_pieces_is_the_one_made_at_once),
        cmocka_unit_test(a_mask_does_not_look_where_the_frames_were),
        cmocka_unit_test(a_long_list_of_required_names_costs_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
