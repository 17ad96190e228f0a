/* grammar_schema.c - JSON Schema to rules: OpenAI's strict subset and more. A schema is honoured, so every text of the
 * grammar is valid; or refused by the name of the keyword at fault; or, for tools, weakened: the keyword is left out
 * and noted.
 *
 * Where a schema leaves freedom the grammar takes the plain reading: without a type, the types that its keywords are
 * about; of anyOf, the alternatives that can be honoured. A $ref becomes a call, so schemas may recur. */
#include "grammar_schema.h"
#include "engine/base/json_guard.h"
#include "engine/base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The types that type names; 0: the error is set. Where schemas are weakened, a name of no type is left out. */
static unsigned schema_read_types(struct schema *s, const json_t *value) {
    unsigned types = 0;
    size_t i;
    const json_t *one;
    bool known = true;
    if (json_is_string(value)) types = schema_type_of_name(schema_text(value));
    json_array_foreach(value, i, one) {
        const unsigned type = schema_type_of_name(schema_text(one));
        known = known && type;
        types |= type;
    }
    if (!known && types && s->weaken) ir_note(s->ir, "has the keyword type with a name of no type; it is left out");
    if (!known && !s->weaken) types = 0;
    if (!types) schema_refuse(s, "type", ", which names no type of JSON");
    return types;
}

static uint32_t schema_listed(struct schema *s, const json_t *schema, unsigned types) {
    const json_t *list = json_object_get(schema, "enum"), *only = json_object_get(schema, "const"), *one;
    uint32_t out = IR_NOTHING;
    size_t i;
    if (list && !json_is_array(list)) return schema_refuse(s, "enum", ", which must be an array");
    if (only && !value_is_exact(only)) return schema_refuse_inexact(s, "const");
    if (!value_is_exact(list)) {
        if (!s->weaken || json_array_size(list) == 1) return schema_refuse_inexact(s, "enum");
        ir_note(s->ir, "has the keyword enum with a number that is not exact; it is left out");
    }
    if (only && !list && (schema_type_of(only) & types)) return schema_literal(s, only);
    json_array_foreach(list, i, one) {
        if ((schema_type_of(one) & types) && (!only || json_equal(one, only)) && value_is_exact(one))
            out = ir_alt(s->ir, out, schema_literal(s, one));
    }
    if (out != IR_NOTHING || s->ir->rc) return out;
    if (!list) return schema_empty(s, "const", NULL, ", whose value is not of the type");
    return schema_empty(s, "enum", only ? "const" : NULL,
                        !json_array_size(list) ? ", which lists no value"
                        : only                 ? ", which has no value of the type that const allows"
                                               : ", which has no value of the type");
}

/* ---- schemas of schemas ---- */

/* A rule that has its body now. One that leads back to itself on every way has no end: where schemas are weakened any
 * value stands for it. */
static uint32_t reference_close(struct schema *s, size_t ref, const struct ir_mark *mark) {
    struct ir *ir = s->ir;
    const uint32_t rule = s->refs[ref].rule;
    s->refs[ref].open = false;
    const bool ends =
        ir->rules[rule] != IR_NOTHING && (!s->refs[ref].recurs || ir_ends(ir, rule, mark->n_nodes, mark->n_rules));
    if (ir->rc) return IR_NOTHING;
    if (ends) return ir_ref(ir, rule);
    s->n_refs = ref + 1; /* what was compiled meanwhile took this one for a schema that ends */
    if (!s->empty.why[0] || s->refs[ref].recurs)
        schema_empty(s, "$ref", NULL,
                     s->refs[ref].recurs ? ", which leads back to itself without an end" : ", which allows no value");
    if (!s->weaken || !s->refs[ref].recurs) return ir->rules[rule] = IR_NOTHING;
    ir_note(ir, "%s; any value is taken", s->empty.why);
    ir->rules[rule] = ir_json_value(ir);
    return ir_ref(ir, rule);
}

static uint32_t schema_reference(struct schema *s, const json_t *ref) {
    const json_t *target = schema_target(s, ref);
    if (!target) return IR_NOTHING;
    for (size_t i = 0; i < s->n_refs; i++) {
        if (s->refs[i].target != target) continue;
        s->refs[i].recurs = s->refs[i].recurs || s->refs[i].open;
        if (s->refs[i].open || s->ir->rules[s->refs[i].rule] != IR_NOTHING) return ir_ref(s->ir, s->refs[i].rule);
        return json_is_false(target) ? IR_NOTHING : schema_empty(s, "$ref", NULL, ", which allows no value");
    }
    if (s->n_refs == SCHEMA_MAX_REFS) return schema_refuse(s, "$ref", " in more than 4096 places");
    const struct ir_mark mark = ir_mark_of(s->ir);
    const size_t at = s->n_refs++;
    s->refs[at].target = target;
    s->refs[at].rule = ir_rule(s->ir);
    s->refs[at].open = true;
    s->refs[at].recurs = false;
    char here[sizeof s->path];
    memcpy(here, s->path, sizeof here);
    snprintf(s->path, sizeof s->path, "%s", json_string_value(ref) + 1);
    s->path[utf8_check(s->path, strlen(s->path))] = 0; /* no part of a character */
    uint32_t body = s->any(s, target);
    memcpy(s->path, here, sizeof here);
    if (s->ir->rc) return IR_NOTHING;
    s->ir->rules[s->refs[at].rule] = body;
    return reference_close(s, at, &mark);
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
    json_object_foreach(rest, name, value) says = says || !(schema_keyword_about(name) & K_NOTE);
    return says ? rest : json_true();
}

/* What is no schema fails here even where schemas are weakened: another alternative may do. */
static const json_t *combined_branch(struct schema *s, const json_t *rest, const json_t *one) {
    if (json_is_object(one) || json_is_boolean(one)) return schema_join(s, rest, one);
    ir_fail(s->ir, ROD_EINVALID, "is no schema");
    return NULL;
}

/* An alternative that cannot be honoured is left out while there is another: what is generated is valid. */
static uint32_t combined_alternatives(struct schema *s, const json_t *list, const json_t *rest,
                                      const char *keyword_of) {
    struct ir *ir = s->ir;
    uint32_t out = IR_NOTHING;
    struct rod_error fault = {0};
    char keyword[sizeof s->fault] = "";
    size_t i, n_out = 0, n_no_words = 0;
    const json_t *one;
    json_array_foreach(list, i, one) {
        const struct ir_mark mark = ir_mark_of(ir);
        const size_t n_refs = s->n_refs;
        const int depth = s->depth;
        const json_t *branch = combined_branch(s, rest, one);
        const uint32_t node = branch ? schema_item_below(s, branch, keyword_of, i) : (uint32_t)IR_NOTHING;
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
        n_no_words += ir->nodes[node].kind != IR_BYTES;
        if (n_no_words > SCHEMA_MAX_CHOICES)
            return schema_refuse(s, keyword_of, ", with more than 1000 schemas that are no words");
        out = ir_alt(ir, out, node);
    }
    if (n_out && (out == IR_NOTHING || n_out == json_array_size(list))) {
        memcpy(s->fault, keyword, sizeof keyword);
        return ir_fail(ir, ROD_EINVALID, "%s", fault.message);
    }
    if (n_out) ir_note(ir, "leaves out an alternative: it %s", fault.message);
    if (out == IR_NOTHING && !s->empty.why[0])
        schema_empty(s, keyword_of, NULL, ", none of whose schemas allows a value");
    return out;
}

/* The branches of a oneOf; with a discriminator its property is there, whether it is required or not. */
static const json_t *combined_one_of(struct schema *s, const json_t *schema) {
    const json_t *list = json_object_get(schema, "oneOf"), *one;
    const char *name = schema_text(json_object_get(json_object_get(schema, "discriminator"), "propertyName"));
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

static const json_t *combined_with(struct schema *s, const json_t *rest, const json_t *one, const char *keyword) {
    const json_t *both = schema_join(s, rest, one);
    if (json_is_false(both) && !json_is_false(rest))
        schema_empty(s, keyword, NULL, ", which leaves no value to the keywords beside it");
    return both;
}

/* What a $ref leads to, joined with the keywords beside it. One that was joined about the same value already says
 * nothing more, and would be joined for ever. */
static const json_t *combined_target(struct schema *s, const json_t *rest, const json_t *ref) {
    const json_t *target = schema_target(s, ref);
    if (!target) return NULL;
    for (int i = s->joined_from; i < s->n_joined; i++) {
        if (s->joined[i] != target) continue;
        schema_empty(s, "$ref", NULL, ", which leads back to itself without an end");
        return NULL;
    }
    if (s->n_joined < SCHEMA_MAX_NESTING) s->joined[s->n_joined++] = target;
    return combined_with(s, rest, target, "$ref");
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
    const int n_joined = s->n_joined;
    if (ref) rest = combined_target(s, rest, ref);
    json_array_foreach(all, i, one) {
        if (s->weaken && !json_is_object(one) && !json_is_boolean(one))
            ir_note(s->ir, "has in allOf something that is no schema; it is left out");
        else
            rest = rest ? combined_with(s, rest, one, "allOf") : NULL;
    }
    uint32_t out = IR_NOTHING;
    if (rest && !json_is_false(rest)) {
        if (only) any = combined_one_of(s, schema);
        if (any)
            out = combined_alternatives(s, any, rest, only ? "oneOf" : "anyOf");
        else if (!only)
            out = schema_below(s, rest, all ? "allOf" : "$ref", NULL);
    }
    s->n_joined = n_joined;
    return out;
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

/* What the keywords are about; UINT32_MAX: one is refused. */
static unsigned keywords_about(struct schema *s, const json_t *schema) {
    unsigned about = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)schema, name, value) {
        const unsigned is = schema_keyword_about(name);
        if (!strcmp(name, "$id") && schema != s->root && !s->weaken)
            return schema_refuse(s, name, " below the root, which is not supported"), UINT32_MAX;
        if (!(is & K_UNHELD)) {
            about |= is;
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
        const char *list = json_object_get(schema, "enum") ? "enum" : "const";
        if ((about & T_ALL) && !s->weaken) return schema_refuse(s, list, " beside other limits than type");
        if (about & T_ALL) ir_note(s->ir, "has limits beside the keyword %s; they are not held", list);
        return schema_listed(s, schema, types);
    }
    if (!type && !(about & T_ALL)) return ir_json_value(s->ir);
    return schema_of_types(s, schema, type ? types : about & T_ALL);
}

/* The schema without the keywords that are at fault; NULL: no memory. */
static const json_t *schema_without(struct schema *s, const json_t *schema, const char *keyword, const char *other) {
    json_t *less = json_copy((json_t *)schema);
    if (less) json_object_del(less, keyword);
    if (less) json_object_del(less, other); /* it may be none */
    if (less && !json_array_append_new(s->made, less)) return less;
    ir_no_memory(s->ir);
    return NULL;
}

/* The keyword of this schema that is to blame where no value is valid. */
static void weakened_blame(struct schema *s, const json_t *schema) {
    static const char *const combining[] = {"anyOf", "oneOf", "allOf", "$ref"};
    if (json_object_get(schema, s->empty.keyword)) return;
    s->empty.keyword[0] = s->empty.other[0] = 0;
    for (size_t i = 0; i < sizeof combining / sizeof *combining; i++) {
        if (!json_object_get(schema, combining[i])) continue;
        schema_empty(s, combining[i], NULL, ", which allows no value");
        return;
    }
}

/* Tried again without the keywords that are at fault, so what the others say holds. Too large a schema fails at last.
 */
static uint32_t schema_weakened(struct schema *s, const json_t *schema) {
    const struct ir_mark mark = ir_mark_of(s->ir);
    const size_t n_refs = s->n_refs;
    const int depth = s->depth;
    uint32_t out = schema_keywords(s, schema);
    while ((s->ir->rc == ROD_EINVALID || (!s->ir->rc && out == IR_NOTHING)) && s->n_seen < SCHEMA_MAX_SEEN) {
        const bool refused = s->ir->rc;
        char why[sizeof s->ir->err->message];
        if (!refused) weakened_blame(s, schema);
        snprintf(why, sizeof why, "%s", refused ? s->ir->err->message : s->empty.why);
        ir_go_back(s->ir, &mark);
        s->n_refs = n_refs;
        s->depth = depth;
        const char *keyword = refused ? s->fault : s->empty.keyword, *other = refused ? "" : s->empty.other;
        if (!*keyword || !json_object_get(schema, keyword)) {
            ir_note(s->ir, "%s; this part is not held", why);
            return schema_types(schema) == T_OBJECT ? ir_json_object(s->ir) : ir_json_value(s->ir);
        }
        ir_note(s->ir, "%s; it is not held", why);
        schema = schema_without(s, schema, keyword, other);
        if (!schema) return IR_NOTHING;
        s->fault[0] = 0;
        s->empty = (struct schema_empty){0};
        s->n_seen++;
        out = schema_keywords(s, schema);
    }
    return out;
}

/* A part that is no schema, or too deep, loses only itself where schemas are weakened. */
static uint32_t schema_malformed(struct schema *s, const char *what) {
    char where[sizeof s->path + 8] = "";
    if (*s->path) snprintf(where, sizeof where, " below %s", s->path);
    if (!s->weaken || s->depth == 0) return ir_fail(s->ir, ROD_EINVALID, "%s%s", what, where);
    ir_note(s->ir, "%s%s; any value is taken", what, where);
    return ir_json_value(s->ir);
}

/* struct schema's any. */
static uint32_t schema_root(struct schema *s, const json_t *schema) {
    s->empty = (struct schema_empty){0};
    if (s->ir->rc) return IR_NOTHING;
    if (json_is_true(schema)) return ir_json_value(s->ir);
    if (json_is_false(schema)) return IR_NOTHING;
    if (!json_is_object(schema))
        return schema_malformed(s, "has, where a schema must be, something else than an object or a boolean");
    s->fault[0] = 0;
    if (s->depth == SCHEMA_MAX_NESTING) return schema_malformed(s, "has schemas nested deeper than 64");
    if (++s->n_seen > SCHEMA_MAX_SEEN)
        return ir_fail(s->ir, ROD_EINVALID, "is too complex: more than 65536 schemas are to be looked at");
    s->depth++;
    const uint32_t out = s->weaken ? schema_weakened(s, schema) : schema_keywords(s, schema);
    s->depth--;
    if (out != IR_NOTHING || s->ir->rc) return out;
    if (!s->empty.why[0]) schema_empty(s, NULL, NULL, " for which no value is valid");
    return s->strict ? ir_fail(s->ir, ROD_EINVALID, "%s", s->empty.why) : (uint32_t)IR_NOTHING;
}

/* Arguments of a tool are an object, whatever its schema names. */
static const json_t *schema_of_arguments(struct schema *s) {
    if (!json_is_object(s->root) && !json_is_true(s->root)) return s->root;
    if (json_is_object(s->root) && json_object_get(s->root, "type")) {
        if (schema_types(s->root) == T_OBJECT) return s->root;
        if (s->strict) {
            schema_refuse(s, "type", ", which must be object for arguments");
            return NULL;
        }
        ir_note(s->ir, "has at its root another type than object");
    }
    json_t *out = json_is_true(s->root) ? json_object() : json_copy((json_t *)s->root);
    if (!out || json_object_set_new(out, "type", json_string("object")) || json_array_append(s->made, out))
        ir_no_memory(s->ir);
    json_decref(out);
    return s->ir->rc ? NULL : out;
}

void ir_schema(struct ir *ir, const char *text, size_t len, enum ir_schema_use use) {
    json_error_t fault;
    json_t *root = json_guard_load(text, len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &fault);
    struct schema *s = root ? calloc(1, sizeof *s) : NULL;
    json_t *made = s ? json_array() : NULL;
    if (!root && !json_guard_was_short(&fault)) {
        ir_fail(ir, ROD_EINVALID, "is not JSON: %.100s", fault.text);
    } else if (!made) {
        ir_no_memory(ir);
    } else {
        *s = (struct schema){.ir = ir, .root = root, .made = made, .any = schema_root};
        s->weaken = use == IR_SCHEMA_WEAK_ARGUMENTS;
        s->strict = use == IR_SCHEMA_STRICT_ARGUMENTS;
        const uint32_t top = s->any(s, use == IR_SCHEMA_TEXT ? root : schema_of_arguments(s));
        if (!ir->rc && top == IR_NOTHING && s->empty.why[0]) ir_fail(ir, ROD_EINVALID, "%s", s->empty.why);
        if (!ir->rc) ir->rules[0] = top;
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
