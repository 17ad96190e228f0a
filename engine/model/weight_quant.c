/* weight_quant.c - see weight_quant.h. 16-bit weights are rounded to the nearest code, int8 and fp8 with a scale a row
 * from its largest weight, int4 with the scale of each group that has the least squared error.
 *
 * Scales have the bits of bf16, as files of other programs keep them: what is rounded at load is what a written
 * directory holds. */
#include "weight_quant.h"
#include "engine/base/fail.h"
#include "engine/base/half.h"
#include "model.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { AT_ONCE = 256 };

static const char *const format_names[WEIGHT_N_FORMATS] = {"auto", "fp8", "int8", "int4"};

const char *weight_format_name(enum weight_format format) { return format_names[format]; }

bool weight_format_by_name(const char *name, enum weight_format *out) {
    for (int i = 0; i < WEIGHT_N_FORMATS; i++)
        if (!strcmp(name, format_names[i])) {
            *out = (enum weight_format)i;
            return true;
        }
    return false;
}

bool weight_quant_of(const struct model *model, const struct weight *w, struct weight_quant *out) {
    enum weight_format format = model->weights;
    if (!w->n_parts || !w->quantisable) return false;
    if (w->part[0].codes) {
        const struct weight_quant *first = &w->part[0].codes->quant;
        *out = *first;
        if (w->n_parts == 1) return true;
        const struct weight_codes *second = w->part[1].codes; /* of another form: read as numbers, both */
        if (!second || second->quant.format != first->format || second->quant.group != first->group) return false;
        out->zeros |= second->quant.zeros;
        return true;
    }
    if (format == WEIGHT_STORED || (w->n_parts == 2 && w->part[1].codes)) return false;
    if (w == &model->lm_head && format == WEIGHT_INT4) format = WEIGHT_INT8; /* every token hangs on it */
    *out = (struct weight_quant){.format = format, .group = format == WEIGHT_INT4 ? WEIGHT_GROUP : w->cols};
    return true;
}

uint64_t weight_kept_bytes(const struct model *model, const struct weight *w) {
    struct weight_quant q;
    uint64_t bytes = 0;
    if (weight_quant_of(model, w, &q)) {
        const uint64_t groups = (uint64_t)w->rows * weight_quant_groups(&q, w->cols);
        const uint64_t codes = (uint64_t)w->rows * w->cols;
        return (q.format == WEIGHT_INT4 ? codes / 2 : codes) + 4 * groups + (q.zeros ? groups / 2 : 0);
    }
    for (uint32_t i = 0; i < w->n_parts; i++)
        bytes += (uint64_t)w->part[i].rows * w->cols * dtype_bytes(w->part[i].dtype);
    return bytes;
}

/* ---- rounding ---- */

/* The next bf16 from a positive x on. */
static float scale_up(float x) {
    const uint16_t h = half_f32_to_bf16(x);
    return half_bf16_to_f32((uint16_t)(half_bf16_to_f32(h) < x ? h + 1 : h));
}

static float largest_of(const float *x, size_t n, float so_far) {
    for (size_t i = 0; i < n; i++) {
        const float a = fabsf(x[i]);
        so_far = a > so_far || isnan(a) ? a : so_far; /* once NaN it stays: no a is above it */
    }
    return so_far;
}

/* To the nearest integer, ties to even: |x| < 2^22. The addition leaves no bits behind the point. */
static inline float nearest(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

static inline float between(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

/* A scale a row. */
static void round_row(const struct weight_part *part, uint32_t row, uint32_t cols, enum weight_format format,
                      uint8_t *codes, float *scale) {
    const size_t first = (size_t)row * cols;
    float x[AT_ONCE], largest = 0;
    for (uint32_t c = 0; c < cols; c += AT_ONCE) {
        const uint32_t n = cols - c < AT_ONCE ? cols - c : AT_ONCE;
        weight_part_to_f32(part, first + c, n, x);
        largest = largest_of(x, n, largest);
    }
    memset(codes, 0, cols);
    *scale = isfinite(largest) ? 1 : NAN;
    if (!isfinite(largest) || largest < 1e-30f) return;
    *scale = scale_up(largest / (format == WEIGHT_FP8 ? HALF_E4M3_MAX : 127));
    for (uint32_t c = 0; c < cols; c += AT_ONCE) {
        const uint32_t n = cols - c < AT_ONCE ? cols - c : AT_ONCE;
        weight_part_to_f32(part, first + c, n, x);
        if (format == WEIGHT_FP8)
            for (uint32_t i = 0; i < n; i++) codes[c + i] = half_f32_to_e4m3(x[i] / *scale);
        else
            for (uint32_t i = 0; i < n; i++) codes[c + i] = (uint8_t)(int8_t)(int)nearest(x[i] / *scale);
    }
}

/* With codes k of x under the scale 1 / inverse: the squared error of the best scale for them, sum(k x) / sum(k k), is
 * sum(x x) - gain. */
static float gain_of(const float *x, const float *importance, uint32_t n, float inverse, float *best_scale) {
    float kx = 0, kk = 0;
    for (uint32_t i = 0; i < n; i++) {
        const float k = between(nearest(x[i] * inverse), -8, 7), hk = importance ? importance[i] * k : k;
        kx += hk * x[i];
        kk += hk * k;
    }
    *best_scale = kk > 0 ? kx / kk : 0;
    return kk > 0 ? kx * kx / kk : 0;
}

/* Codes reach from -8 to 7: with a negative scale the longer side serves positive weights. */
float weight_quant_scale(const float *x, const float *importance, uint32_t n) {
    static const float reaches[] = {8.0f, 7.6f, 7.2f, 8.6f, 9.2f, 10.0f, 11.0f}; /* codes that the largest would get */
    const float largest = largest_of(x, n, 0);
    if (!isfinite(largest)) return NAN;
    float best = 0, scale = 1;
    for (size_t i = 0; largest > 1e-30f && i < 2 * sizeof reaches / sizeof *reaches; i++) {
        float found;
        const float gain = gain_of(x, importance, n, (i & 1 ? -1 : 1) * reaches[i / 2] / largest, &found);
        if (gain <= best) continue;
        best = gain;
        scale = half_bf16_to_f32(half_f32_to_bf16(found));
    }
    return scale;
}

uint8_t weight_quant_code(float x, float scale) {
    return (uint8_t)(WEIGHT_INT4_ZERO + (isfinite(scale) ? (int)between(nearest(x / scale), -8, 7) : 0));
}

void weight_quant_row(const struct weight *w, const struct weight_quant *q, uint32_t row, uint8_t *codes, float *scales,
                      uint8_t *zeros) {
    assert(row < w->rows && (q->group == w->cols || q->group == WEIGHT_GROUP) && !zeros == !q->zeros);
    const struct weight_part *part = &w->part[row >= w->part[0].rows];
    const uint32_t r = part == w->part ? row : row - w->part[0].rows;
    if (part->codes) {
        weight_codes_read(part->codes, r, 0, w->cols, codes);
        for (uint32_t g = 0; g < weight_quant_groups(q, w->cols); g++) {
            scales[g] = weight_codes_scale(part->codes, r, g);
            if (zeros) zeros[g] = weight_codes_zero(part->codes, r, g);
        }
        return;
    }
    if (q->format != WEIGHT_INT4) {
        assert(q->group == w->cols);
        round_row(part, r, w->cols, q->format, codes, scales);
        return;
    }
    float x[WEIGHT_GROUP];
    for (uint32_t g = 0, c = 0; c < w->cols; g++, c += WEIGHT_GROUP) {
        const uint32_t n = w->cols - c < WEIGHT_GROUP ? w->cols - c : WEIGHT_GROUP;
        weight_part_to_f32(part, (size_t)r * w->cols + c, n, x);
        scales[g] = weight_quant_scale(x, NULL, n);
        for (uint32_t i = 0; i < n; i++) codes[c + i] = weight_quant_code(x[i], scales[g]);
    }
}

/* ---- what a device runs ---- */

static int refuse_format(enum weight_format format, unsigned runs, const char *device, struct rod_error *err) {
    char others[64] = "16-bit weights";
    int n = 0;
    for (int i = WEIGHT_FP8; i < WEIGHT_N_FORMATS; i++)
        if (runs >> i & 1)
            n += snprintf(others + n, sizeof others - (size_t)n, "%s%s", n ? " and " : "", format_names[i]);
    return rod_fail_at(err, ROD_EUNSUPPORTED, "weights", "weights in %s do not run on %s: there is %s instead.",
                       format_names[format], device, others);
}

/* No other format is there instead of one that is stored: opening refuses to round twice. */
static int refuse_stored(enum weight_format format, unsigned runs, const char *device, struct rod_error *err) {
    return rod_fail_at(err, ROD_EUNSUPPORTED, "weights",
                       "the directory keeps weights in %s, which do not run on %s: precision %s takes them.",
                       format_names[format], device, runs ? "fp32" : "auto");
}

int weight_quant_check(const struct model *model, unsigned runs, const char *device, struct rod_error *err) {
    const struct weight *w;
    struct weight_quant q;
    for (size_t i = 0; (w = model_product(model, i)); i++) {
        if (!weight_quant_of(model, w, &q) || runs >> q.format & 1) continue;
        return (w->part[0].codes ? refuse_stored : refuse_format)(q.format, runs, device, err);
    }
    return 0;
}

const char *model_weights_name(const struct model *model) {
    struct weight_quant q;
    const bool narrow = weight_quant_of(model, &model->layers[0].fc, &q);
    return narrow ? format_names[q.format] : dtype_name(model->weight_dtype);
}

const struct weight *model_product(const struct model *model, size_t i) {
#define W(field) offsetof(struct model_layer, field)
    static const size_t fields[] = {W(fc), W(out_proj), W(q), W(k), W(v), W(ao), W(f1), W(f2)};
#undef W
    enum { N = sizeof fields / sizeof *fields };
    if (i == 0) return &model->lm_head;
    const char *layer = (const char *)&model->layers[(i - 1) / N];
    return (i - 1) / N < model->dims.L ? (const struct weight *)(const void *)(layer + fields[(i - 1) % N]) : NULL;
}
