// delay.cuh - nothing, unless built with -DROD_KERNEL_DELAYS (make DELAYS=1): then warps wait at random where the order
// of things must not depend on who is fast: before and after a kernel's inputs are ready, before the next kernel may
// start, around every barrier. So a race that needs luck shows in minutes (tests/backend/test_lives.c). And one launch
// in five finds all shared memory filled with NaN, so that what a kernel reads there and did not write shows.
#pragma once
#include <stdint.h>

#ifdef ROD_KERNEL_DELAYS
#include "fill_shared.cuh"
#include <time.h>

// One time in `one_in`, up to 30 us.
__device__ __forceinline__ void delay(uint32_t one_in) {
    uint32_t x =
        (uint32_t)clock64() + (blockIdx.x * 0x9e3779b1u ^ blockIdx.y * 0x85ebca77u ^ threadIdx.x / 32 * 0xc2b2ae3du);
    x ^= x >> 15, x *= 0x2c1b3c6du, x ^= x >> 12, x *= 0x297a2d39u, x ^= x >> 15;
    x = __shfl_sync(__activemask(), x, __ffs((int)__activemask()) - 1); // a warp waits together
    if (x % one_in == 0) __nanosleep((x >> 8) % 30000);
}
#define __syncthreads() (delay(16), __syncthreads(), delay(16))

// Before one launch in five, on every multiprocessor.
static inline void fill_shared(void *stream) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (((uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15u >> 40) % 5 == 0) fill_all_shared(stream);
}
#else
__device__ __forceinline__ void delay(uint32_t) {}
static inline void fill_shared(void *) {}
#endif
