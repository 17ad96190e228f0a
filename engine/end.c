/* end.c - how a request ends: its last event, its slot, its session, its memory. All of them end here. */
#include "core.h"

#include <assert.h>
#include <string.h>

/* The one place where a request of the engine's is freed. */
static void end_release(struct rod_engine *e, struct active *a) {
    assert(a->sched.state == SCHED_NONE && !a->session.in_sessions);
    mailbox_retire(&e->mailbox, &a->submission);
    active_free(a);
}

static void end_post(struct rod_engine *e, struct active *a) {
    struct event *end = a->end;
    assert(end && (end->pub.kind == ROD_EVENT_FINISH || end->pub.kind == ROD_EVENT_ERROR));
    assert(end->pub.kind == ROD_EVENT_FINISH || !end->pub.state);
    a->end = NULL;
    end->pub.ticket = a->submission.ticket;
    end->pub.user = a->request->user;
    end->pub.waited_ns = a->waited_ns;
    if (a->request->on_end)
        a->request->on_end(end->pub.user, &end->pub);
    else
        mailbox_append(&e->events, &end->link);
    end_release(e, a);
}

/* What is still on its way for it is nobody's. */
static void end_disown_rows(struct rod_engine *e, const struct active *a) {
    for (int i = 0; i < 2; i++) {
        struct step *step = &e->steps[i];
        if (a->row[i] < step->n_rows && step->rows[a->row[i]].req == &a->sched) step->rows[a->row[i]].req = NULL;
    }
}

/* Whoever sees the event may submit again, so slot and place are given back before it is posted. */
static void end_work(struct rod_engine *e, struct active *a) {
    assert(!a->session.in_sessions);
    if (!a->lane.ends) lane_use_leave(e, a);
    if (a->sched.state != SCHED_NONE) {
        if (a->sched.state != SCHED_QUEUED) engine_uncount(&e->counters.running);
        if (a->sched.state == SCHED_FLYING)
            flight_abandon(e, a);
        else
            move_abandon(e, a);
        shared_leave(e, a);
    }
    end_disown_rows(e, a);
    if (a->session.turn) mailbox_left(&e->mailbox, &a->submission); /* it takes a place until its session has it */
    if (a->session.turn && turn_leave(e, a)) return;
    if (!a->lane.job || !a->lane.ends) end_post(e, a); /* else when its state is in a file */
}

static void end_set_times(struct rod_event *pub, const struct active *a, uint64_t now_ns) {
    const bool admitted = a->sched.state != SCHED_NONE && a->sched.state != SCHED_QUEUED;
    pub->queue_ns = (admitted ? a->sched.admit_ns : now_ns) - a->submit_ns;
    pub->prefill_ns = admitted ? (a->first_ns ? a->first_ns : now_ns) - a->sched.admit_ns : 0;
    pub->decode_ns = a->last_ns - a->first_ns;
}

void end_fail(struct rod_engine *e, struct active *a, const struct rod_error *error) {
    if (!a->ended) end_set_times(&a->end->pub, a, clock_now_ns());
    a->end->pub.kind = ROD_EVENT_ERROR;
    a->end->pub.error = *error;
    engine_count(&e->counters.failed, 1);
    end_work(e, a);
}

static void end_conclude(struct rod_engine *e, struct active *a) {
    const bool cancelled = a->end->pub.reason == ROD_FINISH_CANCEL;
    engine_count(cancelled ? &e->counters.cancelled : &e->counters.finished, 1);
    end_work(e, a);
}

void end_saved(struct rod_engine *e, struct active *a, struct state_buffer *buffer) {
    assert(a->ended && a->sched.state == SCHED_MOVING);
    assert(!a->output_state->buffer && !a->end->pub.state);
    prefix_use_turn(e, a, buffer, clock_now_ns());
    a->output_state->buffer = buffer;
    a->end->pub.state = a->output_state;
    a->output_state = NULL;
    end_conclude(e, a);
}

/* A character that is not complete is the next turn's, if one can go on from here. Else it is replaced, but for a
 * grammar's text, of which it is a beginning. */
static void end_text(struct active *a, const struct verdict *v) {
    struct rod_event *pub = &a->end->pub;
    struct text *t = &a->text;
    const bool goes_on = v->pending >= 0;
    int match = v->match;
    enum rod_finish reason = v->reason;
    turn_hold(a, goes_on ? &t->detok : NULL);
    if (match < 0) {
        const bool drop_part = a->gate.on || (a->session.turn && (goes_on || !a->n_generated));
        match = text_flush(t, a->n_generated > a->request->min_tokens, drop_part);
        if (match >= 0 && reason == ROD_FINISH_LENGTH) reason = ROD_FINISH_STOP;
    } else {
        t->n_out = 0; /* the delta had it */
    }
    char *stop_string = event_extra(a->end, stops_max_len(&t->stops) + 1);
    if (t->n_out) memcpy(pub->text, t->buf, t->n_out);
    pub->text_len = t->n_out;
    pub->text[t->n_out] = 0;
    if (match >= 0 && reason == ROD_FINISH_STOP && v->stop_id < 0) {
        memcpy(stop_string, t->stops.strings[match].text, t->stops.strings[match].len + 1);
        pub->stop_string = stop_string;
    }
    pub->reason = reason;
}

void end_finish(struct rod_engine *e, struct active *a, const struct verdict *v) {
    struct rod_event *pub = &a->end->pub;
    struct rod_error err;
    assert(!a->ended && v->kind == VERDICT_ENDS);
    assert(v->match < 0 || v->stop_id < 0);       /* one of them ended it */
    assert(v->pending < 0 || a->n_generated > 0); /* a pending token was counted */
    assert(v->reason != ROD_FINISH_CANCEL || (v->match < 0 && v->stop_id < 0 && v->pending < 0));
    const bool keeps = a->request->keep_state && v->reason != ROD_FINISH_CANCEL;
    if (keeps && keep_save(e, a, v->pending, &err)) {
        end_fail(e, a, &err);
        return;
    }
    end_text(a, v);
    pub->kind = ROD_EVENT_FINISH;
    pub->stop_id = v->stop_id;
    pub->prompt_tok = a->base + a->n_prompt;
    pub->cached_tok = a->base + a->cache.cached_tok;
    if (a->cache.created_tok) pub->created_tok = a->cache.created_tok - a->cache.cached_tok;
    pub->created_long_tok = a->cache.created_long_tok;
    pub->completion_tok = a->n_generated;
    pub->accepted_tok = a->draft.n_accepted;
    pub->rejected_tok = a->draft.n_drafted - a->draft.n_accepted;
    const uint64_t now_ns = clock_now_ns();
    end_set_times(pub, a, now_ns);
    a->ended = true;
    end_disown_rows(e, a); /* while its state is saved, too */
    if (keeps) return;     /* when its state is saved */
    if (v->reason == ROD_FINISH_CANCEL)
        prefix_use_left(e, a, now_ns);
    else
        prefix_use_answer(e, a, v->pending, now_ns);
    const bool moves = a->lane.keeps && a->lane.ends && a->sched.state == SCHED_MOVING;
    if (!moves) end_conclude(e, a); /* else when its state is in host memory */
}

void end_kept(struct rod_engine *e, struct active *a) { end_conclude(e, a); }

/* A turn's end waits for its session and for its conversation's file, whichever comes last. */
void end_written(struct rod_engine *e, struct active *a) {
    if (!a->session.in_sessions) end_post(e, a);
}

void end_back(struct rod_engine *e, struct active *a) {
    if (!a->lane.job) end_post(e, a);
}

void end_cancel(struct rod_engine *e, struct active *a) {
    if (a->session.turn && turn_cancel(e, a)) return;
    if (!a->ended) {
        end_finish(e, a, &(struct verdict){VERDICT_ENDS, ROD_FINISH_CANCEL, -1, -1, -1});
        return;
    }
    struct rod_event *pub = &a->end->pub; /* its state was being saved, which nobody wants now */
    pub->reason = ROD_FINISH_CANCEL;
    pub->stop_string = NULL;
    pub->stop_id = -1;
    if (a->lane.job) {
        lane_use_leave(e, a);
        end_post(e, a);
        return;
    }
    assert(a->sched.state == SCHED_MOVING);
    a->lane.keeps = false;
    end_conclude(e, a);
}

void end_unsaved(struct rod_engine *e, struct active *a) {
    assert(a->ended && a->session.ran && a->session.turn->rc);
    engine_uncount(&e->counters.finished);
    end_fail(e, a, &a->session.turn->err);
}

void end_replayed(struct rod_engine *e, struct active *a) {
    assert(!a->ended && !a->session.ran);
    engine_count(&e->counters.finished, 1);
    end_release(e, a);
}
