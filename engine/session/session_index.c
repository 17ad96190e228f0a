/* session_index.c - the tree and the heap of session_table.h.
 *
 * The tree is a treap: in order of tenant and id, and each above those of a smaller hash. The hash is under the table's
 * key, so the depth is that of a random tree whatever the ids are. Each node counts the nodes below it, so a
 * tenant's number and any page of its list are found without the sessions of other tenants. */
#include "session_table.h"

#include <assert.h>
#include <string.h>

/* ---- the tree ---- */

static int tree_compare(const char *tenant, const char *id, const struct session *s) {
    const int by_tenant = strcmp(tenant, s->metadata.tenant);
    return by_tenant ? by_tenant : id ? strcmp(id, s->metadata.id) : 1;
}

static size_t tree_n_below(const struct session *s) { return s ? s->n_below : 0; }

static struct session *tree_measure(struct session *s) {
    s->n_below = 1 + tree_n_below(s->below[0]) + tree_n_below(s->below[1]);
    return s;
}

/* The sessions before s and those behind it. Recursion as deep as the tree. */
static void tree_split(struct session *root, const struct session *s, struct session *parts[2]) {
    if (!root) {
        parts[0] = parts[1] = NULL;
        return;
    }
    const int side = tree_compare(s->metadata.tenant, s->metadata.id, root) > 0; /* 1: root is before s */
    struct session *rest[2];
    tree_split(root->below[side], s, rest);
    root->below[side] = rest[!side];
    parts[side] = rest[side];
    parts[!side] = tree_measure(root);
}

static struct session *tree_join(struct session *before, struct session *behind) {
    if (!before || !behind) return before ? before : behind;
    if (before->hash[SESSION_BY_ID] > behind->hash[SESSION_BY_ID]) {
        before->below[1] = tree_join(before->below[1], behind);
        return tree_measure(before);
    }
    behind->below[0] = tree_join(before, behind->below[0]);
    return tree_measure(behind);
}

void session_tree_add(struct session_table *t, struct session *s) {
    assert(!s->below[0] && !s->below[1]); /* in no tree */
    struct session **at = &t->root;
    while (*at && (*at)->hash[SESSION_BY_ID] >= s->hash[SESSION_BY_ID]) {
        (*at)->n_below++;
        at = &(*at)->below[tree_compare(s->metadata.tenant, s->metadata.id, *at) > 0];
    }
    tree_split(*at, s, s->below);
    *at = tree_measure(s);
}

void session_tree_remove(struct session_table *t, struct session *s) {
    struct session **at = &t->root;
    while (*at != s) {
        assert(*at); /* it is in the tree */
        (*at)->n_below--;
        at = &(*at)->below[tree_compare(s->metadata.tenant, s->metadata.id, *at) > 0];
    }
    *at = tree_join(s->below[0], s->below[1]);
    s->below[0] = s->below[1] = NULL;
}

size_t session_tree_rank(const struct session_table *t, const char *tenant, const char *id, bool through) {
    size_t n = 0;
    for (const struct session *s = t->root; s;) {
        const int order = tree_compare(tenant, id, s);
        const bool behind = order > 0 || (through && order == 0);
        if (behind) n += 1 + tree_n_below(s->below[0]);
        s = s->below[behind];
    }
    return n;
}

struct session *session_tree_at(const struct session_table *t, size_t rank) {
    assert(rank < session_table_n(t));
    struct session *s = t->root;
    for (size_t before; (before = tree_n_below(s->below[0])) != rank;) {
        const bool behind = rank > before;
        if (behind) rank -= before + 1;
        s = s->below[behind];
    }
    return s;
}

/* ---- the heap ---- */

static void ends_place(struct session_table *t, struct session *s, size_t at) {
    t->ends[at - 1] = s;
    s->end_at = at;
}

static void ends_sift_up(struct session_table *t, struct session *s) {
    size_t at = s->end_at;
    for (; at > 1 && t->ends[at / 2 - 1]->due_s > s->due_s; at /= 2) ends_place(t, t->ends[at / 2 - 1], at);
    ends_place(t, s, at);
}

static void ends_sift_down(struct session_table *t, struct session *s) {
    size_t at = s->end_at;
    for (size_t next; (next = 2 * at) <= t->n_ends; at = next) {
        if (next < t->n_ends && t->ends[next]->due_s < t->ends[next - 1]->due_s) next++;
        if (t->ends[next - 1]->due_s >= s->due_s) break;
        ends_place(t, t->ends[next - 1], at);
    }
    ends_place(t, s, at);
}

static void ends_remove(struct session_table *t, struct session *s) {
    assert(s->end_at && s->end_at <= t->n_ends && t->ends[s->end_at - 1] == s);
    struct session *last = t->ends[--t->n_ends];
    if (last != s) {
        ends_place(t, last, s->end_at);
        ends_sift_up(t, last);
        ends_sift_down(t, last);
    }
    s->end_at = 0;
}

void session_ends_set(struct session_table *t, struct session *s, int64_t due_s) {
    if (due_s == INT64_MAX) {
        if (s->end_at) ends_remove(t, s);
        return;
    }
    if (s->end_at && s->due_s == due_s) return;
    s->due_s = due_s;
    assert(s->end_at || t->n_ends < t->ends_cap);
    if (!s->end_at) ends_place(t, s, ++t->n_ends);
    ends_sift_up(t, s);
    ends_sift_down(t, s);
}
