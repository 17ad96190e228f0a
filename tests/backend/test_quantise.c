/* test_quantise.c - directories that rodimus quantise writes: the bits of rounding at load, and what they cost by text
 * that was not used to make them. The first 2,000 tokens of it; all with RODIMUS_TEST_FULL=1. fp8 is read as numbers in
 * fp32: the CPU has no product of it. */
#include "engine/tools/tools.h"
#include "tests/held_out.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SOME_TOKENS = 2000, CALIBRATION_TOKENS = 4096 };

static const char *const files[] = {
    "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "text",
    NULL};

/* A new folder, with a part of the held-out tales as its text. */
static void make_folder(char *dir, const char *text, size_t n) {
    char path[300];
    snprintf(dir, sizeof "/tmp/rodimus-test-XXXXXX", "%s", "/tmp/rodimus-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
    if (!text) return;
    snprintf(path, sizeof path, "%s/text", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    fclose(f);
}

static void remove_folder(const char *dir) {
    char path[300];
    for (size_t i = 0; files[i]; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
}

static struct model *open_as(const char *dir, const char *weights) {
    struct model *m;
    struct rod_error err;
    if (model_open_either(&(struct model_choice){.dir = dir, .weights = weights}, NULL, &m, &err))
        fail_msg("%s: %s", dir, err.message);
    for (uint32_t i = 0; i < m->n_warnings; i++) fail_msg("%s: %s", dir, m->warnings[i]);
    return m;
}

static double perplexity_of(const char *dir, const char *weights, bool as_numbers, const int32_t *ids, size_t n) {
    struct model *m = open_as(dir, weights);
    const double p =
        perplexity(m, (struct backend_config){.device = "cpu", .precision = as_numbers ? "fp32" : "auto"}, ids, n);
    model_close(m);
    return p;
}

static char *read_tales(size_t *n) {
    FILE *f = fopen("config/models/tales/heldout.txt", "r");
    assert_non_null(f);
    char *text = malloc(1 << 20);
    assert_non_null(text);
    *n = fread(text, 1, 1 << 20, f);
    fclose(f);
    return text;
}

static int32_t *ids_of(const char *dir, const char *text, size_t len, size_t *n) {
    struct tokenizer *tokenizer;
    struct rod_error err;
    int32_t *ids;
    if (tokenizer_open(dir, &tokenizer, &err) || tokenizer_encode(tokenizer, text, len, true, &ids, n, &err))
        fail_msg("%s", err.message);
    tokenizer_close(tokenizer);
    if (!getenv("RODIMUS_TEST_FULL") && *n > SOME_TOKENS) *n = SOME_TOKENS;
    return ids;
}

static void text_is_nearly_as_likely_in_each_format(const char *model) {
    static const struct {
        const char *weights;
        bool calibrated;
        double bound;
    } formats[] = {{"int8", false, 0.003}, {"fp8", false, 0.003}, {"int4", false, 0.12}, {"int4", true, 0.04}};
    size_t n_text, n;
    char *text = read_tales(&n_text), folder[32], dir[64], calibrate[64];
    const size_t cut = n_text * 6 / 10;
    int32_t *ids = ids_of(model, text + cut, n_text - cut, &n);
    make_folder(folder, text, cut);
    snprintf(calibrate, sizeof calibrate, "%s/text", folder);
    const double want = perplexity_of(model, "auto", false, ids, n);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        make_folder(dir, NULL, 0);
        const bool fp8 = !strcmp(formats[i].weights, "fp8");
        const struct rod_quantise_options options = {.model_dir = model,
                                                     .out_dir = dir,
                                                     .weights = formats[i].weights,
                                                     .calibrate = formats[i].calibrated ? calibrate : NULL,
                                                     .n_tok = CALIBRATION_TOKENS};
        struct rod_error err;
        if (rod_quantise(&options, &err)) fail_msg("%s", err.message);
        const double got = perplexity_of(dir, "auto", fp8, ids, n);
        printf("note: %s, perplexity of %zu tokens: 16 bit %.4f, %s%s %.4f (%+.3f %%)\n", model, n, want,
               formats[i].weights, formats[i].calibrated ? " calibrated" : "", got, 100 * (got / want - 1));
        if (!(got / want - 1 <= formats[i].bound)) fail_msg("the bound is %+.3f %%", 100 * formats[i].bound);
        if (!formats[i].calibrated && !fp8) { /* the same bits as rounding at load */
            const double at_load = perplexity_of(model, formats[i].weights, false, ids, n);
            if (got != at_load)
                fail_msg("%s: %.17g from the directory, %.17g at load", formats[i].weights, got, at_load);
        }
        remove_folder(dir);
    }
    remove_folder(folder);
    free(ids);
    free(text);
}

static void tales_are_nearly_as_likely_in_each_format(void **state) {
    (void)state;
    text_is_nearly_as_likely_in_each_format("config/models/tales");
}

static void skills_find_tales_nearly_as_likely_in_each_format(void **state) {
    (void)state;
    text_is_nearly_as_likely_in_each_format("config/models/skills");
}

static void expect_refusal(const struct rod_quantise_options *options, const char *says) {
    struct rod_error err = {0};
    const int rc = rod_quantise(options, &err);
    if (!rc || !strstr(err.message, says)) fail_msg("code %d, \"%s\" lacks \"%s\"", rc, err.message, says);
}

static void what_cannot_be_written_is_refused_and_nothing_is_lost(void **state) {
    (void)state;
    static const char tales[] = "config/models/tales";
    char dir[64];
    make_folder(dir, "kept", 4);
    expect_refusal(&(struct rod_quantise_options){.model_dir = tales, .out_dir = dir, .weights = "int8"},
                   "is not empty");
    expect_refusal(&(struct rod_quantise_options){.model_dir = tales, .out_dir = dir, .weights = "auto"},
                   "weights is auto");
    expect_refusal(
        &(struct rod_quantise_options){.model_dir = tales, .out_dir = dir, .weights = "int8", .calibrate = "README.md"},
        "calibrate is for int4");
    expect_refusal(
        &(struct rod_quantise_options){.model_dir = tales, .out_dir = "/tmp/rodimus-not-there/out", .weights = "int8"},
        "cannot make /tmp/rodimus-not-there/out");
    expect_refusal(
        &(struct rod_quantise_options){.model_dir = tales, .out_dir = dir, .weights = "int4", .calibrate = "not there"},
        "not there");
    expect_refusal(
        &(struct rod_quantise_options){.model_dir = "tests/quantised/awq", .out_dir = dir, .weights = "int4"},
        "awq is quantised already, in int4");
    remove_folder(dir); /* its text is there, and nothing else */
}

/* A file that may not grow, as on a full disk. */
static void a_directory_that_cannot_be_finished_is_removed(void **state) {
    (void)state;
    char dir[64], out[80];
    make_folder(dir, NULL, 0);
    snprintf(out, sizeof out, "%s/out", dir);
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){1 << 20, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const struct rod_quantise_options made = {.model_dir = "config/models/tales", .out_dir = out, .weights = "int8"};
    const struct rod_quantise_options given = {.model_dir = "config/models/tales", .out_dir = dir, .weights = "int8"};
    expect_refusal(&made, "/out/model.safetensors: File too large");
    expect_refusal(&given, "/model.safetensors: File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(access(out, F_OK), -1);
    assert_int_equal(rmdir(dir), 0); /* it was there before, and is empty */
}

/* Ended by a signal in its middle: the directory is no checkpoint, and the same command makes it one. */
static void what_an_ended_run_left_is_written_anew(void **state) {
    (void)state;
    char dir[64], out[80], path[128];
    make_folder(dir, NULL, 0);
    snprintf(out, sizeof out, "%s/out", dir);
    const struct rod_quantise_options options = {.model_dir = "config/models/tales", .out_dir = out, .weights = "int8"};
    const pid_t child = fork();
    if (!child) {
        struct rod_error err;
        const struct rlimit small = {1 << 20, 1 << 20};
        setrlimit(RLIMIT_FSIZE, &small); /* SIGXFSZ comes after the first of 9 MB */
        _exit(rod_quantise(&options, &err));
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    snprintf(path, sizeof path, "%s/.quantise.part", out);
    assert_int_equal(access(path, F_OK), 0);
    const int held = open(path, O_RDWR);
    assert_int_equal(flock(held, LOCK_EX), 0);
    expect_refusal(&options, "another run writes it");
    close(held);
    static const char *const others[] = {"note", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", out, others[i]);
        assert_int_equal(access(path, F_OK), -1);
        fclose(fopen(path, "w"));
        expect_refusal(&options, "is not empty");
        assert_int_equal(unlink(path), 0);
    }
    struct rod_error err;
    if (rod_quantise(&options, &err)) fail_msg("%s", err.message);
    model_close(open_as(out, "auto"));
    remove_folder(out);
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tales_are_nearly_as_likely_in_each_format),
        cmocka_unit_test(skills_find_tales_nearly_as_likely_in_each_format),
        cmocka_unit_test(what_cannot_be_written_is_refused_and_nothing_is_lost),
        cmocka_unit_test(a_directory_that_cannot_be_finished_is_removed),
        cmocka_unit_test(what_an_ended_run_left_is_written_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
