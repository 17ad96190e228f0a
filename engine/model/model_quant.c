/* model_quant.c - finds a weight that another program stored in fewer bits: which tensors, and that their types, shapes
 * and values fit. */
#include "engine/base/fail.h"
#include "model_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of one module, "model.layers.0.mixer.fc". */
struct quant_module {
    const struct model *model;
    const struct model_piece *piece;
    char name[96];
    struct rod_error *err;
};

static struct model_tensor *quant_tensor(const struct quant_module *m, const char *kind) {
    char name[160];
    snprintf(name, sizeof name, "%s.%s", m->name, kind);
    return model_find_tensor(m->model, name);
}

static int quant_fail(const struct quant_module *m, const struct model_tensor *t, const char *what) {
    char shape[96];
    int n = 0;
    for (uint32_t i = 0; i < t->n_dims && n < 64; i++)
        n += snprintf(shape + n, sizeof shape - (size_t)n, "%s%llu", i ? ", " : "", (unsigned long long)t->shape[i]);
    return rod_fail(m->err, ROD_EMODEL, "tensor %.120s in %.120s is %s [%s]: %s", t->name, t->file, t->dtype,
                    n ? shape : "", what);
}

static int quant_missing(const struct quant_module *m, const char *kind) {
    return rod_fail(m->err, ROD_EMODEL, "tensor %s.%s is missing beside the others of this quantised weight.", m->name,
                    kind);
}

static bool has_shape(const struct model_tensor *t, uint64_t rows, uint64_t cols) {
    return t->n_dims == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

static uint64_t tensor_words(const struct model_tensor *t) { return t->n_bytes / 4; }

static int32_t tensor_word(const struct model_tensor *t, uint64_t i) {
    int32_t word;
    memcpy(&word, (const unsigned char *)t->data + 4 * i, 4);
    return word;
}

/* ---- scales ---- */

static int quant_take_scale_values(const struct quant_module *m, const struct model_tensor *t,
                                   struct weight_codes *out) {
    if (!dtype_by_name(t->dtype, &out->scale_dtype)) return quant_fail(m, t, "scales must be F32, F16 or BF16");
    const struct weight_part scales = {.data = t->data, .dtype = out->scale_dtype};
    const uint64_t n = t->n_bytes / dtype_bytes(out->scale_dtype);
    for (uint64_t i = 0; i < n; i++) {
        float scale;
        weight_part_to_f32(&scales, i, 1, &scale);
        if (!isfinite(scale)) return quant_fail(m, t, "a scale is no finite number");
    }
    out->scales = t->data;
    return 0;
}

/* [rows, groups] or, down, [groups, rows]; of a whole tensor, of blocks. Sets quant.group. */
static int quant_take_scales(const struct quant_module *m, struct model_tensor *t, struct weight_codes *out) {
    const uint32_t rows = out->rows, cols = out->cols, groups = (cols + WEIGHT_GROUP - 1) / WEIGHT_GROUP;
    const uint32_t blocks = (rows + WEIGHT_GROUP - 1) / WEIGHT_GROUP;
    const bool one = !t->n_dims || (t->n_dims == 1 && t->shape[0] == 1) || has_shape(t, 1, 1);
    const bool bytes = out->packing == PACKED_BYTES;
    out->quant.group = WEIGHT_GROUP;
    out->scale_rows = 1;
    if (out->down ? has_shape(t, 1, rows) : has_shape(t, rows, 1) || (t->n_dims == 1 && t->shape[0] == rows)) {
        out->quant.group = cols;
    } else if (bytes && one) {
        out->quant.group = cols;
        out->scale_rows = rows;
    } else if (out->quant.format == WEIGHT_FP8 && has_shape(t, blocks, groups)) {
        out->scale_rows = WEIGHT_GROUP;
    } else if (out->quant.format == WEIGHT_INT8 ||
               !(out->down ? has_shape(t, groups, rows) : has_shape(t, rows, groups))) {
        return quant_fail(m, t,
                          bytes ? "a scale a tensor, a row or, in fp8, a block of 128 x 128 is supported"
                                : "a scale a row or for 128 columns of it is supported");
    }
    t->used = true;
    return quant_take_scale_values(m, t, out);
}

/* ---- zero points ---- */

static int quant_take_zeros(const struct quant_module *m, bool borrows, struct model_tensor *t,
                            struct weight_codes *out) {
    const uint32_t groups = weight_quant_groups(&out->quant, out->cols), words = (out->rows + 7) / 8;
    if (strcmp(t->dtype, "I32") || !(out->down ? has_shape(t, groups, words) : has_shape(t, words, groups)))
        return quant_fail(m, t, "zero points of 4 bits in I32 are needed, for each scale one");
    out->zeros = t->data;
    t->used = true;
    for (uint64_t i = 0; i < tensor_words(t); i++) {
        const uint32_t stored = (uint32_t)tensor_word(t, i),
                       zeros = out->zero_shift ? stored + WEIGHT_INT4_ONES : stored;
        for (uint32_t k = 0; k < 8; k++) {
            if (out->zero_shift && !borrows && (stored >> 4 * k & 15) == 15)
                return quant_fail(m, t, "a zero point is 15, and 16 by this format");
            const bool padded = !out->down && i / groups * 8 + k >= out->rows;
            out->quant.zeros |= (zeros >> 4 * k & 15) != WEIGHT_INT4_ZERO && !padded;
        }
    }
    return 0;
}

/* Bytes beside symmetric codes: some programs write them, all 0. */
static int quant_check_no_zeros(const struct quant_module *m) {
    struct model_tensor *t = quant_tensor(m, "weight_zero_point");
    if (!t) return 0;
    for (uint64_t i = 0; i < t->n_bytes; i++)
        if (((const unsigned char *)t->data)[i])
            return quant_fail(m, t, "zero points are supported for codes of 4 bits alone");
    t->used = true;
    return 0;
}

/* Which group each column is in: only that of its place is supported. Some programs write -1 where it is so. */
static int quant_check_order(const struct quant_module *m, const char *kind, const struct weight_codes *w) {
    struct model_tensor *t = quant_tensor(m, kind);
    if (!t) return 0;
    if (strcmp(t->dtype, "I32") || t->n_dims != 1 || t->shape[0] != w->cols)
        return quant_fail(m, t, "an I32 for each column is needed");
    for (uint32_t i = 0; i < w->cols; i++) {
        const int32_t group = tensor_word(t, i);
        if (group != -1 && group != (int32_t)(i / w->quant.group))
            return quant_fail(m, t, "columns out of their order (act-order) are not supported");
    }
    t->used = true;
    return 0;
}

/* ---- the packings ---- */

static int quant_check_stored_shape(const struct quant_module *m) {
    struct model_tensor *t = quant_tensor(m, "weight_shape");
    if (!t) return 0;
    int64_t shape[2] = {0};
    const bool wide = !strcmp(t->dtype, "I64"), narrow = !strcmp(t->dtype, "I32");
    if (t->n_dims == 1 && t->shape[0] == 2 && wide) memcpy(shape, t->data, sizeof shape);
    if (t->n_dims == 1 && t->shape[0] == 2 && narrow) shape[0] = tensor_word(t, 0), shape[1] = tensor_word(t, 1);
    if (shape[0] != m->piece->rows || shape[1] != m->piece->cols) {
        char what[96];
        snprintf(what, sizeof what, "config.json calls for a weight of [%u, %u]", m->piece->rows, m->piece->cols);
        return quant_fail(m, t, what);
    }
    t->used = true;
    return 0;
}

static int quant_take_packed(const struct quant_module *m, struct model_tensor *t, struct weight_codes *out) {
    out->packing = PACKED_ROWS;
    out->quant.format = WEIGHT_INT4;
    if (!strcmp(t->dtype, "I32") && out->cols % 4 == 0 && has_shape(t, out->rows, out->cols / 4)) {
        out->packing = PACKED_BYTES;
        out->quant.format = WEIGHT_INT8;
        out->offset = true;
    } else if (strcmp(t->dtype, "I32") || !has_shape(t, out->rows, (out->cols + 7) / 8)) {
        return quant_fail(m, t, "codes of 4 or 8 bits in I32, row by row, are needed");
    }
    return quant_check_stored_shape(m);
}

static int quant_take_bytes(const struct quant_module *m, struct model_tensor *t, struct weight_codes *out) {
    out->packing = PACKED_BYTES;
    out->quant.format = strcmp(t->dtype, "I8") ? WEIGHT_FP8 : WEIGHT_INT8;
    if (!has_shape(t, out->rows, out->cols)) {
        char what[96];
        snprintf(what, sizeof what, "config.json calls for a weight of [%u, %u]", out->rows, out->cols);
        return quant_fail(m, t, what);
    }
    for (uint64_t i = 0; out->quant.format == WEIGHT_FP8 && i < t->n_bytes; i++)
        if ((((const unsigned char *)t->data)[i] & 0x7f) == 0x7f)
            return quant_fail(m, t, "a weight is no finite number");
    return 0;
}

static int quant_find_compressed(const struct quant_module *m, const struct quant_config *config,
                                 struct weight_codes *out) {
    struct model_tensor *packed = quant_tensor(m, "weight_packed"), *t = packed ? packed : quant_tensor(m, "weight");
    if (!t || (!packed && strcmp(t->dtype, "I8") && strcmp(t->dtype, "F8_E4M3"))) return 0; /* wide, or not there */
    int rc = packed ? quant_take_packed(m, t, out) : quant_take_bytes(m, t, out);
    if (rc) return rc;
    struct model_tensor *scales = quant_tensor(m, "weight_scale");
    if (!scales) scales = quant_tensor(m, "weight_scale_inv");
    if (!scales) return quant_missing(m, "weight_scale");
    if ((rc = quant_take_scales(m, scales, out))) return rc;
    struct model_tensor *zeros = quant_tensor(m, "weight_zero_point");
    if (!zeros && out->quant.format == WEIGHT_INT4 && config->needs_zeros) return quant_missing(m, "weight_zero_point");
    if (zeros && out->quant.format == WEIGHT_INT4) rc = quant_take_zeros(m, false, zeros, out);
    if (!rc && out->quant.format != WEIGHT_INT4) rc = quant_check_no_zeros(m);
    if (!rc) rc = quant_check_order(m, "weight_g_idx", out);
    t->used = true;
    out->codes = t->data;
    return rc;
}

static int quant_find_words(const struct quant_module *m, const struct quant_config *config, struct weight_codes *out) {
    struct model_tensor *t = quant_tensor(m, "qweight"), *scales = quant_tensor(m, "scales"),
                        *zeros = quant_tensor(m, "qzeros");
    if (!t) return 0;
    const bool across = config->method == QUANT_AWQ;
    out->packing = across ? PACKED_ACROSS : PACKED_DOWN;
    out->quant.format = WEIGHT_INT4;
    out->down = true;
    out->zero_shift = config->zero_shift;
    if (strcmp(t->dtype, "I32") || out->rows % 8 || out->cols % 8 ||
        !(across ? has_shape(t, out->cols, out->rows / 8) : has_shape(t, out->cols / 8, out->rows)))
        return quant_fail(m, t, "codes of 4 bits in I32 that fit the sizes in config.json are needed");
    if (!scales) return quant_missing(m, "scales");
    if (!zeros) return quant_missing(m, "qzeros");
    int rc = quant_take_scales(m, scales, out);
    if (!rc) rc = quant_take_zeros(m, config->zero_borrow, zeros, out);
    if (!rc) rc = quant_check_order(m, "g_idx", out);
    t->used = true;
    out->codes = t->data;
    return rc;
}

int model_quant_find(const struct model *model, const struct quant_config *config, const struct model_piece *piece,
                     struct weight_codes *out, struct rod_error *err) {
    static const char end[] = ".weight";
    struct quant_module m = {.model = model, .piece = piece, .err = err};
    const size_t len = strlen(piece->name), n_end = sizeof end - 1;
    if (config->method == QUANT_NONE || piece->n_dims != 2 || len <= n_end ||
        strcmp(piece->name + len - n_end, end) != 0)
        return 0;
    snprintf(m.name, sizeof m.name, "%.*s", (int)(len - n_end), piece->name);
    struct weight_codes found = {.rows = piece->rows, .cols = piece->cols};
    const int rc = config->method == QUANT_COMPRESSED ? quant_find_compressed(&m, config, &found)
                                                      : quant_find_words(&m, config, &found);
    if (!rc && found.codes) *out = found;
    return rc;
}
