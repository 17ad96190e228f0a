// linear.cu - the products of a step: weights streamed once through tensor cores, and packing them for that.
#include "common.cuh"
#include <cuda.h>

size_t cuda_matrix_bytes(uint32_t rows, uint32_t cols, enum cuda_dtype dtype) {
    return (size_t)cuda_pad16(rows) * cuda_pad16(cols) * (dtype == CUDA_F32 ? 4 : 2);
}
size_t cuda_activation_bytes(uint32_t n_rows, uint32_t cols, enum cuda_dtype dtype) {
    return (size_t)((n_rows + 7) / 8 * 8) * cuda_pad16(cols) * (dtype == CUDA_F32 ? 4 : 2);
}

static bool has_wgmma(void) {
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    return major == 9;
}
static bool wide_rows(enum cuda_dtype dtype, uint32_t n_rows) { return n_rows > 8 && dtype != CUDA_F32 && has_wgmma(); }

uint32_t cuda_linear_splits(const struct cuda_matrix *w, uint32_t n_rows) {
    return w->whole || wide_rows(w->dtype, n_rows) ? 1 : 4;
}

template <class S, class T> __global__ void pack_kernel(const S *src, uint32_t row0, uint32_t rows, uint32_t cols, uint32_t pack, T *dst) {
    const uint32_t K = (cols + 15) / 16 * 16;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (size_t)rows * cols; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t o = (uint32_t)(i / cols), k = (uint32_t)(i % cols);
        o += row0;
        if (pack != CUDA_PACK_ROWS) o = o / 8 * 16 + o % 8 + (pack == CUDA_PACK_SECOND_EIGHTS ? 8 : 0);
        dst[weight_at<T>(o, k, K)] = from_float<T>(to_float(src[i]));
    }
}

void k_pack(const void *src, enum cuda_dtype src_dtype, uint32_t row0, uint32_t rows, uint32_t cols,
            enum cuda_pack pack, const struct cuda_matrix *dst, void *stream) {
    cudaStream_t st = (cudaStream_t)stream;
    if (src_dtype == CUDA_F32)
        FOR_DTYPE(dst->dtype, (pack_kernel<float, T><<<1024, 256, 0, st>>>((const float *)src, row0, rows, cols, (uint32_t)pack, (T *)dst->data)));
    else if (src_dtype == CUDA_F16)
        FOR_DTYPE(dst->dtype, (pack_kernel<__half, T><<<1024, 256, 0, st>>>((const __half *)src, row0, rows, cols, (uint32_t)pack, (T *)dst->data)));
    else
        FOR_DTYPE(dst->dtype, (pack_kernel<__nv_bfloat16, T><<<1024, 256, 0, st>>>((const __nv_bfloat16 *)src, row0, rows, cols, (uint32_t)pack, (T *)dst->data)));
}

__device__ __forceinline__ uint4 load_stream(const uint4 *p) { // weights are read once: do not keep them in L1
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

// One or two products of the same k with outputs of their own (W_in with W_m on s, W_c0 on a), as one launch.
struct linear_part { const uint4 *w; const uint32_t *x; float *y; size_t ldy, split_stride; uint32_t O, tiles; };

// The order of every 16-bit product, whatever kernel computes it: k is cut into 16 slices by shape alone, slice i = k-tiles
// [KT i / 16, KT (i + 1) / 16); inside a slice one fp32 accumulator from 0, k-tiles ascending; a quarter is
// ((s0 + s1) + s2) + s3 of its slices, the result ((q0 + q1) + q2) + q3. The quarters may be left for the reader to add.
enum { SLICES = 16 };
__device__ __forceinline__ uint32_t slice_at(uint32_t KT, uint32_t slice) { return KT * slice / SLICES; }

// A block: MT tiles of 16 outputs, up to 8 NT rows, WARPS slices of k, one a warp: all 16 or one quarter. The first weights are
// on their way before the inputs are ready.
template <class T, int WARPS, int MT, int NT, int U>
__global__ void __launch_bounds__(WARPS * 32)
linear_kernel(linear_part one, linear_part two, uint32_t KT, uint32_t n_rows) {
    __shared__ float part[WARPS][16][8 * NT + 1];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t k0 = slice_at(KT, blockIdx.y * WARPS + warp), k1 = slice_at(KT, blockIdx.y * WARPS + warp + 1);
    const uint32_t blocks_one = (one.tiles + MT - 1) / MT;
    const bool second = blockIdx.x >= blocks_one;
    const linear_part p = {second ? two.w : one.w, second ? two.x : one.x, second ? two.y : one.y, second ? two.ldy : one.ldy,
                           second ? two.split_stride : one.split_stride, second ? two.O : one.O, second ? two.tiles : one.tiles};
    const uint32_t tile0 = (second ? blockIdx.x - blocks_one : blockIdx.x) * MT;
    const uint32_t row0 = blockIdx.z * 8 * NT, n = k1 - k0;
    const uint4 *wp = p.w + ((size_t)tile0 * KT + k0) * 32 + lane;
    uint4 a[U][MT];
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int m = 0; m < MT; m++)
            if (u < n && tile0 + m < p.tiles) a[u][m] = load_stream(wp + ((size_t)m * KT + u) * 32);
    float acc[MT][NT][4] = {};
    let_next_start();
    wait_for_inputs(); // x is whole
    const uint32_t *xp = p.x + ((size_t)(row0 / 8) * KT + k0) * 64 + lane;
    for (uint32_t k = 0; k < n; k += U) {
#pragma unroll
        for (int u = 0; u < U; u++) {
            if (k + u < n) {
                uint2 b[NT];
#pragma unroll
                for (int i = 0; i < NT; i++)
                    b[i] = row0 + i * 8 + g < n_rows ? make_uint2(__ldg(xp + ((size_t)i * KT + k + u) * 64), __ldg(xp + ((size_t)i * KT + k + u) * 64 + 32))
                                                     : make_uint2(0, 0);
#pragma unroll
                for (int m = 0; m < MT; m++)
#pragma unroll
                    for (int i = 0; i < NT; i++) mma(acc[m][i], a[u][m], b[i], T());
#pragma unroll
                for (int m = 0; m < MT; m++)
                    if (k + u + U < n && tile0 + m < p.tiles) a[u][m] = load_stream(wp + ((size_t)m * KT + k + u + U) * 32);
            }
        }
    }
#pragma unroll
    for (int m = 0; m < MT; m++) {
        if (m) __syncthreads(); // the last tile's parts are added
#pragma unroll
        for (int i = 0; i < NT; i++) {
            part[warp][g][i * 8 + 2 * t] = acc[m][i][0];
            part[warp][g][i * 8 + 2 * t + 1] = acc[m][i][1];
            part[warp][g + 8][i * 8 + 2 * t] = acc[m][i][2];
            part[warp][g + 8][i * 8 + 2 * t + 1] = acc[m][i][3];
        }
        __syncthreads(); // every warp's part before they are added
        for (uint32_t i = threadIdx.x; i < 16 * 8 * NT; i += WARPS * 32) {
            uint32_t o = i % 16, r = i / 16, out = (tile0 + m) * 16 + o;
            float sum = 0;
#pragma unroll
            for (int q = 0; q < WARPS; q += 4) {
                float quarter = ((part[q][o][r] + part[q + 1][o][r]) + part[q + 2][o][r]) + part[q + 3][o][r];
                sum = q ? sum + quarter : quarter;
            }
            if (out < p.O && row0 + r < n_rows) p.y[blockIdx.y * p.split_stride + (row0 + r) * p.ldy + out] = sum;
        }
    }
}

// ---- many rows, sm_90: wgmma with the weights from registers and the activations from shared memory ----

__device__ __forceinline__ uint32_t shared_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ void barrier_init(uint64_t *b, uint32_t n) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_at(b)), "r"(n) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint64_t *b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_at(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_at(b)) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint64_t *b, uint32_t parity) {
    asm volatile("{\n.reg .pred p;\nwait:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra wait;\ndone:\n}" ::"r"(shared_at(b)),
                 "r"(parity)
                 : "memory");
}
// A box of a tensor of [.][KT][one tile]: tiles [k, k + SK) of the rows of tiles from `row` on; zeros beyond the tensor.
__device__ __forceinline__ void copy_box(void *dst, const CUtensorMap *map, uint32_t k, uint32_t row, uint64_t *b, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(
                     shared_at(dst)),
                 "l"(map), "r"(0), "r"(k), "r"(row), "r"(shared_at(b)), "l"(policy)
                 : "memory");
}
__device__ __forceinline__ void wgmma(float (&d)[16], const uint4 &a, uint64_t b, int add, __half) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
                 "{%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma(float (&d)[16], const uint4 &a, uint64_t b, int add, __nv_bfloat16) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, "
                 "{%16,%17,%18,%19}, %20, p, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma(float (&d)[32], const uint4 &a, uint64_t b, int add, __half) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma(float (&d)[32], const uint4 &a, uint64_t b, int add, __nv_bfloat16) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma(float (&d)[64], const uint4 &a, uint64_t b, int add, __half) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                 "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add));
}
__device__ __forceinline__ void wgmma(float (&d)[64], const uint4 &a, uint64_t b, int add, __nv_bfloat16) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                 "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"(add));
}
#endif

// A block: MW warpgroups of 64 outputs each and NB rows, its share of the 16 slices: one CLUSTER-th; the blocks of a cluster put
// their sums together through distributed shared memory. One more warp feeds a ring of STAGES stages of SK tiles of k: the first
// weights are on their way before the inputs are ready.
template <int MW, int NB, int SK, int STAGES, int CLUSTER> struct wide {
    enum { W_STAGE = MW * 4 * SK * 512, X_STAGE = NB / 8 * SK * 256, STAGE = W_STAGE + X_STAGE, RING = STAGE * STAGES, LD = MW * 64 + 4,
           PLANES = CLUSTER == 8 ? 2 : 1, // sums a block leaves: two slices, or one slice, quarter or all
           SUMS = PLANES * NB * LD * 4, BYTES = RING > SUMS ? RING : SUMS, THREADS = MW * 128 + 32 };
};

struct wide_part { CUtensorMap w, x; float *y; size_t ldy; uint32_t O, tiles; };

template <class T, int MW, int NB, int SK, int STAGES, int CLUSTER, int BLOCKS>
__global__ void __launch_bounds__(wide<MW, NB, SK, STAGES, CLUSTER>::THREADS, BLOCKS)
wide_kernel(const __grid_constant__ wide_part one, const __grid_constant__ wide_part two, uint32_t KT, uint32_t n_rows, uint32_t row_blocks) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using G = wide<MW, NB, SK, STAGES, CLUSTER>;
    enum { SL = SLICES / CLUSTER, PARTS = CLUSTER * G::PLANES };
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t rank = blockIdx.x % CLUSTER, row0 = blockIdx.x / CLUSTER % row_blocks * NB;
    uint32_t tile0 = blockIdx.x / CLUSTER / row_blocks * (MW * 4);
    const uint32_t tiles_one = (one.tiles + MW * 4 - 1) / (MW * 4) * (MW * 4);
    const bool second = tile0 >= tiles_one;
    const wide_part *p = second ? &two : &one;
    float *const out = p->y;
    const size_t ldy = p->ldy;
    const uint32_t O = p->O;
    if (second) tile0 -= tiles_one;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(full + i, 1), barrier_init(empty + i, MW * 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads(); // the barriers are there
    let_next_start();
    if (warp >= MW * 4) {
        if (threadIdx.x == MW * 128) {
            uint64_t once, often;
            asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(once));
            asm volatile("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(often));
            for (int pass = 0; pass < 2; pass++) { // first the weights that fit, then the rest
                uint32_t it = 0;
                for (uint32_t slice = rank * SL; slice < rank * SL + SL; slice++) {
                    const uint32_t end = slice_at(KT, slice + 1);
                    for (uint32_t k = slice_at(KT, slice); k < end; k += SK, it++) {
                        const uint32_t s = it % STAGES;
                        unsigned char *at = ring + s * G::STAGE;
                        if (pass == (it >= STAGES)) {
                            if (pass) barrier_wait(empty + s, (it / STAGES + 1) & 1);
                            barrier_expect(full + s, G::STAGE);
                            copy_box(at, &p->w, k, tile0, full + s, once);
                        }
                        if (pass) copy_box(at + G::W_STAGE, &p->x, k, row0 / 8, full + s, often);
                    }
                }
                if (!pass) wait_for_inputs(); // x is whole
            }
        }
        __syncwarp();
    } else {
        float acc[NB / 2], sum[NB / 2], more[CLUSTER == 1 || CLUSTER == 8 ? NB / 2 : 1];
#pragma unroll
        for (int i = 0; i < NB / 2; i++) acc[i] = 0, sum[i] = -0.0f; // -0 + s = s to the bit
#pragma unroll
        for (int i = 0; i < sizeof more / sizeof *more; i++) more[i] = -0.0f;
        // wgmma's description of x in shared memory: no swizzle, 128 bytes to the next 8 of k, a stage's tiles to the next 8 rows
        const uint64_t form = ((uint64_t)(128 >> 4) << 16) | ((uint64_t)(SK * 256 >> 4) << 32);
        uint32_t it = 0;
        for (uint32_t slice = rank * SL; slice < rank * SL + SL; slice++) {
            const uint32_t k0 = slice_at(KT, slice), k1 = slice_at(KT, slice + 1);
            for (uint32_t k = k0; k < k1; k += SK, it++) {
                const uint32_t n = k1 - k, s = it % STAGES;
                const unsigned char *at = ring + s * G::STAGE;
                barrier_wait(full + s, it / STAGES & 1);
                uint4 a[SK];
#pragma unroll
                for (int j = 0; j < SK; j++) { // past the slice: nothing
                    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                                 : "=r"(a[j].x), "=r"(a[j].y), "=r"(a[j].z), "=r"(a[j].w)
                                 : "r"(shared_at(at + (warp * SK + j) * 512 + lane * 16)));
                    if (j >= n) a[j] = make_uint4(0, 0, 0, 0);
                }
#pragma unroll
                for (int j = 0; j < SK; j++) // in registers before the fence
                    asm volatile("" : "+r"(a[j].x), "+r"(a[j].y), "+r"(a[j].z), "+r"(a[j].w)::"memory");
                const uint64_t b = form | (shared_at(at + G::W_STAGE) & 0x3ffff) >> 4; // without the block's number in its cluster
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int j = 0; j < SK; j++)
                    wgmma(acc, a[j], b + j * (256 >> 4), j || k != k0, T());
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                if (lane == 0) barrier_arrive(empty + s);
            }
#pragma unroll
            for (int i = 0; i < NB / 2; i++) {
                asm volatile("" : "+f"(acc[i])::"memory"); // read after the wait
                if (CLUSTER == 8 && slice % 2) more[i] = k0 != k1 ? acc[i] : 0;
                else if (k0 != k1) sum[i] += acc[i];
                if (CLUSTER == 1 && slice % 4 == 3) more[i] += sum[i], sum[i] = -0.0f;
            }
        }
        wait_for_inputs();
        asm volatile("bar.sync 1, %0;" ::"n"(MW * 128) : "memory"); // nobody reads the ring any more
        float *sums = (float *)ring;
        const uint32_t at = (lane % 4 * 2) * G::LD + warp * 16 + lane / 4;
#pragma unroll
        for (int j = 0; j < G::PLANES; j++)
#pragma unroll
            for (int i = 0; i < NB / 2; i++)
                sums[at + (j * NB + i / 4 * 8 + i % 2) * G::LD + i / 2 % 2 * 8] = CLUSTER == 1 || j ? more[i] : sum[i];
    }
    if (CLUSTER == 1) __syncthreads(); // all sums are there
    else asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
    if (warp < MW * 4) {
        const uint32_t n = min((uint32_t)NB, n_rows - row0), out0 = tile0 * 16;
        const bool wide_store = ldy % 4 == 0 && (size_t)out % 16 == 0;
        for (uint32_t i = rank * MW * 128 + threadIdx.x; i < n * (MW * 16); i += CLUSTER * MW * 128) {
            const uint32_t r = i / (MW * 16), o = i % (MW * 16) * 4, at = shared_at(ring) + (r * G::LD + o) * 4;
            float4 v[PARTS], total;
#pragma unroll
            for (int j = 0; j < PARTS; j++)
                if (CLUSTER == 1) v[j] = *(const float4 *)((const float *)ring + r * G::LD + o);
                else
                    asm volatile("{\n.reg .u32 a;\nmapa.shared::cluster.u32 a, %4, %5;\nld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [a];\n}"
                                 : "=f"(v[j].x), "=f"(v[j].y), "=f"(v[j].z), "=f"(v[j].w)
                                 : "r"(at + j % G::PLANES * (NB * G::LD * 4)), "r"(j / G::PLANES));
#pragma unroll
            for (int j = 0; j < PARTS; j += PARTS > 4 ? PARTS / 4 : 1) {
                float4 s = v[j];
#pragma unroll
                for (int i = 1; i < PARTS / 4; i++) s.x += v[j + i].x, s.y += v[j + i].y, s.z += v[j + i].z, s.w += v[j + i].w;
                if (j == 0) total = s;
                else total.x += s.x, total.y += s.y, total.z += s.z, total.w += s.w;
            }
            float *y = out + (row0 + r) * ldy + out0 + o;
            if (wide_store && out0 + o + 4 <= O) *(float4 *)y = total;
            else {
                if (out0 + o < O) y[0] = total.x;
                if (out0 + o + 1 < O) y[1] = total.y;
                if (out0 + o + 2 < O) y[2] = total.z;
                if (out0 + o + 3 < O) y[3] = total.w;
            }
        }
    }
    if (CLUSTER > 1) asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory"); // nobody reads these sums any more
#endif
}

// Rows of tiles of `words` 32-bit words, KT a row, of which a box takes `rows` by SK.
static CUtensorMap tile_map(const void *data, uint32_t words, uint32_t KT, uint32_t n, uint32_t SK, uint32_t rows) {
    static const auto encode = [] {
        void *f = NULL;
        cudaDriverEntryPointQueryResult found;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found);
        return (decltype(&cuTensorMapEncodeTiled))f;
    }();
    CUtensorMap map = {};
    const cuuint64_t sizes[3] = {words, KT, n}, strides[2] = {words * 4, (cuuint64_t)words * 4 * KT};
    const cuuint32_t box[3] = {words, SK, rows}, steps[3] = {1, 1, 1};
    encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, (void *)data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return map;
}

template <class T, int MW, int NB, int SK, int STAGES, int CLUSTER, int BLOCKS>
static void launch_wide(const linear_part &one, const linear_part &two, uint32_t KT, uint32_t n_rows, void *stream) {
    const uint32_t row_blocks = (n_rows + NB - 1) / NB, tiles = (one.tiles + MW * 4 - 1) / (MW * 4) + (two.tiles + MW * 4 - 1) / (MW * 4);
    const auto with_maps = [&](const linear_part &p) {
        return wide_part{tile_map(p.w, 128, KT, p.tiles, SK, MW * 4), tile_map(p.x, 64, KT, (n_rows + 7) / 8, SK, NB / 8), p.y, p.ldy, p.O, p.tiles};
    };
    const wide_part a = with_maps(one), b = two.tiles ? with_maps(two) : wide_part{};
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attr[2];
    config.gridDim = dim3(tiles * row_blocks * CLUSTER);
    config.blockDim = dim3(wide<MW, NB, SK, STAGES, CLUSTER>::THREADS);
    config.dynamicSmemBytes = wide<MW, NB, SK, STAGES, CLUSTER>::BYTES;
    config.stream = (cudaStream_t)stream;
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    attr[1].id = cudaLaunchAttributeClusterDimension;
    attr[1].val.clusterDim = {CLUSTER, 1, 1};
    config.attrs = attr;
    config.numAttrs = 2;
    const auto kernel = wide_kernel<T, MW, NB, SK, STAGES, CLUSTER, BLOCKS>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)config.dynamicSmemBytes);
    if (CLUSTER > 8) cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cudaLaunchKernelEx(&config, kernel, a, b, KT, n_rows, row_blocks);
}
// Blocks by the number there would be of them (measured on an H200): whole sums where the products fill the device so, else a
// cluster for each.
template <class T> static void linear_wide(const linear_part &one, const linear_part &two, uint32_t KT, uint32_t n_rows, void *stream) {
    const uint32_t singles = (one.tiles + 3) / 4 + (two.tiles + 3) / 4, pairs = (one.tiles + 7) / 8 + (two.tiles + 7) / 8, rows64 = (n_rows + 63) / 64;
#define WIDE(MW, NB, SK, STAGES, CLUSTER, BLOCKS) launch_wide<T, MW, NB, SK, STAGES, CLUSTER, BLOCKS>(one, two, KT, n_rows, stream)
    if (n_rows <= 32) {
        if (singles <= 8) WIDE(1, 32, 8, 2, 16, 2);
        else if (pairs >= 400) WIDE(2, 32, 8, 5, 1, 1);
        else if (singles >= 100) WIDE(1, 32, 8, 5, 1, 2);
        else WIDE(1, 32, 8, 3, 4, 4);
    } else if (singles * rows64 <= 24) WIDE(1, 64, 8, 2, 16, 2);
    else if (pairs * rows64 >= 80) WIDE(2, 64, 8, 4, 1, 1);
    else if (singles * rows64 >= 100) WIDE(1, 64, 8, 4, 1, 2);
    else if (n_rows > 64) WIDE(1, 128, 4, 4, 4, 2);
    else if (singles >= 50) WIDE(1, 64, 4, 4, 4, 4);
    else WIDE(1, 64, 8, 3, 4, 3);
#undef WIDE
}

// fp32: one warp an output and row; lanes take every 32nd input, then a butterfly.
__global__ void linear_f32_kernel(const float *w, const float *x, uint32_t K, uint32_t O, uint32_t n_rows, float *y, size_t ldy,
                                  size_t split_stride) {
    let_next_start();
    wait_for_inputs();
    const uint32_t o = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, r = blockIdx.z;
    const uint32_t k0 = (uint32_t)((uint64_t)K * blockIdx.y / gridDim.y), k1 = (uint32_t)((uint64_t)K * (blockIdx.y + 1) / gridDim.y);
    if (o >= O) return;
    float sum = 0;
    for (uint32_t k = k0 + lane; k < k1; k += 32) sum += w[(size_t)o * K + k] * x[(size_t)r * K + k];
    sum = warp_sum(sum);
    if (lane == 0) y[blockIdx.y * split_stride + r * ldy + o] = sum;
}

template <class T> static void linear_16(const linear_part &one, const linear_part &two, uint32_t KT, uint32_t splits, uint32_t n_rows, void *stream) {
#define LINEAR_CASE(WARPS, MT, NT, U)                                                                                       \
    launch(linear_kernel<T, WARPS, MT, NT, U>,                                                                              \
           dim3((one.tiles + MT - 1) / MT + (two.tiles + MT - 1) / MT, splits, (n_rows + 8 * NT - 1) / (8 * NT)),             \
           dim3(WARPS * 32), 0, stream, one, two, KT, n_rows)
#define LINEAR_ROWS(WARPS)                                                                                                  \
    do {                                                                                                                    \
        if (n_rows <= 8) LINEAR_CASE(WARPS, 1, 1, 8);                                                                         \
        else if (n_rows <= 16) LINEAR_CASE(WARPS, 2, 2, 4);                                                                   \
        else LINEAR_CASE(WARPS, 2, 4, 4);                                                                                    \
    } while (0)
    if (splits == 1) LINEAR_ROWS(16);
    else LINEAR_ROWS(4);
}

static void linear_parts(const struct cuda_matrix *w, const linear_part &one, const linear_part &two, uint32_t n_rows, void *stream) {
    const uint32_t KT = cuda_pad16(w->cols) / 16, splits = cuda_linear_splits(w, n_rows);
    if (wide_rows(w->dtype, n_rows)) {
        if (w->dtype == CUDA_F16) linear_wide<__half>(one, two, KT, n_rows, stream);
        else linear_wide<__nv_bfloat16>(one, two, KT, n_rows, stream);
        return;
    }
    if (w->dtype == CUDA_F16) linear_16<__half>(one, two, KT, splits, n_rows, stream);
    else linear_16<__nv_bfloat16>(one, two, KT, splits, n_rows, stream);
}

static linear_part part_of(const struct cuda_matrix *w, const void *x, float *y, size_t ldy, size_t split_stride) {
    return linear_part{(const uint4 *)w->data, (const uint32_t *)x, y, ldy, split_stride, w->rows, cuda_pad16(w->rows) / 16};
}

void k_linear(const struct cuda_matrix *w, const void *x, uint32_t n_rows, float *y, size_t ldy, size_t split_stride, void *stream) {
    if (w->dtype == CUDA_F32)
        launch(linear_f32_kernel, dim3((w->rows + 7) / 8, cuda_linear_splits(w, n_rows), n_rows), dim3(256), 0, stream, (const float *)w->data,
               (const float *)x, cuda_pad16(w->cols), w->rows, n_rows, y, ldy, split_stride);
    else linear_parts(w, part_of(w, x, y, ldy, split_stride), linear_part{}, n_rows, stream);
}

void k_linear_pair(const struct cuda_matrix *w1, const void *x1, float *y1, size_t ldy1, size_t split_stride1, const struct cuda_matrix *w2,
                   const void *x2, float *y2, size_t ldy2, size_t split_stride2, uint32_t n_rows, void *stream) {
    if (w1->dtype == CUDA_F32) {
        k_linear(w1, x1, n_rows, y1, ldy1, split_stride1, stream);
        k_linear(w2, x2, n_rows, y2, ldy2, split_stride2, stream);
    } else linear_parts(w1, part_of(w1, x1, y1, ldy1, split_stride1), part_of(w2, x2, y2, ldy2, split_stride2), n_rows, stream);
}
