// scan_wide.cu - k_scan on Hopper: every product by wgmma with 64 channels of E as its rows, so that S and u leave one
// product in the registers of the next one's first operand.
//
// wide_scores_kernel makes, once a piece, what all channels share: q exp(b), k exp(b_C - b), A, exp(b_C) and c0,
// rounded to tf32 and in the order of wgmma's second operand, so that a block of wide_scan_kernel fetches a piece with
// a few bulk copies. That kernel's block owns 64 channels of a segment and walks over its pieces: one warpgroup makes u
// of the next piece, one carries S on and makes o, one reads the piece before out, three warps fetch and one takes
// away. a, z, s and the read-out are packed activations; pieces that begin with a tile of eight rows go by the tensor
// copy engine. Equations: scan.cu.
#include "scan.cuh"
#include "kernels/cuda/wgmma.cuh"
#include <cuda.h>

// A group: 8 tokens of a piece; group i of the piece that begins in row r has the number r + i. Matrices lie in cores
// of 8 rows (of N) by 4 floats of k; where both operands come from products, k runs 0 2 4 6 1 3 5 7 inside every eight:
// the order of a product's results in a thread.
enum {
    WIDE_THREADS = 512,
    WIDE_M = 64,
    SCORES = 256,
    WIDE_MOST_R = 64,
    EIGHTS = 4
}; // EIGHTS of tokens are straight code
enum {
    GROUP_Q = 512,
    GROUP_K = 512,
    GROUP_A = 256
}; // floats of a group: q [16][8 t][4]; k [2][8][8 m][4]; A, 32 of its columns: [8][8 t][4]
struct wide_work {
    float *q, *k, *early, *late, *low,
        *decay; // early, late: of A's columns; low [R / 4][8 t][4]; decay [64] under a piece's first group
};
static wide_work wide_parts(uint32_t n_rows, uint32_t RP, void *work) {
    float *p = (float *)work;
    const size_t n = n_rows;
    return {p,
            p + n * GROUP_Q,
            p + n * (GROUP_Q + GROUP_K),
            p + n * (GROUP_Q + GROUP_K + GROUP_A),
            p + n * (GROUP_Q + GROUP_K + 2 * GROUP_A + WIDE_M),
            p + n * (GROUP_Q + GROUP_K + 2 * GROUP_A)};
}
static uint32_t wide_pad_R(const cuda_shape *shape) {
    const enum dispatch_kernel kernel = scan_kernel_of(shape);
    return kernel == WIDE_SCAN_4 ? 32 : kernel == WIDE_SCAN_6 ? 48 : 64;
}

// ---- instructions ----
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// d (64 rows by N) = or += a b over 8 k; rows and columns of a lane as of the products of 16 bit.
#define WGMMA_TF32(N, SUMS, A0, A1, A2, A3, B, ADD)                                                                    \
    __device__ __forceinline__ void wgmma_tf32(float(&d)[SUMS], const float4 &a, uint64_t b, bool add) {               \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n"                                                \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" NAMES_##SUMS                          \
                     "}, "                                                                                             \
                     "{%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", p, 1, 1;\n}"                                     \
                     : SUMS_##SUMS(d)                                                                                  \
                     : "r"(__float_as_uint(a.x)), "r"(__float_as_uint(a.y)), "r"(__float_as_uint(a.z)),                \
                       "r"(__float_as_uint(a.w)), "l"(b), "r"((int)add));                                              \
    }
WGMMA_TF32(64, 32, 32, 33, 34, 35, 36, 37)
WGMMA_TF32(32, 16, 16, 17, 18, 19, 20, 21)
#undef WGMMA_TF32
__device__ __forceinline__ void in_registers(float4 &a) {
    asm volatile("" : "+f"(a.x), "+f"(a.y), "+f"(a.z), "+f"(a.w)::"memory");
} // before the fence
__device__ __forceinline__ void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *b) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(b))
                 : "memory");
}
__device__ __forceinline__ void all_meet() {
    delay(16);
    asm volatile("bar.sync 0;" ::: "memory");
}
template <int N> __device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> __device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}
// A box from shared memory to a tensor of three dimensions; and when the thread's boxes are read there, and written.
__device__ __forceinline__ void store_box(const void *map, uint32_t from, uint32_t x, uint32_t y, uint32_t z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], "
                 "[%1];\ncp.async.bulk.commit_group;" ::"l"(map),
                 "r"(from), "r"(x), "r"(y), "r"(z)
                 : "memory");
}
__device__ __forceinline__ void stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
__device__ __forceinline__ void stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Cores `k` bytes apart along k, `n` along N; no swizzle.
__device__ __forceinline__ uint64_t operand(const void *p, uint32_t k, uint32_t n) {
    return (uint64_t)(k >> 4) << 16 | (uint64_t)(n >> 4) << 32 | (shared_address(p) & 0x3ffff) >> 4;
}
#endif
// ---- end of instructions ----

// ---- what a piece's channels share ----

// A block: 16 tokens of a piece as queries. All sums are of log2.
__global__ void __launch_bounds__(SCORES)
    wide_scores_kernel(cuda_shape shape, cuda_rows rows, const float *q, const float *k, const float *log_alpha,
                       const float *c0, uint32_t RP, wide_work work) {
    constexpr uint32_t SUB = 16, LD = WIDE_M + 4; // rows of neighbouring lanes in different banks
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
    if (n == 1 || q0 >= n) return; // one token alone: wide_scan_kernel by itself
    const size_t r0 = first + lo;

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
    { // within eight: two threads a pair of tokens
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
    __syncthreads(); // the scores
    const uint32_t group = tid / 128, core = tid % 128 / 8, t = tid % 8, i = core / 2 * 8 + core % 2;
    if (q0 + group * 8 < n && (core < 8 || sub >= 2)) {
        const float *from = scores[group * 8 + t] + i;
        *(float4 *)((core < 8 ? work.early : work.late) + (r0 + sub * 2 + group) * GROUP_A + core % 8 * 32 + t * 4) =
            make_float4(tf32(from[0]), tf32(from[2]), tf32(from[4]), tf32(from[6]));
    }
}

// ---- E4, E6, E7 ----

template <int RS, int CH> struct wide_memory { // bytes; RS: steps of 8 of R; CH: channels of a block
    static constexpr uint32_t Q = 0, K = Q + 8 * GROUP_Q * 4, EARLY = K + 8 * GROUP_K * 4,
                              LATE = EARLY + 8 * GROUP_A * 4, DECAY = LATE + 4 * GROUP_A * 4,
                              STAGE = DECAY + WIDE_M * 4, STAGES = 2;
    // Packed activations of a piece's channels: tiles of 8 rows, each 64 channels; a piece that begins within a tile
    // has nine.
    static constexpr uint32_t TILE = 8 * CH * 2, ROWS = 9 * TILE;
    static constexpr uint32_t LOW = ROWS, LOW_STAGE = LOW + 8 * RS * 256, LOW_STAGES = RS <= 4 ? 2 : 1; // a and c0
    // z and s; sums of squares, which have the place of their warp's z where a warp has whole tiles of 16 channels
    static constexpr uint32_t S_ROWS = ROWS, SQUARES = CH == 64 ? 0 : 2 * ROWS,
                              GATE_STAGE = 2 * ROWS + (CH == 64 ? 0 : 4 * PIECE * 4), GATE_STAGES = 3;
    static constexpr uint32_t LOWS = STAGES * STAGE, GATES = LOWS + LOW_STAGES * LOW_STAGE,
                              U = GATES + GATE_STAGES * GATE_STAGE, U_STAGE = CH * PIECE * 4,
                              U_STAGES = CH == 64 ? 1 : 2, // 1: written while the state is carried on, read at once
        O = U + U_STAGES * U_STAGE, BARRIERS = O + 2 * U_STAGE,
                              TOTAL = BARRIERS + (2 * (STAGES + LOW_STAGES + U_STAGES + 2) + 3 * GATE_STAGES) * 8;
};
static_assert(wide_memory<4, 64>::TOTAL <= 227 << 10 && wide_memory<8, 64>::TOTAL <= 227 << 10 &&
                  wide_memory<8, 32>::TOTAL <= 227 << 10,
              "a block's shared memory");
// Whole pieces of packed activations [.][Ek / 16][a tile of 256 bytes], as the tensor copy engine takes them: eight
// tiles of rows by 64 channels.
struct wide_maps {
    CUtensorMap a, z, s, act;
};

// The halves of a word of 16-bit numbers.
template <class T> __device__ __forceinline__ float first_of(uint32_t word) {
    const uint16_t bits = (uint16_t)word;
    return to_float(*(const T *)&bits);
}
template <class T> __device__ __forceinline__ float second_of(uint32_t word) { return first_of<T>(word >> 16); }
__device__ __forceinline__ uint32_t word_of(float first, float second, __half) {
    const __half2 two = __floats2half2_rn(first, second);
    return *(const uint32_t *)&two;
}
__device__ __forceinline__ uint32_t word_of(float first, float second, __nv_bfloat16) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
    return *(const uint32_t *)&two;
}
// Of two times HALF sums, a lane keeps its half, added to its partner's.
template <int HALF, int BIT, int N> __device__ __forceinline__ void halve(float (&x)[N], uint32_t lane) {
    const bool upper = lane & BIT;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        const float other = __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[HALF + i], BIT);
        x[i] = (upper ? x[HALF + i] : x[i]) + other;
    }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// In shared memory.
struct wide_barriers {
    uint64_t *full, *empty, *low_full, *low_empty, *gate_full, *gate_empty, *u_full, *u_empty, *o_full, *o_empty,
        *act_full;
};
template <int RS, int CH> __device__ __forceinline__ wide_barriers barriers_of(unsigned char *memory) {
    using mem = wide_memory<RS, CH>;
    wide_barriers b;
    b.full = (uint64_t *)(memory + mem::BARRIERS), b.empty = b.full + mem::STAGES, b.low_full = b.empty + mem::STAGES,
    b.low_empty = b.low_full + mem::LOW_STAGES, b.gate_full = b.low_empty + mem::LOW_STAGES,
    b.gate_empty = b.gate_full + mem::GATE_STAGES, b.u_full = b.gate_empty + mem::GATE_STAGES,
    b.u_empty = b.u_full + mem::U_STAGES, b.o_full = b.u_empty + mem::U_STAGES, b.o_empty = b.o_full + 2,
    b.act_full = b.o_empty + 2;
    return b;
}
// One thread. Every thread arrives for what it has read and written itself; a lane for its warp is no faster
// (kernels/NOTES.md).
template <int RS, int CH> __device__ __forceinline__ void make_barriers(const wide_barriers &b) {
    using mem = wide_memory<RS, CH>;
    for (uint32_t i = 0; i < mem::STAGES; i++) barrier_init(b.full + i, 1), barrier_init(b.empty + i, 128);
    for (uint32_t i = 0; i < mem::LOW_STAGES; i++) barrier_init(b.low_full + i, 1), barrier_init(b.low_empty + i, 128);
    for (uint32_t i = 0; i < mem::GATE_STAGES; i++)
        barrier_init(b.gate_full + i, 1), barrier_init(b.gate_empty + i, 32), barrier_init(b.act_full + i, 128);
    for (uint32_t i = 0; i < mem::U_STAGES; i++) barrier_init(b.u_full + i, 128), barrier_init(b.u_empty + i, 128);
    for (uint32_t i = 0; i < 2; i++) barrier_init(b.o_full + i, 128), barrier_init(b.o_empty + i, 128);
    barriers_there();
}
// What a block works on, and the thread's place in it. Row g of a warp's 16 is channel 2 g, row g + 8 channel 2 g + 1.
struct wide_place {
    unsigned char *memory;
    uint32_t first, begin, end; // the segment's first row; its tokens that go by pieces
    int64_t pos;                // of the segment's first token
    uint32_t lane, warp, pair;  // the warp in its role; the lane's column of a product
    uint32_t e0, e, in_tile;    // the block's first channel; e and e + 1 are the thread's; where e lies in a tile
    bool mine;                  // e and e + 1 are below E, which is even
};

// ---- three warps fetch, one takes away ----

struct wide_width {
    uint32_t Ek, k_tiles; // E, padded to tiles of 16; how many of these tiles are the block's
};

// The rows of a piece of n tokens; the barrier expects them.
template <class T, int RS, int CH>
__device__ __forceinline__ void fetch_rows(const wide_place &p, const wide_width &width, uint32_t n,
                                           const CUtensorMap *map, const void *from, uint32_t r0, unsigned char *to,
                                           uint64_t *barrier) {
    const size_t eight = (size_t)(width.Ek / 16) * 128; // from a row of packed activations to the eighth after it
    if (r0 % 8 == 0 && n == PIECE && width.k_tiles == CH / 16) {
        if (p.lane == 0) copy_box(shared_address(to), map, 0, p.e0 / 16, r0 / 8, barrier);
    } else if (p.lane < (r0 % 8 + n + 7) / 8)
        bulk_copy(to + p.lane * wide_memory<RS, CH>::TILE, (const T *)from + (r0 / 8 + p.lane) * eight + p.e0 * 8,
                  width.k_tiles * 256, barrier);
}
__device__ __forceinline__ uint32_t bytes_of(const wide_width &width, uint32_t n, uint32_t r0) {
    return (r0 % 8 + n + 7) / 8 * width.k_tiles * 256;
}
// One warp: of each piece, what all channels share.
template <int RS, int CH>
__device__ __forceinline__ void fetch_scores(const wide_place &p, const wide_barriers &b, const wide_work &work) {
    using mem = wide_memory<RS, CH>;
    constexpr uint32_t STAGES = mem::STAGES;
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const uint32_t groups = (n + 7) / 8, stage = it % STAGES, late = groups > 4 ? groups - 4 : 0;
        const size_t r0 = p.first + lo;
        unsigned char *at = p.memory + stage * mem::STAGE;
        if (it >= STAGES) barrier_wait(b.empty + stage, (it / STAGES - 1) & 1);
        if (p.lane == 0)
            barrier_expect(b.full + stage,
                           groups * (GROUP_Q + GROUP_K + GROUP_A) * 4 + late * GROUP_A * 4 + WIDE_M * 4);
        __syncwarp(); // the barrier knows
        if (p.lane == 16) bulk_copy(at + mem::K, work.k + r0 * GROUP_K, groups * GROUP_K * 4, b.full + stage);
        if (p.lane == 17) bulk_copy(at + mem::Q, work.q + r0 * GROUP_Q, groups * GROUP_Q * 4, b.full + stage);
        if (p.lane == 18) bulk_copy(at + mem::EARLY, work.early + r0 * GROUP_A, groups * GROUP_A * 4, b.full + stage);
        if (p.lane == 19) bulk_copy(at + mem::DECAY, work.decay + r0 * WIDE_M, WIDE_M * 4, b.full + stage);
        if (p.lane == 20 && late)
            bulk_copy(at + mem::LATE, work.late + (r0 + 4) * GROUP_A, late * GROUP_A * 4, b.full + stage);
        __syncwarp();
    }
}
// One warp: of each piece, a and c0.
template <class T, int RS, int CH>
__device__ __forceinline__ void fetch_low(const wide_place &p, const wide_width &width, const wide_barriers &b,
                                          const wide_work &work, const scan_in &in, const wide_maps &maps) {
    using mem = wide_memory<RS, CH>;
    constexpr uint32_t RP = RS * 8, LOW_STAGES = mem::LOW_STAGES;
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const uint32_t stage = it % LOW_STAGES, r0 = p.first + lo, low = (n + 7) / 8 * RP * 32;
        unsigned char *at = p.memory + mem::LOWS + stage * mem::LOW_STAGE;
        if (it >= LOW_STAGES) barrier_wait(b.low_empty + stage, (it / LOW_STAGES - 1) & 1);
        if (p.lane == 0) barrier_expect(b.low_full + stage, low + bytes_of(width, n, r0));
        __syncwarp(); // the barrier knows
        if (p.lane == 16) bulk_copy(at + mem::LOW, work.low + (size_t)r0 * 8 * RP, low, b.low_full + stage);
        fetch_rows<T, RS, CH>(p, width, n, &maps.a, in.a_act, r0, at, b.low_full + stage);
    }
}
// One warp: of each piece, z and s.
template <class T, int RS, int CH>
__device__ __forceinline__ void fetch_gates(const wide_place &p, const wide_width &width, const wide_barriers &b,
                                            const scan_in &in, const wide_maps &maps) {
    using mem = wide_memory<RS, CH>;
    constexpr uint32_t GATE_STAGES = mem::GATE_STAGES;
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const uint32_t stage = it % GATE_STAGES, r0 = p.first + lo;
        unsigned char *at = p.memory + mem::GATES + stage * mem::GATE_STAGE;
        if (it >= GATE_STAGES) barrier_wait(b.gate_empty + stage, (it / GATE_STAGES - 1) & 1);
        if (p.lane == 0) barrier_expect(b.gate_full + stage, 2 * bytes_of(width, n, r0));
        __syncwarp(); // the barrier knows
        fetch_rows<T, RS, CH>(p, width, n, &maps.z, in.z_act, r0, at, b.gate_full + stage);
        fetch_rows<T, RS, CH>(p, width, n, &maps.s, in.s_act, r0, at + mem::S_ROWS, b.gate_full + stage);
    }
}
// One warp: what was read out leaves.
template <class T, int RS, int CH>
__device__ __forceinline__ void take_away(const wide_place &p, const wide_width &width, const wide_barriers &b,
                                          const wide_maps &maps, uint32_t Ep, float *sums, T *act) {
    using mem = wide_memory<RS, CH>;
    constexpr uint32_t GATE_STAGES = mem::GATE_STAGES;
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const uint32_t stage = it % GATE_STAGES, r0 = p.first + lo, shift = r0 % 8;
        const unsigned char *at = p.memory + mem::GATES + stage * mem::GATE_STAGE + mem::S_ROWS;
        barrier_wait(b.act_full + stage, it / GATE_STAGES & 1);
        if (shift == 0 && n == PIECE && width.k_tiles == CH / 16) {
            if (p.lane == 0) store_box(&maps.act, shared_address(at), 0, p.e0 / 16, r0 / 8);
        } else // rows that are the piece's, by 16 bytes
            for (uint32_t i = p.lane; i < (shift + n + 7) / 8 * CH; i += 32) {
                const uint32_t t = i / CH * 8 + i % 8 - shift, column = i % CH / 8 * 8;
                if (t < n && p.e0 + column < width.Ek)
                    *(uint4 *)(act + act_at<T>(r0 + t, p.e0 + column, width.Ek)) = *(const uint4 *)(at + i * 16);
            }
        if constexpr (CH == 64) {
            for (uint32_t i = p.lane; i < 2 * n; i += 32) { // over two warps
                const uint32_t t = i / 2, half = i % 2;
                const float *square = (const float *)(at - mem::S_ROWS + t / 8 * mem::TILE + half * 512) + t % 8;
                if (p.e0 + half * 32 < Ep)
                    sums[(size_t)(r0 + t) * (Ep / 32) + p.e0 / 32 + half] = square[0] + square[64];
            }
        } else
            for (uint32_t t = p.lane; t < n; t += 32) { // over four, in the same order
                const float *square = (const float *)(at - mem::S_ROWS + mem::SQUARES) + t;
                sums[(size_t)(r0 + t) * (Ep / 32) + p.e0 / 32] =
                    (square[0] + square[PIECE]) + (square[2 * PIECE] + square[3 * PIECE]);
            }
        if (p.lane == 0) stores_read();
        barrier_arrive(b.gate_empty + stage);
    }
    if (p.lane == 0) stores_done(); // before the next kernel may read them
}

// ---- a warpgroup each ----

// A lane has channels e and e + 1, rows g and g + 8 of a product; with 32 channels only e, and rows g + 8 are zeros.
template <int CH> struct wide_types {
    using word = uint32_t; // its channels of a packed row
    using four = float4;   // its values of two tokens
};
template <> struct wide_types<32> {
    using word = uint16_t;
    using four = float2;
};
__device__ __forceinline__ float4 operand_of_four(const float4 &x) { return x; }
__device__ __forceinline__ float4 operand_of_four(const float2 &x) { // rows g + 8: whatever is there, nobody reads them
    float4 a;
    a.x = x.x, a.z = x.y;
    asm volatile("" : "=f"(a.y), "=f"(a.w));
    return a;
}

// Makes u of the next piece.
template <class T, int RS, int CH>
__device__ __forceinline__ void make_u(const wide_place &p, const wide_barriers &b, const scan_in &in, uint32_t R,
                                       uint32_t E) {
    using mem = wide_memory<RS, CH>;
    using word = typename wide_types<CH>::word;
    using four = typename wide_types<CH>::four;
    constexpr uint32_t RP = RS * 8, LOW_STAGES = mem::LOW_STAGES;
    float4 c1[RS]; // W_c1 as first operand, times what makes exp(-x) a power of 2
    float bias[2];
#pragma unroll
    for (uint32_t x = 0; x < RS; x++) {
        float v[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t j = x * 8 + p.lane % 4 + i / 2 * 4;
            v[i] = (CH == 64 || i % 2 == 0) && p.mine && j < R
                       ? tf32(in.c1[(size_t)(p.e + i % 2) * R + j] * -1.44269504f)
                       : 0.0f;
        }
        c1[x] = make_float4(v[0], v[1], v[2], v[3]);
    }
    bias[0] = p.mine ? in.c1_b[p.e] * -1.44269504f : 0.0f;
    bias[1] = CH == 64 && p.mine ? in.c1_b[p.e + 1] * -1.44269504f : 0.0f;
    wait_for_inputs();
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const uint32_t stage = it % LOW_STAGES, shift = (p.first + lo) % 8;
        const unsigned char *at = p.memory + mem::LOWS + stage * mem::LOW_STAGE;
        barrier_wait(b.low_full + stage, it / LOW_STAGES & 1);
        if (it >= mem::U_STAGES) barrier_wait(b.u_empty + it % mem::U_STAGES, (it / mem::U_STAGES - 1) & 1);
        const bool part = n < PIECE || p.e0 + CH > E;
#pragma unroll 1
        for (uint32_t x = 0; x < 8; x += EIGHTS) {
            float u[EIGHTS * 4];
            uint32_t a[EIGHTS * 2]; // of tokens 8 (x + i / 2) + pair + i % 2
#pragma unroll
            for (uint32_t k = 0; k < RS; k++) in_registers(c1[k]);
            wgmma_begin();
#pragma unroll
            for (uint32_t k = 0; k < RS; k++)
                wgmma_tf32(u, c1[k], operand(at + mem::LOW + x * RP * 32 + k * 256, 128, RP * 32), k > 0);
            wgmma_end();
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS * 2; i++) {
                const uint32_t t = shift + p.pair + i % 2;
                a[i] = *(const word *)(at + (x + i / 2 + t / 8) * mem::TILE + t % 8 * 16 + p.in_tile);
                if (part) a[i] = p.mine && (x + i / 2) * 8 + p.pair + i % 2 < n ? a[i] : 0;
            }
            wgmma_wait<0>();
            keep(u);
            four *to = (four *)(p.memory + mem::U + it % mem::U_STAGES * mem::U_STAGE) + (p.warp * 8 + x) * 32 + p.lane;
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS; i++) {
                float v[4];
#pragma unroll
                for (uint32_t j = 0; j < CH / 16; j++) {
                    const float in_a = j < 2 ? first_of<T>(a[2 * i + j]) : second_of<T>(a[2 * i + j - 2]);
                    v[j] = tf32(in_a * inverse(1.0f + exp2_fast(u[4 * i + j] + bias[j / 2])));
                }
                if constexpr (CH == 64)
                    to[i * 32] = make_float4(v[0], v[2], v[1], v[3]);
                else
                    to[i * 32] = make_float2(v[0], v[1]);
            }
        }
        barrier_arrive(b.low_empty + stage);
        barrier_arrive(b.u_full + it % mem::U_STAGES);
    }
}
// Carries S on and makes o.
template <int RS, int CH>
__device__ __forceinline__ void carry_state(const wide_place &p, const wide_barriers &b, float *S_all, uint32_t M,
                                            uint32_t Ep) {
    using mem = wide_memory<RS, CH>;
    using four = typename wide_types<CH>::four;
    constexpr uint32_t STAGES = mem::STAGES;
    // S was last written a step ago, so it comes before the inputs are ready
    float S[32], o[32], o_late[16];
    float *S_mine = S_all + (size_t)(p.e / 32) * M * 32 + p.e % 32;
    const bool in_state = p.e < Ep;
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t m = i / 2 * 8 + p.pair + i % 2;
        float2 x = make_float2(0, 0);
        if (in_state && m < M) x = CH == 64 ? *(const float2 *)(S_mine + m * 32) : make_float2(S_mine[m * 32], 0);
        S[i / 2 * 4 + i % 2] = x.x, S[i / 2 * 4 + i % 2 + 2] = x.y;
    }
    wait_for_inputs();
    float4 f[8];                                      // S as first operand
    auto start = [&](uint32_t stage, uint32_t turn) { // S as it is before a piece, then what its tokens leave of it
        const float *decay_from = (const float *)(p.memory + stage * mem::STAGE + mem::DECAY) + p.pair;
        barrier_wait(b.full + stage, turn & 1);
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) {
            if constexpr (CH == 64)
                f[x] = make_float4(tf32(S[4 * x]), tf32(S[4 * x + 2]), tf32(S[4 * x + 1]), tf32(S[4 * x + 3]));
            else
                f[x] = operand_of_four(make_float2(tf32(S[4 * x]), tf32(S[4 * x + 1])));
            const float2 decay = *(const float2 *)(decay_from + x * 8);
            S[4 * x] *= decay.x, S[4 * x + 1] *= decay.y;
            if (CH == 64) S[4 * x + 2] *= decay.x, S[4 * x + 3] *= decay.y;
        }
    };
    if (p.begin < p.end) start(0, 0);
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0, stage = 0, turn = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const unsigned char *at = p.memory + stage * mem::STAGE;
        const four *u_from =
            (const four *)(p.memory + mem::U + it % mem::U_STAGES * mem::U_STAGE) + p.warp * 8 * 32 + p.lane;
        float4 u[8];
        barrier_wait(b.u_full + it % mem::U_STAGES, it / mem::U_STAGES & 1);
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) u[x] = operand_of_four(u_from[x * 32]);
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) in_registers(f[x]), in_registers(u[x]);
        barrier_arrive(b.u_empty + it % mem::U_STAGES);
        keep(S);
        wgmma_begin();
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) wgmma_tf32(S, u[x], operand(at + mem::K + x * GROUP_K * 4, 1024, 128), true);
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) wgmma_tf32(o, f[x], operand(at + mem::Q + x * 256, 128, GROUP_Q * 4), x > 0);
        wgmma_end();
#pragma unroll
        for (uint32_t x = 0; x < 4; x++)
            wgmma_tf32(o, u[x], operand(at + mem::EARLY + x * 256, 128, GROUP_A * 4), true);
#pragma unroll
        for (uint32_t x = 4; x < 8; x++)
            wgmma_tf32(o_late, u[x], operand(at + mem::LATE + (x - 4) * 256, 128, GROUP_A * 4), x > 4);
        wgmma_end();
        wgmma_wait<1>(); // S, while the last of o is made
        keep(S);
#pragma unroll
        for (uint32_t x = 0; x < 8; x++) in_registers(f[x]);
        const uint32_t done = stage;
        if (++stage == STAGES) stage = 0, turn++;
        if (lo + n < p.end) start(stage, turn);
        wgmma_wait<0>();
        keep(o), keep(o_late);
        barrier_arrive(b.empty + done);
        if (it >= 2) barrier_wait(b.o_empty + it % 2, (it / 2 - 1) & 1);
        four *to = (four *)(p.memory + mem::O + it % 2 * mem::U_STAGE) + p.warp * 8 * 32 + p.lane;
#pragma unroll
        for (uint32_t x = 0; x < 16; x++) o[16 + x] += o_late[x];
#pragma unroll
        for (uint32_t x = 0; x < 8; x++)
            if constexpr (CH == 64)
                to[x * 32] = make_float4(o[4 * x], o[4 * x + 1], o[4 * x + 2], o[4 * x + 3]);
            else
                to[x * 32] = make_float2(o[4 * x], o[4 * x + 1]);
        barrier_arrive(b.o_full + it % 2);
    }
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
        const uint32_t m = i / 2 * 8 + p.pair + i % 2;
        if (p.begin < p.end && in_state && m < M) {
            if constexpr (CH == 64)
                *(float2 *)(S_mine + m * 32) = make_float2(S[i / 2 * 4 + i % 2], S[i / 2 * 4 + i % 2 + 2]);
            else
                S_mine[m * 32] = S[i / 2 * 4 + i % 2];
        }
    }
}
// Reads the piece before out: gates, sums of squares, W_o's operand in the place of s.
template <class T, int RS, int CH>
__device__ __forceinline__ void read_out(const wide_place &p, const wide_barriers &b, const scan_in &in, uint32_t E) {
    using mem = wide_memory<RS, CH>;
    constexpr uint32_t GATE_STAGES = mem::GATE_STAGES;
    const float residual[2] = {p.mine ? in.residual[p.e] : 0.0f, p.mine ? in.residual[p.e + 1] : 0.0f},
                norm[2] = {p.mine ? in.act_norm[p.e] : 0.0f, p.mine ? in.act_norm[p.e + 1] : 0.0f};
    wait_for_inputs();
    const bool odd = p.e0 + CH > E;
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const uint32_t shift = (p.first + lo) % 8, stage = it % GATE_STAGES;
        const float4 *o_from = (const float4 *)(p.memory + mem::O + it % 2 * mem::U_STAGE) + p.warp * 8 * 32 + p.lane;
        unsigned char *const at = p.memory + mem::GATES + stage * mem::GATE_STAGE + p.in_tile;
        unsigned char *const squares = p.memory + mem::GATES + stage * mem::GATE_STAGE + p.warp * 256 +
                                       p.pair * 4; // of eight tokens, in the place of their z
        barrier_wait(b.gate_full + stage, it / GATE_STAGES & 1);
        barrier_wait(b.o_full + it % 2, it / 2 & 1);
#pragma unroll 1
        for (uint32_t x = 0; x < 8; x += EIGHTS) {
            uint32_t z[EIGHTS * 2], s[EIGHTS * 2]; // of tokens 8 (x + i / 2) + pair + i % 2
            float4 o[EIGHTS];
            float gate[EIGHTS * 4], square[EIGHTS * 2];
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS * 2; i++) {
                const uint32_t t = shift + p.pair + i % 2;
                const unsigned char *from = at + (x + i / 2 + t / 8) * mem::TILE + t % 8 * 16;
                z[i] = *(const uint32_t *)from, s[i] = *(const uint32_t *)(from + mem::S_ROWS);
                if (odd) z[i] = p.mine ? z[i] : 0, s[i] = p.mine ? s[i] : 0;
            }
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS; i++) {
                o[i] = o_from[(x + i) * 32];
                if (odd && !p.mine)
                    o[i] = make_float4(0, 0, 0, 0); // columns that pad E stay 0, whatever the state holds
            }
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS * 4; i++) {
                const float v = i % 2 ? second_of<T>(z[i / 2]) : first_of<T>(z[i / 2]);
                gate[i] = v * inverse(1.0f + exp2_fast(v * -1.44269504f));
            }
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS * 2; i++) {
                const float o0 = __fmaf_rn(residual[0], first_of<T>(s[i]), i % 2 ? o[i / 2].y : o[i / 2].x) *
                                 gate[2 * i],
                            o1 = __fmaf_rn(residual[1], second_of<T>(s[i]), i % 2 ? o[i / 2].w : o[i / 2].z) *
                                 gate[2 * i + 1];
                const uint32_t t = shift + p.pair + i % 2;
                square[i] = __fmaf_rn(o0, o0, o1 * o1);
                *(uint32_t *)(at + (x + i / 2 + t / 8) * mem::TILE + t % 8 * 16 + mem::S_ROWS) =
                    word_of(o0 * norm[0], o1 * norm[1], T()); // in the place of s
            }
            // sums over the warp's channels: lanes halve the tokens that they sum for, until each has one
            static_assert(EIGHTS == 4, "of eight sums a lane");
            halve<4, 16>(square, p.lane), halve<2, 8>(square, p.lane), halve<1, 4>(square, p.lane);
            __syncwarp(); // all have read z
            *(float *)(squares + (x + p.lane / 16 * 2 + p.lane / 8 % 2) * mem::TILE + p.lane / 4 % 2 * 4) = square[0];
        }
        barrier_arrive(b.o_empty + it % 2);
        written_for_wgmma(); // for the copy engine
        barrier_arrive(b.act_full + stage);
    }
}
// The same with one channel a lane. A pair of lanes has two channels as one lane has with 64, and a warp the first,
// third, fifth and seventh or the others of the pairs of a tile of 16: so squares are summed in the same order.
template <class T, int RS, int CH>
__device__ __forceinline__ void read_out_narrow(const wide_place &p, const wide_barriers &b, const scan_in &in,
                                                uint32_t E) {
    using mem = wide_memory<RS, CH>;
    constexpr uint32_t GATE_STAGES = mem::GATE_STAGES;
    const bool second = p.lane / 4 % 2; // of the pair
    const uint32_t e = p.e - second;    // the pair's first, and where it lies
    const float residual = p.mine ? in.residual[p.e] : 0.0f,
                norm[2] = {p.mine ? in.act_norm[e] : 0.0f, p.mine ? in.act_norm[e + 1] : 0.0f};
    wait_for_inputs();
    const bool odd = p.e0 + CH > E;
    uint32_t n;
    for (uint32_t lo = p.begin, it = 0; lo < p.end; lo += n, it++) {
        n = piece_length(p.pos, lo, p.end);
        const uint32_t shift = (p.first + lo) % 8, stage = it % GATE_STAGES;
        const float2 *o_from = (const float2 *)(p.memory + mem::O + it % 2 * mem::U_STAGE) + p.warp * 8 * 32 + p.lane;
        unsigned char *const at = p.memory + mem::GATES + stage * mem::GATE_STAGE + p.in_tile;
        float *const squares =
            (float *)(p.memory + mem::GATES + stage * mem::GATE_STAGE + mem::SQUARES) + p.warp * PIECE;
        barrier_wait(b.gate_full + stage, it / GATE_STAGES & 1);
        barrier_wait(b.o_full + it % 2, it / 2 & 1);
#pragma unroll 1
        for (uint32_t x = 0; x < 8; x += EIGHTS) {
            uint16_t z[EIGHTS * 2], s[EIGHTS * 2]; // of tokens 8 (x + i / 2) + pair + i % 2
            float o[EIGHTS * 2], square[EIGHTS];
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS * 2; i++) {
                const uint32_t t = shift + p.pair + i % 2;
                const unsigned char *from = at + (x + i / 2 + t / 8) * mem::TILE + t % 8 * 16;
                z[i] = *(const uint16_t *)from, s[i] = *(const uint16_t *)(from + mem::S_ROWS);
                if (odd) z[i] = p.mine ? z[i] : 0, s[i] = p.mine ? s[i] : 0;
            }
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS; i++) {
                float2 from = o_from[(x + i) * 32];
                if (odd && !p.mine) from = make_float2(0, 0); // columns that pad E stay 0, whatever the state holds
                o[2 * i] = from.x, o[2 * i + 1] = from.y;
            }
            __syncwarp(); // all have read s, which two lanes write
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS * 2; i++) {
                const float v = first_of<T>(z[i]);
                o[i] = __fmaf_rn(residual, first_of<T>(s[i]), o[i]) * (v * inverse(1.0f + exp2_fast(v * -1.44269504f)));
            }
            // the first lane of a pair takes tokens of the first four sums, the second the others, of both channels
#pragma unroll
            for (uint32_t i = 0; i < EIGHTS; i++) {
                const float mine = second ? o[EIGHTS + i] : o[i],
                            other = __shfl_xor_sync(0xffffffffu, second ? o[i] : o[EIGHTS + i], 4),
                            o0 = second ? other : mine, o1 = second ? mine : other;
                const uint32_t t = shift + p.pair + i % 2;
                square[i] = __fmaf_rn(o0, o0, o1 * o1);
                *(uint32_t *)(at - second * 2 + (x + second * (EIGHTS / 2) + i / 2 + t / 8) * mem::TILE + t % 8 * 16 +
                              mem::S_ROWS) = word_of(o0 * norm[0], o1 * norm[1], T());
            }
            static_assert(EIGHTS == 4, "of four sums a lane");
            halve<2, 16>(square, p.lane), halve<1, 8>(square, p.lane);
            squares[(x + second * 2 + p.lane / 16) * 8 + p.pair + p.lane / 8 % 2] = square[0];
        }
        barrier_arrive(b.o_empty + it % 2);
        written_for_wgmma(); // for the copy engine
        barrier_arrive(b.act_full + stage);
    }
}
#endif

// Threads: warps 0 to 3 make u, 4 to 7 carry the state, 8 to 11 read out, 12 to 14 fetch what these three work on, 15
// takes away what was read out.
template <class T, int RS, int CH>
__global__ void __launch_bounds__(WIDE_THREADS, 1)
    wide_scan_kernel(const __grid_constant__ cuda_shape shape, uint32_t layer, const __grid_constant__ cuda_rows rows,
                     const __grid_constant__ scan_in in, const __grid_constant__ wide_work work,
                     const __grid_constant__ wide_maps maps, float *sums, T *act) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using mem = wide_memory<RS, CH>;
    extern __shared__ __align__(128) float4 scan_shared[];
    unsigned char *memory = (unsigned char *)scan_shared;
    const wide_barriers b = barriers_of<RS, CH>(memory);
    const uint32_t M = shape.M, R = shape.R, E = shape.E, Ep = shape.Ep, Ek = (E + 15) / 16 * 16, tid = threadIdx.x,
                   lane = tid % 32, warp = tid / 32 % 4;
    const uint32_t e0 = blockIdx.x * CH, row = lane / 4, pair = lane % 4 * 2,
                   e = CH == 64 ? e0 + warp * 16 + row * 2                                   // channels e and e + 1
                                : e0 + warp / 2 * 16 + row / 2 * 4 + warp % 2 * 2 + row % 2; // channel e
    const uint32_t first = (uint32_t)rows.seg_first[blockIdx.y], n_tok = (uint32_t)rows.seg_n[blockIdx.y],
                   slot = (uint32_t)rows.slot[first];
    const int64_t pos = rows.pos[first];
    const uint32_t begin = piece_length(pos, 0, n_tok) == 1 ? 1 : 0,
                   end = n_tok > 1 && n_tok - 1 >= begin && (pos + n_tok - 1) % PIECE == 0 ? n_tok - 1 : n_tok;
    const uint32_t in_tile = (e - e0) / 16 * 256 + e % 16 / 8 * 128 + e % 8 * 2; // where e lies
    const wide_place p = {memory, first, begin, end, pos, lane, warp, pair, e0, e, in_tile, e < E};
    let_next_start();
    if (tid == 0) make_barriers<RS, CH>(b);
    float *S_all = shape.S + slot * shape.S_slot + layer * shape.S_layer;
    auto alone = [&](uint32_t t) { // before and after the others
        const uint32_t at = e0 + tid % CH;
        one_token<T, CH, 256 / CH>(shape, in, first + t, e0, S_all + (size_t)(at / 32) * M * 32 + at % 32, 32,
                                   (float *)memory, sums, act);
        __syncthreads(); // S; and the memory is free
    };
    if (begin) {
        wait_for_inputs();
        alone(0);
    }
    // A piece that is not whole leaves some of a stage as it was, and zeros times that must be zeros.
    const uint32_t n_first = begin < end ? piece_length(pos, begin, end) : PIECE;
    if (begin < end && (n_first < PIECE || ((pos + end) % PIECE && end - begin < 3 * PIECE)))
        for (uint32_t i = tid; i < mem::U / 16; i += WIDE_THREADS) ((float4 *)memory)[i] = make_float4(0, 0, 0, 0);
    written_for_wgmma();
    __syncthreads(); // barriers, zeros

    const uint32_t role = __shfl_sync(0xffffffffu, tid / 128, 0); // the compiler sees that a warp has one
    // Registers go to the warps of the state and the read-out until all have done: who has no work waits for that, or
    // it would take them back too early.
    if (role == 3) {
        fewer_registers<40>();
        const wide_width width = {Ek, e0 / 16 + CH / 16 <= Ek / 16 ? CH / 16 : Ek / 16 - e0 / 16};
        wait_for_inputs();
        if (warp == 0)
            fetch_scores<RS, CH>(p, b, work);
        else if (warp == 1)
            fetch_low<T, RS, CH>(p, width, b, work, in, maps);
        else if (warp == 2)
            fetch_gates<T, RS, CH>(p, width, b, in, maps);
        else
            take_away<T, RS, CH>(p, width, b, maps, Ep, sums, act);
        all_meet();
        more_registers<128>();
    } else if (role == 0) {
        make_u<T, RS, CH>(p, b, in, R, E);
        all_meet();
    } else if (role == 2) {
        more_registers<152>();
        if constexpr (CH == 64)
            read_out<T, RS, CH>(p, b, in, E);
        else
            read_out_narrow<T, RS, CH>(p, b, in, E);
        all_meet();
        fewer_registers<128>();
    } else {
        more_registers<184>();
        carry_state<RS, CH>(p, b, S_all, M, Ep);
        all_meet(); // S is written; and all is fetched and read
        fewer_registers<128>();
    }
    if (end < n_tok) alone(end);
    keep_tail<T>(shape, layer, in, first, n_tok, slot, pos, e0, CH);
#endif
}

// ---- launching ----

#define FOR_STEPS_OF_R(shape, call)                                                                                    \
    do {                                                                                                               \
        if (wide_pad_R(shape) == 32) {                                                                                 \
            constexpr int RS = 4;                                                                                      \
            call;                                                                                                      \
        } else if (wide_pad_R(shape) == 48) {                                                                          \
            constexpr int RS = 6;                                                                                      \
            call;                                                                                                      \
        } else {                                                                                                       \
            constexpr int RS = 8;                                                                                      \
            call;                                                                                                      \
        }                                                                                                              \
    } while (0)

// Blocks of 32 channels, where all of them are at work at once: each takes little more than half the time.
static bool wide_scan_narrow(const cuda_shape *shape, uint32_t n_segs) {
    return (size_t)n_segs * (shape->Ep / 32) <= multiprocessors();
}
bool wide_scan_possible(const cuda_shape *shape) { return dispatch_wide_scan(this_device(), shape); }
bool wide_scan_prepare(const cuda_shape *shape) {
    bool ready = false;
    FOR_16_BIT(shape->dtype,
               FOR_STEPS_OF_R(shape, (ready = allow_shared(wide_scan_kernel<T, RS, 64>, wide_memory<RS, 64>::TOTAL) &&
                                              allow_shared(wide_scan_kernel<T, RS, 32>, wide_memory<RS, 32>::TOTAL))));
    return ready;
}
size_t wide_scan_bytes(const cuda_shape *shape, uint32_t n_rows) {
    return (size_t)n_rows * (GROUP_Q + GROUP_K + 2 * GROUP_A + WIDE_M + 8 * wide_pad_R(shape)) * sizeof(float);
}
static void launch_wide_scores(const cuda_shape *shape, const cuda_rows *rows, uint32_t n_segs, uint32_t most_tok,
                               const scan_in &in, const wide_work &work, void *stream) {
    const dim3 pieces(4 * ((most_tok + PIECE - 2) / PIECE + 1), n_segs);
    launch(wide_scores_kernel, pieces, dim3(SCORES), 0, stream, *shape, *rows, in.q, in.k, in.log_alpha, in.c0,
           wide_pad_R(shape), work);
}
static CUtensorMap tiles_map(const void *data, uint32_t Ek, uint32_t n_rows, uint32_t channels) {
    static const auto encode = [] {
        void *f = NULL;
        cudaDriverEntryPointQueryResult found;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found);
        return (decltype(&cuTensorMapEncodeTiled))f;
    }();
    CUtensorMap map = {};
    const cuuint64_t sizes[3] = {64, Ek / 16, (n_rows + 7) / 8}, strides[2] = {256, (cuuint64_t)16 * Ek};
    const cuuint32_t box[3] = {64, channels / 16, 8}, steps[3] = {1, 1, 1};
    encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, (void *)data, sizes, strides, box, steps,
           CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return map;
}
template <int CH>
static void launch_wide_scan(const cuda_shape *shape, uint32_t layer, const cuda_rows *rows, uint32_t n_rows,
                             uint32_t n_segs, const scan_in &in, const wide_work &work, float *sums, void *act,
                             void *stream) {
    const dim3 channels((shape->Ep + CH - 1) / CH, n_segs);
    const uint32_t Ek = cuda_pad16(shape->E);
    const wide_maps maps = {tiles_map(in.a_act, Ek, n_rows, CH), tiles_map(in.z_act, Ek, n_rows, CH),
                            tiles_map(in.s_act, Ek, n_rows, CH), tiles_map(act, Ek, n_rows, CH)};
    FOR_16_BIT(shape->dtype, FOR_STEPS_OF_R(shape, (launch(wide_scan_kernel<T, RS, CH>, channels, dim3(WIDE_THREADS),
                                                           wide_memory<RS, CH>::TOTAL, stream, *shape, layer, *rows, in,
                                                           work, maps, sums, (T *)act))));
}
void wide_scan(const cuda_shape *shape, uint32_t layer, const cuda_rows *rows, uint32_t n_rows, uint32_t n_segs,
               uint32_t most_tok, const scan_in &in, void *work, float *sums, void *act, void *stream) {
    const wide_work parts = wide_parts(n_rows, wide_pad_R(shape), work);
    launch_wide_scores(shape, rows, n_segs, most_tok, in, parts, stream);
    if (wide_scan_narrow(shape, n_segs))
        launch_wide_scan<32>(shape, layer, rows, n_rows, n_segs, in, parts, sums, act, stream);
    else
        launch_wide_scan<64>(shape, layer, rows, n_rows, n_segs, in, parts, sums, act, stream);
}
