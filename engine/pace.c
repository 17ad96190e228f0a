/* pace.c - what steps take, measured before the first request of a GPU: a plan knows nothing of a device but what its
 * steps took, and a server's first burst would wait while it learns. A CPU learns of its requests: a prompt there takes
 * seconds. */
#include "core.h"
#include "engine/base/policy.h"
#include "engine/base/test_hooks.h"

#include <stdlib.h>

struct pace {
    struct rod_engine *e;
    int32_t *tok;
    struct backend_segment *segs;
};

static int pace_begin_slot(const struct pace *p, uint32_t slot, struct rod_error *err) {
    const struct rod_sampling greedy = rod_sampling_greedy();
    const struct backend_sampling how = {.sampling = &greedy, .max_tokens = UINT32_MAX, .n_logprobs = -1};
    p->e->parts.ops->slot_zero(p->e->parts.backend, slot);
    return p->e->parts.ops->slot_sampling(p->e->parts.backend, slot, &how, err);
}

/* The step of the first n segments: what it took. */
static int pace_step(const struct pace *p, uint32_t n, uint64_t *ns, struct rod_error *err) {
    const struct backend_ops *ops = p->e->parts.ops;
    const struct backend_token *tokens;
    const uint64_t begin_ns = clock_now_ns();
    int rc = ops->launch(p->e->parts.backend, p->segs, n, err);
    if (!rc) rc = ops->collect(p->e->parts.backend, &tokens, err);
    *ns = clock_now_ns() - begin_ns;
    return rc;
}

/* Each twice: the first time a device loads what it runs. */
static int pace_prompts(const struct pace *p, uint32_t most_tok, struct rod_error *err) {
    int rc = 0;
    for (uint32_t n = p->e->backend_info.chunk_tok; !rc && n <= most_tok; n *= 4) {
        uint64_t ns = 0;
        p->segs[0] = (struct backend_segment){.n_tok = n, .tok = p->tok, .prompt = true};
        for (int again = 0; !rc && again < 2; again++) {
            rc = pace_begin_slot(p, 0, err);
            if (!rc) rc = pace_step(p, 1, &ns, err);
        }
        if (!rc) sched_took(&p->e->sched, SITE_DEVICE, 0, n, ns);
    }
    return rc;
}

/* One number of each class that the budget tells apart and the largest, behind prompts of one token: steps of full
 * windows take longer, so these are guesses. */
static int pace_streams(const struct pace *p, uint32_t most, struct rod_error *err) {
    int rc = 0;
    uint64_t ns = 0;
    for (uint32_t i = 0; !rc && i < most; i++) {
        rc = pace_begin_slot(p, i, err);
        p->segs[i] = (struct backend_segment){.slot = i, .n_tok = 1, .n_out = 1, .tok = p->tok, .prompt = true};
    }
    if (!rc) rc = pace_step(p, most, &ns, err);
    for (uint32_t i = 0; i < most; i++)
        p->segs[i] = (struct backend_segment){.slot = i, .n_tok = 1, .n_out = 1, .pos = 1};
    for (uint32_t n = 1, last = 0; !rc && n != last; last = n, n = 2 * n < most ? 2 * n : most) {
        for (int again = 0; !rc && again < 2; again++) {
            rc = pace_step(p, n, &ns, err);
            for (uint32_t i = 0; i < n; i++) p->segs[i].pos++;
        }
        if (!rc) sched_guess(&p->e->sched, SITE_DEVICE, n, ns);
    }
    return rc;
}

int pace_measure(struct rod_engine *e, struct rod_error *err) {
    const struct backend_info *info = &e->backend_info;
    if (!e->parts.ops->launch || test_hooks_fault_step()) return 0; /* a test counts the steps of its requests */
    const uint32_t shared = info->shared_tok ? info->shared_tok : info->max_batch_tok,
                   most_tok = shared < POLICY_PACE_MOST_TOK ? shared : POLICY_PACE_MOST_TOK,
                   rows = info->n_slots < info->max_out ? info->n_slots : info->max_out,
                   most = rows < POLICY_PACE_MOST_STREAMS ? rows : POLICY_PACE_MOST_STREAMS;
    struct pace p = {e, calloc(most_tok, sizeof *p.tok), calloc(most, sizeof *p.segs)};
    int rc = p.tok && p.segs ? 0 : rod_fail_no_memory(err);
    for (uint32_t i = 0; !rc && i < most_tok; i++) p.tok[i] = (int32_t)(i * 31 % e->parts.V);
    if (!rc) rc = pace_prompts(&p, most_tok, err);
    if (!rc) rc = pace_streams(&p, most, err);
    free(p.tok), free(p.segs);
    return rc;
}
