/* routes.h - the table of routes, as handlers of a transport; and whether the server is ready.
 *
 * Threads: the handlers run on the loop of their transport.
 */
#ifndef ROUTES_H
#define ROUTES_H

#include "server/call/server.h"

struct http_handlers routes_handlers(struct server *server);
/* NULL when requests are taken, else why not: "loading", "draining", "failed", "stalled". Any thread. */
const char *routes_unready(const struct server *server);
/* Of these, what a restart cures. */
bool routes_want_restart(const char *why);
/* For how long no step has ended though work waits, or the loop has not turned. Any thread. */
uint64_t routes_stalled_ns(const struct server *server);

#endif
