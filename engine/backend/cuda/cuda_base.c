/* cuda_base.c - what all files of the CUDA backend use: errors of the runtime, memory of the device. */
#include "cuda_backend.h"

#include <assert.h>
#include <cuda_runtime.h>

int cuda_check(int rc, const char *doing, struct rod_error *err) {
    if (rc == cudaSuccess) return 0;
    return rod_fail(err, ROD_EDEVICE, "CUDA: %s failed: %s (%s)", doing, cudaGetErrorString((cudaError_t)rc),
                    cudaGetErrorName((cudaError_t)rc));
}

void *cuda_take(struct backend *be, size_t bytes, const char *what, struct rod_error *err) {
    void *p = NULL;
    bytes = (bytes + 255) / 256 * 256 + 256;
    cudaError_t rc = be->n_allocations < CUDA_MOST_ALLOCATIONS ? cudaMalloc(&p, bytes) : cudaErrorMemoryAllocation;
    if (rc != cudaSuccess) {
        size_t available = 0, total = 0;
        cudaGetLastError();
        cudaMemGetInfo(&available, &total);
        rod_fail(err, rc == cudaErrorMemoryAllocation ? ROD_ENOMEM : ROD_EDEVICE,
                 "GPU memory: %s needs %.1f MiB, %.1f of %.1f MiB are free", what, (double)bytes / (1 << 20),
                 (double)available / (1 << 20), (double)total / (1 << 20));
        return NULL;
    }
    assert(be->n_allocations < CUDA_MOST_ALLOCATIONS);
    be->allocations[be->n_allocations++] = p;
    return p;
}

int cuda_capture_begin(struct backend *be, struct rod_error *err) {
    return cuda_check(cudaStreamBeginCapture(be->stream, cudaStreamCaptureModeThreadLocal), "capturing a step", err);
}

int cuda_capture_end(struct backend *be, struct CUgraphExec_st **exec, struct rod_error *err) {
    cudaGraph_t graph = NULL;
    const cudaError_t launched = cudaGetLastError();
    int rc = cuda_check(cudaStreamEndCapture(be->stream, &graph), "capturing a step", err);
    if (!rc) rc = cuda_check(launched, "capturing a step", err);
    if (!rc) rc = cuda_check(cudaGraphInstantiate(exec, graph, 0), "building the graph of a step", err);
    if (graph) cudaGraphDestroy(graph);
    cudaGetLastError(); /* it is told */
    return rc;
}
