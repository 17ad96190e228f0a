/* grammar_places.c - how many places stand in one state, as far as the nodes alone say it.
 *
 * A state holds up to GRAMMAR_MAX_PLACES places. A choice of more alternatives than that, a key of 700 optional
 * properties for one, would be refused when a walk comes to it, in the middle of an answer; so it is looked for here.
 * What depends on the text so far, as in .*[a-m].{200}, only a walk can find.
 *
 * First a bound for every node, cheap and never too low; then, from nodes whose bound is above the limit, a count. */
#include "grammar_internal.h"
#include "engine/base/fail.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_COUNT_WORK = 1 << 26, MANY = GRAMMAR_MAX_PLACES + 1 };

struct places {
    const struct grammar *g;
    bool *empty;     /* [n_nodes] the end of its rule may follow without a byte */
    uint16_t *bound; /* [n_nodes] places that it leads to without a byte: at most so many; MANY: or more */
    uint32_t *seen;  /* [n_nodes] the last count that came by */
    uint32_t *stack; /* [n_nodes] */
    uint32_t count;
    uint64_t work;
};

static bool node_is_empty(const struct places *p, const struct gram_node *n) {
    switch (n->kind) {
    case GRAM_END: return true;
    case GRAM_SPLIT: return p->empty[n->a] || p->empty[n->b];
    case GRAM_CALL: return p->empty[p->g->rules[n->a]] && p->empty[n->b];
    default: return false;
    }
}

static unsigned node_bound(const struct places *p, const struct gram_node *n) {
    unsigned sum = 0;
    switch (n->kind) {
    case GRAM_RANGE: return 1;
    case GRAM_SPLIT: sum = (unsigned)p->bound[n->a] + p->bound[n->b]; break;
    case GRAM_CALL:
        sum = p->bound[p->g->rules[n->a]];
        if (p->empty[p->g->rules[n->a]]) sum += p->bound[n->b];
        break;
    default: break;
    }
    return sum < MANY ? sum : MANY;
}

/* The least solutions; a node mostly comes after what it leads to. */
static void places_bound(struct places *p) {
    const struct grammar *g = p->g;
    for (bool changed = true; changed && p->work < MAX_COUNT_WORK; p->work += g->n_nodes) {
        changed = false;
        for (uint32_t i = 0; i < g->n_nodes; i++)
            if (!p->empty[i] && node_is_empty(p, &g->nodes[i])) p->empty[i] = changed = true;
    }
    for (bool changed = true; changed && p->work < MAX_COUNT_WORK; p->work += g->n_nodes) {
        changed = false;
        for (uint32_t i = 0; i < g->n_nodes; i++) {
            const unsigned bound = node_bound(p, &g->nodes[i]);
            if (bound == p->bound[i]) continue;
            p->bound[i] = (uint16_t)bound;
            changed = true;
        }
    }
}

/* Whether more places than the limit follow a node, each counted once. */
static bool places_are_many(struct places *p, uint32_t node) {
    const struct grammar *g = p->g;
    uint32_t n_stack = 0, n_places = 0;
    p->stack[n_stack++] = node;
    p->seen[node] = ++p->count;
    while (n_stack && p->work++ < MAX_COUNT_WORK) {
        const struct gram_node *n = &g->nodes[p->stack[--n_stack]];
        uint32_t next[2], n_next = 0;
        if (n->kind == GRAM_RANGE && ++n_places > GRAMMAR_MAX_PLACES) return true;
        if (n->kind == GRAM_SPLIT) next[n_next++] = n->a;
        if (n->kind == GRAM_SPLIT || (n->kind == GRAM_CALL && p->empty[g->rules[n->a]])) next[n_next++] = n->b;
        if (n->kind == GRAM_CALL) next[n_next++] = g->rules[n->a];
        for (uint32_t i = 0; i < n_next; i++) {
            if (p->seen[next[i]] == p->count || g->depth[next[i]] == UINT8_MAX) continue;
            p->seen[next[i]] = p->count;
            p->stack[n_stack++] = next[i];
        }
    }
    return false;
}

/* From a rule's beginning, or behind a byte. */
static bool places_exceed(struct places *p) {
    const struct grammar *g = p->g;
    for (uint32_t i = 0; i < g->n_rules; i++)
        if (p->bound[g->rules[i]] == MANY && places_are_many(p, g->rules[i])) return true;
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct gram_node *n = &g->nodes[i];
        if (n->kind != GRAM_RANGE || p->bound[n->a] < MANY || p->seen[n->a]) continue;
        if (places_are_many(p, n->a)) return true;
    }
    return false;
}

int gram_check_places(const struct grammar *g, struct rod_error *err) {
    struct places p = {
        .g = g, .empty = calloc(g->n_nodes, sizeof *p.empty), .bound = calloc(g->n_nodes, sizeof *p.bound)};
    p.seen = calloc(g->n_nodes, sizeof *p.seen);
    p.stack = malloc(g->n_nodes * sizeof *p.stack);
    int rc = p.empty && p.bound && p.seen && p.stack ? 0 : rod_fail_no_memory(err);
    if (!rc) places_bound(&p);
    if (!rc && places_exceed(&p))
        rc = rod_fail(err, ROD_EINVALID, "has more than %u alternatives at one place", GRAMMAR_MAX_PLACES);
    free(p.empty);
    free(p.bound);
    free(p.seen);
    free(p.stack);
    return rc;
}
