/* grammar_schema_array.c - arrays: items of one kind, first ones each of its own kind (tuples), different ones. */
#include "grammar_schema.h"

#include <string.h>

enum { MAX_PREFIX = 256 };

/* From the last one back: what follows an item (after), and what may come first. */
static uint32_t array_of_prefix(struct schema *s, const json_t *prefix, const json_t *items, uint32_t min,
                                uint32_t max) {
    struct ir *ir = s->ir;
    const uint32_t n = (uint32_t)json_array_size(prefix);
    const uint32_t ws = ir_json_ws(ir), comma = ir_cat(ir, ir_cat(ir, ws, ir_text(ir, ",")), ws);
    const uint32_t close = ir_cat(ir, ws, ir_text(ir, "]"));
    if (n > MAX_PREFIX) return schema_refuse(s, "prefixItems", ", which is supported with up to 256 schemas");
    if (!items && min <= n) items = json_false(); /* the plain reading: no more than are told */
    uint32_t rest = items && json_is_false(items) ? (uint32_t)IR_NOTHING
                    : items                       ? schema_rule_with(s, schema_below(s, items, "items", NULL))
                                                  : ir_json_value(ir);
    uint32_t after = IR_NOTHING;
    if (rest == IR_NOTHING && min > n) return schema_empty(s, "minItems", "items", " beside too few items");
    if (max >= n)
        after = ir_cat(
            ir, ir_rep(ir, ir_cat(ir, comma, rest), min > n ? min - n : 0, max == IR_NO_LIMIT ? max : max - n), close);
    uint32_t first = IR_NOTHING;
    for (uint32_t i = n; i-- > 0 && !ir->rc;) {
        const uint32_t item = schema_rule_with(s, schema_item_below(s, json_array_get(prefix, i), "prefixItems", i));
        if (item == IR_NOTHING && min > i)
            return s->empty.why[0] ? IR_NOTHING
                                   : schema_empty(s, "minItems", "prefixItems", " beside an item that is never valid");
        after = i + 1 > max ? (uint32_t)IR_NOTHING : ir_cat(ir, item, schema_rule_with(s, after));
        if (i == 0)
            first = after;
        else
            after = ir_alt(ir, ir_cat(ir, comma, after), min <= i && max >= i ? close : (uint32_t)IR_NOTHING);
    }
    const uint32_t empty = min == 0 ? ir_text(ir, "[]") : (uint32_t)IR_NOTHING;
    return ir_alt(ir, empty, ir_cat(ir, ir_cat(ir, ir_text(ir, "["), ws), first));
}

enum { MAX_VALUES = 64 };

static bool values_are_equal(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

/* Whether nothing but a type and a list says what a value can be. */
static bool array_is_of_a_list(const json_t *items) {
    const char *name;
    json_t *unused;
    json_object_foreach((json_t *)items, name, unused) {
        if (!(schema_keyword_about(name) & (K_NOTE | K_LIST | K_TYPE))) return false;
    }
    return true;
}

/* The different values that items can be, if they are some few; NULL: not known to be, or the error is set. */
static const json_t *array_values(struct schema *s, const json_t *items) {
    const json_t *ref = json_object_get(items, "$ref"), *of = ref ? schema_target(s, ref) : items, *one, *other;
    const json_t *only = json_object_get(of, "const");
    const unsigned types = schema_types(of);
    json_t *all = NULL;
    size_t i, k;
    if (!array_is_of_a_list(of)) return NULL;
    if (only)
        all = json_pack("[O]", only);
    else if (json_object_get(of, "enum"))
        all = json_incref(json_object_get(of, "enum"));
    else if (!(types & ~(unsigned)(T_BOOLEAN | T_NULL)))
        all = json_pack("[b,b,n]", 0, 1);
    json_t *out = json_array();
    json_array_foreach(all, i, one) {
        bool again = !(schema_type_of(one) & types);
        json_array_foreach(out, k, other) again = again || values_are_equal(one, other);
        if (!again) json_array_append(out, (json_t *)one);
    }
    json_decref(all);
    if (!out || json_array_append_new(s->made, out)) ir_no_memory(s->ir);
    return s->ir->rc || json_array_size(out) == 0 || json_array_size(out) > MAX_VALUES ? NULL : out;
}

/* Different ones of some values come in the order of the list. Each count so far has its own ways on. */
static uint32_t array_of_different(struct schema *s, const json_t *values, uint32_t min, uint32_t max) {
    struct ir *ir = s->ir;
    const uint32_t n = (uint32_t)json_array_size(values), ws = ir_json_ws(ir),
                   comma = ir_cat(ir, ir_cat(ir, ws, ir_text(ir, ",")), ws);
    const uint32_t close = ir_cat(ir, ws, ir_text(ir, "]"));
    uint32_t ways[MAX_VALUES + 2]; /* [count] from the value at hand on */
    for (uint32_t count = 0; count <= n + 1; count++)
        ways[count] =
            count >= min && count <= max && count <= n ? (count ? close : ir_text(ir, "]")) : (uint32_t)IR_NOTHING;
    for (uint32_t i = n; i-- > 0 && !ir->rc;) {
        const uint32_t value = schema_literal(s, json_array_get(values, i));
        for (uint32_t count = 0; count <= i; count++) {
            const uint32_t on = ways[count + 1] == IR_NOTHING ? (uint32_t)IR_NOTHING
                                                              : ir_cat(ir, value, schema_rule_with(s, ways[count + 1]));
            ways[count] = ir_alt(ir, ways[count], count ? ir_cat(ir, comma, on) : ir_cat(ir, ws, on));
        }
    }
    return ir_cat(ir, ir_text(ir, "["), ways[0]);
}

/* false: a note says that items may come twice. */
static bool array_unique(struct schema *s, const json_t *items, uint32_t min, uint32_t max, uint32_t *out) {
    const json_t *values = array_values(s, items);
    *out = IR_NOTHING;
    if (s->ir->rc) return true;
    if (!values) {
        ir_note(s->ir, "has the keyword uniqueItems, which is held for items of up to 64 listed values");
        return false;
    }
    *out = min > json_array_size(values)
               ? schema_empty(s, "minItems", "uniqueItems", " beside too few different values")
               : array_of_different(s, values, min, max);
    return true;
}

uint32_t schema_array(struct schema *s, const json_t *schema) {
    const json_t *prefix = json_object_get(schema, "prefixItems"), *items = json_object_get(schema, "items");
    const json_t *unique = json_object_get(schema, "uniqueItems");
    uint32_t min = 0, max = IR_NO_LIMIT;
    if (!schema_read_count(s, schema, "minItems", &min) || !schema_read_count(s, schema, "maxItems", &max))
        return IR_NOTHING;
    if (json_is_array(items)) { /* the older form */
        if (prefix) return schema_refuse(s, "items", " as a list beside prefixItems");
        prefix = items;
        items = json_object_get(schema, "additionalItems");
    } else if (json_object_get(schema, "additionalItems")) {
        return schema_refuse(s, "additionalItems", " without items as a list");
    }
    if (prefix && !json_is_array(prefix)) return schema_refuse(s, "prefixItems", ", which must be an array of schemas");
    if (unique && !json_is_boolean(unique)) return schema_refuse(s, "uniqueItems", ", which must be a boolean");
    if (max < min) return schema_empty(s, "minItems", "maxItems", " above maxItems");
    if (json_is_true(unique) && max > 1 && !json_array_size(prefix)) {
        uint32_t out;
        if (array_unique(s, items, min, max, &out)) return out;
    } else if (json_is_true(unique) && json_array_size(prefix) && max > 1) {
        ir_note(s->ir, "has the keyword uniqueItems, which is not held beside prefixItems");
    }
    if (json_array_size(prefix)) return array_of_prefix(s, prefix, items, min, max);
    uint32_t item = items ? schema_rule_with(s, schema_below(s, items, "items", NULL)) : ir_json_value(s->ir);
    if (item == IR_NOTHING && min && !s->ir->rc)
        return s->empty.why[0] ? IR_NOTHING
                               : schema_empty(s, "minItems", "items", " beside items that are never valid");
    return ir_json_array(s->ir, item, min, max);
}
