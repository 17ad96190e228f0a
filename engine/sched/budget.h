/* budget.h - how many tokens of prompts a step may have beside streams, and which steps have none.
 *
 * A step takes what its decode rows take and, with prompts, their price (cost.h): a fixed part, on a GPU a few
 * milliseconds of small kernels, and a part for each token. Two bounds, and what goes beyond:
 *
 * 1. How long streams wait for a token. Prompts may take their time of a step (2.), but no more than makes it three
 *    times as long as its decode rows alone; or what makes it POLICY_STEP_NS, which is 125 tokens a second; or what
 *    makes the fixed part no more than two thirds of it.
 * 2. How much of the time prompts have: as much as streams, and for each that waits as much as a stream. A piece that
 *    takes more is a debt, and steps without prompts pay it back: so while few streams run a piece is large enough to
 *    be worth its fixed part and comes every few steps, in place of a small one in each.
 * 3. A burst of short prompts is little work, and its first tokens are waited for: each has more of the time, as far as
 *    reading it takes, in steps of up to POLICY_BURST_STEP_NS more than their decode rows, or without these. All
 *    together have POLICY_BURST_NS beyond 2., and an eighth of the time gives that back, so that streams keep theirs if
 *    short prompts never end.
 *
 * The figures are in engine/base/policy.h.
 * Who owns what: a budget belongs to a sampling site of a sched. Pure: no clock, no allocation; the engine thread.
 * Invariants: prompts that wait have tokens in one of POLICY_MOST_SKIPPED + 2 plans; what is not measured bounds
 * nothing.
 */
#ifndef BUDGET_H
#define BUDGET_H

#include "cost.h"

#include <stdbool.h>

enum { BUDGET_CLASSES = 33 };

struct prefill_budget {
    struct step_cost prompt;            /* of a step's tokens of prompts */
    uint64_t stream_ns[BUDGET_CLASSES]; /* [i] of up to 2^i decode rows alone; 0 = not known */
    uint64_t
        guessed; /* bits: stream_ns[i] is a step's time less its prompts' price, until a step of decode rows alone */
    uint64_t n_plans;   /* with prompts and decode rows since decode rows alone were measured */
    uint64_t burst_ns;  /* what is left for bursts */
    uint64_t debt_ns;   /* what prompts have had beyond their time */
    uint32_t n_skipped; /* plans in a row that left prompts out to pay the debt back */
    bool looked;        /* the plan before left prompts out to measure */
};

void budget_init(struct prefill_budget *p, uint32_t chunk_tok);
/* A step of so many decode rows and tokens of prompts took ns. */
void budget_took(struct prefill_budget *p, uint32_t n_decode, uint64_t n_prompt_tok, uint64_t ns);
/* A guess of what so many streams take, until a step of them is told. */
void budget_guess(struct prefill_budget *p, uint32_t n_decode, uint64_t ns);
/* What so many decode rows take alone; 0 = not known. */
uint64_t budget_streams_ns(const struct prefill_budget *p, uint32_t n_decode);

/* A plan: streams_ns is what the streams' rows take, prompt_ns what prompts may have beside them; 0 = not known, or no
 * streams. */
/* Whether prompts are left out of a plan of n_decode > 0 rows. burst: short prompts wait, and they are not left out
 * only to measure decode rows. */
bool budget_skips(struct prefill_budget *p, uint32_t n_decode, uint64_t prompt_ns, bool burst);
/* How much of want_ns short prompts of n_tok tokens have beyond the prompt time. */
uint64_t budget_burst_ns(const struct prefill_budget *p, uint64_t n_tok, uint64_t want_ns);
/* How many tokens a burst's step without decode rows has, up to most_tok; 0: the burst does not pay for all of it. */
uint64_t budget_alone_tok(const struct prefill_budget *p, uint64_t most_tok, uint64_t burst_ns);
/* How many tokens of prompts the plan may have; UINT64_MAX = any. prompt_ns includes burst_ns. */
uint64_t budget_fits_tok(const struct prefill_budget *p, uint64_t streams_ns, uint64_t prompt_ns, uint64_t burst_ns);
/* The plan has n_prompt_tok. For a step without streams' rows: streams_ns 0, and prompt_ns is burst_ns. */
void budget_spend(struct prefill_budget *p, uint64_t n_prompt_tok, uint64_t streams_ns, uint64_t prompt_ns,
                  uint64_t burst_ns);

#endif
