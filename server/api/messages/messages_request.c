/* messages_request.c - a body of /v1/messages becomes the JSON object of a chat, which api_parse_object reads; see
 * messages.h. What both APIs name alike, and fields of this server, pass as they are. */
#include "messages.h"
#include "server/api/api_fields.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- fields that have another name, or no place in a message ---- */

static bool refuse_fields(const struct api_fields *p) {
    static const char *const renamed[][2] = {{"stop", "stop_sequences"},
                                             {"max_completion_tokens", "max_tokens"},
                                             {"response_format", "output_config.format"}};
    static const char *const fields[] = {"n",
                                         "n_cmpl",
                                         "logprobs",
                                         "top_logprobs",
                                         "prompt_logprobs",
                                         "echo",
                                         "return_token_ids",
                                         "functions",
                                         "suffix",
                                         "mcp_servers",
                                         "container",
                                         "context_management",
                                         "stream_options",
                                         "tool_calls",
                                         "function_call",
                                         "add_generation_prompt",
                                         "continue_final_message"};
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++) {
        if (field_get(p, renamed[i][0]))
            return field_bad(p, renamed[i][0], "is named %s in /v1/messages", renamed[i][1]);
    }
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *value = field_get(p, fields[i]);
        if (value && field_asks(value)) return field_bad(p, fields[i], "is not available in /v1/messages");
    }
    const json_t *stop = field_get(p, "stop_sequences");
    if (stop && !json_is_array(stop))
        return field_bad(p, "stop_sequences", "must be an array of strings, not %s", field_type(stop));
    const json_t *metadata = field_get(p, "metadata"), *tier = field_get(p, "service_tier");
    if (metadata && !json_is_object(metadata))
        return field_bad(p, "metadata", "must be an object, not %s", field_type(metadata));
    if (tier && !field_is(tier, "auto") && !field_is(tier, "standard_only"))
        return field_bad(p, "service_tier", "must be auto or standard_only");
    const json_t *thinking = field_get(p, "thinking");
    if (thinking && !field_is(json_object_get(thinking, "type"), "disabled"))
        return field_bad(p, "thinking", "must be of type disabled: the model does not think apart");
    return true;
}

/* {"type": "ephemeral", "ttl": "5m" or "1h"} of a block, a tool or the system prompt. */
static bool check_cache_control(const struct api_fields *p, const char *where, const json_t *block) {
    const json_t *mark = json_object_get(block, "cache_control"), *ttl = json_object_get(mark, "ttl");
    char param[64];
    if (!mark || json_is_null(mark)) return true;
    const bool known_ttl = !ttl || json_is_null(ttl) || field_is(ttl, "5m") || field_is(ttl, "1h");
    if (field_is(json_object_get(mark, "type"), "ephemeral") && known_ttl) return true;
    snprintf(param, sizeof param, "%.48s.cache_control", where);
    return field_bad(p, param, "must be of type ephemeral, with the ttl 5m or 1h");
}

/* The mark goes with the block into the chat. */
static json_t *cache_control_of(const json_t *block) {
    json_t *mark = json_object_get(block, "cache_control");
    return json_is_null(mark) ? NULL : mark;
}

/* ---- messages ---- */

struct chat { /* the messages of the chat, so far */
    const struct api_fields *fields;
    json_t *messages;
};

struct place { /* of a block: "messages[1].content[0]" */
    const struct api_fields *fields;
    char name[64];
};

static struct place block_place(const struct api_fields *p, const char *array, size_t i) {
    struct place at = {p, ""};
    snprintf(at.name, sizeof at.name, "%.40s[%zu]", array, i);
    return at;
}

static bool bad_block(const struct place *at, const char *what) { return field_bad(at->fields, at->name, "%s", what); }

/* Takes value. */
static bool push(const struct api_fields *p, json_t *array, json_t *value) {
    return value && !json_array_append_new(array, value) ? true : field_no_memory(p);
}

/* A member that must be a string. */
static const json_t *block_text(const struct place *at, const json_t *block, const char *member) {
    const json_t *text = json_object_get(block, member);
    char what[48];
    if (json_is_string(text)) return text;
    snprintf(what, sizeof what, "must have a string %s", member);
    bad_block(at, what);
    return NULL;
}

static bool take_text(const struct place *at, const json_t *block, json_t *parts) {
    const json_t *text = block_text(at, block, "text");
    return text &&
           push(at->fields, parts,
                json_pack("{s:s,s:O,s:O*}", "type", "text", "text", text, "cache_control", cache_control_of(block)));
}

/* A string as it is, or blocks that are all text. NULL with the error set. */
static json_t *text_content(const struct api_fields *p, const char *where, const json_t *content) {
    if (json_is_string(content)) return json_incref((json_t *)content);
    json_t *parts = json_is_array(content) ? json_array() : NULL;
    bool ok = parts != NULL;
    if (!json_is_array(content)) field_bad(p, where, content ? "must be a string or an array of blocks" : "is missing");
    if (json_is_array(content) && !parts) field_no_memory(p);
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        const struct place at = block_place(p, where, i);
        ok = field_is(json_object_get(block, "type"), "text")
                 ? check_cache_control(p, at.name, block) && take_text(&at, block, parts)
                 : bad_block(&at, "must be of type text: the model reads nothing else");
    }
    if (ok) return parts;
    json_decref(parts);
    return NULL;
}

/* {"type": "tool_use", "id", "name", "input"} as a call of a chat. */
static bool take_tool_use(const struct place *at, const json_t *block, json_t *calls) {
    const json_t *id = block_text(at, block, "id"), *name = id ? block_text(at, block, "name") : NULL;
    const json_t *input = json_object_get(block, "input");
    if (!name) return false;
    if (!json_string_length(name)) return bad_block(at, "must have a name that is not empty");
    if (!json_is_object(input)) return bad_block(at, "must have an object input");
    struct buf arguments = {0}; /* spelled as the model's own calls are */
    api_put_line(&arguments, input);
    json_t *call = arguments.failed ? NULL
                                    : json_pack("{s:O,s:s,s:{s:O,s:s%}}", "id", id, "type", "function", "function",
                                                "name", name, "arguments", arguments.data, arguments.len);
    buf_fini(&arguments);
    return push(at->fields, calls, call);
}

/* {"type": "tool_result", "tool_use_id", "content"} as a message of a chat. */
static bool take_tool_result(const struct place *at, const json_t *block, json_t *messages) {
    char where[80];
    const json_t *id = block_text(at, block, "tool_use_id"), *content = json_object_get(block, "content");
    if (!id) return false;
    snprintf(where, sizeof where, "%s.content", at->name);
    json_t *text = content && !json_is_null(content) ? text_content(at->fields, where, content) : json_string("");
    if (!text) return false;
    return push(at->fields, messages,
                json_pack("{s:s,s:O,s:o,s:O*}", "role", "tool", "tool_call_id", id, "content", text, "cache_control",
                          cache_control_of(block)));
}

struct blocks { /* of one message */
    json_t *texts, *calls;
    json_t *called_mark; /* cache_control of its last call, borrowed */
};

static bool take_block(struct chat *c, const struct place *at, bool user, const json_t *block, struct blocks *out) {
    const json_t *type = json_object_get(block, "type");
    if (!check_cache_control(c->fields, at->name, block)) return false;
    if (field_is(type, "text")) return take_text(at, block, out->texts);
    if (user && field_is(type, "tool_result")) return take_tool_result(at, block, c->messages);
    if (!user && field_is(type, "tool_use")) {
        if (cache_control_of(block)) out->called_mark = cache_control_of(block);
        return take_tool_use(at, block, out->calls);
    }
    if (!user && (field_is(type, "thinking") || field_is(type, "redacted_thinking"))) return true; /* as others do */
    return bad_block(at, user ? "must be of type text or tool_result: the model reads nothing else"
                              : "must be of type text or tool_use");
}

/* Results of tools become messages of their own, before the text of their message. */
static bool take_blocks(struct chat *c, const char *where, bool user, const json_t *content) {
    struct blocks found = {json_array(), json_array(), NULL};
    bool ok = found.texts && found.calls ? true : field_no_memory(c->fields);
    const size_t before = json_array_size(c->messages);
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        const struct place at = block_place(c->fields, where, i);
        ok = take_block(c, &at, user, json_array_get(content, i), &found);
    }
    const bool results_alone = json_array_size(c->messages) > before && !json_array_size(found.texts);
    if (ok && !results_alone) {
        json_t *message = json_pack("{s:s,s:O,s:O*}", "role", user ? "user" : "assistant", "content", found.texts,
                                    "cache_control", found.called_mark);
        const bool calls = json_array_size(found.calls) > 0;
        if (message && calls && json_object_set(message, "tool_calls", found.calls)) {
            json_decref(message);
            message = NULL;
        }
        ok = push(c->fields, c->messages, message);
    }
    json_decref(found.texts);
    json_decref(found.calls);
    return ok;
}

static bool take_message(struct chat *c, size_t i, const json_t *value) {
    const struct api_fields *p = c->fields;
    char where[80];
    const struct place at = block_place(p, "messages", i);
    const json_t *role = json_object_get(value, "role"), *content = json_object_get(value, "content");
    const bool user = field_is(role, "user");
    if (!json_is_object(value)) return field_bad(p, at.name, "must be an object, not %s", field_type(value));
    if (cache_control_of(value)) {
        snprintf(where, sizeof where, "%s.cache_control", at.name);
        return field_bad(p, where, "belongs into a block of its content");
    }
    snprintf(where, sizeof where, "%s.role", at.name);
    if (!user && !field_is(role, "assistant")) return field_bad(p, where, "must be user or assistant");
    snprintf(where, sizeof where, "%s.content", at.name);
    if (json_is_array(content)) return take_blocks(c, where, user, content);
    json_t *text = text_content(p, where, content);
    return text && push(p, c->messages, json_pack("{s:s,s:o}", "role", user ? "user" : "assistant", "content", text));
}

static json_t *chat_messages(const struct api_fields *p) {
    const json_t *system = field_get(p, "system"), *given = field_get(p, "messages");
    struct chat c = {p, json_array()};
    bool ok = c.messages ? true : field_no_memory(p);
    if (ok && system) {
        json_t *text = text_content(p, "system", system);
        ok = text && push(p, c.messages, json_pack("{s:s,s:o}", "role", "system", "content", text));
    }
    if (ok && !json_array_size(given))
        ok = field_bad(p, "messages", given ? "must be an array with a message" : "is missing");
    for (size_t i = 0; ok && i < json_array_size(given); i++) ok = take_message(&c, i, json_array_get(given, i));
    if (ok) return c.messages;
    json_decref(c.messages);
    return NULL;
}

/* ---- tools ---- */

static bool bad_member(const struct place *at, const char *member, const char *what) {
    char name[sizeof at->name + 24];
    snprintf(name, sizeof name, "%s.%s", at->name, member);
    return field_bad(at->fields, name, "%s", what);
}

static bool take_tool(const struct place *at, const json_t *tool, json_t *functions) {
    const json_t *type = json_object_get(tool, "type"), *schema = json_object_get(tool, "input_schema"),
                 *name = json_object_get(tool, "name");
    if (!json_is_object(tool)) return bad_block(at, "must be an object");
    if (type && !json_is_null(type) && !field_is(type, "custom"))
        return bad_member(at, "type", "must be custom: this server runs no tools itself");
    if (!json_is_string(name)) return bad_member(at, "name", "must be a string");
    if (!json_is_object(schema)) return bad_member(at, "input_schema", "must be an object");
    if (!check_cache_control(at->fields, at->name, tool)) return false;
    return push(at->fields, functions,
                json_pack("{s:s,s:{s:O,s:O*,s:O,s:O*},s:O*}", "type", "function", "function", "name", name,
                          "description", json_object_get(tool, "description"), "parameters", schema, "strict",
                          json_object_get(tool, "strict"), "cache_control", cache_control_of(tool)));
}

static bool take_tools(const struct api_fields *p, json_t *chat) {
    const json_t *tools = field_get(p, "tools");
    if (!tools) return true;
    if (!json_is_array(tools)) return field_bad(p, "tools", "must be an array, not %s", field_type(tools));
    json_t *functions = json_array();
    bool ok = functions ? true : field_no_memory(p);
    for (size_t i = 0; ok && i < json_array_size(tools); i++) {
        const struct place at = block_place(p, "tools", i);
        ok = take_tool(&at, json_array_get(tools, i), functions);
    }
    if (ok && json_object_set(chat, "tools", functions)) ok = field_no_memory(p);
    json_decref(functions);
    return ok;
}

/* {"type": "auto", "any", "none" or "tool" with a name, "disable_parallel_tool_use"?} */
static bool take_tool_choice(const struct api_fields *p, json_t *chat) {
    const json_t *given = field_get(p, "tool_choice"), *type = json_object_get(given, "type"),
                 *name = json_object_get(given, "name");
    const json_t *alone = json_object_get(given, "disable_parallel_tool_use");
    json_t *choice = NULL;
    if (!given) return true;
    if (field_is(type, "auto") || field_is(type, "none")) choice = json_copy((json_t *)type);
    if (field_is(type, "any")) choice = json_string("required");
    if (field_is(type, "tool") && json_is_string(name))
        choice = json_pack("{s:s,s:{s:O}}", "type", "function", "function", "name", name);
    if (!choice) return field_bad(p, "tool_choice", "must be of type auto, any, none, or tool with a name");
    if (alone && !json_is_null(alone) && !json_is_boolean(alone)) {
        json_decref(choice);
        return field_bad(p, "tool_choice.disable_parallel_tool_use", "must be true or false");
    }
    if (json_object_set_new(chat, "tool_choice", choice)) return field_no_memory(p);
    if (json_is_boolean(alone) && json_object_set_new(chat, "parallel_tool_calls", json_boolean(json_is_false(alone))))
        return field_no_memory(p);
    return true;
}

/* ---- the chat ---- */

static const json_t *newer_format(const struct api_fields *p) {
    const json_t *format = json_object_get(field_get(p, "output_config"), "format");
    return json_is_null(format) ? NULL : format;
}

static const char *format_name(const struct api_fields *p) {
    return newer_format(p) ? "output_config.format" : "output_format";
}

/* output_config.format {"type": "json_schema", "schema": ...}, or the same in its older place. */
static bool take_format(const struct api_fields *p, json_t *chat) {
    const json_t *config = field_get(p, "output_config"), *older = field_get(p, "output_format");
    if (config && !json_is_object(config))
        return field_bad(p, "output_config", "must be an object, not %s", field_type(config));
    const json_t *format = newer_format(p) ? newer_format(p) : older;
    if (!format) return true;
    if (older && !json_equal(older, format))
        return field_bad(p, "output_format", "is another place of output_config.format, which has another value");
    json_t *schema = json_object_get(format, "schema");
    if (!field_is(json_object_get(format, "type"), "json_schema") || !json_is_object(schema))
        return field_bad(p, format_name(p), "must be of type json_schema, with a schema");
    json_t *wanted =
        json_pack("{s:s,s:{s:s,s:O}}", "type", "json_schema", "json_schema", "name", "answer", "schema", schema);
    if (!wanted || json_object_set_new(chat, "response_format", wanted)) return field_no_memory(p);
    return true;
}

/* A message of the assistant at the end is the beginning of the answer. */
static bool take_prefill(const struct api_fields *p, const json_t *messages, json_t *chat) {
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    if (!field_is(json_object_get(last, "role"), "assistant") || json_object_get(last, "tool_calls")) return true;
    if (!json_object_set_new(chat, "continue_final_message", json_true()) &&
        !json_object_set_new(chat, "add_generation_prompt", json_false()))
        return true;
    return field_no_memory(p);
}

/* The body as a chat's object: new, or NULL with the error set. */
static json_t *chat_of(const struct api_fields *p, bool counting) {
    static const char *const own[] = {"system",        "stop_sequences", "thinking", "output_config",
                                      "output_format", "service_tier",   "metadata"};
    if (!refuse_fields(p)) return NULL;
    int64_t max_tokens = 1;
    if (!field_int(p, "max_tokens", 1, INT32_MAX, &max_tokens)) return NULL;
    if (!counting && !field_get(p, "max_tokens")) {
        field_bad(p, "max_tokens", "is missing");
        return NULL;
    }
    json_t *messages = chat_messages(p), *chat = messages ? json_copy((json_t *)p->root) : NULL;
    if (messages && !chat) field_no_memory(p);
    if (chat) {
        const json_t *stop = field_get(p, "stop_sequences");
        bool ok =
            !json_object_set(chat, "messages", messages) && (!stop || !json_object_set(chat, "stop", (json_t *)stop));
        for (size_t i = 0; i < sizeof own / sizeof *own; i++) json_object_del(chat, own[i]);
        if (!ok) field_no_memory(p);
        if (!ok || !take_prefill(p, messages, chat) || !take_format(p, chat) || !take_tools(p, chat) ||
            !take_tool_choice(p, chat)) {
            json_decref(chat);
            chat = NULL;
        }
    }
    json_decref(messages);
    return chat;
}

/* Errors of the chat's parser name a chat's fields. */
static void rename_field(struct api_error *err, const char *from, const char *to) {
    const size_t n = strlen(from);
    struct api_error old = *err;
    if (strncmp(old.param, from, n) != 0 || (old.param[n] && !strchr(".[", old.param[n]))) return;
    snprintf(err->param, sizeof err->param, "%s%.40s", to, old.param + n);
    if (!strncmp(old.message, from, n)) snprintf(err->message, sizeof err->message, "%s%.400s", to, old.message + n);
}

/* tools[0].function.parameters of a chat is tools[0].input_schema. */
static void rename_tool_field(struct api_error *err) {
    char of_chat[64], own[64];
    unsigned i = 0;
    if (sscanf(err->param, "tools[%u].function.", &i) != 1) return;
    snprintf(of_chat, sizeof of_chat, "tools[%u].function.parameters", i);
    snprintf(own, sizeof own, "tools[%u].input_schema", i);
    rename_field(err, of_chat, own);
    snprintf(of_chat, sizeof of_chat, "tools[%u].function", i);
    snprintf(own, sizeof own, "tools[%u]", i);
    rename_field(err, of_chat, own);
}

int messages_parse(const char *body, size_t len, bool counting, const struct api_defaults *defaults,
                   struct api_request *out, struct api_error *err) {
    *out = (struct api_request){.kind = API_CHAT};
    json_t *root = api_load(body, len, err);
    if (!root) return -1;
    const struct api_fields p = {root, defaults, err};
    json_t *chat = chat_of(&p, counting);
    const int rc = chat ? api_parse_object(API_CHAT, chat, defaults, out, err) : -1;
    if (chat && rc) {
        rename_field(err, "stop", "stop_sequences");
        rename_field(err, "response_format", format_name(&p));
        rename_tool_field(err);
    }
    /* An assistant's message at the end is the beginning of the answer. */
    const struct rod_message *last = !rc ? &out->messages[out->n_messages - 1] : NULL;
    if (last && !strcmp(last->role, "assistant") && !last->n_calls) out->end = (struct api_chat_end){.go_on = true};
    if (!rc && out->grammar.text && !strcmp(out->grammar.param, "response_format"))
        out->grammar.param = format_name(&p);
    json_decref(chat);
    json_decref(root);
    return rc;
}
