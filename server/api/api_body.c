/* api_body.c - from the bytes of a body to its JSON object, or to an error that names the field where it ceases to
 * be one. Bodies are hostile: the memory and the depth of what is built are bounded before anything is built. */
#include "api_fields.h"
#include "engine/base/json_guard.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* A parsed value takes up to a hundred bytes, so a short body of very many of them ("[[],[],...") could take gigabytes.
 * The longest prompt of token ids still fits. The depth bounds recursion over the value. */
enum { MAX_VALUES = 3 << 19, MAX_DEPTH = 128 };

struct scan { /* of a body up to some place, or to where it goes too far */
    size_t n_values, depth, at;
    size_t key, key_len; /* of the outermost object: the last key before `at`; key 0 = none */
};

/* Follows strings, brackets and commas and nothing else of the grammar; `until` bounds the bytes that are read. */
static struct scan scan_body(const char *body, size_t until) {
    struct scan s = {0};
    bool is_key = false; /* in the outermost object, where a string would be a key */
    for (; s.at < until && s.n_values <= MAX_VALUES && s.depth <= MAX_DEPTH; s.at++) {
        const char c = body[s.at];
        if (c == '"') {
            const size_t begin = s.at + 1;
            for (s.at = begin; s.at < until && body[s.at] != '"'; s.at++) s.at += body[s.at] == '\\';
            if (s.at > until) s.at = until;
            if (is_key) {
                s.key = begin;
                s.key_len = s.at - begin;
            }
            is_key = false;
        } else if (c == '{' || c == '[') {
            s.n_values++;
            s.depth++;
            is_key = s.depth == 1 && c == '{';
        } else if (c == '}' || c == ']') {
            s.depth -= s.depth > 0;
        } else if (c == ',') {
            s.n_values++;
            is_key = s.depth == 1;
        }
    }
    if (s.at > until) s.at = until;
    assert(s.key + s.key_len <= until);
    return s;
}

/* The 400 with the field that the scan ended in, unless its name is too odd to repeat. */
static void refuse_body(struct api_error *err, const char *body, const struct scan *s, const char *what) {
    char param[64] = "";
    bool plain = s->key && s->key_len && s->key_len < sizeof param;
    for (size_t i = 0; plain && i < s->key_len; i++) {
        const char c = body[s->key + i];
        plain = c > ' ' && c < 127 && c != '\\';
    }
    if (plain) memcpy(param, body + s->key, s->key_len);
    api_error_invalid(err, param, "%s%s%s.", what, plain ? ", in or after the field " : "", param);
}

/* Whole doubles that hold every digit are integers again; arrays and objects are changed in place. Takes value. */
static json_t *make_whole(json_t *value) {
    json_t *one;
    size_t i;
    if (json_is_real(value)) {
        const double x = json_real_value(value);
        json_t *integer = trunc(x) == x && fabs(x) < 0x1p53 ? json_integer((json_int_t)x) : NULL;
        if (!integer) return value;
        json_decref(value);
        return integer;
    }
    json_array_foreach(value, i, one) json_array_set_new(value, i, make_whole(json_incref(one)));
    for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at))
        json_object_iter_set_new(value, at, make_whole(json_incref(json_object_iter_value(at))));
    return value;
}

/* An integer beyond 64 bits is valid JSON that jansson does not read. With all integers read as reals the check of the
 * field that holds it can name it; the others become integers again. */
static json_t *load_guarded(const char *body, size_t len, json_error_t *fault) {
    const size_t flags = JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES;
    json_t *root = json_guard_load(body, len, flags, fault);
    if (root || json_error_code(fault) != json_error_numeric_overflow) return root;
    root = json_guard_load(body, len, flags | JSON_DECODE_INT_AS_REAL, fault);
    return root ? make_whole(root) : NULL;
}

json_t *api_load(const char *body, size_t len, struct api_error *err) {
    char what[320];
    if (!body || !len) {
        api_error_invalid(err, "", "The body is empty: send a JSON object.");
        return NULL;
    }
    const char *nul = memchr(body, 0, len); /* jansson passes over one behind a number */
    if (nul) {
        const struct scan before = scan_body(body, (size_t)(nul - body));
        refuse_body(err, body, &before, "The body is not JSON: it has a NUL byte");
        return NULL;
    }
    struct scan s = scan_body(body, len);
    if (s.n_values > MAX_VALUES || s.depth > MAX_DEPTH) {
        snprintf(what, sizeof what,
                 s.depth > MAX_DEPTH ? "The body is nested more than %d levels deep"
                                     : "The body holds too many values, more than %d",
                 s.depth > MAX_DEPTH ? MAX_DEPTH : MAX_VALUES);
        refuse_body(err, body, &s, what);
        return NULL;
    }
    json_error_t fault = {0};
    json_t *root = load_guarded(body, len, &fault);
    if (json_is_object(root)) return root;
    if (root) {
        api_error_invalid(err, "", "The body must be a JSON object.");
        json_decref(root);
        return NULL;
    }
    if (json_error_code(&fault) == json_error_out_of_memory) {
        api_error_no_memory(err);
        return NULL;
    }
    const size_t at = fault.position > 0 ? (size_t)fault.position : 0;
    s = scan_body(body, at < len ? at : len);
    if (json_error_code(&fault) == json_error_numeric_overflow) {
        snprintf(what, sizeof what, "A number in the body is too large: line %d column %d", fault.line, fault.column);
    } else if (json_error_code(&fault) == json_error_null_byte_in_key) {
        snprintf(what, sizeof what,
                 "The body has a member whose name has U+0000, which is not supported: line %d column %d", fault.line,
                 fault.column);
    } else {
        snprintf(what, sizeof what, "The body is not JSON: line %d column %d: %.200s", fault.line, fault.column,
                 fault.text);
    }
    refuse_body(err, body, &s, what);
    return NULL;
}
