/* test_note.c - what is kept of a conversation comes back from its bytes, and from no others. */
#include "server/completion/note.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { VOCAB = 1000 };

static const struct rod_call calls[] = {{"edit", "{\"a\": 1}", 4, 8, "call_1"}, {"look", "", 4, 0, NULL}};
static const int32_t ids[] = {0, 999, 7};
static const struct rod_message answer = {
    .role = "assistant", .content = "a\0b", .content_len = 3, .calls = calls, .n_calls = 2, .ids = ids, .n_ids = 3};
static const struct recall_place place = {0x0123456789abcdef, UINT64_MAX};

static void an_answer_comes_back(void **state) {
    (void)state;
    struct buf out = {0};
    struct note note;
    note_put_answer(&out, place, &answer);
    assert_true(note_read(out.data, out.len, VOCAB, &note));
    assert_int_equal(note.kind, NOTE_ANSWER);
    assert_true(note.place.low == place.low && note.place.high == place.high);
    const struct rod_message *m = &note.answer;
    assert_string_equal(m->role, "assistant");
    assert_int_equal(m->n_ids, 3);
    assert_memory_equal(m->ids, ids, sizeof ids);
    assert_int_equal(m->content_len, 3);
    assert_memory_equal(m->content, "a\0b", 3);
    assert_int_equal(m->n_calls, 2);
    assert_memory_equal(m->calls[0].arguments, calls[0].arguments, 8);
    assert_string_equal(m->calls[0].id, "call_1");
    assert_true(m->calls[1].name_len == 4 && !m->calls[1].arguments_len && !m->calls[1].id);
    note_fini(&note);
    buf_fini(&out);
}

static void tools_come_back(void **state) {
    (void)state;
    struct buf out = {0};
    struct note note;
    note_put_tools(&out, "{1}\n{2}", 7);
    assert_true(note_read(out.data, out.len, VOCAB, &note));
    assert_int_equal(note.kind, NOTE_TOOLS);
    assert_int_equal(note.n_tools, 7);
    assert_memory_equal(note.tools, "{1}\n{2}", 7);
    note_fini(&note);
    buf_fini(&out);
}

static void no_other_length_is_a_note(void **state) {
    (void)state;
    struct buf out = {0};
    struct note note;
    note_put_answer(&out, place, &answer);
    const size_t n = out.len;
    buf_putc(&out, 0);
    for (size_t i = 0; i <= n + 1; i++)
        if (note_read(out.data, i, VOCAB, &note) != (i == n))
            fail_msg("%zu of %zu bytes", i, n);
        else
            note_fini(&note);
    buf_fini(&out);
}

static void another_version_or_kind_is_no_note(void **state) {
    (void)state;
    struct buf out = {0};
    struct note note;
    note_put_tools(&out, "{}", 2);
    for (int at = 0; at < 2; at++) {
        const char was = out.data[at];
        out.data[at] = 9;
        assert_false(note_read(out.data, out.len, VOCAB, &note));
        out.data[at] = was;
    }
    assert_true(note_read(out.data, out.len, VOCAB, &note));
    buf_fini(&out);
}

static void a_token_beyond_the_vocabulary_is_no_token(void **state) {
    (void)state;
    struct buf out = {0};
    struct note note;
    note_put_answer(&out, place, &answer);
    assert_false(note_read(out.data, out.len, 999, &note));
    buf_fini(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_comes_back),
        cmocka_unit_test(tools_come_back),
        cmocka_unit_test(no_other_length_is_a_note),
        cmocka_unit_test(another_version_or_kind_is_no_note),
        cmocka_unit_test(a_token_beyond_the_vocabulary_is_no_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
