/* test_prompt_linear.c - prompt_linear.cu: products of prompts, finished, against their twins; a row's bits whatever
 * rows are beside it and wherever it stands. A device that lacks them has nothing to test. */
#include "broken.h"

/* Rows of a step: an operand of 16 bits, squares of 64 columns each for its norm, and that norm's scales. */
struct operand {
    uint32_t n_rows, K, n_sums;
    enum cuda_dtype dtype;
    float *x, *squares, *scale;
};
static struct operand operand_new(uint32_t n_rows, uint32_t K, uint32_t n_sums, enum cuda_dtype dtype) {
    struct operand in = {.n_rows = n_rows, .K = K, .n_sums = n_sums, .dtype = dtype};
    in.x = host_random((size_t)n_rows * K, -1.7, 1.7, dtype);
    /* A gate is a product of two outputs: in fp16 it must not leave the range where a row is 64 wide. */
    in.squares = host_random((size_t)n_rows * n_sums, 30, 130, CUDA_F32), in.scale = host_floats(n_rows);
    return in;
}
static void set_scales(struct operand *in, uint32_t n, double factor) {
    for (uint32_t r = 0; r < in->n_rows; r++) {
        double sum = 0;
        for (uint32_t j = 0; j < in->n_sums; j++) sum += (double)in->squares[(size_t)r * in->n_sums + j];
        in->scale[r] = (float)(in->n_sums ? factor / sqrt(sum / n + 1e-5) : 1);
    }
}
static void name_operand(const struct cuda_normed *in, uint32_t n_rows, enum cuda_dtype dtype) { /* of broken.h */
    broken_rows_of(n_rows, NULL, -1);
    OF_ACT(READ, in->act, n_rows, in->D, dtype);
    OF_ROWS(READ, in->squares, n_rows, cuda_prompt_sums(in->D));
}
static float *random_weights(uint32_t O, uint32_t K, enum cuda_dtype dtype) {
    const double range = sqrt(3.0 / K);
    return host_random((size_t)O * K, -range, range, dtype);
}
/* Rows that are compared with a twin, of many some: the first and the last always. */
static uint32_t row_after(uint32_t r, uint32_t n_rows, double work) {
    const uint32_t step = (uint32_t)(work / 2e7) + 1;
    return r + step < n_rows || r + 1 == n_rows ? r + step : n_rows - 1;
}

/* Outputs and rows of a round: small, or so many that tiles of every size are used and a block takes several. */
static bool sizes(uint32_t *n_rows, uint32_t *O, uint32_t *K, enum cuda_dtype dtype, uint32_t i) {
    const struct cuda_shape s = {.D = 64, .E = 64, .F = 64, .H = 1, .P = 64, .dtype = dtype};
    *K = 16 * gpu_pick(1, 40);
    *O = 16 * gpu_pick(1, 40);
    if (i % 4 == 1) *O = 16 * gpu_pick(300, 600);
    if (i % 4 == 2) *n_rows += gpu_pick(0, 900), *K = 16 * gpu_pick(1, 10);
    if (i % 16 == 5) *K = 2048, *O = 2048;
    snprintf(gpu.what, sizeof gpu.what, "%u rows, %s, O %u, K %u", *n_rows, gpu_dtype_name(dtype), *O, *K);
    return gpu.k->cuda_fused_possible(&s);
}

static void linear_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    uint32_t O, K;
    if (!sizes(&n_rows, &O, &K, dtype, i)) return;
    O -= gpu_pick(0, 3) * 4;
    const uint32_t ld = O + gpu_pick(0, 3) * 4;
    const bool norm = gpu_pick(0, 1);
    GPU_WHAT(", ld %u%s", ld, norm ? ", norm" : "");
    struct operand in = operand_new(n_rows, K, norm ? cuda_prompt_sums(K) : 0, dtype);
    set_scales(&in, K, dtype == CUDA_F16 ? 16 : 1);
    float *W = random_weights(O, K, dtype), *y = gpu_floats((size_t)n_rows * ld), *ref = host_floats(O);
    const struct cuda_matrix m = gpu_matrix(W, O, K, dtype);
    const struct cuda_normed normed = {gpu_act(in.x, n_rows, K, dtype),
                                       norm ? gpu_from(in.squares, (size_t)n_rows * in.n_sums) : NULL, 1e-5f, K};
    name_operand(&normed, n_rows, dtype);
    OF_ROWS(WRITTEN, y, n_rows, ld);
    while (broken_again()) GPU_RUN(k_prompt_linear, &m, &normed, n_rows, y, ld);
    if (gpu.breaks) return;
    const float *got = gpu_fetch(y, (size_t)n_rows * ld);
    for (uint32_t r = 0; r < n_rows; r = row_after(r, n_rows, (double)n_rows * O * K)) {
        ref_linear(W, O, K, in.x + (size_t)r * K, ref);
        for (uint32_t o = 0; o < O; o++) ref[o] *= in.scale[r];
        gpu_check("product of a prompt", got + (size_t)r * ld, ref, O, 1e-5, 0);
    }
    for (uint32_t r = 0; r < n_rows; r++)
        gpu_check_poison("beside a product's outputs", got + (size_t)r * ld + O, ld - O);
}
static void a_product_of_a_prompt_equals_its_twin(void **state) {
    (void)state;
    gpu_rounds_of(false, linear_round);
}
static void a_row_of_nan_changes_no_other_row_of_a_product(void **state) {
    (void)state;
    broken_rounds(false, linear_round);
}

/* a and z packed: the same sums rounded, and nothing beyond their columns. */
static void az_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    uint32_t E, K;
    if (!sizes(&n_rows, &E, &K, dtype, i)) return;
    const uint32_t Ep = (E + 31) / 32 * 32;
    struct operand in = operand_new(n_rows, K, cuda_prompt_sums(K), dtype);
    float *W = random_weights(2 * Ep, K, dtype), *y = gpu_floats((size_t)n_rows * 2 * Ep), *want = host_floats(E);
    const struct cuda_matrix m = gpu_matrix(W, 2 * Ep, K, dtype);
    const struct cuda_normed normed = {gpu_act(in.x, n_rows, K, dtype),
                                       gpu_from(in.squares, (size_t)n_rows * in.n_sums), 1e-5f, K};
    void *act[2] = {gpu_act_out(n_rows, E, dtype), gpu_act_out(n_rows, E, dtype)};
    name_operand(&normed, n_rows, dtype);
    OF_ACT(WRITTEN, act[0], n_rows, E, dtype);
    OF_ACT(WRITTEN, act[1], n_rows, E, dtype);
    while (broken_again()) GPU_RUN(k_prompt_az, &m, &normed, E, n_rows, act[0], act[1]);
    if (gpu.breaks) return;
    GPU_RUN(k_prompt_linear, &m, &normed, n_rows, y, 2 * (size_t)Ep);
    const float *plain = gpu_fetch(y, (size_t)n_rows * 2 * Ep);
    for (uint32_t j = 0; j < 2; j++) {
        const float *got = gpu_fetch_act(act[j], n_rows, E, dtype);
        for (uint32_t r = 0; r < n_rows; r++) {
            for (uint32_t e = 0; e < E; e++) want[e] = gpu_round(plain[(size_t)r * 2 * Ep + j * Ep + e], dtype);
            gpu_check_same(j ? "z" : "a", got + (size_t)r * E, want, E);
        }
    }
}
static void a_and_z_are_the_product_s_packed(void **state) {
    (void)state;
    gpu_rounds_of(false, az_round);
}
static void a_row_of_nan_changes_no_other_row_of_a_and_z(void **state) {
    (void)state;
    broken_rounds(false, az_round);
}

static void ffn_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    uint32_t O, K;
    if (!sizes(&n_rows, &O, &K, dtype, i)) return;
    const uint32_t F = O / 2;
    struct operand in = operand_new(n_rows, K, cuda_prompt_sums(K), dtype);
    set_scales(&in, K, dtype == CUDA_F16 ? 16 : 1);
    float *W = random_weights(O, K, dtype), *y = host_floats(O), *ref = host_floats(F);
    struct cuda_matrix m = {.rows = O, .cols = K, .dtype = dtype};
    m.data = gpu_zeros(gpu.k->cuda_matrix_bytes(O, K, dtype));
    GPU_RUN(k_pack, gpu_from(W, (size_t)F * K), CUDA_F32, 0, F, K, CUDA_PACK_FIRST_EIGHTS, &m);
    GPU_RUN(k_pack, gpu_from(W + (size_t)F * K, (size_t)F * K), CUDA_F32, 0, F, K, CUDA_PACK_SECOND_EIGHTS, &m);
    void *act = gpu_act_out(n_rows, F, dtype);
    const struct cuda_normed normed = {gpu_act(in.x, n_rows, K, dtype),
                                       gpu_from(in.squares, (size_t)n_rows * in.n_sums), 1e-5f, K};
    name_operand(&normed, n_rows, dtype);
    OF_ACT(WRITTEN, act, n_rows, F, dtype);
    while (broken_again()) GPU_RUN(k_prompt_ffn, &m, &normed, n_rows, act);
    if (gpu.breaks) return;
    const float *got = gpu_fetch_act(act, n_rows, F, dtype);
    for (uint32_t r = 0; r < n_rows; r = row_after(r, n_rows, (double)n_rows * O * K)) {
        ref_linear(W, O, K, in.x + (size_t)r * K, y);
        for (uint32_t f = 0; f < F; f++) {
            const double a = (double)y[f] * (double)in.scale[r], g = (double)y[F + f] * (double)in.scale[r];
            ref[f] = (float)(a * g / (1 + exp(-g)));
        }
        gpu_check("FFN gate of a prompt", got + (size_t)r * F, ref, F, 3e-5, gpu_ulp(dtype));
    }
}
static void a_product_with_the_gate_of_the_ffn_equals_its_twins(void **state) {
    (void)state;
    gpu_rounds_of(false, ffn_round);
}
static void a_row_of_nan_changes_no_other_row_s_gate_and_no_padding_column(void **state) {
    (void)state;
    broken_rounds(false, ffn_round);
}

static void residual_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    uint32_t D, K;
    if (!sizes(&n_rows, &D, &K, dtype, i)) return;
    const bool in_place = gpu_pick(0, 1), sums = gpu_pick(0, 1), packs = gpu_pick(0, 3),
               leaves = !packs || gpu_pick(0, 1);
    GPU_WHAT("%s%s%s", sums ? ", sums" : "", packs ? ", packs" : "", leaves ? ", leaves" : "");
    struct operand in = operand_new(n_rows, K, sums ? gpu_pick(1, 130) : 0, dtype);
    set_scales(&in, 32 * in.n_sums, 1);
    const size_t n = (size_t)n_rows * D, n_squares = (size_t)n_rows * cuda_prompt_sums(D);
    float *W = random_weights(D, K, dtype), *base = host_random(n, -3, 3, CUDA_F32), *at_base = gpu_from(base, n),
          *y = !leaves    ? NULL
               : in_place ? at_base
                          : gpu_floats(n),
          *squares = gpu_floats(n_squares), *w = host_random(D, 0.5, 1.5, CUDA_F32), *ref = host_floats(D),
          *operand = host_floats(D);
    const struct cuda_matrix m = gpu_matrix(W, D, K, dtype);
    void *act = gpu_act_out(n_rows, D, dtype);
    const void *at_x = gpu_act(in.x, n_rows, K, dtype);
    const float *at_sums = sums ? gpu_from(in.squares, (size_t)n_rows * in.n_sums) : NULL,
                *at_w = packs ? gpu_from(w, D) : NULL;
    broken_rows_of(n_rows, NULL, -1);
    OF_ACT(READ, at_x, n_rows, K, dtype);
    OF_ROWS(READ, at_sums, n_rows, in.n_sums);
    OF_ROWS(y == at_base ? READ | WRITTEN : READ, at_base, n_rows, D);
    if (y != at_base) OF_ROWS(WRITTEN, y, n_rows, D);
    OF_ROWS(WRITTEN, squares, n_rows, cuda_prompt_sums(D));
    OF_ACT(WRITTEN, act, n_rows, D, dtype);
    while (broken_again())
        GPU_RUN(k_prompt_residual,
                &(struct cuda_residual){.w = &m,
                                        .x = at_x,
                                        .sums = {at_sums, in.n_sums, 32 * in.n_sums, 1e-5f},
                                        .base = at_base,
                                        .y = y,
                                        .next_norm = at_w,
                                        .act = act,
                                        .squares = squares},
                n_rows);
    if (gpu.breaks) return;
    const float *got = leaves ? gpu_fetch(y, n) : NULL, *got_act = packs ? gpu_fetch_act(act, n_rows, D, dtype) : NULL,
                *got_squares = gpu_fetch(squares, n_squares);
    if (!packs) gpu_check_poison("squares that nobody wants", got_squares, n_squares);
    if (y != at_base) gpu_check_same("base", gpu_fetch(at_base, n), base, n);
    const double down = dtype == CUDA_F16 ? 0.0625 : 1;
    for (uint32_t r = 0; r < n_rows; r = row_after(r, n_rows, (double)n_rows * D * K)) {
        ref_linear(W, D, K, in.x + (size_t)r * K, ref);
        for (uint32_t o = 0; o < D; o++)
            ref[o] = (float)((double)base[(size_t)r * D + o] + (double)in.scale[r] * (double)ref[o]);
        if (leaves) gpu_check("residual of a prompt", got + (size_t)r * D, ref, D, 1e-5, 0);
        if (!packs) continue;
        for (uint32_t o = 0; o < D; o++) operand[o] = (float)((double)ref[o] * (double)w[o] * down);
        gpu_check("operand of the next norm", got_act + (size_t)r * D, operand, D, 1e-5, gpu_ulp(dtype));
        for (uint32_t j = 0; j < cuda_prompt_sums(D); j++) {
            double sum = 0;
            for (uint32_t o = j * 64; o < D && o < j * 64 + 64; o++) sum += (double)ref[o] * (double)ref[o];
            const float want = (float)sum;
            gpu_check("its squares", got_squares + (size_t)r * cuda_prompt_sums(D) + j, &want, 1, 5e-5, 0);
        }
    }
    for (uint32_t r = 0; leaves && packs && r < n_rows; r++) { /* to the bit, of what the kernel has left */
        for (uint32_t o = 0; o < D; o++) operand[o] = gpu_round(got[(size_t)r * D + o] * w[o] * (float)down, dtype);
        gpu_check_same("operand of what is left", got_act + (size_t)r * D, operand, D);
    }
}
static void a_product_added_to_the_stream_equals_its_twins(void **state) {
    (void)state;
    gpu_rounds_of(false, residual_round);
}
static void a_row_of_nan_changes_no_other_row_of_the_stream(void **state) {
    (void)state;
    broken_rounds(false, residual_round);
}

/* What rows [first, first + n) of a step leave, alone in a step. */
struct batch {
    struct operand in;
    struct cuda_matrix m;
    uint32_t O;
    const float *base, *w;
};
struct left {
    float *y, *x, *squares, *act, *gated;
};
static struct left run_rows(const struct batch *b, uint32_t first, uint32_t n) {
    const uint32_t O = b->O, K = b->in.K, sums = b->in.n_sums;
    const enum cuda_dtype dtype = b->in.dtype;
    const struct cuda_normed normed = {gpu_act(b->in.x + (size_t)first * K, n, K, dtype),
                                       gpu_from(b->in.squares + (size_t)first * sums, (size_t)n * sums), 1e-5f, K};
    float *y = gpu_floats((size_t)n * O), *x = gpu_from(b->base + (size_t)first * O, (size_t)n * O),
          *squares = gpu_floats((size_t)n * cuda_prompt_sums(O));
    void *act = gpu_act_out(n, O, dtype), *gated = gpu_act_out(n, O / 2, dtype);
    GPU_RUN(k_prompt_linear, &b->m, &normed, n, y, O);
    GPU_RUN(k_prompt_residual,
            &(struct cuda_residual){.w = &b->m,
                                    .x = normed.act,
                                    .sums = {normed.squares, sums, K, 1e-5f},
                                    .base = x,
                                    .y = x,
                                    .next_norm = b->w,
                                    .act = act,
                                    .squares = squares},
            n);
    GPU_RUN(k_prompt_ffn, &b->m, &normed, n, gated);
    return (struct left){gpu_fetch(y, (size_t)n * O), gpu_fetch(x, (size_t)n * O),
                         gpu_fetch(squares, (size_t)n * cuda_prompt_sums(O)), gpu_fetch_act(act, n, O, dtype),
                         gpu_fetch_act(gated, n, O / 2, dtype)};
}
static void batch_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct batch b;
    uint32_t K;
    if (!sizes(&n_rows, &b.O, &K, dtype, i)) return;
    b.in = operand_new(n_rows, K, cuda_prompt_sums(K), dtype);
    b.m = gpu_matrix(random_weights(b.O, K, dtype), b.O, K, dtype);
    b.base = host_random((size_t)n_rows * b.O, -3, 3, CUDA_F32);
    b.w = gpu_from(host_random(b.O, 0.5, 1.5, CUDA_F32), b.O);
    const struct left all = run_rows(&b, 0, n_rows);
    for (int j = 0; j < 3; j++) {
        const uint32_t n = j ? gpu_pick(1, n_rows) : 1, first = gpu_pick(0, n_rows - n), sums = cuda_prompt_sums(b.O);
        const struct left some = run_rows(&b, first, n);
        gpu_check_same("product", some.y, all.y + (size_t)first * b.O, (size_t)n * b.O);
        gpu_check_same("residual", some.x, all.x + (size_t)first * b.O, (size_t)n * b.O);
        gpu_check_same("squares", some.squares, all.squares + (size_t)first * sums, (size_t)n * sums);
        gpu_check_same("operand", some.act, all.act + (size_t)first * b.O, (size_t)n * b.O);
        gpu_check_same("FFN gate", some.gated, all.gated + (size_t)first * (b.O / 2), (size_t)n * (b.O / 2));
    }
}
static void a_row_has_the_same_bits_in_any_step(void **state) {
    (void)state;
    gpu_rounds_of(false, batch_round);
}

/* A step whose last row does not end its tile of 8, after one of the same tiles that left NaN in the blocks' shared
 * memory: what is written for the rows behind comes from the operand, which is finite there, and from no such memory.
 */
static void behind_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    uint32_t O, K;
    if (!sizes(&n_rows, &O, &K, dtype, i)) return;
    const uint32_t whole = (n_rows + 7) / 8 * 8, n = n_rows == whole ? n_rows - gpu_pick(1, 7) : n_rows,
                   n_sums = cuda_prompt_sums(K);
    const size_t n_squares = (size_t)whole * n_sums;
    GPU_WHAT(", %u rows in tiles of %u", n, whole);
    const struct operand in = operand_new(whole, K, n_sums, dtype);
    const struct cuda_matrix m = gpu_matrix(random_weights(O, K, dtype), O, K, dtype);
    struct cuda_matrix az = m; /* as many of its outputs as are a and z of whole panels */
    az.rows = O / 64 * 64;
    float *nan = memset(host_floats(n_squares), 0xff, n_squares * sizeof *nan);
    const float *squares[2] = {gpu_from(nan, n_squares), gpu_from(in.squares, n_squares)},
                *w = gpu_from(host_random(O, 0.5, 1.5, CUDA_F32), O),
                *base = gpu_from(host_random((size_t)whole * O, -3, 3, CUDA_F32), (size_t)whole * O);
    float *y = gpu_floats((size_t)whole * O), *left = gpu_floats((size_t)whole * cuda_prompt_sums(O));
    const void *x = gpu_act(in.x, whole, K, dtype);
    for (uint32_t k = 0; k < (az.rows ? 3 : 2); k++) {
        static const char *const names[] = {"gate", "operand of the next norm", "a"};
        const uint32_t cols = k == 1 ? O : k ? az.rows / 2 : O / 2;
        void *act[2] = {gpu_zeros(gpu.k->cuda_activation_bytes(whole, cols, dtype)),
                        gpu_zeros(gpu.k->cuda_activation_bytes(whole, cols, dtype))},
             *more = gpu_act_out(whole, cols, dtype);
        for (int pass = 0; pass < 2; pass++) {
            const struct cuda_normed normed = {x, squares[pass], 1e-5f, K};
            const uint32_t rows = pass ? n : whole;
            if (k == 0)
                GPU_RUN(k_prompt_ffn, &m, &normed, rows, act[pass]);
            else if (k == 1)
                GPU_RUN(k_prompt_residual,
                        &(struct cuda_residual){.w = &m,
                                                .x = x,
                                                .sums = {squares[pass], n_sums, K, 1e-5f},
                                                .base = base,
                                                .y = y,
                                                .next_norm = w,
                                                .act = act[pass],
                                                .squares = left},
                        rows);
            else
                GPU_RUN(k_prompt_az, &az, &normed, cols, rows, act[pass], more);
        }
        const float *got = gpu_fetch_act(act[1], whole, cols, dtype);
        for (size_t j = (size_t)n * cols; j < (size_t)whole * cols; j++)
            if (!isfinite(got[j]))
                fail_msg("%s (%s, seed %llu): row %zu behind the step's last has %g in column %zu", names[k], gpu.what,
                         (unsigned long long)gpu.seed, j / cols, (double)got[j], j % cols);
    }
}
static void what_leaves_for_rows_behind_the_last_comes_from_no_other_launch(void **state) {
    (void)state;
    gpu_rounds_of(false, behind_round);
}

GPU_MAIN(cmocka_unit_test(a_product_of_a_prompt_equals_its_twin), cmocka_unit_test(a_and_z_are_the_product_s_packed),
         cmocka_unit_test(a_product_with_the_gate_of_the_ffn_equals_its_twins),
         cmocka_unit_test(a_product_added_to_the_stream_equals_its_twins),
         cmocka_unit_test(a_row_has_the_same_bits_in_any_step),
         cmocka_unit_test(what_leaves_for_rows_behind_the_last_comes_from_no_other_launch),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_of_a_product),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_of_a_and_z),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_s_gate_and_no_padding_column),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_of_the_stream))
