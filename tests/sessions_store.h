/* sessions_store.h - for tests of sessions in a store in memory: servers of one store, and conversations. */
#ifndef SESSIONS_STORE_H
#define SESSIONS_STORE_H

#include "memory_store.h"
#include "sessions_folder.h"

struct server {
    struct setup b;
    struct memory_client client;
};

/* Its client is connected. */
static inline void server_start(struct server *v, struct rod_engine_config config) {
    atomic_store(&v->client.quiet, true);
    config.store = &v->client.as_store;
    if (!config.state_host_bytes) config.state_host_bytes = 64u << 20;
    setup_open(&v->b, OPTIONS(.kind = FAKE_HASH), config);
    atomic_store(&v->client.quiet, false);
}

static inline void server_open(struct server *v, struct memory_store *m, uint64_t seed,
                               struct rod_engine_config config) {
    memory_connect(&v->client, m, seed);
    server_start(v, config);
}

static inline void store_wait(size_t (*count)(struct memory_store *m, const char *end), struct memory_store *m,
                              const char *end, size_t want, uint32_t most_ms) {
    for (uint32_t ms = 0; count(m, end) != want; ms += 10, usleep(10000))
        if (ms > most_ms) fail_msg("after %u ms: %zu files %s, want %zu", most_ms, count(m, end), end, want);
}

static inline uint64_t test_seed(void) {
    const char *given = getenv("RODIMUS_TEST_SEED");
    return given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
}

#endif
