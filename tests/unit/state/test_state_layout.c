/* test_state_layout.c - the bytes of a state: where the parts of each format lie, the ids that keep formats apart, and
 * what a device answers where it is asked for a format. */
#include "engine/state/state_formats.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const struct model_dims plus = {.plus = true,
                                       .D = 2048,
                                       .L = 28,
                                       .E = 2032,
                                       .M = 64,
                                       .K = 4,
                                       .H = 16,
                                       .Hk = 1,
                                       .Hv = 16,
                                       .P = 128,
                                       .visible = 2049};

static struct state_layout layout_in(enum dtype S, enum dtype act, enum dtype window) {
    struct state_layout l = state_layout_of(&plus, act);
    l.S = S, l.window = window;
    return l;
}

static const struct state_formats roomy = {
    .device = "a lab", .windows = 1 << DTYPE_FP8 | 1 << DTYPE_INT8, .S = 1 << DTYPE_BF16};

/* Servers find files of before by these words. */
static void the_id_of_the_default_formats_is_what_it_was(void **state) {
    (void)state;
    char id[BACKEND_STATE_ID_BYTES];
    const struct state_layout bf16 = layout_in(DTYPE_F32, DTYPE_BF16, DTYPE_BF16);
    state_layout_id(&bf16, id);
    assert_string_equal(id, "rodimus-1 le S=fp32/32 act=bf16 L=28 E=2032 M=64 K=4 Hk=1 Hv=16 P=128 visible=2049");
    const struct model_dims plain = {.L = 2, .E = 4096, .M = 64, .K = 4};
    const struct state_layout fp32 = state_layout_of(&plain, DTYPE_F32);
    state_layout_id(&fp32, id);
    assert_string_equal(id, "rodimus-1 le S=fp32/32 act=fp32 L=2 E=4096 M=64 K=4 Hk=0 Hv=0 P=0 visible=0");
}

static void no_two_formats_share_an_id(void **state) {
    (void)state;
    enum { MOST = 64 };
    static char ids[MOST][BACKEND_STATE_ID_BYTES];
    int n = 0;
    for (enum dtype act = DTYPE_F32; act <= DTYPE_BF16; act++)
        for (enum dtype window = DTYPE_F32; window <= DTYPE_INT8; window++)
            for (int S = 0; S < 2; S++) {
                if (window <= DTYPE_BF16 && window != act) continue;
                const struct state_layout l = layout_in(S ? DTYPE_BF16 : DTYPE_F32, act, window);
                state_layout_id(&l, ids[n]);
                for (int i = 0; i < n; i++) assert_string_not_equal(ids[i], ids[n]);
                assert_true(++n < MOST);
            }
    assert_int_equal(n, 3 * 3 * 2);
    const struct state_layout l = layout_in(DTYPE_BF16, DTYPE_BF16, DTYPE_FP8);
    state_layout_id(&l, ids[0]);
    assert_string_equal(
        ids[0], "rodimus-1 le S=bf16/32 act=bf16 window=fp8 L=28 E=2032 M=64 K=4 Hk=1 Hv=16 P=128 visible=2049");
}

static void each_part_has_the_bytes_of_its_format(void **state) {
    (void)state;
    static const struct {
        enum dtype S, act, window;
        size_t S_bytes, conv_bytes, code_bytes, scale_bytes;
    } rows[] = {{DTYPE_F32, DTYPE_F32, DTYPE_F32, 4, 4, 4, 0},
                {DTYPE_F32, DTYPE_BF16, DTYPE_BF16, 4, 2, 2, 0},
                {DTYPE_F32, DTYPE_F16, DTYPE_FP8, 4, 2, 1, 0},
                {DTYPE_BF16, DTYPE_BF16, DTYPE_FP8, 2, 2, 1, 0},
                {DTYPE_F32, DTYPE_F32, DTYPE_INT8, 4, 4, 1, 4}};
    static const uint64_t positions[] = {0, 1, 77, 2048, 2049, 5000000};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t p = 0; p < sizeof positions / sizeof *positions; p++) {
            const struct state_layout l = layout_in(rows[i].S, rows[i].act, rows[i].window);
            const struct state_layer at = state_layer_at(&l, positions[p]);
            const size_t n = positions[p] < 2049 ? (size_t)positions[p] : 2049;
            assert_int_equal(at.n_keys, n);
            assert_int_equal(at.conv, (size_t)2048 * 64 * rows[i].S_bytes);
            assert_int_equal(at.keys - at.conv, (size_t)4 * 2048 * rows[i].conv_bytes);
            assert_int_equal(at.values - at.keys, n * 128 * rows[i].code_bytes);
            assert_int_equal(at.key_scales - at.values, n * 16 * 128 * rows[i].code_bytes);
            assert_int_equal(at.value_scales - at.key_scales, n * rows[i].scale_bytes);
            assert_int_equal(at.bytes - at.value_scales, n * 16 * rows[i].scale_bytes);
            assert_int_equal(state_bytes_at(&l, positions[p]), 28 * at.bytes);
            assert_int_equal(at.key_scales % 4 + at.value_scales % 4 + at.bytes % 4, 0);
        }
}

static void padding_that_is_not_zero_is_refused_in_every_format(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        const struct state_layout l = layout_in(i == 2 ? DTYPE_BF16 : DTYPE_F32, DTYPE_BF16,
                                                i == 0   ? DTYPE_BF16
                                                : i == 1 ? DTYPE_INT8
                                                         : DTYPE_FP8);
        const struct state_layer at = state_layer_at(&l, 3);
        const size_t bytes = state_bytes_at(&l, 3), last = at.bytes * 27;
        unsigned char *b = calloc(1, bytes);
        assert_non_null(b);
        assert_int_equal(state_check(&l, 3, b, bytes, NULL), 0);
        assert_int_equal(state_check(&l, 3, b, bytes - 1, NULL), ROD_EINVALID);
        const size_t element = dtype_bytes(l.S);
        const size_t padding[] = {last + at.conv - 16 * element, last + at.conv - 1, last + at.keys - 1,
                                  last + at.keys - 16 * 2};
        const size_t used[] = {last + at.conv - 16 * element - 1, last + at.keys - 16 * 2 - 1, last + at.keys,
                               bytes - 1};
        for (int j = 0; j < 4; j++) {
            struct rod_error err = {0};
            b[padding[j]] = 1;
            assert_int_equal(state_check(&l, 3, b, bytes, &err), ROD_EINVALID);
            assert_string_equal(err.message, "not a state: padding channels of layer 27 are not zero");
            b[padding[j]] = 0, b[used[j]] = 1;
            assert_int_equal(state_check(&l, 3, b, bytes, NULL), 0);
            b[used[j]] = 0;
        }
        free(b);
    }
}

static int choose(const struct state_formats *there, const char *window, const char *S, struct state_layout *l,
                  struct rod_error *err) {
    *err = (struct rod_error){0};
    return state_formats_choose(there, &(struct backend_config){.window_dtype = window, .state_dtype = S}, l, err);
}

static void a_device_gives_the_formats_that_it_has(void **state) {
    (void)state;
    struct rod_error err;
    struct state_layout l;
    static const char *const usual[] = {NULL, "auto", "bf16"};
    for (int i = 0; i < 3; i++) {
        l = state_layout_of(&plus, DTYPE_BF16);
        assert_int_equal(choose(&(struct state_formats){"a lab", 0, 0}, usual[i], NULL, &l, &err), 0);
        assert_int_equal(l.window, DTYPE_BF16);
        assert_int_equal(l.S, DTYPE_F32);
    }
    static const struct {
        const char *window, *S;
        enum dtype window_type, S_type;
    } rows[] = {{"fp8", "auto", DTYPE_FP8, DTYPE_F32},
                {"int8", "fp32", DTYPE_INT8, DTYPE_F32},
                {"fp8", "bf16", DTYPE_FP8, DTYPE_BF16}};
    for (size_t i = 0; i < 3; i++) {
        l = state_layout_of(&plus, DTYPE_BF16);
        assert_int_equal(choose(&roomy, rows[i].window, rows[i].S, &l, &err), 0);
        assert_int_equal(l.window, rows[i].window_type);
        assert_int_equal(l.S, rows[i].S_type);
    }
}

static void a_format_that_a_device_lacks_is_refused_by_what_there_is(void **state) {
    (void)state;
    static const struct {
        struct state_formats there;
        enum dtype act;
        const char *window, *S, *param, *message;
    } rows[] = {
        {{"a CPU", 1 << DTYPE_INT8, 0},
         DTYPE_F32,
         "fp8",
         NULL,
         "window_dtype",
         "window_dtype: \"fp8\" is not there on a CPU; there are auto, fp32 (the activations' type) and int8."},
        {{"a CPU", 1 << DTYPE_INT8, 0},
         DTYPE_F32,
         "bf16",
         NULL,
         "window_dtype",
         "window_dtype: \"bf16\" is not there on a CPU; there are auto, fp32 (the activations' type) and int8."},
        {{"a GPU", 0, 0},
         DTYPE_BF16,
         "fp8",
         "bf16",
         "window_dtype",
         "window_dtype: \"fp8\" is not there on a GPU; there are auto and bf16 (the activations' type)."},
        {{"a GPU", 1 << DTYPE_FP8, 0},
         DTYPE_BF16,
         "fp8",
         "bf16",
         "state_dtype",
         "state_dtype: \"bf16\" is not there on a GPU; there are auto and fp32."},
        {{"a GPU", 1 << DTYPE_FP8, 1 << DTYPE_BF16},
         DTYPE_BF16,
         NULL,
         "int8",
         "state_dtype",
         "state_dtype: \"int8\" is not there on a GPU; there are auto, fp32 and bf16."},
        {{"a lab", 1 << DTYPE_FP8 | 1 << DTYPE_INT8, 0},
         DTYPE_F16,
         "e5m2",
         NULL,
         "window_dtype",
         "window_dtype: \"e5m2\" is not there on a lab; there are auto, fp16 (the activations' type), fp8 and int8."},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct rod_error err;
        struct state_layout l = state_layout_of(&plus, rows[i].act);
        assert_int_equal(choose(&rows[i].there, rows[i].window, rows[i].S, &l, &err), ROD_EUNSUPPORTED);
        assert_string_equal(err.message, rows[i].message);
        assert_string_equal(err.param, rows[i].param);
    }
}

static void a_model_without_a_window_or_with_odd_heads_takes_no_narrow_one(void **state) {
    (void)state;
    struct rod_error err;
    const struct model_dims plain = {.L = 2, .E = 64, .M = 16, .K = 4};
    struct model_dims odd = plus;
    odd.P = 10;
    struct state_layout l = state_layout_of(&plain, DTYPE_BF16);
    assert_int_equal(choose(&roomy, "fp8", NULL, &l, &err), ROD_EUNSUPPORTED);
    assert_string_equal(err.message, "window_dtype: fp8, but this model has no window.");
    l = state_layout_of(&plain, DTYPE_BF16);
    assert_int_equal(choose(&roomy, "bf16", "bf16", &l, &err), 0);
    l = state_layout_of(&odd, DTYPE_BF16);
    assert_int_equal(choose(&roomy, "int8", NULL, &l, &err), ROD_EUNSUPPORTED);
    assert_string_equal(err.message, "window_dtype: int8 needs heads of a multiple of 4 dims, this model's have 10.");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_id_of_the_default_formats_is_what_it_was),
        cmocka_unit_test(no_two_formats_share_an_id),
        cmocka_unit_test(each_part_has_the_bytes_of_its_format),
        cmocka_unit_test(padding_that_is_not_zero_is_refused_in_every_format),
        cmocka_unit_test(a_device_gives_the_formats_that_it_has),
        cmocka_unit_test(a_format_that_a_device_lacks_is_refused_by_what_there_is),
        cmocka_unit_test(a_model_without_a_window_or_with_odd_heads_takes_no_narrow_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
