/* test_sched_flight.c - which pieces of which prompts are in flights beside steps: pure plans, then in virtual time how
 * long streams wait for a token beside long prompts, and how long these take. */
#include "tests/sched_world.h"

/* n streams that decode, on one site. */
static void with_streams(struct sched *s, struct sched_req *r, uint32_t n, uint32_t flight_tok) {
    make(s, 64, 256, 64, 64);
    struct sched_row rows[64];
    uint32_t n_rows;
    s->config.flight_tok = flight_tok;
    s->config.flight_streams = FLIGHT_STREAMS;
    for (uint32_t i = 0; i < n; i++) {
        r[i] = request(10);
        sched_submit(s, &r[i], 0);
        assert_ptr_equal(sched_admit(s, 0), &r[i]);
    }
    while (s->prefill[0].n) run_step(s, rows, &n_rows);
}

static void add(struct sched *s, struct sched_req *r, uint64_t n_prompt) {
    *r = request(n_prompt);
    r->may_fly = true;
    sched_submit(s, r, 0);
    assert_ptr_equal(sched_admit(s, 0), r);
}

static void a_prompt_flies_up_to_its_last_piece(void **state) {
    (void)state;
    static const uint64_t lengths[] = {513, 577, 578, 640, 641, 1000, 4096, 4097};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct sched_req r[8], big;
        struct sched_row rows[64];
        uint32_t n;
        struct sched s;
        with_streams(&s, r, 8, 320);
        add(&s, &big, lengths[i]);
        uint64_t at = 0;
        while (sched_plan_flight(&s, 0, rows)) {
            assert_ptr_equal(rows[0].req, &big);
            assert_int_equal(rows[0].pos, at);
            assert_true(!rows[0].n_out && rows[0].n_tok <= 320 && rows[0].n_tok % 64 == 0);
            assert_int_equal(big.state, SCHED_FLYING);
            run_step(&s, rows, &n);
            assert_int_equal(n, 8); /* of the streams */
            at += big.flight_tok;
            sched_land(&s, &big);
            assert_int_equal(big.pos, at);
            assert_int_equal(big.state, SCHED_PREFILL);
        }
        assert_int_equal(at, (lengths[i] - 1) / 64 * 64);
        for (int k = 0; k < 8 && big.state == SCHED_PREFILL; k++) run_step(&s, rows, &n);
        assert_int_equal(big.state, SCHED_DECODE);
        sched_fini(&s);
    }
}

static void short_ones_and_those_that_are_looked_at_do_not_fly(void **state) {
    (void)state;
    struct sched_req r[8], small, scored, other;
    struct sched_row rows[64];
    struct sched s;
    with_streams(&s, r, 8, 320);
    add(&s, &small, 512);
    add(&s, &other, 2000);
    other.may_fly = false;
    scored = request(2000);
    scored.scored = scored.may_fly = true;
    sched_submit(&s, &scored, 0);
    assert_ptr_equal(sched_admit(&s, 0), &scored);
    assert_int_equal(sched_plan_flight(&s, 0, rows), 0);
    sched_fini(&s);
}

/* Beside few streams prompts have more of the time in steps; beside fewer than prompts that are long, too. */
static void flights_need_streams(void **state) {
    (void)state;
    struct sched_req r[8], big[9];
    struct sched_row rows[64];
    uint32_t n;
    struct sched s;
    with_streams(&s, r, 7, 320);
    add(&s, &big[0], 2000);
    assert_int_equal(sched_plan_flight(&s, 0, rows), 0);
    for (int k = 0; k < 100 && big[0].state == SCHED_PREFILL; k++) run_step(&s, rows, &n);
    assert_int_equal(big[0].state, SCHED_DECODE);
    sched_fini(&s);

    with_streams(&s, r, 8, 320);
    for (int i = 0; i < 9; i++) add(&s, &big[i], 2000);
    assert_int_equal(sched_plan_flight(&s, 0, rows), 0);
    sched_remove(&s, &big[4]);
    assert_true(sched_plan_flight(&s, 0, rows) > 0);
    /* Streams that leave meanwhile change nothing for the one on its way. */
    for (int i = 0; i < 4; i++) sched_remove(&s, &r[i]);
    while (s.flying.n) sched_land(&s, sched_first(&s.flying));
    assert_int_equal(sched_plan_flight(&s, 0, rows), 0);
    sched_fini(&s);
}

/* The shortest have half, the oldest the rest, and keeps its place. */
static void a_flight_is_shared_as_a_step_is(void **state) {
    (void)state;
    struct sched_req r[8], big[3];
    struct sched_row rows[64];
    struct sched s;
    with_streams(&s, r, 8, 640);
    add(&s, &big[0], 40000);
    add(&s, &big[1], 30000);
    add(&s, &big[2], 3000);
    for (int k = 0; k < 9; k++) {
        assert_int_equal(sched_plan_flight(&s, 0, rows), 2);
        assert_int_equal(big[0].flight_tok, 320);
        assert_int_equal(big[2].flight_tok, 320);
        sched_land(&s, &big[0]), sched_land(&s, &big[2]);
        assert_ptr_equal(sched_first(&s.prefill[0]), &big[0]);
    }
    assert_int_equal(big[2].pos, 2880);
    assert_int_equal(sched_plan_flight(&s, 0, rows), 3); /* its last piece but one, then the next shortest */
    assert_int_equal(big[2].flight_tok, 64);
    assert_int_equal(big[1].flight_tok, 256);
    assert_int_equal(big[0].flight_tok, 320);
    sched_fini(&s);
}

/* A second flight goes on where the first ends, for the same prompts and others; what it does not take is as before. */
static void a_second_flight_follows_the_first(void **state) {
    (void)state;
    struct sched_req r[8], big[3];
    struct sched_row rows[64];
    uint32_t n;
    struct sched s;
    with_streams(&s, r, 8, 640);
    add(&s, &big[0], 4000);
    add(&s, &big[1], 1000);
    assert_int_equal(sched_plan_flight(&s, 0, rows), 2); /* 320 of each */
    assert_int_equal(sched_plan_flight(&s, 0, rows), 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rows[i].pos, 320);
        assert_int_equal(rows[i].n_tok, 320);
        assert_int_equal(big[i].pos, 0);
        assert_int_equal(big[i].state, SCHED_FLYING);
    }
    run_step(&s, rows, &n);
    assert_int_equal(n, 8); /* of the streams */
    sched_land(&s, &big[0]), sched_land(&s, &big[1]);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(big[i].state, SCHED_FLYING);
        assert_int_equal(big[i].pos, 320);
        assert_int_equal(big[i].flight_tok, 320);
        assert_int_equal(big[i].behind_tok, 0);
    }
    add(&s, &big[2], 700);
    big[0].stop_tok = 640; /* where it leaves its state when its flight has ended */
    assert_int_equal(sched_plan_flight(&s, 0, rows), 2);
    assert_ptr_equal(rows[0].req, &big[1]); /* what is left of it, then the one that has come */
    assert_int_equal(rows[0].pos, 640);
    assert_int_equal(rows[0].n_tok, 320);
    assert_ptr_equal(rows[1].req, &big[2]);
    assert_int_equal(rows[1].n_tok, 320);
    sched_land(&s, &big[0]), sched_land(&s, &big[1]);
    assert_int_equal(big[0].state, SCHED_PREFILL);
    assert_ptr_equal(sched_first(&s.prefill[0]), &big[0]);
    assert_int_equal(big[1].state, SCHED_FLYING);
    const uint32_t n_free = s.slots.n_free, slot = sched_leave(&s, &big[1]);
    sched_release(&s, slot);
    assert_int_equal(s.slots.n_free, n_free + 1);
    for (int i = 0; i < 8; i++) sched_remove(&s, &r[i]); /* too few streams: nothing begins, and nothing has changed */
    assert_int_equal(sched_plan_flight(&s, 0, rows), 0);
    assert_int_equal(big[2].state, SCHED_FLYING);
    assert_int_equal(big[2].pos, 0);
    assert_int_equal(big[2].flight_tok, 320);
    sched_fini(&s);
}

/* Whoever leaves in a flight is gone, and the slot is free when it has ended. */
static void a_slot_of_a_flight_is_free_when_it_has_ended(void **state) {
    (void)state;
    struct sched_req r[8], big;
    struct sched_row rows[64];
    struct sched s;
    with_streams(&s, r, 8, 640);
    add(&s, &big, 4000);
    assert_int_equal(sched_plan_flight(&s, 0, rows), 1);
    const uint32_t n_free = s.slots.n_free, slot = sched_leave(&s, &big);
    assert_int_equal(big.state, SCHED_NONE);
    assert_int_equal(s.slots.n_free, n_free);
    sched_release(&s, slot);
    assert_int_equal(s.slots.n_free, n_free + 1);
    sched_fini(&s);
}

/* ---- in virtual time ---- */

static void open_world(struct world *w, const struct device *d, bool flights, struct client *r, uint32_t n) {
    world_open(w, d, N_SLOTS);
    w->s.config.flight_tok = flights ? FLIGHT_TOK : 0;
    w->s.config.flight_streams = FLIGHT_STREAMS;
    start_streams(w, r, n, 128, 300);
}

static void start_long(struct world *w, struct client *c, uint64_t n_prompt) {
    start(w, c, n_prompt, 1);
    c->req.may_fly = true;
}

/* 64 streams wait for a token little longer than alone, where a step with a piece doubles it; the prompt has the part
 * of the device that is its own. */
static void streams_wait_little_beside_long_prompts(void **state) {
    (void)state;
    static struct world w;
    static struct client r[64], big;
    for (int i = 0; i < 3; i++) {
        const struct device *d = &devices[i];
        double s[2], wait[2];
        for (int flights = 0; flights < 2; flights++) {
            open_world(&w, d, flights, r, 64);
            const uint32_t begin = w.n_steps;
            start_long(&w, &big, 100000);
            s[flights] = first_s(&w, &big);
            wait[flights] = (double)p99_ns(&w, begin) * 1e-6;
            assert_int_equal(w.n_flights, flights ? 49 : 0); /* 1,562 chunks, 32 in each */
            sched_fini(&w.s);
        }
        const double alone = (double)decode_ns(d, 64) * 1e-6, own_s = 100000e-9 * (double)d->tok_ns / FLIGHT_PART;
        print_message("%s: %.2f ms between tokens alone, 99 %%; beside a prompt in steps %.2f and %.2f s, in flights "
                      "%.2f and %.2f s\n",
                      d->name, alone, wait[0], s[0], wait[1], s[1]);
        if (wait[1] > 1.3 * alone || s[1] > 1.2 * own_s + 0.5)
            fail_msg("%s: wanted at most %.2f ms and %.2f s", d->name, 1.3 * alone, 1.2 * own_s + 0.5);
    }
}

/* Short prompts beside streams and a long one in flights have their first token as soon as without the long one. */
static void short_prompts_pass_a_long_one_in_flights(void **state) {
    (void)state;
    static struct world w;
    static struct client r[64], big, small;
    static uint64_t first_ns[2][40];
    for (int beside = 0; beside < 2; beside++) {
        open_world(&w, &devices[2], true, r, 64);
        if (beside) start_long(&w, &big, 1000000);
        for (int k = 0; k < 40; k++) {
            start(&w, &small, 100, 0);
            while (small.req.state == SCHED_PREFILL) world_step(&w);
            first_ns[beside][k] = small.first_ns - small.begin_ns;
            sched_remove(&w.s, &small.req);
            for (int i = 0; i < 5; i++) world_step(&w);
        }
        if (beside) assert_true(w.n_flights > 5 && big.req.state == SCHED_FLYING);
        sched_fini(&w.s);
    }
    const uint64_t alone = percentile(first_ns[0], 40, 90), beside = percentile(first_ns[1], 40, 90);
    print_message("first token of a short prompt, 90 %%: %.1f ms, beside flights %.1f\n", 1e-6 * (double)alone,
                  1e-6 * (double)beside);
    assert_true(beside < alone * 3 / 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_flies_up_to_its_last_piece),
        cmocka_unit_test(short_ones_and_those_that_are_looked_at_do_not_fly),
        cmocka_unit_test(flights_need_streams),
        cmocka_unit_test(a_flight_is_shared_as_a_step_is),
        cmocka_unit_test(a_second_flight_follows_the_first),
        cmocka_unit_test(a_slot_of_a_flight_is_free_when_it_has_ended),
        cmocka_unit_test(streams_wait_little_beside_long_prompts),
        cmocka_unit_test(short_prompts_pass_a_long_one_in_flights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
