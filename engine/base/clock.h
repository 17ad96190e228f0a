/* clock.h - the clocks of the program: a steady one for durations, the wall's for dates. Any thread. */
#ifndef CLOCK_H
#define CLOCK_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

static inline uint64_t clock_read_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Never goes back; the same clock as libuv's. */
static inline uint64_t clock_now_ns(void) { return clock_read_ns(CLOCK_MONOTONIC); }

static inline struct timespec clock_timespec(uint64_t ns) {
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}
/* Of a condition whose waits end at times of clock_now_ns. */
static inline void clock_init_condition(pthread_cond_t *condition) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attr);
    pthread_condattr_destroy(&attr);
}

/* Since 1970, UTC. An operator may set it back. */
static inline uint64_t clock_unix_ns(void) { return clock_read_ns(CLOCK_REALTIME); }
static inline int64_t clock_unix_s(void) { return (int64_t)(clock_unix_ns() / 1000000000u); }

#endif
