/* adapter_files.h - random LoRA adapters of a checkpoint, and files of tensors, for tests. */
#ifndef ADAPTER_FILES_H
#define ADAPTER_FILES_H

#include "engine/base/half.h"
#include "engine/base/philox.h"
#include "engine/model/model_internal.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define ADAPTER_CONFIG                                                                                                 \
    "{\"peft_type\":\"LORA\",\"r\":3,\"lora_alpha\":6,\"bias\":\"none\",\"target_modules\":\"all-linear\","            \
    "\"rank_pattern\":{\"out_proj\":5,\"down_proj\":5},\"alpha_pattern\":{\"attn.q_proj\":1.5}}"

struct made_tensor {
    char name[160], dtype[8];
    uint64_t shape[3];
    uint32_t n_dims;
    void *data;
    size_t n_bytes;
};
struct made_file {
    struct made_tensor *t;
    size_t n;
};

static inline void made_text(const char *dir, const char *file, const void *bytes, size_t n) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(bytes, 1, n, to), n);
    assert_int_equal(fclose(to), 0);
}

static inline void made_write(const char *dir, const char *file, const struct made_file *made) {
    json_t *header = json_object();
    size_t at = 0, n_data = 0;
    for (size_t i = 0; i < made->n; i++) n_data += made->t[i].n_bytes;
    unsigned char *data = malloc(n_data + 1);
    for (size_t i = 0; i < made->n; i++) {
        const struct made_tensor *t = &made->t[i];
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->n_dims; d++) json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", t->dtype, "shape", shape, "data_offsets",
                                      (json_int_t)at, (json_int_t)(at + t->n_bytes)));
        memcpy(data + at, t->data, t->n_bytes);
        at += t->n_bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    const size_t n_header = strlen(text);
    unsigned char *bytes = malloc(8 + n_header + n_data);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)n_header >> (8 * i));
    memcpy(bytes + 8, text, n_header);
    memcpy(bytes + 8 + n_header, data, n_data);
    made_text(dir, file, bytes, 8 + n_header + n_data);
    free(bytes), free(text), free(data);
}

static inline struct made_tensor *made_add(struct made_file *made) {
    made->t = realloc(made->t, (made->n + 1) * sizeof *made->t);
    made->t[made->n] = (struct made_tensor){0};
    return &made->t[made->n++];
}

static inline void made_free(struct made_file *made) {
    for (size_t i = 0; i < made->n; i++) free(made->t[i].data);
    free(made->t);
    *made = (struct made_file){0};
}

static inline struct made_tensor *made_find(struct made_file *made, const char *name) {
    for (size_t i = 0; i < made->n; i++)
        if (!strcmp(made->t[i].name, name)) return &made->t[i];
    return NULL;
}

/* What ADAPTER_CONFIG says of a tensor. */
static inline uint32_t adapter_rank_of(const char *tensor) {
    return strstr(tensor, "out_proj.") || strstr(tensor, "down_proj.") ? 5 : 3;
}
static inline double adapter_alpha_of(const char *tensor) { return strstr(tensor, ".attn.q_proj.") ? 1.5 : 6; }

static inline bool adapter_may_change(const struct model_tensor *t) {
    const size_t n = strlen(t->name);
    return t->n_dims == 2 && n > 7 && !strcmp(t->name + n - 7, ".weight") && !strstr(t->name, "embeddings") && t->used;
}

static inline void adapter_add_half(struct made_file *made, const char *tensor, char half, enum dtype dtype,
                                    uint32_t rows, uint32_t cols, uint64_t seed) {
    static const char *const names[] = {"F32", "F16", "BF16"};
    struct made_tensor *t = made_add(made);
    snprintf(t->name, sizeof t->name, "base_model.model.%.*s.lora_%c.weight", (int)strlen(tensor) - 7, tensor, half);
    snprintf(t->dtype, sizeof t->dtype, "%s", names[dtype]);
    t->n_dims = 2, t->shape[0] = rows, t->shape[1] = cols;
    t->n_bytes = (size_t)rows * cols * dtype_bytes(dtype);
    t->data = malloc(t->n_bytes);
    for (size_t i = 0; i < (size_t)rows * cols; i++) {
        const float x = ((float)philox_uniform(seed, i, (uint32_t)made->n) - 0.5f) * 0.2f;
        const uint16_t h = dtype == DTYPE_F16 ? half_f32_to_f16(x) : half_f32_to_bf16(x);
        if (dtype == DTYPE_F32)
            memcpy((float *)t->data + i, &x, 4);
        else
            memcpy((uint16_t *)t->data + i, &h, 2);
    }
}

/* A pair for each matrix of the model. */
static inline struct made_file adapter_make(const struct model *model, enum dtype dtype, uint64_t seed) {
    struct made_file made = {0};
    for (size_t i = 0; i < model->n_tensors; i++) {
        const struct model_tensor *t = &model->tensors[i];
        if (!adapter_may_change(t)) continue;
        const uint32_t rank = adapter_rank_of(t->name);
        adapter_add_half(&made, t->name, 'A', dtype, rank, (uint32_t)t->shape[1], seed);
        adapter_add_half(&made, t->name, 'B', dtype, (uint32_t)t->shape[0], rank, seed);
    }
    return made;
}

static inline void adapter_write(const char *dir, const struct made_file *made, const char *config) {
    made_write(dir, "adapter_model.safetensors", made);
    made_text(dir, "adapter_config.json", config, strlen(config));
}

static inline void adapter_remove(const char *dir) {
    char path[512];
    static const char *const files[] = {"adapter_model.safetensors", "adapter_config.json"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}

#endif
