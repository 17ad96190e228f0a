/* ablate_sum.h - what a rule is worth, from pairs of times with it and without. Pure.
 */
#ifndef ABLATE_SUM_H
#define ABLATE_SUM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { ABLATE_MOST_PAIRS = 64 };

struct ablate_pair {
    double with_ms, without_ms;
};
/* The median of the pairs' losses, the smallest and the largest; the medians of their times. */
struct ablate_loss {
    double percent, low, high, with_ms, without_ms;
};

static inline int ablate_compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static inline double ablate_median(double *v, uint32_t n) {
    qsort(v, n, sizeof *v, ablate_compare);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* n > 0. */
static inline struct ablate_loss ablate_loss(const struct ablate_pair *pair, uint32_t n) {
    double loss[ABLATE_MOST_PAIRS], with[ABLATE_MOST_PAIRS], without[ABLATE_MOST_PAIRS];
    for (uint32_t i = 0; i < n; i++) {
        with[i] = pair[i].with_ms, without[i] = pair[i].without_ms;
        loss[i] = 100 * (without[i] / with[i] - 1);
    }
    struct ablate_loss all = {ablate_median(loss, n), 0, 0, ablate_median(with, n), ablate_median(without, n)};
    all.low = loss[0], all.high = loss[n - 1];
    return all;
}

/* Near the two percent under which a rule goes. */
static inline bool ablate_is_close(const struct ablate_pair *pair, uint32_t n) {
    const double percent = ablate_loss(pair, n).percent;
    return percent > 0.5 && percent < 4;
}

/* Steps of so many milliseconds in a side of a pair: whole rounds of four, as a step may do at some positions what it
 * leaves at others. */
static inline uint32_t ablate_steps(double step_ms, double side_ms, uint32_t least, uint32_t most) {
    const double n = side_ms / step_ms / 4;
    const uint32_t rounds = n < most / 4 ? (uint32_t)n : most / 4;
    return 4 * rounds < least ? least : 4 * rounds;
}

#endif
