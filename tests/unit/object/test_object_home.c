/* test_object_home.c - the calls of a home of states over an object store: what sessions rely on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/object_setup.h"

#include "engine/object/object_home.h"

static struct state_disk_item write_one(const struct state_home *home, const char *name, const char *text,
                                        bool only_new, const char *replaces) {
    const struct state_bytes parts[] = {{text, 1}, {text + 1, strlen(text) - 1}};
    struct state_disk_item item = {.name = name, .parts = parts, .n_parts = 2, .only_new = only_new};
    item.replaces = replaces;
    state_home_write(home, &item, 1);
    item.parts = NULL;
    return item;
}

static void a_file_is_read_as_it_was_written_or_not_at_all(void **state) {
    struct object_setup *s = *state;
    const struct state_home all = object_home(s->store), home = state_home_below(&all, "v1/s/");
    struct state_home_file file;
    struct state_disk_version stat;
    struct rod_error err;
    char text[16] = "";
    size_t n;
    const struct state_disk_item first = write_one(&home, "a.state", "bytes", true, NULL);
    assert_int_equal(first.rc, 0);
    assert_true(first.in_place);
    assert_true(first.version.etag[0] && first.version.inode);
    assert_int_equal(state_home_stat(&home, "a.state", &stat, &err), 0);
    assert_int_equal(stat.inode, first.version.inode);
    assert_int_equal(state_home_open(&home, "a.state", &first.version, &file, &err), 0);
    assert_true(file.unchanged);
    state_home_close(&file);
    assert_int_equal(state_home_open(&home, "a.state", NULL, &file, &err), 0);
    assert_string_equal(file.version.etag, first.version.etag);
    assert_int_equal(state_home_get(&file, text, 2, &n, &err), 0);
    assert_int_equal(state_home_get(&file, text + n, 10, &n, &err), 0);
    assert_int_equal(n, 3);
    assert_string_equal(text, "bytes");
    state_home_close(&file);
    assert_int_equal(state_home_peek(&home, "a.state", text, 2, &n, &stat, &err), 0);
    assert_int_equal(n, 2);
    assert_int_equal(stat.n_bytes, 5);
    assert_int_equal(state_home_open(&home, "none", NULL, &file, &err), ROD_ENOTFOUND);
}

static void a_write_that_came_second_says_so(void **state) {
    struct object_setup *s = *state;
    const struct state_home all = object_home(s->store), home = state_home_below(&all, "v1/s/");
    struct rod_error err;
    const struct state_disk_item first = write_one(&home, "b", "one", true, NULL);
    assert_int_equal(write_one(&home, "b", "two", true, NULL).rc, ROD_EEXISTS);
    const struct state_disk_item next = write_one(&home, "b", "three", false, first.version.etag);
    assert_int_equal(next.rc, 0);
    const struct state_disk_item lost = write_one(&home, "b", "four", false, first.version.etag);
    assert_int_equal(lost.rc, ROD_ECONFLICT);
    assert_false(lost.in_place);
    assert_int_equal(state_home_copy(&home, "b", &first.version, "b.kept", &err), ROD_ECONFLICT);
    assert_int_equal(state_home_copy(&home, "b", &next.version, "b.kept", &err), 0);
    assert_int_equal(state_home_remove(&home, "b", &first.version, &err), ROD_ECONFLICT);
    assert_int_equal(state_home_remove(&home, "b", &next.version, &err), 0);
    state_home_drop(&home, "b.kept");
    assert_int_equal(state_home_remove(&home, "b.kept", NULL, &err), 0);
}

static void count_name(void *arg, const char *name, const struct state_disk_version *version) {
    unsigned *n = arg;
    if (strncmp(name, "l", 1) != 0 || version->n_bytes != 3) fail_msg("%s, %u", name, (unsigned)version->n_bytes);
    ++*n;
}

static void files_are_listed_below_their_folder(void **state) {
    struct object_setup *s = *state;
    const struct state_home all = object_home(s->store), home = state_home_below(&all, "v1/p/");
    struct state_disk_item items[70];
    char names[70][8];
    const struct state_bytes part = {"abc", 3};
    unsigned n = 0;
    bool more;
    struct rod_error err;
    memset(items, 0, sizeof items);
    for (int i = 0; i < 70; i++) {
        snprintf(names[i], sizeof names[i], "l%02d", i);
        items[i] = (struct state_disk_item){.name = names[i], .parts = &part, .n_parts = 1};
    }
    state_home_write(&home, items, 70);
    for (int i = 0; i < 70; i++) assert_int_equal(items[i].rc, 0);
    assert_int_equal(state_home_list(&home, "l", "", count_name, &n, &more, &err), 0);
    assert_int_equal(n, 70);
    assert_false(more);
    assert_int_equal(state_home_list(&home, "l", "l64", count_name, &n, &more, &err), 0);
    assert_int_equal(n, 75);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_read_as_it_was_written_or_not_at_all),
        cmocka_unit_test(a_write_that_came_second_says_so),
        cmocka_unit_test(files_are_listed_below_their_folder),
    };
    return cmocka_run_group_tests(tests, object_setup_begin, object_setup_finish);
}
