/* test_state_convert.c - a state's bytes in other formats: what comes back as it was, how far rounding goes, and what
 * is of no format stays. */
#include "engine/base/philox.h"
#include "engine/state/state_convert.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static const struct model_dims dims = {
    .plus = true, .D = 96, .L = 3, .E = 80, .M = 16, .K = 4, .H = 4, .Hk = 1, .Hv = 4, .P = 24, .visible = 33};
/* One a day; printed. */
static uint64_t seed_of_run(void) { return (uint64_t)time(NULL) / 86400; }

static const uint64_t positions[] = {0, 1, 32, 33, 1000};
enum { N_POSITIONS = sizeof positions / sizeof *positions };

static struct state_layout layout_in(enum dtype S, enum dtype act, enum dtype window) {
    struct state_layout l = state_layout_of(&dims, act);
    l.S = S, l.window = window;
    return l;
}

static unsigned char *converted(const struct state_layout *from, const struct state_layout *to, uint64_t pos,
                                const unsigned char *src) {
    unsigned char *dst = malloc(state_bytes_at(to, pos)); /* as long as it may be written */
    struct rod_error err;
    assert_non_null(dst);
    if (state_convert(from, to, pos, src, dst, &err)) fail_msg("%s", err.message);
    return dst;
}

/* Numbers as models have them. */
static unsigned char *random_state(const struct state_layout *l, uint64_t pos, uint64_t round) {
    struct state_layout wide = *l;
    wide.S = wide.act = wide.window = DTYPE_F32;
    const size_t n = state_bytes_at(&wide, pos) / sizeof(float);
    float *numbers = malloc((n + 1) * sizeof *numbers);
    assert_non_null(numbers);
    for (size_t i = 0; i < n; i++) {
        const double sign = philox_uniform(seed_of_run(), i, (uint32_t)round) < 0.5 ? 1 : -1;
        const double size = philox_uniform(seed_of_run(), n + i, (uint32_t)round);
        numbers[i] = size < 0.02 ? 0 : (float)(sign * exp(size * 8 - 6));
    }
    unsigned char *state = converted(&wide, l, pos, (unsigned char *)numbers);
    free(numbers);
    return state;
}

static void there_and_back(const struct state_layout *from, const struct state_layout *to, uint64_t round) {
    for (int i = 0; i < N_POSITIONS; i++) {
        unsigned char *a = random_state(from, positions[i], round), *b = converted(from, to, positions[i], a),
                      *again = converted(to, from, positions[i], b);
        const size_t n = state_bytes_at(from, positions[i]);
        for (size_t j = 0; j < n; j++)
            if (a[j] != again[j])
                fail_msg("byte %zu of %zu, window %s in %s, position %llu: %02x became %02x", j, n,
                         dtype_name(from->window), dtype_name(to->window), (unsigned long long)positions[i], a[j],
                         again[j]);
        free(a), free(b), free(again);
    }
}

static void what_a_narrow_format_holds_is_exact_in_a_wide_one(void **state) {
    (void)state;
    static const struct {
        enum dtype S, act, window, wide_S, wide_act, wide_window;
    } rows[] = {
        {DTYPE_F32, DTYPE_BF16, DTYPE_FP8, DTYPE_F32, DTYPE_BF16, DTYPE_BF16},
        {DTYPE_F32, DTYPE_F16, DTYPE_FP8, DTYPE_F32, DTYPE_F16, DTYPE_F16},
        {DTYPE_F32, DTYPE_F32, DTYPE_INT8, DTYPE_F32, DTYPE_F32, DTYPE_F32},
        {DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, DTYPE_F32, DTYPE_BF16, DTYPE_BF16},
        {DTYPE_BF16, DTYPE_BF16, DTYPE_FP8, DTYPE_F32, DTYPE_F32, DTYPE_F32},
        {DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32, DTYPE_F32},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct state_layout from = layout_in(rows[i].S, rows[i].act, rows[i].window),
                                  to = layout_in(rows[i].wide_S, rows[i].wide_act, rows[i].wide_window);
        for (int n = 0; n < 20; n++) there_and_back(&from, &to, (uint64_t)n);
    }
}

static void rounding_stays_within_half_a_step(void **state) {
    (void)state;
    const struct state_layout wide = layout_in(DTYPE_F32, DTYPE_F32, DTYPE_F32);
    static const enum dtype windows[] = {DTYPE_FP8, DTYPE_INT8, DTYPE_BF16};
    for (int w = 0; w < 3; w++) {
        const struct state_layout narrow =
            layout_in(DTYPE_BF16, windows[w] == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_F32, windows[w]);
        const struct state_layer at = state_layer_at(&wide, 33);
        unsigned char *a = random_state(&wide, 33, (uint64_t)w), *b = converted(&wide, &narrow, 33, a),
                      *c = converted(&narrow, &wide, 33, b);
        const float *x = (const float *)(const void *)a, *y = (const float *)(const void *)c;
        for (size_t i = 0; i < state_bytes_at(&wide, 33) / 4; i++) {
            const size_t in_layer = 4 * i % at.bytes;
            const bool window = in_layer >= at.keys;
            const size_t head = window ? i - (in_layer - at.keys) / 4 % 24 : i;
            float most = 0;
            for (size_t j = 0; window && j < 24; j++) most = fmaxf(most, fabsf(x[head + j]));
            const bool kept = narrow.act == DTYPE_F32 && !window && in_layer >= at.conv;
            const double relative = !window || windows[w] == DTYPE_BF16 ? 0x1p-8 : windows[w] == DTYPE_FP8 ? 0x1p-4 : 0;
            const double floor = window && windows[w] == DTYPE_FP8 ? 0x1p-10 : 0;
            const double bound = kept                                 ? 0
                                 : window && windows[w] == DTYPE_INT8 ? most / 127 * 0.500001
                                                                      : fmax(relative * fabsf(x[i]), floor);
            if (!(fabs((double)x[i] - y[i]) <= bound))
                fail_msg("number %zu: %g became %g, the window in %s", i, (double)x[i], (double)y[i],
                         dtype_name(windows[w]));
        }
        free(a), free(b), free(c);
    }
}

static void what_no_format_holds_is_clipped_and_no_number_stays_none(void **state) {
    (void)state;
    struct state_layout wide = layout_in(DTYPE_F32, DTYPE_F32, DTYPE_F32), fp8 = wide, int8 = wide;
    fp8.window = DTYPE_FP8, int8.window = DTYPE_INT8;
    const struct state_layer at = state_layer_at(&wide, 1);
    unsigned char *a = random_state(&wide, 1, 0);
    float *keys = (float *)(void *)(a + at.keys);
    keys[0] = 1e9f, keys[1] = -1e9f, keys[2] = NAN, keys[4] = -INFINITY;
    unsigned char *b = converted(&wide, &fp8, 1, a), *c = converted(&fp8, &wide, 1, b);
    const float *back = (const float *)(const void *)(c + at.keys);
    assert_true(back[0] == 448 && back[1] == -448 && isnan(back[2]) && back[3] == back[3] && isnan(back[4]));
    free(b), free(c);
    b = converted(&wide, &int8, 1, a), c = converted(&int8, &wide, 1, b); /* a head has one scale */
    back = (const float *)(const void *)(c + at.keys);
    for (int i = 0; i < 24; i++) assert_true(isnan(back[i]));
    assert_true(!isnan(((const float *)(const void *)(c + at.values))[0]));
    free(a), free(b), free(c);
}

static void an_id_is_read_back_and_anything_else_is_none(void **state) {
    (void)state;
    struct state_layout l, back;
    char id[BACKEND_STATE_ID_BYTES];
    for (enum dtype act = DTYPE_F32; act <= DTYPE_BF16; act++)
        for (enum dtype window = DTYPE_F32; window <= DTYPE_INT8; window++)
            for (int narrow = 0; narrow < 2; narrow++) {
                l = layout_in(narrow ? DTYPE_BF16 : DTYPE_F32, act, window);
                state_layout_id(&l, id);
                assert_true(state_layout_parse(id, strlen(id), &back));
                char again[BACKEND_STATE_ID_BYTES];
                state_layout_id(&back, again);
                assert_string_equal(again, id);
                assert_int_equal(state_layout_is_narrow(&back), narrow || window != act);
                assert_true(state_layout_same_sizes(&l, &back));
                for (size_t i = 0; i < strlen(id); i++) { /* each letter counts; another digit is another size */
                    char other[BACKEND_STATE_ID_BYTES];
                    snprintf(other, sizeof other, "%s", id);
                    other[i] ^= 1;
                    if (!state_layout_parse(other, strlen(other), &back)) continue;
                    state_layout_id(&back, again);
                    assert_string_equal(again, other);
                }
            }
    static const char *const none[] = {
        "",
        "fake",
        "null",
        "rodimus-1",
        "rodimus-1 le S=fp32/32 act=bf16",
        "rodimus-1 le S=fp32/32 act=bf16 window=bf16 L=1 E=1 M=1 K=1 Hk=0 Hv=0 P=0 visible=0",
        "rodimus-1 le S=fp32/32 act=bf16 L=1 E=1 M=1 K=1 Hk=0 Hv=0 P=0 visible=0 ",
        "rodimus-1 le S=fp32/32 act=bf16 L=01 E=1 M=1 K=1 Hk=0 Hv=0 P=0 visible=0",
        "rodimus-1 le S=fp64/32 act=bf16 L=1 E=1 M=1 K=1 Hk=0 Hv=0 P=0 visible=0",
        "rodimus-1 le S=fp32/32 act=bf16 L=4294967295 E=4294967295 M=1 K=1 Hk=0 Hv=0 P=0 visible=0"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (state_layout_parse(none[i], strlen(none[i]), &back)) fail_msg("\"%s\" was read", none[i]);
}

int main(void) {
    printf("seed %llu\n", (unsigned long long)seed_of_run());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_narrow_format_holds_is_exact_in_a_wide_one),
        cmocka_unit_test(rounding_stays_within_half_a_step),
        cmocka_unit_test(what_no_format_holds_is_clipped_and_no_number_stays_none),
        cmocka_unit_test(an_id_is_read_back_and_anything_else_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
