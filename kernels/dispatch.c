/* dispatch.c - the rules of dispatch.h, in the order in which they are tried. */
#include "kernels/dispatch.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- sizes that have kernels of their own ---- */

static bool is_hopper(struct dispatch_device device) { return device.major == 9; } /* sm_90a: wgmma, tensor copies */
static uint32_t blocks_of(uint32_t n, uint32_t size) { return (n + size - 1) / size; }

bool dispatch_fused(struct dispatch_device device, const struct cuda_shape *s) {
    const uint32_t inputs[] = {s->D, s->E, s->F, s->H * s->P};
    if (!is_hopper(device) || s->dtype == CUDA_F32 || s->D % 16 || s->E % 16 || s->H * s->P % 16) return false;
    for (int i = 0; i < 4; i++)
        if (dispatch_few_bytes(cuda_pad16(inputs[i]) / 16) > DISPATCH_MOST_SHARED) return false;
    return true;
}
bool dispatch_wide_scan(struct dispatch_device device, const struct cuda_shape *s) {
    return s->M <= 64 && s->R <= 64 && is_hopper(device);
}
bool dispatch_scan(const struct cuda_shape *s) {
    return s->dtype != CUDA_F32 && s->M <= 128 && s->R <= 128 && s->K <= 8 && s->E % 8 == 0;
}
bool dispatch_decode_window(const struct cuda_shape *s) {
    return s->dtype != CUDA_F32 && (s->P == 64 || s->P == 128) && s->Hk == 1 && s->Hv == s->H && s->H % 4 == 0 &&
           (uint64_t)s->ring_keys * s->H * s->P < UINT32_MAX;
}
bool dispatch_prompt_window(const struct cuda_shape *s) {
    return s->dtype != CUDA_F32 && s->P % 8 == 0 && s->P <= 256 && s->ring_keys >= DISPATCH_PROMPT_TILE;
}
bool dispatch_prompt_wide(struct dispatch_device device, const struct cuda_shape *s) {
    return is_hopper(device) && s->Hk == 1 && (s->P == 64 || s->P == 128) && s->H % 2 == 0;
}
bool dispatch_conv_pair(struct dispatch_device device, const struct cuda_shape *s) {
    return is_hopper(device) && s->dtype != CUDA_F32 && s->K <= 4 && s->E % 16 == 0 && s->E <= 4096;
}

/* ---- what numbers alone do not say ---- */

typedef bool dispatch_test(const struct dispatch_case *c);

static bool is_whole(const struct dispatch_case *c) { return !c->device.share; }

/* Tiles of 128 x 128: the last round of all multiprocessors, too, keeps three fifths of them at work; no slice is
 * empty. */
static bool fills_tall(const struct dispatch_case *c) {
    const uint32_t tiles = (blocks_of(c->outputs, 128) + blocks_of(c->outputs_two, 128)) *
                           blocks_of(c->n_rows, DISPATCH_TALL_ROWS),
                   all = c->device.processors;
    return tiles * 5 >= blocks_of(tiles, all) * all * 3;
}
/* Clocks, more or less, that tiles of 64 MW outputs and N rows would take: rounds of all multiprocessors, each limited
 * by its products or by its share of what the second-level cache gives, and what is not hidden of a tile's end
 * (measured on an H200). */
static double broad_clocks(const struct dispatch_case *c, uint32_t MW, uint32_t N) {
    const uint32_t all = c->device.processors, tiles = blocks_of(c->outputs, MW * 64) * blocks_of(c->n_rows, N),
                   rounds = blocks_of(tiles, all);
    const double active = tiles < all ? tiles : all, bytes_a_clock = 6600 / active < 72 ? 6600 / active : 72;
    const double products = MW * N / 2, copies = (MW * 64 + N) * 32 / bytes_a_clock;
    return rounds * (c->k_tiles * (products > copies ? products : copies) + 1500 + MW * N * 7);
}
static bool has_fused(const struct dispatch_case *c) { return dispatch_fused(c->device, c->shape); }
static bool few_taps(const struct dispatch_case *c) { return c->shape->K <= 4; }
static bool conv_asked(const struct dispatch_case *c) {
    return (c->op != DISPATCH_DECODE_CONV && c->op != DISPATCH_DRAFT_CONV) || has_fused(c);
}
static bool fused_few_taps(const struct dispatch_case *c) { return conv_asked(c) && few_taps(c); }
static bool fused_conv_pair(const struct dispatch_case *c) {
    return c->op == DISPATCH_CONV_PAIR || (has_fused(c) && dispatch_conv_pair(c->device, c->shape));
}
static bool M_is_64(const struct dispatch_case *c) { return c->shape->M == 64; }
static bool M_below_64(const struct dispatch_case *c) { return c->shape->M < 64; }
static bool has_no_scan(const struct dispatch_case *c) { return !dispatch_scan(c->shape); }
static bool wide_scan_32(const struct dispatch_case *c) {
    return dispatch_wide_scan(c->device, c->shape) && c->shape->R <= 32;
}
static bool wide_scan_48(const struct dispatch_case *c) {
    return dispatch_wide_scan(c->device, c->shape) && c->shape->R <= 48;
}
static bool wide_scan_64(const struct dispatch_case *c) { return dispatch_wide_scan(c->device, c->shape); }
/* Each block takes little more than half the time of one of 64 channels, but reads as much of what all share. */
static bool narrow_scan(const struct dispatch_case *c) {
    return c->n_segs && c->n_segs * blocks_of(c->shape->E, 32) <= c->device.processors;
}
static bool narrow_scan_32(const struct dispatch_case *c) { return narrow_scan(c) && wide_scan_32(c); }
static bool narrow_scan_48(const struct dispatch_case *c) { return narrow_scan(c) && wide_scan_48(c); }
static bool narrow_scan_64(const struct dispatch_case *c) { return narrow_scan(c) && wide_scan_64(c); }
/* Two blocks of a multiprocessor at once, of one or two tiles of 16 outputs each. */
static bool two_tiles(const struct dispatch_case *c) {
    const uint32_t tiles = blocks_of(c->outputs, 16), blocks = 2 * c->device.processors;
    return tiles > blocks && tiles <= 2 * blocks;
}
static bool two_products(const struct dispatch_case *c) { return c->outputs_two > 0; }
static bool M_up_to_64(const struct dispatch_case *c) { return c->shape->M <= 64; }
static bool has_no_decode_window(const struct dispatch_case *c) { return !dispatch_decode_window(c->shape); }
static uint32_t window_ranges(const struct dispatch_case *c) {
    return blocks_of(c->shape->visible, DISPATCH_WINDOW_RANGE);
}
static bool window_many(const struct dispatch_case *c) {
    return c->n_rows * window_ranges(c) >= 12 * dispatch_window_runs(c->device, c->shape); /* fewer: measured slower */
}
/* What was measured: 128 rows of 16 heads and 17 ranges. */
static bool window_near(const struct dispatch_case *c) {
    return c->shape->P == 128 && c->n_rows * (c->shape->H / 2) * window_ranges(c) <= 17408 && is_whole(c);
}
static bool window_few(const struct dispatch_case *c) {
    return c->n_rows * (c->shape->H / 4) * window_ranges(c) <= 132;
}
static bool has_no_prompt_window(const struct dispatch_case *c) { return !dispatch_prompt_window(c->shape); }
static bool prompt_wide_few(const struct dispatch_case *c) {
    return dispatch_prompt_wide(c->device, c->shape) && !c->n_pairs &&
           !dispatch_prompt_pairs(c->device, c->shape, c->n_single);
}
static bool prompt_wide(const struct dispatch_case *c) { return dispatch_prompt_wide(c->device, c->shape); }
static bool P_up_to_64(const struct dispatch_case *c) { return c->shape->P <= 64; }
static bool P_up_to_128(const struct dispatch_case *c) { return c->shape->P <= 128; }
static bool has_persistent(const struct dispatch_case *c) {
    const struct cuda_shape *s = c->shape;
    if (!is_whole(c)) return false;
    const bool faster = s->D == 2048 && c->n_rows <= (s->H ? 1 : 2); /* as measured */
    if (!faster && !c->forced) return false;
    if (!dispatch_fused(c->device, s) || (c->n_rows & (c->n_rows - 1))) return false;
    if (s->H && !dispatch_decode_window(s)) return false;
    return s->K <= 4 && s->M <= 64 && s->D % 64 == 0 && s->E % 128 == 0;
}
static bool is_forced(const struct dispatch_case *c) { return c->forced; }
static bool draws_none(const struct dispatch_case *c) { return !c->draws; }

/* ---- the table ---- */

enum where { ANYWHERE, HOPPER, ELSEWHERE };
enum of_dtype { ANY_DTYPE, FP32, BITS_16, CODES, STORED }; /* STORED: 16 bits, no codes */
enum {
    LIN = 1 << DISPATCH_LINEAR,
    DEC = 1 << DISPATCH_DECODE_PRODUCT,
    PAIR = 1 << DISPATCH_DECODE_PAIR,
    MANY = LIN | DEC | PAIR,
    MOST_CODED = 512, /* tiles of k whose scales fit beside the rings of coded_kernel */
    MOST_TWO = 400    /* and that fit into a block of few_kernel of 16 rows */
};

struct rule {
    uint32_t ops;
    enum dispatch_kernel kernel;
    enum where where;
    enum of_dtype dtype;
    uint32_t rows_from, rows_to; /* 0: no bound, here and below */
    enum dispatch_ending endings;
    uint32_t k_from, k_to;           /* tiles of 16 */
    uint32_t b64_from, b64_to, b128; /* blocks of 64 outputs and 64 rows; at least so many of 128 outputs and 64 rows */
    uint32_t MW, N;                  /* a tile of broad_clocks: the fewest of all that are not left out */
    dispatch_test *also;
    const char *also_text;
};

#define WIDE(...)  DISPATCH_WIDE_ID(__VA_ARGS__)
#define CODED(...) DISPATCH_CODED_ID(__VA_ARGS__)
static const struct rule rules[] = {
    /* products */
    {.ops = LIN, LINEAR_F32, .dtype = FP32},
    {.ops = LIN, LINEAR_1_1, .rows_to = 8},
    {.ops = LIN, LINEAR_2_2, ELSEWHERE, .rows_to = 16},
    {.ops = LIN, LINEAR_2_4, ELSEWHERE, .rows_from = 17},
    {.ops = DEC,
     FEW_CODES,
     HOPPER,
     CODES,
     .rows_to = 8,
     .endings = DISPATCH_FFN,
     .k_from = 128,
     .k_to = 128,
     .also = two_tiles,
     .also_text = "one tile of 16 outputs or two to each of two blocks of a multiprocessor"},
    {.ops = DEC,
     FEW_ROUND,
     HOPPER,
     STORED,
     .rows_to = 8,
     .endings = DISPATCH_PLAIN | DISPATCH_FFN,
     .k_from = 128,
     .k_to = 128,
     .also = two_tiles,
     .also_text = "no residual; one tile of 16 outputs or two to each of two blocks of a multiprocessor"},
    {.ops = DEC,
     FEW_ROUND_TWO,
     HOPPER,
     STORED,
     .rows_to = 16,
     .endings = DISPATCH_PLAIN | DISPATCH_FFN,
     .k_from = 128,
     .k_to = 128,
     .also = two_tiles,
     .also_text = "no residual; one tile of 16 outputs or two to each of two blocks of a multiprocessor"},
    {.ops = DEC, FEW_12, HOPPER, BITS_16, .rows_to = 8, .k_from = 129, .k_to = 192},
    {.ops = DEC, FEW_16, HOPPER, BITS_16, .rows_to = 8, .k_from = 193, .k_to = 256},
    {.ops = DEC, FEW_8, HOPPER, BITS_16, .rows_to = 8},
    {DEC, FEW_TWO, HOPPER, STORED, .rows_to = 16, .endings = DISPATCH_RESIDUAL, .k_from = 1, .k_to = MOST_TWO},
    {DEC, FEW_TWO, HOPPER, STORED, .rows_to = 16, .endings = DISPATCH_PLAIN, .k_from = 1, .k_to = MOST_TWO,
     .b128 = 400},
    {.ops = PAIR, FEW_PAIR, HOPPER, BITS_16, .rows_to = 8},
    {.ops = PAIR, FEW_PAIR_TWO, HOPPER, BITS_16, .rows_to = 16},
    {MANY, CODED(1, 32, 8, 3, 1, 4, 1), HOPPER, CODES, .rows_to = 32, .k_from = 1, .k_to = MOST_CODED, .b64_from = 80},
    {MANY, CODED(1, 32, 8, 3, 4, 2, 2), HOPPER, CODES, .rows_to = 32, .k_from = 65, .k_to = 128, .b64_from = 25,
     .b64_to = 40},
    {MANY, CODED(1, 32, 8, 3, 4, 2, 2), HOPPER, CODES, .rows_to = 32, .k_from = 177, .k_to = 256, .b64_from = 25,
     .b64_to = 40},
    {MANY, CODED(1, 64, 8, 2, 1, 4, 1), HOPPER, CODES, .rows_from = 33, .rows_to = 64, .k_from = 1, .k_to = MOST_CODED,
     .b64_from = 80},
    {MANY, CODED(1, 64, 8, 2, 2, 4, 1), HOPPER, CODES, .rows_from = 33, .k_from = 65, .k_to = 256, .b64_from = 50,
     .b64_to = 66},
    {MANY, CODED(1, 64, 8, 2, 1, 4, 1), HOPPER, CODES, .rows_from = 65, .k_from = 65, .k_to = 128, .b64_from = 67,
     .b64_to = 99},
    {MANY, CODED(1, 64, 6, 2, 1, 4, 1), HOPPER, CODES, .rows_from = 65, .k_from = 129, .k_to = 192, .b64_from = 100,
     .b64_to = 264},
    {MANY, CODED(1, 64, 8, 2, 1, 4, 1), HOPPER, CODES, .rows_from = 65, .k_from = 1, .k_to = MOST_CODED,
     .b64_from = 100, .b64_to = 264},
    {MANY, TALL, HOPPER, BITS_16, .rows_from = 65, .k_from = 16, .also = fills_tall,
     .also_text = "tiles of 128 x 128 keep 3/5 of the multiprocessors of their last round at work"},
    {MANY, CODED(1, 64, 8, 2, 1, 4, 1), HOPPER, CODES, .rows_from = 65, .k_from = 1, .k_to = MOST_CODED,
     .b64_from = 265, .b64_to = 396},
    {MANY, WIDE(1, 32, 8, 2, 16, 2), HOPPER, BITS_16, .rows_to = 32, .endings = DISPATCH_PLAIN, .b64_to = 8,
     .also = is_whole, .also_text = "not on a share of a device"},
    {MANY, WIDE(2, 32, 8, 5, 1, 1), HOPPER, BITS_16, .rows_to = 32, .endings = DISPATCH_PLAIN, .b128 = 400},
    {MANY, WIDE(1, 32, 8, 4, 2, 2), HOPPER, STORED, .rows_from = 25, .rows_to = 32, .endings = DISPATCH_PLAIN,
     .b64_from = 100},
    {MANY, WIDE(1, 32, 8, 5, 1, 2), HOPPER, BITS_16, .rows_to = 32, .b64_from = 100},
    {MANY, WIDE(1, 32, 8, 4, 4, 2), HOPPER, STORED, .rows_from = 17, .rows_to = 32, .k_from = 1, .k_to = 128,
     .b64_to = 66},
    {MANY, WIDE(1, 32, 11, 2, 4, 3), HOPPER, BITS_16, .rows_to = 32, .k_from = 129, .k_to = 176},
    {MANY, WIDE(1, 32, 8, 3, 4, 3), HOPPER, BITS_16, .rows_to = 32},
    {MANY, WIDE(1, 64, 8, 2, 16, 2), HOPPER, BITS_16, .endings = DISPATCH_PLAIN, .b64_to = 24, .also = is_whole,
     .also_text = "not on a share of a device"},
    {MANY, WIDE(2, 64, 8, 4, 2, 1), HOPPER, BITS_16, .rows_from = 129, .endings = DISPATCH_RESIDUAL},
    {MANY, WIDE(2, 64, 8, 4, 1, 1), HOPPER, BITS_16, .b128 = 80},
    {MANY, WIDE(1, 64, 8, 3, 2, 2), HOPPER, STORED, .rows_to = 48, .endings = DISPATCH_PLAIN, .b64_from = 100},
    {MANY, WIDE(1, 64, 8, 5, 1, 1), HOPPER, BITS_16, .endings = DISPATCH_PLAIN, .b64_from = 100},
    {MANY, WIDE(1, 64, 8, 4, 1, 2), HOPPER, BITS_16, .endings = DISPATCH_RESIDUAL | DISPATCH_FFN, .b64_from = 100},
    {MANY, WIDE(1, 64, 8, 3, 4, 2), HOPPER, BITS_16, .rows_from = 65, .endings = DISPATCH_PLAIN, .b64_to = 40,
     .also = two_products, .also_text = "two products"},
    {MANY, WIDE(1, 128, 4, 4, 4, 2), HOPPER, BITS_16, .rows_from = 65, .endings = DISPATCH_PLAIN},
    {MANY, WIDE(1, 64, 4, 4, 4, 3), HOPPER, BITS_16, .rows_from = 65},
    {MANY, WIDE(1, 64, 4, 4, 4, 3), HOPPER, BITS_16, .b64_from = 67},
    {MANY, WIDE(1, 64, 8, 3, 2, 2), HOPPER, BITS_16, .b64_from = 50},
    {MANY, WIDE(1, 64, 11, 2, 4, 2), HOPPER, BITS_16, .k_from = 129, .k_to = 176},
    {MANY, WIDE(1, 64, 8, 3, 4, 2), HOPPER, BITS_16, .rows_from = 9},
#define OP(op) .ops = 1 << DISPATCH_##op
#define CONV   .ops = 1 << DISPATCH_DECODE_CONV | 1 << DISPATCH_DRAFT_CONV
    {OP(PROMPT_BY), LIBRARY, .dtype = FP32},
    {OP(PROMPT_BY), LIBRARY, ELSEWHERE},
    {OP(PROMPT_BY), LIBRARY, .also = is_forced, .also_text = "asked for"},
    {OP(PROMPT_BY), OWN},
    {OP(PROMPT_PRODUCT), BROAD_2_256, HOPPER, BITS_16, .MW = 2, .N = 256,
     .also_text = "the fewest clocks by broad_clocks"},
    {OP(PROMPT_PRODUCT), BROAD_2_128, HOPPER, BITS_16, .MW = 2, .N = 128, .also_text = "the same"},
    {OP(PROMPT_PRODUCT), BROAD_2_64, HOPPER, BITS_16, .MW = 2, .N = 64, .also_text = "the same"},
    {OP(PROMPT_PRODUCT), BROAD_1_64, HOPPER, BITS_16, .MW = 1, .N = 64, .also_text = "the same"},
    {OP(PROMPT_PRODUCT), BROAD_1_32, HOPPER, BITS_16, .MW = 1, .N = 32},
    /* the recurrent layer */
    {CONV, CONV_FEW_4, HOPPER, BITS_16, .rows_to = 8, .also = fused_few_taps,
     .also_text = "fused, K up to 4: part of W_fc"},
    {CONV, CONV_FEW_8, HOPPER, BITS_16, .rows_to = 8, .also = has_fused, .also_text = "fused: part of W_fc"},
#define CONV_OR(op) CONV | 1 << DISPATCH_##op
    {CONV_OR(CONV_PAIR), CONV_PAIR_1, HOPPER, BITS_16, .rows_to = 48, .also = fused_conv_pair,
     .also_text = "fused, K up to 4, E a multiple of 16 up to 4,096: with W_in, W_m, W_c0"},
    {CONV_OR(CONV_PAIR), CONV_PAIR_2, HOPPER, BITS_16, .rows_to = 64, .also = fused_conv_pair, .also_text = "the same"},
    {CONV_OR(CONV_PAIR), CONV_PAIR_3, HOPPER, BITS_16, .rows_to = CUDA_CONV_PAIR_ROWS, .also = fused_conv_pair,
     .also_text = "the same"},
    {CONV_OR(CONV_ROWS), CONV_ROWS_4_1, HOPPER, BITS_16, .rows_to = 64, .also = fused_few_taps,
     .also_text = "fused, K up to 4"},
    {CONV_OR(CONV_ROWS), CONV_ROWS_4_2, HOPPER, BITS_16, .also = fused_few_taps, .also_text = "fused, K up to 4"},
    {CONV_OR(CONV_ROWS), CONV_ROWS_8_1, HOPPER, BITS_16, .also = conv_asked, .also_text = "fused"},
    {CONV, CONV_PLAIN},
    {OP(DECODE_STATE), GLA, ELSEWHERE},
    {OP(DECODE_STATE), STATE_FEW_4, .rows_to = 8},
    {OP(DECODE_STATE), STATE_FEW_1, .rows_to = DISPATCH_STATE_MANY - 1},
    {OP(DECODE_STATE), STATE_4_WHOLE, .also = M_is_64, .also_text = "M = 64"},
    {OP(DECODE_STATE), STATE_4, .also = M_below_64, .also_text = "M < 64"},
    {OP(DECODE_STATE), STATE_8},
    {OP(DRAFT_STATE), STATE_DRAFTS_MANY_4_WHOLE, .rows_from = 9, .also = M_is_64, .also_text = "M = 64"},
    {OP(DRAFT_STATE), STATE_DRAFTS_MANY_4, .rows_from = 9, .also = M_below_64, .also_text = "M < 64"},
    {OP(DRAFT_STATE), STATE_DRAFTS_MANY_8, .rows_from = 9},
    {OP(DRAFT_STATE), STATE_DRAFTS_4_WHOLE, .also = M_is_64, .also_text = "M = 64"},
    {OP(DRAFT_STATE), STATE_DRAFTS_4, .also = M_below_64, .also_text = "M < 64"},
    {OP(DRAFT_STATE), STATE_DRAFTS_8},
    {OP(PROMPT_GATES), WIDE_SCORES_GATES, HOPPER, .rows_to = 1023, .also = wide_scan_64,
     .also_text = "M up to 64, R up to 64: with the scores of a piece"},
    {OP(PROMPT_GATES), GATES_ALONE},
    {OP(PROMPT_STATE), GLA, .also = has_no_scan,
     .also_text = "fp32, or not M, R up to 128, K up to 8, E a multiple of 8"},
    {OP(PROMPT_STATE), WIDE_SCAN_4_NARROW, HOPPER, .rows_from = 1024, .also = narrow_scan_32,
     .also_text = "of the longest segment; blocks of 32 channels all at work at once; M up to 64, R up to 32"},
    {OP(PROMPT_STATE), WIDE_SCAN_6_NARROW, HOPPER, .rows_from = 1024, .also = narrow_scan_48,
     .also_text = "the same; M up to 64, R up to 48"},
    {OP(PROMPT_STATE), WIDE_SCAN_8_NARROW, HOPPER, .rows_from = 1024, .also = narrow_scan_64,
     .also_text = "the same; M up to 64, R up to 64"},
    {OP(PROMPT_STATE), WIDE_SCAN_4, HOPPER, .also = wide_scan_32, .also_text = "M up to 64, R up to 32"},
    {OP(PROMPT_STATE), WIDE_SCAN_6, HOPPER, .also = wide_scan_48, .also_text = "M up to 64, R up to 48"},
    {OP(PROMPT_STATE), WIDE_SCAN_8, HOPPER, .also = wide_scan_64, .also_text = "M up to 64, R up to 64"},
    {OP(PROMPT_STATE), SCAN_64, .also = M_up_to_64, .also_text = "M up to 64"},
    {OP(PROMPT_STATE), SCAN_128},
    /* attention */
    {OP(DECODE_WINDOW), WINDOW, .also = has_no_decode_window,
     .also_text = "fp32, or not P = 64 or 128, one key head, as many value heads as heads, a multiple of 4"},
    {OP(DECODE_WINDOW), DECODE_WINDOW_NEAR, HOPPER, .rows_to = 128, .also = window_near,
     .also_text = "P = 128; 17,408 pairs of heads and ranges of 128 keys or fewer; not on a share of a device"},
    {OP(DECODE_WINDOW), DECODE_WINDOW_MANY, HOPPER, .rows_to = DISPATCH_WINDOW_ROWS, .also = window_many,
     .also_text = "twelve ranges of 128 keys or more to each run of a block"},
    {OP(DECODE_WINDOW), DECODE_WINDOW_FEW, .also = window_few,
     .also_text = "132 blocks or fewer of four heads and a range"},
    {OP(DECODE_WINDOW), DECODE_WINDOW},
    {OP(DRAFT_WINDOW), WINDOW, .also = has_no_decode_window,
     .also_text = "fp32, or not P = 64 or 128, one key head, as many value heads as heads, a multiple of 4"},
    {OP(DRAFT_WINDOW), DRAFT_WINDOW},
    {OP(PROMPT_WINDOW), WINDOW, .also = has_no_prompt_window, .also_text = "fp32, or not P a multiple of 8 up to 256"},
    {OP(PROMPT_WINDOW), PROMPT_WIDE_1, HOPPER, .also = prompt_wide_few,
     .also_text = "one key head, P = 64 or 128, H even; no more tiles of 64 queries times heads than multiprocessors"},
    {OP(PROMPT_WINDOW), PROMPT_WIDE_2, HOPPER, .also = prompt_wide, .also_text = "one key head, P = 64 or 128, H even"},
    {OP(PROMPT_WINDOW), PROMPT_ANY_64, .also = P_up_to_64, .also_text = "P up to 64"},
    {OP(PROMPT_WINDOW), PROMPT_ANY_128, .also = P_up_to_128, .also_text = "P up to 128"},
    {OP(PROMPT_WINDOW), PROMPT_ANY_256},
    /* without drafts */
    {OP(DECODE_STEP), PERSISTENT, HOPPER, STORED, .rows_to = 8, .also = has_persistent,
     .also_text =
         "1, 2, 4, 8; fused, K up to 4, M up to 64, D in 64s, E in 128s, the window of decode steps; asked for, or D "
         "2,048 and one row, without a window two; no drafts, as these rows share a state; not on "
         "a share of a device; blocks resident"},
    {OP(DECODE_STEP), STAGES},
    /* sampling: some 128 multiprocessors for few rows; the token is the same whatever the number of blocks */
    {OP(SAMPLE), PICK_1, ELSEWHERE},
    {OP(SAMPLE), PICK_1, .also = draws_none, .also_text = "no row draws"},
    {OP(SAMPLE), PICK_8, .rows_to = 16},
    {OP(SAMPLE), PICK_4, .rows_to = 32},
    {OP(SAMPLE), PICK_2, .rows_to = 64},
    {OP(SAMPLE), PICK_1},
};
enum { N_RULES = sizeof rules / sizeof *rules };

static bool within(uint32_t x, uint32_t from, uint32_t to) { return x >= from && (!to || x <= to); }
static bool is_left_out(const unsigned char *left_out, const struct rule *r) { return left_out && left_out[r - rules]; }

/* Whether no other tile takes fewer clocks. */
static bool is_fewest(const struct rule *r, const struct dispatch_case *c, const unsigned char *left_out) {
    const double mine = broad_clocks(c, r->MW, r->N);
    for (const struct rule *other = rules; other < rules + N_RULES; other++) {
        if (!other->MW || is_left_out(left_out, other)) continue;
        const double clocks = broad_clocks(c, other->MW, other->N);
        if (clocks < mine || (clocks == mine && other < r)) return false;
    }
    return true;
}

static bool rule_fits(const struct rule *r, const struct dispatch_case *c, const unsigned char *left_out) {
    const uint32_t rows64 = blocks_of(c->n_rows, 64);
    const uint32_t b64 = (blocks_of(c->outputs, 64) + blocks_of(c->outputs_two, 64)) * rows64,
                   b128 = (blocks_of(c->outputs, 128) + blocks_of(c->outputs_two, 128)) * rows64;
    return (r->ops >> c->op & 1) && !is_left_out(left_out, r) &&
           (r->where == ANYWHERE || (r->where == HOPPER) == is_hopper(c->device)) &&
           (r->dtype == ANY_DTYPE || (r->dtype == FP32) == (c->dtype == CUDA_F32)) && (r->dtype != CODES || c->coded) &&
           (r->dtype != STORED || !c->coded) && within(c->n_rows, r->rows_from, r->rows_to) &&
           (!r->endings || (r->endings & c->ending)) && within(c->k_tiles, r->k_from, r->k_to) &&
           within(b64, r->b64_from, r->b64_to) && b128 >= r->b128 && (!r->MW || is_fewest(r, c, left_out)) &&
           (!r->also || r->also(c));
}

uint32_t dispatch_rule_of(const struct dispatch_case *c, const unsigned char *left_out) {
    uint32_t i = 0;
    assert(c->op < DISPATCH_N_OPS && c->n_rows > 0);
    while (i < N_RULES && !rule_fits(&rules[i], c, left_out)) i++;
    return i;
}

enum dispatch_kernel dispatch_kernel_of(const struct dispatch_case *c) {
    const uint32_t i = dispatch_rule_of(c, NULL);
    assert(i < N_RULES); /* the last rule of an operation has no conditions where it may be asked for */
    return rules[i].kernel;
}

/* ---- as text ---- */

static const char *kernel_text(enum dispatch_kernel k) {
#define WIDE_TEXT(...)  [DISPATCH_WIDE_ID(__VA_ARGS__)] = "wide_kernel<" #__VA_ARGS__ ">",
#define CODED_TEXT(...) [DISPATCH_CODED_ID(__VA_ARGS__)] = "coded_kernel<" #__VA_ARGS__ ">",
    static const char *const text[DISPATCH_N_KERNELS] = {
        [LINEAR_F32] = "linear_f32_kernel",
        [LINEAR_1_1] = "linear_kernel, 16 outputs by 8 rows",
        [LINEAR_2_2] = "linear_kernel, 32 by 16",
        [LINEAR_2_4] = "linear_kernel, 32 by 32",
        [TALL] = "tall_kernel",
        [FEW_CODES] = "few_codes_kernel",
        [FEW_8] = "few_kernel, 8 tiles of k at a time",
        [FEW_12] = "few_kernel, 12 tiles",
        [FEW_16] = "few_kernel, 16 tiles",
        [FEW_ROUND] = "few_round_kernel",
        [FEW_ROUND_TWO] = "few_round_kernel, 16 rows",
        [FEW_TWO] = "few_kernel, 16 rows",
        [FEW_PAIR] = "few_pair_kernel",
        [FEW_PAIR_TWO] = "few_pair_kernel, 16 rows",
        [BROAD_2_256] = "broad_kernel, 128 outputs by 256 rows",
        [BROAD_2_128] = "broad_kernel, 128 by 128",
        [BROAD_2_64] = "broad_kernel, 128 by 64",
        [BROAD_1_64] = "broad_kernel, 64 by 64",
        [BROAD_1_32] = "broad_kernel, 64 by 32",
        [CONV_PLAIN] = "conv_kernel",
        [CONV_FEW_4] = "the product's, with out_conv<4>",
        [CONV_FEW_8] = "the product's, with out_conv<8>",
        [CONV_PAIR_1] = "conv_pair_kernel<1, 1, 9>",
        [CONV_PAIR_2] = "conv_pair_kernel<2, 2, 9>",
        [CONV_PAIR_3] = "conv_pair_kernel<3, 1, 18>",
        [CONV_ROWS_4_1] = "conv_rows_kernel<4, 1>",
        [CONV_ROWS_4_2] = "conv_rows_kernel<4, 2>",
        [CONV_ROWS_8_1] = "conv_rows_kernel<8, 1>",
        [GLA] = "gla_kernel",
        [STATE_FEW_4] = "state_few_kernel<4, 512>",
        [STATE_FEW_1] = "state_few_kernel<1, 256>",
        [STATE_4_WHOLE] = "state_kernel<4, true>",
        [STATE_4] = "state_kernel<4, false>",
        [STATE_8] = "state_kernel<8, false>",
        [STATE_DRAFTS_4_WHOLE] = "state_drafts_kernel<4, true>",
        [STATE_DRAFTS_4] = "state_drafts_kernel<4, false>",
        [STATE_DRAFTS_8] = "state_drafts_kernel<8, false>",
        [STATE_DRAFTS_MANY_4_WHOLE] = "state_drafts_many_kernel<4, true>",
        [STATE_DRAFTS_MANY_4] = "state_drafts_many_kernel<4, false>",
        [STATE_DRAFTS_MANY_8] = "state_drafts_many_kernel<8, false>",
        [GATES_ALONE] = "gates_kernel",
        [WIDE_SCORES_GATES] = "wide_scores_kernel<true>",
        [WIDE_SCAN_4_NARROW] = "wide_scan_kernel<4, 32>",
        [WIDE_SCAN_6_NARROW] = "wide_scan_kernel<6, 32>",
        [WIDE_SCAN_8_NARROW] = "wide_scan_kernel<8, 32>",
        [WIDE_SCAN_4] = "wide_scan_kernel<4, 64>",
        [WIDE_SCAN_6] = "wide_scan_kernel<6, 64>",
        [WIDE_SCAN_8] = "wide_scan_kernel<8, 64>",
        [SCAN_64] = "scan_kernel<64>",
        [SCAN_128] = "scan_kernel<128>",
        [WINDOW] = "window_kernel",
        [DECODE_WINDOW_MANY] = "decode_many_kernel",
        [DECODE_WINDOW_NEAR] = "decode_near_kernel",
        [DECODE_WINDOW_FEW] = "decode_window_kernel, two tiles ahead",
        [DECODE_WINDOW] = "decode_window_kernel, one tile ahead",
        [DRAFT_WINDOW] = "draft_window_kernel",
        [PROMPT_WIDE_1] = "prompt_wide_kernel, one warpgroup",
        [PROMPT_WIDE_2] = "prompt_wide_kernel, two",
        [PROMPT_ANY_64] = "prompt_any_kernel<64>",
        [PROMPT_ANY_128] = "prompt_any_kernel<128>",
        [PROMPT_ANY_256] = "prompt_any_kernel<256>",
        [PICK_1] = "pick_kernel, a block a row",
        [PICK_2] = "pick_kernel, a cluster of 2",
        [PICK_4] = "pick_kernel, a cluster of 4",
        [PICK_8] = "pick_kernel, a cluster of 8",
        [PERSISTENT] = "persistent_kernel",
        [STAGES] = "the kernels above",
        [OWN] = "the kernels below, or the product of any step",
        [LIBRARY] = "cuBLASLt, where it is there",
        DISPATCH_WIDE_PLAIN(WIDE_TEXT) DISPATCH_WIDE_RESIDUAL(WIDE_TEXT) DISPATCH_WIDE_FINISHED(WIDE_TEXT)
            DISPATCH_WIDE_ANY(WIDE_TEXT) DISPATCH_CODED(CODED_TEXT)};
    return text[k];
}

static const char *ops_text(uint32_t ops) {
    static const char *const text[DISPATCH_N_OPS] = {"product",
                                                     "product of a decode step",
                                                     "two products of a decode step",
                                                     "product of prompts",
                                                     "products of prompts",
                                                     "convolution of a decode step",
                                                     "convolution of a decode step",
                                                     "convolution of a decode step",
                                                     "convolution of a decode step",
                                                     "state of a decode step",
                                                     "state of a step with drafts",
                                                     "gates of prompts",
                                                     "state of prompts",
                                                     "window of a decode step",
                                                     "window of a step with drafts",
                                                     "window of prompts",
                                                     "sampling",
                                                     "whole decode step"};
    if (ops == MANY) return "all products but prompts'";
    uint32_t op = 0;
    while (!(ops >> op & 1)) op++;
    return text[op];
}

static void add_text(struct dispatch_text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_text(struct dispatch_text *t, const char *format, ...) {
    va_list args;
    if (t->when[0]) strncat(t->when, "; ", sizeof t->when - strlen(t->when) - 1);
    const size_t at = strlen(t->when);
    va_start(args, format);
    const int n = vsnprintf(t->when + at, sizeof t->when - at, format, args);
    va_end(args);
    assert(n >= 0 && at + (size_t)n < sizeof t->when);
}

uint32_t dispatch_n_rules(void) { return N_RULES; }
enum dispatch_kernel dispatch_rule_kernel(uint32_t i) {
    assert(i < N_RULES);
    return rules[i].kernel;
}

struct dispatch_text dispatch_rule_text(uint32_t i) {
    assert(i < N_RULES);
    const struct rule *r = &rules[i];
    static const char *const where[] = {"any", "9.x", "others"}, *const dtype[] = {"any", "fp32", "16 bit", "codes",
                                                                                   "stored"};
    struct dispatch_text t = {ops_text(r->ops), kernel_text(r->kernel), where[r->where], dtype[r->dtype], ""};
    if (r->rows_from && r->rows_to)
        add_text(&t, "%u to %u rows", r->rows_from, r->rows_to);
    else if (r->rows_to)
        add_text(&t, "up to %u rows", r->rows_to);
    else if (r->rows_from)
        add_text(&t, "%u rows and more", r->rows_from);
    if (r->endings == DISPATCH_PLAIN) add_text(&t, "plain outputs");
    if (r->endings == DISPATCH_RESIDUAL) add_text(&t, "with the residual");
    if (r->endings == DISPATCH_FFN) add_text(&t, "with the FFN's gate");
    if (r->k_to)
        add_text(&t, "k of %u to %u", r->k_from * 16 - 15, r->k_to * 16);
    else if (r->k_from)
        add_text(&t, "k of %u and more", r->k_from * 16 - 15);
    if (r->b64_from && r->b64_to)
        add_text(&t, "%u to %u blocks of 64 x 64", r->b64_from, r->b64_to);
    else if (r->b64_from)
        add_text(&t, "%u blocks of 64 x 64 and more", r->b64_from);
    else if (r->b64_to)
        add_text(&t, "up to %u blocks of 64 x 64", r->b64_to);
    if (r->b128) add_text(&t, "%u blocks of 128 x 64 and more", r->b128);
    if (r->also_text) add_text(&t, "%s", r->also_text);
    if (!t.when[0]) add_text(&t, "else");
    return t;
}
