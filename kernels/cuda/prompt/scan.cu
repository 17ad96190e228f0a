// scan.cu - the recurrent layer of prompts in the chunkwise form: state and read-out (E4, E6, E7 and the gate of E8).
// On Hopper most shapes take the kernels of scan_wide.cu.
//
// A piece is what a segment has between two multiples of 64 positions. With b_t the running sum of log_alpha inside a
// piece:
//     o_t = (q_t exp(b_t)) S + sum over i <= t of A[t, i] u_i,   A[t, i] = sum over m of q[t, m] k[i, m] exp(b_t - b_i)
//     S  <- exp(b_C) S + sum over i of (k_i exp(b_C - b_i)) u_i
// scores_kernel makes q exp(b), k exp(b_C - b), A and exp(b_C) once a piece; scan_kernel walks over a segment's pieces
// with 32 channels of S in registers. No exponent is positive: inside a sub-block of 16 tokens decays are exp of a
// difference of sums that start with the sub-block; between sub-blocks both factors are relative to the start of the
// query's.
#include "scan.cuh"

enum { SUB = 16, SCORES_THREADS = 256, SCAN_MOST_R = 128 };

__device__ __forceinline__ void copy4(float *shared, const float *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(shared)), "l"(from) : "memory");
}

// ---- what a piece's pieces of E share ----

// Rows as they lie in shared memory, of MP = 64 or 128 (M), 64, RP = R padded to 32 floats. Sixteen-byte words are
// exchanged by the row, so that the lanes of a warp, which read a few words of several rows, find them in different
// banks.
struct scan_work {
    float *q, *k, *scores, *low,
        *decay; // [n_rows][MP], [MP], [64], [RP], [MP]: decay in the row of a piece's first token
};
__device__ __forceinline__ uint32_t by_four(uint32_t t, uint32_t i) { return i ^ (t & 3) << 3; }  // q, scores, low
__device__ __forceinline__ uint32_t by_pairs(uint32_t t, uint32_t i) { return i ^ (t & 6) << 2; } // k; and channels

// A block: 16 tokens of a piece as queries.
template <int MP>
__global__ void __launch_bounds__(SCORES_THREADS) scores_kernel(cuda_scan scan, uint32_t RP, scan_work work) {
    const cuda_shape &shape = scan.io.shape;
    const cuda_rows &rows = scan.io.rows;
    const float *const q = scan.gates.q, *const k = scan.gates.k, *const log_alpha = scan.gates.log_alpha,
                       *const c0 = scan.gates.c0;
    constexpr uint32_t LD = MP + 4; // rows of neighbouring lanes in different banks
    extern __shared__ float4 scan_shared[];
    float *b = (float *)scan_shared, *ks = b + PIECE * LD, *qs = ks + PIECE * LD, *qd = qs + SUB * LD,
          *total = qd + SUB * LD; // total [4][MP]
    const uint32_t M = shape.M, R = shape.R, sub = blockIdx.x % 4, tid = threadIdx.x,
                   first = (uint32_t)rows.seg_first[blockIdx.y], n_tok = (uint32_t)rows.seg_n[blockIdx.y];
    const int64_t pos = rows.pos[first];
    const uint32_t before = (uint32_t)(pos % PIECE), piece = blockIdx.x / 4, lo = piece ? piece * PIECE - before : 0;
    let_next_start();
    wait_for_inputs(); // all blocks, or scan_kernel could start before what it waits for through this one
    if (lo >= n_tok) return;
    const uint32_t n = piece_length(pos, lo, n_tok), q0 = sub * SUB;
    if (n == 1 || q0 >= n) return; // one token alone: scan_kernel by itself
    const size_t r0 = first + lo;
    for (uint32_t i = tid; i < PIECE * MP; i += SCORES_THREADS) {
        const uint32_t t = i / MP, m = i % MP;
        const bool there = t < n && m < M;
        const size_t at = (r0 + t) * M + m;
        b[t * LD + m] = there ? log_alpha[at] : 0.0f;
        if (t < q0 + SUB) ks[t * LD + m] = there ? k[at] : 0.0f;
        if (t >= q0 && t < q0 + SUB) qs[(t - q0) * LD + m] = there ? q[at] : 0.0f;
    }
    for (uint32_t i = tid; i < SUB * RP; i += SCORES_THREADS) {
        const uint32_t t = q0 + i / RP, j = i % RP;
        if (t < n) work.low[(r0 + t) * RP + by_four(t, j)] = j < R ? tf32(c0[(r0 + t) * R + j]) : 0.0f;
    }
    __syncthreads();                                          // the tokens' gates
    for (uint32_t i = tid; i < 4 * MP; i += SCORES_THREADS) { // running sums inside each sub-block
        const uint32_t m = i % MP;
        float sum = 0, *at = b + i / MP * SUB * LD + m;
#pragma unroll
        for (uint32_t t = 0; t < SUB; t++) at[t * LD] = sum += at[t * LD];
        total[i] = sum;
    }
    __syncthreads();                                            // the sums
    for (uint32_t i = tid; i < SUB * MP; i += SCORES_THREADS) { // this sub-block's tokens
        const uint32_t t = i / MP, m = i % MP;
        float start = 0, rest = 0;
        for (uint32_t j = 0; j < sub; j++) start += total[j * MP + m];
        for (uint32_t j = sub + 1; j < 4; j++) rest += total[j * MP + m];
        const float inside = b[(q0 + t) * LD + m];
        qd[t * LD + m] = qs[t * LD + m] * __expf(inside);
        if (q0 + t >= n) continue;
        const size_t r = r0 + q0 + t;
        work.q[r * MP + by_four(t, m)] = tf32(qs[t * LD + m] * __expf(start + inside));
        work.k[r * MP + by_pairs(t, m)] = tf32(ks[(q0 + t) * LD + m] * __expf((total[sub * MP + m] - inside) + rest));
        if (sub == 0 && t == 0) work.decay[r * MP + m] = expf(total[m] + rest);
    }
    for (uint32_t i = tid; i < q0 * MP; i += SCORES_THREADS) { // earlier keys, relative to the start of this sub-block
        const uint32_t t = i / MP, m = i % MP;
        float between = total[t / SUB * MP + m] - b[t * LD + m];
        for (uint32_t j = t / SUB + 1; j < sub; j++) between += total[j * MP + m];
        ks[t * LD + m] *= __expf(between);
    }
    __syncthreads(); // keys and queries
    const uint32_t t = tid / SUB, width = sub < 2 ? 32 : 64;
    float *row = work.scores + (r0 + q0 + t) * PIECE;
    for (uint32_t i = tid % SUB; i < width; i += SUB) {
        float sum = 0;
        if (i < q0) {
            const float4 *x = (const float4 *)(qd + t * LD), *y = (const float4 *)(ks + i * LD);
#pragma unroll 4
            for (int j = 0; j < MP / 4; j++) {
                sum = __fmaf_rn(x[j].x, y[j].x, sum), sum = __fmaf_rn(x[j].y, y[j].y, sum);
                sum = __fmaf_rn(x[j].z, y[j].z, sum), sum = __fmaf_rn(x[j].w, y[j].w, sum);
            }
        } else if (i <= q0 + t) {
            const float4 *x = (const float4 *)(qs + t * LD), *y = (const float4 *)(ks + i * LD),
                         *bt = (const float4 *)(b + (q0 + t) * LD), *bi = (const float4 *)(b + i * LD);
#pragma unroll 4
            for (int j = 0; j < MP / 4; j++) {
                sum = __fmaf_rn(x[j].x * y[j].x, __expf(bt[j].x - bi[j].x), sum),
                sum = __fmaf_rn(x[j].y * y[j].y, __expf(bt[j].y - bi[j].y), sum);
                sum = __fmaf_rn(x[j].z * y[j].z, __expf(bt[j].z - bi[j].z), sum),
                sum = __fmaf_rn(x[j].w * y[j].w, __expf(bt[j].w - bi[j].w), sum);
            }
        }
        if (q0 + t < n) row[by_four(t, i)] = tf32(sum);
    }
}

// ---- E4, E6, E7 ----

// Floats of shared memory: what a piece brings (one or two of them), then what the warps exchange.
struct scan_sizes {
    uint32_t MP, RP, channels, streams; // streams: of a, z, s, how many lie there
    __host__ __device__ uint32_t piece() const {
        return 2 * PIECE * MP + PIECE * PIECE + PIECE * RP + streams * PIECE * channels + MP + PIECE;
    }
    __host__ __device__ uint32_t rest() const { return channels * (MP + PIECE + RP) + channels / 16 * PIECE; }
};
__device__ __forceinline__ float fast_sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ __forceinline__ float fast_silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// Where a thread of scan_kernel stands, and where in shared memory lies what a piece brings: q, k, scores, low rank; a,
// z, s; decay, scales.
template <int MP, int CHANNELS, bool DIRECT> struct scan_place {
    static constexpr uint32_t at_k = PIECE * MP, at_scores = at_k + PIECE * MP, at_low = at_scores + PIECE * PIECE;
    uint32_t tid, lane, row, pair, half, quarter;
    uint32_t e0, c_lane; // the block's first channel; the thread's c_lane and c_lane + 8 of them
    uint32_t E, Ep, RP;
    uint32_t tile[2]; // of a piece's tokens
    __device__ __forceinline__ uint32_t at_a() const { return at_low + PIECE * RP; }
    __device__ __forceinline__ uint32_t at_z() const { return at_a() + PIECE * CHANNELS; }
    __device__ __forceinline__ uint32_t at_s() const { return at_z() + PIECE * CHANNELS; }
    __device__ __forceinline__ uint32_t at_decay() const { return at_a() + (DIRECT ? 1 : 3) * PIECE * CHANNELS; }
    __device__ __forceinline__ uint32_t at_scale() const { return at_decay() + MP; }
};

// Asks for the n tokens of the piece that begins in row r0.
template <int MP, int CHANNELS, bool DIRECT>
__device__ __forceinline__ void scan_fetch(const scan_place<MP, CHANNELS, DIRECT> &my, const cuda_state &in,
                                           const scan_work &work, size_t r0, uint32_t n, float *to) {
    constexpr uint32_t THREADS = CHANNELS * 8;
    const uint32_t tid = my.tid, RP = my.RP;
    for (uint32_t i = tid; i < n * (MP / 4); i += THREADS) ask16(to + 4 * i, work.q + r0 * MP + 4 * i);
    for (uint32_t i = tid; i < (n + 7) / 8 * 8 * (MP / 4); i += THREADS) {
        const bool there = i / (MP / 4) < n;
        ask16(to + my.at_k + 4 * i, there ? work.k + r0 * MP + 4 * i : work.k, there);
    }
    for (uint32_t i = tid; i < n * (PIECE / 4); i += THREADS)
        if (i % 16 < 8 || i / 16 >= 32) ask16(to + my.at_scores + 4 * i, work.scores + r0 * PIECE + 4 * i);
    for (uint32_t i = tid; i < n * (RP / 4); i += THREADS) ask16(to + my.at_low + 4 * i, work.low + r0 * RP + 4 * i);
    for (uint32_t i = tid; i < n * (CHANNELS / 4); i += THREADS) {
        const uint32_t t = i / (CHANNELS / 4), c = i % (CHANNELS / 4) * 4, at = t * CHANNELS + by_pairs(t, c);
        const bool there = my.e0 + c < my.E;
        const size_t r = r0 + t, e = there ? my.e0 + c : 0;
        ask16(to + my.at_a() + at, in.az + r * 2 * my.Ep + e, there);
        if (DIRECT) continue;
        ask16(to + my.at_z() + at, in.az + r * 2 * my.Ep + my.Ep + e, there);
        ask16(to + my.at_s() + at, in.s + r * my.Ep + e, there);
    }
    if (tid < MP / 4) ask16(to + my.at_decay() + 4 * tid, work.decay + r0 * MP + 4 * tid);
    if (in.row_scale && tid < n) copy4(to + my.at_scale() + tid, in.row_scale + r0 + tid);
}

// E4: u of the thread's tiles, channels by tokens; scale: of the tokens' rows.
template <int MP, int CHANNELS, bool DIRECT>
__device__ __forceinline__ void scan_make_u(const scan_place<MP, CHANNELS, DIRECT> &my, const cuda_state &in,
                                            const float *now, uint32_t n, const float (&bias)[2],
                                            const float4 *c1_shared, float4 *u_shared, float (&scale)[2][2]) {
    const uint32_t n_tiles = (n + 7) / 8;
    float acc[2][4] = {};
    for (uint32_t step = 0; step < my.RP / 8; step++) {
        const float4 c1 = c1_shared[(my.half * (my.RP / 8) + step) * 32 + my.lane];
#pragma unroll
        for (int x = 0; x < 2; x++) {
            const uint32_t t = my.tile[x] * 8 + my.row;
            if (my.tile[x] < n_tiles)
                mma_tf32(acc[x], c1, *(const float2 *)(now + my.at_low + t * my.RP + by_four(t, step * 8 + my.pair)));
        }
    }
#pragma unroll
    for (int x = 0; x < 2; x++) {
        float u[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t t = my.tile[x] * 8 + my.pair + i % 2;
            if (i < 2) scale[x][i] = in.row_scale ? now[my.at_scale() + t] : 1.0f;
            const float a = now[my.at_a() + t * CHANNELS + by_pairs(t, my.c_lane + i / 2 * 8)] * scale[x][i % 2];
            u[i] = t < n ? tf32(fast_sigmoid(acc[x][i] + bias[i / 2]) * a) : 0.0f;
        }
        u_shared[(my.half * 8 + my.tile[x]) * 32 + my.lane] = make_float4(u[0], u[2], u[1], u[3]);
    }
}

// W_c1 of the block's channels as first operand.
template <int MP, int CHANNELS, bool DIRECT>
__device__ __forceinline__ void scan_operand_c1(const scan_place<MP, CHANNELS, DIRECT> &my, const float *c1, uint32_t R,
                                                float *operand) {
    for (uint32_t i = my.tid; i < CHANNELS * my.RP; i += CHANNELS * 8) {
        const uint32_t reg = i % 4, l = i / 4 % 32, step = i / 128 % (my.RP / 8), h = i / 128 / (my.RP / 8);
        const uint32_t e = my.e0 + h * 16 + l / 4 + reg % 2 * 8, j = step * 8 + l % 4 * 2 + reg / 2;
        operand[i] = e < my.E && j < R ? tf32(c1[(size_t)e * R + j]) : 0.0f;
    }
}

// A piece of one token: S goes through shared memory, a lane a channel.
template <class T, int MP, int CHANNELS, bool DIRECT>
__device__ __forceinline__ void scan_one_token(const scan_place<MP, CHANNELS, DIRECT> &my, const cuda_scan &in,
                                               size_t r, float *plain, float (&S)[MP / 32][4]) {
    constexpr uint32_t OWN = MP / 32;
    float *part = plain + CHANNELS * MP;
#pragma unroll
    for (uint32_t x = 0; x < OWN; x++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            plain[((my.quarter * OWN + x) * 8 + my.pair + i % 2) * CHANNELS + my.c_lane + i / 2 * 8] = S[x][i];
    __syncthreads(); // S before other threads change it
    one_token<T, CHANNELS, 8>(in, r, my.e0, plain + my.tid % CHANNELS, CHANNELS, part);
    __syncthreads(); // S of other threads
#pragma unroll
    for (uint32_t x = 0; x < OWN; x++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            S[x][i] = plain[((my.quarter * OWN + x) * 8 + my.pair + i % 2) * CHANNELS + my.c_lane + i / 2 * 8];
}

// Adds a piece's squares, of two groups of 16 channels.
template <int MP, int CHANNELS, bool DIRECT>
__device__ __forceinline__ void scan_add_squares(const scan_place<MP, CHANNELS, DIRECT> &my, const float *squares,
                                                 size_t r, uint32_t n, float *sums) {
    for (uint32_t i = my.tid; i < n * (CHANNELS / 32); i += CHANNELS * 8) {
        const uint32_t t = i / (CHANNELS / 32), c = i % (CHANNELS / 32);
        if (my.e0 + c * 32 < my.Ep)
            sums[(r + t) * (my.Ep / 32) + my.e0 / 32 + c] =
                squares[2 * c * PIECE + t] + squares[(2 * c + 1) * PIECE + t];
    }
}

// E7: what S holds, then the piece's own; E6: its sum for S.
template <int MP, int CHANNELS, bool DIRECT>
__device__ __forceinline__ void scan_products(const scan_place<MP, CHANNELS, DIRECT> &my, const float *now, uint32_t n,
                                              const float4 *S_shared, const float4 *u_shared, float (&o)[2][4],
                                              float (&own)[2][4], float (&more)[MP / 32][4]) {
    constexpr uint32_t TILES = MP / 8, OWN = TILES / 4;
    const uint32_t n_tiles = (n + 7) / 8;
#pragma unroll 4
    for (uint32_t m = 0; m < TILES; m++) {
        const float4 s = S_shared[(my.half * TILES + m) * 32 + my.lane];
#pragma unroll
        for (int x = 0; x < 2; x++) {
            const uint32_t t = my.tile[x] * 8 + my.row;
            if (my.tile[x] < n_tiles) mma_tf32(o[x], s, *(const float2 *)(now + t * MP + by_four(t, m * 8 + my.pair)));
        }
    }
#pragma unroll 2
    for (uint32_t i = 0; i < n_tiles; i++) {
        const float4 u = u_shared[(my.half * 8 + i) * 32 + my.lane];
        const float *k = now + my.at_k + (i * 8 + my.pair) * MP;
#pragma unroll
        for (uint32_t x = 0; x < OWN; x++) {
            const uint32_t m = by_pairs(my.pair, (my.quarter * OWN + x) * 8 + my.row);
            mma_tf32(more[x], u, make_float2(k[m], k[MP + m]));
        }
#pragma unroll
        for (int x = 0; x < 2; x++) {
            const uint32_t t = my.tile[x] * 8 + my.row;
            if (i <= my.tile[x] && my.tile[x] < n_tiles)
                mma_tf32(own[x], u, *(const float2 *)(now + my.at_scores + t * PIECE + by_four(t, i * 8 + my.pair)));
        }
    }
}
// z and s of the thread's channels, where they do not lie in shared memory.
template <int MP, int CHANNELS, bool DIRECT>
__device__ __forceinline__ void scan_read_zs(const scan_place<MP, CHANNELS, DIRECT> &my, const cuda_state &in,
                                             size_t r0, uint32_t n, float (&z_own)[2][4], float (&s_own)[2][4]) {
#pragma unroll
    for (int x = 0; x < 2; x++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t t = my.tile[x] * 8 + my.pair + i % 2, e = my.e0 + my.c_lane + i / 2 * 8;
            const bool there = t < n && e < my.E;
            z_own[x][i] = there ? in.az[(r0 + t) * 2 * my.Ep + my.Ep + e] : 0.0f,
            s_own[x][i] = there ? in.s[(r0 + t) * my.Ep + e] : 0.0f;
        }
}
// A thread's part of a piece, [tile][..]: E7 from S and from the piece itself, the rows' scales; z and s where DIRECT.
struct scan_sums {
    float o[2][4], own[2][4], scale[2][2], z[2][4], s[2][4];
};
struct scan_channels { // of the thread's two channels: E4's bias, E8's weights
    float bias[2], residual[2], norm[2];
};
__device__ __forceinline__ scan_channels scan_channels_at(const cuda_state &in, uint32_t channel) { // and channel + 8
    scan_channels x;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t e = channel + h * 8;
        const bool there = e < in.shape.E;
        x.bias[h] = there ? in.c1_b[e] : 0.0f, x.residual[h] = there ? in.residual[e] : 0.0f;
        x.norm[h] = there ? in.act_norm[e] : 0.0f;
    }
    return x;
}
// The gate of E8: the piece's activations, and its sums of squares over 16 channels.
template <class T, int MP, int CHANNELS, bool DIRECT>
__device__ __forceinline__ void scan_gate(const scan_place<MP, CHANNELS, DIRECT> &my, const float *now, uint32_t n,
                                          size_t r0, const scan_sums &sums, const scan_channels &of, float *squares,
                                          T *act) {
    const uint32_t n_tiles = (n + 7) / 8, Ek = (my.E + 15) / 16 * 16;
#pragma unroll
    for (int x = 0; x < 2; x++) {
        if (my.tile[x] >= n_tiles) continue;
        float out[4], square[2];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t t = my.tile[x] * 8 + my.pair + i % 2, at = t * CHANNELS + by_pairs(t, my.c_lane + i / 2 * 8);
            const bool there = t < n && my.e0 + my.c_lane + i / 2 * 8 < my.E;
            const float z = DIRECT ? sums.z[x][i] : now[my.at_z() + at],
                        s = DIRECT ? sums.s[x][i] : now[my.at_s() + at];
            out[i] = there ? __fmaf_rn(of.residual[i / 2], s, sums.o[x][i] + sums.own[x][i]) *
                                 fast_silu(z * sums.scale[x][i % 2])
                           : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            square[i] = __fmaf_rn(out[i], out[i], out[i + 2] * out[i + 2]);
#pragma unroll
            for (int j = 4; j < 32; j *= 2) square[i] += __shfl_xor_sync(0xffffffffu, square[i], j);
            if (my.row == 0) squares[my.half * PIECE + my.tile[x] * 8 + my.pair + i] = square[i];
        }
        // lanes of neighbouring channels exchange, so that each has two channels of one token
        const uint32_t odd = my.row % 2, t = my.tile[x] * 8 + my.pair + odd;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float y0 = out[2 * h] * of.norm[h], y1 = out[2 * h + 1] * of.norm[h],
                        other = __shfl_xor_sync(0xffffffffu, odd ? y0 : y1, 4);
            const uint32_t e = my.e0 + my.c_lane - odd + h * 8;
            T two[2] = {from_float<T>(odd ? other : y0), from_float<T>(odd ? y1 : other)};
            if (t < n && e < my.E)
                *(uint32_t *)(act + act_at<T>((uint32_t)r0 + t, e, Ek)) =
                    *(const uint16_t *)&two[0] | (uint32_t) * (const uint16_t *)&two[1] << 16;
        }
    }
}

// A block: 32 channels of a segment, all its pieces in order. Warp (half, quarter) has 16 channels and, of them, two of
// a piece's eight tiles of 8 tokens (quarter and 7 - quarter, so that all have as many scores) and a quarter of S.
// Channels are rows of every product, so that results (u, S) have the layout of the next product's first operand but
// for an order of its k that the second operand shares; warps hand them to each other in shared memory.
template <class T, int MP, int CHANNELS, bool DIRECT>
__global__ void __launch_bounds__(CHANNELS * 8, 1)
    scan_kernel(cuda_scan scan, uint32_t RP, scan_work work, uint32_t n_buffers) {
    const cuda_state &in = scan.io;
    const cuda_shape &shape = in.shape;
    constexpr uint32_t TILES = MP / 8, OWN = TILES / 4; // tiles of S
    extern __shared__ float4 scan_shared[];
    const scan_sizes sizes = {MP, RP, CHANNELS, DIRECT ? 1 : 3};
    float *buffers = (float *)scan_shared;
    float4 *S_shared = (float4 *)(buffers + n_buffers * sizes.piece()), *u_shared = S_shared + CHANNELS * MP / 4,
           *c1_shared = u_shared + CHANNELS * PIECE / 4;
    float *squares = (float *)(c1_shared + CHANNELS * RP / 4); // [CHANNELS / 16][PIECE]
    const uint32_t M = shape.M, R = shape.R, E = shape.E, Ep = shape.Ep;
    const uint32_t tid = threadIdx.x, lane = tid % 32, row = lane / 4, pair = lane % 4 * 2, half = tid / 128,
                   quarter = tid / 32 % 4;
    const uint32_t e0 = blockIdx.x * CHANNELS, c_lane = half * 16 + row; // channels c_lane and c_lane + 8
    const scan_place<MP, CHANNELS, DIRECT> my = {tid, lane,   row, pair, half, quarter,
                                                 e0,  c_lane, E,   Ep,   RP,   {quarter, 7 - quarter}};
    const scan_segment seg = segment_at(in.rows, blockIdx.y);
    const uint32_t first = seg.first, n_tok = seg.n_tok;
    const int64_t pos = seg.pos;
    let_next_start();
    // S was last written a step ago, so it comes before the inputs are ready
    float *S_memory = shape.S + seg.slot * shape.S_slot + in.layer * shape.S_layer +
                      (size_t)((e0 + c_lane) / 32) * M * 32 + c_lane % 32;
    const bool in_state = e0 + c_lane < Ep; // then c_lane + 8 too
    float S[OWN][4];
#pragma unroll
    for (uint32_t x = 0; x < OWN; x++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t m = (quarter * OWN + x) * 8 + pair + i % 2;
            S[x][i] = m < M && in_state ? S_memory[m * 32 + i / 2 * 8] : 0.0f;
        }
    scan_operand_c1(my, in.c1, R, (float *)c1_shared);
    const scan_channels of = scan_channels_at(in, e0 + c_lane);
    wait_for_inputs();
    const auto fetch = [&](uint32_t lo, uint32_t n, float *to) { scan_fetch(my, in, work, first + lo, n, to); };
    const auto add_squares = [&](size_t r, uint32_t n_done) { scan_add_squares(my, squares, r, n_done, in.sums); };
    uint32_t n = piece_length(pos, 0, n_tok), n_before = 0, buffer = 0;
    if (n > 1) fetch(0, n, buffers);
    asked();
    for (uint32_t lo = 0; lo < n_tok;) {
        const uint32_t next = lo + n, n_next = next < n_tok ? piece_length(pos, next, n_tok) : 0;
        const size_t r0 = first + lo;
        float *now = buffers + buffer * sizes.piece();
        await_all_but<0>();
        __syncthreads(); // this piece is here, and nobody works on the one before
        add_squares(r0 - n_before, n_before);
        n_before = 0;
        if (n_buffers == 2) {
            if (n_next > 1) fetch(next, n_next, buffers + (buffer ^ 1) * sizes.piece());
            asked();
        }
        if (n == 1) // nothing came for this piece
            scan_one_token<T>(my, scan, r0, now, S);
        else {
            scan_sums sums = {};
            if (DIRECT) scan_read_zs(my, in, r0, n, sums.z, sums.s);
            scan_make_u(my, in, now, n, of.bias, c1_shared, u_shared, sums.scale);
#pragma unroll
            for (uint32_t x = 0; x < OWN; x++)
                S_shared[(half * TILES + quarter * OWN + x) * 32 + lane] =
                    make_float4(tf32(S[x][0]), tf32(S[x][2]), tf32(S[x][1]), tf32(S[x][3]));
            __syncthreads(); // u and S of the other warps
            // E7: what S holds, then this piece's own; E6: its sum for S
            float more[OWN][4] = {};
            scan_products(my, now, n, S_shared, u_shared, sums.o, sums.own, more);
#pragma unroll
            for (uint32_t x = 0; x < OWN; x++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    S[x][i] =
                        __fmaf_rn(now[my.at_decay() + (quarter * OWN + x) * 8 + pair + i % 2], S[x][i], more[x][i]);
            scan_gate<T>(my, now, n, r0, sums, of, squares, (T *)in.act);
            n_before = n;
        }
        if (n_buffers == 1) {
            __syncthreads(); // nobody works on this piece
            if (n_next > 1) fetch(next, n_next, buffers);
            asked();
        } else
            buffer ^= 1;
        lo = next, n = n_next;
    }
    __syncthreads(); // the last piece's squares
    add_squares((size_t)first + n_tok - n_before, n_before);
    keep_tail<T>(scan, seg, e0, CHANNELS, CHANNELS * 8);
#pragma unroll
    for (uint32_t x = 0; x < OWN; x++)
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t m = (quarter * OWN + x) * 8 + pair + i % 2;
            if (m < M && in_state) S_memory[m * 32 + i / 2 * 8] = S[x][i];
        }
}

// ---- launching ----

static size_t scores_bytes(uint32_t MP) { return ((size_t)(2 * PIECE + 2 * SUB) * (MP + 4) + 4 * MP) * sizeof(float); }
static size_t scan_bytes(const scan_sizes &sizes, uint32_t n_buffers) {
    return ((size_t)n_buffers * sizes.piece() + sizes.rest()) * sizeof(float);
}
static uint32_t buffers_of(const scan_sizes &sizes) { // that this device's shared memory holds
    int device = 0, most = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return scan_bytes(sizes, 2) <= (size_t)most ? 2 : scan_bytes(sizes, 1) <= (size_t)most ? 1 : 0;
}
static uint32_t pad_M(const struct cuda_shape *shape) { return scan_kernel_of(shape) == SCAN_64 ? 64 : 128; }
static uint32_t pad_R(const struct cuda_shape *shape) { return (shape->R + 31) / 32 * 32; }

#define SCAN_CHANNELS 32
#define SCAN_DIRECT   false

template <class T, int MP> static bool scan_prepare(uint32_t RP) {
    const scan_sizes sizes = {MP, RP, SCAN_CHANNELS, SCAN_DIRECT ? 1 : 3};
    const uint32_t n = buffers_of(sizes);
    return n > 0 && allow_shared(scan_kernel<T, MP, SCAN_CHANNELS, SCAN_DIRECT>, scan_bytes(sizes, n)) &&
           allow_shared(scores_kernel<MP>, scores_bytes(MP));
}
bool cuda_scan_prepare(const struct cuda_shape *shape) {
    if (!dispatch_scan(shape)) return false;
    if (wide_scan_possible(shape)) return wide_scan_prepare(shape);
    bool ready = false;
    if (pad_M(shape) == 64)
        FOR_16_BIT(shape->dtype, ready = (scan_prepare<T, 64>(pad_R(shape))));
    else
        FOR_16_BIT(shape->dtype, ready = (scan_prepare<T, 128>(pad_R(shape))));
    return ready;
}

bool cuda_scan_packed(const struct cuda_shape *shape) { return wide_scan_possible(shape); }
size_t cuda_scan_bytes(const struct cuda_shape *shape, uint32_t n_rows) {
    if (wide_scan_possible(shape)) return wide_scan_bytes(shape, n_rows);
    return (size_t)n_rows * (3 * pad_M(shape) + PIECE + pad_R(shape)) * sizeof(float);
}

static void launch_scores(const cuda_scan &x, const scan_work &work, void *stream) {
    const dim3 pieces(4 * ((x.most_tok + PIECE - 2) / PIECE + 1), x.n_segs);
    const uint32_t MP = pad_M(&x.io.shape), RP = pad_R(&x.io.shape);
    launch(MP == 64 ? scores_kernel<64> : scores_kernel<128>, pieces, dim3(SCORES_THREADS), scores_bytes(MP), stream, x,
           RP, work);
}
static void launch_scan(const cuda_scan &x, const scan_work &work, void *stream) {
    const cuda_shape *shape = &x.io.shape;
    const dim3 channels((shape->Ep + SCAN_CHANNELS - 1) / SCAN_CHANNELS, x.n_segs);
    const scan_sizes sizes = {pad_M(shape), pad_R(shape), SCAN_CHANNELS, SCAN_DIRECT ? 1 : 3};
    const uint32_t n_buffers = buffers_of(sizes);
#define SCAN(MP)                                                                                                       \
    FOR_16_BIT(shape->dtype,                                                                                           \
               (launch(scan_kernel<T, MP, SCAN_CHANNELS, SCAN_DIRECT>, channels, dim3(SCAN_CHANNELS * 8),              \
                       scan_bytes(sizes, n_buffers), stream, x, sizes.RP, work, n_buffers)))
    if (sizes.MP == 64)
        SCAN(64);
    else
        SCAN(128);
}
static scan_work parts_of(const struct cuda_shape *shape, uint32_t n_rows, void *work) {
    const size_t n = n_rows, MP = pad_M(shape);
    float *p = (float *)work;
    return {p, p + n * MP, p + 2 * n * MP, p + n * (2 * MP + PIECE), p + n * (2 * MP + PIECE + pad_R(shape))};
}

static bool is_segments(const cuda_scan &x) {
    return x.n_segs > 0 && x.n_segs <= CUDA_GRID_Z && x.most_tok > 0 && x.n_rows >= x.most_tok && x.n_rows >= x.n_segs;
}
void k_scan(const struct cuda_scan *scan, void *stream) {
    const struct cuda_shape *shape = &scan->io.shape;
    assert(dispatch_scan(shape) && is_segments(*scan) && scan->work && on_16_bytes(scan->work));
    if (wide_scan_possible(shape)) return wide_scan(*scan, stream);
    cuda_scan x = *scan;
    assert(x.io.az && x.io.s && on_16_bytes(x.io.az, x.io.s));
    x.a_act = NULL;
    const scan_work parts = parts_of(shape, x.n_rows, x.work);
    launch_scores(x, parts, stream);
    launch_scan(x, parts, stream);
}
