/* test_sessions_shared.c - servers that share a folder of sessions. Over the fake device. */
#include "tests/sessions_folder.h"

static const int32_t first[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static void a_session_moves_by_its_next_turn(void **state) {
    (void)state;
    struct bench b[2], plain;
    struct answer a, want;
    struct rod_error err;
    struct rod_session_info *infos;
    size_t n_infos;
    bool has_more;
    begin_in_memory(&plain);
    BEGIN(&b[0]);
    BEGIN(&b[1]);
    for (uint32_t n = 0; n < 12; n++) {
        struct bench *at = &b[n % 3 == 1 || n % 5 == 3];
        turn_ok(&at->c, nth_turn(&a, "aa", n), &a);
        turn_ok(&plain.c, nth_turn(&want, "aa", n), &want);
        assert_same(&a, &want, "on another server");
        collect_free(&a), collect_free(&want);
        for (int i = 0; i < 2; i++) assert_int_equal(session_info(b[i].c.engine, "aa").version, n + 1);
    }
    if (rod_session_fork(b[0].c.engine, "", "aa", "bb", &(struct rod_session_info){0}, &err)) fail();
    while (count_in(dir, ".state") < 2 || count_in(dir, ".lease")) usleep(1000);
    if (rod_session_list(b[1].c.engine, "", NULL, 10, &infos, &n_infos, &has_more, &err)) fail();
    assert_int_equal(n_infos, 2);
    free(infos);
    if (rod_session_delete(b[1].c.engine, "", "aa", &err)) fail_msg("%s", err.message);
    struct rod_request *r = nth_turn(&a, "aa", 12);
    r->turn->create = false;
    turn_fails(&b[0].c, r, &a, ROD_ENOTFOUND); /* although it was in its memory */
    assert_int_equal(count_in(dir, ""), 1);
    bench_close(&b[0]), bench_close(&b[1]), bench_close(&plain);
}

static void two_servers_never_have_one_session_at_once(void **state) {
    (void)state;
    struct bench b[2], plain;
    struct answer a, z[2], want;
    begin_in_memory(&plain);
    BEGIN(&b[0]);
    begin_with(&b[1], CONFIG(.session_reject = true));
    collect_submit(&b[0].c, turn_request(&a, "aa", first, 11, 1000000));
    while (!a.n_ids) collect_now(&b[0].c);
    turn_fails(&b[1].c, nth_turn(&z[0], "aa", 1), &z[0], ROD_EBUSY);
    assert_int_equal(rod_session_delete(b[1].c.engine, "", "aa", NULL), ROD_EBUSY);
    rod_cancel(b[0].c.engine, a.ticket);
    collect_until(&b[0].c, &a, 1);
    collect_free(&a);
    bench_close(&b[1]);
    BEGIN(&b[1]);
    collect_submit(&b[0].c, turn_request(&a, "aa", first, 11, 300));
    while (!a.n_ids) collect_now(&b[0].c);
    for (int i = 0; i < 2; i++) collect_submit(&b[1].c, nth_turn(&z[i], "aa", (uint32_t)i)); /* they wait */
    collect_until(&b[0].c, &a, 1);
    collect_until(&b[1].c, z, 2);
    turn_ok(&plain.c, turn_request(&want, "aa", first, 11, 300), &want);
    collect_assert_ids(&a, want.ids, 300, "the first server's turn");
    collect_free(&a), collect_free(&want);
    for (uint32_t i = 0; i < 2; i++) {
        turn_ok(&plain.c, nth_turn(&want, "aa", i), &want);
        assert_same(&z[i], &want, "after the other server's turn");
        collect_free(&z[i]), collect_free(&want);
    }
    assert_int_equal(count_in(dir, ""), 1);
    bench_close(&b[0]), bench_close(&b[1]), bench_close(&plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_session_moves_by_its_next_turn),
        IN_A_FOLDER(two_servers_never_have_one_session_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
