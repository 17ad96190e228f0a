/* api_grammar.c - response_format and structured_outputs: which field asks for which grammar. Whether the grammar
 * can be honoured is the engine's to say. */
#include "api_fields.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool api_take_grammar(const struct api_fields *p, enum rod_grammar_kind kind, const char *param, const json_t *value,
                      struct api_grammar *out) {
    const bool plain = !value || json_is_string(value);
    assert(!out->text && (value || kind == ROD_GRAMMAR_JSON_OBJECT)); /* one form a request */
    const size_t len = json_string_length(value);
    char *text = plain ? malloc(len + 1) : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text) return field_no_memory(p);
    if (plain) memcpy(text, value ? json_string_value(value) : "", len + 1);
    *out = (struct api_grammar){.kind = kind, .param = param, .text = text, .len = plain ? len : strlen(text)};
    return true;
}

bool api_check_name(const struct api_fields *p, const char *param, const json_t *name) {
    if (name && !json_is_string(name)) return field_bad(p, param, "must be a string");
    return !name || strlen(json_string_value(name)) == json_string_length(name) ||
           field_bad(p, param, "has a NUL character");
}

/* What is said beside a schema; it changes nothing, so only its types are looked at. */
static bool check_notes(const struct api_fields *p, const json_t *named) {
    const json_t *name = field_of(named, "name"), *description = field_of(named, "description"),
                 *strict = field_of(named, "strict");
    if (!api_check_name(p, "response_format.json_schema.name", name)) return false;
    if (description && !json_is_string(description))
        return field_bad(p, "response_format.json_schema.description", "must be a string");
    if (strict && !json_is_boolean(strict))
        return field_bad(p, "response_format.json_schema.strict", "must be true or false");
    return true;
}

/* {"type": "json_schema", "json_schema": {"name", "schema", "strict"}}: honoured as a whole, strict or not.
 * {"type": "json_object", "schema"} is llama.cpp's form of the same. */
static bool parse_format(const struct api_fields *p, const json_t *format, struct api_grammar *out) {
    if (!json_is_object(format)) return field_bad(p, "response_format", "must be an object");
    const json_t *type = field_of(format, "type");
    if (!json_is_string(type))
        return field_bad(p, "response_format", "must have a type: text, json_object or json_schema");
    if (field_is(type, "text")) return true;
    if (field_is(type, "json_object")) {
        const json_t *of = field_of(format, "schema");
        if (!of) return api_take_grammar(p, ROD_GRAMMAR_JSON_OBJECT, "response_format", NULL, out);
        if (!json_is_object(of) && !json_is_boolean(of))
            return field_bad(p, "response_format", "must have a JSON Schema as schema");
        return api_take_grammar(p, ROD_GRAMMAR_JSON_SCHEMA, "response_format", of, out);
    }
    if (!field_is(type, "json_schema"))
        return field_bad(p, "response_format", "must be of type text, json_object or json_schema");
    const json_t *named = field_of(format, "json_schema");
    if (!json_is_object(named))
        return field_bad(p, "response_format", "of type json_schema must have the object json_schema");
    const json_t *schema = field_of(named, "schema");
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return field_bad(p, "response_format", "must have a JSON Schema as json_schema.schema");
    return check_notes(p, named) && api_take_grammar(p, ROD_GRAMMAR_JSON_SCHEMA, "response_format", schema, out);
}

static bool parse_structured(const struct api_fields *p, const json_t *fields, struct api_grammar *out) {
    static const struct {
        const char *name, *param;
        enum rod_grammar_kind kind;
    } known[] = {{"json", "structured_outputs.json", ROD_GRAMMAR_JSON_SCHEMA},
                 {"regex", "structured_outputs.regex", ROD_GRAMMAR_REGEX},
                 {"choice", "structured_outputs.choice", ROD_GRAMMAR_CHOICE},
                 {"grammar", "structured_outputs.grammar", ROD_GRAMMAR_EBNF},
                 {"json_object", "structured_outputs.json_object", ROD_GRAMMAR_JSON_OBJECT}};
    enum { N_KNOWN = sizeof known / sizeof *known };
    const char *name;
    json_t *value;
    bool off = false;
    if (!json_is_object(fields)) return field_bad(p, "structured_outputs", "must be an object");
    json_object_foreach((json_t *)fields, name, value) {
        size_t k = 0;
        while (k < N_KNOWN && strcmp(name, known[k].name) != 0) k++;
        if (json_is_null(value)) continue;
        if (json_is_false(value) && (k == N_KNOWN || known[k].kind == ROD_GRAMMAR_JSON_OBJECT)) {
            off = off || k < N_KNOWN;
            continue;
        }
        if (k == N_KNOWN)
            return field_bad(p, "structured_outputs",
                             "has an unknown field; known are json, regex, choice, grammar and json_object");
        if (out->text) return field_bad(p, "structured_outputs", "has two fields; one is allowed");
        bool string = json_is_string(value);
        switch (known[k].kind) {
        case ROD_GRAMMAR_JSON_SCHEMA:
            if (!string && !json_is_object(value) && !json_is_boolean(value))
                return field_bad(p, known[k].param, "must be a JSON Schema, or one as a string");
            break;
        case ROD_GRAMMAR_CHOICE:
            if (!json_is_array(value)) return field_bad(p, known[k].param, "must be an array of strings");
            break;
        case ROD_GRAMMAR_JSON_OBJECT:
            if (!json_is_true(value)) return field_bad(p, known[k].param, "must be true or false");
            break;
        default:
            if (!string) return field_bad(p, known[k].param, "must be a string");
        }
        const json_t *text = known[k].kind == ROD_GRAMMAR_JSON_OBJECT ? NULL : value;
        if (!api_take_grammar(p, known[k].kind, known[k].param, text, out)) return false;
    }
    if (!out->text && !off)
        return field_bad(p, "structured_outputs", "must have one of json, regex, choice, grammar and json_object");
    return true;
}

bool api_response_format(const struct api_fields *p, struct api_grammar *out) {
    const json_t *format = field_get(p, "response_format");
    return !format || parse_format(p, format, out);
}

bool api_structured_outputs(const struct api_fields *p, struct api_grammar *out) {
    const json_t *structured = field_get(p, "structured_outputs");
    struct api_grammar other = {0};
    if (!structured) return true;
    bool ok = parse_structured(p, structured, &other);
    if (ok && out->text && other.text)
        ok = field_bad(p, "structured_outputs", "and a format other than text exclude each other");
    if (ok && other.text)
        *out = other;
    else
        free(other.text);
    return ok;
}
