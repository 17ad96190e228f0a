/* sse.c - see sse.h. */
#include "sse.h"

void sse_begin(struct buf *b) { buf_add(b, "data: ", 6); }

void sse_name(struct buf *b, const char *event) {
    buf_puts(b, "event: ");
    buf_puts(b, event);
    buf_putc(b, '\n');
}

void sse_end(struct buf *b) { buf_add(b, "\n\n", 2); }

void sse_ping(struct buf *b) { buf_puts(b, ": ping\n\n"); }

void sse_done(struct buf *b) { buf_puts(b, "data: [DONE]\n\n"); }
