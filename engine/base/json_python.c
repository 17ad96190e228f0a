/* json_python.c - see json_python.h. The text is rewritten where jansson would refuse it, and what it has no spelling
 * for is put into the values afterwards: most files need neither, and are read from where they lie. */
#include "json_python.h"
#include "array.h"
#include "json_guard.h"
#include "utf8.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Behind it four hexadecimal digits stand for a UTF-16 unit. The mark itself, a noncharacter, is written so too. */
#define MARK       "\xef\xb7\x90" /* U+FDD0 */
#define MARK_BYTES 3

/* jansson's reals are finite. The three largest of them are no setting's value. The blanks keep neighbours apart. */
static const struct {
    const char *name, *digits;
    double value;
} odd_numbers[] = {{"Infinity", " 1.7976931348623157e308 ", 1.7976931348623157e308},
                   {"-Infinity", " -1.7976931348623157e308 ", -1.7976931348623157e308},
                   {"NaN", " 1.7976931348623155e308 ", 1.7976931348623155e308}};
enum { INFINITE, MINUS_INFINITE, NOT_A_NUMBER, N_ODD };

struct edit {
    size_t text_end, out_end; /* where the two go on together */
};

struct rewrite {
    const char *text;
    size_t len, copied; /* text before `copied` is in out */
    char *out;          /* NULL: nothing differs so far */
    size_t n, cap;
    struct edit *edits;
    size_t n_edits, cap_edits;
    bool marked, no_memory;
};

/* The text up to `from` as it is, then bytes for what stands from there to `to`. */
static void rewrite_put(struct rewrite *r, size_t from, size_t to, const char *bytes, size_t n) {
    assert(r->copied <= from && from <= to && to <= r->len);
    const size_t n_same = from - r->copied;
    r->no_memory |=
        !ARRAY_RESERVE(r->out, r->cap, r->n, n_same + n + 1) || !ARRAY_RESERVE(r->edits, r->cap_edits, r->n_edits, 1);
    if (r->no_memory) return;
    memcpy(r->out + r->n, r->text + r->copied, n_same);
    memcpy(r->out + r->n + n_same, bytes, n);
    r->n += n_same + n;
    r->copied = to;
    r->edits[r->n_edits++] = (struct edit){to, r->n};
}

/* ---- strings ---- */

static void rewrite_mark(struct rewrite *r, size_t from, size_t to, unsigned unit) {
    char bytes[MARK_BYTES + 5];
    snprintf(bytes, sizeof bytes, MARK "%04x", unit & 0xffff);
    rewrite_put(r, from, to, bytes, sizeof bytes - 1);
    r->marked = true;
}

/* The unit of a \uXXXX at text[i]; -1: there is none. */
static int escaped_unit(const struct rewrite *r, size_t i) {
    if (r->len - i < 6 || r->text[i] != '\\' || r->text[i + 1] != 'u') return -1;
    int unit = 0;
    for (size_t k = i + 2; k < i + 6; k++) {
        const char c = r->text[k];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return -1;
        unit = 16 * unit + digit;
    }
    return unit;
}

/* An escape at i; returns its bytes, both of a pair of surrogates. */
static size_t rewrite_escape(struct rewrite *r, size_t i) {
    const int unit = escaped_unit(r, i);
    if (unit < 0) return r->len - i < 2 ? 1 : 2;
    if (unit >= 0xd800 && unit < 0xdc00) {
        const int low = escaped_unit(r, i + 6);
        if (low >= 0xdc00 && low < 0xe000) return 12;
    }
    if (!unit || unit == 0xfdd0 || (unit >= 0xd800 && unit < 0xe000)) rewrite_mark(r, i, i + 6, (unsigned)unit);
    return 6;
}

/* From behind the opening quote; returns where the string ends, its quote included. */
static size_t rewrite_string(struct rewrite *r, size_t i) {
    while (i < r->len && r->text[i] != '"') {
        if (r->text[i] == '\\') {
            i += rewrite_escape(r, i);
        } else if (r->len - i >= MARK_BYTES && !memcmp(r->text + i, MARK, MARK_BYTES)) {
            rewrite_mark(r, i, i + MARK_BYTES, 0xfdd0);
            i += MARK_BYTES;
        } else {
            i++;
        }
    }
    return i < r->len ? i + 1 : r->len;
}

/* ---- numbers ---- */

static bool is_number_byte(char c) { return (c >= '0' && c <= '9') || (c && strchr("+-.eE", c)); }

/* A number and not the beginning of something else: only text that is complete by JSON's grammar is touched. */
static bool is_number(const char *s, size_t n, bool *is_integer) {
    size_t i = s[0] == '-', first = i;
    while (i < n && s[i] >= '0' && s[i] <= '9') i++;
    if (i == first || (s[first] == '0' && i > first + 1)) return false;
    *is_integer = i == n;
    if (i < n && s[i] == '.') {
        for (first = ++i; i < n && s[i] >= '0' && s[i] <= '9';) i++;
        if (i == first) return false;
    }
    if (i < n && (s[i] == 'e' || s[i] == 'E')) {
        i += i + 1 < n && (s[i + 1] == '+' || s[i + 1] == '-') ? 2 : 1;
        for (first = i; i < n && s[i] >= '0' && s[i] <= '9';) i++;
        if (i == first) return false;
    }
    return i == n;
}

/* A token that begins at i and may be a number; returns where it ends. Short integers, which are most, are left. */
static size_t rewrite_number(struct rewrite *r, size_t i) {
    const char *s = r->text + i;
    size_t n = 0;
    bool is_integer = false;
    while (n < r->len - i && is_number_byte(s[n])) n++;
    if (!is_number(s, n, &is_integer) || (is_integer && n < 18)) return i + n;
    char few[64], *copy = n < sizeof few ? few : malloc(n + 1);
    if (!copy) {
        r->no_memory = true;
        return i + n;
    }
    memcpy(copy, s, n);
    copy[n] = 0;
    errno = 0;
    const bool fits = is_integer && (strtoll(copy, NULL, 10), errno != ERANGE);
    const double x = fits ? 0 : strtod(copy, NULL);
    if (isinf(x)) {
        const char *digits = odd_numbers[x < 0 ? MINUS_INFINITE : INFINITE].digits;
        rewrite_put(r, i, i + n, digits, strlen(digits));
    } else if (is_integer && !fits) {
        rewrite_put(r, i + n, i + n, "e0", 2);
    }
    if (copy != few) free(copy);
    return i + n;
}

static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

/* A word that begins at i, or a minus with one: NaN and Infinity are numbers in Python. Returns where it ends. */
static size_t rewrite_word(struct rewrite *r, size_t i) {
    size_t end = i + (r->text[i] == '-');
    while (end < r->len && is_letter(r->text[end])) end++;
    for (int k = 0; k < N_ODD; k++) {
        const char *name = odd_numbers[k].name, *digits = odd_numbers[k].digits;
        if (strlen(name) == end - i && !memcmp(name, r->text + i, end - i))
            rewrite_put(r, i, end, digits, strlen(digits));
    }
    return end;
}

/* Returns where a NUL byte stands outside a string; len: nowhere. */
static size_t rewrite_run(struct rewrite *r) {
    for (size_t i = 0; i < r->len && !r->no_memory;) {
        const char c = r->text[i], next = i + 1 < r->len ? r->text[i + 1] : 0;
        if (!c) return i;
        if (c == '"')
            i = rewrite_string(r, i + 1);
        else if (is_letter(c) || (c == '-' && is_letter(next)))
            i = rewrite_word(r, i);
        else if (is_number_byte(c))
            i = rewrite_number(r, i);
        else
            i++;
    }
    if (r->out && !r->no_memory) rewrite_put(r, r->len, r->len, "", 0);
    return r->len;
}

/* The place in the text of a place in what was read instead; an edit's place is where it ends. */
static size_t rewrite_place(const struct rewrite *r, size_t at) {
    size_t text = 0, out = 0;
    for (size_t i = 0; i < r->n_edits && r->edits[i].out_end <= at; i++)
        text = r->edits[i].text_end, out = r->edits[i].out_end;
    return text + (at - out) < r->len ? text + (at - out) : r->len;
}

/* ---- marks to what they stand for ---- */

/* In place: it takes fewer bytes. */
static size_t unmark_bytes(char *bytes, size_t n) {
    size_t to = 0;
    for (size_t i = 0; i < n;) {
        if (n - i < MARK_BYTES + 4 || memcmp(bytes + i, MARK, MARK_BYTES) != 0) {
            bytes[to++] = bytes[i++];
            continue;
        }
        char digits[5] = {0};
        memcpy(digits, bytes + i + MARK_BYTES, 4);
        const unsigned unit = (unsigned)strtoul(digits, NULL, 16);
        if (unit) {
            bytes[to++] = (char)(0xe0 | unit >> 12);
            bytes[to++] = (char)(0x80 | (unit >> 6 & 0x3f));
            bytes[to++] = (char)(0x80 | (unit & 0x3f));
        } else {
            bytes[to++] = 0;
        }
        i += MARK_BYTES + 4;
    }
    return to;
}

static bool unmark_string(json_t *string) {
    const size_t n = json_string_length(string);
    if (!memmem(json_string_value(string), n, MARK, MARK_BYTES)) return true;
    char *bytes = malloc(n);
    if (!bytes) return false;
    memcpy(bytes, json_string_value(string), n);
    const bool set = !json_string_setn_nocheck(string, bytes, unmark_bytes(bytes, n));
    free(bytes);
    return set;
}

static bool keys_are_marked(json_t *object) {
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at))
        if (memmem(json_object_iter_key(at), json_object_iter_key_len(at), MARK, MARK_BYTES)) return true;
    return false;
}

/* All members anew, in their order: a key cannot be changed. */
static bool unmark_keys(json_t *object) {
    json_t *old = json_object();
    bool good = old && !json_object_update(old, object) && !json_object_clear(object);
    for (void *at = good ? json_object_iter(old) : NULL; at && good; at = json_object_iter_next(old, at)) {
        const size_t n = json_object_iter_key_len(at);
        char *key = malloc(n + 1);
        if (key) memcpy(key, json_object_iter_key(at), n);
        good = key && !json_object_setn_new_nocheck(object, key, unmark_bytes(key, n),
                                                    json_incref(json_object_iter_value(at)));
        free(key);
    }
    json_decref(old);
    return good;
}

/* It goes as deep as jansson reads. */
static bool unmark(json_t *value) {
    json_t *one;
    size_t i;
    if (json_is_string(value)) return unmark_string(value);
    json_array_foreach(value, i, one) if (!unmark(one)) return false;
    for (void *at = json_object_iter(value); at; at = json_object_iter_next(value, at))
        if (!unmark(json_object_iter_value(at))) return false;
    return !json_is_object(value) || !keys_are_marked(value) || unmark_keys(value);
}

/* ---- the whole ---- */

static json_t *fail_nul(const struct rewrite *r, size_t at, json_error_t *fault) {
    *fault = (json_error_t){.line = 1, .position = (int)at};
    for (size_t i = 0; i < at; i++) fault->line += r->text[i] == '\n';
    snprintf(fault->text, sizeof fault->text, "a NUL byte stands outside a string");
    fault->text[sizeof fault->text - 1] = (char)json_error_invalid_syntax;
    return NULL;
}

json_t *json_python_load(const char *text, size_t len, size_t flags, json_error_t *fault) {
    struct rewrite r = {.text = text, .len = len};
    json_t *root = NULL;
    const size_t nul = rewrite_run(&r);
    if (r.no_memory) {
        json_guard_fail(NULL, fault);
    } else if (nul < len) {
        fail_nul(&r, nul, fault);
    } else {
        root = json_guard_load(r.out ? r.out : text, r.out ? r.n : len, flags | JSON_ALLOW_NUL, fault);
        if (!root && r.out && fault->position > 0) fault->position = (int)rewrite_place(&r, (size_t)fault->position);
        if (root && r.marked && !unmark(root)) root = json_guard_fail(root, fault);
    }
    free(r.out);
    free(r.edits);
    return root;
}

const char *json_python_text(const json_t *value) {
    const char *text = json_string_value(value);
    const size_t n = json_string_length(value);
    return text && !memchr(text, 0, n) && utf8_check(text, n) == n ? text : NULL;
}

/* One piece of a spelling; returns how many bytes it stands for. */
static size_t spell_piece(const char *bytes, size_t n, bool distinct, char piece[8]) {
    const unsigned char *b = (const unsigned char *)bytes;
    size_t step = 1;
    if (n >= 3 && b[0] == 0xed && b[1] >= 0xa0) {
        snprintf(piece, 8, "\\u%04x", 0xd000u | (b[1] & 0x3fu) << 6 | (b[2] & 0x3fu));
        return 3;
    }
    if (*b < 0x20 || *b == 0x7f) {
        snprintf(piece, 8, "\\u%04x", (unsigned)*b);
    } else if (*b == '\\' && distinct) {
        snprintf(piece, 8, "\\\\");
    } else {
        while (step < n && step < 4 && *b >= 0xc0 && (b[step] & 0xc0) == 0x80) step++;
        memcpy(piece, bytes, step);
        piece[step] = 0;
    }
    return step;
}

size_t json_python_spell(const char *bytes, size_t n, bool distinct, char *dst, size_t n_dst) {
    size_t all = 0;
    bool fits = n_dst > 0;
    if (fits) *dst = 0;
    for (size_t i = 0; i < n;) {
        char piece[8];
        i += spell_piece(bytes + i, n - i, distinct, piece);
        const size_t len = strlen(piece);
        fits = fits && len < n_dst - all;
        if (fits) memcpy(dst + all, piece, len + 1);
        all += len;
    }
    return all;
}

json_t *json_python_keeper(json_t *root) {
    json_t *keeper = json_array();
    if (keeper && !json_array_append_new(keeper, root)) return keeper;
    if (!keeper) json_decref(root);
    json_decref(keeper);
    return NULL;
}

const char *json_python_keep(json_t *keeper, const char *bytes, size_t n) {
    const size_t all = json_python_spell(bytes, n, true, NULL, 0);
    if (all == n) return bytes; /* what is spelled out becomes longer */
    char *text = malloc(all + 1);
    if (!text) return NULL;
    json_python_spell(bytes, n, true, text, all + 1);
    json_t *kept = json_stringn_nocheck(text, all);
    free(text);
    return json_array_append_new(keeper, kept) ? NULL : json_string_value(kept);
}

const char *json_python_number(const json_t *value) {
    for (int k = 0; json_is_real(value) && k < N_ODD; k++)
        if (json_real_value(value) == odd_numbers[k].value) return odd_numbers[k].name;
    return NULL;
}
