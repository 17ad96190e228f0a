// swa_decode_many.cu - E9 of many rows that are alone in their piece of a session, on Hopper: swa_decode.cu's
// arithmetic, to the bit, with keys and values through shared memory.
//
// A block a multiprocessor, four heads each; the ranges that the rows have (padding rows none), one row after the
// other, are cut into as many runs as four heads have blocks, and blocks which read the same keys are neighbours. Each
// warp has a ring of its own, of as many tiles as it takes of a range, and asks for the next range's while it works:
// what is on its way takes no registers, is waited for in order, and nothing stops where a row ends. (Loads to
// registers wait for those asked for later, too: a warp has six counters for twenty loads.)
#include "swa_decode.cuh"
#include <algorithm>

enum { MANY_HEADS = 4, MANY_ROWS = DISPATCH_WINDOW_ROWS };
template <class F, int P> struct many {
    using parts = tile_parts<F, P, MANY_HEADS>;
    enum {
        BLOCKS = F::EIGHTS, // of a multiprocessor: as many as there is shared memory for
        SUMS = 3 - BLOCKS,  // sets of the warps' sums
        KEYS = TILE * parts::KEY_BYTES,
        VALUES = TILE * parts::VALUE_BYTES,
        TILE_BYTES = KEYS + VALUES,
        RING = WARPS * TILES * TILE_BYTES,
        BYTES = RING + MANY_ROWS * 20 + 16
    };
};

struct many_row {
    uint32_t r, slot, newest, oldest_at;
};
// The rows of the list; first[at]: the ranges of the rows before, of all rows at [n_list] and as the result. By the
// whole block.
__device__ __forceinline__ uint32_t count_ranges(const decode_window &a, uint32_t n_list, many_row *rows,
                                                 uint32_t *first, uint32_t (&warp_ranges)[WARPS]) {
    const cuda_shape &s = a.shape;
    uint32_t n_own = 0, own[MANY_ROWS / THREADS]; // ranges of this thread's rows
#pragma unroll
    for (int i = 0; i < MANY_ROWS / THREADS; i++) {
        const uint32_t at = threadIdx.x * (MANY_ROWS / THREADS) + i;
        own[i] = 0;
        if (at >= n_list) continue;
        const uint32_t r = a.list ? (uint32_t)a.list[at] : at;
        const uint64_t pos = (uint64_t)a.rows.pos[r];
        const uint32_t newest = (uint32_t)min(pos + 1, (uint64_t)s.visible) - 1,
                       newest_at = (uint32_t)(pos % s.ring_keys);
        rows[at] = many_row{r, (uint32_t)a.rows.slot[r], newest,
                            newest_at >= newest ? newest_at - newest : newest_at + s.ring_keys - newest};
        own[i] = rows[at].slot == s.n_slots ? 0 : newest / RANGE + 1, n_own += own[i];
    }
    uint32_t all, before = sum_before(n_own, warp_ranges, all);
#pragma unroll
    for (int i = 0; i < MANY_ROWS / THREADS; i++) {
        const uint32_t at = threadIdx.x * (MANY_ROWS / THREADS) + i;
        if (at <= n_list) first[at] = before;
        before += own[i];
    }
    if (threadIdx.x == 0 && n_list == MANY_ROWS) first[n_list] = all;
    return all;
}

// A warp's tile from its ring (tile_parts).
template <class F, int P, class KEYS, class VALUES>
__device__ __forceinline__ void many_read(KEYS &key, VALUES &value, const unsigned char *from) {
    using G = many<F, P>;
    using parts = typename G::parts;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < parts::KEY; i++) key[i] = *(const uint4 *)(from + g * parts::KEY_BYTES + (4 * i + t) * 16);
#pragma unroll
    for (int k = 0; k < TILE; k++)
#pragma unroll
        for (int c = 0; c < parts::VALUE; c++)
            value[k][c] = *(const typename parts::value *)(from + G::KEYS + k * parts::VALUE_BYTES +
                                                           (c * 32 + lane) * parts::BYTES);
}
// The newest key, which is the tile's key `have`, and its values.
template <class F, int P, class KEYS, class VALUES>
__device__ __forceinline__ void many_newest(KEYS &key, VALUES &value, uint32_t have, const uint4 *new_key,
                                            const uint4 *new_value) {
    using parts = typename many<F, P>::parts;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int i = 0; i < parts::KEY; i++)
        if (g == have) key[i] = new_key[4 * i + t];
#pragma unroll
    for (int k = 0; k < TILE; k++)
#pragma unroll
        for (int c = 0; c < parts::VALUE; c++)
            if (k == have) value[k][c] = ((const typename parts::value *)new_value)[c * 32 + lane];
}

// A warp's tile that it asks for: n keys, or fewer than a tile's and zeros, from `place` of the ring on.
template <class F, int P> struct many_tile {
    using parts = typename many<F, P>::parts;
    const typename F::kept *keys, *values;
    uint32_t n, place;
    __device__ __forceinline__ void ask(unsigned char *to, uint32_t ring, uint32_t value_row) const {
        enum { PIECE = 16 / parts::SIZE };
        const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
        unsigned char *const to_key = to + g * parts::KEY_BYTES + t * 16, *const to_value = to + many<F, P>::KEYS +
                                                                                            lane * parts::BYTES;
        const auto key_at = [&](uint32_t at) { return keys + (size_t)at * P + t * PIECE; };
        const auto value_at = [&](uint32_t at) { return values + (size_t)at * value_row + lane * parts::N; };
        const auto ask_key = [&](const typename F::kept *from, bool wanted) {
#pragma unroll
            for (int i = 0; i < parts::KEY; i++) ask16(to_key + i * 64, from + i * 4 * PIECE, wanted);
        };
        const auto ask_value = [&](int k, const typename F::kept *from, bool wanted) {
#pragma unroll
            for (int c = 0; c < parts::VALUE; c++)
                ::ask<parts::BYTES>(to_value + k * parts::VALUE_BYTES + c * 32 * parts::BYTES, from + c * 32 * parts::N,
                                    wanted);
        };
        if (n == TILE && place + TILE <= ring) { // they lie together: a third of the instructions
            const typename F::kept *from = value_at(place);
            ask_key(key_at(place + g), true);
#pragma unroll
            for (int k = 0; k < TILE; k++, from += value_row) ask_value(k, from, true);
        } else {
            const auto placed = [&](uint32_t i) { return place + i < ring ? place + i : place + i - ring; };
            ask_key(key_at(placed(g)), g < n);
#pragma unroll
            for (int k = 0; k < TILE; k++) ask_value(k, value_at(placed(k)), k < n);
        }
    }
};

// The row of the range after q, which is row at's; q1: where the block's ranges end.
__device__ __forceinline__ uint32_t row_after(const uint32_t *first, uint32_t at, uint32_t q, uint32_t q1) {
    uint32_t next_at = at;
    if (q + 1 == first[at + 1]) {
        do next_at++;
        while (q + 1 < q1 && first[next_at + 1] == q + 1); // it has none
    }
    return next_at;
}

// runs: of ranges, over the rows of the list.
template <class F, int P>
__global__ void __launch_bounds__(THREADS, (many<F, P>::BLOCKS))
    decode_many_kernel(const __grid_constant__ decode_window a, uint32_t n_list, uint32_t runs) {
    using G = many<F, P>;
    using parts = typename G::parts;
    using kept = typename F::kept;
    constexpr int HEADS = MANY_HEADS, KEY = parts::KEY, VALUE = parts::VALUE;
    extern __shared__ __align__(128) unsigned char ring[]; // [WARPS][TILES]: keys, values
    __shared__ uint4 qs[fragment_bytes<P>() / 16], new_key[parts::KEY_BYTES / 16], new_value[parts::VALUE_BYTES / 16];
    __shared__ __align__(16) float sums[G::SUMS][WARPS][HEADS * P]; // a range's; where there are two, the next one's
    __shared__ float2 sums_ml[G::SUMS][WARPS][HEADS];
    __shared__ uint32_t warp_ranges[WARPS];
    many_row *const rows = (many_row *)(ring + G::RING);    // of the list
    uint32_t *const first = (uint32_t *)(rows + MANY_ROWS); // of a row's ranges, counted over all rows; [n_list] all
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32, h0 = blockIdx.x % (a.shape.H / HEADS) * HEADS,
                   run = blockIdx.x / (a.shape.H / HEADS);
    if (!a.early) wait_for_inputs();
    const uint32_t all = count_ranges(a, n_list, rows, first, warp_ranges);
    for (uint32_t i = threadIdx.x; i < fragment_bytes<P>() / 16; i += THREADS) qs[i] = make_uint4(0, 0, 0, 0);
    __syncthreads();                                             // the rows, zeros
    uint32_t q = (uint32_t)((uint64_t)all * run / runs), at = 0; // of all ranges; its row
    const uint32_t q1 = (uint32_t)((uint64_t)all * (run + 1) / runs);
    for (uint32_t step = MANY_ROWS; step; step >>= 1)
        if (at + step < n_list && first[at + step] <= q) at += step;
    const auto bring = [&](uint32_t q, uint32_t at, int tile) { // this warp's tile of range q
        if (q < q1) {
            const many_row &of = rows[at];
            const uint32_t j = (q - first[at]) * RANGE + tile * STEP + warp * TILE;
            const many_tile<F, P> x = {
                (const kept *)s.keys + (size_t)of.slot * s.keys_slot + a.layer * s.keys_layer,
                (const kept *)s.values + (size_t)of.slot * s.values_slot + a.layer * s.values_layer + h0 * P,
                j < of.newest ? min((uint32_t)TILE, of.newest - j) : 0,
                of.oldest_at + j < s.ring_keys ? of.oldest_at + j : of.oldest_at + j - s.ring_keys};
            x.ask(ring + (warp * TILES + tile) * G::TILE_BYTES, s.ring_keys, s.H * P);
        }
        asked();
    };
    for (int tile = 0; tile < TILES; tile++) bring(q, at, tile);
    if (a.early) wait_for_inputs();
    let_next_start();

    const float scale = rsqrtf((float)P) * 1.4426950408889634f; // powers of two
    bool new_row = true;
    for (uint32_t parity = 0; q < q1; parity = (parity + 1) % G::SUMS) {
        const uint32_t b = q - first[at];
        const uint32_t next_at = row_after(first, at, q, q1);
        const many_row of = rows[at];
        const uint32_t newest = of.newest, n = newest + 1;
        if (new_row) {
            __syncthreads(); // nobody reads the queries before them any more, nor the sums, where heads are rotated
            const uint32_t newest_at =
                of.oldest_at + newest < s.ring_keys ? of.oldest_at + newest : of.oldest_at + newest - s.ring_keys;
            kept *keys = (kept *)s.keys + (size_t)of.slot * s.keys_slot + a.layer * s.keys_layer,
                 *values = (kept *)s.values + (size_t)of.slot * s.values_slot + a.layer * s.values_layer;
            make_queries<F, P, HEADS, true>(a, of.r, h0, first[at + 1] <= q1, newest_place<F>{newest_at, keys, values},
                                            made_queries{sums[0][0], qs, new_key, new_value});
            __syncthreads(); // queries, the newest key and values
        }
        tile_sums<F, P, HEADS> tiles;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const uint32_t j = b * RANGE + tile * STEP + warp * TILE,
                           have = j < newest ? min((uint32_t)TILE, newest - j) : 0;
            const unsigned char *from = ring + (warp * TILES + tile) * G::TILE_BYTES;
            await_all_but<TILES - 1>();
            __syncwarp(); // the tile is there
            uint4 key[KEY];
            typename parts::value value[TILE][VALUE];
            many_read<F, P>(key, value, from);
            __syncwarp(); // all have read the tile
            bring(q + 1, next_at, tile);
            if (have < TILE && j <= newest)
                many_newest<F, P>(key, value, have, new_key, new_value); // beyond it are zeros
            float score[4] = {};
            score_fragments<F, P, HEADS>(score, qs, key);
            typename F::weight w[2];
            uint32_t head[VALUE];
            tiles.weigh(score, j, n, scale, w, head);
#pragma unroll
            for (int k = 0; k < TILE; k++)
#pragma unroll
                for (int c = 0; c < VALUE; c++) tiles.add(k, c, w, head, value[k][c]);
            tiles.end();
        }
        if (G::SUMS == 1) __syncthreads(); // those of the range before are added up
        tiles.leave(sums[parity][warp], sums_ml[parity][warp]);
        __syncthreads(); // the warps' sums; those of the range before are free
        fold_warps<P, HEADS>(a, sums[parity], sums_ml[parity], ((size_t)at * a.n_ranges + b) * s.H + h0);
        new_row = next_at != at, at = next_at, q++;
    }
}

// ---- launcher ----

template <class F, int P> static void many_launch(const decode_window &a, uint32_t n_list, void *stream) {
    const auto kernel = decode_many_kernel<F, P>;
    const uint32_t runs = dispatch_window_runs(this_device(), &a.shape);
    allow_shared(kernel, many<F, P>::BYTES);
    launch(kernel, dim3(a.shape.H / MANY_HEADS * runs), dim3(THREADS), many<F, P>::BYTES, stream, a, n_list, runs);
}
void decode_many(const decode_window &a, uint32_t n_list, void *stream) {
    FOR_WINDOW(a.shape,
               a.shape.P == 64 ? many_launch<F, 64>(a, n_list, stream) : many_launch<F, 128>(a, n_list, stream));
}
