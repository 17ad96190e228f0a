// scan_wide.cuh - what the kernels of k_scan on Hopper share: the scores' place in memory, a block's shared memory and
// barriers, instructions, and the warps that fetch and take away. See scan_wide.cu.
#pragma once
#include "scan.cuh"
#include "kernels/cuda/wgmma.cuh"
#include <cuda.h>
#include <type_traits>

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
static inline wide_work wide_parts(uint32_t n_rows, uint32_t RP, void *work) {
    float *p = (float *)work;
    const size_t n = n_rows;
    return {p,
            p + n * GROUP_Q,
            p + n * (GROUP_Q + GROUP_K),
            p + n * (GROUP_Q + GROUP_K + GROUP_A),
            p + n * (GROUP_Q + GROUP_K + 2 * GROUP_A + WIDE_M),
            p + n * (GROUP_Q + GROUP_K + 2 * GROUP_A)};
}
static inline uint32_t wide_pad_R(const cuda_shape *shape) {
    const enum dispatch_kernel kernel = scan_kernel_of(shape);
    return kernel == WIDE_SCAN_4 ? 32 : 64;
}

// scan_wide_scores.cu
void launch_wide_scores(const cuda_scan &x, const wide_work &work, void *stream);

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
// tf32(x) for products alone: they do not look at the lower 13 bits, which tf32 clears.
__device__ __forceinline__ float tf32_for_product(float x) {
    return fabsf(x) < INFINITY ? __uint_as_float(__float_as_uint(x) + 0x1000) : x;
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
// ---- E4, E6, E7 ----

template <int RS, int CH> struct wide_memory { // bytes; RS: steps of 8 of R; CH: channels of a block
    static constexpr uint32_t Q = 0, K = Q + 8 * GROUP_Q * 4, EARLY = K + 8 * GROUP_K * 4,
                              LATE = EARLY + 8 * GROUP_A * 4, DECAY = LATE + 4 * GROUP_A * 4,
                              STAGE = DECAY + WIDE_M * 4, STAGES = CH == 64 ? 2 : 3; // copies take 1,700 clocks
    // Packed activations of a piece's channels: tiles of 8 rows, each CH channels; a piece that begins within a tile
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
                  wide_memory<4, 32>::TOTAL <= 227 << 10 && wide_memory<8, 32>::TOTAL <= 227 << 10,
              "a block's shared memory");
// Whole pieces of packed activations [.][Ek / 16][a tile of 256 bytes], as the tensor copy engine takes them: eight
// tiles of rows by CH channels.
struct wide_maps {
    CUtensorMap a, z, s, act;
};

// The halves of a word of 16-bit numbers.
template <class T> __device__ __forceinline__ float first_of(uint32_t word) {
    const uint16_t bits = (uint16_t)word;
    return to_float(*(const T *)&bits);
}
template <class T> __device__ __forceinline__ float second_of(uint32_t word) {
    return std::is_same<T, __nv_bfloat16>::value ? __uint_as_float(word & 0xffff0000u) : first_of<T>(word >> 16);
}
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
// One thread. Every thread arrives for what it has read and written itself; a lane for its warp is no faster.
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
                                          const wide_work &work, const cuda_scan &in, const wide_maps &maps) {
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
                                            const cuda_scan &in, const wide_maps &maps) {
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
                                          const wide_maps &maps, const cuda_state &io) {
    using mem = wide_memory<RS, CH>;
    constexpr uint32_t GATE_STAGES = mem::GATE_STAGES;
    const uint32_t Ep = io.shape.Ep;
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
                    *(uint4 *)((T *)io.act + act_at<T>(r0 + t, p.e0 + column, width.Ek)) =
                        *(const uint4 *)(at + i * 16);
            }
        if constexpr (CH == 64) {
            for (uint32_t i = p.lane; i < 2 * n; i += 32) { // over two warps
                const uint32_t t = i / 2, half = i % 2;
                const float *square = (const float *)(at - mem::S_ROWS + t / 8 * mem::TILE + half * 512) + t % 8;
                if (p.e0 + half * 32 < Ep)
                    io.sums[(size_t)(r0 + t) * (Ep / 32) + p.e0 / 32 + half] = square[0] + square[64];
            }
        } else
            for (uint32_t t = p.lane; t < n; t += 32) { // over four, in the same order
                const float *square = (const float *)(at - mem::S_ROWS + mem::SQUARES) + t;
                io.sums[(size_t)(r0 + t) * (Ep / 32) + p.e0 / 32] =
                    (square[0] + square[PIECE]) + (square[2 * PIECE] + square[3 * PIECE]);
            }
        if (p.lane == 0) stores_read();
        barrier_arrive(b.gate_empty + stage);
    }
    if (p.lane == 0) stores_done(); // before the next kernel may read them
}
#endif
