// tall.cu - products of so many rows in 16 bit on Hopper that blocks of 128 outputs and 128 rows fill the device: each
// multiprocessor runs one block that takes one tile after the other. Two warpgroups of consumers with 64 outputs each;
// of the third, one thread feeds the ring and the other warps make the scales of the rows' norms.
#include "wide.cuh"

// Codes: longer stages, and the totals of the quarters in shared memory, as registers hold numbers of twice as many
// tiles.
template <int BITS> struct tall {
    enum { CODED = BITS < 16, SK = CODED ? 8 : 4, HALF = SK / 2 };
    using weights_of_stage = stage_weights<BITS, 8, SK, false>;
    enum {
        ROWS = 128,
        STAGES = CODED ? 3 : 4,
        W_STAGE = weights_of_stage::BYTES,
        X_STAGE = ROWS / 8 * SK * 256,
        STAGE = W_STAGE + X_STAGE,
        RING = STAGE * STAGES,
        LD = 68,
        SUMS = ROWS * LD * 4,
        BYTES = RING + 2 * SUMS,
        THREADS = 384,
        SUM_REGS = ROWS / 2
    };
};
enum { TALL_ROWS = tall<16>::ROWS };
struct tall_order {
    uint32_t KT, n_rows, row_blocks, blocks, blocks_one;
}; // of the tiles; blocks of 128 outputs

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The weights of the stage at `at`, which begins with tile k, its tiles [FIRST, FIRST + HALF) for this warp; past the
// slice, which has n more: nothing.
template <class T, int FIRST, int BITS>
__device__ __forceinline__ void load_half(uint4 (&a)[tall<BITS>::SK], const weights<BITS> &w, uint32_t at, uint32_t k,
                                          uint32_t n) {
    using S = typename tall<BITS>::weights_of_stage;
    enum { END = FIRST + tall<BITS>::HALF };
    const uint32_t row = threadIdx.x / 32;
    if constexpr (BITS == 8) {
        if (w.keep)
            S::template operands_of<FIRST, END>(a, is_int8(), w, at, row, k, T());
        else
            S::template operands_of<FIRST, END>(a, is_fp8(), w, at, row, k, T());
    } else
        S::template operands_of<FIRST, END>(a, w, w, at, row, k, T());
    if (n < END) {
#pragma unroll
        for (int j = FIRST; j < END; j++)
            if (j >= n) a[j] = make_uint4(0, 0, 0, 0);
    }
}

// Tile t: of a group of 16 row blocks all outputs, and there its row blocks one after the other.
__device__ __forceinline__ void tall_place(const tall_order &order, uint32_t t, uint32_t &row0, uint32_t &block) {
    const uint32_t per = 16 * order.blocks, g = t / per, rest = t - g * per, size = min(16u, order.row_blocks - g * 16);
    block = rest / size;
    row0 = (g * 16 + rest - block * size) * TALL_ROWS;
}
template <class Out> __device__ __forceinline__ bool norm_is(const Out &outs, bool second) {
    return functor_of(outs, second).norm.squares != NULL;
}

// One thread.
template <int STAGES> __device__ __forceinline__ void tall_barriers(uint64_t *full, uint64_t *empty) {
    for (int i = 0; i < STAGES; i++) barrier_init(full + i, 1), barrier_init(empty + i, 8);
    barriers_there();
}
// Stages of a tile's slices.
template <int SK> __device__ __forceinline__ uint32_t tall_steps(uint32_t KT) {
    uint32_t n = 0;
    for (uint32_t slice = 0; slice < SLICES; slice++)
        n += (slice_at(KT, slice + 1) - slice_at(KT, slice) + SK - 1) / SK;
    return n;
}
// One thread: the block's tiles through the ring.
template <int BITS>
__device__ __forceinline__ void tall_feed(unsigned char *ring, uint64_t *full, uint64_t *empty, const wide_part &one,
                                          const wide_part &two, const weights<BITS> &w, const tall_order &order) {
    using G = tall<BITS>;
    using S = typename G::weights_of_stage;
    enum { SK = G::SK, STAGES = G::STAGES };
    const uint32_t KT = order.KT, n_tiles = order.blocks * order.row_blocks;
    uint64_t often, once;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(often));
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;"
                 : "=l"(once)); // evict_normal would halve the rate of copies
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) { // first the weights that fit, then the rest
        uint32_t s = 0, phase = 0;
        bool round = false; // the ring has been filled once
#pragma unroll 1
        for (uint32_t t = blockIdx.x; t < n_tiles && (pass || !round); t += gridDim.x) {
            uint32_t row0, block;
            tall_place(order, t, row0, block);
            const wide_part *p = block >= order.blocks_one ? &two : &one;
            const uint32_t tile0 = (block >= order.blocks_one ? block - order.blocks_one : block) * 8;
#pragma unroll 1
            for (uint32_t slice = 0; slice < SLICES && (pass || !round); slice++) {
                const uint32_t end = slice_at(KT, slice + 1);
#pragma unroll 1
                for (uint32_t k = slice_at(KT, slice); k < end && (pass || !round); k += SK) {
                    unsigned char *at = ring + s * G::STAGE;
                    if (round) barrier_wait(empty + s, phase ^ 1);
                    if (round || !pass) {
                        barrier_expect(full + s, S::coming(w, G::STAGE));
                        copy_box(at, &p->w, k, tile0, full + s, once);
                        if (BITS < 16) copy_box(at + S::TILES, &p->scales, k >> w.per, tile0, full + s, once);
                    }
                    if (pass) copy_box(at + G::W_STAGE, &p->x, k, row0 / 8, full + s, often);
                    if (++s == STAGES) s = 0, phase ^= 1, round = true;
                }
            }
        }
        if (!pass) wait_for_inputs(); // x is complete
    }
}

// Three warps: the scales of the norms of each tile's rows.
template <class T, class Out>
__device__ __forceinline__ void tall_scales(float (&scales)[2][TALL_ROWS], const Out &outs, const tall_order &order) {
    wait_for_inputs();
    uint32_t parity = 0;
#pragma unroll 1
    for (uint32_t t = blockIdx.x; t < order.blocks * order.row_blocks; t += gridDim.x, parity ^= 1) {
        uint32_t row0, block;
        tall_place(order, t, row0, block);
        const bool second = block >= order.blocks_one;
        if (!norm_is(outs, second)) continue;
        const auto &out = functor_of(outs, second);
#pragma unroll 1
        for (uint32_t first = (threadIdx.x / 32 - 9) * 4; first < TALL_ROWS; first += 12)
            scales_of<T, 4>(
                scales[parity], out.norm, row0, [&](uint32_t i) { return first + i; },
                [&](uint32_t r) { return row0 + r < order.n_rows; });
        delay(16);
        asm volatile("bar.sync %0, 352;" ::"r"(3 + parity)
                     : "memory"); // the tile's scales; those of two tiles ago are read
    }
}
// A quarter's sums to the totals. Codes: those lie in `sums` until the last, which leaves them in sum.
template <class G, int N, int M>
__device__ __forceinline__ void tall_total(float (&sum)[N], float (&total)[M], float *sums, uint32_t slice,
                                           uint32_t wg) {
    if constexpr (G::CODED) {
        float4 *const totals = (float4 *)sums + threadIdx.x % 128;
        if (slice == 3) asm volatile("bar.sync %0, 128;" ::"r"(1 + wg) : "memory"); // the last tile's sums are read
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            float4 t = make_float4(sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
            if (slice > 3) {
                const float4 u = totals[i / 4 * 128];
                t.x = u.x + t.x, t.y = u.y + t.y, t.z = u.z + t.z, t.w = u.w + t.w;
            }
            if (slice + 1 < SLICES)
                totals[i / 4 * 128] = t, sum[i] = sum[i + 1] = sum[i + 2] = sum[i + 3] = -0.0f;
            else
                sum[i] = t.x, sum[i + 1] = t.y, sum[i + 2] = t.z, sum[i + 3] = t.w;
        }
    } else
#pragma unroll
        for (int i = 0; i < N; i++) total[i] += sum[i], sum[i] = -0.0f;
}
// A warpgroup's part of tile t, whose sums it has left: what becomes of it.
template <class T, class G, class Out>
__device__ __forceinline__ void tall_finish(const Out &outs, const tall_order &order, uint32_t t, uint32_t parity,
                                            const float *sums, const float *scales, uint32_t O_one, uint32_t O_two) {
    using F = typename out_of<Out>::type;
    const uint32_t wg = threadIdx.x / 128;
    uint32_t row0, block;
    tall_place(order, t, row0, block);
    const bool second = block >= order.blocks_one, scaled = norm_is(outs, second);
    const auto &out = functor_of(outs, second);
    const uint32_t O = second ? O_two : O_one, o_in = threadIdx.x % 16 * 4,
                   o = (second ? block - order.blocks_one : block) * 128 + wg * 64 + o_in;
    const uint32_t rows = min((uint32_t)G::ROWS, order.n_rows - row0);
    wait_for_inputs();
    typename F::template column<T, 4> column;
    out.template load<T>(column, o, o < O);
    delay(16);
    asm volatile("bar.sync %0, 128;" ::"r"(1 + wg) : "memory"); // the tile's sums are there
    delay(16);
    if (scaled) asm volatile("bar.sync %0, 352;" ::"r"(3 + parity) : "memory");
#pragma unroll 2 // once a tile: its instructions come from afar
    for (uint32_t r = threadIdx.x % 128 / 16; r < G::ROWS; r += 8) {
        const bool there = r < rows && o < O;
        typename F::template row<T, 4> row;
        out.template early<T>(row, row0 + r, o, there);
        out.template late<T>(row, row0 + r, o, there);
        float v[4];
        load_floats(v, sums + r * G::LD + o_in);
        out.template finish<T>(column, row, row0 + r, o, there, v, scaled ? scales[r] : 1.0f);
    }
}
#endif

template <class T, int BITS, class Out>
__global__ void __launch_bounds__(tall<BITS>::THREADS, 1)
    tall_kernel(const __grid_constant__ wide_part one, const __grid_constant__ wide_part two,
                const __grid_constant__ weights<BITS> w, const tall_order order, const __grid_constant__ Out outs) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using G = tall<BITS>;
    enum { SK = G::SK, HALF = G::HALF, STAGES = G::STAGES, N = G::SUM_REGS };
    extern __shared__ __align__(1024) unsigned char ring[];
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ float scales[2][G::ROWS]; // of a tile and the next
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, KT = order.KT,
                   n_tiles = order.blocks * order.row_blocks, step = gridDim.x;
    if (threadIdx.x == 0) tall_barriers<STAGES>(full, empty);
    __syncthreads(); // the barriers are there
    let_next_start();
    if (warp >= 8) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 256)
            tall_feed(ring, full, empty, one, two, w, order);
        else if (warp > 8)
            tall_scales<T>(scales, outs, order);
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const uint32_t wg = warp / 4;
        float acc[N], sum[N], total[G::CODED ? 1 : N];
#pragma unroll
        for (int i = 0; i < N; i++) acc[i] = 0, sum[i] = -0.0f; // -0 + s = s to the bit
#pragma unroll
        for (int i = 0; i < sizeof total / sizeof *total; i++) total[i] = -0.0f;
        float *const sums = (float *)(ring + G::RING + wg * G::SUMS);
        const uint32_t mine = (lane % 4 * 2) * G::LD + warp % 4 * 16 + lane / 4;
        // wgmma's description of x in shared memory: no swizzle, 128 bytes to the next 8 of k, a stage's tiles to the
        // next 8 rows
        const uint64_t b0 = ((uint64_t)(128 >> 4) << 16) | ((uint64_t)(SK * 256 >> 4) << 32) |
                            (shared_address(ring + G::W_STAGE) & 0x3ffff) >> 4;
        const uint32_t a0 = shared_address(ring);
        uint4 a[SK];
        uint32_t s = 0, phase = 0, parity = 0;                                           // stage
        uint32_t left = tall_steps<SK>(KT) * ((n_tiles - blockIdx.x + step - 1) / step); // steps until the end
        barrier_wait(full, 0);
        load_half<T, 0>(a, w, a0, 0, slice_at(KT, 1));
        hold<0, HALF>(a);
        for (uint32_t t = blockIdx.x; t < n_tiles; t += step, parity ^= 1) {
#pragma unroll 1
            for (uint32_t slice = 0; slice < SLICES; slice++) {
                const uint32_t k0 = slice_at(KT, slice), n = slice_at(KT, slice + 1) - k0;
                const uint32_t next_n = slice == SLICES - 1 ? slice_at(KT, 1) : slice_at(KT, slice + 2) - k0 - n;
#pragma unroll 1
                for (uint32_t k = 0; k < n; k += SK) {
                    const uint32_t s1 = s + 1 == STAGES ? 0 : s + 1, ahead = k + SK < n ? n - k - SK : next_n,
                                   next_k = k + SK < n            ? k0 + k + SK
                                            : slice == SLICES - 1 ? 0
                                                                  : k0 + n;
                    const uint64_t b = b0 + s * (G::STAGE >> 4);
                    if (s1 == 0) phase ^= 1; // from here on the next stage's
                    left--;
                    wgmma_begin();
#pragma unroll
                    for (int j = 0; j < HALF; j++) wgmma<false>(acc, a[j], b + j * (256 >> 4), j || k != 0, T());
                    wgmma_end();
                    wgmma_wait<1>();
                    hold<HALF, SK>(a);
                    if (k && lane == 0) barrier_arrive(empty + (s == 0 ? STAGES - 1 : s - 1));
                    load_half<T, HALF>(a, w, a0 + s * G::STAGE, k0 + k, n - k);
                    hold<HALF, SK>(a);
                    wgmma_begin();
#pragma unroll
                    for (int j = HALF; j < SK; j++) wgmma<false>(acc, a[j], b + j * (256 >> 4), true, T());
                    wgmma_end();
                    wgmma_wait<1>();
                    hold<0, HALF>(a);
                    if (left) {
                        barrier_wait(full + s1, phase);
                        load_half<T, 0>(a, w, a0 + s1 * G::STAGE, next_k, ahead);
                        hold<0, HALF>(a);
                    }
                    s = s1;
                }
                wgmma_wait<0>();
                hold<HALF, SK>(a);
                if (lane == 0) barrier_arrive(empty + (s == 0 ? STAGES - 1 : s - 1));
#pragma unroll
                for (int i = 0; i < N; i++) asm volatile("" : "+f"(acc[i])::"memory"); // read after the wait
#pragma unroll
                for (int i = 0; i < N; i++) sum[i] += acc[i];
                if (slice % 4 == 3) tall_total<G>(sum, total, sums, slice, wg);
            }
            asm volatile("bar.sync %0, 128;" ::"r"(1 + wg)
                         : "memory"); // nobody reads the last tile's sums or totals any more
#pragma unroll
            for (int i = 0; i < N; i++) {
                float &x = G::CODED ? sum[i] : total[G::CODED ? 0 : i];
                sums[mine + (i / 4 * 8 + i % 2) * G::LD + i / 2 % 2 * 8] = x, x = -0.0f;
            }
            tall_finish<T, G>(outs, order, t, parity, sums, scales[parity], one.O, two.O);
        }
    }
#endif
}

template <class T, int BITS, class Out> static void launch_tall(const wide_job<Out> &job) {
    using G = tall<BITS>;
    const auto part_of = [&](const wide_operands &p) {
        return wide_part_of<typename G::weights_of_stage>(p, job.KT, job.n_rows, G::ROWS / 8);
    };
    const wide_part one = part_of(job.one), two = part_of(job.two);
    const uint32_t blocks_one = (one.tiles + 7) / 8;
    const tall_order order = {job.KT, job.n_rows, (job.n_rows + G::ROWS - 1) / G::ROWS,
                              blocks_one + (two.tiles + 7) / 8, blocks_one};
    const uint32_t tiles = order.blocks * order.row_blocks,
                   rounds = (tiles + multiprocessors() - 1) / multiprocessors();
    const auto kernel = tall_kernel<T, BITS, Out>;
    allow_shared(kernel, G::BYTES);
    launch(kernel, dim3((tiles + rounds - 1) / rounds), dim3(G::THREADS), G::BYTES, job.stream, one, two,
           weights_of<BITS>(job.one.w), order, job.out);
}
template <class Out> void run_tall(const wide_job<Out> &job) {
    const struct cuda_matrix *w = job.one.w;
    if (w->dtype == CUDA_F16)
        FOR_BITS(w, (launch_tall<__half, BITS>(job)));
    else
        FOR_BITS(w, (launch_tall<__nv_bfloat16, BITS>(job)));
}
template void run_tall(const wide_job<out_either> &job);
template void run_tall(const wide_job<out_ffn> &job);
template void run_tall(const wide_job<out_residual> &job);
