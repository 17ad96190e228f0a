/* traceparent.h - the header of W3C Trace Context by which a request says of which trace it is a part.
 *
 * version-trace_id-parent_id-flags, in lower-case hexadecimal digits. The server begins no spans and asks nobody else,
 * so of the header it needs the id of the trace alone. Pure.
 */
#ifndef TRACEPARENT_H
#define TRACEPARENT_H

#include <stdbool.h>

enum { TRACE_ID_BYTES = 33 }; /* with the NUL */

/* Whether the header is one; NULL stands for no header. If not, the id is "": the standard has a header with any fault
 * ignored as a whole. Of a version to come, what stands behind the flags is passed over. */
bool traceparent_read(const char *header, char trace_id[TRACE_ID_BYTES]);

#endif
