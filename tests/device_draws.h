/* device_draws.h - for tests: how a device chooses tokens, on the host. A backend that has forward gets launch by it: a
 * launched step runs at once, and what it gave is seen when it is collected.
 *
 * Who owns what: device_slot copies what slot_sampling points to. Threads: one.
 */
#ifndef DEVICE_DRAWS_H
#define DEVICE_DRAWS_H

#include "engine/backend/backend.h"

#include <stdlib.h>
#include <string.h>

struct device_slot {
    bool prepared, ended, waits;
    int32_t last;
    uint32_t n_generated;
    struct rod_sampling sampling;
    struct sampler_counts counts;
    struct rod_bias *bias;
    int32_t *end_ids, *wait_ids;
    size_t n_bias, n_end_ids, n_wait_ids;
    uint64_t *mask[1 + BACKEND_MAX_DRAFTS]; /* behind so many drafts; NULL: all tokens may come */
    bool may_end[1 + BACKEND_MAX_DRAFTS];
    uint32_t min_tokens, max_tokens;
    int32_t n_logprobs;
};

static inline void device_forget(struct device_slot *s) {
    sampler_counts_fini(&s->counts);
    free(s->bias), free(s->end_ids), free(s->wait_ids);
    for (int i = 0; i <= BACKEND_MAX_DRAFTS; i++) free(s->mask[i]);
    *s = (struct device_slot){.last = s->last};
}

static inline void *device_copy(const void *src, size_t bytes) {
    void *dst = malloc(bytes + 1);
    if (bytes) memcpy(dst, src, bytes);
    return dst;
}

static inline int device_prepare(struct device_slot *s, const struct backend_sampling *in, uint32_t V,
                                 struct rod_error *err) {
    device_forget(s);
    s->prepared = true;
    s->n_wait_ids = in->n_wait_ids;
    s->wait_ids = device_copy(in->wait_ids, in->n_wait_ids * sizeof *in->wait_ids);
    s->sampling = *in->sampling;
    s->n_bias = in->n_bias;
    s->bias = device_copy(in->bias, in->n_bias * sizeof *in->bias);
    s->n_end_ids = in->n_end_ids;
    s->end_ids = device_copy(in->end_ids, in->n_end_ids * sizeof *in->end_ids);
    s->min_tokens = in->min_tokens;
    s->max_tokens = in->max_tokens;
    s->n_logprobs = in->n_logprobs;
    return sampler_counts_init(&s->counts, V, err);
}

static inline void device_mask(struct device_slot *s, uint32_t n_drafts, const uint64_t *mask, bool may_end,
                               uint32_t V) {
    free(s->mask[n_drafts]);
    s->mask[n_drafts] = mask ? device_copy(mask, (V + 63) / 64 * sizeof *mask) : NULL;
    s->may_end[n_drafts] = may_end;
}

static inline void device_pick(struct sampler *sampler, struct device_slot *s, uint32_t n_drafts, uint64_t position,
                               const float *logits, struct backend_token *out) {
    const uint64_t *mask = s->mask[n_drafts];
    const bool may_end = s->may_end[n_drafts], bans_ends = s->n_generated < s->min_tokens || (mask && !may_end);
    const struct sampler_input in = {.sampling = &s->sampling,
                                     .bias = s->bias,
                                     .n_bias = s->n_bias,
                                     .banned = s->end_ids,
                                     .n_banned = bans_ends ? s->n_end_ids : 0,
                                     .mask = mask,
                                     .also = s->end_ids,
                                     .n_also = mask && may_end ? s->n_end_ids : 0,
                                     .counts = &s->counts,
                                     .position = position,
                                     .n_logprobs = s->n_logprobs};
    struct rod_error err;
    *out = (struct backend_token){0};
    if (sampler_pick(sampler, &in, logits, &out->picked, &err)) {
        out->status = err.code == ROD_EINTERNAL ? SAMPLER_NAN : SAMPLER_FORBIDDEN;
        out->ended = s->ended = true;
        return;
    }
    s->last = out->picked.id;
    for (size_t i = 0; i < s->n_end_ids; i++) out->ended = out->ended || s->end_ids[i] == s->last;
    if (!out->ended) {
        sampler_counts_add(&s->counts, s->last, 1);
        out->ended = ++s->n_generated == s->max_tokens;
    }
    for (size_t i = 0; i < s->n_wait_ids; i++) out->waits = out->waits || s->wait_ids[i] == s->last;
    s->waits = out->waits;
    s->ended = out->ended;
}

/* The rows of a launched step; *n_masked: how many were of slots that had ended or wait. */
static inline int device_run(struct sampler *sampler, struct device_slot *slots, uint32_t V, struct backend *be,
                             int (*forward)(struct backend *be, const struct backend_segment *segs, uint32_t n_segs,
                                            const float **logits, struct rod_error *err),
                             const struct backend_segment *segs, uint32_t n_segs, struct backend_token *tokens,
                             uint32_t *n_masked, struct rod_error *err) {
    struct backend_segment *live = calloc(n_segs, sizeof *live);
    uint32_t n_live = 0, n_out = 0;
    *n_masked = 0;
    for (uint32_t i = 0; i < n_segs; i++) {
        struct device_slot *s = &slots[segs[i].slot];
        live[n_live] = segs[i];
        for (uint32_t t = 0; segs[i].tok && t < segs[i].n_tok - backend_segment_drafts(&segs[i]); t++)
            sampler_counts_add(&s->counts, segs[i].tok[t], 0);
        if (!segs[i].tok) live[n_live].tok = &s->last;
        if (segs[i].tok || (!s->ended && !s->waits)) n_live++;
    }
    const float *logits = NULL;
    const int rc = forward(be, live, n_live, &logits, err);
    for (uint32_t i = 0, k = 0, row = 0; !rc && i < n_segs; i++) {
        const bool runs = k < n_live && live[k].slot == segs[i].slot;
        struct device_slot *s = &slots[segs[i].slot];
        const uint64_t first = segs[i].pos + segs[i].n_tok - backend_segment_drafts(&segs[i]);
        bool goes_on = runs;
        for (uint32_t t = 0; t < segs[i].n_out; t++, n_out++) {
            if (t) goes_on = goes_on && !s->ended && s->last == segs[i].tok[t];
            if (goes_on)
                device_pick(sampler, s, t, first + t, logits + (size_t)row * V, &tokens[n_out]);
            else
                tokens[n_out] = (struct backend_token){.masked = true};
            row += runs;
        }
        if (segs[i].n_out && !runs) ++*n_masked;
        k += runs;
    }
    free(live);
    return rc;
}

#endif
