/* grammar_gate.c - see grammar_gate.h. */
#include "grammar_gate.h"

#include <assert.h>
#include <string.h>

void grammar_gate_init(struct grammar_gate *gate, struct grammar *grammar, const char *open, bool again) {
    *gate = (struct grammar_gate){.on = grammar && !open, .again = again};
    if (!grammar) return;
    gate->open = open;
    gate->n_open = open ? strlen(open) : 0;
    assert(!open || gate->n_open);
    grammar_walk_init(&gate->walk, grammar);
}

void grammar_gate_fini(struct grammar_gate *gate) { grammar_walk_fini(&gate->walk); }

void grammar_gate_copy(struct grammar_gate *to, const struct grammar_gate *from) {
    *to = *from;
    grammar_walk_copy(&to->walk, &from->walk);
}

static void gate_shut(struct grammar_gate *gate) {
    struct grammar *grammar = gate->walk.grammar;
    grammar_walk_fini(&gate->walk);
    grammar_walk_init(&gate->walk, grammar);
    gate->on = false;
    gate->n_met = 0;
}

/* The longest beginning of the tag that the text ends with, one byte later. Tags are short, so there is no table. */
static void gate_meet(struct grammar_gate *gate, char byte) {
    size_t n = gate->n_met;
    while (n && gate->open[n] != byte) {
        size_t shorter = n - 1;
        while (shorter && memcmp(gate->open, gate->open + n - shorter, shorter) != 0) shorter--;
        n = shorter;
    }
    gate->n_met = n + (gate->open[n] == byte);
    if (gate->n_met < gate->n_open) return;
    gate->n_met = 0;
    gate->on = true;
}

int grammar_gate_push(struct grammar_gate *gate, const char *bytes, size_t n, struct rod_error *err) {
    if (!gate->walk.grammar) return 0;
    if (!gate->open) return grammar_walk_push(&gate->walk, bytes, n, err);
    for (size_t i = 0; i < n; i++) {
        if (gate->on) {
            const int rc = grammar_walk_push(&gate->walk, &bytes[i], 1, err);
            if (rc && rc != ROD_EINVALID) return rc;
            if (rc) gate_shut(gate);
            if (!rc && gate->again && grammar_walk_accepts(&gate->walk)) gate_shut(gate);
            if (!rc) continue;
        }
        gate_meet(gate, bytes[i]);
    }
    return 0;
}

/* The tag ends within them: at a byte with all of it before, or that much of its end as they have. */
bool grammar_gate_may_open(const struct grammar_gate *gate, const char *bytes, size_t n) {
    assert(gate->open);
    const char *end = gate->open + gate->n_open;
    for (size_t at = 0; at < n; at++) {
        if (bytes[at] != end[-1]) continue; /* of a vocabulary few tokens get further */
        const size_t len = at + 1 < gate->n_open ? at + 1 : gate->n_open;
        if (memcmp(bytes + at + 1 - len, end - len, len) == 0) return true;
    }
    return false;
}
