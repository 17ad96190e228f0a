/* cpu_backend.c - the CPU backend: packs the weights in their own dtype, owns the slot pool and the workspaces. */
#include "cpu_backend.h"
#include "engine/base/fail.h"
#include "engine/base/host.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_ALLOCATIONS = 64 + 32 * 4096 };

static uint32_t pad_panel(uint32_t n) { return (n + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL; }

/* Zeroed, 64-byte aligned, freed with the backend. NULL: err is filled. */
static void *cpu_take(struct backend *be, size_t bytes, struct rod_error *err) {
    bytes = (bytes + 63) / 64 * 64 + 64;
    void *p = be->n_allocations < MAX_ALLOCATIONS ? aligned_alloc(64, bytes) : NULL;
    if (!p) {
        rod_fail_no_memory(err);
        return NULL;
    }
    memset(p, 0, bytes);
    be->allocations[be->n_allocations++] = p;
    return p;
}

/* ---- weights ---- */

struct pack_job {
    const struct weight *w;
    uint32_t first_row;
    struct cpu_matrix *m;
    struct team *team;
    float *rows;                  /* [threads][cols], for conversions and what an adapter changes */
    const struct weight_quant *q; /* NULL, or w is kept in fewer bits, and its codes are read as numbers */
    size_t n_scales;              /* of a row, which come behind its floats with codes and zero points */
};

/* A row's weights by its codes. */
static void widen_codes(const struct pack_job *job, uint32_t row, float *values) {
    const uint32_t cols = job->m->cols;
    float *scales = values + cols;
    uint8_t *codes = (uint8_t *)(scales + job->n_scales), *zeros = job->q->zeros ? codes + cols : NULL;
    weight_quant_row(job->w, job->q, row, codes, scales, zeros);
    weight_quant_widen(job->q, cols, codes, scales, zeros, values);
}

static const unsigned char *source_row(const struct weight *w, uint32_t row, const struct weight_part **part,
                                       size_t *first) {
    const struct weight_part *p = &w->part[0];
    if (row >= p->rows) {
        row -= p->rows;
        p = &w->part[1];
    }
    *part = p;
    *first = (size_t)row * w->cols;
    return (const unsigned char *)p->data + *first * dtype_bytes(p->dtype);
}

static size_t job_row_floats(const struct pack_job *job) {
    return job->q ? 2 * ((size_t)job->m->cols + job->n_scales) + 1 : job->m->cols; /* codes take a fourth of floats */
}

static void pack_member(void *arg, uint32_t member) {
    struct pack_job *job = arg;
    struct cpu_matrix *m = job->m;
    uint32_t p0, p1;
    team_range(job->team, member, m->n_panels, &p0, &p1);
    const size_t size = m->dtype == CPU_F32 ? 4 : 2, step = CPU_PANEL * size;
    for (uint32_t row = p0 * CPU_PANEL; row < p1 * CPU_PANEL && row < m->rows; row++) {
        const struct weight_part *part;
        size_t first;
        const unsigned char *src = source_row(job->w, job->first_row + row, &part, &first);
        unsigned char *dst = m->data + cpu_matrix_offset(m, row, 0);
        if (m->dtype == CPU_F32) { /* as it is, or converted where the pieces' dtypes differ */
            float *values = job->rows + (size_t)member * job_row_floats(job);
            if (job->q)
                widen_codes(job, job->first_row + row, values);
            else
                weight_part_to_f32(part, first, m->cols, values);
            src = (const unsigned char *)values;
        } else if (part->delta || part->codes) {
            weight_part_copy(part, first, m->cols, job->rows + (size_t)member * job_row_floats(job));
            src = (const unsigned char *)(job->rows + (size_t)member * job_row_floats(job));
        }
        for (uint32_t c = 0; c < m->cols; c++) memcpy(dst + c * step, src + c * size, size);
    }
}

struct quant_job {
    const struct weight *w;
    struct weight_quant q;
    uint32_t first_row, n_scales;
    struct cpu_matrix *m;
    struct team *team;
    unsigned char *rows; /* [threads]: scales, codes, zeros of a row */
    size_t row_bytes;
};

static void quant_member(void *arg, uint32_t member) {
    struct quant_job *job = arg;
    struct cpu_matrix *m = job->m;
    float *scales = (float *)(void *)(job->rows + member * job->row_bytes);
    uint8_t *codes = (uint8_t *)(scales + job->n_scales), *zeros = m->zeros ? codes + m->cols : NULL;
    uint32_t p0, p1;
    team_range(job->team, member, m->n_panels, &p0, &p1);
    for (uint32_t row = p0 * CPU_PANEL; row < p1 * CPU_PANEL && row < m->rows; row++) {
        weight_quant_row(job->w, &job->q, job->first_row + row, codes, scales, zeros);
        cpu_quant_pack_row(m, row, codes, scales, zeros);
    }
}

/* rows [first, first + n) of w in int8 or int4. */
static int quant_rows(struct backend *be, const struct weight *w, const struct weight_quant *q, uint32_t first,
                      uint32_t n, struct cpu_matrix *m, struct rod_error *err) {
    *m = (struct cpu_matrix){.rows = n,
                             .cols = w->cols,
                             .n_panels = pad_panel(n) / CPU_PANEL,
                             .dtype = q->format == WEIGHT_INT8 ? CPU_INT8 : CPU_INT4,
                             .row_scales = q->group == w->cols,
                             .zeros = q->zeros};
    assert(q->format == WEIGHT_INT8 || q->format == WEIGHT_INT4);
    assert(q->group == w->cols || q->group == CPU_BLOCK);
    struct quant_job job = {.w = w, .q = *q, .first_row = first, .m = m, .team = be->team};
    const size_t bytes = cpu_quant_panel_bytes(m) * m->n_panels;
    job.n_scales = weight_quant_groups(q, w->cols);
    job.row_bytes = ((size_t)w->cols + 5 * (size_t)job.n_scales + 63) / 64 * 64;
    m->data = cpu_take(be, bytes, err);
    job.rows = m->data ? malloc(job.row_bytes * team_size(be->team)) : NULL;
    if (!m->data) return ROD_ENOMEM;
    if (!job.rows) return rod_fail_no_memory(err);
    team_run(be->team, quant_member, &job);
    free(job.rows);
    be->quantised = true;
    be->info.weight_bytes += bytes;
    return 0;
}

/* rows [first, first + n) of w, packed. */
static int pack_rows(struct backend *be, const struct model *model, const struct weight *w, uint32_t first, uint32_t n,
                     bool fp32, struct cpu_matrix *m, struct rod_error *err) {
    struct weight_quant q;
    rod_progress(&be->progress, "packing weights", "B", be->packed_bytes, be->model_bytes);
    be->packed_bytes += (uint64_t)n * w->cols * dtype_bytes(w->part[0].dtype);
    assert(first + n <= w->rows);
    const bool narrow = weight_quant_of(model, w, &q);
    if (narrow && !fp32) return quant_rows(be, w, &q, first, n, m, err);
    enum dtype dtype = w->part[0].dtype;
    bool convert = fp32 || (w->n_parts == 2 && w->part[1].dtype != dtype);
    *m = (struct cpu_matrix){.rows = n, .cols = w->cols, .n_panels = pad_panel(n) / CPU_PANEL};
    if (!convert) m->dtype = dtype == DTYPE_F32 ? CPU_F32 : dtype == DTYPE_F16 ? CPU_F16 : CPU_BF16;
    struct pack_job job = {
        w, first, m, be->team, NULL, narrow ? &q : NULL, narrow ? weight_quant_groups(&q, w->cols) : 0};
    size_t bytes = cpu_matrix_bytes(n, w->cols, m->dtype);
    m->data = cpu_take(be, bytes, err);
    bool buffered = m->dtype == CPU_F32;
    for (uint32_t i = 0; i < w->n_parts; i++) buffered |= w->part[i].delta || w->part[i].codes;
    if (buffered) job.rows = malloc(sizeof(float) * job_row_floats(&job) * team_size(be->team));
    if (!m->data || (buffered && !job.rows)) {
        free(job.rows);
        return m->data ? rod_fail_no_memory(err) : ROD_ENOMEM;
    }
    team_run(be->team, pack_member, &job);
    free(job.rows);
    be->info.weight_bytes += (uint64_t)n * w->cols * (m->dtype == CPU_F32 ? 4 : 2);
    return 0;
}

/* Elements [first, first + n) of a small weight in fp32, zeros up to the padded width. */
static float *load_vector(struct backend *be, const struct weight *w, uint32_t first, uint32_t n,
                          struct rod_error *err) {
    float *all = malloc(sizeof(float) * w->rows * w->cols), *dst = cpu_take(be, sizeof(float) * pad_panel(n), err);
    if (!all) rod_fail_no_memory(err);
    if (!all || !dst) {
        free(all);
        return NULL;
    }
    weight_to_f32(w, all);
    memcpy(dst, all + first, sizeof(float) * n);
    free(all);
    be->info.weight_bytes += 4ull * n;
    return dst;
}

/* [E, K] -> [K, Ep] */
static float *conv_weights(struct backend *be, const struct weight *w, struct rod_error *err) {
    uint32_t E = be->d.E, K = be->d.K;
    float *rows = malloc(sizeof(float) * E * K), *dst = cpu_take(be, sizeof(float) * K * be->Ep, err);
    if (!rows) rod_fail_no_memory(err);
    if (rows && dst) {
        weight_to_f32(w, rows);
        for (uint32_t e = 0; e < E; e++)
            for (uint32_t j = 0; j < K; j++) dst[j * be->Ep + e] = rows[e * K + j];
        be->info.weight_bytes += 4ull * E * K;
    }
    free(rows);
    return rows ? dst : NULL;
}

static int load_layer(struct backend *be, const struct model *model, const struct model_layer *src, bool fp32,
                      struct cpu_layer *dst, struct rod_error *err) {
    const struct model_dims *d = &be->d;
    int rc = 0;
    const struct {
        const struct weight *w;
        uint32_t first, n;
        struct cpu_matrix *m;
    } matrices[] = {
        {&src->fc, 0, d->E, &dst->a},         {&src->fc, d->E, d->E, &dst->z},
        {&src->in_proj, 0, d->M, &dst->q},    {&src->in_proj, d->M, d->M, &dst->k},
        {&src->mem_gate, 0, d->M, &dst->g},   {&src->mem_gate, d->M, d->M, &dst->t},
        {&src->c0, 0, d->R, &dst->c0},        {&src->c1, 0, d->E, &dst->c1},
        {&src->out_proj, 0, d->D, &dst->out}, {&src->q, 0, d->H * d->P, &dst->aq},
        {&src->k, 0, d->Hk * d->P, &dst->ak}, {&src->v, 0, d->Hv * d->P, &dst->av},
        {&src->ao, 0, d->D, &dst->ao},        {&src->f1, 0, d->F, &dst->fa},
        {&src->f1, d->F, d->F, &dst->fg},     {&src->f2, 0, d->D, &dst->fout},
    };
    const struct {
        const struct weight *w;
        uint32_t first, n;
        float **v;
    } vectors[] = {
        {&src->mixer_norm, 0, d->D, &dst->mixer_norm}, {&src->conv_b, 0, d->E, &dst->conv_b},
        {&src->residual, 0, d->E, &dst->residual},     {&src->c1_b, 0, d->E, &dst->c1_b},
        {&src->mem_gate_b, 0, d->M, &dst->g_b},        {&src->mem_gate_b, d->M, d->M, &dst->t_b},
        {&src->act_norm, 0, d->E, &dst->act_norm},     {&src->attn_norm, 0, d->D, &dst->attn_norm},
        {&src->q_norm, 0, d->P, &dst->q_norm},         {&src->k_norm, 0, d->P, &dst->k_norm},
        {&src->ffn_norm, 0, d->D, &dst->ffn_norm},
    };
    for (size_t i = 0; !rc && i < sizeof matrices / sizeof *matrices; i++)
        if (matrices[i].w->n_parts)
            rc = pack_rows(be, model, matrices[i].w, matrices[i].first, matrices[i].n, fp32, matrices[i].m, err);
    for (size_t i = 0; !rc && i < sizeof vectors / sizeof *vectors; i++)
        if (vectors[i].w->n_parts &&
            !(*vectors[i].v = load_vector(be, vectors[i].w, vectors[i].first, vectors[i].n, err)))
            rc = ROD_ENOMEM;
    if (!rc && !(dst->conv = conv_weights(be, &src->conv, err))) rc = ROD_ENOMEM;
    return rc;
}

static int load_weights(struct backend *be, const struct model *model, bool fp32, struct rod_error *err) {
    const struct model_dims *d = &be->d;
    int rc = pack_rows(be, model, &model->embed, 0, d->V, fp32, &be->embed, err);
    if (rc) return rc;
    struct weight_quant q;
    const bool copied = d->tied && weight_quant_of(model, &model->lm_head, &q); /* of the head, for its product */
    if (copied) be->model_bytes += (uint64_t)d->V * d->D * dtype_bytes(model->embed.part[0].dtype);
    if (d->tied && !copied)
        be->lm_head = be->embed;
    else if ((rc = pack_rows(be, model, &model->lm_head, 0, d->V, fp32, &be->lm_head, err)))
        return rc;
    if (!(be->norm_f = load_vector(be, &model->norm_f, 0, d->D, err))) return ROD_ENOMEM;
    if (d->norm_embed && !(be->embed_norm = load_vector(be, &model->embed_norm, 0, d->D, err))) return ROD_ENOMEM;
    if (!(be->layers = cpu_take(be, sizeof *be->layers * d->L, err))) return ROD_ENOMEM;
    for (uint32_t i = 0; i < d->L; i++)
        if ((rc = load_layer(be, model, &model->layers[i], fp32, &be->layers[i], err))) return rc;
    rod_progress(&be->progress, "packing weights", "B", be->model_bytes, be->model_bytes);
    return 0;
}

/* ---- slots and workspaces ---- */

static void lay_out_slot(struct backend *be) {
    const struct model_dims *d = &be->d;
    struct cpu_slot_layout *at = &be->at;
    at->S = 0;
    at->conv = at->S + (size_t)be->Ep * d->M;
    be->ring_conv = d->K + be->n_drafts;
    at->k = at->conv + (size_t)be->ring_conv * be->Ep;
    be->ring_keys = d->plus ? pad_panel(d->visible + CPU_CHUNK - 1) : 0;
    const size_t keys = (size_t)d->Hk * be->ring_keys, values = (size_t)d->Hv * be->ring_keys;
    const size_t code = dtype_bytes(be->state.window), scale = state_scale_bytes(be->state.window);
    at->v = at->k + keys * d->P * code / sizeof(float);
    at->k_scale = at->v + values * d->P * code / sizeof(float);
    at->v_scale = at->k_scale + keys * scale / sizeof(float);
    at->deferred = at->v_scale + values * scale / sizeof(float);
    at->layer_floats = at->deferred + be->n_drafts * (be->Ep + 2 * (size_t)be->Mp);
    be->slot_floats = at->layer_floats * d->L;
    be->info.slot_bytes = be->slot_floats * sizeof(float);
    assert(be->info.slot_bytes > 0 && be->ring_keys % CPU_PANEL == 0);
}

static int make_slots(struct backend *be, uint32_t n_slots, struct rod_error *err) {
    const uint64_t memory = host_memory_bytes();
    if (n_slots == 0) { /* auto: up to 64, within a quarter of the memory */
        uint64_t fit = memory / 4 / be->info.slot_bytes;
        n_slots = fit < 1 ? 1 : fit > 64 ? 64 : (uint32_t)fit;
    }
    be->info.n_slots = n_slots;
    /* Pages are taken when sessions fill them: what cannot fit would end the process later, under load. */
    if (n_slots > memory / be->info.slot_bytes)
        return rod_fail_at(
            err, ROD_ENOMEM, "slots",
            "%u slots of %llu bytes each are more than the memory that this process may use, %llu bytes.", n_slots,
            (unsigned long long)be->info.slot_bytes, (unsigned long long)memory);
    void *p = mmap(NULL, be->info.slot_bytes * n_slots, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return rod_fail_no_memory(err);
    be->slots = p;
    return 0;
}

static int make_codes(struct backend *be, struct rod_error *err) {
    const uint32_t widths[] = {be->Dp, be->Ep, be->Qp, be->Fp};
    uint32_t widest = 0;
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) widest = widths[i] > widest ? widths[i] : widest;
    be->codes.n_blocks = (widest + CPU_BLOCK - 1) / CPU_BLOCK;
    be->codes.n_rows = be->info.max_batch_tok | 1;
    const size_t n = (size_t)be->codes.n_rows * be->codes.n_blocks;
    be->codes.code = cpu_take(be, n * CPU_BLOCK * sizeof *be->codes.code, err);
    be->codes.scale = be->codes.code ? cpu_take(be, n * sizeof *be->codes.scale, err) : NULL;
    be->codes.sum = be->codes.scale ? cpu_take(be, n * sizeof *be->codes.sum, err) : NULL;
    return be->codes.sum ? 0 : ROD_ENOMEM;
}

static int make_workspaces(struct backend *be, struct rod_error *err) {
    const struct model_dims *d = &be->d;
    const size_t N = be->info.max_batch_tok, n_threads = team_size(be->team);
    const size_t Dp = be->Dp, Ep = be->Ep, Mp = be->Mp, Qp = be->Qp;
    const struct {
        float **p;
        size_t n;
    } parts[] = {
        {&be->x, N * Dp},
        {&be->h, N * Dp},
        {&be->y, N * Dp},
        {&be->a, N * Ep},
        {&be->z, N * Ep},
        {&be->s, N * Ep},
        {&be->u, N * Ep},
        {&be->o, N * Ep},
        {&be->q, N * Mp},
        {&be->k, N * Mp},
        {&be->g, N * Mp},
        {&be->t, N * Mp},
        {&be->log_alpha, N * Mp},
        {&be->q_in, N * Mp},
        {&be->k_out, N * Mp},
        {&be->decay, N * Mp},
        {&be->A, N * CPU_CHUNK},
        {&be->c0, N * be->Rp},
        {&be->aq, N * Qp},
        {&be->ak, N * be->Kvp},
        {&be->av, N * be->Vvp},
        {&be->att, N * Qp},
        {&be->fa, N * be->Fp},
        {&be->fg, N * be->Fp},
        {&be->rope, N * d->rot_dim},
        {&be->logits, (size_t)be->info.max_out * d->V},
    };
    uint64_t bytes = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) bytes += parts[i].n * sizeof(float);
    const uint64_t memory = host_memory_bytes();
    if (bytes > memory)
        return rod_fail_at(
            err, ROD_ENOMEM, "max_batch_tokens",
            "max_batch_tokens %zu takes %llu bytes, more than the memory that this process may use, %llu bytes.", N,
            (unsigned long long)bytes, (unsigned long long)memory);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!(*parts[i].p = cpu_take(be, parts[i].n * sizeof(float), err))) return ROD_ENOMEM;
    be->b = cpu_take(be, N * Mp * sizeof *be->b, err);
    be->deferred = cpu_take(be, be->info.n_slots * sizeof *be->deferred, err);
    be->rows = cpu_take(be, N * sizeof *be->rows, err);
    be->chunks = cpu_take(be, N * sizeof *be->chunks, err);
    be->inv_freq = cpu_take(be, (d->rot_dim / 2 + 1) * sizeof *be->inv_freq, err);
    be->window_scratch = cpu_take(be, n_threads * sizeof *be->window_scratch, err);
    if (!be->b || !be->deferred || !be->rows || !be->chunks || !be->inv_freq || !be->window_scratch) return ROD_ENOMEM;
    for (uint32_t i = 0; i < d->rot_dim / 2; i++) be->inv_freq[i] = 1.0 / pow(d->rot_base, 2.0 * i / d->rot_dim);
    for (size_t i = 0; i < n_threads; i++)
        if (!(be->window_scratch[i] = cpu_take(be, 4 * ((size_t)d->visible + 2 * CPU_PANEL) * sizeof(float), err)))
            return ROD_ENOMEM;
    return 0;
}

static void backend_cpu_close(struct backend *be) {
    if (!be) return;
    cpu_mover_close(be->mover);
    team_close(be->team);
    if (be->slots) munmap(be->slots, be->info.slot_bytes * be->info.n_slots);
    for (size_t i = 0; i < be->n_allocations; i++) free(be->allocations[i]);
    free(be->allocations);
    free(be);
}

static int backend_cpu_open(const struct model *model, const struct backend_config *config, struct backend **out,
                            struct rod_error *err) {
    const char *own = dtype_name(model->weight_dtype), *precision = config->precision ? config->precision : "auto";
    bool fp32 = !strcmp(precision, "fp32");
    if (!fp32 && strcmp(precision, "auto") && strcmp(precision, own))
        return rod_fail_at(err, ROD_EINVALID, "precision",
                           "precision is %s; the CPU keeps weights in their own type (%s) or in fp32.", precision, own);
    if (config->decode_kernel && !strcmp(config->decode_kernel, "persistent"))
        return rod_fail_at(err, ROD_EUNSUPPORTED, "decode_kernel",
                           "decode_kernel persistent: a CPU has no such steps.");
    if (config->prompt_products && !strcmp(config->prompt_products, "library"))
        return rod_fail_at(err, ROD_EUNSUPPORTED, "prompt_products",
                           "prompt_products library: a CPU makes products by its own kernels.");
    const int refused = fp32 ? 0 : weight_quant_check(model, backend_cpu.formats, "the CPU", err);
    if (refused) return refused;
    struct backend *be = calloc(1, sizeof *be);
    if (be) be->allocations = calloc(MAX_ALLOCATIONS, sizeof *be->allocations);
    if (be) be->team = team_open(config->n_threads);
    if (!be || !be->allocations || !be->team) {
        backend_cpu_close(be);
        return rod_fail(err, ROD_ENOMEM, "threads is %u; so many compute threads do not start.", config->n_threads);
    }
    const struct model_dims *d = &be->d;
    be->d = model->dims;
    be->fault_step = config->fault_step;
    be->n_drafts = config->no_drafts ? 0 : BACKEND_MAX_DRAFTS;
    be->progress = config->progress;
    be->model_bytes = model->weight_bytes;
    be->ops = cpu_ops_best();
    be->quant = cpu_quant_best();
    be->Dp = pad_panel(d->D), be->Ep = pad_panel(d->E), be->Mp = pad_panel(d->M), be->Rp = pad_panel(d->R),
    be->Fp = pad_panel(d->F);
    be->Qp = pad_panel(d->H * d->P), be->Kvp = pad_panel(d->Hk * d->P), be->Vvp = pad_panel(d->Hv * d->P);
    static const struct state_formats there = {.device = "a CPU", .windows = 1u << DTYPE_INT8};
    be->state = state_layout_of(d, DTYPE_F32);
    int rc = state_formats_choose(&there, config, &be->state, err);
    lay_out_slot(be);
    be->info.state = &be->state;
    state_layout_id(&be->state, be->info.state_id);
    if (!rc) rc = make_slots(be, config->n_slots, err);
    be->info.chunk_tok = CPU_CHUNK;
    /* auto: every slot may decode beside at least three chunks of prompts */
    uint32_t least = be->info.n_slots + CPU_CHUNK;
    be->info.max_batch_tok = config->max_batch_tok ? config->max_batch_tok : be->info.n_slots + 3 * CPU_CHUNK;
    if (!config->max_batch_tok && be->info.max_batch_tok < 256) be->info.max_batch_tok = 256;
    if (!rc && be->info.max_batch_tok < least && config->n_slots)
        rc = rod_fail_at(err, ROD_EINVALID, "max_batch_tokens",
                         "max_batch_tokens %u is below slots + %d = %u; a full step must have room for a prompt.",
                         be->info.max_batch_tok, CPU_CHUNK, least);
    if (!rc && be->info.max_batch_tok < least) { /* slots were ours to choose */
        if (be->info.max_batch_tok <= CPU_CHUNK)
            rc = rod_fail_at(err, ROD_EINVALID, "max_batch_tokens",
                             "max_batch_tokens %u is below %d; a full step must have room for a prompt and a token.",
                             be->info.max_batch_tok, CPU_CHUNK + 1);
        else
            be->info.n_slots = be->info.max_batch_tok - CPU_CHUNK;
    }
    be->info.max_out = config->max_out ? config->max_out : be->info.max_batch_tok;
    if (be->info.max_out > be->info.max_batch_tok) be->info.max_out = be->info.max_batch_tok;
    if (!rc) rc = make_workspaces(be, err);
    if (!rc) rc = load_weights(be, model, fp32, err);
    if (!rc && be->quantised) rc = make_codes(be, err);
    if (!rc) rc = cpu_mover_open(be, &be->mover, err);
    if (rc) {
        backend_cpu_close(be);
        return rc;
    }
    assert(be->info.n_slots + CPU_CHUNK <= be->info.max_batch_tok && be->info.max_out <= be->info.max_batch_tok);
    snprintf(be->info.device, sizeof be->info.device, "cpu (%s, %u threads)",
             be->quantised ? be->quant->isa : be->ops->isa, team_size(be->team));
    *out = be;
    return 0;
}

static const struct backend_info *backend_cpu_info(const struct backend *be) { return &be->info; }

/* The window needs no zeroing: positions tell how much of it is filled, and nothing reads beyond. */
static void backend_cpu_slot_zero(struct backend *be, uint32_t slot) {
    assert(slot < be->info.n_slots && !cpu_move_moving(be, slot, NULL));
    for (uint32_t i = 0; i < be->d.L; i++) memset(cpu_slot(be, slot, i), 0, be->at.k * sizeof(float));
    be->deferred[slot] = (struct cpu_deferred){0};
}

/* What is filled of the window's rings, in whole panels. */
static void copy_window(const struct backend *be, const float *src, float *dst, size_t n_keys) {
    const struct model_dims *d = &be->d;
    const size_t code = dtype_bytes(be->state.window), scale = state_scale_bytes(be->state.window);
    memcpy(dst + be->at.k, src + be->at.k, d->Hk * n_keys * d->P * code);
    memcpy(dst + be->at.v, src + be->at.v, d->Hv * n_keys * d->P * code);
    memcpy(dst + be->at.k_scale, src + be->at.k_scale, d->Hk * n_keys * scale);
    for (size_t h = 0, at = be->at.v_scale; scale && h < d->Hv; h++, at += be->ring_keys)
        memcpy(dst + at, src + at, n_keys * scale);
}

static void backend_cpu_slot_copy(struct backend *be, uint32_t from, uint32_t to, uint64_t pos) {
    assert(from < be->info.n_slots && to < be->info.n_slots && from != to);
    assert(!cpu_move_moving(be, from, NULL) && !cpu_move_moving(be, to, NULL));
    cpu_state_settle(be, from);
    be->deferred[to] = (struct cpu_deferred){0};
    const size_t n_keys = pos < be->ring_keys ? pad_panel((uint32_t)pos) : be->ring_keys;
    for (uint32_t i = 0; i < be->d.L; i++) {
        const float *src = cpu_slot(be, from, i);
        float *dst = cpu_slot(be, to, i);
        memcpy(dst, src, be->at.k * sizeof(float));
        copy_window(be, src, dst, n_keys);
    }
}

static void backend_cpu_slot_accept(struct backend *be, uint32_t slot, uint32_t n) {
    assert(slot < be->info.n_slots && n <= be->deferred[slot].n_drafts);
    be->deferred[slot].n = n;
}

const struct backend_ops backend_cpu = {
    .name = "cpu",
    .formats = 1u << WEIGHT_INT8 | 1u << WEIGHT_INT4,
    .open = backend_cpu_open,
    .close = backend_cpu_close,
    .info = backend_cpu_info,
    .slot_zero = backend_cpu_slot_zero,
    .slot_copy = backend_cpu_slot_copy,
    .state_bytes = cpu_state_bytes,
    .slot_save = cpu_state_save,
    .slot_load = cpu_state_load,
    .slot_save_begin = cpu_move_save_begin,
    .slot_load_begin = cpu_move_load_begin,
    .slot_moving = cpu_move_moving,
    .on_moved = cpu_move_on_moved,
    .forward = cpu_forward,
    .slot_accept = backend_cpu_slot_accept,
};
