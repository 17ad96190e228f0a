/* test_decode.c - decode.cu and wide.cu: the fused products of steps of single tokens against their twins. Widths are
 * what cuda_fused_possible asks for; a device that lacks them has nothing to test. */
#include "broken.h"

enum { LAYERS = 2 };

/* The operand of a product whose norm's scale comes after it, as 16 bits have it, times that scale: [n_rows][D]. */
struct normed {
    float *x, *h;
    const float *operand, *tiles; /* what the device has, on the host; squares by 16 columns */
    struct cuda_normed device;
};
static struct cuda_normed normed_rows(const struct normed *in, uint32_t first, uint32_t n_rows, uint32_t D,
                                      enum cuda_dtype dtype) {
    const float *squares = gpu_square_sums(in->tiles + (size_t)first * (D / 16), n_rows, D);
    return (struct cuda_normed){gpu_act(in->operand + (size_t)first * D, n_rows, D, dtype),
                                gpu_from(squares, (size_t)n_rows * cuda_square_sums(n_rows, D)), 1e-5f, D};
}
static struct normed random_normed(uint32_t n_rows, uint32_t D, enum cuda_dtype dtype) {
    struct normed in = {.x = host_random((size_t)n_rows * D, -3, 3, CUDA_F32), .h = host_floats((size_t)n_rows * D)};
    const float *w = host_random(D, 0.5, 1.5, CUDA_F32), down = dtype == CUDA_F16 ? 1.0f / 16 : 1;
    for (size_t i = 0; i < (size_t)n_rows * D; i++) in.h[i] = gpu_round(in.x[i] * w[i % D] * down, dtype);
    in.operand = host_copy(in.h, (size_t)n_rows * D), in.tiles = gpu_square_tiles(in.x, n_rows, D);
    in.device = normed_rows(&in, 0, n_rows, D, dtype);
    for (uint32_t r = 0; r < n_rows; r++) {
        double squares = 0;
        for (uint32_t j = 0; j < D; j++) squares += (double)in.x[(size_t)r * D + j] * (double)in.x[(size_t)r * D + j];
        const double scale = 1 / sqrt(squares / D + 1e-5) / (double)down;
        for (uint32_t j = 0; j < D; j++) in.h[(size_t)r * D + j] = (float)((double)in.h[(size_t)r * D + j] * scale);
    }
    return in;
}

static void name_normed(const struct cuda_normed *in, uint32_t n_rows, enum cuda_dtype dtype) { /* of broken.h */
    OF_ACT(READ, in->act, n_rows, in->D, dtype);
    OF_ROWS(READ, in->squares, n_rows, cuda_square_sums(n_rows, in->D));
}

static float *random_weights(uint32_t O, uint32_t K, enum cuda_dtype dtype) {
    const double range = sqrt(3.0 / K);
    return host_random((size_t)O * K, -range, range, dtype);
}
static float *twin_product(const float *W, uint32_t O, uint32_t K, const float *x, uint32_t n_rows) {
    float *y = host_floats((size_t)n_rows * O);
    for (uint32_t r = 0; r < n_rows; r++) ref_linear(W, O, K, x + (size_t)r * K, y + (size_t)r * O);
    return y;
}

/* So many outputs of so many rows that tall.cu takes them: 80 tiles of 128 by 128. */
static bool is_tall(uint32_t n_rows) { return n_rows == 129 || n_rows == 300; }
enum { TALL_OUTPUTS = 5200, HEAD_OUTPUTS = 400 * 128 }; /* the latter: few_kernel has a head's */
/* So many inputs and outputs that few_round_kernel takes them, of 132 multiprocessors; of 17 rows, those of a part. */
static bool is_round(uint32_t n_rows) { return n_rows == 7 || n_rows == 17; }
enum { ROUND_OUTPUTS = 264 * 16 };

/* Sizes of a round; false: not for this device or type. */
static bool sizes(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i, struct cuda_shape *s) {
    const struct model_dims d = gpu_dims(i, false);
    *s = (struct cuda_shape){.D = 16 * gpu_pick(1, i % 5 || n_rows > 40 ? 40 : 128),
                             .E = 16 * gpu_pick(1, 60),
                             .M = d.M,
                             .R = d.R,
                             .K = gpu_pick(2, 8),
                             .F = gpu_pick_width(900),
                             .H = 2,
                             .P = 64,
                             .dtype = dtype};
    if (is_tall(n_rows)) s->D = 16 * gpu_pick(16, 40); /* no slice of k is empty */
    if (n_rows == 16) s->D = 256 * gpu_pick(1, 5); /* slices of one length, that few_kernel's sums fit into or not */
    if (is_round(n_rows)) s->D = 2048, s->E = 16 * gpu_pick(133, 256), s->F = 8 * gpu_pick(265, 528);
    s->Ep = (s->E + 31) / 32 * 32;
    s->conv_ring = s->K + gpu_pick(0, CUDA_DRAFTS);
    s->conv_layer = (size_t)s->conv_ring * s->Ep, s->conv_slot = s->conv_layer * LAYERS;
    snprintf(gpu.what, sizeof gpu.what, "%u rows, %s, D %u, E %u, F %u", n_rows, gpu_dtype_name(dtype), s->D, s->E,
             s->F);
    return gpu.k->cuda_fused_possible(s);
}

static void linear_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct cuda_shape s;
    if (!sizes(n_rows, dtype, i, &s)) return;
    const uint32_t O = gpu_pick(1, 900) + (is_tall(n_rows)    ? TALL_OUTPUTS
                                           : is_round(n_rows) ? ROUND_OUTPUTS
                                           : n_rows == 9      ? HEAD_OUTPUTS
                                                              : 0),
                   ld = O + gpu_pick(0, 3) * 4;
    GPU_WHAT(", O %u", O);
    struct normed in = random_normed(n_rows, s.D, dtype);
    float *W = random_weights(O, s.D, dtype), *y = gpu_floats((size_t)n_rows * ld);
    struct cuda_matrix m = gpu_matrix(W, O, s.D, dtype);
    broken_rows_of(n_rows, NULL, -1);
    name_normed(&in.device, n_rows, dtype);
    OF_ROWS(WRITTEN, y, n_rows, ld);
    while (broken_again()) GPU_RUN(k_fused_linear, &m, &in.device, n_rows, y, ld);
    if (gpu.breaks) return;
    float *got = gpu_fetch(y, (size_t)n_rows * ld), *ref = twin_product(W, O, s.D, in.h, n_rows);
    for (uint32_t r = 0; r < n_rows; r++) {
        gpu_check("norm and product", got + (size_t)r * ld, ref + (size_t)r * O, O, 1e-5, 0);
        gpu_check_poison("beside a product's outputs", got + (size_t)r * ld + O, ld - O);
    }
}
static void a_product_of_a_norm_equals_its_twin(void **state) {
    (void)state;
    gpu_rounds(linear_round);
}
static void a_row_of_nan_changes_no_other_row_of_a_product(void **state) {
    (void)state;
    broken_rounds(false, linear_round);
}

static void conv_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct cuda_shape s;
    if (!sizes(n_rows, dtype, i, &s)) return;
    const uint32_t E = s.E, Ep = s.Ep, K = s.K, D = s.D, layer = gpu_pick(0, LAYERS - 1);
    struct gpu_rows rows = gpu_make_rows(n_rows, 1, 9);
    GPU_WHAT(", K %u", K);
    struct normed in = random_normed(n_rows, D, dtype);
    float *W = random_weights(2 * E, D, dtype), *w = host_random((size_t)K * Ep, -1, 1, CUDA_F32),
          *bias = host_random(E, -1, 1, CUDA_F32);
    struct cuda_matrix m = {.rows = 2 * Ep, .cols = D, .dtype = dtype, .whole = true};
    m.data = gpu_zeros(gpu.k->cuda_matrix_bytes(2 * Ep, D, dtype));
    for (uint32_t half = 0; half < 2; half++) /* a from row 0, z from row Ep */
        GPU_RUN(k_pack, gpu_from(W + (size_t)half * E * D, (size_t)E * D), CUDA_F32, half * Ep, E, D, CUDA_PACK_ROWS,
                &m);
    const size_t n_pool = (rows.n_slots + 1) * s.conv_slot, n = (size_t)n_rows * E;
    float *pool = host_random(n_pool, -2, 2, dtype);
    s.conv = gpu_from_typed(pool, n_pool, dtype);
    float *at_az = gpu_floats((size_t)n_rows * 2 * Ep), *at_s = gpu_floats((size_t)n_rows * Ep);
    void *s_act = gpu_act_out(n_rows, E, dtype), *a_act = gpu_act_out(n_rows, E, dtype);
    const float *at_w = gpu_from(w, (size_t)K * Ep), *at_bias = gpu_from(bias, E);
    broken_rows_of(n_rows, rows.slot, -1);
    name_normed(&in.device, n_rows, dtype);
    OF_SLOTS(READ | WRITTEN, s.conv, rows.n_slots + 1, s.conv_slot, dtype);
    OF_ROWS(WRITTEN, at_az, n_rows, 2 * Ep);
    OF_ROWS(WRITTEN, at_s, n_rows, Ep);
    OF_ACT(WRITTEN, s_act, n_rows, E, dtype);
    OF_ACT(WRITTEN, a_act, n_rows, E, dtype);
    while (broken_again())
        GPU_RUN(k_fused_conv,
                &(struct cuda_conv){.shape = s,
                                    .layer = layer,
                                    .rows = rows.device,
                                    .n_rows = n_rows,
                                    .w = at_w,
                                    .bias = at_bias,
                                    .az = at_az,
                                    .s = at_s,
                                    .s_act = s_act,
                                    .a_act = a_act},
                &m, &in.device);
    if (gpu.breaks) return;
    float *az = gpu_fetch(at_az, (size_t)n_rows * 2 * Ep), *got = gpu_fetch(at_s, (size_t)n_rows * Ep),
          *ref_az = twin_product(W, 2 * E, D, in.h, n_rows), *ref_s = host_floats(n), *got_s = host_floats(n),
          *ref_a = host_floats(n);
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *a = az + (size_t)r * 2 * Ep;
        gpu_check("a", a, ref_az + (size_t)r * 2 * E, E, 1e-5, 0);
        gpu_check("z", a + Ep, ref_az + (size_t)r * 2 * E + E, E, 1e-5, 0);
        float *tail = pool + (size_t)rows.slot[r] * s.conv_slot + layer * s.conv_layer;
        const float *tap[8]; /* of the product as it came, whose twin is checked above */
        for (uint32_t j = 0; j < K; j++) tap[j] = j + 1 == K ? a : tail + conv_place(&s, rows.pos[r], K - 1 - j) * Ep;
        ref_conv_silu(tap, K, w, Ep, bias, E, ref_s + (size_t)r * E);
        memcpy(got_s + (size_t)r * E, got + (size_t)r * Ep, E * sizeof *got);
        for (uint32_t e = 0; e < E; e++)
            tail[conv_place(&s, rows.pos[r], 0) * Ep + e] = ref_a[(size_t)r * E + e] = gpu_round(a[e], dtype);
    }
    gpu_check("convolution", got_s, ref_s, n, 2e-6, 0);
    gpu_check("convolution, packed", gpu_fetch_act(s_act, n_rows, E, dtype), ref_s, n, 2e-6, gpu_ulp(dtype));
    gpu_check_same("its input, packed", gpu_fetch_act(a_act, n_rows, E, dtype), ref_a, n);
    gpu_check_same("the tails of all slots", gpu_fetch_typed(s.conv, n_pool, dtype), pool, n_pool);
}
static void a_product_with_its_convolution_equals_its_twins(void **state) {
    (void)state;
    gpu_rounds(conv_round);
}
static void a_row_of_nan_changes_no_other_row_s_convolution(void **state) {
    (void)state;
    broken_rounds(false, conv_round);
}

static void ffn_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct cuda_shape s;
    if (!sizes(n_rows, dtype, i, &s)) return;
    const uint32_t F = s.F + (is_tall(n_rows) ? TALL_OUTPUTS / 2 : 0), D = s.D;
    struct normed in = random_normed(n_rows, D, dtype);
    float *W = random_weights(2 * F, D, dtype);
    struct cuda_matrix m = {.rows = 2 * F, .cols = D, .dtype = dtype};
    m.data = gpu_zeros(gpu.k->cuda_matrix_bytes(2 * F, D, dtype));
    GPU_RUN(k_pack, gpu_from(W, (size_t)F * D), CUDA_F32, 0, F, D, CUDA_PACK_FIRST_EIGHTS, &m);
    GPU_RUN(k_pack, gpu_from(W + (size_t)F * D, (size_t)F * D), CUDA_F32, 0, F, D, CUDA_PACK_SECOND_EIGHTS, &m);
    void *act = gpu_act_out(n_rows, F, dtype);
    broken_rows_of(n_rows, NULL, -1);
    name_normed(&in.device, n_rows, dtype);
    OF_ACT(WRITTEN, act, n_rows, F, dtype);
    while (broken_again()) GPU_RUN(k_fused_ffn, &m, &in.device, n_rows, act);
    if (gpu.breaks) return;
    float *y = twin_product(W, 2 * F, D, in.h, n_rows), *ref = host_floats((size_t)n_rows * F);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t f = 0; f < F; f++) {
            const double a = (double)y[(size_t)r * 2 * F + f], g = (double)y[(size_t)r * 2 * F + F + f];
            ref[(size_t)r * F + f] = (float)(a * g / (1 + exp(-g)));
        }
    gpu_check("FFN gate of a product", gpu_fetch_act(act, n_rows, F, dtype), ref, (size_t)n_rows * F, 2e-5,
              gpu_ulp(dtype));
}
static void a_product_with_the_gate_of_the_ffn_equals_its_twins(void **state) {
    (void)state;
    gpu_rounds(ffn_round);
}
static void a_row_of_nan_changes_no_other_row_s_gate(void **state) {
    (void)state;
    broken_rounds(false, ffn_round);
}

static void residual_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct cuda_shape s;
    if (!sizes(n_rows, dtype, i, &s)) return;
    const uint32_t D = is_tall(n_rows) ? TALL_OUTPUTS : s.D,
                   K = n_rows == 9      ? 256 * gpu_pick(1, 9)
                       : gpu_pick(0, 1) ? s.E
                                        : s.F,
                   n_sums = gpu_pick(0, 1) ? s.Ep / 32 : 0;
    const bool in_place = gpu_pick(0, 1);
    GPU_WHAT(", k %u, %u sums", K, n_sums);
    const size_t n = (size_t)n_rows * D;
    float *W = random_weights(D, K, dtype), *x = host_random((size_t)n_rows * K, -1.7, 1.7, dtype),
          *base = host_random(n, -3, 3, CUDA_F32), *sums = host_random((size_t)n_rows * n_sums, 1, 60, CUDA_F32);
    struct cuda_matrix m = gpu_matrix(W, D, K, dtype);
    const size_t n_squares = (size_t)n_rows * cuda_square_sums(n_rows, D);
    float *at_base = gpu_from(base, n), *y = in_place ? at_base : gpu_floats(n), *squares = gpu_floats(n_squares);
    float *w = host_random(D, 0.5, 1.5, CUDA_F32);
    void *act = gpu_act_out(n_rows, D, dtype);
    const void *at_x = gpu_act(x, n_rows, K, dtype);
    const float *at_sums = n_sums ? gpu_from(sums, (size_t)n_rows * n_sums) : NULL, *at_w = gpu_from(w, D);
    broken_rows_of(n_rows, NULL, -1);
    OF_ACT(READ, at_x, n_rows, K, dtype);
    OF_ROWS(READ, at_sums, n_rows, n_sums);
    OF_ROWS(in_place ? READ | WRITTEN : READ, at_base, n_rows, D);
    if (!in_place) OF_ROWS(WRITTEN, y, n_rows, D);
    OF_ROWS(WRITTEN, squares, n_rows, cuda_square_sums(n_rows, D));
    OF_ACT(WRITTEN, act, n_rows, D, dtype);
    while (broken_again())
        GPU_RUN(k_fused_residual,
                &(struct cuda_residual){.w = &m,
                                        .x = at_x,
                                        .sums = {at_sums, n_sums, 32 * n_sums, 1e-5f},
                                        .base = at_base,
                                        .y = y,
                                        .next_norm = at_w,
                                        .act = act,
                                        .squares = squares},
                n_rows);
    if (gpu.breaks) return;
    float *ref = twin_product(W, D, K, x, n_rows), *got = gpu_fetch(y, n);
    for (uint32_t r = 0; r < n_rows; r++) {
        double total = 0;
        for (uint32_t j = 0; j < n_sums; j++) total += (double)sums[(size_t)r * n_sums + j];
        const double scale = n_sums ? 1 / sqrt(total / (32 * n_sums) + 1e-5) : 1;
        for (uint32_t o = 0; o < D; o++)
            ref[(size_t)r * D + o] = (float)((double)base[(size_t)r * D + o] + scale * (double)ref[(size_t)r * D + o]);
    }
    gpu_check("residual", got, ref, n, 1e-5, 0);
    float *operand = host_floats(n);
    for (size_t k = 0; k < n; k++) operand[k] = gpu_round(got[k] * w[k % D] * (dtype == CUDA_F16 ? 0.0625f : 1), dtype);
    gpu_check_same("operand of the next norm", gpu_fetch_act(act, n_rows, D, dtype), operand, n);
    gpu_check("its squares", gpu_fetch(squares, n_squares),
              gpu_square_sums(gpu_square_tiles(got, n_rows, D), n_rows, D), n_squares, 1e-6, 0);
}
static void a_product_added_to_the_stream_equals_its_twins(void **state) {
    (void)state;
    gpu_rounds(residual_round);
}
static void a_row_of_nan_changes_no_other_row_of_the_stream(void **state) {
    (void)state;
    broken_rounds(false, residual_round);
}

static void pair_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct cuda_shape s;
    if (!sizes(n_rows, dtype, i, &s)) return;
    const uint32_t K = s.E, O[2] = {4 * s.M, s.R}, splits = cuda_fused_pair_splits(n_rows);
    float *W[2], *x[2], *y[2];
    struct cuda_matrix m[2];
    void *act[2];
    for (int j = 0; j < 2; j++) {
        W[j] = random_weights(O[j], K, dtype);
        x[j] = host_random((size_t)n_rows * K, -1.7, 1.7, dtype);
        m[j] = gpu_matrix(W[j], O[j], K, dtype);
        act[j] = gpu_act(x[j], n_rows, K, dtype);
        y[j] = gpu_floats((size_t)splits * n_rows * O[j]);
    }
    broken_rows_of(n_rows, NULL, -1);
    for (int j = 0; j < 2; j++) {
        OF_ACT(READ, act[j], n_rows, K, dtype);
        OF_PARTS(WRITTEN, y[j], splits, (size_t)n_rows * O[j], n_rows, O[j]);
    }
    while (broken_again())
        GPU_RUN(k_fused_linear_pair, &(struct cuda_product){&m[0], act[0], y[0], O[0], (size_t)n_rows * O[0]},
                &(struct cuda_product){&m[1], act[1], y[1], O[1], (size_t)n_rows * O[1]}, n_rows);
    for (int j = 0; j < 2 && !gpu.breaks; j++) {
        const size_t n = (size_t)n_rows * O[j];
        float *parts = gpu_fetch(y[j], splits * n), *sum = host_floats(n);
        for (size_t p = 0; p < splits; p++)
            for (size_t k = 0; k < n; k++) sum[k] += parts[p * n + k];
        gpu_check(j ? "second of a pair" : "first of a pair", sum, twin_product(W[j], O[j], K, x[j], n_rows), n, 1e-5,
                  0);
    }
}
static void two_small_products_equal_their_twins(void **state) {
    (void)state;
    gpu_rounds(pair_round);
}
static void a_row_of_nan_changes_no_other_row_of_two_small_products(void **state) {
    (void)state;
    broken_rounds(false, pair_round);
}

/* The convolution and what reads it as one kernel, against its twins and, to the bit, against the kernels that it
 * stands for. */
static void conv_pair_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct cuda_shape s;
    if (n_rows > CUDA_CONV_PAIR_ROWS) n_rows = gpu_pick(1, CUDA_CONV_PAIR_ROWS); /* more are never asked for */
    if (!sizes(n_rows, dtype, i, &s)) return;
    if (i % 4 == 1) s.E = s.Ep = 4096; /* the widest: slices of 16 tiles of k */
    s.K = gpu_pick(2, 4);
    s.conv_ring = s.K + gpu_pick(0, CUDA_DRAFTS);
    s.conv_layer = (size_t)s.conv_ring * s.Ep, s.conv_slot = s.conv_layer * LAYERS;
    const uint32_t E = s.E, Ep = s.Ep, K = s.K, O[2] = {4 * s.M, s.R}, layer = gpu_pick(0, LAYERS - 1);
    if (!gpu.k->cuda_conv_pair_possible(&s)) fail_msg("conv_pair must be possible wherever the fused products are");
    struct gpu_rows rows = gpu_make_rows(n_rows, 1, 9);
    GPU_WHAT(", K %u, M %u, R %u", K, s.M, s.R);
    const size_t n_az = (size_t)n_rows * 2 * Ep, n_pool = (rows.n_slots + 1) * s.conv_slot, n = (size_t)n_rows * E;
    float *az = host_random(n_az, -2, 2, CUDA_F32), *w = host_random((size_t)K * Ep, -1, 1, CUDA_F32),
          *bias = host_random(E, -1, 1, CUDA_F32), *pool = host_random(n_pool, -2, 2, dtype);
    float *W[2] = {random_weights(O[0], E, dtype), random_weights(O[1], E, dtype)}, *y[2];
    const struct cuda_matrix m[2] = {gpu_matrix(W[0], O[0], E, dtype), gpu_matrix(W[1], O[1], E, dtype)};
    float *at_s = gpu_floats((size_t)n_rows * Ep);
    size_t stride[2];
    for (int j = 0; j < 2; j++) {
        stride[j] = (size_t)n_rows * O[j] + gpu_pick(0, 3);
        y[j] = gpu_floats(4 * stride[j]);
    }
    s.conv = gpu_from_typed(pool, n_pool, dtype);
    float *at_az = gpu_from(az, n_az);
    const float *at_w = gpu_from(w, (size_t)K * Ep), *at_bias = gpu_from(bias, E);
    broken_rows_of(n_rows, rows.slot, -1);
    OF_ROWS(READ, at_az, n_rows, 2 * Ep);
    OF_SLOTS(READ | WRITTEN, s.conv, rows.n_slots + 1, s.conv_slot, dtype);
    OF_ROWS(WRITTEN, at_s, n_rows, Ep);
    for (int j = 0; j < 2; j++) OF_PARTS(WRITTEN, y[j], 4, stride[j], n_rows, O[j]);
    while (broken_again())
        GPU_RUN(k_conv_pair,
                &(struct cuda_conv){.shape = s,
                                    .layer = layer,
                                    .rows = rows.device,
                                    .n_rows = n_rows,
                                    .w = at_w,
                                    .bias = at_bias,
                                    .az = at_az,
                                    .s = at_s},
                &(struct cuda_product){.w = &m[0], .y = y[0], .ldy = O[0], .stride = stride[0]},
                &(struct cuda_product){.w = &m[1], .y = y[1], .ldy = O[1], .stride = stride[1]});
    if (gpu.breaks) return;
    float *got = gpu_fetch(at_s, (size_t)n_rows * Ep), *ref_s = host_floats(n), *got_s = host_floats(n),
          *x[2] = {host_floats(n), host_floats(n)}; /* operands as 16 bits have them */
    for (uint32_t r = 0; r < n_rows; r++) {
        const float *a = az + (size_t)r * 2 * Ep;
        float *tail = pool + (size_t)rows.slot[r] * s.conv_slot + layer * s.conv_layer;
        const float *tap[8];
        for (uint32_t j = 0; j < K; j++) tap[j] = j + 1 == K ? a : tail + conv_place(&s, rows.pos[r], K - 1 - j) * Ep;
        ref_conv_silu(tap, K, w, Ep, bias, E, ref_s + (size_t)r * E);
        memcpy(got_s + (size_t)r * E, got + (size_t)r * Ep, E * sizeof *got);
        for (uint32_t e = 0; e < E; e++) {
            const size_t at = (size_t)r * E + e;
            x[0][at] = gpu_round(got_s[at], dtype);
            tail[conv_place(&s, rows.pos[r], 0) * Ep + e] = x[1][at] = gpu_round(a[e], dtype);
        }
    }
    gpu_check("convolution", got_s, ref_s, n, 2e-6, 0);
    gpu_check_same("the tails of all slots", gpu_fetch_typed(s.conv, n_pool, dtype), pool, n_pool);
    for (int j = 0; j < 2; j++) {
        const size_t all = (size_t)n_rows * O[j];
        float *parts = gpu_fetch(y[j], 4 * stride[j]), *sum = host_floats(all);
        for (size_t q = 0; q < 4; q++) {
            for (size_t k = 0; k < all; k++) sum[k] = q ? sum[k] + parts[q * stride[j] + k] : parts[k];
            gpu_check_poison("beside a quarter", parts + q * stride[j] + all, stride[j] - all);
        }
        gpu_check(j ? "product of a" : "product of s", sum, twin_product(W[j], O[j], E, x[j], n_rows), all, 1e-5, 0);
        struct cuda_matrix whole = m[j];
        whole.whole = true;
        float *one = gpu_floats(all);
        GPU_RUN(k_linear,
                &(struct cuda_product){.w = &whole, .x = gpu_act(x[j], n_rows, E, dtype), .y = one, .ldy = O[j]},
                n_rows);
        gpu_check_same("the product alone", sum, gpu_fetch(one, all), all);
    }
}
static void the_convolution_and_what_reads_it_equal_their_twins(void **state) {
    (void)state;
    gpu_rounds(conv_pair_round);
}
static void a_row_of_nan_changes_no_other_row_s_convolution_and_products(void **state) {
    (void)state;
    broken_rounds(false, conv_pair_round);
}

/* A token and its drafts, each with the tokens before it as taps, against the same rows in steps of their own: the
 * product with its convolution, and the convolution with what reads it. */
static void draft_conv_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct cuda_shape s;
    if (n_rows > 80) n_rows = gpu_pick(1, 80); /* each is a step of its own, too */
    if (!sizes(n_rows, dtype, i, &s)) return;
    if (i % 4 == 1) s.E = s.Ep = 4096;
    if (i % 3) s.K = gpu_pick(2, 4);
    s.conv_ring = s.K + CUDA_DRAFTS;
    s.conv_layer = (size_t)s.conv_ring * s.Ep, s.conv_slot = s.conv_layer * LAYERS;
    const uint32_t E = s.E, Ep = s.Ep, D = s.D, layer = gpu_pick(0, LAYERS - 1), O[2] = {4 * s.M, s.R};
    struct gpu_rows rows = gpu_make_rows(n_rows, CUDA_DRAFTS + 1, 9);
    GPU_WHAT(", %u segments, K %u", rows.n_segs, s.K);
    const size_t n = n_rows, n_pool = (rows.n_slots + 1) * s.conv_slot;
    struct normed in = random_normed(n_rows, D, dtype);
    const struct cuda_matrix fc = gpu_matrix(random_weights(2 * Ep, D, dtype), 2 * Ep, D, dtype);
    const float *pool = host_random(n_pool, -2, 2, dtype),
                *w = gpu_from(host_random(s.K * Ep, -1, 1, CUDA_F32), s.K * Ep),
                *bias = gpu_from(host_random(E, -1, 1, CUDA_F32), E);
    float *az = gpu_floats(n * 2 * Ep), *at_s = gpu_floats(n * Ep);
    void *s_act = gpu_act_out(n_rows, E, dtype), *a_act = gpu_act_out(n_rows, E, dtype);
    struct cuda_rows of_step = rows.device;
    of_step.lead = gpu_leads(&rows);
    s.conv = gpu_from_typed(pool, n_pool, dtype);
    broken_rows_of(n_rows, rows.slot, -1);
    name_normed(&in.device, n_rows, dtype);
    OF_SLOTS(READ | WRITTEN, s.conv, rows.n_slots + 1, s.conv_slot, dtype);
    OF_ROWS(WRITTEN, az, n_rows, 2 * Ep);
    OF_ROWS(WRITTEN, at_s, n_rows, Ep);
    OF_ACT(WRITTEN, s_act, n_rows, E, dtype);
    OF_ACT(WRITTEN, a_act, n_rows, E, dtype);
    struct cuda_conv conv = {.shape = s,
                             .layer = layer,
                             .rows = of_step,
                             .n_rows = n_rows,
                             .w = w,
                             .bias = bias,
                             .az = az,
                             .s = at_s,
                             .s_act = s_act,
                             .a_act = a_act};
    while (broken_again()) GPU_RUN(k_fused_conv, &conv, &fc, &in.device);
    const bool pair = s.K <= 4 && gpu.k->cuda_conv_pair_possible(&s);
    struct cuda_matrix m[2];
    float *y[2], *pair_s = gpu_floats(n * Ep);
    for (int j = 0; j < 2; j++)
        m[j] = gpu_matrix(random_weights(O[j], E, dtype), O[j], E, dtype), y[j] = gpu_floats(4 * n * O[j]);
    float *plain_az = gpu.breaks ? gpu_from(host_random(n * 2 * Ep, -2, 2, CUDA_F32), n * 2 * Ep) : az;
    struct cuda_shape of_pair = s;
    of_pair.conv = gpu_from_typed(pool, n_pool, dtype);
    broken_rows_of(n_rows, rows.slot, -1);
    OF_ROWS(READ, plain_az, n_rows, 2 * Ep);
    OF_SLOTS(READ | WRITTEN, of_pair.conv, rows.n_slots + 1, s.conv_slot, dtype);
    OF_ROWS(WRITTEN, pair_s, n_rows, Ep);
    for (int j = 0; j < 2; j++) OF_PARTS(WRITTEN, y[j], 4, n * O[j], n_rows, O[j]);
    struct cuda_product first = {.w = &m[0], .y = y[0], .ldy = O[0], .stride = n * O[0]},
                        second = {.w = &m[1], .y = y[1], .ldy = O[1], .stride = n * O[1]};
    conv.shape = of_pair, conv.az = plain_az, conv.s = pair_s;
    while (pair && broken_again()) GPU_RUN(k_conv_pair, &conv, &first, &second);
    if (gpu.breaks) return;
    const float *got[3] = {gpu_fetch(at_s, n * Ep), gpu_fetch_act(s_act, n_rows, E, dtype),
                           gpu_fetch_act(a_act, n_rows, E, dtype)},
                *got_az = gpu_fetch(az, n * 2 * Ep), *got_pair = gpu_fetch(pair_s, n * Ep);
    const float *got_y[2] = {gpu_fetch(y[0], 4 * n * O[0]), gpu_fetch(y[1], 4 * n * O[1])};
    const float *tails = gpu_fetch_typed(s.conv, n_pool, dtype),
                *pair_tails = gpu_fetch_typed(of_pair.conv, n_pool, dtype);
    s.conv = gpu_from_typed(pool, n_pool, dtype), of_pair.conv = gpu_from_typed(pool, n_pool, dtype);
    for (uint32_t r = 0; r < n_rows; r++) {
        struct cuda_rows one = rows.device;
        one.slot += r, one.pos += r;
        const struct cuda_normed x = normed_rows(&in, r, 1, D, dtype);
        float *one_az = gpu_floats(2 * Ep), *one_s = gpu_floats(Ep);
        void *one_s_act = gpu_act_out(1, E, dtype), *one_a_act = gpu_act_out(1, E, dtype);
        conv.shape = s, conv.rows = one, conv.n_rows = 1, conv.az = one_az, conv.s = one_s;
        conv.s_act = one_s_act, conv.a_act = one_a_act;
        GPU_RUN(k_fused_conv, &conv, &fc, &x);
        gpu_check_same("a and z", got_az + (size_t)r * 2 * Ep, gpu_fetch(one_az, 2 * Ep), 2 * Ep);
        gpu_check_same("convolution", got[0] + (size_t)r * Ep, gpu_fetch(one_s, Ep), E);
        gpu_check_same("convolution, packed", got[1] + (size_t)r * E, gpu_fetch_act(one_s_act, 1, E, dtype), E);
        gpu_check_same("its input, packed", got[2] + (size_t)r * E, gpu_fetch_act(one_a_act, 1, E, dtype), E);
        if (!pair) continue;
        float *one_y[2] = {gpu_floats(4 * (size_t)O[0]), gpu_floats(4 * (size_t)O[1])};
        conv.shape = of_pair;
        first.y = one_y[0], first.stride = O[0], second.y = one_y[1], second.stride = O[1];
        GPU_RUN(k_conv_pair, &conv, &first, &second);
        gpu_check_same("convolution, with what reads it", got_pair + (size_t)r * Ep, gpu_fetch(one_s, Ep), E);
        for (int j = 0; j < 2; j++) {
            const float *parts = gpu_fetch(one_y[j], 4 * (size_t)O[j]);
            for (size_t q = 0; q < 4; q++)
                gpu_check_same(j ? "product of a" : "product of s", got_y[j] + (q * n + r) * O[j], parts + q * O[j],
                               O[j]);
        }
    }
    gpu_check_same("the tails of all slots", tails, gpu_fetch_typed(s.conv, n_pool, dtype), n_pool);
    if (pair)
        gpu_check_same("the tails of all slots", pair_tails, gpu_fetch_typed(of_pair.conv, n_pool, dtype), n_pool);
}
static void tokens_with_drafts_have_the_convolutions_of_single_steps(void **state) {
    (void)state;
    gpu_rounds_of(false, draft_conv_round);
}
static void a_session_of_nan_changes_no_other_s_convolution_in_a_step_with_drafts(void **state) {
    (void)state;
    broken_rounds(false, draft_conv_round);
}

/* All four functors over some rows of one step: what they leave, on the host. */
struct batch {
    struct cuda_shape s;
    struct normed in;
    struct gpu_rows rows;
    struct cuda_matrix plain, out, fc, f1;
    enum cuda_dtype dtype;
    const float *base, *sums, *norm, *conv, *bias, *pool;
    size_t n_pool;
};
struct left {
    float *y, *x, *squares, *act_x, *az, *s, *s_act, *a_act, *act_f, *pool;
};
static struct left run_rows(struct batch *b, uint32_t first, uint32_t n) {
    const uint32_t D = b->s.D, E = b->s.E, Ep = b->s.Ep, F = b->s.F, O = b->plain.rows;
    const struct cuda_normed in = normed_rows(&b->in, first, n, D, b->dtype);
    float *y = gpu_floats((size_t)n * O), *x = gpu_from(b->base + (size_t)first * D, (size_t)n * D),
          *squares = gpu_floats((size_t)n * cuda_square_sums(n, D)), *az = gpu_floats((size_t)n * 2 * Ep),
          *s = gpu_floats((size_t)n * Ep);
    void *act_x = gpu_act_out(n, D, b->dtype), *s_act = gpu_act_out(n, E, b->dtype),
         *a_act = gpu_act_out(n, E, b->dtype), *act_f = gpu_act_out(n, F, b->dtype);
    struct cuda_rows rows = b->rows.device;
    rows.slot += first, rows.pos += first;
    b->s.conv = gpu_from_typed(b->pool, b->n_pool, b->dtype);
    GPU_RUN(k_fused_linear, &b->plain, &in, n, y, O);
    GPU_RUN(k_fused_residual,
            &(struct cuda_residual){.w = &b->out,
                                    .x = in.act,
                                    .sums = {gpu_from(b->sums + (size_t)first * 4, (size_t)n * 4), 4, 128, 1e-5f},
                                    .base = x,
                                    .y = x,
                                    .next_norm = b->norm,
                                    .act = act_x,
                                    .squares = squares},
            n);
    GPU_RUN(k_fused_conv,
            &(struct cuda_conv){.shape = b->s,
                                .layer = 1,
                                .rows = rows,
                                .n_rows = n,
                                .w = b->conv,
                                .bias = b->bias,
                                .az = az,
                                .s = s,
                                .s_act = s_act,
                                .a_act = a_act},
            &b->fc, &in);
    GPU_RUN(k_fused_ffn, &b->f1, &in, n, act_f);
    struct left left = {gpu_fetch(y, (size_t)n * O),
                        gpu_fetch(x, (size_t)n * D),
                        gpu_fetch(squares, (size_t)n * cuda_square_sums(n, D)),
                        gpu_fetch_act(act_x, n, D, b->dtype),
                        gpu_fetch(az, (size_t)n * 2 * Ep),
                        gpu_fetch(s, (size_t)n * Ep),
                        gpu_fetch_act(s_act, n, E, b->dtype),
                        gpu_fetch_act(a_act, n, E, b->dtype),
                        gpu_fetch_act(act_f, n, F, b->dtype),
                        gpu_fetch_typed(b->s.conv, b->n_pool, b->dtype)};
    return left;
}
static void batch_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct batch b = {.dtype = dtype};
    if (!sizes(n_rows, dtype, i, &b.s)) return;
    const uint32_t D = b.s.D, E = b.s.E, Ep = b.s.Ep, F = b.s.F,
                   O = gpu_pick(1, 300) + (is_tall(n_rows)    ? TALL_OUTPUTS
                                           : is_round(n_rows) ? ROUND_OUTPUTS
                                                              : 0);
    b.in = random_normed(n_rows, D, dtype);
    b.rows = gpu_make_rows(n_rows, 1, 9);
    b.plain = gpu_matrix(random_weights(O, D, dtype), O, D, dtype);
    b.out = gpu_matrix(random_weights(D, D, dtype), D, D, dtype);
    b.fc = gpu_matrix(random_weights(2 * Ep, D, dtype), 2 * Ep, D, dtype);
    b.f1 = gpu_matrix(random_weights(2 * F, D, dtype), 2 * F, D, dtype);
    b.base = host_random((size_t)n_rows * D, -3, 3, CUDA_F32);
    b.sums = host_random((size_t)n_rows * 4, 1, 60, CUDA_F32);
    b.norm = gpu_from(host_random(D, 0.5, 1.5, CUDA_F32), D);
    b.conv = gpu_from(host_random((size_t)b.s.K * Ep, -1, 1, CUDA_F32), (size_t)b.s.K * Ep);
    b.bias = gpu_from(host_random(E, -1, 1, CUDA_F32), E);
    b.n_pool = (b.rows.n_slots + 1) * b.s.conv_slot;
    b.pool = host_random(b.n_pool, -2, 2, dtype);
    const struct left all = run_rows(&b, 0, n_rows);
    for (int j = 0; j < 3; j++) {
        const uint32_t kernels[] = {8, CUDA_FEW_ROWS, n_rows}, most = n_rows < kernels[j] ? n_rows : kernels[j],
                       n = gpu_pick(1, most), first = gpu_pick(0, n_rows - n);
        const struct left some = run_rows(&b, first, n);
        gpu_check_same("product", some.y, all.y + (size_t)first * O, (size_t)n * O);
        gpu_check_same("residual", some.x, all.x + (size_t)first * D, (size_t)n * D);
        const size_t sums = cuda_square_sums(n_rows, D);
        if (sums == cuda_square_sums(n, D)) /* else the scale of a product shows them */
            gpu_check_same("squares", some.squares, all.squares + first * sums, n * sums);
        gpu_check_same("operand", some.act_x, all.act_x + (size_t)first * D, (size_t)n * D);
        gpu_check_same("FFN gate", some.act_f, all.act_f + (size_t)first * F, (size_t)n * F);
        gpu_check_same("s, packed", some.s_act, all.s_act + (size_t)first * E, (size_t)n * E);
        gpu_check_same("a, packed", some.a_act, all.a_act + (size_t)first * E, (size_t)n * E);
        for (uint32_t r = 0; r < n; r++) {
            const size_t at = (size_t)r * Ep, whole = (size_t)(first + r) * Ep,
                         tail = (size_t)b.rows.slot[first + r] * b.s.conv_slot;
            gpu_check_same("a and z", some.az + 2 * at, all.az + 2 * whole, 2 * Ep);
            gpu_check_same("s", some.s + at, all.s + whole, E);
            gpu_check_same("tail", some.pool + tail, all.pool + tail, b.s.conv_slot);
        }
    }
}
static void a_row_has_the_same_bits_in_any_batch(void **state) {
    (void)state;
    gpu_rounds(batch_round);
}

GPU_MAIN(cmocka_unit_test(a_product_of_a_norm_equals_its_twin),
         cmocka_unit_test(a_product_with_its_convolution_equals_its_twins),
         cmocka_unit_test(a_product_with_the_gate_of_the_ffn_equals_its_twins),
         cmocka_unit_test(a_product_added_to_the_stream_equals_its_twins),
         cmocka_unit_test(two_small_products_equal_their_twins),
         cmocka_unit_test(the_convolution_and_what_reads_it_equal_their_twins),
         cmocka_unit_test(a_row_has_the_same_bits_in_any_batch),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_of_a_product),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_s_convolution),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_s_gate),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_of_the_stream),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_of_two_small_products),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_s_convolution_and_products),
         cmocka_unit_test(tokens_with_drafts_have_the_convolutions_of_single_steps),
         cmocka_unit_test(a_session_of_nan_changes_no_other_s_convolution_in_a_step_with_drafts))
