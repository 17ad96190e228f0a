/* backend_cuda.c - the CUDA backend: uploads and packs the weights, owns the slot pool, the workspaces and the graphs.
 */
#include "backend_cuda.h"

#include <cuda_runtime.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ALLOCATIONS = 128 + 32 * 4096, STAGING_BYTES = 32 << 20, CHUNK = 64, MAX_BATCH = 512 };

int cuda_check(int rc, const char *doing, struct rod_error *err) {
    if (rc == cudaSuccess) return 0;
    return rod_fail(err, ROD_EDEVICE, "CUDA: %s failed: %s (%s)", doing, cudaGetErrorString((cudaError_t)rc),
                    cudaGetErrorName((cudaError_t)rc));
}

/* Device memory that lives as long as the backend. */
static void *take(struct backend *be, size_t bytes, const char *what, struct rod_error *err) {
    void *p = NULL;
    bytes = (bytes + 255) / 256 * 256 + 256;
    cudaError_t rc = be->n_allocations < MAX_ALLOCATIONS ? cudaMalloc(&p, bytes) : cudaErrorMemoryAllocation;
    if (rc != cudaSuccess) {
        size_t available = 0, total = 0;
        cudaGetLastError();
        cudaMemGetInfo(&available, &total);
        rod_fail(err, rc == cudaErrorMemoryAllocation ? ROD_ENOMEM : ROD_EDEVICE,
                 "GPU memory: %s needs %.1f MiB, %.1f of %.1f MiB are free", what, (double)bytes / (1 << 20),
                 (double)available / (1 << 20), (double)total / (1 << 20));
        return NULL;
    }
    be->allocations[be->n_allocations++] = p;
    return p;
}

/* ---- weights ---- */

/* Two pinned buffers take turns: while one is copied and packed, the files are read into the other. */
struct upload {
    struct backend *be;
    const struct backend_config *config;
    void *host[2], *device[2];
    cudaEvent_t done[2];
    int turn;
    uint64_t bytes, total, said;
};

static enum cuda_dtype dtype_of(enum dtype dtype) {
    return dtype == DTYPE_F32 ? CUDA_F32 : dtype == DTYPE_F16 ? CUDA_F16 : CUDA_BF16;
}

static void progress(struct upload *up) {
    if (!up->config->log || up->bytes - up->said < 1u << 29) return;
    up->said = up->bytes;
    char line[128];
    snprintf(line, sizeof line, "loading weights: %.1f of %.1f GB", (double)up->bytes / 1e9, (double)up->total / 1e9);
    up->config->log(up->config->log_arg, 1, line);
}

/* Rows [first, first + n) of w -> rows from row0 on of m, as pack places them. */
static int upload_packed(struct upload *up, const struct weight *w, uint32_t first, uint32_t n, uint32_t row0,
                         enum cuda_pack pack, const struct cuda_matrix *m, struct rod_error *err) {
    uint32_t base = 0;
    for (uint32_t p = 0; p < w->n_parts; base += w->part[p++].rows) {
        const struct weight_part *part = &w->part[p];
        const size_t row_bytes = w->cols * dtype_bytes(part->dtype);
        uint32_t lo = first > base ? first - base : 0, hi = first + n > base ? first + n - base : 0;
        if (hi > part->rows) hi = part->rows;
        while (lo < hi) {
            uint32_t rows = (uint32_t)(STAGING_BYTES / row_bytes);
            if (rows == 0) return rod_fail(err, ROD_EMODEL, "a weight's row of %zu bytes is too long", row_bytes);
            if (rows > hi - lo) rows = hi - lo;
            const int i = up->turn ^= 1;
            int rc = cuda_check(cudaEventSynchronize(up->done[i]), "uploading weights", err);
            if (rc) return rc;
            memcpy(up->host[i], (const unsigned char *)part->data + lo * row_bytes, rows * row_bytes);
            cudaMemcpyAsync(up->device[i], up->host[i], rows * row_bytes, cudaMemcpyHostToDevice, up->be->stream);
            k_pack(up->device[i], dtype_of(part->dtype), row0 + base + lo - first, rows, w->cols, pack, m,
                   up->be->stream);
            rc = cuda_check(cudaEventRecord(up->done[i], up->be->stream), "uploading weights", err);
            if (rc) return rc;
            up->bytes += rows * row_bytes;
            progress(up);
            lo += rows;
        }
    }
    return 0;
}

static int upload_rows(struct upload *up, const struct weight *w, uint32_t first, uint32_t n, uint32_t row0,
                       const struct cuda_matrix *m, struct rod_error *err) {
    return upload_packed(up, w, first, n, row0, CUDA_PACK_ROWS, m, err);
}

static int new_matrix(struct backend *be, uint32_t rows, uint32_t cols, struct cuda_matrix *m, struct rod_error *err) {
    *m = (struct cuda_matrix){.rows = rows, .cols = cols, .dtype = be->shape.dtype};
    size_t bytes = cuda_matrix_bytes(rows, cols, m->dtype);
    m->data = take(be, bytes, "a weight matrix", err);
    if (!m->data) return err ? err->code : ROD_ENOMEM;
    be->info.weight_bytes += bytes;
    return cuda_check(cudaMemsetAsync(m->data, 0, bytes, be->stream), "clearing a weight matrix", err);
}

static int upload_matrix(struct upload *up, const struct weight *w, struct cuda_matrix *m, struct rod_error *err) {
    int rc = new_matrix(up->be, w->rows, w->cols, m, err);
    return rc ? rc : upload_rows(up, w, 0, w->rows, 0, m, err);
}

/* n floats on the device, from a host array. */
static float *upload_floats(struct backend *be, const float *src, size_t n, struct rod_error *err) {
    float *dst = take(be, n * sizeof *dst, "a weight vector", err);
    if (dst && cuda_check(cudaMemcpy(dst, src, n * sizeof *dst, cudaMemcpyHostToDevice), "uploading a vector", err))
        return NULL;
    be->info.weight_bytes += n * sizeof *dst;
    return dst;
}

static float *upload_vector(struct backend *be, const struct weight *w, size_t first, size_t n, struct rod_error *err) {
    float *all = malloc(sizeof *all * w->rows * w->cols), *dst = NULL;
    if (!all) {
        rod_fail(err, ROD_ENOMEM, "no memory to convert weights");
        return NULL;
    }
    weight_to_f32(w, all);
    dst = upload_floats(be, all + first, n, err);
    free(all);
    return dst;
}

static float *upload_conv(struct backend *be, const struct weight *w, struct rod_error *err) { /* [E, K] -> [K, Ep] */
    const uint32_t E = be->d.E, K = be->d.K, Ep = be->shape.Ep;
    float *rows = malloc(sizeof *rows * E * K), *turned = calloc((size_t)K * Ep, sizeof *turned), *dst = NULL;
    if (rows && turned) {
        weight_to_f32(w, rows);
        for (uint32_t e = 0; e < E; e++)
            for (uint32_t j = 0; j < K; j++) turned[j * Ep + e] = rows[e * K + j];
        dst = upload_floats(be, turned, (size_t)K * Ep, err);
    } else
        rod_fail(err, ROD_ENOMEM, "no memory to convert weights");
    free(rows), free(turned);
    return dst;
}

static int load_layer(struct upload *up, const struct model_layer *src, struct cuda_layer *dst, struct rod_error *err) {
    struct backend *be = up->be;
    const struct model_dims *d = &be->d;
    const uint32_t Ep = be->shape.Ep;
    int rc = new_matrix(be, 2 * Ep, d->D, &dst->fc, err);
    dst->fc.whole = true;
    if (!rc) rc = upload_rows(up, &src->fc, 0, d->E, 0, &dst->fc, err);
    if (!rc) rc = upload_rows(up, &src->fc, d->E, d->E, Ep, &dst->fc, err);
    if (!rc) rc = new_matrix(be, 4 * d->M, d->E, &dst->in, err);
    if (!rc) rc = upload_rows(up, &src->in_proj, 0, 2 * d->M, 0, &dst->in, err);
    if (!rc) rc = upload_rows(up, &src->mem_gate, 0, 2 * d->M, 2 * d->M, &dst->in, err);
    if (!rc) rc = upload_matrix(up, &src->c0, &dst->c0, err);
    if (!rc) rc = upload_matrix(up, &src->out_proj, &dst->out, err);
    if (!rc && d->plus) {
        const uint32_t nq = d->H * d->P, nk = d->Hk * d->P, nv = d->Hv * d->P;
        rc = new_matrix(be, nq + nk + nv, d->D, &dst->qkv, err);
        if (!rc) rc = upload_rows(up, &src->q, 0, nq, 0, &dst->qkv, err);
        if (!rc) rc = upload_rows(up, &src->k, 0, nk, nq, &dst->qkv, err);
        if (!rc) rc = upload_rows(up, &src->v, 0, nv, nq + nk, &dst->qkv, err);
        if (!rc) rc = upload_matrix(up, &src->ao, &dst->ao, err);
        if (!rc) rc = new_matrix(be, 2 * d->F, d->D, &dst->f1, err);
        if (!rc) rc = upload_packed(up, &src->f1, 0, d->F, 0, CUDA_PACK_FIRST_EIGHTS, &dst->f1, err);
        if (!rc) rc = upload_packed(up, &src->f1, d->F, d->F, 0, CUDA_PACK_SECOND_EIGHTS, &dst->f1, err);
        if (!rc) rc = upload_matrix(up, &src->f2, &dst->f2, err);
    }
    const struct {
        const struct weight *w;
        size_t first, n;
        float **v;
    } vectors[] = {
        {&src->mixer_norm, 0, d->D, &dst->mixer_norm},
        {&src->conv_b, 0, d->E, &dst->conv_b},
        {&src->residual, 0, d->E, &dst->residual},
        {&src->c1, 0, (size_t)d->E * d->R, &dst->c1},
        {&src->c1_b, 0, d->E, &dst->c1_b},
        {&src->mem_gate_b, 0, d->M, &dst->g_b},
        {&src->mem_gate_b, d->M, d->M, &dst->t_b},
        {&src->act_norm, 0, d->E, &dst->act_norm},
        {&src->attn_norm, 0, d->D, &dst->attn_norm},
        {&src->q_norm, 0, d->P, &dst->q_norm},
        {&src->k_norm, 0, d->P, &dst->k_norm},
        {&src->ffn_norm, 0, d->D, &dst->ffn_norm},
    };
    for (size_t i = 0; !rc && i < sizeof vectors / sizeof *vectors; i++)
        if (vectors[i].w->n_parts &&
            !(*vectors[i].v = upload_vector(be, vectors[i].w, vectors[i].first, vectors[i].n, err)))
            rc = err ? err->code : ROD_ENOMEM;
    if (!rc && !(dst->conv = upload_conv(be, &src->conv, err))) rc = err ? err->code : ROD_ENOMEM;
    return rc;
}

static int load_weights(struct backend *be, const struct model *model, const struct backend_config *config,
                        struct rod_error *err) {
    const struct model_dims *d = &be->d;
    struct upload up = {.be = be, .config = config, .total = model->weight_bytes};
    int rc = 0;
    for (int i = 0; !rc && i < 2; i++) {
        rc = cuda_check(cudaMallocHost(&up.host[i], STAGING_BYTES), "taking pinned memory", err);
        if (!rc) rc = cuda_check(cudaMalloc(&up.device[i], STAGING_BYTES), "taking staging memory", err);
        if (!rc) rc = cuda_check(cudaEventCreateWithFlags(&up.done[i], cudaEventDisableTiming), "making an event", err);
    }
    if (!rc) rc = upload_matrix(&up, &model->embed, &be->embed, err);
    if (!rc && d->tied)
        be->lm_head = be->embed;
    else if (!rc)
        rc = upload_matrix(&up, &model->lm_head, &be->lm_head, err);
    if (!rc && !(be->norm_f = upload_vector(be, &model->norm_f, 0, d->D, err))) rc = ROD_EDEVICE;
    if (!rc && d->norm_embed && !(be->embed_norm = upload_vector(be, &model->embed_norm, 0, d->D, err)))
        rc = ROD_EDEVICE;
    for (uint32_t i = 0; !rc && i < d->L; i++) rc = load_layer(&up, &model->layers[i], &be->layers[i], err);
    if (!rc) rc = cuda_check(cudaStreamSynchronize(be->stream), "packing weights", err);
    for (int i = 0; i < 2; i++) {
        if (up.host[i]) cudaFreeHost(up.host[i]);
        if (up.device[i]) cudaFree(up.device[i]);
        if (up.done[i]) cudaEventDestroy(up.done[i]);
    }
    be->lm_head.whole = true;
    return rc;
}

/* ---- slots and workspaces ---- */

static size_t act_bytes(const struct backend *be) { return be->shape.dtype == CUDA_F32 ? 4 : 2; }

static void lay_out_slots(struct backend *be) {
    const struct model_dims *d = &be->d;
    struct cuda_shape *s = &be->shape;
    s->S_layer = (size_t)s->Ep * d->M;
    s->conv_layer = (size_t)d->K * s->Ep;
    s->keys_layer = (size_t)s->ring_keys * d->Hk * d->P;
    s->values_layer = (size_t)s->ring_keys * d->Hv * d->P;
    s->S_slot = s->S_layer * d->L;
    s->conv_slot = s->conv_layer * d->L;
    s->keys_slot = s->keys_layer * d->L;
    s->values_slot = s->values_layer * d->L;
    be->info.slot_bytes = s->S_slot * 4 + (s->conv_slot + s->keys_slot + s->values_slot) * act_bytes(be);
}

static int make_slots(struct backend *be, uint32_t n_slots, struct rod_error *err) {
    struct cuda_shape *s = &be->shape;
    size_t available = 0, total = 0;
    cudaMemGetInfo(&available, &total);
    if (n_slots ==
        0) { /* what is free, less a reserve for the driver; a step has at most MAX_BATCH rows with a chunk of prompt */
        uint64_t fit = available > (1u << 29) ? (available - (1u << 29)) / be->info.slot_bytes : 0;
        if (fit < 2)
            return rod_fail(err, ROD_ENOMEM, "GPU memory: a session takes %.1f MiB, %.1f MiB are free",
                            (double)be->info.slot_bytes / (1 << 20), (double)available / (1 << 20));
        n_slots = fit - 1 > MAX_BATCH / 2 ? MAX_BATCH / 2 : (uint32_t)(fit - 1);
    }
    be->info.n_slots = n_slots;
    const size_t n = (size_t)n_slots + 1, a = act_bytes(be); /* one more for padding rows */
    unsigned char *pool = take(be, n * be->info.slot_bytes, "the slot pool", err);
    if (!pool) return err ? err->code : ROD_ENOMEM;
    s->S = (float *)(void *)pool;
    s->keys = pool + n * s->S_slot * 4;
    s->values = (unsigned char *)s->keys + n * s->keys_slot * a;
    s->conv = (unsigned char *)s->values + n * s->values_slot * a;
    return cuda_check(cudaMemsetAsync(pool, 0, n * be->info.slot_bytes, be->stream), "clearing the slot pool", err);
}

static int make_rows(struct backend *be, struct rod_error *err) {
    const size_t N = be->info.max_batch_tok;
    be->block_bytes = N * (6 * sizeof(int32_t) + sizeof(int64_t));
    int rc = cuda_check(cudaMallocHost(&be->host_block, be->block_bytes), "taking pinned memory", err);
    if (rc || !(be->block = take(be, be->block_bytes, "the rows of a step", err))) return rc ? rc : ROD_ENOMEM;
    memset(be->host_block, 0, be->block_bytes);
    for (int i = 0; i < 2; i++) {
        int64_t *pos = i ? be->block : be->host_block;
        int32_t *p = (int32_t *)(pos + N);
        *(i ? &be->rows : &be->host) = (struct cuda_rows){p, p + N, pos, p + 2 * N, p + 3 * N};
        *(i ? &be->list : &be->host_list) = p + 4 * N;
        *(i ? &be->out : &be->host_out) = p + 5 * N;
    }
    return 0;
}

/* Rows of logits: a bucket's padding rows have theirs too. */
static size_t logit_rows(const struct backend *be, const struct backend_config *config) {
    size_t n = be->info.max_out;
    for (uint32_t b = 1; b <= be->info.max_batch_tok && b / 2 < config->n_slots; b *= 2) n = b > n ? b : n;
    return n;
}

static int make_workspaces(struct backend *be, const struct backend_config *config, struct rod_error *err) {
    const struct cuda_shape *s = &be->shape;
    const size_t N = be->info.max_batch_tok, D = s->D, Ep = s->Ep, M = s->M,
                 width = (size_t)(s->H + s->Hk + s->Hv) * s->P;
    const size_t blocks = cuda_window_blocks(s);
    const struct {
        float **p;
        size_t n;
    } parts[] = {
        /* 4: partial products */
        {&be->x, N * D},
        {&be->y, N * D},
        {&be->squares, N * ((D + 15) / 16)},
        {&be->y_squares, N * ((D + 15) / 16)},
        {&be->az, N * 2 * Ep},
        {&be->s, N * Ep},
        {&be->in, 4 * N * 4 * M},
        {&be->c0_part, 4 * N * s->R},
        {&be->q, N * M},
        {&be->k, N * M},
        {&be->log_alpha, N * M},
        {&be->c0, N * s->R},
        {&be->sums, N * (Ep / 32)},
        {&be->d_part, 4 * N * D},
        {&be->qkv, 4 * N * width},
        {&be->aq, N * s->H * s->P},
        {&be->part, N * blocks * s->H * s->P},
        {&be->part_ml, N * blocks * s->H * 2},
        {&be->f1, 4 * N * 2 * s->F},
        {&be->gathered, N * D},
        {&be->turn, N * s->rot_dim},
        {&be->logits, logit_rows(be, config) * s->V},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!(*parts[i].p = take(be, parts[i].n * sizeof(float), "a workspace", err)))
            return err ? err->code : ROD_ENOMEM;
    const struct {
        void **p;
        uint32_t cols;
    } acts[] = {
        {&be->act_d, s->D}, {&be->act_e, s->E}, {&be->act_a, s->E}, {&be->act_q, s->H * s->P}, {&be->act_f, s->F}};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++) {
        size_t bytes = cuda_activation_bytes((uint32_t)N, acts[i].cols, s->dtype); /* the padding of k stays zero */
        if (!(*acts[i].p = take(be, bytes, "a workspace", err))) return err ? err->code : ROD_ENOMEM;
        cudaMemsetAsync(*acts[i].p, 0, bytes, be->stream);
    }
    double *inv_freq = calloc(s->rot_dim / 2 + 1, sizeof *inv_freq);
    if (!inv_freq) return rod_fail(err, ROD_ENOMEM, "no memory for the rotary frequencies");
    for (uint32_t i = 0; i < s->rot_dim / 2; i++) inv_freq[i] = 1.0 / pow(be->d.rot_base, 2.0 * i / s->rot_dim);
    be->inv_freq = take(be, (s->rot_dim / 2 + 1) * sizeof *inv_freq, "a workspace", err);
    int rc = !be->inv_freq ? ROD_ENOMEM
                           : cuda_check(cudaMemcpy(be->inv_freq, inv_freq, (s->rot_dim / 2 + 1) * sizeof *inv_freq,
                                                   cudaMemcpyHostToDevice),
                                        "uploading frequencies", err);
    free(inv_freq);
    if (!rc)
        rc = cuda_check(cudaMallocHost((void **)&be->host_logits, logit_rows(be, config) * s->V * sizeof(float)),
                        "taking pinned memory for logits", err);
    return rc;
}

static void backend_cuda_close(struct backend *be) {
    if (!be) return;
    cudaSetDevice(be->device);
    if (be->stream) cudaStreamSynchronize(be->stream);
    for (int i = 0; i < CUDA_N_BUCKETS; i++)
        if (be->graphs[i]) cudaGraphExecDestroy(be->graphs[i]);
    for (size_t i = 0; i < be->n_allocations; i++) cudaFree(be->allocations[i]);
    if (be->host_block) cudaFreeHost(be->host_block);
    if (be->host_logits) cudaFreeHost(be->host_logits);
    if (be->stream) cudaStreamDestroy(be->stream);
    free(be->allocations), free(be->layers), free(be);
}

static int refuse(const struct model_dims *d, struct rod_error *err) {
    if (d->M > 128)
        return rod_fail(err, ROD_EUNSUPPORTED, "the CUDA backend runs mem_size up to 128, this model has %u", d->M);
    if (d->K > 8)
        return rod_fail(err, ROD_EUNSUPPORTED, "the CUDA backend runs d_conv up to 8, this model has %u", d->K);
    if (d->D > 8192)
        return rod_fail(err, ROD_EUNSUPPORTED, "the CUDA backend runs d_model up to 8192, this model has %u", d->D);
    if (d->R > 512)
        return rod_fail(err, ROD_EUNSUPPORTED, "the CUDA backend runs input_gate_low_rank up to 512, this model has %u",
                        d->R);
    if (d->plus && (d->P % 8 || d->P > 256))
        return rod_fail(err, ROD_EUNSUPPORTED,
                        "the CUDA backend runs head sizes that are multiples of 8 up to 256, this model has %u", d->P);
    if (d->F % 8)
        return rod_fail(err, ROD_EUNSUPPORTED,
                        "the CUDA backend runs FFN widths that are multiples of 8, this model has %u", d->F);
    return 0;
}

static int choose_dtype(const struct model *model, const char *precision, enum cuda_dtype *dtype,
                        struct rod_error *err) {
    if (!precision || !strcmp(precision, "auto")) /* fp32 weights become bf16 on a GPU */
        *dtype = model->weight_dtype == DTYPE_F16 ? CUDA_F16 : CUDA_BF16;
    else if (!strcmp(precision, "fp32"))
        *dtype = CUDA_F32;
    else if (!strcmp(precision, "fp16"))
        *dtype = CUDA_F16;
    else if (!strcmp(precision, "bf16"))
        *dtype = CUDA_BF16;
    else
        return rod_fail(err, ROD_EINVALID, "precision '%s' is none of auto, fp32, bf16, fp16", precision);
    return 0;
}

static int open_parts(struct backend *be, const struct model *model, const struct backend_config *config,
                      struct rod_error *err) {
    const struct model_dims *d = &be->d;
    int rc = cuda_check(cudaSetDevice(be->device), "choosing the device", err);
    if (!rc) rc = cuda_check(cudaStreamCreateWithFlags(&be->stream, cudaStreamNonBlocking), "making a stream", err);
    if (!rc) rc = choose_dtype(model, config->precision, &be->shape.dtype, err);
    if (rc) return rc;
    const enum cuda_dtype dtype = be->shape.dtype;
    be->shape = (struct cuda_shape){.D = d->D,
                                    .E = d->E,
                                    .M = d->M,
                                    .R = d->R,
                                    .K = d->K,
                                    .H = d->H,
                                    .Hk = d->Hk,
                                    .Hv = d->Hv,
                                    .P = d->P,
                                    .F = d->F,
                                    .V = d->V,
                                    .visible = d->visible,
                                    .rot_dim = d->rot_dim,
                                    .ring_keys = d->plus ? d->visible + CHUNK - 1 : 0,
                                    .Ep = (d->E + 31) / 32 * 32,
                                    .rot_interleaved = d->rot_interleaved,
                                    .qk_norm = d->qk_norm,
                                    .norm_eps = d->norm_eps,
                                    .k_eps = d->k_eps,
                                    .qk_norm_eps = d->qk_norm_eps,
                                    .dtype = dtype};
    be->few = cuda_few_possible(&be->shape);
    lay_out_slots(be);
    be->info.chunk_tok = CHUNK;
    const uint32_t want = config->n_slots ? config->n_slots : MAX_BATCH / 2, least = want + CHUNK;
    be->info.max_batch_tok = config->max_batch_tok ? config->max_batch_tok : least > MAX_BATCH ? least : MAX_BATCH;
    if (be->info.max_batch_tok < least)
        return rod_fail(err, ROD_EINVALID,
                        "max_batch_tokens %u is below slots + %d = %u: a full step must have room for a prompt",
                        be->info.max_batch_tok, CHUNK, least);
    if (be->info.max_batch_tok / CHUNK > 60)
        return rod_fail(err, ROD_EINVALID, "max_batch_tokens %u is above %d", be->info.max_batch_tok, 60 * CHUNK);
    be->info.max_out =
        config->max_out && config->max_out < be->info.max_batch_tok ? config->max_out : be->info.max_batch_tok;
    if (d->plus && !cuda_window_prepare(&be->shape))
        return rod_fail(err, ROD_EUNSUPPORTED, "heads of %u dims need more shared memory than this GPU has", d->P);
    if (!rc) rc = load_weights(be, model, config, err);
    if (!rc) rc = make_rows(be, err);
    if (!rc) rc = make_workspaces(be, config, err);
    if (!rc) rc = make_slots(be, config->n_slots, err);
    if (!rc) rc = cuda_check(cudaStreamSynchronize(be->stream), "setting up", err);
    if (!rc) rc = forward_cuda_capture(be, err);
    return rc;
}

static int backend_cuda_open(const struct model *model, const struct backend_config *config, struct backend **out,
                             struct rod_error *err) {
    struct backend *be = calloc(1, sizeof *be);
    if (be) be->allocations = calloc(MAX_ALLOCATIONS, sizeof *be->allocations);
    if (be) be->layers = calloc(model->dims.L, sizeof *be->layers);
    if (!be || !be->allocations || !be->layers) {
        backend_cuda_close(be);
        return rod_fail(err, ROD_ENOMEM, "no memory for the CUDA backend");
    }
    be->d = model->dims;
    be->fault_step = config->fault_step;
    if (config->device && !strncmp(config->device, "cuda:", 5)) be->device = (int)strtol(config->device + 5, NULL, 10);
    int n = 0, rc = cuda_check(cudaGetDeviceCount(&n), "looking for devices", err);
    if (!rc && be->device >= n) rc = rod_fail(err, ROD_EINVALID, "device %s: there are %d", config->device, n);
    if (!rc) rc = refuse(&be->d, err);
    if (!rc) rc = open_parts(be, model, config, err);
    if (rc) {
        backend_cuda_close(be);
        return rc;
    }
    struct cudaDeviceProp prop;
    cudaGetDeviceProperties(&prop, be->device);
    snprintf(be->info.device, sizeof be->info.device, "cuda:%d (%.40s)", be->device, prop.name);
    *out = be;
    return 0;
}

static const struct backend_info *backend_cuda_info(const struct backend *be) { return &be->info; }

static void backend_cuda_slot_zero(struct backend *be,
                                   uint32_t slot) { /* an error shows in the next forward: CUDA's are sticky */
    const struct cuda_shape *s = &be->shape;
    cudaMemsetAsync(s->S + slot * s->S_slot, 0, s->S_slot * 4, be->stream);
    cudaMemsetAsync((unsigned char *)s->conv + slot * s->conv_slot * act_bytes(be), 0, s->conv_slot * act_bytes(be),
                    be->stream);
}

static float *read_back(struct backend *be, const void *src, size_t n, enum cuda_dtype dtype, struct rod_error *err) {
    float *dst = malloc(n * sizeof *dst + 16);
    if (!dst) {
        rod_fail(err, ROD_ENOMEM, "no memory to read a state");
        return NULL;
    }
    const size_t size = dtype == CUDA_F32 ? 4 : 2;
    unsigned char *raw = (unsigned char *)dst + n * (4 - size); /* converted in place, from the front */
    if (cuda_check(cudaMemcpyAsync(raw, src, n * size, cudaMemcpyDeviceToHost, be->stream), "reading a state", err) ||
        cuda_check(cudaStreamSynchronize(be->stream), "reading a state", err)) {
        free(dst);
        return NULL;
    }
    if (size == 2) {
        struct weight_part part = {raw, dtype == CUDA_F16 ? DTYPE_F16 : DTYPE_BF16, 1};
        for (size_t i = 0; i < n; i++) {
            float f;
            weight_part_to_f32(&part, i, 1, &f);
            dst[i] = f;
        }
    }
    return dst;
}

static int backend_cuda_slot_read(struct backend *be, uint32_t slot, uint64_t pos, uint32_t layer,
                                  struct backend_layer_state *out, struct rod_error *err) {
    const struct model_dims *d = &be->d;
    const struct cuda_shape *s = &be->shape;
    const size_t a = act_bytes(be), nk = (size_t)d->Hk * d->P, nv = (size_t)d->Hv * d->P;
    float *S = read_back(be, s->S + slot * s->S_slot + layer * s->S_layer, s->S_layer, CUDA_F32, err);
    float *conv = read_back(be, (unsigned char *)s->conv + (slot * s->conv_slot + layer * s->conv_layer) * a,
                            s->conv_layer, s->dtype, err);
    float *k = NULL, *v = NULL;
    if (d->plus) {
        k = read_back(be, (unsigned char *)s->keys + (slot * s->keys_slot + layer * s->keys_layer) * a, s->keys_layer,
                      s->dtype, err);
        v = read_back(be, (unsigned char *)s->values + (slot * s->values_slot + layer * s->values_layer) * a,
                      s->values_layer, s->dtype, err);
    }
    const bool ok = S && conv && (!d->plus || (k && v));
    if (ok) {
        for (uint32_t m = 0; m < d->M; m++)
            for (uint32_t e = 0; e < d->E; e++)
                out->S[(size_t)m * d->E + e] = S[((size_t)(e / 32) * d->M + m) * 32 + e % 32];
        for (uint32_t j = 0; j < d->K; j++)
            for (uint32_t e = 0; e < d->E; e++)
                out->conv[(size_t)e * d->K + j] = conv[(size_t)((pos + j) % d->K) * s->Ep + e];
        out->n_keys = pos < d->visible ? (uint32_t)pos : d->visible;
        for (uint32_t j = 0; d->plus && out->k && out->v && j < out->n_keys; j++) {
            size_t at = (size_t)((pos - out->n_keys + j) % s->ring_keys);
            memcpy(out->k + j * nk, k + at * nk, nk * sizeof(float));
            memcpy(out->v + j * nv, v + at * nv, nv * sizeof(float));
        }
    }
    free(S), free(conv), free(k), free(v);
    return ok ? 0 : err ? err->code : ROD_EDEVICE;
}

/* Bandwidth: copying 2 GiB within the device, read and write counted; products: the rate that cuBLAS reaches on a large
 * bf16 product on this kind of device (760 TFLOP/s on an H200) is far from binding in decode and is not measured. */
static int backend_cuda_ceilings(struct backend *be, double bytes, double *bytes_per_s, double *flop_per_s,
                                 struct rod_error *err) {
    (void)bytes;
    const size_t n = (size_t)1 << 31;
    void *from = NULL, *to = NULL;
    cudaEvent_t begin = NULL, end = NULL;
    float best = 1e30f;
    int rc = cuda_check(cudaMalloc(&from, n), "taking memory to measure bandwidth", err);
    if (!rc) rc = cuda_check(cudaMalloc(&to, n), "taking memory to measure bandwidth", err);
    if (!rc) rc = cuda_check(cudaEventCreate(&begin), "making an event", err);
    if (!rc) rc = cuda_check(cudaEventCreate(&end), "making an event", err);
    if (!rc) rc = cuda_check(cudaMemsetAsync(from, 0x3c, n, be->stream), "measuring bandwidth", err);
    for (int i = 0; !rc && i < 12; i++) {
        float ms = 0;
        cudaEventRecord(begin, be->stream);
        cudaMemcpyAsync(to, from, n, cudaMemcpyDeviceToDevice, be->stream);
        cudaEventRecord(end, be->stream);
        rc = cuda_check(cudaEventSynchronize(end), "measuring bandwidth", err);
        if (!rc) rc = cuda_check(cudaEventElapsedTime(&ms, begin, end), "measuring bandwidth", err);
        if (i > 1 && ms < best) best = ms;
    }
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    cudaFree(from), cudaFree(to);
    *bytes_per_s = 2.0 * (double)n / (best * 1e-3);
    if (*bytes_per_s < 4.25e12) *bytes_per_s = 4.25e12; /* a slow day does not flatter */
    *flop_per_s = 760e12;
    return rc;
}

static const struct backend_ops backend_cuda = {
    .name = "cuda",
    .open = backend_cuda_open,
    .close = backend_cuda_close,
    .info = backend_cuda_info,
    .slot_zero = backend_cuda_slot_zero,
    .slot_read = backend_cuda_slot_read,
    .forward = forward_cuda,
    .ceilings = backend_cuda_ceilings,
};

extern const struct backend_plugin rodimus_cuda_plugin;
__attribute__((visibility("default"))) const struct backend_plugin rodimus_cuda_plugin = {cuda_devices, &backend_cuda};
