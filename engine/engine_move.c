/* engine_move.c - states on their way between slots and host memory, beside the steps.
 *
 * A move has its slot and its image from begin until the device says that it is over, whatever becomes of the request:
 * one that ends meanwhile is gone at once, and the slot is free when the move is over. A request that moves is in
 * SCHED_MOVING, so that no step has a row of it.
 */
#include "engine_internal.h"

int engine_move_begin(struct rod_engine *e, struct work *w, enum move_kind kind, uint64_t pos,
                      struct state_buffer *image, struct rod_error *err) {
    const struct backend_ops *ops = e->parts.ops;
    const uint32_t slot = w->sched.slot;
    const int rc = kind == MOVE_IN
                       ? ops->slot_load_begin(e->parts.backend, slot, pos, image->bytes, image->n_bytes, err)
                       : ops->slot_save_begin(e->parts.backend, slot, pos, image->bytes, image->n_bytes, err);
    if (rc) return rc;
    e->moves[slot] = (struct move){.kind = kind, .work = w, .image = image};
    e->moving[e->n_moving++] = slot;
    sched_move(&e->sched, &w->sched);
    return 0;
}

void engine_move_end(struct rod_engine *e, struct work *w) {
    const uint32_t slot = w->sched.slot;
    if (w->sched.state != SCHED_MOVING || e->moves[slot].kind == MOVE_NONE) {
        sched_remove(&e->sched, &w->sched);
        return;
    }
    e->moves[slot].work = NULL;
    sched_leave(&e->sched, &w->sched);
    engine_count(&e->counters.left, 1);
}

static void let_go(struct rod_engine *e, uint32_t slot) {
    sched_release(&e->sched, slot);
    atomic_fetch_sub_explicit(&e->counters.left, 1, memory_order_relaxed);
}

static int arrived(struct rod_engine *e, uint32_t slot, struct rod_error *err) {
    const struct move move = e->moves[slot];
    e->moves[slot] = (struct move){.kind = MOVE_NONE};
    if (move.checkpoint) {
        if (move.work)
            sched_moved(&e->sched, &move.work->sched);
        else
            let_go(e, slot);
        return engine_prefix_saved(e, move.checkpoint, move.image, err);
    }
    if (move.kind == MOVE_OUT && move.work) {
        engine_token_saved(e, move.work, move.image);
        return 0;
    }
    state_buffer_release(move.image);
    if (move.work) {
        sched_moved(&e->sched, &move.work->sched);
        return engine_prepare_sampling(e, move.work, err);
    }
    let_go(e, slot);
    return 0;
}

int engine_move_collect(struct rod_engine *e, struct rod_error *err) {
    for (uint32_t i = 0; i < e->n_moving;) {
        const uint32_t slot = e->moving[i];
        int rc = e->parts.ops->slot_moving(e->parts.backend, slot, err);
        if (rc < 0) return rc;
        if (rc) {
            i++;
            continue;
        }
        e->moving[i] = e->moving[--e->n_moving];
        if ((rc = arrived(e, slot, err))) return rc;
    }
    return 0;
}

void engine_move_drop(struct rod_engine *e) {
    for (uint32_t i = 0; i < e->n_moving; i++) state_buffer_release(e->moves[e->moving[i]].image);
    e->n_moving = 0;
}
