/* grammar_schema_object.c - objects: their listed properties in the schema's order, and keys beyond these.
 *
 * Where a schema leaves freedom the grammar takes the plain reading: without additionalProperties there are none but
 * the listed (any, if none is listed), and beside patternProperties none but those. */
#include "grammar_schema.h"
#include "engine/base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys in plain characters from here on that are none of the names: of those, names[0..n) begin as the key did so far,
 * and have `at` bytes of that. */
static uint32_t object_other_keys(struct schema *s, const char **names, size_t n, size_t at) {
    struct ir *ir = s->ir;
    static const struct ir_range plain[] = {{0x20, 0x21}, {0x23, 0x5b}, {0x5d, 0x10ffff}};
    bool ends = false;
    uint32_t taken[64], out = IR_NOTHING;
    size_t n_taken = 0;
    if (at > 128 || n > 512) return schema_refuse(s, "additionalProperties", " beside too many or too long names");
    for (size_t i = 0; i < n && !ir->rc; i++) {
        size_t n_bytes;
        if (!names[i][at]) {
            ends = true;
            continue;
        }
        uint32_t c = utf8_decode(names[i] + at, &n_bytes);
        bool seen = false;
        for (size_t k = 0; k < n_taken; k++) seen = seen || taken[k] == c;
        if (seen) continue;
        if (n_taken == 64) return schema_refuse(s, "additionalProperties", " beside too many names");
        taken[n_taken++] = c;
        const char **same = malloc(n * sizeof *same);
        if (!same) return ir_no_memory(ir);
        size_t n_same = 0;
        for (size_t k = i; k < n; k++)
            if (strncmp(names[k] + at, names[i] + at, n_bytes) == 0) same[n_same++] = names[k];
        bool in_plain = c >= 0x20 && c != '"' && c != '\\';
        if (in_plain)
            out = ir_alt(ir, out, ir_cat(ir, ir_char(ir, c, c), object_other_keys(s, same, n_same, at + n_bytes)));
        free(same);
    }
    /* Any other character, and then what one likes. */
    struct ir_range rest[3 + 64];
    size_t n_rest = 0;
    for (size_t i = 0; i < 3; i++) {
        uint32_t next = plain[i].lo;
        for (;;) {
            uint32_t cut = UINT32_MAX;
            for (size_t k = 0; k < n_taken; k++)
                if (taken[k] >= next && taken[k] <= plain[i].hi && taken[k] < cut) cut = taken[k];
            uint32_t hi = cut == UINT32_MAX ? plain[i].hi : cut - 1;
            if (hi >= next && hi != UINT32_MAX) rest[n_rest++] = (struct ir_range){next, hi};
            if (cut == UINT32_MAX || cut == plain[i].hi) break;
            next = cut + 1;
        }
    }
    uint32_t tail = ir_rep(ir, ir_set(ir, plain, 3), 0, IR_NO_LIMIT);
    out = ir_alt(ir, out, ir_cat(ir, ir_set(ir, rest, n_rest), tail));
    return ends ? out : ir_alt(ir, out, IR_EMPTY_NODE);
}

/* Keys by a schema of names: strings as they are written. */
static uint32_t object_named_keys(struct schema *s, const json_t *names) {
    json_t *strings = json_pack("{s:s}", "type", "string");
    if (!strings || json_array_append_new(s->made, strings)) return ir_no_memory(s->ir);
    const json_t *joined = schema_join(s, names, strings);
    return joined ? schema_below(s, joined, "propertyNames", NULL) : (uint32_t)IR_NOTHING;
}

static uint32_t object_quoted(struct ir *ir, uint32_t key) {
    uint32_t quote = ir_text(ir, "\"");
    return ir_cat(ir, ir_cat(ir, quote, key), quote);
}

static uint32_t object_member(struct schema *s, uint32_t key, uint32_t colon, const json_t *value, const char *keyword,
                              const char *name) {
    return schema_rule_with(s, ir_cat(s->ir, ir_cat(s->ir, key, colon), schema_below(s, value, keyword, name)));
}

/* Members by a pattern of their keys. */
static uint32_t object_pattern_members(struct schema *s, const json_t *schema, const json_t *patterns, uint32_t colon) {
    const char *pattern;
    json_t *value;
    uint32_t out = IR_NOTHING;
    if (!json_is_object(patterns)) return schema_refuse(s, "patternProperties", ", which must be an object");
    if (json_object_size(patterns) > 1 || json_object_size(json_object_get(schema, "properties")) ||
        json_object_get(schema, "propertyNames"))
        return schema_refuse(s, "patternProperties",
                             ", which is supported with one pattern and no properties beside it");
    json_object_foreach((json_t *)patterns, pattern, value) {
        const uint32_t key = ir_escaped(s->ir, ir_regex(s->ir, pattern, strlen(pattern), true));
        if (s->ir->rc) return schema_refuse_part(s, "patternProperties");
        out = object_member(s, object_quoted(s->ir, key), colon, value, "patternProperties", pattern);
    }
    return out;
}

/* Members beyond the listed ones; IR_NOTHING where there may be none. */
static uint32_t object_extra_member(struct schema *s, const json_t *schema, uint32_t colon) {
    const json_t *properties = json_object_get(schema, "properties"),
                 *names_of = json_object_get(schema, "propertyNames");
    const json_t *additional = json_object_get(schema, "additionalProperties"),
                 *patterns = json_object_get(schema, "patternProperties");
    const size_t n = json_object_size(properties);
    if (patterns && json_object_size(patterns)) return object_pattern_members(s, schema, patterns, colon);
    if (!additional && n == 0) additional = json_true();
    if (!additional || json_is_false(additional)) return IR_NOTHING;
    if (names_of)
        return n ? schema_refuse(s, "propertyNames", " beside properties")
                 : object_member(s, object_named_keys(s, names_of), colon, additional, "additionalProperties", NULL);
    const char **names = malloc((n + 1) * sizeof *names), *name;
    json_t *unused;
    size_t i = 0;
    if (!names) return ir_no_memory(s->ir);
    json_object_foreach((json_t *)properties, name, unused) names[i++] = name;
    uint32_t key = object_other_keys(s, names, n, 0);
    free(names);
    return object_member(s, object_quoted(s->ir, key), colon, additional, "additionalProperties", NULL);
}

/* How many members there are beyond the listed ones, so that the bounds hold. Keys may come twice and count once then,
 * so more than one extra member cannot be asked for. */
static bool object_read_counts(struct schema *s, const json_t *schema, uint32_t extra, size_t n_required, uint32_t *min,
                               uint32_t *max) {
    const size_t n = json_object_size(json_object_get(schema, "properties"));
    uint32_t least = 0, most = IR_NO_LIMIT;
    if (!schema_read_count(s, schema, "minProperties", &least) || !schema_read_count(s, schema, "maxProperties", &most))
        return false;
    *min = 0;
    *max = IR_NO_LIMIT;
    if (least && !n && extra == IR_NOTHING && json_object_get(schema, "propertyNames")) {
        schema_empty(s, "minProperties", "propertyNames", " beside propertyNames that allow no name");
        return false;
    }
    if (least > n_required && (least > 1 || n > 0 || extra == IR_NOTHING)) {
        schema_refuse(s, "minProperties",
                      ", which is supported up to the number of required properties, or 1 without properties");
        return false;
    }
    if (most != IR_NO_LIMIT && n > 0 && (most < n || extra != IR_NOTHING)) {
        schema_refuse(s, "maxProperties",
                      ", which beside properties is supported from their number on, without others");
        return false;
    }
    if (least > n_required) *min = least;
    if (n == 0) *max = most;
    return true;
}

/* The names that must be there, as keys: there may be as many as properties. NULL: the error is set. A name that is
 * none of the properties is left out where schemas are weakened. */
static json_t *object_required_set(struct schema *s, const json_t *required, const json_t *properties) {
    json_t *set = json_object();
    size_t i;
    const json_t *name;
    if (!set) ir_no_memory(s->ir);
    if (required && !json_is_array(required)) schema_refuse(s, "required", ", which must be an array of names");
    if (!s->ir->rc) json_array_foreach(required, i, name) {
            const char *text = schema_text(name);
            char what[128];
            if (text && json_object_get(properties, text)) {
                if (json_object_set_new(set, text, json_true())) ir_no_memory(s->ir);
                continue;
            }
            if (text)
                snprintf(what, sizeof what, " with %.60s, which properties does not have", text);
            else
                snprintf(what, sizeof what, " with something else than a plain string");
            if (!s->weaken)
                schema_refuse(s, "required", what);
            else
                ir_note(s->ir, "has the keyword required%s; it is left out", what);
        }
    if (!s->ir->rc) return set;
    json_decref(set);
    return NULL;
}

/* Whether it is any object. */
static bool object_is_free(const json_t *schema) {
    static const char *const limits[] = {"patternProperties", "propertyNames", "minProperties", "maxProperties"};
    const json_t *additional = json_object_get(schema, "additionalProperties");
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (json_object_get(schema, limits[i])) return false;
    return json_object_size(json_object_get(schema, "properties")) == 0 && (!additional || json_is_true(additional));
}

/* Names that are listed are properties: each comes once, in their order, so the object ends. NULL: they are not listed,
 * or there are bounds or properties beside them. */
static const json_t *object_listed_names(struct schema *s, const json_t *schema) {
    static const char *const beside[] = {"properties", "patternProperties", "required", "minProperties",
                                         "maxProperties"};
    const json_t *names = json_object_get(schema, "propertyNames"), *ref = json_object_get(names, "$ref"), *one,
                 *additional = json_object_get(schema, "additionalProperties");
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (json_object_get(schema, beside[i])) return NULL;
    if (ref) names = schema_target(s, ref);
    const json_t *list = json_object_get(names, "enum");
    json_t *properties = list && !(additional && json_is_false(additional)) ? json_object() : NULL;
    size_t i;
    json_array_foreach(list, i, one) {
        const char *name = schema_text(one);
        if (json_is_string(one) && !name) { /* jansson has no such keys */
            json_decref(properties);
            return NULL;
        }
        if (properties && name) json_object_set(properties, name, additional ? (json_t *)additional : json_true());
    }
    json_t *out = properties && json_object_size(properties)
                      ? json_pack("{s:O, s:b}", "properties", properties, "additionalProperties", 0)
                      : NULL;
    json_decref(properties);
    if (out && json_array_append_new(s->made, out)) ir_no_memory(s->ir);
    return s->ir->rc ? NULL : out;
}

/* A property; IR_NOTHING: it is never there, and if it must be, no value is valid. */
static uint32_t object_property(struct schema *s, const char *name, const json_t *value, bool needed, uint32_t colon) {
    struct ir *ir = s->ir;
    json_t *key = json_string(name);
    const uint32_t quoted = key ? schema_literal(s, key) : ir_no_memory(ir);
    uint32_t of = schema_below(s, value, "properties", name);
    json_decref(key);
    if (of == IR_NOTHING && needed && !ir->rc) {
        char what[128];
        snprintf(what, sizeof what, " with %.60s, for which no value is valid", name);
        if (!s->empty.why[0]) schema_empty(s, "required", NULL, what);
        if (s->weaken) {
            ir_note(ir, "has the keyword required%s; any is taken", what);
            of = ir_json_value(ir);
        }
    }
    return schema_rule_with(s, ir_cat(ir, ir_cat(ir, quoted, colon), of));
}

/* From the last property back: the members from one on (from), and whether there may be none of them (ends). Behind a
 * comma stands one choice, so a state has one place for each property that may come. */
static uint32_t object_members(struct schema *s, const json_t *properties, const json_t *needed, uint32_t colon,
                               uint32_t from, bool *ends) {
    struct ir *ir = s->ir;
    const size_t n = json_object_size(properties);
    const uint32_t ws = ir_json_ws(ir), comma = ir_cat(ir, ir_cat(ir, ws, ir_text(ir, ",")), ws);
    const uint32_t close = ir_cat(ir, ws, ir_text(ir, "}"));
    const char **names = malloc((n + 1) * sizeof *names), *name;
    json_t *value;
    size_t i = 0;
    if (!names) return ir_no_memory(ir);
    json_object_foreach((json_t *)properties, name, value) names[i++] = name;
    for (i = n; i-- > 0 && !ir->rc;) {
        const bool must = json_object_get(needed, names[i]);
        const uint32_t member = object_property(s, names[i], json_object_get(properties, names[i]), must, colon);
        from = schema_rule_with(s, from);
        const uint32_t after = ir_alt(ir, ir_cat(ir, comma, from), *ends ? close : (uint32_t)IR_NOTHING);
        from = ir_alt(ir, ir_cat(ir, member, after), must ? (uint32_t)IR_NOTHING : from);
        *ends = *ends && !must;
        if (must && member == IR_NOTHING) from = IR_NOTHING;
        if (from == IR_NOTHING && !*ends) break;
    }
    free(names);
    return from;
}

/* Behind a comma any of these may come, up to the next one that must. */
static bool object_check_choices(struct schema *s, const json_t *properties, const json_t *needed) {
    const char *name;
    json_t *unused;
    int row = 0;
    json_object_foreach((json_t *)properties, name, unused) {
        row = json_object_get(needed, name) ? 0 : row + 1;
        if (row <= SCHEMA_MAX_CHOICES) continue;
        schema_refuse(s, "properties", ", with more than 1000 optional ones in a row");
        return false;
    }
    return true;
}

uint32_t schema_object(struct schema *s, const json_t *schema) {
    struct ir *ir = s->ir;
    const json_t *listed = object_listed_names(s, schema);
    if (listed) schema = listed;
    const json_t *properties = json_object_get(schema, "properties");
    uint32_t min, max;
    if (ir->rc) return IR_NOTHING;
    if (properties && !json_is_object(properties)) return schema_refuse(s, "properties", ", which must be an object");
    json_t *needed = object_required_set(s, json_object_get(schema, "required"), properties);
    if (!needed || !object_check_choices(s, properties, needed)) {
        json_decref(needed);
        return IR_NOTHING;
    }
    const size_t n_needed = json_object_size(needed);
    uint32_t out = IR_NOTHING;
    if (object_is_free(schema)) {
        out = ir_json_object(ir);
    } else {
        const uint32_t ws = ir_json_ws(ir), close = ir_cat(ir, ws, ir_text(ir, "}"));
        const uint32_t comma = ir_cat(ir, ir_cat(ir, ws, ir_text(ir, ",")), ws);
        const uint32_t colon = ir_cat(ir, ir_cat(ir, ws, ir_text(ir, ":")), ws);
        const uint32_t extra = object_extra_member(s, schema, colon);
        if (!ir->rc && object_read_counts(s, schema, extra, n_needed, &min, &max)) {
            bool ends = true;
            const uint32_t more = ir_rep(ir, ir_cat(ir, comma, extra), 0, max == IR_NO_LIMIT || !max ? max : max - 1);
            uint32_t from = max ? ir_cat(ir, ir_cat(ir, extra, more), close) : (uint32_t)IR_NOTHING;
            from = object_members(s, properties, needed, colon, from, &ends);
            out = ir_alt(ir, ends && !min ? ir_text(ir, "}") : (uint32_t)IR_NOTHING, ir_cat(ir, ws, from));
            out = ir_cat(ir, ir_text(ir, "{"), out);
        }
    }
    json_decref(needed);
    return out;
}
