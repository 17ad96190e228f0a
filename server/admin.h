/* admin.h - the second listener, on a thread of its own.
 *
 * Ownership: the caller owns the admin until admin_close. Threads: the loop thread.
 */
#ifndef ADMIN_H
#define ADMIN_H

#include "server/call/server.h"

struct admin;
/* given: as in http.h. Results as of http_open. */
int admin_open(struct server *server, int given, struct admin **out, char *message, size_t size);
uint16_t admin_port(const struct admin *admin);
const char *admin_host(const struct admin *admin);
void admin_close(struct admin *admin); /* NULL is fine; ends its thread */

#endif
