/* api_tools.c - tools, tool_choice and parallel_tool_calls of a request; see api_tools.h. */
#include "api_fields.h"
#include "engine/base/json_real.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOOLS = 1024 };

/* ---- one line of JSON ---- */

void api_put_quoted(struct buf *out, const char *text, size_t len) {
    static const char short_forms[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    buf_putc(out, '"');
    for (size_t i = 0; i < len; i++) {
        size_t k = 0;
        while (k + 2 < sizeof short_forms && short_forms[k] != text[i]) k += 2;
        if (k + 2 < sizeof short_forms) {
            buf_putc(out, '\\');
            buf_putc(out, short_forms[k + 1]);
        } else if ((unsigned char)text[i] < ' ') {
            buf_addf(out, "\\u%04x", (unsigned char)text[i]);
        } else {
            buf_putc(out, text[i]);
        }
    }
    buf_putc(out, '"');
}

void api_put_line(struct buf *out, const json_t *value) {
    const char *key;
    json_t *one;
    size_t i;
    bool more = false;
    char real[JSON_REAL_BYTES];
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        buf_putc(out, '{');
        json_object_foreach((json_t *)value, key, one) {
            if (more) buf_puts(out, ", ");
            more = true;
            api_put_quoted(out, key, strlen(key));
            buf_puts(out, ": ");
            api_put_line(out, one);
        }
        buf_putc(out, '}');
        break;
    case JSON_ARRAY:
        buf_putc(out, '[');
        json_array_foreach(value, i, one) {
            if (i) buf_puts(out, ", ");
            api_put_line(out, one);
        }
        buf_putc(out, ']');
        break;
    case JSON_STRING: api_put_quoted(out, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER: buf_int(out, json_integer_value(value)); break;
    case JSON_REAL: json_real_text(json_real_value(value), real), buf_puts(out, real); break;
    case JSON_TRUE: buf_puts(out, "true"); break;
    case JSON_FALSE: buf_puts(out, "false"); break;
    case JSON_NULL: buf_puts(out, "null"); break;
    }
}

/* ---- definitions ---- */

/* 1 to 128 of letters, digits and the marks that servers of tools put into names. */
static bool name_is_plain(const json_t *name) {
    static const char allowed[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-.:/";
    const size_t n = json_string_length(name);
    return n && n <= API_TOOL_NAME_MAX && strspn(json_string_value(name), allowed) == n;
}

static bool check_definition(const struct api_fields *p, const struct api_tool *tool) {
    char field[64];
    snprintf(field, sizeof field, "%s.name", tool->param);
    if (!name_is_plain(tool->name))
        return field_bad(p, field, "must be 1 to %d characters of A-Z, a-z, 0-9, '_', '-', '.', ':' and '/'",
                         API_TOOL_NAME_MAX);
    snprintf(field, sizeof field, "%s.description", tool->param);
    if (tool->description && !json_is_string(tool->description))
        return field_bad(p, field, "must be a string, not %s", field_type(tool->description));
    snprintf(field, sizeof field, "%s.%s", tool->param, tool->schema_field);
    if (tool->schema && !json_is_object(tool->schema))
        return field_bad(p, field, "must be a JSON Schema, not %s", field_type(tool->schema));
    snprintf(field, sizeof field, "%s.strict", tool->param);
    if (tool->strict && !json_is_boolean(tool->strict))
        return field_bad(p, field, "must be true or false, not %s", field_type(tool->strict));
    return true;
}

/* cache_control is for the cache: the model reads the same text wherever it stands. */
static bool put_definition(struct buf *out, const json_t *tool) {
    json_t *shown = json_copy((json_t *)tool);
    json_object_del(shown, "cache_control");
    if (!shown) return false;
    api_put_line(out, shown);
    json_decref(shown);
    return true;
}

bool api_tools_begin(const struct api_fields *p, size_t n, struct api_tools *out) {
    assert(!out->n && !out->lines);
    if (n > MAX_TOOLS) return field_bad(p, "tools", "has %zu tools, %d are allowed", n, MAX_TOOLS);
    out->lines = calloc(n, sizeof *out->lines);
    out->names = calloc(n, sizeof *out->names);
    out->allowed = calloc(n, sizeof *out->allowed);
    out->forms = calloc(n, sizeof *out->forms);
    return (out->lines && out->names && out->allowed && out->forms) || field_no_memory(p);
}

bool api_tools_add(const struct api_fields *p, const struct api_tool *tool, struct buf *line, struct api_tools *out) {
    size_t len;
    if (!check_definition(p, tool)) {
        buf_fini(line);
        return false;
    }
    out->lines[out->n] = buf_take(line, NULL);
    out->names[out->n] = field_copy(tool->name, &len);
    out->n_head = ++out->n;
    return (out->lines[out->n - 1] && out->names[out->n - 1]) || field_no_memory(p);
}

static struct api_tool read_tool(const json_t *tool, const char *param) {
    const json_t *function = json_object_get(tool, "function");
    return (struct api_tool){.name = json_object_get(function, "name"),
                             .description = field_of(function, "description"),
                             .schema = field_of(function, "parameters"),
                             .strict = field_of(function, "strict"),
                             .param = param,
                             .schema_field = "parameters"};
}

static bool take_tool(const struct api_fields *p, const json_t *tool, struct api_tools *out) {
    char param[48];
    snprintf(param, sizeof param, "tools[%zu]", out->n);
    if (!json_is_object(tool)) return field_bad(p, param, "must be an object, not %s", field_type(tool));
    if (!field_is(json_object_get(tool, "type"), "function")) {
        snprintf(param, sizeof param, "tools[%zu].type", out->n);
        return field_bad(p, param, "must be function: the server runs no tools of its own");
    }
    snprintf(param, sizeof param, "tools[%zu].function", out->n);
    if (!json_is_object(json_object_get(tool, "function"))) return field_bad(p, param, "is missing");
    const struct api_tool definition = read_tool(tool, param);
    struct buf line = {0};
    return put_definition(&line, tool) ? api_tools_add(p, &definition, &line, out) : field_no_memory(p);
}

/* ---- the choice ---- */

bool api_tools_bad_choice(const struct api_fields *p) {
    return field_bad(p, "tool_choice",
                     "must be none, auto, required, or an object of type function or allowed_tools that names tools");
}

bool api_tools_allow(const struct api_fields *p, const json_t *name, struct api_tools *out) {
    bool found = false;
    for (size_t i = 0; i < out->n; i++)
        if (field_is(name, out->names[i])) found = out->allowed[i] = true;
    return found || field_bad(p, "tool_choice", "names '%.64s', which is not among tools", json_string_value(name));
}

/* The model reads all tools, so that the prompt's beginning stays, and calls some. */
static bool allow_listed(const struct api_fields *p, const json_t *choice, api_tools_allower *allow,
                         struct api_tools *out) {
    const json_t *inner = field_of(choice, "allowed_tools"), *of = inner ? inner : choice, *one;
    const json_t *mode = json_object_get(of, "mode"), *list = json_object_get(of, "tools");
    size_t i;
    if (!field_is(mode, "auto") && !field_is(mode, "required"))
        return field_bad(p, "tool_choice", "of type allowed_tools must have mode auto or required");
    if (!json_array_size(list)) return field_bad(p, "tool_choice", "of type allowed_tools must name tools");
    out->choice = field_is(mode, "auto") ? API_TOOLS_AUTO : API_TOOLS_REQUIRED;
    json_array_foreach(list, i, one) {
        if (!allow(p, one, out)) return false;
    }
    return true;
}

bool api_tools_choose(const struct api_fields *p, const json_t *choice, api_tools_allower *allow,
                      struct api_tools *out) {
    if (json_is_object(choice)) {
        if (field_is(json_object_get(choice, "type"), "allowed_tools")) return allow_listed(p, choice, allow, out);
        out->choice = API_TOOLS_NAMED;
        return allow(p, choice, out);
    }
    for (size_t i = 0; i < out->n; i++) out->allowed[i] = true;
    if (!choice || field_is(choice, "auto")) return true;
    out->choice = API_TOOLS_REQUIRED;
    return field_is(choice, "required") || api_tools_bad_choice(p);
}

/* {"function": {"name"}}, or {"name"} as responses have it. */
static bool allow_named(const struct api_fields *p, const json_t *choice, struct api_tools *out) {
    const json_t *function = field_of(choice, "function");
    const json_t *name = json_object_get(function ? function : choice, "name");
    if (!field_is(json_object_get(choice, "type"), "function") || !json_is_string(name)) return api_tools_bad_choice(p);
    return api_tools_allow(p, name, out);
}

/* ---- all of it ---- */

static void put_schema(struct buf *out, const char *name, const json_t *schema, const json_t *strict) {
    buf_puts(out, out->len > 1 ? ",{\"name\":" : "{\"name\":");
    api_put_quoted(out, name, strlen(name));
    if (json_is_true(strict)) buf_puts(out, ",\"strict\":true");
    if (schema) {
        buf_puts(out, ",\"parameters\":");
        api_put_line(out, schema);
    }
    buf_putc(out, '}');
}

bool api_tools_end(const struct api_fields *p, const json_t *tools,
                   struct api_tool (*read)(const json_t *tool, const char *param), struct api_tools *out) {
    buf_putc(&out->schemas, '[');
    for (size_t i = 0; i < out->n; i++) {
        const struct api_tool tool = read(json_array_get(tools, i), "");
        if (out->allowed[i]) put_schema(&out->schemas, out->names[i], tool.schema, tool.strict);
    }
    buf_putc(&out->schemas, ']');
    return !out->schemas.failed || field_no_memory(p);
}

static bool take_tools(const struct api_fields *p, const json_t *tools, struct api_tools *out) {
    const json_t *tool;
    size_t i;
    if (!api_tools_begin(p, json_array_size(tools), out)) return false;
    json_array_foreach(tools, i, tool) {
        if (!take_tool(p, tool, out)) return false;
    }
    return true;
}

/* Tools with the choice none are left out: the model is to write text. */
bool api_parse_tools(const struct api_fields *p, struct api_tools *out) {
    const json_t *tools = field_get(p, "tools"), *choice = field_get(p, "tool_choice");
    assert(!out->n && !out->lines);
    out->parallel = true;
    if (!field_bool(p, "parallel_tool_calls", &out->parallel)) return false;
    if (field_is(choice, "none")) return true;
    if (tools && !json_is_array(tools)) return field_bad(p, "tools", "must be an array, not %s", field_type(tools));
    if (!json_array_size(tools)) {
        if (!choice || field_is(choice, "auto")) return true;
        return field_bad(p, "tool_choice", "must come with tools");
    }
    return take_tools(p, tools, out) && api_tools_choose(p, choice, allow_named, out) &&
           api_tools_end(p, tools, read_tool, out);
}

void api_tools_fini(struct api_tools *t) {
    for (size_t i = 0; i < t->n; i++) {
        free(t->lines[i]);
        free(t->names[i]);
    }
    free(t->lines);
    free(t->names);
    free(t->allowed);
    free(t->forms);
    buf_fini(&t->schemas);
    *t = (struct api_tools){0};
}

/* ---- the grammar of the answer ---- */

/* The name by which the grammar of calls knows the grammar that content follows; NULL: it cannot stand beside calls. */
static const char *content_kind(const struct api_grammar *content) {
    switch (content->kind) {
    case ROD_GRAMMAR_JSON_OBJECT: return "json_object";
    case ROD_GRAMMAR_JSON_SCHEMA: return "json_schema";
    case ROD_GRAMMAR_REGEX: return "regex";
    case ROD_GRAMMAR_CHOICE: return "choice";
    default: return NULL;
    }
}

bool api_tools_lazy(const struct api_request *q) {
    return q->tools.n && q->tools.choice == API_TOOLS_AUTO && !q->grammar.text;
}

bool api_tools_again(const struct api_request *q) { return q->tools.parallel && q->tools.choice != API_TOOLS_NAMED; }

bool api_check_tools(const struct api_fields *p, const struct api_request *q) {
    const struct api_grammar *content = &q->grammar;
    if (!q->tools.n || !content->text || content_kind(content)) return true;
    return field_bad(p, content->param, "and tools exclude each other");
}

bool api_tools_grammar(const struct api_request *q, const struct rod_call_tags *tags, struct api_grammar *out) {
    const struct api_grammar *content = &q->grammar;
    const bool with_content = content->text && q->tools.choice == API_TOOLS_AUTO;
    struct buf text = {0};
    assert(q->tools.n && (!content->text || content_kind(content)));
    buf_puts(&text, "{\"open\":");
    api_put_quoted(&text, tags->open, strlen(tags->open));
    buf_puts(&text, ",\"close\":");
    api_put_quoted(&text, tags->close, strlen(tags->close));
    if (api_tools_lazy(q)) buf_puts(&text, ",\"lazy\":true");
    if (api_tools_again(q)) buf_puts(&text, ",\"many\":true");
    if (with_content) {
        buf_addf(&text, ",\"content\":{\"kind\":\"%s\",\"text\":", content_kind(content));
        api_put_quoted(&text, content->text, content->len);
        buf_putc(&text, '}');
    }
    buf_puts(&text, ",\"tools\":");
    if (q->tools.schemas.failed) text.failed = true;
    buf_add(&text, q->tools.schemas.data, q->tools.schemas.len);
    buf_putc(&text, '}');
    *out = (struct api_grammar){.kind = ROD_GRAMMAR_CALLS, .param = "tools"};
    out->text = buf_take(&text, &out->len);
    return out->text != NULL;
}
