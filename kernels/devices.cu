// devices.cu - which GPUs are here, for `rodimus version` and for choosing a device. A GPU is usable if it is Hopper or
// newer (compute capability 9.0), the architecture that the kernels are built for.
#include <cstddef>
#include <cstdio>
#include <cuda_runtime.h>

struct backend_ops;
struct backend_plugin { // engine/backend.c reads this
    size_t (*devices)(char (*lines)[128], size_t max_lines);
    const struct backend_ops *ops;
};

static size_t devices(char (*lines)[128], size_t max_lines) {
    int n = 0;
    size_t written = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) return 0;
    for (int i = 0; i < n && written < max_lines; i++) {
        cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, i) != cudaSuccess || p.major < 9) continue;
        std::snprintf(lines[written++], 128, "cuda:%d %.40s, %.0f GiB, compute capability %d.%d", i, p.name,
                      (double)p.totalGlobalMem / (1 << 30), p.major, p.minor);
    }
    return written;
}

extern "C" __attribute__((visibility("default"))) const struct backend_plugin rodimus_cuda_plugin;
extern "C" const struct backend_plugin rodimus_cuda_plugin = {devices, nullptr};
