/* state_guard.h - a home that is known to be out of reach is not waited for by everybody.
 *
 * A store that does not answer lets each call wait for its whole time. After a few such calls in a row the guard lets
 * one call through at a time, to see whether it is back, and fails the others at once with the last reason. So those
 * who wait for an answer wait for one call's time, however many they are, and no thread is lost to a dead store.
 *
 * Ownership: the guard borrows the home's arg, and outlives the home that it gives. Threads: any. Invariant: a call
 * that fails at once has done nothing.
 */
#ifndef STATE_GUARD_H
#define STATE_GUARD_H

#include "state_home.h"

#include <pthread.h>

struct state_guard {
    struct state_home inner;
    pthread_mutex_t lock;
    uint32_t n_failed; /* in a row: ROD_EIO */
    uint64_t tried_ns; /* when the last call was let through */
    bool trying;
    struct rod_error reason;
};

void state_guard_init(struct state_guard *guard, const struct state_home *home);
void state_guard_fini(struct state_guard *guard);
/* The guarded home. */
struct state_home state_guard_home(struct state_guard *guard);
/* The home is out of reach; why. */
bool state_guard_down(struct state_guard *guard, struct rod_error *why);
/* A home that was out of reach gets one more call, which may wait: for what is not tried again. */
void state_guard_forgive(struct state_guard *guard);

#endif
