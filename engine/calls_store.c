/* calls_store.c - rod_store_*: an object store as a home of states. Programs that open none link no libcurl. */
#include "store.h"
#include "engine/base/fail.h"
#include "engine/object/object_home.h"
#include "engine/object/object_probe.h"
#include "engine/state/state_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct store { /* of the calls; engines see the first member */
    struct rod_store pub;
    struct object_store *objects;
    struct state_cache *cache; /* NULL: none */
};

static struct store *store_of(struct rod_store *store) { return (struct store *)(void *)store; }

/* Between the objects and who reads them. */
static int open_cache(struct store *s, const struct rod_store_config *c, struct rod_error *err) {
    const struct state_home objects = object_home(s->objects);
    char of[2 * OBJECT_MAX_KEY];
    s->pub.home = objects;
    if (!c->cache_dir || !*c->cache_dir) return 0;
    snprintf(of, sizeof of, "%s %s", c->url, c->endpoint ? c->endpoint : "");
    const struct state_cache_config config = {.home = &objects,
                                              .dir = c->cache_dir,
                                              .of = of,
                                              .max_bytes = c->cache_bytes,
                                              .log = c->log,
                                              .log_arg = c->log_arg};
    const int rc = state_cache_open(&config, &s->cache, err);
    if (!rc) s->pub.home = state_cache_home(s->cache);
    return rc;
}

int rod_store_open(const struct rod_store_config *c, struct rod_store **out, struct rod_error *err) {
    struct store *s = calloc(1, sizeof *s);
    if (!s) return rod_fail_no_memory(err);
    const struct object_store_config config = {.url = c->url,
                                               .endpoint = c->endpoint,
                                               .region = c->region,
                                               .style = c->style,
                                               .credentials_file = c->credentials,
                                               .encryption = c->encryption,
                                               .timeout_ms = c->timeout_ms,
                                               .n_connections = c->n_connections,
                                               .bytes_in_flight = c->bytes_in_flight,
                                               .log = c->log,
                                               .log_arg = c->log_arg};
    int rc = object_store_open(&config, &s->objects, err);
    if (!rc && !c->looks) rc = object_probe(s->objects, err);
    if (!rc) rc = open_cache(s, c, err);
    if (rc) {
        rod_store_close(&s->pub);
        return rc;
    }
    *out = &s->pub;
    return 0;
}

void rod_store_close(struct rod_store *store) {
    if (!store) return;
    state_cache_close(store_of(store)->cache);
    object_store_close(store_of(store)->objects);
    free(store);
}

int rod_store_reload(struct rod_store *store, struct rod_error *err) {
    return object_store_reload(store_of(store)->objects, err);
}

void rod_store_count(struct rod_store *store, struct rod_store_counts *out) {
    struct object_store *objects = store_of(store)->objects;
    struct object_counts c;
    struct state_cache_counts cached = {0};
    object_store_count(objects, &c);
    if (store_of(store)->cache) state_cache_count(store_of(store)->cache, &cached);
    *out = (struct rod_store_counts){.puts = c.puts,
                                     .gets = c.gets,
                                     .heads = c.heads,
                                     .deletes = c.deletes,
                                     .copies = c.copies,
                                     .lists = c.lists,
                                     .conflicts = c.conflicts,
                                     .failures = c.failures,
                                     .retries = c.retries,
                                     .bytes_in = c.bytes_in,
                                     .bytes_out = c.bytes_out,
                                     .cache_hits = cached.hits,
                                     .cache_misses = cached.misses,
                                     .cache_bytes = cached.bytes,
                                     .down = object_store_down(objects, NULL)};
    memcpy(out->times, c.times, sizeof out->times);
}
