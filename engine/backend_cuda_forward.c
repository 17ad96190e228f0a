/* backend_cuda_forward.c - one step on the GPU. A step of single tokens is one graph replay per bucket of rows; a step
 * with prompt pieces launches the same kernels one by one. The order of stages is that of forward_cpu.c. */
#include "backend_cuda.h"

#include <cuda_runtime.h>

#include <assert.h>
#include <math.h>
#include <string.h>

struct step {
    /* Of a phase, the rows that are alone in their segment's piece come first; alone_end = phase_end of the phase
     * before where k_decode_window is not possible. */
    uint32_t n_rows, n_segs, n_out, n_phases, alone_end[64], phase_end[64];
    bool single; /* one token a session */
    enum cuda_end end;
};

/* pending: partial sums that the layer before left to add, row_sums of a norm whose scale they still want. */
static void mixer(struct backend *be, const struct step *st, uint32_t layer, uint32_t n_pending,
                  const float *row_sums) {
    const struct cuda_layer *w = &be->layers[layer];
    const struct cuda_shape *s = &be->shape;
    const uint32_t n = st->n_rows;
    const size_t part = (size_t)be->info.max_batch_tok * s->D;
    void *stream = be->stream;
    /* The scale of a norm is applied after the product that follows, but for fp32. */
    float *row_scale = s->dtype == CUDA_F32 ? NULL : be->row_scale;
    /* x += what the layer before left in partial sums; h = RMSNorm(x) */
    k_add_norm(be->x, be->d_part, n_pending, part, row_sums, s->Ep / 32, s->E, w->mixer_norm, s->norm_eps, n, s->D,
               be->x, be->act_d, row_scale, NULL, s->dtype, stream);
    k_linear(&w->fc, be->act_d, n, be->az, 2 * (size_t)s->Ep, 0, stream);
    k_conv(s, layer, &be->rows, st->n_segs, be->az, row_scale, w->conv, w->conv_b, be->s, be->act_e, be->act_a, stream);
    const size_t in_stride = (size_t)be->info.max_batch_tok * 4 * s->M,
                 c0_stride = (size_t)be->info.max_batch_tok * s->R;
    k_linear_pair(&w->in, be->act_e, be->in, 4 * (size_t)s->M, in_stride, &w->c0, be->act_a, be->c0_part, s->R,
                  c0_stride, n, stream);
    const uint32_t in_splits = cuda_linear_splits(&w->in, n), c0_splits = cuda_linear_splits(&w->c0, n);
    if (st->single) {
        k_gla_gates(s, layer, &be->rows, n, be->in, in_splits, in_stride, be->c0_part, c0_splits, c0_stride, w->g_b,
                    w->t_b, w->c1_t, w->c1_b, be->az, row_scale, be->s, w->residual, w->act_norm, be->sums, be->act_e,
                    stream);
    } else {
        k_gates(s, be->in, in_splits, in_stride, be->c0_part, c0_splits, c0_stride, w->g_b, w->t_b, n, be->q, be->k,
                be->log_alpha, be->c0, stream);
        k_gla(s, layer, &be->rows, st->n_segs, be->q, be->k, be->log_alpha, be->c0, w->c1, w->c1_b, be->az, row_scale,
              be->s, w->residual, w->act_norm, be->sums, be->act_e, stream);
    }
    k_linear(&w->out, be->act_e, n, be->d_part, s->D, part, stream);
}

/* E9's attention: qkv in `splits` partial sums -> act_q. A row's kernel depends on its own piece alone, so its bits do
 * not depend on the rest of the step. */
static void attention(struct backend *be, const struct step *st, uint32_t layer, uint32_t splits, size_t stride,
                      const float *row_scale) {
    const struct cuda_layer *w = &be->layers[layer];
    const struct cuda_shape *s = &be->shape;
    void *stream = be->stream;
    for (uint32_t phase = 0, first = 0; phase < st->n_phases; first = st->phase_end[phase++]) {
        const int32_t *alone = be->list + first, *list = be->list + st->alone_end[phase];
        const uint32_t n_alone = st->alone_end[phase] - first, n_list = st->phase_end[phase] - st->alone_end[phase];
        if (n_alone)
            k_decode_window(s, layer, &be->rows, st->single ? NULL : alone, n_alone, st->single, be->qkv, splits,
                            stride, row_scale, be->turn, w->q_norm, w->k_norm, be->part, be->part_ml, be->act_q,
                            stream);
        if (n_list) {
            k_rope(s, layer, &be->rows, list, n_list, be->qkv, splits, stride, row_scale, be->turn, w->q_norm,
                   w->k_norm, be->aq, stream);
            k_window(s, layer, &be->rows, list, n_list, be->aq, be->part, be->part_ml, stream);
            k_window_combine(s, list, n_list, be->part, be->part_ml, be->act_q, stream);
        }
    }
}

static void attention_and_ffn(struct backend *be, const struct step *st, uint32_t layer) {
    const struct cuda_layer *w = &be->layers[layer];
    const struct cuda_shape *s = &be->shape;
    const uint32_t n = st->n_rows, width = (s->H + s->Hk + s->Hv) * s->P;
    const size_t part = (size_t)be->info.max_batch_tok * s->D;
    float *row_scale = s->dtype == CUDA_F32 ? NULL : be->row_scale;
    void *stream = be->stream;
    /* x_state = x + W_o's sums times the scale of E8's norm; h2 */
    k_add_norm(be->x, be->d_part, cuda_linear_splits(&w->out, n), part, be->sums, s->Ep / 32, s->E, w->attn_norm,
               s->norm_eps, n, s->D, be->x, be->act_d, row_scale, NULL, s->dtype, stream);
    k_linear(&w->qkv, be->act_d, n, be->qkv, width, (size_t)be->info.max_batch_tok * width, stream);
    attention(be, st, layer, cuda_linear_splits(&w->qkv, n), (size_t)be->info.max_batch_tok * width, row_scale);
    k_linear(&w->ao, be->act_q, n, be->d_part, s->D, part, stream);
    k_add_norm(be->x, be->d_part, cuda_linear_splits(&w->ao, n), part, NULL, 0, 0, w->ffn_norm, s->norm_eps, n, s->D,
               NULL, be->act_d, row_scale, NULL, s->dtype, stream);
    const size_t f1_stride = (size_t)be->info.max_batch_tok * w->f1.rows;
    k_linear(&w->f1, be->act_d, n, be->f1, w->f1.rows, f1_stride, stream);
    k_ffn_act(be->f1, cuda_linear_splits(&w->f1, n), f1_stride, row_scale, s->F, n, be->act_f, s->dtype, stream);
    k_linear(&w->f2, be->act_f, n, be->d_part, s->D, part,
             stream); /* added to x_state by the next norm: the two-hop residual */
}

/* A layer of a decode step, one token a session: the same sums in the same order, with the norms, the convolution, the
 * gates and the FFN gate inside the products. */
static void fused_mixer(struct backend *be, const struct step *st, uint32_t layer, const float *next_norm) {
    const struct cuda_layer *w = &be->layers[layer];
    const struct cuda_shape *s = &be->shape;
    const struct cuda_normed x = {be->act_d, be->squares, s->norm_eps, s->D};
    const uint32_t n = st->n_rows;
    const bool as_one = n > CUDA_FEW_ROWS && n <= CUDA_CONV_PAIR_ROWS && cuda_conv_pair_possible(s);
    const uint32_t splits = as_one ? 4 : cuda_fused_pair_splits(n);
    const size_t in_stride = (size_t)n * 4 * s->M, c0_stride = (size_t)n * s->R;
    void *stream = be->stream;
    if (as_one) {
        k_fused_linear(&w->fc, &x, n, be->az, 2 * (size_t)s->Ep, stream);
        k_conv_pair(s, layer, &be->rows, be->az, w->conv, w->conv_b, &w->in, &w->c0, n, be->s, be->in, in_stride,
                    be->c0_part, c0_stride, stream);
    } else {
        k_fused_conv(s, layer, &be->rows, &w->fc, &x, w->conv, w->conv_b, n, be->az, be->s, be->act_e, be->act_a,
                     stream);
        k_fused_linear_pair(&w->in, be->act_e, be->in, 4 * (size_t)s->M, in_stride, &w->c0, be->act_a, be->c0_part,
                            s->R, c0_stride, n, stream);
    }
    k_gla_gates(s, layer, &be->rows, n, be->in, splits, in_stride, be->c0_part, splits, c0_stride, w->g_b, w->t_b,
                w->c1_t, w->c1_b, be->az, NULL, be->s, w->residual, w->act_norm, be->sums, be->act_e, stream);
    k_fused_residual(&w->out, be->act_e, be->sums, s->Ep / 32, s->E, s->norm_eps, be->x, next_norm, n, be->x,
                     be->squares, be->act_d, stream);
}

static void fused_attention_and_ffn(struct backend *be, const struct step *st, uint32_t layer, const float *next_norm) {
    const struct cuda_layer *w = &be->layers[layer];
    const struct cuda_shape *s = &be->shape;
    const struct cuda_normed x = {be->act_d, be->squares, s->norm_eps, s->D}; /* and y after it */
    const uint32_t n = st->n_rows, width = (s->H + s->Hk + s->Hv) * s->P;
    void *stream = be->stream;
    k_fused_linear(&w->qkv, &x, n, be->qkv, width, stream);
    attention(be, st, layer, 1, 0, NULL);
    k_fused_residual(&w->ao, be->act_q, NULL, 0, 0, 0, be->x, w->ffn_norm, n, NULL, be->squares, be->act_d, stream);
    k_fused_ffn(&w->f1, &x, n, be->act_f, stream);
    k_fused_residual(&w->f2, be->act_f, NULL, 0, 0, 0, be->x, next_norm, n, be->x, be->squares, be->act_d,
                     stream); /* the two-hop residual */
}

/* Logits of a decode step, a row each. */
static void enqueue_fused(struct backend *be, const struct step *st) {
    const struct cuda_shape *s = &be->shape;
    const struct cuda_normed normed = {be->act_d, NULL, 0, 0};
    const uint32_t L = be->d.L, n = st->n_rows;
    k_add_norm(be->x, NULL, 0, 0, NULL, 0, 0, be->layers[0].mixer_norm, s->norm_eps, n, s->D, NULL, be->act_d,
               be->row_scale, be->squares, s->dtype, be->stream);
    for (uint32_t i = 0; i < L; i++) {
        const float *next = i + 1 < L ? be->layers[i + 1].mixer_norm : NULL;
        fused_mixer(be, st, i, be->d.plus ? be->layers[i].attn_norm : next);
        if (be->d.plus) fused_attention_and_ffn(be, st, i, next);
    }
    k_add_norm(be->x, NULL, 0, 0, NULL, 0, 0, be->norm_f, s->norm_eps, n, s->D, NULL, be->act_d, NULL, NULL, s->dtype,
               be->stream);
    k_fused_linear(&be->lm_head, &normed, n, be->logits, s->V, be->stream);
}

static void enqueue_many(struct backend *be, const struct step *st) {
    const struct model_dims *d = &be->d;
    const struct cuda_shape *s = &be->shape;
    void *stream = be->stream;
    const size_t part = (size_t)be->info.max_batch_tok * s->D;
    uint32_t n_pending = 0;
    const float *row_sums = NULL;
    for (uint32_t i = 0; i < d->L; i++) {
        mixer(be, st, i, n_pending, row_sums);
        if (d->plus) attention_and_ffn(be, st, i);
        const struct cuda_matrix *last = d->plus ? &be->layers[i].f2 : &be->layers[i].out;
        n_pending = cuda_linear_splits(last, st->n_rows);
        row_sums = d->plus ? NULL : be->sums;
    }
    if (st->n_out == 0) return;
    const bool all = st->single && st->n_out == st->n_rows; /* no rows to choose */
    k_add_norm(be->x, be->d_part, n_pending, part, row_sums, s->Ep / 32, s->E, all ? be->norm_f : NULL, s->norm_eps,
               st->n_rows, s->D, all ? NULL : be->x, all ? be->act_d : NULL, NULL, NULL, s->dtype, stream);
    if (!all) {
        k_gather_rows(be->x, be->out, st->n_out, s->D, be->gathered, stream);
        k_add_norm(be->gathered, NULL, 0, 0, NULL, 0, 0, be->norm_f, s->norm_eps, st->n_out, s->D, NULL, be->act_d,
                   NULL, NULL, s->dtype, stream);
    }
    k_linear(&be->lm_head, be->act_d, st->n_out, be->logits, s->V, 0, stream);
}

static void enqueue_step(struct backend *be, const struct step *st) {
    const struct model_dims *d = &be->d;
    const struct cuda_step to = {be->rows, be->list, be->out};
    k_step_rows(&be->sampler, be->host, &to, st->n_rows, st->n_segs, st->n_out, be->stream);
    k_embed(&be->embed, &be->rows, st->n_rows, d->scale_embed ? sqrtf((float)d->M) : 1.0f, be->x, be->inv_freq,
            d->rot_dim / 2, be->turn, be->stream);
    if (d->norm_embed) k_norm_rows(be->x, be->embed_norm, be->shape.norm_eps, st->n_rows, be->shape.D, be->stream);
    if (be->fused && st->single && st->n_out == st->n_rows)
        enqueue_fused(be, st);
    else
        enqueue_many(be, st);
    if (st->n_out && st->end != CUDA_LOGITS)
        k_sample(&be->sampler, &be->rows, be->out, st->n_out, st->end == CUDA_DRAWS, be->logits, be->stream);
    else if (st->n_out)
        cudaMemcpyAsync(be->host_logits, be->logits, (size_t)st->n_out * be->shape.V * sizeof(float),
                        cudaMemcpyDeviceToHost, be->stream);
}

static uint32_t bucket_of(uint32_t n) {
    uint32_t b = 0;
    while (b < CUDA_N_BUCKETS && 1u << b < n) b++;
    return b;
}

static int capture(struct backend *be, uint32_t b, enum cuda_end end, struct rod_error *err) {
    const uint32_t n = 1u << b;
    struct step st = {
        .n_rows = n, .n_segs = n, .n_out = n, .n_phases = 1, .phase_end = {n}, .single = true, .end = end};
    if (cuda_decode_window_possible(&be->shape)) st.alone_end[0] = n;
    cudaGraph_t graph = NULL;
    int rc = cuda_check(cudaStreamBeginCapture(be->stream, cudaStreamCaptureModeThreadLocal), "capturing a decode step",
                        err);
    if (rc) return rc;
    enqueue_step(be, &st);
    rc = cuda_check(cudaStreamEndCapture(be->stream, &graph), "capturing a decode step", err);
    if (!rc)
        rc =
            cuda_check(cudaGraphInstantiate(&be->graphs[end][b], graph, 0), "building the graph of a decode step", err);
    if (graph) cudaGraphDestroy(graph);
    return rc;
}

int forward_cuda_capture(struct backend *be, struct rod_error *err) {
    int rc = 0;
    for (uint32_t b = 0; !rc && b < CUDA_N_BUCKETS; b++) {
        if (1u << b > be->info.max_batch_tok || 1u << b >> 1 >= be->info.n_slots) break;
        for (int end = 0; !rc && end < CUDA_N_ENDS; end++) rc = capture(be, b, (enum cuda_end)end, err);
    }
    return rc;
}

int forward_cuda_start(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, enum cuda_end how,
                       uint32_t *n_out, struct rod_error *err) {
    const struct cuda_step *host = &be->host[be->n_steps % 2];
    int32_t *tok = (int32_t *)(uintptr_t)host->rows.tok, *slot = (int32_t *)(uintptr_t)host->rows.slot;
    int32_t *seg_first = (int32_t *)(uintptr_t)host->rows.seg_first, *seg_n = (int32_t *)(uintptr_t)host->rows.seg_n;
    int64_t *pos = (int64_t *)(uintptr_t)host->rows.pos;
    int32_t *list = (int32_t *)(uintptr_t)host->list, *out = (int32_t *)(uintptr_t)host->out;
    const uint32_t chunk = be->info.chunk_tok;
    struct step st = {.n_segs = n_segs, .end = how};
    cudaSetDevice(be->device); /* of this thread */
    if (be->fault_step && be->n_steps + 1 == be->fault_step) k_fault(be->stream);
    bool decode = true;
    for (uint32_t i = 0; i < n_segs; i++) {
        assert(segs[i].slot < be->info.n_slots && segs[i].n_tok > 0 && segs[i].n_out <= segs[i].n_tok);
        assert(st.n_rows + segs[i].n_tok <= be->info.max_batch_tok && st.n_out + segs[i].n_out <= be->info.max_out);
        decode = decode && segs[i].n_tok == 1 && segs[i].n_out == 1;
        seg_first[i] = (int32_t)st.n_rows;
        seg_n[i] = (int32_t)segs[i].n_tok;
        for (uint32_t t = 0; t < segs[i].n_tok; t++, st.n_rows++) {
            tok[st.n_rows] = segs[i].tok ? segs[i].tok[t] : -1;
            slot[st.n_rows] = (int32_t)segs[i].slot;
            pos[st.n_rows] = (int64_t)(segs[i].pos + t);
            if (t + segs[i].n_out >= segs[i].n_tok) out[st.n_out++] = (int32_t)st.n_rows;
        }
    }
    *n_out = st.n_out;
    if (st.n_rows == 0) return 0;
    be->n_steps++;
    uint32_t b = bucket_of(n_segs);
    if (decode && b < CUDA_N_BUCKETS && be->graphs[how][b]) {
        for (uint32_t r = n_segs; r < 1u << b; r++) { /* padding rows work in a slot that nobody owns */
            tok[r] = 0, slot[r] = (int32_t)be->info.n_slots, pos[r] = 0, seg_first[r] = (int32_t)r, seg_n[r] = 1;
        }
        for (uint32_t r = 0; r < 1u << b; r++) list[r] = out[r] = (int32_t)r;
        int rc = cuda_check(cudaGraphLaunch(be->graphs[how][b], be->stream), "starting a decode step", err);
        if (rc) return rc;
        be->bucket = b;
    } else {
        be->bucket = CUDA_N_BUCKETS;
        uint32_t n_listed = 0;
        const bool decodes = cuda_decode_window_possible(&be->shape);
        for (uint32_t phase = 0; n_listed < st.n_rows;
             phase++) { /* pieces of segments between multiples of the chunk */
            assert(phase < sizeof st.phase_end / sizeof *st.phase_end);
            st.alone_end[phase] = n_listed;
            for (int alone = decodes; alone >= 0; alone--) {
                for (uint32_t i = 0; i < n_segs; i++) {
                    const uint64_t begin = segs[i].pos, end = begin + segs[i].n_tok,
                                   piece = (begin / chunk + phase) * chunk;
                    const uint64_t from = piece < begin ? begin : piece, to = piece + chunk < end ? piece + chunk : end;
                    if (from >= to || (decodes && alone != (to - from == 1))) continue;
                    for (uint64_t p = from; p < to; p++) list[n_listed++] = seg_first[i] + (int32_t)(p - begin);
                }
                if (alone) st.alone_end[phase] = n_listed;
            }
            st.phase_end[phase] = n_listed;
            st.n_phases = phase + 1;
        }
        enqueue_step(be, &st);
        int rc = cuda_check(cudaGetLastError(), "launching a step", err);
        if (rc) return rc;
    }
    be->info.host_bytes = (uint64_t)st.n_rows * 32;
    if (how == CUDA_LOGITS) be->info.host_bytes += (uint64_t)st.n_out * be->shape.V * sizeof(float);
    return 0;
}

int forward_cuda(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, const float **logits,
                 struct rod_error *err) {
    uint32_t n_out;
    int rc = forward_cuda_start(be, segs, n_segs, CUDA_LOGITS, &n_out, err);
    *logits = be->host_logits;
    return rc ? rc : cuda_check(cudaStreamSynchronize(be->stream), "running a step", err);
}
