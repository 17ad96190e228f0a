/* test_grammar.c - what regexes, grammars and schemas accept and reject, byte by byte; what they refuse, and by which
 * name; masks against every token tried; memory that stays bounded. */
#include "engine/grammar/grammar_gate.h"
#include "engine/rodimus.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <time.h>
#include <cmocka.h>

static struct grammar *compiled(enum rod_grammar_kind kind, const char *text) {
    struct grammar *g = NULL;
    struct rod_error err = {0};
    if (grammar_compile(kind, text, strlen(text), &g, &err)) fail_msg("%s: %s", text, err.message);
    return g;
}

/* 2: the whole text matches; 1: it is the beginning of one that does; 0: it is not. */
static int reads(struct grammar *g, const char *text) {
    struct grammar_walk w;
    struct rod_error err;
    grammar_walk_init(&w, g);
    int rc = grammar_walk_push(&w, text, strlen(text), &err);
    int out = rc ? 0 : grammar_walk_accepts(&w) ? 2 : 1;
    grammar_walk_fini(&w);
    return out;
}

static void check(enum rod_grammar_kind kind, const char *text, const char *const *yes, const char *const *no) {
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

static void refused(enum rod_grammar_kind kind, const char *text, const char *because) {
    struct grammar *g = NULL;
    struct rod_error err = {0};
    int rc = grammar_compile(kind, text, strlen(text), &g, &err);
    if (rc != ROD_EINVALID || !strstr(err.message, because))
        fail_msg("%.200s: %d '%s', not '%s'", text, rc, rc ? err.message : "", because);
}

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

static void schemas_of_each_type(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"null\"}", LIST("null"), LIST("true", "nul"));
    SCHEMA("{\"type\":[\"boolean\",\"null\"],\"title\":\"t\"}", LIST("true", "false", "null"), LIST("1"));
    SCHEMA("{\"type\":\"integer\"}", LIST("0", "-12", "1234567890123456"),
           LIST("01", "1.5", "-0", "12345678901234567"));
    SCHEMA("{\"type\":\"number\"}", LIST("0.5", "-1e-9", "3"), LIST(".5", "1.", "1e999", "+1"));
    SCHEMA("{\"type\":\"string\",\"minLength\":2,\"maxLength\":3}", LIST("\"ab\"", "\"a\\n\xc3\xa9\"", "\"\\u0041bc\""),
           LIST("\"a\"", "\"abcd\""));
    SCHEMA("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
           LIST("[1]", "[1, 2]", "[1,2,3]"), LIST("[]", "[1,2,3,4]", "[\"a\"]"));
    SCHEMA("{\"type\":\"array\",\"maxItems\":0}", LIST("[]"), LIST("[1]"));
    SCHEMA("{\"enum\":[\"a\",1,null,[1,{\"x\":2}]]}", LIST("\"a\"", "1", "null", "[1,{\"x\":2}]"), LIST("\"b\"", "2"));
    SCHEMA("{\"type\":\"string\",\"enum\":[\"a\",1]}", LIST("\"a\""), LIST("1"));
    SCHEMA("{\"const\":\"\xc3\xa9\\\"\"}", LIST("\"\xc3\xa9\\\"\""), LIST("\"\xc3\xa9\""));
    SCHEMA("true", LIST("1", "{\"a\":[]}", "\"x\""), LIST("x"));
    SCHEMA("{\"minLength\":1}", LIST("\"x\""), LIST("1", "\"\""));
    SCHEMA("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"enum\":[\"x\"]}],\"default\":1}",
           LIST("7", "\"x\""), LIST("\"y\"", "null"));
}

static void objects_keep_order_and_leave_out_what_is_optional(void **state) {
    (void)state;
    const char *ab = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"boolean\"},"
                     "\"c\":{\"type\":\"null\"}},\"required\":[\"b\"],\"additionalProperties\":false}";
    SCHEMA(ab,
           LIST("{\"a\":1,\"b\":true,\"c\":null}", "{\"b\":true}", "{ \"a\" : 1 , \"b\" : false }",
                "{\"b\":true,\"c\":null}"),
           LIST("{}", "{\"a\":1}", "{\"b\":true,\"a\":1}", "{\"b\":true,}", "{\"b\":true,\"d\":1}"));
    SCHEMA("{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}},\"additionalProperties\":false}",
           LIST("{}", "{\"a\":1}", "{\"b\":[]}", "{\"a\":1,\"b\":2}"), LIST("{\"b\":1,\"a\":2}"));
    SCHEMA("{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"null\"}},\"required\":[\"ab\"],"
           "\"additionalProperties\":{\"type\":\"integer\"}}",
           LIST("{\"ab\":null}", "{\"ab\":null,\"a\":1,\"abc\":2,\"b\":3,\"\":4}"),
           LIST("{\"ab\":null,\"ab\":1}", "{\"x\":1}", "{\"ab\":null,\"b\":null}"));
    SCHEMA("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}",
           LIST("{}", "{\"x\":1}", "{\"x\":1,\"y\":2}"), LIST("{\"x\":true}"));
    SCHEMA("{\"type\":\"object\",\"additionalProperties\":false}", LIST("{}"), LIST("{\"x\":true}"));
}

static void schemas_recur_through_references(void **state) {
    (void)state;
    const char *tree = "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"kids\":"
                       "{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"v\"]}},"
                       "\"$ref\":\"#/$defs/n\"}";
    SCHEMA(tree, LIST("{\"v\":1}", "{\"v\":1,\"kids\":[{\"v\":2,\"kids\":[]},{\"v\":3}]}"),
           LIST("{\"kids\":[]}", "[]"));
    SCHEMA("{\"type\":\"array\",\"items\":{\"$ref\":\"#\"}}", LIST("[]", "[[],[[]]]"), LIST("[1]"));
    SCHEMA("{\"$defs\":{\"A B\":{\"const\":1},\"a/\xc3\xa9%\":{\"const\":2}},"
           "\"anyOf\":[{\"$ref\":\"#/$defs/A%20B\"},{\"$ref\":\"#/%24defs/a~1%C3%a9%25\"}]}",
           LIST("1", "2"), LIST("3"));
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/A%2\",\"$defs\":{\"A%2\":{}}}", "leads to nothing");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/%00\",\"$defs\":{\"\":{}}}", "leads to nothing");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#\"}", "no finite text");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/x\"}", "leads to nothing");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"minItems\":1,\"items\":{\"$ref\":\"#\"}}",
            "no finite text");
}

static void patterns_and_formats_hold_inside_json_strings(void **state) {
    (void)state;
    SCHEMA("{\"pattern\":\"^[a-c]+$\"}", LIST("\"abc\""), LIST("\"\"", "\"abd\""));
    SCHEMA("{\"pattern\":\"b\"}", LIST("\"abc\"", "\"\\nb\"", "\"b\""), LIST("\"ac\""));
    SCHEMA("{\"pattern\":\"^[\\\"\\\\\\\\\\n]$\"}", LIST("\"\\\"\"", "\"\\\\\"", "\"\\n\""), LIST("\"\"\"", "\"n\""));
    SCHEMA("{\"pattern\":\"^a|b$\"}", LIST("\"ax\"", "\"xb\""), LIST("\"xa\""));
    SCHEMA("{\"format\":\"date\"}", LIST("\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\""),
           LIST("\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"", "\"0000-01-01\""));
    SCHEMA("{\"format\":\"date-time\"}", LIST("\"2024-02-29T23:59:59.5Z\"", "\"2024-01-01T00:00:00+01:00\""),
           LIST("\"2024-01-01T24:00:00Z\"", "\"2024-01-01T00:00:00\""));
    SCHEMA("{\"format\":\"uuid\"}", LIST("\"123e4567-e89b-12d3-a456-426614174000\""), LIST("\"123e4567\""));
    SCHEMA("{\"format\":\"email\"}", LIST("\"a.b@c-d.org\""), LIST("\"a@b\"", "\"@b.org\"", "\"a..b@c.de\""));
    SCHEMA("{\"format\":\"ipv4\"}", LIST("\"127.0.0.1\"", "\"255.249.10.0\""), LIST("\"256.0.0.1\"", "\"01.0.0.1\""));
}

static void numbers_stay_between_their_bounds(void **state) {
    (void)state;
    SCHEMA("{\"type\":\"integer\",\"minimum\":5,\"maximum\":1203}", LIST("5", "9", "10", "99", "1000", "1199", "1203"),
           LIST("4", "1204", "1300", "-5", "0", "5.0"));
    SCHEMA("{\"type\":\"integer\",\"minimum\":-15,\"maximum\":3}", LIST("-15", "-9", "-1", "0", "3"),
           LIST("-16", "4", "-0"));
    SCHEMA("{\"type\":\"integer\",\"exclusiveMinimum\":0}", LIST("1", "10", "999"), LIST("0", "-1"));
    SCHEMA("{\"type\":\"integer\",\"minimum\":1.5,\"exclusiveMaximum\":4}", LIST("2", "3"), LIST("1", "4"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", LIST("0", "0.0", "0.999", "1", "1.000"),
           LIST("1.0001", "-0.1", "-0", "2"));
    SCHEMA("{\"type\":\"number\",\"exclusiveMinimum\":-2.5,\"exclusiveMaximum\":2.5}",
           LIST("-2.4999", "0", "2.49", "-0.5"), LIST("2.5", "-2.5", "-2.50", "2.500", "3"));
    SCHEMA("{\"type\":\"number\",\"minimum\":0.001}", LIST("0.001", "0.01", "1", "123456"), LIST("0", "0.0009", "0.0"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":7}", LIST("0", "7", "-14", "700", "1001", "-7000000000000000"),
           LIST("1", "-0", "15", "007", "70000000000000000", "1000000000000000"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":64}", LIST("0", "64", "-128", "6400000000000000"),
           LIST("1", "65", "64000000000000000"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":1000}", LIST("0", "1000", "-1000", "17000"),
           LIST("100", "1001", "123456789012345000", "-1000000000000000000000"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":65}", LIST("0", "65", "-6500000000000000"),
           LIST("1", "65000000000000000"));
    SCHEMA("{\"type\":\"integer\",\"multipleOf\":999}", LIST("0", "999", "-1998", "998001"), LIST("1000", "99900000"));
    for (int m = 65; m <= 1000; m++) { /* none is too large, and each has its multiples of four digits and no others */
        char schema[64], text[32];
        snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"multipleOf\":%d}", m);
        if (m > 70 && m < 995 && m % 97 && !(m > 240 && m < 340)) continue;
        struct grammar *g = compiled(ROD_GRAMMAR_JSON_SCHEMA, schema);
        for (int x = -9999; x <= 9999; x++) {
            snprintf(text, sizeof text, "%d", x);
            if ((reads(g, text) == 2) != (x % m == 0)) fail_msg("%s on %d", schema, x);
        }
        grammar_free(g);
    }
    SCHEMA("{\"const\":9223372036854775807}", LIST("9223372036854775807"), LIST("9223372036854775806"));
    SCHEMA("{\"const\":[0.5,1e3,5.0]}", LIST("[0.5,1000.0,5.0]"), LIST("5"));
    SCHEMA("{\"type\":\"integer\",\"minimum\":9223372036854775806}", LIST("9223372036854775806", "9223372036854775807"),
           LIST("9223372036854775805"));
    SCHEMA("{\"type\":\"number\",\"minimum\":9007199254740993,\"exclusiveMinimum\":9007199254740992}",
           LIST("9007199254740993"), LIST("9007199254740992.5"));
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"const\":1.2345678901234568e29}", "const");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"enum\":[1,[{\"a\":-9007199254740992.0}]]}", "enum");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"minimum\":9.2233720368547758e18}", "minimum");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"exclusiveMaximum\":9.2233720368547758e18}",
            "exclusiveMaximum");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"const\":9223372036854775808}", "integer");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"minimum\":3,\"maximum\":2}", "no finite text");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"multipleOf\":0.1}", "multipleOf");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"number\",\"minimum\":1e-30}", "minimum");
}

/* Every integer of a range and around it, for random bounds. */
static void random_integer_bounds_hold(void **state) {
    (void)state;
    const unsigned seed = (unsigned)time(NULL);
    uint64_t random = seed | 1;
    for (int round = 0; round < 60; round++) {
        int bound[2];
        for (int i = 0; i < 2; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            bound[i] = (int)(random >> 33) % (i ? 1500 : 300) - 150;
        }
        if (bound[0] > bound[1]) continue;
        char schema[128], text[32];
        snprintf(schema, sizeof schema, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", bound[0], bound[1]);
        struct grammar *g = compiled(ROD_GRAMMAR_JSON_SCHEMA, schema);
        for (int x = -400; x < 1800; x++) {
            snprintf(text, sizeof text, "%d", x);
            bool in = x >= bound[0] && x <= bound[1];
            if ((reads(g, text) == 2) != in) fail_msg("seed %u: %s on %d", seed, schema, x);
        }
        grammar_free(g);
    }
}

static void what_a_schema_cannot_say_is_refused_by_name(void **state) {
    (void)state;
    static const char *const unknown[] = {"not",
                                          "oneOf",
                                          "if",
                                          "patternProperties",
                                          "uniqueItems",
                                          "prefixItems",
                                          "contains",
                                          "minProperties",
                                          "dependentRequired",
                                          "propertyNames"};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"type\":\"array\",\"items\":{\"%s\":{}}}", unknown[i]);
        refused(ROD_GRAMMAR_JSON_SCHEMA, text, unknown[i]);
    }
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"format\":\"ipv6\"}", "ipv6");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"strung\"}", "type");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"required\":[\"a\"]}", "required");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"a\",\"minLength\":2}", "pattern");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"pattern\":\"(a\"}", "without its )");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[{}],\"type\":\"string\"}", "anyOf");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"enum\":[]}", "no finite text");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"maxLength\":-1}", "maxLength");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"maxLength\":70000}", "maxLength");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "{\"a\":", "not JSON");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "[]", "a schema must be");
    refused(ROD_GRAMMAR_JSON_SCHEMA, "false", "no finite text");
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
    assert_int_equal(vocab_new_bytes(bytes, lens, N_PIECES, &v, &err), 0);
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
    assert_int_equal(vocab_new_bytes(bytes, lens, N_PIECES, &v, &err), 0);
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
    assert_int_equal(vocab_new_bytes(bytes, lens, N_PIECES, &v, &err), 0);
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
    assert_int_equal(vocab_new_bytes(bytes, lens, V, &v, &err), 0);
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
    assert_int_equal(vocab_new_bytes(bytes, lens, N_PIECES, &v, &err), 0);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regexes_match_as_everywhere),
        cmocka_unit_test(regexes_that_no_automaton_does_are_refused),
        cmocka_unit_test(ebnf_grammars_recur),
        cmocka_unit_test(a_choice_is_one_of_its_strings),
        cmocka_unit_test(any_json_object_is_an_object),
        cmocka_unit_test(schemas_of_each_type),
        cmocka_unit_test(objects_keep_order_and_leave_out_what_is_optional),
        cmocka_unit_test(schemas_recur_through_references),
        cmocka_unit_test(patterns_and_formats_hold_inside_json_strings),
        cmocka_unit_test(numbers_stay_between_their_bounds),
        cmocka_unit_test(a_token_may_open_a_gate_where_some_text_before_it_makes_it_do_so),
        cmocka_unit_test(random_integer_bounds_hold),
        cmocka_unit_test(what_a_schema_cannot_say_is_refused_by_name),
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
