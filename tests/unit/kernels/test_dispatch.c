/* test_dispatch.c - the table of kernels (kernels/dispatch.h): kernels/dispatch_table.txt shows it as it is, and it has
 * a kernel for whatever is asked. RODIMUS_TEST_WRITE=1 writes the file's table anew. */
#include "kernels/dispatch.h"
#include "tests/read_file.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct dispatch_device h200 = {9, 132, false}, a100 = {8, 108, false};

/* Rodimus-1.4B and Rodimus+-1.6B, as far as kernels depend on them. */
static const struct cuda_shape rodimus = {
    .D = 2048, .E = 4096, .M = 64, .R = 16, .K = 4, .V = 126464, .dtype = CUDA_BF16};
static const struct cuda_shape rodimus_plus = {.D = 2048,
                                               .E = 4096,
                                               .M = 64,
                                               .R = 16,
                                               .K = 4,
                                               .H = 16,
                                               .Hk = 1,
                                               .Hv = 16,
                                               .P = 128,
                                               .F = 1376,
                                               .V = 126464,
                                               .visible = 2049,
                                               .ring_keys = 2112,
                                               .dtype = CUDA_BF16};

/* The rule's number in the record of tests/bench/ablate; -1: it was measured as another one, or not at all.
 * now: the name that its kernel has since. */
static json_int_t rule_in(const json_t *record, const struct dispatch_text *t) {
    size_t i;
    json_t *rule;
    json_array_foreach(json_object_get(record, "rules"), i, rule) {
        const char *what, *device, *dtype, *when, *kernel, *now = NULL;
        assert_int_equal(json_unpack(rule, "{s:s, s:s, s:s, s:s, s:s, s?s}", "what", &what, "device", &device, "dtype",
                                     &dtype, "when", &when, "kernel", &kernel, "now", &now),
                         0);
        if (!strcmp(what, t->op) && !strcmp(device, t->device) && !strcmp(dtype, t->dtype) && !strcmp(when, t->when) &&
            !strcmp(now ? now : kernel, t->kernel))
            return (json_int_t)i;
    }
    return -1;
}

/* Whether a row of the record is about the rule, or, if that was measured as several, about its kernel. */
static bool is_about(const json_t *row, json_int_t rule, const struct dispatch_text *t) {
    const json_t *number = json_object_get(row, "rule");
    const char *kernel = json_string_value(json_object_get(row, "kernel"));
    return number ? json_integer_value(number) == rule : rule < 0 && kernel && !strcmp(kernel, t->kernel);
}

/* What a step loses without the rule where it loses most, in percent; "only": somewhere no other fits; "-": it fired
 * nowhere. */
static void add_worth(char *to, size_t size, const json_t *record, const struct dispatch_text *t) {
    const json_int_t rule = rule_in(record, t);
    size_t s, i;
    json_t *shape, *row;
    double most = -INFINITY;
    bool fired = false, only = false;
    json_array_foreach(json_object_get(record, "shapes"), s, shape) {
        json_array_foreach(json_object_get(shape, rule < 0 ? "kernels" : "rules"), i, row) {
            const json_t *loss = json_object_get(row, "loss_percent");
            if (!is_about(row, rule, t)) continue;
            fired = true;
            only |= !strcmp(json_string_value(json_object_get(row, "bits")), "no other rule");
            if (loss && json_number_value(loss) > most) most = json_number_value(loss);
        }
    }
    if (!fired)
        snprintf(to, size, "-");
    else if (only)
        snprintf(to, size, "only");
    else
        snprintf(to, size, "%.1f", most);
}

/* An operation is a line of its own, its rules are indented; what holds for any device, or any dtype, is not said. */
static char *table_text(void) {
    json_t *record = json_load_file("tests/bench/results/ablate-h200.json", 0, NULL);
    assert_non_null(record);
    const size_t most = 64 * 1024;
    char *text = malloc(most);
    assert_non_null(text);
    size_t n = (size_t)snprintf(text, most, "  loss  %-42s %-6s  %-6s  when\n", "kernel", "device", "dtype");
    const char *before = "";
    for (uint32_t i = 0; i < dispatch_n_rules(); i++) {
        const struct dispatch_text t = dispatch_rule_text(i);
        const char *device = strcmp(t.device, "any") ? t.device : "", *dtype = strcmp(t.dtype, "any") ? t.dtype : "";
        char worth[16];
        add_worth(worth, sizeof worth, record, &t);
        if (strcmp(t.op, before)) n += (size_t)snprintf(text + n, most - n, "\n%s\n", t.op);
        n +=
            (size_t)snprintf(text + n, most - n, "%6s  %-42s %-6s  %-6s  %s\n", worth, t.kernel, device, dtype, t.when);
        assert_true(n < most);
        before = t.op;
    }
    json_decref(record);
    return text;
}

static void test_the_file_shows_the_table(void **state) {
    (void)state;
    static const char path[] = "kernels/dispatch_table.txt";
    char *text = table_text();
    size_t size;
    char *file = read_file(path, &size);
    const char *table = strstr(file, "  loss  kernel"); /* behind the words that it uses */
    assert_non_null(table);
    if (strcmp(table, text) && getenv("RODIMUS_TEST_WRITE")) {
        FILE *to = fopen(path, "w");
        assert_non_null(to);
        fprintf(to, "%.*s%s", (int)(table - file), file, text);
        fclose(to);
    } else if (strcmp(table, text)) {
        fail_msg("%s shows another table: RODIMUS_TEST_WRITE=1 writes this one", path);
    }
    free(file);
    free(text);
}

static void test_whatever_is_asked_has_a_kernel(void **state) {
    (void)state;
    const enum dispatch_ending endings[] = {DISPATCH_PLAIN, DISPATCH_RESIDUAL, DISPATCH_FFN};
    struct cuda_shape odd = rodimus_plus;
    odd.M = 128, odd.R = 100, odd.K = 8, odd.Hk = 2, odd.P = 96;
    const struct cuda_shape *shapes[] = {&rodimus, &rodimus_plus, &odd};
    for (uint32_t n_rows = 1; n_rows <= 2048; n_rows += n_rows < 140 ? 1 : 53)
        for (int s = 0; s < 3; s++)
            for (int on_h200 = 0; on_h200 < 2; on_h200++)
                for (int op = 0; op < DISPATCH_N_OPS; op++)
                    for (int e = 0; e < 3; e++) {
                        const bool only_h200 = op == DISPATCH_DECODE_PRODUCT || op == DISPATCH_DECODE_PAIR ||
                                               op == DISPATCH_PROMPT_PRODUCT || op == DISPATCH_CONV_ROWS ||
                                               op == DISPATCH_CONV_PAIR;
                        const bool window =
                            op == DISPATCH_DECODE_WINDOW || op == DISPATCH_DRAFT_WINDOW || op == DISPATCH_PROMPT_WINDOW;
                        if ((only_h200 && !on_h200) || (window && !shapes[s]->H) ||
                            (op == DISPATCH_CONV_PAIR && n_rows > CUDA_CONV_PAIR_ROWS))
                            continue;
                        const struct dispatch_case c = {.op = (enum dispatch_op)op,
                                                        .device = on_h200 ? h200 : a100,
                                                        .dtype = CUDA_BF16,
                                                        .n_rows = n_rows,
                                                        .ending = endings[e],
                                                        .coded = n_rows % 3 == 0,
                                                        .outputs = 64 * n_rows,
                                                        .k_tiles = n_rows,
                                                        .shape = shapes[s],
                                                        .n_single = n_rows,
                                                        .draws = e > 0};
                        assert_true(dispatch_kernel_of(&c) < DISPATCH_N_KERNELS);
                    }
}

static enum dispatch_kernel product_of(enum dispatch_op op, uint32_t n_rows, uint32_t outputs, uint32_t inputs,
                                       enum dispatch_ending ending, bool coded) {
    return dispatch_kernel_of(&(struct dispatch_case){.op = op,
                                                      .device = h200,
                                                      .dtype = CUDA_BF16,
                                                      .n_rows = n_rows,
                                                      .coded = coded,
                                                      .ending = ending,
                                                      .outputs = outputs,
                                                      .k_tiles = inputs / 16});
}
static enum dispatch_kernel product(enum dispatch_op op, uint32_t n_rows, uint32_t outputs, uint32_t inputs,
                                    enum dispatch_ending ending) {
    return product_of(op, n_rows, outputs, inputs, ending, false);
}
static enum dispatch_kernel coded(uint32_t n_rows, uint32_t outputs, uint32_t inputs, enum dispatch_ending ending) {
    return product_of(DISPATCH_DECODE_PRODUCT, n_rows, outputs, inputs, ending, true);
}

static void test_products_of_the_published_sizes_take_the_kernels_that_were_measured(void **state) {
    (void)state;
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 1, 8192, 2048, DISPATCH_PLAIN), FEW_ROUND); /* W_fc */
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 8, 5472, 2048, DISPATCH_FFN), FEW_ROUND);   /* W_f1 */
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 1, 4224, 2048, DISPATCH_PLAIN), FEW_8);     /* W_q, W_k, W_v */
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 1, 126464, 2048, DISPATCH_PLAIN), FEW_8);   /* the head */
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 1, 8192, 1024, DISPATCH_PLAIN), FEW_8);
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 8, 2048, 4096, DISPATCH_RESIDUAL), FEW_16); /* W_o */
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 16, 8192, 2048, DISPATCH_PLAIN), FEW_ROUND);
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 9, 2048, 4096, DISPATCH_RESIDUAL), FEW_TWO);
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 16, 2048, 2048, DISPATCH_RESIDUAL), FEW_TWO); /* W_ao */
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 16, 126464, 2048, DISPATCH_PLAIN),
                     WIDE_1_32_8_5_1_2); /* the head */
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 16, 5472, 2048, DISPATCH_FFN), FEW_ROUND);
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 17, 2048, 2048, DISPATCH_RESIDUAL), WIDE_1_32_8_3_4_3);
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 32, 2048, 4096, DISPATCH_RESIDUAL), WIDE_1_32_8_3_4_3);
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 24, 8192, 2048, DISPATCH_PLAIN), WIDE_1_32_8_5_1_2);
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 32, 8192, 2048, DISPATCH_PLAIN), WIDE_1_32_8_4_2_2);
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 48, 8192, 2048, DISPATCH_PLAIN), WIDE_1_64_8_5_1_1);
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 64, 8192, 2048, DISPATCH_PLAIN), WIDE_1_64_8_5_1_1);
    assert_int_equal(product(DISPATCH_DECODE_PAIR, 8, 256, 5120, DISPATCH_PLAIN), FEW_PAIR);
    assert_int_equal(product(DISPATCH_DECODE_PAIR, 16, 256, 5120, DISPATCH_PLAIN), FEW_PAIR);
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 64, 2048, 4096, DISPATCH_RESIDUAL), WIDE_1_64_8_3_4_2);
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 256, 2048, 4096, DISPATCH_RESIDUAL), WIDE_2_64_8_4_2_1);
    assert_int_equal(product(DISPATCH_DECODE_PRODUCT, 256, 8192, 2048, DISPATCH_PLAIN), TALL);
    assert_int_equal(product(DISPATCH_PROMPT_PRODUCT, 4096, 8192, 2048, DISPATCH_PLAIN), BROAD_2_256);
    assert_int_equal(product(DISPATCH_LINEAR, 3, 8192, 2048, DISPATCH_PLAIN), LINEAR_1_1);
}

static uint32_t rule_of(enum dispatch_op op, uint32_t n_rows, uint32_t outputs, uint32_t inputs,
                        const unsigned char *left_out) {
    const struct dispatch_case c = {.op = op,
                                    .device = h200,
                                    .dtype = CUDA_BF16,
                                    .n_rows = n_rows,
                                    .ending = DISPATCH_PLAIN,
                                    .outputs = outputs,
                                    .k_tiles = inputs / 16};
    return dispatch_rule_of(&c, left_out);
}

static void test_the_next_rule_steps_in_for_one_that_is_left_out(void **state) {
    (void)state;
    unsigned char left_out[256] = {0};
    assert_true(dispatch_n_rules() <= sizeof left_out);
    const enum dispatch_kernel few[] = {FEW_ROUND, FEW_8, WIDE_1_32_8_5_1_2};
    for (int i = 0; i < 3; i++) { /* W_fc */
        const uint32_t rule = rule_of(DISPATCH_DECODE_PRODUCT, 1, 8192, 2048, left_out);
        assert_int_equal(dispatch_rule_kernel(rule), few[i]);
        left_out[rule] = 1;
    }
    assert_int_equal(rule_of(DISPATCH_DECODE_PRODUCT, 1, 8192, 2048, NULL),
                     rule_of(DISPATCH_DECODE_PRODUCT, 1, 8192, 2048, (unsigned char[256]){0}));
}

static void test_without_the_fewest_clocks_come_the_next_fewest(void **state) {
    (void)state;
    unsigned char left_out[256] = {0};
    const enum dispatch_kernel tiles[] = {BROAD_2_256, BROAD_2_128, BROAD_2_64, BROAD_1_64, BROAD_1_32};
    for (int i = 0; i < 5; i++) {
        const uint32_t rule = rule_of(DISPATCH_PROMPT_PRODUCT, 4096, 8192, 2048, left_out);
        assert_int_equal(dispatch_rule_kernel(rule), tiles[i]);
        left_out[rule] = 1;
    }
    assert_int_equal(rule_of(DISPATCH_PROMPT_PRODUCT, 4096, 8192, 2048, left_out), dispatch_n_rules());
}

static enum dispatch_kernel prompt_state(struct dispatch_device device, uint32_t n_segs, uint32_t most_tok) {
    return dispatch_kernel_of(&(struct dispatch_case){.op = DISPATCH_PROMPT_STATE,
                                                      .device = device,
                                                      .dtype = CUDA_BF16,
                                                      .n_rows = most_tok,
                                                      .shape = &rodimus,
                                                      .n_segs = n_segs});
}

/* Memory is laid out by sizes alone, for the same steps of R. */
static void test_one_long_segment_takes_blocks_of_32_channels(void **state) {
    (void)state;
    assert_int_equal(prompt_state(h200, 1, 2048), WIDE_SCAN_4_NARROW);
    assert_int_equal(prompt_state(h200, 1, 1024), WIDE_SCAN_4_NARROW);
    assert_int_equal(prompt_state(h200, 1, 1023), WIDE_SCAN_4);
    assert_int_equal(prompt_state(h200, 2, 2048), WIDE_SCAN_4);
    assert_int_equal(prompt_state(h200, 0, 2048), WIDE_SCAN_4);
    assert_int_equal(prompt_state(a100, 1, 2048), SCAN_64);
}

static enum dispatch_kernel gates_products(uint32_t n_rows, uint32_t outputs_two) {
    return dispatch_kernel_of(&(struct dispatch_case){.op = DISPATCH_LINEAR,
                                                      .device = h200,
                                                      .dtype = CUDA_BF16,
                                                      .n_rows = n_rows,
                                                      .ending = DISPATCH_PLAIN,
                                                      .outputs = 4 * rodimus.M,
                                                      .outputs_two = outputs_two,
                                                      .k_tiles = rodimus.E / 16});
}

static void test_the_products_of_gates_take_the_kernels_that_were_measured(void **state) {
    (void)state;
    assert_int_equal(gates_products(256, rodimus.R), WIDE_1_64_8_2_16_2);
    assert_int_equal(gates_products(512, rodimus.R), WIDE_1_64_8_3_4_2);
    assert_int_equal(gates_products(1024, rodimus.R), WIDE_1_64_4_4_4_3);
    assert_int_equal(gates_products(2048, rodimus.R), WIDE_2_64_8_4_1_1);
    assert_int_equal(gates_products(512, 0), WIDE_1_64_4_4_4_3); /* of one product it was not measured */
}

static void test_weights_of_8_and_4_bits_have_kernels_of_their_own(void **state) {
    (void)state;
    assert_int_equal(coded(8, 8192, 2048, DISPATCH_PLAIN), FEW_8);   /* W_fc */
    assert_int_equal(coded(1, 5472, 2048, DISPATCH_FFN), FEW_CODES); /* W_f1 */
    assert_int_equal(coded(1, 4224, 2048, DISPATCH_PLAIN), FEW_8);   /* W_q, W_k and W_v */
    assert_int_equal(coded(1, 126464, 2048, DISPATCH_PLAIN), FEW_8); /* the head: a ring */
    assert_int_equal(coded(64, 4224, 2048, DISPATCH_PLAIN), CODED_1_64_8_2_2_4_1);
    assert_int_equal(coded(9, 8192, 2048, DISPATCH_PLAIN), CODED_1_32_8_3_1_4_1);     /* W_fc */
    assert_int_equal(coded(32, 5472, 2048, DISPATCH_FFN), CODED_1_32_8_3_1_4_1);      /* W_f1 */
    assert_int_equal(coded(32, 2304, 2048, DISPATCH_PLAIN), WIDE_1_32_8_3_4_3);       /* W_q, W_k and W_v */
    assert_int_equal(coded(16, 2048, 4096, DISPATCH_RESIDUAL), CODED_1_32_8_3_4_2_2); /* W_o */
    assert_int_equal(coded(16, 2048, 2736, DISPATCH_RESIDUAL), WIDE_1_32_11_2_4_3);   /* W_f2 */
    assert_int_equal(coded(16, 126464, 2048, DISPATCH_PLAIN), CODED_1_32_8_3_1_4_1);  /* the head */
    assert_int_equal(coded(64, 8192, 2048, DISPATCH_PLAIN), CODED_1_64_8_2_1_4_1);    /* W_fc */
    assert_int_equal(coded(128, 2048, 4096, DISPATCH_RESIDUAL), CODED_1_64_8_2_2_4_1);
    assert_int_equal(coded(128, 2304, 2048, DISPATCH_PLAIN), CODED_1_64_8_2_1_4_1);
    assert_int_equal(coded(256, 2048, 4096, DISPATCH_RESIDUAL), CODED_1_64_8_2_1_4_1); /* W_o */
    assert_int_equal(coded(256, 2048, 2736, DISPATCH_RESIDUAL), CODED_1_64_8_2_1_4_1); /* W_f2 */
    assert_int_equal(coded(256, 8192, 2048, DISPATCH_PLAIN), TALL);
    assert_int_equal(coded(256, 5472, 2048, DISPATCH_FFN), TALL);
    assert_int_equal(coded(128, 5472, 2048, DISPATCH_FFN), CODED_1_64_8_2_1_4_1);
    assert_int_equal(coded(384, 2944, 2048, DISPATCH_PLAIN), CODED_1_64_8_2_1_4_1); /* 69 tiles of 128 x 128 */
    assert_true(DISPATCH_IS_CODED(CODED_1_64_8_2_1_4_1));
    assert_true(DISPATCH_IS_CODED(CODED_1_32_8_3_4_2_2));
    assert_false(DISPATCH_IS_CODED(WIDE_1_64_8_3_4_2));
    /* so long that their scales do not fit beside the rings */
    assert_false(DISPATCH_IS_CODED(coded(64, 8192, 16384, DISPATCH_PLAIN)));
}

static enum dispatch_kernel of_drafts(enum dispatch_op op, struct dispatch_device device, uint32_t n_rows) {
    return dispatch_kernel_of(
        &(struct dispatch_case){.op = op, .device = device, .dtype = CUDA_BF16, .n_rows = n_rows, .shape = &rodimus});
}

static void test_steps_with_drafts_change_their_kernels_after_8_rows(void **state) {
    (void)state;
    assert_int_equal(of_drafts(DISPATCH_DRAFT_CONV, h200, 8), CONV_FEW_4);
    assert_int_equal(of_drafts(DISPATCH_DRAFT_CONV, h200, 9), CONV_PAIR_1);
    assert_int_equal(of_drafts(DISPATCH_DRAFT_CONV, a100, 8), CONV_PLAIN);
    assert_int_equal(of_drafts(DISPATCH_DRAFT_STATE, h200, 8), STATE_DRAFTS_4_WHOLE);
    assert_int_equal(of_drafts(DISPATCH_DRAFT_STATE, h200, 9), STATE_DRAFTS_MANY_4_WHOLE);
    assert_int_equal(of_drafts(DISPATCH_DRAFT_STATE, a100, 9), STATE_DRAFTS_MANY_4_WHOLE);
}

static enum dispatch_kernel window_of(struct dispatch_device device, const struct cuda_shape *shape, uint32_t n_rows) {
    return dispatch_kernel_of(&(struct dispatch_case){
        .op = DISPATCH_DECODE_WINDOW, .device = device, .dtype = CUDA_BF16, .n_rows = n_rows, .shape = shape});
}

static void test_the_window_of_up_to_128_rows_has_a_kernel_of_its_own(void **state) {
    (void)state;
    const struct dispatch_device part = {9, 100, true};
    struct cuda_shape narrow = rodimus_plus, more = rodimus_plus, longer = rodimus_plus;
    narrow.P = 64, more.H = more.Hv = 32, longer.visible = 2050;
    assert_int_equal(window_of(h200, &rodimus_plus, 1), DECODE_WINDOW_NEAR);
    assert_int_equal(window_of(h200, &rodimus_plus, 128), DECODE_WINDOW_NEAR);
    assert_int_equal(window_of(h200, &rodimus_plus, 129), DECODE_WINDOW_MANY);
    assert_int_equal(window_of(h200, &longer, 128), DECODE_WINDOW_NEAR); /* as many ranges */
    assert_int_equal(window_of(h200, &more, 64), DECODE_WINDOW_NEAR);
    assert_int_equal(window_of(h200, &more, 65), DECODE_WINDOW_MANY); /* more pairs of heads than were measured */
    assert_int_equal(window_of(h200, &narrow, 23), DECODE_WINDOW);
    assert_int_equal(window_of(h200, &narrow, 1), DECODE_WINDOW_FEW);
    assert_int_equal(window_of(part, &rodimus_plus, 1), DECODE_WINDOW_FEW);
    assert_int_equal(window_of(a100, &rodimus_plus, 1), DECODE_WINDOW_FEW);
}

static enum dispatch_kernel whole_of(struct dispatch_device device, const struct cuda_shape *shape, uint32_t n_rows,
                                     bool asked) {
    return dispatch_kernel_of(&(struct dispatch_case){.op = DISPATCH_DECODE_STEP,
                                                      .device = device,
                                                      .dtype = CUDA_BF16,
                                                      .n_rows = n_rows,
                                                      .shape = shape,
                                                      .forced = asked});
}
static void test_few_rows_of_a_large_model_are_one_launch(void **state) {
    (void)state;
    struct cuda_shape no_window = rodimus, window = rodimus_plus, small;
    small = no_window, small.D = 2048 - 64;
    assert_int_equal(whole_of(h200, &no_window, 1, false), ONE_LAUNCH);
    assert_int_equal(whole_of(h200, &no_window, 2, false), ONE_LAUNCH);
    assert_int_equal(whole_of(h200, &no_window, 4, false), STAGES);
    assert_int_equal(whole_of(h200, &small, 1, false), STAGES);
    assert_int_equal(whole_of(h200, &window, 1, false), ONE_LAUNCH);
    assert_int_equal(whole_of(h200, &window, 2, false), STAGES);
    window.D = 2048 - 64;
    assert_int_equal(whole_of(h200, &window, 1, false), STAGES);
    window.D = 3072; /* the graph of Rodimus+-4B is faster */
    assert_int_equal(whole_of(h200, &window, 1, false), STAGES);
    assert_int_equal(whole_of(h200, &window, 1, true), ONE_LAUNCH);
    assert_int_equal(whole_of((struct dispatch_device){9, 100, true}, &no_window, 1, true), STAGES);
    assert_int_equal(whole_of(a100, &no_window, 1, true), STAGES);
    assert_int_equal(whole_of(h200, &no_window, 2, true), ONE_LAUNCH);
    assert_int_equal(whole_of(h200, &no_window, 3, true), STAGES);
    assert_int_equal(whole_of(h200, &small, 1, true), ONE_LAUNCH);
    assert_int_equal(whole_of(h200, &rodimus_plus, 8, true), ONE_LAUNCH);
}

static void test_only_compute_capability_9_gets_kernels_of_sm_90a(void **state) {
    (void)state;
    const struct dispatch_device later = {10, 148, false};
    const struct dispatch_case sample = {.op = DISPATCH_SAMPLE, .device = later, .n_rows = 1, .draws = true};
    assert_int_equal(dispatch_kernel_of(&sample), PICK_1); /* its machine code has no clusters */
    const struct dispatch_case step = {
        .op = DISPATCH_DECODE_STATE, .device = later, .dtype = CUDA_BF16, .n_rows = 64, .shape = &rodimus};
    assert_int_equal(dispatch_kernel_of(&step), GLA);
    assert_false(dispatch_fused(later, &rodimus));
    assert_true(dispatch_fused(h200, &rodimus));
}

static enum dispatch_kernel prompts_by(struct dispatch_device device, enum cuda_dtype dtype, bool forced) {
    return dispatch_kernel_of(&(struct dispatch_case){
        .op = DISPATCH_PROMPT_BY, .device = device, .dtype = dtype, .n_rows = 1, .forced = forced});
}
static void test_a_library_gets_the_prompts_that_no_kernel_of_ours_is_made_for(void **state) {
    (void)state;
    const struct dispatch_device later = {10, 148, false};
    assert_int_equal(prompts_by(h200, CUDA_BF16, false), OWN);
    assert_int_equal(prompts_by(h200, CUDA_F16, true), LIBRARY);
    assert_int_equal(prompts_by(h200, CUDA_F32, false), LIBRARY);
    assert_int_equal(prompts_by(a100, CUDA_F16, false), LIBRARY);
    assert_int_equal(prompts_by(later, CUDA_BF16, false), LIBRARY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_file_shows_the_table),
        cmocka_unit_test(test_whatever_is_asked_has_a_kernel),
        cmocka_unit_test(test_products_of_the_published_sizes_take_the_kernels_that_were_measured),
        cmocka_unit_test(test_the_next_rule_steps_in_for_one_that_is_left_out),
        cmocka_unit_test(test_without_the_fewest_clocks_come_the_next_fewest),
        cmocka_unit_test(test_one_long_segment_takes_blocks_of_32_channels),
        cmocka_unit_test(test_the_products_of_gates_take_the_kernels_that_were_measured),
        cmocka_unit_test(test_weights_of_8_and_4_bits_have_kernels_of_their_own),
        cmocka_unit_test(test_a_library_gets_the_prompts_that_no_kernel_of_ours_is_made_for),
        cmocka_unit_test(test_steps_with_drafts_change_their_kernels_after_8_rows),
        cmocka_unit_test(test_the_window_of_up_to_128_rows_has_a_kernel_of_its_own),
        cmocka_unit_test(test_few_rows_of_a_large_model_are_one_launch),
        cmocka_unit_test(test_only_compute_capability_9_gets_kernels_of_sm_90a),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
