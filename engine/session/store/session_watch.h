/* session_watch.h - which files of a folder have changed, as inotify reports: changes by other servers of this machine
 * are known at once, at a cost proportional to the changes. Changes by other machines on a shared disk are not
 * reported; for those the folder is read from time to time.
 *
 * Ownership: the descriptor is the watch's. Threads: the caller holds one lock around all calls.
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
/* Calls changed for each name that changed since the last call; a name may come twice, and without a change. False:
 * the names are unknown: at the first call, after a loss of events, when the folder is another one, on a system without
 * watches. Then the caller reads the whole folder, after this call. */
bool session_watch_take(struct session_watch *watch, const char *dir, void (*changed)(void *arg, const char *file),
                        void *arg);

#endif
