/* messages.h - Anthropic's messages API as pure functions: its requests become those of a chat, and the answers of a
 * chat become its messages and events.
 *
 * Ownership: what is returned is the caller's. Threads: any. Invariants: no I/O, no clock, no engine; a field that
 * would change the answer and cannot be honoured is an error that names it as Anthropic does.
 */
#ifndef ANTHROPIC_H
#define ANTHROPIC_H

#include "server/api/request.h"

/* 0, or -1 with err filled. counting: of /v1/messages/count_tokens, where max_tokens may be missing. */
int anthropic_parse(const char *body, size_t len, bool counting, const struct openai_defaults *defaults,
                    struct openai_request *out, struct openai_error *err);

struct anthropic_view {     /* a message, so far or at its end */
    const char *id, *model; /* id: without "msg_" */
    const char *text;
    size_t text_len;
    enum rod_finish reason;
    const char *stop_string;         /* NULL = none */
    bool called;                     /* it ends with calls that the client is to make */
    const struct openai_call *calls; /* [n_calls] of a whole message */
    size_t n_calls;
    const struct openai_usage *usage;
    const char *session; /* NULL = none */
    uint64_t session_version;
};
void anthropic_render_message(struct buf *out, const struct anthropic_view *view);

struct anthropic_blocks { /* of a stream, so far: each is a text or a call */
    uint32_t n;
    bool text_open, call_open; /* the last one */
};
/* Events of a stream, frames and all: an opening, texts and calls with their arguments, an ending; or an error at any
 * place. */
void anthropic_render_opening(struct buf *out, const struct anthropic_view *view);
void anthropic_render_text(struct buf *out, struct anthropic_blocks *blocks, const char *text, size_t len);
void anthropic_render_call(struct buf *out, struct anthropic_blocks *blocks, const char *id, const char *name);
void anthropic_render_arguments(struct buf *out, const struct anthropic_blocks *blocks, const char *text, size_t len);
void anthropic_render_ending(struct buf *out, struct anthropic_blocks *blocks, const struct anthropic_view *view);
void anthropic_render_model(struct buf *out, const char *name, int64_t created_unix_s);
void anthropic_render_error(struct buf *out, const struct openai_error *err, const char *request_id);
void anthropic_render_error_event(struct buf *out, const struct openai_error *err, const char *request_id);

#endif
