/* test_object_store.c - the calls of an object store against a server that checks signatures and conditions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/object_setup.h"

#include "engine/base/clock.h"

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        const int rc_ = (call);                                                                                        \
        if (rc_) fail_msg("%s: %s, %s", #call, rod_code_name(rc_), err.message);                                       \
    } while (0)

static void what_is_put_is_got(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    struct object_version version;
    const char text[] = "one state";
    struct object_put put = object_setup_put(s->store, "s/a.state", text, sizeof text, OBJECT_ANY, NULL);
    if (put.rc) fail_msg("%s", put.err.message);
    assert_int_equal(put.version.n_bytes, sizeof text);
    OK(object_store_head(s->store, "s/a.state", &version, &err));
    assert_string_equal(version.etag, put.version.etag);
    assert_int_equal(version.n_bytes, sizeof text);
    char *got = object_setup_read(s->store, "s/a.state", sizeof text);
    assert_string_equal(got, text);
    free(got);
}

static void parts_of_any_size_are_one_body(void **state) {
    struct object_setup *s = *state;
    static const size_t sizes[] = {0, 1, 4095, 65536, 65537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 9000001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char head[64] = "header", *body = object_setup_body(sizes[i]);
        const struct state_bytes parts[] = {{head, sizeof head}, {NULL, 0}, {body, sizes[i]}};
        struct object_put put = {.key = "s/parts", .parts = parts, .n_parts = 3};
        object_store_put(s->store, &put, 1);
        if (put.rc) fail_msg("%zu bytes: %s", sizes[i], put.err.message);
        char *got = object_setup_read(s->store, "s/parts", sizeof head + sizes[i]);
        assert_memory_equal(got, head, sizeof head);
        if (sizes[i]) assert_memory_equal(got + sizeof head, body, sizes[i]);
        free(got);
        free(body);
    }
}

static void a_stream_comes_in_the_pieces_that_are_asked_for(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    enum { N = 5000000 };
    char *body = object_setup_body(N), *got = malloc(N + 1);
    unsigned seed = 7;
    assert_int_equal(object_setup_put(s->store, "s/stream", body, N, OBJECT_ANY, NULL).rc, 0);
    for (int round = 0; round < 4; round++) {
        struct object_reader *reader;
        struct object_version version;
        size_t at = 0, n;
        OK(object_store_get(s->store, "s/stream", "", &reader, &version, &err));
        while (at < N) {
            const size_t want = (size_t)rand_r(&seed) % (round ? 700000 : 5000) + 1;
            OK(object_reader_get(reader, got + at, want, &n, &err));
            assert_int_equal(n, want < N - at ? want : N - at);
            at += n;
        }
        OK(object_reader_get(reader, got, 1, &n, &err));
        assert_int_equal(n, 0);
        object_reader_close(reader);
        assert_memory_equal(got, body, N);
    }
    free(body);
    free(got);
}

static void a_reader_may_leave_early_and_others_go_on(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    enum { N = 20000000 };
    char *body = object_setup_body(N), some[100];
    assert_int_equal(object_setup_put(s->store, "s/early", body, N, OBJECT_ANY, NULL).rc, 0);
    for (int i = 0; i < 40; i++) { /* more than there are connections */
        struct object_reader *reader;
        struct object_version version;
        size_t n;
        OK(object_store_get(s->store, "s/early", "", &reader, &version, &err));
        OK(object_reader_get(reader, some, sizeof some, &n, &err));
        assert_memory_equal(some, body, sizeof some);
        object_reader_close(reader);
    }
    free(body);
}

static void conditions_hold(void **state) {
    struct object_setup *s = *state;
    struct object_reader *reader;
    struct object_version version;
    struct rod_error err;
    struct object_put first = object_setup_put(s->store, "s/c", "1", 1, OBJECT_IF_NEW, NULL);
    assert_int_equal(first.rc, 0);
    assert_int_equal(object_setup_put(s->store, "s/c", "2", 1, OBJECT_IF_NEW, NULL).rc, ROD_ECONFLICT);
    struct object_put second = object_setup_put(s->store, "s/c", "3", 1, OBJECT_IF_SAME, first.version.etag);
    assert_int_equal(second.rc, 0);
    struct object_put stale = object_setup_put(s->store, "s/c", "4", 1, OBJECT_IF_SAME, first.version.etag);
    assert_int_equal(stale.rc, ROD_ECONFLICT);
    assert_int_equal(object_setup_put(s->store, "s/none", "4", 1, OBJECT_IF_SAME, first.version.etag).rc,
                     ROD_ECONFLICT);
    char *got = object_setup_read(s->store, "s/c", 1);
    assert_string_equal(got, "3");
    free(got);
    OK(object_store_get(s->store, "s/c", second.version.etag, &reader, &version, &err));
    assert_null(reader);
    OK(object_store_get(s->store, "s/c", first.version.etag, &reader, &version, &err));
    assert_non_null(reader);
    object_reader_close(reader);
    assert_int_equal(object_store_get(s->store, "s/none", "", &reader, &version, &err), ROD_ENOTFOUND);
    assert_int_equal(object_store_head(s->store, "s/none", &version, &err), ROD_ENOTFOUND);
}

static void a_stale_delete_deletes_nothing(void **state) {
    struct object_setup *s = *state;
    struct object_version version;
    struct rod_error err;
    struct object_put first = object_setup_put(s->store, "s/d", "1", 1, OBJECT_ANY, NULL);
    struct object_put second = object_setup_put(s->store, "s/d", "2", 1, OBJECT_ANY, NULL);
    assert_int_equal(object_store_delete(s->store, "s/d", first.version.etag, &err), ROD_ECONFLICT);
    OK(object_store_head(s->store, "s/d", &version, &err));
    OK(object_store_delete(s->store, "s/d", second.version.etag, &err));
    assert_int_equal(object_store_head(s->store, "s/d", &version, &err), ROD_ENOTFOUND);
    assert_int_equal(object_store_delete(s->store, "s/d", second.version.etag, &err), ROD_ENOTFOUND);
    OK(object_store_delete(s->store, "s/d", "", &err));
}

static void a_copy_is_of_the_version_that_was_meant(void **state) {
    struct object_setup *s = *state;
    struct object_version version;
    struct rod_error err;
    struct object_put first = object_setup_put(s->store, "s/from", "1", 1, OBJECT_ANY, NULL);
    OK(object_store_copy(s->store, "s/from", first.version.etag, "s/to", &err));
    char *got = object_setup_read(s->store, "s/to", 1);
    assert_string_equal(got, "1");
    free(got);
    object_setup_put(s->store, "s/from", "2", 1, OBJECT_ANY, NULL);
    assert_int_equal(object_store_copy(s->store, "s/from", first.version.etag, "s/to2", &err), ROD_ECONFLICT);
    assert_int_equal(object_store_head(s->store, "s/to2", &version, &err), ROD_ENOTFOUND);
    assert_int_equal(object_store_copy(s->store, "s/none", "", "s/to2", &err), ROD_ENOTFOUND);
    object_setup_faults(s, "[{\"do\":\"copy_late\",\"times\":2}]");
    OK(object_store_copy(s->store, "s/from", "", "s/to2", &err));
}

static void the_beginning_of_an_object_tells_its_size(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    struct object_version version;
    char *body = object_setup_body(300000), some[1000];
    size_t n;
    assert_int_equal(object_setup_put(s->store, "s/b", body, 300000, OBJECT_ANY, NULL).rc, 0);
    OK(object_store_get_start(s->store, "s/b", some, sizeof some, &n, &version, &err));
    assert_int_equal(n, sizeof some);
    assert_int_equal(version.n_bytes, 300000);
    assert_memory_equal(some, body, sizeof some);
    assert_int_equal(object_setup_put(s->store, "s/b", body, 10, OBJECT_ANY, NULL).rc, 0);
    OK(object_store_get_start(s->store, "s/b", some, sizeof some, &n, &version, &err));
    assert_int_equal(n, 10);
    assert_int_equal(object_setup_put(s->store, "s/b", body, 0, OBJECT_ANY, NULL).rc, 0);
    OK(object_store_get_start(s->store, "s/b", some, sizeof some, &n, &version, &err));
    assert_int_equal(n, 0);
    free(body);
}

struct listed {
    unsigned n;
    char last[64];
};
static void on_listed(void *arg, const char *key, const struct object_version *version) {
    struct listed *l = arg;
    if (strcmp(key, l->last) <= 0) fail_msg("%s comes behind %s", key, l->last);
    assert_true(version->etag[0] == '"' && version->n_bytes == 3 && version->modified_s > 1000000000);
    snprintf(l->last, sizeof l->last, "%s", key);
    l->n++;
}

static void a_list_goes_on_behind_its_last_key(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    enum { N = 2100 };
    struct object_put *puts = calloc(N, sizeof *puts);
    char(*keys)[32] = calloc(N, sizeof *keys);
    const struct state_bytes part = {"abc", 3};
    struct listed l = {0};
    bool more = true;
    for (int i = 0; i < N; i++) {
        snprintf(keys[i], sizeof *keys, "l/%04d", i);
        puts[i] = (struct object_put){.key = keys[i], .parts = &part, .n_parts = 1};
    }
    object_store_put(s->store, puts, N);
    for (int i = 0; i < N; i++)
        if (puts[i].rc) fail_msg("%s: %s", keys[i], puts[i].err.message);
    object_setup_put(s->store, "other", "1", 1, OBJECT_ANY, NULL);
    for (unsigned pages = 1; more; pages++) {
        OK(object_store_list(s->store, "l/", l.last, on_listed, &l, &more, &err));
        assert_int_equal(l.n, pages < 3 ? pages * OBJECT_PAGE : N);
    }
    assert_string_equal(l.last, "l/2099");
    free(puts);
    free(keys);
}

static void keys_that_a_url_would_change_are_refused(void **state) {
    struct object_setup *s = *state;
    static const char *const bad[] = {"",    "/",   "a//b", "a/",   "/a",       "a/../b",
                                      "./a", "a b", "a?b",  "a%2f", "\xc3\xa9", "a#"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int rc = object_setup_put(s->store, bad[i], "x", 1, OBJECT_ANY, NULL).rc;
        if (rc != ROD_EINVALID) fail_msg("'%s': %s", bad[i], rod_code_name(rc));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_put_is_got),
        cmocka_unit_test(parts_of_any_size_are_one_body),
        cmocka_unit_test(a_stream_comes_in_the_pieces_that_are_asked_for),
        cmocka_unit_test(a_reader_may_leave_early_and_others_go_on),
        cmocka_unit_test(conditions_hold),
        cmocka_unit_test(a_stale_delete_deletes_nothing),
        cmocka_unit_test(a_copy_is_of_the_version_that_was_meant),
        cmocka_unit_test(the_beginning_of_an_object_tells_its_size),
        cmocka_unit_test(a_list_goes_on_behind_its_last_key),
        cmocka_unit_test(keys_that_a_url_would_change_are_refused),
    };
    return cmocka_run_group_tests(tests, object_setup_begin, object_setup_finish);
}
