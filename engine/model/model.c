/* model.c - opens a checkpoint directory: config.json says what must be there, the safetensors files say what is. */
#include "engine/base/fail.h"
#include "engine/base/file.h"
#include "engine/base/utf8.h"
#include "model_internal.h"
#include "safetensors.h"

#include <assert.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_JSON_BYTES (64u << 20) /* an index of a huge model has a few MB */

/* What model.priv holds: the mapped files, sorted by path. */
struct files {
    struct model_storage base;
    struct safetensors **st;
    size_t n;
    struct model_adapter *adapter; /* NULL = none */
    struct weight_codes *codes;    /* of the weights that are stored in fewer bits */
    size_t n_codes;
};

/* ---- small helpers ---- */

static bool file_is_there(const char *dir, const char *file) {
    char *path = file_path(dir, file);
    const bool there = path && faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0; /* a link to nothing, too */
    free(path);
    return there;
}

/* dir/file; data stays NULL when it is optional and not there. */
static int model_load_file(const char *dir, const char *file, bool optional, struct file_bytes *out,
                           struct rod_error *err) {
    const int rc = file_load(dir, file, MAX_JSON_BYTES, out, err);
    return optional && rc == ROD_ENOTFOUND ? 0 : rc;
}

/* ---- files ---- */

static int files_open_shard(const char *dir, const char *file, struct files *files, struct rod_error *err) {
    char *path = file_path(dir, file);
    if (!path) return rod_fail_no_memory(err);
    int rc = safetensors_open(path, &files->st[files->n], err);
    free(path);
    if (!rc) files->n++;
    return rc;
}

/* Every tensor where the index says, and nowhere else. */
static int files_check_places(const struct safetensors_index *index, const struct files *files, struct rod_error *err) {
    for (size_t i = 0; i < index->n_places; i++) {
        const struct safetensors_place *place = &index->places[i];
        const char *found = NULL;
        bool in_place = false;
        for (size_t f = 0; f < files->n; f++) {
            if (!safetensors_find(files->st[f], place->tensor)) continue;
            if (!strcmp(index->files[f], place->file))
                in_place = true;
            else
                found = index->files[f];
        }
        if (in_place && !found) continue;
        if (in_place)
            return rod_fail(err, ROD_EMODEL, "tensor %.120s is in two shards, %.80s and %.80s", place->tensor,
                            place->file, found);
        if (found)
            return rod_fail(err, ROD_EMODEL, "tensor %.120s is in shard %.80s, the index says %.80s", place->tensor,
                            found, place->file);
        return rod_fail(err, ROD_EMODEL, "tensor %.120s is missing from shard %.80s", place->tensor, place->file);
    }
    return 0;
}

static int place_by_tensor(const void *a, const void *b) {
    return strcmp(((const struct safetensors_place *)a)->tensor, ((const struct safetensors_place *)b)->tensor);
}

/* Tensors of the shards count although the index does not list them; a warning says that the two disagree. */
static void files_check_unlisted(struct model *model, const struct safetensors_index *index,
                                 const struct files *files) {
    size_t n = 0;
    const char *first = NULL;
    for (size_t f = 0; f < files->n; f++)
        for (size_t i = 0; i < files->st[f]->table.n_tensors; i++) {
            struct safetensors_place key = {.tensor = files->st[f]->table.tensors[i].name};
            if (bsearch(&key, index->places, index->n_places, sizeof key, place_by_tensor)) continue;
            if (!n++ || strcmp(key.tensor, first) < 0) first = key.tensor;
        }
    if (n)
        model_warn(model,
                   "%zu tensor%s of the shards %s not in model.safetensors.index.json and %s read all the same, "
                   "%.100s first",
                   n, n == 1 ? "" : "s", n == 1 ? "is" : "are", n == 1 ? "is" : "are", first);
}

static int files_open_sharded(struct model *model, const char *dir, const char *json, size_t len, struct files *files,
                              struct rod_error *err) {
    struct safetensors_index index;
    int rc = safetensors_parse_index(json, len, "model.safetensors.index.json", &index, err);
    if (rc) return rc;
    files->st = calloc(index.n_files, sizeof *files->st);
    if (!files->st) rc = rod_fail_no_memory(err);
    for (size_t i = 0; i < index.n_files && !rc; i++) rc = files_open_shard(dir, index.files[i], files, err);
    if (!rc) rc = files_check_places(&index, files, err);
    if (!rc) files_check_unlisted(model, &index, files);
    safetensors_free_index(&index);
    return rc;
}

static int files_open(struct model *model, const char *dir, struct files *files, struct rod_error *err) {
    files->st = calloc(1, sizeof *files->st);
    if (!files->st) return rod_fail_no_memory(err);
    int rc = files_open_shard(dir, "model.safetensors", files, err);
    if (!rc && file_is_there(dir, "model.safetensors.index.json"))
        model_warn(model, "model.safetensors is read; model.safetensors.index.json beside it, and its shards, are not");
    if (rc != ROD_ENOTFOUND) return rc;

    free(files->st);
    files->st = NULL;
    struct file_bytes json;
    rc = model_load_file(dir, "model.safetensors.index.json", true, &json, err);
    if (rc) return rc;
    if (json.data) {
        rc = files_open_sharded(model, dir, json.data, json.n, files, err);
        file_wipe(&json);
        return rc;
    }
    bool has_pickle = false;
    static const char *const pickles[] = {"pytorch_model.bin", "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < 2; i++) has_pickle |= file_is_there(dir, pickles[i]);
    return rod_fail(err, ROD_ENOTFOUND, "%.250s has neither model.safetensors nor model.safetensors.index.json%s", dir,
                    has_pickle ? "; pytorch_model.bin is not read: deploy/convert-checkpoint makes safetensors of it"
                               : "");
}

/* ---- binding ---- */

static int model_list_tensors(struct model *model, const struct files *files, struct rod_error *err) {
    size_t n = 0;
    for (size_t f = 0; f < files->n; f++) n += files->st[f]->table.n_tensors;
    model->tensors = calloc(n + 1, sizeof *model->tensors);
    if (!model->tensors) return rod_fail_no_memory(err);
    for (size_t f = 0; f < files->n; f++)
        for (size_t i = 0; i < files->st[f]->table.n_tensors; i++) {
            const struct safetensors_tensor *t = &files->st[f]->table.tensors[i];
            struct model_tensor *m = &model->tensors[model->n_tensors++];
            *m = (struct model_tensor){.name = t->name,
                                       .file = files->st[f]->path,
                                       .data = safetensors_data(files->st[f], t),
                                       .dtype = t->dtype_name,
                                       .n_bytes = t->n_bytes,
                                       .n_dims = t->n_dims};
            memcpy(m->shape, t->shape, sizeof m->shape);
        }
    model_sort_tensors(model);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(model->tensors[i - 1].name, model->tensors[i].name))
            return rod_fail(err, ROD_EMODEL, "tensor %.120s is in two shards, %.120s and %.120s",
                            model->tensors[i].name, model->tensors[i - 1].file, model->tensors[i].file);
    return 0;
}

struct binding {
    struct model *model;
    struct files *files;
    const struct model_config *config;
    struct rod_error *err;
};

/* A weight that the directory keeps in fewer bits. Read as numbers it has the type of its scales if that has 16 bits.
 */
static void binding_take_codes(struct binding *b, const struct model_piece *piece, const struct weight_codes *codes) {
    struct weight_codes *kept = &b->files->codes[b->files->n_codes++];
    *kept = *codes;
    const enum dtype wide = codes->scale_dtype != DTYPE_F32              ? codes->scale_dtype
                            : !strcmp(b->config->torch_dtype, "float16") ? DTYPE_F16
                                                                         : DTYPE_BF16;
    model_piece_bind(b->model, piece, kept->codes, wide);
    model_piece_weight(b->model, piece)->part[piece->part].codes = kept;
}

static int binding_take_piece(void *arg, const struct model_piece *piece) {
    struct binding *b = arg;
    struct weight_codes codes = {0};
    const int rc = model_quant_find(b->model, &b->config->quant, piece, &codes, b->err);
    if (rc) return rc;
    if (codes.codes) {
        binding_take_codes(b, piece, &codes);
        return 0;
    }
    struct model_tensor *t = model_find_tensor(b->model, piece->name);
    char expected[80], got[160];
    safetensors_render_shape(piece->shape, piece->n_dims, expected, sizeof expected);
    if (!t)
        return rod_fail(b->err, ROD_EMODEL, "tensor %s of shape %s is missing from %.200s%s", piece->name, expected,
                        b->files->st[0]->path, b->files->n > 1 ? " and the other shards" : "");
    if (t->n_dims != piece->n_dims || memcmp(t->shape, piece->shape, piece->n_dims * sizeof *t->shape))
        return rod_fail(b->err, ROD_EMODEL, "tensor %s in %.150s has shape %s, config.json calls for %s", piece->name,
                        t->file, safetensors_render_shape(t->shape, t->n_dims, got, sizeof got), expected);
    enum dtype dtype;
    if (!dtype_by_name(t->dtype, &dtype))
        return rod_fail(b->err, ROD_EMODEL, "tensor %s in %.200s has dtype %s, weights must be F32, F16 or BF16",
                        piece->name, t->file, t->dtype);
    assert(!t->used); /* a plan names each tensor once */
    t->used = true;
    model_piece_bind(b->model, piece, t->data, dtype);
    return 0;
}

/* ---- warnings ---- */

static bool same_values(const struct weight_part *a, const struct weight_part *b, size_t n) {
    if (a->dtype == b->dtype) return !memcmp(a->data, b->data, n * dtype_bytes(a->dtype));
    float x[256], y[256];
    for (size_t i = 0; i < n; i += 256) {
        size_t m = n - i < 256 ? n - i : 256;
        weight_part_to_f32(a, i, m, x);
        weight_part_to_f32(b, i, m, y);
        if (memcmp(x, y, m * sizeof *x)) return false;
    }
    return true;
}

static const char head_name[] = "lm_head.weight";

/* A tied checkpoint may store the head all the same (the published 1.6B does). The embedding is what counts. */
static void model_check_tied_head(struct model *model) {
    const struct model_tensor *t = model_find_tensor(model, head_name);
    if (!model->dims.tied || !t) return;
    struct weight_part head = {.data = t->data, .rows = model->dims.V};
    if (!dtype_by_name(t->dtype, &head.dtype) || t->n_dims != 2 || t->shape[0] != model->dims.V ||
        t->shape[1] != model->dims.D ||
        !same_values(&model->embed.part[0], &head, (size_t)model->dims.V * model->dims.D))
        model_warn(model, "tie_word_embeddings is true, but lm_head.weight is stored and differs from the embedding; "
                          "the embedding is used");
}

/* Some programs write a bias of zeros beside every weight that they quantise. */
static bool tensor_is_zero(const struct model_tensor *t) {
    enum dtype dtype;
    const bool is_float = dtype_by_name(t->dtype, &dtype);
    const struct weight_part part = {.data = t->data, .dtype = is_float ? dtype : DTYPE_F32};
    const uint64_t n = is_float ? t->n_bytes / dtype_bytes(dtype) : 0;
    for (uint64_t i = 0; i < n; i++) {
        float x;
        weight_part_to_f32(&part, i, 1, &x);
        if (x != 0) return false; /* nor is NaN */
    }
    return is_float;
}

/* A weight that the model has with another configuration, or a bias of one that has none here: without it the layer
 * would compute something else than it was trained for. */
static int binding_refuse_left_out(void *arg, const struct model_piece *piece) {
    struct binding *b = arg;
    char bias[sizeof piece->name];
    snprintf(bias, sizeof bias, "%s", piece->name);
    const size_t stem = strlen(bias) - strlen("weight");
    if (strlen(bias) > strlen("weight") && !strcmp(bias + stem, "weight")) memcpy(bias + stem, "bias", 5);
    struct model_tensor *t = model_find_tensor(b->model, piece->name);
    if (!t || t->used) {
        t = model_find_tensor(b->model, bias);
        if (t && !t->used) t->used = tensor_is_zero(t);
    }
    if (!t || t->used) return 0;
    return rod_fail(b->err, ROD_EMODEL,
                    "tensor %s in %.200s has no place in the model of config.json: without it results would differ",
                    t->name, t->file);
}

/* Of the layers that config.json counts. A checkpoint with more layers gets a warning, and runs. */
static int binding_check_left_out(struct binding *b, bool fla) {
    struct model_dims all = b->model->dims;
    all.plus = all.qk_norm = all.norm_embed = true;
    return model_plan(&all, fla, binding_refuse_left_out, b);
}

/* A stored tied head is not reported here: model_check_tied_head compares it. */
static void model_check_unused(struct model *model) {
    size_t n = 0;
    const char *first = NULL;
    for (size_t i = 0; i < model->n_tensors; i++) {
        const struct model_tensor *t = &model->tensors[i];
        if (t->used || (model->dims.tied && !strcmp(t->name, head_name))) continue;
        if (!n++) first = t->name;
    }
    if (n)
        model_warn(model, "%zu tensor%s in the files that this model does not use, %.120s first", n,
                   n == 1 ? " is" : "s are", first);
}

static void model_check_dtype(struct model *model, const char *said) {
    static const struct {
        const char *said;
        enum dtype dtype;
    } known[] = {{"float32", DTYPE_F32}, {"float16", DTYPE_F16}, {"bfloat16", DTYPE_BF16}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(said, known[i].said) && known[i].dtype != model->weight_dtype)
            model_warn(model, "config.json says torch_dtype %s, the weights are %s; the weights count", said,
                       dtype_name(model->weight_dtype));
}

static void model_check_quantised(struct model *model, const struct quant_config *said, size_t n_codes) {
    if (said->method != QUANT_NONE && !n_codes)
        model_warn(model,
                   "config.json's quantization_config says %s, no weight is kept so; the weights are read as they are",
                   said->name);
}

/* The CPU keeps each weight's own type; a GPU packs all matrices in one type, which may cost precision. */
static void model_check_mixed(struct model *model) {
    size_t n = 0;
    const struct model_tensor *first = NULL;
    for (size_t i = 0; i < model->n_tensors; i++) {
        const struct model_tensor *t = &model->tensors[i];
        enum dtype dtype;
        const char *kind = strrchr(t->name, '.'); /* not a quantised one's scales */
        if (!t->used || t->n_dims != 2 || !kind || strcmp(kind, ".weight") || !dtype_by_name(t->dtype, &dtype) ||
            dtype == model->weight_dtype)
            continue;
        if (!n++) first = t;
    }
    if (n)
        model_warn(model, "%zu matri%s not in %s as W_fc of layer 0 is, %.100s (%s) first: on a GPU all have one type",
                   n, n == 1 ? "x is" : "ces are", dtype_name(model->weight_dtype), first->name, first->dtype);
}

/* ---- open ---- */

static int model_read_generation(struct model *model, const char *dir, struct rod_error *err) {
    struct file_bytes json;
    int rc = model_load_file(dir, "generation_config.json", true, &json, err);
    if (rc || !json.data) return rc;
    struct model_generation g;
    rc = model_generation_parse(json.data, json.n, model->dims.V, &g, err);
    file_wipe(&json);
    if (rc) return rc;
    model->sampling = g.sampling;
    model_take_ends(model, MODEL_ENDS_GENERATION, &g.ends);
    if (model->dims.bos_id < 0) model->dims.bos_id = g.bos_id;
    return 0;
}

static int model_read_config(struct model *model, const char *dir, struct model_config *config, struct rod_error *err) {
    struct file_bytes json;
    int rc = model_load_file(dir, "config.json", false, &json, err);
    if (rc) return rc;
    rc = model_config_parse(json.data, json.n, config, err);
    model_fingerprint_add(model, "config.json", json.data, json.n);
    file_wipe(&json);
    if (rc) return rc;
    model->dims = config->dims;
    snprintf(model->layout, sizeof model->layout, "%s", config->fla ? "fla" : "published");
    model_take_ends(model, MODEL_ENDS_CONFIG, &config->ends);
    return 0;
}

static int model_read_fingerprint(struct model *model, const char *dir, const struct rod_progress_to *progress,
                                  struct rod_error *err) {
    struct file_bytes json;
    uint64_t done = 0, total = 0;
    int rc = model_load_file(dir, "tokenizer.json", true, &json, err);
    if (rc) return rc;
    if (json.data) model_fingerprint_add(model, "tokenizer.json", json.data, json.n);
    file_wipe(&json);
    for (size_t i = 0; i < model->n_tensors; i++) total += model->tensors[i].n_bytes;
    for (size_t i = 0; i < model->n_tensors; i++) {
        rod_progress(progress, "reading weights", "B", done, total);
        const struct model_tensor *t = &model->tensors[i];
        model_fingerprint_add_tensor(model, t->dtype, t->shape, t->n_dims, t->name, t->data, t->n_bytes);
        done += t->n_bytes;
    }
    rod_progress(progress, "reading weights", "B", total, total);
    return 0;
}

/* The last component of the directory, also for "." and "dir/". */
static void copy_name(const char *dir, char *name, size_t size) {
    char *real = realpath(dir, NULL);
    const char *slash = real ? strrchr(real, '/') : NULL;
    snprintf(name, size, "%s", slash && slash[1] ? slash + 1 : "model");
    utf8_mend(name, size);
    free(real);
}

/* Last, so that what compares stored weights has seen them as they are stored. */
static int model_add_adapter(struct model *model, bool fla, const char *dir, struct rod_error *err) {
    struct files *files = model->priv;
    struct rod_error fault;
    if (!dir || !*dir) return 0;
    const int rc = model_adapter_open(model, fla, dir, &files->adapter, &fault);
    if (rc) return rod_fail_at(err, rc, "adapter", "adapter: %.430s", fault.message);
    copy_name(dir, model->adapter, sizeof model->adapter);
    return 0;
}

static int model_open_into(struct model *model, const char *dir, const char *adapter,
                           const struct rod_progress_to *progress, struct rod_error *err) {
    struct files *files = model->priv;
    struct model_config config;
    int rc = model_read_config(model, dir, &config, err);
    if (rc) return rc;
    model->layers = calloc(model->dims.L, sizeof *model->layers);
    if (!model->layers) return rod_fail_no_memory(err);
    if ((rc = files_open(model, dir, files, err))) return rc;
    if ((rc = model_list_tensors(model, files, err))) return rc;
    files->codes = calloc(model->n_tensors + 1, sizeof *files->codes);
    if (!files->codes) return rod_fail_no_memory(err);
    struct binding binding = {model, files, &config, err};
    if ((rc = model_plan(&model->dims, config.fla, binding_take_piece, &binding))) return rc;
    if ((rc = binding_check_left_out(&binding, config.fla))) return rc;
    model_tie_head(model);
    model->weight_dtype = model->layers[0].fc.part[0].dtype;
    for (size_t f = 0; f < files->n; f++)
        if (files->st[f]->modified_unix_s > model->created_unix_s)
            model->created_unix_s = files->st[f]->modified_unix_s;
    if ((rc = model_read_generation(model, dir, err))) return rc;
    if ((rc = model_read_fingerprint(model, dir, progress, err))) return rc;
    model_check_dtype(model, config.torch_dtype);
    model_check_quantised(model, &config.quant, files->n_codes);
    model_check_mixed(model);
    model_check_tied_head(model);
    model_check_unused(model);
    copy_name(dir, model->name, sizeof model->name);
    return model_add_adapter(model, config.fla, adapter, err);
}

static void files_close(struct model_storage *storage) {
    struct files *files = (struct files *)(void *)storage;
    for (size_t i = 0; i < files->n; i++) safetensors_close(files->st[i]);
    model_adapter_close(files->adapter);
    free(files->codes);
    free(files->st);
    free(files);
}

int model_open(const char *dir, const char *adapter, const struct rod_progress_to *progress, struct model **out,
               struct rod_error *err) {
    struct model *model = model_new();
    struct files *files = calloc(1, sizeof *files);
    if (!model || !files) {
        free(files);
        model_close(model);
        return rod_fail_no_memory(err);
    }
    files->base.close = files_close;
    model->priv = files;
    int rc = model_open_into(model, dir, adapter, progress, err);
    if (rc) {
        model_close(model);
        return rc;
    }
    *out = model;
    return 0;
}

void model_tie_head(struct model *model) {
    if (!model->dims.tied) return;
    model->lm_head = model->embed;
    model->lm_head.quantisable = true;
}

struct model *model_new(void) {
    struct model *model = calloc(1, sizeof *model);
    if (!model) return NULL;
    model->sampling = rod_sampling_neutral();
    return model;
}

void model_close(struct model *model) {
    if (!model) return;
    struct model_storage *storage = model->priv;
    if (storage) storage->close(storage);
    free(model->layers);
    free(model->tensors);
    free(model);
}
