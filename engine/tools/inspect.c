/* inspect.c - a checkpoint as plain facts for a person: model and tokenizer are opened as for serving, so what they
 * refuse is the first fault. */
#include "engine/base/fail.h"
#include "engine/model/model.h"
#include "engine/state/state_layout.h"
#include "engine/text/tokenizer.h"
#include "tools.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What report.priv holds: the model, whose names the report points to, and the list of tensors. */
struct inspected {
    struct model *model;
    struct rod_tensor_info *tensors;
};

/* With a full window. */
static uint64_t session_bytes(const struct model_dims *d, enum dtype act, enum dtype window) {
    struct state_layout l = state_layout_of(d, act);
    l.window = window;
    return state_bytes_at(&l, d->visible);
}

static void report_copy_dims(struct rod_inspect_report *r, const struct model *m) {
    const struct model_dims *d = &m->dims;
    snprintf(r->name, sizeof r->name, "%s", m->name);
    snprintf(r->layout, sizeof r->layout, "%s", m->layout);
    snprintf(r->arch, sizeof r->arch, "%s", d->plus ? "rodimus_plus" : "rodimus");
    snprintf(r->weight_dtype, sizeof r->weight_dtype, "%s", dtype_name(m->weight_dtype));
    snprintf(r->weights, sizeof r->weights, "%s", model_weights_name(m));
    model_render_fingerprint(m->fingerprint, r->fingerprint);
    r->D = d->D, r->L = d->L, r->E = d->E, r->M = d->M, r->R = d->R, r->K = d->K, r->V = d->V;
    r->H = d->H, r->Hk = d->Hk, r->Hv = d->Hv, r->P = d->P, r->F = d->F;
    r->window_tok = d->visible;
    r->rot_dim = d->rot_dim;
    r->rot_base = d->rot_base;
    r->norm_eps = d->norm_eps;
    r->k_eps = d->k_eps;
    r->tied = d->tied;
    r->scale_embed = d->scale_embed;
    r->norm_embed = d->norm_embed;
    r->qk_norm = d->qk_norm;
    r->rot_interleaved = d->rot_interleaved;
    r->bos_id = d->bos_id;
    r->n_eos_ids = m->n_eos_ids;
    memcpy(r->eos_ids, m->eos_ids, sizeof m->eos_ids);
    r->n_params = m->n_params;
    r->weight_bytes = model_step_bytes(m);
    r->S_bytes = model_state_bytes(d, 4, 0, 0);
    r->conv16_bytes = model_state_bytes(d, 0, 2, 0);
    r->window16_bytes = model_state_bytes(d, 0, 0, 2);
    r->session16_bytes = session_bytes(d, DTYPE_BF16, DTYPE_BF16);
    r->session32_bytes = session_bytes(d, DTYPE_F32, DTYPE_F32);
    r->fp8_bytes = d->plus ? session_bytes(d, DTYPE_BF16, DTYPE_FP8) : 0;
    r->int8_bytes = d->plus ? session_bytes(d, DTYPE_F32, DTYPE_INT8) : 0;
}

static void report_copy_tensors(struct rod_inspect_report *r, const struct model *m, struct rod_tensor_info *tensors) {
    for (size_t i = 0; i < m->n_tensors; i++) {
        const struct model_tensor *t = &m->tensors[i];
        tensors[i] = (struct rod_tensor_info){.name = t->name,
                                              .file = t->file,
                                              .dtype = t->dtype,
                                              .n_bytes = t->n_bytes,
                                              .n_dims = t->n_dims,
                                              .used = t->used};
        memcpy(tensors[i].shape, t->shape, sizeof tensors[i].shape);
        r->file_bytes += t->n_bytes;
    }
    r->tensors = tensors;
    r->n_tensors = m->n_tensors;
    for (uint32_t i = 0; i < m->n_warnings; i++) r->warnings[r->n_warnings++] = m->warnings[i];
}

/* None is fine, as it is for serving. */
static int read_tokenizer(const char *dir, bool *has, uint32_t *n_ids, int32_t *eos_id, struct rod_error *err) {
    struct tokenizer *tokenizer;
    int rc = tokenizer_open(dir, &tokenizer, err);
    *has = !rc;
    if (rc) return rc == ROD_ENOTFOUND ? 0 : rc;
    *n_ids = tokenizer_n_ids(tokenizer);
    *eos_id = tokenizer_eos(tokenizer);
    tokenizer_close(tokenizer);
    return 0;
}

int rod_inspect(const char *dir, const struct rod_progress_to *progress, struct rod_inspect_report **out,
                struct rod_error *err) {
    struct model *model;
    int rc = model_open(dir, NULL, progress, &model, err);
    if (rc) return rc;
    bool has_tokenizer;
    uint32_t tokenizer_ids = 0;
    int32_t eos_id = -1;
    rc = read_tokenizer(dir, &has_tokenizer, &tokenizer_ids, &eos_id, err);
    if (rc) {
        model_close(model);
        return rc;
    }
    model_check_tokenizer(model, tokenizer_ids, eos_id);
    struct rod_inspect_report *report = calloc(1, sizeof *report);
    struct inspected *inspected = calloc(1, sizeof *inspected);
    struct rod_tensor_info *tensors = calloc(model->n_tensors + 1, sizeof *tensors);
    if (!report || !inspected || !tensors) {
        free(report);
        free(inspected);
        free(tensors);
        model_close(model);
        return rod_fail_no_memory(err);
    }
    *inspected = (struct inspected){model, tensors};
    report->priv = inspected;
    report->has_tokenizer = has_tokenizer;
    report->tokenizer_ids = tokenizer_ids;
    report_copy_dims(report, model);
    report_copy_tensors(report, model, tensors);
    *out = report;
    return 0;
}

void rod_inspect_free(struct rod_inspect_report *report) {
    if (!report) return;
    struct inspected *inspected = report->priv;
    model_close(inspected->model);
    free(inspected->tensors);
    free(inspected);
    free(report);
}
