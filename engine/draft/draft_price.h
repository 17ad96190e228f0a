/* draft_price.h - what steps of some streams take, and what a draft token more costs one: means of measured times. A
 * draft token's row shares the state and window of its stream, so it costs less than a stream. Pure; the engine thread.
 */
#ifndef DRAFT_PRICE_H
#define DRAFT_PRICE_H

#include <stdint.h>

enum { DRAFT_PRICE_CLASSES = 48 };

struct draft_price {
    struct {
        double ns;                /* mean */
        uint32_t n;               /* steps, up to a bound */
    } plain[DRAFT_PRICE_CLASSES]; /* without drafts, by streams: each number up to 16, then four an octave */
    double token_ns;              /* mean of a draft token */
    uint32_t n_tok;               /* draft tokens, up to a bound */
};

void draft_price_learn(struct draft_price *price, uint32_t streams, uint32_t drafts, uint64_t ns);
/* What a step of so many streams takes, and one draft token more. 0, both: not known yet. */
void draft_price_of(const struct draft_price *price, uint32_t streams, double *step_ns, double *token_ns);

#endif
