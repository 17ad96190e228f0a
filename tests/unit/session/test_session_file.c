/* test_session_file.c - a session's file of the version before narrow formats is read, and is written again with the
 * same bytes. A server of that version refuses the same session in another format. */
#include "engine/session/store/session_file.h"
#include "engine/state/state_convert.h"
#include "tests/read_file.h"

#include <string.h>

static size_t bytes_of(const void *arg, uint64_t n_tok) { return state_bytes_at(arg, n_tok); }

struct before {
    unsigned char *bytes;
    size_t n;
    struct state_file state;
    struct state_layout layout;
    char id[BACKEND_STATE_ID_BYTES];
    struct state_form form;
};

/* A server wrote it that knew one version. */
static void before_read(struct before *b) {
    static const struct state_file_expected any;
    struct rod_error err;
    *b = (struct before){0};
    b->bytes = (void *)read_file("tests/vectors/rodimus-plus-small/before.state", &b->n);
    b->form = (struct state_form){.layout = b->id, .V = 320, .state_bytes = bytes_of, .arg = &b->layout};
    if (state_file_parse(b->bytes, b->n, "before", &any, &b->state, &err)) fail_msg("%s", err.message);
    memcpy(b->form.fingerprint, b->state.fingerprint, sizeof b->form.fingerprint);
    assert_true(state_layout_parse(b->state.layout.data, b->state.layout.n, &b->layout));
    state_layout_id(&b->layout, b->id);
}

/* What this program writes of the session that was read: *n bytes. */
static unsigned char *written(const struct state_form *form, const struct state_file *state, size_t *n) {
    struct session_metadata metadata;
    struct session_snapshot *snapshot;
    struct session_answers *answers;
    struct rod_error err;
    void *header;
    size_t n_header;
    if (session_file_read(form, state, "before", &metadata, &snapshot, &answers, &err)) fail_msg("%s", err.message);
    assert_non_null(snapshot->buffer = state_buffer_new(NULL, state->payload.n));
    memcpy(snapshot->buffer->bytes, state->payload.data, state->payload.n);
    if (session_file_write(form, &metadata, snapshot, answers, NULL, &header, &n_header, &err))
        fail_msg("%s", err.message);
    *n = n_header + state->payload.n;
    unsigned char *all = malloc(*n);
    assert_non_null(all);
    memcpy(all, header, n_header);
    memcpy(all + n_header, state->payload.data, state->payload.n);
    free(header);
    session_snapshot_release(snapshot);
    session_answers_release(answers);
    return all;
}

static void a_file_of_before_is_written_again_byte_for_byte(void **unused) {
    (void)unused;
    struct before b;
    size_t n;
    before_read(&b);
    assert_int_equal(b.state.n_tok, 69);
    assert_false(state_layout_is_narrow(&b.layout));
    unsigned char *again = written(&b.form, &b.state, &n);
    assert_int_equal(n, b.n);
    assert_memory_equal(again, b.bytes, n);
    free(again);
    free(b.bytes);
}

static void in_another_format_it_has_another_version_and_is_read_there_alone(void **unused) {
    (void)unused;
    struct before b;
    before_read(&b);
    struct state_layout to = b.layout;
    struct rod_error err;
    char id[BACKEND_STATE_ID_BYTES];
    to.window = DTYPE_INT8;
    state_layout_id(&to, id);
    const size_t n_payload = state_bytes_at(&to, b.state.n_tok);
    unsigned char *payload = malloc(n_payload);
    assert_non_null(payload);
    if (state_convert(&b.layout, &to, b.state.n_tok, b.state.payload.data, payload, &err)) fail_msg("%s", err.message);
    struct state_file state = b.state, back;
    state.payload = (struct state_bytes){payload, n_payload};
    struct state_form form = b.form;
    form.layout = id, form.arg = &to;
    size_t n;
    unsigned char *narrow = written(&form, &state, &n);
    assert_int_equal(narrow[8], 2);
    assert_true(n < b.n);
    const struct state_file_expected there = {form.fingerprint, id}, here = {b.form.fingerprint, b.id};
    if (state_file_parse(narrow, n, "narrow", &there, &back, &err)) fail_msg("%s", err.message);
    assert_int_equal(back.payload.n, n_payload);
    assert_memory_equal(back.payload.data, payload, n_payload);
    assert_int_equal(state_file_parse(narrow, n, "narrow", &here, &back, &err), ROD_ESTATE);
    assert_non_null(strstr(err.message, "a window in int8, here they are fp32, fp32 and fp32"));
    assert_int_equal(state_file_parse(b.bytes, b.n, "before", &there, &back, &err), ROD_ESTATE);
    assert_non_null(strstr(err.message, "a window in fp32, here they are fp32, fp32 and int8"));
    free(narrow);
    free(payload);
    free(b.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_of_before_is_written_again_byte_for_byte),
        cmocka_unit_test(in_another_format_it_has_another_version_and_is_read_there_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
