/* conversation_notes.c - see conversation_notes.h. */
#include "conversation_notes.h"
#include "engine/base/bytes.h"
#include "engine/base/fail.h"
#include "engine/base/file.h"
#include "engine/state/state_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define FILE_NAME CONVERSATION_NOTES_FILE
#define MARK      NOTES_MARK
enum {
    MARK_BYTES = NOTES_MARK_BYTES,
    FRAME_BYTES = NOTES_FRAME_BYTES,
    PATH_BYTES = 4096,
    FIRST_BYTES = 2048,
    MOST_BYTES = NOTES_MOST_BYTES
};

/* ---- the bytes ---- */

static uint32_t record_check(const void *bytes, size_t n) { return (uint32_t)XXH3_64bits(bytes, n); }

/* The length of the record at this place. 0: no complete record begins here. */
static size_t record_at(const unsigned char *at, size_t n) {
    if (n < FRAME_BYTES) return 0;
    const size_t length = (size_t)bytes_get(at, 4);
    if (length > n - FRAME_BYTES || record_check(at + FRAME_BYTES, length) != bytes_get(at + 4, 4)) return 0;
    return FRAME_BYTES + length;
}

size_t notes_whole(const void *bytes, size_t n, size_t *n_first) {
    const unsigned char *from = bytes;
    *n_first = 0;
    if (n < MARK_BYTES || memcmp(from, MARK, MARK_BYTES) != 0) return 0;
    size_t at = MARK_BYTES;
    for (size_t length; (length = record_at(from + at, n - at)); at += length)
        if (!*n_first) *n_first = length;
    return at;
}

unsigned char *notes_framed(const void *record, size_t n) {
    unsigned char *bytes = malloc(FRAME_BYTES + n);
    if (!bytes) return NULL;
    bytes_put(bytes_put(bytes, n, 4), record_check(record, n), 4);
    memcpy(bytes + FRAME_BYTES, record, n);
    return bytes;
}

int notes_first(const void *bytes, size_t n_bytes, void **first, size_t *n, struct rod_error *err) {
    size_t n_first = 0;
    notes_whole(bytes, n_bytes, &n_first);
    if (!n_first) return rod_fail(err, ROD_ESTATE, "The notes of a conversation do not say whose it is.");
    *n = n_first - FRAME_BYTES;
    if (!(*first = malloc(*n + 1))) return rod_fail_no_memory(err);
    memcpy(*first, (const char *)bytes + MARK_BYTES + FRAME_BYTES, *n);
    return 0;
}

/* Leaves out the checks. */
static size_t strip_checks(char *bytes, size_t n) {
    size_t to = 0;
    for (size_t at = 0; at < n;) {
        const size_t length = (size_t)bytes_get((unsigned char *)bytes + at, 4);
        memmove(bytes + to, bytes + at, 4);
        memmove(bytes + to + 4, bytes + at + FRAME_BYTES, length);
        at += FRAME_BYTES + length;
        to += 4 + length;
    }
    return to;
}

size_t notes_records(void *bytes, size_t whole, size_t n_first) {
    const size_t from = MARK_BYTES + n_first;
    memmove(bytes, (char *)bytes + from, whole - from);
    return strip_checks(bytes, whole - from);
}

size_t notes_newest(const void *bytes, size_t whole, size_t n_first) {
    size_t from = MARK_BYTES + n_first;
    if (whole < CONVERSATION_NOTES_BYTES) return from;
    while (whole - from > CONVERSATION_NOTES_BYTES / 2)
        from += record_at((const unsigned char *)bytes + from, whole - from);
    return from;
}

bool notes_have(const void *bytes, size_t whole, const void *record, size_t n) {
    const unsigned char *from = bytes;
    for (size_t at = MARK_BYTES, length; at < whole; at += length) {
        length = record_at(from + at, whole - at);
        if (length == n && !memcmp(from + at, record, n)) return true;
    }
    return false;
}

/* ---- files ---- */

static int io_fail(struct rod_error *err, const char *dir, int number) {
    return rod_fail(err, number == ENOENT ? ROD_ENOTFOUND : ROD_EIO, "%.300s/" FILE_NAME ": %s", dir, strerror(number));
}

static void path_of(const char *dir, char path[PATH_BYTES]) { snprintf(path, PATH_BYTES, "%s/" FILE_NAME, dir); }

static int write_at(int fd, const void *bytes, size_t n, size_t at) {
    while (n) {
        const ssize_t put = pwrite(fd, bytes, n, (off_t)at);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return errno;
        bytes = (const char *)bytes + put;
        n -= (size_t)put;
        at += (size_t)put;
    }
    return 0;
}

int notes_make(const char *dir, const void *first, size_t n_first, struct rod_error *err) {
    unsigned char *record = notes_framed(first, n_first);
    if (!record) return rod_fail_no_memory(err);
    const struct state_bytes parts[] = {{MARK, MARK_BYTES}, {record, FRAME_BYTES + n_first}};
    struct state_disk_item item = {
        .name = FILE_NAME, .parts = parts, .n_parts = 2, .only_new = true, .not_synced = true};
    state_disk_write_all(dir, &item, 1);
    free(record);
    if (!item.rc || item.rc == ROD_EEXISTS) return 0;
    *err = item.err;
    return item.rc;
}

static int notes_file_read(const char *dir, struct file_bytes *out, struct rod_error *err) {
    char path[PATH_BYTES];
    path_of(dir, path);
    switch (file_read(path, FILE_REGULAR_ONLY, MOST_BYTES, out)) {
    case FILE_READ: return 0;
    case FILE_NO_MEMORY: return rod_fail_no_memory(err);
    case FILE_IRREGULAR:
    case FILE_TOO_LARGE: return rod_fail(err, ROD_ESTATE, "%.300s is no file of notes", path);
    default: return io_fail(err, dir, out->number);
    }
}

int notes_read_first(const char *dir, void **first, size_t *n, struct rod_error *err) {
    unsigned char bytes[FIRST_BYTES];
    struct state_disk_file f;
    size_t got = 0;
    int rc = state_disk_open(dir, FILE_NAME, &f, err);
    if (rc) return rc;
    rc = state_disk_get(&f, 0, bytes, sizeof bytes, &got, err);
    state_disk_close(&f);
    if (rc) return rc;
    return notes_first(bytes, got, first, n, err);
}

int notes_read(const char *dir, struct rod_notes_seen *seen, void **bytes, size_t *n, struct rod_error *err) {
    char path[PATH_BYTES];
    struct stat info;
    *bytes = NULL;
    *n = 0;
    path_of(dir, path);
    if (stat(path, &info)) return errno == ENOENT ? 0 : io_fail(err, dir, errno);
    if (seen->inode == (uint64_t)info.st_ino && seen->n_bytes == (uint64_t)info.st_size) return 0;
    struct file_bytes file;
    size_t n_first;
    const int rc = notes_file_read(dir, &file, err);
    if (rc) return rc == ROD_ENOTFOUND ? 0 : rc;
    const size_t whole = notes_whole(file.data, file.n, &n_first), from = MARK_BYTES + n_first;
    *seen = (struct rod_notes_seen){.inode = (uint64_t)info.st_ino,
                                    .n_bytes = whole}; /* a part of a record behind is cut off some day */
    if (!n_first || whole == from) {
        free(file.data);
        return 0;
    }
    *n = notes_records(file.data, whole, n_first);
    *bytes = file.data;
    return 0;
}

/* The first record and the newest ones, in half of what they may take. */
static int notes_halve(const char *dir, const struct file_bytes *file, size_t whole, size_t n_first,
                       struct rod_error *err) {
    const size_t from = notes_newest(file->data, whole, n_first);
    const struct state_bytes parts[] = {{file->data, MARK_BYTES + n_first}, {file->data + from, whole - from}};
    struct state_disk_item item = {.name = FILE_NAME, .parts = parts, .n_parts = 2, .not_synced = true};
    state_disk_write_all(dir, &item, 1);
    if (item.rc) *err = item.err;
    return item.rc;
}

/* Where the next record goes: behind the complete ones. Looks at the file where somebody else wrote, or it is full.
 * *whole 0 without an error: the file was written anew, shorter. */
static int notes_end(const char *dir, int fd, const struct rod_notes_seen *seen, size_t *whole, struct rod_error *err) {
    struct stat info;
    struct file_bytes file;
    size_t n_first;
    if (fstat(fd, &info)) return io_fail(err, dir, errno);
    *whole = (size_t)info.st_size;
    if (seen->inode == (uint64_t)info.st_ino && seen->n_bytes == *whole && *whole && *whole < CONVERSATION_NOTES_BYTES)
        return 0;
    int rc = notes_file_read(dir, &file, err);
    if (rc) return rc;
    *whole = notes_whole(file.data, file.n, &n_first);
    if (!n_first) rc = rod_fail(err, ROD_ESTATE, "%.300s/" FILE_NAME " is damaged", dir);
    if (!rc && *whole >= CONVERSATION_NOTES_BYTES) {
        rc = notes_halve(dir, &file, *whole, n_first, err);
        *whole = 0;
    }
    free(file.data);
    return rc;
}

static int notes_append(const char *dir, int fd, const unsigned char *bytes, size_t n, struct rod_notes_seen *seen,
                        size_t whole, struct rod_error *err) {
    struct stat info;
    int number = ftruncate(fd, (off_t)whole) ? errno : write_at(fd, bytes, n, whole);
    if (!number && fstat(fd, &info)) number = errno;
    if (number) return io_fail(err, dir, number);
    if (seen->inode == (uint64_t)info.st_ino && seen->n_bytes == whole) seen->n_bytes = (uint64_t)info.st_size;
    return 0;
}

/* The file, locked, once it has its name still. */
static int notes_lock(const char *dir, int *fd, struct rod_error *err) {
    char path[PATH_BYTES];
    path_of(dir, path);
    for (;;) {
        *fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (*fd < 0) return io_fail(err, dir, errno);
        if (state_disk_lock(*fd, LOCK_EX)) break;
        if (state_disk_has_name(AT_FDCWD, path, *fd)) return 0;
        close(*fd);
    }
    const int number = errno;
    close(*fd);
    return io_fail(err, dir, number);
}

int notes_add(const char *dir, const void *record, size_t n, struct rod_notes_seen *seen, struct rod_error *err) {
    unsigned char *bytes = n <= CONVERSATION_NOTES_BYTES / 4 ? notes_framed(record, n) : NULL;
    if (!bytes) return n <= CONVERSATION_NOTES_BYTES / 4 ? rod_fail_no_memory(err) : 0; /* one so long is not kept */
    size_t whole = 0;
    int rc = 0;
    while (!rc && !whole) { /* again behind a halving */
        int fd;
        if ((rc = notes_lock(dir, &fd, err))) break;
        rc = notes_end(dir, fd, seen, &whole, err);
        if (!rc && whole) rc = notes_append(dir, fd, bytes, FRAME_BYTES + n, seen, whole, err);
        close(fd);
    }
    free(bytes);
    return rc;
}
