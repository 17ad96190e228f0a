/* h200.h - the table of an H200: measured there, and taken by every card that has no table of its own. What each rule
 * is worth: tests/bench/ablate.
 */
#ifndef TUNING_H200_H
#define TUNING_H200_H

#include "kernels/tuning/tuning.h"

#define WIDE(...)  DISPATCH_WIDE_ID(__VA_ARGS__)
#define CODED(...) DISPATCH_CODED_ID(__VA_ARGS__)
enum {
    H200_LINEAR = OP(LINEAR),
    H200_DECODE = OP(DECODE_PRODUCT),
    H200_PAIR = OP(DECODE_PAIR),
    H200_MANY = OP(LINEAR) | OP(DECODE_PRODUCT) | OP(DECODE_PAIR),
    H200_CONV = OP(DECODE_CONV) | OP(DRAFT_CONV)
};

CONDITION(h200_forced, "asked for", c->forced)
CONDITION(h200_draws_none, "no row draws", !c->draws)
CONDITION(h200_two_products, "two products", c->outputs_two > 0)
CONDITION(h200_no_window, "no window", !c->shape->H)
CONDITION(h200_whole_device, "not on a device part", !c->device.is_part)
CONDITION(h200_window8, "keys and values in 8 bits", c->shape->window == CUDA_FP8)
/* A block of 32 channels takes little more than half the time of one of 64, but reads as much of what all share. */
CONDITION(h200_narrow_at_once, "of the longest segment; blocks of 32 channels all at work at once",
          c->n_segs && c->n_segs * ((c->shape->E + 31) / 32) <= c->device.processors)
CONDITION(h200_tiles_at_once, "no more tiles of 64 queries times heads than multiprocessors",
          !c->n_pairs && !dispatch_prompt_pairs(c->device, c->shape, c->n_single))

/* clang-format off */
static const struct tuned_rule h200_rules[] = {
    /* products */
    {.ops = H200_LINEAR, LINEAR_F32},
    {.ops = H200_LINEAR, LINEAR_1_1, .rows_to = 8},
    {.ops = H200_DECODE, FEW_CODES},
    {.ops = H200_DECODE, FEW_ROUND},
    {.ops = H200_DECODE, FEW_16, .k_from = 193},
    {.ops = H200_DECODE, FEW_8},
    {.ops = H200_DECODE, FEW_TWO},
    {.ops = H200_PAIR, FEW_PAIR},
    {.ops = H200_MANY, CODED(1, 32, 8, 3, 1, 4, 1), .rows_to = 32, .b64_from = 80},
    {.ops = H200_MANY, CODED(1, 32, 8, 3, 4, 2, 2), .rows_to = 32, .k_from = 177, .k_to = 256, .b64_from = 25, .b64_to = 40},
    {.ops = H200_MANY, CODED(1, 64, 8, 2, 1, 4, 1), .rows_from = 33, .rows_to = 64, .b64_from = 80},
    {.ops = H200_MANY, CODED(1, 64, 8, 2, 2, 4, 1), .rows_from = 33, .k_from = 65, .k_to = 256, .b64_from = 50, .b64_to = 66},
    {.ops = H200_MANY, CODED(1, 64, 8, 2, 1, 4, 1), .rows_from = 65, .k_from = 65, .k_to = 128, .b64_from = 67, .b64_to = 99},
    {.ops = H200_MANY, CODED(1, 64, 8, 2, 1, 4, 1), .rows_from = 65, .b64_from = 100, .b64_to = 264},
    {.ops = H200_MANY, TALL, .rows_from = 65, .measure_from = 60},
    {.ops = H200_MANY, CODED(1, 64, 8, 2, 1, 4, 1), .rows_from = 65, .b64_from = 265, .b64_to = 396},
    {.ops = H200_MANY, WIDE(1, 32, 8, 2, 16, 2), .rows_to = 32, .b64_to = 8},
    {.ops = H200_MANY, WIDE(1, 32, 8, 4, 2, 2), .stored = true, .rows_from = 25, .rows_to = 32, .b64_from = 100},
    {.ops = H200_MANY, WIDE(1, 32, 8, 5, 1, 2), .rows_to = 32, .b64_from = 100},
    {.ops = H200_MANY, WIDE(1, 32, 11, 2, 4, 3), .rows_to = 32, .k_from = 129, .k_to = 176},
    {.ops = H200_MANY, WIDE(1, 32, 8, 3, 4, 3), .rows_to = 32},
    {.ops = H200_MANY, WIDE(1, 64, 8, 2, 16, 2), .b64_to = 24},
    {.ops = H200_MANY, WIDE(2, 64, 8, 4, 2, 1), .rows_from = 129},
    {.ops = H200_MANY, WIDE(2, 64, 8, 4, 1, 1), .b128 = 80},
    {.ops = H200_MANY, WIDE(1, 64, 8, 5, 1, 1), .b64_from = 100},
    {.ops = H200_MANY, WIDE(1, 64, 8, 4, 1, 2), .b64_from = 100},
    {.ops = H200_MANY, WIDE(1, 64, 8, 3, 4, 2), .rows_from = 65, .endings = DISPATCH_PLAIN, .b64_to = 40, .also = &h200_two_products},
    {.ops = H200_MANY, WIDE(1, 64, 4, 4, 4, 3), .rows_from = 65},
    {.ops = H200_MANY, WIDE(1, 64, 4, 4, 4, 3), .b64_from = 67},
    {.ops = H200_MANY, WIDE(1, 64, 8, 3, 2, 2), .b64_from = 50},
    {.ops = H200_MANY, WIDE(1, 64, 11, 2, 4, 2), .k_from = 129, .k_to = 176},
    {.ops = H200_MANY, WIDE(1, 64, 8, 3, 4, 2), .rows_from = 9},
    {.ops = H200_LINEAR, LINEAR_2_2, .rows_to = 16},
    {.ops = H200_LINEAR, LINEAR_2_4},
    {.ops = OP(PROMPT_BY), LIBRARY, .also = &h200_forced},
    {.ops = OP(PROMPT_BY), OWN},
    {.ops = OP(PROMPT_BY), LIBRARY},
    {.ops = OP(PROMPT_PRODUCT), BROAD_2_256},
    {.ops = OP(PROMPT_PRODUCT), BROAD_2_128},
    {.ops = OP(PROMPT_PRODUCT), BROAD_2_64},
    {.ops = OP(PROMPT_PRODUCT), BROAD_1_64},
    {.ops = OP(PROMPT_PRODUCT), BROAD_1_32},
    /* the recurrent layer */
    {.ops = H200_CONV, CONV_FEW_4},
    {.ops = H200_CONV, CONV_FEW_8},
    {.ops = H200_CONV | OP(CONV_PAIR), CONV_PAIR_1, .rows_to = 48},
    {.ops = H200_CONV | OP(CONV_PAIR), CONV_PAIR_3},
    {.ops = H200_CONV | OP(CONV_ROWS), CONV_ROWS_4},
    {.ops = H200_CONV | OP(CONV_ROWS), CONV_ROWS_8},
    {.ops = H200_CONV, CONV_PLAIN},
    {.ops = OP(DECODE_STATE), STATE_FEW_4, .rows_to = 8},
    {.ops = OP(DECODE_STATE), STATE_FEW_1, .rows_to = 16}, /* steps of more rows defer */
    {.ops = OP(DECODE_STATE), STATE_4_WHOLE},
    {.ops = OP(DECODE_STATE), STATE_8},
    {.ops = OP(DECODE_STATE), GLA},
    {.ops = OP(DRAFT_STATE), STATE_DRAFTS_MANY_4_WHOLE, .rows_from = 9},
    {.ops = OP(DRAFT_STATE), STATE_DRAFTS_MANY_8, .rows_from = 9},
    {.ops = OP(DRAFT_STATE), STATE_DRAFTS_4_WHOLE},
    {.ops = OP(DRAFT_STATE), STATE_DRAFTS_8},
    {.ops = OP(PROMPT_STATE), WIDE_SCAN_4_NARROW, .rows_from = 1024, .also = &h200_narrow_at_once},
    {.ops = OP(PROMPT_STATE), WIDE_SCAN_4},
    {.ops = OP(PROMPT_STATE), WIDE_SCAN_8},
    {.ops = OP(PROMPT_STATE), SCAN_64},
    {.ops = OP(PROMPT_STATE), SCAN_128},
    {.ops = OP(PROMPT_STATE), GLA},
    /* attention; measured: 128 rows of 16 heads and 17 ranges */
    {.ops = OP(DECODE_WINDOW), DECODE_WINDOW_MANY, .also = &h200_window8}, /* 8 rows and more: 1.01 to 1.12 times */
    {.ops = OP(DECODE_WINDOW), DECODE_WINDOW_NEAR, .rows_to = 128, .measure_to = 17408, .also = &h200_whole_device},
    {.ops = OP(DECODE_WINDOW), DECODE_WINDOW_MANY, .measure_from = 12},
    {.ops = OP(DECODE_WINDOW), DECODE_WINDOW_FEW, .measure_to = 132},
    {.ops = OP(DECODE_WINDOW), DECODE_WINDOW},
    {.ops = OP(DECODE_WINDOW), WINDOW},
    {.ops = OP(DRAFT_WINDOW), DRAFT_WINDOW},
    {.ops = OP(DRAFT_WINDOW), WINDOW},
    {.ops = OP(PROMPT_WINDOW), PROMPT_WIDE_1, .also = &h200_tiles_at_once},
    {.ops = OP(PROMPT_WINDOW), PROMPT_WIDE_2},
    {.ops = OP(PROMPT_WINDOW), PROMPT_ANY_64},
    {.ops = OP(PROMPT_WINDOW), PROMPT_ANY_128},
    {.ops = OP(PROMPT_WINDOW), PROMPT_ANY_256},
    {.ops = OP(PROMPT_WINDOW), WINDOW},
    /* a step as one launch */
    {.ops = OP(DECODE_STEP), ONE_LAUNCH, .also = &h200_forced},
    {.ops = OP(DECODE_STEP), ONE_LAUNCH, .D = 2048, .rows_to = 1},
    {.ops = OP(DECODE_STEP), ONE_LAUNCH, .D = 2048, .rows_to = 2, .also = &h200_no_window},
    {.ops = OP(DECODE_STEP), STAGES},
    /* sampling: some 128 multiprocessors for few rows; the token is the same whatever the number of blocks */
    {.ops = OP(SAMPLE), PICK_1, .also = &h200_draws_none},
    {.ops = OP(SAMPLE), PICK_8, .rows_to = 16},
    {.ops = OP(SAMPLE), PICK_2, .rows_to = 64},
    {.ops = OP(SAMPLE), PICK_1},
};
/* clang-format on */

static const struct tuning h200 = {
    .rules = h200_rules,
    .n_rules = sizeof h200_rules / sizeof *h200_rules,
    .broad = {.cache_bytes = 6600, .copy_bytes = 72, .end_clocks = 1500, .end_row_clocks = 7}};

#undef WIDE
#undef CODED

#endif
