/* api_grammar.c - response_format and structured_outputs: which field asks for which grammar. Whether the grammar
 * can be honoured is the engine's to say. */
#include "api_fields.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool refuse_form(struct api_error *err, const char *param, const char *message) {
    return api_error_field(err, param, "%s", message);
}

static bool take_grammar(struct api_grammar *out, enum rod_grammar_kind kind, const char *param, const json_t *value,
                         struct api_error *err) {
    assert(!out->text); /* one form a request */
    char *text = json_is_string(value) ? malloc(json_string_length(value) + 1)
                                       : json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text) return api_error_no_memory(err);
    if (json_is_string(value)) memcpy(text, json_string_value(value), json_string_length(value) + 1);
    *out = (struct api_grammar){.kind = kind, .param = param, .text = text};
    out->len = json_is_string(value) ? json_string_length(value) : strlen(text);
    return true;
}

static const json_t *member_get(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static bool json_object_wanted(struct api_grammar *out, const char *param, struct api_error *err) {
    json_t *none = json_string("");
    bool ok = take_grammar(out, ROD_GRAMMAR_JSON_OBJECT, param, none, err);
    json_decref(none);
    return ok;
}

static bool check_name(const json_t *name, const char *param, struct api_error *err) {
    if (name && !json_is_string(name)) return refuse_form(err, param, "must be a string");
    return !name || strlen(json_string_value(name)) == json_string_length(name) ||
           refuse_form(err, param, "has a NUL character");
}

/* What is said beside a schema; it changes nothing, so only its types are looked at. */
static bool check_notes(const json_t *named, struct api_error *err) {
    const json_t *name = member_get(named, "name"), *description = member_get(named, "description"),
                 *strict = member_get(named, "strict");
    if (!check_name(name, "response_format.json_schema.name", err)) return false;
    if (description && !json_is_string(description))
        return refuse_form(err, "response_format.json_schema.description", "must be a string");
    if (strict && !json_is_boolean(strict))
        return refuse_form(err, "response_format.json_schema.strict", "must be true or false");
    return true;
}

/* {"type": "json_schema", "json_schema": {"name", "schema", "strict"}}: honoured as a whole, strict or not.
 * {"type": "json_object", "schema"} is llama.cpp's form of the same. */
static bool parse_format(const json_t *format, struct api_grammar *out, struct api_error *err) {
    if (!json_is_object(format)) return refuse_form(err, "response_format", "must be an object");
    const json_t *type = member_get(format, "type");
    if (!json_is_string(type))
        return refuse_form(err, "response_format", "must have a type: text, json_object or json_schema");
    if (field_is(type, "text")) return true;
    if (field_is(type, "json_object")) {
        const json_t *of = member_get(format, "schema");
        if (!of) return json_object_wanted(out, "response_format", err);
        if (!json_is_object(of) && !json_is_boolean(of))
            return refuse_form(err, "response_format", "must have a JSON Schema as schema");
        return take_grammar(out, ROD_GRAMMAR_JSON_SCHEMA, "response_format", of, err);
    }
    if (!field_is(type, "json_schema"))
        return refuse_form(err, "response_format", "must be of type text, json_object or json_schema");
    const json_t *named = member_get(format, "json_schema");
    if (!json_is_object(named))
        return refuse_form(err, "response_format", "of type json_schema must have the object json_schema");
    const json_t *schema = member_get(named, "schema");
    if (!json_is_object(schema) && !json_is_boolean(schema))
        return refuse_form(err, "response_format", "must have a JSON Schema as json_schema.schema");
    return check_notes(named, err) && take_grammar(out, ROD_GRAMMAR_JSON_SCHEMA, "response_format", schema, err);
}

/* text.format of a response is the same with the members of json_schema in the format itself. */
static bool parse_text_format(const json_t *text, struct api_grammar *out, struct api_error *err) {
    const json_t *format = member_get(text, "format");
    if (!format) return true;
    const json_t *type = member_get(format, "type");
    if (!field_is(type, "text") && !field_is(type, "json_object") && !field_is(type, "json_schema"))
        return refuse_form(err, "text.format", "must be an object with a type: text, json_object or json_schema");
    if (field_is(type, "text")) return true;
    if (field_is(type, "json_object")) return json_object_wanted(out, "text.format", err);
    const json_t *schema = member_get(format, "schema"), *name = member_get(format, "name"),
                 *strict = member_get(format, "strict");
    if (!check_name(name, "text.format.name", err)) return false;
    if (strict && !json_is_boolean(strict)) return refuse_form(err, "text.format.strict", "must be true or false");
    if (!json_is_object(schema)) return refuse_form(err, "text.format", "must have a JSON Schema as schema");
    return take_grammar(out, ROD_GRAMMAR_JSON_SCHEMA, "text.format", schema, err);
}

static bool parse_structured(const json_t *fields, struct api_grammar *out, struct api_error *err) {
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
    bool ok = true, off = false;
    if (!json_is_object(fields)) return refuse_form(err, "structured_outputs", "must be an object");
    json_object_foreach((json_t *)fields, name, value) {
        size_t k = 0;
        while (k < N_KNOWN && strcmp(name, known[k].name) != 0) k++;
        if (json_is_null(value)) continue;
        if (json_is_false(value) && (k == N_KNOWN || known[k].kind == ROD_GRAMMAR_JSON_OBJECT)) {
            off = off || k < N_KNOWN;
            continue;
        }
        if (k == N_KNOWN)
            return refuse_form(err, "structured_outputs",
                               "has an unknown field; known are json, regex, choice, grammar and json_object");
        if (out->text) return refuse_form(err, "structured_outputs", "has two fields; one is allowed");
        bool string = json_is_string(value);
        switch (known[k].kind) {
        case ROD_GRAMMAR_JSON_SCHEMA:
            if (!string && !json_is_object(value) && !json_is_boolean(value))
                return refuse_form(err, known[k].param, "must be a JSON Schema, or one as a string");
            break;
        case ROD_GRAMMAR_CHOICE:
            if (!json_is_array(value)) return refuse_form(err, known[k].param, "must be an array of strings");
            break;
        case ROD_GRAMMAR_JSON_OBJECT:
            if (!json_is_true(value)) return refuse_form(err, known[k].param, "must be true or false");
            break;
        default:
            if (!string) return refuse_form(err, known[k].param, "must be a string");
        }
        ok = known[k].kind == ROD_GRAMMAR_JSON_OBJECT ? json_object_wanted(out, known[k].param, err)
                                                      : take_grammar(out, known[k].kind, known[k].param, value, err);
        if (!ok) return false;
    }
    if (!out->text && !off)
        return refuse_form(err, "structured_outputs", "must have one of json, regex, choice, grammar and json_object");
    return true;
}

bool api_parse_grammar(enum api_kind kind, const json_t *root, struct api_grammar *out, struct api_error *err) {
    const json_t *format = kind == API_RESPONSE ? NULL : member_get(root, "response_format");
    const json_t *structured = member_get(root, "structured_outputs");
    struct api_grammar other = {0};
    *out = (struct api_grammar){0};
    if (format && !parse_format(format, out, err)) return false;
    if (kind == API_RESPONSE && !parse_text_format(member_get(root, "text"), out, err)) return false;
    if (structured && !parse_structured(structured, &other, err)) {
        free(other.text);
        return false;
    }
    if (out->text && other.text) {
        free(other.text);
        return refuse_form(err, "structured_outputs", "and a format other than text exclude each other");
    }
    if (other.text) *out = other;
    return true;
}
