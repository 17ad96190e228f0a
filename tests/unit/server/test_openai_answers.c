/* test_openai_answers.c - the OpenAI protocol: what answers, chunks, log-probabilities and errors look like. */
#include "server/api/api_choice.h"
#include "server/api/chats/chats.h"
#include "server/api/completions/completions.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *word(void *arg, int32_t id, size_t *len) {
    static const char *const words[] = {"He", "llo", "\xE2\x80", "\"quote\n"};
    (void)arg;
    if (id < 0 || id > 3) return NULL;
    *len = strlen(words[id]);
    return words[id];
}
static const struct api_vocab vocab = {word, NULL, false};

static json_t *read_back(struct buf *b) {
    json_error_t fault;
    json_t *root = json_loadb(b->data, b->len, 0, &fault);
    if (!root) fail_msg("not JSON: %s: %.*s", fault.text, (int)b->len, b->data);
    buf_fini(b);
    return root;
}

static const json_t *at(const json_t *value, const char *path) {
    char copy[128], *rest = copy, *part;
    snprintf(copy, sizeof copy, "%s", path);
    while ((part = strsep(&rest, "."))) {
        value = json_is_array(value) ? json_array_get(value, (size_t)strtoul(part, NULL, 10))
                                     : json_object_get(value, part);
    }
    if (!value) fail_msg("%s is missing", path);
    return value;
}

static void errors_have_the_openai_form(void **state) {
    (void)state;
    struct buf b = {0};
    struct api_error e;
    api_error_set(&e, 400, "invalid_request_error", "", "n", "n is \"bad\"\n");
    api_render_error(&b, &e);
    json_t *root = read_back(&b);
    assert_string_equal(json_string_value(at(root, "error.message")), "n is \"bad\"\n");
    assert_string_equal(json_string_value(at(root, "error.param")), "n");
    assert_true(json_is_null(at(root, "error.code")));
    json_decref(root);
    /* What is quoted may be cut inside a character, which vanishes, and a path may hold any bytes: JSON is UTF-8. */
    api_error_set(&e, 400, "invalid_request_error", "", "a\xcc\xba\xe4\xbd", "'%.3s' \xff\x80\x80 \xf0\x9f\x8c",
                  "a\xcc\xba\xcc");
    api_render_error(&b, &e);
    root = read_back(&b);
    assert_string_equal(json_string_value(at(root, "error.message")), "'a\xcc\xba' \xef\xbf\xbd ");
    assert_string_equal(json_string_value(at(root, "error.param")), "a\xcc\xba");
    json_decref(root);
    api_error_set(&e, 404, "invalid_request_error", "", "", "'%.2s'", "a\xcc\xba");
    api_render_error(&b, &e);
    root = read_back(&b);
    assert_string_equal(json_string_value(at(root, "error.message")), "'a'");
    assert_true(json_is_null(at(root, "error.param")));
    json_decref(root);
    struct rod_error from;
    rod_fail(&from, ROD_EQUEUEFULL, "full");
    api_error_from(&e, &from);
    assert_int_equal(e.http, 429);
    api_render_error(&b, &e);
    root = read_back(&b);
    assert_string_equal(json_string_value(at(root, "error.code")), "queue_full");
    assert_true(json_is_null(at(root, "error.param")));
    json_decref(root);
}

static void the_error_of_a_field_is_a_sentence_that_begins_with_it(void **state) {
    (void)state;
    struct api_error e;
    assert_false(api_error_field(&e, "stop", "must be a string, not %s", "a number"));
    assert_string_equal(e.message, "stop must be a string, not a number.");
    assert_string_equal(e.param, "stop");
    assert_false(api_error_field(&e, "stop", "[%d] is empty", 3));
    assert_string_equal(e.message, "stop[3] is empty.");
    assert_string_equal(e.type, API_INVALID);
    assert_int_equal(e.http, 400);
    char name[1000];
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = 0;
    assert_false(api_error_field(&e, name, "%s", name)); /* cut, not overrun */
    assert_int_equal(strlen(e.param), sizeof e.param - 1);
    assert_false(api_error_no_memory(&e));
    assert_int_equal(e.http, 500);
    assert_string_equal(e.code, "out_of_memory");
}

static void tokens_are_spelled_as_text_or_bytes(void **state) {
    (void)state;
    struct buf b = {0};
    for (int32_t id = 0; id < 5; id++) api_put_token(&b, id, false, &vocab);
    size_t len;
    char *got = buf_take(&b, &len);
    assert_string_equal(got, "\"He\"\"llo\"\"bytes:\\\\xe2\\\\x80\"\"\\\"quote\\n\"\"token_id:4\"");
    free(got);
}

static const struct answer_form *const forms[] = {&completions_form, &chats_form};

static void put_head(struct buf *out, const struct answer_form *form, const char *id, const char *model) {
    const struct api_request request = {0};
    struct answer a = {.request = &request, .served_model = model, .fingerprint = "fp", .created_unix_s = 12};
    snprintf(a.id, sizeof a.id, "%s", id);
    api_put_head(out, form->style, true, &a);
}

static void legacy_logprobs_are_parallel_arrays(void **state) {
    (void)state;
    struct rod_logprob top[] = {{1, -0.5f}, {3, -2}};
    struct rod_token tokens[] = {{0, -3, 0, 2, top}, {1, -0.5f, 0, 2, top}, {2, -INFINITY, 0, 0, NULL}};
    struct api_logprobs l = {0};
    struct buf b = {0}, prefix = {0};
    for (int i = 0; i < 3; i++) completions_form.style->score(&l, &tokens[i], true, &vocab);
    struct api_choice c = {.index = 3, .text = "Hello", .text_len = 5, .logprobs = &l, .stop_id = -1};
    put_head(&prefix, &completions_form, "id7", "m \"x\"");
    api_render_chunk(&b, completions_form.style, &prefix, &c, NULL, false);
    json_t *root = read_back(&b);
    assert_string_equal(json_string_value(at(root, "id")), "cmpl-id7");
    assert_string_equal(json_string_value(at(root, "object")), "text_completion");
    assert_string_equal(json_string_value(at(root, "model")), "m \"x\"");
    assert_int_equal(json_integer_value(at(root, "choices.0.index")), 3);
    assert_string_equal(json_string_value(at(root, "choices.0.logprobs.tokens.1")), "llo");
    assert_float_equal(json_real_value(at(root, "choices.0.logprobs.token_logprobs.1")), -0.5, 0);
    assert_float_equal(json_real_value(at(root, "choices.0.logprobs.token_logprobs.2")), -1e30, 0);
    assert_int_equal(json_object_size(at(root, "choices.0.logprobs.top_logprobs.0")), 3); /* the sampled one is added */
    assert_int_equal(json_object_size(at(root, "choices.0.logprobs.top_logprobs.1")), 2);
    assert_int_equal(json_integer_value(at(root, "choices.0.logprobs.text_offset.2")), 5);
    assert_true(json_is_null(at(root, "choices.0.finish_reason")));
    json_decref(root);
    api_logprobs_clear(&l);
    completions_form.style->score(&l, tokens, true, &vocab);
    assert_memory_equal(l.offsets.data, "6", 1); /* the half character counts once; offsets go on over chunks */
    api_logprobs_fini(&l);
    buf_fini(&prefix);
}

/* "\xe2\x80" alone, twice in a row, and before a token that is not in the text: one U+FFFD each. */
static void offsets_count_the_characters_of_the_text(void **state) {
    (void)state;
    static const struct {
        int32_t id;
        bool shown;
    } tokens[] = {{2, true}, {2, true}, {0, true}, {1, false}, {1, true}, {2, true}, {1, false}, {0, true}};
    struct api_logprobs l = {0};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        const struct rod_token token = {.id = tokens[i].id};
        completions_form.style->score(&l, &token, tokens[i].shown, &vocab);
    }
    buf_putc(&l.offsets, 0);
    assert_string_equal(l.offsets.data, "0,1,2,4,4,7,8,8");
    assert_int_equal(l.n_chars, 10);
    api_logprobs_fini(&l);
}

static void chat_logprobs_hold_bytes(void **state) {
    (void)state;
    struct rod_logprob top[] = {{2, -0.25f}};
    struct rod_token tokens[] = {{2, -0.25f, 0, 1, top}};
    struct api_logprobs l = {0};
    struct buf b = {0}, prefix = {0};
    chats_form.style->score(&l, tokens, true, &vocab);
    struct api_choice c = {.text = "", .logprobs = &l, .stop_id = -1};
    put_head(&prefix, &chats_form, "i", "m");
    api_render_chunk(&b, chats_form.style, &prefix, &c, NULL, true);
    json_t *root = read_back(&b);
    assert_string_equal(json_string_value(at(root, "object")), "chat.completion.chunk");
    assert_int_equal(json_integer_value(at(root, "choices.0.logprobs.content.0.bytes.1")), 0x80);
    assert_string_equal(json_string_value(at(root, "choices.0.logprobs.content.0.top_logprobs.0.token")),
                        "bytes:\\xe2\\x80");
    assert_true(json_is_null(at(root, "usage")));
    json_decref(root);
    api_logprobs_fini(&l);
    buf_fini(&prefix);
}

static void chat_chunks_are_role_then_content_then_finish(void **state) {
    (void)state;
    struct buf b = {0}, prefix = {0};
    struct api_usage usage = {.prompt_tok = 5, .completion_tok = 2, .cached_tok = 1};
    struct api_choice c = {.role = true, .text = "", .stop_id = -1};
    put_head(&prefix, &chats_form, "i", "m");
    api_render_chunk(&b, chats_form.style, &prefix, &c, NULL, false);
    json_t *root = read_back(&b);
    assert_string_equal(json_string_value(at(root, "choices.0.delta.role")), "assistant");
    assert_string_equal(json_string_value(at(root, "choices.0.delta.content")), "");
    assert_null(json_object_get(root, "usage"));
    json_decref(root);
    c = (struct api_choice){
        .text = "", .finished = true, .reason = ROD_FINISH_STOP, .stop_string = "END", .stop_id = -1};
    api_render_chunk(&b, chats_form.style, &prefix, &c, &usage, true);
    root = read_back(&b);
    assert_int_equal(json_object_size(at(root, "choices.0.delta")), 0);
    assert_string_equal(json_string_value(at(root, "choices.0.finish_reason")), "stop");
    assert_string_equal(json_string_value(at(root, "choices.0.stop_reason")), "END");
    assert_int_equal(json_integer_value(at(root, "usage.total_tokens")), 7);
    json_decref(root);
    api_render_usage_chunk(&b, &prefix, &usage);
    root = read_back(&b);
    assert_int_equal(json_array_size(at(root, "choices")), 0);
    assert_int_equal(json_integer_value(at(root, "usage.prompt_tokens_details.cached_tokens")), 1);
    json_decref(root);
    buf_fini(&prefix);
}

static void whole_answers_hold_all_choices(void **state) {
    (void)state;
    struct buf b = {0}, prefix = {0}, ids = {0}, prompt = {0};
    buf_puts(&ids, "1,2");
    buf_puts(&prompt, "7");
    struct api_usage usage = {.prompt_tok = 1, .completion_tok = 4};
    struct api_choice c[2] = {{.index = 0,
                               .text = "a",
                               .text_len = 1,
                               .finished = true,
                               .reason = ROD_FINISH_LENGTH,
                               .stop_id = -1,
                               .token_ids = &ids,
                               .prompt_ids = &prompt},
                              {.index = 1, .text = "b", .text_len = 1, .finished = true, .stop_id = 42}};
    for (int chat = 0; chat < 2; chat++) {
        put_head(&prefix, forms[chat], "i", "m");
        api_render_answer(&b, forms[chat]->style, &prefix, c, 2, &usage);
        json_t *root = read_back(&b);
        assert_string_equal(json_string_value(at(root, chat ? "choices.1.message.content" : "choices.1.text")), "b");
        assert_string_equal(json_string_value(at(root, "choices.0.finish_reason")), "length");
        assert_int_equal(json_integer_value(at(root, "choices.1.stop_reason")), 42);
        assert_int_equal(json_array_size(at(root, "choices.0.token_ids")), 2);
        assert_int_equal(json_integer_value(at(root, chat ? "prompt_token_ids.0" : "choices.0.prompt_token_ids.0")), 7);
        json_decref(root);
        buf_fini(&prefix);
    }
    buf_fini(&ids);
    buf_fini(&prompt);
}

/* Memory that ran out while a part was made must not make an answer that has less in it. */
static void an_answer_with_a_part_that_was_cut_short_has_failed(void **state) {
    (void)state;
    struct api_logprobs l = {0};
    struct buf prefix = {0}, ids = {0}, prompt_ids = {0}, scores = {0};
    struct {
        const char *name;
        struct buf *part;
        bool of_chats;
    } parts[] = {{"prefix", &prefix, true},         {"tokens", &l.tokens, true},       {"values", &l.values, false},
                 {"tops", &l.tops, false},          {"offsets", &l.offsets, false},    {"ids", &ids, true},
                 {"prompt_ids", &prompt_ids, true}, {"prompt_logprobs", &scores, true}};
    const struct api_usage usage = {.prompt_tok = 1, .completion_tok = 1};
    const struct api_choice c = {.text = "",
                                 .stop_id = -1,
                                 .logprobs = &l,
                                 .token_ids = &ids,
                                 .prompt_ids = &prompt_ids,
                                 .prompt_logprobs = &scores};
    for (size_t i = 0; i <= sizeof parts / sizeof *parts; i++) { /* and none of them */
        const bool any = i < sizeof parts / sizeof *parts;
        for (int chat = 0; chat < 2; chat++) {
            struct buf chunk = {0}, whole = {0};
            const bool wanted = any && (!chat || parts[i].of_chats);
            if (any) parts[i].part->failed = true;
            api_render_chunk(&chunk, forms[chat]->style, &prefix, &c, NULL, false);
            api_render_answer(&whole, forms[chat]->style, &prefix, &c, 1, &usage);
            if (any) parts[i].part->failed = false;
            if (chunk.failed != wanted || whole.failed != wanted)
                fail_msg("chat %d, %s: the chunk has failed: %d, the answer: %d, wanted: %d", chat,
                         any ? parts[i].name : "none", chunk.failed, whole.failed, wanted);
            buf_fini(&chunk);
            buf_fini(&whole);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_have_the_openai_form),
        cmocka_unit_test(the_error_of_a_field_is_a_sentence_that_begins_with_it),
        cmocka_unit_test(tokens_are_spelled_as_text_or_bytes),
        cmocka_unit_test(legacy_logprobs_are_parallel_arrays),
        cmocka_unit_test(offsets_count_the_characters_of_the_text),
        cmocka_unit_test(chat_logprobs_hold_bytes),
        cmocka_unit_test(chat_chunks_are_role_then_content_then_finish),
        cmocka_unit_test(whole_answers_hold_all_choices),
        cmocka_unit_test(an_answer_with_a_part_that_was_cut_short_has_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
