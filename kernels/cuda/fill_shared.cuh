// fill_shared.cuh - a kernel that fills all shared memory with NaN, for tests: what a kernel reads there and did not
// write shows. In the product only where delay.cuh is.
#pragma once
#include <cuda_runtime.h>
#include <stdint.h>

static __global__ void fill_shared_kernel(uint32_t n_words) {
    extern __shared__ uint32_t filled[];
    for (uint32_t i = threadIdx.x; i < n_words; i += blockDim.x) *(volatile uint32_t *)(filled + i) = 0xffffffffu;
}
// On every multiprocessor.
static inline void fill_all_shared(void *stream) {
    int device = 0, bytes = 0, n = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
    cudaFuncSetAttribute(fill_shared_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    fill_shared_kernel<<<n, 1024, (size_t)bytes, (cudaStream_t)stream>>>((uint32_t)bytes / 4);
}
