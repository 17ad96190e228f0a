/* cost.h - what n of something take: a fixed part and a part for each, learned from measured times.
 *
 * A Kalman filter over (fixed, unit): every time moves both towards the line that explains it, the one that is less
 * certain by more. What times of one n cannot tell apart stays as it was, so it may be fed the same n for ever. Each
 * part wanders (machines change), so no time counts for ever; one that is far off moves them no more than one twice as
 * long. Invariants, whatever was learned: fixed >= 0, unit > 0, both finite. Pure: no clock, no allocation. The owner's
 * thread.
 */
#ifndef COST_H
#define COST_H

#include <stdint.h>

struct step_cost {
    double unit;              /* so many are a unit */
    double fixed_ns, unit_ns; /* for any at all; for each unit */
    double var_fixed, var_unit, cov;
    uint64_t n_most; /* the most that a time was told for; 0 = none yet, and there is no price */
};

/* unit: a typical small n. Until times of different n are known, the fixed part is taken for that of a few units. */
void cost_init(struct step_cost *p, uint32_t unit);
void cost_learn(struct step_cost *p, uint64_t n, uint64_t ns); /* n >= 1 took ns */
uint64_t cost_ns(const struct step_cost *p, uint64_t n);       /* 0 = no price yet; else at least 1 */
/* The fixed part, as far as it is sure: times of one n alone do not tell it. */
uint64_t cost_sure_ns(const struct step_cost *p);
/* Each of many, their part of the fixed one included; 0 = no price yet. */
double cost_each_ns(const struct step_cost *p);
/* How many take at most ns. At most twice n_most: a line is not trusted far from its points. */
uint64_t cost_fits(const struct step_cost *p, uint64_t ns);

#endif
