/* grammar_internal.h - the inside of a grammar: grammar_build.c makes the nodes, grammar_walk.c finds the states,
 * grammar_vocab.c holds the vocabulary, grammar_chain.c tables of repeated parts, and grammar_mask.c makes masks. */
#ifndef GRAMMAR_INTERNAL_H
#define GRAMMAR_INTERNAL_H

#include "grammar.h"
#include "grammar_ir.h"

#include <pthread.h>
#include <stdatomic.h>

enum gram_kind { GRAM_FAIL, GRAM_END, GRAM_RANGE, GRAM_SPLIT, GRAM_CALL };
/* RANGE: a byte lo..hi, then node a. SPLIT: a or b. CALL: rule a (its first node is rules[a]), then node b. */
struct gram_node {
    uint8_t kind, lo, hi;
    uint32_t a, b;
};
enum { GRAM_MAX_WIDE = 16 };
enum { GRAM_FAIL_NODE, GRAM_END_NODE }; /* nodes that always exist */

/* A part that is repeated is a unit. Behind a node of a chain there are least..most more units, then follow, and
 * nothing else. */
struct gram_chain {
    uint32_t unit, least, most, follow;
};
enum { GRAM_MAX_UNITS = 32, GRAM_MAX_UNIT_STATES = 40 };
#define GRAM_INLINE UINT32_MAX
enum { GRAM_UNIT_DEAD, GRAM_UNIT_WHOLE, GRAM_UNIT_FIRST }; /* what a byte leads to; then the unit's further states */
struct gram_unit {
    uint32_t rule; /* GRAM_INLINE: one byte lo..hi */
    uint8_t lo, hi;
    uint32_t n_states; /* 0: it does not end where its text says so, so it has no tables */
    uint8_t (*next)[256];
    uint32_t **places, *n_places; /* [n_states] nodes, sorted; 0: not all of them stand in the unit's own rule */
    struct chain_table **tables;  /* [n_states] */
};

struct gram_frame { /* a return address and what lies below it; frame 0 is the empty stack */
    uint32_t node, below, depth;
};
struct gram_place { /* a RANGE node in its stack */
    uint32_t node, stack;
};
struct gram_state {
    uint32_t first, n; /* its places, sorted */
    uint32_t hash;
    bool accepts;
    uint32_t exits; /* its first one + 1 */
    uint64_t *mask; /* NULL until asked for */
};
/* Tokens of a table that leave its chain after `units` units and go on from a state. */
struct gram_exit_token {
    uint32_t id, units;
};
struct gram_exits {
    const struct chain_table *table;
    uint32_t first, n, next; /* next: of the same state, + 1 */
};
enum { GRAM_DEAD, GRAM_START }; /* states that always exist */
#define GRAM_UNKNOWN UINT32_MAX

struct gram_table { /* open addressing: index of a frame or state + 1, 0 = empty */
    uint32_t *slots;
    uint32_t n_slots; /* a power of two */
};

/* Everything that walks have found; dropped and begun anew when it has grown too large. */
struct gram_states {
    struct gram_frame *frames;
    struct gram_place *places;
    struct gram_state *states;
    uint32_t *next; /* [n_states][n_classes] */
    struct gram_exits *exits;
    struct gram_exit_token *exit_tokens;
    uint32_t n_frames, n_places, n_states, n_exits, n_exit_tokens;
    uint32_t cap_frames, cap_places, cap_states, cap_exits, cap_exit_tokens;
    struct gram_table frame_table, state_table;
    size_t bytes;
};

struct gram_seen { /* a place looked at in the transition number `turn` */
    uint32_t node, stack, turn;
};

struct grammar {
    char *notes; /* NULL: none */
    struct gram_node *nodes;
    uint8_t *depth;  /* [n_nodes] calls below the shortest way to the end; UINT8_MAX = there is none */
    uint32_t *rules; /* first node of each */
    uint32_t n_nodes, cap_nodes, n_rules, n_classes;
    uint8_t class_of[256], byte_of[256]; /* bytes that no node tells apart are one class */
    struct gram_chain *chains;
    uint32_t *chain_at; /* [n_nodes] the chain behind a node + 1 */
    struct gram_unit units[GRAM_MAX_UNITS];
    uint32_t n_chains, cap_chains, n_units;
    uint32_t wide[GRAM_MAX_WIDE], n_wide; /* nodes that lead to most others */
    struct vocab *vocab;                  /* whose tables the units have; NULL: none */
    size_t table_bytes;
    struct gram_states found;
    size_t counted;    /* of found.bytes in the vocabulary's sum */
    struct list walks; /* that left the start */
    uint32_t n_begun;  /* of them with a mask that is not complete yet */
    /* Scratch of one transition. */
    struct gram_place *todo, *out;
    uint32_t n_todo, n_out;
    struct gram_seen *seen;
    uint32_t turn, work, n_seen;
    bool accepts;
};

/* The scratch of gram_start. */
enum { GRAM_SEEN_SLOTS = 8192, GRAM_MAX_SEEN = GRAM_SEEN_SLOTS / 2 };
#define GRAM_SCRATCH_BYTES                                                                                             \
    ((GRAM_MAX_SEEN + GRAMMAR_MAX_PLACES) * sizeof(struct gram_place) + GRAM_SEEN_SLOTS * sizeof(struct gram_seen))

int gram_build(struct grammar *g, const struct ir *ir, struct rod_error *err);
/* grammar_places.c: whether one state holds all that may stand at a node, found before the first token: by the nodes,
 * and, after gram_start, by a walk from the widest. */
int gram_check_places(struct grammar *g, struct rod_error *err);
int gram_try_wide(struct grammar *g, struct rod_error *err);

/* grammar_walk.c, for the masks */
int gram_start(struct grammar *g, struct rod_error *err); /* scratch, DEAD and START */
void gram_stop(struct grammar *g);
int gram_next(struct grammar *g, uint32_t state, uint8_t byte_class, uint32_t *next, struct rod_error *err);
/* The state of a node in a stack, and of places (which it sorts). */
int gram_state_at(struct grammar *g, uint32_t node, uint32_t stack, uint32_t *out, struct rod_error *err);
int gram_state_of(struct grammar *g, struct gram_place *places, uint32_t n, bool accepts, uint32_t *out,
                  struct rod_error *err);
/* Room for n more items of an array of the states; false: no memory. */
#define GRAM_RESERVE(s, what, n)                                                                                       \
    gram_reserve(s, (void *)&(s)->what, sizeof *(s)->what, &(s)->cap_##what, (s)->n_##what, n)
bool gram_reserve(struct gram_states *s, void *items, size_t item_bytes, uint32_t *cap, uint32_t used, uint32_t n);
/* Past GRAMMAR_STATE_BYTES drops all states in which no walk stands, and masks that are not complete.
 * While there are such masks, past GRAMMAR_BEGUN_BYTES: so much a mask needs at most, so each one becomes complete. */
int gram_trim(struct grammar *g, struct rod_error *err);
void gram_list_walk(struct grammar_walk *w); /* before its state may be looked for, or may change */
int gram_drop_states(struct grammar *g, struct rod_error *err);
void gram_drop_begun(struct grammar_walk *w); /* its mask that is not complete, if there is one */
void gram_count(struct grammar *g);           /* the states' bytes into the vocabulary's sum */

/* ---- grammar_vocab.c: the vocabulary as a trie, a node's children side by side, level after level ---- */
struct vocab_node {
    uint32_t child, n_children;
    int32_t id; /* the token that ends here, or -1 */
    uint8_t byte;
};
struct vocab_way { /* how far a walk through the trie is on one level */
    uint32_t at, end, state, units;
};
struct vocab {
    struct vocab_node *nodes; /* 0 is the root */
    uint32_t n_nodes, V, max_depth;
    _Atomic size_t state_bytes; /* of all grammars over it */
    pthread_mutex_t lock;       /* of what follows */
    struct list tables;
    uint64_t **spare; /* masks that no state has; their pages are there already */
    uint32_t n_spare;
};
uint64_t *vocab_mask(struct vocab *v);                 /* all zero; NULL: no memory */
void vocab_give_mask(struct vocab *v, uint64_t *mask); /* v NULL: it is freed */

/* ---- grammar_mask.c: a mask that is not complete yet ---- */
enum { GRAM_MAX_GROUPED = 256 }; /* places of a state in which chains are looked for */
struct chain_table;
struct gram_part { /* some places of a state that stand in one chain */
    const struct chain_table *table;
    uint32_t least, most; /* units, with the one that is begun */
    uint32_t follow;      /* the state behind the chain */
};
struct grammar_begun {
    uint64_t *mask;
    uint32_t work; /* places looked at so far */
    struct gram_place rest[GRAM_MAX_GROUPED];
    uint32_t n_rest, from; /* places that no part has; those before `from` stand in no chain */
    bool grouping;         /* chains are looked for */
    struct gram_part part; /* whose exits are being found; table NULL: none */
    uint32_t byte, leave;  /* where they are looked for next */
    struct gram_exit_token *tokens;
    uint32_t n_tokens, cap_tokens;
    bool walking;            /* through the trie */
    uint32_t depth, units;   /* units: of the tokens that are met */
    struct vocab_way ways[]; /* [max_depth + 1] */
};

/* ---- grammar_chain.c: tables of repeated parts ---- */
struct chain_entry { /* a token of units, or where a token leaves: after so many units, at a node of the trie */
    uint32_t at, units;
};

/* From one state of a unit on. */
enum { GRAM_MAX_LEVELS = 24 }; /* numbers of units that have a mask of their own */
struct chain_table {
    struct list_link link; /* of the vocabulary's tables */
    size_t users, bytes;
    uint32_t n_states, from;
    uint8_t (*unit)[256];       /* [n_states] what it is the table of */
    struct chain_entry *tokens; /* by units; at = id; those that no mask has */
    struct chain_entry *leave;  /* by byte; at = node */
    uint32_t n_tokens, cap_tokens, n_leave, cap_leave, leave_of[257];
    uint32_t n_levels, level[GRAM_MAX_LEVELS];
    uint64_t *masks; /* [n_levels][words] tokens of at most so many units */
};
void gram_units_free(struct grammar *g);

#endif
