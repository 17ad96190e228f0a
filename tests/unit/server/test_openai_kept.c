/* test_openai_kept.c - what a stored response keeps of its request, and what is refused of it when it comes back. */
#include "server/api/responses/responses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct api_defaults defaults = {.model_name = "m", .vocab_size = 64, .sampling = ROD_SAMPLING_NEUTRAL};

static void parse(const char *body, size_t len, struct api_request *out) {
    struct api_error err;
    if (responses_parse(body, len, &defaults, out, &err)) fail_msg("%s", err.message);
}

static void a_request_keeps_its_echo_its_tools_and_its_input(void **state) {
    (void)state;
    static const char body[] =
        "{\"input\": \"a\\nb\\u0000\", \"max_output_tokens\": 5, \"temperature\": 0.7, \"instructions\":"
        "\"\\n\", \"tools\": [{\"type\": \"function\", \"name\": \"now\"}]}";
    struct api_request r;
    struct responses_kept k;
    struct api_error err;
    parse(body, sizeof body - 1, &r);
    assert_int_equal(responses_parse_kept(r.session.kept.data, r.session.kept.len, true, &k, &err), 0);
    assert_int_equal(k.echo.len, r.again.len);
    assert_memory_equal(k.echo.data, r.again.data, k.echo.len);
    assert_int_equal(k.tools.n, 1);
    assert_string_equal(k.tools.names[0], "now");
    const json_t *one = json_array_get(k.input, 0);
    assert_string_equal(json_string_value(json_object_get(one, "role")), "user");
    assert_int_equal(json_string_length(json_object_get(one, "content")), 4);
    responses_kept_fini(&k);
    api_request_fini(&r);
    static const char loose[] = "{\"input\": \"a\", \"max_output_tokens\": 5, \"store\": false}";
    parse(loose, sizeof loose - 1, &r);
    assert_int_equal(r.session.kept.len, 0);
    api_request_fini(&r);
}

/* The limit is met to the byte. */
static void a_text_beyond_the_limit_is_not_kept(void **state) {
    (void)state;
    const size_t cap = ROD_MAX_TURN_TEXT + 200;
    char *body = malloc(cap);
    struct api_request r;
    size_t n_other = 0;
    for (size_t n = 1; n_other + n <= ROD_MAX_TURN_TEXT + 1;) {
        const int head = snprintf(body, cap, "{\"max_output_tokens\": 5, \"input\": \"");
        memset(body + head, 'x', n);
        memcpy(body + head + n, "\"}", 2);
        parse(body, (size_t)head + n + 2, &r);
        const bool fits = n_other + n <= ROD_MAX_TURN_TEXT;
        if (n == 1) n_other = r.session.kept.len - 1;
        assert_int_equal(r.session.kept.len, fits ? n_other + n : 0);
        api_request_fini(&r);
        n = n == 1 ? ROD_MAX_TURN_TEXT - n_other - 1 : n + 1;
    }
    free(body);
}

static void what_is_damaged_is_refused(void **state) {
    (void)state;
    static const char *const texts[] = {"",
                                        "\n",
                                        "{}",
                                        "{}\n",
                                        "{\"a\":1}\n",
                                        "{\"a\":1}\n{",
                                        "{\"a\":1}\n[]",
                                        "{\"a\":1\n{\"input\":[]}",
                                        "[1]\n{\"input\":[]}",
                                        "{\"a\":\xff}\n{\"input\":[]}",
                                        "{\"a\":1,\"a\":2}\n{\"input\":[]}",
                                        "{\"tools\":[{\"type\":\"king\"}]}\n{\"input\":[]}",
                                        "{\"tools\":7}\n{\"input\":[]}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct responses_kept k;
        struct api_error err;
        if (!responses_parse_kept(texts[i], strlen(texts[i]), true, &k, &err)) fail_msg("%s is taken", texts[i]);
        assert_int_equal(err.http, 412);
        assert_string_equal(err.code, "bad_state");
        assert_true(!k.input && !k.tools.n && !k.echo.len);
    }
}

/* Of a file that was made by hand: whatever it has for an item is shown as one. */
static void odd_items_are_shown_all_the_same(void **state) {
    (void)state;
    static const char text[] = "{\"a\":1}\n{\"input\":[7,null,{},[],{\"type\":\"function_call\",\"arguments\":7},{"
                               "\"type\":\"function_call_output\"},"
                               "{\"role\":7,\"content\":[7,{}]},{\"type\":\"reasoning\"}]}";
    struct responses_kept k;
    struct api_error err = {0};
    struct buf out = {0};
    assert_int_equal(responses_parse_kept(text, sizeof text - 1, true, &k, &err), 0);
    assert_true(responses_render_input_items(&out, "resp_1", k.input,
                                             &(struct responses_page){.limit = 100, .rising = true}, &err));
    json_t *list = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, NULL);
    assert_int_equal(json_array_size(json_object_get(list, "data")), 8);
    assert_string_equal(json_string_value(json_object_get(list, "last_id")), "rs_1_in7");
    assert_false(responses_render_input_items(&out, "resp_1", k.input,
                                              &(struct responses_page){.limit = 1, .after = "rs_1_in8"}, &err));
    assert_string_equal(err.param, "after");
    json_decref(list);
    buf_fini(&out);
    responses_kept_fini(&k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_keeps_its_echo_its_tools_and_its_input),
        cmocka_unit_test(a_text_beyond_the_limit_is_not_kept),
        cmocka_unit_test(what_is_damaged_is_refused),
        cmocka_unit_test(odd_items_are_shown_all_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
