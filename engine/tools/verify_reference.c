/* verify_reference.c - where there is no golden file: the same facts from the CPU backend, for prompts of random ids.
 * It sums in fp32 and is checked against the golden files, so it is what a GPU is compared with at full size. */
#include "engine/base/philox.h"
#include "verify.h"

#include <stdlib.h>
#include <string.h>

enum { N_GREEDY = 8 };

static int32_t likeliest(const float *row, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return (int32_t)best;
}

/* The prompt's logits and states; then the ids that follow it, each fed back. */
static int run_reference(struct backend *be, const struct model_dims *d, const struct rod_progress_to *progress,
                         struct golden *g, struct rod_error *err) {
    struct verify_result *r;
    const struct verify_watch watch = {*progress, "the CPU's answer"};
    int rc = verify_run(&backend_cpu, be, d, g, 0, 0, &r, &watch, err);
    if (rc) return rc;
    g->logits = r->logits;
    g->layers = r->layers;
    r->logits = NULL, r->layers = NULL;
    verify_free(r);
    const float *row = g->logits + (size_t)(g->T - 1) * d->V;
    for (uint32_t i = 0; !rc && i < N_GREEDY; i++) {
        g->greedy_ids[i] = likeliest(row, d->V);
        struct backend_segment segment = {.slot = 0, .n_tok = 1, .n_out = 1, .pos = g->T + i, .tok = &g->greedy_ids[i]};
        if (i + 1 < N_GREEDY) rc = backend_cpu.forward(be, &segment, 1, &row, err);
    }
    g->n_greedy = N_GREEDY;
    return rc;
}

int verify_reference(const struct model *model, uint32_t n_tok, uint32_t n_threads,
                     const struct rod_progress_to *progress, struct golden **out, struct rod_error *err) {
    const struct model_dims *d = &model->dims;
    struct golden *g = calloc(1, sizeof *g);
    if (g) g->ids = malloc(n_tok * sizeof *g->ids), g->greedy_ids = malloc(N_GREEDY * sizeof *g->greedy_ids);
    if (!g || !g->ids || !g->greedy_ids) {
        golden_close(g);
        return rod_fail(err, ROD_ENOMEM, "no memory for a reference of %u tokens", n_tok);
    }
    g->T = n_tok;
    g->n_layers = d->L;
    g->n_keys = !d->plus ? 0 : n_tok < d->visible ? n_tok : d->visible;
    for (uint32_t i = 0; i < n_tok; i++) g->ids[i] = (int32_t)(philox_uniform(1, i, 0) * d->V);
    const struct backend_config config = {
        .n_slots = 1, .n_threads = n_threads, .device = "cpu", .precision = "auto", .progress = *progress};
    struct backend *be = NULL;
    int rc = backend_cpu.open(model, &config, &be, err);
    if (!rc) rc = run_reference(be, d, progress, g, err);
    if (be) backend_cpu.close(be);
    if (rc) {
        golden_close(g);
        return rc;
    }
    *out = g;
    return 0;
}
