// one_launch_state.cuh - the state's stage of a decode step as one launch: gates, E4, S and read-out (E3 to E7), to the
// bits of state_few_kernel. A panel of S (32 channels of a row) is a block's; each of its 16 warps has one of the 16
// groups of rows m, so the order of every sum is gla_kernel's.
#pragma once
#include "kernels/cuda/decode/one_launch.cuh"
#include "kernels/cuda/decode/state.cuh"

enum { STEP_MOST_M = 64, STEP_GROUP_ROWS = STEP_MOST_M / STATE_GROUPS };

template <int R> struct state_scratch {
    float raw[4 * STEP_MOST_M], low[128], q[STEP_MOST_M], k[STEP_MOST_M], a[STEP_MOST_M]; // a row's gates
    float u_parts[R][4][32], in[R][32], bias[R][32], o[R][STATE_GROUPS][32];              // of each panel
};

// Two columns of an act as a word: by whole warps, neighbouring lanes have neighbouring columns; right in even lanes.
template <class T> __device__ __forceinline__ uint32_t pair_of(float x) {
    const narrow<1> own = narrowed<T, 1>({x});
    return own.word[0] | (uint32_t)__shfl_down_sync(0xffffffffu, (uint32_t)own.word[0], 1) << 16;
}

// Panels [panel, panel + n) of row r, of nothing: a row that is padding.
template <class T, int R>
__device__ __forceinline__ void no_state(const step_block<R> &b, uint32_t layer, uint32_t r, uint32_t panel,
                                         uint32_t n) {
    const uint32_t epoch = b.made(layer), panels = b.a.shape.Ep / 32;
    for (uint32_t i = threadIdx.x; i < n * 16; i += STEP_WARPS * 32) {
        const uint32_t column = panel * 32 + i * 2;
        if (column < b.a.shape.E)
            give_word(b.a.words.o + ((size_t)(column / 16) * R + r) * 8 + act_slot(column % 16 / 2), 0, epoch);
    }
    for (uint32_t i = threadIdx.x; i < n; i += STEP_WARPS * 32)
        give_float(b.a.words.o_sums + (size_t)r * panels + panel + i, 0, epoch);
}

// What the stage will read of the block's panels, before the stage of W_in: all of it near, by the last warps, as the
// first ones have outputs to make; and of one row the first panel into shared memory.
template <int R> __device__ __forceinline__ void state_ahead(const step_block<R> &b, uint32_t layer) {
    const cuda_shape &s = b.a.shape;
    const cuda_step_layer &w = b.layers()[layer];
    const uint32_t panels = s.Ep / 32, first = R * panels * blockIdx.x / n_blocks_now(),
                   n = R * panels * (blockIdx.x + 1) / n_blocks_now() - first, lines = s.M + s.R + 3;
    if (R == 1 && n && !b.is_padding(0)) {
        const float *S = s.S + (size_t)b.slot()[0] * s.S_slot + layer * s.S_layer + (size_t)first * s.M * 32;
        for (uint32_t i = threadIdx.x; i < s.M * 8; i += STEP_WARPS * 32) ask16(b.panel() + i * 4, S + i * 4);
        asked();
    }
    if (b.warp < STEP_AHEAD) return;
    for (uint32_t i = STEP_WARPS * 32 - 1 - threadIdx.x; i < n * lines; i += (STEP_WARPS - STEP_AHEAD) * 32) {
        const uint32_t r = (first + i / lines) / panels, panel = (first + i / lines) % panels, line = i % lines;
        if (b.is_padding(r)) continue;
        const float *S = s.S + (size_t)b.slot()[r] * s.S_slot + layer * s.S_layer + (size_t)panel * s.M * 32,
                    *c1 = w.c1 + panel * 32;
        bring_near(line < s.M              ? S + line * 32
                   : line < s.M + s.R      ? c1 + (size_t)(line - s.M) * s.Ep
                   : line == s.M + s.R     ? w.residual + panel * 32
                   : line == s.M + s.R + 1 ? w.act_norm + panel * 32
                                           : w.c1_b + panel * 32);
    }
}

// Panels [panel, panel + n) of row r, n <= R. is_asked: state_ahead has asked for S of it.
template <class T, int R>
__device__ __forceinline__ void state_panels(const step_block<R> &b, uint32_t layer, uint32_t r, uint32_t panel,
                                             uint32_t n, bool is_asked) {
    const cuda_shape &s = b.a.shape;
    const cuda_step_layer &w = b.layers()[layer];
    state_scratch<R> &sh = *(state_scratch<R> *)b.scratch();
    const uint32_t M = s.M, Ep = s.Ep, rank = s.R, warp = b.warp, lane = b.lane, epoch = b.made(layer),
                   n_gates = 4 * M + rank;
    constexpr int JOBS = (4 * R + STEP_WARPS - 1) / STEP_WARPS;
    // Words that come last are the first warps', which have nothing else to wait for: parts of E4's sums, a warp each,
    // begin behind the two that make gates, the panels' outputs behind those of one row.
    const uint32_t first_job = (STEP_WARPS - 3 - warp) % STEP_WARPS, own = (STEP_WARPS - 7 - warp) % STEP_WARPS;
    float *S = s.S + (size_t)b.slot()[r] * s.S_slot + layer * s.S_layer + (size_t)panel * M * 32 + lane;
    float v[R][STEP_GROUP_ROWS], early[JOBS][1][STATE_EARLY_R / 4];
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < STEP_GROUP_ROWS; j++) {
            const uint32_t m = warp + STATE_GROUPS * j;
            v[i][j] = i < n && m < M && !is_asked ? S[((size_t)i * M + m) * 32] : 0.0f;
        }
#pragma unroll
    for (int i = 0; i < JOBS; i++) {
        const uint32_t job = first_job + STEP_WARPS * i, e = (panel + job / 4) * 32 + lane;
        if (job < 4 * n) c1_early(early[i], w.c1 + (e < s.E ? e : 0), rank, Ep, job % 4);
    }
    const uint32_t e = (panel + own) * 32 + lane; // the channel whose outputs this lane makes
    const bool mine = own < n && e < s.E;
    const float residual = mine ? w.residual[e] : 0.0f, act_norm = mine ? w.act_norm[e] : 0.0f,
                bias_u = mine ? w.c1_b[e] : 0.0f;
    const uint32_t m = (STEP_WARPS - 1 - warp) * 32 + lane; // whose gates this thread makes
    const float bias_g = m < M ? w.g_b[m] : 0.0f, bias_t = m < M ? w.t_b[m] : 0.0f;
    uint32_t data[7]; // a gate's four quarters; a, z, s
    const uint2 *gates = b.a.words.gates + (size_t)r * 4 * n_gates + threadIdx.x,
                *az = b.a.words.az + (size_t)r * 3 * Ep + e;
    await_words(
        data, epoch, b.note(layer, 8), [&](int i) { return i < 4 ? threadIdx.x < n_gates : mine; },
        [&](int i) { return i < 4 ? gates + i * n_gates : az + (i - 4) * Ep; });
    if (threadIdx.x < 4 * M + max(rank, (uint32_t)STATE_EARLY_R)) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) sum += __uint_as_float(data[i]);
        if (threadIdx.x < 4 * M)
            sh.raw[threadIdx.x] = sum;
        else
            sh.low[threadIdx.x - 4 * M] = threadIdx.x < n_gates ? sum : 0.0f;
    }
    const float z = __uint_as_float(data[5]), from_s = __uint_as_float(data[6]);
    if (own < n) sh.in[own < R ? own : 0][lane] = __uint_as_float(data[4]), sh.bias[own < R ? own : 0][lane] = bias_u;
    if (is_asked) await_all_but<0>();
    barrier_of(STEP_ALL, STEP_WARPS * 32); // the sums of the quarters; a; S
    if (m - lane < M) {
        const float norm = key_norm(s, sh.raw + M);
        if (m < M)
            gate_of(M, {sh.raw[m], sh.raw[M + m], sh.raw[2 * M + m], sh.raw[3 * M + m]}, norm, bias_g, bias_t,
                    [&](float q, float k, float log_alpha) { sh.q[m] = q, sh.k[m] = k, sh.a[m] = expf(log_alpha); });
    }
#pragma unroll
    for (int i = 0; i < JOBS; i++) {
        const uint32_t job = first_job + STEP_WARPS * i, of = (panel + job / 4) * 32 + lane;
        if (job >= 4 * n) continue;
        float part[1];
        low_rank_parts(part, early[i], w.c1 + (of < s.E ? of : 0), sh.low, rank, Ep, job % 4);
        sh.u_parts[job / 4 % R][job % 4][lane] = part[0];
    }
    barrier_of(STEP_ALL, STEP_WARPS * 32); // q, k, decays, E4's parts
#pragma unroll
    for (int i = 0; i < R; i++) {
        if (i >= n) continue;
        const float(*p)[32] = sh.u_parts[i];
        const float u =
            sigmoid(((p[0][lane] + p[1][lane]) + (p[2][lane] + p[3][lane])) + sh.bias[i][lane]) * sh.in[i][lane];
        float o = 0;
#pragma unroll
        for (int j = 0; j < STEP_GROUP_ROWS; j++) {
            const uint32_t row = warp + STATE_GROUPS * j;
            if (row >= M) continue;
            if (is_asked) v[i][j] = b.panel()[row * 32 + lane];
            v[i][j] = __fmaf_rn(sh.a[row], v[i][j], sh.k[row] * u);
            o = __fmaf_rn(sh.q[row], v[i][j], o);
            S[((size_t)i * M + row) * 32] = v[i][j];
        }
        sh.o[i][warp][lane] = o;
    }
    barrier_of(STEP_ALL, STEP_WARPS * 32); // the groups' sums
    if (own < n) {
        float sum = 0, out = 0;
#pragma unroll
        for (int g = 0; g < STATE_GROUPS; g++) sum += sh.o[own < R ? own : 0][g][lane]; // in order
        if (mine) out = __fmaf_rn(residual, from_s, sum) * silu(z);
        const uint32_t pair = pair_of<T>(out * act_norm);
        if (mine && lane % 2 == 0)
            give_word(b.a.words.o + ((size_t)(e / 16) * R + r) * 8 + act_slot(e % 16 / 2), pair, epoch);
        const float square = warp_sum(out * out);
        if (lane == 0) give_float(b.a.words.o_sums + (size_t)r * (Ep / 32) + panel + own, square, epoch);
    }
}

// The block's panels of all rows.
template <class T, int R> __device__ __forceinline__ void state_stage(const step_block<R> &b, uint32_t layer) {
    static_assert(sizeof(state_scratch<R>) <= (576 + R * 22 * 32) * 4, "step_places knows its size");
    const uint32_t panels = b.a.shape.Ep / 32;
    const uint32_t first = R * panels * blockIdx.x / n_blocks_now();
    uint32_t unit = first;
    const uint32_t end = R * panels * (blockIdx.x + 1) / n_blocks_now();
    const bool any = unit < end;
    while (unit < end) {
        const uint32_t r = unit / panels, n = min(min(end - unit, (uint32_t)R), (r + 1) * panels - unit);
        if (b.is_padding(r))
            no_state<T>(b, layer, r, unit - r * panels, n);
        else
            state_panels<T>(b, layer, r, unit - r * panels, n, R == 1 && unit == first);
        unit += n;
    }
    if (any) barrier_of(STEP_ALL, STEP_WARPS * 32); // the scratch memory is free
}
