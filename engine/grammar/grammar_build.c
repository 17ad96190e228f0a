/* grammar_build.c - the tree becomes nodes, from the end to the beginning: each part is built before what follows it,
 * so a part's last nodes know where to go. A part that is repeated becomes a rule, so {1000} costs a thousand calls
 * and not a thousand copies. */
#include "grammar_internal.h"
#include "engine/base/array.h"
#include "engine/base/fail.h"
#include "engine/base/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RECURSION = 4000, MAX_SWEEP_NODES = 1 << 26 };

struct build {
    struct grammar *g;
    const struct ir *ir;
    uint32_t *rule_of;     /* [ir->n_nodes] the rule made of a repeated part, 0 = none */
    uint32_t *parts;       /* [n_rules] the part that a rule is made of */
    uint32_t *chain_nodes; /* [n_chains] the node that each stands behind */
    uint32_t cap_rules, cap_parts, cap_chain_nodes;
    int depth, rc;
    struct rod_error *err;
};

static uint32_t build_fail(struct build *b, int code, const char *message) {
    if (!b->rc) b->rc = rod_fail(b->err, code, "%s", message);
    return GRAM_FAIL_NODE;
}

static uint32_t build_too_large(struct build *b) {
    if (!b->rc)
        b->rc =
            rod_fail(b->err, ROD_EINVALID, "is too large: it needs more than %u nodes, one for most bytes of its text",
                     GRAMMAR_MAX_NODES);
    return GRAM_FAIL_NODE;
}

static uint32_t build_no_memory(struct build *b) {
    if (!b->rc) b->rc = rod_fail_no_memory(b->err);
    return GRAM_FAIL_NODE;
}

static uint32_t build_node(struct build *b, struct gram_node n) {
    struct grammar *g = b->g;
    if (b->rc) return GRAM_FAIL_NODE;
    if (g->n_nodes == GRAMMAR_MAX_NODES) return build_too_large(b);
    if (!ARRAY_RESERVE(g->nodes, g->cap_nodes, g->n_nodes, 1)) return build_no_memory(b);
    g->nodes[g->n_nodes] = n;
    return g->n_nodes++;
}

static uint32_t build_range(struct build *b, unsigned lo, unsigned hi, uint32_t next) {
    assert(lo <= hi && hi <= UINT8_MAX);
    if (next == GRAM_FAIL_NODE) return GRAM_FAIL_NODE;
    return build_node(b, (struct gram_node){.kind = GRAM_RANGE, .lo = (uint8_t)lo, .hi = (uint8_t)hi, .a = next});
}

static uint32_t build_split(struct build *b, uint32_t one, uint32_t other) {
    if (one == GRAM_FAIL_NODE || one == other) return other;
    if (other == GRAM_FAIL_NODE) return one;
    return build_node(b, (struct gram_node){.kind = GRAM_SPLIT, .a = one, .b = other});
}

/* Characters lo..hi of one length, whose bytes before the last `tail` ones are the same: one run of byte ranges. Others
 * are cut where a leading byte changes. */
static uint32_t build_utf8_run(struct build *b, uint32_t lo, uint32_t hi, uint32_t next) {
    char first[4], last[4];
    size_t n = utf8_encode(lo, first);
    utf8_encode(hi, last);
    for (size_t tail = 1; tail < n; tail++) {
        uint32_t mask = (1u << (6 * tail)) - 1;
        if ((lo & ~mask) == (hi & ~mask)) continue;
        if (lo & mask)
            return build_split(b, build_utf8_run(b, lo, lo | mask, next), build_utf8_run(b, (lo | mask) + 1, hi, next));
        if ((hi & mask) != mask)
            return build_split(b, build_utf8_run(b, lo, (hi & ~mask) - 1, next),
                               build_utf8_run(b, hi & ~mask, hi, next));
    }
    for (size_t i = n; i-- > 0;) next = build_range(b, (unsigned char)first[i], (unsigned char)last[i], next);
    return next;
}

static uint32_t build_characters(struct build *b, const struct ir_range *r, uint32_t next) {
    static const struct ir_range lengths[] = {
        {0, 0x7f}, {0x80, 0x7ff}, {0x800, 0xd7ff}, {0xe000, 0xffff}, {0x10000, 0x10ffff}};
    uint32_t out = GRAM_FAIL_NODE;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint32_t lo = r->lo > lengths[i].lo ? r->lo : lengths[i].lo, hi = r->hi < lengths[i].hi ? r->hi : lengths[i].hi;
        if (lo <= hi) out = build_split(b, out, build_utf8_run(b, lo, hi, next));
    }
    return out;
}

static uint32_t build_rule(struct build *b, uint32_t part) {
    struct grammar *g = b->g;
    if (!ARRAY_RESERVE(g->rules, b->cap_rules, g->n_rules, 1) || !ARRAY_RESERVE(b->parts, b->cap_parts, g->n_rules, 1))
        return build_no_memory(b);
    g->rules[g->n_rules] = GRAM_FAIL_NODE;
    b->parts[g->n_rules] = part;
    return g->n_rules++;
}

static uint32_t build_part(struct build *b, uint32_t part, uint32_t next);

static bool part_is_small(const struct ir *ir, const struct ir_node *n) {
    return n->kind == IR_REF || (n->kind == IR_BYTES && n->b == 1) ||
           (n->kind == IR_SET && n->b == 1 && ir->ranges[n->a].hi < 0x80);
}

/* One time of a repeated part. */
static uint32_t build_repeated(struct build *b, uint32_t part, uint32_t next) {
    if (part_is_small(b->ir, &b->ir->nodes[part])) return build_part(b, part, next);
    if (!b->rule_of[part]) b->rule_of[part] = build_rule(b, part);
    return build_node(b, (struct gram_node){.kind = GRAM_CALL, .a = b->rule_of[part], .b = next});
}

/* What stands behind node `at`, which one time of a repeated part, the node `once`, leads to. A node that stands behind
 * several parts says it of the first: the other ones do without. */
static void build_chain(struct build *b, uint32_t at, uint32_t once, uint32_t least, uint32_t most, uint32_t follow) {
    struct grammar *g = b->g;
    if (b->rc || once == GRAM_FAIL_NODE || at == GRAM_END_NODE || at == GRAM_FAIL_NODE) return;
    const struct gram_node *n = &g->nodes[once];
    const struct gram_unit unit = {
        .rule = n->kind == GRAM_CALL ? n->a : GRAM_INLINE, .lo = n->kind == GRAM_CALL ? 0 : n->lo, .hi = n->hi};
    uint32_t u = 0;
    while (u < g->n_units && (g->units[u].rule != unit.rule || g->units[u].lo != unit.lo || g->units[u].hi != unit.hi))
        u++;
    if (u == GRAM_MAX_UNITS) return;
    if (u == g->n_units) g->units[g->n_units++] = unit;
    if (!ARRAY_RESERVE(g->chains, g->cap_chains, g->n_chains, 1) ||
        !ARRAY_RESERVE(b->chain_nodes, b->cap_chain_nodes, g->n_chains, 1)) {
        build_no_memory(b);
        return;
    }
    assert(g->n_chains < g->cap_chains && u < g->n_units && least <= most);
    b->chain_nodes[g->n_chains] = at;
    g->chains[g->n_chains++] = (struct gram_chain){u, least, most, follow};
}

static uint32_t build_repetition(struct build *b, const struct ir_node *n, uint32_t next) {
    if (n->min == 0 && n->max == 1) return build_split(b, build_part(b, n->a, next), next);
    uint32_t out = next;
    if (n->max == IR_NO_LIMIT) {
        uint32_t loop = build_node(b, (struct gram_node){.kind = GRAM_SPLIT, .b = next});
        uint32_t once = build_repeated(b, n->a, loop);
        if (b->rc) return GRAM_FAIL_NODE;
        b->g->nodes[loop].a = once;
        build_chain(b, loop, once, 0, IR_NO_LIMIT, next);
        out = loop;
    } else {
        for (uint32_t i = n->min; i < n->max && !b->rc; i++) {
            uint32_t once = build_repeated(b, n->a, out);
            build_chain(b, out, once, 0, i - n->min, next);
            out = build_split(b, once, next);
        }
    }
    const uint32_t more = n->max == IR_NO_LIMIT ? IR_NO_LIMIT : n->max - n->min;
    for (uint32_t i = 0; i < n->min && !b->rc; i++) {
        uint32_t once = build_repeated(b, n->a, out);
        build_chain(b, out, once, i, more == IR_NO_LIMIT ? IR_NO_LIMIT : i + more, next);
        out = once;
    }
    return out;
}

/* ---- words: alternatives of fixed text become a trie, so that few places stand where thousands may follow ---- */

struct word {
    const char *bytes;
    uint32_t len;
};

static int word_compare(const void *a, const void *b) {
    const struct word *x = a, *y = b;
    const int order = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

/* Different words in order, which agree up to `at`. */
static uint32_t build_trie(struct build *b, const struct word *words, uint32_t n, uint32_t at, uint32_t next) {
    const struct word first = words[0], last = words[n - 1];
    uint32_t fork = at, out = GRAM_FAIL_NODE, i = 0, to;
    if (++b->depth > MAX_RECURSION) return build_fail(b, ROD_EINVALID, "is nested too deep");
    while (fork < first.len && fork < last.len && first.bytes[fork] == last.bytes[fork]) fork++;
    if (first.len == fork) {
        out = next;
        i = 1;
    }
    for (; i < n && !b->rc; i = to) {
        const unsigned byte = (unsigned char)words[i].bytes[fork];
        for (to = i + 1; to < n && (unsigned char)words[to].bytes[fork] == byte;) to++;
        out = build_split(b, build_range(b, byte, byte, build_trie(b, words + i, to - i, fork + 1, next)), out);
    }
    while (fork-- > at) {
        const unsigned byte = (unsigned char)first.bytes[fork];
        out = build_range(b, byte, byte, out);
    }
    b->depth--;
    return out;
}

static uint32_t build_words(struct build *b, struct word *words, uint32_t n, uint32_t next) {
    uint32_t n_different = 0;
    if (n == 0) return GRAM_FAIL_NODE;
    qsort(words, n, sizeof *words, word_compare);
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || word_compare(&words[i], &words[n_different - 1])) words[n_different++] = words[i];
    return build_trie(b, words, n_different, 0, next);
}

static uint32_t build_alternatives(struct build *b, uint32_t part, uint32_t next) {
    const struct ir *ir = b->ir;
    uint32_t n = 1, n_words = 0, out = GRAM_FAIL_NODE;
    for (uint32_t at = part; ir->nodes[at].kind == IR_ALT; at = ir->nodes[at].a) n++;
    struct word *words = malloc(n * sizeof *words);
    if (!words) return build_no_memory(b);
    for (uint32_t at = part, one; n--; at = ir->nodes[at].a) {
        one = n ? ir->nodes[at].b : at;
        if (ir->nodes[one].kind == IR_BYTES)
            words[n_words++] = (struct word){ir->bytes + ir->nodes[one].a, ir->nodes[one].b};
        else
            out = build_split(b, build_part(b, one, next), out);
    }
    if (!b->rc) out = build_split(b, build_words(b, words, n_words, next), out);
    free(words);
    return out;
}

static uint32_t build_part(struct build *b, uint32_t part, uint32_t next) {
    const struct ir_node *n = &b->ir->nodes[part];
    if (b->rc || next == GRAM_FAIL_NODE) return GRAM_FAIL_NODE;
    if (++b->depth > MAX_RECURSION) return build_fail(b, ROD_EINVALID, "is nested too deep");
    uint32_t out = GRAM_FAIL_NODE;
    switch (n->kind) {
    case IR_FAIL: break;
    case IR_EMPTY: out = next; break;
    case IR_BYTES:
        out = next;
        for (uint32_t i = n->b; i-- > 0;) {
            unsigned byte = (unsigned char)b->ir->bytes[n->a + i];
            out = build_range(b, byte, byte, out);
        }
        break;
    case IR_SET:
        for (uint32_t i = 0; i < n->b; i++)
            out = build_split(b, out, build_characters(b, &b->ir->ranges[n->a + i], next));
        break;
    case IR_CAT:
        for (out = next; b->ir->nodes[part].kind == IR_CAT; part = b->ir->nodes[part].a)
            out = build_part(b, b->ir->nodes[part].b, out);
        out = build_part(b, part, out);
        break;
    case IR_ALT: out = build_alternatives(b, part, next); break;
    case IR_REP: out = build_repetition(b, n, next); break;
    case IR_REF: out = build_node(b, (struct gram_node){.kind = GRAM_CALL, .a = n->a, .b = next}); break;
    }
    assert(b->depth > 0 && out < b->g->n_nodes);
    b->depth--;
    return out;
}

/* ---- how deep the shortest way to the end goes ---- */

static unsigned node_depth(const struct grammar *g, const struct gram_node *n) {
    switch (n->kind) {
    case GRAM_END: return 0;
    case GRAM_RANGE: assert(n->a < g->n_nodes); return g->depth[n->a];
    case GRAM_SPLIT: return g->depth[n->a] < g->depth[n->b] ? g->depth[n->a] : g->depth[n->b];
    case GRAM_CALL: {
        unsigned inside = g->depth[g->rules[n->a]], after = g->depth[n->b];
        if (inside == UINT8_MAX || after == UINT8_MAX) return UINT8_MAX;
        if (n->b != GRAM_END_NODE) inside++; /* a call at a rule's end needs no frame */
        return inside > GRAMMAR_MAX_DEPTH ? UINT8_MAX : inside > after ? inside : after;
    }
    default: return UINT8_MAX;
    }
}

/* The least solution: from "no way" down, until nothing changes. A node mostly follows what it leads to. */
static int build_depths(struct grammar *g, struct rod_error *err) {
    g->depth = malloc(g->n_nodes);
    if (!g->depth) return rod_fail_no_memory(err);
    memset(g->depth, UINT8_MAX, g->n_nodes);
    uint64_t work = 0;
    for (bool changed = true; changed;) {
        changed = false;
        work += g->n_nodes;
        if (work > MAX_SWEEP_NODES)
            return rod_fail(err, ROD_EINVALID, "is too complex: its %u nodes call each other in too many ways",
                            g->n_nodes);
        for (uint32_t i = 0; i < g->n_nodes; i++) {
            unsigned depth = node_depth(g, &g->nodes[i]);
            if (depth >= g->depth[i]) continue;
            g->depth[i] = (uint8_t)depth;
            changed = true;
        }
    }
    if (g->depth[g->rules[0]] == UINT8_MAX) return rod_fail(err, ROD_EINVALID, "matches no finite text");
    return 0;
}

static void build_classes(struct grammar *g) {
    bool begins[257] = {true};
    for (uint32_t i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == GRAM_RANGE) begins[g->nodes[i].lo] = begins[g->nodes[i].hi + 1] = true;
    for (unsigned byte = 0; byte < 256; byte++) {
        if (begins[byte]) g->byte_of[g->n_classes++] = (uint8_t)byte;
        g->class_of[byte] = (uint8_t)(g->n_classes - 1);
    }
    assert(g->n_classes >= 1 && g->n_classes <= 256);
}

int gram_build(struct grammar *g, const struct ir *ir, struct rod_error *err) {
    struct build b = {.g = g, .ir = ir, .err = err};
    b.rule_of = calloc(ir->n_nodes, sizeof *b.rule_of);
    if (!b.rule_of) build_no_memory(&b);
    build_node(&b, (struct gram_node){.kind = GRAM_FAIL});
    build_node(&b, (struct gram_node){.kind = GRAM_END});
    for (uint32_t i = 0; !b.rc && i < ir->n_rules; i++) build_rule(&b, ir->rules[i]);
    for (uint32_t i = 0; !b.rc && i < g->n_rules; i++) { /* more come while they are built */
        uint32_t first = build_part(&b, b.parts[i], GRAM_END_NODE);
        if (!b.rc) g->rules[i] = first;
    }
    if (!b.rc) {
        g->chain_at = calloc(g->n_nodes, sizeof *g->chain_at);
        if (!g->chain_at) build_no_memory(&b);
    }
    for (uint32_t i = 0; !b.rc && i < g->n_chains; i++)
        if (!g->chain_at[b.chain_nodes[i]]) g->chain_at[b.chain_nodes[i]] = i + 1;
    free(b.chain_nodes);
    free(b.parts);
    free(b.rule_of);
    if (!b.rc) b.rc = build_depths(g, err);
    if (!b.rc) b.rc = gram_check_places(g, err);
    if (!b.rc) build_classes(g);
    return b.rc;
}
