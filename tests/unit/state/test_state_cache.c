/* test_state_cache.c - a folder as the cache of a store: whatever becomes of its files, a caller gets what the store
 * has, and bytes that the store has still do not come from there. */
#include "tests/cache_setup.h"

#include "engine/state/state_cache_folder.h"

#include <signal.h>
#include <sys/resource.h>

static void what_was_written_or_read_comes_from_the_copy(void **state) {
    struct setup *s = *state;
    struct bytes one, two, got;
    struct state_disk_version first, version;
    bool unchanged;
    struct stat info;
    char path[320];
    make_state(&one, 1, 500);
    make_state(&two, 2, 700);
    assert_int_equal(put(&s->home, "v1/a.state", &one, true, NULL, &first), 0);
    only_copy(s, path);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_reads(s, "v1/a.state", &one, "behind a write");
    assert_counts(s, 1, 0, "behind a write");
    assert_int_equal(get(&s->home, "v1/a.state", &first, 100, &got, &version, &unchanged), 0);
    assert_true(unchanged);
    assert_counts(s, 1, 0, "known to the caller");
    assert_int_equal(put(&s->client.as_store.home, "v1/a.state", &two, false, first.etag, &version), 0);
    assert_reads(s, "v1/a.state", &two, "of another server");
    assert_counts(s, 1, 1, "of another server");
    assert_reads(s, "v1/a.state", &two, "behind a read");
    assert_counts(s, 2, 1, "behind a read");
    assert_int_equal(get(&s->home, "v1/a.state", &first, 64, &got, &version, &unchanged), 0);
    assert_false(unchanged);
    assert_memory_equal(got.data, two.data, two.n);
    assert_counts(s, 3, 1, "newer than the caller's");
    assert_int_equal(atomic_load(&s->client.n[MEMORY_OPEN]), 5);
}

static void a_caller_that_knows_more_than_the_copy_reads_nothing(void **state) {
    struct setup *s = *state;
    struct bytes one, two, got;
    struct state_disk_version newer, version;
    bool unchanged;
    make_state(&one, 1, 500);
    make_state(&two, 2, 500);
    assert_int_equal(put(&s->home, "a", &one, false, NULL, NULL), 0);
    assert_int_equal(put(&s->client.as_store.home, "a", &two, false, NULL, &newer), 0);
    assert_int_equal(get(&s->home, "a", &newer, 100, &got, &version, &unchanged), 0);
    assert_true(unchanged);
    assert_counts(s, 0, 0, "known");
}

static void whatever_byte_of_a_copy_changes_the_store_is_read(void **state) {
    struct setup *s = *state;
    struct bytes one;
    char path[320];
    make_state(&one, 1, 300);
    assert_int_equal(put(&s->home, "a", &one, false, NULL, NULL), 0);
    only_copy(s, path);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    for (size_t at = 0; at < (size_t)info.st_size; at++) {
        char what[64];
        snprintf(what, sizeof what, "byte %zu changed", at);
        change_byte(path, at);
        assert_reads(s, "a", &one, what);
        assert_counts(s, at, at + 1, what);
        assert_reads(s, "a", &one, "the new copy");
        assert_counts(s, at + 1, at + 1, "the new copy");
    }
}

static void however_a_copy_is_cut_the_store_is_read(void **state) {
    struct setup *s = *state;
    struct bytes one;
    char path[320];
    struct stat info;
    make_state(&one, 1, 100);
    assert_int_equal(put(&s->home, "a", &one, false, NULL, NULL), 0);
    only_copy(s, path);
    assert_int_equal(stat(path, &info), 0);
    for (off_t n = 0; n < info.st_size; n++) {
        assert_int_equal(truncate(path, n), 0);
        assert_reads(s, "a", &one, "cut");
        assert_counts(s, 0, (uint64_t)n + 1, "cut");
    }
    assert_int_equal(truncate(path, info.st_size + 1), 0);
    assert_reads(s, "a", &one, "longer");
    remove(path);
    assert_reads(s, "a", &one, "gone");
    mkdir(path, 0700);
    assert_reads(s, "a", &one, "a folder");
}

static void a_copy_that_is_cut_behind_its_check_is_an_error_once(void **state) {
    struct setup *s = *state;
    struct bytes one, got;
    struct state_home_file f;
    struct rod_error err;
    char path[320];
    size_t n;
    make_state(&one, 1, 500);
    assert_int_equal(put(&s->home, "a", &one, false, NULL, NULL), 0);
    only_copy(s, path);
    assert_int_equal(state_home_open(&s->home, "a", NULL, &f, &err), 0);
    assert_int_equal(truncate(path, 200), 0);
    assert_int_equal(state_home_get(&f, got.data, one.n, &n, &err), ROD_EIO);
    state_home_close(&f);
    assert_reads(s, "a", &one, "afterwards");
}

/* Its reader finds that the bytes are no state: a copy would keep the fault when the store is well again. */
static void bytes_that_changed_on_their_way_are_not_kept(void **state) {
    struct setup *s = *state;
    struct bytes one, got;
    struct state_disk_version version;
    bool unchanged;
    char paths[1][320];
    make_state(&one, 1, 300);
    for (size_t at = 0; at < one.n; at++) {
        one.data[at] ^= 1;
        assert_int_equal(put(&s->client.as_store.home, "a", &one, false, NULL, NULL), 0);
        assert_int_equal(get(&s->home, "a", NULL, 100, &got, &version, &unchanged), 0);
        one.data[at] ^= 1;
        if (list_copies(s->dir, paths, 1)) fail_msg("kept with byte %zu changed", at);
    }
    make_state(&one, 1, 300);
    assert_int_equal(put(&s->client.as_store.home, "a", &one, false, NULL, NULL), 0);
    struct state_home_file f;
    struct rod_error err;
    assert_int_equal(state_home_open(&s->home, "a", NULL, &f, &err), 0);
    size_t n;
    assert_int_equal(state_home_get(&f, got.data, one.n - 1, &n, &err), 0);
    state_home_close(&f);
    assert_int_equal(list_copies(s->dir, paths, 1), 0);
}

static void what_is_no_state_or_gone_is_not_kept(void **state) {
    struct setup *s = *state;
    struct bytes one, mark = {.n = 200};
    char paths[4][320];
    memset(mark.data, 'm', mark.n);
    make_state(&one, 1, 300);
    assert_int_equal(put(&s->home, "mark", &mark, false, NULL, NULL), 0);
    assert_reads(s, "mark", &mark, "a mark");
    assert_int_equal(list_copies(s->dir, paths, 4), 0);
    for (int i = 0; i < 4; i++) {
        struct bytes got;
        struct state_disk_version version;
        struct rod_error err;
        bool unchanged;
        assert_int_equal(put(&s->home, "a", &one, false, NULL, &version), 0);
        assert_int_equal(list_copies(s->dir, paths, 4), 1);
        const struct state_home *home = i == 2 ? &s->client.as_store.home : &s->home; /* another server's removal */
        if (i == 1)
            state_home_drop(home, "a");
        else
            assert_int_equal(state_home_remove(home, "a", i == 3 ? &version : NULL, &err), 0);
        assert_int_equal(get(&s->home, "a", NULL, 100, &got, &version, &unchanged), ROD_ENOTFOUND);
        assert_int_equal(list_copies(s->dir, paths, 4), 0);
    }
    if (counts(s).bytes) fail_msg("%llu bytes in an empty folder", (unsigned long long)counts(s).bytes);
}

static void a_write_that_lost_is_not_kept(void **state) {
    struct setup *s = *state;
    struct bytes one, two;
    make_state(&one, 1, 300);
    make_state(&two, 2, 300);
    assert_int_equal(put(&s->home, "a", &one, true, NULL, NULL), 0);
    assert_int_equal(put(&s->home, "a", &two, true, NULL, NULL), ROD_EEXISTS);
    assert_int_equal(put(&s->home, "a", &two, false, "\"other\"", NULL), ROD_ECONFLICT);
    s->client.fail_at = 1;
    assert_int_equal(put(&s->home, "a", &two, false, NULL, NULL), ROD_EIO);
    s->client.fail_at = s->client.unsure_at = 1;
    assert_int_equal(put(&s->home, "a", &two, false, NULL, NULL), ROD_EUNSURE);
    assert_reads(s, "a", &two, "done, and nobody knew");
    assert_counts(s, 0, 1, "done, and nobody knew");
}

static void a_store_out_of_reach_is_an_error_and_the_copy_stays(void **state) {
    struct setup *s = *state;
    struct bytes one, got;
    struct state_disk_version version;
    bool unchanged;
    make_state(&one, 1, 300);
    assert_int_equal(put(&s->home, "a", &one, false, NULL, NULL), 0);
    atomic_store(&s->client.dead, true);
    assert_int_equal(get(&s->home, "a", NULL, 100, &got, &version, &unchanged), ROD_EIO);
    atomic_store(&s->client.dead, false);
    assert_reads(s, "a", &one, "back");
    assert_counts(s, 1, 0, "back");
}

/* Whoever holds the folder may do so; the store has the right bytes. */
static void a_copy_in_anothers_place_is_not_read(void **state) {
    struct setup *s = *state;
    struct bytes one, two;
    char a[320], both[2][320];
    make_state(&one, 1, 300);
    make_state(&two, 2, 300);
    assert_int_equal(put(&s->home, "a", &one, false, NULL, NULL), 0);
    only_copy(s, a);
    assert_int_equal(put(&s->home, "b", &two, false, NULL, NULL), 0);
    assert_int_equal(list_copies(s->dir, both, 2), 2);
    assert_int_equal(rename(both[!strcmp(both[0], a)], a), 0);
    assert_reads(s, "a", &one, "from the store");
    assert_counts(s, 0, 1, "from the store");
    assert_reads(s, "a", &one, "from the new copy");
    assert_counts(s, 1, 1, "from the new copy");
}

static void what_another_removed_is_neither_read_nor_kept(void **state) {
    struct setup *s = *state;
    struct bytes one, got;
    struct rod_error err;
    char paths[2][320];
    bool unchanged;
    struct state_disk_version version;
    make_state(&one, 1, 300);
    assert_int_equal(put(&s->home, "a", &one, true, NULL, NULL), 0);
    assert_reads(s, "a", &one, "from the copy");
    assert_int_equal(state_home_remove(&s->client.as_store.home, "a", NULL, &err), 0); /* beside the cache */
    assert_int_equal(list_copies(s->dir, paths, 2), 1);
    assert_int_equal(get(&s->home, "a", NULL, 100, &got, &version, &unchanged), ROD_ENOTFOUND);
    assert_int_equal(list_copies(s->dir, paths, 2), 0);
}

static void two_stores_have_one_folder(void **state) {
    struct setup *s = *state, other = {.dir = s->dir};
    struct bytes one, two;
    make_state(&one, 1, 300);
    make_state(&two, 2, 300);
    memory_open_store(&other.m);
    memory_connect(&other.client, &other.m, 1);
    open_cache(&other, s->dir, "s3://other", 0);
    assert_int_equal(put(&s->home, "a", &one, false, NULL, NULL), 0);
    assert_int_equal(put(&other.home, "a", &two, false, NULL, NULL), 0);
    assert_reads(s, "a", &one, "the first store");
    assert_reads(&other, "a", &two, "the second store");
    assert_counts(s, 1, 0, "the first store");
    assert_counts(&other, 1, 0, "the second store");
    state_cache_close(other.cache);
    memory_close_store(&other.m);
}

static void the_copies_used_longest_ago_go_first(void **state) {
    enum { MOST = 4, N = 10 };
    struct setup *s = *state;
    struct bytes one;
    char name[8];
    state_cache_close(s->cache);
    open_cache(s, s->dir, "s3://b", MOST * 4096);
    make_state(&one, 1, 300);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "%d", i);
        assert_int_equal(put(&s->home, name, &one, false, NULL, NULL), 0);
        usleep(10000); /* a file system's clock ticks slowly */
        if (counts(s).bytes > MOST * 4096) fail_msg("%llu bytes", (unsigned long long)counts(s).bytes);
        assert_reads(s, "0", &one, "used all the time");
        usleep(10000);
    }
    assert_counts(s, N, 0, "used all the time");
    assert_reads(s, "9", &one, "the newest");
    assert_counts(s, N + 1, 0, "the newest");
    assert_reads(s, "5", &one, "an old one");
    assert_counts(s, N + 1, 1, "an old one");
    char paths[N][320];
    const unsigned n = list_copies(s->dir, paths, N);
    if (n > MOST || n < MOST - 1) fail_msg("%u copies, want %d", n, MOST);
    struct bytes big;
    make_state(&big, 2, 2900);
    state_cache_close(s->cache);
    open_cache(s, s->dir, "s3://b", 2000);
    assert_int_equal(list_copies(s->dir, paths, N), 0); /* the limit is another one since the last start */
    assert_int_equal(put(&s->home, "big", &big, false, NULL, NULL), 0);
    assert_reads(s, "big", &big, "longer than the limit");
    assert_int_equal(list_copies(s->dir, paths, N), 0);
    assert_int_equal(s->n_lines, 0);
}

static void copies_that_nobody_uses_and_leftovers_go_at_a_start(void **state) {
    struct setup *s = *state;
    struct bytes one;
    char path[320], left[340];
    make_state(&one, 1, 300);
    assert_int_equal(put(&s->home, "a", &one, false, NULL, NULL), 0);
    only_copy(s, path);
    snprintf(left, sizeof left, "%s.tmp-aBcDeF", path);
    close(open(left, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    const struct timespec less[2] = {{.tv_sec = time(NULL) - 86400 + 60}, {.tv_sec = time(NULL) - 86400 + 60}},
                          more[2] = {{.tv_sec = time(NULL) - 86400 - 60}, {.tv_sec = time(NULL) - 86400 - 60}};
    assert_int_equal(utimensat(AT_FDCWD, path, less, 0), 0);
    state_cache_close(s->cache);
    open_cache(s, s->dir, "s3://b", 0);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(access(left, F_OK), -1);
    assert_int_equal(utimensat(AT_FDCWD, path, more, 0), 0);
    state_cache_close(s->cache);
    open_cache(s, s->dir, "s3://b", 0);
    assert_int_equal(access(path, F_OK), -1);
}

static void copies_that_nobody_uses_go_within_an_hour(void **state) {
    struct setup *s = *state;
    struct bytes one;
    struct cache_folder f;
    struct rod_error err;
    char path[320];
    const struct state_cache_config config = {.dir = s->dir, .of = "x"};
    const struct timespec old[2] = {{.tv_sec = time(NULL) - 86400 - 60}, {.tv_sec = time(NULL) - 86400 - 60}};
    make_state(&one, 1, 300);
    assert_int_equal(put(&s->home, "a", &one, false, NULL, NULL), 0);
    only_copy(s, path);
    assert_int_equal(cache_folder_init(&f, &config, &err), 0);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    cache_folder_tidy(&f);
    assert_int_equal(access(path, F_OK), 0); /* the last look was just now */
    f.looked_ns -= (uint64_t)3601 * 1000000000u;
    cache_folder_tidy(&f);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(cache_folder_bytes(&f), 0);
    cache_folder_fini(&f);
}

static void a_folder_that_is_gone_is_made_again(void **state) {
    struct setup *s = *state;
    struct bytes one;
    char *gone = strdup(s->dir);
    make_state(&one, 1, 300);
    assert_int_equal(put(&s->home, "a", &one, false, NULL, NULL), 0);
    remove_dir(s->dir);
    assert_reads(s, "a", &one, "from the store");
    s->dir = gone;
    assert_reads(s, "a", &one, "from the new copy");
    assert_counts(s, 1, 1, "from the new copy");
    if (counts(s).bytes != 4096) fail_msg("%llu bytes, want 4096", (unsigned long long)counts(s).bytes);
    assert_int_equal(s->n_lines, 0);
}

/* The disk is full: here, the process may write no longer files. */
static void a_full_disk_costs_copies_alone_and_is_told_once(void **state) {
    struct setup *s = *state;
    struct bytes one, two;
    char paths[4][320];
    struct rlimit before, little;
    make_state(&one, 1, 100);
    make_state(&two, 2, 2500);
    assert_int_equal(put(&s->home, "small", &one, false, NULL, NULL), 0);
    assert_int_equal(put(&s->client.as_store.home, "read", &two, false, NULL, NULL), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 1000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    const int rc = put(&s->home, "a", &two, false, NULL, NULL);
    assert_reads(s, "read", &two, "while the disk is full");
    assert_reads(s, "a", &two, "while the disk is full");
    assert_reads(s, "small", &one, "while the disk is full");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(rc, 0);
    assert_counts(s, 1, 2, "while the disk was full");
    assert_int_equal(list_copies(s->dir, paths, 4), 1);
    if (s->n_lines != 1 || !strstr(s->line, "keeps copies of states no longer"))
        fail_msg("%u: %s", s->n_lines, s->line);
}

/* While a write failed the folder is not tried, for a time. */
static void a_folder_that_takes_files_again_is_used_again(void **state) {
    struct setup *s = *state;
    struct cache_folder f;
    struct cache_part part;
    struct rod_error err;
    struct bytes one;
    char file[CACHE_FILE_NAME_BYTES], away[300];
    const struct state_cache_config config = {.dir = s->dir, .of = "x", .log = on_line, .log_arg = s};
    const struct state_disk_version version = {.n_bytes = 400, .etag = "\"e\""};
    make_state(&one, 1, 400);
    snprintf(away, sizeof away, "%s.away", s->dir);
    assert_int_equal(cache_folder_init(&f, &config, &err), 0);
    cache_folder_name(&f, "a", file);
    assert_int_equal(rename(s->dir, away), 0);
    close(open(s->dir, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)); /* a file in its place */
    for (int i = 0; i < 5; i++) {
        cache_part_begin(&f, file, &version, &part);
        assert_null(part.part);
    }
    assert_int_equal(unlink(s->dir) || rename(away, s->dir), 0);
    cache_part_begin(&f, file, &version, &part);
    assert_null(part.part);
    assert_int_equal(s->n_lines, 1);
    f.failed_ns = 0; /* the time is over */
    cache_part_begin(&f, file, &version, &part);
    assert_non_null(part.part);
    cache_part_put(&f, &part, one.data, 400);
    cache_part_end(&f, &part, true, false);
    assert_int_equal(s->n_lines, 2);
    assert_non_null(strstr(s->line, "again"));
    assert_int_equal(f.writing, 0);
    cache_folder_fini(&f);
}

static void a_folder_that_cannot_be_is_told_once(void **state) {
    struct setup *s = *state;
    struct bytes one;
    state_cache_close(s->cache);
    open_cache(s, "/proc/none", "s3://b", 0);
    make_state(&one, 1, 300);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(put(&s->home, "a", &one, false, NULL, NULL), 0);
        assert_reads(s, "a", &one, "without a folder");
    }
    assert_counts(s, 0, 3, "without a folder");
    if (s->n_lines != 1 || !strstr(s->line, "/proc/none")) fail_msg("%u: %s", s->n_lines, s->line);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        CACHED(what_was_written_or_read_comes_from_the_copy),
        CACHED(a_caller_that_knows_more_than_the_copy_reads_nothing),
        CACHED(whatever_byte_of_a_copy_changes_the_store_is_read),
        CACHED(however_a_copy_is_cut_the_store_is_read),
        CACHED(a_copy_that_is_cut_behind_its_check_is_an_error_once),
        CACHED(bytes_that_changed_on_their_way_are_not_kept),
        CACHED(what_is_no_state_or_gone_is_not_kept),
        CACHED(a_write_that_lost_is_not_kept),
        CACHED(a_store_out_of_reach_is_an_error_and_the_copy_stays),
        CACHED(a_copy_in_anothers_place_is_not_read),
        CACHED(what_another_removed_is_neither_read_nor_kept),
        CACHED(two_stores_have_one_folder),
        CACHED(the_copies_used_longest_ago_go_first),
        CACHED(copies_that_nobody_uses_and_leftovers_go_at_a_start),
        CACHED(copies_that_nobody_uses_go_within_an_hour),
        CACHED(a_folder_that_is_gone_is_made_again),
        CACHED(a_full_disk_costs_copies_alone_and_is_told_once),
        CACHED(a_folder_that_takes_files_again_is_used_again),
        CACHED(a_folder_that_cannot_be_is_told_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
