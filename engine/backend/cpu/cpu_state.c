/* cpu_state.c - a slot of the CPU's pool as the bytes of state_layout.h, and back: S is as it lies there; the
 * convolution's ring and the window's are rotated so that the oldest comes first, and keys leave their panels. */
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

/* ---- keys: a panel has CPU_PANEL of them, dim by dim ---- */

/* Keys of one panel, from its column `first` on, and the n of them as rows of n_dims floats. Panels are read and
 * written in the order of their addresses; rows are few enough to stay in the nearest cache. */
static void panel_to_rows(const float *panel, size_t first, size_t n, size_t n_dims, float *rows) {
    for (size_t i = 0; i < n_dims; i++)
        for (size_t j = 0; j < n; j++) rows[j * n_dims + i] = panel[i * CPU_PANEL + first + j];
}
static void rows_to_panel(const float *rows, size_t n, size_t n_dims, size_t first, float *panel) {
    if (n == CPU_PANEL) /* as first is 0 then: the same with bounds that the compiler knows */
        for (size_t i = 0; i < n_dims; i++)
            for (size_t j = 0; j < CPU_PANEL; j++) panel[i * CPU_PANEL + j] = rows[j * n_dims + i];
    else
        for (size_t i = 0; i < n_dims; i++)
            for (size_t j = 0; j < n; j++) panel[i * CPU_PANEL + first + j] = rows[j * n_dims + i];
}

/* The next keys, from the one at this place of the ring, that lie in one panel and before the ring's end. */
static size_t keys_together(const struct backend *be, size_t place, size_t left) {
    assert(place < be->ring_keys && left > 0);
    const size_t to_panel = CPU_PANEL - place % CPU_PANEL, to_end = be->ring_keys - place;
    const size_t n = to_panel < to_end ? to_panel : to_end;
    return n < left ? n : left;
}
static float *panel_at(const struct backend *be, float *layer, size_t place) {
    return layer + be->at.k + place / CPU_PANEL * be->d.Hk * be->d.P * CPU_PANEL;
}

/* ---- a layer ---- */

static void save_layer(const struct backend *be, uint32_t slot, uint32_t l, uint64_t pos,
                       const struct state_layer *part, unsigned char *to) {
    const struct model_dims *d = &be->d;
    const size_t nk = (size_t)d->Hk * d->P, nv = (size_t)d->Hv * d->P, row = be->Ep * sizeof(float);
    float *from = cpu_slot(be, slot, l), *keys = (float *)(void *)(to + part->keys);
    memcpy(to, from, part->conv);
    for (uint32_t j = 0; j < d->K; j++) memcpy(to + part->conv + j * row, from + cpu_conv_at(be, pos + j), row);
    for (size_t j = 0, n; j < part->n_keys; j += n) {
        const size_t place = (size_t)((pos - part->n_keys + j) % be->ring_keys);
        n = keys_together(be, place, part->n_keys - j);
        panel_to_rows(panel_at(be, from, place), place % CPU_PANEL, n, nk, keys + j * nk);
        memcpy(to + part->values + j * nv * sizeof(float), from + be->at.v + place * nv, n * nv * sizeof(float));
    }
}

/* Of the window, the rest needs no zeroing: nothing reads beyond. */
static void load_layer(const struct backend *be, uint32_t slot, uint32_t l, uint64_t pos,
                       const struct state_layer *part, const unsigned char *from) {
    const struct model_dims *d = &be->d;
    const size_t nk = (size_t)d->Hk * d->P, nv = (size_t)d->Hv * d->P, row = be->Ep * sizeof(float);
    float *to = cpu_slot(be, slot, l);
    const float *keys = (const float *)(const void *)(from + part->keys);
    memcpy(to, from, part->conv);
    for (uint32_t j = 0; j < d->K; j++) memcpy(to + cpu_conv_at(be, pos + j), from + part->conv + j * row, row);
    for (size_t j = 0, n; j < part->n_keys; j += n) {
        const size_t place = (size_t)((pos - part->n_keys + j) % be->ring_keys);
        n = keys_together(be, place, part->n_keys - j);
        rows_to_panel(keys + j * nk, n, nk, place % CPU_PANEL, panel_at(be, to, place));
        memcpy(to + be->at.v + place * nv, from + part->values + j * nv * sizeof(float), n * nv * sizeof(float));
    }
}

void cpu_state_copy(struct backend *be, const struct cpu_move *move) {
    const struct state_layer part = state_layer_at(&be->state, move->pos);
    assert(move->slot < be->info.n_slots && move->state && part.n_keys <= be->ring_keys);
    for (uint32_t l = 0; l < be->d.L; l++)
        if (move->in)
            load_layer(be, move->slot, l, move->pos, &part, (const unsigned char *)move->state + l * part.bytes);
        else
            save_layer(be, move->slot, l, move->pos, &part, (unsigned char *)move->state + l * part.bytes);
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
