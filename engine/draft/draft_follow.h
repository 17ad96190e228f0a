/* draft_follow.h - a text that repeats another one with changes: where it stands in the other one, its source, and what
 * it replaced by what. What was replaced once is drafted replaced from then on: a name that an edit changes.
 *
 * Source and text are stretches of one row of ids; -1 ends a source. Who owns what: no memory beside the struct. Pure.
 */
#ifndef DRAFT_FOLLOW_H
#define DRAFT_FOLLOW_H

#include <stdint.h>

enum { DRAFT_EDITS = 8, DRAFT_EDIT_TOK = 12, DRAFT_MOST_MATCH = 32 };
#define DRAFT_NOWHERE UINT32_MAX

struct draft_edit {
    int32_t from[DRAFT_EDIT_TOK], to[DRAFT_EDIT_TOK];
    uint32_t n_from, n_to; /* n_to may be 0: left out */
};

struct draft_follow {
    uint32_t at;      /* the place in the source that the next token is expected to be; NOWHERE */
    uint32_t n_right; /* tokens in a row that came as expected, up to DRAFT_MOST_MATCH */
    uint32_t lost;    /* tokens of the text since it left the source; 0: it has not */
    uint32_t left_at; /* where it left */
    uint32_t n_done;  /* tokens that came of the edit at this place; 0: none */
    uint32_t text_at; /* where the text begins: what stands there has its changes; NOWHERE: it has not begun */
    uint32_t n_edits;
    struct draft_edit edits[DRAFT_EDITS]; /* newest first */
};

void draft_follow_init(struct draft_follow *follow);
/* From this place on, behind so many tokens that agree. Edits stay. */
void draft_follow_start(struct draft_follow *follow, uint32_t at, uint32_t n_right);
/* ids[n - 1] is the text's next token. */
void draft_follow_token(struct draft_follow *follow, const int32_t *ids, uint32_t n);
/* The first ids are gone. */
void draft_follow_forget(struct draft_follow *follow, uint32_t n_gone);
/* Up to `most` tokens that may come next, as they follow `at`; where that is follow->at, an edit that began goes on. A
 * source that reaches the text's end goes on in the draft. */
uint32_t draft_follow_draft(const struct draft_follow *follow, const int32_t *ids, uint32_t n, uint32_t at,
                            uint32_t most, int32_t *out);

#endif
