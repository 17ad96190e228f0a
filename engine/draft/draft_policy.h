/* draft_policy.h - how many draft tokens a row of a step takes along, so that they pay.
 *
 * A draft token makes the step longer for all its streams, by its learned price, and gives a token if it and
 * those before it are right. It pays while its chance, over its price, is more than what the step has for its time
 * anyway. Chances are learned for each request and kind of draft, from those of all requests at first.
 *
 * Who owns what: counts belong to a request or to the engine. Pure; the engine thread.
 */
#ifndef DRAFT_POLICY_H
#define DRAFT_POLICY_H

#include "engine/rodimus.h"

/* By what a draft is like: the length of its match (2, 3, 4 to 7, 8 to 15, from 16 on), of a prediction, or a draft
 * model's. */
enum { DRAFT_KINDS = 7, DRAFT_PREDICTED = 5, DRAFT_BY_MODEL = 6 };

struct draft_chance {
    float right, tried; /* draft tokens; older ones count less */
};
struct draft_chances {
    struct draft_chance of[DRAFT_KINDS];
    uint32_t n_refused[DRAFT_KINDS], n_probes[DRAFT_KINDS]; /* since the kind was tried; tries in vain in a row */
};

/* A step while it is planned: what it gives and takes. */
struct draft_step {
    double tokens, ns, token_ns; /* token_ns: of a draft token; 0: not known, and nothing is drafted */
};

uint32_t draft_kind(uint32_t n_match, bool predicted);
double draft_chance(const struct draft_chances *own, const struct draft_chances *all, uint32_t kind);
/* How many of n draft tokens the step takes; it has them then. Counts what is refused, for all as well. */
uint32_t draft_count(struct draft_chances *own, struct draft_chances *all, uint32_t kind, uint32_t n,
                     struct draft_step *step);
/* Of a draft of n tokens the first n_right were right. */
void draft_judge(struct draft_chances *chances, uint32_t kind, uint32_t n, uint32_t n_right);

#endif
