/* verify.h - a backend against a golden file, in parts that tests call one by one; rod_verify is all of them.
 *
 * Ownership: a result owns its buffers. Threads: one.
 */
#ifndef VERIFY_H
#define VERIFY_H

#include "engine/backend/backend.h"
#include "engine/model/model.h"
#include "tools.h"

/* ---- golden.c: a golden.safetensors (its tensors: tests/vectors/README.md): a prompt, its exact logits, its greedy
 * continuation and the state after it ---- */

/* One layer's state in fp32: S [M,E]; conv [E,K] oldest first; k, v [n_keys,Hk,P] and [n_keys,Hv,P] oldest first, NULL
 * where the model has none. */
struct golden_layer {
    float *S, *conv, *k, *v;
    uint32_t n_keys;
};

/* Owns copies of everything, so a test may change one value. Every tensor has the shape that the model's dims and the
 * prompt's length give. */
struct golden {
    uint32_t T, n_greedy, n_keys, n_layers; /* n_keys = min(T, visible) */
    int32_t *ids;                           /* [T] */
    int32_t *greedy_ids;                    /* [n_greedy] */
    float *logits;                          /* [T,V] */
    struct golden_layer *layers;            /* [L] */
};

/* ROD_ENOTFOUND, ROD_EIO, ROD_EMODEL naming tensor and file. */
int golden_open(const char *path, const struct model_dims *dims, struct golden **out, struct rod_error *err);
void golden_close(struct golden *g);

/* Buffers of one state for a prompt of which n_keys keys are left, for L layers; NULL without memory. */
struct golden_layer *golden_new_state(const struct model_dims *dims, uint32_t n_keys);
void golden_free_state(struct golden_layer *layers, uint32_t n_layers);
/* A slot's state after pos tokens, as slot_save gives it, into buffers of all layers. */
int golden_read_slot(const struct backend_ops *ops, struct backend *be, uint32_t slot, uint64_t pos,
                     struct golden_layer *layers, struct rod_error *err);

/* The tensors of a layer's state, for loops: which 0 .. 3 are S, conv, k, v; n = 0 where the model has none. */
struct golden_tensor {
    const char *name;
    float *values;
    size_t n, row; /* row: elements of the last dimensions that share one scale */
};
struct golden_tensor golden_state_tensor(const struct golden_layer *layer, const struct model_dims *dims,
                                         uint32_t which);

/* ---- verify.c ---- */

/* A backend's results for a golden file's prompt. */
struct verify_result {
    uint32_t n_layers;
    float *logits;               /* [T,V] */
    struct golden_layer *layers; /* [L], after the prompt */
    float *greedy_logits;        /* [n_greedy,V]: row i chooses the id of greedy_ids[i]; the ids before it were fed */
};

/* Progress of a run, and the run's name. */
struct verify_watch {
    struct rod_progress_to to;
    const char *what;
};

/* Reads the prompt into slot 0 in pieces: the first of first_tok, the others of piece_tok (0, or more than a forward
 * takes: as large as it takes), then the greedy ids one by one. */
int verify_run(const struct backend_ops *ops, struct backend *be, const struct model_dims *dims,
               const struct golden *golden, uint32_t first_tok, uint32_t piece_tok, struct verify_result **out,
               const struct verify_watch *watch, struct rod_error *err);
void verify_free(struct verify_result *result);
/* What a golden file would hold, computed by the CPU backend: a prompt of n_tok random ids, the same for one model. */
int verify_reference(const struct model *model, uint32_t n_tok, uint32_t n_threads,
                     const struct rod_progress_to *progress, struct golden **out, struct rod_error *err);

/* Largest differences that pass; verify.c has the reasons. */
struct verify_bounds {
    double rel, max, margin;
};
struct verify_bounds verify_bounds(enum dtype arithmetic, enum weight_format format, bool gpu, bool against_cpu);
/* Wider where states are in fewer bits. */
struct verify_bounds verify_bounds_of_states(struct verify_bounds bounds, const struct state_layout *layout);

/* Fills the report's rows and agreement of one mode (rows has room for 1 + 4 L more) and clears report->passed on any
 * difference beyond its bounds; a NaN is one. */
void verify_compare(const struct golden *golden, const struct verify_result *result, const struct model_dims *dims,
                    int mode, struct rod_verify_report *report);
/* A report without rows yet, passed; NULL without memory. */
struct rod_verify_report *verify_new_report(const struct model_dims *dims, struct verify_bounds bounds);

#endif
