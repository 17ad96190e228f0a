/* response_routes.h - the routes of responses beside the answers themselves.
 *
 * Threads: the loop thread; the work is on the pool.
 */
#ifndef RESPONSE_ROUTES_H
#define RESPONSE_ROUTES_H

#include "server/call/job.h"

void response_routes_get(struct http_call *call);   /* GET /v1/responses/{id} */
void response_routes_items(struct http_call *call); /* GET /v1/responses/{id}/input_items */
int response_routes_delete(struct job *j, struct rod_error *err);

#endif
