/* draft_lookup.c - chains of places with the same last pair of tokens, newest first, as compressors have them. */
#include "draft_lookup.h"
#include "engine/base/policy.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_TOK = 64 };
#define NONE DRAFT_NOWHERE

int draft_lookup_init(struct draft_lookup *l, uint64_t n_tok, const int32_t *prediction, size_t n_prediction,
                      struct rod_error *err) {
    const size_t most = DRAFT_MAX_TOK / 2, n_kept = n_prediction < most ? n_prediction : most;
    const uint64_t want = n_tok + n_kept + (n_kept > 0);
    *l = (struct draft_lookup){.n_heads = LEAST_TOK, .n_predicted = (uint32_t)n_kept};
    draft_follow_init(&l->follow);
    if (n_kept) draft_follow_start(&l->follow, 0, 0);
    l->cap = want < LEAST_TOK ? LEAST_TOK : want < DRAFT_MAX_TOK ? (uint32_t)want : DRAFT_MAX_TOK;
    while (l->n_heads < l->cap) l->n_heads *= 2;
    l->ids = malloc(l->cap * sizeof *l->ids);
    l->older = malloc(l->cap * sizeof *l->older);
    l->newest = calloc(l->n_heads, sizeof *l->newest);
    if (!l->ids || !l->older || !l->newest) {
        draft_lookup_fini(l);
        return rod_fail_no_memory(err);
    }
    for (size_t i = 0; i < n_kept; i++) draft_lookup_add(l, prediction[i]);
    if (n_kept) draft_lookup_add(l, -1);
    return 0;
}

void draft_lookup_fini(struct draft_lookup *l) {
    free(l->ids);
    free(l->older);
    free(l->newest);
    *l = (struct draft_lookup){0};
}

uint32_t draft_lookup_prompt(const struct draft_lookup *l) {
    const uint32_t answer = DRAFT_MAX_TOK / 4, kept = l->n_predicted ? l->n + answer : 0;
    return kept < DRAFT_MAX_TOK ? DRAFT_MAX_TOK - kept : 0;
}

static uint32_t lookup_head(const struct draft_lookup *l, uint32_t place) {
    const uint64_t pair = (uint64_t)(uint32_t)l->ids[place - 1] << 32 | (uint32_t)l->ids[place];
    return (uint32_t)(pair * 0x9e3779b97f4a7c15u >> 32) & (l->n_heads - 1);
}

static void lookup_index(struct draft_lookup *l, uint32_t place) {
    l->older[place] = 0;
    if (place == 0) return;
    uint32_t *newest = &l->newest[lookup_head(l, place)];
    l->older[place] = *newest;
    *newest = place + 1;
}

/* The newer half stays. */
static void lookup_forget(struct draft_lookup *l) {
    const uint32_t gone = l->n - l->n / 2;
    l->n -= gone;
    memmove(l->ids, l->ids + gone, l->n * sizeof *l->ids);
    memset(l->newest, 0, l->n_heads * sizeof *l->newest);
    for (uint32_t i = 0; i < l->n; i++) lookup_index(l, i);
    l->n_predicted = l->n_predicted < gone ? 0 : l->n_predicted - gone;
    draft_follow_forget(&l->follow, gone);
}

void draft_lookup_add(struct draft_lookup *l, int32_t id) {
    assert(l->cap >= LEAST_TOK && l->n <= l->cap);
    if (l->n == l->cap) lookup_forget(l);
    l->ids[l->n] = id;
    lookup_index(l, l->n++);
}

const int32_t *draft_lookup_recent(const struct draft_lookup *l, uint32_t *n) {
    uint32_t n_found = 0;
    while (n_found < *n && n_found < l->n && l->ids[l->n - 1 - n_found] >= 0) n_found++;
    *n = n_found;
    return l->ids ? l->ids + (l->n - n_found) : NULL;
}

/* How many of the last tokens stand before this place, too. */
static uint32_t lookup_match(const struct draft_lookup *l, uint32_t place) {
    uint32_t n = 0;
    while (n < DRAFT_MOST_MATCH && n < place && l->ids[place - 1 - n] == l->ids[l->n - 1 - n] &&
           l->ids[place - 1 - n] >= 0)
        n++;
    return n;
}

/* The place behind the longest match, the newest of those, or NONE. */
static uint32_t lookup_longest(const struct draft_lookup *l, uint32_t *n_match) {
    uint32_t best = NONE;
    *n_match = 1; /* a pair at least */
    if (l->n < 2) return NONE;
    uint32_t at = l->older[l->n - 1];
    for (int i = 0; i < DRAFT_MAX_LOOKS && at && *n_match < DRAFT_MOST_MATCH; i++, at = l->older[at - 1]) {
        const uint32_t n = lookup_match(l, at);
        if (n <= *n_match) continue;
        *n_match = n;
        best = at;
    }
    return best;
}

void draft_lookup_generated(struct draft_lookup *l, int32_t id) {
    struct draft_follow *f = &l->follow;
    uint32_t n_match;
    draft_lookup_add(l, id);
    draft_follow_token(f, l->ids, l->n);
    /* Where the text has left its source, a longer match may be the other name itself. */
    if (f->at != NONE && (f->lost || f->n_right >= POLICY_DRAFT_LEAST_MATCH)) return;
    const uint32_t at = lookup_longest(l, &n_match);
    if (at != NONE && l->ids[at] >= 0 && (f->at == NONE || n_match >= f->n_right + POLICY_DRAFT_SURER_BY))
        draft_follow_start(f, at, n_match);
}

struct draft_found draft_lookup_next(const struct draft_lookup *l, uint32_t n, int32_t *out) {
    const struct draft_follow *f = &l->follow;
    struct draft_found found = {0};
    uint32_t at = lookup_longest(l, &found.n_match);
    const bool in_prediction = f->at != NONE && f->at < l->n_predicted;
    if ((in_prediction || (f->at != NONE && f->n_right >= POLICY_DRAFT_LEAST_MATCH)) &&
        (at == NONE || found.n_match < f->n_right + POLICY_DRAFT_SURER_BY)) {
        at = f->at, found.n_match = f->n_right;
        found.predicted = in_prediction;
    }
    if (at != NONE) found.n = draft_follow_draft(f, l->ids, l->n, at, n, out);
    return found;
}
