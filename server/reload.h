/* reload.h - SIGHUP: the settings are read again.
 *
 * Threads: the loop thread.
 */
#ifndef RELOAD_H
#define RELOAD_H

#include "server/call/server.h"

struct http_tls;
void reload_settings(struct server *s, struct http_tls *tls, int argc, char **argv); /* tls: NULL = the port is plain */
void reload_warn(struct server *s, const struct http_tls *tls); /* warns of settings that work but should not stay so */

#endif
