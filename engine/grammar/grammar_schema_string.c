/* grammar_schema_string.c - strings: lengths, patterns, formats, and JSON inside a string. */
#include "grammar_schema.h"

#include <stdio.h>
#include <string.h>

#define YEAR "[1-9][0-9]{3}"
#define LEAP "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "(" YEAR "-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)|" LEAP "-02-29)"
#define TIME  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4  OCTET "(\\." OCTET "){3}"
#define IPV6  "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"
#define LABEL "[a-z0-9]{1,10}(-[a-z0-9]{1,10}){0,2}"
#define EMAIL "[A-Za-z0-9_%+-]{1,32}(\\.[A-Za-z0-9_%+-]{1,16}){0,3}@(" LABEL "\\.){1,3}[a-z]{2,12}"
#define URI                                                                                                            \
    "https?://(" LABEL "\\.){1,3}[a-z]{2,12}(:[1-9][0-9]{1,3})?(/[A-Za-z0-9._~-]{1,32}){0,8}/?"                        \
    "(\\?[a-z0-9_]{1,16}=[A-Za-z0-9._~-]{0,32}(&[a-z0-9_]{1,16}=[A-Za-z0-9._~-]{0,32}){0,4})?"
#define HEX4           "[0-9a-f]{4}"
#define UUID(version)  "^[0-9a-f]{8}-" HEX4 "-" version "-" HEX4 "-[0-9a-f]{12}$"
#define UUID_OF(digit) "^[0-9a-f]{8}-" HEX4 "-" digit "[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"

/* What is generated is valid; the grammar leaves out rarer forms. NULL: any text is of this format. A format that does
 * not stand here is an annotation, as JSON Schema has it, and is noted. */
static const struct {
    const char *names, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P([1-9][0-9]{0,3}D(T[1-9][0-9]?H)?|T[1-9][0-9]{0,4}[HMS])$"},
    {"uuid", UUID(HEX4)},
    {"uuid1", UUID_OF("1")},
    {"uuid3", UUID_OF("3")},
    {"uuid4", UUID_OF("4")},
    {"uuid5", UUID_OF("5")},
    {"uuid6", UUID_OF("6")},
    {"uuid7", UUID_OF("7")},
    {"uuid8", UUID_OF("8")},
    {"email idn-email", "^" EMAIL "$"},
    {"name-email", "^[A-Z][a-z]{1,16}( [A-Z][a-z]{1,16}){0,3} <" EMAIL ">$"},
    {"hostname idn-hostname", "^" LABEL "(\\." LABEL "){0,3}$"},
    {"ipv4", "^" IPV4 "$"},
    {"ipv6", "^" IPV6 "$"},
    {"ipvanyaddress", "^(" IPV4 "|" IPV6 ")$"},
    {"ipv4network ipvanynetwork", "^" IPV4 "/32$"},
    {"ipv6network", "^" IPV6 "/128$"},
    {"ipv4interface ipvanyinterface", "^" IPV4 "/([1-9]|[12][0-9]|3[0-2])$"},
    {"ipv6interface", "^" IPV6 "/([1-9][0-9]?|1[01][0-9]|12[0-8])$"},
    {"uri iri multi-host-uri uri-template", "^" URI "$"},
    {"uri-reference iri-reference", "^(" URI "|(/[A-Za-z0-9._~-]{1,32}){1,8})$"},
    {"base64", "^([A-Za-z0-9+/]{4})*$"},
    {"base64url", "^([A-Za-z0-9_-]{4})*$"},
    {"regex", "^[A-Za-z0-9 _-]*$"},
    {"color", "^#[0-9a-f]{6}$"},
    {"json-pointer", "^(/[A-Za-z0-9._-]{1,32}){0,8}$"},
    {"relative-json-pointer", "^(0|[1-9][0-9]{0,3})(#|(/[A-Za-z0-9._-]{1,32}){0,8})$"},
    {"path file-path directory-path binary password json-string", NULL},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static const char *format_pattern(struct schema *s, const json_t *schema) {
    const json_t *format = json_object_get(schema, "format"), *encoding = json_object_get(schema, "contentEncoding");
    const char *name = json_is_string(format)     ? json_string_value(format)
                       : json_is_string(encoding) ? json_string_value(encoding)
                                                  : "";
    for (size_t i = 0; i < N_FORMATS; i++)
        if (schema_lists(formats[i].names, name)) return formats[i].pattern;
    if (*name)
        ir_note(s->ir, "has the %s %.60s, which is not held", json_is_string(format) ? "format" : "contentEncoding",
                name);
    return NULL;
}

static bool string_is_json(const json_t *schema) {
    const char *media = schema_text(json_object_get(schema, "contentMediaType"));
    return media && !strcmp(media, "application/json") && !json_object_get(schema, "contentEncoding");
}

static uint32_t string_of_json(struct schema *s, const json_t *schema) {
    const json_t *inner = json_object_get(schema, "contentSchema");
    const uint32_t text = schema_rule_with(s, schema_below(s, inner ? inner : json_true(), "contentSchema", NULL));
    if (text == IR_NOTHING)
        return s->ir->rc || s->empty.why[0] ? IR_NOTHING
                                            : schema_empty(s, "contentSchema", NULL, ", which allows no value");
    const uint32_t quote = ir_text(s->ir, "\"");
    return ir_cat(s->ir, ir_cat(s->ir, quote, ir_escaped(s->ir, text)), quote);
}

/* Where a format and lengths cannot be joined, the lengths give way: the format says more. A pattern that cannot is
 * refused. */
static uint32_t string_matching(struct schema *s, const char *keyword, const char *pattern, size_t len, uint32_t min,
                                uint32_t max) {
    struct ir *ir = s->ir;
    const bool is_format = !strcmp(keyword, "format");
    const uint32_t matched = ir_regex(ir, pattern, len, true);
    if (ir->rc) return schema_refuse_part(s, keyword);
    if (matched == IR_NOTHING) return schema_empty(s, keyword, NULL, ", which no text matches");
    const struct ir_mark mark = ir_mark_of(ir);
    uint32_t text = ir_limited(ir, matched, min, max);
    if (ir->rc == ROD_EINVALID) {
        ir_go_back(ir, &mark);
        if (!is_format) return schema_refuse(s, keyword, " beside lengths that it cannot be joined with");
        ir_note(ir, "has%s%s lengths beside a format that they cannot be joined with; they are not held",
                *s->path ? " at " : "", s->path);
        text = matched;
    } else if (text == IR_NOTHING) {
        const char *low = min ? "minLength" : "maxLength";
        return schema_empty(s, low, max == IR_NO_LIMIT || !min ? NULL : "maxLength",
                            is_format ? " beside a format that has no such text"
                                      : " beside a pattern that has no such text");
    }
    const uint32_t quote = ir_text(ir, "\"");
    return ir_cat(ir, ir_cat(ir, quote, ir_escaped(ir, text)), quote);
}

uint32_t schema_string(struct schema *s, const json_t *schema) {
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    uint32_t min = 0, max = IR_NO_LIMIT;
    if (!schema_read_count(s, schema, "minLength", &min) || !schema_read_count(s, schema, "maxLength", &max))
        return IR_NOTHING;
    if (format && !json_is_string(format)) return schema_refuse(s, "format", ", which must be a string");
    if (pattern && !json_is_string(pattern)) return schema_refuse(s, "pattern", ", which must be a string");
    if (max < min) return schema_empty(s, "minLength", "maxLength", " above maxLength");
    const char *by_format = format_pattern(s, schema);
    const bool is_json = string_is_json(schema);
    if (is_json && json_object_get(schema, "contentSchema") && (pattern || by_format || min || max != IR_NO_LIMIT))
        return schema_refuse(s, "contentSchema", " beside other limits of the string");
    if (pattern && by_format) return schema_refuse(s, "pattern", " beside a format");
    if (pattern)
        return string_matching(s, "pattern", json_string_value(pattern), json_string_length(pattern), min, max);
    if (by_format) return string_matching(s, "format", by_format, strlen(by_format), min, max);
    if (is_json && !min && max == IR_NO_LIMIT) return string_of_json(s, schema);
    return ir_json_string(s->ir, min, max);
}
