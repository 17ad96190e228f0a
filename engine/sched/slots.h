/* slots.h - which session slots of the backend are free.
 *
 * Who owns what: only numbers; the states themselves live in the backend. Threads: the engine thread.
 * Invariant: a slot is either in the free stack or acquired, never both (asserted).
 */
#ifndef SLOTS_H
#define SLOTS_H

#include "engine/rodimus.h"

#define SLOTS_NONE UINT32_MAX

struct slots {
    uint32_t n, n_free;
    uint32_t *free; /* [n], the first n_free are free; taken from the end */
    bool *used;     /* [n] */
};

int slots_init(struct slots *slots, uint32_t n, struct rod_error *err); /* n >= 1 */
void slots_fini(struct slots *slots);
uint32_t slots_acquire(struct slots *slots); /* SLOTS_NONE when all are used */
void slots_release(struct slots *slots, uint32_t slot);

#endif
