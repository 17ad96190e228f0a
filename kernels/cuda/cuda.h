/* cuda.h - launchers of the CUDA kernels (k_*), one card each. Equations: kernels/README.md. Twins: kernels.h, ref_*.
 *
 * Everything is asynchronous on `stream` (a cudaStream_t) and allocates nothing; errors are found by the caller's next
 * check of the stream. Threads: any, one stream at a time. Dtypes: an "activation" is fp32, fp16 or bf16 as dtype says.
 *
 * Packed activations (16 bit): tiles of 8 rows and 16 columns, each two matrices of 8 rows by 16 bytes (operand B of
 * wgmma, as it lies in shared memory), all tiles of 8 rows in a row. Packed weights: tiles [16 rows][16 columns] in the
 * order of operand A, 512 bytes each, all tiles of 16 rows in a row; of codes of 8 or 4 bits 256 or 128 bytes each, in
 * the same order, and their scales apart (weights.cuh). fp32: both plain row-major. K is padded with zeros to a
 * multiple of 16.
 *
 * Order of summation of every product: k is cut by the matrix's shape alone (16 slices, four quarters; linear.cu),
 * never by the number of rows, so a row's result is the same to the bit in any batch. Products of prompts
 * (prompt_linear.cu) have another order, one sum over all of k, and the same law.
 */
#ifndef CUDA_KERNELS_H
#define CUDA_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum cuda_dtype { CUDA_F32, CUDA_F16, CUDA_BF16 };
/* How weights are kept: as dtype's numbers, or as codes of 8 or 4 bits (cuda_codes_bytes). */
enum cuda_format { CUDA_STORED, CUDA_FP8, CUDA_INT8, CUDA_INT4 };
enum { CUDA_GROUP = 128 };

struct cuda_matrix {
    void *data;
    uint32_t rows, cols;   /* of the weight */
    enum cuda_dtype dtype; /* of the products' operands */
    bool whole;            /* its reader adds no partial products */
    enum cuda_format format;
    bool grouped;     /* of codes: a scale for CUDA_GROUP columns of a row each; else one a row */
    uint32_t *scales; /* of codes */
};
static inline uint32_t cuda_pad16(uint32_t n) { return (n + 15) / 16 * 16; }
/* Bytes of a packed matrix, of packed activations for n_rows rows. */
size_t cuda_matrix_bytes(uint32_t rows, uint32_t cols, enum cuda_dtype dtype);
size_t cuda_activation_bytes(uint32_t n_rows, uint32_t cols, enum cuda_dtype dtype);
/* Of a matrix of codes, by its rows, cols, format and grouped: its data and its scales, which are zeroed before they
 * are filled: what stays zero is a weight of 0. */
size_t cuda_codes_bytes(const struct cuda_matrix *m);
size_t cuda_scales_bytes(const struct cuda_matrix *m);

/* What a step's rows are; device memory. A padding row has slot = n_slots (a slot that nobody owns) and pos 0; what
 * kernels give for it is nothing in particular, as those that read S or the window may leave it out. */
struct cuda_rows {
    const int32_t *tok, *slot;        /* [n_rows] */
    const int64_t *pos;               /* [n_rows] */
    const int32_t *seg_first, *seg_n; /* [n_segs]: rows of one session, in order */
    const uint32_t *deferred; /* [n_rows], where the step defers (else NULL): how many of the slot's tokens S does not
                               * hold yet, and CUDA_WRITE_BACK if it takes them and this one now. In a step with drafts,
                               * of a session's first row: how many, and CUDA_LATE_SECOND */
    const int32_t *lead; /* [n_rows] in a step with drafts (else NULL): rows of its session before it in the step */
};
/* Most tokens of a slot that S does not hold where plain steps defer: S is written once in so many and one. */
enum { CUDA_DEFERRED = 3, CUDA_WRITE_BACK = 1 << 8 };
/* Drafts behind a token; those that were right are as many tokens that S does not hold. Their k and alpha have two
 * places, as one block writes them while others read those before: CUDA_LATE_SECOND says that these are in the second,
 * so the step's own go to the first. */
enum { CUDA_DRAFTS = 7, CUDA_LATE_SECOND = 1 << 9 };

/* Sizes and the slot pool, by value. Strides in elements. F: rounded up to 16, with weights of zero: so every kernel
 * writes all columns that the product of the FFN reads, of its rows and in each step. A column that nobody wrote and
 * that a weight of zero meets is a NaN as soon as it holds one. */
struct cuda_shape {
    uint32_t D, E, M, R, K, H, Hk, Hv, P, F, V, visible, rot_dim, ring_keys;
    uint32_t Ep;        /* E padded to 32: width of a, z, s, o */
    uint32_t conv_ring; /* inputs that a slot keeps of the convolution: K, and room for drafts, whose inputs may turn
                         * out to be none */
    bool rot_interleaved, qk_norm;
    float norm_eps, k_eps, qk_norm_eps;
    enum cuda_dtype dtype;      /* activations, conv tails */
    enum cuda_format window;    /* keys and values: CUDA_STORED, as dtype; or CUDA_FP8, where it is 16 bit */
    float *S;                   /* [n_slots + 1][L][Ep / 32][M][32] */
    void *conv, *keys, *values; /* [n_slots + 1][L]: [conv_ring][Ep]; [ring_keys][Hk P]; [ring_keys][Hv P] */
    uint32_t n_slots;
    size_t S_slot, conv_slot, keys_slot, values_slot, S_layer, conv_layer, keys_layer, values_layer;
    float *deferred; /* [n_slots + 1][L], cuda_lay_out_deferred: of a token u [Ep], k with i, alpha (M padded to 4
                      * each), and a second k, alpha where there are drafts */
    uint32_t
        *n_deferred; /* [n_slots]: how many plain steps have left, the same in all layers; NULL: these defer none */
    size_t deferred_slot, deferred_layer, deferred_token;
};
/* The places of deferred tokens, for these sizes: CUDA_DRAFTS with a second k, alpha; or what plain steps use of them,
 * the first CUDA_DEFERRED and no second; or none, where these do not defer either. */
static inline void cuda_lay_out_deferred(struct cuda_shape *s, uint32_t n_layers, bool drafts, bool plain) {
    s->deferred_token = s->Ep + (size_t)(drafts ? 4 : 2) * ((s->M + 3) / 4 * 4);
    s->deferred_layer = (drafts ? CUDA_DRAFTS : plain ? CUDA_DEFERRED : 0) * s->deferred_token;
    s->deferred_slot = n_layers * s->deferred_layer;
}

/* Where rows of a weight go in the packed matrix: as they are, or, of two halves taken by eights, one after the other
 * (a2 and g2 of W_f1, so that 16 outputs hold pairs), the first or the second. */
enum cuda_pack { CUDA_PACK_ROWS, CUDA_PACK_FIRST_EIGHTS, CUDA_PACK_SECOND_EIGHTS };
/* Rows of a weight, row-major on the device in their own dtype, -> rows [row0, row0 + rows), as `pack` places them, of
 * dst (zeroed before), packed. */
void k_pack(const void *src, enum cuda_dtype src_dtype, uint32_t row0, uint32_t rows, uint32_t cols,
            enum cuda_pack pack, const struct cuda_matrix *dst, void *stream);
/* k_pack of codes (16-bit dtypes only), on the device: codes [rows][cols of dst], one a byte, scales [rows][groups],
 * zeros [rows][groups] or NULL (int4: 8). fp8: e4m3; int8: -127 .. 127; int4: 0 .. 15. A weight becomes the operand
 * round(round(scale) * (code - zero)), both rounded to dtype: every product has the bits of one whose weights are
 * stored so. Scales below 64 (fp8 in bf16: 128) in size. */
void k_pack_codes(const uint8_t *codes, const float *scales, const uint8_t *zeros, uint32_t row0, uint32_t rows,
                  enum cuda_pack pack, const struct cuda_matrix *dst, void *stream);
/* Partial products that their reader adds in order. */
struct cuda_parts {
    const float *at; /* [n][n_rows][columns] */
    uint32_t n;      /* 0: none */
    size_t stride;   /* floats from one to the next */
};

struct cuda_embed {
    const struct cuda_matrix *w; /* [V][D] */
    struct cuda_rows rows;
    uint32_t n_rows;
    float scale;
    float *x;               /* [n_rows][D] */
    const double *inv_freq; /* [half] */
    uint32_t half;          /* of the dims that are rotated */
    float *rope;            /* [n_rows][half][2]: cosine and sine of pos * inv_freq, in double until then */
};
/* x[r] = embedding of tok[r] * scale. Bytes: 2 D a row. The kernels after it may read the step's rows before their
 * inputs are ready. */
void k_embed(const struct cuda_embed *e, void *stream);
/* Decode steps of up to so many rows may have kernels of their own; a row's bits are the same in all. */
enum { CUDA_FEW_ROWS = 16, CUDA_ONE_LAUNCH_ROWS = 8 };
/* Partial sums of squares that a row of D columns leaves for its norm: of 16 columns each, above CUDA_FEW_ROWS rows of
 * 64 (their reader does not wait for more than a word or two a lane). */
static inline uint32_t cuda_square_sums(uint32_t n_rows, uint32_t D) {
    const uint32_t columns = n_rows <= CUDA_FEW_ROWS ? 16 : 64;
    return (D + columns - 1) / columns;
}
/* A norm whose scale a product's reader applies: 1 / sqrt(a row's sum of squares / n + eps). */
struct cuda_row_sums {
    const float *squares; /* [n_rows][n_sums], partial sums; NULL: no norm, the scale is 1 */
    uint32_t n_sums, n;
    float eps;
};

struct cuda_add_norm {
    uint32_t n_rows, n;        /* n: columns, up to CUDA_NORM_COLUMNS */
    enum cuda_dtype dtype;     /* of act */
    const float *base;         /* [n_rows][n] */
    struct cuda_parts partial; /* of n columns */
    struct cuda_row_sums sums; /* of the partial products */
    const float *w;            /* [n], with act */
    float eps;
    float *out;         /* [n_rows][n], may be base; NULL: y is not kept */
    void *act;          /* packed; NULL: no norm */
    float *row_scale;   /* [n_rows]; NULL: act has its scale. Else act = y * w (fp16: / 16), and its readers apply it */
    float *squares;     /* [n_rows][n_squares], sums of squares of y; NULL: none */
    uint32_t n_squares; /* of 16 columns each, or of 64 */
};
enum { CUDA_NORM_COLUMNS = 8192 };
/* E8, E9, E10's sums and norms, one block a row: y = base + scale * sum of the partial products; out = y; act =
 * RMSNorm(y; w). */
void k_add_norm(const struct cuda_add_norm *a, void *stream);
/* Partial products that k_linear leaves for its reader to add in order: 1 or 4, the same bits (fp32: by the matrix). */
uint32_t cuda_linear_splits(const struct cuda_matrix *w, uint32_t n_rows);
struct cuda_product {
    const struct cuda_matrix *w;
    const void *x; /* [n_rows][cols of w] packed */
    float *y;      /* [splits][n_rows][ldy] */
    size_t ldy;    /* at least rows of w */
    size_t stride; /* floats from a partial product to the next */
};
/* y[split][r][o] = partial products of W and x. Twin ref_linear. */
void k_linear(const struct cuda_product *p, uint32_t n_rows, void *stream);
/* Two products of the same number of columns, both whole or both not, as one launch. */
void k_linear_pair(const struct cuda_product *one, const struct cuda_product *two, uint32_t n_rows, void *stream);
/* What E2 takes and gives, in all its forms; each says below what it leaves out. */
struct cuda_conv {
    struct cuda_shape shape; /* conv: the tails */
    uint32_t layer;
    struct cuda_rows rows;
    uint32_t n_rows;
    const float *w, *bias;  /* [K][Ep], [E] */
    float *az;              /* [n_rows][2 Ep]: a, z. Read; k_fused_conv writes them */
    const float *row_scale; /* [n_rows], of az; NULL: it is scaled */
    float *s;               /* [n_rows][Ep] */
    void *s_act, *a_act;    /* [n_rows][E] packed: the same as operands, and a */
    void *z_act;            /* the same of z */
};
/* E2 for each segment and channel; the conv tail moves on. No z_act. */
void k_conv(const struct cuda_conv *c, uint32_t n_segs, void *stream);
/* What E3 and E5 are made of: partial products, and biases. */
struct cuda_partials {
    struct cuda_parts in;   /* of 4 M columns: q, k, gate and tau before their activations */
    struct cuda_parts c0;   /* of R columns */
    const float *g_b, *t_b; /* [M] */
};
struct cuda_gates {
    float *q, *k, *log_alpha; /* [n_rows][M]; k with i */
    float *c0;                /* [n_rows][R] */
};
/* E3, E5. Twin ref_gates. */
void k_gates(const struct cuda_shape *shape, const struct cuda_partials *in, const struct cuda_gates *out,
             uint32_t n_rows, void *stream);
/* What E4, E6, E7 and the gate of E8 take and give, in all their forms. */
struct cuda_state {
    struct cuda_shape shape; /* S, and what is deferred */
    uint32_t layer;
    struct cuda_rows rows;
    const float *c1, *c1_b;           /* W_c1 [E][R], of single tokens transposed [R][Ep]; its bias [E] */
    const float *az, *row_scale;      /* [n_rows][2 Ep]: a, z; their scale [n_rows], NULL: 1 */
    const float *s;                   /* [n_rows][Ep] */
    const float *residual, *act_norm; /* [E] of E8 */
    float *sums;                      /* [n_rows][Ep / 32]: partial sums of o^2 */
    void *act;                        /* [n_rows][E] packed: o * act_norm */
};
/* E4, E6, E7 and the gate of E8 for each segment and 32 channels: u = sigmoid(W_c1 c0 + b) a; S, token by token in
 * registers; o = (o + residual s) SiLU(z). The scale of o's norm is applied after W_o. Bytes: S read and written once a
 * segment. Twin ref_gla. */
void k_gla(const struct cuda_state *io, const struct cuda_gates *gates, uint32_t n_segs, void *stream);
/* k_gates and k_gla of a step of single tokens (state.cu), to the same bits. Bytes: S read and written once. Where
 * rows.deferred (a step that defers), S is written only for rows that say so: of the others u, k and alpha are kept,
 * and applied in registers until S takes them, in the order of the tokens, so that no bit changes. */
void k_gla_gates(const struct cuda_state *io, const struct cuda_partials *in, uint32_t n_rows, void *stream);
/* Whether k_gla_gates of n_rows rows leaves tokens deferred. */
bool cuda_state_defers(const struct cuda_shape *shape, uint32_t n_rows);
/* k_gla_gates of a step with drafts: each of n_segs segments has 0 to CUDA_DRAFTS + 1 rows of a session, in order, and
 * each row the bits of a step of its own. S takes what is late (rows.deferred) and the segment's first token; of the
 * others, which may turn out wrong, u, k and alpha are kept (shape.deferred), in registers S has them. Bytes: S read
 * and written once a segment. Twin ref_gla; to the bits of k_gla_gates, a row a step. */
void k_gla_drafts(const struct cuda_state *io, const struct cuda_partials *in, uint32_t n_segs, void *stream);
/* A slot whose S takes what it lacks: n_late accepted drafts, or (0) as many tokens as n_deferred says. */
struct cuda_late {
    uint32_t slot, n_late;
    bool second; /* k and alpha of the drafts are in their second place */
};
/* S of these slots takes the tokens that are deferred, in all n_layers layers: S as if there had never been one. slots:
 * in the host's memory, each slot once, free again when this returns. Bytes: a slot's S read and written, if it has
 * any.
 */
void k_write_back(const struct cuda_shape *shape, uint32_t n_layers, const struct cuda_late *slots, uint32_t n,
                  void *stream);

/* ---- prompts: E2, E4, E6, E7 with tokens in parallel (scan.cu) ----
 * Rows of a step in segments of any length and position. 16 bit only. A piece of a segment between two multiples of 64
 * positions takes the chunkwise form, but a piece of one token the arithmetic of k_conv and k_gla_gates: neither
 * neighbours nor a split at multiples of 64 change a bit. Where cuda_scan_packed, a, z and s are rounded to 16 bits
 * first. */

/* Whether this device and these sizes have k_scan; once before, it also asks for the shared memory. */
bool cuda_scan_prepare(const struct cuda_shape *shape);
/* Whether k_scan reads a, z and s packed, in 16 bits, and neither az nor s (scan_wide.cu). */
bool cuda_scan_packed(const struct cuda_shape *shape);
/* Bytes of `work` for n_rows rows. */
size_t cuda_scan_bytes(const struct cuda_shape *shape, uint32_t n_rows);
/* k_conv with the rows in parallel, but the conv tails stay as they were: k_scan moves them on. A slot has at most one
 * segment. s is written where not cuda_scan_packed, z_act where cuda_scan_packed. Bytes a row: 4 E read, 8 E written
 * (packed: 8 E, 6 E). */
void k_prompt_conv(const struct cuda_conv *c, void *stream);
/* k_prompt_conv after k_prompt_az, where cuda_scan_packed: a_act is read, s_act written, nothing else. Bytes a row: 2 E
 * read, 2 E written. */
void k_packed_conv(const struct cuda_conv *c, void *stream);
struct cuda_scan {
    struct cuda_state io; /* az and s: where not cuda_scan_packed */
    struct cuda_gates gates;
    const void *s_act;                 /* [n_rows][E] packed; may be io.act */
    const void *a_act, *z_act;         /* the same, where cuda_scan_packed: whole tiles of eight rows are read */
    uint32_t n_rows, n_segs, most_tok; /* most_tok: of a segment */
    void *work;                        /* cuda_scan_bytes */
};
/* k_gla in the chunkwise form, after the convolution and k_gates; products in tf32 with fp32 sums, S carried on in
 * fp32. S and the conv tails of the segments' slots move on. Bytes a row: 6 E read (not packed: 10 E), 2 E written; S
 * read and written once a segment. Twin ref_gla. */
void k_scan(const struct cuda_scan *x, void *stream);
/* Queries, keys and values as W_qkv's product leaves them, and what rotates them. */
struct cuda_heads {
    struct cuda_parts qkv;        /* of (H + Hk + Hv) P columns */
    const float *row_scale;       /* [n_rows], of qkv; NULL: 1 */
    const float *rope;            /* [n_rows][rot_dim / 2][2]: k_embed's */
    const float *q_norm, *k_norm; /* [P], where shape.qk_norm */
};
/* What E9 of some rows takes and gives. */
struct cuda_window {
    struct cuda_shape shape; /* keys, values: the rings */
    uint32_t layer;
    struct cuda_rows rows;
    const int32_t *list; /* [n_list] rows; NULL (k_decode_window, k_draft_window): rows 0 .. n_list */
    uint32_t n_list;
    struct cuda_heads heads; /* not of k_window and k_window_combine */
    float *q;                /* [n_rows][H P]: what k_rope leaves for k_window */
    float *part;             /* [n_list][cuda_window_blocks][H P]: partial results, */
    float *part_ml;          /* [n_list][cuda_window_blocks][H][2]: and their (maximum, sum) */
    void *act;               /* [n_rows][H P] packed */
};
/* q/k norm (option) and rotary: heads -> q; key and value into the ring. */
void k_rope(const struct cuda_window *a, void *stream);
/* E9 over blocks of 32 keys, after k_rope: partial results. Bytes: values once, keys once for four heads. P is a
 * multiple of 8 (fp32: 4). */
uint32_t cuda_window_blocks(const struct cuda_shape *shape);
/* Once before k_window: asks the device for the shared memory that its blocks need. False: it has less. */
bool cuda_window_prepare(const struct cuda_shape *shape);
void k_window(const struct cuda_window *a, void *stream);
/* Puts the blocks together, in order: act. Twin ref_window. */
void k_window_combine(const struct cuda_window *a, void *stream);
/* k_rope, k_window and k_window_combine of rows that are the only ones of their session in the list, which reads the
 * window at the bandwidth of memory: 16 bit, one key head, H = Hv a multiple of 4, P = 64 or 128. single: they are the
 * only ones of the step, so that all keys but their own may be read before the inputs are ready; and rope, if the
 * list is NULL and has up to 8 rows. Bytes: values once, keys once for four heads or two (most of it from the cache).
 * Few rows and many on Hopper take kernels of their own (swa_decode_near.cu, swa_decode_many.cu), to the same bits. */
bool cuda_decode_window_possible(const struct cuda_shape *shape);
/* Whether a window in CUDA_FP8 has all kernels that it needs: k_decode_window, k_draft_window, k_prompt_window. */
bool cuda_window8_possible(const struct cuda_shape *shape);
void k_decode_window(const struct cuda_window *a, bool single, void *stream);
/* k_decode_window of a step with drafts, to the same bits, a row a step: rows list[0 .. n_list) of the step, in order,
 * and each session's behind one another (rows.lead); of a session whose rows are more than the list has, those before
 * them come in a call before. Bytes: values once a session, keys once for two heads (most of it from the cache). Twin
 * ref_window. */
enum { CUDA_DRAFT_WINDOW_ROWS = 256 }; /* at most so many */
void k_draft_window(const struct cuda_window *a, void *stream);
struct cuda_ffn_act {
    uint32_t n_rows, F;
    enum cuda_dtype dtype;
    struct cuda_parts in;   /* of 2 F8 columns: a2, g2 by eights, F8 = F rounded up to 8 */
    const float *row_scale; /* [n_rows], of `in`; NULL: 1 */
    void *act;              /* [n_rows][F] packed */
};
/* E10: act = SiLU(g2) a2. */
void k_ffn_act(const struct cuda_ffn_act *f, void *stream);
/* x = RMSNorm(x; w) in place, fp32 [n_rows][n]: the embedding's norm. */
void k_norm_rows(float *x, const float *w, float eps, uint32_t n_rows, uint32_t n, void *stream);
/* dst[i] = rows list[i] of src [.][n]. */
void k_gather_rows(const float *src, const int32_t *list, uint32_t n_list, uint32_t n, float *dst, void *stream);

/* ---- attention of prompts (swa_prompt.cu) ---- */

/* Rows [row, row + n) of a step: one session's, in order. */
struct cuda_prompt {
    int32_t row, n;
};
/* Prompts of a call at most, where the window is CUDA_FP8: the workspace has a copy in 16 bits of what each sees. */
enum { CUDA_WINDOW_COPIES = 8 };
/* Queries: the prompt's next 64 rows from `row` on, or 128. */
struct cuda_prompt_tile {
    struct cuda_prompt prompt;
    int32_t row, copy; /* copy: which of the workspace's is the prompt's */
};
/* What a step has of them, in device memory: first n_pairs of two tiles each, then n_single. */
struct cuda_prompts {
    const struct cuda_prompt_tile *tile;
    uint32_t n_pairs, n_single;
    bool keeps_last; /* some keys take the places of keys that the prompt sees */
    bool sees_old;   /* some prompt does not begin at position 0 */
};
/* Whether k_prompt_window knows this shape: 16 bit, P a multiple of 8 up to 256; any Hk, Hv. Asks the device for the
 * shared memory that its blocks need. */
bool cuda_prompt_window_possible(const struct cuda_shape *shape);
/* On the host: cuts the prompts into tiles, those with most keys first. pos [rows]: of the step's rows. tile: room for
 * as many as the prompts have rows. Of a window in CUDA_FP8 up to CUDA_WINDOW_COPIES prompts. Returned: the counts,
 * with `tile` as its pointer. Pairs or not: no bit depends on it. */
struct cuda_prompts cuda_prompt_tiles(const struct cuda_shape *shape, const struct cuda_prompt *prompt,
                                      uint32_t n_prompts, const int64_t *pos, struct cuda_prompt_tile *tile);
/* Bytes of k_prompt_window's workspace for a step of n_rows: queries, keys and values, k_prompt_places', and copies. */
size_t cuda_prompt_window_bytes(const struct cuda_shape *shape, uint32_t n_rows);
struct cuda_prompt_window {
    struct cuda_shape shape; /* keys, values: the rings */
    uint32_t layer;
    struct cuda_rows rows;
    uint32_t n_rows; /* of the step */
    struct cuda_prompts prompts;
    struct cuda_heads heads; /* qkv.at NULL: k_prompt_heads has left them in `work` */
    void *work;              /* cuda_prompt_window_bytes */
    void *act;               /* [n_rows][H P] packed: the prompts' rows of it are written */
};
/* E9 of prompts of any length at any positions, at most one of a session: q/k norm, rotary, attention over the ring
 * (positions before the prompt's first row) and the step's own rows, then the keys and values of the last ring_keys
 * rows of each prompt go into the ring. Queries, keys, values and weights are 16 bit, scores and sums fp32. Keys are
 * taken in tiles of absolute positions, so a row's bits depend neither on its neighbours nor on where the prompt was
 * split. Rows of the session before and after its prompt, in the same step, may take k_decode_window before and after
 * this. FLOP: 4 H P a visible key. Bytes: keys and values once a tile of queries, most of it from the cache. Twin
 * ref_window. */
void k_prompt_window(const struct cuda_prompt_window *a, void *stream);
/* Before k_prompt_heads' first call in a step, once, where all rows of the step
 * are prompts': where their keys and values go in the rings. Bytes: 20 a row. */
void k_prompt_places(const struct cuda_shape *shape, const struct cuda_rows *rows, uint32_t n_rows,
                     const struct cuda_prompts *prompts, void *work, void *stream);

/* ---- decode steps, one token a session (decode.cu, wide.cu) ---- */

/* An RMSNorm whose scale comes after the product: act = x * w packed (fp16: / 16), squares [n_rows][cuda_square_sums]
 * of x. squares NULL: act is normed already. */
struct cuda_normed {
    const void *act;
    const float *squares;
    float eps;
    uint32_t D;
};
/* Whether this device and these sizes have them: compute capability 9.x, 16 bit, D and E multiples of 16. */
bool cuda_fused_possible(const struct cuda_shape *shape);
/* y[r][o] = W RMSNorm(x), whole sums, fp32 [n_rows][ldy]. Bytes: the weights once. Twin ref_linear after ref norm. */
void k_fused_linear(const struct cuda_matrix *w, const struct cuda_normed *in, uint32_t n_rows, float *y, size_t ldy,
                    void *stream);
/* k_fused_linear of W_fc with k_conv of its outputs: one token a session; or, with rows.lead, a token and its drafts,
 * whose older taps are the step's own. No z_act. */
void k_fused_conv(const struct cuda_conv *c, const struct cuda_matrix *w, const struct cuda_normed *in, void *stream);
/* k_fused_linear of W_f1 with k_ffn_act of its outputs: act [n_rows][F] packed. */
void k_fused_ffn(const struct cuda_matrix *w, const struct cuda_normed *in, uint32_t n_rows, void *act, void *stream);
struct cuda_residual {
    const struct cuda_matrix *w;
    const void *x;             /* [n_rows][cols of w] packed */
    struct cuda_row_sums sums; /* of the norm before the product, whose scale comes after it */
    const float *base;         /* [n_rows][rows of w] */
    float *y;                  /* [n_rows][rows of w], may be base; NULL: y is not kept */
    const float *next_norm;    /* [rows of w]; NULL: neither act nor squares */
    void *act;                 /* [n_rows][rows of w] packed: y times next_norm, as cuda_normed has it */
    float *squares;            /* [n_rows][cuda_square_sums] of y */
};
/* y = base + scale * W x, as k_add_norm. */
void k_fused_residual(const struct cuda_residual *r, uint32_t n_rows, void *stream);
/* k_linear_pair of two small matrices, cuda_fused_pair_splits partial products each. */
static inline uint32_t cuda_fused_pair_splits(uint32_t n_rows) { return n_rows <= CUDA_FEW_ROWS ? 4 : 1; }
void k_fused_linear_pair(const struct cuda_product *one, const struct cuda_product *two, uint32_t n_rows, void *stream);
/* ---- a decode step as one launch (one_launch.cu) ---- */

/* A layer's weights: packed matrices and fp32 vectors as the kernels above take them (c1 [R][Ep], conv [K][Ep]); from
 * qkv and attn_norm on Rodimus+ alone. */
struct cuda_step_layer {
    const void *fc, *in, *c0, *out, *qkv, *ao, *f1, *f2;
    const float *mixer_norm, *conv, *conv_b, *g_b, *t_b, *c1, *c1_b, *residual, *act_norm;
    const float *attn_norm, *q_norm, *k_norm, *ffn_norm;
};
struct cuda_one_launch_step {
    struct cuda_shape shape; /* H = 0: without window and FFN */
    struct cuda_rows rows;
    uint32_t n_layers;
    const struct cuda_step_layer *layers; /* [n_layers], on the device */
    const float *norm_f, *x, *rope;       /* x [n_rows][D], rope: k_embed's */
    const void *head;                     /* packed */
    float *logits;                        /* [n_rows][V] */
    void *words;                          /* cuda_one_launch_bytes, zeroed before the first step */
    uint32_t *note;                       /* 4 words of the host's memory that the device reaches, or NULL */
};
/* Steps of 1, 2, 4 and 8 rows have one (of a window in CUDA_FP8: of 1). Whether this device and these sizes do:
 * dispatch.h; and whether its blocks are resident at once. */
bool cuda_one_launch_possible(const struct cuda_shape *shape, uint32_t n_layers, uint32_t n_rows, bool asked);
/* Of the words by which blocks talk. They hold epochs, so a step clears nothing; after CUDA_ONE_LAUNCH_STEPS steps they
 * are zeroed again. */
size_t cuda_one_launch_bytes(const struct cuda_shape *shape);
enum { CUDA_ONE_LAUNCH_STEPS = 1 << 20 };
/* From the rows' embeddings to their logits: the kernels k_add_norm, k_fused_* , k_gla_gates, k_decode_window of all
 * layers, the last norm and the head, to the same bits. Padding rows get no state and no window. Each block waits for
 * what others make; a wait without end (nine seconds) is a fault of the device, and note, if there is one, says where:
 * {1, layer * 16 + stage, block, warp}. Bytes: weights once; S read and written, window read, a row. No twin of its
 * own: the twins are those of the kernels, whose bits it has. */
void k_one_launch(const struct cuda_one_launch_step *step, uint32_t n_rows, void *stream);

/* k_conv of single tokens and k_linear_pair of W_in with its s and W_c0 with its a as one kernel, for more than 8 rows,
 * and for any up to CUDA_CONV_PAIR_ROWS in a step with drafts (rows.lead): az scaled; four partial products each.
 * Neither operand is packed, so s_act, a_act and the products' x are not there. Hopper, 16 bit, E a multiple of 16 up
 * to 4,096, K up to 4. */
enum { CUDA_CONV_PAIR_ROWS = 128 }; /* at most so many rows: of more, the kernels apart are as fast */
bool cuda_conv_pair_possible(const struct cuda_shape *shape);
/* Whether a step of so many rows takes it (dispatch.h). */
bool cuda_conv_pair_runs(const struct cuda_shape *shape, uint32_t n_rows, bool drafts);
void k_conv_pair(const struct cuda_conv *c, const struct cuda_product *in, const struct cuda_product *c0, void *stream);

/* ---- products of prompts (prompt_linear.cu) ----
 * k_fused_* with sums in an order of their own, which large tiles can afford: one over all of k. Where
 * cuda_fused_possible. Rows of fp32 begin on 16 bytes. act's rows up to the next multiple of 8 may be written. */

/* Partial sums of squares that a row of D columns leaves, of 64 each, whatever the number of rows. */
static inline uint32_t cuda_prompt_sums(uint32_t D) { return (D + 63) / 64; }
/* in->squares: [n_rows][cuda_prompt_sums], or NULL. FLOP: 2 rows columns n_rows. Twin ref_linear after ref norm. */
void k_prompt_linear(const struct cuda_matrix *w, const struct cuda_normed *in, uint32_t n_rows, float *y, size_t ldy,
                     void *stream);
/* W_fc of a model's E channels: a and z packed, each of E columns, from outputs 0 and half of W's on. */
void k_prompt_az(const struct cuda_matrix *w, const struct cuda_normed *in, uint32_t E, uint32_t n_rows, void *a_act,
                 void *z_act, void *stream);
/* q, k, v rotated, in 16 bits, in k_prompt_window's workspace, and in the rings what may go there before the attention
 * (k_prompt_places): to the bits of k_prompt_linear and then k_prompt_window. Bytes: a row's heads twice. */
bool cuda_prompt_heads_runs(const struct cuda_shape *shape, const struct cuda_matrix *w, uint32_t n_rows);
void k_prompt_heads(const struct cuda_shape *shape, uint32_t layer, const struct cuda_matrix *w,
                    const struct cuda_normed *in, uint32_t n_rows, const float *rope, void *work, void *stream);
void k_prompt_ffn(const struct cuda_matrix *w, const struct cuda_normed *in, uint32_t n_rows, void *act, void *stream);
/* squares: [n_rows][cuda_prompt_sums(rows of W)]. */
void k_prompt_residual(const struct cuda_residual *r, uint32_t n_rows, void *stream);

/* ---- operands of a library's products (plain.cu); fp32 is plain as it is ---- */

/* Whether the products of prompts are its, on this device and of this type (dispatch.h), if it is there. */
bool cuda_library_wanted(const struct cuda_shape *shape, bool forced);

/* to [rows of w, padded to 16][K padded to 16]: the 16-bit numbers that every kernel multiplies, whatever the format.
 * Bytes: the weights, and 2 a number. */
void k_plain_weights(const struct cuda_matrix *w, void *to, void *stream);
/* Packed activations of 16 bits to [n_rows][cols padded to 16]. Bytes: 4 a number. */
void k_plain_rows(const void *act, uint32_t n_rows, uint32_t cols, void *to, void *stream);

/* ---- sampling ---- */

/* CUDA_STEP_PARTS: a step has one or two parts; two steps are on their way. */
enum { CUDA_STEP_PARTS = 4, CUDA_MAX_TOP = 20, CUDA_ADMIT_IDS = 512, CUDA_SAMPLE_MAX_V = 2048 * 1024 };
enum { CUDA_TOKEN_NAN = 1, CUDA_TOKEN_FORBIDDEN, CUDA_TOKEN_INFINITE }; /* as enum sampler_status */

/* How a slot's tokens are chosen (engine/backend/sampler.h), and how far it is. */
struct cuda_sampling {
    uint64_t seed;
    float temperature, top_p, typical_p, repetition_penalty, frequency_penalty, presence_penalty;
    float min_logit; /* log(min_p) * temperature: how far below the largest logit min_p reaches; -INFINITY = no limit */
    int32_t top_k, n_logprobs, last; /* last: the token that the next step reads */
    uint32_t min_tokens, max_tokens, n_generated;
    bool biased, penalised, ended;
    /* Bit n, behind n drafts of a step: constrained: a mask holds, but for end ids, which may come if may_end. */
    uint32_t constrained, may_end;
};
/* What a row gave. logprob and the top ones as the slot's n_logprobs asks. */
struct cuda_token {
    int32_t id;
    float logprob;
    /* masked: the row's slot had ended, or waited; the rest is not written. waits: the token is one to wait behind */
    uint8_t status, ended, masked, waits, n_top;
    int32_t top_id[CUDA_MAX_TOP];
    float top_logprob[CUDA_MAX_TOP];
};
/* Of a piece of a row: largest logits with their ids, after and before adjustment; smallest one; sum of exp(raw - its
 * largest); whether one is not finite. */
struct cuda_piece {
    unsigned long long best, raw_best;
    float low, raw_sum;
    uint32_t broken;
    uint32_t drawn; /* of a row's first piece, in a step with drafts: its token, and above it its status */
};
struct cuda_sampler {               /* by value */
    uint32_t V, n_slots, mask_rows; /* mask_rows: 1, or 1 + CUDA_DRAFTS where steps have drafts */
    struct cuda_sampling *slots;    /* [n_slots] */
    uint32_t *marks;                /* [n_slots][V]: end id, seen, wait, how often generated */
    uint32_t *masks;                /* [n_slots][mask_rows][CUDA_MASK_WORDS(V)], where constrained */
    float *bias;                    /* [n_slots][V], read where the slot is biased */
    struct cuda_piece *pieces;      /* [most rows][cuda_sample_pieces(V)] */
    uint32_t *n_parts;              /* of steps, so far: which block of rows and which results are this one's */
    struct cuda_token *tokens[CUDA_STEP_PARTS]; /* [most rows], in the host's memory */
};
/* A step's rows with the lists that go with them. tok -1: the slot's last token. */
struct cuda_step {
    struct cuda_rows rows;
    const int32_t *list, *out;
};
/* What a slot may say behind so many drafts from now on, in pinned memory; words NULL: everything. */
struct cuda_mask {
    uint32_t slot, n_drafts;
    bool may_end;
    const uint32_t *words; /* [CUDA_MASK_WORDS(V)] a bit for each id */
};
#define CUDA_MASK_WORDS(V) (((V) + 63) / 64 * 2) /* in 64-bit words of the host's */
/* A slot's sampling, or (first = false) more of its ids; pinned memory. */
struct cuda_admission {
    struct cuda_sampling sampling;
    uint32_t slot, n_end_ids, n_wait_ids, n_bias;
    bool first;
    int32_t end_ids[CUDA_ADMIT_IDS], wait_ids[CUDA_ADMIT_IDS], bias_ids[CUDA_ADMIT_IDS];
    float bias[CUDA_ADMIT_IDS];
};
uint32_t cuda_sample_pieces(uint32_t V);
/* The slot's marks were zeroed before, and its bias if it has one. Bias of one id is added in order. */
void k_admit(const struct cuda_sampler *s, const struct cuda_admission *host, void *stream);
/* n masks, of a slot behind a number of drafts once, from pinned memory (masks, and their words) to the device, before
 * a step that draws under them. Bytes over PCIe: V / 8 a mask. */
void k_masks(const struct cuda_sampler *s, const struct cuda_mask *masks, uint32_t n, void *stream);
/* First kernel of a step's part: its rows from pinned memory to the device. A row that reads its slot's last token
 * works in the padding slot if the slot has ended or waits; other tokens are marked as seen where penalties need it.
 * The host may write them again when the step is done. Bytes over PCIe: 32 a row. n_deferred: the
 * shape's, where the step defers (else NULL); device->rows.deferred is written: each slot's S is written back at every
 * (CUDA_DEFERRED + 1)th position, in each step those of about as many slots. */
void k_step_rows(const struct cuda_sampler *s, const struct cuda_step host[CUDA_STEP_PARTS],
                 const struct cuda_step *device, uint32_t n_rows, uint32_t n_segs, uint32_t n_out, uint32_t *n_deferred,
                 void *stream);
/* k_step_rows of a step with drafts: deferred and lead come from the host, too, but a slot in which plain steps left
 * tokens (n_deferred, which may be NULL) has these, and none after the step. Drafts are not marked as seen. n_segs is
 * n_rows. */
void k_step_draft_rows(const struct cuda_sampler *s, const struct cuda_step host[CUDA_STEP_PARTS],
                       const struct cuda_step *device, uint32_t n_rows, uint32_t *n_deferred, void *stream);
/* A token for each row out[0..n_out) with logits [n_out][V]; results go to s->tokens of this part. Masses are integers,
 * 2^40 for the largest logit, so sums have no order; log-probabilities are summed by pieces of 2,048 in order. Bytes:
 * logits once (greedy), 2 times (a draw over all), 4 times (top_p or top_k). Twin engine/backend/sampler.c, which
 * rounds masses to fp32. V up to CUDA_SAMPLE_MAX_V. draws: a temperature above 0 is among them, so several blocks may
 * share a row (a hint: the tokens are the same). */
void k_sample(const struct cuda_sampler *s, const struct cuda_rows *rows, const int32_t *out, uint32_t n_out,
              bool draws, const float *logits, void *stream);

/* k_sample of a step with drafts: of rows out[0 .. n_out), which are all rows 0 .. n_out, a segment's each as if those
 * before it had been drawn in steps of their own and had been its tokens. A row behind one that gave another token than
 * the row's, or an end, is masked; behind one to wait for, the next row goes on, as it names it. */
void k_sample_drafts(const struct cuda_sampler *s, const struct cuda_rows *rows, const int32_t *out, uint32_t n_out,
                     bool draws, const float *logits, void *stream);

/* From here on what this thread launches runs on so many multiprocessors, a device part, because its streams are those
 * of such a part; 0: on all. No bit of a result depends on it. */
void cuda_launch_on(uint32_t processors);

/* A kernel that traps, for tests of a fault: nothing runs in this process's context afterwards. */
void k_fault(void *stream);

/* One line a usable GPU; returns the count written. */
size_t cuda_devices(char (*lines)[128], size_t max_lines);

#ifdef __cplusplus
}
#endif
#endif
