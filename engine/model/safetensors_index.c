/* safetensors_index.c - model.safetensors.index.json of a sharded checkpoint, see safetensors.h. */
#include "safetensors.h"
#include "engine/base/fail.h"
#include "engine/base/json_guard.h"
#include "engine/base/json_python.h"

#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SHARDS 4096

static int place_by_tensor(const void *a, const void *b) {
    return strcmp(((const struct safetensors_place *)a)->tensor, ((const struct safetensors_place *)b)->tensor);
}
static int by_string(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* An index is a stranger's file: a shard must not lead out of the checkpoint's directory. */
static bool name_is_plain(const char *file) {
    size_t len = strlen(file);
    const char *suffix = ".safetensors";
    if (file[0] == '.' || len <= strlen(suffix) || len > 255) return false;
    if (strcmp(file + len - strlen(suffix), suffix)) return false;
    for (const char *c = file; *c; c++)
        if (*c == '/' || *c == '\\' || (unsigned char)*c < 0x20) return false;
    return true;
}

static int index_parse_map(json_t *map, const char *file, struct safetensors_index *out, struct rod_error *err) {
    if (!json_is_object(map)) return rod_fail(err, ROD_EMODEL, "%.150s: weight_map is missing or not an object", file);
    size_t n = json_object_size(map);
    out->places = calloc(n + 1, sizeof *out->places);
    out->files = calloc(n + 1, sizeof *out->files);
    if (!out->places || !out->files) return rod_fail_no_memory(err);
    const char *key, *tensor;
    json_t *value;
    size_t len;
    json_object_keylen_foreach(map, key, len, value) {
        tensor = json_python_keep(out->priv, key, len);
        if (!tensor) return rod_fail_no_memory(err);
        const char *shard = json_python_text(value);
        if (json_is_string(value) && !shard)
            return rod_fail(err, ROD_EMODEL, "%.150s: weight_map of tensor %.120s holds NUL or a surrogate alone", file,
                            tensor);
        if (!shard)
            return rod_fail(err, ROD_EMODEL, "%.150s: weight_map of tensor %.120s is not a string", file, tensor);
        if (!name_is_plain(shard))
            return rod_fail(
                err, ROD_EMODEL,
                "%.150s: weight_map of tensor %.120s is \"%.60s\", which is not a plain .safetensors file name", file,
                tensor, shard);
        out->places[out->n_places++] = (struct safetensors_place){tensor, shard};
        out->files[out->n_files++] = shard;
    }
    if (!n) return rod_fail(err, ROD_EMODEL, "%.150s: weight_map is empty", file);
    qsort(out->places, out->n_places, sizeof *out->places, place_by_tensor);
    qsort(out->files, out->n_files, sizeof *out->files, by_string);
    size_t distinct = 0;
    for (size_t i = 0; i < out->n_files; i++)
        if (!distinct || strcmp(out->files[distinct - 1], out->files[i])) out->files[distinct++] = out->files[i];
    assert(distinct <= out->n_places);
    out->n_files = distinct;
    if (distinct > MAX_SHARDS)
        return rod_fail(err, ROD_EMODEL, "%.150s: %zu shards, at most %d are supported", file, distinct, MAX_SHARDS);
    return 0;
}

int safetensors_parse_index(const char *json, size_t len, const char *file, struct safetensors_index *out,
                            struct rod_error *err) {
    *out = (struct safetensors_index){0};
    json_error_t json_err;
    json_t *root = json_python_load(json, len, 0, &json_err);
    if (!root && json_guard_was_short(&json_err)) return rod_fail_no_memory(err);
    if (!root)
        return rod_fail(err, ROD_EMODEL, "%.150s is not valid JSON: line %d: %.160s", file, json_err.line,
                        json_err.text);
    json_t *map = json_object_get(root, "weight_map");
    out->priv = json_python_keeper(root);
    if (!out->priv) return rod_fail_no_memory(err);
    int rc = index_parse_map(map, file, out, err);
    if (rc) safetensors_free_index(out);
    return rc;
}

void safetensors_free_index(struct safetensors_index *index) {
    free(index->places);
    free(index->files);
    json_decref(index->priv);
    *index = (struct safetensors_index){0};
}
