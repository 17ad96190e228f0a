/* session_lease.c - see session_lease.h. Between the opening of a file and its lock one server may end and another
 * begin: the file is then gone, or another one has its name. So the lock counts only while the file has its name, and
 * a file is removed under that name only by the holder of such a lock. */
#include "session_lease.h"
#include "engine/state/state_disk.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define LEASE_END ".lease"
enum { PATH_BYTES = 4096 };

int session_lease_take(const char *dir, const char *name, int *out, struct rod_error *err) {
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s/%s" LEASE_END, dir, name);
    if (n < 0 || n >= PATH_BYTES) return rod_fail(err, ROD_EIO, "state_dir %.200s...: the path is too long", dir);
    for (;;) {
        const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return rod_fail(err, ROD_EIO, "state_dir: cannot create the lease %.300s: %s", path, strerror(errno));
        if (state_disk_lock(fd, LOCK_EX | LOCK_NB)) {
            const int number = errno;
            close(fd);
            if (number == EWOULDBLOCK) return rod_fail(err, ROD_EBUSY, "Another server holds the session.");
            return rod_fail(err, ROD_EIO, "state_dir: cannot lock the lease %.300s: %s", path, strerror(number));
        }
        if (state_disk_has_name(AT_FDCWD, path, fd)) {
            *out = fd;
            return 0;
        }
        close(fd);
    }
}

void session_lease_end(const char *dir, const char *name, int fd) {
    char path[PATH_BYTES];
    assert(fd >= 0); /* the lease is held */
    const int n = snprintf(path, sizeof path, "%s/%s" LEASE_END, dir, name);
    if (n > 0 && n < PATH_BYTES && state_disk_has_name(AT_FDCWD, path, fd)) unlink(path);
    close(fd);
}

static void lease_sweep_one(int folder, const char *file) {
    const int fd = openat(folder, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (!state_disk_lock(fd, LOCK_EX | LOCK_NB) && state_disk_has_name(folder, file, fd)) unlinkat(folder, file, 0);
    close(fd);
}

void session_lease_sweep(const char *dir) {
    DIR *list = opendir(dir);
    if (!list) return;
    for (struct dirent *entry; (entry = readdir(list));) {
        const size_t n = strlen(entry->d_name), n_end = strlen(LEASE_END);
        if (n > n_end && !strcmp(entry->d_name + n - n_end, LEASE_END)) lease_sweep_one(dirfd(list), entry->d_name);
    }
    closedir(list);
}
