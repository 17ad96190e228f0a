/* cuda_workspace.c - the rows and workspaces of a step, which a backend and a lane (cuda_device_part.c) have each. */
#include "cuda_backend.h"
#include "engine/base/fail.h"

#include <cuda_runtime.h>

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PART_ROWS = 512 }; /* of the window's partial results */

static int make_rows(struct backend *be, struct rod_error *err) {
    const size_t N = be->info.max_batch_tok;
    const size_t tiles = be->prompt_window ? N * sizeof *be->tiles : 0,
                 bytes = (N * (8 * sizeof(int32_t) + sizeof(int64_t)) + tiles + 15) / 16 * 16;
    int rc = cuda_check(cudaMallocHost(&be->host_block, CUDA_STEP_PARTS * bytes), "taking pinned memory", err);
    if (rc || !(be->block = cuda_take(be, bytes, "the rows of a step", err))) return rc ? rc : ROD_ENOMEM;
    memset(be->host_block, 0, CUDA_STEP_PARTS * bytes);
    for (int i = 0; i <= CUDA_STEP_PARTS; i++) { /* the last is the device's */
        int64_t *pos = i == CUDA_STEP_PARTS ? be->block : (void *)((char *)be->host_block + (size_t)i * bytes);
        int32_t *p = (int32_t *)(pos + N);
        const struct cuda_rows rows = {p, p + N, pos, p + 2 * N, p + 3 * N, (const uint32_t *)p + 6 * N, p + 7 * N};
        struct cuda_prompt_tile *tile = (struct cuda_prompt_tile *)(p + 8 * N);
        if (i < CUDA_STEP_PARTS) {
            be->host[i] = (struct cuda_step){rows, p + 4 * N, p + 5 * N};
            be->host_tiles[i] = tile;
        } else {
            be->rows = be->draft_rows = rows, be->list = p + 4 * N, be->out = p + 5 * N;
            be->rows.lead = NULL;
            be->tiles = tile;
        }
    }
    const size_t n_phases = N / CUDA_CHUNK + 2; /* the longest piece may begin and end within a chunk */
    be->alone_end = calloc(n_phases, sizeof *be->alone_end);
    be->phase_end = calloc(n_phases, sizeof *be->phase_end);
    be->host_prompts = calloc(N, sizeof *be->host_prompts);
    be->rounds = calloc(N / CUDA_WINDOW_COPIES + 1, sizeof *be->rounds);
    return be->alone_end && be->phase_end && be->host_prompts && be->rounds ? 0 : rod_fail_no_memory(err);
}

/* Rows of logits: a bucket's padding rows have theirs too. */
size_t cuda_logit_rows(const struct backend *be, const struct backend_config *config) {
    const uint32_t most = config->n_slots ? config->n_slots : be->info.max_out, b = cuda_bucket_of(most);
    const uint32_t bucket = b < CUDA_N_BUCKETS ? cuda_bucket_rows(b) : 0;
    return bucket > be->info.max_out && bucket <= be->info.max_batch_tok ? bucket : be->info.max_out;
}

enum { N_FLOATS = 21, N_ACTS = 6 };

/* What the workspaces are for steps of so many rows. */
struct workspaces {
    struct {
        float **p;
        size_t n;
    } floats[N_FLOATS];
    struct {
        void **p;
        size_t bytes;
    } acts[N_ACTS];
    size_t n_acts, scan_bytes, window_bytes;
};

static struct workspaces lay_out_workspaces(struct backend *be, size_t N, size_t logits) {
    const struct cuda_shape *s = &be->shape;
    const size_t D = s->D, Ep = s->Ep, M = s->M, width = (size_t)(s->H + s->Hk + s->Hv) * s->P;
    const size_t blocks = cuda_window_blocks(s), part_rows = N < PART_ROWS ? N : PART_ROWS;
    /* Four partial products, for many rows or for few. */
    const struct cuda_matrix any = {.rows = s->D, .cols = s->D, .dtype = s->dtype};
    const size_t sums = cuda_linear_splits(&any, (uint32_t)N) * N + 4 * CUDA_FEW_ROWS + 64;
    const size_t pairs = sums + 4 * CUDA_CONV_PAIR_ROWS; /* of k_conv_pair */
    struct workspaces w = {.floats = {
                               {&be->x, N * D},
                               {&be->squares, N * ((D + 15) / 16)},
                               {&be->row_scale, N},
                               {&be->az, N * 2 * Ep},
                               {&be->s, N * Ep},
                               {&be->in, pairs * 4 * M},
                               {&be->c0_part, pairs * s->R},
                               {&be->q, N * M},
                               {&be->k, N * M},
                               {&be->log_alpha, N * M},
                               {&be->c0, N * s->R},
                               {&be->sums, N * (Ep / 32)},
                               {&be->d_part, sums * D},
                               {&be->qkv, sums * width},
                               {&be->aq, N * s->H * s->P},
                               {&be->part, part_rows * blocks * s->H * s->P},
                               {&be->part_ml, part_rows * blocks * s->H * 2},
                               {&be->f1, sums * 2 * ((s->F + 7) / 8 * 8)},
                               {&be->gathered, be->info.max_out * D},
                               {&be->rope, N * s->rot_dim},
                               {&be->logits, logits * s->V},
                           }};
    void **const acts[N_ACTS] = {&be->act_d, &be->act_e, &be->act_a, &be->act_q, &be->act_f, &be->act_z};
    const uint32_t cols[N_ACTS] = {s->D, s->E, s->E, s->H * s->P, s->F, s->E};
    w.n_acts = be->scan && cuda_scan_packed(s) ? N_ACTS : N_ACTS - 1; /* the last is packed */
    for (size_t i = 0; i < w.n_acts; i++)
        w.acts[i].p = acts[i], w.acts[i].bytes = cuda_activation_bytes((uint32_t)N, cols[i], s->dtype);
    if (be->scan) w.scan_bytes = cuda_scan_bytes(s, (uint32_t)N);
    if (be->prompt_window) w.window_bytes = cuda_prompt_window_bytes(s, (uint32_t)N);
    return w;
}

uint64_t cuda_workspaces_bytes(const struct backend *be, const struct backend_config *config, uint32_t n_rows) {
    struct backend as = {.shape = be->shape, .info = be->info, .scan = be->scan, .prompt_window = be->prompt_window};
    const struct workspaces w = lay_out_workspaces(&as, n_rows, cuda_logit_rows(be, config));
    uint64_t bytes = w.scan_bytes + w.window_bytes;
    for (size_t i = 0; i < N_FLOATS; i++) bytes += w.floats[i].n * sizeof(float);
    for (size_t i = 0; i < w.n_acts; i++) bytes += w.acts[i].bytes;
    return bytes;
}

static int make_workspaces(struct backend *be, const struct backend_config *config, struct rod_error *err) {
    const struct cuda_shape *s = &be->shape;
    const size_t N = be->info.max_batch_tok, logits = be->logit_rows = (uint32_t)cuda_logit_rows(be, config);
    assert(logits >= be->info.max_out && be->info.max_out <= N);
    be->part_rows = N < PART_ROWS ? (uint32_t)N : PART_ROWS;
    const struct workspaces w = lay_out_workspaces(be, N, logits);
    for (size_t i = 0; i < N_FLOATS; i++)
        if (!(*w.floats[i].p = cuda_take(be, w.floats[i].n * sizeof(float), "a workspace", err)))
            return err ? err->code : ROD_ENOMEM;
    for (size_t i = 0; i < w.n_acts; i++) { /* the padding of k stays zero */
        if (!(*w.acts[i].p = cuda_take(be, w.acts[i].bytes, "a workspace", err))) return err ? err->code : ROD_ENOMEM;
        cudaMemsetAsync(*w.acts[i].p, 0, w.acts[i].bytes, be->stream);
    }
    if ((be->scan && !(be->scan_work = cuda_take(be, w.scan_bytes, "a workspace", err))) ||
        (be->prompt_window && !(be->window_work = cuda_take(be, w.window_bytes, "a workspace", err))))
        return err ? err->code : ROD_ENOMEM;
    double *inv_freq = calloc(s->rot_dim / 2 + 1, sizeof *inv_freq);
    if (!inv_freq) return rod_fail_no_memory(err);
    for (uint32_t i = 0; i < s->rot_dim / 2; i++) inv_freq[i] = 1.0 / pow(be->d.rot_base, 2.0 * i / s->rot_dim);
    be->inv_freq = cuda_take(be, (s->rot_dim / 2 + 1) * sizeof *inv_freq, "a workspace", err);
    int rc = !be->inv_freq ? ROD_ENOMEM
                           : cuda_check(cudaMemcpy(be->inv_freq, inv_freq, (s->rot_dim / 2 + 1) * sizeof *inv_freq,
                                                   cudaMemcpyHostToDevice),
                                        "uploading frequencies", err);
    free(inv_freq);
    if (!rc)
        rc = cuda_check(cudaMallocHost((void **)&be->host_logits, logits * s->V * sizeof(float)),
                        "taking pinned memory for logits", err);
    return rc;
}

int cuda_workspaces_open(struct backend *be, const struct backend_config *config, struct rod_error *err) {
    const int rc = make_rows(be, err);
    return rc ? rc : make_workspaces(be, config, err);
}

void cuda_workspaces_close(struct backend *be) {
    for (size_t i = 0; i < be->n_allocations; i++) cudaFree(be->allocations[i]);
    if (be->host_block) cudaFreeHost(be->host_block);
    if (be->host_logits) cudaFreeHost(be->host_logits);
    free(be->alone_end), free(be->phase_end), free(be->host_prompts), free(be->rounds), free(be->allocations);
}

void cuda_graphs_close(struct cuda_graphs *graphs) {
    for (int end = 0; end < CUDA_N_ENDS; end++) {
        for (int b = 0; b < CUDA_N_BUCKETS; b++)
            if (graphs->steps[end][b]) cudaGraphExecDestroy(graphs->steps[end][b]);
        for (int b = 0; b < CUDA_DRAFT_BUCKETS; b++)
            if (graphs->drafts[end][b]) cudaGraphExecDestroy(graphs->drafts[end][b]);
    }
}
