/* slots.c - a stack of free numbers: the slot released last is reused first, as its memory is warm. */
#include "slots.h"

#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>

int slots_init(struct slots *slots, uint32_t n, struct rod_error *err) {
    assert(n);
    *slots = (struct slots){.n = n, .n_free = n};
    slots->free = calloc(n, sizeof *slots->free);
    slots->used = calloc(n, sizeof *slots->used);
    if (!slots->free || !slots->used) {
        slots_fini(slots);
        return rod_fail_no_memory(err);
    }
    for (uint32_t i = 0; i < n; i++) slots->free[i] = n - 1 - i;
    return 0;
}

void slots_fini(struct slots *slots) {
    free(slots->free);
    free(slots->used);
    *slots = (struct slots){0};
}

uint32_t slots_acquire(struct slots *slots) {
    if (slots->n_free == 0) return SLOTS_NONE;
    uint32_t slot = slots->free[--slots->n_free];
    assert(slot < slots->n && !slots->used[slot]);
    slots->used[slot] = true;
    return slot;
}

void slots_release(struct slots *slots, uint32_t slot) {
    assert(slot < slots->n && slots->used[slot] && slots->n_free < slots->n);
    slots->used[slot] = false;
    slots->free[slots->n_free++] = slot;
}
