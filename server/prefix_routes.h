/* prefix_routes.h - the routes of pinned prefixes, for the admin key: all are jobs. */
#ifndef PREFIX_ROUTES_H
#define PREFIX_ROUTES_H

#include "server/call/job.h"

int prefix_routes_pin(struct job *j, struct rod_error *err);
int prefix_routes_get(struct job *j, struct rod_error *err);
int prefix_routes_list(struct job *j, struct rod_error *err);
int prefix_routes_unpin(struct job *j, struct rod_error *err);

#endif
