/* memory_store.h - for tests: an object store in memory, as a fenced home that several servers share, with faults.
 *
 * Each server has a client of its own, which fails, delays or holds calls back. What a write leaves is atomic; an etag
 * is a hash of the bytes, as a store's may be. Faults are drawn from the client's seed.
 */
#ifndef MEMORY_STORE_H
#define MEMORY_STORE_H

#include "engine/base/fail.h"
#include "engine/base/philox.h"
#include "engine/state/state_home.h"
#include "engine/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

struct memory_object {
    char name[STATE_HOME_MAX_NAME + 1];
    unsigned char *bytes;
    struct state_disk_version version;
};

struct memory_store {
    pthread_mutex_t lock;
    struct memory_object *objects; /* [n] in order of names */
    size_t n, cap;
    int64_t ahead_s; /* of the tests' clock */
    uint64_t n_written;
};

enum memory_call {
    MEMORY_OPEN,
    MEMORY_PEEK,
    MEMORY_STAT,
    MEMORY_WRITE,
    MEMORY_COPY,
    MEMORY_REMOVE,
    MEMORY_LIST,
    MEMORY_N
};

struct memory_client {
    struct memory_store *store;
    struct rod_store as_store;
    uint64_t seed;
    double p_fails, p_unsure; /* of a call: not done; of a write or removal: done or not, and nobody knows */
    atomic_bool dead;         /* every call fails */
    atomic_bool held;         /* writes of states wait before they are done, */
    atomic_uint n_held;       /* so many do now */
    atomic_uint delay_us;     /* of every call */
    atomic_int fail_at;       /* the call of this number fails, counted down; 0: none */
    int unsure_at;            /* 1: it is a write that is done and unsure; 2: not done and unsure; 0: fails */
    atomic_uint n[MEMORY_N];
    atomic_uint_fast64_t n_drawn;
    atomic_bool quiet; /* no faults */
};

/* ---- the objects ---- */

static inline size_t memory_place(const struct memory_store *m, const char *name) {
    size_t begin = 0, end = m->n;
    while (begin < end) {
        const size_t at = begin + (end - begin) / 2;
        if (strcmp(m->objects[at].name, name) < 0)
            begin = at + 1;
        else
            end = at;
    }
    return begin;
}

static inline struct memory_object *memory_find(struct memory_store *m, const char *name) {
    const size_t at = memory_place(m, name);
    return at < m->n && !strcmp(m->objects[at].name, name) ? &m->objects[at] : NULL;
}

static inline void memory_put(struct memory_store *m, const char *name, const struct state_bytes *parts,
                              size_t n_parts) {
    struct memory_object *o = memory_find(m, name);
    if (!o) {
        if (m->n == m->cap) {
            m->cap = m->cap ? 2 * m->cap : 64;
            m->objects = realloc(m->objects, m->cap * sizeof *m->objects);
        }
        const size_t at = memory_place(m, name);
        memmove(&m->objects[at + 1], &m->objects[at], (m->n - at) * sizeof *m->objects);
        m->n++;
        o = &m->objects[at];
        *o = (struct memory_object){0};
        snprintf(o->name, sizeof o->name, "%s", name);
    }
    size_t n = 0;
    for (size_t i = 0; i < n_parts; i++) n += parts[i].n;
    unsigned char *bytes = malloc(n + 1);
    n = 0;
    for (size_t i = 0; i < n_parts; n += parts[i++].n)
        if (parts[i].n) memcpy(bytes + n, parts[i].data, parts[i].n);
    free(o->bytes);
    o->bytes = bytes;
    const uint64_t hash = XXH3_64bits(bytes, n);
    o->version = (struct state_disk_version){
        .inode = hash, .mtime_ns = (uint64_t)(time(NULL) + m->ahead_s) * 1000000000u, .n_bytes = n, .disk_bytes = n};
    snprintf(o->version.etag, sizeof o->version.etag, "\"%016llx\"", (unsigned long long)hash);
    m->n_written++;
}

static inline void memory_take(struct memory_store *m, struct memory_object *o) {
    free(o->bytes);
    memmove(o, o + 1, (size_t)(m->objects + m->n - (o + 1)) * sizeof *o);
    m->n--;
}

/* ---- faults ---- */

static inline double memory_draw(struct memory_client *c) {
    return philox_uniform(c->seed, atomic_fetch_add(&c->n_drawn, 1), 7);
}

/* Before a call: nonzero, it fails and is not done. unsure, unless NULL: of a write; 1: done and unsure, 2: unsure. */
static inline int memory_fault(struct memory_client *c, enum memory_call call, int *unsure, struct rod_error *err) {
    if (unsure) *unsure = 0;
    atomic_fetch_add(&c->n[call], 1);
    const unsigned delay = atomic_load(&c->delay_us);
    if (delay) usleep(delay);
    bool fails = atomic_load(&c->dead);
    if (!atomic_load(&c->quiet)) {
        if (c->p_fails > 0 && memory_draw(c) < c->p_fails) fails = true;
        if (unsure && !fails && c->p_unsure > 0 && memory_draw(c) < c->p_unsure) *unsure = 1 + (memory_draw(c) < 0.5);
        if (atomic_load(&c->fail_at) > 0 && atomic_fetch_sub(&c->fail_at, 1) == 1) {
            if (c->unsure_at && unsure)
                *unsure = c->unsure_at;
            else
                fails = true;
        }
    }
    if (fails) return rod_fail(err, ROD_EIO, "the store in memory does not answer");
    return 0;
}

static inline int memory_unsure(int rc, int unsure, struct rod_error *err) {
    return unsure ? rod_fail(err, ROD_EUNSURE, "the store in memory did not say how it went") : rc;
}

/* ---- the calls ---- */

struct memory_reader {
    size_t n;
    unsigned char bytes[];
};

static inline int memory_open(void *arg, const char *name, const char *known, struct state_home_file *out,
                              struct rod_error *err) {
    struct memory_client *c = arg;
    int rc = memory_fault(c, MEMORY_OPEN, NULL, err);
    if (rc) return rc;
    pthread_mutex_lock(&c->store->lock);
    const struct memory_object *o = memory_find(c->store, name);
    struct memory_reader *r = NULL;
    if (!o) {
        rc = rod_fail(err, ROD_ENOTFOUND, "%s is not there", name);
    } else {
        out->version = o->version;
        out->unchanged = *known && !strcmp(known, o->version.etag);
        r = out->unchanged ? NULL : malloc(sizeof *r + o->version.n_bytes);
        if (r) memcpy(r->bytes, o->bytes, r->n = o->version.n_bytes);
    }
    pthread_mutex_unlock(&c->store->lock);
    out->reader = r;
    return rc;
}

static inline int memory_get(struct state_home_file *f, void *dst, size_t n, size_t *n_read, struct rod_error *err) {
    const struct memory_reader *r = f->reader;
    (void)err;
    *n_read = n < r->n - f->at ? n : r->n - f->at;
    memcpy(dst, r->bytes + f->at, *n_read);
    return 0;
}

static inline void memory_close(struct state_home_file *f) { free(f->reader); }

static inline int memory_peek(void *arg, const char *name, void *dst, size_t n, size_t *n_read,
                              struct state_disk_version *version, struct rod_error *err) {
    struct memory_client *c = arg;
    /* A server looks at the key of names on a thread of its own: the faults that a test counts are not for it. */
    int rc = !strstr(name, "names.key") ? memory_fault(c, MEMORY_PEEK, NULL, err)
             : !atomic_load(&c->dead)   ? 0
                                        : rod_fail(err, ROD_EIO, "the store in memory does not answer");
    if (rc) return rc;
    pthread_mutex_lock(&c->store->lock);
    const struct memory_object *o = memory_find(c->store, name);
    if (o) {
        *version = o->version;
        memcpy(dst, o->bytes, *n_read = n < o->version.n_bytes ? n : o->version.n_bytes);
    }
    pthread_mutex_unlock(&c->store->lock);
    return o ? 0 : rod_fail(err, ROD_ENOTFOUND, "%s is not there", name);
}

static inline int memory_stat(void *arg, const char *name, struct state_disk_version *out, struct rod_error *err) {
    struct memory_client *c = arg;
    int rc = memory_fault(c, MEMORY_STAT, NULL, err);
    if (rc) return rc;
    pthread_mutex_lock(&c->store->lock);
    const struct memory_object *o = memory_find(c->store, name);
    if (o) *out = o->version;
    pthread_mutex_unlock(&c->store->lock);
    return o ? 0 : rod_fail(err, ROD_ENOTFOUND, "%s is not there", name);
}

static inline void memory_write_one(struct memory_client *c, struct state_disk_item *item) {
    int unsure;
    item->rc = memory_fault(c, MEMORY_WRITE, &unsure, &item->err);
    if (item->rc) return;
    if (strstr(item->name, ".state")) {
        atomic_fetch_add(&c->n_held, 1);
        while (atomic_load(&c->held)) usleep(500);
        atomic_fetch_sub(&c->n_held, 1);
        if (atomic_load(&c->dead)) { /* by now */
            item->rc = rod_fail(&item->err, ROD_EIO, "the store in memory does not answer");
            return;
        }
    }
    pthread_mutex_lock(&c->store->lock);
    const struct memory_object *o = memory_find(c->store, item->name);
    const bool condition = item->replaces && *item->replaces;
    if (item->only_new && o)
        item->rc = rod_fail(&item->err, ROD_EEXISTS, "%s is there", item->name);
    else if (condition && (!o || strcmp(o->version.etag, item->replaces) != 0))
        item->rc = rod_fail(&item->err, ROD_ECONFLICT, "%s is another version", item->name);
    else if (unsure != 2)
        memory_put(c->store, item->name, item->parts, item->n_parts);
    if (!item->rc && unsure != 2) item->version = memory_find(c->store, item->name)->version;
    pthread_mutex_unlock(&c->store->lock);
    item->rc = memory_unsure(item->rc, unsure, &item->err);
    item->in_place = !item->rc;
}

static inline void memory_write(void *arg, struct state_disk_item *items, size_t n) {
    for (size_t i = 0; i < n; i++) memory_write_one(arg, &items[i]);
}

static inline int memory_copy(void *arg, const char *name, const char *known, const char *second,
                              struct rod_error *err) {
    struct memory_client *c = arg;
    int rc = memory_fault(c, MEMORY_COPY, NULL, err);
    if (rc) return rc;
    pthread_mutex_lock(&c->store->lock);
    const struct memory_object *o = memory_find(c->store, name);
    if (!o)
        rc = rod_fail(err, ROD_ENOTFOUND, "%s is not there", name);
    else if (*known && strcmp(known, o->version.etag) != 0)
        rc = rod_fail(err, ROD_ECONFLICT, "%s is another version", name);
    if (!rc) {
        unsigned char *bytes = malloc(o->version.n_bytes + 1);
        const struct state_bytes part = {memcpy(bytes, o->bytes, o->version.n_bytes), o->version.n_bytes};
        memory_put(c->store, second, &part, 1);
        free(bytes);
    }
    pthread_mutex_unlock(&c->store->lock);
    return rc;
}

static inline int memory_remove(void *arg, const char *name, const char *known, struct rod_error *err) {
    struct memory_client *c = arg;
    int unsure, rc = memory_fault(c, MEMORY_REMOVE, &unsure, err);
    if (rc) return rc;
    pthread_mutex_lock(&c->store->lock);
    struct memory_object *o = memory_find(c->store, name);
    if (!o)
        rc = rod_fail(err, ROD_ENOTFOUND, "%s is not there", name);
    else if (*known && strcmp(known, o->version.etag) != 0)
        rc = rod_fail(err, ROD_ECONFLICT, "%s is another version", name);
    else if (unsure != 2)
        memory_take(c->store, o);
    pthread_mutex_unlock(&c->store->lock);
    return memory_unsure(rc, unsure, err);
}

static inline void memory_drop(void *arg, const char *name) { memory_remove(arg, name, "", NULL); }

static inline int memory_list(void *arg, const char *prefix, const char *after,
                              void (*found)(void *arg, const char *name, const struct state_disk_version *version),
                              void *found_arg, bool *more, struct rod_error *err) {
    enum { PAGE = 7 };
    struct memory_client *c = arg;
    struct memory_object page[PAGE];
    size_t n = 0;
    *more = false;
    int rc = memory_fault(c, MEMORY_LIST, NULL, err);
    if (rc) return rc;
    pthread_mutex_lock(&c->store->lock);
    for (size_t i = memory_place(c->store, prefix); i < c->store->n; i++) {
        const struct memory_object *o = &c->store->objects[i];
        if (strncmp(o->name, prefix, strlen(prefix)) != 0) break;
        if (strcmp(o->name, after) <= 0) continue;
        if ((*more = n == PAGE)) break;
        page[n++] = *o;
    }
    pthread_mutex_unlock(&c->store->lock);
    for (size_t i = 0; i < n; i++) found(found_arg, page[i].name, &page[i].version);
    return 0;
}

static const struct state_home_calls memory_calls = {.open = memory_open,
                                                     .get = memory_get,
                                                     .close = memory_close,
                                                     .peek = memory_peek,
                                                     .stat = memory_stat,
                                                     .write = memory_write,
                                                     .copy = memory_copy,
                                                     .remove = memory_remove,
                                                     .drop = memory_drop,
                                                     .list = memory_list};

/* ---- for tests ---- */

static inline void memory_open_store(struct memory_store *m) {
    *m = (struct memory_store){0};
    pthread_mutex_init(&m->lock, NULL);
}

static inline void memory_close_store(struct memory_store *m) {
    for (size_t i = 0; i < m->n; i++) free(m->objects[i].bytes);
    free(m->objects);
    pthread_mutex_destroy(&m->lock);
}

static inline void memory_connect(struct memory_client *c, struct memory_store *m, uint64_t seed) {
    *c = (struct memory_client){.store = m, .seed = seed};
    c->as_store.home = (struct state_home){.calls = &memory_calls, .arg = c, .fenced = true};
}

/* Objects whose names end so. */
static inline size_t memory_count(struct memory_store *m, const char *end) {
    size_t n = 0;
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n; i++) {
        const size_t len = strlen(m->objects[i].name), n_end = strlen(end);
        n += len >= n_end && !strcmp(m->objects[i].name + len - n_end, end);
    }
    pthread_mutex_unlock(&m->lock);
    return n;
}

#endif
