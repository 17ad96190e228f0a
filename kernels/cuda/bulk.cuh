// bulk.cuh - weights by the bulk copy engine: one copy, one barrier of its own.
#pragma once
#include "common.cuh"

// One thread: `bytes` from global into shared memory; bar (one word, this thread's) completes when they are there.
__device__ __forceinline__ void bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *bar) {
#if __CUDA_ARCH__ >= 900
    uint64_t policy;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(bar)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
    if (bytes == 0) return;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(bar)), "l"(policy)
        : "memory");
#endif
}
__device__ __forceinline__ void await_bulk(uint64_t *bar) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n@!done bra again;\n}" ::
            "r"(shared_address(bar))
        : "memory");
#endif
    delay(16);
}
