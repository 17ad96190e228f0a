/* end.c - how a request ends: its last event, its slot, its session, its memory. All of them end here. */
#include "core.h"

#include <string.h>

/* The one place where a request of the engine's is freed. */
static void end_release(struct rod_engine *e, struct work *w) {
    mailbox_retire(&e->mailbox, &w->mail);
    work_free(w);
}

void end_post(struct rod_engine *e, struct work *w) {
    struct event *end = w->end;
    w->end = NULL;
    end->pub.ticket = w->mail.ticket;
    end->pub.user = w->request->user;
    mailbox_append(&e->events, &end->link);
    end_release(e, w);
}

/* What is still on its way for it is nobody's. */
static void end_disown_rows(struct rod_engine *e, const struct work *w) {
    for (int i = 0; i < 2; i++) {
        struct step *step = &e->steps[i];
        if (w->row[i] < step->n_rows && step->rows[w->row[i]].req == &w->sched) step->rows[w->row[i]].req = NULL;
    }
}

/* Whoever sees the event may submit again, so slot and place are given back before it is posted. */
static void end_work(struct rod_engine *e, struct work *w) {
    if (w->sched.state != SCHED_NONE) {
        if (w->sched.state != SCHED_QUEUED) engine_uncount(&e->counters.running);
        move_abandon(e, w);
        shared_leave(e, w);
    }
    end_disown_rows(e, w);
    if (!w->session.turn || !turn_leave(e, w)) end_post(e, w);
}

static void end_set_times(struct rod_event *pub, const struct work *w, uint64_t now_ns) {
    const bool admitted = w->sched.state != SCHED_NONE && w->sched.state != SCHED_QUEUED;
    pub->queue_ns = (admitted ? w->sched.admit_ns : now_ns) - w->submit_ns;
    pub->prefill_ns = admitted ? (w->first_ns ? w->first_ns : now_ns) - w->sched.admit_ns : 0;
    pub->decode_ns = w->last_ns - w->first_ns;
}

void end_fail(struct rod_engine *e, struct work *w, const struct rod_error *error) {
    if (!w->ended) end_set_times(&w->end->pub, w, engine_now_ns());
    w->end->pub.kind = ROD_EVENT_ERROR;
    w->end->pub.error = *error;
    engine_count(&e->counters.failed, 1);
    end_work(e, w);
}

static void end_conclude(struct rod_engine *e, struct work *w) {
    const bool cancelled = w->end->pub.reason == ROD_FINISH_CANCEL;
    engine_count(cancelled ? &e->counters.cancelled : &e->counters.finished, 1);
    end_work(e, w);
}

void end_saved(struct rod_engine *e, struct work *w, struct state_buffer *image) {
    w->output_state->image = image;
    w->end->pub.state = w->output_state;
    w->output_state = NULL;
    end_conclude(e, w);
}

/* A character that is not whole is the next turn's, if one can go on from here. Else it is replaced, but for a
 * grammar's text, of which it is a beginning. */
static void end_text(struct work *w, const struct verdict *v) {
    struct rod_event *pub = &w->end->pub;
    struct text *t = &w->text;
    const bool goes_on = v->pending >= 0;
    int match = v->match;
    enum rod_finish reason = v->reason;
    turn_hold(w, goes_on ? &t->detok : NULL);
    if (match < 0) {
        const bool drop_part = w->request->grammar || (w->session.turn && (goes_on || !w->n_generated));
        match = text_flush(t, w->n_generated > w->request->min_tokens, drop_part);
        if (match >= 0 && reason == ROD_FINISH_LENGTH) reason = ROD_FINISH_STOP;
    } else {
        t->n_out = 0; /* the delta had it */
    }
    char *stop_string = event_extra(w->end, stops_max_len(&t->stops) + 1);
    if (t->n_out) memcpy(pub->text, t->buf, t->n_out);
    pub->text_len = t->n_out;
    pub->text[t->n_out] = 0;
    if (match >= 0 && reason == ROD_FINISH_STOP && v->stop_id < 0) {
        memcpy(stop_string, t->stops.strings[match].text, t->stops.strings[match].len + 1);
        pub->stop_string = stop_string;
    }
    pub->reason = reason;
}

void end_finish(struct rod_engine *e, struct work *w, const struct verdict *v) {
    struct rod_event *pub = &w->end->pub;
    struct rod_error err;
    const bool keeps = w->request->keep_state && v->reason != ROD_FINISH_CANCEL;
    if (keeps && keep_save(e, w, v->pending, &err)) {
        end_fail(e, w, &err);
        return;
    }
    end_text(w, v);
    pub->kind = ROD_EVENT_FINISH;
    pub->stop_id = v->stop_id;
    pub->prompt_tok = w->base + w->n_prompt;
    pub->cached_tok = w->base + w->cache.cached_tok;
    pub->completion_tok = w->n_generated;
    const uint64_t now_ns = engine_now_ns();
    end_set_times(pub, w, now_ns);
    w->ended = true;
    end_disown_rows(e, w); /* while its state is saved, too */
    if (keeps) return;     /* when its state is saved */
    if (v->reason != ROD_FINISH_CANCEL) prefix_use_answer(e, w, v->pending, now_ns);
    end_conclude(e, w);
}

void end_cancel(struct rod_engine *e, struct work *w) {
    if (w->session.turn && turn_cancel(e, w)) return;
    if (!w->ended) {
        end_finish(e, w, &(struct verdict){VERDICT_ENDS, ROD_FINISH_CANCEL, -1, -1, -1});
        return;
    }
    struct rod_event *pub = &w->end->pub; /* its state was being saved, which nobody wants now */
    pub->reason = ROD_FINISH_CANCEL;
    pub->stop_string = NULL;
    pub->stop_id = -1;
    end_conclude(e, w);
}

void end_unsaved(struct rod_engine *e, struct work *w) {
    engine_uncount(&e->counters.finished);
    end_fail(e, w, &w->session.turn->err);
}

void end_replayed(struct rod_engine *e, struct work *w) {
    engine_count(&e->counters.finished, 1);
    end_release(e, w);
}
