/* state_home.c - see state_home.h: names, and the folder as a home. */
#include "state_home.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- a folder ---- */

static int folder_open(void *arg, const char *name, const char *known_etag, struct state_home_file *out,
                       struct rod_error *err) {
    (void)known_etag; /* a folder's versions have none */
    const int rc = state_disk_open(arg, name, &out->disk, err);
    if (!rc) out->version = out->disk.version;
    return rc;
}

static int folder_get(struct state_home_file *f, void *dst, size_t n_bytes, size_t *n_read, struct rod_error *err) {
    return state_disk_get(&f->disk, f->at, dst, n_bytes, n_read, err);
}

static void folder_close(struct state_home_file *f) { state_disk_close(&f->disk); }

static int folder_peek(void *arg, const char *name, void *dst, size_t n_bytes, size_t *n_read,
                       struct state_disk_version *version, struct rod_error *err) {
    struct state_disk_file f;
    int rc = state_disk_open(arg, name, &f, err);
    if (rc) return rc;
    *version = f.version;
    rc = state_disk_get(&f, 0, dst, n_bytes, n_read, err);
    state_disk_close(&f);
    return rc;
}

static int folder_stat(void *arg, const char *name, struct state_disk_version *out, struct rod_error *err) {
    return state_disk_stat(arg, name, out, err);
}

static void folder_write(void *arg, struct state_disk_item *items, size_t n) { state_disk_write_all(arg, items, n); }

static int folder_copy(void *arg, const char *name, const char *known_etag, const char *second, struct rod_error *err) {
    (void)known_etag;
    return state_disk_link(arg, name, second, err);
}

static int folder_remove(void *arg, const char *name, const char *known_etag, struct rod_error *err) {
    (void)known_etag;
    return state_disk_remove(arg, name, err);
}

static void folder_drop(void *arg, const char *name) { state_disk_drop(arg, name); }

static void folder_touch(void *arg, const char *name, int64_t unix_s) { state_disk_touch(arg, name, unix_s); }

static int folder_list(void *arg, const char *prefix, const char *after,
                       void (*found)(void *arg, const char *name, const struct state_disk_version *version),
                       void *found_arg, bool *more, struct rod_error *err) {
    const char *dir = arg;
    DIR *list = opendir(dir);
    (void)after;
    *more = false;
    if (!list) return rod_fail(err, ROD_EIO, "cannot open state_dir %.300s: %s", dir, strerror(errno));
    for (struct dirent *entry; (entry = readdir(list));)
        if (!strncmp(entry->d_name, prefix, strlen(prefix))) found(found_arg, entry->d_name, NULL);
    closedir(list);
    return 0;
}

static const struct state_home_calls folder_calls = {.open = folder_open,
                                                     .get = folder_get,
                                                     .close = folder_close,
                                                     .peek = folder_peek,
                                                     .stat = folder_stat,
                                                     .write = folder_write,
                                                     .copy = folder_copy,
                                                     .remove = folder_remove,
                                                     .drop = folder_drop,
                                                     .touch = folder_touch,
                                                     .list = folder_list};

struct state_home state_home_folder(const char *dir) {
    return (struct state_home){.calls = &folder_calls, .arg = (void *)(uintptr_t)dir};
}

void state_home_label(const struct state_home *home, char *text, size_t n_text) {
    if (home->fenced)
        snprintf(text, n_text, "the store, below %s", home->below);
    else
        snprintf(text, n_text, "state_dir %s", (const char *)home->arg);
}

/* ---- names ---- */

struct state_home state_home_below(const struct state_home *home, const char *more) {
    struct state_home deeper = *home;
    const size_t n = strlen(deeper.below);
    assert(home->fenced && n + strlen(more) < sizeof deeper.below);
    snprintf(deeper.below + n, sizeof deeper.below - n, "%s", more);
    return deeper;
}

/* The name as the home's calls take it. */
static const char *home_name(const struct state_home *home, const char *name, char text[STATE_HOME_MAX_NAME + 1]) {
    assert(home->calls);
    if (!*home->below) return name;
    const int n = snprintf(text, STATE_HOME_MAX_NAME + 1, "%s%s", home->below, name);
    assert(n <= STATE_HOME_MAX_NAME);
    (void)n;
    return text;
}

static const char *etag_of(const struct state_disk_version *known) { return known ? known->etag : ""; }

/* ---- the calls ---- */

int state_home_open(const struct state_home *home, const char *name, const struct state_disk_version *known,
                    struct state_home_file *out, struct rod_error *err) {
    char text[STATE_HOME_MAX_NAME + 1];
    *out = (struct state_home_file){.calls = home->calls, .disk.fd = -1};
    return home->calls->open(home->arg, home_name(home, name, text), etag_of(known), out, err);
}

int state_home_get(struct state_home_file *f, void *dst, size_t n_bytes, size_t *n_read, struct rod_error *err) {
    assert(!f->unchanged);
    *n_read = 0;
    const int rc = f->calls->get(f, dst, n_bytes, n_read, err);
    f->at += *n_read;
    return rc;
}

void state_home_seek(struct state_home_file *f, uint64_t at) {
    assert(!f->reader && !f->unchanged); /* a store's body comes in order */
    f->at = at;
}

void state_home_close(struct state_home_file *f) {
    if (!f->unchanged) f->calls->close(f);
}

int state_home_peek(const struct state_home *home, const char *name, void *dst, size_t n_bytes, size_t *n_read,
                    struct state_disk_version *version, struct rod_error *err) {
    char text[STATE_HOME_MAX_NAME + 1];
    return home->calls->peek(home->arg, home_name(home, name, text), dst, n_bytes, n_read, version, err);
}

int state_home_stat(const struct state_home *home, const char *name, struct state_disk_version *out,
                    struct rod_error *err) {
    char text[STATE_HOME_MAX_NAME + 1];
    return home->calls->stat(home->arg, home_name(home, name, text), out, err);
}

void state_home_write(const struct state_home *home, struct state_disk_item *items, size_t n) {
    enum { MOST = 64 };
    char texts[MOST][STATE_HOME_MAX_NAME + 1];
    const char *names[MOST];
    for (size_t at = 0, part; at < n; at += part) {
        part = n - at < MOST ? n - at : MOST;
        for (size_t i = 0; i < part; i++) {
            names[i] = items[at + i].name;
            items[at + i].name = home_name(home, names[i], texts[i]);
        }
        home->calls->write(home->arg, items + at, part);
        for (size_t i = 0; i < part; i++) items[at + i].name = names[i];
    }
}

int state_home_copy(const struct state_home *home, const char *name, const struct state_disk_version *known,
                    const char *second, struct rod_error *err) {
    char from[STATE_HOME_MAX_NAME + 1], to[STATE_HOME_MAX_NAME + 1];
    return home->calls->copy(home->arg, home_name(home, name, from), etag_of(known), home_name(home, second, to), err);
}

int state_home_remove(const struct state_home *home, const char *name, const struct state_disk_version *known,
                      struct rod_error *err) {
    char text[STATE_HOME_MAX_NAME + 1];
    return home->calls->remove(home->arg, home_name(home, name, text), etag_of(known), err);
}

void state_home_drop(const struct state_home *home, const char *name) {
    char text[STATE_HOME_MAX_NAME + 1];
    home->calls->drop(home->arg, home_name(home, name, text));
}

void state_home_touch(const struct state_home *home, const char *name, int64_t unix_s) {
    char text[STATE_HOME_MAX_NAME + 1];
    if (home->calls->touch) home->calls->touch(home->arg, home_name(home, name, text), unix_s);
}

void state_home_hurry(const struct state_home *home, uint64_t until_ns) {
    if (home->calls && home->calls->hurry) home->calls->hurry(home->arg, until_ns);
}

/* Names without `below`. */
struct home_found {
    size_t n_below;
    void (*found)(void *arg, const char *name, const struct state_disk_version *version);
    void *arg;
};

static void home_found_one(void *arg, const char *name, const struct state_disk_version *version) {
    const struct home_found *f = arg;
    f->found(f->arg, name + f->n_below, version);
}

int state_home_list(const struct state_home *home, const char *prefix, const char *after,
                    void (*found)(void *arg, const char *name, const struct state_disk_version *version), void *arg,
                    bool *more, struct rod_error *err) {
    char begin[STATE_HOME_MAX_NAME + 1], behind[STATE_HOME_MAX_NAME + 1];
    struct home_found names = {strlen(home->below), found, arg};
    return home->calls->list(home->arg, home_name(home, prefix, begin), *after ? home_name(home, after, behind) : "",
                             home_found_one, &names, more, err);
}
