/* test_sessions_store_lazy.c - lazy turns of servers that share a store: they end before their sessions are written,
 * and no other server goes on without them. Over the fake device. */
#include "tests/sessions_store.h"

struct pair {
    struct memory_store m;
    struct server v[2];
    struct setup plain;
};

static void open_pair(struct pair *p) {
    memory_open_store(&p->m);
    begin_in_memory(&p->plain);
    for (int i = 0; i < 2; i++) server_open(&p->v[i], &p->m, (uint64_t)i, CONFIG(.session_lazy = true));
}

static void close_pair(struct pair *p) {
    for (int i = 0; i < 2; i++) setup_close(&p->v[i].b);
    setup_close(&p->plain);
    memory_close_store(&p->m);
}

/* On a server, as on one that was never restarted. */
static void same_turn(struct pair *p, int at, uint32_t n) {
    struct answer a, want;
    turn_ok(&p->v[at].b.c, nth_turn(&a, "aa", n), &a);
    turn_ok(&p->plain.c, nth_turn(&want, "aa", n), &want);
    assert_same(&a, &want, "a lazy turn");
    collect_free(&a), collect_free(&want);
}

/* A session of one turn is in the store, and each server knows of it. */
static void open_written(struct pair *p) {
    open_pair(p);
    same_turn(p, 0, 0);
    store_wait(memory_count, &p->m, ".lazy", 0, 5000);
}

static void fails_with(struct server *v, struct answer *a, int code) {
    collect_until(&v->b.c, a, 1);
    if (!a->failed || a->end.error.code != code)
        fail_msg("%s, want %s", a->failed ? rod_code_name(a->end.error.code) : "a good turn", rod_code_name(code));
    collect_free(a);
}

static void a_turn_waits_for_what_another_server_is_writing(void **state) {
    (void)state;
    struct pair p;
    struct answer a, want;
    open_pair(&p);
    for (uint32_t n = 0; n < 10; n += 2) {
        const size_t n_written = memory_count(&p.m, ".state");
        atomic_store(&p.v[0].client.held, true);
        same_turn(&p, 0, n); /* it has ended */
        assert_int_equal(memory_count(&p.m, ".state"), n_written);
        assert_int_equal(memory_count(&p.m, ".lazy"), 1);
        collect_submit(&p.v[1].b.c, nth_turn(&a, "aa", n + 1));
        usleep(250000);
        collect_now(&p.v[1].b.c);
        assert_false(a.ended);
        atomic_store(&p.v[0].client.held, false);
        collect_until(&p.v[1].b.c, &a, 1);
        turn_ok(&p.plain.c, nth_turn(&want, "aa", n + 1), &want);
        assert_same(&a, &want, "behind the other server's lazy turn");
        collect_free(&a), collect_free(&want);
        store_wait(memory_count, &p.m, ".lazy", 0, 5000);
    }
    close_pair(&p);
}

/* What looks at it, begins from it or removes it on another server waits, too. */
static void nobody_misses_what_another_server_is_writing(void **state) {
    (void)state;
    struct pair p;
    struct answer a, want;
    struct rod_error err;
    open_pair(&p);
    for (uint32_t n = 0; n < 4; n++) {
        atomic_store(&p.v[0].client.held, true);
        same_turn(&p, 0, n);
        struct rod_request *r = nth_turn(&a, n % 2 ? "bb" : "cc", n + 1);
        char id[8];
        snprintf(id, sizeof id, "f%u", n);
        free(r->turn->session);
        r->turn->session = strdup(id);
        r->turn->from = strdup("aa");
        collect_submit(&p.v[1].b.c, r);
        usleep(150000);
        collect_now(&p.v[1].b.c);
        assert_false(a.ended);
        atomic_store(&p.v[0].client.held, false);
        if (n % 2) assert_int_equal(session_info(p.v[1].b.c.engine, "aa").version, n + 1);
        collect_until(&p.v[1].b.c, &a, 1);
        r = nth_turn(&want, n % 2 ? "bb" : "cc", n + 1);
        free(r->turn->session);
        r->turn->session = strdup(id);
        r->turn->from = strdup("aa");
        turn_ok(&p.plain.c, r, &want);
        assert_same(&a, &want, "a fork of a lazy turn");
        collect_free(&a), collect_free(&want);
    }
    atomic_store(&p.v[0].client.delay_us, 50000);
    turn_ok(&p.v[0].b.c, nth_turn(&a, "new", 0), &a);
    collect_free(&a);
    if (rod_session_delete(p.v[1].b.c.engine, "", "new", &err)) fail_msg("%s", err.message);
    close_pair(&p);
}

static void wait_running(struct server *v) {
    for (int ms = 0; stats_of(v->b.c.engine).running == 0; ms++, usleep(1000))
        if (ms > 10000) fail_msg("the turn does not begin");
}

/* They began from one version, and nobody hears of the turn that lost. */
static void of_two_lazy_turns_from_one_version_one_ends(void **state) {
    (void)state;
    for (int held = 0; held < 2; held++) {
        struct pair p;
        struct answer a;
        open_written(&p);
        atomic_store(&p.v[0].b.be->gated, true);
        collect_submit(&p.v[0].b.c, nth_turn(&a, "aa", 5));
        wait_running(&p.v[0]);
        atomic_store(&p.v[1].client.held, held);
        same_turn(&p, 1, 1);
        if (!held) store_wait(memory_count, &p.m, ".lazy", 0, 5000);
        fake_release(p.v[0].b.be);
        fails_with(&p.v[0], &a, ROD_ECONFLICT);
        atomic_store(&p.v[1].client.held, false);
        same_turn(&p, 0, 2);
        same_turn(&p, 1, 3);
        close_pair(&p);
    }
}

/* One call fails, or leaves nobody knowing: when the turn begins, or when its mark is claimed. */
static void a_moments_fault_lets_no_second_turn_end(void **state) {
    (void)state;
    for (int kind = 0; kind < 12; kind++) {
        const bool held = kind % 2, at_begin = kind / 2 % 2;
        struct pair p;
        struct answer a;
        open_written(&p);
        atomic_store(&p.v[0].b.be->gated, true);
        p.v[0].client.unsure_at = kind / 4;
        atomic_store(&p.v[0].client.fail_at, at_begin);
        collect_submit(&p.v[0].b.c, nth_turn(&a, "aa", 5));
        wait_running(&p.v[0]);
        atomic_store(&p.v[1].client.held, held);
        same_turn(&p, 1, 1);
        if (!held) store_wait(memory_count, &p.m, ".lazy", 0, 5000);
        atomic_store(&p.v[0].client.fail_at, !at_begin);
        fake_release(p.v[0].b.be);
        fails_with(&p.v[0], &a, ROD_ECONFLICT);
        atomic_store(&p.v[1].client.held, false);
        same_turn(&p, 0, 2);
        same_turn(&p, 1, 3);
        close_pair(&p);
    }
}

/* A server that is away for longer than others wait has lost its lazy turn, and overwrites nothing when it is back. */
static void a_lost_servers_lazy_turn_is_gone_and_what_was_written_stays(void **state) {
    (void)state;
    struct pair p;
    struct answer a;
    open_written(&p);
    atomic_store(&p.v[0].client.held, true);
    turn_ok(&p.v[0].b.c, nth_turn(&a, "aa", 7), &a);
    collect_free(&a);
    const uint64_t begun_ns = clock_now_ns();
    for (uint64_t tries = 0, asked_ns = begun_ns; tries < 9; tries++, asked_ns = clock_now_ns()) {
        collect_submit(&p.v[1].b.c, nth_turn(&a, "aa", 1));
        collect_until(&p.v[1].b.c, &a, 1);
        const bool failed = a.failed;
        if (clock_now_ns() - asked_ns > (uint64_t)10 * 1000000000u) fail_msg("a turn that waited longer than 10 s");
        if (failed && a.end.error.code != ROD_EIO) fail_msg("%s", a.end.error.message);
        collect_free(&a);
        if (!failed) break;
        assert_true(tries < 8);
    }
    assert_true(clock_now_ns() - begun_ns >= (uint64_t)19 * 1000000000u); /* a slow write is no lost server */
    turn_ok(&p.plain.c, nth_turn(&a, "aa", 1), &a);
    collect_free(&a);
    store_wait(memory_count, &p.m, ".lazy", 0, 5000);
    atomic_store(&p.v[0].client.held, false);
    same_turn(&p, 0, 2);
    same_turn(&p, 1, 3);
    close_pair(&p);
}

/* While the store is away, a session whose mark stands goes on in memory; all of it is written later. */
static void with_the_store_away_lazy_turns_go_on_in_memory(void **state) {
    (void)state;
    struct pair p;
    open_pair(&p);
    atomic_store(&p.v[0].client.held, true);
    same_turn(&p, 0, 0);
    while (!atomic_load(&p.v[0].client.n_held)) usleep(1000);
    atomic_store(&p.v[0].client.dead, true);
    atomic_store(&p.v[0].client.held, false);
    for (uint32_t n = 1; n < 5; n++) same_turn(&p, 0, n);
    atomic_store(&p.v[0].client.dead, false);
    same_turn(&p, 1, 5);
    same_turn(&p, 0, 6);
    close_pair(&p);
}

/* Nothing of it is on the way: what is in memory counts, and is written when the store is back. What is not is refused,
 * with all that wait for it. */
static void without_the_store_a_written_session_goes_on_in_memory(void **state) {
    (void)state;
    struct pair p;
    struct answer a;
    open_written(&p);
    same_turn(&p, 1, 1);
    store_wait(memory_count, &p.m, ".lazy", 0, 5000);
    same_turn(&p, 0, 2);
    store_wait(memory_count, &p.m, ".lazy", 0, 5000);
    atomic_store(&p.v[0].client.dead, true);
    for (uint32_t n = 3; n < 9; n++) same_turn(&p, 0, n);
    collect_submit(&p.v[0].b.c, nth_turn(&a, "nobody", 0));
    fails_with(&p.v[0], &a, ROD_EIO);
    atomic_store(&p.v[0].client.dead, false);
    usleep(6000000); /* until its write was tried again */
    same_turn(&p, 0, 9);
    store_wait(memory_count, &p.m, ".lazy", 0, 5000);
    same_turn(&p, 1, 10);
    close_pair(&p);
}

/* A turn that went on without the store gives way to another server's. */
static void what_went_on_in_memory_gives_way_to_what_the_store_has(void **state) {
    (void)state;
    struct pair p;
    struct answer a;
    open_written(&p);
    atomic_store(&p.v[0].client.dead, true);
    turn_ok(&p.v[0].b.c, nth_turn(&a, "aa", 7), &a);
    collect_free(&a);
    same_turn(&p, 1, 1);
    store_wait(memory_count, &p.m, ".lazy", 0, 5000);
    atomic_store(&p.v[0].client.dead, false);
    usleep(6000000); /* until its write was tried again */
    same_turn(&p, 0, 2);
    same_turn(&p, 1, 3);
    close_pair(&p);
}

/* The store took the write, and its answer was lost; or it did not take it. */
static void a_lazy_write_of_which_nobody_knows_is_settled(void **state) {
    (void)state;
    for (int done = 1; done <= 2; done++)
        for (uint32_t more = 0; more < 3; more += 2) {
            struct pair p;
            open_written(&p);
            p.v[0].client.unsure_at = done;
            atomic_store(&p.v[0].client.fail_at, 5); /* mark, session, mark, version, write */
            for (uint32_t n = 1; n <= 1 + more; n++) same_turn(&p, 0, n);
            same_turn(&p, 1, 2 + more);
            same_turn(&p, 0, 3 + more);
            close_pair(&p);
        }
}

/* Of a session that nobody asks for again; a mark that may be a living server's stays. */
static void marks_of_a_lost_server_are_swept_when_they_are_old(void **state) {
    (void)state;
    struct memory_store m;
    struct server v;
    struct answer a;
    memory_open_store(&m);
    for (int young = 0; young < 2; young++) {
        server_open(&v, &m, 1, CONFIG(.session_lazy = true));
        atomic_store(&v.client.held, true);
        turn_ok(&v.b.c, nth_turn(&a, young ? "young" : "old", 0), &a);
        collect_free(&a);
        atomic_store(&v.client.dead, true);
        atomic_store(&v.client.held, false);
        setup_close(&v.b);
        m.ahead_s += 1800 + 60; /* each */
    }
    assert_int_equal(memory_count(&m, ".lazy"), 2);
    server_open(&v, &m, 1, CONFIG(.session_lazy = true));
    store_wait(memory_count, &m, ".lazy", 1, 20000);
    turn_ok(&v.b.c, nth_turn(&a, "old", 0), &a);
    collect_free(&a);
    setup_close(&v.b), memory_close_store(&m);
}

static void leaving_servers_write_all(void **state) {
    (void)state;
    struct pair p;
    open_pair(&p);
    for (uint32_t n = 0; n < 12; n++) {
        same_turn(&p, n % 2, n);
        if (n % 3) continue;
        setup_close(&p.v[n % 2].b);
        server_open(&p.v[n % 2], &p.m, n, CONFIG(.session_lazy = true));
    }
    close_pair(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_turn_waits_for_what_another_server_is_writing),
        cmocka_unit_test(nobody_misses_what_another_server_is_writing),
        cmocka_unit_test(of_two_lazy_turns_from_one_version_one_ends),
        cmocka_unit_test(a_moments_fault_lets_no_second_turn_end),
        cmocka_unit_test(a_lost_servers_lazy_turn_is_gone_and_what_was_written_stays),
        cmocka_unit_test(with_the_store_away_lazy_turns_go_on_in_memory),
        cmocka_unit_test(without_the_store_a_written_session_goes_on_in_memory),
        cmocka_unit_test(what_went_on_in_memory_gives_way_to_what_the_store_has),
        cmocka_unit_test(a_lazy_write_of_which_nobody_knows_is_settled),
        cmocka_unit_test(marks_of_a_lost_server_are_swept_when_they_are_old),
        cmocka_unit_test(leaving_servers_write_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
