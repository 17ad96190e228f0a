/* grammar_vocab.c - the vocabulary as a trie, and the tokens that a state allows.
 *
 * The trie lies in one array in the order of a walk from its root: a node that the grammar does not allow is skipped
 * with all below it, so a mask costs one pass over what is allowed. */
#include "grammar_internal.h"
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

struct vocab_node {
    uint32_t skip; /* the next node that is not below this one */
    int32_t id;    /* the token that ends here, or -1 */
    uint32_t depth;
    uint8_t byte;
};

struct vocab {
    struct vocab_node *nodes;
    uint32_t n_nodes, V, max_depth;
    uint32_t *path; /* [max_depth + 1] states on the way; used by the one thread that walks */
};

struct entry {
    const char *bytes;
    size_t len;
    int32_t id;
};

static int compare_entries(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);
    if (order) return order;
    if (x->len != y->len) return x->len < y->len ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Nodes from sorted entries: each adds what goes beyond the one before. Two tokens of the same bytes: the second adds
 * its last byte once more. */
static void add_nodes(struct vocab *v, const struct entry *e, size_t n, uint32_t *open) {
    size_t depth = 0;
    for (size_t i = 0; i < n; i++) {
        size_t same = 0;
        if (i)
            while (same < e[i].len && same < e[i - 1].len && e[i].bytes[same] == e[i - 1].bytes[same]) same++;
        if (same == e[i].len) same--;
        while (depth > same) v->nodes[open[depth--]].skip = v->n_nodes;
        while (depth < e[i].len) {
            v->nodes[v->n_nodes] =
                (struct vocab_node){.id = -1, .depth = (uint32_t)depth, .byte = (uint8_t)e[i].bytes[depth]};
            open[++depth] = v->n_nodes++;
        }
        v->nodes[v->n_nodes - 1].id = e[i].id;
    }
    while (depth > 0) v->nodes[open[depth--]].skip = v->n_nodes;
}

static int from_entries(struct entry *e, size_t n, uint32_t V, struct vocab **out, struct rod_error *err) {
    size_t n_bytes = 0, max = 0;
    for (size_t i = 0; i < n; i++) {
        n_bytes += e[i].len;
        if (e[i].len > max) max = e[i].len;
    }
    struct vocab *v = calloc(1, sizeof *v);
    uint32_t *open = malloc((max + 1) * sizeof *open);
    bool ok = v && open && n_bytes < UINT32_MAX;
    if (ok) {
        v->V = V;
        v->max_depth = (uint32_t)max;
        v->nodes = malloc((n_bytes + 1) * sizeof *v->nodes);
        v->path = malloc((max + 1) * sizeof *v->path);
        ok = v->nodes && v->path;
    }
    if (ok) {
        qsort(e, n, sizeof *e, compare_entries);
        add_nodes(v, e, n, open);
        struct vocab_node *less = realloc(v->nodes, (v->n_nodes + 1) * sizeof *less);
        if (less) v->nodes = less;
        *out = v;
    } else if (v) {
        vocab_free(v);
    }
    free(open);
    return ok ? 0 : rod_fail(err, ROD_ENOMEM, "No memory for the vocabulary as a trie.");
}

int vocab_new_bytes(const char *const *bytes, const size_t *lens, uint32_t n, struct vocab **out,
                    struct rod_error *err) {
    struct entry *e = malloc((n + 1) * sizeof *e);
    if (!e) return rod_fail(err, ROD_ENOMEM, "No memory for the vocabulary as a trie.");
    size_t n_entries = 0;
    for (uint32_t i = 0; i < n; i++)
        if (lens[i]) e[n_entries++] = (struct entry){bytes[i], lens[i], (int32_t)i};
    int rc = from_entries(e, n_entries, n, out, err);
    free(e);
    return rc;
}

int vocab_new(const struct tokenizer *tokenizer, uint32_t V, struct vocab **out, struct rod_error *err) {
    const uint32_t n = tokenizer_n_ids(tokenizer) < V ? tokenizer_n_ids(tokenizer) : V;
    struct entry *e = malloc((n + 1) * sizeof *e);
    if (!e) return rod_fail(err, ROD_ENOMEM, "No memory for the vocabulary as a trie.");
    size_t n_entries = 0;
    for (uint32_t i = 0; i < n; i++) {
        size_t len = 0;
        bool special = true;
        const char *bytes = tokenizer_bytes(tokenizer, (int32_t)i, &len, &special);
        if (bytes && len && !special) e[n_entries++] = (struct entry){bytes, len, (int32_t)i};
    }
    int rc = from_entries(e, n_entries, V, out, err);
    free(e);
    return rc;
}

void vocab_free(struct vocab *v) {
    if (!v) return;
    free(v->nodes);
    free(v->path);
    free(v);
}

static int fill_mask(struct grammar *g, const struct vocab *v, uint32_t state, uint64_t *mask, struct rod_error *err) {
    v->path[0] = state;
    for (uint32_t i = 0; i < v->n_nodes;) {
        const struct vocab_node *n = &v->nodes[i];
        const uint8_t byte_class = g->class_of[n->byte];
        uint32_t next = g->found.next[(size_t)v->path[n->depth] * g->n_classes + byte_class];
        if (next == GRAM_UNKNOWN) {
            int rc = gram_next(g, v->path[n->depth], byte_class, &next, err);
            if (rc) return rc;
        }
        if (next == GRAM_DEAD) {
            i = n->skip;
            continue;
        }
        v->path[n->depth + 1] = next;
        if (n->id >= 0) mask[n->id >> 6] |= 1ull << (n->id & 63);
        i++;
    }
    return 0;
}

int grammar_walk_mask(struct grammar_walk *w, const struct vocab *v, const uint64_t **mask, struct rod_error *err) {
    struct grammar *g = w->grammar;
    int rc = gram_trim(g, w, err);
    if (rc) return rc;
    if (!g->found.states[w->state].mask) {
        const size_t words = ((size_t)v->V + 63) / 64;
        uint64_t *new = calloc(words, sizeof *new);
        if (!new) return rod_fail(err, ROD_ENOMEM, "No memory for the mask of a grammar.");
        g->work = 0;
        rc = fill_mask(g, v, w->state, new, err);
        if (rc) {
            free(new);
            return rc;
        }
        g->found.states[w->state].mask = new;
        g->found.bytes += words * sizeof *new;
    }
    *mask = g->found.states[w->state].mask;
    return 0;
}
