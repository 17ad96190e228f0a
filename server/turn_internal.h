/* turn_internal.h - what turn.c (answers) and turn_open.c (the way in) share. See turn.c for a turn's life.
 *
 * Who owns what: a turn owns everything in it. Threads: the loop thread; while `working`, the pool's thread alone,
 * which writes request, err, prompts, bad, grammar, digest, session and response_id.
 */
#ifndef TURN_INTERNAL_H
#define TURN_INTERNAL_H

#include "turn.h"

struct turn_choice {
    struct turn *turn;
    uint32_t index, prompt;
    uint64_t ticket, last_ns; /* last_ns: of the last delivery, 0 before the first */
    bool open, role_sent;     /* open: the engine will send more */
    struct buf text;          /* without streaming: all so far */
    struct openai_logprobs logprobs;
    struct buf prompt_logprobs; /* if asked for */
    bool prompt_begun;          /* its first token is in the two above */
    struct buf ids;             /* token ids as text, if asked for */
    uint64_t completion_tok;
    enum rod_finish reason;
    char *stop_string;
    int32_t stop_id;
};

struct turn_prompt {
    int32_t *ids;
    size_t n_ids, *marks, n_marks; /* marks: where the messages of a chat end in ids */
    bool read;                     /* by the engine, or begun */
    char *echo;                    /* its text, if it is to be said again, else NULL */
    size_t echo_len;
};

struct turn {
    struct server *server;
    struct http_call *call;   /* NULL when the http request has ended */
    struct key *key;          /* whose tokens they are; NULL without keys. Held */
    struct key_tokens tokens; /* taken from its minute: what the turn may use at most */
    uint64_t answer_tok;      /* of all choices, for the key */
    bool counted;             /* among the key's requests in flight, until the turn ends */
    struct turn *prev, *next;
    enum openai_kind kind;
    struct openai_request request;
    struct openai_error err;
    bool has_err;
    char *body;
    size_t body_len;
    struct pool_work work;
    struct turn_prompt *prompts;
    size_t n_prompts;
    struct rod_ids *bad;         /* bad_words as tokens */
    size_t n_bad, opening_bytes; /* opening_bytes: of the prompts in a stream, which come at once */
    struct rod_grammar *grammar; /* NULL = any text */
    struct turn_choice *choices;
    uint32_t n_choices, n_open;
    bool working, over, streaming, stream, slow; /* over: answered; streaming: the stream has begun; slow: cut */
    struct buf prefix, frame;
    struct openai_usage usage;
    uint64_t started_ns, sent_ns, first_ns, queue_ns;
    int64_t created_unix_s;
    /* of a session */
    uint64_t max_sessions;                         /* of the key; 0 = a share, as in rod_session_new */
    char tenant[72], *header_session, *header_key; /* whose it is; the two headers, or NULL */
    uint8_t digest[16];                            /* of the body */
    struct rod_turn *session;                      /* for the engine, until its request has it; NULL = none */
    char session_id[OPENAI_SESSION_ID_MAX + 1];    /* once the turn has ended: its session, "" = none */
    uint64_t session_version;
    bool of_session, replayed;
    char *model; /* of an answer given again: the name that it was given under; NULL = the server's */
    /* of a response */
    char response_id[48];
    uint64_t sequence; /* of its stream's events */
};

/* ---- turn_session.c ---- */
bool turn_session_headers(struct turn *t); /* false: out of memory */
void turn_session_digest(struct turn *t);
int turn_session_open(struct turn *t, struct rod_error *err); /* sets t->session, if the request is of one */
int turn_session_encode(struct turn *t, const char *text, size_t len, int32_t **ids, size_t *n_ids,
                        struct rod_error *err);
int turn_session_label(struct turn *t, struct rod_error *err); /* on the loop thread, when the answer's id is known */
/* An answer is given again: it has the id, time and model of the first one. */
void turn_session_relabel(struct turn *t, const char *label);
void turn_session_error(const struct turn *t, struct openai_error *err, int code);
void turn_session_free(struct rod_turn *session);
static inline const char *turn_session_of(const struct turn *t) { return *t->session_id ? t->session_id : NULL; }

/* ---- turn_response.c: frames, or the whole answer ---- */
void turn_response_opening(struct turn *t);
void turn_response_delta(struct turn *t, const char *text, size_t len);
void turn_response_ending(struct turn *t);
void turn_response_whole(struct turn *t, struct buf *out);

/* Before the first byte a real status; after it an error event. */
void turn_fail(struct turn *t, const struct openai_error *err);
void turn_fail_code(struct turn *t, int code, const char *message);
void turn_maybe_free(struct turn *t);

#endif
