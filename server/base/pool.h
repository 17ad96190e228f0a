/* pool.h - libuv's pool of threads, started before it is needed, and the order in which long work gets to it.
 *
 * libuv starts it at the first work, a long body, and ends the process where a thread does not start (a limit of
 * processes, of a container or a user). So it starts with the server, which can say why it does not.
 * libuv runs work in the order in which it comes, so a key's hundred long bodies would stand before the next key's
 * short one. Here each key has a queue: one queue follows another, and a queue may leave threads to the others.
 * Ownership: the caller owns work and queues; a queue outlives its work. Threads: the loop's; only run is called on the
 * pool. Invariant: work is in its queue until the pool has it; a queue is in the pool's list while work waits in it.
 */
#ifndef POOL_H
#define POOL_H

#include "engine/base/list.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

struct pool_work { /* zero at first */
    uv_work_t uv;
    void (*run)(void *arg);
    void (*done)(void *arg); /* on the loop, later than pool_add; also of work that was cancelled, which did not run */
    void *arg;
    size_t n_bytes; /* counted in pool and line until done is called */
    struct pool *pool;
    struct pool_queue *queue;
    struct list_link link; /* of the queue, while it waits */
    bool cancelled;
};

struct pool_queue {               /* zero at first */
    struct list waiting;          /* work */
    struct list_link link;        /* of the pool's queues, while work waits */
    unsigned n_running, n_leaves; /* n_leaves: so many threads are not for it, while it has one */
    size_t n_bytes;
};

struct pool {
    uv_loop_t *loop;
    pthread_t thread; /* the loop's */
    unsigned n_threads, n_running;
    struct list queues; /* with work that waits; the first one is served next */
    size_t n_bytes;
};

/* On a loop that has nothing else yet. 0, or -1 with message filled. */
int pool_start(struct pool *p, uv_loop_t *loop, char *message, size_t size);
void pool_add(struct pool *p, struct pool_queue *queue, struct pool_work *work);
void pool_cancel(struct pool_work *work); /* unless it has begun; done comes all the same */

#endif
