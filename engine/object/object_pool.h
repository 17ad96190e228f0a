/* object_pool.h - connections to one store: a bounded number of channels and a bound of bytes in flight.
 *
 * A channel is a handle of libcurl with its connection, used by one call at a time; the one that was used last goes
 * first, so that connections stay warm. Threads: any. A call waits for both within its time.
 */
#ifndef OBJECT_POOL_H
#define OBJECT_POOL_H

#include "object_exchange.h"

#include "engine/base/list.h"

struct object_channel {
    struct list_link link; /* while it is free */
    struct object_exchange exchange;
    struct object_request request;
};

struct object_pool;
int object_pool_open(uint32_t n_channels, uint64_t n_bytes, struct object_pool **out, struct rod_error *err);
void object_pool_close(struct object_pool *pool); /* all channels are given back; NULL: nothing */

/* NULL: none was free until then, or there is no memory: err. */
struct object_channel *object_pool_take(struct object_pool *pool, uint64_t until_ns, struct rod_error *err);
void object_pool_give(struct object_pool *pool, struct object_channel *channel);
/* Of more than all bytes, all are taken; *n_taken is to be given back. */
int object_pool_take_bytes(struct object_pool *pool, uint64_t n, uint64_t until_ns, uint64_t *n_taken,
                           struct rod_error *err);
void object_pool_give_bytes(struct object_pool *pool, uint64_t n_taken);

#endif
