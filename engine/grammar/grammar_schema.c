/* grammar_schema.c - JSON Schema to rules: OpenAI's strict subset and some more. A schema is honoured wholly, so
 * every text of the grammar is valid, or refused by the name of the keyword at fault.
 *
 * Objects list their properties in the schema's order. Where a schema leaves freedom the grammar takes the plain
 * reading: without a type, the types that its keywords are about; without additionalProperties, none but the listed
 * (any, if none is listed). A $ref becomes a call, so schemas may recur. */
#include "grammar_ir.h"
#include "engine/base/json_guard.h"
#include "engine/base/utf8.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NESTING = 64, MAX_REFS = 4096, MAX_LENGTH = 65535, MAX_MULTIPLE = 1000 };

enum {
    T_NULL = 1,
    T_BOOLEAN = 2,
    T_INTEGER = 4,
    T_NUMBER = 8,
    T_STRING = 16,
    T_ARRAY = 32,
    T_OBJECT = 64,
    T_ALL = 127,
    K_NOTE = 128,    /* says nothing about the text */
    K_LIST = 256,    /* enum, const */
    K_COMBINE = 512, /* stands alone but for notes */
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
    {"type", K_TYPE},
    {"enum", K_LIST},
    {"const", K_LIST},
    {"anyOf", K_COMBINE},
    {"allOf", K_COMBINE},
    {"$ref", K_COMBINE},
    {"properties", T_OBJECT},
    {"required", T_OBJECT},
    {"additionalProperties", T_OBJECT},
    {"items", T_ARRAY},
    {"minItems", T_ARRAY},
    {"maxItems", T_ARRAY},
    {"minLength", T_STRING},
    {"maxLength", T_STRING},
    {"pattern", T_STRING},
    {"format", T_STRING},
    {"minimum", T_NUMBER | T_INTEGER},
    {"maximum", T_NUMBER | T_INTEGER},
    {"exclusiveMinimum", T_NUMBER | T_INTEGER},
    {"exclusiveMaximum", T_NUMBER | T_INTEGER},
    {"multipleOf", T_NUMBER | T_INTEGER},
};
enum { N_KEYWORDS = sizeof keywords / sizeof *keywords };

#define YEAR "[1-9][0-9]{3}"
#define LEAP "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "(" YEAR "-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)|" LEAP "-02-29)"
#define TIME  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define LABEL "[a-z0-9]{1,10}(-[a-z0-9]{1,10}){0,2}"
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"email", "^[A-Za-z0-9_%+-]{1,32}(\\.[A-Za-z0-9_%+-]{1,16}){0,3}@(" LABEL "\\.){1,3}[a-z]{2,12}$"},
    {"hostname", "^" LABEL "(\\." LABEL "){0,3}$"},
    {"ipv4", "^" OCTET "(\\." OCTET "){3}$"},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

struct schema {
    struct ir *ir;
    const json_t *root;
    struct {
        const json_t *target;
        uint32_t rule;
    } refs[MAX_REFS];
    size_t n_refs;
    int depth;
};

static uint32_t schema_refuse(struct schema *s, const char *keyword, const char *what) {
    return ir_fail(s->ir, ROD_EINVALID, "has the keyword %.60s%s", keyword, what);
}

static uint32_t schema_any(struct schema *s, const json_t *schema);

static uint32_t schema_rule_with(struct schema *s, uint32_t body) {
    uint32_t rule = ir_rule(s->ir);
    if (s->ir->rc) return IR_NOTHING;
    s->ir->rules[rule] = body;
    return ir_ref(s->ir, rule);
}

/* Integers beyond 64 bits arrive here as doubles, which may have lost their last digits; whoever validates the text
 * reads all of them. So a whole double counts where every integer is one. */
static bool value_is_exact(const json_t *value) {
    const char *name;
    json_t *one;
    size_t i;
    if (json_is_real(value)) {
        double x = json_real_value(value);
        return trunc(x) != x || fabs(x) < 0x1p53;
    }
    json_array_foreach(value, i, one) if (!value_is_exact(one)) return false;
    json_object_foreach((json_t *)value, name, one) if (!value_is_exact(one)) return false;
    return true;
}

static uint32_t schema_refuse_inexact(struct schema *s, const char *keyword) {
    return schema_refuse(s, keyword, ", with a number beyond 64-bit integers, or from 2^53 on in another form");
}

/* A value as it is written, without white space. */
static uint32_t schema_literal(struct schema *s, const json_t *value) {
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!text) return ir_no_memory(s->ir); /* what was read can be written */
    uint32_t out = ir_text(s->ir, text);
    free(text);
    return out;
}

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

static uint32_t schema_reference(struct schema *s, const json_t *value) {
    const char *ref = json_string_value(value);
    const json_t *target = ref ? pointer_resolve(s, ref) : NULL;
    if (!target) return schema_refuse(s, "$ref", ", which leads to nothing in this schema");
    for (size_t i = 0; i < s->n_refs; i++)
        if (s->refs[i].target == target) return ir_ref(s->ir, s->refs[i].rule);
    if (s->n_refs == MAX_REFS) return schema_refuse(s, "$ref", " in too many places");
    uint32_t rule = ir_rule(s->ir);
    s->refs[s->n_refs].target = target;
    s->refs[s->n_refs++].rule = rule;
    uint32_t body = schema_any(s, target);
    if (s->ir->rc) return IR_NOTHING;
    s->ir->rules[rule] = body;
    return ir_ref(s->ir, rule);
}

/* ---- numbers ---- */

/* A number in plain digits, which read back give the same number. */
static bool bound_write_decimal(struct schema *s, const char *keyword, const json_t *value, char out[64]) {
    if (json_is_integer(value)) {
        snprintf(out, 64, "%lld", (long long)json_integer_value(value));
        return true;
    }
    double x = json_real_value(value);
    char text[40];
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, fabs(x));
        if (strtod(text, NULL) == fabs(x)) break;
    }
    const char *e = strchr(text, 'e');
    long exponent = strtol(e + 1, NULL, 10);
    if (x != 0 && (exponent < -16 || exponent > 18)) {
        schema_refuse(s, keyword, ", a bound with more than 19 digits before or 16 after the point");
        return false;
    }
    char digits[40];
    int n_digits = 0, n = 0;
    for (const char *p = text; p < e; p++)
        if (*p >= '0' && *p <= '9') digits[n_digits++] = *p;
    if (x < 0) out[n++] = '-';
    if (exponent < 0) {
        out[n++] = '0';
        out[n++] = '.';
        for (long i = exponent + 1; i < 0; i++) out[n++] = '0';
        for (int i = 0; i < n_digits; i++) out[n++] = digits[i];
    } else {
        for (int i = 0; i < n_digits || i <= exponent; i++) {
            if (i == exponent + 1) out[n++] = '.';
            out[n++] = i < n_digits ? digits[i] : '0';
        }
    }
    out[n] = 0;
    if (x == 0) snprintf(out, 64, "0");
    return true;
}

/* The tighter of an inclusive and an exclusive bound; *has false: there is none. */
static bool bound_read(struct schema *s, const json_t *schema, const char *keyword, const char *exclusive, double sign,
                       char out[64], bool *strict, bool *has) {
    const json_t *a = json_object_get(schema, keyword), *b = json_object_get(schema, exclusive);
    if ((a && !json_is_number(a)) || (b && !json_is_number(b))) {
        schema_refuse(s, a && !json_is_number(a) ? keyword : exclusive, ", which must be a number");
        return false;
    }
    if ((a && !value_is_exact(a)) || (b && !value_is_exact(b))) {
        schema_refuse_inexact(s, a && !value_is_exact(a) ? keyword : exclusive);
        return false;
    }
    *has = a || b;
    *strict = b && (!a || sign * json_number_value(b) >= sign * json_number_value(a));
    if (json_is_integer(a) && json_is_integer(b)) {
        const json_int_t x = json_integer_value(a), y = json_integer_value(b);
        *strict = sign > 0 ? y >= x : y <= x;
    }
    return !*has || bound_write_decimal(s, *strict ? exclusive : keyword, *strict ? b : a, out);
}

static uint32_t schema_multiples(struct schema *s, const json_t *schema) {
    const json_t *value = json_object_get(schema, "multipleOf");
    double m = json_number_value(value);
    static const char *const bounds[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"};
    for (size_t i = 0; i < 4; i++)
        if (json_object_get(schema, bounds[i]))
            return schema_refuse(s, "multipleOf", " beside a bound, which is not supported");
    if (!(m >= 1 && m <= MAX_MULTIPLE) || trunc(m) != m)
        return schema_refuse(s, "multipleOf", ", which is supported for whole numbers from 1 to 1000");
    return ir_json_multiple(s->ir, (uint32_t)m);
}

static uint32_t schema_number(struct schema *s, const json_t *schema, bool integer) {
    char low[64], high[64];
    bool low_strict, high_strict, has_low, has_high;
    const json_t *multiple = json_object_get(schema, "multipleOf");
    if (multiple && !(integer && json_number_value(multiple) == 1)) return schema_multiples(s, schema);
    if (!bound_read(s, schema, "minimum", "exclusiveMinimum", 1, low, &low_strict, &has_low) ||
        !bound_read(s, schema, "maximum", "exclusiveMaximum", -1, high, &high_strict, &has_high))
        return IR_NOTHING;
    if (!has_low && !has_high) return ir_json_number(s->ir, integer);
    return ir_json_between(s->ir, integer, has_low ? low : NULL, low_strict, has_high ? high : NULL, high_strict);
}

/* ---- strings and arrays ---- */

/* A count of at most MAX_LENGTH; a larger maximum is as good as none. */
static bool schema_read_count(struct schema *s, const json_t *schema, const char *keyword, uint32_t *out) {
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

static uint32_t schema_string(struct schema *s, const json_t *schema) {
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    uint32_t min = 0, max = IR_NO_LIMIT, quote = ir_text(s->ir, "\"");
    if (!schema_read_count(s, schema, "minLength", &min) || !schema_read_count(s, schema, "maxLength", &max))
        return IR_NOTHING;
    const bool length = min > 0 || max != IR_NO_LIMIT;
    if (pattern && (length || format))
        return schema_refuse(s, "pattern", " beside a length or a format, which is not supported");
    if (format && length) return schema_refuse(s, "format", " beside a length, which is not supported");
    if (pattern) {
        if (!json_is_string(pattern)) return schema_refuse(s, "pattern", ", which must be a string");
        uint32_t inner = ir_regex(s->ir, json_string_value(pattern), json_string_length(pattern), true);
        return ir_cat(s->ir, ir_cat(s->ir, quote, inner), quote);
    }
    if (format) {
        const char *name = json_string_value(format);
        for (size_t i = 0; name && i < N_FORMATS; i++)
            if (strcmp(name, formats[i].name) == 0) {
                uint32_t inner = ir_regex(s->ir, formats[i].pattern, strlen(formats[i].pattern), true);
                return ir_cat(s->ir, ir_cat(s->ir, quote, inner), quote);
            }
        return ir_fail(s->ir, ROD_EINVALID,
                       "has the keyword format with %.40s; supported are date, time, date-time, uuid, email, hostname "
                       "and ipv4",
                       name ? name : "no string");
    }
    if (max < min) return IR_NOTHING;
    return ir_json_string(s->ir, min, max);
}

static uint32_t schema_array(struct schema *s, const json_t *schema) {
    const json_t *items = json_object_get(schema, "items");
    uint32_t min = 0, max = IR_NO_LIMIT;
    if (!schema_read_count(s, schema, "minItems", &min) || !schema_read_count(s, schema, "maxItems", &max))
        return IR_NOTHING;
    if (json_is_array(items)) return schema_refuse(s, "items", " as a list, which is not supported");
    if (max < min) return IR_NOTHING;
    uint32_t item = items ? schema_rule_with(s, schema_any(s, items)) : ir_json_value(s->ir);
    return ir_json_array(s->ir, item, min, max);
}

/* ---- objects ---- */

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

/* Members beyond the listed ones; IR_NOTHING where there may be none. */
static uint32_t object_extra_member(struct schema *s, const json_t *properties, const json_t *additional,
                                    uint32_t colon) {
    if (!additional || json_is_false(additional)) return IR_NOTHING;
    const size_t n = json_object_size(properties);
    const char **names = malloc((n + 1) * sizeof *names), *name;
    json_t *unused;
    size_t i = 0;
    if (!names) return ir_no_memory(s->ir);
    json_object_foreach((json_t *)properties, name, unused) names[i++] = name;
    uint32_t key = object_other_keys(s, names, n, 0), quote = ir_text(s->ir, "\"");
    free(names);
    key = ir_cat(s->ir, ir_cat(s->ir, quote, key), quote);
    return schema_rule_with(s, ir_cat(s->ir, ir_cat(s->ir, key, colon), schema_any(s, additional)));
}

static bool object_check_required(struct schema *s, const json_t *required, const json_t *properties) {
    size_t i;
    const json_t *name;
    if (required && !json_is_array(required)) {
        schema_refuse(s, "required", ", which must be an array of names");
        return false;
    }
    json_array_foreach(required, i, name) {
        const char *text = json_string_value(name);
        if (text && json_object_get(properties, text)) continue;
        ir_fail(s->ir, ROD_EINVALID, "has the keyword required with %.60s, which properties does not have",
                text ? text : "no string");
        return false;
    }
    return true;
}

/* The names as keys: there may be as many as properties. NULL: no memory. */
static json_t *object_required_set(const json_t *required) {
    json_t *set = json_object();
    size_t i;
    const json_t *name;
    json_array_foreach(required, i, name) {
        if (!set || !json_object_set_new(set, json_string_value(name), json_true())) continue;
        json_decref(set);
        set = NULL;
    }
    return set;
}

/* From the last property back: what follows once a member has been written (after), and what may come first. */
static uint32_t schema_object(struct schema *s, const json_t *schema) {
    struct ir *ir = s->ir;
    const json_t *properties = json_object_get(schema, "properties"), *required = json_object_get(schema, "required");
    const json_t *additional = json_object_get(schema, "additionalProperties");
    if (properties && !json_is_object(properties)) return schema_refuse(s, "properties", ", which must be an object");
    if (!object_check_required(s, required, properties)) return IR_NOTHING;
    const size_t n = json_object_size(properties);
    if (n == 0 && (!additional || json_is_true(additional))) return ir_json_object(ir);
    uint32_t ws = ir_json_ws(ir), close = ir_text(ir, "}"), comma = ir_cat(ir, ir_cat(ir, ws, ir_text(ir, ",")), ws);
    uint32_t colon = ir_cat(ir, ir_cat(ir, ws, ir_text(ir, ":")), ws);
    uint32_t extra = object_extra_member(s, properties, additional, colon);
    uint32_t more = ir_rep(ir, ir_cat(ir, comma, extra), 0, IR_NO_LIMIT);
    uint32_t after = ir_cat(ir, ir_cat(ir, more, ws), close);
    uint32_t first = ir_alt(ir, close, ir_cat(ir, ir_cat(ir, ws, extra), after));
    const char **names = malloc((n + 1) * sizeof *names), *name;
    json_t *value, *needed = object_required_set(required);
    size_t i = 0;
    if (!names || !needed) ir_no_memory(ir);
    if (!ir->rc) json_object_foreach((json_t *)properties, name, value) names[i++] = name;
    for (i = n; i-- > 0 && !ir->rc;) {
        json_t *key = json_string(names[i]);
        uint32_t member = ir_cat(ir, schema_literal(s, key), colon);
        json_decref(key);
        member = schema_rule_with(s, ir_cat(ir, member, schema_any(s, json_object_get(properties, names[i]))));
        bool optional = !json_object_get(needed, names[i]);
        after = schema_rule_with(s, after);
        first = ir_alt(ir, ir_cat(ir, ir_cat(ir, ws, member), after), optional ? first : (uint32_t)IR_NOTHING);
        after = ir_alt(ir, ir_cat(ir, ir_cat(ir, comma, member), after), optional ? after : (uint32_t)IR_NOTHING);
    }
    free(names);
    json_decref(needed);
    return ir_cat(ir, ir_text(ir, "{"), first);
}

/* ---- schemas ---- */

static unsigned type_of_name(const char *name) {
    static const struct {
        const char *name;
        unsigned type;
    } types[] = {{"null", T_NULL},     {"boolean", T_BOOLEAN}, {"integer", T_INTEGER}, {"number", T_NUMBER | T_INTEGER},
                 {"string", T_STRING}, {"array", T_ARRAY},     {"object", T_OBJECT}};
    for (size_t i = 0; name && i < sizeof types / sizeof *types; i++)
        if (strcmp(name, types[i].name) == 0) return types[i].type;
    return 0;
}

static unsigned type_of_value(const json_t *value) {
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

/* The types that type names; 0: the error is set. */
static unsigned schema_read_types(struct schema *s, const json_t *value) {
    unsigned types = 0;
    size_t i;
    const json_t *one;
    if (json_is_string(value)) types = type_of_name(json_string_value(value));
    json_array_foreach(value, i, one) {
        unsigned type = type_of_name(json_string_value(one));
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
    if (only)
        return !list && (type_of_value(only) & types)
                   ? schema_literal(s, only)
                   : schema_refuse(s, "const", " beside enum or a type that it is not of");
    json_array_foreach(list, i, one) if (type_of_value(one) & types) out = ir_alt(s->ir, out, schema_literal(s, one));
    return out;
}

static uint32_t schema_combined(struct schema *s, const json_t *schema) {
    const json_t *any = json_object_get(schema, "anyOf"), *all = json_object_get(schema, "allOf"), *one;
    const json_t *ref = json_object_get(schema, "$ref");
    size_t i;
    uint32_t out = IR_NOTHING;
    if ((any != NULL) + (all != NULL) + (ref != NULL) > 1)
        return schema_refuse(s, any ? "anyOf" : "allOf", " beside another of anyOf, allOf and $ref");
    if (ref) return schema_reference(s, ref);
    if (all && json_array_size(all) != 1)
        return schema_refuse(s, "allOf", ", which is supported with one schema in it");
    if (any && json_array_size(any) == 0) return schema_refuse(s, "anyOf", ", which must be an array of schemas");
    json_array_foreach(any ? any : all, i, one) out = ir_alt(s->ir, out, schema_any(s, one));
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

static uint32_t schema_keywords(struct schema *s, const json_t *schema) {
    unsigned about = 0, types = T_ALL;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)schema, name, value) {
        size_t k = 0;
        while (k < N_KEYWORDS && strcmp(name, keywords[k].name) != 0) k++;
        if (k == N_KEYWORDS) return schema_refuse(s, name, ", which is not supported");
        about |= keywords[k].about;
    }
    const json_t *type = json_object_get(schema, "type");
    if (type) types = schema_read_types(s, type);
    if (!types) return IR_NOTHING;
    if (about & K_COMBINE) {
        if (about & (T_ALL | K_TYPE | K_LIST))
            return ir_fail(s->ir, ROD_EINVALID, "has anyOf, allOf or $ref beside keywords that it would have to join");
        return schema_combined(s, schema);
    }
    if (about & K_LIST) {
        if (about & T_ALL) return ir_fail(s->ir, ROD_EINVALID, "has enum or const beside other limits than type");
        return schema_listed(s, schema, types);
    }
    if (!type && !(about & T_ALL)) return ir_json_value(s->ir);
    return schema_of_types(s, schema, type ? types : about & T_ALL);
}

static uint32_t schema_any(struct schema *s, const json_t *schema) {
    if (s->ir->rc) return IR_NOTHING;
    if (json_is_true(schema)) return ir_json_value(s->ir);
    if (json_is_false(schema)) return IR_NOTHING;
    if (!json_is_object(schema))
        return ir_fail(s->ir, ROD_EINVALID, "has, where a schema must be, something else than an object or a boolean");
    if (++s->depth > MAX_NESTING) return ir_fail(s->ir, ROD_EINVALID, "is nested too deep");
    uint32_t out = schema_keywords(s, schema);
    s->depth--;
    return out;
}

void ir_schema(struct ir *ir, const char *text, size_t len) {
    json_error_t fault;
    json_t *root = json_guard_load(text, len, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &fault);
    struct schema *s = root ? calloc(1, sizeof *s) : NULL;
    if (!root && !json_guard_was_short(&fault)) {
        ir_fail(ir, ROD_EINVALID, "is not JSON: %.100s", fault.text);
    } else if (!s) {
        ir_no_memory(ir);
    } else {
        *s = (struct schema){.ir = ir, .root = root};
        uint32_t whole = schema_any(s, root);
        if (!ir->rc) ir->rules[0] = whole;
    }
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
