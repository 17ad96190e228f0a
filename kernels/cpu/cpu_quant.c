/* cpu_quant.c - products of int8 and int4 weights, compiled once per instruction set with
 * -DISA=base|avx2|avxvnni|avx512| avx512vnni and its -m flags.
 *
 * Activations become 16-bit integers, a scale for every CPU_BLOCK columns; a block's sum of products is exact in 32
 * bits, whatever its order; blocks are added in fp32, in ascending order, with every rounding written out (no
 * contraction). So the instruction sets give each other's bits, and so do any number of rows and any split of panels.
 * One primitive is the instruction sets' own: two 16-bit products and their sum onto 32 bits, in each lane (dot).
 */
#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#if defined __AVX512BW__
#define LANES    16
#define MAX_ROWS 12
#elif defined __AVX2__
#define LANES    8
#define MAX_ROWS 6
#else
#define LANES    4
#define MAX_ROWS 6
#endif
#define VECTOR_BYTES (LANES * 4)
#define NV           (CPU_PANEL / LANES)
#define CAT_(a, b)   a##b
#define CAT(a, b)    CAT_(a, b)
#define INLINE       static inline __attribute__((always_inline))

enum {
    SUM_ROWS = 48, /* rows whose sums are kept while a panel's blocks go by: with their codes in the nearest cache */
    PREFETCH_BYTES = 8192, /* ahead in the stream */
};

typedef float vf __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t vi __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t vu __attribute__((vector_size(VECTOR_BYTES)));
typedef uint16_t vh __attribute__((vector_size(VECTOR_BYTES)));
typedef int16_t v16 __attribute__((vector_size(VECTOR_BYTES / 2))); /* as many lanes, of 16 bits */
typedef uint16_t vu16 __attribute__((vector_size(VECTOR_BYTES / 2)));
/* the same, at any address */
typedef float vf_any __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef uint32_t vu_any __attribute__((vector_size(VECTOR_BYTES), aligned(1), may_alias));
typedef int16_t v16_any __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));
typedef uint16_t vu16_any __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));

INLINE vf load(const float *p) { return *(const vf_any *)p; }
INLINE vu load_words(const void *p) { return *(const vu_any *)p; }

/* Each lane: acc + w's low half * x's low half + w's high half * x's high half, halves as signed numbers. */
INLINE vu dot(vu acc, vu w, vu x) {
#if defined __AVX512VNNI__
    return (vu)_mm512_dpwssd_epi32((__m512i)acc, (__m512i)w, (__m512i)x);
#elif defined __AVXVNNI__
    return (vu)_mm256_dpwssd_avx_epi32((__m256i)acc, (__m256i)w, (__m256i)x);
#elif defined __AVX512BW__
    return acc + (vu)_mm512_madd_epi16((__m512i)w, (__m512i)x);
#elif defined __AVX2__
    return acc + (vu)_mm256_madd_epi16((__m256i)w, (__m256i)x);
#elif defined __SSE2__
    return acc + (vu)_mm_madd_epi16((__m128i)w, (__m128i)x);
#else
    const vi low = (((vi)w << 16) >> 16) * (((vi)x << 16) >> 16), high = ((vi)w >> 16) * ((vi)x >> 16);
    return acc + (vu)low + (vu)high;
#endif
}

/* Pair j of the columns in 32 bits of a row's codes, of 2 in int8 and 4 in int4 (struct cpu_matrix has the order). */
INLINE vu unpack(const bool int4, vu word, const int j) {
    if (!int4) return j == 0 ? word & 0x00ff00ffu : (vu)((vh)word >> 8);
    return j == 0   ? word & 0x000f000fu
           : j == 1 ? (word >> 8) & 0x000f000fu
           : j == 2 ? (word >> 4) & 0x000f000fu
                    : (vu)((vh)word >> 12);
}

/* sum += what a block adds: (its integer sum, less the zero point's part) * (weight's scale * activation's scale). */
INLINE vf add_block(vf sum, vu acc, vf scale, vu zero, float x_scale, int32_t x_sum) {
    const vu whole = acc - zero * (uint32_t)x_sum;
    return sum + __builtin_convertvector((vi)whole, vf) * (scale * x_scale);
}
INLINE vu all_words(const char *p) {
    uint32_t word;
    memcpy(&word, p, 4);
    return (vu){0} + word;
}

/* ---- products ---- */

/* One block of a panel. */
struct block {
    const unsigned char *codes; /* words [n_words][CPU_PANEL] */
    const float *scale;
    const uint16_t *zero;
    uint32_t number, n_words, middle;
};

/* nr rows by nv registers of outputs from lane lane0 on; int4, nr and nv are constants after inlining. */
INLINE void tile(const bool int4, const int nr, const int nv, const struct block *k, uint32_t lane0,
                 const struct cpu_codes *x, uint32_t row, float (*out)[CPU_PANEL]) {
    const int n_pairs = int4 ? 4 : 2; /* in a word */
    const size_t first = (size_t)k->number * x->n_rows + row;
    const char *xb = (const char *)(x->code + first * CPU_BLOCK);
    const unsigned char *w = k->codes + (size_t)lane0 * 4;
    vu acc[MAX_ROWS][NV];
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 16
        for (int v = 0; v < nv; v++) acc[r][v] = (vu){0};
    for (uint32_t i = 0; i < k->n_words; i++) {
        __builtin_prefetch(w + PREFETCH_BYTES);
        if (nv * VECTOR_BYTES > 64) __builtin_prefetch(w + PREFETCH_BYTES + 64);
#pragma GCC unroll 4
        for (int j = 0; j < n_pairs; j++) {
            vu pair[NV];
#pragma GCC unroll 16
            for (int v = 0; v < nv; v++) pair[v] = unpack(int4, load_words(w + v * VECTOR_BYTES), j);
#pragma GCC unroll 16
            for (int r = 0; r < nr; r++) {
                const vu xr = all_words(xb + (size_t)r * CPU_BLOCK * sizeof *x->code + 4 * j);
#pragma GCC unroll 16
                for (int v = 0; v < nv; v++) {
                    acc[r][v] = dot(acc[r][v], pair[v], xr);
#ifdef __x86_64__
                    __asm__("" : "+v"(acc[r][v])); /* else sums of products are kept, more than registers */
#endif
                }
            }
        }
        w += CPU_PANEL * 4;
        xb += 4 * n_pairs;
    }
#pragma GCC unroll 16
    for (int v = 0; v < nv; v++) {
        const uint32_t lane = lane0 + (uint32_t)v * LANES;
        const vf scale = load(k->scale + lane);
        const vu zero =
            k->zero ? __builtin_convertvector(*(const vu16_any *)(k->zero + lane), vu) : (vu){0} + k->middle;
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++) {
            const size_t at = first + (size_t)r;
            vf_any *sum = (vf_any *)(out[r] + lane);
            *sum = add_block(*sum, acc[r][v], scale, zero, x->scale[at], x->sum[at]);
        }
    }
}

/* A function of its own each, so that its few pointers stay in registers. Up to two rows take the whole panel. */
#define TILE(name, is_int4, nr)                                                                                        \
    static __attribute__((noinline)) void tile_##name##_##nr(                                                          \
        const struct block *k, uint32_t lane0, const struct cpu_codes *x, uint32_t row, float(*out)[CPU_PANEL]) {      \
        tile(is_int4, nr, nr <= 2 ? NV : 2, k, lane0, x, row, out);                                                    \
    }
typedef void tile_function(const struct block *k, uint32_t lane0, const struct cpu_codes *x, uint32_t row,
                           float (*out)[CPU_PANEL]);
#if MAX_ROWS == 12
#define TILES(s, i)                                                                                                    \
    TILE(s, i, 1)                                                                                                      \
    TILE(s, i, 2)                                                                                                      \
    TILE(s, i, 3)                                                                                                      \
    TILE(s, i, 4)                                                                                                      \
    TILE(s, i, 5) TILE(s, i, 6) TILE(s, i, 7) TILE(s, i, 8) TILE(s, i, 9) TILE(s, i, 10) TILE(s, i, 11) TILE(s, i, 12)
#define ROWS(s)                                                                                                        \
    {                                                                                                                  \
        tile_##s##_1, tile_##s##_2, tile_##s##_3, tile_##s##_4, tile_##s##_5, tile_##s##_6, tile_##s##_7,              \
            tile_##s##_8, tile_##s##_9, tile_##s##_10, tile_##s##_11, tile_##s##_12                                    \
    }
#else
#define TILES(s, i) TILE(s, i, 1) TILE(s, i, 2) TILE(s, i, 3) TILE(s, i, 4) TILE(s, i, 5) TILE(s, i, 6)
#define ROWS(s)                                                                                                        \
    { tile_##s##_1, tile_##s##_2, tile_##s##_3, tile_##s##_4, tile_##s##_5, tile_##s##_6 }
#endif
TILES(int8, false)
TILES(int4, true)
static tile_function *const tiles[2][MAX_ROWS] = {ROWS(int8), ROWS(int4)};

/* The block at *stream, which goes on to the next. */
static void block_begin(const struct cpu_matrix *w, uint32_t b, const unsigned char **stream, struct block *k) {
    if (b == 0 || !w->row_scales) {
        k->scale = (const float *)(const void *)*stream;
        *stream += CPU_PANEL * sizeof(float);
        k->zero = w->zeros ? (const uint16_t *)(const void *)*stream : NULL;
        if (w->zeros) *stream += CPU_PANEL * sizeof(uint16_t);
    }
    const uint32_t left = w->cols - b * CPU_BLOCK;
    k->number = b;
    k->n_words = ((left < CPU_BLOCK ? left : CPU_BLOCK) + 7) / 8 * (w->dtype == CPU_INT4 ? 1 : 2);
    k->middle = w->dtype == CPU_INT4 ? 8 : 128;
    k->codes = *stream;
    *stream += (size_t)k->n_words * CPU_PANEL * 4;
}

/* n rows of one panel, n <= SUM_ROWS. */
static void panel_of_rows(const struct cpu_matrix *w, const unsigned char *stream, const struct cpu_codes *x,
                          uint32_t row, uint32_t n, float (*out)[CPU_PANEL]) {
    tile_function *const *run = tiles[w->dtype == CPU_INT4];
    struct block k;
    memset(out, 0, n * sizeof *out);
    for (uint32_t b = 0; b < x->n_blocks; b++) {
        block_begin(w, b, &stream, &k);
        for (uint32_t r = 0, nr; r < n; r += nr) {
            const uint32_t n_tiles = (n - r + MAX_ROWS - 1) / MAX_ROWS;
            nr = (n - r + n_tiles - 1) / n_tiles; /* tiles of nearly the same height */
            for (uint32_t lane = 0; lane < CPU_PANEL; lane += nr <= 2 ? CPU_PANEL : 2 * LANES)
                run[nr - 1](&k, lane, x, row + r, out + r);
        }
    }
}

static void quant_linear(const struct cpu_product *of, uint32_t p0, uint32_t p1) {
    const struct cpu_matrix *w = of->w;
    const struct cpu_codes *x = of->codes;
    const size_t panel_bytes = cpu_quant_panel_bytes(w);
    float sum[SUM_ROWS][CPU_PANEL] __attribute__((aligned(64)));
    assert(x->n_blocks == (w->cols + CPU_BLOCK - 1) / CPU_BLOCK && p1 <= w->n_panels);
    for (uint32_t p = p0; p < p1; p++) {
        const unsigned char *panel = w->data + p * panel_bytes;
        const uint32_t left = w->rows - p * CPU_PANEL, n_last = left < CPU_PANEL ? left : CPU_PANEL;
        for (uint32_t r = 0, n; r < of->n_rows; r += n) {
            n = of->n_rows - r < SUM_ROWS ? of->n_rows - r : SUM_ROWS;
            panel_of_rows(w, panel, x, r, n, sum);
            for (uint32_t i = 0; i < n; i++) {
                const size_t at = (r + i) * of->ldy + (size_t)p * CPU_PANEL;
                float *dst = of->y + at;
                const float *add = of->base ? of->base + at : NULL;
                for (uint32_t o = 0; o < n_last; o++) dst[o] = add ? add[o] + sum[i][o] : sum[i][o];
            }
        }
    }
}

/* ---- activations ---- */

/* 16-bit codes of one block, n <= CPU_BLOCK values that are there, a multiple of CPU_PANEL. */
INLINE void encode_block(const float *x, uint32_t n, int16_t *code, float *scale, int32_t *sum) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer, ties to even */
    vi top = {0};
    for (uint32_t i = 0; i < n; i += LANES) { /* as integers, magnitudes are in order, infinity and NaN on top */
        const vi bits = (vi)load(x + i) & 0x7fffffff, larger = bits > top;
        top = (bits & larger) | (top & ~larger);
    }
    int32_t bits = top[0];
    for (int i = 1; i < LANES; i++) bits = top[i] > bits ? top[i] : bits;
    float most;
    memcpy(&most, &bits, 4);
    /* Where 32767 / most would overflow, 0; an infinite or NaN activation leaves a scale that is no number. */
    const bool nothing = most < 1e-30f;
    const float up = nothing ? 0 : 32767.0f / most;
    vu total = {0};
    for (uint32_t i = 0; i < CPU_BLOCK; i += LANES) {
        vu c = {0};
        if (i < n) c = (vu)(load(x + i) * up + magic) - (vu)((vf){0} + magic);
        total += c;
        *(v16_any *)(code + i) = __builtin_convertvector((vi)c, v16);
    }
    *scale = nothing ? 0 : most / 32767.0f;
    uint32_t whole = 0;
    for (int i = 0; i < LANES; i++) whole += total[i];
    *sum = (int32_t)whole;
}

static void quant_encode(const float *x, uint32_t width, uint32_t row, uint32_t b0, uint32_t b1,
                         const struct cpu_codes *out) {
    for (uint32_t b = b0; b < b1; b++) {
        const size_t at = (size_t)b * out->n_rows + row;
        const uint32_t left = width - b * CPU_BLOCK;
        encode_block(x + (size_t)b * CPU_BLOCK, left < CPU_BLOCK ? left : CPU_BLOCK, out->code + at * CPU_BLOCK,
                     out->scale + at, out->sum + at);
    }
}

#define STRING_(x) #x
#define STRING(x)  STRING_(x)
extern const struct cpu_quant_ops CAT(cpu_quant_, ISA);
const struct cpu_quant_ops CAT(cpu_quant_, ISA) = {
    .isa = STRING(ISA),
    .encode = quant_encode,
    .linear = quant_linear,
};
