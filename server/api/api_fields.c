/* api_fields.c - see api_fields.h. */
#include "api_fields.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SPELLED = 64 }; /* bytes of a number in a string */

void field_ignore(const struct api_fields *p, enum api_ignored part) {
    assert(part < API_N_IGNORED);
    if (p->ignored) *p->ignored |= 1u << part;
}

const char *field_type(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "unknown";
}

int api_read_object(const char *body, size_t len, struct api_fields p,
                    bool (*read)(const struct api_fields *p, void *out), void *out) {
    json_t *root = api_load(body, len, p.err);
    p.root = root;
    const bool ok = root && read(&p, out);
    json_decref(root);
    return ok ? 0 : -1;
}

const json_t *field_of(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

const json_t *field_get(const struct api_fields *p, const char *name) { return field_of(p->root, name); }

/* ---- numbers ---- */

/* The number or the truth that a string spells, as JSON; else NULL. The caller decrefs. */
static json_t *field_unquote(const json_t *string) {
    json_error_t fault;
    json_t *value = NULL;
    if (!json_is_string(string) || json_string_length(string) > MAX_SPELLED) return NULL;
    value = json_loadb(json_string_value(string), json_string_length(string), JSON_DECODE_ANY, &fault);
    if (json_is_number(value) || json_is_boolean(value)) return value;
    json_decref(value);
    return NULL;
}

bool field_as_number(const json_t *value, double *out) {
    json_t *spelled = field_unquote(value);
    const json_t *number = spelled ? spelled : value;
    const bool ok = json_is_number(number);
    if (ok) *out = json_number_value(number);
    json_decref(spelled);
    return ok;
}

bool field_as_int(const json_t *value, int64_t *out) {
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    double real = json_is_real(value) ? json_real_value(value) : NAN;
    if (!(real > -9e15 && real < 9e15) || trunc(real) != real)
        return false; /* 16.0 is 16; 1.5 and 1e30 are not whole */
    *out = (int64_t)real;
    return true;
}

bool field_int(const struct api_fields *p, const char *name, int64_t low, int64_t high, int64_t *out) {
    const json_t *value = field_get(p, name);
    assert(low <= high);
    if (!value) return true;
    double as_number;
    if (!field_as_number(value, &as_number)) return field_bad(p, name, "must be an integer, not %s", field_type(value));
    int64_t number = 0;
    json_t *spelled = field_unquote(value);
    const bool whole = field_as_int(spelled ? spelled : value, &number);
    json_decref(spelled);
    if (!whole) {
        return field_bad(p, name, "must be an integer from %lld to %lld", (long long)low, (long long)high);
    }
    if (number < low || number > high) {
        return field_bad(p, name, "must be %lld to %lld, not %lld", (long long)low, (long long)high, (long long)number);
    }
    *out = number;
    return true;
}

bool field_u32(const struct api_fields *p, const char *name, int64_t low, uint32_t *out) {
    int64_t number = *out;
    if (!field_int(p, name, low, INT32_MAX, &number)) return false;
    *out = (uint32_t)number;
    return true;
}

bool field_float(const struct api_fields *p, const char *name, double low, bool low_open, double high, float *out) {
    const json_t *value = field_get(p, name);
    assert(low < high);
    if (!value) return true;
    double number;
    if (!field_as_number(value, &number)) return field_bad(p, name, "must be a number, not %s", field_type(value));
    if (!(number >= low && number <= high) || (low_open && number == low)) {
        return field_bad(p, name, "must be %s %g and at most %g, not %g", low_open ? "more than" : "at least", low,
                         high, number);
    }
    *out = (float)number;
    if (low_open && *out <= (float)low) return field_bad(p, name, "is %g, which is too small", number);
    return true;
}

bool field_bool(const struct api_fields *p, const char *name, bool *out) {
    const json_t *value = field_get(p, name);
    if (!value) return true;
    json_t *spelled = field_unquote(value);
    const json_t *truth = spelled ? spelled : value;
    const bool ok = json_is_boolean(truth);
    if (ok) *out = json_is_true(truth);
    json_decref(spelled);
    return ok || field_bad(p, name, "must be true or false, not %s", field_type(value));
}

/* ---- the rest ---- */

bool field_asks(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_NULL:
    case JSON_FALSE: return false;
    case JSON_STRING: return json_string_length(value) != 0;
    case JSON_ARRAY: return json_array_size(value) != 0;
    case JSON_OBJECT: return json_object_size(value) != 0;
    default: return true;
    }
}

bool field_is(const json_t *value, const char *word) {
    const size_t n = strlen(word);
    return json_string_length(value) == n && json_is_string(value) && !memcmp(json_string_value(value), word, n);
}

bool field_has_nul(const json_t *value) {
    return json_is_string(value) && strlen(json_string_value(value)) != json_string_length(value);
}

bool field_no_tools(const struct api_fields *p, const char *tools, const char *choice, const char *why) {
    const json_t *given = field_get(p, tools), *how = field_get(p, choice);
    const bool none = field_is(how, "none");
    if (given && field_asks(given) && !none) return field_bad(p, tools, "%s", why);
    if (how && !none && !field_is(how, "auto")) return field_bad(p, choice, "%s", why);
    return true;
}

size_t field_chars(const char *text, size_t len) {
    size_t n = 0;
    for (size_t i = 0; i < len; i++) n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

char *field_copy(const json_t *value, size_t *len) {
    *len = json_string_length(value);
    char *copy = malloc(*len + 1);
    if (copy) memcpy(copy, json_string_value(value), *len + 1);
    return copy;
}

bool field_text(const struct api_fields *p, const char *name, size_t max, char **out, size_t *len) {
    const json_t *value = field_get(p, name);
    assert(!*out); /* it would be lost */
    if (!value) return true;
    if (!json_is_string(value)) return field_bad(p, name, "must be a string, not %s", field_type(value));
    const size_t n = json_string_length(value), n_chars = field_chars(json_string_value(value), n);
    if (strlen(json_string_value(value)) != n) return field_bad(p, name, "has a NUL character");
    if (n_chars > max) return field_bad(p, name, "has %zu characters, %zu are allowed", n_chars, max);
    *out = field_copy(value, len);
    return *out ? true : field_no_memory(p);
}

bool field_ids(const struct api_fields *p, const char *param, const json_t *array, int32_t **out, size_t *n_out) {
    size_t n = json_array_size(array);
    int32_t *ids = malloc((n ? n : 1) * sizeof *ids);
    if (!ids) return field_no_memory(p);
    assert(!*out);
    *out = ids; /* freed with the request */
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(array, i);
        int64_t id = -1;
        if (!field_as_int(item, &id))
            return field_bad(p, param, "[%zu] must be a token id, not %s", i, field_type(item));
        if (id < 0 || id >= p->defaults->vocab_size) {
            return field_bad(p, param, "[%zu] must be a token id from 0 to %u, not %lld", i,
                             p->defaults->vocab_size - 1, (long long)id);
        }
        ids[i] = (int32_t)id;
    }
    *n_out = n;
    return true;
}
