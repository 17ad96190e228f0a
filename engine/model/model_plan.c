/* model_plan.c - which tensors a model has, under which names, in which shapes, in the published layout and in FLA's
 * (flash-linear-attention): one table that opening, synthetic weights and counting all read. */
#include "model_internal.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum size { ONE, D, E, E2, M2, R, K, V, HP, HKP, HVP, P, F, F2 };
enum when { ALWAYS, PLUS, QK_NORM, NORM_EMBED, UNTIED };
enum kind { VECTOR, MATRIX, PRODUCT, CONV }; /* PRODUCT: a matrix that may be kept in fewer bits */

/* A weight, its name in the published layout and its one or two names in the FLA layout (two: row-stacked halves). */
struct spec {
    size_t offset;
    enum when when;
    enum kind kind;
    enum size rows, cols;
    enum model_init init;
    const char *published, *fla, *fla_second;
};

#define G(field) offsetof(struct model, field)
static const struct spec global_specs[] = {
    {G(embed), ALWAYS, MATRIX, V, D, INIT_EMBED, "model.embeddings.weight", "model.embeddings.weight", NULL},
    {G(embed_norm), NORM_EMBED, VECTOR, ONE, D, INIT_NORM, "model.embed_norm.weight", "model.embed_norm.weight", NULL},
    {G(norm_f), ALWAYS, VECTOR, ONE, D, INIT_NORM, "model.norm_f.weight", "model.norm.weight", NULL},
    {G(lm_head), UNTIED, PRODUCT, V, D, INIT_PROJECTION, "lm_head.weight", "lm_head.weight", NULL},
};
#undef G

#define W(field) offsetof(struct model_layer, field)
#define INNER    "mixer.inner_mixer."
static const struct spec layer_specs[] = {
    {W(mixer_norm), ALWAYS, VECTOR, ONE, D, INIT_NORM, "mixer_norm.weight", "mixer_norm.weight", NULL},
    {W(fc), ALWAYS, PRODUCT, E2, D, INIT_PROJECTION, "mixer.fc.weight", "mixer.up_proj.weight",
     "mixer.gate_proj.weight"},
    {W(conv), ALWAYS, CONV, E, K, INIT_CONV, INNER "short_conv.conv1d.weight", "mixer.short_conv.weight", NULL},
    {W(conv_b), ALWAYS, VECTOR, ONE, E, INIT_BIAS, INNER "short_conv.conv1d.bias", "mixer.short_conv.bias", NULL},
    {W(residual), ALWAYS, VECTOR, ONE, E, INIT_NORM, INNER "residual_weight", "mixer.residual_weight", NULL},
    {W(in_proj), ALWAYS, MATRIX, M2, E, INIT_PROJECTION, INNER "in_proj.weight", "mixer.q_proj.weight",
     "mixer.k_proj.weight"},
    {W(c0), ALWAYS, MATRIX, R, E, INIT_PROJECTION, INNER "ch_gate_proj.0.weight", "mixer.i_gate_proj.0.weight", NULL},
    {W(c1), ALWAYS, MATRIX, E, R, INIT_PROJECTION, INNER "ch_gate_proj.1.weight", "mixer.i_gate_proj.1.weight", NULL},
    {W(c1_b), ALWAYS, VECTOR, ONE, E, INIT_BIAS, INNER "ch_gate_proj.1.bias", "mixer.i_gate_proj.1.bias", NULL},
    {W(mem_gate), ALWAYS, MATRIX, M2, E, INIT_PROJECTION, INNER "mem_gate_proj.weight", "mixer.g_gate_proj.weight",
     "mixer.tau_gate_proj.weight"},
    {W(mem_gate_b), ALWAYS, VECTOR, ONE, M2, INIT_GATE_BIAS, INNER "mem_gate_proj.bias", "mixer.g_gate_proj.bias",
     "mixer.tau_gate_proj.bias"},
    {W(act_norm), ALWAYS, VECTOR, ONE, E, INIT_NORM, "mixer.act_norm.weight", "mixer.activation_norm.weight", NULL},
    {W(out_proj), ALWAYS, PRODUCT, D, E, INIT_PROJECTION, "mixer.out_proj.weight", "mixer.down_proj.weight", NULL},
    {W(attn_norm), PLUS, VECTOR, ONE, D, INIT_NORM, "attn_norm.weight", "ska_attn_norm.weight", NULL},
    {W(q), PLUS, PRODUCT, HP, D, INIT_PROJECTION, "attn.q_proj.weight", "ska_attn.q_proj.weight", NULL},
    {W(k), PLUS, PRODUCT, HKP, D, INIT_PROJECTION, "attn.k_proj.weight", "ska_attn.k_proj.weight", NULL},
    {W(v), PLUS, PRODUCT, HVP, D, INIT_PROJECTION, "attn.v_proj.weight", "ska_attn.v_proj.weight", NULL},
    {W(q_norm), QK_NORM, VECTOR, ONE, P, INIT_NORM, "attn.q_norm.weight", "ska_attn.q_norm.weight", NULL},
    {W(k_norm), QK_NORM, VECTOR, ONE, P, INIT_NORM, "attn.k_norm.weight", "ska_attn.k_norm.weight", NULL},
    {W(ao), PLUS, PRODUCT, D, HP, INIT_PROJECTION, "attn.out_proj.weight", "ska_attn.o_proj.weight", NULL},
    {W(ffn_norm), PLUS, VECTOR, ONE, D, INIT_NORM, "ffn_norm.weight", "mlp_norm.weight", NULL},
    {W(f1), PLUS, PRODUCT, F2, D, INIT_PROJECTION, "ffn.fc.weight", "mlp.up_proj.weight", "mlp.gate_proj.weight"},
    {W(f2), PLUS, PRODUCT, D, F, INIT_PROJECTION, "ffn.out_proj.weight", "mlp.down_proj.weight", NULL},
};
#undef W
#undef INNER

static uint32_t plan_size_of(const struct model_dims *d, enum size size) {
    switch (size) {
    case ONE: return 1;
    case D: return d->D;
    case E: return d->E;
    case E2: return 2 * d->E;
    case M2: return 2 * d->M;
    case R: return d->R;
    case K: return d->K;
    case V: return d->V;
    case HP: return d->H * d->P;
    case HKP: return d->Hk * d->P;
    case HVP: return d->Hv * d->P;
    case P: return d->P;
    case F: return d->F;
    case F2: return 2 * d->F;
    }
    return 0;
}

static bool piece_is_wanted(const struct model_dims *d, enum when when) {
    switch (when) {
    case ALWAYS: return true;
    case PLUS: return d->plus;
    case QK_NORM: return d->plus && d->qk_norm;
    case NORM_EMBED: return d->norm_embed;
    case UNTIED: return !d->tied;
    }
    return false;
}

/* Visits a weight's one or two tensors. A vector in two pieces becomes two rows: [2M] = [2, M], the same order. */
static int plan_visit_weight(const struct model_dims *d, const struct spec *s, bool fla, struct model_piece *piece,
                             const char *prefix, int (*visit)(void *arg, const struct model_piece *piece), void *arg) {
    if (!piece_is_wanted(d, s->when)) return 0;
    const char *names[2] = {fla ? s->fla : s->published, fla ? s->fla_second : NULL};
    uint32_t rows = plan_size_of(d, s->rows), cols = plan_size_of(d, s->cols);
    piece->n_parts = names[1] ? 2 : 1;
    if (piece->n_parts == 2 && s->kind == VECTOR) {
        rows = 2;
        cols /= 2;
    }
    piece->offset = s->offset;
    piece->init = s->init;
    piece->quantisable = s->kind == PRODUCT;
    piece->weight_rows = rows;
    piece->weight_cols = piece->cols = cols;
    assert(rows % piece->n_parts == 0);
    piece->rows = rows / piece->n_parts;
    switch (s->kind) {
    case VECTOR:
        piece->n_dims = 1;
        piece->shape[0] = cols;
        break;
    case MATRIX:
    case PRODUCT:
        piece->n_dims = 2;
        piece->shape[0] = piece->rows;
        piece->shape[1] = cols;
        break;
    case CONV: /* depthwise: one input channel a filter */
        piece->n_dims = 3;
        piece->shape[0] = piece->rows;
        piece->shape[1] = 1;
        piece->shape[2] = cols;
        break;
    }
    for (piece->part = 0; piece->part < piece->n_parts; piece->part++) {
        const int n_name = snprintf(piece->name, sizeof piece->name, "%s%s", prefix, names[piece->part]);
        assert(n_name > 0 && (size_t)n_name < sizeof piece->name);
        int rc = visit(arg, piece);
        if (rc) return rc;
    }
    return 0;
}

int model_plan(const struct model_dims *dims, bool fla, int (*visit)(void *arg, const struct model_piece *piece),
               void *arg) {
    struct model_piece piece = {0};
    for (size_t i = 0; i < sizeof global_specs / sizeof *global_specs; i++) {
        int rc = plan_visit_weight(dims, &global_specs[i], fla, &piece, "", visit, arg);
        if (rc) return rc;
    }
    piece.in_layer = true;
    for (piece.layer = 0; piece.layer < dims->L; piece.layer++) {
        char prefix[40];
        snprintf(prefix, sizeof prefix, "model.layers.%u.", piece.layer);
        for (size_t i = 0; i < sizeof layer_specs / sizeof *layer_specs; i++) {
            int rc = plan_visit_weight(dims, &layer_specs[i], fla, &piece, prefix, visit, arg);
            if (rc) return rc;
        }
    }
    return 0;
}

struct weight *model_piece_weight(struct model *model, const struct model_piece *piece) {
    assert(!piece->in_layer || piece->layer < model->dims.L);
    char *base = piece->in_layer ? (char *)&model->layers[piece->layer] : (char *)model;
    return (struct weight *)(void *)(base + piece->offset);
}

void model_piece_bind(struct model *model, const struct model_piece *piece, const void *data, enum dtype dtype) {
    struct weight *w = model_piece_weight(model, piece);
    assert(piece->part < piece->n_parts && piece->n_parts <= 2 && !w->part[piece->part].data);
    assert(piece->rows * piece->n_parts == piece->weight_rows && piece->cols == piece->weight_cols);
    w->n_parts = piece->n_parts;
    w->rows = piece->weight_rows;
    w->cols = piece->weight_cols;
    w->quantisable = piece->quantisable;
    w->part[piece->part] = (struct weight_part){.data = data, .dtype = dtype, .rows = piece->rows};
    uint64_t n = (uint64_t)piece->rows * piece->cols;
    model->n_params += n;
    model->weight_bytes += n * dtype_bytes(dtype);
}

/* ---- bytes ---- */

struct step_sum {
    struct model *model; /* read alone */
    uint64_t bytes;
};

static int step_piece(void *arg, const struct model_piece *piece) {
    struct step_sum *sum = arg;
    sum->bytes += weight_kept_bytes(sum->model, model_piece_weight(sum->model, piece));
    return 0;
}

uint64_t model_step_bytes(const struct model *model) {
    struct step_sum sum = {(struct model *)(uintptr_t)model, 0};
    struct weight_quant q;
    model_plan(&model->dims, false, step_piece, &sum); /* one piece a weight */
    if (model->dims.tied && weight_quant_of(model, &model->lm_head, &q))
        sum.bytes += weight_kept_bytes(model, &model->lm_head) - weight_kept_bytes(model, &model->embed);
    return sum.bytes;
}

uint64_t model_state_bytes(const struct model_dims *d, size_t S_bytes, size_t conv_bytes, size_t window_bytes) {
    uint64_t S = (uint64_t)d->M * d->E * S_bytes;
    uint64_t conv = (uint64_t)d->K * d->E * conv_bytes;
    uint64_t window = (uint64_t)d->visible * (d->Hk + d->Hv) * d->P * window_bytes;
    return d->L * (S + conv + window);
}

/* ---- a file's tensors, by name ---- */

static int tensor_by_name(const void *a, const void *b) {
    return strcmp(((const struct model_tensor *)a)->name, ((const struct model_tensor *)b)->name);
}

void model_sort_tensors(struct model *model) {
    qsort(model->tensors, model->n_tensors, sizeof *model->tensors, tensor_by_name);
}

struct model_tensor *model_find_tensor(const struct model *model, const char *name) {
    struct model_tensor key = {.name = name};
    if (!model->n_tensors) return NULL;
    return bsearch(&key, model->tensors, model->n_tensors, sizeof key, tensor_by_name);
}
