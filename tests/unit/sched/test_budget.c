/* test_budget.c - prices learned from times, and what they let a step have. */
#include "engine/sched/budget.h"
#include "engine/base/policy.h"
#include "engine/base/philox.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { CHUNK = 64 };

struct rng {
    uint64_t seed, n;
};
static double uniform(struct rng *g) { return philox_uniform(g->seed, g->n++, 0); }

/* What n tokens take on a machine: fixed and each token, with a part of it as noise. */
struct machine {
    double fixed_ns, tok_ns, noise;
};
static uint64_t time_ns(const struct machine *m, struct rng *g, uint64_t n) {
    return (uint64_t)((m->fixed_ns + m->tok_ns * (double)n) * (1 + m->noise * (2 * uniform(g) - 1)));
}
static const struct machine gpu = {2200000, 7000, 0.05}, cpu = {100000, 60000, 0.2}, slow = {90000000, 2500000, 0.1};

static void near_to(const char *what, double got, double want, double part) {
    if (!(fabs(got - want) <= part * want)) fail_msg("%s: %g, wanted %g within %g", what, got, want, part * want);
}

static void sane(const struct step_cost *p) {
    if (!(isfinite(p->fixed_ns) && isfinite(p->unit_ns) && p->fixed_ns >= 0 && p->unit_ns > 0 &&
          isfinite(p->var_fixed) && isfinite(p->var_unit) && isfinite(p->cov) && p->var_fixed >= 0 && p->var_unit >= 0))
        fail_msg("fixed %g, unit %g, variances %g %g %g", p->fixed_ns, p->unit_ns, p->var_fixed, p->var_unit, p->cov);
}

static void a_price_is_found_from_times_of_a_few_sizes(void **state) {
    (void)state;
    static const uint64_t sizes[] = {64, 128, 64, 640, 256, 2048, 64, 640};
    const struct machine machines[] = {gpu, slow, {0, 60000, 0.05}};
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++) {
        struct rng g = {3 + m, 0};
        struct step_cost p;
        cost_init(&p, CHUNK);
        for (int i = 0; i < 40; i++) {
            const uint64_t n = sizes[i % 8];
            cost_learn(&p, n, time_ns(&machines[m], &g, n));
            sane(&p);
        }
        for (uint64_t n = 64; n <= 2048; n *= 2)
            near_to("price", (double)cost_ns(&p, n), machines[m].fixed_ns + machines[m].tok_ns * (double)n, 0.1);
        near_to("token", p.unit_ns / CHUNK, machines[m].tok_ns, 0.15);
    }
}

/* The first time of a kind says how its parts may be, not that all of it is a token's price. */
static void one_small_piece_does_not_make_tokens_dear(void **state) {
    (void)state;
    struct step_cost p;
    cost_init(&p, CHUNK);
    assert_int_equal(cost_ns(&p, 100), 0);
    assert_int_equal(cost_fits(&p, UINT64_MAX), 0);
    for (int i = 0; i < 10; i++) cost_learn(&p, CHUNK, 2648000);
    near_to("a chunk", (double)cost_ns(&p, CHUNK), 2648000, 0.02);
    assert_in_range(cost_ns(&p, 4 * CHUNK), 2648000 * 11 / 10, 2648000 * 5 / 2);
    assert_int_equal(cost_fits(&p, 100000000), 2 * CHUNK); /* but a line is not trusted far from its points */
}

static void the_same_size_for_ever_keeps_what_it_cannot_tell(void **state) {
    (void)state;
    const struct machine *const machines[] = {&gpu, &cpu, &slow};
    for (size_t m = 0; m < 3; m++) {
        struct rng g = {11 + m, 0};
        struct step_cost p;
        cost_init(&p, CHUNK);
        for (int i = 0; i < 40; i++) {
            const uint64_t n = i % 2 ? 64 : 640;
            cost_learn(&p, n, time_ns(machines[m], &g, n));
        }
        const double fixed = p.fixed_ns, unit = p.unit_ns, small = (double)cost_ns(&p, 64);
        for (int i = 0; i < 1000000; i++) cost_learn(&p, 640, time_ns(machines[m], &g, 640));
        sane(&p);
        near_to("640", (double)cost_ns(&p, 640), machines[m]->fixed_ns + 640 * machines[m]->tok_ns, 0.15);
        if (fabs(p.fixed_ns - fixed) > small || fabs(p.unit_ns - unit) > 0.3 * unit)
            fail_msg("machine %zu: fixed %g to %g, unit %g to %g", m, fixed, p.fixed_ns, unit, p.unit_ns);
        for (int i = 0; i < 20; i++) { /* and learns the rest as soon as there is something to learn from */
            const uint64_t n = i % 2 ? 64 : 640;
            cost_learn(&p, n, time_ns(machines[m], &g, n));
        }
        near_to("64", (double)cost_ns(&p, 64), machines[m]->fixed_ns + 64 * machines[m]->tok_ns, 0.25);
    }
}

static void a_price_follows_a_machine_that_changes(void **state) {
    (void)state;
    static const double factors[] = {10, 0.1, 100, 0.01, 3};
    for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
        struct rng g = {29 + f, 0};
        struct step_cost p;
        cost_init(&p, CHUNK);
        struct machine m = gpu;
        for (int i = 0; i < 100; i++) cost_learn(&p, i % 3 ? 128 : 640, time_ns(&m, &g, i % 3 ? 128 : 640));
        m.fixed_ns *= factors[f], m.tok_ns *= factors[f];
        for (int i = 0; i < 80; i++) cost_learn(&p, i % 3 ? 128 : 640, time_ns(&m, &g, i % 3 ? 128 : 640));
        near_to("128", (double)cost_ns(&p, 128), m.fixed_ns + 128 * m.tok_ns, 0.15);
        near_to("640", (double)cost_ns(&p, 640), m.fixed_ns + 640 * m.tok_ns, 0.15);
    }
}

static void one_slow_step_is_not_a_price(void **state) {
    (void)state;
    struct rng g = {5, 0};
    struct step_cost p;
    cost_init(&p, CHUNK);
    for (int i = 0; i < 100; i++) cost_learn(&p, i % 3 ? 128 : 640, time_ns(&gpu, &g, i % 3 ? 128 : 640));
    const double before = (double)cost_ns(&p, 640);
    cost_learn(&p, 640, 10000000000u);
    if ((double)cost_ns(&p, 640) > 1.4 * before) fail_msg("%g after %g", (double)cost_ns(&p, 640), before);
    cost_learn(&p, 640, 0);
    if ((double)cost_ns(&p, 640) < 0.6 * before) fail_msg("%g after %g", (double)cost_ns(&p, 640), before);
}

static void whatever_is_told_a_price_stays_a_number(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct rng g = {seed, 0};
        struct prefill_budget p;
        budget_init(&p, 1 + (uint32_t)(uniform(&g) * 300));
        for (int i = 0; i < 3000; i++) {
            const uint32_t n_decode = (uint32_t)pow(2, 32 * uniform(&g)) - 1;
            const uint64_t n_tok = uniform(&g) < 0.3 ? 0 : (uint64_t)pow(2, 40 * uniform(&g));
            const uint64_t ns = uniform(&g) < 0.1   ? 0
                                : uniform(&g) < 0.1 ? UINT64_MAX
                                                    : (uint64_t)pow(2, 63 * uniform(&g));
            budget_took(&p, n_decode, n_tok, ns);
            if (p.prompt.n_most) sane(&p.prompt);
            const uint64_t streams_ns = budget_streams_ns(&p, n_decode), prompt_ns = streams_ns * (uint64_t)(1 + i % 3);
            if (n_decode) budget_skips(&p, n_decode, prompt_ns, i % 2);
            budget_fits_tok(&p, streams_ns, prompt_ns, 0);
            budget_spend(&p, n_tok, streams_ns, prompt_ns, 0);
            if (p.debt_ns > UINT64_MAX / 4 || streams_ns > UINT64_MAX / 1000000)
                fail_msg("seed %llu: a debt of %llu ns, streams %llu", (unsigned long long)seed,
                         (unsigned long long)p.debt_ns, (unsigned long long)streams_ns);
        }
    }
}

/* ---- what a step may have ---- */

static struct prefill_budget budget_of(const struct machine *m, uint32_t n_decode, uint64_t streams_ns) {
    struct prefill_budget p;
    struct rng g = {1, 0};
    const struct machine exact = {m->fixed_ns, m->tok_ns, 0};
    budget_init(&p, CHUNK);
    for (int i = 0; i < 40; i++) budget_took(&p, 0, i % 2 ? 64 : 8192, time_ns(&exact, &g, i % 2 ? 64 : 8192));
    budget_took(&p, n_decode, 0, streams_ns);
    return p;
}

static void a_piece_takes_the_time_of_the_streams_or_what_is_worth_its_fixed_part(void **state) {
    (void)state;
    static const struct {
        uint64_t streams_ns, prompt_ns;
        double piece_ns;
    } cases[] = {
        {1200000, 1200000, 6800000},    /* few streams: the step may take 8 ms */
        {6000000, 6000000, 6000000},    /* as long as the streams */
        {6000000, 9000000, 9000000},    /* many wait */
        {6000000, 600000000, 12000000}, /* but no token in more than three times its time */
        {4100000, 4100000, 4100000},    /* 8.2 ms */
        {1200000, 30000000, 6800000},   /* 8 ms is more than three times */
    };
    struct prefill_budget p = budget_of(&gpu, 1, 1200000);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        near_to("tokens", (double)budget_fits_tok(&p, cases[i].streams_ns, cases[i].prompt_ns, 0),
                (cases[i].piece_ns - gpu.fixed_ns) / gpu.tok_ns, 0.05);
    /* Never so little that the fixed part is most of it, as far as that is sure. */
    assert_in_range(budget_fits_tok(&p, 200000000, 1, 0), CHUNK, (uint64_t)(0.51 * gpu.fixed_ns / gpu.tok_ns));
    assert_int_equal(budget_fits_tok(&p, 0, 0, 0), UINT64_MAX);
    struct prefill_budget fresh;
    budget_init(&fresh, CHUNK);
    assert_int_equal(budget_fits_tok(&fresh, 1000, 1000, 0), UINT64_MAX);
}

static void a_guess_holds_until_a_step_says_more(void **state) {
    (void)state;
    struct prefill_budget p;
    budget_init(&p, CHUNK);
    budget_guess(&p, 64, 1000000);
    assert_int_equal(budget_streams_ns(&p, 64), 1000000);
    assert_int_equal(budget_streams_ns(&p, 3), 1000000);
    assert_true(budget_skips(&p, 64, 1, false)); /* to measure it */
    budget_took(&p, 60, 0, 4000000);
    assert_int_equal(budget_streams_ns(&p, 64), 4000000); /* whole, not by a quarter */
    assert_false(budget_skips(&p, 64, 1, false));
    budget_guess(&p, 2, 0);
    assert_int_equal(budget_streams_ns(&p, 2), 1);
}

/* Where one step in seven is slow, a small piece that was slow by chance drew all of the price into the fixed part;
 * that made the largest piece worth it, and no smaller one ever told better: steps of 30 ms where 8 were allowed. The
 * first times are those of that day; then every piece is the one that was allowed. */
static void a_size_does_not_justify_itself(void **state) {
    (void)state;
    enum { MOST_TOK = 192, STREAMS_NS = 1000000, PLANS = 400, SEEDS = 100 };
    static const struct {
        uint64_t n_tok, ns;
    } first[] = {{256, 37310000}, {128, 57380000}, {256, 24910000}, {256, 38040000}};
    uint32_t n_large = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct rng g = {seed, 0};
        struct prefill_budget p;
        budget_init(&p, CHUNK);
        budget_took(&p, 1, 0, STREAMS_NS);
        for (int i = 0; i < 4; i++) budget_took(&p, 0, first[i].n_tok, first[i].ns);
        for (int i = 0; i < PLANS; i++) {
            uint64_t n = budget_fits_tok(&p, STREAMS_NS, STREAMS_NS, 0) / CHUNK * CHUNK;
            n = n < CHUNK ? CHUNK : n > MOST_TOK ? MOST_TOK : n;
            const double times = uniform(&g) < 0.15 ? 1 + 4 * uniform(&g) : 1;
            budget_took(&p, 0, n, (uint64_t)(times * (double)time_ns(&cpu, &g, n)));
            n_large += i >= PLANS / 2 && n == MOST_TOK; /* 11.6 ms of the 7 that are allowed */
        }
    }
    if (n_large > SEEDS * PLANS / 2 / 50)
        fail_msg("%u of %d pieces were the largest (seeds 1 to %d)", n_large, SEEDS * PLANS / 2, SEEDS);
}

/* Over many plans prompts have their part of the time, whatever a piece takes of it. */
static void a_debt_is_paid_back_by_plans_without_prompts(void **state) {
    (void)state;
    static const uint64_t streams_ns[] = {400000, 1200000, 2600000, 3900000, 6000000, 20000000};
    for (size_t i = 0; i < sizeof streams_ns / sizeof *streams_ns; i++)
        for (uint64_t times = 1; times <= 2; times++) {
            struct prefill_budget p = budget_of(&gpu, 4, streams_ns[i]);
            const uint64_t prompt_ns = times * streams_ns[i];
            uint64_t n_with = 0, in_row = 0, most_in_row = 0;
            double used_ns = 0;
            for (int plan = 0; plan < 10000; plan++) {
                uint64_t n = 0;
                if (!budget_skips(&p, 4, prompt_ns, false))
                    n = budget_fits_tok(&p, streams_ns[i], prompt_ns, 0) / CHUNK * CHUNK;
                budget_spend(&p, n, streams_ns[i], prompt_ns, 0);
                if (!n) budget_took(&p, 4, 0, streams_ns[i]);
                used_ns += n ? gpu.fixed_ns + gpu.tok_ns * (double)n : 0;
                n_with += n > 0;
                in_row = n ? 0 : in_row + 1;
                if (in_row > most_in_row) most_in_row = in_row;
            }
            const double part = used_ns / (1e4 * (double)prompt_ns);
            if (part > 1.06 || part < 0.85) /* a chunk more would be too much */
                fail_msg("streams %llu ns, %llu times: prompts had %.2f of their time in %llu plans",
                         (unsigned long long)streams_ns[i], (unsigned long long)times, part,
                         (unsigned long long)n_with);
            assert_true(most_in_row <= POLICY_MOST_SKIPPED + 1);
        }
}

static void prompts_wait_for_no_more_than_a_few_plans_whatever_the_debt(void **state) {
    (void)state;
    struct prefill_budget p = budget_of(&slow, 1, 1000);
    budget_spend(&p, 2048, 1000, 1000, 0); /* five seconds of debt, at a microsecond a plan */
    int n = 0;
    while (budget_skips(&p, 1, 1000, false)) {
        budget_spend(&p, 0, 1000, 1000, 0);
        assert_true(++n <= POLICY_MOST_SKIPPED + 1);
    }
    assert_true(n >= POLICY_MOST_SKIPPED);
    /* Where no stream runs there is no debt. */
    budget_spend(&p, 2048, 1000, 1000, 0);
    assert_true(p.debt_ns > 0);
    budget_spend(&p, 2048, 0, 0, 0);
    assert_int_equal(p.debt_ns, 0);
}

/* What short prompts want, as far as it is their work and is left; it comes back with the streams' time. */
static void a_burst_is_bounded_and_comes_back(void **state) {
    (void)state;
    enum { STREAMS = 4000000 };
    struct prefill_budget p = budget_of(&slow, 1, STREAMS);
    const uint64_t work_ns = cost_ns(&p.prompt, 128);
    assert_int_equal(budget_burst_ns(&p, 128, UINT64_MAX), work_ns < POLICY_BURST_NS ? work_ns : POLICY_BURST_NS);
    assert_int_equal(budget_burst_ns(&p, 128, 1000), 1000);
    assert_int_equal(budget_burst_ns(&p, 0, 1000), 0);
    budget_spend(&p, 1 << 20, STREAMS, STREAMS + POLICY_BURST_NS, POLICY_BURST_NS);
    assert_int_equal(p.burst_ns, STREAMS / 8);
    assert_int_equal(budget_burst_ns(&p, 1 << 20, UINT64_MAX), STREAMS / 8);
    for (int i = 0; i < 1000; i++) budget_spend(&p, 0, STREAMS, STREAMS, 0);
    assert_int_equal(p.burst_ns, POLICY_BURST_NS);
}

/* A step without streams' rows has as many tokens as a burst's step may take, if what is left pays for all of it. */
static void a_step_without_streams_is_paid_by_the_burst(void **state) {
    (void)state;
    struct prefill_budget p = budget_of(&gpu, 64, 4000000), unknown;
    const uint64_t step_ns = cost_ns(&p.prompt, 1024), most_tok = cost_fits(&p.prompt, POLICY_BURST_STEP_NS);
    assert_int_equal(budget_alone_tok(&p, 1024, step_ns), 1024);
    assert_int_equal(budget_alone_tok(&p, 1024, step_ns - 1), 0);
    assert_in_range(most_tok, 1024, 2048);
    assert_int_equal(budget_alone_tok(&p, 1 << 20, POLICY_BURST_NS), most_tok);
    budget_spend(&p, 1024, 0, POLICY_BURST_NS, POLICY_BURST_NS); /* it comes from the burst, and is no debt */
    assert_int_equal(p.burst_ns, POLICY_BURST_NS - step_ns);
    assert_int_equal(p.debt_ns, 0);
    budget_spend(&p, 2048, 4000000, 4000000, 0);
    assert_true(p.debt_ns > 0);
    assert_int_equal(budget_alone_tok(&p, 1024, step_ns + p.debt_ns - 1), 0);
    assert_int_equal(budget_alone_tok(&p, 1024, step_ns + p.debt_ns), 1024);
    budget_init(&unknown, CHUNK);
    assert_int_equal(budget_alone_tok(&unknown, 1024, POLICY_BURST_NS), 0);
}

static void streams_are_measured_alone_when_their_number_is_new_or_the_measure_old(void **state) {
    (void)state;
    struct prefill_budget p;
    budget_init(&p, CHUNK);
    assert_false(budget_skips(&p, 4, 0, false)); /* nothing is known: nothing is bounded */
    budget_took(&p, 4, 0, 1000000);
    assert_int_equal(budget_streams_ns(&p, 3), 1000000);
    assert_int_equal(budget_streams_ns(&p, 9), 1000000); /* the next smaller that is known */
    assert_int_equal(budget_streams_ns(&p, 1), 1000000);
    assert_int_equal(budget_streams_ns(&p, 0), 0);
    assert_false(budget_skips(&p, 4, 0, false));
    assert_true(budget_skips(&p, 9, 0, false));  /* a new number */
    assert_false(budget_skips(&p, 9, 0, false)); /* never twice in a row: it is told later */
    budget_took(&p, 9, 0, 3000000);
    assert_int_equal(budget_streams_ns(&p, 16), 3000000);
    int n = 0;
    while (!budget_skips(&p, 16, 0, false)) n++;
    assert_in_range(n, 30, 100);
}

/* What decode rows take is then known from a step of both, whose prompts have a price. */
static void a_burst_is_not_left_out_to_measure_streams(void **state) {
    (void)state;
    struct prefill_budget p;
    budget_init(&p, CHUNK);
    for (int i = 0; i < 30; i++) budget_took(&p, 0, 512, 1000000 + 512 * 5000);
    budget_took(&p, 4, 0, 1000000);
    for (int i = 0; i < 5; i++) assert_false(budget_skips(&p, 100, 0, true));
    budget_took(&p, 100, 512, 5000000 + 1000000 + 512 * 5000);
    near_to("100 streams", (double)budget_streams_ns(&p, 100), 5000000, 0.05);
    near_to("512", (double)cost_ns(&p.prompt, 512), 1000000 + 512 * 5000, 0.01);
    budget_took(&p, 300, 512, 1000); /* noise: no fewer than fewer take */
    near_to("300 streams", (double)budget_streams_ns(&p, 300), 5000000, 0.05);
    assert_true(budget_skips(&p, 2000, 0, false));
    budget_took(&p, 50, 512, 1000000000); /* no more than more take; and the first step alone says what it is */
    near_to("50 streams", (double)budget_streams_ns(&p, 50), 5000000, 0.05);
    assert_false(budget_skips(&p, 50, 0, false)); /* never twice in a row */
    assert_true(budget_skips(&p, 50, 0, false));
    budget_took(&p, 50, 0, 3000000);
    assert_int_equal(budget_streams_ns(&p, 50), 3000000);
}

/* On a machine shared with others a thread loses its processor now and then: a step of a hundred times its time. What
 * is decided by the pace (shares, whether an entry pays) must not turn over for it; a lasting change is followed.
 */
static void one_slow_step_is_not_a_pace(void **state) {
    (void)state;
    enum { STREAM_NS = 2000000, TOK_NS = 150000, SLOW = 100 };
    struct prefill_budget p;
    budget_init(&p, CHUNK);
    for (int i = 0; i < 30; i++) {
        budget_took(&p, 0, 256, 256 * TOK_NS);
        budget_took(&p, 1, 0, STREAM_NS);
    }
    assert_int_equal(budget_streams_ns(&p, 1), STREAM_NS);
    near_to("256", (double)cost_ns(&p.prompt, 256), 256. * TOK_NS, 0.01);
    budget_took(&p, 1, 0, (uint64_t)SLOW * STREAM_NS);
    if (budget_streams_ns(&p, 1) > 2 * STREAM_NS)
        fail_msg("after one step of %d times its time the pace is %.1f times", SLOW,
                 (double)budget_streams_ns(&p, 1) / STREAM_NS);
    int n = 0;
    for (; budget_streams_ns(&p, 1) < (uint64_t)SLOW * STREAM_NS / 2; n++)
        budget_took(&p, 1, 0, (uint64_t)SLOW * STREAM_NS);
    if (n > 10) fail_msg("half of a lasting change was known after %d steps", n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_price_is_found_from_times_of_a_few_sizes),
        cmocka_unit_test(one_small_piece_does_not_make_tokens_dear),
        cmocka_unit_test(the_same_size_for_ever_keeps_what_it_cannot_tell),
        cmocka_unit_test(a_price_follows_a_machine_that_changes),
        cmocka_unit_test(one_slow_step_is_not_a_price),
        cmocka_unit_test(a_burst_is_not_left_out_to_measure_streams),
        cmocka_unit_test(one_slow_step_is_not_a_pace),
        cmocka_unit_test(whatever_is_told_a_price_stays_a_number),
        cmocka_unit_test(a_piece_takes_the_time_of_the_streams_or_what_is_worth_its_fixed_part),
        cmocka_unit_test(a_size_does_not_justify_itself),
        cmocka_unit_test(a_debt_is_paid_back_by_plans_without_prompts),
        cmocka_unit_test(prompts_wait_for_no_more_than_a_few_plans_whatever_the_debt),
        cmocka_unit_test(a_burst_is_bounded_and_comes_back),
        cmocka_unit_test(a_step_without_streams_is_paid_by_the_burst),
        cmocka_unit_test(a_guess_holds_until_a_step_says_more),
        cmocka_unit_test(streams_are_measured_alone_when_their_number_is_new_or_the_measure_old),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
