/* systemd.h - what passes between the process and systemd: sd_notify's protocol, a datagram of text (ready, reloading,
 * stopping, alive), and sd_listen_fds's, sockets that listen already when the process begins and stay open across a
 * restart (descriptors from 3 on, which LISTEN_FDS counts and LISTEN_FDNAMES names).
 *
 * Own code instead of libsystemd: its manual promises to keep both protocols, one sendto and three variables, and the
 * library would be a dependency of every installation. Without NOTIFY_SOCKET nothing is told. Threads: any may notify;
 * listen_fds_take at the start, before there are others.
 */
#ifndef SYSTEMD_H
#define SYSTEMD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* "READY=1\nSTATUS=..."; 0 also without a listener, -1 when the message was not sent. */
int notify_send(const char *text);
uint64_t notify_watchdog_ms(void); /* the half of WATCHDOG_USEC: how often to say WATCHDOG=1; 0 = never */

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
