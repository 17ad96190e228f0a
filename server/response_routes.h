/* response_routes.h - the routes of responses beside the answers themselves.
 *
 * Threads: the loop thread; the work is on the pool.
 */
#ifndef RESPONSE_ROUTES_H
#define RESPONSE_ROUTES_H

#include "server/call/http_call.h"

void response_routes_count(struct http_call *call); /* POST /v1/responses/input_tokens */
void response_routes_get(struct http_call *call);   /* GET /v1/responses/{id} */
void response_routes_items(struct http_call *call); /* GET /v1/responses/{id}/input_items */

#endif
