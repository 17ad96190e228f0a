/* test_sample_drafts.c - tokens of a step with drafts (k_step_draft_rows, k_sample_drafts) against those of steps of
 * their own. */
#include "sample.h"

/* Rows of a step: of slot[i] at pos[i] with logits [n][V]; lead: NULL, or a step with drafts. */
struct draft_step {
    uint32_t n;
    int32_t *slot, *tok, *lead;
    int64_t *pos;
    float *logits;
};
static struct draft_step draft_step_of(uint32_t most, uint32_t V, bool drafts) {
    return (struct draft_step){0,
                               host_bytes(most * sizeof(int32_t)),
                               host_bytes(most * sizeof(int32_t)),
                               drafts ? host_bytes(most * sizeof(int32_t)) : NULL,
                               host_bytes(most * sizeof(int64_t)),
                               host_floats((size_t)most * V)};
}
static const struct cuda_token *run_drafts(struct setup *b, const struct draft_step *x) {
    const size_t bytes = step_bytes(b->n_rows);
    void *block = host_bytes(bytes);
    const struct cuda_step step = step_at(block, b->n_rows);
    for (uint32_t i = 0; i < x->n; i++) {
        ((int32_t *)(uintptr_t)step.rows.tok)[i] = x->tok[i];
        ((int32_t *)(uintptr_t)step.rows.slot)[i] = x->slot[i];
        ((int64_t *)(uintptr_t)step.rows.pos)[i] = x->pos[i];
        ((int32_t *)(uintptr_t)step.out)[i] = (int32_t)i;
        if (x->lead) ((int32_t *)(uintptr_t)step.rows.lead)[i] = x->lead[i];
    }
    gpu_expect(
        gpu.k->write((void *)(uintptr_t)b->host[b->n_parts % CUDA_STEP_PARTS].rows.pos, block, bytes, gpu.stream),
        "writing rows");
    const float *logits = gpu_from(x->logits, (size_t)x->n * b->V);
    if (x->lead) {
        GPU_RUN(k_step_draft_rows, &b->s, b->host, &b->device, x->n, NULL);
        GPU_RUN(k_sample_drafts, &b->s, &b->device.rows, b->device.out, x->n, !for_racecheck(), logits);
    } else {
        struct cuda_step device = b->device;
        device.rows.lead = NULL;
        GPU_RUN(k_step_rows, &b->s, b->host, &device, x->n, x->n, x->n, NULL);
        GPU_RUN(k_sample, &b->s, &device.rows, b->device.out, x->n, !for_racecheck(), logits);
    }
    struct cuda_token *tokens = host_bytes(x->n * sizeof *tokens);
    gpu_expect(gpu.k->read(tokens, b->s.tokens[b->n_parts++ % CUDA_STEP_PARTS], x->n * sizeof *tokens, gpu.stream),
               "reading tokens");
    return tokens;
}
static void expect_token(const struct cuda_token *got, const struct cuda_token *want, uint32_t slot, uint32_t t) {
    const bool same = got->id == want->id && got->status == want->status && got->ended == want->ended &&
                      got->waits == want->waits && got->masked == want->masked && got->n_top == want->n_top &&
                      (got->status || !memcmp(&got->logprob, &want->logprob, sizeof got->logprob)) &&
                      !memcmp(got->top_id, want->top_id, got->n_top * sizeof *got->top_id) &&
                      !memcmp(got->top_logprob, want->top_logprob, got->n_top * sizeof *got->top_logprob);
    if (!same)
        fail_msg("%s (seed %llu): slot %u, row %u: token %d (status %d, ended %d, masked %d), a step of its own gives "
                 "%d (%d, %d, %d)",
                 gpu.what, (unsigned long long)gpu.seed, slot, t, got->id, got->status, got->ended, got->masked,
                 want->id, want->status, want->ended, want->masked);
}

/* A mask behind each of n drafts of a slot, or none there; both setups read the words. */
static void draft_masks(uint32_t V, uint32_t slot, uint32_t n, struct cuda_mask *masks) {
    for (uint32_t t = 0; t < n; t++) {
        struct row r = {0};
        random_mask(&r, V, gpu_pick(0, 3));
        masks[t] = (struct cuda_mask){slot, t, r.may_end, NULL};
        if (r.mask) masks[t].words = gpu_copy(r.mask, CUDA_MASK_WORDS(V) * sizeof(uint32_t));
        free(r.mask);
    }
}
static void give_masks(struct setup *b, const struct cuda_mask *masks, uint32_t n) {
    if (n) GPU_RUN(k_masks, &b->s, (const struct cuda_mask *)gpu_copy(masks, n * sizeof *masks), n);
}

/* Two setups with the same requests: in one each token has a step of its own, in the other a token and its drafts
 * share one. The first `right` drafts are what the first setup drew, the next is another token. Every third slot has
 * masks, and every second one tokens to wait behind. */
static void draft_sample_round(uint32_t V, uint32_t n_slots) {
    enum { ROWS = CUDA_DRAFTS + 1, STEPS = 4 };
    snprintf(gpu.what, sizeof gpu.what, "V %u, %u slots with drafts", V, n_slots);
    struct setup b[2] = {set_up(V, n_slots * ROWS), {0}};
    const uint64_t random = gpu.random;
    for (int k = 0; k < 2; k++) { /* the same requests */
        if (k) b[k] = set_up(V, n_slots * ROWS);
        gpu.random = random;
        for (uint32_t i = 0; i < n_slots; i++) {
            random_request(&b[k].rows[i], V, i % 9);
            b[k].rows[i].n_wait_ids = i % 2 ? 2 : 0;
            for (uint32_t w = 0; w < 2; w++) b[k].rows[i].wait_ids[w] = (int32_t)gpu_pick(0, V - 1);
            admit(&b[k], i);
        }
    }
    bool *ended = host_bytes(n_slots * sizeof *ended), *waits = host_bytes(n_slots * sizeof *waits);
    struct cuda_mask *mask = host_bytes(n_slots * ROWS * sizeof *mask),
                     *given = host_bytes(n_slots * ROWS * sizeof *mask);
    int32_t *last = host_bytes(n_slots * sizeof *last);
    int64_t *pos = host_bytes(n_slots * sizeof *pos);
    for (uint32_t i = 0; i < n_slots; i++) last[i] = (int32_t)gpu_pick(0, V - 1), pos[i] = (int64_t)b[0].rows[i].pos;
    for (uint32_t step = 0; step < STEPS; step++) {
        struct draft_step all = draft_step_of(n_slots * ROWS, V, true);
        const struct cuda_token *single[ROWS];
        uint32_t *first = host_bytes(n_slots * sizeof *first), *right = host_bytes(n_slots * sizeof *right),
                 *at = host_bytes(n_slots * ROWS * sizeof *at), *n_of = host_bytes(n_slots * sizeof *n_of);
        for (uint32_t i = 0; i < n_slots; i++) {
            if (ended[i]) continue;
            first[i] = all.n, n_of[i] = gpu_pick(1, ROWS), right[i] = V > 1 ? gpu_pick(0, n_of[i] - 1) : n_of[i] - 1;
            for (uint32_t t = 0; t < n_of[i]; t++, all.n++) {
                all.slot[all.n] = b[0].slots[i], all.pos[all.n] = pos[i] + t, all.lead[all.n] = (int32_t)t;
                random_logits(all.logits + (size_t)all.n * V, V, V > 50000 ? 1 + t % 3 : gpu_pick(0, 11));
                if (gpu_pick(0, 99) == 0) all.logits[(size_t)all.n * V + gpu_pick(0, V - 1)] = NAN;
            }
            if (i % 3 == 0) draft_masks(V, (uint32_t)b[0].slots[i], n_of[i], mask + i * ROWS);
        }
        if (!all.n) break;
        for (uint32_t t = 0; t < ROWS; t++) { /* the first setup, and the drafts that follow from it */
            struct draft_step one = draft_step_of(n_slots, V, false);
            uint32_t n_given = 0;
            for (uint32_t i = 0; i < n_slots; i++) {
                if (ended[i] || t >= n_of[i]) continue;
                const uint32_t r = first[i] + t;
                const int32_t drawn = t && t <= right[i] + 1 ? single[t - 1][at[i * ROWS + t - 1]].id : -1;
                const bool is_token = drawn >= 0 && (uint32_t)drawn < V; /* else the row before is masked, or broken */
                if (!t)
                    all.tok[r] = last[i];
                else if (t <= right[i])
                    all.tok[r] = is_token ? drawn : 0;
                else
                    all.tok[r] = ((is_token ? drawn : all.tok[r - 1]) + 1) % (int32_t)V;
                if (t > right[i]) continue;
                one.slot[one.n] = all.slot[r], one.pos[one.n] = all.pos[r];
                const struct cuda_token *before = t ? &single[t - 1][at[i * ROWS + t - 1]] : NULL;
                const bool named = t ? !before->masked && before->waits && !before->ended : waits[i];
                one.tok[one.n] = !named && (t || (step && gpu_pick(0, 1))) ? -1 : t ? all.tok[r] : last[i];
                if (i % 3 == 0) given[n_given] = mask[i * ROWS + t], given[n_given++].n_drafts = 0;
                memcpy(one.logits + (size_t)one.n * V, all.logits + (size_t)r * V, V * sizeof *one.logits);
                at[i * ROWS + t] = one.n++;
            }
            give_masks(&b[0], given, n_given);
            single[t] = one.n ? run_drafts(&b[0], &one) : NULL;
        }
        uint32_t n_given = 0;
        for (uint32_t i = 0; i < n_slots; i += 3)
            for (uint32_t t = 0; !ended[i] && t < n_of[i]; t++) given[n_given++] = mask[i * ROWS + t];
        give_masks(&b[1], given, n_given);
        const struct cuda_token *drafted = run_drafts(&b[1], &all);
        for (uint32_t i = 0; i < n_slots; i++) {
            if (ended[i]) continue;
            for (uint32_t t = 0; t < n_of[i]; t++) {
                const struct cuda_token *got = &drafted[first[i] + t], *want = NULL;
                if (t <= right[i]) want = &single[t][at[i * ROWS + t]];
                if (t <= right[i] && !want->masked) {
                    expect_token(got, want, i, t);
                    last[i] = want->id, ended[i] = want->ended, waits[i] = want->waits, pos[i] += 1;
                } else if (!got->masked)
                    fail_msg("%s (seed %llu): slot %u: row %u is behind %s and drew %d", gpu.what,
                             (unsigned long long)gpu.seed, i, t, want ? "an end" : "a wrong draft", got->id);
            }
        }
        const size_t slots = b[0].s.n_slots * sizeof *b[0].s.slots;
        struct cuda_sampling *state[2] = {host_bytes(slots), host_bytes(slots)};
        for (int k = 0; k < 2; k++)
            gpu_expect(gpu.k->read(state[k], b[k].s.slots, slots, gpu.stream), "reading the slots");
        for (uint32_t i = 0; i < n_slots; i++) {
            const struct cuda_sampling *x = &state[0][b[0].slots[i]], *y = &state[1][b[1].slots[i]];
            if (x->last != y->last || x->n_generated != y->n_generated || x->ended != y->ended)
                fail_msg(
                    "%s (seed %llu): slot %u has %d after %u tokens, ended %d; steps of their own leave %d, %u, %d",
                    gpu.what, (unsigned long long)gpu.seed, i, y->last, y->n_generated, y->ended, x->last,
                    x->n_generated, x->ended);
            const size_t row = (size_t)b[0].slots[i] * V;
            gpu_check_same("marks", gpu_fetch((const float *)(const void *)(b[1].s.marks + row), V),
                           gpu_fetch((const float *)(const void *)(b[0].s.marks + row), V), V);
        }
    }
    tear_down(&b[0]), tear_down(&b[1]);
    gpu_round_end();
}
static void drafts_are_drawn_as_in_steps_of_their_own(void **state) {
    (void)state;
    static const uint32_t sizes[][2] = {{300, 30}, {1, 3}, {31, 20}, {5003, 12}, {2049, 60}, {126464, 2}, {1000, 8}};
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes && (!gpu.n_shapes || i < gpu.n_shapes); i++)
        draft_sample_round(sizes[i][0], for_racecheck() ? 5 : sizes[i][1]);
}

GPU_MAIN(cmocka_unit_test(drafts_are_drawn_as_in_steps_of_their_own))
