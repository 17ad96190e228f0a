/* test_products.c - linear.cu against ref_linear: one product, two as one launch, a row's bits in any batch. */
#include "broken.h"

/* Weights of about 1 / sqrt(K), so that results are of order 1. */
static float *random_weights(uint32_t O, uint32_t K, enum cuda_dtype dtype) {
    const double range = sqrt(3.0 / K);
    return host_random((size_t)O * K, -range, range, dtype);
}

/* One product as its readers see it, [n_rows][O]: partial products added in order. The rows of y lie ld apart, partial
 * products some more; what lies between must stay untouched. */
struct product {
    struct cuda_matrix m;
    uint32_t n_rows, splits;
    size_t ld, stride;
    float *y;
};
static struct product product_new(struct cuda_matrix m, uint32_t n_rows) {
    struct product p = {.m = m, .n_rows = n_rows, .splits = gpu.k->cuda_linear_splits(&m, n_rows)};
    p.ld = m.rows + gpu_pick(0, 3) * 4;
    p.stride = n_rows * p.ld + gpu_pick(0, 2) * 16;
    p.y = gpu_floats(p.splits * p.stride);
    return p;
}
static float *product_sum(const struct product *p) {
    float *all = gpu_fetch(p->y, p->splits * p->stride), *sum = host_floats((size_t)p->n_rows * p->m.rows);
    for (uint32_t r = 0; r < p->n_rows; r++)
        for (uint32_t s = 0; s < p->splits; s++) {
            const float *row = all + s * p->stride + r * p->ld;
            float *to = sum + (size_t)r * p->m.rows;
            for (uint32_t o = 0; o < p->m.rows; o++) to[o] = s ? to[o] + row[o] : row[o];
            gpu_check_poison("beside a product's outputs", row + p->m.rows, p->ld - p->m.rows);
        }
    return sum;
}
static float *multiply(struct cuda_matrix m, const float *x, uint32_t n_rows) {
    struct product p = product_new(m, n_rows);
    const void *act = gpu_act(x, n_rows, m.cols, m.dtype);
    broken_rows_of(n_rows, NULL, -1);
    OF_ACT(READ, act, n_rows, m.cols, m.dtype);
    OF_PARTS(WRITTEN, p.y, p.splits, p.stride, n_rows, p.ld);
    while (broken_again())
        GPU_RUN(k_linear, &(struct cuda_product){.w = &p.m, .x = act, .y = p.y, .ldy = p.ld, .stride = p.stride},
                n_rows);
    return gpu.breaks ? NULL : product_sum(&p);
}

/* All rows together: a row of one output may nearly cancel, and then its own size measures nothing. */
static void check_rows(const char *what, const float *W, uint32_t O, uint32_t K, const float *x, const float *y,
                       uint32_t n_rows) {
    const uint32_t step = (uint32_t)((double)n_rows * O * K / 4e7) + 1; /* some of the rows, the last one always */
    float *ref = host_floats((size_t)n_rows * O), *got = host_floats((size_t)n_rows * O);
    size_t n = 0;
    for (uint32_t r = 0; r < n_rows; r = r + step < n_rows || r + 1 == n_rows ? r + step : n_rows - 1, n += O) {
        ref_linear(W, O, K, x + (size_t)r * K, ref + n);
        memcpy(got + n, y + (size_t)r * O, O * sizeof *got);
    }
    gpu_check(what, got, ref, n, 1e-5, 0);
}

static void linear_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    (void)i;
    const uint32_t O = gpu_pick(1, 700), K = gpu_pick(0, 1) ? gpu_pick_width(900) : gpu_pick(1, 900);
    float *W = random_weights(O, K, dtype), *x = host_random((size_t)n_rows * K, -1.7, 1.7, dtype);
    struct cuda_matrix m = gpu_matrix(W, O, K, dtype);
    m.whole = gpu_pick(0, 1);
    GPU_WHAT(", O %u, K %u%s", O, K, m.whole ? ", whole" : "");
    const float *y = multiply(m, x, n_rows);
    if (y) check_rows("linear", W, O, K, x, y, n_rows);
}
static void a_product_equals_its_twin(void **state) {
    (void)state;
    gpu_rounds(linear_round);
}
static void a_row_of_nan_changes_no_other_row_of_a_product(void **state) {
    (void)state;
    broken_rounds(true, linear_round);
}

static void pair_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    const struct model_dims d = gpu_dims(i, false);
    const uint32_t K = gpu_pick_width(900), O[2] = {4 * d.M, gpu_pick(0, 1) ? d.R : gpu_pick(1, 200)};
    const bool whole = gpu_pick(0, 1);
    GPU_WHAT(", O %u and %u, K %u%s", O[0], O[1], K, whole ? ", whole" : "");
    float *W[2], *x[2];
    struct product p[2];
    void *act[2];
    for (int j = 0; j < 2; j++) {
        W[j] = random_weights(O[j], K, dtype);
        x[j] = host_random((size_t)n_rows * K, -1.7, 1.7, dtype);
        struct cuda_matrix m = gpu_matrix(W[j], O[j], K, dtype);
        m.whole = whole;
        act[j] = gpu_act(x[j], n_rows, K, dtype);
        p[j] = product_new(m, n_rows);
    }
    broken_rows_of(n_rows, NULL, -1);
    for (int j = 0; j < 2; j++) {
        OF_ACT(READ, act[j], n_rows, K, dtype);
        OF_PARTS(WRITTEN, p[j].y, p[j].splits, p[j].stride, n_rows, p[j].ld);
    }
    while (broken_again())
        GPU_RUN(k_linear_pair, &(struct cuda_product){&p[0].m, act[0], p[0].y, p[0].ld, p[0].stride},
                &(struct cuda_product){&p[1].m, act[1], p[1].y, p[1].ld, p[1].stride}, n_rows);
    for (int j = 0; j < 2 && !gpu.breaks; j++)
        check_rows(j ? "second of a pair" : "first of a pair", W[j], O[j], K, x[j], product_sum(&p[j]), n_rows);
}
static void two_products_in_one_launch_equal_their_twins(void **state) {
    (void)state;
    gpu_rounds(pair_round);
}
static void a_row_of_nan_changes_no_other_row_of_two_products(void **state) {
    (void)state;
    broken_rounds(true, pair_round);
}

/* The row alone, and beside as many others as there are, has the same bits: the law that batching rests on. In 16 bits
 * it has them too whether the kernel or its reader adds the parts. */
static void batch_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    (void)i;
    const uint32_t O = gpu_pick(1, 400), K = gpu_pick_width(i % 5 ? 900 : 4096);
    GPU_WHAT(", O %u, K %u", O, K);
    float *W = random_weights(O, K, dtype), *x = host_random((size_t)n_rows * K, -1.7, 1.7, dtype);
    struct cuda_matrix m = gpu_matrix(W, O, K, dtype);
    m.whole = gpu_pick(0, 1);
    float *all = multiply(m, x, n_rows);
    for (int j = 0; j < 4; j++) {
        const uint32_t n = j < 2 ? 1 : gpu_pick(1, n_rows), r = j == 0 ? n_rows - n : gpu_pick(0, n_rows - n);
        gpu_check_same("rows of a product among others", all + (size_t)r * O, multiply(m, x + (size_t)r * K, n),
                       (size_t)n * O);
    }
    m.whole = !m.whole;
    if (dtype != CUDA_F32)
        gpu_check_same("a product in parts and whole", all, multiply(m, x, n_rows), (size_t)n_rows * O);
}
static void a_row_of_a_product_has_the_same_bits_in_any_batch(void **state) {
    (void)state;
    gpu_rounds(batch_round);
}

static void published_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    static const uint32_t sizes[][2] = {{8192, 2048}, {2048, 4096}, {2304, 2048}, {5472, 2048}, {2048, 2736}};
    const uint32_t O = sizes[i % 5][0], K = sizes[i % 5][1];
    if (i >= 15 && !gpu.n_shapes) return;
    float *W = random_weights(O, K, dtype), *x = host_random((size_t)n_rows * K, -1.7, 1.7, dtype);
    struct cuda_matrix m = gpu_matrix(W, O, K, dtype);
    m.whole = gpu_pick(0, 1);
    GPU_WHAT(", O %u, K %u%s", O, K, m.whole ? ", whole" : "");
    check_rows("linear", W, O, K, x, multiply(m, x, n_rows), n_rows);
}
static void products_of_the_published_sizes_equal_their_twins(void **state) {
    (void)state;
    gpu_rounds(published_round);
}

/* Rows for a library; what lies behind them stays. */
static void plain_rows_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    (void)i;
    if (dtype == CUDA_F32) return;
    const uint32_t K = gpu_pick(1, 900), ld = cuda_pad16(K);
    GPU_WHAT(", K %u", K);
    const float *x = host_random((size_t)n_rows * K, -1.7, 1.7, dtype);
    const size_t n = (size_t)n_rows * ld;
    uint16_t *to = gpu_bytes((n + 64) * 2);
    GPU_RUN(k_plain_rows, gpu_act(x, n_rows, K, dtype), n_rows, K, to);
    const float *got = gpu_fetch_typed(to, n, dtype);
    for (uint32_t r = 0; r < n_rows; r++) {
        gpu_check_same("plain rows", got + (size_t)r * ld, x + (size_t)r * K, K);
        gpu_check_same("their padding", got + (size_t)r * ld + K, (const float[16]){0}, ld - K);
    }
    gpu_check_poison("behind plain rows", (const float *)(const void *)gpu_fetch((float *)(void *)(to + n), 32), 32);
}
static void plain_rows_are_the_packed_ones(void **state) {
    (void)state;
    gpu_rounds_of(false, plain_rows_round);
}

GPU_MAIN(cmocka_unit_test(plain_rows_are_the_packed_ones), cmocka_unit_test(a_product_equals_its_twin),
         cmocka_unit_test(two_products_in_one_launch_equal_their_twins),
         cmocka_unit_test(a_row_of_a_product_has_the_same_bits_in_any_batch),
         cmocka_unit_test(products_of_the_published_sizes_equal_their_twins),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_of_a_product),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_of_two_products))
