/* object_pace.c - see object_pace.h. */
#include "object_pace.h"
#include "object_store.h"

#define FIRST_WAIT_NS   ((uint64_t)50000000)
#define LONGEST_WAIT_NS ((uint64_t)1000000000)
#define SECOND_NS       ((uint64_t)1000000000)

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

void object_pace_begin(struct object_pace *p, uint64_t now_ns, uint64_t time_ns) {
    *p = (struct object_pace){.end_ns = now_ns + time_ns, .cap_ns = time_ns / 4 * 3};
    p->until_ns = now_ns + p->cap_ns;
}

void object_pace_attempt(struct object_pace *p, uint64_t now_ns) {
    p->n_attempts++;
    p->until_ns = earlier(now_ns + p->cap_ns, p->end_ns);
}

void object_pace_moved(struct object_pace *p, uint64_t now_ns, uint64_t n_bytes) {
    const uint64_t most = UINT64_MAX / SECOND_NS;
    const uint64_t earned = (n_bytes < most ? n_bytes : most) * SECOND_NS / OBJECT_FLOOR_BPS;
    const uint64_t cap = now_ns + p->cap_ns;
    p->until_ns = p->until_ns > cap ? p->until_ns : earlier(p->until_ns + earned, cap);
}

void object_pace_idle(struct object_pace *p, uint64_t idle_ns) { p->until_ns += idle_ns; }

uint64_t object_pace_left_ns(const struct object_pace *p, uint64_t now_ns) {
    return p->until_ns > now_ns ? p->until_ns - now_ns : 0;
}

bool object_pace_wait(const struct object_pace *p, uint64_t now_ns, uint64_t asked_ns, uint32_t random,
                      uint64_t *wait_ns) {
    const uint32_t doublings = p->n_attempts > 1 ? p->n_attempts - 1 : 0;
    uint64_t wait = doublings < 6 ? FIRST_WAIT_NS << doublings : LONGEST_WAIT_NS;
    wait = earlier(wait, LONGEST_WAIT_NS);
    wait -= wait / 2 * (random & 0xffff) >> 16;
    if (wait < asked_ns) wait = asked_ns;
    *wait_ns = wait;
    return now_ns + wait < p->end_ns;
}
