// state_drafts.cuh - what the kernels of the state in decode steps with drafts share (state_drafts.cu,
// state_drafts_many.cu), so that a row's bits depend on neither. A block: two panels of S (32 channels, [M][32]), four
// warps a panel, a lane a channel. A warp has the groups m = 4 h .. 4 h + 3 mod 16 of the panel in registers.
#pragma once
#include "kernels/cuda/decode/state.cuh"

enum { PANELS = 2, PANEL_WARPS = 4, DRAFT_WARPS = PANELS * PANEL_WARPS, MOST_ROWS = CUDA_DRAFTS + 1, G = 4 };
static_assert((int)MOST_ROWS <= (int)DRAFT_WARPS && MOST_ROWS <= 2 * PANEL_WARPS,
              "a warp makes the gates of a row, and has the inputs of two at most");

// k and alpha of the slot's token i, in the first or second place.
__device__ __forceinline__ float *late_gates(const state_io &io, uint32_t slot, uint32_t i, bool second) {
    return deferred_at(io, slot, i) + io.shape.Ep + (second ? 2 * ((io.shape.M + 3) / 4 * 4) : 0);
}

// E6 of a warp's rows at a channel: v takes in a token. I: M / 16 at most; WHOLE: M is 16 I.
template <int I, bool WHOLE>
__device__ __forceinline__ void take_in(float (&v)[I][G], const float *k, const float *a, uint32_t M, uint32_t m0,
                                        float u) {
#pragma unroll
    for (int i = 0; i < I; i++) {
        if (!WHOLE && 16 * i + m0 >= M) break;
        const float4 k4 = *(const float4 *)(k + 16 * i + m0), a4 = *(const float4 *)(a + 16 * i + m0);
        const float ks[G] = {k4.x, k4.y, k4.z, k4.w}, as[G] = {a4.x, a4.y, a4.z, a4.w};
#pragma unroll
        for (int g = 0; g < G; g++) v[i][g] = __fmaf_rn(as[g], v[i][g], __fmul_rn(ks[g], u));
    }
}
// E7: o by groups.
template <int I, bool WHOLE>
__device__ __forceinline__ void read_out(float (&o)[G], const float (&v)[I][G], const float *q, uint32_t M,
                                         uint32_t m0) {
#pragma unroll
    for (int g = 0; g < G; g++) o[g] = 0;
#pragma unroll
    for (int i = 0; i < I; i++) {
        if (!WHOLE && 16 * i + m0 >= M) break;
        const float4 q4 = *(const float4 *)(q + 16 * i + m0);
        const float qs[G] = {q4.x, q4.y, q4.z, q4.w};
#pragma unroll
        for (int g = 0; g < G; g++)
            if (WHOLE || 16 * i + m0 + g < M) o[g] = __fmaf_rn(qs[g], v[i][g], o[g]);
    }
}

// q, k and alpha of a row, and its low rank, by a warp. keep: where k and alpha stay; NULL: nowhere.
template <class Shared, int MOST>
__device__ __forceinline__ void make_row(const state_io &io, const gates_in &in, Shared &sh, uint32_t t, uint32_t r,
                                         const float (&bias_g)[MOST], const float (&bias_t)[MOST], float *keep) {
    const uint32_t R = io.shape.R, M4 = (io.shape.M + 3) / 4 * 4;
    gates_of(io.shape, in.in, in.splits, in.split_stride, r, bias_g, bias_t,
             [&](uint32_t m, float q, float k, float log_alpha) {
                 const float alpha = expf(log_alpha);
                 sh.q[t][m] = q, sh.k[t][m] = k, sh.a[t][m] = alpha;
                 if (keep) keep[m] = k, keep[M4 + m] = alpha;
             });
    for (uint32_t i = threadIdx.x % 32; i < max(R, (uint32_t)STATE_EARLY_R); i += 32)
        sh.low[t][i] = i < R ? low_rank_of(io.shape, in.in_c0, in.splits_c0, in.split_stride_c0, r, i) : 0.0f;
}

void state_drafts_many(const state_io &io, const gates_in &in, uint32_t n_segs, enum dispatch_kernel kernel,
                       void *stream);
