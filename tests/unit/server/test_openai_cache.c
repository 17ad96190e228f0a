/* test_openai_cache.c - cache_control: where in a chat it stands, and what is refused. */
#include "server/api/chats/chats.h"
#include "server/api/messages/messages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct api_defaults defaults = {
    .model_name = "tales", .vocab_size = 1000, .sampling = ROD_SAMPLING_NEUTRAL};

#define MARK      "\"cache_control\":{\"type\":\"ephemeral\"}"
#define MARK_LONG "\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":\"1h\"}"

static void assert_marks(const struct api_request *r, const struct api_cache_mark *want, uint32_t n) {
    for (uint32_t i = 0; i < r->cache.n; i++) {
        const struct api_cache_mark *m = &r->cache.marks[i];
        if (i < n && m->n_tools == want[i].n_tools && m->message == want[i].message && m->len == want[i].len &&
            m->ttl_s == want[i].ttl_s)
            continue;
        fail_msg("mark %u: tools %zu message %zu bytes %zu ttl %u", i, m->n_tools, m->message, m->len, m->ttl_s);
    }
    assert_int_equal(r->cache.n, n);
}

static void marks_are_at_the_ends_of_what_they_stand_in(void **state) {
    (void)state;
    static const char body[] = "{\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}," MARK_LONG "}],"
                               "\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"abc\"},"
                               "{\"type\":\"text\",\"text\":\"de\"," MARK "},\"f\"]},"
                               "{\"role\":\"user\",\"content\":\"xyz\"," MARK "},"
                               "{\"role\":\"user\",\"content\":\"four\",\"cache_control\":null}]," MARK_LONG "}";
    struct api_request r;
    struct api_error err;
    assert_int_equal(chats_parse(body, sizeof body - 1, &defaults, &r, &err), 0);
    const struct api_cache_mark want[] = {{1, 0, 0, 3600}, {0, 0, 6, 300}, {0, 1, 3, 300}, {0, 2, 4, 3600}};
    assert_marks(&r, want, 4);
    assert_null(strstr(r.tools.lines[0], "cache")); /* the model reads the same text with and without */
    api_request_fini(&r);
}

static void those_of_messages_of_anthropic_go_with_their_blocks(void **state) {
    (void)state;
    static const char body[] =
        "{\"max_tokens\":1,\"system\":[{\"type\":\"text\",\"text\":\"ab\"," MARK_LONG "}],"
        "\"tools\":[{\"name\":\"f\",\"input_schema\":{}," MARK "}],\"messages\":[{\"role\":\"user\",\"content\":\"x\"},"
        "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"yz\"},{\"type\":\"tool_use\",\"id\":\"1\","
        "\"name\":\"f\",\"input\":{}," MARK "}]},{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\","
        "\"tool_use_id\":\"1\",\"content\":\"rain\"," MARK "},{\"type\":\"text\",\"text\":\"So?\"}]}]}";
    struct api_request r;
    struct api_error err;
    assert_int_equal(messages_parse(body, sizeof body - 1, &defaults, &r, &err), 0);
    const struct api_cache_mark want[] = {{1, 0, 0, 300}, {0, 0, 2, 3600}, {0, 2, 2, 300}, {0, 3, 4, 300}};
    assert_marks(&r, want, 4);
    api_request_fini(&r);
}

/* They are read in the order of their calls, not in that of the body. */
static void a_mark_on_a_result_is_behind_the_results_beside_it(void **state) {
    (void)state;
    static const char body[] =
        "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\",\"function\":{\"name\":\"f\"}},"
        "{\"id\":\"2\",\"function\":{\"name\":\"g\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"2\",\"content\":"
        "\"a long result\"," MARK "},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":[\"x\",{\"type\":\"text\","
        "\"text\":\"y\"," MARK_LONG "},\"z\"]},{\"role\":\"user\",\"content\":\"So?\"}]}";
    struct api_request r;
    struct api_error err;
    assert_int_equal(chats_parse(body, sizeof body - 1, &defaults, &r, &err), 0);
    assert_string_equal(r.messages[2].content, "a long result");
    const struct api_cache_mark want[] = {{0, 2, 13, 300}, {0, 2, 13, 3600}};
    assert_marks(&r, want, 2);
    api_request_fini(&r);
}

static void refuse(const char *body, const char *param) {
    struct api_request r;
    struct api_error err = {0};
    if (!chats_parse(body, strlen(body), &defaults, &r, &err)) fail_msg("%s is accepted", body);
    if (err.http != 400 || strcmp(err.param, param) != 0)
        fail_msg("%s: %u at '%s' (%s), not at '%s'", body, err.http, err.param, err.message, param);
}

static void a_fifth_mark_and_unknown_ones_are_refused(void **state) {
    (void)state;
#define PART "{\"type\":\"text\",\"text\":\"a\"," MARK "}"
    refuse("{\"messages\":[{\"role\":\"user\",\"content\":[" PART "," PART "," PART "," PART "]," MARK "}]}",
           "cache_control");
    refuse("{\"messages\":[{\"role\":\"user\",\"content\":[\"a\",{\"type\":\"text\",\"text\":\"a\",\"cache_control\":"
           "{\"type\":\"persistent\"}}]}]}",
           "messages[0].content[1].cache_control");
    refuse("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"cache_control\":{\"type\":\"ephemeral\",\"ttl\":"
           "\"2h\"}}",
           "cache_control");
    refuse("{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"cache_control\":true}]}",
           "messages[0].cache_control");
    refuse("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[{\"type\":\"function\",\"function\":"
           "{\"name\":\"f\"},\"cache_control\":{}}]}",
           "tools[0].cache_control");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marks_are_at_the_ends_of_what_they_stand_in),
        cmocka_unit_test(those_of_messages_of_anthropic_go_with_their_blocks),
        cmocka_unit_test(a_mark_on_a_result_is_behind_the_results_beside_it),
        cmocka_unit_test(a_fifth_mark_and_unknown_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
