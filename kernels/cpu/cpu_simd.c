/* cpu_simd.c - struct cpu_ops, compiled once per instruction set with -DISA=base|avx2|avx512 and its -m flags.
 *
 * Written with GCC's vector types, so that one text serves every width: LANES floats a register, and always 32 outputs
 * a panel. In a matrix product the lanes are 32 neighbouring outputs and the loop runs over the inputs, so an output's
 * sum has one order (inputs ascending, one accumulator) at every tile shape: this is what makes a row independent of
 * its neighbours to the bit. -ffp-contract=fast (below) turns a + b * c into one fused instruction where there is one.
 */
#include "kernels/cpu/cpu_vector.h"

#if LANES == 16
#define MAX_ROWS 8
#elif LANES == 8
#define MAX_ROWS 2
#else
#define MAX_ROWS 1
#endif
#define AHEAD_ROWS     4    /* from so many rows on a product is bound by arithmetic and has loads to spare */
#define PREFETCH_BYTES 8192 /* ahead in a stream of weights: some 150 ns at the speed of eight rows */
#define NV             (CPU_PANEL / LANES)

/* log of positive normal x: x = 2^e m with m in [sqrt(1/2), sqrt(2)), log m = 2 atanh((m - 1) / (m + 1)). */
INLINE vf vlog(vf x) {
    vi bits = (vi)x - 0x3f3504f3; /* bits of sqrt(1/2): shifts the exponent's border there */
    vi e = bits >> 23;
    vf m = (vf)((vi)x - (e << 23));
    vf s = (m - 1.0f) / (m + 1.0f), z = s * s;
    vf p = all(2.0f / 11);
    p = p * z + 2.0f / 9;
    p = p * z + 2.0f / 7;
    p = p * z + 2.0f / 5;
    p = p * z + 2.0f / 3;
    p = p * (z * s) + 2.0f * s;
    vf ef = __builtin_convertvector(e, vf);
    return ef * 0.693359375f + (ef * -2.12194440e-4f + p);
}

/* log(1 + y), 0 <= y <= 1: 2 atanh(y / (2 + y)), small y kept to the last bit. */
INLINE vf vlog1p(vf y) {
    vf s = y / (y + 2.0f), z = s * s;
    vf p = all(2.0f / 17);
    p = p * z + 2.0f / 15;
    p = p * z + 2.0f / 13;
    p = p * z + 2.0f / 11;
    p = p * z + 2.0f / 9;
    p = p * z + 2.0f / 7;
    p = p * z + 2.0f / 5;
    p = p * z + 2.0f / 3;
    return p * (z * s) + 2.0f * s;
}

INLINE vf vsigmoid(vf x) { return 1.0f / (1.0f + vexp(-x)); }
INLINE vf vsilu(vf x) { return x / (1.0f + vexp(-x)); }

/* ---- matrix products ---- */

/* The 32 weights of one column of a panel, as NV registers of fp32. */
INLINE void load_column(enum cpu_dtype dtype, const unsigned char *p, vf out[NV]) {
    if (dtype == CPU_F32) {
        for (int v = 0; v < NV; v++) out[v] = load((const float *)(const void *)p + v * LANES);
    } else if (dtype == CPU_BF16) {
        for (int v = 0; v < NV / 2; v++) {
            vu w = *(const vu_any *)(p + v * VECTOR_BYTES);
            out[v] = (vf)(w << 16);
            out[NV / 2 + v] = (vf)(w & 0xffff0000u);
        }
    } else {
        for (int v = 0; v < NV; v++) {
#if LANES == 16
            out[v] = (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)(p + v * LANES * 2)));
#elif defined __F16C__
            out[v] = (vf)_mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + v * LANES * 2)));
#else
            vu h, magnitude;
            for (int i = 0; i < LANES; i++) {
                uint16_t x;
                memcpy(&x, p + (v * LANES + i) * 2, 2);
                h[i] = x;
            }
            magnitude = h & 0x7fffu;
            vf f = (vf)(magnitude << 13) * 0x1p112f; /* rebases the exponent, exact also for subnormals */
            f = pick((vi)(magnitude >= 0x7c00u), (vf)(0x7f800000u | (magnitude & 0x3ffu) << 13), f);
            out[v] = (vf)((vu)f | (h & 0x8000u) << 16);
#endif
        }
    }
}

/* What a tile of a product reads and writes, from its first panel and row on. */
struct tile {
    const unsigned char *w;
    size_t panel_bytes, ldx, ldy;
    const float *x, *base;
    float *y;
    const char *ahead;
    uint32_t n, n_last; /* columns; rows of W in the last panel, 32 but at the end of the matrix */
};

/* np panels by nr rows: y = base + W x; all of np, nr, dtype are constants after inlining. */
INLINE void tile(enum cpu_dtype dtype, const int np, const int nr, const struct tile *t) {
    const unsigned char *w = t->w;
    const char *ahead = t->ahead;
    const size_t panel_bytes = t->panel_bytes;
    const uint32_t n = t->n;
    vf acc[4][MAX_ROWS][NV];
#pragma GCC unroll 16
    for (int p = 0; p < np; p++)
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
#pragma GCC unroll 16
            for (int v = 0; v < NV; v++) acc[p][r][v] = (vf){0};
    const size_t step = dtype == CPU_F32 ? CPU_PANEL * 4 : CPU_PANEL * 2, row = t->ldx * sizeof *t->x;
    /* Rows are reached as base + {0, 1, 2, 4} strides from rows 0, 3 and 6, which x86 addresses without arithmetic; the
     * empty asm keeps the compiler from giving each row a pointer of its own, more than there are registers. */
    const char *x0 = (const char *)t->x, *x3 = x0 + (nr > 3 ? 3 * row : 0), *x6 = x0 + (nr > 6 ? 6 * row : 0);
    for (uint32_t c = 0; c < n; c++) {
#ifdef __x86_64__
        __asm__("" : "+r"(x0), "+r"(x3), "+r"(x6));
#endif
#pragma GCC unroll 16
        for (int p = 0; p < np; p++) {
            vf col[NV];
            const unsigned char *wc = w + (size_t)p * panel_bytes + c * step;
            __builtin_prefetch(wc + PREFETCH_BYTES); /* the next panel's start too: panels follow each other */
            if (nr >= AHEAD_ROWS) __builtin_prefetch(ahead + c * 64, 1, 2);
            load_column(dtype, wc, col);
#pragma GCC unroll 16
            for (int r = 0; r < nr; r++) {
                const char *xr = r == 0 || r == 1 || r == 2 || r == 4 ? x0 + (size_t)r * row
                                 : r == 6                             ? x6
                                                                      : x3 + (size_t)(r - 3) * row;
                float xc = *(const float *)(const void *)xr;
#pragma GCC unroll 16
                for (int v = 0; v < NV; v++) acc[p][r][v] += col[v] * xc;
            }
        }
        x0 += sizeof *t->x;
        x3 += sizeof *t->x;
        x6 += sizeof *t->x;
    }
#pragma GCC unroll 16
    for (int p = 0; p < np; p++)
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++) {
            const size_t at = (size_t)r * t->ldy + (size_t)p * CPU_PANEL;
            float *dst = t->y + at;
            const float *add = t->base ? t->base + at : NULL;
            if (p + 1 < np || t->n_last == CPU_PANEL) {
#pragma GCC unroll 16
                for (int v = 0; v < NV; v++)
                    store(dst + v * LANES, add ? load(add + v * LANES) + acc[p][r][v] : acc[p][r][v]);
            } else {
                float last[CPU_PANEL];
                memcpy(last, acc[p][r], sizeof last);
                for (uint32_t i = 0; i < t->n_last; i++) dst[i] = add ? add[i] + last[i] : last[i];
            }
        }
}

/* A tile of its own function each: one loop a function keeps its few pointers in registers. */
#define TILE(suffix, dtype, np, nr)                                                                                    \
    static __attribute__((noinline)) void tile_##suffix##_##np##x##nr(const struct tile *t) { tile(dtype, np, nr, t); }
typedef void tile_function(const struct tile *t);
#if MAX_ROWS == 8
#define TILES(s, d)                                                                                                    \
    TILE(s, d, 1, 1)                                                                                                   \
    TILE(s, d, 1, 2)                                                                                                   \
    TILE(s, d, 1, 3)                                                                                                   \
    TILE(s, d, 1, 4)                                                                                                   \
    TILE(s, d, 1, 5) TILE(s, d, 1, 6) TILE(s, d, 1, 7) TILE(s, d, 1, 8) TILE(s, d, 4, 1) TILE(s, d, 4, 2)
#define ONE_PANEL(s)                                                                                                   \
    {                                                                                                                  \
        tile_##s##_1x1, tile_##s##_1x2, tile_##s##_1x3, tile_##s##_1x4, tile_##s##_1x5, tile_##s##_1x6,                \
            tile_##s##_1x7, tile_##s##_1x8                                                                             \
    }
#define FEW_ROWS(s)                                                                                                    \
    { tile_##s##_4x1, tile_##s##_4x2 }
enum { FEW_PANELS = 4 };
#elif MAX_ROWS == 2
#define TILES(s, d) TILE(s, d, 1, 1) TILE(s, d, 1, 2) TILE(s, d, 2, 1)
#define ONE_PANEL(s)                                                                                                   \
    { tile_##s##_1x1, tile_##s##_1x2 }
#define FEW_ROWS(s)                                                                                                    \
    { tile_##s##_2x1, NULL }
enum { FEW_PANELS = 2 };
#else
#define TILES(s, d) TILE(s, d, 1, 1)
#define ONE_PANEL(s)                                                                                                   \
    { tile_##s##_1x1 }
#define FEW_ROWS(s)                                                                                                    \
    { NULL, NULL }
enum { FEW_PANELS = 1 };
#endif
TILES(f32, CPU_F32)
TILES(f16, CPU_F16)
TILES(bf16, CPU_BF16)

static void simd_linear(const struct cpu_product *of, uint32_t p0, uint32_t p1, struct cpu_ahead *ahead) {
    static tile_function *const one_panel[3][MAX_ROWS] = {
        [CPU_F32] = ONE_PANEL(f32), [CPU_F16] = ONE_PANEL(f16), [CPU_BF16] = ONE_PANEL(bf16)};
    static tile_function *const few_rows[3][2] = {
        [CPU_F32] = FEW_ROWS(f32), [CPU_F16] = FEW_ROWS(f16), [CPU_BF16] = FEW_ROWS(bf16)};
    const struct cpu_matrix *w = of->w;
    const uint32_t n_rows = of->n_rows;
    struct tile t = {
        .panel_bytes = cpu_matrix_bytes(CPU_PANEL, w->cols, w->dtype), .ldx = of->ldx, .ldy = of->ldy, .n = w->cols};
    /* one or two rows: several panels at once, whose independent sums hide the latency of an addition */
    tile_function *several = n_rows <= 2 ? few_rows[w->dtype][n_rows - 1] : NULL;
    for (uint32_t p = p0; p < p1;) {
        uint32_t np = several && p + FEW_PANELS <= p1 ? FEW_PANELS : 1;
        t.w = w->data + p * t.panel_bytes;
        t.n_last = w->rows - (p + np - 1) * CPU_PANEL;
        if (t.n_last > CPU_PANEL) t.n_last = CPU_PANEL;
        for (uint32_t r = 0; r < n_rows;) {
            uint32_t nr = np > 1 ? n_rows : n_rows - r < MAX_ROWS ? n_rows - r : MAX_ROWS;
            tile_function *run = np > 1 ? several : one_panel[w->dtype][nr - 1];
            const size_t at = r * of->ldy + (size_t)p * CPU_PANEL;
            t.ahead = (const char *)t.w; /* nothing ahead: what is read anyway */
            if (ahead && nr >= AHEAD_ROWS && ahead->next < ahead->n) {
                t.ahead = ahead->range[ahead->next].at;
                ahead->range[ahead->next].at += (size_t)w->cols * 64;
                if (ahead->range[ahead->next].at >= ahead->range[ahead->next].end) ahead->next++;
            }
            t.x = of->x + r * of->ldx;
            t.base = of->base ? of->base + at : NULL;
            t.y = of->y + at;
            run(&t);
            r += nr;
        }
        p += np;
    }
}

/* x b: x [nr, k] with ldx floats from row to row, b [k, 32] with ldb. */
struct factors {
    const float *x;
    size_t ldx;
    const float *b;
    size_t ldb;
    uint32_t k;
};

INLINE void add_factors(const int nr, struct factors f, vf (*acc)[NV]) {
    for (uint32_t c = 0; c < f.k; c++) {
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
#pragma GCC unroll 16
            for (int v = 0; v < NV; v++) acc[r][v] += load(f.b + c * f.ldb + v * LANES) * f.x[(size_t)r * f.ldx + c];
    }
}
/* nr rows of 32 columns: y = scale * y + one + two, sums in this order. */
INLINE void small_tile(const int nr, struct factors one, struct factors two, const float *scale, float *y, size_t ldy) {
    vf acc[MAX_ROWS][NV];
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) acc[r][v] = scale ? load(y + (size_t)r * ldy + v * LANES) * scale[r] : (vf){0};
    add_factors(nr, one, acc);
    add_factors(nr, two, acc);
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) store(y + (size_t)r * ldy + v * LANES, acc[r][v]);
}

/* o of nr tokens from t on. They see only the inputs up to their last one: A is 0 above the diagonal. */
INLINE void chunk_outputs(const int nr, const struct cpu_scan *c, uint32_t t, const float *Se, uint32_t e) {
    const struct factors state = {c->q_in + t * c->ld_m, c->ld_m, Se, CPU_PANEL, c->M},
                         inputs = {c->A + (size_t)t * CPU_CHUNK, CPU_CHUNK, c->u + e, c->ld_e, t + (uint32_t)nr};
    small_tile(nr, state, inputs, NULL, c->o + t * c->ld_e + e, c->ld_e);
}
/* nr rows of S from m on. */
INLINE void chunk_state(const int nr, const struct cpu_scan *c, uint32_t m, float *Se, uint32_t e) {
    const struct factors inputs = {c->k_out + (size_t)m * c->n, c->n, c->u + e, c->ld_e, c->n};
    small_tile(nr, inputs, (struct factors){0}, c->decay + m, Se + (size_t)m * CPU_PANEL, CPU_PANEL);
}

static void gla_chunk_apply(const struct cpu_scan *of, uint32_t e0, uint32_t e1, float *S) {
    const struct cpu_scan c = *of;
    for (uint32_t e = e0; e < e1; e += CPU_PANEL) {
        float *Se = S + (size_t)e * c.M; /* panel e / 32: [M][32] */
        uint32_t t = 0, m = 0;
        for (; t + MAX_ROWS <= c.n; t += MAX_ROWS) chunk_outputs(MAX_ROWS, &c, t, Se, e);
        for (; t < c.n; t++) chunk_outputs(1, &c, t, Se, e);
        for (; m + MAX_ROWS <= c.M; m += MAX_ROWS) chunk_state(MAX_ROWS, &c, m, Se, e);
        for (; m < c.M; m++) chunk_state(1, &c, m, Se, e);
    }
}

/* ---- row operations ---- */

static void simd_rmsnorm(const float *x, const float *w, float eps, uint32_t n, uint32_t width, float *y) {
    vf sum = {0};
    for (uint32_t i = 0; i < width; i += LANES) sum += load(x + i) * load(x + i);
    float scale = 1.0f / sqrtf(sum_lanes(sum) / (float)n + eps);
    for (uint32_t i = 0; i < width; i += LANES) store(y + i, load(x + i) * scale * load(w + i));
}

static void conv_silu(const float *const *tap, uint32_t K, const float *w, size_t ldw, const float *bias, uint32_t e0,
                      uint32_t e1, float *s) {
    for (uint32_t e = e0; e < e1; e += LANES) {
        vf sum = load(bias + e);
        for (uint32_t j = 0; j < K; j++) sum += load(w + j * ldw + e) * load(tap[j] + e);
        store(s + e, vsilu(sum));
    }
}

static void gate_u(const float *c, const float *b, const float *a, uint32_t e0, uint32_t e1, float *u) {
    for (uint32_t e = e0; e < e1; e += LANES) store(u + e, vsigmoid(load(c + e) + load(b + e)) * load(a + e));
}

static void gate_out(float *o, const float *residual, const float *s, const float *z, uint32_t e0, uint32_t e1) {
    for (uint32_t e = e0; e < e1; e += LANES)
        store(o + e, (load(o + e) + load(residual + e) * load(s + e)) * vsilu(load(z + e)));
}

static void ffn_act(float *a, const float *g, uint32_t f0, uint32_t f1) {
    for (uint32_t f = f0; f < f1; f += LANES) store(a + f, load(a + f) * vsilu(load(g + f)));
}

static void simd_gates(uint32_t M, float k_eps, const struct cpu_gates *row) {
    const struct cpu_gates of = *row;
    vf sum = {0};
    for (uint32_t m = 0; m < M; m += LANES) sum += load(of.k + m) * load(of.k + m);
    float norm = sqrtf(sum_lanes(sum)), scale = 1.0f / sqrtf((float)M);
    norm = 1.0f / (norm > k_eps ? norm : k_eps);
    for (uint32_t m = 0; m < M; m += LANES) {
        vf x = load(of.g + m) + load(of.g_b + m), tau = vsigmoid(load(of.t + m) + load(of.t_b + m));
        vi negative = x < 0.0f;
        vf y = vexp(pick(negative, x, -x)); /* exp(-|x|) */
        vf g = pick(negative, (vf){0}, x) + vlog1p(y);
        /* log g where g is close to exp(x): its series, so that g below the smallest float still has a logarithm */
        vf log_g = pick(x < -8.0f, x + y * (y * (5.0f / 24) - 0.5f), vlog(g));
        store(of.q + m, load(of.q + m) * scale);
        store(of.k + m, load(of.k + m) * norm * vexp(log_g * tau));
        store(of.log_alpha + m, -(g * tau));
    }
}

/* ---- the recurrence ---- */

enum { GROUP = 64 }; /* rows of S at a time: their decays once for all channels */

/* Rows [m0, m0 + n) of the tile of the panel at channel e, for one token: to = alpha from + k u, and with out o += q
 * to. */
INLINE void gla_panel(const bool out, const struct cpu_token *tok, uint32_t m0, uint32_t n, uint32_t e,
                      const float *alpha, const float *from, float *to) {
    const float *q = out ? tok->q + m0 : NULL, *k = tok->k + m0, *u = tok->u + e;
    float *o = out ? tok->o + e : NULL;
    vf ue[NV], sum[NV];
#pragma GCC unroll 16
    for (int v = 0; v < NV; v++) {
        ue[v] = load(u + v * LANES);
        sum[v] = out && m0 ? load(o + v * LANES) : (vf){0};
    }
    for (uint32_t m = 0; m < n; m++, from += CPU_PANEL, to += CPU_PANEL) {
        float km = k[m], qm = out ? q[m] : 0, am = alpha[m];
#pragma GCC unroll 16
        for (int v = 0; v < NV; v++) {
            vf s = load(from + v * LANES) * am + ue[v] * km;
            store(to + v * LANES, s);
            if (out) sum[v] += s * qm;
        }
    }
    if (!out) return;
#pragma GCC unroll 16
    for (int v = 0; v < NV; v++) store(o + v * LANES, sum[v]);
}

static void gla_steps(uint32_t M, const struct cpu_token *tok, uint32_t n, uint32_t n_kept, uint32_t e0, uint32_t e1,
                      float *S) {
    float alpha[CPU_MAX_STEPS][GROUP], tile[GROUP * CPU_PANEL];
    for (uint32_t m0 = 0; m0 < M; m0 += GROUP) {
        const uint32_t n_m = M - m0 < GROUP ? M - m0 : GROUP;
        for (uint32_t t = 0; t < n; t++)
            for (uint32_t m = 0; m < n_m; m += LANES) store(alpha[t] + m, vexp(load(tok[t].log_alpha + m0 + m)));
        for (uint32_t e = e0; e < e1; e += CPU_PANEL) {
            float *Se = S + (size_t)e * M + (size_t)m0 * CPU_PANEL;
            const float *from = Se;
            for (uint32_t t = 0; t < n; t++) {
                float *to = t < n_kept ? Se : tile;
                if (tok[t].o)
                    gla_panel(true, &tok[t], m0, n_m, e, alpha[t], from, to);
                else
                    gla_panel(false, &tok[t], m0, n_m, e, alpha[t], from, to);
                from = to;
            }
        }
    }
}

static void gla_chunk_decays(const struct cpu_scan *c) {
    const uint32_t M = c->M, n = c->n;
    const size_t ld = c->ld_m;
    double *b = c->b;
    for (uint32_t m = 0; m < M; m++) b[m] = (double)c->log_alpha[m];
    for (uint32_t t = 1; t < n; t++)
        for (uint32_t m = 0; m < M; m++) b[t * ld + m] = b[(t - 1) * ld + m] + (double)c->log_alpha[t * ld + m];
    const double *end = b + (n - 1) * ld;
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t m = 0; m < M; m += LANES) {
            vd bt = *(const vd_any *)(b + t * ld + m), be = *(const vd_any *)(end + m);
            store(c->q_in + t * ld + m, load(c->q + t * ld + m) * vexp(__builtin_convertvector(bt, vf)));
            vf out = load(c->k + t * ld + m) * vexp(__builtin_convertvector(be - bt, vf));
            for (uint32_t i = 0; i < LANES && m + i < M; i++) c->k_out[(size_t)(m + i) * n + t] = out[i];
            if (t + 1 == n) store(c->decay + m, vexp(__builtin_convertvector(be, vf)));
        }
}

static void gla_chunk_scores(const struct cpu_scan *c, uint32_t t) {
    const float *q = c->q + t * c->ld_m;
    const double *b = c->b + t * c->ld_m;
    float *A = c->A + (size_t)t * CPU_CHUNK;
    for (uint32_t i = 0; i <= t; i++) {
        const float *k = c->k + i * c->ld_m;
        vf sum = {0};
        for (uint32_t m = 0; m < c->M; m += LANES) {
            vd difference = *(const vd_any *)(b + m) - *(const vd_any *)(c->b + i * c->ld_m + m);
            sum += load(q + m) * load(k + m) * vexp(__builtin_convertvector(difference, vf));
        }
        A[i] = sum_lanes(sum);
    }
    for (uint32_t i = t + 1; i < c->n; i++) A[i] = 0;
}

static float read_sum(const float *x, size_t n) {
    vf sum[8] = {{0}};
    for (size_t i = 0; i < n; i += 8 * LANES)
#pragma GCC unroll 8
        for (int k = 0; k < 8; k++) sum[k] += load(x + i + (size_t)k * LANES);
    vf total = {0};
    for (int k = 0; k < 8; k++) total += sum[k];
    return sum_lanes(total);
}

/* cpu_window.c */
void CAT(cpu_window_, ISA)(const struct cpu_window *ring, uint64_t pos, uint32_t h0, uint32_t h1, const float *q,
                           float *scratch, float *out);

extern const struct cpu_ops CAT(cpu_ops_, ISA);
const struct cpu_ops CAT(cpu_ops_, ISA) = {
    .isa = STRING(ISA),
    .linear = simd_linear,
    .rmsnorm = simd_rmsnorm,
    .conv_silu = conv_silu,
    .gate_u = gate_u,
    .gates = simd_gates,
    .gla_steps = gla_steps,
    .gla_chunk_decays = gla_chunk_decays,
    .gla_chunk_scores = gla_chunk_scores,
    .gla_chunk_apply = gla_chunk_apply,
    .gate_out = gate_out,
    .window = CAT(cpu_window_, ISA),
    .ffn_act = ffn_act,
    .read_sum = read_sum,
};
