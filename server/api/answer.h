/* answer.h - an answer while it is made: what the engine has said so far, in words that are no API's. A form (form.h)
 * shows it.
 *
 * Ownership: an answer owns its choices, its frames and the form's state; answer_fini frees them. It borrows the
 * request. Threads: one at a time. Pure: no I/O, no clock, no engine.
 */
#ifndef ANSWER_H
#define ANSWER_H

#include "request.h"

#define ANSWER_ID_BYTES   64
#define API_CALL_ID_BYTES 32

struct api_usage {
    uint64_t prompt_tok, completion_tok, cached_tok;
    uint64_t accepted_tok, rejected_tok; /* of drafts */
    uint64_t created_tok;                /* behind the cached ones, up to the last place that cache_control has kept */
    uint64_t created_long_tok;           /* of these, those kept for an hour */
    uint64_t kept_tools;                 /* of the thread, in the prompt of a request that has none */
};

struct api_call { /* of a tool: whole, or a piece of one in a stream */
    uint32_t index;
    const char *id, *name; /* NULL: a later piece */
    const char *arguments; /* the bytes that the model generated */
    size_t len;
};

struct answer_item {            /* a text, or a call that the model made */
    const char *name;           /* the request's; NULL: a text */
    char id[API_CALL_ID_BYTES]; /* of a call */
    struct buf text;            /* or arguments */
};

struct api_vocab { /* the bytes of a token, or NULL */
    const char *(*bytes)(void *arg, int32_t id, size_t *len);
    void *arg;
    bool as_ids; /* log-probabilities of answers show "token_id:7" in place of text */
};

struct api_logprobs { /* JSON fragments that grow with the tokens; chats use `tokens` alone */
    struct buf tokens, values, tops, offsets;
    uint64_t n_chars; /* begun in the text so far; a broken one is U+FFFD there */
    char part[4];     /* of the last of them, while it is not whole */
    uint32_t n_part;
};

enum answer_token { ANSWER_TOKEN_SHOWN, ANSWER_TOKEN_HIDDEN, ANSWER_TOKEN_END }; /* in the text; not; behind it */

struct answer_prompt {
    int32_t *ids;
    size_t n_ids;
    char *echo; /* its text, if the answer repeats it, else NULL */
    size_t echo_len;
};

struct answer_choice {
    struct answer *answer;
    const struct answer_prompt *prompt;
    uint32_t index;
    bool opened;               /* of a stream: the form's opening has left */
    bool fresh;                /* tokens have come whose scores and ids no frame has shown */
    bool due;                  /* and a frame shall show them, be its text empty */
    bool failed;               /* memory ran out */
    struct api_split split;    /* where the request has tools */
    struct answer_item *items; /* [n_items] in order: of a whole answer, and of a stream where its end repeats it, or
                                  the answer keeps them */
    size_t n_items, items_cap;
    struct api_logprobs logprobs;
    struct buf prompt_logprobs, ids; /* ids: of tokens, as text. Each if asked for */
    uint64_t completion_tok;
    enum rod_finish reason;
    char *stop_string; /* NULL = none */
    int32_t stop_id;   /* -1 = none */
};

struct answer {
    const struct answer_form *form;
    const struct api_request *request;
    char id[ANSWER_ID_BYTES];               /* of a replayed answer the first one's */
    const char *served_model, *fingerprint; /* the server's */
    char *model;                            /* of a replayed answer: the model that made it; NULL = the one served */
    int64_t created_unix_s;
    uint8_t digest[16]; /* of the body */
    struct rod_call_tags tags;
    struct api_vocab vocab; /* the server's, as the request wants tokens shown */
    struct answer_choice *choices;
    uint32_t n_choices;
    struct api_usage usage;
    char session[API_SESSION_ID_MAX + 1]; /* once the turn has ended: its session; "" = none */
    uint64_t session_version;
    bool session_unseen;  /* as in rod_event */
    bool keeps_items;     /* of streams too */
    struct buf frame;     /* of a stream: what is to be sent */
    size_t opening_bytes; /* of frames that repeat prompts, which come at once */
    bool failed;          /* memory ran out beside the frame */
    void *state;          /* the form's, zeroes at first */
};

/* Choices and the form's state. False: out of memory. */
bool answer_begin(struct answer *answer, uint32_t n_choices);
/* Nothing has been said. Before the first frame. False: out of memory. */
bool answer_restart(struct answer *answer);
/* Gives a choice its prompt, before its first token. */
void answer_set_prompt(struct answer_choice *choice, const struct answer_prompt *prompt);
void answer_fini(struct answer *answer);
/* Text that the model generated next, cut into texts and calls where the request has tools. They are kept, or become
 * frames, or both. */
void answer_push(struct answer_choice *choice, const char *text, size_t len);
void answer_end(struct answer_choice *choice); /* before the finish, whose reason it has */
/* The texts of the choice as one; joined, the caller's, holds them if they are several. */
const char *answer_text(const struct answer_choice *choice, struct buf *joined, size_t *len);
/* The calls among the items, malloc'd; NULL with *n > 0: out of memory. */
struct api_call *answer_calls(const struct answer_choice *choice, size_t *n);
static inline const char *answer_session(const struct answer *a) { return *a->session ? a->session : NULL; }
static inline const char *answer_model(const struct answer *a) {
    if (a->model) return a->model;
    return a->request && a->request->model ? a->request->model : a->served_model;
}

/* What is kept beside an answer to give it again with its id, time and model: "ID TIME MODEL". NULL: no memory. */
char *answer_label(const struct answer *answer);
/* Takes them from a label, which comes from a file: a malformed one changes nothing. */
void answer_relabel(struct answer *answer, const char *label);

#endif
