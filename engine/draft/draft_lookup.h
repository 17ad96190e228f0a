/* draft_lookup.h - drafts from what a conversation has read and written: the tokens behind the place where its last
 * tokens stood before. An answer is followed through the text that it repeats, with its changes (draft_follow.h); a
 * prediction of the answer may come first and is followed from its beginning.
 *
 * Who owns what: the lookup owns its tables, all made by init; adding and looking up allocate nothing. Threads: its
 * owner's. Bounds: DRAFT_MAX_TOK tokens, the oldest half goes when they are full; a look compares DRAFT_MAX_LOOKS
 * places. Pure: a hint for speed, no token depends on it.
 */
#ifndef DRAFT_LOOKUP_H
#define DRAFT_LOOKUP_H

#include "draft_follow.h"
#include "engine/rodimus.h"

enum { DRAFT_MAX_TOK = 1 << 15, DRAFT_MAX_LOOKS = 32 };

struct draft_lookup {
    int32_t *ids;     /* [cap]; n so far. -1 stands between a prediction and the conversation */
    uint32_t *older;  /* [cap] 1 + the last place before with the same hash of its pair (two ids); 0 = none */
    uint32_t *newest; /* [n_heads] 1 + the newest place of a hash */
    uint32_t cap, n, n_heads;
    uint32_t n_predicted; /* of the ids, the first: the prediction's that are left */
    struct draft_follow follow;
};

/* What was found. */
struct draft_found {
    uint32_t n; /* tokens */
    uint32_t
        n_match; /* how many of the last tokens stand before them there or came as expected, up to DRAFT_MOST_MATCH */
    bool predicted; /* they are the prediction's, where it is followed */
};

/* Room for n_tok tokens, or for the bound. n_prediction ids may be NULL. */
int draft_lookup_init(struct draft_lookup *lookup, uint64_t n_tok, const int32_t *prediction, size_t n_prediction,
                      struct rod_error *err);
void draft_lookup_fini(struct draft_lookup *lookup);
/* How many tokens of a prompt's end are to be added: with more, a prediction would be forgotten before the answer. */
uint32_t draft_lookup_prompt(const struct draft_lookup *lookup);
void draft_lookup_add(struct draft_lookup *lookup, int32_t id);
void draft_lookup_generated(struct draft_lookup *lookup, int32_t id); /* the same, of the answer */
/* Its last tokens, at most n, without a prediction: a stretch of ids, until the next call that adds. */
const int32_t *draft_lookup_recent(const struct draft_lookup *lookup, uint32_t *n);
/* Up to n tokens that may come next. */
struct draft_found draft_lookup_next(const struct draft_lookup *lookup, uint32_t n, int32_t *out);

#endif
