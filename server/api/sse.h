/* sse.h - server-sent events: the words around JSON values, pings and the end.
 *
 * Invariant: a frame is SSE_DATA, one line, SSE_END. JSON written by buf_json holds no raw line break, so nothing that
 * a model says can end a frame.
 */
#ifndef SSE_H
#define SSE_H

#define SSE_CONTENT_TYPE "text/event-stream; charset=utf-8"

#define SSE_NAME "event: " /* then a name and a line break, before SSE_DATA: an event with a name */
#define SSE_DATA "data: "
#define SSE_END  "\n\n"
#define SSE_PING ": ping\n\n" /* a comment: clients skip it */
#define SSE_DONE SSE_DATA "[DONE]" SSE_END

#endif
