// scan.cuh - what the kernels of prompts' recurrence share: pieces of a segment, and a token that is a piece by itself.
#pragma once
#include "kernels/cuda/common.cuh"

enum { PIECE = 64 };

// Piece of a segment: tokens [lo, lo + n) of n_tok at positions from pos on.
__device__ __forceinline__ uint32_t piece_length(int64_t pos, uint32_t lo, uint32_t n_tok) {
    const uint32_t n = PIECE - (uint32_t)((pos + lo) % PIECE);
    return n < n_tok - lo ? n : n_tok - lo;
}

// a or z (from column Ep on) of a row.
template <class T> __device__ __forceinline__ float az_of(const cuda_scan &x, size_t r, uint32_t e, bool z) {
    const cuda_state &io = x.io;
    if (x.a_act)
        return to_float(((const T *)(z ? x.z_act : x.a_act))[act_at<T>((uint32_t)r, e, (io.shape.E + 15) / 16 * 16)]);
    return io.az[r * 2 * io.shape.Ep + z * io.shape.Ep + e] * (io.row_scale ? io.row_scale[r] : 1.0f);
}

// A segment of a step.
struct scan_segment {
    uint32_t first, n_tok, slot; // its first row
    int64_t pos;                 // of its first token
};
__device__ __forceinline__ scan_segment segment_at(const cuda_rows &rows, uint32_t i) {
    const uint32_t first = (uint32_t)rows.seg_first[i];
    return {first, (uint32_t)rows.seg_n[i], (uint32_t)rows.slot[first], rows.pos[first]};
}

// The inputs that the tail keeps of channels e0 and on: of the last conv_ring tokens, as single tokens would leave
// them. By so many threads, from the first on.
template <class T>
__device__ __forceinline__ void keep_tail(const cuda_scan &x, const scan_segment &seg, uint32_t e0, uint32_t channels,
                                          uint32_t threads) {
    const cuda_shape &shape = x.io.shape;
    const uint32_t ring = shape.conv_ring, Ep = shape.Ep, from = seg.n_tok > ring ? seg.n_tok - ring : 0;
    for (uint32_t i = threadIdx.x; i < (seg.n_tok - from) * channels; i += threads) {
        const uint32_t t = from + i / channels, e = e0 + i % channels;
        if (e >= shape.E) continue;
        T *tail = (T *)shape.conv + seg.slot * shape.conv_slot + x.io.layer * shape.conv_layer + e;
        const size_t r = seg.first + t;
        tail[(size_t)((seg.pos + t) % ring) * Ep] = from_float<T>(az_of<T>(x, r, e, false));
    }
}

// A token that is a piece by itself: what gla_kernel does, sum by sum. S: of this thread's channel, rows m `stride`
// apart; part [16][CHANNELS] in shared memory. The block's first CHANNELS * GROUPS threads work.
template <class T, int CHANNELS, int GROUPS>
__device__ void one_token(const cuda_scan &x, size_t r, uint32_t e0, float *S, uint32_t stride, float *part) {
    const cuda_state &io = x.io;
    const cuda_shape &shape = io.shape;
    const cuda_gates &gates = x.gates;
    const uint32_t M = shape.M, R = shape.R, Ep = shape.Ep, c = threadIdx.x % CHANNELS, e = e0 + c;
    float low[4] = {0, 0, 0, 0}, u = 0;
    if (e < shape.E) {
        for (uint32_t i = 0; i < R; i += 4)
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                if (i + j < R) low[j] = __fmaf_rn(io.c1[(size_t)e * R + i + j], gates.c0[r * R + i + j], low[j]);
        const float a = az_of<T>(x, r, e, false);
        u = sigmoid((low[0] + low[1]) + (low[2] + low[3]) + io.c1_b[e]) * a;
    }
    for (uint32_t group = threadIdx.x / CHANNELS; group < 16 && threadIdx.x < CHANNELS * GROUPS && e < Ep;
         group += GROUPS) {
        float o = 0;
        for (uint32_t m = group; m < M; m += 16) {
            const float km = gates.k[r * M + m], v = __fmaf_rn(expf(gates.log_alpha[r * M + m]), S[m * stride], km * u);
            S[m * stride] = v;
            o = __fmaf_rn(gates.q[r * M + m], v, o);
        }
        part[group * CHANNELS + c] = o;
    }
    __syncthreads();                        // the groups' sums
    if (threadIdx.x < CHANNELS && e < Ep) { // whole warps: Ep is a multiple of 32
        float sum = 0, out = 0;
        for (uint32_t group = 0; group < 16; group++) sum += part[group * CHANNELS + c];
        if (e < shape.E) {
            const size_t at = act_at<T>((uint32_t)r, e, (shape.E + 15) / 16 * 16);
            const float s = x.a_act ? to_float(((const T *)x.s_act)[at]) : io.s[r * Ep + e];
            out = __fmaf_rn(io.residual[e], s, sum) * silu(az_of<T>(x, r, e, true));
            ((T *)io.act)[at] = from_float<T>(out * io.act_norm[e]);
        }
        const float square = warp_sum(out * out);
        if (c % 32 == 0) io.sums[r * (Ep / 32) + e / 32] = square;
    }
}

__device__ __forceinline__ float tf32(float x) {
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return __uint_as_float(y);
}
// c += a b: 16 rows, 8 columns, 8 k.
__device__ __forceinline__ void mma_tf32(float (&c)[4], const float4 &a, const float2 &b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(__float_as_uint(a.x)), "r"(__float_as_uint(a.y)), "r"(__float_as_uint(a.z)), "r"(__float_as_uint(a.w)),
          "r"(__float_as_uint(b.x)), "r"(__float_as_uint(b.y)));
}

// dispatch.h's for so many segments, the longest of most_tok tokens; 0: by sizes alone, as memory is laid out.
static inline enum dispatch_kernel scan_kernel_of(const cuda_shape *shape, uint32_t most_tok = 1, uint32_t n_segs = 0) {
    dispatch_case c = {};
    c.op = DISPATCH_PROMPT_STATE, c.device = this_device(), c.dtype = shape->dtype, c.n_rows = most_tok,
    c.shape = shape;
    c.n_segs = n_segs;
    return dispatch_kernel_of(&c);
}

// Pieces of 64 or 32 columns of S and products by wgmma: scan_wide.cu. Its shapes need no s but of tokens alone.
bool wide_scan_possible(const cuda_shape *shape);
bool wide_scan_prepare(const cuda_shape *shape);
size_t wide_scan_bytes(const cuda_shape *shape, uint32_t n_rows);
void wide_scan(const cuda_scan &x, void *stream);
