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
    if (!rc && parse_key(text, n, key)) {
        memcpy(names->key, key, sizeof key);
        names->inode = f.stamp.inode;
        return 0;
    }
    if (rc) return rc;
    return rod_fail(err, ROD_ESTATE,
                    "state_dir %.200s: " KEY_FILE " is damaged: bring it back, or remove it, and sessions whose files "
                    "were named with it are refused",
                    dir);
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

int session_names_open(struct session_names *names, const char *dir, struct rod_error *err) {
    struct state_disk_stamp stamp;
    pthread_mutex_lock(&names->lock);
    int rc = state_disk_stat(dir, KEY_FILE, &stamp, err);
    if (rc || !names->known || stamp.inode != names->inode) {
        rc = read_key(dir, names, err);
        if (rc == ROD_EIO) rc = rod_fail(err, ROD_ESTATE, "state_dir %.200s: " KEY_FILE " cannot be read", dir);
        if (rc == ROD_ENOTFOUND) rc = make_key(dir, names, err);
        if (!rc) names->known = true;
    }
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
    struct session_stamp stamp;
    uint8_t own[SESSION_NAME_BYTES];
    session_names_earlier(tenant, id, own);
    if (memcmp(own, name, sizeof own)) return false;
    session_names_name(store->names, tenant, id, own);
    return !session_store_glance(store, own, &stamp, NULL);
}

/* There is a file of that name, and it is not plainly another session's: of a damaged one nobody knows. */
static int there_earlier(const struct session_store *store, const char *tenant, const char *id,
                         const uint8_t name[SESSION_NAME_BYTES], bool *there, struct rod_error *err) {
    struct session_stamp stamp;
    struct session_facts facts;
    int rc = session_store_glance(store, name, &stamp, err);
    *there = !rc || rc == ROD_ESTATE;
    if (rc) return rc == ROD_EIO ? rc : 0;
    rc = session_store_facts(store, name, &facts, err);
    if (rc == ROD_ENOTFOUND || (!rc && (strcmp(facts.tenant, tenant) || strcmp(facts.id, id)))) *there = false;
    return rc == ROD_EIO ? rc : 0;
}

int session_names_find(const struct session_store *store, const char *tenant, const char *id,
                       uint8_t name[SESSION_NAME_BYTES], struct rod_error *err) {
    struct rod_error why;
    struct session_stamp stamp;
    uint8_t earlier[SESSION_NAME_BYTES];
    const int keyless = session_names_open(store->names, store->dir, &why);
    if (!keyless) {
        session_names_name(store->names, tenant, id, name);
        const int rc = session_store_glance(store, name, &stamp, err);
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
