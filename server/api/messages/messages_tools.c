/* messages_tools.c - the tools of a message, their choice and their marks; see messages_parts.h. */
#include "messages_parts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool bad_member(const struct messages_place *at, const char *member, const char *what) {
    char name[sizeof at->name + 24];
    snprintf(name, sizeof name, "%s.%s", at->name, member);
    return field_bad(at->fields, name, "%s", what);
}

/* The kind of a tool that runs on Anthropic's servers; this server cannot run it. */
static enum api_ignored server_tool(const json_t *tool) {
    const json_t *type = json_object_get(tool, "type");
    const char *text = json_string_value(type);
    return text && strlen(text) == json_string_length(type) ? api_ignored_tool(text) : API_N_IGNORED;
}

static bool check_tool(const struct messages_place *at, const json_t *tool) {
    const json_t *type = json_object_get(tool, "type"), *deferred = json_object_get(tool, "defer_loading");
    struct api_cache checked = {0};
    if (!json_is_object(tool)) return messages_bad(at, "must be an object");
    if (server_tool(tool) != API_N_IGNORED) return messages_mark(at, tool, (struct api_cache_mark){0}, &checked);
    if (type && !json_is_null(type) && !field_is(type, "custom"))
        return bad_member(at, "type", "must be custom: this server runs no tools itself");
    if (deferred && !json_is_null(deferred) && !json_is_boolean(deferred))
        return bad_member(at, "defer_loading", "must be true or false");
    if (!json_is_string(json_object_get(tool, "name"))) return bad_member(at, "name", "must be a string");
    if (!json_is_object(json_object_get(tool, "input_schema")))
        return bad_member(at, "input_schema", "must be an object");
    return messages_mark(at, tool, (struct api_cache_mark){0}, &checked);
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

/* A deferred tool stands where a result names it, so that finding it changes nothing before. Where Anthropic's servers
 * are to search, nobody would find it. */
static bool may_defer(const json_t *tools) {
    const json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        if (server_tool(tool) == API_IGNORED_TOOL_SEARCH) return false;
    }
    return true;
}

static bool is_deferred(const json_t *tool) { return json_is_true(json_object_get(tool, "defer_loading")); }

/* The deferred ones, or the others. taken: an array of them. */
static bool add_some(const struct api_fields *p, const json_t *tools, bool deferred, json_t *taken,
                     struct api_tools *out) {
    const bool may = may_defer(tools);
    json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        const struct messages_place at = messages_place(p, "tools", i);
        const struct api_tool definition = read_tool(tool, at.name);
        struct buf line = {0};
        if (server_tool(tool) != API_N_IGNORED || (may && is_deferred(tool)) != deferred) continue;
        put_definition(&line, tool);
        if (!api_tools_add(p, &definition, &line, out)) return false;
        if (json_array_append(taken, tool)) return field_no_memory(p);
    }
    return true;
}

static bool add_tools(const struct api_fields *p, const json_t *tools, json_t *taken, struct api_tools *out) {
    if (!api_tools_begin(p, json_array_size(tools), out) || !add_some(p, tools, false, taken, out)) return false;
    const size_t n_head = out->n;
    if (!add_some(p, tools, true, taken, out)) return false;
    out->n_head = n_head;
    return out->n || field_bad(p, "tools", "are none that a client runs: this server has no tools of its own");
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
static bool check_tools(const struct api_fields *p, const json_t *tools) {
    const json_t *tool;
    size_t i;
    if (tools && !json_is_array(tools)) return field_bad(p, "tools", "must be an array, not %s", field_type(tools));
    json_array_foreach(tools, i, tool) {
        const struct messages_place at = messages_place(p, "tools", i);
        if (!check_tool(&at, tool)) return false;
        if (server_tool(tool) != API_N_IGNORED) field_ignore(p, server_tool(tool));
    }
    return true;
}

/* Of a tool that the model does not read there is no place to keep. */
bool messages_mark_tools(const struct api_fields *p, struct api_cache *out) {
    const json_t *tools = field_get(p, "tools"), *tool;
    const bool may = may_defer(tools);
    size_t i, n = 0;
    json_array_foreach(tools, i, tool) {
        const struct messages_place at = messages_place(p, "tools", i);
        n += server_tool(tool) == API_N_IGNORED && !(may && is_deferred(tool));
        if (n && !messages_mark(&at, tool, (struct api_cache_mark){.n_tools = n}, out)) return false;
    }
    return true;
}

static bool take_parallel(const struct api_fields *p, const json_t *choice, struct api_tools *out) {
    const json_t *alone = json_object_get(choice, "disable_parallel_tool_use");
    out->parallel = true;
    if (!json_is_boolean(alone)) return field_bool(p, "parallel_tool_calls", &out->parallel);
    out->parallel = json_is_false(alone);
    return true;
}

bool messages_take_tools(const struct api_fields *p, struct api_request *out) {
    const json_t *tools = field_get(p, "tools"), *choice = field_get(p, "tool_choice"),
                 *type = json_object_get(choice, "type");
    if (!check_tools(p, tools) || !check_choice(p, choice) || !take_parallel(p, choice, &out->tools)) return false;
    if (field_is(type, "none")) return true;
    if (!json_array_size(tools))
        return !choice || field_is(type, "auto") || field_bad(p, "tool_choice", "must come with tools");
    json_t *taken = json_array();
    if (!taken) return field_no_memory(p);
    const bool ok = add_tools(p, tools, taken, &out->tools) && take_choice(p, choice, &out->tools) &&
                    api_tools_end(p, taken, read_tool, &out->tools);
    json_decref(taken);
    return ok;
}

void messages_put_found(const struct api_fields *p, const json_t *name, struct buf *out) {
    const json_t *tools = field_get(p, "tools"), *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        if (!is_deferred(tool) || !json_equal(json_object_get(tool, "name"), name) || !may_defer(tools)) continue;
        put_definition(out, tool);
        return;
    }
    api_put_line(out, name);
}
