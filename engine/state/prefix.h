/* prefix.h - the prefix cache: states of the beginnings of prompts, found by their exact tokens. README.md has the why.
 *
 * An entry is the state after the first n_tok tokens of a prompt. Two kinds: a state that was read as a prompt, at a
 * multiple of chunk_tok, from which a request gets the bits of reading everything; and a state at the end of an answer,
 * after any number of tokens, which is the state that generated the answer. Chained hashes of whole chunks find an
 * entry; then all its tokens, the tenant and the salt are compared, so a collision costs a look and never gives a wrong
 * text. Entries of one tenant and salt are found by requests of that tenant and salt alone.
 *
 * Worth of an entry: the tokens that it saves beside the next shorter entry, by its bytes, by the time since it was
 * used (a minute counts as nothing). An entry with exactly one longer entry behind it counts a quarter: only an edited
 * turn or another answer wants it. Past the budget the least worth is evicted; a new entry that is worth less than all
 * that would have to go is refused.
 *
 * A client may ask to hold an entry: until then it goes after all that are not held, and a new entry that is not held
 * never takes its place. A tenant's held entries take a quarter of the budget at most: beyond, the one that was used
 * the longest time ago is held no more.
 *
 * `seen` holds hashes of what was read, answered and evicted, in a table of fixed size. It gives the reason of a miss,
 * and the place where prompts part that were the same so far. It may forget: reasons and hints alone depend on it.
 *
 * Ownership: an index owns its references to the buffers. Threads: one at a time. No I/O and no clock (now_ns is an
 * argument). Invariant: buffers and tokens together take at most budget_bytes.
 */
#ifndef PREFIX_H
#define PREFIX_H

#include "state_buffer.h"

struct prefix_config {
    uint64_t budget_bytes;
    uint32_t chunk_tok;
    uint64_t seed;                          /* of the hashes: random, so that nobody can choose what collides */
    uint32_t n_hashes;                      /* for tests: so few different hashes; 0 = all */
    void (*gone)(void *arg, uint64_t note); /* an entry with a note is removed; NULL: nobody asks */
    void *arg;
};

struct prefix_key { /* compared as strings; NULL is "" */
    const char *tenant, *salt;
};

struct prefix;
struct prefix_entry;

int prefix_new(const struct prefix_config *config, struct prefix **out, struct rod_error *err);
void prefix_close(struct prefix *p); /* reserved entries too; NULL: nothing */

struct prefix_found {
    struct state_buffer *buffer; /* the caller's reference, to be released; NULL: nothing found */
    uint64_t n_tok;              /* that the state has read, fewer than n; 0 with nothing found */
    bool generated;              /* an answer is among them */
    uint64_t number;             /* of the entry: no other has it, 0 with nothing found */
    bool waits;                  /* a longer entry is being saved */
    bool complete;               /* no longer entry could be expected: reason says nothing */
    enum rod_prefix_miss reason;
    uint64_t branch_tok; /* a multiple of chunk_tok up to which a prompt before was the same, if longer than n_tok;
                            else 0 */
};
/* The longest entry of a beginning of ids that leaves at least one token to read. */
void prefix_find(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n, uint64_t now_ns,
                 struct prefix_found *out);

/* The tokens ids[0..n) were read: the first n_prompt as a prompt, the others as the answer to it. */
void prefix_note(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n_prompt, size_t n);

struct prefix_new_entry {
    bool generated;      /* an answer is among its tokens */
    size_t buffer_bytes; /* of its state */
    uint64_t hold_ns;    /* it is held so long behind each use; 0 = not held */
    uint64_t note;       /* of a conversation's state, which is taken whatever its worth; 0 = none */
};
/* Reserves an entry after all n tokens, perhaps in place of others; prefix_fill or prefix_drop ends the reservation.
 * NULL: there is such an entry already, filled or reserved; or it is not worth its bytes; or no memory. */
struct prefix_entry *prefix_reserve(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n,
                                    const struct prefix_new_entry *wanted, uint64_t now_ns);
void prefix_fill(struct prefix *p, struct prefix_entry *e, struct state_buffer *buffer); /* takes the reference */
void prefix_drop(struct prefix *p, struct prefix_entry *e);
uint64_t prefix_number(const struct prefix_entry *e);

/* The entry after all n tokens has this note from now on. *buffer: its state, the caller's reference; NULL: there is no
 * such entry with a state. */
void prefix_set_note(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n, uint64_t note,
                     struct state_buffer **buffer);
void prefix_forget_note(struct prefix *p, uint64_t note); /* the entry with this note goes */

/* Holds the entry after all n tokens, if there is one. */
void prefix_hold(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n, uint64_t hold_ns,
                 uint64_t now_ns);

/* Removes every entry of a beginning of these tokens, reserved ones once they are filled: their states are wrong. */
void prefix_forget(struct prefix *p, const struct prefix_key *key, const int32_t *ids, size_t n);
/* Evicts the entry of the least worth, for others that need memory; false: the cache is empty. */
bool prefix_evict(struct prefix *p, uint64_t now_ns);

struct prefix_counts {
    uint64_t n_entries, bytes, n_evicted; /* n_entries: also reserved ones */
};
struct prefix_counts prefix_count(const struct prefix *p);

/* Where a prompt that is read from from_tok on stops to leave entries. Pure. */
enum { PREFIX_MAX_STOPS = 8 };
struct prefix_reading {
    uint64_t from_tok, n_tok, branch_tok; /* branch_tok: of prefix_found */
    const size_t *marks;                  /* [n_marks] rising: where messages end; the first ends the system prompt */
    size_t n_marks;
    const uint64_t *wanted_tok; /* [n_wanted] where the client asks for an entry, in any order */
    uint32_t n_wanted;
    uint64_t pays_tok; /* tokens whose reading takes as long as copying a state out and in again */
    uint32_t chunk_tok;
    bool open_end; /* the end is kept elsewhere */
    bool named; /* of a conversation, which keeps head, end and the beginning of the last message whatever they cost */
};
/* Rising multiples of chunk_tok in (from_tok, n_tok): what the client asks for; then the prompt's end, a branch and the
 * first mark where they save at least 2 pays_tok, then other marks, newest first, for 8 pays_tok: a prompt waits for
 * each copy. */
uint32_t prefix_stops(const struct prefix_reading *reading, uint64_t stops[PREFIX_MAX_STOPS]);

#endif
