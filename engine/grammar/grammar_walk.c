/* grammar_walk.c - the states of a grammar, found when a walk reaches them.
 *
 * A state is the set of all places where the text so far may stand. To read a byte: every place whose node takes it
 * moves on, and what is reached without a byte (choices, calls, ends of rules) is followed until all lead to nodes that
 * take bytes. A place from which the end is more than GRAMMAR_MAX_DEPTH calls deep is not taken, so no way leads into a
 * nesting that could not be closed again. */
#include "grammar_internal.h"
#include "engine/base/array.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* CLASSES_A_PLACE: so many transitions of a new state cost as much to make room for as a look at a place; so a mask's
 * work bounds its memory, too. */
enum { CLASSES_A_PLACE = 16 };

/* ---- growing arrays and tables ---- */

static int fail_ambiguous(struct rod_error *err) {
    return rod_fail(err, ROD_EINVALID,
                    "is too ambiguous: the text so far can be read in more than %u ways, or a token in %u",
                    GRAMMAR_MAX_PLACES, GRAMMAR_MAX_WORK);
}

bool gram_reserve(struct gram_states *s, void *items, size_t item_bytes, uint32_t *cap, uint32_t used, uint32_t n) {
    const uint32_t before = *cap;
    if (!array_reserve(items, item_bytes, cap, sizeof *cap, used, n)) return false;
    s->bytes += (*cap - before) * item_bytes;
    return true;
}

static bool table_reserve(struct gram_states *s, struct gram_table *t, uint32_t used, const uint32_t *hashes,
                          size_t stride_bytes) {
    if (used * 2 < t->n_slots) return true;
    uint32_t n = t->n_slots ? t->n_slots * 2 : 256;
    uint32_t *slots = calloc(n, sizeof *slots);
    if (!slots) return false;
    for (uint32_t i = 0; i < used; i++) {
        uint32_t hash;
        memcpy(&hash, (const char *)hashes + i * stride_bytes, sizeof hash);
        uint32_t at = hash & (n - 1);
        while (slots[at]) at = (at + 1) & (n - 1);
        slots[at] = i + 1;
    }
    free(t->slots);
    s->bytes += (n - t->n_slots) * sizeof *slots;
    t->slots = slots;
    t->n_slots = n;
    return true;
}

static uint32_t hash_mix(uint32_t a, uint32_t b) {
    uint32_t x = (a ^ 0x9E3779B9u) * 0x85EBCA6Bu ^ b;
    x = (x ^ x >> 15) * 0xC2B2AE35u;
    return x ^ x >> 13;
}

/* ---- frames ---- */

static bool frame_table_reserve(struct gram_states *s) {
    struct gram_table *t = &s->frame_table;
    if (s->n_frames * 2 < t->n_slots) return true;
    uint32_t *hashes = malloc((s->n_frames + 1) * sizeof *hashes);
    if (!hashes) return false;
    for (uint32_t i = 0; i < s->n_frames; i++) hashes[i] = hash_mix(s->frames[i].node, s->frames[i].below);
    bool ok = table_reserve(s, t, s->n_frames, hashes, sizeof *hashes);
    free(hashes);
    return ok;
}

static int frame_push(struct gram_states *s, uint32_t node, uint32_t below, uint32_t *out, struct rod_error *err) {
    assert(!s->n_frames || below < s->n_frames);
    if (!GRAM_RESERVE(s, frames, 1) || !frame_table_reserve(s)) return rod_fail_no_memory(err);
    struct gram_table *t = &s->frame_table;
    uint32_t at = hash_mix(node, below) & (t->n_slots - 1);
    for (; t->slots[at]; at = (at + 1) & (t->n_slots - 1)) {
        const struct gram_frame *f = &s->frames[t->slots[at] - 1];
        if (f->node != node || f->below != below) continue;
        *out = t->slots[at] - 1;
        return 0;
    }
    *out = s->n_frames;
    const uint32_t depth = s->n_frames ? s->frames[below].depth + 1 : 0;
    s->frames[s->n_frames++] = (struct gram_frame){node, below, depth};
    t->slots[at] = *out + 1;
    return 0;
}

/* ---- states ---- */

static int place_compare(const void *a, const void *b) {
    const struct gram_place *x = a, *y = b;
    if (x->node != y->node) return x->node < y->node ? -1 : 1;
    return x->stack < y->stack ? -1 : x->stack > y->stack;
}

/* The state with these places, found or new. Sorts them. */
int gram_state_of(struct grammar *g, struct gram_place *places, uint32_t n, bool accepts, uint32_t *out,
                  struct rod_error *err) {
    struct gram_states *s = &g->found;
    assert(n <= GRAMMAR_MAX_PLACES);
    if (n > 1) qsort(places, n, sizeof *places, place_compare);
    uint32_t hash = accepts;
    for (uint32_t i = 0; i < n; i++) hash = hash_mix(hash_mix(hash, places[i].node), places[i].stack);
    uint32_t cap = s->cap_states;
    bool ok = GRAM_RESERVE(s, states, 1);
    if (ok && cap != s->cap_states) {
        uint32_t *next = realloc(s->next, (size_t)s->cap_states * g->n_classes * sizeof *next);
        if (next) {
            s->next = next;
            s->bytes += (size_t)(s->cap_states - cap) * g->n_classes * sizeof *next;
        } else {
            s->cap_states = cap;
            ok = false;
        }
    }
    ok = ok && GRAM_RESERVE(s, places, n);
    if (!ok || !table_reserve(s, &s->state_table, s->n_states, s->states ? &s->states->hash : NULL, sizeof *s->states))
        return rod_fail_no_memory(err);
    struct gram_table *t = &s->state_table;
    uint32_t at = hash & (t->n_slots - 1);
    for (; t->slots[at]; at = (at + 1) & (t->n_slots - 1)) {
        const struct gram_state *st = &s->states[t->slots[at] - 1];
        if (st->hash != hash || st->n != n || st->accepts != accepts) continue;
        if (n && memcmp(s->places + st->first, places, n * sizeof *places) != 0) continue;
        *out = t->slots[at] - 1;
        return 0;
    }
    if (n) memcpy(s->places + s->n_places, places, n * sizeof *places);
    *out = s->n_states;
    s->states[s->n_states] = (struct gram_state){.first = s->n_places, .n = n, .hash = hash, .accepts = accepts};
    s->n_places += n;
    uint32_t *next = s->next + (size_t)s->n_states * g->n_classes;
    memset(next, GRAM_DEAD, g->n_classes * sizeof *next);
    for (uint32_t i = 0; i < n; i++) {
        const struct gram_node *node = &g->nodes[places[i].node];
        for (uint32_t c = g->class_of[node->lo]; c <= g->class_of[node->hi]; c++) next[c] = GRAM_UNKNOWN;
    }
    t->slots[at] = ++s->n_states;
    g->work += g->n_classes / CLASSES_A_PLACE;
    return 0;
}

/* ---- one transition ---- */

static void transition_begin(struct grammar *g) {
    if (++g->turn == 0) { /* after 2^32 transitions old marks would look new */
        memset(g->seen, 0, GRAM_SEEN_SLOTS * sizeof *g->seen);
        g->turn = 1;
    }
    g->n_todo = g->n_out = g->n_seen = 0;
    g->accepts = false;
}

/* To be followed, unless it was already or its end is too deep. */
static int transition_visit(struct grammar *g, uint32_t node, uint32_t stack, struct rod_error *err) {
    if (g->depth[node] == UINT8_MAX) return 0;
    if (g->depth[node] + g->found.frames[stack].depth > GRAMMAR_MAX_DEPTH) return 0;
    uint32_t at = hash_mix(node, stack) & (GRAM_SEEN_SLOTS - 1);
    for (; g->seen[at].turn == g->turn; at = (at + 1) & (GRAM_SEEN_SLOTS - 1))
        if (g->seen[at].node == node && g->seen[at].stack == stack) return 0;
    if (g->n_seen++ == GRAM_MAX_SEEN || g->work++ >= GRAMMAR_MAX_WORK) return fail_ambiguous(err);
    g->seen[at] = (struct gram_seen){node, stack, g->turn};
    assert(g->n_todo < GRAM_MAX_SEEN);
    g->todo[g->n_todo++] = (struct gram_place){node, stack};
    return 0;
}

/* Follows what is to do; leaves the new state's places in g->out. */
static int transition_follow(struct grammar *g, struct rod_error *err) {
    int rc = 0;
    while (!rc && g->n_todo) {
        struct gram_place p = g->todo[--g->n_todo];
        const struct gram_node *n = &g->nodes[p.node];
        uint32_t frame = p.stack;
        switch (n->kind) {
        case GRAM_RANGE:
            if (g->n_out == GRAMMAR_MAX_PLACES) return fail_ambiguous(err);
            g->out[g->n_out++] = p;
            break;
        case GRAM_SPLIT:
            rc = transition_visit(g, n->a, p.stack, err);
            if (!rc) rc = transition_visit(g, n->b, p.stack, err);
            break;
        case GRAM_CALL:
            if (n->b != GRAM_END_NODE) rc = frame_push(&g->found, n->b, p.stack, &frame, err);
            if (!rc) rc = transition_visit(g, g->rules[n->a], frame, err);
            break;
        case GRAM_END:
            if (p.stack == 0)
                g->accepts = true;
            else
                rc = transition_visit(g, g->found.frames[p.stack].node, g->found.frames[p.stack].below, err);
            break;
        default: break;
        }
    }
    return rc;
}

int gram_next(struct grammar *g, uint32_t state, uint8_t byte_class, uint32_t *next, struct rod_error *err) {
    assert(state < g->found.n_states && byte_class < g->n_classes);
    uint32_t *known = &g->found.next[(size_t)state * g->n_classes + byte_class];
    if (*known != GRAM_UNKNOWN) {
        *next = *known;
        return 0;
    }
    const uint8_t byte = g->byte_of[byte_class];
    const struct gram_state st = g->found.states[state];
    uint8_t lo = 0, hi = UINT8_MAX; /* bytes that the same places take */
    int rc = 0;
    transition_begin(g);
    g->work += st.n;
    for (uint32_t i = 0; !rc && i < st.n; i++) {
        struct gram_place p = g->found.places[st.first + i];
        const struct gram_node *n = &g->nodes[p.node];
        if (byte < n->lo) {
            if (hi >= n->lo) hi = (uint8_t)(n->lo - 1);
        } else if (byte > n->hi) {
            if (lo <= n->hi) lo = (uint8_t)(n->hi + 1);
        } else {
            if (lo < n->lo) lo = n->lo;
            if (hi > n->hi) hi = n->hi;
            rc = transition_visit(g, n->a, p.stack, err);
        }
    }
    if (!rc) rc = transition_follow(g, err);
    if (!rc) rc = gram_state_of(g, g->out, g->n_out, g->accepts, next, err);
    if (rc) return rc;
    uint32_t *row = g->found.next + (size_t)state * g->n_classes; /* the array may have moved */
    for (uint32_t c = g->class_of[lo]; c <= g->class_of[hi]; c++) row[c] = *next;
    return 0;
}

int gram_state_at(struct grammar *g, uint32_t node, uint32_t stack, uint32_t *out, struct rod_error *err) {
    transition_begin(g);
    int rc = transition_visit(g, node, stack, err);
    if (!rc) rc = transition_follow(g, err);
    return rc ? rc : gram_state_of(g, g->out, g->n_out, g->accepts, out, err);
}

static void states_free(struct gram_states *s, struct vocab *v) {
    for (uint32_t i = 0; i < s->n_states; i++)
        if (s->states[i].mask) vocab_give_mask(v, s->states[i].mask);
    free(s->exits);
    free(s->exit_tokens);
    free(s->frames);
    free(s->places);
    free(s->states);
    free(s->next);
    free(s->frame_table.slots);
    free(s->state_table.slots);
    *s = (struct gram_states){0};
}

/* The empty stack, the dead state and the first one. */
static int states_begin(struct grammar *g, struct rod_error *err) {
    uint32_t at;
    g->work = 0;
    g->found = (struct gram_states){0};
    int rc = frame_push(&g->found, GRAM_END_NODE, 0, &at, err);
    assert(rc || at == 0); /* the empty stack */
    if (!rc) rc = gram_state_of(g, NULL, 0, false, &at, err);
    assert(rc || at == GRAM_DEAD);
    if (!rc) rc = gram_state_at(g, g->rules[0], 0, &at, err);
    assert(rc || at == GRAM_START);
    return rc;
}

int gram_start(struct grammar *g, struct rod_error *err) {
    list_init(&g->walks);
    g->todo = malloc(GRAM_MAX_SEEN * sizeof *g->todo);
    g->out = malloc(GRAMMAR_MAX_PLACES * sizeof *g->out);
    g->seen = calloc(GRAM_SEEN_SLOTS, sizeof *g->seen);
    if (!g->todo || !g->out || !g->seen) return rod_fail_no_memory(err);
    return states_begin(g, err);
}

void gram_stop(struct grammar *g) {
    states_free(&g->found, g->vocab);
    free(g->todo);
    free(g->out);
    free(g->seen);
}

/* ---- dropping states in which no walk stands ---- */

static int states_copy_stack(struct grammar *g, const struct gram_states *old, uint32_t stack, uint32_t *out,
                             struct rod_error *err) {
    uint32_t path[GRAMMAR_MAX_DEPTH + 1], n = 0;
    assert(old->frames[stack].depth <= GRAMMAR_MAX_DEPTH);
    for (; stack; stack = old->frames[stack].below) path[n++] = old->frames[stack].node;
    int rc = 0;
    for (*out = 0; !rc && n > 0;) rc = frame_push(&g->found, path[--n], *out, out, err);
    return rc;
}

static int states_copy_one(struct grammar *g, const struct gram_states *old, uint32_t state, uint32_t *out,
                           struct rod_error *err) {
    const struct gram_state *st = &old->states[state];
    int rc = 0;
    for (uint32_t i = 0; !rc && i < st->n; i++) {
        g->out[i].node = old->places[st->first + i].node;
        rc = states_copy_stack(g, old, old->places[st->first + i].stack, &g->out[i].stack, err);
    }
    return rc ? rc : gram_state_of(g, g->out, st->n, st->accepts, out, err);
}

static struct grammar_walk *walk_of(struct list_link *link) { return LIST_OF(link, struct grammar_walk, link); }

void gram_drop_begun(struct grammar_walk *w) {
    struct grammar_begun *b = w->begun;
    if (!b) return;
    assert(w->grammar->n_begun > 0);
    w->grammar->n_begun--;
    vocab_give_mask(w->grammar->vocab, b->mask);
    free(b->tokens);
    free(b);
    w->begun = NULL;
}

/* A walk that stands where it stood has its mask: a step may be about to use it. */
static void states_keep_mask(struct grammar *g, struct gram_states *old, uint32_t from, uint32_t to) {
    if (!old->states[from].mask || g->found.states[to].mask || !g->vocab) return;
    const size_t bytes = ((size_t)g->vocab->V + 63) / 64 * sizeof(uint64_t);
    if (g->found.bytes + bytes > GRAMMAR_STATE_BYTES / 2) return;
    g->found.states[to].mask = old->states[from].mask;
    old->states[from].mask = NULL;
    g->found.bytes += bytes;
}

/* On an error everything stays as it was. */
int gram_drop_states(struct grammar *g, struct rod_error *err) {
    struct gram_states old = g->found;
    int rc = states_begin(g, err);
    for (struct list_link *l = list_first(&g->walks); l && !rc; l = list_next(&g->walks, l)) {
        struct grammar_walk *w = walk_of(l);
        rc = states_copy_one(g, &old, w->state, &w->moved, err);
    }
    if (rc) {
        states_free(&g->found, g->vocab);
        g->found = old;
        return rc;
    }
    states_keep_mask(g, &old, GRAM_START, GRAM_START);
    for (struct list_link *l = list_first(&g->walks); l; l = list_next(&g->walks, l)) {
        struct grammar_walk *w = walk_of(l);
        gram_drop_begun(w);
        states_keep_mask(g, &old, w->state, w->moved);
        w->state = w->moved;
    }
    states_free(&old, g->vocab);
    gram_count(g);
    return 0;
}

void gram_count(struct grammar *g) {
    if (!g->vocab) return;
    atomic_fetch_add_explicit(&g->vocab->state_bytes, g->found.bytes - g->counted, memory_order_relaxed);
    g->counted = g->found.bytes;
}

void gram_list_walk(struct grammar_walk *w) {
    if (w->link.next) return; /* else it stood at the start until now */
    assert(w->state == GRAM_START);
    list_push_first(&w->grammar->walks, &w->link);
}

int gram_trim(struct grammar *g, struct rod_error *err) {
    return g->found.bytes > (g->n_begun ? GRAMMAR_BEGUN_BYTES : GRAMMAR_STATE_BYTES) ? gram_drop_states(g, err) : 0;
}

/* ---- walks ---- */

void grammar_walk_init(struct grammar_walk *w, struct grammar *g) {
    *w = (struct grammar_walk){.grammar = g, .state = GRAM_START};
}

void grammar_walk_fini(struct grammar_walk *w) {
    gram_drop_begun(w);
    if (w->link.next) list_remove(&w->grammar->walks, &w->link);
    *w = (struct grammar_walk){0};
}

void grammar_walk_copy(struct grammar_walk *to, const struct grammar_walk *from) {
    *to = (struct grammar_walk){.grammar = from->grammar, .state = from->state};
    if (from->link.next) list_push_first(&from->grammar->walks, &to->link);
}

int grammar_walk_push(struct grammar_walk *w, const char *bytes, size_t n, struct rod_error *err) {
    struct grammar *g = w->grammar;
    gram_drop_begun(w);
    gram_list_walk(w);
    int rc = gram_trim(g, err);
    uint32_t state = w->state;
    assert(rc || state != GRAM_DEAD);
    g->work = 0;
    for (size_t i = 0; !rc && i < n; i++) {
        rc = gram_next(g, state, g->class_of[(unsigned char)bytes[i]], &state, err);
        if (!rc && state == GRAM_DEAD) rc = rod_fail(err, ROD_EINVALID, "does not allow this text");
    }
    if (!rc) w->state = state;
    gram_count(g);
    return rc;
}

enum { BEGIN_SLOTS = 4 * GRAMMAR_MAX_BEGIN };

/* Whether the transition is new in the table, which has room. */
static bool begin_is_new(uint64_t *seen, uint64_t transition) {
    uint32_t at = hash_mix((uint32_t)(transition >> 32), (uint32_t)transition) & (BEGIN_SLOTS - 1);
    while (seen[at] && seen[at] != transition) at = (at + 1) & (BEGIN_SLOTS - 1);
    const bool is_new = !seen[at];
    seen[at] = transition;
    return is_new;
}

/* A transition counts when the text first needs it, known or not, so that a text is always taken or never. */
int grammar_walk_begin(struct grammar_walk *w, const char *bytes, size_t n, struct rod_error *err) {
    struct grammar *g = w->grammar;
    if (n > GRAMMAR_MAX_BEGIN_BYTES)
        return rod_fail(err, ROD_EINVALID, "takes at most %u bytes of it", GRAMMAR_MAX_BEGIN_BYTES);
    uint64_t *seen = calloc(BEGIN_SLOTS, sizeof *seen);
    if (!seen) return rod_fail_no_memory(err);
    uint32_t n_looks = 0, n_states = 0;
    int rc = 0;
    for (size_t i = 0; !rc && i < n; i++) {
        if (g->found.n_states < n_states) memset(seen, 0, BEGIN_SLOTS * sizeof *seen); /* they have other numbers */
        n_states = g->found.n_states;
        const uint64_t transition = (uint64_t)w->state << 8 | g->class_of[(unsigned char)bytes[i]];
        assert(transition); /* the dead state is never left */
        if (begin_is_new(seen, transition)) n_looks += 1 + g->found.states[w->state].n;
        rc = n_looks > GRAMMAR_MAX_BEGIN
                 ? rod_fail(err, ROD_EINVALID, "needs more than %u steps to read this text", GRAMMAR_MAX_BEGIN)
                 : grammar_walk_push(w, &bytes[i], 1, err);
    }
    free(seen);
    return rc;
}

bool grammar_walk_accepts(const struct grammar_walk *w) {
    assert(w->state < w->grammar->found.n_states);
    return w->grammar->found.states[w->state].accepts;
}

bool grammar_walk_finished(const struct grammar_walk *w) {
    const struct gram_state *s = &w->grammar->found.states[w->state];
    return s->accepts && s->n == 0;
}
