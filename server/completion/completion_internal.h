/* completion_internal.h - a completion, as completion.c (answers) and the files of its way in share it.
 *
 * Ownership: a completion owns everything in it but the call and the key, which it holds. It is freed when the call has
 * ended, no choice is open in the engine and no work is on the pool. Threads: the loop thread; while `working`, the
 * pool's thread alone, which writes request, err, prompts, bad, grammar, digest, session and response_id. Invariants:
 * no event comes after the last one of a choice; `over` means that the answer is complete, or that nobody reads it; a
 * completion of a session has one choice.
 */
#ifndef COMPLETION_INTERNAL_H
#define COMPLETION_INTERNAL_H

#include "completion.h"
#include "server/api/messages/messages.h"

struct completion_item {        /* a call that the model made; of a response also a message */
    const char *name;           /* the request's; NULL: a message */
    char id[API_CALL_ID_BYTES]; /* of a call */
    struct buf text;            /* or arguments */
};

struct completion_choice {
    struct completion *completion;
    uint32_t index, prompt;
    uint64_t ticket, last_ns;      /* last_ns: of the last delivery, 0 before the first */
    bool open, role_sent;          /* open: the engine will send more */
    struct buf text;               /* without streaming: all so far */
    struct api_split split;        /* where the request has tools */
    struct completion_item *items; /* [n_items]: of a response, and the calls of a whole chat */
    size_t n_items, items_cap;
    struct api_choice *shown; /* in a stream, during an event: what its first chunk has beside text */
    struct api_logprobs logprobs;
    struct buf prompt_logprobs; /* if asked for */
    bool prompt_begun;          /* its first token is in the two above */
    struct buf ids;             /* token ids as text, if asked for */
    uint64_t completion_tok;
    enum rod_finish reason;
    char *stop_string;
    int32_t stop_id;
};

struct completion_prompt {
    int32_t *ids;
    size_t n_ids, *marks, n_marks;                          /* marks: where the messages of a chat end in ids */
    struct rod_breakpoint breakpoints[ROD_MAX_BREAKPOINTS]; /* [n_breakpoints] that cache_control asks for */
    uint32_t n_breakpoints;
    bool read;  /* by the engine, or begun */
    char *echo; /* its text, if the answer repeats it, else NULL */
    size_t echo_len;
};

struct completion {
    struct server *server;
    struct http_call *call;   /* NULL when the http request has ended */
    struct key *key;          /* of the call; NULL without keys. Held */
    uint32_t queue_share;     /* the key's, of the queue and of grammars' memory; 0: all */
    struct key_tokens tokens; /* taken from its minute: what it may use at most */
    uint64_t answer_tok;      /* of all choices, for the key */
    uint32_t n_counted;       /* among the key's requests in flight, until the completion ends: its choices */
    struct list_link link;    /* in the server's completions */
    enum api_kind kind;
    bool is_message; /* a chat in the words of Anthropic's API */
    struct messages_blocks blocks;
    struct api_request request;
    struct api_error err;
    bool has_err;
    char *body;
    size_t body_len;
    struct pool_work work;
    struct completion_prompt *prompts;
    size_t n_prompts;
    struct rod_ids *bad;             /* bad_words as tokens */
    size_t n_bad, opening_bytes;     /* opening_bytes: of the prompts in a stream, which come at once */
    struct rod_grammar *grammar;     /* NULL = any text */
    struct rod_call_tags tags;       /* where the request has tools */
    bool lazy;                       /* the grammar is on from the first tag on */
    const struct rod_message *begun; /* the beginning of the text that the grammar describes, of the request; or NULL */
    char answer_id[SERVER_ID_BYTES]; /* of a replayed answer the first one's */
    struct completion_choice *choices;
    uint32_t n_choices, n_open;
    bool working, over, streaming, stream, slow; /* over: answered; streaming: the stream has begun; slow: cut */
    struct buf prefix, frame;
    struct api_vocab vocab; /* the server's, as the request wants tokens shown */
    struct api_usage usage;
    uint64_t started_ns, sent_ns, first_ns, queue_ns;
    int64_t created_unix_s;
    /* of a session */
    uint64_t max_sessions;                         /* of the key; 0 = a quota, as in rod_session_new */
    char tenant[72], *header_session, *header_key; /* tenant: owner of its sessions; the two headers, or NULL */
    uint8_t digest[16];                            /* of the body */
    struct rod_turn *session;                      /* for the engine, until its request has it; NULL = none */
    char session_id[API_SESSION_ID_MAX + 1];       /* once the turn has ended: its session, "" = none */
    uint64_t session_version;
    bool of_session, replayed;
    char *model; /* of a replayed answer: the name of the model that made it; NULL = the server's */
    /* of a response */
    char response_id[48];
    uint64_t sequence; /* of its stream's events */
};

/* ---- completion_session.c ---- */
bool completion_session_headers(struct completion *c); /* false: out of memory */
void completion_session_digest(struct completion *c);
int completion_session_open(struct completion *c,
                            struct rod_error *err); /* sets c->session, if the request is of one */
int completion_session_encode(struct completion *c, const char *text, size_t len, int32_t **ids, size_t *n_ids,
                              struct rod_error *err);
int completion_session_label(struct completion *c,
                             struct rod_error *err); /* on the loop thread, when the answer's id is known */
/* Gives a replayed answer the id, time and model of the first one. */
void completion_session_relabel(struct completion *c, const char *label);
void completion_session_error(const struct completion *c, struct api_error *err, int code);
void completion_session_discard(struct server *server, const char *tenant, const char *id); /* in the background */
void completion_session_free(struct rod_turn *session);
static inline const char *completion_session_of(const struct completion *c) {
    return *c->session_id ? c->session_id : NULL;
}

/* ---- completion_chunk.c ---- */
void completion_push_chunk(struct completion *c, const struct completion_choice *choice,
                           const struct api_choice *shown);

/* ---- completion_item.c ---- */
/* A new last item, or NULL: out of memory, which text.failed says. id NULL: a message. */
struct completion_item *completion_item_add(struct completion_choice *choice, const char *name, const char *id);
void completion_items_free(struct completion_choice *choice);

/* ---- completion_response.c: frames where it streams, or the whole answer ---- */
void completion_response_opening(struct completion *c);
void completion_response_text(struct completion *c, const char *text, size_t len);
void completion_response_call(struct completion *c, const char *name, const char *id); /* a call begins */
void completion_response_arguments(struct completion *c, const char *text, size_t len);
void completion_response_ending(struct completion *c);
void completion_response_whole(struct completion *c, struct buf *out);

/* ---- completion_kept.c ---- */
/* The whole answer of a response, of what its session has kept; takes what is in kept. On the pool. False: it is not of
 * this response, or damaged. */
bool completion_kept(struct server *s, const char *id, const struct rod_answer *answer, struct api_kept *kept,
                     struct buf *out);

/* ---- completion_cache.c ---- */
void completion_cache_places(struct completion *c, struct completion_prompt *p); /* the breakpoints of its prompt */

/* ---- completion_calls.c ---- */
int completion_calls_open(struct completion *c, struct rod_error *err); /* the grammar of calls, if there are tools */
void completion_calls_begin(struct completion *c, struct completion_choice *choice);
/* Text that the model generated next. In a stream its parts leave as chunks, the first with what `shown` has. */
void completion_calls_push(struct completion_choice *choice, const char *text, size_t len, struct api_choice *shown);
void completion_calls_end(struct completion_choice *choice); /* before the finish, whose reason it has */
bool completion_called(const struct completion *c, const struct completion_choice *choice);
/* Its calls, malloc'd; NULL: no memory, or none. */
struct api_call *completion_calls_view(const struct completion_choice *choice);

/* ---- completion_message.c: likewise ---- */
void completion_message_opening(struct completion *c);
void completion_message_text(struct completion *c, const char *text, size_t len);
void completion_message_part(struct completion *c, const struct api_part *part, const char *call_id);
void completion_message_ending(struct completion *c);
void completion_message_whole(struct completion *c, const struct api_choice *choice, struct buf *out);
void completion_message_error(struct completion *c, const struct api_error *err);

/* Before the first byte a real status; after it an error event. */
void completion_fail(struct completion *c, const struct api_error *err);
void completion_fail_code(struct completion *c, int code, const char *message);
void completion_fail_no_memory(struct completion *c);
void completion_maybe_free(struct completion *c);

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
