/* test_rows.c - rows.cu: packing and embedding, sums with norms, the FFN's gate, gathering. */
#include "broken.h"

/* Rows of a stacked matrix come back as they went in: k_pack in pieces and from every type, k_embed's look-up. */
static void embed_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    const enum cuda_dtype from = (enum cuda_dtype)(i / 3 % 3);
    const uint32_t D = gpu_pick(0, 1) ? gpu_pick_width(600) : gpu_pick(1, 600), V = gpu_pick(1, 500),
                   first = gpu_pick(0, V), half = gpu_pick(0, 64);
    const float scale = gpu_pick(0, 1) ? 1.0f : gpu_uniform(2, 9);
    GPU_WHAT(", V %u, D %u from %s, half %u", V, D, gpu_dtype_name(from), half);
    float *W = host_random((size_t)V * D, -2, 2, from);
    struct cuda_matrix m = {
        .data = gpu_zeros(gpu.k->cuda_matrix_bytes(V, D, dtype)), .rows = V, .cols = D, .dtype = dtype};
    if (first) GPU_RUN(k_pack, gpu_from_typed(W, (size_t)first * D, from), from, 0, first, D, CUDA_PACK_ROWS, &m);
    if (first < V)
        GPU_RUN(k_pack, gpu_from_typed(W + (size_t)first * D, (size_t)(V - first) * D, from), from, first, V - first, D,
                CUDA_PACK_ROWS, &m);
    struct gpu_rows rows = gpu_make_rows(n_rows, 4, V);
    double *inv_freq = host_bytes((half + 1) * sizeof *inv_freq);
    for (uint32_t j = 0; j < half; j++) inv_freq[j] = pow(10000.0, -(double)j / half);
    float *x = gpu_floats((size_t)n_rows * D), *rope = gpu_floats((size_t)n_rows * half * 2);
    GPU_RUN(k_embed, &(struct cuda_embed){.w = &m,
                                          .rows = rows.device,
                                          .n_rows = n_rows,
                                          .scale = scale,
                                          .x = x,
                                          .inv_freq = gpu_copy(inv_freq, (half + 1) * sizeof *inv_freq),
                                          .half = half,
                                          .rope = rope});
    float *ref = host_floats((size_t)n_rows * D), *ref_rope = host_floats((size_t)n_rows * half * 2);
    for (uint32_t r = 0; r < n_rows; r++) {
        for (uint32_t k = 0; k < D; k++)
            ref[(size_t)r * D + k] = gpu_round(W[(size_t)rows.tok[r] * D + k], dtype) * scale;
        for (uint32_t j = 0; j < half; j++) {
            ref_rope[((size_t)r * half + j) * 2] = (float)cos((double)rows.pos[r] * inv_freq[j]);
            ref_rope[((size_t)r * half + j) * 2 + 1] = (float)sin((double)rows.pos[r] * inv_freq[j]);
        }
    }
    gpu_check_same("embedding", gpu_fetch(x, (size_t)n_rows * D), ref, (size_t)n_rows * D);
    if (half)
        gpu_check("cosines and sines", gpu_fetch(rope, (size_t)n_rows * half * 2), ref_rope, (size_t)n_rows * half * 2,
                  1e-6, 0);
}
static void packed_rows_come_back_as_embeddings(void **state) {
    (void)state;
    gpu_rounds(embed_round);
}

static void add_norm_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    const uint32_t n = i % 7 == 3       ? gpu_pick(2000, 8192)
                       : gpu_pick(0, 1) ? gpu_pick_width(700)
                                        : gpu_pick(1, 700),
                   n_partial = gpu_pick(0, 3) ? gpu_pick(1, 16) : 0, n_sums = gpu_pick(0, 1) ? gpu_pick(1, 200) : 0,
                   sum_n = n_sums * 32;
    const bool with_out = gpu_pick(0, 2) != 0, with_act = !with_out || gpu_pick(0, 2), in_place = gpu_pick(0, 1);
    const float eps = 1e-5f;
    const size_t stride = (size_t)n_rows * n + gpu_pick(0, 2) * 16;
    GPU_WHAT(", n %u, %u partial, %u sums%s%s", n, n_partial, n_sums, with_out ? ", out" : "", with_act ? ", act" : "");
    float *base = host_random((size_t)n_rows * n, -3, 3, CUDA_F32), *w = host_random(n, 0.3, 1.7, CUDA_F32),
          *partial = host_random(n_partial * stride, -1, 1, CUDA_F32),
          *sums = host_random((size_t)n_rows * n_sums, 0, 60, CUDA_F32);
    float *ref = host_floats((size_t)n_rows * n), *ref_act = host_floats((size_t)n_rows * n);
    for (uint32_t r = 0; r < n_rows; r++) {
        double total = 0;
        for (uint32_t j = 0; j < n_sums; j++) total += (double)sums[(size_t)r * n_sums + j];
        const double scale = n_sums ? 1 / sqrt(total / sum_n + (double)eps) : 1;
        for (uint32_t j = 0; j < n; j++) {
            double added = 0;
            for (uint32_t p = 0; p < n_partial; p++) added += (double)partial[p * stride + (size_t)r * n + j];
            ref[(size_t)r * n + j] = (float)((double)base[(size_t)r * n + j] + scale * added);
        }
        ref_rmsnorm(ref + (size_t)r * n, w, eps, n, ref_act + (size_t)r * n);
    }
    float *base_at = gpu_from(base, (size_t)n_rows * n), *out = !with_out  ? NULL
                                                                : in_place ? base_at
                                                                           : gpu_floats((size_t)n_rows * n);
    void *act = with_act ? gpu_act_out(n_rows, n, dtype) : NULL;
    const bool late = with_act && dtype != CUDA_F32 && gpu_pick(0, 1); /* the scale is for later */
    float *row_scale = late ? gpu_floats(n_rows) : NULL;
    const size_t n_squares = (size_t)n_rows * cuda_square_sums(n_rows, n);
    float *squares = gpu_pick(0, 1) ? gpu_floats(n_squares) : NULL;
    const float *partial_at = n_partial ? gpu_from(partial, n_partial * stride) : NULL,
                *sums_at = n_sums ? gpu_from(sums, (size_t)n_rows * n_sums) : NULL,
                *w_at = with_act ? gpu_from(w, n) : NULL;
    broken_rows_of(n_rows, NULL, -1);
    OF_ROWS(out == base_at ? READ | WRITTEN : READ, base_at, n_rows, n);
    if (out != base_at) OF_ROWS(WRITTEN, out, n_rows, n);
    OF_PARTS(READ, partial_at, n_partial, stride, n_rows, n);
    OF_ROWS(READ, sums_at, n_rows, n_sums);
    OF_ROWS(WRITTEN, row_scale, n_rows, 1);
    OF_ROWS(WRITTEN, squares, n_rows, cuda_square_sums(n_rows, n));
    if (act) OF_ACT(WRITTEN, act, n_rows, n, dtype);
    while (broken_again())
        GPU_RUN(k_add_norm, &(struct cuda_add_norm){.n_rows = n_rows,
                                                    .n = n,
                                                    .dtype = dtype,
                                                    .base = base_at,
                                                    .partial = {partial_at, n_partial, stride},
                                                    .sums = {sums_at, n_sums, sum_n, eps},
                                                    .w = w_at,
                                                    .eps = eps,
                                                    .out = out,
                                                    .act = act,
                                                    .row_scale = row_scale,
                                                    .squares = squares,
                                                    .n_squares = cuda_square_sums(n_rows, n)});
    if (gpu.breaks) return;
    if (out) gpu_check("sum", gpu_fetch(out, (size_t)n_rows * n), ref, (size_t)n_rows * n, 1e-6, 0);
    if (out != base_at) gpu_check_same("base", gpu_fetch(base_at, (size_t)n_rows * n), base, (size_t)n_rows * n);
    if (act) {
        float *got = gpu_fetch_act(act, n_rows, n, dtype), *scales = late ? gpu_fetch(row_scale, n_rows) : NULL;
        for (size_t j = 0; late && j < (size_t)n_rows * n; j++) got[j] *= scales[j / n];
        gpu_check("norm of the sum", got, ref_act, (size_t)n_rows * n, 2e-6, gpu_ulp(dtype));
    }
    if (squares) {
        gpu_check("squares", gpu_fetch(squares, n_squares),
                  gpu_square_sums(gpu_square_tiles(ref, n_rows, n), n_rows, n), n_squares, 2e-6, 0);
    }
}
static void sums_and_norms_equal_their_twins(void **state) {
    (void)state;
    gpu_rounds(add_norm_round);
}
static void a_row_of_nan_changes_no_other_row_s_sum_or_norm(void **state) {
    (void)state;
    broken_rounds(true, add_norm_round);
}

static void ffn_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    const struct model_dims d = gpu_dims(i, true);
    const uint32_t F = gpu_pick(0, 2) ? gpu_pick(1, 900) : d.F, splits = gpu_pick(1, 9);
    const uint32_t F8 = (F + 7) / 8 * 8; /* a2, g2 by eights */
    const size_t stride = (size_t)n_rows * 2 * F8 + gpu_pick(0, 2) * 16;
    GPU_WHAT(", F %u, %u splits", F, splits);
    const bool scaled = gpu_pick(0, 1);
    float *in = host_random(splits * stride, -4, 4, CUDA_F32), *ref = host_floats((size_t)n_rows * F),
          *row_scale = host_random(n_rows, 0.3, 1.2, CUDA_F32);
    for (uint32_t r = 0; r < n_rows; r++)
        for (uint32_t f = 0; f < F; f++) {
            double a = 0, g = 0;
            for (uint32_t p = 0; p < splits; p++) {
                const float *at = in + p * stride + (size_t)r * 2 * F8 + f / 8 * 16 + f % 8;
                a += (double)at[0];
                g += (double)at[8];
            }
            if (scaled) a *= (double)row_scale[r], g *= (double)row_scale[r];
            ref[(size_t)r * F + f] = (float)(a * g / (1 + exp(-g)));
        }
    void *act = gpu_act_out(n_rows, F, dtype);
    const float *in_at = gpu_from(in, splits * stride), *scale_at = scaled ? gpu_from(row_scale, n_rows) : NULL;
    broken_rows_of(n_rows, NULL, -1);
    OF_PARTS(READ, in_at, splits, stride, n_rows, 2 * F8);
    OF_ROWS(READ, scale_at, n_rows, 1);
    OF_ACT(WRITTEN, act, n_rows, F, dtype);
    while (broken_again())
        GPU_RUN(k_ffn_act, &(struct cuda_ffn_act){.n_rows = n_rows,
                                                  .F = F,
                                                  .dtype = dtype,
                                                  .in = {in_at, splits, stride},
                                                  .row_scale = scale_at,
                                                  .act = act});
    if (gpu.breaks) return;
    gpu_check("FFN gate", gpu_fetch_act(act, n_rows, F, dtype), ref, (size_t)n_rows * F, 3e-6, gpu_ulp(dtype));
}
static void the_gate_of_the_ffn_equals_its_twin(void **state) {
    (void)state;
    gpu_rounds(ffn_round);
}
static void a_row_of_nan_changes_no_other_row_s_gate(void **state) {
    (void)state;
    broken_rounds(true, ffn_round);
}

static void norm_rows_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    (void)dtype, (void)i; /* fp32 alone */
    const uint32_t n = gpu_pick(1, 1500);
    GPU_WHAT(", n %u", n);
    float *x = host_random((size_t)n_rows * n, -3, 3, CUDA_F32), *w = host_random(n, 0.3, 1.7, CUDA_F32),
          *ref = host_floats((size_t)n_rows * n), *at = gpu_from(x, (size_t)n_rows * n);
    for (uint32_t r = 0; r < n_rows; r++) ref_rmsnorm(x + (size_t)r * n, w, 1e-6f, n, ref + (size_t)r * n);
    const float *w_at = gpu_from(w, n);
    broken_rows_of(n_rows, NULL, -1);
    OF_ROWS(READ | WRITTEN, at, n_rows, n);
    while (broken_again()) GPU_RUN(k_norm_rows, at, w_at, 1e-6f, n_rows, n);
    if (gpu.breaks) return;
    gpu_check("norm in place", gpu_fetch(at, (size_t)n_rows * n), ref, (size_t)n_rows * n, 1e-6, 0);
}
static void a_norm_in_place_equals_its_twin(void **state) {
    (void)state;
    gpu_rounds(norm_rows_round);
}

static void gather_round(uint32_t n_list, enum cuda_dtype dtype, uint32_t i) {
    (void)dtype, (void)i;
    const uint32_t n = gpu_pick(1, 1500), n_rows = n_list + gpu_pick(0, 40);
    GPU_WHAT(", n %u of %u rows", n, n_rows);
    float *src = host_random((size_t)n_rows * n, -3, 3, CUDA_F32), *ref = host_floats((size_t)n_list * n),
          *dst = gpu_floats((size_t)n_list * n);
    int32_t *list = host_bytes(n_list * sizeof *list);
    for (uint32_t r = 0; r < n_list; r++) {
        list[r] = (int32_t)gpu_pick(0, n_rows - 1);
        memcpy(ref + (size_t)r * n, src + (size_t)list[r] * n, n * sizeof *ref);
    }
    const float *src_at = gpu_from(src, (size_t)n_rows * n);
    const int32_t *list_at = gpu_copy(list, n_list * sizeof *list);
    broken_rows_of(n_rows, NULL, -1);
    OF_ROWS(READ, src_at, n_rows, n);
    OF_LIST(WRITTEN, dst, list, n_list, n);
    while (broken_again()) GPU_RUN(k_gather_rows, src_at, list_at, n_list, n, dst);
    if (gpu.breaks) return;
    gpu_check_same("gathered rows", gpu_fetch(dst, (size_t)n_list * n), ref, (size_t)n_list * n);
}
static void gathered_rows_are_copies(void **state) {
    (void)state;
    gpu_rounds(gather_round);
}
static void a_row_of_nan_changes_no_other_row_of_a_norm_in_place_or_a_copy(void **state) {
    (void)state;
    broken_rounds(true, norm_rows_round);
    broken_rounds(true, gather_round);
}

GPU_MAIN(cmocka_unit_test(packed_rows_come_back_as_embeddings), cmocka_unit_test(sums_and_norms_equal_their_twins),
         cmocka_unit_test(the_gate_of_the_ffn_equals_its_twin), cmocka_unit_test(a_norm_in_place_equals_its_twin),
         cmocka_unit_test(gathered_rows_are_copies), cmocka_unit_test(a_row_of_nan_changes_no_other_row_s_sum_or_norm),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_s_gate),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_of_a_norm_in_place_or_a_copy))
