/* session_store_kept.c - see session_store.h: the files of kept turns. */
#include "session_places.h"
#include "session_store.h"
#include "engine/base/fail.h"
#include "engine/state/state_read.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEPT_END ".kept"
enum { NAME_DIGITS = 2 * SESSION_NAME_BYTES, VERSION_DIGITS = 16 };

static char *kept_name(const uint8_t name[SESSION_NAME_BYTES], uint64_t version, char text[SESSION_FILE_NAME_BYTES]) {
    session_store_name(name, text);
    snprintf(text + NAME_DIGITS, SESSION_FILE_NAME_BYTES - NAME_DIGITS, ".%016" PRIx64 KEPT_END, version);
    return text;
}

bool session_store_parse_kept(const char *file, uint8_t name[SESSION_NAME_BYTES], uint64_t *version) {
    char text[SESSION_FILE_NAME_BYTES];
    if (strlen(file) != NAME_DIGITS + 1 + VERSION_DIGITS + strlen(KEPT_END)) return false;
    snprintf(text, sizeof text, "%.*s.state", NAME_DIGITS, file);
    if (!session_store_parse_name(text, name)) return false;
    *version = strtoull(file + NAME_DIGITS + 1, NULL, 16);
    return !strcmp(kept_name(name, *version, text), file);
}

int session_store_keep(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                       const struct session_file_version *file_version, struct rod_error *err) {
    char from[SESSION_FILE_NAME_BYTES], to[SESSION_FILE_NAME_BYTES];
    kept_name(name, file_version->version, to);
    session_store_name(name, from);
    if (file_version->base_inode) memcpy(from + NAME_DIGITS, ".base", sizeof ".base");
    return state_disk_link(store->dir, from, to, err);
}

int session_store_glance_kept(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                              uint64_t version, struct session_file_version *file_version) {
    char text[SESSION_FILE_NAME_BYTES];
    struct state_disk_version found;
    const int rc = state_disk_stat(store->dir, kept_name(name, version, text), &found, NULL);
    if (!rc)
        *file_version = (struct session_file_version){
            .inode = found.inode, .n_bytes = found.n_bytes, .disk_bytes = found.disk_bytes + SESSION_ENTRY_BYTES};
    return rc;
}

void session_store_drop_kept(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                             uint64_t version) {
    char text[SESSION_FILE_NAME_BYTES];
    state_disk_drop(store->dir, kept_name(name, version, text));
}

int session_store_read_kept(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES], uint64_t version,
                            struct session_read *out, struct rod_error *err) {
    char text[SESSION_FILE_NAME_BYTES];
    const int rc = session_store_read_any(store, kept_name(name, version, text), out, err);
    if (rc || out->metadata.version == version) return rc;
    session_read_fini(out);
    return rod_fail(err, ROD_ESTATE, "%.150s: the header has another version", text);
}

void session_store_list_kept(const struct session_store *store,
                             void (*found)(void *arg, const uint8_t name[SESSION_NAME_BYTES], uint64_t version),
                             void *arg) {
    DIR *list = opendir(store->dir);
    uint8_t name[SESSION_NAME_BYTES];
    uint64_t version;
    if (!list) return;
    for (struct dirent *entry; (entry = readdir(list));)
        if (session_store_parse_kept(entry->d_name, name, &version)) found(arg, name, version);
    closedir(list);
}

bool session_store_kept_left(const struct session_store *store, const uint8_t name[SESSION_NAME_BYTES],
                             uint64_t version) {
    struct session_metadata metadata;
    const int rc = session_store_peek_metadata(store, name, &metadata, NULL);
    if (rc) return rc == ROD_ENOTFOUND;
    return session_places_find(&metadata, version) == metadata.n_kept;
}
