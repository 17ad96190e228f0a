/* request.h - the OpenAI protocol as pure functions: JSON to structs and back.
 *
 * Ownership: a parsed request owns its strings and arrays; api_request_fini frees them. Rendering appends to a buf.
 * Threads: any. Invariants: no I/O, no clock, no engine; bytes of tokens come from a callback. Every optional field may
 * be null, unknown fields are ignored, and a known field that cannot be honoured is an error that names it.
 */
#ifndef API_REQUEST_H
#define API_REQUEST_H

#include "api_tools.h"

#include <stdarg.h>

enum api_kind { API_COMPLETION, API_CHAT, API_RESPONSE };

struct api_error {
    unsigned http;
    const char *type, *code; /* static; code "" = null */
    char param[64];          /* "" = null */
    char message[448];
    uint64_t n_prompt_tok, limit_tok; /* of a prompt that is too long; 0 = not shown */
    uint64_t retry_s;                 /* when to come again; 0 = the server says */
    const char *trace_id;             /* hexadecimal digits; NULL or "" = not shown */
};
#define API_INVALID "invalid_request_error" /* the type of most */
void api_error_vset(struct api_error *e, unsigned http, const char *type, const char *code, const char *param,
                    const char *format, va_list args) __attribute__((format(printf, 6, 0)));
void api_error_set(struct api_error *e, unsigned http, const char *type, const char *code, const char *param,
                   const char *format, ...) __attribute__((format(printf, 6, 7)));
/* These are always false, so that a parser can return them. A 400, of no field with param "". */
bool api_error_invalid(struct api_error *e, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A 400 whose sentence begins with the field: "must be true or false" or "[3] is empty" of param stop is the message
 * "stop must be true or false." or "stop[3] is empty." */
bool api_error_vfield(struct api_error *e, const char *param, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));
bool api_error_field(struct api_error *e, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool api_error_no_memory(struct api_error *e);
void api_error_from(struct api_error *e, const struct rod_error *from);
/* Replaces the message of a fault of files: their paths are not for clients. */
void api_hide_files(struct api_error *err);
void api_render_error(struct buf *out, const struct api_error *e); /* {"error": {...}} */

/* ---- requests ---- */

struct api_defaults { /* defaults of a request, and the limits of its numbers */
    const char *model_name;
    const char *model_names; /* with its other names, separated by commas; NULL = it has none */
    uint32_t vocab_size;
    float temperature, top_p, min_p, repetition_penalty;
    int32_t top_k;
    uint32_t chat_max_tokens;
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
/* response_format (of a response text.format) and structured_outputs of a request's object. out->text is the caller's,
 * also on an error. */
bool api_parse_grammar(enum api_kind kind, const json_t *root, struct api_grammar *out, struct api_error *err);

#define API_SESSION_ID_MAX 128
#define API_TTL_MAX_S      ((int64_t)1 << 40)
bool api_session_id(const char *id); /* 1 to 128 of [A-Za-z0-9._-] */

struct api_session { /* id NULL: the request is a turn of no session */
    char *id, *idempotency_key, *cache_salt;
    bool create, has_expected;
    uint64_t expected_version;
};

struct api_response { /* of POST /v1/responses */
    char *previous;   /* the response, or session, that it goes on from; NULL = none */
    bool store;       /* others may go on from it */
    struct buf echo;  /* the fields that the answer says again, as JSON: "store":true,... */
    struct buf kept;  /* what is kept of the request (api_kept.c); empty: too long, or it is not stored */
};

/* ---- what a stored response keeps of its request ---- */

struct api_kept {
    struct buf echo;
    struct api_tools tools; /* that the model has read */
    json_t *input;          /* an array of items; what is no array has none */
};
/* Of text [len], api_response.kept. 0, or -1 with err filled. */
int api_parse_kept(const char *text, size_t len, struct api_kept *out, struct api_error *err);
void api_kept_fini(struct api_kept *kept);

struct api_page { /* of a list */
    size_t limit;
    bool rising;       /* in the order of the input; else the last item first */
    const char *after; /* the id of an item; NULL = from the beginning */
};
/* The list of these items. False, with err filled: `after` names no item. */
bool api_render_input_items(struct buf *out, const char *response, const json_t *input, const struct api_page *page,
                            struct api_error *err);

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
    enum api_kind kind;
    struct api_prompt *prompts; /* completions */
    size_t n_prompts;
    char *suffix; /* completions: the text behind the hole; NULL = none */
    size_t suffix_len;
    struct rod_message *messages; /* chats and responses; strings owned */
    size_t n_messages;
    struct api_tools tools; /* chats and responses */
    struct api_chat_end end;
    struct api_cache cache; /* chats */
    struct api_session session;
    struct api_response response;
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

/* The JSON object of a body, or NULL with err filled: a 400 that names the field where the body is no JSON, has a key
 * twice, a number beyond doubles, too many values or too deep ones. body NULL = empty. The caller decrefs. */
json_t *api_load(const char *body, size_t len, struct api_error *err);

/* 0, or -1 with err filled (400, or 404 for another model). The body need not be UTF-8: then it is an error too. */
/* Whether the model has this name. */
bool api_model_named(const struct api_defaults *defaults, const char *name);
int api_parse(enum api_kind kind, const char *body, size_t len, const struct api_defaults *defaults,
              struct api_request *out, struct api_error *err);
/* Of its object, whose names of other servers become this server's. */
int api_parse_object(enum api_kind kind, json_t *root, const struct api_defaults *defaults, struct api_request *out,
                     struct api_error *err);
void api_request_fini(struct api_request *request);

struct api_headers {          /* of a session; NULL = not sent */
    const char *session_name; /* of the header, for errors */
    const char *session, *idempotency_key;
};
/* The second half of parsing a request: adds its headers, and checks which fields go with a session. 0, or -1 with err
 * filled. */
int api_join_session(struct api_request *request, const struct api_headers *headers, struct api_error *err);

struct api_session_new { /* POST /v1/sessions, and .../fork with an id alone; NULL = not given */
    char *id, *from;
    bool has_ttl, pin;
    uint64_t ttl_s;
};
/* No body is an empty one. */
int api_parse_session_new(const char *body, size_t len, bool fork, struct api_session_new *out, struct api_error *err);
void api_session_new_fini(struct api_session_new *s);

/* PATCH /v1/sessions/{id}: pin and ttl_s, each optional, and nothing else. No body is an empty one. */
int api_parse_session_change(const char *body, size_t len, struct rod_session_change *out, struct api_error *err);

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

/* ---- answers ---- */

struct api_vocab { /* the bytes of a token, or NULL */
    const char *(*bytes)(void *arg, int32_t id, size_t *len);
    void *arg;
    bool as_ids; /* log-probabilities of answers show "token_id:7" in place of text */
};

struct api_logprobs { /* JSON fragments that grow with the tokens; chat uses `tokens` alone */
    struct buf tokens, values, tops, offsets;
    uint64_t n_chars; /* begun in the text so far; a broken one is U+FFFD there */
    char part[4];     /* of the last of them, while it is not whole */
    uint32_t n_part;
};
/* shown: the tokens are in the text, and no special ones that it leaves out. */
void api_logprobs_add(struct api_logprobs *l, enum api_kind kind, const struct rod_token *tokens, size_t n_tokens,
                      bool shown, const struct api_vocab *vocab);
/* The first token of a prompt, which nothing stands before: null (legacy object). */
void api_logprobs_add_first(struct api_logprobs *l, int32_t id, const struct api_vocab *vocab);
/* prompt_logprobs as a fragment: {"7": {"logprob", "rank", "decoded_token"}, ...} a token, null for the first; token
 * NULL = the first. */
void api_prompt_logprobs_add(struct buf *out, const struct rod_token *token, const struct api_vocab *vocab);
void api_logprobs_clear(struct api_logprobs *l); /* empty, but the text goes on */
void api_logprobs_fini(struct api_logprobs *l);
/* "1,2,3" */
void api_render_ids(struct buf *out, const int32_t *ids, size_t n_ids);
/* One token as text: its UTF-8, "bytes:\xE2\x80" where it is a part of a character, "token_id:7" without a tokenizer.
 */
void api_render_token(struct buf *out, int32_t id, const struct api_vocab *vocab);
/* {"id":7,"piece":" a"},...; a piece that is no text is an array of its bytes. */
void api_render_pieces(struct buf *out, const int32_t *ids, size_t n_ids, const struct api_vocab *vocab);

/* "[[0,4],...]": where each token lies in the text, in characters; a part of a character has the whole one, and what
 * the text does not show (skip_special, or a token that was put in front of it) is empty. "null" where the tokens are
 * not the text: a normalizer has changed it. special tells of an id whether it is a special token. */
void api_render_offsets(struct buf *out, const char *text, size_t len, const int32_t *ids, size_t n_ids,
                        const struct api_vocab *vocab);

struct api_usage {
    uint64_t prompt_tok, completion_tok, cached_tok;
    uint64_t accepted_tok, rejected_tok; /* of drafts */
    uint64_t created_tok;                /* behind the cached ones, up to the last place that cache_control has kept */
    uint64_t created_long_tok;           /* of these, those kept for an hour */
};

#define API_CALL_ID_BYTES 32
struct api_call { /* of a tool: whole, or a piece of one in a stream */
    uint32_t index;
    const char *id, *name; /* NULL: a later piece */
    const char *arguments; /* the bytes that the model generated */
    size_t len;
};

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

/* {"id":...,"object":...,"created":...,"model":...,"system_fingerprint":..., : the beginning that all chunks of an
 * answer share. */
void api_render_prefix(struct buf *out, enum api_kind kind, bool stream, const char *request_id, int64_t created_unix_s,
                       const char *model, const char *fingerprint);
/* usage: NULL = left out; null_usage: "usage":null, which clients expect on the other chunks when they asked for usage.
 */
void api_render_chunk(struct buf *out, enum api_kind kind, const struct buf *prefix, const struct api_choice *choice,
                      const struct api_usage *usage, bool null_usage);
void api_render_usage_chunk(struct buf *out, const struct buf *prefix, const struct api_usage *usage);
void api_render_answer(struct buf *out, enum api_kind kind, const struct buf *prefix, const struct api_choice *choices,
                       size_t n_choices, const struct api_usage *usage);
/* ,"session":{"id":...,"version":...}, or nothing where id is NULL. */
void api_render_session_of(struct buf *out, const char *id, uint64_t version);
void api_render_session(struct buf *out, const struct rod_session_info *info);
void api_render_sessions(struct buf *out, const struct rod_session_info *infos, size_t n, bool more);
void api_render_deleted(struct buf *out, const char *object, const char *id);

struct api_item { /* of a response's output: a message, or a call of a tool */
    uint32_t index;
    const char *name, *call_id; /* of a call; NULL: a message */
    const char *text;           /* a message's, or a call's arguments */
    size_t len;
    bool cut; /* it has not come to its end */
};
struct api_response_view {  /* an answer of /v1/responses, so far or at its end */
    const char *id, *model; /* id: "resp_..." */
    int64_t created_unix_s;
    const struct buf *echo;
    const struct api_item *items; /* at its end */
    size_t n_items;
    enum rod_finish reason;
    const struct api_usage *usage;
    const char *session; /* NULL = it is not stored */
    uint64_t session_version;
};
void api_render_response(struct buf *out, const struct api_response_view *view);
/* Events of its stream, frames and all; *seq numbers them. An opening; items, each with a beginning, deltas and an end;
 * an ending; or an error at any place. response: its id. */
void api_render_response_opening(struct buf *out, const struct api_response_view *view, uint64_t *seq);
void api_render_item_begin(struct buf *out, const char *response, const struct api_item *item, uint64_t *seq);
/* item: with the next part of its text. */
void api_render_item_delta(struct buf *out, const char *response, const struct api_item *item, uint64_t *seq);
void api_render_item_end(struct buf *out, const char *response, const struct api_item *item, uint64_t *seq);
void api_render_response_ending(struct buf *out, const struct api_response_view *view, uint64_t *seq);
void api_render_response_error(struct buf *out, const struct api_error *err, uint64_t *seq);

/* root: the model's first name. */
void api_render_model(struct buf *out, const char *name, const char *root, const char *adapter,
                      const struct rod_model_info *info);

#endif
