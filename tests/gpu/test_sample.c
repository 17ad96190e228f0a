/* test_sample.c - tokens of the GPU against engine/backend/sampler.c, the rows of a step, and a row alone and in
 * company.
 *
 * Greedy tokens and statuses are equal to the bit of the logit; a draw may differ where rounding decides: the GPU's
 * masses are integers of 2^-40, the CPU's are fp32. Few may, and where they do, no filter may have been left. */
#include "broken.h"

#include "engine/base/philox.h"
#include "engine/backend/sampler.h"

enum { N_STEPS = 6, MOST_BIAS = 40 };

struct row {
    struct rod_sampling sampling;
    struct rod_bias bias[MOST_BIAS];
    uint32_t n_bias, n_end_ids, min_tokens, max_tokens, n_generated;
    int32_t end_ids[4], n_logprobs, tok;
    struct sampler_counts counts;
    uint64_t pos, *mask; /* mask: NULL, everything may come */
    bool may_end, ended, waits;
    int32_t wait_ids[2], last;
    uint32_t n_wait_ids;
};

struct bench {
    uint32_t V, n_rows;
    struct cuda_sampler s;
    struct row *rows;
    float *logits;  /* [n_rows][V] */
    int32_t *slots; /* [n_rows] */
    struct cuda_step host[CUDA_TURNS], device;
    uint32_t turn, *n_deferred; /* NULL: no step defers */
};

static void random_logits(float *x, uint32_t V, uint32_t kind) {
    static const float spreads[] = {0.02f, 1, 3, 12};
    for (uint32_t i = 0; i < V; i++) {
        const double a = (double)gpu_uniform(1e-9, 1), b = (double)gpu_uniform(0, 1);
        x[i] = spreads[kind % 4] * (float)(sqrt(-2 * log(a)) * cos(6.283185307179586 * b));
        if (kind / 4 == 1) x[i] = roundf(x[i] * 2) / 2; /* ties */
        if (kind / 4 == 2) x[i] = 1.5f;                 /* nothing but ties */
    }
}

static void random_request(struct row *r, uint32_t V, uint32_t kind) {
    *r = (struct row){.max_tokens = gpu_pick(0, 3) ? 1000 : gpu_pick(1, N_STEPS), .n_logprobs = -1};
    struct rod_sampling *sp = &r->sampling;
    *sp = (struct rod_sampling){
        .temperature = 1, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = gpu_bits()};
    if (kind == 0 || gpu_pick(0, 3) == 0)
        sp->temperature = 0;
    else if (kind == 1)
        sp->temperature = 1e-30f;
    else
        sp->temperature = gpu_uniform(0.2, 2);
    if (gpu_pick(0, 2) == 0) sp->top_p = gpu_uniform(0.05, 0.999);
    if (gpu_pick(0, 2) == 0) sp->top_k = (int32_t)(gpu_pick(0, 1) ? gpu_pick(1, 60) : gpu_pick(1, 2 * V));
    if (gpu_pick(0, 3) == 0) sp->min_p = gpu_uniform(0.0005, 0.5);
    if (gpu_pick(0, 4) == 0) sp->typical_p = gpu_uniform(0.1, 0.99);
    if (gpu_pick(0, 3) == 0) sp->repetition_penalty = gpu_uniform(0.5, 2);
    if (gpu_pick(0, 3) == 0) sp->frequency_penalty = gpu_uniform(-1, 2);
    if (gpu_pick(0, 3) == 0) sp->presence_penalty = gpu_uniform(-1, 2);
    if (gpu_pick(0, 2) == 0) r->n_bias = gpu_pick(1, MOST_BIAS < V ? MOST_BIAS : V);
    const uint32_t first = gpu_pick(0, V - 1); /* each id once: the order of two sums rounds differently */
    for (uint32_t i = 0; i < r->n_bias; i++)
        r->bias[i] = (struct rod_bias){(int32_t)((first + i * (V / MOST_BIAS + 1)) % V),
                                       gpu_pick(0, 2) ? gpu_uniform(-9, 9) : -INFINITY};
    r->n_end_ids = gpu_pick(0, 4);
    for (uint32_t i = 0; i < r->n_end_ids; i++) r->end_ids[i] = (int32_t)gpu_pick(0, V - 1);
    r->min_tokens = gpu_pick(0, 1) ? gpu_pick(0, 4) : 0;
    if (r->min_tokens > r->max_tokens) r->min_tokens = r->max_tokens;
    if (gpu_pick(0, 2) == 0) r->n_logprobs = (int32_t)gpu_pick(0, 20);
    r->pos = gpu_pick(0, 3) ? gpu_pick(0, 4000) : gpu_bits() >> 30;
}

static struct cuda_step step_at(void *base, uint32_t N) {
    int64_t *pos = base;
    int32_t *p = (int32_t *)(pos + N);
    return (struct cuda_step){
        {p, p + N, pos, p + 2 * N, p + 3 * N, (const uint32_t *)p + 6 * N, p + 7 * N}, p + 4 * N, p + 5 * N};
}
static size_t step_bytes(uint32_t N) { return N * (8 * sizeof(int32_t) + sizeof(int64_t)); }

static void admit(struct bench *b, uint32_t i) {
    struct row *r = &b->rows[i];
    const struct rod_sampling *sp = &r->sampling;
    const uint32_t slot = (uint32_t)b->slots[i];
    struct cuda_admission a = {.slot = slot, .first = true, .n_bias = r->n_bias, .n_end_ids = r->n_end_ids};
    a.n_wait_ids = r->n_wait_ids;
    for (uint32_t k = 0; k < r->n_wait_ids; k++) a.wait_ids[k] = r->wait_ids[k];
    a.sampling = (struct cuda_sampling){.seed = sp->seed,
                                        .temperature = sp->temperature,
                                        .top_p = sp->top_p,
                                        .typical_p = sp->typical_p,
                                        .repetition_penalty = sp->repetition_penalty,
                                        .frequency_penalty = sp->frequency_penalty,
                                        .presence_penalty = sp->presence_penalty,
                                        .min_logit = sp->min_p > 0 ? logf(sp->min_p) * sp->temperature : -INFINITY,
                                        .top_k = sp->top_k,
                                        .n_logprobs = r->n_logprobs,
                                        .min_tokens = r->min_tokens,
                                        .max_tokens = r->max_tokens,
                                        .biased = r->n_bias > 0,
                                        .penalised = sampler_needs_counts(sp)};
    for (uint32_t k = 0; k < r->n_end_ids; k++) a.end_ids[k] = r->end_ids[k];
    for (uint32_t k = 0; k < r->n_bias; k++) a.bias_ids[k] = r->bias[k].id, a.bias[k] = r->bias[k].bias;
    gpu_expect(gpu.k->fill(b->s.marks + (size_t)slot * b->V, 0, b->V * sizeof(uint32_t), gpu.stream), "clearing marks");
    if (r->n_bias)
        gpu_expect(gpu.k->fill(b->s.bias + (size_t)slot * b->V, 0, b->V * sizeof(float), gpu.stream), "clearing bias");
    void *at = gpu.k->take(sizeof a);
    gpu_expect(gpu.k->write(at, &a, sizeof a, gpu.stream), "writing an admission");
    GPU_RUN(k_admit, &b->s, (const struct cuda_admission *)at);
    gpu.k->give(at);
    if (sampler_counts_init(&r->counts, b->V, NULL)) fail_msg("no memory");
}

static struct bench set_up(uint32_t V, uint32_t n_rows) {
    struct bench b = {.V = V, .n_rows = n_rows};
    const uint32_t n_slots = n_rows + 2;
    const uint32_t mask_rows = n_rows % 2 ? 1 : 1 + CUDA_DRAFTS; /* an odd number: where no step has drafts */
    b.s =
        (struct cuda_sampler){.V = V,
                              .n_slots = n_slots,
                              .mask_rows = mask_rows,
                              .slots = gpu_bytes(n_slots * sizeof *b.s.slots),
                              .marks = gpu_bytes((size_t)n_slots * V * sizeof *b.s.marks),
                              .bias = gpu_floats((size_t)n_slots * V),
                              .masks = gpu_bytes((size_t)n_slots * mask_rows * CUDA_MASK_WORDS(V) * sizeof *b.s.masks),
                              .pieces = gpu_bytes(n_rows * gpu.k->cuda_sample_pieces(V) * sizeof *b.s.pieces),
                              .turn = gpu_zeros(sizeof *b.s.turn)};
    const size_t bytes = step_bytes(n_rows);
    for (int i = 0; i < CUDA_TURNS; i++) {
        b.s.tokens[i] = gpu_bytes(n_rows * sizeof **b.s.tokens);
        b.host[i] = step_at(gpu_zeros(bytes), n_rows);
    }
    b.device = step_at(gpu_bytes(bytes), n_rows);
    b.rows = host_bytes(n_rows * sizeof *b.rows);
    b.slots = host_bytes(n_rows * sizeof *b.slots);
    for (uint32_t i = 0; i < n_rows; i++) b.slots[i] = (int32_t)(n_slots - 1 - i); /* any but the row's number */
    b.logits = host_floats((size_t)n_rows * V);
    return b;
}

static void tear_down(struct bench *b) {
    for (uint32_t i = 0; i < b->n_rows; i++) {
        sampler_counts_fini(&b->rows[i].counts);
        free(b->rows[i].mask);
    }
}

/* A few tokens, half of them, nearly all; or (kind 0) none is held back. */
static void random_mask(struct row *r, uint32_t V, uint32_t kind) {
    free(r->mask);
    r->mask = NULL;
    r->may_end = gpu_pick(0, 1);
    if (kind == 0) return;
    const uint32_t n_words = (V + 63) / 64;
    r->mask = calloc(n_words, sizeof *r->mask);
    assert_non_null(r->mask);
    for (uint32_t i = 0; i < n_words; i++) r->mask[i] = kind == 1 ? 0 : kind == 2 ? gpu_bits() : ~(1ull << i % 64);
    if (V % 64) r->mask[n_words - 1] &= (1ull << V % 64) - 1; /* a grammar's mask has no bit beyond the vocabulary */
    for (uint32_t i = 0; kind == 1 && i < 5; i++) {
        const uint32_t id = gpu_pick(0, V - 1);
        r->mask[id / 64] |= 1ull << id % 64;
    }
}

/* Of every second row, which may have had one before. */
static void change_masks(struct bench *b) {
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

/* Rows first .. first + n of the bench as a step; tok as the rows say; tokens are fetched. */
static struct cuda_token *run(struct bench *b, uint32_t first, uint32_t n, const float *logits) {
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
    gpu_expect(gpu.k->write((void *)(uintptr_t)b->host[b->turn % CUDA_TURNS].rows.pos, block, bytes, gpu.stream),
               "writing rows");
    const bool clusters =
        !gpu.n_shapes || gpu.n_shapes > 3; /* the fewest shapes are racecheck's, to whom they take minutes */
    gpu.k->k_step_rows(&b->s, b->host, &b->device, n, n, n, b->n_deferred, gpu.stream);
    GPU_RUN(k_sample, &b->s, &b->device.rows, b->device.out, n, clusters, logits);
    struct cuda_token *tokens = host_bytes(n * sizeof *tokens);
    gpu_expect(gpu.k->read(tokens, b->s.tokens[b->turn % CUDA_TURNS], n * sizeof *tokens, gpu.stream),
               "reading tokens");
    b->turn++;
    free(block);
    return tokens;
}

/* Compares a row's token with the sampler's and moves the row on; true: it was drawn differently. */
static bool check_row(struct bench *b, uint32_t i, struct sampler *sampler, const struct cuda_token *t) {
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
        const uint32_t V = sizes[round][0], n_rows = sizes[round][1];
        snprintf(gpu.what, sizeof gpu.what, "V %u, %u rows", V, n_rows);
        struct bench b = set_up(V, n_rows);
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
    struct bench b = set_up(20011, ROWS);
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
        struct bench b = set_up(V, n_rows);
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
    struct bench b = set_up(V, N_ROWS);
    struct sampler sampler;
    assert_int_equal(sampler_init(&sampler, V, NULL), 0);
    for (uint32_t i = 0; i < N_ROWS; i++) {
        struct rod_sampling sp = {
            .temperature = 2, .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .seed = gpu_bits()};
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
    struct bench b = set_up(1000, ROWS);
    for (uint32_t i = 0; i < ROWS; i++) {
        b.rows[i] = (struct row){.max_tokens = i == 1 ? 1 : 9, .n_logprobs = -1, .pos = 10 + i, .tok = (int32_t)i};
        b.rows[i].sampling =
            (struct rod_sampling){.top_p = 1, .typical_p = 1, .repetition_penalty = i == 2 ? 2.0f : 1.0f};
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
    struct bench b = set_up(100, ROWS);
    uint32_t count[ROWS + 2], word[ROWS], expected[ROWS] = {0}, last[ROWS] = {0};
    for (uint32_t i = 0; i < ROWS; i++) {
        b.rows[i] = (struct row){.max_tokens = UINT32_MAX, .n_logprobs = -1, .pos = 1000, .tok = i == ENDED ? -1 : 1};
        b.rows[i].sampling = (struct rod_sampling){.top_p = 1, .typical_p = 1, .repetition_penalty = 1};
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
    struct bench b = set_up(126464, n_rows);
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
    struct rod_sampling greedy = {.top_p = 1, .typical_p = 1, .repetition_penalty = 1}, all = greedy;
    all.temperature = 1;
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

/* ---- drafts ---- */

/* Rows of a step: of slot[i] at pos[i] with logits [n][V]; lead: NULL, or a step with drafts. */
struct draft_step {
    uint32_t n;
    int32_t *slot, *tok, *lead;
    int64_t *pos;
    float *logits;
};
static struct draft_step draft_step_of(uint32_t most, uint32_t V, bool drafts) {
    return (struct draft_step){0,
                               host_bytes(most * sizeof(int32_t)),
                               host_bytes(most * sizeof(int32_t)),
                               drafts ? host_bytes(most * sizeof(int32_t)) : NULL,
                               host_bytes(most * sizeof(int64_t)),
                               host_floats((size_t)most * V)};
}
static const struct cuda_token *run_drafts(struct bench *b, const struct draft_step *x) {
    const size_t bytes = step_bytes(b->n_rows);
    void *block = host_bytes(bytes);
    const struct cuda_step step = step_at(block, b->n_rows);
    for (uint32_t i = 0; i < x->n; i++) {
        ((int32_t *)(uintptr_t)step.rows.tok)[i] = x->tok[i];
        ((int32_t *)(uintptr_t)step.rows.slot)[i] = x->slot[i];
        ((int64_t *)(uintptr_t)step.rows.pos)[i] = x->pos[i];
        ((int32_t *)(uintptr_t)step.out)[i] = (int32_t)i;
        if (x->lead) ((int32_t *)(uintptr_t)step.rows.lead)[i] = x->lead[i];
    }
    gpu_expect(gpu.k->write((void *)(uintptr_t)b->host[b->turn % CUDA_TURNS].rows.pos, block, bytes, gpu.stream),
               "writing rows");
    const float *logits = gpu_from(x->logits, (size_t)x->n * b->V);
    if (x->lead) {
        GPU_RUN(k_step_draft_rows, &b->s, b->host, &b->device, x->n, NULL);
        GPU_RUN(k_sample_drafts, &b->s, &b->device.rows, b->device.out, x->n, true, logits);
    } else {
        struct cuda_step device = b->device;
        device.rows.lead = NULL;
        GPU_RUN(k_step_rows, &b->s, b->host, &device, x->n, x->n, x->n, NULL);
        GPU_RUN(k_sample, &b->s, &device.rows, b->device.out, x->n, true, logits);
    }
    struct cuda_token *tokens = host_bytes(x->n * sizeof *tokens);
    gpu_expect(gpu.k->read(tokens, b->s.tokens[b->turn++ % CUDA_TURNS], x->n * sizeof *tokens, gpu.stream),
               "reading tokens");
    return tokens;
}
static void expect_token(const struct cuda_token *got, const struct cuda_token *want, uint32_t slot, uint32_t t) {
    const bool same = got->id == want->id && got->status == want->status && got->ended == want->ended &&
                      got->waits == want->waits && got->masked == want->masked && got->n_top == want->n_top &&
                      (got->status || !memcmp(&got->logprob, &want->logprob, sizeof got->logprob)) &&
                      !memcmp(got->top_id, want->top_id, got->n_top * sizeof *got->top_id) &&
                      !memcmp(got->top_logprob, want->top_logprob, got->n_top * sizeof *got->top_logprob);
    if (!same)
        fail_msg("%s (seed %llu): slot %u, row %u: token %d (status %d, ended %d, masked %d), a step of its own gives "
                 "%d (%d, %d, %d)",
                 gpu.what, (unsigned long long)gpu.seed, slot, t, got->id, got->status, got->ended, got->masked,
                 want->id, want->status, want->ended, want->masked);
}

/* A mask behind each of n drafts of a slot, or none there; both benches read the words. */
static void draft_masks(uint32_t V, uint32_t slot, uint32_t n, struct cuda_mask *masks) {
    for (uint32_t t = 0; t < n; t++) {
        struct row r = {0};
        random_mask(&r, V, gpu_pick(0, 3));
        masks[t] = (struct cuda_mask){slot, t, r.may_end, NULL};
        if (r.mask) masks[t].words = gpu_copy(r.mask, CUDA_MASK_WORDS(V) * sizeof(uint32_t));
        free(r.mask);
    }
}
static void give_masks(struct bench *b, const struct cuda_mask *masks, uint32_t n) {
    if (n) GPU_RUN(k_masks, &b->s, (const struct cuda_mask *)gpu_copy(masks, n * sizeof *masks), n);
}

/* Two benches with the same requests: in one each token has a step of its own, in the other a token and its drafts
 * share one. The first `right` drafts are what the first bench drew, the next is another token. Every third slot has
 * masks, and every second one tokens to wait behind. */
static void draft_sample_round(uint32_t V, uint32_t n_slots) {
    enum { ROWS = CUDA_DRAFTS + 1, STEPS = 4 };
    snprintf(gpu.what, sizeof gpu.what, "V %u, %u slots with drafts", V, n_slots);
    struct bench b[2] = {set_up(V, n_slots * ROWS), {0}};
    const uint64_t random = gpu.random;
    for (int k = 0; k < 2; k++) { /* the same requests */
        if (k) b[k] = set_up(V, n_slots * ROWS);
        gpu.random = random;
        for (uint32_t i = 0; i < n_slots; i++) {
            random_request(&b[k].rows[i], V, i % 9);
            b[k].rows[i].n_wait_ids = i % 2 ? 2 : 0;
            for (uint32_t w = 0; w < 2; w++) b[k].rows[i].wait_ids[w] = (int32_t)gpu_pick(0, V - 1);
            admit(&b[k], i);
        }
    }
    bool *ended = host_bytes(n_slots * sizeof *ended), *waits = host_bytes(n_slots * sizeof *waits);
    struct cuda_mask *mask = host_bytes(n_slots * ROWS * sizeof *mask),
                     *given = host_bytes(n_slots * ROWS * sizeof *mask);
    int32_t *last = host_bytes(n_slots * sizeof *last);
    int64_t *pos = host_bytes(n_slots * sizeof *pos);
    for (uint32_t i = 0; i < n_slots; i++) last[i] = (int32_t)gpu_pick(0, V - 1), pos[i] = (int64_t)b[0].rows[i].pos;
    for (uint32_t step = 0; step < STEPS; step++) {
        struct draft_step all = draft_step_of(n_slots * ROWS, V, true);
        const struct cuda_token *single[ROWS];
        uint32_t *first = host_bytes(n_slots * sizeof *first), *right = host_bytes(n_slots * sizeof *right),
                 *at = host_bytes(n_slots * ROWS * sizeof *at), *n_of = host_bytes(n_slots * sizeof *n_of);
        for (uint32_t i = 0; i < n_slots; i++) {
            if (ended[i]) continue;
            first[i] = all.n, n_of[i] = gpu_pick(1, ROWS), right[i] = V > 1 ? gpu_pick(0, n_of[i] - 1) : n_of[i] - 1;
            for (uint32_t t = 0; t < n_of[i]; t++, all.n++) {
                all.slot[all.n] = b[0].slots[i], all.pos[all.n] = pos[i] + t, all.lead[all.n] = (int32_t)t;
                random_logits(all.logits + (size_t)all.n * V, V, V > 50000 ? 1 + t % 3 : gpu_pick(0, 11));
                if (gpu_pick(0, 99) == 0) all.logits[(size_t)all.n * V + gpu_pick(0, V - 1)] = NAN;
            }
            if (i % 3 == 0) draft_masks(V, (uint32_t)b[0].slots[i], n_of[i], mask + i * ROWS);
        }
        if (!all.n) break;
        for (uint32_t t = 0; t < ROWS; t++) { /* the first bench, and the drafts that follow from it */
            struct draft_step one = draft_step_of(n_slots, V, false);
            uint32_t n_given = 0;
            for (uint32_t i = 0; i < n_slots; i++) {
                if (ended[i] || t >= n_of[i]) continue;
                const uint32_t r = first[i] + t;
                const int32_t drawn = t && t <= right[i] + 1 ? single[t - 1][at[i * ROWS + t - 1]].id : -1;
                const bool is_token = drawn >= 0 && (uint32_t)drawn < V; /* else the row before is masked, or broken */
                if (!t)
                    all.tok[r] = last[i];
                else if (t <= right[i])
                    all.tok[r] = is_token ? drawn : 0;
                else
                    all.tok[r] = ((is_token ? drawn : all.tok[r - 1]) + 1) % (int32_t)V;
                if (t > right[i]) continue;
                one.slot[one.n] = all.slot[r], one.pos[one.n] = all.pos[r];
                const struct cuda_token *before = t ? &single[t - 1][at[i * ROWS + t - 1]] : NULL;
                const bool named = t ? !before->masked && before->waits && !before->ended : waits[i];
                one.tok[one.n] = !named && (t || (step && gpu_pick(0, 1))) ? -1 : t ? all.tok[r] : last[i];
                if (i % 3 == 0) given[n_given] = mask[i * ROWS + t], given[n_given++].n_drafts = 0;
                memcpy(one.logits + (size_t)one.n * V, all.logits + (size_t)r * V, V * sizeof *one.logits);
                at[i * ROWS + t] = one.n++;
            }
            give_masks(&b[0], given, n_given);
            single[t] = one.n ? run_drafts(&b[0], &one) : NULL;
        }
        uint32_t n_given = 0;
        for (uint32_t i = 0; i < n_slots; i += 3)
            for (uint32_t t = 0; !ended[i] && t < n_of[i]; t++) given[n_given++] = mask[i * ROWS + t];
        give_masks(&b[1], given, n_given);
        const struct cuda_token *drafted = run_drafts(&b[1], &all);
        for (uint32_t i = 0; i < n_slots; i++) {
            if (ended[i]) continue;
            for (uint32_t t = 0; t < n_of[i]; t++) {
                const struct cuda_token *got = &drafted[first[i] + t], *want = NULL;
                if (t <= right[i]) want = &single[t][at[i * ROWS + t]];
                if (t <= right[i] && !want->masked) {
                    expect_token(got, want, i, t);
                    last[i] = want->id, ended[i] = want->ended, waits[i] = want->waits, pos[i] += 1;
                } else if (!got->masked)
                    fail_msg("%s (seed %llu): slot %u: row %u is behind %s and drew %d", gpu.what,
                             (unsigned long long)gpu.seed, i, t, want ? "an end" : "a wrong draft", got->id);
            }
        }
        const size_t slots = b[0].s.n_slots * sizeof *b[0].s.slots;
        struct cuda_sampling *state[2] = {host_bytes(slots), host_bytes(slots)};
        for (int k = 0; k < 2; k++)
            gpu_expect(gpu.k->read(state[k], b[k].s.slots, slots, gpu.stream), "reading the slots");
        for (uint32_t i = 0; i < n_slots; i++) {
            const struct cuda_sampling *x = &state[0][b[0].slots[i]], *y = &state[1][b[1].slots[i]];
            if (x->last != y->last || x->n_generated != y->n_generated || x->ended != y->ended)
                fail_msg(
                    "%s (seed %llu): slot %u has %d after %u tokens, ended %d; steps of their own leave %d, %u, %d",
                    gpu.what, (unsigned long long)gpu.seed, i, y->last, y->n_generated, y->ended, x->last,
                    x->n_generated, x->ended);
            const size_t row = (size_t)b[0].slots[i] * V;
            gpu_check_same("marks", gpu_fetch((const float *)(const void *)(b[1].s.marks + row), V),
                           gpu_fetch((const float *)(const void *)(b[0].s.marks + row), V), V);
        }
    }
    tear_down(&b[0]), tear_down(&b[1]);
    gpu_round_end();
}
static void drafts_are_drawn_as_in_steps_of_their_own(void **state) {
    (void)state;
    static const uint32_t sizes[][2] = {{300, 30}, {1, 3}, {31, 20}, {5003, 12}, {2049, 60}, {126464, 2}, {1000, 8}};
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes && (!gpu.n_shapes || i < gpu.n_shapes); i++)
        draft_sample_round(sizes[i][0], sizes[i][1]);
}

GPU_MAIN(cmocka_unit_test(speed_is_printed), cmocka_unit_test(a_step_reads_what_the_last_one_drew_and_masks_what_ended),
         cmocka_unit_test(a_step_says_which_states_are_written_back),
         cmocka_unit_test(a_row_gets_the_same_token_alone_and_in_company), cmocka_unit_test(tokens_equal_the_samplers),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_s_token),
         cmocka_unit_test(logits_that_differ_by_almost_nothing_have_tokens),
         cmocka_unit_test(drafts_are_drawn_as_in_steps_of_their_own))
