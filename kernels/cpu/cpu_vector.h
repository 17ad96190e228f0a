/* cpu_vector.h - what the kernels that are compiled once per instruction set share: GCC's vector types of LANES floats
 * a register, loads and stores, exp. -ffp-contract=fast (below) turns a + b * c into one fused instruction where there
 * is one.
 */
#ifndef CPU_VECTOR_H
#define CPU_VECTOR_H

#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

#if defined __AVX512F__
#define LANES 16
#elif defined __AVX2__
#define LANES 8
#else
#define LANES 4
#endif
#ifdef __x86_64__
#include <immintrin.h>
#endif

#pragma GCC optimize("fp-contract=fast")

#define VECTOR_BYTES (LANES * 4)
#define CAT_(a, b)   a##b
#define CAT(a, b)    CAT_(a, b)
#define STRING_(x)   #x
#define STRING(x)    STRING_(x)
#define INLINE       static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t vi __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t vu __attribute__((vector_size(VECTOR_BYTES)));
typedef double vd __attribute__((vector_size(2 * VECTOR_BYTES)));
/* the same, at any address */
typedef float vf_any __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));
typedef double vd_any __attribute__((vector_size(2 * VECTOR_BYTES), aligned(8), may_alias));

INLINE vf load(const float *p) { return *(const vf_any *)p; }
INLINE void store(float *p, vf v) { *(vf_any *)p = v; }
INLINE vf all(float x) { return (vf){0} + x; }
INLINE vf pick(vi mask, vf yes, vf no) { return (vf)(((vi)yes & mask) | ((vi)no & ~mask)); }
INLINE float sum_lanes(vf v) { /* one fixed tree */
    float a[LANES];
    memcpy(a, &v, sizeof a);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) a[i] += a[i + half];
    return a[0];
}

/* exp to about 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, the series to r^7. 0 below -87.3; NaN stays NaN. */
INLINE vf vexp(vf x) {
    vf hi = all(88.3f), lo = all(-87.3f), magic = all(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vi tiny = x < lo;
    x = pick(x > hi, hi, x);
    x = pick(tiny, lo, x);
    vf t = x * 1.44269504f + magic, n = t - magic;
    vf r = x - n * 0.693359375f; /* ln 2 in two pieces, the first exact in products */
    r = r - n * -2.12194440e-4f;
    vf p = all(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * (r * r) + r;
    p = p + 1.0f;
    vi exponent = ((vi)t - (vi)magic + 127) << 23;
    return pick(tiny, (vf){0}, p * (vf)exponent);
}

#endif
