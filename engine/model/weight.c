/* weight.c - dtypes of model.h and weights as fp32. Tensors may lie at odd addresses in a file: every load is a memcpy,
 * which the compiler turns into a plain (vector) load. */
#include "engine/base/half.h"
#include "model.h"

#include <assert.h>

size_t dtype_bytes(enum dtype dtype) { return dtype == DTYPE_F32 ? 4 : 2; }

const char *dtype_name(enum dtype dtype) {
    static const char *const names[] = {[DTYPE_F32] = "fp32", [DTYPE_F16] = "fp16", [DTYPE_BF16] = "bf16"};
    return names[dtype];
}

void weight_part_to_f32(const struct weight_part *part, size_t first, size_t n, float *dst) {
    const unsigned char *src = (const unsigned char *)part->data + first * dtype_bytes(part->dtype);
    uint16_t h;
    switch (part->dtype) {
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
    }
}

void weight_to_f32(const struct weight *w, float *dst) {
    assert(w->n_parts == 1 || (w->n_parts == 2 && w->part[0].rows + w->part[1].rows == w->rows));
    for (uint32_t i = 0; i < w->n_parts; i++) {
        size_t n = (size_t)w->part[i].rows * w->cols;
        weight_part_to_f32(&w->part[i], 0, n, dst);
        dst += n;
    }
}
