/* weight_quant.h - weights in 8 or 4 bits: which are kept so, and the codes and scales of a row.
 *
 * A quantised weight is codes with scales: w[o, c] = scale[o, c / group] * (value(code[o, c]) - zero[o, c / group]).
 * value(): int8 and int4 the integer, fp8 the number that the bits are. What stays wide: README.md, "Fewer bits".
 * Pure, any thread. */
#ifndef WEIGHT_QUANT_H
#define WEIGHT_QUANT_H

#include "engine/rodimus.h"

struct model;
struct weight;

enum weight_format { WEIGHT_STORED, WEIGHT_FP8, WEIGHT_INT8, WEIGHT_INT4 }; /* WEIGHT_STORED: 16 or 32 bits */
enum { WEIGHT_N_FORMATS = 4, WEIGHT_GROUP = 128, WEIGHT_INT4_ZERO = 8 };
/* 1 in each of the eight 4-bit fields of a word. */
#define WEIGHT_INT4_ONES 0x11111111u

struct weight_quant {
    enum weight_format format;
    uint32_t group; /* columns that share a scale: all, or WEIGHT_GROUP; the last group of a row may be shorter */
    bool zeros;     /* int4: each group has a zero point; without it the zero point is WEIGHT_INT4_ZERO. Else it is 0 */
};

/* "fp8", "int8", "int4", and "auto" for what is stored. */
const char *weight_format_name(enum weight_format format);
bool weight_format_by_name(const char *name, enum weight_format *out);

/* Whether and how this weight of the model is kept in fewer bits; false: in 16 or 32. */
bool weight_quant_of(const struct model *model, const struct weight *w, struct weight_quant *out);
/* Bytes of the weight in memory: codes, scales in 32 bits and zero points in 4, or its own type. */
uint64_t weight_kept_bytes(const struct model *model, const struct weight *w);
uint32_t weight_quant_groups(const struct weight_quant *q, uint32_t cols);
/* codes [cols], one a byte: int8 in two's complement from -127 on, int4 0 to 15, fp8 the bits of a finite e4m3; scales
 * [groups]; zeros [groups], 0 to 15, or NULL without q->zeros. The codes that are stored, or rounded from wider weights
 * (an adapter merged before): scales then have the bits of bf16. A scale is NaN where a weight is no finite number. */
void weight_quant_row(const struct weight *w, const struct weight_quant *q, uint32_t row, uint8_t *codes, float *scales,
                      uint8_t *zeros);
/* dst[cols]: the row's weights as its codes say. */
void weight_quant_widen(const struct weight_quant *q, uint32_t cols, const uint8_t *codes, const float *scales,
                        const uint8_t *zeros, float *dst);

/* int4, of at most WEIGHT_GROUP weights: the scale with the least squared error, each error times its importance (NULL:
 * all 1); and a weight's code under it. */
float weight_quant_scale(const float *x, const float *importance, uint32_t n);
uint8_t weight_quant_code(float x, float scale);

/* Refuses a model with a weight in a format that a device ("the CPU") does not run. runs: 1 << format, or-ed. */
int weight_quant_check(const struct model *model, unsigned runs, const char *device, struct rod_error *err);

#endif
