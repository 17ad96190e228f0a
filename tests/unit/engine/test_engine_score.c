/* test_engine_score.c - prompts that are scored, prompts that are read once for many requests, and what may not be
 * chosen; over the host's sampler and over a device that samples, where the host samples all of this.
 */
#include "tests/engine_setup.h"

static const uint64_t SEED = 17;

static struct rod_request *request(struct answer *a, uint32_t n_prompt, uint32_t max_tokens) {
    int32_t *ids = calloc(n_prompt, sizeof *ids);
    for (uint32_t i = 0; i < n_prompt; i++) ids[i] = (int32_t)(2 + philox_uniform(SEED, i, n_prompt) * (V - 2));
    struct rod_request *r = collect_request(ids, n_prompt, a);
    r->ignore_eos = true;
    r->max_tokens = max_tokens;
    free(ids);
    return r;
}

static struct rod_request *scored(struct answer *a, uint32_t n_prompt, uint32_t max_tokens) {
    struct rod_request *r = request(a, n_prompt, max_tokens);
    r->n_prompt_logprobs = 3;
    return r;
}

static void assert_same_prompt(const struct answer *a, const struct answer *b, const char *what) {
    if (a->n_prompt != b->n_prompt) fail_msg("%s: %zu and %zu tokens are scored", what, a->n_prompt, b->n_prompt);
    if (a->n_prompt && memcmp(a->prompt, b->prompt, a->n_prompt * sizeof *a->prompt))
        fail_msg("%s: other scores", what);
}

/* What a request gets when it has the engine for itself. */
static void alone(struct rod_request *r, struct answer *a) {
    struct setup b;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    finish(&b, r, a);
    setup_close(&b);
}

/* ---- scoring ---- */

static void every_token_of_a_prompt_but_the_first_is_scored_by_what_stands_before_it(void **state) {
    (void)state;
    enum { N = 50 };
    struct setup b;
    struct answer a;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    struct rod_request *r = scored(&a, N, 2);
    int32_t ids[N];
    memcpy(ids, r->prompt, sizeof ids);
    float *row = calloc(V, sizeof *row);
    finish(&b, r, &a);
    assert_int_equal(a.n_prompt, N - 1);
    assert_int_equal(a.n_ids, 2);
    struct fake_slot s = {0};
    for (size_t i = 0; i + 1 < N; i++) {
        s.hash = fake_mix(s.hash, ids[i]);
        fake_logits(b.be, &s, row);
        double sum = 0;
        uint32_t rank = 1, best = 0;
        for (uint32_t v = 0; v < V; v++) {
            sum += exp((double)row[v]);
            rank += row[v] > row[ids[i + 1]];
            if (row[v] > row[best]) best = v;
        }
        const struct answer_token *t = &a.prompt[i];
        assert_int_equal(t->id, ids[i + 1]);
        assert_int_equal(t->rank, rank);
        assert_int_equal(t->n_top, 3);
        assert_int_equal(t->top[0].id, best);
        const double want = (double)row[ids[i + 1]] - log(sum);
        if (fabs((double)t->logprob - want) > 1e-5) fail_msg("token %zu: %g, want %g", i, (double)t->logprob, want);
    }
    free(row);
    collect_free(&a);
    setup_close(&b);
}

static void the_scores_depend_neither_on_the_pieces_nor_on_the_load(void **state) {
    (void)state;
    const uint32_t lengths[] = {2, 7, 8, 9, 63, 64, 65, 200};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct answer want, a[6];
        struct setup b;
        alone(scored(&want, lengths[i], 5), &want);
        assert_int_equal(want.n_prompt, lengths[i] - 1);
        setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 5, .max_batch_tok = 16), CONFIG());
        for (size_t k = 0; k < 6; k++) /* two that are scored among four that are not */
            collect_submit(&b.c, k % 3 == 1 ? scored(&a[k], lengths[i], 5) : request(&a[k], lengths[i] + 3, 40));
        collect_until(&b.c, a, 6);
        for (size_t k = 0; k < 6; k++) {
            if (a[k].failed) fail_msg("%s", a[k].end.error.message);
            assert_int_equal(a[k].n_ids, k % 3 == 1 ? 5 : 40);
            if (k % 3 == 1) assert_same_prompt(&a[k], &want, "in a crowd");
            if (k % 3 == 1) collect_assert_ids(&a[k], want.ids, want.n_ids, "in a crowd");
            if (k % 3 != 1) assert_int_equal(a[k].n_prompt, 0);
            collect_free(&a[k]);
        }
        collect_free(&want);
        setup_close(&b);
    }
}

static void with_max_tokens_0_the_prompt_is_read_and_nothing_generated(void **state) {
    (void)state;
    for (uint32_t n_prompt = 1; n_prompt <= 40; n_prompt += 13) {
        struct setup b;
        struct answer a, plain;
        setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
        finish(&b, scored(&a, n_prompt, 0), &a);
        finish(&b, request(&plain, n_prompt, 0), &plain);
        assert_int_equal(a.n_prompt, n_prompt - 1);
        assert_int_equal(plain.n_prompt, 0);
        assert_int_equal(a.n_ids + plain.n_ids, 0);
        assert_int_equal(a.end.reason, ROD_FINISH_LENGTH);
        assert_int_equal(plain.end.reason, ROD_FINISH_LENGTH);
        collect_free(&a);
        collect_free(&plain);
        setup_close(&b);
    }
}

static void a_broken_row_of_a_prompt_fails_its_request_alone(void **state) {
    (void)state;
    struct setup b;
    struct answer bad, good;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    struct rod_request *r = scored(&bad, 30, 4);
    atomic_store(&b.be->nan_token, 99);
    r->prompt[20] = 99;
    collect_submit(&b.c, r);
    collect_submit(&b.c, scored(&good, 60, 4));
    collect_until(&b.c, &bad, 1);
    collect_until(&b.c, &good, 1);
    assert_true(bad.failed);
    assert_int_equal(bad.end.error.code, ROD_EINTERNAL);
    assert_int_equal(good.n_prompt, 59);
    assert_false(good.failed);
    collect_free(&bad);
    collect_free(&good);
    setup_close(&b);
}

static void a_cancel_ends_scoring(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .gated = true), CONFIG());
    collect_submit(&b.c, scored(&a, 100000, 1));
    fake_step(b.be);
    fake_step(b.be);
    rod_cancel(b.c.engine, a.ticket);
    fake_release(b.be);
    collect_until(&b.c, &a, 1);
    assert_int_equal(a.end.reason, ROD_FINISH_CANCEL);
    assert_true(a.n_prompt < 99999);
    collect_free(&a);
    setup_close(&b);
}

/* ---- one prompt, many requests ---- */

enum { N_FORKS = 6, CHUNK = 8 };

/* What each reads itself where the device draws: what is behind the last chunk before the prompt's end. */
static uint32_t end_tok(uint32_t n_prompt) { return n_prompt - (n_prompt - 1) / CHUNK * CHUNK; }

static void submit_forks(struct setup *b, struct answer *a, uint32_t n_prompt, uint32_t max_tokens, bool with_scores) {
    struct rod_request *r[N_FORKS];
    uint64_t tickets[N_FORKS];
    struct rod_error err;
    for (size_t i = 0; i < N_FORKS; i++) {
        r[i] = with_scores ? scored(&a[i], n_prompt, max_tokens) : request(&a[i], n_prompt, max_tokens);
        r[i]->sampling.temperature = 1;
        r[i]->sampling.seed = i;
        r[i]->same_before = i;
    }
    if (rod_submit_all(b->c.engine, r, N_FORKS, tickets, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i < N_FORKS; i++) a[i].ticket = tickets[i];
}

static void requests_with_one_prompt_get_what_each_would_get_alone(void **state) {
    (void)state;
    for (int with_scores = 0; with_scores < 2; with_scores++) {
        for (uint32_t n_slots = 1; n_slots <= N_FORKS; n_slots++) {
            for (uint32_t max_tokens = 0; max_tokens <= 12; max_tokens += 6) {
                struct setup b;
                struct answer a[N_FORKS];
                setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = n_slots), CONFIG());
                submit_forks(&b, a, 150, max_tokens, with_scores);
                collect_until(&b.c, a, N_FORKS);
                struct rod_stats stats;
                rod_engine_stats(b.c.engine, &stats);
                const bool copies = n_slots > 1; /* one keeps the state for those that wait */
                const bool draws = setup_on_device && !with_scores && max_tokens;
                const uint32_t own = !copies ? 150 : draws ? end_tok(150) : 0;
                assert_int_equal(stats.prefill_tok, 150 + own * (N_FORKS - 1));
                assert_int_equal(atomic_load(&b.be->n_copies), copies ? N_FORKS - 1 : 0);
                for (size_t i = 0; i < N_FORKS; i++) {
                    struct answer want;
                    struct rod_request *r =
                        with_scores ? scored(&want, 150, max_tokens) : request(&want, 150, max_tokens);
                    r->sampling.temperature = 1;
                    r->sampling.seed = i;
                    alone(r, &want);
                    collect_assert_ids(&a[i], want.ids, want.n_ids, "of one prompt");
                    assert_same_prompt(&a[i], &want, "of one prompt");
                    assert_int_equal(a[i].end.prompt_tok, 150);
                    collect_free(&want);
                    collect_free(&a[i]);
                }
                setup_close(&b);
            }
        }
    }
}

/* Choices that wait for a slot may find nobody to share with, unless one has shared before: it keeps the state. */
static uint32_t shared_by(uint32_t n_slots, uint32_t n_chunks) {
    uint32_t n = 0;
    for (uint32_t i = 1; i < N_FORKS; i++) n += !setup_on_device || (n_chunks * i >= 4 && (i < n_slots || n));
    return n;
}
static void each_reads_the_end_of(uint32_t n, uint32_t n_slots) {
    const uint32_t end = setup_on_device ? end_tok(n) : 0, n_chunks = (n - end) / CHUNK,
                   least = shared_by(n_slots, n_chunks), most = shared_by(N_FORKS, n_chunks);
    struct setup b;
    struct answer a[N_FORKS];
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = n_slots), CONFIG());
    submit_forks(&b, a, n, 20, false);
    collect_until(&b.c, a, N_FORKS);
    struct rod_stats stats;
    rod_engine_stats(b.c.engine, &stats);
    const uint32_t n_shared = atomic_load(&b.be->n_copies);
    if (n_shared < least || n_shared > most)
        fail_msg("%u tokens, %u slots: %u shared, want %u to %u", n, n_slots, n_shared, least, most);
    assert_int_equal(stats.prefill_tok, N_FORKS * n - n_shared * (n - end));
    for (size_t i = 0; i < N_FORKS; i++) {
        struct answer want;
        struct rod_request *r = request(&want, n, 20);
        r->sampling.temperature = 1;
        r->sampling.seed = i;
        alone(r, &want);
        collect_assert_ids(&a[i], want.ids, want.n_ids, "of one prompt");
        collect_free(&want);
        collect_free(&a[i]);
    }
    setup_close(&b);
}
/* Shorter prompts than a chunk have nothing to share there, a few chunks are shared from the choice on whose number
 * times them is four at least; one token behind a chunk is read by each. */
static void each_reads_the_end_of_a_prompt_where_the_device_draws(void **state) {
    (void)state;
    const uint32_t lengths[] = {1,         CHUNK - 1,     CHUNK,     CHUNK + 1,     2 * CHUNK, 2 * CHUNK + 1,
                                3 * CHUNK, 3 * CHUNK + 1, 4 * CHUNK, 4 * CHUNK + 1, 399};
    for (uint32_t n_slots = 2; n_slots <= N_FORKS; n_slots++)
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) each_reads_the_end_of(lengths[l], n_slots);
}

/* The device counts what it reads; the host knows the prompt. */
static void a_penalty_of_repetitions_counts_the_prompt_of_each(void **state) {
    (void)state;
    struct setup b;
    struct answer a[N_FORKS];
    struct rod_request *r[N_FORKS];
    uint64_t tickets[N_FORKS];
    struct rod_error err;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 4), CONFIG());
    for (size_t i = 0; i < N_FORKS; i++) {
        r[i] = request(&a[i], 150, 20);
        r[i]->sampling.repetition_penalty = 5;
        r[i]->same_before = i;
    }
    if (rod_submit_all(b.c.engine, r, N_FORKS, tickets, &err)) fail_msg("%s", err.message);
    collect_until(&b.c, a, N_FORKS);
    struct rod_stats stats;
    rod_engine_stats(b.c.engine, &stats);
    assert_int_equal(stats.prefill_tok, setup_on_device ? 150 * N_FORKS : 150);
    for (size_t i = 0; i < N_FORKS; i++) {
        struct answer want;
        struct rod_request *lone = request(&want, 150, 20);
        lone->sampling.repetition_penalty = 5;
        alone(lone, &want);
        collect_assert_ids(&a[i], want.ids, want.n_ids, "with a penalty");
        collect_free(&want);
        collect_free(&a[i]);
    }
    setup_close(&b);
}

/* Also when there are more of them than slots, and whether or not the others have their copies by then; scores that
 * they had from the reader do not come twice. */
static void the_others_read_it_when_the_reader_is_cancelled(bool with_scores) {
    struct answer want[N_FORKS];
    for (size_t i = 0; i < N_FORKS; i++) {
        struct rod_request *r = with_scores ? scored(&want[i], 150, 4) : request(&want[i], 150, 4);
        r->sampling.temperature = 1;
        r->sampling.seed = i;
        alone(r, &want[i]);
    }
    for (uint32_t n_slots = 3; n_slots <= 8; n_slots += 5) {
        for (int n_steps = 1; n_steps <= 4; n_steps++) {
            struct setup b;
            struct answer a[N_FORKS];
            setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = n_slots, .gated = true), CONFIG());
            submit_forks(&b, a, 150, 4, with_scores);
            for (int i = 0; i < n_steps; i++) fake_step(b.be);
            rod_cancel(b.c.engine, a[0].ticket);
            rod_cancel(b.c.engine, a[2].ticket); /* one that waits */
            fake_release(b.be);
            collect_until(&b.c, a, N_FORKS);
            assert_int_equal(a[0].end.reason, ROD_FINISH_CANCEL);
            assert_int_equal(a[2].end.reason, ROD_FINISH_CANCEL);
            for (size_t i = 0; i < N_FORKS; i++) {
                if (i != 0 && i != 2) collect_assert_ids(&a[i], want[i].ids, want[i].n_ids, "after its source left");
                if (i != 0 && i != 2) assert_same_prompt(&a[i], &want[i], "after its source left");
                collect_free(&a[i]);
            }
            setup_close(&b);
        }
    }
    for (size_t i = 0; i < N_FORKS; i++) collect_free(&want[i]);
}
static void when_the_reader_of_a_prompt_is_cancelled_the_others_read_it(void **state) {
    (void)state;
    the_others_read_it_when_the_reader_is_cancelled(false);
    the_others_read_it_when_the_reader_is_cancelled(true);
}

/* Slots become free one by one, while the prompt is read and later; the last waits for the one that keeps the state. */
static void choices_that_wait_for_a_slot_need_not_read_the_prompt(void **state) {
    (void)state;
    for (int with_scores = 0; with_scores < 2; with_scores++) {
        struct setup b;
        struct answer other[3], a[N_FORKS], want[N_FORKS];
        for (size_t i = 0; i < N_FORKS; i++) {
            struct rod_request *r = with_scores ? scored(&want[i], 150, 30) : request(&want[i], 150, 30);
            r->sampling.temperature = 1;
            r->sampling.seed = i;
            alone(r, &want[i]);
        }
        setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 4, .max_batch_tok = 16, .gated = true), CONFIG());
        for (uint32_t i = 0; i < 3; i++) collect_submit(&b.c, request(&other[i], 2, 8 + 40 * i));
        fake_step(b.be);
        submit_forks(&b, a, 150, 30, with_scores);
        fake_release(b.be);
        collect_until(&b.c, a, N_FORKS);
        collect_until(&b.c, other, 3);
        struct rod_stats stats;
        rod_engine_stats(b.c.engine, &stats);
        const uint32_t own = setup_on_device && !with_scores ? end_tok(150) : 0;
        assert_int_equal(stats.prefill_tok, 150 + own * (N_FORKS - 1) + 3 * 2);
        for (size_t i = 0; i < N_FORKS; i++) {
            collect_assert_ids(&a[i], want[i].ids, want[i].n_ids, "of one prompt");
            assert_same_prompt(&a[i], &want[i], "of one prompt");
            collect_free(&a[i]);
            collect_free(&want[i]);
        }
        for (size_t i = 0; i < 3; i++) collect_free(&other[i]);
        setup_close(&b);
    }
}

/* With a prefix cache they begin from what the reader left, and no slot waits with the prompt's state. */
static void no_slot_waits_where_the_reader_left_an_entry(void **state) {
    (void)state;
    enum { N_TOKENS = 50 };
    if (!setup_on_device) return;
    struct setup b;
    struct answer a[N_FORKS];
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 2),
               CONFIG(.state_host_bytes = 64 << 20, .prefix_cache_bytes = 32 << 20));
    b.c.engine->copy_ns = 0; /* every entry pays */
    submit_forks(&b, a, 150, N_TOKENS, false);
    collect_until(&b.c, a, N_FORKS);
    assert_int_equal(stats_of(b.c.engine).prefill_tok, 150 + end_tok(150) * (N_FORKS - 1));
    const uint32_t n_steps = atomic_load(&b.be->n_forwards), most = N_FORKS / 2 * (N_TOKENS + 5);
    if (n_steps > most) fail_msg("%u steps, want at most %u", n_steps, most);
    for (uint32_t i = 0; i < N_FORKS; i++) {
        struct answer want;
        struct rod_request *r = request(&want, 150, N_TOKENS);
        r->sampling.temperature = 1;
        r->sampling.seed = i;
        alone(r, &want);
        collect_assert_ids(&a[i], want.ids, want.n_ids, "from the reader's entry");
        collect_free(&want);
        collect_free(&a[i]);
    }
    setup_close(&b);
}

/* Then none of them is next in line while the first reads, and its scores are not kept for them. */
static void choices_of_other_keys_have_all_scores(void **state) {
    (void)state;
    struct setup b;
    struct answer other, a[N_FORKS], want;
    struct rod_request *r[N_FORKS];
    uint64_t tickets[N_FORKS];
    struct rod_error err;
    alone(scored(&want, 150, 4), &want);
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 2, .gated = true), CONFIG());
    collect_submit(&b.c, request(&other, 2, 6));
    fake_step(b.be);
    for (uint32_t i = 0; i < N_FORKS; i++) {
        r[i] = scored(&a[i], 150, 4);
        r[i]->same_before = i;
        r[i]->key = i;
    }
    if (rod_submit_all(b.c.engine, r, N_FORKS, tickets, &err)) fail_msg("%s", err.message);
    fake_release(b.be);
    collect_until(&b.c, &other, 1);
    collect_until(&b.c, a, N_FORKS);
    for (size_t i = 0; i < N_FORKS; i++) {
        collect_assert_ids(&a[i], want.ids, want.n_ids, "of another key");
        assert_same_prompt(&a[i], &want, "of another key");
        collect_free(&a[i]);
    }
    collect_free(&other);
    collect_free(&want);
    setup_close(&b);
}

/* The one that keeps the state, and those that wait for it. */
static void choices_are_cancelled_one_by_one(void **state) {
    (void)state;
    for (int mask = 0; mask < 1 << N_FORKS; mask++) {
        struct setup b;
        struct answer a[N_FORKS], want;
        struct rod_request *r = request(&want, 20, 4);
        r->sampling.temperature = 1;
        r->sampling.seed = 5;
        alone(r, &want);
        setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 3, .gated = true), CONFIG());
        submit_forks(&b, a, 20, 4, mask % 2);
        for (int i = 0; i < 3; i++) fake_step(b.be);
        for (int i = 0; i < N_FORKS; i++)
            if (mask >> i & 1) rod_cancel(b.c.engine, a[i].ticket);
        fake_release(b.be);
        collect_until(&b.c, a, N_FORKS);
        for (int i = 0; i < N_FORKS; i++) {
            if (!(mask >> i & 1)) assert_int_equal(a[i].n_ids, 4);
            if (i == 5 && !(mask >> i & 1)) collect_assert_ids(&a[i], want.ids, want.n_ids, "the last");
            collect_free(&a[i]);
        }
        collect_free(&want);
        setup_close(&b);
    }
}

static void all_of_a_batch_are_taken_or_none(void **state) {
    (void)state;
    struct setup b;
    struct answer a[N_FORKS], one;
    struct rod_request *r[N_FORKS];
    uint64_t tickets[N_FORKS];
    struct rod_error err;
    struct rod_engine_config config = CONFIG();
    config.max_queue = 3;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 2), config);
    for (size_t i = 0; i < N_FORKS; i++) r[i] = request(&a[i], 5, 2);
    assert_int_equal(rod_submit_all(b.c.engine, r, N_FORKS, tickets, &err), ROD_EQUEUEFULL);
    finish(&b, request(&one, 5, 2), &one);
    assert_int_equal(one.n_ids, 2);
    for (size_t i = 0; i < N_FORKS; i++) {
        rod_request_free(r[i]);
        collect_free(&a[i]);
    }
    collect_free(&one);
    setup_close(&b);
}

/* ---- what may be chosen ---- */

static void only_allowed_ids_are_chosen(void **state) {
    (void)state;
    for (int greedy = 0; greedy < 2; greedy++) {
        struct answer a;
        struct rod_request *r = request(&a, 4, 60);
        r->n_allowed_ids = 3;
        r->allowed_ids = calloc(3, sizeof *r->allowed_ids);
        for (int i = 0; i < 3; i++) r->allowed_ids[i] = 1000 + 7 * i;
        r->sampling.temperature = greedy ? 0 : 1;
        r->sampling.frequency_penalty = 1;
        r->n_logprobs = 2;
        alone(r, &a);
        bool seen[3] = {false};
        assert_int_equal(a.n_ids, 60);
        for (size_t i = 0; i < a.n_ids; i++) {
            const int32_t k = (a.ids[i] - 1000) / 7;
            if (k < 0 || k > 2 || a.ids[i] != 1000 + 7 * k) fail_msg("token %zu is %d", i, a.ids[i]);
            seen[k] = true;
        }
        assert_true(seen[0] && seen[1] && seen[2]);
        assert_true(a.top[0].id != a.ids[0]); /* the log-probabilities are the model's own */
        collect_free(&a);
    }
}

static void bad(struct rod_request *r, const int32_t *ids, size_t n) {
    r->bad = realloc(r->bad, (r->n_bad + 1) * sizeof *r->bad);
    r->bad[r->n_bad] = (struct rod_ids){calloc(n, sizeof *ids), n};
    memcpy(r->bad[r->n_bad++].ids, ids, n * sizeof *ids);
}

/* What a greedy run says is forbidden piece by piece; what stood before the piece stays. */
static void bad_words_end_nowhere(void **state) {
    (void)state;
    struct answer free_run, a;
    alone(request(&free_run, 4, 20), &free_run);
    for (size_t len = 1; len <= 4; len++) {
        struct rod_request *r = request(&a, 4, 20);
        const int32_t *word = free_run.ids + 6;
        bad(r, (const int32_t[]){4000, 4001}, 2);
        bad(r, word, len);
        alone(r, &a);
        assert_int_equal(a.n_ids, 20);
        assert_memory_equal(a.ids, free_run.ids, (5 + len) * sizeof *a.ids);
        for (size_t i = 0; i + len <= a.n_ids; i++)
            if (!memcmp(a.ids + i, word, len * sizeof *word)) fail_msg("a bad word of %zu tokens at %zu", len, i);
        collect_free(&a);
    }
    collect_free(&free_run);
}

static void a_request_that_forbids_every_token_fails_with_the_reason(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    struct rod_request *r = request(&a, 4, 5);
    r->n_allowed_ids = 1;
    r->allowed_ids = calloc(1, sizeof *r->allowed_ids);
    r->allowed_ids[0] = 9;
    bad(r, (const int32_t[]){9}, 1);
    collect_submit(&b.c, r);
    collect_until(&b.c, &a, 1);
    assert_true(a.failed);
    assert_int_equal(a.end.error.code, ROD_EINVALID);
    assert_non_null(strstr(a.end.error.message, "allowed_token_ids"));
    collect_free(&a);
    setup_close(&b);
}

/* Penalties count where the host samples, too. */
static void both_lanes_choose_the_same(void **state) {
    (void)state;
    struct answer want, a;
    for (int penalty = 0; penalty < 2; penalty++) {
        struct rod_request *r[2] = {request(&want, 20, 40), scored(&a, 20, 40)};
        for (int i = 0; i < 2; i++) {
            r[i]->sampling.temperature = 1;
            r[i]->sampling.seed = 5;
            r[i]->sampling.repetition_penalty = penalty ? 1.3f : 1;
            r[i]->sampling.presence_penalty = penalty ? 0.4f : 0;
        }
        alone(r[0], &want);
        alone(r[1], &a);
        collect_assert_ids(&a, want.ids, want.n_ids, "scored");
        collect_free(&want);
        collect_free(&a);
    }
}

int main(void) {
#define ALL                                                                                                            \
    cmocka_unit_test(every_token_of_a_prompt_but_the_first_is_scored_by_what_stands_before_it),                        \
        cmocka_unit_test(the_scores_depend_neither_on_the_pieces_nor_on_the_load),                                     \
        cmocka_unit_test(with_max_tokens_0_the_prompt_is_read_and_nothing_generated),                                  \
        cmocka_unit_test(a_broken_row_of_a_prompt_fails_its_request_alone), cmocka_unit_test(a_cancel_ends_scoring),   \
        cmocka_unit_test(requests_with_one_prompt_get_what_each_would_get_alone),                                      \
        cmocka_unit_test(each_reads_the_end_of_a_prompt_where_the_device_draws),                                       \
        cmocka_unit_test(a_penalty_of_repetitions_counts_the_prompt_of_each),                                          \
        cmocka_unit_test(when_the_reader_of_a_prompt_is_cancelled_the_others_read_it),                                 \
        cmocka_unit_test(choices_that_wait_for_a_slot_need_not_read_the_prompt),                                       \
        cmocka_unit_test(no_slot_waits_where_the_reader_left_an_entry),                                                \
        cmocka_unit_test(choices_of_other_keys_have_all_scores), cmocka_unit_test(choices_are_cancelled_one_by_one),   \
        cmocka_unit_test(all_of_a_batch_are_taken_or_none), cmocka_unit_test(only_allowed_ids_are_chosen),             \
        cmocka_unit_test(bad_words_end_nowhere),                                                                       \
        cmocka_unit_test(a_request_that_forbids_every_token_fails_with_the_reason),                                    \
        cmocka_unit_test(both_lanes_choose_the_same)
    const struct CMUnitTest host[] = {ALL}, device[] = {ALL};
    const int failed = cmocka_run_group_tests_name("host", host, NULL, NULL);
    return failed + cmocka_run_group_tests_name("device", device, on_device, NULL);
}
