// persistent_window.cuh - the window's two stages of the persistent decode step (E9): ranges of keys, then their
// results put together, to the bits of decode_window_kernel and decode_combine_kernel. Half a block, eight warps, has a
// range and some heads of a row; then a head of a row.
#pragma once
#include "kernels/cuda/decode/persistent.cuh"
#include "kernels/cuda/decode/swa_decode.cuh"

template <int P> struct window_sizes {
    enum { HEADS = 256 / P, KEY = P / 32, Q_ROW = P / 8 + 4 }; // a lane has 16 bytes of the values of these heads
};
template <int P> struct window_scratch {
    using size = window_sizes<P>;
    uint4 qs[2 * size::HEADS * size::Q_ROW], new_key[P / 8], new_value[size::HEADS * P / 8];
    float sums[WARPS][size::HEADS * P];
    float2 sums_ml[WARPS][size::HEADS];
};

// What a row's window is.
struct row_window {
    uint32_t n, newest, newest_at, oldest_at, n_ranges;
    __device__ __forceinline__ row_window(const cuda_shape &s, int64_t pos) {
        n = (uint32_t)min((uint64_t)pos + 1, (uint64_t)s.visible), newest = n - 1;
        newest_at = (uint32_t)((uint64_t)pos % s.ring_keys);
        oldest_at = newest_at >= newest ? newest_at - newest : newest_at + s.ring_keys - newest;
        n_ranges = (n + RANGE - 1) / RANGE;
    }
};

// Queries, and where it is the range's the newest key and its values, by the half.
template <class T, int P, int R>
__device__ __forceinline__ void step_queries(const step_block<R> &b, uint32_t layer, uint32_t r, uint32_t h0, bool own,
                                             uint32_t newest_at, T *keys, T *values, window_scratch<P> &sh) {
    using size = window_sizes<P>;
    const cuda_shape &s = b.a.shape;
    const cuda_step_layer &w = b.layers()[layer];
    const uint32_t lane = b.lane, value_row = s.H * P, n_jobs = own ? 2 * size::HEADS + 1 : (uint32_t)size::HEADS;
    float *head = sh.sums[0];
#pragma unroll 1
    for (uint32_t job = b.warp % WARPS; job < n_jobs; job += WARPS) {
        const uint32_t h = job < size::HEADS ? h0 + job : job == size::HEADS ? s.H : s.H + h0 + job - size::HEADS;
        float2 turn[P / 32];
        float x[P / 32];
        if (job <= size::HEADS) turn_of<P>(s, (const float2 *)b.a.turn + (size_t)r * (s.rot_dim / 2), turn);
        uint32_t data[P / 32];
        const uint2 *from = b.a.words.qkv + (size_t)r * (2 * s.H + 1) * P + h * P + lane;
        await_words(
            data, b.made(layer), b.note(layer, 9), [](int) { return true; }, [&](int i) { return from + 32 * i; });
#pragma unroll
        for (int i = 0; i < P / 32; i++) x[i] = __uint_as_float(data[i]);
        if (job <= size::HEADS) {
            turn_head<P>(s, turn, job < size::HEADS ? w.q_norm : w.k_norm, head + job * P, x);
            T *high = job < size::HEADS ? (T *)(sh.qs + 2 * job * size::Q_ROW) : (T *)sh.new_key;
#pragma unroll
            for (int i = 0; i < P / 32; i++) {
                const uint32_t p = lane + 32 * i;
                T low;
                const T y = two_parts(x[i], low);
                high[p] = y;
                if (job < size::HEADS)
                    high[size::Q_ROW * 8 + p] = low;
                else if (h0 == 0)
                    keys[newest_at * P + p] = y;
            }
        } else {
#pragma unroll
            for (int i = 0; i < P / 32; i++) {
                const uint32_t p = (job - size::HEADS - 1) * P + lane + 32 * i;
                ((T *)sh.new_value)[p] = from_float<T>(x[i]);
                values[newest_at * value_row + h0 * P + p] = from_float<T>(x[i]);
            }
        }
    }
}

// Range `range` of row r, heads from h0 on, by a half of the block.
template <class T, int P, int R>
__device__ __forceinline__ void window_range(const step_block<R> &b, uint32_t layer, uint32_t r, uint32_t range,
                                             uint32_t h0, uint32_t most_ranges) {
    using size = window_sizes<P>;
    const cuda_shape &s = b.a.shape;
    const uint32_t half = b.warp / WARPS, lane = b.lane, g = lane / 4, t = lane % 4, ring = s.ring_keys;
    window_scratch<P> &sh = ((window_scratch<P> *)b.scratch())[half];
    const row_window row(s, b.pos()[r]);
    const uint32_t n = row.n, newest = row.newest, value_row = s.H * P;
    T *keys = (T *)s.keys + (size_t)b.slot()[r] * s.keys_slot + layer * s.keys_layer;
    T *values = (T *)s.values + (size_t)b.slot()[r] * s.values_slot + layer * s.values_layer;
    const auto place = [&](uint32_t j) {
        return row.oldest_at + j < ring ? row.oldest_at + j : row.oldest_at + j - ring;
    };
    uint4 key[size::KEY], value[TILE][1]; // the next tile is on its way while a warp works on this one
    const auto fetch_keys = [&](uint32_t j) {
        const uint4 *p = (const uint4 *)(keys + place(j + g) * P) + t;
#pragma unroll
        for (int i = 0; i < size::KEY; i++) key[i] = stream16(p + 4 * i, j + g < newest);
    };
    const auto fetch_value = [&](uint32_t j, int k) {
        value[k][0] = stream16((const uint4 *)(values + (place(j + k) * value_row + h0 * P)) + lane, j + k < newest);
    };
    uint32_t j = range * RANGE + b.warp % WARPS * TILE; // the tile's first key
    fetch_keys(j);
#pragma unroll
    for (int k = 0; k < TILE; k++) fetch_value(j, k);
    step_queries<T, P>(b, layer, r, h0, newest / RANGE == range, row.newest_at, keys, values, sh);
    barrier_of(STEP_HALF + half, THREADS);                      // queries, the newest key and values
    const float scale = rsqrtf((float)P) * 1.4426950408889634f; // powers of two
    tile_sums<1> tiles;
#pragma unroll 1
    for (int tile = 0; tile < TILES; tile++) {
        if (newest - j < TILE) {
            const uint32_t own = newest - j;
#pragma unroll
            for (int i = 0; i < size::KEY; i++)
                if (g == own) key[i] = sh.new_key[4 * i + t];
#pragma unroll
            for (int k = 0; k < TILE; k++)
                if (k == own) value[k][0] = sh.new_value[lane];
        }
        const uint32_t next = tile + 1 < TILES ? j + STEP : n;
        float score[4] = {};
        score_tile<T, P, size::HEADS, size::Q_ROW>(score, sh.qs, key);
        fetch_keys(next);
        float w[2];
        uint32_t head[1];
        tiles.template weigh<P>(score, j, n, scale, w, head);
#pragma unroll
        for (int k = 0; k < TILE; k++) {
            tiles.template add<T>(k, 0, w, head, value[k][0]);
            fetch_value(next, k);
        }
        j += STEP;
    }
    tiles.template leave<size::HEADS>(sh.sums[b.warp % WARPS], sh.sums_ml[b.warp % WARPS]);
    barrier_of(STEP_HALF + half, THREADS); // the warps' sums
    const size_t at = ((size_t)r * most_ranges + range) * s.H + h0;
    const uint32_t epoch = b.made(layer);
    fold_sums<P, size::HEADS>(
        sh.sums, sh.sums_ml, threadIdx.x % THREADS,
        [&](uint32_t o, float2 x) {
            give_float(b.a.words.part + at * P + o, x.x, epoch),
                give_float(b.a.words.part + at * P + o + 1, x.y, epoch);
        },
        [&](uint32_t h, float2 ml) {
            give_float(b.a.words.part_ml + (at + h) * 2, ml.x, epoch);
            give_float(b.a.words.part_ml + (at + h) * 2 + 1, ml.y, epoch);
        });
    barrier_of(STEP_HALF + half, THREADS); // the scratch memory is free
}

// The block's share of all rows' ranges.
template <class T, int P, int R> __device__ __forceinline__ void window_stage(const step_block<R> &b, uint32_t layer) {
    static_assert(sizeof(window_scratch<P>) <= step_places::WINDOW_BYTES, "step_places knows its size");
    const cuda_shape &s = b.a.shape;
    const uint32_t groups = s.H / window_sizes<P>::HEADS, most_ranges = (s.visible + RANGE - 1) / RANGE;
    uint32_t all = 0, before = 0, r = 0, own = 0; // ranges: of all rows, of those before row r, of row r
    const auto ranges_of = [&](uint32_t of) { return b.is_padding(of) ? 0 : row_window(s, b.pos()[of]).n_ranges; };
#pragma unroll 1
    for (uint32_t i = 0; i < R; i++) all += ranges_of(i);
    own = ranges_of(0);
    for (uint32_t unit = b.warp / WARPS * gridDim.x + blockIdx.x; unit < all * groups; unit += 2 * gridDim.x) {
        while (unit / groups >= before + own) before += own, own = ranges_of(++r);
        window_range<T, P>(b, layer, r, unit / groups - before, unit % groups * window_sizes<P>::HEADS, most_ranges);
    }
    if (blockIdx.x < all * groups) barrier_of(STEP_ALL, STEP_WARPS * 32); // both halves' scratch memory is free
}

// Head h of row r, by a half of the block.
template <class T, int P, int R>
__device__ __forceinline__ void combine_head(const step_block<R> &b, uint32_t layer, uint32_t r, uint32_t h) {
    const cuda_shape &s = b.a.shape;
    const uint32_t half = b.warp / WARPS, lane = b.lane, thread = threadIdx.x % THREADS, group = thread / (P / 2),
                   o = thread % (P / 2) * 2, epoch = b.made(layer);
    float2(*sums)[P / 2] = (float2(*)[P / 2])(b.scratch() + half * GROUPS * P); // [GROUPS]
    const uint32_t most_ranges = (s.visible + RANGE - 1) / RANGE;
    const bool padding = b.is_padding(r);
    range_sums all;
    if (!padding && group < GROUPS) {
        const size_t row = (size_t)r * most_ranges;
        const uint32_t n = row_window(s, b.pos()[r]).n_ranges;
        all.add(n, group, [&](uint32_t b0, float2 &ml, float2(&x)[32 / GROUPS]) {
            const bool is = b0 + lane < n;
            const uint2 *from_ml = b.a.words.part_ml + ((row + b0 + lane) * s.H + h) * 2,
                        *from = b.a.words.part + ((row + b0 + group) * s.H + h) * P + o;
            await_pieces<1 + 32 / GROUPS>(
                epoch, b.note(layer, 10), [&](int i) { return i == 0 ? is : b0 + group + GROUPS * (i - 1) < n; },
                [&](int i) { return i == 0 ? from_ml : from + (size_t)(GROUPS * (i - 1)) * s.H * P; },
                [&](int i, uint32_t first, uint32_t second) {
                    const float2 v = make_float2(__uint_as_float(first), __uint_as_float(second));
                    if (i == 0)
                        ml = is ? v : make_float2(-INFINITY, 0);
                    else
                        x[i - 1] = v;
                });
        });
        sums[group][o / 2] = all.sum;
    }
    barrier_of(STEP_HALF + half, THREADS); // the groups' sums
    if (group == 0) {
        float2 sum = all.sum;
#pragma unroll
        for (int i = 1; i < GROUPS; i++) sum.x += sums[i][o / 2].x, sum.y += sums[i][o / 2].y;
        const float out[1] = {__fdividef(sum.x, all.total)}, out_two[1] = {__fdividef(sum.y, all.total)};
        const uint32_t pair =
            padding ? 0 : narrowed<T, 1>(out).word[0] | (uint32_t)narrowed<T, 1>(out_two).word[0] << 16;
        const uint32_t column = h * P + o;
        give_word(b.a.words.heads + ((size_t)(column / 16) * R + r) * 8 + act_slot(column % 16 / 2), pair, epoch);
    }
    barrier_of(STEP_HALF + half, THREADS); // they are free
}

template <class T, int P, int R> __device__ __forceinline__ void combine_stage(const step_block<R> &b, uint32_t layer) {
    const uint32_t H = b.a.shape.H, from_last = gridDim.x - 1 - blockIdx.x; // the first blocks had more ranges
    for (uint32_t unit = b.warp / WARPS * gridDim.x + from_last; unit < R * H; unit += 2 * gridDim.x)
        combine_head<T, P>(b, layer, unit / H, unit % H);
    if (from_last < R * H) barrier_of(STEP_ALL, STEP_WARPS * 32); // both halves' scratch memory is free
}
