/* kernels.h - the operations of the model, one card each (E1..E10: the equations listed in kernels/README.md).
 *
 * Two implementations on the CPU: ref_* (ref.c), which read like the paper, sum in double and are the twins that every
 * other kernel is tested against; and struct cpu_ops, compiled once per instruction set (cpu_simd.c), which serve.
 * Who owns what: the caller owns every buffer. Threads: pure functions, no state. Nothing here allocates.
 * Invariant of struct cpu_ops: each output element is summed in one fixed order, whatever the number of rows, the tile
 * it falls into, or the thread that computes it; so a row's result depends on neither its neighbours nor the split of
 * a prompt at chunk borders.
 *
 * Widths: rows of fp32 scratch are padded with zeros to a multiple of CPU_PANEL floats; kernels run over padded widths.
 */
#ifndef KERNELS_H
#define KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CPU_PANEL = 32, CPU_CHUNK = 64, CPU_MAX_STEPS = 16, CPU_BLOCK = 128 };

enum cpu_dtype { CPU_F32, CPU_F16, CPU_BF16, CPU_INT8, CPU_INT4 };

/* A matrix [rows, cols] in its own dtype, repacked: panels of 32 rows, and within a panel column by column, so that a
 * column of a panel is one contiguous load (32 weights). Rows past `rows` are zero. bf16: the 32 weights of a column
 * are 16 words, row l in the low and row 16 + l in the high half.
 *
 * int8 and int4: a weight is scale * (code - zero), int8 codes are 0..255 with zero 128, int4 ones 0..15 with zero 8 or
 * with zero points. A panel is one stream, block by block of CPU_BLOCK columns: the 32 rows' scales in fp32, their zero
 * points in 16 bits if there are any (both in every block, or in the first one alone where a row has one scale), then
 * codes: one word of 32 bits a row, 32 rows, then the next columns. An int8 word is columns c, c + 2, c + 1, c + 3 from
 * its low byte on, so that its even bytes are a pair of columns and its odd bytes the next pair; an int4 word is two
 * such words, of columns c.. in the low halves of its bytes and c + 4.. in the high ones. */
struct cpu_matrix {
    uint32_t rows, cols, n_panels;
    enum cpu_dtype dtype;
    unsigned char *data;    /* [n_panels][cols][32] */
    bool row_scales, zeros; /* of int8 and int4: a scale a row, not a block; int4: with zero points */
};
static inline bool cpu_matrix_is_quantised(const struct cpu_matrix *w) { return w->dtype >= CPU_INT8; }
size_t cpu_matrix_bytes(uint32_t rows, uint32_t cols, enum cpu_dtype dtype); /* not of int8 and int4 */
size_t cpu_quant_panel_bytes(const struct cpu_matrix *w);
/* One row of an int8 or int4 matrix: codes [cols] a byte each (int8: two's complement), scales and zeros one a block
 * or, with row_scales, one. Rows may be packed by several threads. Rows past the last one are left as they are: zero.
 */
void cpu_quant_pack_row(const struct cpu_matrix *w, uint32_t row, const uint8_t *codes, const float *scales,
                        const uint8_t *zeros);
/* Where row's weight of column col lies: byte offset into data. */
size_t cpu_matrix_offset(const struct cpu_matrix *w, uint32_t row, uint32_t col);
/* dst[cols] = one row in fp32 (the embedding lookup). */
void cpu_matrix_row(const struct cpu_matrix *w, uint32_t row, float *dst);

/* Query, key and value heads of P dimensions. Key head of query head h is h mod Hk, value head h mod Hv. */
struct cpu_heads {
    uint32_t H, Hk, Hv, P;
};
/* A session's window in one layer: a ring of n_keys keys (a multiple of 32, at least visible + 63, so that a chunk of
 * 64 queries sees its keys whole). Position p lies at r = p mod n_keys: dim i of key head h at kt[((r / 32 * Hk + h) *
 * P + i) * 32 + r % 32], of value head h at v[(r * Hv + h) * P + i]. In int8 these are codes, at the same places of kt8
 * and v8, and x = scale * code: key head h's scale is k_scale[(r / 32 * Hk + h) * 32 + r % 32], value head h's
 * v_scale[h * n_keys + r]. */
struct cpu_window {
    struct cpu_heads heads;
    uint32_t n_keys, visible;
    float *kt, *v; /* NULL, and the others are there, or the reverse */
    int8_t *kt8, *v8;
    float *k_scale, *v_scale;
};
/* A head's key or value of n numbers as codes, stride bytes from one to the next: scale is the largest magnitude / 127,
 * a code x * (127 / it), ties to even. All 0 under 1e-30; where a number is not finite, codes are 0 and scale is NaN.
 * Twin ref_window_encode. */
void cpu_window_encode(const float *x, uint32_t n, int8_t *codes, size_t stride, float *scale);
/* The key [Hk][P] and the value [Hv][P] of position pos into the ring. */
void cpu_window_put(const struct cpu_window *ring, uint64_t pos, const float *k, const float *v);

/* Memory that later stages will read, fetched into the second-level cache by products that are bound by arithmetic. */
struct cpu_ahead {
    struct {
        const char *at, *end;
    } range[16];
    uint32_t n, next;
};

/* Rows of activations as 16-bit integers, for products with int8 and int4 weights: x = scale * code, a scale for every
 * CPU_BLOCK columns; codes behind the last column are zero. Block b of row r is number b * n_rows + r: what a tile of
 * rows reads lies together, and an odd n_rows keeps a row's blocks apart in a cache. */
struct cpu_codes {
    uint32_t n_blocks, n_rows;
    int16_t *code; /* [n_blocks][n_rows][CPU_BLOCK] */
    float *scale;  /* the block's largest magnitude / 32767; not finite where an activation is not */
    int32_t *sum;  /* of the block's codes: what zero points multiply */
};

/* y = base + W x, of n_rows rows. */
struct cpu_product {
    const struct cpu_matrix *w;
    uint32_t n_rows;
    const float *x; /* [n_rows][ldx], where w is not of int8 or int4 */
    size_t ldx;
    const struct cpu_codes *codes; /* of x, where w is */
    const float *base;             /* [n_rows][ldy], may be y; NULL: 0 */
    float *y;                      /* [n_rows][ldy] */
    size_t ldy;
};

/* What E3 and E5 take and give, of one row of M: q and k change in place. */
struct cpu_gates {
    float *q, *k, *log_alpha;
    const float *g, *g_b, *t, *t_b; /* W_m's outputs for gate and tau, and their biases */
};

/* One token of the recurrence: rows of M (q, k with i, log_alpha) and of all channels (u, o). */
struct cpu_token {
    const float *q, *k, *log_alpha, *u;
    float *o; /* NULL: nothing is read out, and q may be NULL */
};

/* The chunkwise form of n <= CPU_CHUNK tokens: rows of M have ld_m elements, rows of channels ld_e. */
struct cpu_scan {
    uint32_t M, n;
    size_t ld_m, ld_e;
    const float *q, *k, *log_alpha; /* [n, ld_m]; k with i */
    double *b;                      /* [n, ld_m]: running sums of log_alpha */
    float *q_in;                    /* [n, ld_m]: q exp(b_t) */
    float *k_out;                   /* k exp(b_n - b_i) transposed: [M, n] */
    float *decay;                   /* [M]: exp(b_n) */
    float *A;                       /* [n, CPU_CHUNK] */
    const float *u;                 /* [n, ld_e] */
    float *o;                       /* [n, ld_e] */
};

struct cpu_ops {
    const char *isa;
    /* y[r, o] = base[r, o] + sum_c W[o, c] x[r, c] for the rows o of panels [p0, p1). ahead may be NULL. Bytes: the
     * panels' weights once for all n_rows rows. Order: c ascending, one accumulator. Twin ref_linear. */
    void (*linear)(const struct cpu_product *p, uint32_t p0, uint32_t p1, struct cpu_ahead *ahead);
    /* y = x * w / sqrt(mean(x^2) + eps) over n values; y may be x. width = n padded (the padding of x is zero). */
    void (*rmsnorm)(const float *x, const float *w, float eps, uint32_t n, uint32_t width, float *y);
    /* E2 for channels [e0, e1) of one row: s = SiLU(bias + sum_j w[j] tap[j]); tap[j] = the inputs at t-K+1+j. */
    void (*conv_silu)(const float *const *tap, uint32_t K, const float *w, size_t ldw, const float *bias, uint32_t e0,
                      uint32_t e1, float *s);
    /* E4: u = sigmoid(c + b) * a, channels [e0, e1); u may be c. */
    void (*gate_u)(const float *c, const float *b, const float *a, uint32_t e0, uint32_t e1, float *u);
    /* E3, E5 for one row of M: q <- q / sqrt(M); k <- i * k / max(|k|, eps); log_alpha = -g tau; g = softplus(g + g_b),
     * tau = sigmoid(t + t_b), i = g^tau. Padding of k is zero and stays so. */
    void (*gates)(uint32_t M, float k_eps, const struct cpu_gates *row);
    /* E6, E7 for n <= CPU_MAX_STEPS tokens one after the other, channels [e0, e1) (multiples of 32): S <-
     * exp(log_alpha) S + k u; o = q S. S is tiled [E / 32][M][32]. S becomes what the first n_kept of them leave; the
     * others are applied beside it, for their outputs: a token's bits are those of a call of its own. Bytes: S read
     * once, written if n_kept. Order: m ascending. Twin ref_gla. */
    void (*gla_steps)(uint32_t M, const struct cpu_token *tok, uint32_t n, uint32_t n_kept, uint32_t e0, uint32_t e1,
                      float *S);
    /* Chunkwise form, first part, once a chunk: b, q_in, k_out and decay from q, k and log_alpha. */
    void (*gla_chunk_decays)(const struct cpu_scan *c);
    /* Second part, for one row t: A[t,i] = sum_m q[t,m] k[i,m] exp(b[t,m] - b[i,m]) for i <= t, 0 up to n. Differences
     * of exponents only, all <= 0: nothing overflows, nothing small is lost. Order: m in lanes, then a fixed tree. */
    void (*gla_chunk_scores)(const struct cpu_scan *c, uint32_t t);
    /* Third part, channels [e0, e1): o_t = q_in_t S + sum_i A[t,i] u_i, then S <- decay S + k_out u. */
    void (*gla_chunk_apply)(const struct cpu_scan *c, uint32_t e0, uint32_t e1, float *S);
    /* E7, E8: o <- (o + residual s) SiLU(z), channels [e0, e1). */
    void (*gate_out)(float *o, const float *residual, const float *s, const float *z, uint32_t e0, uint32_t e1);
    /* E9 for the token at pos (its own key is in the ring) and the query heads [h0, h1): out[h] = softmax(q[h] K^T /
     * sqrt(P)) V over the visible keys. q, out [H * P]; scratch [4 * (visible + 64)]. Bytes: keys once for four heads,
     * values once a head; codes and their scales where these are int8. Order: dims ascending for a score; keys oldest
     * first, lanes by absolute position, so a result depends on pos alone. Twin ref_window. */
    void (*window)(const struct cpu_window *ring, uint64_t pos, uint32_t h0, uint32_t h1, const float *q,
                   float *scratch, float *out);
    /* E10: a <- SiLU(g) a, channels [f0, f1). */
    void (*ffn_act)(float *a, const float *g, uint32_t f0, uint32_t f1);
    /* Sum of n floats: the read-bandwidth ceiling that the benchmark measures. n is a multiple of 256. */
    float (*read_sum)(const float *x, size_t n);
};

/* The best one that this processor runs; isa: "avx512", "avx2", "base"; NULL where the processor lacks it. */
const struct cpu_ops *cpu_ops_best(void);
const struct cpu_ops *cpu_ops_find(const char *isa);

/* Every instruction set gives the same bits as the twins. */
struct cpu_quant_ops {
    const char *isa;
    /* Blocks [b0, b1) of one row; x has width values, a multiple of CPU_PANEL. Twin ref_encode. */
    void (*encode)(const float *x, uint32_t width, uint32_t row, uint32_t b0, uint32_t b1, const struct cpu_codes *out);
    /* y[r, o] = base[r, o] + sum_b float(sum_c (code[o, c] - zero[o, b]) xcode[r, c]) (scale[o, b] xscale[r, b]) for
     * the rows o of panels [p0, p1). Bytes: the panels' codes once for 48 rows. Order: the sum of a block is exact;
     * blocks ascending from 0, then base; nothing is fused. Twin ref_quant_linear. */
    void (*linear)(const struct cpu_product *p, uint32_t p0, uint32_t p1);
};
/* isa: "avx512vnni", "avx512", "avxvnni", "avx2", "base". */
const struct cpu_quant_ops *cpu_quant_best(void);
const struct cpu_quant_ops *cpu_quant_find(const char *isa);

/* ---- twins: plain loops in double, arguments as in the equations ---- */
void ref_linear(const float *W, uint32_t rows, uint32_t cols, const float *x, float *y); /* y = W x */
/* codes, scales and zeros of rows as cpu_quant_pack_row takes them; n_scales a row. To the bit. */
struct ref_quant {
    uint32_t rows, cols, n_scales;
    bool int4;
    const uint8_t *codes, *zeros; /* zeros NULL: 8 for int4 */
    const float *scales;
};
void ref_encode(const float *x, uint32_t n, int16_t *codes, float *scale, int32_t *sum); /* one block */
void ref_quant_linear(const struct ref_quant *w, const float *x, const float *base, float *y);
void ref_rmsnorm(const float *x, const float *w, float eps, uint32_t n, float *y);
void ref_conv_silu(const float *const *tap, uint32_t K, const float *w, size_t ldw, const float *bias, uint32_t E,
                   float *s);
void ref_gates(uint32_t M, float k_eps, const struct cpu_gates *row);
/* E6, E7 over n tokens: S [M, E] row-major is carried on; q, k (with i and the scale in), log_alpha [n, M]; u, o [n,
 * E]: the first token's, and the others' behind it. */
void ref_gla(uint32_t M, uint32_t E, uint32_t n, const struct cpu_token *tok, double *S);
/* E9 for one token over n keys: keys [n, Hk, P], values [n, Hv, P], q and out [H, P] */
void ref_window(const struct cpu_heads *heads, uint32_t n, const float *q, const float *k, const float *v, float *out);
void ref_window_encode(const float *x, uint32_t n, int8_t *codes, float *scale); /* to the bit */

#endif
