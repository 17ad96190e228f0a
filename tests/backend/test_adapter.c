/* test_adapter.c - an engine with an adapter answers, to the bit, as one of a checkpoint in which the merged weights
 * are stored, and neither it nor the base model goes on from the other's states. On the device that RODIMUS_TEST_DEVICE
 * names, the CPU without it. */
#include "tests/adapter_files.h"
#include "tests/read_file.h"
#include "tests/sessions_setup.h"

#define TALES "config/models/tales"

static const int32_t prompt[] = {300, 301, 412, 517, 622, 9, 31, 700, 701, 702, 44};
enum { N_PROMPT = sizeof prompt / sizeof *prompt };

static void begin(struct collector *c, const char *model, const char *adapter, const char *state_dir) {
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    struct rod_engine_config config = {.model_dir = model,
                                       .adapter_dir = adapter,
                                       .device = device ? device : "cpu",
                                       .n_slots = 2,
                                       .n_threads = 2,
                                       .max_queue = 10,
                                       .state_dir = state_dir,
                                       .state_host_bytes = 64u << 20};
    struct rod_error err;
    collect_init(c, &config);
    if (rod_engine_open(&config, &c->engine, &err)) fail_msg("%s", err.message);
}

/* A random adapter of tales. */
static char *make_adapter(enum dtype dtype, uint64_t seed) {
    char *dir = make_dir();
    struct model *base;
    struct rod_error err;
    if (model_open(TALES, NULL, NULL, &base, &err)) fail_msg("%s", err.message);
    struct made_file made = adapter_make(base, dtype, seed);
    adapter_write(dir, &made, ADAPTER_CONFIG);
    made_free(&made);
    model_close(base);
    return dir;
}

struct merged {
    struct model *model;
    struct made_file made;
};

static int store_piece(void *arg, const struct model_piece *piece) {
    struct merged *m = arg;
    const struct weight_part *part = &model_piece_weight(m->model, piece)->part[piece->part];
    const size_t n = (size_t)piece->rows * piece->cols;
    struct made_tensor *t = made_add(&m->made);
    assert_int_equal(part->dtype, DTYPE_BF16);
    snprintf(t->name, sizeof t->name, "%s", piece->name);
    snprintf(t->dtype, sizeof t->dtype, "BF16");
    t->n_dims = piece->n_dims;
    memcpy(t->shape, piece->shape, sizeof t->shape);
    t->n_bytes = n * 2;
    t->data = malloc(t->n_bytes);
    weight_part_copy(part, 0, n, t->data);
    return 0;
}

static char *make_merged(const char *adapter) {
    static const char *const files[] = {"config.json", "tokenizer.json", "generation_config.json",
                                        "tokenizer_config.json"};
    char *dir = make_dir();
    struct merged m = {0};
    struct rod_error err;
    if (model_open_either(&(struct model_choice){.dir = TALES, .adapter = adapter}, NULL, &m.model, &err))
        fail_msg("%s", err.message);
    model_plan(&m.model->dims, false, store_piece, &m);
    made_write(dir, "model.safetensors", &m.made);
    made_free(&m.made);
    model_close(m.model);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t n;
        char *text = read_file_in(TALES, files[i], &n);
        made_text(dir, files[i], text, n);
        free(text);
    }
    return dir;
}

static void ask(const char *model, const char *adapter, struct answer *a) {
    struct collector c;
    begin(&c, model, adapter, "");
    struct rod_request *r = collect_request(prompt, N_PROMPT, a);
    r->sampling.temperature = 0;
    r->max_tokens = 24;
    r->ignore_eos = true;
    r->n_logprobs = 1;
    collect_submit(&c, r);
    collect_until(&c, a, 1);
    if (a->failed) fail_msg("%s", a->end.error.message);
    assert_string_equal(rod_engine_info(c.engine)->adapter, adapter ? strrchr(adapter, '/') + 1 : "");
    collect_close(&c);
}

static void an_adapter_answers_as_its_merged_checkpoint(void **state) {
    (void)state;
    for (int dtype = DTYPE_F32; dtype <= DTYPE_BF16; dtype++) {
        char *adapter = make_adapter((enum dtype)dtype, 7), *merged = make_merged(adapter);
        struct answer base, with, want;
        ask(TALES, NULL, &base);
        ask(TALES, adapter, &with);
        ask(merged, NULL, &want);
        collect_assert_ids(&with, want.ids, want.n_ids, "beside the merged checkpoint");
        assert_memory_equal(with.logprobs, want.logprobs, want.n_ids * sizeof *want.logprobs);
        assert_memory_not_equal(with.logprobs, base.logprobs, sizeof *base.logprobs);
        collect_free(&base), collect_free(&with), collect_free(&want);
        remove_dir(adapter), remove_dir(merged);
    }
}

static void expect_turn(const char *adapter, const char *states, int code, uint64_t version) {
    struct collector c;
    struct answer a;
    begin(&c, TALES, adapter, states);
    assert_int_equal(stats_of(c.engine).state_refused, code ? 1 : 0);
    struct rod_request *r = turn_request(&a, "aa", prompt, N_PROMPT, 4);
    if (code) {
        turn_fails(&c, r, &a, code);
    } else {
        turn_ok(&c, r, &a);
        assert_int_equal(a.end.session_version, version);
        collect_free(&a);
    }
    collect_close(&c);
}

static void states_of_another_adapter_or_of_none_are_refused(void **state) {
    (void)state;
    char *one = make_adapter(DTYPE_F32, 1), *other = make_adapter(DTYPE_F32, 2);
    const struct { const char *whose, *refused[2]; } cases[] = {{NULL, {one, other}}, {one, {NULL, other}}};
    for (size_t i = 0; i < 2; i++) {
        char *states = make_dir();
        expect_turn(cases[i].whose, states, 0, 1);
        expect_turn(cases[i].refused[0], states, ROD_ESTATE, 0);
        expect_turn(cases[i].refused[1], states, ROD_ESTATE, 0);
        expect_turn(cases[i].whose, states, 0, 2);
        remove_dir(states);
    }
    remove_dir(one), remove_dir(other);
}

/* Like an export and its import between two engines. */
static void an_exported_state_of_the_base_model_is_refused(void **state) {
    (void)state;
    char *adapter = make_adapter(DTYPE_BF16, 3);
    struct collector base, adapted;
    struct answer a;
    struct rod_session_info info;
    struct rod_error err = {0};
    void *bytes;
    size_t n;
    begin(&base, TALES, NULL, "");
    begin(&adapted, TALES, adapter, "");
    turn_ok(&base, turn_request(&a, "aa", prompt, N_PROMPT, 4), &a);
    collect_free(&a);
    if (rod_session_export(base.engine, "", "aa", &bytes, &n, &err)) fail_msg("%s", err.message);
    assert_int_equal(rod_session_import(adapted.engine, "", "aa", bytes, n, &info, &err), ROD_ESTATE);
    assert_non_null(strstr(err.message, "foreign fingerprint"));
    free(bytes);
    collect_close(&base), collect_close(&adapted);
    remove_dir(adapter);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_adapter_answers_as_its_merged_checkpoint),
        cmocka_unit_test(states_of_another_adapter_or_of_none_are_refused),
        cmocka_unit_test(an_exported_state_of_the_base_model_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
