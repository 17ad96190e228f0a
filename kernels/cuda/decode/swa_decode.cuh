// swa_decode.cuh - what the kernels of decode steps' attention share (swa_decode.cu, swa_decode_near.cu,
// swa_decode_many.cu, swa_drafts.cu): queries, and the arithmetic of a tile and of a range, one text for all and
// roundings as written, so that a row's bits do not depend on the batch.
#pragma once
#include "kernels/cuda/window.cuh"

enum { WARPS = 8, TILE = 8, TILES = 2, STEP = WARPS * TILE, RANGE = STEP * TILES, THREADS = WARPS * 32 };

// A cuda_window as the kernels read it: flat, as nesting its heads costs draft_window_kernel registers.
struct decode_window {
    cuda_shape shape;
    uint32_t layer;
    cuda_rows rows;
    const int32_t *list;          // NULL: all rows in order
    bool early;                   // all keys but the rows' own may be read before the inputs are ready
    uint32_t n_ranges, per_block; // ranges of a full window; of them to a block
    const float *qkv;
    uint32_t splits;
    size_t split_stride;
    const float *row_scale; // of the products' sums; may be NULL
    const float2 *rope;
    const float *q_norm, *k_norm;
    float *part;     // [row of the list][n_ranges][H P]
    float2 *part_ml; // [row of the list][n_ranges][H]: maximum, in powers of two, and sum
    void *act;
};
static inline decode_window decode_window_of(const struct cuda_window *w, bool early) {
    const cuda_heads &heads = w->heads;
    assert(dispatch_decode_window(&w->shape) && w->n_list > 0 && heads.qkv.n > 0);
    assert(on_16_bytes(w->shape.keys, w->shape.values, heads.rope, w->part, w->part_ml));
    assert(!w->shape.qk_norm || (heads.q_norm && heads.k_norm));
    decode_window a = {};
    a.shape = w->shape, a.layer = w->layer, a.rows = w->rows, a.list = w->list;
    a.early = early, a.n_ranges = (w->shape.visible + RANGE - 1) / RANGE, a.per_block = 1;
    a.qkv = heads.qkv.at, a.splits = heads.qkv.n, a.split_stride = heads.qkv.stride, a.row_scale = heads.row_scale;
    a.rope = (const float2 *)heads.rope, a.q_norm = heads.q_norm, a.k_norm = heads.k_norm;
    a.part = w->part, a.part_ml = (float2 *)w->part_ml, a.act = w->act;
    return a;
}

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
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
                 : "l"(p), "r"((uint32_t)wanted));
    return v;
}
// 8 bytes that are read once, or zeros.
__device__ __forceinline__ uint2 stream8(const void *p, bool wanted) {
    uint2 v;
    asm volatile("{.reg .pred w; setp.ne.u32 w, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;\n"
                 "@w ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];}"
                 : "=&r"(v.x), "=&r"(v.y)
                 : "l"(p), "r"((uint32_t)wanted));
    return v;
}
__device__ __forceinline__ void stream(uint4 &x, const void *p, bool wanted) { x = stream16(p, wanted); }
__device__ __forceinline__ void stream(uint2 &x, const void *p, bool wanted) { x = stream8(p, wanted); }
// 16 or 8 bytes to shared memory in the background, or zeros.
template <int BYTES> __device__ __forceinline__ void ask(void *to, const void *from, bool wanted) {
    if (BYTES == 16)
        ask16(to, from, wanted);
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)), "l"(from),
                     "r"(wanted ? 8 : 0)
                     : "memory");
}

// How a warp shares the keys and values of a tile, HEADS heads. Of a key: lane t of four has the KEY pieces of 16 bytes
// t, t + 4 ... Of a key's values: lane l has the VALUE pieces l, l + 32 of N numbers each, up to 16 bytes.
template <class F, int P, int HEADS> struct tile_parts {
    using kept = typename F::kept;
    enum {
        SIZE = sizeof(kept),
        KEY = P * SIZE / 64,
        KEY_BYTES = P * SIZE,
        VALUE_BYTES = HEADS * P * SIZE, // of a key
        VALUE = VALUE_BYTES >= 512 ? VALUE_BYTES / 512 : 1,
        N = HEADS * P / 32 / VALUE,
        BYTES = N * SIZE,
        Q_ROW = P / 8 + (SIZE == 1 ? 1 : 4) // of queries, in 16 bytes: a stride that spreads the rows over the banks
    };
    using value = typename piece_of<BYTES>::type;
};

// The row's cosines and sines at a lane's dims, which are lane, lane + 32 ... here and below. rope: the row's.
template <int P> __device__ __forceinline__ void rope_of(const cuda_shape &s, const float2 *rope, float2 (&w)[P / 32]) {
    const uint32_t half = s.rot_dim / 2;
#pragma unroll
    for (int i = 0; i < P / 32; i++) {
        const uint32_t p = threadIdx.x % 32 + 32 * i;
        if (p < 2 * half) w[i] = rope[s.rot_interleaved ? p / 2 : p < half ? p : p - half];
    }
}
// One head of query or key by a warp: q/k norm, rotary. norm(i): of its weights this lane's i-th. head: P floats
// shared.
template <int P, class Norm>
__device__ __forceinline__ void rotate_head(const cuda_shape &s, const float2 (&w)[P / 32], Norm norm, float *head,
                                            float (&x)[P / 32]) {
    const uint32_t lane = threadIdx.x % 32, half = s.rot_dim / 2;
    const bool pairs = s.rot_interleaved;
    if (s.qk_norm) {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < P / 32; i++) squares = __fmaf_rn(x[i], x[i], squares);
        const float scale = rsqrtf(__fmaf_rn(warp_sum(squares), 1.0f / P, s.qk_norm_eps));
#pragma unroll
        for (int i = 0; i < P / 32; i++) x[i] *= scale * norm(i);
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
        const float across = __fmul_rn(other, w[i].y);
        x[i] = __fmaf_rn(x[i], w[i].x, second ? across : -across);
    }
}
template <int P>
__device__ __forceinline__ void rotate_head(const cuda_shape &s, const float2 (&w)[P / 32], const float *norm,
                                            float *head, float (&x)[P / 32]) {
    rotate_head<P>(
        s, w, [&](int i) { return norm[threadIdx.x % 32 + 32 * i]; }, head, x);
}
// A rotated head from the partial products.
template <int P>
__device__ __forceinline__ void rotated_head(const decode_window &a, uint32_t row, uint32_t h, const float *norm,
                                             float *head, float (&x)[P / 32]) {
    const uint32_t lane = threadIdx.x % 32, half = a.shape.rot_dim / 2;
    const float *in = a.qkv + (size_t)row * (2 * a.shape.H + 1) * P + h * P;
    float2 w[P / 32];
    rope_of<P>(a.shape, a.rope + (size_t)row * half, w);
#pragma unroll
    for (int i = 0; i < P / 32; i++) x[i] = 0;
#pragma unroll 1
    for (uint32_t s = 0; s < a.splits; s++)
#pragma unroll
        for (int i = 0; i < P / 32; i++) x[i] += in[s * a.split_stride + lane + 32 * i];
    if (a.row_scale) {
        const float scale = a.row_scale[row];
#pragma unroll
        for (int i = 0; i < P / 32; i++) x[i] *= scale;
    }
    rotate_head<P>(a.shape, w, norm, head, x);
}
// A query's dim as a number of T, and what rounding took off.
template <class T> __device__ __forceinline__ T two_parts(float x, T &low) {
    const T high = from_float<T>(x);
    low = from_float<T>(x - to_float(high));
    return high;
}
// Of a key's 16 bytes, those of lane t's piece i, with the queries of two rows of the product, which begin at q and r.
template <class F>
__device__ __forceinline__ void score_piece(float (&score)[4], const uint4 &key, uint32_t i, const uint4 *q,
                                            const uint4 *r) {
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int e = 0; e < F::EIGHTS; e++) {
        const uint32_t at = (4 * i + t) * F::EIGHTS + e;
        const uint4 k = F::eight(key, e), x = q[at], y = r ? r[at] : make_uint4(0, 0, 0, 0);
        mma(score, make_uint4(x.x, y.x, x.y, y.y), make_uint2(k.x, k.y), typename F::query());
        mma(score, make_uint4(x.z, y.z, x.w, y.w), make_uint2(k.z, k.w), typename F::query());
    }
}
// Queries as operand A lies in registers, a product's 16 dims after the other: no register need be moved or cleared.
// Where dim p of row g < 8 is, counted in numbers of 16 bits.
template <class F> __device__ __forceinline__ uint32_t fragment_at(uint32_t g, uint32_t p) {
    enum { PIECE = 8 * F::EIGHTS };
    const uint32_t piece = p / PIECE, t = piece % 4, d = p % 8,
                   product = (piece / 4 * F::EIGHTS + p % PIECE / 8) * 2 + d / 4;
    return ((product * 32 + g * 4 + t) * 4 + d % 4 / 2 * 2) * 2 + d % 2;
}
template <int P> __host__ __device__ constexpr uint32_t fragment_bytes() { return P / 16 * 32 * 16; }
// score_tile of such queries, whose rows from 8 on are zeros.
template <class F, int P, int HEADS>
__device__ __forceinline__ void score_fragments(float (&score)[4], const uint4 *fragments,
                                                const uint4 (&key)[tile_parts<F, P, HEADS>::KEY]) {
    const uint4 *const mine = fragments + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < tile_parts<F, P, HEADS>::KEY; i++)
#pragma unroll
        for (int e = 0; e < F::EIGHTS; e++) {
            const uint4 k = F::eight(key[i], e);
            const int product = (i * F::EIGHTS + e) * 2;
            mma(score, mine[product * 32], make_uint2(k.x, k.y), typename F::query());
            mma(score, mine[(product + 1) * 32], make_uint2(k.z, k.w), typename F::query());
        }
}
// Scores of a tile: heads are rows of the product, in pairs of high and low part, keys its columns. Which dims a step
// of 16 takes does not matter, so a lane gives those that it loaded.
template <class F, int P, int HEADS>
__device__ __forceinline__ void score_tile(float (&score)[4], const uint4 *qs,
                                           const uint4 (&key)[tile_parts<F, P, HEADS>::KEY]) {
    const uint32_t g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < tile_parts<F, P, HEADS>::KEY; i++)
        score_piece<F>(score, key[i], i, qs + g % (2 * HEADS) * tile_parts<F, P, HEADS>::Q_ROW, NULL);
}

// N * 32 columns of a row of q, k, v from `column` on: the partial products' sum, scaled; lane l has l, l + 32 ...
template <int P, int N>
__device__ __forceinline__ void column_sums(const decode_window &a, uint32_t row, uint32_t column, float (&x)[N]) {
    const float *in = a.qkv + (size_t)row * (2 * a.shape.H + 1) * P + column + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = 0;
#pragma unroll 1
    for (uint32_t k = 0; k < a.splits; k++)
#pragma unroll
        for (int i = 0; i < N; i++) x[i] += in[k * a.split_stride + 32 * i];
    const float scale = a.row_scale ? a.row_scale[row] : 1.0f;
#pragma unroll
    for (int i = 0; i < N; i++) x[i] *= scale;
}

// What a warp rotated: query `job` in F's type, followed by what rounding took off, or (job = HEADS) the newest key,
// which goes into the ring, too, if `writes`. FRAGMENTS: queries are so.
template <class F, int P, int HEADS, bool FRAGMENTS = false>
__device__ __forceinline__ void leave_rotated(const float (&x)[P / 32], uint32_t job, bool writes,
                                              typename F::kept *ring_key, uint4 *qs, uint4 *new_key) {
    using query = typename F::query;
    using kept = typename F::kept;
    query *const high = (query *)(qs + 2 * job * tile_parts<F, P, HEADS>::Q_ROW);
#pragma unroll
    for (int i = 0; i < P / 32; i++) {
        const uint32_t p = threadIdx.x % 32 + 32 * i;
        if (job < HEADS) {
            query low;
            const query y = two_parts(F::query_of(x[i]), low);
            if (FRAGMENTS) {
                ((query *)qs)[fragment_at<F>(2 * job, p)] = y, ((query *)qs)[fragment_at<F>(2 * job + 1, p)] = low;
            } else {
                high[p] = y, high[tile_parts<F, P, HEADS>::Q_ROW * 8 + p] = low;
            }
        } else {
            const kept y = from_float<kept>(x[i]);
            ((kept *)new_key)[p] = y;
            if (writes) ring_key[p] = y;
        }
    }
}
// The newest values of head h of the block's.
template <class F, int P>
__device__ __forceinline__ void leave_values(const float (&x)[P / 32], uint32_t h, typename F::kept *ring_values,
                                             uint4 *new_value) {
    using kept = typename F::kept;
#pragma unroll
    for (int i = 0; i < P / 32; i++) {
        const uint32_t p = h * P + threadIdx.x % 32 + 32 * i;
        const kept y = from_float<kept>(x[i]);
        ((kept *)new_value)[p] = y;
        ring_values[p] = y;
    }
}

// Where a block's queries go, each followed by what rounding took off, and the newest key and values. head: P floats a
// job, for rotating.
struct made_queries {
    float *head;
    uint4 *qs, *new_key, *new_value;
};
template <class F> struct newest_place { // of the newest key in a session's ring
    uint32_t at;
    typename F::kept *keys, *values;
};
// A row's queries of HEADS heads from h0 on, each followed by what rounding took off; if `own`, its key and values too.
// They go into the ring, but nobody reads them there in this step. By the whole block.
template <class F, int P, int HEADS, bool FRAGMENTS = false>
__device__ __forceinline__ void make_queries(const decode_window &a, uint32_t r, uint32_t h0, bool own,
                                             const newest_place<F> &ring, const made_queries &to) {
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32, value_row = s.H * P;
    const uint32_t n_jobs = own ? 2 * HEADS + 1 : HEADS;
#pragma unroll 1
    for (uint32_t job = warp; job < n_jobs; job += WARPS) {
        float x[P / 32];
        if (job <= HEADS) {
            rotated_head<P>(a, r, job < HEADS ? h0 + job : s.H, job < HEADS ? a.q_norm : a.k_norm, to.head + job * P,
                            x);
            leave_rotated<F, P, HEADS, FRAGMENTS>(x, job, h0 == 0, ring.keys + ring.at * P, to.qs, to.new_key);
        } else {
            const uint32_t h = job - HEADS - 1;
            column_sums<P>(a, r, (s.H + 1 + h0 + h) * P, x);
            leave_values<F, P>(x, h, ring.values + ring.at * value_row + h0 * P, to.new_value);
        }
    }
}

// Scores of a tile's keys j and j + 1 of this lane, one of the four lanes (all of the tile's keys) that call it
// together
// -> their weights; top and sum of the tiles before take them in, and what those added is to be scaled by `keep`.
__device__ __forceinline__ void weigh_keys(float (&score)[2], uint32_t j, uint32_t n, float scale, float &top,
                                           float &sum, float (&w)[2], float &keep) {
#pragma unroll
    for (int e = 0; e < 2; e++) score[e] = j + e < n ? __fmul_rn(score[e], scale) : -INFINITY;
    float m = fmaxf(score[0], score[1]);
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
    m = fmaxf(m, top);
    const float base = m == -INFINITY ? 0 : m; // a tile beyond the newest key
    w[0] = power(__fsub_rn(score[0], base)), w[1] = power(__fsub_rn(score[1], base));
    keep = power(__fsub_rn(top, base));
    float add = __fadd_rn(w[0], w[1]);
    add += __shfl_xor_sync(0xffffffffu, add, 1);
    add += __shfl_xor_sync(0xffffffffu, add, 2);
    sum = __fmaf_rn(sum, keep, add);
    top = m;
}

// A warp's sums over the tiles of a range: of lane (g, t) = (lane / 4, lane % 4) the maximum and sum of head g / 2, and
// of its values, VALUE pieces of N. Of a tile: weigh, add its keys' values in order, end.
template <class F, int P, int HEADS> struct tile_sums {
    using parts = tile_parts<F, P, HEADS>;
    using weight = typename F::weight;
    enum { VALUE = parts::VALUE, N = parts::N };
    float top = -INFINITY, sum = 0, acc[VALUE][N] = {};
    typename F::template sums<N> tile[VALUE];
    // Scores of the tile's keys 2 t and 2 t + 1 -> their weights, and by what the sums of the tiles before are scaled.
    __device__ __forceinline__ void weights(float (&score)[4], uint32_t j, uint32_t n, float scale, weight (&w)[2],
                                            float &keep) {
#pragma unroll
        for (int e = 0; e < 2; e++) // lane (g, t): head g / 2, keys 2 t and 2 t + 1
            score[e] += __shfl_xor_sync(0xffffffffu, score[e], 4);
        float two[2] = {score[0], score[1]}, x[2];
        weigh_keys(two, j + 2 * (threadIdx.x % 4), n, scale, top, sum, x, keep);
        w[0] = F::weight_of(x[0]), w[1] = F::weight_of(x[1]);
    }
    __device__ __forceinline__ void scale_by(float keep, uint32_t (&head)[VALUE]) {
#pragma unroll
        for (int c = 0; c < VALUE; c++) { // of this lane's values: the first lane that has its weights
            head[c] = (c * 32 + threadIdx.x % 32) / (P / N) * 8;
            const float f = __shfl_sync(0xffffffffu, keep, head[c]);
#pragma unroll
            for (int d = 0; d < N; d++) tile[c].begin(d, acc[c][d], f);
        }
    }
    __device__ __forceinline__ void weigh(float (&score)[4], uint32_t j, uint32_t n, float scale, weight (&w)[2],
                                          uint32_t (&head)[VALUE]) {
        float keep;
        weights(score, j, n, scale, w, keep);
        scale_by(keep, head);
    }
    __device__ __forceinline__ void add(int k, int c, const weight (&w)[2], const uint32_t (&head)[VALUE],
                                        const typename parts::value &value) {
        tile[c].add(__shfl_sync(0xffffffffu, w[k % 2], head[c] + k / 2), value);
    }
    __device__ __forceinline__ void end() {
#pragma unroll
        for (int c = 0; c < VALUE; c++)
#pragma unroll
            for (int d = 0; d < N; d++) acc[c][d] = tile[c].end(d, false);
    }
    __device__ __forceinline__ void leave(float *mine, float2 *mine_ml) const {
        const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int c = 0; c < VALUE; c++)
#pragma unroll
            for (int d = 0; d < N; d += 4)
                *(float4 *)(mine + c * 32 * N + lane * N + d) =
                    make_float4(acc[c][d], acc[c][d + 1], acc[c][d + 2], acc[c][d + 3]);
        if (t == 0 && g % 2 == 0 && g < 2 * HEADS) mine_ml[g / 2] = make_float2(top, sum);
    }
};
// The warps' sums -> the range's: put(o, two dims from o on) of all heads, put_ml(h, maximum and sum). A thread: two
// dims, o = 2 * thread.
template <int P, int HEADS, class Put, class PutMl>
__device__ __forceinline__ void fold_sums(const float (&sums)[WARPS][HEADS * P], const float2 (&sums_ml)[WARPS][HEADS],
                                          uint32_t thread, Put put, PutMl put_ml) {
    const uint32_t o = thread * 2, h = o / P;
    if (h >= HEADS) return;
    float m = -INFINITY, total = 0;
    float2 x = {0, 0};
#pragma unroll
    for (int i = 0; i < WARPS; i++) m = fmaxf(m, sums_ml[i][h].x);
#pragma unroll
    for (int i = 0; i < WARPS; i++) {
        const float2 ml = sums_ml[i][h], v = *(const float2 *)(sums[i] + o);
        const float f = power(__fsub_rn(ml.x, m));
        total = __fmaf_rn(f, ml.y, total);
        x.x = __fmaf_rn(f, v.x, x.x), x.y = __fmaf_rn(f, v.y, x.y);
    }
    put(o, x);
    if (o % P == 0) put_ml(h, make_float2(m, total));
}
// At place (row of the list, range, h0) of a.part and a.part_ml.
template <int P, int HEADS>
__device__ __forceinline__ void fold_warps(const decode_window &a, const float (&sums)[WARPS][HEADS * P],
                                           const float2 (&sums_ml)[WARPS][HEADS], size_t at) {
    fold_sums<P, HEADS>(
        sums, sums_ml, threadIdx.x, [&](uint32_t o, float2 x) { *(float2 *)(a.part + at * P + o) = x; },
        [&](uint32_t h, float2 ml) { a.part_ml[at + h] = ml; });
}

// A head's ranges put together, two dims a thread: a warp weighs 32 ranges at a time, a lane each; its group of threads
// adds every GROUPS-th range, from `group` on. load(b0, this lane's maximum and sum of range b0 + lane, the dims of
// ranges b0 + group + GROUPS i); what is beyond the n ranges is -INFINITY and zeros.
enum { GROUPS = 4 };
struct range_sums {
    float top = -INFINITY, total = 0;
    float2 sum = {0, 0};
    template <class Load> __device__ __forceinline__ void add(uint32_t n, uint32_t group, Load load) {
        for (uint32_t b0 = 0; b0 < n; b0 += 32) {
            float2 ml, x[32 / GROUPS];
            load(b0, ml, x);
            float m = fmaxf(ml.x, top);
#pragma unroll
            for (int i = 16; i; i >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, i));
            const float w = power(__fsub_rn(ml.x, m)), keep = power(__fsub_rn(top, m));
            total = __fmaf_rn(total, keep, warp_sum(__fmul_rn(w, ml.y)));
            sum.x = __fmul_rn(sum.x, keep), sum.y = __fmul_rn(sum.y, keep), top = m;
#pragma unroll
            for (int i = 0; i < 32 / GROUPS; i++) {
                const float f = __shfl_sync(0xffffffffu, w, group + GROUPS * i);
                sum.x = __fmaf_rn(f, x[i].x, sum.x), sum.y = __fmaf_rn(f, x[i].y, sum.y);
            }
        }
    }
};

// By the whole block: sum of x over the threads before this one; all: over all threads.
__device__ __forceinline__ uint32_t sum_before(uint32_t x, uint32_t (&warps)[WARPS], uint32_t &all) {
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t before = x; // inclusive over the warp
#pragma unroll
    for (int i = 1; i < 32; i <<= 1) {
        const uint32_t y = __shfl_up_sync(0xffffffffu, before, i);
        if (lane >= i) before += y;
    }
    if (lane == 31) warps[warp] = before;
    before -= x;
    __syncthreads(); // the warps' sums
    all = 0;
#pragma unroll
    for (int i = 0; i < WARPS; i++) before += i < warp ? warps[i] : 0, all += warps[i];
    return before;
}

// swa_decode_near.cu: the same of up to 128 rows, on Hopper; what puts the ranges together is asked for by the caller.
void decode_near(const decode_window &a, uint32_t n_list, void *stream);
// swa_decode_many.cu: the same of so many rows that every multiprocessor has ranges of its own, on Hopper.
void decode_many(const decode_window &a, uint32_t n_list, void *stream);
// swa_decode.cu: the ranges' results put together, a.act of the rows of the list.
void decode_combine(const decode_window &a, uint32_t n_list, void *stream);
