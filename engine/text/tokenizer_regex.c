/* tokenizer_regex.c - from the reference implementation's regex dialect (Oniguruma, Ruby syntax) to PCRE2's.
 *
 * Most of a pattern means the same in both and is copied. What differs is either rewritten (\s \w \h-like classes,
 * scripts, \u) or refused by name. A construct that is not known here is refused too: a silently different split would
 * change token ids.
 */
#include "tokenizer_parts.h"
#include "engine/base/fail.h"

#include <stdlib.h>
#include <string.h>

/* Unicode White_Space; PCRE2's own \s adds U+180E. The complement is spelled out for use inside a class. */
#define REGEX_SPACE "\\p{Z}\\x{9}-\\x{d}\\x{85}"
#define REGEX_NOT_SPACE                                                                                                \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}" \
    "\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
/* Alphabetic, marks, decimal digits, connectors, and the number signs of Latin-1, which Oniguruma counts in; PCRE2's
 * own \w lacks marks. Compared for every code point of Unicode 14, the version of PCRE2 10.42's tables. */
#define REGEX_WORD                                                                                                     \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}\\x{1f130}-\\x{1f149}"    \
    "\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}"

struct regex {
    const char *in;
    size_t len, at;
    char *out;
    size_t n, cap;
    struct rod_error *err;
};

static int regex_put(struct regex *r, const char *s, size_t len) {
    if (r->cap - r->n < len + 1) {
        size_t cap = (r->cap + len + 64) * 2;
        char *out = realloc(r->out, cap);
        if (!out) return rod_fail_no_memory(r->err);
        r->out = out;
        r->cap = cap;
    }
    memcpy(r->out + r->n, s, len);
    r->n += len;
    r->out[r->n] = 0;
    return 0;
}

static int regex_puts(struct regex *r, const char *s) { return regex_put(r, s, strlen(s)); }

static int regex_refuse(struct regex *r, size_t at, const char *what) {
    size_t n = r->len - at < 12 ? r->len - at : 12;
    return rod_fail(r->err, ROD_EUNSUPPORTED,
                    "tokenizer.json: pre_tokenizer pattern: %s at offset %zu (\"%.*s\") is not supported", what, at,
                    (int)n, r->in + at);
}

static bool regex_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/* \xHH, \x{H...}, \uHHHH: after the letter. */
static int regex_code_point(struct regex *r, size_t start, char letter) {
    char digits[10];
    size_t n = 0;
    bool braces = letter == 'x' && r->at < r->len && r->in[r->at] == '{';
    size_t want = letter == 'u' ? 4 : braces ? 8 : 2;
    r->at += braces;
    while (n < want && r->at < r->len && regex_hex(r->in[r->at])) digits[n++] = r->in[r->at++];
    if (!n || (!braces && n != want) || (braces && (r->at == r->len || r->in[r->at++] != '}')))
        return regex_refuse(r, start, "this escape");
    digits[n] = 0;
    if (!braces && letter == 'x' && strtoul(digits, NULL, 16) > 0x7f) /* a raw byte there, a character here */
        return regex_refuse(r, start, "a byte escape past \\x7f");
    int rc = regex_puts(r, "\\x{");
    if (!rc) rc = regex_puts(r, digits);
    return rc ? rc : regex_puts(r, "}");
}

/* \p{...}: general categories read the same; other names are scripts there and script extensions here. */
static int regex_property(struct regex *r, size_t start, char letter) {
    static const char categories[] =
        " L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Cn Co Cs Any ";
    if (r->at == r->len || r->in[r->at] != '{') return regex_refuse(r, start, "a property without braces");
    r->at++;
    bool negated = letter == 'P';
    if (r->at < r->len && r->in[r->at] == '^') {
        negated = !negated;
        r->at++;
    }
    char name[34] = " ";
    size_t n = 1;
    while (r->at < r->len && n < 31 && r->in[r->at] != '}') {
        char c = r->in[r->at++];
        if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') && c != '_')
            return regex_refuse(r, start, "this property");
        name[n++] = c;
    }
    if (n == 1 || r->at == r->len || r->in[r->at++] != '}') return regex_refuse(r, start, "this property");
    memcpy(name + n, " ", 2);
    bool category = strstr(categories, name) != NULL;
    name[n] = 0;
    int rc = regex_puts(r, negated ? "\\P{" : "\\p{");
    if (!rc && !category) rc = regex_puts(r, "sc:");
    if (!rc) rc = regex_puts(r, name + 1);
    return rc ? rc : regex_puts(r, "}");
}

static int regex_escape(struct regex *r, bool in_class) {
    size_t start = r->at++;
    if (r->at == r->len) return regex_refuse(r, start, "a lone backslash");
    char c = r->in[r->at++];
    const char *as = NULL;
    switch (c) {
    case 's': as = in_class ? REGEX_SPACE : "[" REGEX_SPACE "]"; break;
    case 'S': as = in_class ? REGEX_NOT_SPACE : "[^" REGEX_SPACE "]"; break;
    case 'w': as = in_class ? REGEX_WORD : "[" REGEX_WORD "]"; break;
    case 'W': as = in_class ? NULL : "[^" REGEX_WORD "]"; break;
    case 'd': as = "\\p{Nd}"; break;
    case 'D': as = "\\P{Nd}"; break;
    case 'v': as = "\\x{b}"; break;
    case 'r': as = "\\r"; break;
    case 'n': as = "\\n"; break;
    case 't': as = "\\t"; break;
    case 'f': as = "\\f"; break;
    case 'a': as = "\\a"; break;
    case 'e': as = "\\e"; break;
    case 'A': as = in_class ? NULL : "\\A"; break;
    case 'z': as = in_class ? NULL : "\\z"; break;
    case 'x':
    case 'u': return regex_code_point(r, start, c);
    case 'p':
    case 'P': return regex_property(r, start, c);
    default:
        if ((unsigned char)c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))
            break;
        return regex_put(r, r->in + start, 2); /* escaped punctuation is itself in both */
    }
    return as ? regex_puts(r, as) : regex_refuse(r, start, "this escape");
}

static int regex_class(struct regex *r) {
    size_t start = r->at++, first;
    int rc = regex_puts(r, "[");
    if (r->at < r->len && r->in[r->at] == '^') {
        r->at++;
        if (!rc) rc = regex_puts(r, "^");
    }
    for (first = r->at; !rc;) {
        if (r->at == r->len) return regex_refuse(r, start, "an unfinished class");
        char c = r->in[r->at];
        if (c == ']' && r->at > first) break;
        if (c == ']') return regex_refuse(r, start, "an empty class");
        if (c == '[') return regex_refuse(r, r->at, "a class in a class");
        if (c == '&' && r->at + 1 < r->len && r->in[r->at + 1] == '&') return regex_refuse(r, r->at, "&&");
        if (c == '\\')
            rc = regex_escape(r, true);
        else
            rc = regex_put(r, r->in + r->at++, 1);
    }
    r->at++;
    return rc ? rc : regex_puts(r, "]");
}

static int regex_group(struct regex *r) {
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    const char *p = r->in + r->at;
    size_t left = r->len - r->at;
    if (left >= 4 && !memcmp(p, "(?i)", 4)) { /* elsewhere its reach over "|" differs */
        if (r->at) return regex_refuse(r, r->at, "(?i) past the beginning");
        r->at += 4;
        return regex_puts(r, "(?i)");
    }
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        size_t n = strlen(known[k]);
        if (left < n || memcmp(p, known[k], n)) continue;
        r->at += n;
        return regex_puts(r, known[k]);
    }
    if (left >= 2 && (p[1] == '?' || p[1] == '*')) return regex_refuse(r, r->at, "this group");
    r->at++;
    return regex_puts(r, "(?:"); /* captures are of no use to a split */
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
    return regex_put(r, r->in + start, r->at - start);
}

int regex_translate(const char *pattern, size_t len, char **out, size_t *n_out, struct rod_error *err) {
    struct regex r = {.in = pattern, .len = len, .err = err};
    int rc = regex_puts(&r, "");
    while (!rc && r.at < len) {
        switch (pattern[r.at]) {
        case '\\': rc = regex_escape(&r, false); break;
        case '[': rc = regex_class(&r); break;
        case '(': rc = regex_group(&r); break;
        case '{': rc = regex_interval(&r); break;
        default: rc = regex_put(&r, pattern + r.at++, 1);
        }
    }
    if (rc) {
        free(r.out);
        return rc;
    }
    *out = r.out;
    *n_out = r.n;
    return 0;
}
