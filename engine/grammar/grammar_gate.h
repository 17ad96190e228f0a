/* grammar_gate.h - whether a request's grammar is on now: from the start, or from an opening tag in the text to the end
 * of what the grammar describes.
 *
 * Ownership: a gate owns its walk and borrows grammar and tag; it ends (grammar_gate_fini) before the grammar. Threads:
 * one at a time. Invariant: while the gate is off its walk stands at the start.
 */
#ifndef GRAMMAR_GATE_H
#define GRAMMAR_GATE_H

#include "grammar.h"

struct grammar_gate {
    struct grammar_walk walk; /* without a grammar the gate is never on */
    const char *open;         /* the tag; NULL = on from the start, for good */
    size_t n_open, n_met;     /* n_met: bytes of the tag that the text ends with */
    bool on;
    bool again; /* behind what the grammar describes the text is free, and the next tag opens the gate again */
};

/* grammar NULL: none. open NULL or a tag that is not empty. */
void grammar_gate_init(struct grammar_gate *gate, struct grammar *grammar, const char *open, bool again);
void grammar_gate_fini(struct grammar_gate *gate);
/* For a look ahead; to: not a gate yet. */
void grammar_gate_copy(struct grammar_gate *to, const struct grammar_gate *from);
/* Reads bytes of the text. ROD_EINVALID: a grammar that is on from the start does not allow them. A tag's grammar that
 * does not allow them is off again: the text went another way before it could be held to it. */
int grammar_gate_push(struct grammar_gate *gate, const char *bytes, size_t n, struct rod_error *err);
/* Behind some text without the whole tag, these bytes could open it. */
bool grammar_gate_may_open(const struct grammar_gate *gate, const char *bytes, size_t n);
/* It is on, and the text may end here. */
static inline bool grammar_gate_accepts(const struct grammar_gate *gate) {
    return gate->on && grammar_walk_accepts(&gate->walk);
}
/* It is on, and nothing may follow. */
static inline bool grammar_gate_finished(const struct grammar_gate *gate) {
    return gate->on && grammar_walk_finished(&gate->walk);
}

#endif
