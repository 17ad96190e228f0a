// bulk.cuh - weights by the bulk copy engine: one copy, one barrier of its own.
#pragma once
#include "common.cuh"

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *bar) {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(bar)), "l"(policy)
        : "memory");
}
#endif
// One thread: its barrier bar (one word), before the first bulk_ask.
__device__ __forceinline__ void bulk_init(uint64_t *bar) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(bar)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
// One thread asks for `bytes` from global into shared memory, and for `more` from elsewhere; bar completes a phase when
// they are there.
__device__ __forceinline__ void bulk_ask(void *to, const void *from, uint32_t bytes, uint64_t *bar, void *to_more,
                                         const void *from_more, uint32_t more) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes + more)
                 : "memory");
    if (bytes) bulk_copy(to, from, bytes, bar);
    if (more) bulk_copy(to_more, from_more, more, bar);
#endif
}
__device__ __forceinline__ void bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *bar) {
    bulk_init(bar);
    bulk_ask(to, from, bytes, bar, to, from, 0);
}
// phase: the parity of the bar's phase, 0 for what was asked first.
__device__ __forceinline__ void await_bulk(uint64_t *bar, uint32_t phase = 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra "
                 "again;\n}" ::"r"(shared_address(bar)),
                 "r"(phase)
                 : "memory");
#endif
    delay(16);
}
