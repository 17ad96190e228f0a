// swa_decode_near.cu - E9 of up to 128 rows that are alone in their piece of a session, on Hopper: swa_decode.cu's
// ranges, tiles and sums, to the bit. A block takes two heads and a range: eight warps whose keys and values are all on
// their way into shared memory from the start, and five that make the queries, the newest key and the newest values.
//
// A full window is a multiple of 128 keys and the newest one, which is a range of its own: the block of the last whole
// range takes it, by a warp of the five.
#include "swa_decode.cuh"
#include <algorithm>

enum {
    NEAR_P = 128,
    NEAR_HEADS = 2,
    NEAR_JOBS = 2 * NEAR_HEADS + 1, // queries, the key, values of each head: a warp each
    NEAR_LANE = NEAR_P / 32,        // dims of a head to a lane
    NEAR_BLOCK = (WARPS + NEAR_JOBS) * 32
};
template <class F> using near_parts = tile_parts<F, NEAR_P, NEAR_HEADS>;
template <class F> struct near_ring { // of a warp: of its tiles the keys, then the values
    static_assert(near_parts<F>::VALUE == 1, "a key's values are one piece a lane");
    enum {
        KEY_PIECE = 32 * 16,
        VALUE_PIECE = 32 * near_parts<F>::BYTES,
        KEYS = TILES * near_parts<F>::KEY * KEY_PIECE,
        ALL = KEYS + TILES * TILE * VALUE_PIECE,
        BYTES = WARPS * ALL
    };
};

// Of a job: what is asked for before the products are there.
struct near_job {
    float2 rope[NEAR_LANE];
    float norm[NEAR_LANE];
    __device__ __forceinline__ void ask(const decode_window &a, uint32_t r, uint32_t job) {
        if (job > NEAR_HEADS) return;
        rope_of<NEAR_P>(a.shape, a.rope + (size_t)r * (a.shape.rot_dim / 2), rope);
        const float *from = job < NEAR_HEADS ? a.q_norm : a.k_norm;
#pragma unroll
        for (int i = 0; i < NEAR_LANE; i++) norm[i] = a.shape.qk_norm ? from[threadIdx.x % 32 + 32 * i] : 1.0f;
    }
    // column_sums, its first round by itself.
    __device__ __forceinline__ void sums(const decode_window &a, uint32_t r, uint32_t column, float (&x)[NEAR_LANE]) {
        const float *in = a.qkv + (size_t)r * (2 * a.shape.H + 1) * NEAR_P + column + threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < NEAR_LANE; i++) x[i] = 0.0f + in[32 * i]; // 0: a -0 becomes a 0
#pragma unroll 1
        for (uint32_t k = 1; k < a.splits; k++)
#pragma unroll
            for (int i = 0; i < NEAR_LANE; i++) x[i] += in[k * a.split_stride + 32 * i];
        if (!a.row_scale) return;
        const float scale = a.row_scale[r];
#pragma unroll
        for (int i = 0; i < NEAR_LANE; i++) x[i] *= scale;
    }
    // ring_key, ring_values: the places of the newest, of the block's heads. to: with the job's own head.
    template <class F>
    __device__ __forceinline__ void make(const decode_window &a, uint32_t r, uint32_t h0, uint32_t job,
                                         typename F::kept *ring_key, typename F::kept *ring_values,
                                         const made_queries &to) {
        const uint32_t H = a.shape.H;
        float x[NEAR_LANE];
        sums(a, r, (job < NEAR_HEADS ? h0 + job : job == NEAR_HEADS ? H : H + h0 + job - NEAR_HEADS) * NEAR_P, x);
        if (job > NEAR_HEADS) {
            leave_values<F, NEAR_P>(x, job - NEAR_HEADS - 1, ring_values, to.new_value);
            return;
        }
        rotate_head<NEAR_P>(
            a.shape, rope, [&](int i) { return norm[i]; }, to.head, x);
        leave_rotated<F, NEAR_P, NEAR_HEADS>(x, job, h0 == 0, ring_key, to.qs, to.new_key);
    }
};

// The range that is the newest key (the j-th) alone, by a warp: what the first of eight warps makes of it, folded with
// those of seven that have nothing. The tiles' other keys would add 0 * 0 to sums that are not -0. at: of a.part and
// a.part_ml, as fold_warps'.
template <class F>
__device__ __forceinline__ void near_last(const decode_window &a, const uint4 *qs, const uint4 *new_key,
                                          const uint4 *new_value, uint32_t j, float scale, size_t at) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    enum { N = near_parts<F>::N };
    uint4 key[near_parts<F>::KEY];
#pragma unroll
    for (int i = 0; i < near_parts<F>::KEY; i++) key[i] = g ? make_uint4(0, 0, 0, 0) : new_key[4 * i + t];
    tile_sums<F, NEAR_P, NEAR_HEADS> tiles;
    uint32_t head[1];
    typename F::weight w[2];
    float score[4] = {};
    score_tile<F, NEAR_P, NEAR_HEADS>(score, qs, key);
    tiles.weigh(score, j, j + 1, scale, w, head);
    tiles.add(0, 0, w, head, ((const typename near_parts<F>::value *)new_value)[lane]);
    tiles.end();
    const float top = __shfl_sync(0xffffffffu, tiles.top, head[0]), m = fmaxf(-INFINITY, top),
                f = power(__fsub_rn(top, m)), none = power(__fsub_rn(-INFINITY, m));
    const auto fold = [&](float x) { return __fmaf_rn(none, 0.0f, __fmaf_rn(f, x, 0.0f)); };
    const float total = fold(__shfl_sync(0xffffffffu, tiles.sum, head[0]));
#pragma unroll
    for (int d = 0; d < N; d += 2)
        *(float2 *)(a.part + at * NEAR_P + lane * N + d) =
            make_float2(fold(tiles.acc[0][d]), fold(tiles.acc[0][d + 1]));
    if (lane % (NEAR_P / N) == 0) a.part_ml[at + lane / (NEAR_P / N)] = make_float2(m, total);
}

// The newest key and its values into the warp's tiles, if they are there. own: its place, from the warp's first.
template <class F>
__device__ __forceinline__ void near_newest(uint32_t own, unsigned char *tile_keys, unsigned char *tile_values,
                                            const uint4 *new_key, const uint4 *new_value) {
    using value = typename near_parts<F>::value;
    enum { KEY = near_parts<F>::KEY };
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    if (own < RANGE && own % STEP < TILE) {
        const uint32_t u = own / STEP, k = own % STEP;
        await_all_but<0>(); // or its zeros would come later
#pragma unroll
        for (int i = 0; i < KEY; i++)
            if (g == k) *(uint4 *)(tile_keys + (u * KEY + i) * near_ring<F>::KEY_PIECE) = new_key[4 * i + t];
        *(value *)(tile_values + (u * TILE + k) * near_ring<F>::VALUE_PIECE) = ((const value *)new_value)[lane];
    }
}

// A block: a range, two heads, a row. The cosines and sines are read before the inputs are ready: by then W_o's kernel
// has begun, which the state's of up to 16 rows lets start after its own inputs were there, long after the step's first
// kernel made them.
template <class F>
__global__ void __launch_bounds__(NEAR_BLOCK, 2) decode_near_kernel(const __grid_constant__ decode_window a) {
    using parts = near_parts<F>;
    using own_ring = near_ring<F>;
    using kept = typename F::kept;
    constexpr int P = NEAR_P, HEADS = NEAR_HEADS, KEY = parts::KEY;
    extern __shared__ __align__(128) unsigned char ring[]; // [WARPS][TILES keys, TILES values][pieces][32]
    __shared__ uint4 qs[2 * HEADS * parts::Q_ROW], new_key[parts::KEY_BYTES / 16], new_value[parts::VALUE_BYTES / 16];
    __shared__ __align__(16) float sums[WARPS][HEADS * P], rotated[HEADS + 1][P];
    __shared__ float2 sums_ml[WARPS][HEADS];
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, job = warp - WARPS,
                   range = blockIdx.x, h0 = blockIdx.y * HEADS, ring_keys = s.ring_keys, value_row = s.H * P;
    const bool makes = warp >= WARPS;
    if (!a.early) wait_for_inputs();
    const uint32_t r = a.list ? (uint32_t)a.list[blockIdx.z] : blockIdx.z;
    near_job work;
    if (makes) work.ask(a, r, job);
    const uint64_t pos = (uint64_t)a.rows.pos[r];
    const size_t slot = (size_t)a.rows.slot[r];
    const uint32_t n = (uint32_t)min(pos + 1, (uint64_t)s.visible), newest = n - 1, n_ranges = (n + RANGE - 1) / RANGE;
    if (slot == s.n_slots || range >= n_ranges) { // padding; fewer keys than ranges
        if (a.early) wait_for_inputs();
        return;
    }
    kept *keys = (kept *)s.keys + slot * s.keys_slot + a.layer * s.keys_layer;
    kept *values = (kept *)s.values + slot * s.values_slot + a.layer * s.values_layer + h0 * P;
    // a division of 32 bits is short
    const uint32_t newest_at = pos >> 32 ? (uint32_t)(pos % ring_keys) : (uint32_t)pos % ring_keys;
    const uint32_t oldest_at = newest_at >= newest ? newest_at - newest : newest_at + ring_keys - newest,
                   j0 = range * RANGE + warp * TILE;                  // the warp's first key
    const bool lone = range + 1 == gridDim.x && n_ranges > gridDim.x; // the newest key is a range of its own
    unsigned char *const tile_keys = ring + warp * own_ring::ALL + lane * 16;
    unsigned char *const tile_values = ring + warp * own_ring::ALL + own_ring::KEYS + lane * parts::BYTES;
    const auto place = [&](uint32_t j) {
        return oldest_at + j < ring_keys ? oldest_at + j : oldest_at + j - ring_keys;
    };
    if (!makes) {
#pragma unroll
        for (int u = 0; u < TILES; u++) {
            const uint32_t j = j0 + u * STEP + g;
            const uint4 *p = (const uint4 *)(keys + place(j) * P) + t;
#pragma unroll
            for (int i = 0; i < KEY; i++) ask16(tile_keys + (u * KEY + i) * own_ring::KEY_PIECE, p + 4 * i, j < newest);
        }
        asked();
#pragma unroll
        for (int u = 0; u < TILES; u++) {
#pragma unroll
            for (int k = 0; k < TILE; k++) {
                const uint32_t j = j0 + u * STEP + k;
                ask<parts::BYTES>(tile_values + (u * TILE + k) * own_ring::VALUE_PIECE,
                                  values + place(j) * value_row + lane * parts::N, j < newest);
            }
            asked();
        }
    }
    if (a.early) wait_for_inputs();
    let_next_start();
    if (makes && (job < HEADS || lone || newest / RANGE == range))
        work.make<F>(a, r, h0, job, keys + newest_at * P, values + newest_at * value_row,
                     made_queries{rotated[min(job, (uint32_t)HEADS)], qs, new_key, new_value});
    __syncthreads(); // queries, the newest key and values

    const float scale = rsqrtf((float)P) * 1.4426950408889634f; // powers of two
    const size_t at = ((size_t)blockIdx.z * a.n_ranges + range) * s.H + h0;
    if (!makes) {
        tile_sums<F, P, HEADS> tiles;
        typename F::weight w[TILES][2];
        float keep[TILES];
        near_newest<F>(newest - j0, tile_keys, tile_values, new_key, new_value);
        await_all_but<TILES>(); // keys
#pragma unroll
        for (int u = 0; u < TILES; u++) { // the weights, before the values are there
            uint4 key[KEY];
#pragma unroll
            for (int i = 0; i < KEY; i++) key[i] = *(const uint4 *)(tile_keys + (u * KEY + i) * own_ring::KEY_PIECE);
            float score[4] = {};
            score_tile<F, P, HEADS>(score, qs, key);
            tiles.weights(score, j0 + u * STEP, n, scale, w[u], keep[u]);
        }
#pragma unroll
        for (int u = 0; u < TILES; u++) {
            if (u + 1 < TILES)
                await_all_but<1>();
            else
                await_all_but<0>();
            uint32_t head[1];
            tiles.scale_by(keep[u], head);
#pragma unroll
            for (int k = 0; k < TILE; k++)
                tiles.add(k, 0, w[u], head, *(const uint4 *)(tile_values + (u * TILE + k) * own_ring::VALUE_PIECE));
            tiles.end();
        }
        tiles.leave(sums[warp], sums_ml[warp]);
    } else if (lone && job == 0)
        near_last<F>(a, qs, new_key, new_value, newest, scale, at + s.H);
    __syncthreads(); // the warps' sums
    fold_warps<P, HEADS>(a, sums, sums_ml, at);
}
static_assert(TILES == 2, "what is waited for");

template <class F> static void near_launch(const decode_window &a, uint32_t n_list, void *stream) {
    const auto kernel = decode_near_kernel<F>;
    const uint32_t lone = a.shape.visible % RANGE == 1, ranges = std::max(1u, a.n_ranges - lone);
    allow_shared(kernel, near_ring<F>::BYTES);
    launch(kernel, dim3(ranges, a.shape.H / NEAR_HEADS, n_list), dim3(NEAR_BLOCK), near_ring<F>::BYTES, stream, a);
}
void decode_near(const decode_window &a, uint32_t n_list, void *stream) {
    decode_window b = a;
    b.early = a.early && !a.list; // of a list the step may have more rows than 16
    FOR_16_BIT(a.shape.dtype, near_launch<window16<T>>(b, n_list, stream));
}
