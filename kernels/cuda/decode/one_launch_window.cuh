// one_launch_window.cuh - the window's two stages of a decode step as one launch (E9): ranges of keys, then their
// results put together, to the bits of decode_window_kernel and decode_combine_kernel. Half a block, eight warps, has a
// range and some heads of a row; then a head of a row.
#pragma once
#include "kernels/cuda/decode/one_launch.cuh"
#include "kernels/cuda/decode/swa_decode.cuh"

template <class F, int P> struct window_sizes {
    enum { HEADS = STEP_HEADS_P / P };
    using parts = tile_parts<F, P, HEADS>;
    static_assert(parts::VALUE == 1 && parts::N == 8, "a lane has eight values of a key");
};
template <class F, int P> struct window_scratch {
    using size = window_sizes<F, P>;
    using parts = typename size::parts;
    uint4 qs[2 * size::HEADS * parts::Q_ROW], new_key[parts::KEY_BYTES / 16], new_value[parts::VALUE_BYTES / 16];
    __device__ __forceinline__ typename parts::value own_value(uint32_t lane) const {
        return ((const typename parts::value *)new_value)[lane];
    }
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
template <class F, int P, int R>
__device__ __forceinline__ void step_queries(const step_block<R> &b, uint32_t layer, uint32_t r, uint32_t h0, bool own,
                                             typename F::kept *ring_key, typename F::kept *ring_values,
                                             window_scratch<F, P> &sh) {
    using size = window_sizes<F, P>;
    const cuda_shape &s = b.a.shape;
    const cuda_step_layer &w = b.layers()[layer];
    const uint32_t lane = b.lane, n_jobs = own ? 2 * size::HEADS + 1 : (uint32_t)size::HEADS;
    float *head = sh.sums[0];
#pragma unroll 1
    for (uint32_t job = b.warp % WARPS; job < n_jobs; job += WARPS) {
        const uint32_t h = job < size::HEADS ? h0 + job : job == size::HEADS ? s.H : s.H + h0 + job - size::HEADS;
        float2 rope[P / 32];
        float x[P / 32];
        if (job <= size::HEADS) rope_of<P>(s, (const float2 *)b.a.rope + (size_t)r * (s.rot_dim / 2), rope);
        uint32_t data[P / 32];
        const uint2 *from = b.a.words.qkv + (size_t)r * (2 * s.H + 1) * P + h * P + lane;
        await_words(
            data, b.made(layer), b.note(layer, 9), [](int) { return true; }, [&](int i) { return from + 32 * i; });
#pragma unroll
        for (int i = 0; i < P / 32; i++) x[i] = __uint_as_float(data[i]);
        if (job <= size::HEADS) {
            rotate_head<P>(s, rope, job < size::HEADS ? w.q_norm : w.k_norm, head + job * P, x);
            leave_rotated<F, P, size::HEADS>(x, job, h0 == 0, ring_key, sh.qs, sh.new_key);
        } else {
            leave_values<F, P>(x, job - size::HEADS - 1, ring_values, sh.new_value);
        }
    }
}

// Range `range` of row r, heads from h0 on, by a half of the block.
template <class F, int P, int R>
__device__ __forceinline__ void window_range(const step_block<R> &b, uint32_t layer, uint32_t r, uint32_t range,
                                             uint32_t h0, uint32_t most_ranges) {
    using size = window_sizes<F, P>;
    using parts = typename size::parts;
    using kept = typename F::kept;
    enum { KEY = parts::KEY, N = parts::N };
    const cuda_shape &s = b.a.shape;
    const uint32_t half = b.warp / WARPS, lane = b.lane, g = lane / 4, t = lane % 4, ring = s.ring_keys;
    window_scratch<F, P> &sh = ((window_scratch<F, P> *)b.scratch())[half];
    const row_window row(s, b.pos()[r]);
    const uint32_t n = row.n, newest = row.newest, value_row = s.H * P;
    kept *keys = (kept *)s.keys + (size_t)b.slot()[r] * s.keys_slot + layer * s.keys_layer;
    kept *values = (kept *)s.values + (size_t)b.slot()[r] * s.values_slot + layer * s.values_layer;
    const auto place = [&](uint32_t j) {
        return row.oldest_at + j < ring ? row.oldest_at + j : row.oldest_at + j - ring;
    };
    uint4 key[KEY]; // the next tile is on its way while a warp works on this one
    typename parts::value value[TILE];
    const auto fetch_keys = [&](uint32_t j) {
        const uint4 *p = (const uint4 *)(keys + place(j + g) * P) + t;
#pragma unroll
        for (int i = 0; i < KEY; i++) key[i] = stream16(p + 4 * i, j + g < newest);
    };
    const auto fetch_value = [&](uint32_t j, int k) {
        stream(value[k], values + (place(j + k) * value_row + h0 * P) + lane * N, j + k < newest);
    };
    uint32_t j = range * RANGE + b.warp % WARPS * TILE; // the tile's first key
    fetch_keys(j);
#pragma unroll
    for (int k = 0; k < TILE; k++) fetch_value(j, k);
    step_queries<F, P>(b, layer, r, h0, newest / RANGE == range, keys + row.newest_at * P,
                       values + row.newest_at * (s.H * P) + h0 * P, sh);
    barrier_of(STEP_HALF + half, THREADS);                      // queries, the newest key and values
    const float scale = rsqrtf((float)P) * 1.4426950408889634f; // powers of two
    tile_sums<F, P, size::HEADS> tiles;
#pragma unroll 1
    for (int tile = 0; tile < TILES; tile++) {
        if (newest - j < TILE) {
            const uint32_t own = newest - j;
#pragma unroll
            for (int i = 0; i < KEY; i++)
                if (g == own) key[i] = sh.new_key[4 * i + t];
#pragma unroll
            for (int k = 0; k < TILE; k++)
                if (k == own) value[k] = sh.own_value(lane);
        }
        const uint32_t next = tile + 1 < TILES ? j + STEP : n;
        float score[4] = {};
        score_tile<F, P, size::HEADS>(score, sh.qs, key);
        fetch_keys(next);
        typename F::weight w[2];
        uint32_t head[1];
        tiles.weigh(score, j, n, scale, w, head);
#pragma unroll
        for (int k = 0; k < TILE; k++) {
            tiles.add(k, 0, w, head, value[k]);
            fetch_value(next, k);
        }
        tiles.end();
        j += STEP;
    }
    tiles.leave(sh.sums[b.warp % WARPS], sh.sums_ml[b.warp % WARPS]);
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

// ---- one row: a range and some heads of it are a whole block's ----

// By the block, before anything: the row's window, its cosines and sines.
template <class F, int P, int R> __device__ __forceinline__ void begin_window(const step_block<R> &b) {
    static_assert(sizeof(window_own) <= 64 && window_sizes<F, P>::HEADS * P == STEP_HEADS_P, "step_places knows");
    const cuda_shape &s = b.a.shape;
    if (threadIdx.x == 0) {
        const row_window row(s, b.a.rows.pos[0]);
        const bool padding = (uint32_t)b.a.rows.slot[0] == s.n_slots;
        const uint32_t n_whole = row.n_ranges - (row.n_ranges > 1 && row.newest % RANGE == 0),
                       n = n_whole * (s.H / window_sizes<F, P>::HEADS), blocks = n_blocks_now();
        *b.own() = {padding || blockIdx.x >= n ? 0 : (n - blockIdx.x + blocks - 1) / blocks,
                    row.n,
                    row.newest,
                    row.newest_at,
                    row.oldest_at,
                    row.n_ranges,
                    n_whole};
    }
    for (uint32_t i = threadIdx.x; i < s.rot_dim / 2; i += STEP_THREADS)
        b.own_rope()[i] = ((const float2 *)b.a.rope)[i];
}
// The norms' weights into shared memory, a stage before: those of a warp's query or key.
template <class F, int P, int R> __device__ __forceinline__ void norms_near(const step_block<R> &b, uint32_t layer) {
    const uint32_t job = STEP_WARPS - 1 - b.warp;
    if (R > 1 || job > window_sizes<F, P>::HEADS || !b.a.shape.qk_norm) return;
    if (!b.own()->n_units) return; // nobody would wait for them
    const cuda_step_layer &w = b.layers()[layer];
    const float *from = job < window_sizes<F, P>::HEADS ? w.q_norm : w.k_norm;
    float *to = b.own_norm() + job * P;
#ifdef ROD_KERNEL_RACECHECK // it takes a lane's copies in two layers for a race, though the lane waits for the first
    for (int i = 0; i < P / 32; i++) to[b.lane + 32 * i] = from[b.lane + 32 * i];
#else
#pragma unroll
    for (int i = 0; i < P / 32; i++)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to + b.lane + 32 * i)),
                     "l"(from + b.lane + 32 * i)
                     : "memory");
#endif
    asked();
}
// By a warp: a query, the newest key, or a head's newest values.
template <class F, int P, int R>
__device__ __forceinline__ void await_query(const step_block<R> &b, uint32_t layer, uint32_t h0, uint32_t job,
                                            float (&x)[P / 32]) {
    using size = window_sizes<F, P>;
    const uint32_t H = b.a.shape.H, h = job < size::HEADS    ? h0 + job
                                        : job == size::HEADS ? H
                                                             : H + h0 + job - size::HEADS;
    uint32_t data[P / 32];
    const uint2 *from = b.a.words.qkv + h * P + b.lane;
    await_words(
        data, b.made(layer), b.note(layer, 9), [](int) { return true; }, [&](int i) { return from + 32 * i; });
#pragma unroll
    for (int i = 0; i < P / 32; i++) x[i] = __uint_as_float(data[i]);
}
template <class F, int P, int R>
__device__ __forceinline__ void make_query(const step_block<R> &b, uint32_t h0, uint32_t job, float (&x)[P / 32],
                                           typename F::kept *ring_key, typename F::kept *ring_values,
                                           window_scratch<F, P> &sh) {
    using size = window_sizes<F, P>;
    const cuda_shape &s = b.a.shape;
    if (job > size::HEADS) {
        leave_values<F, P>(x, job - size::HEADS - 1, ring_values, sh.new_value);
        return;
    }
    float2 rope[P / 32] = {};
    rope_of<P>(s, b.own_rope(), rope);
    await_all_but<0>();
    rotate_head<P>(
        s, rope, [&](int i) { return b.own_norm()[job * P + b.lane + 32 * i]; }, sh.sums[0] + job * P, x);
    leave_rotated<F, P, size::HEADS>(x, job, h0 == 0, ring_key, sh.qs, sh.new_key);
}

// The range that is the newest key (the j-th) alone, by a warp, as near_last of swa_decode_near.cu.
template <class F, int P, int R>
__device__ __forceinline__ void window_last(const step_block<R> &b, const window_scratch<F, P> &sh, uint32_t j,
                                            float scale, size_t at, uint32_t epoch) {
    using size = window_sizes<F, P>;
    const uint32_t lane = b.lane, g = lane / 4, t = lane % 4;
    enum { KEY = size::parts::KEY, N = size::parts::N };
    uint4 key[KEY];
#pragma unroll
    for (int i = 0; i < KEY; i++) key[i] = g ? make_uint4(0, 0, 0, 0) : sh.new_key[4 * i + t];
    tile_sums<F, P, size::HEADS> tiles;
    uint32_t head[1];
    typename F::weight w[2];
    float score[4] = {};
    score_tile<F, P, size::HEADS>(score, sh.qs, key);
    tiles.weigh(score, j, j + 1, scale, w, head);
    tiles.add(0, 0, w, head, sh.own_value(lane));
    tiles.end();
    const float top = __shfl_sync(0xffffffffu, tiles.top, head[0]), m = fmaxf(-INFINITY, top),
                f = power(__fsub_rn(top, m)), none = power(__fsub_rn(-INFINITY, m));
    const auto fold = [&](float x) { return __fmaf_rn(none, 0.0f, __fmaf_rn(f, x, 0.0f)); };
    const float total = fold(__shfl_sync(0xffffffffu, tiles.sum, head[0]));
#pragma unroll
    for (int d = 0; d < N; d++) give_float(b.a.words.part + at * P + lane * N + d, fold(tiles.acc[0][d]), epoch);
    if (lane % (P / N) == 0) {
        uint2 *ml = b.a.words.part_ml + (at + lane / (P / N)) * 2;
        give_float(ml, m, epoch), give_float(ml + 1, total, epoch);
    }
}

// The next place of the warp's ring, and that it has been read.
template <int R>
__device__ __forceinline__ const unsigned char *window_place(const step_block<R> &b, const ring_reader &ring,
                                                             const wait_note &note) {
    ring_await(b.full(b.warp) + ring.at, ring.parity, note);
    return b.ring(b.warp) + ring.at * place_bytes(R);
}
template <int R> __device__ __forceinline__ void leave_place(const step_block<R> &b, ring_reader &ring) {
    __syncwarp(); // it is read
    if (b.lane < RING_READERS) ring_release(b.empty(b.warp) + ring.at);
    if (++ring.at == b.a.places) ring.at = 0, ring.parity ^= 1;
}

// A range and some heads: a warp has one of its 16 tiles, which comes through its ring as weights do. The second eight
// warps go on from the sums of the first.
template <class F, int P, int R>
__device__ __forceinline__ void window_whole(const step_block<R> &b, uint32_t layer, uint32_t range, uint32_t h0) {
    using size = window_sizes<F, P>;
    using parts = typename size::parts;
    using kept = typename F::kept;
    enum { KEY = parts::KEY, N = parts::N };
    const cuda_shape &s = b.a.shape;
    const window_own &own = *b.own();
    const uint32_t lane = b.lane, g = lane / 4, t = lane % 4, n = own.n, newest = own.newest, pair = b.warp % WARPS,
                   j = range * RANGE + b.warp * TILE, job = STEP_WARPS - 1 - b.warp;
    const bool second = b.warp >= WARPS, lone = own.n_whole < own.n_ranges && range + 1 == own.n_whole;
    window_scratch<F, P> &sh = *(window_scratch<F, P> *)b.scratch();
    stage_parities parities = kept_parities(b);
    if (job < size::HEADS || (job < 2 * size::HEADS + 1 && (lone || newest / RANGE == range))) {
        kept *keys = (kept *)s.keys + (size_t)b.slot()[0] * s.keys_slot + layer * s.keys_layer;
        kept *values = (kept *)s.values + (size_t)b.slot()[0] * s.values_slot + layer * s.values_layer + h0 * P;
        float x[P / 32];
        await_query<F, P>(b, layer, h0, job, x);
        make_query<F, P>(b, h0, job, x, keys + own.newest_at * P, values + own.newest_at * (s.H * P), sh);
    } else {
        await_all_but<0>(); // a norm that this block has no key for
    }
    barrier_of(STEP_ALL, STEP_WARPS * 32);                      // queries, the newest key and values
    const float scale = rsqrtf((float)P) * 1.4426950408889634f; // powers of two
    const wait_note note = b.note(layer, 11);
    const unsigned char *at_place = window_place(b, parities.ring, note);
    uint4 key[KEY];
#pragma unroll
    for (int i = 0; i < KEY; i++)
        key[i] = j + g < newest    ? load_place((const uint4 *)(at_place + g * parts::KEY_BYTES) + 4 * i + t)
                 : j + g == newest ? sh.new_key[4 * i + t]
                                   : make_uint4(0, 0, 0, 0);
    leave_place(b, parities.ring);
    tile_sums<F, P, size::HEADS> tiles;
    typename F::weight w[2];
    float score[4] = {};
    uint32_t head[1];
    score_tile<F, P, size::HEADS>(score, sh.qs, key);
    if (second) {
        barrier_of(STEP_ORDER, STEP_WARPS * 32); // the first half's sums
        const float2 ml = sh.sums_ml[pair][g / 2 % size::HEADS];
        tiles.top = ml.x, tiles.sum = ml.y;
#pragma unroll
        for (int d = 0; d < N; d += 4) {
            const float4 x = *(const float4 *)(sh.sums[pair] + lane * N + d);
            tiles.acc[0][d] = x.x, tiles.acc[0][d + 1] = x.y, tiles.acc[0][d + 2] = x.z, tiles.acc[0][d + 3] = x.w;
        }
        __syncwarp(); // they are read
    }
    tiles.weigh(score, j, n, scale, w, head);
    at_place = window_place(b, parities.ring, note);
#pragma unroll
    for (int k = 0; k < TILE; k++) {
        typename parts::value value = {};
        if (j + k < newest)
            value = load_place((const typename parts::value *)(at_place + k * parts::VALUE_BYTES) + lane);
        else if (j + k == newest)
            value = sh.own_value(lane);
        tiles.add(k, 0, w, head, value);
    }
    tiles.end();
    leave_place(b, parities.ring);
    tiles.leave(sh.sums[pair], sh.sums_ml[pair]);
    keep_parities(b, parities);
    const uint32_t epoch = b.made(layer);
    const size_t at = (size_t)range * s.H + h0;
    if (!second) {
        arrive_at(STEP_ORDER, STEP_WARPS * 32);
        if (lone && b.warp == 0) window_last<F, P>(b, sh, newest, scale, at + s.H, epoch);
    } else {
        barrier_of(STEP_HALF, THREADS); // the warps' sums
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
    }
    barrier_of(STEP_ALL, STEP_WARPS * 32); // the scratch memory is free
}
// The block's ranges of all rows.
template <class F, int P, int R> __device__ __forceinline__ void window_stage(const step_block<R> &b, uint32_t layer) {
    static_assert(sizeof(window_scratch<F, P>) <= step_places::WINDOW_BYTES, "step_places knows its size");
    if constexpr (R == 1) {
#pragma unroll 1
        for (uint32_t i = 0; i < b.own()->n_units; i++) {
            uint32_t range, h0;
            b.own()->unit(b.a.shape, i, range, h0);
            window_whole<F, P>(b, layer, range, h0);
        }
        return;
    }
    const cuda_shape &s = b.a.shape;
    const uint32_t groups = s.H / window_sizes<F, P>::HEADS, most_ranges = (s.visible + RANGE - 1) / RANGE;
    uint32_t all = 0, before = 0, r = 0, own = 0; // ranges: of all rows, of those before row r, of row r
    const auto ranges_of = [&](uint32_t of) { return b.is_padding(of) ? 0 : row_window(s, b.pos()[of]).n_ranges; };
#pragma unroll 1
    for (uint32_t i = 0; i < R; i++) all += ranges_of(i);
    own = ranges_of(0);
    for (uint32_t unit = b.warp / WARPS * n_blocks_now() + blockIdx.x; unit < all * groups;
         unit += 2 * n_blocks_now()) {
        while (unit / groups >= before + own) before += own, own = ranges_of(++r);
        window_range<F, P>(b, layer, r, unit / groups - before, unit % groups * window_sizes<F, P>::HEADS, most_ranges);
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
        const uint32_t n = R == 1 ? b.own()->n_ranges : row_window(s, b.pos()[r]).n_ranges;
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
    const uint32_t H = b.a.shape.H, blocks = n_blocks_now(), from_last = blocks - 1 - blockIdx.x;
    // the first blocks had more ranges
    for (uint32_t unit = b.warp / WARPS * blocks + from_last; unit < R * H; unit += 2 * blocks)
        combine_head<T, P>(b, layer, R == 1 ? 0 : unit / H, R == 1 ? unit : unit % H);
    if (from_last < R * H) barrier_of(STEP_ALL, STEP_WARPS * 32); // both halves' scratch memory is free
}
