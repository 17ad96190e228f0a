// gates.cuh - a row's gates (E3, E5) from the partial products: what the kernels of mixer.cu and state.cu share.
#pragma once
#include "common.cuh"

// What launchers assert: sizes that the kernels have room for, partial products that are there.
static inline bool are_gates(const cuda_shape &s, const cuda_partials &in, size_t n_rows) {
    return s.M > 0 && s.M <= 128 && s.R > 0 && s.R <= 128 && are_parts(in.in, n_rows * 4 * s.M) &&
           are_parts(in.c0, n_rows * s.R);
}
static inline bool is_state(const cuda_state &io) {
    const cuda_shape &s = io.shape;
    return s.M > 0 && s.M <= 128 && s.R <= 128 && s.Ep % 32 == 0 && s.E <= s.Ep && s.S_slot % 4 == 0 &&
           s.S_layer % 4 == 0 && on_16_bytes(s.S, io.act);
}
void gla_of_partial(const cuda_state &io, const cuda_partials &in, uint32_t n_rows,
                    void *stream); // mixer.cu: any device

// log g from the pre-activation, also where g = softplus(x) is below the smallest float.
__device__ __forceinline__ float log_softplus(float x, float g) {
    float y = expf(x);
    return x < -8.0f ? x + y * (y * (5.0f / 24) - 0.5f) : logf(g);
}

// Of one m: put(q, k with i, log_alpha) from the pre-activations q, k, gate, tau.
template <class F>
__device__ __forceinline__ void gate_of(uint32_t M, const float (&in)[4], float norm, float bias_g, float bias_t,
                                        F put) {
    const float x = in[2] + bias_g, tau = 1.0f / (1.0f + expf(-(in[3] + bias_t)));
    const float g = fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
    put(in[0] * rsqrtf((float)M), in[1] / norm * expf(log_softplus(x, g) * tau), -(g * tau));
}
// The norm of k [M]; a whole warp calls it and every lane has it, in gates_of's order.
__device__ __forceinline__ float key_norm(const cuda_shape &shape, const float *k) {
    float squares = 0;
#pragma unroll 1
    for (uint32_t m = threadIdx.x % 32; m - threadIdx.x % 32 < shape.M; m += 64) {
        const float x = m < shape.M ? k[m] : 0.0f, y = m + 32 < shape.M ? k[m + 32] : 0.0f;
        squares = (squares + warp_sum(x * x)) + warp_sum(y * y);
    }
    return fmaxf(sqrtf(squares), shape.k_eps);
}

// One row's gates by one warp, lane l those of m = l, l + 32, ...: their sums from the partial products in
// [splits][.][4 M + R],
template <int MOST> // of m's a lane
__device__ __forceinline__ void gate_sums(const cuda_shape &shape, const cuda_parts &in, uint32_t r,
                                          float (&v)[MOST][4]) {
    const uint32_t M = shape.M, lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < MOST; j++) {
        const uint32_t m = lane + 32 * j;
#pragma unroll
        for (int i = 0; i < 4; i++) v[j][i] = 0;
        if (m < M)
#pragma unroll 4
            for (uint32_t p = 0; p < in.n; p++)
#pragma unroll
                for (int i = 0; i < 4; i++) v[j][i] += in.at[p * in.stride + (size_t)r * 4 * M + i * M + m];
    }
}
// and put(m, q, k with i, log_alpha) from them.
template <int MOST, class F>
__device__ __forceinline__ void gates_of_sums(const cuda_shape &shape, const float (&v)[MOST][4],
                                              const float (&bias_g)[MOST], const float (&bias_t)[MOST], F put) {
    float squares = 0;
#pragma unroll
    for (int j = 0; j < MOST; j++)
        if (32 * j < shape.M) squares += warp_sum(v[j][1] * v[j][1]);
    const float norm = fmaxf(sqrtf(squares), shape.k_eps);
#pragma unroll
    for (int j = 0; j < MOST; j++) {
        const uint32_t m = threadIdx.x % 32 + 32 * j;
        if (m >= shape.M) continue;
        gate_of(shape.M, v[j], norm, bias_g[j], bias_t[j],
                [&](float q, float k, float log_alpha) { put(m, q, k, log_alpha); });
    }
}
template <int MOST, class F>
__device__ __forceinline__ void gates_of(const cuda_shape &shape, const cuda_parts &in, uint32_t r,
                                         const float (&bias_g)[MOST], const float (&bias_t)[MOST], F put) {
    float v[MOST][4];
    gate_sums(shape, in, r, v);
    gates_of_sums(shape, v, bias_g, bias_t, put);
}
template <int MOST>
__device__ __forceinline__ void gate_biases(const cuda_shape &shape, const float *g_b, const float *t_b,
                                            float (&bias_g)[MOST], float (&bias_t)[MOST]) {
#pragma unroll
    for (int j = 0; j < MOST; j++) {
        const uint32_t m = threadIdx.x % 32 + 32 * j;
        bias_g[j] = m < shape.M ? g_b[m] : 0.0f, bias_t[j] = m < shape.M ? t_b[m] : 0.0f;
    }
}
__device__ __forceinline__ float low_rank_of(const cuda_shape &shape, const cuda_parts &in, uint32_t r, uint32_t i) {
    float sum = 0;
#pragma unroll 4
    for (uint32_t p = 0; p < in.n; p++) sum += in.at[p * in.stride + (size_t)r * shape.R + i];
    return sum;
}
