/* api_fields.h - the fields of a request's JSON object, read one by one: what api_*.c share.
 *
 * Each function leaves *out as it was where the field is missing or null, and is false with a 400 that names the field
 * where its value cannot be taken. Pure; any thread.
 */
#ifndef API_FIELDS_H
#define API_FIELDS_H

#include "request.h"

struct api_fields { /* borrows all three */
    const json_t *root;
    const struct api_defaults *defaults;
    struct api_error *err;
};

/* api_error_field of p->err: always false, so that callers write `return field_bad(...)`. */
bool field_bad(const struct api_fields *p, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
bool field_no_memory(const struct api_fields *p);
const char *field_type(const json_t *value); /* "an object" ... */
/* The value, or NULL where it is missing or null: for an optional field that is the same. */
const json_t *field_get(const struct api_fields *p, const char *name);
bool field_asks(const json_t *value); /* null, false, "", [] and {} ask for nothing */
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
char *field_copy(const json_t *string, size_t *len); /* malloc'd, NUL-terminated; NULL: out of memory */

/* Token ids of the vocabulary. *out is malloc'd and the caller's, also after an error. */
bool field_ids(const struct api_fields *p, const char *param, const json_t *array, int32_t **out, size_t *n_out);
bool api_parse_draft(const struct api_fields *p, struct api_request *out); /* speculative and prediction */

/* The messages in the field `name`, an array or the text of one user's, and the instructions before them if not NULL.
 * Contents are parts of text, in the words of chats and of responses. *out is the caller's, also on an error. */
bool api_messages(const struct api_fields *p, const char *name, const json_t *instructions, struct rod_message **out,
                  size_t *n_out);
/* tools, tool_choice, parallel_tool_calls; flat: as /v1/responses has them. The content of *out is the caller's, also
 * on an error. */
bool api_parse_tools(const struct api_fields *p, bool flat, struct api_tools *out);
/* cache_control, once the messages are parsed. */
bool api_parse_cache(const struct api_fields *p, const struct api_request *request, struct api_cache *out);
bool api_check_tools(const struct api_fields *p, const struct api_request *request); /* beside a grammar */
void api_messages_free(struct rod_message *messages, size_t n_messages);

/* The fields of a turn of a session; the input of a response; the fields that the answer of a response repeats, once
 * the others are parsed. The content of *out is the caller's, also on an error. */
bool api_parse_session(const struct api_fields *p, struct api_session *out);
void api_session_fini(struct api_session *s);
bool api_parse_response(const struct api_fields *p, struct api_request *out);
bool api_parse_echo(const struct api_fields *p, struct api_request *out);
bool api_keep(const struct api_fields *p, struct api_response *r); /* behind the echo, of a stored response */
void api_response_fini(struct api_response *r);

#endif
