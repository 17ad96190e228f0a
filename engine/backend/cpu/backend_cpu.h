/* backend_cpu.h - what the CPU backend's files share: loading and slots (backend_cpu.c), a slot's state as bytes
 * (backend_cpu_state.c) and the thread that copies them beside steps (backend_cpu_move.c), a step (forward_cpu.c).
 *
 * Who owns what: struct backend owns packed weights, the slot pool and the workspaces. Threads: the engine thread, the
 * team inside forward, and the mover, which from begin to end of a move alone touches that slot. Invariant: every row
 * of scratch is padded with zeros to its padded width.
 */
#ifndef BACKEND_CPU_H
#define BACKEND_CPU_H

#include "engine/backend/backend.h"
#include "kernels/kernels.h"
#include "engine/model/model.h"
#include "engine/state/state_layout.h"
#include "team.h"

struct cpu_layer {
    struct cpu_matrix a, z, q, k, g, t, c0, c1, out; /* halves of W_fc, W_in, W_m; W_c0, W_c1, W_o */
    struct cpu_matrix aq, ak, av, ao, fa, fg, fout;  /* attention; halves of W_f1; W_f2 */
    float *mixer_norm, *conv, *conv_b, *residual, *c1_b, *g_b, *t_b, *act_norm; /* conv [K, Ep] */
    float *attn_norm, *q_norm, *k_norm, *ffn_norm;
};

/* Floats from a slot's start to the parts of one layer's state. */
struct cpu_slot_layout {
    size_t S, conv, k, v, layer_floats;
};

struct backend {
    struct backend_info info;
    struct model_dims d;
    uint32_t Dp, Ep, Mp, Rp, Fp, Qp, Kvp, Vvp; /* padded D, E, M, R, F, H P, Hk P, Hv P */
    const struct cpu_ops *ops;
    struct team *team;
    struct cpu_layer *layers;
    struct cpu_matrix embed, lm_head; /* one and the same data when tied */
    struct rod_progress_to progress;  /* of packing: of the model's bytes, so many are packed */
    uint64_t packed_bytes, model_bytes;
    float *embed_norm, *norm_f;
    double *inv_freq; /* [rot_dim / 2] */

    float *slots; /* [n_slots][L][layer_floats], S tiled as gla_step wants it */
    size_t slot_floats;
    struct cpu_slot_layout at;
    uint32_t ring_keys; /* of the window, see struct cpu_window */
    struct state_layout state;
    struct cpu_mover *mover;

    /* Workspaces; N = max_batch_tok rows. */
    float *x, *h, *y, *a, *z, *s, *u, *o, *q, *k, *g, *t, *log_alpha, *q_in, *k_out, *decay, *A, *c0;
    float *aq, *ak, *av, *att, *fa, *fg, *rope, *logits;
    double *b;
    float **window_scratch; /* [threads] */
    struct cpu_row {
        uint32_t segment, index, phase;
    } * rows; /* of the step: segment, place in it, which of its pieces */
    struct cpu_chunk {
        uint32_t first_row, n, slot;
    } * chunks; /* pieces of segments between multiples of 64 */
    uint64_t fault_step, n_steps;
    void **allocations;
    size_t n_allocations;
};

static inline float *cpu_slot(const struct backend *be, uint32_t slot, uint32_t layer) {
    return be->slots + (size_t)slot * be->slot_floats + layer * be->at.layer_floats;
}

/* backend_cpu_state.c: a slot's state out of and into the pool. */
size_t backend_cpu_state_bytes(const struct backend *be, uint64_t pos);
int backend_cpu_slot_save(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                          struct rod_error *err);
int backend_cpu_slot_load(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                          struct rod_error *err);

int backend_cpu_slot_save_begin(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                                struct rod_error *err);
int backend_cpu_slot_load_begin(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                                struct rod_error *err);
int backend_cpu_slot_moving(struct backend *be, uint32_t slot, struct rod_error *err);
void backend_cpu_on_moved(struct backend *be, void (*moved)(void *arg), void *arg);

/* A checked copy of a slot's state after pos tokens, in or out. */
struct cpu_move {
    uint32_t slot;
    bool in;
    uint64_t pos;
    void *state; /* read alone where in */
};
void cpu_state_copy(struct backend *be, const struct cpu_move *move);

/* backend_cpu_move.c: one thread that makes moves in the order in which they were begun. */
int cpu_mover_open(struct backend *be, struct cpu_mover **out, struct rod_error *err);
void cpu_mover_close(struct cpu_mover *mover); /* after the moves that were begun; NULL: nothing */
void cpu_mover_begin(struct cpu_mover *mover, const struct cpu_move *move);
bool cpu_mover_moving(struct cpu_mover *mover, uint32_t slot);
void cpu_mover_on_moved(struct cpu_mover *mover, void (*moved)(void *arg), void *arg);

int forward_cpu(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, const float **logits,
                struct rod_error *err);

#endif
