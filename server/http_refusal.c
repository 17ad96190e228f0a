/* http_refusal.c - request lines that libmicrohttpd 0.9.75 does not hand on whole: of three strings what follows a zero
 * byte is not seen. The line with the zero byte is whole in its memory: the parts must lie one behind the other. 1.0
 * refuses zero bytes. */
#include "http_internal.h"

#include <string.h>

static bool old_library(void) { return !strncmp(MHD_get_version(), "0.", 2); }

/* ---- the request's line ---- */

void *http_on_line(void *http, const char *uri, struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct http_connection *c = info ? info->socket_context : NULL;
    if (!c || !uri) return NULL;
    c->uri = uri;
    c->uri_end = uri + strlen(uri);
    (void)http;
    return NULL;
}

bool http_line_holds_zero(const struct http_connection *c, const char *method, const char *version) {
    if (!c->uri || !old_library()) return false;
    const char *at = method + strlen(method) + 1;
    while (at < c->uri && *at == ' ') at++;
    return at != c->uri || c->uri_end + 1 != version;
}
