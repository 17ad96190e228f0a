/* api_fields.h - the fields of a request's JSON object, read one by one: what api_*.c share.
 *
 * Each function leaves *out as it was where the field is missing or null, and is false with a 400 that names the field
 * where its value cannot be taken. Pure; any thread.
 */
#ifndef API_FIELDS_H
#define API_FIELDS_H

#include "request.h"

#include <jansson.h>

struct api_fields { /* borrows all five */
    const json_t *root;
    const struct api_defaults *defaults;
    struct api_error *err;
    const struct api_dialect *dialect; /* of a request for an answer, else NULL */
    uint32_t *ignored;                 /* of the request; NULL = nobody asks */
};

/* How an API reads its body: what all have in common asks this for what differs. Each function is called once, in the
 * order of the members, and is false with an error. */
struct api_dialect {
    bool prompts;              /* it goes on with text, in place of messages */
    bool choices;              /* its answer may have several, with scores, and its streams usage on request */
    bool whole_context;        /* its answers have no limit of their own */
    const char *stop;          /* the name of the field */
    const char *max_tokens[3]; /* likewise, of which the last one counts that is sent; the rest is NULL */
    /* Before the model and names of other servers are looked at; NULL = nothing. What it reads, those below need not.
     */
    bool (*check)(const struct api_fields *p, struct api_request *out);
    bool (*input)(const struct api_fields *p, struct api_request *out);  /* prompts, or messages and tools */
    bool (*format)(const struct api_fields *p, struct api_grammar *out); /* of the answer, but structured_outputs */
    bool (*again)(const struct api_fields *p, struct api_request *out); /* what the answer says again; NULL = nothing */
};
/* The body of a request for an answer: 0, or -1 with err filled. */
int api_parse(const struct api_dialect *dialect, const char *body, size_t len, const struct api_defaults *defaults,
              struct api_request *out, struct api_error *err);
bool api_check_model(const struct api_fields *p);
bool api_no_hole(const struct api_fields *p); /* of a chat, whatever its API: suffix asks for nothing */

/* The JSON object of a body, or NULL with err filled: a 400 that names the field where the body is no JSON, has a key
 * twice, a number beyond doubles, too many values or too deep ones. body NULL = empty. The caller decrefs. */
json_t *api_load(const char *body, size_t len, struct api_error *err);
/* The fields of a body's object, by read; p->root is not set yet. 0, or -1 with p.err filled. */
int api_read_object(const char *body, size_t len, struct api_fields p,
                    bool (*read)(const struct api_fields *p, void *out), void *out);
/* Always false, so that callers write `return field_bad(...)`. */
#define field_bad(p, ...)  api_error_field((p)->err, __VA_ARGS__)
#define field_no_memory(p) api_error_no_memory((p)->err)
void field_ignore(const struct api_fields *p, enum api_ignored part); /* the request has it, and it is left out */
const char *field_type(const json_t *value);                          /* "an object" ... */
/* The value, or NULL where it is missing or null: for an optional field that is the same. */
const json_t *field_of(const json_t *object, const char *name);
const json_t *field_get(const struct api_fields *p, const char *name);
bool field_asks(const json_t *value); /* null, false, "", [] and {} ask for nothing */
/* A list of tools and its choice that ask for something are refused. Without a list, none or auto asks for nothing. */
bool field_no_tools(const struct api_fields *p, const char *tools, const char *choice, const char *why);
/* Numbers, and true and false, may also come as strings: "0.7", "true". Clients of servers that take both send them. */
bool field_as_number(const json_t *value, double *out);
bool field_as_int(const json_t *value, int64_t *out);
bool field_int(const struct api_fields *p, const char *name, int64_t low, int64_t high, int64_t *out);
bool field_u32(const struct api_fields *p, const char *name, int64_t low, uint32_t *out);
/* low_open: the lower bound itself is outside. */
bool field_float(const struct api_fields *p, const char *name, double low, bool low_open, double high, float *out);
bool field_bool(const struct api_fields *p, const char *name, bool *out);
size_t field_chars(const char *text, size_t len); /* of UTF-8: what lengths in openapi.yaml count */
/* A string of at most max characters without NUL. *out is malloc'd and the caller's, also after a later error. */
bool field_text(const struct api_fields *p, const char *name, size_t max, char **out, size_t *len);
/* Whether value is this word, which has no NUL: behind one, strcmp would not look. */
bool field_is(const json_t *value, const char *word);
bool field_has_nul(const json_t *value);             /* a string that would be cut there */
char *field_copy(const json_t *string, size_t *len); /* malloc'd, NUL-terminated; NULL: out of memory */

/* Token ids of the vocabulary. *out is malloc'd and the caller's, also after an error. */
bool field_ids(const struct api_fields *p, const char *param, const json_t *array, int32_t **out, size_t *n_out);
bool api_parse_draft(const struct api_fields *p, struct api_request *out); /* speculative and prediction */

/* The field `messages`, an array or the text of one user's. *out is the caller's, also on an error. */
bool api_messages(const struct api_fields *p, struct rod_message **out, size_t *n_out);
/* The model sees no ids, so the results of an answer's calls are put into the order of the calls: ranks[i] is that of
 * the call that message i answers, if it is a result; API_NO_RANK: it names none, and stays behind the others. */
enum { API_NO_RANK = 128 };
void api_order_results(struct rod_message *messages, size_t n_messages, const size_t *ranks);
void api_messages_free_calls(struct rod_message *message); /* its calls alone */
void api_messages_free(struct rod_message *messages, size_t n_messages);
/* Where the messages end. */
bool api_parse_end(const struct api_fields *p, const struct rod_message *messages, size_t n_messages,
                   struct api_chat_end *out);

struct api_tool { /* a definition, as its API has it; borrowed */
    const json_t *name, *description, *schema, *strict;
    const char *param;        /* where it stands, for errors */
    const char *schema_field; /* the name of its schema there */
};
/* tools, tool_choice, parallel_tool_calls of a chat. The content of *out is the caller's, also on an error. */
bool api_parse_tools(const struct api_fields *p, struct api_tools *out);
/* Reads tools in three steps, for an API with a form of its own: room for n tools; each tool with the line that the
 * model reads, which is taken; once the choice is known, the schemas of those that may be called. */
bool api_tools_begin(const struct api_fields *p, size_t n, struct api_tools *out);
bool api_tools_add(const struct api_fields *p, const struct api_tool *tool, struct buf *line, struct api_tools *out);
bool api_tools_end(const struct api_fields *p, const json_t *tools,
                   struct api_tool (*read)(const json_t *tool, const char *param), struct api_tools *out);
bool api_tools_allow(const struct api_fields *p, const json_t *name, struct api_tools *out); /* of tool_choice */
/* Lets the tool be called that a choice, or an entry of allowed_tools, names. */
typedef bool api_tools_allower(const struct api_fields *p, const json_t *choice, struct api_tools *out);
/* tool_choice as OpenAI's APIs have it, but none. */
bool api_tools_choose(const struct api_fields *p, const json_t *choice, api_tools_allower *allow,
                      struct api_tools *out);
bool api_tools_bad_choice(const struct api_fields *p); /* false, with the error that says what a choice is */
bool api_check_tools(const struct api_fields *p, const struct api_request *request); /* beside a grammar */
void api_put_quoted(struct buf *out, const char *text, size_t len); /* as api_put_line writes a string */

/* cache_control, once the messages are parsed: of tools, of messages and their parts, of the body. */
bool api_parse_cache(const struct api_fields *p, const struct api_request *request, struct api_cache *out);
/* In steps, for other forms of messages: the mark of an object, if it has one (field: its name with a dot, "" = the
 * body); and, behind all, that of the body. */
bool api_take_mark(const struct api_fields *p, const char *field, const json_t *object, struct api_cache_mark mark,
                   struct api_cache *out);
bool api_end_marks(const struct api_fields *p, const struct api_request *request, struct api_cache *out);

/* response_format, as completions and chats have it. out->text is the caller's, also on an error. */
bool api_response_format(const struct api_fields *p, struct api_grammar *out);
/* structured_outputs, beside the format of the answer. */
bool api_structured_outputs(const struct api_fields *p, struct api_grammar *out);
/* Takes a value as a grammar that the field param asks for; value NULL: any JSON object. */
bool api_take_grammar(const struct api_fields *p, enum rod_grammar_kind kind, const char *param, const json_t *value,
                      struct api_grammar *out);
bool api_check_name(const struct api_fields *p, const char *param, const json_t *name); /* of a schema */

/* The fields of a turn of a session. The content of *out is the caller's, also on an error. */
bool api_parse_session(const struct api_fields *p, struct api_session *out);
void api_session_fini(struct api_session *s);
bool api_take_key(const struct api_fields *p, struct api_session *s, const char *idempotency_key);
/* Names the conversation of messages that are no turn, by its headers or the body's prompt_cache_key. */
bool api_join_conversation(const struct api_fields *p, struct api_request *request, const struct api_headers *headers);

#endif
