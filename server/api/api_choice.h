/* api_choice.h - choices as OpenAI's completions and chats show them, in chunks and whole: what their forms have in
 * common.
 *
 * Ownership: a choice borrows all. Rendering appends to a buf. Threads: any, one at a time for an answer. Pure.
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
    bool session_unseen;
};

/* What completions and chats differ in: a member of their forms. */
struct choice_style {
    const char *id_prefix, *object, *chunk_object; /* "cmpl-", ... */
    bool together; /* choices have one prompt, and open together with a role; else each opens for itself, if at all */
    const char *before_text, *behind_text;                                          /* in a choice that is text alone */
    void (*put_said)(struct buf *out, const struct api_choice *choice, bool chunk); /* any other; NULL: all are text */
    void (*put_logprobs)(struct buf *out, const struct api_logprobs *l);            /* the members of an object */
    void (*score)(struct api_logprobs *l, const struct rod_token *token, bool in_text, const struct api_vocab *vocab);
    void (*score_first)(struct api_logprobs *l, int32_t id, const struct api_vocab *vocab); /* of a prompt with echo */
};

/* {"id":...,"object":...,"created":...,"model":...,"system_fingerprint":..., : the beginning that all chunks of an
 * answer share. */
void api_put_head(struct buf *out, const struct choice_style *style, bool stream, const struct answer *answer);
/* A chunk, or a whole answer. head: api_put_head. usage NULL: left out; null_usage: "usage":null, which clients expect
 * on the other chunks when they asked for usage. */
void api_render_chunk(struct buf *out, const struct choice_style *style, const struct buf *head,
                      const struct api_choice *choice, const struct api_usage *usage, bool null_usage);
void api_render_answer(struct buf *out, const struct choice_style *style, const struct buf *head,
                       const struct api_choice *choices, size_t n_choices, const struct api_usage *usage);
void api_render_usage_chunk(struct buf *out, const struct buf *head, const struct api_usage *usage);
/* One token as text: its UTF-8, "bytes:\xE2\x80" where it is a part of a character, "token_id:7" without a tokenizer,
 * or where ids are asked for. */
void api_put_token(struct buf *out, int32_t id, bool as_id, const struct api_vocab *vocab);
void api_logprobs_clear(struct api_logprobs *l); /* empty, but the text goes on */
void api_logprobs_fini(struct api_logprobs *l);

/* The members of a form with a style (form.h). */
struct choice_state {
    struct buf head; /* of every chunk */
};
void api_choice_prompt(struct answer_choice *choice, const struct rod_token *token);
void api_choice_token(struct answer_choice *choice, const struct rod_token *token, enum answer_token place);
void api_choice_open(struct answer_choice *choice);
void api_choice_text(struct answer_choice *choice, const char *text, size_t len);
void api_choice_call(struct answer_choice *choice, const struct api_call *call);
void api_choice_finish(struct answer_choice *choice, bool last);
void api_choice_whole(struct answer *answer, struct buf *out);
void api_choice_error(struct answer *answer, const struct api_error *err, const char *request_id);
void api_choice_close(struct answer *answer);
/* The body of an error in OpenAI's form, of any route. */
void api_refuse(struct buf *out, const struct api_error *err, const char *request_id);

#endif
