// state.cuh - what the state's kernels of decode steps share (state.cu, state_drafts.cu): E4's low rank, a channel's
// inputs and outputs, where tokens are that S does not hold yet. One text, so that a row's bits do not depend on the
// kernel.
#pragma once
#include "kernels/cuda/gates.cuh"

enum { STATE_GROUPS = 16, STATE_EARLY_R = 32 };

// E4's low rank at one channel: gla_kernel's four partial sums, i = part, part + 4, ...; early holds the first of c1
// [R][Ep]. low: zeros from R up to STATE_EARLY_R.
template <int PARTS> // of the four, from `first` on
__device__ __forceinline__ void c1_early(float (&early)[PARTS][STATE_EARLY_R / 4], const float *c1, uint32_t R,
                                         uint32_t Ep, uint32_t first) {
#pragma unroll
    for (int l = 0; l < PARTS; l++)
#pragma unroll
        for (int j = 0; j < STATE_EARLY_R / 4; j++)
            early[l][j] = first + l + 4 * j < R ? c1[(size_t)(first + l + 4 * j) * Ep] : 0.0f;
}
template <int PARTS>
__device__ __forceinline__ void low_rank_parts(float (&sum)[PARTS], const float (&early)[PARTS][STATE_EARLY_R / 4],
                                               const float *c1, const float *low, uint32_t R, uint32_t Ep,
                                               uint32_t first) {
#pragma unroll
    for (int l = 0; l < PARTS; l++) {
        sum[l] = 0;
#pragma unroll
        for (int j = 0; j < STATE_EARLY_R / 4; j++) sum[l] = __fmaf_rn(early[l][j], low[first + l + 4 * j], sum[l]);
#pragma unroll 1
        for (uint32_t i = first + l + STATE_EARLY_R; i < R; i += 4)
            sum[l] = __fmaf_rn(c1[(size_t)i * Ep], low[i], sum[l]);
    }
}
struct channel_in {
    float a, z, s, scale;
};
__device__ __forceinline__ channel_in read_channel(const cuda_state &io, uint32_t r, uint32_t e) {
    channel_in x = {0, 0, 0, io.row_scale ? io.row_scale[r] : 1.0f};
    if (e < io.shape.E) {
        const float *az = io.az + (size_t)r * 2 * io.shape.Ep + e;
        x.a = az[0], x.z = az[io.shape.Ep], x.s = io.s[(size_t)r * io.shape.Ep + e];
    }
    return x;
}
// o of a channel -> gated, and the panel's sum of squares; a whole warp calls it.
template <class T>
__device__ __forceinline__ void finish_channel(const cuda_state &io, const channel_in &x, uint32_t r, uint32_t e,
                                               float residual, float act_norm, float o) {
    float out = 0;
    if (e < io.shape.E) {
        out = __fmaf_rn(residual, x.s, o) * silu(x.z * x.scale);
        ((T *)io.act)[act_at<T>(r, e, (io.shape.E + 15) / 16 * 16)] = from_float<T>(out * act_norm);
    }
    const float square = warp_sum(out * out);
    if (threadIdx.x % 32 == 0) io.sums[(size_t)r * (io.shape.Ep / 32) + e / 32] = square;
}
__device__ __forceinline__ float *deferred_at(const cuda_state &io, uint32_t slot,
                                              uint32_t i) { // token i's u [Ep], k [M4], alpha [M4]
    return io.shape.deferred + (size_t)slot * io.shape.deferred_slot + io.layer * io.shape.deferred_layer +
           i * io.shape.deferred_token;
}
