/* grammar.h - what a request's text must look like, as an automaton over bytes; and a walk through it.
 *
 * A grammar is compiled once: rules of nodes (a byte range, a choice, a call of another rule, the end of a rule), with
 * for each node how many calls deep the shortest way to its rule's end goes. What may come next is a state: a set of
 * places, each a node and a stack of the nodes to return to. States are found when a walk reaches them and kept, with
 * their transitions and their mask over the vocabulary, for all requests that share the grammar.
 *
 * Ownership: a grammar owns its states; a walk is its owner's and must end (grammar_walk_fini) before the grammar.
 * Threads: compile is pure and runs anywhere; all walks of one grammar run on one thread at a time (the engine's).
 * Invariants: from every state that a walk reaches the end can be reached, within GRAMMAR_MAX_DEPTH calls; memory of
 * the states stays near GRAMMAR_STATE_BYTES: past it, states in which no walk stands are dropped, and while masks are
 * being made near GRAMMAR_BEGUN_BYTES.
 */
#ifndef GRAMMAR_H
#define GRAMMAR_H

#include "engine/base/list.h"
#include "engine/rodimus.h"

#define GRAMMAR_MAX_TEXT        (256u << 10) /* bytes of a schema, regex, choice or grammar */
#define GRAMMAR_MAX_NODES       (1u << 18)
#define GRAMMAR_MAX_DEPTH       128u
#define GRAMMAR_MAX_PLACES      2048u      /* in one state */
#define GRAMMAR_MAX_WORK        (1u << 19) /* places looked at for one mask, some 20 ms */
#define GRAMMAR_MAX_BEGIN       (1u << 15) /* places looked at for the beginning of an answer, some 20 ms */
#define GRAMMAR_MAX_BEGIN_BYTES (1u << 20)
#define GRAMMAR_STATE_BYTES     ((size_t)16 << 20)
#define GRAMMAR_BEGUN_BYTES                                                                                            \
    (6 * GRAMMAR_STATE_BYTES)                  /* while masks are being made: one takes up to four times 16 MB         \
                                                */
#define GRAMMAR_ALL_BYTES  ((size_t)256 << 20) /* states of all grammars of a cache */
#define GRAMMAR_USED_BYTES ((size_t)256 << 20) /* compiled grammars that requests hold, without states */

struct grammar;
struct tokenizer;

/* The automaton of a text. ROD_EINVALID: it cannot be honoured; the message is a predicate without its subject ("has
 * the keyword ..."), as the caller knows the field. */
int grammar_compile(enum rod_grammar_kind kind, const char *text, size_t len, struct grammar **out,
                    struct rod_error *err);
void grammar_free(struct grammar *g);
size_t grammar_bytes(const struct grammar *g);      /* of memory, with its states */
size_t grammar_own_bytes(const struct grammar *g);  /* without them: as it was compiled */
const char *grammar_notes(const struct grammar *g); /* what it does not hold of its text (rod_grammar_notes) */

/* ---- a walk: one request's way ---- */
struct grammar_walk {
    struct grammar *grammar;     /* NULL: none, everything may come */
    uint32_t state, moved;       /* moved: while states are dropped, its number among the new ones */
    struct list_link link;       /* of the grammar's walks, once it may stand elsewhere than at the start */
    struct grammar_begun *begun; /* its mask that is not complete yet, or NULL */
};
void grammar_walk_init(struct grammar_walk *w, struct grammar *g);
void grammar_walk_fini(struct grammar_walk *w);
/* to: not a walk yet. It stands where from stands, and goes its own way. */
void grammar_walk_copy(struct grammar_walk *to, const struct grammar_walk *from);
/* Reads bytes. ROD_EINVALID: the grammar does not allow them, or is too ambiguous to follow; the walk stays. */
int grammar_walk_push(struct grammar_walk *w, const char *bytes, size_t n, struct rod_error *err);
/* Pushes a text that is not the model's, and may be long: ROD_EINVALID also if it passes too many places. */
int grammar_walk_begin(struct grammar_walk *w, const char *bytes, size_t n, struct rod_error *err);
bool grammar_walk_accepts(const struct grammar_walk *w);  /* the text may end here */
bool grammar_walk_finished(const struct grammar_walk *w); /* and nothing may follow */

/* ---- the vocabulary as a trie ---- */
struct vocab;
int vocab_new(const struct tokenizer *tokenizer, uint32_t V, struct vocab **out, struct rod_error *err);
struct vocab_entry { /* a token of one byte or more */
    const char *bytes;
    size_t len;
    int32_t id;
};
/* Of some ids below V; sorts the entries. */
int vocab_from_entries(struct vocab_entry *e, size_t n, uint32_t V, struct vocab **out, struct rod_error *err);
void vocab_free(struct vocab *v);
/* Makes the tables for masks over this vocabulary: some milliseconds, on any thread, before the walks begin. Without
 * tables masks are the same and take longer. Once for a grammar; the vocabulary outlives the grammar. */
int grammar_prepare(struct grammar *g, struct vocab *v, struct rod_error *err);
/* The tokens that may come next, a bit each (64 a word), valid until the next call for this grammar. Tokens without
 * bytes and special ones never may. */
int grammar_walk_mask(struct grammar_walk *w, const struct vocab *v, const uint64_t **mask, struct rod_error *err);
/* Works at the mask as far as *effort goes, which becomes less: one a node of the trie, some 4 ns. *mask NULL: it is
 * not complete yet, and the next call goes on. The mask does not depend on the pieces. */
int grammar_walk_mask_some(struct grammar_walk *w, const struct vocab *v, int64_t *effort, const uint64_t **mask,
                           struct rod_error *err);
bool grammar_walk_has_mask(const struct grammar_walk *w); /* it is there already */

/* ---- compiled grammars that requests share ---- */
struct grammar_cache;
int grammar_cache_new(const struct tokenizer *tokenizer, uint32_t V, struct grammar_cache **out, struct rod_error *err);
void grammar_cache_close(struct grammar_cache *c); /* it lives on until the last of its grammars is closed */
/* Where the states of all its grammars are more than GRAMMAR_ALL_BYTES, drops those of grammars that have many, but not
 * of `but` unless that is not enough. On the thread of the walks. */
void grammar_cache_trim(struct grammar_cache *c, const struct grammar *but);
struct grammar *grammar_of(const struct rod_grammar *shared);
const struct vocab *grammar_vocab(const struct rod_grammar *shared);
/* For a key, which may have quota times what is left free of GRAMMAR_USED_BYTES; quota 0: all. */
int grammar_cache_open(struct grammar_cache *c, uint32_t key, uint32_t quota, enum rod_grammar_kind kind,
                       const char *text, size_t len, struct rod_grammar **out, struct rod_error *err);

#endif
