/* test_openai_session.c - sessions and responses in the OpenAI protocol: fields and headers, bodies, answers, events.
 */
#include "server/api/chats/chats.h"
#include "server/api/completions/completions.h"
#include "server/api/responses/responses.h"
#include "server/api/api_routes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct api_defaults defaults = {
    .model_name = "tales", .vocab_size = 1000, .chat_max_tokens = 99, .sampling = ROD_SAMPLING_NEUTRAL};

static int join(const struct answer_form *form, const char *body, const char *session, const char *key,
                struct api_request *out, struct api_error *err) {
    const struct api_headers headers = {"X-Session-Id", session, key, "tenant", NULL, session};
    if (form->parse(body, strlen(body), &defaults, out, err)) return -1;
    const int rc = form->join(out, &headers, err);
    if (rc) api_request_fini(out);
    return rc;
}

static void accept(const struct answer_form *form, const char *body, const char *session, const char *key,
                   struct api_request *out) {
    struct api_error err;
    if (join(form, body, session, key, out, &err)) fail_msg("%s is refused: %s", body, err.message);
}

static void refuse(const struct answer_form *form, const char *body, const char *session, const char *key,
                   const char *param) {
    struct api_request r;
    struct api_error err = {0};
    if (!join(form, body, session, key, &r, &err)) fail_msg("%s is accepted", body);
    if (err.http != 400 || strcmp(err.param, param) != 0 || !strstr(err.message, param))
        fail_msg("%s: got %u at '%s' (%s), want 400 at '%s'", body, err.http, err.param, err.message, param);
}

static void the_body_names_the_session(void **state) {
    (void)state;
    struct api_request r;
    accept(&completions_form, "{\"prompt\": \"x\"}", NULL, NULL, &r);
    assert_null(r.session.id);
    api_request_fini(&r);
    accept(&completions_form, "{\"prompt\": \"x\", \"session_id\": \"a.b-c_D9\", \"expected_version\": 7}", NULL, NULL,
           &r);
    assert_string_equal(r.session.id, "a.b-c_D9");
    assert_true(r.session.has_expected && r.session.expected_version == 7 && !r.session.create);
    api_request_fini(&r);
    accept(
        &chats_form,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"session_create\": true, \"session_id\": \"h\"}",
        "h", "key", &r);
    assert_string_equal(r.session.id, "h");
    assert_string_equal(r.session.idempotency_key, "key");
    assert_true(r.session.create && !r.session.conversation);
    api_request_fini(&r);
    accept(&completions_form, "{\"prompt\": \"x\", \"session_id\": \"a\"}", "a", NULL, &r);
    api_request_fini(&r);
    refuse(&completions_form, "{\"prompt\": \"x\", \"session_id\": \"a\"}", "b", NULL, "session_id");
    accept(&completions_form, "{\"prompt\": \"x\", \"prompt_cache_key\": \"b\"}", "a/b", NULL, &r);
    assert_true(!r.session.id && !r.session.conversation); /* names are for messages */
    api_request_fini(&r);
    refuse(&completions_form, "{\"prompt\": \"x\", \"session_create\": true}", "a", NULL, "session_id");
    refuse(&completions_form, "{\"prompt\": \"x\", \"expected_version\": 0}", "a", NULL, "session_id");
}

static void ids_have_128_characters_at_most(void **state) {
    (void)state;
    char id[131];
    memset(id, 'x', sizeof id);
    id[128] = 0;
    assert_true(api_session_id(id));
    id[128] = 'x';
    id[129] = 0;
    assert_false(api_session_id(id));
    assert_false(api_session_id(""));
    for (int c = 1; c < 256; c++) {
        const char one[] = {(char)c, 0};
        const bool good =
            (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || strchr("._-", c);
        if (api_session_id(one) != good) fail_msg("the character %d: %d, want %d", c, !good, good);
    }
}

static void what_does_not_go_with_a_session_is_named(void **state) {
    (void)state;
    static const struct {
        const char *fields, *param;
    } cases[] = {{"\"n\": 2", "n"},
                 {"\"suffix\": \"y\"", "suffix"},
                 {"\"prompt_logprobs\": 0", "prompt_logprobs"},
                 {"\"echo\": true, \"logprobs\": 0", "logprobs"},
                 {"\"truncate_prompt_tokens\": 5", "truncate_prompt_tokens"}};
    char body[256];
    struct api_request r;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(body, sizeof body, "{\"prompt\": \"x\", %s}", cases[i].fields);
        accept(&completions_form, body, "s", NULL, &r);
        api_request_fini(&r);
        snprintf(body, sizeof body, "{\"prompt\": \"x\", \"session_id\": \"s\", %s}", cases[i].fields);
        refuse(&completions_form, body, NULL, NULL, cases[i].param);
    }
    refuse(&completions_form, "{\"prompt\": [\"x\", \"y\"], \"session_id\": \"s\"}", NULL, NULL, "prompt");
    refuse(&completions_form, "{\"prompt\": \"x\", \"session_create\": true}", NULL, NULL, "session_create");
    refuse(&completions_form, "{\"prompt\": \"x\", \"expected_version\": 0}", NULL, NULL, "expected_version");
    refuse(&completions_form, "{\"prompt\": \"x\", \"session_id\": \"s\"}", NULL, "", "Idempotency-Key");
    refuse(&completions_form, "{\"prompt\": \"x\", \"session_id\": \"s\"}", NULL, "a\nb", "Idempotency-Key");
    /* What says nothing without a session does no harm there. */
    accept(&completions_form, "{\"prompt\": \"x\", \"session_create\": false, \"session_id\": null}", NULL, "", &r);
    api_request_fini(&r);
}

static void a_chat_of_no_tokens_needs_a_session(void **state) {
    (void)state;
    static const char *const body = "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 0}";
    struct api_request r;
    refuse(&chats_form, body, NULL, NULL, "max_tokens");
    refuse(&chats_form, body, "s", NULL, "max_tokens");
    accept(&chats_form,
           "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"max_tokens\": 0, \"session_id\": \"s\"}", NULL,
           NULL, &r);
    assert_int_equal(r.max_tokens, 0);
    api_request_fini(&r);
}

static void bodies_of_sessions_may_be_empty(void **state) {
    (void)state;
    struct api_session_new s;
    struct api_error err;
    assert_int_equal(api_parse_session_new(NULL, 0, false, &s, &err), 0);
    assert_true(!s.id && !s.from && !s.has_ttl && !s.pin);
    static const char whole[] = "{\"id\": \"a\", \"from\": \"b\", \"ttl_s\": 0, \"pin\": true, \"other\": 1}";
    assert_int_equal(api_parse_session_new(whole, sizeof whole - 1, false, &s, &err), 0);
    assert_string_equal(s.id, "a");
    assert_string_equal(s.from, "b");
    assert_true(s.has_ttl && s.ttl_s == 0 && s.pin);
    api_session_new_fini(&s);
    assert_int_equal(api_parse_session_new(whole, sizeof whole - 1, true, &s, &err), 0);
    assert_true(s.id && !s.from && !s.pin); /* a fork takes an id alone */
    api_session_new_fini(&s);
    static const char *const bad[][2] = {{"{\"id\": \"\"}", "id"},         {"{\"id\": \"a b\"}", "id"},
                                         {"{\"from\": 1}", "from"},        {"{\"ttl_s\": -1}", "ttl_s"},
                                         {"{\"ttl_s\": 1e30}", "ttl_s"},   {"{\"pin\": 0}", "pin"},
                                         {"{\"id\": \"a\\u0000\"}", "id"}, {"[]", ""}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(api_parse_session_new(bad[i][0], strlen(bad[i][0]), false, &s, &err), -1);
        if (strcmp(err.param, bad[i][1]) != 0) fail_msg("%s: at '%s', want '%s'", bad[i][0], err.param, bad[i][1]);
    }
}

static void a_change_of_a_session_has_two_fields_and_no_other(void **state) {
    (void)state;
    struct rod_session_change c;
    struct api_error err;
    static const struct {
        const char *body;
        bool has_pin, pin, has_ttl;
        uint64_t ttl_s;
    } good[] = {{"", false, false, false, 0},
                {"{}", false, false, false, 0},
                {"{\"pin\": null, \"ttl_s\": null}", false, false, false, 0},
                {"{\"pin\": false}", true, false, false, 0},
                {"{\"pin\": true}", true, true, false, 0},
                {"{\"ttl_s\": 0}", false, false, true, 0},
                {"{\"ttl_s\": 60, \"pin\": false}", true, false, true, 60}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (api_parse_session_change(good[i].body, strlen(good[i].body), &c, &err))
            fail_msg("%s: %s", good[i].body, err.message);
        assert_true(c.has_pin == good[i].has_pin && c.pin == good[i].pin && c.has_ttl == good[i].has_ttl);
        assert_int_equal(c.ttl_s, good[i].ttl_s);
    }
    static const char *const bad[][2] = {
        {"{\"pin\": 1}", "pin"},
        {"{\"ttl_s\": -1}", "ttl_s"},
        {"{\"ttl_s\": \"one\"}", "ttl_s"},
        {"{\"ttl_s\": 1e30}", "ttl_s"},
        {"{\"id\": \"a\"}", "id"},
        {"{\"pinned\": false}", "pinned"},
        {"{\"from\": null}", "from"},
        {"{\"pin\": false, \"x\": 1}", "x"},
        {"[]", ""},
        {"{\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\u00e4b\": 1}", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(api_parse_session_change(bad[i][0], strlen(bad[i][0]), &c, &err), -1);
        if (strcmp(err.param, bad[i][1]) != 0) fail_msg("%s: at '%s', want '%s'", bad[i][0], err.param, bad[i][1]);
    }
}

/* ---- responses ---- */

static void a_response_is_a_chat_with_its_past_elsewhere(void **state) {
    (void)state;
    struct api_request r;
    accept(&responses_form, "{\"input\": \"Hi\"}", NULL, "k", &r);
    assert_int_equal(r.n_messages, 1);
    assert_string_equal(r.messages[0].role, "user");
    assert_string_equal(r.messages[0].content, "Hi");
    assert_int_equal(r.max_tokens, 99);
    assert_true(!r.session.discard && !r.session.from && r.n == 1 && r.n_logprobs == -1);
    assert_string_equal(r.session.idempotency_key, "k");
    assert_true(r.session.create && !strcmp(r.session.id, r.answer_id));
    api_request_fini(&r);
    accept(
        &responses_form,
        "{\"input\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_text\", \"text\": \"a\"}]},"
        "{\"type\": \"message\", \"id\": \"msg_1\", \"status\": \"completed\", \"role\": \"assistant\", \"content\": "
        "[{\"type\": \"output_text\", \"text\": \"b\", \"annotations\": []}]}], \"instructions\": \"c\","
        "\"previous_response_id\": \"resp_1\", \"store\": false, \"max_output_tokens\": 5, \"temperature\": 0,"
        "\"stream\": true}",
        NULL, NULL, &r);
    assert_int_equal(r.n_messages, 3);
    assert_string_equal(r.messages[0].role, "system");
    assert_string_equal(r.messages[0].content, "c");
    assert_string_equal(r.messages[2].content, "b");
    assert_string_equal(r.session.from, "resp_1");
    assert_true(r.session.discard && r.max_tokens == 5 && r.stream);
    api_request_fini(&r);
    accept(&responses_form, "{\"input\": \"a\", \"store\": false}", "s", NULL, &r);
    assert_string_equal(r.session.conversation, "s");
    api_request_fini(&r);
    accept(&responses_form, "{\"input\": \"a\", \"previous_response_id\": \"resp_1\"}", "s", NULL, &r);
    assert_true(r.session.id && !r.session.conversation);
    api_request_fini(&r);
    refuse(&responses_form, "{\"input\": \"a\", \"session_id\": \"s\"}", NULL, NULL, "session_id");
    refuse(&responses_form, "{\"input\": \"a\", \"previous_response_id\": \"a/b\"}", NULL, NULL,
           "previous_response_id");
    refuse(&responses_form, "{\"input\": \"a\", \"background\": true}", NULL, NULL, "background");
}

/* An answer to a request with the tool "look": a text, and a call of it. */
static void say(struct answer *a, const struct api_request *r, enum rod_finish reason) {
    static const char *const said[] = {"a\"b",
                                       "<tool_call>{\"name\": \"look\", \"arguments\": {\"at\": 1}}</tool_call>"};
    *a = (struct answer){.form = &responses_form,
                         .request = r,
                         .id = "resp_7",
                         .served_model = "tales",
                         .created_unix_s = 5,
                         .tags = {"<tool_call>", "</tool_call>"},
                         .usage = {.prompt_tok = 30, .completion_tok = 4, .cached_tok = 20},
                         .session = "resp_7",
                         .session_version = 3};
    assert_true(answer_begin(a, 1));
    a->choices[0].reason = reason;
    if (r->stream) a->form->open(&a->choices[0]);
    for (size_t i = 0; i < 2; i++) answer_push(&a->choices[0], said[i], strlen(said[i]));
    answer_end(&a->choices[0]);
}

#define LOOK "\"tools\": [{\"type\": \"function\", \"name\": \"look\", \"parameters\": {\"type\": \"object\"}}]"

static const char *text_at(const json_t *root, const char *name) {
    return json_string_value(json_object_get(root, name));
}

static void an_answer_says_again_what_was_asked(void **state) {
    (void)state;
    struct api_request r;
    struct answer a;
    struct buf out = {0};
    accept(&responses_form,
           "{\"input\": \"x\", \"metadata\": {\"k\\\"\": \"v\\n\"}, \"instructions\": \"say \\u0000 \\\"\", " LOOK "}",
           NULL, NULL, &r);
    say(&a, &r, ROD_FINISH_STOP);
    a.form->whole(&a, &out);
    json_t *root = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    assert_string_equal(text_at(root, "status"), "completed");
    assert_string_equal(text_at(json_object_get(root, "metadata"), "k\""), "v\n");
    assert_int_equal(json_string_length(json_object_get(root, "instructions")), 7);
    const json_t *item = json_array_get(json_object_get(root, "output"), 0);
    assert_string_equal(text_at(item, "id"), "msg_7");
    assert_string_equal(text_at(json_array_get(json_object_get(item, "content"), 0), "text"), "a\"b");
    item = json_array_get(json_object_get(root, "output"), 1);
    assert_string_equal(text_at(item, "type"), "function_call");
    assert_string_equal(text_at(item, "call_id"), a.choices[0].items[1].id);
    assert_string_equal(text_at(item, "arguments"), "{\"at\": 1}");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "usage"), "total_tokens")), 34);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "session"), "version")), 3);
    json_decref(root);
    buf_clear(&out);
    answer_fini(&a);
    say(&a, &r, ROD_FINISH_LENGTH);
    *a.session = 0;
    a.form->whole(&a, &out);
    root = json_loadb(out.data, out.len, JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    assert_string_equal(text_at(root, "status"), "incomplete");
    assert_string_equal(text_at(json_object_get(root, "incomplete_details"), "reason"), "max_output_tokens");
    assert_null(json_object_get(root, "session"));
    json_decref(root);
    buf_fini(&out);
    answer_fini(&a);
    api_request_fini(&r);
}

static void a_stream_numbers_its_events(void **state) {
    (void)state;
    static const char *const want[] = {"response.created",
                                       "response.in_progress",
                                       "response.output_item.added",
                                       "response.content_part.added",
                                       "response.output_text.delta",
                                       "response.output_text.done",
                                       "response.content_part.done",
                                       "response.output_item.done",
                                       "response.output_item.added",
                                       "response.function_call_arguments.delta",
                                       "response.function_call_arguments.done",
                                       "response.output_item.done",
                                       "response.completed",
                                       "error"};
    struct api_request r;
    struct api_error err;
    struct answer a;
    accept(&responses_form, "{\"input\": \"x\", \"stream\": true, " LOOK "}", NULL, NULL, &r);
    say(&a, &r, ROD_FINISH_STOP);
    a.form->finish(&a.choices[0], true);
    api_error_set(&err, 503, "unavailable", "draining", "", "over");
    a.form->error(&a, &err, "id");
    buf_putc(&a.frame, 0);
    char *at = a.frame.data;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        char *end = strstr(at, "\n\n"), *data = strstr(at, "\ndata: ");
        assert_true(end && data && data < end && !strncmp(at, "event: ", 7));
        *end = *data = 0;
        assert_string_equal(at + 7, want[i]);
        json_t *root = json_loads(data + 7, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(root);
        assert_string_equal(text_at(root, "type"), want[i]);
        assert_int_equal(json_integer_value(json_object_get(root, "sequence_number")), i);
        json_decref(root);
        at = end + 2;
    }
    assert_int_equal(*at, 0);
    answer_fini(&a);
    api_request_fini(&r);
}

static void a_session_shows_what_is_known_of_it(void **state) {
    (void)state;
    struct rod_session_info infos[2] = {{.id = "a",
                                         .version = 2,
                                         .n_tok = 30,
                                         .state_bytes = 400,
                                         .created_unix_s = 5,
                                         .used_unix_s = 6,
                                         .expires_unix_s = 7,
                                         .busy = true,
                                         .durable = true,
                                         .tier = "host",
                                         .parent = "p",
                                         .keep_turns = 8,
                                         .n_kept = 1,
                                         .kept = {{1, 1}}},
                                        {.id = "b", .pinned = true, .tier = "file"}};
    struct buf out = {0};
    api_render_sessions(&out, infos, 2, true);
    buf_putc(&out, 0);
    assert_string_equal(out.data,
                        "{\"object\":\"list\",\"data\":["
                        "{\"object\":\"session\",\"id\":\"a\",\"version\":2,\"tokens\":30,\"state_bytes\":400,"
                        "\"created_at\":5,\"used_at\":6,"
                        "\"expires_at\":7,\"pinned\":false,\"busy\":true,\"durable\":true,\"tier\":\"host\",\"parent\":"
                        "\"p\",\"keep_turns\":8,\"kept\":[{\"version\":1,\"turns\":1}]},"
                        "{\"object\":\"session\",\"id\":\"b\",\"version\":0,\"tokens\":0,\"state_bytes\":0,\"created_"
                        "at\":0,\"used_at\":0,"
                        "\"expires_at\":null,\"pinned\":true,\"busy\":false,\"durable\":false,\"tier\":\"file\","
                        "\"parent\":null,\"keep_turns\":0,\"kept\":[]}],"
                        "\"has_more\":true,\"first_id\":\"a\",\"last_id\":\"b\"}");
    buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_body_names_the_session),
        cmocka_unit_test(ids_have_128_characters_at_most),
        cmocka_unit_test(what_does_not_go_with_a_session_is_named),
        cmocka_unit_test(a_chat_of_no_tokens_needs_a_session),
        cmocka_unit_test(bodies_of_sessions_may_be_empty),
        cmocka_unit_test(a_change_of_a_session_has_two_fields_and_no_other),
        cmocka_unit_test(a_response_is_a_chat_with_its_past_elsewhere),
        cmocka_unit_test(an_answer_says_again_what_was_asked),
        cmocka_unit_test(a_stream_numbers_its_events),
        cmocka_unit_test(a_session_shows_what_is_known_of_it),
    };
    defaults.sampling.temperature = 0.5f;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
