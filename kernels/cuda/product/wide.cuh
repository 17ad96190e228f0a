// wide.cuh - what wide.cu and tall.cu share: copies by the tensor copy engine, wgmma, the order of sums, and what a
// launch is of.
#pragma once
#include "kernels/cuda/epilogue.cuh"
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
#endif

enum { SLICES = 16 }; // of k: linear.cu's order of sums
__device__ __forceinline__ uint32_t slice_at(uint32_t KT, uint32_t slice) { return KT * slice / SLICES; }

struct wide_part {
    CUtensorMap w, x;
    uint32_t O, tiles;
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
    wide_operands one, two; // two.O 0: none
    Out out;
    uint32_t KT, n_rows;
    cudaStream_t stream;
};

template <class Out> void run_tall(const wide_job<Out> &job, enum cuda_dtype dtype);
