/* session_store_kept.c - see session_store.h: the files of kept turns. */
#include "session_places.h"
#include "session_store.h"
#include "engine/base/fail.h"
#include "engine/state/state_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEPT_END ".kept"
enum { VERSION_DIGITS = 16 };

static char *kept_name(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], uint64_t version,
                       char text[SESSION_FILE_NAME_BYTES]) {
    char end[1 + VERSION_DIGITS + sizeof KEPT_END];
    snprintf(end, sizeof end, ".%016" PRIx64 KEPT_END, version);
    return session_store_file(store, name, end, text);
}

bool session_store_parse_kept(const struct session_store *store, const char *file, uint8_t name[SESSION_NAME_BYTES],
                              uint64_t *version) {
    char text[SESSION_FILE_NAME_BYTES];
    const char *end = session_store_parse_file(store, file, name);
    if (!end || *end != '.' || strlen(end) != 1 + VERSION_DIGITS + strlen(KEPT_END)) return false;
    *version = strtoull(end + 1, NULL, 16);
    return !strcmp(kept_name(store, name, *version, text), file);
}

int session_store_keep(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                       const struct session_file_version *file_version, struct rod_error *err) {
    char from[SESSION_FILE_NAME_BYTES], to[SESSION_FILE_NAME_BYTES];
    struct state_disk_version version = {0};
    memcpy(version.etag, file_version->etag, sizeof version.etag);
    kept_name(store, name, file_version->version, to);
    if (file_version->base_inode)
        session_store_file(store, name, ".base", from);
    else
        session_store_name(store, name, from);
    return state_home_copy(&store->home, from, &version, to, err);
}

int session_store_glance_kept(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                              uint64_t version, struct session_file_version *file_version) {
    char text[SESSION_FILE_NAME_BYTES];
    struct state_disk_version found;
    const int rc = state_home_stat(&store->home, kept_name(store, name, version, text), &found, NULL);
    if (!rc)
        *file_version = (struct session_file_version){
            .inode = found.inode, .n_bytes = found.n_bytes, .disk_bytes = found.disk_bytes + SESSION_ENTRY_BYTES};
    return rc;
}

void session_store_drop_kept(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                             uint64_t version) {
    char text[SESSION_FILE_NAME_BYTES];
    state_home_drop(&store->home, kept_name(store, name, version, text));
}

int session_store_read_kept(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], uint64_t version,
                            struct session_read *out, struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    const int rc = session_store_read_any(store, kept_name(store, name, version, text), out, err);
    if (rc || out->metadata.version == version) return rc;
    session_read_fini(out);
    return rod_fail(err, ROD_ESTATE, "%.150s: the header has another version", text);
}

struct kept_found {
    const struct session_store *store;
    void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES], uint64_t version);
    void *arg;
};

static void kept_found_file(void *arg, const char *file, const struct state_disk_version *of_file) {
    const struct kept_found *f = arg;
    uint8_t name[SESSION_NAME_BYTES];
    uint64_t version;
    (void)of_file;
    if (session_store_parse_kept(f->store, file, name, &version)) f->found(f->arg, name, version);
}

void session_store_list_kept(const struct session_store *store,
                             void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES], uint64_t version),
                             void *arg) {
    struct kept_found files = {store, found, arg};
    bool more;
    state_home_list(&store->home, "", "", kept_found_file, &files, &more, NULL);
}

bool session_store_kept_left(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                             uint64_t version) {
    struct session_metadata metadata;
    const int rc = session_store_peek_metadata(store, name, &metadata, NULL);
    if (rc) return rc == ROD_ENOTFOUND;
    return session_places_find(&metadata, version) == metadata.n_kept;
}
