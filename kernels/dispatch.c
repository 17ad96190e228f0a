/* dispatch.c - what each kernel of dispatch.h can do, and the search of a card's table for the first rule that fits.
 * What was measured is the table's: tuning/h200.h. */
#include "kernels/dispatch.h"
#include "kernels/tuning/h200.h"

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

static bool has_fused(const struct dispatch_case *c) { return dispatch_fused(c->device, c->shape); }
/* A convolution with the products before or after it; by itself it is asked for only where it is one. */
static bool has_conv(const struct dispatch_case *c) {
    return (c->op != DISPATCH_DECODE_CONV && c->op != DISPATCH_DRAFT_CONV) || has_fused(c);
}
static bool has_conv_pair(const struct dispatch_case *c) {
    return c->op == DISPATCH_CONV_PAIR || (has_fused(c) && dispatch_conv_pair(c->device, c->shape));
}
static bool has_wide_scan(const struct dispatch_case *c, uint32_t R) {
    return dispatch_scan(c->shape) && dispatch_wide_scan(c->device, c->shape) && c->shape->R <= R;
}
/* Two blocks of a multiprocessor at once, of one or two tiles of 16 outputs each. */
static bool has_two_tiles(const struct dispatch_case *c) {
    const uint32_t tiles = blocks_of(c->outputs, 16), blocks = 2 * c->device.processors;
    return tiles > blocks && tiles <= 2 * blocks;
}
static bool has_one_launch(const struct dispatch_case *c) {
    const struct cuda_shape *s = c->shape;
    if (c->device.is_part || !dispatch_fused(c->device, s) || (c->n_rows & (c->n_rows - 1))) return false;
    if (s->H && !dispatch_decode_window(s)) return false;
    if (s->window == CUDA_FP8 && c->n_rows > 1) return false; /* where the graph is faster in 16 bits, too */
    return s->K <= 4 && s->M <= 64 && s->D % 64 == 0 && s->E % 128 == 0;
}

CONDITION(two_tiles, "one tile of 16 outputs or two to each of two blocks of a multiprocessor", has_two_tiles(c))
CONDITION(fused, "fused", has_conv(c))
CONDITION(few_taps, "K up to 4", c->shape->K <= 4)
CONDITION(conv_pair, "fused, K up to 4, E up to 4,096", has_conv_pair(c))
CONDITION(M_is_64, "M = 64", c->shape->M == 64)
CONDITION(wide_scan_32, "scanned, M up to 64, R up to 32", has_wide_scan(c, 32))
CONDITION(wide_scan_64, "scanned, M up to 64, R up to 64", has_wide_scan(c, 64))
CONDITION(scan_64, "scanned, M up to 64", dispatch_scan(c->shape) && c->shape->M <= 64)
CONDITION(scan_128, "scanned", dispatch_scan(c->shape))
CONDITION(decode_window, "windowed", dispatch_decode_window(c->shape))
/* It knows no 8 bits, for which the rule before it has another: so the text need not say so. */
CONDITION(decode_window_128, "windowed, P = 128",
          dispatch_decode_window(c->shape) && c->shape->P == 128 && c->shape->window == CUDA_STORED)
CONDITION(prompt_wide, "16 bit, one key head, P = 64 or 128, H even",
          dispatch_prompt_window(c->shape) && dispatch_prompt_wide(c->device, c->shape))
CONDITION(prompt_64, "16 bit, P a multiple of 8 up to 64", dispatch_prompt_window(c->shape) && c->shape->P <= 64)
CONDITION(prompt_128, "16 bit, P a multiple of 8 up to 128", dispatch_prompt_window(c->shape) && c->shape->P <= 128)
CONDITION(prompt_256, "16 bit, P a multiple of 8 up to 256", dispatch_prompt_window(c->shape))
CONDITION(one_launch, "no drafts; rows a power of two; as one launch", has_one_launch(c))

/* ---- measures that a card's table has bounds of ---- */

struct measure {
    uint32_t (*of)(const struct dispatch_case *c);
    const char *text;
};
static uint32_t window_ranges(const struct dispatch_case *c) {
    return c->n_rows * blocks_of(c->shape->visible, DISPATCH_WINDOW_RANGE);
}
static uint32_t window_pairs(const struct dispatch_case *c) { return window_ranges(c) * (c->shape->H / 2); }
static uint32_t window_quarters(const struct dispatch_case *c) { return window_ranges(c) * (c->shape->H / 4); }
static uint32_t window_run(const struct dispatch_case *c) {
    return window_ranges(c) / dispatch_window_runs(c->device, c->shape);
}
/* All rounds of all multiprocessors with tiles of 128 x 128, the last one too. */
static uint32_t tall_percent(const struct dispatch_case *c) {
    const uint32_t tiles = (blocks_of(c->outputs, 128) + blocks_of(c->outputs_two, 128)) *
                           blocks_of(c->n_rows, DISPATCH_TALL_ROWS),
                   all = c->device.processors;
    return tiles ? tiles * 100 / (blocks_of(tiles, all) * all) : 100;
}
static const struct measure by_pairs = {window_pairs, "pairs of heads and ranges of 128 keys"},
                            by_quarters = {window_quarters, "blocks of four heads and a range of 128 keys"},
                            by_run = {window_run, "ranges of 128 keys to a run of a block"},
                            by_percent = {tall_percent,
                                          "percent of the multiprocessors at work in all rounds of tiles of 128 x 128"};

/* ---- what kernels can do ---- */

enum where { ANYWHERE, HOPPER };
enum of_dtype { ANY_DTYPE, FP32, BITS_16, CODES, STORED }; /* STORED: 16 bits, no codes */
enum {
    MOST_CODED = 512, /* tiles of k whose scales fit beside the rings of coded_kernel */
    MOST_TWO = 400,   /* and that fit into a block of few_kernel of 16 rows */
    LEAST_TALL = 16   /* no slice is empty */
};

/* A bound of 0 sets no limit. */
struct ability {
    const char *name;
    enum where where;
    enum of_dtype dtype;
    uint32_t rows_to;
    enum dispatch_ending endings;
    uint32_t k_from, k_to; /* tiles of 16 */
    uint32_t cluster;      /* blocks: more than eight are not on a device part */
    uint32_t MW, N;        /* a tile of broad_kernel: the fewest clocks of all */
    const struct measure *measure;
    const struct condition *also[2];
};

#define ON_16        HOPPER, BITS_16
#define NOT_RESIDUAL .endings = DISPATCH_PLAIN | DISPATCH_FFN
#define ROUND        .k_from = 128, .k_to = 128, .also = {&two_tiles}
#define WIDE(ENDS, CLUSTER, ...)                                                                                       \
    [DISPATCH_WIDE_ID(__VA_ARGS__)] = {"wide_kernel<" #__VA_ARGS__ ">", ON_16, .endings = ENDS, .cluster = CLUSTER},
#define WIDE_PLAIN(MW, NB, SK, STAGES, CLUSTER, BLOCKS)                                                                \
    WIDE(DISPATCH_PLAIN, CLUSTER, MW, NB, SK, STAGES, CLUSTER, BLOCKS)
#define WIDE_RESIDUAL(MW, NB, SK, STAGES, CLUSTER, BLOCKS)                                                             \
    WIDE(DISPATCH_RESIDUAL, CLUSTER, MW, NB, SK, STAGES, CLUSTER, BLOCKS)
#define WIDE_FINISHED(MW, NB, SK, STAGES, CLUSTER, BLOCKS)                                                             \
    WIDE(DISPATCH_RESIDUAL | DISPATCH_FFN, CLUSTER, MW, NB, SK, STAGES, CLUSTER, BLOCKS)
#define WIDE_ANY(MW, NB, SK, STAGES, CLUSTER, BLOCKS)                                                                  \
    WIDE(DISPATCH_ANY_ENDING, CLUSTER, MW, NB, SK, STAGES, CLUSTER, BLOCKS)
#define CODED(...)                                                                                                     \
    [DISPATCH_CODED_ID(__VA_ARGS__)] = {"coded_kernel<" #__VA_ARGS__ ">", HOPPER, CODES, .k_from = 1,                  \
                                        .k_to = MOST_CODED},

/* clang-format off */
static const struct ability abilities[DISPATCH_N_KERNELS] = {
    [LINEAR_F32] = {"linear_f32_kernel", .dtype = FP32},
    [LINEAR_1_1] = {"linear_kernel, 16 outputs by 8 rows"},
    [LINEAR_2_2] = {"linear_kernel, 32 by 16"},
    [LINEAR_2_4] = {"linear_kernel, 32 by 32"},
    [TALL] = {"tall_kernel", ON_16, .k_from = LEAST_TALL, .measure = &by_percent},
    [FEW_CODES] = {"few_codes_kernel", HOPPER, CODES, .rows_to = 8, .endings = DISPATCH_FFN, ROUND},
    [FEW_8] = {"few_kernel, 8 tiles of k at a time", ON_16, .rows_to = 8},
    [FEW_16] = {"few_kernel, 16 tiles", ON_16, .rows_to = 8, .k_to = 256},
    [FEW_TWO] = {"few_kernel, 16 rows", HOPPER, STORED, .rows_to = 16, .endings = DISPATCH_RESIDUAL,
                 .k_from = 1, .k_to = MOST_TWO},
    [FEW_ROUND] = {"few_round_kernel", HOPPER, STORED, .rows_to = 16, NOT_RESIDUAL, ROUND},
    [FEW_PAIR] = {"few_pair_kernel", ON_16, .rows_to = 16},
    [BROAD_2_256] = {"broad_kernel, 128 outputs by 256 rows", ON_16, .MW = 2, .N = 256},
    [BROAD_2_128] = {"broad_kernel, 128 by 128", ON_16, .MW = 2, .N = 128},
    [BROAD_2_64] = {"broad_kernel, 128 by 64", ON_16, .MW = 2, .N = 64},
    [BROAD_1_64] = {"broad_kernel, 64 by 64", ON_16, .MW = 1, .N = 64},
    [BROAD_1_32] = {"broad_kernel, 64 by 32", ON_16, .MW = 1, .N = 32},
    [CONV_PLAIN] = {"conv_kernel"},
    [CONV_FEW_4] = {"part of W_fc's product, out_conv<4>", ON_16, .rows_to = 8, .also = {&fused, &few_taps}},
    [CONV_FEW_8] = {"part of W_fc's product, out_conv<8>", ON_16, .rows_to = 8, .also = {&fused}},
    [CONV_PAIR_1] = {"conv_pair_kernel<1, 9>", ON_16, .rows_to = CUDA_CONV_PAIR_ROWS, .also = {&conv_pair}},
    [CONV_PAIR_3] = {"conv_pair_kernel<3, 18>", ON_16, .rows_to = CUDA_CONV_PAIR_ROWS, .also = {&conv_pair}},
    [CONV_ROWS_4] = {"conv_rows_kernel<4>", ON_16, .also = {&fused, &few_taps}},
    [CONV_ROWS_8] = {"conv_rows_kernel<8>", ON_16, .also = {&fused}},
    [GLA] = {"gla_kernel"},
    [STATE_FEW_4] = {"state_few_kernel<4, 512>", HOPPER},
    [STATE_FEW_1] = {"state_few_kernel<1, 256>", HOPPER},
    [STATE_4_WHOLE] = {"state_kernel<4, true>", HOPPER, .also = {&M_is_64}},
    [STATE_8] = {"state_kernel<8, false>", HOPPER},
    [STATE_DRAFTS_4_WHOLE] = {"state_drafts_kernel<4, true>", .also = {&M_is_64}},
    [STATE_DRAFTS_8] = {"state_drafts_kernel<8, false>"},
    [STATE_DRAFTS_MANY_4_WHOLE] = {"state_drafts_many_kernel<4, true>", .also = {&M_is_64}},
    [STATE_DRAFTS_MANY_8] = {"state_drafts_many_kernel<8, false>"},
    [WIDE_SCAN_4_NARROW] = {"wide_scan_kernel<4, 32>", HOPPER, .also = {&wide_scan_32}},
    [WIDE_SCAN_4] = {"wide_scan_kernel<4, 64>", HOPPER, .also = {&wide_scan_32}},
    [WIDE_SCAN_8] = {"wide_scan_kernel<8, 64>", HOPPER, .also = {&wide_scan_64}},
    [SCAN_64] = {"scan_kernel<64>", .also = {&scan_64}},
    [SCAN_128] = {"scan_kernel<128>", .also = {&scan_128}},
    [WINDOW] = {"window_kernel"},
    [DECODE_WINDOW_MANY] = {"decode_many_kernel", HOPPER, .rows_to = DISPATCH_WINDOW_ROWS, .measure = &by_run,
                            .also = {&decode_window}},
    [DECODE_WINDOW_NEAR] = {"decode_near_kernel", HOPPER, .measure = &by_pairs, .also = {&decode_window_128}},
    [DECODE_WINDOW_FEW] = {"decode_window_kernel, two tiles ahead", .measure = &by_quarters, .also = {&decode_window}},
    [DECODE_WINDOW] = {"decode_window_kernel, one tile ahead", .also = {&decode_window}},
    [DRAFT_WINDOW] = {"draft_window_kernel", .also = {&decode_window}},
    [PROMPT_WIDE_1] = {"prompt_wide_kernel, one warpgroup", HOPPER, .also = {&prompt_wide}},
    [PROMPT_WIDE_2] = {"prompt_wide_kernel, two", HOPPER, .also = {&prompt_wide}},
    [PROMPT_ANY_64] = {"prompt_any_kernel<64>", .also = {&prompt_64}},
    [PROMPT_ANY_128] = {"prompt_any_kernel<128>", .also = {&prompt_128}},
    [PROMPT_ANY_256] = {"prompt_any_kernel<256>", .also = {&prompt_256}},
    [PICK_1] = {"pick_kernel, a block a row"},
    [PICK_2] = {"pick_kernel, a cluster of 2", HOPPER},
    [PICK_8] = {"pick_kernel, a cluster of 8", HOPPER},
    [ONE_LAUNCH] = {"one_launch_kernel", HOPPER, STORED, .rows_to = 8, .also = {&one_launch}},
    [STAGES] = {"the kernels above"},
    [OWN] = {"the kernels below, or the product of any step", ON_16},
    [LIBRARY] = {"cuBLASLt, where it is there"},
    DISPATCH_WIDE_PLAIN(WIDE_PLAIN) DISPATCH_WIDE_RESIDUAL(WIDE_RESIDUAL) DISPATCH_WIDE_FINISHED(WIDE_FINISHED)
        DISPATCH_WIDE_ANY(WIDE_ANY) DISPATCH_CODED(CODED)};
/* clang-format on */

/* ---- the search ---- */

/* The table of the card; an H200's where it has none. */
static const struct tuning *tuning_of(struct dispatch_device device) {
    (void)device;
    return &h200;
}

static bool within(uint32_t x, uint32_t from, uint32_t to) { return x >= from && (!to || x <= to); }
static bool is_met(const struct condition *condition, const struct dispatch_case *c) {
    return !condition || condition->test(c);
}

/* Clocks, more or less, that tiles of 64 MW outputs and N rows would take: rounds of all multiprocessors, each limited
 * by its products or by its part of what the second-level cache gives, and what is not hidden of a tile's end. */
static double broad_clocks(const struct dispatch_case *c, const struct ability *tile, const struct broad_tuning *t) {
    const uint32_t all = c->device.processors, MW = tile->MW, N = tile->N,
                   tiles = blocks_of(c->outputs, MW * 64) * blocks_of(c->n_rows, N), rounds = blocks_of(tiles, all);
    const double active = tiles < all ? tiles : all, some = t->cache_bytes / active,
                 bytes_a_clock = some < t->copy_bytes ? some : t->copy_bytes;
    const double products = MW * N / 2, copies = (MW * 64 + N) * 32 / bytes_a_clock;
    return rounds * (c->k_tiles * (products > copies ? products : copies) + t->end_clocks + MW * N * t->end_row_clocks);
}

/* Whether no other tile takes fewer clocks, of those that are not left out. */
static bool is_fewest(const struct tuning *t, uint32_t rule, const struct dispatch_case *c,
                      const unsigned char *left_out) {
    const double mine = broad_clocks(c, &abilities[t->rules[rule].kernel], &t->broad);
    for (uint32_t i = 0; i < t->n_rules; i++) {
        const struct ability *other = &abilities[t->rules[i].kernel];
        if (!other->MW || (left_out && left_out[i])) continue;
        const double clocks = broad_clocks(c, other, &t->broad);
        if (clocks < mine || (clocks == mine && i < rule)) return false;
    }
    return true;
}

static bool has_dtype(enum of_dtype dtype, const struct dispatch_case *c) {
    return (dtype == ANY_DTYPE || (dtype == FP32) == (c->dtype == CUDA_F32)) && (dtype != CODES || c->coded) &&
           (dtype != STORED || !c->coded);
}
static bool kernel_can(const struct ability *a, const struct dispatch_case *c) {
    return (a->where == ANYWHERE || is_hopper(c->device)) && has_dtype(a->dtype, c) &&
           within(c->n_rows, 0, a->rows_to) && (!a->endings || (a->endings & c->ending)) &&
           within(c->k_tiles, a->k_from, a->k_to) && (a->cluster <= 8 || !c->device.is_part) && is_met(a->also[0], c) &&
           is_met(a->also[1], c);
}
static bool is_measured(const struct tuned_rule *r, const struct dispatch_case *c) {
    const struct measure *m = abilities[r->kernel].measure;
    const uint32_t rows64 = blocks_of(c->n_rows, 64);
    const uint32_t b64 = (blocks_of(c->outputs, 64) + blocks_of(c->outputs_two, 64)) * rows64,
                   b128 = (blocks_of(c->outputs, 128) + blocks_of(c->outputs_two, 128)) * rows64;
    return within(c->n_rows, r->rows_from, r->rows_to) && (!r->endings || (r->endings & c->ending)) &&
           within(c->k_tiles, r->k_from, r->k_to) && within(b64, r->b64_from, r->b64_to) && b128 >= r->b128 &&
           (!r->stored || !c->coded) && (!r->D || c->shape->D == r->D) && is_met(r->also, c) &&
           (!m || within(m->of(c), r->measure_from, r->measure_to));
}

uint32_t dispatch_rule_of(const struct dispatch_case *c, const unsigned char *left_out) {
    const struct tuning *t = tuning_of(c->device);
    assert(c->op < DISPATCH_N_OPS && c->n_rows > 0);
    for (uint32_t i = 0; i < t->n_rules; i++) {
        const struct tuned_rule *r = &t->rules[i];
        const struct ability *a = &abilities[r->kernel];
        if (!(r->ops >> c->op & 1) || (left_out && left_out[i]) || !kernel_can(a, c) || !is_measured(r, c)) continue;
        if (!a->MW || is_fewest(t, i, c, left_out)) return i;
    }
    return t->n_rules;
}

enum dispatch_kernel dispatch_kernel_of(const struct dispatch_case *c) {
    const uint32_t i = dispatch_rule_of(c, NULL);
    assert(i < dispatch_n_rules()); /* the last rule of an operation has no conditions where it may be asked for */
    return dispatch_rule_kernel(i);
}

uint32_t dispatch_n_rules(void) { return h200.n_rules; }
enum dispatch_kernel dispatch_rule_kernel(uint32_t i) {
    assert(i < h200.n_rules);
    return h200.rules[i].kernel;
}

/* ---- as text ---- */

static const char *ops_text(uint32_t ops) {
    static const char *const text[DISPATCH_N_OPS] = {"product",
                                                     "product of a decode step",
                                                     "two products of a decode step",
                                                     "product of prompts",
                                                     "products of prompts",
                                                     "convolution of a decode step",
                                                     "convolution of a step with drafts",
                                                     "convolution of more than 8 rows or drafts, by itself",
                                                     "convolution with the products after it",
                                                     "state of a decode step",
                                                     "state of a step with drafts",
                                                     "state of prompts",
                                                     "window of a decode step",
                                                     "window of a step with drafts",
                                                     "window of prompts",
                                                     "sampling",
                                                     "decode step"};
    if (ops == H200_MANY) return "all products but prompts'";
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

static const char *dtype_text(const struct ability *a, const struct tuned_rule *r) {
    static const char *const text[] = {"any", "fp32", "16 bit", "codes", "stored"};
    return text[r->stored ? STORED : a->dtype];
}
static const char *endings_text(enum dispatch_ending endings) {
    static const char *const text[DISPATCH_ANY_ENDING + 1] = {[DISPATCH_PLAIN] = "plain outputs",
                                                              [DISPATCH_RESIDUAL] = "with the residual",
                                                              [DISPATCH_FFN] = "with the FFN's gate",
                                                              [DISPATCH_PLAIN | DISPATCH_FFN] = "no residual",
                                                              [DISPATCH_PLAIN | DISPATCH_RESIDUAL] = "no FFN's gate",
                                                              [DISPATCH_RESIDUAL | DISPATCH_FFN] =
                                                                  "with the residual or the FFN's gate"};
    return text[endings];
}
/* A bound of 0 is none. */
static void add_range(struct dispatch_text *t, uint32_t from, uint32_t to, const char *of) {
    if (from && to)
        add_text(t, "%u to %u %s", from, to, of);
    else if (to)
        add_text(t, "up to %u %s", to, of);
    else if (from)
        add_text(t, "%u %s and more", from, of);
}
static uint32_t tighter(uint32_t a, uint32_t b) { return !a || (b && b < a) ? b : a; }

struct dispatch_text dispatch_rule_text(uint32_t i) {
    assert(i < h200.n_rules);
    const struct tuned_rule *r = &h200.rules[i];
    const struct ability *a = &abilities[r->kernel];
    struct dispatch_text t = {ops_text(r->ops), a->name, a->where == HOPPER ? "9.x" : "any", dtype_text(a, r), ""};
    const enum dispatch_ending endings =
        (a->endings ? a->endings : DISPATCH_ANY_ENDING) & (r->endings ? r->endings : DISPATCH_ANY_ENDING);
    const uint32_t k_from = a->k_from > r->k_from ? a->k_from : r->k_from, k_to = tighter(a->k_to, r->k_to),
                   rows_to = tighter(a->rows_to, r->rows_to);
    add_range(&t, r->rows_from, rows_to, rows_to == 1 ? "row" : "rows");
    if (endings != DISPATCH_ANY_ENDING) add_text(&t, "%s", endings_text(endings));
    add_range(&t, k_from ? k_from * 16 - 15 : 0, k_to * 16, "columns");
    add_range(&t, r->b64_from, r->b64_to, "blocks of 64 x 64");
    add_range(&t, r->b128, 0, "blocks of 128 x 64");
    if (r->measure_from) add_text(&t, "at least %u %s", r->measure_from, a->measure->text);
    if (r->measure_to) add_text(&t, "at most %u %s", r->measure_to, a->measure->text);
    if (r->D) add_text(&t, "D = %u", r->D);
    if (a->MW) add_text(&t, "the fewest clocks by broad_clocks");
    if (a->cluster > 8) add_text(&t, "not on a device part");
    for (int k = 0; k < 2; k++)
        if (a->also[k]) add_text(&t, "%s", a->also[k]->text);
    if (r->also) add_text(&t, "%s", r->also->text);
    if (!t.when[0]) add_text(&t, "else");
    return t;
}
