/* golden.h - a golden.safetensors (its tensors: tests/vectors/README.md): a prompt, its exact logits, its
 * greedy continuation and the state after it.
 *
 * Ownership: a golden owns copies of everything, so a test may change one value. Threads: one.
 * Invariant: every tensor has the shape that the model's dims and the prompt's length give.
 */
#ifndef GOLDEN_H
#define GOLDEN_H

#include "engine/backend/backend.h"
#include "engine/model/model.h"

/* One layer's state in fp32: S [M,E]; conv [E,K] oldest first; k, v [n_keys,Hk,P] and [n_keys,Hv,P] oldest first, NULL
 * where the model has none. */
struct golden_layer {
    float *S, *conv, *k, *v;
    uint32_t n_keys;
};

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

#endif
