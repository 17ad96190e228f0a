/* test_tokenizer_refused.c - texts and tokenizer.json files that are refused: by offset, by name, and never a crash. */
#include "engine/base/json_python.h"
#include "tests/tokenizer_setup.h"

static void invalid_utf8_is_refused_with_its_offset(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t len, at;
    } bad[] = {{"ab\xff", 3, 2},
               {"\xc0\x80", 2, 0},
               {"x\xed\xa0\x80", 4, 1},
               {"\xf4\x90\x80\x80", 4, 0},
               {"12345678\xe4\xbd", 10, 8},
               {"\xe0\x9f\xbf", 3, 0},
               {"\x80", 1, 0},
               {"abcdefgh\xf0\x9f\x98", 11, 8},
               {"\xc3\xa9\xc3", 3, 2},
               {"\xf5\x80\x80\x80", 4, 0},
               {"\xf0\x8f\xbf\xbf", 4, 0}};
    struct tokenizer *t = open_tales();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct rod_error err;
        int32_t *ids;
        size_t n;
        char want[32];
        assert_int_equal(tokenizer_encode(t, bad[i].bytes, bad[i].len, true, &ids, &n, &err), ROD_EINVALID);
        snprintf(want, sizeof want, "offset %zu", bad[i].at);
        if (!strstr(err.message, want)) fail_msg("text %zu: \"%s\" lacks \"%s\"", i, err.message, want);
        struct tokenizer_piece piece = {bad[i].bytes, bad[i].len, false};
        assert_int_equal(tokenizer_encode_pieces(t, &piece, 1, &ids, &n, &err), ROD_EINVALID);
    }
    tokenizer_close(t);
}

static void a_directory_without_a_tokenizer_is_not_found(void **state) {
    (void)state;
    struct tokenizer *t;
    struct rod_error err;
    assert_int_equal(tokenizer_open("tests/vectors/rodimus-small", &t, &err), ROD_ENOTFOUND);
    assert_int_equal(tokenizer_open("tests/no/such/place", &t, &err), ROD_ENOTFOUND);
}

/* Sets a dotted path of the tokenizer to a JSON value and expects the code and the name in the message. */
static void refused(const char *path, const char *value, int code, const char *named) {
    json_t *root = load_family(6), *object = json_object_get(root, "tokenizer");
    char key[128];
    json_error_t where;
    const char *dot;
    for (; (dot = strchr(path, '.')); path = dot + 1) {
        snprintf(key, sizeof key, "%.*s", (int)(dot - path), path);
        object = key[0] >= '0' && key[0] <= '9' ? json_array_get(object, strtoul(key, NULL, 10))
                                                : json_object_get(object, key);
        assert_non_null(object);
    }
    json_t *v = json_python_load(value, strlen(value), JSON_DECODE_ANY, &where);
    if (!v) fail_msg("%s: %s", value, where.text);
    if (json_is_array(object))
        json_array_set_new(object, strtoul(path, NULL, 10), v);
    else
        json_object_set_new(object, path, v);
    char *text = json_dumps(json_object_get(root, "tokenizer"), 0);
    struct tokenizer *t = NULL;
    struct rod_error err = {0};
    int rc = tokenizer_parse(text, strlen(text), NULL, 0, &t, &err);
    if (rc != code || (code && !strstr(err.message, named)))
        fail_msg("%s = %s: %s \"%s\", expected %s naming %s", path, value, rod_code_name(rc), err.message,
                 rod_code_name(code), named);
    if (!rc) tokenizer_close(t);
    free(text);
    json_decref(root);
}

static void what_is_not_supported_is_refused_by_name(void **state) {
    (void)state;
    const int no = ROD_EUNSUPPORTED, bad = ROD_EMODEL;
    refused("model.type", "\"Unigram\"", no, "Unigram");
    refused("model.dropout", "0.1", no, "dropout");
    refused("model.dropout", "0.0", 0, "");
    refused("model.continuing_subword_prefix", "\"##\"", no, "continuing_subword_prefix");
    refused("model.end_of_word_suffix", "\"</w>\"", no, "end_of_word_suffix");
    refused("model.end_of_word_suffix", "\"\"", 0, "");
    refused("model.ignore_merges", "3", bad, "ignore_merges");
    refused("model.vocab", "[]", bad, "vocab");
    refused("model.vocab", "{\"a\": 0}", no, "byte 0x00");
    refused("model.vocab", "{\"a\": -1}", bad, "\"a\"");
    refused("model.vocab", "{\"a\": 99999999999}", bad, "\"a\"");
    refused("model.vocab", "{\"a\": 1, \"b\": 1}", bad, "twice");
    refused("model.merges", "[\"a b c\"]", bad, "merges[0]");
    refused("model.merges", "[\"ab\"]", bad, "merges[0]");
    refused("model.merges", "[[\"a\", 3]]", bad, "merges[0]");
    refused("model.merges", "[[\"a\", \"\\u0000\"]]", bad, "merges[0]");
    refused("model.merges", "7", bad, "merges");
    refused("model.merges", "[\"#version: 0.2\"]", 0, "");
    refused("model.vocab", "{\"a\\u0000\\nb\": 1e40}", bad, "\"a\\u0000\\u000ab\"");
    refused("model.merges", "[[\"a\", \"x\\u0000y\"]]", bad, "merges[0]: \"x\\u0000y\" is not in the vocab");
    refused("model", "null", bad, "no \"model\"");
    refused("model", "[1]", bad, "\"model\" must be an object");
    refused("model.type", "\"BPE\\u0000\"", no, "type \"BPE\\u0000\"");
    refused("normalizer", "\"NFC\"", bad, "\"normalizer\" must be an object or null");
    refused("normalizer", "1e300", bad, "\"normalizer\" must be an object or null");
    refused("normalizer", "{}", bad, "\"normalizer\" has no \"type\"");
    refused("normalizer", "null", 0, "");
    refused("decoder", "\"ByteLevel\"", bad, "\"decoder\" must be an object or null");
    refused("post_processor", "[]", bad, "\"post_processor\" must be an object or null");
    refused("pre_tokenizer", "\"ByteLevel\"", bad, "\"pre_tokenizer\" must be an object or null");
    refused("pre_tokenizer", "{\"type\": 1}", bad, "\"pre_tokenizer\" has no \"type\"");
    refused("pre_tokenizer.pretokenizers.0", "\"Split\"", bad, "a stage must be an object with a \"type\"");
    refused("normalizer", "{\"type\": \"NFKC\"}", no, "NFKC");
    refused("normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Lowercase\"}]}", no, "Lowercase");
    refused("normalizer", "{\"type\": \"Sequence\", \"normalizers\": []}", 0, "");
    refused("decoder", "{\"type\": \"WordPiece\"}", no, "WordPiece");
    refused("decoder", "null", no, "decoder");
    refused("post_processor", "{\"type\": \"BertProcessing\"}", no, "BertProcessing");
    refused("post_processor",
            "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\"}}, {\"SpecialToken\": "
            "{\"id\": \"<s>\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [1]}}}",
            no, "TemplateProcessing");
    refused("pre_tokenizer", "null", no, "pre_tokenizer");
    refused("pre_tokenizer", "{\"type\": \"Metaspace\"}", no, "Metaspace");
    refused("pre_tokenizer", "{\"type\": \"Digits\"}", no, "ByteLevel");
    refused("pre_tokenizer.pretokenizers.0.behavior", "\"MergedWithNext\"", no, "behavior");
    refused("pre_tokenizer.pretokenizers.0.invert", "\"x\"", no, "invert");
    refused("pre_tokenizer.pretokenizers.0.pattern", "\"x\"", no, "pattern");
    refused("pre_tokenizer.pretokenizers.0.pattern", "{\"String\": \"\"}", no, "pattern");
    refused("pre_tokenizer.pretokenizers.0", "{\"type\": \"Whitespace\"}", no, "Whitespace");
    refused("added_tokens.0.id", "\"x\"", bad, "added_tokens[0]");
    refused("added_tokens.0.id", "65", bad, "65");
    refused("added_tokens.0.content", "5", bad, "content");
    refused("added_tokens.0.lstrip", "5", bad, "lstrip");
    refused("added_tokens", "{}", bad, "added_tokens");
}

static void patterns_that_read_differently_are_refused(void **state) {
    (void)state;
    static const char *const patterns[] = {"a{1,3}+",
                                           "a{2}?",
                                           "a{,3}",
                                           "[a[b]]",
                                           "[a&&b]",
                                           "\\\\bx",
                                           "\\\\h",
                                           "\\\\R",
                                           "x(?i)y|z",
                                           "(?<n>x)",
                                           "(?m:x)",
                                           "\\\\p{Alpha}",
                                           "\\\\pL",
                                           "[]a]",
                                           "[a",
                                           "(a",
                                           "\\\\1",
                                           "(*UTF)",
                                           "a\\\\",
                                           "\\\\xff",
                                           "(?#c)",
                                           "[a-\\\\d]",
                                           "[\\\\d-a]",
                                           "[b-a]",
                                           "[a-b-c]",
                                           "x)",
                                           "(?i:ss)",
                                           "(?i:f(?:i))",
                                           "(?i:[\\\\p{L}])",
                                           "\\\\Qa\\\\E",
                                           "\\\\p{L",
                                           "\\\\p{no-name}",
                                           "\\\\K"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        char value[128];
        snprintf(value, sizeof value, "{\"Regex\": \"%s\"}", patterns[i]);
        refused("pre_tokenizer.pretokenizers.0.pattern", value, ROD_EUNSUPPORTED, "pattern");
    }
}

static void a_faulty_pattern_is_named_with_the_place_of_its_fault(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *says;
    } cases[] = {
        {"(a|\\\\p{L}+", "pattern \"(a|\\p{L}+\": missing closing parenthesis at offset 9"},
        {"\xc3\xa9\\\\p{L}|(?<=a*)b", "pattern \"\xc3\xa9\\p{L}|(?<=a*)b\": "},
        {"\\\\p{Lu}\xc3\xa9|*x", "quantifier does not follow a repeatable item at offset 9"},
        {"a\\\\u0000(", "missing closing parenthesis at offset 8"},
        {"\\\\p{Uppercase}x", "this property at offset 0 (\"\\p{Uppercase}\")"},
        {"a\\\\p{^Uppercase_Letter}x", "this property at offset 1 (\"\\p{^Uppercase_Letter}\")"},
        {"a\\\\b\\u0000c", "this escape at offset 1 (\"\\b\\u0000c\")"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char value[128];
        snprintf(value, sizeof value, "{\"Regex\": \"%s\"}", cases[i].pattern);
        refused("pre_tokenizer.pretokenizers.0.pattern", value, ROD_EUNSUPPORTED, cases[i].says);
    }
}

static void mutated_files_never_crash(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        json_t *root = load_family(f);
        char *good = json_dumps(json_object_get(root, "tokenizer"), JSON_COMPACT | JSON_ENSURE_ASCII);
        size_t len = strlen(good), n_parsed = 0;
        uint64_t seed = 7000 + f;
        for (int round = 0; round < 60; round++) {
            char *text = malloc(len + 1);
            memcpy(text, good, len + 1);
            size_t n = len;
            if (round % 4 == 0) n = next_random(&seed) % len;
            static const char letters[] = "\"\\{}[]:,0919-.eEtrufalsn \x01\x80\xff(?*+|^$";
            for (uint64_t k = next_random(&seed) % 12 + 1; round % 4 && k;
                 k--) { /* the ends hold most of the structure */
                size_t at = next_random(&seed) % (k & 1 ? len : 1500 < len ? 1500 : len);
                if (round % 4 == 1)
                    text[at] = letters[next_random(&seed) % (sizeof letters - 1)];
                else if (round % 4 == 2)
                    memcpy(text + at, good + next_random(&seed) % (len - 16), len - at < 16 ? len - at : 16);
                else if (text[at] >= '0' && text[at] <= '9')
                    text[at] = (char)('0' + next_random(&seed) % 10);
            }
            struct tokenizer *t;
            struct rod_error err = {0};
            int rc = tokenizer_parse(text, n, NULL, 0, &t, &err);
            if (!rc) {
                int32_t *ids;
                size_t n_ids;
                n_parsed++;
                rc = tokenizer_encode(t, "The <s> caf\xc3\xa9's 123  \n<mask>", 28, true, &ids, &n_ids, &err);
                if (!rc) free(ids);
                tokenizer_close(t);
            } else if (!err.message[0])
                fail_msg("%s seed %d round %d: no message", families[f], 7000 + (int)f, round);
            free(text);
        }
        assert_true(n_parsed > 0); /* some changes must reach the encoder */
        free(good);
        json_decref(root);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(invalid_utf8_is_refused_with_its_offset),
        cmocka_unit_test(a_directory_without_a_tokenizer_is_not_found),
        cmocka_unit_test(what_is_not_supported_is_refused_by_name),
        cmocka_unit_test(patterns_that_read_differently_are_refused),
        cmocka_unit_test(a_faulty_pattern_is_named_with_the_place_of_its_fault),
        cmocka_unit_test(mutated_files_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
