/* slot.c - a request has got a slot: its state, and how the device samples for it. */
#include "core.h"

#include <assert.h>

int slot_prepare_sampling(struct rod_engine *e, const struct active *a, struct rod_error *err) {
    const struct backend_ops *ops = e->parts.ops;
    const struct rod_request *r = a->request;
    if (!active_on_device(a)) return 0;
    assert(ops->launch && a->sched.slot < e->backend_info.n_slots);
    const struct backend_sampling sampling = {.sampling = &r->sampling,
                                              .bias = r->bias,
                                              .n_bias = r->n_bias,
                                              .end_ids = a->end_ids,
                                              .n_end_ids = a->n_end_ids,
                                              .wait_ids = a->wait_ids,
                                              .n_wait_ids = a->n_wait_ids,
                                              .min_tokens = r->min_tokens,
                                              .max_tokens = r->max_tokens,
                                              .n_logprobs = r->n_logprobs};
    return ops->slot_sampling(e->parts.backend, a->sched.slot, &sampling, err);
}

/* The slot's past and its rows on their way come before this on the device. */
int slot_prepare(struct rod_engine *e, struct active *a, struct rod_error *err) {
    assert(a->sched.state == SCHED_PREFILL && a->sched.slot < e->backend_info.n_slots);
    assert(e->moves[a->sched.slot].kind == MOVE_NONE); /* nothing of the last request is on its way */
    if (a->request->state) return keep_load(e, a, err);
    e->parts.ops->slot_zero(e->parts.backend, a->sched.slot);
    return slot_prepare_sampling(e, a, err);
}
