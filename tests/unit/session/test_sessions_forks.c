/* test_sessions_forks.c - forks on disk: a small record and a second name of the source's file. What was answered is
 * there after kill -9; a crash between any two calls leaves no fork or a whole one; nobody else changes a fork's state.
 * link, rename, unlink and fsync are this program's own. Over the fake device.
 */
#include "engine/session/store/session_store.h"
#include "tests/sessions_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static atomic_int calls_left = -1; /* until this process is killed; -1 = it is not */
static int no_links;               /* the errno of a file system that gives no second name; 0 = it does */
static void (*after_link)(void);

static void one_call(void) {
    if (calls_left >= 0 && calls_left-- == 0) raise(SIGKILL);
}

int fsync(int fd) {
    one_call();
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to) {
    one_call();
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlink(const char *path) {
    one_call();
    return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}

int link(const char *from, const char *to) {
    one_call();
    if ((errno = no_links)) return -1;
    const int rc = (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
    void (*run)(void) = after_link;
    after_link = NULL;
    if (run) run();
    return rc;
}

static void fork_to(struct setup *b, const char *from, const char *id) {
    struct rod_session_info info;
    struct rod_error err;
    if (rod_session_create(b->c.engine, "", &(struct rod_session_new){.id = id, .from = from}, &info, &err))
        fail_msg("%s of %s: %s", id, from, err.message);
    if (!info.durable) fail_msg("%s is answered and not durable", id);
}

static void delete (struct setup *b, const char *id) {
    struct rod_error err;
    if (rod_session_delete(b->c.engine, "", id, &err)) fail_msg("%s: %s", id, err.message);
}

/* Turn n of the conversation `of`, in session id. */
static void turn_of(struct setup *b, const char *of, const char *id, uint32_t n, struct answer *a) {
    struct rod_request *r = nth_turn(a, of, n);
    free(r->turn->session);
    r->turn->session = strdup(id);
    r->turn->create = n == 0;
    turn_ok(&b->c, r, a);
}

static void run_turn(struct setup *b, const char *of, const char *id, uint32_t n) {
    struct answer a;
    turn_of(b, of, id, n, &a);
    collect_free(&a);
}

/* The fork goes on as the conversation that nothing disturbed. */
static void goes_on(struct setup *b, const char *of, const char *id, uint32_t n) {
    struct setup plain;
    struct answer a, want;
    begin_in_memory(&plain);
    for (uint32_t i = 0; i < n; i++) run_turn(&plain, of, of, i);
    turn_of(&plain, of, of, n, &want);
    turn_of(b, of, id, n, &a);
    assert_same(&a, &want, id);
    collect_free(&a), collect_free(&want);
    setup_close(&plain);
}

/* What the sessions' files take of the disk, each once, whatever names it has. */
static uint64_t bytes_on_disk(void) {
    enum { MOST = 512 };
    ino_t seen[MOST];
    size_t n = 0;
    uint64_t bytes = 0;
    DIR *list = opendir(dir);
    for (struct dirent *e; (e = readdir(list));) {
        char path[600];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (stat(path, &info) || !S_ISREG(info.st_mode) || !strcmp(e->d_name, "names.key")) continue;
        size_t i = 0;
        while (i < n && seen[i] != info.st_ino) i++;
        if (i < n) continue;
        assert_true(n < MOST);
        seen[n++] = info.st_ino;
        bytes += (uint64_t)info.st_blocks * 512 + SESSION_ENTRY_BYTES;
    }
    closedir(list);
    return bytes;
}

/* ---- what is on disk ---- */

static void a_fork_is_a_small_record_and_a_second_name(void **state) {
    (void)state;
    struct setup b;
    BEGIN(&b);
    run_turn(&b, "aa", "aa", 0);
    const uint64_t one = bytes_on_disk();
    fork_to(&b, "aa", "ff");
    const uint64_t two = bytes_on_disk();
    if (two - one > SESSION_BLOCK_BYTES + SESSION_ENTRY_BYTES)
        fail_msg("a state has %llu bytes, its fork %llu more", (unsigned long long)one,
                 (unsigned long long)(two - one));
    assert_int_equal(stats_of(b.c.engine).state_file_bytes, two);
    goes_on(&b, "aa", "ff", 1);
    assert_int_equal(count_in(dir, ".base"), 0); /* its file is complete now */
    assert_int_equal(stats_of(b.c.engine).state_file_bytes, bytes_on_disk());
    setup_close(&b);
}

static void a_forks_state_stays_whatever_its_source_does(void **state) {
    (void)state;
    struct setup b;
    BEGIN(&b);
    run_turn(&b, "aa", "aa", 0);
    fork_to(&b, "aa", "f1");
    run_turn(&b, "aa", "aa", 1);
    fork_to(&b, "f1", "f2"); /* of a fork: the same file once more */
    assert_int_equal(stats_of(b.c.engine).state_file_bytes, bytes_on_disk());
    delete (&b, "aa");
    delete (&b, "f1");
    fork_to(&b, "f2", "f3");
    assert_int_equal(count_in(dir, ".base"), 2);
    assert_int_equal(stats_of(b.c.engine).state_file_bytes, bytes_on_disk());
    setup_close(&b);
    BEGIN(&b);
    assert_int_equal(stats_of(b.c.engine).state_refused, 0);
    assert_int_equal(stats_of(b.c.engine).state_file_bytes, bytes_on_disk());
    assert_string_equal(session_info(b.c.engine, "f3").parent, "f2");
    assert_string_equal(session_info(b.c.engine, "f3").tier, "file");
    goes_on(&b, "aa", "f2", 1);
    goes_on(&b, "aa", "f3", 1);
    delete (&b, "f2"), delete (&b, "f3");
    assert_int_equal(count_in(dir, ""), 0);
    assert_int_equal(stats_of(b.c.engine).state_file_bytes, 0);
    setup_close(&b);
}

static void another_server_takes_a_fork_over(void **state) {
    (void)state;
    struct setup b[2];
    BEGIN(&b[0]);
    BEGIN(&b[1]);
    run_turn(&b[0], "aa", "aa", 0);
    for (int i = 0; i < 10; i++) {
        const char id[] = {'f', (char)('0' + i), 0};
        fork_to(&b[i % 2], "aa", id);
        assert_int_equal(session_info(b[1 - i % 2].c.engine, id).version, 1);
        goes_on(&b[1 - i % 2], "aa", id, 1);
        goes_on(&b[i % 2], "aa", id, 2);
    }
    assert_int_equal(count_in(dir, ".base"), 0);
    setup_close(&b[0]), setup_close(&b[1]);
}

static void without_second_names_a_fork_is_a_copy(void **state) {
    (void)state;
    static const int numbers[] = {EMLINK, EPERM, EOPNOTSUPP};
    for (size_t i = 0; i < 3; i++) {
        struct setup b;
        BEGIN(&b);
        const char id[] = {'f', (char)('0' + i), 0};
        run_turn(&b, "aa", "aa", i ? (uint32_t)i : 0);
        no_links = numbers[i];
        fork_to(&b, "aa", id);
        no_links = 0;
        assert_int_equal(count_in(dir, ".base"), 0);
        setup_close(&b);
        BEGIN(&b);
        goes_on(&b, "aa", id, (uint32_t)i + 1);
        setup_close(&b);
    }
}

static struct setup *busy;
static void source_goes_on(void) { run_turn(busy, "aa", "aa", 1); }

/* Its source's next turn ends on another server while the fork is made: before or after, never in between. */
static void a_fork_is_of_one_version(void **state) {
    (void)state;
    struct setup b[2];
    BEGIN(&b[0]);
    BEGIN(&b[1]);
    run_turn(&b[0], "aa", "aa", 0);
    busy = &b[1];
    after_link = source_goes_on;
    fork_to(&b[0], "aa", "ff");
    assert_null(after_link);
    setup_close(&b[0]), setup_close(&b[1]);
    BEGIN(&b[0]);
    assert_int_equal(session_info(b[0].c.engine, "aa").version, 2);
    assert_int_equal(session_info(b[0].c.engine, "ff").version, 1);
    goes_on(&b[0], "aa", "ff", 1);
    setup_close(&b[0]);
}

/* A file that lost its state is refused, and so is a state that has changed. */
static void a_record_without_its_state_is_refused(void **state) {
    (void)state;
    for (int changed = 0; changed < 2; changed++) {
        struct setup b;
        struct answer a;
        char path[600];
        BEGIN(&b);
        run_turn(&b, "aa", "aa", 0);
        fork_to(&b, "aa", "ff");
        setup_close(&b);
        DIR *list = opendir(dir);
        for (struct dirent *e; (e = readdir(list));)
            if (strstr(e->d_name, ".base")) snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        closedir(list);
        if (changed) {
            const int fd = open(path, O_RDWR);
            struct stat info;
            assert_int_equal(fstat(fd, &info), 0);
            assert_int_equal(pwrite(fd, "x", 1, info.st_size - 5), 1);
            close(fd);
        } else {
            assert_int_equal(unlink(path), 0);
        }
        BEGIN(&b);
        struct rod_request *r = nth_turn(&a, "ff", 1);
        turn_fails(&b.c, r, &a, ROD_ESTATE);
        delete (&b, "ff");
        delete (&b, "aa");
        assert_int_equal(count_in(dir, ""), 0);
        setup_close(&b);
    }
}

/* ---- crashes ---- */

/* A server that makes a session, a fork of it and a turn of the fork, and is killed at its nth call. */
static _Noreturn void serve_and_die(int reported, int n) {
    struct setup b;
    struct rod_session_info info;
    BEGIN(&b);
    run_turn(&b, "aa", "aa", 0);
    calls_left = n;
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "ff", .from = "aa"}, &info, NULL)) _exit(1);
    if (write(reported, "f", 1) != 1) _exit(1);
    run_turn(&b, "aa", "ff", 1);
    if (write(reported, "t", 1) != 1) _exit(1);
    if (rod_session_delete(b.c.engine, "", "ff", NULL)) _exit(1);
    if (write(reported, "d", 1) != 1) _exit(1);
    raise(SIGKILL);
    _exit(1);
}

static void a_crash_between_any_two_calls_leaves_no_fork_or_a_whole_one(void **state) {
    (void)state;
    bool over = false;
    int n_absent = 0, n_forked = 0, n_turned = 0;
    for (int n = 0; !over; n++) {
        int ends[2], status;
        char reported[4] = {0};
        struct setup b;
        struct rod_session_info info;
        if (n > 100) fail_msg("after %d calls it is not done", n);
        assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
        const pid_t child = fork();
        if (!child) serve_and_die(ends[1], n);
        close(ends[1]);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) fail_msg("call %d: status %x", n, status);
        for (char *to = reported; to < reported + 3 && read(ends[0], to, 1) == 1;) to++;
        close(ends[0]);
        over = strchr(reported, 'd') != NULL;
        BEGIN(&b);
        const int rc = rod_session_get(b.c.engine, "", "ff", &info, NULL);
        if (rc && rc != ROD_ENOTFOUND) fail_msg("call %d: %s", n, rod_code_name(rc));
        if (rc && *reported && !strchr(reported, 't')) fail_msg("call %d: the fork was answered, and is not there", n);
        if (!rc && info.version < (strchr(reported, 't') ? 2 : 1)) fail_msg("call %d: an answered turn is lost", n);
        if (over) assert_int_equal(rc, ROD_ENOTFOUND);
        assert_int_equal(stats_of(b.c.engine).state_refused, 0);
        assert_int_equal(count_in(dir, ".state"), rc ? 1 : 2);
        assert_int_equal(count_in(dir, ".base"), !rc && info.version == 1); /* and nothing else */
        assert_int_equal(count_in(dir, ""), count_in(dir, ".state") + count_in(dir, ".base"));
        n_absent += rc != 0, n_forked += !rc && info.version == 1, n_turned += !rc && info.version == 2;
        if (!rc) goes_on(&b, "aa", "ff", (uint32_t)info.version);
        goes_on(&b, "aa", "aa", 1);
        setup_close(&b);
        remove_dir(dir);
        dir = make_dir();
    }
    if (n_absent < 2 || n_forked < 2 || n_turned < 2)
        fail_msg("no fork %d times, a fork %d times, a turn of it %d times", n_absent, n_forked, n_turned);
}

/* ---- budgets ---- */

static void a_shared_file_counts_once_in_the_budget(void **state) {
    (void)state;
    struct setup b;
    BEGIN(&b);
    run_turn(&b, "aa", "aa", 0);
    const uint64_t one = bytes_on_disk();
    const uint64_t budget = 3 * one + 25 * (SESSION_BLOCK_BYTES + SESSION_ENTRY_BYTES); /* a record each */
    setup_close(&b);
    begin_with(&b, CONFIG(.state_disk_bytes = budget));
    for (int i = 0; i < 25; i++) {
        const char id[] = {'f', (char)('A' + i), 0};
        fork_to(&b, "aa", id);
    }
    assert_int_equal(stats_of(b.c.engine).sessions_evicted, 0);
    assert_int_equal(stats_of(b.c.engine).sessions, 26);
    run_turn(&b, "aa", "fY", 1); /* a file of its own */
    assert_int_equal(stats_of(b.c.engine).sessions_evicted, 0);
    assert_int_equal(stats_of(b.c.engine).state_file_bytes, bytes_on_disk());
    for (int i = 0; i < 6; i++) { /* and more than there is room for: who was used longest ago goes */
        const char id[] = {'n', (char)('0' + i), 0};
        run_turn(&b, id, id, 0);
        if (bytes_on_disk() > budget) fail_msg("%llu bytes", (unsigned long long)bytes_on_disk());
        assert_int_equal(stats_of(b.c.engine).state_file_bytes, bytes_on_disk());
    }
    assert_true(stats_of(b.c.engine).sessions_evicted > 0);
    setup_close(&b);
}

/* Its record fits beside the pinned source, whose state is its own; its first turn has a whole file, and does not. */
static void a_fork_needs_room_for_its_record_alone(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_session_info info;
    struct rod_error err;
    BEGIN(&b);
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "aa", .pin = true}, &info, &err))
        fail_msg("%s", err.message);
    run_turn(&b, "aa", "aa", 1);
    const uint64_t budget = bytes_on_disk() + SESSION_BLOCK_BYTES + SESSION_ENTRY_BYTES;
    setup_close(&b);
    begin_with(&b, CONFIG(.state_disk_bytes = budget));
    fork_to(&b, "aa", "ff");
    assert_int_equal(stats_of(b.c.engine).state_file_bytes, bytes_on_disk());
    struct rod_request *r = nth_turn(&a, "ff", 1);
    r->turn->create = false;
    turn_run(&b.c, r, &a);
    if (!a.failed || a.end.error.code != ROD_ENOROOM)
        fail_msg("%s, want ROD_ENOROOM", a.failed ? rod_code_name(a.end.error.code) : "kept");
    collect_free(&a);
    assert_int_equal(session_info(b.c.engine, "ff").version, session_info(b.c.engine, "aa").version);
    if (bytes_on_disk() > budget) fail_msg("%llu bytes", (unsigned long long)bytes_on_disk());
    setup_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_fork_is_a_small_record_and_a_second_name),
        IN_A_FOLDER(a_forks_state_stays_whatever_its_source_does),
        IN_A_FOLDER(another_server_takes_a_fork_over),
        IN_A_FOLDER(without_second_names_a_fork_is_a_copy),
        IN_A_FOLDER(a_fork_is_of_one_version),
        IN_A_FOLDER(a_record_without_its_state_is_refused),
        IN_A_FOLDER(a_crash_between_any_two_calls_leaves_no_fork_or_a_whole_one),
        IN_A_FOLDER(a_shared_file_counts_once_in_the_budget),
        IN_A_FOLDER(a_fork_needs_room_for_its_record_alone),
    };
    return cmocka_run_group_tests_name("sessions_forks", tests, NULL, NULL);
}
