// state_drafts_many.cu - state_drafts.cu's work in steps of more than 8 rows, to the same bits: a block has a few
// segments, one after the other, so that fewer blocks wait for everything anew.
#include "state_drafts.cuh"
#include <algorithm>

// The segments that a block takes, every `step`th from `at` on, without those of no row and padding. A whole warp calls
// it, and all warps find the same. 32 are looked up at a time, a lane each.
struct segments {
    uint4 *list;   // the warp's 32: first row, rows, slot, what S lacks
    uint32_t left; // those of them to come
    uint32_t at, step, n_segs;
    __device__ __forceinline__ bool find(const state_io &io) { // there is one more
        for (; !left && at < n_segs; at += 32 * step) {
            const uint32_t i = at + threadIdx.x % 32 * step;
            uint4 own = {0, i < n_segs ? (uint32_t)io.rows.seg_n[i] : 0, io.shape.n_slots, 0};
            if (own.y) {
                own.x = (uint32_t)io.rows.seg_first[i];
                own.z = (uint32_t)io.rows.slot[own.x], own.w = io.rows.deferred[own.x];
            }
            list[threadIdx.x % 32] = own;
            left = __ballot_sync(0xffffffffu, own.z != io.shape.n_slots);
            __syncwarp(); // the list
        }
        return left;
    }
    __device__ __forceinline__ uint4 next() const { return list[__ffs((int)left) - 1]; }
    __device__ __forceinline__ uint4 take() {
        const uint4 one = next();
        left &= left - 1;
        return one;
    }
};

// What a block shares.
struct draft_many_shared {
    uint4 list[DRAFT_WARPS][32];                                                        // of segments, each warp's own
    float q[MOST_ROWS][128], k[MOST_ROWS][128], a[MOST_ROWS][128], low[MOST_ROWS][128]; // of each row
    float late_k[CUDA_DRAFTS][128], late_a[CUDA_DRAFTS][128], late_u[CUDA_DRAFTS][PANELS][32];
    float u_parts[MOST_ROWS][PANELS][PANEL_WARPS][32], u[MOST_ROWS][PANELS][32];
    float o[2][PANELS][STATE_GROUPS][32]; // by groups, of a row and of the next one
};

// A panel of S on its way to the second-level cache; by one thread.
__device__ __forceinline__ void ask_panel(const float *S, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(S), "r"(bytes) : "memory");
#endif
}

// Blocks of a multiprocessor at once: each waits for S, gates and barriers in turn, and others work meanwhile.
template <int I> constexpr uint32_t AT_ONCE = I <= 4 ? 4 : 2;

template <class T, int I, bool WHOLE>
__global__ void __launch_bounds__(DRAFT_WARPS * 32, AT_ONCE<I>)
    state_drafts_many_kernel(state_io io, gates_in in, uint32_t n_segs) {
    __shared__ __align__(16) draft_many_shared sh;
    const uint32_t M = WHOLE ? 16 * I : io.shape.M, Ep = io.shape.Ep, R = io.shape.R, M4 = (M + 3) / 4 * 4;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, own = warp / PANEL_WARPS, h = warp % PANEL_WARPS,
                   m0 = G * h, panel = blockIdx.x * PANELS + own, e = panel * 32 + lane;
    const bool there = panel < Ep / 32, mine = e < io.shape.E;
    const auto S_of = [&](uint32_t slot) {
        return io.shape.S + (size_t)slot * io.shape.S_slot + io.layer * io.shape.S_layer + (size_t)panel * M * 32;
    };
    float bias_g[I / 2], bias_t[I / 2];
    gate_biases(io.shape, in.g_b, in.t_b, bias_g, bias_t);
    const float *c1 = io.c1 + (mine ? e : 0);
    const float bias_u = mine ? io.c1_b[e] : 0.0f, residual = mine ? io.residual[e] : 0.0f,
                act_norm = mine ? io.act_norm[e] : 0.0f;
    bool waits = true; // for the inputs
    for (segments segs = {sh.list[warp], 0, blockIdx.y, gridDim.y, n_segs}; segs.find(io);) {
        const uint4 seg = segs.take();
        const uint32_t first = seg.x, n = seg.y, slot = seg.z, n_late = seg.w & 0xff;
        const bool second = seg.w & CUDA_LATE_SECOND;
        // S and what it lacks were last written a step ago, so they come before the inputs are ready
        float *S = S_of(slot) + lane, v[I][G];
#pragma unroll
        for (int i = 0; i < I; i++)
#pragma unroll
            for (int g = 0; g < G; g++)
                v[i][g] = there && (WHOLE || 16 * i + m0 + g < M) ? S[(size_t)(16 * i + m0 + g) * 32] : 0.0f;
        if (segs.left && h == 0 && lane == 0 && there) ask_panel(S_of(segs.next().z), M * 128);
        for (uint32_t l = h; l < n_late; l += PANEL_WARPS)
            sh.late_u[l][own][lane] = there ? deferred_at(io, slot, l)[e] : 0.0f;
        for (uint32_t l = 0; l < n_late; l++)
            for (uint32_t m = threadIdx.x; m < 2 * M; m += DRAFT_WARPS * 32) {
                const float *from = late_gates(io, slot, l, second);
                if (m < M)
                    sh.late_k[l][m] = from[m];
                else
                    sh.late_a[l][m - M] = from[M4 + m - M];
            }
        __syncthreads(); // what is late; all are through with the segment before
#pragma unroll 1
        for (uint32_t l = 0; l < n_late; l++)
            take_in<I, WHOLE>(v, sh.late_k[l], sh.late_a[l], M, m0, sh.late_u[l][own][lane]);
        if (waits) {
            waits = false;
            wait_for_inputs();
            let_next_start();
        }
        if (warp < n)
            make_row(io, in, sh, warp, first + warp, bias_g, bias_t,
                     blockIdx.x == 0 && warp > 0 ? late_gates(io, slot, warp - 1, !second) : NULL);
        float early[1][STATE_EARLY_R / 4]; // again for each segment: registers are scarce while gates are made
        c1_early(early, c1, R, Ep, h);
        channel_in x[2] = {}; // of the rows h and h + 4, which this warp finishes
#pragma unroll
        for (uint32_t j = 0; j < 2; j++)
            if (h + PANEL_WARPS * j < n) x[j] = read_channel(io, first + h + PANEL_WARPS * j, e);
        __syncthreads(); // the rows' gates and low ranks
        for (uint32_t t = 0; t < n; t++) {
            float part[1];
            low_rank_parts(part, early, c1, sh.low[t], R, Ep, h);
            sh.u_parts[t][own][h][lane] = part[0];
        }
        __syncthreads(); // E4's parts
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            const uint32_t t = h + PANEL_WARPS * j;
            if (t >= n) continue;
            const float(*p)[32] = sh.u_parts[t][own];
            const float u = sigmoid(((p[0][lane] + p[1][lane]) + (p[2][lane] + p[3][lane])) + bias_u) *
                            (mine ? x[j].a * x[j].scale : 0.0f);
            sh.u[t][own][lane] = u;
            if (there && t > 0) deferred_at(io, slot, t - 1)[e] = u; // all have read what was there
        }
        __syncthreads(); // u
#pragma unroll 1
        for (uint32_t t = 0; t < n; t++) {
            float o[G];
            take_in<I, WHOLE>(v, sh.k[t], sh.a[t], M, m0, sh.u[t][own][lane]);
            read_out<I, WHOLE>(o, v, sh.q[t], M, m0);
            if (t == 0 && there)
#pragma unroll
                for (int i = 0; i < I; i++)
#pragma unroll
                    for (int g = 0; g < G; g++)
                        if (WHOLE || 16 * i + m0 + g < M) S[(size_t)(16 * i + m0 + g) * 32] = v[i][g];
#pragma unroll
            for (int g = 0; g < G; g++) sh.o[t % 2][own][m0 + g][lane] = o[g];
            __syncthreads(); // the groups' sums; those of the row before are free
            if (t % PANEL_WARPS != h || !there) continue;
            float sum = 0;
#pragma unroll
            for (int g = 0; g < STATE_GROUPS; g++) sum += sh.o[t % 2][own][g][lane]; // in order
            const bool low = t < PANEL_WARPS; /* member by member: the arrays stay in registers */
            const channel_in of = {0, low ? x[0].z : x[1].z, low ? x[0].s : x[1].s, low ? x[0].scale : x[1].scale};
            finish_channel<T>(io, of, first + t, e, residual, act_norm, sum);
        }
    }
    if (waits) wait_for_inputs();
}

template <int I, bool WHOLE>
static void launch_many(const state_io &io, const gates_in &in, uint32_t n_segs, void *stream) {
    // As many blocks as the device has room for: more would start when others end, and wait for everything anew.
    const uint32_t across = (io.shape.Ep / 32 + PANELS - 1) / PANELS,
                   runs = std::min(n_segs, std::max(1u, AT_ONCE<I> * multiprocessors() / across));
    FOR_DTYPE(io.shape.dtype, {
        launch(state_drafts_many_kernel<T, I, WHOLE>, dim3(across, runs), dim3(DRAFT_WARPS * 32), 0, stream, io, in,
               n_segs);
    });
}
void state_drafts_many(const state_io &io, const gates_in &in, uint32_t n_segs, enum dispatch_kernel kernel,
                       void *stream) {
    if (kernel == STATE_DRAFTS_MANY_4_WHOLE)
        launch_many<4, true>(io, in, n_segs, stream);
    else if (kernel == STATE_DRAFTS_MANY_4)
        launch_many<4, false>(io, in, n_segs, stream);
    else
        launch_many<8, false>(io, in, n_segs, stream);
}
