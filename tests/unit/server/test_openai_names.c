/* test_openai_names.c - which conversation a request goes on with, by what each client sends of itself. */
#include "server/api/api_conversation.h"
#include "server/api/chats/chats.h"
#include "server/api/completions/completions.h"
#include "server/api/messages/messages.h"
#include "server/api/responses/responses.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <cmocka.h>

static struct api_defaults defaults = {
    .model_name = "tales", .vocab_size = 1000, .chat_max_tokens = 99, .sampling = ROD_SAMPLING_NEUTRAL};

struct header {
    const char *name, *value;
};

/* [5], the rest empty. */
static const char *header_of(const void *headers, const char *name) {
    const struct header *h = headers;
    for (size_t i = 0; i < 5 && h[i].name; i++)
        if (!strcasecmp(h[i].name, name)) return h[i].value;
    return NULL;
}

static void each_client_names_its_conversation(void **state) {
    (void)state;
    static const struct {
        struct header sent[5];
        const char *name; /* NULL: no header gives one */
    } cases[] = {
        {{{"x-claude-code-session-id", "0f3a"}}, "0f3a"},
        {{{"x-claude-code-agent-id", "a1"}, {"x-claude-code-session-id", "0f3a"}}, "0f3a:a1"},
        {{{"x-claude-code-agent-id", "a1"}}, NULL},
        {{{"session-id", "root"}, {"thread-id", "child"}, {"x-codex-window-id", "child:2"}}, "child"},
        {{{"session-id", "root"}}, NULL},
        {{{"x-affinity", "v"}}, "v"},
        {{{"X-Session-Id", "own"}, {"X-Parent-Session-Id", "above"}}, "own"},
        {{{"X-Amp-Thread-Id", "T-1"}}, "T-1"},
        {{{"x-claude-code-session-id", "0f3a"}, {"X-Session-Id", "of a proxy"}}, "0f3a"},
        {{{"User-Agent", "curl"}}, NULL},
        {{{"thread-id", ""}, {"x-affinity", "v"}}, ""},
        {{{"x-claude-code-session-id", "0f3a"}, {"x-claude-code-agent-id", ""}}, ""},
        {{{"X-Session-Id", "a\tb"}}, ""},
        {{{"X-Session-Id", "a\x7f"}}, ""},
        {{{"X-Session-Id", "\xe4"}}, ""},
        {{{"X-Session-Id", "\xc3\xa4/b c"}}, "\xc3\xa4/b c"},
    };
    char name[API_CONVERSATION_MAX + 1];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bool found = api_conversation_name(header_of, cases[i].sent, "X-Session-Id", name);
        const char *want = cases[i].name ? cases[i].name : "";
        if (found != (cases[i].name != NULL) || strcmp(name, want) != 0)
            fail_msg("case %zu: %d '%s', want '%s'", i, found, name, want);
    }
}

static void the_operator_names_the_header_of_sessions(void **state) {
    (void)state;
    const struct header sent[5] = {{"X-Session-Id", "a"}, {"X-Chat", "b"}};
    char name[API_CONVERSATION_MAX + 1];
    assert_true(api_conversation_name(header_of, sent, "X-Chat", name));
    assert_string_equal(name, "b");
}

static void a_name_has_255_bytes_at_most(void **state) {
    (void)state;
    char text[300], out[API_CONVERSATION_MAX + 1];
    memset(text, 'x', sizeof text);
    for (size_t n = 250; n < 260; n++) {
        text[n] = 0;
        const struct header alone[5] = {{"Thread-Id", text}},
                            agent[5] = {{"X-Claude-Code-Session-Id", text}, {"X-Claude-Code-Agent-Id", "ab"}};
        assert_true(api_conversation_name(header_of, alone, "X-Session-Id", out));
        assert_int_equal(strlen(out), n <= 255 ? n : 0);
        assert_true(api_conversation_name(header_of, agent, "X-Session-Id", out));
        assert_int_equal(strlen(out), n + 3 <= 255 ? n + 3 : 0);
        text[n] = 'x';
    }
}

/* NULL: none, or the body is refused. header: what the headers give, NULL = nothing. */
static void want_name(const struct answer_form *form, const char *body, const char *header, const char *want) {
    const struct api_headers headers = {.session_name = "X-Session-Id", .tenant = "t", .conversation = header};
    struct api_request r;
    struct api_error err = {0};
    if (form->parse(body, strlen(body), &defaults, &r, &err)) fail_msg("%s: %s", body, err.message);
    if (form->join(&r, &headers, &err)) fail_msg("%s: %s", body, err.message);
    const char *name = r.session.conversation;
    if (!name != !want || (want && strcmp(name, want) != 0))
        fail_msg("%s with %s: %s, want %s", body, header ? header : "-", name ? name : "-", want ? want : "-");
    api_request_fini(&r);
}

#define SAY "\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]"

static void a_body_names_it_where_no_header_does(void **state) {
    (void)state;
    static const char *const keyed = "{" SAY ", \"prompt_cache_key\": \"k\"}";
    want_name(&chats_form, keyed, NULL, "k");
    want_name(&chats_form, keyed, "h", "h");
    want_name(&chats_form, keyed, "", NULL);
    want_name(&chats_form, "{" SAY "}", "h", "h");
    want_name(&chats_form, "{" SAY "}", NULL, NULL);
    want_name(&messages_form, "{" SAY ", \"max_tokens\": 5}", "h", "h");
    want_name(&responses_form, "{\"input\": \"x\", \"store\": false, \"prompt_cache_key\": \"k\"}", NULL, "k");
    want_name(&responses_form, "{\"input\": \"x\", \"prompt_cache_key\": \"k\"}", NULL, "k");
    want_name(&responses_form, "{\"input\": \"x\"}", "h", "h");
}

static void what_is_no_name_names_nothing(void **state) {
    (void)state;
    want_name(&chats_form, "{" SAY ", \"prompt_cache_key\": \"\"}", NULL, NULL);
    want_name(&chats_form, "{" SAY ", \"prompt_cache_key\": 5}", NULL, NULL);
    want_name(&chats_form, "{" SAY ", \"prompt_cache_key\": \"a\\u0000b\"}", NULL, NULL);
    want_name(&chats_form, "{" SAY ", \"prompt_cache_key\": \"a\\nb\"}", NULL, NULL);
}

static void turns_and_texts_have_no_such_name(void **state) {
    (void)state;
    want_name(&chats_form, "{" SAY ", \"session_id\": \"s\", \"prompt_cache_key\": \"k\"}", "h", NULL);
    want_name(&responses_form, "{\"input\": \"x\", \"previous_response_id\": \"resp_1\"}", "h", NULL);
    want_name(&completions_form, "{\"prompt\": \"x\", \"prompt_cache_key\": \"k\"}", "h", NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_client_names_its_conversation),
        cmocka_unit_test(the_operator_names_the_header_of_sessions),
        cmocka_unit_test(a_name_has_255_bytes_at_most),
        cmocka_unit_test(a_body_names_it_where_no_header_does),
        cmocka_unit_test(what_is_no_name_names_nothing),
        cmocka_unit_test(turns_and_texts_have_no_such_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
