/* mask_turns.c - whose masks are made before a step, as one alone may take longer than many steps.
 *
 * Masks of a plan's rows are made in pieces, with so much effort in all as half of a step's time is worth: a row whose
 * mask is not whole then is not part of the step, and goes on with the next one. What is made does not depend on the
 * pieces, so a row's tokens are what they are alone. First each row has one piece, in which ordinary masks become
 * whole: those of keys that have used the least lately go first. The rest is one mask's after the other, by the same
 * order; one that was begun is finished, unless another's key has used less than half. Where nothing else runs, masks
 * are made until a row can.
 */
#include "core.h"

#include <assert.h>
#include <string.h>

enum {
    PIECE = 1 << 14,         /* effort, some 0.1 ms */
    LEAST_NS = 200000,       /* of a step's masks */
    MOST_NS = 4000000,       /* that nobody waits for them longer */
    HALF_LIFE_NS = 500000000 /* of what a key has used */
};

static uint64_t *turns_used(struct rod_engine *e, const struct active *a) { return &e->masks.used[a->sched.key]; }

void mask_turns_learn(struct rod_engine *e, uint64_t ns, uint64_t mask_ns) {
    struct mask_turns *m = &e->masks;
    const double rest_ns = ns > mask_ns ? (double)(ns - mask_ns) : 0;
    m->step_ns += (rest_ns - m->step_ns) / 8;
}

/* Its row draws a token in the next step, which needs a mask. */
static bool turns_needs(const struct sched_row *row) {
    const struct active *a = active_of_sched(row->req);
    return row->n_out && a->gate.on && a->request->max_tokens && row->pos + row->n_tok >= a->sched.n_prompt;
}

static void turns_forget(struct rod_engine *e, uint64_t now_ns) {
    struct mask_turns *m = &e->masks;
    if (now_ns < m->halved_ns + HALF_LIFE_NS) return;
    m->halved_ns = now_ns;
    for (uint32_t i = 0; i < e->sched.n_keys; i++) m->used[i] /= 2;
}

static int64_t turns_effort(const struct mask_turns *m) {
    const double half_ns = m->step_ns / 2;
    const double ns = half_ns < LEAST_NS ? LEAST_NS : half_ns > MOST_NS ? MOST_NS : half_ns;
    return (int64_t)(ns / m->effort_ns);
}

void mask_turns_begin(struct rod_engine *e, const struct sched_row *rows, uint32_t n, uint64_t now_ns) {
    struct mask_turns *m = &e->masks;
    m->n = m->n_first = 0;
    m->n_runs = e->n_planned != e->n_collected; /* its tokens are waited for */
    if (n) m->n_runs += sched_site_busy(&e->sched, rows[0].req->site == SITE_HOST ? SITE_DEVICE : SITE_HOST);
    for (uint32_t i = 0; i < n; i++) {
        struct active *a = active_of_sched(rows[i].req);
        a->mask_waits = turns_needs(&rows[i]) && !grammar_walk_has_mask(&a->gate.walk);
        m->n_runs += !a->mask_waits;
        if (!a->mask_waits) continue;
        uint32_t at = m->n++;
        for (; at && *turns_used(e, m->rows[at - 1]) > *turns_used(e, a); at--) m->rows[at] = m->rows[at - 1];
        m->rows[at] = a;
    }
    if (!m->effort_ns) m->effort_ns = 5; /* as measured on one machine, until it is known here */
    turns_forget(e, now_ns);
    m->budget = m->left = turns_effort(m);
    m->began_ns = m->n ? clock_now_ns() : 0;
    m->last = NULL;
}

/* One that has had no piece yet. While others wait for more, half of the effort is theirs. */
static struct active *turns_first_piece(struct mask_turns *m) {
    bool begun = false;
    for (uint32_t i = 0; i < m->n && !begun; i++) begun = m->rows[i] && m->rows[i]->gate.walk.begun;
    while (m->n_first < m->n && m->left > (begun ? m->budget / 2 : 0)) {
        struct active *a = m->rows[m->n_first++];
        if (a && a->mask_waits && !a->gate.walk.begun) return a;
    }
    return NULL;
}

static struct active *turns_next_piece(struct rod_engine *e) {
    struct mask_turns *m = &e->masks;
    struct active *best = NULL, *dear = NULL;
    for (uint32_t i = 0; i < m->n; i++) {
        struct active *a = m->rows[i];
        if (!a || !a->mask_waits) continue;
        if (a->submission.ticket == m->dear) dear = a;
        if (!best || *turns_used(e, a) < *turns_used(e, best)) best = a;
    }
    if (dear && *turns_used(e, dear) <= 2 * *turns_used(e, best) + PIECE) best = dear;
    if (best) m->dear = best->submission.ticket;
    return best;
}

struct active *mask_turns_next(struct rod_engine *e) {
    struct mask_turns *m = &e->masks;
    if (m->left <= 0 && m->n_runs) return NULL;
    struct active *a = turns_first_piece(m);
    return a ? a : turns_next_piece(e);
}

/* A piece of the walk's mask, which its request's key has used. */
static int turns_piece(struct rod_engine *e, struct active *a, struct grammar_walk *walk, const uint64_t **mask,
                       struct rod_error *err) {
    int64_t effort = PIECE;
    const int rc = grammar_walk_mask_some(walk, grammar_vocab(a->request->grammar), &effort, mask, err);
    const int64_t used = PIECE - effort;
    e->masks.left -= used;
    *turns_used(e, a) += (uint64_t)used;
    return rc;
}

int mask_turns_work(struct rod_engine *e, struct active *a, struct rod_error *err) {
    struct mask_turns *m = &e->masks;
    const uint64_t *mask;
    assert(a->mask_waits);
    m->last = grammar_of(a->request->grammar);
    const int rc = turns_piece(e, a, &a->gate.walk, &mask, err);
    if (!rc && !mask) return 0;
    a->mask_waits = false;
    m->n_runs += !rc;
    for (uint32_t i = 0; rc && i < m->n; i++) /* it is about to end */
        if (m->rows[i] == a) m->rows[i] = NULL;
    return rc;
}

int mask_turns_draft(struct rod_engine *e, struct active *a, struct grammar_walk *walk, const uint64_t **mask,
                     struct rod_error *err) {
    *mask = NULL;
    if (e->masks.left <= 0 && !grammar_walk_has_mask(walk)) return 0;
    return turns_piece(e, a, walk, mask, err);
}

uint64_t mask_turns_end(struct rod_engine *e) {
    struct mask_turns *m = &e->masks;
    if (!m->began_ns) return 0;
    const uint64_t ns = clock_now_ns() - m->began_ns;
    const int64_t used = m->budget - m->left;
    if (used >= PIECE / 4) {
        m->effort_ns += ((double)ns / (double)used - m->effort_ns) / 8;
        if (m->effort_ns < 1) m->effort_ns = 1;
        if (m->effort_ns > 100) m->effort_ns = 100; /* the thread did not run */
    }
    grammar_cache_trim(e->grammars, m->last);
    return ns;
}
