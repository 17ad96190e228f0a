/* test_session_answer.c - answers kept for their keys: bodies and lists of them. */
#include "engine/sched/mailbox.h"
#include "engine/session/store/session_answer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void end_with(struct session_answer *a, uint64_t n_tok, size_t n_text) {
    char *text = malloc(n_text + 1);
    memset(text, 'x', n_text);
    text[n_text] = 0;
    struct rod_event end = {
        .kind = ROD_EVENT_FINISH, .text = text, .text_len = n_text, .completion_tok = n_tok, .stop_id = -1};
    assert_int_equal(session_answer_add(a, &end), 0);
    free(text);
}

static void answers_make_room_and_their_keys_stay(void **state) {
    (void)state;
    struct session_answers *list = NULL;
    struct session_answer_found found;
    char key[16];
    uint8_t digest[16] = {0};
    for (uint64_t i = 0; i < 100; i++) {
        struct session_answer a = {0};
        end_with(&a, i, 20000);
        snprintf(key, sizeof key, "key %llu", (unsigned long long)i);
        digest[0] = (uint8_t)i;
        struct session_answers *next = session_answers_add(list, key, digest, i + 1, &a);
        assert_non_null(next);
        session_answers_release(list);
        list = next;
        session_answer_free(&a);
        assert_true(list->n < SESSION_ANSWER_LIST_BYTES + 40000);
    }
    for (uint64_t i = 0; i < 100; i++) {
        snprintf(key, sizeof key, "key %llu", (unsigned long long)i);
        assert_true(session_answers_find(list, key, &found));
        assert_int_equal(found.version, i + 1);
        assert_int_equal(found.digest[0], i);
        assert_int_equal(found.n != 0, i >= 100 - 13 - 1); /* as many as 256 KiB hold, and the newest */
    }
    assert_false(session_answers_find(list, "key", &found));
    assert_false(session_answers_find(NULL, "key", &found));
    for (uint64_t i = 100; i < 400; i++) {
        struct session_answer a = {0};
        end_with(&a, i, 0);
        snprintf(key, sizeof key, "key %llu", (unsigned long long)i);
        struct session_answers *next = session_answers_add(list, key, digest, i + 1, &a);
        session_answers_release(list);
        list = next;
        session_answer_free(&a);
    }
    assert_false(session_answers_find(list, "key 143", &found)); /* 256 keys */
    assert_true(session_answers_find(list, "key 144", &found));
    struct session_answers *again;
    assert_int_equal(session_answers_parse(list->bytes, list->n, &again, NULL), 0);
    assert_int_equal(again->n, list->n);
    session_answers_release(again);
    assert_int_equal(session_answers_parse(list->bytes, list->n - 1, &again, NULL), ROD_ESTATE);
    assert_null(again);
    session_answers_release(list);
}

static void an_answer_that_is_no_text_is_damaged(void **state) {
    (void)state;
    static const char *const texts[] = {"a word",
                                        "gr\xc3\xb6\xc3\x9f"
                                        "e",
                                        "\xff", "half \xe2\x82", "\xed\xa0\x80"};
    for (size_t i = 0; i < 5; i++)
        for (int in_stop = 0; in_stop < 2; in_stop++) {
            struct session_answer a = {0};
            struct rod_event end = {.kind = ROD_EVENT_FINISH, .text = (char *)"", .stop_id = -1};
            if (in_stop)
                end.stop_string = (char *)(uintptr_t)texts[i];
            else
                end.text = (char *)(uintptr_t)texts[i], end.text_len = strlen(texts[i]);
            assert_int_equal(session_answer_add(&a, &end), 0);
            assert_int_equal(session_answer_check(a.bytes, a.n), i < 2);
            session_answer_free(&a);
        }
}

static void a_log_probability_that_json_cannot_hold_is_damage(void **state) {
    (void)state;
    static const float values[] = {-0.5f, 0, -INFINITY, INFINITY, NAN, -NAN};
    for (size_t i = 0; i < 6; i++)
        for (int in_top = 0; in_top < 2; in_top++) {
            struct session_answer a = {0};
            struct rod_logprob top[] = {{7, -1}, {8, in_top ? values[i] : -2}};
            struct rod_token token = {.id = 7, .logprob = in_top ? -1 : values[i], .top = top, .n_top = 2};
            const struct rod_event delta = {
                .kind = ROD_EVENT_DELTA, .text = (char *)"", .tokens = &token, .n_tokens = 1};
            const struct rod_event end = {.kind = ROD_EVENT_FINISH, .text = (char *)"", .stop_id = -1};
            assert_int_equal(session_answer_add(&a, &delta), 0);
            assert_int_equal(session_answer_add(&a, &end), 0);
            assert_int_equal(session_answer_check(a.bytes, a.n), i < 3);
            session_answer_free(&a);
        }
}

static void an_answer_has_its_label_again(void **state) {
    (void)state;
    static const char *const labels[] = {"id 12 na\xc3\xafve", "\xff", "", NULL};
    for (size_t i = 0; i < 4; i++) {
        struct session_answer a = {0};
        struct mailbox_events events = {0};
        struct rod_event end = {.kind = ROD_EVENT_FINISH, .text = (char *)"x", .text_len = 1, .stop_id = -1};
        end.stop_string = (char *)"stop";
        if (labels[i]) assert_int_equal(session_answer_label(&a, labels[i]), 0);
        assert_int_equal(session_answer_add(&a, &end), 0);
        const bool good = i == 0 || !labels[i];
        assert_int_equal(session_answer_check(a.bytes, a.n), good);
        assert_int_equal(session_answer_events(a.bytes, a.n, &events, NULL), good ? 0 : ROD_ESTATE);
        if (good) {
            const struct rod_event *e = &event_of_link(events.head)->pub;
            assert_string_equal(e->stop_string, "stop");
            assert_string_equal(e->text, "x");
            assert_string_equal(e->label ? e->label : "none", labels[i] ? labels[i] : "none");
            event_free(event_of_link(events.head));
        }
        for (size_t n = 0; n < a.n; n++) assert_false(session_answer_check(a.bytes, n)); /* no part is one */
        session_answer_free(&a);
    }
}

static void an_answer_has_all_its_counts_again(void **state) {
    (void)state;
    for (uint64_t with = 0; with < 16; with++) { /* each of the four counts is there or not */
        struct session_answer a = {0};
        struct mailbox_events events = {0};
        const uint64_t created = with & 1 ? 64 : 0, long_created = with & 2 ? 65 : 0, accepted = with & 4 ? 66 : 0,
                       rejected = with & 8 ? 67 : 0;
        const struct rod_event end = {.kind = ROD_EVENT_FINISH,
                                      .text = (char *)"x",
                                      .text_len = 1,
                                      .stop_id = -1,
                                      .prompt_tok = 68,
                                      .cached_tok = 69,
                                      .completion_tok = 70,
                                      .created_tok = created,
                                      .created_long_tok = long_created,
                                      .accepted_tok = accepted,
                                      .rejected_tok = rejected};
        assert_int_equal(session_answer_add(&a, &end), 0);
        assert_true(session_answer_check(a.bytes, a.n));
        assert_int_equal(session_answer_events(a.bytes, a.n, &events, NULL), 0);
        const struct rod_event *e = &event_of_link(events.head)->pub;
        assert_int_equal(e->prompt_tok, 68);
        assert_int_equal(e->cached_tok, 69);
        assert_int_equal(e->completion_tok, 70);
        assert_int_equal(e->created_tok, created);
        assert_int_equal(e->created_long_tok, long_created);
        assert_int_equal(e->accepted_tok, accepted);
        assert_int_equal(e->rejected_tok, rejected);
        event_free(event_of_link(events.head));
        for (size_t n = 0; n < a.n; n++) assert_false(session_answer_check(a.bytes, n));
        session_answer_free(&a);
    }
}

static void an_answer_is_looked_at_with_its_text(void **state) {
    (void)state;
    struct rod_token token = {.id = 1};
    struct rod_event delta = {.kind = ROD_EVENT_DELTA, .text = (char *)"Once ", .text_len = 5, .tokens = &token};
    delta.n_tokens = 1;
    for (int with = 0; with < 4; with++) { /* a label, a text, or not */
        struct session_answer a = {0};
        struct session_answer_found found;
        struct rod_answer seen;
        if (with & 1) assert_int_equal(session_answer_label(&a, "id"), 0);
        if (with & 2) assert_int_equal(session_answer_text(&a, "{\"na\xc3\xafve\"}"), 0);
        for (int i = 0; i < 2; i++) assert_int_equal(session_answer_add(&a, &delta), 0);
        end_with(&a, 3, 2);
        assert_true(session_answer_check(a.bytes, a.n));
        struct session_answers *list = session_answers_add(NULL, "k", (const uint8_t[16]){9}, 7, &a), *more;
        more = session_answers_add(list, "later", (const uint8_t[16]){8}, 8, &(struct session_answer){0});
        assert_true(session_answers_first(more, &found));
        assert_int_equal(session_answer_read(&found, &seen, NULL), 0);
        assert_int_equal(seen.version, 7);
        assert_int_equal(seen.digest[0], 9);
        assert_string_equal(seen.label, with & 1 ? "id" : "");
        assert_string_equal(seen.text ? seen.text : "none", with & 2 ? "{\"na\xc3\xafve\"}" : "none");
        assert_int_equal(seen.n_text, seen.text ? strlen(seen.text) : 0);
        assert_string_equal(seen.output, "Once Once xx");
        assert_int_equal(seen.n_output, 12);
        assert_int_equal(seen.completion_tok, 3);
        free(seen.label);
        found.n = found.n - 1;
        assert_int_equal(session_answer_read(&found, &seen, NULL), ROD_ESTATE);
        found.n = 0;
        assert_int_equal(session_answer_read(&found, &seen, NULL), 0);
        assert_true(!seen.label && !seen.text && !seen.output && seen.version == 7);
        session_answers_release(list);
        session_answers_release(more);
        session_answer_free(&a);
    }
    struct session_answer_found none;
    assert_false(session_answers_first(NULL, &none));
}

/* So an earlier version reads it: as an event that it shows to nobody. */
static void a_text_is_an_end_token_before_the_answer(void **state) {
    (void)state;
    struct session_answer a = {0};
    struct mailbox_events events = {0};
    assert_int_equal(session_answer_label(&a, "id"), 0);
    assert_int_equal(session_answer_text(&a, "asked"), 0);
    end_with(&a, 1, 1);
    assert_int_equal(session_answer_events(a.bytes, a.n, &events, NULL), 0);
    struct event *first = event_of_link(events.head), *last = event_of_link(events.head->next);
    assert_int_equal(first->pub.kind, ROD_EVENT_END_TOKEN);
    assert_string_equal(first->pub.text, "asked");
    assert_string_equal(first->pub.label, "id");
    assert_int_equal(last->pub.kind, ROD_EVENT_FINISH);
    assert_null(last->pub.label);
    event_free(first);
    event_free(last);
    session_answer_free(&a);
}

static void an_answer_that_is_too_long_is_a_key_alone(void **state) {
    (void)state;
    struct session_answer a = {0};
    struct session_answer_found found;
    char *text = calloc(1, 1 << 20);
    struct rod_token token = {.id = 1};
    struct rod_event delta = {
        .kind = ROD_EVENT_DELTA, .text = text, .text_len = 1 << 20, .tokens = &token, .n_tokens = 1};
    for (int i = 0; i < 20; i++) assert_int_equal(session_answer_add(&a, &delta), 0);
    end_with(&a, 20, 0);
    assert_true(a.too_long && a.n <= SESSION_ANSWER_BODY_BYTES);
    struct session_answers *list = session_answers_add(NULL, "k", (const uint8_t[16]){0}, 1, &a);
    assert_true(session_answers_find(list, "k", &found));
    assert_int_equal(found.n, 0);
    session_answers_release(list);
    session_answer_free(&a);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_make_room_and_their_keys_stay),
        cmocka_unit_test(an_answer_that_is_no_text_is_damaged),
        cmocka_unit_test(a_log_probability_that_json_cannot_hold_is_damage),
        cmocka_unit_test(an_answer_has_its_label_again),
        cmocka_unit_test(an_answer_has_all_its_counts_again),
        cmocka_unit_test(an_answer_is_looked_at_with_its_text),
        cmocka_unit_test(a_text_is_an_end_token_before_the_answer),
        cmocka_unit_test(an_answer_that_is_too_long_is_a_key_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
