/* told.h - what would be said over and over is said once a minute, with how often it was left out.
 *
 * Who owns what: a told belongs to whoever says it, one for each thing that is said. Threads: the owner's. Pure.
 */
#ifndef TOLD_H
#define TOLD_H

#include <stdbool.h>
#include <stdint.h>

#define TOLD_EVERY_NS ((uint64_t)60 * 1000000000u)

struct told {
    uint64_t at_ns; /* 0 = never */
    uint64_t n_left_out;
};

/* Whether it is to be said now; then *n_left_out is how often it was not, since it was said last. */
static inline bool told_due(struct told *t, uint64_t now_ns, uint64_t *n_left_out) {
    if (t->at_ns && now_ns - t->at_ns < TOLD_EVERY_NS) {
        t->n_left_out++;
        return false;
    }
    *n_left_out = t->n_left_out;
    *t = (struct told){.at_ns = now_ns};
    return true;
}

#endif
