// common.cuh - what the kernels share: activation types, packed addresses, reductions in a fixed order, dependent
// launch.
#pragma once
#include "cuda.h"
#include "kernels/dispatch.h"
#include <cassert>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include "delay.cuh"

template <class T> __device__ __forceinline__ float to_float(T x) { return float(x); }
template <class T> __device__ __forceinline__ T from_float(float x) { return T(x); }
__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
// 16 bytes to shared memory in the background; or zeros.
__device__ __forceinline__ void ask16(void *to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ __forceinline__ void ask16(uint32_t address, const void *from, bool wanted) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(wanted ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void ask16(void *to, const void *from, bool wanted) {
    ask16(shared_address(to), from, wanted);
}
__device__ __forceinline__ void asked() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ __forceinline__ void await_all_but() { // this thread's last N groups
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Element (row, k) of activations with K (padded) columns: fp32 row-major, 16 bit in tiles of 8 rows and 16 columns,
// each two matrices of 8 rows by 16 bytes: what wgmma reads as operand B from shared memory without a swizzle.
template <class T> __device__ __forceinline__ size_t act_at(uint32_t row, uint32_t k, uint32_t K) {
    return ((size_t)(row >> 3) * (K >> 4) + (k >> 4)) * 128 + ((k & 8) << 3) + (row & 7) * 8 + (k & 7);
}
template <> __device__ __forceinline__ size_t act_at<float>(uint32_t row, uint32_t k, uint32_t K) {
    return (size_t)row * K + k;
}

// Element (o, k) of a weight matrix with K (padded) columns, in the order of mma's operand A.
template <class T> __device__ __forceinline__ size_t weight_at(uint32_t o, uint32_t k, uint32_t K) {
    uint32_t lane = (o & 7) * 4 + ((k & 7) >> 1), reg = ((o & 8) >> 3) + ((k & 8) >> 2);
    return ((size_t)(o >> 4) * (K >> 4) + (k >> 4)) * 256 + lane * 8 + reg * 2 + (k & 1);
}
template <> __device__ __forceinline__ size_t weight_at<float>(uint32_t o, uint32_t k, uint32_t K) {
    return (size_t)o * K + k;
}

// The kernel before this one in the stream has finished (with programmatic dependent launch; else a no-op).
__device__ __forceinline__ void wait_for_inputs() {
    delay(4);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    delay(4);
}
// The next kernel may start its own prologue.
__device__ __forceinline__ void let_next_start() {
    delay(8);
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// 1 + exp(-x), to the bits that __expf gives it in three instructions more: they are for results below 2^-126, and 1
// and such a number, or the 0 that it becomes here, are 1.
__device__ __forceinline__ float one_and_exp_of_minus(float x) {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.4426950408889634f));
    return 1.0f + e;
}
// The short division, 2 ulp: the long one was a third of a product's time where its outputs take it (0 where the
// divisor is beyond 2^126).
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, one_and_exp_of_minus(x)); }
__device__ __forceinline__ float silu(float x) { return __fdividef(x, one_and_exp_of_minus(x)); }

// Sum over a warp: a butterfly, so every lane has it, in one order.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
// Sum over the block; shared: 32 floats. All threads call it and get the sum.
__device__ __forceinline__ float block_sum(float x, float *shared) {
    x = warp_sum(x);
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = x;
    __syncthreads(); // the warps' sums before they are added
    float sum = 0;
    for (uint32_t i = 0; i < blockDim.x / 32; i++) sum += shared[i];
    __syncthreads(); // everyone has read before the next use of shared
    return sum;
}

// c += a b: 16 outputs by 8 rows over 16 k, fp32 sums.
__device__ __forceinline__ void mma(float (&c)[4], const uint4 &a, const uint2 &b, __half) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}
__device__ __forceinline__ void mma(float (&c)[4], const uint4 &a, const uint2 &b, __nv_bfloat16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b.x), "r"(b.y));
}

// ---- sums in one order, whatever kernel makes them: a row's bits do not depend on which one its batch takes ----

// Slices of k in order: quarters of four, then the quarters.
__device__ __forceinline__ float canonical_sum(const float *slice, uint32_t stride) {
    float quarter[4];
#pragma unroll
    for (int q = 0; q < 4; q++)
        quarter[q] = ((slice[(4 * q) * stride] + slice[(4 * q + 1) * stride]) + slice[(4 * q + 2) * stride]) +
                     slice[(4 * q + 3) * stride];
    return ((quarter[0] + quarter[1]) + quarter[2]) + quarter[3];
}
// Sum over 16 neighbouring lanes: of 16 neighbouring columns. All lanes of the warp call it.
__device__ __forceinline__ float tile_sum(float x) {
#pragma unroll
    for (int i = 8; i; i >>= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
// Sums of the partial sums of squares of a row: fours of neighbours in order; fours 32 apart in order; then a
// butterfly, neighbours first. What is not there counts as 0.
__device__ __forceinline__ float four_sum(const float (&x)[4]) { return ((x[0] + x[1]) + x[2]) + x[3]; }
template <int LANES> __device__ __forceinline__ float neighbours_sum(float x) {
#pragma unroll
    for (int i = 1; i < LANES; i <<= 1) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
__device__ __forceinline__ void load_four(float (&x)[4], const float *part, uint32_t i,
                                          uint32_t n) { // part[i ..], i a multiple of 4
    if (n % 4 == 0) {                                   // so are all rows on a multiple of 16 bytes
        const float4 v = part && i < n ? *(const float4 *)(part + i) : make_float4(0, 0, 0, 0);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else
#pragma unroll
        for (int j = 0; j < 4; j++) x[j] = part && i + j < n ? part[i + j] : 0.0f;
}
// Of U rows with n partial sums each; a whole warp calls it and every lane has them. NULL: 0.
template <int U>
__device__ __forceinline__ void row_totals(float (&sum)[U], const float *const (&part)[U], uint32_t n) {
#pragma unroll
    for (int u = 0; u < U; u++) sum[u] = 0;
    for (uint32_t i = threadIdx.x % 32 * 4; i < (n + 127) / 128 * 128; i += 128) {
        float x[U][4];
#pragma unroll
        for (int u = 0; u < U; u++) load_four(x[u], part[u], i, n);
#pragma unroll
        for (int u = 0; u < U; u++) sum[u] += four_sum(x[u]);
    }
#pragma unroll
    for (int u = 0; u < U; u++) sum[u] = neighbours_sum<32>(sum[u]);
}
__device__ __forceinline__ float row_total(const float *part, uint32_t n) {
    const float *const parts[1] = {part};
    float sum[1];
    row_totals(sum, parts, n);
    return sum[0];
}
// Of rows whose fours are summed already (cuda_square_sums), eight lanes a row.
template <int U>
__device__ __forceinline__ void row_totals_of_fours(float (&sum)[U], const float *const (&part)[U], uint32_t n) {
    float four[U][4];
#pragma unroll
    for (int u = 0; u < U; u++) four[u][0] = four[u][1] = four[u][2] = four[u][3] = 0;
    for (uint32_t i = threadIdx.x % 8 * 4; i < (n + 31) / 32 * 32; i += 32) {
        float x[U][4];
#pragma unroll
        for (int u = 0; u < U; u++) load_four(x[u], part[u], i, n);
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int j = 0; j < 4; j++) four[u][j] += x[u][j];
    }
#pragma unroll
    for (int u = 0; u < U; u++) sum[u] = neighbours_sum<8>((four[u][0] + four[u][1]) + (four[u][2] + four[u][3]));
}
__device__ __forceinline__ float rms_scale(float squares, uint32_t n, float eps) {
    return rsqrtf(squares / (float)n + eps);
}
__device__ __forceinline__ float normed(float x, float scale, float w) { return x * scale * w; }
// RMSNorm as 16-bit operand of a product before its scale is known: W RMSNorm(x; w) = scale * W (x w). fp16 holds x w
// as small as 1e-3 and as large as a million so.
template <class T> __device__ __forceinline__ float weighted(float x, float w) { return x * w; }
template <> __device__ __forceinline__ float weighted<__half>(float x, float w) { return x * w * 0.0625f; }
template <class T> __device__ __forceinline__ float scale_of_weighted(float scale) { return scale; }
template <> __device__ __forceinline__ float scale_of_weighted<__half>(float scale) { return scale * 16.0f; }
__device__ __forceinline__ float add_scaled(float base, float scale, float x) { return __fmaf_rn(scale, x, base); }
__device__ __forceinline__ float ffn_gate(float a, float g) { return a * silu(g); } // E10

// E2 at one channel: the taps before the newest, oldest first and ending at tap[6]; w [K][ld], tail [ring][ld] by
// position mod ring.
template <class T>
__device__ __forceinline__ void conv_taps(float (&weight)[8], float (&tap)[8], const float *w, const T *tail,
                                          uint32_t K, uint32_t ring, uint32_t ld, uint32_t place) {
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) weight[j] = j + K >= 8 ? w[(size_t)(j + K - 8) * ld] : 0.0f;
#pragma unroll
    for (uint32_t j = 1; j < 8; j++)
        tap[7 - j] = j < K ? to_float(tail[(size_t)((place + ring - j) % ring) * ld]) : 0.0f;
}
__device__ __forceinline__ float conv_sum(const float (&weight)[8], const float (&tap)[8], float newest, float bias) {
    float sum = bias;
#pragma unroll
    for (int j = 0; j < 7; j++) sum = __fmaf_rn(weight[j], tap[j], sum);
    return silu(__fmaf_rn(weight[7], newest, sum));
}

// What cuda_launch_on has set, for this thread (devices.cu).
extern thread_local uint32_t device_part_processors;
// The current device, or the part of it that launches go to, as the rules of dispatch.h know it.
static inline dispatch_device this_device(void) {
    int device = 0, major = 0, n = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    const uint32_t some = device_part_processors;
    return {(uint32_t)major, some ? some : n > 0 ? (uint32_t)n : 1, some != 0};
}
// It has the code of sm_90a: bulk copies, clusters, wgmma, dependent launch. Later ones run that of sm_80.
static inline bool on_hopper(void) { return this_device().major == 9; }
static inline uint32_t multiprocessors(void) { return this_device().processors; }

enum { CUDA_GRID_Z = 65535 }; // most blocks of a grid in y and in z
// What launchers assert of what they are given. Vector loads, bulk copies and tensor maps begin on 16 bytes; NULL does.
template <class... P> static inline bool on_16_bytes(const P *...p) { return (((uintptr_t)p % 16 == 0) && ...); }
// Partial products of so many numbers each: they are there, and apart.
static inline bool are_parts(const cuda_parts &p, size_t numbers) {
    return p.n > 0 && p.at && (p.n == 1 || p.stride >= numbers);
}

// The kernel may be launched with so many bytes of dynamic shared memory; false: a block cannot have them. What is
// allowed is the process's, for all engines, so it is always all that a block can have: a size of one engine's shape
// would be too small for another's.
template <class... P> static bool allow_shared(void (*kernel)(P...), size_t bytes) {
    cudaFuncAttributes own = {};
    int device = 0, most = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (cudaFuncGetAttributes(&own, kernel) != cudaSuccess) return false;
    const size_t room = (size_t)most - own.sharedSizeBytes;
    return bytes <= room &&
           cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)room) == cudaSuccess;
}

// attr: n attributes, the first of which is made here.
template <class... P, class... A>
static void launch_with(cudaLaunchAttribute *attr, uint32_t n, void (*kernel)(P...), dim3 grid, dim3 block, size_t smem,
                        void *stream, A... args) {
    cudaLaunchConfig_t config = {};
    fill_shared(stream);
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = (cudaStream_t)stream;
    // All kernels want the same division of shared memory and first-level cache: a multiprocessor changes it only when
    // it is empty, so a kernel that wanted another could not start beside the one before it.
    attr[0].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attr[0].val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    config.attrs = attr;
    config.numAttrs = n;
    cudaLaunchKernelEx(&config, kernel, P(args)...);
}
// Launches with programmatic dependent launch where the device has it, and there in clusters of so many blocks.
template <class... P, class... A>
static void launch_clusters(uint32_t cluster, void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, void *stream,
                            A... args) {
    cudaLaunchAttribute attr[3];
    attr[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[1].val.programmaticStreamSerializationAllowed = 1;
    attr[2].id = cudaLaunchAttributeClusterDimension;
    attr[2].val.clusterDim.x = cluster;
    attr[2].val.clusterDim.y = attr[2].val.clusterDim.z = 1;
    launch_with(attr, !on_hopper() ? 1 : cluster > 1 ? 3 : 2, kernel, grid, block, smem, stream, args...);
}
template <class... P, class... A>
static void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, void *stream, A... args) {
    launch_clusters(1, kernel, grid, block, smem, stream, args...);
}
// All blocks are resident at once, or none: so they may wait for each other.
template <class... P, class... A>
static void launch_cooperative(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, void *stream, A... args) {
    cudaLaunchAttribute attr[2];
    attr[1].id = cudaLaunchAttributeCooperative;
    attr[1].val.cooperative = 1;
    launch_with(attr, 2, kernel, grid, block, smem, stream, args...);
}

#define FOR_16_BIT(dtype, call)                                                                                        \
    do {                                                                                                               \
        if ((dtype) == CUDA_F16) {                                                                                     \
            using T = __half;                                                                                          \
            call;                                                                                                      \
        } else {                                                                                                       \
            using T = __nv_bfloat16;                                                                                   \
            call;                                                                                                      \
        }                                                                                                              \
    } while (0)

#define FOR_DTYPE(dtype, call)                                                                                         \
    do {                                                                                                               \
        if ((dtype) == CUDA_F32) {                                                                                     \
            using T = float;                                                                                           \
            call;                                                                                                      \
        } else                                                                                                         \
            FOR_16_BIT(dtype, call);                                                                                   \
    } while (0)
