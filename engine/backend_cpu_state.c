/* backend_cpu_state.c - a slot of the CPU's pool as the bytes of state_layout.h, and back: S is as it lies there; the
 * convolution's ring and the window's are turned so that the oldest comes first, and keys leave their panels. */
#include "backend_cpu.h"

#include <string.h>

size_t backend_cpu_state_bytes(const struct backend *be, uint64_t pos) { return state_bytes_at(&be->state, pos); }

static int check(const struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                 struct rod_error *err) {
    if (slot >= be->info.n_slots)
        return rod_fail(err, ROD_EINVALID, "slot %u of %u is out of range", slot, be->info.n_slots);
    return state_check(&be->state, pos, state, bytes, err);
}

/* Floats from a slot's start to the first dim of the key at this place of the ring; dims are CPU_PANEL apart. */
static size_t key_at(const struct backend *be, size_t place) {
    return be->at.k + place / CPU_PANEL * be->d.Hk * be->d.P * CPU_PANEL + place % CPU_PANEL;
}

int backend_cpu_slot_save(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                          struct rod_error *err) {
    const int rc = check(be, slot, pos, NULL, bytes, err);
    if (rc) return rc;
    const struct model_dims *d = &be->d;
    const struct state_layer part = state_layer_at(&be->state, pos);
    const size_t nk = (size_t)d->Hk * d->P, nv = (size_t)d->Hv * d->P, row = be->Ep * sizeof(float);
    for (uint32_t l = 0; l < d->L; l++) {
        const float *from = cpu_slot(be, slot, l);
        unsigned char *to = (unsigned char *)state + l * part.bytes;
        memcpy(to, from, part.conv);
        for (uint32_t j = 0; j < d->K; j++) /* row of position p: p mod K */
            memcpy(to + part.conv + j * row, from + be->at.conv + (size_t)((pos + j) % d->K) * be->Ep, row);
        for (uint32_t j = 0; j < part.n_keys; j++) {
            const size_t place = (size_t)((pos - part.n_keys + j) % be->ring_keys);
            const float *key = from + key_at(be, place);
            unsigned char *k = to + part.keys + j * nk * sizeof(float);
            for (size_t i = 0; i < nk; i++) memcpy(k + i * sizeof(float), key + i * CPU_PANEL, sizeof(float));
            memcpy(to + part.values + j * nv * sizeof(float), from + be->at.v + place * nv, nv * sizeof(float));
        }
    }
    return 0;
}

/* Of the window, the rest needs no zeroing: nothing reads beyond. */
int backend_cpu_slot_load(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                          struct rod_error *err) {
    const int rc = check(be, slot, pos, state, bytes, err);
    if (rc) return rc;
    const struct model_dims *d = &be->d;
    const struct state_layer part = state_layer_at(&be->state, pos);
    const size_t nk = (size_t)d->Hk * d->P, nv = (size_t)d->Hv * d->P, row = be->Ep * sizeof(float);
    for (uint32_t l = 0; l < d->L; l++) {
        float *to = cpu_slot(be, slot, l);
        const unsigned char *from = (const unsigned char *)state + l * part.bytes;
        memcpy(to, from, part.conv);
        for (uint32_t j = 0; j < d->K; j++)
            memcpy(to + be->at.conv + (size_t)((pos + j) % d->K) * be->Ep, from + part.conv + j * row, row);
        for (uint32_t j = 0; j < part.n_keys; j++) {
            const size_t place = (size_t)((pos - part.n_keys + j) % be->ring_keys);
            float *key = to + key_at(be, place);
            const unsigned char *k = from + part.keys + j * nk * sizeof(float);
            for (size_t i = 0; i < nk; i++) memcpy(key + i * CPU_PANEL, k + i * sizeof(float), sizeof(float));
            memcpy(to + be->at.v + place * nv, from + part.values + j * nv * sizeof(float), nv * sizeof(float));
        }
    }
    return 0;
}
