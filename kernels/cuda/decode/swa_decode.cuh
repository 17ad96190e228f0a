// swa_decode.cuh - what the kernels of decode steps' attention share (swa_decode.cu, swa_decode_near.cu,
// swa_decode_many.cu, swa_drafts.cu): queries, and the arithmetic of a tile and of a range, one text for all and
// roundings as written, so that a row's bits do not depend on the batch.
#pragma once
#include "kernels/cuda/common.cuh"

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
__device__ __forceinline__ float2 two_floats(uint32_t x, __half) { return __half22float2(*(__half2 *)&x); }
__device__ __forceinline__ float2 two_floats(uint32_t x, __nv_bfloat16) {
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
}

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
// Scores of a tile: heads are rows of the product, in pairs of high and low part, keys its columns. Which dims a step
// of 16 takes does not matter, so a lane gives those that it loaded.
template <class T, int P, int HEADS, int Q_ROW>
__device__ __forceinline__ void score_tile(float (&score)[4], const uint4 *qs, const uint4 (&key)[P / 32]) {
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < P / 32; i++) {
        const uint4 q = qs[g % (2 * HEADS) * Q_ROW + 4 * i + t];
        mma(score, make_uint4(q.x, 0, q.y, 0), make_uint2(key[i].x, key[i].y), T());
        mma(score, make_uint4(q.z, 0, q.w, 0), make_uint2(key[i].z, key[i].w), T());
    }
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

// What a warp rotated: query `job` in T, followed by what rounding took off, or (job = HEADS) the newest key, which
// goes into the ring, too, if `writes`.
template <class T, int P, int HEADS, int Q_ROW>
__device__ __forceinline__ void leave_rotated(const float (&x)[P / 32], uint32_t job, bool writes, T *ring_key,
                                              uint4 *qs, uint4 *new_key) {
    T *high = job < HEADS ? (T *)(qs + 2 * job * Q_ROW) : (T *)new_key;
#pragma unroll
    for (int i = 0; i < P / 32; i++) {
        const uint32_t p = threadIdx.x % 32 + 32 * i;
        T low;
        const T y = two_parts(x[i], low);
        high[p] = y;
        if (job < HEADS)
            high[Q_ROW * 8 + p] = low;
        else if (writes)
            ring_key[p] = y;
    }
}
// The newest values of head h of the block's.
template <class T, int P>
__device__ __forceinline__ void leave_values(const float (&x)[P / 32], uint32_t h, T *ring_values, uint4 *new_value) {
#pragma unroll
    for (int i = 0; i < P / 32; i++) {
        const uint32_t p = h * P + threadIdx.x % 32 + 32 * i;
        ((T *)new_value)[p] = from_float<T>(x[i]);
        ring_values[p] = from_float<T>(x[i]);
    }
}

// Where a block's queries go, each in T followed by what rounding took off, and the newest key and values. head: P
// floats a job, for rotating.
struct made_queries {
    float *head;
    uint4 *qs, *new_key, *new_value;
};
template <class T> struct newest_place { // of the newest key in a session's ring
    uint32_t at;
    T *keys, *values;
};
// A row's queries of HEADS heads from h0 on, each in T, followed by what rounding took off; if `own`, its key and
// values too. They go into the ring, but nobody reads them there in this step. By the whole block.
template <class T, int P, int HEADS, int Q_ROW>
__device__ __forceinline__ void make_queries(const decode_window &a, uint32_t r, uint32_t h0, bool own,
                                             const newest_place<T> &ring, const made_queries &to) {
    const cuda_shape &s = a.shape;
    const uint32_t warp = threadIdx.x / 32, value_row = s.H * P;
    const uint32_t n_jobs = own ? 2 * HEADS + 1 : HEADS;
#pragma unroll 1
    for (uint32_t job = warp; job < n_jobs; job += WARPS) {
        float x[P / 32];
        if (job <= HEADS) {
            rotated_head<P>(a, r, job < HEADS ? h0 + job : s.H, job < HEADS ? a.q_norm : a.k_norm, to.head + job * P,
                            x);
            leave_rotated<T, P, HEADS, Q_ROW>(x, job, h0 == 0, ring.keys + ring.at * P, to.qs, to.new_key);
        } else {
            const uint32_t h = job - HEADS - 1;
            column_sums<P>(a, r, (s.H + 1 + h0 + h) * P, x);
            leave_values<T, P>(x, h, ring.values + ring.at * value_row + h0 * P, to.new_value);
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
// of its values.
template <int VALUE> struct tile_sums {
    float top = -INFINITY, sum = 0, acc[VALUE][8] = {};
    // Scores of the tile's keys 2 t and 2 t + 1 -> their weights, and by what the sums of the tiles before are scaled.
    __device__ __forceinline__ void weights(float (&score)[4], uint32_t j, uint32_t n, float scale, float (&w)[2],
                                            float &keep) {
#pragma unroll
        for (int e = 0; e < 2; e++) // lane (g, t): head g / 2, keys 2 t and 2 t + 1
            score[e] += __shfl_xor_sync(0xffffffffu, score[e], 4);
        float two[2] = {score[0], score[1]};
        weigh_keys(two, j + 2 * (threadIdx.x % 4), n, scale, top, sum, w, keep);
    }
    template <int P> __device__ __forceinline__ void scale_by(float keep, uint32_t (&head)[VALUE]) {
#pragma unroll
        for (int c = 0; c < VALUE; c++) { // of this lane's values: the first lane that has its weights
            head[c] = (c * 32 + threadIdx.x % 32) / (P / 8) * 8;
            const float f = __shfl_sync(0xffffffffu, keep, head[c]);
#pragma unroll
            for (int d = 0; d < 8; d++) acc[c][d] = __fmul_rn(acc[c][d], f);
        }
    }
    template <int P>
    __device__ __forceinline__ void weigh(float (&score)[4], uint32_t j, uint32_t n, float scale, float (&w)[2],
                                          uint32_t (&head)[VALUE]) {
        float keep;
        weights(score, j, n, scale, w, keep);
        scale_by<P>(keep, head);
    }
    template <class T>
    __device__ __forceinline__ void add(int k, int c, const float (&w)[2], const uint32_t (&head)[VALUE],
                                        const uint4 &value) {
        const float weight = __shfl_sync(0xffffffffu, w[k % 2], head[c] + k / 2);
        const uint32_t bits[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
        for (int d = 0; d < 4; d++) {
            const float2 v = two_floats(bits[d], T());
            acc[c][2 * d] = __fmaf_rn(weight, v.x, acc[c][2 * d]);
            acc[c][2 * d + 1] = __fmaf_rn(weight, v.y, acc[c][2 * d + 1]);
        }
    }
    template <int HEADS> __device__ __forceinline__ void leave(float *mine, float2 *mine_ml) const {
        const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
        for (int c = 0; c < VALUE; c++) {
            *(float4 *)(mine + c * 256 + lane * 8) = make_float4(acc[c][0], acc[c][1], acc[c][2], acc[c][3]);
            *(float4 *)(mine + c * 256 + lane * 8 + 4) = make_float4(acc[c][4], acc[c][5], acc[c][6], acc[c][7]);
        }
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
