/* state_buffer.h - the bytes of a state in host memory: shared, counted, and unchanged once they are filled.
 *
 * A pool takes one stretch of memory when it is made (on a GPU it is pinned, so that copies run at the bus's speed) and
 * gives images out of it: nothing is allocated from the system afterwards, and what all images take together never
 * passes the budget. Images lie one after the other with a page before each that says how long it is; free ones are
 * joined, and the first that is long enough is taken.
 *
 * Who owns what: an image belongs to all who share it; whoever releases it last gives its bytes back to the pool. A
 * pool lives until its owner has closed it and its last image is released, so images may outlive an engine.
 * Threads: any, for every call; hooks run on the thread that wants an image, without the pool's lock.
 * Invariant: bytes are written by who made the image, before it is shared or given on; from then on nobody writes.
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
    size_t least; /* of it that other memory never takes from images */
    /* Where the memory comes from: both NULL = from the system, touched as it is used. give may be called after
     * everything else that the taker has is closed. */
    void *(*take)(void *arg, size_t bytes);
    void (*give)(void *memory, size_t bytes);
    void *arg; /* of take */
};

int state_pool_new(const struct state_pool_config *config, struct state_pool **out, struct rod_error *err);
void state_pool_close(struct state_pool *pool); /* NULL: nothing. Hooks are not called any more */

/* Before images are made on other threads. full: somebody wants n_bytes and there is no room: release something that is
 * worth less, if there is, and return whether another try is worth it. They are asked in the order in which they were
 * added. */
void state_pool_on_full(struct state_pool *pool, bool (*full)(void *arg, size_t n_bytes), void *arg);

/* Other memory of the budget, in no image: what a session takes as long as it lasts (places), and what comes and goes
 * with its image (beside). Places take a quarter of the budget at most where they are asked for; images have three
 * quarters of it, and half and `least`, whatever was added. */
enum state_pool_room {
    STATE_POOL_FITS,
    STATE_POOL_FULL, /* it would, if an image went */
    STATE_POOL_MOST  /* places have their quarter */
};
enum state_pool_room state_pool_place(struct state_pool *pool, size_t n_bytes); /* NULL: it fits */
void state_pool_add(struct state_pool *pool, int64_t place_bytes, int64_t beside_bytes);
/* Asks those who would make room for an image, once: whether another look is worth it. */
bool state_pool_ask(struct state_pool *pool, size_t n_bytes);
/* Beside images more was added than fits: it is worth to ask, as what is beside an image goes with it. */
bool state_pool_over(struct state_pool *pool);

struct state_pool_counts {
    uint64_t bytes, used_bytes, most_bytes; /* of the budget; whole pages, those before the images too; the most ever */
    uint64_t place_bytes, beside_bytes;     /* other memory */
    uint64_t n_images, n_failed;            /* n_failed: state_buffer_new that got none */
};
void state_pool_count(struct state_pool *pool, struct state_pool_counts *out);
/* The budget that n images of n_bytes take. */
size_t state_pool_bytes(size_t n_images, size_t n_bytes);

/* One owner, bytes as they happen to be. NULL: no room, also after the hooks were asked. Without a pool: from malloc,
 * in no budget; for tests, and for states that come from outside. */
struct state_buffer *state_buffer_new(struct state_pool *pool, size_t n_bytes);
/* The same of what is free now: nobody is asked to release anything, and a failure counts nowhere. */
struct state_buffer *state_buffer_try(struct state_pool *pool, size_t n_bytes);
struct state_buffer *state_buffer_share(struct state_buffer *image); /* one more owner; NULL gives NULL */
void state_buffer_release(struct state_buffer *image);               /* NULL: nothing */

#endif
