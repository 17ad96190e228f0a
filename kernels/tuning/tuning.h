/* tuning.h - what a card's table says: which kernel takes a case of those whose kernels can, by measured ranges, in the
 * order in which its rules are tried. What a kernel can at all is in dispatch.c.
 */
#ifndef TUNING_H
#define TUNING_H

#include "kernels/dispatch.h"

/* What ranges do not say. */
struct condition {
    bool (*test)(const struct dispatch_case *c);
    const char *text;
};
#define CONDITION(name, what, ...)                                                                                     \
    static bool test_##name(const struct dispatch_case *c) { return __VA_ARGS__; }                                     \
    static const struct condition name = {test_##name, what};

/* A bound of 0 sets no limit. */
struct tuned_rule {
    uint32_t ops; /* bits */
    enum dispatch_kernel kernel;
    uint32_t rows_from, rows_to;
    enum dispatch_ending endings;
    uint32_t k_from, k_to;           /* tiles of 16 */
    uint32_t b64_from, b64_to, b128; /* blocks of 64 outputs and 64 rows; at least so many of 128 outputs and 64 rows */
    uint32_t measure_from, measure_to; /* of the kernel's own measure */
    uint32_t D;
    bool stored; /* no codes */
    const struct condition *also;
};

/* Clocks of a tile of broad_kernel, in rounds of all multiprocessors. */
struct broad_tuning {
    uint32_t cache_bytes; /* a clock, of all multiprocessors */
    uint32_t copy_bytes;  /* a clock, of one at most */
    uint32_t end_clocks;  /* of a tile's end that nothing hides: so many, and for each 64 outputs of a row */
    uint32_t end_row_clocks;
};

struct tuning {
    const struct tuned_rule *rules;
    uint32_t n_rules;
    struct broad_tuning broad;
};

#define OP(op) (1u << DISPATCH_##op)

#endif
