/* test_session_lease.c - leases and leftovers when another server comes in between two calls: a file that was opened
 * may have another one in its place by the time it is locked. flock is this program's own: it lets the others work
 * first.
 */
#include "engine/session/store/session_lease.h"
#include "engine/state/state_disk.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

static void (*before_lock)(void); /* called once, between the opening of a file and its lock */

int flock(int fd, int how) {
    void (*run)(void) = before_lock;
    before_lock = NULL;
    if (run) run();
    return (int)syscall(SYS_flock, fd, how);
}

static char dir[64];
static int first, second;

static int make_folder(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/rodimus-test-XXXXXX");
    before_lock = NULL;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static void take(int *fd) {
    struct rod_error err;
    if (session_lease_take(dir, "s", fd, &err)) fail_msg("the lease is not to be had: %s", err.message);
}

static void assert_nobody_else_gets_it(const char *when) {
    struct rod_error err;
    int other = -1;
    const int rc = session_lease_take(dir, "s", &other, &err);
    if (rc != ROD_EBUSY) fail_msg("%s another server's take is %s, not ROD_EBUSY", when, rod_code_name(rc));
}

static void one_ends_and_another_begins(void) {
    session_lease_end(dir, "s", first);
    take(&second);
}

static void a_sweep_leaves_the_lease_that_came_between_its_open_and_its_lock(void **state) {
    (void)state;
    take(&first);
    before_lock = one_ends_and_another_begins;
    session_lease_sweep(dir);
    assert_null(before_lock);
    assert_nobody_else_gets_it("after the sweep");
    session_lease_end(dir, "s", second);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(mkdir(dir, 0700), 0);
}

/* On a network's file system an open file that is removed may keep a name, and so a link. */
static void remove_and_keep_a_link(void) {
    char path[96], kept[96];
    snprintf(path, sizeof path, "%s/s.lease", dir);
    snprintf(kept, sizeof kept, "%s/.nfs0001", dir);
    assert_int_equal(rename(path, kept), 0);
    take(&second);
}

static void a_take_has_the_file_that_has_the_name(void **state) {
    (void)state;
    struct rod_error err;
    before_lock = remove_and_keep_a_link;
    const int rc = session_lease_take(dir, "s", &first, &err);
    if (rc != ROD_EBUSY) fail_msg("two servers have the lease: the take is %s, not ROD_EBUSY", rod_code_name(rc));
    session_lease_end(dir, "s", second);
}

static void an_end_leaves_the_lease_that_another_has_meanwhile(void **state) {
    (void)state;
    char path[96];
    take(&first);
    snprintf(path, sizeof path, "%s/s.lease", dir);
    assert_int_equal(unlink(path), 0); /* somebody's hand */
    take(&second);
    session_lease_end(dir, "s", first);
    assert_nobody_else_gets_it("after the first one's end");
    session_lease_end(dir, "s", second);
}

/* ---- files that are being written ---- */

#define LEFTOVER "s.tmp-abcdef"

static void another_writer_has_the_name(void) {
    char path[96], done[96];
    snprintf(path, sizeof path, "%s/" LEFTOVER, dir);
    snprintf(done, sizeof done, "%s/s", dir);
    assert_int_equal(rename(path, done), 0); /* its writer is done */
    second = open(path, O_CREAT | O_EXCL | O_RDWR, 0600);
    assert_true(second >= 0);
    assert_int_equal(flock(second, LOCK_EX), 0);
}

static void a_sweep_leaves_the_file_that_came_between_its_open_and_its_lock(void **state) {
    (void)state;
    char path[96];
    struct rod_error err;
    uint32_t n = 7;
    snprintf(path, sizeof path, "%s/" LEFTOVER, dir);
    close(open(path, O_CREAT | O_RDWR, 0600));
    before_lock = another_writer_has_the_name;
    assert_int_equal(state_disk_sweep(dir, &n, &err), 0);
    assert_null(before_lock);
    if (access(path, F_OK)) fail_msg("the sweep took %s from its writer", LEFTOVER);
    assert_int_equal(n, 0);
    close(second);
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_sweep_leaves_the_lease_that_came_between_its_open_and_its_lock),
        IN_A_FOLDER(a_take_has_the_file_that_has_the_name),
        IN_A_FOLDER(an_end_leaves_the_lease_that_another_has_meanwhile),
        IN_A_FOLDER(a_sweep_leaves_the_file_that_came_between_its_open_and_its_lock),
    };
    return cmocka_run_group_tests_name("session_lease", tests, NULL, NULL);
}
