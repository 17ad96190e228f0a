/* openai_messages.c - the messages of chats and responses: roles and text. */
#include "openai_fields.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct place { /* of a message in the request */
    const struct openai_fields *fields;
    const char *array;
    size_t i;
};

/* Names a field of a message, or the message itself. */
static bool bad_in(const struct place *at, const char *field, const char *what) {
    char param[64];
    snprintf(param, sizeof param, "%s[%zu]%s%s", at->array, at->i, *field ? "." : "", field);
    return field_bad(at->fields, param, "%s", what);
}

/* Chats say text, responses input_text and output_text. */
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
    } else if (strcmp(out->role, "assistant") != 0) {
        ok = bad_in(at, "content", "is missing");
    }
    out->content = ok ? buf_take(&text, &out->content_len) : NULL;
    buf_fini(&text);
    return !ok || out->content ? ok : field_no_memory(at->fields);
}

static bool take_message(const struct place *at, const json_t *value, struct rod_message *out) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    char what[64];
    if (!json_is_object(value)) {
        snprintf(what, sizeof what, "must be an object, not %s", field_type(value));
        return bad_in(at, "", what);
    }
    const json_t *type = json_object_get(value, "type"), *calls = json_object_get(value, "tool_calls");
    const bool chat = !strcmp(at->array, "messages");
    if (!chat && type && !json_is_null(type) && !field_is(type, "message"))
        return bad_in(at, "type", "is not available in this version: items are of type message");
    const json_t *role = json_object_get(value, "role");
    if (!json_is_string(role)) return bad_in(at, "role", "is missing");
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++) {
        if (field_is(role, roles[r])) out->role = roles[r];
    }
    if (!out->role) return bad_in(at, "role", "must be system, developer, user, assistant or tool");
    if (!chat && !strcmp(out->role, "tool")) return bad_in(at, "role", "must be system, developer, user or assistant");
    if (calls && field_asks(calls)) return bad_in(at, "tool_calls", "is not available in this version");
    return take_content(at, json_object_get(value, "content"), out);
}

bool openai_messages(const struct openai_fields *p, const char *name, const json_t *array, const json_t *instructions,
                     struct rod_message **out, size_t *n_out) {
    assert(!*out && !*n_out);
    const size_t n = json_array_size(array), before = instructions ? 1 : 0;
    if (!n) return field_bad(p, name, "is empty");
    *out = calloc(n + before, sizeof **out);
    if (!*out) return field_no_memory(p);
    *n_out = n + before;
    struct rod_message *first = *out;
    if (instructions) {
        first->role = "system";
        first->content = field_copy(instructions, &first->content_len);
        if (!first->content) return field_no_memory(p);
    }
    for (size_t i = 0; i < n; i++) {
        const struct place at = {p, name, i};
        if (!take_message(&at, json_array_get(array, i), &(*out)[before + i])) return false;
    }
    return true;
}

void openai_messages_free(struct rod_message *messages, size_t n_messages) {
    for (size_t i = 0; i < n_messages; i++) free((char *)messages[i].content);
    free(messages);
}
