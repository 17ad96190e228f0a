/* price.h - what n of something take: a fixed part and a part for each, learned from measured times.
 *
 * A Kalman filter over (fixed, unit): every time moves both towards the line that explains it, the one that is less
 * certain by more. What times of one n cannot tell apart stays as it was, so it may be fed the same n for ever. Both
 * wander (machines change), so no time counts for ever; one that is far off moves them no more than one twice as long.
 * Invariants, whatever was learned: fixed >= 0, unit > 0, both finite.
 * Pure: no clock, no allocation. The owner's thread.
 */
#ifndef PRICE_H
#define PRICE_H

#include <stdint.h>

struct price {
    double unit;              /* so many are a unit */
    double fixed_ns, unit_ns; /* for any at all; for each unit */
    double var_fixed, var_unit, cov;
    uint64_t n_most; /* the most that a time was told for; 0 = none yet, and there is no price */
};

/* unit: a typical small n. Until times of different n are known, the fixed part is taken for that of a few units. */
void price_init(struct price *p, uint32_t unit);
void price_learn(struct price *p, uint64_t n, uint64_t ns); /* n >= 1 took ns */
uint64_t price_ns(const struct price *p, uint64_t n);       /* 0 = no price yet; else at least 1 */
/* The fixed part, as far as it is sure: times of one n alone do not tell it. */
uint64_t price_sure_ns(const struct price *p);
/* Each of many, their part of the fixed one included; 0 = no price yet. */
double price_each_ns(const struct price *p);
/* How many take at most ns. No more than twice of what was seen: a line is not trusted far from its points. */
uint64_t price_fits(const struct price *p, uint64_t ns);

#endif
