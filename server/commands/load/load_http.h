/* load_http.h - what the load generator reads: an HTTP/1.1 response, the server-sent events in it, one completion
 * chunk.
 *
 * What it is: three small push parsers. Each is fed bytes as they come from a socket, in pieces of any size, and calls
 * back for what is complete; the result does not depend on how the bytes were cut.
 * Ownership: the caller owns the structs; load_sse holds a growing buffer that load_sse_fini frees. Bytes given to
 * a callback are valid during the call only. Threads: none of its own, one thread a struct. Pure: no I/O, no clock, no
 * state outside the structs. Invariant: any input either parses or gives -1 with `fault` set; memory stays below
 * LOAD_LINE_MAX and LOAD_EVENT_MAX.
 */
#ifndef LOAD_HTTP_H
#define LOAD_HTTP_H

#include "server/base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { LOAD_LINE_MAX = 8192, LOAD_HEADERS_MAX = 65536, LOAD_EVENT_MAX = 1 << 20 };

enum load_http_state {
    LOAD_HTTP_STATUS, /* status line */
    LOAD_HTTP_HEADERS,
    LOAD_HTTP_BODY,      /* body_left bytes, by Content-Length */
    LOAD_HTTP_UNTIL_EOF, /* neither length nor chunks: the body ends with the connection */
    LOAD_HTTP_CHUNK_SIZE,
    LOAD_HTTP_CHUNK_DATA, /* body_left bytes of this chunk */
    LOAD_HTTP_CHUNK_END,  /* the line end after a chunk */
    LOAD_HTTP_TRAILERS,
    LOAD_HTTP_DONE
};

struct load_http {
    enum load_http_state state;
    int status;        /* 200 ... once the status line was read */
    bool keep_alive;   /* the connection may carry another request after this response */
    bool event_stream; /* Content-Type is text/event-stream */
    bool chunked, has_length;
    uint64_t length_bytes, body_left;
    size_t headers_bytes;
    size_t n_line;
    char line[LOAD_LINE_MAX];
    const char *fault; /* why -1 was returned; a constant string */
};

void load_http_init(struct load_http *http);
/* Reads up to n bytes and stops behind the end of the response; *used says how many were read. body is called with the
 * decoded body (no chunk framing), in pieces. Returns 0, or -1 with http->fault. */
int load_http_feed(struct load_http *http, const char *bytes, size_t n, size_t *used,
                   void (*body)(void *arg, const char *bytes, size_t n), void *arg);
/* The connection ended. 0 if the response is complete (then state is LOAD_HTTP_DONE), else -1 with http->fault. */
int load_http_eof(struct load_http *http);

struct load_sse {
    struct buf line; /* the unfinished one */
    struct buf data; /* the data lines of the unfinished event, joined by \n */
    bool has_data;   /* at least one data line */
    bool after_cr;   /* a \n that comes now belongs to the \r before it */
    const char *fault;
};

void load_sse_init(struct load_sse *sse);
void load_sse_fini(struct load_sse *sse);
/* event is called with the data of each complete event, NUL-terminated; comments and other fields are skipped.
 * Returns 0, or -1 with sse->fault (an event over LOAD_EVENT_MAX, no memory). */
int load_sse_feed(struct load_sse *sse, const char *bytes, size_t n,
                  void (*event)(void *arg, const char *data, size_t n), void *arg);

struct load_chunk {
    bool done;                 /* [DONE] */
    bool text;                 /* some choice has text that is not empty, or tokens' ids */
    bool finish;               /* some choice has a finish_reason */
    bool error;                /* an error object; message says which */
    int64_t completion_tokens; /* of usage, -1 = no usage here */
    int64_t prompt_tokens;
    char message[160];
};
/* Reads the data of one event, or a whole JSON answer. 0, or -1 if it is not JSON of that kind. */
int load_chunk_parse(const char *data, size_t n, struct load_chunk *chunk);

#endif
