/* grammar.c - a text of any kind to an automaton, and the cache of those that requests share.
 *
 * The cache keeps every grammar that a request holds, and of the others the latest, up to a count and a sum of memory,
 * with few states. Held grammars have a sum of memory, too, and of that each key leaves a part to the others.
 * Compiling runs outside the lock: two threads may compile the same text, and the second takes the first one's. */
#include "grammar_internal.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEEP_UNUSED = 32, TOOL_DEPTH = 4 /* calls around a tool's arguments */ };
#define KEEP_BYTES  ((size_t)64 << 20) /* of unused ones together */
#define KEEP_STATES ((size_t)4 << 20)  /* of one of them */

/* A text's grammar. */
struct shared {
    struct grammar_cache *cache;
    struct list_link link;
    struct grammar *grammar;
    enum rod_grammar_kind kind;
    char *text;
    size_t len, bytes;  /* bytes: without its states */
    struct list owners; /* one a key */
};

/* One key's hold on a compiled grammar. */
struct rod_grammar {
    struct shared *shared;
    struct list_link link;
    uint32_t key;
    size_t users;
};

struct grammar_cache {
    pthread_mutex_t lock;
    const struct tokenizer *tokenizer;
    struct vocab *vocab;                        /* made for the first grammar */
    struct list all;                            /* the latest used first */
    size_t used_bytes, key_bytes[ROD_MAX_KEYS]; /* of those that are held, of all and by key */
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
        uint32_t root = IR_NOTHING;
        switch (kind) {
        case ROD_GRAMMAR_JSON_OBJECT: root = ir_json_object(&ir); break;
        case ROD_GRAMMAR_JSON_SCHEMA: ir_schema(&ir, text, len, IR_SCHEMA_TEXT); break;
        case ROD_GRAMMAR_REGEX: root = ir_regex(&ir, text, len, false); break;
        case ROD_GRAMMAR_CHOICE: ir_choice(&ir, text, len); break;
        case ROD_GRAMMAR_EBNF: ir_ebnf(&ir, text, len); break;
        case ROD_GRAMMAR_CALLS: ir_calls(&ir, text, len); break;
        }
        if (!ir.rc && root != IR_NOTHING) ir.rules[0] = root;
        rc = ir.rc;
    }
    if (!rc) rc = gram_build(g, &ir, err);
    if (!rc) rc = compile_check_tools(g, &ir, err);
    if (!rc) rc = gram_start(g, err);
    if (!rc) rc = gram_try_wide(g, err);
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

size_t grammar_own_bytes(const struct grammar *g) {
    return sizeof *g + g->cap_nodes * (sizeof *g->nodes + 5) + g->cap_chains * sizeof *g->chains + g->table_bytes +
           GRAM_SCRATCH_BYTES;
}

size_t grammar_bytes(const struct grammar *g) { return grammar_own_bytes(g) + g->found.bytes; }

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

static struct shared *shared_of(struct list_link *link) { return link ? LIST_OF(link, struct shared, link) : NULL; }

static void shared_free(struct shared *s) {
    if (!s) return;
    grammar_free(s->grammar);
    free(s->text);
    free(s);
}

/* Drops unused ones from the oldest on until few enough are left; all of them once the cache is closed. */
static void cache_drop_locked(struct grammar_cache *c) {
    size_t n = 0, bytes = 0;
    struct list_link *next;
    for (struct list_link *l = list_first(&c->all); l; l = next) {
        struct shared *s = shared_of(l);
        next = list_next(&c->all, l);
        if (s->owners.n) continue;
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

static struct shared *cache_find_locked(struct grammar_cache *c, enum rod_grammar_kind kind, const char *text,
                                        size_t len) {
    for (struct list_link *l = list_first(&c->all); l; l = list_next(&c->all, l)) {
        struct shared *s = shared_of(l);
        if (s->kind == kind && s->len == len && (len == 0 || memcmp(s->text, text, len) == 0)) return s;
    }
    return NULL;
}

/* Whether a key may hold so much more, and all of them that. */
static int cache_check_locked(const struct grammar_cache *c, uint32_t key, uint32_t quota, size_t more, size_t all_more,
                              struct rod_error *err) {
    const size_t all = c->used_bytes + all_more, mine = c->key_bytes[key] + more;
    if (all > GRAMMAR_USED_BYTES)
        return rod_fail(err, ROD_EGRAMMARS, "The compiled schemas and grammars in use have their limit of %zu MB.",
                        GRAMMAR_USED_BYTES >> 20);
    if (quota && mine > quota * (GRAMMAR_USED_BYTES - all))
        return rod_fail(err, ROD_EKEYGRAMMARS,
                        "This key has its share of the memory for compiled schemas and grammars in use: %zu of %zu MB.",
                        c->key_bytes[key] >> 20, GRAMMAR_USED_BYTES >> 20);
    return 0;
}

/* A new owner, of which the list has none. */
static int cache_own_locked(struct grammar_cache *c, struct shared *s, uint32_t key, uint32_t quota,
                            struct rod_grammar **out, struct rod_error *err) {
    int rc = cache_check_locked(c, key, quota, s->bytes, s->owners.n ? 0 : s->bytes, err);
    struct rod_grammar *own = rc ? NULL : calloc(1, sizeof *own);
    if (!own) return rc ? rc : rod_fail_no_memory(err);
    *own = (struct rod_grammar){.shared = s, .key = key};
    if (!s->owners.n) c->used_bytes += s->bytes;
    c->key_bytes[key] += s->bytes;
    list_push_first(&s->owners, &own->link);
    *out = own;
    return 0;
}

/* One more user, of this key. *out NULL: the cache has no such grammar, nor is one `made` for it. */
static int cache_take(struct grammar_cache *c, uint32_t key, uint32_t quota, enum rod_grammar_kind kind,
                      const char *text, size_t len, struct shared *made, struct rod_grammar **out,
                      struct rod_error *err) {
    int rc = 0;
    *out = NULL;
    pthread_mutex_lock(&c->lock);
    assert(!c->closed && key < ROD_MAX_KEYS);
    struct shared *s = cache_find_locked(c, kind, text, len), *is = s ? s : made;
    for (struct list_link *l = s ? list_first(&s->owners) : NULL; l && !*out; l = list_next(&s->owners, l)) {
        struct rod_grammar *own = LIST_OF(l, struct rod_grammar, link);
        if (own->key == key) *out = own;
    }
    if (is && !*out) rc = cache_own_locked(c, is, key, quota, out, err);
    if (*out) {
        (*out)->users++;
        if (s) list_remove(&c->all, &s->link);
        list_push_first(&c->all, &is->link);
    }
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int cache_need_vocab(struct grammar_cache *c, struct rod_error *err) {
    pthread_mutex_lock(&c->lock);
    int rc = c->vocab ? 0 : vocab_new(c->tokenizer, c->V, &c->vocab, err);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

static int shared_new(struct grammar_cache *c, enum rod_grammar_kind kind, const char *text, size_t len,
                      struct shared **out, struct rod_error *err) {
    struct shared *s = calloc(1, sizeof *s);
    if (!s) return rod_fail_no_memory(err);
    *s = (struct shared){.cache = c, .kind = kind, .len = len, .text = malloc(len + 1)};
    list_init(&s->owners);
    int rc = s->text ? grammar_compile(kind, text, len, &s->grammar, err) : rod_fail_no_memory(err);
    if (!rc) rc = grammar_prepare(s->grammar, c->vocab, err);
    if (rc) {
        shared_free(s);
        return rc;
    }
    if (len) memcpy(s->text, text, len);
    s->bytes = len + grammar_own_bytes(s->grammar);
    *out = s;
    return 0;
}

int grammar_cache_open(struct grammar_cache *c, uint32_t key, uint32_t quota, enum rod_grammar_kind kind,
                       const char *text, size_t len, struct rod_grammar **out, struct rod_error *err) {
    struct shared *made = NULL;
    int rc = cache_need_vocab(c, err);
    if (!rc) rc = cache_take(c, key, quota, kind, text, len, NULL, out, err);
    if (rc || *out) return rc;
    rc = shared_new(c, kind, text, len, &made, err);
    if (!rc) rc = cache_take(c, key, quota, kind, text, len, made, out, err);
    if (rc || (*out)->shared != made) shared_free(made);
    return rc;
}

struct rod_grammar *rod_grammar_ref(struct rod_grammar *own) {
    if (!own) return NULL;
    pthread_mutex_lock(&own->shared->cache->lock);
    assert(own->users);
    own->users++;
    pthread_mutex_unlock(&own->shared->cache->lock);
    return own;
}

/* Nobody walks in it any more, so its states may be dropped here. */
static void shared_unused_locked(struct grammar_cache *c, struct shared *s) {
    struct rod_error none;
    c->used_bytes -= s->bytes;
    if (s->grammar->found.bytes > KEEP_STATES) gram_drop_states(s->grammar, &none);
}

void rod_grammar_close(struct rod_grammar *own) {
    if (!own) return;
    struct shared *s = own->shared;
    struct grammar_cache *c = s->cache;
    pthread_mutex_lock(&c->lock);
    assert(own->users && own->link.next && s->link.next);
    if (--own->users == 0) {
        assert(c->key_bytes[own->key] >= s->bytes && c->used_bytes >= s->bytes);
        c->key_bytes[own->key] -= s->bytes;
        list_remove(&s->owners, &own->link);
        free(own);
        if (!s->owners.n) shared_unused_locked(c, s);
    }
    cache_leave(c);
}

const char *grammar_notes(const struct grammar *g) { return g->notes ? g->notes : ""; }
const char *rod_grammar_notes(const struct rod_grammar *own) { return grammar_notes(own->shared->grammar); }

struct grammar *grammar_of(const struct rod_grammar *own) {
    return own->shared->grammar;
}
const struct vocab *grammar_vocab(const struct rod_grammar *own) { return own->shared->cache->vocab; }
