/* object_home.c - see object_home.h. */
#include "object_home.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PUTS_AT_ONCE = 64 };

static struct state_disk_version version_of(const struct object_version *from) {
    struct state_disk_version to = {.inode = XXH3_64bits(from->etag, strlen(from->etag)),
                                    .mtime_ns = (uint64_t)from->modified_s * 1000000000u,
                                    .n_bytes = from->n_bytes,
                                    .disk_bytes = from->n_bytes};
    _Static_assert(sizeof to.etag >= sizeof from->etag, "an ETag fits");
    memcpy(to.etag, from->etag, sizeof from->etag);
    return to;
}

static int home_open(void *arg, const char *name, const char *known_etag, struct state_home_file *out,
                     struct rod_error *err) {
    struct object_version version;
    struct object_reader *reader;
    const int rc = object_store_get(arg, name, known_etag, &reader, &version, err);
    if (*version.etag) out->version = version_of(&version);
    if (rc) return rc;
    out->unchanged = !reader;
    out->reader = reader;
    return 0;
}

static int home_get(struct state_home_file *file, void *dst, size_t n_bytes, size_t *n_read, struct rod_error *err) {
    return object_reader_get(file->reader, dst, n_bytes, n_read, err);
}

static void home_close(struct state_home_file *file) { object_reader_close(file->reader); }

static int home_peek(void *arg, const char *name, void *dst, size_t n_bytes, size_t *n_read,
                     struct state_disk_version *version, struct rod_error *err) {
    struct object_version found;
    const int rc = object_store_get_start(arg, name, dst, n_bytes, n_read, &found, err);
    if (!rc) *version = version_of(&found);
    return rc;
}

static int home_stat(void *arg, const char *name, struct state_disk_version *out, struct rod_error *err) {
    struct object_version found;
    const int rc = object_store_head(arg, name, &found, err);
    if (!rc) *out = version_of(&found);
    return rc;
}

static struct object_put put_of(const struct state_disk_item *item) {
    const bool same = !item->only_new && item->replaces && *item->replaces;
    return (struct object_put){.key = item->name,
                               .parts = item->parts,
                               .n_parts = item->n_parts,
                               .condition = item->only_new ? OBJECT_IF_NEW
                                            : same         ? OBJECT_IF_SAME
                                                           : OBJECT_ANY,
                               .etag = item->replaces};
}

static void take_result(struct state_disk_item *item, const struct object_put *put) {
    item->rc = put->rc;
    item->in_place = !put->rc;
    item->err = put->err;
    if (!put->rc) item->version = version_of(&put->version);
    if (put->rc == ROD_ECONFLICT && item->only_new)
        item->rc = rod_fail(&item->err, ROD_EEXISTS, "There is an object %.120s.", item->name);
}

static void home_write(void *arg, struct state_disk_item *items, size_t n) {
    struct object_put puts[PUTS_AT_ONCE];
    for (size_t at = 0, part; at < n; at += part) {
        part = n - at < PUTS_AT_ONCE ? n - at : PUTS_AT_ONCE;
        for (size_t i = 0; i < part; i++) puts[i] = put_of(&items[at + i]);
        object_store_put(arg, puts, part);
        for (size_t i = 0; i < part; i++) take_result(&items[at + i], &puts[i]);
    }
}

static int home_copy(void *arg, const char *name, const char *known_etag, const char *second, struct rod_error *err) {
    return object_store_copy(arg, name, known_etag, second, err);
}

static int home_remove(void *arg, const char *name, const char *known_etag, struct rod_error *err) {
    return object_store_delete(arg, name, known_etag, err);
}

static void home_drop(void *arg, const char *name) {
    struct rod_error err;
    object_store_delete(arg, name, "", &err);
}

struct found {
    void (*found)(void *arg, const char *name, const struct state_disk_version *version);
    void *arg;
};
static void home_found(void *arg, const char *key, const struct object_version *version) {
    const struct found *f = arg;
    const struct state_disk_version of_disk = version_of(version);
    f->found(f->arg, key, &of_disk);
}

static int home_list(void *arg, const char *prefix, const char *after,
                     void (*found)(void *arg, const char *name, const struct state_disk_version *version),
                     void *found_arg, bool *more, struct rod_error *err) {
    struct found f = {found, found_arg};
    return object_store_list(arg, prefix, after, home_found, &f, more, err);
}

static void home_hurry(void *arg, uint64_t until_ns) { object_store_hurry(arg, until_ns); }

static const struct state_home_calls store_calls = {.open = home_open,
                                                    .get = home_get,
                                                    .close = home_close,
                                                    .peek = home_peek,
                                                    .stat = home_stat,
                                                    .write = home_write,
                                                    .copy = home_copy,
                                                    .remove = home_remove,
                                                    .drop = home_drop,
                                                    .list = home_list,
                                                    .hurry = home_hurry};

struct state_home object_home(struct object_store *store) {
    return (struct state_home){.calls = &store_calls, .arg = store, .fenced = true};
}
