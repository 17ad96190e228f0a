// few.cuh - what the kernels of products of at most 8 or 16 rows share: a warp a slice of k, tiles of 16 outputs by 16
// k, the scale of a row's norm.
#pragma once
#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/epilogue.cuh"
#include "kernels/cuda/weights.cuh"

enum {
    FEW_WARPS = DISPATCH_FEW_WARPS,
    FEW_LD = DISPATCH_FEW_LD
}; // a warp a slice of k; [slice][row][FEW_LD] partial sums: a stride without bank conflicts

// ---- what becomes of an output (epilogue.cuh): one a thread, 128 or 256 threads, a half-warp a row ----

// The scale of a row's norm, by one warp, as row_total adds. ask() comes before the product, so that nothing waits for
// it.
struct few_scale {
    float four[4];
    __device__ __forceinline__ void ask(const row_norm &norm, uint32_t r) {
        load_four(four, norm.squares + (size_t)r * norm.n_sums, threadIdx.x % 32 * 4, norm.n_sums);
    }
    template <class T> __device__ __forceinline__ void leave(const row_norm &norm, uint32_t r, float *scales) const {
        float sum = four_sum(four);
#pragma unroll 1
        for (uint32_t i = threadIdx.x % 32 * 4 + 128; i < (norm.n_sums + 127) / 128 * 128; i += 128) {
            float more[4];
            load_four(more, norm.squares + (size_t)r * norm.n_sums, i, norm.n_sums);
            sum += four_sum(more);
        }
        const float x = norm_scale<T>(norm, neighbours_sum<32>(sum));
        if (threadIdx.x % 32 == 0) scales[r] = x;
    }
};

// Outputs that depend on those of the rows before.
template <class Out> constexpr bool has_taps = false;
template <int MOST_K> constexpr bool has_taps<out_conv<MOST_K>> = true;
template <class Out> constexpr dispatch_ending ending_of = DISPATCH_PLAIN;
template <> constexpr dispatch_ending ending_of<out_residual> = DISPATCH_RESIDUAL;
template <> constexpr dispatch_ending ending_of<out_ffn> = DISPATCH_FFN;

// ---- the kernel ----

// Straight code is what counts here: at few rows a kernel's time is the latency from its inputs to its outputs.

// 4 bytes, or 0.
__device__ __forceinline__ uint32_t load_if(const uint32_t *p, bool wanted) {
    uint32_t x;
    asm volatile("{.reg .pred w; setp.ne.u32 w, %2, 0; mov.u32 %0, 0; @w ld.global.u32 %0, [%1];}"
                 : "=&r"(x)
                 : "l"(p), "r"((uint32_t)wanted)
                 : "memory");
    return x;
}
__device__ __forceinline__ void store_shared(uint32_t at, uint4 x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
                 : "memory");
}
// The slice of a warp: its tiles in shared memory and the scale words of its rows, in registers or, where a slice may
// lie in several groups (GROUPS), in shared memory, from its first group on.
template <int BITS, bool GROUPS> struct few_slice {
    weights<BITS> w;
    uint32_t tiles, scales, k0; // of this lane; first tile of k
    uint32_t s[2];
    template <class T> __device__ __forceinline__ uint4 operand(uint32_t k, T) const { // of the slice's k-th tile
        const uint32_t at = tiles + k * (BITS * 32), group = ((k0 + k) >> w.per) - (k0 >> w.per);
        if (GROUPS) return shared_operand(w, at, scales + group * 64, T());
        return operand_of(w, shared_codes<BITS>(at), s, T());
    }
    // The slice's tiles from k on; those beyond the n that there are: the last one again.
    template <class T, int N> __device__ __forceinline__ void operands(uint4 (&a)[N], uint32_t k, uint32_t n, T) const {
#pragma unroll
        for (int u = 0; u < N; u++) a[u] = operand(min(k + u, n - 1), T());
    }
};
// c += the tiles [k, k + n) of k, n at most N, for EIGHTS eights of rows; b: of the operand's. Tiles beyond n count as
// zeros.
template <class T, int N, int EIGHTS> struct few_tiles {
    uint2 b[N][EIGHTS];
    // next: words to the next eight rows; row: the lane's of the first eight.
    __device__ __forceinline__ void ask(const uint32_t *act, uint32_t next, uint32_t n, uint32_t row, uint32_t n_rows) {
#pragma unroll
        for (int u = 0; u < N; u++)
#pragma unroll
            for (int j = 0; j < EIGHTS; j++) {
                const bool wanted = row + 8 * j < n_rows && u < n;
                const uint32_t *at = act + j * next + u * 64;
                b[u][j].x = load_if(at, wanted), b[u][j].y = load_if(at + 32, wanted);
            }
    }
    // U: tiles whose operands are made at once.
    template <int U, int BITS, bool GROUPS>
    __device__ __forceinline__ void add(float (&c)[EIGHTS][4], const few_slice<BITS, GROUPS> &slice, uint32_t k,
                                        uint32_t n) const {
#pragma unroll
        for (int first = 0; first < N; first += U) {
            uint4 a[U];
            slice.operands(a, k + first, n, T());
#pragma unroll
            for (int u = 0; u < U; u++)
#pragma unroll
                for (int j = 0; j < EIGHTS; j++) mma(c[j], a[u], b[first + u][j], T());
        }
    }
};
// A warp's sums to part[row][FEW_LD].
template <int EIGHTS> __device__ __forceinline__ void few_leave(float *part, const float (&c)[EIGHTS][4]) {
    float *at = part + threadIdx.x % 4 * 2 * FEW_LD + threadIdx.x % 32 / 4;
#pragma unroll
    for (int j = 0; j < EIGHTS; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) at[(8 * j + i % 2) * FEW_LD + i / 2 * 8] = c[j][i];
}
// The output that a thread finishes, of the tile's rows.
struct few_output {
    uint32_t r, o;
    bool mine;
};
// What becomes of it, from the slices' sums `step` floats apart; scales: of the rows' norms.
template <class T, class Out, class Column, class Row>
__device__ __forceinline__ void few_finish(const Out &out, const Column &column, Row &row, const few_output &at,
                                           const float *sums, uint32_t step, const float *scales) {
    const auto sum_of = [&](uint32_t r) { return canonical_sum(sums + r * FEW_LD, step); };
    const auto scale_of = [&](uint32_t r) { return out.norm.squares ? scales[r] : 1.0f; };
    float sum[1] = {sum_of(at.r)};
    if constexpr (has_taps<Out>)
        out.template taps_of_step<T>(row, [&](uint32_t j) { return sum_of(at.r - j) * scale_of(at.r - j); });
    out.template finish<T>(column, row, at.r, at.o, at.mine, sum, scale_of(at.r));
}

// few_round.cu: by the rule of FEW_ROUND.
void few_round(const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early, const out_plain &out,
               void *stream);
void few_round(const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early, const out_conv<4> &out,
               void *stream);
void few_round(const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early, const out_conv<8> &out,
               void *stream);
void few_round(const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early, const out_ffn &out,
               void *stream);
