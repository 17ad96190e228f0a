/* model.h - a checkpoint: its sizes and where each tensor's bytes are.
 *
 * Ownership: a model owns the mapped files (or the synthetic weights); weights point into them.
 * Threads: immutable after open. Invariant: every weight that dims call for is present with the shape that dims give.
 */
#ifndef MODEL_H
#define MODEL_H

#include "weight_quant.h"

enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_FP8 /* e4m3; it and int8: of a window alone */, DTYPE_INT8 };
enum { N_DTYPES = DTYPE_INT8 + 1 };
size_t dtype_bytes(enum dtype dtype);
const char *dtype_name(enum dtype dtype); /* "fp32", "fp16", "bf16", "fp8", "int8" */
/* The name in a file of tensors: "F32", "F16", "BF16"; false: no type that weights have. */
bool dtype_by_name(const char *name, enum dtype *out);

/* The letters: kernels/README.md, "Equations". How they come from config.json: README.md, "A checkpoint". */
struct model_dims {
    bool plus; /* Rodimus+: attention and FFN after the mixer */
    uint32_t D, L, E, M, R, K, V;
    uint32_t H, Hk, Hv, P, F; /* 0 without plus */
    uint32_t visible;         /* keys a token sees, itself included; 0 without plus */
    uint32_t rot_dim;         /* rotated leading dims of a head, 0 = none */
    bool rot_interleaved, qk_norm;
    double rot_base;
    float norm_eps, k_eps, qk_norm_eps;
    bool scale_embed, norm_embed, tied;
    int32_t bos_id, eos_id; /* -1 = none */
};

/* A matrix [rows, cols], row-major, as one or two row-stacked pieces: FLA files store W_fc, W_in, W_m and the FFN's fc
 * as two tensors (first piece = first rows). A vector has rows = 1 (FLA's two-piece gate bias: 2 rows of M, the same
 * order); conv is [E, K]. data may lie at an odd address: read it with memcpy or weight_part_to_f32. */
struct weight_part {
    const void *data;
    enum dtype dtype;
    uint32_t rows;
    const struct weight_delta *delta; /* NULL: the weight is what is stored */
    const struct weight_codes *codes; /* NULL: data are numbers of dtype. Else the part is read as such all the same */
};
/* What an adapter adds: scale * B A with A [rank, cols] and B [rows, rank], summed in fp32, and the sum with the stored
 * value is rounded once to its type. Readers of a weight go through the functions below. */
struct weight_delta {
    const void *a, *b; /* in the adapter's mapped file */
    enum dtype a_dtype, b_dtype;
    uint32_t rank, cols;
    float scale;
};
/* What the files of other programs keep of a quantised part [rows, cols]. */
enum weight_packing {
    PACKED_BYTES, /* a code a byte, [rows, cols] */
    PACKED_ROWS,  /* 4-bit codes, in words of 8 columns, the lowest bits first: [rows, cols / 8] (compressed-tensors) */
    PACKED_DOWN,  /* the same words, [cols / 8, rows] (GPTQ) */
    PACKED_ACROSS, /* words of 8 rows, in the order of bits 0 2 4 6 1 3 5 7: [cols, rows / 8] (AWQ) */
};
struct weight_codes {
    struct weight_quant quant;
    enum weight_packing packing;
    const void *codes, *scales, *zeros; /* in the mapped file; zeros NULL without quant.zeros */
    enum dtype scale_dtype;
    uint32_t rows, cols;
    uint32_t scale_rows; /* rows that share a scale */
    bool down;           /* scales are [groups, rows], not [rows, groups]; zeros are packed along rows in both */
    bool offset;         /* bytes of int8 are stored with 128 added */
    bool zero_shift;     /* zero points are stored less 1: WEIGHT_INT4_ONES taken off a word of eight */
};
struct weight {
    struct weight_part part[2];
    uint32_t n_parts, rows, cols;
    bool quantisable; /* README.md, "Fewer bits" */
};

struct model_layer {
    struct weight mixer_norm, fc, conv, conv_b, residual, in_proj, c0, c1, c1_b, mem_gate, mem_gate_b, act_norm,
        out_proj;
    struct weight attn_norm, q, k, v, q_norm, k_norm, ao, ffn_norm, f1, f2; /* n_parts = 0 where absent */
};

#define MODEL_FINGERPRINT_BYTES 16

/* For inspect: every tensor of the files, sorted by name. dtype as the file spells it ("BF16"); used: dims call for it.
 */
struct model_tensor {
    const char *name, *file, *dtype;
    const void *data; /* n_bytes, in the mapped file */
    uint64_t n_bytes, shape[8];
    uint32_t n_dims;
    bool used;
};

/* End tokens, no id twice, by the file that names them. */
enum { MODEL_MAX_EOS = 8 /* of a file */, MODEL_MAX_ENDS = 2 * MODEL_MAX_EOS + 1, MODEL_EOS_UNKNOWN = -2 };
enum model_ends_source { MODEL_ENDS_CONFIG, MODEL_ENDS_GENERATION, MODEL_ENDS_TOKENIZER, MODEL_N_ENDS };
struct model_ends {
    int32_t ids[MODEL_MAX_EOS];
    uint32_t n;
};

struct model {
    struct model_dims dims;
    char name[128], layout[16];                       /* layout: "published", "fla", "synthetic" */
    char adapter[128];                                /* the name of its directory; "" = none */
    struct weight embed, embed_norm, norm_f, lm_head; /* lm_head = embed if tied */
    struct model_layer *layers;                       /* [L] */
    struct model_tensor *tensors;
    size_t n_tensors;
    uint64_t n_params, weight_bytes; /* a tied head counted once */
    enum dtype weight_dtype;         /* of the projections (layer 0's W_fc) */
    enum weight_format weights;      /* asked for: weight_quant_of says what it means for a weight */
    int64_t created_unix_s;
    /* XXH3 of config.json, tokenizer.json and every tensor (name, type, shape, bytes) in order of name, and of the same
     * of an adapter: states of this model carry it. How tensors are spread over shards does not count. A synthetic
     * model's: of its name and seed. */
    uint8_t fingerprint[MODEL_FINGERPRINT_BYTES];
    struct rod_sampling sampling; /* of a request that says nothing */
    struct model_ends ends[MODEL_N_ENDS];
    int32_t eos_ids[MODEL_MAX_ENDS];
    uint32_t n_eos_ids; /* all of them, config.json's first */
    char warnings[12][256];
    uint32_t n_warnings; /* "config.json says float32, the weights are bf16" ... */
    void *priv;
};

/* dir: config.json, model.safetensors or model.safetensors.index.json with its shards, optional generation_config.json
 * (the options of ROD_SAMPLING that are read there become defaults; do_sample is not looked at, as in vLLM). Errors
 * name the key, or tensor and file. adapter: merged into its weights (README.md); NULL or "": none. progress: of the
 * tensors' bytes, all of which are read for the fingerprint; may be NULL. */
int model_open(const char *dir, const char *adapter, const struct rod_progress_to *progress, struct model **out,
               struct rod_error *err);
/* Random bf16 weights of a published shape: "rodimus-1.4b", "rodimus-plus-1.6b", "rodimus-plus-1.6b-w1024" (a window of
 * 1,024 keys), "rodimus-plus-4b", "tales". They depend on the seed alone, not on the number of threads that fill them.
 */
int model_synthetic(const char *name, uint64_t seed, const struct rod_progress_to *progress, struct model **out,
                    struct rod_error *err);
/* What commands are given. Errors name the settings `adapter` and `weights`. */
struct model_choice {
    const char *dir, *synthetic; /* one of the two, the other NULL */
    const char *adapter;
    const char *weights; /* the name of a format; NULL: auto, what dir stores */
};
int model_open_either(const struct model_choice *choice, const struct rod_progress_to *progress, struct model **out,
                      struct rod_error *err);
void model_close(struct model *model);
/* What the tokenizer says: the highest id and one, and the id of its eos_token, -1 = it names none, MODEL_EOS_UNKNOWN =
 * one that it does not have. Without a tokenizer: 0 and -1. Adds that end token, and warnings: ids that the model has
 * no embedding for, end tokens that differ from file to file. */
void model_check_tokenizer(struct model *model, uint32_t n_ids, int32_t eos_id);
/* In hexadecimal. Returns text. */
char *model_render_fingerprint(const uint8_t fingerprint[MODEL_FINGERPRINT_BYTES],
                               char text[2 * MODEL_FINGERPRINT_BYTES + 1]);

/* How the large matrices are kept: a format's name, or that of their type. Of layer 0's W_fc. */
const char *model_weights_name(const struct model *model);
/* Bytes of weights that a step reads: those of fewer bits as weight_kept_bytes has them, a tied head once. */
uint64_t model_step_bytes(const struct model *model);

/* The weights that may be kept in fewer bits: the head (i = 0), then layer by layer; n_parts 0: the model has none
 * such. NULL: there are no more. */
const struct weight *model_product(const struct model *model, size_t i);
/* dst[rows * cols] = the weight in fp32, pieces stacked. */
void weight_to_f32(const struct weight *w, float *dst);
/* n elements from element first of one part. */
void weight_part_to_f32(const struct weight_part *part, size_t first, size_t n, float *dst);
/* Copies n elements in the part's own type. */
void weight_part_copy(const struct weight_part *part, size_t first, size_t n, void *dst);
/* Of a quantised part: n codes of a row as weight_quant_row gives them, and a group's scale and zero point. */
void weight_codes_read(const struct weight_codes *w, uint32_t row, uint32_t col, uint32_t n, uint8_t *codes);
float weight_codes_scale(const struct weight_codes *w, uint32_t row, uint32_t group);
uint8_t weight_codes_zero(const struct weight_codes *w, uint32_t row, uint32_t group);
/* n weights of a row. */
void weight_codes_widen(const struct weight_codes *w, uint32_t row, uint32_t col, uint32_t n, float *dst);
/* Bytes of one session's state on a backend that keeps S and conv and window in these dtypes (conv K rows, S M x E). */
uint64_t model_state_bytes(const struct model_dims *dims, size_t S_bytes, size_t conv_bytes, size_t window_bytes);

#endif
