/* admin.h - the second listener, on a thread of its own.
 *
 * Ownership: the caller owns the admin until admin_close. Threads: the loop thread.
 */
#ifndef ADMIN_H
#define ADMIN_H

#include "server.h"

struct admin;
int admin_open(struct server *server, struct admin **out, char *message, size_t size); /* results as of http_open */
uint16_t admin_port(const struct admin *admin);
void admin_close(struct admin *admin); /* NULL is fine; ends its thread */

#endif
