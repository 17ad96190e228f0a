/* grammar_regex.c - regular expressions: what ECMAScript and Python agree on, without what no automaton can do (back
 * references, look-around) and without flags.
 *
 * \d \w \s are ASCII, as in ECMAScript; \D \W \S and a negated class that names one of the six stay inside ASCII, so
 * that what is written matches in a dialect that reads them as Unicode, too. Lazy quantifiers match what greedy ones
 * do. */
#include "grammar_ir.h"
#include "engine/base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NESTING = 64, MAX_RANGES = 256 };

struct regex {
    struct ir *ir;
    const char *at, *begin, *end;
    bool anywhere;
    int depth;
};

struct set {
    struct ir_range r[MAX_RANGES];
    size_t n;
    bool ascii; /* names a class whose meaning differs beyond ASCII */
};

static uint32_t regex_fail(struct regex *x, const char *what) {
    return ir_fail(x->ir, ROD_EINVALID, "has, at byte %zu of its pattern, %s", (size_t)(x->at - x->begin), what);
}

/* ---- sets of characters ---- */

static void set_add(struct regex *x, struct set *s, uint32_t lo, uint32_t hi) {
    if (s->n == MAX_RANGES) {
        regex_fail(x, "a class of too many characters");
        return;
    }
    s->r[s->n++] = (struct ir_range){lo, hi};
}

static void set_negate(struct regex *x, struct set *s, uint32_t last) {
    struct ir_range out[MAX_RANGES + 1];
    s->n = ir_negate(s->r, s->n, last, out);
    if (s->n > MAX_RANGES) {
        regex_fail(x, "a class of too many characters");
        s->n = 0;
    }
    memcpy(s->r, out, s->n * sizeof *out);
}

static uint32_t regex_of_set(struct regex *x, struct set *s) { return ir_set(x->ir, s->r, ir_tidy(s->r, s->n)); }

/* \d \w \s and their opposites */
static bool set_shorthand(struct regex *x, struct set *s, char c) {
    struct set named = {0};
    switch (c | 0x20) {
    case 'd': set_add(x, &named, '0', '9'); break;
    case 'w':
        set_add(x, &named, '0', '9');
        set_add(x, &named, 'A', 'Z');
        set_add(x, &named, '_', '_');
        set_add(x, &named, 'a', 'z');
        break;
    case 's':
        set_add(x, &named, 9, 13);
        set_add(x, &named, ' ', ' ');
        break;
    default: return false;
    }
    if (!(c & 0x20)) {
        if ((c | 0x20) == 's') set_add(x, &named, 0x1c, 0x1f); /* Python's \s has these */
        set_negate(x, &named, 0x7f);
    }
    for (size_t i = 0; i < named.n; i++) set_add(x, s, named.r[i].lo, named.r[i].hi);
    s->ascii = true;
    return true;
}

static uint32_t regex_one_char(struct regex *x, uint32_t c) { return ir_char(x->ir, c, c); }

/* ---- characters and classes ---- */

static uint32_t regex_next_char(struct regex *x) {
    size_t n;
    uint32_t c = utf8_decode(x->at, &n);
    x->at += n;
    return c;
}

static bool regex_read_hex(struct regex *x, int n_digits, uint32_t *out) {
    if (!ir_read_hex(&x->at, x->end, n_digits, out))
        regex_fail(x, "an escape with too few hexadecimal digits");
    else if (*out > 0x10ffff || (*out >= 0xd800 && *out <= 0xdfff))
        regex_fail(x, "an escape that is not a character");
    return !x->ir->rc;
}

/* After the backslash: a single character. false: the error is set. */
static bool regex_read_escape(struct regex *x, uint32_t *out) {
    static const char codes[] = "n\nr\rt\tf\fv\v";
    uint32_t c = regex_next_char(x);
    for (size_t i = 0; i + 1 < sizeof codes; i += 2)
        if (c == (unsigned char)codes[i]) {
            *out = (unsigned char)codes[i + 1];
            return true;
        }
    if (c == 'x') return regex_read_hex(x, 2, out);
    if (c == 'u') return regex_read_hex(x, 4, out);
    bool word = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    if (word || c == 0) {
        regex_fail(x, "an escape that is not supported");
        return false;
    }
    *out = c;
    return true;
}

/* One end of a range in a class. *single false: a shorthand, which was added. */
static bool regex_class_char(struct regex *x, struct set *s, uint32_t *c, bool *single) {
    *single = true;
    if (x->at >= x->end) {
        regex_fail(x, "a class without its ]");
        return false;
    }
    *c = regex_next_char(x);
    if (*c != '\\') return true;
    if (x->at >= x->end) {
        regex_fail(x, "a backslash at the end");
        return false;
    }
    if (set_shorthand(x, s, *x->at)) {
        x->at++;
        *single = false;
        return true;
    }
    if (*x->at == 'b') {
        x->at++;
        *c = '\b';
        return true;
    }
    return regex_read_escape(x, c);
}

/* After the [ */
static uint32_t regex_parse_class(struct regex *x) {
    struct set s = {0};
    bool negated = x->at < x->end && *x->at == '^', first = true;
    if (negated) x->at++;
    if (x->at < x->end && *x->at == ']')
        return regex_fail(x, "a class that begins with ], which dialects read differently");
    for (; !x->ir->rc; first = false) {
        uint32_t lo, hi;
        bool single;
        if (!first && x->at < x->end && *x->at == ']') break;
        if (!regex_class_char(x, &s, &lo, &single)) return IR_NOTHING;
        if (!single) continue;
        hi = lo;
        if (x->end - x->at >= 2 && x->at[0] == '-' && x->at[1] != ']') {
            x->at++;
            if (!regex_class_char(x, &s, &hi, &single)) return IR_NOTHING;
            if (!single || hi < lo) return regex_fail(x, "a range in a class whose ends are not in order");
        }
        set_add(x, &s, lo, hi);
    }
    if (x->ir->rc) return IR_NOTHING;
    x->at++;
    if (negated) set_negate(x, &s, s.ascii ? 0x7f : 0x10ffff);
    return regex_of_set(x, &s);
}

static uint32_t regex_any_but_newline(struct regex *x) {
    static const struct ir_range set[] = {{0, 9}, {11, 12}, {14, 0x2027}, {0x202a, 0x10ffff}};
    return ir_set(x->ir, set, 4);
}

/* ---- expressions ---- */

static uint32_t regex_parse_alternatives(struct regex *x, bool top);

static bool regex_skip(struct regex *x, const char *text) {
    size_t n = strlen(text);
    if ((size_t)(x->end - x->at) < n || memcmp(x->at, text, n) != 0) return false;
    x->at += n;
    return true;
}

static uint32_t regex_parse_group(struct regex *x) {
    if (++x->depth > MAX_NESTING) return regex_fail(x, "groups nested too deep");
    if (regex_skip(x, "?")) {
        bool named =
            regex_skip(x, "P<") || (x->end - x->at >= 2 && x->at[0] == '<' && x->at[1] != '=' && x->at[1] != '!');
        if (named) {
            while (x->at < x->end && *x->at != '>') x->at++;
            if (!regex_skip(x, ">")) return regex_fail(x, "a group whose name has no >");
        } else if (!regex_skip(x, ":")) {
            return regex_fail(x, "a group of a kind that is not supported (look-around or flags)");
        }
    }
    uint32_t inner = regex_parse_alternatives(x, false);
    if (!regex_skip(x, ")")) return regex_fail(x, "a group without its )");
    x->depth--;
    return inner;
}

/* {,3} and {,} are counts in Python and text elsewhere. */
static bool regex_dialects_differ(const struct regex *x) {
    const char *at = x->at + 1;
    if (at >= x->end || *at++ != ',') return false;
    while (at < x->end && *at >= '0' && *at <= '9') at++;
    return at < x->end && *at == '}';
}

static bool regex_read_counts(struct regex *x, uint32_t *min, uint32_t *max);

static uint32_t regex_parse_atom(struct regex *x) {
    uint32_t min, max;
    if (regex_skip(x, "(")) return regex_parse_group(x);
    if (regex_skip(x, "[")) return regex_parse_class(x);
    if (regex_skip(x, ".")) return regex_any_but_newline(x);
    if (regex_skip(x, "\\")) {
        struct set s = {0};
        uint32_t c;
        if (x->at >= x->end) return regex_fail(x, "a backslash at the end");
        if (set_shorthand(x, &s, *x->at)) {
            x->at++;
            return regex_of_set(x, &s);
        }
        return regex_read_escape(x, &c) ? regex_one_char(x, c) : (uint32_t)IR_NOTHING;
    }
    if (strchr("*+?", *x->at) || (*x->at == '{' && regex_read_counts(x, &min, &max)))
        return regex_fail(x, "a quantifier without anything to repeat");
    if (x->ir->rc) return IR_NOTHING;
    if (*x->at == '^' || *x->at == '$') return regex_fail(x, "an anchor that is not at the end of an alternative");
    return regex_one_char(x, regex_next_char(x));
}

/* {m}, {m,}, {m,n}; a { that begins none of these is a character. */
static bool regex_read_counts(struct regex *x, uint32_t *min, uint32_t *max) {
    if (regex_dialects_differ(x)) {
        regex_fail(x, "a repetition without its lower bound, which dialects read differently");
        return false;
    }
    const char *begin = x->at++;
    bool ok = ir_read_count(&x->at, x->end, min);
    *max = *min;
    if (ok && regex_skip(x, ",") && !ir_read_count(&x->at, x->end, max)) *max = IR_NO_LIMIT;
    if (ok && regex_skip(x, "}")) {
        if (*min > IR_MAX_REPEAT || (*max != IR_NO_LIMIT && *max > IR_MAX_REPEAT))
            regex_fail(x, "a repetition of more than 65535");
        if (*max < *min) regex_fail(x, "a repetition whose bounds are not in order");
        return true;
    }
    x->at = begin;
    return false;
}

static uint32_t regex_parse_repeated(struct regex *x) {
    uint32_t atom = regex_parse_atom(x);
    for (bool repeated = false; x->at < x->end && !x->ir->rc; repeated = true) {
        uint32_t min = 0, max = IR_NO_LIMIT;
        if (*x->at == '*' || *x->at == '+' || *x->at == '?') {
            if (*x->at == '+') min = 1;
            if (*x->at == '?') max = 1;
            x->at++;
        } else if (*x->at != '{' || !regex_read_counts(x, &min, &max)) {
            break;
        }
        if (repeated) return regex_fail(x, "a quantifier after a quantifier");
        if (x->at < x->end && *x->at == '?') x->at++;
        atom = ir_rep(x->ir, atom, min, max);
    }
    return atom;
}

static uint32_t regex_anything(struct regex *x) { return ir_rep(x->ir, ir_char(x->ir, 0, 0x10ffff), 0, IR_NO_LIMIT); }

/* One alternative; at the top its anchors say whether text may come before and after. */
static uint32_t regex_parse_sequence(struct regex *x, bool top) {
    bool begins = top && (regex_skip(x, "^") || regex_skip(x, "\\A")), ends = false;
    uint32_t out = IR_EMPTY_NODE;
    while (x->at < x->end && *x->at != '|' && *x->at != ')' && !x->ir->rc) {
        if (top && (regex_skip(x, "$") || regex_skip(x, "\\Z") || regex_skip(x, "\\z"))) {
            ends = true;
            if (x->at < x->end && *x->at != '|') return regex_fail(x, "something after the anchor at the end");
            break;
        }
        out = ir_cat(x->ir, out, regex_parse_repeated(x));
    }
    if (top && x->anywhere && !begins) out = ir_cat(x->ir, regex_anything(x), out);
    if (top && x->anywhere && !ends) out = ir_cat(x->ir, out, regex_anything(x));
    return out;
}

static uint32_t regex_parse_alternatives(struct regex *x, bool top) {
    uint32_t out = regex_parse_sequence(x, top);
    while (!x->ir->rc && regex_skip(x, "|")) {
        uint32_t next = regex_parse_sequence(x, top);
        out = ir_alt(x->ir, out, next);
    }
    return out;
}

/* U+0000 as the escape that says it; a backslash before it says the same. */
static uint32_t regex_with_nul(struct ir *ir, const char *pattern, size_t len, bool anywhere) {
    char *text = malloc(len * 4);
    size_t n = 0;
    if (!text) return ir_no_memory(ir);
    for (size_t i = 0; i < len; i++) {
        const size_t step = pattern[i] == '\\' && i + 1 < len; /* what is escaped comes with it */
        i += step;
        if (pattern[i]) {
            memcpy(text + n, pattern + i - step, 1 + step);
            n += 1 + step;
        } else {
            memcpy(text + n, "\\x00", 4);
            n += 4;
        }
    }
    const uint32_t out = ir_regex(ir, text, n, anywhere);
    free(text);
    return out;
}

uint32_t ir_regex(struct ir *ir, const char *pattern, size_t len, bool anywhere) {
    struct regex x = {.ir = ir, .at = pattern, .begin = pattern, .end = pattern + len, .anywhere = anywhere};
    if (utf8_check(pattern, len) != len) return ir_fail(ir, ROD_EINVALID, "has a pattern that is not UTF-8 text");
    if (memchr(pattern, 0, len)) return regex_with_nul(ir, pattern, len, anywhere);
    uint32_t out = regex_parse_alternatives(&x, true);
    if (!ir->rc && x.at < x.end) return regex_fail(&x, "a ) without its group");
    return ir->rc ? (uint32_t)IR_NOTHING : out;
}
