// exchange.cuh - how the blocks of one launch give each other what a stage makes (one_launch.cu): words that carry
// their epoch, so that a reader needs no counter, no fence and no clearing; and how a block's warps hand weights on
// through a ring in shared memory. Every wait has an end: what never comes is a fault of the device, with a note in the
// host's memory of where.
//
// A word: 4 bytes of data, 4 of epoch, written and read as one. Two neighbours are a piece, which one load brings; each
// of its words is looked at by itself.
#pragma once
#include "kernels/cuda/common.cuh"

// gridDim.x, read where it is wanted: a register that waits for that long goes to local memory.
__device__ __forceinline__ uint32_t n_blocks_now() {
    uint32_t n;
    asm volatile("mov.u32 %0, %%nctaid.x;" : "=r"(n));
    return n;
}

// A wait of 2^34 clocks, some nine seconds, is a fault; where other programs have the GPU one after the other and
// racecheck slows the step a thousand times, only one of minutes.
#ifdef ROD_KERNEL_RACECHECK
enum { EXCHANGE_WAIT_CLOCKS = 39 };
#else
enum { EXCHANGE_WAIT_CLOCKS = 34 };
#endif

struct word_piece {
    uint32_t first, first_epoch, second, second_epoch;
    __device__ __forceinline__ bool is_of(uint32_t epoch) const {
        return first_epoch == epoch && second_epoch == epoch;
    }
};

__device__ __forceinline__ word_piece piece_now(const uint2 *words) { // at a multiple of 16 bytes
    word_piece p;
    asm volatile("{.reg .b64 a, b; ld.relaxed.gpu.global.v2.b64 {a, b}, [%4];\n"
                 "mov.b64 {%0, %1}, a; mov.b64 {%2, %3}, b;}"
                 : "=r"(p.first), "=r"(p.first_epoch), "=r"(p.second), "=r"(p.second_epoch)
                 : "l"(words)
                 : "memory");
    return p;
}
__device__ __forceinline__ uint2 word_now(const uint2 *word) { // {data, epoch}
    uint2 w;
    asm volatile("{.reg .b64 a; ld.relaxed.gpu.global.b64 a, [%2]; mov.b64 {%0, %1}, a;}"
                 : "=r"(w.x), "=r"(w.y)
                 : "l"(word)
                 : "memory");
    return w;
}
__device__ __forceinline__ void give_word(uint2 *word, uint32_t data, uint32_t epoch) {
    asm volatile("{.reg .b64 a; mov.b64 a, {%1, %2}; st.relaxed.gpu.global.b64 [%0], a;}" ::"l"(word), "r"(data),
                 "r"(epoch)
                 : "memory");
}
__device__ __forceinline__ void give_float(uint2 *word, float x, uint32_t epoch) {
    give_word(word, __float_as_uint(x), epoch);
}

// Into the second-level cache, so that who reads it does not wait for memory: words that were asked for after it come
// no sooner.
__device__ __forceinline__ void bring_near(const void *line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

// Where a wait that ends too late says so.
struct wait_note {
    volatile uint32_t *note; // pinned: [0] set last, then stage, block, warp
    uint32_t stage;
};
// Of a loop that waits: its rounds so far and when it began.
struct patience {
    uint32_t rounds = 0;
    long long since = 0;
    __device__ __forceinline__ void spend(const wait_note &at) {
        if (++rounds % 1024) return;
        const long long now = clock64();
        if (rounds == 1024) since = now;
        if (now - since < 1ll << EXCHANGE_WAIT_CLOCKS) return;
        at.note[1] = at.stage, at.note[2] = blockIdx.x, at.note[3] = threadIdx.x / 32;
        __threadfence_system();
        at.note[0] = 1;
        __threadfence_system();
        asm volatile("trap;");
    }
};

// A lane waits for up to N pieces of an epoch at once: those i of which has(i) is true, at place(i); the others are
// zeros. take(i, data, data). The lambdas are asked again in each round, which costs less than registers.
template <int N, class Has, class Place, class Take>
__device__ __forceinline__ void await_pieces(uint32_t epoch, const wait_note &at, Has has, Place place, Take take) {
    word_piece got[N];
    uint32_t missing = 0;
    delay(256);
#pragma unroll
    for (int i = 0; i < N; i++) {
        got[i] = word_piece{0, 0, 0, 0};
        if (has(i)) missing |= 1u << i;
    }
    for (patience p; missing; p.spend(at)) {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (missing >> i & 1) got[i] = piece_now(place(i));
#pragma unroll
        for (int i = 0; i < N; i++)
            if ((missing >> i & 1) && got[i].is_of(epoch)) missing &= ~(1u << i);
    }
#pragma unroll
    for (int i = 0; i < N; i++) take(i, got[i].first, got[i].second);
}
// Single words, awaited likewise.
template <int N, class Has, class Place>
__device__ __forceinline__ void await_words(uint32_t (&data)[N], uint32_t epoch, const wait_note &at, Has has,
                                            Place place) {
    uint32_t missing = 0;
    delay(256);
#pragma unroll
    for (int i = 0; i < N; i++) {
        data[i] = 0;
        if (has(i)) missing |= 1u << i;
    }
    for (patience p; missing; p.spend(at)) {
        uint2 got[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            got[i] = make_uint2(0, 0); // else what was there would be kept, in local memory
            if (missing >> i & 1) got[i] = word_now(place(i));
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            if ((missing >> i & 1) && got[i].y == epoch) data[i] = got[i].x, missing &= ~(1u << i);
    }
}

// ---- the ring of weights: barriers of a place in it ----

__device__ __forceinline__ void ring_barrier_init(uint64_t *bar, uint32_t n = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(bar)), "r"(n) : "memory");
}
__device__ __forceinline__ void ring_barriers_there() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
__device__ __forceinline__ bool ring_passed(uint64_t *bar, uint32_t parity) {
    uint32_t is = 1;
#if __CUDA_ARCH__ >= 900
    asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                 : "=r"(is)
                 : "r"(shared_address(bar)), "r"(parity)
                 : "memory");
#endif
    return is;
}
__device__ __forceinline__ void ring_await(uint64_t *bar, uint32_t parity, const wait_note &at) {
#if __CUDA_ARCH__ >= 900
    for (patience p;; p.spend(at)) {
        uint32_t is;
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(is)
                     : "r"(shared_address(bar)), "r"(parity)
                     : "memory");
        if (is) break;
    }
#endif
}
#ifdef ROD_KERNEL_RACECHECK
enum { RING_READERS = 32 };
#else
enum { RING_READERS = 1 };
#endif
__device__ __forceinline__ void ring_release(uint64_t *bar) { // RING_READERS lanes, when their warp has read the place
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(bar)) : "memory");
#endif
}
__device__ __forceinline__ void ring_expect(uint32_t bytes, uint64_t *bar) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(bar)), "r"(bytes)
                 : "memory");
#endif
}
__device__ __forceinline__ void ring_copy(void *to, const void *from, uint32_t bytes, uint64_t *bar, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(bar)), "l"(policy)
        : "memory");
#endif
}
__device__ __forceinline__ void ring_fetch(void *to, const void *from, uint32_t bytes, uint64_t *bar, uint64_t policy) {
    ring_expect(bytes, bar);
    ring_copy(to, from, bytes, bar, policy);
}
__device__ __forceinline__ uint64_t ring_policy() { // weights are read once a step
    uint64_t policy = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    return policy;
}
// 16 bytes of a place, or 8: all of a warp's loads are under way before the first product.
__device__ __forceinline__ uint4 load_place(const uint4 *p) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(shared_address(p))
                 : "memory");
    return x;
}
__device__ __forceinline__ uint2 load_place(const uint2 *p) {
    uint2 x;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(shared_address(p)) : "memory");
    return x;
}
// ---- barriers of some of a block's warps ----

// racecheck does not see the order that a barrier of some of a block's warps makes, nor that a lane arrives for its
// warp. Built with -DROD_KERNEL_RACECHECK (make sanitize-gpu) such barriers are mbarriers, at which every thread
// arrives.
#ifdef ROD_KERNEL_RACECHECK
__device__ __forceinline__ uint64_t *barrier_place(uint32_t id) {
    __shared__ uint64_t places[5];
    return places + id;
}
__device__ __forceinline__ void barrier_there(uint32_t id, uint32_t n_threads) { // by one thread
    ring_barrier_init(barrier_place(id), n_threads);
}
__device__ __forceinline__ uint64_t arrive(uint32_t id, uint32_t) {
    uint64_t state;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];"
                 : "=l"(state)
                 : "r"(shared_address(barrier_place(id)))
                 : "memory");
    return state;
}
__device__ __forceinline__ void meet(uint32_t id, uint32_t n_threads) {
    const uint64_t state = arrive(id, n_threads);
    for (uint32_t is = 0; !is;)
        asm volatile("{.reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(is)
                     : "r"(shared_address(barrier_place(id))), "l"(state)
                     : "memory");
}
#else
__device__ __forceinline__ void barrier_there(uint32_t, uint32_t) {}
__device__ __forceinline__ void arrive(uint32_t id, uint32_t n_threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}
__device__ __forceinline__ void meet(uint32_t id, uint32_t n_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}
#endif
// So many threads of the block; id: 1 to 4.
__device__ __forceinline__ void barrier_of(uint32_t id, uint32_t n_threads) {
    delay(256);
    meet(id, n_threads);
    delay(256);
}
// At such a barrier, without waiting.
__device__ __forceinline__ void arrive_at(uint32_t id, uint32_t n_threads) {
    delay(256);
    arrive(id, n_threads);
}
