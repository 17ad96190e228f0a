/* test_sched.c - the scheduler in virtual time, with no clock and no backend. */
#include "engine/philox.h"
#include "tests/sched_bench.h"

static void requests_get_slots_first_come_first_served(void **state) {
    (void)state;
    struct sched s = make(2, 100, 100, 10);
    struct sched_req r[4];
    for (int i = 0; i < 4; i++) {
        r[i] = request(5);
        sched_submit(&s, &r[i], 100);
    }
    assert_ptr_equal(sched_admit(&s, 200), &r[0]);
    assert_ptr_equal(sched_admit(&s, 200), &r[1]);
    assert_null(sched_admit(&s, 200));
    assert_int_not_equal(r[0].slot, r[1].slot);
    uint32_t slot = r[1].slot;
    sched_remove(&s, &r[1]);
    assert_ptr_equal(sched_admit(&s, 300), &r[2]);
    assert_int_equal(r[2].slot, slot);
    assert_int_equal(r[2].admit_ns, 300);
    sched_fini(&s);
}

static void logits_come_for_the_last_prompt_token_and_for_decode_rows_only(void **state) {
    (void)state;
    struct sched s = make(2, 16, 16, 8);
    struct sched_row rows[2];
    uint32_t n;
    struct sched_req r = request(20);
    sched_submit(&s, &r, 0);
    sched_admit(&s, 0);
    run_step(&s, rows, &n);
    assert_int_equal(n, 1);
    assert_int_equal(rows[0].n_tok, 16);
    assert_int_equal(rows[0].n_out, 0);
    run_step(&s, rows, &n);
    assert_int_equal(rows[0].pos, 16);
    assert_int_equal(rows[0].n_tok, 4);
    assert_int_equal(rows[0].n_out, 1);
    run_step(&s, rows, &n);
    assert_int_equal(rows[0].pos, 20);
    assert_int_equal(rows[0].n_tok, 1);
    assert_int_equal(rows[0].n_out, 1);
    sched_fini(&s);
}

static void a_piece_ends_where_its_prompt_stops(void **state) {
    (void)state;
    for (uint64_t stop = 0; stop < 96; stop += 8) {
        struct sched s = make(1, 64, 4, 8);
        struct sched_req r = request(100);
        struct sched_row rows[1];
        uint32_t n;
        r.stop_tok = stop;
        sched_submit(&s, &r, 0);
        sched_admit(&s, 0);
        run_step(&s, rows, &n);
        assert_int_equal(r.pos, stop && stop < 64 ? stop : 64);
        run_step(&s, rows, &n);
        assert_int_equal(r.pos, stop > 64 ? stop : stop && stop < 40 ? stop + 64 : 100);
        sched_fini(&s);
    }
}

/* What it need not read its key was not served: the next slot is the key's that was served least. */
static void a_beginning_that_is_skipped_is_not_served(void **state) {
    (void)state;
    struct sched s = make(1, 64, 4, 8);
    struct sched_req r[4] = {request(1000), request(100), request(10), request(10)};
    for (int i = 0; i < 4; i++) {
        r[i].key = 1 + (uint32_t)i % 2;
        r[i].weight = 3;
        sched_submit(&s, &r[i], 0);
    }
    assert_ptr_equal(sched_admit(&s, 0), &r[0]);
    sched_skip(&s, &r[0], 960); /* 40 were served to key 1 */
    assert_int_equal(r[0].pos, 960);
    sched_remove(&s, &r[0]);
    assert_ptr_equal(sched_admit(&s, 0), &r[1]);
    sched_remove(&s, &r[1]);
    assert_ptr_equal(sched_admit(&s, 0), &r[2]); /* without the skip it would be key 2's turn again */
    sched_fini(&s);
}

static void prompts_split_only_at_multiples_of_the_chunk(void **state) {
    (void)state;
    for (uint32_t budget = 8; budget < 40; budget++) {
        struct sched s = make(1, budget, 4, 8);
        struct sched_req r = request(100);
        sched_submit(&s, &r, 0);
        sched_admit(&s, 0);
        while (r.state == SCHED_PREFILL) {
            struct sched_row rows[1];
            uint32_t n;
            run_step(&s, rows, &n);
            assert_int_equal(n, 1);
            assert_true(rows[0].n_tok <= budget);
            assert_true(r.pos % 8 == 0 || r.pos == 100);
        }
        sched_fini(&s);
    }
}

static void a_prompt_gets_its_chunk_even_when_decode_rows_fill_the_budget(void **state) {
    (void)state;
    struct sched s = make(40, 24, 24, 8);
    struct sched_row rows[40];
    uint32_t n;
    struct sched_req d[30], p = request(80);
    for (int i = 0; i < 30; i++) {
        d[i] = request(1);
        sched_submit(&s, &d[i], 0);
        sched_admit(&s, 0);
    }
    while (s.prefill[0].n) run_step(&s, rows, &n);
    sched_submit(&s, &p, 0);
    sched_admit(&s, 0);
    uint64_t before[30];
    for (int i = 0; i < 30; i++) before[i] = d[i].pos;
    for (int k = 1; k <= 10; k++) {
        run_step(&s, rows, &n);
        assert_int_equal(p.pos, 8 * k);
        assert_int_equal(n, 17); /* 16 decode rows and one chunk */
    }
    for (int i = 0; i < 30; i++) { /* 160 rows over 30 requests: each had 5 or 6 */
        uint64_t got = d[i].pos - before[i];
        assert_true(got == 5 || got == 6);
    }
    sched_fini(&s);
}

static void decode_rows_and_prompts_alternate_when_only_one_kind_fits(void **state) {
    (void)state;
    struct sched s = make(4, 8, 8, 8);
    struct sched_row rows[4];
    uint32_t n;
    struct sched_req d = request(1), p = request(80);
    sched_submit(&s, &d, 0);
    sched_admit(&s, 0);
    run_step(&s, rows, &n);
    sched_submit(&s, &p, 0);
    sched_admit(&s, 0);
    for (int i = 0; i < 18; i++) run_step(&s, rows, &n);
    assert_int_equal(p.pos, 72);
    assert_int_equal(d.pos, 10);
    sched_fini(&s);
}

static void a_short_prompt_overtakes_a_long_one_which_goes_on(void **state) {
    (void)state;
    struct sched s = make(4, 8, 8, 8);
    struct sched_row rows[4];
    uint32_t n;
    struct sched_req big = request(8000), small = request(8);
    sched_submit(&s, &big, 0);
    sched_admit(&s, 0);
    for (int i = 0; i < 10; i++) run_step(&s, rows, &n);
    sched_submit(&s, &small, 0);
    sched_admit(&s, 0);
    for (int i = 0; i < 2; i++) run_step(&s, rows, &n);
    assert_int_equal(small.pos, 8);
    sched_remove(&s, &small);
    /* A stream of short prompts takes at most every second turn. */
    uint64_t at = big.pos;
    struct sched_req more[100];
    for (int i = 0; i < 100; i++) {
        more[i] = request(8);
        sched_submit(&s, &more[i], 0);
        sched_admit(&s, 0);
        run_step(&s, rows, &n);
        for (int j = 0; j <= i; j++)
            if (more[j].state == SCHED_DECODE) sched_remove(&s, &more[j]);
    }
    assert_true(big.pos - at >= 8 * 49);
    sched_fini(&s);
}

static void a_queued_request_expires_at_its_deadline_without_costing_a_step(void **state) {
    (void)state;
    struct sched s = make(1, 16, 16, 8);
    struct sched_req a = request(4), b = request(4), c = request(4);
    b.deadline_ns = 1000;
    c.deadline_ns = 500;
    sched_submit(&s, &a, 0);
    sched_submit(&s, &b, 0);
    sched_submit(&s, &c, 0);
    assert_ptr_equal(sched_admit(&s, 0), &a);
    assert_null(sched_expire(&s, 499));
    assert_ptr_equal(sched_expire(&s, 500), &c);
    assert_null(sched_expire(&s, 500));
    assert_ptr_equal(sched_expire(&s, 1000), &b);
    assert_null(sched_expire(&s, UINT64_MAX));
    assert_int_equal(s.n_queued, 0);
    sched_fini(&s);
}

static void an_admitted_request_no_longer_expires(void **state) {
    (void)state;
    struct sched s = make(1, 16, 16, 8);
    struct sched_req a = request(4);
    a.deadline_ns = 10;
    sched_submit(&s, &a, 0);
    sched_admit(&s, 5);
    assert_null(sched_expire(&s, 100));
    sched_fini(&s);
}

/* ---- a random life, with every invariant checked in every step ---- */

struct rng {
    uint64_t seed, n;
};
static uint32_t below(struct rng *g, uint32_t n) { return (uint32_t)(philox_uniform(g->seed, g->n++, 0) * n); }

struct sim_req {
    struct sched_req sched;
    uint64_t want_tok, n_out, waited;
    bool live;
};

static void simulate(uint64_t seed) {
    struct rng g = {seed, 0};
    uint32_t n_slots = 1 + below(&g, MAX_SLOTS), chunk = 1 + below(&g, 64), max_batch = chunk + below(&g, 128);
    uint32_t max_out = 1 + below(&g, max_batch);
    struct sched s = make(n_slots, max_batch, max_out, chunk);
    enum { N = 400 };
    struct sim_req *r = calloc(N, sizeof *r);
    struct sched_row rows[MAX_SLOTS];
    const bool told = below(&g, 2);
    uint32_t n_submitted = 0, n_ended = 0, n_cancelled = 0, n_expired = 0;
    uint64_t now = 1;
    for (uint64_t step = 0; n_ended < N; step++) {
        if (step > 2000000) fail_msg("seed %llu: %u of %d requests ended", (unsigned long long)seed, n_ended, N);
        now += 1 + below(&g, 100);
        while (n_submitted < N && below(&g, 3)) {
            struct sim_req *q = &r[n_submitted++];
            uint32_t kind = below(&g, 10);
            q->sched = request(1 + (kind ? below(&g, 3 * chunk) : below(&g, 40 * chunk)));
            q->want_tok = 1 + below(&g, 30);
            q->sched.scored = max_out >= chunk && q->sched.n_prompt > 1 && !below(&g, 3);
            q->sched.deadline_ns = below(&g, 4) ? 0 : now + below(&g, 3000);
            q->sched.key = below(&g, 4);
            q->sched.weight = below(&g, 3);
            q->live = true;
            sched_submit(&s, &q->sched, now);
        }
        for (uint32_t i = 0; i < n_submitted; i++)
            if (r[i].live && !below(&g, 400)) { /* cancel in any state: its slot is free at once */
                uint32_t n_free = s.slots.n_free, held = r[i].sched.state != SCHED_QUEUED;
                sched_remove(&s, &r[i].sched);
                assert_int_equal(s.slots.n_free, n_free + held);
                r[i].live = false;
                n_cancelled++;
                n_ended++;
            }
        struct sched_req *q;
        while ((q = sched_expire(&s, now))) {
            assert_true(q->deadline_ns && q->deadline_ns <= now && q->pos == 0);
            ((struct sim_req *)(void *)q)->live = false;
            n_expired++;
            n_ended++;
        }
        while ((q = sched_admit(&s, now))) assert_true(q->slot < n_slots);
        assert_true(s.n_queued == 0 || s.slots.n_free == 0);

        uint32_t n = sched_plan(&s, 0, rows), n_tok = 0, n_out = 0, n_decode = 0;
        bool used[MAX_SLOTS] = {false};
        for (uint32_t i = 0; i < n; i++) {
            const struct sched_row *row = &rows[i];
            assert_false(used[row->req->slot]);
            used[row->req->slot] = true;
            assert_true(row->n_tok >= 1 && row->pos == row->req->pos);
            uint64_t end = row->pos + row->n_tok;
            if (row->req->state == SCHED_DECODE) {
                assert_int_equal(row->n_tok, 1);
                assert_int_equal(row->n_out, 1);
                n_decode++;
            } else {
                assert_true(end <= row->req->n_prompt);
                assert_true(end == row->req->n_prompt || end % chunk == 0);
                assert_int_equal(row->n_out, row->req->scored ? row->n_tok : end == row->req->n_prompt);
            }
            n_tok += row->n_tok;
            n_out += row->n_out;
        }
        if (n_tok > max_batch || n_out > max_out)
            fail_msg("seed %llu: a step of %u tokens and %u outputs, limits %u and %u", (unsigned long long)seed, n_tok,
                     n_out, max_batch, max_out);
        if (s.prefill[0].n + s.decode[0].n) assert_true(n > 0);
        for (uint32_t i = 0; i < n_submitted; i++) {
            if (!r[i].live || r[i].sched.state == SCHED_QUEUED) continue;
            r[i].waited = row_of(rows, n, &r[i].sched) ? 0 : r[i].waited + 1;
            /* Nothing that holds a slot starves: the bound is far below "never". */
            if (r[i].waited > 4000)
                fail_msg("seed %llu: a request waited for %llu steps", (unsigned long long)seed,
                         (unsigned long long)r[i].waited);
        }
        if (told && n) sched_took(&s, 0, n_decode, n_tok - n_decode, (uint64_t)below(&g, 1u << below(&g, 30)));
        for (uint32_t i = 0; i < n; i++) {
            struct sim_req *w = (struct sim_req *)(void *)rows[i].req;
            sched_commit(&s, &rows[i]);
            if (rows[i].n_out && w->sched.pos >= w->sched.n_prompt && ++w->n_out == w->want_tok) {
                sched_remove(&s, &w->sched);
                w->live = false;
                n_ended++;
            }
        }
    }
    assert_int_equal(s.slots.n_free, n_slots);
    assert_int_equal(s.n_queued + s.prefill[0].n + s.decode[0].n, 0);
    assert_int_equal(n_submitted, N);
    free(r);
    sched_fini(&s);
}

static void in_random_lives_every_invariant_holds_and_everything_ends(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) simulate(seed);
}

static void a_request_with_all_its_tokens_planned_keeps_its_slot_and_runs_no_more(void **state) {
    (void)state;
    struct sched s = make(1, 16, 16, 8);
    struct sched_row rows[1];
    uint32_t n;
    struct sched_req r = request(3), next = request(3);
    r.max_out = 2;
    sched_submit(&s, &r, 0);
    sched_submit(&s, &next, 0);
    sched_admit(&s, 0);
    run_step(&s, rows, &n); /* the prompt and its token */
    assert_int_equal(r.state, SCHED_DECODE);
    run_step(&s, rows, &n);
    assert_int_equal(r.state, SCHED_LAST);
    assert_int_equal(r.n_out, 2);
    assert_int_equal(sched_plan(&s, 0, rows), 0);
    assert_null(sched_admit(&s, 0));
    sched_remove(&s, &r);
    assert_ptr_equal(sched_admit(&s, 0), &next);
    sched_fini(&s);
}

/* ---- prompts beside streams, on devices that take their time ---- */

/* What a step takes, in ns: its decode rows, and its prompts if it has any. */
struct device {
    uint64_t decode_ns, row_ns, prompt_ns, tok_ns, noise_ns;
    uint32_t max_batch_tok;
};
static const struct device devices[] = {
    {760000, 60000, 900000, 8500, 200000, 2048},    /* a GPU, a model of 1.6 G weights */
    {760000, 12000, 900000, 7000, 0, 2048},         /* short contexts */
    {300000, 90000, 100000, 60000, 400000, 256},    /* a CPU, a small model */
    {90000000, 3000000, 90000000, 2500000, 0, 128}, /* a slow CPU, a large one */
};
enum { N_DEVICES = sizeof devices / sizeof *devices, MOST_STEPS = 200000 };

struct world {
    struct sched s;
    const struct device *device;
    struct rng rng;
    uint64_t now_ns, steps[MOST_STEPS];
    uint32_t n_steps;
    uint32_t n_decode[2]; /* of the step before, whose time is told one step later, as when steps are launched ahead */
    uint64_t n_tok[2], took_ns[2];
};

static void world_open(struct world *w, const struct device *device, uint32_t n_slots) {
    *w = (struct world){.device = device, .rng = {7, 0}, .s = make(n_slots, device->max_batch_tok, n_slots, 64)};
}

static void world_step(struct world *w) {
    static struct sched_row rows[MAX_SLOTS + 8];
    const struct device *d = w->device;
    const uint32_t n = sched_plan(&w->s, 0, rows), now = w->n_steps % 2;
    uint32_t n_decode = 0;
    uint64_t n_tok = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (rows[i].req->state == SCHED_DECODE)
            n_decode++;
        else
            n_tok += rows[i].n_tok;
        sched_commit(&w->s, &rows[i]);
    }
    uint64_t ns = (n_decode ? d->decode_ns + n_decode * d->row_ns : 0) + (n_tok ? d->prompt_ns + n_tok * d->tok_ns : 0);
    ns += d->noise_ns ? below(&w->rng, (uint32_t)d->noise_ns) : 0;
    if (w->n_steps) sched_took(&w->s, 0, w->n_decode[!now], w->n_tok[!now], w->took_ns[!now]);
    w->n_decode[now] = n_decode, w->n_tok[now] = n_tok, w->took_ns[now] = ns;
    w->now_ns += ns;
    assert_true(w->n_steps < MOST_STEPS);
    w->steps[w->n_steps++] = ns;
}

static int compare_ns(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}
/* Of the steps since `first`: all streams have a token in each, so it is the time between tokens. */
static uint64_t p99_ns(struct world *w, uint32_t first) {
    static uint64_t ns[MOST_STEPS];
    const uint32_t n = w->n_steps - first;
    memcpy(ns, w->steps + first, n * sizeof *ns);
    qsort(ns, n, sizeof *ns, compare_ns);
    return ns[(uint64_t)n * 99 / 100];
}

static void start(struct world *w, struct sched_req *r, uint64_t n_prompt) {
    *r = request(n_prompt);
    sched_submit(&w->s, r, w->now_ns);
    assert_ptr_equal(sched_admit(&w->s, w->now_ns), r);
}

static void a_long_prompt_triples_no_stream_s_wait_for_a_token(void **state) {
    (void)state;
    static struct world w;
    for (int i = 0; i < N_DEVICES; i++) {
        const struct device *d = &devices[i];
        for (uint32_t n_streams = 8; n_streams <= MAX_SLOTS; n_streams += 56) {
            struct sched_req r[MAX_SLOTS], big;
            world_open(&w, d, MAX_SLOTS + 1);
            for (uint32_t k = 0; k < n_streams; k++) start(&w, &r[k], 100);
            while (w.s.prefill[0].n) world_step(&w);
            const uint32_t quiet = w.n_steps;
            while (w.n_steps < quiet + 300) world_step(&w);
            const uint64_t before_ns = p99_ns(&w, quiet);
            const uint32_t begin = w.n_steps;
            const uint64_t begin_ns = w.now_ns;
            start(&w, &big, 100000);
            while (big.state == SCHED_PREFILL) world_step(&w);
            const uint64_t beside_ns = p99_ns(&w, begin);
            if (n_streams == MAX_SLOTS && beside_ns > 3 * before_ns)
                fail_msg("device %d, %u streams: %llu ns a token beside a prompt, %llu before", i, n_streams,
                         (unsigned long long)beside_ns, (unsigned long long)before_ns);
            /* The prompt has about half of the time, less what its steps cost beside tokens, but at least a chunk a
             * step. */
            const double streams_ns = (double)(d->decode_ns + n_streams * d->row_ns), steps = w.n_steps - begin,
                         took_ns = (double)(w.now_ns - begin_ns);
            const double own_ns = 1e5 * (double)d->tok_ns + steps * (double)d->prompt_ns;
            if (steps < 1500 && own_ns < 0.35 * took_ns)
                fail_msg("device %d, %u streams of %.0f ns: a prompt of %.0f ns took %.0f", i, n_streams, streams_ns,
                         own_ns, took_ns);
            sched_fini(&w.s);
        }
    }
}

/* When the streams leave, the prompt gets the whole step; when few stay, the share follows them. */
static void the_share_follows_the_streams(void **state) {
    (void)state;
    static struct world w;
    struct sched_req r[MAX_SLOTS], big;
    const struct device *d = &devices[0];
    world_open(&w, d, MAX_SLOTS + 1);
    for (int k = 0; k < MAX_SLOTS; k++) start(&w, &r[k], 10);
    while (w.n_steps < 100) world_step(&w);
    start(&w, &big, 10000000);
    while (w.n_steps < 300) world_step(&w);
    const uint64_t many_ns = d->decode_ns + MAX_SLOTS * d->row_ns, few_ns = d->decode_ns + 8 * d->row_ns;
    assert_true(w.steps[299] < 5 * many_ns / 2);
    const uint64_t at = big.pos;
    for (int k = 8; k < MAX_SLOTS; k++) sched_remove(&w.s, &r[k]);
    while (w.n_steps < 500) world_step(&w);
    if (w.steps[499] > 3 * few_ns) fail_msg("%llu ns", (unsigned long long)w.steps[499]);
    assert_true(big.pos > at);
    for (int k = 0; k < 8; k++) sched_remove(&w.s, &r[k]);
    const uint64_t alone = big.pos;
    world_step(&w);
    assert_int_equal(big.pos - alone, d->max_batch_tok);
    sched_fini(&w.s);
}

/* Short prompts that come beside a long one and streams start within a few steps; the long one goes on. */
static void short_prompts_overtake_within_the_share(void **state) {
    (void)state;
    static struct world w;
    struct sched_req r[32], big, small;
    world_open(&w, &devices[0], 40);
    for (int k = 0; k < 32; k++) start(&w, &r[k], 10);
    while (w.n_steps < 100) world_step(&w);
    start(&w, &big, 1000000);
    while (w.n_steps < 200) world_step(&w);
    for (int k = 0; k < 50; k++) {
        const uint64_t at = big.pos;
        const uint32_t begin = w.n_steps;
        start(&w, &small, 100);
        while (small.state == SCHED_PREFILL) world_step(&w);
        assert_true(w.n_steps - begin <= 4);
        while (w.n_steps < begin + 6) world_step(&w);
        assert_true(big.pos >= at + 2 * 64);
        sched_remove(&w.s, &small);
    }
    sched_fini(&w.s);
}

/* On a machine shared with others a thread loses its processor now and then: a step of a hundred times its time. What
 * is decided by the pace (shares, whether a checkpoint pays) must not turn over for it; a lasting change is followed.
 */
static void one_slow_step_is_not_a_pace(void **state) {
    (void)state;
    enum { STREAM_NS = 2000000, TOK_NS = 150000, SLOW = 100 };
    struct sched s = make(4, 256, 4, 64);
    const struct sched_pace *p = &s.pace[0];
    for (int i = 0; i < 30; i++) {
        sched_took(&s, 0, 0, 256, 256 * TOK_NS);
        sched_took(&s, 0, 1, 0, STREAM_NS);
    }
    assert_int_equal(p->stream_ns, STREAM_NS);
    assert_int_equal(p->prompt_tok_ns, TOK_NS);
    sched_took(&s, 0, 1, 0, (uint64_t)SLOW * STREAM_NS);
    if (p->stream_ns > 2 * STREAM_NS)
        fail_msg("after one step of %d times its time the pace is %.1f times", SLOW, (double)p->stream_ns / STREAM_NS);
    int n = 0;
    for (; p->stream_ns < (uint64_t)SLOW * STREAM_NS / 2; n++) sched_took(&s, 0, 1, 0, (uint64_t)SLOW * STREAM_NS);
    if (n > 10) fail_msg("half of a lasting change was known after %d steps", n);
    sched_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_get_slots_first_come_first_served),
        cmocka_unit_test(logits_come_for_the_last_prompt_token_and_for_decode_rows_only),
        cmocka_unit_test(a_beginning_that_is_skipped_is_not_served),
        cmocka_unit_test(a_piece_ends_where_its_prompt_stops),
        cmocka_unit_test(prompts_split_only_at_multiples_of_the_chunk),
        cmocka_unit_test(a_prompt_gets_its_chunk_even_when_decode_rows_fill_the_budget),
        cmocka_unit_test(decode_rows_and_prompts_alternate_when_only_one_kind_fits),
        cmocka_unit_test(a_short_prompt_overtakes_a_long_one_which_goes_on),
        cmocka_unit_test(a_queued_request_expires_at_its_deadline_without_costing_a_step),
        cmocka_unit_test(an_admitted_request_no_longer_expires),
        cmocka_unit_test(in_random_lives_every_invariant_holds_and_everything_ends),
        cmocka_unit_test(a_request_with_all_its_tokens_planned_keeps_its_slot_and_runs_no_more),
        cmocka_unit_test(a_long_prompt_triples_no_stream_s_wait_for_a_token),
        cmocka_unit_test(the_share_follows_the_streams),
        cmocka_unit_test(short_prompts_overtake_within_the_share),
        cmocka_unit_test(one_slow_step_is_not_a_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
