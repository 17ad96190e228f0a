/* held_out.h - how likely a model finds the held-out tales, on any device. */
#ifndef HELD_OUT_H
#define HELD_OUT_H

#include "engine/backend/backend.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

/* The text as the tokens of the model in dir; the caller frees them. */
static inline int32_t *held_out_ids(const char *dir, size_t *n) {
    struct tokenizer *tokenizer;
    struct rod_error err;
    if (tokenizer_open(dir, &tokenizer, &err)) fail_msg("%s", err.message);
    FILE *f = fopen("config/models/tales/heldout.txt", "r");
    assert_non_null(f);
    char *text = malloc(1 << 20);
    assert_non_null(text);
    const size_t len = fread(text, 1, 1 << 20, f);
    fclose(f);
    int32_t *ids;
    if (tokenizer_encode(tokenizer, text, len, true, &ids, n, &err)) fail_msg("%s", err.message);
    free(text);
    tokenizer_close(tokenizer);
    return ids;
}

static inline double log_probability(const float *row, uint32_t V, int32_t id) {
    double top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < V; i++) top = fmax(top, (double)row[i]);
    for (uint32_t i = 0; i < V; i++) sum += exp((double)row[i] - top);
    return (double)row[id] - top - log(sum);
}

/* Of ids[1..n), read as one text; of config the device and the formats count. */
static inline double perplexity(const struct model *model, struct backend_config config, const int32_t *ids, size_t n) {
    const uint32_t V = model->dims.V;
    const struct backend_ops *ops;
    struct backend *be;
    struct rod_error err;
    config.n_slots = 1;
    if (backend_find(config.device, &ops, &err) || ops->open(model, &config, &be, &err)) fail_msg("%s", err.message);
    const struct backend_info *info = ops->info(be);
    const uint32_t most = info->max_out < info->max_batch_tok ? info->max_out : info->max_batch_tok;
    double sum = 0;
    ops->slot_zero(be, 0);
    for (size_t pos = 0; pos + 1 < n;) {
        const uint32_t k = n - 1 - pos < most ? (uint32_t)(n - 1 - pos) : most / info->chunk_tok * info->chunk_tok;
        const struct backend_segment seg = {0, k, k, pos, ids + pos, true};
        const float *rows;
        if (ops->forward(be, &seg, 1, &rows, &err)) fail_msg("%s", err.message);
        for (uint32_t i = 0; i < k; i++, pos++) sum += log_probability(rows + (size_t)i * V, V, ids[pos + 1]);
    }
    ops->close(be);
    return exp(-sum / (double)(n - 1));
}

#endif
