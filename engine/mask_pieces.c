/* mask_pieces.c - whose masks are made before a step, as one alone may take longer than many steps.
 *
 * Masks are made in pieces. A round's pieces take half of a step's time together. A request that lacks its mask after
 * the round is in SCHED_MASKING: no plan counts it, so others have the rows that it cannot use. Its prompt is read up
 * to the last piece meanwhile. A mask does not depend on its pieces, so a row draws the tokens that it would draw
 * alone. First each request has one piece, in which an ordinary mask becomes complete. Keys that have used the least
 * effort lately go first. What is left of the round goes to one mask after the other in that order. A mask that was
 * begun is finished first, unless another key has used less than half of its key's effort. Where nothing else runs a
 * round is longer, and still ends, as a request may come.
 */
#include "core.h"
#include "engine/base/policy.h"

#include <assert.h>
#include <string.h>

static uint64_t *pieces_used(struct rod_engine *e, const struct active *a) { return &e->masks.used[a->sched.key]; }

void mask_pieces_learn(struct rod_engine *e, uint64_t ns) {
    struct mask_pieces *m = &e->masks;
    m->step_ns += ((double)ns - m->step_ns) / 8;
}

/* Its next token needs a mask. While it is held the tokens before are not known. */
static bool pieces_needs(const struct active *a) { return a->gate.on && a->request->max_tokens && !a->sched.held; }

static void pieces_forget(struct rod_engine *e, uint64_t now_ns) {
    struct mask_pieces *m = &e->masks;
    if (now_ns < m->halved_ns + POLICY_MASK_HALF_LIFE_NS) return;
    m->halved_ns = now_ns;
    for (uint32_t i = 0; i < e->sched.n_keys; i++) m->used[i] /= 2;
}

/* Whether anything but masks is to do. */
static bool pieces_runs(const struct rod_engine *e) {
    return e->n_planned != e->n_collected || sched_site_busy(&e->sched, SITE_DEVICE) ||
           sched_site_busy(&e->sched, SITE_HOST);
}

static int64_t pieces_effort(const struct rod_engine *e) {
    const double part_ns = pieces_runs(e) ? e->masks.step_ns / POLICY_MASK_STEP_PARTS : POLICY_MASK_MOST_NS;
    const double ns = part_ns < POLICY_MASK_LEAST_NS  ? POLICY_MASK_LEAST_NS
                      : part_ns > POLICY_MASK_MOST_NS ? POLICY_MASK_MOST_NS
                                                      : part_ns;
    return (int64_t)(ns / e->masks.effort_ns);
}

static void pieces_gather(struct rod_engine *e, const struct list *list) {
    struct mask_pieces *m = &e->masks;
    for (struct sched_req *r = sched_first(list); r; r = sched_after(list, r)) {
        struct active *a = active_of_sched(r);
        r->no_end = false;
        a->mask_waits = pieces_needs(a) && !grammar_walk_has_mask(&a->gate.walk);
        if (!a->mask_waits) continue;
        uint32_t at = m->n++;
        for (; at && *pieces_used(e, m->rows[at - 1]) > *pieces_used(e, a); at--) m->rows[at] = m->rows[at - 1];
        m->rows[at] = a;
    }
}

void mask_pieces_begin(struct rod_engine *e, uint64_t now_ns) {
    struct mask_pieces *m = &e->masks;
    m->n = m->n_first = 0;
    if (e->n_planned == e->n_collected) m->spent_ns = 0; /* the next step begins now */
    for (int site = 0; site < SCHED_N_SITES; site++) {
        pieces_gather(e, &e->sched.masking[site]);
        pieces_gather(e, &e->sched.decode[site]);
        pieces_gather(e, &e->sched.prefill[site]);
    }
    if (!m->effort_ns) m->effort_ns = 5; /* as measured on one machine, until it is known here */
    pieces_forget(e, now_ns);
    m->budget = m->left = pieces_effort(e);
    m->last = NULL;
}

/* One that has had no piece yet. While others wait for more, half of the effort is theirs. */
static struct active *pieces_first(struct mask_pieces *m) {
    bool begun = false;
    for (uint32_t i = 0; i < m->n && !begun; i++) begun = m->rows[i] && m->rows[i]->gate.walk.begun;
    while (m->n_first < m->n && m->left > (begun ? m->budget / 2 : 0)) {
        struct active *a = m->rows[m->n_first++];
        if (a && a->mask_waits && !a->gate.walk.begun) return a;
    }
    return NULL;
}

static struct active *pieces_next(struct rod_engine *e) {
    struct mask_pieces *m = &e->masks;
    struct active *best = NULL, *dear = NULL;
    for (uint32_t i = 0; i < m->n; i++) {
        struct active *a = m->rows[i];
        if (!a || !a->mask_waits) continue;
        if (a->submission.ticket == m->dear) dear = a;
        if (!best || *pieces_used(e, a) < *pieces_used(e, best)) best = a;
    }
    if (dear && *pieces_used(e, dear) <= 2 * *pieces_used(e, best) + POLICY_MASK_PIECE) best = dear;
    if (best) m->dear = best->submission.ticket;
    return best;
}

struct active *mask_pieces_next(struct rod_engine *e) {
    struct mask_pieces *m = &e->masks;
    if (m->left <= 0) return NULL;
    struct active *a = pieces_first(m);
    return a ? a : pieces_next(e);
}

static void pieces_learn_effort(struct mask_pieces *m, uint64_t ns, int64_t used) {
    if (used < POLICY_MASK_PIECE / 4) return;
    const double one_ns = (double)ns / (double)used;
    m->effort_ns += ((one_ns > 100 ? 100 : one_ns) - m->effort_ns) / 32; /* more: the thread did not run */
    if (m->effort_ns < 1) m->effort_ns = 1;
}

/* A piece of the walk's mask, which its request's key has used. */
static int pieces_make(struct rod_engine *e, struct active *a, struct grammar_walk *walk, const uint64_t **mask,
                       struct rod_error *err) {
    int64_t effort = POLICY_MASK_PIECE;
    const uint64_t then_ns = clock_now_ns();
    const int rc = grammar_walk_mask_some(walk, grammar_vocab(a->request->grammar), &effort, mask, err);
    const uint64_t ns = clock_now_ns() - then_ns;
    const int64_t used = POLICY_MASK_PIECE - effort;
    e->masks.left -= used;
    e->masks.spent_ns += ns;
    *pieces_used(e, a) += (uint64_t)used;
    pieces_learn_effort(&e->masks, ns, used);
    return rc;
}

int mask_pieces_work(struct rod_engine *e, struct active *a, struct rod_error *err) {
    struct mask_pieces *m = &e->masks;
    const uint64_t *mask;
    assert(a->mask_waits);
    m->last = grammar_of(a->request->grammar);
    const int rc = pieces_make(e, a, &a->gate.walk, &mask, err);
    if (!rc && !mask) return 0;
    a->mask_waits = false;
    for (uint32_t i = 0; rc && i < m->n; i++) /* it is about to end */
        if (m->rows[i] == a) m->rows[i] = NULL;
    return rc;
}

int mask_pieces_draft(struct rod_engine *e, struct active *a, struct grammar_walk *walk, const uint64_t **mask,
                      struct rod_error *err) {
    *mask = NULL;
    if (e->masks.left <= 0 && !grammar_walk_has_mask(walk)) return 0;
    return pieces_make(e, a, walk, mask, err);
}

static void pieces_settle(struct rod_engine *e, const struct list *list) {
    for (struct sched_req *r = sched_first(list), *next; r; r = next) {
        next = sched_after(list, r);
        if (!active_of_sched(r)->mask_waits) continue;
        if (r->state == SCHED_DECODE || sched_at_end(&e->sched, r))
            sched_mask(&e->sched, r);
        else
            r->no_end = true;
    }
}

void mask_pieces_settle(struct rod_engine *e) {
    for (int site = 0; site < SCHED_N_SITES; site++) {
        for (struct sched_req *r = sched_first(&e->sched.masking[site]), *next; r; r = next) {
            next = sched_after(&e->sched.masking[site], r);
            if (!active_of_sched(r)->mask_waits) sched_masked(&e->sched, r);
        }
        pieces_settle(e, &e->sched.decode[site]);
        pieces_settle(e, &e->sched.prefill[site]);
    }
}

uint64_t mask_pieces_spent(struct rod_engine *e) {
    const uint64_t ns = e->masks.spent_ns;
    e->masks.spent_ns = 0;
    return ns;
}

void mask_pieces_end(struct rod_engine *e) {
    if (e->masks.last) grammar_cache_trim(e->grammars, e->masks.last);
}
