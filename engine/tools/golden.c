/* golden.c - see verify.h. */
#include "verify.h"
#include "engine/base/fail.h"
#include "engine/model/safetensors.h"
#include "engine/state/state_convert.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOK (1u << 20)

/* ---- state buffers ---- */

struct golden_tensor golden_state_tensor(const struct golden_layer *layer, const struct model_dims *d, uint32_t which) {
    switch (which) {
    case 0: return (struct golden_tensor){"S", layer->S, (size_t)d->M * d->E, d->E};
    case 1: return (struct golden_tensor){"conv", layer->conv, (size_t)d->E * d->K, (size_t)d->E * d->K};
    case 2: return (struct golden_tensor){"k", layer->k, (size_t)layer->n_keys * d->Hk * d->P, d->P};
    default: return (struct golden_tensor){"v", layer->v, (size_t)layer->n_keys * d->Hv * d->P, d->P};
    }
}

struct golden_layer *golden_new_state(const struct model_dims *d, uint32_t n_keys) {
    struct golden_layer *layers = calloc(d->L, sizeof *layers);
    if (!layers) return NULL;
    for (uint32_t i = 0; i < d->L; i++) {
        struct golden_layer *s = &layers[i];
        s->n_keys = n_keys;
        s->S = calloc((size_t)d->M * d->E, sizeof *s->S);
        s->conv = calloc((size_t)d->E * d->K, sizeof *s->conv);
        if (d->plus) {
            s->k = calloc((size_t)n_keys * d->Hk * d->P, sizeof *s->k);
            s->v = calloc((size_t)n_keys * d->Hv * d->P, sizeof *s->v);
        }
        if (!s->S || !s->conv || (d->plus && (!s->k || !s->v))) {
            golden_free_state(layers, d->L);
            return NULL;
        }
    }
    return layers;
}

void golden_free_state(struct golden_layer *layers, uint32_t n_layers) {
    for (uint32_t i = 0; layers && i < n_layers; i++) {
        free(layers[i].S);
        free(layers[i].conv);
        free(layers[i].k);
        free(layers[i].v);
    }
    free(layers);
}

/* Of a state in fp32. */
static void read_layer(const struct state_layout *l, const struct state_layer *at, const float *layer,
                       struct golden_layer *to) {
    const size_t tiles = (l->E + STATE_TILE - 1) / STATE_TILE;
    const float *conv = layer + at->conv / sizeof *layer;
    for (size_t t = 0; t < tiles; t++)
        for (size_t m = 0; m < l->M; m++) {
            const size_t e = t * STATE_TILE, n = l->E - e < STATE_TILE ? l->E - e : STATE_TILE;
            memcpy(to->S + m * l->E + e, layer + (t * l->M + m) * STATE_TILE, n * sizeof *layer);
        }
    for (size_t j = 0; j < l->K; j++)
        for (size_t e = 0; e < l->E; e++) to->conv[e * l->K + j] = conv[j * tiles * STATE_TILE + e];
    to->n_keys = at->n_keys;
    if (!at->n_keys) return;
    memcpy(to->k, layer + at->keys / sizeof *layer, at->values - at->keys);
    memcpy(to->v, layer + at->values / sizeof *layer, at->bytes - at->values);
}

int golden_read_slot(const struct backend_ops *ops, struct backend *be, uint32_t slot, uint64_t pos,
                     struct golden_layer *layers, struct rod_error *err) {
    const struct state_layout *layout = ops->info(be)->state;
    if (!layout) return rod_fail(err, ROD_EUNSUPPORTED, "The %s device has no state.", ops->name);
    struct state_layout wide = *layout;
    wide.S = wide.act = wide.window = DTYPE_F32;
    const struct state_layer at = state_layer_at(&wide, pos);
    const size_t bytes = ops->state_bytes(be, pos);
    void *state = malloc(bytes);
    float *numbers = malloc(state_bytes_at(&wide, pos));
    int rc = state && numbers ? ops->slot_save(be, slot, pos, state, bytes, err) : rod_fail_no_memory(err);
    if (!rc) rc = state_convert(layout, &wide, pos, state, numbers, err);
    for (uint32_t i = 0; !rc && i < layout->L; i++)
        read_layer(&wide, &at, numbers + i * (at.bytes / sizeof *numbers), &layers[i]);
    free(state);
    free(numbers);
    return rc;
}

/* ---- reading ---- */

struct reader {
    const struct safetensors *st;
    struct rod_error *err;
    size_t n_read; /* tensors, to notice those that belong to no part of this model */
};

/* The tensor, of exactly this shape; NULL with err filled. 0 in shape[0]: any length. */
static const struct safetensors_tensor *reader_find_shaped(struct reader *r, const char *name, const uint64_t *shape,
                                                           uint32_t n_dims) {
    const struct safetensors_tensor *t = safetensors_find(r->st, name);
    char got[160], expected[80];
    if (!t) {
        rod_fail(r->err, ROD_EMODEL, "tensor %s is missing from %.250s", name, r->st->path);
        return NULL;
    }
    bool same = t->n_dims == n_dims;
    for (uint32_t i = 0; i < n_dims && same; i++) same = t->shape[i] == shape[i] || (i == 0 && shape[0] == 0);
    if (!same) {
        rod_fail(r->err, ROD_EMODEL, "tensor %s in %.200s has shape %s, this model and prompt call for %s", name,
                 r->st->path, safetensors_render_shape(t->shape, t->n_dims, got, sizeof got),
                 safetensors_render_shape(shape, n_dims, expected, sizeof expected));
        return NULL;
    }
    r->n_read++;
    return t;
}

static int reader_read_floats(struct reader *r, const char *name, const uint64_t *shape, uint32_t n_dims, float *dst) {
    const struct safetensors_tensor *t = reader_find_shaped(r, name, shape, n_dims);
    return t ? safetensors_read_f32(r->st, t, dst, r->err) : ROD_EMODEL;
}

/* Token ids: each below vocab. *ids malloc'd. */
static int reader_read_ids(struct reader *r, const char *name, uint32_t vocab, int32_t **ids, uint32_t *n) {
    const struct safetensors_tensor *t = reader_find_shaped(r, name, (const uint64_t[]){0}, 1);
    if (!t) return ROD_EMODEL;
    if (!t->n_elems || t->n_elems > MAX_TOK)
        return rod_fail(r->err, ROD_EMODEL, "tensor %s in %.250s must hold 1 to %u ids", name, r->st->path, MAX_TOK);
    int64_t *wide = malloc(t->n_elems * sizeof *wide);
    *ids = malloc(t->n_elems * sizeof **ids);
    int rc = wide && *ids ? safetensors_read_i64(r->st, t, wide, r->err) : rod_fail_no_memory(r->err);
    for (uint64_t i = 0; i < t->n_elems && !rc; i++) {
        if (wide[i] < 0 || wide[i] >= vocab)
            rc = rod_fail(r->err, ROD_EMODEL, "tensor %s in %.200s: id %lld at %llu is outside the vocabulary of %u",
                          name, r->st->path, (long long)wide[i], (unsigned long long)i, vocab);
        else
            (*ids)[i] = (int32_t)wide[i];
    }
    assert(t->n_elems >= 1 && t->n_elems <= MAX_TOK);
    *n = (uint32_t)t->n_elems;
    free(wide);
    return rc;
}

static int reader_read_layer(struct reader *r, const struct model_dims *d, uint32_t layer, struct golden_layer *s) {
    char name[48];
    snprintf(name, sizeof name, "state.%u.S", layer);
    int rc = reader_read_floats(r, name, (const uint64_t[]){d->M, d->E}, 2, s->S);
    snprintf(name, sizeof name, "state.%u.conv", layer);
    if (!rc) rc = reader_read_floats(r, name, (const uint64_t[]){d->E, d->K}, 2, s->conv);
    if (rc || !d->plus) return rc;
    snprintf(name, sizeof name, "state.%u.k", layer);
    rc = reader_read_floats(r, name, (const uint64_t[]){s->n_keys, d->Hk, d->P}, 3, s->k);
    snprintf(name, sizeof name, "state.%u.v", layer);
    if (!rc) rc = reader_read_floats(r, name, (const uint64_t[]){s->n_keys, d->Hv, d->P}, 3, s->v);
    return rc;
}

static int reader_read_golden(struct reader *r, const struct model_dims *d, struct golden *g) {
    int rc = reader_read_ids(r, "input_ids", d->V, &g->ids, &g->T);
    if (!rc) rc = reader_read_ids(r, "greedy_ids", d->V, &g->greedy_ids, &g->n_greedy);
    if (rc) return rc;
    g->n_layers = d->L;
    g->n_keys = !d->plus ? 0 : g->T < d->visible ? g->T : d->visible;
    const struct safetensors_tensor *logits = reader_find_shaped(r, "logits", (const uint64_t[]){g->T, d->V}, 2);
    if (!logits) return ROD_EMODEL;
    g->logits = malloc(logits->n_elems * sizeof *g->logits);
    g->layers = golden_new_state(d, g->n_keys);
    if (!g->logits || !g->layers) return rod_fail_no_memory(r->err);
    rc = safetensors_read_f32(r->st, logits, g->logits, r->err);
    for (uint32_t i = 0; i < d->L && !rc; i++) rc = reader_read_layer(r, d, i, &g->layers[i]);
    if (!rc && r->n_read != r->st->table.n_tensors)
        rc = rod_fail(r->err, ROD_EMODEL, "%.250s holds %zu tensors, this model has %zu: it belongs to another model",
                      r->st->path, r->st->table.n_tensors, r->n_read);
    return rc;
}

int golden_open(const char *path, const struct model_dims *dims, struct golden **out, struct rod_error *err) {
    struct safetensors *st;
    int rc = safetensors_open(path, &st, err);
    if (rc) return rc;
    struct golden *g = calloc(1, sizeof *g);
    struct reader reader = {st, err, 0};
    rc = g ? reader_read_golden(&reader, dims, g) : rod_fail_no_memory(err);
    safetensors_close(st);
    if (rc) {
        golden_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

void golden_close(struct golden *g) {
    if (!g) return;
    golden_free_state(g->layers, g->n_layers);
    free(g->logits);
    free(g->ids);
    free(g->greedy_ids);
    free(g);
}
