/* listen_fds.h - sockets that listen already when the process begins: systemd's socket units hand them over, and keep
 * them open across a restart (sd_listen_fds's protocol: descriptors from 3 on, which LISTEN_FDS counts and
 * LISTEN_FDNAMES names).
 *
 * Own code instead of libsystemd, as in notify.h. Threads: at the start, before there are others.
 */
#ifndef LISTEN_FDS_H
#define LISTEN_FDS_H

#include <stddef.h>
#include <sys/types.h>

struct listen_fds {
    int port, admin; /* descriptors; 0 = none. A socket with the name admin is the admin port's */
};

/* What the three variables say to the process `self` (a variable that is not there is NULL; for another process they
 * say nothing, and sockets without a process are nobody's). Pure. 0, or -1 with message filled. */
int listen_fds_parse(const char *count, const char *pid, const char *names, pid_t self, struct listen_fds *out,
                     char *message, size_t size);
/* Parses the environment's variables and removes them. The sockets belong to the caller: they are not
 * inherited any more, and do not block. 0, or -1 with message filled. */
int listen_fds_take(struct listen_fds *out, char *message, size_t size);

#endif
