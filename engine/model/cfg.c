/* cfg.c - see cfg.h. */
#include "cfg.h"
#include "engine/base/fail.h"
#include "engine/base/json_guard.h"
#include "engine/base/json_python.h"
#include "engine/base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

json_t *cfg_get(const json_t *object, const char *path) {
    const char *dot = strrchr(path, '.');
    json_t *value = json_object_get(object, dot ? dot + 1 : path);
    return json_is_null(value) ? NULL : value; /* null = absent = its default */
}

void cfg_fail(struct cfg *c, int code, const char *path, const json_t *value, const char *what) {
    if (c->rc) return;
    const char *odd = json_python_number(value);
    char *text = value && !odd ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    if (text || odd)
        c->rc = rod_fail_at(c->err, code, path, "%s: %s is %.60s: %s", c->file, path, text ? text : odd, what);
    else if (value)
        c->rc = rod_fail_at(c->err, code, path, "%s: %s holds a surrogate alone: %s", c->file, path, what);
    else
        c->rc = rod_fail_at(c->err, code, path, "%s: %s is missing: %s", c->file, path, what);
    free(text);
}

int64_t cfg_int(struct cfg *c, const json_t *object, const char *path, int64_t def, int64_t lo, int64_t hi) {
    const json_t *value = cfg_get(object, path);
    if (!value && def >= lo) return def;
    if (json_is_integer(value) && json_integer_value(value) >= lo && json_integer_value(value) <= hi)
        return json_integer_value(value);
    char what[96];
    snprintf(what, sizeof what, "an integer from %lld to %lld is needed", (long long)lo, (long long)hi);
    cfg_fail(c, ROD_EMODEL, path, value, what);
    return lo;
}

double cfg_interval(struct cfg *c, const json_t *object, const char *path, double def, double lo, bool lo_in,
                    double hi) {
    const json_t *value = cfg_get(object, path);
    if (!value) return def;
    double x = json_number_value(value);
    if (json_is_number(value) && (lo_in ? x >= lo : x > lo) && x <= hi) return x;
    char what[96]; /* 15 digits: bounds are printed as they are written here */
    snprintf(what, sizeof what, "a number %s %.15g, at most %.15g is needed", lo_in ? "of at least" : "above", lo, hi);
    cfg_fail(c, ROD_EMODEL, path, value, what);
    return hi;
}

double cfg_real(struct cfg *c, const json_t *object, const char *path, double def, double lo, double hi) {
    return cfg_interval(c, object, path, def, lo, false, hi);
}

bool cfg_bool(struct cfg *c, const json_t *object, const char *path, bool def) {
    const json_t *value = cfg_get(object, path);
    if (!value) return def;
    if (!json_is_boolean(value)) cfg_fail(c, ROD_EMODEL, path, value, "true or false is needed");
    return json_is_true(value);
}

const json_t *cfg_object(struct cfg *c, const json_t *object, const char *path) {
    const json_t *value = cfg_get(object, path);
    if (value && !json_is_object(value)) {
        cfg_fail(c, ROD_EMODEL, path, value, "an object is needed");
        return NULL;
    }
    return value;
}

const char *cfg_string(struct cfg *c, const json_t *object, const char *path, const char *def) {
    const json_t *value = cfg_get(object, path);
    if (!value) return def;
    const char *text = json_python_text(value);
    if (!text) {
        cfg_fail(c, ROD_EMODEL, path, value,
                 json_is_string(value) ? "a string without NUL and lone surrogates is needed" : "a string is needed");
        return def;
    }
    return text;
}

void cfg_refuse(struct cfg *c, const char *path, const json_t *value, const char *why) {
    cfg_fail(c, ROD_EUNSUPPORTED, path, value, why);
}

bool cfg_says_nothing(const json_t *value) {
    if (json_is_number(value)) return json_number_value(value) == 0;
    if (json_is_string(value)) return json_string_length(value) == 0;
    if (json_is_array(value)) return json_array_size(value) == 0;
    if (json_is_object(value)) return json_object_size(value) == 0;
    return !json_is_true(value);
}

void cfg_only(struct cfg *c, const json_t *object, const char *part, const char *const *known) {
    json_t *o = (json_t *)(uintptr_t)object; /* jansson's iterators are not const */
    for (void *at = json_object_iter(o); at && !c->rc; at = json_object_iter_next(o, at)) {
        const char *key = json_object_iter_key(at);
        const size_t len = json_object_iter_key_len(at); /* it may hold a NUL */
        size_t i = 0;
        while (known[i] && (strlen(known[i]) != len || memcmp(known[i], key, len) != 0)) i++;
        if (known[i] || cfg_says_nothing(json_object_iter_value(at))) continue;
        char path[96];
        int n = snprintf(path, sizeof path, "%s%s", part, *part ? "." : "");
        for (i = 0; i < len && i < 60 && n < (int)sizeof path - 1; i++) /* a stranger's key reaches a terminal */
            path[n++] = (char)((unsigned char)key[i] < 0x20 || key[i] == 0x7f ? '?' : key[i]);
        path[n] = 0;
        utf8_mend(path, sizeof path);
        cfg_refuse(c, path, json_object_iter_value(at), "this key is not known, and may change results");
    }
}

json_t *cfg_load(struct cfg *c, const char *json, size_t len) {
    json_error_t json_err;
    json_t *root = json_python_load(json, len, 0, &json_err);
    if (!root && json_guard_was_short(&json_err))
        c->rc = rod_fail_no_memory(c->err);
    else if (!root)
        c->rc = rod_fail(c->err, ROD_EMODEL, "%s is not valid JSON: line %d: %.200s", c->file, json_err.line,
                         json_err.text);
    else if (!json_is_object(root))
        c->rc = rod_fail(c->err, ROD_EMODEL, "%s is not a JSON object", c->file);
    return root;
}
