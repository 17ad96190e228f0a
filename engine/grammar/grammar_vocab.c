/* grammar_vocab.c - the vocabulary as a trie, and a walk through it beside a grammar.
 *
 * The trie lies in one array, level after level, the children of a node side by side: a node that the grammar does not
 * allow costs a look, and nothing below it is touched. */
#include "grammar_internal.h"
#include "engine/base/fail.h"
#include "engine/text/tokenizer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SPARE = 256 };

static int entry_compare(const void *a, const void *b) {
    const struct vocab_entry *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);
    if (order) return order;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* The nodes below one: entries [first, last), of which all share their first `depth` bytes and are longer. Two tokens
 * of the same bytes are two nodes. */
struct span {
    size_t first, last;
};

static void vocab_add_children(struct vocab *v, struct span *spans, const struct vocab_entry *e, uint32_t node,
                               size_t depth) {
    const struct span all = spans[node];
    v->nodes[node].child = v->n_nodes;
    for (size_t i = all.first; i < all.last;) {
        const uint8_t byte = (uint8_t)e[i].bytes[depth];
        struct vocab_node child = {.id = -1, .byte = byte};
        for (; i < all.last && (uint8_t)e[i].bytes[depth] == byte && e[i].len == depth + 1; i++) {
            if (child.id >= 0) {
                spans[v->n_nodes] = (struct span){0};
                v->nodes[v->n_nodes++] = child;
            }
            child.id = e[i].id;
        }
        const size_t first = i;
        while (i < all.last && (uint8_t)e[i].bytes[depth] == byte) i++;
        spans[v->n_nodes] = (struct span){first, i};
        v->nodes[v->n_nodes++] = child;
    }
    assert(v->n_nodes > node);
    v->nodes[node].n_children = v->n_nodes - v->nodes[node].child;
}

static void vocab_add_nodes(struct vocab *v, struct span *spans, const struct vocab_entry *e, size_t n) {
    v->nodes[v->n_nodes++] = (struct vocab_node){.id = -1};
    spans[0] = (struct span){0, n};
    size_t depth = 0;
    for (uint32_t node = 0, level_end = 1; node < v->n_nodes; node++) {
        if (node == level_end) {
            depth++;
            level_end = v->n_nodes;
        }
        vocab_add_children(v, spans, e, node, depth);
    }
}

/* A state met for the first time then costs no page faults: four of them take longer than the mask. */
static void vocab_fill_spares(struct vocab *v) {
    const size_t bytes = ((size_t)v->V + 63) / 64 * sizeof(uint64_t);
    for (uint64_t *mask; v->n_spare < MAX_SPARE && (mask = malloc(bytes)); v->spare[v->n_spare++] = mask)
        memset(mask, 0xff, bytes);
}

int vocab_from_entries(struct vocab_entry *e, size_t n, uint32_t V, struct vocab **out, struct rod_error *err) {
    size_t n_bytes = 0, max = 0;
    for (size_t i = 0; i < n; i++) {
        n_bytes += e[i].len;
        if (e[i].len > max) max = e[i].len;
    }
    struct vocab *v = calloc(1, sizeof *v);
    struct span *spans = malloc((n_bytes + 1) * sizeof *spans);
    bool ok = v && spans && n_bytes < UINT32_MAX && pthread_mutex_init(&v->lock, NULL) == 0;
    if (ok) {
        list_init(&v->tables);
        v->V = V;
        v->max_depth = (uint32_t)max;
        v->nodes = malloc((n_bytes + 1) * sizeof *v->nodes);
        v->spare = malloc(MAX_SPARE * sizeof *v->spare);
        ok = v->nodes && v->spare;
        if (!ok) vocab_free(v);
    } else {
        free(v);
    }
    if (ok) {
        if (n) qsort(e, n, sizeof *e, entry_compare);
        vocab_add_nodes(v, spans, e, n);
        assert(v->n_nodes >= 1 && v->n_nodes <= n_bytes + 1);
        struct vocab_node *less = realloc(v->nodes, v->n_nodes * sizeof *less);
        if (less) v->nodes = less;
        vocab_fill_spares(v);
        *out = v;
    }
    free(spans);
    return ok ? 0 : rod_fail_no_memory(err);
}

int vocab_new(const struct tokenizer *tokenizer, uint32_t V, struct vocab **out, struct rod_error *err) {
    const uint32_t n = tokenizer_n_ids(tokenizer) < V ? tokenizer_n_ids(tokenizer) : V;
    struct vocab_entry *e = malloc((n + 1) * sizeof *e);
    if (!e) return rod_fail_no_memory(err);
    size_t n_entries = 0;
    for (uint32_t i = 0; i < n; i++) {
        size_t len = 0;
        bool special = true;
        const char *bytes = tokenizer_bytes(tokenizer, (int32_t)i, &len, &special);
        if (bytes && len && !special) e[n_entries++] = (struct vocab_entry){bytes, len, (int32_t)i};
    }
    int rc = vocab_from_entries(e, n_entries, V, out, err);
    free(e);
    return rc;
}

void vocab_free(struct vocab *v) {
    if (!v) return;
    assert(!v->tables.n); /* grammars end before their vocabulary */
    free(v->nodes);
    for (uint32_t i = 0; i < v->n_spare; i++) free(v->spare[i]);
    free(v->spare);
    pthread_mutex_destroy(&v->lock);
    free(v);
}

uint64_t *vocab_mask(struct vocab *v) {
    const size_t bytes = ((size_t)v->V + 63) / 64 * sizeof(uint64_t);
    uint64_t *mask = NULL;
    pthread_mutex_lock(&v->lock);
    assert(v->n_spare <= MAX_SPARE);
    if (v->n_spare) mask = v->spare[--v->n_spare];
    pthread_mutex_unlock(&v->lock);
    if (!mask) return calloc(1, bytes);
    memset(mask, 0, bytes);
    return mask;
}

void vocab_give_mask(struct vocab *v, uint64_t *mask) {
    if (v && mask) {
        pthread_mutex_lock(&v->lock);
        if (v->n_spare < MAX_SPARE) {
            v->spare[v->n_spare++] = mask;
            mask = NULL;
        }
        pthread_mutex_unlock(&v->lock);
    }
    free(mask);
}
