/* test_model_adapter.c - LoRA adapters: what they make of the weights, beside a dense product in double, and each kind
 * that is refused. */
#include "engine/model/safetensors.h"
#include "tests/adapter_files.h"

#include <math.h>

#define SMALL "tests/vectors/rodimus-plus-small"
#define FLA   "tests/vectors/fla-rodimus-plus-small"

static const char q_proj[] = "model.layers.1.attn.q_proj.weight";

/* ---- the weights ---- */

struct checked {
    const struct model *base;
    struct model *adapted;
    struct made_file *made;
    bool rslora;
    size_t n_changed;
};

static double made_value(const struct made_tensor *t, size_t i) {
    const struct weight_part part = {.data = t->data,
                                     .dtype = !strcmp(t->dtype, "F32")   ? DTYPE_F32
                                              : !strcmp(t->dtype, "F16") ? DTYPE_F16
                                                                         : DTYPE_BF16,
                                     .rows = 1};
    float x;
    weight_part_to_f32(&part, i, 1, &x);
    return x;
}

static float rounded(float x, enum dtype dtype) {
    return dtype == DTYPE_F32   ? x
           : dtype == DTYPE_F16 ? half_f16_to_f32(half_f32_to_f16(x))
                                : half_bf16_to_f32(half_f32_to_bf16(x));
}

/* Any range of elements is the same bits, in either form. */
static void expect_pieces(const struct weight_part *part, const float *all, size_t n) {
    float some[700], widened[700];
    for (size_t first = 0; first < n; first += 611) {
        const size_t m = n - first < 700 ? n - first : 700;
        weight_part_to_f32(part, first, m, some);
        assert_memory_equal(some, all + first, m * sizeof *some);
        weight_part_copy(part, first, m, some);
        const struct weight_part stored = {.data = some, .dtype = part->dtype, .rows = 1};
        weight_part_to_f32(&stored, 0, m, widened);
        assert_memory_equal(widened, all + first, m * sizeof *widened);
    }
}

static void expect_merged(const struct checked *c, const struct model_piece *piece, const struct weight_part *was,
                          const struct weight_part *is) {
    char a_name[160], b_name[160];
    const int stem = (int)strlen(piece->name) - 7;
    snprintf(a_name, sizeof a_name, "base_model.model.%.*s.lora_A.weight", stem, piece->name);
    snprintf(b_name, sizeof b_name, "base_model.model.%.*s.lora_B.weight", stem, piece->name);
    const struct made_tensor *a = made_find(c->made, a_name), *b = made_find(c->made, b_name);
    assert_true(a && b);
    const size_t rank = a->shape[0], n = (size_t)piece->rows * piece->cols;
    const double r = (double)rank, scale = adapter_alpha_of(piece->name) / (c->rslora ? sqrt(r) : r);
    const double half_step = is->dtype == DTYPE_F32 ? 0x1p-24 : is->dtype == DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    float *before = malloc(n * sizeof *before), *after = malloc(n * sizeof *after);
    weight_part_to_f32(was, 0, n, before);
    weight_part_to_f32(is, 0, n, after);
    for (size_t i = 0; i < n; i++) {
        double sum = 0, size = 0;
        for (size_t j = 0; j < rank; j++) {
            const double term =
                made_value(b, i / piece->cols * rank + j) * made_value(a, j * piece->cols + i % piece->cols);
            sum += term, size += fabs(term);
        }
        const double want = (double)before[i] + scale * sum;
        const double arithmetic = (r + 4) * 0x1p-24 * (fabs((double)before[i]) + scale * size);
        if (!(fabs((double)after[i] - want) <= half_step * fabs(want) + arithmetic + 0x1p-25) ||
            after[i] != rounded(after[i], is->dtype))
            fail_msg("%s, element %zu: %.9g, want %.9g", piece->name, i, (double)after[i], want);
    }
    expect_pieces(is, after, n);
    free(before), free(after);
}

static int expect_piece(void *arg, const struct model_piece *piece) {
    struct checked *c = arg;
    struct model *base = (struct model *)(uintptr_t)c->base;
    const struct weight_part *was = &model_piece_weight(base, piece)->part[piece->part];
    const struct weight_part *is = &model_piece_weight(c->adapted, piece)->part[piece->part];
    assert_int_equal(is->dtype, was->dtype);
    if (is->delta) {
        expect_merged(c, piece, was, is);
        c->n_changed++;
    } else {
        assert_memory_equal(is->data, was->data, (size_t)piece->rows * piece->cols * dtype_bytes(is->dtype));
    }
    return 0;
}

static struct model *open_base(const char *dir) {
    struct model *model;
    struct rod_error err;
    if (model_open(dir, NULL, NULL, &model, &err)) fail_msg("%s", err.message);
    return model;
}

static struct model *open_adapted(const char *base, const char *adapter) {
    struct model *model;
    struct rod_error err;
    if (model_open_either(&(struct model_choice){.dir = base, .adapter = adapter}, NULL, &model, &err))
        fail_msg("%s", err.message);
    return model;
}

static void an_adapter_is_added_and_rounded_once(void **state) {
    (void)state;
    static const char *const sets[] = {SMALL, FLA, "tests/vectors/rodimus-plus-options"};
    static const char rslora[] = "{\"peft_type\":\"LORA\",\"use_rslora\":true,\"r\":3,\"lora_alpha\":6,"
                                 "\"rank_pattern\":{\"out_proj\":5,\"down_proj\":5},"
                                 "\"alpha_pattern\":{\"attn.q_proj\":1.5}}";
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        for (int dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
            char dir[] = "/tmp/rodimus-test-XXXXXX";
            assert_non_null(mkdtemp(dir));
            struct model *base = open_base(sets[i]);
            struct made_file made = adapter_make(base, (enum dtype)dtype, i + 1);
            const bool rs = dtype == DTYPE_F16;
            adapter_write(dir, &made, rs ? rslora : ADAPTER_CONFIG);
            struct model *adapted = open_adapted(sets[i], dir);
            struct checked c = {base, adapted, &made, rs, 0};
            model_plan(&base->dims, !strcmp(base->layout, "fla"), expect_piece, &c);
            assert_int_equal(2 * c.n_changed, made.n);
            assert_true(c.n_changed >= 2 * base->dims.L);
            assert_int_equal(adapted->n_params, base->n_params);
            assert_string_equal(adapted->name, base->name);
            assert_string_equal(adapted->adapter, strrchr(dir, '/') + 1);
            assert_string_equal(base->adapter, "");
            model_close(adapted);
            model_close(base);
            made_free(&made);
            adapter_remove(dir);
        }
}

/* ---- the fingerprint ---- */

static void expect_another(uint8_t (*seen)[MODEL_FINGERPRINT_BYTES], size_t n, const struct model *model) {
    for (size_t i = 0; i < n; i++) assert_memory_not_equal(seen[i], model->fingerprint, MODEL_FINGERPRINT_BYTES);
    memcpy(seen[n], model->fingerprint, MODEL_FINGERPRINT_BYTES);
}

static void a_fingerprint_is_of_the_adapter_too(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    uint8_t seen[5][MODEL_FINGERPRINT_BYTES];
    struct model *base = open_base(SMALL);
    memcpy(seen[0], base->fingerprint, sizeof seen[0]);
    struct made_file made = adapter_make(base, DTYPE_F32, 1);
    adapter_write(dir, &made, ADAPTER_CONFIG);
    struct model *m = open_adapted(SMALL, dir);
    expect_another(seen, 1, m);
    model_close(m);
    m = open_adapted(SMALL, dir);
    assert_memory_equal(seen[1], m->fingerprint, sizeof seen[1]); /* it does not change by itself */
    model_close(m);
    ((unsigned char *)made.t[made.n - 1].data)[0] ^= 1;
    adapter_write(dir, &made, ADAPTER_CONFIG);
    m = open_adapted(SMALL, dir);
    expect_another(seen, 2, m);
    model_close(m);
    adapter_write(dir, &made, ADAPTER_CONFIG "\n");
    m = open_adapted(SMALL, dir);
    expect_another(seen, 3, m);
    model_close(m);
    m = open_adapted(SMALL, ""); /* no adapter */
    assert_memory_equal(seen[0], m->fingerprint, sizeof seen[0]);
    model_close(m);
    model_close(base);
    made_free(&made);
    adapter_remove(dir);
}

/* ---- refusals ---- */

static void expect_refusal(const char *base, const char *dir, int code, const char *says, const char *also) {
    struct model *model;
    struct rod_error err = {0};
    const int rc = model_open_either(&(struct model_choice){.dir = base, .adapter = dir}, NULL, &model, &err);
    if (!rc) model_close(model);
    if (rc != code || !strstr(err.message, says) || !strstr(err.message, also) || strcmp(err.param, "adapter"))
        fail_msg("code %d (expected %d) of %s, \"%s\" lacks \"%s\" or \"%s\"", rc, code, err.param, err.message, says,
                 also);
}

static void configurations_that_cannot_be_honoured_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *json;
        int code;
        const char *says, *also;
    } cases[] = {
        {"{\"peft_type\":", ROD_EMODEL, "adapter_config.json", "not valid JSON"},
        {"[]", ROD_EMODEL, "adapter_config.json", "not a JSON object"},
        {"{\"r\":3}", ROD_EUNSUPPORTED, "peft_type is missing", "only LORA"},
        {"{\"peft_type\":\"LOHA\"}", ROD_EUNSUPPORTED, "peft_type is \"LOHA\"", "only LORA"},
        {"{\"peft_type\":\"LORA\",\"r\":0}", ROD_EMODEL, "r is 0", "from 1"},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":0}", ROD_EMODEL, "lora_alpha is 0", "above 0"},
        {"{\"peft_type\":\"LORA\",\"lora_alpha\":\"x\"}", ROD_EMODEL, "lora_alpha is", "number"},
        {"{\"peft_type\":\"LORA\",\"bias\":\"all\"}", ROD_EUNSUPPORTED, "bias is \"all\"", "none"},
        {"{\"peft_type\":\"LORA\",\"use_dora\":true}", ROD_EUNSUPPORTED, "use_dora is true", "DoRA"},
        {"{\"peft_type\":\"LORA\",\"fan_in_fan_out\":true}", ROD_EUNSUPPORTED, "fan_in_fan_out", "stored"},
        {"{\"peft_type\":\"LORA\",\"use_rslora\":1}", ROD_EMODEL, "use_rslora is 1", "true or false"},
        {"{\"peft_type\":\"LORA\",\"modules_to_save\":[\"lm_head\"]}", ROD_EUNSUPPORTED, "modules_to_save", "lm_head"},
        {"{\"peft_type\":\"LORA\",\"init_lora_weights\":\"pissa\"}", ROD_EUNSUPPORTED, "init_lora_weights", "pissa"},
        {"{\"peft_type\":\"LORA\",\"lora_bias\":true}", ROD_EUNSUPPORTED, "lora_bias", "not known"},
        {"{\"peft_type\":\"LORA\",\"layer_replication\":[[0,2]]}", ROD_EUNSUPPORTED, "layer_replication", "not known"},
        {"{\"peft_type\":\"LORA\",\"rank_pattern\":{\".*q_proj\":2}}", ROD_EUNSUPPORTED, "rank_pattern", "regular"},
        {"{\"peft_type\":\"LORA\",\"rank_pattern\":{\"q_proj\":1.5}}", ROD_EMODEL, "rank_pattern", "integers"},
        {"{\"peft_type\":\"LORA\",\"alpha_pattern\":{\"q_proj\":-1}}", ROD_EMODEL, "alpha_pattern", "above 0"},
        {"{\"peft_type\":\"LORA\",\"alpha_pattern\":[1]}", ROD_EMODEL, "alpha_pattern", "object"},
        {"{\"peft_type\":\"LORA\",\"target_modules\":[]}", ROD_EMODEL, "target_modules", "list of names"},
        {"{\"peft_type\":\"LORA\",\"target_modules\":[1]}", ROD_EMODEL, "target_modules", "list of names"},
    };
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    expect_refusal(SMALL, dir, ROD_ENOTFOUND, "adapter_config.json", dir);
    struct model *base = open_base(SMALL);
    struct made_file made = adapter_make(base, DTYPE_F32, 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        adapter_write(dir, &made, cases[i].json);
        expect_refusal(SMALL, dir, cases[i].code, cases[i].says, cases[i].also);
    }
    made_free(&made);
    model_close(base);
    adapter_remove(dir);
}

/* Of rank 3; A's may be another. */
static struct made_file one_pair(enum dtype dtype, uint32_t rank_of_a) {
    struct made_file made = {0};
    adapter_add_half(&made, q_proj, 'A', dtype, rank_of_a, 128, 1);
    adapter_add_half(&made, q_proj, 'B', dtype, 128, 3, 1);
    return made;
}

/* The half goes, gets another name, or a third tensor has it ("+"). */
static void edit_pair(struct made_file *made, char half, const char *name) {
    if (half == '+') adapter_add_half(made, q_proj, 'A', DTYPE_F32, 3, 128, 2);
    struct made_tensor *t = &made->t[half == '+' ? 2 : half == 'B' ? 1 : 0];
    if (name) {
        snprintf(t->name, sizeof t->name, "%s", name);
        return;
    }
    free(t->data);
    if (half == 'A') made->t[0] = made->t[1];
    made->n = 1;
}

#define PLAIN "{\"peft_type\":\"LORA\",\"r\":3}"

static void tensors_that_have_no_place_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *half, *name; /* the half that gets this name, NULL: it goes */
        const char *config;
        uint64_t rows; /* of A, 0 = as they should be */
        int code;
        const char *says, *also;
    } cases[] = {
        {"A", NULL, PLAIN, 0, ROD_EMODEL, "attn.q_proj.lora_A.weight is missing", "other half"},
        {"B", NULL, PLAIN, 0, ROD_EMODEL, "attn.q_proj.lora_B.weight is missing", "other half"},
        {"A", "base_model.model.model.layers.9.attn.q_proj.lora_A.weight", PLAIN, 0, ROD_EMODEL, "lora_A", "missing"},
        {"+", "base_model.model.model.layers.9.attn.q_proj.lora_A.weight", PLAIN, 0, ROD_EMODEL, "layers.9",
         "not used"},
        {"+", "base_model.model.lm_head.lora_A.weight", PLAIN, 0, ROD_EMODEL, "lm_head", "not used"},
        {"+", "base_model.model.model.norm_f.lora_A.weight", PLAIN, 0, ROD_EMODEL, "norm_f", "not used"},
        {"+", "model.layers.0.attn.q_proj.lora_A.weight", PLAIN, 0, ROD_EMODEL, "layers.0", "not used"},
        {"+", "base_model.model.model.layers.1.attn.q_proj.lora_B.bias", PLAIN, 0, ROD_EMODEL, "bias", "not used"},
        {"+", "base_model.model.model.layers.1.attn.q_proj.lora_magnitude_vector", PLAIN, 0, ROD_EMODEL, "magnitude",
         "not used"},
        {"+", "base_model.model.model.embeddings.lora_embedding_A", PLAIN, 0, ROD_EUNSUPPORTED, "lora_embedding_A",
         "not supported"},
        {"+", "base_model.model.model.embeddings.lora_A.weight", PLAIN, 0, ROD_EUNSUPPORTED, "embeddings",
         "not supported"},
        {"A", "", PLAIN, 4, ROD_EMODEL, "lora_A.weight has shape [4, 128]", "call for [3, 128]"},
        {"A", "", "{\"peft_type\":\"LORA\",\"r\":4}", 0, ROD_EMODEL, "has shape [3, 128]", "call for [4, 128]"},
        {"A", "", "{\"peft_type\":\"LORA\",\"r\":3,\"target_modules\":[\"k_proj\"]}", 0, ROD_EMODEL, "q_proj",
         "target_modules does not name"},
        {"A", "", "{\"peft_type\":\"LORA\",\"r\":3,\"target_modules\":[\"proj\"]}", 0, ROD_EMODEL, "q_proj",
         "target_modules does not name"},
        {"A", "", "{\"peft_type\":\"LORA\",\"r\":3,\"target_modules\":[\"q_proj\",\"k_proj\"]}", 0, ROD_EMODEL,
         "target_modules names k_proj", "nothing of it"},
    };
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct made_file made = one_pair(DTYPE_F32, cases[i].rows ? 4 : 3);
        if (!cases[i].name || *cases[i].name) edit_pair(&made, *cases[i].half, cases[i].name);
        adapter_write(dir, &made, cases[i].config);
        expect_refusal(SMALL, dir, cases[i].code, cases[i].says, cases[i].also);
        made_free(&made);
    }
    adapter_remove(dir);
}

static void other_types_shapes_and_files_are_refused(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    made_text(dir, "adapter_config.json", PLAIN, strlen(PLAIN));
    expect_refusal(SMALL, dir, ROD_ENOTFOUND, "adapter_model.safetensors", dir);
    struct made_file made = one_pair(DTYPE_F16, 3);
    snprintf(made.t[0].dtype, sizeof made.t[0].dtype, "I16");
    adapter_write(dir, &made, PLAIN);
    expect_refusal(SMALL, dir, ROD_EMODEL, "q_proj.lora_A.weight has dtype I16", "F32, F16 or BF16");
    snprintf(made.t[0].dtype, sizeof made.t[0].dtype, "F16");
    made.t[0].n_dims = 3, made.t[0].shape[2] = 1;
    adapter_write(dir, &made, PLAIN);
    expect_refusal(SMALL, dir, ROD_EMODEL, "q_proj.lora_A.weight has shape [3, 128, 1]", "call for [3, 128]");
    made.t[0].n_dims = 2;
    adapter_write(dir, &made, "{\"peft_type\":\"LORA\",\"r\":3,\"target_modules\":[\"q_proj\",\"gate_up\"]}");
    expect_refusal(SMALL, dir, ROD_EMODEL, "target_modules names gate_up", "no such matrix");
    made_free(&made);
    adapter_write(dir, &made, PLAIN);
    expect_refusal(SMALL, dir, ROD_EMODEL, "adapter_model.safetensors", "holds no tensors");
    struct model *model;
    struct rod_error err;
    assert_int_equal(
        model_open_either(&(struct model_choice){.synthetic = "tales", .adapter = dir}, NULL, &model, &err),
        ROD_EINVALID);
    assert_string_equal(err.param, "adapter");
    adapter_remove(dir);
}

/* ---- beside other programs ---- */

struct peft {
    struct model *model;
    struct safetensors *expected;
    float x[256];
    unsigned n;
};

static int check_merged(void *arg, const struct model_piece *piece) {
    struct peft *p = arg;
    struct rod_error err;
    char module[96];
    const struct weight_part *part = &model_piece_weight(p->model, piece)->part[piece->part];
    snprintf(module, sizeof module, "%.*s", (int)(strlen(piece->name) - strlen(".weight")), piece->name);
    const struct safetensors_tensor *t = safetensors_find(p->expected, module);
    if (!t) {
        assert_null(part->delta);
        return 0;
    }
    assert_non_null(part->delta);
    float *y = malloc(sizeof *y * piece->rows), *w = malloc(sizeof *w * piece->cols);
    assert_int_equal(safetensors_read_f32(p->expected, t, y, &err), 0);
    for (uint32_t r = 0; r < piece->rows; r++) {
        double sum = 0, absolute = 0;
        weight_part_to_f32(part, (size_t)r * piece->cols, piece->cols, w);
        for (uint32_t c = 0; c < piece->cols; c++) {
            sum += (double)w[c] * (double)p->x[c];
            absolute += fabs((double)w[c] * (double)p->x[c]);
        }
        if (fabs(sum - (double)y[r]) > 1e-6 * absolute)
            fail_msg("row %u of %s times x is %.9g, PEFT merges to %.9g", r, module, sum, (double)y[r]);
    }
    free(y), free(w);
    p->n++;
    return 0;
}

static void an_adapter_that_peft_saved_is_merged_as_peft_does(void **state) {
    (void)state;
    struct peft p = {0};
    struct rod_error err;
    const struct model_choice choice = {.dir = "tests/vectors/rodimus-small", .adapter = "tests/adapters/peft"};
    if (model_open_either(&choice, NULL, &p.model, &err)) fail_msg("%s", err.message);
    if (safetensors_open("tests/adapters/peft/expected.safetensors", &p.expected, &err)) fail_msg("%s", err.message);
    assert_int_equal(safetensors_read_f32(p.expected, safetensors_find(p.expected, "x"), p.x, &err), 0);
    model_plan(&p.model->dims, false, check_merged, &p);
    assert_int_equal(p.n, 3 * p.model->dims.L); /* W_fc, W_in, W_o */
    safetensors_close(p.expected);
    model_close(p.model);
}

static void an_adapter_over_codes_is_refused_by_the_name_of_the_module(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    struct model *wide, *m;
    struct rod_error err = {0};
    if (model_open_either(&(struct model_choice){.dir = "tests/quantised/ct-int8"}, NULL, &wide, &err))
        fail_msg("%s", err.message);
    struct made_file made = adapter_make(wide, DTYPE_F32, 3);
    adapter_write(dir, &made, ADAPTER_CONFIG);
    assert_int_equal(
        model_open_either(&(struct model_choice){.dir = "tests/quantised/ct-int8", .adapter = dir}, NULL, &m, &err),
        ROD_EUNSUPPORTED);
    if (!strstr(err.message, "mixer.fc of the model is stored in int8")) fail_msg("%s", err.message);
    assert_string_equal(err.param, "adapter");
    made_free(&made);
    model_close(wide);
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    for (int i = 0; i < 2; i++) {
        char path[128];
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_adapter_is_added_and_rounded_once),
        cmocka_unit_test(a_fingerprint_is_of_the_adapter_too),
        cmocka_unit_test(configurations_that_cannot_be_honoured_are_refused_by_name),
        cmocka_unit_test(tensors_that_have_no_place_are_refused_by_name),
        cmocka_unit_test(other_types_shapes_and_files_are_refused),
        cmocka_unit_test(an_adapter_that_peft_saved_is_merged_as_peft_does),
        cmocka_unit_test(an_adapter_over_codes_is_refused_by_the_name_of_the_module),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
