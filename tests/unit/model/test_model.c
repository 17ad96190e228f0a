/* test_model.c - checkpoints on disk, made here from the vectors: whole, sharded, and each kind of broken. */
#include "engine/model/model_internal.h"
#include "engine/model/safetensors.h"
#include "engine/text/tokenizer.h"
#include "tests/read_file.h"
#include "tests/count_params.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define SMALL "tests/vectors/rodimus-plus-small"

/* ---- helpers ---- */

static void write_text(const char *dir, const char *file, const void *bytes, size_t n) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(bytes, 1, n, to), n);
    assert_int_equal(fclose(to), 0);
}

static void remove_files(const char *dir, const char *const *files) {
    char path[256];
    for (; *files; files++) {
        snprintf(path, sizeof path, "%s/%s", dir, *files);
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}
static const char *const checkpoint_files[] = {"config.json",
                                               "generation_config.json",
                                               "model.safetensors",
                                               "model.safetensors.index.json",
                                               "m-1.safetensors",
                                               "m-2.safetensors",
                                               "pytorch_model.bin",
                                               "tokenizer.json",
                                               NULL};

static struct model *open_good(const char *dir) {
    struct model *model;
    struct rod_error err;
    if (model_open(dir, NULL, NULL, &model, &err)) fail_msg("%s: %s", dir, err.message);
    return model;
}

static void expect_refusal(const char *dir, int code, const char *says, const char *also) {
    struct model *model;
    struct rod_error err = {0};
    int rc = model_open(dir, NULL, NULL, &model, &err);
    if (rc != code || !strstr(err.message, says) || !strstr(err.message, also))
        fail_msg("code %d (expected %d), \"%s\" lacks \"%s\" or \"%s\"", rc, code, err.message, says, also);
}

/* The old file goes first: it may be no plain file. */
static void copy_checkpoint_file(const char *from, const char *dir, const char *file) {
    size_t n;
    char path[256], *text = read_file_in(from, file, &n);
    snprintf(path, sizeof path, "%s/%s", dir, file);
    unlink(path);
    write_text(dir, file, text, n);
    free(text);
}

/* A writable copy of a vector's checkpoint. */
static void copy_checkpoint(const char *from, const char *dir) {
    copy_checkpoint_file(from, dir, "config.json");
    copy_checkpoint_file(from, dir, "model.safetensors");
}

/* config.json of dir with one text replaced by another. */
static void edit_config(const char *dir, const char *old, const char *new) {
    size_t n;
    char *text = read_file_in(dir, "config.json", &n), *at = strstr(text, old);
    if (!at) fail_msg("no %s in the config", old);
    char *edited = malloc(n + strlen(new) + 1);
    int len = snprintf(edited, n + strlen(new) + 1, "%.*s%s%s", (int)(at - text), text, new, at + strlen(old));
    write_text(dir, "config.json", edited, (size_t)len);
    free(edited);
    free(text);
}

/* Writes the tensors of src for which pick answers true as a safetensors file; names may be changed by the picker. */
static void write_tensors(const char *dir, const char *file, const struct safetensors *src,
                          bool (*pick)(const char *name, size_t i)) {
    json_t *header = json_object();
    size_t n_data = 0;
    unsigned char *data = malloc((size_t)src->n_bytes);
    for (size_t i = 0; i < src->table.n_tensors; i++) {
        const struct safetensors_tensor *t = &src->table.tensors[i];
        if (!pick(t->name, i)) continue;
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->n_dims; d++) json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s,s:o,s:[I,I]}", "dtype", t->dtype_name, "shape", shape, "data_offsets",
                                      (json_int_t)n_data, (json_int_t)(n_data + t->n_bytes)));
        memcpy(data + n_data, safetensors_data(src, t), (size_t)t->n_bytes);
        n_data += (size_t)t->n_bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    size_t n_header = strlen(text);
    unsigned char *bytes = malloc(8 + n_header + n_data);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)n_header >> (8 * i));
    memcpy(bytes + 8, text, n_header);
    memcpy(bytes + 8 + n_header, data, n_data);
    write_text(dir, file, bytes, 8 + n_header + n_data);
    free(bytes);
    free(text);
    free(data);
}
static bool pick_even(const char *name, size_t i) { return (void)name, i % 2 == 0; }
static bool pick_odd(const char *name, size_t i) { return (void)name, i % 2 == 1; }
static bool pick_all(const char *name, size_t i) { return (void)name, (void)i, true; }
static bool pick_without_act_norm(const char *name, size_t i) {
    return (void)i, !strstr(name, "layers.1.mixer.act_norm");
}

/* ---- checkpoints ---- */

static void every_vector_opens_whole(void **state) {
    (void)state;
    static const struct {
        const char *dir;
        enum dtype dtype;
    } sets[] = {{"tests/vectors/fla-rodimus-plus-small", DTYPE_F32},
                {"tests/vectors/fla-rodimus-small", DTYPE_F32},
                {"tests/vectors/rodimus-plus-extremes", DTYPE_F32},
                {"tests/vectors/rodimus-plus-headdim128", DTYPE_BF16},
                {"tests/vectors/rodimus-plus-options", DTYPE_F16},
                {"tests/vectors/rodimus-plus-short", DTYPE_F32},
                {"tests/vectors/rodimus-plus-small", DTYPE_BF16},
                {"tests/vectors/rodimus-small", DTYPE_F32},
                {"config/models/skills", DTYPE_BF16},
                {"config/models/tales", DTYPE_BF16}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        struct model *m = open_good(sets[i].dir);
        assert_int_equal(m->weight_dtype, sets[i].dtype);
        assert_string_equal(m->name, strrchr(sets[i].dir, '/') + 1);
        assert_int_equal(m->n_params, count_params(&m->dims));
        assert_int_equal(m->weight_bytes, m->n_params * dtype_bytes(m->weight_dtype));
        assert_int_equal(m->n_warnings, 0); /* also where a tied head is stored: it equals the embedding */
        assert_int_equal(m->embed.rows, m->dims.V);
        assert_int_equal(m->lm_head.rows, m->dims.V);
        assert_int_equal(m->layers[m->dims.L - 1].fc.rows, 2 * m->dims.E);
        assert_int_equal(m->layers[0].conv.cols, m->dims.K);
        assert_int_equal(m->layers[0].q.n_parts, m->dims.plus ? 1 : 0);
        assert_true(m->created_unix_s > 0);
        model_close(m);
    }
    struct model *tales = open_good("config/models/tales/");
    assert_string_equal(tales->name, "tales");
    assert_int_equal(tales->n_params, 7185920);
    assert_true(tales->sampling.temperature == 0.8f && tales->sampling.top_p == 0.95f);
    assert_true(tales->sampling.min_p == 0 && tales->sampling.typical_p == 1 &&
                tales->sampling.repetition_penalty == 1);
    assert_int_equal(tales->n_eos_ids, 1);
    assert_int_equal(tales->eos_ids[0], 1);
    model_close(tales);
    struct model *skills = open_good("config/models/skills");
    assert_int_equal(skills->n_params, 11578816);
    assert_int_equal(skills->dims.visible, 1025);
    assert_true(skills->weight_bytes <= 24000000); /* each clone carries it */
    assert_int_equal(skills->n_eos_ids, 1);
    model_close(skills);
}

/* The FLA halves, stacked, are the first and last rows. */
static void two_piece_weights_stack_in_order(void **state) {
    (void)state;
    const char *dir = "tests/vectors/fla-rodimus-small";
    struct model *m = open_good(dir);
    struct safetensors *st;
    struct rod_error err;
    assert_int_equal(safetensors_open("tests/vectors/fla-rodimus-small/model.safetensors", &st, &err), 0);
    const struct weight *fc = &m->layers[1].fc, *bias = &m->layers[1].mem_gate_b;
    assert_int_equal(fc->n_parts, 2);
    float *whole = malloc((size_t)fc->rows * fc->cols * sizeof *whole);
    weight_to_f32(fc, whole);
    size_t half = (size_t)m->dims.E * m->dims.D;
    assert_memory_equal(whole, safetensors_data(st, safetensors_find(st, "model.layers.1.mixer.up_proj.weight")),
                        half * 4);
    assert_memory_equal(whole + half,
                        safetensors_data(st, safetensors_find(st, "model.layers.1.mixer.gate_proj.weight")), half * 4);
    assert_int_equal(bias->rows * bias->cols, 2 * m->dims.M);
    weight_to_f32(bias, whole);
    assert_memory_equal(whole, safetensors_data(st, safetensors_find(st, "model.layers.1.mixer.g_gate_proj.bias")),
                        m->dims.M * 4);
    assert_memory_equal(whole + m->dims.M,
                        safetensors_data(st, safetensors_find(st, "model.layers.1.mixer.tau_gate_proj.bias")),
                        m->dims.M * 4);
    free(whole);
    safetensors_close(st);
    model_close(m);
}

static void faults_of_a_checkpoint_name_tensor_file_and_shape(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    expect_refusal(dir, ROD_ENOTFOUND, "config.json", dir);
    copy_checkpoint(SMALL, dir);
    model_close(open_good(dir));

    edit_config(dir, "\"mem_size\": 32", "\"mem_size\": 31");
    expect_refusal(dir, ROD_EMODEL, "model.layers.0.mixer.inner_mixer.in_proj.weight in",
                   "has shape [64, 256], config.json calls for [62, 256]");
    edit_config(dir, "\"mem_size\": 31", "\"mem_size\": 32");
    edit_config(dir, "\"n_layer\": 2", "\"n_layer\": 3");
    expect_refusal(dir, ROD_EMODEL, "model.layers.2.mixer_norm.weight of shape [128] is missing", "model.safetensors");
    edit_config(dir, "\"n_layer\": 3", "\"n_layer\": 1");
    struct model *m = open_good(dir);
    assert_int_equal(m->n_warnings, 1);
    assert_non_null(
        strstr(m->warnings[0], "21 tensors are in the files that this model does not use, model.layers.1."));
    model_close(m);
    edit_config(dir, "\"n_layer\": 1", "\"n_layer\": 2");
    edit_config(dir, "\"bfloat16\"", "\"float32\"");
    m = open_good(dir);
    assert_int_equal(m->n_warnings, 1);
    assert_string_equal(m->warnings[0],
                        "config.json says torch_dtype float32, the weights are bf16; the weights count");
    model_close(m);

    struct safetensors *st;
    struct rod_error err;
    assert_int_equal(safetensors_open(SMALL "/model.safetensors", &st, &err), 0);
    write_tensors(dir, "model.safetensors", st, pick_without_act_norm);
    safetensors_close(st);
    expect_refusal(dir, ROD_EMODEL, "model.layers.1.mixer.act_norm.weight of shape [256] is missing",
                   "/model.safetensors");

    write_text(dir, "generation_config.json", "{\"top_p\":7}", 11);
    copy_checkpoint(SMALL, dir);
    expect_refusal(dir, ROD_EMODEL, "generation_config.json", "top_p");
    write_text(dir, "config.json", "{\"d_model\":", 11);
    expect_refusal(dir, ROD_EMODEL, "config.json", "not valid JSON");
    remove_files(dir, checkpoint_files);
}

/* Renames one tensor of a checkpoint to a name of the same length, in the header's text. */
static void rename_tensor(const char *dir, const char *old, const char *new) {
    size_t n, len = strlen(old);
    assert_int_equal(len, strlen(new));
    char *bytes = read_file_in(dir, "model.safetensors", &n);
    char *at = memmem(bytes, n, old, len);
    assert_non_null(at);
    memcpy(at, new, len);
    write_text(dir, "model.safetensors", bytes, n);
    free(bytes);
}

static void weights_that_the_configuration_leaves_out_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *set, *old_key, *new_key, *tensor;
    } cases[] = {
        {"fla-rodimus-plus-small", "\"qk_norm\": true", "\"qk_norm\": false", "model.layers.0.ska_attn.q_norm.weight"},
        {"rodimus-plus-options", "\"use_norm_embedding\": true", "\"use_norm_embedding\": false",
         "model.embed_norm.weight"},
        {"rodimus-plus-small", "\"rodimus_plus\"", "\"rodimus\"", "model.layers.0.attn_norm.weight"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char dir[] = "/tmp/rodimus-test-XXXXXX", from[64];
        assert_non_null(mkdtemp(dir));
        snprintf(from, sizeof from, "tests/vectors/%s", cases[i].set);
        copy_checkpoint(from, dir);
        model_close(open_good(dir));
        edit_config(dir, cases[i].old_key, cases[i].new_key);
        expect_refusal(dir, ROD_EMODEL, cases[i].tensor, "results would differ");
        remove_files(dir, checkpoint_files);
    }
}

/* The second layer's query projection becomes a bias, of the right length or not: its name is enough. What is no
 * weight's name, as the buffers that a cache leaves, is only told. */
static void a_bias_where_there_is_none_is_refused(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    copy_checkpoint(SMALL, dir);
    edit_config(dir, "\"n_layer\": 2", "\"n_layer\": 1");
    static const struct {
        const char *old, *new;
        bool refused;
    } cases[] = {
        {"model.layers.1.mixer.fc.weight", "model.layers.0.mixer.fc.kept__", false},
        {"model.layers.1.attn.k_proj.weight", "model.layers.0.attn.key_cache__00", false},
        {"model.layers.1.attn.q_proj.weight", "model.layers.0.attn.out_proj.bias", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rename_tensor(dir, cases[i].old, cases[i].new);
        if (cases[i].refused)
            expect_refusal(dir, ROD_EMODEL, cases[i].new, "results would differ");
        else
            model_close(open_good(dir));
    }
    remove_files(dir, checkpoint_files);
}

/* The model of the test above. The tensor that becomes the bias has only zeros, of either sign, or one number that is
 * not zero. */
static void a_bias_of_zeros_changes_nothing_and_is_read(void **state) {
    (void)state;
    static const char old[] = "model.layers.1.attn.q_proj.weight", new[] = "model.layers.0.attn.out_proj.bias";
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    struct safetensors *st;
    struct rod_error err;
    size_t n;
    assert_non_null(mkdtemp(dir));
    copy_checkpoint(SMALL, dir);
    edit_config(dir, "\"n_layer\": 2", "\"n_layer\": 1");
    assert_int_equal(safetensors_open(SMALL "/model.safetensors", &st, &err), 0);
    const struct safetensors_tensor t = *safetensors_find(st, old);
    safetensors_close(st);
    rename_tensor(dir, old, new);
    char *bytes = read_file_in(dir, "model.safetensors", &n);
    for (uint64_t i = 0; i < t.n_bytes; i++) bytes[t.first_byte + i] = (char)(i % 4 == 1 ? 0x80 : 0); /* bf16 */
    write_text(dir, "model.safetensors", bytes, n);
    struct model *m = open_good(dir);
    for (uint32_t i = 0; i < m->n_warnings; i++) assert_null(strstr(m->warnings[i], ".bias"));
    model_close(m);
    bytes[t.first_byte + t.n_bytes - 2] = 1;
    write_text(dir, "model.safetensors", bytes, n);
    expect_refusal(dir, ROD_EMODEL, new, "results would differ");
    free(bytes);
    remove_files(dir, checkpoint_files);
}

static void replace_by_fifo(const char *dir, const char *file) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
}

/* Nobody writes into these: a reader that waits would wait for ever, and the alarm ends the test. */
static void pipes_and_directories_are_refused_at_once(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX", path[64];
    struct tokenizer *tokenizer;
    struct rod_error err = {0};
    alarm(20);
    assert_non_null(mkdtemp(dir));
    copy_checkpoint(SMALL, dir);
    replace_by_fifo(dir, "config.json");
    expect_refusal(dir, ROD_EMODEL, "config.json", "not a regular file");
    copy_checkpoint_file(SMALL, dir, "config.json");
    replace_by_fifo(dir, "model.safetensors");
    expect_refusal(dir, ROD_EMODEL, "model.safetensors", "not a regular file");
    replace_by_fifo(dir, "tokenizer.json");
    assert_int_equal(tokenizer_open(dir, &tokenizer, &err), ROD_EMODEL);
    if (!strstr(err.message, "tokenizer.json: not a regular file")) fail_msg("%s", err.message);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(tokenizer_open(dir, &tokenizer, &err), ROD_EMODEL);
    if (!strstr(err.message, "tokenizer.json: not a regular file")) fail_msg("%s", err.message);
    rmdir(path);
    alarm(0);
    remove_files(dir, checkpoint_files);
}

static void a_pickle_alone_is_explained(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    copy_checkpoint(SMALL, dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    write_text(dir, "pytorch_model.bin", "x", 1);
    expect_refusal(dir, ROD_ENOTFOUND, "neither model.safetensors nor", "pytorch_model.bin is not read");
    remove_files(dir, checkpoint_files);
}

static void tensors_of_a_wrong_type_are_refused(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    copy_checkpoint(SMALL, dir);
    size_t n;
    char *bytes = read_file_in(dir, "model.safetensors", &n);
    /* BF16 -> I16 is as long; the two blanks that remain keep the header's length */
    for (size_t i = 8; i + 6 < 5000; i++)
        if (!memcmp(bytes + i, "\"BF16\"", 6)) memcpy(bytes + i, "\"I16\" ", 6);
    write_text(dir, "model.safetensors", bytes, n);
    free(bytes);
    expect_refusal(dir, ROD_EMODEL, "model.embeddings.weight in", "has dtype I16, weights must be F32, F16 or BF16");
    remove_files(dir, checkpoint_files);
}

static void a_stored_tied_head_is_compared(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    copy_checkpoint("tests/vectors/rodimus-plus-extremes", dir);
    size_t n;
    char *bytes = read_file_in(dir, "model.safetensors", &n);
    struct safetensors *st;
    struct rod_error err;
    assert_int_equal(safetensors_open("tests/vectors/rodimus-plus-extremes/model.safetensors", &st, &err), 0);
    const struct safetensors_tensor *head = safetensors_find(st, "lm_head.weight");
    bytes[head->first_byte + head->n_bytes - 2] ^= 1;
    safetensors_close(st);
    write_text(dir, "model.safetensors", bytes, n);
    free(bytes);
    struct model *m = open_good(dir);
    assert_int_equal(m->n_warnings, 1);
    assert_non_null(strstr(m->warnings[0], "lm_head.weight"));
    assert_ptr_equal(m->lm_head.part[0].data, m->embed.part[0].data);
    model_close(m);
    remove_files(dir, checkpoint_files);
}

static void write_index(const char *dir, const struct safetensors *st, const char *even, const char *odd) {
    json_t *map = json_object();
    for (size_t i = 0; i < st->table.n_tensors; i++)
        json_object_set_new(map, st->table.tensors[i].name, json_string(i % 2 ? odd : even));
    json_t *root = json_pack("{s:{s:i},s:o}", "metadata", "total_size", 5, "weight_map", map);
    char *text = json_dumps(root, 0);
    write_text(dir, "model.safetensors.index.json", text, strlen(text));
    free(text);
    json_decref(root);
}

/* The small checkpoint in a new folder, as m-1 and m-2.safetensors with an index; returns what they are made of. */
static struct safetensors *make_two_shards(char *dir) {
    char path[64];
    assert_non_null(mkdtemp(dir));
    copy_checkpoint(SMALL, dir);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    struct safetensors *st;
    struct rod_error err;
    assert_int_equal(safetensors_open(SMALL "/model.safetensors", &st, &err), 0);
    write_tensors(dir, "m-1.safetensors", st, pick_even);
    write_tensors(dir, "m-2.safetensors", st, pick_odd);
    write_index(dir, st, "m-1.safetensors", "m-2.safetensors");
    return st;
}

static void shards_are_one_model_and_their_faults_are_named(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    struct safetensors *st = make_two_shards(dir);

    struct model *m = open_good(dir), *single = open_good(SMALL);
    assert_int_equal(m->n_tensors, single->n_tensors);
    assert_memory_equal(m->fingerprint, single->fingerprint, sizeof m->fingerprint);
    size_t n = (size_t)m->dims.V * m->dims.D * 2;
    assert_memory_equal(m->embed.part[0].data, single->embed.part[0].data, n);
    assert_memory_equal(m->layers[1].f2.part[0].data, single->layers[1].f2.part[0].data,
                        (size_t)m->dims.D * m->dims.F * 2);
    model_close(m);
    model_close(single);

    write_index(dir, st, "m-2.safetensors", "m-2.safetensors");
    expect_refusal(dir, ROD_EMODEL, "model.embeddings.weight is missing from shard m-2.safetensors", "");
    write_index(dir, st, "m-2.safetensors", "m-1.safetensors");
    expect_refusal(dir, ROD_EMODEL,
                   "model.embeddings.weight is in shard m-1.safetensors, the index says m-2.safetensors", "");
    write_index(dir, st, "m-1.safetensors", "m-3.safetensors");
    expect_refusal(dir, ROD_ENOTFOUND, "m-3.safetensors", "No such file");
    write_index(dir, st, "m-1.safetensors",
                ".."
                "/m-2.safetensors");
    expect_refusal(dir, ROD_EMODEL, "not a plain .safetensors file name", "");
    write_index(dir, st, "m-1.safetensors", "m-2.safetensors");
    write_tensors(dir, "m-2.safetensors", st, pick_all);
    expect_refusal(dir, ROD_EMODEL, "is in two shards", "m-1.safetensors");
    safetensors_close(st);
    remove_files(dir, checkpoint_files);
}

static void a_tensor_that_the_index_omits_is_used_with_a_warning(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX", path[64];
    safetensors_close(make_two_shards(dir));
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    json_t *root = json_load_file(path, 0, NULL);
    json_t *map = json_object_get(root, "weight_map");
    assert_int_equal(json_object_del(map, "model.layers.1.mixer.act_norm.weight"), 0);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    struct model *m = open_good(dir);
    assert_int_equal(m->n_warnings, 1);
    assert_string_equal(m->warnings[0], "1 tensor of the shards is not in model.safetensors.index.json and is read all "
                                        "the same, model.layers.1.mixer.act_norm.weight first");
    model_close(m);
    assert_int_equal(json_object_del(map, "model.layers.0.mixer.act_norm.weight"), 0);
    assert_int_equal(json_dump_file(root, path, 0), 0);
    m = open_good(dir);
    assert_int_equal(m->n_warnings, 1);
    if (!strstr(m->warnings[0], "2 tensors of the shards are not in")) fail_msg("%s", m->warnings[0]);
    if (!strstr(m->warnings[0], "model.layers.0.mixer.act_norm.weight first")) fail_msg("%s", m->warnings[0]);
    model_close(m);
    json_decref(root);
    remove_files(dir, checkpoint_files);
}

static void expect_fingerprint(const char *dir, bool same, const uint8_t before[MODEL_FINGERPRINT_BYTES]) {
    struct model *m = open_good(dir);
    if (same != !memcmp(m->fingerprint, before, MODEL_FINGERPRINT_BYTES))
        fail_msg("the fingerprint is %s", same ? "another one" : "the same");
    model_close(m);
}

/* Another configuration, tokenizer or tensor is another model; defaults of requests, file names and paths are not. */
static void a_fingerprint_is_of_what_gives_the_results(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX", path[64];
    uint8_t before[MODEL_FINGERPRINT_BYTES];
    size_t n;
    assert_non_null(mkdtemp(dir));
    copy_checkpoint(SMALL, dir);
    struct model *m = open_good(SMALL);
    memcpy(before, m->fingerprint, sizeof before);
    model_close(m);
    expect_fingerprint(dir, true, before);
    write_text(dir, "generation_config.json", "{\"temperature\":0.5}", 19);
    expect_fingerprint(dir, true, before);
    write_text(dir, "tokenizer.json", "{}", 2);
    expect_fingerprint(dir, false, before);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    unlink(path);
    edit_config(dir, "{", "{ ");
    expect_fingerprint(dir, false, before);
    copy_checkpoint(SMALL, dir);
    expect_fingerprint(dir, true, before);

    struct safetensors *st;
    struct rod_error err;
    assert_int_equal(safetensors_open(SMALL "/model.safetensors", &st, &err), 0);
    char *bytes = read_file_in(dir, "model.safetensors", &n);
    for (size_t i = 0; i < st->table.n_tensors; i++) {
        const struct safetensors_tensor *t = &st->table.tensors[i];
        char *last = &bytes[t->first_byte + t->n_bytes - 2];
        *last ^= 1;
        write_text(dir, "model.safetensors", bytes, n);
        expect_fingerprint(dir, false, before);
        *last ^= 1;
    }
    write_text(dir, "model.safetensors", bytes, n);
    expect_fingerprint(dir, true, before);
    free(bytes);
    safetensors_close(st);
    remove_files(dir, checkpoint_files);
}

static void end_tokens_of_both_files_are_joined(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    copy_checkpoint(SMALL, dir);
    const char *json = "{\"eos_token_id\":[7,1,9],\"temperature\":0.5}";
    write_text(dir, "generation_config.json", json, strlen(json));
    struct model *m = open_good(dir);
    assert_int_equal(m->n_eos_ids, 3);
    assert_int_equal(m->eos_ids[0], 1);
    assert_int_equal(m->eos_ids[1], 7);
    assert_int_equal(m->eos_ids[2], 9);
    assert_int_equal(m->dims.eos_id, 1);
    assert_true(m->sampling.temperature == 0.5f);
    model_close(m);
    remove_files(dir, checkpoint_files);
}

static void expect_ends(struct model *m, uint32_t n, uint32_t n_warnings, const char *says) {
    assert_int_equal(m->n_eos_ids, n);
    assert_int_equal(m->n_warnings, n_warnings);
    if (n_warnings && !strstr(m->warnings[0], says)) fail_msg("%s lacks %s", m->warnings[0], says);
    model_close(m);
}

static void end_tokens_of_three_files_are_joined_and_a_difference_is_told(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX";
    assert_non_null(mkdtemp(dir));
    copy_checkpoint(SMALL, dir); /* config.json: 1 */
    struct model *m = open_good(dir);
    model_check_tokenizer(m, 0, -1);
    expect_ends(m, 1, 0, "");
    m = open_good(dir);
    model_check_tokenizer(m, 10, 1);
    expect_ends(m, 1, 0, "");
    m = open_good(dir);
    model_check_tokenizer(m, 10, 6);
    assert_int_equal(m->eos_ids[1], 6);
    expect_ends(m, 2, 1, "eos_token_id of config.json is 1; eos_token of tokenizer_config.json is 6");
    m = open_good(dir);
    model_check_tokenizer(m, 10, MODEL_EOS_UNKNOWN);
    expect_ends(m, 1, 1, "is no token of tokenizer.json");
    const char *json = "{\"eos_token_id\":[2,3,4,5,6,7,8,9]}";
    write_text(dir, "generation_config.json", json, strlen(json));
    m = open_good(dir);
    model_check_tokenizer(m, 20, 19);
    assert_int_equal(m->eos_ids[9], 19);
    expect_ends(m, 10, 1, "eos_token_id of generation_config.json is 2, 3, 4, 5, 6, 7, 8, 9; eos_token of");
    edit_config(dir, "\"eos_token_id\": 1", "\"eos_token_id\": [9,2,3,4,5,6,7,8]");
    m = open_good(dir);
    model_check_tokenizer(m, 0, -1);
    expect_ends(m, 8, 0, ""); /* the same in another order */
    remove_files(dir, checkpoint_files);
}

static void a_file_beside_an_index_is_read_and_told(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    copy_checkpoint(SMALL, dir);
    write_text(dir, "model.safetensors.index.json", "{", 1); /* it is not looked at */
    struct model *m = open_good(dir);
    assert_int_equal(m->n_warnings, 1);
    assert_non_null(strstr(m->warnings[0], "model.safetensors is read; model.safetensors.index.json beside it"));
    model_close(m);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    unlink(path);
    assert_int_equal(symlink("nothing", path), 0);
    m = open_good(dir);
    assert_int_equal(m->n_warnings, 1); /* a link to nothing is told too */
    model_close(m);
    /* a link that leads nowhere is no reason to take the index */
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    assert_int_equal(symlink("nothing", path), 0);
    expect_refusal(dir, ROD_EIO, "model.safetensors", "No such file");
    remove_files(dir, checkpoint_files);
}

/* Matrices of a layer that may be in fewer bits: their weights, rows and groups of 128 columns. */
static void add_product(uint64_t n[3], uint64_t rows, uint64_t cols) {
    n[0] += rows * cols;
    n[1] += rows;
    n[2] += rows * ((cols + 127) / 128);
}

static void a_step_reads_codes_and_scales_of_what_is_kept_in_fewer_bits(void **state) {
    (void)state;
    static const char *const dirs[] = {"config/models/tales", "tests/vectors/fla-rodimus-plus-small",
                                       "tests/vectors/rodimus-small"};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        struct model *m;
        struct rod_error err;
        if (model_open(dirs[i], NULL, NULL, &m, &err)) fail_msg("%s", err.message);
        const struct model_dims *d = &m->dims;
        const uint64_t size = dtype_bytes(m->weight_dtype), head = (uint64_t)d->V * d->D;
        uint64_t n[3] = {0};
        for (uint32_t l = 0; l < d->L; l++) {
            add_product(n, 2 * d->E, d->D), add_product(n, d->D, d->E);
            if (!d->plus) continue;
            add_product(n, (d->H + d->Hk + d->Hv) * d->P, d->D), add_product(n, d->D, d->H * d->P);
            add_product(n, 2 * d->F, d->D), add_product(n, d->D, d->F);
        }
        const uint64_t wide = m->weight_bytes - (n[0] + head) * size, head8 = head + 4 * d->V;
        assert_int_equal(model_step_bytes(m), m->weight_bytes);
        m->weights = WEIGHT_INT8;
        assert_int_equal(model_step_bytes(m), wide + head8 + n[0] + 4 * n[1]);
        m->weights = WEIGHT_INT4;
        assert_int_equal(model_step_bytes(m), wide + head8 + n[0] / 2 + 4 * n[2]);
        model_close(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_vector_opens_whole),
        cmocka_unit_test(two_piece_weights_stack_in_order),
        cmocka_unit_test(faults_of_a_checkpoint_name_tensor_file_and_shape),
        cmocka_unit_test(weights_that_the_configuration_leaves_out_are_refused),
        cmocka_unit_test(a_bias_where_there_is_none_is_refused),
        cmocka_unit_test(a_bias_of_zeros_changes_nothing_and_is_read),
        cmocka_unit_test(pipes_and_directories_are_refused_at_once),
        cmocka_unit_test(a_pickle_alone_is_explained),
        cmocka_unit_test(tensors_of_a_wrong_type_are_refused),
        cmocka_unit_test(a_stored_tied_head_is_compared),
        cmocka_unit_test(shards_are_one_model_and_their_faults_are_named),
        cmocka_unit_test(a_tensor_that_the_index_omits_is_used_with_a_warning),
        cmocka_unit_test(a_fingerprint_is_of_what_gives_the_results),
        cmocka_unit_test(end_tokens_of_both_files_are_joined),
        cmocka_unit_test(end_tokens_of_three_files_are_joined_and_a_difference_is_told),
        cmocka_unit_test(a_file_beside_an_index_is_read_and_told),
        cmocka_unit_test(a_step_reads_codes_and_scales_of_what_is_kept_in_fewer_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
