/* test_sched_load.c - prompts beside streams, on devices that take their time: how long streams wait for a token, and
 * requests for their first one. Virtual time; what a step took is told a step later, as when steps are launched ahead.
 */
#include "engine/base/philox.h"
#include "tests/sched_bench.h"

enum { N_SLOTS = 257, N_POINTS = 4, MOST_STEPS = 200000, MOST_TOKENS = 200000, N_DEVICES = 7 };

/* What a step takes, in ns: its decode rows, at so many of them and on lines between, and its prompts if it has any. */
struct device {
    const char *name;
    uint32_t rows[N_POINTS];
    uint64_t rows_ns[N_POINTS], prompt_ns, tok_ns;
    double noise;
    uint32_t max_batch_tok;
    bool graphs; /* decode rows take what the next power of two takes */
};
static const struct device devices[N_DEVICES] = {
    {"H200", {1, 8, 64, 256}, {1200000, 1800000, 6000000, 9500000}, 2500000, 7000, 0.05, 2048, true},
    {"H200, faster prompts", {1, 8, 64, 256}, {1200000, 1800000, 6000000, 9500000}, 1500000, 7000, 0.05, 2048, true},
    {"H200, short contexts", {1, 8, 64, 256}, {1200000, 1800000, 4100000, 9500000}, 2400000, 7000, 0.05, 2048, true},
    {"GPU", {0, 0, 0, 256}, {760000, 0, 0, 16120000}, 900000, 8500, 0.02, 2048, false},
    {"GPU, short contexts", {0, 0, 0, 256}, {760000, 0, 0, 3832000}, 900000, 7000, 0, 2048, false},
    {"CPU, a small model", {0, 0, 0, 256}, {300000, 0, 0, 23340000}, 100000, 60000, 0.05, 256, false},
    {"slow CPU, a large model", {0, 0, 0, 256}, {90000000, 0, 0, 858000000}, 90000000, 2500000, 0, 128, false},
};

static uint64_t decode_ns(const struct device *d, uint32_t n) {
    uint32_t rows = 1;
    while (d->graphs && rows < n) rows *= 2;
    if (!d->graphs) rows = n;
    int i = d->rows[1] ? 0 : N_POINTS - 1; /* a line from 0 to the last point */
    while (d->rows[1] && i < N_POINTS - 2 && rows > d->rows[i + 1]) i++;
    const int from = d->rows[1] ? i : 0, to = d->rows[1] ? i + 1 : N_POINTS - 1;
    const double part = ((double)rows - d->rows[from]) / ((double)d->rows[to] - d->rows[from]);
    return n ? (uint64_t)((double)d->rows_ns[from] + part * ((double)d->rows_ns[to] - (double)d->rows_ns[from])) : 0;
}

struct client {
    struct sched_req req;
    uint64_t begin_ns, first_ns, last_ns;
    uint64_t want; /* tokens; 0 = no end */
};

struct world {
    struct sched s;
    const struct device *device;
    uint64_t seed, n_drawn, now_ns;
    uint32_t n_steps, n_waits;
    uint32_t n_decode; /* of the step before, with n_tok and took_ns */
    uint64_t n_tok, took_ns;
    uint64_t steps[MOST_STEPS], waits[MOST_TOKENS]; /* of streams, from a token to the next */
};

static void world_open(struct world *w, const struct device *device, uint32_t n_slots) {
    memset(w, 0, sizeof *w);
    w->device = device, w->seed = 7;
    w->s = make(n_slots, device->max_batch_tok, n_slots, 64);
}

static void world_token(struct world *w, struct client *c) {
    if (c->req.n_out > 1)
        w->waits[w->n_waits++ % MOST_TOKENS] = w->now_ns - c->last_ns;
    else
        c->first_ns = w->now_ns;
    c->last_ns = w->now_ns;
    if (c->want && c->req.n_out == c->want) sched_remove(&w->s, &c->req);
}

static void world_step(struct world *w) {
    struct sched_row rows[N_SLOTS];
    const struct device *d = w->device;
    const uint32_t n = sched_plan(&w->s, 0, rows);
    uint32_t n_decode = 0;
    uint64_t n_tok = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (rows[i].req->state == SCHED_DECODE)
            n_decode++;
        else
            n_tok += rows[i].n_tok;
        sched_commit(&w->s, &rows[i]);
    }
    uint64_t ns = decode_ns(d, n_decode) + (n_tok ? d->prompt_ns + n_tok * d->tok_ns : 0);
    ns += (uint64_t)(d->noise * (double)ns * philox_uniform(w->seed, w->n_drawn++, 0));
    if (w->n_steps) sched_took(&w->s, 0, w->n_decode, w->n_tok, w->took_ns);
    w->n_decode = n_decode, w->n_tok = n_tok, w->took_ns = ns;
    w->now_ns += ns;
    assert_true(w->n_steps < MOST_STEPS);
    w->steps[w->n_steps++] = ns;
    for (uint32_t i = 0; i < n; i++)
        if (rows[i].n_out) world_token(w, (struct client *)(void *)rows[i].req);
}

static int compare_ns(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}
static uint64_t percentile(uint64_t *ns, uint32_t n, uint32_t percent) {
    assert_true(n > 0);
    qsort(ns, n, sizeof *ns, compare_ns);
    return ns[(uint64_t)(n - 1) * percent / 100];
}
/* Of the steps since `first`: all streams have a token in each, so it is the time between tokens. */
static uint64_t p99_ns(struct world *w, uint32_t first) {
    static uint64_t ns[MOST_STEPS];
    memcpy(ns, w->steps + first, (w->n_steps - first) * sizeof *ns);
    return percentile(ns, w->n_steps - first, 99);
}

static void start(struct world *w, struct client *c, uint64_t n_prompt, uint64_t want) {
    *c = (struct client){.req = request(n_prompt), .begin_ns = w->now_ns, .want = want};
    sched_submit(&w->s, &c->req, w->now_ns);
    assert_ptr_equal(sched_admit(&w->s, w->now_ns), &c->req);
}

/* ---- a long prompt ---- */

static void a_long_prompt_halves_the_pace_of_streams_and_triples_no_wait_for_a_token(void **state) {
    (void)state;
    static struct world w;
    static const uint32_t counts[] = {1, 8, 64};
    for (int i = 0; i < N_DEVICES; i++) {
        const struct device *d = &devices[i];
        for (int k = 0; k < 3; k++) {
            static struct client r[N_SLOTS], big;
            const uint32_t n_streams = counts[k];
            world_open(&w, d, N_SLOTS);
            for (uint32_t j = 0; j < n_streams; j++) start(&w, &r[j], 100, 0);
            while (w.s.prefill[0].n) world_step(&w);
            const uint32_t quiet = w.n_steps;
            while (w.n_steps < quiet + 300) world_step(&w);
            const uint64_t before_ns = p99_ns(&w, quiet), streams_ns = decode_ns(d, n_streams);
            const uint32_t begin = w.n_steps;
            const uint64_t begin_ns = w.now_ns;
            start(&w, &big, 100000, 0);
            while (big.req.state == SCHED_PREFILL) world_step(&w);
            const uint64_t beside_ns = p99_ns(&w, begin);
            const double took_ns = (double)(w.now_ns - begin_ns), steps = w.n_steps - begin;
            /* A chunk is the least that a step with prompts can have. */
            const uint64_t least_ns = streams_ns + d->prompt_ns + 64 * d->tok_ns;
            uint64_t bound_ns = n_streams == 64 ? before_ns * 5 / 2 : before_ns * 3;
            if (bound_ns < BUDGET_STEP_NS) bound_ns = BUDGET_STEP_NS;
            if (bound_ns < least_ns) bound_ns = least_ns;
            if (beside_ns > bound_ns + bound_ns / 10)
                fail_msg("%s, %u streams: %llu ns a token beside a prompt, %llu before", d->name, n_streams,
                         (unsigned long long)beside_ns, (unsigned long long)before_ns);
            /* Over all of it streams have about half their pace: n of the 2 n + 1 that the time is shared among. */
            const double pace = steps * (double)streams_ns / took_ns, want = n_streams / (2. * n_streams + 1);
            if (pace < want - 0.05 || pace > want + 0.12)
                fail_msg("%s, %u streams: %.0f steps of %llu ns in %.0f ns, a pace of %.2f", d->name, n_streams, steps,
                         (unsigned long long)streams_ns, took_ns, pace);
            sched_fini(&w.s);
        }
    }
}

/* As much as half the time allows: 100,000 tokens alone are 0.7 s without the fixed parts. */
static void a_long_prompt_beside_64_streams_comes_in_pieces_worth_their_fixed_part(void **state) {
    (void)state;
    static struct world w;
    static struct client r[64], big;
    static const double most_s[] = {2.8, 2.2, 4.6};
    for (int i = 0; i < 3; i++) {
        world_open(&w, &devices[i], 65);
        for (int k = 0; k < 64; k++) start(&w, &r[k], 128, 0);
        while (w.n_steps < 200) world_step(&w);
        const uint32_t begin = w.n_steps;
        start(&w, &big, 100000, 1);
        while (big.req.state != SCHED_NONE) world_step(&w);
        const double s = (double)(big.first_ns - big.begin_ns) * 1e-9, wait = (double)p99_ns(&w, begin) * 1e-6;
        if (s > most_s[i] || wait > 2.3e-6 * (double)decode_ns(&devices[i], 64))
            fail_msg("%s: the prompt took %.2f s, and a token %.2f ms at the 99th percentile", devices[i].name, s,
                     wait);
        sched_fini(&w.s);
    }
}

/* When the streams leave, the prompt gets the whole step; when few stay, the share follows them. */
static void the_share_follows_the_streams(void **state) {
    (void)state;
    enum { MANY = 64, FEW = 8 };
    static struct world w;
    static struct client r[MANY], big;
    const struct device *d = &devices[5];
    world_open(&w, d, MANY + 1);
    for (int k = 0; k < MANY; k++) start(&w, &r[k], 10, 0);
    while (w.n_steps < 100) world_step(&w);
    start(&w, &big, 10000000, 0);
    while (w.n_steps < 300) world_step(&w);
    assert_true(p99_ns(&w, 200) < 5 * decode_ns(d, MANY) / 2);
    const uint64_t at = big.req.pos;
    for (int k = FEW; k < MANY; k++) sched_remove(&w.s, &r[k].req);
    while (w.n_steps < 500) world_step(&w);
    const uint64_t few_ns = p99_ns(&w, 400);
    if (few_ns > BUDGET_STEP_NS + BUDGET_STEP_NS / 10) fail_msg("%llu ns", (unsigned long long)few_ns);
    assert_true(big.req.pos > at);
    for (int k = 0; k < FEW; k++) sched_remove(&w.s, &r[k].req);
    const uint64_t alone = big.req.pos;
    world_step(&w);
    assert_int_equal(big.req.pos - alone, d->max_batch_tok);
    sched_fini(&w.s);
}

/* ---- short prompts ---- */

/* Short prompts that come beside a long one and streams start within a few steps; the long one goes on. */
static void short_prompts_overtake_within_the_share(void **state) {
    (void)state;
    static struct world w;
    static struct client r[32], big, small;
    for (int i = 0; i < N_DEVICES; i++) {
        world_open(&w, &devices[i], 40);
        for (int k = 0; k < 32; k++) start(&w, &r[k], 10, 0);
        while (w.n_steps < 100) world_step(&w);
        start(&w, &big, 1000000, 0);
        while (w.n_steps < 200) world_step(&w);
        for (int k = 0; k < 50; k++) {
            const uint64_t at = big.req.pos;
            const uint32_t begin = w.n_steps;
            start(&w, &small, 100, 0);
            while (small.req.state == SCHED_PREFILL) world_step(&w);
            if (w.n_steps - begin > 10) fail_msg("%s: %u steps", devices[i].name, w.n_steps - begin);
            while (w.n_steps < begin + 16) world_step(&w);
            assert_true(big.req.pos >= at + 2 * 64);
            sched_remove(&w.s, &small.req);
        }
        sched_fini(&w.s);
    }
}

struct load {
    double first_p50, first_p99, wait_p99, all_s; /* ms */
};

/* n clients come together, each with a prompt of 128 tokens for 256, and another request of its kind when it ends. */
static struct load load(struct world *w, const struct device *d, uint32_t n) {
    static struct client r[2 * N_SLOTS], early[8];
    static uint64_t first_ns[2 * N_SLOTS];
    world_open(w, d, n);
    for (uint32_t k = 0; k < 8 && k < n; k++) start(w, &early[k], 128, 64);
    while (sched_site_busy(&w->s, 0)) world_step(w);
    w->n_waits = 0;
    const uint64_t begin_ns = w->now_ns;
    uint32_t n_begun = 0;
    for (; n_begun < n; n_begun++) start(w, &r[n_begun], 128, 256);
    while (sched_site_busy(&w->s, 0)) {
        world_step(w);
        while (w->s.slots.n_free && n_begun < 2 * n) start(w, &r[n_begun++], 128, 256);
    }
    for (uint32_t k = 0; k < n_begun; k++) first_ns[k] = r[k].first_ns - r[k].begin_ns;
    const uint32_t n_waits = w->n_waits < MOST_TOKENS ? w->n_waits : MOST_TOKENS;
    const struct load l = {1e-6 * (double)percentile(first_ns, n, 50), 1e-6 * (double)percentile(first_ns, n_begun, 99),
                           1e-6 * (double)percentile(w->waits, n_waits, 99), 1e-9 * (double)(w->now_ns - begin_ns)};
    sched_fini(&w->s);
    return l;
}

/* As long as a token had one price, which was mostly that of the fixed part, little more than a chunk went into a step:
 * in this table's order the median of those that come together was 217, 841, 108, 506, 178, 1,791, 373 and 74 ms, the
 * 99th percentile of all 568, 1,273, 288, 872, 607, 4,616, 896 and 151, and the whole
 * took 3.79, 6.63, 3.49, 6.13, 3.18, 9.35, 4.24 and 1.18 s. */
static void many_short_prompts_that_come_together_start_soon(void **state) {
    (void)state;
    static struct world w;
    static const struct {
        int device;
        uint32_t n;
        struct load most;
    } cases[] = {
        {0, 64, {80, 180, 15, 3.5}},   {0, 256, {300, 600, 24, 6}},   {1, 64, {80, 150, 15, 3.5}},
        {1, 256, {280, 550, 24, 5.9}}, {2, 64, {80, 200, 10.5, 2.6}}, {2, 256, {320, 620, 24, 6}},
        {5, 64, {420, 1000, 12, 4.4}}, {5, 16, {95, 200, 8, 1.3}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct load got = load(&w, &devices[cases[i].device], cases[i].n), *most = &cases[i].most;
        print_message("%s, %u: first token %.0f ms, 99 %% %.0f; 99 %% of tokens %.1f ms; %.2f s\n",
                      devices[cases[i].device].name, cases[i].n, got.first_p50, got.first_p99, got.wait_p99, got.all_s);
        if (got.first_p50 > most->first_p50 || got.first_p99 > most->first_p99 || got.wait_p99 > most->wait_p99 ||
            got.all_s > most->all_s)
            fail_msg("%s, %u: wanted %.0f, %.0f, %.1f, %.2f", devices[cases[i].device].name, cases[i].n,
                     most->first_p50, most->first_p99, most->wait_p99, most->all_s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_halves_the_pace_of_streams_and_triples_no_wait_for_a_token),
        cmocka_unit_test(a_long_prompt_beside_64_streams_comes_in_pieces_worth_their_fixed_part),
        cmocka_unit_test(the_share_follows_the_streams),
        cmocka_unit_test(short_prompts_overtake_within_the_share),
        cmocka_unit_test(many_short_prompts_that_come_together_start_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
