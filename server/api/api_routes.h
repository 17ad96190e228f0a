/* api_routes.h - the bodies of the routes beside answers, and what they show: sessions, tokenizing, models.
 *
 * Ownership: what is parsed owns its strings; its _fini frees them. Rendering appends to a buf. Threads: any. Pure.
 */
#ifndef API_ROUTES_H
#define API_ROUTES_H

#include "answer.h"
#include "api_conversation.h"

struct api_session_new { /* POST /v1/sessions, and .../fork with an id alone; NULL = not given */
    char *id, *from;
    bool has_ttl, pin, has_keep;
    uint64_t ttl_s;
    uint32_t keep_turns;
};
/* No body is an empty one. */
int api_parse_session_new(const char *body, size_t len, bool fork, struct api_session_new *out, struct api_error *err);
void api_session_new_fini(struct api_session_new *s);

/* PATCH /v1/sessions/{id}: pin, ttl_s and keep_turns, each optional, and nothing else. No body is an empty one. */
int api_parse_session_change(const char *body, size_t len, struct rod_session_change *out, struct api_error *err);

/* POST /v1/sessions/{id}/rewind: turns or version. */
int api_parse_session_rewind(const char *body, size_t len, struct rod_session_rewind *out, struct api_error *err);

struct api_tokenize { /* POST /tokenize: a prompt (n_messages = 0) or messages */
    char *text;
    size_t len;
    struct rod_message *messages;
    size_t n_messages;
    struct api_tools tools;
    bool token_strs, offsets;
    bool pieces, plain; /* plain: the answer has llama.cpp's form, tokens alone; pieces: each with its text */
    bool parse_special, add_special; /* recognise special tokens in the text; put the tokenizer's own in front */
    struct api_chat_end end;         /* of messages */
};
int api_parse_tokenize(const char *body, size_t len, const struct api_defaults *defaults, struct api_tokenize *out,
                       struct api_error *err);
void api_tokenize_fini(struct api_tokenize *t);
/* POST /apply-template: messages and end of an api_tokenize. */
int api_parse_template(const char *body, size_t len, const struct api_defaults *defaults, struct api_tokenize *out,
                       struct api_error *err);
struct api_detokenize {
    int32_t *ids;
    size_t n_ids;
    bool skip_special, offsets;
};
int api_parse_detokenize(const char *body, size_t len, const struct api_defaults *defaults, struct api_detokenize *out,
                         struct api_error *err); /* the caller frees ids */

/* {"id":7,"piece":" a"},...; a piece that is no text is an array of its bytes. */
void api_render_pieces(struct buf *out, const int32_t *ids, size_t n_ids, const struct api_vocab *vocab);
/* "[[0,4],...]": where each token lies in the text, in characters; a part of a character has the whole one, and what
 * the text does not show (skip_special, or a token that was put in front of it) is empty. "null" where the tokens are
 * not the text: a normalizer has changed it. */
void api_render_offsets(struct buf *out, const char *text, size_t len, const int32_t *ids, size_t n_ids,
                        const struct api_vocab *vocab);

void api_render_session(struct buf *out, const struct rod_session_info *info);
/* The name in the body of POST /finish_session. 0, or -1 with err filled. */
int api_parse_finish(const char *body, size_t len, char name[API_CONVERSATION_MAX + 1], struct api_error *err);
void api_render_conversation(struct buf *out, const struct rod_conversation_info *info);
void api_render_conversations(struct buf *out, const struct rod_conversation_info *infos, size_t n, bool more);
void api_render_sessions(struct buf *out, const struct rod_session_info *infos, size_t n, bool more);
void api_render_deleted(struct buf *out, const char *object, const char *id);

#endif
