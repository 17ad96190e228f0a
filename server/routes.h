/* routes.h - the table of routes, as handlers of a transport; and whether the server is ready.
 *
 * Threads: the handlers run on the loop of their transport.
 */
#ifndef ROUTES_H
#define ROUTES_H

#include "server/call/server.h"

struct http_handlers routes_handlers(struct server *server);
struct http_handlers routes_admin_handlers(struct server *server); /* of the admin thread's listener */
/* NULL when requests are taken, else why not: "loading", "draining", "failed", "stalled". Any thread. */
const char *routes_unready(const struct server *server);
/* For how long no step has ended though work waits, or the loop has not turned. Any thread. */
uint64_t routes_stalled_ns(const struct server *server);

#endif
