/* conversations_folder.c - see conversations_internal.h: conversations as folders of a folder. */
#include "conversations_internal.h"
#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"
#include "engine/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LEFT_S = 60, DIR_DIGITS = 32 };

static bool dir_path(const struct conversations *c, const char *dir, char path[PATH_BYTES]) {
    const int n = snprintf(path, PATH_BYTES, "%s/%s", c->root, dir);
    return n > 0 && n < PATH_BYTES;
}

/* ---- folders ---- */

int conversations_make_dir(const struct conversations *c, const char *dir, const void *whose, size_t n_whose,
                           struct rod_error *err) {
    char path[PATH_BYTES];
    if (!dir_path(c, dir, path)) return rod_fail(err, ROD_EIO, "state_dir makes too long a path");
    if (mkdir(c->root, 0700) && errno != EEXIST) return rod_fail(err, ROD_EIO, "%.300s: %s", c->root, strerror(errno));
    if (mkdir(path, 0700) && errno != EEXIST) return rod_fail(err, ROD_EIO, "%.300s: %s", path, strerror(errno));
    return notes_make(path, whose, n_whose, err);
}

void conversations_unlink_all(const struct conversations *c, const char *dir) {
    char path[PATH_BYTES];
    DIR *list = dir_path(c, dir, path) ? opendir(path) : NULL;
    if (!list) return;
    for (struct dirent *d; (d = readdir(list));)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0) unlinkat(dirfd(list), d->d_name, 0);
    closedir(list);
    rmdir(path);
}

/* ---- what is there ---- */

static struct conversation_scans scan_read(const char *path) {
    struct conversation_scans scans = {0};
    struct stat info;
    DIR *list = opendir(path);
    for (struct dirent *d; list && (d = readdir(list));)
        if (!fstatat(dirfd(list), d->d_name, &info, 0))
            conversations_scan_add(&scans, d->d_name, (uint64_t)info.st_size);
    scans.made = list != NULL;
    if (list) closedir(list);
    return scans;
}

static void scan_dir(struct conversations *c, const char *dir, const char *tenant, const char *name, int64_t used_s) {
    char path[PATH_BYTES];
    if (!dir_path(c, dir, path)) return;
    struct conversation_scans scans = scan_read(path);
    conversations_merge(c, dir, tenant, name, used_s, &scans);
}

void conversations_scan(struct conversations *c, const char *dir, const char *tenant, const char *name) {
    if (c->root) scan_dir(c, dir, tenant, name, clock_unix_s());
}

/* The first note, checked: it is of this folder, and so of this model. A folder that does not say whose it is, and that
 * nobody is making just now, is what a crash or a fault of the disk left: nobody would ever find it. */
static char *whose_is(const struct conversations *c, const char *dir, int64_t used_s, const char **name) {
    char path[PATH_BYTES];
    void *first;
    size_t n;
    struct rod_error err;
    if (!dir_path(c, dir, path)) return NULL;
    const int rc = notes_read_first(path, &first, &n, &err);
    if (rc) {
        if (rc != ROD_EIO && used_s + LEFT_S < clock_unix_s()) conversations_unlink_all(c, dir);
        return NULL;
    }
    if (conversations_whose_dir(c, dir, first, n, name)) return first;
    free(first);
    return NULL;
}

struct found_dir {
    char dir[CONVERSATION_DIR_BYTES];
    int64_t used_s;
};
static int by_use(const void *a, const void *b) {
    const struct found_dir *x = a, *y = b;
    return (x->used_s > y->used_s) - (x->used_s < y->used_s);
}

/* Conversations that have lost their folders. */
static void scan_known(struct conversations *c) {
    char(*dirs)[CONVERSATION_DIR_BYTES] = NULL;
    size_t n = 0, cap = 0;
    struct stat info;
    pthread_mutex_lock(&c->lock);
    for (struct conversation *of = conversation_first(c->table); of; of = conversation_after(c->table, of))
        if (of->made && ARRAY_RESERVE(dirs, cap, n, 1)) memcpy(dirs[n++], of->dir, sizeof of->dir);
    pthread_mutex_unlock(&c->lock);
    for (size_t i = 0; i < n; i++) {
        char path[PATH_BYTES];
        if (!dir_path(c, dirs[i], path) || !stat(path, &info) || errno != ENOENT) continue;
        pthread_mutex_lock(&c->lock);
        struct conversation *of = conversation_find(c->table, dirs[i]);
        if (of) conversations_gone_locked(c, of);
        pthread_mutex_unlock(&c->lock);
    }
    free(dirs);
}

void conversations_scan_all(struct conversations *c) {
    if (c->root) scan_known(c);
    struct found_dir *dirs = NULL;
    size_t n = 0, cap = 0;
    struct stat info;
    DIR *list = c->root ? opendir(c->root) : NULL;
    for (struct dirent *d; list && (d = readdir(list));) {
        if (strspn(d->d_name, "0123456789abcdef") != DIR_DIGITS || d->d_name[DIR_DIGITS]) continue;
        pthread_mutex_lock(&c->lock);
        const bool known = conversation_find(c->table, d->d_name) != NULL;
        pthread_mutex_unlock(&c->lock);
        if (known || fstatat(dirfd(list), d->d_name, &info, 0) || !ARRAY_RESERVE(dirs, cap, n, 1)) continue;
        memcpy(dirs[n].dir, d->d_name, DIR_DIGITS + 1);
        dirs[n++].used_s = (int64_t)info.st_mtim.tv_sec;
    }
    if (list) closedir(list);
    if (n) qsort(dirs, n, sizeof *dirs, by_use);
    for (size_t i = 0; i < n; i++) {
        const char *name;
        char *tenant = whose_is(c, dirs[i].dir, dirs[i].used_s, &name), path[PATH_BYTES];
        if (tenant && dir_path(c, dirs[i].dir, path)) state_disk_sweep(path, NULL, NULL);
        if (tenant) scan_dir(c, dirs[i].dir, tenant, name, dirs[i].used_s);
        free(tenant);
    }
    free(dirs);
}

/* ---- a state's file ---- */

int conversations_folder_write(const struct conversations *c, const struct conversation_job *job,
                               const struct state_bytes parts[2], struct rod_error *err) {
    char path[PATH_BYTES];
    const int rc = conversations_make_dir(c, job->dir, job->whose, job->n_whose, err);
    if (rc) return rc;
    if (!dir_path(c, job->dir, path)) return rod_fail(err, ROD_EIO, "state_dir makes too long a path");
    struct state_disk_item item = {.name = job->file, .parts = parts, .n_parts = 2, .not_synced = true};
    state_disk_write_all(path, &item, 1);
    if (item.rc) *err = item.err;
    return item.rc;
}

int conversations_folder_link(const struct conversations *c, const struct conversation_job *job,
                              struct rod_error *err) {
    char from[PATH_BYTES], to[PATH_BYTES];
    const int n = snprintf(from, sizeof from, "%s/%s/%s", c->root, job->twin, job->file);
    if (n >= PATH_BYTES || snprintf(to, sizeof to, "%s/%s/%s", c->root, job->dir, job->file) >= PATH_BYTES)
        return rod_fail(err, ROD_EIO, "state_dir makes too long a path");
    const int rc = conversations_make_dir(c, job->dir, job->whose, job->n_whose, err);
    return !rc && link(from, to) ? rod_fail(err, ROD_EIO, "link %.300s: %s", from, strerror(errno)) : rc;
}

int conversations_folder_read(const struct conversations *c, const struct conversation_job *job,
                              struct rod_error *err) {
    char path[PATH_BYTES];
    if (!dir_path(c, job->dir, path)) return rod_fail(err, ROD_EIO, "state_dir makes too long a path");
    const struct state_home home = state_home_folder(path);
    return conversation_file_read(&c->config.form, &home, &job->place, job->buffer, NULL, err);
}

void conversations_folder_unlink(const struct conversations *c, const struct conversation_job *job) {
    char path[PATH_BYTES];
    if (!*job->file)
        conversations_unlink_all(c, job->dir);
    else if (dir_path(c, job->dir, path))
        state_disk_drop(path, job->file);
}

/* ---- open ---- */

int conversations_folder_open(struct conversations *c, struct rod_error *err) {
    const struct state_home home = state_home_folder(c->config.state_dir);
    const int rc = conversations_read_key(c, &home, err);
    if (rc) return rc;
    if (!(c->root = file_path(c->config.state_dir, CONVERSATIONS_FOLDER))) return rod_fail_no_memory(err);
    conversations_scan_all(c);
    pthread_mutex_lock(&c->lock);
    conversations_expire_locked(c); /* a folder's time is its last use */
    pthread_mutex_unlock(&c->lock);
    return 0;
}
