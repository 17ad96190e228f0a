/* object_seconds.c - see object_seconds.h. */
#include "object_seconds.h"

/* From a small object nearby to a large one of a slow store. */
const uint64_t rod_store_bounds_ns[ROD_STORE_BUCKETS] = {
    1000000,   2500000,    5000000,    10000000,   25000000,    50000000,    100000000,    250000000,
    500000000, 1000000000, 2500000000, 5000000000, 10000000000, 30000000000, 120000000000, UINT64_MAX};

void object_seconds_add(struct object_seconds works[ROD_STORE_N_WORKS], enum object_kind kind, uint64_t ns) {
    struct object_seconds *work = &works[kind == OBJECT_GET   ? ROD_STORE_READ
                                         : kind == OBJECT_PUT ? ROD_STORE_WRITE
                                                              : ROD_STORE_OTHER];
    int i = 0;
    while (ns > rod_store_bounds_ns[i]) i++;
    atomic_fetch_add(&work->ns_sum, ns);
    atomic_fetch_add(&work->ns_bucket[i], 1);
}

void object_seconds_count(const struct object_seconds works[ROD_STORE_N_WORKS],
                          struct rod_store_times out[ROD_STORE_N_WORKS]) {
    for (int work = 0; work < ROD_STORE_N_WORKS; work++) {
        uint64_t n = 0;
        out[work].ns_sum = atomic_load(&works[work].ns_sum);
        for (int i = 0; i < ROD_STORE_BUCKETS; i++)
            out[work].ns_bucket[i] = n += atomic_load(&works[work].ns_bucket[i]);
    }
}
