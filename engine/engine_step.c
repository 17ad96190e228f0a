/* engine_step.c - the engine thread: mail in, plan, forward, sample, events out, one wake a step. */
#include "engine_internal.h"

#include <assert.h>
#include <string.h>

static struct work *work_of_mail(struct mail *mail) {
    return (struct work *)(void *)((char *)mail - offsetof(struct work, mail));
}
static struct work *work_of_sched(struct sched_req *req) {
    return (struct work *)(void *)((char *)req - offsetof(struct work, sched));
}

static void count(atomic_uint_fast64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

/* ---- the end of a request ---- */

/* Whoever sees the event may submit again, so slot and place are given back before it is posted. */
static void end_work(struct rod_engine *e, struct work *w) {
    if (w->sched.state != SCHED_NONE) {
        if (w->sched.state != SCHED_QUEUED) atomic_fetch_sub_explicit(&e->counters.running, 1, memory_order_relaxed);
        sched_remove(&e->sched, &w->sched);
    }
    mailbox_retire(&e->mailbox, &w->mail);
    struct event *end = w->end;
    w->end = NULL;
    end->pub.ticket = w->mail.ticket;
    end->pub.user = w->request->user;
    mailbox_append(&e->events, &end->link);
    work_free(w);
}

static void end_error(struct rod_engine *e, struct work *w, const struct rod_error *error) {
    w->end->pub.kind = ROD_EVENT_ERROR;
    w->end->pub.error = *error;
    count(&e->counters.failed, 1);
    end_work(e, w);
}

/* match: index of the stop string or -1; stop_id: the end token or stop id or -1. */
static void end_finish(struct rod_engine *e, struct work *w, enum rod_finish reason, int match, int32_t stop_id) {
    struct rod_event *pub = &w->end->pub;
    struct text *t = &w->text;
    if (match < 0) {
        match = text_flush(t, w->n_generated > w->request->min_tokens);
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
    pub->prompt_tok = w->request->n_prompt;
    pub->completion_tok = w->n_generated;
    bool admitted = w->sched.state == SCHED_PREFILL || w->sched.state == SCHED_DECODE;
    uint64_t now_ns = engine_now_ns();
    pub->queue_ns = (admitted ? w->sched.admit_ns : now_ns) - w->submit_ns;
    pub->prefill_ns = admitted ? (w->first_ns ? w->first_ns : now_ns) - w->sched.admit_ns : 0;
    pub->decode_ns = w->last_ns - w->first_ns;
    count(reason == ROD_FINISH_CANCEL ? &e->counters.cancelled : &e->counters.finished, 1);
    end_work(e, w);
}

/* ---- one sampled row ---- */

static bool contains(const int32_t *ids, size_t n, int32_t id) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] == id) return true;
    return false;
}

/* The only allocation in a step: a message that moves to the consumer. */
static int send_delta(struct rod_engine *e, struct work *w, const struct sampler_output *picked) {
    const struct text *t = &w->text;
    struct event *event = event_new(t->n_out, 1, picked->n_top, 0);
    if (!event) return ROD_ENOMEM;
    struct rod_event *pub = &event->pub;
    pub->kind = ROD_EVENT_DELTA;
    pub->ticket = w->mail.ticket;
    pub->user = w->request->user;
    if (t->n_out) memcpy(pub->text, t->buf, t->n_out);
    pub->text_len = t->n_out;
    pub->text[t->n_out] = 0;
    struct rod_token *token = &pub->tokens[0];
    token->id = picked->id;
    token->logprob = picked->logprob;
    token->n_top = picked->n_top;
    if (picked->n_top) memcpy(token->top, picked->top, picked->n_top * sizeof *token->top);
    mailbox_append(&e->events, &event->link);
    return 0;
}

static void generate(struct rod_engine *e, struct work *w, const float *logits, uint64_t now_ns) {
    const struct rod_request *r = w->request;
    const struct engine_parts *parts = &e->parts;
    struct sampler_output picked;
    struct rod_error err;
    const struct sampler_input in = {
        .sampling = &r->sampling,
        .bias = r->bias,
        .n_bias = r->n_bias,
        .banned = w->banned,
        .n_banned = w->n_generated < r->min_tokens ? w->n_banned : 0,
        .counts = w->counts.n_table ? &w->counts : NULL,
        .position = w->sched.pos,
        .n_logprobs = r->n_logprobs,
    };
    int rc = sampler_pick(&e->sampler, &in, logits, &picked, &err);
    if (rc) {
        if (rc == ROD_EINTERNAL) {
            count(&e->counters.nan, 1);
            engine_log(e, 3, "request %s: %s", r->id, err.message);
        }
        end_error(e, w, &err);
        return;
    }
    if (!w->first_ns) w->first_ns = now_ns;
    w->last_ns = now_ns;

    bool is_end = !r->ignore_eos && contains(parts->eos_ids, parts->n_eos_ids, picked.id);
    bool is_stop = !is_end && contains(r->stop_ids, r->n_stop_ids, picked.id);
    if (is_end || (is_stop && !r->include_stop)) { /* neither text nor a counted token */
        end_finish(e, w, ROD_FINISH_STOP, -1, picked.id);
        return;
    }
    w->n_generated++;
    if (w->counts.n_table) sampler_counts_add(&w->counts, picked.id, 1);
    int match = text_push(&w->text, picked.id, !r->keep_special && !is_stop, w->n_generated > r->min_tokens);
    if (send_delta(e, w, &picked)) {
        rod_fail(&err, ROD_ENOMEM, "No memory for the next token.");
        end_error(e, w, &err);
    } else if (match >= 0) {
        end_finish(e, w, ROD_FINISH_STOP, match, -1);
    } else if (is_stop) {
        end_finish(e, w, ROD_FINISH_STOP, -1, picked.id);
    } else if (w->n_generated == r->max_tokens) {
        end_finish(e, w, ROD_FINISH_LENGTH, -1, -1);
    } else {
        w->last = picked.id;
    }
}

/* ---- a step ---- */

static void fail_all(struct rod_engine *e, const struct rod_error *error) {
    struct sched_list *lists[3] = {&e->sched.decode, &e->sched.prefill, &e->sched.queue};
    for (int i = 0; i < 3; i++)
        while (lists[i]->head) end_error(e, work_of_sched(lists[i]->head), error);
}

static void device_fault(struct rod_engine *e, const struct rod_error *error) {
    atomic_store_explicit(&e->counters.device_failed, true, memory_order_relaxed);
    mailbox_refuse(&e->mailbox, ROD_EDEVICE);
    engine_log(e, 3, "device fault: %s", error->message);
    struct rod_error fault;
    rod_fail(&fault, ROD_EDEVICE, "The device failed: %s", error->message);
    fail_all(e, &fault);
}

static void receive(struct rod_engine *e, const struct mailbox_batch *batch) {
    for (struct mail *m = batch->submits, *next; m; m = next) {
        next = m->next;
        struct work *w = work_of_mail(m);
        sched_submit(&e->sched, &w->sched, w->submit_ns);
    }
    for (struct mail *m = batch->cancels, *next; m; m = next) {
        next = m->cancel_next;
        end_finish(e, work_of_mail(m), ROD_FINISH_CANCEL, -1, -1);
    }
}

static void admit(struct rod_engine *e, uint64_t now_ns) {
    struct sched_req *req;
    while ((req = sched_expire(&e->sched, now_ns))) {
        struct work *w = work_of_sched(req);
        struct rod_error err;
        rod_fail(&err, ROD_ETIMEDOUT, "No slot became free within %llu ms.",
                 (unsigned long long)(w->request->queue_timeout_ns / 1000000));
        end_error(e, w, &err);
    }
    while ((req = sched_admit(&e->sched, now_ns))) {
        count(&e->counters.running, 1);
        mailbox_started(&e->mailbox, &work_of_sched(req)->mail);
        e->parts.ops->slot_zero(e->parts.backend, req->slot);
    }
}

static void count_step(struct rod_engine *e, uint64_t begin_ns, uint64_t end_ns, uint32_t n_rows) {
    struct engine_counters *c = &e->counters;
    uint64_t ns = end_ns - begin_ns;
    int i = 0;
    while (ns > rod_step_bounds_ns[i]) i++;
    count(&c->bucket[i], 1);
    count(&c->step_ns_sum, ns);
    count(&c->rows_sum, n_rows);
    count(&c->steps, 1);
    atomic_store_explicit(&c->last_step_end_ns, end_ns, memory_order_relaxed);
}

static void step(struct rod_engine *e, uint64_t begin_ns) {
    uint32_t n_rows = sched_plan(&e->sched, e->rows);
    if (n_rows == 0) return;
    uint64_t n_prefill = 0, n_decode = 0;
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct sched_row *row = &e->rows[i];
        struct work *w = work_of_sched(row->req);
        bool decode = row->req->state == SCHED_DECODE;
        const int32_t *tok = decode ? &w->last : w->request->prompt + row->pos;
        e->segs[i] = (struct backend_segment){row->req->slot, row->n_tok, row->n_out, row->pos, tok};
        *(decode ? &n_decode : &n_prefill) += row->n_tok;
    }
    const float *logits;
    struct rod_error err;
    if (e->parts.ops->forward(e->parts.backend, e->segs, n_rows, &logits, &err)) {
        device_fault(e, &err);
        return;
    }
    count(&e->counters.prefill_tok, n_prefill);
    count(&e->counters.decode_tok, n_decode);
    uint64_t now_ns = engine_now_ns();
    for (uint32_t i = 0; i < n_rows; i++) {
        const struct sched_row row = e->rows[i];
        sched_commit(&e->sched, &row);
        if (!row.n_out) continue;
        generate(e, work_of_sched(row.req), logits, now_ns);
        logits += e->parts.V;
    }
    count_step(e, begin_ns, engine_now_ns(), n_rows);
}

static void post(struct rod_engine *e, bool wake) {
    if (!e->events.head) return;
    mailbox_post(&e->mailbox, &e->events);
    if (wake && e->config.wake) e->config.wake(e->config.wake_arg);
}

void *engine_thread(void *arg) {
    struct rod_engine *e = arg;
    for (bool idle = true;;) {
        struct mailbox_batch batch;
        mailbox_pop(&e->mailbox, idle, &batch);
        uint64_t now_ns = engine_now_ns();
        /* Time without work is not a step that hangs. */
        if (idle) atomic_store_explicit(&e->counters.last_step_end_ns, now_ns, memory_order_relaxed);
        receive(e, &batch);
        if (batch.stop) break;
        if (atomic_load_explicit(&e->counters.device_failed, memory_order_relaxed)) {
            struct rod_error err; /* submitted in the moment of the fault */
            rod_fail(&err, ROD_EDEVICE, "The device failed; this server takes no requests.");
            fail_all(e, &err);
        } else {
            admit(e, now_ns);
            step(e, now_ns);
        }
        post(e, true);
        idle = !e->sched.queue.n && !e->sched.prefill.n && !e->sched.decode.n;
    }
    struct rod_error err;
    rod_fail(&err, ROD_EDRAINING, "The server shut down before this request ended.");
    fail_all(e, &err);
    post(e, false); /* the owner is closing: nobody waits for a wake */
    return NULL;
}
