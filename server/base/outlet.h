/* outlet.h - bytes to a file descriptor that perhaps nobody reads: a log, a first line. No call waits for a reader.
 *
 * A pipe that is full, a terminal that was stopped: the bytes are dropped, and the caller hears of it. The descriptor
 * is shared with others (fd 2 of a shell), so its O_NONBLOCK stays as it is. Regular files are written as ever.
 * Who owns what: the descriptor is the caller's; one that the outlet opens beside it is closed by outlet_close.
 * Threads: one at a time.
 */
#ifndef OUTLET_H
#define OUTLET_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* At most so many bytes go to a pipe in one piece or not at all. */
#define OUTLET_PIECE_BYTES PIPE_BUF

struct outlet {
    int fd, own;     /* own: the same pipe or terminal, opened again without waiting; -1 = none */
    bool file, plug; /* a regular file; a socket */
    bool torn;       /* the last bytes went in part: a line break comes first */
};

void outlet_open(struct outlet *o, int fd);
void outlet_close(struct outlet *o);
/* Whether all of it went. To what is no regular file, at most OUTLET_PIECE_BYTES. */
bool outlet_put(struct outlet *o, const char *data, size_t n);

#endif
