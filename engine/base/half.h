/* half.h - the two 16-bit float formats, exactly: f16 has 5 exponent bits and 10 of fraction, bf16 is the upper half of
 * an fp32. Widening is exact for every bit pattern (subnormals, infinities, NaNs keep their payload). And e4m3 in 8
 * bits: 4 exponent bits, 3 of fraction, no infinities, one NaN of each sign. */
#ifndef HALF_H
#define HALF_H

#include <stdint.h>
#include <string.h>

static inline float half_bits_to_f32(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline uint32_t half_f32_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float half_bf16_to_f32(uint16_t h) { return half_bits_to_f32((uint32_t)h << 16); }

static inline float half_f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return half_bits_to_f32(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13); /* inf, NaN */
    if (magnitude < 0x0400u) { /* zero and subnormals: an integer times 2^-24, both exact in fp32 */
        float x = (float)magnitude * 0x1p-24f;
        return half_bits_to_f32(sign | half_f32_bits(x));
    }
    return half_bits_to_f32(sign | ((magnitude << 13) + (112u << 23))); /* the bias goes from 15 to 127 */
}

/* To nearest, ties to even; NaN stays NaN. */
static inline uint16_t half_f32_to_bf16(float x) {
    uint32_t bits = half_f32_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* To nearest, ties to even; NaN stays NaN, and what is too large becomes infinite. */
static inline uint16_t half_f32_to_f16(float x) {
    const uint32_t bits = half_f32_bits(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* from 2^16 on */
    if (magnitude < 0x38800000u) { /* below 2^-14: adding 2^-1 leaves a multiple of 2^-24 in the low bits */
        return (uint16_t)(sign | (half_f32_bits(half_bits_to_f32(magnitude) + 0.5f) - half_f32_bits(0.5f)));
    }
    return (uint16_t)(sign | ((magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13));
}

#define HALF_E4M3_MAX 448.0f

static inline float half_e4m3_to_f32(uint8_t code) {
    const uint32_t sign = (uint32_t)(code & 0x80u) << 24, magnitude = code & 0x7fu;
    if (magnitude == 0x7fu) return half_bits_to_f32(sign | 0x7fc00000u);
    if (magnitude < 8) return half_bits_to_f32(sign | half_f32_bits((float)magnitude * 0x1p-9f));
    return half_bits_to_f32(sign | ((magnitude << 20) + (120u << 23))); /* the bias goes from 7 to 127 */
}

/* To nearest, ties to even; NaN stays NaN, and what is too large becomes the largest. */
static inline uint8_t half_f32_to_e4m3(float x) {
    const uint32_t bits = half_f32_bits(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
    if (magnitude >= 0x43e00000u) return (uint8_t)(sign | 0x7eu); /* from 448 on */
    if (magnitude < 0x3c800000u) /* below 2^-6: adding 2^14 leaves a multiple of 2^-9 in the low bits */
        return (uint8_t)(sign | (half_f32_bits(half_bits_to_f32(magnitude) + 0x1p14f) - half_f32_bits(0x1p14f)));
    return (uint8_t)(sign | ((magnitude - (120u << 23) + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20));
}

#endif
