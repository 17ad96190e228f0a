/* cost.c - a filter of two numbers. Times are relative to what was expected, so it works alike at any speed. */
#include "cost.h"
#include "engine/base/policy.h"

#include <assert.h>
#include <math.h>

static const double LEAST_NS = 10000; /* below this a time says more about the clock than about a step */

static double cost_at_least(double a, double least) { return a > least ? a : least; }
static double cost_at_most(double a, double most) { return a < most ? a : most; }

void cost_init(struct step_cost *p, uint32_t unit) {
    assert(unit);
    *p = (struct step_cost){.unit = unit};
}

static void cost_begin(struct step_cost *p, double x, double ns) {
    p->unit_ns = cost_at_least(ns, LEAST_NS) / (POLICY_COST_PRIOR_UNITS + x);
    p->fixed_ns = POLICY_COST_PRIOR_UNITS * p->unit_ns;
    p->var_fixed = p->fixed_ns * p->fixed_ns;
    p->var_unit = p->unit_ns * p->unit_ns;
    p->cov = 0;
}

void cost_learn(struct step_cost *p, uint64_t n, uint64_t ns) {
    if (n == 0) return;
    const double x = (double)n / p->unit, took = (double)ns;
    if (p->n_most == 0) cost_begin(p, x, took);
    if (n > p->n_most) p->n_most = n;

    const double expected = p->fixed_ns + x * p->unit_ns, scale = cost_at_least(expected, LEAST_NS);
    /* Each part of the price wanders by a fraction of the time that it belongs to, so a part that fell to nothing can
     * come back. Uncertainty is bounded by the part itself, however long it was not measured. */
    const double fixed = cost_at_least(p->fixed_ns + cost_at_most(x, POLICY_COST_PRIOR_UNITS) * p->unit_ns, LEAST_NS);
    const double unit = scale / cost_at_least(x, 1);
    if (p->var_fixed < fixed * fixed) p->var_fixed += POLICY_COST_WANDER * fixed * POLICY_COST_WANDER * fixed;
    if (p->var_unit < unit * unit) p->var_unit += POLICY_COST_WANDER * unit * POLICY_COST_WANDER * unit;

    const double with_fixed = p->var_fixed + x * p->cov, with_unit = p->cov + x * p->var_unit;
    const double off = cost_at_least(cost_at_most(took - expected, scale), -scale / 2);
    const double noise = POLICY_COST_NOISE * scale, var = with_fixed + x * with_unit + noise * noise;
    p->fixed_ns = cost_at_least(p->fixed_ns + off * with_fixed / var, 0);
    p->unit_ns = cost_at_least(p->unit_ns + off * with_unit / var, 1);

    p->var_fixed = cost_at_least(p->var_fixed - with_fixed * with_fixed / var, 0);
    p->var_unit = cost_at_least(p->var_unit - with_unit * with_unit / var, 0);
    p->cov -= with_fixed * with_unit / var;
    /* rounding must not make it more than certain */
    if (p->cov * p->cov > p->var_fixed * p->var_unit) p->cov = 0;
    assert(p->fixed_ns >= 0 && isfinite(p->fixed_ns));
    assert(p->unit_ns > 0 && isfinite(p->unit_ns));
}

uint64_t cost_ns(const struct step_cost *p, uint64_t n) {
    if (p->n_most == 0) return 0;
    return (uint64_t)cost_at_least(cost_at_most(p->fixed_ns + (double)n / p->unit * p->unit_ns, 1e15), 1);
}

uint64_t cost_sure_ns(const struct step_cost *p) {
    const double ns = p->fixed_ns - sqrt(p->var_fixed);
    return p->n_most && ns > 0 ? (uint64_t)cost_at_most(ns, 1e15) : 0;
}

double cost_each_ns(const struct step_cost *p) {
    return p->n_most ? p->unit_ns / p->unit + p->fixed_ns / (double)p->n_most : 0;
}

uint64_t cost_fits(const struct step_cost *p, uint64_t ns) {
    if (p->n_most == 0 || (double)ns <= p->fixed_ns) return 0;
    const double n = ((double)ns - p->fixed_ns) / p->unit_ns * p->unit;
    return (uint64_t)cost_at_most(n, 2 * (double)p->n_most);
}
