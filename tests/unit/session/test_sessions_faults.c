/* test_sessions_faults.c - a disk that fails between two of its calls: what a client hears is what the next turn finds,
 * and no last version is lost in the moment of closing. fsync and unlink are this program's own. Over the fake device.
 */
#include "tests/sessions_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static atomic_bool folders_fail; /* to be synced */
static atomic_bool files_stay;   /* a session's file is not removed */
static atomic_bool removal_waits;
static atomic_uint n_removals; /* begun */

int fsync(int fd) {
    struct stat info;
    if (folders_fail && !fstat(fd, &info) && S_ISDIR(info.st_mode)) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(SYS_fsync, fd);
}

int unlink(const char *path) {
    const size_t n = strlen(path);
    if (!files_stay || n < 6 || strcmp(path + n - 6, ".state")) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    n_removals++;
    while (removal_waits) usleep(1000);
    errno = EIO;
    return -1;
}

/* ---- after the rename ---- */

static void a_turn_whose_file_is_in_place_does_not_say_that_nothing_happened(void **state) {
    (void)state;
    struct setup b;
    struct answer a, again;
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    folders_fail = true;
    struct rod_request *r = nth_turn(&a, "aa", 1);
    r->turn->idempotency_key = strdup("key");
    turn_run(&b.c, r, &a);
    folders_fail = false;
    if (!a.failed || a.end.error.code != ROD_EUNSURE)
        fail_msg("the turn did not fail with unsure: %s", a.end.error.message);
    const uint64_t version = session_info(b.c.engine, "aa").version;
    assert_int_equal(version, 2);
    if (strstr(a.end.error.message, "stays as it was") || !strstr(a.end.error.message, "version 2"))
        fail_msg("the session is at version %llu, and the client heard: %s", (unsigned long long)version,
                 a.end.error.message);
    if (strchr(a.end.error.message, '/')) fail_msg("the client hears of a path: %s", a.end.error.message);
    r = nth_turn(&again, "aa", 1); /* the same request again is that turn, not one more */
    r->turn->idempotency_key = strdup("key");
    turn_ok(&b.c, r, &again);
    assert_int_equal(again.end.session_version, 2);
    collect_free(&a), collect_free(&again);
    setup_close(&b);
}

/* ---- while it closes ---- */

static void *let_go(void *arg) {
    (void)arg;
    usleep(400000); /* the close has come by then */
    removal_waits = false;
    return NULL;
}

/* The keeper is at the one used longest ago, for the disk's budget, and then the disk does not remove it. */
static void what_the_keeper_spares_is_written_at_the_close(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    pthread_t thread;
    static const char *const ids[] = {"aa", "bb"};
    BEGIN(&b);
    for (size_t i = 0; i < 2; i++) turn_ok(&b.c, nth_turn(&a, ids[i], 0), &a), collect_free(&a);
    const uint64_t n_bytes = stats_of(b.c.engine).state_file_bytes;
    setup_close(&b);
    files_stay = true;
    begin_with(&b, CONFIG(.session_lazy = true, .state_disk_bytes = n_bytes - 1));
    for (size_t i = 0; i < 2; i++) turn_ok(&b.c, nth_turn(&a, ids[i], 1), &a), collect_free(&a);
    removal_waits = true;
    const unsigned before = n_removals;
    for (int ms = 0; n_removals == before; ms += 10) {
        if (ms > 10000) fail_msg("after 10 s the keeper removes nothing");
        usleep(10000);
    }
    assert_int_equal(pthread_create(&thread, NULL, let_go, NULL), 0);
    setup_close(&b);
    pthread_join(thread, NULL);
    files_stay = false;
    BEGIN(&b);
    for (size_t i = 0; i < 2; i++) {
        const uint64_t version = session_info(b.c.engine, ids[i]).version;
        if (version != 2) fail_msg("%s is at version %llu, not 2", ids[i], (unsigned long long)version);
    }
    setup_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_turn_whose_file_is_in_place_does_not_say_that_nothing_happened),
        IN_A_FOLDER(what_the_keeper_spares_is_written_at_the_close),
    };
    return cmocka_run_group_tests_name("sessions_faults", tests, NULL, NULL);
}
