/* test_weight.c - 16-bit floats, weights as fp32, synthetic weights. */
#include "engine/base/half.h"
#include "engine/model/model.h"

#include <math.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void f16_widens_exactly(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        int sign = (int)(h >> 15), exponent = (int)(h >> 10 & 31), fraction = (int)(h & 1023);
        float got = half_f16_to_f32((uint16_t)h);
        uint32_t bits = half_f32_bits(got);
        if (exponent == 31 && fraction) {
            assert_true(isnan(got));
            if ((bits & 0x7fffff) != (uint32_t)fraction << 13 || bits >> 31 != (uint32_t)sign) fail_msg("NaN %04x", h);
            continue;
        }
        double want = exponent == 31  ? INFINITY
                      : exponent == 0 ? ldexp(fraction, -24)
                                      : ldexp(1024 + fraction, exponent - 25);
        if (sign) want = -want;
        if ((double)got != want || bits >> 31 != (uint32_t)sign)
            fail_msg("%04x: %a, expected %a", h, (double)got, want);
    }
}

static void bf16_widens_exactly_and_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float x = half_bf16_to_f32((uint16_t)h);
        assert_int_equal(half_f32_bits(x), h << 16);
        if (isnan(x))
            assert_true(isnan(half_bf16_to_f32(half_f32_to_bf16(x))));
        else
            assert_int_equal(half_f32_to_bf16(x), h);
    }
    assert_int_equal(half_f32_to_bf16(half_bits_to_f32(0x3f808000)), 0x3f80); /* a tie goes to the even one */
    assert_int_equal(half_f32_to_bf16(half_bits_to_f32(0x3f818000)), 0x3f82);
    assert_int_equal(half_f32_to_bf16(half_bits_to_f32(0x3f808001)), 0x3f81);
    assert_int_equal(half_f32_to_bf16(half_bits_to_f32(0x7f7fffff)), 0x7f80); /* past the largest: infinity */
    assert_true(isnan(half_bf16_to_f32(half_f32_to_bf16(half_bits_to_f32(0x7f800001)))));
}

static void f16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float x = half_f16_to_f32((uint16_t)h);
        if (isnan(x))
            assert_true(isnan(half_f16_to_f32(half_f32_to_f16(x))));
        else
            assert_int_equal(half_f32_to_f16(x), h);
        if ((h & 0x7fff) >= 0x7bff) continue;
        /* Between this one and the next: the middle goes to the even one, what is beside it to the nearer one. */
        const float middle = (x + half_f16_to_f32((uint16_t)(h + 1))) / 2;
        assert_int_equal(half_f32_to_f16(middle), h + (h & 1));
        assert_int_equal(half_f32_to_f16(nextafterf(middle, x)), h);
        assert_int_equal(half_f32_to_f16(nextafterf(middle, 2 * middle)), h + 1);
    }
    assert_int_equal(half_f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(half_f32_to_f16(65520.0f), 0x7c00); /* past the largest: infinity */
    assert_int_equal(half_f32_to_f16(-1e30f), 0xfc00);
    assert_int_equal(half_f32_to_f16(-1e-30f), 0x8000);
}

static void parts_widen_from_any_address_and_element(void **state) {
    (void)state;
    uint16_t values[300];
    for (uint32_t i = 0; i < 300; i++) values[i] = (uint16_t)(i * 217);
    unsigned char *odd = malloc(sizeof values + 1);
    memcpy(odd + 1, values, sizeof values);
    float dst[300];
    struct weight_part part = {.data = odd + 1, .dtype = DTYPE_F16, .rows = 300};
    weight_part_to_f32(&part, 7, 290, dst);
    for (uint32_t i = 0; i < 290; i++)
        assert_int_equal(half_f32_bits(dst[i]), half_f32_bits(half_f16_to_f32(values[i + 7])));
    part.dtype = DTYPE_BF16;
    weight_part_to_f32(&part, 1, 299, dst);
    for (uint32_t i = 0; i < 299; i++) assert_int_equal(half_f32_bits(dst[i]), (uint32_t)values[i + 1] << 16);
    free(odd);
}

static void spread_of_weight(const struct weight *w, double *mean, double *deviation) {
    size_t n = (size_t)w->rows * w->cols;
    float *x = malloc(n * sizeof *x);
    weight_to_f32(w, x);
    double sum = 0, square = 0;
    for (size_t i = 0; i < n; i++) sum += x[i], square += (double)x[i] * x[i];
    *mean = sum / (double)n;
    *deviation = sqrt(square / (double)n - *mean * *mean);
    free(x);
}

static void synthetic_weights_have_the_shape_and_spread(void **state) {
    (void)state;
    struct model *m, *tales;
    struct rod_error err;
    assert_int_equal(model_open("config/models/tales", NULL, NULL, &tales, &err), 0);
    assert_int_equal(model_synthetic("tales", 1, NULL, &m, &err), 0);
    struct model_dims a = m->dims, b = tales->dims;
    assert_int_equal(a.D, b.D);
    assert_int_equal(a.visible, b.visible);
    assert_int_equal(a.F, b.F);
    assert_int_equal(m->n_params, tales->n_params);
    assert_string_equal(m->layout, "synthetic");
    double mean, deviation;
    spread_of_weight(&m->layers[3].fc, &mean, &deviation);
    assert_true(fabs(mean) < 1e-3 && fabs(deviation * sqrt(a.D) - 1) < 0.02);
    spread_of_weight(&m->layers[0].mixer_norm, &mean, &deviation);
    assert_true(fabs(mean - 1) < 0.1 && fabs(deviation - 0.2) < 0.05);
    spread_of_weight(&m->embed, &mean, &deviation);
    assert_true(fabs(mean) < 1e-2 && fabs(deviation - 0.6) < 0.02);
    assert_int_equal(model_synthetic("gpt", 1, NULL, &m, &err), ROD_EINVALID);
    assert_non_null(strstr(err.message, "gpt"));
    model_close(tales);
    model_close(m);
}

static void synthetic_weights_depend_on_the_seed_alone(void **state) {
    (void)state;
    struct model *one, *two, *other;
    struct rod_error err;
    cpu_set_t all, single;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&single);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&single); cpu++)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &single);
    assert_int_equal(model_synthetic("tales", 5, NULL, &one, &err), 0);
    assert_int_equal(sched_setaffinity(0, sizeof single, &single), 0); /* one thread */
    assert_int_equal(model_synthetic("tales", 5, NULL, &two, &err), 0);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
    assert_int_equal(model_synthetic("tales", 6, NULL, &other, &err), 0);
    /* one mapping holds all weights, the embedding first */
    assert_memory_equal(one->embed.part[0].data, two->embed.part[0].data, (size_t)one->weight_bytes);
    assert_memory_not_equal(one->embed.part[0].data, other->embed.part[0].data, 4096);
    assert_memory_equal(one->fingerprint, two->fingerprint, sizeof one->fingerprint);
    assert_memory_not_equal(one->fingerprint, other->fingerprint, sizeof one->fingerprint);
    assert_memory_not_equal(one->layers[0].q.part[0].data, one->layers[1].q.part[0].data, 4096);
    model_close(one);
    model_close(two);
    model_close(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_widens_exactly),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_widens_exactly_and_rounds_to_nearest_even),
        cmocka_unit_test(parts_widen_from_any_address_and_element),
        cmocka_unit_test(synthetic_weights_have_the_shape_and_spread),
        cmocka_unit_test(synthetic_weights_depend_on_the_seed_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
