/* test_engine_flight.c - pieces of long prompts in flights beside the steps of streams, on both kinds of fake device,
 * which holds a flight until the test says that it may end: answers, what goes on meanwhile, and every end there is. */
#include "tests/sessions_setup.h"

enum { N_STREAMS = 8, LONG = 1003, FLIGHT_TOK = 64, MOST = 1 << 20 };
#define FLIGHTS(tok) OPTIONS(.kind = FAKE_HASH, .n_slots = 12, .max_batch_tok = 64, .flight_tok = tok, .gated = true)

static int32_t prompt[4][LONG];

static void fill_prompts(void) {
    for (int i = 0; i < 4; i++)
        for (int t = 0; t < LONG; t++) prompt[i][t] = 3 + (t * 31 + i * 7 + t * t % 17) % (V - 3);
}

static struct rod_request *request(struct answer *a, int i, size_t n, uint32_t max_tokens) {
    struct rod_request *r = collect_request(prompt[i], n, a);
    r->ignore_eos = true;
    r->max_tokens = max_tokens;
    return r;
}

static struct rod_request *with_breakpoint(struct rod_request *r) {
    r->n_breakpoints = 1;
    r->breakpoints[0] = (struct rod_breakpoint){.at = 64, .ttl_ns = 1000000000000};
    return r;
}

static void until(bool (*so)(const struct setup *b, uint64_t n), struct setup *b, uint64_t n, const char *what) {
    for (int i = 0; i < 20000; i++) {
        if (so(b, n)) return;
        usleep(500);
        collect_now(&b->c);
    }
    fail_msg("10 s and not yet: %s (%llu)", what, (unsigned long long)n);
}
static bool flights_begun(const struct setup *b, uint64_t n) { return atomic_load(&b->be->n_flights) >= n; }
static bool slots_used(const struct setup *b, uint64_t n) { return stats_of(b->c.engine).slots_used == n; }
static bool steps_done(const struct setup *b, uint64_t n) { return stats_of(b->c.engine).steps >= n; }

/* Streams that run until they are cancelled, and a first flight with these prompts that does not end. */
static void open_held_beside(struct setup *b, size_t cache_bytes, struct answer *streams, struct rod_request *const *r,
                             uint32_t n) {
    setup_open(b, FLIGHTS(FLIGHT_TOK), CONFIG(.prefix_cache_bytes = cache_bytes));
    atomic_store(&b->be->hold_flights, true);
    for (int i = 0; i < N_STREAMS; i++) collect_submit(&b->c, request(&streams[i], 0, 5, MOST));
    for (uint32_t i = 0; i < n; i++) collect_submit(&b->c, r[i]);
    fake_release(b->be);
    until(flights_begun, b, 1, "a flight begins");
}
static void open_held(struct setup *b, struct answer *streams, struct rod_request *const *r, uint32_t n) {
    open_held_beside(b, 0, streams, r, n);
}

static void close_streams(struct setup *b, struct answer *streams) {
    for (int i = 0; i < N_STREAMS; i++) rod_cancel(b->c.engine, streams[i].ticket);
    collect_until(&b->c, streams, N_STREAMS);
    for (int i = 0; i < N_STREAMS; i++) collect_free(&streams[i]);
    setup_close(b);
}

static void prompts_in_flights_give_the_answers_of_steps(void **state) {
    (void)state;
    struct setup b;
    struct answer a[2][N_STREAMS + 4];
    struct rod_stats s[2];
    for (int flights = 0; flights < 2; flights++) {
        setup_open(&b, FLIGHTS(flights ? FLIGHT_TOK : 0), CONFIG());
        for (int i = 0; i < N_STREAMS; i++) collect_submit(&b.c, request(&a[flights][i], 0, 5 + (size_t)i, 300));
        for (int i = 0; i < 4; i++)
            collect_submit(&b.c, request(&a[flights][N_STREAMS + i], i, (size_t)(LONG - 100 * i), 20));
        fake_release(b.be);
        collect_until(&b.c, a[flights], N_STREAMS + 4);
        s[flights] = stats_of(b.c.engine);
        setup_close(&b);
    }
    for (int i = 0; i < N_STREAMS + 4; i++) {
        collect_assert_ids(&a[1][i], a[0][i].ids, a[0][i].n_ids, "beside flights");
        assert_int_equal(a[1][i].end.prompt_tok, a[0][i].end.prompt_tok);
        collect_free(&a[0][i]), collect_free(&a[1][i]);
    }
    assert_int_equal(s[0].flights, 0);
    assert_true(s[1].flights > 20 && s[1].flight_tok > 1500 && s[1].flight_tok <= s[1].flights * FLIGHT_TOK);
    assert_int_equal(s[1].prefill_tok, s[0].prefill_tok);
}

/* Where the device counts what it reads, or somebody wants its logits, a prompt is read in steps. */
static void prompts_that_are_looked_at_do_not_fly(void **state) {
    (void)state;
    struct setup b;
    struct answer streams[N_STREAMS], a[2];
    setup_open(&b, FLIGHTS(FLIGHT_TOK), CONFIG());
    for (int i = 0; i < N_STREAMS; i++) collect_submit(&b.c, request(&streams[i], 0, 5, MOST));
    struct rod_request *r = request(&a[0], 1, LONG, 3);
    r->n_prompt_logprobs = 0;
    collect_submit(&b.c, r);
    r = request(&a[1], 2, LONG, 3);
    r->sampling.repetition_penalty = setup_on_device ? 1.5f : 1;
    r->n_prompt_logprobs = setup_on_device ? -1 : 0;
    collect_submit(&b.c, r);
    fake_release(b.be);
    collect_until(&b.c, a, 2);
    assert_int_equal(stats_of(b.c.engine).flights, 0);
    for (int i = 0; i < 2; i++) collect_free(&a[i]);
    close_streams(&b, streams);
}

static void beside_few_streams_nothing_flies(void **state) {
    (void)state;
    struct setup b;
    struct answer streams[N_STREAMS], a;
    setup_open(&b, FLIGHTS(FLIGHT_TOK), CONFIG());
    for (int i = 0; i < N_STREAMS - 1; i++) collect_submit(&b.c, request(&streams[i], 0, 5, MOST));
    collect_submit(&b.c, request(&a, 1, LONG, 3));
    fake_release(b.be);
    collect_until(&b.c, &a, 1);
    assert_int_equal(stats_of(b.c.engine).flights, 0);
    collect_submit(&b.c, request(&streams[N_STREAMS - 1], 0, 5, MOST));
    collect_free(&a);
    close_streams(&b, streams);
}

static void short_prompts_and_streams_go_on_beside_a_flight(void **state) {
    (void)state;
    struct setup b;
    struct answer streams[N_STREAMS], a, small[3];
    open_held(&b, streams, (struct rod_request *[]){request(&a, 1, LONG, 3)}, 1);
    for (int i = 0; i < 3; i++) finish(&b, request(&small[i], 2, 40, 10), &small[i]);
    until(steps_done, &b, stats_of(b.c.engine).steps + 100, "steps beside the flight");
    collect_now(&b.c);
    assert_int_equal(stats_of(b.c.engine).flights, 1);
    assert_int_equal(a.n_ids, 0);
    atomic_store(&b.be->hold_flights, false);
    collect_until(&b.c, &a, 1);
    assert_true(stats_of(b.c.engine).flights >= 8);
    for (int i = 0; i < 3; i++) collect_free(&small[i]);
    collect_free(&a);
    close_streams(&b, streams);
}

/* The client has its end at once, and nobody the slot before the flight has ended. */
static void a_cancel_in_a_flight_ends_at_once(void **state) {
    (void)state;
    struct setup b;
    struct answer streams[N_STREAMS], a[2], next[4];
    open_held(&b, streams, (struct rod_request *[]){request(&a[0], 1, LONG, 3), request(&a[1], 2, LONG, 3)}, 2);
    rod_cancel(b.c.engine, a[0].ticket);
    rod_cancel(b.c.engine, a[1].ticket);
    collect_until(&b.c, a, 2);
    assert_int_equal(a[0].end.reason, ROD_FINISH_CANCEL);
    const uint32_t n_left = stats_of(b.c.engine).slots_used - N_STREAMS;
    assert_true(n_left >= 1); /* one or both are in the flight */
    for (int i = 0; i < 4; i++) collect_submit(&b.c, request(&next[i], 3, 40, 8));
    collect_until(&b.c, next, 4);
    assert_int_equal(stats_of(b.c.engine).slots_used, N_STREAMS + n_left);
    atomic_store(&b.be->hold_flights, false);
    until(slots_used, &b, N_STREAMS, "the slots are free");
    for (int i = 0; i < 2; i++) collect_free(&a[i]);
    for (int i = 0; i < 4; i++) collect_free(&next[i]);
    close_streams(&b, streams);
}

/* When the engine knows what a flight takes it begins the next one before the end: these prompts are in two that do
 * not end, behind one that has been answered. How many flights have begun. */
static uint64_t open_two(struct setup *b, size_t cache_bytes, struct answer *streams, struct answer *first,
                         struct rod_request *const *r, uint32_t n) {
    open_held_beside(b, cache_bytes, streams, (struct rod_request *[]){request(first, 1, LONG, 3)}, 1);
    atomic_store(&b->be->hold_flights, false);
    collect_until(&b->c, first, 1);
    const uint64_t begun = stats_of(b->c.engine).flights + 2;
    atomic_store(&b->be->hold_flights, true);
    for (uint32_t i = 0; i < n; i++) collect_submit(&b->c, r[i]);
    until(flights_begun, b, begun, "a second flight begins");
    return begun;
}

static void a_second_flight_is_begun_before_the_first_ends(void **state) {
    (void)state;
    for (int cancels = 0; cancels < 2; cancels++) {
        struct setup b;
        struct answer streams[N_STREAMS], a[2], alone;
        const uint64_t begun = open_two(&b, 0, streams, &a[0], (struct rod_request *[]){request(&a[1], 1, LONG, 3)}, 1);
        until(steps_done, &b, stats_of(b.c.engine).steps + 50, "steps beside both");
        collect_now(&b.c);
        assert_int_equal(stats_of(b.c.engine).flights, begun);
        if (cancels) {
            rod_cancel(b.c.engine, a[1].ticket);
            collect_until(&b.c, &a[1], 1);
            assert_int_equal(a[1].end.reason, ROD_FINISH_CANCEL);
            assert_int_equal(stats_of(b.c.engine).slots_used, N_STREAMS + 1);
            finish(&b, request(&alone, 2, 40, 10), &alone);
            collect_free(&alone);
        }
        atomic_store(&b.be->hold_flights, false);
        if (!cancels) {
            collect_until(&b.c, &a[1], 1);
            collect_assert_ids(&a[1], a[0].ids, 3, "in two flights at once");
        }
        until(slots_used, &b, N_STREAMS, "the slots are free");
        for (int i = 0; i < 2; i++) collect_free(&a[i]);
        close_streams(&b, streams);
    }
}

/* Nothing else is to do: the engine waits for the flight, and reads the rest in steps. */
static void a_flight_whose_streams_have_ended_is_waited_for(void **state) {
    (void)state;
    struct setup b;
    struct answer streams[N_STREAMS], a;
    open_held(&b, streams, (struct rod_request *[]){request(&a, 1, LONG, 3)}, 1);
    for (int i = 0; i < N_STREAMS; i++) rod_cancel(b.c.engine, streams[i].ticket);
    collect_until(&b.c, streams, N_STREAMS);
    for (int i = 0; i < N_STREAMS; i++) collect_free(&streams[i]);
    usleep(30000);
    collect_now(&b.c);
    assert_int_equal(a.n_ids, 0);
    const uint64_t steps = stats_of(b.c.engine).steps;
    usleep(30000);
    assert_int_equal(stats_of(b.c.engine).steps, steps);
    atomic_store(&b.be->hold_flights, false);
    collect_until(&b.c, &a, 1);
    assert_int_equal(stats_of(b.c.engine).flights, 1);
    collect_free(&a);
    setup_close(&b);
}

static void *end_flights_later(void *arg) {
    usleep(50000);
    atomic_store(&((struct backend *)arg)->hold_flights, false);
    return NULL;
}

/* The backend is closed when the flight has ended: the fake one aborts otherwise. */
static void close_in_a_flight(void **state) {
    (void)state;
    struct setup b;
    struct answer streams[N_STREAMS], a;
    pthread_t thread;
    open_held(&b, streams, (struct rod_request *[]){request(&a, 1, LONG, 3)}, 1);
    assert_int_equal(b.be->fault[0], 0);
    assert_int_equal(pthread_create(&thread, NULL, end_flights_later, b.be), 0);
    collect_close(&b.c);
    pthread_join(thread, NULL);
    for (int i = 0; i < N_STREAMS; i++) collect_free(&streams[i]);
    collect_free(&a);
}

static void a_fault_in_a_flight_is_a_device_fault(void **state) {
    (void)state;
    struct setup b;
    struct answer streams[N_STREAMS], a;
    open_held(&b, streams, (struct rod_request *[]){request(&a, 1, LONG, 3)}, 1);
    atomic_store(&b.be->fail_flights, true);
    collect_until(&b.c, &a, 1);
    collect_until(&b.c, streams, N_STREAMS);
    assert_int_equal(a.end.error.code, ROD_EDEVICE);
    assert_true(rod_engine_failed(b.c.engine));
    for (int i = 0; i < N_STREAMS; i++) assert_true(streams[i].failed), collect_free(&streams[i]);
    collect_free(&a);
    setup_close(&b);
}

/* Of two prompts that land together the first cannot leave its entry: the other ends with it. */
static void a_fault_while_a_flight_lands_ends_all_that_is_in_it(void **state) {
    (void)state;
    enum { N = 2 };
    struct setup b;
    struct answer streams[N_STREAMS], a[N];
    setup_open(&b, FLIGHTS(FLIGHT_TOK), CONFIG(.prefix_cache_bytes = (size_t)1 << 30));
    atomic_store(&b.be->fail_saves, true);
    for (int i = 0; i < N_STREAMS; i++) collect_submit(&b.c, request(&streams[i], 0, 5, MOST));
    for (int i = 0; i < N; i++) {
        collect_submit(&b.c, with_breakpoint(request(&a[i], 1 + i, LONG, 3)));
    }
    fake_release(b.be);
    collect_until(&b.c, a, N);
    collect_until(&b.c, streams, N_STREAMS);
    assert_true(rod_engine_failed(b.c.engine));
    for (int i = 0; i < N; i++) assert_int_equal(a[i].end.error.code, ROD_EDEVICE), collect_free(&a[i]);
    for (int i = 0; i < N_STREAMS; i++) assert_true(streams[i].failed), collect_free(&streams[i]);
    setup_close(&b);
}

/* Whatever fails: a look at the first of two flights, a step beside both, what the first leaves when it lands. All end,
 * and the backend is closed when both flights are over. */
static void a_fault_beside_two_flights_ends_all(void **state) {
    (void)state;
    enum { LOOK, STEP, LANDING, N_WAYS };
    for (int way = 0; way < N_WAYS; way++) {
        struct setup b;
        struct answer streams[N_STREAMS], a[3];
        pthread_t thread;
        struct rod_request *r[] = {request(&a[1], 2, LONG, 3), request(&a[2], 3, LONG, 3)};
        open_two(&b, (size_t)1 << 30, streams, &a[0],
                 (struct rod_request *[]){way == LANDING ? with_breakpoint(r[0]) : r[0], r[1]}, 2);
        atomic_store(&b.be->fail_flights, way == LOOK);
        atomic_store(&b.be->fail_at, way == STEP);
        atomic_store(&b.be->fail_saves, way == LANDING);
        assert_int_equal(pthread_create(&thread, NULL, end_flights_later, b.be), 0);
        collect_until(&b.c, &a[1], 2);
        collect_until(&b.c, streams, N_STREAMS);
        pthread_join(thread, NULL);
        assert_true(rod_engine_failed(b.c.engine));
        for (int i = 1; i < 3; i++) assert_int_equal(a[i].end.error.code, ROD_EDEVICE), assert_int_equal(a[i].n_ids, 0);
        for (int i = 0; i < N_STREAMS; i++) assert_true(streams[i].failed), collect_free(&streams[i]);
        for (int i = 0; i < 3; i++) collect_free(&a[i]);
        setup_close(&b);
    }
}

/* A turn whose prompt is in a flight when its session is removed ends as it ends in a step. */
static void a_session_deleted_in_a_flight(void **state) {
    (void)state;
    struct setup b;
    struct answer streams[N_STREAMS], a, again;
    struct rod_error err;
    struct rod_session_info info;
    open_held(&b, streams, (struct rod_request *[]){turn_request(&a, "s", prompt[1], LONG, 3)}, 1);
    if (rod_session_delete(b.c.engine, "", "s", &err) && err.code != ROD_EBUSY) fail_msg("%s", err.message);
    until(steps_done, &b, stats_of(b.c.engine).steps + 50, "steps beside the flight");
    atomic_store(&b.be->hold_flights, false);
    collect_until(&b.c, &a, 1);
    rod_session_delete(b.c.engine, "", "s", &err);
    assert_int_equal(rod_session_get(b.c.engine, "", "s", &info, &err), ROD_ENOTFOUND);
    turn_ok(&b.c, turn_request(&again, "s", prompt[2], 20, 3), &again);
    until(slots_used, &b, N_STREAMS, "the slots are free");
    collect_free(&a), collect_free(&again);
    close_streams(&b, streams);
}

/* What a prompt leaves for the next at a breakpoint it leaves in flights, too; and choices of one prompt read it once.
 */
static void breakpoints_and_choices_of_a_prompt_in_flights(void **state) {
    (void)state;
    enum { AT = 512, N = 3 };
    struct setup b;
    struct answer streams[N_STREAMS], a[N], again;
    setup_open(&b, FLIGHTS(FLIGHT_TOK), CONFIG(.prefix_cache_bytes = (size_t)1 << 30));
    for (int i = 0; i < N_STREAMS; i++) collect_submit(&b.c, request(&streams[i], 0, 5, MOST));
    struct rod_request *r[N];
    uint64_t tickets[N];
    struct rod_error err;
    for (uint32_t i = 0; i < N; i++) {
        r[i] = request(&a[i], 1, LONG, 5);
        r[i]->same_before = i;
        r[i]->n_breakpoints = 1;
        r[i]->breakpoints[0] = (struct rod_breakpoint){.at = AT + 3, .ttl_ns = 1000000000000};
    }
    if (rod_submit_all(b.c.engine, r, N, tickets, &err)) fail_msg("%s", err.message);
    fake_release(b.be);
    collect_until(&b.c, a, N);
    const struct rod_stats s = stats_of(b.c.engine);
    assert_true(s.flights > 5 && s.flight_tok > LONG / 2);
    assert_true(s.prefill_tok < 2 * LONG + N_STREAMS * 5);
    assert_true(a[0].end.created_tok >= AT / 8 * 8);
    for (int i = 1; i < N; i++) collect_assert_ids(&a[i], a[0].ids, 5, "a choice");
    finish(&b, request(&again, 1, LONG, 5), &again);
    collect_assert_ids(&again, a[0].ids, 5, "from an entry");
    assert_true(again.end.cached_tok >= AT);
    for (int i = 0; i < N; i++) collect_free(&a[i]);
    collect_free(&again);
    close_streams(&b, streams);
}

int main(void) {
    fill_prompts();
    const struct CMUnitTest tests[] = {
        ON_BOTH(prompts_in_flights_give_the_answers_of_steps),
        ON_BOTH(prompts_that_are_looked_at_do_not_fly),
        ON_BOTH(beside_few_streams_nothing_flies),
        ON_BOTH(short_prompts_and_streams_go_on_beside_a_flight),
        ON_BOTH(a_cancel_in_a_flight_ends_at_once),
        ON_BOTH(a_second_flight_is_begun_before_the_first_ends),
        ON_BOTH(a_flight_whose_streams_have_ended_is_waited_for),
        ON_BOTH(close_in_a_flight),
        ON_BOTH(a_fault_in_a_flight_is_a_device_fault),
        ON_BOTH(a_fault_while_a_flight_lands_ends_all_that_is_in_it),
        ON_BOTH(a_fault_beside_two_flights_ends_all),
        ON_BOTH(a_session_deleted_in_a_flight),
        ON_BOTH(breakpoints_and_choices_of_a_prompt_in_flights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
