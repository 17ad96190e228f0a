/* grammar_calls.c - the calls of tools that a model may make, as text between tags:
 *
 *   <tool_call>
 *   {"name": "NAME", "arguments": {...}}
 *   </tool_call>
 *
 * The frame is fixed to the byte, as histories are written the same way; arguments follow the tool's JSON Schema. It
 * comes as JSON: {"open", "close": the tags; "lazy": the text begins behind the opening tag; "many": more calls may
 * follow, or where it is lazy any text; "tools": [{"name", "parameters", "strict"}]; "content": {"kind", "text"}, which
 * may stand instead of calls}.
 */
#include "grammar_ir.h"
#include "engine/base/json_guard.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t calls_malformed(struct ir *ir, const char *what) {
    return ir_fail(ir, ROD_EINVALID, "has no %s as calls of tools need it", what);
}

static uint32_t calls_tag(struct ir *ir, const json_t *root, const char *name) {
    const json_t *tag = json_object_get(root, name);
    if (!json_is_string(tag) || !json_string_length(tag)) return calls_malformed(ir, name);
    return ir_bytes(ir, json_string_value(tag), json_string_length(tag));
}

/* A schema is all of an ir of its own in its file's eyes: rule 0 is lent to it. */
static uint32_t calls_schema(struct ir *ir, const char *text, enum ir_schema_use use) {
    ir_schema(ir, text, strlen(text), use);
    if (ir->rc) return IR_NOTHING;
    const uint32_t out = ir->rules[0];
    ir->rules[0] = IR_NOTHING;
    return out;
}

/* Without parameters a tool has none. Schemas of tools are often not the client's own: keywords that cannot be honoured
 * are left out and noted, and what allows nothing is any object; unless the tool is strict. */
static uint32_t calls_arguments(struct ir *ir, const char *name, const json_t *tool) {
    const json_t *parameters = json_object_get(tool, "parameters");
    const bool strict = json_is_true(json_object_get(tool, "strict"));
    if (ir->rc || !parameters || json_is_null(parameters)) return ir_text(ir, "{}");
    char *text = json_dumps(parameters, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text) return ir_no_memory(ir);
    const struct ir_mark mark = ir_mark_of(ir);
    ir->about = name;
    uint32_t out = calls_schema(ir, text, strict ? IR_SCHEMA_STRICT_ARGUMENTS : IR_SCHEMA_WEAK_ARGUMENTS);
    free(text);
    if (!ir->rc && out == IR_NOTHING) ir_fail(ir, ROD_EINVALID, "allow nothing");
    if (ir->rc == ROD_EINVALID) {
        char why[sizeof ir->err->message];
        snprintf(why, sizeof why, "%s", ir->err->message);
        ir_go_back(ir, &mark);
        if (strict) return ir_fail(ir, ROD_EINVALID, "has a strict tool, %.64s, whose schema %.300s", name, why);
        ir_note(ir, "%s; any object is taken", why);
        out = ir_json_object(ir);
    }
    ir->about = NULL;
    return out;
}

/* NAME", "arguments": {...} */
static uint32_t calls_of_tool(struct ir *ir, const json_t *tool, size_t i) {
    const json_t *name = json_object_get(tool, "name");
    if (!json_is_string(name) || !json_string_length(name)) return calls_malformed(ir, "name");
    char *quoted = json_dumps(name, JSON_ENCODE_ANY);
    if (!quoted) return ir_no_memory(ir);
    uint32_t out = ir_cat(ir, ir_text(ir, quoted), ir_text(ir, ", \"arguments\": "));
    free(quoted);
    const uint32_t arguments = calls_arguments(ir, json_string_value(name), tool);
    if (ir->rc) return IR_NOTHING;
    ir->rules[ir->tools + i] = arguments;
    return ir_cat(ir, out, ir_ref(ir, ir->tools + (uint32_t)i));
}

/* Behind the opening tag. */
static uint32_t calls_body(struct ir *ir, const json_t *root) {
    const json_t *tools = json_object_get(root, "tools"), *tool;
    uint32_t out = IR_NOTHING;
    size_t i;
    if (!json_array_size(tools)) return calls_malformed(ir, "tools");
    ir->tools = ir->n_rules;
    ir->n_tools = (uint32_t)json_array_size(tools);
    for (i = 0; i < ir->n_tools; i++) ir_rule(ir);
    json_array_foreach(tools, i, tool) {
        out = ir_alt(ir, out, calls_of_tool(ir, tool, i));
        if (ir->rc) return IR_NOTHING;
    }
    const uint32_t end = ir_cat(ir, ir_text(ir, "}\n"), calls_tag(ir, root, "close"));
    return ir_cat(ir, ir_cat(ir, ir_text(ir, "\n{\"name\": "), out), end);
}

/* What may stand instead of calls. */
static uint32_t calls_content(struct ir *ir, const json_t *content) {
    const json_t *kind = json_object_get(content, "kind"), *text = json_object_get(content, "text");
    const char *is = json_is_string(kind) ? json_string_value(kind) : "";
    if (!content) return IR_NOTHING;
    if (!strcmp(is, "json_object")) return ir_json_object(ir);
    if (!json_is_string(text)) return calls_malformed(ir, "text");
    if (!strcmp(is, "json_schema")) return calls_schema(ir, json_string_value(text), IR_SCHEMA_TEXT);
    if (!strcmp(is, "regex")) return ir_regex(ir, json_string_value(text), json_string_length(text), false);
    if (strcmp(is, "choice") != 0) return calls_malformed(ir, "kind");
    ir_choice(ir, json_string_value(text), json_string_length(text));
    if (ir->rc) return IR_NOTHING;
    const uint32_t out = ir->rules[0];
    ir->rules[0] = IR_NOTHING;
    return out;
}

static uint32_t calls_root(struct ir *ir, const json_t *root) {
    const bool many = json_is_true(json_object_get(root, "many"));
    const uint32_t content = calls_content(ir, json_object_get(root, "content"));
    const uint32_t rule = ir_rule(ir), body = calls_body(ir, root);
    if (ir->rc) return IR_NOTHING;
    ir->rules[rule] = body;
    uint32_t out = ir_ref(ir, rule);
    if (json_is_true(json_object_get(root, "lazy"))) {
        const uint32_t any = ir_rep(ir, ir_char(ir, 0, 0x10ffff), 0, IR_NO_LIMIT);
        return many ? ir_cat(ir, out, any) : out;
    }
    out = ir_cat(ir, calls_tag(ir, root, "open"), out);
    const uint32_t more = ir_rep(ir, ir_cat(ir, ir_text(ir, "\n"), out), 0, IR_NO_LIMIT);
    return ir_alt(ir, content, many ? ir_cat(ir, out, more) : out);
}

void ir_calls(struct ir *ir, const char *text, size_t len) {
    json_error_t fault;
    json_t *root = json_guard_load(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &fault);
    if (!root && json_guard_was_short(&fault)) {
        ir_no_memory(ir);
    } else if (!json_is_object(root)) {
        ir_fail(ir, ROD_EINVALID, "is not JSON of calls");
    } else {
        const uint32_t top = calls_root(ir, root);
        if (!ir->rc) ir->rules[0] = top;
    }
    json_decref(root);
}
