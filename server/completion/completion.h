/* completion.h - a completion from its body to its last byte: completion.c, completion_open.c.
 *
 * Ownership: a completion owns itself; completion.c says when it is freed. Threads: the loop thread.
 */
#ifndef COMPLETION_H
#define COMPLETION_H

#include "server/call/http_call.h"

void completion_start(struct http_call *call, const struct answer_form *form);
void completion_event(struct rod_event *event);         /* takes the event */
void completion_gone(struct completion *completion);    /* the client left: its choices are cancelled */
void completion_done(struct completion *completion);    /* the http request ends; the call dies after this */
void completion_tick(uv_timer_t *timer);                /* pings; the timer's data is the server */
void completion_end_all(struct server *server);         /* after the drain's deadline: an error to each */
bool completion_any_works(const struct server *server); /* has work on the pool */
void completion_free_all(struct server *server);        /* after the engine is closed */
void completion_session_free(struct rod_turn *turn);    /* a turn that no request has */
enum { COMPLETION_LOG_FIELDS = 15 };
int completion_log_fields(const struct completion *completion, struct log_field fields[COMPLETION_LOG_FIELDS]);

#endif
