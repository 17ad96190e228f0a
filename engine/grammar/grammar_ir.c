/* grammar_ir.c - the tree's arrays and constructors. */
#include "grammar_ir.h"
#include "engine/base/array.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ITEMS = 1 << 17, MAX_BYTES = 1 << 19 }; /* of each array, and of the bytes */

uint32_t ir_fail(struct ir *ir, int code, const char *format, ...) {
    if (ir->rc) return IR_NOTHING;
    char message[sizeof ir->err->message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    ir->rc = rod_fail(ir->err, code, "%s", message);
    return IR_NOTHING;
}

void ir_note(struct ir *ir, const char *format, ...) {
    char line[256];
    int at = ir->about ? snprintf(line, sizeof line - 1, "%.64s ", ir->about) : 0;
    va_list args;
    va_start(args, format);
    vsnprintf(line + at, sizeof line - 1 - (size_t)at, format, args);
    va_end(args);
    const size_t n = strlen(line);
    line[n] = '\n';
    line[n + 1] = 0;
    if (strstr(ir->notes, line) || n + 1 >= sizeof ir->notes - ir->n_notes) return;
    memcpy(ir->notes + ir->n_notes, line, n + 2);
    ir->n_notes += n + 1;
}

struct ir_mark ir_mark_of(const struct ir *ir) {
    return (struct ir_mark){ir->n_nodes,    ir->n_ranges, ir->n_bytes,     ir->n_rules, ir->json_char,
                            ir->json_value, ir->json_ws,  ir->json_number, ir->n_notes};
}

void ir_go_back(struct ir *ir, const struct ir_mark *mark) {
    assert(mark->n_nodes <= ir->n_nodes && mark->n_rules <= ir->n_rules);
    ir->n_nodes = mark->n_nodes;
    ir->n_ranges = mark->n_ranges;
    ir->n_bytes = mark->n_bytes;
    ir->n_rules = mark->n_rules;
    ir->json_char = mark->json_char;
    ir->json_value = mark->json_value;
    ir->json_ws = mark->json_ws;
    ir->json_number = mark->json_number;
    ir->n_notes = mark->n_notes;
    ir->notes[ir->n_notes] = 0;
    ir->rc = 0;
}

uint32_t ir_no_memory(struct ir *ir) {
    if (!ir->rc) ir->rc = rod_fail_no_memory(ir->err);
    return IR_NOTHING;
}

static bool ir_fits(struct ir *ir, uint32_t used, size_t n, size_t item_bytes) {
    const uint32_t most = item_bytes == 1 ? MAX_BYTES : MAX_ITEMS;
    if (!ir->rc && n > most - used)
        ir_fail(ir, ROD_EINVALID, "is too large: more than %u %s", most, item_bytes == 1 ? "bytes of text" : "parts");
    return !ir->rc;
}

/* Room for n more of them; false: the failure is set. */
#define IR_RESERVE(ir, what, n)                                                                                        \
    (ir_fits(ir, (ir)->n_##what, n, sizeof *(ir)->what) &&                                                             \
     (ARRAY_RESERVE((ir)->what, (ir)->cap_##what, (ir)->n_##what, n) || ir_no_memory(ir)))

static uint32_t ir_add_node(struct ir *ir, struct ir_node n) {
    if (!IR_RESERVE(ir, nodes, 1)) return IR_NOTHING;
    ir->nodes[ir->n_nodes] = n;
    return ir->n_nodes++;
}

int ir_init(struct ir *ir, struct rod_error *err) {
    *ir = (struct ir){.err = err};
    ir_add_node(ir, (struct ir_node){.kind = IR_FAIL});
    ir_add_node(ir, (struct ir_node){.kind = IR_EMPTY});
    ir_rule(ir);
    return ir->rc;
}

void ir_fini(struct ir *ir) {
    free(ir->nodes);
    free(ir->ranges);
    free(ir->bytes);
    free(ir->rules);
}

uint32_t ir_rule(struct ir *ir) {
    if (!IR_RESERVE(ir, rules, 1)) return 0;
    ir->rules[ir->n_rules] = IR_NOTHING;
    return ir->n_rules++;
}

uint32_t ir_bytes(struct ir *ir, const char *bytes, size_t n) {
    if (n == 0) return IR_EMPTY_NODE;
    if (!IR_RESERVE(ir, bytes, n)) return IR_NOTHING;
    memcpy(ir->bytes + ir->n_bytes, bytes, n);
    ir->n_bytes += (uint32_t)n;
    return ir_add_node(ir, (struct ir_node){.kind = IR_BYTES, .a = ir->n_bytes - (uint32_t)n, .b = (uint32_t)n});
}

uint32_t ir_text(struct ir *ir, const char *text) { return ir_bytes(ir, text, strlen(text)); }

uint32_t ir_set(struct ir *ir, const struct ir_range *ranges, size_t n) {
    if (n == 0) return IR_NOTHING;
    if (!IR_RESERVE(ir, ranges, n)) return IR_NOTHING;
    memcpy(ir->ranges + ir->n_ranges, ranges, n * sizeof *ranges);
    ir->n_ranges += (uint32_t)n;
    return ir_add_node(ir, (struct ir_node){.kind = IR_SET, .a = ir->n_ranges - (uint32_t)n, .b = (uint32_t)n});
}

uint32_t ir_char(struct ir *ir, uint32_t lo, uint32_t hi) {
    assert(lo <= hi && hi <= 0x10ffff);
    return ir_set(ir, &(struct ir_range){lo, hi}, 1);
}

uint32_t ir_cat(struct ir *ir, uint32_t a, uint32_t b) {
    if (a == IR_NOTHING || b == IR_NOTHING) return IR_NOTHING;
    assert(a < ir->n_nodes && b < ir->n_nodes);
    if (a == IR_EMPTY_NODE) return b;
    if (b == IR_EMPTY_NODE) return a;
    const struct ir_node x = ir->nodes[a], y = ir->nodes[b];
    if (x.kind == IR_BYTES && y.kind == IR_BYTES && x.a + x.b == y.a) /* words stay in one piece */
        return ir_add_node(ir, (struct ir_node){.kind = IR_BYTES, .a = x.a, .b = x.b + y.b});
    return ir_add_node(ir, (struct ir_node){.kind = IR_CAT, .a = a, .b = b});
}

uint32_t ir_alt(struct ir *ir, uint32_t a, uint32_t b) {
    if (a == IR_NOTHING || a == b) return b;
    if (b == IR_NOTHING) return a;
    assert(a < ir->n_nodes && b < ir->n_nodes);
    return ir_add_node(ir, (struct ir_node){.kind = IR_ALT, .a = a, .b = b});
}

uint32_t ir_rep(struct ir *ir, uint32_t a, uint32_t min, uint32_t max) {
    if (max == 0 || a == IR_EMPTY_NODE) return IR_EMPTY_NODE;
    if (a == IR_NOTHING) return min == 0 ? IR_EMPTY_NODE : IR_NOTHING;
    if (min == 1 && max == 1) return a;
    assert(ir->rc || (a < ir->n_nodes && min <= max));
    return ir_add_node(ir, (struct ir_node){.kind = IR_REP, .a = a, .min = min, .max = max});
}

uint32_t ir_opt(struct ir *ir, uint32_t a) { return ir_rep(ir, a, 0, 1); }

uint32_t ir_ref(struct ir *ir, uint32_t rule) {
    assert(ir->rc || rule < ir->n_rules);
    return ir_add_node(ir, (struct ir_node){.kind = IR_REF, .a = rule});
}

/* ---- for the readers of patterns ---- */

bool ir_read_hex(const char **at, const char *end, int n_digits, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < n_digits; i++, ++*at) {
        static const char digits[] = "0123456789abcdef";
        const char c = *at < end ? **at : 0, *digit = c ? strchr(digits, c >= 'A' && c <= 'F' ? c | 0x20 : c) : NULL;
        if (!digit) return false;
        *out = *out << 4 | (uint32_t)(digit - digits);
    }
    return true;
}

bool ir_read_count(const char **at, const char *end, uint32_t *out) {
    const char *begin = *at;
    for (*out = 0; *at < end && **at >= '0' && **at <= '9'; ++*at)
        if (*out <= IR_MAX_REPEAT) *out = *out * 10 + (uint32_t)(**at - '0');
    return *at > begin;
}

static int ranges_compare(const void *a, const void *b) {
    const struct ir_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

size_t ir_tidy(struct ir_range *r, size_t n) {
    size_t left = 0;
    if (n) qsort(r, n, sizeof *r, ranges_compare);
    for (size_t i = 0; i < n; i++) {
        if (!left || r[i].lo > r[left - 1].hi + 1)
            r[left++] = r[i];
        else if (r[i].hi > r[left - 1].hi)
            r[left - 1].hi = r[i].hi;
    }
    return left;
}

size_t ir_negate(struct ir_range *r, size_t n, uint32_t last, struct ir_range *out) {
    uint32_t next = 0;
    size_t n_out = 0;
    n = ir_tidy(r, n);
    for (size_t i = 0; i < n && r[i].lo <= last; i++) {
        if (r[i].lo > next) out[n_out++] = (struct ir_range){next, r[i].lo - 1};
        next = r[i].hi + 1;
    }
    if (next <= last) out[n_out++] = (struct ir_range){next, last};
    return n_out;
}

/* ---- whether a rule ends ---- */

enum { MAX_ENDS_WORK = 1 << 26 };

struct ends { /* since some node and rule */
    const struct ir *ir;
    uint32_t first_node, first_rule;
    bool *node, *rule;
};

static bool node_ends(const struct ends *e, uint32_t node) {
    return node < e->first_node ? node != IR_NOTHING : e->node[node - e->first_node];
}

static bool ends_now(const struct ends *e, const struct ir_node *n) {
    switch (n->kind) {
    case IR_FAIL: return false;
    case IR_EMPTY:
    case IR_BYTES:
    case IR_SET: return true;
    case IR_CAT: return node_ends(e, n->a) && node_ends(e, n->b);
    case IR_ALT: return node_ends(e, n->a) || node_ends(e, n->b);
    case IR_REP: return n->min == 0 || node_ends(e, n->a);
    case IR_REF: return n->a < e->first_rule || e->rule[n->a - e->first_rule];
    }
    return false;
}

/* The least solution; parts have lower numbers than what is made of them, so most of it takes one pass. */
static void ends_solve(struct ir *ir, struct ends *e) {
    uint64_t work = 0;
    for (bool changed = true; changed && !ir->rc;) {
        changed = false;
        work += ir->n_nodes - e->first_node + 1;
        if (work > MAX_ENDS_WORK) ir_fail(ir, ROD_EINVALID, "is too complex: its references recur in too many ways");
        for (uint32_t i = e->first_node; i < ir->n_nodes; i++) {
            bool *ends = &e->node[i - e->first_node];
            if (!*ends && ends_now(e, &ir->nodes[i])) *ends = changed = true;
        }
        for (uint32_t i = e->first_rule; i < ir->n_rules; i++) {
            bool *ends = &e->rule[i - e->first_rule];
            if (!*ends && node_ends(e, ir->rules[i])) *ends = changed = true;
        }
    }
}

bool ir_ends(struct ir *ir, uint32_t rule, uint32_t first_node, uint32_t first_rule) {
    if (ir->rc) return false;
    assert(rule >= first_rule && rule < ir->n_rules);
    struct ends e = {ir, first_node, first_rule, calloc(ir->n_nodes - first_node + 1, sizeof *e.node),
                     calloc(ir->n_rules - first_rule, sizeof *e.rule)};
    if (e.node && e.rule)
        ends_solve(ir, &e);
    else
        ir_no_memory(ir);
    const bool out = !ir->rc && e.rule[rule - first_rule];
    free(e.node);
    free(e.rule);
    return out;
}
