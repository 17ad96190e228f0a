// scan_wide_scores.cu - what all channels of a piece share, once a piece, for the kernel of scan_wide.cu.
#include "scan_wide.cuh"

enum { SUB = 16 }; // tokens of a block

// What a block shares: keys of the piece, queries of the sub-block as they are and with their decay, its sums of log2.
using score_rows = float[SUB][WIDE_M + 4];
using score_keys = float[PIECE][WIDE_M + 4];

// Scores of the sub-block's queries with earlier keys, eight a warp, in tf32, what rounding leaves in products of its
// own; and of its second eight with its first, relative to the first's end.
__device__ __forceinline__ void earlier_scores(uint32_t sub, const score_keys &ks, const score_rows &qs,
                                               const score_rows &qd, const score_rows &b, score_rows &scores) {
    const uint32_t tid = threadIdx.x, q0 = sub * SUB;
    const uint32_t warp = tid / 32, lane = tid % 32, row = lane / 4, col = lane % 4;
    float sums[4] = {0, 0, 0, 0};
    if (warp < 2 * sub) { // eight earlier keys; in tf32, what rounding leaves in products of its own
        for (uint32_t x = col; x < WIDE_M; x += 8) {
            const float4 a = make_float4(qd[row][x], qd[row + 8][x], qd[row][x + 4], qd[row + 8][x + 4]),
                         a_high = make_float4(tf32(a.x), tf32(a.y), tf32(a.z), tf32(a.w)),
                         a_low = make_float4(tf32(a.x - a_high.x), tf32(a.y - a_high.y), tf32(a.z - a_high.z),
                                             tf32(a.w - a_high.w));
            const float2 y = make_float2(ks[warp * 8 + row][x], ks[warp * 8 + row][x + 4]),
                         high = make_float2(tf32(y.x), tf32(y.y)),
                         low = make_float2(tf32(y.x - high.x), tf32(y.y - high.y));
            mma_tf32(sums, a_low, high), mma_tf32(sums, a_high, low), mma_tf32(sums, a_high, high);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) scores[row + i / 2 * 8][warp * 8 + col * 2 + i % 2] = sums[i];
    }
    if (warp == 7) { // the second eight of this sub-block with its first, relative to the first's end
        for (uint32_t x = col; x < WIDE_M; x += 8) {
            float a[2], y[2];
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t at = x + 4 * i;
                a[i] = qs[row + 8][at] * exp2_fast(b[row + 8][at] - b[7][at]),
                y[i] = ks[q0 + row][at] * exp2_fast(b[7][at] - b[row][at]);
            }
            const float4 a_high = make_float4(0, tf32(a[0]), 0, tf32(a[1])),
                         a_low = make_float4(0, tf32(a[0] - a_high.y), 0, tf32(a[1] - a_high.w));
            const float2 high = make_float2(tf32(y[0]), tf32(y[1])),
                         low = make_float2(tf32(y[0] - high.x), tf32(y[1] - high.y));
            mma_tf32(sums, a_low, high), mma_tf32(sums, a_high, low), mma_tf32(sums, a_high, high);
        }
        scores[row + 8][q0 + col * 2] = sums[2], scores[row + 8][q0 + col * 2 + 1] = sums[3];
    }
}
// Scores within eight: two threads a pair of tokens.
__device__ __forceinline__ void scores_of_eight(uint32_t q0, const score_keys &ks, const score_rows &qs,
                                                const score_rows &b, score_rows &scores) {
    const uint32_t tid = threadIdx.x;
    const uint32_t eight = tid / 128 * 8, t = eight + tid % 128 / 16, i = eight + tid % 16 / 2, from = tid % 2 * 32;
    const float4 *x = (const float4 *)(qs[t] + from), *y = (const float4 *)(ks[q0 + i] + from),
                 *bt = (const float4 *)(b[t] + from), *bi = (const float4 *)(b[i] + from);
    float dot = 0;
    if (i <= t)
#pragma unroll 4
        for (int j = 0; j < 8; j++) {
            dot = __fmaf_rn(x[j].x * y[j].x, exp2_fast(bt[j].x - bi[j].x), dot),
            dot = __fmaf_rn(x[j].y * y[j].y, exp2_fast(bt[j].y - bi[j].y), dot);
            dot = __fmaf_rn(x[j].z * y[j].z, exp2_fast(bt[j].z - bi[j].z), dot),
            dot = __fmaf_rn(x[j].w * y[j].w, exp2_fast(bt[j].w - bi[j].w), dot);
        }
    dot += __shfl_xor_sync(0xffffffffu, dot, 1);
    if (i <= t && from == 0) scores[t][q0 + i] = dot;
}

// A block: 16 tokens of a piece as queries. All sums are of log2.
__global__ void __launch_bounds__(SCORES)
    wide_scores_kernel(const __grid_constant__ cuda_scan in, uint32_t RP, wide_work work) {
    const cuda_shape &shape = in.io.shape;
    const cuda_rows &rows = in.io.rows;
    constexpr uint32_t LD = WIDE_M + 4; // rows of neighbouring lanes in different banks
    __shared__ __align__(16) float ks[PIECE][LD], qs[SUB][LD], qd[SUB][LD], b[SUB][LD], scores[SUB][LD],
        total[4][WIDE_M];
    const uint32_t M = shape.M, R = shape.R, sub = blockIdx.x % 4, tid = threadIdx.x,
                   first = (uint32_t)rows.seg_first[blockIdx.y], n_tok = (uint32_t)rows.seg_n[blockIdx.y], m = tid % 64,
                   part = tid / 64;
    const int64_t pos = rows.pos[first];
    const uint32_t before = (uint32_t)(pos % PIECE), piece = blockIdx.x / 4, lo = piece ? piece * PIECE - before : 0;
    let_next_start();
    wait_for_inputs(); // all blocks, or the next kernel could start before what it waits for through this one
    if (lo >= n_tok) return;
    const uint32_t n = piece_length(pos, lo, n_tok), q0 = sub * SUB;
    const size_t r0 = first + lo;
    if (n == 1 || q0 >= n) return; // one token alone: wide_scan_kernel by itself
    const float *const q = in.gates.q, *const k = in.gates.k, *const log_alpha = in.gates.log_alpha,
                       *const c0 = in.gates.c0;

    // thread (m, part): gates and keys of tokens 16 part .., queries 4 part .. of this sub-block
    float sum[SUB], key[SUB], query[4];
#pragma unroll
    for (uint32_t t = 0; t < SUB; t++) {
        const bool there = part * SUB + t < n && m < M;
        const size_t at = (r0 + part * SUB + t) * M + m;
        sum[t] = there ? log_alpha[at] * 1.44269504f : 0.0f;
        key[t] = there && part <= sub ? k[at] : 0.0f;
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t t = q0 + part * 4 + i;
        query[i] = t < n && m < M ? q[(r0 + t) * M + m] : 0.0f;
    }
    for (uint32_t i = tid; i < SUB * RP; i += SCORES) {
        const uint32_t t = i / 4 % 8, group = i / (8 * RP), j = i % (8 * RP) / 32 * 4 + i % 4, at = q0 + group * 8 + t;
        if (q0 + group * 8 < n)
            work.low[(r0 + sub * 2) * 8 * RP + i] = at < n && j < R ? tf32(c0[(r0 + at) * R + j]) : 0.0f;
    }
#pragma unroll
    for (uint32_t t = 1; t < SUB; t++) sum[t] += sum[t - 1];
    total[part][m] = sum[SUB - 1];
    if (part == sub)
#pragma unroll
        for (uint32_t t = 0; t < SUB; t++) b[t][m] = sum[t], ks[q0 + t][m] = key[t];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) scores[part * 4 + i][m] = 0, qs[part * 4 + i][m] = query[i];
    __syncthreads(); // sums, this sub-block's keys
    float start = 0, rest = 0, between = 0;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
        const float x = total[j][m];
        if (j < sub) start += x;
        if (j > sub) rest += x;
        if (j < sub && j > part) between += x;
    }
    if (part < sub) { // earlier keys, relative to the start of this sub-block
#pragma unroll
        for (uint32_t t = 0; t < SUB; t++)
            ks[part * SUB + t][m] = key[t] * exp2_fast((sum[SUB - 1] - sum[t]) + between);
    } else if (part == sub) {
#pragma unroll
        for (uint32_t t = 0; t < SUB; t++) key[t] = tf32(key[t] * exp2_fast((sum[SUB - 1] - sum[t]) + rest));
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) { // group, parity
            const uint32_t t = i / 2 * 8 + i % 2;
            if (q0 + i / 2 * 8 < n)
                *(float4 *)(work.k + (r0 + sub * 2 + i / 2) * GROUP_K + i % 2 * 256 + m * 4) =
                    make_float4(key[t], key[t + 2], key[t + 4], key[t + 6]);
        }
        if (sub == 0) work.decay[r0 * WIDE_M + m] = exp2f(sum[SUB - 1] + rest);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t t = part * 4 + i;
        const float inside = b[t][m];
        qd[t][m] = query[i] * exp2_fast(inside);
        if (q0 + t / 8 * 8 < n)
            work.q[(r0 + sub * 2 + t / 8) * GROUP_Q + (m / 8 * 2 + m % 2) * 32 + t % 8 * 4 + m % 8 / 2] =
                tf32(query[i] * exp2_fast(start + inside));
    }
    __syncthreads(); // keys and queries

    earlier_scores(sub, ks, qs, qd, b, scores);
    scores_of_eight(q0, ks, qs, b, scores);
    __syncthreads(); // the scores
    const uint32_t group = tid / 128, core = tid % 128 / 8, t = tid % 8, i = core / 2 * 8 + core % 2;
    if (q0 + group * 8 < n && (core < 8 || sub >= 2)) {
        const float *from = scores[group * 8 + t] + i;
        *(float4 *)((core < 8 ? work.early : work.late) + (r0 + sub * 2 + group) * GROUP_A + core % 8 * 32 + t * 4) =
            make_float4(tf32(from[0]), tf32(from[2]), tf32(from[4]), tf32(from[6]));
    }
}

void launch_wide_scores(const cuda_scan &x, const wide_work &work, void *stream) {
    const dim3 pieces(4 * ((x.most_tok + PIECE - 2) / PIECE + 1), x.n_segs);
    const uint32_t RP = wide_pad_R(&x.io.shape);
    launch(wide_scores_kernel, pieces, dim3(SCORES), 0, stream, x, RP, work);
}
