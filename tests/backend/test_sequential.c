/* test_sequential.c - the same text read in chunks and token by token, with a window in 8 bits: wherever both ways have
 * one argmax in the default formats, they have one in these, unless the best two logits nearly are one: the ways add in
 * another order, and then a key's last bit decides between two codes. The first 2,000 tokens of the held-out tales; all
 * with RODIMUS_TEST_FULL=1. On the backend that RODIMUS_TEST_DEVICE names, the CPU without it. */
#include "tests/held_out.h"

#include <string.h>

enum { N_TOKENS = 2000 };

/* What a row of logits chooses, and how far behind the next one is, in deviations of the row. */
struct choice {
    uint32_t id;
    double gap;
};

static struct choice choose(const float *row, uint32_t V) {
    uint32_t best = 0;
    double next = -INFINITY, sum = 0, squares = 0;
    for (uint32_t i = 0; i < V; i++) {
        if (row[i] > row[best]) best = i;
        sum += (double)row[i], squares += (double)row[i] * (double)row[i];
    }
    for (uint32_t i = 0; i < V; i++)
        if (i != best) next = fmax(next, (double)row[i]);
    return (struct choice){best, ((double)row[best] - next) / sqrt(squares / V - sum / V * (sum / V))};
}

/* chosen[i] behind ids[i], which are read in pieces of as many tokens as a step takes (a prompt's), or one by one
 * (decoded). */
static void read_text(const struct backend_ops *ops, struct backend *be, uint32_t V, const int32_t *ids, bool decoded,
                      struct choice *chosen) {
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
        for (uint32_t i = 0; i < n; i++) chosen[pos++] = choose(rows + (size_t)i * V, V);
    }
}

struct ways {
    struct choice chunked[N_TOKENS], decoded[N_TOKENS];
};

static void read_both_ways(const struct model *model, const char *window, const int32_t *ids, struct ways *w) {
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    const struct backend_config config = {
        .n_slots = 1, .n_threads = 1, .device = device ? device : "cpu", .window_dtype = window};
    const struct backend_ops *ops;
    struct backend *be;
    struct rod_error err;
    if (backend_find(config.device, &ops, &err) || ops->open(model, &config, &be, &err)) fail_msg("%s", err.message);
    read_text(ops, be, model->dims.V, ids, false, w->chunked);
    read_text(ops, be, model->dims.V, ids, true, w->decoded);
    ops->close(be);
}

static void compare_ways(const char *what, const struct ways *usual, const struct ways *narrow) {
    const double close = getenv("RODIMUS_TEST_DEVICE") ? 0.1 : 0.01; /* products of 16 bits differ more */
    uint32_t n[2] = {0}, n_close = 0;
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        const struct choice chunked = narrow->chunked[i], decoded = narrow->decoded[i];
        const bool one = usual->chunked[i].id == usual->decoded[i].id;
        n[0] += one, n[1] += chunked.id == decoded.id;
        if (!one || chunked.id == decoded.id) continue;
        n_close++;
        printf("note: %s: behind token %u %u in chunks, %.4f deviations before the next, and %u decoded\n", what, i,
               chunked.id, chunked.gap, decoded.id);
        if (!(chunked.gap <= close)) fail_msg("%s: behind token %u no close call", what, i);
    }
    printf("note: %s: one argmax both ways of %d: window auto %u, in 8 bits %u, close calls %u\n", what, N_TOKENS, n[0],
           n[1], n_close);
}

static void check_model(const char *dir) {
    const char *device = getenv("RODIMUS_TEST_DEVICE");
    static struct ways usual, narrow;
    struct model *model;
    struct rod_error err;
    size_t n;
    char what[80];
    int32_t *ids = held_out_ids(dir, &n);
    assert_true(n >= N_TOKENS);
    if (model_open(dir, NULL, NULL, &model, &err)) fail_msg("%s", err.message);
    for (size_t at = 0; at + N_TOKENS <= n && (at == 0 || getenv("RODIMUS_TEST_FULL")); at += N_TOKENS) {
        read_both_ways(model, "auto", ids + at, &usual);
        read_both_ways(model, device && strcmp(device, "cpu") ? "fp8" : "int8", ids + at, &narrow);
        snprintf(what, sizeof what, "%s from %zu on", dir, at);
        compare_ways(what, &usual, &narrow);
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
