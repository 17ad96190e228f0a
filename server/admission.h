/* admission.h - how fast the queue empties, and so when a refused client should come again.
 *
 * Pure: the caller samples a counter about once a second and says what time it is. Threads: one.
 */
#ifndef ADMISSION_H
#define ADMISSION_H

#include <stdint.h>

enum { ADMISSION_SAMPLES = 16, ADMISSION_MAX_S = 120 };

struct admission {
    struct admission_sample {
        uint64_t ns, n_left;
    } samples[ADMISSION_SAMPLES];
    uint32_t n, at; /* n: valid ones; at: the next is written here */
};

/* n_left: requests that have left the queue since the engine was opened. Samples closer than half a second to the
 * last one are dropped. */
void admission_sample(struct admission *a, uint64_t now_ns, uint64_t n_left);
/* Seconds until n_queued requests are gone at the rate of the last samples, 1 to ADMISSION_MAX_S. */
uint64_t admission_retry_s(const struct admission *a, uint64_t n_queued);

#endif
