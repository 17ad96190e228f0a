/* grammar_mask.c - the tokens that may come in a state, as a mask of one bit a token.
 *
 * A mask is the union of the masks of the state's places. Places that stand in a chain take theirs from the tables of
 * grammar_chain.c: with least..most units to go these are the tokens of at most `most` units, and of the tokens that
 * leave after least..most units those that what follows the chain lets on. The latter are found once for each table
 * and state that follows. For all other places the trie of the vocabulary is walked beside the grammar.
 *
 * A mask is made in pieces of so much effort, between which others go on: what is there of it is its walk's
 * (struct grammar_begun), and the states that were found are the grammar's.
 *
 * Order of the files: grammar_vocab.c and grammar_walk.c below, grammar_chain.c beside, this one above them.
 */
#include "grammar_internal.h"
#include "engine/base/array.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_CHAIN_DEPTH = GRAMMAR_MAX_DEPTH / 2, /* of a stack; far from where the depth decides */
    PLACE_EFFORT = 8                         /* a look at a place takes so many times what one at a node takes */
};

/* ---- a walk through the trie ---- */

static int begun_add_token(struct grammar_begun *b, uint32_t id, uint32_t units, struct rod_error *err) {
    if (!ARRAY_RESERVE(b->tokens, b->cap_tokens, b->n_tokens, 1)) return rod_fail_no_memory(err);
    b->tokens[b->n_tokens++] = (struct gram_exit_token){id, units};
    return 0;
}

/* From `state` through nodes [node, node + n) and what is below. */
static void begun_walk(struct grammar_begun *b, uint32_t node, uint32_t n, uint32_t state, uint32_t units) {
    b->ways[0] = (struct vocab_way){.at = node, .end = node + n, .state = state};
    b->units = units;
    b->depth = 0;
    b->walking = true;
}

/* Walks on as far as *effort goes. A token that may come sets its bit in the mask; where exits of a part are looked
 * for, it is one of the exits. */
static int begun_walk_on(struct grammar *g, const struct vocab *v, struct grammar_begun *b, int64_t *effort,
                         struct rod_error *err) {
    struct vocab_way *ways = b->ways;
    const bool exits = b->part.table != NULL;
    uint32_t depth = b->depth;
    int64_t left = *effort;
    int rc = 0;
    while (!rc && left > 0) {
        struct vocab_way *w = &ways[depth];
        if (w->at == w->end) {
            b->walking = depth > 0;
            if (depth-- == 0) break;
            continue;
        }
        const struct vocab_node *at = &v->nodes[w->at++];
        const uint8_t byte_class = g->class_of[at->byte];
        uint32_t next = g->found.next[(size_t)w->state * g->n_classes + byte_class];
        left--;
        if (next == GRAM_DEAD) continue;
        if (next == GRAM_UNKNOWN) {
            const uint32_t work = g->work;
            rc = gram_next(g, w->state, byte_class, &next, err);
            left -= (int64_t)(g->work - work) * PLACE_EFFORT;
            if (rc || next == GRAM_DEAD) continue;
        }
        if (at->id >= 0 && !exits)
            b->mask[at->id >> 6] |= 1ull << (at->id & 63);
        else if (at->id >= 0)
            rc = begun_add_token(b, (uint32_t)at->id, b->units, err);
        if (at->n_children)
            ways[++depth] = (struct vocab_way){.at = at->child, .end = at->child + at->n_children, .state = next};
    }
    b->depth = depth;
    *effort = left;
    return rc;
}

/* ---- places in chains ---- */

static uint32_t chain_one_more(uint32_t n) { return n == IR_NO_LIMIT ? n : n + 1; }

/* May a chain of this unit be used before this state? */
static bool chain_is_apart(const struct grammar *g, const struct gram_unit *u, uint32_t follow) {
    const uint32_t *next = g->found.next + (size_t)follow * g->n_classes;
    for (unsigned byte = 0; byte < 256; byte++)
        if (u->next[0][byte] != GRAM_UNIT_DEAD && next[g->class_of[byte]] != GRAM_DEAD) return false;
    return true;
}

/* The part of the chain behind node `at`, from state i of its unit; table NULL: no chain is there. */
static int part_of_chain(struct grammar *g, uint32_t at, uint32_t below, uint32_t unit, uint32_t i,
                         struct gram_part *out, struct rod_error *err) {
    const struct gram_chain *c = &g->chains[g->chain_at[at] - 1];
    const struct gram_unit *u = &g->units[unit];
    *out = (struct gram_part){.least = c->least + 1, .most = chain_one_more(c->most)};
    if (!u->tables[i]) return 0;
    int rc = gram_state_at(g, c->follow, below, &out->follow, err);
    if (!rc && chain_is_apart(g, u, out->follow)) out->table = u->tables[i];
    return rc;
}

/* Takes a part out of places[0, *n), from the first one on that stands in a chain; the others keep their order. */
static int part_take(struct grammar *g, struct gram_place *places, uint32_t *n, uint32_t *from, struct gram_part *out,
                     struct rod_error *err) {
    out->table = NULL;
    for (; *from < *n; ++*from) {
        const struct gram_place p = places[*from];
        const struct gram_frame f = g->found.frames[p.stack]; /* a copy: part_of makes frames, and they move */
        const uint32_t after = g->nodes[p.node].a;
        if (f.depth > MAX_CHAIN_DEPTH) continue;
        uint32_t same[GRAM_MAX_GROUPED], n_same = 0;
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

/* ---- the tokens of a part ---- */

/* The tokens that leave the part's chain and go on from what follows, where they are known. */
static bool exits_known(const struct grammar *g, const struct gram_part *p, uint32_t *out) {
    const struct gram_states *s = &g->found;
    for (uint32_t i = s->states[p->follow].exits; i; i = s->exits[i - 1].next) {
        *out = i - 1;
        if (s->exits[i - 1].table == p->table) return true;
    }
    return false;
}

/* Begins a walk from the next node where tokens leave the chain; false: there is none. */
static bool exits_walk_next(const struct grammar *g, struct grammar_begun *b) {
    const struct chain_table *t = b->part.table;
    const uint32_t *next = g->found.next + (size_t)b->part.follow * g->n_classes;
    for (; b->byte < 256; b->leave = t->leave_of[++b->byte]) {
        if (next[g->class_of[b->byte]] == GRAM_DEAD || b->leave == t->leave_of[b->byte + 1]) continue;
        const struct chain_entry *e = &t->leave[b->leave++];
        begun_walk(b, e->at, 1, b->part.follow, e->units);
        return true;
    }
    return false;
}

/* All of them are found: from now on they are known. */
static int exits_keep(struct grammar *g, struct grammar_begun *b, struct rod_error *err) {
    struct gram_states *s = &g->found;
    if (!GRAM_RESERVE(s, exit_tokens, b->n_tokens) || !GRAM_RESERVE(s, exits, 1)) return rod_fail_no_memory(err);
    if (b->n_tokens) memcpy(s->exit_tokens + s->n_exit_tokens, b->tokens, b->n_tokens * sizeof *b->tokens);
    s->exits[s->n_exits] =
        (struct gram_exits){b->part.table, s->n_exit_tokens, b->n_tokens, s->states[b->part.follow].exits};
    s->n_exit_tokens += b->n_tokens;
    s->states[b->part.follow].exits = ++s->n_exits;
    return 0;
}

static void part_add_exits(const struct grammar *g, struct grammar_begun *b, uint32_t exits, int64_t *effort) {
    const struct gram_part *p = &b->part;
    const struct gram_exits *e = &g->found.exits[exits];
    for (const struct gram_exit_token *x = g->found.exit_tokens + e->first, *end = x + e->n; x < end; x++)
        if (x->units >= p->least && x->units <= p->most) b->mask[x->id >> 6] |= 1ull << (x->id & 63);
    *effort -= e->n / 4;
    b->part.table = NULL; /* the part is done */
}

/* The tokens that its table has, and those that leave it where they are known. */
static void part_begin(const struct grammar *g, const struct vocab *v, struct grammar_begun *b, int64_t *effort) {
    const struct gram_part *p = &b->part;
    assert(p->least <= p->most);
    const struct chain_table *t = p->table;
    const size_t words = ((size_t)v->V + 63) / 64;
    uint32_t l = t->n_levels, i = 0, exits;
    while (l > 0 && t->level[l - 1] > p->most) l--;
    for (size_t k = 0; l && k < words; k++) b->mask[k] |= t->masks[(l - 1) * words + k];
    for (; i < t->n_tokens && t->tokens[i].units <= p->most; i++)
        b->mask[t->tokens[i].at >> 6] |= 1ull << (t->tokens[i].at & 63);
    *effort -= (int64_t)(l ? words : 0) / 8 + i / 4;
    if (exits_known(g, p, &exits)) {
        part_add_exits(g, b, exits, effort);
        return;
    }
    b->byte = 0;
    b->leave = t->leave_of[0];
    b->n_tokens = 0;
}

static int part_go_on(struct grammar *g, struct grammar_begun *b, int64_t *effort, struct rod_error *err) {
    uint32_t exits;
    --*effort;
    if (exits_walk_next(g, b)) return 0;
    const int rc = exits_known(g, &b->part, &exits) ? 0 : exits_keep(g, b, err); /* another mask may have found them */
    if (!rc && exits_known(g, &b->part, &exits)) part_add_exits(g, b, exits, effort);
    return rc;
}

/* ---- the mask ---- */

static int begun_new(struct grammar_walk *w, const struct vocab *v, struct rod_error *err) {
    struct grammar *g = w->grammar;
    const struct gram_state *st = &g->found.states[w->state];
    const size_t words = ((size_t)v->V + 63) / 64;
    struct grammar_begun *b = malloc(sizeof *b + ((size_t)v->max_depth + 1) * sizeof *b->ways);
    if (!b) return rod_fail_no_memory(err);
    *b = (struct grammar_begun){.mask = g->vocab == v ? vocab_mask(g->vocab) : calloc(words, sizeof *b->mask)};
    w->begun = b;
    g->n_begun++;
    if (!b->mask) {
        gram_drop_begun(w);
        return rod_fail_no_memory(err);
    }
    b->grouping = g->vocab == v && st->n <= GRAM_MAX_GROUPED;
    if (b->grouping) {
        b->n_rest = st->n;
        if (st->n) memcpy(b->rest, g->found.places + st->first, st->n * sizeof *b->rest);
    } else if (st->n) {
        begun_walk(b, v->nodes->child, v->nodes->n_children, w->state, 0);
    }
    return 0;
}

/* The next chain that some of its places stand in; behind the last one a walk from those that stand in none. */
static int begun_group(struct grammar_walk *w, const struct vocab *v, int64_t *effort, struct rod_error *err) {
    struct grammar_begun *b = w->begun;
    struct grammar *g = w->grammar;
    uint32_t state = w->state;
    const uint32_t work = g->work;
    int rc = part_take(g, b->rest, &b->n_rest, &b->from, &b->part, err);
    *effort -= 1 + (int64_t)(g->work - work) * PLACE_EFFORT;
    if (rc) return rc;
    if (b->part.table) {
        part_begin(g, v, b, effort);
        return 0;
    }
    b->grouping = false;
    if (b->n_rest < g->found.states[w->state].n) rc = gram_state_of(g, b->rest, b->n_rest, false, &state, err);
    if (!rc && b->n_rest) begun_walk(b, v->nodes->child, v->nodes->n_children, state, 0);
    return rc;
}

/* *complete: nothing is left to do. */
static int begun_go_on(struct grammar_walk *w, const struct vocab *v, int64_t *effort, bool *complete,
                       struct rod_error *err) {
    struct grammar_begun *b = w->begun;
    struct grammar *g = w->grammar;
    int rc = 0;
    for (*complete = false; !rc && *effort > 0 && !*complete;) {
        if (b->walking)
            rc = begun_walk_on(g, v, b, effort, err);
        else if (b->part.table)
            rc = part_go_on(g, b, effort, err);
        else if (b->grouping)
            rc = begun_group(w, v, effort, err);
        else
            *complete = true;
    }
    return rc;
}

/* Leaves no begun mask where it is complete, and then the state's, or cannot be made. */
static int begun_piece(struct grammar_walk *w, const struct vocab *v, int64_t *effort, struct rod_error *err) {
    struct grammar *g = w->grammar;
    bool complete;
    g->work = w->begun->work;
    const int rc = begun_go_on(w, v, effort, &complete, err);
    w->begun->work = g->work;
    if (complete && !rc) {
        g->found.states[w->state].mask = w->begun->mask;
        g->found.bytes += ((size_t)v->V + 63) / 64 * sizeof(uint64_t);
        w->begun->mask = NULL;
    }
    if (rc || complete) gram_drop_begun(w);
    gram_count(g);
    return rc;
}

bool grammar_walk_has_mask(const struct grammar_walk *w) { return w->grammar->found.states[w->state].mask != NULL; }

int grammar_walk_mask_some(struct grammar_walk *w, const struct vocab *v, int64_t *effort, const uint64_t **mask,
                           struct rod_error *err) {
    struct grammar *g = w->grammar;
    int rc = 0;
    assert(w->state < g->found.n_states && w->state != GRAM_DEAD);
    *mask = NULL;
    gram_list_walk(w);
    if (!grammar_walk_has_mask(w)) {
        rc = gram_trim(g, err);
        if (!rc && !w->begun) rc = begun_new(w, v, err);
        if (!rc) rc = begun_piece(w, v, effort, err);
        if (rc || w->begun) return rc;
    }
    gram_drop_begun(w); /* another walk may have made it */
    *mask = g->found.states[w->state].mask;
    return 0;
}

int grammar_walk_mask(struct grammar_walk *w, const struct vocab *v, const uint64_t **mask, struct rod_error *err) {
    int64_t effort = INT64_MAX;
    return grammar_walk_mask_some(w, v, &effort, mask, err);
}
