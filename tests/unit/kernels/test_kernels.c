/* test_kernels.c - every CPU kernel of every instruction set that this machine runs, against its twin, over ragged
 * sizes. */
#include "kernels/kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const all_isa[] = {"base", "avx2", "avx512"};
#define FOR_EACH_ISA(ops)                                                                                              \
    for (size_t isa_ = 0; isa_ < sizeof all_isa / sizeof *all_isa; isa_++)                                             \
        for (const struct cpu_ops *ops = cpu_ops_find(all_isa[isa_]), *once_ = ops; once_; once_ = NULL)

static uint64_t random_state = 1;
static double uniform(double lo, double hi) { /* xorshift: the same numbers everywhere */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return lo + (hi - lo) * (double)(random_state >> 11) * 0x1p-53;
}
static uint32_t pick_up_to(uint32_t n) { return (uint32_t)uniform(0, n) + 1; }
static uint32_t pad(uint32_t n) { return (n + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL; }
static float *floats(size_t n) {
    float *p = aligned_alloc(64, (n * sizeof *p + 127) / 64 * 64);
    assert_non_null(p);
    memset(p, 0, (n * sizeof *p + 127) / 64 * 64);
    return p;
}
static float *random_floats(size_t n, double lo, double hi) {
    float *p = floats(n);
    for (size_t i = 0; i < n; i++) p[i] = (float)uniform(lo, hi);
    return p;
}

/* ||x - ref|| / ||ref|| must be at most tol; a NaN fails. */
static void check_close(const char *what, const char *isa, const float *x, const float *ref, size_t n, double tol) {
    double diff = 0, norm = 1e-30;
    for (size_t i = 0; i < n; i++) {
        diff += ((double)x[i] - (double)ref[i]) * ((double)x[i] - (double)ref[i]);
        norm += (double)ref[i] * (double)ref[i];
    }
    if (!(sqrt(diff / norm) <= tol)) {
        for (size_t i = 0; i < n; i++)
            if (!(fabs((double)x[i] - (double)ref[i]) <= tol * sqrt(norm / (double)n)))
                fail_msg("%s (%s): element %zu of %zu is %.9g, the twin says %.9g; relative error %.3g > %.3g", what,
                         isa, i, n, (double)x[i], (double)ref[i], sqrt(diff / norm), tol);
        fail_msg("%s (%s): relative error %.3g > %.3g", what, isa, sqrt(diff / norm), tol);
    }
}

/* A packed matrix of random weights and the same weights in fp32. */
static struct cpu_matrix random_matrix(uint32_t rows, uint32_t cols, enum cpu_dtype dtype, float *plain) {
    struct cpu_matrix m = {.rows = rows, .cols = cols, .n_panels = pad(rows) / CPU_PANEL, .dtype = dtype};
    size_t bytes = cpu_matrix_bytes(rows, cols, dtype);
    m.data = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(m.data);
    memset(m.data, 0, bytes);
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t c = 0; c < cols; c++) {
            float f = (float)uniform(-1, 1);
            uint32_t bits;
            memcpy(&bits, &f, 4);
            uint16_t half = (uint16_t)(bits >> 16);
            if (dtype == CPU_F16) half = (uint16_t)uniform(0, 0x7c00) | (uint16_t)(uniform(0, 2) < 1 ? 0x8000 : 0);
            memcpy(m.data + cpu_matrix_offset(&m, r, c), dtype == CPU_F32 ? (void *)&f : (void *)&half,
                   dtype == CPU_F32 ? 4 : 2);
        }
    float *row = floats(cols);
    for (uint32_t r = 0; r < rows; r++) {
        cpu_matrix_row(&m, r, row);
        memcpy(plain + (size_t)r * cols, row, cols * sizeof *row);
    }
    free(row);
    return m;
}

static void linear_equals_its_twin_over_ragged_sizes(void **state) {
    (void)state;
    for (int round = 0; round < 60; round++) {
        uint32_t rows = pick_up_to(200), cols = pick_up_to(150), n = pick_up_to(21);
        enum cpu_dtype dtype = (enum cpu_dtype)(round % 3);
        float *W = floats((size_t)rows * cols), *x = random_floats((size_t)n * cols, -1, 1),
              *y = floats((size_t)n * rows), *base = random_floats((size_t)n * rows, -1, 1),
              *ref = floats((size_t)n * rows);
        struct cpu_matrix m = random_matrix(rows, cols, dtype, W);
        for (uint32_t r = 0; r < n; r++) ref_linear(W, rows, cols, x + (size_t)r * cols, ref + (size_t)r * rows);
        FOR_EACH_ISA(ops) {
            struct cpu_product p = {.w = &m, .n_rows = n, .x = x, .ldx = cols, .y = y, .ldy = rows};
            ops->linear(&p, 0, m.n_panels, NULL);
            check_close("linear", ops->isa, y, ref, (size_t)n * rows, 2e-6);
            p.base = base;
            ops->linear(&p, 0, m.n_panels, NULL);
            for (size_t i = 0; i < (size_t)n * rows; i++) y[i] -= base[i];
            check_close("linear with a base", ops->isa, y, ref, (size_t)n * rows, 5e-6);
        }
        free(W), free(x), free(y), free(base), free(ref), free(m.data);
    }
}

static void a_row_of_linear_is_the_same_to_the_bit_beside_any_other_rows(void **state) {
    (void)state;
    enum { ROWS = 100, COLS = 77, N = 30 };
    float *W = floats(ROWS * COLS), *x = random_floats(N * COLS, -1, 1), *all = floats(N * ROWS), *one = floats(ROWS);
    for (int dtype = 0; dtype < 3; dtype++) {
        struct cpu_matrix m = random_matrix(ROWS, COLS, (enum cpu_dtype)dtype, W);
        FOR_EACH_ISA(ops) {
            for (uint32_t n = 1; n <= N; n++) {
                const struct cpu_product rows = {.w = &m, .n_rows = n, .x = x, .ldx = COLS, .y = all, .ldy = ROWS};
                ops->linear(&rows, 0, m.n_panels, NULL);
                for (uint32_t r = 0; r < n; r++) {
                    const struct cpu_product row = {
                        .w = &m, .n_rows = 1, .x = x + r * COLS, .ldx = COLS, .y = one, .ldy = ROWS};
                    for (uint32_t p = 0; p < m.n_panels; p++) /* panel by panel, as another thread count would */
                        ops->linear(&row, p, p + 1, NULL);
                    if (memcmp(one, all + r * ROWS, sizeof *one * ROWS))
                        fail_msg("%s: row %u of %u differs from the row alone", ops->isa, r, n);
                }
            }
        }
        free(m.data);
    }
    free(W), free(x), free(all), free(one);
}

static void half_precision_weights_are_read_exactly(void **state) {
    (void)state;
    float *W = floats(65536), *y = floats(65536), x = 1;
    struct cpu_matrix m = {.rows = 65536, .cols = 1, .n_panels = 2048, .dtype = CPU_F16};
    m.data = aligned_alloc(64, 65536 * 2);
    for (uint32_t r = 0; r < 65536; r++) {
        uint16_t half = (uint16_t)r;
        if ((r & 0x7c00) == 0x7c00) half = 0; /* infinity and NaN: no weight */
        memcpy(m.data + cpu_matrix_offset(&m, r, 0), &half, 2);
        int e = half >> 10 & 31, f = half & 1023;
        W[r] = (float)((half & 0x8000 ? -1.0 : 1.0) * (e ? ldexp(1024 + f, e - 25) : ldexp(f, -24)));
    }
    FOR_EACH_ISA(ops) {
        const struct cpu_product p = {.w = &m, .n_rows = 1, .x = &x, .ldx = 1, .y = y, .ldy = 65536};
        ops->linear(&p, 0, m.n_panels, NULL);
        for (uint32_t r = 0; r < 65536; r++)
            if (y[r] != W[r])
                fail_msg("%s: half 0x%04x read as %.9g, is %.9g", ops->isa, r, (double)y[r], (double)W[r]);
    }
    free(W), free(y), free(m.data);
}

static void row_operations_equal_their_twins(void **state) {
    (void)state;
    for (int round = 0; round < 40; round++) {
        uint32_t n = pick_up_to(300), width = pad(n), K = pick_up_to(6);
        double range = round % 4 == 0 ? 30 : 3; /* the wide range saturates the sigmoids */
        float *x = random_floats(width, -range, range), *w = random_floats(width, -1, 1), *y = floats(width),
              *ref = floats(width);
        float *cw = random_floats((size_t)K * width, -1, 1), *bias = random_floats(width, -1, 1), *taps[8];
        for (uint32_t j = 0; j < K; j++) taps[j] = random_floats(width, -range, range);
        for (uint32_t i = n; i < width; i++) x[i] = w[i] = 0;
        FOR_EACH_ISA(ops) {
            ops->rmsnorm(x, w, 1e-5f, n, width, y);
            ref_rmsnorm(x, w, 1e-5f, n, ref);
            check_close("rmsnorm", ops->isa, y, ref, n, 1e-6);
            const float *tap[8];
            for (uint32_t j = 0; j < K; j++) tap[j] = taps[j];
            ops->conv_silu(tap, K, cw, width, bias, 0, width, y);
            ref_conv_silu(tap, K, cw, width, bias, width, ref);
            check_close("conv_silu", ops->isa, y, ref, width, 1e-6);
            ops->gate_u(x, bias, w, 0, width, y);
            for (uint32_t i = 0; i < width; i++)
                ref[i] = (float)((double)w[i] / (1 + exp(-(double)x[i] - (double)bias[i])));
            check_close("gate_u", ops->isa, y, ref, width, 1e-6);
            memcpy(y, w, width * sizeof *y);
            ops->ffn_act(y, x, 0, width);
            for (uint32_t i = 0; i < width; i++)
                ref[i] = (float)((double)w[i] * (double)x[i] / (1 + exp(-(double)x[i])));
            check_close("ffn_act", ops->isa, y, ref, width, 1e-6);
            memcpy(y, w, width * sizeof *y);
            ops->gate_out(y, bias, taps[0], x, 0, width);
            for (uint32_t i = 0; i < width; i++)
                ref[i] = (float)(((double)w[i] + (double)bias[i] * (double)taps[0][i]) * (double)x[i] /
                                 (1 + exp(-(double)x[i])));
            check_close("gate_out", ops->isa, y, ref, width, 1e-6);
        }
        for (uint32_t j = 0; j < K; j++) free(taps[j]);
        free(x), free(w), free(y), free(ref), free(cw), free(bias);
    }
}

static void gates_equal_their_twin_also_where_softplus_underflows(void **state) {
    (void)state;
    for (int round = 0; round < 60; round++) {
        uint32_t M = pick_up_to(130), Mp = pad(M);
        double range = round % 3 == 0 ? 120 : 8; /* exp(-120) is below the smallest float; its power g^tau is not */
        float *in[6], *mine[3], *ref[3];
        for (int i = 0; i < 6; i++) in[i] = random_floats(Mp, i < 2 ? -2 : -range, i < 2 ? 2 : range);
        for (uint32_t m = M; m < Mp; m++)
            for (int i = 0; i < 6; i++) in[i][m] = 0;
        if (round == 7) memset(in[1], 0, Mp * sizeof(float)); /* a zero key stays zero */
        for (int i = 0; i < 3; i++) mine[i] = floats(Mp), ref[i] = floats(Mp);
        FOR_EACH_ISA(ops) {
            for (int i = 0; i < 2; i++)
                memcpy(mine[i], in[i], Mp * sizeof(float)), memcpy(ref[i], in[i], Mp * sizeof(float));
            const struct cpu_gates row = {mine[0], mine[1], mine[2], in[2], in[3], in[4], in[5]};
            const struct cpu_gates twin = {ref[0], ref[1], ref[2], in[2], in[3], in[4], in[5]};
            ops->gates(M, 1e-12f, &row);
            ref_gates(M, 1e-12f, &twin);
            check_close("gates q", ops->isa, mine[0], ref[0], M, 1e-6);
            check_close("gates k", ops->isa, mine[1], ref[1], M,
                        range > 100 ? 4e-5 : 2e-6); /* exponents of 100: 100 ulp */
            check_close("gates log_alpha", ops->isa, mine[2], ref[2], M, 1e-6);
        }
        for (int i = 0; i < 6; i++) free(in[i]);
        for (int i = 0; i < 3; i++) free(mine[i]), free(ref[i]);
    }
}

/* n tokens through the twin and through the kernels cut at `cut` (0 = step by step). */
static void check_recurrence(const struct cpu_ops *ops, uint32_t M, uint32_t E, uint32_t n, uint32_t cut,
                             const float *q, const float *k, const float *la, const float *u, double tol) {
    const uint32_t Mp = pad(M), Ep = pad(E);
    float *qd = floats((size_t)n * M), *kd = floats((size_t)n * M), *lad = floats((size_t)n * M),
          *ud = floats((size_t)n * E);
    for (uint32_t t = 0; t < n; t++) {
        memcpy(qd + t * M, q + t * Mp, M * sizeof(float)), memcpy(kd + t * M, k + t * Mp, M * sizeof(float));
        memcpy(lad + t * M, la + t * Mp, M * sizeof(float)),
            memcpy(ud + (size_t)t * E, u + (size_t)t * Ep, E * sizeof(float));
    }
    double *S_ref = calloc((size_t)M * E, sizeof *S_ref);
    float *o_ref = floats((size_t)n * E), *S = floats((size_t)Ep * M), *o = floats((size_t)n * Ep),
          *o_plain = floats((size_t)n * E);
    float *q_in = floats((size_t)n * Mp), *k_out = floats((size_t)n * Mp), *decay = floats(Mp),
          *A = floats((size_t)n * CPU_CHUNK);
    double *b = aligned_alloc(64, (size_t)n * Mp * sizeof *b + 64 - (size_t)n * Mp * sizeof *b % 64);
    memset(b, 0, (size_t)n * Mp * sizeof *b);
    ref_gla(M, E, n, &(struct cpu_token){qd, kd, lad, ud, o_ref}, S_ref);
    for (uint32_t t = 0; t < n;) {
        uint32_t c = cut ? (n - t < cut ? n - t : cut) : 1;
        const struct cpu_token tok = {q + t * Mp, k + t * Mp, la + t * Mp, u + (size_t)t * Ep, o + (size_t)t * Ep};
        if (cut == 0)
            ops->gla_steps(M, &tok, 1, 1, 0, Ep, S);
        else {
            const struct cpu_scan scan = {M, c,    Mp,    Ep,    tok.q, tok.k, tok.log_alpha,
                                          b, q_in, k_out, decay, A,     tok.u, tok.o};
            ops->gla_chunk_decays(&scan);
            for (uint32_t i = 0; i < c; i++) ops->gla_chunk_scores(&scan, i);
            ops->gla_chunk_apply(&scan, 0, Ep, S);
        }
        t += c;
    }
    float *S_plain = floats((size_t)M * E), *S_want = floats((size_t)M * E);
    for (uint32_t m = 0; m < M; m++)
        for (uint32_t e = 0; e < E; e++) {
            S_plain[(size_t)m * E + e] = S[((size_t)(e / 32) * M + m) * 32 + e % 32];
            S_want[(size_t)m * E + e] = (float)S_ref[(size_t)m * E + e];
        }
    for (uint32_t t = 0; t < n; t++) memcpy(o_plain + (size_t)t * E, o + (size_t)t * Ep, E * sizeof(float));
    check_close(cut ? "chunk o" : "step o", ops->isa, o_plain, o_ref, (size_t)n * E, tol);
    check_close(cut ? "chunk S" : "step S", ops->isa, S_plain, S_want, (size_t)M * E, tol);
    free(qd), free(kd), free(lad), free(ud), free(S_ref), free(o_ref), free(S), free(o), free(o_plain), free(q_in),
        free(k_out);
    free(decay), free(A), free(b), free(S_plain), free(S_want);
}

static void recurrence_equals_its_twin_by_step_and_by_chunk_for_all_decays(void **state) {
    (void)state;
    static const double decays[][2] = {{-1e-6, 0}, {-0.1, 0}, {-3, -0.5}, {-30, -1}, {-30, 0}, {0, 0}};
    for (int round = 0; round < 24; round++) {
        uint32_t M = 8 + pick_up_to(120), E = pick_up_to(150), n = round % 3 == 0 ? 64 : pick_up_to(130), Mp = pad(M),
                 Ep = pad(E);
        const double *d = decays[round % 6];
        float *q = floats((size_t)n * Mp), *k = floats((size_t)n * Mp), *la = floats((size_t)n * Mp),
              *u = floats((size_t)n * Ep);
        for (uint32_t t = 0; t < n; t++) {
            bool silent = round % 4 == 3 && t > 3 && t < n / 2; /* a long run of zeros */
            for (uint32_t m = 0; m < M; m++) {
                q[t * Mp + m] = (float)uniform(-1, 1);
                k[t * Mp + m] = silent ? 0 : (float)uniform(-1, 1);
                la[t * Mp + m] = uniform(0, 8) < 1 ? (float)d[0] : (float)uniform(d[0], d[1]); /* some at the extreme */
            }
            for (uint32_t e = 0; e < E; e++) u[(size_t)t * Ep + e] = (float)uniform(-1, 1);
        }
        FOR_EACH_ISA(ops) {
            check_recurrence(ops, M, E, n, 0, q, k, la, u, 3e-6);
            check_recurrence(ops, M, E, n, 64, q, k, la, u, 3e-6);
            check_recurrence(ops, M, E, n, 1 + (uint32_t)round % 40, q, k, la, u, 3e-6);
        }
        free(q), free(k), free(la), free(u);
    }
}

/* ---- the window ---- */

static struct cpu_window open_ring(struct cpu_heads heads, uint32_t visible, bool codes) {
    const uint32_t n_keys = pad(visible + 63);
    const size_t nk = (size_t)n_keys * heads.Hk, nv = (size_t)n_keys * heads.Hv;
    struct cpu_window ring = {.heads = heads, .n_keys = n_keys, .visible = visible};
    if (codes) {
        ring.kt8 = (int8_t *)floats(nk * heads.P / 4 + 1), ring.v8 = (int8_t *)floats(nv * heads.P / 4 + 1);
        ring.k_scale = floats(nk), ring.v_scale = floats(nv);
    } else {
        ring.kt = floats(nk * heads.P), ring.v = floats(nv * heads.P);
    }
    return ring;
}
static void close_ring(struct cpu_window *ring) {
    free(ring->kt), free(ring->v), free(ring->kt8), free(ring->v8), free(ring->k_scale), free(ring->v_scale);
}

/* n heads as the ring keeps them, by the twin. */
static void round_heads(const float *x, uint32_t n_heads, uint32_t P, float *rounded) {
    int8_t codes[256];
    float scale;
    assert_true(P <= sizeof codes);
    for (size_t h = 0; h < n_heads; h++) {
        ref_window_encode(x + h * P, P, codes, &scale);
        for (size_t i = 0; i < P; i++) rounded[h * P + i] = scale * (float)codes[i];
    }
}

/* One past as both a ring and rows of what is visible. */
struct past {
    struct cpu_window ring;
    uint64_t pos;
    uint32_t n;
    float *k, *v;
};
static struct past make_past(struct cpu_heads h, uint32_t visible, uint64_t pos, bool codes) {
    struct past p = {.ring = open_ring(h, visible, codes), .pos = pos};
    const size_t nk = (size_t)h.Hk * h.P, nv = (size_t)h.Hv * h.P;
    p.n = pos + 1 < visible ? (uint32_t)pos + 1 : visible;
    p.k = random_floats(p.n * nk, -1, 1), p.v = random_floats(p.n * nv, -1, 1);
    for (uint64_t old = pos + 1 > p.ring.n_keys ? pos + 1 - p.ring.n_keys : 0; old + p.n < pos + 1; old++)
        cpu_window_put(&p.ring, old, p.k, p.v); /* no longer seen */
    for (size_t j = 0; j < p.n; j++) {
        cpu_window_put(&p.ring, pos + 1 - p.n + j, p.k + j * nk, p.v + j * nv);
        if (codes)
            round_heads(p.k + j * nk, h.Hk, h.P, p.k + j * nk), round_heads(p.v + j * nv, h.Hv, h.P, p.v + j * nv);
    }
    return p;
}
static void free_past(struct past *p) { close_ring(&p->ring), free(p->k), free(p->v); }

static void check_window(struct cpu_heads h, uint32_t visible, uint64_t pos, bool codes) {
    struct past p = make_past(h, visible, pos, codes);
    const size_t n = (size_t)h.H * h.P;
    float *q = random_floats(n, -3, 3), *out = floats(n), *part = floats(n), *ref = floats(n);
    float *scratch = floats(4 * (visible + 64));
    ref_window(&h, p.n, q, p.k, p.v, ref);
    FOR_EACH_ISA(ops) {
        ops->window(&p.ring, pos, 0, h.H, q, scratch, out);
        check_close(codes ? "window of codes" : "window", ops->isa, out, ref, n, 3e-6);
        for (uint32_t i = 0; i < h.H; i++) ops->window(&p.ring, pos, i, i + 1, q, scratch, part);
        if (memcmp(part, out, n * sizeof *out)) fail_msg("%s: a head alone differs from a head among others", ops->isa);
    }
    free_past(&p), free(q), free(out), free(part), free(ref), free(scratch);
}

static void window_equals_its_twin_partly_filled_and_wrapped(void **state) {
    (void)state;
    for (int round = 0; round < 80; round++) {
        static const uint32_t heads[][3] = {{1, 1, 1}, {4, 1, 4}, {6, 2, 3}, {5, 5, 1}, {16, 1, 16}};
        const uint32_t *h = heads[round % 5], visible = pick_up_to(150), P = round % 2 ? pick_up_to(70) : 64;
        const uint64_t pos =
            round % 3 == 0 ? pick_up_to(visible) - 1 : pick_up_to(100000); /* partly filled, then wrapped */
        check_window((struct cpu_heads){h[0], h[1], h[2], P}, visible, pos, round / 2 % 2);
    }
}

/* One head of n numbers, all of one magnitude but what is planted. */
static void plant_row(int what, float *x, uint32_t n) {
    static const float planted[] = {0, NAN, INFINITY, -INFINITY, 1e-40f, 1e-45f, 9e-31f, 1.1e-30f, 3e38f, -1000, 0.5f};
    const uint32_t n_planted = sizeof planted / sizeof *planted;
    for (uint32_t i = 0; i < n; i++) x[i] = (float)uniform(-1, 1);
    if (what == 1) memset(x, 0, n * sizeof *x);
    if (what == 2) /* halves between two codes: ties */
        for (uint32_t i = 0; i < n; i++) x[i] = (float)((int)uniform(-126, 126)) + 0.5f;
    if (what == 2) x[0] = 127;
    if (what == 3)
        for (uint32_t i = 0; i < n; i++) x[i] *= 1e-40f;
    if (what >= 4) x[pick_up_to(n) - 1] = planted[(uint32_t)(what - 4) % n_planted];
}

static void codes_of_a_key_equal_their_twin_to_the_bit_whatever_it_holds(void **state) {
    (void)state;
    for (int round = 0; round < 600; round++) {
        const uint32_t n = pick_up_to(130), stride = round % 2 ? 1 : CPU_PANEL;
        float *x = floats(n), scale, want_scale;
        int8_t codes[130 * CPU_PANEL], want[130];
        plant_row(round % 15, x, n);
        ref_window_encode(x, n, want, &want_scale);
        cpu_window_encode(x, n, codes, stride, &scale);
        if (isnan(want_scale) ? !isnan(scale) : memcmp(&scale, &want_scale, sizeof scale))
            fail_msg("round %d: the scale is %.9g, the twin's %.9g", round, (double)scale, (double)want_scale);
        for (uint32_t i = 0; i < n; i++) {
            if (codes[i * stride] != want[i])
                fail_msg("round %d: code %u of %.9g is %d, the twin's %d", round, i, (double)x[i], codes[i * stride],
                         want[i]);
            const double error = fabs((double)x[i] - (double)scale * codes[i * stride]);
            if (isfinite(scale) && !(error <= (double)scale * 0.50001 + 1e-30))
                fail_msg("round %d: %.9g became %.9g, the scale is %.9g", round, (double)x[i],
                         (double)scale * codes[i * stride], (double)scale);
        }
        free(x);
    }
}

/* A position holds a NaN or an infinity. Its heads give NaN while they see the position, afterwards what they gave
 * before. Other heads never differ. In codes a value breaks its whole head. */
static void a_broken_position_breaks_its_heads_while_it_is_visible(void **state) {
    (void)state;
    const struct cpu_heads h = {4, 1, 2, 40};
    enum { VISIBLE = 50, BEFORE = 130 };
    for (int codes = 0; codes < 2; codes++)
        for (int what = 0; what < 4; what++) { /* a key or a value, NaN or Inf */
            struct past p = make_past(h, VISIBLE, BEFORE, codes);
            float *q = random_floats(160, 0, 1), *out = floats(160), *scratch = floats(4 * (VISIBLE + 64));
            float *k = random_floats(40, 0, 1), *v = random_floats(80, 0, 1);
            (what % 2 ? v : k)[7] = what / 2 ? INFINITY : NAN;
            cpu_window_put(&p.ring, BEFORE + 1, k, v);
            FOR_EACH_ISA(ops) {
                ops->window(&p.ring, BEFORE + 1, 0, 4, q, scratch, out);
                for (uint32_t i = 0; i < 160; i++) {
                    const bool value = what % 2, broken = !value || (i / 40 % 2 == 0 && (codes || i % 40 == 7));
                    if (broken == isfinite(out[i]))
                        fail_msg("%s, codes %d, case %d: output %u is %.9g", ops->isa, codes, what, i, (double)out[i]);
                }
            }
            for (uint32_t t = 0; t < VISIBLE; t++) {
                float *fine_k = random_floats(40, 0, 1), *fine_v = random_floats(80, 0, 1);
                cpu_window_put(&p.ring, BEFORE + 2 + t, fine_k, fine_v);
                free(fine_k), free(fine_v);
            }
            FOR_EACH_ISA(ops) {
                ops->window(&p.ring, BEFORE + 1 + VISIBLE, 0, 4, q, scratch, out);
                for (uint32_t i = 0; i < 160; i++)
                    if (!isfinite(out[i]))
                        fail_msg("%s, codes %d, case %d: output %u is %.9g after the window", ops->isa, codes, what, i,
                                 (double)out[i]);
            }
            free_past(&p), free(q), free(out), free(scratch), free(k), free(v);
        }
}

int main(void) {
    print_message("seed of every test: xorshift state 1, in order\n");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear_equals_its_twin_over_ragged_sizes),
        cmocka_unit_test(a_row_of_linear_is_the_same_to_the_bit_beside_any_other_rows),
        cmocka_unit_test(half_precision_weights_are_read_exactly),
        cmocka_unit_test(row_operations_equal_their_twins),
        cmocka_unit_test(gates_equal_their_twin_also_where_softplus_underflows),
        cmocka_unit_test(recurrence_equals_its_twin_by_step_and_by_chunk_for_all_decays),
        cmocka_unit_test(window_equals_its_twin_partly_filled_and_wrapped),
        cmocka_unit_test(codes_of_a_key_equal_their_twin_to_the_bit_whatever_it_holds),
        cmocka_unit_test(a_broken_position_breaks_its_heads_while_it_is_visible),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
