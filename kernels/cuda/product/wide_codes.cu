// wide_codes.cu - products of more than 8 rows with weights of 8 and 4 bits on Hopper, where many warps are needed to
// turn codes into numbers: as wide.cu, but KG groups of warpgroups of a block have the same outputs, each its own
// slices of k, its own ring and its own sums.
#include "kernels/cuda/bulk.cuh"
#include "wide.cuh"

// A block: 64 MW outputs and NB rows. A cluster has all of k: CLUSTER blocks of KG groups of MW warpgroups, each group
// with SL of the 16 slices, through a ring of STAGES stages of SK tiles. Groups that have the slices of a quarter put
// them together one after the other, as the order of sums wants it (linear.cu).
template <int BITS, int MW_, int NB, int SK_, int STAGES_, int CLUSTER, int KG> struct coded {
    enum {
        MW = MW_,
        WARPS = MW * 4, // of a group
        SK = SK_,
        STAGES = STAGES_,
        HALF = SK / 2,
        W_STAGE = WARPS * SK * BITS * 32,
        X_STAGE = NB / 8 * SK * 256,
        STAGE = W_STAGE + X_STAGE,
        RING = STAGE * STAGES,
        SL = SLICES / (CLUSTER * KG),
        CHAIN = CLUSTER * KG / 4, // groups with slices of one quarter
        QUARTERS = 4 / CLUSTER,   // whose sums a block leaves
        LD = MW * 64 + 4,
        SUMS = NB * LD * 4,      // of a quarter
        LINK = NB * MW * 64 * 4, // the same on the way to the next group
        LEFT = QUARTERS * (SUMS + (CHAIN > 1 ? LINK : 0)),
        BODY = RING * KG > LEFT ? RING *KG : LEFT,
        THREADS = KG * WARPS * 32
    };
    static_assert(SL * CLUSTER * KG == SLICES && CHAIN * 4 == CLUSTER * KG && SL <= 4 && SK % 2 == 0, "");
};
struct coded_part {
    CUtensorMap w, x;
    const uint32_t *scales;
    uint32_t O, tiles;
};
struct coded_order {
    uint32_t KT, n_rows, row_blocks;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// One thread.
template <class G, int KG>
__device__ __forceinline__ void coded_barriers(uint64_t *full, uint64_t *empty, uint64_t *scales_there) {
    for (int i = 0; i < G::STAGES * KG; i++) barrier_init(full + i, 1), barrier_init(empty + i, G::WARPS);
    barrier_init(scales_there, 1);
    barriers_there();
}
// Where the stages of a group's slices begin, one after the other.
struct coded_walk {
    uint32_t k, slice, end;
    __device__ __forceinline__ coded_walk(uint32_t KT, uint32_t first, uint32_t n) {
        k = slice_at(KT, first), slice = first, end = first + n, skip(KT);
    }
    __device__ __forceinline__ bool more() const { return slice < end; }
    __device__ __forceinline__ void skip(uint32_t KT) {
        while (more() && k >= slice_at(KT, slice + 1)) slice++;
    }
    __device__ __forceinline__ void next(uint32_t KT, uint32_t SK) {
        k = min(k + SK, slice_at(KT, slice + 1)), skip(KT);
    }
};
// A group's ring. Its first lane feeds it: a stage anew as soon as all of its warps have read it.
template <class G> struct coded_ring {
    unsigned char *at;
    uint64_t *full, *empty;
    const coded_part *p;
    uint64_t once, often;
    uint32_t KT, tile0, row_tile0;
    bool feeds;

    __device__ __forceinline__ void make_policies() {
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(once));
        asm volatile("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(often));
    }
    __device__ __forceinline__ void ask_weights(uint32_t s, uint32_t k) const {
        barrier_expect(full + s, G::STAGE);
        copy_box(at + s * G::STAGE, &p->w, k, tile0, full + s, once);
    }
    __device__ __forceinline__ void ask_rows(uint32_t s, uint32_t k) const {
        copy_box(at + s * G::STAGE + G::W_STAGE, &p->x, k, row_tile0, full + s, often);
    }
    // The stages that fit at first. Returns where the next begins.
    __device__ __forceinline__ coded_walk begin(coded_walk walk, bool weights) const {
        if (feeds)
            for (uint32_t s = 0; s < G::STAGES && walk.more(); s++, walk.next(KT, G::SK))
                weights ? ask_weights(s, walk.k) : ask_rows(s, walk.k);
        __syncwarp();
        return walk;
    }
    // This warp's products have read stage s, for the phase-th time.
    __device__ __forceinline__ void give_back(uint32_t s, uint32_t phase, coded_walk &walk) const {
        if (threadIdx.x % 32 == 0) barrier_arrive(empty + s);
        if (feeds && walk.more())
            barrier_wait(empty + s, phase), ask_weights(s, walk.k), ask_rows(s, walk.k), walk.next(KT, G::SK);
        __syncwarp();
    }
};

// Operands A of tiles [FROM, FROM + HALF) of the stage that begins with tile k; past the slice, which has n more:
// nothing. codes, words: the lane's codes of the stage, and the scale words of its row of the block. A stage may end
// past k: there are no scales for such tiles, so the last ones are read.
template <class G, int FROM, class T, int BITS>
__device__ __forceinline__ void coded_numbers(uint4 (&a)[G::HALF], const weights<BITS> &w, uint32_t codes,
                                              uint32_t words, uint32_t k, uint32_t n, T) {
    const auto scales_at = [&](int j) { return words + min((k + FROM + j) >> w.per, w.groups - 1) * 64; };
    const uint32_t at = scales_at(0);
    const bool one_group = at == scales_at(G::HALF - 1);
    uint32_t s[2];
    shared_scales<BITS>(s, at);
    const auto as = [&](const auto &format) {
        if (one_group) {
#pragma unroll
            for (int j = 0; j < G::HALF; j++)
                a[j] = operand_of(format, shared_codes<BITS>(codes + (FROM + j) * (BITS * 32)), s, T());
        } else
#pragma unroll
            for (int j = 0; j < G::HALF; j++) {
                shared_scales<BITS>(s, scales_at(j));
                a[j] = operand_of(format, shared_codes<BITS>(codes + (FROM + j) * (BITS * 32)), s, T());
            }
    };
    if constexpr (BITS == 8) {
        if (w.keep)
            as(is_int8());
        else
            as(is_fp8());
    } else
        as(w);
    if (n < FROM + G::HALF)
#pragma unroll
        for (int j = 0; j < G::HALF; j++)
            if (FROM + j >= n) a[j] = make_uint4(0, 0, 0, 0);
    hold<0, G::HALF>(a); // in registers before the fence
}

// A group's slices from `first` on: half of a stage's codes become numbers while the tensor cores have the other
// half. Sums to sum; apart: but the last slice's, which stay in acc. words: of the warp's row of tiles.
template <class G, class T, int N, int BITS>
__device__ __forceinline__ void coded_slices(float (&acc)[N], float (&sum)[N], const weights<BITS> &w,
                                             const coded_ring<G> &ring, coded_walk walk, uint32_t words, uint32_t first,
                                             bool apart) {
    enum { SK = G::SK, HALF = G::HALF };
    const uint32_t KT = ring.KT, lane = threadIdx.x % 32,
                   codes0 = shared_address(ring.at) + threadIdx.x / 32 % G::WARPS * SK * (BITS * 32) + lane * BITS;
    // wgmma's description of x in shared memory: no swizzle, 128 bytes to the next 8 of k, a stage's tiles to the next
    // 8 rows
    const uint64_t b0 =
        ((uint64_t)(128 >> 4) << 16) | ((uint64_t)(SK * 256 >> 4) << 32) | address_in_block(ring.at + G::W_STAGE) >> 4;
    uint4 a[2][HALF] = {};
    uint32_t s = 0, phase = 0, read = 0, read_phase = 0; // the next stage; the next to be given back
    const auto give_back = [&] {
        ring.give_back(read, read_phase, walk);
        if (++read == G::STAGES) read = 0, read_phase ^= 1;
    };
#pragma unroll 1
    for (uint32_t slice = first; slice < first + G::SL; slice++) {
        const uint32_t k0 = slice_at(KT, slice), k1 = slice_at(KT, slice + 1);
#pragma unroll 1
        for (uint32_t k = k0; k < k1; k += SK) {
            const uint32_t codes = codes0 + s * G::STAGE;
            const uint64_t b = b0 + s * (G::STAGE >> 4);
            barrier_wait(ring.full + s, phase);
            wgmma_wait<1>();
            hold<0, HALF>(a[0]);
            coded_numbers<G, 0>(a[0], w, codes, words, k, k1 - k, T());
            wgmma_begin();
#pragma unroll
            for (int j = 0; j < HALF; j++) wgmma<false>(acc, a[0][j], b + j * (256 >> 4), j || k != k0, T());
            wgmma_end();
            wgmma_wait<1>();
            hold<0, HALF>(a[1]);
            if (k != k0) give_back(); // the stage before
            coded_numbers<G, HALF>(a[1], w, codes, words, k, k1 - k, T());
            wgmma_begin();
#pragma unroll
            for (int j = 0; j < HALF; j++) wgmma<false>(acc, a[1][j], b + (HALF + j) * (256 >> 4), true, T());
            wgmma_end();
            if (++s == G::STAGES) s = 0, phase ^= 1;
        }
        wgmma_wait<0>();
        hold<0, HALF>(a[0]), hold<0, HALF>(a[1]);
        if (k0 != k1) give_back();
#pragma unroll
        for (int i = 0; i < N; i++) {
            asm volatile("" : "+f"(acc[i])::"memory"); // read after the wait
            if (k0 == k1) acc[i] = -0.0f;              // -0 + s = s to the bit
            if (!apart || slice + 1 < first + G::SL) sum[i] += acc[i];
        }
    }
}

// The sums of a quarter from one of its groups to the next; the last has them all. at: LINK bytes.
template <class G, int N>
__device__ __forceinline__ void coded_link(float (&acc)[N], float (&sum)[N], float *at, uint32_t place) {
    enum { EACH = G::WARPS * 32 };
    float4 *const mine = (float4 *)at + threadIdx.x % EACH;
#pragma unroll
    for (int j = 0; j + 1 < G::CHAIN; j++) {
        if (place == j)
#pragma unroll
            for (int i = 0; i < N; i += 4) mine[i / 4 * EACH] = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
        delay(16);
        asm volatile("bar.sync 1, %0;" ::"n"((int)G::THREADS) : "memory");
        if (place == j + 1)
#pragma unroll
            for (int i = 0; i < N; i += 4) {
                const float4 v = mine[i / 4 * EACH];
                sum[i] = v.x + sum[i] + acc[i], sum[i + 1] = v.y + sum[i + 1] + acc[i + 1];
                sum[i + 2] = v.z + sum[i + 2] + acc[i + 2], sum[i + 3] = v.w + sum[i + 3] + acc[i + 3];
            }
    }
}
// A warp's sums of a quarter, where the cluster reads them.
template <class G, int N> __device__ __forceinline__ void coded_leave(const float (&sum)[N], float *sums) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *const to = sums + (lane % 4 * 2) * G::LD + warp % G::WARPS * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < N; i++) to[(i / 4 * 8 + i % 2) * G::LD + i / 2 % 2 * 8] = sum[i];
}
// The four quarters of four outputs of a row. at: where this block has the first.
template <class G, int CLUSTER> __device__ __forceinline__ void coded_total(float (&total)[4], uint32_t at) {
    float4 v[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (CLUSTER == 1)
            asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];"
                         : "=f"(v[j].x), "=f"(v[j].y), "=f"(v[j].z), "=f"(v[j].w)
                         : "r"(at + j * G::SUMS));
        else
            asm volatile("{\n.reg .u32 a;\nmapa.shared::cluster.u32 a, %4, %5;\nld.shared::cluster.v4.f32 "
                         "{%0,%1,%2,%3}, [a];\n}"
                         : "=f"(v[j].x), "=f"(v[j].y), "=f"(v[j].z), "=f"(v[j].w)
                         : "r"(at + j % G::QUARTERS * G::SUMS), "r"(j / G::QUARTERS));
    total[0] = v[0].x + v[1].x + v[2].x + v[3].x, total[1] = v[0].y + v[1].y + v[2].y + v[3].y;
    total[2] = v[0].z + v[1].z + v[2].z + v[3].z, total[3] = v[0].w + v[1].w + v[2].w + v[3].w;
}
#endif

template <class T, int BITS, int MW, int NB, int SK, int STAGES, int CLUSTER, int KG, int BLOCKS, class Out>
__global__ void __launch_bounds__(KG *MW * 128, BLOCKS)
    coded_kernel(const __grid_constant__ coded_part one, const __grid_constant__ coded_part two,
                 const __grid_constant__ weights<BITS> w, const coded_order order, const __grid_constant__ Out outs) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using G = coded<BITS, MW, NB, SK, STAGES, CLUSTER, KG>;
    using F = typename out_of<Out>::type;
    enum {
        // Of its cluster's rows a block finishes eights: rank, rank + CLUSTER, ...; a group GROUP of them at a
        // time, a thread one row of each.
        EIGHTS = NB / 8 / CLUSTER,
        GROUP = EIGHTS <= KG      ? 1
                : EIGHTS / KG < 4 ? EIGHTS / KG
                                  : 4
    };
    // What the outputs need beside the sums is there before them, where registers hold it.
    constexpr bool held = EIGHTS <= GROUP * KG && sizeof(typename F::template row<T, 4>) <= 16;
    extern __shared__ __align__(1024) unsigned char shared[];
    __shared__ uint64_t full[STAGES * KG], empty[STAGES * KG], scales_there;
    __shared__ float scales[NB]; // of the rows' norms
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / G::WARPS;
    const uint32_t rank = blockIdx.x % CLUSTER, row0 = blockIdx.x / CLUSTER % order.row_blocks * NB;
    uint32_t tile0 = blockIdx.x / CLUSTER / order.row_blocks * G::WARPS;
    const uint32_t tiles_one = (one.tiles + G::WARPS - 1) / G::WARPS * G::WARPS;
    const bool second = tile0 >= tiles_one;
    const coded_part *p = second ? &two : &one;
    const auto &out = functor_of(outs, second);
    if (second) tile0 -= tiles_one;
    const uint32_t o_in = threadIdx.x % (MW * 16) * 4, o = tile0 * 16 + o_in, O = p->O;
    const auto row_of = [&](uint32_t j) { return (j * CLUSTER + rank) * 8 + threadIdx.x / (MW * 16) % 8; };
    const auto is_mine = [&](uint32_t j) { return j < EIGHTS && row0 + row_of(j) < order.n_rows && o < O; };
    if (threadIdx.x == 0) coded_barriers<G, KG>(full, empty, &scales_there);
    __syncthreads(); // the barriers are there
    let_next_start();
    typename F::template column<T, 4> column;
    typename F::template row<T, 4> rows[GROUP];
    const auto load_group = [&](uint32_t first) {
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            out.template early<T>(rows[j], row0 + row_of(first + j), o, is_mine(first + j));
            out.template late<T>(rows[j], row0 + row_of(first + j), o, is_mine(first + j));
        }
    };
    {
        coded_ring<G> ring = {shared + group * G::RING,
                              full + group * STAGES,
                              empty + group * STAGES,
                              p,
                              0,
                              0,
                              order.KT,
                              tile0,
                              row0 / 8,
                              threadIdx.x % (MW * 128) == 0};
        ring.make_policies();
        const uint32_t part = rank * KG + group, place = part % G::CHAIN, quarter = group / G::CHAIN;
        if (threadIdx.x == 0) { // all scales of the block's outputs
            const uint32_t bytes = min((uint32_t)G::WARPS, p->tiles - tile0) * w.groups * 64;
            barrier_expect(&scales_there, bytes);
            bulk_copy(shared + G::BODY, p->scales + (size_t)tile0 * w.groups * 16, bytes, &scales_there);
        }
        const coded_walk start(order.KT, part * G::SL, G::SL);
        ring.begin(start, true);
        if (held) out.template load<T>(column, o, o < O);
        wait_for_inputs();
        const coded_walk then = ring.begin(start, false);
        if (held) load_group(group * GROUP);
        if (out.norm.squares) wide_scales<T, MW * KG, NB, CLUSTER>(scales, out.norm, warp, rank, row0, order.n_rows);
        float acc[NB / 2], sum[NB / 2];
#pragma unroll
        for (int i = 0; i < NB / 2; i++) acc[i] = 0, sum[i] = -0.0f;
        barrier_wait(&scales_there, 0);
        coded_slices<G, T>(acc, sum, w, ring, then,
                           shared_address(shared + G::BODY) + (warp % G::WARPS * w.groups * 16 + lane / 4) * 4,
                           part * G::SL, place != 0);
        delay(16);
        asm volatile("bar.sync 1, %0;" ::"n"((int)G::THREADS) : "memory"); // nobody reads the rings any more
        coded_link<G>(acc, sum, (float *)(shared + G::QUARTERS * G::SUMS + quarter * G::LINK), place);
        if (place == G::CHAIN - 1) coded_leave<G>(sum, (float *)(shared + quarter * G::SUMS));
    }
    if (!held) out.template load<T>(column, o, o < O), load_group(group * GROUP);
    wide_meet<CLUSTER>(); // all sums are there
#pragma unroll 1          // once a block: its instructions come from afar
    for (int first = group * GROUP; first < EIGHTS; first += GROUP * KG) {
        float total[GROUP][4] = {};
        if (first != group * GROUP) load_group(first);
#pragma unroll
        for (int g = 0; g < GROUP; g++)
            if (is_mine(first + g))
                coded_total<G, CLUSTER>(total[g], shared_address(shared) + (row_of(first + g) * G::LD + o_in) * 4);
#pragma unroll
        for (int g = 0; g < GROUP; g++)
            out.template finish<T>(column, rows[g], row0 + row_of(first + g), o, is_mine(first + g), total[g],
                                   out.norm.squares ? scales[row_of(first + g) % NB] : 1.0f);
    }
    if (CLUSTER > 1) asm volatile("barrier.cluster.arrive;\nbarrier.cluster.wait;" ::: "memory"); // sums are read
#endif
}

template <class T, int BITS, int MW, int NB, int SK, int STAGES, int CLUSTER, int KG, int BLOCKS, class Out>
static void launch_coded(const wide_job<Out> &job) {
    using G = coded<BITS, MW, NB, SK, STAGES, CLUSTER, KG>;
    const auto part_of = [&](const wide_operands &p) {
        if (!p.w) return coded_part{};
        const uint32_t tiles = cuda_pad16(p.w->rows) / 16;
        return coded_part{tile_map(p.w->data, BITS * 8, job.KT, tiles, SK, G::WARPS),
                          tile_map(p.x, 64, job.KT, (job.n_rows + 7) / 8, SK, NB / 8), p.w->scales, p.w->rows, tiles};
    };
    const coded_part one = part_of(job.one), two = part_of(job.two);
    const weights<BITS> w = weights_of<BITS>(job.one.w);
    const coded_order order = {job.KT, job.n_rows, (job.n_rows + NB - 1) / NB};
    const uint32_t blocks =
        ((one.tiles + G::WARPS - 1) / G::WARPS + (two.tiles + G::WARPS - 1) / G::WARPS) * order.row_blocks * CLUSTER;
    const auto kernel = coded_kernel<T, BITS, MW, NB, SK, STAGES, CLUSTER, KG, BLOCKS, Out>;
    const size_t bytes = G::BODY + G::WARPS * w.groups * 64;
    allow_shared(kernel, bytes);
    launch_clusters(CLUSTER, kernel, dim3(blocks), dim3(G::THREADS), bytes, job.stream, one, two, w, order, job.out);
}
template <class T, int BITS, class Out>
static void choose_coded(const wide_job<Out> &job, enum dispatch_kernel kernel) {
    switch (kernel) {
#define CODED(...)                                                                                                     \
    case DISPATCH_CODED_ID(__VA_ARGS__): return launch_coded<T, BITS, __VA_ARGS__>(job);
        DISPATCH_CODED(CODED)
#undef CODED
    default: assert(false); // not of this file
    }
}
template <class Out> void run_coded(const wide_job<Out> &job, enum dispatch_kernel kernel) {
    const bool half = job.one.w->dtype == CUDA_F16, fours = job.one.w->format == CUDA_INT4;
    if (half)
        fours ? choose_coded<__half, 4>(job, kernel) : choose_coded<__half, 8>(job, kernel);
    else
        fours ? choose_coded<__nv_bfloat16, 4>(job, kernel) : choose_coded<__nv_bfloat16, 8>(job, kernel);
}
template void run_coded(const wide_job<out_either> &job, enum dispatch_kernel kernel);
template void run_coded(const wide_job<out_ffn> &job, enum dispatch_kernel kernel);
template void run_coded(const wide_job<out_residual> &job, enum dispatch_kernel kernel);
