/* admission.h - how fast the queue empties, and so when a refused client should come again.
 *
 * The rate is that of the last turnovers of the slots, however long they took: so it holds for requests of minutes as
 * for those of milliseconds. And it is at most n_slots over the time since one last left, as every slot's request has
 * run that long: by this alone a queue is judged out of which none has left yet, and so the wait of one that stands
 * grows bit by bit. Time counts only while requests wait; what was learnt outlives a short idle time, as clients that
 * were refused may come again just after it. Pure: the caller samples a counter about once a second and says what time
 * it is. Threads: one.
 */
#ifndef ADMISSION_H
#define ADMISSION_H

#include <stdbool.h>
#include <stdint.h>

enum { ADMISSION_MARKS = 16, ADMISSION_MAX_S = 120 };

struct admission { /* zero at first */
    struct admission_mark {
        uint64_t ns, n_left;
    } marks[ADMISSION_MARKS], /* of clock, a quarter of the slots or more apart; zero, its start, until all are made */
        clock,                /* time with a queue, and requests that left it in that time */
        seen;                 /* the last sample, as it was given */
    uint64_t moved_ns;        /* of clock, when one last left */
    uint64_t queue_ns;        /* when there last was a queue, as it was given */
    uint32_t n_slots, at;     /* at: the oldest mark, over which the next is written */
    bool queued;              /* at the last sample */
};

/* n_left: requests that have left the queue since the engine was opened. Samples closer than half a second to the
 * last one are dropped. */
void admission_sample(struct admission *a, uint64_t now_ns, uint64_t n_left, uint32_t n_queued, uint32_t n_slots);
/* Seconds until n_queued requests are gone, as of the last sample; 1 to ADMISSION_MAX_S. */
uint64_t admission_retry_s(const struct admission *a, uint64_t n_queued);

#endif
