/* test_state_disk.c - files that are the old or the new one, whole: writers killed at random moments, leftovers, full
 * and read-only disks, what is no file. */
#include "engine/state/state_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static const struct state_file_expected ANY = {0};

static int make_folder(void **state) {
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    if (!mkdtemp(dir)) return -1;
    *state = strdup(dir);
    return *state ? 0 : -1;
}

static uint32_t count_files(const char *dir) {
    DIR *list = opendir(dir);
    assert_non_null(list);
    uint32_t n = 0;
    for (struct dirent *e; (e = readdir(list));) n += e->d_name[0] != '.';
    closedir(list);
    return n;
}

static int remove_folder(void **state) {
    char path[512];
    DIR *list = opendir(*state);
    if (!list) return -1;
    for (struct dirent *e; (e = readdir(list));) {
        snprintf(path, sizeof path, "%s/%s", (char *)*state, e->d_name);
        if (e->d_name[0] != '.' && unlink(path)) rmdir(path);
    }
    closedir(list);
    int rc = rmdir(*state);
    free(*state);
    return rc;
}

static void touch(const char *dir, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(fd >= 0);
    close(fd);
}

static int write_one(const char *dir, const char *name, const struct state_bytes *parts, size_t n_parts,
                     struct rod_error *err) {
    struct state_disk_item item = {.name = name, .parts = parts, .n_parts = n_parts};
    state_disk_write_all(dir, &item, 1);
    *err = item.err;
    return item.rc;
}

/* The whole file, in a block that is aligned for a payload, for free(). */
static int read_all(const char *dir, const char *name, void **bytes, size_t *n, struct rod_error *err) {
    struct state_disk_file file;
    int rc = state_disk_open(dir, name, &file, err);
    if (rc) return rc;
    *bytes = aligned_alloc(64, (file.version.n_bytes + 64) / 64 * 64);
    assert_non_null(*bytes);
    rc = state_disk_get(&file, 0, *bytes, file.version.n_bytes, n, err);
    state_disk_close(&file);
    return rc;
}

/* ---- a session whose every version has other bytes and another length ---- */

enum { PAYLOAD_MAX = 600000 };

static int write_version(const char *dir, uint64_t version, unsigned char *payload, struct rod_error *err) {
    size_t n = 200000 + (size_t)(version * 7919 % 400000);
    memset(payload, (int)(version % 251), n);
    struct state_file state = {.version = version, .layout = {"test", 4}, .payload = {payload, n}};
    unsigned char header[STATE_FILE_MIN_BYTES];
    assert_int_equal(state_file_header_bytes(&state), sizeof header);
    state_file_write_header(&state, header);
    return write_one(dir, "session", (struct state_bytes[]){{header, sizeof header}, state.payload}, 2, err);
}

/* 0: there is none. */
static uint64_t read_version(const char *dir) {
    void *bytes = NULL;
    size_t n;
    struct rod_error err;
    struct state_file state;
    int rc = read_all(dir, "session", &bytes, &n, &err);
    if (rc == ROD_ENOTFOUND) return 0;
    if (rc || state_file_parse(bytes, n, "session", &ANY, &state, &err)) fail_msg("%s", err.message);
    const unsigned char *payload = state.payload.data;
    assert_int_equal((uintptr_t)payload % 64, 0);
    for (size_t i = 0; i < state.payload.n; i++) assert_int_equal(payload[i], state.version % 251);
    uint64_t version = state.version;
    free(bytes);
    return version;
}

static void a_file_is_written_read_and_removed(void **state) {
    const char *dir = *state;
    struct rod_error err;
    void *bytes = NULL;
    size_t n;
    assert_int_equal(read_all(dir, "x", &bytes, &n, &err), ROD_ENOTFOUND);
    struct state_bytes parts[] = {{"ab", 2}, {NULL, 0}, {"cde", 3}};
    if (write_one(dir, "x", parts, 3, &err)) fail_msg("%s", err.message);
    assert_int_equal(read_all(dir, "x", &bytes, &n, &err), 0);
    assert_int_equal(n, 5);
    assert_memory_equal(bytes, "abcde", 5);
    free(bytes);
    char part[8];
    struct state_disk_file file;
    assert_int_equal(state_disk_open(dir, "x", &file, &err), 0);
    assert_int_equal(file.version.n_bytes, 5);
    assert_int_equal(state_disk_get(&file, 1, part, 3, &n, &err), 0);
    assert_true(n == 3 && !memcmp(part, "bcd", 3));
    if (write_one(dir, "x", NULL, 0, &err)) fail_msg("%s", err.message); /* what is open stays the file it was */
    assert_int_equal(state_disk_get(&file, 3, part, 8, &n, &err), 0);
    assert_true(n == 2 && !memcmp(part, "de", 2));
    state_disk_close(&file);
    assert_int_equal(read_all(dir, "x", &bytes, &n, &err), 0);
    assert_int_equal(n, 0);
    free(bytes);
    char path[512];
    struct stat info;
    snprintf(path, sizeof path, "%s/x", dir);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600); /* conversations are nobody else's */
    assert_int_equal(state_disk_remove(dir, "x", &err), 0);
    assert_int_equal(state_disk_remove(dir, "x", &err), ROD_ENOTFOUND);
    assert_int_equal(count_files(dir), 0);
}

static void names_that_lead_elsewhere_are_refused(void **state) {
    static const char *const bad[] = {"",
                                      ".",
                                      "..",
                                      ".x",
                                      "a/b",
                                      ".."
                                      "/x",
                                      "a b",
                                      "x.tmp-123456",
                                      "\xc3\xa4"};
    char longest[STATE_DISK_MAX_NAME + 2];
    memset(longest, 'n', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    struct rod_error err;
    void *bytes = NULL;
    size_t n;
    for (size_t i = 0; i <= sizeof bad / sizeof *bad; i++) {
        const char *name = i < sizeof bad / sizeof *bad ? bad[i] : longest;
        assert_int_equal(write_one(*state, name, NULL, 0, &err), ROD_EINVALID);
        assert_int_equal(read_all(*state, name, &bytes, &n, &err), ROD_EINVALID);
        assert_int_equal(state_disk_remove(*state, name, &err), ROD_EINVALID);
    }
    longest[STATE_DISK_MAX_NAME] = 0;
    assert_int_equal(write_one(*state, longest, NULL, 0, &err), 0);
}

static void a_pipe_or_a_folder_is_no_state(void **state) {
    char path[512];
    struct rod_error err;
    void *bytes = NULL;
    size_t n;
    snprintf(path, sizeof path, "%s/pipe", (char *)*state);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(read_all(*state, "pipe", &bytes, &n, &err), ROD_ESTATE);
    snprintf(path, sizeof path, "%s/folder", (char *)*state);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(read_all(*state, "folder", &bytes, &n, &err), ROD_ESTATE);
    assert_int_equal(write_one(*state, "folder", NULL, 0, &err), ROD_EIO);
    assert_int_equal(count_files(*state), 2);
}

/* What it says is committed goes up the pipe, until it is killed. */
static void write_for_ever(const char *dir, uint64_t version, int pipe_end) {
    static unsigned char payload[PAYLOAD_MAX];
    struct rod_error err;
    for (;; version++)
        if (write_version(dir, version, payload, &err) || write(pipe_end, &version, sizeof version) < 0) _exit(1);
}

static void a_killed_writer_leaves_the_old_or_the_new_file(void **state) {
    const char *dir = *state;
    uint64_t version = 0, n_versions = 0;
    uint32_t n_leftovers = 0;
    unsigned int seed = 6;
    for (int kills = 0; kills < 20; kills++) {
        int ends[2], status;
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) write_for_ever(dir, version + 1, ends[1]);
        close(ends[1]);
        struct timespec wait = {0, 1000000 + (long)(rand_r(&seed) % 40000) * 1000};
        nanosleep(&wait, NULL);
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        uint64_t committed = version, next;
        while (read(ends[0], &next, sizeof next) == (ssize_t)sizeof next) committed = next;
        close(ends[0]);
        uint64_t found = read_version(dir);
        if (found < committed || found > committed + 1)
            fail_msg("version %llu was committed, the file holds %llu", (unsigned long long)committed,
                     (unsigned long long)found);
        n_versions += found - version;
        version = found;
        struct rod_error err;
        uint32_t n_removed;
        if (state_disk_sweep(dir, &n_removed, &err)) fail_msg("%s", err.message);
        assert_int_equal(count_files(dir), version > 0);
        n_leftovers += n_removed;
    }
    printf("note: 20 kills, %llu versions, %u leftovers removed\n", (unsigned long long)n_versions, n_leftovers);
    assert_true(n_leftovers > 0);
}

static void a_sweep_removes_leftovers_alone(void **state) {
    const char *dir = *state;
    char path[512];
    struct rod_error err;
    uint32_t n;
    static const char *const others[] = {"x", "x.tmp", "x.tmp-12345", "x.tmp-1234567", "x y.tmp-123456", "tmp-123456"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) touch(dir, others[i]);
    touch(dir, "x.tmp-abcdef");
    touch(dir, "a.b-c.tmp-123456");
    touch(dir, "x.tmp-living"); /* its writer holds the lock, as another process would */
    snprintf(path, sizeof path, "%s/x.tmp-living", dir);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(state_disk_sweep(dir, &n, &err), 0);
    assert_int_equal(n, 2);
    assert_int_equal(count_files(dir), sizeof others / sizeof *others + 1);
    close(fd);
    assert_int_equal(state_disk_sweep(dir, &n, &err), 0);
    assert_int_equal(n, 1);
    assert_int_equal(state_disk_sweep(dir, NULL, &err), 0);
    assert_int_equal(state_disk_sweep("/nonexistent", &n, &err), ROD_ENOTFOUND);
}

/* Sweeps while another process writes: none of its files is taken from it. */
static void a_sweep_takes_nothing_from_a_writer(void **state) {
    const char *dir = *state;
    static unsigned char payload[PAYLOAD_MAX];
    struct rod_error err;
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        for (uint64_t v = 1; v <= 40; v++)
            if (write_version(dir, v, payload, &err)) _exit(1);
        _exit(0);
    }
    while (!waitpid(child, &status, WNOHANG)) assert_int_equal(state_disk_sweep(dir, NULL, &err), 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(read_version(dir), 40);
    assert_int_equal(count_files(dir), 1);
}

/* The disk is full in the middle of a write: here, the process may write no longer files, which fails in the same
 * place. */
static void a_full_disk_is_an_error_and_the_old_file_stands(void **state) {
    const char *dir = *state;
    static unsigned char payload[PAYLOAD_MAX];
    struct rod_error err;
    assert_int_equal(write_version(dir, 7, payload, &err), 0);
    struct rlimit before, little;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    int rc = write_version(dir, 8, payload, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, ROD_EIO);
    assert_non_null(strstr(err.message, dir));
    assert_non_null(strstr(err.message, "/session: "));
    assert_non_null(strstr(err.message, strerror(EFBIG)));
    assert_int_equal(read_version(dir), 7);
    assert_int_equal(count_files(dir), 1);
    assert_int_equal(write_version(dir, 8, payload, &err), 0);
    assert_int_equal(read_version(dir), 8);
}

static void a_folder_that_takes_no_files_is_an_error(void **state) {
    struct rod_error err;
    char gone[512];
    snprintf(gone, sizeof gone, "%s/gone", (char *)*state);
    assert_int_equal(write_one(gone, "x", NULL, 0, &err), ROD_EIO);
    assert_non_null(strstr(err.message, gone));
    assert_non_null(strstr(err.message, strerror(ENOENT)));
    const char *dir = "/proc"; /* takes none from root either */
    assert_int_equal(write_one(dir, "x", NULL, 0, &err), ROD_EIO);
    assert_non_null(strstr(err.message, "/proc/x"));
    if (geteuid()) {
        assert_int_equal(chmod(*state, 0500), 0);
        int rc = write_one(*state, "x", NULL, 0, &err);
        assert_int_equal(chmod(*state, 0700), 0);
        assert_int_equal(rc, ROD_EIO);
        assert_non_null(strstr(err.message, strerror(EACCES)));
    }
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_file_is_written_read_and_removed),
        IN_A_FOLDER(names_that_lead_elsewhere_are_refused),
        IN_A_FOLDER(a_pipe_or_a_folder_is_no_state),
        IN_A_FOLDER(a_killed_writer_leaves_the_old_or_the_new_file),
        IN_A_FOLDER(a_sweep_removes_leftovers_alone),
        IN_A_FOLDER(a_sweep_takes_nothing_from_a_writer),
        IN_A_FOLDER(a_full_disk_is_an_error_and_the_old_file_stands),
        IN_A_FOLDER(a_folder_that_takes_no_files_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
