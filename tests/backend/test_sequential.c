/* test_sequential.c - the same text read in chunks and token by token, with a window in 8 bits: wherever both ways have
 * one argmax in the default formats, they have one in these. On the backend that RODIMUS_TEST_DEVICE names, the CPU
 * without it. */
#include "tests/held_out.h"

#include <string.h>

enum { N_TOKENS = 2000 };

static int32_t argmax(const float *row, uint32_t V) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < V; i++)
        if (row[i] > row[best]) best = i;
    return (int32_t)best;
}

/* best[i] of ids[i], read in pieces of as many tokens as a step takes (a prompt's), or one by one (decoded). */
static void read_text(const struct backend_ops *ops, struct backend *be, uint32_t V, const int32_t *ids, bool decoded,
                      int32_t *best) {
    const struct backend_info *info = ops->info(be);
    const uint32_t room = info->max_out < info->max_batch_tok ? info->max_out : info->max_batch_tok,
                   most = decoded ? 1 : room / info->chunk_tok * info->chunk_tok;
    struct rod_error err;
    const float *rows;
    ops->slot_zero(be, 0);
    for (uint32_t pos = 0; pos < N_TOKENS;) {
        const uint32_t n = N_TOKENS - pos < most ? N_TOKENS - pos : most;
        const struct backend_segment seg = {0, n, n, pos, ids + pos, !decoded};
        if (ops->forward(be, &seg, 1, &rows, &err)) fail_msg("%s", err.message);
        for (uint32_t i = 0; i < n; i++) best[pos++] = argmax(rows + (size_t)i * V, V);
    }
}

/* Whether both ways have one argmax, for each token. */
static void compare_ways(const struct model *model, const char *window, const int32_t *ids, bool *same) {
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    const struct backend_config config = {
        .n_slots = 1, .n_threads = 1, .device = device ? device : "cpu", .window_dtype = window};
    const struct backend_ops *ops;
    struct backend *be;
    struct rod_error err;
    static int32_t chunked[N_TOKENS], decoded[N_TOKENS];
    if (backend_find(config.device, &ops, &err) || ops->open(model, &config, &be, &err)) fail_msg("%s", err.message);
    read_text(ops, be, model->dims.V, ids, false, chunked);
    read_text(ops, be, model->dims.V, ids, true, decoded);
    for (uint32_t i = 0; i < N_TOKENS; i++) same[i] = chunked[i] == decoded[i];
    ops->close(be);
}

static void check_model(const char *dir) {
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    const char *narrow = device && strcmp(device, "cpu") ? "fp8" : "int8";
    static bool same[2][N_TOKENS];
    struct model *model;
    struct rod_error err;
    size_t n;
    int32_t *ids = held_out_ids(dir, &n);
    assert_true(n >= N_TOKENS);
    if (model_open(dir, NULL, NULL, &model, &err)) fail_msg("%s", err.message);
    for (size_t at = 0; at + N_TOKENS <= n && (at == 0 || getenv("RODIMUS_TEST_FULL")); at += N_TOKENS) {
        uint32_t n_same[2] = {0}, n_lost = 0, lost = 0;
        for (int k = 0; k < 2; k++) compare_ways(model, k ? narrow : "auto", ids + at, same[k]);
        for (uint32_t i = 0; i < N_TOKENS; i++) {
            n_same[0] += same[0][i], n_same[1] += same[1][i];
            if (same[0][i] && !same[1][i]) n_lost++, lost = i;
        }
        printf("note: %s, %d tokens from %zu on, one argmax both ways: window auto %u, %s %u\n", dir, N_TOKENS, at,
               n_same[0], narrow, n_same[1]);
        if (n_lost)
            fail_msg("%s from %zu on, window %s: %u argmax are two that are one in window auto, as of token %u", dir,
                     at, narrow, n_lost, lost);
    }
    model_close(model);
    free(ids);
}

static void chunks_and_single_tokens_choose_the_same_ids(void **state) {
    (void)state;
    check_model("config/models/tales");
    check_model("config/models/skills");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(chunks_and_single_tokens_choose_the_same_ids)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
