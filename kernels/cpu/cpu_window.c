/* cpu_window.c - attention over the window (E9), compiled once per instruction set as cpu_simd.c is. Keys and values
 * are fp32, or int8 codes, which become fp32 in the register that multiplies them: a key's scale multiplies its score,
 * a value's scale its weight. A sum has one order in either format, so a token's bits depend on its position alone.
 */
#include "kernels/cpu/cpu_vector.h"

/* keys scored together, so that four heads' sums fit the registers */
#define WINDOW_NV    (LANES == 16 ? 2 : LANES == 8 ? 2 : 1)
#define WINDOW_LANES (WINDOW_NV * LANES)

/* LANES numbers as fp32: floats, or codes. */
INLINE vf window_load(const bool codes, const char *p) {
    if (!codes) return *(const vf_any *)p;
#if LANES == 16
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
#elif LANES == 8
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
#else
    int32_t word;
    memcpy(&word, p, sizeof word);
#ifdef __x86_64__
    __m128i x = _mm_cvtsi32_si128(word);
    x = _mm_unpacklo_epi8(x, x);
    return (vf)_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(x, x), 24));
#else
    const signed char *c = (const signed char *)p;
    return __builtin_convertvector(((vi){c[0], c[1], c[2], c[3]}), vf);
#endif
#endif
}

/* What a token reads of the ring: whole blocks of 32 keys, and the keys [before, before + n) of these. */
struct reach {
    uint32_t P, Hk, first_block, n_blocks, n_ring, before, n;
    size_t ld_h, ld_block, ld_v, ld_s; /* numbers from one to the next: heads of a key head in q and out, blocks, keys'
                                        * values, heads' scores */
    float scale;
};

/* Scores of all blocks for nh heads (h, h + Hk, ...: they share the key head hk). A block is [P][32]. */
INLINE void window_scores(const bool codes, const int nh, const struct cpu_window *ring, const struct reach *w,
                          uint32_t hk, const float *q, float *scores) {
    const size_t size = codes ? 1 : sizeof(float), row = CPU_PANEL * size;
    const char *kt = (codes ? (const char *)ring->kt8 : (const char *)ring->kt) + (size_t)hk * w->P * row;
    for (uint32_t b = 0, at = w->first_block; b < w->n_blocks; b++, at = at + 1 == w->n_ring ? 0 : at + 1) {
        const char *block = kt + at * w->ld_block * size;
        const float *scales = codes ? ring->k_scale + ((size_t)at * w->Hk + hk) * CPU_PANEL : NULL;
        for (uint32_t j = 0; j < CPU_PANEL; j += WINDOW_LANES) {
            vf acc[4][WINDOW_NV];
#pragma GCC unroll 4
            for (int h = 0; h < nh; h++)
#pragma GCC unroll 4
                for (int v = 0; v < WINDOW_NV; v++) acc[h][v] = (vf){0};
            for (uint32_t p = 0; p < w->P; p++) {
                __builtin_prefetch(block + (p + 24) * row + j * size);
#pragma GCC unroll 4
                for (int v = 0; v < WINDOW_NV; v++) {
                    vf k = window_load(codes, block + p * row + (j + (uint32_t)v * LANES) * size);
#pragma GCC unroll 4
                    for (int h = 0; h < nh; h++) acc[h][v] += k * q[(size_t)h * w->ld_h + p];
                }
            }
#pragma GCC unroll 4
            for (int v = 0; v < WINDOW_NV; v++) {
                const uint32_t key = j + (uint32_t)v * LANES;
                const vf scale = codes ? load(scales + key) * w->scale : all(w->scale);
#pragma GCC unroll 4
                for (int h = 0; h < nh; h++)
                    store(scores + (size_t)h * w->ld_s + b * CPU_PANEL + key, acc[h][v] * scale);
            }
        }
    }
}

/* scores -> exp(score - max), returns their sum. n is a multiple of 32. */
static float window_softmax(float *scores, uint32_t n) {
    vf top = load(scores);
    for (uint32_t j = LANES; j < n; j += LANES) {
        vf x = load(scores + j);
        top = pick(x > top, x, top);
    }
    float max = top[0];
    for (int i = 1; i < LANES; i++) max = top[i] > max ? top[i] : max;
    vf sum = {0};
    for (uint32_t j = 0; j < n; j += LANES) {
        vf w = vexp(load(scores + j) - max);
        store(scores + j, w);
        sum += w;
    }
    return sum_lanes(sum);
}

/* Up to four heads over n keys of the ring that lie together. */
struct part {
    uint32_t n_heads, n, value_head[4];
    const char *v;  /* the first key's values */
    float *weights; /* [n_heads][ld_s] */
    float *out;     /* [n_heads][ld_h], added to */
};

/* Heads [g, g + nh), nv whole registers of dims from p on: out[h] += sum_j weight[h][j] v[j][h]. */
INLINE void window_values(const bool codes, const int nh, const int nv, const struct reach *w, const struct part *of,
                          uint32_t g, uint32_t p) {
    const size_t size = codes ? 1 : sizeof(float), ld_o = w->ld_h, ld_s = w->ld_s, ld_v = w->ld_v * size;
    const float *weights = of->weights + g * ld_s;
    float *out = of->out + g * ld_o + p;
    vf acc[4][4];
#pragma GCC unroll 4
    for (int h = 0; h < nh; h++)
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++) acc[h][i] = load(out + (size_t)h * ld_o + (size_t)i * LANES);
    const char *vh[4];
#pragma GCC unroll 4
    for (int h = 0; h < nh; h++) vh[h] = of->v + ((size_t)of->value_head[g + (uint32_t)h] * w->P + p) * size;
    for (uint32_t j = 0; j < of->n; j++) {
#pragma GCC unroll 4
        for (int h = 0; h < nh; h++) {
#ifdef __x86_64__
            __asm__("" : "+r"(vh[h])); /* one pointer a head; the registers of it are reached by displacement */
#endif
            float weight = weights[(size_t)h * ld_s + j];
            __builtin_prefetch(vh[h] + 8 * ld_v);
#pragma GCC unroll 4
            for (int i = 0; i < nv; i++) acc[h][i] += window_load(codes, vh[h] + (size_t)i * LANES * size) * weight;
            vh[h] += ld_v;
        }
    }
#pragma GCC unroll 4
    for (int h = 0; h < nh; h++)
#pragma GCC unroll 4
        for (int i = 0; i < nv; i++) store(out + (size_t)h * ld_o + (size_t)i * LANES, acc[h][i]);
}

/* Head g and its dims from p on, fewer than LANES. */
INLINE void window_values_rest(const bool codes, const struct reach *w, const struct part *of, uint32_t g, uint32_t p) {
    const float *weights = of->weights + g * w->ld_s;
    for (; p < w->P; p++) {
        float *out = of->out + g * w->ld_h + p, sum = *out;
        for (uint32_t j = 0; j < of->n; j++) {
            const size_t at = j * w->ld_v + of->value_head[g] * (size_t)w->P + p;
            sum += (codes ? (float)((const int8_t *)of->v)[at] : ((const float *)(const void *)of->v)[at]) * weights[j];
        }
        *out = sum;
    }
}

static struct reach window_reach(const struct cpu_window *ring, uint64_t pos) {
    const struct cpu_heads *h = &ring->heads;
    const uint64_t oldest = pos + 1 > ring->visible ? pos + 1 - ring->visible : 0;
    const uint32_t n_ring = ring->n_keys / CPU_PANEL, n_blocks = (uint32_t)(pos / CPU_PANEL - oldest / CPU_PANEL) + 1;
    return (struct reach){.P = h->P,
                          .Hk = h->Hk,
                          .first_block = (uint32_t)(oldest / CPU_PANEL % n_ring),
                          .n_blocks = n_blocks,
                          .n_ring = n_ring,
                          .before = (uint32_t)(oldest % CPU_PANEL),
                          .n = (uint32_t)(pos - oldest) + 1,
                          .ld_h = (size_t)h->Hk * h->P,
                          .ld_block = (size_t)h->Hk * h->P * CPU_PANEL,
                          .ld_v = (size_t)h->Hv * h->P,
                          .ld_s = (size_t)n_blocks * CPU_PANEL,
                          .scale = 1.0f / sqrtf((float)h->P)};
}

/* The keys from place r of the ring on. A code's scale goes into its weight. */
INLINE void window_part(const bool codes, const struct cpu_window *ring, const struct reach *w, uint32_t r,
                        struct part *of) {
    uint32_t p = 0;
    if (of->n == 0) return;
    of->v = codes ? (const char *)(ring->v8 + r * w->ld_v) : (const char *)(ring->v + r * w->ld_v);
    for (uint32_t g = 0; codes && g < of->n_heads; g++) {
        const float *scale = ring->v_scale + (size_t)of->value_head[g] * ring->n_keys + r;
        for (uint32_t j = 0; j < of->n; j++) of->weights[g * w->ld_s + j] *= scale[j];
    }
    for (; of->n_heads == 4 && p + 4 * LANES <= w->P; p += 4 * LANES) window_values(codes, 4, 4, w, of, 0, p);
    for (; p + LANES <= w->P; p += LANES)
        for (uint32_t g = 0; g < of->n_heads; g++) window_values(codes, 1, 1, w, of, g, p);
    for (uint32_t g = 0; g < of->n_heads; g++) window_values_rest(codes, w, of, g, p);
}

/* Query heads h, h + Hk, ... of one key head, nh <= 4 of them. */
INLINE void window_heads(const bool codes, const struct cpu_window *ring, const struct reach *w, uint32_t h,
                         uint32_t nh, const float *q, float *scratch, float *out) {
    const uint32_t Hk = w->Hk, hk = h % Hk, from = w->first_block * CPU_PANEL + w->before;
    const uint32_t n_first = w->n < ring->n_keys - from ? w->n : ring->n_keys - from; /* then the ring goes round */
    struct part of = {.n_heads = nh, .n = n_first, .weights = scratch + w->before, .out = out};
    float total[4];
    switch (nh) {
    case 1: window_scores(codes, 1, ring, w, hk, q, scratch); break;
    case 2: window_scores(codes, 2, ring, w, hk, q, scratch); break;
    case 3: window_scores(codes, 3, ring, w, hk, q, scratch); break;
    default: window_scores(codes, 4, ring, w, hk, q, scratch); break;
    }
    for (uint32_t g = 0; g < nh; g++) {
        float *scores = scratch + g * w->ld_s;
        for (uint32_t j = 0; j < w->before; j++) scores[j] = -INFINITY;            /* older than the window */
        for (size_t j = w->before + w->n; j < w->ld_s; j++) scores[j] = -INFINITY; /* after this token */
        total[g] = window_softmax(scores, (uint32_t)w->ld_s);
        of.value_head[g] = (h + g * Hk) % ring->heads.Hv;
        memset(out + g * w->ld_h, 0, w->P * sizeof *out);
    }
    window_part(codes, ring, w, from, &of);
    of.n = w->n - n_first, of.weights += n_first;
    window_part(codes, ring, w, 0, &of);
    for (uint32_t g = 0; g < nh; g++)
        for (uint32_t p = 0; p < w->P; p++) out[g * w->ld_h + p] *= 1.0f / total[g];
}

void CAT(cpu_window_, ISA)(const struct cpu_window *ring, uint64_t pos, uint32_t h0, uint32_t h1, const float *q,
                           float *scratch, float *out);
void CAT(cpu_window_, ISA)(const struct cpu_window *ring, uint64_t pos, uint32_t h0, uint32_t h1, const float *q,
                           float *scratch, float *out) {
    const struct reach w = window_reach(ring, pos);
    const uint32_t Hk = w.Hk;
    for (uint32_t hk = 0; hk < Hk; hk++) {
        uint32_t first = h0 + (hk + Hk - h0 % Hk) % Hk; /* the first head >= h0 that reads key head hk */
        for (uint32_t h = first; h < h1; h += 4 * Hk) {
            const uint32_t nh = (h1 - h + Hk - 1) / Hk < 4 ? (h1 - h + Hk - 1) / Hk : 4;
            if (ring->kt8)
                window_heads(true, ring, &w, h, nh, q + (size_t)h * w.P, scratch, out + (size_t)h * w.P);
            else
                window_heads(false, ring, &w, h, nh, q + (size_t)h * w.P, scratch, out + (size_t)h * w.P);
        }
    }
}
