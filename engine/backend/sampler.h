/* sampler.h - from a row of logits to the next token.
 *
 * Order: log-probabilities from the raw logits; then a grammar's mask, allowed ids, logit_bias, banned ids, repetition,
 * frequency and presence penalties, temperature, top_k, min_p, top_p, typical_p (each over what the one before left),
 * one draw. The draw goes through what is left in order of id. Who owns what: a sampler is scratch space for one row at
 * a time; counts belong to a request. Threads: the engine thread (counts are filled by the submitting thread before).
 * No allocation after init. Invariant: the token is a function of this row's logits, the request, its history and
 * (seed, position) alone: every sum has one fixed order, whatever shares the batch.
 */
#ifndef SAMPLER_H
#define SAMPLER_H

#include "engine/rodimus.h"

#define SAMPLER_MAX_TOP 20

/* Distinct tokens of a request with how often each was generated; a table of fixed size, as no step allocates. */
struct sampler_counts {
    uint32_t n, n_table; /* n_table: power of two, 0 = not counting */
    int32_t *ids;
    uint32_t *n_generated; /* [capacity], in order of first appearance */
    uint32_t *table;       /* [n_table] index + 1 into ids, 0 = empty */
};
/* Room for max_distinct ids. */
int sampler_counts_init(struct sampler_counts *counts, uint64_t max_distinct, struct rod_error *err);
void sampler_counts_fini(struct sampler_counts *counts);
void sampler_counts_add(struct sampler_counts *counts, int32_t id, uint32_t n_generated); /* 0: seen in the prompt */
/* Whether these settings look at the history at all. */
static inline bool sampler_needs_counts(const struct rod_sampling *sampling) {
    return sampling->frequency_penalty != 0 || sampling->presence_penalty != 0 || sampling->repetition_penalty != 1;
}

struct sampler_candidate {
    float key, mass;
    int32_t id;
};

struct sampler {
    uint32_t V, n_blocks;
    float *logits;                        /* [V] after bias, bans and penalties; then masses of a draw over all */
    float *block_max, *block_mass;        /* [n_blocks]; block_mass of a draw over all */
    struct sampler_candidate *candidates; /* [V] */
};
int sampler_init(struct sampler *s, uint32_t V, struct rod_error *err);
void sampler_fini(struct sampler *s);

struct sampler_input {
    const struct rod_sampling *sampling;
    const struct rod_bias *bias;
    size_t n_bias;
    const int32_t *allowed;
    size_t n_allowed;     /* nothing else is chosen; 0 = all */
    const uint64_t *mask; /* of a grammar, a bit for each id, 64 a word: nothing else is chosen; NULL = all */
    const int32_t *also;  /* beyond the mask: end and stop ids where the grammar may end */
    size_t n_also;
    const int32_t *banned;
    size_t n_banned;                     /* never chosen: end and stop ids before min_tokens, ends of bad words */
    const struct sampler_counts *counts; /* NULL = empty */
    uint64_t position;                   /* of the token to be drawn */
    int32_t n_logprobs;                  /* -1 = none */
};

struct sampler_output {
    int32_t id;
    float logprob; /* if n_logprobs >= 0 */
    uint32_t n_top;
    struct rod_logprob top[SAMPLER_MAX_TOP]; /* best first, ties to the lower id */
};

/* Why a row has no token. */
enum sampler_status { SAMPLER_OK, SAMPLER_NAN, SAMPLER_FORBIDDEN, SAMPLER_INFINITE };
/* 0, or the status as an error: ROD_EINTERNAL for SAMPLER_NAN, else ROD_EINVALID. */
int sampler_check(enum sampler_status status, struct rod_error *err);

/* logits [V]. ROD_EINTERNAL when one is not a finite number, ROD_EINVALID when every token is banned. */
int sampler_pick(struct sampler *s, const struct sampler_input *in, const float *logits, struct sampler_output *out,
                 struct rod_error *err);
/* How likely the model finds id in this row, with its n_top best ones: out's id, logprob and top; rank from 1. Errors
 * as sampler_pick. */
int sampler_score(struct sampler *s, const float *logits, int32_t id, uint32_t n_top, struct sampler_output *out,
                  uint32_t *rank, struct rod_error *err);

#endif
