/* policy.h - the tuned constants of scheduling, pacing, flights, masks, drafts and prefix keeping: for each its value,
 * its unit, and the run that chose it. A commit below has the figures of its run in its message; a test or a result is
 * named by its file. "By hand": no recorded run chose the value. tests/bench/policy.c halves and doubles the
 * scheduler's in virtual time and prints what that changes.
 *
 * A bound that only keeps memory or work finite is no policy and stays in its file.
 */
#ifndef POLICY_H
#define POLICY_H

/* ROW(type, name, value, unit and what it is of, the run that chose it) */

#define POLICY_SCHED(ROW)                                                                                              \
    ROW(INT, GENERATED_TOK, 2, "tokens of a prompt that a generated one counts as, between keys", "by hand")           \
    ROW(INT, STREAM_TIMES, 2, "times its decode rows, that prompts add to a step at most",                             \
        "82da3458, by hand; with both parts of a price 64 first tokens 607 -> 163 ms (virtual time)")                  \
    ROW(INT, STEP_NS, 8000000, "ns a step with prompts may take whatever its streams take",                            \
        "82da3458, by hand: 125 tokens a second")                                                                      \
    ROW(INT, PIECE_ALIGNS_TOK, 2048, "tokens of a piece from inside a chunk on, that first ends the chunk alone",      \
        "b475e9d2, by hand: 6,384 tokens from inside a chunk took 4 to 5 ms more than from its end")                   \
    ROW(REAL, FIXED_TIMES, 1.5, "times its fixed part, that a piece takes at least", "82da3458, by hand")              \
    ROW(INT, MOST_SKIPPED, 32, "plans in a row that pay a debt back without prompts", "by hand")                       \
    ROW(INT, PLANS_TRUSTED, 64, "plans with prompts that trust one time of decode rows alone", "by hand")              \
    ROW(INT, SHORT_CHUNKS, 8, "chunks of a prompt that counts as short", "by hand, with 346b6b63")                     \
    ROW(INT, SHORT_STREAMS, 8, "streams that a short prompt counts as",                                                \
        "346b6b63, virtual time: 256 first tokens 520 -> 427 ms, 64 of them 163 -> 94")                                \
    ROW(INT, BURST_STEP_NS, 16000000, "ns of prompts in a burst's step",                                               \
        "346b6b63; three times the streams' time: 411 ms for 360 (virtual time); 24 ms: no change (H200)")             \
    ROW(INT, BURST_NS, 250000000, "ns that bursts have beyond the prompt time",                                        \
        "346b6b63: 256 prompts of 128 tokens are 230 ms on an H200")                                                   \
    ROW(INT, BURST_BACK, 8, "of the streams' time one part in so many gives a burst back",                             \
        "346b6b63: prompts without end leave 64 streams a pace of 0.375 for 0.4")                                      \
    ROW(INT, ALONE_CHUNKS, 128, "chunks of short prompts from which every other step is theirs alone",                 \
        "0ee0f043, virtual time: 322 -> 278 ms; begun sooner, 64 streams of a CPU wait 27.8 ms for 17.8")              \
    ROW(INT, ALONE_PROMPTS, 2, "short prompts for each five streams, at least, for such steps", "0ee0f043, by hand")   \
    ROW(REAL, COST_PRIOR_UNITS, 4, "chunks that the fixed part is taken for until it is known", "by hand")             \
    ROW(REAL, COST_NOISE, 0.1, "of the expected time: how far a time is off",                                          \
        "by hand, tests/unit/sched/test_budget.c")                                                                     \
    ROW(REAL, COST_WANDER, 0.02, "of the expected time: how far a price moves from one time to the next",              \
        "by hand, tests/unit/sched/test_budget.c")                                                                     \
    ROW(INT, FLIGHT_STREAMS, 8, "streams beside which flights begin",                                                  \
        "by hand; what flights bring: tests/unit/sched/test_sched_flight.c, 8.6 -> 5.0 ms a token beside 100,000 "     \
        "tokens")                                                                                                      \
    ROW(INT, FLIGHT_LEAST_CHUNKS, 8, "chunks of a prompt before its last piece, from which it flies", "by hand")

#define POLICY_FLIGHTS(ROW)                                                                                            \
    ROW(REAL, FLIGHT_PART, 0.25, "of the multiprocessors, where prompt_share is auto",                                 \
        "shares-h200.json: 28 % of the prompts' rate, streams' slowest hundredth 1.25 times; with half 48 %, 2.3")     \
    ROW(INT, FLIGHT_LOOKS, 2, "looks before its expected end that the next flight begins", "6056e0da, by hand")        \
    ROW(INT, FLIGHT_LOOK_NS, 500000, "ns between looks where nothing else is to do", "6056e0da, by hand")

#define POLICY_PACE(ROW)                                                                                               \
    ROW(INT, PACE_MOST_STREAMS, 512, "streams that are measured at the start",                                         \
        "5d2a8ac0: a fresh server's first burst 310 to 354 -> 277 to 305 ms (H200)")                                   \
    ROW(INT, PACE_MOST_TOK, 2048, "tokens of a prompt that is measured at the start", "5d2a8ac0")                      \
    ROW(INT, SPARED_CHUNKS, 4, "chunks that a shared prefill has to spare",                                            \
        "1a874514: a step more is 2.4 ms; n = 2 of 100 tokens 6.2 -> 4.1 ms (H200)")

#define POLICY_MASKS(ROW)                                                                                              \
    ROW(INT, MASK_PIECE, 1 << 14, "nodes of the trie a piece, some 0.1 ms", "eb7fd0fc, by hand")                       \
    ROW(INT, MASK_STEP_PARTS, 2, "of a step's time one part in so many is masks'",                                     \
        "eb7fd0fc: a stream beside 32 dear masks had 62 tokens of 1,601 before; since then dear.json")                 \
    ROW(INT, MASK_LEAST_NS, 200000, "ns of a step's masks at least", "by hand")                                        \
    ROW(INT, MASK_MOST_NS, 4000000, "ns of a step's masks at most", "by hand")                                         \
    ROW(INT, MASK_HALF_LIFE_NS, 500000000, "ns after which what a key has used counts half", "by hand")

#define POLICY_DRAFTS(ROW)                                                                                             \
    ROW(INT, DRAFT_LEAST_MATCH, 2, "tokens that agree before a text is followed", "61be0ee3, by hand")                 \
    ROW(INT, DRAFT_SURER_BY, 3, "tokens that a match is longer by to be followed instead", "db838459, by hand")        \
    ROW(INT, DRAFT_MOST_LOST, 16, "tokens beside its source until that is given up", "db838459, by hand")              \
    ROW(REAL, DRAFT_FADES_FROM, 64, "tries from which old ones count half", "by hand")                                 \
    ROW(REAL, DRAFT_OTHERS, 6, "tries that the chances of all requests stand for", "by hand")                          \
    ROW(REAL, DRAFT_MARGIN, 0.03, "of the logarithm of the pace, that streams gain at least",                          \
        "c101675c, by hand: 32 sessions had 0.70 to 1.32 of the plain pace without an account")                        \
    ROW(INT, DRAFT_FIRST_TRY, 128, "tokens until a kind that did not pay is tried again", "by hand")                   \
    ROW(INT, DRAFT_MOST_TRIES, 5, "times that this is doubled", "by hand")                                             \
    ROW(INT, DRAFT_PRICE_TRY, 64, "right draft tokens too dear until a step learns their price", "by hand")            \
    ROW(INT, DRAFT_PRICE_MOST, 32, "steps that a mean has the weight of, at most", "by hand")                          \
    ROW(INT, DRAFT_PRICE_LEAST, 2, "steps until a mean counts as known", "by hand")                                    \
    ROW(INT, DRAFT_PRICE_STALE, 256, "steps with drafts until the plain time is measured again", "by hand")            \
    ROW(REAL, DRAFT_FIXED_STREAMS, 4, "streams that a step's fixed part is taken for until it is known", "by hand")    \
    ROW(REAL, DRAFT_PAID_IN, 0.003, "of a plain step, that drafts may lose",                                           \
        "c101675c, simulated (tests/unit/draft/test_draft.c): text that repeats nothing loses less than 1 %")          \
    ROW(REAL, DRAFT_ACCOUNT_FIRST, 1, "steps that the account has at first", "c101675c, by hand")                      \
    ROW(REAL, DRAFT_ACCOUNT_MOST, 8, "steps that it has at most", "c101675c, by hand")                                 \
    ROW(REAL, DRAFT_ACCOUNT_LEAST, -4, "steps that it owes at most", "c101675c, by hand")                              \
    ROW(REAL, DRAFT_STEP_LOSES, 4, "steps that one step loses at most: beyond, the machine did something else",        \
        "c101675c, by hand")

#define POLICY_PREFIXES(ROW)                                                                                           \
    ROW(INT, PREFIX_POOL_PARTS, 2, "of the states' pool one part in so many is prefix entries' at most", "by hand")    \
    ROW(INT, PREFIX_PINNED_PARTS, 4, "of the pool one part in so many is pinned prefixes' at most", "by hand")         \
    ROW(INT, PREFIX_HELD_PARTS, 4, "of the cache one part in so many is what a tenant holds at most",                  \
        "50a90545, by hand")                                                                                           \
    ROW(INT, PREFIX_PAYS, 2, "times what its copies cost, that an entry saves at least", "by hand")                    \
    ROW(INT, PREFIX_MARK_PAYS, 8, "times that, at the end of a turn inside a prompt", "by hand")                       \
    ROW(INT, PREFIX_LONG_TOK, 8192, "tokens of a long prompt that a client who leaves loses at most", "by hand")       \
    ROW(INT, PREFIX_YOUNG_S, 60, "s since its use that count as nothing in an entry's worth", "by hand")               \
    ROW(INT, PREFIX_EDITED_PARTS, 4, "an entry behind which one longer one stands is worth one part in so many",       \
        "by hand")                                                                                                     \
    ROW(INT, CONVERSATIONS, 16384, "conversations that are known at most", "by hand")                                  \
    ROW(INT, CONVERSATION_WRITES, 256, "states that wait to be written at most", "by hand")

#define POLICY_TABLE(ROW)                                                                                              \
    POLICY_SCHED(ROW)                                                                                                  \
    POLICY_FLIGHTS(ROW) POLICY_PACE(ROW) POLICY_MASKS(ROW) POLICY_DRAFTS(ROW) POLICY_PREFIXES(ROW)

#ifdef POLICY_VARIES /* tests/bench/policy.c: variables in place of constants */
#define POLICY_INT(name, value)  static int POLICY_##name = value;
#define POLICY_REAL(name, value) static double POLICY_##name = value;
#else
#define POLICY_INT(name, value)  enum { POLICY_##name = (value) };
#define POLICY_REAL(name, value) static const double POLICY_##name = value;
#endif
#define POLICY_ROW(type, name, value, what, run) POLICY_##type(name, value)
POLICY_TABLE(POLICY_ROW)
#undef POLICY_ROW

#endif
