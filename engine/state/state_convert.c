/* state_convert.c - see state_convert.h: part by part, layer after layer. */
#include "state_convert.h"
#include "engine/base/fail.h"
#include "engine/base/half.h"
#include "kernels/kernels.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static float number_at(enum dtype type, const unsigned char *at) {
    uint16_t h;
    float x;
    if (type == DTYPE_FP8) return half_e4m3_to_f32(*at);
    if (type == DTYPE_INT8) return (float)(int8_t)*at;
    memcpy(type == DTYPE_F32 ? (void *)&x : (void *)&h, at, dtype_bytes(type));
    return type == DTYPE_F32 ? x : type == DTYPE_F16 ? half_f16_to_f32(h) : half_bf16_to_f32(h);
}

static void number_put(enum dtype type, float x, unsigned char *at) {
    assert(type != DTYPE_INT8); /* of a head at once */
    const uint16_t h = type == DTYPE_F16 ? half_f32_to_f16(x) : half_f32_to_bf16(x);
    if (type == DTYPE_FP8)
        *at = half_f32_to_e4m3(isinf(x) ? NAN : x); /* as a GPU rounds it */
    else
        memcpy(at, type == DTYPE_F32 ? (const void *)&x : (const void *)&h, dtype_bytes(type));
}

static void convert_numbers(enum dtype from, enum dtype to, size_t n, const unsigned char *src, unsigned char *dst) {
    if (from == to)
        memcpy(dst, src, n * dtype_bytes(from));
    else
        for (size_t i = 0; i < n; i++)
            number_put(to, number_at(from, src + i * dtype_bytes(from)), dst + i * dtype_bytes(to));
}

/* Keys, or values, of a layer: codes, and scales where the format has some. */
struct state_heads {
    enum dtype type;
    unsigned char *codes, *scales;
};

static struct state_heads heads_of(const struct state_layout *l, const struct state_layer *at, unsigned char *layer,
                                   bool values) {
    return (struct state_heads){.type = l->window,
                                .codes = layer + (values ? at->values : at->keys),
                                .scales = layer + (values ? at->value_scales : at->key_scales)};
}

static void head_read(const struct state_heads *h, size_t i, size_t P, float *numbers) {
    const size_t size = dtype_bytes(h->type), n_scale = state_scale_bytes(h->type);
    float scale = 1;
    if (n_scale) memcpy(&scale, h->scales + i * n_scale, n_scale);
    for (size_t j = 0; j < P; j++) numbers[j] = scale * number_at(h->type, h->codes + (i * P + j) * size);
}

static void head_write(const struct state_heads *h, size_t i, size_t P, const float *numbers) {
    const size_t size = dtype_bytes(h->type), n_scale = state_scale_bytes(h->type);
    float scale;
    if (h->type != DTYPE_INT8) {
        for (size_t j = 0; j < P; j++) number_put(h->type, numbers[j], h->codes + (i * P + j) * size);
        return;
    }
    cpu_window_encode(numbers, (uint32_t)P, (int8_t *)h->codes + i * P, 1, &scale);
    memcpy(h->scales + i * n_scale, &scale, n_scale);
}

static void convert_heads(const struct state_heads *from, const struct state_heads *to, size_t n, size_t P,
                          float *numbers) {
    if (from->type == to->type) {
        memcpy(to->codes, from->codes, n * P * dtype_bytes(to->type));
        if (n) memcpy(to->scales, from->scales, n * state_scale_bytes(to->type));
        return;
    }
    for (size_t i = 0; i < n; i++) {
        head_read(from, i, P, numbers);
        head_write(to, i, P, numbers);
    }
}

int state_convert(const struct state_layout *from, const struct state_layout *to, uint64_t pos, const void *src,
                  void *dst, struct rod_error *err) {
    const struct state_layer a = state_layer_at(from, pos), b = state_layer_at(to, pos);
    float *numbers = malloc((from->P + 1) * sizeof *numbers);
    assert(state_layout_same_sizes(from, to));
    if (!numbers) return rod_fail_no_memory(err);
    for (uint32_t l = 0; l < from->L; l++) {
        unsigned char *x = (unsigned char *)(uintptr_t)src + l * a.bytes, *y = (unsigned char *)dst + l * b.bytes;
        convert_numbers(from->S, to->S, a.conv / dtype_bytes(from->S), x, y);
        convert_numbers(from->act, to->act, (a.keys - a.conv) / dtype_bytes(from->act), x + a.conv, y + b.conv);
        for (int values = 0; values < 2; values++) {
            const struct state_heads p = heads_of(from, &a, x, values), q = heads_of(to, &b, y, values);
            convert_heads(&p, &q, (size_t)a.n_keys * (values ? from->Hv : from->Hk), from->P, numbers);
        }
    }
    free(numbers);
    return 0;
}
