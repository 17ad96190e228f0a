/* session_names.c - see session_names.h. */
#include "session_names.h"
#include "session_store.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

#define KEY_FILE "names.key"
/* "rodimus names 1 KEY CHECK\n": a line that can be looked at, and whose damage is seen. */
#define KEY_BEGIN "rodimus names 1 "
enum { KEY_TEXT_BYTES = sizeof KEY_BEGIN - 1 + 2 * SIPHASH_KEY_BYTES + 1 + 16 + 1 };

/* ---- the key ---- */

static void write_key(const uint8_t key[SIPHASH_KEY_BYTES], char text[KEY_TEXT_BYTES + 1]) {
    int n = snprintf(text, KEY_TEXT_BYTES + 1, "%s", KEY_BEGIN);
    for (int i = 0; i < SIPHASH_KEY_BYTES; i++, n += 2) snprintf(text + n, 3, "%02x", key[i]);
    snprintf(text + n, 19, " %016llx\n", (unsigned long long)XXH3_64bits(key, SIPHASH_KEY_BYTES));
}

static bool parse_key(const char *text, size_t n, uint8_t key[SIPHASH_KEY_BYTES]) {
    char again[KEY_TEXT_BYTES + 1];
    if (n != KEY_TEXT_BYTES) return false;
    for (int i = 0; i < SIPHASH_KEY_BYTES; i++) {
        unsigned byte = 0;
        for (int k = 0; k < 2; k++) {
            const char c = text[sizeof KEY_BEGIN - 1 + (size_t)(2 * i + k)];
            byte = byte << 4 | (unsigned)(c >= 'a' ? c - 'a' + 10 : c - '0');
        }
        key[i] = (uint8_t)byte;
    }
    write_key(key, again);
    return !memcmp(again, text, KEY_TEXT_BYTES); /* whatever is no digit is not written like this */
}

static int read_key(const char *dir, struct session_names *names, struct rod_error *err) {
    char text[KEY_TEXT_BYTES + 1];
    struct state_disk_file f;
    size_t n = 0;
    int rc = state_disk_open(dir, KEY_FILE, &f, err);
    if (rc) return rc;
    rc = state_disk_get(&f, 0, text, sizeof text, &n, err);
    state_disk_close(&f);
    uint8_t key[SIPHASH_KEY_BYTES];
    if (rc) return rc;
    if (!parse_key(text, n, key))
        return rod_fail(err, ROD_ESTATE,
                        "state_dir %.200s: " KEY_FILE " is damaged: bring it back from a backup of the folder, or, if "
                        "there is none, use another folder: without it the files that were named with it are not found",
                        dir);
    if (names->known && memcmp(names->key, key, sizeof key) != 0)
        return rod_fail(err, ROD_EIO,
                        "state_dir %.200s: " KEY_FILE " is another one than at the start: bring the folder's own back",
                        dir);
    memcpy(names->key, key, sizeof key);
    names->inode = f.stamp.inode;
    names->mtime_ns = f.stamp.mtime_ns;
    return 0;
}

struct unnamed {
    const struct session_store *store;
    int rc; /* of the first that cannot be read now */
    struct rod_error err;
    char file[SESSION_FILE_NAME_BYTES]; /* "" = none */
};

static void look_for_unnamed(void *arg, const uint8_t name[SESSION_NAME_BYTES]) {
    struct unnamed *u = arg;
    struct session_metadata metadata;
    struct rod_error err;
    uint8_t earlier[SESSION_NAME_BYTES];
    if (*u->file) return;
    const int rc = session_store_peek_metadata(u->store, name, &metadata, &err);
    if (rc == ROD_EIO && !u->rc) u->rc = rc, u->err = err;
    if (rc) return; /* of a damaged one nobody knows */
    session_names_earlier(metadata.tenant, metadata.id, earlier);
    if (memcmp(name, earlier, sizeof earlier) != 0) session_store_name(name, u->file);
}

/* The folder has no key. A new one is made only where no file was named with one: else that file's session would begin
 * again, here or on a server that has the old one. Another server may have made both, the key first, since we looked.
 */
static int may_make(const char *dir, struct session_names *names, struct rod_error *err) {
    struct session_store store = {.names = names};
    struct unnamed u = {.store = &store};
    snprintf(store.dir, sizeof store.dir, "%s", dir);
    int rc = session_store_list(&store, look_for_unnamed, &u, err);
    if (rc) return rc;
    if (!*u.file) return u.rc ? rod_fail(err, u.rc, "%.400s", u.err.message) : 0;
    rc = read_key(dir, names, err);
    if (rc != ROD_ENOTFOUND) return rc;
    return rod_fail(err, ROD_ESTATE,
                    "state_dir %.200s: " KEY_FILE " is missing, and files were named with it (%s): it belongs to every "
                    "backup of the folder; bring it back, or, if it is lost, use another folder",
                    dir, u.file);
}

/* Whoever is first has made it; its bytes are on the disk before it has the name, and its own writes to the folder sync
 * the name. */
static int make_key(const char *dir, struct session_names *names, struct rod_error *err) {
    char text[KEY_TEXT_BYTES + 1];
    uint8_t key[SIPHASH_KEY_BYTES];
    memcpy(key, names->key, sizeof key);
    if (!names->known && getrandom(key, sizeof key, 0) != (ssize_t)sizeof key)
        return rod_fail(err, ROD_EINTERNAL, "There are no random numbers for the names of files in state_dir.");
    write_key(key, text);
    const struct state_bytes bytes = {text, KEY_TEXT_BYTES};
    struct state_disk_item item = {.name = KEY_FILE, .parts = &bytes, .n_parts = 1, .only_new = true};
    state_disk_write_all(dir, &item, 1);
    if (item.rc && item.rc != ROD_EEXISTS) return rod_fail(err, item.rc, "%.400s", item.err.message);
    return read_key(dir, names, err);
}

void session_names_init(struct session_names *names) {
    *names = (struct session_names){0};
    pthread_mutex_init(&names->lock, NULL);
}

void session_names_fini(struct session_names *names) { pthread_mutex_destroy(&names->lock); }

static int keep(struct session_names *names, const char *dir, bool *restored, struct rod_error *err) {
    struct state_disk_stamp stamp;
    struct rod_error why;
    int rc = state_disk_stat(dir, KEY_FILE, &stamp, &why);
    if (!rc && stamp.inode == names->inode && stamp.mtime_ns == names->mtime_ns) return 0;
    const bool gone = rc == ROD_ENOTFOUND;
    rc = gone ? make_key(dir, names, &why) : read_key(dir, names, &why);
    *restored = gone && !rc;
    return rc ? rod_fail(err, ROD_EIO, "%.400s", why.message) : 0;
}

int session_names_keep(struct session_names *names, const char *dir, bool *restored, struct rod_error *err) {
    *restored = false;
    pthread_mutex_lock(&names->lock);
    const int rc = names->known ? keep(names, dir, restored, err) : 0;
    pthread_mutex_unlock(&names->lock);
    return rc;
}

static int find_key(struct session_names *names, const char *dir, struct rod_error *err) {
    int rc = read_key(dir, names, err);
    if (rc == ROD_EIO) return rod_fail(err, ROD_ESTATE, "state_dir %.200s: " KEY_FILE " cannot be read", dir);
    if (rc == ROD_ENOTFOUND && !(rc = may_make(dir, names, err))) rc = make_key(dir, names, err);
    if (!rc) names->known = true;
    return rc;
}

int session_names_open(struct session_names *names, const char *dir, struct rod_error *err) {
    bool restored;
    pthread_mutex_lock(&names->lock);
    const int rc = names->known ? keep(names, dir, &restored, err) : find_key(names, dir, err);
    pthread_mutex_unlock(&names->lock);
    return rc;
}

/* ---- names ---- */

static size_t join(const char *tenant, const char *id, char both[SESSION_MAX_TENANT + 1 + SESSION_MAX_ID]) {
    const size_t n_tenant = strlen(tenant), n_id = strlen(id);
    assert(n_tenant <= SESSION_MAX_TENANT && n_id <= SESSION_MAX_ID);
    memcpy(both, tenant, n_tenant + 1);
    memcpy(both + n_tenant + 1, id, n_id);
    return n_tenant + 1 + n_id;
}

void session_names_name(struct session_names *names, const char *tenant, const char *id,
                        uint8_t name[SESSION_NAME_BYTES]) {
    char both[SESSION_MAX_TENANT + 1 + SESSION_MAX_ID];
    uint8_t key[SIPHASH_KEY_BYTES];
    const size_t n = join(tenant, id, both);
    pthread_mutex_lock(&names->lock);
    const bool known = names->known;
    memcpy(key, names->key, sizeof key);
    pthread_mutex_unlock(&names->lock);
    if (known)
        siphash(key, both, n, name);
    else
        memset(name, 0, SESSION_NAME_BYTES);
}

void session_names_earlier(const char *tenant, const char *id, uint8_t name[SESSION_NAME_BYTES]) {
    char both[SESSION_MAX_TENANT + 1 + SESSION_MAX_ID];
    const size_t n = join(tenant, id, both);
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(both, n));
    memcpy(name, digest.digest, SESSION_NAME_BYTES);
}

bool session_names_fit(struct session_names *names, const char *tenant, const char *id,
                       const uint8_t name[SESSION_NAME_BYTES]) {
    uint8_t own[SESSION_NAME_BYTES];
    session_names_earlier(tenant, id, own);
    if (!memcmp(own, name, sizeof own)) return true;
    session_names_name(names, tenant, id, own);
    return !memcmp(own, name, sizeof own);
}

bool session_names_superseded(const struct session_store *store, const char *tenant, const char *id,
                              const uint8_t name[SESSION_NAME_BYTES]) {
    struct session_file_version file_version;
    uint8_t own[SESSION_NAME_BYTES];
    session_names_earlier(tenant, id, own);
    if (memcmp(own, name, sizeof own)) return false;
    session_names_name(store->names, tenant, id, own);
    return !session_store_glance(store, own, &file_version, NULL);
}

/* There is a file of that name, and it is not plainly another session's: of a damaged one nobody knows. */
static int there_earlier(const struct session_store *store, const char *tenant, const char *id,
                         const uint8_t name[SESSION_NAME_BYTES], bool *there, struct rod_error *err) {
    struct session_file_version file_version;
    struct session_metadata metadata;
    int rc = session_store_glance(store, name, &file_version, err);
    *there = !rc || rc == ROD_ESTATE;
    if (rc) return rc == ROD_EIO ? rc : 0;
    rc = session_store_read_metadata(store, name, &metadata, err);
    if (rc == ROD_ENOTFOUND || (!rc && (strcmp(metadata.tenant, tenant) || strcmp(metadata.id, id)))) *there = false;
    return rc == ROD_EIO ? rc : 0;
}

int session_names_find(const struct session_store *store, const char *tenant, const char *id,
                       uint8_t name[SESSION_NAME_BYTES], struct rod_error *err) {
    struct rod_error why;
    struct session_file_version file_version;
    uint8_t earlier[SESSION_NAME_BYTES];
    const int keyless = session_names_open(store->names, store->dir, &why);
    if (!keyless) {
        session_names_name(store->names, tenant, id, name);
        const int rc = session_store_glance(store, name, &file_version, err);
        if (rc != ROD_ENOTFOUND) return rc == ROD_EIO ? rc : 0; /* also what is no regular file */
    }
    bool there;
    session_names_earlier(tenant, id, earlier);
    const int rc = there_earlier(store, tenant, id, earlier, &there, err);
    if (rc) return rc;
    if (there) memcpy(name, earlier, SESSION_NAME_BYTES);
    if (there || !keyless) return 0;
    return rod_fail(err, ROD_EIO, "%.400s", why.message);
}
