/* test_file.c - a whole file: its bytes, its bound, and the difference between "not there" and every other fault. */
#include "engine/base/file.h"
#include "engine/rodimus.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* A folder of its own for each test; *state is its path. */
static int set_up(void **state) {
    *state = strdup("/tmp/rodimus-file-XXXXXX");
    return mkdtemp(*state) ? 0 : -1;
}

static int tear_down(void **state) {
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", (char *)*state);
    free(*state);
    return system(command);
}

static const char *path_of(void **state, const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", (char *)*state, name);
    return path;
}

/* n bytes, each the low byte of its place. */
static const char *file_of(void **state, size_t n) {
    const char *path = path_of(state, "bytes");
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    for (size_t i = 0; i < n; i++) fputc((int)(i & 255), f);
    fclose(f);
    return path;
}

static void expect_bytes(const struct file_bytes *b, size_t n) {
    assert_int_equal(b->n, n);
    assert_non_null(b->data);
    for (size_t i = 0; i < n; i++) assert_int_equal((unsigned char)b->data[i], i & 255);
    assert_int_equal(b->data[n], 0);
}

static void expect_nothing(const char *path, enum file_kinds kinds, size_t max, enum file_verdict verdict, int number) {
    struct file_bytes b = {(char *)(uintptr_t)1, 1, 1};
    alarm(10); /* a pipe would be waited for */
    assert_int_equal(file_read(path, kinds, max, &b), verdict);
    alarm(0);
    assert_null(b.data);
    assert_int_equal(b.n, 0);
    assert_int_equal(b.number, number);
}

static void a_file_is_read_whole_up_to_its_bound(void **state) {
    static const size_t sizes[] = {0, 1, 4095, 65535, 65536, 65537, 200000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *path = file_of(state, sizes[i]);
        struct file_bytes b;
        for (size_t more = 0; more < 3; more++) {
            assert_int_equal(file_read(path, FILE_REGULAR_ONLY, sizes[i] + more, &b), FILE_READ);
            expect_bytes(&b, sizes[i]);
            file_wipe(&b);
            assert_null(b.data);
        }
        if (sizes[i]) expect_nothing(path, FILE_REGULAR_ONLY, sizes[i] - 1, FILE_TOO_LARGE, 0);
    }
}

static void a_file_without_a_size_is_bounded_too(void **state) {
    (void)state;
    struct file_bytes b;
    expect_nothing("/dev/zero", FILE_ANY_KIND, 100000, FILE_TOO_LARGE, 0);
    expect_nothing("/dev/zero", FILE_REGULAR_ONLY, 100000, FILE_IRREGULAR, 0);
    assert_int_equal(file_read("/proc/self/status", FILE_REGULAR_ONLY, 1 << 20, &b), FILE_READ); /* says 0 bytes */
    assert_true(b.n > 100 && strlen(b.data) == b.n);
    file_wipe(&b);
}

static void *write_pipe(void *path) {
    FILE *f = fopen(path, "wb");
    for (int i = 0; f && i < 100000; i++) fputc(i & 255, f);
    if (f) fclose(f);
    return NULL;
}

static void a_pipe_is_read_where_any_kind_may_be(void **state) {
    char *path = strdup(path_of(state, "pipe"));
    pthread_t writer;
    struct file_bytes b;
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_nothing(path, FILE_REGULAR_ONLY, 10, FILE_IRREGULAR, 0);
    assert_int_equal(pthread_create(&writer, NULL, write_pipe, path), 0);
    assert_int_equal(file_read(path, FILE_ANY_KIND, 100000, &b), FILE_READ);
    pthread_join(writer, NULL);
    expect_bytes(&b, 100000);
    file_wipe(&b);
    free(path);
}

static void only_what_is_not_there_is_missing(void **state) {
    const char *path = path_of(state, "link");
    expect_nothing(path, FILE_REGULAR_ONLY, 10, FILE_MISSING, ENOENT);
    expect_nothing(path_of(state, "folder/none"), FILE_REGULAR_ONLY, 10, FILE_MISSING, ENOENT);
    assert_int_equal(symlink("nothing", path_of(state, "link")), 0);
    expect_nothing(path_of(state, "link"), FILE_REGULAR_ONLY, 10, FILE_IO, ENOENT);
    unlink(path_of(state, "link"));
    assert_int_equal(symlink("link", path_of(state, "link")), 0);
    expect_nothing(path_of(state, "link"), FILE_REGULAR_ONLY, 10, FILE_IO, ELOOP);
    expect_nothing(*state, FILE_REGULAR_ONLY, 10, FILE_IRREGULAR, 0);
    expect_nothing(*state, FILE_ANY_KIND, 100000, FILE_IO, EISDIR);
    file_of(state, 3);
    expect_nothing(path_of(state, "bytes/below"), FILE_REGULAR_ONLY, 10, FILE_IO, ENOTDIR);
    if (!geteuid()) return; /* root may read it */
    chmod(path_of(state, "bytes"), 0);
    expect_nothing(path_of(state, "bytes"), FILE_REGULAR_ONLY, 10, FILE_IO, EACCES);
}

static void a_load_names_the_path_and_has_a_code_for_each_fault(void **state) {
    struct file_bytes b;
    struct rod_error err;
    char folder[5000];
    assert_int_equal(file_load(*state, "bytes", 10, &b, &err), ROD_ENOTFOUND);
    file_of(state, 5);
    assert_int_equal(file_load(*state, "bytes", 5, &b, &err), 0);
    expect_bytes(&b, 5);
    file_wipe(&b);
    assert_int_equal(file_load(*state, "bytes", 4, &b, &err), ROD_EMODEL);
    assert_non_null(strstr(err.message, path_of(state, "bytes: larger than 4 bytes")));
    assert_int_equal(file_load(*state, ".", 4, &b, &err), ROD_EMODEL);
    assert_non_null(strstr(err.message, "not a regular file"));
    assert_int_equal(symlink("nothing", path_of(state, "link")), 0);
    assert_int_equal(file_load(*state, "link", 4, &b, &err), ROD_EIO);
    assert_non_null(strstr(err.message, path_of(state, "link")));
    memset(folder, 'a', sizeof folder - 1);
    folder[sizeof folder - 1] = 0;
    assert_int_equal(file_load(folder, "bytes", 4, &b, &err), ROD_EIO); /* a name that is too long is not "not there" */
    assert_null(b.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_is_read_whole_up_to_its_bound, set_up, tear_down),
        cmocka_unit_test(a_file_without_a_size_is_bounded_too),
        cmocka_unit_test_setup_teardown(a_pipe_is_read_where_any_kind_may_be, set_up, tear_down),
        cmocka_unit_test_setup_teardown(only_what_is_not_there_is_missing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_load_names_the_path_and_has_a_code_for_each_fault, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
