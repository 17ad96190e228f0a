// weights.cuh - operand A of the 16-bit products, from weights of 16, 8 or 4 bits. A lane turns its codes of a tile
// into the numbers nearest to scale * (code - zero): so every kernel multiplies the same numbers, as if they were
// stored in 16 bits, and a row's bits depend on no kernel.
//
// Of a tile a lane has BITS bytes. 8 bits: a word for row g, one for g + 8; bytes: columns 2 t, 2 t + 8, 2 t + 1,
// 2 t + 9; the sign is the highest bit of a byte, fp8 or int8. 4 bits: a word; nibbles 0 to 3: rows g and g + 8 of
// column 2 t, the same of 2 t + 8; 4 to 7: of the columns behind these. Scales: [tiles of 16 rows][groups][16], a word
// a row; 8 bits: twice the scale in 16 bits; 4 bits: the scale, and above it -(1 + zero / 2^m), m the bits of a
// fraction.
#pragma once
#include "common.cuh"

// How codes become numbers. A code's bits, moved and masked, are a positive number x of 16 bits: of fp8 2^-120 (fp16:
// 2^-8) of its size, of int8 and int4 1 + size / 2^m. The scale has that factor in it, so x * scale (fp8) or x * scale
// - scale is rounded once.
struct weight_codes {
    const unsigned char *tiles;
    const uint32_t *scales;
    uint32_t groups, per;            // of a row; group of k-tile k: k >> per
    uint32_t shift, mask, one, keep; // 8 bits; keep: all ones where the scale is taken away
};
template <int BITS> struct weights : weight_codes {
    enum { TILE = BITS * 32, CODED = BITS < 16 }; // bytes of a tile
};
template <int BITS> struct lane_codes { uint32_t w[BITS / 4]; };

__device__ __forceinline__ uint32_t fma_two(uint32_t a, uint32_t b, uint32_t c, __half) {
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ uint32_t fma_two(uint32_t a, uint32_t b, uint32_t c, __nv_bfloat16) {
    uint32_t d;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
__device__ __forceinline__ uint32_t two_ones(__half) { return 0x3c003c00; }
__device__ __forceinline__ uint32_t two_ones(__nv_bfloat16) { return 0x3f803f80; }

enum : uint32_t { TWO_SIGNS = 0x80008000 };

// s: the scale words of rows g and g + 8.
template <class T>
__device__ __forceinline__ uint4 operand_of(const weights<16> &, const lane_codes<16> &x, const uint32_t (&)[2], T) {
    return make_uint4(x.w[0], x.w[1], x.w[2], x.w[3]);
}
template <class T>
__device__ __forceinline__ uint4 operand_of(const weights<8> &w, const lane_codes<8> &x, const uint32_t (&s)[2], T) {
    uint32_t even[2], odd[2]; // columns 2 t and 2 t + 1; 2 t + 8 and 2 t + 9
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t less = (s[i] & w.keep) ^ TWO_SIGNS, up = x.w[i] << 8;
        even[i] = fma_two((up >> w.shift & w.mask) | w.one, s[i], less, T()) ^ (up & TWO_SIGNS);
        odd[i] = fma_two((x.w[i] >> w.shift & w.mask) | w.one, s[i], less, T()) ^ (x.w[i] & TWO_SIGNS);
    }
    return make_uint4(even[0], even[1], odd[0], odd[1]);
}
// An operand whose format is known: fewer instructions. fp8: the sign goes through the product.
struct is_fp8 {};
struct is_int8 {};
__device__ __forceinline__ uint4 operand_of(is_fp8, const lane_codes<8> &x, const uint32_t (&s)[2], __nv_bfloat16) {
    uint32_t even[2], odd[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        even[i] = fma_two((x.w[i] << 4 & 0x07f007f0) | (x.w[i] << 8 & TWO_SIGNS), s[i], TWO_SIGNS, __nv_bfloat16());
        odd[i] = fma_two((x.w[i] >> 4 & 0x07f007f0) | (x.w[i] & TWO_SIGNS), s[i], TWO_SIGNS, __nv_bfloat16());
    }
    return make_uint4(even[0], even[1], odd[0], odd[1]);
}
__device__ __forceinline__ uint4 operand_of(is_fp8, const lane_codes<8> &x, const uint32_t (&s)[2], __half) {
    uint32_t even[2], odd[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        even[i] = fma_two((x.w[i] << 7 & 0x3f803f80) | (x.w[i] << 8 & TWO_SIGNS), s[i], TWO_SIGNS, __half());
        odd[i] = fma_two((x.w[i] >> 1 & 0x3f803f80) | (x.w[i] & TWO_SIGNS), s[i], TWO_SIGNS, __half());
    }
    return make_uint4(even[0], even[1], odd[0], odd[1]);
}
template <class T>
__device__ __forceinline__ uint4 operand_of(is_int8, const lane_codes<8> &x, const uint32_t (&s)[2], T) {
    uint32_t even[2], odd[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t less = s[i] ^ TWO_SIGNS;
        even[i] = fma_two((x.w[i] & 0x007f007f) | two_ones(T()), s[i], less, T()) ^ (x.w[i] << 8 & TWO_SIGNS);
        odd[i] = fma_two((x.w[i] >> 8 & 0x007f007f) | two_ones(T()), s[i], less, T()) ^ (x.w[i] & TWO_SIGNS);
    }
    return make_uint4(even[0], even[1], odd[0], odd[1]);
}
template <class T>
__device__ __forceinline__ uint4 operand_of(const weights<4> &, const lane_codes<4> &x, const uint32_t (&s)[2], T) {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t scale = __byte_perm(s[i % 2], 0, 0x1010), less = __byte_perm(s[i % 2], 0, 0x3232);
        const uint32_t size = (x.w[0] >> 4 * i & 0x000f000f) | two_ones(T());
        a[i] = fma_two(fma_two(size, two_ones(T()), less, T()), scale, TWO_SIGNS, T());
    }
    return make_uint4(a[0], a[1], a[2], a[3]);
}

// ---- loads ----

__device__ __forceinline__ uint32_t shared_word(uint32_t at) {
    uint32_t x;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(x) : "r"(at));
    return x;
}
template <int BITS> __device__ __forceinline__ lane_codes<BITS> shared_codes(uint32_t at) {
    lane_codes<BITS> x;
    if constexpr (BITS == 16)
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])
                     : "r"(at));
    else if constexpr (BITS == 8)
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.w[0]), "=r"(x.w[1]) : "r"(at));
    else
        x.w[0] = shared_word(at);
    return x;
}
// The scale words of rows g and g + 8.
template <int BITS> __device__ __forceinline__ void shared_scales(uint32_t (&s)[2], uint32_t at) {
    s[0] = BITS < 16 ? shared_word(at) : 0, s[1] = BITS < 16 ? shared_word(at + 32) : 0;
}
// The operand of a tile in shared memory: codes at `at` (this lane's), scale words of its rows at `scales`.
template <class T, int BITS>
__device__ __forceinline__ uint4 shared_operand(const weights<BITS> &w, uint32_t at, uint32_t scales, T) {
    const lane_codes<BITS> x = shared_codes<BITS>(at);
    uint32_t s[2];
    shared_scales<BITS>(s, scales);
    return operand_of(w, x, s, T());
}

// ---- on the host ----

static inline uint32_t groups_of(const struct cuda_matrix *m) {
    return m->grouped ? (m->cols + CUDA_GROUP - 1) / CUDA_GROUP : 1;
}
template <int BITS> static weights<BITS> weights_of(const struct cuda_matrix *m) {
    const bool half = m->dtype == CUDA_F16, fp8 = m->format == CUDA_FP8;
    weights<BITS> w = {};
    w.tiles = (const unsigned char *)m->data, w.scales = m->scales;
    w.groups = groups_of(m), w.per = m->grouped ? 3 : 31;
    w.shift = !fp8 ? 8 : half ? 1 : 4;
    w.mask = !fp8 ? 0x007f007f : half ? 0x3f803f80 : 0x07f007f0;
    w.one = fp8 ? 0 : half ? 0x3c003c00 : 0x3f803f80;
    w.keep = fp8 ? 0 : 0xffffffffu;
    return w;
}
#define FOR_BITS(m, ...)                                                                                               \
    do {                                                                                                               \
        if ((m)->format == CUDA_STORED) {                                                                              \
            enum { BITS = 16 };                                                                                        \
            __VA_ARGS__;                                                                                               \
        } else if ((m)->format == CUDA_INT4) {                                                                         \
            enum { BITS = 4 };                                                                                         \
            __VA_ARGS__;                                                                                               \
        } else {                                                                                                       \
            enum { BITS = 8 };                                                                                         \
            __VA_ARGS__;                                                                                               \
        }                                                                                                              \
    } while (0)
