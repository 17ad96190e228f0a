/* test_engine_grammar.c - requests with a grammar over fake backends, one that samples on its own and one that does
 * not: what they say, how they end, and that others beside them say what they say alone. */
#include "tests/engine_bench.h"

static struct rod_grammar *opened(struct bench *b, enum rod_grammar_kind kind, const char *text) {
    struct rod_grammar *g = NULL;
    struct rod_error err;
    if (rod_grammar_open(b->c.engine, kind, text, strlen(text), &g, &err)) fail_msg("%s", err.message);
    return g;
}

static void a_choice_is_said_and_ends_the_request(void **state) {
    (void)state;
    struct bench b;
    bench_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true), CONFIG());
    struct rod_grammar *g = opened(&b, ROD_GRAMMAR_CHOICE, "[\"tea\",\"coffee\"]");
    for (int i = 0; i < 10; i++) {
        struct answer a;
        struct rod_request *r = say(&b, "What do you drink?", &a);
        r->grammar = rod_grammar_share(g);
        r->sampling.temperature = 1;
        r->sampling.seed = (uint64_t)i;
        r->ignore_eos = i % 2;
        r->min_tokens = 50; /* nothing may follow, so there is nothing to wait for */
        finish(&b, r, &a);
        assert_true(!strcmp(a.text, "tea") || !strcmp(a.text, "coffee"));
        assert_int_equal(a.end.reason, ROD_FINISH_STOP);
        assert_int_equal(a.end.stop_id, -1);
        collect_free(&a);
    }
    rod_grammar_close(g);
    bench_close(&b);
}

/* The copy model wants to say its prompt and then to end; the grammar takes what it can of that. */
static void the_end_token_is_chosen_only_where_the_text_may_end(void **state) {
    (void)state;
    struct bench b;
    bench_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    struct rod_grammar *g = opened(&b, ROD_GRAMMAR_REGEX, "12(34)*");
    struct answer a;
    struct rod_request *r = say(&b, "1234", &a);
    r->grammar = g;
    finish(&b, r, &a);
    assert_string_equal(a.text, "1234");
    assert_int_equal(a.end.reason, ROD_FINISH_STOP);
    assert_int_equal(a.end.stop_id, EOS);
    collect_free(&a);
    g = opened(&b, ROD_GRAMMAR_REGEX, "1234567");
    r = say(&b, "1234", &a);
    r->grammar = g;
    finish(&b, r, &a);
    assert_string_equal(a.text, "1234567");
    collect_free(&a);
    bench_close(&b);
}

/* A replacement character is the beginning of nothing valid. */
static void a_character_that_is_cut_is_left_out(void **state) {
    (void)state;
    static const char whole[] = "\xf0\x92\x80\x80\xe2\x82\xac\xf0\x92\x80\x81";
    struct bench b;
    bench_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true), CONFIG());
    struct rod_grammar *g = opened(&b, ROD_GRAMMAR_REGEX, whole);
    for (uint32_t limit = 1; limit <= 11; limit++) {
        struct answer a;
        struct rod_request *r = say(&b, "Say it", &a);
        r->grammar = rod_grammar_share(g);
        r->max_tokens = limit;
        finish(&b, r, &a);
        if (strncmp(whole, a.text, strlen(a.text)) != 0) fail_msg("%u tokens: '%s'", limit, a.text);
        if (a.end.reason == ROD_FINISH_STOP) assert_string_equal(a.text, whole);
        collect_free(&a);
    }
    rod_grammar_close(g);
    bench_close(&b);
}

static void others_say_what_they_say_alone(void **state) {
    (void)state;
    enum { N = 12 };
    struct answer alone[N], mixed[N];
    for (int with = 0; with < 2; with++) {
        struct bench b;
        bench_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true, .n_slots = 4), CONFIG());
        struct answer *answers = with ? mixed : alone;
        struct rod_grammar *g =
            opened(&b, ROD_GRAMMAR_JSON_SCHEMA, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}");
        for (int i = 0; i < N; i++) {
            struct rod_request *r = say(&b, i % 2 ? "A wolf and a sheep went out." : "Three little pigs", &answers[i]);
            r->sampling.temperature = 1;
            r->sampling.seed = (uint64_t)i;
            r->max_tokens = 30;
            if (with && i % 3 == 0) r->grammar = rod_grammar_share(g);
            collect_submit(&b.c, r);
        }
        collect_until(&b.c, answers, N);
        rod_grammar_close(g);
        bench_close(&b);
    }
    for (int i = 0; i < N; i++) {
        assert_false(mixed[i].failed);
        if (i % 3) assert_string_equal(alone[i].text, mixed[i].text);
        if (i % 3 == 0) assert_int_equal(mixed[i].text[0], '[');
        collect_free(&alone[i]);
        collect_free(&mixed[i]);
    }
}

static void a_grammar_outlives_the_engine(void **state) {
    (void)state;
    struct bench b;
    bench_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true), CONFIG());
    struct rod_grammar *g = opened(&b, ROD_GRAMMAR_REGEX, "[a-z]+"), *same = opened(&b, ROD_GRAMMAR_REGEX, "[a-z]+");
    assert_ptr_equal(g, same);
    struct rod_error err;
    struct rod_grammar *none = NULL;
    assert_int_equal(rod_grammar_open(b.c.engine, ROD_GRAMMAR_REGEX, "(", 1, &none, &err), ROD_EINVALID);
    assert_null(none);
    for (int i = 0; i < 100; i++) { /* more than are kept */
        char text[32];
        snprintf(text, sizeof text, "x{%d}", i + 1);
        rod_grammar_close(opened(&b, ROD_GRAMMAR_REGEX, text));
    }
    bench_close(&b);
    rod_grammar_close(g);
    rod_grammar_close(same);
}

/* The copy model says its prompt: free text up to the tag, what the grammar takes of the rest behind it, free text
 * again. */
static void a_tag_turns_the_grammar_on_and_its_end_turns_it_off(void **state) {
    (void)state;
    struct bench b;
    bench_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    static const struct {
        const char *prompt, *regex, *want;
        bool again;
    } cases[] = {
        {"No tag: 5 < 7.", "[0-9]{3}", "No tag: 5 < 7.", true},
        {"A <go>123, B", "[0-9]{3}.*", "A <go>123, B", true},
        {"A <<go>123<go>456.", "[0-9]{3}.*", "A <<go>123<go>456.", true},
        {"A <go>123, B", "[0-9]{3}", "A <go>123", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct answer a;
        struct rod_request *r = say(&b, cases[i].prompt, &a);
        r->grammar = opened(&b, ROD_GRAMMAR_REGEX, cases[i].regex);
        r->grammar_open = strdup("<go>");
        r->grammar_again = cases[i].again;
        finish(&b, r, &a);
        assert_string_equal(a.text, cases[i].want);
        assert_int_equal(a.end.reason, ROD_FINISH_STOP);
        collect_free(&a);
    }
    bench_close(&b);
}

/* "1" would stop the text, also one byte before the tag. */
static void stop_strings_count_in_free_text_alone(void **state) {
    (void)state;
    struct bench b;
    bench_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    static const char *const cases[][3] = {
        {"A <go>123;1", "1", "A <go>123;"}, {"A <go>123;> B", ">1", "A <go>123;> B"}, {"A 1 <go>123;", "1", "A "}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct answer a;
        struct rod_request *r = say(&b, cases[i][0], &a);
        r->grammar = opened(&b, ROD_GRAMMAR_REGEX, "[0-9]{3};.*");
        r->grammar_open = strdup("<go>");
        r->grammar_again = true;
        r->stop = malloc(sizeof *r->stop);
        r->stop[0] = strdup(cases[i][1]);
        r->n_stop = 1;
        finish(&b, r, &a);
        assert_string_equal(a.text, cases[i][2]);
        assert_int_equal(a.end.reason, ROD_FINISH_STOP);
        collect_free(&a);
    }
    bench_close(&b);
}

/* Behind the tag the model would say letters. */
static void behind_its_tag_the_grammar_holds(void **state) {
    (void)state;
    struct bench b;
    bench_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    for (int again = 0; again < 2; again++) {
        struct answer a;
        struct rod_request *r = say(&b, "A <go>xyz", &a);
        r->grammar = opened(&b, ROD_GRAMMAR_REGEX, again ? "[0-9]{3}.*" : "[0-9]{3}");
        r->grammar_open = strdup("<go>");
        r->grammar_again = again;
        r->max_tokens = 12;
        finish(&b, r, &a);
        if (strncmp(a.text, "A <go>", 6) != 0 || strspn(a.text + 6, "0123456789") < 3) fail_msg("'%s'", a.text);
        if (!again) assert_int_equal(strlen(a.text), 9);
        collect_free(&a);
    }
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_choice_is_said_and_ends_the_request),
        cmocka_unit_test(the_end_token_is_chosen_only_where_the_text_may_end),
        cmocka_unit_test(a_character_that_is_cut_is_left_out),
        cmocka_unit_test(others_say_what_they_say_alone),
        cmocka_unit_test(a_tag_turns_the_grammar_on_and_its_end_turns_it_off),
        cmocka_unit_test(stop_strings_count_in_free_text_alone),
        cmocka_unit_test(behind_its_tag_the_grammar_holds),
        cmocka_unit_test(a_grammar_outlives_the_engine),
    };
    int failed = cmocka_run_group_tests_name("host sampling", tests, NULL, NULL);
    bench_on_device = true;
    return failed + cmocka_run_group_tests_name("device sampling", tests, NULL, NULL);
}
