/* session_locate.c - see session_locate.h. */
#include "session_locate.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- the key ---- */

struct locate_scan {
    const struct session_store *store;
    int rc; /* of the first file that cannot be read now */
    struct rod_error err;
    char file[SESSION_FILE_NAME_BYTES]; /* that was named with a key; "" = none */
};

static void locate_check_file(void *arg, const uint8_t name[SESSION_NAME_BYTES]) {
    struct locate_scan *scan = arg;
    struct session_metadata metadata;
    struct rod_error err;
    uint8_t earlier[SESSION_NAME_BYTES];
    if (*scan->file) return;
    if (scan->store->home.fenced) {
        session_store_name(scan->store, name, scan->file);
        return;
    }
    const int rc = session_store_peek_metadata(scan->store, name, &metadata, &err);
    if (rc == ROD_EIO && !scan->rc) scan->rc = rc, scan->err = err;
    if (rc) return; /* a damaged file names no session */
    session_names_earlier(metadata.tenant, metadata.id, earlier);
    if (memcmp(name, earlier, sizeof earlier) != 0) session_store_name(scan->store, name, scan->file);
}

/* The folder has no key. A new one is made only where no file was named with a key: else that file's session would
 * begin again, here or on a server that has the old key. Another server may have made key and file, the key first,
 * since the key was looked for. */
static int locate_may_make_key(const struct state_home *home, struct session_names *names, struct rod_error *err) {
    const struct session_store store = {.home = *home, .names = names};
    struct locate_scan scan = {.store = &store};
    char where[256];
    int rc = session_store_list(&store, locate_check_file, &scan, err);
    if (rc) return rc;
    if (!*scan.file) return scan.rc ? rod_fail(err, scan.rc, "%.400s", scan.err.message) : 0;
    rc = session_names_read_key_locked(names, home, err);
    if (rc != ROD_ENOTFOUND) return rc;
    state_home_label(home, where, sizeof where);
    return rod_fail(err, ROD_ESTATE,
                    "%.200s: " SESSION_NAMES_FILE " is missing, and %s were named with it (%.150s): it "
                    "belongs to every backup; restore it, or, if it is lost, use another %s",
                    where, home->fenced ? "objects" : "files", scan.file, home->fenced ? "prefix" : "folder");
}

static int locate_key_locked(struct session_names *names, const struct state_home *home, struct rod_error *err) {
    char where[256];
    assert(!names->known);
    names->halves = home->fenced;
    int rc = session_names_read_key_locked(names, home, err);
    if (rc == ROD_EIO && home->fenced) return rc;
    if (rc == ROD_EIO) {
        state_home_label(home, where, sizeof where);
        return rod_fail(err, ROD_ESTATE, "%.210s: " SESSION_NAMES_FILE " cannot be read", where);
    }
    if (rc == ROD_ENOTFOUND && !(rc = locate_may_make_key(home, names, err)))
        rc = session_names_make_key_locked(names, home, err);
    if (!rc) names->known = true;
    return rc;
}

int session_locate_key(struct session_names *names, const struct state_home *home, struct rod_error *err) {
    bool restored;
    pthread_mutex_lock(&names->lock);
    const int rc =
        names->known ? session_names_keep_locked(names, home, &restored, err) : locate_key_locked(names, home, err);
    assert(rc || names->known);
    pthread_mutex_unlock(&names->lock);
    return rc;
}

/* ---- names ---- */

bool session_locate_superseded(const struct session_store *store, const char *tenant, const char *id,
                               const uint8_t name[SESSION_NAME_BYTES]) {
    struct session_file_version version;
    uint8_t own[SESSION_NAME_BYTES];
    session_names_earlier(tenant, id, own);
    if (memcmp(own, name, sizeof own)) return false;
    session_names_name(store->names, tenant, id, own);
    return !session_store_glance(store, own, &version, NULL);
}

/* There is a file of the earlier name, and it is not plainly another session's: a damaged file names no session. */
static int locate_earlier(const struct session_store *store, const char *tenant, const char *id,
                          const uint8_t name[SESSION_NAME_BYTES], bool *there, struct rod_error *err) {
    struct session_file_version version;
    struct session_metadata metadata;
    int rc = session_store_glance(store, name, &version, err);
    *there = !rc || rc == ROD_ESTATE;
    if (rc) return rc == ROD_EIO ? rc : 0;
    rc = session_store_read_metadata(store, name, &metadata, err);
    if (rc == ROD_ENOTFOUND || (!rc && (strcmp(metadata.tenant, tenant) || strcmp(metadata.id, id)))) *there = false;
    return rc == ROD_EIO ? rc : 0;
}

int session_locate_name(const struct session_store *store, const char *tenant, const char *id,
                        uint8_t name[SESSION_NAME_BYTES], struct rod_error *err) {
    struct rod_error why;
    struct session_file_version version;
    uint8_t earlier[SESSION_NAME_BYTES];
    assert(session_id_ok(id));
    if (store->home.fenced) { /* where all names are the key's, which is known since the start */
        session_names_name(store->names, tenant, id, name);
        return 0;
    }
    const int keyless = session_locate_key(store->names, &store->home, &why);
    if (!keyless) {
        session_names_name(store->names, tenant, id, name);
        const int rc = session_store_glance(store, name, &version, err);
        if (rc != ROD_ENOTFOUND) return rc == ROD_EIO ? rc : 0; /* also what is no regular file */
    }
    bool there;
    session_names_earlier(tenant, id, earlier);
    const int rc = locate_earlier(store, tenant, id, earlier, &there, err);
    if (rc) return rc;
    if (there) memcpy(name, earlier, SESSION_NAME_BYTES);
    if (there || !keyless) return 0;
    return rod_fail(err, ROD_EIO, "%.400s", why.message);
}
