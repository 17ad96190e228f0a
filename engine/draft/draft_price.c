/* draft_price.c - times on shared machines jump, so both are means, and no time counts for more than a multiple. */
#include "draft_price.h"

#include <math.h>

enum { EACH = 16, MOST_STEPS = 32, MOST_TOK = 128 };
static const double FIRST_FIXED_STREAMS =
    4;                                  /* what a step costs beside its streams, in streams, until drafts are known */
static const double LEAST_PART = 0.002; /* of a step, for a draft token: none is free */

static uint32_t price_class(uint32_t streams) {
    if (streams <= EACH) return streams - 1;
    const uint32_t c = EACH + (uint32_t)(4 * log2((double)streams / EACH));
    return c < DRAFT_PRICE_CLASSES ? c : DRAFT_PRICE_CLASSES - 1;
}

void draft_price_learn(struct draft_price *p, uint32_t streams, uint32_t drafts, uint64_t ns) {
    if (!streams || !ns) return;
    const uint32_t c = price_class(streams);
    const double plain = p->plain[c].ns;
    if (!drafts) {
        const double took = p->plain[c].n && (double)ns > 2 * plain ? 2 * plain : (double)ns;
        if (p->plain[c].n < MOST_STEPS) p->plain[c].n++;
        p->plain[c].ns += (took - plain) / p->plain[c].n;
        return;
    }
    if (!p->plain[c].n) return;
    const double more = fmin(fmax((double)ns - plain, 0), 4 * plain) / drafts;
    p->n_tok = p->n_tok + drafts < MOST_TOK ? p->n_tok + drafts : MOST_TOK;
    p->token_ns += (more - p->token_ns) * fmin(1, (double)drafts / p->n_tok);
}

void draft_price_of(const struct draft_price *p, uint32_t streams, double *step_ns, double *token_ns) {
    *step_ns = *token_ns = 0;
    if (!streams || !p->plain[price_class(streams)].n) return;
    *step_ns = p->plain[price_class(streams)].ns;
    *token_ns = fmax(p->n_tok ? p->token_ns : *step_ns / (FIRST_FIXED_STREAMS + streams), LEAST_PART * *step_ns);
}
