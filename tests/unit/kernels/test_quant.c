/* test_quant.c - products of int8 and int4 weights of every instruction set that this machine runs, against the twins
 * to the bit, and against the weights that the codes stand for. `test_quant list` says which instruction sets those
 * are. */
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const all_isa[] = {"base", "avx2", "avxvnni", "avx512", "avx512vnni"};
#define FOR_EACH_ISA(ops)                                                                                              \
    for (size_t isa_ = 0; isa_ < sizeof all_isa / sizeof *all_isa; isa_++)                                             \
        for (const struct cpu_quant_ops *ops = cpu_quant_find(all_isa[isa_]), *once_ = ops; once_; once_ = NULL)

static uint64_t random_state = 1;
static double uniform(double lo, double hi) { /* xorshift: the same numbers everywhere */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return lo + (hi - lo) * (double)(random_state >> 11) * 0x1p-53;
}
static uint32_t pick_up_to(uint32_t n) { return (uint32_t)uniform(0, n) + 1; }
static uint32_t pad(uint32_t n) { return (n + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL; }
static void *zeroed(size_t bytes) {
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(p);
    memset(p, 0, (bytes + 127) / 64 * 64);
    return p;
}

/* A format: how a matrix keeps its weights. */
struct format {
    enum cpu_dtype dtype;
    bool row_scales, zeros;
};
static const struct format formats[] = {{CPU_INT8, true, false}, {CPU_INT8, false, false}, {CPU_INT4, false, false},
                                        {CPU_INT4, false, true}, {CPU_INT4, true, false},  {CPU_INT4, true, true}};
enum { N_FORMATS = sizeof formats / sizeof *formats };

/* One random matrix packed and plain. */
struct pair {
    struct cpu_matrix m;
    struct ref_quant plain;
    void *codes, *scales, *zeros;
};
static struct pair random_pair(struct format f, uint32_t rows, uint32_t cols, bool extreme) {
    struct pair p = {.m = {rows, cols, pad(rows) / CPU_PANEL, f.dtype, NULL, f.row_scales, f.zeros}};
    const uint32_t n_scales = f.row_scales ? 1 : (cols + CPU_BLOCK - 1) / CPU_BLOCK;
    const bool int4 = f.dtype == CPU_INT4;
    uint8_t *codes = p.codes = zeroed((size_t)rows * cols), *zeros = p.zeros = zeroed((size_t)rows * n_scales);
    float *scales = p.scales = zeroed(sizeof(float) * rows * n_scales);
    p.m.data = zeroed(cpu_quant_panel_bytes(&p.m) * p.m.n_panels);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        const int code = (int)floor(int4 ? uniform(0, 16) : uniform(-127, 128));
        codes[i] = (uint8_t)(!extreme ? code : int4 ? 15 : i / cols % 2 ? 127 : -127);
    }
    for (size_t i = 0; i < (size_t)rows * n_scales; i++) {
        scales[i] = (float)uniform(0.001, 0.01);
        zeros[i] = (uint8_t)uniform(0, 16);
    }
    for (uint32_t r = 0; r < rows; r++)
        cpu_quant_pack_row(&p.m, r, codes + (size_t)r * cols, scales + (size_t)r * n_scales,
                           f.zeros ? zeros + (size_t)r * n_scales : NULL);
    p.plain = (struct ref_quant){rows, cols, n_scales, int4, codes, f.zeros ? zeros : NULL, scales};
    return p;
}
static void free_pair(struct pair *p) { free(p->m.data), free(p->codes), free(p->scales), free(p->zeros); }

static struct cpu_codes make_codes(uint32_t rows, uint32_t cols) {
    struct cpu_codes c = {.n_blocks = (cols + CPU_BLOCK - 1) / CPU_BLOCK, .n_rows = rows + pick_up_to(3)};
    const size_t n = (size_t)c.n_rows * c.n_blocks;
    c.code = zeroed(n * CPU_BLOCK * sizeof *c.code);
    c.scale = zeroed(n * sizeof *c.scale);
    c.sum = zeroed(n * sizeof *c.sum);
    return c;
}
static void free_codes(struct cpu_codes *c) { free(c->code), free(c->scale), free(c->sum); }

/* Rows of width pad(cols), zeros behind the last column. */
static float *random_rows(uint32_t rows, uint32_t cols, double range) {
    float *x = zeroed(sizeof(float) * rows * pad(cols));
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++) x[(size_t)r * pad(cols) + c] = (float)uniform(-range, range);
    return x;
}
static void encode_rows(const struct cpu_quant_ops *ops, const float *x, uint32_t rows, uint32_t cols,
                        const struct cpu_codes *out) {
    for (uint32_t r = 0; r < rows; r++) ops->encode(x + (size_t)r * pad(cols), pad(cols), r, 0, out->n_blocks, out);
}

static void check_same(const char *what, const char *isa, const struct format *f, const float *y, const float *ref,
                       size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(y + i, ref + i, sizeof *y))
            fail_msg("%s (%s, %s%s%s): element %zu of %zu is %.9g, the twin says %.9g", what, isa,
                     f->dtype == CPU_INT4 ? "int4" : "int8", f->row_scales ? ", a scale a row" : "",
                     f->zeros ? ", zero points" : "", i, n, (double)y[i], (double)ref[i]);
}

static void codes_of_activations_are_the_twins_bits_also_of_zeros_and_of_tiny_and_huge_values(void **state) {
    (void)state;
    static const double ranges[] = {1, 1e-32, 1e30, 3e38, 1e-20, 0};
    for (int round = 0; round < 60; round++) {
        const uint32_t cols = pick_up_to(400);
        float *x = random_rows(1, cols, ranges[round % 6]);
        if (round % 7 == 0) memset(x, 0, sizeof *x * (cols < 128 ? cols : 128));
        struct cpu_codes got = make_codes(1, cols);
        FOR_EACH_ISA(ops) {
            memset(got.code, 0x55, (size_t)got.n_rows * got.n_blocks * CPU_BLOCK * sizeof *got.code);
            encode_rows(ops, x, 1, cols, &got);
            for (uint32_t b = 0; b < got.n_blocks; b++) {
                const size_t at = (size_t)b * got.n_rows;
                int16_t want[CPU_BLOCK] = {0};
                float scale;
                int32_t sum;
                ref_encode(x + (size_t)b * CPU_BLOCK,
                           cols - b * CPU_BLOCK < CPU_BLOCK ? cols - b * CPU_BLOCK : CPU_BLOCK, want, &scale, &sum);
                if (memcmp(&scale, got.scale + at, 4) || sum != got.sum[at])
                    fail_msg("%s: block %u has scale %.9g and sum %d, the twin %.9g and %d", ops->isa, b,
                             (double)got.scale[at], got.sum[at], (double)scale, sum);
                for (uint32_t i = 0; i < CPU_BLOCK; i++)
                    if (want[i] != got.code[at * CPU_BLOCK + i])
                        fail_msg("%s: code %u of block %u is %d, the twin's %d", ops->isa, i, b,
                                 got.code[at * CPU_BLOCK + i], want[i]);
            }
        }
        free_codes(&got), free(x);
    }
}

static void products_are_the_twins_bits_over_ragged_sizes_in_every_format(void **state) {
    (void)state;
    for (int round = 0; round < 90; round++) {
        const struct format f = formats[round % N_FORMATS];
        const uint32_t rows = pick_up_to(100), cols = pick_up_to(500),
                       n = round % 5 == 0 ? 60 + pick_up_to(20) : pick_up_to(20);
        struct pair w = random_pair(f, rows, cols, round % 11 == 0);
        float *x = random_rows(n, cols, 3), *y = zeroed(sizeof *y * n * rows), *ref = zeroed(sizeof *y * n * rows),
              *base = zeroed(sizeof *base * n * rows);
        for (size_t i = 0; i < (size_t)n * rows; i++) base[i] = (float)uniform(-1, 1);
        if (round % 11 == 0) /* the largest sums there are: every code at its end, all of one sign */
            for (size_t i = 0; i < (size_t)n * pad(cols); i++)
                if (i % pad(cols) < cols) x[i] = -2;
        struct cpu_codes codes = make_codes(n, cols);
        for (int with_base = 0; with_base < 2; with_base++) {
            for (uint32_t r = 0; r < n; r++)
                ref_quant_linear(&w.plain, x + (size_t)r * pad(cols), with_base ? base + (size_t)r * rows : NULL,
                                 ref + (size_t)r * rows);
            FOR_EACH_ISA(ops) {
                encode_rows(ops, x, n, cols, &codes);
                memset(y, 0x55, sizeof *y * n * rows);
                const struct cpu_product p = {
                    .w = &w.m, .n_rows = n, .codes = &codes, .base = with_base ? base : NULL, .y = y, .ldy = rows};
                ops->linear(&p, 0, w.m.n_panels);
                check_same("product", ops->isa, &f, y, ref, (size_t)n * rows);
            }
        }
        free_codes(&codes), free_pair(&w), free(x), free(y), free(ref), free(base);
    }
}

static void a_row_is_the_same_to_the_bit_beside_any_other_rows_and_at_any_split_of_panels(void **state) {
    (void)state;
    enum { ROWS = 100, COLS = 300, N = 70 };
    float *x = random_rows(N, COLS, 1), *all = zeroed(sizeof *all * N * ROWS), *one = zeroed(sizeof *one * N * ROWS);
    for (int k = 0; k < N_FORMATS; k++) {
        struct pair w = random_pair(formats[k], ROWS, COLS, false);
        struct cpu_codes codes = make_codes(N, COLS);
        FOR_EACH_ISA(ops) {
            encode_rows(ops, x, N, COLS, &codes);
            for (uint32_t r = 0; r < N; r++) {
                struct cpu_codes row = codes;
                row.code += (size_t)r * CPU_BLOCK;
                row.scale += r, row.sum += r;
                const struct cpu_product alone = {
                    .w = &w.m, .n_rows = 1, .codes = &row, .y = one + (size_t)r * ROWS, .ldy = ROWS};
                for (uint32_t p = 0; p < w.m.n_panels; p++) ops->linear(&alone, p, p + 1);
            }
            for (uint32_t n = 1; n <= N; n += n < 16 ? 1 : 9) {
                const struct cpu_product p = {.w = &w.m, .n_rows = n, .codes = &codes, .y = all, .ldy = ROWS};
                ops->linear(&p, 0, w.m.n_panels);
                check_same("rows together", ops->isa, &formats[k], all, one, (size_t)n * ROWS);
            }
        }
        free_codes(&codes), free_pair(&w);
    }
    free(x), free(all), free(one);
}

/* 16-bit activations: next to nothing is lost beside the weights that the codes stand for. */
static void products_are_those_of_the_weights_that_the_codes_stand_for(void **state) {
    (void)state;
    enum { ROWS = 70, COLS = 650, N = 5 };
    float *W = zeroed(sizeof *W * ROWS * COLS), *x = random_rows(N, COLS, 1), *y = zeroed(sizeof *y * N * ROWS),
          *ref = zeroed(sizeof *y * ROWS);
    for (int k = 0; k < N_FORMATS; k++) {
        struct pair w = random_pair(formats[k], ROWS, COLS, false);
        struct cpu_codes codes = make_codes(N, COLS);
        for (uint32_t o = 0; o < ROWS; o++)
            for (uint32_t c = 0; c < COLS; c++) {
                const size_t at = (size_t)o * w.plain.n_scales + (formats[k].row_scales ? 0 : c / CPU_BLOCK);
                const uint8_t code = w.plain.codes[(size_t)o * COLS + c];
                const int whole = !w.plain.int4 ? (int8_t)code : w.plain.zeros ? code - w.plain.zeros[at] : code - 8;
                W[(size_t)o * COLS + c] = w.plain.scales[at] * (float)whole;
            }
        FOR_EACH_ISA(ops) {
            encode_rows(ops, x, N, COLS, &codes);
            const struct cpu_product p = {.w = &w.m, .n_rows = N, .codes = &codes, .y = y, .ldy = ROWS};
            ops->linear(&p, 0, w.m.n_panels);
            for (uint32_t r = 0; r < N; r++) {
                double diff = 0, norm = 0;
                ref_linear(W, ROWS, COLS, x + (size_t)r * pad(COLS), ref);
                for (uint32_t o = 0; o < ROWS; o++) {
                    diff += pow((double)y[r * ROWS + o] - (double)ref[o], 2);
                    norm += pow((double)ref[o], 2);
                }
                if (!(sqrt(diff / norm) <= 1e-4))
                    fail_msg("%s, format %d, row %u: relative error %.3g > 1e-4", ops->isa, k, r, sqrt(diff / norm));
            }
        }
        free_codes(&codes), free_pair(&w);
    }
    free(W), free(x), free(y), free(ref);
}

static void an_activation_that_is_no_number_makes_no_finite_output(void **state) {
    (void)state;
    enum { ROWS = 40, COLS = 200, N = 3 };
    float *x = random_rows(N, COLS, 1), *y = zeroed(sizeof *y * N * ROWS);
    struct pair w = random_pair(formats[2], ROWS, COLS, false);
    struct cpu_codes codes = make_codes(N, COLS);
    for (int k = 0; k < 2; k++) {
        x[pad(COLS) + 150] = k ? INFINITY : NAN;
        FOR_EACH_ISA(ops) {
            encode_rows(ops, x, N, COLS, &codes);
            const struct cpu_product p = {.w = &w.m, .n_rows = N, .codes = &codes, .y = y, .ldy = ROWS};
            ops->linear(&p, 0, w.m.n_panels);
            for (uint32_t i = 0; i < N * ROWS; i++)
                if (!isfinite(y[i]) != (i / ROWS == 1))
                    fail_msg("%s: output %u of row %u is %g", ops->isa, i % ROWS, i / ROWS, (double)y[i]);
        }
    }
    free_codes(&codes), free_pair(&w), free(x), free(y);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_of_activations_are_the_twins_bits_also_of_zeros_and_of_tiny_and_huge_values),
        cmocka_unit_test(products_are_the_twins_bits_over_ragged_sizes_in_every_format),
        cmocka_unit_test(a_row_is_the_same_to_the_bit_beside_any_other_rows_and_at_any_split_of_panels),
        cmocka_unit_test(products_are_those_of_the_weights_that_the_codes_stand_for),
        cmocka_unit_test(an_activation_that_is_no_number_makes_no_finite_output),
    };
    if (argc == 2 && !strcmp(argv[1], "list")) {
        FOR_EACH_ISA(ops) printf("%s\n", ops->isa);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
