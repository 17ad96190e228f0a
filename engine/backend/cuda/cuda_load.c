/* cuda_load.c - from a model's files to packed weights on the device: once, through pinned memory. */
#include "cuda_backend.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <cuda_runtime.h>

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STAGING_BYTES = 32 << 20, READ_AHEAD_BYTES = 512 << 20, CODING_THREADS = 32 };

/* There are two pinned buffers: while one is copied and packed, the files are read into the other. */
struct upload {
    struct backend *be;
    const struct backend_config *config;
    void *host[2], *device[2];
    cudaEvent_t done[2];
    int parity;
    uint64_t bytes, total; /* copied, of all */
    const struct model *model;
    uint64_t asked; /* read ahead: bytes asked for, the next weight and part to ask for */
    uint32_t next_weight, next_part;
};

/* The i-th matrix in the order of loading; NULL after the last. */
static const struct weight *matrix_at(const struct model *model, uint32_t i) {
    static const size_t at[] = {offsetof(struct model_layer, fc),       offsetof(struct model_layer, in_proj),
                                offsetof(struct model_layer, mem_gate), offsetof(struct model_layer, c0),
                                offsetof(struct model_layer, out_proj), offsetof(struct model_layer, q),
                                offsetof(struct model_layer, k),        offsetof(struct model_layer, v),
                                offsetof(struct model_layer, ao),       offsetof(struct model_layer, f1),
                                offsetof(struct model_layer, f2)};
    const uint32_t n = sizeof at / sizeof *at;
    if (i == 0) return &model->embed;
    if (--i == 0 && !model->dims.tied) return &model->lm_head;
    if (!model->dims.tied) i--;
    if (i / n >= model->dims.L) return NULL;
    return (const struct weight *)(const void *)((const char *)&model->layers[i / n] + at[i % n]);
}

/* Asks the system to read what comes next from the files, while what is there is copied and packed. */
static void read_ahead(struct upload *up) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const struct weight *w;
    while (up->asked < up->bytes + READ_AHEAD_BYTES && (w = matrix_at(up->model, up->next_weight))) {
        if (up->next_part >= w->n_parts) {
            up->next_weight++, up->next_part = 0;
            continue;
        }
        const struct weight_part *part = &w->part[up->next_part++];
        const size_t bytes = (size_t)part->rows * w->cols * dtype_bytes(part->dtype);
        const uintptr_t begin = (uintptr_t)part->data / page * page;
        madvise((void *)begin, (uintptr_t)part->data + bytes - begin, MADV_WILLNEED); /* refused: only slower */
        up->asked += bytes;
    }
}

static enum cuda_dtype dtype_of(enum dtype dtype) {
    return dtype == DTYPE_F32 ? CUDA_F32 : dtype == DTYPE_F16 ? CUDA_F16 : CUDA_BF16;
}

static void report_progress(const struct upload *up) {
    if (up->bytes >= up->total) return; /* the vectors and the last packing are still to come */
    rod_progress(&up->config->progress, "loading weights", "B", up->bytes, up->total);
}

/* Rows [first, first + n) of w go to rows from row0 on of m, as pack places them. */
struct rows {
    const struct weight *w;
    uint32_t first, n, row0;
    enum cuda_pack pack;
    const struct cuda_matrix *m;
};

static int upload_packed(struct upload *up, const struct rows *of, struct rod_error *err) {
    const struct weight *w = of->w;
    const uint32_t first = of->first, end = first + of->n;
    uint32_t base = 0;
    for (uint32_t p = 0; p < w->n_parts; base += w->part[p++].rows) {
        const struct weight_part *part = &w->part[p];
        const size_t row_bytes = w->cols * dtype_bytes(part->dtype);
        uint32_t lo = first > base ? first - base : 0, hi = end > base ? end - base : 0;
        if (hi > part->rows) hi = part->rows;
        while (lo < hi) {
            uint32_t rows = (uint32_t)(STAGING_BYTES / row_bytes);
            if (rows == 0) return rod_fail(err, ROD_EMODEL, "a weight's row of %zu bytes is too long", row_bytes);
            if (rows > hi - lo) rows = hi - lo;
            const int i = up->parity ^= 1;
            read_ahead(up);
            int rc = cuda_check(cudaEventSynchronize(up->done[i]), "uploading weights", err);
            if (rc) return rc;
            weight_part_copy(part, (size_t)lo * w->cols, (size_t)rows * w->cols, up->host[i]);
            cudaMemcpyAsync(up->device[i], up->host[i], rows * row_bytes, cudaMemcpyHostToDevice, up->be->stream);
            k_pack(up->device[i], dtype_of(part->dtype), of->row0 + base + lo - first, rows, w->cols, of->pack, of->m,
                   up->be->stream);
            rc = cuda_check(cudaEventRecord(up->done[i], up->be->stream), "uploading weights", err);
            if (rc) return rc;
            up->bytes += rows * row_bytes;
            report_progress(up);
            lo += rows;
        }
    }
    return 0;
}

/* ---- codes ---- */

/* Rows of a weight as codes, on several threads: each takes the next one. */
struct coding {
    const struct weight *w;
    const struct weight_quant *q;
    uint32_t first, n, groups, next;
    uint8_t *codes, *zeros; /* zeros: NULL where the format has none */
    float *scales;
};
static void *code_rows(void *arg) {
    struct coding *c = arg;
    uint32_t r;
    while ((r = __atomic_fetch_add(&c->next, 1, __ATOMIC_RELAXED)) < c->n)
        weight_quant_row(c->w, c->q, c->first + r, c->codes + (size_t)r * c->w->cols, c->scales + (size_t)r * c->groups,
                         c->zeros ? c->zeros + (size_t)r * c->groups : NULL);
    return NULL;
}
static void code_all_rows(struct coding *c) {
    const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    pthread_t threads[CODING_THREADS];
    int n = 0;
    while (n < CODING_THREADS && n + 1 < cpus && !pthread_create(&threads[n], NULL, code_rows, c)) n++;
    code_rows(c); /* this thread works too, and alone if no other could start */
    while (n) pthread_join(threads[--n], NULL);
}

/* A scale that the kernels' 16 bits do not hold; NaN is what a weight that is no number has. */
static int check_scales(const struct coding *c, struct rod_error *err) {
    for (size_t i = 0; i < (size_t)c->n * c->groups; i++)
        if (fabsf(c->scales[i]) >= 64)
            return rod_fail_at(err, ROD_EUNSUPPORTED, "weights",
                               "weights: a scale is %g; a GPU runs scales below 64 in size.", (double)c->scales[i]);
    return 0;
}

/* upload_packed of a matrix of codes. */
static int upload_codes(struct upload *up, const struct rows *of, const struct weight_quant *q, struct rod_error *err) {
    const struct weight *w = of->w;
    const uint32_t groups = weight_quant_groups(q, w->cols);
    const size_t row_bytes = groups * sizeof(float) + w->cols + groups;
    const uint32_t most = (uint32_t)(STAGING_BYTES / row_bytes);
    if (most == 0) return rod_fail(err, ROD_EMODEL, "a weight's row of %zu bytes is too long", row_bytes);
    for (uint32_t done = 0; done < of->n;) {
        const uint32_t rows = of->n - done < most ? of->n - done : most;
        const size_t codes_at = (size_t)rows * groups * sizeof(float), zeros_at = codes_at + (size_t)rows * w->cols,
                     bytes = zeros_at + (q->zeros ? (size_t)rows * groups : 0);
        const int i = up->parity ^= 1;
        read_ahead(up);
        int rc = cuda_check(cudaEventSynchronize(up->done[i]), "uploading weights", err);
        if (rc) return rc;
        unsigned char *host = up->host[i], *device = up->device[i];
        struct coding c = {.w = w,
                           .q = q,
                           .first = of->first + done,
                           .n = rows,
                           .groups = groups,
                           .codes = host + codes_at,
                           .zeros = q->zeros ? host + zeros_at : NULL,
                           .scales = (float *)(void *)host};
        code_all_rows(&c);
        if ((rc = check_scales(&c, err))) return rc;
        cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, up->be->stream);
        k_pack_codes(device + codes_at, (const float *)(const void *)device, q->zeros ? device + zeros_at : NULL,
                     of->row0 + done, rows, of->pack, of->m, up->be->stream);
        rc = cuda_check(cudaEventRecord(up->done[i], up->be->stream), "uploading weights", err);
        if (rc) return rc;
        up->bytes += (uint64_t)rows * w->cols * dtype_bytes(w->part[0].dtype);
        report_progress(up);
        done += rows;
    }
    return 0;
}

/* ---- matrices ---- */

static enum cuda_format format_of(const struct weight_quant *q) {
    return q->format == WEIGHT_FP8 ? CUDA_FP8 : q->format == WEIGHT_INT8 ? CUDA_INT8 : CUDA_INT4;
}

/* m is kept as w is. */
static int upload_part(struct upload *up, const struct rows *of, struct rod_error *err) {
    const struct cuda_matrix *m = of->m;
    struct weight_quant q;
    const bool coded = weight_quant_of(up->model, of->w, &q);
    if (coded ? m->format != format_of(&q) || m->grouped != (q.group < of->w->cols) : m->format != CUDA_STORED)
        return rod_fail_at(err, ROD_EUNSUPPORTED, "weights",
                           "weights: q, k and v of a layer are kept in formats of their own; a GPU runs one for all "
                           "three.");
    return coded ? upload_codes(up, of, &q, err) : upload_packed(up, of, err);
}
static int upload_rows(struct upload *up, const struct weight *w, uint32_t first, uint32_t n, uint32_t row0,
                       const struct cuda_matrix *m, struct rod_error *err) {
    return upload_part(up, &(struct rows){w, first, n, row0, CUDA_PACK_ROWS, m}, err);
}

/* Kept as `like` is. */
static int new_matrix(struct upload *up, const struct weight *like, uint32_t rows, uint32_t cols, struct cuda_matrix *m,
                      struct rod_error *err) {
    struct backend *be = up->be;
    struct weight_quant q;
    *m = (struct cuda_matrix){.rows = rows, .cols = cols, .dtype = be->shape.dtype};
    if (weight_quant_of(up->model, like, &q)) m->format = format_of(&q), m->grouped = q.group < cols;
    const bool coded = m->format != CUDA_STORED;
    const size_t bytes = coded ? cuda_codes_bytes(m) : cuda_matrix_bytes(rows, cols, m->dtype),
                 scale_bytes = coded ? cuda_scales_bytes(m) : 0;
    m->data = cuda_take(be, bytes, "a weight matrix", err);
    if (m->data && coded) m->scales = cuda_take(be, scale_bytes, "the scales of a weight matrix", err);
    if (!m->data || (coded && !m->scales)) return err ? err->code : ROD_ENOMEM;
    be->info.weight_bytes += bytes + scale_bytes;
    int rc = cuda_check(cudaMemsetAsync(m->data, 0, bytes, be->stream), "clearing a weight matrix", err);
    if (!rc && coded)
        rc = cuda_check(cudaMemsetAsync(m->scales, 0, scale_bytes, be->stream), "clearing a weight matrix", err);
    return rc;
}

static int upload_matrix(struct upload *up, const struct weight *w, struct cuda_matrix *m, struct rod_error *err) {
    int rc = new_matrix(up, w, w->rows, w->cols, m, err);
    return rc ? rc : upload_rows(up, w, 0, w->rows, 0, m, err);
}

/* ---- vectors ---- */

/* n floats on the device, from a host array. */
static float *upload_floats(struct backend *be, const float *src, size_t n, struct rod_error *err) {
    float *dst = cuda_take(be, n * sizeof *dst, "a weight vector", err);
    if (dst && cuda_check(cudaMemcpy(dst, src, n * sizeof *dst, cudaMemcpyHostToDevice), "uploading a vector", err))
        return NULL;
    be->info.weight_bytes += n * sizeof *dst;
    return dst;
}

static float *upload_vector(struct backend *be, const struct weight *w, size_t first, size_t n, struct rod_error *err) {
    float *all = malloc(sizeof *all * w->rows * w->cols), *dst = NULL;
    if (!all) {
        rod_fail_no_memory(err);
        return NULL;
    }
    assert(first + n <= (size_t)w->rows * w->cols);
    weight_to_f32(w, all);
    dst = upload_floats(be, all + first, n, err);
    free(all);
    return dst;
}

/* [E, n] -> [n, Ep] */
static float *upload_transposed(struct backend *be, const struct weight *w, uint32_t n, struct rod_error *err) {
    const uint32_t E = be->d.E, Ep = be->shape.Ep;
    assert((size_t)w->rows * w->cols == (size_t)E * n && Ep % 32 == 0 && Ep >= E);
    float *rows = malloc(sizeof *rows * E * n), *transposed = calloc((size_t)n * Ep, sizeof *transposed), *dst = NULL;
    if (rows && transposed) {
        weight_to_f32(w, rows);
        for (uint32_t e = 0; e < E; e++)
            for (uint32_t j = 0; j < n; j++) transposed[(size_t)j * Ep + e] = rows[(size_t)e * n + j];
        dst = upload_floats(be, transposed, (size_t)n * Ep, err);
    } else
        rod_fail_no_memory(err);
    free(rows), free(transposed);
    return dst;
}

static int load_layer(struct upload *up, const struct model_layer *src, struct cuda_layer *dst, struct rod_error *err) {
    struct backend *be = up->be;
    const struct model_dims *d = &be->d;
    const uint32_t Ep = be->shape.Ep;
    int rc = new_matrix(up, &src->fc, 2 * Ep, d->D, &dst->fc, err);
    dst->fc.whole = true;
    if (!rc) rc = upload_rows(up, &src->fc, 0, d->E, 0, &dst->fc, err);
    if (!rc) rc = upload_rows(up, &src->fc, d->E, d->E, Ep, &dst->fc, err);
    if (!rc) rc = new_matrix(up, &src->in_proj, 4 * d->M, d->E, &dst->in, err);
    if (!rc) rc = upload_rows(up, &src->in_proj, 0, 2 * d->M, 0, &dst->in, err);
    if (!rc) rc = upload_rows(up, &src->mem_gate, 0, 2 * d->M, 2 * d->M, &dst->in, err);
    if (!rc) rc = upload_matrix(up, &src->c0, &dst->c0, err);
    if (!rc) rc = upload_matrix(up, &src->out_proj, &dst->out, err);
    if (!rc && d->plus) {
        const uint32_t nq = d->H * d->P, nk = d->Hk * d->P, nv = d->Hv * d->P;
        rc = new_matrix(up, &src->q, nq + nk + nv, d->D, &dst->qkv, err);
        if (!rc) rc = upload_rows(up, &src->q, 0, nq, 0, &dst->qkv, err);
        if (!rc) rc = upload_rows(up, &src->k, 0, nk, nq, &dst->qkv, err);
        if (!rc) rc = upload_rows(up, &src->v, 0, nv, nq + nk, &dst->qkv, err);
        if (!rc) rc = upload_matrix(up, &src->ao, &dst->ao, err);
        if (!rc) rc = new_matrix(up, &src->f1, 2 * be->shape.F, d->D, &dst->f1, err); /* rows past F: zeros */
        if (!rc) rc = upload_part(up, &(struct rows){&src->f1, 0, d->F, 0, CUDA_PACK_FIRST_EIGHTS, &dst->f1}, err);
        if (!rc) rc = upload_part(up, &(struct rows){&src->f1, d->F, d->F, 0, CUDA_PACK_SECOND_EIGHTS, &dst->f1}, err);
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
    if (!rc && (!(dst->conv = upload_transposed(be, &src->conv, d->K, err)) ||
                !(dst->c1_t = upload_transposed(be, &src->c1, d->R, err))))
        rc = err ? err->code : ROD_ENOMEM;
    return rc;
}

int cuda_load(struct backend *be, const struct model *model, const struct backend_config *config,
              struct rod_error *err) {
    const struct model_dims *d = &be->d;
    struct upload up = {.be = be, .config = config, .total = model->weight_bytes, .model = model};
    int rc = 0;
    for (int i = 0; !rc && i < 2; i++) {
        rc = cuda_check(cudaMallocHost(&up.host[i], STAGING_BYTES), "taking pinned memory", err);
        if (!rc) rc = cuda_check(cudaMalloc(&up.device[i], STAGING_BYTES), "taking staging memory", err);
        if (!rc) rc = cuda_check(cudaEventCreateWithFlags(&up.done[i], cudaEventDisableTiming), "making an event", err);
    }
    struct weight_quant q;
    if (!rc) rc = upload_matrix(&up, &model->embed, &be->embed, err);
    /* A tied head in fewer bits is a copy for its product: the embedding's rows stay. */
    if (!rc && d->tied && !weight_quant_of(model, &model->lm_head, &q))
        be->lm_head = be->embed;
    else if (!rc)
        rc = upload_matrix(&up, &model->lm_head, &be->lm_head, err);
    if (!rc && !(be->norm_f = upload_vector(be, &model->norm_f, 0, d->D, err))) rc = ROD_EDEVICE;
    if (!rc && d->norm_embed && !(be->embed_norm = upload_vector(be, &model->embed_norm, 0, d->D, err)))
        rc = ROD_EDEVICE;
    for (uint32_t i = 0; !rc && i < d->L; i++) rc = load_layer(&up, &model->layers[i], &be->layers[i], err);
    if (!rc) rc = cuda_check(cudaStreamSynchronize(be->stream), "packing weights", err);
    if (!rc) rod_progress(&config->progress, "loading weights", "B", up.total, up.total);
    for (int i = 0; i < 2; i++) {
        if (up.host[i]) cudaFreeHost(up.host[i]);
        if (up.device[i]) cudaFree(up.device[i]);
        if (up.done[i]) cudaEventDestroy(up.done[i]);
    }
    be->lm_head.whole = true;
    return rc;
}
