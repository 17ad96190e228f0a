/* grammar.c - a text of any kind to an automaton, and the cache of those that requests share.
 *
 * The cache keeps every grammar that a request holds, and of the others the latest, up to a count and a sum of memory.
 * Compiling runs outside the lock: two threads may compile the same text, and the second takes the first one's. */
#include "grammar_internal.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEEP_UNUSED = 32, TOOL_DEPTH = 4 /* calls around a tool's arguments */ };
#define KEEP_BYTES ((size_t)128 << 20) /* of unused ones together */

struct rod_grammar {
    struct grammar_cache *cache;
    struct list_link link;
    struct grammar *grammar;
    enum rod_grammar_kind kind;
    char *text;
    size_t len, users;
};

struct grammar_cache {
    pthread_mutex_t lock;
    const struct tokenizer *tokenizer;
    struct vocab *vocab; /* made for the first grammar */
    struct list all;     /* the latest used first */
    uint32_t V;
    bool closed;
};

/* ---- compiling ---- */

/* A tool whose arguments had no end would vanish from the choice, and another would be called for it. The compiler of
 * schemas sees to it that there is none. */
static int compile_check_tools(const struct grammar *g, const struct ir *ir, struct rod_error *err) {
    for (uint32_t i = 0; i < ir->n_tools; i++)
        if (g->depth[g->rules[ir->tools + i]] > GRAMMAR_MAX_DEPTH - TOOL_DEPTH)
            return rod_fail(err, ROD_EINVALID, "has the tool number %u, whose arguments have no end", i);
    return 0;
}

int grammar_compile(enum rod_grammar_kind kind, const char *text, size_t len, struct grammar **out,
                    struct rod_error *err) {
    if (len > GRAMMAR_MAX_TEXT)
        return rod_fail(err, ROD_EINVALID, "has %zu bytes; the limit is %u", len, GRAMMAR_MAX_TEXT);
    struct rod_error own;
    if (!err) err = &own;
    struct ir ir;
    struct grammar *g = calloc(1, sizeof *g);
    int rc = ir_init(&ir, err);
    if (!g && !rc) rc = rod_fail_no_memory(err);
    if (!rc) {
        uint32_t whole = IR_NOTHING;
        switch (kind) {
        case ROD_GRAMMAR_JSON_OBJECT: whole = ir_json_object(&ir); break;
        case ROD_GRAMMAR_JSON_SCHEMA: ir_schema(&ir, text, len, false); break;
        case ROD_GRAMMAR_REGEX: whole = ir_regex(&ir, text, len, false); break;
        case ROD_GRAMMAR_CHOICE: ir_choice(&ir, text, len); break;
        case ROD_GRAMMAR_EBNF: ir_ebnf(&ir, text, len); break;
        case ROD_GRAMMAR_CALLS: ir_calls(&ir, text, len); break;
        }
        if (!ir.rc && whole != IR_NOTHING) ir.rules[0] = whole;
        rc = ir.rc;
    }
    if (!rc) rc = gram_build(g, &ir, err);
    if (!rc) rc = compile_check_tools(g, &ir, err);
    if (!rc) rc = gram_start(g, err);
    if (!rc && g->found.states[GRAM_START].n == 0) rc = rod_fail(err, ROD_EINVALID, "matches the empty text alone");
    if (!rc && ir.n_notes && !(g->notes = strdup(ir.notes))) rc = rod_fail_no_memory(err);
    ir_fini(&ir);
    if (rc)
        grammar_free(g);
    else
        *out = g;
    return rc;
}

void grammar_free(struct grammar *g) {
    if (!g) return;
    if (g->vocab) atomic_fetch_sub_explicit(&g->vocab->state_bytes, g->counted, memory_order_relaxed);
    gram_units_free(g);
    gram_stop(g);
    free(g->notes);
    free(g->nodes);
    free(g->chains);
    free(g->chain_at);
    free(g->depth);
    free(g->rules);
    free(g);
}

size_t grammar_bytes(const struct grammar *g) {
    return g->n_nodes * (sizeof *g->nodes + 5) + g->table_bytes + g->found.bytes;
}

/* ---- the cache; functions whose names end in _locked are called with its lock ---- */

int grammar_cache_new(const struct tokenizer *tokenizer, uint32_t V, struct grammar_cache **out,
                      struct rod_error *err) {
    struct grammar_cache *c = calloc(1, sizeof *c);
    if (!c || pthread_mutex_init(&c->lock, NULL)) {
        free(c);
        return rod_fail_no_memory(err);
    }
    list_init(&c->all);
    c->tokenizer = tokenizer;
    c->V = V;
    *out = c;
    return 0;
}

static struct rod_grammar *shared_of(struct list_link *link) {
    return link ? LIST_OF(link, struct rod_grammar, link) : NULL;
}

static void shared_free(struct rod_grammar *s) {
    grammar_free(s->grammar);
    free(s->text);
    free(s);
}

/* Drops unused ones from the oldest on until few enough are left; all of them once the cache is closed. */
static void cache_drop_locked(struct grammar_cache *c) {
    size_t n = 0, bytes = 0;
    struct list_link *next;
    for (struct list_link *l = list_first(&c->all); l; l = next) {
        struct rod_grammar *s = shared_of(l);
        next = list_next(&c->all, l);
        if (s->users) continue;
        n++;
        bytes += s->len + grammar_bytes(s->grammar);
        if (!c->closed && n <= KEEP_UNUSED && bytes <= KEEP_BYTES) continue;
        list_remove(&c->all, l);
        shared_free(s);
    }
}

void grammar_cache_trim(struct grammar_cache *c, const struct grammar *but) {
    struct rod_error none;
    if (!c || !c->vocab || atomic_load_explicit(&c->vocab->state_bytes, memory_order_relaxed) <= GRAMMAR_ALL_BYTES)
        return;
    pthread_mutex_lock(&c->lock);
    /* the oldest used first; what a grammar has from the start stays */
    for (size_t least = GRAMMAR_STATE_BYTES / 16; least; least = least > 1 << 16 ? 1 << 16 : 0)
        for (struct list_link *l = list_last(&c->all); l; l = list_before(&c->all, l)) {
            struct grammar *g = shared_of(l)->grammar;
            if (atomic_load_explicit(&c->vocab->state_bytes, memory_order_relaxed) <= GRAMMAR_ALL_BYTES / 4 * 3) break;
            if (g != but && g->found.bytes >= least) gram_drop_states(g, &none);
        }
    pthread_mutex_unlock(&c->lock);
}

/* Unlocks; frees the cache if nobody needs it any more. */
static void cache_leave(struct grammar_cache *c) {
    cache_drop_locked(c);
    bool gone = c->closed && !c->all.n;
    pthread_mutex_unlock(&c->lock);
    if (!gone) return;
    assert(!c->all.n);
    vocab_free(c->vocab);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void grammar_cache_close(struct grammar_cache *c) {
    if (!c) return;
    pthread_mutex_lock(&c->lock);
    assert(!c->closed);
    c->closed = true;
    cache_leave(c);
}

static struct rod_grammar *cache_find_locked(struct grammar_cache *c, enum rod_grammar_kind kind, const char *text,
                                             size_t len) {
    for (struct list_link *l = list_first(&c->all); l; l = list_next(&c->all, l)) {
        struct rod_grammar *s = shared_of(l);
        if (s->kind == kind && s->len == len && (len == 0 || memcmp(s->text, text, len) == 0)) return s;
    }
    return NULL;
}

/* One more user; NULL: the cache has no such grammar. */
static struct rod_grammar *cache_take(struct grammar_cache *c, enum rod_grammar_kind kind, const char *text, size_t len,
                                      struct rod_grammar *made) {
    pthread_mutex_lock(&c->lock);
    struct rod_grammar *s = cache_find_locked(c, kind, text, len);
    if (s)
        list_remove(&c->all, &s->link);
    else
        s = made;
    assert(!c->closed);
    if (s) {
        list_push_first(&c->all, &s->link);
        s->users++;
    }
    pthread_mutex_unlock(&c->lock);
    return s;
}

static int cache_need_vocab(struct grammar_cache *c, struct rod_error *err) {
    pthread_mutex_lock(&c->lock);
    int rc = c->vocab ? 0 : vocab_new(c->tokenizer, c->V, &c->vocab, err);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

int grammar_cache_open(struct grammar_cache *c, enum rod_grammar_kind kind, const char *text, size_t len,
                       struct rod_grammar **out, struct rod_error *err) {
    int rc = cache_need_vocab(c, err);
    if (rc) return rc;
    *out = cache_take(c, kind, text, len, NULL);
    if (*out) return 0;
    struct rod_grammar *s = calloc(1, sizeof *s);
    char *copy = malloc(len + 1);
    rc = s && copy ? 0 : rod_fail_no_memory(err);
    if (!rc) rc = grammar_compile(kind, text, len, &s->grammar, err);
    if (!rc) rc = grammar_prepare(s->grammar, c->vocab, err);
    if (rc) {
        grammar_free(s ? s->grammar : NULL);
        free(copy);
        free(s);
        return rc;
    }
    if (len) memcpy(copy, text, len);
    s->cache = c;
    s->kind = kind;
    s->text = copy;
    s->len = len;
    *out = cache_take(c, kind, text, len, s);
    if (*out != s) shared_free(s);
    return 0;
}

struct rod_grammar *rod_grammar_share(struct rod_grammar *s) {
    if (!s) return NULL;
    pthread_mutex_lock(&s->cache->lock);
    assert(s->users);
    s->users++;
    pthread_mutex_unlock(&s->cache->lock);
    return s;
}

void rod_grammar_close(struct rod_grammar *s) {
    if (!s) return;
    struct grammar_cache *c = s->cache;
    pthread_mutex_lock(&c->lock);
    assert(s->users && s->link.next);
    s->users--;
    cache_leave(c);
}

const char *grammar_notes(const struct grammar *g) { return g->notes ? g->notes : ""; }
const char *rod_grammar_notes(const struct rod_grammar *s) { return grammar_notes(s->grammar); }

struct grammar *grammar_of(const struct rod_grammar *s) {
    return s->grammar;
}
const struct vocab *grammar_vocab(const struct rod_grammar *s) { return s->cache->vocab; }
