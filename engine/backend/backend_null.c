/* backend_null.c - a device that computes nothing, to measure everything else: --device null. Tokens are there at once,
 * or with null:MS that many milliseconds after the step's beginning; a text is the vocabulary in order, over and over.
 *
 * It keeps the seam's promises about slots that end, so that the engine runs as on a device that samples. There is no
 * state: session_bytes is 0 and slots cost nothing. Threads: the engine thread. */
#include "backend.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"
#include "engine/model/model.h"
#include "engine/state/state_formats.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FIRST_ID = 256, N_STEPS = 2, AUTO_SLOTS = 1024 }; /* below FIRST_ID are special tokens and single bytes */

struct null_slot {
    uint32_t n_generated, max_tokens;
    int32_t n_logprobs, end_id; /* end_id: one of them; -1 = none */
    bool masked, may_end, waits;
};

struct backend {
    struct backend_info info;
    uint32_t V;
    uint64_t step_ns, last_ns; /* last_ns: when the last step was over */
    struct null_slot *slots;
    size_t n_words;                       /* of a bit for each token */
    uint64_t *masks, *wait_ids;           /* [n_slots][n_words] */
    float *logits;                        /* [max_out][V]: the first text token is the best */
    struct backend_token *steps[N_STEPS]; /* [n_slots] each */
    uint64_t n_launched, n_collected;
    void (*moved)(void *arg);
    void *moved_arg;
};

static void null_close(struct backend *be) {
    if (!be) return;
    for (int i = 0; i < N_STEPS; i++) free(be->steps[i]);
    free(be->slots);
    free(be->masks);
    free(be->wait_ids);
    free(be->logits);
    free(be);
}

static uint32_t null_first(const struct backend *be) { return be->V > 2 * FIRST_ID ? FIRST_ID : be->V - 1; }

static int null_open(const struct model *model, const struct backend_config *config, struct backend **out,
                     struct rod_error *err) {
    static const struct state_formats there = {.device = "the null device"};
    struct state_layout layout = state_layout_of(&model->dims, DTYPE_F32);
    if (state_formats_choose(&there, config, &layout, err)) return ROD_EUNSUPPORTED;
    struct backend *be = calloc(1, sizeof *be);
    if (!be) return rod_fail_no_memory(err);
    const uint32_t n_slots = config->n_slots ? config->n_slots : AUTO_SLOTS;
    be->V = model->dims.V;
    be->step_ns = strncmp(config->device, "null:", 5) ? 0 : strtoull(config->device + 5, NULL, 10) * 1000000;
    be->info = (struct backend_info){.state_id = "null",
                                     .n_slots = n_slots,
                                     .max_batch_tok = config->max_batch_tok ? config->max_batch_tok : n_slots + 4096,
                                     .max_out = n_slots,
                                     .chunk_tok = 64};
    snprintf(be->info.device, sizeof be->info.device, "null, %llu ms a step",
             (unsigned long long)(be->step_ns / 1000000));
    be->slots = calloc(n_slots, sizeof *be->slots);
    be->logits = calloc((size_t)n_slots * be->V, sizeof *be->logits);
    be->n_words = (be->V + 63) / 64;
    be->masks = calloc(n_slots * be->n_words, sizeof *be->masks);
    be->wait_ids = calloc(n_slots * be->n_words, sizeof *be->wait_ids);
    bool ok = be->slots && be->logits && be->masks && be->wait_ids;
    for (int i = 0; i < N_STEPS; i++) ok = (be->steps[i] = calloc(n_slots, sizeof **be->steps)) && ok;
    if (!ok) {
        null_close(be);
        return rod_fail_no_memory(err);
    }
    for (uint32_t i = 0; i < n_slots; i++) be->logits[(size_t)i * be->V + null_first(be)] = 10;
    *out = be;
    return 0;
}

static const struct backend_info *null_info(const struct backend *be) { return &be->info; }

static void null_slot_zero(struct backend *be, uint32_t slot) {
    assert(slot < be->info.n_slots);
    be->slots[slot] = (struct null_slot){0};
}

static void null_slot_copy(struct backend *be, uint32_t from, uint32_t to, uint64_t pos) {
    (void)be, (void)from, (void)to, (void)pos;
}

static size_t null_state_bytes(const struct backend *be, uint64_t pos) {
    (void)be, (void)pos;
    return 0;
}

static int null_slot_save(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                          struct rod_error *err) {
    (void)be, (void)slot, (void)pos, (void)state;
    return bytes ? rod_fail(err, ROD_EINVALID, "The null device has no state.") : 0;
}

static int null_slot_load(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                          struct rod_error *err) {
    (void)pos, (void)state;
    if (bytes) return rod_fail(err, ROD_EINVALID, "The null device has no state.");
    null_slot_zero(be, slot);
    return 0;
}

static int null_slot_moving(struct backend *be, uint32_t slot, struct rod_error *err) {
    (void)be, (void)slot, (void)err;
    return 0;
}

static void null_on_moved(struct backend *be, void (*moved)(void *arg), void *arg) {
    be->moved = moved;
    be->moved_arg = arg;
}

/* Over at once. */
static int null_slot_save_begin(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                                struct rod_error *err) {
    const int rc = null_slot_save(be, slot, pos, state, bytes, err);
    if (!rc && be->moved) be->moved(be->moved_arg);
    return rc;
}

static int null_slot_load_begin(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                                struct rod_error *err) {
    const int rc = null_slot_load(be, slot, pos, state, bytes, err);
    if (!rc && be->moved) be->moved(be->moved_arg);
    return rc;
}

static int null_forward(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, const float **logits,
                        struct rod_error *err) {
    (void)segs, (void)n_segs, (void)err;
    *logits = be->logits;
    return 0;
}

static int null_slot_sampling(struct backend *be, uint32_t slot, const struct backend_sampling *sampling,
                              struct rod_error *err) {
    (void)err;
    assert(slot < be->info.n_slots && sampling->n_logprobs <= SAMPLER_MAX_TOP);
    be->slots[slot] = (struct null_slot){.max_tokens = sampling->max_tokens,
                                         .n_logprobs = sampling->n_logprobs,
                                         .end_id = sampling->n_end_ids ? sampling->end_ids[0] : -1};
    uint64_t *wait_ids = be->wait_ids + slot * be->n_words;
    memset(wait_ids, 0, be->n_words * sizeof *wait_ids);
    for (size_t i = 0; i < sampling->n_wait_ids; i++)
        wait_ids[sampling->wait_ids[i] / 64] |= 1ull << sampling->wait_ids[i] % 64;
    return 0;
}

static void null_slot_mask(struct backend *be, uint32_t slot, uint32_t n_drafts, const uint64_t *mask, bool may_end) {
    assert(slot < be->info.n_slots && !n_drafts);
    be->slots[slot].masked = mask;
    be->slots[slot].may_end = may_end;
    if (mask) memcpy(be->masks + slot * be->n_words, mask, be->n_words * sizeof *mask);
}

static bool null_has(const uint64_t *bits, uint32_t id) { return bits[id / 64] >> id % 64 & 1; }

/* The first id of at least `from` that the mask allows, or V. */
static uint32_t null_allowed(const struct backend *be, const uint64_t *mask, uint32_t from) {
    uint32_t id = from;
    while (id < be->V && !null_has(mask, id)) id = mask[id / 64] >> id % 64 ? id + 1 : (id / 64 + 1) * 64;
    return id < be->V ? id : be->V;
}

/* The next token in order that the slot's mask allows, else the end token; -1: none may come. */
static int32_t null_next(const struct backend *be, uint32_t number) {
    const struct null_slot *slot = &be->slots[number];
    const uint32_t first = null_first(be), next = first + slot->n_generated % (be->V - first);
    if (!slot->masked) return (int32_t)next;
    const uint64_t *mask = be->masks + number * be->n_words;
    uint32_t id = null_allowed(be, mask, next);
    if (id == be->V) id = null_allowed(be, mask, 0);
    if (id < be->V) return (int32_t)id;
    return slot->may_end ? slot->end_id : -1;
}

static void null_pick(const struct backend *be, const struct backend_segment *seg, struct backend_token *out) {
    struct null_slot *slot = &be->slots[seg->slot];
    assert(slot->n_generated <= slot->max_tokens);
    out->masked = slot->n_generated == slot->max_tokens || (slot->waits && !seg->tok);
    if (out->masked) return;
    struct sampler_output *picked = &out->picked;
    picked->id = null_next(be, seg->slot);
    out->status = picked->id < 0 ? SAMPLER_FORBIDDEN : SAMPLER_OK;
    const bool ends = picked->id < 0 || (slot->masked && picked->id == slot->end_id);
    slot->n_generated = ends ? slot->max_tokens : slot->n_generated + 1;
    slot->waits = out->waits = !ends && null_has(be->wait_ids + seg->slot * be->n_words, (uint32_t)picked->id);
    picked->logprob = -logf((float)be->V);
    picked->n_top = slot->n_logprobs > 0 ? (uint32_t)slot->n_logprobs : 0;
    for (uint32_t i = 0; i < picked->n_top; i++)
        picked->top[i] = (struct rod_logprob){(int32_t)(i % be->V), picked->logprob};
    out->ended = slot->n_generated == slot->max_tokens;
}

static int null_launch(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, struct rod_error *err) {
    struct backend_token *tokens = be->steps[be->n_launched % N_STEPS];
    uint32_t n_out = 0;
    (void)err;
    assert(be->n_launched - be->n_collected < N_STEPS && n_segs <= be->info.n_slots);
    for (uint32_t i = 0; i < n_segs; i++)
        if (segs[i].n_out) null_pick(be, &segs[i], &tokens[n_out++]);
    be->n_launched++;
    return 0;
}

static int null_collect(struct backend *be, const struct backend_token **tokens, struct rod_error *err) {
    (void)err;
    assert(be->n_collected < be->n_launched);
    if (be->step_ns) {
        const uint64_t now = clock_now_ns(), due = be->last_ns + be->step_ns;
        be->last_ns = due > now ? due : now; /* a host that is late does not catch up */
        const struct timespec until = {(time_t)(be->last_ns / 1000000000u), (long)(be->last_ns % 1000000000u)};
        while (due > now && clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL)) {}
    }
    *tokens = be->steps[be->n_collected++ % N_STEPS];
    return 0;
}

const struct backend_ops backend_null = {.name = "null",
                                         .open = null_open,
                                         .close = null_close,
                                         .info = null_info,
                                         .slot_zero = null_slot_zero,
                                         .slot_copy = null_slot_copy,
                                         .state_bytes = null_state_bytes,
                                         .slot_save = null_slot_save,
                                         .slot_load = null_slot_load,
                                         .slot_save_begin = null_slot_save_begin,
                                         .slot_load_begin = null_slot_load_begin,
                                         .slot_moving = null_slot_moving,
                                         .on_moved = null_on_moved,
                                         .forward = null_forward,
                                         .slot_sampling = null_slot_sampling,
                                         .slot_mask = null_slot_mask,
                                         .launch = null_launch,
                                         .collect = null_collect};
