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
    __device__ __forceinline__ bool find(const cuda_state &io) { // there is one more
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
    uint4 list[DRAFT_WARPS][32]; // of segments, each warp's own
    draft_rows rows;
    float late_u[CUDA_DRAFTS][PANELS][32];
};

// A panel of S on its way to the second-level cache; by one thread.
__device__ __forceinline__ void ask_panel(const float *S, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(S), "r"(bytes) : "memory");
#endif
}

// Blocks of a multiprocessor at once: each waits for S, then gates, then barriers, and others work meanwhile.
template <int I> constexpr uint32_t AT_ONCE = I <= 4 ? 4 : 2;

template <class T, int I, bool WHOLE>
__global__ void __launch_bounds__(DRAFT_WARPS * 32, AT_ONCE<I>)
    state_drafts_many_kernel(cuda_state io, cuda_partials in, uint32_t n_segs) {
    __shared__ __align__(16) draft_many_shared sh;
    const draft_place p(io.shape, WHOLE ? 16 * I : io.shape.M);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float bias_g[I / 2], bias_t[I / 2];
    gate_biases(io.shape, in.g_b, in.t_b, bias_g, bias_t);
    const draft_channel channel(io, p);
    bool waits = true; // for the inputs
    for (segments segs = {sh.list[warp], 0, blockIdx.y, gridDim.y, n_segs}; segs.find(io);) {
        const uint4 seg = segs.take();
        const uint32_t first = seg.x, n = seg.y, slot = seg.z, n_late = seg.w & 0xff;
        const bool second = seg.w & CUDA_LATE_SECOND;
        // S and what it lacks were last written a step ago, so they come before the inputs are ready
        float *S = p.S_of(io, slot) + lane, v[I][G];
        load_panel<I, WHOLE>(v, S, p);
        if (segs.left && p.h == 0 && lane == 0 && p.there) ask_panel(p.S_of(io, segs.next().z), p.M * 128);
        for (uint32_t l = p.h; l < n_late; l += PANEL_WARPS)
            sh.late_u[l][p.own][lane] = p.there ? deferred_at(io, slot, l)[p.e] : 0.0f;
        load_late(sh.rows, io, p, slot, n_late, second);
        __syncthreads(); // what is late; all are through with the segment before
#pragma unroll 1
        for (uint32_t l = 0; l < n_late; l++)
            take_in<I, WHOLE>(v, sh.rows.late_k[l], sh.rows.late_a[l], p.M, p.m0, sh.late_u[l][p.own][lane]);
        if (waits) {
            waits = false;
            wait_for_inputs();
            let_next_start();
        }
        if (warp < n)
            make_row(io, in, sh.rows, warp, first + warp, bias_g, bias_t,
                     blockIdx.x == 0 && warp > 0 ? late_gates(io, slot, warp - 1, !second) : NULL);
        float early[1][STATE_EARLY_R / 4]; // again for each segment: registers are scarce while gates are made
        c1_early(early, channel.c1, io.shape.R, io.shape.Ep, p.h);
        channel_in x[2] = {}; // of the rows h and h + 4, which this warp finishes
#pragma unroll
        for (uint32_t j = 0; j < 2; j++)
            if (p.h + PANEL_WARPS * j < n) x[j] = read_channel(io, first + p.h + PANEL_WARPS * j, p.e);
        __syncthreads(); // the rows' gates and low ranks
        make_u(sh.rows, io, p, channel, early, x, n, slot);
        run_rows<T, I, WHOLE>(sh.rows, io, p, channel, x, v, S, make_uint2(first, n));
    }
    if (waits) wait_for_inputs();
}

template <int I, bool WHOLE>
static void launch_many(const cuda_state &io, const cuda_partials &in, uint32_t n_segs, void *stream) {
    // So many blocks as the device has room for: more would start when others end, and wait for everything anew.
    const uint32_t across = (io.shape.Ep / 32 + PANELS - 1) / PANELS,
                   runs = std::min(n_segs, std::max(1u, AT_ONCE<I> * multiprocessors() / across));
    FOR_DTYPE(io.shape.dtype, {
        launch(state_drafts_many_kernel<T, I, WHOLE>, dim3(across, runs), dim3(DRAFT_WARPS * 32), 0, stream, io, in,
               n_segs);
    });
}
void state_drafts_many(const cuda_state &io, const cuda_partials &in, uint32_t n_segs, enum dispatch_kernel kernel,
                       void *stream) {
    if (kernel == STATE_DRAFTS_MANY_4_WHOLE)
        launch_many<4, true>(io, in, n_segs, stream);
    else
        launch_many<8, false>(io, in, n_segs, stream);
}
