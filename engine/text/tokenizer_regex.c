/* tokenizer_regex.c - from the reference implementation's regex dialect (Oniguruma, Ruby syntax) to one that PCRE2 runs
 * over letters (tokenizer_letters.c).
 *
 * Groups, anchors and quantifiers mean the same in both and are copied. Characters, classes and properties become sets,
 * by the tables of engine/text/unicode.h. What the two read differently is refused by name, and so is a construct that
 * is not known here: a silently different split would change token ids.
 */
#include "engine/base/array.h"
#include "engine/base/fail.h"
#include "engine/base/json_python.h"
#include "engine/text/unicode.h"
#include "engine/base/utf8.h"
#include "tokenizer_parts.h"

#include <stdlib.h>
#include <string.h>

#define REGEX_MAX_DEPTH 250
#define REGEX_SET       '\1' /* in out: a set's number follows; no other byte below the space is there */

struct regex {
    const char *in;
    size_t len, at;
    char *out;
    uint32_t *from; /* where the construct of each byte of out begins */
    size_t n, cap, cap_from;
    size_t start; /* of the construct that is read */
    struct letters letters;
    bool fold[REGEX_MAX_DEPTH + 1]; /* of each open group: is case ignored in it? */
    size_t depth;
    uint32_t before; /* the character just before, where case is ignored; 0: none */
    struct rod_error *err;
};

static int regex_put(struct regex *r, const char *s, size_t len) {
    if (!ARRAY_RESERVE(r->out, r->cap, r->n, len + 1) || !ARRAY_RESERVE(r->from, r->cap_from, r->n, len + 1))
        return rod_fail_no_memory(r->err);
    memcpy(r->out + r->n, s, len);
    for (size_t i = 0; i <= len; i++) r->from[r->n + i] = (uint32_t)r->start;
    r->n += len;
    r->out[r->n] = 0;
    return 0;
}

/* How much of the pattern a message has: an escape with braces whole. */
static size_t regex_shown(const struct regex *r, size_t at) {
    size_t n = r->len - at < 12 ? r->len - at : 12;
    const char *in = r->in + at;
    const char *close = r->len - at > 3 && in[0] == '\\' && in[2] == '{' ? memchr(in, '}', r->len - at) : NULL;
    if (close && close - in < 40) n = (size_t)(close - in) + 1;
    while (n && at + n < r->len && ((unsigned char)in[n] & 0xc0) == 0x80) n--;
    return n;
}

static int regex_refuse(struct regex *r, size_t at, const char *what) {
    char few[128];
    json_python_spell(r->in + at, regex_shown(r, at), false, few, sizeof few);
    return rod_fail(r->err, ROD_EUNSUPPORTED,
                    "tokenizer.json: pre_tokenizer pattern: %s at offset %zu (\"%s\") is not supported", what, at, few);
}

/* ---- characters and sets ---- */

/* The set, which this takes over, as what stands next in the pattern. */
static int regex_put_set(struct regex *r, size_t at, struct letters_set *set) {
    letters_tidy(set);
    r->before = 0;
    int k = letters_take(&r->letters, set);
    if (k < 0) return regex_refuse(r, at, "the 251st different class");
    return regex_put(r, (char[]){REGEX_SET, (char)k}, 2);
}

/* With case ignored Oniguruma also takes one character for several, U+00DF for "ss": such patterns are refused. */
static int regex_put_character(struct regex *r, size_t at, uint32_t c) {
    struct letters_set set = {0};
    letters_add(&set, c, c);
    if (!r->fold[r->depth]) return regex_put_set(r, at, &set);
    letters_fold(&set);
    bool several = unicode_folds_long(c, c);
    struct letters_set before = {0};
    letters_add(&before, r->before, r->before);
    letters_fold(&before);
    for (size_t i = 0; i < before.n; i++)
        for (uint32_t a = before.v[i].first; a <= before.v[i].last; a++)
            for (size_t k = 0; k < set.n; k++)
                for (uint32_t b = set.v[k].first; b <= set.v[k].last; b++) several |= unicode_fold_pair(a, b);
    free(before.v);
    if (several) {
        free(set.v);
        return regex_refuse(r, at, "a text that is one character when case is ignored,");
    }
    int rc = regex_put_set(r, at, &set);
    r->before = c;
    return rc;
}

static void regex_spaces(struct letters_set *set) {
    for (uint32_t c = 0; c <= 0x3000; c++)
        if (unicode_is_space(c)) letters_add(set, c, c);
}

/* The number signs of Latin-1, which Oniguruma counts among \w outside of classes. */
static void regex_number_signs(struct letters_set *set) {
    letters_add(set, 0xb2, 0xb3);
    letters_add(set, 0xb9, 0xb9);
    letters_add(set, 0xbc, 0xbe);
}

static bool regex_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/* \xHH, \x{H...}, \uHHHH: after the letter. */
static int regex_code_point(struct regex *r, size_t start, char letter, uint32_t *one) {
    char digits[10];
    size_t n = 0;
    bool braces = letter == 'x' && r->at < r->len && r->in[r->at] == '{';
    size_t want = letter == 'u' ? 4 : braces ? 8 : 2;
    r->at += braces;
    while (n < want && r->at < r->len && regex_hex(r->in[r->at])) digits[n++] = r->in[r->at++];
    if (!n || (!braces && n != want) || (braces && (r->at == r->len || r->in[r->at++] != '}')))
        return regex_refuse(r, start, "this escape");
    digits[n] = 0;
    unsigned long c = strtoul(digits, NULL, 16);
    if (!braces && letter == 'x' && c > 0x7f) /* a raw byte there, a character here */
        return regex_refuse(r, start, "a byte escape past \\x7f");
    if (c > UNICODE_MAX || (c >= 0xd800 && c < 0xe000)) return regex_refuse(r, start, "this code point");
    *one = (uint32_t)c;
    return 0;
}

/* \p{...}: a general category by its short name, or a script. */
static int regex_property(struct regex *r, size_t start, char letter, struct letters_set *set) {
    if (r->at == r->len || r->in[r->at] != '{') return regex_refuse(r, start, "a property without braces");
    r->at++;
    bool negated = letter == 'P';
    if (r->at < r->len && r->in[r->at] == '^') {
        negated = !negated;
        r->at++;
    }
    char name[33];
    size_t n = 0;
    while (r->at < r->len && n < 32 && r->in[r->at] != '}') {
        char c = r->in[r->at++];
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && c != '_')
            return regex_refuse(r, start, "this property");
        name[n++] = c;
    }
    name[n] = 0;
    if (!n || r->at == r->len || r->in[r->at++] != '}' || !unicode_property(name, letters_add, set))
        return regex_refuse(r, start, "this property");
    letters_tidy(set);
    if (negated) letters_invert(set);
    return 0;
}

/* An escape that means characters: *one, or, when that stays UINT32_MAX, the set. */
static int regex_escape(struct regex *r, bool in_class, struct letters_set *set, uint32_t *one) {
    size_t start = r->at++;
    *one = UINT32_MAX;
    if (r->at == r->len) return regex_refuse(r, start, "a lone backslash");
    char c = r->in[r->at++];
    switch (c) {
    case 's':
    case 'S': regex_spaces(set); break;
    case 'w':
    case 'W':
        letters_words(set);
        if (!in_class) regex_number_signs(set);
        break;
    case 'd':
    case 'D': unicode_property("Nd", letters_add, set); break;
    case 'v': *one = 0xb; return 0;
    case 'r': *one = '\r'; return 0;
    case 'n': *one = '\n'; return 0;
    case 't': *one = '\t'; return 0;
    case 'f': *one = '\f'; return 0;
    case 'a': *one = 7; return 0;
    case 'e': *one = 0x1b; return 0;
    case 'x':
    case 'u': return regex_code_point(r, start, c, one);
    case 'p':
    case 'P': return regex_property(r, start, c, set);
    default:
        if ((unsigned char)c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
            return regex_refuse(r, start, "this escape");
        *one = (unsigned char)c; /* escaped punctuation is itself */
        return 0;
    }
    letters_tidy(set);
    if (c < 'a') letters_invert(set);
    return 0;
}

/* ---- classes ---- */

/* One member, a character or a set of its own, which goes into the class. */
static int regex_member(struct regex *r, struct letters_set *class, uint32_t *one) {
    char c = r->in[r->at];
    if (c == '[') return regex_refuse(r, r->at, "a class in a class");
    if (c == '&' && r->at + 1 < r->len && r->in[r->at + 1] == '&') return regex_refuse(r, r->at, "&&");
    if (c != '\\') {
        size_t step;
        *one = utf8_decode(r->in + r->at, &step);
        r->at += step;
        return 0;
    }
    struct letters_set set = {0};
    int rc = regex_escape(r, true, &set, one);
    if (!rc) letters_add_all(class, &set);
    free(set.v);
    return rc;
}

/* Does "-" stand here and make a range, as it does but at the end of the class? */
static bool regex_at_range(const struct regex *r) {
    return r->at + 1 < r->len && r->in[r->at] == '-' && r->in[r->at + 1] != ']';
}

static int regex_members(struct regex *r, size_t start, struct letters_set *class) {
    for (size_t first = r->at;;) {
        if (r->at == r->len) return regex_refuse(r, start, "an unfinished class");
        if (r->in[r->at] == ']') return r->at > first ? (r->at++, 0) : regex_refuse(r, start, "an empty class");
        size_t at = r->at;
        uint32_t one, last;
        int rc = regex_member(r, class, &one);
        if (rc) return rc;
        last = one;
        if (regex_at_range(r)) {
            if (one == UINT32_MAX) return regex_refuse(r, at, "a range that begins with a class");
            r->at++;
            if ((rc = regex_member(r, class, &last))) return rc;
            if (last == UINT32_MAX || last < one) return regex_refuse(r, at, "this range");
            if (regex_at_range(r)) return regex_refuse(r, at, "a range behind a range");
        }
        if (one != UINT32_MAX) letters_add(class, one, last);
    }
}

static int regex_class(struct regex *r) {
    size_t start = r->at++;
    struct letters_set class = {0};
    bool negated = r->at < r->len && r->in[r->at] == '^', several = false;
    r->at += negated;
    int rc = regex_members(r, start, &class);
    letters_tidy(&class);
    if (!rc && r->fold[r->depth]) {
        letters_fold(&class);
        for (size_t i = 0; i < class.n && !negated; i++)
            several |= unicode_folds_long(class.v[i].first, class.v[i].last);
        if (several) rc = regex_refuse(r, start, "a class with a character that is several when case is ignored,");
    }
    if (rc) {
        free(class.v);
        return rc;
    }
    if (negated) letters_invert(&class);
    return regex_put_set(r, start, &class);
}

/* ---- the rest of the syntax ---- */

static int regex_outside(struct regex *r) {
    size_t start = r->at;
    char next = start + 1 < r->len ? r->in[start + 1] : 0;
    if (next == 'A' || next == 'z') {
        r->at += 2;
        r->before = 0;
        return regex_put(r, r->in + start, 2);
    }
    struct letters_set set = {0};
    uint32_t one;
    int rc = regex_escape(r, false, &set, &one);
    if (!rc && one == UINT32_MAX) return regex_put_set(r, start, &set);
    free(set.v);
    return rc ? rc : regex_put_character(r, start, one);
}

static int regex_group(struct regex *r) {
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    const char *p = r->in + r->at, *as = "(?:"; /* captures are of no use to a split */
    size_t left = r->len - r->at, n = 1;
    if (left >= 4 && !memcmp(p, "(?i)", 4)) { /* elsewhere its reach over "|" differs */
        if (r->at) return regex_refuse(r, r->at, "(?i) past the beginning");
        r->at += 4;
        r->fold[0] = true;
        return 0;
    }
    bool fold = r->fold[r->depth];
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        if (left < strlen(known[k]) || memcmp(p, known[k], strlen(known[k]))) continue;
        n = strlen(known[k]);
        fold |= k == 1;
        if (k != 1) as = known[k];
    }
    if (n == 1 && left >= 2 && (p[1] == '?' || p[1] == '*')) return regex_refuse(r, r->at, "this group");
    if (r->depth == REGEX_MAX_DEPTH) return regex_refuse(r, r->at, "the 251st group in a group");
    r->at += n;
    r->fold[++r->depth] = fold;
    return regex_put(r, as, strlen(as));
}

/* {n}, {n,}, {n,m}; the lazy and possessive forms of these differ between the dialects. */
static int regex_interval(struct regex *r) {
    size_t start = r->at++, n_low = 0, n_high = 0;
    bool comma = false;
    while (r->at < r->len && r->in[r->at] >= '0' && r->in[r->at] <= '9') r->at++, n_low++;
    if (r->at < r->len && r->in[r->at] == ',') comma = true, r->at++;
    while (comma && r->at < r->len && r->in[r->at] >= '0' && r->in[r->at] <= '9') r->at++, n_high++;
    if (!n_low || r->at == r->len || r->in[r->at] != '}') return regex_refuse(r, start, "this brace");
    r->at++;
    if (r->at < r->len) {
        char next = r->in[r->at];
        if (next == '+' || next == '*' || (next == '?' && !n_high))
            return regex_refuse(r, start, "a quantified interval");
    }
    r->before = 0;
    return regex_put(r, r->in + start, r->at - start);
}

static int regex_next(struct regex *r) {
    char c = r->in[r->at];
    struct letters_set set = {0};
    size_t at = r->start = r->at, step;
    switch (c) {
    case '\\': return regex_outside(r);
    case '[': return regex_class(r);
    case '(': return regex_group(r);
    case '{': return regex_interval(r);
    case '.':
        r->at++;
        letters_add(&set, '\n', '\n');
        letters_invert(&set);
        return regex_put_set(r, at, &set);
    case ')':
        if (!r->depth) return regex_refuse(r, at, "a bracket that closes nothing");
        r->depth--;
        r->at++;
        return regex_put(r, ")", 1);
    case '|':
    case '*':
    case '+':
    case '?':
    case '^':
    case '$': r->before = 0; return regex_put(r, r->in + r->at++, 1);
    default: break;
    }
    uint32_t one = utf8_decode(r->in + at, &step);
    r->at += step;
    return regex_put_character(r, at, one);
}

/* ---- sets to letters ---- */

static int regex_put_letters(struct regex *r, int set) {
    static const char hex[] = "0123456789abcdef";
    char text[4 + 256 * 9];
    size_t n = 0, n_in = 0;
    text[n++] = '[';
    for (uint32_t c = 0; c < 256; c++) {
        uint32_t last = c;
        if (!letters_in(&r->letters, set, c)) continue;
        while (last < 255 && letters_in(&r->letters, set, last + 1)) last++;
        const uint32_t ends[] = {c, last};
        for (size_t k = 0; k < (last > c ? 2 : 1); k++) {
            if (k) text[n++] = '-';
            memcpy(text + n, (char[]){'\\', 'x', hex[ends[k] >> 4], hex[ends[k] & 15]}, 4);
            n += 4;
        }
        n_in += last - c + 1;
        c = last;
    }
    text[n++] = ']';
    return n_in ? regex_put(r, text, n) : regex_put(r, "[^\\x00-\\xff]", 12);
}

/* The pattern once more, with the letters of each set in the place of its number. */
static int regex_finish(struct regex *r) {
    char *in = r->out;
    uint32_t *from = r->from;
    size_t n = r->n;
    int rc = letters_make(&r->letters, r->err);
    r->out = NULL;
    r->from = NULL;
    r->n = r->cap = r->cap_from = 0;
    if (!rc) rc = regex_put(r, "", 0);
    for (size_t i = 0; !rc && i < n; i++) {
        r->start = from[i];
        if (in[i] == REGEX_SET)
            rc = regex_put_letters(r, (unsigned char)in[++i]);
        else
            rc = regex_put(r, in + i, 1);
    }
    if (r->from) r->from[r->n] = (uint32_t)r->len;
    free(in);
    free(from);
    return rc;
}

int regex_translate(const char *pattern, size_t len, struct regex_letters *out, struct rod_error *err) {
    struct regex *r = calloc(1, sizeof *r);
    if (!r) return rod_fail_no_memory(err);
    r->in = pattern;
    r->len = len;
    r->err = err;
    int rc = regex_put(r, "", 0);
    while (!rc && r->at < len) rc = regex_next(r);
    if (!rc) rc = regex_finish(r);
    if (!rc) {
        *out = (struct regex_letters){r->out, r->n, r->from, r->letters.letter};
        r->out = NULL;
        r->from = NULL;
        r->letters.letter = NULL;
    }
    free(r->out);
    free(r->from);
    letters_fini(&r->letters);
    free(r);
    return rc;
}
