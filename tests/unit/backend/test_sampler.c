/* test_sampler.c - the sampler against direct computation in double, with fixed seeds. */
#include "engine/base/philox.h"
#include "engine/backend/sampler.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

#ifdef __SANITIZE_THREAD__ /* nothing here races; a few draws do */
enum { V = 1000, N_DRAWS = 1000 };
#else
enum { V = 1000, N_DRAWS = 20000 };
#endif

static const struct rod_sampling neutral = ROD_SAMPLING_NEUTRAL;

static void fill_logits(float *x, uint32_t n, uint64_t seed, float spread) {
    for (uint32_t i = 0; i < n; i++) {
        double a = philox_uniform(seed, i, 1) + 1e-12, b = philox_uniform(seed, i, 2);
        x[i] = spread * (float)(sqrt(-2 * log(a)) * cos(6.283185307179586 * b));
    }
}

static void philox_gives_the_published_known_answers(void **state) {
    (void)state;
    const uint32_t cases[3][10] = {{0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
                                   {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd},
                                   {0xa4093822, 0x299f31d0, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xd16cfe09,
                                    0x94fdcceb, 0x5001e420, 0x24126ea1}};
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox_block(cases[i], cases[i] + 2, out);
        for (int j = 0; j < 4; j++) assert_int_equal(out[j], cases[i][6 + j]);
    }
}

/* ---- the direct computation: full sort, double, one filter after the other ---- */

struct ref {
    double p;
    int id;
    double key;
};
static int by_p(const void *a, const void *b) {
    const struct ref *x = a, *y = b;
    if (x->p != y->p) return x->p < y->p ? 1 : -1;
    return x->id - y->id;
}
static int by_key(const void *a, const void *b) {
    const struct ref *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->id - y->id;
}
static void ref_normalise(struct ref *r, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += r[i].p;
    for (size_t i = 0; i < n; i++) r[i].p /= sum;
}
static size_t ref_mass(const struct ref *r, size_t n, double p) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        if ((sum += r[i].p) >= p - 1e-9) return i + 1;
    return n;
}
/* probability of every id after the filters */
static void ref_distribution(const double *x, uint32_t n_vocab, const struct rod_sampling *sp, double *out) {
    struct ref *r = calloc(n_vocab, sizeof *r);
    double max = -INFINITY;
    for (uint32_t i = 0; i < n_vocab; i++) max = x[i] > max ? x[i] : max;
    for (uint32_t i = 0; i < n_vocab; i++)
        r[i] = (struct ref){exp((x[i] - max) / (double)sp->temperature), (int)i, 0}, out[i] = 0;
    size_t n = n_vocab;
    qsort(r, n, sizeof *r, by_p);
    ref_normalise(r, n);
    if (sp->top_k > 0 && n > (size_t)sp->top_k) n = (size_t)sp->top_k;
    if (sp->min_p > 0) {
        size_t k = 0;
        while (k < n && r[k].p >= (double)sp->min_p * r[0].p) k++;
        n = k;
    }
    ref_normalise(r, n);
    if (sp->top_p < 1) n = ref_mass(r, n, (double)sp->top_p);
    ref_normalise(r, n);
    if (sp->typical_p < 1) {
        double h = 0;
        for (size_t i = 0; i < n; i++) h -= r[i].p > 0 ? r[i].p * log(r[i].p) : 0;
        for (size_t i = 0; i < n; i++) r[i].key = fabs(-log(r[i].p) - h);
        qsort(r, n, sizeof *r, by_key);
        n = ref_mass(r, n, (double)sp->typical_p);
        ref_normalise(r, n);
    }
    for (size_t i = 0; i < n; i++) out[r[i].id] = r[i].p;
    free(r);
}

/* Pearson's statistic over tokens with at least 5 expected draws (the rest pooled), as a normal score by the cube root
 * approximation of Wilson and Hilferty. No draw may fall where the probability is 0. */
static void assert_draws_follow(const struct rod_sampling *sp, const float *x, const double *p, uint64_t seed,
                                const struct sampler_input *base) {
    struct sampler s;
    assert_int_equal(sampler_init(&s, V, NULL), 0);
    uint32_t *count = calloc(V, sizeof *count);
    struct rod_sampling with_seed = *sp;
    with_seed.seed = seed;
    for (uint64_t i = 0; i < N_DRAWS; i++) {
        struct sampler_input in = *base;
        struct sampler_output out;
        in.sampling = &with_seed;
        in.position = i;
        in.n_logprobs = -1;
        assert_int_equal(sampler_pick(&s, &in, x, &out, NULL), 0);
        if (p[out.id] <= 0)
            fail_msg("seed %llu draw %llu: token %d was drawn, its probability is 0", (unsigned long long)seed,
                     (unsigned long long)i, out.id);
        count[out.id]++;
    }
    double chi = 0, pooled_expected = 0, pooled = 0;
    int n_cells = 0;
    for (int i = 0; i < V; i++) {
        double e = p[i] * N_DRAWS;
        if (e < 5) {
            pooled_expected += e;
            pooled += count[i];
        } else {
            chi += (count[i] - e) * (count[i] - e) / e;
            n_cells++;
        }
    }
    if (pooled_expected >= 5) {
        chi += (pooled - pooled_expected) * (pooled - pooled_expected) / pooled_expected;
        n_cells++;
    }
    if (n_cells > 1) {
        double k = n_cells - 1, z = (cbrt(chi / k) - (1 - 2 / (9 * k))) / sqrt(2 / (9 * k));
        if (z > 4)
            fail_msg("seed %llu: chi-square %g with %g degrees of freedom, score %g > 4", (unsigned long long)seed, chi,
                     k, z);
    }
    free(count);
    sampler_fini(&s);
}

static void check_distribution(const struct rod_sampling *sp, float spread, uint64_t seed) {
    float x[V];
    double d[V], p[V];
    fill_logits(x, V, seed, spread);
    for (int i = 0; i < V; i++) d[i] = (double)x[i];
    ref_distribution(d, V, sp, p);
    struct sampler_input in = {0};
    assert_draws_follow(sp, x, p, seed + 17, &in);
}

#define DISTRIBUTION(name, ...)                                                                                        \
    static void name(void **state) {                                                                                   \
        (void)state;                                                                                                   \
        struct rod_sampling sp = neutral;                                                                              \
        __VA_ARGS__;                                                                                                   \
        for (uint64_t seed = 1; seed <= 3; seed++) check_distribution(&sp, 2.5f, seed);                                \
    }
DISTRIBUTION(plain_draws_follow_the_softmax, (void)0)
DISTRIBUTION(temperature_sharpens, sp.temperature = 0.5f)
DISTRIBUTION(temperature_flattens, sp.temperature = 1.7f)
DISTRIBUTION(top_k_keeps_the_k_best, sp.top_k = 7)
DISTRIBUTION(a_top_k_beyond_the_block_count_is_exact_too, sp.top_k = 300)
DISTRIBUTION(top_p_keeps_the_nucleus, sp.top_p = 0.8f)
DISTRIBUTION(top_p_with_temperature_keeps_the_nucleus, (sp.top_p = 0.95f, sp.temperature = 0.8f))
DISTRIBUTION(min_p_cuts_relative_to_the_best, sp.min_p = 0.1f)
DISTRIBUTION(typical_p_keeps_what_is_near_the_entropy, sp.typical_p = 0.5f)
DISTRIBUTION(all_filters_together_act_in_their_order,
             (sp.top_k = 60, sp.min_p = 0.02f, sp.top_p = 0.9f, sp.typical_p = 0.8f, sp.temperature = 0.9f))

static void the_nucleus_is_exactly_the_shortest_run_that_reaches_top_p(void **state) {
    (void)state;
    float x[4] = {logf(0.5f), logf(0.3f), logf(0.15f), logf(0.05f)};
    struct sampler s;
    assert_int_equal(sampler_init(&s, 4, NULL), 0);
    for (int want = 1; want <= 4; want++) {
        struct rod_sampling sp = neutral;
        sp.top_p = (float[]){0.4f, 0.7f, 0.9f, 0.97f}[want - 1];
        bool seen[4] = {false};
        for (uint64_t i = 0; i < 500; i++) {
            struct sampler_input in = {.sampling = &sp, .position = i, .n_logprobs = -1};
            struct sampler_output out;
            assert_int_equal(sampler_pick(&s, &in, x, &out, NULL), 0);
            seen[out.id] = true;
        }
        for (int i = 0; i < 4; i++) assert_int_equal(seen[i], i < want);
    }
    sampler_fini(&s);
}

static void penalties_and_bias_shift_the_distribution_as_defined(void **state) {
    (void)state;
    float x[V];
    double d[V], p[V];
    fill_logits(x, V, 5, 1.5f);
    struct rod_sampling sp = neutral;
    sp.frequency_penalty = 0.7f;
    sp.presence_penalty = -0.4f;
    sp.repetition_penalty = 1.3f;
    struct sampler_counts counts;
    assert_int_equal(sampler_counts_init(&counts, 12, NULL), 0);
    const int ids[12] = {3, 17, 900, 3, 3, 40, 17, 5, 999, 0, 40, 77};
    for (int i = 0; i < 6; i++) sampler_counts_add(&counts, ids[i], 0);  /* the prompt */
    for (int i = 4; i < 12; i++) sampler_counts_add(&counts, ids[i], 1); /* generated */
    const struct rod_bias bias[2] = {{3, 2.5f}, {500, 6}};
    const int32_t banned[2] = {1, 2};
    for (int i = 0; i < V; i++) {
        int n = 0, seen = 0;
        for (int j = 0; j < 12; j++) seen |= ids[j] == i;
        for (int j = 4; j < 12; j++) n += ids[j] == i;
        double v = (double)x[i] + (i == 3 ? 2.5 : i == 500 ? 6 : 0);
        if (seen) v = v > 0 ? v / (double)1.3f : v * (double)1.3f;
        if (n) v -= n * (double)0.7f - (double)0.4f;
        d[i] = i == 1 || i == 2 ? -INFINITY : v;
    }
    ref_distribution(d, V, &sp, p);
    struct sampler_input in = {.bias = bias, .n_bias = 2, .banned = banned, .n_banned = 2, .counts = &counts};
    assert_draws_follow(&sp, x, p, 99, &in);
    sampler_counts_fini(&counts);
}

static void zero_temperature_is_argmax_with_ties_to_the_lower_id(void **state) {
    (void)state;
    struct rod_sampling sp = neutral;
    sp.temperature = 0;
    for (uint32_t n = 1; n < 400; n += 7) {
        struct sampler s;
        assert_int_equal(sampler_init(&s, n, NULL), 0);
        float *x = calloc(n, sizeof *x);
        fill_logits(x, n, n, 1);
        uint32_t a = n / 3, b = n - 1;
        x[a] = x[b] = 9;
        struct sampler_input in = {.sampling = &sp, .n_logprobs = -1};
        struct sampler_output out;
        assert_int_equal(sampler_pick(&s, &in, x, &out, NULL), 0);
        assert_int_equal(out.id, a);
        free(x);
        sampler_fini(&s);
    }
}

static void log_probabilities_are_the_models_own_whatever_the_settings(void **state) {
    (void)state;
    float x[V];
    fill_logits(x, V, 8, 4);
    x[20] = x[10]; /* a tie among the best would go to the lower id */
    double sum = 0;
    for (int i = 0; i < V; i++) sum += exp((double)x[i]);
    struct sampler s;
    assert_int_equal(sampler_init(&s, V, NULL), 0);
    struct rod_sampling sp = neutral;
    sp.temperature = 0.3f;
    sp.top_k = 5;
    const struct rod_bias bias = {123, 50};
    struct sampler_input in = {.sampling = &sp, .bias = &bias, .n_bias = 1, .n_logprobs = 20};
    struct sampler_output out;
    assert_int_equal(sampler_pick(&s, &in, x, &out, NULL), 0);
    assert_int_equal(out.id, 123);
    assert_float_equal(out.logprob, (float)((double)x[123] - log(sum)), 1e-5f);
    assert_int_equal(out.n_top, 20);
    bool used[V] = {false};
    for (uint32_t k = 0; k < 20; k++) {
        int best = -1;
        for (int i = 0; i < V; i++)
            if (!used[i] && (best < 0 || x[i] > x[best])) best = i;
        used[best] = true;
        assert_int_equal(out.top[k].id, best);
        assert_float_equal(out.top[k].logprob, (float)((double)x[best] - log(sum)), 1e-5f);
    }
    sampler_fini(&s);
}

static void a_logit_that_is_no_number_fails_the_row(void **state) {
    (void)state;
    struct sampler s;
    assert_int_equal(sampler_init(&s, V, NULL), 0);
    const float broken[3] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < V; i += 37)
        for (int k = 0; k < 3; k++) {
            float x[V];
            fill_logits(x, V, 3, 1);
            x[i] = broken[k];
            struct sampler_input in = {.sampling = &neutral, .n_logprobs = 5};
            struct sampler_output out;
            struct rod_error err = {0};
            assert_int_equal(sampler_pick(&s, &in, x, &out, &err), ROD_EINTERNAL);
            assert_non_null(strstr(err.message, "not a number"));
        }
    sampler_fini(&s);
}

static void banning_every_token_is_an_error_not_a_draw(void **state) {
    (void)state;
    struct sampler s;
    assert_int_equal(sampler_init(&s, 3, NULL), 0);
    const float x[3] = {1, 2, 3};
    const int32_t banned[3] = {0, 1, 2};
    struct sampler_input in = {.sampling = &neutral, .banned = banned, .n_banned = 3, .n_logprobs = -1};
    struct sampler_output out;
    assert_int_equal(sampler_pick(&s, &in, x, &out, NULL), ROD_EINVALID);
    sampler_fini(&s);
}

static void a_draw_depends_on_seed_and_position_only(void **state) {
    (void)state;
    struct sampler a, b;
    assert_int_equal(sampler_init(&a, V, NULL), 0);
    assert_int_equal(sampler_init(&b, V, NULL), 0);
    float x[V], y[V];
    fill_logits(x, V, 11, 2);
    fill_logits(y, V, 12, 2);
    int n_differ = 0, n_other_seed = 0;
    for (uint64_t i = 0; i < 200; i++) {
        struct rod_sampling sp = neutral;
        sp.seed = 77;
        sp.top_p = i % 2 ? 0.9f : 1;
        struct sampler_input in = {.sampling = &sp, .position = 1000 + i, .n_logprobs = -1};
        struct sampler_output first, second;
        assert_int_equal(sampler_pick(&a, &in, x, &first, NULL), 0);
        assert_int_equal(sampler_pick(&b, &in, y, &second, NULL), 0); /* another row between */
        assert_int_equal(sampler_pick(&b, &in, x, &second, NULL), 0);
        assert_int_equal(first.id, second.id);
        in.position += 5000;
        assert_int_equal(sampler_pick(&b, &in, x, &second, NULL), 0);
        n_differ += first.id != second.id;
        in.position -= 5000;
        sp.seed = 78;
        assert_int_equal(sampler_pick(&b, &in, x, &second, NULL), 0);
        n_other_seed += first.id != second.id;
    }
    assert_true(n_differ > 100 && n_other_seed > 100);
    sampler_fini(&a);
    sampler_fini(&b);
}

static void a_tiny_temperature_is_the_argmax(void **state) {
    (void)state;
    struct sampler s;
    assert_int_equal(sampler_init(&s, V, NULL), 0);
    float x[V];
    fill_logits(x, V, 21, 2);
    int best = 0;
    for (int i = 1; i < V; i++) best = x[i] > x[best] ? i : best;
    const float temperatures[4] = {1e-3f, 1e-10f, 1e-38f, 1e-45f};
    for (int k = 0; k < 8; k++) {
        struct rod_sampling sp = neutral;
        sp.temperature = temperatures[k / 2];
        sp.top_p = k % 2 ? 0.9f : 1;
        struct sampler_input in = {.sampling = &sp, .position = (uint64_t)k, .n_logprobs = -1};
        struct sampler_output out;
        assert_int_equal(sampler_pick(&s, &in, x, &out, NULL), 0);
        assert_int_equal(out.id, best);
    }
    sampler_fini(&s);
}

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int descending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The least logit that may be drawn: the k-th, and the last of the nucleus of those above the floor of min_p. */
static float least_kept(const float *sorted, uint32_t n, const struct rod_sampling *sp) {
    if (sp->top_k) return sorted[sp->top_k - 1];
    double total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++) total += exp((double)(sorted[i] - sorted[0]) / (double)sp->temperature);
    uint32_t i = 0;
    while (sum < ((double)sp->top_p + 1e-3) * total && i + 1 < n)
        sum += exp((double)(sorted[i++] - sorted[0]) / (double)sp->temperature);
    return sorted[i];
}

/* Up and down again over the ids: whoever splits around the median of first, middle and last splits off almost nothing.
 * A bias for every token makes such rows, and everybody waits for the one who sorts them out. */
static void no_order_of_the_logits_takes_long(void **state) {
    (void)state;
    enum { MANY = 100000 };
    struct sampler s;
    assert_int_equal(sampler_init(&s, MANY, NULL), 0);
    float *x = malloc(MANY * sizeof *x), *sorted = malloc(MANY * sizeof *sorted);
    struct rod_sampling of[2] = {neutral, neutral};
    of[0].top_k = MANY / 2;
    of[1].top_p = 0.5f, of[1].min_p = 1e-30f;
    for (int k = 0; k < 2; k++) {
        double took_s[2];
        of[k].temperature = 2;
        for (int pipe = 0; pipe < 2; pipe++) {
            for (int i = 0; i < MANY; i++) x[i] = 160.0f * (float)(pipe && i >= MANY / 2 ? MANY - i : i) / MANY;
            memcpy(sorted, x, MANY * sizeof *x);
            qsort(sorted, MANY, sizeof *sorted, descending);
            const float least = least_kept(sorted, MANY, &of[k]);
            const double begin_s = cpu_s();
            for (uint64_t position = 0; position < 4; position++) {
                struct sampler_input in = {.sampling = &of[k], .position = position, .n_logprobs = -1};
                struct sampler_output out;
                assert_int_equal(sampler_pick(&s, &in, x, &out, NULL), 0);
                if (x[out.id] < least)
                    fail_msg("drew %d, whose logit %g is below %g", out.id, (double)x[out.id], (double)least);
            }
            took_s[pipe] = cpu_s() - begin_s;
        }
        if (took_s[1] > 50 * took_s[0])
            fail_msg("settings %d: %.1f ms, and %.1f ms where ids are in the logits' order", k, took_s[1] * 1e3,
                     took_s[0] * 1e3);
    }
    free(x), free(sorted);
    sampler_fini(&s);
}

/* Each of 1,024 stop ids may come where the grammar may end, if it is allowed: a look at each, not at each for each
 * that is allowed. */
static void many_stop_ids_and_many_allowed_ones_cost_little(void **state) {
    (void)state;
    enum { MANY = 100000, N_STOPS = 1024 };
    struct sampler s;
    assert_int_equal(sampler_init(&s, MANY, NULL), 0);
    float *x = malloc(MANY * sizeof *x);
    int32_t *allowed = malloc(MANY * sizeof *allowed), stops[N_STOPS];
    uint64_t *mask = calloc(MANY / 64 + 1, sizeof *mask);
    fill_logits(x, MANY, 5, 2);
    for (int i = 0; i < MANY; i++) allowed[i] = i;
    for (int i = 0; i < N_STOPS; i++) stops[i] = i;
    x[7] = 50, x[9] = 60, x[2000] = 70; /* 7 is a stop id and allowed, 9 a stop id alone, 2000 allowed alone */
    allowed[9] = 10;
    struct sampler_input in = {
        .sampling = &neutral, .allowed = allowed, .n_allowed = MANY, .mask = mask, .also = stops, .n_logprobs = -1};
    double took_s[2];
    for (int many = 0; many < 2; many++) {
        const double begin_s = cpu_s();
        in.n_also = many ? N_STOPS : 8;
        for (int k = 0; k < 8; k++) {
            struct sampler_output out;
            in.position = (uint64_t)k;
            assert_int_equal(sampler_pick(&s, &in, x, &out, NULL), 0);
            assert_int_equal(out.id, 7);
        }
        took_s[many] = cpu_s() - begin_s;
    }
    if (took_s[1] > 20 * took_s[0]) fail_msg("%.1f ms, and %.1f ms with 8 stop ids", took_s[1] * 1e3, took_s[0] * 1e3);
    free(x), free(allowed), free(mask);
    sampler_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_known_answers),
        cmocka_unit_test(plain_draws_follow_the_softmax),
        cmocka_unit_test(temperature_sharpens),
        cmocka_unit_test(temperature_flattens),
        cmocka_unit_test(top_k_keeps_the_k_best),
        cmocka_unit_test(a_top_k_beyond_the_block_count_is_exact_too),
        cmocka_unit_test(top_p_keeps_the_nucleus),
        cmocka_unit_test(top_p_with_temperature_keeps_the_nucleus),
        cmocka_unit_test(min_p_cuts_relative_to_the_best),
        cmocka_unit_test(typical_p_keeps_what_is_near_the_entropy),
        cmocka_unit_test(all_filters_together_act_in_their_order),
        cmocka_unit_test(the_nucleus_is_exactly_the_shortest_run_that_reaches_top_p),
        cmocka_unit_test(penalties_and_bias_shift_the_distribution_as_defined),
        cmocka_unit_test(zero_temperature_is_argmax_with_ties_to_the_lower_id),
        cmocka_unit_test(log_probabilities_are_the_models_own_whatever_the_settings),
        cmocka_unit_test(a_logit_that_is_no_number_fails_the_row),
        cmocka_unit_test(banning_every_token_is_an_error_not_a_draw),
        cmocka_unit_test(a_draw_depends_on_seed_and_position_only),
        cmocka_unit_test(a_tiny_temperature_is_the_argmax),
        cmocka_unit_test(no_order_of_the_logits_takes_long),
        cmocka_unit_test(many_stop_ids_and_many_allowed_ones_cost_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
