/* test_engine_text.c - the text of a request over a fake backend that repeats its prompt: whole characters, end tokens,
 * stop strings and stop ids. */
#include "tests/engine_setup.h"

static const char mixed[] = "Caf\xc3\xa9 \xe2\x82\xac 5, \xf0\x9f\x90\xba\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 "
                            "\xe7\x8b\xbc\xe3\x81\xa8\xe7\xbe\x8a, \xd0\xb2\xd0\xbe\xd0\xbb\xd0\xba!";

static void the_end_token_ends_the_text_and_is_not_counted(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    struct answer a;
    finish(&b, say(&b, "Once upon a time there was a wolf.", &a), &a);
    assert_string_equal(a.text, "Once upon a time there was a wolf.");
    assert_int_equal(a.end.reason, ROD_FINISH_STOP);
    assert_int_equal(a.end.stop_id, EOS);
    assert_int_equal(a.end.completion_tok, a.end.prompt_tok);
    collect_free(&a);
    setup_close(&b);
}

static void ignoring_the_end_token_goes_on_to_max_tokens(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    struct answer a;
    struct rod_request *r = say(&b, "A wolf.", &a);
    r->ignore_eos = true;
    r->max_tokens = (uint32_t)r->n_prompt + 5;
    finish(&b, r, &a);
    assert_int_equal(a.end.reason, ROD_FINISH_LENGTH);
    assert_int_equal(a.end.completion_tok, a.end.prompt_tok + 5);
    assert_int_equal(a.ids[a.n_ids - 1], EOS);
    assert_string_equal(a.text, "A wolf.");
    collect_free(&a);
    setup_close(&b);
}

static void text_of_any_language_streams_in_whole_characters(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    struct answer a; /* collect_event checks every piece */
    finish(&b, say(&b, mixed, &a), &a);
    assert_string_equal(a.text, mixed);
    assert_true(a.n_ids > 20);
    collect_free(&a);
    setup_close(&b);
}

static void a_text_cut_inside_a_character_ends_with_the_replacement_character(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    struct answer a;
    struct rod_request *r = say(&b, "\xf0\x9f\x90\xba", &a); /* the tokenizer of tales has no token for a wolf's face */
    assert_true(r->n_prompt > 1);
    r->max_tokens = 1;
    finish(&b, r, &a);
    assert_string_equal(a.text, "\xef\xbf\xbd");
    collect_free(&a);
    setup_close(&b);
}

static void special_tokens_appear_only_when_asked_for(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    for (int keep = 0; keep < 2; keep++) {
        struct answer a;
        struct rod_request *r = say(&b, "a<role>HUMAN</role>b", &a);
        r->keep_special = keep;
        finish(&b, r, &a);
        assert_string_equal(a.text, keep ? "a<role>HUMAN</role>b" : "aHUMANb");
        collect_free(&a);
    }
    setup_close(&b);
}

struct stop_case {
    const char *say, *stops[3], *want, *want_included, *matched;
};

static void stop_strings_end_the_text_before_or_after_themselves(void **state) {
    (void)state;
    const struct stop_case cases[] = {
        {"The fox said to the raven, come down.",
         {"raven"},
         "The fox said to the ",
         "The fox said to the raven",
         "raven"},
        {"The fox said to the raven, come down.", {"d to th"}, "The fox sai", "The fox said to th", "d to th"},
        {"The fox said to the raven, come down.",
         {"zzz", "own", "."},
         "The fox said to the raven, come d",
         "The fox said to the raven, come down",
         "own"},
        {"The fox.", {"The fox."}, "", "The fox.", "The fox."},
        {"The fox ran and ran and ran",
         {"and ran and not"},
         "The fox ran and ran and ran",
         "The fox ran and ran and ran",
         ""},
        {mixed,
         {"\xf0\x9f\x91\xa9"},
         "Caf\xc3\xa9 \xe2\x82\xac 5, \xf0\x9f\x90\xba",
         "Caf\xc3\xa9 \xe2\x82\xac 5, \xf0\x9f\x90\xba\xf0\x9f\x91\xa9",
         "\xf0\x9f\x91\xa9"},
    };
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int include = 0; include < 2; include++) {
            struct answer a;
            struct rod_request *r = say(&b, cases[i].say, &a);
            for (int k = 0; k < 3 && cases[i].stops[k]; k++) collect_stop(r, cases[i].stops[k]);
            r->include_stop = include;
            finish(&b, r, &a);
            const char *want = include ? cases[i].want_included : cases[i].want;
            if (strcmp(a.text, want)) fail_msg("case %zu: \"%s\", want \"%s\"", i, a.text, want);
            assert_string_equal(a.stop_string, cases[i].matched);
            assert_int_equal(a.end.reason, ROD_FINISH_STOP);
            assert_int_equal(a.end.stop_id, cases[i].matched[0] ? -1 : EOS);
            collect_free(&a);
        }
    setup_close(&b);
}

static void text_held_back_for_a_stop_string_is_flushed_at_the_end(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    for (int by_length = 0; by_length < 2; by_length++) {
        struct answer a;
        struct rod_request *r = say(&b, "The fox and the raven", &a);
        if (by_length) r->max_tokens = (uint32_t)r->n_prompt;
        collect_stop(r, "and the raven flew away");
        finish(&b, r, &a);
        assert_string_equal(a.text, "The fox and the raven");
        assert_int_equal(a.end.reason, by_length ? ROD_FINISH_LENGTH : ROD_FINISH_STOP);
        collect_free(&a);
    }
    setup_close(&b);
}

static void no_stop_string_acts_before_min_tokens(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    struct answer a;
    struct rod_request *r = say(&b, "fox fox fox fox fox fox", &a);
    collect_stop(r, "fox");
    r->min_tokens = (uint32_t)r->n_prompt - 1;
    r->sampling.temperature = 0;
    finish(&b, r, &a);
    assert_int_equal(a.end.completion_tok, a.end.prompt_tok);
    assert_string_equal(a.stop_string, "fox");
    assert_true(a.text_len >= strlen("fox fox fox fox fox"));
    collect_free(&a);
    setup_close(&b);
}

static void end_and_stop_ids_are_not_sampled_before_min_tokens(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY), CONFIG());
    const int32_t ids[3] = {50, 60, 70};
    struct answer a;
    struct rod_request *r = collect_request(ids, 3, &a);
    r->stop_ids = malloc(sizeof *r->stop_ids);
    r->stop_ids[0] = 60;
    r->n_stop_ids = 1;
    r->min_tokens = 10;
    r->max_tokens = 40;
    finish(&b, r, &a);
    assert_true(a.n_ids >= 10);
    for (size_t i = 0; i < a.n_ids; i++) assert_true(a.ids[i] != 60 && a.ids[i] != EOS);
    assert_int_equal(a.end.stop_id, EOS); /* the copy is over by then */
    assert_int_equal(a.n_ids, 10);
    collect_free(&a);
    setup_close(&b);
}

static void a_stop_id_ends_the_request_and_shows_only_when_included(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    for (int include = 0; include < 2; include++) {
        struct answer a;
        struct rod_request *r = say(&b, "one<role>two", &a);
        r->stop_ids = malloc(sizeof *r->stop_ids);
        r->stop_ids[0] = 4; /* <role> */
        r->n_stop_ids = 1;
        r->include_stop = include;
        finish(&b, r, &a);
        assert_string_equal(a.text, include ? "one<role>" : "one");
        assert_int_equal(a.end.reason, ROD_FINISH_STOP);
        assert_int_equal(a.end.stop_id, 4);
        assert_int_equal(a.ids[a.n_ids - 1] == 4, include);
        collect_free(&a);
    }
    setup_close(&b);
}

static void text_calls_agree_with_the_tokenizer(void **state) {
    (void)state;
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true), CONFIG());
    int32_t *ids;
    size_t n, len;
    char *text;
    struct rod_error err;
    assert_int_equal(rod_encode(b.c.engine, mixed, strlen(mixed), false, &ids, &n, &err), 0);
    assert_int_equal(rod_decode(b.c.engine, ids, n, true, &text, &len, &err), 0);
    assert_string_equal(text, mixed);
    free(text);
    assert_int_equal(rod_decode(b.c.engine, ids, 0, true, &text, &len, &err), 0);
    assert_string_equal(text, "");
    free(text);
    free(ids);
    assert_int_equal(rod_decode(b.c.engine, (const int32_t[]){V}, 1, true, &text, &len, &err), ROD_EINVALID);
    const struct rod_message hello = {.role = "user", .content = "Hello", .content_len = 5};
    const struct rod_chat chat = {.messages = &hello, .n_messages = 1, .generation = true};
    assert_int_equal(rod_chat_encode(b.c.engine, &chat, &ids, &n, &err), 0);
    assert_int_equal(ids[0], 4);
    free(ids);
    bool special;
    assert_string_equal(rod_token_bytes(b.c.engine, 4, &len, &special), "<role>");
    assert_true(special && rod_engine_info(b.c.engine)->has_chat);
    setup_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_token_ends_the_text_and_is_not_counted),
        cmocka_unit_test(ignoring_the_end_token_goes_on_to_max_tokens),
        cmocka_unit_test(text_of_any_language_streams_in_whole_characters),
        cmocka_unit_test(a_text_cut_inside_a_character_ends_with_the_replacement_character),
        cmocka_unit_test(special_tokens_appear_only_when_asked_for),
        cmocka_unit_test(stop_strings_end_the_text_before_or_after_themselves),
        cmocka_unit_test(text_held_back_for_a_stop_string_is_flushed_at_the_end),
        cmocka_unit_test(no_stop_string_acts_before_min_tokens),
        cmocka_unit_test(end_and_stop_ids_are_not_sampled_before_min_tokens),
        cmocka_unit_test(a_stop_id_ends_the_request_and_shows_only_when_included),
        cmocka_unit_test(text_calls_agree_with_the_tokenizer),
    };
    int failed = cmocka_run_group_tests_name("host sampling", tests, NULL, NULL);
    setup_on_device = true;
    return failed + cmocka_run_group_tests_name("device sampling", tests, NULL, NULL);
}
