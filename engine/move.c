/* move.c - states on their way between slots and host memory, beside the steps.
 *
 * A move has its slot and its buffer from begin until the device says that it is over, whatever becomes of the request:
 * one that ends meanwhile is gone at once, and the slot is free when the move is over. A request that moves is in
 * SCHED_MOVING, so that no step has a row of it.
 */
#include "core.h"

#include <assert.h>
#include <stdlib.h>

int move_begin(struct rod_engine *e, struct active *a, enum move_kind kind, uint64_t pos, struct state_buffer *buffer,
               struct rod_error *err) {
    const struct backend_ops *ops = e->parts.ops;
    const uint32_t slot = a->sched.slot;
    assert(kind != MOVE_NONE && slot < e->backend_info.n_slots);
    assert(e->moves[slot].kind == MOVE_NONE && e->n_moving < e->backend_info.n_slots); /* one of a slot at a time */
    const int rc = kind == MOVE_IN
                       ? ops->slot_load_begin(e->parts.backend, slot, pos, buffer->bytes, buffer->n_bytes, err)
                       : ops->slot_save_begin(e->parts.backend, slot, pos, buffer->bytes, buffer->n_bytes, err);
    if (rc) return rc;
    e->moves[slot] = (struct move){.kind = kind, .active = a, .buffer = buffer};
    e->moving[e->n_moving++] = slot;
    sched_move(&e->sched, &a->sched);
    return 0;
}

void move_abandon(struct rod_engine *e, struct active *a) {
    const uint32_t slot = a->sched.slot;
    if (a->sched.state != SCHED_MOVING || e->moves[slot].kind == MOVE_NONE) {
        sched_remove(&e->sched, &a->sched);
        return;
    }
    assert(e->moves[slot].active == a);
    e->moves[slot].active = NULL;
    sched_leave(&e->sched, &a->sched);
    engine_count(&e->counters.left, 1);
}

uint32_t move_aside(struct rod_engine *e, const struct active *a, uint64_t pos, struct state_buffer *buffer,
                    struct prefix_entry *entry) {
    const struct backend_ops *ops = e->parts.ops;
    struct rod_error err;
    if (!ops->launch || !ops->slot_copy || e->moves_always) return SLOTS_NONE; /* a host's memory has one speed */
    const uint32_t slot = sched_borrow(&e->sched);
    if (slot == SLOTS_NONE) return SLOTS_NONE;
    assert(e->moves[slot].kind == MOVE_NONE && slot != a->sched.slot);
    ops->slot_copy(e->parts.backend, a->sched.slot, slot, pos);
    if (ops->slot_save_begin(e->parts.backend, slot, pos, buffer->bytes, buffer->n_bytes, &err)) {
        sched_release(&e->sched, slot); /* the fault shows in the next step */
        return SLOTS_NONE;
    }
    e->moves[slot] = (struct move){.kind = MOVE_OUT, .buffer = buffer, .entry = entry};
    e->moving[e->n_moving++] = slot;
    engine_count(&e->counters.left, 1);
    return slot;
}

/* A slot that is free behind it still has the entry's state: a request that goes on from it need not wait for a copy
 * from host memory. */
static void move_park(struct rod_engine *e, uint32_t slot, const struct move *over) {
    if (!e->parts.ops->launch || !e->parts.ops->slot_copy || !over->entry || e->moves_always) return;
    if (over->active && !over->active->ended) return;
    e->parked[slot] = prefix_number(over->entry);
    sched_park(&e->sched, slot);
}

/* The request goes on where it was, or its slot is free. One that has left its state stays: it ends. */
static void move_settle(struct rod_engine *e, uint32_t slot, const struct move *over) {
    move_park(e, slot, over);
    if (over->kind == MOVE_OUT && over->active && (!over->entry || over->active->ended)) return;
    if (over->active) {
        sched_moved(&e->sched, &over->active->sched);
        return;
    }
    sched_release(&e->sched, slot);
    engine_uncount(&e->counters.left);
}

int move_next_over(struct rod_engine *e, uint32_t *at, struct move *over, struct rod_error *err) {
    for (; *at < e->n_moving; ++*at) {
        const uint32_t slot = e->moving[*at];
        const int rc = e->parts.ops->slot_moving(e->parts.backend, slot, err);
        if (rc < 0) return rc;
        if (rc) continue;
        assert(e->moves[slot].kind != MOVE_NONE && (!e->moves[slot].entry || e->moves[slot].kind == MOVE_OUT));
        assert(!e->moves[slot].active || e->moves[slot].active->sched.slot == slot);
        e->moving[*at] = e->moving[--e->n_moving];
        *over = e->moves[slot];
        e->moves[slot] = (struct move){.kind = MOVE_NONE};
        move_settle(e, slot, over);
        return 1;
    }
    return 0;
}

void move_drop_all(struct rod_engine *e) {
    for (uint32_t i = 0; i < e->n_moving; i++) {
        state_buffer_release(e->moves[e->moving[i]].buffer);
        free(e->moves[e->moving[i]].kept);
    }
    e->n_moving = 0;
}
