/* cpu_matrix.c - the packed matrix, which all instruction sets share: its size, where an element lies, one row. Pure.
 */
#include "kernels/kernels.h"

#include <assert.h>
#include <string.h>

static size_t dtype_size(enum cpu_dtype dtype) { return dtype == CPU_F32 ? 4 : 2; }

size_t cpu_matrix_bytes(uint32_t rows, uint32_t cols, enum cpu_dtype dtype) {
    return (size_t)((rows + CPU_PANEL - 1) / CPU_PANEL) * CPU_PANEL * cols * dtype_size(dtype);
}

size_t cpu_matrix_offset(const struct cpu_matrix *w, uint32_t row, uint32_t col) {
    uint32_t lane = row % CPU_PANEL;
    if (w->dtype == CPU_BF16) lane = lane < 16 ? 2 * lane : 2 * (lane - 16) + 1;
    return (((size_t)(row / CPU_PANEL) * w->cols + col) * CPU_PANEL + lane) * dtype_size(w->dtype);
}

/* IEEE binary16 to binary32, exact. */
static float from_f16(uint16_t h) {
    uint32_t magnitude = h & 0x7fffu, bits;
    float f;
    if (magnitude >= 0x7c00u) {
        bits = 0x7f800000u | (magnitude & 0x3ffu) << 13;
        memcpy(&f, &bits, 4);
    } else { /* the exponent is rebased by a multiplication that is exact, also for subnormals */
        bits = magnitude << 13;
        memcpy(&f, &bits, 4);
        f *= 0x1p112f;
    }
    return h & 0x8000u ? -f : f;
}

void cpu_matrix_row(const struct cpu_matrix *w, uint32_t row, float *dst) {
    assert(row < w->rows);
    size_t step = CPU_PANEL * dtype_size(w->dtype);
    const unsigned char *p = w->data + cpu_matrix_offset(w, row, 0);
    for (uint32_t c = 0; c < w->cols; c++, p += step) {
        uint16_t half;
        uint32_t bits;
        switch (w->dtype) {
        case CPU_F32: memcpy(&dst[c], p, 4); break;
        case CPU_F16:
            memcpy(&half, p, 2);
            dst[c] = from_f16(half);
            break;
        case CPU_BF16:
            memcpy(&half, p, 2);
            bits = (uint32_t)half << 16;
            memcpy(&dst[c], &bits, 4);
            break;
        }
    }
}
