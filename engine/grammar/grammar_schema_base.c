/* grammar_schema_base.c - what all parts of the compiler of schemas use: refusals, counts, and the types of JSON. */
#include "grammar_schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LENGTH = 65535 };

uint32_t schema_refuse(struct schema *s, const char *keyword, const char *what) {
    if (!s->fault[0]) snprintf(s->fault, sizeof s->fault, "%s", keyword);
    return ir_fail(s->ir, ROD_EINVALID, "has the keyword %.60s%s", keyword, what);
}

uint32_t schema_rule_with(struct schema *s, uint32_t body) {
    uint32_t rule = ir_rule(s->ir);
    if (s->ir->rc) return IR_NOTHING;
    s->ir->rules[rule] = body;
    return ir_ref(s->ir, rule);
}

uint32_t schema_literal(struct schema *s, const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) return ir_no_memory(s->ir); /* what was read can be written */
    uint32_t out = ir_text(s->ir, text);
    free(text);
    return out;
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
    unsigned types = json_is_string(type) ? schema_type_of_name(json_string_value(type)) : 0;
    size_t i;
    json_array_foreach(type, i, one) types |= schema_type_of_name(json_string_value(one));
    if (!types) types = T_ALL;
    if (json_is_array(list) || only) types &= types_of_values(list, only);
    return types;
}
