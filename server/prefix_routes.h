/* prefix_routes.h - the routes of pinned prefixes, for the admin key: all are jobs on the pool. */
#ifndef PREFIX_ROUTES_H
#define PREFIX_ROUTES_H

#include "server/call/http_call.h"

void prefix_routes_pin(struct http_call *call);
void prefix_routes_get(struct http_call *call);
void prefix_routes_list(struct http_call *call);
void prefix_routes_unpin(struct http_call *call);

#endif
