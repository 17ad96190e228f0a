/* test_model.c - the CUDA backend as a whole: text is as likely as on the CPU; a session's bits in steps of any size;
 * two backends on one GPU, of other shapes too, one each on two; what it refuses. */
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/model/model_internal.h"
#include "engine/base/philox.h"
#include "tests/held_out.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct model *open_model(const char *dir) {
    struct model *model;
    struct rod_error err;
    if (model_open(dir, NULL, NULL, &model, &err)) fail_msg("%s", err.message);
    return model;
}

static void keep_line(void *arg, int level, const char *line) {
    (void)level;
    if (!strncmp(line, "slots:", 6)) snprintf(arg, 256, "%s", line);
}

struct side {
    const struct backend_ops *ops;
    struct backend *be;
    char log[256]; /* the line about slots */
};
static int try_open(const struct model *model, struct backend_config config, struct side *s, struct rod_error *err) {
    s->log[0] = 0;
    config.log = keep_line, config.log_arg = s->log;
    int rc = backend_find(config.device, &s->ops, err);
    return rc ? rc : s->ops->open(model, &config, &s->be, err);
}
static struct side open_side(const struct model *model, struct backend_config config) {
    struct side s;
    struct rod_error err;
    if (try_open(model, config, &s, &err)) fail_msg("%s %s: %s", config.device, config.precision, err.message);
    return s;
}
static const float *forward(const struct side *s, const struct backend_segment *segs, uint32_t n_segs) {
    const float *logits;
    struct rod_error err;
    if (s->ops->forward(s->be, segs, n_segs, &logits, &err)) fail_msg("%s", err.message);
    return logits;
}

/* ---- perplexity ---- */

static void check_held_out_text(const char *dir) {
    struct model *model = open_model(dir);
    size_t n;
    int32_t *ids = held_out_ids(dir, &n);
    const double want = perplexity(model, (struct backend_config){.device = "cpu"}, ids, n);
    printf("note: %s, perplexity of %zu tokens: cpu %.4f", dir, n, want);
    static const char *const precisions[] = {"fp32", "fp16", "bf16"};
    double got[3];
    for (int i = 0; i < 3; i++) {
        got[i] = perplexity(model, (struct backend_config){.device = "cuda", .precision = precisions[i]}, ids, n);
        printf(", cuda %s %.4f (%+.3f %%)", precisions[i], got[i], 100 * (got[i] / want - 1));
    }
    printf("\n");
    for (int i = 0; i < 3; i++)
        if (!(fabs(got[i] / want - 1) <= 0.005))
            fail_msg("perplexity in %s is %.6f, the CPU's %.6f", precisions[i], got[i], want);
    free(ids);
    model_close(model);
}

static void held_out_text_is_as_likely_as_on_the_cpu(void **state) {
    (void)state;
    check_held_out_text("config/models/tales");
    check_held_out_text("config/models/skills");
}

/* ---- a session among others ---- */

enum { PROMPT = 70, STEPS = 4, MOST = 300 };

static int32_t token_at(uint64_t session, uint64_t pos, uint32_t V) {
    return (int32_t)(philox_uniform(session, pos, 0) * V);
}

/* Sessions 0 .. n_rows - 1 read their prompts, each alone in its step; then all decode in steps of n_rows. Logits of
 * session `which` in every decode step: [STEPS][V]. */
static void read_among(const struct side *s, uint32_t V, uint32_t n_rows, uint32_t which, float *logits) {
    static struct backend_segment segs[MOST];
    static int32_t tok[MOST], prompt[PROMPT];
    for (uint32_t i = 0; i < n_rows; i++) {
        /* session 7 is the one that is compared; its row and slot differ from batch to batch */
        const uint64_t session = i == which ? 7 : 1000 + i;
        const uint32_t n = i == which ? PROMPT : 1 + i % 5;
        for (uint32_t t = 0; t < n; t++) prompt[t] = token_at(session, t, V);
        s->ops->slot_zero(s->be, i);
        forward(s, &(struct backend_segment){i, n, 1, 0, prompt, true}, 1);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < n_rows; i++) {
            const uint32_t n = i == which ? PROMPT : 1 + i % 5;
            tok[i] = token_at(i == which ? 7 : 1000 + i, n + step, V);
            segs[i] = (struct backend_segment){i, 1, 1, n + step, &tok[i], false};
        }
        const float *rows = forward(s, segs, n_rows);
        memcpy(logits + (size_t)step * V, rows + (size_t)which * V, V * sizeof *logits);
    }
}

static void expect_same(const float *x, const float *want, size_t n, uint32_t V, const char *what, uint32_t n_rows) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&x[i], &want[i], sizeof *x))
            fail_msg("%s, %u rows: logit %zu of step %zu is %.9g, want %.9g", what, n_rows, i % V, i / V, (double)x[i],
                     (double)want[i]);
}

/* deterministic: the same bits whatever the number of rows; without it, within each bucket. */
static void check_batches_of(const char *dir, const char *precision, enum weight_format weights, bool deterministic) {
    static const uint32_t sizes[] = {1,  2,  3,  4,  5,  7,  8,   9,   16,  17,  23,  24,  31,  32,  33,  39,
                                     47, 56, 64, 65, 80, 96, 100, 112, 128, 129, 160, 191, 192, 224, 256, 300};
    struct model *model = open_model(dir);
    model->weights = weights;
    const uint32_t V = model->dims.V;
    struct side s = open_side(
        model, (struct backend_config){
                   .n_slots = MOST, .device = "cuda", .precision = precision, .deterministic = deterministic});
    const size_t n = (size_t)STEPS * V;
    float *first = malloc(n * sizeof *first), *got = malloc(n * sizeof *got);
    uint32_t bucket = CUDA_N_BUCKETS, n_buckets = 0, n_other = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const uint32_t rows = sizes[i], which = rows * 5 / 7;
        const uint32_t b = cuda_bucket_of(rows);
        n_buckets += b != bucket;
        read_among(&s, V, rows, which, got);
        if (i == 0 || (b != bucket && !deterministic)) {
            if (i && memcmp(first, got, n * sizeof *got)) n_other++;
            memcpy(first, got, n * sizeof *got);
        } else {
            expect_same(got, first, n, V, dir, rows);
        }
        bucket = b;
    }
    if (!deterministic)
        printf("note: %s, %s: %u of %u batch buckets have bits other than the one before\n", dir, precision, n_other,
               n_buckets);
    free(first), free(got);
    s.ops->close(s.be);
    model_close(model);
}
static void check_batches(const char *dir, const char *precision, bool deterministic) {
    check_batches_of(dir, precision, WEIGHT_STORED, deterministic);
}
static void a_session_has_the_same_bits_in_steps_of_any_size_of_a_bucket(void **state) {
    (void)state;
    check_batches("config/models/tales", "bf16", false);
    check_batches("config/models/skills", "bf16", false);
    check_batches("tests/vectors/rodimus-plus-options", "fp16", false);
    check_batches("tests/vectors/rodimus-small", "fp32", false);
}
static void a_deterministic_session_has_the_same_bits_in_steps_of_any_size(void **state) {
    (void)state;
    check_batches("config/models/tales", "bf16", true);
    check_batches("config/models/skills", "bf16", true);
    check_batches("tests/vectors/rodimus-plus-headdim128", "fp16", true);
    check_batches("tests/vectors/fla-rodimus-small", "bf16", true);
}
static void a_session_has_the_same_bits_in_steps_of_any_size_where_weights_have_fewer_bits(void **state) {
    (void)state;
    for (int weights = WEIGHT_FP8; weights < WEIGHT_N_FORMATS; weights++) {
        check_batches_of("config/models/tales", "bf16", (enum weight_format)weights, true);
        check_batches_of("tests/vectors/rodimus-plus-headdim128", "fp16", (enum weight_format)weights, true);
    }
}

/* ---- several backends ---- */

static void compare_sides(const struct model *model, const struct side *a, const struct side *b) {
    const uint32_t V = model->dims.V;
    const size_t n = (size_t)STEPS * V;
    float *want = malloc(n * sizeof *want), *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
    read_among(a, V, 5, 3, want);
    for (int round = 0; round < 3; round++) {
        read_among(b, V, 5, 3, x);
        expect_same(x, want, n, V, "the other backend", 5);
        read_among(a, V, 5, 1, y);
        expect_same(y, want, n, V, "the first backend, after the other", 5);
    }
    free(want), free(x), free(y);
}

static void two_backends_on_one_gpu_do_not_see_each_other(void **state) {
    (void)state;
    struct model *model = open_model("config/models/tales");
    const struct backend_config config = {.n_slots = 8, .device = "cuda", .precision = "auto"};
    struct side a = open_side(model, config), b = open_side(model, config);
    compare_sides(model, &a, &b);
    a.ops->close(a.be);
    float *logits = malloc((size_t)STEPS * model->dims.V * sizeof *logits);
    read_among(&b, model->dims.V, 5, 3, logits); /* it lives on */
    free(logits);
    b.ops->close(b.be);
    model_close(model);
}

/* How much shared memory a kernel may have is the process's: a small shape must not take it from a large one. */
static void a_small_model_leaves_a_large_one_its_shared_memory(void **state) {
    (void)state;
    static const char *const shapes[] = {
        "{\"d_model\": 512, \"n_layer\": 1, \"vocab_size\": 300, \"mixer_cfg\": {\"mem_size\": 128, "
        "\"input_gate_low_rank\": 128}, \"attn_cfg\": {\"num_heads\": 4, \"num_heads_k\": 1, \"window_size\": 300}}",
        "{\"d_model\": 16, \"n_layer\": 1, \"vocab_size\": 300, \"mixer_cfg\": {\"mem_size\": 70, "
        "\"input_gate_low_rank\": 16}, \"attn_cfg\": {\"num_heads\": 2, \"num_heads_k\": 1, \"window_size\": 300}}"};
    static const char *const precisions[] = {"fp32", "fp16", "bf16"};
    struct model *model[2];
    struct rod_error err;
    for (int i = 0; i < 2; i++)
        if (model_synthetic_of("shape", shapes[i], 1, NULL, &model[i], &err)) fail_msg("%s", err.message);
    const size_t n = (size_t)STEPS * 300;
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    for (int i = 0; i < 3; i++) {
        const struct backend_config config = {.n_slots = 40, .device = "cuda", .precision = precisions[i]};
        struct side large = open_side(model[0], config);
        read_among(&large, 300, 30, 3, want);
        struct side small = open_side(model[1], config);
        read_among(&small, 300, 30, 3, got);
        read_among(&large, 300, 30, 3, got);
        expect_same(got, want, n, 300, precisions[i], 30);
        large.ops->close(large.be), small.ops->close(small.be);
    }
    free(want), free(got);
    model_close(model[0]), model_close(model[1]);
}

static void one_backend_each_on_two_gpus_give_the_same(void **state) {
    (void)state;
    char lines[8][128];
    if (backend_devices(lines, 8) < 2) {
        printf("note: one GPU: nothing runs on cuda:1\n");
        skip();
    }
    struct model *model = open_model("config/models/tales");
    struct side a = open_side(model, (struct backend_config){.n_slots = 8, .device = "cuda:0", .precision = "auto"}),
                b = open_side(model, (struct backend_config){.n_slots = 8, .device = "cuda:1", .precision = "auto"});
    assert_non_null(strstr(b.ops->info(b.be)->device, "cuda:1"));
    compare_sides(model, &a, &b);
    a.ops->close(a.be), b.ops->close(b.be);
    model_close(model);
}

/* ---- memory, refusals ---- */

static void a_million_slots_are_refused_with_what_is_needed_and_free(void **state) {
    (void)state;
    struct model *model = open_model("config/models/tales");
    struct side s;
    struct rod_error err;
    struct backend_config config = {.n_slots = 1000000, .device = "cuda", .precision = "auto"};
    assert_int_equal(try_open(model, config, &s, &err), ROD_ENOMEM);
    if (!strstr(err.message, "1000000 slots") || !strstr(err.message, "are free")) fail_msg("%s", err.message);
    assert_string_equal(err.param, "slots"); /* the setting that ends the start */
    config.n_slots = 1, config.device = "cuda:63";
    assert_int_equal(try_open(model, config, &s, &err), ROD_EINVALID);
    if (!strstr(err.message, "cuda:63")) fail_msg("%s", err.message);
    model_close(model);
}

static void slots_auto_says_how_many_sessions_that_is(void **state) {
    (void)state;
    struct model *model = open_model("config/models/tales");
    struct side s = open_side(model, (struct backend_config){.device = "cuda", .precision = "auto"});
    const struct backend_info *info = s.ops->info(s.be);
    char want[64];
    snprintf(want, sizeof want, "slots: %u sessions of %.1f MiB", info->n_slots, (double)info->slot_bytes / (1 << 20));
    if (strncmp(s.log, want, strlen(want))) fail_msg("log: '%s', want '%s...'", s.log, want);
    assert_true(info->n_slots >= 1 && info->n_slots + info->chunk_tok <= info->max_batch_tok);
    int32_t tok = 5; /* the last one works */
    s.ops->slot_zero(s.be, info->n_slots - 1);
    forward(&s, &(struct backend_segment){info->n_slots - 1, 1, 1, 0, &tok, false}, 1);
    s.ops->close(s.be);
    model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(held_out_text_is_as_likely_as_on_the_cpu),
        cmocka_unit_test(a_session_has_the_same_bits_in_steps_of_any_size_of_a_bucket),
        cmocka_unit_test(a_deterministic_session_has_the_same_bits_in_steps_of_any_size),
        cmocka_unit_test(a_session_has_the_same_bits_in_steps_of_any_size_where_weights_have_fewer_bits),
        cmocka_unit_test(two_backends_on_one_gpu_do_not_see_each_other),
        cmocka_unit_test(a_small_model_leaves_a_large_one_its_shared_memory),
        cmocka_unit_test(one_backend_each_on_two_gpus_give_the_same),
        cmocka_unit_test(a_million_slots_are_refused_with_what_is_needed_and_free),
        cmocka_unit_test(slots_auto_says_how_many_sessions_that_is),
    };
    const struct backend_ops *ops;
    struct rod_error err;
    if (backend_find("cuda", &ops, &err)) {
        printf("note: skipped, no usable GPU: %s\n", err.message);
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
