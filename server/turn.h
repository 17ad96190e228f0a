/* turn.h - a completion, chat or response from its body to its last byte: turn.c, turn_open.c.
 *
 * Who owns what: a turn owns itself; turn.c says when it is freed. Threads: the loop thread.
 */
#ifndef TURN_H
#define TURN_H

#include "http_call.h"

void turn_start(struct http_call *call, enum openai_kind kind);
void turn_event(struct rod_event *event);         /* takes the event */
void turn_gone(struct turn *turn);                /* the client left: its choices are cancelled */
void turn_done(struct turn *turn);                /* the http request ends; the call dies after this */
void turn_tick(uv_timer_t *timer);                /* pings; the timer's data is the server */
void turn_end_all(struct server *server);         /* the drain's time is over: an error to each */
bool turn_any_works(const struct server *server); /* on the pool */
void turn_free_all(struct server *server);        /* after the engine is closed */
int turn_log_fields(const struct turn *turn, struct log_field *fields, int max);

#endif
