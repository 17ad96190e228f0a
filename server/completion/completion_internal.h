/* completion_internal.h - a completion, as completion.c (answers) and the files of its way in share it.
 *
 * Ownership: a completion owns everything in it but the call and the key, which it holds. It is freed when the call has
 * ended, no choice is open in the engine and no work is on the pool. Threads: the loop thread; while `working`, the
 * pool's thread alone, which writes request, way, prompts, grammar, turn and of the answer tags and digest. Invariants:
 * no event comes after the last one of a choice; `over` means that the answer is complete, or that nobody reads it; a
 * completion of a session has one choice. Which API the answer is for stands in answer.form, and nothing here asks it.
 */
#ifndef COMPLETION_INTERNAL_H
#define COMPLETION_INTERNAL_H

#include "completion.h"
#include "server/api/api_conversation.h"
#include "recall.h"

struct completion_choice { /* a request of the engine; what it says is in answer.choices */
    struct completion *completion;
    uint32_t index, prompt;
    uint64_t ticket, last_ns; /* last_ns: of the last delivery, 0 before the first */
    struct rod_ids said;      /* the tokens so far, where the recall keeps the answer */
    size_t said_cap;
    bool open; /* the engine will send more */
};

struct completion_prompt {
    struct answer_prompt shown;                             /* the tokens, and the text if the answer repeats it */
    size_t *marks, n_marks;                                 /* where the messages of a chat end in the tokens */
    struct rod_breakpoint breakpoints[ROD_MAX_BREAKPOINTS]; /* [n_breakpoints] that cache_control asks for */
    uint32_t n_breakpoints;
    bool read; /* by the engine, or begun */
};

struct completion_account {   /* of the key */
    struct key *key;          /* of the call; NULL without keys. Held */
    uint32_t queue_share;     /* the key's, of the queue and of grammars' memory; 0: all */
    uint32_t n_counted;       /* among the key's requests in flight, until the completion ends: its choices */
    struct key_tokens tokens; /* taken from its minute: what it may use at most */
    uint64_t answer_tok;      /* of all choices */
    uint64_t max_sessions;    /* 0 = a quota, as in rod_session_new */
};

struct completion_head { /* tools that stand in the prompt though none may be called */
    char *text;          /* their lines, each with a NUL */
    const char **lines;  /* [n] */
    size_t n;
};

struct completion_way { /* in: from the body to requests of the engine */
    char *body;
    size_t body_len;
    char *header_session, *header_key;          /* or NULL */
    char *asked;                                /* the session in the path, of a question beside it; or NULL */
    char header_name[API_CONVERSATION_MAX + 1]; /* of a conversation, "" = none that is one */
    const char *name_header;                    /* that gives it; NULL = none */
    char tenant[72];                            /* the owner of its sessions */
    uint64_t waited_ns;                         /* for a store, as rod_request.waited_ns */
    struct pool_work work;
    bool is_parsed, failed; /* failed: err is the answer */
    struct api_error err;
    struct rod_ids *bad; /* [n_bad] bad_words as tokens */
    size_t n_bad;
    struct recall_place place;       /* of the answer in its conversation, where the recall keeps it */
    struct completion_head kept;     /* tools of the thread, where the request has none */
    const struct rod_message *begun; /* the beginning of the text that the grammar describes, of the request; or NULL */
    bool lazy;                       /* the grammar is on from the first tag on */
};

struct completion_turn {    /* of a session */
    struct rod_turn *asked; /* for the engine, until its request has it; NULL = none */
    struct rod_turn
        *again;        /* of a whole answer: for its second try, if another server goes on with the session first */
    bool is, replayed; /* is: the completion is a turn */
    bool tried;        /* once before */
};

struct completion_times {
    uint64_t started_ns, sent_ns, first_ns, queue_ns;
};

struct completion {
    struct server *server;
    struct http_call *call; /* NULL when the http request has ended */
    struct list_link link;  /* in the server's completions */
    struct completion_account account;
    struct completion_way way;
    struct completion_turn turn;
    struct completion_times times;
    struct api_request request;
    struct completion_prompt *prompts;
    size_t n_prompts;
    struct rod_grammar *grammar; /* NULL = any text */
    struct answer answer;
    struct buf notes;                  /* of a named conversation, not written yet: u32 length and bytes each */
    struct buf sent;                   /* of the answer, where it is kept for its Idempotency-Key */
    bool repeats;                      /* it is, until its end */
    struct completion_choice *said;    /* whose end waits until they are written; NULL = none */
    struct completion_choice *choices; /* [answer.n_choices] */
    uint32_t n_open;
    bool working, over, streaming, slow; /* over: answered; streaming: the stream has begun; slow: cut */
};

/* ---- completion_session.c ---- */
bool completion_session_headers(struct completion *c);     /* false: out of memory */
bool completion_session_waits(const struct completion *c); /* the next one may wait for files */
/* A header alone that names a session of turns: its text would begin from nothing. False, with way.err filled. */
bool completion_session_check(struct completion *c);
int completion_session_open(struct completion *c, struct rod_error *err); /* fills turn, if the request is one */
int completion_session_encode(struct completion *c, const char *text, size_t len, int32_t **ids, size_t *n_ids,
                              struct rod_error *err);
/* For a second try: without a label. NULL: out of memory. */
struct rod_turn *completion_session_copy(const struct rod_turn *turn);
/* On the loop thread, when the answer's id is known. */
int completion_session_label(struct completion *c, struct rod_error *err);
void completion_session_error(const struct completion *c, struct api_error *err, int code);
void completion_session_discard(struct server *server, const char *tenant, const char *id); /* in the background */

/* ---- completion_request.c ---- */
int completion_request_submit(struct completion *c, struct rod_error *err); /* all choices at once */
/* The turn.again of a whole answer: nothing has been said. */
int completion_request_again(struct completion *c, struct rod_error *err);

/* ---- completion_cache.c ---- */
void completion_cache_places(struct completion *c, struct completion_prompt *p); /* the breakpoints of its prompt */

/* ---- completion_recall.c ---- */
void completion_recall_find(struct completion *c); /* earlier answers among the messages of a chat get their tokens */
void completion_recall_take(struct completion_choice *choice, const struct rod_event *event);
void completion_recall_put(const struct completion_choice *choice); /* the answer is complete */

/* ---- completion_notes.c ---- */
bool completion_notes_wait(const struct completion *c); /* the next one may wait for files */
void completion_notes_open(struct completion *c);       /* the recall learns what files have of the conversation */
void completion_notes_put(struct completion *c, const struct rod_message *answer); /* into notes */
void completion_notes_write(struct completion *c);                                 /* waits for files */

/* ---- completion_grammar.c ---- */
int completion_grammar_open(struct completion *c, struct rod_error *err); /* of the answer and of its calls */

/* Whether a conversation's Idempotency-Key has answered it: with the answer of an equal request, or an error. */
bool completion_repeat(struct completion *c);
/* Before the first byte a real status; after it an error event. */
void completion_fail(struct completion *c, const struct api_error *err);
void completion_fail_code(struct completion *c, int code, const char *message);
void completion_fail_no_memory(struct completion *c);
void completion_maybe_free(struct completion *c);

/* [*n] tools that the prompt begins with: the request's, or those that its thread had. */
static inline const char *const *completion_head(const struct completion *c, size_t *n) {
    *n = c->way.kept.n ? c->way.kept.n : c->request.tools.n_head;
    return c->way.kept.n ? c->way.kept.lines : (const char *const *)c->request.tools.lines;
}

/* The completion that is a member of the server's list; NULL for NULL. */
static inline struct completion *completion_of(struct list_link *link) {
    return link ? LIST_OF(link, struct completion, link) : NULL;
}
static inline struct completion *completion_first(const struct server *s) {
    return completion_of(list_first(&s->completions));
}
static inline struct completion *completion_next(const struct completion *c) {
    return completion_of(list_next(&c->server->completions, &c->link));
}

#endif
