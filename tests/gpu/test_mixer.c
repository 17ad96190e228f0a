/* test_mixer.c - mixer.cu against its twins: convolution (E2), gates (E3, E5), state and read-out (E4, E6, E7). */
#include "mixer.h"

/* ---- E2 ---- */

static void conv_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct cuda_shape shape = mixer_shape(i, 700, dtype);
    const uint32_t E = shape.E, Ep = shape.Ep, K = shape.K, layer = gpu_pick(0, LAYERS - 1);
    struct gpu_rows rows = gpu_make_rows(n_rows, i % 2 ? 1 : 70, 9);
    GPU_WHAT(", %u segments, E %u, K %u", rows.n_segs, E, K);
    const size_t n_pool = (rows.n_slots + 1) * shape.conv_slot;
    float *az = host_random((size_t)n_rows * 2 * Ep, -2, 2, CUDA_F32),
          *w = host_random((size_t)K * Ep, -1, 1, CUDA_F32), *bias = host_random(E, -1, 1, CUDA_F32),
          *pool = host_random(n_pool, -2, 2, dtype), *ref_s = host_floats((size_t)n_rows * E),
          *ref_a = host_floats((size_t)n_rows * E), *want = host_copy(pool, n_pool), *a = host_floats(Ep);
    for (uint32_t g = 0; g < rows.n_segs && !gpu.breaks; g++)
        for (int32_t t = 0; t < rows.seg_n[g]; t++) {
            const size_t r = (size_t)(rows.seg_first[g] + t);
            const int64_t pos = rows.pos[r];
            float *tail = want + (size_t)rows.slot[r] * shape.conv_slot + layer * shape.conv_layer;
            const float *tap[8];
            memcpy(a, az + r * 2 * Ep, Ep * sizeof *a);
            for (uint32_t j = 0; j < K; j++) tap[j] = j + 1 == K ? a : tail + conv_place(&shape, pos, K - 1 - j) * Ep;
            ref_conv_silu(tap, K, w, Ep, bias, E, ref_s + r * E);
            memcpy(ref_a + r * E, a, E * sizeof *a);
            for (uint32_t e = 0; e < E; e++) tail[conv_place(&shape, pos, 0) * Ep + e] = gpu_round(a[e], dtype);
        }
    shape.conv = gpu_from_typed(pool, n_pool, dtype);
    float *s = gpu_floats((size_t)n_rows * Ep);
    void *s_act = gpu_act_out(n_rows, E, dtype), *a_act = gpu_act_out(n_rows, E, dtype);
    float *az_at = gpu_from(az, (size_t)n_rows * 2 * Ep);
    const float *w_at = gpu_from(w, (size_t)K * Ep), *bias_at = gpu_from(bias, E);
    broken_rows_of(n_rows, rows.slot, -1);
    OF_ROWS(READ, az_at, n_rows, 2 * Ep);
    OF_SLOTS(READ | WRITTEN, shape.conv, rows.n_slots + 1, shape.conv_slot, dtype);
    OF_ROWS(WRITTEN, s, n_rows, Ep);
    OF_ACT(WRITTEN, s_act, n_rows, E, dtype);
    OF_ACT(WRITTEN, a_act, n_rows, E, dtype);
    while (broken_again())
        GPU_RUN(k_conv,
                &(struct cuda_conv){.shape = shape,
                                    .layer = layer,
                                    .rows = rows.device,
                                    .n_rows = n_rows,
                                    .w = w_at,
                                    .bias = bias_at,
                                    .az = az_at,
                                    .s = s,
                                    .s_act = s_act,
                                    .a_act = a_act},
                rows.n_segs);
    if (gpu.breaks) return;
    float *got = gpu_fetch(s, (size_t)n_rows * Ep), *got_s = host_floats((size_t)n_rows * E);
    for (uint32_t r = 0; r < n_rows; r++) memcpy(got_s + (size_t)r * E, got + (size_t)r * Ep, E * sizeof *got);
    gpu_check("convolution", got_s, ref_s, (size_t)n_rows * E, 2e-6, 0);
    gpu_check("convolution, packed", gpu_fetch_act(s_act, n_rows, E, dtype), ref_s, (size_t)n_rows * E, 2e-6,
              gpu_ulp(dtype));
    for (size_t j = 0; j < (size_t)n_rows * E; j++) ref_a[j] = gpu_round(ref_a[j], dtype);
    gpu_check_same("its input, packed", gpu_fetch_act(a_act, n_rows, E, dtype), ref_a, (size_t)n_rows * E);
    gpu_check_same("the tails of all slots", gpu_fetch_typed(shape.conv, n_pool, dtype), want, n_pool);
}
static void the_convolution_equals_its_twin_and_moves_its_tail_on(void **state) {
    (void)state;
    gpu_rounds(conv_round);
}
static void a_session_of_nan_changes_no_other_s_convolution(void **state) {
    (void)state;
    broken_rounds(true, conv_round);
}

/* ---- E3, E5 ---- */

static void gates_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    const struct cuda_shape shape = mixer_shape(i, 64, dtype);
    const uint32_t M = shape.M, R = shape.R, splits = gpu_pick(1, 16), splits_c0 = gpu_pick(1, 16);
    const size_t stride = (size_t)n_rows * 4 * M + gpu_pick(0, 1) * 32, stride_c0 = (size_t)n_rows * R + 16;
    GPU_WHAT(", M %u, R %u, %u and %u splits", M, R, splits, splits_c0);
    const bool far = i % 5 == 4; /* into both tails of softplus, where g is below the smallest float */
    const double range = far ? 120 : 6;
    float *in = host_random(splits * stride, -range / splits, range / splits, CUDA_F32),
          *in_c0 = host_random(splits_c0 * stride_c0, -1, 1, CUDA_F32), *g_b = host_random(M, -3, 1, CUDA_F32),
          *t_b = host_random(M, -1, 1, CUDA_F32);
    const size_t n = (size_t)n_rows * M;
    float *q = host_floats(n), *k = host_floats(n), *log_alpha = host_floats(n), *c0 = host_floats((size_t)n_rows * R),
          *g = host_floats(M), *t = host_floats(M);
    for (uint32_t r = 0; r < n_rows && !gpu.breaks; r++) {
        for (uint32_t m = 0; m < M; m++) {
            double v[4] = {0};
            for (uint32_t p = 0; p < splits; p++)
                for (uint32_t j = 0; j < 4; j++) v[j] += (double)in[p * stride + (size_t)r * 4 * M + j * M + m];
            q[(size_t)r * M + m] = (float)v[0], k[(size_t)r * M + m] = (float)v[1];
            g[m] = (float)v[2], t[m] = (float)v[3];
        }
        const struct cpu_gates row = {q + (size_t)r * M, k + (size_t)r * M, log_alpha + (size_t)r * M, g, g_b, t, t_b};
        ref_gates(M, shape.k_eps, &row);
        for (uint32_t j = 0; j < R; j++) {
            double sum = 0;
            for (uint32_t p = 0; p < splits_c0; p++) sum += (double)in_c0[p * stride_c0 + (size_t)r * R + j];
            c0[(size_t)r * R + j] = (float)sum;
        }
    }
    float *at_q = gpu_floats(n), *at_k = gpu_floats(n), *at_l = gpu_floats(n), *at_c = gpu_floats((size_t)n_rows * R);
    const float *at_in = gpu_from(in, splits * stride), *at_in_c0 = gpu_from(in_c0, splits_c0 * stride_c0),
                *at_g_b = gpu_from(g_b, M), *at_t_b = gpu_from(t_b, M);
    broken_rows_of(n_rows, NULL, -1);
    OF_PARTS(READ, at_in, splits, stride, n_rows, 4 * M);
    OF_PARTS(READ, at_in_c0, splits_c0, stride_c0, n_rows, R);
    OF_ROWS(WRITTEN, at_q, n_rows, M);
    OF_ROWS(WRITTEN, at_k, n_rows, M);
    OF_ROWS(WRITTEN, at_l, n_rows, M);
    OF_ROWS(WRITTEN, at_c, n_rows, R);
    while (broken_again())
        GPU_RUN(
            k_gates, &shape,
            &(struct cuda_partials){
                .in = {at_in, splits, stride}, .c0 = {at_in_c0, splits_c0, stride_c0}, .g_b = at_g_b, .t_b = at_t_b},
            &(struct cuda_gates){.q = at_q, .k = at_k, .log_alpha = at_l, .c0 = at_c}, n_rows);
    if (gpu.breaks) return;
    gpu_check("q", gpu_fetch(at_q, n), q, n, 2e-6, 0);
    gpu_check("k with its gate", gpu_fetch(at_k, n), k, n, far ? 5e-5 : 1e-5, 0);
    gpu_check("log alpha", gpu_fetch(at_l, n), log_alpha, n, 5e-6, 0);
    gpu_check("c0", gpu_fetch(at_c, (size_t)n_rows * R), c0, (size_t)n_rows * R, 2e-6, 0);
}
static void the_gates_equal_their_twin(void **state) {
    (void)state;
    gpu_rounds(gates_round);
}
static void a_row_of_nan_changes_no_other_row_s_gates(void **state) {
    (void)state;
    broken_rounds(true, gates_round);
}

/* ---- E4, E6, E7 ---- */

static void gla_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct cuda_shape shape = mixer_shape(i, n_rows > 64 ? 120 : 400, dtype);
    const uint32_t E = shape.E, Ep = shape.Ep, M = shape.M, R = shape.R, layer = gpu_pick(0, LAYERS - 1);
    struct gpu_rows rows = gpu_make_rows(n_rows, i % 2 ? 1 : 70, 9);
    GPU_WHAT(", %u segments, E %u, M %u, R %u", rows.n_segs, E, M, R);
    struct mixer_inputs x = random_inputs(&shape, n_rows);
    const size_t n = n_rows, n_pool = (rows.n_slots + 1) * shape.S_slot;
    float *pool = host_random(n_pool, -1, 1, CUDA_F32), *out = host_floats(n * E);
    shape.S = gpu_from(pool, n_pool);
    if (!gpu.breaks) mixer_twin(&shape, &rows, layer, &x, pool, out);
    float *sums = gpu_floats(n * (Ep / 32));
    void *act = gpu_act_out(n_rows, E, dtype);
    const struct cuda_gates gates = {.q = gpu_from(x.q, n * M),
                                     .k = gpu_from(x.k, n * M),
                                     .log_alpha = gpu_from(x.log_alpha, n * M),
                                     .c0 = gpu_from(x.c0, n * R)};
    const struct cuda_state io = {.shape = shape,
                                  .layer = layer,
                                  .rows = rows.device,
                                  .c1 = gpu_from(x.c1, (size_t)E * R),
                                  .c1_b = gpu_from(x.c1_b, E),
                                  .az = gpu_from(x.az, n * 2 * Ep),
                                  .s = gpu_from(x.s, n * Ep),
                                  .residual = gpu_from(x.residual, E),
                                  .act_norm = gpu_from(x.act_norm, E),
                                  .sums = sums,
                                  .act = act};
    broken_rows_of(n_rows, rows.slot, -1);
    OF_ROWS(READ, gates.q, n_rows, M);
    OF_ROWS(READ, gates.k, n_rows, M);
    OF_ROWS(READ, gates.log_alpha, n_rows, M);
    OF_ROWS(READ, gates.c0, n_rows, R);
    OF_ROWS(READ, io.az, n_rows, 2 * Ep);
    OF_ROWS(READ, io.s, n_rows, Ep);
    OF_SLOTS(READ | WRITTEN, shape.S, rows.n_slots + 1, shape.S_slot, CUDA_F32);
    OF_ROWS(WRITTEN, sums, n_rows, Ep / 32);
    OF_ACT(WRITTEN, act, n_rows, E, dtype);
    while (broken_again()) GPU_RUN(k_gla, &io, &gates, rows.n_segs);
    if (gpu.breaks) return;
    float *ref_sums = host_floats(n * (Ep / 32));
    for (size_t r = 0; r < n; r++)
        for (uint32_t e = 0; e < E; e++) {
            ref_sums[r * (Ep / 32) + e / 32] += out[r * E + e] * out[r * E + e];
            out[r * E + e] *= x.act_norm[e];
        }
    check_states(&shape, &rows, layer, gpu_fetch(shape.S, n_pool), pool, 3e-6);
    gpu_check("read-out, gated", gpu_fetch_act(act, n_rows, E, dtype), out, n * E, 1e-5, gpu_ulp(dtype));
    gpu_check("sums of squares", gpu_fetch(sums, n * (Ep / 32)), ref_sums, n * (Ep / 32), 1e-5, 0);
}
static void the_state_and_its_read_out_equal_their_twin(void **state) {
    (void)state;
    gpu_rounds(gla_round);
}
static void a_session_of_nan_changes_no_other_s_state(void **state) {
    (void)state;
    broken_rounds(true, gla_round);
}

/* What k_gla_gates reads and writes, a token a row. */
static void name_state(const struct gpu_rows *rows, const struct cuda_state *io, const struct cuda_partials *in) {
    const struct cuda_shape *shape = &io->shape;
    const uint32_t n = rows->n_rows, n_slots = rows->n_slots;
    broken_rows_of(n, rows->slot, (int32_t)n_slots);
    OF_PARTS(READ, in->in.at, in->in.n, in->in.stride, n, 4 * shape->M);
    OF_PARTS(READ, in->c0.at, in->c0.n, in->c0.stride, n, shape->R);
    OF_ROWS(READ, io->az, n, 2 * shape->Ep);
    OF_ROWS(READ, io->s, n, shape->Ep);
    OF_ROWS(READ, io->row_scale, n, 1);
    OF_SLOTS(READ | WRITTEN, shape->S, n_slots + 1, shape->S_slot, CUDA_F32);
    OF_SLOTS(READ | WRITTEN, shape->deferred, n_slots + 1, shape->deferred_slot, CUDA_F32);
    OF_ROWS(WRITTEN, io->sums, n, shape->Ep / 32);
    OF_ACT(WRITTEN, io->act, n, shape->E, shape->dtype);
}

/* k_gla_gates is k_gates and k_gla, to the bit: a decode step takes the one, a step with prompts the others. Padding
 * rows, which it may leave out, change nothing for the others. */
static void fused_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct cuda_shape shape = mixer_shape(i, n_rows > 64 ? 120 : 400, dtype);
    if (n_rows > 250) { /* so many panels that a warp takes ten rows and more of its own */
        shape.E = (shape.M > 64 ? 560 : 1100) + gpu_pick(0, 5) * 4, shape.Ep = (shape.E + 31) / 32 * 32;
        shape.S_layer = (size_t)shape.Ep * shape.M, shape.S_slot = shape.S_layer * LAYERS;
    }
    const uint32_t E = shape.E, Ep = shape.Ep, M = shape.M, R = shape.R, layer = gpu_pick(0, LAYERS - 1),
                   splits = i % 3 ? 4 : 1;
    struct gpu_rows rows = gpu_make_rows(n_rows, 1, 9);
    GPU_WHAT(", E %u, M %u, R %u", E, M, R);
    struct mixer_inputs x = random_inputs(&shape, n_rows);
    const size_t n = n_rows, n_pool = (rows.n_slots + 1) * shape.S_slot, stride = n * 4 * M, stride_c0 = n * R;
    float *pool = host_random(n_pool, -1, 1, CUDA_F32);
    const struct cuda_partials partials = {
        .in = {gpu_from(host_random(splits * stride, -2, 2, CUDA_F32), splits * stride), splits, stride},
        .c0 = {gpu_from(host_random(splits * stride_c0, -1, 1, CUDA_F32), splits * stride_c0), splits, stride_c0},
        .g_b = gpu_from(host_random(M, -3, 1, CUDA_F32), M),
        .t_b = gpu_from(host_random(M, -1, 1, CUDA_F32), M)};
    const struct cuda_gates gates = {
        .q = gpu_floats(n * M), .k = gpu_floats(n * M), .log_alpha = gpu_floats(n * M), .c0 = gpu_floats(n * R)};
    struct cuda_state io = {.layer = layer,
                            .c1_b = gpu_from(x.c1_b, E),
                            .az = gpu_from(x.az, n * 2 * Ep),
                            .s = gpu_from(x.s, n * Ep),
                            .residual = gpu_from(x.residual, E),
                            .act_norm = gpu_from(x.act_norm, E)};
    float *transposed = host_floats(R * Ep);
    io.row_scale = i % 2 ? gpu_from(host_random(n, 0.5, 2, CUDA_F32), n) : NULL;
    for (uint32_t e = 0; e < E; e++)
        for (uint32_t j = 0; j < R; j++) transposed[j * Ep + e] = x.c1[e * R + j];
    const float *c1[2] = {gpu_from(x.c1, (size_t)E * R), gpu_from(transposed, R * Ep)};
    float *states[2], *read_outs[2], *all_sums[2];
    const uint8_t *padding = gpu_pad_rows(&rows);
    shape.n_slots = rows.n_slots;
    for (int fused = gpu.breaks; fused < 2; fused++) {
        shape.S = gpu_from(pool, n_pool);
        io.shape = shape, io.rows = rows.device, io.c1 = c1[fused];
        io.sums = gpu_floats(n * (Ep / 32)), io.act = gpu_act_out(n_rows, E, dtype);
        name_state(&rows, &io, &partials);
        if (fused)
            while (broken_again()) GPU_RUN(k_gla_gates, &io, &partials, n_rows);
        else {
            GPU_RUN(k_gates, &shape, &partials, &gates, n_rows);
            GPU_RUN(k_gla, &io, &gates, rows.n_segs);
        }
        if (gpu.breaks) return;
        states[fused] = gpu_fetch(shape.S, n_pool);
        read_outs[fused] = gpu_fetch_act(io.act, n_rows, E, dtype);
        all_sums[fused] = gpu_fetch(io.sums, n * (Ep / 32));
    }
    gpu_check_same("states", states[1], states[0], n_pool - shape.S_slot);
    for (uint32_t r = 0; r < n_rows; r++) {
        if (padding[r]) continue;
        gpu_check_same("read-out", read_outs[1] + r * E, read_outs[0] + r * E, E);
        gpu_check_same("sums of squares", all_sums[1] + r * (Ep / 32), all_sums[0] + r * (Ep / 32), Ep / 32);
    }
}
static void a_step_of_single_tokens_gives_the_bits_of_gates_and_state(void **state) {
    (void)state;
    gpu_rounds(fused_round);
}
static void a_row_of_nan_changes_no_other_s_state_in_a_step_of_single_tokens(void **state) {
    (void)state;
    broken_rounds(true, fused_round);
}

/* ---- S written back late ---- */

/* Steps of tokens, of which some are deferred, in both layers, against the same steps with S written in each. */
static void deferred_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    enum { STEPS = 5 };
    struct cuda_shape shape = mixer_shape(i, n_rows > 64 ? 120 : 400, dtype);
    if (!gpu.k->cuda_state_defers(&shape, n_rows)) return;
    if (i % 2) shape.M = 64, shape.S_layer = (size_t)shape.Ep * 64, shape.S_slot = shape.S_layer * LAYERS;
    const uint32_t E = shape.E, Ep = shape.Ep, M = shape.M, R = shape.R;
    struct gpu_rows rows = gpu_make_rows(n_rows, 1, 9);
    GPU_WHAT(", E %u, M %u, R %u", E, M, R);
    const size_t n = n_rows, n_slots = rows.n_slots, n_pool = (n_slots + 1) * shape.S_slot;
    const uint8_t *padding = gpu_pad_rows(&rows);
    shape.n_slots = rows.n_slots;
    cuda_lay_out_deferred(&shape, LAYERS, gpu_pick(0, 1), true);
    shape.deferred = gpu_from(host_floats((n_slots + 1) * shape.deferred_slot), (n_slots + 1) * shape.deferred_slot);
    float *pool = host_random(n_pool, -1, 1, CUDA_F32), *g_b = gpu_from(host_random(M, -3, 1, CUDA_F32), M),
          *t_b = gpu_from(host_random(M, -1, 1, CUDA_F32), M);
    float *S[2] = {gpu_from(pool, n_pool), gpu_from(pool, n_pool)};
    uint32_t *count = host_bytes(n_slots * sizeof *count), *word = host_bytes(n * sizeof *word);
    for (uint32_t t = 0; t < STEPS; t++) {
        struct mixer_inputs x = random_inputs(&shape, n_rows);
        const struct cuda_partials partials = {
            .in = {gpu_from(host_random(n * 4 * M, -2, 2, CUDA_F32), n * 4 * M), 1, n * 4 * M},
            .c0 = {gpu_from(host_random(n * R, -1, 1, CUDA_F32), n * R), 1, n * R},
            .g_b = g_b,
            .t_b = t_b};
        struct cuda_state io = {.c1 = gpu_from(host_random(R * Ep, -0.5, 0.5, CUDA_F32), R * Ep),
                                .c1_b = gpu_from(x.c1_b, E),
                                .az = gpu_from(x.az, n * 2 * Ep),
                                .s = gpu_from(x.s, n * Ep),
                                .residual = gpu_from(x.residual, E),
                                .act_norm = gpu_from(x.act_norm, E)};
        for (uint32_t r = 0; r < n_rows; r++) {
            if (padding[r]) continue; /* a word of 0 */
            uint32_t *c = &count[rows.slot[r]];
            const bool write = *c == CUDA_DEFERRED || gpu_pick(0, 3) == 0;
            word[r] = *c | (write ? CUDA_WRITE_BACK : 0);
            *c = write ? 0 : *c + 1;
        }
        const uint32_t *device_word = gpu_copy(word, n * sizeof *word);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            float *read_out[2], *sum[2];
            for (int late = 0; late < 2; late++) {
                io.shape = shape, io.layer = layer, io.rows = rows.device;
                io.rows.deferred = late ? device_word : NULL, io.shape.S = S[late];
                io.sums = gpu_floats(n * (Ep / 32)), io.act = gpu_act_out(n_rows, E, dtype);
                GPU_RUN(k_gla_gates, &io, &partials, n_rows);
                read_out[late] = gpu_fetch_act(io.act, n_rows, E, dtype);
                sum[late] = gpu_fetch(io.sums, n * (Ep / 32));
            }
            for (uint32_t r = 0; r < n_rows; r++) {
                if (padding[r]) continue;
                gpu_check_same("read-out", read_out[1] + r * E, read_out[0] + r * E, E);
                gpu_check_same("sums of squares", sum[1] + r * (Ep / 32), sum[0] + r * (Ep / 32), Ep / 32);
            }
        }
    }
    struct cuda_late *slots = host_bytes(n * sizeof *slots);
    uint32_t n_used = 0;
    for (uint32_t r = 0; r < n_rows; r++)
        if (!padding[r]) slots[n_used++] = (struct cuda_late){.slot = (uint32_t)rows.slot[r]};
    shape.n_deferred = gpu_copy(count, n_slots * sizeof *count);
    shape.S = S[1];
    GPU_RUN(k_write_back, &shape, LAYERS, slots, n_used);
    gpu_check_same("states, written back", gpu_fetch(S[1], n_pool), gpu_fetch(S[0], n_pool), n_pool - shape.S_slot);
    gpu_expect(gpu.k->read(count, shape.n_deferred, n_slots * sizeof *count, gpu.stream), "reading the counts");
    for (uint32_t slot = 0; slot < n_slots; slot++)
        if (count[slot]) fail_msg("%s: slot %u still has %u tokens deferred", gpu.what, slot, count[slot]);
}
static void a_state_that_is_written_late_gives_the_same_bits(void **state) {
    (void)state;
    gpu_rounds(deferred_round);
}

/* One step with some tokens deferred and some deferred before it; then S takes them. */
static void deferred_broken_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct cuda_shape shape = mixer_shape(i, n_rows > 64 ? 120 : 400, dtype);
    if (!gpu.k->cuda_state_defers(&shape, n_rows)) return;
    if (i % 2) shape.M = 64, shape.S_layer = (size_t)shape.Ep * 64, shape.S_slot = shape.S_layer * LAYERS;
    const uint32_t E = shape.E, Ep = shape.Ep, M = shape.M, R = shape.R;
    struct gpu_rows rows = gpu_make_rows(n_rows, 1, 9);
    GPU_WHAT(", E %u, M %u, R %u", E, M, R);
    const size_t n = n_rows, n_slots = rows.n_slots, n_pool = (n_slots + 1) * shape.S_slot;
    const uint8_t *padding = gpu_pad_rows(&rows);
    shape.n_slots = rows.n_slots;
    cuda_lay_out_deferred(&shape, LAYERS, gpu_pick(0, 1), true);
    const size_t n_late = (n_slots + 1) * shape.deferred_slot;
    shape.deferred = gpu_from(host_random(n_late, 0, 1, CUDA_F32), n_late);
    shape.S = gpu_from(host_random(n_pool, -1, 1, CUDA_F32), n_pool);
    uint32_t *word = host_bytes(n * sizeof *word), *count = host_bytes(n_slots * sizeof *count);
    struct cuda_late *slots = host_bytes(n_slots * sizeof *slots);
    for (uint32_t r = 0; r < n_rows; r++) {
        const uint32_t c = gpu_pick(0, CUDA_DEFERRED);
        if (!padding[r]) word[r] = c | (c == CUDA_DEFERRED || gpu_pick(0, 2) == 0 ? CUDA_WRITE_BACK : 0);
    }
    for (uint32_t j = 0; j < n_slots; j++) slots[j].slot = j, count[j] = gpu_pick(0, CUDA_DEFERRED);
    struct mixer_inputs x = random_inputs(&shape, n_rows);
    rows.device.deferred = gpu_copy(word, n * sizeof *word);
    shape.n_deferred = gpu_copy(count, n_slots * sizeof *count);
    const struct cuda_partials partials = {
        .in = {gpu_from(host_random(n * 4 * M, -2, 2, CUDA_F32), n * 4 * M), 1, n * 4 * M},
        .c0 = {gpu_from(host_random(n * R, -1, 1, CUDA_F32), n * R), 1, n * R},
        .g_b = gpu_from(host_random(M, -3, 1, CUDA_F32), M),
        .t_b = gpu_from(host_random(M, -1, 1, CUDA_F32), M)};
    const struct cuda_state io = {.shape = shape,
                                  .layer = i / 2 % LAYERS,
                                  .rows = rows.device,
                                  .c1 = gpu_from(host_random(R * Ep, -0.5, 0.5, CUDA_F32), R * Ep),
                                  .c1_b = gpu_from(x.c1_b, E),
                                  .az = gpu_from(x.az, n * 2 * Ep),
                                  .s = gpu_from(x.s, n * Ep),
                                  .residual = gpu_from(x.residual, E),
                                  .act_norm = gpu_from(x.act_norm, E),
                                  .sums = gpu_floats(n * (Ep / 32)),
                                  .act = gpu_act_out(n_rows, E, dtype)};
    name_state(&rows, &io, &partials);
    while (broken_again()) GPU_RUN(k_gla_gates, &io, &partials, n_rows);
    broken_rows_of(n_rows, rows.slot, -1);
    OF_SLOTS(READ | WRITTEN, shape.S, (uint32_t)n_slots + 1, shape.S_slot, CUDA_F32);
    OF_SLOTS(READ | WRITTEN, shape.deferred, (uint32_t)n_slots + 1, shape.deferred_slot, CUDA_F32);
    OF_SLOTS(WRITTEN, shape.n_deferred, (uint32_t)n_slots, 1, CUDA_F32);
    while (broken_again()) GPU_RUN(k_write_back, &shape, LAYERS, slots, (uint32_t)n_slots);
}
static void a_row_of_nan_changes_no_other_s_state_that_is_written_late(void **state) {
    (void)state;
    broken_rounds(true, deferred_broken_round);
}

/* ---- tokens with drafts behind them ---- */

/* Of a step's rows, on the host: [splits][n][4 M], [splits][n][R], [n][2 Ep], [n][Ep], [n] or NULL; of all of them, on
 * the device. */
struct draft_inputs {
    uint32_t splits;
    float *in, *in_c0, *az, *s, *row_scale;
    const float *g_b, *t_b, *c1, *c1_b, *residual, *act_norm;
};
static struct draft_inputs random_draft_inputs(const struct cuda_shape *s, uint32_t n_rows, uint32_t i) {
    const size_t n = n_rows, M = s->M, R = s->R, E = s->E, Ep = s->Ep, splits = i % 3 ? 4 : 1;
    return (struct draft_inputs){
        .splits = (uint32_t)splits,
        .in = host_random(splits * n * 4 * M, -2, 2, CUDA_F32),
        .in_c0 = host_random(splits * n * R, -1, 1, CUDA_F32),
        .az = host_random(n * 2 * Ep, -2, 2, CUDA_F32),
        .s = host_random(n * Ep, -1, 2, CUDA_F32),
        .row_scale = i % 2 ? host_random(n, 0.5, 2, CUDA_F32) : NULL,
        .g_b = gpu_from(host_random(M, -3, 1, CUDA_F32), M),
        .t_b = gpu_from(host_random(M, -1, 1, CUDA_F32), M),
        .c1 = gpu_from(host_random(R * Ep, -0.5, 0.5, CUDA_F32), R * Ep),
        .c1_b = gpu_from(host_random(E, -1, 1, CUDA_F32), E),
        .residual = gpu_from(host_random(E, 0.5, 1.5, CUDA_F32), E),
        .act_norm = gpu_from(host_random(E, 0.5, 1.5, CUDA_F32), E),
    };
}
/* The rows list[0..n) of `parts` parts of n_all rows each, `cols` columns. */
static float *rows_of(const float *from, size_t parts, size_t n_all, size_t cols, const uint32_t *list, size_t n) {
    float *to = host_floats(parts * n * cols);
    for (size_t p = 0; p < parts; p++)
        for (size_t j = 0; j < n; j++)
            memcpy(to + (p * n + j) * cols, from + (p * n_all + list[j]) * cols, cols * sizeof *to);
    return gpu_from(to, parts * n * cols);
}
/* The rows of the list as a step of single tokens: what they give goes to act [n_rows][E] and sums [n_rows][Ep / 32].
 */
static void single_step(const struct cuda_shape *shape, uint32_t layer, const struct gpu_rows *rows,
                        const struct draft_inputs *x, const uint32_t *list, uint32_t n, float *act, float *sums) {
    const size_t N = rows->n_rows, M = shape->M, R = shape->R, E = shape->E, Ep = shape->Ep, groups = Ep / 32;
    int32_t *slot = host_bytes(n * sizeof *slot);
    int32_t *first = host_bytes(n * sizeof *first);
    for (uint32_t j = 0; j < n; j++) slot[j] = rows->slot[list[j]], first[j] = (int32_t)j;
    const struct cuda_rows of_step = {.slot = gpu_copy(slot, n * sizeof *slot),
                                      .seg_first = gpu_copy(first, n * sizeof *first)};
    const struct cuda_partials partials = {.in = {rows_of(x->in, x->splits, N, 4 * M, list, n), x->splits, n * 4 * M},
                                           .c0 = {rows_of(x->in_c0, x->splits, N, R, list, n), x->splits, n * R},
                                           .g_b = x->g_b,
                                           .t_b = x->t_b};
    const struct cuda_state io = {.shape = *shape,
                                  .layer = layer,
                                  .rows = of_step,
                                  .c1 = x->c1,
                                  .c1_b = x->c1_b,
                                  .az = rows_of(x->az, 1, N, 2 * Ep, list, n),
                                  .row_scale = x->row_scale ? rows_of(x->row_scale, 1, N, 1, list, n) : NULL,
                                  .s = rows_of(x->s, 1, N, Ep, list, n),
                                  .residual = x->residual,
                                  .act_norm = x->act_norm,
                                  .sums = gpu_floats(n * groups),
                                  .act = gpu_act_out(n, shape->E, shape->dtype)};
    GPU_RUN(k_gla_gates, &io, &partials, n);
    const float *got = gpu_fetch_act(io.act, n, shape->E, shape->dtype), *got_sums = gpu_fetch(io.sums, n * groups);
    for (uint32_t j = 0; j < n; j++) {
        memcpy(act + list[j] * E, got + j * E, E * sizeof *act);
        memcpy(sums + list[j] * groups, got_sums + j * groups, groups * sizeof *sums);
    }
}
static struct cuda_partials draft_partials(const struct cuda_shape *s, const struct draft_inputs *x, size_t n) {
    return (struct cuda_partials){.in = {gpu_from(x->in, x->splits * n * 4 * s->M), x->splits, n * 4 * s->M},
                                  .c0 = {gpu_from(x->in_c0, x->splits * n * s->R), x->splits, n * s->R},
                                  .g_b = x->g_b,
                                  .t_b = x->t_b};
}
/* The step with its drafts; S and what leaves are the caller's. */
static struct cuda_state draft_state(const struct cuda_shape *s, uint32_t layer, const struct gpu_rows *rows,
                                     const struct draft_inputs *x) {
    const size_t n = rows->n_rows;
    return (struct cuda_state){.shape = *s,
                               .layer = layer,
                               .rows = rows->device,
                               .c1 = x->c1,
                               .c1_b = x->c1_b,
                               .az = gpu_from(x->az, n * 2 * s->Ep),
                               .row_scale = x->row_scale ? gpu_from(x->row_scale, n) : NULL,
                               .s = gpu_from(x->s, n * s->Ep),
                               .residual = x->residual,
                               .act_norm = x->act_norm,
                               .sums = gpu_floats(n * (s->Ep / 32)),
                               .act = gpu_act_out(rows->n_rows, s->E, s->dtype)};
}
/* Rows `from` .. `to` of each segment, token by token, to[g] the last one. */
static void single_steps(const struct cuda_shape *shape, uint32_t layer, const struct gpu_rows *rows,
                         const struct draft_inputs *x, const uint32_t *from, const uint32_t *to, float *act,
                         float *sums) {
    uint32_t *list = host_bytes(rows->n_segs * sizeof *list);
    for (uint32_t t = 0; t <= CUDA_DRAFTS; t++) {
        uint32_t n = 0;
        for (uint32_t g = 0; g < rows->n_segs; g++)
            if (from[g] <= t && t <= to[g]) list[n++] = (uint32_t)rows->seg_first[g] + t;
        if (n) single_step(shape, layer, rows, x, list, n, act, sums);
    }
}

static struct cuda_shape draft_shape(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i, uint32_t n_slots) {
    struct cuda_shape s = mixer_shape(i, n_rows > 64 ? 120 : 400, dtype);
    if (i % 2) s.M = 64, s.S_layer = (size_t)s.Ep * 64, s.S_slot = s.S_layer * LAYERS;
    s.n_slots = n_slots;
    cuda_lay_out_deferred(&s, LAYERS, true, true);
    return s;
}
/* Some segments are padding: of one row. Returns for each. */
static uint8_t *pad_segments(struct gpu_rows *rows) {
    uint8_t *padding = host_bytes(rows->n_segs);
    for (uint32_t g = 1; g < rows->n_segs; g++) {
        padding[g] = rows->seg_n[g] == 1 && gpu_pick(0, 1);
        if (padding[g]) rows->slot[rows->seg_first[g]] = (int32_t)rows->n_slots;
    }
    rows->device.slot = gpu_copy(rows->slot, rows->n_rows * sizeof *rows->slot);
    return padding;
}

/* Steps of tokens with drafts, of which some are right, in both layers, against the right ones in steps of their own.
 */
static void drafts_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    enum { STEPS = 3 };
    struct gpu_rows rows = gpu_make_rows(n_rows, CUDA_DRAFTS + 1, 9);
    struct cuda_shape shape = draft_shape(n_rows, dtype, i, rows.n_slots);
    const size_t n = n_rows, E = shape.E, groups = shape.Ep / 32, n_segs = rows.n_segs,
                 n_pool = (rows.n_slots + 1) * shape.S_slot, n_late = (rows.n_slots + 1) * shape.deferred_slot;
    GPU_WHAT(", %u segments, E %u, M %u, R %u", rows.n_segs, shape.E, shape.M, shape.R);
    const uint8_t *padding = pad_segments(&rows);
    shape.deferred = gpu_floats(n_late);
    const float *pool = host_random(n_pool, -1, 1, CUDA_F32);
    float *S[2] = {gpu_from(pool, n_pool), gpu_from(pool, n_pool)};
    struct cuda_late *late = host_bytes(n_segs * sizeof *late);
    uint32_t *none = host_bytes(n_segs * sizeof *none), *right = host_bytes(n_segs * sizeof *right),
             *wrong = host_bytes(n_segs * sizeof *wrong), *last = host_bytes(n_segs * sizeof *last);
    for (uint32_t step = 0; step < STEPS; step++) {
        const struct draft_inputs x = random_draft_inputs(&shape, n_rows, i + step);
        uint32_t *word = host_bytes(n * sizeof *word);
        for (uint32_t g = 0; g < n_segs; g++) {
            last[g] = (uint32_t)rows.seg_n[g] - 1, right[g] = gpu_pick(0, last[g]), wrong[g] = right[g] + 1;
            word[rows.seg_first[g]] = late[g].n_late | (late[g].second ? CUDA_LATE_SECOND : 0);
        }
        rows.device.deferred = gpu_copy(word, n * sizeof *word);
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            float *ref = host_floats(n * E), *ref_sums = host_floats(n * groups);
            shape.S = S[1];
            const struct cuda_partials partials = draft_partials(&shape, &x, n);
            const struct cuda_state io = draft_state(&shape, layer, &rows, &x);
            GPU_RUN(k_gla_drafts, &io, &partials, rows.n_segs);
            shape.S = S[0];
            single_steps(&shape, layer, &rows, &x, none, right, ref, ref_sums);
            shape.S = gpu_from(gpu_fetch(S[0], n_pool), n_pool);
            single_steps(&shape, layer, &rows, &x, wrong, last, ref, ref_sums);
            const float *got = gpu_fetch_act(io.act, n_rows, shape.E, dtype),
                        *got_sums = gpu_fetch(io.sums, n * groups);
            for (size_t g = 0; g < n_segs; g++) {
                const size_t first = (size_t)rows.seg_first[g], some = (size_t)rows.seg_n[g];
                if (padding[g]) continue;
                gpu_check_same("read-out", got + first * E, ref + first * E, some * E);
                gpu_check_same("sums of squares", got_sums + first * groups, ref_sums + first * groups, some * groups);
            }
        }
        for (uint32_t g = 0; g < n_segs; g++)
            late[g] =
                (struct cuda_late){(uint32_t)rows.slot[rows.seg_first[g]], right[g], last[g] ? !late[g].second : false};
    }
    uint32_t n_used = 0;
    for (uint32_t g = 0; g < n_segs; g++)
        if (!padding[g]) late[n_used++] = late[g];
    shape.S = S[1];
    GPU_RUN(k_write_back, &shape, LAYERS, late, n_used);
    gpu_check_same("states, written back", gpu_fetch(S[1], n_pool), gpu_fetch(S[0], n_pool), n_pool - shape.S_slot);
}
static void tokens_with_drafts_give_the_bits_of_single_steps(void **state) {
    (void)state;
    gpu_rounds(drafts_round);
}

/* One step, of sessions whose S lacks some tokens. */
static void drafts_broken_round(uint32_t n_rows, enum cuda_dtype dtype, uint32_t i) {
    struct gpu_rows rows = gpu_make_rows(n_rows, CUDA_DRAFTS + 1, 9);
    struct cuda_shape shape = draft_shape(n_rows, dtype, i, rows.n_slots);
    const size_t n = n_rows, n_pool = (rows.n_slots + 1) * shape.S_slot,
                 n_late = (rows.n_slots + 1) * shape.deferred_slot;
    GPU_WHAT(", %u segments, E %u, M %u, R %u", rows.n_segs, shape.E, shape.M, shape.R);
    pad_segments(&rows);
    shape.deferred = gpu_from(host_random(n_late, 0, 1, CUDA_F32), n_late);
    shape.S = gpu_from(host_random(n_pool, -1, 1, CUDA_F32), n_pool);
    const struct draft_inputs x = random_draft_inputs(&shape, n_rows, i);
    uint32_t *word = host_bytes(n * sizeof *word);
    for (uint32_t g = 0; g < rows.n_segs; g++)
        word[rows.seg_first[g]] = gpu_pick(0, CUDA_DRAFTS) | (gpu_pick(0, 1) ? CUDA_LATE_SECOND : 0);
    rows.device.deferred = gpu_copy(word, n * sizeof *word);
    const struct cuda_partials partials = draft_partials(&shape, &x, n);
    const struct cuda_state io = draft_state(&shape, i / 2 % LAYERS, &rows, &x);
    name_state(&rows, &io, &partials);
    while (broken_again()) GPU_RUN(k_gla_drafts, &io, &partials, rows.n_segs);
}
static void a_session_of_nan_changes_no_other_s_state_in_a_step_with_drafts(void **state) {
    (void)state;
    broken_rounds(true, drafts_broken_round);
}

GPU_MAIN(cmocka_unit_test(the_convolution_equals_its_twin_and_moves_its_tail_on),
         cmocka_unit_test(the_gates_equal_their_twin), cmocka_unit_test(the_state_and_its_read_out_equal_their_twin),
         cmocka_unit_test(a_step_of_single_tokens_gives_the_bits_of_gates_and_state),
         cmocka_unit_test(a_state_that_is_written_late_gives_the_same_bits),
         cmocka_unit_test(a_session_of_nan_changes_no_other_s_convolution),
         cmocka_unit_test(a_row_of_nan_changes_no_other_row_s_gates),
         cmocka_unit_test(a_session_of_nan_changes_no_other_s_state),
         cmocka_unit_test(a_row_of_nan_changes_no_other_s_state_in_a_step_of_single_tokens),
         cmocka_unit_test(a_row_of_nan_changes_no_other_s_state_that_is_written_late),
         cmocka_unit_test(tokens_with_drafts_give_the_bits_of_single_steps),
         cmocka_unit_test(a_session_of_nan_changes_no_other_s_state_in_a_step_with_drafts))
