/* sample.h - what tests of tokens share: requests, logits, the pool and a step's rows as a setup. */
#ifndef GPU_SAMPLE_H
#define GPU_SAMPLE_H

#include "broken.h"

#include "engine/base/philox.h"
#include "engine/backend/sampler.h"

/* The fewest shapes are racecheck's: there a row that several blocks share takes minutes, and so do many rows. */
static inline bool for_racecheck(void) { return gpu.n_shapes && gpu.n_shapes <= 3; }

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

struct setup {
    uint32_t V, n_rows;
    struct cuda_sampler s;
    struct row *rows;
    float *logits;  /* [n_rows][V] */
    int32_t *slots; /* [n_rows] */
    struct cuda_step host[CUDA_STEP_PARTS], device;
    uint32_t n_parts, *n_deferred; /* NULL: no step defers */
};

static inline void random_logits(float *x, uint32_t V, uint32_t kind) {
    static const float spreads[] = {0.02f, 1, 3, 12};
    for (uint32_t i = 0; i < V; i++) {
        const double a = (double)gpu_uniform(1e-9, 1), b = (double)gpu_uniform(0, 1);
        x[i] = spreads[kind % 4] * (float)(sqrt(-2 * log(a)) * cos(6.283185307179586 * b));
        if (kind / 4 == 1) x[i] = roundf(x[i] * 2) / 2; /* ties */
        if (kind / 4 == 2) x[i] = 1.5f;                 /* nothing but ties */
    }
}

static inline void random_request(struct row *r, uint32_t V, uint32_t kind) {
    *r = (struct row){.max_tokens = gpu_pick(0, 3) ? 1000 : gpu_pick(1, N_STEPS), .n_logprobs = -1};
    struct rod_sampling *sp = &r->sampling;
    *sp = rod_sampling_neutral();
    sp->seed = gpu_bits();
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

static inline struct cuda_step step_at(void *base, uint32_t N) {
    int64_t *pos = base;
    int32_t *p = (int32_t *)(pos + N);
    return (struct cuda_step){
        {p, p + N, pos, p + 2 * N, p + 3 * N, (const uint32_t *)p + 6 * N, p + 7 * N}, p + 4 * N, p + 5 * N};
}
static inline size_t step_bytes(uint32_t N) { return N * (8 * sizeof(int32_t) + sizeof(int64_t)); }

static inline void admit(struct setup *b, uint32_t i) {
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

static inline struct setup set_up(uint32_t V, uint32_t n_rows) {
    struct setup b = {.V = V, .n_rows = n_rows};
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
                              .n_parts = gpu_zeros(sizeof *b.s.n_parts)};
    const size_t bytes = step_bytes(n_rows);
    for (int i = 0; i < CUDA_STEP_PARTS; i++) {
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

static inline void tear_down(struct setup *b) {
    for (uint32_t i = 0; i < b->n_rows; i++) {
        sampler_counts_fini(&b->rows[i].counts);
        free(b->rows[i].mask);
    }
}

/* A few tokens, half of them, nearly all; or (kind 0) none is held back. */
static inline void random_mask(struct row *r, uint32_t V, uint32_t kind) {
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

#endif
