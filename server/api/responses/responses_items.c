/* responses_items.c - the input of a response, items that become messages; see responses_parts.h. */
#include "responses_parts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct place { /* of an item in the input */
    const struct api_fields *fields;
    size_t i;
};

/* Names a field of an item, or the item itself. */
static bool bad_in(const struct place *at, const char *field, const char *what) {
    char param[64];
    snprintf(param, sizeof param, "input[%zu]%s%s", at->i, *field ? "." : "", field);
    return field_bad(at->fields, param, "%s", what);
}

/* A member that may be missing; a name with a NUL would be cut there, and be another's. */
static bool check_string(const struct place *at, const json_t *item, const char *field) {
    const json_t *value = json_object_get(item, field);
    if (!value || json_is_null(value)) return true;
    if (!json_is_string(value)) return bad_in(at, field, "must be a string");
    return !field_has_nul(value) || bad_in(at, field, "must not contain a NUL");
}

/* ---- texts ---- */

static void put_text(struct buf *out, const json_t *text) {
    buf_add(out, json_string_value(text), json_string_length(text));
}

/* The model learns that it does not see something: without a word it would speak of what it cannot know. */
static void put_unseen(const struct place *at, enum api_ignored what, struct buf *out) {
    buf_addf(out, "[%s: not shown, this model reads text alone]", api_ignored_names[what]);
    field_ignore(at->fields, what);
}

/* False: it is no part that the model reads. */
static bool put_part(const struct place *at, const json_t *part, struct buf *out) {
    static const struct {
        const char *type, *text;
    } texts[] = {{"input_text", "text"},   {"output_text", "text"}, {"text", "text"},
                 {"summary_text", "text"}, {"refusal", "refusal"},  {"encrypted_content", "encrypted_content"}};
    const json_t *type = json_object_get(part, "type");
    if (json_is_string(part)) {
        put_text(out, part);
        return true;
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const json_t *text = json_object_get(part, texts[i].text);
        if (!field_is(type, texts[i].type)) continue;
        put_text(out, text);
        return json_is_string(text);
    }
    if (field_is(type, "input_image"))
        put_unseen(at, API_IGNORED_IMAGE, out);
    else if (field_is(type, "input_file"))
        put_unseen(at, API_IGNORED_DOCUMENT, out);
    else
        return false;
    return true;
}

/* Parts are joined by line breaks, as other servers do for models that know text alone. field: the item's. */
static bool put_content(const struct place *at, const char *field, const json_t *content, struct buf *out) {
    char name[40];
    if (json_is_string(content)) {
        put_text(out, content);
        return true;
    }
    for (size_t i = 0; i < json_array_size(content); i++) {
        if (i) buf_putc(out, '\n');
        if (put_part(at, json_array_get(content, i), out)) continue;
        snprintf(name, sizeof name, "%s[%zu]", field, i);
        return bad_in(at, name, "must be of type text: the model reads nothing else");
    }
    return true;
}

/* ---- messages ---- */

struct messages {
    struct rod_message *first;
    size_t *ranks; /* [n] of results, as api_order_results takes them */
    size_t n;
    size_t head;     /* so many items of the input are in it */
    size_t n_before; /* messages before the input */
    json_t *before;  /* items of the answer that the input goes on from; NULL = not known */
};

/* Takes the text, also on an error. */
static bool push(const struct api_fields *p, const char *role, struct buf *text, struct messages *out) {
    struct rod_message *m = &out->first[out->n];
    out->ranks[out->n++] = API_NO_RANK;
    m->role = role;
    m->content = buf_take(text, &m->content_len);
    return m->content || field_no_memory(p);
}

static bool push_content(const struct place *at, const char *role, const char *field, const json_t *content,
                         struct messages *out) {
    struct buf text = {0};
    if (put_content(at, field, content, &text)) return push(at->fields, role, &text, out);
    buf_fini(&text);
    return false;
}

static bool take_message(const struct place *at, const json_t *item, struct messages *out) {
    static const char *const roles[] = {"system", "developer", "user", "assistant"};
    const json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content");
    const char *known = NULL;
    if (!json_is_string(role)) return bad_in(at, "role", "is missing");
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++) {
        if (field_is(role, roles[r])) known = roles[r];
    }
    if (!known) return bad_in(at, "role", "must be system, developer, user or assistant");
    const bool none = !content || json_is_null(content);
    if (none && strcmp(known, "assistant") != 0) return bad_in(at, "content", "is missing");
    if (!none && !json_is_string(content) && !json_is_array(content))
        return bad_in(at, "content", "must be a string or an array of parts");
    return push_content(at, known, "content", content, out);
}

/* ---- calls of tools ---- */

/* A string as it is; an object, and the text of a custom tool, as the model writes them. */
static bool put_arguments(const struct place *at, const json_t *item, struct buf *out) {
    const json_t *arguments = json_object_get(item, "arguments"), *input = json_object_get(item, "input");
    if (field_is(json_object_get(item, "type"), "custom_tool_call")) {
        if (!json_is_string(input)) return bad_in(at, "input", "must be a string");
        buf_puts(out, "{\"input\": ");
        api_put_line(out, input);
        buf_putc(out, '}');
        return true;
    }
    if (json_is_object(arguments))
        api_put_line(out, arguments);
    else
        put_text(out, arguments);
    return !arguments || json_is_null(arguments) || json_is_string(arguments) || json_is_object(arguments) ||
           bad_in(at, "arguments", "must be a string of JSON");
}

/* The assistant's message before a call, which other calls may have begun, or a new one. NULL: out of memory. */
static struct rod_message *caller(const struct place *at, struct messages *out) {
    struct buf none = {0};
    struct rod_message *last = out->n ? &out->first[out->n - 1] : NULL;
    if (last && !strcmp(last->role, "assistant")) return last;
    return push(at->fields, "assistant", &none, out) ? &out->first[out->n - 1] : NULL;
}

/* Takes the texts. */
static bool push_call(const struct place *at, const json_t *item, struct buf *name, struct buf *arguments,
                      struct messages *out) {
    const json_t *id = json_object_get(item, "call_id");
    size_t id_len;
    struct rod_message *m = caller(at, out);
    struct rod_call *calls = m ? realloc((struct rod_call *)m->calls, (m->n_calls + 1) * sizeof *calls) : NULL;
    struct rod_call call = {0};
    call.name = buf_take(name, &call.name_len);
    call.arguments = buf_take(arguments, &call.arguments_len);
    call.id = json_is_string(id) ? field_copy(id, &id_len) : NULL;
    if (!calls) {
        free((char *)call.name);
        free((char *)call.arguments);
        free((char *)call.id);
        return field_no_memory(at->fields);
    }
    calls[m->n_calls++] = call;
    m->calls = calls;
    return (call.name && call.arguments && (call.id || !json_is_string(id))) || field_no_memory(at->fields);
}

static bool take_call(const struct place *at, const json_t *item, struct messages *out) {
    struct buf name = {0}, arguments = {0};
    if (!check_string(at, item, "call_id") || !check_string(at, item, "namespace")) return false;
    if (!responses_put_name(item, &name)) return bad_in(at, "", "must have a name");
    if (put_arguments(at, item, &arguments)) return push_call(at, item, &name, &arguments, out);
    buf_fini(&name);
    buf_fini(&arguments);
    return false;
}

/* The place of a call among those of a message. */
static size_t rank_in(const struct rod_message *caller, const json_t *call_id) {
    for (size_t i = 0; i < caller->n_calls && i < API_NO_RANK; i++)
        if (caller->calls[i].id && field_is(call_id, caller->calls[i].id)) return i;
    return API_NO_RANK;
}

/* Likewise, of the answer before the input. */
static size_t rank_before(const json_t *items, const json_t *call_id) {
    const json_t *item;
    size_t i;
    json_array_foreach(items, i, item) {
        if (i == API_NO_RANK) break;
        if (json_is_string(call_id) && json_equal(json_object_get(item, "call_id"), call_id)) return i;
    }
    return API_NO_RANK;
}

/* The last message is a result of this call, whose place among those before is known. */
static bool rank_result(const json_t *call_id, struct messages *out) {
    size_t first = out->n - 1;
    while (first > out->n_before && !strcmp(out->first[first - 1].role, "tool")) first--;
    out->ranks[out->n - 1] =
        first > out->n_before ? rank_in(&out->first[first - 1], call_id) : rank_before(out->before, call_id);
    return true;
}

static bool take_output(const struct place *at, const json_t *item, struct messages *out) {
    const json_t *output = json_object_get(item, "output");
    if (!check_string(at, item, "call_id")) return false;
    if (!json_is_string(output) && !json_is_array(output))
        return bad_in(at, "output", "must be a string or an array of parts");
    return push_content(at, "tool", "output", output, out) && rank_result(json_object_get(item, "call_id"), out);
}

/* Definitions where they were found, or given later than the first ones. */
static bool take_tools(const struct place *at, const char *role, const json_t *item, struct messages *out) {
    struct buf text = {0};
    char where[48];
    snprintf(where, sizeof where, "input[%zu].tools", at->i);
    if (responses_put_tools(at->fields, where, json_object_get(item, "tools"), &text))
        return push(at->fields, role, &text, out);
    buf_fini(&text);
    return false;
}

/* ---- the other items ---- */

/* What another agent says, in the text that this server gave as encrypted_content. */
static bool take_agent(const struct place *at, const json_t *item, struct messages *out) {
    const json_t *author = json_object_get(item, "author"), *content = json_object_get(item, "content");
    struct buf text = {0};
    if (!check_string(at, item, "author")) return false;
    if (!json_is_string(content) && !json_is_array(content))
        return bad_in(at, "content", "must be a string or an array of parts");
    if (json_string_length(author)) {
        buf_puts(&text, "Message from ");
        put_text(&text, author);
        buf_puts(&text, ":\n");
    }
    if (put_content(at, "content", content, &text)) return push(at->fields, "user", &text, out);
    buf_fini(&text);
    return false;
}

/* What the model does not read; API_N_IGNORED: it is no such item. */
static enum api_ignored left_out(const json_t *type) {
    static const struct {
        const char *type;
        enum api_ignored as;
    } items[] = {{"web_search_call", API_IGNORED_SERVER_CALL},
                 {"file_search_call", API_IGNORED_SERVER_CALL},
                 {"code_interpreter_call", API_IGNORED_SERVER_CALL},
                 {"image_generation_call", API_IGNORED_SERVER_CALL},
                 {"computer_call", API_IGNORED_SERVER_CALL},
                 {"computer_call_output", API_IGNORED_SERVER_CALL},
                 {"local_shell_call", API_IGNORED_SERVER_CALL},
                 {"local_shell_call_output", API_IGNORED_SERVER_CALL},
                 {"shell_call", API_IGNORED_SERVER_CALL},
                 {"shell_call_output", API_IGNORED_SERVER_CALL},
                 {"mcp_call", API_IGNORED_SERVER_CALL},
                 {"mcp_list_tools", API_IGNORED_SERVER_CALL},
                 {"mcp_approval_request", API_IGNORED_SERVER_CALL},
                 {"mcp_approval_response", API_IGNORED_SERVER_CALL},
                 {"compaction", API_IGNORED_COMPACTION},
                 {"compaction_summary", API_IGNORED_COMPACTION},
                 {"compaction_trigger", API_IGNORED_COMPACTION},
                 {"context_compaction", API_IGNORED_COMPACTION},
                 {"ghost_snapshot", API_IGNORED_GHOST_SNAPSHOT}};
    for (size_t i = 0; i < sizeof items / sizeof *items; i++)
        if (field_is(type, items[i].type)) return items[i].as;
    return API_N_IGNORED;
}

static bool bad_type(const struct place *at, const json_t *type) {
    char param[48];
    snprintf(param, sizeof param, "input[%zu].type", at->i);
    return field_bad(at->fields, param,
                     "must be message, function_call, function_call_output, reasoning or another kind of item that "
                     "this server knows, not '%.40s'",
                     json_is_string(type) ? json_string_value(type) : field_type(type));
}

/* A message more, a call of the last one, or what the model does not read. */
static bool take_item(const struct place *at, const json_t *input, struct messages *out) {
    const json_t *item = json_array_get(input, at->i), *type = json_object_get(item, "type");
    const enum api_ignored ignored = left_out(type);
    char what[64];
    if (!json_is_object(item)) {
        snprintf(what, sizeof what, "must be an object, not %s", field_type(item));
        return bad_in(at, "", what);
    }
    if (!type || json_is_null(type) || field_is(type, "message")) return take_message(at, item, out);
    if (field_is(type, "function_call") || field_is(type, "custom_tool_call") || field_is(type, "tool_search_call"))
        return take_call(at, item, out);
    if (field_is(type, "function_call_output") || field_is(type, "custom_tool_call_output"))
        return take_output(at, item, out);
    if (field_is(type, "tool_search_output"))
        return check_string(at, item, "call_id") && take_tools(at, "tool", item, out) &&
               rank_result(json_object_get(item, "call_id"), out);
    if (field_is(type, "additional_tools")) return at->i < out->head || take_tools(at, "system", item, out);
    if (field_is(type, "agent_message")) return take_agent(at, item, out);
    if (field_is(type, "reasoning")) return true;
    if (ignored == API_N_IGNORED) return bad_type(at, type);
    field_ignore(at->fields, ignored);
    return true;
}

static bool take_array(const struct api_fields *p, const json_t *input, struct messages *out) {
    for (size_t i = 0; i < json_array_size(input); i++) {
        const struct place at = {p, i};
        if (!take_item(&at, input, out)) return false;
    }
    return true;
}

static bool take_user(const struct api_fields *p, const json_t *text, struct messages *out) {
    struct buf said = {0};
    put_text(&said, text);
    return push(p, "user", &said, out);
}

bool responses_take_items(const struct api_fields *p, struct api_request *out) {
    const json_t *instructions = field_get(p, "instructions"), *input = field_get(p, "input");
    struct messages messages = {.head = responses_head(input)};
    struct buf said = {0};
    if (instructions && !json_is_string(instructions))
        return field_bad(p, "instructions", "must be a string, not %s", field_type(instructions));
    if (!input) return field_bad(p, "input", "is missing");
    if (!json_is_string(input) && !json_is_array(input))
        return field_bad(p, "input", "must be a string or an array of messages, not %s", field_type(input));
    assert(!out->messages);
    out->messages = messages.first = calloc(json_array_size(input) + 2, sizeof *messages.first);
    messages.ranks = calloc(json_array_size(input) + 2, sizeof *messages.ranks);
    if (!messages.first || !messages.ranks) {
        free(messages.ranks);
        return field_no_memory(p);
    }
    put_text(&said, instructions);
    bool ok = !instructions || push(p, "system", &said, &messages);
    messages.n_before = messages.n;
    ok = ok && responses_take_before(p, &messages.before) &&
         (json_is_string(input) ? take_user : take_array)(p, input, &messages);
    out->n_messages = messages.n;
    if (ok) api_order_results(messages.first, messages.n, messages.ranks);
    json_decref(messages.before);
    free(messages.ranks);
    return ok;
}

bool responses_check_items(const struct api_fields *p, const struct api_request *q) {
    const json_t *input = field_get(p, "input"), *type = json_object_get(json_array_get(input, 0), "type");
    if (q->n_messages > (field_get(p, "instructions") != NULL)) return true;
    if (!json_array_size(input)) return field_bad(p, "input", "is empty");
    return field_bad(p, "input[0].type", "is %.40s, and no item of the input is one that the model answers",
                     json_string_value(type));
}
