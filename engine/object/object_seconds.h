/* object_seconds.h - how long calls took: a histogram for each kind of work.
 *
 * Threads: any; a reader may see a call's sum without its count.
 */
#ifndef OBJECT_SECONDS_H
#define OBJECT_SECONDS_H

#include "object_request.h"

#include <stdatomic.h>

struct object_seconds {
    atomic_uint_fast64_t ns_sum, ns_bucket[ROD_STORE_BUCKETS]; /* not cumulative */
};

void object_seconds_add(struct object_seconds works[ROD_STORE_N_WORKS], enum object_kind kind, uint64_t ns);
void object_seconds_count(const struct object_seconds works[ROD_STORE_N_WORKS],
                          struct rod_store_times out[ROD_STORE_N_WORKS]);

#endif
