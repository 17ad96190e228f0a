/* log_limit.h - a line that would be logged over and over is logged once a minute, with a count of the lines left out.
 *
 * Ownership: the caller has one log_limit for each kind of line. Threads: of the owner. Pure.
 */
#ifndef LOG_LIMIT_H
#define LOG_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#define LOG_LIMIT_NS ((uint64_t)60 * 1000000000u)

struct log_limit {
    uint64_t at_ns; /* 0 = never */
    uint64_t n_left_out;
};

/* True: log the line now; *n_left_out lines were left out since the last one. */
static inline bool log_limit_due(struct log_limit *t, uint64_t now_ns, uint64_t *n_left_out) {
    if (t->at_ns && now_ns - t->at_ns < LOG_LIMIT_NS) {
        t->n_left_out++;
        return false;
    }
    *n_left_out = t->n_left_out;
    *t = (struct log_limit){.at_ns = now_ns};
    return true;
}

#endif
