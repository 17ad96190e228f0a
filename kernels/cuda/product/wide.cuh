// wide.cuh - what wide.cu, wide_codes.cu and tall.cu share: copies by the tensor copy engine, wgmma, the order of sums,
// and what a launch is of.
#pragma once
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/weights.cuh"
#include "kernels/cuda/wgmma.cuh"
#include <cuda.h>
#include <type_traits>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A box of a tensor of [.][KT][one tile]: tiles [k, k + SK) of the rows of tiles from `row` on; zeros beyond the
// tensor.
__device__ __forceinline__ void copy_box(void *dst, const CUtensorMap *map, uint32_t k, uint32_t row, uint64_t *b,
                                         uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(dst)),
                 "l"(map), "r"(0), "r"(k), "r"(row), "r"(shared_address(b)), "l"(policy)
                 : "memory");
}
// What the blocks of a cluster have left is there for all.
template <int CLUSTER> __device__ __forceinline__ void wide_meet() {
    if (CLUSTER == 1)
        __syncthreads();
    else
        asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    delay(16);
}
// Without the block's number in its cluster.
__device__ __forceinline__ uint32_t address_in_block(const void *p) { return shared_address(p) & 0x3ffff; }
// Weights [FROM, TO): read until, or there from, here.
template <int FROM, int TO, int SK> __device__ __forceinline__ void hold(uint4 (&a)[SK]) {
#pragma unroll
    for (int j = FROM; j < TO; j++) asm volatile("" : "+r"(a[j].x), "+r"(a[j].y), "+r"(a[j].z), "+r"(a[j].w)::"memory");
}
#endif

enum { SLICES = 16 }; // of k: linear.cu's order of sums
__device__ __forceinline__ uint32_t slice_at(uint32_t KT, uint32_t slice) { return KT * slice / SLICES; }

struct wide_part {
    CUtensorMap w, x, scales; // scales: of codes
    uint32_t O, tiles;
};
// A stage's weights in the ring: ROWS tiles of outputs by SK of k, the scales of their groups behind them. ALIGNED:
// stages begin at multiples of SK tiles, a divisor of 8.
template <int BITS_, int ROWS_, int SK_, bool ALIGNED> struct stage_weights {
    enum {
        BITS = BITS_,
        ROWS = ROWS_,
        SK = SK_,
        TILES = ROWS * SK * BITS * 32,
        SPAN = BITS == 16 ? 0
               : ALIGNED  ? 1
                          : (SK + 6) / 8 + 1, // groups that a stage may lie in
        BYTES = TILES + ROWS * SPAN * 64
    };
    // Groups that a box has, where a row has one or several.
    static __host__ __device__ __forceinline__ uint32_t span(const weight_codes &w) {
        return BITS == 16 ? 0 : w.per == 3 ? (uint32_t)SPAN : 1u;
    }
    // What of `stage` bytes comes.
    static __device__ __forceinline__ uint32_t coming(const weight_codes &w, uint32_t stage) {
        return stage - ROWS * (SPAN - span(w)) * 64;
    }
    // Operands A of tiles [FROM, TO) of k in the stage that begins with tile k, of the warp's row of tiles. at: the
    // stage. The scales are read once where these tiles have one group.
    template <int FROM, int TO, class T>
    static __device__ __forceinline__ void operands(uint4 (&a)[SK], const weights<BITS> &w, uint32_t at, uint32_t row,
                                                    uint32_t k, T) {
        operands_of<FROM, TO>(a, w, w, at, row, k, T());
    }
    // With the format given: w, or one that is known.
    template <int FROM, int TO, class Format, class T>
    static __device__ __forceinline__ void operands_of(uint4 (&a)[SK], const Format &format, const weights<BITS> &w,
                                                       uint32_t at, uint32_t row, uint32_t k, T) {
        const uint32_t lane = threadIdx.x % 32, codes = at + row * SK * (BITS * 32) + lane * BITS,
                       words = at + TILES + (row * span(w) * 16 + lane / 4) * 4;
        const auto group = [&](int j) { return ALIGNED ? 0 : ((k + j) >> w.per) - (k >> w.per); };
        if (BITS == 16 || group(FROM) == group(TO - 1)) {
            uint32_t s[2];
            shared_scales<BITS>(s, words + group(FROM) * 64);
#pragma unroll
            for (int j = FROM; j < TO; j++)
                a[j] = operand_of(format, shared_codes<BITS>(codes + j * (BITS * 32)), s, T());
        } else
#pragma unroll
            for (int j = FROM; j < TO; j++) {
                uint32_t s[2];
                shared_scales<BITS>(s, words + group(j) * 64);
                a[j] = operand_of(format, shared_codes<BITS>(codes + j * (BITS * 32)), s, T());
            }
    }
};

// The functor of a launch of one or two products.
struct out_either {
    out_plain one, two;
    __device__ out_plain of(bool second) const {
        return out_plain{{second ? two.norm.squares : one.norm.squares, one.norm.n_sums, one.norm.n, one.norm.eps,
                          one.norm.weighted, one.norm.fours},
                         second ? two.y : one.y,
                         second ? two.ldy : one.ldy,
                         second ? two.O : one.O};
    }
};
template <class Out> struct out_of { using type = Out; };
template <> struct out_of<out_either> { using type = out_plain; };
template <class Out> __device__ __forceinline__ const Out &functor_of(const Out &out, bool) { return out; }
__device__ __forceinline__ out_plain functor_of(const out_either &out, bool second) { return out.of(second); }

// scales[r] of a warp's rows row(0) .. row(EACH - 1): every load before the first sum.
template <class T, int EACH, class Row, class Mine>
__device__ __forceinline__ void scales_of(float *scales, const row_norm &norm, uint32_t row0, const Row &row,
                                          const Mine &there) {
    const uint32_t lane = threadIdx.x % 32;
    const auto part = [&](uint32_t m) {
        return m < EACH && there(row(m)) ? norm.squares + (size_t)(row0 + row(m)) * norm.n_sums : NULL;
    };
    if (norm.fours) {
        enum { U = (EACH + 3) / 4 };
        const float *parts[U];
        float sum[U];
#pragma unroll
        for (int u = 0; u < U; u++) parts[u] = part(4 * u + lane / 8);
        row_totals_of_fours(sum, parts, norm.n_sums);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (parts[u] && lane % 8 == 0) scales[row(4 * u + lane / 8)] = norm_scale<T>(norm, sum[u]);
        return;
    }
    enum { U = EACH < 8 ? EACH : 8 };
#pragma unroll
    for (int first = 0; first < EACH; first += U) {
        const float *parts[U];
        float sum[U];
#pragma unroll
        for (int u = 0; u < U; u++) parts[u] = part(first + u);
        row_totals(sum, parts, norm.n_sums);
#pragma unroll
        for (int u = 0; u < U; u++)
            if (parts[u] && lane == 0) scales[row(first + u)] = norm_scale<T>(norm, sum[u]);
    }
}
// The scales of the rows that the block finishes; all its warps but one that feeds the ring.
template <class T, int MW, int NB, int CLUSTER>
__device__ __forceinline__ void wide_scales(float *scales, const row_norm &norm, uint32_t warp, uint32_t rank,
                                            uint32_t row0, uint32_t n_rows) {
    enum { EIGHTS = NB / 8 > CLUSTER ? NB / 8 / CLUSTER : 1, EACH = EIGHTS * 2 / MW ? EIGHTS * 2 / MW : 1 };
    const auto row = [&](uint32_t i) {
        const uint32_t m = warp * EACH + i;
        return (m / 8 * CLUSTER + rank) * 8 + m % 8;
    };
    scales_of<T, EACH>(scales, norm, row0, row, [&](uint32_t r) { return r < NB && row0 + r < n_rows; });
}

static auto tensor_map_encoder() {
    static const auto encode = [] {
        void *f = NULL;
        cudaDriverEntryPointQueryResult found;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found);
        return (decltype(&cuTensorMapEncodeTiled))f;
    }();
    return encode;
}
// Rows of tiles of `words` 32-bit words, KT a row, of which a box takes `rows` by SK.
static CUtensorMap tile_map(const void *data, uint32_t words, uint32_t KT, uint32_t n, uint32_t SK, uint32_t rows) {
    CUtensorMap map = {};
    const cuuint64_t sizes[3] = {words, KT, n}, strides[2] = {words * 4, (cuuint64_t)words * 4 * KT};
    const cuuint32_t box[3] = {words, SK, rows}, steps[3] = {1, 1, 1};
    tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, (void *)data, sizes, strides, box, steps,
                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                         CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return map;
}

// What a launch is of: one or two products of the same k.
template <class Out> struct wide_job {
    wide_operands one, two; // two.w NULL: none
    Out out;
    uint32_t KT, n_rows;
    cudaStream_t stream;
};

// S: its stage_weights.
template <class S>
static wide_part wide_part_of(const wide_operands &p, uint32_t KT, uint32_t n_rows, uint32_t row_tiles) {
    if (!p.w) return wide_part{};
    const uint32_t tiles = cuda_pad16(p.w->rows) / 16;
    wide_part part = {tile_map(p.w->data, S::BITS * 8, KT, tiles, S::SK, S::ROWS),
                      tile_map(p.x, 64, KT, (n_rows + 7) / 8, S::SK, row_tiles),
                      {},
                      p.w->rows,
                      tiles};
    const weight_codes w = weights_of<S::BITS>(p.w);
    if (S::BITS < 16) part.scales = tile_map(w.scales, 16, w.groups, tiles, S::span(w), S::ROWS);
    return part;
}

template <class Out> void run_tall(const wide_job<Out> &job);
template <class Out> void run_coded(const wide_job<Out> &job, enum dispatch_kernel kernel);
