/* draft_follow.c - text and source part where a token is not the expected one, and meet again where a pair of tokens
 * agrees, or one that is as far from where they parted in both. What lies between is an edit. */
#include "draft_follow.h"
#include "engine/base/policy.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

void draft_follow_init(struct draft_follow *f) {
    *f = (struct draft_follow){.text_at = DRAFT_NOWHERE};
    draft_follow_start(f, DRAFT_NOWHERE, 0);
}

void draft_follow_start(struct draft_follow *f, uint32_t at, uint32_t n_right) {
    f->at = at;
    f->n_right = n_right;
    f->lost = f->n_done = 0;
}

static void follow_lose(struct draft_follow *f) { draft_follow_start(f, DRAFT_NOWHERE, 0); }

/* The edit whose source stands at this place, of ids[0, n): its index, or n_edits. */
static uint32_t follow_edit_at(const struct draft_follow *f, const int32_t *ids, uint32_t n, uint32_t at) {
    uint32_t i = 0;
    if (n > f->text_at) n = f->text_at;
    for (; i < f->n_edits; i++) {
        const struct draft_edit *e = &f->edits[i];
        if (at + e->n_from <= n && !memcmp(ids + at, e->from, e->n_from * sizeof *ids)) break;
    }
    return i;
}

static void follow_drop_edit(struct draft_follow *f, uint32_t i) {
    assert(i < f->n_edits);
    f->n_edits--;
    memmove(f->edits + i, f->edits + i + 1, (f->n_edits - i) * sizeof *f->edits);
}

/* The newest first; the oldest makes room, and so does another of the same source. */
static void follow_add_edit(struct draft_follow *f, const int32_t *from, uint32_t n_from, const int32_t *to,
                            uint32_t n_to) {
    if (!n_from || n_from > DRAFT_EDIT_TOK || n_to > DRAFT_EDIT_TOK) return;
    if (n_from == n_to && !memcmp(from, to, n_to * sizeof *to)) return;
    uint32_t same = 0;
    while (same < f->n_edits &&
           (f->edits[same].n_from != n_from || memcmp(f->edits[same].from, from, n_from * sizeof *from)))
        same++;
    if (same < f->n_edits) follow_drop_edit(f, same);
    if (f->n_edits == DRAFT_EDITS) f->n_edits--;
    memmove(f->edits + 1, f->edits, f->n_edits++ * sizeof *f->edits);
    struct draft_edit *e = &f->edits[0];
    e->n_from = n_from, e->n_to = n_to;
    memcpy(e->from, from, n_from * sizeof *from);
    memcpy(e->to, to, n_to * sizeof *to);
}

/* The source's place `at` and the text's end stand behind n_same tokens that agree. */
static void follow_meet(struct draft_follow *f, const int32_t *ids, uint32_t n, uint32_t at, uint32_t n_same) {
    uint32_t n_from = at - n_same - f->left_at, n_to = f->lost - n_same;
    if (!n_from) n_from++, n_to++; /* put in before the token behind it */
    follow_add_edit(f, ids + f->left_at, n_from, ids + (n - f->lost), n_to);
    draft_follow_start(f, at, n_same);
}

static void follow_lost(struct draft_follow *f, const int32_t *ids, uint32_t n) {
    const uint32_t left = f->left_at, last = left + DRAFT_EDIT_TOK + 1;
    f->at++;
    for (uint32_t i = left + 1; i <= last && i + 1 < n && ids[i] >= 0 && ids[i - 1] >= 0; i++)
        if (ids[i] == ids[n - 1] && ids[i - 1] == ids[n - 2]) {
            follow_meet(f, ids, n, i + 1, 2);
            return;
        }
    if (ids[f->at - 1] == ids[n - 1])
        follow_meet(f, ids, n, f->at, 1);
    else if (f->lost == POLICY_DRAFT_MOST_LOST)
        follow_lose(f);
}

/* After n_since tokens that are not the source's from here on. */
static void follow_part(struct draft_follow *f, const int32_t *ids, uint32_t n, uint32_t n_since) {
    f->left_at = f->at;
    f->at += n_since; /* as if as many tokens were others */
    f->lost = n_since;
    f->n_right = f->n_done = 0;
    for (uint32_t i = f->left_at; i < f->at && f->at < n; i++)
        if (ids[i] < 0) f->at = n; /* the source ended before */
}

/* Steps over edits at this place that leave tokens out, unless the token `id` comes after all. Returns the edit behind
 * them. */
static uint32_t follow_next_edit(struct draft_follow *f, const int32_t *ids, uint32_t n, int32_t id) {
    for (;;) {
        const uint32_t i = follow_edit_at(f, ids, n, f->at);
        if (i == f->n_edits || f->edits[i].n_to || ids[f->at] == id) return i;
        f->at += f->edits[i].n_from;
    }
}

/* The token is neither an edit's nor the source's: edits that were expected from this place on are dropped. */
static void follow_surprise(struct draft_follow *f, const int32_t *ids, uint32_t n, uint32_t at, uint32_t last_edit) {
    if (last_edit < f->n_edits) follow_drop_edit(f, last_edit);
    f->at = at;
    for (uint32_t i; (i = follow_edit_at(f, ids, n - 1, at)) < f->n_edits && !f->edits[i].n_to;) follow_drop_edit(f, i);
    follow_part(f, ids, n, f->n_done + 1);
}

static void follow_expect(struct draft_follow *f, const int32_t *ids, uint32_t n) {
    const int32_t id = ids[n - 1];
    const uint32_t at = f->at, i = follow_next_edit(f, ids, n - 1, id);
    struct draft_edit *e = i < f->n_edits ? &f->edits[i] : NULL;
    if (e && f->n_done < e->n_to && e->to[f->n_done] == id) {
        if (++f->n_done == e->n_to) f->at += e->n_from, f->n_done = 0;
    } else if (!f->n_done && ids[f->at] == id) {
        f->at++;
        if (e) follow_drop_edit(f, i); /* here it was not replaced */
    } else {
        follow_surprise(f, ids, n, f->n_done ? f->at : at, i);
        return;
    }
    if (f->n_right < DRAFT_MOST_MATCH) f->n_right++;
}

void draft_follow_token(struct draft_follow *f, const int32_t *ids, uint32_t n) {
    if (f->text_at == DRAFT_NOWHERE) f->text_at = n - 1;
    if (f->at == DRAFT_NOWHERE) return;
    assert(f->at + 1 < n);
    if (f->lost) {
        f->lost++;
        follow_lost(f, ids, n);
    } else
        follow_expect(f, ids, n);
    /* Nothing follows a source's end, and a text that parted may have run past it. */
    if (f->at != DRAFT_NOWHERE && (f->at >= n || ids[f->at] < 0)) follow_lose(f);
}

void draft_follow_forget(struct draft_follow *f, uint32_t n_gone) {
    const uint32_t first = f->lost ? f->left_at : f->at;
    if (f->text_at != DRAFT_NOWHERE) f->text_at -= f->text_at < n_gone ? f->text_at : n_gone;
    if (f->at == DRAFT_NOWHERE) return;
    if (first < n_gone) {
        follow_lose(f);
        return;
    }
    f->at -= n_gone;
    f->left_at -= f->lost ? n_gone : 0;
}

uint32_t draft_follow_draft(const struct draft_follow *f, const int32_t *ids, uint32_t n, uint32_t at, uint32_t most,
                            int32_t *out) {
    const bool goes_on = at == f->at;
    uint32_t n_done = goes_on ? f->n_done : 0, k = 0;
    while (k < most) {
        const uint32_t i = at < n && !(goes_on && f->lost) ? follow_edit_at(f, ids, n, at) : f->n_edits;
        if (i < f->n_edits) {
            const struct draft_edit *e = &f->edits[i];
            for (; n_done < e->n_to && k < most; n_done++) out[k++] = e->to[n_done];
            at += e->n_from;
            n_done = 0;
            continue;
        }
        if (at >= n + k) break; /* the text's end is left out */
        const int32_t id = at < n ? ids[at] : out[at - n];
        if (id < 0) break;
        out[k++] = id;
        at++;
    }
    return k;
}
