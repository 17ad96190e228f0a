/* cpu_forward.c - one step on the CPU: the team walks the layers together, a barrier between dependent stages.
 *
 * A stage divides rows, panels of 32 outputs, or heads; every output element is computed whole by one thread, so
 * neither the number of threads nor the other rows of the step change a bit of it.
 */
#include "cpu_backend.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

struct step {
    struct backend *be;
    const struct backend_segment *segs;
    uint32_t n_segs, n_rows, n_out, n_chunks;
    uint32_t n_phases; /* most pieces of one segment */
    bool any_chunk;    /* a piece of more than one token */
};

/* y = W x of the step's rows; x and y are as wide as W, padded. */
static struct cpu_product product(const struct step *st, const struct cpu_matrix *w, const float *x, float *y) {
    return (struct cpu_product){.w = w,
                                .n_rows = st->n_rows,
                                .x = x,
                                .ldx = (w->cols + CPU_PANEL - 1) / CPU_PANEL * CPU_PANEL,
                                .y = y,
                                .ldy = (size_t)w->n_panels * CPU_PANEL};
}

/* W's panels [p0, p1). A quantised W reads x's codes. */
static void apply_panels(const struct backend *be, const struct cpu_product *product, uint32_t p0, uint32_t p1,
                         struct cpu_ahead *ahead) {
    struct cpu_product p = *product;
    const struct cpu_codes codes = cpu_codes_of(be, p.w->cols);
    p.codes = &codes;
    if (cpu_matrix_is_quantised(p.w))
        be->quant->linear(&p, p0, p1);
    else
        be->ops->linear(&p, p0, p1, ahead);
}

/* The member's part of several products with outputs side by side, divided as one row of panels. */
static void apply_products(const struct step *st, uint32_t member, const struct cpu_product *list, uint32_t n,
                           struct cpu_ahead *ahead) {
    uint32_t total = 0, p0, p1, first = 0;
    for (uint32_t i = 0; i < n; i++) total += list[i].w->n_panels;
    team_range(st->be->team, member, total, &p0, &p1);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t last = first + list[i].w->n_panels, lo = p0 > first ? p0 : first, hi = p1 < last ? p1 : last;
        if (lo < hi) apply_panels(st->be, &list[i], lo - first, hi - first, ahead);
        first = last;
    }
}

/* y = base + W x. */
static void add_product(const struct step *st, uint32_t member, struct cpu_product p, const float *base,
                        struct cpu_ahead *ahead) {
    p.base = base;
    apply_products(st, member, &p, 1, ahead);
}

static void ahead_push(struct cpu_ahead *ahead, const float *at, size_t n) {
    if (n && ahead->n < sizeof ahead->range / sizeof *ahead->range) {
        ahead->range[ahead->n].at = (const char *)at;
        ahead->range[ahead->n++].end = (const char *)(at + n);
    }
}

/* What the member will read of the sessions' states in this layer's recurrence: worth fetching early where a few rows
 * decode; with more of them the second-level cache does not hold it. */
static void ahead_states(const struct step *st, uint32_t member, uint32_t layer, struct cpu_ahead *ahead) {
    const struct backend *be = st->be;
    uint32_t e0, e1;
    ahead->n = ahead->next = 0;
    if (st->any_chunk || st->n_rows > sizeof ahead->range / sizeof *ahead->range || layer >= be->d.L) return;
    team_range(be->team, member, be->Ep / CPU_PANEL, &e0, &e1);
    for (uint32_t i = 0; i < st->n_chunks; i++)
        ahead_push(ahead, cpu_slot(be, be->chunks[i].slot, layer) + be->at.S + (size_t)e0 * CPU_PANEL * be->d.M,
                   (size_t)(e1 - e0) * CPU_PANEL * be->d.M);
}

/* The values of the window of the member's first rows, as far as they are filled. */
static void ahead_windows(const struct step *st, uint32_t member, uint32_t layer, struct cpu_ahead *ahead) {
    const struct backend *be = st->be;
    uint32_t first, last;
    ahead->n = ahead->next = 0;
    if (st->any_chunk || st->n_rows > sizeof ahead->range / sizeof *ahead->range) return;
    team_range(be->team, member, st->n_rows, &first, &last);
    for (uint32_t r = first; r < last; r++) {
        const struct backend_segment *seg = &st->segs[be->rows[r].segment];
        if (be->rows[r].index) continue; /* a segment's rows read the same window */
        uint64_t filled = seg->pos < be->ring_keys ? seg->pos : be->ring_keys;
        ahead_push(ahead, cpu_slot(be, seg->slot, layer) + be->at.v,
                   (size_t)filled * be->d.Hv * be->d.P * dtype_bytes(be->state.window) / sizeof(float));
    }
}

/* Where some matrix is quantised: the codes of row r, x of n columns, for the products that may read them. */
static void encode_row(const struct step *st, const float *x, uint32_t n, uint32_t width, uint32_t r) {
    const struct cpu_codes codes = cpu_codes_of(st->be, n);
    if (st->be->quantised) st->be->quant->encode(x, width, r, 0, codes.n_blocks, &codes);
}

/* y and its codes. */
static void norm_rows(const struct step *st, uint32_t member, const float *x, const float *w, uint32_t n,
                      uint32_t width, float *y) {
    uint32_t r0, r1;
    team_range(st->be->team, member, st->n_rows, &r0, &r1);
    for (uint32_t r = r0; r < r1; r++) {
        st->be->ops->rmsnorm(x + (size_t)r * width, w, st->be->d.norm_eps, n, width, y + (size_t)r * width);
        encode_row(st, y + (size_t)r * width, n, width, r);
    }
}

/* x = embedding (scaled, normed); the rotary angles of each row. */
static void embed_rows(const struct step *st, uint32_t member) {
    struct backend *be = st->be;
    const struct model_dims *d = &be->d;
    uint32_t r0, r1;
    team_range(be->team, member, st->n_rows, &r0, &r1);
    for (uint32_t r = r0; r < r1; r++) {
        const struct backend_segment *seg = &st->segs[be->rows[r].segment];
        float *x = be->x + (size_t)r * be->Dp, *rope = be->rope + (size_t)r * d->rot_dim;
        assert(seg->tok[be->rows[r].index] >= 0 && (uint32_t)seg->tok[be->rows[r].index] < d->V);
        cpu_matrix_row(&be->embed, (uint32_t)seg->tok[be->rows[r].index], x);
        if (d->scale_embed)
            for (uint32_t i = 0; i < d->D; i++) x[i] *= sqrtf((float)d->M);
        if (d->norm_embed) be->ops->rmsnorm(x, be->embed_norm, d->norm_eps, d->D, be->Dp, x);
        for (uint32_t i = 0; i < d->rot_dim / 2; i++) {
            double angle = (double)(seg->pos + be->rows[r].index) * be->inv_freq[i];
            rope[2 * i] = (float)cos(angle);
            rope[2 * i + 1] = (float)sin(angle);
        }
    }
}

/* E2 for channels [e0, e1): inputs before the segment come from the slot's ring. Of drafts all enter it: places enough
 * are left for the inputs that the next token needs, whichever of them are accepted. */
static void convolve_channels(const struct step *st, const struct cpu_layer *w, uint32_t layer, uint32_t e0,
                              uint32_t e1) {
    struct backend *be = st->be;
    const uint32_t K = be->d.K, Ep = be->Ep;
    const float *tap[64];
    assert(K >= 1 && K <= sizeof tap / sizeof *tap);
    uint32_t r = 0;
    for (uint32_t i = 0; i < st->n_segs; i++) {
        const struct backend_segment *seg = &st->segs[i];
        float *slot = cpu_slot(be, seg->slot, layer);
        const float *a = be->a + (size_t)r * Ep;
        for (uint32_t t = 0; t < seg->n_tok; t++, r++) {
            for (uint32_t j = 0; j < K; j++)
                tap[j] =
                    t + j + 1 >= K ? a + (size_t)(t + j + 1 - K) * Ep : slot + cpu_conv_at(be, seg->pos + t + j + 1);
            be->ops->conv_silu(tap, K, w->conv, Ep, w->conv_b, e0, e1, be->s + (size_t)r * Ep);
        }
        const uint32_t n_kept = backend_segment_drafts(seg) ? seg->n_tok : K;
        for (uint32_t t = seg->n_tok > n_kept ? seg->n_tok - n_kept : 0; t < seg->n_tok; t++)
            memcpy(slot + cpu_conv_at(be, seg->pos + t + K) + e0, a + (size_t)t * Ep + e0, (e1 - e0) * sizeof(float));
    }
}

/* A prompt's piece of more than one token. */
static bool takes_chunk_form(const struct cpu_chunk *chunk) { return chunk->n > 1 && !chunk->drafts; }

static struct cpu_scan scan_of(const struct backend *be, const struct cpu_chunk *chunk) {
    const size_t r = chunk->first_row, m = r * be->Mp, e = r * be->Ep;
    return (struct cpu_scan){.M = be->d.M,
                             .n = chunk->n,
                             .ld_m = be->Mp,
                             .ld_e = be->Ep,
                             .q = be->q + m,
                             .k = be->k + m,
                             .log_alpha = be->log_alpha + m,
                             .b = be->b + m,
                             .q_in = be->q_in + m,
                             .k_out = be->k_out + m,
                             .decay = be->decay + m,
                             .A = be->A + r * CPU_CHUNK,
                             .u = be->u + e,
                             .o = be->o + e};
}

/* Reads the deferred tokens, then the chunk's, unless it is a prompt's. S takes all but the drafts. */
static void recur_tokens(const struct step *st, const struct cpu_chunk *chunk, float *layer, uint32_t e0, uint32_t e1) {
    struct backend *be = st->be;
    const size_t Ep = be->Ep, Mp = be->Mp;
    struct cpu_token tok[CPU_MAX_STEPS];
    uint32_t n = 0, n_kept = chunk->n_deferred;
    for (; n < chunk->n_deferred; n++) tok[n] = cpu_deferred_token(be, layer, n);
    if (!takes_chunk_form(chunk)) {
        assert(n + chunk->n <= CPU_MAX_STEPS);
        for (size_t r = chunk->first_row; r < chunk->first_row + (size_t)chunk->n; r++)
            tok[n++] = (struct cpu_token){be->q + r * Mp, be->k + r * Mp, be->log_alpha + r * Mp, be->u + r * Ep,
                                          be->o + r * Ep};
        n_kept++;
    }
    be->ops->gla_steps(be->d.M, tok, n, n_kept, e0, e1, layer + be->at.S);
}

/* Keeps the inputs of drafts for S, which takes the accepted ones later. Called after all members have read the
 * deferred tokens that stood there. */
static void defer_drafts(const struct step *st, uint32_t member, uint32_t layer) {
    struct backend *be = st->be;
    const size_t Ep = be->Ep, Mp = be->Mp;
    for (uint32_t i = member; i < st->n_chunks; i += team_size(be->team)) {
        const struct cpu_chunk *chunk = &be->chunks[i];
        for (uint32_t t = 1; chunk->drafts && t < chunk->n; t++) {
            const size_t r = chunk->first_row + t;
            float *to = cpu_deferred_at(be, cpu_slot(be, chunk->slot, layer), t - 1);
            memcpy(to, be->u + r * Ep, Ep * sizeof *to);
            memcpy(to + Ep, be->k + r * Mp, Mp * sizeof *to);
            memcpy(to + Ep + Mp, be->log_alpha + r * Mp, Mp * sizeof *to);
        }
    }
}

/* E6 and E7 for channels [e0, e1), chunk by chunk. */
static void recur_channels(const struct step *st, const struct cpu_layer *w, uint32_t layer, uint32_t e0, uint32_t e1) {
    struct backend *be = st->be;
    const size_t Ep = be->Ep;
    for (uint32_t i = 0; i < st->n_chunks; i++) {
        const struct cpu_chunk *chunk = &be->chunks[i];
        float *slot = cpu_slot(be, chunk->slot, layer);
        if (!takes_chunk_form(chunk) || chunk->n_deferred) recur_tokens(st, chunk, slot, e0, e1);
        if (!takes_chunk_form(chunk)) continue;
        const struct cpu_scan scan = scan_of(be, chunk);
        be->ops->gla_chunk_apply(&scan, e0, e1, slot + be->at.S);
    }
    for (size_t r = 0; r < st->n_rows; r++)
        be->ops->gate_out(be->o + r * Ep, w->residual, be->s + r * Ep, be->z + r * Ep, e0, e1);
}

/* Tells who watches that the layer's product at this place is next. */
static void watch_input(const struct step *st, uint32_t member, uint32_t layer, size_t weight,
                        const struct cpu_product *next) {
    const struct cpu_watch *watch = &st->be->watch;
    if (watch->input)
        watch->input(watch->arg, member, team_size(st->be->team), layer, weight, next->x, next->ldx, st->n_rows);
}

static void run_mixer(const struct step *st, uint32_t member, uint32_t layer, struct cpu_ahead *ahead) {
    struct backend *be = st->be;
    const struct cpu_ops *ops = be->ops;
    const struct cpu_layer *w = &be->layers[layer];
    const struct model_dims *d = &be->d;
    const size_t Ep = be->Ep, Mp = be->Mp;
    const uint32_t n = st->n_rows;
    uint32_t first, last, e0, e1;
    team_range(be->team, member, be->Ep / CPU_PANEL, &e0, &e1);
    e0 *= CPU_PANEL, e1 *= CPU_PANEL;

    norm_rows(st, member, be->x, w->mixer_norm, d->D, be->Dp, be->h);
    team_barrier(be->team, member); /* h before E1 */
    const struct cpu_product fc[] = {product(st, &w->a, be->h, be->a), product(st, &w->z, be->h, be->z)};
    watch_input(st, member, layer, offsetof(struct model_layer, fc), fc);
    apply_products(st, member, fc, 2, ahead);
    team_barrier(be->team, member); /* a before E2 and W_c0 */
    convolve_channels(st, w, layer, e0, e1);
    team_barrier(be->team, member); /* s before E3, E5 */
    const struct cpu_product in[] = {product(st, &w->q, be->s, be->q), product(st, &w->k, be->s, be->k),
                                     product(st, &w->g, be->s, be->g), product(st, &w->t, be->s, be->t),
                                     product(st, &w->c0, be->a, be->c0)};
    apply_products(st, member, in, 5, ahead);
    team_barrier(be->team, member); /* projections before gates; c0 before W_c1 */
    team_range(be->team, member, n, &first, &last);
    for (size_t r = first; r < last; r++) {
        const struct cpu_gates row = {.q = be->q + r * Mp,
                                      .k = be->k + r * Mp,
                                      .log_alpha = be->log_alpha + r * Mp,
                                      .g = be->g + r * Mp,
                                      .g_b = w->g_b,
                                      .t = be->t + r * Mp,
                                      .t_b = w->t_b};
        ops->gates(d->M, d->k_eps, &row);
    }
    add_product(st, member, product(st, &w->c1, be->c0, be->u), NULL, NULL);
    for (size_t r = 0; r < n; r++)
        ops->gate_u(be->u + r * Ep, w->c1_b, be->a + r * Ep, e0, e1, be->u + r * Ep); /* own panels */
    team_barrier(be->team, member); /* q, k, log_alpha of all rows before E6 */
    if (st->any_chunk) {
        for (uint32_t i = member; i < st->n_chunks; i += team_size(be->team)) {
            const struct cpu_chunk *chunk = &be->chunks[i];
            const struct cpu_scan scan = scan_of(be, chunk);
            if (takes_chunk_form(chunk)) ops->gla_chunk_decays(&scan);
        }
        team_barrier(be->team, member); /* running sums before scores */
        uint32_t row = 0;
        for (uint32_t i = 0; i < st->n_chunks; i++) {
            const struct cpu_chunk *chunk = &be->chunks[i];
            const struct cpu_scan scan = scan_of(be, chunk);
            for (uint32_t t = 0; takes_chunk_form(chunk) && t < chunk->n; t++, row++)
                if (row % team_size(be->team) == member) ops->gla_chunk_scores(&scan, t);
        }
        team_barrier(be->team, member); /* scores before they are applied */
    }
    recur_channels(st, w, layer, e0, e1);
    team_barrier(be->team, member); /* whole rows of o before their norm; deferred tokens read before they change */
    defer_drafts(st, member, layer);
    norm_rows(st, member, be->o, w->act_norm, d->E, be->Ep, be->o);
    team_barrier(be->team, member); /* normed o before W_o */
    if (d->plus)
        ahead_windows(st, member, layer, ahead);
    else
        ahead_states(st, member, layer + 1, ahead);
    const struct cpu_product out = product(st, &w->out, be->o, be->x);
    watch_input(st, member, layer, offsetof(struct model_layer, out_proj), &out);
    add_product(st, member, out, be->x, ahead);
    team_barrier(be->team, member); /* x_state */
}

/* Rotates one head in place (half-split or interleaved pairs). */
static void rotate_head(const struct model_dims *d, const float *rope, float *head) {
    uint32_t half = d->rot_dim / 2;
    for (uint32_t i = 0; i < half; i++) {
        float *a = d->rot_interleaved ? head + 2 * i : head + i, *b = d->rot_interleaved ? a + 1 : head + half + i;
        float c = rope[2 * i], s = rope[2 * i + 1], x = *a, y = *b;
        *a = x * c - y * s;
        *b = x * s + y * c;
    }
}

static void norm_head(const struct model_dims *d, const float *w, float *head) {
    float sum = 0;
    for (uint32_t p = 0; p < d->P; p++) sum += head[p] * head[p];
    float scale = 1.0f / sqrtf(sum / (float)d->P + d->qk_norm_eps);
    for (uint32_t p = 0; p < d->P; p++) head[p] = head[p] * scale * w[p];
}

/* Row r's key and value into its session's ring. */
static void remember_row(const struct step *st, uint32_t layer, size_t r) {
    struct backend *be = st->be;
    const struct backend_segment *seg = &st->segs[be->rows[r].segment];
    const struct cpu_window ring = cpu_ring(be, seg->slot, layer);
    assert(ring.n_keys > 0);
    cpu_window_put(&ring, seg->pos + be->rows[r].index, be->ak + r * be->Kvp, be->av + r * be->Vvp);
}

static void attend_row(const struct step *st, uint32_t member, uint32_t layer, size_t r, uint32_t h0, uint32_t h1) {
    struct backend *be = st->be;
    const struct backend_segment *seg = &st->segs[be->rows[r].segment];
    const struct cpu_window ring = cpu_ring(be, seg->slot, layer);
    be->ops->window(&ring, seg->pos + be->rows[r].index, h0, h1, be->aq + r * be->Qp, be->window_scratch[member],
                    be->att + r * be->Qp);
}

/* Pieces of segments go phase by phase: a piece's keys enter the rings, then its rows read them. One phase, but for
 * prompts longer than a chunk. */
static void attend_rows(const struct step *st, uint32_t member, uint32_t layer) {
    struct backend *be = st->be;
    const uint32_t n = st->n_rows, size = team_size(be->team);
    for (uint32_t phase = 0; phase < st->n_phases; phase++) {
        uint32_t n_phase = 0, at = 0, first, last, h0, h1;
        for (uint32_t r = 0; r < n; r++) n_phase += be->rows[r].phase == phase;
        team_range(be->team, member, n_phase, &first, &last);
        if (phase > 0) {
            for (uint32_t r = 0; r < n; r++)
                if (be->rows[r].phase == phase && at++ >= first && at <= last) remember_row(st, layer, r);
            team_barrier(be->team, member); /* the piece's keys before its attention */
        }
        at = 0;
        team_range(be->team, member, be->d.H, &h0, &h1);
        for (uint32_t r = 0; r < n; r++) {
            if (be->rows[r].phase != phase) continue;
            bool mine = at >= first && at < last;
            at++;
            if (n_phase < 2 * size) { /* few rows: share their heads */
                if (h0 < h1) attend_row(st, member, layer, r, h0, h1);
            } else if (mine)
                attend_row(st, member, layer, r, 0, be->d.H);
        }
        team_barrier(be->team, member); /* attention has read the rings; att is complete */
    }
}

/* The FFN's gate: the member's range of blocks, in all rows. */
static void activate_rows(const struct step *st, uint32_t member) {
    struct backend *be = st->be;
    const struct cpu_codes codes = cpu_codes_of(be, be->d.F);
    const size_t Fp = be->Fp;
    uint32_t b0, b1;
    team_range(be->team, member, codes.n_blocks, &b0, &b1);
    const uint32_t f0 = b0 * CPU_BLOCK, f1 = b1 * CPU_BLOCK < be->Fp ? b1 * CPU_BLOCK : be->Fp;
    for (uint32_t r = 0; r < st->n_rows; r++) {
        be->ops->ffn_act(be->fa + r * Fp, be->fg + r * Fp, f0, f1);
        if (be->quantised) be->quant->encode(be->fa + r * Fp, be->Fp, r, b0, b1, &codes);
    }
}

static void run_attention_and_ffn(const struct step *st, uint32_t member, uint32_t layer, struct cpu_ahead *ahead) {
    struct backend *be = st->be;
    const struct cpu_layer *w = &be->layers[layer];
    const struct model_dims *d = &be->d;
    const size_t Kvp = be->Kvp, Qp = be->Qp;
    const uint32_t n = st->n_rows;
    uint32_t first, last;

    norm_rows(st, member, be->x, w->attn_norm, d->D, be->Dp, be->h);
    team_barrier(be->team, member); /* h2 before q, k, v */
    const struct cpu_product qkv[] = {product(st, &w->aq, be->h, be->aq), product(st, &w->ak, be->h, be->ak),
                                      product(st, &w->av, be->h, be->av)};
    watch_input(st, member, layer, offsetof(struct model_layer, q), qkv);
    apply_products(st, member, qkv, 3, ahead);
    team_barrier(be->team, member); /* q, k, v before rotary and the rings */
    team_range(be->team, member, n, &first, &last);
    for (size_t r = first; r < last; r++) {
        const float *rope = be->rope + r * d->rot_dim;
        for (uint32_t h = 0; h < d->H; h++) {
            float *head = be->aq + r * Qp + (size_t)h * d->P;
            if (d->qk_norm) norm_head(d, w->q_norm, head);
            rotate_head(d, rope, head);
        }
        for (uint32_t h = 0; h < d->Hk; h++) {
            float *head = be->ak + r * Kvp + (size_t)h * d->P;
            if (d->qk_norm) norm_head(d, w->k_norm, head);
            rotate_head(d, rope, head);
        }
        if (be->rows[r].phase == 0) remember_row(st, layer, r);
    }
    team_barrier(be->team, member); /* rotated q, k and the first pieces' rings before attention */
    attend_rows(st, member, layer);
    if (be->quantised) {
        for (uint32_t r = first; r < last; r++) encode_row(st, be->att + r * Qp, d->H * d->P, be->Qp, r);
        team_barrier(be->team, member); /* codes of att before W_ao */
    }
    ahead_states(st, member, layer + 1, ahead);
    const struct cpu_product ao = product(st, &w->ao, be->att, be->y);
    watch_input(st, member, layer, offsetof(struct model_layer, ao), &ao);
    add_product(st, member, ao, be->x, ahead);
    team_barrier(be->team, member); /* y before its norm */
    norm_rows(st, member, be->y, w->ffn_norm, d->D, be->Dp, be->h);
    team_barrier(be->team, member); /* before W_f1 */
    const struct cpu_product f1[] = {product(st, &w->fa, be->h, be->fa), product(st, &w->fg, be->h, be->fg)};
    watch_input(st, member, layer, offsetof(struct model_layer, f1), f1);
    apply_products(st, member, f1, 2, ahead);
    team_barrier(be->team, member); /* both halves before their product */
    activate_rows(st, member);
    team_barrier(be->team, member); /* before W_f2 */
    const struct cpu_product fout = product(st, &w->fout, be->fa, be->x);
    watch_input(st, member, layer, offsetof(struct model_layer, f2), &fout);
    add_product(st, member, fout, be->x, ahead); /* onto x_state, not onto y: the two-hop residual */
    team_barrier(be->team, member);
}

static void output_rows(const struct step *st, uint32_t member) {
    struct backend *be = st->be;
    uint32_t first, last, r = 0, out = 0;
    team_range(be->team, member, st->n_out, &first, &last);
    for (uint32_t i = 0; i < st->n_segs; i++) {
        for (uint32_t t = 0; t < st->segs[i].n_tok; t++, r++) {
            if (t + st->segs[i].n_out < st->segs[i].n_tok) continue;
            if (out >= first && out < last) {
                float *h = be->h + (size_t)out * be->Dp;
                be->ops->rmsnorm(be->x + (size_t)r * be->Dp, be->norm_f, be->d.norm_eps, be->d.D, be->Dp, h);
                encode_row(st, h, be->d.D, be->Dp, out);
            }
            out++;
        }
    }
    team_barrier(be->team, member); /* normed rows before W_lm */
    struct cpu_product head = product(st, &be->lm_head, be->h, be->logits);
    head.n_rows = st->n_out, head.ldy = be->d.V;
    apply_products(st, member, &head, 1, NULL);
}

static void step_member(void *arg, uint32_t member) {
    const struct step *st = arg;
    struct cpu_ahead ahead;
    embed_rows(st, member);
    ahead_states(st, member, 0, &ahead);
    team_barrier(st->be->team, member);
    for (uint32_t i = 0; i < st->be->d.L; i++) {
        run_mixer(st, member, i, &ahead);
        if (st->be->d.plus) run_attention_and_ffn(st, member, i, &ahead);
    }
    if (st->n_out) output_rows(st, member);
}

/* Pieces of a prompt end at absolute multiples of the chunk. A token and its drafts are one piece, wherever they lie.
 */
static void cut_segment(struct step *st, uint32_t i) {
    struct backend *be = st->be;
    const struct backend_segment *seg = &st->segs[i];
    const bool drafts = backend_segment_drafts(seg) > 0;
    assert(!drafts || (seg->n_tok <= 1 + be->n_drafts && seg->n_out == seg->n_tok));
    for (uint32_t t = 0, phase = 0; t < seg->n_tok;) {
        uint32_t n = drafts ? seg->n_tok : CPU_CHUNK - (uint32_t)((seg->pos + t) % CPU_CHUNK);
        if (n > seg->n_tok - t) n = seg->n_tok - t;
        be->chunks[st->n_chunks++] = (struct cpu_chunk){.first_row = st->n_rows,
                                                        .n = n,
                                                        .slot = seg->slot,
                                                        .n_deferred = t ? 0 : be->deferred[seg->slot].n,
                                                        .drafts = drafts};
        if (n > 1 && !drafts) st->any_chunk = true;
        for (uint32_t k = 0; k < n; k++, t++) be->rows[st->n_rows++] = (struct cpu_row){i, t, phase};
        if (++phase > st->n_phases) st->n_phases = phase;
    }
}

int cpu_forward(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, const float **logits,
                struct rod_error *err) {
    if (be->fault_step && ++be->n_steps == be->fault_step)
        return rod_fail(err, ROD_EDEVICE, "Step %llu is a test's fault.", (unsigned long long)be->n_steps);
    struct step st = {.be = be, .segs = segs, .n_segs = n_segs};
    for (uint32_t i = 0; i < n_segs; i++) {
        assert(!cpu_move_moving(be, segs[i].slot, NULL)); /* a slot that is being copied has no rows */
        assert(segs[i].slot < be->info.n_slots && segs[i].n_tok > 0 && segs[i].n_out <= segs[i].n_tok);
        assert(st.n_rows + segs[i].n_tok <= be->info.max_batch_tok && st.n_out + segs[i].n_out <= be->info.max_out);
        cut_segment(&st, i);
        st.n_out += segs[i].n_out;
    }
    (void)err; /* nothing can fail: no allocation, no device */
    assert(st.n_chunks <= st.n_rows && st.n_out <= st.n_rows);
    if (st.n_rows) team_run(be->team, step_member, &st);
    for (uint32_t i = 0; i < n_segs; i++)
        be->deferred[segs[i].slot] = (struct cpu_deferred){.n_drafts = backend_segment_drafts(&segs[i])};
    *logits = be->logits;
    return 0;
}
