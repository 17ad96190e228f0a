/* state_buffer.h - the bytes of a state in host memory: shared, counted, and unchanged once they are filled.
 *
 * A pool takes one stretch of memory when it is made (on a GPU it is pinned, so that copies run at the bus's speed) and
 * gives buffers out of it: nothing is allocated from the system afterwards, and all buffers together never take more
 * than the budget. Buffers lie one after the other, each behind a page that says how long it is; free stretches are
 * joined, and the first one that is long enough is taken.
 *
 * Ownership: all that have a reference own a buffer together; the last release gives its bytes back to the pool. A pool
 * lives until its owner has closed it and its last buffer is released, so buffers may outlive an engine. Threads: any,
 * for every call; hooks run on the thread that wants a buffer, without the pool's lock. Invariant: the maker of a
 * buffer writes its bytes before it gives the buffer on; afterwards nobody writes.
 */
#ifndef STATE_BUFFER_H
#define STATE_BUFFER_H

#include "engine/rodimus.h"

#include <stdatomic.h>

struct state_pool;

struct state_buffer {
    atomic_uint refs;
    size_t n_bytes;
    void *bytes;             /* at a multiple of 4096, unless without a pool */
    struct state_pool *pool; /* NULL: of no pool */
};

enum { STATE_POOL_MAX_HOOKS = 4 };

struct state_pool_config {
    size_t bytes; /* the budget; rounded down to whole pages */
    size_t least; /* of it that other memory never takes from buffers */
    /* Where the memory comes from; both NULL: from the system, touched as it is used. give may be called after
     * everything else of the taker is closed. */
    void *(*take)(void *arg, size_t bytes);
    void (*give)(void *memory, size_t bytes);
    void *arg; /* of take */
};

int state_pool_new(const struct state_pool_config *config, struct state_pool **out, struct rod_error *err);
void state_pool_close(struct state_pool *pool); /* NULL: nothing. Hooks are not called any more */

/* Call before other threads make buffers. full: n_bytes are wanted and the pool is full; the hook releases something of
 * less worth, if it has any, and returns whether another try is worth it. Hooks are asked in the order of their calls.
 */
void state_pool_on_full(struct state_pool *pool, bool (*full)(void *arg, size_t n_bytes), void *arg);

/* Other memory that counts in the budget and lies in no buffer: of a session as long as it lasts (places), and what
 * comes and goes with its buffer (beside). Places are refused past a quarter of the budget; buffers have three quarters
 * of it, and half and `least`, whatever was added. */
enum state_pool_room {
    STATE_POOL_FITS,
    STATE_POOL_FULL, /* it would fit if a buffer were released */
    STATE_POOL_MOST  /* places have their quarter */
};
enum state_pool_room state_pool_place(struct state_pool *pool, size_t n_bytes); /* NULL: it fits */
void state_pool_add(struct state_pool *pool, int64_t place_bytes, int64_t beside_bytes);
/* Asks the hooks once; true: another look is worth it. */
bool state_pool_ask(struct state_pool *pool, size_t n_bytes);
/* More was added beside buffers than fits. Asking helps, as a buffer's additions go with it. */
bool state_pool_over(struct state_pool *pool);

struct state_pool_counts {
    uint64_t bytes, used_bytes,
        most_bytes; /* the budget; whole pages in use, with those before the buffers; the most ever */
    uint64_t place_bytes, beside_bytes; /* other memory */
    uint64_t n_buffers, n_failed;       /* n_failed: calls of state_buffer_new that got none */
};
void state_pool_count(struct state_pool *pool, struct state_pool_counts *out);
/* The budget that n buffers of n_bytes take. */
size_t state_pool_bytes(size_t n_buffers, size_t n_bytes);

/* With one owner, and bytes as they happen to be. NULL: the pool is full, also after its hooks were asked. pool NULL:
 * from malloc, in no budget; for tests, and for states that come from outside. */
struct state_buffer *state_buffer_new(struct state_pool *pool, size_t n_bytes);
/* A buffer of what is free now: no hook is asked, and a failure is not counted. */
struct state_buffer *state_buffer_try(struct state_pool *pool, size_t n_bytes);
struct state_buffer *state_buffer_ref(struct state_buffer *buffer); /* one more owner; NULL gives NULL */
void state_buffer_release(struct state_buffer *buffer);             /* NULL: nothing */

#endif
