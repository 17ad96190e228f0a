// swa_decode.cu - E9 of rows that are alone in their piece of a session, above all decode steps: rotary, scores on tensor
// cores, values streamed through registers; then the ranges' results put together. One key head, 16 bit.
//
// The window's keys, oldest first, are cut into ranges of 128. A range's result is the work of eight warps: warp w takes
// the tiles of 8 keys w and w + 8 of its range, its results are folded in that order, then the warps' in theirs. How many
// ranges and heads a block takes depends on the number of rows, but heads are independent of each other, so no bit does.
#include "common.cuh"

enum { WARPS = 8, TILE = 8, TILES = 2, STEP = WARPS * TILE, RANGE = STEP * TILES, THREADS = WARPS * 32 };

struct decode_window {
    cuda_shape shape;
    uint32_t layer;
    cuda_rows rows;
    const int32_t *list;           // NULL: all rows in order
    bool early;                    // all keys but the rows' own may be read before the inputs are ready
    uint32_t n_ranges, per_block;  // ranges of a full window; of them to a block
    const float *qkv;
    uint32_t splits;
    size_t split_stride;
    const float *row_scale; // of the products' sums; may be NULL
    const float2 *turn;
    const float *q_norm, *k_norm;
    float *part;     // [row of the list][n_ranges][H P]
    float2 *part_ml; // [row of the list][n_ranges][H]: maximum, in powers of two, and sum
    void *act;
};

// The code is kept short: at one row every instruction is read once a layer, and read from afar.

// 2^x.
__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 16 bytes that are read once, or zeros.
__device__ __forceinline__ uint4 stream16(const void *p, bool wanted) {
    uint4 v;
    asm volatile("{.reg .pred w; setp.ne.u32 w, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n"
                 "@w ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];}"
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w) : "l"(p), "r"((uint32_t)wanted));
    return v;
}
__device__ __forceinline__ float2 two_floats(uint32_t x, __half) { return __half22float2(*(__half2 *)&x); }
__device__ __forceinline__ float2 two_floats(uint32_t x, __nv_bfloat16) {
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}

// One head of query or key by a warp: the partial products' sum, q/k norm, rotary; lane l has dims l, l + 32 ... head: P floats shared.
template <int P>
__device__ __forceinline__ void turned_head(const decode_window &a, uint32_t row, uint32_t h, const float *norm, float *head, float (&x)[P / 32]) {
    const uint32_t lane = threadIdx.x % 32, half = a.shape.rot_dim / 2;
    const float *in = a.qkv + (size_t)row * (2 * a.shape.H + 1) * P + h * P;
    const bool pairs = a.shape.rot_interleaved;
    float2 w[P / 32];
#pragma unroll
    for (int i = 0; i < P / 32; i++) {
        const uint32_t p = lane + 32 * i;
        x[i] = 0;
        if (p < 2 * half) w[i] = a.turn[(size_t)row * half + (pairs ? p / 2 : p < half ? p : p - half)];
    }
#pragma unroll 1
    for (uint32_t s = 0; s < a.splits; s++)
#pragma unroll
        for (int i = 0; i < P / 32; i++) x[i] += in[s * a.split_stride + lane + 32 * i];
    if (a.row_scale) {
        const float scale = a.row_scale[row];
#pragma unroll
        for (int i = 0; i < P / 32; i++) x[i] *= scale;
    }
    if (a.shape.qk_norm) {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < P / 32; i++) squares += x[i] * x[i];
        const float scale = rsqrtf(warp_sum(squares) / P + a.shape.qk_norm_eps);
#pragma unroll
        for (int i = 0; i < P / 32; i++) x[i] *= scale * norm[lane + 32 * i];
    }
#pragma unroll
    for (int i = 0; i < P / 32; i++) head[lane + 32 * i] = x[i];
    __syncwarp(); // pairs are read across lanes
#pragma unroll
    for (int i = 0; i < P / 32; i++) {
        const uint32_t p = lane + 32 * i;
        if (p >= 2 * half) continue;
        const bool second = pairs ? p & 1 : p >= half;
        const float other = head[pairs ? p ^ 1 : second ? p - half : p + half];
        x[i] = second ? x[i] * w[i].x + other * w[i].y : x[i] * w[i].x - other * w[i].y;
    }
}

// A block: one row, HEADS heads, some ranges. AHEAD = 1: a warp's next tile is on its way while it works on this one, a
// register is asked for again as soon as it is used. AHEAD = TILES: one range a block, all of it on its way from the start.
template <class T, int P, int HEADS, int AHEAD>
__global__ void __launch_bounds__(THREADS, 2) decode_window_kernel(const __grid_constant__ decode_window a) {
    constexpr int KEY = P / 32;               // 16-byte pieces of a key to a lane: lane t of four has pieces t, t + 4 ...
    constexpr int VALUE = HEADS * P / 8 / 32; // of a key's values: lane l has pieces l, l + 32
    constexpr int Q_ROW = P / 8 + 4;          // a stride that spreads the rows over the banks
    __shared__ uint4 qs[2 * HEADS * Q_ROW];   // queries in T, each followed by what rounding took off
    __shared__ uint4 new_key[P / 8], new_value[HEADS * P / 8];
    __shared__ __align__(16) float sums[2][WARPS][HEADS * P]; // a range's, and the next one's
    __shared__ float2 sums_ml[2][WARPS][HEADS];
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, h0 = blockIdx.x * HEADS;
    const uint32_t first = blockIdx.z * a.per_block, ring = s.ring_keys;
    if (!a.early) wait_for_inputs();
    const uint32_t r = a.list ? (uint32_t)a.list[blockIdx.y] : blockIdx.y;
    const uint64_t pos = (uint64_t)a.rows.pos[r];
    const size_t slot = (size_t)a.rows.slot[r];
    const uint32_t n = (uint32_t)min(pos + 1, (uint64_t)s.visible), newest = n - 1, last = min(first + a.per_block, (n + RANGE - 1) / RANGE);
    if (first >= last) return; // fewer keys than ranges
    T *keys = (T *)s.keys + slot * s.keys_slot + a.layer * s.keys_layer;
    T *values = (T *)s.values + slot * s.values_slot + a.layer * s.values_layer;
    const uint32_t newest_at = (uint32_t)(pos % ring), oldest_at = newest_at >= newest ? newest_at - newest : newest_at + ring - newest;
    const uint32_t value_row = s.H * P, own_values = h0 * P; // elements; a ring has fewer than 2^32
    auto place = [&](uint32_t j) { return oldest_at + j < ring ? oldest_at + j : oldest_at + j - ring; };
    uint4 key[AHEAD][KEY], value[AHEAD][TILE][VALUE];
    auto fetch_keys = [&](int u, uint32_t j) {
        const uint4 *p = (const uint4 *)(keys + place(j + g) * P) + t;
#pragma unroll
        for (int i = 0; i < KEY; i++) key[u][i] = stream16(p + 4 * i, j + g < newest);
    };
    auto fetch_value = [&](int u, uint32_t j, int k, int c) {
        value[u][k][c] = stream16((const uint4 *)(values + (place(j + k) * value_row + own_values)) + c * 32 + lane, j + k < newest);
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

    // The queries; where the newest key is, it and its values too. They go into the ring, but no block of this step reads them there.
    const uint32_t n_jobs = newest / RANGE >= first && newest / RANGE < last ? 2 * HEADS + 1 : HEADS;
#pragma unroll 1
    for (uint32_t job = warp; job < n_jobs; job += WARPS) {
        float x[P / 32];
        if (job <= HEADS) {
            turned_head<P>(a, r, job < HEADS ? h0 + job : s.H, job < HEADS ? a.q_norm : a.k_norm, sums[0][0] + job * P, x);
            T *high = job < HEADS ? (T *)(qs + 2 * job * Q_ROW) : (T *)new_key;
#pragma unroll
            for (int i = 0; i < P / 32; i++) {
                const uint32_t p = lane + 32 * i;
                const T y = from_float<T>(x[i]);
                high[p] = y;
                if (job < HEADS) high[Q_ROW * 8 + p] = from_float<T>(x[i] - to_float(y));
                else if (blockIdx.x == 0) keys[newest_at * P + p] = y;
            }
        } else {
            const uint32_t h = job - HEADS - 1;
            const float *in = a.qkv + (size_t)r * (2 * s.H + 1) * P + (s.H + 1 + h0 + h) * P + lane;
#pragma unroll
            for (int i = 0; i < P / 32; i++) x[i] = 0;
#pragma unroll 1
            for (uint32_t k = 0; k < a.splits; k++)
#pragma unroll
                for (int i = 0; i < P / 32; i++) x[i] += in[k * a.split_stride + 32 * i];
            const float scale = a.row_scale ? a.row_scale[r] : 1.0f;
#pragma unroll
            for (int i = 0; i < P / 32; i++) {
                x[i] *= scale;
                const uint32_t p = h * P + lane + 32 * i;
                ((T *)new_value)[p] = from_float<T>(x[i]);
                values[newest_at * value_row + own_values + p] = from_float<T>(x[i]);
            }
        }
    }
    __syncthreads(); // queries, the newest key and values

    const float scale = rsqrtf((float)P) * 1.4426950408889634f; // powers of two
    for (uint32_t b = first; b < last; b++) {
        float top = -INFINITY, sum = 0, acc[VALUE][8] = {};
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
                        if (k == own) value[u][k][c] = new_value[c * 32 + lane];
            }
            const uint32_t next = j + STEP < last * RANGE ? j + STEP : n;
            // Scores: heads are rows of the product, in pairs of high and low part, keys its columns. Which dims a step of
            // 16 takes does not matter, so a lane gives those that it loaded.
            float score[4] = {};
#pragma unroll
            for (int i = 0; i < KEY; i++) {
                const uint4 q = qs[g % (2 * HEADS) * Q_ROW + 4 * i + t];
                mma(score, make_uint4(q.x, 0, q.y, 0), make_uint2(key[u][i].x, key[u][i].y), T());
                mma(score, make_uint4(q.z, 0, q.w, 0), make_uint2(key[u][i].z, key[u][i].w), T());
            }
            if (AHEAD < TILES) fetch_keys(u, next);
#pragma unroll
            for (int e = 0; e < 2; e++) { // lane (g, t): head g / 2, keys 2 t and 2 t + 1
                score[e] += __shfl_xor_sync(0xffffffffu, score[e], 4);
                score[e] = j + 2 * t + e < n ? score[e] * scale : -INFINITY;
            }
            float m = fmaxf(score[0], score[1]);
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
            m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
            m = fmaxf(m, top);
            const float base = m == -INFINITY ? 0 : m; // a tile beyond the newest key
            const float w[2] = {power(score[0] - base), power(score[1] - base)}, keep = power(top - base);
            float add = w[0] + w[1];
            add += __shfl_xor_sync(0xffffffffu, add, 1);
            add += __shfl_xor_sync(0xffffffffu, add, 2);
            sum = sum * keep + add;
            top = m;
            uint32_t head[VALUE]; // of this lane's values: the first lane that has its weights
#pragma unroll
            for (int c = 0; c < VALUE; c++) {
                head[c] = (c * 32 + lane) / (P / 8) * 8;
                const float f = __shfl_sync(0xffffffffu, keep, head[c]);
#pragma unroll
                for (int d = 0; d < 8; d++) acc[c][d] *= f;
            }
#pragma unroll
            for (int k = 0; k < TILE; k++)
#pragma unroll
                for (int c = 0; c < VALUE; c++) {
                    const float weight = __shfl_sync(0xffffffffu, w[k % 2], head[c] + k / 2);
                    const uint32_t bits[4] = {value[u][k][c].x, value[u][k][c].y, value[u][k][c].z, value[u][k][c].w};
#pragma unroll
                    for (int d = 0; d < 4; d++) {
                        const float2 v = two_floats(bits[d], T());
                        acc[c][2 * d] += weight * v.x;
                        acc[c][2 * d + 1] += weight * v.y;
                    }
                    if (AHEAD < TILES) fetch_value(u, next, k, c);
                }
            j += STEP;
        }
        float *mine = sums[b & 1][warp];
#pragma unroll
        for (int c = 0; c < VALUE; c++) {
            *(float4 *)(mine + c * 256 + lane * 8) = make_float4(acc[c][0], acc[c][1], acc[c][2], acc[c][3]);
            *(float4 *)(mine + c * 256 + lane * 8 + 4) = make_float4(acc[c][4], acc[c][5], acc[c][6], acc[c][7]);
        }
        if (t == 0 && g % 2 == 0 && g < 2 * HEADS) sums_ml[b & 1][warp][g / 2] = make_float2(top, sum);
        __syncthreads(); // the warps' sums; those of the range before are free
        const uint32_t o = threadIdx.x * 2, h = o / P;
        if (h < HEADS) {
            float m = -INFINITY, total = 0;
            float2 x = {0, 0};
#pragma unroll
            for (int i = 0; i < WARPS; i++) m = fmaxf(m, sums_ml[b & 1][i][h].x);
#pragma unroll
            for (int i = 0; i < WARPS; i++) {
                const float2 ml = sums_ml[b & 1][i][h], v = *(const float2 *)(sums[b & 1][i] + o);
                const float f = power(ml.x - m);
                total += f * ml.y;
                x.x += f * v.x, x.y += f * v.y;
            }
            const size_t at = ((size_t)blockIdx.y * a.n_ranges + b) * s.H + h0;
            *(float2 *)(a.part + at * P + o) = x;
            if (o % P == 0) a.part_ml[at + h] = make_float2(m, total);
        }
    }
}

// A block: a head of a row. A warp weighs 32 ranges at a time, a lane each; its group of threads adds every fourth range.
enum { GROUPS = 4 };
template <class T, int P>
__global__ void __launch_bounds__(GROUPS * P / 2) decode_combine_kernel(const __grid_constant__ decode_window a) {
    __shared__ float2 sums[GROUPS][P / 2];
    const cuda_shape &s = a.shape;
    const uint32_t h = blockIdx.x, lane = threadIdx.x % 32, group = threadIdx.x / (P / 2), o = threadIdx.x % (P / 2) * 2;
    let_next_start();
    if (!a.early) wait_for_inputs();
    const uint32_t r = a.list ? (uint32_t)a.list[blockIdx.y] : blockIdx.y;
    const uint32_t n = ((uint32_t)min((uint64_t)a.rows.pos[r] + 1, (uint64_t)s.visible) + RANGE - 1) / RANGE;
    const float *part = a.part + ((size_t)blockIdx.y * a.n_ranges * s.H + h) * P + o;
    const float2 *part_ml = a.part_ml + (size_t)blockIdx.y * a.n_ranges * s.H + h;
    if (a.early) wait_for_inputs();
    float top = -INFINITY, total = 0;
    float2 sum = {0, 0};
    for (uint32_t b0 = 0; b0 < n; b0 += 32) {
        const float2 ml = b0 + lane < n ? part_ml[(size_t)(b0 + lane) * s.H] : make_float2(-INFINITY, 0);
        float2 x[32 / GROUPS];
#pragma unroll
        for (int i = 0; i < 32 / GROUPS; i++) {
            const uint32_t b = b0 + group + GROUPS * i;
            x[i] = b < n ? *(const float2 *)(part + (size_t)b * s.H * P) : make_float2(0, 0);
        }
        float m = fmaxf(ml.x, top);
#pragma unroll
        for (int i = 16; i; i >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, i));
        const float w = power(ml.x - m), keep = power(top - m);
        total = total * keep + warp_sum(w * ml.y);
        sum.x *= keep, sum.y *= keep, top = m;
#pragma unroll
        for (int i = 0; i < 32 / GROUPS; i++) {
            const float f = __shfl_sync(0xffffffffu, w, group + GROUPS * i);
            sum.x += f * x[i].x, sum.y += f * x[i].y;
        }
    }
    sums[group][o / 2] = sum;
    __syncthreads(); // the groups' sums
    if (group) return;
#pragma unroll
    for (int i = 1; i < GROUPS; i++) sum.x += sums[i][o / 2].x, sum.y += sums[i][o / 2].y;
    T *act = (T *)a.act + act_at<T>(r, h * P + o, s.H * P); // pairs of columns are neighbours
    act[0] = from_float<T>(__fdividef(sum.x, total));
    act[1] = from_float<T>(__fdividef(sum.y, total));
}

bool cuda_decode_window_possible(const struct cuda_shape *s) {
    return s->dtype != CUDA_F32 && (s->P == 64 || s->P == 128) && s->Hk == 1 && s->Hv == s->H && s->H % 4 == 0 &&
           (uint64_t)s->ring_keys * s->H * s->P < UINT32_MAX;
}

template <class T, int P, int HEADS, int AHEAD> static void decode(const decode_window &a, uint32_t n_list, void *stream) {
    launch(decode_window_kernel<T, P, HEADS, AHEAD>, dim3(a.shape.H / HEADS, n_list, (a.n_ranges + a.per_block - 1) / a.per_block),
           dim3(THREADS), 0, stream, a);
    launch(decode_combine_kernel<T, P>, dim3(a.shape.H, n_list), dim3(GROUPS * P / 2), 0, stream, a);
}
template <class T> static void decode(decode_window a, uint32_t n_list, void *stream) {
    const uint32_t quarters = n_list * (a.shape.H / 4) * a.n_ranges; // blocks, four heads to each
    const bool few = quarters <= 132;                                // a block of its own to each multiprocessor of an H200
    // Longer runs overlap better; and two waves of full ranges, two blocks to each multiprocessor, are one of blocks twice as long.
    const uint32_t full = n_list * (a.shape.H / 4) * (a.shape.visible / RANGE);
    a.per_block = quarters >= 2048 || (full > 448 && full <= 528) ? 2 : 1;
    if (a.shape.P == 64) few ? decode<T, 64, 4, 2>(a, n_list, stream) : decode<T, 64, 4, 1>(a, n_list, stream);
    else few ? decode<T, 128, 2, 2>(a, n_list, stream) : decode<T, 128, 4, 1>(a, n_list, stream);
}

void k_decode_window(const struct cuda_shape *shape, uint32_t layer, const struct cuda_rows *rows, const int32_t *list, uint32_t n_list,
                     bool single, const float *qkv, uint32_t splits, size_t split_stride, const float *row_scale, const float *turn,
                     const float *q_norm, const float *k_norm, float *part, float *part_ml, void *act, void *stream) {
    const decode_window a = {*shape, layer, *rows, list, single, (shape->visible + RANGE - 1) / RANGE, 1, qkv, splits, split_stride, row_scale,
                             (const float2 *)turn, q_norm, k_norm, part, (float2 *)part_ml, act};
    if (shape->dtype == CUDA_F16) decode<__half>(a, n_list, stream);
    else decode<__nv_bfloat16>(a, n_list, stream);
}
