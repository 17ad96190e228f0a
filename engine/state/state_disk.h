/* state_disk.h - files in a folder that are either the old one or the new one, whole, whatever is killed when.
 *
 * A file is written beside its place under a name of its own (NAME.tmp-XXXXXX), synced, renamed, and the folder synced;
 * only then is it committed. What is being written carries a lock (flock): so what a crash left behind can be told from
 * what another process, also on another machine that shares the folder, is writing now.
 *
 * Ownership: bytes that were read are the caller's. Threads: any, each call stands alone; of two writers of one
 * name the last to rename wins. Invariant: no call leaves a file that it opened or a lock that it took.
 */
#ifndef STATE_DISK_H
#define STATE_DISK_H

#include "state_file.h"

#define STATE_DISK_MAX_NAME 200 /* [A-Za-z0-9._-], not beginning with "." and without ".tmp-" */

enum { STATE_DISK_ETAG_BYTES = 64 };

/* Which file it is: another one stands under the name when any of these differs. */
struct state_disk_version {
    uint64_t inode, mtime_ns, n_bytes;
    uint64_t disk_bytes;              /* in blocks, as the disk has them */
    char etag[STATE_DISK_ETAG_BYTES]; /* of an object in a store (state_home.h), whose inode is a hash of it; else "" */
};

/* dir/name := the parts one after the other, for many files at once, each well or badly for itself: all are written
 * before the first sync waits, and the folder is synced once, so that they share the disk's waiting. rc: ROD_EIO naming
 * path and reason (disk full, read-only, ...): then the old file stands, unless in_place: then the new one stands, but
 * may not outlive a power cut. */
struct state_disk_item {
    const char *name;
    const struct state_bytes *parts;
    size_t n_parts;
    bool only_new;        /* one that is there stays, and this is ROD_EEXISTS */
    const char *replaces; /* of a store: the etag of the version that this replaces; NULL or "": whatever is there */
    bool not_synced;      /* a power cut may take it, or leave a part of it: readers check what they read */
    struct state_disk_version version; /* afterwards: of the new file */
    int rc;
    bool in_place;
    struct rod_error err;
};
void state_disk_write_all(const char *dir, struct state_disk_item *items, size_t n);

/* A file that comes in pieces: beside its place until it is complete, then instead of what has its name. A power cut
 * may take it, or leave a part of it: readers check what they read. ROD_EIO; ROD_ENOMEM. */
struct state_disk_part;
int state_disk_part_begin(const char *dir, const char *name, struct state_disk_part **out, struct rod_error *err);
int state_disk_part_put(struct state_disk_part *part, const void *bytes, size_t n, struct rod_error *err);
int state_disk_part_fd(const struct state_disk_part *part); /* to read what came so far */
/* It is complete, or goes. */
int state_disk_part_end(struct state_disk_part *part, bool complete, struct state_disk_version *version,
                        struct rod_error *err);

/* A file that is open to be read: one version, whatever is renamed to its name meanwhile. */
struct state_disk_file {
    int fd;
    struct state_disk_version version;
    char path[256]; /* its end, for messages */
};
/* ROD_ENOTFOUND, ROD_EIO, ROD_ESTATE: no regular file. */
int state_disk_open(const char *dir, const char *name, struct state_disk_file *out, struct rod_error *err);
/* n_read: fewer only at the file's end. */
int state_disk_get(struct state_disk_file *file, uint64_t at, void *dst, size_t n_bytes, size_t *n_read,
                   struct rod_error *err);
void state_disk_close(struct state_disk_file *file);
/* Without opening it. Errors as state_disk_open. */
int state_disk_stat(const char *dir, const char *name, struct state_disk_version *out, struct rod_error *err);

/* Its time is this one, if there is such a file and it may be set. */
void state_disk_touch(const char *dir, const char *name, int64_t unix_s);

/* A second name for a file, in the place of whatever has it, for good when it returns. ROD_ENOTFOUND; ROD_EUNSUPPORTED:
 * the file system gives that file no more names; ROD_EIO. */
int state_disk_link(const char *dir, const char *name, const char *second, struct rod_error *err);
/* Removes a file that nobody needs, soon; it may be there again after a power cut. */
void state_disk_drop(const char *dir, const char *name);
/* Removes the file, for good when it returns. ROD_ENOTFOUND, ROD_EIO. */
int state_disk_remove(const char *dir, const char *name, struct rod_error *err);

/* The file that is open as fd stands under this name in the folder (AT_FDCWD with a path). Whoever locks a file asks
 * after the lock: another one may have come in its place since the file was opened. */
bool state_disk_has_name(int folder, const char *name, int fd);
int state_disk_lock(int fd, int how); /* flock, which signals do not end */

/* Does what a write does, with a small file that is gone afterwards. 0, or the errno of what the folder does not take.
 */
int state_disk_try(const char *dir);

/* At start: removes what writers that are gone left behind. n_removed may be NULL. Other files are not touched. */
int state_disk_sweep(const char *dir, uint32_t *n_removed, struct rod_error *err);
/* What a write that did not end left behind, NAME.tmp-XXXXXX. */
int state_disk_stat_part(const char *dir, const char *file, struct state_disk_version *out, struct rod_error *err);
/* ROD_EBUSY: it is being written. */
int state_disk_remove_part(const char *dir, const char *file, struct rod_error *err);

#endif
