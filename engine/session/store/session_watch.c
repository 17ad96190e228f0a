/* session_watch.c - see session_watch.h. */
#include "session_watch.h"

#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <sys/inotify.h>
#include <unistd.h>

/* A file was renamed to its name, removed, written by hand, or has a new time. */
#define EVENTS (IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_ATTRIB | IN_CLOSE_WRITE | IN_DELETE_SELF | IN_MOVE_SELF)
enum { READ_BYTES = 16 << 10 };

void session_watch_open(struct session_watch *w) {
    *w = (struct session_watch){.fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK)};
}

void session_watch_close(struct session_watch *w) {
    if (w->fd >= 0) close(w->fd);
    w->fd = -1;
}

/* A new descriptor: the old one may still hold obsolete events. */
static void watch_restart(struct session_watch *w, const char *dir) {
    session_watch_close(w);
    session_watch_open(w);
    w->on = w->fd >= 0 && inotify_add_watch(w->fd, dir, EVENTS | IN_ONLYDIR) >= 0;
}

bool session_watch_take(struct session_watch *w, const char *dir, void (*changed)(void *arg, const char *file),
                        void *arg) {
    _Alignas(struct inotify_event) char bytes[READ_BYTES];
    assert(!w->on || w->fd >= 0);
    bool known = w->on;
    while (known) {
        const ssize_t n = read(w->fd, bytes, sizeof bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return true;
        known = n > 0;
        for (ssize_t at = 0; at < n;) {
            const struct inotify_event *e = (const struct inotify_event *)(const void *)(bytes + at);
            at += (ssize_t)(sizeof *e + e->len);
            if (e->mask & (IN_Q_OVERFLOW | IN_IGNORED | IN_DELETE_SELF | IN_MOVE_SELF | IN_UNMOUNT))
                known = false;
            else if (e->len)
                changed(arg, e->name);
        }
    }
    watch_restart(w, dir);
    return false;
}
