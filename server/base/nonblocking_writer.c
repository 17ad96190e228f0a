/* nonblocking_writer.c - see nonblocking_writer.h. */
#include "nonblocking_writer.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

void nonblocking_writer_open(struct nonblocking_writer *w, int fd) {
    struct stat st;
    *w = (struct nonblocking_writer){.fd = fd, .reopened = -1};
    if (fstat(fd, &st)) return;
    w->is_file = S_ISREG(st.st_mode);
    w->is_socket = S_ISSOCK(st.st_mode);
    if (!S_ISFIFO(st.st_mode) && !isatty(fd)) return;
    /* With flags of its own. Where the system refuses (the pipe of another user), poll alone has to do: it is right as
     * long as nobody else fills the pipe in the moment before the write. */
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    w->reopened = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

void nonblocking_writer_close(struct nonblocking_writer *w) {
    if (w->reopened >= 0) close(w->reopened);
    w->reopened = -1;
}

/* write_file and the other writers return the bytes that went, 0 also for an error. */
static size_t write_file(int fd, const char *data, size_t n) {
    size_t n_sent = 0;
    while (n_sent < n) {
        ssize_t sent = write(fd, data + n_sent, n - n_sent);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) break;
        n_sent += (size_t)sent;
    }
    return n_sent;
}

static size_t write_now(const struct nonblocking_writer *w, const char *data, size_t n) {
    if (w->is_file) return write_file(w->fd, data, n);
    struct pollfd ready = {.fd = w->reopened >= 0 ? w->reopened : w->fd, .events = POLLOUT};
    if (poll(&ready, 1, 0) != 1 || !(ready.revents & POLLOUT)) return 0;
    ssize_t sent = w->is_socket ? send(ready.fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL) : write(ready.fd, data, n);
    return sent < 0 ? 0 : (size_t)sent;
}

bool nonblocking_writer_put(struct nonblocking_writer *w, const char *data, size_t n) {
    assert(!w->is_file || !w->is_socket);
    assert(!w->is_file || w->reopened < 0);
    if (!w->is_file && n > NONBLOCKING_WRITER_MAX_BYTES) return false;
    if (w->is_torn && write_now(w, "\n", 1) != 1) return false;
    const size_t sent = write_now(w, data, n);
    w->is_torn = sent && sent < n;
    return sent == n;
}
