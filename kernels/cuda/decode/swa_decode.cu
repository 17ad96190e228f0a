// swa_decode.cu - E9 of rows that are alone in their piece of a session, mostly decode steps: rotary, scores on
// tensor cores, values streamed through registers; then the ranges' results put together. One key head, 16 bit.
//
// The window's keys, oldest first, are cut into ranges of 128. A range's result is the work of eight warps: warp w
// takes the tiles of 8 keys w and w + 8 of its range, its results are folded in that order, then the warps' in theirs.
// How many ranges and heads a block takes depends on the number of rows, but heads are independent of each other, so no
// bit does.
#include "swa_decode.cuh"
#include <algorithm>

// The code is kept short: at one row every instruction is read once a layer, and read from afar.

// A block: one row, HEADS heads, some ranges. AHEAD = 1: a warp's next tile is on its way while it works on this one, a
// register is asked for again as soon as it is used. AHEAD = TILES: one range a block, all of it on its way from the
// start.
template <class F, int P, int HEADS, int AHEAD>
__global__ void __launch_bounds__(THREADS, 2) decode_window_kernel(const __grid_constant__ decode_window a) {
    using parts = tile_parts<F, P, HEADS>;
    using kept = typename F::kept;
    constexpr int KEY = parts::KEY, VALUE = parts::VALUE, N = parts::N;
    __shared__ uint4 qs[2 * HEADS * parts::Q_ROW]; // queries, each followed by what rounding took off
    __shared__ uint4 new_key[parts::KEY_BYTES / 16], new_value[parts::VALUE_BYTES / 16];
    __shared__ __align__(16) float sums[2][WARPS][HEADS * P]; // a range's, and the next one's
    __shared__ float2 sums_ml[2][WARPS][HEADS];
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4,
                   h0 = blockIdx.x * HEADS;
    const uint32_t first = blockIdx.z * a.per_block, ring = s.ring_keys;
    if (!a.early) wait_for_inputs();
    const uint32_t r = a.list ? (uint32_t)a.list[blockIdx.y] : blockIdx.y;
    const uint64_t pos = (uint64_t)a.rows.pos[r];
    const size_t slot = (size_t)a.rows.slot[r];
    const uint32_t n = (uint32_t)min(pos + 1, (uint64_t)s.visible), newest = n - 1, n_ranges = (n + RANGE - 1) / RANGE;
    const uint32_t last =
        blockIdx.z + 1 < gridDim.z ? min(first + a.per_block, n_ranges) : n_ranges; // the last block has what is left
    if (first >= last) return;                                                      // fewer keys than ranges
    if (slot == s.n_slots) {                                                        // padding
        if (a.early) wait_for_inputs();
        return;
    }
    kept *keys = (kept *)s.keys + slot * s.keys_slot + a.layer * s.keys_layer;
    kept *values = (kept *)s.values + slot * s.values_slot + a.layer * s.values_layer;
    const uint32_t newest_at = (uint32_t)(pos % ring),
                   oldest_at = newest_at >= newest ? newest_at - newest : newest_at + ring - newest;
    const uint32_t value_row = s.H * P, own_values = h0 * P; // elements; a ring has fewer than 2^32
    auto place = [&](uint32_t j) { return oldest_at + j < ring ? oldest_at + j : oldest_at + j - ring; };
    uint4 key[AHEAD][KEY];
    typename parts::value value[AHEAD][TILE][VALUE];
    auto fetch_keys = [&](int u, uint32_t j) {
        const uint4 *p = (const uint4 *)(keys + place(j + g) * P) + t;
#pragma unroll
        for (int i = 0; i < KEY; i++) key[u][i] = stream16(p + 4 * i, j + g < newest);
    };
    auto fetch_value = [&](int u, uint32_t j, int k, int c) {
        stream(value[u][k][c], values + (place(j + k) * value_row + own_values) + (c * 32 + lane) * N, j + k < newest);
    };
    uint32_t j = first * RANGE + warp * TILE; // the tile's first key
#pragma unroll
    for (int i = 0; i < AHEAD; i++) fetch_keys(i, j + i * STEP);
#pragma unroll
    for (int i = 0; i < AHEAD * TILE; i++)
#pragma unroll
        for (int c = 0; c < VALUE; c++) fetch_value(i / TILE, j + i / TILE * STEP, i % TILE, c);
    if (a.early) wait_for_inputs();
    let_next_start(); // now: the device starts one kernel at a time, and this one must not wait for that

    make_queries<F, P, HEADS>(a, r, h0, newest / RANGE >= first && newest / RANGE < last,
                              newest_place<F>{newest_at, keys, values},
                              made_queries{sums[0][0], qs, new_key, new_value});
    __syncthreads(); // queries, the newest key and values

    const float scale = rsqrtf((float)P) * 1.4426950408889634f; // powers of two
    for (uint32_t b = first; b < last; b++) {
        tile_sums<F, P, HEADS> tiles;
#pragma unroll AHEAD
        for (int tile = 0; tile < TILES; tile++) {
            const int u = tile % AHEAD;
            if (newest - j < TILE) {
                const uint32_t own = newest - j;
#pragma unroll
                for (int i = 0; i < KEY; i++)
                    if (g == own) key[u][i] = new_key[4 * i + t];
#pragma unroll
                for (int k = 0; k < TILE; k++)
#pragma unroll
                    for (int c = 0; c < VALUE; c++)
                        if (k == own) value[u][k][c] = ((const typename parts::value *)new_value)[c * 32 + lane];
            }
            const uint32_t next = j + STEP < last * RANGE ? j + STEP : n;
            float score[4] = {};
            score_tile<F, P, HEADS>(score, qs, key[u]);
            if (AHEAD < TILES) fetch_keys(u, next);
            typename F::weight w[2];
            uint32_t head[VALUE];
            tiles.weigh(score, j, n, scale, w, head);
#pragma unroll
            for (int k = 0; k < TILE; k++)
#pragma unroll
                for (int c = 0; c < VALUE; c++) {
                    tiles.add(k, c, w, head, value[u][k][c]);
                    if (AHEAD < TILES) fetch_value(u, next, k, c);
                }
            tiles.end();
            j += STEP;
        }
        tiles.leave(sums[b & 1][warp], sums_ml[b & 1][warp]);
        __syncthreads(); // the warps' sums; those of the range before are free
        fold_warps<P, HEADS>(a, sums[b & 1], sums_ml[b & 1], ((size_t)blockIdx.y * a.n_ranges + b) * s.H + h0);
    }
}

// A block: a head of a row.
template <class T, int P>
__global__ void __launch_bounds__(GROUPS *P / 2) decode_combine_kernel(const __grid_constant__ decode_window a) {
    __shared__ float2 sums[GROUPS][P / 2];
    const cuda_shape &s = a.shape;
    const uint32_t h = blockIdx.x, lane = threadIdx.x % 32, group = threadIdx.x / (P / 2),
                   o = threadIdx.x % (P / 2) * 2;
    let_next_start();
    if (!a.early) wait_for_inputs();
    const uint32_t r = a.list ? (uint32_t)a.list[blockIdx.y] : blockIdx.y;
    const bool padding = (uint32_t)a.rows.slot[r] == s.n_slots;
    const uint32_t n = ((uint32_t)min((uint64_t)a.rows.pos[r] + 1, (uint64_t)s.visible) + RANGE - 1) / RANGE;
    const float *part = a.part + ((size_t)blockIdx.y * a.n_ranges * s.H + h) * P + o;
    const float2 *part_ml = a.part_ml + (size_t)blockIdx.y * a.n_ranges * s.H + h;
    if (a.early) wait_for_inputs();
    if (padding) return;
    range_sums all;
    all.add(n, group, [&](uint32_t b0, float2 &ml, float2(&x)[32 / GROUPS]) {
        ml = b0 + lane < n ? part_ml[(size_t)(b0 + lane) * s.H] : make_float2(-INFINITY, 0);
#pragma unroll
        for (int i = 0; i < 32 / GROUPS; i++) {
            const uint32_t b = b0 + group + GROUPS * i;
            x[i] = b < n ? *(const float2 *)(part + (size_t)b * s.H * P) : make_float2(0, 0);
        }
    });
    float2 sum = all.sum;
    sums[group][o / 2] = sum;
    __syncthreads(); // the groups' sums
    if (group) return;
#pragma unroll
    for (int i = 1; i < GROUPS; i++) sum.x += sums[i][o / 2].x, sum.y += sums[i][o / 2].y;
    T *act = (T *)a.act + act_at<T>(r, h * P + o, s.H * P); // pairs of columns are neighbours
    act[0] = from_float<T>(__fdividef(sum.x, all.total));
    act[1] = from_float<T>(__fdividef(sum.y, all.total));
}

void decode_combine(const decode_window &a, uint32_t n_list, void *stream) {
    const dim3 grid(a.shape.H, n_list), block(GROUPS * a.shape.P / 2);
    if (a.shape.dtype == CUDA_F16)
        launch(a.shape.P == 64 ? decode_combine_kernel<__half, 64> : decode_combine_kernel<__half, 128>, grid, block, 0,
               stream, a);
    else
        launch(a.shape.P == 64 ? decode_combine_kernel<__nv_bfloat16, 64> : decode_combine_kernel<__nv_bfloat16, 128>,
               grid, block, 0, stream, a);
}

bool cuda_decode_window_possible(const struct cuda_shape *s) { return dispatch_decode_window(s); }
bool cuda_window8_possible(const struct cuda_shape *s) {
    return dispatch_decode_window(s) && dispatch_prompt_window(s);
}

template <class F, int P, int HEADS, int AHEAD>
static void decode(const decode_window &a, uint32_t n_list, void *stream) {
    const uint32_t runs =
        std::max(1u, (a.n_ranges + a.per_block / 2) / a.per_block); // the last takes what is less than half of one
    launch(decode_window_kernel<F, P, HEADS, AHEAD>, dim3(a.shape.H / HEADS, n_list, runs), dim3(THREADS), 0, stream,
           a);
}
template <class F, int P> static void decode(decode_window a, uint32_t n_list, void *stream) {
    const uint32_t quarters = n_list * (a.shape.H / 4) * a.n_ranges; // blocks, four heads to each
    dispatch_case c = {};
    c.op = DISPATCH_DECODE_WINDOW, c.device = this_device(), c.dtype = a.shape.dtype, c.n_rows = n_list,
    c.shape = &a.shape;
    const enum dispatch_kernel kernel = dispatch_kernel_of(&c);
    // Longer runs overlap better; and two waves of full ranges, two blocks to each multiprocessor, are one of blocks
    // twice as long.
    const uint32_t full = n_list * (a.shape.H / 4) * (a.shape.visible / RANGE);
    a.per_block = quarters >= 1024 || (full > 448 && full <= 528) ? 2 : 1;
    if (kernel == DECODE_WINDOW_MANY)
        decode_many(a, n_list, stream);
    else if (kernel == DECODE_WINDOW_NEAR)
        decode_near(a, n_list, stream);
    else if (kernel == DECODE_WINDOW_FEW)
        decode<F, P, P == 64 ? 4 : 2, 2>(a, n_list, stream);
    else
        decode<F, P, 4, 1>(a, n_list, stream);
    decode_combine(a, n_list, stream);
}
template <class F> static void decode(const decode_window &a, uint32_t n_list, void *stream) {
    if (a.shape.P == 64)
        decode<F, 64>(a, n_list, stream);
    else
        decode<F, 128>(a, n_list, stream);
}

void k_decode_window(const struct cuda_window *window, bool single, void *stream) {
    const decode_window a = decode_window_of(window, single);
    FOR_WINDOW(a.shape, decode<F>(a, window->n_list, stream));
}
