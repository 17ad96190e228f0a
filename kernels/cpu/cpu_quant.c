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
#define SLICE    2
#elif defined __AVX2__
#define LANES    8
#define MAX_ROWS 6
#define SLICE    2
#else
#define LANES    4
#define MAX_ROWS 4
#define SLICE    2
#endif
#define VECTOR_BYTES (LANES * 4)
#define NV           (CPU_PANEL / LANES)
#define CAT_(a, b)   a##b
#define CAT(a, b)    CAT_(a, b)
#define INLINE       static inline __attribute__((always_inline))

enum {
    SUM_ROWS = 64,         /* rows whose sums are kept while a panel's blocks go by */
    DIRECT_ROWS = 2,       /* up to so many rows take weights from the stream; more of them share unpacked ones */
    PREFETCH_BYTES = 8192, /* ahead in the stream */
    PAIRS = CPU_BLOCK / 2,
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

/* The pairs of columns of 32 bits of a row's codes: 2 of int8, 4 of int4 (struct cpu_matrix has the order). */
INLINE void unpack(const bool int4, vu word, vu pair[4]) {
    if (int4) {
        pair[0] = word & 0x000f000fu;
        pair[1] = (word >> 8) & 0x000f000fu;
        pair[2] = (word >> 4) & 0x000f000fu;
        pair[3] = (vu)((vh)word >> 12);
    } else {
        pair[0] = word & 0x00ff00ffu;
        pair[1] = (vu)((vh)word >> 8);
    }
}

/* One panel's stream: where its block's scales and zeros are, and how the codes go on. */
struct stream {
    const unsigned char *codes;
    const float *scale;
    const uint16_t *zero; /* NULL: `middle` for all */
    uint32_t n_words;     /* of the block: 32-bit words a row */
};
INLINE void stream_begin_block(const struct cpu_matrix *w, uint32_t b, struct stream *s) {
    if (b == 0 || !w->row_scales) {
        s->scale = (const float *)(const void *)s->codes;
        s->codes += CPU_PANEL * sizeof(float);
        if (w->zeros) {
            s->zero = (const uint16_t *)(const void *)s->codes;
            s->codes += CPU_PANEL * sizeof(uint16_t);
        }
    }
    const uint32_t left = w->cols - b * CPU_BLOCK;
    s->n_words = ((left < CPU_BLOCK ? left : CPU_BLOCK) + 7) / 8 * (w->dtype == CPU_INT4 ? 1 : 2);
}

/* sum += what a block adds: (its integer sum, less the zero point's part) * (weight's scale * activation's scale). */
INLINE vf add_block(vf sum, vu acc, vf scale, vu zero, float x_scale, int32_t x_sum) {
    const vu whole = acc - zero * (uint32_t)x_sum;
    return sum + __builtin_convertvector((vi)whole, vf) * (scale * x_scale);
}
INLINE vu zeros_of(const struct stream *s, uint32_t middle, int v) {
    if (!s->zero) return (vu){0} + middle;
    return __builtin_convertvector(*(const vu16_any *)(s->zero + v * LANES), vu);
}

INLINE vu all_words(const int16_t *p) {
    uint32_t word;
    memcpy(&word, p, 4);
    return (vu){0} + word;
}

/* ---- few rows: weights from the stream to registers ---- */

INLINE void direct(const bool int4, const int nr, const struct cpu_matrix *w, const unsigned char *panel,
                   const struct cpu_codes *x, uint32_t row, float (*out)[CPU_PANEL]) {
    struct stream s = {.codes = panel};
    const uint32_t n_pairs = int4 ? 4 : 2, middle = int4 ? 8 : 128;
    vf sum[DIRECT_ROWS][NV];
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) sum[r][v] = (vf){0};
    for (uint32_t b = 0; b < x->n_blocks; b++) {
        const int16_t *code = x->code + ((size_t)row * x->n_blocks + b) * CPU_BLOCK;
        const size_t next_row = (size_t)x->n_blocks * CPU_BLOCK;
        vu acc[DIRECT_ROWS][NV];
        stream_begin_block(w, b, &s);
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
#pragma GCC unroll 16
            for (int v = 0; v < NV; v++) acc[r][v] = (vu){0};
        for (uint32_t i = 0; i < s.n_words; i++) {
            __builtin_prefetch(s.codes + PREFETCH_BYTES);
            __builtin_prefetch(s.codes + PREFETCH_BYTES + 64);
#pragma GCC unroll 16
            for (int v = 0; v < NV; v++) {
                vu pair[4];
                unpack(int4, load_words(s.codes + v * VECTOR_BYTES), pair);
#pragma GCC unroll 16
                for (int r = 0; r < nr; r++)
                    for (uint32_t k = 0; k < n_pairs; k++)
                        acc[r][v] = dot(acc[r][v], pair[k], all_words(code + (size_t)r * next_row + 2 * k));
            }
            s.codes += CPU_PANEL * 4;
            code += 2 * n_pairs;
        }
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) {
            const vf scale = load(s.scale + v * LANES);
            const vu zero = zeros_of(&s, middle, v);
#pragma GCC unroll 16
            for (int r = 0; r < nr; r++) {
                const size_t at = ((size_t)row + (size_t)r) * x->n_blocks + b;
                sum[r][v] = add_block(sum[r][v], acc[r][v], scale, zero, x->scale[at], x->sum[at]);
            }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) *(vf_any *)(out[r] + v * LANES) = sum[r][v];
}

/* A function of its own each, so that its few pointers stay in registers. */
#define DIRECT(name, int4, nr)                                                                                         \
    static __attribute__((noinline)) void name(const struct cpu_matrix *w, const unsigned char *panel,                 \
                                               const struct cpu_codes *x, uint32_t row, float(*out)[CPU_PANEL]) {      \
        direct(int4, nr, w, panel, x, row, out);                                                                       \
    }
DIRECT(direct_int8_1, false, 1)
DIRECT(direct_int8_2, false, 2)
DIRECT(direct_int4_1, true, 1)
DIRECT(direct_int4_2, true, 2)

/* ---- many rows: a block's weights as 16-bit pairs in the nearest cache, then row by row ---- */

INLINE void unpack_block(const bool int4, struct stream *s, uint32_t (*pairs)[CPU_PANEL]) {
    for (uint32_t i = 0; i < s->n_words; i++, pairs += int4 ? 4 : 2) {
        __builtin_prefetch(s->codes + PREFETCH_BYTES);
        __builtin_prefetch(s->codes + PREFETCH_BYTES + 64);
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) {
            vu pair[4];
            unpack(int4, load_words(s->codes + v * VECTOR_BYTES), pair);
            for (int k = 0; k < (int4 ? 4 : 2); k++) *(vu_any *)(pairs[k] + v * LANES) = pair[k];
        }
        s->codes += CPU_PANEL * 4;
    }
}

/* nr rows by SLICE registers of outputs; nr is a constant after inlining. */
INLINE void block_tile(const int nr, const uint32_t (*pairs)[CPU_PANEL], uint32_t n_pairs, const struct stream *s,
                       uint32_t middle, int v0, const struct cpu_codes *x, uint32_t row, uint32_t b,
                       float (*out)[CPU_PANEL]) {
    const size_t next_row = (size_t)x->n_blocks * CPU_BLOCK * sizeof *x->code;
    const char *x0 = (const char *)(x->code + ((size_t)row * x->n_blocks + b) * CPU_BLOCK);
    const char *x3 = x0 + (nr > 3 ? 3 * next_row : 0), *x6 = x0 + (nr > 6 ? 6 * next_row : 0),
               *x9 = x0 + (nr > 9 ? 9 * next_row : 0);
    const unsigned char *w = (const unsigned char *)(pairs[0] + v0 * LANES);
    vu acc[MAX_ROWS][SLICE];
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 16
        for (int v = 0; v < SLICE; v++) acc[r][v] = (vu){0};
    for (uint32_t i = 0; i < n_pairs; i++) {
#ifdef __x86_64__
        __asm__("" : "+r"(x0), "+r"(x3), "+r"(x6), "+r"(x9)); /* rows by few pointers, see cpu_simd.c */
#endif
        vu weight[SLICE];
#pragma GCC unroll 16
        for (int v = 0; v < SLICE; v++) weight[v] = load_words(w + v * VECTOR_BYTES);
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++) {
            const char *base = r < 3 ? x0 : r < 6 ? x3 : r < 9 ? x6 : x9;
            const vu xr = all_words((const int16_t *)(const void *)(base + (size_t)(r % 3) * next_row));
#pragma GCC unroll 16
            for (int v = 0; v < SLICE; v++) acc[r][v] = dot(acc[r][v], weight[v], xr);
        }
        w += CPU_PANEL * 4;
        x0 += 4, x3 += 4, x6 += 4, x9 += 4;
    }
#pragma GCC unroll 16
    for (int v = 0; v < SLICE; v++) {
        const vf scale = load(s->scale + (v0 + v) * LANES);
        const vu zero = zeros_of(s, middle, v0 + v);
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++) {
            const size_t at = ((size_t)row + (size_t)r) * x->n_blocks + b;
            vf_any *sum = (vf_any *)(out[r] + (v0 + v) * LANES);
            *sum = add_block(*sum, acc[r][v], scale, zero, x->scale[at], x->sum[at]);
        }
    }
}

typedef void block_function(const uint32_t (*pairs)[CPU_PANEL], uint32_t n_pairs, const struct stream *s,
                            uint32_t middle, int v0, const struct cpu_codes *x, uint32_t row, uint32_t b,
                            float (*out)[CPU_PANEL]);
#define BLOCK(nr)                                                                                                      \
    static __attribute__((noinline)) void block_##nr(                                                                  \
        const uint32_t(*pairs)[CPU_PANEL], uint32_t n_pairs, const struct stream *s, uint32_t middle, int v0,          \
        const struct cpu_codes *x, uint32_t row, uint32_t b, float(*out)[CPU_PANEL]) {                                 \
        block_tile(nr, pairs, n_pairs, s, middle, v0, x, row, b, out);                                                 \
    }
BLOCK(1)
BLOCK(2)
BLOCK(3)
BLOCK(4)
#if MAX_ROWS >= 6
BLOCK(5)
BLOCK(6)
#endif
#if MAX_ROWS >= 12
BLOCK(7)
BLOCK(8)
BLOCK(9)
BLOCK(10)
BLOCK(11)
BLOCK(12)
#endif
static block_function *const block_rows[MAX_ROWS] = {
    block_1, block_2, block_3, block_4,
#if MAX_ROWS >= 6
    block_5, block_6,
#endif
#if MAX_ROWS >= 12
    block_7, block_8, block_9, block_10, block_11, block_12,
#endif
};

/* n rows of one panel, n <= SUM_ROWS. */
static void panel_of_rows(const struct cpu_matrix *w, const unsigned char *panel, const struct cpu_codes *x,
                          uint32_t row, uint32_t n, float (*out)[CPU_PANEL]) {
    const bool int4 = w->dtype == CPU_INT4;
    const uint32_t middle = int4 ? 8 : 128, pairs_a_word = int4 ? 4 : 2;
    uint32_t pairs[PAIRS][CPU_PANEL] __attribute__((aligned(64)));
    struct stream s = {.codes = panel};
    memset(out, 0, n * sizeof *out);
    for (uint32_t b = 0; b < x->n_blocks; b++) {
        stream_begin_block(w, b, &s);
        if (int4)
            unpack_block(true, &s, pairs);
        else
            unpack_block(false, &s, pairs);
        for (int v = 0; v < NV; v += SLICE)
            for (uint32_t r = 0, nr; r < n; r += nr) {
                nr = n - r < MAX_ROWS ? n - r : MAX_ROWS;
                block_rows[nr - 1]((const uint32_t(*)[CPU_PANEL])pairs, s.n_words * pairs_a_word, &s, middle, v, x,
                                   row + r, b, out + r);
            }
    }
}

static void quant_linear(const struct cpu_matrix *w, uint32_t p0, uint32_t p1, uint32_t n_rows,
                         const struct cpu_codes *x, const float *base, size_t ld_base, float *y, size_t ldy) {
    static void (*const direct_rows[2][DIRECT_ROWS])(const struct cpu_matrix *, const unsigned char *,
                                                     const struct cpu_codes *, uint32_t, float(*)[CPU_PANEL]) = {
        {direct_int8_1, direct_int8_2}, {direct_int4_1, direct_int4_2}};
    const size_t panel_bytes = cpu_quant_panel_bytes(w);
    float sum[SUM_ROWS][CPU_PANEL] __attribute__((aligned(64)));
    assert(x->n_blocks == (w->cols + CPU_BLOCK - 1) / CPU_BLOCK && p1 <= w->n_panels);
    for (uint32_t p = p0; p < p1; p++) {
        const unsigned char *panel = w->data + p * panel_bytes;
        const uint32_t left = w->rows - p * CPU_PANEL, n_last = left < CPU_PANEL ? left : CPU_PANEL;
        for (uint32_t r = 0, n; r < n_rows; r += n) {
            n = n_rows - r < SUM_ROWS ? n_rows - r : SUM_ROWS;
            if (n <= DIRECT_ROWS)
                direct_rows[w->dtype == CPU_INT4][n - 1](w, panel, x, r, sum);
            else
                panel_of_rows(w, panel, x, r, n, sum);
            for (uint32_t i = 0; i < n; i++) {
                float *dst = y + (r + i) * ldy + (size_t)p * CPU_PANEL;
                const float *add = base ? base + (r + i) * ld_base + (size_t)p * CPU_PANEL : NULL;
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
        const size_t at = (size_t)row * out->n_blocks + b;
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
