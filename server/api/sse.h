/* sse.h - server-sent events: how JSON values, pings and the end are framed. Pure.
 *
 * Invariant: a frame is "data: ", one line, an empty line. JSON written by buf_json holds no raw line break, so nothing
 * that a model says can end a frame.
 */
#ifndef SSE_H
#define SSE_H

#include "server/base/buf.h"

#define SSE_CONTENT_TYPE "text/event-stream; charset=utf-8"

void sse_begin(struct buf *b);                   /* then the JSON value, then sse_end */
void sse_name(struct buf *b, const char *event); /* before sse_begin: an event with a name */
void sse_end(struct buf *b);
void sse_ping(struct buf *b); /* a comment: clients skip it */
void sse_done(struct buf *b); /* data: [DONE] */

#endif
