/* shared_prefill.c - choices of one prompt: one request, the source, reads it, and the waiters go on from its state.
 *
 * Where the host sees logits they part at the prompt's end: the waiters get the source's state and its logits. Where
 * the device draws the tokens, with a slot's own sampling, they part at the last multiple of chunk_tok before the end,
 * or where the source began, if that is later. There the source's prompt stops (sched_req.handover_tok), and each reads
 * the 1 to chunk_tok tokens that are left in its own slot. A prompt is read in pieces between such multiples anyway, so
 * that changes no bit.
 *
 * A choice that has a slot while the source reads waits for the source. If choices of the same prompt are still queued,
 * one slot stays idle as the source: each newly admitted choice copies the prefilled state from it, and is the idle
 * source in its place. Where the device draws and the source may leave prefix entries no slot stays idle: the source
 * left an entry where they part, if that pays, and an idle slot costs more than reading does. A key's requests are
 * admitted in the order of their tickets, so only one prompt's choices of it are queued at a time; an engine has one
 * idle source at most, so those of other keys do without. A choice that finds no source reads the prompt itself.
 */
#include "core.h"
#include "engine/base/policy.h"

#include <assert.h>
#include <string.h>

/* The ticket of the first of them: those submitted together have consecutive ones. */
static uint64_t shared_group(const struct active *a) { return a->submission.ticket - a->request->same_before; }

/* Whether a can take over the state of `of`. Scores are kept for requests of one key alone. */
static bool shared_same_prompt(const struct active *of, const struct active *a) {
    const struct rod_request *x = of->request, *y = a->request;
    if (shared_group(of) != shared_group(a) || of->sched.key != a->sched.key) return false;
    if (of->sched.site != a->sched.site || x->n_prompt != y->n_prompt) return false;
    if (x->state || y->state) return false;
    if (a->sched.scored && !(of->sched.scored && x->n_prompt_logprobs == y->n_prompt_logprobs)) return false;
    return !memcmp(x->prompt, y->prompt, x->n_prompt * sizeof *x->prompt);
}

/* How many tokens of its prompt one reads for all. */
static uint64_t shared_tok(const struct rod_engine *e, const struct active *a) {
    const uint64_t chunk = e->backend_info.chunk_tok;
    return active_on_device(a) ? (a->n_prompt - 1) / chunk * chunk : a->n_prompt;
}

/* A shared prefill costs a step more. Where the device draws it has to spare so much reading. */
static bool shared_pays(const struct rod_engine *e, const struct active *a) {
    const uint64_t spared_tok = shared_tok(e, a) * a->request->same_before;
    return spared_tok &&
           (!active_on_device(a) || spared_tok >= (uint64_t)POLICY_SPARED_CHUNKS * e->backend_info.chunk_tok);
}

/* Choices of this one's prompt wait for a slot: they are the next in their key's queue. */
static bool shared_is_awaited(const struct rod_engine *e, const struct active *a) {
    const struct sched_req *next = sched_first(&e->sched.keys[a->sched.key].queue);
    return next && shared_group(active_of_sched((struct sched_req *)next)) == shared_group(a);
}

static int shared_send_scores(struct rod_engine *e, struct active *a, uint64_t pos, const struct event *scored,
                              struct rod_error *err) {
    struct event *event = score_copy(scored, err);
    if (!event) return err->code;
    score_send(e, a, pos, event);
    return 0;
}

int shared_scored(struct rod_engine *e, struct active *a, const struct sched_row *row, const struct event *scored,
                  struct rod_error *err) {
    int rc = 0;
    for (struct sched_req *f = sched_first(&e->sched.waiting); !rc && f; f = sched_after(&e->sched.waiting, f)) {
        struct active *waiter = active_of_sched(f);
        if (waiter->shared.source == a && f->scored) rc = shared_send_scores(e, waiter, row->pos, scored, err);
    }
    if (rc || !shared_is_awaited(e, a)) return rc;
    struct event *kept = score_copy(scored, err);
    if (!kept) return err->code;
    mailbox_append(&a->shared.scores, &kept->link);
    return 0;
}

/* What was scored before it came. */
static int shared_catch_up(struct rod_engine *e, const struct active *from, struct active *a, struct rod_error *err) {
    int rc = 0;
    for (struct mailbox_event *k = from->shared.scores.head; !rc && a->sched.scored && k; k = k->next)
        rc = shared_send_scores(e, a, a->score.n_sent, event_of_link(k), err);
    return rc;
}

static void shared_move_scores(struct active *from, struct active *to) {
    to->shared.scores = from->shared.scores;
    from->shared.scores = (struct mailbox_events){0};
}

/* It reads the rest of its prompt in its own slot. */
static void shared_start_on_device(struct rod_engine *e, struct active *a) {
    const uint64_t n_tok = a->shared.copied_tok;
    assert(n_tok && n_tok < a->n_prompt && !a->shared.source);
    a->shared.copied_tok = 0;
    sched_wait_over(&e->sched, &a->sched);
    sched_skip(&e->sched, &a->sched, n_tok);
}

struct active *shared_next_started(struct rod_engine *e) {
    for (struct sched_req *r = sched_first(&e->sched.waiting); r; r = sched_after(&e->sched.waiting, r)) {
        struct active *a = active_of_sched(r);
        if (!a->shared.copied_tok || a == e->idle_source || active_on_device(a)) continue;
        assert(!a->shared.source && !a->cache.waiting && a->shared.copied_tok == a->n_prompt);
        a->shared.copied_tok = 0;
        sched_fork(&e->sched, r);
        return a;
    }
    return NULL;
}

static void shared_start_idle_source(struct rod_engine *e) {
    struct active *old = e->idle_source;
    e->idle_source = NULL;
    assert(old->sched.state == SCHED_WAITING && old->shared.copied_tok);
    events_free(&old->shared.scores);
    if (active_on_device(old)) shared_start_on_device(e, old);
}

int shared_admit(struct rod_engine *e, struct active *a, struct rod_error *err) {
    const struct backend_ops *ops = e->parts.ops;
    if (!ops->slot_copy || !shared_pays(e, a) || active_device_counts(a)) return 0;
    struct active *from = e->idle_source && shared_same_prompt(e->idle_source, a) ? e->idle_source : NULL;
    for (struct sched_req *s = sched_first(&e->sched.prefill[a->sched.site]); !from && s;
         s = sched_after(&e->sched.prefill[a->sched.site], s))
        if (&a->sched != s && shared_same_prompt(active_of_sched(s), a)) from = active_of_sched(s);
    for (struct sched_req *s = sched_first(&e->sched.moving); !from && s; s = sched_after(&e->sched.moving, s))
        if (s->moved_from == SCHED_PREFILL && shared_same_prompt(active_of_sched(s), a)) from = active_of_sched(s);
    for (struct sched_req *s = sched_first(&e->sched.masking[a->sched.site]); !from && s;
         s = sched_after(&e->sched.masking[a->sched.site], s))
        if (s->moved_from == SCHED_PREFILL && shared_same_prompt(active_of_sched(s), a)) from = active_of_sched(s);
    for (struct sched_req *s = sched_first(&e->sched.flying); !from && s; s = sched_after(&e->sched.flying, s))
        if (shared_same_prompt(active_of_sched(s), a)) from = active_of_sched(s);
    if (!from) return 0;
    assert(from != a && !a->shared.source && !a->shared.copied_tok && !a->cache.waiting);
    int rc = shared_catch_up(e, from, a, err);
    if (rc) return rc;
    sched_wait(&e->sched, &a->sched);
    if (from != e->idle_source) {
        a->shared.source = from;
        if (active_on_device(from)) from->sched.handover_tok = shared_tok(e, from);
        return 0;
    }
    a->shared.copied_tok = from->shared.copied_tok;
    ops->slot_copy(e->parts.backend, from->sched.slot, a->sched.slot, a->shared.copied_tok);
    shared_move_scores(from, a);
    shared_start_idle_source(e);
    e->idle_source = a;
    return 0;
}

/* Each waiter of a gets a copy of its state. If choices are queued, the last waiter stays idle as their source. */
static void shared_copy_to_waiters(struct rod_engine *e, struct active *a) {
    struct active *last = NULL;
    for (struct sched_req *r = sched_first(&e->sched.waiting); r; r = sched_after(&e->sched.waiting, r)) {
        struct active *waiter = active_of_sched(r);
        if (waiter->shared.source != a) continue;
        assert(!waiter->shared.copied_tok && !waiter->cache.waiting && waiter != e->idle_source);
        waiter->shared.copied_tok = a->sched.pos;
        e->parts.ops->slot_copy(e->parts.backend, a->sched.slot, r->slot, waiter->shared.copied_tok);
        waiter->shared.source = NULL;
        last = waiter;
    }
    if (!last || e->idle_source || !shared_is_awaited(e, a)) return;
    if (active_on_device(a) && a->cache.cacheable) return;
    e->idle_source = last;
    shared_move_scores(a, last);
}

/* One whose waiters part from it where it is, or will be with the step on its way; in MOVING its slot is the move's.
 * Where the host sees logits nobody stops there. */
static struct active *shared_ready_source(const struct rod_engine *e) {
    for (struct sched_req *r = sched_first(&e->sched.waiting); r; r = sched_after(&e->sched.waiting, r)) {
        struct active *source = active_of_sched(r)->shared.source;
        if (!source || source->sched.pos < shared_tok(e, source)) continue;
        const struct sched_req *s = &source->sched;
        if (s->state == SCHED_PREFILL || (s->state == SCHED_MASKING && s->moved_from == SCHED_PREFILL)) return source;
    }
    return NULL;
}

static void shared_start_all_on_device(struct rod_engine *e) {
    for (struct sched_req *r = sched_first(&e->sched.waiting), *next; r; r = next) {
        struct active *waiter = active_of_sched(r);
        next = sched_after(&e->sched.waiting, r);
        if (waiter->shared.copied_tok && waiter != e->idle_source) shared_start_on_device(e, waiter);
    }
}

void shared_settle(struct rod_engine *e) {
    for (struct active *a; (a = shared_ready_source(e));) {
        shared_copy_to_waiters(e, a);
        shared_start_all_on_device(e);
    }
    if (e->idle_source && !shared_is_awaited(e, e->idle_source)) shared_start_idle_source(e);
}

void shared_read(struct rod_engine *e, struct active *a, const float *logits) {
    const struct active *old = e->idle_source;
    assert(a->sched.site == SITE_HOST && a->sched.pos == a->sched.n_prompt);
    shared_copy_to_waiters(e, a);
    if (e->idle_source != old) memcpy(e->source_logits, logits, e->parts.V * sizeof *logits);
    events_free(&a->shared.scores);
}

void shared_leave(struct rod_engine *e, const struct active *a) {
    if (e->idle_source == a) e->idle_source = NULL;
    for (struct sched_req *r = sched_first(&e->sched.waiting), *next; r; r = next) {
        next = sched_after(&e->sched.waiting, r);
        if (active_of_sched(r)->shared.source != a) continue;
        assert(!active_of_sched(r)->shared.copied_tok);
        active_of_sched(r)->shared.source = NULL;
        sched_wait_over(&e->sched, r);
    }
}
