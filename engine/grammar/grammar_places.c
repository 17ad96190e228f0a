/* grammar_places.c - how many places stand in one state, as far as the nodes alone say it.
 *
 * A state holds up to GRAMMAR_MAX_PLACES places. A choice of more alternatives than that would be refused when a walk
 * comes to it, in the middle of an answer; so it is looked for here. What depends on the text so far, as in
 * .*[a-m].{200}, only a walk can find.
 *
 * First a bound for every node, cheap and never too low; then, from nodes whose bound is above the limit, a count; and
 * from the nodes with the highest bounds some steps along the bytes that most alternatives share. */
#include "grammar_internal.h"
#include "engine/base/fail.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_COUNT_WORK = 1 << 26, MANY = GRAMMAR_MAX_PLACES + 1, WIDE = 128, MAX_TRY = 64 };

struct places {
    const struct grammar *g;
    bool *empty;     /* [n_nodes] the end of its rule may follow without a byte */
    uint16_t *bound; /* [n_nodes] nodes that it leads to without a byte: at most so many; MANY: or more */
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
    unsigned sum = 1;
    switch (n->kind) {
    case GRAM_SPLIT: sum += (unsigned)p->bound[n->a] + p->bound[n->b]; break;
    case GRAM_CALL:
        sum += p->bound[p->g->rules[n->a]];
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

/* Whether a node leads to more places than a state holds, or past more nodes than a transition follows; each counts
 * once. */
static bool places_are_many(struct places *p, uint32_t node) {
    const struct grammar *g = p->g;
    uint32_t n_stack = 0, n_places = 0, n_seen = 1;
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
            if (++n_seen > GRAM_MAX_SEEN) return true;
        }
    }
    return false;
}

/* Keeps the nodes with the highest bounds. */
static void places_keep_wide(struct grammar *g, const struct places *p, uint32_t node) {
    uint32_t least = 0;
    if (p->bound[node] < WIDE) return;
    for (uint32_t i = 0; i < g->n_wide; i++) {
        if (g->wide[i] == node) return;
        if (p->bound[g->wide[i]] < p->bound[g->wide[least]]) least = i;
    }
    if (g->n_wide < GRAM_MAX_WIDE)
        g->wide[g->n_wide++] = node;
    else if (p->bound[node] > p->bound[g->wide[least]])
        g->wide[least] = node;
}

/* From a rule's beginning, or behind a byte. */
static bool places_exceed(struct grammar *g, struct places *p) {
    for (uint32_t i = 0; i < g->n_rules; i++) {
        if (p->bound[g->rules[i]] == MANY && places_are_many(p, g->rules[i])) return true;
        places_keep_wide(g, p, g->rules[i]);
    }
    for (uint32_t i = 0; i < g->n_nodes; i++) {
        const struct gram_node *n = &g->nodes[i];
        if (n->kind != GRAM_RANGE) continue;
        if (p->bound[n->a] == MANY && !p->seen[n->a] && places_are_many(p, n->a)) return true;
        places_keep_wide(g, p, n->a);
    }
    return false;
}

static int fail_places(struct rod_error *err) {
    return rod_fail(err, ROD_EINVALID,
                    "has more than %u alternatives at one place, or needs more than %u parts for them",
                    GRAMMAR_MAX_PLACES, GRAM_MAX_SEEN);
}

int gram_check_places(struct grammar *g, struct rod_error *err) {
    struct places p = {
        .g = g, .empty = calloc(g->n_nodes, sizeof *p.empty), .bound = calloc(g->n_nodes, sizeof *p.bound)};
    p.seen = calloc(g->n_nodes, sizeof *p.seen);
    p.stack = malloc(g->n_nodes * sizeof *p.stack);
    int rc = p.empty && p.bound && p.seen && p.stack ? 0 : rod_fail_no_memory(err);
    if (!rc) places_bound(&p);
    if (!rc && places_exceed(g, &p)) rc = fail_places(err);
    free(p.empty);
    free(p.bound);
    free(p.seen);
    free(p.stack);
    return rc;
}

/* The class of bytes that most places of a state take. */
static uint8_t wide_class(const struct grammar *g, const struct gram_state *state) {
    uint32_t ends[257] = {0}, here = 0, best = 0;
    uint8_t out = 0;
    for (uint32_t i = 0; i < state->n; i++) {
        const struct gram_node *n = &g->nodes[g->found.places[state->first + i].node];
        ends[g->class_of[n->lo]]++;
        ends[g->class_of[n->hi] + 1]--;
    }
    for (uint32_t c = 0; c < g->n_classes; c++) {
        here += ends[c];
        if (here <= best) continue;
        best = here;
        out = (uint8_t)c;
    }
    return out;
}

int gram_try_wide(struct grammar *g, struct rod_error *err) {
    int rc = 0;
    for (uint32_t i = 0; i < g->n_wide && !rc; i++) {
        uint32_t state;
        rc = gram_state_at(g, g->wide[i], 0, &state, err);
        for (int k = 0; k < MAX_TRY && !rc && g->found.states[state].n >= WIDE; k++)
            rc = gram_next(g, state, wide_class(g, &g->found.states[state]), &state, err);
        g->work = 0;
    }
    if (rc == ROD_EINVALID) return fail_places(err);
    if (rc || !g->n_wide) return rc;
    gram_stop(g); /* what was found is not the beginning of an answer */
    return gram_start(g, err);
}
