/* session_lease.h - which of several servers on one folder may write a session: a lock (flock) on a file beside it.
 *
 * Ownership: the descriptor is the lease; its owner gives it back with session_lease_end. It ends with the process in
 * any case. Threads: any. Invariant: between take and end nobody else, in this process or in another, has
 * the lease of that name; no lease leaves its file behind but after a crash, and session_lease_sweep removes that.
 */
#ifndef SESSION_LEASE_H
#define SESSION_LEASE_H

#include "engine/rodimus.h"

/* 0 with *fd; ROD_EBUSY: another has it; ROD_EIO. name: of a state file (state_disk.h). */
int session_lease_take(const char *dir, const char *name, int *fd, struct rod_error *err);
void session_lease_end(const char *dir, const char *name, int fd);
/* Removes the files of leases that nobody has. */
void session_lease_sweep(const char *dir);

#endif
