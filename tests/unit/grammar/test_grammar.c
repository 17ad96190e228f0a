/* test_grammar.c - what regexes, grammars and calls of tools accept and reject, byte by byte; what they refuse, and by
 * which name; masks against every token tried; memory that stays bounded. */
#include "engine/grammar/grammar_gate.h"
#include "engine/grammar/grammar_tags.h"
#include "engine/text/tokenizer.h"
#include "engine/rodimus.h"
#include "tests/grammar_reads.h"
#include "tests/vocab_of_bytes.h"

#include <pthread.h>
#include <time.h>

static void regexes_match_as_everywhere(void **state) {
    (void)state;
    REGEX("abc", LIST("abc"), LIST("", "ab", "abcd", "abd"));
    REGEX("^a|b+$", LIST("a", "b", "bbb"), LIST("ab", "c"));
    REGEX("(ab)*c?", LIST("", "ab", "ababc", "c"), LIST("a", "cc", "ba"));
    REGEX("[a-c]{2,4}", LIST("ab", "abca"), LIST("a", "abcab", "ad"));
    REGEX("[^a-y\\d]", LIST("z", "A", " "), LIST("a", "5", "zz"));
    REGEX("\\d{3}-\\w+\\s?", LIST("123-a_9", "000-Z "), LIST("12-a", "123-", "123-a  "));
    REGEX("(?:x|(?P<n>yy)){2}", LIST("xx", "xyy", "yyyy"), LIST("x", "xy", "xxx"));
    REGEX("a.c",
          LIST("abc", "a\xc3\xa9"
                      "c"),
          LIST("a\nc", "ac",
               "a\xc3"
               "c"));
    REGEX("[\xc3\xa9-\xe2\x82\xac]+", LIST("\xc3\xa9", "\xe2\x82\xac\xc3\xaa"), LIST("e", "\xe2\x82\xad", "\xc3"));
    REGEX("\\u00e9\\x41\\.\\/\\n",
          LIST("\xc3\xa9"
               "A./\n"),
          LIST("\xc3\xa9"
               "A./n"));
    REGEX("a{0}b{x,2}", LIST("b{x,2}"), LIST("b"));
    REGEX("((a|b)*a(a|b){6})?", LIST("", "aabbabb", "bbabbbbbb"), LIST("bbbbbbb", "abb"));
    REGEX("(a*)*b", LIST("b", "aaab"), LIST("a"));
    REGEX("a{65535}", LIST(NULL), LIST("a", "aa"));
}

static void regexes_that_no_automaton_does_are_refused(void **state) {
    (void)state;
    refused(ROD_GRAMMAR_REGEX, "(?=a)b", "look-around");
    refused(ROD_GRAMMAR_REGEX, "(?i)b", "flags");
    refused(ROD_GRAMMAR_REGEX, "(a)\\1", "escape that is not supported");
    refused(ROD_GRAMMAR_REGEX, "a\\b", "escape that is not supported");
    refused(ROD_GRAMMAR_REGEX, "\\p{L}", "escape that is not supported");
    refused(ROD_GRAMMAR_REGEX, "a$b", "after the anchor");
    refused(ROD_GRAMMAR_REGEX, "(^a)", "anchor");
    refused(ROD_GRAMMAR_REGEX, "(a", "without its )");
    refused(ROD_GRAMMAR_REGEX, "a)", "without its group");
    refused(ROD_GRAMMAR_REGEX, "[a", "without its ]");
    refused(ROD_GRAMMAR_REGEX, "[b-a]", "not in order");
    refused(ROD_GRAMMAR_REGEX, "*a", "without anything");
    refused(ROD_GRAMMAR_REGEX, "a{3,2}", "not in order");
    refused(ROD_GRAMMAR_REGEX, "a{2}{3}", "after a quantifier");
    refused(ROD_GRAMMAR_REGEX, "a{,3}", "read differently");
    refused(ROD_GRAMMAR_REGEX, "a{,}", "read differently");
    refused(ROD_GRAMMAR_REGEX, "{,3}", "read differently");
    refused(ROD_GRAMMAR_REGEX, "b|{3}", "without anything");
    refused(ROD_GRAMMAR_REGEX, "a\\", "backslash at the end");
    refused(ROD_GRAMMAR_REGEX, "\xff", "UTF-8");
    refused(ROD_GRAMMAR_REGEX, "", "empty text alone");
    refused(ROD_GRAMMAR_REGEX, "[^\\d\\D]", "no finite text");
    refused(ROD_GRAMMAR_REGEX, "(abcde{0,60000}){0,60000}(fghij{0,60000}){0,60000}", "too large");
    refused(ROD_GRAMMAR_REGEX, "\\ud800", "not a character");
}

static void ebnf_grammars_recur(void **state) {
    (void)state;
    EBNF("root ::= expr\nexpr ::= term (\"+\" term)*\nterm ::= [0-9]+ | \"(\" expr \")\" # a comment\n",
         LIST("1", "12+(3+4)", "((7))"), LIST("", "1+", "(1", "a"));
    EBNF("root ::= \"a\" root \"b\" | \"\"", LIST("", "ab", "aaabbb"), LIST("aab", "ba", "abab"));
    EBNF("list ::= item | item \",\" list\nitem::=[^,\\n]{1,3}\nroot::=list", LIST("a", "abc,d", "\xc3\xa9,x"),
         LIST("", ",", "abcd", "a,"));
    EBNF("root ::= root \"+\" n | n\nn ::= \"1\"", LIST("1", "1+1+1"), LIST("+", "1+"));
    EBNF("root ::= \"\\x41\\u00e9\\\"\" . [\\]\\-a]?", LIST("A\xc3\xa9\"x", "A\xc3\xa9\"x]"), LIST("A"));
    refused(ROD_GRAMMAR_EBNF, "root ::= a", "no rule named a");
    refused(ROD_GRAMMAR_EBNF, "a ::= \"b\"", "no rule named root");
    refused(ROD_GRAMMAR_EBNF, "root ::= \"b", "without its end");
    refused(ROD_GRAMMAR_EBNF, "root ::= (\"b\"", "without its )");
    refused(ROD_GRAMMAR_EBNF, "root ::= \"a\"\nroot ::= \"b\"", "name is taken");
    refused(ROD_GRAMMAR_EBNF, "root ::= \"a\" root", "no finite text");
    refused(ROD_GRAMMAR_EBNF, "?start: x", "line 1");
    refused(ROD_GRAMMAR_EBNF, "root ::= root root root | \"a\"?", "too ambiguous");
}

static void a_choice_is_one_of_its_strings(void **state) {
    (void)state;
    check(ROD_GRAMMAR_CHOICE, "[\"yes\",\"no\",\"not \\u00e9\"]", LIST("yes", "no", "not \xc3\xa9"),
          LIST("y", "nope", ""));
    refused(ROD_GRAMMAR_CHOICE, "[]", "array of strings");
    refused(ROD_GRAMMAR_CHOICE, "{}", "array of strings");
    refused(ROD_GRAMMAR_CHOICE, "[1]", "not a string");
}

static void any_json_object_is_an_object(void **state) {
    (void)state;
    check(ROD_GRAMMAR_JSON_OBJECT, "",
          LIST("{}", "{\"a\": [1, -2.5e+3, {\"b\":null}], \"c\\n\\u00e9\": true}", "{\n  \"a\": []\n}", "{\"\":0}"),
          LIST("[]", "1", "{\"a\"}", "{a:1}", "{\"a\":01}", "{\"a\":1,}", "{\"a\":\"\\ud800\"}", "{\"a\":\"\n\"}",
               "{  \"a\":1}", " {}", "{} "));
}

static void nesting_that_could_not_be_closed_is_not_begun(void **state) {
    (void)state;
    struct grammar *g = compiled(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}");
    struct grammar_walk w;
    struct rod_error err;
    grammar_walk_init(&w, g);
    int n = 0;
    while (n < 1000 && grammar_walk_push(&w, "[", 1, &err) == 0) n++;
    assert_in_range(n, 20, 200);
    for (; n > 0; n--) assert_int_equal(grammar_walk_push(&w, "]", 1, &err), 0);
    assert_true(grammar_walk_finished(&w));
    grammar_walk_fini(&w);
    grammar_free(g);
}

/* ---- masks ---- */

enum { N_PIECES = 4000 };

/* Bytes and random pieces of JSON: a small vocabulary with what tokens have, long and short, some twice. */
static void make_pieces(const char **bytes, size_t *lens, char (*store)[16], uint32_t n) {
    static const char alphabet[] = "{}[]\",:. \n0123456789-eabcdtrufalsn\\\xc3\xa9";
    uint64_t random = 7;
    for (uint32_t i = 0; i < n; i++) {
        lens[i] = i < 256 ? 1 : 2 + i % 9;
        for (size_t k = 0; k < lens[i]; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            store[i][k] = i < 256 ? (char)i : alphabet[(random >> 33) % (sizeof alphabet - 1)];
        }
        bytes[i] = store[i];
    }
}

static void a_mask_is_what_trying_every_token_gives(void **state) {
    (void)state;
    static const char *bytes[N_PIECES];
    static size_t lens[N_PIECES];
    static char store[N_PIECES][16];
    make_pieces(bytes, lens, store, N_PIECES);
    struct vocab *v = NULL;
    struct rod_error err;
    assert_int_equal(vocab_of_bytes(bytes, lens, N_PIECES, &v, &err), 0);
    struct grammar *g =
        compiled(ROD_GRAMMAR_JSON_SCHEMA,
                 "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\"},\"b\":{\"type\":\"array\","
                 "\"items\":{\"enum\":[\"tea\",\"dub\",true]}},\"c\":{}}}");
    uint64_t random = 99;
    for (int round = 0; round < 20; round++) {
        struct grammar_walk w;
        grammar_walk_init(&w, g);
        for (int t = 0; t < 30 && !grammar_walk_finished(&w); t++) {
            const uint64_t *mask;
            assert_int_equal(grammar_walk_mask(&w, v, &mask, &err), 0);
            uint32_t allowed[N_PIECES], n = 0;
            for (uint32_t i = 0; i < N_PIECES; i++) {
                struct grammar_walk try = w; /* a copy that only looks, and is never ended */
                bool ok = grammar_walk_push(&try, bytes[i], lens[i], &err) == 0;
                if (ok != (mask[i / 64] >> (i % 64) & 1)) fail_msg("token %u: %d", i, ok);
                if (ok) allowed[n++] = i;
            }
            assert_true(n > 0);
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint32_t one = allowed[(random >> 33) % n];
            assert_int_equal(grammar_walk_push(&w, bytes[one], lens[one], &err), 0);
        }
        grammar_walk_fini(&w);
    }
    grammar_free(g);
    vocab_free(v);
}

/* With tables for repeated parts and without: the same masks, on random ways through grammars that repeat in every way.
 */
static void tables_of_repeated_parts_change_no_mask(void **state) {
    (void)state;
    static const struct {
        enum rod_grammar_kind kind;
        const char *text;
    } cases[] = {
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\"}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":3,\"maxLength\":9}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":12}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":1}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":300}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[{\"const\":\"eta\"},{\"type\":\"string\",\"maxLength\":4},{\"type\":"
                                  "\"string\",\"minLength\":6}]}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":7}}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"^[a-z]{2,6}$\"}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"b\"}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"^[a-f]*[^a-z\\\"]{1,4}[e-z]+$\"}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"^\\\\w+\\\\s\\\\S{2}$\"}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"^(ab|\u00e9)?(de|t){2,}x*$\"}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"format\":\"hostname\"}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"format\":\"email\"}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"format\":\"uuid\"}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"format\":\"date-time\"}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}"},
        {ROD_GRAMMAR_JSON_SCHEMA, "{}"},
        {ROD_GRAMMAR_JSON_OBJECT, ""},
        {ROD_GRAMMAR_REGEX, ".*"},
        {ROD_GRAMMAR_REGEX, "[a-l ]{4,}"},
        {ROD_GRAMMAR_REGEX, "([a-l]{1,3} ){2,5}x?"},
        {ROD_GRAMMAR_REGEX, "[^e]{3}e[^e]{2,9}"},
        {ROD_GRAMMAR_REGEX, "(a{1,4}|[a-e]{2,3}|[ab]{5})e"},
        {ROD_GRAMMAR_REGEX, "((a|b){0,3}c){0,4}"},
        {ROD_GRAMMAR_EBNF,
         "root ::= \"(\" root* \")\" | [a-e]{2,4} | \"[\" word{3} \"]\"\nword ::= [a-t] | \"-\" word"},
    };
    static const char *bytes[N_PIECES];
    static size_t lens[N_PIECES];
    static char store[N_PIECES][16];
    make_pieces(bytes, lens, store, N_PIECES);
    struct vocab *v = NULL;
    struct rod_error err;
    assert_int_equal(vocab_of_bytes(bytes, lens, N_PIECES, &v, &err), 0);
    uint64_t random = (uint64_t)time(NULL) | 1;
    const unsigned seed = (unsigned)random;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct grammar *with = compiled(cases[c].kind, cases[c].text),
                       *without = compiled(cases[c].kind, cases[c].text);
        assert_int_equal(grammar_prepare(with, v, &err), 0);
        for (int round = 0; round < 12; round++) {
            struct grammar_walk w, plain;
            grammar_walk_init(&w, with);
            grammar_walk_init(&plain, without);
            for (int t = 0; t < 40 && !grammar_walk_finished(&w); t++) {
                const uint64_t *mask, *same;
                assert_int_equal(grammar_walk_mask(&w, v, &mask, &err), 0);
                assert_int_equal(grammar_walk_mask(&plain, v, &same, &err), 0);
                uint32_t allowed[N_PIECES], n = 0;
                for (uint32_t i = 0; i < N_PIECES; i++) {
                    const uint64_t bit = 1ull << (i % 64);
                    if ((mask[i / 64] ^ same[i / 64]) & bit)
                        fail_msg("seed %u: %s: token %u (%.*s): with tables %d", seed, cases[c].text, i, (int)lens[i],
                                 bytes[i], (mask[i / 64] & bit) != 0);
                    if (mask[i / 64] & bit) allowed[n++] = i;
                }
                assert_true(n > 0);
                random = random * 6364136223846793005u + 1442695040888963407u;
                uint32_t one = allowed[(random >> 33) % n];
                if (round % 2) /* slowly: bytes alone, where they may come */
                    for (uint32_t i = 0; i < n; i++)
                        if (lens[allowed[(i + one) % n]] == 1) one = allowed[(i + one) % n], i = n;
                assert_int_equal(grammar_walk_push(&w, bytes[one], lens[one], &err), 0);
                assert_int_equal(grammar_walk_push(&plain, bytes[one], lens[one], &err), 0);
            }
            grammar_walk_fini(&w);
            grammar_walk_fini(&plain);
        }
        grammar_free(with);
        grammar_free(without);
    }
    vocab_free(v);
}

/* Grammars come and go on two threads, with tables that they share, while a third one walks. */
static void *come_and_go(void *arg) {
    struct vocab *v = arg;
    static const char *const schemas[] = {"{\"type\":\"string\",\"maxLength\":9}", "{\"pattern\":\"^[a-z]{2,6}$\"}",
                                          "{\"format\":\"uuid\"}", "{}"};
    struct rod_error err;
    for (int i = 0; i < 60; i++) {
        const char *schema = schemas[i % 4];
        struct grammar *g = NULL;
        if (grammar_compile(ROD_GRAMMAR_JSON_SCHEMA, schema, strlen(schema), &g, &err)) return "not compiled";
        if (grammar_prepare(g, v, &err)) return "not prepared";
        grammar_free(g);
    }
    return NULL;
}

static void tables_are_shared_between_threads(void **state) {
    (void)state;
    static const char *bytes[N_PIECES];
    static size_t lens[N_PIECES];
    static char store[N_PIECES][16];
    make_pieces(bytes, lens, store, N_PIECES);
    struct vocab *v = NULL;
    struct rod_error err;
    assert_int_equal(vocab_of_bytes(bytes, lens, N_PIECES, &v, &err), 0);
    struct grammar *g = compiled(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}");
    assert_int_equal(grammar_prepare(g, v, &err), 0);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, v), 0);
    struct grammar_walk w;
    grammar_walk_init(&w, g);
    assert_int_equal(grammar_walk_push(&w, "[", 1, &err), 0);
    for (int i = 0; i < 300; i++) {
        const uint64_t *mask;
        assert_int_equal(grammar_walk_mask(&w, v, &mask, &err), 0);
        assert_int_equal(grammar_walk_push(&w, &"\"te\", "[i % 6], 1, &err), 0);
    }
    grammar_walk_fini(&w);
    for (int i = 0; i < 2; i++) {
        void *fault = NULL;
        pthread_join(threads[i], &fault);
        if (fault) fail_msg("%s", (const char *)fault);
    }
    grammar_free(g);
    vocab_free(v);
}

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* 64 rows of a schema with text, numbers and lists over 126,464 tokens: states met for the first time and again. */
static void masks_of_a_large_vocabulary_are_fast(void **state) {
    (void)state;
    enum { V = 126464, ROWS = 64, STEPS = 40 };
    const char **bytes = calloc(V, sizeof *bytes);
    size_t *lens = calloc(V, sizeof *lens);
    char(*store)[16] = calloc(V, sizeof *store);
    static const char letters[] = "etaoin shrdlu";
    make_pieces(bytes, lens, store, V);
    uint64_t random = 5;
    for (uint32_t i = 20000; i < V; i++) /* most of a vocabulary is words */
        for (size_t k = 0; k < lens[i]; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            store[i][k] = letters[(random >> 33) % (sizeof letters - 1)];
        }
    struct vocab *v = NULL;
    struct rod_error err;
    double begin = now_s();
    assert_int_equal(vocab_of_bytes(bytes, lens, V, &v, &err), 0);
    double vocab_s = now_s() - begin;
    begin = now_s();
    struct grammar *g =
        compiled(ROD_GRAMMAR_JSON_SCHEMA,
                 "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":200},"
                 "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\","
                 "\"items\":{\"type\":\"string\"}},\"more\":{}},\"required\":[\"name\",\"age\",\"tags\"]}");
    assert_int_equal(grammar_prepare(g, v, &err), 0);
    double compile_s = now_s() - begin, first_s = 0, again_s = 0, worst_s = 0;
    for (int pass = 0; pass < 2; pass++) {
        struct grammar_walk w[ROWS];
        random = 11;
        for (int r = 0; r < ROWS; r++) grammar_walk_init(&w[r], g);
        for (int t = 0; t < STEPS; t++)
            for (int r = 0; r < ROWS; r++) {
                if (grammar_walk_finished(&w[r])) continue;
                const uint64_t *mask;
                begin = now_s();
                assert_int_equal(grammar_walk_mask(&w[r], v, &mask, &err), 0);
                double s = now_s() - begin;
                uint32_t id;
                do {
                    random = random * 6364136223846793005u + 1442695040888963407u;
                    id = (uint32_t)(random >> 33) % V;
                } while (!(mask[id / 64] >> (id % 64) & 1));
                begin = now_s();
                assert_int_equal(grammar_walk_push(&w[r], bytes[id], lens[id], &err), 0);
                s += now_s() - begin;
                *(pass ? &again_s : &first_s) += s;
                if (!pass && s > worst_s) worst_s = s;
            }
        for (int r = 0; r < ROWS; r++) grammar_walk_fini(&w[r]);
    }
    printf("note: %d tokens: trie %.0f ms, schema %.2f ms, 64 rows a step: %.0f us with new states, %.1f us with known "
           "ones; one new mask at most %.0f us; %.1f MB of states\n",
           V, vocab_s * 1e3, compile_s * 1e3, first_s / STEPS * 1e6, again_s / STEPS * 1e6, worst_s * 1e6,
           (double)grammar_bytes(g) / 1e6);
    assert_true(again_s / STEPS < 5e-3 && first_s / STEPS < 10e-3);
    grammar_free(g);
    vocab_free(v);
    free(bytes);
    free(lens);
    free(store);
}

static void memory_of_states_stays_bounded(void **state) {
    (void)state;
    static const char *bytes[N_PIECES];
    static size_t lens[N_PIECES];
    static char store[N_PIECES][16];
    make_pieces(bytes, lens, store, N_PIECES);
    struct vocab *v = NULL;
    struct rod_error err;
    assert_int_equal(vocab_of_bytes(bytes, lens, N_PIECES, &v, &err), 0);
    /* Each character is a state of its own. */
    struct grammar *g = compiled(ROD_GRAMMAR_REGEX, "x?[ab]{40000}");
    struct grammar_walk w, other;
    grammar_walk_init(&w, g);
    grammar_walk_init(&other, g);
    const uint64_t *mask;
    assert_int_equal(grammar_walk_push(&other, "xabab", 5, &err), 0);
    for (int i = 0; i < 39999; i++) {
        assert_int_equal(grammar_walk_mask(&w, v, &mask, &err), 0);
        assert_true(mask['a' / 64] >> ('a' % 64) & 1);
        assert_int_equal(grammar_walk_push(&w, i % 2 ? "a" : "b", 1, &err), 0);
        assert_true(grammar_bytes(g) < 2 * GRAMMAR_STATE_BYTES + ((size_t)4 << 20));
    }
    assert_false(grammar_walk_accepts(&w));
    assert_int_equal(grammar_walk_push(&w, "a", 1, &err), 0);
    assert_true(grammar_walk_finished(&w));
    assert_int_equal(grammar_walk_push(&w, "a", 1, &err), ROD_EINVALID);
    assert_int_equal(grammar_walk_push(&other, "ba", 2, &err), 0);
    grammar_walk_fini(&other);
    grammar_walk_fini(&w);
    grammar_free(g);
    vocab_free(v);
}

/* ---- calls of tools ---- */

#define CALLS(text, yes, no)  check(ROD_GRAMMAR_CALLS, text, yes, no)
#define TAGS                  "\"open\": \"<tool_call>\", \"close\": \"</tool_call>\", "
#define CITY                  "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}}, \"required\": [\"city\"]}"
#define CALL(name, arguments) "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"

static void calls_name_a_tool_and_follow_its_schema(void **state) {
    (void)state;
    CALLS("{" TAGS "\"tools\": [{\"name\": \"weather\", \"parameters\": " CITY "}, {\"name\": \"now\"}]}",
          LIST(CALL("weather", "{\"city\": \"Ulm\"}"), CALL("now", "{}")),
          LIST("", CALL("weather", "{}"), CALL("now", "{\"a\": 1}"), CALL("other", "{}"), " " CALL("now", "{}"),
               CALL("now", "{}") "\n" CALL("now", "{}"), CALL("now", "{}") "\n", "\n{\"name\": \"now\""));
    CALLS("{" TAGS "\"many\": true, \"tools\": [{\"name\": \"now\"}]}",
          LIST(CALL("now", "{}"), CALL("now", "{}") "\n" CALL("now", "{}")),
          LIST(CALL("now", "{}") CALL("now", "{}"), CALL("now", "{}") "\n"));
    CALLS("{" TAGS "\"tools\": [{\"name\": \"now\"}], \"content\": {\"kind\": \"json_schema\", \"text\": "
          "\"{\\\"type\\\": \\\"boolean\\\"}\"}}",
          LIST(CALL("now", "{}"), "true", "false"), LIST("null", "true" CALL("now", "{}"), CALL("now", "{}") "true"));
    CALLS("{" TAGS "\"tools\": [{\"name\": \"now\"}], \"content\": {\"kind\": \"choice\", \"text\": \"[\\\"a\\\"]\"}}",
          LIST(CALL("now", "{}"), "a"), LIST("b"));
}

static void calls_beside_a_schema_at_fault_are_refused(void **state) {
    (void)state;
    refused(ROD_GRAMMAR_CALLS,
            "{" TAGS "\"tools\": [{\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"not\": {}}}], "
            "\"content\": {\"kind\": \"json_schema\", \"text\": \"{\\\"type\\\": \\\"king\\\"}\"}}",
            "names no type of JSON");
}

static void calls_behind_the_opening_tag_have_any_text_behind_them(void **state) {
    (void)state;
    CALLS("{" TAGS "\"lazy\": true, \"many\": true, \"tools\": [{\"name\": \"now\"}]}",
          LIST("\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
               "\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\nWell <tool_call>"),
          LIST("", CALL("now", "{}"), "{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"));
    CALLS("{" TAGS "\"lazy\": true, \"tools\": [{\"name\": \"now\"}]}",
          LIST("\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"),
          LIST("\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n"));
}

/* Servers of tools write these schemas, and no user can change them. */
static void a_tools_schema_is_weakened_unless_it_is_strict(void **state) {
    (void)state;
#define ODD "\"parameters\": {\"type\": \"object\", \"not\": {}}"
    CALLS("{" TAGS "\"tools\": [{\"name\": \"f\", " ODD "}]}", LIST(CALL("f", "{}"), CALL("f", "{\"a\": [1]}")),
          LIST(CALL("f", "[]"), CALL("f", "1")));
    CALLS("{" TAGS "\"tools\": [{\"name\": \"f\", \"parameters\": false}]}", LIST(CALL("f", "{}")), LIST(""));
    refused(ROD_GRAMMAR_CALLS, "{" TAGS "\"tools\": [{\"name\": \"f\", \"strict\": true, " ODD "}]}", "strict tool, f");
    refused(ROD_GRAMMAR_CALLS, "{" TAGS "\"tools\": []}", "tools");
    refused(ROD_GRAMMAR_CALLS, "{\"tools\": [{\"name\": \"f\"}]}", "close");
    refused(ROD_GRAMMAR_CALLS, "[]", "JSON of calls");
}

/* Two schemas with definitions of the same name, one of them recursive. */
static void each_tool_has_its_own_definitions(void **state) {
    (void)state;
    CALLS("{" TAGS
          "\"tools\": [{\"name\": \"f\", \"parameters\": {\"$ref\": \"#/$defs/A\", \"$defs\": {\"A\": {\"type\": "
          "\"object\", \"properties\": {\"a\": {\"$ref\": \"#/$defs/A\"}}}}}}, {\"name\": \"g\", \"parameters\": "
          "{\"$ref\": \"#/$defs/A\", \"$defs\": {\"A\": {\"type\": \"object\", \"properties\": {\"b\": {\"type\": "
          "\"null\"}}}}}}]}",
          LIST(CALL("f", "{\"a\": {\"a\": {}}}"), CALL("g", "{\"b\": null}")),
          LIST(CALL("g", "{\"a\": {}}"), CALL("f", "{\"b\": null}")));
}

/* Number n as a string of "<a>", the least significant letter first, and how long it is. */
static size_t spell(uint32_t n, char out[8]) {
    size_t len = 0;
    for (; n; n = (n - 1) / 3) out[len++] = "<a>"[(n - 1) % 3];
    return len;
}

/* All texts of up to four letters before all tokens of up to four. */
static void a_token_may_open_a_gate_where_some_text_before_it_makes_it_do_so(void **state) {
    (void)state;
    static const char *const tags[] = {"<a>", "<<a", "a", "<a<a"};
    enum { N_SHORT = 1 + 3 + 9 + 27 + 81 };
    struct grammar *g = compiled(ROD_GRAMMAR_REGEX, "[<a>]*");
    struct rod_error err;
    for (size_t tag = 0; tag < sizeof tags / sizeof *tags; tag++)
        for (uint32_t t = 1; t < N_SHORT; t++) {
            char token[8], text[8];
            const size_t n_token = spell(t, token);
            struct grammar_gate gate;
            bool opened = false;
            for (uint32_t before = 0; before < N_SHORT && !opened; before++) {
                grammar_gate_init(&gate, g, tags[tag], false);
                assert_int_equal(grammar_gate_push(&gate, text, spell(before, text), &err), 0);
                const bool open_before = gate.on;
                assert_int_equal(grammar_gate_push(&gate, token, n_token, &err), 0);
                opened = gate.on && !open_before;
                grammar_gate_fini(&gate);
            }
            grammar_gate_init(&gate, g, tags[tag], false);
            if (grammar_gate_may_open(&gate, token, n_token) != opened)
                fail_msg("%.*s and the tag %s: opened %d", (int)n_token, token, tags[tag], opened);
            grammar_gate_fini(&gate);
        }
    grammar_free(g);
}

/* More tags than are kept, each twice. */
static void a_tag_s_tokens_are_those_that_may_open_its_gate(void **state) {
    (void)state;
    struct tokenizer *tokenizer;
    struct grammar_tags *tags;
    struct rod_error err;
    if (tokenizer_open("config/models/tales", &tokenizer, &err)) fail_msg("%s", err.message);
    const uint32_t V = tokenizer_n_ids(tokenizer) - 100; /* a model may have fewer */
    assert_int_equal(grammar_tags_new(tokenizer, V, &tags, &err), 0);
    for (uint32_t i = 0; i < 50; i++) {
        char tag[16];
        snprintf(tag, sizeof tag, "<%ue", i % 25);
        const struct grammar_gate gate = {.open = tag, .n_open = strlen(tag)};
        const int32_t *ids;
        int32_t *own;
        size_t n, k = 0;
        assert_int_equal(grammar_tags_find(tags, tag, &ids, &n, &own, &err), 0);
        for (uint32_t id = 0; id < V; id++) {
            size_t len;
            bool special;
            const char *bytes = tokenizer_bytes(tokenizer, (int32_t)id, &len, &special);
            if (!bytes || !grammar_gate_may_open(&gate, bytes, len)) continue;
            assert_true(k < n);
            assert_int_equal(ids[k++], id);
        }
        assert_int_equal(k, n);
        assert_true(n > 10);
        free(own);
    }
    grammar_tags_free(tags);
    tokenizer_close(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tag_s_tokens_are_those_that_may_open_its_gate),
        cmocka_unit_test(regexes_match_as_everywhere),
        cmocka_unit_test(regexes_that_no_automaton_does_are_refused),
        cmocka_unit_test(ebnf_grammars_recur),
        cmocka_unit_test(a_choice_is_one_of_its_strings),
        cmocka_unit_test(any_json_object_is_an_object),
        cmocka_unit_test(a_token_may_open_a_gate_where_some_text_before_it_makes_it_do_so),
        cmocka_unit_test(nesting_that_could_not_be_closed_is_not_begun),
        cmocka_unit_test(a_mask_is_what_trying_every_token_gives),
        cmocka_unit_test(tables_of_repeated_parts_change_no_mask),
        cmocka_unit_test(tables_are_shared_between_threads),
        cmocka_unit_test(masks_of_a_large_vocabulary_are_fast),
        cmocka_unit_test(memory_of_states_stays_bounded),
        cmocka_unit_test(calls_name_a_tool_and_follow_its_schema),
        cmocka_unit_test(calls_beside_a_schema_at_fault_are_refused),
        cmocka_unit_test(calls_behind_the_opening_tag_have_any_text_behind_them),
        cmocka_unit_test(a_tools_schema_is_weakened_unless_it_is_strict),
        cmocka_unit_test(each_tool_has_its_own_definitions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
