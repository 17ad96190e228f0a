/* test_laws.c - the laws of the seam, to the bit, on every model of tests/vectors and tales: a prompt's splits
 * at multiples of the chunk, its neighbours, its slot and its slot's past change nothing, neither logits nor state. On
 * the backend that RODIMUS_TEST_DEVICE names, the CPU without it, in RODIMUS_TEST_PRECISION. */
#include "engine/base/philox.h"
#include "engine/state/state_layout.h"
#include "engine/tools/verify.h"
#include "tests/backend_setup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { N_SLOTS = 6, MAX_PROMPT = 300, N_DECODE = 5 };

struct setup {
    struct model *model;
    struct backend *be;
    uint32_t V, chunk;
    const char *name;
    const struct backend_ops *ops;
};

static struct setup set_up(const char *set, uint32_t n_threads) {
    struct setup b = {.name = set};
    backend_setup_open(set, (struct backend_config){.n_slots = N_SLOTS, .n_threads = n_threads, .max_batch_tok = 1024},
                       &b.model, &b.ops, &b.be);
    b.V = b.model->dims.V;
    b.chunk = b.ops->info(b.be)->chunk_tok;
    return b;
}

static void tear_down(struct setup *b) { backend_setup_close(b->model, b->ops, b->be); }

static void fill_tokens(int32_t *tok, size_t n, uint32_t V, uint64_t seed) {
    for (size_t i = 0; i < n; i++) tok[i] = (int32_t)(philox_uniform(seed, i, 0) * V);
}

static void forward(const struct setup *b, const struct backend_segment *segs, uint32_t n, const float **logits) {
    struct rod_error err;
    if (b->ops->forward(b->be, segs, n, logits, &err)) fail_msg("%s: %s", b->name, err.message);
}

/* Everything that a sequence leaves behind: the logits of its last prompt token and of the decode steps, and its state.
 */
struct trace {
    float *logits;
    float *state;
    size_t n_state;
};

static struct trace trace_new(const struct setup *b) {
    const struct model_dims *d = &b->model->dims;
    size_t per_layer = (size_t)d->M * d->E + (size_t)d->E * d->K + (size_t)d->visible * (d->Hk + d->Hv) * d->P;
    struct trace t = {.n_state = per_layer * d->L};
    t.logits = calloc((size_t)(N_DECODE + 1) * b->V, sizeof(float));
    t.state = calloc(t.n_state, sizeof(float));
    return t;
}

static void trace_free(struct trace *t) {
    free(t->logits);
    free(t->state);
}

static void trace_state(const struct setup *b, uint32_t slot, uint64_t pos, struct trace *t) {
    const struct model_dims *d = &b->model->dims;
    float *at = t->state;
    struct rod_error err;
    struct golden_layer *layers = calloc(d->L, sizeof *layers);
    for (uint32_t l = 0; l < d->L; l++) {
        struct golden_layer *s = &layers[l];
        s->S = at, s->conv = at + (size_t)d->M * d->E;
        float *window = s->conv + (size_t)d->E * d->K;
        if (d->plus) {
            s->k = window;
            s->v = window + (size_t)d->visible * d->Hk * d->P;
        }
        at = window + (size_t)d->visible * (d->Hk + d->Hv) * d->P;
    }
    if (golden_read_slot(b->ops, b->be, slot, pos, layers, &err)) fail_msg("%s: %s", b->name, err.message);
    free(layers);
}

static void expect_equal(const struct setup *b, const struct trace *got, const struct trace *want, const char *what) {
    for (size_t i = 0; i < (size_t)(N_DECODE + 1) * b->V; i++)
        if (memcmp(&got->logits[i], &want->logits[i], sizeof(float)))
            fail_msg("%s, %s: logit %zu of output %zu is %.9g, want %.9g", b->name, what, i % b->V, i / b->V,
                     (double)got->logits[i], (double)want->logits[i]);
    for (size_t i = 0; i < want->n_state; i++)
        if (memcmp(&got->state[i], &want->state[i], sizeof(float)))
            fail_msg("%s, %s: state value %zu is %.9g, want %.9g", b->name, what, i, (double)got->state[i],
                     (double)want->state[i]);
}

/* Neighbours of a step: other slots read their own tokens beside the sequence under test. */
struct company {
    uint32_t n;
    uint64_t pos[N_SLOTS];
    uint64_t seed;
    int32_t tok[N_SLOTS][256];
};

/* Pieces of random lengths that end anywhere. */
#define RANDOM_PIECES(seed) (0x80000000u | (seed))
static uint32_t piece_at(uint32_t piece, uint64_t pos) {
    return piece & 0x80000000u ? 1 + (uint32_t)(philox_uniform(piece, pos, 3) * 150) : piece;
}

/* Reads prompt[0..n) in pieces of piece tokens (0 = whole) and then N_DECODE more tokens, in slot, in company. */
static struct trace read_sequence(const struct setup *b, uint32_t slot, const int32_t *prompt, uint32_t n,
                                  uint32_t piece, struct company *company) {
    struct trace t = trace_new(b);
    b->ops->slot_zero(b->be, slot);
    uint64_t pos = 0, step = 0;
    for (uint32_t out = 0; out <= N_DECODE; step++) {
        struct backend_segment segs[N_SLOTS], all[N_SLOTS];
        uint32_t n_segs = 0, n_all = 0, rows_before = 0, n_tok = 1;
        const uint32_t length = piece_at(piece, pos);
        if (pos < n) n_tok = length && length < n - pos ? length : (uint32_t)(n - pos);
        uint32_t n_out = pos + n_tok >= n;
        for (uint32_t i = 0, mine = company ? company->n / 2 : 0; i <= (company ? company->n : 0); i++) {
            if (i == mine) {
                all[n_all++] = (struct backend_segment){slot, n_tok, n_out, pos, prompt + pos, pos < n};
                continue;
            }
            uint32_t other = (slot + 1 + (i > mine ? i - 1 : i)) % N_SLOTS;
            uint32_t want = 1 + (uint32_t)(philox_uniform(company->seed, step * N_SLOTS + i, 1) * 140);
            if (company->pos[other] % b->chunk) want = 1; /* after an odd piece it goes on in single steps */
            for (uint32_t k = 0; k < want; k++)
                company->tok[other][k] = (int32_t)(philox_uniform(company->seed, step * 999 + k, other) * b->V);
            uint32_t other_out = want == 1;
            all[n_all++] =
                (struct backend_segment){other, want, other_out, company->pos[other], company->tok[other], want > 1};
            company->pos[other] += want;
        }
        bool before = true;
        for (int prompts = 0; prompts < 2; prompts++) /* decode rows first */
            for (uint32_t i = 0; i < n_all; i++) {
                if (all[i].prompt != (prompts == 1)) continue;
                before = before && all[i].slot != slot;
                if (before) rows_before += all[i].n_out;
                segs[n_segs++] = all[i];
            }
        const float *logits;
        forward(b, segs, n_segs, &logits);
        if (n_out) memcpy(t.logits + (size_t)out++ * b->V, logits + (size_t)rows_before * b->V, b->V * sizeof(float));
        pos += n_tok;
    }
    trace_state(b, slot, pos, &t);
    return t;
}

#ifdef __SANITIZE_THREAD__ /* thirty times slower */
static const uint32_t lengths[] = {1, 65, 200};
#else
static const uint32_t lengths[] = {1, 2, 63, 64, 65, 127, 130, 200, 290};
#endif

static void a_prompt_split_at_multiples_of_the_chunk_gives_the_same_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i], 2);
        int32_t tok[MAX_PROMPT];
        fill_tokens(tok, MAX_PROMPT, b.V, 7);
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            struct trace whole = read_sequence(&b, 0, tok, lengths[k], 0, NULL);
            for (uint32_t n_chunks = 1; n_chunks * b.chunk < lengths[k]; n_chunks++) {
                char what[64];
                snprintf(what, sizeof what, "%u tokens by %u", lengths[k], n_chunks * b.chunk);
                struct trace split = read_sequence(&b, 0, tok, lengths[k], n_chunks * b.chunk, NULL);
                expect_equal(&b, &split, &whole, what);
                trace_free(&split);
            }
            trace_free(&whole);
        }
        tear_down(&b);
    }
}

static void neighbours_and_slot_change_no_bit(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i], 2);
        int32_t tok[MAX_PROMPT];
        fill_tokens(tok, MAX_PROMPT, b.V, 8);
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            struct trace alone = read_sequence(&b, 0, tok, lengths[k], 0, NULL);
            for (uint32_t n = 0; n < N_SLOTS; n++) {
                struct company company = {.n = n, .seed = 100 * k + n};
                uint32_t slot = (uint32_t)(k + n) % N_SLOTS;
                for (uint32_t s = 0; s < N_SLOTS; s++) b.ops->slot_zero(b.be, s);
                char what[64];
                snprintf(what, sizeof what, "%u tokens in slot %u beside %u others", lengths[k], slot, n);
                struct trace crowd = read_sequence(&b, slot, tok, lengths[k], n % 2 ? b.chunk : 0, &company);
                expect_equal(&b, &crowd, &alone, what);
                trace_free(&crowd);
            }
            trace_free(&alone);
        }
        tear_down(&b);
    }
}

static void a_reused_slot_leaves_no_trace(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i], 1);
        int32_t tok[MAX_PROMPT], before[MAX_PROMPT];
        fill_tokens(tok, MAX_PROMPT, b.V, 9);
        fill_tokens(before, MAX_PROMPT, b.V, 10);
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            struct trace fresh = read_sequence(&b, (uint32_t)k % 2, tok, lengths[k], 0, NULL);
            struct trace other = read_sequence(&b, 3, before, 280, 0, NULL);
            struct trace again = read_sequence(&b, 3, tok, lengths[k], 0, NULL);
            expect_equal(&b, &again, &fresh, "a slot used before");
            trace_free(&fresh);
            trace_free(&other);
            trace_free(&again);
        }
        tear_down(&b);
    }
}

/* The copy goes on as the first would, whatever the target held and the first does then. */
static void a_copied_slot_goes_on_with_the_same_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i], 2);
        int32_t tok[MAX_PROMPT];
        fill_tokens(tok, MAX_PROMPT, b.V, 12);
        for (size_t k = 0; b.ops->slot_copy && k < sizeof lengths / sizeof *lengths; k++) {
            const uint32_t n = lengths[k];
            struct trace whole = read_sequence(&b, 0, tok, n, 0, NULL), copied = trace_new(&b),
                         dirty = read_sequence(&b, 4, tok + 3, 120, 0, NULL);
            const float *logits;
            b.ops->slot_zero(b.be, 1);
            forward(&b, &(struct backend_segment){1, n, 1, 0, tok, true}, 1, &logits);
            memcpy(copied.logits, logits, b.V * sizeof(float));
            b.ops->slot_copy(b.be, 1, 4, n);
            forward(&b, &(struct backend_segment){1, 1, 1, n, tok, false}, 1, &logits);
            for (uint32_t t = 0; t < N_DECODE; t++) {
                forward(&b, &(struct backend_segment){4, 1, 1, n + t, tok + n + t, false}, 1, &logits);
                memcpy(copied.logits + (size_t)(t + 1) * b.V, logits, b.V * sizeof(float));
            }
            trace_state(&b, 4, n + N_DECODE, &copied);
            char what[64];
            snprintf(what, sizeof what, "%u tokens, copied", n);
            expect_equal(&b, &copied, &whole, what);
            trace_free(&whole), trace_free(&copied), trace_free(&dirty);
        }
        tear_down(&b);
    }
}

static void the_number_of_threads_changes_no_bit(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup one = set_up(backend_sets[i], 1), many = set_up(backend_sets[i], 3);
        int32_t tok[MAX_PROMPT];
        fill_tokens(tok, MAX_PROMPT, one.V, 11);
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
            struct trace a = read_sequence(&one, 0, tok, lengths[k], 0, NULL);
            struct trace b = read_sequence(&many, 0, tok, lengths[k], 0, NULL);
            expect_equal(&one, &b, &a, "three threads");
            trace_free(&a);
            trace_free(&b);
        }
        tear_down(&one);
        tear_down(&many);
    }
}

static void expect_close(const struct setup *b, const struct trace *got, const struct trace *want, const char *what) {
    double max = 0, diff = 0;
    for (size_t k = 0; k < (size_t)(N_DECODE + 1) * b->V; k++) {
        double x = (double)want->logits[k], d = (double)got->logits[k] - x;
        max = x * x > max ? x * x : max;
        diff = d * d > diff ? d * d : diff;
    }
    const struct state_layout *l = b->ops->info(b->be)->state;
    /* 16 bits of products on a GPU. Of a narrow window the last bit of a key decides between two codes. */
    const double bound = b->ops != &backend_cpu ? 1e-3 : l->window != l->act ? 1e-6 : 1e-10;
    if (!(diff <= bound * max)) fail_msg("%s, %s: relative error squared %g > %g", b->name, what, diff / max, bound);
}

/* The chunkwise form and single steps add in another order, so this one is a tolerance. */
static void chunked_is_stepwise_within_rounding(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i], 2);
        int32_t tok[MAX_PROMPT];
        fill_tokens(tok, MAX_PROMPT, b.V, 12);
        struct trace chunked = read_sequence(&b, 0, tok, 290, 0, NULL),
                     stepwise = read_sequence(&b, 1, tok, 290, 1, NULL);
        expect_close(&b, &chunked, &stepwise, "chunked");
        trace_free(&chunked);
        trace_free(&stepwise);
        tear_down(&b);
    }
}

static void a_prompt_split_anywhere_is_the_same_within_rounding(void **state) {
    (void)state;
    for (size_t i = 0; i < N_SETS; i++) {
        struct setup b = set_up(backend_sets[i], 2);
        int32_t tok[MAX_PROMPT];
        fill_tokens(tok, MAX_PROMPT, b.V, 12);
        struct trace whole = read_sequence(&b, 0, tok, 290, 0, NULL);
        for (uint32_t seed = 0; seed < 8; seed++) {
            struct company company = {.n = seed % 4, .seed = seed};
            for (uint32_t s = 0; s < N_SLOTS; s++) b.ops->slot_zero(b.be, s);
            struct trace split = read_sequence(&b, 2, tok, 290, RANDOM_PIECES(seed), &company);
            char what[32];
            snprintf(what, sizeof what, "split at random, %u", seed);
            expect_close(&b, &split, &whole, what);
            trace_free(&split);
        }
        trace_free(&whole);
        tear_down(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_split_at_multiples_of_the_chunk_gives_the_same_bits),
        cmocka_unit_test(neighbours_and_slot_change_no_bit),
        cmocka_unit_test(a_reused_slot_leaves_no_trace),
        cmocka_unit_test(a_copied_slot_goes_on_with_the_same_bits),
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
        cmocka_unit_test(chunked_is_stepwise_within_rounding),
        cmocka_unit_test(a_prompt_split_anywhere_is_the_same_within_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
