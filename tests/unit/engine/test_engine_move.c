/* test_engine_move.c - states on their way beside steps, on both kinds of fake device, which holds moves until the test
 * says that they are over: who runs meanwhile, when slots are free, cancels, faults, a pool that is full, close. */
#include "tests/engine_setup.h"

#include <unistd.h>

static const int32_t first[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, more[] = {20, 21, 22};

static struct rod_request *request(struct answer *a, const int32_t *ids, size_t n, uint32_t max_tokens) {
    struct rod_request *r = collect_request(ids, n, a);
    r->ignore_eos = true;
    r->max_tokens = max_tokens;
    return r;
}

static struct rod_request *keeping(struct answer *a, const int32_t *ids, size_t n, uint32_t max_tokens) {
    struct rod_request *r = request(a, ids, n, max_tokens);
    r->keep_state = true;
    return r;
}

static struct rod_request *going_on(struct answer *a, const struct answer *from, uint32_t max_tokens) {
    struct rod_request *r = request(a, more, 3, max_tokens);
    r->state = rod_state_ref(from->end.state);
    return r;
}

/* The engine is told of moves in mailboxes and counters of other threads: wait until what is asked for is so. */
static void until(bool (*so)(const struct setup *b, uint64_t n), const struct setup *b, uint64_t n, const char *what) {
    for (int i = 0; i < 20000; i++) {
        if (so(b, n)) return;
        usleep(500);
    }
    fail_msg("10 s and not yet: %s (%llu)", what, (unsigned long long)n);
}
static bool moves_begun(const struct setup *b, uint64_t n) { return atomic_load(&b->be->n_moves) == n; }
static bool slots_used(const struct setup *b, uint64_t n) { return stats_of(b->c.engine).slots_used == n; }

static void others_run_while_a_state_is_loaded(void **state) {
    (void)state;
    struct setup b;
    struct answer a, z, beside[3];
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 2), CONFIG());
    finish(&b, keeping(&a, first, 11, 5), &a);
    atomic_store(&b.be->hold_moves, true);
    collect_submit(&b.c, going_on(&z, &a, 6));
    until(moves_begun, &b, 2, "the load begins");
    for (int i = 0; i < 3; i++) finish(&b, request(&beside[i], first, 11, 8), &beside[i]); /* in the other slot */
    assert_false(z.ended);
    assert_int_equal(z.n_ids, 0);
    assert_int_equal(stats_of(b.c.engine).slots_used, 1);
    fake_end_moves(b.be, true);
    collect_until(&b.c, &z, 1);
    assert_int_equal(z.n_ids, 6);
    for (int i = 0; i < 3; i++) collect_free(&beside[i]);
    collect_free(&a), collect_free(&z);
    setup_close(&b);
}

/* Who waits for a slot has the first that is free, though a state is on its way in another. */
static void a_slot_that_is_free_waits_for_no_move(void **state) {
    (void)state;
    struct setup b;
    struct answer a, two[2];
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 2), CONFIG());
    atomic_store(&b.be->hold_moves, true);
    collect_submit(&b.c, keeping(&a, first, 11, 5));
    until(moves_begun, &b, 1, "the save begins");
    struct rod_request *r[2] = {request(&two[0], first, 11, 8), request(&two[1], first, 11, 8)};
    uint64_t tickets[2];
    struct rod_error err;
    if (rod_submit_all(b.c.engine, r, 2, tickets, &err)) fail_msg("%s", err.message); /* the second has no slot yet */
    for (int i = 0; i < 1000 && !(two[0].ended && two[1].ended); i++) usleep(5000), collect_now(&b.c);
    if (!two[1].ended) fail_msg("5 s and the second has not ended, with a slot free");
    for (int i = 0; i < 2; i++) collect_assert_ids(&two[i], two[0].ids, 8, "beside a move");
    assert_false(a.ended);
    fake_end_moves(b.be, true);
    collect_until(&b.c, &a, 1);
    for (int i = 0; i < 2; i++) collect_free(&two[i]);
    collect_free(&a);
    setup_close(&b);
}

/* Its answer is told when the state is saved, and not before is its slot another's. */
static void the_slot_is_free_when_the_state_is_saved(void **state) {
    (void)state;
    struct setup b;
    struct answer a, next;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 1), CONFIG());
    atomic_store(&b.be->hold_moves, true);
    collect_submit(&b.c, keeping(&a, first, 11, 5));
    until(moves_begun, &b, 1, "the save begins");
    collect_submit(&b.c, request(&next, first, 11, 5));
    usleep(30000);
    collect_now(&b.c);
    assert_int_equal(a.n_ids, 5); /* all that it said is there */
    assert_false(a.ended);
    assert_int_equal(next.n_ids, 0);
    assert_int_equal(stats_of(b.c.engine).slots_used, 1);
    assert_int_equal(stats_of(b.c.engine).queued, 1);
    fake_end_moves(b.be, true);
    collect_until(&b.c, &a, 1); /* the engine had nothing to do and was woken */
    collect_until(&b.c, &next, 1);
    assert_non_null(a.end.state);
    collect_assert_ids(&next, a.ids, 5, "the next in the same slot");
    assert_true(slots_used(&b, 0));
    collect_free(&a), collect_free(&next);
    setup_close(&b);
}

/* The device ends it by its end token, and a step that was launched before that was known has a row of it: which is
 * nobody's while the state is saved. */
static void rows_on_their_way_are_nobodys_while_a_state_is_saved(void **state) {
    (void)state;
    struct setup b;
    struct answer a, beside;
    setup_open(&b, OPTIONS(.kind = FAKE_COPY, .n_slots = 2), CONFIG());
    atomic_store(&b.be->hold_moves, true);
    struct rod_request *r = keeping(&a, first, 11, 100);
    r->ignore_eos = false;
    collect_submit(&b.c, r);
    until(moves_begun, &b, 1, "the save begins");
    r = request(&beside, first, 11, 8); /* so that steps go on */
    finish(&b, r, &beside);
    collect_now(&b.c);
    assert_false(a.ended);
    fake_end_moves(b.be, true);
    collect_until(&b.c, &a, 1);
    if (a.failed) fail_msg("%s", a.end.error.message);
    assert_int_equal(a.end.stop_id, EOS);
    assert_non_null(a.end.state);
    collect_free(&a), collect_free(&beside);
    setup_close(&b);
}

static void a_cancel_while_a_state_is_loaded(void **state) {
    (void)state;
    struct setup b;
    struct answer a, z, next;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 1), CONFIG());
    finish(&b, keeping(&a, first, 11, 5), &a);
    atomic_store(&b.be->hold_moves, true);
    collect_submit(&b.c, going_on(&z, &a, 6));
    until(moves_begun, &b, 2, "the load begins");
    rod_cancel(b.c.engine, z.ticket);
    collect_until(&b.c, &z, 1); /* at once, though the load goes on */
    assert_int_equal(z.end.reason, ROD_FINISH_CANCEL);
    assert_int_equal(stats_of(b.c.engine).running, 0);
    assert_int_equal(stats_of(b.c.engine).slots_used, 1);
    collect_free(&a); /* the last reference but the move's */
    collect_submit(&b.c, request(&next, first, 11, 5));
    usleep(20000);
    collect_now(&b.c);
    assert_int_equal(next.n_ids, 0);
    fake_end_moves(b.be, true);
    collect_until(&b.c, &next, 1);
    until(slots_used, &b, 0, "the slot is free");
    collect_free(&z), collect_free(&next);
    setup_close(&b);
}

static void a_cancel_while_a_state_is_saved(void **state) {
    (void)state;
    struct setup b;
    struct answer a, next;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 1), CONFIG());
    atomic_store(&b.be->hold_moves, true);
    collect_submit(&b.c, keeping(&a, first, 11, 5));
    until(moves_begun, &b, 1, "the save begins");
    rod_cancel(b.c.engine, a.ticket);
    collect_until(&b.c, &a, 1);
    assert_int_equal(a.end.reason, ROD_FINISH_CANCEL);
    assert_null(a.end.state);
    assert_int_equal(stats_of(b.c.engine).requests_cancelled, 1);
    assert_int_equal(stats_of(b.c.engine).requests_finished, 0);
    collect_submit(&b.c, request(&next, first, 11, 5));
    fake_end_moves(b.be, true);
    collect_until(&b.c, &next, 1);
    collect_free(&a), collect_free(&next);
    setup_close(&b);
}

/* All slots wait for states and others queue for them: the engine sleeps until one has arrived. */
static void an_engine_that_waits_for_states_uses_no_processor(void **state) {
    (void)state;
    struct setup b;
    struct answer a[2], queued[3];
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 2), CONFIG());
    atomic_store(&b.be->hold_moves, true);
    for (int i = 0; i < 2; i++) collect_submit(&b.c, keeping(&a[i], first, 11, 5));
    until(moves_begun, &b, 2, "both saves begin");
    for (int i = 0; i < 3; i++) collect_submit(&b.c, request(&queued[i], first, 11, 5));
    usleep(20000);
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(200000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    const int64_t ns = (after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec;
    if (ns > 50000000) fail_msg("%.1f ms of processor time in 200 ms of waiting", (double)ns * 1e-6);
    fake_end_moves(b.be, true);
    collect_until(&b.c, a, 2);
    collect_until(&b.c, queued, 3);
    for (int i = 0; i < 2; i++) collect_free(&a[i]);
    for (int i = 0; i < 3; i++) collect_free(&queued[i]);
    setup_close(&b);
}

static void a_fault_while_states_move_ends_their_requests(void **state) {
    (void)state;
    struct setup b;
    struct answer a, z, kept;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 2), CONFIG());
    finish(&b, keeping(&a, first, 11, 5), &a);
    atomic_store(&b.be->hold_moves, true);
    collect_submit(&b.c, going_on(&z, &a, 6));
    collect_submit(&b.c, keeping(&kept, first, 11, 5));
    until(moves_begun, &b, 3, "a load and a save begin");
    atomic_store(&b.be->fail_moves, true);
    fake_end_moves(b.be, false);
    collect_until(&b.c, &z, 1);
    collect_until(&b.c, &kept, 1);
    assert_true(z.failed && kept.failed);
    assert_int_equal(z.end.error.code, ROD_EDEVICE);
    assert_int_equal(kept.end.error.code, ROD_EDEVICE);
    assert_true(stats_of(b.c.engine).failed);
    collect_free(&a), collect_free(&z), collect_free(&kept);
    collect_close(&b.c); /* the images of both moves are given back: the leak checker would tell */
}

static void an_engine_closes_while_states_move(void **state) {
    (void)state;
    struct setup b;
    struct answer a, z, kept;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 2), CONFIG());
    finish(&b, keeping(&a, first, 11, 5), &a);
    atomic_store(&b.be->hold_moves, true);
    collect_submit(&b.c, going_on(&z, &a, 6));
    collect_submit(&b.c, keeping(&kept, first, 11, 5));
    until(moves_begun, &b, 3, "a load and a save begin");
    collect_close(&b.c);
    assert_non_null(a.end.state->buffer->bytes); /* outlives the engine */
    collect_free(&a), collect_free(&z), collect_free(&kept);
}

/* No room for a state: it lies outside of the pool, the answer is complete, and the log says why. */
static void an_answer_is_not_lost_when_the_pool_is_full(void **state) {
    (void)state;
    struct setup b;
    enum { N = 5 };
    struct answer a[N];
    const uint64_t two = state_pool_bytes(2, sizeof(struct fake_state));
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG(.state_host_bytes = two));
    for (int i = 0; i < N; i++) {
        finish(&b, keeping(&a[i], first, 11, 5), &a[i]);
        assert_int_equal(a[i].end.state->buffer->pool != NULL, i < 2);
        collect_assert_ids(&a[i], a[0].ids, 5, "with or without room");
    }
    struct answer z[N], again;
    for (int i = 0; i < N; i++) finish(&b, going_on(&z[i], &a[i], 6), &z[i]);
    for (int i = 1; i < N; i++) collect_assert_ids(&z[i], z[0].ids, 6, "from a state with or without room");
    for (int i = 0; i < N; i++) collect_free(&a[i]), collect_free(&z[i]);
    finish(&b, keeping(&again, first, 11, 5), &again); /* there is room again */
    assert_non_null(again.end.state->buffer->pool);
    collect_free(&again);
    setup_close(&b);
}

static void too_little_host_memory_is_refused_when_the_engine_opens(void **state) {
    (void)state;
    struct backend *be = fake_open(&fake_ops, FAKE_HASH, V, 2, 64, 8);
    const struct engine_parts parts = {.ops = &fake_ops, .backend = be, .V = V};
    const struct rod_engine_config config = {.max_queue = 10,
                                             .state_host_bytes = state_pool_bytes(2, sizeof(struct fake_state)) - 1};
    struct rod_engine *engine;
    struct rod_error err;
    assert_int_equal(engine_open_parts(&config, &parts, &engine, &err), ROD_EINVALID);
    assert_non_null(strstr(err.message, "state_host_bytes"));
    fake_close(be);
}

/* Turns of more sessions than slots, each going on from what the last one left, with cancels: every conversation is as
 * alone, and nothing is left at the end. */
static void sessions_take_turns_in_few_slots(void **state) {
    (void)state;
    enum { SESSIONS = 12, TURNS = 8, TOKENS = 4 };
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 3), CONFIG());
    struct answer alone[TURNS], now[SESSIONS];
    struct rod_state *at[SESSIONS] = {NULL}, *base = NULL;
    for (int t = 0; t < TURNS; t++) { /* one conversation, undisturbed; all sessions have the same */
        struct rod_request *r = keeping(&alone[t], more, 3, TOKENS);
        r->state = base;
        finish(&b, r, &alone[t]);
        base = rod_state_ref(alone[t].end.state);
    }
    for (int t = 0; t < TURNS; t++) {
        for (int round = 0; round < 2; round++) { /* the first is cancelled at some moment and changes nothing */
            for (int i = 0; i < SESSIONS; i++) {
                struct rod_request *r = keeping(&now[i], more, 3, TOKENS);
                r->state = at[i] ? rod_state_ref(at[i]) : NULL;
                collect_submit(&b.c, r);
            }
            for (int i = 0; i < SESSIONS && !round; i++) {
                if (i % 3 == 0) usleep((useconds_t)(philox_uniform(5, (uint64_t)t, (uint32_t)i) * 300));
                rod_cancel(b.c.engine, now[i].ticket);
            }
            collect_until(&b.c, now, SESSIONS);
            for (int i = 0; i < SESSIONS; i++) {
                if (round) {
                    collect_assert_ids(&now[i], alone[t].ids, TOKENS, "a session in turn");
                    rod_state_free(at[i]);
                    at[i] = now[i].end.state;
                    now[i].end.state = NULL;
                }
                collect_free(&now[i]);
            }
        }
    }
    until(slots_used, &b, 0, "all slots are free");
    for (int i = 0; i < SESSIONS; i++) rod_state_free(at[i]);
    for (int t = 0; t < TURNS; t++) collect_free(&alone[t]);
    rod_state_free(base);
    setup_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ON_BOTH(others_run_while_a_state_is_loaded),
        ON_BOTH(a_slot_that_is_free_waits_for_no_move),
        ON_BOTH(the_slot_is_free_when_the_state_is_saved),
        ON_BOTH(rows_on_their_way_are_nobodys_while_a_state_is_saved),
        ON_BOTH(a_cancel_while_a_state_is_loaded),
        ON_BOTH(a_cancel_while_a_state_is_saved),
        ON_BOTH(an_engine_that_waits_for_states_uses_no_processor),
        ON_BOTH(a_fault_while_states_move_ends_their_requests),
        ON_BOTH(an_engine_closes_while_states_move),
        ON_BOTH(an_answer_is_not_lost_when_the_pool_is_full),
        cmocka_unit_test(too_little_host_memory_is_refused_when_the_engine_opens),
        ON_BOTH(sessions_take_turns_in_few_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
