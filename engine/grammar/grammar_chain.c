/* grammar_chain.c - tables of the tokens of repeated parts, so that their masks need no walk through the vocabulary.
 *
 * "At most 200 characters, then a quote" is 200 states whose masks differ only in how long a token may be. So where a
 * part (a unit: a character of a JSON string, a digit, one of [a-z]) is repeated, its automaton alone is walked once
 * through the whole vocabulary, for all grammars that repeat the same: for each token that consists of units the number
 * of units that it begins, and for each token that leaves the chain the place and the number of units before it.
 * grammar_mask.c makes masks of these tables.
 *
 * A chain is known by node: grammar_build.c says what stands behind it. A unit has tables if its automaton is small and
 * no text of it begins another one; and a chain is used where no byte that begins a unit may also follow it. Otherwise
 * there is only the walk: slower, and the same mask. Tables belong to the vocabulary, which counts their users under
 * its lock. */
#include "grammar_internal.h"
#include "engine/base/array.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    DENSE = 2048,             /* tokens from which on there are masks of levels */
    MAX_WALK_NODES = 1 << 23, /* of the trie, for one grammar's tables */
    MAX_TABLE_BYTES = 8 << 20 /* of one grammar */
};

/* ---- a table ---- */

static void table_free(struct chain_table *t) {
    if (!t) return;
    free(t->unit);
    free(t->tokens);
    free(t->leave);
    free(t->masks);
    free(t);
}

static bool entries_add(struct chain_entry **items, uint32_t *n, uint32_t *cap, uint32_t at, uint32_t units) {
    if (!ARRAY_RESERVE(*items, *cap, *n, 1)) return false;
    (*items)[(*n)++] = (struct chain_entry){at, units};
    return true;
}

static bool table_walk_units(struct chain_table *t, const struct vocab *v, struct vocab_way *ways, uint32_t *budget) {
    const struct vocab_node *nodes = v->nodes;
    uint32_t depth = 0;
    ways[0] = (struct vocab_way){nodes->child, nodes->child + nodes->n_children, t->from + GRAM_UNIT_FIRST, 0};
    for (;;) {
        struct vocab_way *w = &ways[depth];
        if (w->at == w->end) {
            if (depth-- == 0) return true;
            continue;
        }
        const uint32_t at = w->at++;
        const struct vocab_node *n = &nodes[at];
        const bool complete = w->state == GRAM_UNIT_WHOLE;
        const uint8_t next = t->unit[complete ? 0 : w->state - GRAM_UNIT_FIRST][n->byte];
        if (*budget == 0) return false;
        --*budget;
        if (next == GRAM_UNIT_DEAD) {
            if (complete && !entries_add(&t->leave, &t->n_leave, &t->cap_leave, at, w->units)) return false;
            continue;
        }
        const uint32_t units = w->units + (next == GRAM_UNIT_WHOLE);
        if (n->id >= 0 && !entries_add(&t->tokens, &t->n_tokens, &t->cap_tokens, (uint32_t)n->id, w->units + 1))
            return false;
        if (n->n_children) ways[++depth] = (struct vocab_way){n->child, n->child + n->n_children, next, units};
    }
}

/* By the number of units, which is at most that of a token's bytes. */
static bool table_sort_tokens(struct chain_table *t, const struct vocab *v) {
    uint32_t *upto = calloc(v->max_depth + 2, sizeof *upto);
    struct chain_entry *sorted = malloc((t->n_tokens + 1) * sizeof *sorted);
    bool ok = upto && sorted;
    if (ok) {
        for (uint32_t i = 0; i < t->n_tokens; i++) upto[t->tokens[i].units + 1]++;
        for (uint32_t n = 0; n <= v->max_depth; n++) upto[n + 1] += upto[n];
        for (uint32_t i = 0; i < t->n_tokens; i++) sorted[upto[t->tokens[i].units]++] = t->tokens[i];
        free(t->tokens);
        t->tokens = sorted;
    } else {
        free(sorted);
    }
    free(upto);
    return ok;
}

static bool table_make_masks(struct chain_table *t, const struct vocab *v) {
    const size_t words = ((size_t)v->V + 63) / 64;
    if (!table_sort_tokens(t, v)) return false;
    if (t->n_tokens < DENSE) return true;
    t->masks = calloc(GRAM_MAX_LEVELS * words, sizeof *t->masks);
    if (!t->masks) return false;
    uint32_t i = 0;
    for (uint64_t *mask = t->masks; i < t->n_tokens && t->n_levels < GRAM_MAX_LEVELS; mask += words) {
        assert(!t->n_levels || t->tokens[i].units > t->level[t->n_levels - 1]); /* they are sorted */
        const uint32_t units = t->level[t->n_levels] = t->tokens[i].units;
        if (t->n_levels++) memcpy(mask, mask - words, words * sizeof *mask);
        for (; i < t->n_tokens && t->tokens[i].units == units; i++)
            mask[t->tokens[i].at >> 6] |= 1ull << (t->tokens[i].at & 63);
    }
    assert(i <= t->n_tokens);
    t->n_tokens -= i;
    memmove(t->tokens, t->tokens + i, t->n_tokens * sizeof *t->tokens);
    t->bytes += t->n_levels * words * sizeof *t->masks;
    return true;
}

/* By byte, otherwise in their order. */
static bool table_sort_leave(struct chain_table *t, const struct vocab *v) {
    struct chain_entry *sorted = malloc((t->n_leave + 1) * sizeof *sorted);
    if (!sorted) return false;
    for (uint32_t i = 0; i < t->n_leave; i++) t->leave_of[v->nodes[t->leave[i].at].byte + 1]++;
    for (unsigned byte = 0; byte < 256; byte++) t->leave_of[byte + 1] += t->leave_of[byte];
    uint32_t at[256];
    memcpy(at, t->leave_of, sizeof at);
    for (uint32_t i = 0; i < t->n_leave; i++) sorted[at[v->nodes[t->leave[i].at].byte]++] = t->leave[i];
    free(t->leave);
    t->leave = sorted;
    struct chain_entry *less = realloc(t->tokens, (t->n_tokens + 1) * sizeof *less);
    if (less) t->tokens = less;
    t->bytes += ((size_t)t->n_tokens + t->n_leave) * sizeof *less;
    return true;
}

/* NULL: too much work, or no memory. */
static struct chain_table *table_new(const struct gram_unit *u, uint32_t from, const struct vocab *v,
                                     uint32_t *budget) {
    struct chain_table *t = calloc(1, sizeof *t);
    struct vocab_way *ways = malloc((v->max_depth + 1) * sizeof *ways);
    bool ok = t && ways;
    if (ok) {
        t->users = 1;
        t->n_states = u->n_states;
        t->from = from;
        t->unit = malloc(u->n_states * sizeof *t->unit);
        ok = t->unit;
    }
    if (ok) {
        memcpy(t->unit, u->next, u->n_states * sizeof *t->unit);
        ok = table_walk_units(t, v, ways, budget) && table_make_masks(t, v) && table_sort_leave(t, v);
        t->bytes += sizeof *t + u->n_states * sizeof *t->unit;
    }
    free(ways);
    if (ok) return t;
    table_free(t);
    return NULL;
}

static struct chain_table *table_find_locked(const struct vocab *v, const struct gram_unit *u, uint32_t from) {
    for (struct list_link *l = list_first(&v->tables); l; l = list_next(&v->tables, l)) {
        struct chain_table *t = LIST_OF(l, struct chain_table, link);
        if (t->from == from && t->n_states == u->n_states &&
            memcmp(t->unit, u->next, u->n_states * sizeof *t->unit) == 0) {
            assert(t->users);
            t->users++;
            return t;
        }
    }
    return NULL;
}

/* One more user of it; made outside the lock. */
static struct chain_table *table_open(const struct gram_unit *u, uint32_t from, struct vocab *v, uint32_t *budget) {
    pthread_mutex_lock(&v->lock);
    struct chain_table *t = table_find_locked(v, u, from);
    pthread_mutex_unlock(&v->lock);
    if (t) return t;
    struct chain_table *made = table_new(u, from, v, budget);
    if (!made) return NULL;
    pthread_mutex_lock(&v->lock);
    t = table_find_locked(v, u, from);
    if (!t) {
        list_push_first(&v->tables, &made->link);
        t = made;
    }
    pthread_mutex_unlock(&v->lock);
    if (t != made) table_free(made);
    return t;
}

static void table_close(struct chain_table *t, struct vocab *v) {
    if (!t) return;
    pthread_mutex_lock(&v->lock);
    assert(t->users);
    if (--t->users == 0) {
        list_remove(&v->tables, &t->link);
        table_free(t);
    }
    pthread_mutex_unlock(&v->lock);
}

/* ---- a unit ---- */

static void unit_fini(struct gram_unit *u, struct vocab *v) {
    for (uint32_t i = 0; i < u->n_states; i++) {
        if (u->tables) table_close(u->tables[i], v);
        if (u->places) free(u->places[i]);
    }
    free(u->next);
    free(u->places);
    free(u->n_places);
    free(u->tables);
    *u = (struct gram_unit){.rule = u->rule, .lo = u->lo, .hi = u->hi};
}

void gram_units_free(struct grammar *g) {
    for (uint32_t i = 0; i < g->n_units; i++) unit_fini(&g->units[i], g->vocab);
}

static bool unit_reserve(struct gram_unit *u) {
    u->next = calloc(GRAM_MAX_UNIT_STATES, sizeof *u->next);
    u->places = calloc(GRAM_MAX_UNIT_STATES, sizeof *u->places);
    u->n_places = calloc(GRAM_MAX_UNIT_STATES, sizeof *u->n_places);
    u->tables = calloc(GRAM_MAX_UNIT_STATES, sizeof *u->tables);
    return u->next && u->places && u->n_places && u->tables;
}

/* The nodes of a state of the unit's rule alone, by which its places are known again in any stack. */
static bool unit_places(struct gram_unit *u, uint32_t i, const struct grammar *g, uint32_t state) {
    const struct gram_state *st = &g->found.states[state];
    const struct gram_place *p = g->found.places + st->first;
    u->places[i] = malloc((st->n + 1) * sizeof **u->places);
    if (!u->places[i]) return false;
    for (uint32_t k = 0; k < st->n; k++) {
        u->places[i][k] = p[k].node;
        if (p[k].stack) return true; /* deeper: left to the walk */
    }
    u->n_places[i] = st->n;
    return true;
}

/* The automaton of a rule alone. False and *rc: an error; false alone: it is not one that has tables. */
static bool unit_explore(struct grammar *g, struct gram_unit *u, int *rc, struct rod_error *err) {
    uint32_t states[GRAM_MAX_UNIT_STATES];
    *rc = gram_state_at(g, g->rules[u->rule], 0, &states[0], err);
    if (*rc || g->found.states[states[0]].accepts) return false;
    u->n_states = 1;
    for (uint32_t i = 0; i < u->n_states; i++) {
        uint8_t to[256];
        for (uint32_t c = 0; c < g->n_classes; c++) {
            uint32_t next, k = 0;
            *rc = gram_next(g, states[i], (uint8_t)c, &next, err);
            if (*rc) return false;
            const struct gram_state *st = &g->found.states[next];
            if (next == GRAM_DEAD || st->accepts) {
                to[c] = next == GRAM_DEAD ? GRAM_UNIT_DEAD : GRAM_UNIT_WHOLE;
                if (st->n) return false; /* it may end or go on */
                continue;
            }
            while (k < u->n_states && states[k] != next) k++;
            if (k == GRAM_MAX_UNIT_STATES) return false;
            assert(u->n_states <= GRAM_MAX_UNIT_STATES);
            if (k == u->n_states) states[u->n_states++] = next;
            to[c] = (uint8_t)(k + GRAM_UNIT_FIRST);
        }
        for (unsigned byte = 0; byte < 256; byte++) u->next[i][byte] = to[g->class_of[byte]];
        if (!unit_places(u, i, g, states[i])) {
            *rc = rod_fail_no_memory(err);
            return false;
        }
    }
    return true;
}

int grammar_prepare(struct grammar *g, struct vocab *v, struct rod_error *err) {
    uint32_t budget = MAX_WALK_NODES;
    assert(!g->vocab); /* once for a grammar */
    g->vocab = v;
    g->work = 0;
    for (uint32_t i = 0; i < g->n_units; i++) {
        struct gram_unit *u = &g->units[i];
        if (!unit_reserve(u)) return rod_fail_no_memory(err);
        bool ok = u->rule == GRAM_INLINE;
        if (ok) {
            u->n_states = 1;
            memset(&u->next[0][u->lo], GRAM_UNIT_WHOLE, u->hi - u->lo + 1u);
        } else {
            struct rod_error fault; /* what is too ambiguous here may never be met */
            int rc = 0;
            ok = unit_explore(g, u, &rc, &fault);
            if (rc == ROD_ENOMEM) return rod_fail_no_memory(err);
        }
        for (uint32_t k = 0; ok && k < u->n_states; k++) {
            u->tables[k] = g->table_bytes < MAX_TABLE_BYTES ? table_open(u, k, v, &budget) : NULL;
            bool counted = !u->tables[k];
            for (uint32_t before = 0; !counted && before < i; before++)
                counted = g->units[before].n_states > k && g->units[before].tables[k] == u->tables[k];
            if (!counted) g->table_bytes += u->tables[k]->bytes;
        }
        if (!ok) unit_fini(u, v);
    }
    gram_count(g);
    return 0;
}
