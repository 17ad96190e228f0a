// state_drafts.cuh - what the kernels of the state in decode steps with drafts share (state_drafts.cu,
// state_drafts_many.cu), so that a row's bits depend on neither. A block: two panels of S (32 channels, [M][32]), four
// warps a panel, a lane a channel. A warp has the groups m = 4 h .. 4 h + 3 mod 16 of the panel in registers.
#pragma once
#include "kernels/cuda/decode/state.cuh"

enum { PANELS = 2, PANEL_WARPS = 4, DRAFT_WARPS = PANELS * PANEL_WARPS, MOST_ROWS = CUDA_DRAFTS + 1, G = 4 };
static_assert((int)MOST_ROWS <= (int)DRAFT_WARPS && MOST_ROWS <= 2 * PANEL_WARPS,
              "a warp makes the gates of a row, and has the inputs of two at most");

// k and alpha of the slot's token i, in the first or second place.
__device__ __forceinline__ float *late_gates(const cuda_state &io, uint32_t slot, uint32_t i, bool second) {
    return deferred_at(io, slot, i) + io.shape.Ep + (second ? 2 * ((io.shape.M + 3) / 4 * 4) : 0);
}

// What a block shares beside what its kernel adds.
struct draft_rows {
    float q[MOST_ROWS][128], k[MOST_ROWS][128], a[MOST_ROWS][128], low[MOST_ROWS][128]; // of each row
    float late_k[CUDA_DRAFTS][128], late_a[CUDA_DRAFTS][128];
    float u_parts[MOST_ROWS][PANELS][PANEL_WARPS][32], u[MOST_ROWS][PANELS][32];
    float o[2][PANELS][STATE_GROUPS][32]; // by groups, of a row and of the next one
};
// A thread's place: its channel e is a lane of a panel, its groups begin at m0.
struct draft_place {
    uint32_t M, own, h, m0, panel, e;
    bool there, mine; // the panel; the channel
    __device__ __forceinline__ draft_place(const cuda_shape &s, uint32_t most_M) : M(most_M) {
        own = threadIdx.x / 32 / PANEL_WARPS, h = threadIdx.x / 32 % PANEL_WARPS, m0 = G * h;
        panel = blockIdx.x * PANELS + own, e = panel * 32 + threadIdx.x % 32;
        there = panel < s.Ep / 32, mine = e < s.E;
    }
    // The first row of the panel in a slot's S.
    __device__ __forceinline__ float *S_of(const cuda_state &io, uint32_t slot) const {
        return io.shape.S + (size_t)slot * io.shape.S_slot + io.layer * io.shape.S_layer + (size_t)panel * M * 32;
    }
};
// What is the same for all rows of a channel.
struct draft_channel {
    const float *c1;
    float bias_u, residual, act_norm;
    __device__ __forceinline__ draft_channel(const cuda_state &io, const draft_place &p) {
        c1 = io.c1 + (p.mine ? p.e : 0);
        bias_u = p.mine ? io.c1_b[p.e] : 0.0f, residual = p.mine ? io.residual[p.e] : 0.0f;
        act_norm = p.mine ? io.act_norm[p.e] : 0.0f;
    }
};

// Loads a warp's rows of S; rows and panels that S does not have are zeros. S points to the lane's channel.
template <int I, bool WHOLE>
__device__ __forceinline__ void load_panel(float (&v)[I][G], const float *S, const draft_place &p) {
#pragma unroll
    for (int i = 0; i < I; i++)
#pragma unroll
        for (int g = 0; g < G; g++)
            v[i][g] = p.there && (WHOLE || 16 * i + p.m0 + g < p.M) ? S[(size_t)(16 * i + p.m0 + g) * 32] : 0.0f;
}
// k and alpha of the slot's tokens that S does not hold yet. By the whole block.
__device__ __forceinline__ void load_late(draft_rows &sh, const cuda_state &io, const draft_place &p, uint32_t slot,
                                          uint32_t n_late, bool second) {
    const uint32_t M = p.M, M4 = (M + 3) / 4 * 4;
    for (uint32_t l = 0; l < n_late; l++)
        for (uint32_t m = threadIdx.x; m < 2 * M; m += DRAFT_WARPS * 32) {
            const float *from = late_gates(io, slot, l, second);
            if (m < M)
                sh.late_k[l][m] = from[m];
            else
                sh.late_a[l][m - M] = from[M4 + m - M];
        }
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
template <int MOST>
__device__ __forceinline__ void make_row(const cuda_state &io, const cuda_partials &in, draft_rows &sh, uint32_t t,
                                         uint32_t r, const float (&bias_g)[MOST], const float (&bias_t)[MOST],
                                         float *keep) {
    const uint32_t R = io.shape.R, M4 = (io.shape.M + 3) / 4 * 4;
    gates_of(io.shape, in.in, r, bias_g, bias_t, [&](uint32_t m, float q, float k, float log_alpha) {
        const float alpha = expf(log_alpha);
        sh.q[t][m] = q, sh.k[t][m] = k, sh.a[t][m] = alpha;
        if (keep) keep[m] = k, keep[M4 + m] = alpha;
    });
    for (uint32_t i = threadIdx.x % 32; i < max(R, (uint32_t)STATE_EARLY_R); i += 32)
        sh.low[t][i] = i < R ? low_rank_of(io.shape, in.c0, r, i) : 0.0f;
}

// u of the n rows of a segment, whose gates and low ranks are there (E4, E5); by the whole block. x: of the rows h and
// h + 4, which this warp finishes. A draft's u stays, too.
__device__ __forceinline__ void make_u(draft_rows &sh, const cuda_state &io, const draft_place &p,
                                       const draft_channel &channel, const float (&early)[1][STATE_EARLY_R / 4],
                                       const channel_in (&x)[2], uint32_t n, uint32_t slot) {
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t t = 0; t < n; t++) {
        float part[1];
        low_rank_parts(part, early, channel.c1, sh.low[t], io.shape.R, io.shape.Ep, p.h);
        sh.u_parts[t][p.own][p.h][lane] = part[0];
    }
    __syncthreads(); // E4's parts
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t t = p.h + PANEL_WARPS * j;
        if (t >= n) continue;
        const float(*part)[32] = sh.u_parts[t][p.own];
        const float u = sigmoid(((part[0][lane] + part[1][lane]) + (part[2][lane] + part[3][lane])) + channel.bias_u) *
                        (p.mine ? x[j].a * x[j].scale : 0.0f);
        sh.u[t][p.own][lane] = u;
        if (p.there && t > 0) deferred_at(io, slot, t - 1)[p.e] = u; // all have read what was there
    }
    __syncthreads(); // u
}
// The rows of a segment (the first, how many), one after the other (E6, E7); what the first leaves is S.
template <class T, int I, bool WHOLE>
__device__ __forceinline__ void run_rows(draft_rows &sh, const cuda_state &io, const draft_place &p,
                                         const draft_channel &channel, const channel_in (&x)[2], float (&v)[I][G],
                                         float *S, uint2 segment) {
    const uint32_t first = segment.x, n = segment.y;
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll 1
    for (uint32_t t = 0; t < n; t++) {
        float o[G];
        take_in<I, WHOLE>(v, sh.k[t], sh.a[t], p.M, p.m0, sh.u[t][p.own][lane]);
        read_out<I, WHOLE>(o, v, sh.q[t], p.M, p.m0);
        if (t == 0 && p.there)
#pragma unroll
            for (int i = 0; i < I; i++)
#pragma unroll
                for (int g = 0; g < G; g++)
                    if (WHOLE || 16 * i + p.m0 + g < p.M) S[(size_t)(16 * i + p.m0 + g) * 32] = v[i][g];
#pragma unroll
        for (int g = 0; g < G; g++) sh.o[t % 2][p.own][p.m0 + g][lane] = o[g];
        __syncthreads(); // the groups' sums; those of the row before are free
        if (t % PANEL_WARPS != p.h || !p.there) continue;
        float sum = 0;
#pragma unroll
        for (int g = 0; g < STATE_GROUPS; g++) sum += sh.o[t % 2][p.own][g][lane]; // in order
        const bool low = t < PANEL_WARPS; /* member by member: the arrays stay in registers */
        const channel_in of = {0, low ? x[0].z : x[1].z, low ? x[0].s : x[1].s, low ? x[0].scale : x[1].scale};
        finish_channel<T>(io, of, first + t, p.e, channel.residual, channel.act_norm, sum);
    }
}

void state_drafts_many(const cuda_state &io, const cuda_partials &in, uint32_t n_segs, enum dispatch_kernel kernel,
                       void *stream);
