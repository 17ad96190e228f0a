/* test_openai.c - the OpenAI protocol: what is accepted, what is refused and by which name. Answers:
 * test_openai_answers.c. */
#include "server/api/chats/chats.h"
#include "server/api/completions/completions.h"
#include "server/api/responses/responses.h"
#include "server/api/api_routes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct api_defaults defaults = {
    .model_name = "tales", .vocab_size = 1000, .sampling = ROD_SAMPLING_NEUTRAL, .chat_max_tokens = 2048};

static int parse(const struct answer_form *form, const char *body, struct api_request *out, struct api_error *err) {
    return form->parse(body, strlen(body), &defaults, out, err);
}

static void accept(const struct answer_form *form, const char *body, struct api_request *out) {
    struct api_error err;
    if (parse(form, body, out, &err)) fail_msg("%s is refused: %s", body, err.message);
}

static void refuse(const struct answer_form *form, const char *body, unsigned http, const char *param) {
    struct api_request r;
    struct api_error err = {0};
    if (parse(form, body, &r, &err) == 0) fail_msg("%s is accepted", body);
    if (err.http != http || strcmp(err.param, param) != 0) {
        fail_msg("%s: got %u at '%s' (%s), want %u at '%s'", body, err.http, err.param, err.message, http, param);
    }
}

static void a_prompt_alone_gets_the_defaults(void **state) {
    (void)state;
    struct api_request r;
    accept(&completions_form, "{\"prompt\": \"x\"}", &r);
    assert_int_equal(r.n_prompts, 1);
    assert_string_equal(r.prompts[0].text, "x");
    assert_float_equal(r.sampling.temperature, 0.8, 1e-6);
    assert_float_equal(r.sampling.top_p, 0.95, 1e-6);
    assert_float_equal(r.sampling.typical_p, 1, 0);
    assert_int_equal(r.max_tokens, 16);
    assert_int_equal(r.n, 1);
    assert_int_equal(r.n_logprobs, -1);
    assert_false(r.has_seed);
    assert_false(r.stream);
    api_request_fini(&r);
    accept(&chats_form, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", &r);
    assert_int_equal(r.max_tokens, 2048);
    api_request_fini(&r);
}

static void prompts_have_four_forms(void **state) {
    (void)state;
    struct api_request r;
    accept(&completions_form, "{\"prompt\": [\"a\", \"bc\"]}", &r);
    assert_int_equal(r.n_prompts, 2);
    assert_string_equal(r.prompts[1].text, "bc");
    api_request_fini(&r);
    accept(&completions_form, "{\"prompt\": [1, 2, 999]}", &r);
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].n_ids, 3);
    assert_int_equal(r.prompts[0].ids[2], 999);
    api_request_fini(&r);
    accept(&completions_form, "{\"prompt\": [[1], [2, 3]]}", &r);
    assert_int_equal(r.n_prompts, 2);
    assert_int_equal(r.prompts[1].n_ids, 2);
    api_request_fini(&r);
    accept(&completions_form, "{\"prompt\": \"a\\u0000b\"}", &r);
    assert_int_equal(r.prompts[0].len, 3);
    api_request_fini(&r);
}

static void every_optional_field_may_be_null(void **state) {
    (void)state;
    struct api_request r;
    accept(
        &completions_form,
        "{\"prompt\": \"x\", \"model\": null, \"max_tokens\": null, \"max_completion_tokens\": null, \"min_tokens\": "
        "null,"
        "\"temperature\": null, \"top_p\": null, \"top_k\": null, \"min_p\": null, \"typical_p\": null,"
        "\"frequency_penalty\": null, \"presence_penalty\": null, \"repetition_penalty\": null, \"repeat_penalty\": "
        "null,"
        "\"logit_bias\": null, \"seed\": null, \"stop\": null, \"stop_token_ids\": null, \"ignore_eos\": null, \"n\": "
        "null,"
        "\"include_stop_str_in_output\": null, \"skip_special_tokens\": null, \"best_of\": null, \"echo\": null,"
        "\"logprobs\": null, \"prompt_logprobs\": null, \"suffix\": null, \"stream\": null, \"stream_options\": null,"
        "\"return_token_ids\": null, \"sse_ping_ms\": null, \"response_format\": null, \"tools\": null, "
        "\"tool_choice\": null,"
        "\"structured_outputs\": null, \"bad_words\": null, \"allowed_token_ids\": null, \"session_id\": null, "
        "\"user\": null}",
        &r);
    assert_int_equal(r.max_tokens, 16);
    api_request_fini(&r);
    accept(&chats_form,
           "{\"messages\": [{\"role\": \"user\", \"content\": \"x\", \"name\": null, \"tool_calls\": null},"
           "{\"role\": \"assistant\", \"content\": null}], \"top_logprobs\": null, \"modalities\": null}",
           &r);
    assert_int_equal(r.messages[1].content_len, 0);
    api_request_fini(&r);
}

static void tools_that_may_not_be_called_are_none(void **state) {
    (void)state;
    static const char *const taken[] = {"\"tools\": [{}], \"tool_choice\": \"none\"",
                                        "\"functions\": [{}], \"function_call\": \"none\"",
                                        "\"function_call\": \"none\"", "\"function_call\": \"auto\""};
    static const char *const refused[][2] = {{"\"tools\": [{}], \"tool_choice\": \"auto\"", "tools[0].type"},
                                             {"\"functions\": [{}], \"function_call\": \"auto\"", "functions"},
                                             {"\"functions\": [{}], \"tool_choice\": \"none\"", "functions"},
                                             {"\"function_call\": {\"name\": \"f\"}", "function_call"},
                                             {"\"tool_choice\": {\"type\": \"function\"}", "tool_choice"}};
    char body[256];
    struct api_request r;
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], %s}", taken[i]);
        accept(&chats_form, body, &r);
        api_request_fini(&r);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], %s}", refused[i][0]);
        refuse(&chats_form, body, 400, refused[i][1]);
    }
}

static void unknown_fields_and_empty_wishes_are_accepted(void **state) {
    (void)state;
    struct api_request r;
    accept(
        &chats_form,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"foo\": [1, {}], \"tools\": [], \"echo\": false,"
        "\"best_of\": 1, \"tool_choice\": \"none\", \"response_format\": {\"type\": \"text\"},"
        "\"modalities\": [\"text\"], \"logit_bias\": {}, \"stop\": [], \"suffix\": \"\", \"metadata\": {\"a\": \"b\"}}",
        &r);
    api_request_fini(&r);
}

static void sampling_fields_arrive(void **state) {
    (void)state;
    struct api_request r;
    accept(
        &completions_form,
        "{\"prompt\": \"x\", \"temperature\": 2, \"top_p\": 0.5, \"top_k\": 40.0, \"min_p\": 0.1, \"typical_p\": 0.9,"
        "\"frequency_penalty\": -2, \"presence_penalty\": 1.5, \"repeat_penalty\": 1.1, \"seed\": -7, \"n\": 128,"
        "\"logit_bias\": {\"5\": -100, \"999\": 2.5}, \"stop\": [\"a\", \"\\n\\n\"], \"stop_token_ids\": [3], "
        "\"max_tokens\": 9,"
        "\"max_completion_tokens\": 8, \"min_tokens\": 8, \"ignore_eos\": true, \"skip_special_tokens\": false, "
        "\"logprobs\": 20,"
        "\"include_stop_str_in_output\": true, \"stream\": true, \"stream_options\": {\"include_usage\": true,"
        "\"continuous_usage_stats\": true}, \"return_token_ids\": true, \"sse_ping_ms\": 0, \"model\": \"tales\"}",
        &r);
    assert_float_equal(r.sampling.temperature, 2, 0);
    assert_int_equal(r.sampling.top_k, 40);
    assert_float_equal(r.sampling.typical_p, 0.9, 1e-6);
    assert_float_equal(r.sampling.frequency_penalty, -2, 0);
    assert_float_equal(r.sampling.repetition_penalty, 1.1, 1e-6);
    assert_true(r.has_seed && r.sampling.seed == (uint64_t)-7);
    assert_int_equal(r.n_bias, 2);
    assert_int_equal(r.n_stop, 2);
    assert_string_equal(r.stop[1], "\n\n");
    assert_int_equal(r.stop_ids[0], 3);
    assert_int_equal(r.max_tokens, 8);
    assert_int_equal(r.min_tokens, 8);
    assert_int_equal(r.n, 128);
    assert_int_equal(r.n_logprobs, 20);
    assert_int_equal(r.ping_ms, 0);
    assert_true(r.ignore_eos && r.keep_special && r.include_stop && r.stream && r.include_usage && r.continuous_usage);
    api_request_fini(&r);
}

static void faults_name_their_field(void **state) {
    (void)state;
    static const struct {
        const char *fields, *param;
    } cases[] = {
        {"\"temperature\": 2.1", "temperature"},
        {"\"temperature\": -1", "temperature"},
        {"\"temperature\": \"one\"", "temperature"},
        {"\"temperature\": true", "temperature"},
        {"\"top_p\": 0", "top_p"},
        {"\"top_p\": 1.1", "top_p"},
        {"\"top_p\": 1e-300", "top_p"},
        {"\"top_k\": -2", "top_k"},
        {"\"top_k\": 1.5", "top_k"},
        {"\"min_p\": 2", "min_p"},
        {"\"typical_p\": 0", "typical_p"},
        {"\"frequency_penalty\": 3", "frequency_penalty"},
        {"\"presence_penalty\": -3", "presence_penalty"},
        {"\"repetition_penalty\": 0", "repetition_penalty"},
        {"\"repetition_penalty\": -0.1", "repetition_penalty"},
        {"\"repetition_penalty\": 1000.1", "repetition_penalty"},
        {"\"repeat_penalty\": 1001", "repeat_penalty"},
        {"\"seed\": 9223372036854775808", "seed"},
        {"\"seed\": -9223372036854775809", "seed"},
        {"\"max_tokens\": 100000000000000000000000000", "max_tokens"},
        {"\"temperature\": 100000000000000000000000000", "temperature"},
        {"\"stop_token_ids\": [5, 100000000000000000000000000]", "stop_token_ids"},
        {"\"logit_bias\": {\"1\": 100000000000000000000000000}", "logit_bias"},
        {"\"repeat_penalty\": -1", "repeat_penalty"},
        {"\"seed\": 1.5", "seed"},
        {"\"seed\": \"x\"", "seed"},
        {"\"n\": 0", "n"},
        {"\"n\": 129", "n"},
        {"\"n\": true", "n"},
        {"\"max_tokens\": -1", "max_tokens"},
        {"\"max_tokens\": 1e30", "max_tokens"},
        {"\"max_tokens\": 9007199254740993", "max_tokens"},
        {"\"min_tokens\": 17", "min_tokens"},
        {"\"stop\": \"\"", "stop"},
        {"\"stop\": [\"a\", 1]", "stop"},
        {"\"stop\": {}", "stop"},
        {"\"stop\": \"a\\u0000\"", "stop"},
        {"\"stop\": "
         "[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\",\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]",
         "stop"},
        {"\"stop_token_ids\": [1000]", "stop_token_ids"},
        {"\"stop_token_ids\": 1", "stop_token_ids"},
        {"\"logit_bias\": {\"1000\": 1}", "logit_bias"},
        {"\"logit_bias\": {\"x\": 1}", "logit_bias"},
        {"\"logit_bias\": {\"-1\": 1}", "logit_bias"},
        {"\"logit_bias\": {\"1\": 101}", "logit_bias"},
        {"\"logit_bias\": {\"1\": null}", "logit_bias"},
        {"\"logit_bias\": []", "logit_bias"},
        {"\"ignore_eos\": 1", "ignore_eos"},
        {"\"stream\": \"yes\"", "stream"},
        {"\"stream_options\": {}", "stream_options"},
        {"\"stream\": true, \"stream_options\": []", "stream_options"},
        {"\"stream\": true, \"stream_options\": {\"include_usage\": 1}", "stream_options"},
        {"\"model\": 5", "model"},
        {"\"logprobs\": 21", "logprobs"},
        {"\"logprobs\": true", "logprobs"},
        {"\"best_of\": 2", "best_of"},
        {"\"echo\": 1", "echo"},
        {"\"suffix\": 7", "suffix"},
        {"\"structured_outputs\": {\"regexp\": \"x\"}", "structured_outputs"},
        {"\"prompt_logprobs\": 21", "prompt_logprobs"},
        {"\"bad_words\": [1]", "bad_words"},
        {"\"allowed_token_ids\": [-1]", "allowed_token_ids"},
        {"\"response_format\": {\"type\": \"xml\"}", "response_format"},
        {"\"response_format\": 5", "response_format"},
        {"\"truncate_prompt_tokens\": 0", "truncate_prompt_tokens"},
        {"\"session_id\": \"\"", "session_id"},
        {"\"session_id\": \"a/b\"", "session_id"},
        {"\"session_id\": 5", "session_id"},
        {"\"session_create\": 1", "session_create"},
        {"\"expected_version\": -1", "expected_version"},
        {"\"expected_version\": 1.5", "expected_version"},
        {"\"cache_salt\": 1", "cache_salt"},
        {"\"cache_salt\": \"a\\u0000b\"", "cache_salt"},
        {"\"tools\": [{\"type\": \"function\"}]", "tools"},
        {"\"tool_choice\": \"required\"", "tool_choice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[512];
        snprintf(body, sizeof body, "{\"prompt\": \"x\", %s}", cases[i].fields);
        refuse(&completions_form, body, 400, cases[i].param);
    }
}

static void integers_beyond_64_bits_are_numbers_and_their_range_is_named(void **state) {
    (void)state;
    struct api_request r;
    struct api_error err;
    assert_int_equal(parse(&completions_form, "{\"prompt\": \"x\", \"seed\": 9223372036854775808}", &r, &err), -1);
    assert_string_equal(err.message, "seed must be an integer from -9223372036854775808 to 9223372036854775807.");
    accept(&completions_form, "{\"prompt\": \"x\", \"seed\": 9223372036854775807}", &r);
    assert_true(r.sampling.seed == INT64_MAX);
    api_request_fini(&r);
    /* In a field that nobody reads it does no harm, also not to the token ids beside it. */
    accept(&completions_form, "{\"prompt\": [1, 2], \"seed\": 7, \"other\": 100000000000000000000000000}", &r);
    assert_int_equal(r.prompts[0].ids[1], 2);
    assert_int_equal(r.sampling.seed, 7);
    api_request_fini(&r);
    /* What no double holds has no name left. */
    assert_int_equal(parse(&completions_form, "{\"prompt\": \"x\", \"seed\": 1e999}", &r, &err), -1);
    assert_non_null(strstr(err.message, "too large"));
    assert_null(strstr(err.message, "not JSON"));
}

static void the_bounds_of_repetition_penalty_are_inside(void **state) {
    (void)state;
    struct api_request r;
    accept(&completions_form, "{\"prompt\": \"x\", \"repetition_penalty\": 0.001}", &r);
    assert_true(r.sampling.repetition_penalty == 1e-3f);
    api_request_fini(&r);
    accept(&completions_form, "{\"prompt\": \"x\", \"repetition_penalty\": 1e-30}", &r); /* counts as the least */
    assert_true(r.sampling.repetition_penalty == 1e-3f);
    api_request_fini(&r);
    accept(&completions_form, "{\"prompt\": \"x\", \"repeat_penalty\": 1000}", &r);
    assert_true(r.sampling.repetition_penalty == 1e3f);
    api_request_fini(&r);
}

static void bad_prompts_are_refused(void **state) {
    (void)state;
    refuse(&completions_form, "{}", 400, "prompt");
    refuse(&completions_form, "{\"prompt\": null}", 400, "prompt");
    refuse(&completions_form, "{\"prompt\": \"\"}", 400, "prompt");
    refuse(&completions_form, "{\"prompt\": 5}", 400, "prompt");
    refuse(&completions_form, "{\"prompt\": 99999999999999999999}", 400, "prompt");
    refuse(&completions_form, "{\"prompt\": {}}", 400, "prompt");
    refuse(&completions_form, "{\"prompt\": []}", 400, "prompt");
    refuse(&completions_form, "{\"prompt\": [1000]}", 400, "prompt");
    refuse(&completions_form, "{\"prompt\": [-1]}", 400, "prompt");
    refuse(&completions_form, "{\"prompt\": [true]}", 400, "prompt");
    refuse(&completions_form, "{\"prompt\": [1, \"a\"]}", 400, "prompt");
    refuse(&completions_form, "{\"prompt\": [\"a\", 1]}", 400, "prompt[1]");
    refuse(&completions_form, "{\"prompt\": [\"a\", \"\"]}", 400, "prompt[1]");
    refuse(&completions_form, "{\"prompt\": [[1], []]}", 400, "prompt[1]");
}

static void bad_messages_are_refused(void **state) {
    (void)state;
    refuse(&chats_form, "{}", 400, "messages");
    refuse(&chats_form, "{\"messages\": {\"role\": \"user\", \"content\": \"x\"}}", 400, "messages");
    refuse(&chats_form, "{\"messages\": []}", 400, "messages");
    refuse(&chats_form, "{\"messages\": [5]}", 400, "messages[0]");
    refuse(&chats_form, "{\"messages\": [{\"content\": \"x\"}]}", 400, "messages[0].role");
    refuse(&chats_form, "{\"messages\": [{\"role\": \"boss\", \"content\": \"x\"}]}", 400, "messages[0].role");
    refuse(&chats_form, "{\"messages\": [{\"role\": \"user\"}]}", 400, "messages[0].content");
    refuse(&chats_form, "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", 400, "messages[0].content");
    refuse(&chats_form, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]}", 400,
           "messages[0].content[0]");
    refuse(&chats_form, "{\"messages\": [{\"role\": \"assistant\", \"tool_calls\": [{}]}]}", 400,
           "messages[0].tool_calls[0]");
    refuse(&chats_form, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"top_logprobs\": 2}", 400,
           "top_logprobs");
    refuse(&chats_form, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"logprobs\": 2}", 400, "logprobs");
}

static void messages_as_a_string_are_one_users_message(void **state) {
    (void)state;
    struct api_request r;
    accept(&chats_form, "{\"messages\": \"a\\u0000b\"}", &r);
    assert_int_equal(r.n_messages, 1);
    assert_string_equal(r.messages[0].role, "user");
    assert_int_equal(r.messages[0].content_len, 3);
    assert_memory_equal(r.messages[0].content, "a\0b", 4);
    api_request_fini(&r);
}

static void content_parts_are_joined_by_line_breaks(void **state) {
    (void)state;
    struct api_request r;
    accept(&chats_form,
           "{\"messages\": [{\"role\": \"developer\", \"content\": [{\"type\": \"text\", \"text\": \"a\"},"
           "{\"type\": \"text\", \"text\": \"b\"}]}]}",
           &r);
    assert_string_equal(r.messages[0].content, "a\nb");
    assert_string_equal(r.messages[0].role, "developer");
    api_request_fini(&r);
}

static void another_model_is_not_found(void **state) {
    (void)state;
    struct api_request r;
    struct api_error err;
    assert_int_equal(parse(&completions_form, "{\"prompt\": \"x\", \"model\": \"gpt-4\"}", &r, &err), -1);
    assert_int_equal(err.http, 404);
    assert_string_equal(err.code, "model_not_found");
    assert_string_equal(err.param, "model");
}

static void what_is_not_a_json_object_is_refused(void **state) {
    (void)state;
    static const char *const bodies[][2] = {{"", ""},
                                            {"{", ""},
                                            {"[]", ""},
                                            {"5", ""},
                                            {"null", ""},
                                            {"{\"prompt\": NaN}", "prompt"},
                                            {"{\"n\": 1, \"prompt\": 1e999}", "prompt"},
                                            {"{\"n\": [{\"a\": \"}\"}], \"prompt\": \"\xff\"}", "prompt"},
                                            {"{\"prompt\": \"\\ud800\", \"n\": 1}", "prompt"},
                                            {"{\"prompt\": \"\\\"\", \"n\": {\"m\": 1, \"m\": 2}}", "n"},
                                            {"{\"prompt\": 1, \"n\": 2, \"prompt\": 3}", "prompt"},
                                            {"{\"a\\n\": nul}", ""},
                                            {"{\"prompt\": \"x\"} x", "prompt"}};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        refuse(&completions_form, bodies[i][0], 400, bodies[i][1]);
    struct api_request r;
    struct api_error err;
    assert_int_equal(chats_parse(NULL, 0, &defaults, &r, &err), -1);
    assert_int_equal(err.http, 400);
}

static void a_flood_of_values_is_refused_but_not_a_text_of_commas(void **state) {
    (void)state;
    const size_t n = 2000000;
    char *body = malloc(3 * n + 64);
    assert_non_null(body);
    struct api_request r;
    struct api_error err;
    size_t len = (size_t)snprintf(body, 64, "{\"prompt\": [[]");
    for (size_t i = 0; i < n; i++) memcpy(body + len + 3 * i, ",[]", 3);
    memcpy(body + len + 3 * n, "]}", 2);
    assert_int_equal(completions_parse(body, len + 3 * n + 2, &defaults, &r, &err), -1);
    assert_non_null(strstr(err.message, "too many values"));
    len = (size_t)snprintf(body, 64, "{\"prompt\": \"\\\"");
    memset(body + len, ',', n);
    memcpy(body + len + n, "\"}", 2);
    assert_int_equal(completions_parse(body, len + n + 2, &defaults, &r, &err), 0);
    assert_int_equal(r.prompts[0].len, n + 1);
    api_request_fini(&r);
    free(body);
}

static void tokenize_takes_text_or_messages(void **state) {
    (void)state;
    struct api_tokenize t;
    struct api_error err;
    const char *body = "{\"prompt\": \"\", \"return_token_strs\": true, \"add_special_tokens\": false}";
    assert_int_equal(api_parse_tokenize(body, strlen(body), &defaults, &t, &err), 0);
    assert_true(t.token_strs && t.len == 0 && !t.n_messages);
    api_tokenize_fini(&t);
    body = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}";
    assert_int_equal(api_parse_tokenize(body, strlen(body), &defaults, &t, &err), 0);
    assert_int_equal(t.n_messages, 1);
    api_tokenize_fini(&t);
    body = "{\"prompt\": [1]}";
    assert_int_equal(api_parse_tokenize(body, strlen(body), &defaults, &t, &err), -1);
    assert_string_equal(err.param, "prompt");
    body = "{\"prompt\": \"x\", \"parse_special\": false, \"return_offsets\": true, \"add_generation_prompt\": null}";
    assert_int_equal(api_parse_tokenize(body, strlen(body), &defaults, &t, &err), 0);
    assert_true(!t.parse_special && t.offsets && t.add_special && !t.end.go_on);
    api_tokenize_fini(&t);
    struct api_detokenize d;
    body = "{\"tokens\": [1, 2], \"skip_special_tokens\": true}";
    assert_int_equal(api_parse_detokenize(body, strlen(body), &defaults, &d, &err), 0);
    assert_int_equal(d.n_ids, 2);
    assert_true(d.skip_special && !d.offsets);
    free(d.ids);
    body = "{\"tokens\": [1, 1000]}";
    assert_int_equal(api_parse_detokenize(body, strlen(body), &defaults, &d, &err), -1);
    assert_string_equal(err.param, "tokens");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_alone_gets_the_defaults),
        cmocka_unit_test(prompts_have_four_forms),
        cmocka_unit_test(every_optional_field_may_be_null),
        cmocka_unit_test(tools_that_may_not_be_called_are_none),
        cmocka_unit_test(unknown_fields_and_empty_wishes_are_accepted),
        cmocka_unit_test(sampling_fields_arrive),
        cmocka_unit_test(faults_name_their_field),
        cmocka_unit_test(integers_beyond_64_bits_are_numbers_and_their_range_is_named),
        cmocka_unit_test(the_bounds_of_repetition_penalty_are_inside),
        cmocka_unit_test(bad_prompts_are_refused),
        cmocka_unit_test(bad_messages_are_refused),
        cmocka_unit_test(messages_as_a_string_are_one_users_message),
        cmocka_unit_test(content_parts_are_joined_by_line_breaks),
        cmocka_unit_test(another_model_is_not_found),
        cmocka_unit_test(what_is_not_a_json_object_is_refused),
        cmocka_unit_test(a_flood_of_values_is_refused_but_not_a_text_of_commas),
        cmocka_unit_test(tokenize_takes_text_or_messages),
    };
    defaults.sampling.temperature = 0.8f;
    defaults.sampling.top_p = 0.95f;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
