/* loading.h - how long loading the model still takes, and so when a client that came too early should come again.
 *
 * What is left of a phase (the weights are read, then packed or sent to the device) follows from its bytes so far over
 * its time so far. Of a later phase nothing is known, and none is guessed: the second may be as long or nothing, and
 * a client that comes too early has another 503, with a better number. Where nothing is counted, what has lasted some
 * time is expected to last as long again. So the number rises while loading stands. Threads: the one that loads
 * reports, any may ask.
 */
#ifndef LOADING_H
#define LOADING_H

#include "engine/rodimus.h"

#include <pthread.h>

enum { LOADING_MAX_S = 120 };

struct loading {
    pthread_mutex_t lock;           /* over all that follows */
    uint64_t began_ns, reported_ns; /* the phase; its last report */
    char what[48];                  /* "" before the first */
    uint64_t done, total;
};

void loading_begin(struct loading *l, uint64_t now_ns);
void loading_report(struct loading *l, const struct rod_progress *at, uint64_t now_ns);
uint64_t loading_retry_s(struct loading *l, uint64_t now_ns); /* 1 to LOADING_MAX_S */

#endif
