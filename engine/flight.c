/* flight.c - pieces of long prompts that the device reads beside steps, on a part of its processors.
 *
 * A flight has its slots from its beginning until the device says that it has ended, whatever becomes of the requests:
 * one that ends meanwhile is gone at once, and its slot is free when all flights that have it have ended. A request in
 * a flight is in SCHED_FLYING, so that no step has a row of it and no move its slot; its piece counts as read at the
 * end.
 *
 * The engine looks at flights once a step, and the device part would be idle from a flight's end to the next look. So
 * the next one is begun a look or two before the end that its tokens let expect; not sooner, as a prompt that comes
 * meanwhile would wait for both.
 */
#include "core.h"
#include "engine/base/policy.h"

#include <assert.h>

static enum sampling_site flight_site(const struct rod_engine *e) {
    return e->parts.ops->launch ? SITE_DEVICE : SITE_HOST;
}

bool flight_may_have(const struct rod_engine *e, const struct active *a) {
    return a->sched.site == flight_site(e) && !a->sched.scored && !active_device_counts(a);
}

bool flight_on(const struct rod_engine *e) { return e->flights.n_begun != e->flights.n_ended; }

static struct flight *flight_of(struct rod_engine *e, uint64_t number) { return &e->flights.by_parity[number % 2]; }

/* Since when the device part has nothing else to do than this flight, which is the first of those on their way. */
static uint64_t flight_since_ns(const struct rod_engine *e, const struct flight *f) {
    return f->begin_ns > e->flights.ended_ns ? f->begin_ns : e->flights.ended_ns;
}

/* The flight on its way ends before the next look but one. What none has taken yet is waited for. */
static bool flight_ends_soon(struct rod_engine *e, uint64_t now_ns, uint64_t look_ns) {
    const struct flight *f = flight_of(e, e->flights.n_ended);
    const uint64_t takes_ns = cost_ns(&e->flights.cost, f->n_tok);
    return takes_ns && now_ns + POLICY_FLIGHT_LOOKS * look_ns >= flight_since_ns(e, f) + takes_ns;
}

int flight_start(struct rod_engine *e, struct rod_error *err) {
    struct flights *fs = &e->flights;
    struct flight *f = flight_of(e, fs->n_begun);
    if (!e->backend_info.flight_tok || fs->n_begun - fs->n_ended == 2) return 0;
    const uint64_t now_ns = clock_now_ns(), look_ns = now_ns - fs->looked_ns;
    fs->looked_ns = now_ns;
    if (flight_on(e) && !flight_ends_soon(e, now_ns, look_ns)) return 0;
    f->n_rows = sched_plan_flight(&e->sched, flight_site(e), f->rows);
    if (!f->n_rows) return 0;
    f->n_tok = 0, f->begin_ns = now_ns;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        const struct sched_row *row = &f->rows[i];
        const struct active *a = active_of_sched(row->req);
        assert(row->pos >= a->base && !a->ended && e->moves[row->req->slot].kind == MOVE_NONE);
        f->segs[i] = (struct backend_segment){.slot = row->req->slot,
                                              .n_tok = row->n_tok,
                                              .pos = row->pos,
                                              .tok = a->prompt + (row->pos - a->base),
                                              .prompt = true};
        f->n_tok += row->n_tok;
    }
    fs->n_begun++;
    engine_count(&e->counters.flights, 1);
    engine_count(&e->counters.flight_tok, f->n_tok);
    return e->parts.ops->flight_begin(e->parts.backend, f->segs, f->n_rows, err);
}

/* The flight behind the one that lands has the slot, too. */
static bool flight_behind_has(struct rod_engine *e, uint32_t slot) {
    const struct flight *f = flight_of(e, e->flights.n_ended + 1);
    if (e->flights.n_begun - e->flights.n_ended < 2) return false;
    for (uint32_t i = 0; i < f->n_rows; i++)
        if (f->segs[i].slot == slot) return true;
    return false;
}

/* The piece is read; where the prompt stops it leaves an entry. */
static int flight_land_row(struct rod_engine *e, const struct sched_row *row, uint32_t slot, struct rod_error *err) {
    engine_count(&e->counters.prefill_tok, row->n_tok);
    if (!row->req) {
        if (flight_behind_has(e, slot)) return 0;
        sched_release(&e->sched, slot);
        engine_uncount(&e->counters.left);
        return 0;
    }
    sched_land(&e->sched, row->req);
    if (!row->req->stop_tok || row->req->pos != row->req->stop_tok) return 0;
    return prefix_use_stop(e, active_of_sched(row->req), clock_now_ns(), err);
}

int flight_land(struct rod_engine *e, struct rod_error *err) {
    struct flights *fs = &e->flights;
    while (flight_on(e)) {
        struct flight *f = flight_of(e, fs->n_ended);
        const int ended = e->parts.ops->flight_ended(e->parts.backend, false, err);
        if (ended <= 0) return ended;
        const uint64_t now_ns = clock_now_ns();
        cost_learn(&fs->cost, f->n_tok, now_ns - flight_since_ns(e, f));
        fs->ended_ns = now_ns;
        int rc = 0;
        for (uint32_t i = 0; !rc && i < f->n_rows; i++) rc = flight_land_row(e, &f->rows[i], f->segs[i].slot, err);
        if (rc) return rc; /* the loop ends all that is still in it */
        fs->n_ended++;
    }
    return 0;
}

void flight_abandon(struct rod_engine *e, struct active *a) {
    uint32_t n = 0;
    for (uint64_t number = e->flights.n_ended; number != e->flights.n_begun; number++) {
        struct flight *f = flight_of(e, number);
        for (uint32_t i = 0; i < f->n_rows; i++) {
            if (f->rows[i].req != &a->sched) continue;
            assert(f->segs[i].slot == a->sched.slot);
            f->rows[i].req = NULL;
            n++;
        }
    }
    assert(n > 0);
    sched_leave(&e->sched, &a->sched);
    engine_count(&e->counters.left, 1);
}

void flight_drop(struct rod_engine *e) {
    struct rod_error err;
    for (int i = 0; i < 2 && e->backend_info.flight_tok; i++) e->parts.ops->flight_ended(e->parts.backend, true, &err);
    e->flights.n_ended = e->flights.n_begun;
}
