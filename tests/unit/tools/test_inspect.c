/* test_inspect.c - rod_inspect's facts, and the exit codes of the inspect and verify commands. */
#include "engine/tools/tools.h"
#include "engine/tools/verify.h"
#include "server/commands/commands.h"

#include <fcntl.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void tales_is_described(void **state) {
    (void)state;
    struct rod_inspect_report *r;
    struct rod_error err;
    if (rod_inspect("config/models/tales", NULL, &r, &err)) fail_msg("%s", err.message);
    assert_string_equal(r->name, "tales");
    assert_string_equal(r->layout, "published");
    assert_string_equal(r->arch, "rodimus_plus");
    assert_string_equal(r->weight_dtype, "bf16");
    /* states of earlier builds carry it: it may change only with the files */
    assert_string_equal(r->fingerprint, "6f72383d55f3f8d9aa527abb294f47d4");
    assert_int_equal(r->n_params, 7185920);
    assert_int_equal(r->weight_bytes, 14371840);
    assert_int_equal(r->file_bytes, 14371840);
    assert_int_equal(r->window_tok, 257);
    assert_int_equal(r->n_tensors, 128);
    assert_string_equal(r->tensors[0].name, "model.embeddings.weight");
    assert_string_equal(r->tensors[0].dtype, "BF16");
    assert_int_equal(r->tensors[0].shape[0], 4096);
    for (size_t i = 0; i < r->n_tensors; i++) assert_true(r->tensors[i].used);
    /* L (M E 4 + K E 2 + visible (Hk + Hv) P 2) */
    assert_int_equal(r->session16_bytes, 6 * (64 * 512 * 4 + 4 * 512 * 2 + 257 * 5 * 64 * 2));
    assert_int_equal(r->session32_bytes, 6 * 4 * (64 * 512 + 4 * 512 + 257 * 5 * 64));
    assert_int_equal(r->fp8_bytes, 6 * (64 * 512 * 4 + 4 * 512 * 2 + 257 * 5 * 64));
    assert_int_equal(r->int8_bytes, 6 * (4 * (64 * 512 + 4 * 512) + 257 * 5 * (64 + 4)));
    assert_int_equal(r->n_warnings, 0);
    assert_true(r->has_tokenizer);
    assert_int_equal(r->tokenizer_ids, 4096);
    rod_inspect_free(r);
}

/* Like the published 1.6B: the head is stored, and the embedding is what counts. */
static void a_tied_head_that_is_stored_is_not_used(void **state) {
    (void)state;
    struct rod_inspect_report *r;
    struct rod_error err;
    if (rod_inspect("tests/vectors/rodimus-plus-extremes", NULL, &r, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i < r->n_tensors; i++) {
        if (r->tensors[i].used != (strcmp(r->tensors[i].name, "lm_head.weight") != 0))
            fail_msg("%s is said to be %s", r->tensors[i].name, r->tensors[i].used ? "used" : "not used");
    }
    assert_true(r->tied);
    assert_int_equal(r->n_warnings, 0);
    rod_inspect_free(r);
}

/* One state with a row of S a ten-thousandth of the other, off by error of the large one: what the report says of it.
 */
static bool small_row_passes(uint32_t T, float error) {
    enum { M = 2, E = 8, K = 2, V = 2, MOST = 64 };
    const struct model_dims dims = {.L = 1, .V = V, .E = E, .M = M, .K = K};
    float S[M * E], off[M * E], conv[E * K], logits[MOST * V];
    for (uint32_t i = 0; i < M * E; i++) S[i] = off[i] = i < E ? 1 : 1e-4f;
    for (uint32_t i = 0; i < E * K; i++) conv[i] = 1;
    for (uint32_t i = 0; i < MOST * V; i++) logits[i] = (float)(i % V);
    off[E] += error;
    struct golden_layer ref = {.S = S, .conv = conv}, got = {.S = off, .conv = conv};
    const struct golden golden = {.T = T, .logits = logits, .layers = &ref, .n_layers = 1};
    const struct verify_result result = {.logits = logits, .layers = &got, .n_layers = 1};
    struct rod_verify_report *report = verify_new_report(&dims, (struct verify_bounds){1e-5, 1e-4, 0});
    assert_non_null(report);
    verify_compare(&golden, &result, &dims, ROD_VERIFY_PREFILL, report);
    const bool passed = report->passed;
    rod_verify_free(report);
    return passed;
}

static void a_row_of_a_state_may_nearly_cancel_after_one_or_two_tokens(void **state) {
    (void)state;
    for (uint32_t T = 1; T <= 64; T++) {
        const bool rounding = small_row_passes(T, 1e-6f), wrong = small_row_passes(T, 1e-4f);
        if (rounding != (T <= 2) || wrong)
            fail_msg("%u tokens: rounding %s, a wrong value %s", T, rounding ? "passes" : "fails",
                     wrong ? "passes" : "fails");
    }
}

/* Runs a command with its standard output in a file; returns the exit code. */
static int run(int (*command)(int argc, char **argv), char **argv, char **output) {
    char path[] = "/tmp/rodimus-test-XXXXXX";
    int argc = 0, file = mkstemp(path);
    assert_true(file >= 0);
    while (argv[argc]) argc++;
    fflush(stdout);
    int kept = dup(STDOUT_FILENO);
    dup2(file, STDOUT_FILENO);
    int rc = command(argc, argv);
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    struct stat info;
    assert_int_equal(fstat(file, &info), 0);
    *output = calloc(1, (size_t)info.st_size + 1);
    assert_non_null(*output);
    assert_int_equal(pread(file, *output, (size_t)info.st_size, 0), info.st_size);
    close(file);
    unlink(path);
    return rc;
}

static void inspect_exits_as_promised(void **state) {
    (void)state;
    char *output;
    assert_int_equal(run(cmd_inspect, (char *[]){"inspect", "--help", NULL}, &output), 0);
    assert_non_null(strstr(output, "Usage: rodimus inspect DIR"));
    free(output);
    assert_int_equal(run(cmd_inspect, (char *[]){"inspect", NULL}, &output), 2);
    free(output);
    assert_int_equal(run(cmd_inspect, (char *[]){"inspect", "a", "b", NULL}, &output), 2);
    free(output);
    assert_int_equal(run(cmd_inspect, (char *[]){"inspect", "tests/vectors", NULL}, &output), 1);
    assert_string_equal(output, "");
    free(output);
    assert_int_equal(run(cmd_inspect, (char *[]){"inspect", "tests/vectors/fla-rodimus-plus-small", NULL}, &output), 0);
    assert_non_null(strstr(output, "fla layout"));
    assert_non_null(strstr(output, "model.layers.1.ska_attn.q_norm.weight"));
    free(output);
}

/* A checkpoint whose weights are good, with this text as tokenizer.json (NULL: none). */
static int inspect_with_tokenizer(const char *tokenizer, bool json, char **output) {
    static const char *const files[] = {"config.json", "model.safetensors"};
    char dir[] = "/tmp/rodimus-test-XXXXXX", from[128], to[128];
    assert_non_null(mkdtemp(dir));
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, "tests/vectors/rodimus-plus-short/%s", files[i]);
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        char *real = realpath(from, NULL);
        assert_non_null(real);
        assert_int_equal(symlink(real, to), 0);
        free(real);
    }
    snprintf(to, sizeof to, "%s/tokenizer.json", dir);
    if (tokenizer) {
        FILE *file = fopen(to, "w");
        assert_non_null(file);
        assert_true(fputs(tokenizer, file) >= 0);
        assert_int_equal(fclose(file), 0);
    }
    int rc = run(cmd_inspect, (char *[]){"inspect", dir, json ? "--json" : NULL, NULL}, output);
    unlink(to);
    for (int i = 0; i < 2; i++) {
        snprintf(to, sizeof to, "%s/%s", dir, files[i]);
        unlink(to);
    }
    assert_int_equal(rmdir(dir), 0);
    return rc;
}

static void a_tokenizer_that_serve_refuses_fails_inspect_too(void **state) {
    (void)state;
    static const char *const bad[] = {"garbage", "{\"model\":{\"type\":\"Unigram\"}}", ""};
    char *output;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int rc = inspect_with_tokenizer(bad[i], false, &output);
        if (rc != 1 || output[0]) fail_msg("%s: exit code %d, expected 1; output %s", bad[i], rc, output);
        free(output);
    }
}

static void the_tokenizer_is_described(void **state) {
    (void)state;
    char *output;
    assert_int_equal(inspect_with_tokenizer(NULL, false, &output), 0);
    assert_non_null(strstr(output, "tokenizer none: token-id prompts only"));
    free(output);
    assert_int_equal(inspect_with_tokenizer(NULL, true, &output), 0);
    assert_non_null(strstr(output, "\"tokenizer\": null"));
    free(output);
    assert_int_equal(run(cmd_inspect, (char *[]){"inspect", "config/models/tales", NULL}, &output), 0);
    assert_non_null(strstr(output, "tokenizer with 4096 ids"));
    free(output);
}

static void inspect_writes_json_for_programs(void **state) {
    (void)state;
    char *output;
    assert_int_equal(run(cmd_inspect, (char *[]){"inspect", "--json", "config/models/tales", NULL}, &output), 0);
    json_t *root = json_loads(output, 0, NULL);
    assert_non_null(root);
    assert_string_equal(json_string_value(json_object_get(root, "arch")), "rodimus_plus");
    assert_int_equal(json_integer_value(json_object_get(root, "parameters")), 7185920);
    assert_int_equal(json_array_size(json_object_get(root, "tensors")), 128);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "session"), "bytes")), 1797888);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "tokenizer"), "ids")), 4096);
    json_decref(root);
    free(output);
}

#define VECTOR "tests/vectors/rodimus-plus-short"

static void verify_exits_as_promised(void **state) {
    (void)state;
    char *output;
    assert_int_equal(run(cmd_verify, (char *[]){"verify", "--help", NULL}, &output), 0);
    free(output);
    assert_int_equal(run(cmd_verify, (char *[]){"verify", "--model", VECTOR, NULL}, &output), 2);
    free(output);
    assert_int_equal(run(cmd_verify,
                         (char *[]){"verify", "--model", VECTOR, "--golden", VECTOR "/golden.safetensors",
                                    "--precision", "int8", NULL},
                         &output),
                     2);
    free(output);
    assert_int_equal(
        run(cmd_verify, (char *[]){"verify", "--model", VECTOR, "--golden", VECTOR "/none", NULL}, &output), 1);
    free(output);
    assert_int_equal(run(cmd_verify,
                         (char *[]){"verify", "--model", VECTOR, "--golden", VECTOR "/golden.safetensors", "--device",
                                    "cpu", "--piece-tokens", "2", "--threads", "1", NULL},
                         &output),
                     0);
    assert_non_null(strstr(output, "state.1.v"));
    assert_non_null(strstr(output, "24 of 24"));
    assert_non_null(strstr(output, "\nPASS\n"));
    free(output);
    assert_int_equal(run(cmd_verify, (char *[]){"verify", "--model", VECTOR, "--against", "gpu", NULL}, &output), 2);
    free(output);
    assert_int_equal(
        run(cmd_verify,
            (char *[]){"verify", "--synthetic", "tales", "--against", "cpu", "--device", "cpu", "--tokens", "5", NULL},
            &output),
        0);
    assert_non_null(strstr(output, "\nPASS\n"));
    free(output);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tales_is_described),
        cmocka_unit_test(a_tied_head_that_is_stored_is_not_used),
        cmocka_unit_test(a_row_of_a_state_may_nearly_cancel_after_one_or_two_tokens),
        cmocka_unit_test(inspect_exits_as_promised),
        cmocka_unit_test(a_tokenizer_that_serve_refuses_fails_inspect_too),
        cmocka_unit_test(the_tokenizer_is_described),
        cmocka_unit_test(inspect_writes_json_for_programs),
        cmocka_unit_test(verify_exits_as_promised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
