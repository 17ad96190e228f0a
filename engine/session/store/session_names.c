/* session_names.c - see session_names.h. */
#include "session_names.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

/* "rodimus names 1 KEY CHECK\n": one line that a person can read, and whose damage shows. */
#define KEY_BEGIN "rodimus names 1 "
enum { KEY_TEXT_BYTES = sizeof KEY_BEGIN - 1 + 2 * SIPHASH_KEY_BYTES + 1 + 16 + 1, LABEL_BYTES = 256 };

void session_names_init(struct session_names *names) {
    *names = (struct session_names){0};
    pthread_mutex_init(&names->lock, NULL);
}

void session_names_fini(struct session_names *names) { pthread_mutex_destroy(&names->lock); }

/* ---- the key ---- */

static void names_write_key(const uint8_t key[SIPHASH_KEY_BYTES], char text[KEY_TEXT_BYTES + 1]) {
    int n = snprintf(text, KEY_TEXT_BYTES + 1, "%s", KEY_BEGIN);
    for (int i = 0; i < SIPHASH_KEY_BYTES; i++, n += 2) snprintf(text + n, 3, "%02x", key[i]);
    n += snprintf(text + n, 19, " %016llx\n", (unsigned long long)XXH3_64bits(key, SIPHASH_KEY_BYTES));
    assert(n == KEY_TEXT_BYTES);
}

static bool names_parse_key(const char *text, size_t n, uint8_t key[SIPHASH_KEY_BYTES]) {
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
    names_write_key(key, again);
    return !memcmp(again, text, KEY_TEXT_BYTES); /* a character that is no digit is not written like this */
}

int session_names_read_key_locked(struct session_names *names, const struct state_home *home, struct rod_error *err) {
    char text[KEY_TEXT_BYTES + 1];
    struct state_disk_version version;
    char where[LABEL_BYTES];
    size_t n = 0;
    const int rc = state_home_peek(home, SESSION_NAMES_FILE, text, sizeof text, &n, &version, err);
    uint8_t key[SIPHASH_KEY_BYTES];
    if (rc) return rc;
    state_home_label(home, where, sizeof where);
    if (!names_parse_key(text, n, key))
        return rod_fail(err, ROD_ESTATE,
                        "%.200s: " SESSION_NAMES_FILE " is damaged: restore it from a backup, or use another %s: "
                        "without the key the %s that were named with it are not found",
                        where, home->fenced ? "prefix" : "folder", home->fenced ? "objects" : "files");
    if (names->known && memcmp(names->key, key, sizeof key) != 0)
        return rod_fail(err, ROD_EIO,
                        "%.210s: " SESSION_NAMES_FILE " is another one than at the start: restore the "
                        "%s own",
                        where, home->fenced ? "prefix's" : "folder's");
    memcpy(names->key, key, sizeof key);
    names->inode = version.inode;
    names->mtime_ns = version.mtime_ns;
    return 0;
}

/* The bytes of the key's file are on the disk before the file has its name; the writes of sessions sync the name. */
int session_names_make_key_locked(struct session_names *names, const struct state_home *home, struct rod_error *err) {
    char text[KEY_TEXT_BYTES + 1];
    uint8_t key[SIPHASH_KEY_BYTES];
    memcpy(key, names->key, sizeof key);
    if (!names->known && getrandom(key, sizeof key, 0) != (ssize_t)sizeof key)
        return rod_fail(err, ROD_EINTERNAL, "The system has no random numbers for the names of files in state_dir.");
    names_write_key(key, text);
    const struct state_bytes bytes = {text, KEY_TEXT_BYTES};
    struct state_disk_item item = {.name = SESSION_NAMES_FILE, .parts = &bytes, .n_parts = 1, .only_new = true};
    state_home_write(home, &item, 1);
    if (item.rc && item.rc != ROD_EEXISTS) return rod_fail(err, item.rc, "%.400s", item.err.message);
    return session_names_read_key_locked(names, home, err);
}

int session_names_keep_locked(struct session_names *names, const struct state_home *home, bool *restored,
                              struct rod_error *err) {
    struct state_disk_version found;
    struct rod_error why;
    assert(names->known);
    *restored = false;
    int rc = state_home_stat(home, SESSION_NAMES_FILE, &found, &why);
    if (!rc && found.inode == names->inode && found.mtime_ns == names->mtime_ns) return 0;
    const bool gone = rc == ROD_ENOTFOUND;
    rc = gone ? session_names_make_key_locked(names, home, &why) : session_names_read_key_locked(names, home, &why);
    *restored = gone && !rc;
    return rc ? rod_fail(err, ROD_EIO, "%.400s", why.message) : 0;
}

int session_names_keep(struct session_names *names, const struct state_home *home, bool *restored,
                       struct rod_error *err) {
    *restored = false;
    pthread_mutex_lock(&names->lock);
    const int rc = names->known ? session_names_keep_locked(names, home, restored, err) : 0;
    pthread_mutex_unlock(&names->lock);
    return rc;
}

int session_names_look(struct session_names *names, const struct state_home *home, bool *restored, bool *other,
                       struct rod_error *err) {
    char text[KEY_TEXT_BYTES + 1];
    struct state_disk_version version;
    uint8_t key[SIPHASH_KEY_BYTES];
    size_t n = 0;
    *restored = *other = false;
    int rc = state_home_peek(home, SESSION_NAMES_FILE, text, sizeof text, &n, &version, err);
    if (rc && rc != ROD_ENOTFOUND) return rc;
    pthread_mutex_lock(&names->lock);
    assert(names->known);
    if (rc == ROD_ENOTFOUND) {
        rc = session_names_make_key_locked(names, home, err);
        *restored = !rc; /* unless another server was faster: the next look tells whose key it is */
    } else {
        *other = !names_parse_key(text, n, key) || memcmp(key, names->key, sizeof key) != 0;
    }
    pthread_mutex_unlock(&names->lock);
    return rc;
}

/* ---- names ---- */

static size_t names_join(const char *tenant, const char *id, char both[SESSION_MAX_TENANT + 1 + SESSION_MAX_ID]) {
    const size_t n_tenant = strlen(tenant), n_id = strlen(id);
    assert(n_tenant <= SESSION_MAX_TENANT && n_id <= SESSION_MAX_ID);
    memcpy(both, tenant, n_tenant + 1);
    memcpy(both + n_tenant + 1, id, n_id);
    return n_tenant + 1 + n_id;
}

/* The first half; the other is of tenant and id. */
static void names_tenant_half(const uint8_t key[SIPHASH_KEY_BYTES], const char *tenant,
                              uint8_t name[SESSION_NAME_BYTES]) {
    uint8_t digest[SIPHASH_BYTES];
    siphash(key, tenant, strlen(tenant), digest);
    memcpy(name, digest, SESSION_NAME_HALF_BYTES);
}

void session_names_name(struct session_names *names, const char *tenant, const char *id,
                        uint8_t name[SESSION_NAME_BYTES]) {
    char both[SESSION_MAX_TENANT + 1 + SESSION_MAX_ID];
    uint8_t key[SIPHASH_KEY_BYTES];
    const size_t n = names_join(tenant, id, both);
    pthread_mutex_lock(&names->lock);
    const bool known = names->known, halves = names->halves;
    memcpy(key, names->key, sizeof key);
    pthread_mutex_unlock(&names->lock);
    memset(name, 0, SESSION_NAME_BYTES);
    if (!known) return;
    siphash(key, both, n, name);
    if (halves) names_tenant_half(key, tenant, name);
}

void session_names_tenant(struct session_names *names, const char *tenant, uint8_t half[SESSION_NAME_HALF_BYTES]) {
    uint8_t name[SESSION_NAME_BYTES];
    session_names_name(names, tenant, "", name);
    memcpy(half, name, SESSION_NAME_HALF_BYTES);
}

void session_names_earlier(const char *tenant, const char *id, uint8_t name[SESSION_NAME_BYTES]) {
    char both[SESSION_MAX_TENANT + 1 + SESSION_MAX_ID];
    const size_t n = names_join(tenant, id, both);
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
