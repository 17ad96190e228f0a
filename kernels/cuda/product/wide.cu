// wide.cu - products of more than 8 rows in 16 bit on Hopper: wgmma with the weights from registers and the activations
// from shared memory, both brought there by the tensor copy engine. A block finishes its outputs (epilogue.cuh).
#include "wide.cuh"

// A block: MW warpgroups of 64 outputs each and NB rows, and one CLUSTER-th of the 16 slices; the blocks of a
// cluster put their sums together through distributed shared memory. One more warp feeds a ring of STAGES stages of SK
// tiles of k: the first weights are on their way before the inputs are ready.
template <int BITS, int MW, int NB, int SK, int STAGES, int CLUSTER> struct wide {
    using weights_of_stage = stage_weights<BITS, MW * 4, SK, false>;
    enum {
        W_STAGE = weights_of_stage::BYTES,
        X_STAGE = NB / 8 * SK * 256,
        STAGE = W_STAGE + X_STAGE,
        RING = STAGE * STAGES,
        LD = MW * 64 + 4,
        PLANES = CLUSTER == 8 || CLUSTER == 2
                     ? 2
                     : 1, // sums a block leaves: two slices or quarters, or one slice, quarter or all
        SUMS = PLANES * NB * LD * 4,
        BYTES = RING > SUMS ? RING : SUMS,
        THREADS = MW * 128 + 32
    };
};
// Of codes: the stages that become numbers before the inputs are ready, as many as a thread has registers for beside
// its sums. Each of the four schedulers has a quarter of a multiprocessor's registers.
template <int BITS, int MW, int NB, int SK, int STAGES, int CLUSTER, int BLOCKS> struct wide_early {
    enum {
        WARPS = ((MW * 4 + 1) * BLOCKS + 3) / 4, // of a scheduler
        SUMS = CLUSTER == 4 || CLUSTER == 16 ? 2 : 3,
        ROOM = 512 / WARPS - NB / 2 * SUMS - 40,
        N = ROOM / (SK * 4),
        EARLY = BITS == 16   ? 0
                : N < 1      ? 1
                : N > STAGES ? STAGES
                             : N
    };
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// A block's ring of stages, and whose slices of k go through it. coded: a barrier for the weights alone of each of the
// first EARLY stages.
struct wide_ring {
    unsigned char *at;
    uint64_t *full, *empty, *coded;
    uint32_t KT, rank;
};

// One thread.
template <int STAGES, int EARLY, int WARPS> __device__ __forceinline__ void wide_barriers(const wide_ring &ring) {
    for (int i = 0; i < STAGES; i++) barrier_init(ring.full + i, 1), barrier_init(ring.empty + i, WARPS);
    for (int i = 0; i < EARLY; i++) barrier_init(ring.coded + i, 1);
    barriers_there();
}
// One thread: the weights and the rows of the block's slices through the ring.
template <class G, int EARLY, int BITS, int SK, int STAGES, int SL>
__device__ __forceinline__ void wide_feed(const wide_ring &ring, const wide_part &p, const weights<BITS> &w,
                                          uint32_t tile0, uint32_t row0) {
    using S = typename G::weights_of_stage;
    const uint32_t KT = ring.KT, rank = ring.rank;
    uint64_t *const full = ring.full, *const empty = ring.empty, *const coded = ring.coded;
    uint64_t once, often;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(once));
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(often));
    for (int pass = 0; pass < 2; pass++) { // first the weights that fit, then the rest
        uint32_t it = 0;
        for (uint32_t slice = rank * SL; slice < rank * SL + SL; slice++) {
            const uint32_t end = slice_at(KT, slice + 1);
            for (uint32_t k = slice_at(KT, slice); k < end; k += SK, it++) {
                const uint32_t s = it % STAGES;
                unsigned char *at = ring.at + s * G::STAGE;
                if (pass == (it >= STAGES)) {
                    if (pass) barrier_wait(empty + s, (it / STAGES + 1) & 1);
                    const bool apart = it < EARLY;
                    uint64_t *const bar = apart ? coded + it : full + s;
                    barrier_expect(bar, S::coming(w, apart ? (uint32_t)G::W_STAGE : (uint32_t)G::STAGE));
                    copy_box(at, &p.w, k, tile0, bar, once);
                    if (BITS < 16) copy_box(at + S::TILES, &p.scales, k >> w.per, tile0, bar, once);
                }
                if (pass && it < EARLY) barrier_expect(full + s, G::X_STAGE);
                if (pass) copy_box(at + G::W_STAGE, &p.x, k, row0 / 8, full + s, often);
            }
        }
        if (!pass) wait_for_inputs(); // x is complete
    }
}

// Tiles [FROM, TO) of the weights of the stage that begins with tile k to registers; past the slice, which has n
// more: nothing.
template <class S, int FROM, int TO, class T, int BITS, int SK>
__device__ __forceinline__ void wide_weights(uint4 (&a)[SK], const weights<BITS> &w, const unsigned char *at,
                                             uint32_t warp, uint32_t k, uint32_t n, T) {
    const auto as = [&](const auto &format) {
        S::template operands_of<FROM, TO>(a, format, w, shared_address(at), warp, k, T());
    };
    if constexpr (BITS != 8)
        as(w);
    else if (w.keep)
        as(is_int8());
    else
        as(is_fp8());
    if (BITS == 16 || n < TO)
#pragma unroll
        for (int j = FROM; j < TO; j++)
            if (j >= n) a[j] = make_uint4(0, 0, 0, 0);
    hold<FROM, TO>(a); // in registers before the fence
}

// wgmma's description of x in shared memory: no swizzle, 128 bytes to the next 8 of k, a stage's tiles to the next 8
// rows.
__device__ __forceinline__ uint64_t wide_form(uint32_t SK) {
    return ((uint64_t)(128 >> 4) << 16) | ((uint64_t)(SK * 256 >> 4) << 32);
}

// A slice's sums, if it has `some` k, to those of the slices before, in linear.cu's order.
template <int NB, int CLUSTER, int MORE>
__device__ __forceinline__ void wide_add(float (&acc)[NB / 2], float (&sum)[NB / 2], float (&more)[MORE],
                                         uint32_t slice, bool some) {
#pragma unroll
    for (int i = 0; i < NB / 2; i++) {
        asm volatile("" : "+f"(acc[i])::"memory"); // read after the wait
        if (CLUSTER == 8 && slice % 2)
            more[i] = some ? acc[i] : 0;
        else if (CLUSTER == 2 && slice / 4 % 2)
            more[i] += some ? acc[i] : -0.0f;
        else if (some)
            sum[i] += acc[i];
        if (CLUSTER == 1 && slice % 4 == 3) more[i] += sum[i], sum[i] = -0.0f;
    }
}

// The end of the slice that has tile k, from slice on.
__device__ __forceinline__ uint32_t wide_end(uint32_t KT, uint32_t k, uint32_t slice) {
    while (slice_at(KT, slice + 1) <= k) slice++;
    return slice_at(KT, slice + 1);
}
// The numbers of a block's first EARLY stages of codes.
template <class G, int SK, int STAGES, int SL, class T, int BITS, int EARLY>
__device__ __forceinline__ void wide_begin(uint4 (&a)[EARLY][SK], const weights<BITS> &w, const wide_ring &ring, T) {
    const uint32_t KT = ring.KT, rank = ring.rank;
    const uint32_t last = slice_at(KT, rank * SL + SL);
    uint32_t k = slice_at(KT, rank * SL);
#pragma unroll
    for (int e = 0; e < EARLY; e++) {
        if (k >= last) return;
        const uint32_t end = wide_end(KT, k, rank * SL);
        barrier_wait(ring.coded + e, 0);
        wide_weights<typename G::weights_of_stage, 0, SK>(a[e], w, ring.at + e * G::STAGE, threadIdx.x / 32, k, end - k,
                                                          T());
        k = min(k + SK, end);
    }
}
// Tiles [FROM, TO) of a stage; first: of a slice.
template <int FROM, int TO, class T, int N, int SK>
__device__ __forceinline__ void wide_multiply(float (&acc)[N], const uint4 (&a)[SK], uint64_t b, bool first, T) {
    wgmma_begin();
#pragma unroll
    for (int j = FROM; j < TO; j++) wgmma<false>(acc, a[j], b + j * (256 >> 4), j || !first, T());
    wgmma_end();
}
// A block's slices of codes: the first EARLY stages, whose numbers are in a; then half of a stage's tiles become
// numbers while the tensor cores have the other half.
template <class G, int NB, int STAGES, int CLUSTER, class T, int BITS, int MORE, int EARLY, int SK>
__device__ __forceinline__ void wide_coded(float (&acc)[NB / 2], float (&sum)[NB / 2], float (&more)[MORE],
                                           uint4 (&early)[EARLY][SK], const weights<BITS> &w, const wide_ring &ring,
                                           T) {
    const uint32_t KT = ring.KT, rank = ring.rank;
    uint64_t *const full = ring.full, *const empty = ring.empty;
    const uint64_t form = wide_form(SK);
    enum { HALF = SK / 2, SL = SLICES / CLUSTER };
    using S = typename G::weights_of_stage;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, last = slice_at(KT, rank * SL + SL);
    uint32_t it = 0;
    uint4(&a)[SK] = early[EARLY - 1];
    const auto stage_of = [&](uint32_t i) { return ring.at + i % STAGES * G::STAGE; };
#pragma unroll 1
    for (uint32_t slice = rank * SL; slice < rank * SL + SL; slice++) {
        const uint32_t k0 = slice_at(KT, slice), k1 = slice_at(KT, slice + 1);
#pragma unroll 1
        for (uint32_t k = k0; k < k1; k += SK) {
            const unsigned char *at = stage_of(it);
            const uint64_t b = form | address_in_block(at + G::W_STAGE) >> 4;
            if (it < EARLY) {
                barrier_wait(full + it, 0);
#pragma unroll
                for (int e = 0; e < EARLY; e++)
                    if (it == e)
                        wide_multiply<0, SK>(acc, early[e], b, k == k0, T()), wgmma_wait<0>(), hold<0, SK>(early[e]);
                if (lane == 0 && k + SK < k1) barrier_arrive(empty + it % STAGES);
            } else {
                wide_multiply<0, HALF>(acc, a, b, k == k0, T());
                wgmma_wait<1>();
                hold<HALF, SK>(a);
                if (k != k0 && it > EARLY && lane == 0) barrier_arrive(empty + (it - 1) % STAGES);
                wide_weights<S, HALF, SK>(a, w, at, warp, k, k1 - k, T());
                wide_multiply<HALF, SK>(acc, a, b, false, T());
                wgmma_wait<1>();
                hold<0, HALF>(a);
            }
            const uint32_t next = min(k + SK, k1); // its first half
            if (++it < EARLY || next >= last) continue;
            barrier_wait(full + it % STAGES, it / STAGES & 1);
            wide_weights<S, 0, HALF>(a, w, stage_of(it), warp, next, wide_end(KT, next, slice) - next, T());
        }
        wgmma_wait<0>();
        hold<HALF, SK>(a);
        if (k0 != k1 && lane == 0) barrier_arrive(empty + (it - 1) % STAGES);
        wide_add<NB, CLUSTER>(acc, sum, more, slice, k0 != k1);
    }
}

// A block's slices of 16-bit numbers.
template <class G, int NB, int STAGES, int CLUSTER, int SK, class T, int BITS, int MORE>
__device__ __forceinline__ void wide_stored(float (&acc)[NB / 2], float (&sum)[NB / 2], float (&more)[MORE],
                                            const weights<BITS> &w, const wide_ring &ring, T) {
    enum { SL = SLICES / CLUSTER };
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, KT = ring.KT, rank = ring.rank;
    const uint64_t form = wide_form(SK);
    uint32_t it = 0;
    for (uint32_t slice = rank * SL; slice < rank * SL + SL; slice++) {
        const uint32_t k0 = slice_at(KT, slice), k1 = slice_at(KT, slice + 1);
        for (uint32_t k = k0; k < k1; k += SK, it++) {
            const uint32_t n = k1 - k, s = it % STAGES;
            const unsigned char *at = ring.at + s * G::STAGE;
            barrier_wait(ring.full + s, it / STAGES & 1);
            uint4 a[SK];
            wide_weights<typename G::weights_of_stage, 0, SK>(a, w, at, warp, k, n, T());
            const uint64_t b = form | address_in_block(at + G::W_STAGE) >> 4;
            wgmma_begin();
#pragma unroll
            for (int j = 0; j < SK; j++) wgmma<false>(acc, a[j], b + j * (256 >> 4), j || k != k0, T());
            wgmma_end();
            wgmma_wait<0>();
            if (lane == 0) barrier_arrive(ring.empty + s);
        }
        wide_add<NB, CLUSTER>(acc, sum, more, slice, k0 != k1);
    }
}

// The warp's sums to where the cluster reads them.
template <class G, int NB, int CLUSTER, int MORE>
__device__ __forceinline__ void wide_leave(float *sums, const float (&sum)[NB / 2], const float (&more)[MORE],
                                           uint32_t warp, uint32_t lane) {
    const uint32_t at = (lane % 4 * 2) * G::LD + warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < G::PLANES; j++)
#pragma unroll
        for (int i = 0; i < NB / 2; i++)
            sums[at + (j * NB + i / 4 * 8 + i % 2) * G::LD + i / 2 % 2 * 8] = CLUSTER == 1 || j ? more[i] : sum[i];
}
// Four outputs of row r, from all blocks of the cluster; 0 where they are not `mine`.
template <class G, int NB, int CLUSTER>
__device__ __forceinline__ void wide_total(float (&total)[4], const unsigned char *ring, uint32_t r, uint32_t o_in,
                                           bool mine) {
    enum { PARTS = CLUSTER * G::PLANES, EACH = PARTS > 4 ? PARTS / 4 : 1 };
    const uint32_t at = shared_address(ring) + (r * G::LD + o_in) * 4;
    float4 v[PARTS], t = make_float4(0, 0, 0, 0);
    if (mine) {
#pragma unroll
        for (int j = 0; j < PARTS; j++)
            if (CLUSTER == 1)
                v[j] = *(const float4 *)((const float *)ring + r * G::LD + o_in);
            else
                asm volatile("{\n.reg .u32 a;\nmapa.shared::cluster.u32 a, %4, "
                             "%5;\nld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [a];\n}"
                             : "=f"(v[j].x), "=f"(v[j].y), "=f"(v[j].z), "=f"(v[j].w)
                             : "r"(at + j % G::PLANES * (NB * G::LD * 4)), "r"(j / G::PLANES));
#pragma unroll
        for (int j = 0; j < PARTS; j += EACH) {
            float4 s = v[j];
#pragma unroll
            for (int i = 1; i < PARTS / 4; i++)
                s.x += v[j + i].x, s.y += v[j + i].y, s.z += v[j + i].z, s.w += v[j + i].w;
            if (j == 0)
                t = s;
            else
                t.x += s.x, t.y += s.y, t.z += s.z, t.w += s.w;
        }
    }
    total[0] = t.x, total[1] = t.y, total[2] = t.z, total[3] = t.w;
}

#endif

template <class T, int BITS, int MW, int NB, int SK, int STAGES, int CLUSTER, int BLOCKS, class Out>
__global__ void __launch_bounds__(wide<BITS, MW, NB, SK, STAGES, CLUSTER>::THREADS, BLOCKS)
    wide_kernel(const __grid_constant__ wide_part one, const __grid_constant__ wide_part two,
                const __grid_constant__ weights<BITS> w, uint32_t KT, uint32_t n_rows, uint32_t row_blocks,
                const __grid_constant__ Out outs) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using G = wide<BITS, MW, NB, SK, STAGES, CLUSTER>;
    enum {
        SL = SLICES / CLUSTER,
        // Of its cluster's rows a block finishes eights: rank, rank + CLUSTER, ...; a thread one row of each, GROUP at
        // a time.
        EIGHTS = NB / 8 > CLUSTER ? NB / 8 / CLUSTER : 1,
        GROUP = EIGHTS < 4 ? EIGHTS : 4
    };
    // What the outputs need beside the sums is there before them, where registers hold it.
    constexpr bool held = EIGHTS == GROUP && sizeof(typename out_of<Out>::type::template row<T, 4>) <= 16;
    extern __shared__ __align__(1024) unsigned char ring[];
    enum { EARLY = wide_early<BITS, MW, NB, SK, STAGES, CLUSTER, BLOCKS>::EARLY };
    __shared__ uint64_t full[STAGES], empty[STAGES], coded[EARLY + 1];
    __shared__ float scales[NB]; // of the rows' norms
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t rank = blockIdx.x % CLUSTER, row0 = blockIdx.x / CLUSTER % row_blocks * NB;
    uint32_t tile0 = blockIdx.x / CLUSTER / row_blocks * (MW * 4);
    const uint32_t tiles_one = (one.tiles + MW * 4 - 1) / (MW * 4) * (MW * 4);
    const bool second = tile0 >= tiles_one;
    const wide_part *p = second ? &two : &one;
    const auto &out = functor_of(outs, second);
    using F = typename out_of<Out>::type;
    const uint32_t O = p->O;
    if (second) tile0 -= tiles_one;
    const wide_ring stages = {ring, full, empty, coded, KT, rank};
    const uint32_t o_in = threadIdx.x % (MW * 16) * 4, o = tile0 * 16 + o_in,
                   eighth = threadIdx.x / (MW * 16); // of the outputs
    const auto row_of = [&](uint32_t j) { return (j * CLUSTER + rank) * 8 + eighth; };
    const auto is_mine = [&](uint32_t r) { return r < NB && row0 + r < n_rows && o < O; };
    if (threadIdx.x == 0) wide_barriers<STAGES, EARLY, MW * 4>(stages);
    __syncthreads(); // the barriers are there
    let_next_start();
    typename F::template column<T, 4> column;
    typename F::template row<T, 4> rows[GROUP];
    const auto load_group = [&](uint32_t first) {
#pragma unroll
        for (int j = 0; j < GROUP; j++) {
            const uint32_t r = row_of(first + j);
            out.template early<T>(rows[j], row0 + r, o, is_mine(r));
            out.template late<T>(rows[j], row0 + r, o, is_mine(r));
        }
    };
    if (warp == MW * 4) {
        if (lane == 0) wide_feed<G, EARLY, BITS, SK, STAGES, SL>(stages, *p, w, tile0, row0);
        __syncwarp();
    } else {
        if (held) out.template load<T>(column, o, o < O);
        uint4 early[EARLY ? EARLY : 1][SK];
        if constexpr (EARLY > 0) wide_begin<G, SK, STAGES, SL>(early, w, stages, T());
        wait_for_inputs();
        if (held) load_group(0);
        if (out.norm.squares) // while x is on its way
            wide_scales<T, MW, NB, CLUSTER>(scales, out.norm, warp, rank, row0, n_rows);
        float acc[NB / 2], sum[NB / 2], more[CLUSTER == 4 || CLUSTER == 16 ? 1 : NB / 2];
#pragma unroll
        for (int i = 0; i < NB / 2; i++) // -0 + s = s to the bit
            acc[i] = 0, sum[i] = more[i % (sizeof more / sizeof *more)] = -0.0f;
        if constexpr (BITS < 16)
            wide_coded<G, NB, STAGES, CLUSTER>(acc, sum, more, early, w, stages, T());
        else
            wide_stored<G, NB, STAGES, CLUSTER, SK>(acc, sum, more, w, stages, T());
        delay(16);
        asm volatile("bar.sync 1, %0;" ::"n"(MW * 128) : "memory"); // nobody reads the ring any more
        wide_leave<G, NB, CLUSTER>((float *)ring, sum, more, warp, lane);
    }
    if (!held && warp < MW * 4) out.template load<T>(column, o, o < O), load_group(0);
    wide_meet<CLUSTER>(); // all sums are there
    if (warp < MW * 4) {
#pragma unroll 1 // once a block: its instructions come from afar
        for (int first = 0; first < EIGHTS; first += GROUP) {
            float total[GROUP][4];
            if (first) load_group(first);
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                const uint32_t r = row_of(first + g);
                wide_total<G, NB, CLUSTER>(total[g], ring, r, o_in, is_mine(r));
            }
            if (CLUSTER > 1 && first + GROUP >= EIGHTS)
                asm volatile("barrier.cluster.arrive;" ::: "memory"); // these sums are read
#pragma unroll
            for (int g = 0; g < GROUP; g++) {
                const uint32_t r = row_of(first + g);
                out.template finish<T>(column, rows[g], row0 + r, o, is_mine(r), total[g],
                                       out.norm.squares ? scales[r % NB] : 1.0f);
            }
        }
    } else if (CLUSTER > 1)
        asm volatile("barrier.cluster.arrive;" ::: "memory");
    if (CLUSTER > 1) asm volatile("barrier.cluster.wait;" ::: "memory"); // nobody reads this block's sums any more
#endif
}

template <class T, int BITS, int MW, int NB, int SK, int STAGES, int CLUSTER, int BLOCKS, class Out>
static void launch_wide(const wide_job<Out> &job) {
    using G = wide<BITS, MW, NB, SK, STAGES, CLUSTER>;
    const auto part_of = [&](const wide_operands &p) {
        return wide_part_of<typename G::weights_of_stage>(p, job.KT, job.n_rows, NB / 8);
    };
    const wide_part one = part_of(job.one), two = part_of(job.two);
    const uint32_t row_blocks = (job.n_rows + NB - 1) / NB,
                   tiles = (one.tiles + MW * 4 - 1) / (MW * 4) + (two.tiles + MW * 4 - 1) / (MW * 4);
    const auto kernel = wide_kernel<T, BITS, MW, NB, SK, STAGES, CLUSTER, BLOCKS, Out>;
    allow_shared(kernel, G::BYTES);
    if (CLUSTER > 8) cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    launch_clusters(CLUSTER, kernel, dim3(tiles * row_blocks * CLUSTER), dim3(G::THREADS), G::BYTES, job.stream, one,
                    two, weights_of<BITS>(job.one.w), job.KT, job.n_rows, row_blocks, job.out);
}

static enum dispatch_ending ending_of(const out_either &) { return DISPATCH_PLAIN; }
static enum dispatch_ending ending_of(const out_residual &) { return DISPATCH_RESIDUAL; }
static enum dispatch_ending ending_of(const out_ffn &) { return DISPATCH_FFN; }

template <class T, int BITS, class Out> static void choose_wide(const wide_job<Out> &job, enum dispatch_kernel kernel) {
    constexpr bool plain = std::is_same<Out, out_either>::value, residual = std::is_same<Out, out_residual>::value;
#define WIDE(...)                                                                                                      \
    case DISPATCH_WIDE_ID(__VA_ARGS__): return launch_wide<T, BITS, __VA_ARGS__>(job);
    if constexpr (plain) {
        switch (kernel) {
            DISPATCH_WIDE_PLAIN(WIDE)
        default: break;
        }
    } else {
        switch (kernel) {
            DISPATCH_WIDE_FINISHED(WIDE)
        default: break;
        }
    }
    if constexpr (residual) {
        switch (kernel) {
            DISPATCH_WIDE_RESIDUAL(WIDE)
        default: break;
        }
    }
    switch (kernel) {
        DISPATCH_WIDE_ANY(WIDE)
    default: assert(false); // no rule of dispatch.c gives these outputs another kernel
    }
#undef WIDE
}
template <class Out>
static void run_wide(const wide_operands &one, const wide_operands *two, const Out &out, uint32_t n_rows,
                     void *stream) {
    const struct cuda_matrix *w = one.w;
    assert(n_rows > 0 && w->dtype != CUDA_F32 && on_16_bytes(w->data, one.x, w->scales));
    assert(!two || (two->w->cols == w->cols && two->w->format == w->format && two->w->dtype == w->dtype));
    const wide_job<Out> job = {one,    two ? *two : wide_operands{}, out, cuda_pad16(w->cols) / 16,
                               n_rows, (cudaStream_t)stream};
    dispatch_case c = {};
    c.op = DISPATCH_LINEAR, c.device = this_device(), c.dtype = w->dtype, c.n_rows = n_rows, c.ending = ending_of(out);
    c.coded = w->format != CUDA_STORED, c.outputs = w->rows, c.outputs_two = two ? two->w->rows : 0, c.k_tiles = job.KT;
    const enum dispatch_kernel kernel = dispatch_kernel_of(&c);
    if (kernel == TALL)
        run_tall(job);
    else if (DISPATCH_IS_CODED(kernel))
        run_coded(job, kernel);
    else if (w->dtype == CUDA_F16)
        FOR_BITS(w, (choose_wide<__half, BITS>(job, kernel)));
    else
        FOR_BITS(w, (choose_wide<__nv_bfloat16, BITS>(job, kernel)));
}

void wide_pair(const cuda_product &one, const cuda_product &two, uint32_t n_rows, void *stream) {
    const wide_operands in_two = {two.w, two.x};
    const out_plain out = {{}, one.y, one.ldy, one.w->rows}, out_two = {{}, two.y, two.ldy, two.w ? two.w->rows : 0};
    run_wide(wide_operands{one.w, one.x}, two.w ? &in_two : NULL, out_either{out, out_two}, n_rows, stream);
}
void wide_product(const wide_operands &in, const out_plain &out, uint32_t n_rows, void *stream) {
    run_wide(in, NULL, out_either{out, out}, n_rows, stream);
}
void wide_product(const wide_operands &in, const out_residual &out, uint32_t n_rows, void *stream) {
    run_wide(in, NULL, out, n_rows, stream);
}
void wide_product(const wide_operands &in, const out_ffn &out, uint32_t n_rows, void *stream) {
    run_wide(in, NULL, out, n_rows, stream);
}
