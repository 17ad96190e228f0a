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
        default:
            assert(w->dtype == CPU_BF16);
            memcpy(&half, p, 2);
            bits = (uint32_t)half << 16;
            memcpy(&dst[c], &bits, 4);
            break;
        }
    }
}

/* ---- int8 and int4 ---- */

static size_t quant_head_bytes(const struct cpu_matrix *w) {
    return CPU_PANEL * (sizeof(float) + (w->zeros ? sizeof(uint16_t) : 0));
}
static size_t quant_code_bytes(const struct cpu_matrix *w, uint32_t n_cols) {
    return (size_t)(n_cols + 7) / 8 * CPU_PANEL * (w->dtype == CPU_INT4 ? 4 : 8);
}

size_t cpu_quant_panel_bytes(const struct cpu_matrix *w) {
    const uint32_t n_blocks = (w->cols + CPU_BLOCK - 1) / CPU_BLOCK;
    const uint32_t n_last = w->cols - (n_blocks - 1) * CPU_BLOCK;
    assert(w->cols > 0 && (w->dtype == CPU_INT8 || w->dtype == CPU_INT4));
    return quant_head_bytes(w) * (w->row_scales ? 1 : n_blocks) + quant_code_bytes(w, CPU_BLOCK) * (n_blocks - 1) +
           quant_code_bytes(w, n_last);
}

/* The codes of n <= CPU_BLOCK columns as words; `to` is the row's first word. */
static void quant_pack_codes(bool int4, const uint8_t *codes, uint32_t n, unsigned char *to) {
    static const uint32_t byte_of[4] = {0, 2, 1, 3}; /* of columns c to c + 3 */
    for (uint32_t c = 0; c < (n + 7) / 8 * 8; c += 4) {
        uint32_t word = 0;
        for (uint32_t i = 0; i < 4 && c + i < n; i++) {
            const uint32_t code = int4 ? codes[c + i] : codes[c + i] ^ 0x80u; /* -128..127 to 0..255 */
            assert(!int4 || code < 16);
            word |= code << (8 * byte_of[i]);
        }
        unsigned char *at = to + (size_t)(c / (int4 ? 8 : 4)) * CPU_PANEL * 4;
        if (int4 && c % 8) { /* the high halves of a word that is begun */
            uint32_t low;
            memcpy(&low, at, 4);
            word = low | word << 4;
        }
        memcpy(at, &word, 4);
    }
}

void cpu_quant_pack_row(const struct cpu_matrix *w, uint32_t row, const uint8_t *codes, const float *scales,
                        const uint8_t *zeros) {
    const uint32_t lane = row % CPU_PANEL;
    unsigned char *at = w->data + row / CPU_PANEL * cpu_quant_panel_bytes(w);
    assert(row < w->rows && !w->zeros == !zeros);
    for (uint32_t c = 0, block = 0; c < w->cols; c += CPU_BLOCK, block++) {
        const uint32_t n = w->cols - c < CPU_BLOCK ? w->cols - c : CPU_BLOCK;
        if (block == 0 || !w->row_scales) {
            memcpy(at + lane * sizeof(float), scales + block, sizeof(float));
            if (w->zeros) {
                const uint16_t zero = zeros[block];
                memcpy(at + CPU_PANEL * sizeof(float) + lane * sizeof zero, &zero, sizeof zero);
            }
            at += quant_head_bytes(w);
        }
        quant_pack_codes(w->dtype == CPU_INT4, codes + c, n, at + (size_t)lane * 4);
        at += quant_code_bytes(w, n);
    }
}
