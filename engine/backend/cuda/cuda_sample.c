/* cuda_sample.c - sampling on the GPU seen from the host: a slot's wishes go in by a ring of pinned pieces, a
 * step's tokens come back in pinned memory, two steps at a time. */
#include "cuda_backend.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"

#include <cuda_runtime.h>

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

static_assert(CUDA_MAX_TOP == SAMPLER_MAX_TOP, "a row's top log-probabilities fit");
static_assert((int)CUDA_TOKEN_NAN == SAMPLER_NAN && (int)CUDA_TOKEN_FORBIDDEN == SAMPLER_FORBIDDEN &&
                  (int)CUDA_TOKEN_INFINITE == SAMPLER_INFINITE,
              "one list of statuses");

/* Admissions on their way before the host waits for the oldest, which is behind the steps on their way: so many
 * requests may come together without that. */
enum { RING = 256 };

struct cuda_sampling_parts {
    struct cuda_admission *ring; /* [RING], pinned */
    cudaEvent_t admitted[RING];
    uint64_t n_admissions;
    cudaEvent_t done[2]; /* of the steps on their way, by parity */
    struct cuda_flight flight[2];
    uint64_t n_launched, n_collected;
    uint64_t begin_ns[2], usual_ns[CUDA_N_KINDS]; /* what a step of a kind takes, waited for alone */
    uint64_t early_ns;                            /* how long before that to look out for it */
    bool sleeps_well;                             /* the thread's sleeps end some microseconds late, not some 50 */
    struct backend_token *tokens;
    bool *draws; /* [n_slots] */
    /* Masks for the next step, by its parity; those of the step two before have been read. */
    struct cuda_mask *masks[2]; /* [most_masks] each, pinned, as are the words: [most_masks][CUDA_MASK_WORDS] */
    uint32_t *mask_words[2], n_masks, most_masks;
    uint64_t mask_bytes[2]; /* of each step on its way */
};

/* ---- open and close ---- */

static size_t mask_bytes(uint32_t V) { return (size_t)CUDA_MASK_WORDS(V) * sizeof(uint32_t); }

size_t cuda_sample_slot_bytes(uint32_t V, uint32_t n_drafts) {
    return sizeof(struct cuda_sampling) + (sizeof(uint32_t) + sizeof(float)) * (size_t)V +
           (1 + n_drafts) * mask_bytes(V);
}

/* A step has a mask for each of its rows of logits at most. */
static int open_masks(struct backend *be, size_t n_rows, struct rod_error *err) {
    struct cuda_sampling_parts *p = be->sampling;
    const size_t n = n_rows > be->info.n_slots ? n_rows : be->info.n_slots, one = mask_bytes(be->sampler.V);
    const char *doing = "taking pinned memory for masks";
    be->sampler.masks = cuda_take(be, be->info.n_slots * be->sampler.mask_rows * one, "the slots' masks", err);
    if (!be->sampler.masks) return err ? err->code : ROD_ENOMEM;
    p->most_masks = (uint32_t)n;
    int rc = 0;
    for (int i = 0; !rc && i < 2; i++) {
        rc = cuda_check(cudaMallocHost((void **)&p->masks[i], n * sizeof **p->masks), doing, err);
        if (!rc) rc = cuda_check(cudaMallocHost((void **)&p->mask_words[i], n * one), doing, err);
    }
    return rc;
}

static int open_memory(struct backend *be, size_t n_rows, struct rod_error *err) {
    struct cuda_sampler *s = &be->sampler;
    const size_t slots = be->info.n_slots * sizeof *s->slots, per_slot = be->info.n_slots * (size_t)s->V;
    const char *what = "the slots' sampling";
    if (!(s->slots = cuda_take(be, slots, what, err)) ||
        !(s->marks = cuda_take(be, per_slot * sizeof *s->marks, what, err)) ||
        !(s->bias = cuda_take(be, per_slot * sizeof *s->bias, what, err)) ||
        !(s->pieces = cuda_take(be, n_rows * cuda_sample_pieces(s->V) * sizeof *s->pieces, what, err)) ||
        !(s->n_parts = cuda_take(be, sizeof *s->n_parts, what, err)))
        return err ? err->code : ROD_ENOMEM;
    int rc = cuda_check(cudaMemsetAsync(s->slots, 0, slots, be->stream), "clearing the slots' sampling", err);
    if (!rc)
        rc = cuda_check(cudaMemsetAsync(s->n_parts, 0, sizeof *s->n_parts, be->stream), "clearing the count of parts",
                        err);
    for (int i = 0; !rc && i < CUDA_STEP_PARTS; i++)
        rc = cuda_check(cudaMallocHost((void **)&s->tokens[i], n_rows * sizeof *s->tokens[i]),
                        "taking pinned memory for tokens", err);
    if (!rc)
        rc = cuda_check(cudaMallocHost((void **)&be->sampling->ring, RING * sizeof(struct cuda_admission)),
                        "taking pinned memory for admissions", err);
    return rc;
}

int cuda_sample_open(struct backend *be, size_t n_rows, struct rod_error *err) {
    be->sampler = (struct cuda_sampler){.V = be->shape.V, .n_slots = be->info.n_slots, .mask_rows = 1 + be->n_drafts};
    if (be->shape.V > CUDA_SAMPLE_MAX_V)
        return rod_fail(err, ROD_EUNSUPPORTED, "The CUDA backend samples from up to %d tokens; this model has %u.",
                        CUDA_SAMPLE_MAX_V, be->shape.V);
    be->sampling = calloc(1, sizeof *be->sampling);
    if (be->sampling) be->sampling->tokens = calloc(n_rows, sizeof *be->sampling->tokens);
    if (be->sampling) be->sampling->draws = calloc(be->info.n_slots, sizeof *be->sampling->draws);
    if (!be->sampling || !be->sampling->tokens || !be->sampling->draws) return rod_fail_no_memory(err);
    int rc = open_memory(be, n_rows, err);
    if (!rc) rc = open_masks(be, n_rows, err);
    for (int i = 0; !rc && i < RING; i++)
        rc = cuda_check(
            cudaEventCreateWithFlags(&be->sampling->admitted[i], cudaEventDisableTiming | cudaEventBlockingSync),
            "making an event", err);
    /* Waiting blocks: mostly the next step is on its way meanwhile, so the time to wake up costs nothing, where
     * spinning would take a core for all of the step. */
    for (int i = 0; !rc && i < 2; i++)
        rc =
            cuda_check(cudaEventCreateWithFlags(&be->sampling->done[i], cudaEventDisableTiming | cudaEventBlockingSync),
                       "making an event", err);
    return rc;
}

void cuda_sample_close(struct backend *be) {
    struct cuda_sampling_parts *p = be->sampling;
    if (!p) return;
    for (int i = 0; i < RING; i++)
        if (p->admitted[i]) cudaEventDestroy(p->admitted[i]);
    for (int i = 0; i < 2; i++)
        if (p->done[i]) cudaEventDestroy(p->done[i]);
    for (int i = 0; i < CUDA_STEP_PARTS; i++)
        if (be->sampler.tokens[i]) cudaFreeHost(be->sampler.tokens[i]);
    if (p->ring) cudaFreeHost(p->ring);
    for (int i = 0; i < 2; i++) {
        if (p->masks[i]) cudaFreeHost(p->masks[i]);
        if (p->mask_words[i]) cudaFreeHost(p->mask_words[i]);
    }
    free(p->tokens);
    free(p->draws);
    free(p);
    be->sampling = NULL;
}

/* ---- a slot's sampling ---- */

static uint32_t take_ids(size_t *done, size_t n) {
    const size_t left = n - *done, now = left < CUDA_ADMIT_IDS ? left : CUDA_ADMIT_IDS;
    *done += now;
    return (uint32_t)now;
}

int cuda_sample_slot(struct backend *be, uint32_t slot, const struct backend_sampling *in, struct rod_error *err) {
    const struct rod_sampling *sp = in->sampling;
    const struct cuda_sampler *s = &be->sampler;
    struct cuda_sampling_parts *p = be->sampling;
    assert(slot < be->info.n_slots && in->n_logprobs <= CUDA_MAX_TOP);
    be->sampling_ops = ++be->n_ops;
    cudaSetDevice(be->device);
    cudaMemsetAsync(s->marks + (size_t)slot * s->V, 0, s->V * sizeof *s->marks, be->stream);
    if (in->n_bias) cudaMemsetAsync(s->bias + (size_t)slot * s->V, 0, s->V * sizeof *s->bias, be->stream);
    p->draws[slot] = sp->temperature > 0;
    size_t n_ids = 0, n_wait = 0, n_bias = 0;
    for (bool first = true; first || n_ids < in->n_end_ids || n_wait < in->n_wait_ids || n_bias < in->n_bias;
         first = false) {
        const uint64_t at = p->n_admissions++ % RING;
        struct cuda_admission *a = &p->ring[at];
        int rc = cuda_check(cudaEventSynchronize(p->admitted[at]), "giving a slot its sampling", err);
        if (rc) return rc;
        *a = (struct cuda_admission){.slot = slot, .first = first};
        a->sampling = (struct cuda_sampling){
            .seed = sp->seed,
            .temperature = sp->temperature,
            .top_p = sp->top_p,
            .typical_p = sp->typical_p,
            .repetition_penalty = sp->repetition_penalty,
            .frequency_penalty = sp->frequency_penalty,
            .presence_penalty = sp->presence_penalty,
            .min_logit = sp->min_p > 0 ? logf(sp->min_p) * sp->temperature : -INFINITY,
            .top_k = sp->top_k,
            .n_logprobs = in->n_logprobs,
            .min_tokens = in->min_tokens,
            .max_tokens = in->max_tokens,
            .biased = in->n_bias > 0,
            .penalised = sampler_needs_counts(sp),
        };
        const int32_t *ids = in->end_ids + n_ids;
        const int32_t *wait_ids = in->wait_ids + n_wait;
        const struct rod_bias *bias = in->bias + n_bias;
        a->n_end_ids = take_ids(&n_ids, in->n_end_ids);
        a->n_wait_ids = take_ids(&n_wait, in->n_wait_ids);
        a->n_bias = take_ids(&n_bias, in->n_bias);
        for (uint32_t i = 0; i < a->n_end_ids; i++) assert(ids[i] >= 0 && (uint32_t)ids[i] < s->V); /* marks has V */
        for (uint32_t i = 0; i < a->n_wait_ids; i++) assert(wait_ids[i] >= 0 && (uint32_t)wait_ids[i] < s->V);
        for (uint32_t i = 0; i < a->n_bias; i++) assert(bias[i].id >= 0 && (uint32_t)bias[i].id < s->V);
        if (a->n_end_ids) memcpy(a->end_ids, ids, a->n_end_ids * sizeof *ids);
        if (a->n_wait_ids) memcpy(a->wait_ids, wait_ids, a->n_wait_ids * sizeof *wait_ids);
        for (uint32_t i = 0; i < a->n_bias; i++) a->bias_ids[i] = bias[i].id, a->bias[i] = bias[i].bias;
        k_admit(s, a, be->stream);
        rc = cuda_check(cudaEventRecord(p->admitted[at], be->stream), "giving a slot its sampling", err);
        if (rc) return rc;
    }
    return 0;
}

/* ---- masks ---- */

void cuda_sample_mask(struct backend *be, uint32_t slot, uint32_t n_drafts, const uint64_t *mask, bool may_end) {
    struct cuda_sampling_parts *p = be->sampling;
    const uint64_t at = p->n_launched % 2;
    assert(slot < be->info.n_slots && n_drafts < be->sampler.mask_rows);
    assert(p->n_masks < p->most_masks && p->n_launched - p->n_collected < 2);
    const size_t n_words = CUDA_MASK_WORDS(be->sampler.V);
    struct cuda_mask *m = &p->masks[at][p->n_masks];
    uint32_t *words = p->mask_words[at] + p->n_masks++ * n_words;
    *m = (struct cuda_mask){.slot = slot, .n_drafts = n_drafts, .may_end = may_end, .words = mask ? words : NULL};
    if (mask) memcpy(words, mask, n_words * sizeof *words);
    p->mask_bytes[at] += sizeof *m + (mask ? n_words * sizeof *words : 0);
}

/* ---- steps ---- */

int cuda_sample_launch(struct backend *be, const struct backend_segment *segs, uint32_t n_segs, struct rod_error *err) {
    struct cuda_sampling_parts *p = be->sampling;
    assert(p->n_launched - p->n_collected < 2);
    const uint64_t at = p->n_launched % 2;
    enum cuda_end end = CUDA_GREEDY;
    for (uint32_t i = 0; i < n_segs; i++) {
        assert(segs[i].slot < be->info.n_slots);
        assert(segs[i].n_out <= 1 || backend_segment_drafts(&segs[i])); /* a slot has one token a step, or drafts */
        if (p->draws[segs[i].slot]) end = CUDA_DRAWS;
    }
    cudaSetDevice(be->device);
    int rc = cuda_device_part_switch(be, err);
    if (rc) return rc;
    if (p->n_masks) k_masks(&be->sampler, p->masks[at], p->n_masks, be->stream);
    p->n_masks = 0;
    rc = cuda_step_start(be, segs, n_segs, end, &p->flight[at], err);
    if (!rc) rc = cuda_check(cudaEventRecord(p->done[at], be->stream), "starting a step", err);
    p->begin_ns[at] = clock_now_ns();
    if (!p->sleeps_well) p->sleeps_well = !prctl(PR_SET_TIMERSLACK, 1000UL); /* of this thread: see wait_alone */
    p->n_launched++;
    return rc;
}

/* Waits for a decode step that has no other behind it: here the time to wake up from blocking (some 150 us on an H200's
 * host) would be the device's idle time. So sleep while the step surely runs, and look out for its end from early_ns
 * before it is due. early_ns grows when that was too late and shrinks slowly, and is at most an eighth of a step, which
 * bounds the processor's time. Who still waits early_ns after it was due blocks. The first step of a kind is looked
 * out for from its beginning, as nothing says when it is due. */
static void wait_alone(struct cuda_sampling_parts *p, uint64_t at) {
    enum { LEAST_NS = 50000, MOST_FIRST_NS = 50000000 };
    uint64_t *usual_ns = &p->usual_ns[p->flight[at].kind];
    const bool first = *usual_ns == 0;
    uint64_t early_ns = p->early_ns < *usual_ns / 8 ? p->early_ns : *usual_ns / 8;
    if (early_ns < LEAST_NS) early_ns = LEAST_NS;
    const uint64_t due_ns = p->begin_ns[at] + *usual_ns, t = clock_now_ns();
    const uint64_t give_up_ns = due_ns + (first ? MOST_FIRST_NS : early_ns);
    if (t + early_ns < due_ns) {
        const uint64_t left_ns = due_ns - early_ns - t;
        nanosleep(&(struct timespec){(time_t)(left_ns / 1000000000), (long)(left_ns % 1000000000)}, NULL);
    }
    const bool late = cudaEventQuery(p->done[at]) != cudaErrorNotReady;
    while (!late && cudaEventQuery(p->done[at]) == cudaErrorNotReady && clock_now_ns() < give_up_ns) {}
    cudaEventSynchronize(p->done[at]); /* its error is found by the caller's next call */
    const uint64_t took_ns = clock_now_ns() - p->begin_ns[at];
    if (took_ns < *usual_ns || first)
        *usual_ns = took_ns;
    else if (!late)
        *usual_ns += (took_ns - *usual_ns) / 4;
    p->early_ns += late ? LEAST_NS : 0;
    if (!late && p->early_ns > LEAST_NS) p->early_ns -= p->early_ns / 64;
}

/* A step with prompts, or without a graph: its length is not known and somebody may wait for a first token, so look out
 * for its end between naps of up to a 64th of what it has taken so far, or of 100 us where the device has no work
 * behind it. */
static void wait_for_prompts(struct cuda_sampling_parts *p, uint64_t at) {
    enum { LEAST_NS = 30000, LAST_NS = 100000, MOST_NS = 50000000 };
    const uint64_t most_ns = p->n_collected == p->n_launched ? LAST_NS : MOST_NS;
    for (uint64_t ns = 0; ns < MOST_NS && cudaEventQuery(p->done[at]) == cudaErrorNotReady;) {
        ns = clock_now_ns() - p->begin_ns[at];
        uint64_t nap_ns = ns / 64 > LEAST_NS ? ns / 64 : LEAST_NS;
        if (nap_ns > most_ns) nap_ns = most_ns;
        nanosleep(&(struct timespec){.tv_nsec = (long)nap_ns}, NULL);
    }
}

static void take_token(struct backend *be, const struct cuda_token *from, struct backend_token *to) {
    to->status = (enum sampler_status)from->status;
    to->ended = from->ended;
    to->masked = from->masked;
    to->waits = !from->masked && from->waits;
    to->picked.id = from->id;
    to->picked.logprob = from->logprob;
    to->picked.n_top = from->masked ? 0 : from->n_top;
    assert(to->picked.n_top <= SAMPLER_MAX_TOP);
    assert(from->masked || from->status || (from->id >= 0 && (uint32_t)from->id < be->shape.V));
    for (uint32_t k = 0; k < to->picked.n_top; k++)
        to->picked.top[k] = (struct rod_logprob){from->top_id[k], from->top_logprob[k]};
    be->info.host_bytes += 32 + 12 + 8 * (uint64_t)to->picked.n_top;
}

int cuda_sample_collect(struct backend *be, const struct backend_token **tokens, struct rod_error *err) {
    struct cuda_sampling_parts *p = be->sampling;
    assert(p->n_collected < p->n_launched);
    const uint64_t at = p->n_collected++ % 2;
    cudaSetDevice(be->device);
    if (p->flight[at].kind == CUDA_N_KINDS)
        wait_for_prompts(p, at);
    else if (p->n_collected == p->n_launched)
        wait_alone(p, at);
    int rc = cuda_one_launch_fault(be, cuda_check(cudaEventSynchronize(p->done[at]), "running a step", err), err);
    if (rc) return rc;
    be->info.host_bytes = p->mask_bytes[at]; /* of this step: its masks and rows in, its tokens out */
    p->mask_bytes[at] = 0;
    const struct cuda_flight *f = &p->flight[at];
    assert(be->n_ops_over <= f->n_ops && f->n_ops <= be->n_ops && f->n_parts <= 2);
    be->n_ops_over = f->n_ops;
    struct backend_token *to = p->tokens;
    for (uint32_t part = 0; part < f->n_parts; part++)
        for (uint32_t i = 0; i < f->n_out[part]; i++) take_token(be, &be->sampler.tokens[f->block[part]][i], to++);
    *tokens = p->tokens;
    return 0;
}
