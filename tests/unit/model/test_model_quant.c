/* test_model_quant.c - directories that other programs quantised (tests/quantised), and what of them is refused. */
#include "engine/base/philox.h"
#include "engine/model/model_internal.h"
#include "engine/model/safetensors.h"
#include "tests/read_file.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define QUANTISED "tests/quantised/"

struct expected {
    const char *set;
    enum weight_format format;
    uint32_t group; /* 0 = all columns */
    bool zeros;
    unsigned products;
};
static const struct expected sets[] = {
    {"ct-fp8-tensor", WEIGHT_FP8, 0, false, 8},   {"ct-fp8-channel", WEIGHT_FP8, 0, false, 8},
    {"hf-fp8-block", WEIGHT_FP8, 128, false, 2},  {"ct-int8", WEIGHT_INT8, 0, false, 8},
    {"ct-int8-packed", WEIGHT_INT8, 0, false, 8}, {"ct-int4", WEIGHT_INT4, 128, false, 8},
    {"ct-int4-zeros", WEIGHT_INT4, 128, true, 2}, {"gptq", WEIGHT_INT4, 128, false, 2},
    {"gptq-zeros", WEIGHT_INT4, 128, true, 2},    {"awq", WEIGHT_INT4, 128, true, 2},
    {"gptqmodel", WEIGHT_INT4, 128, false, 2},    {"gptqmodel-zeros", WEIGHT_INT4, 128, true, 2},
    {"gptqmodel-v2", WEIGHT_INT4, 128, true, 2},
};

static struct model *open_set(const char *set, const char *weights) {
    char dir[128];
    struct model *m;
    struct rod_error err;
    snprintf(dir, sizeof dir, QUANTISED "%s", set);
    if (model_open_either(&(struct model_choice){.dir = dir, .weights = weights}, NULL, &m, &err))
        fail_msg("%s: %s", set, err.message);
    return m;
}

/* Of a row: the weights by its codes, and by reading the weight as numbers, times x. */
static double row_product(const struct weight *w, const struct weight_quant *q, uint32_t row, const float *x,
                          double *absolute) {
    uint8_t *codes = malloc(w->cols), zeros[8];
    float scales[8], *wide = malloc(sizeof *wide * w->cols), *read = malloc(sizeof *read * w->cols);
    assert_true(weight_quant_groups(q, w->cols) <= 8);
    weight_quant_row(w, q, row, codes, scales, q->zeros ? zeros : NULL);
    weight_quant_widen(q, w->cols, codes, scales, q->zeros ? zeros : NULL, wide);
    const struct weight_part *part = &w->part[row >= w->part[0].rows];
    const size_t first = (size_t)(row - (part == w->part ? 0 : w->part[0].rows)) * w->cols;
    weight_part_to_f32(part, first, w->cols, read);
    double sum = 0;
    *absolute = 0;
    for (uint32_t c = 0; c < w->cols && q->format == WEIGHT_INT8; c++) { /* -128 has become -127 */
        const uint8_t lowest = part->codes->offset ? 0 : 0x80;
        if (((const uint8_t *)part->codes->codes)[first + c] == lowest) sum -= (double)scales[0] * x[c];
    }
    for (uint32_t c = 0; c < w->cols; c++) {
        sum += (double)wide[c] * x[c];
        *absolute += fabs((double)wide[c] * x[c]);
        if (fabsf(wide[c] - read[c]) > 0.004f * fabsf(wide[c])) /* read in 16 bits */
            fail_msg("column %u is %g by its code, read as %g", c, (double)wide[c], (double)read[c]);
    }
    free(codes);
    free(wide);
    free(read);
    return sum;
}

static struct safetensors *open_expected(const char *set) {
    char path[128];
    struct safetensors *st;
    struct rod_error err;
    snprintf(path, sizeof path, QUANTISED "%s/expected.safetensors", set);
    if (safetensors_open(path, &st, &err)) fail_msg("%s", err.message);
    return st;
}

static float *read_tensor(const struct safetensors *st, const char *name) {
    struct rod_error err;
    const struct safetensors_tensor *t = safetensors_find(st, name);
    if (!t) fail_msg("no %s", name);
    float *x = malloc(sizeof *x * t->n_elems);
    if (safetensors_read_f32(st, t, x, &err)) fail_msg("%s", err.message);
    return x;
}

struct visit {
    struct model *m;
    const struct expected *expected;
    struct safetensors *st;
    const float *x;
    unsigned n;
};

static int check_piece(void *arg, const struct model_piece *piece) {
    struct visit *v = arg;
    if (!piece->quantisable) return 0;
    const struct weight *w = model_piece_weight(v->m, piece);
    struct weight_quant q;
    if (!w->part[0].codes) {
        assert_false(weight_quant_of(v->m, w, &q)); /* left in 16 bits */
        return 0;
    }
    assert_true(weight_quant_of(v->m, w, &q));
    assert_int_equal(q.format, v->expected->format);
    assert_int_equal(q.group, v->expected->group ? v->expected->group : w->cols);
    assert_int_equal(q.zeros, v->expected->zeros);
    char module[96];
    snprintf(module, sizeof module, "%.*s", (int)(strlen(piece->name) - strlen(".weight")), piece->name);
    float *y = read_tensor(v->st, module);
    for (uint32_t r = 0; r < piece->rows; r++) {
        double absolute;
        const double got = row_product(w, &q, piece->part ? w->part[0].rows + r : r, v->x, &absolute);
        if (fabs(got - y[r]) > 1e-6 * absolute)
            fail_msg("%s: row %u of %s times x is %.9g, expected %.9g", v->expected->set, r, module, got, (double)y[r]);
    }
    free(y);
    v->n += piece->part == 0;
    return 0;
}

static void weights_are_those_that_the_program_which_wrote_them_unpacks(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        struct visit v = {open_set(sets[i].set, NULL), &sets[i], open_expected(sets[i].set), NULL, 0};
        float *x = read_tensor(v.st, "x");
        v.x = x;
        model_plan(&v.m->dims, !strcmp(v.m->layout, "fla"), check_piece, &v);
        assert_int_equal(v.n, sets[i].products);
        for (uint32_t k = 0; k < v.m->n_warnings; k++) fail_msg("%s: %s", sets[i].set, v.m->warnings[k]);
        free(x);
        safetensors_close(v.st);
        model_close(v.m);
    }
}

static void a_stored_format_is_not_rounded_into_another(void **state) {
    (void)state;
    struct model *m;
    struct rod_error err;
    static const char *const others[][3] = {{QUANTISED "awq", "int8", "int4"},
                                            {QUANTISED "ct-int8", "int4", "int8"},
                                            {QUANTISED "hf-fp8-block", "int4", "fp8"}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char says[128];
        snprintf(says, sizeof says, "weights is %s; the directory keeps weights in %s: auto takes them as they are.",
                 others[i][1], others[i][2]);
        assert_int_equal(
            model_open_either(&(struct model_choice){.dir = others[i][0], .weights = others[i][1]}, NULL, &m, &err),
            ROD_EUNSUPPORTED);
        assert_string_equal(err.message, says);
    }
    /* The format that is stored, named: the head follows. */
    struct weight_quant q;
    m = open_set("ct-int8", "auto");
    assert_false(weight_quant_of(m, &m->lm_head, &q));
    model_close(m);
    m = open_set("ct-int8", "int8");
    assert_true(weight_quant_of(m, &m->lm_head, &q));
    model_close(m);
}

/* ---- refusals ---- */

static void a_device_without_the_stored_format_names_the_precision_that_takes_it(void **state) {
    (void)state;
    struct model *m = open_set("hf-fp8-block", "auto");
    struct rod_error err = {0};
    assert_int_equal(weight_quant_check(m, 1u << WEIGHT_INT8 | 1u << WEIGHT_INT4, "the CPU", &err), ROD_EUNSUPPORTED);
    assert_string_equal(err.message,
                        "the directory keeps weights in fp8, which do not run on the CPU: precision fp32 takes them.");
    assert_string_equal(err.param, "weights");
    assert_int_equal(weight_quant_check(m, 0, "a GPU in fp32", &err), ROD_EUNSUPPORTED);
    assert_string_equal(
        err.message,
        "the directory keeps weights in fp8, which do not run on a GPU in fp32: precision auto takes them.");
    model_close(m);
}

/* A copy of the set with one place of a file changed: by a text of the same length in the header, or at a tensor. */
static void expect_refusal_of(const char *set, const char *file, const char *old, const char *new, const char *says) {
    char dir[] = "/tmp/rodimus-test-XXXXXX", from[128], path[256];
    assert_non_null(mkdtemp(dir));
    snprintf(from, sizeof from, QUANTISED "%s", set);
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        size_t n;
        char *text = read_file_in(from, files[i], &n);
        if (!strcmp(files[i], file)) {
            char *at = memmem(text, n, old, strlen(old));
            if (!at) fail_msg("%s: no %s", set, old);
            if (strlen(new) != strlen(old)) fail_msg("%s is longer or shorter than %s", new, old);
            memcpy(at, new, strlen(new));
        }
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        FILE *to = fopen(path, "wb");
        assert_non_null(to);
        assert_int_equal(fwrite(text, 1, n, to), n);
        assert_int_equal(fclose(to), 0);
        free(text);
    }
    struct model *m = NULL;
    struct rod_error err = {0};
    const int rc = model_open(dir, NULL, NULL, &m, &err);
    if (!rc || !strstr(err.message, says))
        fail_msg("%s with %s: code %d, \"%s\" lacks \"%s\"", set, new, rc, err.message, says);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
}

static void what_would_change_results_is_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *set, *old, *new, *says;
    } configs[] = {
        {"gptq", "\"desc_act\": false", "\"desc_act\": true ", "act-order"},
        {"gptq", "\"bits\": 4", "\"bits\": 3", "quantization_config.bits is 3"},
        {"gptq", "\"group_size\": 128", "\"group_size\": 32 ", "group_size is 32"},
        {"gptq", "\"damp_percent\"", "\"damp_percenT\"", "damp_percenT is 0.01: this key is not known"},
        {"gptq", "\"gptq\"\n", "\"marl\"\n", "only gptq and gptq_v2"},
        {"gptq", "\"quant_method\": \"gptq\"", "\"quant_method\": \"gguf\"", "quant_method is \"gguf\""},
        {"awq", "\"gemm\"", "\"gemv\"", "version is \"gemv\""},
        {"ct-int4", "\"pack-quantized\"", "\"marlin-24-form\"", "format is \"marlin-24-form\""},
        {"ct-int4", "\"group_size\": 128", "\"group_size\": 64 ", "group_size is 64"},
        {"ct-int4", "\"num_bits\": 4", "\"num_bits\": 2", "num_bits is 2"},
        {"ct-int8", "\"dynamic\": false", "\"dynamic\": true ", "dynamic is true"},
        {"ct-int8", "\"compressed\"", "\"compresseD\"", "quantization_status"},
        {"hf-fp8-block", "\"e4m3\"", "\"e5m2\"", "fmt is \"e5m2\""},
        {"hf-fp8-block", "[\n   128,\n   128", "[\n   064,\n   128", "not valid JSON"},
        {"hf-fp8-block", "[\n   128,\n   128", "[\n   256,\n   128", "only blocks of [128, 128]"},
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        expect_refusal_of(configs[i].set, "config.json", configs[i].old, configs[i].new, configs[i].says);
}

static void tensors_that_do_not_fit_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *set, *old, *new, *says;
    } tensors[] = {
        {"ct-int4", "mixer.down_proj.weight_scale", "mixer.down_proj.weight_scalE",
         "down_proj.weight_scale is missing"},
        {"ct-int4", "mixer.down_proj.weight_packed", "mixer.down_proj.weight_packeD",
         "mixer.down_proj.weight of shape [128, 256] is missing"},
        {"gptq", "mixer.out_proj.qzeros", "mixer.out_proj.qzeroS", "out_proj.qzeros is missing"},
        {"ct-int4-zeros", "mixer.out_proj.weight_zero_point", "mixer.out_proj.weight_zero_poinT",
         "out_proj.weight_zero_point is missing"},
        {"gptq", "\"model.layers.0.mixer.fc.qzeros\":{\"dtype\":\"I32\"",
         "\"model.layers.0.mixer.fc.qzeros\":{\"dtype\":\"F32\"", "zero points of 4 bits in I32 are needed"},
        {"ct-int8", "\"model.layers.0.mixer.fc.weight\":{\"dtype\":\"I8\"",
         "\"model.layers.0.mixer.fc.weight\":{\"dtype\":\"U8\"", "U8"},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        expect_refusal_of(tensors[i].set, "model.safetensors", tensors[i].old, tensors[i].new, tensors[i].says);
}

static void a_quantisation_of_a_dense_checkpoint_is_told(void **state) {
    (void)state;
    static const char dense[] = "tests/vectors/rodimus-plus-small",
                      said[] = "{\"quantization_config\": {\"quant_method\": \"gptq\", \"bits\": 4},";
    char dir[] = "/tmp/rodimus-test-XXXXXX", path[256];
    assert_non_null(mkdtemp(dir));
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        size_t n;
        char *text = read_file_in(dense, files[i], &n);
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        FILE *to = fopen(path, "wb");
        assert_non_null(to);
        if (!i) assert_int_equal(fwrite(said, 1, sizeof said - 1, to), sizeof said - 1);
        assert_int_equal(fwrite(text + !i, 1, n - !i, to), n - !i);
        assert_int_equal(fclose(to), 0);
        free(text);
    }
    struct model *m;
    struct rod_error err;
    if (model_open(dir, NULL, NULL, &m, &err)) fail_msg("%s", err.message);
    assert_int_equal(m->n_warnings, 1);
    assert_string_equal(m->warnings[0],
                        "config.json's quantization_config says gptq, no weight is kept so; the weights "
                        "are read as they are");
    model_close(m);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    rmdir(dir);
    m = open_set("gptq", "auto");
    for (uint32_t i = 0; i < m->n_warnings; i++) assert_null(strstr(m->warnings[i], "quantization_config"));
    model_close(m);
}

/* Headers and tensors with bytes changed at random are refused, or read within their bounds. */
static void changed_bytes_are_refused_or_read_within_bounds(void **state) {
    (void)state;
    unsigned opened = 0, refused = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        char dir[] = "/tmp/rodimus-test-XXXXXX", from[128], path[256];
        assert_non_null(mkdtemp(dir));
        snprintf(from, sizeof from, QUANTISED "%s", sets[seed % (sizeof sets / sizeof *sets)].set);
        static const char *const files[] = {"config.json", "model.safetensors"};
        for (int i = 0; i < 2; i++) {
            size_t n;
            char *text = read_file_in(from, files[i], &n);
            const size_t first = i ? 8 : 0, range = i && seed % 3 ? 4000 : n - first;
            for (uint32_t k = 0; k < 3; k++) {
                const double at = philox_uniform(seed, (uint64_t)i, 2 * k),
                             to = philox_uniform(seed, (uint64_t)i, 2 * k + 1);
                if (i || seed % 5 == 0)
                    text[first + (size_t)(at * (double)range)] = (char)(i && seed % 3 ? '0' + 10 * to : 256 * to);
            }
            snprintf(path, sizeof path, "%s/%s", dir, files[i]);
            FILE *to = fopen(path, "wb");
            assert_non_null(to);
            assert_int_equal(fwrite(text, 1, n, to), n);
            assert_int_equal(fclose(to), 0);
            free(text);
        }
        struct model *m;
        struct rod_error err = {0};
        if (model_open(dir, NULL, NULL, &m, &err)) {
            if (!err.message[0]) fail_msg("seed %llu: refused without a word", (unsigned long long)seed);
            refused++;
        } else {
            const struct weight *w;
            struct weight_quant q;
            for (size_t i = 0; (w = model_product(m, i)); i++)
                for (uint32_t r = 0; r < w->rows && weight_quant_of(m, w, &q); r++) {
                    uint8_t codes[512], zeros[8];
                    float scales[8];
                    assert_true(w->cols <= sizeof codes);
                    weight_quant_row(w, &q, r, codes, scales, q.zeros ? zeros : NULL);
                }
            model_close(m);
            opened++;
        }
        for (int i = 0; i < 2; i++) {
            snprintf(path, sizeof path, "%s/%s", dir, files[i]);
            unlink(path);
        }
        rmdir(dir);
    }
    if (opened < 20 || refused < 20) fail_msg("%u opened, %u refused: both are wanted", opened, refused);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_those_that_the_program_which_wrote_them_unpacks),
        cmocka_unit_test(a_stored_format_is_not_rounded_into_another),
        cmocka_unit_test(a_device_without_the_stored_format_names_the_precision_that_takes_it),
        cmocka_unit_test(what_would_change_results_is_refused_by_name),
        cmocka_unit_test(tensors_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(a_quantisation_of_a_dense_checkpoint_is_told),
        cmocka_unit_test(changed_bytes_are_refused_or_read_within_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
