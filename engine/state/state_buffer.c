/* state_buffer.c - see state_buffer.h. Buffers are cut from one stretch of memory, first fit, in whole pages. */
#include "state_buffer.h"
#include "engine/base/fail.h"
#include "engine/rodimus.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#if defined __SANITIZE_ADDRESS__ /* who reads past a buffer or after its release is caught as with malloc */
#include <sanitizer/asan_interface.h>
#define FORBID(p, n) ASAN_POISON_MEMORY_REGION(p, n)
#define ALLOW(p, n)  ASAN_UNPOISON_MEMORY_REGION(p, n)
#else
#define FORBID(p, n) (void)0
#define ALLOW(p, n)  (void)0
#endif

enum { PAGE = 4096 };

/* A stretch of whole pages, free or a buffer: its first page is this, the buffer's bytes are the others. */
struct block {
    struct state_buffer buffer;
    size_t bytes;
    struct block *next; /* of the free ones, in the order of their addresses */
};
static_assert(sizeof(struct block) <= PAGE, "a block's first page holds its description");

struct hook {
    bool (*full)(void *arg, size_t n_bytes);
    void *arg;
};

struct state_pool {
    struct state_pool_config config;
    pthread_mutex_t lock;
    void *memory;
    struct block *free;
    struct state_pool_counts counts;
    struct hook hooks[STATE_POOL_MAX_HOOKS];
    uint32_t n_hooks;
    bool closed; /* by its owner */
};

static size_t page_bytes(size_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

size_t state_pool_bytes(size_t n_buffers, size_t n_bytes) { return n_buffers * (PAGE + page_bytes(n_bytes)); }

/* ---- the pool ---- */

static void *system_take(void *arg, size_t bytes) {
    (void)arg;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

static void system_give(void *memory, size_t bytes) { munmap(memory, bytes); }

int state_pool_new(const struct state_pool_config *config, struct state_pool **out, struct rod_error *err) {
    struct state_pool *p = calloc(1, sizeof *p);
    if (!p) return rod_fail_no_memory(err);
    p->config = *config;
    p->config.bytes = config->bytes / PAGE * PAGE;
    if (!p->config.take) {
        p->config.take = system_take;
        p->config.give = system_give;
    }
    if (p->config.bytes < 2 * PAGE) {
        free(p);
        return rod_fail(err, ROD_EINVALID, "%zu bytes are too few for a pool of states.", config->bytes);
    }
    p->memory = p->config.take(p->config.arg, p->config.bytes);
    if (!p->memory) {
        free(p);
        return rod_fail(err, ROD_ENOMEM, "No %zu bytes of host memory for states.", config->bytes / PAGE * PAGE);
    }
    p->free = p->memory;
    *p->free = (struct block){.bytes = p->config.bytes};
    FORBID((char *)p->memory + PAGE, p->config.bytes - PAGE);
    p->counts.bytes = p->config.bytes;
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return 0;
}

/* Without the lock, when neither owner nor buffer is left. */
static void pool_end(struct state_pool *p) {
    assert(p->closed && !p->counts.used_bytes && p->free->bytes == p->config.bytes);
    ALLOW(p->memory, p->config.bytes);
    p->config.give(p->memory, p->config.bytes);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void state_pool_close(struct state_pool *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    assert(!p->closed);
    p->closed = true;
    p->n_hooks = 0;
    const bool last = p->counts.n_buffers == 0;
    pthread_mutex_unlock(&p->lock);
    if (last) pool_end(p);
}

void state_pool_on_full(struct state_pool *p, bool (*full)(void *arg, size_t n_bytes), void *arg) {
    pthread_mutex_lock(&p->lock);
    assert(p->n_hooks < STATE_POOL_MAX_HOOKS);
    p->hooks[p->n_hooks++] = (struct hook){full, arg};
    pthread_mutex_unlock(&p->lock);
}

void state_pool_count(struct state_pool *p, struct state_pool_counts *out) {
    pthread_mutex_lock(&p->lock);
    *out = p->counts;
    pthread_mutex_unlock(&p->lock);
}

/* ---- other memory ---- */

static uint64_t pool_places_most(const struct state_pool *p) { return p->config.bytes / 4; }

/* Of the budget, with the lock: what is in buffers, and what other memory takes from them. Never so much that there is
 * no room for the least beside the half that a cache of buffers may fill. */
static uint64_t pool_taken(const struct state_pool *p, size_t place_bytes) {
    const uint64_t half = p->config.bytes / 2;
    const uint64_t most = half > p->config.least ? half - p->config.least : 0;
    const uint64_t quarter = pool_places_most(p), limit = most < quarter ? most : quarter;
    const uint64_t other = p->counts.place_bytes + p->counts.beside_bytes + place_bytes;
    return p->counts.used_bytes + (other < limit ? other : limit);
}

enum state_pool_room state_pool_place(struct state_pool *p, size_t n_bytes) {
    if (!p) return STATE_POOL_FITS;
    pthread_mutex_lock(&p->lock);
    const bool most = p->counts.place_bytes + n_bytes > pool_places_most(p);
    const bool full = pool_taken(p, n_bytes) > p->config.bytes;
    pthread_mutex_unlock(&p->lock);
    return most ? STATE_POOL_MOST : full ? STATE_POOL_FULL : STATE_POOL_FITS;
}

void state_pool_add(struct state_pool *p, int64_t place_bytes, int64_t beside_bytes) {
    pthread_mutex_lock(&p->lock);
    assert(place_bytes >= 0 || (uint64_t)-place_bytes <= p->counts.place_bytes);
    assert(beside_bytes >= 0 || (uint64_t)-beside_bytes <= p->counts.beside_bytes);
    p->counts.place_bytes += (uint64_t)place_bytes;
    p->counts.beside_bytes += (uint64_t)beside_bytes;
    pthread_mutex_unlock(&p->lock);
}

bool state_pool_over(struct state_pool *p) {
    pthread_mutex_lock(&p->lock);
    const uint64_t places = p->counts.place_bytes < pool_places_most(p) ? p->counts.place_bytes : pool_places_most(p);
    const bool over = p->counts.used_bytes > p->config.least &&
                      p->counts.used_bytes + places + p->counts.beside_bytes > p->config.bytes;
    pthread_mutex_unlock(&p->lock);
    return over;
}

/* ---- blocks; with the lock ---- */

static struct block *pool_take_block(struct state_pool *p, size_t bytes) {
    struct block **at = &p->free;
    while (*at && (*at)->bytes < bytes) at = &(*at)->next;
    struct block *b = *at;
    if (!b) return NULL;
    if (b->bytes == bytes) {
        *at = b->next;
        return b;
    }
    assert(bytes % PAGE == 0 && b->bytes - bytes >= PAGE);
    struct block *rest = (struct block *)(void *)((char *)b + bytes);
    ALLOW(rest, PAGE);
    *rest = (struct block){.bytes = b->bytes - bytes, .next = b->next};
    *at = rest;
    b->bytes = bytes;
    return b;
}

static bool block_touches(const struct block *a, const struct block *b) {
    return (const char *)a + a->bytes == (const char *)b;
}

static void block_join_next(struct block *b) {
    struct block *next = b->next;
    b->bytes += next->bytes;
    b->next = next->next;
    FORBID(next, PAGE);
}

static void pool_give_block(struct state_pool *p, struct block *b) {
    struct block *before = NULL, *after = p->free;
    while (after && after < b) before = after, after = after->next;
    assert(!before || (const char *)before + before->bytes <= (const char *)b);
    assert(!after || (const char *)b + b->bytes <= (const char *)after);
    b->next = after;
    if (before)
        before->next = b;
    else
        p->free = b;
    if (after && block_touches(b, after)) block_join_next(b);
    if (before && block_touches(before, b)) block_join_next(before);
}

static struct block *block_of(struct state_buffer *buffer) { return (struct block *)(void *)buffer; }

/* ---- buffers ---- */

static struct state_buffer *buffer_of_no_pool(size_t n_bytes) {
    struct state_buffer *buffer = malloc(sizeof *buffer + n_bytes);
    if (!buffer) return NULL;
    buffer->n_bytes = n_bytes;
    buffer->bytes = buffer + 1;
    buffer->pool = NULL;
    atomic_init(&buffer->refs, 1);
    return buffer;
}

static struct state_buffer *pool_try_new(struct state_pool *p, size_t n_bytes) {
    const size_t bytes = state_pool_bytes(1, n_bytes);
    pthread_mutex_lock(&p->lock);
    struct block *b = pool_taken(p, 0) + bytes <= p->config.bytes ? pool_take_block(p, bytes) : NULL;
    if (b) {
        p->counts.n_buffers++;
        p->counts.used_bytes += bytes;
        assert(b->bytes == bytes && p->counts.used_bytes <= p->config.bytes);
        if (p->counts.used_bytes > p->counts.most_bytes) p->counts.most_bytes = p->counts.used_bytes;
    }
    pthread_mutex_unlock(&p->lock);
    if (!b) return NULL;
    b->buffer.n_bytes = n_bytes;
    b->buffer.bytes = (char *)b + PAGE;
    b->buffer.pool = p;
    atomic_init(&b->buffer.refs, 1);
    ALLOW(b->buffer.bytes, n_bytes);
    return &b->buffer;
}

/* A copy, so that they can be called without the lock. */
static uint32_t pool_copy_hooks(struct state_pool *p, struct hook hooks[STATE_POOL_MAX_HOOKS]) {
    pthread_mutex_lock(&p->lock);
    const uint32_t n = p->n_hooks;
    memcpy(hooks, p->hooks, n * sizeof *hooks);
    pthread_mutex_unlock(&p->lock);
    return n;
}

bool state_pool_ask(struct state_pool *p, size_t n_bytes) {
    struct hook hooks[STATE_POOL_MAX_HOOKS];
    const uint32_t n_hooks = pool_copy_hooks(p, hooks);
    for (uint32_t i = 0; i < n_hooks; i++)
        if (hooks[i].full(hooks[i].arg, n_bytes)) return true;
    return false;
}

struct state_buffer *state_buffer_new(struct state_pool *p, size_t n_bytes) {
    if (n_bytes > SIZE_MAX / 2) return NULL;
    if (!p) return buffer_of_no_pool(n_bytes);
    struct state_buffer *buffer = pool_try_new(p, n_bytes);
    if (buffer) return buffer;
    struct hook hooks[STATE_POOL_MAX_HOOKS];
    const uint32_t n_hooks = state_pool_bytes(1, n_bytes) > p->config.bytes ? 0 : pool_copy_hooks(p, hooks);
    for (uint32_t i = 0; !buffer && i < n_hooks; i++)
        while (!buffer && hooks[i].full(hooks[i].arg, n_bytes)) buffer = pool_try_new(p, n_bytes);
    if (buffer) return buffer;
    pthread_mutex_lock(&p->lock);
    p->counts.n_failed++;
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

struct state_buffer *state_buffer_try(struct state_pool *p, size_t n_bytes) {
    if (n_bytes > SIZE_MAX / 2) return NULL;
    return p ? pool_try_new(p, n_bytes) : buffer_of_no_pool(n_bytes);
}

struct state_buffer *state_buffer_ref(struct state_buffer *buffer) {
    if (!buffer) return NULL;
    const unsigned refs = atomic_fetch_add_explicit(&buffer->refs, 1, memory_order_relaxed);
    assert(refs > 0); /* whoever has it is an owner */
    return buffer;
}

static void pool_give_back(struct state_pool *p, struct block *b) {
    FORBID(b->buffer.bytes, b->buffer.n_bytes);
    pthread_mutex_lock(&p->lock);
    assert(p->counts.n_buffers && p->counts.used_bytes >= b->bytes);
    p->counts.n_buffers--;
    p->counts.used_bytes -= b->bytes;
    pool_give_block(p, b);
    const bool last = p->closed && p->counts.n_buffers == 0;
    pthread_mutex_unlock(&p->lock);
    if (last) pool_end(p);
}

void state_buffer_release(struct state_buffer *buffer) {
    if (!buffer) return;
    const unsigned refs = atomic_fetch_sub_explicit(&buffer->refs, 1, memory_order_acq_rel);
    assert(refs > 0);
    if (refs != 1) return;
    if (buffer->pool)
        pool_give_back(buffer->pool, block_of(buffer));
    else
        free(buffer);
}

void rod_state_free(struct rod_state *state) {
    if (!state) return;
    state_buffer_release(state->buffer);
    free(state);
}

struct rod_state *rod_state_ref(const struct rod_state *state) {
    struct rod_state *copy = malloc(sizeof *copy);
    if (!copy) return NULL;
    *copy = *state;
    state_buffer_ref(copy->buffer);
    return copy;
}
