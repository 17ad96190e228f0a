/* session_routes.h - the routes of sessions and of their states: jobs, but the list, whose query is read on the loop.
 */
#ifndef SESSION_ROUTES_H
#define SESSION_ROUTES_H

#include "server/call/job.h"

void session_routes_list(struct http_call *call);
int session_routes_create(struct job *j, struct rod_error *err);
int session_routes_fork(struct job *j, struct rod_error *err);
int session_routes_get(struct job *j, struct rod_error *err);
int session_routes_change(struct job *j, struct rod_error *err);
int session_routes_delete(struct job *j, struct rod_error *err);
int session_routes_export(struct job *j, struct rod_error *err);
int session_routes_import(struct job *j, struct rod_error *err);
size_t session_routes_state_max(const struct server *server); /* bytes of the largest state that is taken */

#endif
