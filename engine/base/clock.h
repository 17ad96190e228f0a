/* clock.h - the clocks of the program: a steady one for durations, the wall's for dates. Any thread. */
#ifndef CLOCK_H
#define CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t clock_read_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Never goes back; the same clock as libuv's. */
static inline uint64_t clock_now_ns(void) { return clock_read_ns(CLOCK_MONOTONIC); }

/* Since 1970, UTC. An operator may set it back. */
static inline uint64_t clock_unix_ns(void) { return clock_read_ns(CLOCK_REALTIME); }
static inline int64_t clock_unix_s(void) { return (int64_t)(clock_unix_ns() / 1000000000u); }

#endif
