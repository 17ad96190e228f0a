/* grammar_schema_join.c - several schemas about one value: where a $ref leads, what two of them allow together, and
 * whether no value is of two of them. Joined schemas are schemas; values in them are shared. */
#include "grammar_schema.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_BRANCHES = 128 };

/* ---- references ---- */

static int pointer_hex_digit(char c) {
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c | 0x20 : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* ~0 is ~ and ~1 is /, in place; returns what is left. */
static size_t pointer_unescape(char *name, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++, n++) {
        name[n] = name[i];
        if (name[i] == '~' && i + 1 < len && (name[i + 1] == '0' || name[i + 1] == '1'))
            name[n] = name[++i] == '0' ? '~' : '/';
    }
    name[n] = 0;
    return n;
}

/* JSON pointer (RFC 6901) in this schema, as the fragment of a URI: %41 is A. NULL: it leads nowhere. */
static const json_t *pointer_resolve(const struct schema *s, const char *ref) {
    const json_t *at = s->root;
    if (*ref++ != '#') return NULL;
    while (*ref && at) {
        char name[256];
        size_t n = 0;
        if (*ref++ != '/') return NULL;
        for (; *ref && *ref != '/'; ref++) {
            char c = *ref;
            if (c == '%') {
                const int high = pointer_hex_digit(ref[1]), low = high < 0 ? -1 : pointer_hex_digit(ref[2]);
                if (low < 0 || !(high || low)) return NULL;
                c = (char)(high * 16 + low);
                ref += 2;
            }
            if (n + 1 == sizeof name || c == '/') return NULL;
            name[n++] = c;
        }
        n = pointer_unescape(name, n);
        if (json_is_array(at)) {
            char *end;
            unsigned long i = strtoul(name, &end, 10);
            at = n && !*end ? json_array_get(at, i) : NULL;
        } else {
            at = json_object_get(at, name);
        }
    }
    return at;
}

const json_t *schema_target(struct schema *s, const json_t *ref) {
    const char *text = schema_text(ref);
    const json_t *target = text ? pointer_resolve(s, text) : NULL;
    if (!target) schema_refuse(s, "$ref", ", which leads to nothing in this schema");
    return target;
}

/* ---- what both allow ---- */

enum join_how {
    JOIN_EQUAL,
    JOIN_FIRST,
    JOIN_TYPE,
    JOIN_MOST,
    JOIN_LEAST,
    JOIN_BOTH,
    JOIN_NAMES,
    JOIN_COMMON,
    JOIN_OR,
    JOIN_PROPERTIES
};

static enum join_how join_how_of(const char *keyword) {
    static const struct {
        enum join_how how;
        const char *names;
    } table[] = {
        {JOIN_TYPE, "type"},
        {JOIN_MOST, "minimum exclusiveMinimum minLength minItems minProperties"},
        {JOIN_LEAST, "maximum exclusiveMaximum maxLength maxItems maxProperties"},
        {JOIN_BOTH, "items additionalProperties propertyNames contentSchema"},
        {JOIN_NAMES, "required"},
        {JOIN_COMMON, "enum"},
        {JOIN_OR, "uniqueItems"},
        {JOIN_PROPERTIES, "properties"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (schema_lists(table[i].names, keyword)) return table[i].how;
    return schema_keyword_about(keyword) & K_NOTE ? JOIN_FIRST : JOIN_EQUAL;
}

static json_t *join_both(json_t *a, json_t *b) { return json_pack("{s:[O,O]}", "allOf", a, b); }

/* Names of types; an integer is a number. */
static json_t *join_types(const json_t *a, const json_t *b) {
    static const struct {
        const char *name;
        unsigned type;
    } names[] = {{"null", T_NULL},     {"boolean", T_BOOLEAN}, {"number", T_NUMBER}, {"integer", T_INTEGER},
                 {"string", T_STRING}, {"array", T_ARRAY},     {"object", T_OBJECT}};
    json_t *one = json_pack("{s:O}", "type", (json_t *)a), *other = json_pack("{s:O}", "type", (json_t *)b),
           *out = json_array();
    const unsigned types = one && other ? schema_types(one) & schema_types(other) : 0;
    for (size_t i = 0; out && i < sizeof names / sizeof *names; i++)
        if ((types & names[i].type) && !(names[i].type == T_INTEGER && (types & T_NUMBER)))
            json_array_append_new(out, json_string(names[i].name));
    json_decref(one);
    json_decref(other);
    return out;
}

/* a's values that are in b, or with `all` those of both, each once. */
static json_t *join_lists(const json_t *a, const json_t *b, bool all) {
    json_t *out = json_array(), *one, *other;
    size_t i, k;
    if (!json_is_array(a) || !json_is_array(b)) {
        json_decref(out);
        return NULL;
    }
    json_array_foreach(a, i, one) {
        bool found = all;
        json_array_foreach(b, k, other) found = found || json_equal(one, other);
        if (found) json_array_append(out, one);
    }
    if (!all) return out;
    json_array_foreach(b, i, one) {
        bool found = false;
        json_array_foreach(a, k, other) found = found || json_equal(one, other);
        if (!found) json_array_append(out, one);
    }
    return out;
}

/* The properties of both. One that the other schema does not list is under its additionalProperties, or not there. */
static json_t *join_properties(const json_t *a, const json_t *b) {
    const json_t *of[2] = {json_object_get(a, "properties"), json_object_get(b, "properties")};
    const json_t *additional[2] = {json_object_get(a, "additionalProperties"),
                                   json_object_get(b, "additionalProperties")};
    json_t *out = json_object(), *value;
    const char *name;
    for (int i = 0; out && i < 2; i++) {
        json_object_foreach((json_t *)of[i], name, value) {
            json_t *other = json_object_get(of[!i], name), *more = (json_t *)additional[!i];
            if (other && i == 1) continue;
            if (other)
                json_object_set_new(out, name, json_equal(value, other) ? json_incref(value) : join_both(value, other));
            else if (!more || json_is_true(more))
                json_object_set(out, name, value);
            else if (!json_is_false(more))
                json_object_set_new(out, name, join_both(value, more));
        }
    }
    return out;
}

static json_t *join_values(const char *keyword, json_t *a, json_t *b) {
    if (json_equal(a, b)) return json_incref(a);
    switch (join_how_of(keyword)) {
    case JOIN_FIRST: return json_incref(a);
    case JOIN_TYPE: return join_types(a, b);
    case JOIN_MOST:
        return json_is_number(a) && json_is_number(b) ? json_incref(json_number_value(a) > json_number_value(b) ? a : b)
                                                      : NULL;
    case JOIN_LEAST:
        return json_is_number(a) && json_is_number(b) ? json_incref(json_number_value(a) < json_number_value(b) ? a : b)
                                                      : NULL;
    case JOIN_BOTH: return json_is_true(a) ? json_incref(b) : json_is_true(b) ? json_incref(a) : join_both(a, b);
    case JOIN_NAMES: return join_lists(a, b, true);
    case JOIN_COMMON: return join_lists(a, b, false);
    case JOIN_OR: return json_boolean(json_is_true(a) || json_is_true(b));
    case JOIN_PROPERTIES: /* join_properties() makes them */
    case JOIN_EQUAL: break;
    }
    return NULL;
}

/* A keyword of one schema that is about the neighbours of another keyword there; NULL: these can be joined. */
static const char *join_in_the_way(const json_t *one, const json_t *other) {
    static const struct {
        const char *keyword, *rest[3]; /* what the rest is that the keyword leaves */
    } pairs[] = {{"prefixItems", {"items", "additionalItems", NULL}},
                 {"patternProperties", {"additionalProperties", "properties", NULL}}};
    const json_t *of[2] = {one, other};
    for (size_t p = 0; p < sizeof pairs / sizeof *pairs; p++) {
        for (int i = 0; i < 2; i++) {
            const json_t *mine = json_object_get(of[i], pairs[p].keyword);
            if (!mine || json_equal(mine, json_object_get(of[!i], pairs[p].keyword))) continue;
            for (const char *const *rest = pairs[p].rest; *rest; rest++)
                if (json_object_get(of[!i], *rest)) return pairs[p].keyword;
        }
    }
    for (int i = 0; i < 2; i++) {
        const json_t *items = json_object_get(of[i], "items"), *others = json_object_get(of[!i], "items");
        if (json_is_array(items) && ((others && !json_equal(items, others)) || json_object_get(of[!i], "prefixItems")))
            return "items";
    }
    return NULL;
}

/* Keeps what was made as long as the compiler runs. */
static const json_t *join_keep(struct schema *s, json_t *made) {
    if (made && !json_array_append_new(s->made, made)) return made;
    ir_no_memory(s->ir);
    return NULL;
}

const json_t *schema_join(struct schema *s, const json_t *one, const json_t *other) {
    const char *keyword;
    json_t *value;
    if (json_is_true(other) || json_is_false(one)) return one;
    if (json_is_true(one) || json_is_false(other)) return other;
    if (!json_is_object(one) || !json_is_object(other)) {
        ir_fail(s->ir, ROD_EINVALID, "has, where a schema must be, something else than an object or a boolean");
        return NULL;
    }
    if (++s->n_seen > SCHEMA_MAX_SEEN) {
        ir_fail(s->ir, ROD_EINVALID, "is too complex");
        return NULL;
    }
    const char *in_the_way = join_in_the_way(one, other);
    if (in_the_way) {
        schema_refuse(s, in_the_way, " in one of two schemas, which cannot be joined");
        return NULL;
    }
    json_t *out = json_copy((json_t *)one);
    json_object_foreach((json_t *)other, keyword, value) {
        json_t *mine = json_object_get(one, keyword);
        json_t *both =
            mine && join_how_of(keyword) != JOIN_PROPERTIES ? join_values(keyword, mine, value) : json_incref(value);
        if (!both) {
            json_decref(out);
            schema_refuse(s, keyword, " in two schemas, which cannot be joined");
            return NULL;
        }
        if (mine && json_is_array(both) && json_array_size(both) == 0 && join_how_of(keyword) == JOIN_TYPE) {
            json_decref(both);
            json_decref(out);
            return json_false();
        }
        if (!out || json_object_set_new(out, keyword, both)) break;
    }
    if (json_object_get(one, "properties") || json_object_get(other, "properties")) {
        json_object_set_new(out, "properties", join_properties(one, other));
    }
    return join_keep(s, out);
}

/* ---- apart ---- */

/* The schema itself behind references; NULL: the error is set. */
static const json_t *apart_of(struct schema *s, const json_t *schema) {
    for (int i = 0; i < SCHEMA_MAX_NESTING; i++) {
        const json_t *ref = json_object_get(schema, "$ref");
        if (!ref) return schema;
        schema = schema_target(s, ref);
        if (!schema) return NULL;
    }
    return schema;
}

/* The values that a property may have, if these are listed. */
static json_t *apart_values(const json_t *schema) {
    json_t *only = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    if (only) return json_pack("[O]", only);
    return json_is_array(list) ? json_incref(list) : NULL;
}

/* 1 and 1.0 are one value; of lists and objects, which may hold such numbers, nothing is said. */
static bool apart_value(const json_t *a, const json_t *b) {
    if (json_is_array(a) || json_is_object(a)) return json_typeof(a) != json_typeof(b);
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) != json_number_value(b);
    return !json_equal(a, b);
}

static bool apart_values_differ(const json_t *a, const json_t *b) {
    json_t *of_a = apart_values(a), *of_b = apart_values(b), *one, *other;
    bool differ = of_a && of_b;
    size_t i, k;
    json_array_foreach(of_a, i, one) { json_array_foreach(of_b, k, other) differ = differ && apart_value(one, other); }
    json_decref(of_a);
    json_decref(of_b);
    return differ;
}

static bool apart_is_required(const json_t *schema, const char *name) {
    const json_t *one;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i, one) {
        if (schema_text(one) && strcmp(schema_text(one), name) == 0) return true;
    }
    return false;
}

/* No value is of both: other types, other values, or objects with other values of a property that both require. */
static bool apart_pair(struct schema *s, const json_t *a, const json_t *b) {
    const char *name;
    json_t *mine;
    if (!(schema_types(a) & schema_types(b)) || apart_values_differ(a, b)) return true;
    if ((schema_types(a) & schema_types(b)) != T_OBJECT) return false;
    json_object_foreach(json_object_get(a, "properties"), name, mine) {
        const json_t *other = json_object_get(json_object_get(b, "properties"), name);
        if (!other || !apart_is_required(a, name) || !apart_is_required(b, name)) continue;
        const json_t *one = apart_of(s, mine);
        other = apart_of(s, other);
        if (one && other && apart_values_differ(one, other)) return true;
    }
    return false;
}

bool schemas_are_apart(struct schema *s, const json_t *list) {
    const json_t *of[MAX_BRANCHES];
    const size_t n = json_array_size(list);
    if (n > MAX_BRANCHES) {
        if (!s->weaken) schema_refuse(s, "oneOf", ", with more than 128 schemas");
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        of[i] = apart_of(s, json_array_get(list, i));
        if (!of[i]) return false;
        for (size_t k = 0; k < i; k++)
            if (!apart_pair(s, of[k], of[i])) return false;
    }
    return true;
}
