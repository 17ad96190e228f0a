/* test_openai_peers.c - fields of other servers: each name of the table is done or refused, and the README has the
 * table. */
#include "server/api/chats/chats.h"
#include "server/api/completions/completions.h"
#include "server/api/responses/responses.h"
#include "server/api/api_peers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct api_defaults defaults = {
    .model_name = "tales", .vocab_size = 1000, .chat_max_tokens = 2048, .sampling = ROD_SAMPLING_NEUTRAL};

static const struct answer_form *const forms[] = {&completions_form, &chats_form, &responses_form};

/* The least of a body. */
static const char *const inputs[] = {"\"prompt\": \"x\"", "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]",
                                     "\"input\": \"x\""};

static int parse(const struct answer_form *form, const char *fields, struct api_request *out, struct api_error *err) {
    char body[1024];
    snprintf(body, sizeof body, "{%s, %s}", inputs[form->number], fields);
    *err = (struct api_error){0};
    return form->parse(body, strlen(body), &defaults, out, err);
}

static void accept(const struct answer_form *form, const char *fields, struct api_request *out) {
    struct api_error err;
    if (parse(form, fields, out, &err)) fail_msg("%s is refused: %s", fields, err.message);
}

static void refuse(const struct answer_form *form, const char *fields, const char *param, const char *message) {
    struct api_request r;
    struct api_error err;
    if (!parse(form, fields, &r, &err)) fail_msg("%s is accepted", fields);
    if (err.http != 400 || strcmp(err.param, param) != 0 || strncmp(err.message, message, strlen(message)) != 0)
        fail_msg("%s: %u at '%s': %s\nwant '%s': %s", fields, err.http, err.param, err.message, param, message);
}

static void each_refused_name_is_a_400_that_says_so_and_passes_where_it_asks_for_nothing(void **state) {
    (void)state;
    static const char *const neutral[] = {"null", "false", "0", "0.0", "\"\"", "[]", "{}", "\"0\""};
    static const char *const asks[] = {"7", "\"x\"", "[1]", "{\"a\": 1}"};
    size_t n = 0;
    for (size_t i = 0; i < api_n_peers; i++) {
        const struct api_peer *peer = &api_peers[i];
        char fields[128], message[192];
        if (peer->kind != PEER_REFUSED || !strcmp(peer->name, "repeat_last_n")) continue;
        const bool on = peer->neutral && !strcmp(peer->neutral, "true");
        snprintf(message, sizeof message, "%s is not available: %s", peer->name, peer->to ? peer->to : "leave it out");
        for (size_t f = 0; f < 3; f++) {
            const struct answer_form *form = forms[f];
            struct api_request r;
            for (size_t k = 0; k < sizeof asks / sizeof *asks; k++) {
                snprintf(fields, sizeof fields, "\"%s\": %s", peer->name, asks[k]);
                refuse(form, fields, peer->name, message);
            }
            snprintf(fields, sizeof fields, "\"%s\": %s", peer->name, on ? "false" : "true");
            refuse(form, fields, peer->name, message);
            for (size_t k = 0; k < sizeof neutral / sizeof *neutral; k++) {
                snprintf(fields, sizeof fields, "\"%s\": %s", peer->name, on && k == 1 ? "true" : neutral[k]);
                accept(form, fields, &r);
                api_request_fini(&r);
            }
            if (!peer->neutral) continue;
            snprintf(fields, sizeof fields, "\"%s\": %s", peer->name, peer->neutral);
            accept(form, fields, &r);
            api_request_fini(&r);
        }
        n++;
    }
    assert_true(n >= 40);
}

static void repeat_last_n_is_refused_beside_a_penalty_alone(void **state) {
    (void)state;
    struct api_request r;
    accept(&chats_form, "\"repeat_last_n\": 64, \"repeat_penalty\": 1.0, \"frequency_penalty\": 0", &r);
    api_request_fini(&r);
    accept(&chats_form, "\"repeat_last_n\": -1, \"repeat_penalty\": 1.5", &r);
    api_request_fini(&r);
    refuse(&chats_form, "\"repeat_last_n\": 64, \"repeat_penalty\": 1.5", "repeat_last_n",
           "repeat_last_n is not available: send -1");
    refuse(&chats_form, "\"repeat_last_n\": 64, \"presence_penalty\": -1", "repeat_last_n", "repeat_last_n is not");
}

static void an_alias_is_the_field(void **state) {
    (void)state;
    struct api_request r;
    accept(&completions_form, "\"n_predict\": 9, \"min_new_tokens\": 4, \"repeat_penalty\": 1.5, \"random_seed\": 3",
           &r);
    assert_int_equal(r.max_tokens, 9);
    assert_int_equal(r.min_tokens, 4);
    assert_float_equal(r.sampling.repetition_penalty, 1.5, 1e-6);
    assert_int_equal(r.sampling.seed, 3);
    api_request_fini(&r);
    accept(&chats_form, "\"max_new_tokens\": 9, \"sampling_seed\": 5, \"stop_words\": [\"a\"], \"no_stop_trim\": true",
           &r);
    assert_int_equal(r.max_tokens, 9);
    assert_int_equal(r.sampling.seed, 5);
    assert_int_equal(r.n_stop, 1);
    assert_true(r.include_stop);
    api_request_fini(&r);
    accept(&responses_form, "\"max_new_tokens\": 9", &r);
    assert_int_equal(r.max_tokens, 9);
    api_request_fini(&r);
    accept(&chats_form, "\"n_predict\": -1, \"return_tokens\": true, \"max_new_tokens\": null", &r);
    assert_int_equal(r.max_tokens, INT32_MAX);
    assert_true(r.return_token_ids);
    api_request_fini(&r);
}

static void choices_by_another_name_are_choices(void **state) {
    (void)state;
    struct api_request r;
    for (size_t f = 0; f < 2; f++) {
        const struct answer_form *form = forms[f];
        accept(form, "\"n_cmpl\": 3", &r);
        assert_int_equal(r.n, 3);
        api_request_fini(&r);
        refuse(form, "\"n_cmpl\": 0", "n_cmpl", "n_cmpl must be 1 to 128, not 0.");
        refuse(form, "\"n_cmpl\": 2, \"n\": 3", "n_cmpl", "n_cmpl is another name of n");
    }
    accept(&responses_form, "\"n_cmpl\": 1", &r);
    api_request_fini(&r);
    refuse(&responses_form, "\"n_cmpl\": 2", "n_cmpl", "n_cmpl is not available in /v1/responses.");
}

static void an_error_names_the_field_that_was_sent(void **state) {
    (void)state;
    refuse(&completions_form, "\"n_predict\": -2", "n_predict", "n_predict must be 0 to 2147483647, not -2.");
    refuse(&responses_form, "\"n_predict\": -2", "n_predict", "n_predict must be 1 to 2147483647, not -2.");
    refuse(&chats_form, "\"repeat_penalty\": 0", "repeat_penalty", "repeat_penalty must be more than 0");
    refuse(&chats_form, "\"regex\": 7", "regex", "regex must be a string.");
    refuse(&chats_form, "\"max_tokens\": 4, \"n_predict\": 5", "n_predict",
           "n_predict is another name of max_tokens, which the request has with another value.");
    refuse(&chats_form, "\"max_tokens\": 4, \"n_predict\": -5", "n_predict", "n_predict is another name of max_tokens");
    refuse(&chats_form, "\"ebnf\": \"a\", \"grammar\": \"b\"", "grammar",
           "grammar is another name of structured_outputs.grammar, which the request has with another value.");
    refuse(&chats_form, "\"ebnf\": \"a\", \"structured_outputs\": 5", "structured_outputs",
           "structured_outputs must be an object.");
    struct api_request r;
    accept(&chats_form, "\"max_tokens\": 5, \"n_predict\": 5", &r);
    api_request_fini(&r);
}

static void a_constraint_by_another_name_is_the_constraint(void **state) {
    (void)state;
    static const struct {
        const char *fields, *param, *text;
        enum rod_grammar_kind kind;
    } cases[] = {
        {"\"regex\": \"a+\"", "regex", "a+", ROD_GRAMMAR_REGEX},
        {"\"guided_regex\": \"a+\"", "guided_regex", "a+", ROD_GRAMMAR_REGEX},
        {"\"ebnf\": \"root ::= [a]\"", "ebnf", "root ::= [a]", ROD_GRAMMAR_EBNF},
        {"\"grammar\": \"root ::= [a]\", \"json_schema\": {}", "grammar", "root ::= [a]", ROD_GRAMMAR_EBNF},
        {"\"guided_grammar\": \"root ::= [a]\"", "guided_grammar", "root ::= [a]", ROD_GRAMMAR_EBNF},
        {"\"json_schema\": \"{}\"", "json_schema", "{}", ROD_GRAMMAR_JSON_SCHEMA},
        {"\"guided_json\": {\"type\": \"null\"}", "guided_json", "{\"type\":\"null\"}", ROD_GRAMMAR_JSON_SCHEMA},
        {"\"guided_choice\": [\"a\"]", "guided_choice", "[\"a\"]", ROD_GRAMMAR_CHOICE},
        {"\"guided_json_object\": true", "guided_json_object", "", ROD_GRAMMAR_JSON_OBJECT},
        {"\"structured_outputs\": {\"regex\": \"a\"}, \"ebnf\": \"\"", "structured_outputs.regex", "a",
         ROD_GRAMMAR_REGEX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t f = 0; f < 3; f++) {
            const struct answer_form *form = forms[f];
            struct api_request r;
            accept(form, cases[i].fields, &r);
            if (!r.grammar.text || strcmp(r.grammar.text, cases[i].text) != 0 || r.grammar.kind != cases[i].kind ||
                strcmp(r.grammar.param, cases[i].param) != 0)
                fail_msg("%s: '%s' of %s", cases[i].fields, r.grammar.text, r.grammar.param);
            api_request_fini(&r);
        }
    }
    refuse(&chats_form, "\"regex\": \"a\", \"response_format\": {\"type\": \"json_object\"}", "structured_outputs", "");
    refuse(&chats_form, "\"regex\": \"a\", \"ebnf\": \"b\"", "structured_outputs", "structured_outputs has two fields");
}

static void a_grammar_is_seen_however_its_field_is_spelled(void **state) {
    (void)state;
    struct api_request r;
    accept(&chats_form, "\"response\\u005fformat\": {\"type\": \"json_object\"}", &r);
    assert_non_null(r.grammar.text);
    assert_string_equal(r.grammar.param, "response_format");
    api_request_fini(&r);
}

static void numbers_and_truths_may_come_as_strings(void **state) {
    (void)state;
    struct api_request r;
    accept(
        &completions_form,
        "\"temperature\": \"0.5\", \"max_tokens\": \"7\", \"stream\": \"true\", \"ignore_eos\": \"false\", \"seed\": "
        "\"9223372036854775807\"",
        &r);
    assert_float_equal(r.sampling.temperature, 0.5, 0);
    assert_int_equal(r.max_tokens, 7);
    assert_true(r.stream);
    assert_false(r.ignore_eos);
    assert_true(r.sampling.seed == INT64_MAX);
    api_request_fini(&r);
    refuse(&completions_form, "\"temperature\": \"hot\"", "temperature", "temperature must be a number, not a string.");
    refuse(&completions_form, "\"temperature\": \"3\"", "temperature", "temperature must be at least 0");
    refuse(&completions_form, "\"temperature\": \"true\"", "temperature", "temperature must be a number");
    refuse(&completions_form, "\"max_tokens\": \"7.5\"", "max_tokens", "max_tokens must be an integer");
    refuse(&completions_form, "\"max_tokens\": \"7 8\"", "max_tokens", "max_tokens must be an integer");
    refuse(&completions_form, "\"max_tokens\": \"[7]\"", "max_tokens", "max_tokens must be an integer");
    refuse(&completions_form, "\"stream\": \"1\"", "stream", "stream must be true or false, not a string.");
    refuse(&completions_form, "\"stream\": \"\\\"true\\\"\"", "stream", "stream must be true or false");
}

/* ---- the table of the README ---- */

static bool same_row(const struct api_peer *a, const struct api_peer *b) {
    if (a->kind != b->kind || !a->to != !b->to) return false;
    return !a->to || !strcmp(a->to, b->to);
}

static void write_row(const struct api_peer *first, FILE *to) {
    const char *comma = "| ";
    for (const struct api_peer *peer = first; peer < api_peers + api_n_peers; peer++) {
        if (!same_row(first, peer)) continue;
        fprintf(to, "%s`%s`", comma, peer->name);
        if (peer->kind != PEER_SAME) fprintf(to, " (%s)", peer->servers);
        comma = ", ";
    }
    switch (first->kind) {
    case PEER_SAME: fputs(" | the same name |\n", to); break;
    case PEER_ALIAS: fprintf(to, " | `%s` |\n", first->to); break;
    case PEER_GRAMMAR: fprintf(to, " | `structured_outputs.%s` |\n", first->to); break;
    default: fprintf(to, " | 400: %s |\n", first->to ? first->to : "leave it out");
    }
}

static void write_table(FILE *to) {
    fputs("| name | here |\n|---|---|\n", to);
    for (size_t i = 0; i < api_n_peers; i++) {
        size_t k = 0;
        while (!same_row(&api_peers[k], &api_peers[i])) k++;
        if (k == i) write_row(&api_peers[i], to);
    }
}

/* With RODIMUS_TEST_WRITE=1 the table is written anew instead. */
static void the_readme_has_the_table(void **state) {
    (void)state;
    static const char path[] = "server/CLIENTS.md", first[] = "<!-- names -->\n", last[] = "<!-- end of names -->\n";
    char *table = NULL, *text = NULL;
    size_t n_table = 0, n_text = 0;
    FILE *to = open_memstream(&table, &n_table);
    write_table(to);
    fclose(to);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    to = open_memstream(&text, &n_text);
    for (int byte; (byte = fgetc(file)) != EOF;) fputc(byte, to);
    fclose(file);
    fclose(to);
    char *begin = strstr(text, first), *end = strstr(text, last);
    assert_true(begin && end && begin < end);
    begin += strlen(first);
    const bool same = (size_t)(end - begin) == n_table && !memcmp(begin, table, n_table);
    if (!same && getenv("RODIMUS_TEST_WRITE")) {
        file = fopen(path, "w");
        assert_non_null(file);
        fprintf(file, "%.*s%s%s", (int)(begin - text), text, table, end);
        fclose(file);
    } else if (!same) {
        fail_msg("%s has another table; RODIMUS_TEST_WRITE=1 build/tests/unit/server/test_openai_peers writes this "
                 "one:\n%s",
                 path, table);
    }
    free(table);
    free(text);
}

static void no_name_comes_twice(void **state) {
    (void)state;
    for (size_t i = 0; i < api_n_peers; i++) {
        for (size_t k = 0; k < i; k++)
            if (!strcmp(api_peers[i].name, api_peers[k].name)) fail_msg("%s is twice", api_peers[i].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_refused_name_is_a_400_that_says_so_and_passes_where_it_asks_for_nothing),
        cmocka_unit_test(repeat_last_n_is_refused_beside_a_penalty_alone),
        cmocka_unit_test(an_alias_is_the_field),
        cmocka_unit_test(choices_by_another_name_are_choices),
        cmocka_unit_test(an_error_names_the_field_that_was_sent),
        cmocka_unit_test(a_constraint_by_another_name_is_the_constraint),
        cmocka_unit_test(a_grammar_is_seen_however_its_field_is_spelled),
        cmocka_unit_test(numbers_and_truths_may_come_as_strings),
        cmocka_unit_test(the_readme_has_the_table),
        cmocka_unit_test(no_name_comes_twice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
