/* budget.c - what steps took becomes how many tokens of prompts the next ones have. */
#include "budget.h"
#include "engine/base/policy.h"

#include <assert.h>
#include <string.h>

static const uint64_t MOST_NS = 1000000000000; /* longer than any step: sums of times stay far from overflow */

void budget_init(struct prefill_budget *p, uint32_t chunk_tok) {
    memset(p, 0, sizeof *p);
    cost_init(&p->prompt, chunk_tok);
    p->burst_ns = POLICY_BURST_NS;
}

/* A GPU's decode steps are graphs for some numbers of rows. Classes are powers of two: n rows are taken to cost what
 * the next power of two costs. */
static int budget_class(uint32_t n) { return n > 1 ? 32 - __builtin_clz(n - 1) : 0; }

static uint64_t budget_larger(uint64_t a, uint64_t b) { return a > b ? a : b; }
static uint64_t budget_smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Towards `to` by a quarter. One slow step is not a pace: a thread that lost its processor for a while counts as a step
 * of four times the time. */
static uint64_t budget_move_nearer(uint64_t from, uint64_t to) {
    if (!from) return to;
    if (to / 4 > from) to = 4 * from;
    return to > from ? from + (to - from + 3) / 4 : from - (from - to) / 4;
}

/* Of the largest class up to c that is known. */
static uint64_t budget_up_to(const struct prefill_budget *p, int c) {
    for (int i = c; i >= 0; i--)
        if (p->stream_ns[i]) return p->stream_ns[i];
    return 0;
}

/* Of the smallest class from c on that is known. */
static uint64_t budget_from(const struct prefill_budget *p, int c) {
    for (int i = c; i < BUDGET_CLASSES; i++)
        if (p->stream_ns[i]) return p->stream_ns[i];
    return 0;
}

uint64_t budget_streams_ns(const struct prefill_budget *p, uint32_t n_decode) {
    if (n_decode == 0) return 0;
    const int c = budget_class(n_decode);
    assert(c < BUDGET_CLASSES);
    const uint64_t ns = budget_up_to(p, c);
    return ns ? ns : budget_from(p, c);
}

void budget_took(struct prefill_budget *p, uint32_t n_decode, uint64_t n_prompt_tok, uint64_t ns) {
    if (ns == 0) ns = 1;
    if (ns > MOST_NS) ns = MOST_NS;
    if (n_prompt_tok == 0) {
        if (n_decode == 0) return;
        const int c = budget_class(n_decode);
        p->stream_ns[c] = budget_move_nearer(p->guessed >> c & 1 ? 0 : p->stream_ns[c], ns);
        p->guessed &= ~(1ull << c);
        p->n_plans = 0;
        return;
    }
    const uint64_t streams_ns = budget_streams_ns(p, n_decode);
    if (n_decode && !streams_ns) return; /* whose time it was is not known */
    const int c = budget_class(n_decode);
    if (n_decode && !p->stream_ns[c] && p->prompt.n_most >= n_prompt_tok) { /* no step measured them alone */
        const uint64_t prompt_ns = cost_ns(&p->prompt, n_prompt_tok), more_ns = budget_from(p, c);
        const uint64_t guess = budget_larger(budget_up_to(p, c), ns > prompt_ns ? ns - prompt_ns : 0);
        p->stream_ns[c] = more_ns ? budget_smaller(guess, more_ns) : guess;
        p->guessed |= 1ull << c;
        return;
    }
    cost_learn(&p->prompt, n_prompt_tok, ns > streams_ns ? ns - streams_ns : 0);
}

void budget_guess(struct prefill_budget *p, uint32_t n_decode, uint64_t ns) {
    const int c = budget_class(n_decode);
    p->stream_ns[c] = ns ? budget_smaller(ns, MOST_NS) : 1;
    p->guessed |= 1ull << c;
}

bool budget_skips(struct prefill_budget *p, uint32_t n_decode, uint64_t prompt_ns, bool burst) {
    assert(n_decode > 0);
    if (p->debt_ns && p->debt_ns >= prompt_ns) {
        if (p->n_skipped++ < POLICY_MOST_SKIPPED) return true;
        p->debt_ns = 0;
    }
    /* Never twice in a row: what it takes may be told later. Where nothing is known yet, nothing is bounded. */
    const int c = budget_class(n_decode);
    const bool known = p->stream_ns[c] && !(p->guessed >> c & 1), any = budget_streams_ns(p, n_decode);
    p->looked = !p->looked && any && ((!known && !burst) || ++p->n_plans >= POLICY_PLANS_TRUSTED);
    if (p->looked) p->n_plans = 0;
    return p->looked;
}

uint64_t budget_burst_ns(const struct prefill_budget *p, uint64_t n_tok, uint64_t want_ns) {
    const uint64_t work_ns = n_tok ? cost_ns(&p->prompt, n_tok) : 0;
    return budget_smaller(budget_smaller(work_ns, want_ns), p->burst_ns);
}

uint64_t budget_alone_tok(const struct prefill_budget *p, uint64_t most_tok, uint64_t burst_ns) {
    const uint64_t tok = budget_smaller(most_tok, cost_fits(&p->prompt, POLICY_BURST_STEP_NS));
    return tok && p->debt_ns + cost_ns(&p->prompt, tok) <= burst_ns ? tok : 0;
}

uint64_t budget_fits_tok(const struct prefill_budget *p, uint64_t streams_ns, uint64_t prompt_ns, uint64_t burst_ns) {
    if (!streams_ns || !p->prompt.n_most) return UINT64_MAX;
    const uint64_t times_ns = POLICY_STREAM_TIMES * streams_ns;
    const uint64_t most_ns = burst_ns ? budget_larger(times_ns, POLICY_BURST_STEP_NS) : times_ns;
    uint64_t ns = budget_smaller(prompt_ns, most_ns);
    if (streams_ns < POLICY_STEP_NS) ns = budget_larger(ns, POLICY_STEP_NS - streams_ns);
    return cost_fits(&p->prompt, budget_larger(ns, (uint64_t)(POLICY_FIXED_TIMES * (double)cost_sure_ns(&p->prompt))));
}

void budget_spend(struct prefill_budget *p, uint64_t n_prompt_tok, uint64_t streams_ns, uint64_t prompt_ns,
                  uint64_t burst_ns) {
    const uint64_t ns = p->debt_ns + (n_prompt_tok ? cost_ns(&p->prompt, n_prompt_tok) : 0);
    assert(burst_ns <= prompt_ns && burst_ns <= p->burst_ns);
    if (ns > prompt_ns - burst_ns) p->burst_ns -= budget_smaller(burst_ns, ns - (prompt_ns - burst_ns));
    p->burst_ns = budget_smaller(p->burst_ns + streams_ns / POLICY_BURST_BACK, POLICY_BURST_NS);
    p->debt_ns = prompt_ns && ns > prompt_ns ? ns - prompt_ns : 0;
    if (n_prompt_tok) p->n_skipped = 0;
}
