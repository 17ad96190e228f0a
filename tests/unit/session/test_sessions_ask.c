/* test_sessions_ask.c - questions beside a session, in memory and in a folder: they answer as a fork of it would, and
 * the session is to the bit as if nobody had asked. */
#include "tests/sessions_places.h"

static const int32_t text[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, question[] = {20, 21, 22};

static void begin(struct setup *b, struct rod_engine_config config) {
    if (on_file && !dir) dir = make_dir();
    config.state_dir = dir;
    if (!config.state_host_bytes) config.state_host_bytes = 64u << 20;
    setup_open(b, OPTIONS(.kind = FAKE_HASH), config);
}

static struct rod_request *ask_request(struct answer *a, const char *session, size_t n, uint32_t max_tokens) {
    struct rod_request *r = turn_request(a, session, question, n, max_tokens);
    r->turn->create = false;
    r->turn->beside = true;
    return r;
}

struct exported {
    void *bytes;
    size_t n;
};
static struct exported export_session(struct setup *b, const char *id) {
    struct exported e;
    struct rod_error err;
    if (rod_session_export(b->c.engine, "", id, &e.bytes, &e.n, &err)) fail_msg("export of %s: %s", id, err.message);
    return e;
}
static void assert_untouched(struct setup *b, const char *id, struct exported before) {
    struct exported now = export_session(b, id);
    if (now.n != before.n) fail_msg("%s has %zu bytes, %zu before it was asked", id, now.n, before.n);
    assert_memory_equal(now.bytes, before.bytes, now.n);
    free(now.bytes), free(before.bytes);
}

static void a_question_is_answered_as_by_a_fork_and_leaves_nothing(void **state) {
    (void)state;
    struct setup b;
    struct answer a, want;
    struct rod_error err;
    begin(&b, CONFIG());
    turn_ok(&b.c, turn_request(&a, "s", text, 11, 5), &a);
    collect_free(&a);
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "fork", .from = "s"},
                           &(struct rod_session_info){0}, &err))
        fail_msg("%s", err.message);
    turn_ok(&b.c, turn_request(&want, "fork", question, 3, 6), &want);
    const struct exported before = export_session(&b, "s");
    const struct rod_session_info info = session_info(b.c.engine, "s");
    const struct rod_stats stats = stats_of(b.c.engine);
    for (int i = 0; i < 3; i++) {
        turn_ok(&b.c, ask_request(&a, "s", 3, 6), &a);
        collect_assert_ids(&a, want.ids, 6, "a question beside");
        assert_string_equal(a.end.session, "s");
        assert_int_equal(a.end.session_version, 1);
        assert_int_equal(a.end.cached_tok, info.n_tok);
        assert_null(a.end.state);
        collect_free(&a);
    }
    const struct rod_session_info now = session_info(b.c.engine, "s");
    assert_memory_equal(&now, &info, sizeof now);
    const struct rod_stats after = stats_of(b.c.engine);
    assert_int_equal(after.session_asks, 3);
    assert_int_equal(after.sessions, stats.sessions);
    assert_int_equal(after.state_saves, stats.state_saves);
    assert_int_equal(after.state_host_bytes, stats.state_host_bytes);
    assert_int_equal(after.session_host_bytes, stats.session_host_bytes);
    if (on_file) assert_int_equal(count_in(dir, ""), 2);
    assert_untouched(&b, "s", before);
    collect_free(&want);
    setup_close(&b);
}

static void questions_run_beside_a_turn_and_beside_each_other(void **state) {
    (void)state;
    enum { N = 3 };
    struct setup b;
    struct answer a, asked[N], alone, turn, undisturbed;
    begin(&b, CONFIG());
    turn_ok(&b.c, turn_request(&a, "s", text, 11, 5), &a);
    collect_free(&a);
    turn_ok(&b.c, turn_request(&a, "twin", text, 11, 5), &a);
    collect_free(&a);
    turn_ok(&b.c, ask_request(&alone, "s", 3, 6), &alone);
    collect_submit(&b.c, turn_request(&turn, "s", text, 4, 100000));
    while (!turn.n_ids) collect_now(&b.c);
    for (int i = 0; i < N; i++) collect_submit(&b.c, ask_request(&asked[i], "s", 3, 6));
    collect_until(&b.c, asked, N);
    assert_false(turn.ended);
    for (int i = 0; i < N; i++) {
        collect_assert_ids(&asked[i], alone.ids, 6, "asked beside a turn");
        assert_int_equal(asked[i].end.session_version, 1);
        collect_free(&asked[i]);
    }
    rod_cancel(b.c.engine, turn.ticket);
    collect_until(&b.c, &turn, 1);
    collect_free(&turn);
    turn_ok(&b.c, turn_request(&turn, "s", text, 4, 9), &turn);
    turn_ok(&b.c, turn_request(&undisturbed, "twin", text, 4, 9), &undisturbed);
    collect_assert_ids(&turn, undisturbed.ids, 9, "the stream goes on");
    struct exported s = export_session(&b, "s"), twin = export_session(&b, "twin");
    const size_t n = session_info(b.c.engine, "s").state_bytes;
    assert_true(n && n < s.n && n < twin.n);
    assert_memory_equal((char *)s.bytes + s.n - n, (char *)twin.bytes + twin.n - n, n);
    free(s.bytes), free(twin.bytes);
    collect_free(&alone), collect_free(&turn), collect_free(&undisturbed);
    setup_close(&b);
}

static void what_is_wrong_with_a_question_is_told_as_of_a_turn(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_error err;
    uint64_t ticket;
    begin(&b, CONFIG(.session_reject = true));
    turn_fails(&b.c, ask_request(&a, "nobody", 3, 5), &a, ROD_ENOTFOUND);
    assert_int_equal(stats_of(b.c.engine).sessions, 0);
    turn_ok(&b.c, turn_request(&a, "s", text, 11, 5), &a);
    collect_free(&a);
    struct rod_request *r = ask_request(&a, "s", 3, 5);
    r->turn->has_expected = true;
    r->turn->expected_version = 2;
    turn_fails(&b.c, r, &a, ROD_EVERSION);
    r = ask_request(&a, "s", 3, 5);
    free(r->turn->tenant);
    r->turn->tenant = strdup("another");
    turn_fails(&b.c, r, &a, ROD_ENOTFOUND);
    for (int i = 0; i < 2; i++) { /* no question makes a session, nor keeps an answer */
        r = ask_request(&a, "s", 3, 5);
        r->turn->create = i == 0;
        if (i) r->turn->idempotency_key = strdup("key");
        assert_int_equal(rod_submit(b.c.engine, r, &ticket, &err), ROD_EINVALID);
        rod_request_free(r);
        collect_free(&a);
    }
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "empty"}, &(struct rod_session_info){0},
                           &err))
        fail_msg("%s", err.message);
    turn_fails(&b.c, ask_request(&a, "empty", 0, 5), &a, ROD_EINVALID); /* nothing to read */
    turn_ok(&b.c, ask_request(&a, "empty", 3, 5), &a);
    assert_int_equal(a.end.session_version, 0);
    collect_free(&a);
    assert_int_equal(session_info(b.c.engine, "empty").version, 0);
    assert_int_equal(stats_of(b.c.engine).session_asks, 1);
    setup_close(&b);
}

/* Turns, questions and cancels of both at once: each version is what a session has that took the same turns. */
static void questions_at_any_moment_leave_the_stream_as_it_is(void **state) {
    (void)state;
    enum { AT_ONCE = 12, ROUNDS = 25 };
    struct setup b;
    struct answer a[AT_ONCE], z, want;
    unsigned seed = (unsigned)getpid();
    uint64_t n_turns = 0;
    print_message("note: seed %u\n", seed);
    begin(&b, CONFIG());
    turn_ok(&b.c, turn_request(&z, "s", text, 11, 5), &z);
    collect_free(&z);
    turn_ok(&b.c, turn_request(&z, "twin", text, 11, 5), &z);
    collect_free(&z);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < AT_ONCE; i++)
            collect_submit(&b.c, i % 4 ? ask_request(&a[i], "s", 3, 1 + (uint32_t)rand_r(&seed) % 9)
                                       : turn_request(&a[i], "s", text, 4, 3));
        for (int i = 0; i < AT_ONCE; i++) {
            if (rand_r(&seed) % 3 == 0) usleep((useconds_t)rand_r(&seed) % 400);
            collect_now(&b.c);
            if (rand_r(&seed) % 2) rod_cancel(b.c.engine, a[(unsigned)rand_r(&seed) % AT_ONCE].ticket);
        }
        collect_until(&b.c, a, AT_ONCE);
        for (int i = 0; i < AT_ONCE; i++) {
            if (a[i].failed) fail_msg("%s", a[i].end.error.message);
            if (i % 4 == 0 && a[i].end.reason != ROD_FINISH_CANCEL) {
                turn_ok(&b.c, turn_request(&want, "twin", text, 4, 3), &want);
                collect_assert_ids(&a[i], want.ids, 3, "a turn among questions");
                collect_free(&want);
                n_turns++;
            }
            collect_free(&a[i]);
        }
    }
    assert_int_equal(session_info(b.c.engine, "s").version, 1 + n_turns);
    assert_true(n_turns > 0 && stats_of(b.c.engine).session_asks > 0);
    setup_close(&b);
}

/* Closed while one runs and others are being opened: the session is what it was. */
static void an_engine_that_closes_ends_its_questions(void **state) {
    (void)state;
    struct setup b;
    struct answer a[4], z;
    begin(&b, CONFIG());
    turn_ok(&b.c, turn_request(&z, "s", text, 11, 5), &z);
    collect_free(&z);
    for (int i = 0; i < 4; i++) collect_submit(&b.c, ask_request(&a[i], "s", 3, 1000000));
    while (!a[0].n_ids && !a[1].n_ids && !a[2].n_ids && !a[3].n_ids) collect_now(&b.c);
    collect_close(&b.c); /* without the drain that waits for them */
    for (int i = 0; i < 4; i++) collect_free(&a[i]);
    begin(&b, CONFIG());
    assert_int_equal(session_info(b.c.engine, "s").version, 1);
    turn_ok(&b.c, ask_request(&z, "s", 3, 5), &z);
    collect_free(&z);
    setup_close(&b);
}

/* A state that is in its file alone comes from there, and one that finds no room waits for it. */
static void a_question_brings_the_state_from_its_file(void **state) {
    (void)state;
    struct setup b;
    struct answer a, want;
    begin(&b, CONFIG());
    turn_ok(&b.c, turn_request(&a, "s", text, 11, 5), &a);
    collect_free(&a);
    turn_ok(&b.c, ask_request(&want, "s", 3, 6), &want);
    setup_close(&b);
    begin(&b, CONFIG());
    assert_string_equal(session_info(b.c.engine, "s").tier, "file");
    turn_ok(&b.c, ask_request(&a, "s", 3, 6), &a);
    collect_assert_ids(&a, want.ids, 6, "after a restart");
    assert_int_equal(stats_of(b.c.engine).state_loads, 1);
    assert_int_equal(session_info(b.c.engine, "s").version, 1);
    collect_free(&a), collect_free(&want);
    setup_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ALL(a_question_is_answered_as_by_a_fork_and_leaves_nothing),
        ALL(questions_run_beside_a_turn_and_beside_each_other),
        ALL(what_is_wrong_with_a_question_is_told_as_of_a_turn),
        ALL(questions_at_any_moment_leave_the_stream_as_it_is),
        IN_FILES(an_engine_that_closes_ends_its_questions),
        IN_FILES(a_question_brings_the_state_from_its_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
