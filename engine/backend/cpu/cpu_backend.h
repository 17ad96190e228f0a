/* cpu_backend.h - what the CPU backend's files share: loading and slots (cpu_backend.c), a slot's state as bytes
 * (cpu_state.c) and the thread that copies them beside steps (cpu_move.c), a step (cpu_forward.c).
 *
 * Who owns what: struct backend owns packed weights, the slot pool and the workspaces. Threads: the engine thread, the
 * team inside forward, and the mover, which from begin to end of a move alone touches that slot. Invariant: every row
 * of scratch is padded with zeros to its padded width.
 */
#ifndef CPU_BACKEND_H
#define CPU_BACKEND_H

#include "engine/backend/backend.h"
#include "kernels/kernels.h"
#include "engine/model/model.h"
#include "engine/state/state_formats.h"
#include "cpu_team.h"

/* Before each product that may be in fewer bits, but the head's, with its input: row r's are x[r * ld] and so on.
 * Called by each of n_members threads at once, which divide the work; all have returned before x changes. weight:
 * offset in struct model_layer, W_q's for q, k and v. input NULL: no calls. */
struct cpu_watch {
    void (*input)(void *arg, uint32_t member, uint32_t n_members, uint32_t layer, size_t weight, const float *x,
                  size_t ld, uint32_t n_rows);
    void *arg;
};

struct cpu_layer {
    struct cpu_matrix a, z, q, k, g, t, c0, c1, out; /* halves of W_fc, W_in, W_m; W_c0, W_c1, W_o */
    struct cpu_matrix aq, ak, av, ao, fa, fg, fout;  /* attention; halves of W_f1; W_f2 */
    float *mixer_norm, *conv, *conv_b, *residual, *c1_b, *g_b, *t_b, *act_norm; /* conv [K, Ep] */
    float *attn_norm, *q_norm, *k_norm, *ffn_norm;
};

/* Floats from a slot's start to the parts of one layer's state. */
struct cpu_slot_layout {
    size_t S, conv, k, v, k_scale, v_scale, deferred, layer_floats; /* no scales but of a window in int8 */
};

/* Of a slot: accepted drafts that its S lacks, whose u, k and log_alpha are at.deferred [n_drafts][Ep + 2 Mp]. The next
 * step applies them, or cpu_state_settle. */
struct cpu_deferred {
    uint32_t n, n_drafts; /* n_drafts: of the last step, whose first n are accepted */
};

struct backend {
    struct backend_info info;
    struct model_dims d;
    uint32_t Dp, Ep, Mp, Rp, Fp, Qp, Kvp, Vvp; /* padded D, E, M, R, F, H P, Hk P, Hv P */
    const struct cpu_ops *ops;
    const struct cpu_quant_ops *quant;
    bool quantised; /* a matrix of int8 or int4 is there: inputs of all that may be so become codes, too */
    struct team *team;
    struct cpu_layer *layers;
    struct cpu_matrix embed, lm_head; /* one and the same data when tied */
    struct rod_progress_to progress;  /* of packing: of the model's bytes, so many are packed */
    uint64_t packed_bytes, model_bytes;
    float *embed_norm, *norm_f;
    double *inv_freq; /* [rot_dim / 2] */

    float *slots; /* [n_slots][L][layer_floats], S tiled as gla_steps wants it */
    size_t slot_floats;
    struct cpu_slot_layout at;
    struct cpu_deferred *deferred; /* [n_slots] */
    uint32_t ring_keys;            /* of the window, see struct cpu_window */
    uint32_t n_drafts;             /* most behind a token: BACKEND_MAX_DRAFTS, or 0, and slots have no room for any */
    uint32_t ring_conv;            /* inputs of the convolution: the last K, and drafts */
    struct state_layout state;
    struct cpu_mover *mover;

    /* Workspaces; N = max_batch_tok rows. */
    float *x, *h, *y, *a, *z, *s, *u, *o, *q, *k, *g, *t, *log_alpha, *q_in, *k_out, *decay, *A, *c0;
    float *aq, *ak, *av, *att, *fa, *fg, *rope, *logits;
    double *b;
    struct cpu_codes codes; /* of the rows that the next product reads; n_blocks: of the widest */
    float **window_scratch; /* [threads] */
    struct cpu_row {
        uint32_t segment, index, phase;
    } * rows; /* of the step: segment, place in it, which of its pieces */
    struct cpu_chunk {
        uint32_t first_row, n, slot;
        uint32_t n_deferred; /* to be applied before it */
        bool drafts;         /* the rows behind its first are drafts */
    } * chunks;              /* pieces of segments between multiples of 64; drafts are in one piece */
    uint64_t fault_step, n_steps;
    struct cpu_watch watch; /* whoever opened the backend may set it, before the first step */
    void **allocations;
    size_t n_allocations;
};

static inline float *cpu_slot(const struct backend *be, uint32_t slot, uint32_t layer) {
    return be->slots + (size_t)slot * be->slot_floats + layer * be->at.layer_floats;
}

/* A slot's window in a layer. */
static inline struct cpu_window cpu_ring(const struct backend *be, uint32_t slot, uint32_t layer) {
    const struct model_dims *d = &be->d;
    float *at = cpu_slot(be, slot, layer), *k = at + be->at.k, *v = at + be->at.v;
    struct cpu_window ring = {.heads = {d->H, d->Hk, d->Hv, d->P}, .n_keys = be->ring_keys, .visible = d->visible};
    if (be->state.window == DTYPE_INT8) {
        ring.kt8 = (int8_t *)k, ring.v8 = (int8_t *)v;
        ring.k_scale = at + be->at.k_scale, ring.v_scale = at + be->at.v_scale;
    } else {
        ring.kt = k, ring.v = v;
    }
    return ring;
}

/* Where a layer has the convolution's input of the token K before pos; before the first one it is zero. */
static inline size_t cpu_conv_at(const struct backend *be, uint64_t pos) {
    return be->at.conv + (size_t)((pos + be->ring_conv - be->d.K) % be->ring_conv) * be->Ep;
}

/* The rows' codes where they have cols columns. */
static inline struct cpu_codes cpu_codes_of(const struct backend *be, uint32_t cols) {
    struct cpu_codes codes = be->codes;
    codes.n_blocks = (cols + CPU_BLOCK - 1) / CPU_BLOCK;
    return codes;
}

/* u [Ep], k [Mp] and log_alpha [Mp] of deferred token number i. */
static inline float *cpu_deferred_at(const struct backend *be, float *layer, uint32_t i) {
    return layer + be->at.deferred + (size_t)i * (be->Ep + 2 * (size_t)be->Mp);
}
static inline struct cpu_token cpu_deferred_token(const struct backend *be, float *layer, uint32_t i) {
    const float *u = cpu_deferred_at(be, layer, i);
    return (struct cpu_token){.u = u, .k = u + be->Ep, .log_alpha = u + be->Ep + be->Mp};
}

/* A checked copy of a slot's state after pos tokens, in or out. */
struct cpu_move {
    uint32_t slot;
    bool in;
    uint64_t pos;
    void *state; /* read alone where in */
};
#define CPU_READ_ONLY(p) ((void *)(uintptr_t)(p)) /* a struct cpu_move's state where in */

/* cpu_state.c: a slot's state out of and into the pool. */
size_t cpu_state_bytes(const struct backend *be, uint64_t pos);
/* ROD_EINVALID: the backend has no such slot, or bytes or state do not fit a state after pos tokens. */
int cpu_state_check(const struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                    struct rod_error *err);
void cpu_state_settle(struct backend *be, uint32_t slot); /* S takes what is deferred */
void cpu_state_copy(struct backend *be, const struct cpu_move *move);
int cpu_state_save(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes, struct rod_error *err);
int cpu_state_load(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                   struct rod_error *err);

/* cpu_move.c: one thread that makes moves in the order in which they were begun. */
int cpu_mover_open(struct backend *be, struct cpu_mover **out, struct rod_error *err);
void cpu_mover_close(struct cpu_mover *mover); /* after the moves that were begun; NULL: nothing */
int cpu_move_save_begin(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                        struct rod_error *err);
int cpu_move_load_begin(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                        struct rod_error *err);
int cpu_move_moving(struct backend *be, uint32_t slot, struct rod_error *err);
void cpu_move_on_moved(struct backend *be, void (*moved)(void *arg), void *arg);

/* cpu_forward.c */
int cpu_forward(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, const float **logits,
                struct rod_error *err);

#endif
