// under_test.cu - kernels_under_test.so: see under_test.h.
#include "under_test.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/fill_shared.cuh"

static const char *text(cudaError_t rc) { return rc == cudaSuccess ? nullptr : cudaGetErrorString(rc); }

static const char *ut_open(void **stream) {
    int n = 0;
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess) return text(rc);
    for (int i = 0; i < n; i++) {
        int major = 0;
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, i);
        if (major < 8) continue;
        rc = cudaSetDevice(i);
        return text(rc != cudaSuccess ? rc : cudaStreamCreateWithFlags((cudaStream_t *)stream, cudaStreamNonBlocking));
    }
    return "no GPU of compute capability 8.0 or more";
}
static void *ut_take(size_t bytes) {
    void *p = nullptr;
    return cudaMalloc(&p, bytes) == cudaSuccess ? p : nullptr;
}
static void ut_give(void *p) { cudaFree(p); }
static const char *ut_wait(void *stream) {
    cudaError_t rc = cudaGetLastError();
    return text(rc != cudaSuccess ? rc : cudaStreamSynchronize((cudaStream_t)stream));
}
static const char *ut_fill(void *p, int byte, size_t bytes, void *stream) {
    cudaMemsetAsync(p, byte, bytes, (cudaStream_t)stream);
    return ut_wait(stream);
}
static const char *ut_write(void *device, const void *host, size_t bytes, void *stream) {
    cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream);
    return ut_wait(stream);
}
static const char *ut_read(void *host, const void *device, size_t bytes, void *stream) {
    cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)stream);
    return ut_wait(stream);
}

static const char *ut_fill_blocks(void *stream) {
    fill_all_shared(stream);
    return text(cudaGetLastError());
}

template <class T>
__global__ void pack_act_kernel(const float *src, uint32_t n_rows, uint32_t n_padded, uint32_t cols, T *act) {
    const uint32_t K = (cols + 15) / 16 * 16;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (size_t)n_padded * K;
         i += (size_t)gridDim.x * blockDim.x) {
        uint32_t r = (uint32_t)(i / K), k = (uint32_t)(i % K);
        if (k >= cols)
            act[act_at<T>(r, k, K)] = from_float<T>(0.0f);
        else if (src && r < n_rows)
            act[act_at<T>(r, k, K)] = from_float<T>(src[(size_t)r * cols + k]);
    }
}
static void ut_pack_act(const float *src, uint32_t n_rows, uint32_t cols, void *act, enum cuda_dtype dtype,
                        void *stream) {
    FOR_DTYPE(dtype, (pack_act_kernel<T>
                      <<<512, 256, 0, (cudaStream_t)stream>>>(src, n_rows, (n_rows + 7) / 8 * 8, cols, (T *)act)));
}

template <class T> __global__ void unpack_act_kernel(const T *act, uint32_t n_rows, uint32_t K, float *dst) {
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (size_t)n_rows * K;
         i += (size_t)gridDim.x * blockDim.x)
        dst[i] = to_float(act[act_at<T>((uint32_t)(i / K), (uint32_t)(i % K), K)]);
}
static void ut_unpack_act(const void *act, uint32_t n_rows, uint32_t cols, float *dst, enum cuda_dtype dtype,
                          void *stream) {
    FOR_DTYPE(dtype, (unpack_act_kernel<T>
                      <<<512, 256, 0, (cudaStream_t)stream>>>((const T *)act, n_rows, cuda_pad16(cols), dst)));
}

#define UNDER_TEST_NAME(name) name,
extern "C" __attribute__((visibility("default")))
const struct under_test kernels_under_test = {ut_open,
                                              ut_take,
                                              ut_give,
                                              ut_fill,
                                              ut_fill_blocks,
                                              ut_write,
                                              ut_read,
                                              ut_wait,
                                              ut_pack_act,
                                              ut_unpack_act,
                                              UNDER_TEST(UNDER_TEST_NAME)};
