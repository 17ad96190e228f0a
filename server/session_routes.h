/* session_routes.h - the routes of sessions and of their states, on the pool.
 *
 * Threads: that of the call's loop.
 */
#ifndef SESSION_ROUTES_H
#define SESSION_ROUTES_H

#include "server/call/http_call.h"

struct job;
/* A job of the session, or response, that the path names, to be started; NULL after another answer. */
struct job *session_routes_job(struct http_call *call, void (*run)(struct job *j));
void session_routes_create(struct http_call *call);
void session_routes_list(struct http_call *call);
void session_routes_get(struct http_call *call);
void session_routes_change(struct http_call *call);
void session_routes_delete(struct http_call *call);
void session_routes_delete_response(struct http_call *call);
void session_routes_fork(struct http_call *call);
void session_routes_export(struct http_call *call);
void session_routes_import(struct http_call *call);
size_t session_routes_state_max(const struct server *server); /* bytes of the largest state that is taken */

#endif
