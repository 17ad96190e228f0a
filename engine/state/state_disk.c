/* state_disk.c - see state_disk.h. */
#include "state_disk.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEFTOVER_MARK "tmp-"
enum { PATH_BYTES = 4096, WRITE_MAX = 1 << 30 };

/* ---- names ---- */

static bool name_is_good(const char *name) {
    size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return n > 0 && n <= STATE_DISK_MAX_NAME && !name[n] && name[0] != '.' && !strstr(name, "." LEFTOVER_MARK);
}

static int path_of_name(const char *dir, const char *name, const char *end, char path[PATH_BYTES],
                        struct rod_error *err) {
    if (!name_is_good(name)) return rod_fail(err, ROD_EINVALID, "\"%.200s\" is not a valid name of a state file", name);
    int n = snprintf(path, PATH_BYTES, "%s/%s%s", dir, name, end);
    if (n < 0 || n >= PATH_BYTES) return rod_fail(err, ROD_EIO, "state_dir %.200s... makes too long a path", dir);
    return 0;
}

static int io_fail(struct rod_error *err, const char *what, const char *path, int number) {
    return rod_fail(err, number == ENOENT ? ROD_ENOTFOUND : ROD_EIO, "cannot %s %.300s: %s", what, path,
                    strerror(number));
}
/* Of a write: that the folder is not there is a fault of the disk, too. */
static int write_fail(struct rod_error *err, const char *what, const char *path, int number) {
    return rod_fail(err, ROD_EIO, "cannot %s %.300s: %s", what, path, strerror(number));
}

/* ---- writing ---- */

static int sync_folder(const char *dir, const char *why, struct rod_error *err) {
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int number = fd < 0 || fsync(fd) ? errno : 0;
    if (fd >= 0) close(fd);
    return number ? write_fail(err, why, dir, number) : 0;
}

int state_disk_lock(int fd, int how) {
    int rc;
    while ((rc = flock(fd, how)) && errno == EINTR) continue;
    return rc;
}

/* Not by the count of links: a network's file system may keep a link to what is removed while it is open. */
bool state_disk_has_name(int folder, const char *name, int fd) {
    struct stat own, named;
    return !fstat(fd, &own) && !fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) && own.st_ino == named.st_ino &&
           own.st_dev == named.st_dev;
}

/* A new file beside the place, locked. A sweep may come between the making and the lock and take the file for a
 * leftover: then it has no name any more, and another one is made. */
static int beside_open(const char *pattern, char path[PATH_BYTES], int *out, struct rod_error *err) {
    for (;;) {
        snprintf(path, PATH_BYTES, "%s", pattern);
        int fd = mkostemp(path, O_CLOEXEC);
        if (fd < 0) return write_fail(err, "make", pattern, errno);
        if (state_disk_lock(fd, LOCK_EX)) {
            int number = errno;
            close(fd);
            unlink(path);
            return write_fail(err, "lock", path, number);
        }
        if (state_disk_has_name(AT_FDCWD, path, fd)) {
            *out = fd;
            return 0;
        }
        close(fd);
    }
}

static int write_all(int fd, const struct state_bytes *parts, size_t n_parts) {
    for (size_t i = 0; i < n_parts; i++) {
        const char *from = parts[i].data;
        for (size_t left = parts[i].n; left;) {
            ssize_t n = write(fd, from, left < WRITE_MAX ? left : WRITE_MAX);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0) return errno;
            from += n;
            left -= (size_t)n;
        }
    }
    return 0;
}

/* An item's file between its making and its renaming. */
struct beside {
    int fd; /* -1 = none */
    char path[PATH_BYTES], beside[PATH_BYTES];
};

static int beside_write(const char *dir, struct state_disk_item *item, struct beside *b) {
    char pattern[PATH_BYTES];
    int rc, number;
    b->fd = -1;
    if ((rc = path_of_name(dir, item->name, "", b->path, &item->err))) return rc;
    if ((rc = path_of_name(dir, item->name, "." LEFTOVER_MARK "XXXXXX", pattern, &item->err))) return rc;
    if ((rc = beside_open(pattern, b->beside, &b->fd, &item->err))) return rc;
    if ((number = write_all(b->fd, item->parts, item->n_parts)))
        return write_fail(&item->err, "write", b->path, number);
    if (!item->not_synced)
        sync_file_range(b->fd, 0, 0, SYNC_FILE_RANGE_WRITE); /* the disk may begin; fsync will say how it went */
    return 0;
}

static struct state_disk_version version_of(const struct stat *info) {
    return (struct state_disk_version){
        (uint64_t)info->st_ino, (uint64_t)info->st_mtim.tv_sec * 1000000000u + (uint64_t)info->st_mtim.tv_nsec,
        (uint64_t)info->st_size, info->st_blocks ? (uint64_t)info->st_blocks * 512 : (uint64_t)info->st_size, ""};
}

/* 0: it has the name, which nothing had; else errno. Some folders have no links. */
static int name_new(const char *beside, const char *path) {
    if (!link(beside, path)) {
        unlink(beside);
        return 0;
    }
    if (errno == EEXIST) return EEXIST;
    return renameat2(AT_FDCWD, beside, AT_FDCWD, path, RENAME_NOREPLACE) ? errno : 0;
}

static int put_in_place(struct state_disk_item *item, struct beside *b) {
    struct stat info;
    assert(b->fd >= 0 && *b->beside);
    if ((!item->not_synced && fsync(b->fd)) || fstat(b->fd, &info))
        return write_fail(&item->err, "sync", b->path, errno);
    const int number = item->only_new ? name_new(b->beside, b->path) : rename(b->beside, b->path) ? errno : 0;
    if (number == EEXIST && item->only_new) return rod_fail(&item->err, ROD_EEXISTS, "%.300s exists already", b->path);
    if (number) return write_fail(&item->err, "rename to", b->path, number);
    item->version = version_of(&info);
    return 0;
}

void state_disk_write_all(const char *dir, struct state_disk_item *items, size_t n) {
    struct beside *besides = calloc(n ? n : 1, sizeof *besides);
    size_t n_renamed = 0;
    for (size_t i = 0; i < n; i++)
        items[i].rc = besides ? beside_write(dir, &items[i], &besides[i]) : rod_fail_no_memory(&items[i].err);
    if (!besides) return;
    for (size_t i = 0; i < n; i++) {
        if (!items[i].rc) {
            items[i].rc = put_in_place(&items[i], &besides[i]);
            n_renamed += !items[i].rc && !items[i].not_synced;
            items[i].in_place = !items[i].rc;
        }
        if (items[i].rc && besides[i].fd >= 0) unlink(besides[i].beside);
        if (besides[i].fd >= 0) close(besides[i].fd); /* and the lock with it; synced, so it has nothing to report */
    }
    assert(n_renamed <= n);
    free(besides);
    struct rod_error err;
    const int rc = n_renamed ? sync_folder(dir, "after the rename sync the folder", &err) : 0;
    for (size_t i = 0; rc && i < n; i++)
        if (!items[i].rc && !items[i].not_synced) {
            items[i].rc = rc;
            items[i].err = err;
        }
}

/* ---- a file in pieces ---- */

struct state_disk_part {
    struct beside b;
};

int state_disk_part_begin(const char *dir, const char *name, struct state_disk_part **out, struct rod_error *err) {
    struct state_disk_part *part = malloc(sizeof *part);
    if (!part) return rod_fail_no_memory(err);
    struct state_disk_item nothing = {.name = name, .not_synced = true};
    const int rc = beside_write(dir, &nothing, &part->b);
    if (rc) {
        if (err) *err = nothing.err;
        free(part);
        return rc;
    }
    *out = part;
    return 0;
}

int state_disk_part_put(struct state_disk_part *part, const void *bytes, size_t n, struct rod_error *err) {
    const struct state_bytes piece = {bytes, n};
    const int number = write_all(part->b.fd, &piece, 1);
    return number ? write_fail(err, "write", part->b.path, number) : 0;
}

int state_disk_part_fd(const struct state_disk_part *part) { return part->b.fd; }

int state_disk_part_end(struct state_disk_part *part, bool complete, struct state_disk_version *version,
                        struct rod_error *err) {
    struct state_disk_item item = {.not_synced = true};
    if (complete) item.rc = put_in_place(&item, &part->b);
    if (!complete || item.rc) unlink(part->b.beside);
    close(part->b.fd);
    free(part);
    if (version) *version = item.version;
    if (item.rc && err) *err = item.err;
    return item.rc;
}

int state_disk_try(const char *dir) {
    static const struct state_bytes some = {"RODSTATE", 8};
    char pattern[PATH_BYTES], beside[PATH_BYTES];
    int fd, number = 0;
    errno = ENAMETOOLONG;
    if (path_of_name(dir, "try", "." LEFTOVER_MARK "XXXXXX", pattern, NULL) || beside_open(pattern, beside, &fd, NULL))
        return errno;
    number = write_all(fd, &some, 1);
    if (!number && fsync(fd)) number = errno;
    if (unlink(beside) && !number) number = errno;
    close(fd);
    return number || !sync_folder(dir, "", NULL) ? number : errno;
}

/* ---- reading ---- */

/* Fewer than n only at the end of the file; -1: errno. */
static ssize_t read_up_to(int fd, void *dst, size_t n) {
    size_t got = 0;
    while (got < n) {
        ssize_t r = read(fd, (char *)dst + got, n - got < WRITE_MAX ? n - got : WRITE_MAX);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) return -1;
        if (!r) break;
        got += (size_t)r;
    }
    return (ssize_t)got;
}

int state_disk_open(const char *dir, const char *name, struct state_disk_file *out, struct rod_error *err) {
    char path[PATH_BYTES];
    struct stat info;
    const int rc = path_of_name(dir, name, "", path, err);
    if (rc) return rc;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe answers at once and is refused */
    if (fd < 0) return io_fail(err, "open", path, errno);
    if (fstat(fd, &info) || !S_ISREG(info.st_mode)) {
        close(fd);
        return rod_fail(err, ROD_ESTATE, "%.300s is not a regular file", path);
    }
    out->fd = fd;
    out->version = version_of(&info);
    const size_t n = strlen(path), kept = n < sizeof out->path ? n : sizeof out->path - 1;
    memcpy(out->path, path + (n - kept), kept + 1);
    return 0;
}

int state_disk_get(struct state_disk_file *file, uint64_t at, void *dst, size_t n_bytes, size_t *n_read,
                   struct rod_error *err) {
    assert(file->fd >= 0);
    const ssize_t n = lseek(file->fd, (off_t)at, SEEK_SET) < 0 ? -1 : read_up_to(file->fd, dst, n_bytes);
    if (n < 0) return io_fail(err, "read", file->path, errno);
    *n_read = (size_t)n;
    return 0;
}

void state_disk_close(struct state_disk_file *file) {
    if (file->fd >= 0) close(file->fd);
    file->fd = -1;
}

int state_disk_stat(const char *dir, const char *name, struct state_disk_version *out, struct rod_error *err) {
    char path[PATH_BYTES];
    struct stat info;
    const int rc = path_of_name(dir, name, "", path, err);
    if (rc) return rc;
    if (stat(path, &info)) return io_fail(err, "look at", path, errno);
    if (!S_ISREG(info.st_mode)) return rod_fail(err, ROD_ESTATE, "%.300s is not a regular file", path);
    *out = version_of(&info);
    return 0;
}

void state_disk_touch(const char *dir, const char *name, int64_t unix_s) {
    char path[PATH_BYTES];
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = (time_t)unix_s}};
    if (!path_of_name(dir, name, "", path, NULL)) utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW);
}

/* ---- second names ---- */

static bool gives_no_name(int number) {
    return number == EMLINK || number == EPERM || number == EOPNOTSUPP || number == ENOSYS || number == EXDEV;
}

int state_disk_link(const char *dir, const char *name, const char *second, struct rod_error *err) {
    char from[PATH_BYTES], to[PATH_BYTES];
    int rc = path_of_name(dir, name, "", from, err);
    if (!rc) rc = path_of_name(dir, second, "", to, err);
    if (rc) return rc;
    if (link(from, to) && (errno != EEXIST || unlink(to) || link(from, to))) {
        if (gives_no_name(errno))
            return rod_fail(err, ROD_EUNSUPPORTED, "the file system gives %.300s no second name", from);
        return io_fail(err, "link", from, errno);
    }
    rc = sync_folder(dir, "after a link sync the folder", err);
    if (rc) unlink(to);
    return rc;
}

/* ---- removing ---- */

void state_disk_drop(const char *dir, const char *name) {
    char path[PATH_BYTES];
    if (!path_of_name(dir, name, "", path, NULL)) unlink(path);
}

int state_disk_remove(const char *dir, const char *name, struct rod_error *err) {
    char path[PATH_BYTES];
    int rc = path_of_name(dir, name, "", path, err);
    if (rc) return rc;
    if (unlink(path)) return io_fail(err, "remove", path, errno);
    return sync_folder(dir, "after a removal sync the folder", err);
}

/* A name that open_beside may have made. */
static bool is_beside(const char *file) {
    char name[STATE_DISK_MAX_NAME + 1];
    const char *mark = strstr(file, "." LEFTOVER_MARK);
    size_t n = mark ? (size_t)(mark - file) : 0;
    if (!n || n > STATE_DISK_MAX_NAME || strlen(mark) != strlen("." LEFTOVER_MARK) + 6) return false;
    memcpy(name, file, n);
    name[n] = 0;
    return name_is_good(name);
}

/* Whose lock can be taken has no writer any more. 1: removed; 0: it is being written, or gone by itself; -1: errno. */
static int remove_leftover(int folder, const char *file) {
    int fd = openat(folder, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? 0 : -1;
    int rc = state_disk_lock(fd, LOCK_EX | LOCK_NB);
    if (!rc && state_disk_has_name(folder, file, fd))
        rc = unlinkat(folder, file, 0) ? (errno == ENOENT ? 0 : -1) : 1;
    else if (rc && errno == EWOULDBLOCK)
        rc = 0;
    int number = errno;
    close(fd);
    errno = number;
    return rc;
}

int state_disk_sweep(const char *dir, uint32_t *n_removed, struct rod_error *err) {
    uint32_t n = 0;
    int rc = 0;
    DIR *list = opendir(dir);
    if (!list) return io_fail(err, "open the folder", dir, errno);
    struct dirent *entry;
    while (!rc && (errno = 0, entry = readdir(list))) {
        if (!is_beside(entry->d_name)) continue;
        int removed = remove_leftover(dirfd(list), entry->d_name);
        if (removed < 0)
            rc = rod_fail(err, ROD_EIO, "cannot remove the leftover %.80s/%.240s: %s", dir, entry->d_name,
                          strerror(errno));
        n += removed > 0;
    }
    if (!rc && errno) rc = io_fail(err, "read the folder", dir, errno);
    closedir(list);
    if (n_removed) *n_removed = n;
    return rc;
}

int state_disk_stat_part(const char *dir, const char *file, struct state_disk_version *out, struct rod_error *err) {
    char path[PATH_BYTES];
    struct stat info;
    const int n = snprintf(path, sizeof path, "%s/%s", dir, file);
    if (!is_beside(file) || n < 0 || n >= PATH_BYTES)
        return rod_fail(err, ROD_ENOTFOUND, "%.200s is no part of a file", file);
    if (lstat(path, &info) || !S_ISREG(info.st_mode)) return io_fail(err, "look at", path, errno);
    *out = version_of(&info);
    return 0;
}

int state_disk_remove_part(const char *dir, const char *file, struct rod_error *err) {
    struct state_disk_version version;
    int rc = state_disk_stat_part(dir, file, &version, err);
    const int folder = rc ? -1 : open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (rc) return rc;
    if (folder < 0) return io_fail(err, "open the folder", dir, errno);
    const int removed = remove_leftover(folder, file);
    if (removed < 0) rc = io_fail(err, "remove", file, errno);
    if (!removed) rc = rod_fail(err, ROD_EBUSY, "%.200s is being written.", file);
    close(folder);
    return rc;
}
