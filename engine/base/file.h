/* file.h - a whole file as bytes, up to a bound, or the reason why not.
 *
 * A file that is not there and a file that cannot be read are different answers: a caller may do without the first, and
 * never guesses what the second would have said. A link that leads nowhere is there.
 * Ownership: the caller owns the bytes. No other copy of them stays in memory, as they may be secrets. Threads: any;
 * calls block while they read.
 */
#ifndef FILE_H
#define FILE_H

#include <stddef.h>

struct rod_error;

enum file_verdict {
    FILE_READ,
    FILE_MISSING,
    FILE_IRREGULAR, /* a folder, a pipe, a device; where FILE_REGULAR_ONLY is asked for */
    FILE_TOO_LARGE,
    FILE_IO, /* `number` says why */
    FILE_NO_MEMORY
};

enum file_kinds {
    FILE_REGULAR_ONLY, /* a pipe is refused at once and not waited for */
    FILE_ANY_KIND
};

struct file_bytes {
    char *data; /* malloc'd, with a zero behind its end */
    size_t n;
    int number; /* errno of FILE_IO, ENOENT of FILE_MISSING */
};

/* Every verdict but FILE_READ leaves data NULL. */
enum file_verdict file_read(const char *path, enum file_kinds kinds, size_t max_bytes, struct file_bytes *out);

enum file_verdict file_read_fd(int fd, enum file_kinds kinds, size_t max_bytes, struct file_bytes *out);

/* Overwrites the bytes, and what reading them left on the stack, and frees them; data may be NULL. */
void file_wipe(struct file_bytes *bytes);

char *file_path(const char *dir, const char *name); /* dir/name, malloc'd; NULL: no memory */
/* dir/name, a regular file of a checkpoint. ROD_ENOTFOUND: not there. ROD_EMODEL: not regular, or too large. ROD_EIO,
 * ROD_ENOMEM. Messages name the path. */
int file_load(const char *dir, const char *name, size_t max_bytes, struct file_bytes *out, struct rod_error *err);

#endif
