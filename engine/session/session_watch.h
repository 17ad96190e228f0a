/* session_watch.h - which files of a folder have changed, as the kernel tells (inotify): so that what other servers of
 * this machine do is known at once, and at the cost of what they do. It does not tell what other machines do on a
 * shared disk; for them the folder is read from time to time.
 *
 * Who owns what: the descriptor is the watch's. Threads: the caller holds one lock around all calls.
 */
#ifndef SESSION_WATCH_H
#define SESSION_WATCH_H

#include <stdbool.h>

struct session_watch {
    int fd; /* -1: the system has none */
    bool on;
};

void session_watch_open(struct session_watch *watch);
void session_watch_close(struct session_watch *watch);
/* Calls changed for each name that changed since the last call; one may come twice, and without a change. False:
 * nobody knows which: the first time, where some were lost, where the folder is another one, where the system has no
 * watches. Then the caller reads all of it, after this call. */
bool session_watch_take(struct session_watch *watch, const char *dir, void (*changed)(void *arg, const char *file),
                        void *arg);

#endif
