/* draft_price.c - times on shared machines jump, so prices are means, and no time counts for more than a multiple. */
#include "draft_price.h"
#include "engine/base/policy.h"

#include <math.h>

enum { EACH = 16 };

static uint32_t streams_class(uint32_t streams) {
    if (streams <= EACH) return streams - 1;
    const uint32_t c = EACH + (uint32_t)(4 * log2((double)streams / EACH));
    return c < DRAFT_PRICE_STREAMS ? c : DRAFT_PRICE_STREAMS - 1;
}

static uint32_t drafts_class(uint32_t drafts) {
    if (drafts <= 2) return drafts;
    const uint32_t c = 2 + (uint32_t)ceil(log2((double)drafts)) - 1;
    return c < DRAFT_PRICE_DRAFTS ? c : DRAFT_PRICE_DRAFTS - 1;
}

double draft_price_plain(const struct draft_price *p, uint32_t streams, bool ahead) {
    if (!streams) return 0;
    const uint32_t c = streams_class(streams);
    const struct draft_mean *m = ahead ? &p->ahead[c] : &p->behind[c][0];
    return m->n < POLICY_DRAFT_PRICE_LEAST || m->age >= POLICY_DRAFT_PRICE_STALE ? 0 : m->ns;
}

/* On the line through two points, or from the first one on. */
static double price_between(double x, double x0, double y0, double x1, double y1) {
    return x1 > x0 ? y0 + (y1 - y0) * (x - x0) / (x1 - x0) : y0;
}

/* A draft token's part of a step of another number of streams; of a step of as many, until any is known. */
static double price_elsewhere(const struct draft_price *p, uint32_t streams, double plain) {
    const int c = (int)streams_class(streams);
    for (int far = 1; far < DRAFT_PRICE_STREAMS; far++)
        for (int side = -1; side <= 1; side += 2) {
            const int at = c + side * far;
            if (at < 0 || at >= DRAFT_PRICE_STREAMS || !p->behind[at][0].n) continue;
            for (int d = DRAFT_PRICE_DRAFTS - 1; d > 0; d--)
                if (p->behind[at][d].n)
                    return fmax(0,
                                (double)(p->behind[at][d].ns - p->behind[at][0].ns) / (double)p->behind[at][d].drafts);
        }
    return plain / (POLICY_DRAFT_FIXED_STREAMS + streams);
}

double draft_price_of(const struct draft_price *p, uint32_t streams, double drafts, double plain) {
    const struct draft_mean *of = p->behind[streams_class(streams)];
    double x0 = 0, y0 = of[0].n ? fmax(of[0].ns, plain) : plain;
    for (int d = 1; d < DRAFT_PRICE_DRAFTS; d++) {
        if (!of[d].n) continue;
        const double x1 = of[d].drafts, y1 = fmax(of[d].ns, y0); /* no more drafts in less time */
        if (drafts <= x1) return price_between(drafts, x0, y0, x1, y1);
        x0 = x1, y0 = y1;
    }
    if (x0 > 0) return plain + (y0 - plain) * drafts / x0; /* more than were ever tried: in proportion */
    return y0 + drafts * price_elsewhere(p, streams, plain);
}

/* Returns how much of ns counts: at most twice the expected time. */
static double mean_add(struct draft_mean *m, uint32_t drafts, double ns, double expected) {
    if (m->age >= POLICY_DRAFT_PRICE_STALE) m->n = 1; /* what it says is old */
    if (m->n) expected = m->ns;
    if (expected > 0 && ns > 2 * expected) ns = 2 * expected;
    if (m->n < POLICY_DRAFT_PRICE_MOST) m->n++;
    m->ns += (float)((ns - m->ns) / m->n);
    m->drafts += ((float)drafts - m->drafts) / (float)m->n;
    m->age = 0;
    return ns;
}

double draft_price_learn(struct draft_price *p, uint32_t streams, uint32_t drafts, bool ahead, uint64_t ns) {
    if (!streams || !ns) return 0;
    const uint32_t c = streams_class(streams);
    const double plain = fmax(draft_price_plain(p, streams, true), draft_price_plain(p, streams, false));
    const double expected = drafts && plain > 0 ? draft_price_of(p, streams, drafts, plain) : 0;
    const double counted =
        mean_add(ahead ? &p->ahead[c] : &p->behind[c][drafts_class(drafts)], drafts, (double)ns, expected);
    if (!drafts) return counted;
    p->ahead[c].age++;
    p->behind[c][0].age++;
    return counted;
}
