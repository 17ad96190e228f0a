/* test_recall.c - answers come back as the tokens that were said, to their owner alone. */
#include "server/completion/recall.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct rod_message message(const char *role, const char *content) {
    return (struct rod_message){.role = role, .content = content, .content_len = strlen(content)};
}
static struct rod_call call_of(const char *id, const char *name, const char *arguments) {
    return (struct rod_call){name, arguments, strlen(name), strlen(arguments), id};
}
static const struct recall_scope of_anna = {.tenant = "anna"};

/* The first token of the answer at message i as it comes back, -1: it stays text. */
static int32_t back(struct recall *r, const struct recall_scope *scope, const struct rod_message *messages, size_t n,
                    size_t i) {
    struct rod_message copy[8];
    assert_true(n <= 8 && i < n);
    memcpy(copy, messages, n * sizeof *copy);
    recall_find(r, scope, copy, n);
    const int32_t first = copy[i].ids ? copy[i].ids[0] : -1;
    for (size_t k = 0; k < n; k++) free((void *)copy[k].ids);
    return first;
}
static void put(struct recall *r, const struct recall_scope *scope, const struct rod_message *before, size_t n,
                struct rod_message answer, int32_t id) {
    struct rod_message copy[8];
    memcpy(copy, before, n * sizeof *copy);
    const struct recall_place place = recall_find(r, scope, copy, n);
    for (size_t k = 0; k < n; k++) free((void *)copy[k].ids);
    const int32_t ids[] = {id, id + 1};
    answer.ids = ids, answer.n_ids = 2;
    recall_put(r, scope->tenant, place, &answer);
}

static void an_answer_is_found_behind_what_stood_before_it_alone(void **state) {
    (void)state;
    struct recall *r = recall_new(1 << 20, 7);
    const struct rod_message m[] = {message("system", "s"), message("user", "a"),      message("assistant", "b"),
                                    message("user", "c"),   message("assistant", "d"), message("user", "e")};
    put(r, &of_anna, m, 2, m[2], 100);
    put(r, &of_anna, m, 4, m[4], 200);
    assert_int_equal(back(r, &of_anna, m, 6, 2), 100);
    assert_int_equal(back(r, &of_anna, m, 6, 4), 200);
    struct rod_message other[6];
    memcpy(other, m, sizeof other);
    other[0] = message("system", "t");
    assert_int_equal(back(r, &of_anna, other, 6, 2), -1);
    assert_int_equal(back(r, &of_anna, other, 6, 4), -1);
    memcpy(other, m, sizeof other);
    other[2] = message("assistant", "b "); /* without an id another text is another answer */
    assert_int_equal(back(r, &of_anna, other, 6, 2), -1);
    assert_int_equal(back(r, &of_anna, other, 6, 4), -1);
    recall_close(r);
}

static void owner_salt_and_tools_part_answers(void **state) {
    (void)state;
    struct recall *r = recall_new(1 << 20, 7);
    const struct rod_message m[] = {message("user", "a"), message("assistant", "b")};
    static const char *const tools[] = {"{}", "{ }"};
    const struct recall_scope scopes[] = {{.tenant = "anna"},
                                          {.tenant = "bert"},
                                          {.tenant = "anna", .salt = "x"},
                                          {.tenant = "annax"},
                                          {.tenant = "anna", .tools = tools, .n_tools = 1},
                                          {.tenant = "anna", .tools = tools + 1, .n_tools = 1},
                                          {.tenant = "anna", .tools = tools, .n_tools = 2}};
    for (int i = 0; i < 7; i++) {
        for (int k = 0; k < 7; k++) assert_int_equal(back(r, &scopes[k], m, 2, 1), k < i ? 100 * k : -1);
        put(r, &scopes[i], m, 1, m[1], 100 * i);
    }
    recall_close(r);
}

static void a_call_known_by_its_id_may_come_back_spelt_otherwise(void **state) {
    (void)state;
    struct recall *r = recall_new(1 << 20, 7);
    const struct rod_call said = call_of("c1", "edit", "{ \"a\": 1.0,\n \"b\": [{\"c\": 2}] }");
    struct rod_message m[] = {message("user", "a"), message("assistant", ""), message("tool", "r"),
                              message("assistant", "z"), message("user", "e")};
    m[1].calls = &said, m[1].n_calls = 1;
    put(r, &of_anna, m, 1, m[1], 100);
    put(r, &of_anna, m, 3, m[3], 200);
    static const struct {
        const char *id, *name, *arguments;
        bool is;
    } cases[] = {
        {"c1", "edit", "{\"b\":[{\"c\":2}],\"a\":1.0}", true},
        {"c1", "edit", "{\"b\":[{\"c\":2}],\"a\":1.0,\"replace_all\":false}", true},
        {"c1", "edit", "{\"b\":[{\"c\":2,\"d\":0}],\"a\":1.0}", true},
        {"c1", "edit", "{\"b\":[{\"c\":2}],\"a\":1}", true},
        {"c1", "edit", "{\"b\":[{\"c\":2},1],\"a\":1}", false},
        {"c1", "edit", "{\"b\":[{\"c\":2}],\"a\":\"1\"}", false},
        {"c1", "edit", "{\"b\":[{\"c\":3}],\"a\":1.0}", false},
        {"c1", "edit", "{\"a\":1.0}", false},
        {"c1", "read", "{\"b\":[{\"c\":2}],\"a\":1.0}", false},
        {"c2", "edit", "{\"b\":[{\"c\":2}],\"a\":1.0}", false},
        {NULL, "edit", "{\"b\":[{\"c\":2}],\"a\":1.0}", false},
        {NULL, "edit", "{ \"a\": 1.0,\n \"b\": [{\"c\": 2}] }", true},
        {"c1", "edit", "no JSON", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct rod_call sent = call_of(cases[i].id, cases[i].name, cases[i].arguments);
        m[1].calls = &sent;
        if (back(r, &of_anna, m, 5, 1) != (cases[i].is ? 100 : -1)) fail_msg("case %zu", i);
        if (back(r, &of_anna, m, 5, 3) != (cases[i].is ? 200 : -1)) fail_msg("behind case %zu", i);
    }
    recall_close(r);
}

/* What was said behind other tokens of equal text was said elsewhere. */
static void an_answer_is_found_behind_the_tokens_that_it_was_said_behind(void **state) {
    (void)state;
    struct recall *r = recall_new(1 << 20, 7);
    const struct rod_message m[] = {message("user", "a"), message("assistant", "b"), message("user", "c"),
                                    message("assistant", "d"), message("user", "e")};
    put(r, &of_anna, m, 1, m[1], 100);
    put(r, &of_anna, m, 3, m[3], 200);
    assert_int_equal(back(r, &of_anna, m, 5, 3), 200);
    put(r, &of_anna, m, 1, m[1], 300); /* the same text by other tokens */
    assert_int_equal(back(r, &of_anna, m, 5, 1), 300);
    assert_int_equal(back(r, &of_anna, m, 5, 3), -1);
    recall_close(r);
}

static void of_many_answers_at_one_place_the_latest_stay(void **state) {
    (void)state;
    struct recall *r = recall_new(1 << 20, 7);
    char text[16];
    struct rod_message m[] = {message("user", "a"), message("assistant", text)};
    for (int i = 0; i < 100; i++) {
        snprintf(text, sizeof text, "%d", i);
        m[1] = message("assistant", text);
        put(r, &of_anna, m, 1, m[1], i);
        put(r, &of_anna, m, 1, m[1], i);
        assert_int_equal(back(r, &of_anna, m, 2, 1), i);
        assert_int_equal(recall_count(r).n_answers, i < 8 ? i + 1 : 8);
    }
    recall_close(r);
}

static void a_tenant_s_oldest_answers_go_first_and_leave_others_alone(void **state) {
    (void)state;
    enum { BUDGET = 64 << 10 };
    struct recall *r = recall_new(BUDGET, 7);
    const struct recall_scope of_bert = {.tenant = "bert"};
    const struct rod_message of_b[] = {message("user", "a"), message("assistant", "b")};
    put(r, &of_bert, of_b, 1, of_b[1], 500);
    char text[16];
    for (int i = 0; i < 2000; i++) {
        snprintf(text, sizeof text, "%d", i);
        const struct rod_message m[] = {message("user", text), message("assistant", text)};
        put(r, &of_anna, m, 1, m[1], i);
        assert_int_equal(back(r, &of_anna, m, 2, 1), i);
        assert_true(recall_count(r).bytes <= BUDGET / 4 + 1000);
    }
    const struct rod_message first[] = {message("user", "0"), message("assistant", "0")};
    assert_int_equal(back(r, &of_anna, first, 2, 1), -1);
    assert_int_equal(back(r, &of_bert, of_b, 2, 1), 500);
    recall_close(r);
}

static void a_name_has_the_tools_of_its_prompts_the_latest_first(void **state) {
    (void)state;
    struct recall *r = recall_new(1 << 20, 7);
    char *text;
    size_t n;
    assert_null(recall_tools(r, "anna", "n", 0, &n));
    assert_true(recall_put_tools(r, "anna", "n", "{1}\n{2}", 7));
    assert_true(recall_put_tools(r, "anna", "n", "{3}", 3));
    assert_false(recall_put_tools(r, "anna", "n", "{1}\n{2}", 7));
    text = recall_tools(r, "anna", "n", 0, &n);
    assert_string_equal(text, "{1}\n{2}");
    assert_int_equal(n, 7);
    free(text);
    text = recall_tools(r, "anna", "n", 1, &n);
    assert_string_equal(text, "{3}");
    free(text);
    assert_null(recall_tools(r, "anna", "n", 2, &n));
    assert_null(recall_tools(r, "anna", "m", 0, &n));
    assert_null(recall_tools(r, "bert", "n", 0, &n));
    recall_close(r);
}

static void what_was_read_of_notes_is_known_until_something_had_to_go(void **state) {
    (void)state;
    struct recall *r = recall_new(40000, 7);
    const struct rod_message m[] = {message("user", "a"), message("assistant", "b")};
    struct recall_seen seen = recall_get_seen(r, "anna", "n");
    assert_true(!seen.inode && !seen.n_bytes);
    seen.inode = 5, seen.n_bytes = 100;
    recall_put_seen(r, "anna", "n", &seen);
    seen.n_bytes = 200;
    recall_put_seen(r, "anna", "n", &seen);
    seen = recall_get_seen(r, "anna", "n");
    assert_true(seen.inode == 5 && seen.n_bytes == 200);
    assert_int_equal(recall_get_seen(r, "anna", "m").n_bytes, 0);
    assert_int_equal(recall_get_seen(r, "bert", "n").n_bytes, 0);
    char name[8];
    for (int i = 0; i < 100; i++) { /* more than a quarter of the budget */
        snprintf(name, sizeof name, "n%d", i);
        struct recall_scope scope = {.tenant = "anna", .salt = name};
        put(r, &scope, m, 1, m[1], i);
        if (i == 2) assert_int_equal(recall_get_seen(r, "anna", "n").n_bytes, 200);
    }
    assert_int_equal(recall_get_seen(r, "anna", "n").n_bytes, 0);
    seen = recall_get_seen(r, "anna", "n");
    seen.n_bytes = 300;
    recall_put_seen(r, "anna", "n", &seen);
    assert_int_equal(recall_get_seen(r, "anna", "n").n_bytes, 300);
    recall_close(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_found_behind_what_stood_before_it_alone),
        cmocka_unit_test(owner_salt_and_tools_part_answers),
        cmocka_unit_test(a_call_known_by_its_id_may_come_back_spelt_otherwise),
        cmocka_unit_test(an_answer_is_found_behind_the_tokens_that_it_was_said_behind),
        cmocka_unit_test(of_many_answers_at_one_place_the_latest_stay),
        cmocka_unit_test(a_tenant_s_oldest_answers_go_first_and_leave_others_alone),
        cmocka_unit_test(a_name_has_the_tools_of_its_prompts_the_latest_first),
        cmocka_unit_test(what_was_read_of_notes_is_known_until_something_had_to_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
