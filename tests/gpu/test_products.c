/* test_products.c - linear.cu against ref_linear: one product, two as one launch, a row's bits in any batch. */
#include "gpu.h"

/* Weights of about 1 / sqrt(K), so that results are of order 1. */
static float *random_weights(uint32_t O, uint32_t K, enum cuda_dtype dtype) {
    const double range = sqrt(3.0 / K);
    return host_random((size_t)O * K, -range, range, dtype);
}

/* y [splits][n_rows][ld] -> [n_rows][O], the partial products added in order; what lies between O and ld is untouched.
 */
static float *add_splits(const float *device, uint32_t splits, uint32_t n_rows, uint32_t O, size_t ld, size_t stride) {
    float *all = gpu_fetch(device, splits * stride), *sum = host_floats((size_t)n_rows * O);
    for (uint32_t p = 0; p < splits; p++)
        for (uint32_t r = 0; r < n_rows; r++) {
            const float *row = all + p * stride + r * ld;
            for (uint32_t o = 0; o < O; o++) sum[(size_t)r * O + o] += row[o];
            gpu_check_poison("beside a product's outputs", row + O, ld - O);
        }
    return sum;
}

static void check_rows(const char *what, const float *W, uint32_t O, uint32_t K, const float *x, const float *y,
                       uint32_t n_rows) {
    float *ref = host_floats(O);
    const uint32_t step = (uint32_t)((double)n_rows * O * K / 4e7) + 1; /* some of the rows, the last one always */
    for (uint32_t r = 0; r < n_rows; r = r + step < n_rows || r + 1 == n_rows ? r + step : n_rows - 1) {
        ref_linear(W, O, K, x + (size_t)r * K, ref);
        gpu_check(what, y + (size_t)r * O, ref, O, 1e-5, 0);
    }
}

static uint32_t pick_splits(uint32_t K) { /* at most one a tile of k */
    uint32_t tiles = cuda_pad16(K) / 16;
    return gpu_pick(1, tiles < 16 ? tiles : 16);
}

static void linear_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    (void)i;
    const uint32_t O = gpu_pick(1, 700), K = gpu_pick(0, 1) ? gpu_pick_width(900) : gpu_pick(1, 900);
    const uint32_t splits = pick_splits(K), ld = O + gpu_pick(0, 3) * 4;
    const size_t stride = (size_t)n_rows * ld + gpu_pick(0, 2) * 16;
    GPU_WHAT(", O %u, K %u, %u splits", O, K, splits);
    float *W = random_weights(O, K, dtype), *x = host_random((size_t)n_rows * K, -1.7, 1.7, dtype);
    struct cuda_matrix m = gpu_matrix(W, O, K, splits, dtype);
    float *y = gpu_floats(splits * stride);
    GPU_RUN(k_linear, &m, gpu_act(x, n_rows, K, dtype), n_rows, y, ld, stride);
    check_rows("linear", W, O, K, x, add_splits(y, splits, n_rows, O, ld, stride), n_rows);
}
static void a_product_equals_its_twin(void **state) {
    (void)state;
    gpu_rounds(linear_round);
}

static void pair_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    const struct model_dims d = gpu_dims(i, false);
    const uint32_t K = gpu_pick_width(900), O[2] = {4 * d.M, gpu_pick(0, 1) ? d.R : gpu_pick(1, 200)};
    const uint32_t splits = pick_splits(K);
    GPU_WHAT(", O %u and %u, K %u, %u splits", O[0], O[1], K, splits);
    float *W[2], *x[2], *y[2];
    struct cuda_matrix m[2];
    void *act[2];
    for (int j = 0; j < 2; j++) {
        W[j] = random_weights(O[j], K, dtype);
        x[j] = host_random((size_t)n_rows * K, -1.7, 1.7, dtype);
        m[j] = gpu_matrix(W[j], O[j], K, splits, dtype);
        act[j] = gpu_act(x[j], n_rows, K, dtype);
        y[j] = gpu_floats((size_t)splits * n_rows * O[j]);
    }
    GPU_RUN(k_linear_pair, &m[0], act[0], y[0], O[0], (size_t)n_rows * O[0], &m[1], act[1], y[1], O[1],
            (size_t)n_rows * O[1], n_rows);
    for (int j = 0; j < 2; j++)
        check_rows(j ? "second of a pair" : "first of a pair", W[j], O[j], K, x[j],
                   add_splits(y[j], splits, n_rows, O[j], O[j], (size_t)n_rows * O[j]), n_rows);
}
static void two_products_in_one_launch_equal_their_twins(void **state) {
    (void)state;
    gpu_rounds(pair_round);
}

/* The row alone, and beside as many others as fit, give the same bits: the law that batching rests on. */
static void batch_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    (void)i;
    const uint32_t O = gpu_pick(1, 400), K = gpu_pick_width(900), splits = pick_splits(K);
    GPU_WHAT(", O %u, K %u, %u splits", O, K, splits);
    float *W = random_weights(O, K, dtype), *x = host_random((size_t)n_rows * K, -1.7, 1.7, dtype);
    struct cuda_matrix m = gpu_matrix(W, O, K, splits, dtype);
    float *y = gpu_floats((size_t)splits * n_rows * O), *one = gpu_floats((size_t)splits * O);
    GPU_RUN(k_linear, &m, gpu_act(x, n_rows, K, dtype), n_rows, y, O, (size_t)n_rows * O);
    float *all = gpu_fetch(y, (size_t)splits * n_rows * O);
    for (int j = 0; j < 3; j++) {
        uint32_t r = j == 0 ? n_rows - 1 : gpu_pick(0, n_rows - 1);
        GPU_RUN(k_linear, &m, gpu_act(x + (size_t)r * K, 1, K, dtype), 1, one, O, O);
        float *alone = gpu_fetch(one, (size_t)splits * O);
        for (uint32_t p = 0; p < splits; p++)
            gpu_check_same("a row of a product and the row alone", all + ((size_t)p * n_rows + r) * O,
                           alone + (size_t)p * O, O);
    }
}
static void a_row_of_a_product_has_the_same_bits_in_any_batch(void **state) {
    (void)state;
    gpu_rounds(batch_round);
}

static void published_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    static const uint32_t sizes[][2] = {{8192, 2048}, {2048, 4096}, {2304, 2048}, {5472, 2048}, {2048, 2736}};
    const uint32_t O = sizes[i % 5][0], K = sizes[i % 5][1], splits = gpu_pick(1, 8);
    if (i >= 15) return;
    GPU_WHAT(", O %u, K %u, %u splits", O, K, splits);
    float *W = random_weights(O, K, dtype), *x = host_random((size_t)n_rows * K, -1.7, 1.7, dtype);
    struct cuda_matrix m = gpu_matrix(W, O, K, splits, dtype);
    float *y = gpu_floats((size_t)splits * n_rows * O);
    GPU_RUN(k_linear, &m, gpu_act(x, n_rows, K, dtype), n_rows, y, O, (size_t)n_rows * O);
    check_rows("linear", W, O, K, x, add_splits(y, splits, n_rows, O, O, (size_t)n_rows * O), n_rows);
}
static void products_of_the_published_sizes_equal_their_twins(void **state) {
    (void)state;
    gpu_rounds(published_round);
}

GPU_MAIN(cmocka_unit_test(a_product_equals_its_twin), cmocka_unit_test(two_products_in_one_launch_equal_their_twins),
         cmocka_unit_test(a_row_of_a_product_has_the_same_bits_in_any_batch),
         cmocka_unit_test(products_of_the_published_sizes_equal_their_twins))
