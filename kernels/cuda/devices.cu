// devices.cu - which GPUs are here, for `rodimus version` and for choosing a device; and how one fails, for tests. A
// GPU is usable from compute capability 8.0 on, the first with the tensor core products of linear.cu.
#include "common.cuh"
#include <cstdio>

size_t cuda_devices(char (*lines)[128], size_t max_lines) {
    int n = 0;
    size_t written = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess) return 0;
    for (int i = 0; i < n && written < max_lines; i++) {
        cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, i) != cudaSuccess || p.major < 8) continue;
        std::snprintf(lines[written++], 128, "cuda:%d %.40s, %.0f GiB, compute capability %d.%d", i, p.name,
                      (double)p.totalGlobalMem / (1 << 30), p.major, p.minor);
    }
    return written;
}

thread_local uint32_t device_part_processors;
void cuda_launch_on(uint32_t processors) { device_part_processors = processors; }

__global__ void fault_kernel() { asm volatile("trap;"); }

void k_fault(void *stream) { fault_kernel<<<1, 1, 0, (cudaStream_t)stream>>>(); }
