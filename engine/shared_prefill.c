/* shared_prefill.c - choices of one prompt: one of them, the leader, reads it, the others go on from copies of its
 * state.
 *
 * Where the host sees logits they part at the prompt's end: the others get its state and its logits. Where the device
 * draws the tokens, with a slot's own sampling, they part at the last multiple of chunk_tok before the end: there the
 * leader's prompt stops (sched_req.share_tok), and each reads the 1 to chunk_tok tokens that are left in its own slot.
 * A prompt is read in pieces between such multiples anyway, so that changes no bit.
 *
 * Who has a slot while the leader reads follows it. While others of them wait for a slot, the last that got its copy is
 * the keeper: its slot holds the prompt's state untouched, until the next one has copied it and keeps it in its place.
 * Where the device draws and the reader may leave checkpoints there is no keeper: the reader left one where they part,
 * if that pays, and a slot that waits for as long as an answer takes costs more than reading does. A key's requests are
 * admitted in the order of their tickets, so only one prompt's choices of it wait at a time; an engine has one keeper
 * at most, so those of other keys do without. A choice that finds neither leader nor keeper reads the prompt itself.
 */
#include "core.h"

#include <string.h>

/* The ticket of the first of them: those submitted together have consecutive ones. */
static uint64_t group(const struct active *a) { return a->submission.ticket - a->request->same_before; }

/* Whether a can take over what `of` has read: of another key, its scores were not kept for a. */
static bool same_prompt(const struct active *of, const struct active *a) {
    const struct rod_request *x = of->request, *y = a->request;
    if (group(of) != group(a) || of->sched.key != a->sched.key) return false;
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

/* That costs a step more, some 2.4 ms on an H200: what four chunks cost there, read once for each that need not. */
enum { LEAST_CHUNKS = 4 };
static bool pays(const struct rod_engine *e, const struct active *a) {
    const uint64_t spared_tok = shared_tok(e, a) * a->request->same_before;
    return spared_tok && (!active_on_device(a) || spared_tok >= (uint64_t)LEAST_CHUNKS * e->backend_info.chunk_tok);
}

/* Choices of this one's prompt wait for a slot: they are the next in their key's queue. */
static bool awaited(const struct rod_engine *e, const struct active *a) {
    const struct sched_req *next = e->sched.keys[a->sched.key].queue.head;
    return next && group(active_of_sched((struct sched_req *)next)) == group(a);
}

static int send_scored(struct rod_engine *e, struct active *a, uint64_t pos, const struct event *scored,
                       struct rod_error *err) {
    struct event *event = score_copy(scored, err);
    if (!event) return err->code;
    score_send(e, a, pos, event);
    return 0;
}

int shared_scored(struct rod_engine *e, struct active *a, const struct sched_row *row, const struct event *scored,
                  struct rod_error *err) {
    int rc = 0;
    for (struct sched_req *f = e->sched.follow.head; !rc && f; f = f->next) {
        struct active *follower = active_of_sched(f);
        if (follower->share.source == a && f->scored) rc = send_scored(e, follower, row->pos, scored, err);
    }
    if (rc || !awaited(e, a)) return rc;
    struct event *kept = score_copy(scored, err);
    if (!kept) return err->code;
    mailbox_append(&a->share.scores, &kept->link);
    return 0;
}

/* What was scored before it came. */
static int catch_up(struct rod_engine *e, const struct active *from, struct active *a, struct rod_error *err) {
    int rc = 0;
    for (struct mailbox_event *k = from->share.scores.head; !rc && a->sched.scored && k; k = k->next)
        rc = send_scored(e, a, a->score.n_sent, event_of_link(k), err);
    return rc;
}

static void move_kept(struct active *from, struct active *to) {
    to->share.scores = from->share.scores;
    from->share.scores = (struct mailbox_events){0};
}

/* It reads the rest of its prompt in its own slot. */
static void start_on_device(struct rod_engine *e, struct active *a) {
    const uint64_t n_tok = a->share.copied_tok;
    a->share.copied_tok = 0;
    sched_unfollow(&e->sched, &a->sched);
    sched_skip(&e->sched, &a->sched, n_tok);
}

struct active *shared_next_started(struct rod_engine *e) {
    for (struct sched_req *r = e->sched.follow.head; r; r = r->next) {
        struct active *a = active_of_sched(r);
        if (!a->share.copied_tok || a == e->keeper || active_on_device(a)) continue;
        a->share.copied_tok = 0;
        sched_fork(&e->sched, r);
        return a;
    }
    return NULL;
}

static void start_keeper(struct rod_engine *e) {
    struct active *keeper = e->keeper;
    e->keeper = NULL;
    events_free(&keeper->share.scores);
    if (active_on_device(keeper)) start_on_device(e, keeper);
}

int shared_admit(struct rod_engine *e, struct active *a, struct rod_error *err) {
    const struct backend_ops *ops = e->parts.ops;
    if (!ops->slot_copy || !pays(e, a) || active_device_counts(a)) return 0;
    struct active *from = e->keeper && same_prompt(e->keeper, a) ? e->keeper : NULL;
    for (struct sched_req *s = e->sched.prefill[a->sched.site].head; !from && s; s = s->next)
        if (&a->sched != s && same_prompt(active_of_sched(s), a)) from = active_of_sched(s);
    for (struct sched_req *s = e->sched.moving.head; !from && s; s = s->next)
        if (s->moved_from == SCHED_PREFILL && same_prompt(active_of_sched(s), a)) from = active_of_sched(s);
    if (!from) return 0;
    int rc = catch_up(e, from, a, err);
    if (rc) return rc;
    sched_follow(&e->sched, &a->sched);
    if (from != e->keeper) {
        a->share.source = from;
        if (active_on_device(from)) from->sched.share_tok = shared_tok(e, from);
        return 0;
    }
    a->share.copied_tok = from->share.copied_tok;
    ops->slot_copy(e->parts.backend, from->sched.slot, a->sched.slot, a->share.copied_tok);
    move_kept(from, a);
    start_keeper(e);
    e->keeper = a;
    return 0;
}

/* All who follow a have their copies of what it has read, and one of them keeps it, if that is awaited. */
static void copy_to_followers(struct rod_engine *e, struct active *a) {
    struct active *last = NULL;
    for (struct sched_req *r = e->sched.follow.head; r; r = r->next) {
        struct active *follower = active_of_sched(r);
        if (follower->share.source != a) continue;
        follower->share.copied_tok = a->sched.pos;
        e->parts.ops->slot_copy(e->parts.backend, a->sched.slot, r->slot, follower->share.copied_tok);
        follower->share.source = NULL;
        last = follower;
    }
    if (!last || e->keeper || !awaited(e, a)) return;
    if (active_on_device(a) && a->cache.cacheable) return;
    e->keeper = last;
    move_kept(a, last);
}

/* One whose followers part from it where it is, or will be with the step on its way; in MOVING its slot is the move's.
 * Where the host sees logits nobody stops there. */
static struct active *ready(const struct rod_engine *e) {
    for (struct sched_req *r = e->sched.follow.head; r; r = r->next) {
        struct active *leader = active_of_sched(r)->share.source;
        if (leader && leader->sched.state == SCHED_PREFILL && leader->sched.pos >= shared_tok(e, leader)) return leader;
    }
    return NULL;
}

static void start_all_on_device(struct rod_engine *e) {
    for (struct sched_req *r = e->sched.follow.head, *next; r; r = next) {
        struct active *follower = active_of_sched(r);
        next = r->next;
        if (follower->share.copied_tok && follower != e->keeper) start_on_device(e, follower);
    }
}

void shared_settle(struct rod_engine *e) {
    for (struct active *a; (a = ready(e));) {
        copy_to_followers(e, a);
        start_all_on_device(e);
    }
    if (e->keeper && !awaited(e, e->keeper)) start_keeper(e);
}

void shared_read(struct rod_engine *e, struct active *a, const float *logits) {
    const struct active *keeper = e->keeper;
    copy_to_followers(e, a);
    if (e->keeper != keeper) memcpy(e->kept_logits, logits, e->parts.V * sizeof *logits);
    events_free(&a->share.scores);
}

void shared_leave(struct rod_engine *e, const struct active *a) {
    if (e->keeper == a) e->keeper = NULL;
    for (struct sched_req *r = e->sched.follow.head, *next; r; r = next) {
        next = r->next;
        if (active_of_sched(r)->share.source != a) continue;
        active_of_sched(r)->share.source = NULL;
        sched_unfollow(&e->sched, r);
    }
}
