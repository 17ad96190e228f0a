/* grammar_schema_base.c - what all parts of the compiler of schemas use: refusals, counts, and the types of JSON. */
#include "grammar_schema.h"
#include "engine/base/json_real.h"
#include "engine/base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LENGTH = 65535 };

static const struct {
    unsigned about;
    const char *names;
} keywords[] = {
    {K_TYPE, "type"},
    {K_LIST, "enum const"},
    {K_COMBINE, "anyOf oneOf allOf $ref"},
    {T_OBJECT, "properties required additionalProperties patternProperties propertyNames minProperties maxProperties"},
    {T_ARRAY, "items prefixItems additionalItems uniqueItems minItems maxItems"},
    {T_STRING, "minLength maxLength pattern format contentMediaType contentEncoding"},
    {T_NUMBER | T_INTEGER, "minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"},
    {K_UNHELD, "not if then else contains minContains maxContains unevaluatedItems unevaluatedProperties dependencies "
               "dependentRequired dependentSchemas $dynamicRef $recursiveRef divisibleBy disallow extends"},
};
enum { N_KEYWORDS = sizeof keywords / sizeof *keywords };

bool schema_lists(const char *names, const char *name) {
    const size_t len = strlen(name);
    for (size_t n; *names; names += n + (names[n] == ' ')) {
        n = strcspn(names, " ");
        if (n == len && !memcmp(names, name, n)) return true;
    }
    return false;
}

unsigned schema_keyword_about(const char *name) {
    for (size_t k = 0; k < N_KEYWORDS; k++)
        if (schema_lists(keywords[k].names, name)) return keywords[k].about;
    return K_NOTE;
}

/* "has the keyword K", with the place where it stands below the root. */
static int has_keyword(const struct schema *s, const char *keyword, char *out, size_t size) {
    return *s->path ? snprintf(out, size, "has at %s the keyword %.60s", s->path, keyword)
                    : snprintf(out, size, "has the keyword %.60s", keyword);
}

uint32_t schema_refuse(struct schema *s, const char *keyword, const char *what) {
    char has[sizeof s->path + 96];
    has_keyword(s, keyword, has, sizeof has);
    if (!s->fault[0]) snprintf(s->fault, sizeof s->fault, "%s", keyword);
    return ir_fail(s->ir, ROD_EINVALID, "%s%s", has, what);
}

uint32_t schema_refuse_part(struct schema *s, const char *keyword) {
    char what[sizeof s->ir->err->message + 16];
    if (s->ir->rc != ROD_EINVALID) return IR_NOTHING;
    snprintf(what, sizeof what, ", which %s", s->ir->err->message);
    s->ir->rc = 0;
    return schema_refuse(s, keyword, what);
}

uint32_t schema_empty(struct schema *s, const char *keyword, const char *other, const char *what) {
    struct schema_empty *e = &s->empty;
    char has[sizeof s->path + 96];
    if (s->ir->rc) return IR_NOTHING;
    if (keyword)
        has_keyword(s, keyword, has, sizeof has);
    else
        snprintf(has, sizeof has, "has%s%s a schema", *s->path ? " at " : "", s->path);
    snprintf(e->keyword, sizeof e->keyword, "%s", keyword ? keyword : "");
    snprintf(e->other, sizeof e->other, "%s", other ? other : "");
    snprintf(e->why, sizeof e->why, "%s%s", has, what);
    return IR_NOTHING;
}

/* A name as a JSON pointer has it; what finds no room is cut, and says so. */
static void path_add(struct schema *s, const char *name) {
    static const char dots[] = "...";
    size_t at = strlen(s->path);
    const size_t last = sizeof s->path - sizeof dots - 2;
    if (at >= last) return;
    s->path[at++] = '/';
    for (; *name && at < last; name++) {
        if (*name == '~' || *name == '/') s->path[at++] = '~';
        s->path[at++] = *name == '~' ? '0' : *name == '/' ? '1' : *name;
    }
    if (*name) {
        at = utf8_complete(s->path, at);
        memcpy(s->path + at, dots, sizeof dots - 1);
        at += sizeof dots - 1;
    }
    s->path[at] = 0;
}

uint32_t schema_below(struct schema *s, const json_t *schema, const char *keyword, const char *name) {
    const size_t at = strlen(s->path);
    const int joined_from = s->joined_from;
    if (schema_keyword_about(keyword) != K_COMBINE) s->joined_from = s->n_joined;
    path_add(s, keyword);
    if (name) path_add(s, name);
    const uint32_t out = s->any(s, schema);
    s->path[at] = 0;
    s->joined_from = joined_from;
    return out;
}

uint32_t schema_item_below(struct schema *s, const json_t *schema, const char *keyword, size_t i) {
    char name[24];
    snprintf(name, sizeof name, "%zu", i);
    return schema_below(s, schema, keyword, name);
}

/* What is nothing stays so: a rule would hide it. */
uint32_t schema_rule_with(struct schema *s, uint32_t body) {
    if (body == IR_NOTHING) return IR_NOTHING;
    uint32_t rule = ir_rule(s->ir);
    if (s->ir->rc) return IR_NOTHING;
    s->ir->rules[rule] = body;
    return ir_ref(s->ir, rule);
}

const char *schema_text(const json_t *value) {
    const char *text = json_string_value(value);
    return text && strlen(text) == json_string_length(value) ? text : NULL;
}

static uint32_t literal_text(struct schema *s, const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) return ir_no_memory(s->ir); /* what was read can be written */
    uint32_t out = ir_text(s->ir, text);
    free(text);
    return out;
}

/* jansson writes fractions with 17 digits. */
uint32_t schema_literal(struct schema *s, const json_t *value) {
    struct ir *ir = s->ir;
    char real[JSON_REAL_BYTES];
    const char *name;
    json_t *one;
    size_t i, n = 0;
    if (json_is_real(value)) {
        json_real_text(json_real_value(value), real);
        return ir_text(ir, real);
    }
    if (!json_is_array(value) && !json_is_object(value)) return literal_text(s, value);
    const bool list = json_is_array(value);
    uint32_t out = ir_text(ir, list ? "[" : "{");
    json_array_foreach(value, i, one) out =
        ir_cat(ir, ir_cat(ir, out, i ? ir_text(ir, ",") : IR_EMPTY_NODE), schema_literal(s, one));
    json_object_foreach((json_t *)value, name, one) {
        json_t *key = json_string(name);
        if (!key) return ir_no_memory(ir);
        out = ir_cat(ir, ir_cat(ir, out, n++ ? ir_text(ir, ",") : IR_EMPTY_NODE), literal_text(s, key));
        out = ir_cat(ir, ir_cat(ir, out, ir_text(ir, ":")), schema_literal(s, one));
        json_decref(key);
    }
    return ir_cat(ir, out, ir_text(ir, list ? "]" : "}"));
}

bool schema_read_count(struct schema *s, const json_t *schema, const char *keyword, uint32_t *out) {
    const json_t *value = json_object_get(schema, keyword);
    if (!value) return true;
    double n = json_is_number(value) ? json_number_value(value) : -1;
    if (!(n >= 0) || trunc(n) != n) {
        schema_refuse(s, keyword, ", which must be a whole number from 0 on");
        return false;
    }
    if (n > MAX_LENGTH) {
        schema_refuse(s, keyword, ", which is supported up to 65535");
        return false;
    }
    *out = (uint32_t)n;
    return true;
}

unsigned schema_type_of_name(const char *name) {
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {{"null", T_NULL},     {"boolean", T_BOOLEAN}, {"integer", T_INTEGER}, {"number", T_NUMBER | T_INTEGER},
                 {"string", T_STRING}, {"array", T_ARRAY},     {"object", T_OBJECT}};
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(name, types[i].name) == 0) return types[i].type;
    return 0;
}

unsigned schema_type_of(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_NULL: return T_NULL;
    case JSON_TRUE:
    case JSON_FALSE: return T_BOOLEAN;
    case JSON_INTEGER: return T_INTEGER;
    case JSON_REAL: return trunc(json_real_value(value)) == json_real_value(value) ? T_INTEGER : T_NUMBER;
    case JSON_STRING: return T_STRING;
    case JSON_ARRAY: return T_ARRAY;
    case JSON_OBJECT: return T_OBJECT;
    }
    return 0;
}

/* Of a list of values, and of one. */
static unsigned types_of_values(const json_t *list, const json_t *only) {
    unsigned types = only ? schema_type_of(only) : 0;
    size_t i;
    const json_t *one;
    json_array_foreach(list, i, one) types |= schema_type_of(one);
    return types;
}

unsigned schema_types(const json_t *schema) {
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum"),
                 *only = json_object_get(schema, "const"), *one;
    unsigned types = json_is_string(type) ? schema_type_of_name(schema_text(type)) : 0;
    size_t i;
    json_array_foreach(type, i, one) types |= schema_type_of_name(schema_text(one));
    if (!types) types = T_ALL;
    if (json_is_array(list) || only) types &= types_of_values(list, only);
    return types;
}
