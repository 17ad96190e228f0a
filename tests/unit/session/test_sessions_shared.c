/* test_sessions_shared.c - servers that share a folder of sessions. Over the fake device. */
#include "tests/sessions_folder.h"

static const int32_t first[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static void a_session_moves_by_its_next_turn(void **state) {
    (void)state;
    struct setup b[2], plain;
    struct answer a, want;
    struct rod_error err;
    struct rod_session_info *infos;
    size_t n_infos;
    bool has_more;
    begin_in_memory(&plain);
    BEGIN(&b[0]);
    BEGIN(&b[1]);
    for (uint32_t n = 0; n < 12; n++) {
        struct setup *at = &b[n % 3 == 1 || n % 5 == 3];
        turn_ok(&at->c, nth_turn(&a, "aa", n), &a);
        turn_ok(&plain.c, nth_turn(&want, "aa", n), &want);
        assert_same(&a, &want, "on another server");
        collect_free(&a), collect_free(&want);
        for (int i = 0; i < 2; i++) assert_int_equal(session_info(b[i].c.engine, "aa").version, n + 1);
    }
    if (rod_session_create(b[0].c.engine, "", &(struct rod_session_new){.id = "bb", .from = "aa"},
                           &(struct rod_session_info){0}, &err))
        fail();
    assert_int_equal(count_in(dir, ".state"), 2);
    assert_int_equal(count_in(dir, ".lease"), 0);
    if (rod_session_list(b[1].c.engine, "", NULL, 10, &infos, &n_infos, &has_more, &err)) fail();
    assert_int_equal(n_infos, 2);
    free(infos);
    if (rod_session_delete(b[1].c.engine, "", "aa", &err)) fail_msg("%s", err.message);
    struct rod_request *r = nth_turn(&a, "aa", 12);
    r->turn->create = false;
    turn_fails(&b[0].c, r, &a, ROD_ENOTFOUND); /* although it was in its memory */
    assert_int_equal(count_in(dir, ".state"), 1);
    setup_close(&b[0]), setup_close(&b[1]), setup_close(&plain);
}

static void two_servers_never_have_one_session_at_once(void **state) {
    (void)state;
    struct setup b[2], plain;
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
    setup_close(&b[1]);
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
    setup_close(&b[0]), setup_close(&b[1]), setup_close(&plain);
}

static int64_t second_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec;
}

static void begin_from(struct setup *b, const char *from, const char *id) {
    struct rod_session_info info;
    struct rod_error err;
    if (rod_session_create(b->c.engine, "", &(struct rod_session_new){.id = id, .from = from, .pin = true}, &info,
                           &err))
        fail_msg("%s from %s: %s", id, from, err.message);
}

/* A session that others only begin from is used, whichever server they ask, and also after a restart; and nobody reads
 * its state again for that. */
static void to_be_begun_from_is_use_for_all_servers(void **state) {
    (void)state;
    struct setup b[2];
    struct answer a;
    struct rod_session_info info;
    begin_with(&b[0], CONFIG(.session_ttl_s = 3));
    begin_with(&b[1], CONFIG(.session_ttl_s = 3));
    turn_ok(&b[0].c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    turn_ok(&b[0].c, nth_turn(&a, "zz", 0), &a); /* nobody uses this one */
    collect_free(&a);
    const int64_t begin_s = second_now();
    int64_t used_s = 0;
    for (int n = 0; second_now() < begin_s + 6; n++) {
        char id[16];
        snprintf(id, sizeof id, "f%d", n);
        used_s = second_now();
        begin_from(&b[1], "aa", id);
        const int64_t reported_s = session_info(b[0].c.engine, "aa").used_unix_s;
        if (reported_s < used_s)
            fail_msg("the other server began from it at %lld; this one says %lld", (long long)used_s,
                     (long long)reported_s);
        usleep(400000);
    }
    assert_int_equal(rod_session_get(b[0].c.engine, "", "zz", &info, NULL), ROD_ENOTFOUND);
    const uint64_t loads = stats_of(b[0].c.engine).state_loads;
    turn_ok(&b[0].c, nth_turn(&a, "aa", 1), &a);
    assert_int_equal(a.end.session_version, 2);
    assert_int_equal(stats_of(b[0].c.engine).state_loads, loads); /* it was in memory as it is */
    collect_free(&a);
    sleep(1);
    used_s = second_now();
    begin_from(&b[1], "aa", "last");
    setup_close(&b[0]), setup_close(&b[1]);
    begin_with(&b[0], CONFIG(.session_ttl_s = 3));
    assert_true(session_info(b[0].c.engine, "aa").used_unix_s >= used_s);
    setup_close(&b[0]);
}

/* The order in which files go for the budget, when a session was begun from on another server and before a restart. */
static void the_order_of_use_is_that_of_all_servers(void **state) {
    (void)state;
    enum { BUDGET = 2 * 21000 };
    struct setup b[2];
    struct answer a;
    struct rod_session_info info;
    for (int restarted = 0; restarted < 2; restarted++) {
        BEGIN(&b[0]);
        for (int i = 0; i < 2; i++) {
            const char id[] = {(char)('a' + i), restarted ? 'r' : 'x', 0};
            turn_ok(&b[0].c, nth_turn(&a, id, 0), &a);
            collect_free(&a);
            sleep(1);
        }
        setup_close(&b[0]);
        begin_with(&b[0], CONFIG(.state_disk_bytes = restarted ? 0 : BUDGET));
        BEGIN(&b[1]);
        const char first_id[] = {'a', restarted ? 'r' : 'x', 0}, second_id[] = {'b', first_id[1], 0};
        if (rod_session_create(b[1].c.engine, "", &(struct rod_session_new){.id = "made", .from = first_id}, &info,
                               NULL))
            fail();
        while (count_in(dir, ".state") < 3) usleep(1000);
        if (rod_session_delete(b[1].c.engine, "", "made", NULL)) fail();
        if (restarted) {
            setup_close(&b[0]);
            begin_with(&b[0], CONFIG(.state_disk_bytes = BUDGET));
        }
        turn_ok(&b[0].c, nth_turn(&a, "new", 0), &a); /* one must go: not the first, though it was written first */
        collect_free(&a);
        assert_int_equal(count_in(dir, ".state"), 2);
        assert_int_equal(rod_session_get(b[0].c.engine, "", second_id, &info, NULL), ROD_ENOTFOUND);
        assert_int_equal(session_info(b[0].c.engine, first_id).version, 1);
        setup_close(&b[0]), setup_close(&b[1]);
        remove_dir(dir);
        dir = make_dir();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_session_moves_by_its_next_turn),
        IN_A_FOLDER(two_servers_never_have_one_session_at_once),
        IN_A_FOLDER(to_be_begun_from_is_use_for_all_servers),
        IN_A_FOLDER(the_order_of_use_is_that_of_all_servers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
