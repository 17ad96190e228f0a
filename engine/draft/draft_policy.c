/* draft_policy.c - chances as counts that fade, and the sum that decides. */
#include "draft_policy.h"

#include <assert.h>

static const float FADES_FROM = 64; /* tries; then old and new count alike */
static const double OTHERS = 6;     /* tries that all requests' chances stand for */
static const double MARGIN = 1.15;  /* by which a draft token has to pay: chances and prices are estimates */
enum {
    FIRST_PROBE = 128, /* tokens of a request until a kind that did not pay is tried again, doubled each time */
    MOST_PROBES = 5,
    PRICE_PROBE = 192 /* tokens of all requests until drafts that are mostly right and too dear are tried again */
};

uint32_t draft_kind(uint32_t n_match, bool predicted) {
    if (predicted) return DRAFT_PREDICTED;
    return n_match < 3 ? 0 : n_match < 4 ? 1 : n_match < 8 ? 2 : n_match < 16 ? 3 : 4;
}

double draft_chance(const struct draft_chances *own, const struct draft_chances *all, uint32_t kind) {
    static const double first[DRAFT_KINDS] = {0.25, 0.35, 0.5, 0.65, 0.75, 0.75, 0.6};
    const struct draft_chance *a = &all->of[kind], *o = &own->of[kind];
    const double others = ((double)a->right + OTHERS * first[kind]) / ((double)a->tried + OTHERS);
    return ((double)o->right + OTHERS * others) / ((double)o->tried + OTHERS);
}

uint32_t draft_count(struct draft_chances *own, struct draft_chances *all, uint32_t kind, uint32_t n,
                     struct draft_step *step) {
    const double p = draft_chance(own, all, kind);
    double right = p;
    uint32_t k = 0;
    assert(kind < DRAFT_KINDS && step->ns >= 0 && step->token_ns >= 0);
    if (step->token_ns <= 0) return 0;
    for (; k < n && right * step->ns > MARGIN * step->token_ns * step->tokens; k++, right *= p) {
        step->tokens += right;
        step->ns += step->token_ns;
    }
    /* What did not pay is tried: a kind that was mostly wrong seldom, a price that was too high more often. */
    if (n && !k && p > 0.5 && ++all->n_refused[kind] >= PRICE_PROBE) {
        all->n_refused[kind] = 0;
        k = n;
    } else if (n && !k && p <= 0.5) {
        const uint32_t probes = own->n_probes[kind] < MOST_PROBES ? own->n_probes[kind] : MOST_PROBES;
        k = ++own->n_refused[kind] >= (uint32_t)FIRST_PROBE << probes;
    }
    if (k) own->n_refused[kind] = 0;
    return k;
}

void draft_judge(struct draft_chances *chances, uint32_t kind, uint32_t n, uint32_t n_right) {
    struct draft_chance *c = &chances->of[kind];
    assert(kind < DRAFT_KINDS && n_right <= n);
    if (!n) return;
    chances->n_probes[kind] = n_right ? 0 : chances->n_probes[kind] + 1;
    c->right += (float)n_right;
    c->tried += (float)(n_right < n ? n_right + 1 : n_right);
    if (c->tried < FADES_FROM) return;
    c->right /= 2;
    c->tried /= 2;
}
