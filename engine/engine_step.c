/* engine_step.c - the engine thread: mail in, states that have arrived, plan, run, events out, one wake a turn.
 *
 * Two ways to run a step. Without sampling on the device: forward, then a token a row. With it: a step is launched and
 * collected later, and the next one is planned and launched in between, so that the device never waits for the host:
 * it feeds itself, and leaves alone what it has seen end. What the host alone can end (a stop string) is known only
 * when the step is collected, so after such a row the next plan waits. Requests whose logits the host must see
 * (LANE_HOST) run in steps of their own, in the first way.
 */
#include "engine_internal.h"

#include <string.h>

/* ---- faults ---- */

static void fail_all(struct rod_engine *e, const struct rod_error *error) {
    struct sched *s = &e->sched; /* followers before those whom they follow */
    struct sched_list *lists[] = {&s->follow,     &s->decode[0],  &s->decode[1], &s->last,
                                  &s->prefill[0], &s->prefill[1], &s->moving};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        while (lists[i]->head) engine_token_fail(e, work_of_sched(lists[i]->head), error);
    for (struct sched_req *req; (req = sched_next(s));) engine_token_fail(e, work_of_sched(req), error);
}

static void device_fault(struct rod_engine *e, const struct rod_error *error) {
    engine_log(e, 3, "device fault: %s", error->message); /* before anyone acts on it */
    atomic_store_explicit(&e->counters.device_failed, true, memory_order_relaxed);
    mailbox_refuse(&e->mailbox, ROD_EDEVICE);
    struct rod_error fault;
    rod_fail(&fault, ROD_EDEVICE, "The device failed: %s", error->message);
    fail_all(e, &fault);
    e->n_collected = e->n_planned; /* what was on its way does not arrive */
    /* Perhaps no request was left to tell: the owner must know all the same. */
    if (!e->events.head && e->config.wake) e->config.wake(e->config.wake_arg);
}

/* ---- mail ---- */

static void receive(struct rod_engine *e, const struct mailbox_batch *batch) {
    for (struct mail *m = batch->submits, *next; m; m = next) {
        next = m->next;
        struct work *w = work_of_mail(m);
        if (w->turn)
            engine_session_arrive(e, w);
        else
            sched_submit(&e->sched, &w->sched, w->submit_ns);
    }
    for (struct mail *m = batch->cancels, *next; m; m = next) {
        next = m->cancel_next;
        engine_token_cancel(e, work_of_mail(m));
    }
    /* after the cancels: a work that comes back may end here, and no list may name it then */
    for (struct mail *m = batch->returns, *next; m; m = next) {
        next = m->next;
        engine_session_back(e, work_of_mail(m), engine_now_ns());
    }
}

int engine_prepare_sampling(struct rod_engine *e, const struct work *w, struct rod_error *err) {
    const struct backend_ops *ops = e->parts.ops;
    const struct rod_request *r = w->request;
    if (!engine_on_device(e, w)) return 0;
    const struct backend_sampling sampling = {.sampling = &r->sampling,
                                              .bias = r->bias,
                                              .n_bias = r->n_bias,
                                              .end_ids = w->end_ids,
                                              .n_end_ids = w->n_end_ids,
                                              .min_tokens = r->min_tokens,
                                              .max_tokens = r->max_tokens,
                                              .n_logprobs = r->n_logprobs};
    return ops->slot_sampling(e->parts.backend, w->sched.slot, &sampling, err);
}

/* The slot's past and its rows on their way come before this on the device. */
static int prepare_slot(struct rod_engine *e, struct work *w, struct rod_error *err) {
    if (w->request->state) return engine_state_load(e, w, err);
    e->parts.ops->slot_zero(e->parts.backend, w->sched.slot);
    return engine_prepare_sampling(e, w, err);
}

static void fail_row(struct rod_engine *e, struct work *w, const struct rod_error *err) {
    if (err->code == ROD_EINTERNAL) {
        engine_count(&e->counters.nan, 1);
        engine_prefix_distrust(e, w);
        engine_log(e, 3, "request %s: %s", w->request->id, err->message);
    }
    engine_token_fail(e, w, err);
}

int engine_read(struct rod_engine *e, struct work *w, uint64_t now_ns, struct rod_error *err) {
    struct rod_error fault;
    if (!engine_fork_admit(e, w, now_ns, &fault)) return engine_prefix_admit(e, w, now_ns, err);
    fail_row(e, w, &fault);
    return 0;
}

static int admit(struct rod_engine *e, uint64_t now_ns, struct rod_error *err) {
    struct sched_req *req;
    while ((req = sched_expire(&e->sched, now_ns))) {
        struct work *w = work_of_sched(req);
        struct rod_error late;
        rod_fail(&late, ROD_ETIMEDOUT, "No slot became free within %llu ms.",
                 (unsigned long long)(w->request->queue_timeout_ns / 1000000));
        engine_token_fail(e, w, &late);
    }
    while ((req = sched_admit(&e->sched, now_ns))) {
        engine_count(&e->counters.running, 1);
        mailbox_started(&e->mailbox, &work_of_sched(req)->mail);
        struct work *w = work_of_sched(req);
        int rc = prepare_slot(e, w, err);
        if (rc == ROD_ESTATE) { /* the state that it would go on from, not the device */
            engine_token_fail(e, w, err);
            continue;
        }
        if (rc) return rc;
        if (w->sched.state == SCHED_MOVING) continue;
        if ((rc = engine_read(e, w, now_ns, err))) return rc;
    }
    engine_fork_settle(e, now_ns);
    return 0;
}

/* ---- a step ---- */

/* A row of a stream; or of what a last answer left to be read, alone: without the break between them it would have been
 * one, and a device may add a prompt's sums in another order. */
static bool is_drawn(const struct sched_row *row) {
    const struct work *w = work_of_sched(row->req);
    return row->req->state == SCHED_DECODE || (w->own_prompt && w->n_prompt == 1);
}

/* As the device has it: drawn tokens before prompts. Streams are there already. */
static void put_drawn_first(struct step *step) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->n_rows; i++) {
        const struct sched_row row = step->rows[i];
        if (!is_drawn(&row)) continue;
        memmove(&step->rows[n + 1], &step->rows[n], (i - n) * sizeof row);
        step->rows[n++] = row;
    }
}

/* Plans the next step into e->segs and its struct step; NULL: nothing runs. */
static struct step *plan(struct rod_engine *e, enum engine_lane lane, uint64_t now_ns) {
    struct step *step = &e->steps[e->n_planned % 2];
    step->n_rows = sched_plan(&e->sched, (uint8_t)lane, step->rows);
    if (step->n_rows == 0) return NULL;
    put_drawn_first(step);
    step->begin_ns = now_ns;
    step->needs_host = false;
    const bool device_feeds = e->parts.ops->launch && lane == LANE_FIRST;
    step->lane = lane;
    step->n_decode = 0;
    step->n_prompt_tok = 0;
    for (uint32_t i = 0; i < step->n_rows; i++) {
        const struct sched_row *row = &step->rows[i];
        struct work *w = work_of_sched(row->req);
        const int32_t *tok;
        if (row->req->state == SCHED_DECODE)
            tok = device_feeds ? NULL : &w->last, step->n_decode++;
        else
            tok = w->prompt + (row->pos - w->base), step->n_prompt_tok += row->n_tok;
        e->segs[i] = (struct backend_segment){row->req->slot, row->n_tok, row->n_out, row->pos, tok, !is_drawn(row)};
        if (row->n_out && w->text.stops.n) step->needs_host = true;
        w->row[e->n_planned % 2] = i;
        sched_commit(&e->sched, row);
    }
    engine_count(&e->counters.prefill_tok, step->n_prompt_tok);
    e->n_planned++;
    return step;
}

static void count_step(struct rod_engine *e, const struct step *step) {
    struct engine_counters *c = &e->counters;
    const uint64_t begin_ns = step->begin_ns;
    const uint64_t end_ns = engine_now_ns(), last_ns = atomic_load_explicit(&c->last_step_end_ns, memory_order_relaxed);
    const uint64_t ns = end_ns - (begin_ns > last_ns ? begin_ns : last_ns); /* a step begins when the last one ends */
    int i = 0;
    while (ns > rod_step_bounds_ns[i]) i++;
    engine_count(&c->bucket[i], 1);
    for (i = 0; step->n_rows > rod_step_bounds_rows[i]; i++) {}
    engine_count(&c->rows_bucket[i], 1);
    engine_count(&c->step_ns_sum, ns);
    engine_count(&c->rows_sum, step->n_rows);
    engine_count(&c->steps, 1);
    atomic_store_explicit(&c->last_step_end_ns, end_ns, memory_order_relaxed);
    sched_took(&e->sched, (uint8_t)step->lane, step->n_decode, step->n_prompt_tok, ns);
}

static int sample(struct rod_engine *e, struct work *w, uint64_t position, const float *logits,
                  struct sampler_output *picked, struct rod_error *err) {
    const struct rod_request *r = w->request;
    const int32_t *banned;
    const size_t n_banned = engine_score_banned(w, &banned);
    const uint64_t *mask = NULL;
    struct rod_error fault;
    if (r->grammar && grammar_walk_mask(&w->walk, grammar_vocab(r->grammar), &mask, &fault))
        return engine_token_grammar_fault(&fault, err);
    const struct sampler_input in = {
        .sampling = &r->sampling,
        .bias = r->bias,
        .n_bias = r->n_bias,
        .allowed = r->allowed_ids,
        .n_allowed = r->n_allowed_ids,
        .mask = mask,
        .also = w->end_ids,
        .n_also = mask && grammar_walk_accepts(&w->walk) ? w->n_end_ids : 0,
        .banned = banned,
        .n_banned = n_banned,
        .counts = w->counts.n_table ? &w->counts : NULL,
        .position = position,
        .n_logprobs = r->n_logprobs,
    };
    return sampler_pick(&e->sampler, &in, logits, picked, err);
}

void engine_take_logits(struct rod_engine *e, struct work *w, uint64_t position, const float *logits, uint64_t now_ns) {
    struct sampler_output picked;
    struct rod_error err;
    if (w->request->max_tokens == 0)
        engine_token_none(e, w, now_ns);
    else if (sample(e, w, position, logits, &picked, &err))
        fail_row(e, w, &err);
    else
        engine_token_take(e, w, &picked, now_ns);
}

/* A row whose logits the host has. */
static void finish_on_host(struct rod_engine *e, const struct sched_row *row, const float *logits, uint64_t now_ns) {
    struct work *w = work_of_sched(row->req);
    const uint64_t position = row->pos + row->n_tok;
    struct rod_error err;
    if (w->sched.scored && row->pos < w->sched.n_prompt && engine_score_prompt(e, w, row, logits, &err)) {
        fail_row(e, w, &err);
        return;
    }
    if (position < w->sched.n_prompt) return;
    logits += (size_t)(row->n_out - 1) * e->parts.V;
    if (position == w->sched.n_prompt)
        engine_fork_read(e, w, logits, now_ns);
    else
        engine_take_logits(e, w, position, logits, now_ns);
}

static void finish_on_device(struct rod_engine *e, struct work *w, const struct backend_token *token, uint64_t now_ns) {
    struct rod_error err;
    if (token->masked ? rod_fail(&err, ROD_EDEVICE, "The device ended a request that goes on.")
                      : sampler_check(token->status, &err))
        fail_row(e, w, &err);
    else
        engine_token_take(e, w, &token->picked, now_ns);
}

/* The oldest step has run: its tokens, or its logits where they are NULL, go to the requests that are still there. */
static void finish_step(struct rod_engine *e, const float *logits, const struct backend_token *tokens) {
    struct step *step = &e->steps[e->n_collected % 2];
    const uint64_t now_ns = engine_now_ns();
    uint32_t out = 0, n_out = 0;
    for (uint32_t i = 0; i < step->n_rows; i++, out += n_out) {
        const struct sched_row row = step->rows[i];
        n_out = row.n_out;
        if (!row.n_out || !row.req) continue;
        struct work *w = work_of_sched(row.req);
        if (w->n_generated) engine_count(&e->counters.decode_tok, 1);
        if (tokens)
            finish_on_device(e, w, &tokens[out], now_ns);
        else
            finish_on_host(e, &row, logits + (size_t)out * e->parts.V, now_ns);
    }
    count_step(e, step);
    step->n_rows = 0;
    e->n_collected++;
}

/* Prompts that this step, which is planned and launched, brings to where they stop. */
static int leave_checkpoints(struct rod_engine *e, const struct step *step, struct rod_error *err) {
    int rc = 0;
    for (uint32_t i = 0; !rc && i < step->n_rows; i++) {
        struct sched_req *r = step->rows[i].req;
        if (r->stop_tok && r->pos == r->stop_tok && r->state == SCHED_PREFILL)
            rc = engine_prefix_stop(e, work_of_sched(r), step->begin_ns, err);
    }
    return rc;
}

static int run_on_host(struct rod_engine *e, enum engine_lane lane, uint64_t now_ns, struct rod_error *err) {
    const float *logits;
    const struct step *step = plan(e, lane, now_ns);
    if (!step) return 0;
    int rc = e->parts.ops->forward(e->parts.backend, e->segs, step->n_rows, &logits, err);
    if (!rc) rc = leave_checkpoints(e, step, err);
    if (!rc) finish_step(e, logits, NULL);
    return rc;
}

static int collect(struct rod_engine *e, struct rod_error *err) {
    const struct backend_token *tokens;
    int rc = e->parts.ops->collect(e->parts.backend, &tokens, err);
    if (!rc) finish_step(e, NULL, tokens);
    return rc;
}

/* Launches a step if it may, and collects one if two are on their way or there is nothing to launch. */
static int run_on_device(struct rod_engine *e, uint64_t now_ns, struct rod_error *err) {
    const uint64_t n_flying = e->n_planned - e->n_collected;
    const bool may = n_flying == 0 || !e->steps[e->n_collected % 2].needs_host;
    const struct step *step = may ? plan(e, LANE_FIRST, now_ns) : NULL;
    if (step) {
        int rc = e->parts.ops->launch(e->parts.backend, e->segs, step->n_rows, err);
        if (!rc) rc = leave_checkpoints(e, step, err);
        if (rc) return rc;
    }
    return n_flying ? collect(e, err) : 0; /* with none on its way before, the next turn looks ahead of this one */
}

/* The lanes take turns. A step of the host's lane begins when nothing is on its way. */
static int run(struct rod_engine *e, uint64_t now_ns, struct rod_error *err) {
    if (!e->parts.ops->launch) return run_on_host(e, LANE_FIRST, now_ns, err);
    const bool host = sched_lane_busy(&e->sched, LANE_HOST);
    const bool device = sched_lane_busy(&e->sched, LANE_FIRST) || e->n_planned != e->n_collected;
    e->host_next = host && !e->host_next;
    if (!host || (device && !e->host_next)) return run_on_device(e, now_ns, err);
    int rc = 0;
    while (!rc && e->n_planned != e->n_collected) rc = collect(e, err);
    return rc ? rc : run_on_host(e, LANE_HOST, now_ns, err);
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
        struct rod_error err;
        mailbox_pop(&e->mailbox, idle, &batch);
        uint64_t now_ns = engine_now_ns();
        /* Time without work is not a step that hangs. */
        if (idle) atomic_store_explicit(&e->counters.last_step_end_ns, now_ns, memory_order_relaxed);
        receive(e, &batch);
        if (batch.stop) break;
        if (atomic_load_explicit(&e->counters.device_failed, memory_order_relaxed)) {
            /* submitted in the moment of the fault */
            rod_fail(&err, ROD_EDEVICE, "The device failed; this server takes no requests.");
            fail_all(e, &err);
        } else {
            int rc = engine_move_collect(e, &err);
            if (!rc) rc = admit(e, now_ns, &err);
            post(e, true); /* what ended without a step does not wait for the next one */
            if (!rc) rc = run(e, now_ns, &err);
            if (rc) device_fault(e, &err);
        }
        post(e, true);
        /* Who is in the queue waits for a slot: for one whose state is on its way, which pokes the mailbox when it
         * arrives, if none is free since this step. */
        const bool stuck = e->n_moving && !e->sched.slots.n_free;
        idle = e->n_planned == e->n_collected && (!e->sched.n_queued || stuck) &&
               !sched_lane_busy(&e->sched, LANE_FIRST) && !sched_lane_busy(&e->sched, LANE_HOST);
    }
    struct rod_error err;
    rod_fail(&err, ROD_EDRAINING, "The server shut down before this request ended.");
    fail_all(e, &err);
    engine_session_stop(e, &err);
    post(e, false); /* the owner is closing: nobody waits for a wake */
    return NULL;
}
