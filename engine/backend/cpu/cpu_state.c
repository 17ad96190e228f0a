/* cpu_state.c - a slot of the CPU's pool as the bytes of state_layout.h, and back: S is as it lies there; the
 * convolution's ring and the window's are rotated so that the oldest comes first, and keys leave their panels, with
 * the scales of codes. */
#include "cpu_backend.h"

#include <assert.h>
#include <string.h>

size_t cpu_state_bytes(const struct backend *be, uint64_t pos) { return state_bytes_at(&be->state, pos); }

int cpu_state_check(const struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                    struct rod_error *err) {
    if (slot >= be->info.n_slots)
        return rod_fail(err, ROD_EINVALID, "Slot %u of %u is out of range.", slot, be->info.n_slots);
    return state_check(&be->state, pos, state, bytes, err);
}

static void move_bytes(bool in, void *slot, void *state, size_t bytes) {
    memcpy(in ? slot : state, in ? state : slot, bytes);
}

/* ---- the window: a panel has CPU_PANEL keys, dim by dim ---- */

/* n columns of a panel and as many rows of n_dims numbers of `size` bytes. Panels are read and written in the order of
 * their addresses; rows are few enough to stay in the nearest cache. size is a constant after inlining. */
static inline __attribute__((always_inline)) void move_columns(bool in, const size_t size, char *panel, size_t n,
                                                               size_t n_dims, char *rows) {
    for (size_t i = 0; i < n_dims; i++)
        for (size_t j = 0; j < n; j++) {
            char *cell = panel + (i * CPU_PANEL + j) * size, *item = rows + (j * n_dims + i) * size;
            memcpy(in ? cell : item, in ? item : cell, size);
        }
}
static void move_floats(bool in, float *panel, size_t n, size_t n_dims, void *rows) {
    if (in && n == CPU_PANEL) /* the same with bounds that the compiler knows */
        move_columns(true, sizeof(float), (char *)panel, CPU_PANEL, n_dims, rows);
    else if (in)
        move_columns(true, sizeof(float), (char *)panel, n, n_dims, rows);
    else
        move_columns(false, sizeof(float), (char *)panel, n, n_dims, rows);
}
static void move_codes(bool in, int8_t *panel, size_t n, size_t n_dims, void *rows) {
    if (in)
        move_columns(true, 1, (char *)panel, n, n_dims, rows);
    else
        move_columns(false, 1, (char *)panel, n, n_dims, rows);
}

/* The next keys, from the one at this place of the ring, that lie in one panel and before the ring's end. */
static size_t keys_together(const struct backend *be, size_t place, size_t left) {
    assert(place < be->ring_keys && left > 0);
    const size_t to_panel = CPU_PANEL - place % CPU_PANEL, to_end = be->ring_keys - place;
    const size_t n = to_panel < to_end ? to_panel : to_end;
    return n < left ? n : left;
}

/* n positions of a ring, from this place on, and the state's j-th. */
struct stretch {
    size_t place, j, n;
};

static void move_scales(bool in, const struct cpu_window *ring, const struct stretch *at,
                        const struct state_layer *part, unsigned char *state) {
    const size_t Hk = ring->heads.Hk, Hv = ring->heads.Hv, panel = at->place / CPU_PANEL * Hk * CPU_PANEL;
    float *values = (float *)(void *)(state + part->value_scales) + at->j * Hv;
    move_floats(in, ring->k_scale + panel + at->place % CPU_PANEL, at->n, Hk,
                state + part->key_scales + at->j * Hk * sizeof(float));
    for (size_t j = 0; j < at->n; j++)
        for (size_t h = 0; h < Hv; h++)
            move_bytes(in, ring->v_scale + h * ring->n_keys + at->place + j, values + j * Hv + h, sizeof(float));
}

static void move_keys(bool in, const struct cpu_window *ring, const struct stretch *at, const struct state_layer *part,
                      unsigned char *state) {
    const size_t nk = (size_t)ring->heads.Hk * ring->heads.P, nv = (size_t)ring->heads.Hv * ring->heads.P;
    const size_t panel = at->place / CPU_PANEL * nk * CPU_PANEL + at->place % CPU_PANEL;
    if (ring->kt8) {
        move_codes(in, ring->kt8 + panel, at->n, nk, state + part->keys + at->j * nk);
        move_bytes(in, ring->v8 + at->place * nv, state + part->values + at->j * nv, at->n * nv);
        move_scales(in, ring, at, part, state);
    } else {
        move_floats(in, ring->kt + panel, at->n, nk, state + part->keys + at->j * nk * sizeof(float));
        move_bytes(in, ring->v + at->place * nv, state + part->values + at->j * nv * sizeof(float),
                   at->n * nv * sizeof(float));
    }
}

/* ---- a layer ---- */

/* Of the window the rest needs no zeroing in a slot: nothing reads beyond. */
static void move_layer(const struct backend *be, const struct cpu_move *move, uint32_t l,
                       const struct state_layer *part, unsigned char *state) {
    const size_t row = be->Ep * sizeof(float);
    const struct cpu_window ring = cpu_ring(be, move->slot, l);
    float *layer = cpu_slot(be, move->slot, l);
    move_bytes(move->in, layer + be->at.S, state, part->conv);
    for (uint32_t j = 0; j < be->d.K; j++)
        move_bytes(move->in, layer + cpu_conv_at(be, move->pos + j), state + part->conv + j * row, row);
    for (struct stretch at = {0}; at.j < part->n_keys; at.j += at.n) {
        at.place = (size_t)((move->pos - part->n_keys + at.j) % be->ring_keys);
        at.n = keys_together(be, at.place, part->n_keys - at.j);
        move_keys(move->in, &ring, &at, part, state);
    }
}

void cpu_state_copy(struct backend *be, const struct cpu_move *move) {
    const struct state_layer part = state_layer_at(&be->state, move->pos);
    assert(move->slot < be->info.n_slots && move->state && part.n_keys <= be->ring_keys);
    for (uint32_t l = 0; l < be->d.L; l++)
        move_layer(be, move, l, &part, (unsigned char *)move->state + l * part.bytes);
}

void cpu_state_settle(struct backend *be, uint32_t slot) {
    struct cpu_deferred *deferred = &be->deferred[slot];
    struct cpu_token tok[BACKEND_MAX_DRAFTS];
    assert(deferred->n <= deferred->n_drafts && deferred->n_drafts <= BACKEND_MAX_DRAFTS);
    for (uint32_t l = 0; deferred->n && l < be->d.L; l++) {
        float *layer = cpu_slot(be, slot, l);
        for (uint32_t i = 0; i < deferred->n; i++) tok[i] = cpu_deferred_token(be, layer, i);
        be->ops->gla_steps(be->d.M, tok, deferred->n, deferred->n, 0, be->Ep, layer + be->at.S);
    }
    *deferred = (struct cpu_deferred){0};
}

/* ---- the calls ---- */

int cpu_state_save(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes, struct rod_error *err) {
    const int rc = cpu_state_check(be, slot, pos, NULL, bytes, err);
    if (rc) return rc;
    cpu_state_settle(be, slot);
    cpu_state_copy(be, &(struct cpu_move){.slot = slot, .pos = pos, .state = state});
    return 0;
}

int cpu_state_load(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                   struct rod_error *err) {
    const int rc = cpu_state_check(be, slot, pos, state, bytes, err);
    if (rc) return rc;
    be->deferred[slot] = (struct cpu_deferred){0};
    cpu_state_copy(be, &(struct cpu_move){.slot = slot, .in = true, .pos = pos, .state = CPU_READ_ONLY(state)});
    return 0;
}
