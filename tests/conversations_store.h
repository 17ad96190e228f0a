/* conversations_store.h - for tests of conversations in a store in memory: servers, requests, and what the store has.
 */
#ifndef CONVERSATIONS_STORE_H
#define CONVERSATIONS_STORE_H

#include "sessions_store.h"
#include "talks.h"

#include "engine/conversation/conversations_internal.h"

#define CACHED(...) CONFIG(.prefix_cache_bytes = 64u << 20, __VA_ARGS__)

static inline void serve(struct server *v, struct memory_store *m, struct rod_engine_config config) {
    server_open(v, m, 7, config);
    v->b.c.engine->copy_ns = 0;
}

static inline struct talk begun(const char *name, uint64_t seed) {
    struct talk t;
    talk_begin(&t, name, 100, seed);
    talk_text(&t, 20, seed + 1);
    return t;
}

/* Like the server: what the store has is made known, then it is asked. */
static inline uint64_t ask(struct server *v, struct talk *t) {
    look(&v->b, t);
    return talk_ask(&v->b, t, 9);
}

static inline void assert_read(uint64_t read, uint64_t want, const char *what) {
    if (read != want)
        fail_msg("%s: %llu tokens were read, want %llu", what, (unsigned long long)read, (unsigned long long)want);
}

static inline uint64_t ms_since(uint64_t began_ns) { return (clock_now_ns() - began_ns) / 1000000; }

static inline size_t count_below(struct memory_store *m, const char *below) {
    size_t n = 0;
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n; i++) n += strstr(m->objects[i].name, below) && !strstr(m->objects[i].name, "clock");
    pthread_mutex_unlock(&m->lock);
    return n;
}
static inline uint64_t bytes_below(struct memory_store *m, const char *below) {
    uint64_t n = 0;
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n; i++)
        if (strstr(m->objects[i].name, below)) n += m->objects[i].version.n_bytes;
    pthread_mutex_unlock(&m->lock);
    return n;
}

#endif
