/* test_sessions_room.c - sessions where room ends: disks that take no file, budgets of memory and files, time, states
 * that are written later. Over the fake device. */
#include "tests/sessions_folder.h"

#include <signal.h>
#include <sys/resource.h>

static const int32_t first[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* ---- disks that do not take a file ---- */

static void a_full_disk_fails_that_turn_alone(void **state) {
    (void)state;
    struct bench b, plain;
    struct answer a, want;
    struct rlimit before, little;
    begin_in_memory(&plain);
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    turn_ok(&plain.c, nth_turn(&want, "aa", 0), &want);
    collect_free(&a), collect_free(&want);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 5000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
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
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
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
    bench_close(&b), bench_close(&plain);
}

static void a_folder_that_is_gone_fails_turns_and_nothing_else(void **state) {
    (void)state;
    struct bench b;
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
    bench_close(&b);
}

/* ---- budgets ---- */

static void more_sessions_than_memory_come_back_from_their_files(void **state) {
    (void)state;
    enum { SESSIONS = 24, ROUNDS = 4 };
    struct bench b, plain;
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
    bench_close(&b), bench_close(&plain);
}

static void without_files_the_session_used_longest_ago_makes_room(void **state) {
    (void)state;
    struct bench b;
    struct answer a;
    bench_open(&b, OPTIONS(.kind = FAKE_HASH),
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
    bench_close(&b);
}

static bool within_budget(struct bench *b) { return stats_of(b->c.engine).state_file_bytes <= 5 * 20000; }

static void the_oldest_files_go_when_the_disk_budget_is_used_up(void **state) {
    (void)state;
    struct bench b;
    struct answer a;
    struct rod_session_info info;
    begin_with(&b, CONFIG(.state_disk_bytes = 5 * 20000)); /* a file has some 16,700 bytes */
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "px", .pin = true}, &info, NULL)) fail();
    turn_ok(&b.c, nth_turn(&a, "px", 0), &a);
    collect_free(&a);
    for (int i = 0; i < 9; i++) {
        const char id[] = {(char)('a' + i), 'x', 0};
        turn_ok(&b.c, nth_turn(&a, id, 0), &a);
        collect_free(&a);
    }
    wait_for(within_budget, &b, "more bytes of files than the budget");
    assert_int_equal(count_in(dir, ".state"), 5);
    assert_int_equal(stats_of(b.c.engine).sessions_evicted, 5);
    assert_int_equal(stats_of(b.c.engine).sessions, 5);
    assert_int_equal(rod_session_get(b.c.engine, "", "ex", &info, NULL), ROD_ENOTFOUND);
    assert_int_equal(session_info(b.c.engine, "ix").version, 1);
    assert_int_equal(session_info(b.c.engine, "px").version, 1);
    bench_close(&b);
}

static bool one_is_left(struct bench *b) { return stats_of(b->c.engine).sessions == 1; }

static void sessions_expire(void **state) {
    (void)state;
    struct bench b;
    struct answer a;
    struct rod_session_info info, *infos;
    size_t n;
    bool has_more;
    begin_with(&b, CONFIG(.session_ttl_s = 1));
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
    bench_close(&b);
}

/* ---- later ---- */

static void a_lazy_session_is_written_at_the_end(void **state) {
    (void)state;
    struct bench b, plain;
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
    bench_close(&b);
    assert_int_equal(count_in(dir, ""), 1);
    begin_with(&b, CONFIG(.session_lazy = true));
    assert_int_equal(session_info(b.c.engine, "aa").version, 3);
    turn_ok(&b.c, nth_turn(&a, "aa", 3), &a);
    turn_ok(&plain.c, nth_turn(&want, "aa", 3), &want);
    assert_same(&a, &want, "a lazy session after a restart");
    collect_free(&a), collect_free(&want);
    bench_close(&b), bench_close(&plain);
}

static void lazy_sessions_are_written_when_memory_is_full(void **state) {
    (void)state;
    enum { SESSIONS = 20, ROUNDS = 3 };
    struct bench b, plain;
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
    bench_close(&b), bench_close(&plain);
}

/* A session that is not written yet keeps its lease, and a process has so many files. */
static void many_lazy_sessions_do_not_use_up_the_open_files(void **state) {
    (void)state;
    struct bench b;
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
    bench_close(&b);
    assert_int_equal(count_in(dir, ""), 1000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_full_disk_fails_that_turn_alone),
        IN_A_FOLDER(a_folder_that_is_gone_fails_turns_and_nothing_else),
        IN_A_FOLDER(more_sessions_than_memory_come_back_from_their_files),
        IN_A_FOLDER(without_files_the_session_used_longest_ago_makes_room),
        IN_A_FOLDER(the_oldest_files_go_when_the_disk_budget_is_used_up),
        IN_A_FOLDER(sessions_expire),
        IN_A_FOLDER(a_lazy_session_is_written_at_the_end),
        IN_A_FOLDER(lazy_sessions_are_written_when_memory_is_full),
        IN_A_FOLDER(many_lazy_sessions_do_not_use_up_the_open_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
