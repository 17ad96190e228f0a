/* state_cache.c - see state_cache.h. */
#include "state_cache.h"
#include "state_cache_folder.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct state_cache {
    struct state_home inner;
    struct cache_folder folder;
    atomic_uint_fast64_t n_hits, n_misses;
};

/* An open file: its copy, or its object and the copy that becomes of it. */
struct cache_reader {
    struct state_cache *cache;
    char file[CACHE_FILE_NAME_BYTES];
    struct state_disk_version version;
    struct state_disk_file copy; /* fd -1: none */
    struct state_home_file inner;
    struct cache_part part;
    uint64_t at;
};

/* ---- reading ---- */

static void reader_drop_copy(struct cache_reader *r) {
    state_disk_close(&r->copy);
    cache_folder_drop(&r->cache->folder, r->file);
}

static int reader_ask(struct cache_reader *r, const char *name, const char *known, struct rod_error *err) {
    const struct state_home *home = &r->cache->inner;
    r->inner = (struct state_home_file){.calls = home->calls, .disk.fd = -1};
    return home->calls->open(home->arg, name, known, &r->inner, err);
}

/* The copy is there: unless it is another version than what the caller knows, a newer one, it was not read here yet. */
static int reader_ask_of_copy(struct cache_reader *r, const char *name, const char *known, struct rod_error *err) {
    const int rc = reader_ask(r, name, r->version.etag, err);
    const bool current = !rc && r->inner.unchanged, known_too = current && !strcmp(r->version.etag, known);
    if (known_too) state_disk_close(&r->copy);
    if (known_too || (current && cache_copy_check(&r->copy, &r->version))) return 0;
    if (rc && rc != ROD_ENOTFOUND) {
        state_disk_close(&r->copy);
        return rc;
    }
    reader_drop_copy(r);
    return current ? reader_ask(r, name, known, err) : rc;
}

static int reader_open(struct cache_reader *r, const char *name, const char *known, bool *unchanged,
                       struct rod_error *err) {
    const bool copied = cache_copy_open(&r->cache->folder, r->file, &r->copy, &r->version);
    const int rc = copied ? reader_ask_of_copy(r, name, known, err) : reader_ask(r, name, known, err);
    *unchanged = false;
    if (rc) return rc;
    if (r->copy.fd >= 0) {
        atomic_fetch_add_explicit(&r->cache->n_hits, 1, memory_order_relaxed);
        return 0;
    }
    if (!r->inner.unchanged) r->version = r->inner.version;
    *unchanged = r->inner.unchanged || (*known && !strcmp(r->version.etag, known)); /* the copy was older than that */
    if (!r->inner.unchanged && *unchanged) state_home_close(&r->inner);
    if (*unchanged) return 0;
    atomic_fetch_add_explicit(&r->cache->n_misses, 1, memory_order_relaxed);
    cache_part_begin(&r->cache->folder, r->file, &r->version, &r->part);
    return 0;
}

static int cache_open(void *arg, const char *name, const char *known, struct state_home_file *out,
                      struct rod_error *err) {
    struct cache_reader *r = calloc(1, sizeof *r);
    if (!r) return rod_fail_no_memory(err);
    r->cache = arg;
    cache_folder_name(&r->cache->folder, name, r->file);
    const int rc = reader_open(r, name, known, &out->unchanged, err);
    out->version = r->version;
    out->reader = r;
    if (!rc && !out->unchanged) return 0;
    assert(r->copy.fd < 0 && !r->part.part);
    free(r);
    out->reader = NULL;
    return rc;
}

static int cache_get(struct state_home_file *file, void *dst, size_t n_bytes, size_t *n_read, struct rod_error *err) {
    struct cache_reader *r = file->reader;
    const uint64_t left = r->version.n_bytes - r->at;
    int rc;
    if (r->copy.fd >= 0) {
        *n_read = n_bytes < left ? n_bytes : (size_t)left;
        rc = cache_copy_get(&r->copy, r->at, dst, *n_read, err);
        if (rc) *n_read = 0;
        if (rc) cache_folder_drop(&r->cache->folder, r->file);
    } else {
        rc = state_home_get(&r->inner, dst, n_bytes, n_read, err);
        cache_part_put(&r->cache->folder, &r->part, dst, *n_read);
    }
    r->at += *n_read;
    return rc;
}

static void cache_close(struct state_home_file *file) {
    struct cache_reader *r = file->reader;
    if (r->copy.fd < 0) state_home_close(&r->inner);
    state_disk_close(&r->copy);
    cache_part_end(&r->cache->folder, &r->part, r->at == r->version.n_bytes, true);
    free(r);
}

/* ---- writing ---- */

static bool item_is_state(const struct state_disk_item *item, uint64_t *n_bytes) {
    uint64_t n_header, n_file;
    *n_bytes = 0;
    for (size_t i = 0; i < item->n_parts; i++) *n_bytes += item->parts[i].n;
    return item->n_parts && item->parts[0].n >= STATE_FILE_MIN_BYTES &&
           !state_file_measure(item->parts[0].data, item->parts[0].n, "", &n_header, &n_file, NULL) &&
           n_file == *n_bytes && !state_file_peek_apart(item->parts[0].data);
}

static void item_keep(struct state_cache *c, const struct state_disk_item *item) {
    char file[CACHE_FILE_NAME_BYTES];
    struct state_disk_version version = item->version;
    struct cache_part part;
    if (item->rc || !item_is_state(item, &version.n_bytes)) return;
    cache_folder_name(&c->folder, item->name, file);
    cache_part_begin(&c->folder, file, &version, &part);
    for (size_t i = 0; i < item->n_parts; i++) cache_part_put(&c->folder, &part, item->parts[i].data, item->parts[i].n);
    cache_part_end(&c->folder, &part, true, false);
}

static void cache_write(void *arg, struct state_disk_item *items, size_t n) {
    struct state_cache *c = arg;
    cache_folder_tidy(&c->folder); /* an idle server writes a clock now and then */
    c->inner.calls->write(c->inner.arg, items, n);
    for (size_t i = 0; i < n; i++) item_keep(c, &items[i]);
}

/* ---- what the home does alone ---- */

static int cache_peek(void *arg, const char *name, void *dst, size_t n_bytes, size_t *n_read,
                      struct state_disk_version *version, struct rod_error *err) {
    const struct state_cache *c = arg;
    return c->inner.calls->peek(c->inner.arg, name, dst, n_bytes, n_read, version, err);
}

static int cache_stat(void *arg, const char *name, struct state_disk_version *out, struct rod_error *err) {
    const struct state_cache *c = arg;
    return c->inner.calls->stat(c->inner.arg, name, out, err);
}

static int cache_copy(void *arg, const char *name, const char *known, const char *second, struct rod_error *err) {
    const struct state_cache *c = arg;
    return c->inner.calls->copy(c->inner.arg, name, known, second, err);
}

/* What shall go is nobody's to read here, whatever the home says. */
static void cache_forget(struct state_cache *c, const char *name) {
    char file[CACHE_FILE_NAME_BYTES];
    cache_folder_name(&c->folder, name, file);
    cache_folder_drop(&c->folder, file);
}

static int cache_remove(void *arg, const char *name, const char *known, struct rod_error *err) {
    struct state_cache *c = arg;
    cache_forget(c, name);
    return c->inner.calls->remove(c->inner.arg, name, known, err);
}

static void cache_drop(void *arg, const char *name) {
    struct state_cache *c = arg;
    cache_forget(c, name);
    c->inner.calls->drop(c->inner.arg, name);
}

static int cache_list(void *arg, const char *prefix, const char *after,
                      void (*found)(void *arg, const char *name, const struct state_disk_version *version),
                      void *found_arg, bool *more, struct rod_error *err) {
    const struct state_cache *c = arg;
    return c->inner.calls->list(c->inner.arg, prefix, after, found, found_arg, more, err);
}

static void cache_hurry(void *arg, uint64_t until_ns) {
    const struct state_cache *c = arg;
    state_home_hurry(&c->inner, until_ns);
}

static const struct state_home_calls cache_calls = {.open = cache_open,
                                                    .get = cache_get,
                                                    .close = cache_close,
                                                    .peek = cache_peek,
                                                    .stat = cache_stat,
                                                    .write = cache_write,
                                                    .copy = cache_copy,
                                                    .remove = cache_remove,
                                                    .drop = cache_drop,
                                                    .list = cache_list,
                                                    .hurry = cache_hurry};

/* ---- the cache ---- */

int state_cache_open(const struct state_cache_config *config, struct state_cache **out, struct rod_error *err) {
    struct state_cache *c = calloc(1, sizeof *c);
    if (!c) return rod_fail_no_memory(err);
    assert(config->home->fenced && !*config->home->below && !config->home->calls->touch);
    c->inner = *config->home;
    const int rc = cache_folder_init(&c->folder, config, err);
    if (rc)
        free(c);
    else
        *out = c;
    return rc;
}

void state_cache_close(struct state_cache *c) {
    if (!c) return;
    cache_folder_fini(&c->folder);
    free(c);
}

struct state_home state_cache_home(struct state_cache *c) {
    struct state_home home = c->inner;
    home.calls = &cache_calls;
    home.arg = c;
    return home;
}

void state_cache_count(struct state_cache *c, struct state_cache_counts *out) {
    *out = (struct state_cache_counts){.hits = atomic_load_explicit(&c->n_hits, memory_order_relaxed),
                                       .misses = atomic_load_explicit(&c->n_misses, memory_order_relaxed),
                                       .bytes = cache_folder_bytes(&c->folder)};
}
