/* test_vectors.c - every golden set through the CPU backend: prompts split in many ways, and proof that the check would
 * notice one wrong value anywhere. */
#include "engine/model/model.h"
#include "engine/model/safetensors.h"
#include "engine/tools/tools.h"
#include "engine/tools/verify.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const sets[] = {"fla-rodimus-plus-small",  "fla-rodimus-small",    "rodimus-plus-extremes",
                                   "rodimus-plus-headdim128", "rodimus-plus-options", "rodimus-plus-short",
                                   "rodimus-plus-small",      "rodimus-small"};
#define N_SETS (sizeof sets / sizeof *sets)

struct setup { /* one set, opened */
    struct model *model;
    struct golden *golden;
    struct backend *be;
};

static struct setup set_up(const char *set) {
    char path[128];
    struct rod_error err;
    struct setup b;
    snprintf(path, sizeof path, "tests/vectors/%s", set);
    if (model_open(path, NULL, NULL, &b.model, &err)) fail_msg("%s", err.message);
    snprintf(path, sizeof path, "tests/vectors/%s/golden.safetensors", set);
    if (golden_open(path, &b.model->dims, &b.golden, &err)) fail_msg("%s", err.message);
    struct backend_config config = {.n_slots = 1, .device = "cpu", .precision = "auto"};
    if (backend_cpu.open(b.model, &config, &b.be, &err)) fail_msg("%s: %s", set, err.message);
    return b;
}

static void tear_down(struct setup *b) {
    backend_cpu.close(b->be);
    golden_close(b->golden);
    model_close(b->model);
}

static struct verify_result *run(const struct setup *b, uint32_t first_tok, uint32_t piece_tok) {
    struct verify_result *result;
    struct rod_error err;
    if (verify_run(&backend_cpu, b->be, &b->model->dims, b->golden, first_tok, piece_tok, &result, NULL, &err))
        fail_msg("%s", err.message);
    return result;
}

static struct rod_verify_report *compare(const struct setup *b, const struct golden *golden,
                                         const struct verify_result *result) {
    struct rod_verify_report *report =
        verify_new_report(&b->model->dims, verify_bounds(DTYPE_F32, WEIGHT_STORED, false, false));
    assert_non_null(report);
    verify_compare(golden, result, &b->model->dims, ROD_VERIFY_PREFILL, report);
    return report;
}

/* The first row out of bounds, or the agreement. */
static void expect_pass(const struct setup *b, const struct verify_result *result, const char *set, uint32_t first,
                        uint32_t piece) {
    struct rod_verify_report *report = compare(b, b->golden, result);
    for (size_t i = 0; i < report->n_rows; i++)
        if (!report->rows[i].ok)
            fail_msg("%s, pieces %u then %u: %s off by %g (bound %g), one element by %g (bound %g)", set, first, piece,
                     report->rows[i].what, report->rows[i].rel_err, report->rel_bound, report->rows[i].max_err,
                     report->max_bound);
    const struct rod_verify_agreement *a = &report->agreement[ROD_VERIFY_PREFILL];
    if (a->argmax_same != report->n_tok || a->greedy_same != report->n_greedy)
        fail_msg("%s, pieces %u then %u: argmax %u of %u, greedy %u of %u", set, first, piece, a->argmax_same,
                 report->n_tok, a->greedy_same, report->n_greedy);
    assert_true(report->passed);
    rod_verify_free(report);
}

static void every_set_passes_however_its_prompt_is_split(void **state) {
    (void)state;
    /* whole, single steps, around the chunk edge, and pieces that never meet it */
    static const uint32_t splits[][2] = {{0, 0},  {1, 1},   {1, 0},   {63, 0}, {64, 0},
                                         {65, 0}, {63, 65}, {64, 64}, {7, 7},  {5, 17}};
    for (size_t s = 0; s < N_SETS; s++) {
        struct setup b = set_up(sets[s]);
        for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
            struct verify_result *result = run(&b, splits[i][0], splits[i][1]);
            expect_pass(&b, result, sets[s], splits[i][0], splits[i][1]);
            verify_free(result);
        }
        tear_down(&b);
    }
}

/* The engine's own way: a prompt of T tokens asks for the logits of its last one only. */
static void prompts_of_every_edge_length_end_in_the_right_logits(void **state) {
    (void)state;
    static const uint32_t lengths[] = {1, 2, 3, 4, 5, 8, 63, 64, 65, 127, 128, 129};
    for (size_t s = 0; s < N_SETS; s++) {
        struct setup b = set_up(sets[s]);
        uint32_t V = b.model->dims.V;
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths && lengths[i] <= b.golden->T; i++) {
            uint32_t T = lengths[i];
            backend_cpu.slot_zero(b.be, 0);
            struct backend_segment segment = {.n_tok = T, .n_out = 1, .tok = b.golden->ids, .prompt = true};
            const float *row, *ref = b.golden->logits + (size_t)(T - 1) * V;
            struct rod_error err;
            assert_int_equal(backend_cpu.forward(b.be, &segment, 1, &row, &err), 0);
            double diff = 0, norm = 0;
            for (uint32_t v = 0; v < V; v++)
                diff += pow((double)row[v] - (double)ref[v], 2), norm += pow((double)ref[v], 2);
            if (!(sqrt(diff / norm) <= 1e-5)) fail_msg("%s, %u tokens: off by %g", sets[s], T, sqrt(diff / norm));
        }
        tear_down(&b);
    }
}

static uint64_t next_random(uint64_t *s) {
    *s ^= *s << 13;
    *s ^= *s >> 7;
    return *s ^= *s << 17;
}

/* Changes one value, expects the comparison to fail, and puts it back. */
static void expect_notice(const struct setup *b, const struct verify_result *result, const char *set, const char *what,
                          float *values, size_t n, size_t row, uint64_t seed) {
    uint64_t s = seed;
    for (int change = 0; change < 4; change++) {
        size_t at = (size_t)(next_random(&s) % n), first = at / row * row;
        double square = 0;
        for (size_t i = first; i < first + row; i++) square += (double)values[i] * (double)values[i];
        float rms = (float)sqrt(square / (double)row), kept = values[at];
        values[at] = change == 0 ? kept + 5e-4f * rms : change == 1 ? kept - rms : change == 2 ? NAN : INFINITY;
        struct rod_verify_report *report = compare(b, b->golden, result);
        if (report->passed)
            fail_msg("%s: %s[%zu] = %g changed to %g (row rms %g), unnoticed; seed %llu", set, what, at, (double)kept,
                     (double)values[at], (double)rms, (unsigned long long)seed);
        rod_verify_free(report);
        values[at] = kept;
    }
}

static void one_changed_value_anywhere_is_noticed(void **state) {
    (void)state;
    for (size_t s = 0; s < N_SETS; s++) {
        struct setup b = set_up(sets[s]);
        const struct model_dims *d = &b.model->dims;
        struct verify_result *result = run(&b, 0, 0);
        struct golden *g = b.golden;
        uint64_t seed = 0x2545f4914f6cdd1du + s;
        expect_notice(&b, result, sets[s], "logits", g->logits, (size_t)g->T * d->V, d->V, seed);
        for (uint32_t i = 0; i < d->L; i++)
            for (uint32_t which = 0; which < (d->plus ? 4 : 2); which++) {
                struct golden_tensor t = golden_state_tensor(&g->layers[i], d, which);
                expect_notice(&b, result, sets[s], t.name, t.values, t.n, t.row, seed + i * 4 + which);
            }
        for (uint32_t i = 0; i < g->n_greedy; i++) {
            int32_t kept = g->greedy_ids[i];
            g->greedy_ids[i] = (kept + 1) % (int32_t)d->V;
            struct rod_verify_report *report = compare(&b, g, result);
            if (report->passed) fail_msg("%s: greedy id %u changed, unnoticed", sets[s], i);
            rod_verify_free(report);
            g->greedy_ids[i] = kept;
        }
        verify_free(result);

        uint32_t at = (uint32_t)(next_random(&seed) % g->T);
        const uint32_t changed[] = {0, at, g->T - 1};
        for (int i = 0; i < 3; i++) {
            int32_t kept = g->ids[changed[i]];
            g->ids[changed[i]] = (kept + 1) % (int32_t)d->V;
            result = run(&b, 0, 0);
            struct rod_verify_report *report = compare(&b, g, result);
            if (report->passed) fail_msg("%s: input id %u changed, unnoticed", sets[s], changed[i]);
            rod_verify_free(report);
            verify_free(result);
            g->ids[changed[i]] = kept;
        }
        tear_down(&b);
    }
}

static void the_public_call_passes_and_a_changed_file_fails(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    const char *model = "tests/vectors/rodimus-plus-short",
               *golden = "tests/vectors/rodimus-plus-short/golden.safetensors";
    struct rod_verify_options options = {.model_dir = model, .golden_path = golden, .device = "cpu"};
    struct rod_verify_report *report;
    struct rod_error err;
    if (rod_verify(&options, &report, &err)) fail_msg("%s", err.message);
    assert_true(report->passed);
    assert_string_equal(report->precision, "fp32");
    assert_int_equal(report->n_rows, 2 * (1 + 4 * 2));
    for (int mode = 0; mode < ROD_VERIFY_N_MODES; mode++) {
        assert_int_equal(report->agreement[mode].argmax_same, 5);
        assert_int_equal(report->agreement[mode].greedy_same, 24);
    }
    rod_verify_free(report);

    struct safetensors *st;
    assert_int_equal(safetensors_open(golden, &st, &err), 0);
    unsigned char *bytes = malloc((size_t)st->n_bytes);
    for (size_t i = 0; i < st->table.n_tensors; i++) {
        const struct safetensors_tensor *t = &st->table.tensors[i];
        memcpy(bytes, st->map, (size_t)st->n_bytes);
        bytes[t->first_byte + (t->n_elems / 2) * 4 + (t->dtype == SAFETENSORS_F32 ? 2 : 0)] ^= 0x41;
        FILE *to = fopen(path, "wb");
        assert_non_null(to);
        assert_int_equal(fwrite(bytes, 1, (size_t)st->n_bytes, to), st->n_bytes);
        assert_int_equal(fclose(to), 0);
        options.golden_path = path;
        int rc = rod_verify(&options, &report, &err);
        if (rc) { /* an id outside the vocabulary is an error at once */
            assert_non_null(strstr(err.message, "outside the vocabulary"));
            continue;
        }
        if (report->passed) fail_msg("%s changed in the file, unnoticed", t->name);
        rod_verify_free(report);
    }
    free(bytes);
    safetensors_close(st);
    unlink(path);
    rmdir(dir);
}

static void without_a_golden_the_cpu_is_the_reference(void **state) {
    (void)state;
    struct rod_verify_options options = {.synthetic = "tales", .n_tok = 300, .device = "cpu"};
    struct rod_verify_report *report;
    struct rod_error err;
    if (rod_verify(&options, &report, &err)) fail_msg("%s", err.message);
    assert_true(report->passed);
    assert_int_equal(report->n_tok, 300);
    assert_int_equal(report->agreement[ROD_VERIFY_STEPS].argmax_same, 300);
    assert_true(report->rows[0].rel_err == 0); /* itself, by the same way */
    rod_verify_free(report);
    options.model_dir = "tests/vectors/rodimus-small";
    assert_int_equal(rod_verify(&options, &report, &err), ROD_EINVALID);
}

/* fp8 is read as numbers, which fp32 asks for on the CPU. */
static void each_format_is_within_its_bounds_and_near_the_same_codes_as_numbers(void **state) {
    (void)state;
    static const struct {
        const char *weights, *precision, *window;
    } formats[] = {{"int8", "auto", "auto"}, {"int4", "auto", "auto"}, {"fp8", "fp32", "auto"},
                   {"int4", "fp32", "auto"}, {"auto", "auto", "int8"}, {"int8", "auto", "int8"}};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (size_t s = 0; s <= N_SETS; s++) {
            char dir[64], golden[96];
            snprintf(dir, sizeof dir, "tests/vectors/%s", s < N_SETS ? sets[s] : "");
            snprintf(golden, sizeof golden, "%s/golden.safetensors", dir);
            if (!strcmp(formats[f].window, "int8") && s < N_SETS && !strstr(dir, "plus")) continue; /* no window */
            const struct rod_verify_options options = {.model_dir = s < N_SETS ? dir : NULL,
                                                       .synthetic = s < N_SETS ? NULL : "tales",
                                                       .golden_path = s < N_SETS ? golden : NULL,
                                                       .device = "cpu",
                                                       .weights = formats[f].weights,
                                                       .window_dtype = formats[f].window,
                                                       .precision = formats[f].precision};
            struct rod_verify_report *report;
            struct rod_error err;
            if (rod_verify(&options, &report, &err)) fail_msg("%s", err.message);
            for (size_t i = 0; i < report->n_rows; i++)
                if (!report->rows[i].ok)
                    fail_msg("%s in %s, window %s: %s is %g off, worst %g; bounds %g, %g", dir, formats[f].weights,
                             formats[f].window, report->rows[i].what, report->rows[i].rel_err, report->rows[i].max_err,
                             report->rel_bound, report->max_bound);
            if (!report->passed)
                fail_msg("%s in %s, window %s: ids differ by more than the bound lets them", dir, formats[f].weights,
                         formats[f].window);
            rod_verify_free(report);
        }
}

static void a_golden_of_another_model_is_refused_by_name(void **state) {
    (void)state;
    struct rod_verify_options options = {.model_dir = "tests/vectors/rodimus-small",
                                         .golden_path = "tests/vectors/fla-rodimus-small/golden.safetensors",
                                         .device = "cpu"};
    struct rod_verify_report *report;
    struct rod_error err;
    assert_int_equal(rod_verify(&options, &report, &err), ROD_EMODEL);
    assert_non_null(strstr(err.message, "state.2.S is missing"));
    options.golden_path = "tests/vectors/rodimus-plus-small/golden.safetensors";
    assert_int_equal(rod_verify(&options, &report, &err), ROD_EMODEL);
    assert_non_null(strstr(err.message, "golden.safetensors"));
    options.golden_path = "tests/vectors/none.safetensors";
    assert_int_equal(rod_verify(&options, &report, &err), ROD_ENOTFOUND);
    options.model_dir = "tests/vectors/fla-rodimus-small";
    options.golden_path = "tests/vectors/rodimus-small/golden.safetensors";
    assert_int_equal(rod_verify(&options, &report, &err), ROD_EMODEL);
    assert_non_null(strstr(err.message, "another model"));
    options.device = "tpu";
    assert_int_equal(rod_verify(&options, &report, &err), ROD_EINVALID);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_set_passes_however_its_prompt_is_split),
        cmocka_unit_test(prompts_of_every_edge_length_end_in_the_right_logits),
        cmocka_unit_test(one_changed_value_anywhere_is_noticed),
        cmocka_unit_test(the_public_call_passes_and_a_changed_file_fails),
        cmocka_unit_test(without_a_golden_the_cpu_is_the_reference),
        cmocka_unit_test(each_format_is_within_its_bounds_and_near_the_same_codes_as_numbers),
        cmocka_unit_test(a_golden_of_another_model_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
