/* responses_lark.c - the grammars of custom tools: whether a regular expression is complete, and the one that a grammar
 * of Lark is, where no rule leads back to itself. Agents' grammars (a patch, a script) are such. */
#include "responses_parts.h"

#include <string.h>

enum { MAX_RULES = 128, MAX_DEPTH = 32, MAX_BYTES = 16384 };

/* ---- regular expressions ---- */

/* Behind the group's ( and ?, a name; else what stands there says nothing of where the group ends. NULL: damaged. */
static const char *skip_group_name(const char *at, const char *end) {
    if (at < end && *at == 'P') at++;
    if (at == end || *at != '<' || (end - at > 1 && strchr("=!", at[1]))) return at;
    for (at++; at < end && *at != '>'; at++)
        if (*at == '(' || *at == ')') return NULL;
    return at < end ? at : NULL;
}

/* Behind the class's [: its end. A ] that stands first is a character. NULL: it has none. */
static const char *skip_class(const char *at, const char *end) {
    if (at < end && *at == '^') at++;
    for (const char *first = at; at < end; at++) {
        if (*at == ']' && at > first) return at + 1;
        if (*at == '\\') at++;
    }
    return NULL;
}

bool responses_regex_whole(const char *pattern, size_t len) {
    const char *at = pattern, *end = at + len;
    size_t depth = 0;
    while (at && at < end) {
        const char c = *at++;
        if (c == '\\' && at++ == end) return false;
        if (c == '(') depth++;
        if (c == ')' && !depth--) return false;
        if (c == '[') at = skip_class(at, end);
        if (c == '(' && at < end && *at == '?') at = skip_group_name(at + 1, end);
    }
    return at && !depth;
}

/* ---- Lark ---- */

struct rule {
    const char *name, *body;
    size_t n_name, n_body;
};

struct lark {
    struct rule rules[MAX_RULES];
    size_t n;
    struct buf *out;
};

struct reader { /* of a body */
    const struct lark *lark;
    const char *at, *end;
    unsigned depth;
};

static size_t name_len(const char *at, const char *end) {
    size_t n = 0;
    while (at + n < end && (at[n] == '_' || (at[n] >= '0' && at[n] <= '9') || (at[n] >= 'a' && at[n] <= 'z') ||
                            (at[n] >= 'A' && at[n] <= 'Z')))
        n++;
    return n;
}

static const char *skip_blank(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    return at;
}

/* The body of the definition that the line begins; NULL: it begins none. */
static const char *begins_rule(const char *line, const char *end, struct rule *out) {
    while (line < end && (*line == '?' || *line == '!')) line++;
    out->name = line;
    out->n_name = name_len(line, end);
    const char *at = skip_blank(line + out->n_name, end);
    return out->n_name && at < end && *at == ':' ? at + 1 : NULL;
}

static const char *line_end(const char *at, const char *end) {
    const char *found = memchr(at, '\n', (size_t)(end - at));
    return found ? found : end;
}

/* Of the directives, an import of common terminals alone. */
static bool is_import(const char *line, const char *end) {
    static const char word[] = "%import common.";
    const size_t n = sizeof word - 1;
    if ((size_t)(end - line) < n || memcmp(line, word, n) != 0) return false;
    const char *at = skip_blank(line + n + name_len(line + n, end), end);
    return at == end || *at == '\r';
}

/* A line is a definition, goes on with the one before, or is an import. False: another directive, or too much. */
static bool take_rules(const char *text, size_t len, struct lark *out) {
    const char *const end = text + len;
    for (const char *line = text, *stop; line < end; line = stop + 1) {
        struct rule rule = {0};
        stop = line_end(line, end);
        const char *body = begins_rule(line, stop, &rule);
        if (*line == '%') {
            if (!is_import(line, stop)) return false;
        } else if (body) {
            if (out->n == MAX_RULES) return false;
            rule.body = body;
            rule.n_body = (size_t)(stop - body);
            out->rules[out->n++] = rule;
        } else if (out->n) {
            struct rule *last = &out->rules[out->n - 1];
            last->n_body = (size_t)(stop - last->body);
        } else if (skip_blank(line, stop) < stop && *line != '/') {
            return false;
        }
    }
    return out->n > 0;
}

/* Blanks, line breaks, comments and imports between definitions. */
static void skip(struct reader *r) {
    while (r->at < r->end) {
        const bool comment = *r->at == '%' || (r->end - r->at > 1 && r->at[0] == '/' && r->at[1] == '/');
        if (comment)
            r->at = line_end(r->at, r->end);
        else if (strchr(" \t\r\n", *r->at) && *r->at)
            r->at++;
        else
            return;
    }
}

static bool take(struct reader *r, char c) {
    skip(r);
    const bool is = r->at < r->end && *r->at == c;
    if (is) r->at++;
    return is;
}

/* One character of a string, as a regular expression has it. */
static bool put_char(struct reader *r) {
    static const char special[] = "\\.^$*+?()[]{}|/", escapes[] = "nrtf";
    struct buf *out = r->lark->out;
    char c = *r->at++;
    if (c == '\\') {
        if (r->at == r->end) return false;
        c = *r->at++;
        if (c && strchr(escapes, c)) {
            buf_putc(out, '\\');
            buf_putc(out, c);
            return true;
        }
        if (c != '\\' && c != '"') return false;
    }
    if (c && strchr(special, c)) buf_putc(out, '\\');
    buf_putc(out, c);
    return c != 0;
}

/* Behind the quote. Flags and ranges are not read. */
static bool put_string(struct reader *r) {
    while (r->at < r->end && *r->at != '"' && *r->at != '\n')
        if (!put_char(r)) return false;
    if (!take(r, '"')) return false;
    return r->at == r->end || (*r->at != 'i' && *r->at != '.');
}

/* Behind the slash. */
static bool put_regex(struct reader *r) {
    struct buf *out = r->lark->out;
    const size_t from = out->len;
    for (; r->at < r->end && *r->at != '/' && *r->at != '\n'; r->at++) {
        if (*r->at == '\\' && r->end - r->at > 1) {
            if (r->at[1] != '/') buf_putc(out, '\\');
            r->at++;
        }
        buf_putc(out, *r->at);
    }
    if (r->at == r->end || *r->at != '/') return false;
    r->at++;
    const bool flags = name_len(r->at, r->end) > 0;
    return !flags && !out->failed && responses_regex_whole(out->data + from, out->len - from);
}

static bool put_choice(struct reader *r);

static bool put_common(const char *name, size_t len, struct buf *out) {
    static const char *const terminals[][2] = {{"LF", "\\n"},
                                               {"CR", "\\r"},
                                               {"NEWLINE", "(?:\\r?\\n)+"},
                                               {"DIGIT", "[0-9]"},
                                               {"INT", "[0-9]+"},
                                               {"LETTER", "[A-Za-z]"},
                                               {"WORD", "[A-Za-z]+"},
                                               {"WS_INLINE", "[ \\t]+"},
                                               {"WS", "[ \\t\\f\\r\\n]+"}};
    for (size_t i = 0; i < sizeof terminals / sizeof *terminals; i++) {
        if (strlen(terminals[i][0]) != len || memcmp(terminals[i][0], name, len) != 0) continue;
        buf_puts(out, terminals[i][1]);
        return true;
    }
    return false;
}

/* A rule that leads back to itself ends at the depth. */
static bool put_rule(const struct lark *lark, const char *name, size_t len, unsigned depth) {
    if (depth > MAX_DEPTH || lark->out->len > MAX_BYTES) return false;
    for (size_t i = 0; i < lark->n; i++) {
        const struct rule *rule = &lark->rules[i];
        if (rule->n_name != len || memcmp(rule->name, name, len) != 0) continue;
        struct reader body = {lark, rule->body, rule->body + rule->n_body, depth};
        if (!put_choice(&body)) return false;
        skip(&body);
        return body.at == body.end;
    }
    return put_common(name, len, lark->out);
}

static bool put_group(struct reader *r, char close) {
    if (++r->depth > MAX_DEPTH || !put_choice(r) || !take(r, close)) return false;
    r->depth--;
    return true;
}

/* What may stand before ?, * or +. */
static bool put_atom(struct reader *r) {
    const size_t n = name_len(r->at, r->end);
    if (take(r, '"')) return put_string(r);
    if (take(r, '(')) return put_group(r, ')');
    if (take(r, '/')) return put_regex(r);
    if (!n) return false;
    r->at += n;
    return put_rule(r->lark, r->at - n, n, r->depth + 1);
}

static bool put_item(struct reader *r) {
    struct buf *out = r->lark->out;
    const bool optional = take(r, '[');
    buf_puts(out, "(?:");
    if (out->len > MAX_BYTES || !(optional ? put_group(r, ']') : put_atom(r))) return false;
    buf_putc(out, ')');
    if (optional) buf_putc(out, '?');
    if (optional || r->at == r->end || !*r->at || !strchr("?*+", *r->at)) return r->at == r->end || *r->at != '~';
    buf_putc(out, *r->at++);
    return true;
}

static bool put_sequence(struct reader *r) {
    for (skip(r); r->at < r->end && *r->at && !strchr("|)]", *r->at); skip(r)) {
        if (r->end - r->at > 1 && r->at[0] == '-' && r->at[1] == '>') { /* another name of what stands before */
            r->at += 2;
            skip(r);
            r->at += name_len(r->at, r->end);
        } else if (!put_item(r)) {
            return false;
        }
    }
    return true;
}

static bool put_choice(struct reader *r) {
    buf_puts(r->lark->out, "(?:");
    do {
        if (!put_sequence(r)) return false;
    } while (take(r, '|') && (buf_putc(r->lark->out, '|'), true));
    buf_putc(r->lark->out, ')');
    return true;
}

bool responses_lark(const char *grammar, size_t len, struct buf *out) {
    struct lark lark = {.out = out};
    return take_rules(grammar, len, &lark) && put_rule(&lark, "start", 5, 0);
}
