/* model_internal.h - what the model_*.c files share: the parsed configuration and the plan, the list of the tensors
 * that dims call for. Pure data; private to the checkpoint code (and its tests). */
#ifndef MODEL_INTERNAL_H
#define MODEL_INTERNAL_H

#include "model.h"

/* First member of the struct that model.priv points to: the owner of the weights' bytes closes them. */
struct model_storage {
    void (*close)(struct model_storage *storage);
};
/* A sentence for the log. */
void model_warn(struct model *model, const char *format, ...) __attribute__((format(printf, 2, 3)));
void model_take_ends(struct model *model, enum model_ends_source source, const struct model_ends *ends);
/* An empty model with no defaults set; NULL without memory. model_close frees it and its storage. */
struct model *model_new(void);
/* Once its embedding is there. */
void model_tie_head(struct model *model);

/* Extends the fingerprint by one piece of the model, in an order that the caller keeps. label: at most 512 bytes count.
 */
void model_fingerprint_add(struct model *model, const char *label, const void *bytes, size_t n_bytes);

/* How another program packed the weights that it quantised. QUANT_COMPRESSED: as compressed-tensors does; Hugging
 * Face's fp8 has the same tensors. */
enum quant_method { QUANT_NONE, QUANT_COMPRESSED, QUANT_GPTQ, QUANT_AWQ };
struct quant_config {
    enum quant_method method;
    char name[24];    /* quant_method, as the file says */
    bool zero_shift;  /* as in struct weight_codes */
    bool needs_zeros; /* of compressed-tensors: int4 codes are not symmetric */
    bool zero_borrow; /* and a zero point may be 0, which borrowed 1 from the next in its word */
};
struct cfg;
struct json_t;
/* config.json's quantization_config. */
void quant_config_parse(struct cfg *c, const struct json_t *root, struct quant_config *out);

/* config.json, whole. */
struct model_config {
    struct model_dims dims;
    bool fla;
    struct quant_config quant;
    char torch_dtype[16]; /* as the file says, "" = unsaid: only good for a warning */
    struct model_ends ends;
};
int model_config_parse(const char *json, size_t len, struct model_config *out, struct rod_error *err);

/* generation_config.json: what it says is the default of a request that says nothing, as vLLM reads it: do_sample is
 * not looked at (a client that wants argmax asks for temperature 0). */
struct model_generation {
    struct rod_sampling sampling;
    int32_t bos_id; /* -1 = unsaid */
    struct model_ends ends;
};
int model_generation_parse(const char *json, size_t len, uint32_t vocab_size, struct model_generation *out,
                           struct rod_error *err);

/* PEFT's adapter_config.json of a LoRA adapter. */
struct adapter_pattern { /* of the modules whose names end with this one, from a dot or the beginning on */
    const char *name;
    double value;
};
struct adapter_config {
    uint32_t r;
    double alpha;
    bool rslora;
    struct adapter_pattern *ranks, *alphas; /* the first that matches counts */
    size_t n_ranks, n_alphas;
    const char **targets; /* likewise; NULL: the file does not list them */
    size_t n_targets;
    void *priv; /* keeps the names */
};
/* On a fault out holds nothing. */
int adapter_config_parse(const char *json, size_t len, struct adapter_config *out, struct rod_error *err);
void adapter_config_free(struct adapter_config *config);
bool adapter_config_matches(const char *name, const char *module);
/* Of one module; alpha / r, or alpha / sqrt(r) with rslora. */
uint32_t adapter_config_rank(const struct adapter_config *config, const char *module);
double adapter_config_scale(const struct adapter_config *config, const char *module);

/* Adds the adapter in the directory to the weights that are bound, and to the fingerprint. The deltas point into its
 * file: it is closed with the model. */
struct model_adapter;
int model_adapter_open(struct model *model, bool fla, const char *dir, struct model_adapter **out,
                       struct rod_error *err);
void model_adapter_close(struct model_adapter *adapter);
/* Adds one tensor of a file, with its name, type and shape. */
void model_fingerprint_add_tensor(struct model *model, const char *dtype, const uint64_t *shape, uint32_t n_dims,
                                  const char *name, const void *data, uint64_t n_bytes);

/* How synthetic weights are drawn: spreads under which every term of the equations carries weight. */
enum model_init { INIT_NORM, INIT_CONV, INIT_GATE_BIAS, INIT_BIAS, INIT_EMBED, INIT_PROJECTION };

/* Random weights of the shape that a config.json of the published layout describes. */
int model_synthetic_of(const char *name, const char *json, uint64_t seed, const struct rod_progress_to *progress,
                       struct model **out, struct rod_error *err);

/* One tensor of a file: where it goes (a weight of the model or of a layer, which part) and its shape. */
struct model_piece {
    char name[96];
    bool in_layer;
    uint32_t layer;
    size_t offset; /* of the struct weight in struct model_layer or struct model */
    uint32_t part, n_parts;
    uint32_t rows, cols;               /* of this piece */
    uint32_t weight_rows, weight_cols; /* of the whole weight */
    uint64_t shape[3];
    uint32_t n_dims;
    enum model_init init;
    bool quantisable;
};
/* Calls visit for every tensor that dims need, in one fixed order; stops at the first non-zero answer and returns it.
 */
int model_plan(const struct model_dims *dims, bool fla, int (*visit)(void *arg, const struct model_piece *piece),
               void *arg);
struct weight *model_piece_weight(struct model *model, const struct model_piece *piece);

/* Finds the tensors of a piece that the directory keeps in fewer bits: its weight's codes, scales and zero points.
 * A directory without them leaves *out alone, with answer 0. used: marks each tensor that is taken. */
struct weight_codes;
int model_quant_find(const struct model *model, const struct quant_config *config, const struct model_piece *piece,
                     struct weight_codes *out, struct rod_error *err);
void model_sort_tensors(struct model *model);
struct model_tensor *model_find_tensor(const struct model *model, const char *name); /* NULL: not there */
/* Adds data as the piece's part of its weight. */
void model_piece_bind(struct model *model, const struct model_piece *piece, const void *data, enum dtype dtype);

#endif
