/* responses_tools.c - the tools of a response; see responses_parts.h. The model knows functions alone: one of a
 * namespace has both names with a dot between them, a custom tool takes its text as the string `input`, and a search
 * that the client makes is a function like any other. */
#include "responses_parts.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEARCH "tool_search"

struct place { /* of an array of tools, and whose namespace it is */
    const struct api_fields *fields;
    char array[56];
    const json_t *space; /* its name; NULL: of none */
};

struct definition {   /* one tool as a function */
    json_t *function; /* {"name","description","parameters","strict"}, owned */
    struct api_tool_form form;
    char param[80];
};

static bool bad_tool(const struct place *at, size_t i, const char *member, const char *what) {
    char name[96];
    snprintf(name, sizeof name, "%s[%zu]%s%s", at->array, i, *member ? "." : "", member);
    return field_bad(at->fields, name, "%s", what);
}

/* ---- one tool ---- */

static void put_quoted_name(const json_t *space, const char *name, size_t len, struct buf *out) {
    if (json_string_length(space)) {
        buf_add(out, json_string_value(space), json_string_length(space));
        buf_putc(out, '.');
    }
    buf_add(out, name, len);
}

bool responses_put_name(const json_t *call, struct buf *out) {
    const json_t *name = json_object_get(call, "name");
    const char *type = json_string_value(json_object_get(call, "type"));
    if (json_string_length(name))
        put_quoted_name(json_object_get(call, "namespace"), json_string_value(name), json_string_length(name), out);
    else if (type && !strncmp(type, SEARCH, sizeof SEARCH - 1))
        buf_puts(out, SEARCH);
    else
        return false;
    return true;
}

/* The name as a string that definitions have; no string: checked as any definition is. NULL: out of memory. */
static json_t *full_name(const struct place *at, const json_t *tool) {
    json_t *name = json_object_get(tool, "name");
    struct buf text = {0};
    if (!json_is_string(name)) return json_incref(name ? name : json_null());
    put_quoted_name(at->space, json_string_value(name), json_string_length(name), &text);
    json_t *full = text.failed ? NULL : json_stringn(text.len ? text.data : "", text.len);
    buf_fini(&text);
    return full;
}

static bool is_grammar(const json_t *format, const char *syntax) {
    return field_is(json_object_get(format, "type"), "grammar") &&
           field_is(json_object_get(format, "syntax"), syntax) && json_is_string(json_object_get(format, "definition"));
}
static bool is_regex(const json_t *format) { return is_grammar(format, "regex"); }

/* A grammar of the text is told, and held where it is a regular expression, or one of Lark that can be one. The whole
 * text matches. False: any text. */
static bool put_pattern(const json_t *format, struct buf *out) {
    const json_t *definition = json_object_get(format, "definition");
    buf_puts(out, "^(?:");
    if (is_regex(format))
        buf_add(out, json_string_value(definition), json_string_length(definition));
    else if (!is_grammar(format, "lark") ||
             !responses_lark(json_string_value(definition), json_string_length(definition), out))
        return false;
    buf_puts(out, ")$");
    return true;
}

static json_t *custom_schema(const struct place *at, const json_t *format) {
    struct buf pattern = {0};
    json_t *input = json_pack("{s:s}", "type", "string");
    if (put_pattern(format, &pattern)) {
        json_t *text = pattern.failed ? NULL : json_stringn(pattern.data, pattern.len);
        if (input && json_object_set_new(input, "pattern", text)) {
            json_decref(input);
            input = NULL;
        }
    } else if (field_is(json_object_get(format, "type"), "grammar")) {
        field_ignore(at->fields, API_IGNORED_TOOL_FORMAT);
    }
    buf_fini(&pattern);
    if (!input) return NULL;
    return json_pack("{s:s,s:{s:o},s:[s],s:b}", "type", "object", "properties", "input", input, "required", "input",
                     "additionalProperties", 0);
}

static void put_string(struct buf *out, const json_t *text) {
    buf_add(out, json_string_value(text), json_string_length(text));
}

static json_t *custom_description(const json_t *tool) {
    const json_t *said = json_object_get(tool, "description"), *format = json_object_get(tool, "format"),
                 *syntax = json_object_get(format, "syntax"), *definition = json_object_get(format, "definition");
    if (said && !json_is_null(said) && !json_is_string(said))
        return json_incref((json_t *)said); /* an error names it */
    struct buf text = {0};
    put_string(&text, said);
    if (json_is_string(syntax) && json_is_string(definition)) {
        if (json_is_string(said)) buf_putc(&text, '\n');
        buf_puts(&text, "input is text of this grammar (");
        put_string(&text, syntax);
        buf_puts(&text, "):\n");
        put_string(&text, definition);
    }
    json_t *description = text.failed ? NULL : json_stringn(text.len ? text.data : "", text.len);
    buf_fini(&text);
    return description;
}

static json_t *custom_function(const struct place *at, const json_t *tool, json_t *name) {
    const json_t *format = json_object_get(tool, "format");
    json_t *function = json_pack("{s:s,s:O,s:o,s:o}", "type", "function", "name", name, "description",
                                 custom_description(tool), "parameters", custom_schema(at, format));
    if (function && is_regex(format) && json_object_set_new(function, "strict", json_true())) {
        json_decref(function);
        return NULL;
    }
    return function;
}

/* The tool that was sent, less what is no word for the model. */
static json_t *plain_function(const json_t *tool, json_t *name) {
    json_t *function = json_copy((json_t *)tool);
    if (!function || (!json_is_null(name) && json_object_set(function, "name", name))) {
        json_decref(function);
        return NULL;
    }
    json_object_del(function, "defer_loading");
    json_object_del(function, "execution");
    return function;
}

/* A tool that is left out has no function. */
static bool read_tool(const struct place *at, size_t i, const json_t *tool, struct definition *out) {
    const json_t *type = json_object_get(tool, "type");
    const bool custom = field_is(type, "custom"),
               search = field_is(type, SEARCH) && field_is(json_object_get(tool, "execution"), "client");
    *out = (struct definition){.form.kind = custom ? API_TOOL_CUSTOM : search ? API_TOOL_SEARCH : API_TOOL_FUNCTION};
    snprintf(out->param, sizeof out->param, "%s[%zu]", at->array, i);
    if (!json_is_object(tool)) return field_bad(at->fields, out->param, "must be an object, not %s", field_type(tool));
    const bool plain = json_is_string(type) && strlen(json_string_value(type)) == json_string_length(type);
    const enum api_ignored left_out = search || !plain ? API_N_IGNORED : api_ignored_tool(json_string_value(type));
    if (left_out != API_N_IGNORED) {
        field_ignore(at->fields, left_out);
        return true;
    }
    if (!custom && !search && !field_is(type, "function"))
        return bad_tool(at, i, "type",
                        "must be function, custom, namespace or a tool_search that the client executes: the server "
                        "runs no tools of its own");
    const json_t *format = json_object_get(tool, "format");
    const json_t *regex = is_regex(format) ? json_object_get(format, "definition") : NULL;
    if (custom && regex && !responses_regex_whole(json_string_value(regex), json_string_length(regex)))
        return bad_tool(at, i, "format.definition",
                        "is no regular expression: a group, a class or an escape has no end");
    json_t *name = search ? json_string(SEARCH) : full_name(at, tool);
    if (name) out->function = custom ? custom_function(at, tool, name) : plain_function(tool, name);
    json_decref(name);
    if (!out->function) return field_no_memory(at->fields);
    out->form.n_space = json_string_length(at->space);
    return true;
}

/* A chat's form, whichever kind it was: the model reads one. */
static bool put_definition(const struct api_fields *p, const json_t *function, struct buf *out) {
    json_t *inner = json_copy((json_t *)function);
    json_object_del(inner, "type");
    json_t *shown = json_pack("{s:s,s:o}", "type", "function", "function", inner);
    if (!shown) return field_no_memory(p);
    api_put_line(out, shown);
    json_decref(shown);
    return true;
}

/* ---- lists of them ---- */

struct list {
    struct definition *tools;
    size_t n, cap;
};

static void list_fini(struct list *l) {
    for (size_t i = 0; i < l->n; i++) json_decref(l->tools[i].function);
    free(l->tools);
    *l = (struct list){0};
}

static bool list_add(const struct place *at, const struct definition *tool, struct list *out) {
    if (out->n == out->cap) {
        const size_t cap = out->cap ? 2 * out->cap : 16;
        struct definition *tools = realloc(out->tools, cap * sizeof *tools);
        if (!tools) {
            json_decref(tool->function);
            return field_no_memory(at->fields);
        }
        out->tools = tools;
        out->cap = cap;
    }
    out->tools[out->n++] = *tool;
    return true;
}

static bool list_tool(const struct place *at, size_t i, const json_t *tool, struct list *out) {
    struct definition one;
    return read_tool(at, i, tool, &one) && (!one.function || list_add(at, &one, out));
}

/* {"type": "namespace", "name", "tools"}. */
static bool list_space(const struct place *at, size_t i, const json_t *space, struct list *out) {
    const json_t *tools = json_object_get(space, "tools"), *tool;
    struct place inner = {.fields = at->fields, .space = json_object_get(space, "name")};
    size_t k;
    if (at->space) return bad_tool(at, i, "type", "must not be namespace inside a namespace");
    if (!json_string_length(inner.space)) return bad_tool(at, i, "name", "must be a string that is not empty");
    if (!json_is_array(tools)) return bad_tool(at, i, "tools", "must be an array");
    snprintf(inner.array, sizeof inner.array, "%.40s[%zu].tools", at->array, i);
    json_array_foreach(tools, k, tool) {
        if (!list_tool(&inner, k, tool, out)) return false;
    }
    return true;
}

static bool list_tools(const struct api_fields *p, const char *array, const json_t *tools, struct list *out) {
    struct place at = {.fields = p};
    const json_t *tool;
    size_t i;
    snprintf(at.array, sizeof at.array, "%s", array);
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return field_bad(p, array, "must be an array, not %s", field_type(tools));
    json_array_foreach(tools, i, tool) {
        const bool space = field_is(json_object_get(tool, "type"), "namespace");
        if (!(space ? list_space : list_tool)(&at, i, tool, out)) return false;
    }
    return true;
}

bool responses_put_tools(const struct api_fields *p, const char *where, const json_t *tools, struct buf *out) {
    struct list list = {0};
    bool ok = list_tools(p, where, tools, &list);
    for (size_t i = 0; ok && i < list.n; i++) {
        if (i) buf_putc(out, '\n');
        ok = put_definition(p, list.tools[i].function, out);
    }
    list_fini(&list);
    return ok;
}

/* ---- those of a request ---- */

size_t responses_head(const json_t *input) {
    const json_t *item;
    size_t i;
    json_array_foreach(input, i, item) {
        const json_t *role = json_object_get(item, "role");
        if (!field_is(role, "system") && !field_is(role, "developer") &&
            !field_is(json_object_get(item, "type"), "additional_tools"))
            break;
    }
    return i;
}

/* Of the items from first to before end. */
static bool list_items(const struct api_fields *p, const json_t *input, size_t first, size_t end, struct list *out) {
    for (size_t i = first; i < end; i++) {
        const json_t *item = json_array_get(input, i), *type = json_object_get(item, "type");
        char where[48];
        if (!field_is(type, "additional_tools") && !field_is(type, "tool_search_output")) continue;
        snprintf(where, sizeof where, "input[%zu].tools", i);
        if (!list_tools(p, where, json_object_get(item, "tools"), out)) return false;
    }
    return true;
}

static struct api_tool read_function(const json_t *function, const char *param) {
    const json_t *description = json_object_get(function, "description"),
                 *schema = json_object_get(function, "parameters"), *strict = json_object_get(function, "strict");
    return (struct api_tool){.name = json_object_get(function, "name"),
                             .description = json_is_null(description) ? NULL : description,
                             .schema = json_is_null(schema) ? NULL : schema,
                             .strict = json_is_null(strict) ? NULL : strict,
                             .param = param,
                             .schema_field = "parameters"};
}

static bool is_known(const struct api_tools *tools, const json_t *name) {
    for (size_t i = 0; i < tools->n; i++)
        if (field_is(name, tools->names[i])) return true;
    return false;
}

/* taken: an array of the functions. A tool that is found twice is one. */
static bool add_tools(const struct api_fields *p, const struct list *list, size_t n_head, json_t *taken,
                      struct api_tools *out) {
    size_t in_head = 0;
    if (!api_tools_begin(p, list->n, out)) return false;
    for (size_t i = 0; i < list->n; i++) {
        const struct definition *one = &list->tools[i];
        const struct api_tool tool = read_function(one->function, one->param);
        struct buf line = {0};
        if (i >= n_head && is_known(out, tool.name)) continue;
        if (!put_definition(p, one->function, &line) || !api_tools_add(p, &tool, &line, out)) return false;
        out->forms[out->n - 1] = one->form;
        if (json_array_append(taken, one->function)) return field_no_memory(p);
        if (i < n_head) in_head = out->n;
    }
    out->n_head = in_head;
    return true;
}

/* ---- the choice ---- */

/* A name without its namespace is enough where no other tool has it. */
static const char *tool_named(const struct api_tools *tools, const struct buf *name) {
    const char *found = NULL;
    for (size_t i = 0; i < tools->n; i++) {
        const char *full = tools->names[i];
        if (!strcmp(full, name->data)) return full;
        if (!tools->forms[i].n_space || strcmp(full + tools->forms[i].n_space + 1, name->data) != 0) continue;
        found = full;
    }
    return found;
}

static bool allow_named(const struct api_fields *p, const json_t *choice, struct api_tools *out) {
    const json_t *type = json_object_get(choice, "type");
    struct buf name = {0};
    if ((!field_is(type, "function") && !field_is(type, "custom") && !field_is(type, SEARCH)) ||
        !responses_put_name(choice, &name)) {
        buf_fini(&name);
        return api_tools_bad_choice(p);
    }
    buf_putc(&name, 0);
    const char *found = name.failed ? NULL : tool_named(out, &name);
    for (size_t i = 0; i < out->n; i++) out->allowed[i] = out->allowed[i] || out->names[i] == found;
    const bool ok = name.failed ? field_no_memory(p)
                    : found     ? true
                                : field_bad(p, "tool_choice", "names '%.64s', which is not among tools", name.data);
    buf_fini(&name);
    return ok;
}

/* ---- all of it ---- */

static bool take_list(const struct api_fields *p, const json_t *input, struct list *list, json_t *taken,
                      struct api_tools *out) {
    const json_t *tools = field_get(p, "tools"), *choice = field_get(p, "tool_choice");
    const size_t head = responses_head(input);
    if (!list_tools(p, "tools", tools, list) || !list_items(p, input, 0, head, list)) return false;
    const size_t n_head = list->n;
    if (!list_items(p, input, head, json_array_size(input), list)) return false;
    if (list->n)
        return add_tools(p, list, n_head, taken, out) && api_tools_choose(p, choice, allow_named, out) &&
               api_tools_end(p, taken, read_function, out);
    if (json_array_size(tools))
        return field_bad(p, "tools", "are none that a client runs: the server has no tools of its own");
    return !choice || field_is(choice, "auto") || field_bad(p, "tool_choice", "must come with tools");
}

/* Tools with the choice none are left out: the model is to write text. */
bool responses_take_tools(const struct api_fields *p, const json_t *input, struct api_tools *out) {
    assert(!out->n && !out->lines);
    out->parallel = true;
    if (!field_bool(p, "parallel_tool_calls", &out->parallel)) return false;
    if (field_is(field_get(p, "tool_choice"), "none")) return true;
    struct list list = {0};
    json_t *taken = json_array();
    const bool ok = taken ? take_list(p, input, &list, taken, out) : field_no_memory(p);
    json_decref(taken);
    list_fini(&list);
    return ok;
}
