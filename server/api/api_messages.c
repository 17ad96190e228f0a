/* api_messages.c - the messages of chats: roles, text and calls. */
#include "api_fields.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct place { /* of a message in the request */
    const struct api_fields *fields;
    size_t i;
};

/* Names a field of a message, or the message itself. */
static bool bad_in(const struct place *at, const char *field, const char *what) {
    char param[80];
    snprintf(param, sizeof param, "messages[%zu]%s%s", at->i, *field ? "." : "", field);
    return field_bad(at->fields, param, "%s", what);
}

/* Chats say text, and clients that know responses too input_text and output_text. */
static bool is_text(const json_t *type) {
    return field_is(type, "text") || field_is(type, "input_text") || field_is(type, "output_text");
}

/* Content parts are joined by line breaks, as other servers do for models that know text alone. */
static bool join_parts(const struct place *at, const json_t *parts, struct buf *text) {
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *content = json_object_get(part, "text");
        char field[32];
        snprintf(field, sizeof field, "content[%zu]", i);
        if (json_is_string(part)) {
            content = part;
        } else if (!is_text(json_object_get(part, "type")) || !json_is_string(content)) {
            return bad_in(at, field, "must be of type text: the model reads nothing else");
        }
        if (i) buf_putc(text, '\n');
        buf_add(text, json_string_value(content), json_string_length(content));
    }
    return true;
}

static bool take_content(const struct place *at, const json_t *content, struct rod_message *out) {
    struct buf text = {0};
    bool ok = true;
    if (json_is_string(content)) {
        buf_add(&text, json_string_value(content), json_string_length(content));
    } else if (json_is_array(content)) {
        ok = join_parts(at, content, &text);
    } else if (content && !json_is_null(content)) {
        ok = bad_in(at, "content", "must be a string or an array of parts");
    } else if (strcmp(out->role, "assistant") != 0) { /* an assistant may make calls alone */
        ok = bad_in(at, "content", "is missing");
    }
    out->content = ok ? buf_take(&text, &out->content_len) : NULL;
    buf_fini(&text);
    return !ok || out->content ? ok : field_no_memory(at->fields);
}

/* ---- calls of tools ---- */

/* {"name", "arguments": a string, or the object that it would hold}. id: that clients know it by, or no string. */
static bool take_function(const struct place *at, const char *field, const json_t *function, const json_t *id,
                          struct rod_call *out) {
    size_t id_len;
    const json_t *name = json_object_get(function, "name"), *arguments = json_object_get(function, "arguments");
    if (!json_is_string(name) || !json_string_length(name))
        return bad_in(at, field, "must have a function with a name");
    if (arguments && !json_is_null(arguments) && !json_is_string(arguments) && !json_is_object(arguments))
        return bad_in(at, field, "must have arguments as a string of JSON");
    out->name = field_copy(name, &out->name_len);
    if (field_has_nul(id)) return bad_in(at, field, "must have an id without a NUL");
    if (json_is_string(id) && !(out->id = field_copy(id, &id_len))) return field_no_memory(at->fields);
    struct buf line = {0};
    if (json_is_object(arguments))
        api_put_line(&line, arguments);
    else
        buf_add(&line, json_string_value(arguments), json_string_length(arguments));
    out->arguments = buf_take(&line, &out->arguments_len);
    return (out->name && out->arguments) || field_no_memory(at->fields);
}

static bool take_calls(const struct place *at, const json_t *calls, struct rod_message *out) {
    const size_t n = json_array_size(calls);
    if (!json_is_array(calls)) return bad_in(at, "tool_calls", "must be an array");
    struct rod_call *made = calloc(n ? n : 1, sizeof *made);
    if (!made) return field_no_memory(at->fields);
    out->calls = made;
    for (size_t i = 0; i < n; i++) {
        const json_t *call = json_array_get(calls, i), *type = json_object_get(call, "type");
        char field[40];
        snprintf(field, sizeof field, "tool_calls[%zu]", i);
        if (type && !json_is_null(type) && !field_is(type, "function"))
            return bad_in(at, field, "must be of type function");
        out->n_calls = i + 1;
        if (!take_function(at, field, json_object_get(call, "function"), json_object_get(call, "id"), &made[i]))
            return false;
    }
    return true;
}

/* The calls of an assistant's message, also in their first form; and the call that a tool's result answers, which the
 * chat formats do not show: results stand in the order of the calls. */
static bool take_tools(const struct place *at, const json_t *value, struct rod_message *out) {
    const json_t *calls = json_object_get(value, "tool_calls"), *one = json_object_get(value, "function_call");
    const json_t *answers = json_object_get(value, "tool_call_id");
    const bool assistant = !strcmp(out->role, "assistant");
    if (answers && !json_is_null(answers) && !json_is_string(answers))
        return bad_in(at, "tool_call_id", "must be a string");
    if (calls && field_asks(calls)) {
        if (!assistant) return bad_in(at, "tool_calls", "must be an assistant's");
        return take_calls(at, calls, out);
    }
    if (!one || !field_asks(one)) return true;
    if (!assistant) return bad_in(at, "function_call", "must be an assistant's");
    struct rod_call *made = calloc(1, sizeof *made);
    if (!made) return field_no_memory(at->fields);
    out->calls = made;
    out->n_calls = 1;
    return take_function(at, "function_call", one, NULL, made);
}

static bool take_message(const struct place *at, const json_t *value, struct rod_message *out) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    char what[64];
    if (!json_is_object(value)) {
        snprintf(what, sizeof what, "must be an object, not %s", field_type(value));
        return bad_in(at, "", what);
    }
    const json_t *role = json_object_get(value, "role");
    if (!json_is_string(role)) return bad_in(at, "role", "is missing");
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++) {
        if (field_is(role, roles[r])) out->role = roles[r];
    }
    if (field_is(role, "function")) out->role = "tool"; /* the older form of a result */
    if (!out->role) return bad_in(at, "role", "must be system, developer, user, assistant or tool");
    return take_content(at, json_object_get(value, "content"), out) && take_tools(at, value, out);
}

/* The place of a result's call among the calls of an assistant's message. */
static size_t result_rank(const json_t *assistant, const json_t *result) {
    const json_t *calls = json_object_get(assistant, "tool_calls"), *id = json_object_get(result, "tool_call_id"),
                 *call;
    size_t i;
    json_array_foreach(calls, i, call) {
        if (i == API_NO_RANK) break;
        if (json_is_string(id) && json_equal(json_object_get(call, "id"), id)) return i;
    }
    return API_NO_RANK;
}

void api_order_results(struct rod_message *messages, size_t n, const size_t *given) {
    size_t ranks[API_NO_RANK] = {0}, first = 0;
    for (size_t i = 0; i < n; i++) {
        const struct rod_message result = messages[i];
        if (strcmp(result.role, "tool") != 0) first = i + 1;
        if (i < first || i - first >= API_NO_RANK) continue;
        const size_t rank = given[i];
        size_t at = i;
        for (; at > first && ranks[at - 1 - first] > rank; at--) {
            messages[at] = messages[at - 1];
            ranks[at - first] = ranks[at - 1 - first];
        }
        messages[at] = result;
        ranks[at - first] = rank;
    }
}

static bool order_results(const struct api_fields *p, const json_t *array, struct rod_message *messages) {
    const size_t n = json_array_size(array);
    size_t *ranks = calloc(n, sizeof *ranks), before = 0;
    if (!ranks) return field_no_memory(p);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(messages[i].role, "tool") != 0) before = i;
        ranks[i] = result_rank(json_array_get(array, before), json_array_get(array, i));
    }
    api_order_results(messages, n, ranks);
    free(ranks);
    return true;
}

/* ---- all of them ---- */

static bool take_array(const struct api_fields *p, const json_t *array, struct rod_message **out, size_t *n_out) {
    assert(!*out && !*n_out);
    const size_t n = json_array_size(array);
    if (!n) return field_bad(p, "messages", "is empty");
    *out = calloc(n, sizeof **out);
    if (!*out) return field_no_memory(p);
    for (size_t i = 0; i < n; i++) {
        const struct place at = {p, i};
        *n_out = i + 1;
        if (!take_message(&at, json_array_get(array, i), &(*out)[i])) return false;
    }
    return order_results(p, array, *out);
}

bool api_messages(const struct api_fields *p, struct rod_message **out, size_t *n_out) {
    const json_t *value = field_get(p, "messages");
    if (!value) return field_bad(p, "messages", "is missing");
    if (json_is_array(value)) return take_array(p, value, out, n_out);
    if (!json_is_string(value))
        return field_bad(p, "messages", "must be a string or an array of messages, not %s", field_type(value));
    json_t *one = json_pack("[{s:s,s:O}]", "role", "user", "content", value);
    bool ok = one ? take_array(p, one, out, n_out) : field_no_memory(p);
    json_decref(one);
    return ok;
}

void api_messages_free_calls(struct rod_message *message) {
    for (size_t k = 0; k < message->n_calls; k++) {
        free((char *)message->calls[k].name);
        free((char *)message->calls[k].arguments);
        free((char *)message->calls[k].id);
    }
    free((struct rod_call *)message->calls);
}

void api_messages_free(struct rod_message *messages, size_t n_messages) {
    for (size_t i = 0; i < n_messages; i++) {
        api_messages_free_calls(&messages[i]);
        free((char *)messages[i].content);
        free((int32_t *)messages[i].ids);
    }
    free(messages);
}

/* Where the messages end: by default with the generation prompt, unless the model goes on with an answer's beginning.
 */
bool api_parse_end(const struct api_fields *p, const struct rod_message *messages, size_t n_messages,
                   struct api_chat_end *out) {
    *out = (struct api_chat_end){.generation = true};
    if (!field_bool(p, "continue_final_message", &out->go_on)) return false;
    out->generation = !out->go_on;
    if (!field_bool(p, "add_generation_prompt", &out->generation)) return false;
    if (!out->go_on) return true;
    if (out->generation) return field_bad(p, "continue_final_message", "and add_generation_prompt exclude each other");
    const struct rod_message *last = n_messages ? &messages[n_messages - 1] : NULL;
    if (!last || strcmp(last->role, "assistant") != 0)
        return field_bad(p, "continue_final_message", "must come with an assistant's message as the last one");
    if (last->n_calls)
        return field_bad(p, "continue_final_message", "must come with a last message without tool_calls");
    return true;
}
