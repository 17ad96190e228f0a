/* prefix.h - the states of beginnings of prompts, found again by their exact tokens.
 *
 * A checkpoint is the state after the first n_tok tokens of a prompt: read as a prompt, then n_tok is a multiple of
 * chunk_tok and going on from it gives the bits of reading all; or with an answer in it, then it is the state that
 * generated the answer, after any number of tokens. The few tokens between a multiple and the end of a turn are in
 * the prompt that asks, and are read again. Chained hashes of whole chunks find a checkpoint; then all its tokens,
 * tenant and salt are compared, so a collision costs a look and never gives a wrong text.
 *
 * What was read for one tenant and salt is found for these alone. Past the budget the least worth goes: worth = tokens
 * that it saves beside the next shorter one, by its bytes, by the time since it was used (a minute counts as nothing);
 * one with exactly one longer behind it counts a quarter, as only an edited turn or another answer wants it. A new one
 * that is worth less than all that would have to go is refused.
 *
 * `seen` remembers hashes alone of what was read, answered and evicted, in a table of fixed size: it tells why nothing
 * was found, and where prompts part that were the same so far. It may forget; nothing but reasons and hints comes of
 * it.
 *
 * Who owns what: an index owns its shares of the images. Threads: one at a time. No I/O and no clock (now_ns is an
 * argument). Invariant: images and tokens together are at most budget_bytes.
 */
#ifndef PREFIX_H
#define PREFIX_H

#include "state_buffer.h"

struct prefix_config {
    uint64_t budget_bytes;
    uint32_t chunk_tok;
    uint64_t seed;     /* of the hashes: random, so that nobody can choose what collides */
    uint32_t n_hashes; /* for tests: so few different hashes; 0 = all */
};

struct prefix_key { /* whose prompts: compared as strings; NULL as "" */
    const char *tenant, *salt;
};

struct prefix;
struct prefix_entry;

int prefix_new(const struct prefix_config *config, struct prefix **out, struct rod_error *err);
void prefix_close(struct prefix *p); /* reserved entries too; NULL: nothing */

struct prefix_found {
    struct state_buffer *image; /* the caller's share, to be released; NULL: nothing found */
    uint64_t n_tok;             /* read by it, below n; 0 with nothing found */
    bool generated;             /* there is an answer in it */
    bool waits;                 /* a longer one is on its way */
    bool whole;                 /* nothing longer could have been expected: reason says nothing */
    enum rod_prefix_miss reason;
    uint64_t branch_tok; /* a multiple of chunk_tok up to which a prompt before was the same, if longer than n_tok;
                            else 0 */
};
/* The longest checkpoint of a beginning of ids that leaves at least one token to read. */
void prefix_find(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n, uint64_t now_ns,
                 struct prefix_found *out);

/* These tokens were read: the first n_prompt as a prompt; the others were the answer to it. */
void prefix_note(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n_prompt, size_t n);

/* Room for a checkpoint of image_bytes after all n tokens, perhaps in place of others; to be ended by one of fill and
 * drop. NULL: there is one already or on its way, or it is not worth it, or no memory. */
struct prefix_entry *prefix_reserve(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n,
                                    bool generated, size_t image_bytes, uint64_t now_ns);
void prefix_fill(struct prefix *p, struct prefix_entry *e, struct state_buffer *image); /* takes the share */
void prefix_drop(struct prefix *p, struct prefix_entry *e);

/* Whatever is a beginning of these tokens goes, also what is on its way: their state is not to be trusted. */
void prefix_forget(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n);
/* Gives up the least worth, for others who need memory; false: there is none. */
bool prefix_evict(struct prefix *p, uint64_t now_ns);

struct prefix_counts {
    uint64_t n_entries, bytes, n_evicted; /* n_entries: also reserved ones */
};
struct prefix_counts prefix_count(const struct prefix *p);

/* Where a prompt that is read from from_tok on stops to leave checkpoints. Pure. */
enum { PREFIX_MAX_STOPS = 8 };
struct prefix_reading {
    uint64_t from_tok, n_tok, branch_tok; /* branch_tok: of prefix_found */
    const size_t *marks;                  /* [n_marks] rising: where messages end; the first ends the system prompt */
    size_t n_marks;
    uint64_t pays_tok; /* reading so many tokens takes as long as copying a state out and in again */
    uint32_t chunk_tok;
    bool open_end; /* the end is kept elsewhere */
};
/* Rising multiples of chunk_tok in (from_tok, n_tok): the prompt's end, a branch and the first mark where they save at
 * least 2 pays_tok, then other marks, newest first, for 8 pays_tok: a prompt waits for each copy. */
uint32_t prefix_stops(const struct prefix_reading *reading, uint64_t stops[PREFIX_MAX_STOPS]);

#endif
