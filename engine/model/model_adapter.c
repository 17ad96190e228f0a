/* model_adapter.c - a PEFT LoRA adapter: each pair of its tensors becomes the delta of a weight (README.md, "An
 * adapter"). What cannot be honoured is refused, as the model would answer otherwise than it was trained to. */
#include "engine/base/fail.h"
#include "engine/base/file.h"
#include "model_internal.h"
#include "safetensors.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_FILE      "adapter_config.json"
#define WEIGHTS_FILE     "adapter_model.safetensors"
#define PREFIX           "base_model.model."
#define MAX_CONFIG_BYTES (4u << 20)

struct model_adapter {
    struct safetensors *st;
    struct weight_delta *deltas; /* one a pair */
    size_t n_deltas;
};

struct merging {
    struct model *model;
    struct model_adapter *adapter;
    struct adapter_config config;
    bool *used;        /* [tensors of the file] */
    bool *known, *met; /* [targets of the configuration]: of a matrix of the model, of a pair */
    struct rod_error *err;
};

static int adapter_read_config(struct merging *m, const char *dir) {
    struct file_bytes json;
    int rc = file_load(dir, CONFIG_FILE, MAX_CONFIG_BYTES, &json, m->err);
    if (rc) return rc;
    rc = adapter_config_parse(json.data, json.n, &m->config, m->err);
    model_fingerprint_add(m->model, CONFIG_FILE, json.data, json.n);
    file_wipe(&json);
    return rc;
}

static int adapter_open_file(struct merging *m, const char *dir) {
    char *path = file_path(dir, WEIGHTS_FILE);
    if (!path) return rod_fail_no_memory(m->err);
    struct model_adapter *a = m->adapter;
    const int rc = safetensors_open(path, &a->st, m->err);
    free(path);
    if (rc) return rc;
    const size_t n = a->st->table.n_tensors;
    a->deltas = calloc(n + 1, sizeof *a->deltas);
    m->used = calloc(n + 1, sizeof *m->used);
    m->known = calloc(m->config.n_targets + 1, sizeof *m->known);
    m->met = calloc(m->config.n_targets + 1, sizeof *m->met);
    if (!a->deltas || !m->used || !m->known || !m->met) return rod_fail_no_memory(m->err);
    for (size_t i = 0; i < n; i++) {
        const struct safetensors_tensor *t = &a->st->table.tensors[i];
        model_fingerprint_add_tensor(m->model, t->dtype_name, t->shape, t->n_dims, t->name, safetensors_data(a->st, t),
                                     t->n_bytes);
    }
    if (a->st->modified_unix_s > m->model->created_unix_s) m->model->created_unix_s = a->st->modified_unix_s;
    return 0;
}

/* Half a pair; NULL in *out: it is not there. */
static int adapter_take_half(struct merging *m, const char *module, char half, uint32_t rows, uint32_t cols,
                             const void **out, enum dtype *dtype) {
    char name[160], text[160];
    snprintf(name, sizeof name, PREFIX "%s.lora_%c.weight", module, half);
    struct safetensors *st = m->adapter->st;
    const struct safetensors_tensor *t = safetensors_find(st, name);
    *out = NULL;
    if (!t) return 0;
    if (t->n_dims != 2 || t->shape[0] != rows || t->shape[1] != cols)
        return rod_fail(m->err, ROD_EMODEL, "tensor %s has shape %s, the model and " CONFIG_FILE " call for [%u, %u].",
                        name, safetensors_render_shape(t->shape, t->n_dims, text, sizeof text), rows, cols);
    if (!dtype_by_name(t->dtype_name, dtype))
        return rod_fail(m->err, ROD_EMODEL, "tensor %s has dtype %s, adapters must be F32, F16 or BF16.", name,
                        t->dtype_name);
    *out = safetensors_data(st, t);
    m->used[t - st->table.tensors] = true;
    return 0;
}

static int adapter_check_target(struct merging *m, const char *module, bool has_pair) {
    bool met = !m->config.targets;
    for (size_t i = 0; i < m->config.n_targets; i++) {
        if (!adapter_config_matches(m->config.targets[i], module)) continue;
        m->known[i] = met = true;
        m->met[i] |= has_pair;
    }
    if (met || !has_pair) return 0;
    return rod_fail(m->err, ROD_EMODEL,
                    "tensor " PREFIX "%s.lora_A.weight is not used: target_modules does not name its module.", module);
}

static int adapter_take_pair(void *arg, const struct model_piece *piece) {
    struct merging *m = arg;
    static const char end[] = ".weight";
    const size_t len = strlen(piece->name), n_end = sizeof end - 1;
    /* A lookup table's factors have other names, and a tied head would have to follow: adapter_check_used refuses. */
    if (piece->n_dims != 2 || len <= n_end || strcmp(piece->name + len - n_end, end) != 0 ||
        (!piece->in_layer && piece->offset == offsetof(struct model, embed)))
        return 0;
    char module[sizeof piece->name];
    snprintf(module, sizeof module, "%.*s", (int)(len - n_end), piece->name);
    struct weight_delta delta = {.rank = adapter_config_rank(&m->config, module), .cols = piece->cols};
    int rc = adapter_take_half(m, module, 'A', delta.rank, piece->cols, &delta.a, &delta.a_dtype);
    if (!rc) rc = adapter_take_half(m, module, 'B', piece->rows, delta.rank, &delta.b, &delta.b_dtype);
    if (rc) return rc;
    if (!delta.a && !delta.b) return adapter_check_target(m, module, false);
    if (!delta.a || !delta.b)
        return rod_fail(m->err, ROD_EMODEL,
                        "tensor " PREFIX "%s.lora_%c.weight is missing, the other half of its pair is there.", module,
                        delta.a ? 'B' : 'A');
    if ((rc = adapter_check_target(m, module, true))) return rc;
    const struct weight_part *part = &model_piece_weight(m->model, piece)->part[piece->part];
    if (part->codes)
        return rod_fail(m->err, ROD_EUNSUPPORTED,
                        "module %s of the model is stored in %s; adapters are merged into 16-bit or 32-bit weights.",
                        module, weight_format_name(part->codes->quant.format));
    delta.scale = (float)adapter_config_scale(&m->config, module);
    struct weight_delta *kept = &m->adapter->deltas[m->adapter->n_deltas++];
    *kept = delta;
    model_piece_weight(m->model, piece)->part[piece->part].delta = kept;
    return 0;
}

/* Every tensor has its place, and every target a matrix with tensors: or the adapter is another model's, or not
 * complete.
 */
static int adapter_check_used(const struct merging *m) {
    const struct safetensors_table *table = &m->adapter->st->table;
    for (size_t i = 0; i < table->n_tensors; i++) {
        const char *name = table->tensors[i].name;
        if (m->used[i]) continue;
        if (strstr(name, "embed"))
            return rod_fail(m->err, ROD_EUNSUPPORTED, "tensor %.150s: adapters of the embedding are not supported.",
                            name);
        return rod_fail(m->err, ROD_EMODEL,
                        "tensor %.150s is not used: it is no lora_A.weight or lora_B.weight of a matrix of this model.",
                        name);
    }
    for (size_t i = 0; i < m->config.n_targets; i++)
        if (!m->known[i])
            return rod_fail(m->err, ROD_EMODEL,
                            "target_modules names %.100s, and the model has no such matrix that may have a pair.",
                            m->config.targets[i]);
        else if (!m->met[i])
            return rod_fail(m->err, ROD_EMODEL, "target_modules names %.100s, and " WEIGHTS_FILE " has nothing of it.",
                            m->config.targets[i]);
    if (!m->adapter->n_deltas) return rod_fail(m->err, ROD_EMODEL, WEIGHTS_FILE " holds no tensors.");
    return 0;
}

int model_adapter_open(struct model *model, bool fla, const char *dir, struct model_adapter **out,
                       struct rod_error *err) {
    struct merging m = {.model = model, .adapter = calloc(1, sizeof *m.adapter), .err = err};
    if (!m.adapter) return rod_fail_no_memory(err);
    int rc = adapter_read_config(&m, dir);
    if (!rc) rc = adapter_open_file(&m, dir);
    if (!rc) rc = model_plan(&model->dims, fla, adapter_take_pair, &m);
    if (!rc) rc = adapter_check_used(&m);
    adapter_config_free(&m.config);
    free(m.used);
    free(m.known);
    free(m.met);
    if (rc)
        model_adapter_close(m.adapter);
    else
        *out = m.adapter;
    return rc;
}

void model_adapter_close(struct model_adapter *adapter) {
    if (!adapter) return;
    safetensors_close(adapter->st);
    free(adapter->deltas);
    free(adapter);
}
