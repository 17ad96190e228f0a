/* grammar_schema.c - JSON Schema to rules: OpenAI's strict subset and more. A schema is honoured, so every text of the
 * grammar is valid; or refused by the name of the keyword at fault; or, for tools, weakened: the keyword is left out
 * and noted.
 *
 * Where a schema leaves freedom the grammar takes the plain reading: without a type, the types that its keywords are
 * about; of anyOf, the alternatives that can be honoured. A $ref becomes a call, so schemas may recur. */
#include "grammar_schema.h"
#include "engine/base/json_guard.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {                  /* what a keyword is about, beside types */
       K_NOTE = 128,    /* says nothing about the text */
       K_LIST = 256,    /* enum, const */
       K_COMBINE = 512, /* other schemas */
       K_TYPE = 1024
};

static const struct {
    const char *name;
    unsigned about;
} keywords[] = {
    {"title", K_NOTE},
    {"description", K_NOTE},
    {"default", K_NOTE},
    {"examples", K_NOTE},
    {"deprecated", K_NOTE},
    {"readOnly", K_NOTE},
    {"writeOnly", K_NOTE},
    {"$schema", K_NOTE},
    {"$id", K_NOTE},
    {"$comment", K_NOTE},
    {"$defs", K_NOTE},
    {"definitions", K_NOTE},
    {"$anchor", K_NOTE},
    {"discriminator", K_NOTE},
    {"contentSchema", K_NOTE},
    {"type", K_TYPE},
    {"enum", K_LIST},
    {"const", K_LIST},
    {"anyOf", K_COMBINE},
    {"oneOf", K_COMBINE},
    {"allOf", K_COMBINE},
    {"$ref", K_COMBINE},
    {"properties", T_OBJECT},
    {"required", T_OBJECT},
    {"additionalProperties", T_OBJECT},
    {"patternProperties", T_OBJECT},
    {"propertyNames", T_OBJECT},
    {"minProperties", T_OBJECT},
    {"maxProperties", T_OBJECT},
    {"items", T_ARRAY},
    {"prefixItems", T_ARRAY},
    {"additionalItems", T_ARRAY},
    {"uniqueItems", T_ARRAY},
    {"minItems", T_ARRAY},
    {"maxItems", T_ARRAY},
    {"minLength", T_STRING},
    {"maxLength", T_STRING},
    {"pattern", T_STRING},
    {"format", T_STRING},
    {"contentMediaType", T_STRING},
    {"contentEncoding", T_STRING},
    {"minimum", T_NUMBER | T_INTEGER},
    {"maximum", T_NUMBER | T_INTEGER},
    {"exclusiveMinimum", T_NUMBER | T_INTEGER},
    {"exclusiveMaximum", T_NUMBER | T_INTEGER},
    {"multipleOf", T_NUMBER | T_INTEGER},
};
enum { N_KEYWORDS = sizeof keywords / sizeof *keywords };

/* The types that type names; 0: the error is set. */
static unsigned schema_read_types(struct schema *s, const json_t *value) {
    unsigned types = 0;
    size_t i;
    const json_t *one;
    if (json_is_string(value)) types = schema_type_of_name(json_string_value(value));
    json_array_foreach(value, i, one) {
        unsigned type = schema_type_of_name(json_string_value(one));
        if (!type) {
            types = 0;
            break;
        }
        types |= type;
    }
    if (!types) schema_refuse(s, "type", ", which names no type of JSON");
    return types;
}

static uint32_t schema_listed(struct schema *s, const json_t *schema, unsigned types) {
    const json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const"), *one;
    uint32_t out = IR_NOTHING;
    size_t i;
    if (list && !json_is_array(list)) return schema_refuse(s, "enum", ", which must be an array");
    if ((only && !value_is_exact(only)) || !value_is_exact(list))
        return schema_refuse_inexact(s, value_is_exact(list) ? "const" : "enum");
    if (only && !list) return schema_type_of(only) & types ? schema_literal(s, only) : (uint32_t)IR_NOTHING;
    json_array_foreach(list, i, one) {
        if ((schema_type_of(one) & types) && (!only || json_equal(one, only)))
            out = ir_alt(s->ir, out, schema_literal(s, one));
    }
    return out;
}

/* ---- schemas of schemas ---- */

static uint32_t schema_reference(struct schema *s, const json_t *ref) {
    const json_t *target = schema_target(s, ref);
    if (!target) return IR_NOTHING;
    for (size_t i = 0; i < s->n_refs; i++)
        if (s->refs[i].target == target) return ir_ref(s->ir, s->refs[i].rule);
    if (s->n_refs == SCHEMA_MAX_REFS) return schema_refuse(s, "$ref", " in too many places");
    uint32_t rule = ir_rule(s->ir);
    s->refs[s->n_refs].target = target;
    s->refs[s->n_refs++].rule = rule;
    uint32_t body = schema_any(s, target);
    if (s->ir->rc) return IR_NOTHING;
    s->ir->rules[rule] = body;
    return ir_ref(s->ir, rule);
}

/* The schema without its keywords about other schemas; true if nothing is left that says anything. */
static const json_t *combined_rest(struct schema *s, const json_t *schema) {
    static const char *const others[] = {"anyOf", "oneOf", "allOf", "$ref", "discriminator"};
    json_t *rest = json_copy((json_t *)schema), *value;
    const char *name;
    bool says = false;
    for (size_t i = 0; rest && i < sizeof others / sizeof *others; i++) json_object_del(rest, others[i]);
    if (!rest || json_array_append_new(s->made, rest)) {
        ir_no_memory(s->ir);
        return NULL;
    }
    json_object_foreach(rest, name, value) {
        size_t k = 0;
        while (k < N_KEYWORDS && strcmp(name, keywords[k].name) != 0) k++;
        says = says || (k < N_KEYWORDS && !(keywords[k].about & K_NOTE));
    }
    return says ? rest : json_true();
}

/* An alternative that cannot be honoured is left out while there is another: what is generated is valid. */
static uint32_t combined_alternatives(struct schema *s, const json_t *list, const json_t *rest) {
    struct ir *ir = s->ir;
    uint32_t out = IR_NOTHING;
    struct rod_error fault = {0};
    char keyword[sizeof s->fault] = "";
    size_t i, n_out = 0;
    const json_t *one;
    json_array_foreach(list, i, one) {
        const struct ir_mark mark = ir_mark_of(ir);
        const size_t n_refs = s->n_refs;
        const int depth = s->depth;
        const json_t *branch = schema_join(s, rest, one);
        const uint32_t node = branch ? schema_any(s, branch) : (uint32_t)IR_NOTHING;
        if (ir->rc == ROD_EINVALID && json_array_size(list) > 1) {
            if (!fault.message[0]) {
                fault = *ir->err;
                memcpy(keyword, s->fault, sizeof keyword);
            }
            ir_go_back(ir, &mark);
            s->n_refs = n_refs;
            s->depth = depth;
            s->fault[0] = 0;
            n_out++;
            continue;
        }
        if (ir->rc) return IR_NOTHING;
        out = ir_alt(ir, out, node);
    }
    if (n_out && (out == IR_NOTHING || n_out == json_array_size(list))) {
        memcpy(s->fault, keyword, sizeof keyword);
        return ir_fail(ir, ROD_EINVALID, "%s", fault.message);
    }
    if (n_out) ir_note(ir, "leaves out an alternative: it %s", fault.message);
    return out;
}

/* The branches of a oneOf; with a discriminator its property is there, whether it is required or not. */
static const json_t *combined_one_of(struct schema *s, const json_t *schema) {
    const json_t *list = json_object_get(schema, "oneOf"), *one;
    const char *name = json_string_value(json_object_get(json_object_get(schema, "discriminator"), "propertyName"));
    json_t *branches = json_array();
    size_t i;
    if (!branches || json_array_append_new(s->made, branches)) {
        ir_no_memory(s->ir);
        return NULL;
    }
    json_array_foreach(list, i, one) {
        const json_t *target = one, *ref = json_object_get(one, "$ref");
        if (name && ref) target = schema_target(s, ref);
        if (name && target && json_object_get(json_object_get(target, "properties"), name)) {
            json_t *there = json_pack("{s:[s]}", "required", name);
            if (!there || json_array_append_new(s->made, there)) ir_no_memory(s->ir);
            target = s->ir->rc ? NULL : schema_join(s, target, there);
        }
        if (!target) return NULL;
        json_array_append(branches, (json_t *)target);
    }
    if (s->weaken || schemas_are_apart(s, branches)) {
        if (s->weaken && !schemas_are_apart(s, branches))
            ir_note(s->ir, "has the keyword oneOf, of which more than one may hold");
        return branches;
    }
    if (!s->ir->rc)
        schema_refuse(s, "oneOf",
                      ", whose schemas are not told apart by a type or by a required property with other values");
    return NULL;
}

static uint32_t schema_combined(struct schema *s, const json_t *schema) {
    const json_t *any = json_object_get(schema, "anyOf"), *all = json_object_get(schema, "allOf"), *one,
                 *ref = json_object_get(schema, "$ref");
    const json_t *only = json_object_get(schema, "oneOf"), *rest = combined_rest(s, schema);
    size_t i;
    if (!rest) return IR_NOTHING;
    if (any && only) return schema_refuse(s, "oneOf", " beside anyOf");
    const char *lists[] = {"anyOf", "allOf", "oneOf"};
    for (i = 0; i < 3; i++) {
        const json_t *list = json_object_get(schema, lists[i]);
        if (list && json_array_size(list) == 0)
            return schema_refuse(s, lists[i], ", which must be an array of schemas");
    }
    if (ref && !any && !all && !only && json_is_true(rest)) return schema_reference(s, ref);
    if (ref) {
        const json_t *target = schema_target(s, ref);
        rest = target ? schema_join(s, rest, target) : NULL;
    }
    json_array_foreach(all, i, one) rest = rest ? schema_join(s, rest, one) : NULL;
    if (!rest) return IR_NOTHING;
    if (!any && !only) return schema_any(s, rest);
    if (only) any = combined_one_of(s, schema);
    return any ? combined_alternatives(s, any, rest) : (uint32_t)IR_NOTHING;
}

static uint32_t schema_of_types(struct schema *s, const json_t *schema, unsigned types) {
    struct ir *ir = s->ir;
    uint32_t out = IR_NOTHING;
    if (types & T_NULL) out = ir_alt(ir, out, ir_text(ir, "null"));
    if (types & T_BOOLEAN) out = ir_alt(ir, out, ir_alt(ir, ir_text(ir, "true"), ir_text(ir, "false")));
    if (types & T_NUMBER)
        out = ir_alt(ir, out, schema_number(s, schema, false));
    else if (types & T_INTEGER)
        out = ir_alt(ir, out, schema_number(s, schema, true));
    if (types & T_STRING) out = ir_alt(ir, out, schema_string(s, schema));
    if (types & T_ARRAY) out = ir_alt(ir, out, schema_array(s, schema));
    if (types & T_OBJECT) out = ir_alt(ir, out, schema_object(s, schema));
    return out;
}

/* What says nothing about a text, of OpenAPI and of others. */
static bool keyword_is_annotation(const char *name, const json_t *value) {
    return strncmp(name, "x-", 2) == 0 || (strcmp(name, "nullable") == 0 && json_is_false(value));
}

/* What the keywords are about; UINT32_MAX: one is refused. */
static unsigned keywords_about(struct schema *s, const json_t *schema) {
    unsigned about = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)schema, name, value) {
        size_t k = 0;
        while (k < N_KEYWORDS && strcmp(name, keywords[k].name) != 0) k++;
        if (k < N_KEYWORDS) {
            about |= keywords[k].about;
            if (strcmp(name, "$id") != 0 || schema == s->root) continue;
            if (!s->weaken) return schema_refuse(s, name, " below the root, which is not supported"), UINT32_MAX;
        } else if (keyword_is_annotation(name, value)) {
            continue;
        } else if (s->weaken) {
            ir_note(s->ir, "has the keyword %.60s, which is not supported", name);
        } else {
            return schema_refuse(s, name, ", which is not supported"), UINT32_MAX;
        }
    }
    return about;
}

static uint32_t schema_keywords(struct schema *s, const json_t *schema) {
    const unsigned about = keywords_about(s, schema);
    const json_t *type = json_object_get(schema, "type");
    const unsigned types = type ? schema_read_types(s, type) : T_ALL;
    if (about == UINT32_MAX || !types) return IR_NOTHING;
    if (about & K_COMBINE) return schema_combined(s, schema);
    if (about & K_LIST) {
        if (about & T_ALL)
            return schema_refuse(s, json_object_get(schema, "enum") ? "enum" : "const",
                                 " beside other limits than type");
        return schema_listed(s, schema, types);
    }
    if (!type && !(about & T_ALL)) return ir_json_value(s->ir);
    return schema_of_types(s, schema, type ? types : about & T_ALL);
}

/* The schema without one keyword. */
static const json_t *schema_without(struct schema *s, const json_t *schema, const char *keyword) {
    json_t *less = json_copy((json_t *)schema);
    if (!less || json_object_del(less, keyword) || json_array_append(s->made, less)) {
        json_decref(less);
        return NULL;
    }
    json_decref(less);
    return less;
}

/* Tried again without each keyword that is at fault, so what the others say holds. Too large a schema fails at last. */
static uint32_t schema_weakened(struct schema *s, const json_t *schema) {
    const struct ir_mark mark = ir_mark_of(s->ir);
    const size_t n_refs = s->n_refs;
    const int depth = s->depth;
    uint32_t out = schema_keywords(s, schema);
    while (s->ir->rc == ROD_EINVALID && s->n_seen < SCHEMA_MAX_SEEN) {
        char why[sizeof s->ir->err->message];
        snprintf(why, sizeof why, "%s", s->ir->err->message);
        ir_go_back(s->ir, &mark);
        s->n_refs = n_refs;
        s->depth = depth;
        if (!s->fault[0] || !json_object_get(schema, s->fault)) {
            ir_note(s->ir, "%s; this part is not held", why);
            return depth == 1 ? ir_json_object(s->ir) : ir_json_value(s->ir); /* arguments are an object */
        }
        ir_note(s->ir, "%s; it is not held", why);
        schema = schema_without(s, schema, s->fault);
        if (!schema) return ir_no_memory(s->ir);
        s->fault[0] = 0;
        s->n_seen++;
        out = schema_keywords(s, schema);
    }
    return out;
}

/* struct schema's any. */
static uint32_t schema_whole(struct schema *s, const json_t *schema) {
    if (s->ir->rc) return IR_NOTHING;
    if (json_is_true(schema)) return ir_json_value(s->ir);
    if (json_is_false(schema)) return IR_NOTHING;
    if (!json_is_object(schema))
        return ir_fail(s->ir, ROD_EINVALID, "has, where a schema must be, something else than an object or a boolean");
    s->fault[0] = 0;
    if (s->depth == SCHEMA_MAX_NESTING) return ir_fail(s->ir, ROD_EINVALID, "is nested too deep");
    if (++s->n_seen > SCHEMA_MAX_SEEN) return ir_fail(s->ir, ROD_EINVALID, "is too complex");
    s->depth++;
    uint32_t out = s->weaken ? schema_weakened(s, schema) : schema_keywords(s, schema);
    s->depth--;
    return out;
}

/* Arguments of a tool are an object, whatever its schema names. */
static const json_t *schema_of_arguments(struct schema *s) {
    if (!json_is_object(s->root) && !json_is_true(s->root)) return s->root;
    if (json_is_object(s->root) && json_object_get(s->root, "type")) {
        if (schema_types(s->root) == T_OBJECT) return s->root;
        ir_note(s->ir, "has at its root another type than object");
    }
    json_t *out = json_is_true(s->root) ? json_object() : json_copy((json_t *)s->root);
    if (!out || json_object_set_new(out, "type", json_string("object")) || json_array_append(s->made, out))
        ir_no_memory(s->ir);
    json_decref(out);
    return s->ir->rc ? NULL : out;
}

void ir_schema(struct ir *ir, const char *text, size_t len, bool weaken) {
    json_error_t fault;
    json_t *root = json_guard_load(text, len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &fault);
    struct schema *s = root ? calloc(1, sizeof *s) : NULL;
    json_t *made = s ? json_array() : NULL;
    if (!root && !json_guard_was_short(&fault)) {
        ir_fail(ir, ROD_EINVALID, "is not JSON: %.100s", fault.text);
    } else if (!made) {
        ir_no_memory(ir);
    } else {
        *s = (struct schema){.ir = ir, .root = root, .weaken = weaken, .made = made, .any = schema_whole};
        const uint32_t whole = schema_any(s, weaken ? schema_of_arguments(s) : root);
        if (!ir->rc) ir->rules[0] = whole;
    }
    json_decref(made);
    free(s);
    json_decref(root);
}

void ir_choice(struct ir *ir, const char *text, size_t len) {
    json_error_t fault;
    json_t *list = json_guard_load(text, len, JSON_ALLOW_NUL, &fault);
    uint32_t out = IR_NOTHING;
    size_t i;
    const json_t *one;
    if (!list && json_guard_was_short(&fault)) ir_no_memory(ir);
    if (!json_is_array(list) || json_array_size(list) == 0) ir_fail(ir, ROD_EINVALID, "must be an array of strings");
    json_array_foreach(list, i, one) {
        if (!json_is_string(one) || json_string_length(one) == 0)
            ir_fail(ir, ROD_EINVALID, "has a choice that is not a string, or is empty");
        else
            out = ir_alt(ir, out, ir_bytes(ir, json_string_value(one), json_string_length(one)));
    }
    if (!ir->rc) ir->rules[0] = out;
    json_decref(list);
}
