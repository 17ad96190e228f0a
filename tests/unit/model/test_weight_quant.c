/* test_weight_quant.c - rounding to codes, against plain searches in double; which weights, and what is refused. */
#include "engine/base/half.h"
#include "engine/base/philox.h"
#include "engine/model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- e4m3 ---- */

static double e4m3_value(int code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const double x = exponent ? ldexp(8 + fraction, exponent - 10) : ldexp(fraction, -9);
    return code & 0x80 ? -x : x;
}

static void e4m3_widens_exactly_and_rounds_to_nearest_even(void **state) {
    (void)state;
    for (int code = 0; code < 256; code++) {
        const float x = half_e4m3_to_f32((uint8_t)code);
        if ((code & 0x7f) == 0x7f) {
            assert_true(isnan(x));
            assert_int_equal(half_f32_to_e4m3(x), code);
            continue;
        }
        if ((double)x != e4m3_value(code)) fail_msg("%02x: %a, expected %a", code, (double)x, e4m3_value(code));
        assert_int_equal(half_f32_to_e4m3(x), code);
        if ((code & 0x7f) == 0x7e) continue;
        const float next = half_e4m3_to_f32((uint8_t)(code + 1)), middle = (x + next) / 2;
        assert_int_equal(half_f32_to_e4m3(middle), code + (code & 1));
        assert_int_equal(half_f32_to_e4m3(nextafterf(middle, x)), code);
        assert_int_equal(half_f32_to_e4m3(nextafterf(middle, next)), code + 1);
    }
    assert_int_equal(half_f32_to_e4m3(449.0f), 0x7e); /* past the largest: the largest */
    assert_int_equal(half_f32_to_e4m3(-INFINITY), 0xfe);
}

/* ---- rows ---- */

enum { COLS = 328, ROWS = 3 }; /* the last group of 128 is short */

struct case_ {
    float x[ROWS][COLS];
    struct weight w;
};

/* Weights as training leaves them: about normal, some far out. */
static void case_draw(struct case_ *c, unsigned seed) {
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < COLS; i++) {
            const uint64_t at = (uint64_t)(r * COLS + i);
            double sum = -6;
            for (uint32_t k = 0; k < 12; k++) sum += philox_uniform(seed, at, k);
            c->x[r][i] = half_bf16_to_f32(
                half_f32_to_bf16((float)(0.02 * (r + 1) * sum * (philox_uniform(seed, at, 12) < 0.98 ? 1 : 4))));
        }
    c->w = (struct weight){.n_parts = 2, .rows = ROWS, .cols = COLS, .quantisable = true};
    c->w.part[0] = (struct weight_part){.data = c->x[0], .dtype = DTYPE_F32, .rows = 1};
    c->w.part[1] = (struct weight_part){.data = c->x[1], .dtype = DTYPE_F32, .rows = ROWS - 1};
}

static double squared_error(const float *x, const float *y, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    return sum;
}

static void is_bf16(float scale) {
    if (half_bf16_to_f32(half_f32_to_bf16(scale)) != scale) fail_msg("scale %a is no bf16", (double)scale);
}

static void a_row_of_int8_is_nearest_under_the_scale_of_its_largest_weight(void **state) {
    (void)state;
    static struct case_ c;
    for (unsigned seed = 1; seed < 20; seed++) {
        case_draw(&c, seed);
        const struct weight_quant q = {WEIGHT_INT8, COLS, false};
        for (uint32_t r = 0; r < ROWS; r++) {
            uint8_t codes[COLS];
            float scale, widened[COLS], largest = 0;
            weight_quant_row(&c.w, &q, r, codes, &scale, NULL);
            weight_quant_widen(&q, COLS, codes, &scale, NULL, widened);
            is_bf16(scale);
            for (int i = 0; i < COLS; i++) {
                largest = fmaxf(largest, fabsf(c.x[r][i]));
                assert_true((int8_t)codes[i] >= -127);
                if (fabs((double)c.x[r][i] - widened[i]) > 0.5 * (double)scale * 1.00001)
                    fail_msg("seed %u: %g became %g, scale %g", seed, (double)c.x[r][i], (double)widened[i],
                             (double)scale);
            }
            if (scale < largest / 127 || scale > largest / 127 * 1.01f)
                fail_msg("scale %g, largest weight %g", (double)scale, (double)largest);
        }
    }
}

static void a_row_of_fp8_is_the_nearest_e4m3(void **state) {
    (void)state;
    static struct case_ c;
    case_draw(&c, 5);
    const struct weight_quant q = {WEIGHT_FP8, COLS, false};
    for (uint32_t r = 0; r < ROWS; r++) {
        uint8_t codes[COLS];
        float scale, widened[COLS];
        weight_quant_row(&c.w, &q, r, codes, &scale, NULL);
        weight_quant_widen(&q, COLS, codes, &scale, NULL, widened);
        is_bf16(scale);
        for (int i = 0; i < COLS; i++) {
            double best = INFINITY;
            for (int code = 0; code < 256; code++)
                if ((code & 0x7f) != 0x7f)
                    best = fmin(best, fabs((double)c.x[r][i] - (double)scale * e4m3_value(code)));
            if (fabs((double)c.x[r][i] - widened[i]) > best * 1.0001 + 1e-12)
                fail_msg("%g became %g: %g away, the nearest is %g away", (double)c.x[r][i], (double)widened[i],
                         fabs((double)c.x[r][i] - widened[i]), best);
        }
    }
}

/* The least squared error that 4,000 scales of each sign reach. */
static double best_error_of_int4(const float *x, int n) {
    double largest = 0, best = INFINITY;
    for (int i = 0; i < n; i++) largest = fmax(largest, fabs((double)x[i]));
    for (int s = 1; s <= 4000; s++)
        for (int sign = -1; sign <= 1; sign += 2) {
            const double scale = sign * largest / 4 * s / 4000;
            double sum = 0;
            for (int i = 0; i < n; i++) {
                const double e = x[i] - scale * fmax(-8, fmin(7, nearbyint(x[i] / scale)));
                sum += e * e;
            }
            best = fmin(best, sum);
        }
    return best;
}

static void groups_of_int4_have_nearly_the_least_squared_error(void **state) {
    (void)state;
    static struct case_ c;
    double ours = 0, best = 0;
    for (unsigned seed = 1; seed < 4; seed++) {
        case_draw(&c, seed);
        const struct weight_quant q = {WEIGHT_INT4, WEIGHT_GROUP, false};
        assert_int_equal(weight_quant_groups(&q, COLS), 3);
        for (uint32_t r = 0; r < ROWS; r++) {
            uint8_t codes[COLS];
            float scales[3], widened[COLS];
            weight_quant_row(&c.w, &q, r, codes, scales, NULL);
            weight_quant_widen(&q, COLS, codes, scales, NULL, widened);
            for (int i = 0; i < COLS; i++) assert_true(codes[i] < 16);
            for (int g = 0; g < 3; g++) {
                const int first = g * WEIGHT_GROUP, n = COLS - first < WEIGHT_GROUP ? COLS - first : WEIGHT_GROUP;
                is_bf16(scales[g]);
                ours += squared_error(c.x[r] + first, widened + first, n);
                best += best_error_of_int4(c.x[r] + first, n);
            }
        }
    }
    if (ours > 1.06 * best || ours < 0.999 * best) fail_msg("squared error %g, the best %g", ours, best);
}

static void rows_without_numbers_or_of_zeros_are_told(void **state) {
    (void)state;
    static struct case_ c;
    static const enum weight_format formats[] = {WEIGHT_FP8, WEIGHT_INT8, WEIGHT_INT4};
    for (int f = 0; f < 3; f++)
        for (int at = 0; at < 3; at++) { /* where the NaN is */
            case_draw(&c, 9);
            const struct weight_quant q = {formats[f], formats[f] == WEIGHT_INT4 ? WEIGHT_GROUP : COLS, false};
            static const uint32_t places[] = {0, 130, COLS - 1};
            c.x[0][places[at]] = at == 1 ? INFINITY : NAN;
            memset(c.x[1], 0, sizeof c.x[1]);
            uint8_t codes[COLS];
            float scales[3] = {0}, widened[COLS];
            weight_quant_row(&c.w, &q, 0, codes, scales, NULL);
            assert_true(isnan(scales[places[at] / q.group]));
            weight_quant_row(&c.w, &q, 1, codes, scales, NULL);
            weight_quant_widen(&q, COLS, codes, scales, NULL, widened);
            for (int i = 0; i < COLS; i++) assert_true(widened[i] == 0);
        }
}

/* ---- of a model ---- */

static struct model *open_as(const char *synthetic, const char *weights) {
    struct model *m;
    struct rod_error err;
    if (model_open_either(&(struct model_choice){.synthetic = synthetic, .weights = weights}, NULL, &m, &err))
        fail_msg("%s", err.message);
    return m;
}

static void a_format_is_of_the_large_products_alone(void **state) {
    (void)state;
    struct model *m = open_as("tales", "int4"), *wide = open_as("tales", "auto");
    struct weight_quant q;
    const struct model_layer *l = &m->layers[1];
    const struct weight *narrow[] = {&l->fc, &l->out_proj, &l->q, &l->k, &l->v, &l->ao, &l->f1, &l->f2};
    const struct weight *stay[] = {&m->embed, &m->norm_f, &l->mem_gate, &l->in_proj,    &l->c0,       &l->c1,
                                   &l->conv,  &l->conv_b, &l->q_norm,   &l->mixer_norm, &l->ffn_norm, &l->c1_b};
    for (size_t i = 0; i < sizeof narrow / sizeof *narrow; i++) {
        assert_true(weight_quant_of(m, narrow[i], &q));
        assert_int_equal(q.format, WEIGHT_INT4);
        assert_int_equal(q.group, WEIGHT_GROUP);
    }
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++) assert_false(weight_quant_of(m, stay[i], &q));
    assert_true(weight_quant_of(m, &m->lm_head, &q)); /* tied: a copy of the embedding, in 8 bits */
    assert_int_equal(q.format, WEIGHT_INT8);
    assert_int_equal(q.group, m->dims.D);
    assert_false(weight_quant_of(wide, &wide->layers[1].fc, &q));
    assert_memory_not_equal(m->fingerprint, wide->fingerprint, sizeof m->fingerprint);
    model_close(m);
    model_close(wide);
}

static void a_device_without_the_format_says_what_there_is(void **state) {
    (void)state;
    struct model *m = open_as("tales", "fp8");
    struct rod_error err = {0};
    assert_int_equal(weight_quant_check(m, 1u << WEIGHT_INT8 | 1u << WEIGHT_INT4, "the CPU", &err), ROD_EUNSUPPORTED);
    assert_string_equal(err.message, "weights in fp8 do not run on the CPU: there is int8 and int4 instead.");
    assert_string_equal(err.param, "weights");
    assert_int_equal(weight_quant_check(m, 1u << WEIGHT_FP8, "a GPU", &err), 0);
    model_close(m);
    assert_int_equal(model_open_either(&(struct model_choice){.synthetic = "tales", .weights = "int3"}, NULL, &m, &err),
                     ROD_EINVALID);
    assert_string_equal(err.message, "weights is int3; it must be auto, fp8, int8 or int4.");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(e4m3_widens_exactly_and_rounds_to_nearest_even),
        cmocka_unit_test(a_row_of_int8_is_nearest_under_the_scale_of_its_largest_weight),
        cmocka_unit_test(a_row_of_fp8_is_the_nearest_e4m3),
        cmocka_unit_test(groups_of_int4_have_nearly_the_least_squared_error),
        cmocka_unit_test(rows_without_numbers_or_of_zeros_are_told),
        cmocka_unit_test(a_format_is_of_the_large_products_alone),
        cmocka_unit_test(a_device_without_the_format_says_what_there_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
