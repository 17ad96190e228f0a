/* flight.c - pieces of long prompts that the device reads beside steps, on a share of its processors.
 *
 * A flight has its slots from its beginning until the device says that it has ended, whatever becomes of the requests:
 * one that ends meanwhile is gone at once, and its slot is free when the flight has ended. A request in a flight is in
 * SCHED_FLYING, so that no step has a row of it and no move its slot; its piece counts as read at the end.
 */
#include "core.h"

#include <assert.h>

static enum sampling_site flight_site(const struct rod_engine *e) {
    return e->parts.ops->launch ? SITE_DEVICE : SITE_HOST;
}

bool flight_may_have(const struct rod_engine *e, const struct active *a) {
    return a->sched.site == flight_site(e) && !a->sched.scored && !active_device_counts(a);
}

int flight_start(struct rod_engine *e, struct rod_error *err) {
    struct flight *f = &e->flight;
    uint64_t n_tok = 0;
    if (f->n_rows) return 0;
    f->n_rows = sched_plan_flight(&e->sched, flight_site(e), f->rows);
    if (!f->n_rows) return 0;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        const struct sched_row *row = &f->rows[i];
        const struct active *a = active_of_sched(row->req);
        assert(row->pos >= a->base && !a->ended && e->moves[row->req->slot].kind == MOVE_NONE);
        f->segs[i] = (struct backend_segment){.slot = row->req->slot,
                                              .n_tok = row->n_tok,
                                              .pos = row->pos,
                                              .tok = a->prompt + (row->pos - a->base),
                                              .prompt = true};
        n_tok += row->n_tok;
    }
    engine_count(&e->counters.flights, 1);
    engine_count(&e->counters.flight_tok, n_tok);
    return e->parts.ops->flight_begin(e->parts.backend, f->segs, f->n_rows, err);
}

/* The piece is read; where the prompt stops it leaves an entry. */
static int flight_land_row(struct rod_engine *e, const struct sched_row *row, uint32_t slot, struct rod_error *err) {
    engine_count(&e->counters.prefill_tok, row->n_tok);
    if (!row->req) {
        sched_release(&e->sched, slot);
        engine_uncount(&e->counters.left);
        return 0;
    }
    sched_land(&e->sched, row->req);
    if (!row->req->stop_tok || row->req->pos != row->req->stop_tok) return 0;
    return prefix_use_stop(e, active_of_sched(row->req), clock_now_ns(), err);
}

int flight_land(struct rod_engine *e, struct rod_error *err) {
    struct flight *f = &e->flight;
    if (!f->n_rows) return 0;
    const int ended = e->parts.ops->flight_ended(e->parts.backend, false, err);
    if (ended <= 0) return ended;
    int rc = 0;
    for (uint32_t i = 0; !rc && i < f->n_rows; i++) rc = flight_land_row(e, &f->rows[i], f->segs[i].slot, err);
    if (!rc) f->n_rows = 0; /* else the loop ends all that is still in it */
    return rc;
}

void flight_abandon(struct rod_engine *e, struct active *a) {
    struct flight *f = &e->flight;
    uint32_t i = 0;
    while (i < f->n_rows && f->rows[i].req != &a->sched) i++;
    assert(i < f->n_rows && f->segs[i].slot == a->sched.slot);
    f->rows[i].req = NULL;
    sched_leave(&e->sched, &a->sched);
    engine_count(&e->counters.left, 1);
}

void flight_drop(struct rod_engine *e) {
    struct rod_error err;
    e->flight.n_rows = 0;
    if (e->backend_info.flight_tok) e->parts.ops->flight_ended(e->parts.backend, true, &err);
}
