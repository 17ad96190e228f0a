/* file.c - see file.h. */
#include "file.h"
#include "fail.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FIRST_BYTES = 1 << 16, READ_MAX = 1 << 30 };

struct reader {
    int fd;
    char *data;
    size_t n, cap; /* cap: without the zero */
};

static bool reader_grow(struct reader *r, size_t cap) {
    assert(cap > r->cap && r->n <= r->cap);
    char *data = malloc(cap + 1); /* not realloc, which may leave a copy behind */
    if (!data) return false;
    if (r->data) {
        memcpy(data, r->data, r->n);
        explicit_bzero(r->data, r->n);
        free(r->data);
    }
    r->data = data;
    r->cap = cap;
    return true;
}

/* One byte more than the bound tells a file that is too large, whatever size it says. */
static enum file_verdict reader_run(struct reader *r, size_t size, size_t max_bytes) {
    size_t cap = size < max_bytes ? size + 1 : max_bytes + 1;
    if (cap < FIRST_BYTES && max_bytes >= FIRST_BYTES && !size) cap = FIRST_BYTES;
    for (;;) {
        if (r->n == r->cap) {
            if (r->n > max_bytes) return FILE_TOO_LARGE;
            if (r->cap) cap = r->cap > max_bytes / 2 ? max_bytes + 1 : 2 * r->cap;
            if (!reader_grow(r, cap)) return FILE_NO_MEMORY;
        }
        const size_t left = r->cap - r->n;
        const ssize_t got = read(r->fd, r->data + r->n, left < READ_MAX ? left : READ_MAX);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return FILE_IO;
        if (!got) return r->n > max_bytes ? FILE_TOO_LARGE : FILE_READ;
        r->n += (size_t)got;
    }
}

enum file_verdict file_read_fd(int fd, enum file_kinds kinds, size_t max_bytes, struct file_bytes *out) {
    *out = (struct file_bytes){0};
    assert(max_bytes < SIZE_MAX - 2);
    struct stat info;
    struct reader r = {.fd = fd};
    enum file_verdict verdict = FILE_READ;
    if (fstat(fd, &info)) {
        out->number = errno;
        verdict = FILE_IO;
    } else if (kinds == FILE_REGULAR_ONLY && !S_ISREG(info.st_mode)) {
        verdict = FILE_IRREGULAR;
    } else if (S_ISREG(info.st_mode) && (uint64_t)info.st_size > max_bytes) {
        verdict = FILE_TOO_LARGE;
    } else {
        verdict = reader_run(&r, S_ISREG(info.st_mode) ? (size_t)info.st_size : 0, max_bytes);
        if (verdict == FILE_IO) out->number = errno;
    }
    out->data = r.data;
    out->n = r.n;
    if (verdict == FILE_READ)
        out->data[out->n] = 0;
    else
        file_wipe(out);
    assert((verdict == FILE_READ) == (out->data != NULL));
    return verdict;
}

enum file_verdict file_read(const char *path, enum file_kinds kinds, size_t max_bytes, struct file_bytes *out) {
    struct stat info;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | (kinds == FILE_REGULAR_ONLY ? O_NONBLOCK : 0));
    if (fd < 0) {
        *out = (struct file_bytes){.number = errno};
        return out->number == ENOENT && lstat(path, &info) ? FILE_MISSING : FILE_IO;
    }
    const enum file_verdict verdict = file_read_fd(fd, kinds, max_bytes, out);
    close(fd);
    return verdict;
}

/* What a parser of the bytes left below this function: where a library's function is bound at its first call, the
 * loader saves vector registers on the stack, and they hold pieces of the text. */
__attribute__((noinline)) static void wipe_stack_below(void) {
    char below[32 << 10];
    explicit_bzero(below, sizeof below);
}

void file_wipe(struct file_bytes *bytes) {
    wipe_stack_below();
    if (bytes->data) explicit_bzero(bytes->data, bytes->n);
    free(bytes->data);
    bytes->data = NULL;
    bytes->n = 0;
}

char *file_path(const char *dir, const char *name) {
    char *path = NULL;
    return asprintf(&path, "%s/%s", dir, name) < 0 ? NULL : path;
}

int file_load(const char *dir, const char *name, size_t max_bytes, struct file_bytes *out, struct rod_error *err) {
    char *path = file_path(dir, name);
    *out = (struct file_bytes){0};
    if (!path) return rod_fail_no_memory(err);
    int rc = 0;
    switch (file_read(path, FILE_REGULAR_ONLY, max_bytes, out)) {
    case FILE_READ: break;
    case FILE_MISSING: rc = rod_fail(err, ROD_ENOTFOUND, "%.300s: no such file", path); break;
    case FILE_IRREGULAR: rc = rod_fail(err, ROD_EMODEL, "%.300s: not a regular file", path); break;
    case FILE_TOO_LARGE: rc = rod_fail(err, ROD_EMODEL, "%.300s: larger than %zu bytes", path, max_bytes); break;
    case FILE_IO: rc = rod_fail(err, ROD_EIO, "%.300s: cannot read: %s", path, strerror(out->number)); break;
    case FILE_NO_MEMORY: rc = rod_fail_no_memory(err); break;
    }
    free(path);
    return rc;
}
