/* test_sched.c - the scheduler in virtual time, with no clock and no backend. */
#include "engine/base/philox.h"
#include "tests/sched_setup.h"

static void requests_get_slots_first_come_first_served(void **state) {
    (void)state;
    struct sched s;
    make(&s, 2, 100, 100, 10);
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
    struct sched s;
    make(&s, 2, 16, 16, 8);
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
        struct sched s;
        make(&s, 1, 64, 4, 8);
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

/* Shorter prompts and streams without their masks leave all of every plan to a longer prompt. */
static void whoever_waits_for_a_mask_has_no_part_of_a_plan(void **state) {
    (void)state;
    enum { N = 8 };
    struct sched s;
    make(&s, N + 1, 16, 16, 8);
    struct sched_req wait[N], r = request(40);
    struct sched_row rows[N + 1];
    uint32_t n;
    for (int i = 0; i < N; i++) {
        wait[i] = request(4);
        sched_submit(&s, &wait[i], 0);
        sched_admit(&s, 0);
        if (i == 0) run_step(&s, rows, &n); /* one is a stream */
    }
    for (int i = N - 1; i >= 0; i--) sched_mask(&s, &wait[i]);
    assert_false(sched_site_busy(&s, SITE_DEVICE));
    assert_int_equal(sched_plan(&s, SITE_DEVICE, rows), 0);
    sched_submit(&s, &r, 0);
    sched_admit(&s, 0);
    for (uint64_t pos = 16; pos <= 48; pos += 16) {
        run_step(&s, rows, &n);
        assert_int_equal(n, 1);
        assert_int_equal(r.pos, pos < 40 ? pos : 40);
    }
    for (int i = N - 1; i >= 0; i--) sched_masked(&s, &wait[i]);
    assert_ptr_equal(sched_first(&s.prefill[SITE_DEVICE]), &wait[1]); /* the oldest */
    assert_ptr_equal(sched_of_link(list_last(&s.prefill[SITE_DEVICE])), &wait[N - 1]);
    assert_ptr_equal(sched_of_link(list_last(&s.decode[SITE_DEVICE])), &wait[0]);
    for (int i = 0; i < 4; i++) run_step(&s, rows, &n);
    for (int i = 0; i < N; i++) assert_int_equal(wait[i].state, SCHED_DECODE);
    sched_mask(&s, &wait[0]);
    for (int i = 0; i < N; i++) sched_remove(&s, &wait[i]); /* in any state */
    sched_fini(&s);
}

/* It is cut where others are, so its state is what it is without the wait. */
static void without_its_mask_a_prompt_is_read_to_its_last_piece(void **state) {
    (void)state;
    for (uint64_t n_prompt = 1; n_prompt < 60; n_prompt++) {
        struct sched s;
        make(&s, 1, 64, 64, 8);
        struct sched_req r = request(n_prompt);
        struct sched_row rows[1];
        uint32_t n = 1;
        r.no_end = true;
        r.scored = n_prompt % 2;
        sched_submit(&s, &r, 0);
        sched_admit(&s, 0);
        while (!sched_at_end(&s, &r)) {
            run_step(&s, rows, &n);
            assert_int_equal(n, 1);
        }
        assert_int_equal(r.pos, (n_prompt - 1) / 8 * 8);
        assert_int_equal(r.state, SCHED_PREFILL);
        r.no_end = false;
        run_step(&s, rows, &n);
        assert_int_equal(r.state, SCHED_DECODE);
        sched_fini(&s);
    }
}

static void a_piece_ends_where_others_take_over_the_state(void **state) {
    (void)state;
    struct sched s;
    make(&s, 1, 64, 4, 8);
    struct sched_req r = request(100);
    struct sched_row rows[1];
    uint32_t n;
    r.handover_tok = 96;
    r.stop_tok = 40;
    sched_submit(&s, &r, 0);
    sched_admit(&s, 0);
    for (uint64_t i = 0; i < 3; i++) {
        run_step(&s, rows, &n);
        assert_int_equal(r.pos, i == 0 ? 40 : i == 1 ? 96 : 100);
    }
    assert_int_equal(rows[0].n_tok, 4);
    sched_fini(&s);
}

/* What it need not read its key was not served: the next slot is the key's that was served least. */
static void a_beginning_that_is_skipped_is_not_served(void **state) {
    (void)state;
    struct sched s;
    make(&s, 1, 64, 4, 8);
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

/* A prompt that one reads for all is served once, and who comes meanwhile begins no further back. */
static void those_that_wait_for_a_source_are_not_served(void **state) {
    (void)state;
    enum { N = 6 };
    struct sched s;
    make(&s, N + 2, 64, 64, 8);
    struct sched_req r[N], small = request(10), other = request(10);
    for (int i = 0; i < N; i++) {
        r[i] = request(1000);
        r[i].key = 1;
        sched_submit(&s, &r[i], 0);
    }
    uint64_t read_once = 0;
    for (int i = 0; i < N; i++) {
        assert_ptr_equal(sched_admit(&s, 0), &r[i]);
        if (i)
            sched_wait(&s, &r[i]);
        else
            read_once = s.keys[1].served;
    }
    other.key = 2, small.key = 1;
    sched_submit(&s, &other, 0);
    sched_submit(&s, &small, 0);
    if (s.keys[2].served > read_once)
        fail_msg("a new key begins at %llu, the old one is at %llu", (unsigned long long)s.keys[2].served,
                 (unsigned long long)read_once);
    assert_ptr_equal(sched_admit(&s, 0), &other);
    sched_fork(&s, &r[1]);
    assert_int_equal(s.keys[1].served, read_once);
    sched_wait_over(&s, &r[2]); /* it reads its end itself */
    sched_skip(&s, &r[2], 990);
    assert_int_equal(s.keys[1].served * 1000, read_once * 1010);
    sched_wait_over(&s, &r[3]); /* all of it */
    assert_int_equal(s.keys[1].served * 1000, read_once * 2010);
    for (int i = 0; i < N; i++) sched_remove(&s, &r[i]);
    sched_remove(&s, &other);
    sched_remove(&s, &small);
    sched_fini(&s);
}

static void prompts_split_only_at_multiples_of_the_chunk(void **state) {
    (void)state;
    for (uint32_t budget = 8; budget < 40; budget++) {
        struct sched s;
        make(&s, 1, budget, 4, 8);
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
    struct sched s;
    make(&s, 40, 24, 24, 8);
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
    struct sched s;
    make(&s, 4, 8, 8, 8);
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
    struct sched s;
    make(&s, 4, 8, 8, 8);
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
    struct sched s;
    make(&s, 1, 16, 16, 8);
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
    struct sched s;
    make(&s, 1, 16, 16, 8);
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
    struct sched s;
    make(&s, n_slots, max_batch, max_out, chunk);
    if (seed % 3 == 0) s.config.shared_tok = chunk + below(&g, max_batch - chunk + 1);
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
    struct sched s;
    make(&s, 1, 16, 16, 8);
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

static void a_request_that_is_held_costs_no_row_and_no_room_for_others(void **state) {
    (void)state;
    struct sched s;
    make(&s, 3, 16, 2, 8); /* two rows of logits a step */
    struct sched_row rows[3];
    uint32_t n;
    struct sched_req r[3] = {request(3), request(3), request(3)};
    for (int i = 0; i < 3; i++) sched_submit(&s, &r[i], 0);
    while (sched_admit(&s, 0)) {}
    for (int i = 0; i < 6 && s.decode[0].n < 3; i++) run_step(&s, rows, &n);
    assert_int_equal(s.decode[0].n, 3);
    struct sched_req *held = sched_first(&s.decode[0]);
    held->held = true;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(sched_plan(&s, 0, rows), 2);
        for (int k = 0; k < 2; k++) {
            assert_ptr_not_equal(rows[k].req, held);
            sched_commit(&s, &rows[k]);
        }
    }
    held->held = false; /* it waited longest */
    assert_int_equal(sched_plan(&s, 0, rows), 2);
    assert_ptr_equal(rows[0].req, held);
    for (int i = 0; i < 3; i++) sched_remove(&s, &r[i]);
    sched_fini(&s);
}

static void a_row_that_is_taken_back_is_planned_again_and_not_served(void **state) {
    (void)state;
    struct sched s;
    make(&s, 1, 16, 16, 8);
    struct sched_row rows[1];
    uint32_t n;
    struct sched_req r = request(3);
    r.max_out = 2;
    sched_submit(&s, &r, 0);
    sched_admit(&s, 0);
    run_step(&s, rows, &n);
    const uint64_t served = s.keys[0].served, pos = r.pos;
    for (int i = 0; i < 3; i++) {
        run_step(&s, rows, &n);
        assert_int_equal(r.state, SCHED_LAST);
        sched_uncommit(&s, &r);
        assert_int_equal(r.state, SCHED_DECODE);
        assert_int_equal(r.pos, pos);
        assert_int_equal(r.n_out, 1);
        assert_int_equal(s.keys[0].served, served);
    }
    sched_remove(&s, &r);
    sched_fini(&s);
}

/* Tokens of the next step, and whether `who` is in it. */
static uint64_t step_tok(struct sched *s, const struct sched_req *who, bool *in_it) {
    struct sched_row rows[4];
    uint32_t n;
    uint64_t n_tok = 0;
    run_step(s, rows, &n);
    for (uint32_t i = 0; i < n; i++) n_tok += rows[i].n_tok;
    if (in_it) *in_it = row_of(rows, n, who);
    return n_tok;
}

static void only_a_prompt_that_is_alone_has_a_large_step(void **state) {
    (void)state;
    struct sched s;
    make(&s, 4, 64, 4, 8);
    s.config.shared_tok = 16;
    struct sched_req longest = request(640), same = request(6), other = request(6);
    bool in_it;
    sched_submit(&s, &longest, 0);
    sched_admit(&s, 0);
    assert_int_equal(step_tok(&s, NULL, NULL), 64);
    sched_submit(&s, &same, 0);
    sched_admit(&s, 0);
    assert_int_equal(step_tok(&s, &same, &in_it), 14); /* 6, and of the other what ends at a chunk */
    assert_true(in_it);
    assert_int_equal(same.state, SCHED_DECODE);
    assert_int_equal(step_tok(&s, &same, &in_it), 9); /* a stream, and a chunk beside it */
    assert_true(in_it);
    sched_remove(&s, &same);
    assert_int_equal(step_tok(&s, NULL, NULL), 64);
    same = request(6);
    sched_submit(&s, &same, 0);
    sched_admit(&s, 0);
    sched_move(&s, &same); /* its state is on its way: it may come back before a large step would end */
    assert_int_equal(step_tok(&s, NULL, NULL), 16);
    sched_moved(&s, &same);
    sched_remove(&s, &same);
    other.site = SITE_HOST; /* which has a turn of its own */
    sched_submit(&s, &other, 0);
    sched_admit(&s, 0);
    assert_int_equal(step_tok(&s, NULL, NULL), 16);
    sched_remove(&s, &other);
    sched_remove(&s, &longest);
    sched_fini(&s);
}

/* Behind a state that ends inside a chunk; a short rest is one piece, however large a step may be. */
static void a_long_piece_from_inside_a_chunk_ends_the_chunk_first(void **state) {
    (void)state;
    for (uint64_t from = 60; from < 70; from++)
        for (uint64_t more = 1; more < 2 * POLICY_PIECE_ALIGNS_TOK; more += more < 130 ? 1 : 509) {
            struct sched s;
            make(&s, 1, 8192, 4, 64);
            struct sched_req r = request(from + more);
            struct sched_row rows[1];
            uint32_t n;
            sched_submit(&s, &r, 0);
            sched_admit(&s, 0);
            sched_skip(&s, &r, from);
            run_step(&s, rows, &n);
            const bool ends = from % 64 && more >= POLICY_PIECE_ALIGNS_TOK;
            assert_int_equal(n, 1);
            if (rows[0].n_tok != (ends ? 64 - from % 64 : more))
                fail_msg("from %llu, %llu more: a piece of %u", (unsigned long long)from, (unsigned long long)more,
                         rows[0].n_tok);
            if (ends) run_step(&s, rows, &n);
            assert_int_equal(r.pos, from + more);
            sched_remove(&s, &r);
            sched_fini(&s);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_piece_from_inside_a_chunk_ends_the_chunk_first),
        cmocka_unit_test(requests_get_slots_first_come_first_served),
        cmocka_unit_test(logits_come_for_the_last_prompt_token_and_for_decode_rows_only),
        cmocka_unit_test(a_beginning_that_is_skipped_is_not_served),
        cmocka_unit_test(those_that_wait_for_a_source_are_not_served),
        cmocka_unit_test(a_piece_ends_where_its_prompt_stops),
        cmocka_unit_test(whoever_waits_for_a_mask_has_no_part_of_a_plan),
        cmocka_unit_test(without_its_mask_a_prompt_is_read_to_its_last_piece),
        cmocka_unit_test(a_piece_ends_where_others_take_over_the_state),
        cmocka_unit_test(prompts_split_only_at_multiples_of_the_chunk),
        cmocka_unit_test(a_prompt_gets_its_chunk_even_when_decode_rows_fill_the_budget),
        cmocka_unit_test(decode_rows_and_prompts_alternate_when_only_one_kind_fits),
        cmocka_unit_test(a_short_prompt_overtakes_a_long_one_which_goes_on),
        cmocka_unit_test(a_queued_request_expires_at_its_deadline_without_costing_a_step),
        cmocka_unit_test(an_admitted_request_no_longer_expires),
        cmocka_unit_test(in_random_lives_every_invariant_holds_and_everything_ends),
        cmocka_unit_test(a_request_that_is_held_costs_no_row_and_no_room_for_others),
        cmocka_unit_test(a_row_that_is_taken_back_is_planned_again_and_not_served),
        cmocka_unit_test(a_request_with_all_its_tokens_planned_keeps_its_slot_and_runs_no_more),
        cmocka_unit_test(only_a_prompt_that_is_alone_has_a_large_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
