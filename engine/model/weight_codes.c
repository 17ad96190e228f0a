/* weight_codes.c - codes as numbers; and codes, scales and zero points out of the packings of other programs (struct
 * weight_codes), whose sizes were checked when the tensors were found (model_quant.c). */
#include "engine/base/half.h"
#include "model.h"

#include <assert.h>
#include <string.h>

size_t dtype_bytes(enum dtype dtype) { return dtype == DTYPE_F32 ? 4 : dtype <= DTYPE_BF16 ? 2 : 1; }

const char *dtype_name(enum dtype dtype) {
    static const char *const names[N_DTYPES] = {"fp32", "fp16", "bf16", "fp8", "int8"};
    return names[dtype];
}

bool dtype_by_name(const char *name, enum dtype *out) {
    static const char *const names[] = {[DTYPE_F32] = "F32", [DTYPE_F16] = "F16", [DTYPE_BF16] = "BF16"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i])) {
            *out = (enum dtype)i;
            return true;
        }
    return false;
}

uint32_t weight_quant_groups(const struct weight_quant *q, uint32_t cols) { return (cols + q->group - 1) / q->group; }

void weight_quant_widen(const struct weight_quant *q, uint32_t cols, const uint8_t *codes, const float *scales,
                        const uint8_t *zeros, float *dst) {
    for (uint32_t c = 0; c < cols; c++) {
        const float scale = scales[c / q->group];
        const int zero = q->format != WEIGHT_INT4 ? 0 : zeros ? zeros[c / q->group] : WEIGHT_INT4_ZERO;
        dst[c] = q->format == WEIGHT_FP8    ? scale * half_e4m3_to_f32(codes[c])
                 : q->format == WEIGHT_INT8 ? scale * (float)(int8_t)codes[c]
                                            : scale * (float)(codes[c] - zero);
    }
}

/* ---- packings ---- */

/* Bits of AWQ's word where its row, of 8, lies. */
static const uint8_t across_bits[8] = {0, 16, 4, 20, 8, 24, 12, 28};

static uint32_t word_at(const void *words, size_t i) {
    uint32_t word;
    memcpy(&word, (const unsigned char *)words + 4 * i, 4);
    return word;
}

void weight_codes_read(const struct weight_codes *w, uint32_t row, uint32_t col, uint32_t n, uint8_t *codes) {
    assert(row < w->rows && col + n <= w->cols);
    const size_t row_words = (w->cols + 7) / 8;
    switch (w->packing) {
    case PACKED_BYTES:
        memcpy(codes, (const unsigned char *)w->codes + (size_t)row * w->cols + col, n);
        if (w->quant.format != WEIGHT_INT8) break;
        for (uint32_t i = 0; i < n; i++) {
            if (w->offset) codes[i] ^= 0x80;
            if (codes[i] == 0x80) codes[i] = 0x81; /* -128: half a step from it, as -127 is, for who stores it */
        }
        break;
    case PACKED_ROWS:
        for (uint32_t i = 0; i < n; i++)
            codes[i] = (uint8_t)(word_at(w->codes, row * row_words + (col + i) / 8) >> 4 * ((col + i) % 8) & 15);
        break;
    case PACKED_DOWN:
        for (uint32_t i = 0; i < n; i++)
            codes[i] =
                (uint8_t)(word_at(w->codes, (size_t)((col + i) / 8) * w->rows + row) >> 4 * ((col + i) % 8) & 15);
        break;
    case PACKED_ACROSS:
        for (uint32_t i = 0; i < n; i++)
            codes[i] =
                (uint8_t)(word_at(w->codes, (size_t)(col + i) * (w->rows / 8) + row / 8) >> across_bits[row % 8] & 15);
        break;
    }
}

float weight_codes_scale(const struct weight_codes *w, uint32_t row, uint32_t group) {
    const size_t groups = weight_quant_groups(&w->quant, w->cols);
    const size_t i = w->down ? group * (size_t)w->rows + row : row / w->scale_rows * groups + group;
    const unsigned char *at = (const unsigned char *)w->scales + i * dtype_bytes(w->scale_dtype);
    uint16_t h;
    float scale;
    memcpy(&h, at, 2);
    if (w->scale_dtype == DTYPE_BF16) return half_bf16_to_f32(h);
    if (w->scale_dtype == DTYPE_F16) return half_f16_to_f32(h);
    memcpy(&scale, at, 4);
    return scale;
}

uint8_t weight_codes_zero(const struct weight_codes *w, uint32_t row, uint32_t group) {
    if (!w->quant.zeros) return WEIGHT_INT4_ZERO;
    const size_t groups = weight_quant_groups(&w->quant, w->cols);
    const uint32_t word = w->down ? word_at(w->zeros, group * (size_t)(w->rows / 8) + row / 8)
                                  : word_at(w->zeros, row / 8 * groups + group);
    const uint32_t zeros = w->zero_shift ? word + WEIGHT_INT4_ONES : word;
    return zeros >> (w->packing == PACKED_ACROSS ? across_bits[row % 8] : 4 * (row % 8)) & 15;
}

void weight_codes_widen(const struct weight_codes *w, uint32_t row, uint32_t col, uint32_t n, float *dst) {
    enum { AT_ONCE = 256 };
    uint8_t codes[AT_ONCE];
    while (n) { /* within a group */
        uint32_t m = w->quant.group - col % w->quant.group;
        if (m > n) m = n;
        if (m > AT_ONCE) m = AT_ONCE;
        const float scale = weight_codes_scale(w, row, col / w->quant.group);
        const uint8_t zero = weight_codes_zero(w, row, col / w->quant.group);
        struct weight_quant q = w->quant;
        q.group = m; /* one scale for these */
        weight_codes_read(w, row, col, m, codes);
        weight_quant_widen(&q, m, codes, &scale, q.zeros ? &zero : NULL, dst);
        dst += m, col += m, n -= m;
    }
}
