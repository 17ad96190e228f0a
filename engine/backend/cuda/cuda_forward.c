/* cuda_forward.c - the kernels of a part of a step, in order: single tokens, captured as a graph per bucket of
 * rows, or pieces of prompts. The order of stages is that of cpu_forward.c. */
#include "cuda_backend.h"

#include <cuda_runtime.h>

#include <assert.h>
#include <math.h>
#include <string.h>

/* Floats between two partial products of n_rows rows. */
static size_t partial_stride(uint32_t n_rows, uint32_t cols) { return ((size_t)n_rows * cols + 63) / 64 * 64; }

/* Products of prompts may be the library's, all rows' or none's: whole sums. */
static bool by_library(const struct backend *be, const struct step *st, const struct cuda_matrix *w) {
    return !st->single && cuda_library_has(be, w);
}
static uint32_t splits_of(const struct backend *be, const struct step *st, const struct cuda_matrix *w) {
    return by_library(be, st, w) ? 1 : cuda_linear_splits(w, st->n_rows);
}
/* y [splits_of][n_rows][rows of w] */
static void product(struct backend *be, const struct step *st, const struct cuda_matrix *w, const void *x, float *y,
                    size_t split_stride) {
    if (by_library(be, st, w))
        cuda_library_product(be, w, x, st->n_rows, y);
    else
        k_linear(&(struct cuda_product){.w = w, .x = x, .y = y, .ldy = w->rows, .stride = split_stride}, st->n_rows,
                 be->stream);
}

/* Of E8's norm, over E channels: sums of 32 of them each, or NULL. */
static struct cuda_row_sums mixer_sums(const struct backend *be, const float *sums) {
    const struct cuda_shape *s = &be->shape;
    return (struct cuda_row_sums){.squares = sums, .n_sums = s->Ep / 32, .n = s->E, .eps = s->norm_eps};
}

/* What E2 and E4 to E8 of a layer take. az: scaled, or with row_scale. c1 as rows of prompts read it. */
static struct cuda_conv conv_of(const struct backend *be, const struct step *st, uint32_t layer,
                                const float *row_scale) {
    const struct cuda_layer *w = &be->layers[layer];
    return (struct cuda_conv){.shape = be->shape,
                              .layer = layer,
                              .rows = st->drafts ? be->draft_rows : be->rows,
                              .n_rows = st->n_rows,
                              .w = w->conv,
                              .bias = w->conv_b,
                              .az = be->az,
                              .row_scale = row_scale,
                              .s = be->s,
                              .s_act = be->act_e,
                              .a_act = be->act_a,
                              .z_act = be->act_z};
}
static struct cuda_state state_of(const struct backend *be, const struct step *st, uint32_t layer,
                                  const float *row_scale) {
    const struct cuda_layer *w = &be->layers[layer];
    return (struct cuda_state){.shape = be->shape,
                               .layer = layer,
                               .rows = st->drafts ? be->draft_rows : be->rows,
                               .c1 = st->single ? w->c1_t : w->c1,
                               .c1_b = w->c1_b,
                               .az = be->az,
                               .row_scale = row_scale,
                               .s = be->s,
                               .residual = w->residual,
                               .act_norm = w->act_norm,
                               .sums = be->sums,
                               .act = be->act_e};
}

/* E3 to E8 of a layer from the products of W_in and W_c0. */
static void enqueue_state(struct backend *be, const struct step *st, const struct cuda_state *io,
                          const struct cuda_partials *partials) {
    const struct cuda_gates gates = {.q = be->q, .k = be->k, .log_alpha = be->log_alpha, .c0 = be->c0};
    if (st->drafts)
        k_gla_drafts(io, partials, st->n_segs, be->stream);
    else if (st->single)
        k_gla_gates(io, partials, st->n_rows, be->stream);
    else {
        k_gates(&io->shape, partials, &gates, st->n_rows, be->stream);
        const struct cuda_scan scan = {.io = *io,
                                       .gates = gates,
                                       .s_act = be->act_e,
                                       .a_act = be->act_a,
                                       .z_act = be->act_z,
                                       .n_rows = st->n_rows,
                                       .n_segs = st->n_segs,
                                       .most_tok = st->most_tok,
                                       .work = be->scan_work};
        if (be->scan)
            k_scan(&scan, be->stream);
        else
            k_gla(io, &gates, st->n_segs, be->stream);
    }
}

/* pending: partial sums that the layer before left to add, row_sums of a norm whose scale they still want. */
static void enqueue_mixer(struct backend *be, const struct step *st, uint32_t layer, uint32_t n_pending,
                          const float *row_sums) {
    const struct cuda_layer *w = &be->layers[layer];
    const struct cuda_shape *s = &be->shape;
    const uint32_t n = st->n_rows;
    const size_t part = partial_stride(n, s->D);
    void *stream = be->stream;
    /* The scale of a norm is applied after the product that follows, but for fp32. */
    float *row_scale = s->dtype == CUDA_F32 ? NULL : be->row_scale;
    /* x += what the layer before left in partial sums; h = RMSNorm(x) */
    k_add_norm(&(struct cuda_add_norm){.n_rows = n,
                                       .n = s->D,
                                       .dtype = s->dtype,
                                       .base = be->x,
                                       .partial = {be->d_part, n_pending, part},
                                       .sums = mixer_sums(be, row_sums),
                                       .w = w->mixer_norm,
                                       .eps = s->norm_eps,
                                       .out = be->x,
                                       .act = be->act_d,
                                       .row_scale = row_scale},
               stream);
    product(be, st, &w->fc, be->act_d, be->az, 0);
    const struct cuda_conv conv = conv_of(be, st, layer, row_scale);
    if (be->scan && !st->single)
        k_prompt_conv(&conv, stream);
    else
        k_conv(&conv, st->n_segs, stream);
    const size_t in_stride = partial_stride(n, 4 * s->M), c0_stride = partial_stride(n, s->R);
    const struct cuda_product in = {.w = &w->in,
                                    .x = be->act_e,
                                    .y = be->in,
                                    .ldy = 4 * (size_t)s->M,
                                    .stride = in_stride},
                              c0 = {.w = &w->c0, .x = be->act_a, .y = be->c0_part, .ldy = s->R, .stride = c0_stride};
    if (by_library(be, st, &w->in) || by_library(be, st, &w->c0)) {
        product(be, st, &w->in, be->act_e, be->in, in_stride);
        product(be, st, &w->c0, be->act_a, be->c0_part, c0_stride);
    } else
        k_linear_pair(&in, &c0, n, stream);
    const struct cuda_partials partials = {.in = {be->in, splits_of(be, st, &w->in), in_stride},
                                           .c0 = {be->c0_part, splits_of(be, st, &w->c0), c0_stride},
                                           .g_b = w->g_b,
                                           .t_b = w->t_b};
    const struct cuda_state io = state_of(be, st, layer, row_scale);
    enqueue_state(be, st, &io, &partials);
    product(be, st, &w->out, be->act_e, be->d_part, part);
}

/* What E9 of a layer takes, of rows list[0..n). heads: from W_qkv's product. */
static struct cuda_window window_of(const struct backend *be, const struct step *st, uint32_t layer,
                                    const struct cuda_heads *heads) {
    return (struct cuda_window){.shape = be->shape,
                                .layer = layer,
                                .rows = st->drafts ? be->draft_rows : be->rows,
                                .heads = *heads,
                                .q = be->aq,
                                .part = be->part,
                                .part_ml = be->part_ml,
                                .act = be->act_q};
}

/* Rows list[0..n) after the keys that their rings hold: no other row of a session is among them, or (k_window) only
 * some between two multiples of the chunk. */
static void attend_rows(struct backend *be, struct cuda_window *a, const int32_t *list, uint32_t n) {
    if (!n) return;
    a->list = list, a->n_list = n;
    k_rope(a, be->stream);
    for (uint32_t i = 0; i < n; i += be->part_rows) {
        a->list = list + i, a->n_list = n - i < be->part_rows ? n - i : be->part_rows;
        k_window(a, be->stream);
        k_window_combine(a, be->stream);
    }
}

/* Attention of rows that are the only ones of their session, by the decode steps' kernel where there is one. */
static void attend_alone(struct backend *be, struct cuda_window *a, const int32_t *list, uint32_t n, bool single) {
    if (!be->decode_window) {
        attend_rows(be, a, list, n);
        return;
    }
    for (uint32_t i = 0; i < n; i += be->part_rows) {
        a->n_list = n - i < be->part_rows ? n - i : be->part_rows;
        a->list = single && a->n_list == n ? NULL : list + i;
        k_decode_window(a, single, be->stream);
    }
}

/* Of a token and its drafts each row sees those before it. A row's own range and the cut of its sums are those of a
 * step of its own. */
static void attend_drafts(struct backend *be, struct cuda_window *a, uint32_t n) {
    const uint32_t most = be->part_rows < CUDA_DRAFT_WINDOW_ROWS ? be->part_rows : CUDA_DRAFT_WINDOW_ROWS;
    if (!be->decode_window) {
        attend_rows(be, a, be->list, n);
        return;
    }
    for (uint32_t i = 0; i < n; i += most) {
        a->list = be->list + i, a->n_list = n - i < most ? n - i : most;
        k_draft_window(a, be->stream);
    }
}

/* E9's attention. A row's kernel depends on its own piece alone, so its bits do not depend on the rest of the step.
 * qkv: of k_prompt_window, with a NULL where k_prompt_heads has rotated them. */
static void enqueue_attention(struct backend *be, const struct step *st, uint32_t layer, struct cuda_parts qkv,
                              const float *row_scale) {
    const struct cuda_layer *w = &be->layers[layer];
    struct cuda_heads heads = {
        .qkv = qkv, .row_scale = row_scale, .rope = be->rope, .q_norm = w->q_norm, .k_norm = w->k_norm};
    struct cuda_prompt_window prompts = {.shape = be->shape,
                                         .layer = layer,
                                         .rows = be->rows,
                                         .n_rows = st->n_rows,
                                         .heads = heads,
                                         .work = be->window_work,
                                         .act = be->act_q};
    heads.qkv.at = be->qkv;
    struct cuda_window a = window_of(be, st, layer, &heads);
    if (st->drafts) {
        attend_drafts(be, &a, st->n_rows);
    } else if (st->single) {
        attend_alone(be, &a, be->list, st->n_rows, true);
    } else if (be->prompt_window) {
        attend_alone(be, &a, be->list, st->n_head, false);
        for (uint32_t i = 0; i < st->n_rounds; i++) {
            prompts.prompts = st->prompts[i];
            k_prompt_window(&prompts, be->stream);
        }
        attend_alone(be, &a, be->list + st->n_head, st->n_tail, false);
    } else {
        for (uint32_t phase = 0, first = 0; phase < st->n_phases; first = be->phase_end[phase++]) {
            const uint32_t alone_end = be->alone_end[phase];
            attend_alone(be, &a, be->list + first, alone_end - first, false);
            attend_rows(be, &a, be->list + alone_end, be->phase_end[phase] - alone_end);
        }
    }
}

static void enqueue_attention_and_ffn(struct backend *be, const struct step *st, uint32_t layer) {
    const struct cuda_layer *w = &be->layers[layer];
    const struct cuda_shape *s = &be->shape;
    const uint32_t n = st->n_rows, width = (s->H + s->Hk + s->Hv) * s->P;
    const size_t part = partial_stride(n, s->D);
    float *row_scale = s->dtype == CUDA_F32 ? NULL : be->row_scale;
    void *stream = be->stream;
    /* x_state = x + W_o's sums times the scale of E8's norm; h2 */
    k_add_norm(&(struct cuda_add_norm){.n_rows = n,
                                       .n = s->D,
                                       .dtype = s->dtype,
                                       .base = be->x,
                                       .partial = {be->d_part, splits_of(be, st, &w->out), part},
                                       .sums = mixer_sums(be, be->sums),
                                       .w = w->attn_norm,
                                       .eps = s->norm_eps,
                                       .out = be->x,
                                       .act = be->act_d,
                                       .row_scale = row_scale},
               stream);
    const struct cuda_parts qkv = {be->qkv, splits_of(be, st, &w->qkv), partial_stride(n, width)};
    product(be, st, &w->qkv, be->act_d, be->qkv, qkv.stride);
    enqueue_attention(be, st, layer, qkv, row_scale);
    product(be, st, &w->ao, be->act_q, be->d_part, part);
    k_add_norm(&(struct cuda_add_norm){.n_rows = n,
                                       .n = s->D,
                                       .dtype = s->dtype,
                                       .base = be->x,
                                       .partial = {be->d_part, splits_of(be, st, &w->ao), part},
                                       .w = w->ffn_norm,
                                       .eps = s->norm_eps,
                                       .act = be->act_d,
                                       .row_scale = row_scale},
               stream);
    const size_t f1_stride = partial_stride(n, w->f1.rows);
    product(be, st, &w->f1, be->act_d, be->f1, f1_stride);
    k_ffn_act(&(struct cuda_ffn_act){.n_rows = n,
                                     .F = s->F,
                                     .dtype = s->dtype,
                                     .in = {be->f1, splits_of(be, st, &w->f1), f1_stride},
                                     .row_scale = row_scale,
                                     .act = be->act_f},
              stream);
    product(be, st, &w->f2, be->act_f, be->d_part, part); /* added to x_state by the next norm: the two-hop residual */
}

/* A product that the rows' sums take in, as the step's kernels have it. */
static void residual(struct backend *be, const struct step *st, const struct cuda_residual *r) {
    (st->single ? k_fused_residual : k_prompt_residual)(r, st->n_rows, be->stream);
}

/* A layer where the norms and the FFN gate are inside the products, and in a step of single tokens the convolution and
 * the gates too: the same sums in the same order; but large products of prompts have an order of their own. */
static void enqueue_fused_mixer(struct backend *be, const struct step *st, uint32_t layer, const float *next_norm) {
    const struct cuda_layer *w = &be->layers[layer];
    const struct cuda_shape *s = &be->shape;
    const struct cuda_normed x = {be->act_d, be->squares, s->norm_eps, s->D};
    const uint32_t n = st->n_rows;
    const bool as_one = st->single && cuda_conv_pair_runs(s, n, st->drafts), packed = !st->single && be->act_z;
    const uint32_t splits = as_one ? 4 : cuda_fused_pair_splits(n);
    const struct cuda_product
        in = {.w = &w->in, .x = be->act_e, .y = be->in, .ldy = 4 * (size_t)s->M, .stride = (size_t)n * 4 * s->M},
        c0 = {.w = &w->c0, .x = be->act_a, .y = be->c0_part, .ldy = s->R, .stride = (size_t)n * s->R};
    const struct cuda_conv conv = conv_of(be, st, layer, NULL);
    void *stream = be->stream;
    if (packed) {
        k_prompt_az(&w->fc, &x, s->E, n, be->act_a, be->act_z, stream);
        k_packed_conv(&conv, stream);
    } else if (!st->single) {
        k_prompt_linear(&w->fc, &x, n, be->az, 2 * (size_t)s->Ep, stream);
        k_prompt_conv(&conv, stream);
    } else if (as_one) {
        k_fused_linear(&w->fc, &x, n, be->az, 2 * (size_t)s->Ep, stream);
    } else {
        k_fused_conv(&conv, &w->fc, &x, stream);
    }
    if (as_one)
        k_conv_pair(&conv, &in, &c0, stream);
    else
        k_fused_linear_pair(&in, &c0, n, stream);
    const struct cuda_partials partials = {
        .in = {be->in, splits, in.stride}, .c0 = {be->c0_part, splits, c0.stride}, .g_b = w->g_b, .t_b = w->t_b};
    const struct cuda_state io = state_of(be, st, layer, NULL);
    enqueue_state(be, st, &io, &partials);
    residual(be, st,
             &(struct cuda_residual){.w = &w->out,
                                     .x = be->act_e,
                                     .sums = mixer_sums(be, be->sums),
                                     .base = be->x,
                                     .y = be->x,
                                     .next_norm = next_norm,
                                     .act = be->act_d,
                                     .squares = be->squares});
}

/* Whether q, k, v of a step are rotated in their product: all its rows are prompts'. */
static bool rope_in_product(const struct backend *be, const struct step *st) {
    return be->d.plus && !st->single && be->prompt_window && st->n_tiles && !st->n_head && !st->n_tail &&
           cuda_prompt_heads_runs(&be->shape, &be->layers[0].qkv, st->n_rows);
}

static void enqueue_fused_attention_and_ffn(struct backend *be, const struct step *st, uint32_t layer,
                                            const float *next_norm) {
    const struct cuda_layer *w = &be->layers[layer];
    const struct cuda_shape *s = &be->shape;
    const struct cuda_normed x = {be->act_d, be->squares, s->norm_eps, s->D}; /* and y after it */
    const uint32_t n = st->n_rows, width = (s->H + s->Hk + s->Hv) * s->P;
    void *stream = be->stream;
    const bool in_product = rope_in_product(be, st);
    if (in_product)
        k_prompt_heads(s, layer, &w->qkv, &x, n, be->rope, be->window_work, stream);
    else
        (st->single ? k_fused_linear : k_prompt_linear)(&w->qkv, &x, n, be->qkv, width, stream);
    enqueue_attention(be, st, layer, (struct cuda_parts){in_product ? NULL : be->qkv, 1, 0}, NULL);
    residual(be, st,
             &(struct cuda_residual){.w = &w->ao,
                                     .x = be->act_q,
                                     .base = be->x,
                                     .next_norm = w->ffn_norm,
                                     .act = be->act_d,
                                     .squares = be->squares});
    (st->single ? k_fused_ffn : k_prompt_ffn)(&w->f1, &x, n, be->act_f, stream);
    residual(be, st,
             &(struct cuda_residual){.w = &w->f2,
                                     .x = be->act_f,
                                     .base = be->x, /* the two-hop residual */
                                     .y = be->x,
                                     .next_norm = next_norm,
                                     .act = be->act_d,
                                     .squares = be->squares});
}

/* RMSNorm of the rows whose logits are wanted, as the head's operand, once x is complete. */
static void enqueue_chosen_rows(struct backend *be, const struct step *st) {
    const struct cuda_shape *s = &be->shape;
    const float *x = be->x;
    if (!st->single) {
        k_gather_rows(be->x, be->out, st->n_out, s->D, be->gathered, be->stream);
        x = be->gathered;
    }
    k_add_norm(&(struct cuda_add_norm){.n_rows = st->n_out,
                                       .n = s->D,
                                       .dtype = s->dtype,
                                       .base = x,
                                       .w = be->norm_f,
                                       .eps = s->norm_eps,
                                       .act = be->act_d},
               be->stream);
}

static void enqueue_fused(struct backend *be, const struct step *st) {
    const struct cuda_shape *s = &be->shape;
    const struct cuda_normed normed = {be->act_d, NULL, 0, 0};
    const uint32_t L = be->d.L;
    k_add_norm(
        &(struct cuda_add_norm){.n_rows = st->n_rows,
                                .n = s->D,
                                .dtype = s->dtype,
                                .base = be->x,
                                .w = be->layers[0].mixer_norm,
                                .eps = s->norm_eps,
                                .act = be->act_d,
                                .row_scale = be->row_scale,
                                .squares = be->squares,
                                .n_squares = st->single ? cuda_square_sums(st->n_rows, s->D) : cuda_prompt_sums(s->D)},
        be->stream);
    for (uint32_t i = 0; rope_in_product(be, st) && i < st->n_rounds; i++)
        k_prompt_places(s, &be->rows, st->n_rows, &st->prompts[i], be->window_work, be->stream);
    for (uint32_t i = 0; i < L; i++) {
        const float *next = i + 1 < L ? be->layers[i + 1].mixer_norm : NULL;
        enqueue_fused_mixer(be, st, i, be->d.plus ? be->layers[i].attn_norm : next);
        if (be->d.plus) enqueue_fused_attention_and_ffn(be, st, i, next);
    }
    if (st->n_out == 0) return;
    enqueue_chosen_rows(be, st);
    k_fused_linear(&be->lm_head, &normed, st->n_out, be->logits, s->V, be->stream);
}

static void enqueue_many(struct backend *be, const struct step *st) {
    const struct model_dims *d = &be->d;
    const struct cuda_shape *s = &be->shape;
    void *stream = be->stream;
    const size_t part = partial_stride(st->n_rows, s->D);
    uint32_t n_pending = 0;
    const float *row_sums = NULL;
    for (uint32_t i = 0; i < d->L; i++) {
        enqueue_mixer(be, st, i, n_pending, row_sums);
        if (d->plus) enqueue_attention_and_ffn(be, st, i);
        const struct cuda_matrix *last = d->plus ? &be->layers[i].f2 : &be->layers[i].out;
        n_pending = splits_of(be, st, last);
        row_sums = d->plus ? NULL : be->sums;
    }
    if (st->n_out == 0) return;
    k_add_norm(&(struct cuda_add_norm){.n_rows = st->n_rows,
                                       .n = s->D,
                                       .dtype = s->dtype,
                                       .base = be->x,
                                       .partial = {be->d_part, n_pending, part},
                                       .sums = mixer_sums(be, row_sums),
                                       .w = st->single ? be->norm_f : NULL,
                                       .eps = s->norm_eps,
                                       .out = st->single ? NULL : be->x,
                                       .act = st->single ? be->act_d : NULL},
               stream);
    if (!st->single) enqueue_chosen_rows(be, st);
    k_linear(&(struct cuda_product){.w = &be->lm_head, .x = be->act_d, .y = be->logits, .ldy = s->V}, st->n_out,
             stream);
}

void cuda_forward_enqueue(struct backend *be, const struct step *st) {
    const struct model_dims *d = &be->d;
    assert(st->n_rows > 0 && st->n_rows <= be->info.max_batch_tok && st->n_out <= st->n_rows);
    assert(!st->single || st->n_segs <= st->n_rows);
    const struct cuda_step to = {be->rows, be->list, be->out};
    const struct cuda_step drafts_to = {be->draft_rows, be->list, be->out};
    const bool defers = st->single && cuda_state_defers(&be->shape, st->n_rows);
    if (st->drafts)
        k_step_draft_rows(&be->sampler, be->host, &drafts_to, st->n_rows, be->shape.n_deferred, be->stream);
    else
        k_step_rows(&be->sampler, be->host, &to, st->n_rows, st->n_segs, st->n_out,
                    defers ? be->shape.n_deferred : NULL, be->stream);
    k_embed(&(struct cuda_embed){.w = &be->embed,
                                 .rows = be->rows,
                                 .n_rows = st->n_rows,
                                 .scale = d->scale_embed ? sqrtf((float)d->M) : 1.0f,
                                 .x = be->x,
                                 .inv_freq = be->inv_freq,
                                 .half = d->rot_dim / 2,
                                 .rope = be->rope},
            be->stream);
    if (d->norm_embed) k_norm_rows(be->x, be->embed_norm, be->shape.norm_eps, st->n_rows, be->shape.D, be->stream);
    if (cuda_one_launch_runs(be, st))
        cuda_one_launch_enqueue(be, st);
    else if (be->fused && (st->single || (be->scan && !be->library)))
        enqueue_fused(be, st);
    else
        enqueue_many(be, st);
    if (st->drafts && st->end != CUDA_LOGITS)
        k_sample_drafts(&be->sampler, &be->draft_rows, be->out, st->n_out, st->end == CUDA_DRAWS, be->logits,
                        be->stream);
    else if (st->n_out && st->end != CUDA_LOGITS)
        k_sample(&be->sampler, &be->rows, be->out, st->n_out, st->end == CUDA_DRAWS, be->logits, be->stream);
    else if (st->n_out)
        cudaMemcpyAsync(be->host_logits + (size_t)st->host_row * be->shape.V, be->logits,
                        (size_t)st->n_out * be->shape.V * sizeof(float), cudaMemcpyDeviceToHost, be->stream);
}

static int capture_bucket(struct backend *be, uint32_t b, enum cuda_end end, bool drafts, struct rod_error *err) {
    const uint32_t n = cuda_bucket_rows(b);
    struct CUgraphExec_st **exec = drafts ? &be->graphs->drafts[end][b] : &be->graphs->steps[end][b];
    const struct step st = {.n_rows = n, .n_segs = n, .n_out = n, .single = true, .drafts = drafts, .end = end};
    int rc = cuda_capture_begin(be, err);
    if (rc) return rc;
    cuda_forward_enqueue(be, &st);
    rc = cuda_capture_end(be, exec, err);
    if (!rc) rc = cuda_check(cudaGraphUpload(*exec, be->stream), "uploading the graph of a decode step", err);
    return rc;
}

int cuda_forward_capture(struct backend *be, struct rod_error *err) {
    int rc = 0;
    for (uint32_t b = 0; !rc && b < CUDA_N_BUCKETS; b++) {
        if (cuda_bucket_rows(b) > be->info.max_batch_tok || (b && cuda_bucket_rows(b - 1) >= be->info.n_slots)) break;
        for (int end = 0; !rc && end < CUDA_N_ENDS; end++) rc = capture_bucket(be, b, (enum cuda_end)end, false, err);
    }
    /* With drafts: what more rows take is long beside starting their kernels one by one. */
    const uint32_t most = (1 + be->n_drafts) * be->info.n_slots;
    for (uint32_t b = 1; !rc && be->n_drafts && b < CUDA_DRAFT_BUCKETS; b++) {
        if (cuda_bucket_rows(b) > be->info.max_batch_tok || cuda_bucket_rows(b) > be->logit_rows ||
            cuda_bucket_rows(b - 1) >= most)
            break;
        for (int end = 0; !rc && end < CUDA_N_ENDS; end++) rc = capture_bucket(be, b, (enum cuda_end)end, true, err);
        be->info.draft_rows = cuda_bucket_rows(b);
    }
    return rc;
}
