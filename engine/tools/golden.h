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

struct golden {
    uint32_t T, n_greedy, n_keys, n_layers; /* n_keys = min(T, visible) */
    int32_t *ids;                           /* [T] */
    int32_t *greedy_ids;                    /* [n_greedy] */
    float *logits;                          /* [T,V] */
    struct backend_layer_state *layers;     /* [L] */
};

/* ROD_ENOTFOUND, ROD_EIO, ROD_EMODEL naming tensor and file. */
int golden_open(const char *path, const struct model_dims *dims, struct golden **out, struct rod_error *err);
void golden_close(struct golden *g);

/* Buffers of one state for a prompt of which n_keys keys are left, for L layers; NULL without memory. */
struct backend_layer_state *golden_new_state(const struct model_dims *dims, uint32_t n_keys);
void golden_free_state(struct backend_layer_state *layers, uint32_t n_layers);

/* The tensors of a layer's state, for loops: which 0 .. 3 are S, conv, k, v; n = 0 where the model has none. */
struct golden_tensor {
    const char *name;
    float *values;
    size_t n, row; /* row: elements of the last dimensions that share one scale */
};
struct golden_tensor golden_state_tensor(const struct backend_layer_state *layer, const struct model_dims *dims,
                                         uint32_t which);

#endif
