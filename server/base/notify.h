/* notify.h - what systemd is told: ready, reloading, stopping, alive (sd_notify's protocol: a datagram of text).
 *
 * Own code instead of libsystemd: the protocol is one sendto that its manual promises to keep, and the library would be
 * a dependency of every installation for it. Without NOTIFY_SOCKET nothing happens. Any thread.
 */
#ifndef NOTIFY_H
#define NOTIFY_H

#include <stdint.h>

/* "READY=1\nSTATUS=..."; 0 also without a listener, -1 when the message was not sent. */
int notify_send(const char *text);
uint64_t notify_watchdog_ms(void); /* the half of WATCHDOG_USEC: how often to say WATCHDOG=1; 0 = never */

#endif
