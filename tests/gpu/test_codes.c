/* test_codes.c - products of weights in 8 and 4 bits: each has the bits of the same product of the numbers that the
 * codes stand for, stored in 16 bits, whatever the kernel and the number of rows; and their twins' values. */
#include "broken.h"

/* A matrix of codes and the same numbers in 16 bits: W [rows][cols], before they were packed. */
struct matrices {
    struct cuda_matrix codes, numbers;
    bool zeros;
};

static float value_of(enum cuda_format format, uint8_t code) {
    if (format == CUDA_INT8) return (float)(int8_t)code;
    if (format == CUDA_INT4) return (float)code;
    return half_e4m3_to_f32(code);
}
static uint8_t random_code(enum cuda_format format) {
    const uint8_t code = (uint8_t)gpu_pick(0, 255);
    if (format == CUDA_INT4) return code & 15;
    if (format == CUDA_INT8) return code == 0x80 ? 0 : code;
    return (code & 0x7f) == 0x7f ? 0 : code;
}
/* A scale, rounded for the device: in 16 bits, times a power of two. */
static float rounded_scale(float scale, enum cuda_format format, enum cuda_dtype dtype) {
    const float factor = format == CUDA_FP8 ? (dtype == CUDA_F16 ? 0x1p8f : 0x1p120f) : dtype == CUDA_F16 ? 1024 : 128;
    return gpu_round(scale * factor, dtype) / factor;
}

static struct matrices matrices_of(uint32_t rows, uint32_t cols, enum cuda_dtype dtype, enum cuda_format format,
                                   bool grouped, bool zeros) {
    struct matrices m = {.numbers = {.rows = rows, .cols = cols, .dtype = dtype, .whole = gpu_pick(0, 1)},
                         .zeros = zeros};
    m.codes = m.numbers;
    m.codes.format = format, m.codes.grouped = grouped;
    m.codes.data = gpu_zeros(gpu.k->cuda_codes_bytes(&m.codes));
    m.codes.scales = gpu_zeros(gpu.k->cuda_scales_bytes(&m.codes));
    m.numbers.data = gpu_zeros(gpu.k->cuda_matrix_bytes(rows, cols, dtype));
    GPU_WHAT(", %s%s%s",
             format == CUDA_FP8    ? "fp8"
             : format == CUDA_INT8 ? "int8"
                                   : "int4",
             grouped ? " grouped" : "", zeros ? " with zeros" : "");
    return m;
}
static struct matrices matrices_new(uint32_t rows, uint32_t cols, enum cuda_dtype dtype) {
    const enum cuda_format format = (enum cuda_format)gpu_pick(CUDA_FP8, CUDA_INT4);
    const bool grouped = format == CUDA_INT4 || gpu_pick(0, 3) == 0, zeros = format == CUDA_INT4 && gpu_pick(0, 1);
    return matrices_of(rows, cols, dtype, format, grouped, zeros);
}
/* Random rows from row0 on. Returns their numbers. */
static float *fill(const struct matrices *m, uint32_t row0, uint32_t rows, enum cuda_pack pack) {
    const enum cuda_format format = m->codes.format;
    const enum cuda_dtype dtype = m->codes.dtype;
    const uint32_t K = m->codes.cols, groups = m->codes.grouped ? (K + CUDA_GROUP - 1) / CUDA_GROUP : 1;
    const float size = format == CUDA_FP8 ? 150 : format == CUDA_INT8 ? 127 : 8;
    uint8_t *codes = host_bytes((size_t)rows * K), *zeros = host_bytes((size_t)rows * groups);
    float *scales = host_random((size_t)rows * groups, 0.3, 1, CUDA_F32), *W = host_floats((size_t)rows * K);
    for (size_t i = 0; i < (size_t)rows * groups; i++) {
        scales[i] *= sqrtf(3.0f / (float)K) / size;
        if (format == CUDA_INT4 && gpu_pick(0, 7) == 0) scales[i] = -scales[i];
        zeros[i] = m->zeros ? (uint8_t)gpu_pick(0, 15) : 8;
    }
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t k = 0; k < K; k++) {
            const size_t at = (size_t)r * K + k, group = (size_t)r * groups + (m->codes.grouped ? k / CUDA_GROUP : 0);
            codes[at] = random_code(format);
            const float value = value_of(format, codes[at]) - (format == CUDA_INT4 ? (float)zeros[group] : 0);
            W[at] = gpu_round(rounded_scale(scales[group], format, dtype) * value, dtype);
        }
    GPU_RUN(k_pack_codes, gpu_copy(codes, (size_t)rows * K), gpu_from(scales, (size_t)rows * groups),
            m->zeros ? gpu_copy(zeros, (size_t)rows * groups) : NULL, row0, rows, pack, &m->codes);
    GPU_RUN(k_pack, gpu_from(W, (size_t)rows * K), CUDA_F32, row0, rows, K, pack, &m->numbers);
    return W;
}

/* Rows for a library: the numbers, and zeros in the padding. */
static void plain_weights_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    (void)n_rows, (void)i;
    if (dtype == CUDA_F32) return;
    const uint32_t O = gpu_pick(1, 400), K = gpu_pick(1, 900), ld = cuda_pad16(K);
    GPU_WHAT(", O %u, K %u", O, K);
    const struct matrices m = matrices_new(O, K, dtype);
    const float *W = fill(&m, 0, O, CUDA_PACK_ROWS);
    for (int stored = 0; stored < 2; stored++) {
        const size_t n = (size_t)cuda_pad16(O) * ld;
        void *to = gpu_bytes(n * 2);
        GPU_RUN(k_plain_weights, stored ? &m.numbers : &m.codes, to);
        const float *got = gpu_fetch_typed(to, n, dtype);
        for (uint32_t r = 0; r < O; r++) {
            gpu_check_equal("plain weights", got + (size_t)r * ld, W + (size_t)r * K, K);
            gpu_check_equal("their padding", got + (size_t)r * ld + K, (const float[16]){0}, ld - K);
        }
    }
}
static void plain_weights_are_the_numbers_that_codes_are(void **state) {
    (void)state;
    gpu_rounds_of(false, plain_weights_round);
}

/* An operand with the squares of a norm: of decode steps, or of prompts. */
struct operand {
    void *act;
    struct cuda_normed normed;
    float *x;
};
static struct operand operand_new(uint32_t n_rows, uint32_t K, bool prompt, enum cuda_dtype dtype) {
    const uint32_t sums = prompt ? cuda_prompt_sums(K) : cuda_square_sums(n_rows, K);
    struct operand in = {.x = host_random((size_t)n_rows * K, -1.7, 1.7, dtype)};
    in.act = gpu_act(in.x, n_rows, K, dtype);
    const float *squares = gpu_from(host_random((size_t)n_rows * sums, 30, 130, CUDA_F32), (size_t)n_rows * sums);
    in.normed = (struct cuda_normed){in.act, squares, 1e-5f, K};
    return in;
}

static void plain_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    (void)i;
    if (dtype == CUDA_F32) return;
    const uint32_t O = gpu_pick(1, 700), K = gpu_pick(0, 1) ? gpu_pick_width(900) : gpu_pick(1, 900);
    GPU_WHAT(", O %u, K %u", O, K);
    const struct matrices m = matrices_new(O, K, dtype);
    const float *W = fill(&m, 0, O, CUDA_PACK_ROWS);
    const struct operand in = operand_new(n_rows, K, false, dtype);
    const uint32_t splits = gpu.k->cuda_linear_splits(&m.codes, n_rows);
    const size_t n = (size_t)n_rows * O;
    float *y = gpu_floats(splits * n), *ref = host_floats(n), *sum = host_floats(n);
    broken_rows_of(n_rows, NULL, -1);
    OF_ACT(READ, in.act, n_rows, K, dtype);
    OF_PARTS(WRITTEN, y, splits, n, n_rows, O);
    while (broken_again())
        GPU_RUN(k_linear, &(struct cuda_product){.w = &m.codes, .x = in.act, .y = y, .ldy = O, .stride = n}, n_rows);
    if (gpu.breaks) return;
    const float *got = gpu_fetch(y, splits * n);
    GPU_RUN(k_linear, &(struct cuda_product){.w = &m.numbers, .x = in.act, .y = y, .ldy = O, .stride = n}, n_rows);
    gpu_check_same("product of codes", got, gpu_fetch(y, splits * n), splits * n);
    for (uint32_t r = 0; r < n_rows; r++) ref_linear(W, O, K, in.x + (size_t)r * K, ref + (size_t)r * O);
    for (uint32_t s = 0; s < splits; s++)
        for (size_t k = 0; k < n; k++) sum[k] += got[s * n + k];
    gpu_check("product of codes and its twin", sum, ref, n, 1e-5, 0);
}
static void a_product_of_codes_has_the_bits_of_the_numbers_that_they_are(void **state) {
    (void)state;
    gpu_rounds_of(false, plain_round);
}
static void a_row_of_nan_changes_no_other_row_of_a_product_of_codes(void **state) {
    (void)state;
    broken_rounds(false, plain_round);
}

/* So many outputs of so many rows that tall.cu takes them: 80 tiles of 128 by 128. */
static bool is_tall(uint32_t n_rows) { return n_rows == 129 || n_rows == 300; }
static bool is_fused(enum cuda_dtype dtype) {
    const struct cuda_shape s = {.D = 64, .E = 64, .F = 64, .H = 1, .P = 64, .dtype = dtype};
    return dtype != CUDA_F32 && gpu.k->cuda_fused_possible(&s);
}
/* Widths of a round: small, of the published models, or tall. False: not for this device. */
static bool sizes(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i, uint32_t *O, uint32_t *K) {
    static const uint32_t published[][2] = {{8192, 2048}, {2048, 4096}, {2304, 2048}, {5472, 2048}, {2048, 2736}};
    *O = 16 * gpu_pick(1, 40), *K = 16 * gpu_pick(1, 60);
    if (is_tall(n_rows)) /* short slices, and whole stages of 8 tiles */
        *O = 5200 + 16 * gpu_pick(0, 20), *K = 16 * (i < GPU_EDGES ? gpu_pick(112, 144) : gpu_pick(16, 60));
    if (n_rows > 8 && n_rows <= 32 && i % 2) { /* wide_codes.cu: 80 blocks of 64 by 64 and more, or 25 to 40 */
        const bool many = gpu_pick(0, 1);
        *O = many ? 5120 + 16 * gpu_pick(0, 40) : 1600 + 16 * gpu_pick(0, 60);
        *K = 16 * (many ? gpu_pick(1, 130) : gpu_pick(0, 1) ? gpu_pick(65, 128) : gpu_pick(177, 256));
    }
    if (n_rows > 32 && !is_tall(n_rows) && i % 2) { /* 50 to 66 blocks, or 100 and more */
        const bool many = gpu_pick(0, 1);
        *O = (many ? 6400 : 3200) / ((n_rows + 63) / 64) / 16 * 16 + 16 * gpu_pick(0, many ? 40 : 10);
        *K = 16 * (!many ? gpu_pick(65, 256) : gpu_pick(0, 1) ? gpu_pick(1, 24) : gpu_pick(129, 192));
    }
    if (i % 12 == 7) /* several tiles a block of few rows; two of 128 of k */
        *O = 4240 + 16 * gpu_pick(0, 80), *K = gpu_pick(0, 1) ? 2048 : 16 * gpu_pick(1, 130);
    if (i % 12 == 3) *O = published[i / 12 % 5][0], *K = published[i / 12 % 5][1];
    snprintf(gpu.what, sizeof gpu.what, "%u rows, %s, O %u, K %u", n_rows, gpu_dtype_name(dtype), *O, *K);
    return is_fused(dtype);
}

/* The products of decode step and prompt: rows of y, alone and among others. */
static void fused_products(struct matrices m, uint32_t n_rows) {
    const enum cuda_dtype dtype = m.codes.dtype;
    const uint32_t O = m.codes.rows, K = m.codes.cols;
    const size_t n = (size_t)n_rows * O;
    float *y[2] = {gpu_floats(n), gpu_floats(n)};
    fill(&m, 0, O, CUDA_PACK_ROWS);
    for (int prompt = 0; prompt < 2; prompt++) {
        const struct operand in = operand_new(n_rows, K, prompt, dtype);
        for (int j = 0; j < 2; j++)
            if (prompt)
                GPU_RUN(k_prompt_linear, j ? &m.numbers : &m.codes, &in.normed, n_rows, y[j], O);
            else
                GPU_RUN(k_fused_linear, j ? &m.numbers : &m.codes, &in.normed, n_rows, y[j], O);
        gpu_check_same(prompt ? "a prompt's product" : "a step's product", gpu_fetch(y[0], n), gpu_fetch(y[1], n), n);
        const uint32_t r = gpu_pick(0, n_rows - 1);
        const struct cuda_normed one = {gpu_act(in.x + (size_t)r * K, 1, K, dtype), NULL, 0, K},
                                 all = {in.act, NULL, 0, K};
        float *alone = gpu_floats(O);
        if (prompt) {
            GPU_RUN(k_prompt_linear, &m.codes, &all, n_rows, y[0], O);
            GPU_RUN(k_prompt_linear, &m.codes, &one, 1, alone, O);
        } else {
            GPU_RUN(k_fused_linear, &m.codes, &all, n_rows, y[0], O);
            GPU_RUN(k_fused_linear, &m.codes, &one, 1, alone, O);
        }
        gpu_check_same("a row alone and among others", gpu_fetch(alone, O), gpu_fetch(y[0], n) + (size_t)r * O, O);
    }
}
static void fused_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    uint32_t O, K;
    if (sizes(n_rows, dtype, i, &O, &K)) fused_products(matrices_new(O, K, dtype), n_rows);
}
static void a_fused_product_of_codes_has_the_bits_of_the_numbers(void **state) {
    (void)state;
    gpu_rounds_of(false, fused_round);
}

/* The last stage of a slice may end past k. Its tiles there have no group of scales; coded_kernel once read one for
 * them, past a block's shared memory (33 rows, O 6,768, K 368). Each size of coded_kernel has such a stage here. */
static void a_stage_that_ends_past_k_reads_no_scales_past_the_last_group(void **state) {
    (void)state;
    static const uint32_t cases[][3] = {{33, 6768, 368},  {33, 5200, 80},    {16, 5200, 368},  {16, 2048, 2944},
                                        {129, 3200, 368}, {129, 3200, 2304}, {128, 2048, 2944}};
    for (uint32_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const uint32_t n_rows = cases[i / 2][0], O = cases[i / 2][1], K = cases[i / 2][2];
        const enum cuda_dtype dtype = i % 2 ? CUDA_BF16 : CUDA_F16;
        if (!is_fused(dtype)) return;
        snprintf(gpu.what, sizeof gpu.what, "%u rows, %s, O %u, K %u", n_rows, gpu_dtype_name(dtype), O, K);
        fused_products(matrices_of(O, K, dtype, i % 2 ? CUDA_FP8 : CUDA_INT4, true, i % 2 == 0), n_rows);
        gpu_round_end();
    }
}

static void residual_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    uint32_t D, K;
    if (!sizes(n_rows, dtype, i, &D, &K)) return;
    if (gpu_pick(0, 1)) K -= gpu_pick(0, 15); /* the FFN's width is any */
    GPU_WHAT(", k %u", K);
    const struct matrices m = matrices_new(D, K, dtype);
    const size_t n = (size_t)n_rows * D;
    fill(&m, 0, D, CUDA_PACK_ROWS);
    const float *base = gpu_from(host_random(n, -3, 3, CUDA_F32), n),
                *w = gpu_from(host_random(D, 0.5, 1.5, CUDA_F32), D);
    for (int prompt = 0; prompt < 2; prompt++) {
        const struct operand in = operand_new(n_rows, K, prompt, dtype);
        const size_t n_squares = (size_t)n_rows * (prompt ? cuda_prompt_sums(D) : cuda_square_sums(n_rows, D));
        float *y[2], *squares[2];
        void *act[2];
        for (int j = 0; j < 2; j++) {
            y[j] = gpu_floats(n), squares[j] = gpu_floats(n_squares), act[j] = gpu_act_out(n_rows, D, dtype);
            const struct cuda_residual residual = {.w = j ? &m.numbers : &m.codes,
                                                   .x = in.act,
                                                   .base = base,
                                                   .y = y[j],
                                                   .next_norm = w,
                                                   .act = act[j],
                                                   .squares = squares[j]};
            if (prompt)
                GPU_RUN(k_prompt_residual, &residual, n_rows);
            else
                GPU_RUN(k_fused_residual, &residual, n_rows);
        }
        gpu_check_same("residual", gpu_fetch(y[0], n), gpu_fetch(y[1], n), n);
        gpu_check_same("its squares", gpu_fetch(squares[0], n_squares), gpu_fetch(squares[1], n_squares), n_squares);
        gpu_check_same("the next operand", gpu_fetch_act(act[0], n_rows, D, dtype),
                       gpu_fetch_act(act[1], n_rows, D, dtype), n);
    }
}
static void a_product_of_codes_added_to_the_stream_has_the_bits_of_the_numbers(void **state) {
    (void)state;
    gpu_rounds_of(false, residual_round);
}

static void ffn_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    uint32_t F, K;
    if (!sizes(n_rows, dtype, i, &F, &K)) return;
    if (is_tall(n_rows) || (n_rows <= 8 && F > 4224)) F /= 2, F = (F + 15) / 16 * 16;
    const uint32_t used = F - gpu_pick(0, 15); /* rows behind these stay 0 */
    const struct matrices m = matrices_new(2 * F, K, dtype);
    fill(&m, 0, used, CUDA_PACK_FIRST_EIGHTS), fill(&m, 0, used, CUDA_PACK_SECOND_EIGHTS);
    for (int prompt = 0; prompt < 2; prompt++) {
        const struct operand in = operand_new(n_rows, K, prompt, dtype);
        void *act[2];
        for (int j = 0; j < 2; j++) {
            act[j] = gpu_act_out(n_rows, F, dtype);
            if (prompt)
                GPU_RUN(k_prompt_ffn, j ? &m.numbers : &m.codes, &in.normed, n_rows, act[j]);
            else
                GPU_RUN(k_fused_ffn, j ? &m.numbers : &m.codes, &in.normed, n_rows, act[j]);
        }
        gpu_check_same("the FFN's gate", gpu_fetch_act(act[0], n_rows, F, dtype),
                       gpu_fetch_act(act[1], n_rows, F, dtype), (size_t)n_rows * F);
    }
}
static void the_gate_of_a_product_of_codes_has_the_bits_of_the_numbers(void **state) {
    (void)state;
    gpu_rounds_of(false, ffn_round);
}

static void conv_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    uint32_t E, D;
    if (!sizes(n_rows, dtype, i, &E, &D) || n_rows > 300) return;
    if (E > 4096) E = 4096;
    struct cuda_shape s = {
        .D = D, .E = E, .Ep = (E + 31) / 32 * 32, .K = gpu_pick(2, 8), .F = 64, .H = 2, .P = 64, .dtype = dtype};
    s.conv_ring = s.K + CUDA_DRAFTS, s.conv_layer = s.conv_slot = (size_t)s.conv_ring * s.Ep;
    const struct gpu_rows rows = gpu_make_rows(n_rows, 1, 9);
    struct matrices m = matrices_new(2 * s.Ep, D, dtype);
    m.codes.whole = m.numbers.whole = true;
    for (uint32_t half = 0; half < 2; half++) fill(&m, half * s.Ep, E, CUDA_PACK_ROWS);
    const struct operand in = operand_new(n_rows, D, false, dtype), prompt = operand_new(n_rows, D, true, dtype);
    const size_t n_pool = (rows.n_slots + 1) * s.conv_slot, n = (size_t)n_rows * s.Ep;
    const float *pool = host_random(n_pool, -2, 2, dtype),
                *w = gpu_from(host_random(s.K * s.Ep, -1, 1, CUDA_F32), s.K * s.Ep),
                *bias = gpu_from(host_random(E, -1, 1, CUDA_F32), E);
    float *az[2], *sums[2];
    void *act[2][4];
    for (int j = 0; j < 2; j++) {
        az[j] = gpu_zeros(2 * n * sizeof(float)), sums[j] = gpu_zeros(n * sizeof(float));
        s.conv = gpu_from_typed(pool, n_pool, dtype);
        for (int a = 0; a < 4; a++) act[j][a] = gpu_act_out(n_rows, E, dtype);
        GPU_RUN(k_fused_conv,
                &(struct cuda_conv){.shape = s,
                                    .rows = rows.device,
                                    .n_rows = n_rows,
                                    .w = w,
                                    .bias = bias,
                                    .az = az[j],
                                    .s = sums[j],
                                    .s_act = act[j][0],
                                    .a_act = act[j][1]},
                j ? &m.numbers : &m.codes, &in.normed);
        GPU_RUN(k_prompt_az, j ? &m.numbers : &m.codes, &prompt.normed, E, n_rows, act[j][2], act[j][3]);
    }
    gpu_check_same("a and z", gpu_fetch(az[0], 2 * n), gpu_fetch(az[1], 2 * n), 2 * n);
    gpu_check_same("the convolution", gpu_fetch(sums[0], n), gpu_fetch(sums[1], n), n);
    for (int a = 0; a < 4; a++)
        gpu_check_same("packed", gpu_fetch_act(act[0][a], n_rows, E, dtype), gpu_fetch_act(act[1][a], n_rows, E, dtype),
                       (size_t)n_rows * E);
}
static void the_convolution_of_a_product_of_codes_has_the_bits_of_the_numbers(void **state) {
    (void)state;
    gpu_rounds_of(false, conv_round);
}

GPU_MAIN(cmocka_unit_test(plain_weights_are_the_numbers_that_codes_are),
         cmocka_unit_test(a_product_of_codes_has_the_bits_of_the_numbers_that_they_are),
         cmocka_unit_test(a_fused_product_of_codes_has_the_bits_of_the_numbers),
         cmocka_unit_test(a_stage_that_ends_past_k_reads_no_scales_past_the_last_group),
         cmocka_unit_test(a_product_of_codes_added_to_the_stream_has_the_bits_of_the_numbers),
         cmocka_unit_test(the_gate_of_a_product_of_codes_has_the_bits_of_the_numbers),
         cmocka_unit_test(the_convolution_of_a_product_of_codes_has_the_bits_of_the_numbers),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_of_a_product_of_codes))
