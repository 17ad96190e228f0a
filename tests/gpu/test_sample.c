/* test_sample.c - tokens of the GPU against engine/backend/sampler.c, the rows of a step, and a row alone and in
 * company.
 *
 * Greedy tokens and statuses are equal to the bit of the logit; a draw may differ where rounding decides: the GPU's
 * masses are integers of 2^-40, the CPU's are fp32. Few may, and where they do, no filter may have been left. */
#include "sample.h"

/* Of every second row, which may have had one before. */
static void change_masks(struct setup *b) {
    const uint32_t n_words = CUDA_MASK_WORDS(b->V);
    struct cuda_mask *masks = host_bytes(b->n_rows * sizeof *masks);
    uint32_t n = 0;
    void *words = gpu_bytes((size_t)b->n_rows * n_words * sizeof(uint32_t));
    for (uint32_t i = 0; i < b->n_rows; i++) {
        struct row *r = &b->rows[i];
        if (gpu_pick(0, 1)) continue;
        random_mask(r, b->V, gpu_pick(0, 3));
        uint32_t *to = (uint32_t *)words + (size_t)n * n_words;
        masks[n++] = (struct cuda_mask){(uint32_t)b->slots[i], 0, r->may_end, r->mask ? to : NULL};
        if (r->mask) gpu_expect(gpu.k->write(to, r->mask, n_words * sizeof *to, gpu.stream), "writing a mask");
    }
    if (n == 0) return;
    void *at = gpu_bytes(n * sizeof *masks);
    gpu_expect(gpu.k->write(at, masks, n * sizeof *masks, gpu.stream), "writing masks");
    GPU_RUN(k_masks, &b->s, (const struct cuda_mask *)at, n);
}

/* Rows first .. first + n of the setup as a step; tok as the rows say; tokens are fetched. */
static struct cuda_token *run(struct setup *b, uint32_t first, uint32_t n, const float *logits) {
    const size_t bytes = step_bytes(b->n_rows);
    void *block = calloc(1, bytes);
    assert_non_null(block);
    const struct cuda_step step = step_at(block, b->n_rows);
    for (uint32_t i = 0; i < n; i++) {
        ((int32_t *)(uintptr_t)step.rows.tok)[i] = b->rows[first + i].tok;
        ((int32_t *)(uintptr_t)step.rows.slot)[i] = b->slots[first + i];
        ((int64_t *)(uintptr_t)step.rows.pos)[i] = (int64_t)b->rows[first + i].pos;
        ((int32_t *)(uintptr_t)step.out)[i] = (int32_t)i;
    }
    gpu_expect(
        gpu.k->write((void *)(uintptr_t)b->host[b->n_parts % CUDA_STEP_PARTS].rows.pos, block, bytes, gpu.stream),
        "writing rows");
    gpu.k->k_step_rows(&b->s, b->host, &b->device, n, n, n, b->n_deferred, gpu.stream);
    GPU_RUN(k_sample, &b->s, &b->device.rows, b->device.out, n, !for_racecheck(), logits);
    struct cuda_token *tokens = host_bytes(n * sizeof *tokens);
    gpu_expect(gpu.k->read(tokens, b->s.tokens[b->n_parts % CUDA_STEP_PARTS], n * sizeof *tokens, gpu.stream),
               "reading tokens");
    b->n_parts++;
    free(block);
    return tokens;
}

/* Compares a row's token with the sampler's and moves the row on; true: it was drawn differently. */
static bool check_row(struct setup *b, uint32_t i, struct sampler *sampler, const struct cuda_token *t) {
    struct row *r = &b->rows[i];
    const bool idle = r->ended || (r->waits && r->tok < 0), bans_ends = r->mask && !r->may_end;
    if ((t->masked != 0) != idle) fail_msg("%s: row %u is masked %d, want %d", gpu.what, i, t->masked, idle);
    if (idle) {
        r->tok = r->ended ? -1 : r->last; /* what it waits for */
        return false;
    }
    const struct sampler_input in = {.sampling = &r->sampling,
                                     .bias = r->bias,
                                     .n_bias = r->n_bias,
                                     .banned = r->end_ids,
                                     .n_banned = r->n_generated < r->min_tokens || bans_ends ? r->n_end_ids : 0,
                                     .mask = r->mask,
                                     .also = r->end_ids,
                                     .n_also = r->mask && r->may_end ? r->n_end_ids : 0,
                                     .counts = &r->counts,
                                     .position = r->pos + 1,
                                     .n_logprobs = r->n_logprobs};
    struct sampler_output want;
    struct rod_error err = {0};
    const float *logits = b->logits + (size_t)i * b->V;
    const int rc = sampler_pick(sampler, &in, logits, &want, &err);
    struct rod_error got_err = {0};
    if (sampler_check((enum sampler_status)t->status, &got_err) != rc)
        fail_msg("%s (seed %llu): row %u: status %d, the sampler says %s", gpu.what, (unsigned long long)gpu.seed, i,
                 t->status, err.message);
    bool differs = false;
    if (rc == 0) {
        differs = t->id != want.id;
        if (differs && (r->sampling.temperature < 1e-20f || t->id < 0 || (uint32_t)t->id >= b->V))
            fail_msg("%s (seed %llu): row %u: token %d, want %d at temperature %g", gpu.what,
                     (unsigned long long)gpu.seed, i, t->id, want.id, (double)r->sampling.temperature);
        if (r->n_logprobs >= 0) {
            const double want_logprob = (double)want.logprob + (double)logits[t->id] - (double)logits[want.id];
            if (!(fabs((double)t->logprob - want_logprob) < 2e-5))
                fail_msg("%s: row %u: log-probability %.7g, want %.7g", gpu.what, i, (double)t->logprob, want_logprob);
            assert_int_equal(t->n_top, want.n_top);
            for (uint32_t k = 0; k < want.n_top; k++)
                if (t->top_id[k] != want.top[k].id ||
                    !(fabs((double)t->top_logprob[k] - (double)want.top[k].logprob) < 2e-5))
                    fail_msg("%s: row %u: top %u is %d with %.7g, want %d with %.7g", gpu.what, i, k, t->top_id[k],
                             (double)t->top_logprob[k], want.top[k].id, (double)want.top[k].logprob);
        } else {
            assert_int_equal(t->n_top, 0);
        }
        for (uint32_t k = 0; k < r->n_end_ids; k++) r->ended = r->ended || r->end_ids[k] == t->id;
        r->waits = false;
        for (uint32_t k = 0; k < r->n_wait_ids && !r->ended; k++) r->waits = r->waits || r->wait_ids[k] == t->id;
        if (t->waits != r->waits) fail_msg("%s: row %u: token %d waits %d", gpu.what, i, t->id, t->waits);
        r->last = t->id;
        if (!r->ended) {
            sampler_counts_add(&r->counts, t->id, 1);
            r->ended = ++r->n_generated == r->max_tokens;
        }
    } else {
        r->ended = true;
    }
    if ((t->ended != 0) != r->ended) fail_msg("%s: row %u: ended %d, want %d", gpu.what, i, t->ended, r->ended);
    r->tok = -1;
    r->pos++;
    return differs;
}

/* The id of the largest logit among those of the ids k, k + 2, k + 4, .. */
static int32_t best_of(const float *logits, uint32_t V, uint32_t k) {
    uint32_t best = k < V ? k : 0;
    for (uint32_t i = best; i < V; i += 2)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

static void tokens_equal_the_samplers(void **state) {
    (void)state;
    static const uint32_t sizes[][2] = {{300, 200}, {126464, 24}, {2048, 100}, {2049, 64},  {1, 3},       {31, 64},
                                        {5003, 90}, {65537, 20},  {1000, 256}, {32000, 48}, {126464, 256}};
    uint32_t n_drawn = 0, n_differ = 0;
    const uint32_t n_rounds = sizeof sizes / sizeof *sizes;
    for (uint32_t round = 0; round < n_rounds && (!gpu.n_shapes || round < gpu.n_shapes); round++) {
        const uint32_t V = sizes[round][0], n_rows = for_racecheck() ? 40 : sizes[round][1];
        snprintf(gpu.what, sizeof gpu.what, "V %u, %u rows", V, n_rows);
        struct setup b = set_up(V, n_rows);
        struct sampler sampler;
        assert_int_equal(sampler_init(&sampler, V, NULL), 0);
        for (uint32_t i = 0; i < n_rows; i++) {
            random_logits(b.logits + (size_t)i * V, V, V > 50000 && i % 12 > 3 ? i % 4 : i % 12);
            random_request(&b.rows[i], V, i % 9);
            b.rows[i].n_wait_ids = i % 3 ? 0 : 2;
            for (uint32_t k = 0; k < 2; k++) b.rows[i].wait_ids[k] = best_of(b.logits + (size_t)i * V, V, k);
            admit(&b, i);
            if (i % 37 == 36) b.logits[(size_t)i * V + gpu_pick(0, V - 1)] = i % 2 ? NAN : INFINITY;
            b.rows[i].tok = (int32_t)gpu_pick(0, V - 1); /* the prompt's last token, seen from now on */
            sampler_counts_add(&b.rows[i].counts, b.rows[i].tok, 0);
        }
        const float *device = gpu_from(b.logits, (size_t)n_rows * V);
        for (int step = 0; step < N_STEPS; step++) {
            if (round % 2 || step > 2) change_masks(&b);
            const struct cuda_token *tokens = run(&b, 0, n_rows, device);
            for (uint32_t i = 0; i < n_rows; i++) {
                n_drawn += !b.rows[i].ended && b.rows[i].sampling.temperature > 1e-20f;
                n_differ += check_row(&b, i, &sampler, &tokens[i]);
            }
        }
        sampler_fini(&sampler);
        tear_down(&b);
        gpu_round_end();
    }
    printf("note: %u of %u draws differ from the CPU's by rounding\n", n_differ, n_drawn);
    if (n_differ > 2 + n_drawn / 500) fail_msg("seed %llu: too many", (unsigned long long)gpu.seed);
}

static void a_row_gets_the_same_token_alone_and_in_company(void **state) {
    (void)state;
    const uint32_t ROWS = gpu.n_shapes ? 6 : 40;
    snprintf(gpu.what, sizeof gpu.what, "alone and in company");
    struct setup b = set_up(20011, ROWS);
    struct cuda_token company[40];
    const float *device = NULL;
    for (int pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < ROWS; i++) {
            if (pass == 0) {
                random_logits(b.logits + (size_t)i * b.V, b.V, i % 12);
                random_request(&b.rows[i], b.V, 2);
                b.rows[i].tok = 5;
            } else {
                sampler_counts_fini(&b.rows[i].counts);
            }
            admit(&b, i);
        }
        if (pass == 0) device = gpu_from(b.logits, (size_t)ROWS * b.V);
        if (pass == 0) memcpy(company, run(&b, 0, ROWS, device), ROWS * sizeof *company);
        for (uint32_t i = 0; pass == 1 && i < ROWS; i++) {
            const struct cuda_token *t = run(&b, i, 1, device + (size_t)i * b.V), *want = &company[i];
            if (t->id != want->id || memcmp(&t->logprob, &want->logprob, sizeof t->logprob) || t->ended != want->ended)
                fail_msg("seed %llu: row %u: token %d with %.9g alone, %d with %.9g in company",
                         (unsigned long long)gpu.seed, i, t->id, (double)t->logprob, want->id, (double)want->logprob);
            for (uint32_t k = 0; k < want->n_top; k++)
                assert_memory_equal(&t->top_logprob[k], &want->top_logprob[k], sizeof *t->top_logprob);
        }
    }
    tear_down(&b);
    gpu_round_end();
}

static void a_row_of_nan_changes_no_other_row_s_token(void **state) {
    (void)state;
    static const uint32_t sizes[][2] = {{300, 200}, {2049, 40}, {1, 3}, {31, 64}, {65537, 12}};
    const uint32_t n_rounds = sizeof sizes / sizeof *sizes, n_asked = gpu.n_shapes ? gpu.n_shapes / 3 : n_rounds;
    gpu.breaks = gpu.poison; /* else memory that nobody wrote would be read back */
    for (uint32_t round = 0; gpu.breaks && round < n_rounds && round < n_asked; round++) {
        const uint32_t V = sizes[round][0], n_rows = sizes[round][1];
        snprintf(gpu.what, sizeof gpu.what, "V %u, %u rows", V, n_rows);
        struct setup b = set_up(V, n_rows);
        for (uint32_t i = 0; i < n_rows; i++) {
            random_logits(b.logits + (size_t)i * V, V, i % 12);
            random_request(&b.rows[i], V, i % 9);
            admit(&b, i);
            b.rows[i].tok = (int32_t)gpu_pick(0, V - 1);
        }
        const float *logits = gpu_from(b.logits, (size_t)n_rows * V);
        run(&b, 0, n_rows, logits); /* from now on the device has the step's rows */
        broken_rows_of(n_rows, b.slots, -1);
        OF_ROWS(READ, logits, n_rows, V);
        OF_ROWS(WRITTEN, b.s.pieces, n_rows, gpu.k->cuda_sample_pieces(V) * sizeof *b.s.pieces / sizeof(float));
        OF_ROWS(WRITTEN, b.s.tokens[0], n_rows, sizeof **b.s.tokens / sizeof(float));
        OF_SLOTS(WRITTEN, b.s.slots, b.s.n_slots, sizeof *b.s.slots / sizeof(float), CUDA_F32);
        OF_SLOTS(WRITTEN, b.s.marks, b.s.n_slots, V, CUDA_F32);
        while (broken_again()) GPU_RUN(k_sample, &b.s, &b.device.rows, b.device.out, n_rows, true, logits);
        tear_down(&b);
        gpu_round_end();
    }
    gpu.breaks = false;
}

/* BINS / range is no number then: no bin held the tokens, no run the draw's target, and a block read beyond its
 * cluster. */
static void logits_that_differ_by_almost_nothing_have_tokens(void **state) {
    (void)state;
    enum { N_ROWS = 12, V = 2049 };
    snprintf(gpu.what, sizeof gpu.what, "logits that differ by almost nothing");
    struct setup b = set_up(V, N_ROWS);
    struct sampler sampler;
    assert_int_equal(sampler_init(&sampler, V, NULL), 0);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        struct rod_sampling sp = rod_sampling_neutral();
        sp.temperature = 2, sp.seed = gpu_bits();
        if (i % 4 == 1) sp.top_p = 0.5f;
        if (i % 4 == 2) sp.top_k = 5;
        if (i % 4 == 3) sp.typical_p = 0.5f;
        for (uint32_t v = 0; v < V; v++) b.logits[(size_t)i * V + v] = (float)(v % 7) * (i < 4 ? 1e-40f : 1e-36f);
        b.rows[i] = (struct row){.max_tokens = 1000, .n_logprobs = -1, .sampling = sp, .tok = 5};
        admit(&b, i);
    }
    const float *device = gpu_from(b.logits, (size_t)N_ROWS * V);
    const struct cuda_token *tokens = run(&b, 0, N_ROWS, device);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        assert_int_equal(tokens[i].status, 0);
        check_row(&b, i, &sampler, &tokens[i]);
    }
    sampler_fini(&sampler);
    tear_down(&b);
    gpu_round_end();
}

static void a_step_reads_what_the_last_one_drew_and_masks_what_ended(void **state) {
    (void)state;
    enum { ROWS = 5 };
    snprintf(gpu.what, sizeof gpu.what, "rows of a step");
    struct setup b = set_up(1000, ROWS);
    for (uint32_t i = 0; i < ROWS; i++) {
        b.rows[i] = (struct row){.max_tokens = i == 1 ? 1 : 9, .n_logprobs = -1, .pos = 10 + i, .tok = (int32_t)i};
        b.rows[i].sampling = rod_sampling_greedy();
        if (i == 2) b.rows[i].sampling.repetition_penalty = 2;
        b.rows[i].n_end_ids = i == 3;
        b.rows[i].end_ids[0] = 700;
        admit(&b, i);
        for (uint32_t v = 0; v < b.V; v++) b.logits[i * b.V + v] = v == (i == 3 ? 700 : 100 + i) ? 4.0f : 0.0f;
    }
    const float *device = gpu_from(b.logits, (size_t)ROWS * b.V);
    const struct cuda_token *t = run(&b, 0, ROWS, device);
    for (uint32_t i = 0; i < ROWS; i++) {
        assert_int_equal(t[i].id, i == 3 ? 700 : 100 + i);
        assert_int_equal(t[i].ended, i == 1 || i == 3);
        b.rows[i].tok = -1;
    }
    t = run(&b, 0, ROWS, device);
    int32_t tok[ROWS], slot[ROWS];
    int64_t pos[ROWS];
    gpu_expect(gpu.k->read(tok, b.device.rows.tok, sizeof tok, gpu.stream), "reading rows");
    gpu_expect(gpu.k->read(slot, b.device.rows.slot, sizeof slot, gpu.stream), "reading rows");
    gpu_expect(gpu.k->read(pos, b.device.rows.pos, sizeof pos, gpu.stream), "reading rows");
    for (uint32_t i = 0; i < ROWS; i++) {
        const bool ended = i == 1 || i == 3;
        assert_int_equal(t[i].masked, ended);
        assert_int_equal(tok[i], ended ? 0 : 100 + i);
        assert_int_equal(slot[i], ended ? (int32_t)b.s.n_slots : b.slots[i]);
        assert_int_equal(pos[i], ended ? 0 : 10 + i);
        if (!ended) assert_int_equal(t[i].id, 100 + i);
    }
    uint32_t *marks = host_bytes(b.V * sizeof *marks);
    gpu_expect(gpu.k->read(marks, b.s.marks + (size_t)b.slots[2] * b.V, b.V * sizeof *marks, gpu.stream),
               "reading marks");
    assert_int_equal(marks[2] & 0x3fffffff, 0);
    assert_true(marks[2] >> 30 == 1); /* seen in the prompt */
    assert_int_equal(marks[102] & 0x3fffffff, 2);
    assert_int_equal(marks[3], 0);
    tear_down(&b);
    gpu_round_end();
}

/* Each slot every fourth position, in each step about a quarter of them, also if all began together. */
static void a_step_says_which_states_are_written_back(void **state) {
    (void)state;
    enum { ROWS = 70, ENDED = 3, STEPS = 12 };
    snprintf(gpu.what, sizeof gpu.what, "states written back");
    struct setup b = set_up(100, ROWS);
    uint32_t count[ROWS + 2], word[ROWS], expected[ROWS] = {0}, last[ROWS] = {0};
    for (uint32_t i = 0; i < ROWS; i++) {
        b.rows[i] = (struct row){.max_tokens = UINT32_MAX, .n_logprobs = -1, .pos = 1000, .tok = i == ENDED ? -1 : 1};
        b.rows[i].sampling = rod_sampling_greedy();
        admit(&b, i);
    }
    const struct cuda_sampling ended = {.ended = true};
    gpu_expect(gpu.k->write(b.s.slots + b.slots[ENDED], &ended, sizeof ended, gpu.stream), "ending a slot");
    const float *device = gpu_from(b.logits, (size_t)ROWS * b.V);
    b.n_deferred = gpu_zeros(sizeof count);
    b.device.rows.deferred = gpu_bytes(sizeof word);
    for (uint32_t t = 1; t <= STEPS; t++) {
        run(&b, 0, ROWS, device);
        gpu_expect(gpu.k->read(word, b.device.rows.deferred, sizeof word, gpu.stream), "reading rows");
        uint32_t n_written = 0;
        for (uint32_t i = 0; i < ROWS; i++, n_written += word[i - 1] >= CUDA_WRITE_BACK) {
            b.rows[i].pos++;
            if (i == ENDED) {
                assert_int_equal(word[i], 0);
                continue;
            }
            assert_int_equal(word[i] % CUDA_WRITE_BACK, expected[i]);
            const bool written = word[i] >= CUDA_WRITE_BACK;
            if (written && last[i]) assert_int_equal(t - last[i], CUDA_DEFERRED + 1);
            if (written) last[i] = t;
            assert_true(written || expected[i] < CUDA_DEFERRED);
            expected[i] = written ? 0 : expected[i] + 1;
        }
        if (n_written < ROWS / 8 || n_written > ROWS / 2)
            fail_msg("step %u writes %u of %d states back", t, n_written, ROWS);
    }
    gpu_expect(gpu.k->read(count, b.n_deferred, sizeof count, gpu.stream), "reading the counts");
    for (uint32_t i = 0; i < ROWS; i++) assert_int_equal(count[b.slots[i]], expected[i]);
    tear_down(&b);
    gpu_round_end();
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static void time_it(uint32_t n_rows, uint32_t kind, const char *name, const struct rod_sampling *sp,
                    int32_t n_logprobs) {
    enum { REPEAT = 30 };
    struct setup b = set_up(126464, n_rows);
    for (uint32_t i = 0; i < n_rows; i++) {
        random_logits(b.logits + (size_t)i * b.V, i ? 1 : b.V, kind); /* all rows alike: random numbers take long */
        if (i) memcpy(b.logits + (size_t)i * b.V, b.logits, b.V * sizeof(float));
        b.rows[i] = (struct row){.max_tokens = UINT32_MAX, .n_logprobs = n_logprobs, .sampling = *sp};
        b.rows[i].sampling.seed = i;
        admit(&b, i);
    }
    const float *device = gpu_from(b.logits, (size_t)n_rows * b.V);
    run(&b, 0, n_rows, device);
    const double begin = now_us();
    for (int i = 0; i < REPEAT; i++)
        gpu.k->k_sample(&b.s, &b.device.rows, b.device.out, n_rows, sp->temperature > 0, device, gpu.stream);
    gpu_expect(gpu.k->wait(gpu.stream), "sampling");
    printf("note: %u rows of 126,464, %s: %.1f us\n", n_rows, name, (now_us() - begin) / REPEAT);
    tear_down(&b);
    gpu_round_end();
}

static void speed_is_printed(void **state) {
    (void)state;
    const struct rod_sampling greedy = rod_sampling_greedy(), all = rod_sampling_neutral();
    struct rod_sampling top_p = all, top_k = all, typical = all;
    top_p.top_p = 0.9f, top_k.top_k = 50, typical.typical_p = 0.9f;
    for (uint32_t n_rows = 1; n_rows <= 256 && !gpu.n_shapes; n_rows *= 256) {
        time_it(n_rows, 2, "greedy", &greedy, -1);
        time_it(n_rows, 2, "greedy with 5 log-probabilities", &greedy, 5);
        time_it(n_rows, 2, "a draw over all", &all, -1);
        time_it(n_rows, 2, "top_p 0.9", &top_p, -1);
        time_it(n_rows, 0, "top_p 0.9 of nearly equal logits", &top_p, -1);
        time_it(n_rows, 2, "top_k 50", &top_k, -1);
        time_it(n_rows, 2, "typical_p 0.9", &typical, -1);
    }
}

GPU_MAIN(cmocka_unit_test(speed_is_printed), cmocka_unit_test(a_step_reads_what_the_last_one_drew_and_masks_what_ended),
         cmocka_unit_test(a_step_says_which_states_are_written_back),
         cmocka_unit_test(a_row_gets_the_same_token_alone_and_in_company), cmocka_unit_test(tokens_equal_the_samplers),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_s_token),
         cmocka_unit_test(logits_that_differ_by_almost_nothing_have_tokens))
