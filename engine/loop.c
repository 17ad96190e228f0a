/* loop.c - the engine thread: submissions in, states that have arrived, slots for the queue, a step, events out, one
 * wake a round. The files of features give verdicts; this file and step.c carry them out.
 */
#include "core.h"
#include "engine/base/policy.h"

#include <assert.h>
#include <time.h>

/* ---- faults ---- */

static void loop_fail_all(struct rod_engine *e, const struct rod_error *error) {
    struct sched *s = &e->sched; /* waiters before their sources */
    struct list *lists[] = {&s->waiting,    &s->decode[0],  &s->decode[1], &s->last,
                            &s->prefill[0], &s->prefill[1], &s->moving,    &s->flying};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        while (lists[i]->n) end_fail(e, active_of_sched(sched_first(lists[i])), error);
    for (struct sched_req *req; (req = sched_next(s));) end_fail(e, active_of_sched(req), error);
}

static void loop_device_fault(struct rod_engine *e, const struct rod_error *error) {
    engine_log(e, 3, "device fault: %s", error->message); /* before anyone acts on it */
    atomic_store_explicit(&e->counters.device_failed, true, memory_order_relaxed);
    mailbox_refuse(&e->mailbox, ROD_EDEVICE);
    struct rod_error fault;
    rod_fail(&fault, ROD_EDEVICE, "The device failed: %s", error->message);
    loop_fail_all(e, &fault);
    assert(!e->idle_source && !e->sched.waiting.n && !e->sched.n_queued);
    e->n_collected = e->n_planned; /* what was on its way does not arrive */
    e->flights.n_ended = e->flights.n_begun;
    /* Perhaps no request was left to tell: the owner must know all the same. */
    if (!e->events.head && e->config.wake) e->config.wake(e->config.wake_arg);
}

/* ---- submissions ---- */

/* A session's turn, or its end, is there. */
static void loop_take_back(struct rod_engine *e, struct active *a, uint64_t now_ns) {
    switch (turn_back(e, a)) {
    case TURN_RUNS: sched_submit(&e->sched, &a->sched, now_ns); break;
    case TURN_REPLAYED: end_replayed(e, a); break;
    case TURN_CANCELLED: end_cancel(e, a); break;
    case TURN_FAILED: end_fail(e, a, &a->session.turn->err); break;
    case TURN_UNSAVED: end_unsaved(e, a); break;
    case TURN_ENDED: end_back(e, a); break;
    }
}

static void loop_receive(struct rod_engine *e, const struct mailbox_batch *batch) {
    for (struct submission *m = batch->submits, *next; m; m = next) {
        next = m->next;
        struct active *a = active_of_submission(m);
        if (a->session.turn)
            turn_arrive(e, a);
        else
            sched_submit(&e->sched, &a->sched, a->submit_ns);
    }
    for (struct submission *m = batch->cancels, *next; m; m = next) {
        next = m->cancel_next;
        end_cancel(e, active_of_submission(m));
    }
    /* after the cancels: a request that comes back may end here, and no list may name it then */
    for (struct submission *m = batch->returns, *next; m; m = next) {
        next = m->next;
        loop_take_back(e, active_of_submission(m), clock_now_ns());
    }
}

/* ---- slots ---- */

/* Starts requests that have their prompt's state from another one's reading. */
static void loop_start_shared(struct rod_engine *e, uint64_t now_ns) {
    for (struct active *a; (a = shared_next_started(e));)
        step_take_logits(e, a, a->sched.pos, e->source_logits, now_ns);
}

/* The request has a slot in the state before the first token, and is to read its prompt: perhaps not all of it. A
 * failure is a device fault. */
static int loop_read(struct rod_engine *e, struct active *a, uint64_t now_ns, struct rod_error *err) {
    assert(a->sched.state == SCHED_PREFILL && a->sched.pos == 0 && !a->cache.waiting);
    struct rod_error fault;
    if (shared_admit(e, a, &fault)) {
        end_fail(e, a, &fault);
        return 0;
    }
    loop_start_shared(e, now_ns);
    return prefix_use_admit(e, a, now_ns, err);
}

static int loop_admit(struct rod_engine *e, uint64_t now_ns, struct rod_error *err) {
    struct sched_req *req;
    while ((req = sched_expire(&e->sched, now_ns))) {
        struct active *a = active_of_sched(req);
        struct rod_error late;
        rod_fail(&late, ROD_ETIMEDOUT, "No slot became free within %llu ms.",
                 (unsigned long long)(a->request->queue_timeout_ns / 1000000));
        end_fail(e, a, &late);
    }
    while ((req = sched_admit(&e->sched, now_ns))) {
        engine_count(&e->counters.running, 1);
        mailbox_started(&e->mailbox, &active_of_sched(req)->submission);
        struct active *a = active_of_sched(req);
        struct rod_error fault;
        if (token_begin_grammar(e, a, &fault)) {
            end_fail(e, a, &fault);
            continue;
        }
        int rc = slot_prepare(e, a, err);
        if (rc == ROD_ESTATE) { /* the state that it would go on from, not the device */
            end_fail(e, a, err);
            continue;
        }
        if (rc) return rc;
        token_send_start(e, a);
        if (a->sched.state == SCHED_MOVING) continue;
        if ((rc = loop_read(e, a, now_ns, err))) return rc;
    }
    shared_settle(e);
    loop_start_shared(e, now_ns);
    return 0;
}

/* ---- states that have arrived ---- */

static int loop_take_arrival(struct rod_engine *e, const struct move *over, struct rod_error *err) {
    struct active *a = over->active;
    assert(!over->entry || over->kind == MOVE_OUT);
    if (over->entry) {
        prefix_use_saved(e, over->entry, over->buffer);
        if (a) lane_use_keep(e, a, over->buffer);
        lane_use_keep_detached(e, over->kept, over->buffer);
        if (a && a->ended) end_kept(e, a);
        int rc = 0; /* from the beginning: reading may end others */
        while (!rc && (a = prefix_use_next_waiting(e))) rc = loop_read(e, a, clock_now_ns(), err);
        return rc;
    }
    if (over->kind == MOVE_OUT && a) {
        end_saved(e, a, over->buffer);
        return 0;
    }
    state_buffer_release(over->buffer);
    return a ? slot_prepare_sampling(e, a, err) : 0;
}

static int loop_take_arrivals(struct rod_engine *e, struct rod_error *err) {
    struct move over;
    int rc;
    for (uint32_t at = 0; (rc = move_next_over(e, &at, &over, err)) > 0;)
        if ((rc = loop_take_arrival(e, &over, err))) return rc;
    return rc;
}

/* Files of conversations that were read or written. */
static int loop_take_files(struct rod_engine *e, uint64_t now_ns, struct rod_error *err) {
    int rc = 0;
    bool loaded;
    if (!e->conversations || !conversations_have_news(e->conversations)) return 0;
    prefix_use_forget(e);
    for (struct active *a; !rc && (a = lane_use_next(e, &loaded));) {
        if (loaded)
            rc = loop_read(e, a, now_ns, err);
        else
            end_written(e, a);
    }
    return rc;
}

/* ---- flights ---- */

/* No step is on its way, none can be planned, and none waits for a mask alone. Who is in the queue waits for a slot:
 * for one whose state is on its way, which pokes the mailbox when it arrives, if none is free since the last step; or
 * for one of a flight. */
static bool loop_has_no_steps(const struct rod_engine *e) {
    const bool stuck = (e->n_moving || flight_on(e)) && !e->sched.slots.n_free;
    return e->n_planned == e->n_collected && (!e->sched.n_queued || stuck) &&
           !sched_site_busy(&e->sched, SITE_DEVICE) && !sched_site_busy(&e->sched, SITE_HOST) &&
           !e->sched.masking[SITE_DEVICE].n && !e->sched.masking[SITE_HOST].n;
}

/* Sleeps where nothing is to do, and hears of what comes meanwhile at once; looks at a flight now and then. */
static void loop_pop(struct rod_engine *e, bool idle, struct mailbox_batch *batch) {
    const bool flies = flight_on(e);
    if (idle && flies) mailbox_wait(&e->mailbox, POLICY_FLIGHT_LOOK_NS);
    mailbox_pop(&e->mailbox, idle && !flies, batch);
    /* Time without work is not a step that hangs. */
    if (idle && !flies) atomic_store_explicit(&e->counters.last_step_end_ns, clock_now_ns(), memory_order_relaxed);
}

/* ---- the thread ---- */

static void loop_post(struct rod_engine *e, bool wake) {
    if (!e->events.head) return;
    mailbox_post(&e->mailbox, &e->events);
    if (wake && e->config.wake) e->config.wake(e->config.wake_arg);
}

/* No turn begins any more, and those that the sessions have come back. */
static void loop_stop_sessions(struct rod_engine *e, const struct rod_error *error) {
    if (!e->sessions) return;
    for (struct mailbox_batch batch;;) {
        sessions_stop(e->sessions);
        mailbox_pop(&e->mailbox, false, &batch);
        if (!batch.returns) break;
        for (struct submission *m = batch.returns, *next; m; m = next) {
            next = m->next;
            struct active *a = active_of_submission(m);
            if (a->session.turn->stage == SESSION_STAGE_RUN) {
                turn_take_back(a);
                end_fail(e, a, error);
            } else {
                loop_take_back(e, a, 0);
            }
        }
    }
}

/* Ends whose states are on their way into files. */
static void loop_stop_files(struct rod_engine *e) {
    const struct timespec moment = {.tv_nsec = 1000000};
    bool loaded;
    while (e->n_lane_ends) {
        struct active *a = lane_use_next(e, &loaded);
        assert(!a || !loaded); /* a request that waits for a file has ended before */
        if (a)
            end_written(e, a);
        else
            nanosleep(&moment, NULL);
    }
}

void *loop_thread(void *arg) {
    struct rod_engine *e = arg;
    for (bool idle = true;;) {
        struct mailbox_batch batch;
        struct rod_error err;
        loop_pop(e, idle, &batch);
        const uint64_t now_ns = clock_now_ns();
        loop_receive(e, &batch);
        if (batch.stop) break;
        if (atomic_load_explicit(&e->counters.device_failed, memory_order_relaxed)) {
            /* submitted in the moment of the fault */
            rod_fail(&err, ROD_EDEVICE, "The device failed; this server takes no requests.");
            loop_fail_all(e, &err);
        } else {
            int rc = flight_land(e, &err);
            if (!rc) rc = loop_take_arrivals(e, &err);
            if (!rc) rc = loop_take_files(e, now_ns, &err);
            if (!rc) rc = loop_admit(e, now_ns, &err);
            loop_post(e, true); /* what ended without a step does not wait for the next one */
            if (!rc) rc = flight_start(e, &err);
            if (!rc) rc = step_run(e, now_ns, &err);
            if (rc) loop_device_fault(e, &err);
        }
        loop_post(e, true);
        idle = loop_has_no_steps(e);
    }
    struct rod_error err;
    rod_fail(&err, ROD_EDRAINING, "The server shut down before this request ended.");
    loop_fail_all(e, &err);
    flight_drop(e);
    loop_stop_sessions(e, &err);
    loop_stop_files(e);
    assert(!e->sched.n_queued && !e->sched.waiting.n && !e->idle_source);
    loop_post(e, false); /* the owner is closing: nobody waits for a wake */
    return NULL;
}
