/* grammar_ebnf.c - grammars in the GBNF dialect of EBNF: rules `name ::= ...`, the whole is `root`.
 *
 *   "text" with \n \r \t \" \\ \xHH \uHHHH, [a-z] and [^a-z] with the same escapes, `.` any character, ( ), |, * + ?
 *   {m} {m,} {m,n}, # to the end of the line. Names: letters, digits, - and _. White space and line breaks separate and
 *   mean nothing else: a rule ends where the next one's `name ::=` begins. */
#include "grammar_ir.h"
#include "engine/base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NESTING = 64, MAX_NAMES = 1024, MAX_RANGES = 256 };

struct name {
    const char *text;
    size_t len;
    bool defined;
};

struct ebnf {
    struct ir *ir;
    const char *at, *begin, *end;
    struct name *names; /* names[i] is rule i; names[0] is root */
    size_t n_names;
    int depth;
};

static uint32_t ebnf_fail(struct ebnf *g, const char *what) {
    uint32_t line = 1;
    for (const char *p = g->begin; p < g->at; p++) line += *p == '\n';
    return ir_fail(g->ir, ROD_EINVALID, "has, in line %u, %s", line, what);
}

static void ebnf_skip_space(struct ebnf *g) {
    for (; g->at < g->end; g->at++) {
        if (*g->at == '#')
            while (g->at < g->end && *g->at != '\n') g->at++;
        if (g->at == g->end || !strchr(" \t\r\n", *g->at)) return;
    }
}

static bool ebnf_skip(struct ebnf *g, char c) {
    if (g->at >= g->end || *g->at != c) return false;
    g->at++;
    return true;
}

static bool ebnf_is_name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static size_t ebnf_name_len(const struct ebnf *g) {
    size_t n = 0;
    while (g->at + n < g->end && ebnf_is_name_char(g->at[n])) n++;
    return n;
}

/* Is the name here the head of the next rule? */
static bool ebnf_at_rule(const struct ebnf *g) {
    struct ebnf ahead = *g;
    ahead.at += ebnf_name_len(g);
    if (ahead.at == g->at) return false;
    ebnf_skip_space(&ahead);
    return ahead.end - ahead.at >= 3 && memcmp(ahead.at, "::=", 3) == 0;
}

static uint32_t ebnf_rule_of(struct ebnf *g, const char *text, size_t len) {
    for (size_t i = 0; i < g->n_names; i++)
        if (g->names[i].len == len && memcmp(g->names[i].text, text, len) == 0) return (uint32_t)i;
    if (g->n_names == MAX_NAMES) return ebnf_fail(g, "too many rules");
    uint32_t rule = ir_rule(g->ir);
    if (g->ir->rc) return 0;
    g->names[g->n_names++] = (struct name){text, len, false};
    return rule;
}

/* A character of a literal or class, escapes read. false: the error is set. */
static bool ebnf_read_char(struct ebnf *g, uint32_t *out) {
    size_t n;
    if (g->at >= g->end) {
        ebnf_fail(g, "a literal or class without its end");
        return false;
    }
    *out = utf8_decode(g->at, &n);
    g->at += n;
    if (*out != '\\') return true;
    char c = g->at < g->end ? *g->at++ : 0;
    static const char codes[] = "n\nr\rt\t";
    for (size_t i = 0; i + 1 < sizeof codes; i += 2)
        if (c == codes[i]) {
            *out = (unsigned char)codes[i + 1];
            return true;
        }
    int n_digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (n_digits == 0) {
        if (c == 0 || !strchr("\\\"[]-^", c)) {
            ebnf_fail(g, "an escape that is not known");
            return false;
        }
        *out = (unsigned char)c;
        return true;
    }
    if (!ir_read_hex(&g->at, g->end, n_digits, out)) {
        g->at += g->at < g->end;
        ebnf_fail(g, "an escape with too few hexadecimal digits");
        return false;
    }
    if (*out <= 0x10ffff && (*out < 0xd800 || *out > 0xdfff)) return true;
    ebnf_fail(g, "an escape that is not a character");
    return false;
}

static uint32_t ebnf_parse_literal(struct ebnf *g) {
    uint32_t out = IR_EMPTY_NODE;
    while (!g->ir->rc && !ebnf_skip(g, '"')) {
        char bytes[4];
        uint32_t c;
        if (!ebnf_read_char(g, &c)) return IR_NOTHING;
        out = ir_cat(g->ir, out, ir_bytes(g->ir, bytes, utf8_encode(c, bytes)));
    }
    return out;
}

static uint32_t ebnf_parse_class(struct ebnf *g) {
    struct ir_range r[MAX_RANGES], out[MAX_RANGES + 1];
    size_t n = 0;
    bool negated = ebnf_skip(g, '^');
    while (!g->ir->rc && !ebnf_skip(g, ']')) {
        if (n == MAX_RANGES) return ebnf_fail(g, "a class of too many characters");
        if (!ebnf_read_char(g, &r[n].lo)) return IR_NOTHING;
        r[n].hi = r[n].lo;
        if (g->end - g->at >= 2 && g->at[0] == '-' && g->at[1] != ']') {
            g->at++;
            if (!ebnf_read_char(g, &r[n].hi)) return IR_NOTHING;
            if (r[n].hi < r[n].lo) return ebnf_fail(g, "a range whose ends are not in order");
        }
        n++;
    }
    if (!negated) return ir_set(g->ir, r, n);
    return ir_set(g->ir, out, ir_negate(r, n, 0x10ffff, out));
}

static uint32_t ebnf_parse_alternatives(struct ebnf *g);

static uint32_t ebnf_parse_atom(struct ebnf *g) {
    if (ebnf_skip(g, '"')) return ebnf_parse_literal(g);
    if (ebnf_skip(g, '[')) return ebnf_parse_class(g);
    if (ebnf_skip(g, '.')) return ir_char(g->ir, 0, 0x10ffff);
    if (ebnf_skip(g, '(')) {
        if (++g->depth > MAX_NESTING) return ebnf_fail(g, "groups nested too deep");
        uint32_t inner = ebnf_parse_alternatives(g);
        ebnf_skip_space(g);
        if (!ebnf_skip(g, ')')) return ebnf_fail(g, "a group without its )");
        g->depth--;
        return inner;
    }
    size_t n = ebnf_name_len(g);
    if (n == 0) return ebnf_fail(g, "something that is not a literal, class, group or name");
    uint32_t rule = ebnf_rule_of(g, g->at, n);
    g->at += n;
    return ir_ref(g->ir, rule);
}

static bool ebnf_read_count(struct ebnf *g, uint32_t *out) {
    ebnf_skip_space(g);
    const bool any = ir_read_count(&g->at, g->end, out);
    ebnf_skip_space(g);
    return any;
}

static uint32_t ebnf_parse_repeated(struct ebnf *g) {
    uint32_t atom = ebnf_parse_atom(g);
    for (ebnf_skip_space(g); g->at < g->end && !g->ir->rc; ebnf_skip_space(g)) {
        uint32_t min = 0, max = IR_NO_LIMIT;
        if (ebnf_skip(g, '+')) {
            min = 1;
        } else if (ebnf_skip(g, '?')) {
            max = 1;
        } else if (ebnf_skip(g, '{')) {
            if (!ebnf_read_count(g, &min)) return ebnf_fail(g, "a repetition without a count");
            max = min;
            if (ebnf_skip(g, ',') && !ebnf_read_count(g, &max)) max = IR_NO_LIMIT;
            if (!ebnf_skip(g, '}') || max < min) return ebnf_fail(g, "a repetition that is not {m}, {m,} or {m,n}");
            if (min > IR_MAX_REPEAT || (max != IR_NO_LIMIT && max > IR_MAX_REPEAT))
                return ebnf_fail(g, "a repetition of more than 65535");
        } else if (!ebnf_skip(g, '*')) {
            break;
        }
        atom = ir_rep(g->ir, atom, min, max);
    }
    return atom;
}

static uint32_t ebnf_parse_sequence(struct ebnf *g) {
    uint32_t out = IR_EMPTY_NODE;
    for (ebnf_skip_space(g); g->at < g->end && *g->at != '|' && *g->at != ')' && !g->ir->rc && !ebnf_at_rule(g);
         ebnf_skip_space(g))
        out = ir_cat(g->ir, out, ebnf_parse_repeated(g));
    return out;
}

static uint32_t ebnf_parse_alternatives(struct ebnf *g) {
    uint32_t out = ebnf_parse_sequence(g);
    while (!g->ir->rc && ebnf_skip(g, '|')) {
        uint32_t next = ebnf_parse_sequence(g);
        out = ir_alt(g->ir, out, next);
    }
    return out;
}

static void ebnf_parse_rules(struct ebnf *g) {
    for (ebnf_skip_space(g); g->at < g->end && !g->ir->rc; ebnf_skip_space(g)) {
        size_t n = ebnf_name_len(g);
        if (n == 0 || !ebnf_at_rule(g)) {
            ebnf_fail(g, "something that is not a rule `name ::= ...`");
            return;
        }
        uint32_t rule = ebnf_rule_of(g, g->at, n);
        g->at += n;
        ebnf_skip_space(g);
        g->at += 3;
        if (g->ir->rc) return;
        if (g->names[rule].defined) {
            ebnf_fail(g, "a rule whose name is taken");
            return;
        }
        g->names[rule].defined = true;
        uint32_t body = ebnf_parse_alternatives(g);
        if (!g->ir->rc) g->ir->rules[rule] = body;
    }
    for (size_t i = 0; i < g->n_names && !g->ir->rc; i++)
        if (!g->names[i].defined)
            ir_fail(g->ir, ROD_EINVALID, "has no rule named %.*s", (int)(g->names[i].len < 60 ? g->names[i].len : 60),
                    g->names[i].text);
}

void ir_ebnf(struct ir *ir, const char *text, size_t len) {
    struct ebnf g = {.ir = ir, .at = text, .begin = text, .end = text + len};
    if (utf8_check(text, len) != len || memchr(text, 0, len)) {
        ir_fail(ir, ROD_EINVALID, "is not UTF-8 text");
        return;
    }
    g.names = calloc(MAX_NAMES, sizeof *g.names);
    if (!g.names) {
        ir_no_memory(ir);
        return;
    }
    g.names[g.n_names++] = (struct name){"root", 4, false};
    ebnf_parse_rules(&g);
    free(g.names);
}
