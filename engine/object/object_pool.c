/* object_pool.c - see object_pool.h. */
#include "object_pool.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

struct object_pool {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct list free;
    uint32_t n_made, n_max;
    uint64_t n_bytes, n_bytes_max; /* in flight */
};

int object_pool_open(uint32_t n_channels, uint64_t n_bytes, struct object_pool **out, struct rod_error *err) {
    struct object_pool *pool = calloc(1, sizeof *pool);
    *out = pool;
    if (!pool) return rod_fail_no_memory(err);
    assert(n_channels && n_bytes);
    pthread_mutex_init(&pool->lock, NULL);
    clock_init_condition(&pool->changed);
    list_init(&pool->free);
    pool->n_max = n_channels;
    pool->n_bytes_max = n_bytes;
    return 0;
}

static void channel_free(struct object_channel *channel) {
    if (!channel) return;
    object_exchange_fini(&channel->exchange);
    object_request_wipe(&channel->request);
    free(channel);
}

static struct object_channel *channel_make(void) {
    struct object_channel *channel = calloc(1, sizeof *channel);
    if (!channel || !object_exchange_init(&channel->exchange)) {
        channel_free(channel);
        return NULL;
    }
    return channel;
}

void object_pool_close(struct object_pool *pool) {
    if (!pool) return;
    assert(pool->free.n == pool->n_made && !pool->n_bytes);
    for (struct list_link *l; (l = list_first(&pool->free));) {
        list_remove(&pool->free, l);
        channel_free(LIST_OF(l, struct object_channel, link));
    }
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static bool wait_locked(struct object_pool *pool, uint64_t until_ns) {
    const struct timespec until = clock_timespec(until_ns);
    return !pthread_cond_timedwait(&pool->changed, &pool->lock, &until) || clock_now_ns() < until_ns;
}

struct object_channel *object_pool_take(struct object_pool *pool, uint64_t until_ns, struct rod_error *err) {
    struct object_channel *channel = NULL;
    bool in_time = true, make = false;
    pthread_mutex_lock(&pool->lock);
    while (!pool->free.n && pool->n_made == pool->n_max && in_time) in_time = wait_locked(pool, until_ns);
    if (pool->free.n) {
        channel = LIST_OF(list_first(&pool->free), struct object_channel, link);
        list_remove(&pool->free, &channel->link);
    } else if (pool->n_made < pool->n_max) {
        make = true;
        pool->n_made++;
    }
    pthread_mutex_unlock(&pool->lock);
    if (channel) return channel;
    if (!make) {
        rod_fail(err, ROD_EIO, "All %u connections to the object store are busy.", pool->n_max);
        return NULL;
    }
    channel = channel_make();
    if (channel) return channel;
    pthread_mutex_lock(&pool->lock);
    pool->n_made--;
    pthread_mutex_unlock(&pool->lock);
    rod_fail_no_memory(err);
    return NULL;
}

void object_pool_give(struct object_pool *pool, struct object_channel *channel) {
    pthread_mutex_lock(&pool->lock);
    list_push_first(&pool->free, &channel->link);
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}

int object_pool_take_bytes(struct object_pool *pool, uint64_t n, uint64_t until_ns, uint64_t *n_taken,
                           struct rod_error *err) {
    bool in_time = true;
    if (n > pool->n_bytes_max) n = pool->n_bytes_max;
    pthread_mutex_lock(&pool->lock);
    while (pool->n_bytes + n > pool->n_bytes_max && in_time) in_time = wait_locked(pool, until_ns);
    const bool fits = pool->n_bytes + n <= pool->n_bytes_max;
    *n_taken = fits ? n : 0;
    pool->n_bytes += *n_taken;
    pthread_mutex_unlock(&pool->lock);
    return fits ? 0 : rod_fail(err, ROD_EIO, "The object store has as many bytes in flight as there may be.");
}

void object_pool_give_bytes(struct object_pool *pool, uint64_t n_taken) {
    pthread_mutex_lock(&pool->lock);
    assert(pool->n_bytes >= n_taken);
    pool->n_bytes -= n_taken;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->lock);
}
