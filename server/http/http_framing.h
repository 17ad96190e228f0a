/* http_framing.h - what a request says about its own length. What a proxy in front might read differently than we do is
 * a fault, and the connection closes, so that no second request is smuggled in the body of the first. */
#ifndef HTTP_FRAMING_H
#define HTTP_FRAMING_H

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>

struct http_framing {
    bool chunked, expect;
    size_t length; /* Content-Length, 0 = none */
};

/* In the handler's first call, with its method and version (they point into the bytes that came). NULL, or the fault.
 */
const char *http_framing_fault(struct MHD_Connection *connection, const char *method, const char *version,
                               struct http_framing *out);

#endif
