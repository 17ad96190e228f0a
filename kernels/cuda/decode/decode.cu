// decode.cu - the products of a decode step, finished (epilogue.cuh). Of at most 8 or 16 rows: a block brings the
// weights of 16 outputs into shared memory before its inputs are ready. Of more: wide.cu. Hopper only: other devices
// take the separate kernels.
#include "few.cuh"

// Bytes of the scale words of the groups that a slice of k may lie in.
template <bool GROUPS> static __host__ __device__ __forceinline__ uint32_t few_scale_bytes(uint32_t KT, uint32_t per) {
    const uint32_t longest = (KT + FEW_WARPS - 1) / FEW_WARPS;
    return !GROUPS ? 0 : per == 3 ? ((longest + 6) / 8 + 1) * 64 : 64;
}

// The n tiles of a warp's slice, whose codes lie at the end of n * 512 bytes, to numbers of 16 bits from the start of
// these bytes on: a number never reaches a code that is still to be read. to: of this lane.
template <class T, int U, int BITS, bool GROUPS>
__device__ __forceinline__ void widen(const few_slice<BITS, GROUPS> &slice, uint32_t to, uint32_t n, T) {
#pragma unroll 1
    for (uint32_t k = 0; k < n; k += U) {
        uint4 a[U];
        slice.operands(a, k, n, T());
        __syncwarp(); // every lane has its codes of these tiles
#pragma unroll
        for (int u = 0; u < U; u++)
            if (k + u < n) store_shared(to + (k + u) * 512, a[u]);
        __syncwarp();
    }
}

// Shared memory of a block, in bytes: a stage, its slices' scale words at its end; where sums and barriers are. Without
// a ring the scale words of a slice lie where its sums will. Sums of two eights of rows lie where the warp's weights
// were, if there is room and all slices are of one length: so that the next kernel's block, too, has room before it
// ends.
enum { FEW_SUMS = FEW_WARPS * 8 * FEW_LD }; // of eight rows
struct few_room {
    uint32_t stage, scales, sums, bars, all;
    uint32_t step; // floats from a slice's sums to the next's
};
// stages: 0: one, with room for numbers of 16 bits.
template <int BITS, bool GROUPS>
static __host__ __device__ __forceinline__ few_room few_room_of(uint32_t KT, uint32_t per, uint32_t stages,
                                                                uint32_t eights) {
    few_room x;
    x.scales = few_scale_bytes<GROUPS>(KT, per);
    x.stage = stages ? KT * BITS * 32 + FEW_WARPS * x.scales : KT * 512;
    x.sums = x.stage * (stages ? stages : 1);
    x.step = eights * 8 * FEW_LD;
    x.bars = x.sums + (stages ? 2 : 1) * eights * FEW_SUMS * 4;
    if (eights > 1 && KT % FEW_WARPS == 0 && KT / FEW_WARPS * 128 >= x.step)
        x.sums = 0, x.step = KT / FEW_WARPS * 128, x.bars = x.stage;
    x.all = x.bars + (stages ? stages : 1) * FEW_WARPS * 8;
    return x;
}

// Sizes of a block whose slices take TILES tiles' room each, their sums over them.
template <int TILES> struct few_once {
    enum { STEP = TILES * 128, BARS = FEW_WARPS * TILES * 512, BYTES = BARS + FEW_WARPS * 8 };
};

// A block: tiles of 16 outputs, whole. A slice has TILES tiles of k at most, or is taken by so many at a time. early:
// the next kernel may start before the inputs are ready. The device starts one at a time, and the end of another may
// wait for that: so not always. ONCE: no slice has more than TILES tiles of k; they lie at the same stride whatever k,
// and its sums over them, so that the next kernel's blocks find 10 KB more. Codes: a tile's become numbers before the
// inputs are ready, in shared memory. RING, where there are more tiles than blocks at once: a block takes several, of
// which a ring of `stages` is on its way. EIGHTS: of rows.
template <class T, int BITS, bool GROUPS, int TILES, bool RING, int EIGHTS, bool ONCE, class Out>
__global__ void __launch_bounds__(FEW_WARPS * 32, 2)
    few_kernel(const weights<BITS> w, const uint32_t *act, uint32_t KT, uint32_t n_rows, uint32_t n_tiles,
               uint32_t stages, bool early, Out out) {
#if __CUDA_ARCH__ >= 900
    using W = weights<BITS>;
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float scales[8 * EIGHTS];
    static_assert(!ONCE || (BITS == 16 && !RING && EIGHTS == 1), "");
    few_room room = few_room_of<BITS, GROUPS>(KT, w.per, RING ? stages : 0, EIGHTS);
    if (ONCE) room.sums = 0, room.bars = few_once<TILES>::BARS;
    const uint32_t step = ONCE ? few_once<TILES>::STEP : EIGHTS == 1 ? 8 * FEW_LD : room.step;
    float *part = (float *)(smem + room.sums);
    uint64_t *bars = (uint64_t *)(smem + room.bars);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
    const uint32_t k0 = KT * warp / FEW_WARPS, n = KT * (warp + 1) / FEW_WARPS - k0, g0 = k0 >> w.per;
    const uint32_t numbers_at = (ONCE ? warp * TILES : k0) * 512,
                   codes_at = RING ? k0 * W::TILE : numbers_at + n * (512 - W::TILE),
                   words_at = RING ? room.stage - (FEW_WARPS - warp) * room.scales : room.sums + warp * 8 * FEW_LD * 4;
    const auto ask = [&](uint32_t tile, uint32_t s) { // one lane
        const uint32_t groups = GROUPS && n ? ((k0 + n - 1) >> w.per) - g0 + 1 : 0;
        unsigned char *at = smem + s * room.stage;
        bulk_ask(at + codes_at, w.tiles + ((size_t)tile * KT + k0) * W::TILE, n * W::TILE, bars + s * FEW_WARPS + warp,
                 at + words_at, w.scales + ((size_t)tile * w.groups + g0) * 16, groups * 64);
    };
    if (lane == 0) {
        bulk_init(bars + warp), ask(blockIdx.x, 0);
        if (RING)
            for (uint32_t s = 1; s < stages && blockIdx.x + s * gridDim.x < n_tiles; s++)
                bulk_init(bars + s * FEW_WARPS + warp), ask(blockIdx.x + s * gridDim.x, s);
    }
    const uint32_t o_in = threadIdx.x % 16, r = threadIdx.x / 16; // of the outputs, those who finish
    // Warps of their own weigh a row each, where there are enough.
    const uint32_t weighed = EIGHTS == 1 ? warp - 8 : warp;
    const bool mine = r < n_rows, finishes = warp < 4 * EIGHTS, weighs = weighed < n_rows && out.norm.squares;
    uint32_t tile = blockIdx.x, stage = 0, phase = 0, next[2] = {0, 0}; // the next tile's scales
    const auto ask_words = [&](uint32_t tile) {
        if (BITS == 16 || GROUPS || tile >= n_tiles) return;
        const uint32_t *words = w.scales + ((size_t)tile * w.groups + g0) * 16 + g;
        next[0] = words[0], next[1] = words[8];
    };
    few_slice<BITS, GROUPS> slice = {
        w, shared_address(smem) + codes_at + lane * BITS, shared_address(smem) + words_at + g * 4, k0, {0, 0}};
    const few_slice<16, false> numbers = {{}, shared_address(smem) + numbers_at + lane * 16, 0, k0, {0, 0}};
    ask_words(tile);
    typename Out::template column<T, 1> column;
    typename Out::template row<T, 1> row;
    few_scale scale;
    few_tiles<T, TILES, EIGHTS> tiles;
    if (early) let_next_start();
    if (finishes)
        out.template load<T>(column, tile * 16 + o_in, mine), out.template early<T>(row, r, tile * 16 + o_in, mine);
    act += k0 * 64 + lane;
    __syncwarp(); // the barriers are there
    slice.s[0] = next[0], slice.s[1] = next[1];
    if constexpr (BITS < 16 && !RING) {
        await_bulk(bars + warp);
        widen<T, 4>(slice, numbers.tiles, n, T());
    }
    wait_for_inputs();
    if (!early) let_next_start();
    tiles.ask(act, KT * 64, n, g, n_rows);
    if (finishes) out.template late<T>(row, r, tile * 16 + o_in, mine);
    if (weighs) scale.ask(out.norm, weighed);
    if (BITS == 16 || RING) await_bulk(bars + warp);
#pragma unroll 1
    for (bool first = true;; first = false) {
        float acc[EIGHTS][4] = {};
        if constexpr (RING) {
            ask_words(tile + gridDim.x);
            if (n) tiles.template add<4>(acc, slice, 0, n);
            __syncwarp(); // the stage is read
            if (lane == 0 && tile + stages * gridDim.x < n_tiles) ask(tile + stages * gridDim.x, stage);
        } else {
            if (n) tiles.template add<1>(acc, numbers, 0, n);
#pragma unroll 1
            for (uint32_t k = TILES; k < n; k += TILES)
                tiles.ask(act + k * 64, KT * 64, n - k, g, n_rows), tiles.template add<1>(acc, numbers, k, n);
        }
        if (EIGHTS > 1 || ONCE) __syncwarp(); // every lane has its weights
        few_leave(part + warp * step, acc);
        if (weighs && first) scale.leave<T>(out.norm, weighed, scales);
        __syncthreads(); // every slice's sum before they are added; the scales
        if (finishes) few_finish<T>(out, column, row, few_output{r, tile * 16 + o_in, mine}, part + o_in, step, scales);
        if (!RING || (tile += gridDim.x) >= n_tiles) return;
        // The next tile; its sums where nobody reads: those of this one are still being added.
        part = (float *)(smem + room.sums) + (part == (float *)(smem + room.sums)) * FEW_SUMS;
        if (++stage == stages) stage = 0, phase ^= 1;
        slice.tiles = shared_address(smem) + stage * room.stage + codes_at + lane * BITS;
        slice.scales = shared_address(smem) + stage * room.stage + words_at + g * 4;
        slice.s[0] = next[0], slice.s[1] = next[1];
        const uint32_t o = tile * 16 + o_in;
        if (finishes)
            out.template load<T>(column, o, mine), out.template early<T>(row, r, o, mine),
                out.template late<T>(row, r, o, mine);
        await_bulk(bars + stage * FEW_WARPS + warp, phase);
    }
#endif
}

// Of codes, where there are more tiles than blocks at once, but not more than twice as many: blocks b and b + gridDim.x
// of tiles, 128 tiles of k. The codes become numbers before the inputs are ready: the first's in registers, the
// second's in shared memory.
template <int BITS> struct few_codes {
    enum {
        KT = 128,
        N = KT / FEW_WARPS,        // of a slice
        OWN = N * BITS * 32,       // bytes of its codes of the first tile; then its sums
        NUMBERS = KT * BITS * 32,  // where the second tile's are
        SUMS = NUMBERS + KT * 512, // of the second tile
        BARS = SUMS + FEW_SUMS * 4,
        BYTES = BARS + 2 * FEW_WARPS * 8
    };
    static_assert(OWN >= 8 * FEW_LD * 4, "");
};
template <class T, int BITS, class Out>
__global__ void __launch_bounds__(FEW_WARPS * 32, 2)
    few_codes_kernel(const weights<BITS> w, const uint32_t *act, uint32_t n_rows, uint32_t n_tiles, bool early,
                     Out out) {
#if __CUDA_ARCH__ >= 900
    using G = few_codes<BITS>;
    enum { N = G::N, TILE = weights<BITS>::TILE };
    extern __shared__ __align__(128) unsigned char smem[];
    __shared__ float scales[8];
    uint64_t *const bars = (uint64_t *)(smem + G::BARS);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, k0 = warp * N;
    const uint32_t tile0 = blockIdx.x, tile1 = blockIdx.x + gridDim.x;
    const bool both = tile1 < n_tiles;
    const uint32_t codes1 = G::NUMBERS + k0 * 512 + N * (512 - TILE);
    if (lane == 0) {
        bulk_load(smem + warp * G::OWN, w.tiles + ((size_t)tile0 * G::KT + k0) * TILE, N * TILE, bars + warp);
        if (both)
            bulk_load(smem + codes1, w.tiles + ((size_t)tile1 * G::KT + k0) * TILE, N * TILE, bars + FEW_WARPS + warp);
    }
    // Of the outputs threads 0 to 255: 128 a tile.
    const bool finishes = warp < 4 || (warp < 8 && both), second = warp >= 4;
    const uint32_t o = (second ? tile1 : tile0) * 16 + threadIdx.x % 16, r = threadIdx.x / 16 % 8;
    const bool mine = r < n_rows && finishes, weighs = warp >= 8 && warp - 8 < n_rows && out.norm.squares;
    const uint32_t *const words = w.scales + ((size_t)tile0 * w.groups + (k0 >> w.per)) * 16 + g,
                          *const words1 = words + (both ? (size_t)gridDim.x * w.groups * 16 : 0);
    const few_slice<BITS, false> slice0 = {
        w, shared_address(smem) + warp * G::OWN + lane * BITS, 0, k0, {words[0], words[8]}};
    const few_slice<BITS, false> slice1 = {
        w, shared_address(smem) + codes1 + lane * BITS, 0, k0, {words1[0], words1[8]}};
    const few_slice<16, false> numbers = {{}, shared_address(smem) + G::NUMBERS + k0 * 512 + lane * 16, 0, k0, {0, 0}};
    typename Out::template column<T, 1> column;
    typename Out::template row<T, 1> row;
    few_scale scale;
    few_tiles<T, N, 1> tiles;
    if (early) let_next_start();
    if (finishes) out.template load<T>(column, o, mine), out.template early<T>(row, r, o, mine);
    act += k0 * 64 + lane;
    __syncwarp(); // the barriers are there
    uint4 a[N];
    await_bulk(bars + warp);
    slice0.operands(a, 0, N, T());
    if (both) await_bulk(bars + FEW_WARPS + warp), widen<T, 2>(slice1, numbers.tiles, N, T());
#pragma unroll
    for (int u = 0; u < N; u++) // made here, not where they are used
        asm volatile("" : "+r"(a[u].x), "+r"(a[u].y), "+r"(a[u].z), "+r"(a[u].w));
    wait_for_inputs();
    if (!early) let_next_start();
    tiles.ask(act, 0, N, g, n_rows);
    if (finishes) out.template late<T>(row, r, o, mine);
    if (weighs) scale.ask(out.norm, warp - 8);
    float acc0[1][4] = {}, acc1[1][4] = {};
#pragma unroll
    for (int u = 0; u < N; u++) {
        mma(acc0[0], a[u], tiles.b[u][0], T());
        mma(acc1[0], numbers.operand(u, T()), tiles.b[u][0], T()); // of one tile alone: never read
    }
    few_leave((float *)(smem + warp * G::OWN), acc0);
    few_leave((float *)(smem + G::SUMS) + warp * 8 * FEW_LD, acc1);
    if (weighs) scale.leave<T>(out.norm, warp - 8, scales);
    __syncthreads(); // every slice's sums before they are added; the scales
    if (!finishes) return;
    const float *const from = (const float *)(smem + (second ? (uint32_t)G::SUMS : 0)) + threadIdx.x % 16;
    few_finish<T>(out, column, row, few_output{r, o, mine}, from, second ? 8 * FEW_LD : G::OWN / 4, scales);
#endif
}

static enum dispatch_kernel kernel_of(enum dispatch_op op, const struct cuda_matrix *w, uint32_t n_rows,
                                      enum dispatch_ending ending) {
    dispatch_case c = {};
    c.op = op, c.device = this_device(), c.dtype = w->dtype, c.n_rows = n_rows, c.ending = ending;
    c.outputs = w->rows, c.k_tiles = cuda_pad16(w->cols) / 16, c.coded = w->format != CUDA_STORED;
    return dispatch_kernel_of(&c);
}
static bool is_few(enum dispatch_kernel kernel) {
    return kernel == FEW_8 || kernel == FEW_16 || kernel == FEW_TWO || kernel == FEW_CODES || kernel == FEW_ROUND;
}

// Of the ring of a block that takes several tiles: as many as two blocks of a multiprocessor have room for. 0: a block
// a tile; also where a slice has more tiles of k than a warp keeps operands of.
enum { FEW_RING_TILES = 8 };
template <int BITS, bool GROUPS> static uint32_t few_stages(uint32_t KT, uint32_t per, uint32_t n_tiles) {
    enum { ROOM = 112 << 10, MOST = 4 };
    if (BITS == 16 || n_tiles <= 2 * multiprocessors() || KT > FEW_WARPS * FEW_RING_TILES) return 0;
    uint32_t stages = MOST;
    while (stages > 1 && few_room_of<BITS, GROUPS>(KT, per, stages, 1).all > ROOM) stages--;
    return stages > 1 ? stages : 0;
}
template <class T, int BITS, bool GROUPS, class Out>
static void few_launch(enum dispatch_kernel k, const struct cuda_matrix *m, const void *act, uint32_t n_rows,
                       bool early, const Out &out, void *stream) {
    const uint32_t KT = cuda_pad16(m->cols) / 16;
    const weights<BITS> w = weights_of<BITS>(m);
    const uint32_t n_tiles = cuda_pad16(m->rows) / 16, stages = few_stages<BITS, GROUPS>(KT, w.per, n_tiles),
                   blocks = stages ? 2 * multiprocessors() : n_tiles;
    if constexpr (BITS < 16 && !GROUPS && ending_of<Out> == DISPATCH_FFN)
        if (k == FEW_CODES) {
            const auto two = few_codes_kernel<T, BITS, Out>;
            allow_shared(two, few_codes<BITS>::BYTES);
            launch(two, dim3(2 * multiprocessors()), dim3(FEW_WARPS * 32), few_codes<BITS>::BYTES, stream, w,
                   (const uint32_t *)act, n_rows, n_tiles, early, out);
            return;
        }
    constexpr bool ONCE = BITS == 16;
    auto kernel = stages        ? few_kernel<T, BITS, GROUPS, FEW_RING_TILES, (BITS < 16), 1, false, Out>
                  : k == FEW_16 ? few_kernel<T, BITS, GROUPS, 16, false, 1, ONCE, Out>
                                : few_kernel<T, BITS, GROUPS, 8, false, 1, false, Out>;
    size_t bytes = ONCE && k == FEW_16 ? few_once<16>::BYTES
                                       : few_room_of<BITS, GROUPS>(KT, w.per, stages, k == FEW_TWO ? 2 : 1).all;
    if constexpr (ONCE) {
        if (k == FEW_8 && KT <= FEW_WARPS * 8)
            kernel = few_kernel<T, BITS, GROUPS, 8, false, 1, true, Out>, bytes = few_once<8>::BYTES;
        if constexpr (ending_of<Out> == DISPATCH_RESIDUAL) // what dispatch.c says that it can
            if (k == FEW_TWO) kernel = few_kernel<T, BITS, GROUPS, 8, false, 2, false, Out>;
    }
    allow_shared(kernel, bytes);
    launch(kernel, dim3(blocks), dim3(FEW_WARPS * 32), bytes, stream, w, (const uint32_t *)act, KT, n_rows, n_tiles,
           stages, early, out);
}
// Two products of the same k with operands of their own. A block: a tile, a quarter of k, a warp a slice; out:
// [4][n_rows][ldy].
struct few_part {
    const uint4 *w;
    const uint32_t *act;
    float *y;
    size_t ldy, quarter_stride;
    uint32_t tiles, O;
};
__device__ __forceinline__ uint4 load16_if(const uint4 *p, bool wanted) {
    uint4 x;
    asm volatile("{.reg .pred w; setp.ne.u32 w, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n"
                 "@w ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];}"
                 : "=&r"(x.x), "=&r"(x.y), "=&r"(x.z), "=&r"(x.w)
                 : "l"(p), "r"((uint32_t)wanted)
                 : "memory");
    return x;
}
template <class T>
__global__ void __launch_bounds__(128, 2) few_pair_kernel(few_part one, few_part two, uint32_t KT, uint32_t n_rows) {
    enum { TILES = 16, EIGHTS = 2 };
    __shared__ float part[4][8 * EIGHTS][FEW_LD];
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, slice = blockIdx.y * 4 + warp;
    const bool second = blockIdx.x >= one.tiles;
    const few_part p = second ? two : one;
    const uint32_t tile = second ? blockIdx.x - one.tiles : blockIdx.x, k0 = KT * slice / 16,
                   n = KT * (slice + 1) / 16 - k0;
    const uint4 *w = p.w + ((size_t)tile * KT + k0) * 32 + lane;
    const uint32_t *act = p.act + (size_t)k0 * 64 + lane;
    uint4 a[TILES];
#pragma unroll
    for (int u = 0; u < TILES; u++) a[u] = load16_if(w + u * 32, u < n);
    const uint32_t o = threadIdx.x % 16, r = threadIdx.x / 16;
    float *y = p.y + blockIdx.y * p.quarter_stride + r * p.ldy + tile * 16 + o;
    let_next_start();
    wait_for_inputs();
    few_tiles<T, TILES, EIGHTS> tiles;
    tiles.ask(act, KT * 64, n, g, n_rows);
    float acc[EIGHTS][4] = {};
#pragma unroll
    for (int u = 0; u < TILES; u++)
#pragma unroll
        for (int j = 0; j < EIGHTS; j++) mma(acc[j], a[u], tiles.b[u][j], T());
#pragma unroll 1
    for (uint32_t k = TILES; k < n; k++) {
        few_tiles<T, 1, EIGHTS> more;
        more.ask(act + k * 64, KT * 64, 1, g, n_rows);
#pragma unroll
        for (int j = 0; j < EIGHTS; j++) mma(acc[j], w[k * 32], more.b[0][j], T());
    }
    few_leave(&part[warp][0][0], acc);
    __syncthreads(); // the four slices
#pragma unroll
    for (uint32_t j = 0; j < EIGHTS; j++) {
        const uint32_t at = r + 8 * j;
        if (at < n_rows && tile * 16 + o < p.O)
            y[8 * j * p.ldy] = ((part[0][at][o] + part[1][at][o]) + part[2][at][o]) + part[3][at][o];
    }
}

// ---- launchers ----

bool cuda_fused_possible(const struct cuda_shape *shape) { return dispatch_fused(this_device(), shape); }

template <class T, class Out>
static void few_of(enum dispatch_kernel k, const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early,
                   const Out &out, void *stream) {
    const uint32_t slice = cuda_pad16(w->cols) / FEW_WARPS; // columns, if all are of one length
    const bool groups = w->grouped && (w->cols % (16 * FEW_WARPS) || CUDA_GROUP % slice);
    if (w->format == CUDA_STORED)
        few_launch<T, 16, false>(k, w, act, n_rows, early, out, stream);
    else if (w->format == CUDA_INT4 && groups)
        few_launch<T, 4, true>(k, w, act, n_rows, early, out, stream);
    else if (w->format == CUDA_INT4)
        few_launch<T, 4, false>(k, w, act, n_rows, early, out, stream);
    else if (groups)
        few_launch<T, 8, true>(k, w, act, n_rows, early, out, stream);
    else
        few_launch<T, 8, false>(k, w, act, n_rows, early, out, stream);
}
template <class Out>
static void few(enum dispatch_kernel k, const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early,
                const Out &out, void *stream) {
    if constexpr (ending_of<Out> != DISPATCH_RESIDUAL)
        if (k == FEW_ROUND) return few_round(w, act, n_rows, early, out, stream);
    if (w->dtype == CUDA_F16)
        few_of<__half>(k, w, act, n_rows, early, out, stream);
    else
        few_of<__nv_bfloat16>(k, w, act, n_rows, early, out, stream);
}
// Of a step's rows: the kernel of few, or that of many.
template <class Out>
static void fused(const struct cuda_matrix *w, const void *act, uint32_t n_rows, bool early, const Out &out,
                  void *stream) {
    assert(n_rows > 0 && w->dtype != CUDA_F32 && on_16_bytes(w->data, act, w->scales));
    const enum dispatch_kernel kernel = kernel_of(DISPATCH_DECODE_PRODUCT, w, n_rows, ending_of<Out>);
    if (is_few(kernel))
        few(kernel, w, act, n_rows, early, out, stream);
    else
        wide_product(wide_operands{w, act}, out, n_rows, stream);
}
static row_norm norm_of(const struct cuda_normed *in, uint32_t n_rows) {
    return row_norm{in->squares, cuda_square_sums(n_rows, in->D), in->D, in->eps, true, n_rows > CUDA_FEW_ROWS};
}

void k_fused_linear(const struct cuda_matrix *w, const struct cuda_normed *in, uint32_t n_rows, float *y, size_t ldy,
                    void *stream) {
    assert(ldy >= w->rows && (!in->squares || in->D == w->cols));
    fused(w, in->act, n_rows, true, out_plain{norm_of(in, n_rows), y, ldy, w->rows}, stream);
}

void k_fused_conv(const struct cuda_conv *conv, const struct cuda_matrix *w, const struct cuda_normed *in,
                  void *stream) {
    const uint32_t n_rows = conv->n_rows;
    assert(n_rows > 0 && w->dtype == conv->shape.dtype && w->rows <= 2 * conv->shape.Ep &&
           on_16_bytes(w->data, in->act));
    assert(conv->shape.K <= 8 && conv->shape.K <= conv->shape.conv_ring && conv->shape.E % 16 == 0 && !conv->row_scale);
    dispatch_case c = {};
    c.op = conv->rows.lead ? DISPATCH_DRAFT_CONV : DISPATCH_DECODE_CONV, c.device = this_device();
    c.dtype = conv->shape.dtype, c.n_rows = n_rows, c.shape = &conv->shape, c.coded = w->format != CUDA_STORED;
    const enum dispatch_kernel kernel = dispatch_kernel_of(&c),
                               product = kernel_of(DISPATCH_DECODE_PRODUCT, w, n_rows, DISPATCH_PLAIN);
    if (kernel != CONV_FEW_4 && kernel != CONV_FEW_8) {
        k_fused_linear(w, in, n_rows, conv->az, 2 * (size_t)conv->shape.Ep, stream);
        conv_rows(*conv, stream);
    } else if (kernel == CONV_FEW_4)
        few(product, w, in->act, n_rows, false, out_conv<4>{*conv, norm_of(in, n_rows)}, stream);
    else
        few(product, w, in->act, n_rows, false, out_conv<8>{*conv, norm_of(in, n_rows)}, stream);
}

void k_fused_ffn(const struct cuda_matrix *w, const struct cuda_normed *in, uint32_t n_rows, void *act, void *stream) {
    assert(w->rows % 16 == 0 && (!in->squares || in->D == w->cols)); // a2 and g2 by eights
    fused(w, in->act, n_rows, true, out_ffn{norm_of(in, n_rows), act, w->rows / 2}, stream);
}

void k_fused_residual(const struct cuda_residual *r, uint32_t n_rows, void *stream) {
    assert(is_residual(r));
    fused(r->w, r->x, n_rows, !r->sums.squares, residual_of(r, n_rows > CUDA_FEW_ROWS), stream);
}

static few_part few_part_of(const struct cuda_product *p) {
    return {(const uint4 *)p->w->data,
            (const uint32_t *)p->x,
            p->y,
            p->ldy,
            p->stride,
            cuda_pad16(p->w->rows) / 16,
            p->w->rows};
}
void k_fused_linear_pair(const struct cuda_product *one, const struct cuda_product *two, uint32_t n_rows,
                         void *stream) {
    assert(n_rows > 0 && one->w->cols == two->w->cols && one->w->dtype == two->w->dtype);
    assert(one->ldy >= one->w->rows && two->ldy >= two->w->rows &&
           on_16_bytes(one->w->data, two->w->data, one->x, two->x));
    const enum dispatch_kernel kernel = kernel_of(DISPATCH_DECODE_PAIR, one->w, n_rows, DISPATCH_PLAIN);
    if (kernel != FEW_PAIR) // whole sums
        return wide_pair(*one, *two, n_rows, stream);
    const uint32_t KT = cuda_pad16(one->w->cols) / 16;
    const few_part p = few_part_of(one), q = few_part_of(two);
    const dim3 grid(p.tiles + q.tiles, 4);
    const bool half = one->w->dtype == CUDA_F16;
    const auto run = half ? few_pair_kernel<__half> : few_pair_kernel<__nv_bfloat16>;
    launch(run, grid, dim3(128), 0, stream, p, q, KT, n_rows);
}
