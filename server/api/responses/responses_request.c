/* responses_request.c - POST /v1/responses: the fields of its body beside a chat's, and the fields that its answer
 * repeats.
 *
 * A response is a chat whose past is a state: previous_response_id names the response to continue. The state is not
 * read again, so instructions stay in force; with OpenAI each request brings its own. */
#include "responses.h"
#include "responses_parts.h"
#include "server/api/api_put.h"
#include "server/api/api_routes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PAIRS = 16, MAX_PAIR_KEY = 64, MAX_PAIR_VALUE = 512 };

/* Refuses fields of OpenAI that are not available, and fields of chats that have another name here or no place in the
 * answer. */
static bool refuse_fields(const struct api_fields *p) {
    static const char *const fields[] = {"background",
                                         "conversation",
                                         "prompt",
                                         "session_id",
                                         "session_create",
                                         "expected_version",
                                         "n",
                                         "return_token_ids",
                                         "logprobs",
                                         "prompt_logprobs",
                                         "echo",
                                         "suffix",
                                         "truncate_prompt_tokens"};
    static const char *const renamed[][2] = {{"response_format", "text.format"},
                                             {"max_tokens", "max_output_tokens"},
                                             {"max_completion_tokens", "max_output_tokens"}};
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        if (field_get(p, renamed[i][0]))
            return field_bad(p, renamed[i][0], "is named %s in /v1/responses", renamed[i][1]);
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *value = field_get(p, fields[i]);
        if (!value || !field_asks(value)) continue;
        if (!strcmp(fields[i], "n") && json_is_integer(value) && json_integer_value(value) == 1) continue;
        return field_bad(p, fields[i], "is not available in /v1/responses");
    }
    int64_t n_top = 0;
    if (!field_int(p, "top_logprobs", 0, 20, &n_top)) return false;
    if (n_top) return field_bad(p, "top_logprobs", "is not available in /v1/responses");
    return api_no_hole(p);
}

/* Hints, which agents send to every model: how much to think and to say, and whether input may be cut. They pass, as in
 * chats: the model has no reasoning apart, and there is no context to overflow. Their types are looked at. */
static bool check_hints(const struct api_fields *p) {
    const json_t *reasoning = field_get(p, "reasoning"), *cut = field_get(p, "truncation"),
                 *text = field_get(p, "text");
    if (reasoning && !json_is_object(reasoning))
        return field_bad(p, "reasoning", "must be an object, not %s", field_type(reasoning));
    if (cut && !field_is(cut, "disabled") && !field_is(cut, "auto"))
        return field_bad(p, "truncation", "must be auto or disabled");
    if (text && !json_is_object(text)) return field_bad(p, "text", "must be an object, not %s", field_type(text));
    const json_t *verbosity = json_object_get(text, "verbosity");
    if (verbosity && !json_is_null(verbosity) && !json_is_string(verbosity))
        return field_bad(p, "text.verbosity", "must be a string, not %s", field_type(verbosity));
    return true;
}

/* What the answer is to have beside its text. Of reasoning there is none to encrypt. */
static bool check_include(const struct api_fields *p) {
    const json_t *include = field_get(p, "include"), *one = NULL;
    size_t i;
    if (include && !json_is_array(include))
        return field_bad(p, "include", "must be an array of strings, not %s", field_type(include));
    json_array_foreach(include, i, one) {
        if (!field_is(one, "reasoning.encrypted_content"))
            return field_bad(p, "include", "[%zu] is not available: only reasoning.encrypted_content passes", i);
    }
    return true;
}

static bool check_metadata(const struct api_fields *p) {
    const json_t *pairs = field_get(p, "metadata");
    const char *key;
    json_t *value;
    if (!pairs) return true;
    if (!json_is_object(pairs)) return field_bad(p, "metadata", "must be an object, not %s", field_type(pairs));
    if (json_object_size(pairs) > MAX_PAIRS)
        return field_bad(p, "metadata", "has %zu pairs, %d are allowed", json_object_size(pairs), MAX_PAIRS);
    json_object_foreach((json_t *)pairs, key, value) {
        const size_t n = json_string_length(value); /* 0 if it is no string */
        if (!json_is_string(value) || field_chars(key, strlen(key)) > MAX_PAIR_KEY ||
            field_chars(json_string_value(value), n) > MAX_PAIR_VALUE)
            return field_bad(p, "metadata", "must be strings of at most %d characters, with names of at most %d",
                             MAX_PAIR_VALUE, MAX_PAIR_KEY);
    }
    return true;
}

static bool take_previous(const struct api_fields *p, struct api_session *out) {
    size_t len = 0;
    if (!field_text(p, "previous_response_id", SIZE_MAX, &out->from, &len)) return false;
    if (!out->from || api_session_id(out->from)) return true;
    return field_bad(p, "previous_response_id", "must be 1 to %d characters of A-Z, a-z, 0-9, '.', '_' and '-'",
                     API_SESSION_ID_MAX);
}

static bool read_input(const struct api_fields *p, struct api_request *out) {
    const json_t *go_on = field_get(p, "continue_final_message");
    bool store = true;
    out->end.generation = true;
    if (go_on && field_asks(go_on)) return field_bad(p, "continue_final_message", "is for chats");
    if (!refuse_fields(p) || !check_hints(p) || !check_include(p) || !check_metadata(p) ||
        !field_bool(p, "store", &store) || !take_previous(p, &out->session) || !responses_resolve(p) ||
        !responses_take_items(p, out))
        return false;
    out->session.discard = !store;
    return responses_take_tools(p, field_get(p, "input"), &out->tools) && responses_check_items(p, out);
}

/* ---- the fields that the answer repeats ---- */

/* head: the name and the bytes before it. */
static void put_value(struct buf *out, const char *head, const json_t *value, const char *otherwise) {
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (value && !text) out->failed = true;
    buf_puts(out, head);
    buf_puts(out, text ? text : otherwise);
    free(text);
}

static bool read_again(const struct api_fields *p, struct api_request *q) {
    struct buf *out = &q->again;
    assert(!out->len);
    const json_t *format = json_object_get(field_get(p, "text"), "format");
    buf_addf(out, "\"background\":false,\"store\":%s", api_bool(!q->session.discard));
    put_value(out, ",\"instructions\":", field_get(p, "instructions"), "null");
    put_value(out, ",\"max_output_tokens\":", field_get(p, "max_output_tokens"), "null");
    put_value(out, ",\"metadata\":", field_get(p, "metadata"), "{}");
    put_value(out, ",\"previous_response_id\":", field_get(p, "previous_response_id"), "null");
    buf_addf(out, ",\"temperature\":%.7g,\"top_p\":%.7g", (double)q->sampling.temperature, (double)q->sampling.top_p);
    put_value(out, ",\"text\":{\"format\":", json_is_null(format) ? NULL : format, "{\"type\":\"text\"}");
    put_value(out, "},\"tools\":", q->tools.n ? field_get(p, "tools") : NULL, "[]"); /* those that the model has read */
    put_value(out, ",\"tool_choice\":", field_get(p, "tool_choice"), "\"auto\"");
    buf_addf(out, ",\"parallel_tool_calls\":%s", api_bool(q->tools.parallel));
    buf_puts(out, ",\"truncation\":\"disabled\",\"reasoning\":{\"effort\":null,\"summary\":null}");
    if (out->failed) return field_no_memory(p);
    return q->session.discard || responses_keep(p, q);
}

/* ---- the format ---- */

static const json_t *member_get(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

/* text.format is the response_format of chats, with the members of json_schema in the format itself. */
static bool read_format(const struct api_fields *p, struct api_grammar *out) {
    const json_t *text = field_get(p, "text");
    const json_t *format = member_get(text, "format");
    if (!format) return true;
    const json_t *type = member_get(format, "type");
    if (!field_is(type, "text") && !field_is(type, "json_object") && !field_is(type, "json_schema"))
        return field_bad(p, "text.format", "must be an object with a type: text, json_object or json_schema");
    if (field_is(type, "text")) return true;
    if (field_is(type, "json_object")) return api_take_grammar(p, ROD_GRAMMAR_JSON_OBJECT, "text.format", NULL, out);
    const json_t *schema = member_get(format, "schema"), *name = member_get(format, "name"),
                 *strict = member_get(format, "strict");
    if (!api_check_name(p, "text.format.name", name)) return false;
    if (strict && !json_is_boolean(strict)) return field_bad(p, "text.format.strict", "must be true or false");
    if (!json_is_object(schema)) return field_bad(p, "text.format", "must have a JSON Schema as schema");
    return api_take_grammar(p, ROD_GRAMMAR_JSON_SCHEMA, "text.format", schema, out);
}

int responses_parse(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                    struct api_error *err) {
    static const struct api_dialect dialect = {.whole_context = true,
                                               .stop = "stop",
                                               .max_tokens = {"max_output_tokens"},
                                               .input = read_input,
                                               .format = read_format,
                                               .again = read_again};
    return api_parse(&dialect, body, len, defaults, out, err);
}
