/* grammar_text.c - texts inside JSON strings: escapes, and how many characters there are. */
#include "grammar_ir.h"
#include "engine/base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- escapes ---- */

static bool char_needs_escape(uint32_t c) { return c < 0x20 || c == '"' || c == '\\'; }

/* What a JSON string says with an escape. */
static size_t char_escape(uint32_t c, char out[8]) {
    static const char codes[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (size_t i = 0; i + 1 < sizeof codes; i += 2)
        if (c == (unsigned char)codes[i]) {
            out[0] = '\\';
            out[1] = codes[i + 1];
            return 2;
        }
    return (size_t)snprintf(out, 8, "\\u%04x", c);
}

static uint32_t escaped_bytes(struct ir *ir, struct ir_node n) {
    char *text = malloc((size_t)n.b * 6 + 1);
    size_t len = 0;
    if (!text) return ir_no_memory(ir);
    for (uint32_t i = 0; i < n.b; i++) {
        const unsigned char c = (unsigned char)ir->bytes[n.a + i];
        if (char_needs_escape(c))
            len += char_escape(c, text + len);
        else
            text[len++] = (char)c;
    }
    uint32_t out = ir_bytes(ir, text, len);
    free(text);
    return out;
}

static uint32_t escaped_set(struct ir *ir, struct ir_node n) {
    if (n.b == 1 && ir->ranges[n.a].lo == 0 && ir->ranges[n.a].hi == 0x10ffff) return ir_json_char(ir);
    struct ir_range *plain = malloc((n.b + 40) * sizeof *plain); /* each escaped character cuts one in two */
    size_t n_plain = 0;
    uint32_t out = IR_NOTHING;
    if (!plain) return ir_no_memory(ir);
    for (uint32_t i = 0; i < n.b && !ir->rc; i++) {
        const struct ir_range range = ir->ranges[n.a + i];
        uint32_t next = range.lo;
        for (uint32_t c = next; c <= range.hi && c <= '\\'; c++) {
            char text[8];
            if (!char_needs_escape(c)) continue;
            if (c > next) plain[n_plain++] = (struct ir_range){next, c - 1};
            out = ir_alt(ir, out, ir_bytes(ir, text, char_escape(c, text)));
            next = c + 1;
        }
        if (next <= range.hi) plain[n_plain++] = (struct ir_range){next, range.hi};
    }
    out = ir_alt(ir, ir_set(ir, plain, n_plain), out);
    free(plain);
    return out;
}

/* Marks what a node is made of, and the rules that it calls. */
static void escaped_reach(const struct ir *ir, uint32_t *stack, uint8_t *node_in, uint8_t *rule_in, uint32_t node) {
    uint32_t n = 0;
    node_in[node] = 1;
    stack[n++] = node;
    while (n) {
        const struct ir_node *at = &ir->nodes[stack[--n]];
        uint32_t next[2], n_next = 0;
        if (at->kind == IR_CAT || at->kind == IR_ALT || at->kind == IR_REP) next[n_next++] = at->a;
        if (at->kind == IR_CAT || at->kind == IR_ALT) next[n_next++] = at->b;
        if (at->kind == IR_REF && !rule_in[at->a]) {
            rule_in[at->a] = 1;
            next[n_next++] = ir->rules[at->a];
        }
        for (uint32_t i = 0; i < n_next; i++)
            if (!node_in[next[i]]) {
                node_in[next[i]] = 1;
                stack[n++] = next[i];
            }
    }
}

static uint32_t escaped_node(struct ir *ir, struct ir_node n, const uint32_t *of_node, const uint32_t *of_rule) {
    switch (n.kind) {
    case IR_FAIL: return IR_NOTHING;
    case IR_EMPTY: return IR_EMPTY_NODE;
    case IR_BYTES: return escaped_bytes(ir, n);
    case IR_SET: return escaped_set(ir, n);
    case IR_CAT: return ir_cat(ir, of_node[n.a], of_node[n.b]);
    case IR_ALT: return ir_alt(ir, of_node[n.a], of_node[n.b]);
    case IR_REP: return ir_rep(ir, of_node[n.a], n.min, n.max);
    case IR_REF: return ir_ref(ir, of_rule[n.a]);
    }
    return IR_NOTHING;
}

/* A node's parts have lower numbers than itself, so one pass in their order does it. */
uint32_t ir_escaped(struct ir *ir, uint32_t node) {
    if (ir->rc) return IR_NOTHING;
    const uint32_t n_nodes = ir->n_nodes, n_rules = ir->n_rules;
    uint32_t *of_node = calloc(n_nodes, sizeof *of_node), *of_rule = calloc(n_rules, sizeof *of_rule);
    uint32_t *stack = malloc(n_nodes * sizeof *stack);
    uint8_t *node_in = calloc(n_nodes, 1), *rule_in = calloc(n_rules, 1);
    uint32_t out = IR_NOTHING;
    if (of_node && of_rule && stack && node_in && rule_in) {
        escaped_reach(ir, stack, node_in, rule_in, node);
        for (uint32_t i = 0; i < n_rules; i++)
            if (rule_in[i]) of_rule[i] = ir_rule(ir);
        for (uint32_t i = 0; i < n_nodes && !ir->rc; i++)
            if (node_in[i]) of_node[i] = escaped_node(ir, ir->nodes[i], of_node, of_rule);
        for (uint32_t i = 0; i < n_rules && !ir->rc; i++)
            if (rule_in[i]) ir->rules[of_rule[i]] = of_node[ir->rules[i]];
        if (!ir->rc) out = of_node[node];
    } else {
        ir_no_memory(ir);
    }
    free(of_node);
    free(of_rule);
    free(stack);
    free(node_in);
    free(rule_in);
    return out;
}

/* ---- lengths ---- */

enum { MAX_SPLIT = 32, MAX_WORK = 1 << 14 };

struct length { /* of the texts of a node; IR_NO_LIMIT: any */
    uint32_t min, max;
};

struct limit {
    struct ir *ir;
    struct length *of; /* [nodes at the start] */
    uint32_t work;
};

static uint32_t length_sum(uint32_t a, uint32_t b) {
    return a == IR_NO_LIMIT || b == IR_NO_LIMIT || a > IR_NO_LIMIT - 1 - b ? IR_NO_LIMIT : a + b;
}
static uint32_t length_product(uint32_t a, uint32_t n) {
    if (a == 0 || n == 0) return 0;
    return a == IR_NO_LIMIT || n == IR_NO_LIMIT || (uint64_t)a * n >= IR_NO_LIMIT ? IR_NO_LIMIT : a * n;
}

static struct length length_of(const struct limit *l, uint32_t node) {
    const struct ir *ir = l->ir;
    const struct ir_node n = ir->nodes[node];
    const struct length a = n.kind >= IR_CAT && n.kind <= IR_REP ? l->of[n.a] : (struct length){0, 0};
    const struct length b = n.kind == IR_CAT || n.kind == IR_ALT ? l->of[n.b] : (struct length){0, 0};
    uint32_t count = 0;
    switch (n.kind) {
    case IR_BYTES:
        for (uint32_t i = 0; i < n.b; i++) count += (ir->bytes[n.a + i] & 0xc0) != 0x80; /* a character's first byte */
        return (struct length){count, count};
    case IR_SET: return (struct length){1, 1};
    case IR_CAT: return (struct length){length_sum(a.min, b.min), length_sum(a.max, b.max)};
    case IR_ALT: return (struct length){a.min < b.min ? a.min : b.min, a.max > b.max ? a.max : b.max};
    case IR_REP: return (struct length){length_product(a.min, n.min), length_product(a.max, n.max)};
    case IR_REF: return (struct length){0, IR_NO_LIMIT};
    case IR_FAIL:
    case IR_EMPTY: break;
    }
    return (struct length){0, 0};
}

static uint32_t less(uint32_t a, uint32_t b) { return a == IR_NO_LIMIT ? a : a > b ? a - b : 0; }

static uint32_t limited(struct limit *l, uint32_t node, uint32_t min, uint32_t max);

/* One part's length is taken from what the other may have; where both vary, for each length of the one, up to a number:
 * what is longer is left out. */
static uint32_t limited_pair(struct limit *l, struct ir_node n, uint32_t min, uint32_t max) {
    struct ir *ir = l->ir;
    const struct length a = l->of[n.a], b = l->of[n.b];
    const bool by_a = a.max - a.min <= b.max - b.min;
    const struct length one = by_a ? a : b;
    const uint32_t all = one.max < max ? one.max : max, most = all - one.min > MAX_SPLIT ? one.min + MAX_SPLIT : all;
    uint32_t out = IR_NOTHING;
    for (uint32_t k = one.min; k <= most && !ir->rc; k++) {
        const uint32_t mine = limited(l, by_a ? n.a : n.b, k, k);
        if (mine == IR_NOTHING) continue;
        const uint32_t other = limited(l, by_a ? n.b : n.a, less(min, k), less(max, k));
        out = ir_alt(ir, out, by_a ? ir_cat(ir, mine, other) : ir_cat(ir, other, mine));
    }
    return out == IR_NOTHING && most < all ? ir_fail(ir, ROD_EINVALID, "is too complex") : out;
}

static uint32_t limited(struct limit *l, uint32_t node, uint32_t min, uint32_t max) {
    struct ir *ir = l->ir;
    const struct ir_node n = ir->nodes[node];
    const struct length of = l->of[node];
    if (of.min >= min && of.max <= max) return node;
    if (of.max < min || of.min > max || ir->rc) return IR_NOTHING;
    if (++l->work > MAX_WORK) return ir_fail(ir, ROD_EINVALID, "is too complex");
    if (n.kind == IR_ALT) return ir_alt(ir, limited(l, n.a, min, max), limited(l, n.b, min, max));
    if (n.kind == IR_CAT) return limited_pair(l, n, min, max);
    const struct length each = n.kind == IR_REP ? l->of[n.a] : (struct length){0, 1};
    if (each.min != each.max || each.min == 0) return ir_fail(ir, ROD_EINVALID, "is too complex");
    const uint32_t from = (min + each.min - 1) / each.min, to = max == IR_NO_LIMIT ? max : max / each.min;
    const uint32_t least = from > n.min ? from : n.min, most = to < n.max ? to : n.max;
    return least <= most ? ir_rep(ir, n.a, least, most) : (uint32_t)IR_NOTHING;
}

uint32_t ir_limited(struct ir *ir, uint32_t node, uint32_t min, uint32_t max) {
    if (ir->rc || (min == 0 && max == IR_NO_LIMIT)) return node;
    struct limit l = {.ir = ir, .of = calloc(ir->n_nodes, sizeof *l.of)};
    if (!l.of) return ir_no_memory(ir);
    const uint32_t n_nodes = ir->n_nodes;
    for (uint32_t i = 0; i < n_nodes; i++) l.of[i] = length_of(&l, i);
    const uint32_t out = limited(&l, node, min, max);
    free(l.of);
    return out;
}
