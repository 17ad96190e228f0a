/* outlet.c - see outlet.h. */
#include "outlet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

void outlet_open(struct outlet *o, int fd) {
    struct stat st;
    *o = (struct outlet){.fd = fd, .own = -1};
    if (fstat(fd, &st)) return;
    o->file = S_ISREG(st.st_mode);
    o->plug = S_ISSOCK(st.st_mode);
    if (!S_ISFIFO(st.st_mode) && !isatty(fd)) return;
    /* With flags of its own. Where the system refuses (the pipe of another user), poll alone has to do: it is right as
     * long as nobody else fills the pipe in the moment before the write. */
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    o->own = open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

void outlet_close(struct outlet *o) {
    if (o->own >= 0) close(o->own);
    o->own = -1;
}

/* These return the bytes that went, 0 also for an error. */
static size_t put_file(int fd, const char *data, size_t n) {
    size_t n_sent = 0;
    while (n_sent < n) {
        ssize_t sent = write(fd, data + n_sent, n - n_sent);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) break;
        n_sent += (size_t)sent;
    }
    return n_sent;
}

static size_t put_now(const struct outlet *o, const char *data, size_t n) {
    if (o->file) return put_file(o->fd, data, n);
    struct pollfd ready = {.fd = o->own >= 0 ? o->own : o->fd, .events = POLLOUT};
    if (poll(&ready, 1, 0) != 1 || !(ready.revents & POLLOUT)) return 0;
    ssize_t sent = o->plug ? send(ready.fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL) : write(ready.fd, data, n);
    return sent < 0 ? 0 : (size_t)sent;
}

bool outlet_put(struct outlet *o, const char *data, size_t n) {
    if (!o->file && n > OUTLET_PIECE_BYTES) return false;
    if (o->torn && put_now(o, "\n", 1) != 1) return false;
    const size_t sent = put_now(o, data, n);
    o->torn = sent && sent < n;
    return sent == n;
}
