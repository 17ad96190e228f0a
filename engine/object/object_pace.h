/* object_pace.h - how long a call may take: a time that moving bytes extend, and the waits between its attempts.
 *
 * An attempt has a credit of time, three quarters of the call's at most. Waiting spends it, each byte that moves earns
 * some back. So a store that is silent or slow ends the attempt soon, also behind a fast beginning, and a large body
 * takes as long as it needs.
 * Pure: the clock is the caller's. Times in ns of clock_now_ns.
 */
#ifndef OBJECT_PACE_H
#define OBJECT_PACE_H

#include <stdbool.h>
#include <stdint.h>

struct object_pace {
    uint64_t end_ns;   /* no attempt begins later */
    uint64_t cap_ns;   /* of the credit */
    uint64_t until_ns; /* the credit is spent then, if nothing moves */
    uint32_t n_attempts;
};

void object_pace_begin(struct object_pace *p, uint64_t now_ns, uint64_t time_ns);
void object_pace_attempt(struct object_pace *p, uint64_t now_ns);
void object_pace_moved(struct object_pace *p, uint64_t now_ns, uint64_t n_bytes);
/* The caller, not the store, took so long. */
void object_pace_idle(struct object_pace *p, uint64_t idle_ns);
uint64_t object_pace_left_ns(const struct object_pace *p, uint64_t now_ns);
/* Before another attempt: some 50 ms, twice as many each time, up to a second, a random part of it off, and what the
 * store asked for at least. false: none would begin in time. */
bool object_pace_wait(const struct object_pace *p, uint64_t now_ns, uint64_t asked_ns, uint32_t random,
                      uint64_t *wait_ns);

#endif
