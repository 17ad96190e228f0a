/* pool.h - libuv's pool of threads, started before it is needed, and the order in which long work gets to it.
 *
 * libuv starts it at the first work, a long body, and ends the process where a thread does not start (a limit of
 * processes, of a container or a user). So it starts with the server, which can say why it does not.
 * libuv's own order is that in which work comes, so that a key's hundred long bodies would stand before the next key's
 * short one. Here each key has a line: the lines take turns, and one may leave threads to the others.
 * Who owns what: the caller owns work and lines; a line outlives its work. Threads: that of the loop; only run is
 * called on the pool.
 */
#ifndef POOL_H
#define POOL_H

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
    struct pool_line *line;
    struct pool_work *next;
    bool waits, cancelled;
};

struct pool_line { /* zero at first */
    struct pool_work *first, *last;
    struct pool_line *next;       /* of those with work that waits */
    unsigned n_running, n_leaves; /* n_leaves: so many threads are not for it, while it has one */
    size_t n_bytes;
};

struct pool {
    uv_loop_t *loop;
    unsigned n_threads, n_running;
    struct pool_line *first, *last; /* whose turn is next; the others behind it */
    size_t n_bytes;
};

/* On a loop that has nothing else yet. 0, or -1 with message filled. */
int pool_start(struct pool *p, uv_loop_t *loop, char *message, size_t size);
void pool_add(struct pool *p, struct pool_line *line, struct pool_work *work);
void pool_cancel(struct pool_work *work); /* unless it has begun; done comes all the same */

#endif
