/* request.h - what a client asks for, in words that are no API's: each API reads its body into this (form.h).
 *
 * Ownership: a request owns its strings and arrays; api_request_fini frees them. Threads: any. Invariants: no I/O, no
 * clock, no engine. Every optional field of a body may be null, unknown fields are ignored, and a known field that
 * cannot be honoured is an error that names it.
 */
#ifndef API_REQUEST_H
#define API_REQUEST_H

#include "api_error.h"
#include "api_ignored.h"
#include "api_tools.h"

struct json_t;
struct api_stored { /* what is kept of earlier answers, for bodies that name parts of it */
    /* The items of a stored answer, or of its request, each with its id: an array that the caller decrefs. NULL, with
     * err filled: a 404, or what has failed. Waits for files. */
    struct json_t *(*items)(void *arg, const char *tenant, const char *id, bool input, struct api_error *err);
    void *arg;
    const char *tenant;
    bool may_wait; /* this thread */
    bool waits;    /* set by a parser that has failed for this alone; err is empty */
};

struct api_defaults { /* defaults of a request, and the limits of its numbers */
    const char *model_name;
    const char *model_names; /* with its other names, separated by commas, a last * for any; NULL = it has none */
    uint32_t vocab_size;
    struct rod_sampling sampling;
    uint32_t chat_max_tokens;
    struct api_stored *stored; /* NULL: nothing is kept */
    uint32_t context_tok; /* prompt and answer together, where nothing names a limit; 0 = chat_max_tokens ends those */
};

struct api_prompt { /* text, or ids when ids is not NULL */
    char *text;
    size_t len;
    int32_t *ids;
    size_t n_ids;
};

struct api_grammar { /* of the answer */
    enum rod_grammar_kind kind;
    const char *param; /* the field that asks for it; static */
    char *text;        /* NULL = nothing is asked for */
    size_t len;
};

#define API_MODEL_NAME_MAX 127 /* bytes */
#define API_SESSION_ID_MAX 128
#define API_TTL_MAX_S      ((int64_t)1 << 40)
bool api_session_id(const char *id); /* 1 to 128 of [A-Za-z0-9._-] */

struct api_session { /* id NULL: the request is a turn of no session */
    char *id, *idempotency_key, *cache_salt;
    char *conversation; /* the name under which its messages come again, longer each time; NULL = none. With id only if
                           whole */
    char *from;         /* a new session begins as a fork of this one; NULL = of none */
    struct buf kept;    /* text that is kept beside the answer; empty = none */
    bool create, has_expected;
    bool whole;   /* the session begins with these messages, which may come again, longer, for another one */
    bool beside;  /* a question that leaves the session as it is */
    bool discard; /* nobody may go on from the answer: the session goes when it has ended */
    uint64_t expected_version;
};

struct api_chat_end { /* where messages end */
    bool generation;  /* with the generation prompt */
    bool go_on;       /* else: inside the last message, an assistant's */
};

/* Where the client asks the prefix cache to keep the state: behind the first n_tools tools, or (n_tools 0) behind the
 * first len bytes of a message's content; all of them are the whole message. */
enum { API_MAX_CACHE_MARKS = ROD_MAX_BREAKPOINTS };
struct api_cache_mark {
    size_t n_tools, message, len;
    uint32_t ttl_s;
};
struct api_cache {
    struct api_cache_mark marks[API_MAX_CACHE_MARKS];
    uint32_t n;
};

struct api_request {
    struct api_prompt *prompts; /* texts to go on with; n_prompts 0: it has messages */
    size_t n_prompts;
    char *suffix; /* of prompts: the text behind the hole; NULL = none */
    size_t suffix_len;
    struct rod_message *messages; /* strings owned */
    size_t n_messages;
    struct api_tools tools; /* beside messages */
    struct api_chat_end end;
    struct api_cache cache; /* of messages */
    struct api_session session;
    uint32_t ignored; /* parts that were left out: bits of enum api_ignored */
    char *model;      /* the name that was asked for where any is served; NULL = the server's own */
    char *answer_id;  /* the answer's id, where the API makes it of the request; NULL = the call's */
    struct buf again; /* the fields that the answer says again, as JSON; empty = none */
    struct rod_sampling sampling;
    bool has_seed;
    struct rod_bias *bias;
    size_t n_bias;
    char **stop;
    size_t n_stop;
    int32_t *stop_ids;
    size_t n_stop_ids;
    struct api_grammar grammar;
    int32_t *allowed_ids; /* n_allowed_ids 0 = all */
    size_t n_allowed_ids;
    struct api_prompt *bad_words; /* text alone */
    size_t n_bad_words;
    struct api_prompt prediction; /* that the answer may be like: text or ids, or neither */
    bool never_speculate;
    int64_t truncate_tok; /* of each prompt so many tokens; 0 = all of it, -1 = as many as this server takes */
    bool truncate_end;    /* the first ones stay; else the last ones */
    bool no_begin;        /* the prompt gets no tokens that the tokenizer puts in front */
    bool ids_for_tokens;  /* log-probabilities name tokens by their ids */
    uint32_t n, max_tokens, min_tokens;
    bool whole_context;           /* nobody named a limit: max_tokens are those of prompt and answer together */
    const char *max_tokens_field; /* the name that the client used, static */
    bool ignore_eos, include_stop, keep_special;
    int32_t n_logprobs, n_prompt_logprobs; /* -1 = none */
    bool echo;
    bool stream, include_usage, continuous_usage, return_token_ids;
    int64_t ping_ms; /* -1 = the server's */
};

/* How tools hold the answer to a grammar: from the first tag on that the model says, not from the start; also for calls
 * behind the first. */
bool api_tools_lazy(const struct api_request *request);
bool api_tools_again(const struct api_request *request);
/* The grammar of calls, and of content where the request gives it one. out->text is the caller's. False: no memory. */
bool api_tools_grammar(const struct api_request *request, const struct rod_call_tags *tags, struct api_grammar *out);

/* Whether the model has this name. */
bool api_model_named(const struct api_defaults *defaults, const char *name);
bool api_model_taken(const struct api_defaults *defaults, const char *name); /* that, or any is */
void api_model_unknown(struct api_error *err, const struct api_defaults *defaults, const char *name); /* the 404 */
void api_request_fini(struct api_request *request);

struct api_headers {          /* of a session; NULL = not sent */
    const char *session_name; /* of the header, for errors */
    const char *session, *idempotency_key;
    const char *tenant;       /* the owner of its sessions */
    const char *asked;        /* the session in the path of a question beside */
    const char *conversation; /* the name that they give; "": one that is none */
};
/* Adds the headers to a request that is read, and checks which fields go with a session. 0, or -1 with err filled. */
int api_join_session(struct api_request *request, const struct api_headers *headers, struct api_error *err);
/* Names the field of the request at fault for an error of its session. */
void api_session_fault(struct api_error *err, int code);

#endif
