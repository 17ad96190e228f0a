/* messages_request.c - the body of a message: blocks become messages, tools and marks of the cache; see messages.h.
 * What both APIs name alike, and fields of this server, are read as a chat's. */
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
    return api_no_hole(p);
}

static bool check_counted(const struct api_fields *p) {
    int64_t max_tokens = 1;
    return refuse_fields(p) && field_int(p, "max_tokens", 1, INT32_MAX, &max_tokens);
}

static bool check_fields(const struct api_fields *p) {
    return check_counted(p) && (field_get(p, "max_tokens") || field_bad(p, "max_tokens", "is missing"));
}

/* ---- blocks ---- */

struct place { /* of a block: "messages[1].content[0]" */
    const struct api_fields *fields;
    char name[80];
};

static struct place block_place(const struct api_fields *p, const char *array, size_t i) {
    struct place at = {p, ""};
    snprintf(at.name, sizeof at.name, "%.56s[%zu]", array, i);
    return at;
}

static bool bad_block(const struct place *at, const char *what) { return field_bad(at->fields, at->name, "%s", what); }

static bool take_mark(const struct place *at, const json_t *block, struct api_cache_mark mark, struct api_cache *out) {
    char field[sizeof at->name + 2];
    snprintf(field, sizeof field, "%s.", at->name);
    return api_take_mark(at->fields, field, block, mark, out);
}

static bool has_mark(const json_t *block) {
    const json_t *mark = json_object_get(block, "cache_control");
    return mark && !json_is_null(mark);
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

struct texts { /* of one message: its content so far, with the places in it that the cache is to keep */
    struct buf text;
    size_t n;
    struct api_cache cache; /* in the message, whose number is not known yet */
};

static bool take_text(const struct place *at, const json_t *block, struct texts *out) {
    const json_t *text = block_text(at, block, "text");
    if (!text) return false;
    if (out->n++) buf_putc(&out->text, '\n');
    buf_add(&out->text, json_string_value(text), json_string_length(text));
    return take_mark(at, block, (struct api_cache_mark){.len = out->text.len}, &out->cache);
}

/* A string as it is, or blocks that are all text. */
static bool take_content(const struct api_fields *p, const char *where, const json_t *content, struct texts *out) {
    if (json_is_string(content)) {
        buf_add(&out->text, json_string_value(content), json_string_length(content));
        return true;
    }
    if (!json_is_array(content))
        return field_bad(p, where, content ? "must be a string or an array of blocks" : "is missing");
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *block = json_array_get(content, i);
        const struct place at = block_place(p, where, i);
        if (!field_is(json_object_get(block, "type"), "text"))
            return bad_block(&at, "must be of type text: the model reads nothing else");
        if (!take_text(&at, block, out)) return false;
    }
    return true;
}

/* ---- messages ---- */

struct reader { /* of the messages, so far */
    const struct api_fields *fields;
    struct api_request *out;
    size_t *ranks; /* [n_messages] of results, as api_order_results takes them */
    size_t cap;
    const json_t *called; /* the content of the last message that is no result */
};

static bool add_marks(const struct reader *r, const struct api_cache *marks) {
    struct api_cache *out = &r->out->cache;
    for (uint32_t i = 0; i < marks->n; i++) {
        if (out->n == API_MAX_CACHE_MARKS)
            return field_bad(r->fields, "cache_control", "stands in more than %d places", API_MAX_CACHE_MARKS);
        out->marks[out->n] = marks->marks[i];
        out->marks[out->n++].message = r->out->n_messages - 1;
    }
    return true;
}

/* Takes what texts and calls hold, also on an error. */
static bool push(struct reader *r, const char *role, size_t rank, struct texts *texts, struct rod_message *calls) {
    struct api_request *q = r->out;
    if (q->n_messages == r->cap) {
        const size_t cap = r->cap ? 2 * r->cap : 8;
        struct rod_message *messages = realloc(q->messages, cap * sizeof *messages);
        if (messages) q->messages = messages;
        size_t *ranks = realloc(r->ranks, cap * sizeof *ranks);
        if (ranks) r->ranks = ranks;
        if (!messages || !ranks) return field_no_memory(r->fields);
        r->cap = cap;
    }
    r->ranks[q->n_messages] = rank;
    struct rod_message *m = &q->messages[q->n_messages++];
    *m = (struct rod_message){.role = role};
    if (calls) {
        m->calls = calls->calls;
        m->n_calls = calls->n_calls;
        *calls = (struct rod_message){0};
    }
    m->content = buf_take(&texts->text, &m->content_len);
    return m->content ? add_marks(r, &texts->cache) : field_no_memory(r->fields);
}

/* {"type": "tool_use", "id", "name", "input"}: spelled as the model's own calls are. */
static bool take_tool_use(const struct place *at, const json_t *block, struct rod_message *out) {
    const json_t *name = block_text(at, block, "id") ? block_text(at, block, "name") : NULL;
    const json_t *input = json_object_get(block, "input");
    if (!name) return false;
    if (!json_string_length(name)) return bad_block(at, "must have a name that is not empty");
    if (!json_is_object(input)) return bad_block(at, "must have an object input");
    struct rod_call *calls = realloc((struct rod_call *)out->calls, (out->n_calls + 1) * sizeof *calls);
    if (!calls) return field_no_memory(at->fields);
    struct rod_call *call = &calls[out->n_calls++];
    struct buf line = {0};
    *call = (struct rod_call){0};
    out->calls = calls;
    api_put_line(&line, input);
    call->name = field_copy(name, &call->name_len);
    call->arguments = buf_take(&line, &call->arguments_len);
    return (call->name && call->arguments) || field_no_memory(at->fields);
}

/* The place of the call that a result answers, among those of the message before. */
static size_t result_rank(const json_t *called, const json_t *id) {
    const json_t *block;
    size_t i, rank = 0;
    json_array_foreach(called, i, block) {
        if (!field_is(json_object_get(block, "type"), "tool_use")) continue;
        if (rank == API_NO_RANK || json_equal(json_object_get(block, "id"), id)) return rank;
        rank++;
    }
    return API_NO_RANK;
}

/* {"type": "tool_result", "tool_use_id", "content"} is a message of its own. */
static bool take_tool_result(struct reader *r, const struct place *at, const json_t *block) {
    char where[sizeof at->name + 16];
    const json_t *id = block_text(at, block, "tool_use_id"), *content = json_object_get(block, "content");
    struct texts texts = {0};
    if (!id) return false;
    snprintf(where, sizeof where, "%s.content", at->name);
    bool ok = !content || json_is_null(content) || take_content(at->fields, where, content, &texts);
    ok = ok && take_mark(at, block, (struct api_cache_mark){.len = texts.text.len}, &texts.cache) &&
         push(r, "tool", result_rank(r->called, id), &texts, NULL);
    buf_fini(&texts.text);
    return ok;
}

struct blocks { /* of one message */
    struct texts texts;
    struct rod_message calls; /* its calls alone */
    const json_t *marked;     /* the last call with a mark, which stands at the end of the message */
    struct place marked_at;
};

static bool take_block(struct reader *r, const struct place *at, bool user, const json_t *block, struct blocks *out) {
    const json_t *type = json_object_get(block, "type");
    struct api_cache checked = {0};
    if (!take_mark(at, block, (struct api_cache_mark){0}, &checked)) return false;
    if (field_is(type, "text")) return take_text(at, block, &out->texts);
    if (user && field_is(type, "tool_result")) return take_tool_result(r, at, block);
    if (!user && field_is(type, "tool_use")) {
        if (has_mark(block)) {
            out->marked = block;
            out->marked_at = *at;
        }
        return take_tool_use(at, block, &out->calls);
    }
    if (!user && (field_is(type, "thinking") || field_is(type, "redacted_thinking"))) return true; /* as others do */
    return bad_block(at, user ? "must be of type text or tool_result: the model reads nothing else"
                              : "must be of type text or tool_use");
}

/* Results of tools become messages of their own, before the text of their message. */
static bool take_blocks(struct reader *r, const char *where, bool user, const json_t *content) {
    struct blocks found = {0};
    const size_t before = r->out->n_messages;
    bool ok = true;
    for (size_t i = 0; ok && i < json_array_size(content); i++) {
        const struct place at = block_place(r->fields, where, i);
        ok = take_block(r, &at, user, json_array_get(content, i), &found);
    }
    const bool results_alone = r->out->n_messages > before && !found.texts.n;
    if (ok && !results_alone) {
        const struct api_cache_mark end = {.len = found.texts.text.len};
        ok = (!found.marked || take_mark(&found.marked_at, found.marked, end, &found.texts.cache)) &&
             push(r, user ? "user" : "assistant", API_NO_RANK, &found.texts, &found.calls);
        r->called = content;
    }
    buf_fini(&found.texts.text);
    api_messages_free_calls(&found.calls);
    return ok;
}

static bool take_message(struct reader *r, size_t i, const json_t *value) {
    const struct api_fields *p = r->fields;
    char where[96];
    const struct place at = block_place(p, "messages", i);
    const json_t *role = json_object_get(value, "role"), *content = json_object_get(value, "content");
    const bool user = field_is(role, "user");
    if (!json_is_object(value)) return field_bad(p, at.name, "must be an object, not %s", field_type(value));
    if (has_mark(value)) {
        snprintf(where, sizeof where, "%s.cache_control", at.name);
        return field_bad(p, where, "belongs into a block of its content");
    }
    snprintf(where, sizeof where, "%s.role", at.name);
    if (!user && !field_is(role, "assistant")) return field_bad(p, where, "must be user or assistant");
    snprintf(where, sizeof where, "%s.content", at.name);
    if (json_is_array(content)) return take_blocks(r, where, user, content);
    struct texts texts = {0};
    const bool ok =
        take_content(p, where, content, &texts) && push(r, user ? "user" : "assistant", API_NO_RANK, &texts, NULL);
    r->called = NULL;
    buf_fini(&texts.text);
    return ok;
}

static bool take_messages(struct reader *r) {
    const struct api_fields *p = r->fields;
    const json_t *system = field_get(p, "system"), *given = field_get(p, "messages");
    struct texts texts = {0};
    bool ok = !system || (take_content(p, "system", system, &texts) && push(r, "system", API_NO_RANK, &texts, NULL));
    buf_fini(&texts.text);
    if (ok && !json_array_size(given))
        ok = field_bad(p, "messages", given ? "must be an array with a message" : "is missing");
    for (size_t i = 0; ok && i < json_array_size(given); i++) ok = take_message(r, i, json_array_get(given, i));
    if (ok) api_order_results(r->out->messages, r->out->n_messages, r->ranks);
    return ok;
}

/* ---- tools ---- */

static bool bad_member(const struct place *at, const char *member, const char *what) {
    char name[sizeof at->name + 24];
    snprintf(name, sizeof name, "%s.%s", at->name, member);
    return field_bad(at->fields, name, "%s", what);
}

static bool check_tool(const struct place *at, const json_t *tool) {
    const json_t *type = json_object_get(tool, "type");
    struct api_cache checked = {0};
    if (!json_is_object(tool)) return bad_block(at, "must be an object");
    if (type && !json_is_null(type) && !field_is(type, "custom"))
        return bad_member(at, "type", "must be custom: this server runs no tools itself");
    if (!json_is_string(json_object_get(tool, "name"))) return bad_member(at, "name", "must be a string");
    if (!json_is_object(json_object_get(tool, "input_schema")))
        return bad_member(at, "input_schema", "must be an object");
    return take_mark(at, tool, (struct api_cache_mark){0}, &checked);
}

static struct api_tool read_tool(const json_t *tool, const char *param) {
    const json_t *description = json_object_get(tool, "description"), *strict = json_object_get(tool, "strict");
    return (struct api_tool){.name = json_object_get(tool, "name"),
                             .description = json_is_null(description) ? NULL : description,
                             .schema = json_object_get(tool, "input_schema"),
                             .strict = json_is_null(strict) ? NULL : strict,
                             .param = param,
                             .schema_field = "input_schema"};
}

static void put_member(struct buf *out, const char *name, const json_t *value) {
    if (!value) return;
    buf_addf(out, ", \"%s\": ", name);
    api_put_line(out, value);
}

/* The model reads a chat's definition. */
static void put_definition(struct buf *out, const json_t *tool) {
    buf_puts(out, "{\"type\": \"function\", \"function\": {\"name\": ");
    api_put_line(out, json_object_get(tool, "name"));
    put_member(out, "description", json_object_get(tool, "description"));
    put_member(out, "parameters", json_object_get(tool, "input_schema"));
    put_member(out, "strict", json_object_get(tool, "strict"));
    buf_puts(out, "}}");
}

static bool add_tools(const struct api_fields *p, const json_t *tools, struct api_request *out) {
    const json_t *tool;
    size_t i;
    if (!api_tools_begin(p, json_array_size(tools), &out->tools)) return false;
    json_array_foreach(tools, i, tool) {
        const struct place at = block_place(p, "tools", i);
        const struct api_tool definition = read_tool(tool, at.name);
        struct buf line = {0};
        put_definition(&line, tool);
        if (!api_tools_add(p, &definition, &line, &out->tools)) return false;
    }
    return true;
}

/* {"type": "auto", "any" or "tool" with a name}; none has been looked at. */
static bool take_choice(const struct api_fields *p, const json_t *choice, struct api_tools *out) {
    const json_t *type = json_object_get(choice, "type");
    if (field_is(type, "tool")) {
        out->choice = API_TOOLS_NAMED;
        return api_tools_allow(p, json_object_get(choice, "name"), out);
    }
    for (size_t i = 0; i < out->n; i++) out->allowed[i] = true;
    if (field_is(type, "any")) out->choice = API_TOOLS_REQUIRED;
    return true;
}

static bool check_choice(const struct api_fields *p, const json_t *choice) {
    const json_t *type = json_object_get(choice, "type"), *alone = json_object_get(choice, "disable_parallel_tool_use");
    const bool named = field_is(type, "tool") && json_is_string(json_object_get(choice, "name"));
    if (!choice) return true;
    if (!named && !field_is(type, "auto") && !field_is(type, "any") && !field_is(type, "none"))
        return field_bad(p, "tool_choice", "must be of type auto, any, none, or tool with a name");
    if (alone && !json_is_null(alone) && !json_is_boolean(alone))
        return field_bad(p, "tool_choice.disable_parallel_tool_use", "must be true or false");
    return true;
}

/* Tools with the choice none are left out, though they are looked at: the model is to write text. */
static bool take_tools(const struct api_fields *p, struct api_request *out) {
    const json_t *tools = field_get(p, "tools"), *choice = field_get(p, "tool_choice"), *tool;
    const json_t *type = json_object_get(choice, "type");
    size_t i;
    if (tools && !json_is_array(tools)) return field_bad(p, "tools", "must be an array, not %s", field_type(tools));
    json_array_foreach(tools, i, tool) {
        const struct place at = block_place(p, "tools", i);
        if (!check_tool(&at, tool)) return false;
    }
    if (!check_choice(p, choice)) return false;
    out->tools.parallel = true;
    const json_t *alone = json_object_get(choice, "disable_parallel_tool_use");
    if (json_is_boolean(alone))
        out->tools.parallel = json_is_false(alone);
    else if (!field_bool(p, "parallel_tool_calls", &out->tools.parallel))
        return false;
    if (field_is(type, "none")) return true;
    if (!json_array_size(tools))
        return !choice || field_is(type, "auto") || field_bad(p, "tool_choice", "must come with tools");
    return add_tools(p, tools, out) && take_choice(p, choice, &out->tools) &&
           api_tools_end(p, tools, read_tool, &out->tools);
}

static bool mark_tools(const struct api_fields *p, struct api_cache *out) {
    const json_t *tools = field_get(p, "tools"), *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        const struct place at = block_place(p, "tools", i);
        if (!take_mark(&at, tool, (struct api_cache_mark){.n_tools = i + 1}, out)) return false;
    }
    return true;
}

/* ---- the whole ---- */

/* A message of the assistant at the end is the beginning of the answer. */
static bool take_end(const struct api_fields *p, struct api_request *out) {
    const struct rod_message *last = &out->messages[out->n_messages - 1];
    if (!api_parse_end(p, out->messages, out->n_messages, &out->end)) return false;
    if (!strcmp(last->role, "assistant") && !last->n_calls) out->end = (struct api_chat_end){.go_on = true};
    return true;
}

static bool read_input(const struct api_fields *p, struct api_request *out) {
    struct reader r = {.fields = p, .out = out};
    const bool ok = mark_tools(p, &out->cache) && take_messages(&r) && take_tools(p, out) && take_end(p, out) &&
                    api_end_marks(p, out, &out->cache);
    free(r.ranks);
    return ok;
}

/* output_config.format {"type": "json_schema", "schema": ...}, or the same in its older place. */
static bool read_format(const struct api_fields *p, struct api_grammar *out) {
    const json_t *config = field_get(p, "output_config"), *older = field_get(p, "output_format");
    if (config && !json_is_object(config))
        return field_bad(p, "output_config", "must be an object, not %s", field_type(config));
    const json_t *newer = json_object_get(config, "format"), *format = newer && !json_is_null(newer) ? newer : older;
    const char *name = format != newer ? "output_format" : "output_config.format";
    if (!format) return true;
    if (older && !json_equal(older, format))
        return field_bad(p, "output_format", "is another place of output_config.format, which has another value");
    const json_t *schema = json_object_get(format, "schema");
    if (!field_is(json_object_get(format, "type"), "json_schema") || !json_is_object(schema))
        return field_bad(p, name, "must be of type json_schema, with a schema");
    return api_take_grammar(p, ROD_GRAMMAR_JSON_SCHEMA, name, schema, out);
}

static const struct api_dialect of_messages = {.choices = true,
                                               .stop = "stop_sequences",
                                               .max_tokens = {"max_tokens"},
                                               .check = check_fields,
                                               .input = read_input,
                                               .format = read_format};

int messages_parse(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                   struct api_error *err) {
    return api_parse(&of_messages, body, len, defaults, out, err);
}

int messages_parse_counted(const char *body, size_t len, const struct api_defaults *defaults, struct api_request *out,
                           struct api_error *err) {
    struct api_dialect counted = of_messages;
    counted.check = check_counted;
    return api_parse(&counted, body, len, defaults, out, err);
}
