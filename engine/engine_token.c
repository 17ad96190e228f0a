/* engine_token.c - a token of a request becomes text and an event; and how requests end. */
#include "engine_internal.h"

#include <string.h>

/* ---- the end of a request ---- */

void engine_token_post(struct rod_engine *e, struct work *w) {
    mailbox_retire(&e->mailbox, &w->mail);
    struct event *end = w->end;
    w->end = NULL;
    end->pub.ticket = w->mail.ticket;
    end->pub.user = w->request->user;
    mailbox_append(&e->events, &end->link);
    work_free(w);
}

/* What is still on its way for it is nobody's. */
static void disown_rows(struct rod_engine *e, const struct work *w) {
    for (int i = 0; i < 2; i++) {
        struct step *step = &e->steps[i];
        if (w->row[i] < step->n_rows && step->rows[w->row[i]].req == &w->sched) step->rows[w->row[i]].req = NULL;
    }
}

/* Whoever sees the event may submit again, so slot and place are given back before it is posted. */
static void end_work(struct rod_engine *e, struct work *w) {
    if (w->sched.state != SCHED_NONE) {
        if (w->sched.state != SCHED_QUEUED) atomic_fetch_sub_explicit(&e->counters.running, 1, memory_order_relaxed);
        engine_move_end(e, w);
        engine_fork_left(e, w);
    }
    disown_rows(e, w);
    if (!w->turn || !engine_session_leave(e, w)) engine_token_post(e, w);
}

static void set_times(struct rod_event *pub, const struct work *w, uint64_t now_ns) {
    const bool admitted = w->sched.state != SCHED_NONE && w->sched.state != SCHED_QUEUED;
    pub->queue_ns = (admitted ? w->sched.admit_ns : now_ns) - w->submit_ns;
    pub->prefill_ns = admitted ? (w->first_ns ? w->first_ns : now_ns) - w->sched.admit_ns : 0;
    pub->decode_ns = w->last_ns - w->first_ns;
}

void engine_token_fail(struct rod_engine *e, struct work *w, const struct rod_error *error) {
    if (!w->ended) set_times(&w->end->pub, w, engine_now_ns());
    w->end->pub.kind = ROD_EVENT_ERROR;
    w->end->pub.error = *error;
    engine_count(&e->counters.failed, 1);
    end_work(e, w);
}

static void conclude(struct rod_engine *e, struct work *w) {
    const bool cancelled = w->end->pub.reason == ROD_FINISH_CANCEL;
    engine_count(cancelled ? &e->counters.cancelled : &e->counters.finished, 1);
    end_work(e, w);
}

void engine_token_saved(struct rod_engine *e, struct work *w, struct state_buffer *image) {
    w->brings->image = image;
    w->end->pub.state = w->brings;
    w->brings = NULL;
    conclude(e, w);
}

/* match: index of the stop string or -1; stop_id: the end token or stop id or -1; pending: the token that was counted
 * and is not read, or -1. */
static void end_finish(struct rod_engine *e, struct work *w, enum rod_finish reason, int match, int32_t stop_id,
                       int32_t pending) {
    struct rod_event *pub = &w->end->pub;
    struct rod_error err;
    if (w->request->keep_state && reason != ROD_FINISH_CANCEL && engine_state_keep(e, w, pending, &err)) {
        engine_token_fail(e, w, &err);
        return;
    }
    struct text *t = &w->text;
    /* A character that is not whole is the next turn's, if one can go on from here. Else it is replaced, but for a
     * grammar's text, of which it is a beginning. */
    const bool goes_on = pending >= 0;
    w->held = goes_on ? t->detok : (struct detok){0};
    if (match < 0) {
        const bool drop_part = w->request->grammar || (w->turn && (goes_on || !w->n_generated));
        match = text_flush(t, w->n_generated > w->request->min_tokens, drop_part);
        if (match >= 0 && reason == ROD_FINISH_LENGTH) reason = ROD_FINISH_STOP;
    } else {
        t->n_out = 0; /* the delta had it */
    }
    char *stop_string = event_extra(w->end, stops_max_len(&t->stops) + 1);
    if (t->n_out) memcpy(pub->text, t->buf, t->n_out);
    pub->text_len = t->n_out;
    pub->text[t->n_out] = 0;
    if (match >= 0 && reason == ROD_FINISH_STOP && stop_id < 0) {
        memcpy(stop_string, t->stops.strings[match].text, t->stops.strings[match].len + 1);
        pub->stop_string = stop_string;
    }
    pub->kind = ROD_EVENT_FINISH;
    pub->reason = reason;
    pub->stop_id = stop_id;
    pub->prompt_tok = w->base + w->n_prompt;
    pub->cached_tok = w->base + w->cached_tok;
    pub->completion_tok = w->n_generated;
    const uint64_t now_ns = engine_now_ns();
    set_times(pub, w, now_ns);
    w->ended = true;
    disown_rows(e, w);                                                 /* while its state is saved, too */
    if (w->request->keep_state && reason != ROD_FINISH_CANCEL) return; /* when its state is saved */
    if (reason != ROD_FINISH_CANCEL) engine_prefix_end(e, w, pending, now_ns);
    conclude(e, w);
}

/* ---- one sampled row ---- */

int engine_token_grammar_fault(const struct rod_error *fault, struct rod_error *err) {
    if (fault->code != ROD_EINVALID) return rod_fail(err, fault->code, "%s", fault->message);
    return rod_fail(err, ROD_EINVALID, "The structured output's grammar %s.", fault->message);
}

static int grammar_follow(struct work *w, const struct tokenizer *tokenizer, int32_t id, struct rod_error *err) {
    size_t len = 0;
    bool special = false;
    const char *bytes = tokenizer_bytes(tokenizer, id, &len, &special);
    struct rod_error fault;
    int rc = bytes && !special ? grammar_walk_push(&w->walk, bytes, len, &fault) : 0;
    return rc ? engine_token_grammar_fault(&fault, err) : 0;
}

static bool contains(const int32_t *ids, size_t n, int32_t id) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* The only allocation in a step: a message that moves to the consumer. */
static int send_token(struct rod_engine *e, struct work *w, enum rod_event_kind kind,
                      const struct sampler_output *picked) {
    const struct text *t = &w->text;
    const size_t n_text = kind == ROD_EVENT_DELTA ? t->n_out : 0;
    struct event *event = event_new(n_text, 1, picked->n_top, 0);
    if (!event) return ROD_ENOMEM;
    struct rod_event *pub = &event->pub;
    pub->kind = kind;
    pub->ticket = w->mail.ticket;
    pub->user = w->request->user;
    if (n_text) memcpy(pub->text, t->buf, n_text);
    pub->text_len = n_text;
    pub->text[n_text] = 0;
    struct rod_token *token = &pub->tokens[0];
    token->id = picked->id;
    token->logprob = picked->logprob;
    token->n_top = picked->n_top;
    if (picked->n_top) memcpy(token->top, picked->top, picked->n_top * sizeof *token->top);
    if (w->turn && engine_session_event(w, pub)) {
        event_free(event);
        return ROD_ENOMEM;
    }
    mailbox_append(&e->events, &event->link);
    return 0;
}

static void remember(struct work *w, int32_t id) {
    if (w->n_recent == w->recent_tok) memmove(w->recent, w->recent + 1, --w->n_recent * sizeof *w->recent);
    w->recent[w->n_recent++] = id;
}

void engine_token_take(struct rod_engine *e, struct work *w, const struct sampler_output *picked, uint64_t now_ns) {
    const struct rod_request *r = w->request;
    const struct engine_parts *parts = &e->parts;
    struct rod_error err;
    if (!w->first_ns) w->first_ns = now_ns;
    w->last_ns = now_ns;

    bool is_end = !r->ignore_eos && contains(parts->eos_ids, parts->n_eos_ids, picked->id);
    bool is_stop = !is_end && contains(r->stop_ids, r->n_stop_ids, picked->id);
    if (is_end || (is_stop && !r->include_stop)) { /* neither text nor a counted token */
        if (r->report_end && send_token(e, w, ROD_EVENT_END_TOKEN, picked)) {
            rod_fail(&err, ROD_ENOMEM, "No memory for the next token.");
            engine_token_fail(e, w, &err);
        } else {
            end_finish(e, w, ROD_FINISH_STOP, -1, picked->id, -1);
        }
        return;
    }
    w->n_generated++;
    if (w->turn) engine_session_counted(w);
    w->last = picked->id;
    if (w->recent_tok) remember(w, picked->id);
    engine_prefix_said(w, picked->id);
    if (w->counts.n_table) sampler_counts_add(&w->counts, picked->id, 1);
    bool finished = false;
    if (r->grammar && !is_stop) { /* a stop id is no part of the grammar's text */
        if (grammar_follow(w, parts->tokenizer, picked->id, &err)) {
            engine_token_fail(e, w, &err);
            return;
        }
        finished = grammar_walk_finished(&w->walk);
    }
    int match = text_push(&w->text, picked->id, !r->keep_special && !is_stop, w->n_generated > r->min_tokens);
    if (send_token(e, w, ROD_EVENT_DELTA, picked)) {
        rod_fail(&err, ROD_ENOMEM, "No memory for the next token.");
        engine_token_fail(e, w, &err);
    } else if (match >= 0) {
        end_finish(e, w, ROD_FINISH_STOP, match, -1, picked->id);
    } else if (finished) {
        end_finish(e, w, ROD_FINISH_STOP, -1, -1, picked->id);
    } else if (is_stop) {
        end_finish(e, w, ROD_FINISH_STOP, -1, picked->id, picked->id);
    } else if (w->n_generated == r->max_tokens) {
        end_finish(e, w, ROD_FINISH_LENGTH, -1, -1, picked->id);
    }
}

void engine_token_none(struct rod_engine *e, struct work *w, uint64_t now_ns) {
    w->first_ns = w->last_ns = now_ns;
    end_finish(e, w, ROD_FINISH_LENGTH, -1, -1, -1);
}

void engine_token_cancel(struct rod_engine *e, struct work *w) {
    if (w->turn && engine_session_cancel(e, w)) return;
    if (!w->ended) {
        end_finish(e, w, ROD_FINISH_CANCEL, -1, -1, -1);
        return;
    }
    struct rod_event *pub = &w->end->pub; /* its state was being saved, which nobody wants now */
    pub->reason = ROD_FINISH_CANCEL;
    pub->stop_string = NULL;
    pub->stop_id = -1;
    conclude(e, w);
}
