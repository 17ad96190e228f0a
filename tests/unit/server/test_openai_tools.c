/* test_openai_tools.c - tools of a request: what the model reads of them and may call; and what a model says, cut into
 * content and calls. */
#include "server/api/chats/chats.h"
#include "server/api/completions/completions.h"
#include "server/api/responses/responses.h"
#include "server/api/api_fields.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct api_defaults defaults = {
    .model_name = "tales", .vocab_size = 1000, .sampling = ROD_SAMPLING_NEUTRAL};

#define TOOLS                                                                                                          \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"strict\": true, \"parameters\": "          \
    "{\"b\":0.1,\"a\":[1e30,-2.0,\"\\u00e9\\n\\u0001/\\u007f\"]}}}, {\"function\": {\"name\": \"g.h:i\"}, "            \
    "\"type\": \"function\"}]"

static int parse(const char *fields, struct api_request *out, struct api_error *err) {
    char body[2048];
    snprintf(body, sizeof body, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], %s}", fields);
    return chats_parse(body, strlen(body), &defaults, out, err);
}

static void accept(const char *fields, struct api_request *out) {
    struct api_error err;
    if (parse(fields, out, &err)) fail_msg("%s is refused: %s", fields, err.message);
}

static void refuse(const char *fields, const char *param) {
    struct api_request r;
    struct api_error err = {0};
    if (!parse(fields, &r, &err)) fail_msg("%s is accepted", fields);
    if (err.http != 400 || strcmp(err.param, param) != 0)
        fail_msg("%s: %u at '%s' (%s), not at '%s'", fields, err.http, err.param, err.message, param);
}

/* Like Python's json.dumps with ensure_ascii=False. */
static void definitions_keep_their_order_and_have_one_line(void **state) {
    (void)state;
    struct api_request r;
    accept(TOOLS, &r);
    assert_int_equal(r.tools.n, 2);
    assert_string_equal(
        r.tools.lines[0],
        "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"strict\": true, \"parameters\": {\"b\": "
        "0.1, \"a\": [1e+30, -2.0, \"\xc3\xa9\\n\\u0001/\x7f\"]}}}");
    assert_string_equal(r.tools.lines[1], "{\"function\": {\"name\": \"g.h:i\"}, \"type\": \"function\"}");
    assert_true(r.tools.parallel);
    assert_true(api_tools_lazy(&r) && api_tools_again(&r));
    api_request_fini(&r);
}

static void the_choice_says_what_may_be_called(void **state) {
    (void)state;
    static const struct {
        const char *choice;
        enum api_tool_choice kind;
        bool f, g, lazy, again;
    } cases[] = {
        {"null", API_TOOLS_AUTO, true, true, true, true},
        {"\"auto\", \"parallel_tool_calls\": false", API_TOOLS_AUTO, true, true, true, false},
        {"\"required\"", API_TOOLS_REQUIRED, true, true, false, true},
        {"{\"type\": \"function\", \"function\": {\"name\": \"f\"}}", API_TOOLS_NAMED, true, false, false, false},
        {"{\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": \"auto\", \"tools\": [{\"type\": \"function\", "
         "\"function\": {\"name\": \"g.h:i\"}}]}}",
         API_TOOLS_AUTO, false, true, true, true},
        {"{\"type\": \"allowed_tools\", \"mode\": \"required\", \"tools\": [{\"type\": \"function\", \"name\": "
         "\"f\"}]}",
         API_TOOLS_REQUIRED, true, false, false, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char fields[1024];
        struct api_request r;
        snprintf(fields, sizeof fields, "%s, \"tool_choice\": %s", TOOLS, cases[i].choice);
        accept(fields, &r);
        if (r.tools.choice != cases[i].kind || r.tools.allowed[0] != cases[i].f || r.tools.allowed[1] != cases[i].g ||
            api_tools_lazy(&r) != cases[i].lazy || api_tools_again(&r) != cases[i].again)
            fail_msg("%s: %d, may call %d %d, lazy %d, again %d", cases[i].choice, (int)r.tools.choice,
                     r.tools.allowed[0], r.tools.allowed[1], api_tools_lazy(&r), api_tools_again(&r));
        api_request_fini(&r);
    }
    struct api_request r;
    accept(TOOLS ", \"tool_choice\": \"none\"", &r);
    assert_int_equal(r.tools.n, 0);
    api_request_fini(&r);
}

static void bad_tools_are_named(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"\"tools\": {}", "tools"},
        {"\"tools\": [7]", "tools[0]"},
        {"\"tools\": [{\"type\": \"web_search\"}]", "tools[0].type"},
        {"\"tools\": [{\"type\": \"function\"}]", "tools[0].function"},
        {"\"tools\": [{\"type\": \"function\", \"function\": {}}]", "tools[0].function.name"},
        {"\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a\\\"\"}}]", "tools[0].function.name"},
        {"\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a\", \"description\": 7}}]",
         "tools[0].function.description"},
        {"\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a\", \"parameters\": []}}]",
         "tools[0].function.parameters"},
        {"\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"a\", \"strict\": 1}}]",
         "tools[0].function.strict"},
        {TOOLS ", \"tool_choice\": \"any\"", "tool_choice"},
        {TOOLS ", \"tool_choice\": 7", "tool_choice"},
        {TOOLS ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"x\"}}", "tool_choice"},
        {TOOLS ", \"tool_choice\": {\"type\": \"allowed_tools\", \"mode\": \"none\", \"tools\": []}", "tool_choice"},
        {TOOLS ", \"parallel_tool_calls\": 1", "parallel_tool_calls"},
        {TOOLS ", \"structured_outputs\": {\"grammar\": \"root ::= [a]\"}", "structured_outputs.grammar"},
        {"\"functions\": [{\"name\": \"f\"}]", "functions"},
        {"\"tool_choice\": \"required\"", "tool_choice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) refuse(cases[i][0], cases[i][1]);
}

static void histories_have_calls_and_results(void **state) {
    (void)state;
    static const char body[] =
        "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"id\": \"a\", \"type\": "
        "\"function\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\":  1}\"}}, {\"function\": {\"name\": "
        "\"g\", \"arguments\": {\"b\": 2}}}]}, {\"role\": \"tool\", \"tool_call_id\": \"a\", \"content\": \"4\"}, "
        "{\"role\": \"assistant\", \"function_call\": {\"name\": \"h\"}}]}";
    struct api_request r;
    struct api_error err;
    if (chats_parse(body, sizeof body - 1, &defaults, &r, &err)) fail_msg("%s", err.message);
    assert_int_equal(r.messages[0].n_calls, 2);
    assert_string_equal(r.messages[0].calls[0].arguments, "{\"a\":  1}"); /* byte for byte */
    assert_string_equal(r.messages[0].calls[1].arguments, "{\"b\": 2}");
    assert_int_equal(r.messages[1].n_calls, 0);
    assert_string_equal(r.messages[2].calls[0].name, "h");
    assert_string_equal(r.messages[2].calls[0].arguments, "");
    api_request_fini(&r);
}

/* ---- what a model says ---- */

static void take(struct buf *out, const struct api_part *part) {
    if (part->kind == API_PART_CALL)
        buf_addf(out, "[%s:", part->name);
    else
        buf_add(out, part->text, part->len);
}

static void push(struct api_split *s, const char *text, size_t len, struct buf *out) {
    struct api_part part;
    api_split_push(s, text, len);
    while (api_split_next(s, &part)) take(out, &part);
}

static void end(struct api_split *s, bool cut, struct buf *out) {
    struct api_part part;
    if (api_split_end(s, cut, &part)) take(out, &part);
}

#define CALL(name, arguments) "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"

/* The parts as one text, "[name:arguments" for a call, however the text arrives. */
static void reads_to(const char *text, bool cut, const char *want, unsigned n_calls, bool whole) {
    char *names[] = {(char *)"f", (char *)"g", (char *)"hidden"};
    bool allowed[] = {true, true, false};
    const struct api_tools tools = {.names = names, .allowed = allowed, .n = 3};
    for (size_t step = 1; step <= strlen(text); step++) {
        struct buf out = {0};
        struct api_split s = {.tools = &tools, .tags = {"<tool_call>", "</tool_call>"}};
        for (size_t at = 0; at < strlen(text); at += step)
            push(&s, text + at, strlen(text) - at < step ? strlen(text) - at : step, &out);
        end(&s, cut, &out);
        buf_putc(&out, 0);
        if (strcmp(out.data, want) != 0) fail_msg("%s by %zu: '%s', not '%s'", text, step, out.data, want);
        if (s.n_calls != n_calls || (n_calls && s.whole != whole))
            fail_msg("%s by %zu: %u calls, the last whole: %d", text, step, s.n_calls, s.whole);
        api_split_fini(&s);
        buf_fini(&out);
    }
}

static void reads(const char *text, const char *want, unsigned n_calls, bool whole) {
    reads_to(text, false, want, n_calls, whole);
}

static void calls_are_found_in_what_a_model_says(void **state) {
    (void)state;
    reads("Just text < 7 <tool", "Just text < 7 <tool", 0, false);
    reads(CALL("f", "{}"), "[f:{}", 1, true);
    reads("Well.\n" CALL("f", "{\"a\": 1}"), "Well.[f:{\"a\": 1}", 1, true);
    reads("Well." CALL("f", "{}") "\n", "Well.[f:{}", 1, true);
    reads(CALL("f", "{}") "\n" CALL("g", "{\"a\": {\"b\": \"}\\\"]</tool_call>\"}}"),
          "[f:{}[g:{\"a\": {\"b\": \"}\\\"]</tool_call>\"}}", 2, true);
    reads("<tool_call>{ \"name\" :\"f\",\n\"arguments\":{}}</tool_call>", "[f:{}", 1, true);
    reads(CALL("f", "{}") " and then", "[f:{} and then", 1, true);
}

static void what_is_no_call_stays_text(void **state) {
    (void)state;
    reads(CALL("other", "{}"), CALL("other", "{}"), 0, false);
    reads("\n" CALL("hidden", "{}"), "\n" CALL("hidden", "{}"), 0, false);
    reads("<tool_call>\n{\"name\": \"f\", \"arguments\": 7}", "<tool_call>\n{\"name\": \"f\", \"arguments\": 7}", 0,
          false);
    reads("<tool_call>\n{\"name\": \"f", "<tool_call>\n{\"name\": \"f", 0, false); /* cut in the head */
    reads("<tool_call><tool_call>\n" CALL("f", "{}"), "<tool_call><tool_call>[f:{}", 1, true);
}

static void a_call_that_is_cut_is_not_whole(void **state) {
    (void)state;
    reads("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"", "[f:{\"a\": \"", 1, false);
    reads(CALL("f", "{}") "\n<tool_call>\n{\"name\": \"g\", \"arguments\": {", "[f:{}[g:{", 2, false);
    reads(CALL("f", "{}") "\n<tool_call>\n{\"na", "[f:{}", 1, true); /* its beginning is no text */
    reads(CALL("f", "{}") "\n<tool_c", "[f:{}", 1, true);
    reads("<tool_call>\n{\"name\": \"f\", \"arguments\": {}", "[f:{}", 1, true); /* all but its end */
}

static void what_the_limit_cuts_before_its_arguments_is_no_text(void **state) {
    static const char call[] = "Well.\n" CALL("f", "{}");
    const char *arguments = strstr(call, "{}");
    char text[sizeof call];
    (void)state;
    for (const char *end = call + strlen("Well.\n<"); end <= arguments; end++) {
        snprintf(text, sizeof text, "%.*s", (int)(end - call), call);
        reads_to(text, true, "Well.", 0, false);
        reads_to(text + strlen("Well.\n"), true, "", 0, false);
    }
    reads_to("Well.\n", true, "Well.\n", 0, false);
    reads_to("1 < 2", true, "1 < 2", 0, false);
    reads_to("<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a", true, "[f:{\"a", 1, false);
}

/* A head that never ends is no reason to keep all of it. */
static void a_head_without_an_end_is_text_after_a_while(void **state) {
    (void)state;
    struct buf out = {0};
    struct api_tools tools = {0};
    struct api_split s = {.tools = &tools, .tags = {"<tool_call>", "</tool_call>"}};
    push(&s, "<tool_call>", 11, &out);
    for (int i = 0; i < 2000; i++) push(&s, " ", 1, &out);
    assert_true(s.held.len < 600);
    end(&s, false, &out);
    assert_int_equal(out.len, 2011);
    api_split_fini(&s);
    buf_fini(&out);
}

/* The chat formats show no ids: results follow the order of their calls. A letter is a result of this call, '(' an
 * assistant that calls a, b and c, '.' a user. */
static void results_are_put_into_the_order_of_the_calls(void **state) {
    (void)state;
    static const char sent[] = "ca(cxab.ca(a(cb", want[] = "ca(abcx.ca(a(bc";
    struct buf body = {0};
    for (const char *at = sent; *at; at++) {
        buf_puts(&body, at == sent ? "{\"messages\": [" : ", ");
        if (*at == '(')
            buf_puts(&body,
                     "{\"role\": \"assistant\", \"content\": \"(\", \"tool_calls\": [{\"id\": \"a\", \"function\": "
                     "{\"name\": \"f\"}}, {\"id\": \"b\", \"function\": {\"name\": \"f\"}}, {\"id\": \"c\", "
                     "\"function\": {\"name\": \"f\"}}]}");
        else if (*at == '.')
            buf_puts(&body, "{\"role\": \"user\", \"content\": \".\"}");
        else
            buf_addf(&body, "{\"role\": \"tool\", \"tool_call_id\": \"%c\", \"content\": \"%c\"}", *at, *at);
    }
    buf_puts(&body, "]}");
    struct api_request r;
    struct api_error err;
    if (chats_parse(body.data, body.len, &defaults, &r, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i < r.n_messages; i++)
        if (r.messages[i].content[0] != want[i]) fail_msg("%zu: %s, not %s", i, r.messages[i].content, want + i);
    api_request_fini(&r);
    buf_fini(&body);
}

/* Items that are neighbours become one message with calls, as a chat has it. */
static void items_of_a_response_are_calls_and_results(void **state) {
    (void)state;
    static const char body[] =
        "{\"input\": [{\"role\": \"user\", \"content\": \"x\"}, {\"type\": \"reasoning\"}, {\"role\": \"assistant\", "
        "\"content\": \"y\"}, {\"type\": \"function_call\", \"name\": \"f\", \"arguments\": \"{}\"}, {\"type\": "
        "\"function_call\", \"name\": \"g\"}, {\"type\": \"function_call_output\", \"output\": \"4\"}, {\"type\": "
        "\"function_call\", \"name\": \"h\"}], \"tools\": [{\"type\": \"function\", \"strict\": null, \"name\": \"f\", "
        "\"parameters\": {}}], \"tool_choice\": {\"type\": \"function\", \"name\": \"f\"}}";
    struct api_request r;
    struct api_error err;
    if (responses_parse(body, sizeof body - 1, &defaults, &r, &err)) fail_msg("%s", err.message);
    assert_int_equal(r.n_messages, 4);
    assert_string_equal(r.messages[1].content, "y");
    assert_int_equal(r.messages[1].n_calls, 2);
    assert_string_equal(r.messages[2].role, "tool");
    assert_string_equal(r.messages[3].calls[0].name, "h");
    assert_string_equal(r.tools.lines[0], "{\"type\": \"function\", \"function\": {\"strict\": null, \"name\": \"f\", "
                                          "\"parameters\": {}}}");
    api_request_fini(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(definitions_keep_their_order_and_have_one_line),
        cmocka_unit_test(the_choice_says_what_may_be_called),
        cmocka_unit_test(bad_tools_are_named),
        cmocka_unit_test(histories_have_calls_and_results),
        cmocka_unit_test(results_are_put_into_the_order_of_the_calls),
        cmocka_unit_test(items_of_a_response_are_calls_and_results),
        cmocka_unit_test(calls_are_found_in_what_a_model_says),
        cmocka_unit_test(what_is_no_call_stays_text),
        cmocka_unit_test(a_call_that_is_cut_is_not_whole),
        cmocka_unit_test(what_the_limit_cuts_before_its_arguments_is_no_text),
        cmocka_unit_test(a_head_without_an_end_is_text_after_a_while),
    };
    return cmocka_run_group_tests_name("tools", tests, NULL, NULL);
}
