/* dispatch.h - which CUDA kernel runs, by operation, device, dtype, rows and sizes: one table, in C, so that it can be
 * read, printed and tested without a GPU. The launchers of kernels/cuda ask it and know no other conditions;
 * kernels/dispatch_table.txt shows it. Pure. Threads: any.
 */
#ifndef DISPATCH_H
#define DISPATCH_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dispatch_device {
    uint32_t major, processors; /* of the compute capability; multiprocessors */
    bool is_part;               /* a device part: a cluster has eight blocks at most there */
};

enum dispatch_op {
    DISPATCH_LINEAR,         /* k_linear, k_linear_pair; more than 8 rows of k_fused_* */
    DISPATCH_DECODE_PRODUCT, /* k_fused_linear, k_fused_residual, k_fused_ffn */
    DISPATCH_DECODE_PAIR,    /* k_fused_linear_pair */
    DISPATCH_PROMPT_PRODUCT, /* k_prompt_* */
    DISPATCH_PROMPT_BY,      /* whose the products of prompts are */
    DISPATCH_DECODE_CONV,  /* E2 of single tokens, with the product before it or those after it where that is one kernel
                            */
    DISPATCH_DRAFT_CONV,   /* the same of a step with drafts */
    DISPATCH_CONV_ROWS,    /* the same by itself, of more than 8 rows or with drafts */
    DISPATCH_CONV_PAIR,    /* the same with the products after it: k_conv_pair */
    DISPATCH_DECODE_STATE, /* E4 to E7 of single tokens: k_gla_gates */
    DISPATCH_DRAFT_STATE,  /* the same of a step with drafts: k_gla_drafts; rows: its segments, in a graph its rows */
    DISPATCH_PROMPT_STATE, /* k_scan, or k_gla */
    DISPATCH_DECODE_WINDOW, /* E9 of rows alone in their piece: k_decode_window, or k_window */
    DISPATCH_DRAFT_WINDOW,  /* the same of a step with drafts: k_draft_window, or k_window */
    DISPATCH_PROMPT_WINDOW, /* E9 of prompts: k_prompt_window, or k_window */
    DISPATCH_SAMPLE,        /* k_sample */
    DISPATCH_DECODE_STEP,   /* a step of single tokens: k_one_launch, or the kernels of its stages */
    DISPATCH_N_OPS
};

/* What becomes of a product's outputs, as it decides about kernels. */
enum dispatch_ending { DISPATCH_PLAIN = 1, DISPATCH_RESIDUAL = 2, DISPATCH_FFN = 4, DISPATCH_ANY_ENDING = 7 };

/* wide_kernel<MW, NB, SK, STAGES, CLUSTER, BLOCKS>: of plain outputs alone; of residuals alone; of any. */
#define DISPATCH_WIDE_PLAIN(X)                                                                                         \
    X(1, 32, 8, 2, 16, 2)                                                                                              \
    X(1, 32, 8, 4, 2, 2)                                                                                               \
    X(1, 64, 8, 2, 16, 2)                                                                                              \
    X(1, 64, 8, 5, 1, 1)
#define DISPATCH_WIDE_RESIDUAL(X) X(2, 64, 8, 4, 2, 1)
#define DISPATCH_WIDE_FINISHED(X) X(1, 64, 8, 4, 1, 2) /* of all but plain ones */
#define DISPATCH_WIDE_ANY(X)                                                                                           \
    X(1, 32, 8, 5, 1, 2)                                                                                               \
    X(1, 32, 11, 2, 4, 3)                                                                                              \
    X(1, 32, 8, 3, 4, 3)                                                                                               \
    X(2, 64, 8, 4, 1, 1)                                                                                               \
    X(1, 64, 4, 4, 4, 3)                                                                                               \
    X(1, 64, 8, 3, 2, 2)                                                                                               \
    X(1, 64, 11, 2, 4, 2)                                                                                              \
    X(1, 64, 8, 3, 4, 2)
#define DISPATCH_WIDE_ID(MW, NB, SK, STAGES, CLUSTER, BLOCKS) WIDE_##MW##_##NB##_##SK##_##STAGES##_##CLUSTER##_##BLOCKS
#define DISPATCH_WIDE_ENUM(...)                               DISPATCH_WIDE_ID(__VA_ARGS__),
/* coded_kernel<MW, NB, SK, STAGES, CLUSTER, KG, BLOCKS>. */
#define DISPATCH_CODED(X)                                                                                              \
    X(1, 64, 8, 2, 1, 4, 1)                                                                                            \
    X(1, 64, 8, 2, 2, 4, 1)                                                                                            \
    X(1, 32, 8, 3, 1, 4, 1)                                                                                            \
    X(1, 32, 8, 3, 4, 2, 2)
#define DISPATCH_CODED_ID(MW, NB, SK, STAGES, CLUSTER, KG, BLOCKS)                                                     \
    CODED_##MW##_##NB##_##SK##_##STAGES##_##CLUSTER##_##KG##_##BLOCKS
#define DISPATCH_CODED_ENUM(...) DISPATCH_CODED_ID(__VA_ARGS__),

enum dispatch_kernel {
    LINEAR_F32,
    LINEAR_1_1,
    LINEAR_2_2,
    LINEAR_2_4,
    TALL,
    FEW_8,
    FEW_16,
    FEW_ROUND,
    FEW_TWO,
    FEW_CODES,
    FEW_PAIR,
    BROAD_2_256,
    BROAD_2_128,
    BROAD_2_64,
    BROAD_1_64,
    BROAD_1_32,
    CONV_PLAIN,
    CONV_FEW_4,
    CONV_FEW_8,
    CONV_PAIR_1,
    CONV_PAIR_3,
    CONV_ROWS_4,
    CONV_ROWS_8,
    GLA,
    STATE_FEW_4,
    STATE_FEW_1,
    STATE_4_WHOLE,
    STATE_8,
    STATE_DRAFTS_4_WHOLE,
    STATE_DRAFTS_8,
    STATE_DRAFTS_MANY_4_WHOLE,
    STATE_DRAFTS_MANY_8,
    WIDE_SCAN_4_NARROW,
    WIDE_SCAN_4,
    WIDE_SCAN_8,
    SCAN_64,
    SCAN_128,
    WINDOW,
    DECODE_WINDOW_MANY,
    DECODE_WINDOW_NEAR,
    DECODE_WINDOW_FEW,
    DECODE_WINDOW,
    DRAFT_WINDOW,
    PROMPT_WIDE_1,
    PROMPT_WIDE_2,
    PROMPT_ANY_64,
    PROMPT_ANY_128,
    PROMPT_ANY_256,
    PICK_1,
    PICK_2,
    PICK_8,
    ONE_LAUNCH,
    STAGES,
    OWN,
    LIBRARY,
    DISPATCH_WIDE_PLAIN(DISPATCH_WIDE_ENUM) DISPATCH_WIDE_RESIDUAL(DISPATCH_WIDE_ENUM)
        DISPATCH_WIDE_FINISHED(DISPATCH_WIDE_ENUM) DISPATCH_WIDE_ANY(DISPATCH_WIDE_ENUM)
            DISPATCH_CODED(DISPATCH_CODED_ENUM) DISPATCH_N_KERNELS
};
#define DISPATCH_IS_CODED(kernel) ((kernel) >= CODED_1_64_8_2_1_4_1) /* the list's end */

/* What is asked for. Members that an operation's rules do not read may be 0. */
struct dispatch_case {
    enum dispatch_op op;
    struct dispatch_device device;
    enum cuda_dtype dtype;
    uint32_t n_rows; /* of the step, of the list of rows, or of a prompt state's longest segment */
    /* Of products: one or two of the same k; k in tiles of 16. */
    bool coded; /* weights of 8 or 4 bits */
    enum dispatch_ending ending;
    uint32_t outputs, outputs_two, k_tiles;
    const struct cuda_shape *shape; /* of all operations but LINEAR, DECODE_PAIR, PROMPT_PRODUCT and SAMPLE */
    uint32_t n_segs;                /* of a prompt state; 0: of any step, as its memory is laid out */
    uint32_t n_pairs, n_single;     /* tiles of prompts' attention */
    bool draws;
    bool forced; /* DISPATCH_PROMPT_BY: the library, whatever the device; DISPATCH_DECODE_STEP: one launch also where it
                    is slower */
};

/* The first rule that fits: there is always one. */
enum dispatch_kernel dispatch_kernel_of(const struct dispatch_case *c);
/* Its number; dispatch_n_rules() where none fits. left_out: a byte a rule, 1: as if it were not there; NULL: none is.
 * What a rule is worth: tests/bench/ablate. */
uint32_t dispatch_rule_of(const struct dispatch_case *c, const unsigned char *left_out);

/* Whether an operation has its special kernels at all. */
bool dispatch_fused(struct dispatch_device device, const struct cuda_shape *shape); /* DECODE_*, PROMPT_PRODUCT */
bool dispatch_wide_scan(struct dispatch_device device, const struct cuda_shape *shape);
bool dispatch_scan(const struct cuda_shape *shape);
bool dispatch_decode_window(const struct cuda_shape *shape);
bool dispatch_prompt_window(const struct cuda_shape *shape);
bool dispatch_prompt_wide(struct dispatch_device device, const struct cuda_shape *shape);
bool dispatch_conv_pair(struct dispatch_device device, const struct cuda_shape *shape);

/* Numbers that the rules and their kernels share. */
enum {
    DISPATCH_WINDOW_RANGE = 128, /* keys */
    DISPATCH_WINDOW_ROWS = 512,  /* of decode_many_kernel */
    DISPATCH_TALL_ROWS = 128,
    DISPATCH_PROMPT_TILE = 64,
    DISPATCH_FEW_WARPS = 16,
    DISPATCH_FEW_LD = 20,
    DISPATCH_MOST_SHARED = 227 << 10 /* bytes of a block's shared memory */
};
/* Shared memory of few_kernel, for k_tiles; of 16 rows it takes 10 KiB more, or less, and of 16 bits it takes room for
 * 8, 12 or 16 tiles a slice, but 10 KiB less (decode.cu). */
static inline size_t dispatch_few_bytes(uint32_t k_tiles) {
    return (size_t)k_tiles * 512 + DISPATCH_FEW_WARPS * (8 * DISPATCH_FEW_LD * sizeof(float) + 8);
}
/* Runs that decode_many_kernel cuts the ranges into: of its blocks a multiprocessor has one, of a window in 8 bits two.
 */
static inline uint32_t dispatch_window_runs(struct dispatch_device device, const struct cuda_shape *shape) {
    const uint32_t blocks = shape->window == CUDA_FP8 ? 2 : 1, runs = blocks * device.processors / (shape->H / 4);
    return runs ? runs : 1;
}
/* Runs of draft_window_kernel's blocks, each of two heads: two blocks a multiprocessor. */
static inline uint32_t dispatch_draft_runs(struct dispatch_device device, const struct cuda_shape *shape) {
    const uint32_t runs = 2 * device.processors / (shape->H / 2);
    return runs ? runs : 1;
}
/* Whether prompts' attention takes tiles of queries in pairs: n_tiles of them times heads are more than there are
 * multiprocessors. */
static inline bool dispatch_prompt_pairs(struct dispatch_device device, const struct cuda_shape *shape,
                                         uint32_t n_tiles) {
    return n_tiles * shape->H > device.processors;
}

/* A rule as text, for the table: one of n. */
struct dispatch_text {
    const char *op, *kernel, *device, *dtype;
    char when[320];
};
uint32_t dispatch_n_rules(void);
enum dispatch_kernel dispatch_rule_kernel(uint32_t i);
struct dispatch_text dispatch_rule_text(uint32_t i);

#ifdef __cplusplus
}
#endif
#endif
