/* store_wait.h - how long one request waits for a store, in all its calls together: STORE_WAIT_MOST_NS.
 *
 * A request carries what it has waited so far. A wait that failed was its last one: what can do without the store then
 * does, and what cannot tries for a short time. Pure.
 */
#ifndef STORE_WAIT_H
#define STORE_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#define STORE_WAIT_MOST_NS  ((uint64_t)10 * 1000000000u)
#define STORE_WAIT_SHORT_NS ((uint64_t)2 * 1000000000u)
#define STORE_WAIT_FAILED   UINT64_MAX

/* Of most_ns. */
static inline uint64_t store_wait_left_ns(uint64_t waited_ns, uint64_t most_ns) {
    return waited_ns < most_ns ? most_ns - waited_ns : 0;
}
/* For a call that nothing can stand in for. */
static inline uint64_t store_wait_needed_ns(uint64_t waited_ns) {
    const uint64_t left_ns = store_wait_left_ns(waited_ns, STORE_WAIT_MOST_NS);
    return left_ns > STORE_WAIT_SHORT_NS ? left_ns : STORE_WAIT_SHORT_NS;
}
static inline uint64_t store_wait_add(uint64_t waited_ns, uint64_t more_ns, bool failed) {
    return failed || waited_ns > STORE_WAIT_FAILED - more_ns ? STORE_WAIT_FAILED : waited_ns + more_ns;
}

#endif
