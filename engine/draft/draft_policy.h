/* draft_policy.h - how many draft tokens a step takes along, so that they pay.
 *
 * Each stream offers its draft; a draft token is right if it and those before it are. Draft tokens are taken in the
 * order of their chances, up to where streams gain most. The gain is the mean of the logarithms of how much faster each
 * stream is, so that one stream's drafts do not slow many others. A step takes none where the gain is about nothing.
 * Chances are learned for each request and kind of draft, from those of all requests at first.
 *
 * Who owns what: counts belong to a request or to the engine. Pure; the engine thread.
 */
#ifndef DRAFT_POLICY_H
#define DRAFT_POLICY_H

#include "draft_price.h"

/* Kinds of drafts: by the length of the match (2, 3, 4 to 7, 8 to 15, from 16 on), or a prediction's. */
enum { DRAFT_KINDS = 6, DRAFT_PREDICTED = 5 };

struct draft_chance {
    float right, tried; /* draft tokens; older ones count less */
};
struct draft_chances {
    struct draft_chance of[DRAFT_KINDS];
    uint32_t n_refused[DRAFT_KINDS], n_vain[DRAFT_KINDS]; /* since the kind was tried; tries in vain in a row */
};

uint32_t draft_kind(uint32_t n_match, bool predicted);
double draft_chance(const struct draft_chances *own, const struct draft_chances *all, uint32_t kind);
/* Learns that the first n_right of a draft's n tokens were right. */
void draft_judge(struct draft_chances *chances, uint32_t kind, uint32_t n, uint32_t n_right);

/* A stream's draft of n tokens: the first is right with chance first, each one behind a right one with chance next. It
 * is read at all with chance read. */
struct draft_offer {
    double read, first, next;
    uint32_t n;
};
/* What all streams of a step offer, by classes of chances; {0} at first. */
enum { DRAFT_CLASSES = 16 };
struct draft_offers {
    double tokens[DRAFT_CLASSES], right[DRAFT_CLASSES];
    double gain[DRAFT_CLASSES]; /* sum of the logarithms of how much faster streams are with them */
};
void draft_offer_add(struct draft_offers *offers, const struct draft_offer *offer);
/* How many tokens each of n offers may have, where they have `tokens` together and a step has room for fewer. So no
 * stream's later tokens take the place of another's first. */
uint32_t draft_offer_most(uint32_t n, uint64_t tokens, uint32_t room);
/* The class from which on a step of so many streams takes draft tokens, as far as it has room for them; DRAFT_CLASSES:
 * it takes none. plain: the step's time without drafts; 0: not known. */
uint32_t draft_offers_settle(const struct draft_offers *offers, const struct draft_price *price, uint32_t streams,
                             uint32_t room, double plain);
/* How many tokens of an offer are in these classes. */
uint32_t draft_offer_taken(const struct draft_offer *offer, uint32_t class);
/* Whether a step that would take no drafts takes those that are not mostly wrong, to learn their price. Returns the
 * class, or DRAFT_CLASSES. */
struct draft_tries {
    double refused; /* right draft tokens since the last try */
    uint32_t n;     /* tries since drafts were taken for good: each waits twice as long */
};
uint32_t draft_offers_try(const struct draft_offers *offers, struct draft_tries *tries);
/* A draft of which none is taken: whether to try one token of it. Counts it. */
bool draft_try(struct draft_chances *own, uint32_t kind);
/* It is taken, or tried. */
void draft_tried(struct draft_chances *own, uint32_t kind);

/* What drafts have won and lost, so that they never cost much: drafts and tries are allowed while the account is not
 * overdrawn. Time without drafts pays a small part of itself in, so all drafts together lose no larger part, whatever
 * chances and prices say. What they win counts up to some steps. */
struct draft_account {
    double steps; /* in plain steps */
    bool opened;
};

/* A step that drafts had no part in. */
void draft_account_plain(struct draft_account *account);
/* A step with drafts, or one that was put off for them: the tokens that it gave would have taken plain_ns, and it took
 * ns. step_ns: a plain step. */
void draft_account_drafted(struct draft_account *account, double plain_ns, double ns, double step_ns);
bool draft_account_allows(const struct draft_account *account);
/* Whether it has enough for tries that will hardly pay. */
bool draft_account_rich(const struct draft_account *account);

#endif
