/* draft_price.h - what steps of some streams take, with drafts and without: means of measured times. Pure; the engine
 * thread.
 *
 * A step without drafts may be made ready while the one before it runs (`ahead`). A step with drafts, and the one after
 * it, need the tokens of the step before and begin behind it: the time that the device waits is part of theirs.
 */
#ifndef DRAFT_PRICE_H
#define DRAFT_PRICE_H

#include <stdbool.h>
#include <stdint.h>

enum { DRAFT_PRICE_STREAMS = 48, DRAFT_PRICE_DRAFTS = 9 };

struct draft_mean {
    float ns, drafts; /* means */
    uint32_t n;       /* steps, up to a bound */
    uint32_t age;     /* steps with drafts of as many streams since the last one */
};
struct draft_price {
    /* By streams: each number up to 16, then four classes an octave. */
    struct draft_mean ahead[DRAFT_PRICE_STREAMS];
    struct draft_mean behind[DRAFT_PRICE_STREAMS][DRAFT_PRICE_DRAFTS]; /* by drafts: none, 1, 2, then an octave each */
};

/* Returns how much of ns counts: on a busy machine some steps take many times their price. */
double draft_price_learn(struct draft_price *price, uint32_t streams, uint32_t drafts, bool ahead, uint64_t ns);
/* What a step without drafts takes, begun ahead where it may be. 0: not known, or not measured for long. */
double draft_price_plain(const struct draft_price *price, uint32_t streams, bool ahead);
/* What a step with drafts takes, more or less; drafts may be an expectation. plain: of as many streams, known. */
double draft_price_of(const struct draft_price *price, uint32_t streams, double drafts, double plain);

#endif
