/* nonblocking_writer.h - writes to a file descriptor whose reader may be slow or gone: a log, a first line. No call
 * waits for a reader.
 *
 * Where a pipe is full or a terminal is stopped, the bytes are dropped, and the caller is told. The descriptor is
 * shared with other processes (fd 2 of a shell), so its O_NONBLOCK stays as it is. Regular files are written as ever.
 * Ownership: the descriptor is the caller's; reopened is the writer's. Threads: one at a time. Invariant: at most one
 * of is_file, is_socket; a reader takes complete pieces, but for one that a full pipe cut: a line break follows
 * it.
 */
#ifndef NONBLOCKING_WRITER_H
#define NONBLOCKING_WRITER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* At most so many bytes go to a pipe in one piece or not at all. */
#define NONBLOCKING_WRITER_MAX_BYTES PIPE_BUF

struct nonblocking_writer {
    int fd, reopened; /* reopened: the same pipe or terminal, opened again with O_NONBLOCK; -1 = none */
    bool is_file, is_socket;
    bool is_torn; /* the last bytes went in part: a line break comes first */
};

void nonblocking_writer_open(struct nonblocking_writer *o, int fd);
void nonblocking_writer_close(struct nonblocking_writer *o);
/* Whether all of it went. To what is no regular file, at most NONBLOCKING_WRITER_MAX_BYTES. */
bool nonblocking_writer_put(struct nonblocking_writer *o, const char *data, size_t n);

#endif
