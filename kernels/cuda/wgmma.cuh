// wgmma.cuh - sm_90's asynchronous products of a warpgroup with operand A in registers, barriers in shared memory,
// tensor copies.
#pragma once
#include "common.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A matrix in shared memory as wgmma reads operand B, rows of 128 bytes with a swizzle of 128 bytes (16-byte piece c of
// row r lies at c ^ r % 8; the matrix begins at a multiple of 1024). group: bytes from 8 rows to the next 8. next:
// where k runs down the rows (TRANSPOSED), from 64 columns to the next 64; where k runs along them, k advances by its
// bytes in the address.
__device__ __forceinline__ uint64_t swizzled(uint32_t group, uint32_t next) {
    return (uint64_t)1 << 62 | (uint64_t)(group >> 4) << 32 | (uint64_t)(next >> 4) << 16;
}
__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// The compiler keeps registers of products under way where they are.
template <int N> __device__ __forceinline__ void keep(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// A lane's sums as operands of asm, from %0 on, and their names.
#define SUMS_8(d, i)                                                                                                   \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define SUMS_16(d)  SUMS_8(d, 0), SUMS_8(d, 8)
#define SUMS_32(d)  SUMS_16(d), SUMS_8(d, 16), SUMS_8(d, 24)
#define SUMS_64(d)  SUMS_32(d), SUMS_8(d, 32), SUMS_8(d, 40), SUMS_8(d, 48), SUMS_8(d, 56)
#define SUMS_96(d)  SUMS_64(d), SUMS_8(d, 64), SUMS_8(d, 72), SUMS_8(d, 80), SUMS_8(d, 88)
#define SUMS_128(d) SUMS_96(d), SUMS_8(d, 96), SUMS_8(d, 104), SUMS_8(d, 112), SUMS_8(d, 120)
#define NAMES_16    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define NAMES_32    NAMES_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_64                                                                                                       \
    NAMES_32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"                                        \
             ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define NAMES_128                                                                                                      \
    NAMES_64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"                                        \
             ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"                                        \
             ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"                            \
             ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"

// d (64 rows by N) = or += a b over 16 k; of warp w, lane (g, t): rows 16 w + g and + 8, columns 8 i + 2 t and + 1 (i =
// 0 .. N / 8). SUMS: N / 2; the numbers of the operands after them.
#define WGMMA(N, SUMS, T, TYPE, A0, A1, A2, A3, B, ADD, TRANS)                                                         \
    template <bool TRANSPOSED>                                                                                         \
    __device__ __forceinline__ void wgmma(float(&d)[SUMS], const uint4 &a, uint64_t b, bool add, T) {                  \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n"                                                \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES_##SUMS                 \
                     "}, "                                                                                             \
                     "{%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", p, 1, 1, %" #TRANS ";\n}"                        \
                     : SUMS_##SUMS(d)                                                                                  \
                     : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)add), "n"((int)TRANSPOSED));           \
    }
#define WGMMA_BOTH(N, SUMS, ...)                                                                                       \
    WGMMA(N, SUMS, __half, "f16", __VA_ARGS__)                                                                         \
    WGMMA(N, SUMS, __nv_bfloat16, "bf16", __VA_ARGS__)
WGMMA_BOTH(32, 16, 16, 17, 18, 19, 20, 21, 22)
WGMMA_BOTH(64, 32, 32, 33, 34, 35, 36, 37, 38)
WGMMA_BOTH(128, 64, 64, 65, 66, 67, 68, 69, 70)
WGMMA_BOTH(256, 128, 128, 129, 130, 131, 132, 133, 134)
#undef WGMMA_BOTH
#undef WGMMA

__device__ __forceinline__ void barrier_init(uint64_t *b, uint32_t n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n) : "memory");
}
// For the copy engines.
__device__ __forceinline__ void barriers_there() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// One arrival, and bytes of copies that the barrier waits for as well; the bytes alone.
__device__ __forceinline__ void barrier_expect(uint64_t *b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_expect_more(uint64_t *b, uint32_t bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    delay(64);
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// One arrival more, when this thread's plain copies until here are there.
__device__ __forceinline__ void barrier_arrive_copied(uint64_t *b) {
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra "
                 "wait;\ndone:\n}" ::"r"(shared_address(b)),
                 "r"(parity)
                 : "memory");
    delay(64);
}
// A box of a tensor of three dimensions.
__device__ __forceinline__ void copy_box(uint32_t to, const void *map, uint32_t x, uint32_t y, uint32_t z,
                                         uint64_t *b) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, "
                 "%4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(shared_address(b))
                 : "memory");
}
// What was written to shared memory is there for products and copy engines.
__device__ __forceinline__ void written_for_wgmma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif
