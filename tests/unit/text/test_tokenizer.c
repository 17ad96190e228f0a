/* test_tokenizer.c - the tokenizer against the reference implementation's results; special tokens and pieces; threads.
 */
#include "tests/each_model.h"
#include "tests/tokenizer_setup.h"

#include "engine/base/utf8.h"
#include "engine/text/tokenizer_parts.h"

#include <pthread.h>

static char *decode(const struct tokenizer *t, const int32_t *ids, size_t n, bool skip_special, size_t *len) {
    size_t cap = 16, w = 0, part;
    bool special;
    for (size_t i = 0; i < n; i++) cap += (tokenizer_bytes(t, ids[i], &part, &special) ? part : 0) * 3 + 16;
    char *text = malloc(cap);
    assert_non_null(text);
    struct detok d = {{0}, 0};
    for (size_t i = 0; i < n; i++) w += detok_push(&d, t, ids[i], skip_special, text + w);
    w += detok_flush(&d, text + w);
    text[w] = 0;
    *len = w;
    return text;
}

static void check_ids(const char *what, const int32_t *got, size_t n_got, const json_t *want) {
    size_t n_want = json_array_size(want), i = 0;
    while (i < n_got && i < n_want && got[i] == json_integer_value(json_array_get(want, i))) i++;
    if (i == n_got && i == n_want) return;
    fail_msg("%s: %zu ids, expected %zu; the first difference at %zu: %d, expected %d", what, n_got, n_want, i,
             i < n_got ? got[i] : -1, i < n_want ? (int)json_integer_value(json_array_get(want, i)) : -1);
}

static void check_case(const char *name, size_t k, const struct tokenizer *t, const json_t *c) {
    static const char *const keys[] = {"decoded", "skipped"};
    const json_t *text = json_object_get(c, "text");
    char what[320];
    struct rod_error err;
    int32_t *ids = NULL;
    size_t n = 0;
    snprintf(what, sizeof what, "%s case %zu \"%.200s\"", name, k, json_string_value(text));
    if (tokenizer_encode(t, json_string_value(text), json_string_length(text), true, &ids, &n, &err))
        fail_msg("%s: %s", what, err.message);
    check_ids(what, ids, n, json_object_get(c, "ids"));
    for (int skip = 0; skip < 2; skip++) {
        const json_t *want = json_object_get(c, keys[skip]);
        if (!json_is_string(want)) continue;
        size_t len;
        char *got = decode(t, ids, n, skip, &len);
        if (len != json_string_length(want) || memcmp(got, json_string_value(want), len))
            fail_msg("%s: decoded \"%s\", expected \"%s\"", what, got, json_string_value(want));
        free(got);
    }
    free(ids);
}

static void encode_equals(const struct tokenizer *t, const char *text, bool special, const int32_t *want,
                          size_t n_want) {
    struct rod_error err;
    int32_t *ids;
    size_t n;
    if (tokenizer_encode(t, text, strlen(text), special, &ids, &n, &err)) fail_msg("%s", err.message);
    if (n != n_want || memcmp(ids, want, n * sizeof *ids))
        fail_msg("\"%s\": %zu ids, expected %zu others", text, n, n_want);
    free(ids);
}

/* ---- against the reference implementation ---- */

static void check_cases_of(const char *model) {
    struct tokenizer *t = open_tokenizer(model);
    char path[256];
    snprintf(path, sizeof path, "%s/tokenizer_cases.json", model);
    json_t *cases = load_json(path), *c;
    size_t i;
    assert_true(json_array_size(cases) > 40);
    json_array_foreach(cases, i, c) check_case(model, i, t, c);
    json_decref(cases);
    tokenizer_close(t);
}

static void each_model_gives_the_reference_ids(void **state) {
    (void)state;
    each_model_with("tokenizer_cases.json", check_cases_of);
}

static void every_family_of_tokenizers_gives_the_reference_ids(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        json_t *root = load_family(f), *c;
        struct tokenizer *t = parse_object(json_object_get(root, "tokenizer"));
        size_t i;
        assert_true(json_array_size(json_object_get(root, "cases")) > 80);
        json_array_foreach(json_object_get(root, "cases"), i, c) check_case(families[f], i, t, c);
        tokenizer_close(t);
        json_decref(root);
    }
}

static void the_interpreter_splits_as_the_compiled_pattern_does(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        json_t *root = load_family(f), *c;
        struct tokenizer *t = parse_object(json_object_get(root, "tokenizer"));
        size_t i;
        for (uint32_t k = 0; k < t->split.n_stages; k++) t->split.stage[k].jit = false;
        json_array_foreach(json_object_get(root, "cases"), i, c) check_case(families[f], i, t, c);
        tokenizer_close(t);
        json_decref(root);
    }
}

static void heldout_text_round_trips(void **state) {
    (void)state;
    struct tokenizer *t = open_tales();
    struct rod_error err;
    size_t len, n, back;
    int32_t *ids;
    char *text = read_file(TALES "/heldout.txt", &len);
    assert_int_equal(tokenizer_encode(t, text, len, true, &ids, &n, &err), 0);
    char *again = decode(t, ids, n, false, &back);
    assert_int_equal(back, len);
    assert_memory_equal(again, text, len);
    free(again);
    free(ids);
    free(text);
    tokenizer_close(t);
}

static void random_unicode_round_trips(void **state) {
    (void)state;
    struct tokenizer *t = open_tales();
    uint64_t seed = 20240607;
    for (int round = 0; round < 300; round++) {
        char text[800];
        size_t len = 0, n, back;
        while (len < 700 && next_random(&seed) % 200) {
            uint32_t bits = (uint32_t)(next_random(&seed) % 21) + 1,
                     c = (uint32_t)next_random(&seed) & ((1u << bits) - 1);
            if (c <= 0x10ffff && !(c >= 0xd800 && c < 0xe000)) len += utf8_encode(c, text + len);
        }
        struct rod_error err;
        int32_t *ids;
        if (tokenizer_encode(t, text, len, round & 1, &ids, &n, &err)) fail_msg("round %d: %s", round, err.message);
        char *again = decode(t, ids, n, false, &back);
        if (back != len || memcmp(again, text, len))
            fail_msg("seed 20240607 round %d: %zu bytes became %zu", round, len, back);
        free(again);
        free(ids);
    }
    tokenizer_close(t);
}

/* ---- special tokens and pieces ---- */

static void special_tokens_are_recognised_only_when_asked(void **state) {
    (void)state;
    struct tokenizer *t = open_tales();
    size_t len;
    bool special;
    int32_t role = tokenizer_find(t, "<role>");
    assert_int_equal(role, 4);
    assert_int_equal(tokenizer_find(t, "<rol"), -1);
    assert_string_equal(tokenizer_bytes(t, role, &len, &special), "<role>");
    assert_true(special);
    assert_int_equal(len, 6);
    assert_null(tokenizer_bytes(t, -1, &len, &special));
    assert_null(tokenizer_bytes(t, (int32_t)tokenizer_n_ids(t), &len, &special));
    encode_equals(t, "<role>", true, (int32_t[]){role}, 1);
    struct rod_error err;
    int32_t *ids;
    size_t n;
    assert_int_equal(tokenizer_encode(t, "<role></role><|endoftext|>", 26, false, &ids, &n, &err), 0);
    for (size_t i = 0; i < n; i++) {
        tokenizer_bytes(t, ids[i], &len, &special);
        assert_false(special);
    }
    free(ids);
    tokenizer_close(t);
}

static void pieces_encode_as_their_concatenation(void **state) {
    (void)state;
    json_t *root = load_family(6);
    struct tokenizer *tokenizers[] = {open_tales(), parse_object(json_object_get(root, "tokenizer"))};
    size_t len;
    char *text = read_file(TALES "/heldout.txt", &len);
    uint64_t seed = 99;
    for (int round = 0; round < 200; round++) {
        const struct tokenizer *t = tokenizers[round & 1];
        bool special = round & 2;
        size_t from = next_random(&seed) % (len - 600), at = 0, n_pieces = 0, n, m,
               total = 200 + next_random(&seed) % 300;
        struct tokenizer_piece pieces[600];
        while (((unsigned char)text[from] & 0xc0) == 0x80) from++;
        while (((unsigned char)text[from + total] & 0xc0) == 0x80) total++;
        while (at < total) {
            size_t step = next_random(&seed) % 20;
            if (step > total - at) step = total - at;
            while (((unsigned char)text[from + at + step] & 0xc0) == 0x80) step++;
            pieces[n_pieces++] = (struct tokenizer_piece){text + from + at, step, special};
            at += step;
        }
        int32_t *a, *b;
        struct rod_error err;
        assert_int_equal(tokenizer_encode(t, text + from, total, special, &a, &n, &err), 0);
        assert_int_equal(tokenizer_encode_pieces(t, pieces, n_pieces, &b, &m, &err), 0);
        if (n != m || memcmp(a, b, n * sizeof *a))
            fail_msg("seed 99 round %d: %zu ids alone, %zu in pieces", round, n, m);
        free(a);
        free(b);
    }
    free(text);
    tokenizer_close(tokenizers[0]);
    tokenizer_close(tokenizers[1]);
    json_decref(root);
}

static void no_special_token_reaches_into_a_piece_without_them(void **state) {
    (void)state;
    struct tokenizer *t = open_tales();
    static const struct tokenizer_piece cut[][3] = {{{"<ro", 3, true}, {"le>", 3, true}, {"", 0, false}},
                                                    {{"<ro", 3, true}, {"le>", 3, false}, {"", 0, true}},
                                                    {{"<ro", 3, false}, {"le>", 3, true}, {"x", 1, true}},
                                                    {{"<r", 2, true}, {"ol", 2, false}, {"e>", 2, true}}};
    for (size_t i = 0; i < 4; i++) {
        int32_t *ids;
        size_t n, n_special = 0, len;
        struct rod_error err;
        bool special;
        assert_int_equal(tokenizer_encode_pieces(t, cut[i], 3, &ids, &n, &err), 0);
        for (size_t k = 0; k < n; k++) n_special += tokenizer_bytes(t, ids[k], &len, &special) && special;
        if (n_special != (i == 0)) fail_msg("cut %zu: %zu special tokens", i, n_special);
        free(ids);
    }
    tokenizer_close(t);
}

static void pieces_are_normalized_without_mixing(void **state) {
    (void)state;
    json_t *root = load_family(3);
    struct tokenizer *t = parse_object(json_object_get(root, "tokenizer"));
    /* <s> wants normalized text here; "\u0338" would compose with the ">" before it if the pieces were one text */
    static const char *const texts[] = {"e\xcc\x81<s>", "\xcc\xb8 e\xcc\x81<s></s>", "e\xcc\x81</s>"};
    struct tokenizer_piece pieces[3];
    for (size_t i = 0; i < 3; i++) pieces[i] = (struct tokenizer_piece){texts[i], strlen(texts[i]), i != 1};
    struct rod_error err;
    int32_t *ids;
    size_t n, n_special = 0, len;
    bool special;
    assert_int_equal(tokenizer_encode_pieces(t, pieces, 3, &ids, &n, &err), 0);
    for (size_t k = 0; k < n; k++) n_special += tokenizer_bytes(t, ids[k], &len, &special) && special;
    assert_int_equal(n_special, 2);
    char *text = decode(t, ids, n, false, &len);
    assert_string_equal(text, "\xc3\xa9<s>\xcc\xb8 \xc3\xa9<s></s>\xc3\xa9</s>");
    free(text);
    free(ids);
    tokenizer_close(t);
    json_decref(root);
}

static void ignore_merges_never_makes_a_special_token(void **state) {
    (void)state;
    json_t *root = load_family(2), *tokenizer = json_object_get(root, "tokenizer"), *a;
    size_t i;
    /* "Hello" is a whole word that only ignore_merges finds; made special, plain text must not give it */
    json_t *vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
    int32_t hello = (int32_t)json_integer_value(json_object_get(vocab, "Hello"));
    struct tokenizer *t = parse_object(tokenizer);
    encode_equals(t, "Hello", false, (int32_t[]){hello}, 1);
    tokenizer_close(t);
    json_array_foreach(json_object_get(tokenizer, "added_tokens"), i, a) {
        if (strcmp(json_string_value(json_object_get(a, "content")), "</s>")) continue;
        json_object_set_new(a, "content", json_string("Hello"));
        json_object_set_new(a, "id", json_integer(hello));
    }
    t = parse_object(tokenizer);
    int32_t *ids;
    size_t n;
    struct rod_error err;
    assert_int_equal(tokenizer_encode(t, "Hello", 5, false, &ids, &n, &err), 0);
    assert_true(n > 1);
    free(ids);
    assert_int_equal(tokenizer_encode(t, "Hello", 5, true, &ids, &n, &err), 0);
    assert_int_equal(n, 2); /* the template's <s>, and the token */
    assert_int_equal(ids[1], hello);
    free(ids);
    tokenizer_close(t);
    json_decref(root);
}

static void an_added_token_decodes_to_its_content(void **state) {
    (void)state;
    json_t *root = load_family(3);
    struct tokenizer *t = parse_object(json_object_get(root, "tokenizer"));
    tokenizer_close(t);
    json_decref(root);
    root = load_family(3);
    json_t *extra =
        json_pack("{s:i,s:s,s:b,s:b}", "id", 5000, "content", "<caf\xc3\xa9 >", "special", 0, "normalized", 0);
    json_array_append_new(json_object_get(json_object_get(root, "tokenizer"), "added_tokens"), extra);
    t = parse_object(json_object_get(root, "tokenizer"));
    encode_equals(t, "<caf\xc3\xa9 >", false, (int32_t[]){5000}, 1);
    size_t len;
    char *text = decode(t, (int32_t[]){5000, 4999, 5001, -1}, 4, false, &len); /* ids in a gap have no text */
    assert_string_equal(text, "<caf\xc3\xa9 >");
    free(text);
    tokenizer_close(t);
    json_decref(root);
}

/* The tokenizer of a family with added tokens of its own, ids from first on; flags: n(ormalized), l(strip), r(strip).
 */
static struct tokenizer *with_added(const char *const (*tokens)[2], size_t n, int first) {
    json_t *root = load_family(7), *tokenizer = json_object_get(root, "tokenizer"), *list = json_array();
    for (size_t i = 0; i < n; i++) {
        const char *flags = tokens[i][1];
        json_array_append_new(list,
                              json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", first + (int)i, "content", tokens[i][0],
                                        "special", 0, "single_word", 0, "normalized", strchr(flags, 'n') != NULL,
                                        "lstrip", strchr(flags, 'l') != NULL, "rstrip", strchr(flags, 'r') != NULL));
    }
    json_object_set_new(tokenizer, "added_tokens", list);
    struct tokenizer *t = parse_object(tokenizer);
    json_decref(root);
    return t;
}

static void white_space_that_rstrip_took_is_searched_again(void **state) {
    (void)state;
    struct tokenizer *t = with_added((const char *const[][2]){{"  ", "n"}, {"<user>", "nr"}}, 2, 1000);
    encode_equals(t, "<user>    ", true, (int32_t[]){1001, 1000, 1000}, 3);
    encode_equals(t, "<user>      <user>", true, (int32_t[]){1001, 1000, 1000, 1000, 1001}, 5);
    size_t n;
    int32_t *ids;
    struct rod_error err;
    assert_int_equal(tokenizer_encode(t, "<user>   hello", 14, true, &ids, &n, &err), 0);
    assert_true(n > 3); /* the third space is text again, as the reference has it */
    assert_int_equal(ids[0], 1001);
    assert_int_equal(ids[1], 1000);
    char *text = decode(t, ids + 2, n - 2, false, &n);
    assert_string_equal(text, " hello");
    free(text);
    free(ids);
    tokenizer_close(t);
}

static void a_match_of_which_nothing_is_left_gives_no_token(void **state) {
    (void)state;
    for (int normalized = 0; normalized < 2; normalized++) {
        struct tokenizer *t = with_added(
            (const char *const[][2]){{"  ", normalized ? "nl" : "l"}, {"<user>", normalized ? "nr" : "r"}}, 2, 1000);
        encode_equals(t, "<user>  ", true, (int32_t[]){1001}, 1);                     /* as the reference does */
        encode_equals(t, "<user>    <user>", true, (int32_t[]){1001, 1000, 1001}, 3); /* where it panics */
        tokenizer_close(t);
    }
}

static void the_last_of_equal_added_tokens_counts(void **state) {
    (void)state;
    json_t *root = load_family(7), *tokenizer = json_object_get(root, "tokenizer"), *list = json_array();
    for (int i = 0; i < 2; i++)
        json_array_append_new(
            list, json_pack("{s:i,s:s,s:b,s:b}", "id", 1000, "content", "<user>", "normalized", i, "rstrip", !i));
    json_object_set_new(tokenizer, "added_tokens", list);
    struct tokenizer *t = parse_object(tokenizer);
    assert_int_equal(t->raw.n_tokens, 0);
    assert_int_equal(t->normalized.n_tokens, 1);
    assert_false(t->normalized.tokens[0].rstrip);
    tokenizer_close(t);
    json_decref(root);
}

static int count_word(void *arg, const char *word, size_t len) {
    (void)word;
    if (len) ++*(size_t *)arg;
    return 0;
}

/* How many words a pattern cuts a text into. */
static size_t words_of(const char *pattern, const char *text) {
    json_t *pre = json_pack("{s:s, s:[{s:s, s:{s:s}, s:s}, {s:s, s:b, s:b}]}", "type", "Sequence", "pretokenizers",
                            "type", "Split", "pattern", "Regex", pattern, "behavior", "Isolated", "type", "ByteLevel",
                            "use_regex", 0, "add_prefix_space", 0);
    struct split split = {0};
    struct rod_error err;
    size_t n = 0;
    struct split_work work = {.word = count_word, .arg = &n};
    if (split_init(&split, pre, &err) || split_run(&split, &work, text, strlen(text), &err))
        fail_msg("%s", err.message);
    split_work_fini(&work);
    split_fini(&split);
    json_decref(pre);
    return n;
}

static void classes_are_of_unicode_16_whatever_the_libraries_know(void **state) {
    (void)state;
    /* U+10D4A is a letter, U+10D40 a digit and U+10D69 a mark of Garay, all of Unicode 16; U+16EA0 is of 17 */
    static const char text[] = "a\xf0\x90\xb5\x8a\xf0\x90\xb5\x80\xf0\x90\xb5\xa9\xf0\x96\xba\xa0";
    assert_int_equal(words_of("\\p{L}+", text), 2);
    assert_int_equal(words_of("\\w+", text), 2);
    assert_int_equal(words_of("\\p{Garay}+|a", text), 3);
    assert_int_equal(words_of("[\\p{L}\\p{N}]+|\\p{M}", text), 3);
    assert_int_equal(words_of("\\p{Cn}|\\p{N}", text), 4);
    struct letters_set words = {0};
    letters_words(&words);
    letters_tidy(&words);
    assert_true(letters_has(&words, 0x10d4a));
    assert_false(letters_has(&words, 0x16ea0));
    free(words.v);
}

static void case_is_ignored_as_the_reference_does(void **state) {
    (void)state;
    static const char text[] = "s\xc5\xbf"
                               "S\xc3\xa9\xc3\x89"; /* U+017F is a long s */
    assert_int_equal(words_of("(?i:s)", text), 4);
    assert_int_equal(words_of("(?i:[a-z])", text), 4);
    assert_int_equal(words_of("(?i:\xc3\xa9)", text), 3);
    assert_int_equal(words_of("(?i:\\p{Lu})", "aB"), 2); /* a property keeps its case */
    assert_int_equal(words_of("(?i:[B])", "abB"), 3);
}

static void add_bos_token_is_honoured(void **state) {
    (void)state;
    static const char config[] = "{\"add_bos_token\": true, \"bos_token\": {\"content\": \"<|startoftext|>\"}}";
    static const char eos[] = "{\"add_eos_token\": true}";
    size_t len, n, n_special;
    char *json = read_file(TALES "/tokenizer.json", &len);
    struct tokenizer *t;
    struct rod_error err;
    int32_t *ids;
    assert_int_equal(tokenizer_parse(json, len, config, sizeof config - 1, &t, &err), 0);
    assert_int_equal(tokenizer_encode(t, "a", 1, true, &ids, &n_special, &err), 0);
    assert_int_equal(ids[0], 0);
    free(ids);
    assert_int_equal(tokenizer_encode(t, "a", 1, false, &ids, &n, &err), 0);
    assert_int_equal(n_special, n + 1);
    free(ids);
    tokenizer_close(t);
    assert_int_equal(tokenizer_parse(json, len, eos, sizeof eos - 1, &t, &err), ROD_EUNSUPPORTED);
    assert_non_null(strstr(err.message, "add_eos_token"));
    free(json);
}

static void eos_token_is_a_token_by_its_text(void **state) {
    (void)state;
    static const struct {
        const char *config;
        int32_t id;
    } cases[] = {{"{}", TOKENIZER_NO_NAME},
                 {"{\"eos_token\": null}", TOKENIZER_NO_NAME},
                 {"{\"eos_token\": \"\"}", TOKENIZER_NO_NAME},
                 {"{\"eos_token\": \"<|endoftext|>\"}", 1},
                 {"{\"eos_token\": {\"content\": \"<role>\", \"lstrip\": false, \"x\": NaN}}", 4},
                 {"{\"eos_token\": \".\"}", 19},
                 {"{\"eos_token\": \"<|endoftext|>\\u0000\"}", TOKENIZER_NO_TOKEN},
                 {"{\"eos_token\": \"</s>\"}", TOKENIZER_NO_TOKEN}};
    static const char *const bad[] = {"{\"eos_token\": 1}", "{\"eos_token\": NaN}", "{\"eos_token\": \"\\udc00\"}",
                                      "{\"eos_token\": {\"content\": [\"a\"]}}"};
    size_t len;
    char *json = read_file(TALES "/tokenizer.json", &len);
    struct tokenizer *t;
    struct rod_error err;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *config = cases[i].config;
        if (tokenizer_parse(json, len, config, strlen(config), &t, &err)) fail_msg("%s: %s", config, err.message);
        if (tokenizer_eos(t) != cases[i].id) fail_msg("%s: %d", config, tokenizer_eos(t));
        tokenizer_close(t);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(tokenizer_parse(json, len, bad[i], strlen(bad[i]), &t, &err), ROD_EMODEL);
        assert_non_null(
            strstr(err.message, "\"eos_token\" must be a string of UTF-8, an object with such a \"content\""));
    }
    free(json);
}

/* ---- threads ---- */

struct shared {
    const struct tokenizer *t;
    const char *text;
    size_t len, n;
    int32_t *ids;
};

static void *encode_in_thread(void *arg) {
    struct shared *s = arg;
    struct rod_error err;
    return tokenizer_encode(s->t, s->text, s->len, true, &s->ids, &s->n, &err) ? arg : NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    struct tokenizer *t = open_tales();
    struct shared s[4];
    pthread_t threads[4];
    size_t len;
    char *text = read_file(TALES "/heldout.txt", &len);
    for (int i = 0; i < 4; i++) {
        s[i] = (struct shared){.t = t, .text = text, .len = len};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_in_thread, &s[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
        assert_int_equal(s[i].n, s[0].n);
        assert_memory_equal(s[i].ids, s[0].ids, s[0].n * sizeof *s[0].ids);
    }
    for (int i = 0; i < 4; i++) free(s[i].ids);
    free(text);
    tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_model_gives_the_reference_ids),
        cmocka_unit_test(every_family_of_tokenizers_gives_the_reference_ids),
        cmocka_unit_test(the_interpreter_splits_as_the_compiled_pattern_does),
        cmocka_unit_test(heldout_text_round_trips),
        cmocka_unit_test(random_unicode_round_trips),
        cmocka_unit_test(special_tokens_are_recognised_only_when_asked),
        cmocka_unit_test(pieces_encode_as_their_concatenation),
        cmocka_unit_test(no_special_token_reaches_into_a_piece_without_them),
        cmocka_unit_test(pieces_are_normalized_without_mixing),
        cmocka_unit_test(ignore_merges_never_makes_a_special_token),
        cmocka_unit_test(an_added_token_decodes_to_its_content),
        cmocka_unit_test(white_space_that_rstrip_took_is_searched_again),
        cmocka_unit_test(a_match_of_which_nothing_is_left_gives_no_token),
        cmocka_unit_test(the_last_of_equal_added_tokens_counts),
        cmocka_unit_test(classes_are_of_unicode_16_whatever_the_libraries_know),
        cmocka_unit_test(case_is_ignored_as_the_reference_does),
        cmocka_unit_test(add_bos_token_is_honoured),
        cmocka_unit_test(eos_token_is_a_token_by_its_text),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
