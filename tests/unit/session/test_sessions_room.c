/* test_sessions_room.c - sessions where room ends: disks that take no file, budgets of memory and files, time, states
 * that are written later. Over the fake device. */
#include "tests/sessions_folder.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>

static const int32_t first[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* ---- disks that do not take a file ---- */

/* Nothing of a state's size can be written, until it is undone. Nothing is printed meanwhile: the tests' output may be
 * a file. */
static void fill_disk(bool full) {
    static struct rlimit before;
    if (full) assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    struct rlimit little = before;
    if (full) little.rlim_cur = 5000;
    signal(SIGXFSZ, full ? SIG_IGN : SIG_DFL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
}

static void a_full_disk_fails_that_turn_alone(void **state) {
    (void)state;
    struct setup b, plain;
    struct answer a, want;
    begin_in_memory(&plain);
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    turn_ok(&plain.c, nth_turn(&want, "aa", 0), &want);
    collect_free(&a), collect_free(&want);
    fill_disk(true);
    struct rod_request *r = nth_turn(&a, "aa", 1);
    r->turn->idempotency_key = strdup("key");
    turn_run(&b.c, r, &a);
    struct rod_session_info info;
    struct rod_error err;
    const int made = rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "empty"}, &info, &err);
    struct answer plain_answer; /* service goes on */
    struct rod_request *one = collect_request(first, 11, &plain_answer);
    one->max_tokens = 3;
    one->ignore_eos = true;
    finish(&b, one, &plain_answer);
    collect_free(&plain_answer);
    fill_disk(false);
    assert_int_equal(made, 0); /* small enough */
    assert_true(a.failed);
    assert_int_equal(a.end.error.code, ROD_EIO);
    assert_non_null(strstr(a.end.error.message, strerror(EFBIG)));
    collect_free(&a);
    assert_int_equal(session_info(b.c.engine, "aa").version, 1);
    assert_int_equal(stats_of(b.c.engine).state_save_failures, 1);
    assert_int_equal(count_in(dir, ""), 2);
    r = nth_turn(&a, "aa", 1);
    r->turn->idempotency_key = strdup("key"); /* what failed was not kept */
    turn_ok(&b.c, r, &a);
    turn_ok(&plain.c, nth_turn(&want, "aa", 1), &want);
    assert_same(&a, &want, "after a full disk");
    collect_free(&a), collect_free(&want);
    setup_close(&b), setup_close(&plain);
}

static void a_folder_that_is_gone_fails_turns_and_nothing_else(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    char away[512];
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    snprintf(away, sizeof away, "%s-away", dir);
    assert_int_equal(rename(dir, away), 0);
    turn_fails(&b.c, nth_turn(&a, "aa", 1), &a, ROD_EIO);
    turn_fails(&b.c, nth_turn(&a, "zz", 0), &a, ROD_EIO);
    assert_int_equal(rename(away, dir), 0);
    turn_ok(&b.c, nth_turn(&a, "aa", 1), &a);
    assert_int_equal(a.end.session_version, 2);
    collect_free(&a);
    setup_close(&b);
}

/* On the same disk: to take the empty one for the folder would be to begin its conversations again. */
static void a_folder_that_is_exchanged_is_as_one_that_is_gone(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    char away[512];
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    snprintf(away, sizeof away, "%s-away", dir);
    assert_int_equal(rename(dir, away), 0);
    assert_int_equal(mkdir(dir, 0700), 0);
    turn_fails(&b.c, nth_turn(&a, "aa", 1), &a, ROD_EIO);
    turn_fails(&b.c, nth_turn(&a, "zz", 0), &a, ROD_EIO);
    assert_int_equal(rmdir(dir), 0); /* it is empty still */
    assert_int_equal(rename(away, dir), 0);
    turn_ok(&b.c, nth_turn(&a, "aa", 1), &a);
    assert_int_equal(a.end.session_version, 2);
    collect_free(&a);
    setup_close(&b);
}

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* What the log says of a disk that takes nothing. */
struct lines {
    atomic_uint n, not_written;
};
static void count_line(void *arg, int level, const char *line) {
    struct lines *lines = arg;
    if (level < 2) return;
    atomic_fetch_add(&lines->n, 1);
    if (strstr(line, "is not written")) atomic_fetch_add(&lines->not_written, 1);
}

/* Lazy: what is on file alone cannot come back, since what is in memory cannot leave. Nobody waits for that, nothing is
 * put beside the budget for long, the log is not flooded, and when the disk has room all goes on. */
static void a_full_disk_and_a_full_memory_refuse_turns_at_once(void **state) {
    (void)state;
    enum { FIT = 5, OLD = 8, ALL = 20, TRIES = 80 };
    struct setup b, plain;
    struct answer a, want;
    struct lines lines = {0};
    uint32_t n_turns[ALL] = {0}, n_refused = 0, n_kept = 0, n_other = 0;
    begin_in_memory(&plain);
    begin_with(&b, CONFIG(.session_lazy = true, .state_host_bytes = state_pool_bytes(FIT, sizeof(struct fake_state)),
                          .log = count_line, .log_arg = &lines));
    for (int n = 0; n < 20 * OLD && (n < OLD || strcmp(session_info(b.c.engine, "ax").tier, "file")); n++) {
        const int i = n < OLD ? n : 1 + n % (OLD - 1); /* until the first one has left memory */
        turn_ok(&b.c, nth_turn(&a, (char[]){(char)('a' + i), 'x', 0}, n_turns[i]++), &a);
        collect_free(&a);
    }
    assert_string_equal(session_info(b.c.engine, "ax").tier, "file");
    fill_disk(true);
    const uint64_t begin_ms = now_ms();
    uint64_t longest_ms = 0;
    for (int n = 0; n < TRIES; n++) {
        const int i = n % 2 ? 0 : OLD + n % (ALL - OLD); /* one on file alone; new ones */
        const uint64_t at_ms = now_ms();
        turn_run(&b.c, nth_turn(&a, (char[]){(char)('a' + i), 'x', 0}, n_turns[i]), &a);
        if (now_ms() - at_ms > longest_ms) longest_ms = now_ms() - at_ms;
        n_turns[i] += !a.failed, n_kept += !a.failed;
        n_refused += a.failed && a.end.error.code == ROD_ENOROOM;
        n_other += a.failed && a.end.error.code != ROD_ENOROOM;
        collect_free(&a);
    }
    const uint64_t all_ms = now_ms() - begin_ms;
    fill_disk(false);
    assert_int_equal(n_other, 0);
    assert_true(n_refused > 0);
    if (n_kept > FIT + 4) fail_msg("%u turns were kept where there was room for %u, and a slot each", n_kept, FIT);
    if (longest_ms > 2000) fail_msg("a turn of %d waited %llu ms", TRIES, (unsigned long long)longest_ms);
    if (atomic_load(&lines.not_written) != 1 || atomic_load(&lines.n) > 8)
        fail_msg("%u lines in the log after %llu ms, %u of them that a session is not written", atomic_load(&lines.n),
                 (unsigned long long)all_ms, atomic_load(&lines.not_written));
    for (uint64_t at_ms = now_ms();;) { /* a disk that failed is asked again some seconds later */
        turn_run(&b.c, nth_turn(&a, "ax", n_turns[0]), &a);
        n_turns[0] += !a.failed;
        if (a.failed && now_ms() - at_ms > 15000) fail_msg("%s", a.end.error.message);
        const bool failed = a.failed;
        collect_free(&a);
        if (!failed) break;
        usleep(100000);
    }
    for (int i = 0; i < ALL; i++) {
        const char id[] = {(char)('a' + i), 'x', 0};
        for (uint32_t n = 0; n <= n_turns[i]; n++) {
            turn_ok(&plain.c, nth_turn(&want, id, n), &want);
            if (n < n_turns[i]) collect_free(&want);
        }
        turn_ok(&b.c, nth_turn(&a, id, n_turns[i]), &a);
        assert_same(&a, &want, "after the disk was full");
        collect_free(&a), collect_free(&want);
    }
    setup_close(&b), setup_close(&plain);
}

/* ---- what is on disk, and what is not yet ---- */

static bool all_durable(struct setup *b) {
    struct rod_session_info *infos;
    struct rod_error err;
    size_t n;
    bool has_more, all = true;
    if (rod_session_list(b->c.engine, "", NULL, 100, &infos, &n, &has_more, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i < n; i++) all = all && infos[i].durable && session_info(b->c.engine, infos[i].id).durable;
    free(infos);
    return all;
}

static void a_session_says_whether_it_is_on_disk(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_session_info info;
    struct rod_error err;
    begin_in_memory(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    assert_false(session_info(b.c.engine, "aa").durable); /* it ends with the engine */
    setup_close(&b);
    for (int lazy = 0; lazy < 2; lazy++) {
        begin_with(&b, CONFIG(.session_lazy = lazy));
        assert_true(all_durable(&b));
        turn_ok(&b.c, nth_turn(&a, "aa", (uint32_t)lazy), &a);
        collect_free(&a);
        assert_int_equal(session_info(b.c.engine, "aa").durable, !lazy);
        if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = lazy ? "n1" : "n0"}, &info, &err))
            fail();
        assert_true(info.durable);
        if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = lazy ? "f1" : "f0", .from = "aa"}, &info,
                               &err))
            fail();
        assert_int_equal(info.durable, !lazy);
        wait_for(all_durable, &b, "a session is not on disk");
        setup_close(&b);
    }
}

/* A fork needs little room; one that finds none fails as turns do, and is not there. */
static void a_fork_on_a_full_disk_is_no_secret(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_session_info info;
    struct rod_error err;
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    fill_disk(true); /* no room for a state */
    const int little_rc =
        rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "bb", .from = "aa"}, &info, &err);
    const bool durable = info.durable;
    struct rlimit before, none;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = before;
    none.rlim_cur = 10;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    const int none_rc =
        rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "cc", .from = "aa"}, &info, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    const int found_rc = rod_session_get(b.c.engine, "", "cc", &info, NULL);
    fill_disk(false);
    assert_int_equal(little_rc, 0);
    assert_true(durable);
    assert_int_equal(none_rc, ROD_EIO);
    assert_non_null(strstr(err.message, strerror(EFBIG)));
    assert_int_equal(found_rc, ROD_ENOTFOUND);
    assert_int_equal(stats_of(b.c.engine).state_save_failures, 1);
    assert_int_equal(count_in(dir, ".base"), 1);
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "cc", .from = "aa"}, &info, &err))
        fail_msg("%s", err.message);
    setup_close(&b);
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "bb", 1), &a);
    assert_int_equal(a.end.session_version, 2);
    collect_free(&a);
    setup_close(&b);
}

/* ---- budgets ---- */

static void more_sessions_than_memory_come_back_from_their_files(void **state) {
    (void)state;
    enum { SESSIONS = 24, ROUNDS = 4 };
    struct setup b, plain;
    struct answer a, want;
    begin_in_memory(&plain);
    begin_with(&b, CONFIG(.state_host_bytes = state_pool_bytes(6, sizeof(struct fake_state))));
    for (uint32_t n = 0; n < ROUNDS; n++)
        for (int i = 0; i < SESSIONS; i++) {
            const char id[] = {(char)('a' + i), 'x', 0};
            turn_ok(&b.c, nth_turn(&a, id, n), &a);
            turn_ok(&plain.c, nth_turn(&want, id, n), &want);
            assert_same(&a, &want, "out of memory and back");
            collect_free(&a), collect_free(&want);
        }
    const struct rod_stats stats = stats_of(b.c.engine);
    assert_int_equal(stats.sessions, SESSIONS);
    assert_int_equal(stats.sessions_host + stats.sessions_file, SESSIONS);
    assert_true(stats.sessions_host <= 6);
    assert_true(stats.state_host_bytes <= state_pool_bytes(6, sizeof(struct fake_state)));
    assert_true(stats.state_loads >= SESSIONS * (ROUNDS - 1) - 6 * ROUNDS);
    assert_int_equal(stats.sessions_evicted, 0);
    setup_close(&b), setup_close(&plain);
}

static void without_files_the_session_used_longest_ago_makes_room(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH),
               CONFIG(.state_host_bytes = state_pool_bytes(4, sizeof(struct fake_state))));
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "px", .pin = true},
                           &(struct rod_session_info){0}, NULL))
        fail();
    turn_ok(&b.c, nth_turn(&a, "px", 0), &a);
    collect_free(&a);
    for (int i = 0; i < 8; i++) {
        const char id[] = {(char)('a' + i), 'x', 0};
        turn_ok(&b.c, nth_turn(&a, id, 0), &a);
        collect_free(&a);
    }
    struct rod_session_info info;
    assert_int_equal(rod_session_get(b.c.engine, "", "ax", &info, NULL), ROD_ENOTFOUND);
    assert_int_equal(session_info(b.c.engine, "hx").version, 1);
    assert_int_equal(session_info(b.c.engine, "px").version, 1);
    assert_true(stats_of(b.c.engine).sessions_evicted >= 4);
    struct rod_request *r = nth_turn(&a, "ax", 1);
    r->turn->create = false;
    turn_fails(&b.c, r, &a, ROD_ENOTFOUND);
    setup_close(&b);
}

enum { BUDGET = 5 * 21000 + 4500 }; /* of files that take 20,800 bytes of the disk, and an empty one */

static uint64_t bytes_in_folder(void) {
    DIR *list = opendir(dir);
    assert_non_null(list);
    uint64_t n = 0;
    char path[512];
    struct stat info;
    for (struct dirent *e; (e = readdir(list));) {
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (!stat(path, &info) && S_ISREG(info.st_mode)) n += (uint64_t)info.st_size;
    }
    closedir(list);
    return n;
}

static void the_oldest_files_go_when_the_disk_budget_is_used_up(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_session_info info;
    begin_with(&b, CONFIG(.state_disk_bytes = BUDGET));
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "px", .pin = true}, &info, NULL)) fail();
    turn_ok(&b.c, nth_turn(&a, "px", 0), &a);
    collect_free(&a);
    for (int i = 0; i < 9; i++) {
        const char id[] = {(char)('a' + i), 'x', 0};
        turn_ok(&b.c, nth_turn(&a, id, 0), &a);
        collect_free(&a);
        const uint64_t n_bytes = bytes_in_folder(); /* at once: room was made before the file was written */
        if (n_bytes > BUDGET) fail_msg("%llu bytes of files, the budget is %d", (unsigned long long)n_bytes, BUDGET);
    }
    assert_int_equal(count_in(dir, ".state"), 5);
    assert_int_equal(stats_of(b.c.engine).sessions_evicted, 5);
    assert_int_equal(stats_of(b.c.engine).sessions, 5);
    assert_int_equal(rod_session_get(b.c.engine, "", "ex", &info, NULL), ROD_ENOTFOUND);
    assert_int_equal(session_info(b.c.engine, "ix").version, 1);
    assert_int_equal(session_info(b.c.engine, "px").version, 1);
    setup_close(&b);
}

static bool within_four_budgets(struct setup *b) { return stats_of(b->c.engine).state_file_bytes <= 4 * BUDGET; }

/* Of a turn that is over: it has generated, so it is not turn_fails. */
static void turn_fails_as(struct setup *b, const char *id, uint32_t n, int code) {
    struct answer a;
    turn_run(&b->c, nth_turn(&a, id, n), &a);
    if (!a.failed || a.end.error.code != code)
        fail_msg("session %s: %s, want %s", id, a.failed ? rod_code_name(a.end.error.code) : "kept",
                 rod_code_name(code));
    collect_free(&a);
}

/* Each makes room for itself and no more, whatever the others do at that moment. */
static void sessions_that_end_together_make_room_for_as_many_as_they_are(void **state) {
    (void)state;
    enum { SESSIONS = 40, ROUNDS = 4 };
    struct setup b;
    struct answer a[SESSIONS];
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 16, .max_batch_tok = 256),
               CONFIG(.state_dir = dir, .state_host_bytes = 64u << 20,
                      .state_disk_bytes = (uint64_t)4 * BUDGET)); /* 21 files */
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < SESSIONS; i++)
            collect_submit(&b.c,
                           nth_turn(&a[i], (char[]){(char)('a' + i % 26), (char)('p' + i / 26 + 2 * round), 0}, 0));
        collect_until(&b.c, a, SESSIONS);
        for (int i = 0; i < SESSIONS; i++) {
            if (a[i].failed) fail_msg("%s", a[i].end.error.message);
            collect_free(&a[i]);
        }
        const uint64_t n_bytes = bytes_in_folder(), least = (uint64_t)3 * BUDGET;
        if (n_bytes > 4 * BUDGET + 16 * 17000 || n_bytes < least)
            fail_msg("%llu bytes of files, the budget is %d", (unsigned long long)n_bytes, 4 * BUDGET);
    }
    wait_for(within_four_budgets, &b, "more bytes of files than the budget");
    assert_true(bytes_in_folder() <= 4 * BUDGET);
    assert_in_range(count_in(dir, ".state"), 20, 24);
    setup_close(&b);
}

/* What is pinned is not removed, so it counts: a file that could never be within the budget beside it is refused, and
 * not made to be removed at once. */
static void pinned_sessions_can_use_up_the_disk_budget(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_session_info info;
    struct rod_error err;
    begin_with(&b, CONFIG(.state_disk_bytes = BUDGET));
    for (int i = 0; i < 5; i++) {
        const char id[] = {(char)('a' + i), 'p', 0};
        if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = id, .pin = true}, &info, &err))
            fail_msg("%s", err.message);
        turn_ok(&b.c, nth_turn(&a, id, 0), &a);
        collect_free(&a);
    }
    turn_fails_as(&b, "zz", 0, ROD_ENOROOM);
    assert_int_equal(rod_session_get(b.c.engine, "", "zz", &info, NULL), ROD_ENOTFOUND);
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "ep2", .pin = true}, &info, &err))
        fail_msg("%s", err.message); /* small enough */
    turn_fails_as(&b, "ep2", 0, ROD_ENOROOM);
    assert_int_equal(session_info(b.c.engine, "ep2").version, 0);
    assert_int_equal(stats_of(b.c.engine).sessions_evicted, 0);
    assert_int_equal(stats_of(b.c.engine).state_no_room, 2);
    assert_int_equal(stats_of(b.c.engine).state_save_failures, 0); /* the disk is well */
    assert_true(bytes_in_folder() <= BUDGET);
    turn_ok(&b.c, nth_turn(&a, "ap", 1), &a); /* takes its own place */
    collect_free(&a);
    if (rod_session_delete(b.c.engine, "", "bp", &err)) fail_msg("%s", err.message);
    turn_ok(&b.c, nth_turn(&a, "ep2", 0), &a);
    collect_free(&a);
    assert_true(bytes_in_folder() <= BUDGET);
    setup_close(&b);
}

static bool one_is_left(struct setup *b) { return stats_of(b->c.engine).sessions == 1; }

static void sessions_expire(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_session_info info, *infos;
    size_t n;
    bool has_more;
    begin_with(&b, CONFIG(.session_ttl_s = 3));
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    turn_ok(&b.c, nth_turn(&a, "bb", 0), &a);
    collect_free(&a);
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "p", .from = "aa", .pin = true}, &info,
                           NULL))
        fail();
    wait_for(one_is_left, &b, "sessions whose time is over are there");
    assert_int_equal(count_in(dir, ".state"), 1);
    assert_int_equal(stats_of(b.c.engine).sessions_expired, 2);
    if (rod_session_list(b.c.engine, "", NULL, 10, &infos, &n, &has_more, NULL)) fail();
    assert_true(n == 1 && !strcmp(infos[0].id, "p"));
    free(infos);
    struct rod_request *r = nth_turn(&a, "aa", 1);
    r->turn->create = false;
    turn_fails(&b.c, r, &a, ROD_ENOTFOUND);
    setup_close(&b);
}

/* ---- later ---- */

static void a_lazy_session_is_written_at_the_end(void **state) {
    (void)state;
    struct setup b, plain;
    struct answer a, want;
    begin_in_memory(&plain);
    begin_with(&b, CONFIG(.session_lazy = true));
    for (uint32_t n = 0; n < 3; n++) {
        turn_ok(&b.c, nth_turn(&a, "aa", n), &a);
        turn_ok(&plain.c, nth_turn(&want, "aa", n), &want);
        assert_same(&a, &want, "a lazy session");
        collect_free(&a), collect_free(&want);
    }
    assert_int_equal(stats_of(b.c.engine).state_saves, 0);
    assert_int_equal(count_in(dir, ".state"), 0);
    setup_close(&b);
    assert_int_equal(count_in(dir, ""), 1);
    begin_with(&b, CONFIG(.session_lazy = true));
    assert_int_equal(session_info(b.c.engine, "aa").version, 3);
    turn_ok(&b.c, nth_turn(&a, "aa", 3), &a);
    turn_ok(&plain.c, nth_turn(&want, "aa", 3), &want);
    assert_same(&a, &want, "a lazy session after a restart");
    collect_free(&a), collect_free(&want);
    setup_close(&b), setup_close(&plain);
}

/* Somebody empties the folder while memory is newer than a file in it: that is written again, as if nothing had been.
 */
static void a_lazy_session_outlives_its_file(void **state) {
    (void)state;
    struct setup b, plain;
    struct answer a, want;
    struct rod_session_info info, *infos;
    struct rod_error err;
    size_t n;
    bool more;
    char command[128];
    begin_in_memory(&plain);
    begin_with(&b, CONFIG(.session_lazy = true));
    for (uint32_t i = 0; i < 2; i++)
        if (rod_session_create(i ? plain.c.engine : b.c.engine, "", &(struct rod_session_new){.id = "aa"}, &info, &err))
            fail_msg("%s", err.message);
    for (uint32_t i = 0; i < 2; i++) {
        turn_ok(&b.c, nth_turn(&a, "aa", i), &a);
        turn_ok(&plain.c, nth_turn(&want, "aa", i), &want);
        assert_same(&a, &want, "a lazy session");
        collect_free(&a), collect_free(&want);
        assert_int_equal(count_in(dir, ".state"), !i);
        snprintf(command, sizeof command, "rm -f %s/*.state", dir);
        assert_int_equal(system(command), 0);
        if (rod_session_list(b.c.engine, "", NULL, 10, &infos, &n, &more, &err)) fail_msg("%s", err.message);
        assert_int_equal(n, 1);
        assert_int_equal(infos[0].version, i + 1);
        free(infos);
    }
    setup_close(&b);
    assert_int_equal(count_in(dir, ""), 1);
    begin_with(&b, CONFIG(.session_lazy = true));
    turn_ok(&b.c, nth_turn(&a, "aa", 2), &a);
    turn_ok(&plain.c, nth_turn(&want, "aa", 2), &want);
    assert_same(&a, &want, "a lazy session after a restart");
    collect_free(&a), collect_free(&want);
    setup_close(&b), setup_close(&plain);
}

static void lazy_sessions_are_written_when_memory_is_full(void **state) {
    (void)state;
    enum { SESSIONS = 20, ROUNDS = 3 };
    struct setup b, plain;
    struct answer a, want;
    begin_in_memory(&plain);
    begin_with(&b, CONFIG(.session_lazy = true, .state_host_bytes = state_pool_bytes(5, sizeof(struct fake_state))));
    for (uint32_t n = 0; n < ROUNDS; n++)
        for (int i = 0; i < SESSIONS; i++) {
            const char id[] = {(char)('a' + i), 'x', 0};
            turn_ok(&b.c, nth_turn(&a, id, n), &a);
            turn_ok(&plain.c, nth_turn(&want, id, n), &want);
            assert_same(&a, &want, "lazy, out of memory and back");
            collect_free(&a), collect_free(&want);
        }
    const struct rod_stats stats = stats_of(b.c.engine);
    assert_true(stats.state_saves > 0 && stats.state_saves <= SESSIONS * ROUNDS);
    assert_int_equal(stats.sessions, SESSIONS);
    setup_close(&b), setup_close(&plain);
}

/* A session that is not written yet keeps its lease, and a process has so many files. */
static void many_lazy_sessions_do_not_use_up_the_open_files(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rlimit before, little;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    little = before;
    little.rlim_cur = 400;
    begin_with(&b, CONFIG(.session_lazy = true));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &little), 0);
    for (int i = 0; i < 1000; i++) {
        char id[16];
        snprintf(id, sizeof id, "ma%d", i);
        turn_ok(&b.c, nth_turn(&a, id, 0), &a);
        collect_free(&a);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(stats_of(b.c.engine).state_saves >= 700);
    setup_close(&b);
    assert_int_equal(count_in(dir, ""), 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_full_disk_fails_that_turn_alone),
        IN_A_FOLDER(a_folder_that_is_gone_fails_turns_and_nothing_else),
        IN_A_FOLDER(a_folder_that_is_exchanged_is_as_one_that_is_gone),
        IN_A_FOLDER(a_full_disk_and_a_full_memory_refuse_turns_at_once),
        IN_A_FOLDER(a_session_says_whether_it_is_on_disk),
        IN_A_FOLDER(a_fork_on_a_full_disk_is_no_secret),
        IN_A_FOLDER(more_sessions_than_memory_come_back_from_their_files),
        IN_A_FOLDER(without_files_the_session_used_longest_ago_makes_room),
        IN_A_FOLDER(the_oldest_files_go_when_the_disk_budget_is_used_up),
        IN_A_FOLDER(sessions_that_end_together_make_room_for_as_many_as_they_are),
        IN_A_FOLDER(pinned_sessions_can_use_up_the_disk_budget),
        IN_A_FOLDER(sessions_expire),
        IN_A_FOLDER(a_lazy_session_is_written_at_the_end),
        IN_A_FOLDER(a_lazy_session_outlives_its_file),
        IN_A_FOLDER(lazy_sessions_are_written_when_memory_is_full),
        IN_A_FOLDER(many_lazy_sessions_do_not_use_up_the_open_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
