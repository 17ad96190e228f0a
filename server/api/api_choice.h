/* api_choice.h - a choice as OpenAI's completions and chats show it: what both have in it, as text.
 *
 * Ownership: a choice borrows all. Rendering appends to a buf. Threads: any. Pure.
 */
#ifndef API_CHOICE_H
#define API_CHOICE_H

#include "form.h"

struct api_choice { /* a whole choice, or the new part of one in a stream */
    uint32_t index;
    const char *text;
    size_t text_len;
    bool role;                    /* chat stream: the first chunk, which names the role */
    const struct api_call *calls; /* [n_calls] of a chat; in a stream one at most, and no text */
    size_t n_calls;
    bool no_text;                        /* a chat's content is null */
    bool called;                         /* it ends with calls that the client is to make */
    const struct api_logprobs *logprobs; /* NULL = null */
    const struct buf *token_ids;         /* fragment "1,2,3"; NULL = not asked for */
    const struct buf *prompt_ids;        /* likewise */
    const struct buf *prompt_logprobs;   /* likewise */
    bool finished;
    enum rod_finish reason;
    const char *stop_string; /* NULL = none */
    int32_t stop_id;         /* -1 = none */
    const char *session;     /* of a turn's end: its session, in the version that it made; NULL = none */
    uint64_t session_version;
};

/* What a choice shows in its next frame: with the scores and ids of its tokens if it is fresh, which it is no more. */
struct api_choice api_choice_next(struct answer_choice *choice);
struct api_choice api_choice_finish(const struct answer_choice *choice);
/* The whole choice but text, calls and prompt_ids. */
struct api_choice api_choice_whole(const struct answer_choice *choice);
/* The usage that a chunk shows; NULL: none. A choice's opening comes with its first token and does not count it. */
const struct api_usage *api_choice_usage(const struct answer_choice *choice, bool opening, struct api_usage *usage);

/* {"id":...,"object":...,"created":...,"model":...,"system_fingerprint":..., : the beginning that all chunks of an
 * answer share. id_prefix: "cmpl-" ... */
void api_put_head(struct buf *out, const char *id_prefix, const char *object, const struct answer *answer);
void api_put_part(struct buf *out, const struct buf *part); /* a fragment; what failed fails the answer */
void api_put_fragment(struct buf *out, const char *name, const struct buf *fragment); /* "name":[fragment] */
void api_put_token_ids(struct buf *out, const struct api_choice *choice);
void api_put_prompt(struct buf *out, const struct api_choice *choice); /* its ids and scores */
void api_put_finish(struct buf *out, const struct api_choice *choice); /* the last members and the brace */
/* Behind the choices of a chunk: the session, and the usage or, where it comes at the end, null; and the brace. */
void api_put_chunk_end(struct buf *out, const struct api_choice *choice, const struct api_usage *usage,
                       bool null_usage);
void api_put_usage(struct buf *out, const struct api_usage *usage);
/* The chunk behind all choices, with usage alone. */
void api_render_usage_chunk(struct buf *out, const struct buf *head, const struct api_usage *usage);
/* An error in OpenAI's form: behind the first byte of a stream, and as a body. */
void api_choice_error(struct answer *answer, const struct api_error *err, const char *request_id);
void api_refuse(struct buf *out, const struct api_error *err, const char *request_id);

#endif
