/* cache_setup.h - for tests of a cache of states: a store in memory, a folder as its cache, and the folder's files. */
#ifndef CACHE_SETUP_H
#define CACHE_SETUP_H

#include "memory_store.h"
#include "test_folder.h"

#include "engine/state/state_cache.h"
#include "engine/state/state_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { FILE_MAX = 6000 };

struct bytes {
    size_t n;
    unsigned char data[FILE_MAX];
};

/* One state file of each number. */
static inline void make_state(struct bytes *b, uint64_t version, size_t n_payload) {
    static const char layout[] = "test";
    unsigned char payload[FILE_MAX / 2];
    for (size_t i = 0; i < n_payload; i++) payload[i] = (unsigned char)(version * 31 + i * 7);
    const struct state_file state = {
        .n_tok = 1, .version = version, .layout = {layout, strlen(layout)}, .payload = {payload, n_payload}};
    const size_t n_header = state_file_header_bytes(&state);
    state_file_write_header(&state, b->data);
    memcpy(b->data + n_header, payload, n_payload);
    b->n = n_header + n_payload;
}

/* ---- a store, and caches of it ---- */

struct setup {
    struct memory_store m;
    struct memory_client client;
    struct state_cache *cache;
    struct state_home home;
    char *dir;
    unsigned n_lines;
    char line[640];
};

static inline void on_line(void *arg, int level, const char *line) {
    struct setup *s = arg;
    (void)level;
    s->n_lines++;
    snprintf(s->line, sizeof s->line, "%s", line);
}

static inline void open_cache(struct setup *s, const char *dir, const char *of, uint64_t max_bytes) {
    struct rod_error err;
    const struct state_cache_config config = {
        .home = &s->client.as_store.home, .dir = dir, .of = of, .max_bytes = max_bytes, .log = on_line, .log_arg = s};
    if (state_cache_open(&config, &s->cache, &err)) fail_msg("%s", err.message);
    s->home = state_cache_home(s->cache);
}

static inline int begin(void **state) {
    struct setup *s = calloc(1, sizeof *s);
    s->dir = make_dir();
    memory_open_store(&s->m);
    memory_connect(&s->client, &s->m, 1);
    open_cache(s, s->dir, "s3://b", 0);
    *state = s;
    return 0;
}

static inline int finish(void **state) {
    struct setup *s = *state;
    state_cache_close(s->cache);
    memory_close_store(&s->m);
    remove_dir(s->dir);
    free(s);
    return 0;
}

static inline struct state_cache_counts counts(const struct setup *s) {
    struct state_cache_counts c;
    state_cache_count(s->cache, &c);
    return c;
}

static inline void assert_counts(const struct setup *s, uint64_t hits, uint64_t misses, const char *what) {
    const struct state_cache_counts c = counts(s);
    if (c.hits != hits || c.misses != misses)
        fail_msg("%s: %llu hits and %llu misses, want %llu and %llu", what, (unsigned long long)c.hits,
                 (unsigned long long)c.misses, (unsigned long long)hits, (unsigned long long)misses);
}

static inline int put(const struct state_home *home, const char *name, const struct bytes *b, bool only_new,
                      const char *replaces, struct state_disk_version *version) {
    const size_t first = b->n < STATE_FILE_MIN_BYTES ? b->n : STATE_FILE_MIN_BYTES;
    const struct state_bytes parts[] = {{b->data, first}, {b->data + first, b->n - first}};
    struct state_disk_item item = {
        .name = name, .parts = parts, .n_parts = 2, .only_new = only_new, .replaces = replaces};
    state_home_write(home, &item, 1);
    if (version) *version = item.version;
    return item.rc;
}

/* In pieces, of any size. */
static inline int get(const struct state_home *home, const char *name, const struct state_disk_version *known,
                      size_t piece, struct bytes *b, struct state_disk_version *version, bool *unchanged) {
    struct state_home_file f;
    struct rod_error err;
    size_t n = 1;
    int rc = state_home_open(home, name, known, &f, &err);
    b->n = 0;
    *unchanged = !rc && f.unchanged;
    if (rc || f.unchanged) return rc;
    *version = f.version;
    while (!rc && n && b->n < f.version.n_bytes) {
        rc = state_home_get(&f, b->data + b->n, piece < FILE_MAX - b->n ? piece : FILE_MAX - b->n, &n, &err);
        b->n += n;
    }
    state_home_close(&f);
    return rc;
}

static inline void assert_reads(const struct setup *s, const char *name, const struct bytes *want, const char *what) {
    struct bytes b;
    struct state_disk_version version;
    bool unchanged;
    const int rc = get(&s->home, name, NULL, 100, &b, &version, &unchanged);
    if (rc || unchanged || b.n != want->n || memcmp(b.data, want->data, b.n))
        fail_msg("%s: %s, %zu bytes, want %zu", what, rod_code_name(rc), b.n, want->n);
}

/* ---- the files ---- */

static inline unsigned list_copies(const char *dir, char paths[][320], unsigned most) {
    unsigned n = 0;
    DIR *list = opendir(dir);
    for (struct dirent *d; list && (d = readdir(list));)
        if (strstr(d->d_name, ".cached") && n < most) snprintf(paths[n++], 320, "%s/%s", dir, d->d_name);
    if (list) closedir(list);
    return n;
}

static inline void only_copy(const struct setup *s, char path[320]) {
    char paths[2][320];
    const unsigned n = list_copies(s->dir, paths, 2);
    if (n != 1) fail_msg("%u copies, want 1", n);
    memcpy(path, paths[0], sizeof paths[0]);
}

static inline void change_byte(const char *path, size_t at) {
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, (off_t)at), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    close(fd);
}

#define CACHED(test) cmocka_unit_test_setup_teardown(test, begin, finish)

#endif
