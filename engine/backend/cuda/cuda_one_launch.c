/* cuda_one_launch.c - decode steps of few rows as one launch (k_one_launch) in place of the kernels of their
 * stages: which steps are, what the launch needs, and what it says where a block's wait had no end. */
#include "cuda_backend.h"
#include "engine/base/fail.h"

#include <cuda_runtime.h>

#include <stdlib.h>
#include <string.h>

/* The shape for k_one_launch, where a model without a window has no heads. */
static struct cuda_shape one_launch_shape(const struct backend *be) {
    struct cuda_shape shape = be->shape;
    if (!be->d.plus) shape.H = 0;
    return shape;
}

static int upload_layers(struct backend *be, struct rod_error *err) {
    const uint32_t L = be->d.L;
    struct cuda_step_layer *layers = calloc(L, sizeof *layers);
    if (!layers) return rod_fail_no_memory(err);
    for (uint32_t i = 0; i < L; i++) {
        const struct cuda_layer *w = &be->layers[i];
        layers[i] = (struct cuda_step_layer){.fc = w->fc.data,
                                             .in = w->in.data,
                                             .c0 = w->c0.data,
                                             .out = w->out.data,
                                             .qkv = w->qkv.data,
                                             .ao = w->ao.data,
                                             .f1 = w->f1.data,
                                             .f2 = w->f2.data,
                                             .mixer_norm = w->mixer_norm,
                                             .conv = w->conv,
                                             .conv_b = w->conv_b,
                                             .g_b = w->g_b,
                                             .t_b = w->t_b,
                                             .c1 = w->c1_t,
                                             .c1_b = w->c1_b,
                                             .residual = w->residual,
                                             .act_norm = w->act_norm,
                                             .attn_norm = w->attn_norm,
                                             .q_norm = w->q_norm,
                                             .k_norm = w->k_norm,
                                             .ffn_norm = w->ffn_norm};
    }
    void *to = cuda_take(be, L * sizeof *layers, "a table of weights", err);
    int rc = to ? cuda_check(cudaMemcpy(to, layers, L * sizeof *layers, cudaMemcpyHostToDevice),
                             "uploading a table of weights", err)
                : ROD_ENOMEM;
    be->one_launch.layers = to;
    free(layers);
    return rc;
}

/* Its stages read 16-bit matrices alone. */
static bool has_codes(const struct backend *be) {
    for (uint32_t i = 0; i < be->d.L; i++) {
        const struct cuda_layer *w = &be->layers[i];
        const struct cuda_matrix *of[] = {&w->fc, &w->out, &w->qkv, &w->ao, &w->f1, &w->f2};
        for (size_t k = 0; k < sizeof of / sizeof *of; k++)
            if (of[k]->format != CUDA_STORED) return true;
    }
    return be->lm_head.format != CUDA_STORED;
}

/* Whether the device takes such a launch from this process: where several share it (MPS), a process may hold fewer
 * multiprocessors than it is told of. */
static bool is_taken(struct backend *be, uint32_t n_rows) {
    const struct step one = {.n_rows = n_rows};
    struct CUgraphExec_st *exec = NULL;
    if (cuda_capture_begin(be, NULL)) return false;
    cuda_one_launch_enqueue(be, &one);
    if (cuda_capture_end(be, &exec, NULL)) return false;
    cudaGraphExecDestroy(exec);
    return true;
}

int cuda_one_launch_open(struct backend *be, const struct backend_config *config, struct rod_error *err) {
    struct cuda_one_launch *one = &be->one_launch;
    const struct cuda_shape shape = one_launch_shape(be);
    const char *asked = config->decode_kernel ? config->decode_kernel : "auto";
    const bool must = !strcmp(asked, "persistent"), any = must || !strcmp(asked, "any"),
               may = any || !strcmp(asked, "auto");
    if (!may && strcmp(asked, "graph") != 0)
        return rod_fail_at(err, ROD_EINVALID, "decode_kernel",
                           "decode_kernel is '%s', it must be graph, auto, any or persistent.", asked);
    for (uint32_t b = 0; may && !has_codes(be) && b < CUDA_ONE_LAUNCH_BUCKETS; b++)
        one->runs[b] =
            cuda_one_launch_possible(&shape, be->d.L, cuda_bucket_rows(b), any) && is_taken(be, cuda_bucket_rows(b));
    if (!one->runs[0]) {
        memset(one->runs, 0, sizeof one->runs); /* one row needs most; nothing is taken for others alone */
        if (must)
            return rod_fail_at(
                err, ROD_EUNSUPPORTED, "decode_kernel",
                "decode_kernel persistent: this model in this type does not run so, or the device does not "
                "keep all blocks of the launch at once.");
        return 0;
    }
    const size_t bytes = cuda_one_launch_bytes(&shape);
    int rc = upload_layers(be, err);
    if (!rc && !(one->words = cuda_take(be, bytes, "a workspace", err))) rc = err ? err->code : ROD_ENOMEM;
    if (!rc) rc = cuda_check(cudaMemsetAsync(one->words, 0, bytes, be->stream), "clearing a workspace", err);
    if (!rc)
        rc = cuda_check(cudaHostAlloc((void **)&one->note, 4 * sizeof *one->note, cudaHostAllocMapped),
                        "taking pinned memory", err);
    if (!rc) memset(one->note, 0, 4 * sizeof *one->note);
    return rc;
}

void cuda_one_launch_close(struct backend *be) {
    if (be->one_launch.note) cudaFreeHost(be->one_launch.note);
}

bool cuda_one_launch_runs(const struct backend *be, const struct step *st) {
    const uint32_t b = cuda_bucket_of(st->n_rows);
    return st->single && !st->drafts && st->n_out == st->n_rows && b < CUDA_ONE_LAUNCH_BUCKETS &&
           be->one_launch.runs[b] && cuda_bucket_rows(b) == st->n_rows;
}

void cuda_one_launch_enqueue(struct backend *be, const struct step *st) {
    const struct cuda_one_launch_step step = {.shape = one_launch_shape(be),
                                              .rows = be->rows,
                                              .n_layers = be->d.L,
                                              .layers = be->one_launch.layers,
                                              .norm_f = be->norm_f,
                                              .x = be->x,
                                              .rope = be->rope,
                                              .head = be->lm_head.data,
                                              .logits = be->logits,
                                              .words = be->one_launch.words,
                                              .note = be->one_launch.note};
    k_one_launch(&step, st->n_rows, be->stream);
}

void cuda_one_launch_count(struct backend *be) {
    const struct cuda_shape shape = one_launch_shape(be);
    if (!be->one_launch.words || ++be->one_launch.n_steps % CUDA_ONE_LAUNCH_STEPS) return;
    cudaMemsetAsync(be->one_launch.words, 0, cuda_one_launch_bytes(&shape), be->stream);
}

int cuda_one_launch_fault(const struct backend *be, int rc, struct rod_error *err) {
    const volatile uint32_t *note = be->one_launch.note;
    if (!rc || !note || !note[0]) return rc;
    return rod_fail(err, ROD_EDEVICE,
                    "A decode step was given up: block %u, warp %u waited nine seconds at layer %u, stage %u, for what "
                    "another block makes.",
                    note[2], note[3], note[1] / 16, note[1] % 16);
}
