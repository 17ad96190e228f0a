// common.cuh - what the kernels share: activation types, packed addresses, reductions in a fixed order, dependent launch.
#pragma once
#include "cuda.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

template <class T> __device__ __forceinline__ float to_float(T x) { return float(x); }
template <class T> __device__ __forceinline__ T from_float(float x) { return T(x); }

// Element (row, k) of activations with K (padded) columns: fp32 row-major, 16 bit in tiles of 8 rows and 16 columns, each two
// matrices of 8 rows by 16 bytes: what wgmma reads as operand B from shared memory without a swizzle.
template <class T> __device__ __forceinline__ size_t act_at(uint32_t row, uint32_t k, uint32_t K) {
    return ((size_t)(row >> 3) * (K >> 4) + (k >> 4)) * 128 + ((k & 8) << 3) + (row & 7) * 8 + (k & 7);
}
template <> __device__ __forceinline__ size_t act_at<float>(uint32_t row, uint32_t k, uint32_t K) { return (size_t)row * K + k; }

// Element (o, k) of a weight matrix with K (padded) columns, in the order of mma's operand A.
template <class T> __device__ __forceinline__ size_t weight_at(uint32_t o, uint32_t k, uint32_t K) {
    uint32_t lane = (o & 7) * 4 + ((k & 7) >> 1), reg = ((o & 8) >> 3) + ((k & 8) >> 2);
    return ((size_t)(o >> 4) * (K >> 4) + (k >> 4)) * 256 + lane * 8 + reg * 2 + (k & 1);
}
template <> __device__ __forceinline__ size_t weight_at<float>(uint32_t o, uint32_t k, uint32_t K) { return (size_t)o * K + k; }

// The kernel before this one in the stream has finished (with programmatic dependent launch; else a no-op).
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The next kernel may start its own prologue.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + __expf(-x)); }
__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

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

// Launches with programmatic dependent launch where the device has it.
template <class... P, class... A> static void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, void *stream, A... args) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr[1];
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = (cudaStream_t)stream;
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    config.attrs = attr;
    config.numAttrs = major >= 9;
    cudaLaunchKernelEx(&config, kernel, P(args)...);
}

#define FOR_DTYPE(dtype, call)                                        \
    do {                                                              \
        if ((dtype) == CUDA_F32) { using T = float; call; }           \
        else if ((dtype) == CUDA_F16) { using T = __half; call; }     \
        else { using T = __nv_bfloat16; call; }                       \
    } while (0)
