/* weight.c - dtypes of model.h, and weights as fp32 or as they are stored. Tensors may lie at odd addresses in a file:
 * every load is a memcpy, which the compiler turns into a plain (vector) load.
 *
 * An adapter is added, and codes become numbers, where a weight is read: the sum never lies in memory beside what is
 * stored. */
#include "engine/base/half.h"
#include "model.h"

#include <assert.h>
#include <string.h>

enum { MADE_AT_ONCE = 256 };

static void widen(const void *data, enum dtype dtype, size_t first, size_t n, float *dst) {
    const unsigned char *src = (const unsigned char *)data + first * dtype_bytes(dtype);
    uint16_t h;
    switch (dtype) {
    case DTYPE_F32: memcpy(dst, src, n * sizeof *dst); break;
    case DTYPE_F16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&h, src + 2 * i, 2);
            dst[i] = half_f16_to_f32(h);
        }
        break;
    case DTYPE_BF16:
        for (size_t i = 0; i < n; i++) {
            memcpy(&h, src + 2 * i, 2);
            dst[i] = half_bf16_to_f32(h);
        }
        break;
    case DTYPE_FP8:
    case DTYPE_INT8: assert(!"a weight's type"); break;
    }
}

static void narrow(const float *src, enum dtype dtype, size_t n, void *dst) {
    if (dtype == DTYPE_F32) {
        memcpy(dst, src, n * sizeof *src);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = dtype == DTYPE_F16 ? half_f32_to_f16(src[i]) : half_f32_to_bf16(src[i]);
        memcpy((unsigned char *)dst + 2 * i, &h, 2);
    }
}

/* x[n] += scale * (B A)[row, col ...]. The sum's order is that of the rank, whoever asks for which piece. */
static void delta_add(const struct weight_delta *delta, size_t row, size_t col, size_t n, float *x) {
    float sum[MADE_AT_ONCE] = {0}, a[MADE_AT_ONCE], b;
    assert(n <= MADE_AT_ONCE && col + n <= delta->cols);
    for (uint32_t j = 0; j < delta->rank; j++) {
        widen(delta->b, delta->b_dtype, row * delta->rank + j, 1, &b);
        widen(delta->a, delta->a_dtype, (size_t)j * delta->cols + col, n, a);
        for (size_t c = 0; c < n; c++) sum[c] += b * a[c];
    }
    for (size_t c = 0; c < n; c++) x[c] += delta->scale * sum[c];
}

/* Elements from first on that lie in one row, n at most: once merged or made of codes, in the part's type and as fp32.
 * Returns how many. */
static size_t make(const struct weight_part *part, size_t first, size_t n, void *stored, float *x) {
    const uint32_t cols = part->codes ? part->codes->cols : part->delta->cols;
    const size_t row = first / cols, col = first % cols;
    assert(row < part->rows && !(part->codes && part->delta));
    if (n > cols - col) n = cols - col;
    if (n > MADE_AT_ONCE) n = MADE_AT_ONCE;
    if (part->codes) {
        weight_codes_widen(part->codes, (uint32_t)row, (uint32_t)col, (uint32_t)n, x);
    } else {
        widen(part->data, part->dtype, first, n, x);
        delta_add(part->delta, row, col, n, x);
    }
    narrow(x, part->dtype, n, stored);
    return n;
}

void weight_part_to_f32(const struct weight_part *part, size_t first, size_t n, float *dst) {
    if (!part->delta && !part->codes) {
        widen(part->data, part->dtype, first, n, dst);
        return;
    }
    unsigned char stored[MADE_AT_ONCE * sizeof(float)];
    for (size_t i = 0; i < n;) {
        const size_t m = make(part, first + i, n - i, stored, dst + i);
        widen(stored, part->dtype, 0, m, dst + i);
        i += m;
    }
}

void weight_part_copy(const struct weight_part *part, size_t first, size_t n, void *dst) {
    const size_t size = dtype_bytes(part->dtype);
    if (!part->delta && !part->codes) {
        memcpy(dst, (const unsigned char *)part->data + first * size, n * size);
        return;
    }
    float x[MADE_AT_ONCE];
    for (size_t i = 0; i < n;) i += make(part, first + i, n - i, (unsigned char *)dst + i * size, x);
}

void weight_to_f32(const struct weight *w, float *dst) {
    assert(w->n_parts == 1 || (w->n_parts == 2 && w->part[0].rows + w->part[1].rows == w->rows));
    for (uint32_t i = 0; i < w->n_parts; i++) {
        size_t n = (size_t)w->part[i].rows * w->cols;
        weight_part_to_f32(&w->part[i], 0, n, dst);
        dst += n;
    }
}
