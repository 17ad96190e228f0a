/* grammar_ir.h - what a regex, a schema and a grammar become: rules over bytes and characters, as one small tree.
 *
 * Ownership: an ir owns its arrays; nodes are named by index and may be shared. Threads: one at a time; pure.
 * Invariant: after a failure (memory, a limit, ir_fail) every constructor returns IR_NOTHING and ir->rc stays; so
 * parsers check once at the end, and their loops end because each step reads input.
 */
#ifndef GRAMMAR_IR_H
#define GRAMMAR_IR_H

#include "engine/rodimus.h"

#define IR_NO_LIMIT UINT32_MAX
enum { IR_MAX_REPEAT = 65535 };

enum ir_kind { IR_FAIL, IR_EMPTY, IR_BYTES, IR_SET, IR_CAT, IR_ALT, IR_REP, IR_REF };
/* FAIL matches nothing, EMPTY the empty text. BYTES: bytes[a, a+b). SET: one character of ranges[a, a+b), as UTF-8.
 * CAT, ALT: nodes a and b; long lists lean to the left. REP: node a, min..max times. REF: rule a. */
struct ir_node {
    enum ir_kind kind;
    uint32_t a, b, min, max;
};
struct ir_range { /* characters, both ends included */
    uint32_t lo, hi;
};

struct ir {
    struct ir_node *nodes;
    struct ir_range *ranges;
    char *bytes;
    uint32_t *rules; /* the node of each rule; rule 0 is the whole */
    uint32_t n_nodes, n_ranges, n_bytes, n_rules;
    uint32_t cap_nodes, cap_ranges, cap_bytes, cap_rules;
    uint32_t json_char, json_value, json_ws, json_number; /* rules made once on demand; 0 = not yet */
    uint32_t tools, n_tools;                              /* calls: a rule for the arguments of each */
    char notes[2048];                                     /* what the text asks for and is not held: lines */
    const char *about;                                    /* what notes begin with; NULL: nothing */
    size_t n_notes;
    int rc;
    struct rod_error *err;
};

enum { IR_NOTHING = 0, IR_EMPTY_NODE = 1 }; /* nodes that always exist */

int ir_init(struct ir *ir, struct rod_error *err); /* with rule 0, which matches nothing yet */
void ir_fini(struct ir *ir);
/* The first failure counts. Returns IR_NOTHING. */
uint32_t ir_fail(struct ir *ir, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

uint32_t ir_no_memory(struct ir *ir);

/* A line for the notes; past their room, and if it stands there already, nothing. */
void ir_note(struct ir *ir, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* How far an ir is, to go back to: nothing that was made since may be named any more. A failure is forgotten. */
struct ir_mark {
    uint32_t n_nodes, n_ranges, n_bytes, n_rules, json_char, json_value, json_ws, json_number;
    size_t n_notes;
};
struct ir_mark ir_mark_of(const struct ir *ir);
void ir_go_back(struct ir *ir, const struct ir_mark *mark);

/* Whether a rule has a text that ends, once rules and nodes that were made since have their bodies; what is older has
 * one. */
bool ir_ends(struct ir *ir, uint32_t rule, uint32_t first_node, uint32_t first_rule);

uint32_t ir_bytes(struct ir *ir, const char *bytes, size_t n);
uint32_t ir_text(struct ir *ir, const char *text);
uint32_t ir_set(struct ir *ir, const struct ir_range *ranges, size_t n);
uint32_t ir_char(struct ir *ir, uint32_t lo, uint32_t hi);
uint32_t ir_cat(struct ir *ir, uint32_t a, uint32_t b);
uint32_t ir_alt(struct ir *ir, uint32_t a, uint32_t b);
uint32_t ir_rep(struct ir *ir, uint32_t a, uint32_t min, uint32_t max);
uint32_t ir_opt(struct ir *ir, uint32_t a);
uint32_t ir_ref(struct ir *ir, uint32_t rule);
uint32_t ir_rule(struct ir *ir); /* a new rule that matches nothing yet */

/* For the readers of patterns, which go on at *at. false: there is no such digit, or none at all. */
bool ir_read_hex(const char **at, const char *end, int n_digits, uint32_t *out);
bool ir_read_count(const char **at, const char *end, uint32_t *out); /* what is above 65535 stays above it */
/* In order and apart; returns how many are left. */
size_t ir_tidy(struct ir_range *ranges, size_t n);
/* Tidies them; what they lack of 0..last goes to out[n + 1]. Returns how many these are. */
size_t ir_negate(struct ir_range *ranges, size_t n, uint32_t last, struct ir_range *out);

/* grammar_regex.c. anywhere: found anywhere in the text (JSON Schema's meaning); else the whole text matches. */
uint32_t ir_regex(struct ir *ir, const char *pattern, size_t len, bool anywhere);

/* grammar_ebnf.c: fills rule 0 */
void ir_ebnf(struct ir *ir, const char *text, size_t len);

/* grammar_calls.c: fills rule 0 */
void ir_calls(struct ir *ir, const char *text, size_t len);

/* grammar_json.c: the parts of JSON that stand in every schema */
uint32_t ir_json_char(struct ir *ir); /* one character in a string */
uint32_t ir_json_string(struct ir *ir, uint32_t min, uint32_t max);
uint32_t ir_json_ws(struct ir *ir); /* white space between tokens, bounded */
uint32_t ir_json_number(struct ir *ir, bool integer);
/* A whole multiple of m, 1..1000; all: zero and negative ones, too. */
uint32_t ir_json_multiple(struct ir *ir, uint32_t m, bool all);
uint32_t ir_json_value(struct ir *ir);  /* any */
uint32_t ir_json_object(struct ir *ir); /* any */
uint32_t ir_json_array(struct ir *ir, uint32_t item, uint32_t min, uint32_t max);
/* A number between the bounds, in plain digits. Bounds: sign, digits, point, digits; NULL = none. strict: the bound
 * itself is outside. */
uint32_t ir_json_between(struct ir *ir, bool integer, const char *low, bool low_strict, const char *high,
                         bool high_strict);

/* grammar_text.c: texts of a node as they stand inside a JSON string, with escapes; and those of min..max characters
 * alone. The latter takes regexes and fails with "is too complex" where no rule can be made of them. */
uint32_t ir_escaped(struct ir *ir, uint32_t node);
uint32_t ir_limited(struct ir *ir, uint32_t node, uint32_t min, uint32_t max);

/* grammar_schema.c: fill rule 0. Arguments of a tool are an object. Weakened, a keyword that cannot be honoured is left
 * out and noted, and a schema that has none at fault is any JSON value; so only what is no JSON fails. */
enum ir_schema_use { IR_SCHEMA_TEXT, IR_SCHEMA_STRICT_ARGUMENTS, IR_SCHEMA_WEAK_ARGUMENTS };
void ir_schema(struct ir *ir, const char *text, size_t len, enum ir_schema_use use);
void ir_choice(struct ir *ir, const char *text, size_t len); /* a JSON array of strings */

#endif
