/* messages.h - Anthropic's messages API as pure functions: its requests become those of a chat, and the answers of a
 * chat become its messages and events.
 *
 * Ownership: what is returned is the caller's. Threads: any. Invariants: no I/O, no clock, no engine; a field that
 * would change the answer and cannot be honoured is an error that names it as Anthropic does.
 */
#ifndef MESSAGES_H
#define MESSAGES_H

#include "server/api/request.h"

/* 0, or -1 with err filled. counting: of /v1/messages/count_tokens, where max_tokens may be missing. */
int messages_parse(const char *body, size_t len, bool counting, const struct api_defaults *defaults,
                   struct api_request *out, struct api_error *err);

struct messages_view {      /* a message, so far or at its end */
    const char *id, *model; /* id: without "msg_" */
    const char *text;
    size_t text_len;
    enum rod_finish reason;
    const char *stop_string;      /* NULL = none */
    bool called;                  /* it ends with calls that the client is to make */
    const struct api_call *calls; /* [n_calls] of a whole message */
    size_t n_calls;
    const struct api_usage *usage;
    const char *session; /* NULL = none */
    uint64_t session_version;
};
void messages_render_message(struct buf *out, const struct messages_view *view);

struct messages_blocks { /* of a stream, so far: each is a text or a call */
    uint32_t n;
    bool text_open, call_open; /* the last one */
};
/* Events of a stream, frames and all: an opening, texts and calls with their arguments, an ending; or an error at any
 * place. */
void messages_render_opening(struct buf *out, const struct messages_view *view);
void messages_render_text(struct buf *out, struct messages_blocks *blocks, const char *text, size_t len);
void messages_render_call(struct buf *out, struct messages_blocks *blocks, const char *id, const char *name);
void messages_render_arguments(struct buf *out, const struct messages_blocks *blocks, const char *text, size_t len);
void messages_render_ending(struct buf *out, struct messages_blocks *blocks, const struct messages_view *view);
void messages_render_model(struct buf *out, const char *name, int64_t created_unix_s);
void messages_render_error(struct buf *out, const struct api_error *err, const char *request_id);
void messages_render_error_event(struct buf *out, const struct api_error *err, const char *request_id);

#endif
