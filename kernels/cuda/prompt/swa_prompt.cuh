// swa_prompt.cuh - what the kernels of swa_prompt.cu share: what a block works on, and where its keys and values are.
#pragma once
#include "kernels/cuda/window.cuh"

enum { PROMPT_TILE = 64, PROMPT_MOST_P = 256 }; // queries of a tile; dims of a head

struct prompt_window {
    cuda_shape shape;
    uint32_t layer, n_rows;
    const int64_t *pos;
    const int32_t *slot;
    cuda_prompts prompts;
    void *work, *act; // work [n_rows][(H + Hk + Hv) P] of 16 bit, queries times log2(e) / sqrt(P)
    // Keys and values before the prompts, of this layer, in 16 bits: the rings, or copies of what a prompt sees of them
    // at the places that it has there.
    void *old_keys, *old_values;
    size_t old_keys_slot, old_values_slot; // elements, from a slot's, or a copy's, to the next
};

// k_prompt_places' part of the workspace; the copies', of keys and then of values.
static inline int2 *prompt_places_in(const cuda_shape &s, uint32_t n_rows, void *work) {
    return (int2 *)((char *)work + (size_t)n_rows * (s.H + s.Hk + s.Hv) * s.P * 2);
}
static inline char *prompt_copies_in(const cuda_shape &s, uint32_t n_rows, void *work) {
    return (char *)(prompt_places_in(s, n_rows, work) + (n_rows + 15) / 16 * 16);
}

// dispatch.h's.
static inline enum dispatch_kernel prompt_kernel_of(const prompt_window &a) {
    dispatch_case c = {};
    c.op = DISPATCH_PROMPT_WINDOW, c.device = this_device(), c.dtype = a.shape.dtype, c.n_rows = a.n_rows;
    c.shape = &a.shape, c.n_pairs = a.prompts.n_pairs, c.n_single = a.prompts.n_single;
    return dispatch_kernel_of(&c);
}

// The attention itself, where a device and a shape have the first, and of any shape. Asked for its shared memory
// before.
bool prompt_wide_possible(const struct cuda_shape *s);
bool prompt_wide_prepare(const struct cuda_shape *s);
bool prompt_wide_pairs(const struct cuda_shape *s, uint32_t n_tiles); // whether it wants pairs of so many tiles
void prompt_wide_attend(const prompt_window &a, void *stream);
bool prompt_any_prepare(const struct cuda_shape *s);
void prompt_any_attend(const prompt_window &a, void *stream);

// 2^x.
__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ uint32_t two(float x, float y, __half) {
    const __half2 v = __floats2half2_rn(x, y);
    return *(const uint32_t *)&v;
}
__device__ __forceinline__ uint32_t two(float x, float y, __nv_bfloat16) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    return *(const uint32_t *)&v;
}

// Four numbers of a key or value: as the ring keeps them, and in the workspace.
template <class T> struct four_numbers {
    uint2 work;
    uint32_t codes;
    __device__ __forceinline__ four_numbers(const float4 &x, window16<T>)
        : work(make_uint2(two(x.x, x.y, T()), two(x.z, x.w, T()))) {}
    __device__ __forceinline__ four_numbers(const float4 &x, window8<T>) : codes(codes_of(x)) {
        const uint2 halves = four_halves(codes);
        const float2 a = two_floats(halves.x, __half()), b = two_floats(halves.y, __half());
        work = make_uint2(two(a.x, a.y, T()), two(b.x, b.y, T()));
    }
    __device__ __forceinline__ void keep(T *to) const { *(uint2 *)to = work; }
    __device__ __forceinline__ void keep(e4m3 *to) const { *(uint32_t *)to = codes; }
};
template <class T> __device__ __forceinline__ uint4 eight_numbers(uint2 codes);
template <> __device__ __forceinline__ uint4 eight_numbers<__half>(uint2 codes) { return eight_halves(codes); }
template <> __device__ __forceinline__ uint4 eight_numbers<__nv_bfloat16>(uint2 codes) {
    const uint4 x = eight_halves(codes);
    const uint32_t half[4] = {x.x, x.y, x.z, x.w};
    uint32_t y[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 v = two_floats(half[i], __half());
        y[i] = two(v.x, v.y, __nv_bfloat16());
    }
    return make_uint4(y[0], y[1], y[2], y[3]);
}
// Eight numbers of the workspace, which are some of e4m3, as the ring keeps them.
template <class T> __device__ __forceinline__ uint2 eight_codes(const uint4 &x) {
    const float2 a = two_floats(x.x, T()), b = two_floats(x.y, T()), c = two_floats(x.z, T()), d = two_floats(x.w, T());
    return make_uint2(codes_of(make_float4(a.x, a.y, b.x, b.y)), codes_of(make_float4(c.x, c.y, d.x, d.y)));
}

// What queries are multiplied with, so that a weight is a power of two.
__device__ __forceinline__ float for_query(uint32_t P) { return 1.4426950408889634f * rsqrtf((float)P); }
// Dims p and p + P / 2 of a head, rotated by (cosine, sine): to the same bits in every kernel.
__device__ __forceinline__ float rotated_first(float first, float second, float2 by) {
    return __fmaf_rn(first, by.x, second * -by.y);
}
__device__ __forceinline__ float rotated_second(float first, float second, float2 by) {
    return __fmaf_rn(second, by.x, first * by.y);
}

// Queries and the tiles of keys that they see. Keys are counted from the first position of the first tile.
struct prompt_job {
    int32_t row, end;     // rows of the step: the first query's, behind the prompt's last
    uint32_t head;        // the first one's
    bool pair;            // two tiles of queries
    int32_t query, begin; // the first query; the prompt's first row, before which keys are in the ring
    int32_t low, high;    // the keys that any of the queries sees
    uint32_t old, place;  // whose ring or copy; place in it of key 0
};
template <int KEYS>
__device__ __forceinline__ prompt_job job_at(const prompt_window &a, const cuda_prompt_tile &t, bool pair,
                                             uint32_t head) {
    prompt_job j;
    const cuda_shape &s = a.shape;
    const int64_t pos = a.pos[t.row], low = max(pos + 1 - (int64_t)s.visible, (int64_t)0), tile = low / KEYS * KEYS;
    j.row = t.row, j.end = t.prompt.row + t.prompt.n, j.head = head, j.pair = pair;
    j.query = (int32_t)(pos - tile), j.begin = j.query - (t.row - t.prompt.row);
    j.low = (int32_t)(low - tile), j.high = j.query + min(pair ? 2 * PROMPT_TILE : PROMPT_TILE, j.end - j.row) - 1;
    j.old = s.window == CUDA_FP8 ? (uint32_t)t.copy : (uint32_t)a.slot[t.row], j.place = (uint32_t)(tile % s.ring_keys);
    return j;
}
// Keys or values of one head.
template <class T> struct prompt_source {
    const T *ring, *own;      // place 0 of the ring; row 0 of the workspace
    uint32_t ring_ld, own_ld; // from a row to the next
};
template <class T>
__device__ __forceinline__ prompt_source<T> source_of(const prompt_window &a, const prompt_job &j, bool values,
                                                      uint32_t head) {
    const cuda_shape &s = a.shape;
    prompt_source<T> x;
    x.own_ld = (s.H + s.Hk + s.Hv) * s.P, x.ring_ld = (values ? s.Hv : s.Hk) * s.P;
    x.own = (const T *)a.work + (s.H + (values ? s.Hk : 0) + head) * s.P;
    x.ring =
        values ? (const T *)a.old_values + j.old * a.old_values_slot : (const T *)a.old_keys + j.old * a.old_keys_slot;
    x.ring += head * s.P;
    return x;
}
// The row of key i of the tile that begins at key `from`, which lies at `place`; another's if nobody sees that key.
template <class T>
__device__ __forceinline__ const T *source_row(const prompt_source<T> &x, const prompt_job &j, int32_t from,
                                               uint32_t place, int32_t i, uint32_t ring_keys) {
    i = min(max(from + i, j.low), j.high) - from;
    uint32_t at = place + (uint32_t)i;
#pragma unroll
    for (int k = 0; k < 2; k++) at -= at >= ring_keys ? ring_keys : 0; // a ring has 64 or more, a tile 128
    const bool old = from + i < j.begin;
    return (old ? x.ring : x.own) +
           (size_t)(old ? at : (uint32_t)(j.row - j.query + from + i)) * (old ? x.ring_ld : x.own_ld);
}
