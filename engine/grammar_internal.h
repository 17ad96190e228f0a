/* grammar_internal.h - the inside of a grammar, for grammar_build.c (the nodes) and grammar_walk.c (the states). */
#ifndef GRAMMAR_INTERNAL_H
#define GRAMMAR_INTERNAL_H

#include "grammar.h"
#include "grammar_ir.h"

enum gram_kind { GRAM_FAIL, GRAM_END, GRAM_RANGE, GRAM_SPLIT, GRAM_CALL };
/* RANGE: a byte lo..hi, then node a. SPLIT: a or b. CALL: rule a (its first node is rules[a]), then node b. */
struct gram_node {
    uint8_t kind, lo, hi;
    uint32_t a, b;
};
enum { GRAM_FAIL_NODE, GRAM_END_NODE }; /* nodes that always exist */

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
    uint64_t *mask; /* NULL until asked for */
};
enum { GRAM_DEAD, GRAM_START }; /* states that always exist */
#define GRAM_UNKNOWN UINT32_MAX

struct gram_table { /* open addressing: index of a frame or state + 1, 0 = empty */
    uint32_t *slots;
    uint32_t n_slots; /* a power of two */
};

/* All that is found on the way; dropped and begun anew when it has grown too large. */
struct gram_states {
    struct gram_frame *frames;
    struct gram_place *places;
    struct gram_state *states;
    uint32_t *next; /* [n_states][n_classes] */
    uint32_t n_frames, n_places, n_states;
    uint32_t cap_frames, cap_places, cap_states;
    struct gram_table frame_table, state_table;
    size_t bytes;
};

struct gram_seen { /* a place looked at in the transition number `turn` */
    uint32_t node, stack, turn;
};

struct grammar {
    struct gram_node *nodes;
    uint8_t *depth;  /* [n_nodes] calls below the shortest way to the end; UINT8_MAX = there is none */
    uint32_t *rules; /* first node of each */
    uint32_t n_nodes, cap_nodes, n_rules, n_classes;
    uint8_t class_of[256], byte_of[256]; /* bytes that no node tells apart are one class */
    struct gram_states found;
    struct grammar_walk *walks;
    size_t mask_words;
    /* Scratch of one transition. */
    struct gram_place *todo, *out;
    uint32_t n_todo, n_out;
    struct gram_seen *seen;
    uint32_t turn, work, n_seen;
    bool accepts;
};

int gram_build(struct grammar *g, const struct ir *ir, struct rod_error *err);

/* grammar_walk.c, for the masks */
int gram_start(struct grammar *g, struct rod_error *err); /* scratch, DEAD and START */
void gram_stop(struct grammar *g);
int gram_next(struct grammar *g, uint32_t state, uint8_t byte_class, uint32_t *next, struct rod_error *err);
/* Drops what no walk needs if there is too much. */
int gram_trim(struct grammar *g, struct grammar_walk *w, struct rod_error *err);

#endif
