/* grammar_mask.c - the tokens that may come in a state, as a mask of one bit a token.
 *
 * A mask is the union of the masks of the state's places. Places that stand in a chain take theirs from the tables of
 * grammar_chain.c: with least..most units to go these are the tokens of at most `most` units, and of the tokens that
 * leave after least..most units those that what follows the chain lets on. The latter are found once for each table
 * and state that follows. For all other places the trie of the vocabulary is walked beside the grammar.
 *
 * Order of the files: grammar_vocab.c and grammar_walk.c below, grammar_chain.c beside, this one above them.
 */
#include "grammar_internal.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_GROUPED = 256,                      /* places of a state in which chains are looked for */
    MAX_CHAIN_DEPTH = GRAMMAR_MAX_DEPTH / 2 /* of a stack; far from where the depth decides */
};

/* ---- a walk through the trie ---- */

static int exits_add_token(struct gram_states *s, uint32_t id, uint32_t units, struct rod_error *err) {
    void *items = s->exit_tokens;
    int rc = gram_reserve(s, &items, &s->cap_exit_tokens, s->n_exit_tokens, 1, sizeof *s->exit_tokens, err);
    s->exit_tokens = items;
    if (!rc) s->exit_tokens[s->n_exit_tokens++] = (struct gram_exit_token){id, units};
    return rc;
}

/* Walks from `state` through nodes [node, node + n) and what is below. A token that may come: its bit in mask, or,
 * where mask is NULL, an exit token of the grammar, with `units`. */
static int mask_walk_vocab(struct grammar *g, const struct vocab *v, uint32_t node, uint32_t n, uint32_t state,
                           uint64_t *mask, uint32_t units, struct rod_error *err) {
    assert(node + n <= v->n_nodes && state < g->found.n_states);
    struct vocab_way *ways = v->ways;
    uint32_t depth = 0;
    ways[0] = (struct vocab_way){.at = node, .end = node + n, .state = state};
    for (;;) {
        struct vocab_way *w = &ways[depth];
        if (w->at == w->end) {
            if (depth-- == 0) return 0;
            continue;
        }
        const struct vocab_node *at = &v->nodes[w->at++];
        const uint8_t byte_class = g->class_of[at->byte];
        uint32_t next = g->found.next[(size_t)w->state * g->n_classes + byte_class];
        if (next == GRAM_DEAD) continue;
        int rc = next == GRAM_UNKNOWN ? gram_next(g, w->state, byte_class, &next, err) : 0;
        if (rc) return rc;
        if (next == GRAM_DEAD) continue;
        if (at->id >= 0 && mask)
            mask[at->id >> 6] |= 1ull << (at->id & 63);
        else if (at->id >= 0 && (rc = exits_add_token(&g->found, (uint32_t)at->id, units, err)))
            return rc;
        if (at->n_children)
            ways[++depth] = (struct vocab_way){.at = at->child, .end = at->child + at->n_children, .state = next};
    }
}

/* ---- places in chains ---- */

/* Some places of a state that stand in one chain. */
struct part {
    const struct chain_table *table;
    uint32_t least, most; /* units, with the one that is begun */
    uint32_t follow;      /* the state behind the chain */
};

static uint32_t chain_one_more(uint32_t n) { return n == IR_NO_LIMIT ? n : n + 1; }

/* May a chain of this unit be used before this state? */
static bool chain_is_apart(const struct grammar *g, const struct gram_unit *u, uint32_t follow) {
    const uint32_t *next = g->found.next + (size_t)follow * g->n_classes;
    for (unsigned byte = 0; byte < 256; byte++)
        if (u->next[0][byte] != GRAM_UNIT_DEAD && next[g->class_of[byte]] != GRAM_DEAD) return false;
    return true;
}

/* The part of the chain behind node `at`, from state i of its unit; table NULL: no chain is there. */
static int part_of_chain(struct grammar *g, uint32_t at, uint32_t below, uint32_t unit, uint32_t i, struct part *out,
                         struct rod_error *err) {
    const struct gram_chain *c = &g->chains[g->chain_at[at] - 1];
    const struct gram_unit *u = &g->units[unit];
    *out = (struct part){.least = c->least + 1, .most = chain_one_more(c->most)};
    if (!u->tables[i]) return 0;
    int rc = gram_state_at(g, c->follow, below, &out->follow, err);
    if (!rc && chain_is_apart(g, u, out->follow)) out->table = u->tables[i];
    return rc;
}

/* Takes a part out of places[0, *n), from the first one on that stands in a chain; the others keep their order. */
static int part_take(struct grammar *g, struct gram_place *places, uint32_t *n, uint32_t *from, struct part *out,
                     struct rod_error *err) {
    out->table = NULL;
    for (; *from < *n; ++*from) {
        const struct gram_place p = places[*from];
        const struct gram_frame f = g->found.frames[p.stack]; /* a copy: part_of makes frames, and they move */
        const uint32_t after = g->nodes[p.node].a;
        if (f.depth > MAX_CHAIN_DEPTH) continue;
        uint32_t same[MAX_GROUPED], n_same = 0;
        uint32_t chain = g->chain_at[after] ? g->chains[g->chain_at[after] - 1].unit : GRAM_MAX_UNITS;
        if (chain < g->n_units && g->units[chain].rule == GRAM_INLINE && g->units[chain].n_states &&
            g->units[chain].lo == g->nodes[p.node].lo && g->units[chain].hi == g->nodes[p.node].hi) {
            int rc = part_of_chain(g, after, p.stack, chain, 0, out, err);
            if (rc) return rc;
            if (out->table) {
                memmove(places + *from, places + *from + 1, (--*n - *from) * sizeof *places);
                return 0;
            }
        }
        if (!p.stack || !g->chain_at[f.node]) continue;
        chain = g->chains[g->chain_at[f.node] - 1].unit;
        const struct gram_unit *u = &g->units[chain];
        if (u->rule == GRAM_INLINE || !u->n_states) continue;
        for (uint32_t i = *from; i < *n; i++)
            if (places[i].stack == p.stack) same[n_same++] = places[i].node;
        for (uint32_t k = 0; k < u->n_states; k++) {
            if (u->n_places[k] != n_same || memcmp(u->places[k], same, n_same * sizeof *same) != 0) continue;
            int rc = part_of_chain(g, f.node, f.below, chain, k, out, err);
            if (rc) return rc;
            if (!out->table) break;
            uint32_t left = *from;
            for (uint32_t i = *from; i < *n; i++)
                if (places[i].stack != p.stack) places[left++] = places[i];
            *n = left;
            return 0;
        }
    }
    return 0;
}

/* The tokens that leave a table's chain and go on from a state: found once. */
static int exits_find(struct grammar *g, const struct vocab *v, const struct chain_table *t, uint32_t follow,
                      uint32_t *out, struct rod_error *err) {
    struct gram_states *s = &g->found;
    for (uint32_t i = s->states[follow].exits; i; i = s->exits[i - 1].next)
        if (s->exits[i - 1].table == t) {
            *out = i - 1;
            return 0;
        }
    const uint32_t first = s->n_exit_tokens;
    int rc = 0;
    for (unsigned byte = 0; !rc && byte < 256; byte++) {
        if (s->next[(size_t)follow * g->n_classes + g->class_of[byte]] == GRAM_DEAD) continue;
        for (uint32_t i = t->leave_of[byte]; !rc && i < t->leave_of[byte + 1]; i++)
            rc = mask_walk_vocab(g, v, t->leave[i].at, 1, follow, NULL, t->leave[i].units, err);
    }
    void *items = s->exits;
    if (!rc) rc = gram_reserve(s, &items, &s->cap_exits, s->n_exits, 1, sizeof *s->exits, err);
    s->exits = items;
    if (rc) {
        s->n_exit_tokens = first;
        return rc;
    }
    assert(s->n_exits < s->cap_exits && first <= s->n_exit_tokens);
    *out = s->n_exits++;
    s->exits[*out] = (struct gram_exits){t, first, s->n_exit_tokens - first, s->states[follow].exits};
    s->states[follow].exits = *out + 1;
    return 0;
}

static int part_add_mask(struct grammar *g, const struct vocab *v, const struct part *p, uint64_t *mask,
                         struct rod_error *err) {
    assert(p->least <= p->most);
    const struct chain_table *t = p->table;
    const size_t words = ((size_t)v->V + 63) / 64;
    uint32_t l = t->n_levels, exits = 0;
    while (l > 0 && t->level[l - 1] > p->most) l--;
    if (l)
        for (size_t i = 0; i < words; i++) mask[i] |= t->masks[(l - 1) * words + i];
    for (uint32_t i = 0; i < t->n_tokens && t->tokens[i].units <= p->most; i++)
        mask[t->tokens[i].at >> 6] |= 1ull << (t->tokens[i].at & 63);
    int rc = exits_find(g, v, t, p->follow, &exits, err);
    if (rc) return rc;
    const struct gram_exits *e = &g->found.exits[exits];
    for (const struct gram_exit_token *x = g->found.exit_tokens + e->first, *end = x + e->n; x < end; x++)
        if (x->units >= p->least && x->units <= p->most) mask[x->id >> 6] |= 1ull << (x->id & 63);
    return 0;
}

/* ---- the mask ---- */

/* The tokens of a state, added to mask. */
static int mask_of_state(struct grammar *g, const struct vocab *v, uint32_t state, uint64_t *mask,
                         struct rod_error *err) {
    const struct gram_state st = g->found.states[state];
    uint32_t n = st.n, from = 0;
    int rc = 0;
    if (g->vocab == v && n <= MAX_GROUPED) {
        struct part part;
        if (n) memcpy(g->rest, g->found.places + st.first, n * sizeof *g->rest);
        while (!(rc = part_take(g, g->rest, &n, &from, &part, err)) && part.table)
            if ((rc = part_add_mask(g, v, &part, mask, err))) return rc;
        if (!rc && n < st.n) rc = gram_state_of(g, g->rest, n, false, &state, err);
    }
    if (rc || n == 0) return rc;
    return mask_walk_vocab(g, v, v->nodes->child, v->nodes->n_children, state, mask, 0, err);
}

int grammar_walk_mask(struct grammar_walk *w, const struct vocab *v, const uint64_t **mask, struct rod_error *err) {
    struct grammar *g = w->grammar;
    int rc = gram_trim(g, w, err);
    if (rc) return rc;
    if (!g->found.states[w->state].mask) {
        const size_t words = ((size_t)v->V + 63) / 64;
        uint64_t *new = g->vocab == v ? vocab_mask(g->vocab) : calloc(words, sizeof *new);
        if (!new) return rod_fail_no_memory(err);
        g->work = 0;
        rc = mask_of_state(g, v, w->state, new, err);
        if (rc) {
            vocab_give_mask(g->vocab, new);
            return rc;
        }
        g->found.states[w->state].mask = new;
        g->found.bytes += words * sizeof *new;
    }
    assert(w->state < g->found.n_states && w->state != GRAM_DEAD);
    *mask = g->found.states[w->state].mask;
    return 0;
}
