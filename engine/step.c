/* step.c - a step is planned and run, and its tokens go to their requests.
 *
 * Two ways to run a step. Without sampling on the device: forward, then a token a row. With it: a step is launched and
 * collected later, and the next one is planned and launched in between, so that the device never waits for the host:
 * it feeds itself, and skips rows of requests that it has seen end. A stop string is found by the host alone, when the
 * step is collected, so after such a row the next plan waits. A row under a grammar draws from a mask that is
 * made of the tokens before it, so its request is held until its token is there. Requests whose logits the host must
 * see (SITE_HOST) run in steps of their own, in the first way.
 */
#include "core.h"

#include <assert.h>
#include <string.h>

/* ---- plan ---- */

/* A stream's row, or the last token of an earlier answer as a prompt of one token. Without the break between the two
 * requests that token would have been a stream's row, and a device may add a prompt's sums in another order. */
static bool step_is_drawn(const struct sched_row *row) {
    const struct active *a = active_of_sched(row->req);
    return row->req->state == SCHED_DECODE || (a->own_prompt && a->n_prompt == 1);
}

/* The device has drawn tokens before prompts. Streams are there already. */
static void step_put_drawn_first(struct step *step) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < step->n_rows; i++) {
        const struct sched_row row = step->rows[i];
        if (!step_is_drawn(&row)) continue;
        memmove(&step->rows[n + 1], &step->rows[n], (i - n) * sizeof row);
        step->rows[n++] = row;
    }
}

static void step_fail_row(struct rod_engine *e, struct active *a, const struct rod_error *err) {
    if (err->code == ROD_EINTERNAL) {
        engine_count(&e->counters.nan, 1);
        prefix_use_distrust(e, a);
        engine_log(e, 3, "request %s: %s", a->request->id, err->message);
    }
    end_fail(e, a, err);
}

/* What the grammar allows behind n drafts, where its gate is this one, goes to the device. *mask: it, or NULL: all. */
static void step_give_mask(struct rod_engine *e, struct active *a, const struct grammar_gate *gate, uint32_t n,
                           const uint64_t *mask) {
    const uint32_t bit = 1u << n;
    if (a->sched.site == SITE_HOST) return; /* it looks at the mask when it samples */
    if (gate->on || a->masked & bit)
        e->parts.ops->slot_mask(e->parts.backend, a->sched.slot, n, mask, grammar_gate_accepts(gate));
    a->masked = gate->on ? a->masked | bit : a->masked & ~bit;
}

/* Makes a mask behind each of the row's drafts, as if the drafts before had come. The row keeps drafts up to the first
 * that the grammar does not allow, or that there is no time for. */
static void step_mask_drafts(struct rod_engine *e, struct active *a, struct sched_row *row, const uint64_t *mask) {
    const uint32_t n_drafts = row->req->state == SCHED_DECODE ? row->n_tok - 1 : 0;
    struct grammar_gate ahead;
    grammar_gate_copy(&ahead, &a->gate);
    for (uint32_t i = 1; i <= n_drafts; i++) {
        const int32_t id = a->draft.tok[i];
        struct rod_error none;
        bool comes = !mask || mask[id / 64] >> id % 64 & 1;
        comes =
            comes && !token_follow_grammar(a, &ahead, e->parts.tokenizer, id, &none) && !grammar_gate_finished(&ahead);
        mask = NULL;
        if (comes && ahead.on) comes = !mask_pieces_draft(e, a, &ahead.walk, &mask, &none) && mask;
        if (comes) {
            step_give_mask(e, a, &ahead, i, mask);
            continue;
        }
        row->n_tok = row->n_out = i;
        break;
    }
    grammar_gate_fini(&ahead);
}

/* A row under a grammar, whose mask is there. What a gate that is on allows next is known when the host has read the
 * row's token: until then the request is held, where the device draws. */
static int step_mask_row(struct rod_engine *e, struct active *a, struct sched_row *row, struct rod_error *err) {
    const uint64_t *mask = NULL;
    struct rod_error fault;
    const bool needs = a->gate.on && (a->sched.site == SITE_DEVICE || grammar_walk_has_mask(&a->gate.walk));
    if (needs && grammar_walk_mask(&a->gate.walk, grammar_vocab(a->request->grammar), &mask, &fault))
        return token_grammar_fault(&fault, err);
    step_give_mask(e, a, &a->gate, 0, mask);
    a->sched.held = a->gate.on && a->sched.site == SITE_DEVICE;
    step_mask_drafts(e, a, row, mask);
    return 0;
}

/* Of all that the next plans may take, as far as there is time for them. */
static void step_make_masks(struct rod_engine *e, uint64_t now_ns) {
    mask_pieces_begin(e, now_ns);
    for (struct active *a; (a = mask_pieces_next(e));) {
        struct rod_error fault, err;
        if (!mask_pieces_work(e, a, &fault)) continue;
        token_grammar_fault(&fault, &err);
        step_fail_row(e, a, &err);
    }
    mask_pieces_settle(e);
}

/* Where every token of the step is waited for, a step ahead would only split the rows between two steps. */
static void step_mask_rows(struct rod_engine *e, struct step *step) {
    uint32_t n = 0, n_out = 0, n_held = 0;
    for (uint32_t i = 0; i < step->n_rows; i++) {
        struct sched_row row = step->rows[i];
        struct active *a = active_of_sched(row.req);
        struct rod_error err;
        if (row.n_out && a->request->grammar && step_mask_row(e, a, &row, &err)) {
            step_fail_row(e, a, &err);
            continue;
        }
        n_out += row.n_out;
        n_held += row.req->held;
        step->rows[n++] = row;
    }
    step->n_rows = n;
    step->needs_host = n_held && n_held == n_out;
}

/* Plans the next step into e->segs and its struct step; NULL: nothing runs. */
static struct step *step_plan(struct rod_engine *e, enum sampling_site site, uint64_t now_ns) {
    assert(e->n_planned - e->n_collected < 2 && (site == SITE_DEVICE || e->n_planned == e->n_collected));
    struct step *step = &e->steps[e->n_planned % 2];
    draft_use_plan(e, site);
    step->n_rows = sched_plan(&e->sched, site, step->rows);
    step_mask_rows(e, step);
    if (step->n_rows == 0) return NULL;
    step->mask_ns = mask_pieces_spent(e);
    step_put_drawn_first(step);
    step->begin_ns = now_ns;
    step->site = site;
    step->n_decode = step->n_drafts = step->n_accepted = 0;
    step->ahead = e->n_planned != e->n_collected;
    step->waited = e->steps[(e->n_planned + 1) % 2].waits;
    step->put_off = site == SITE_DEVICE && !step->ahead && !step->waited && e->put_off;
    step->n_prompt_tok = 0;
    for (uint32_t i = 0; i < step->n_rows; i++) {
        const struct sched_row *row = &step->rows[i];
        struct active *a = active_of_sched(row->req);
        const int32_t *tok;
        assert(row->req->site == site && row->pos >= a->base && !a->ended);
        if (row->req->state == SCHED_DECODE && row->n_tok > 1)
            tok = draft_use_tokens(e, a, row->n_tok - 1), step->n_decode += row->n_tok,
            step->n_drafts += row->n_tok - 1;
        else if (row->req->state == SCHED_DECODE)
            tok = site == SITE_DEVICE && !a->waits ? NULL : &a->last, step->n_decode++;
        else
            tok = a->prompt + (row->pos - a->base), step->n_prompt_tok += row->n_tok;
        a->waits = false;
        e->segs[i] = (struct backend_segment){.slot = row->req->slot,
                                              .n_tok = row->n_tok,
                                              .n_out = row->n_out,
                                              .pos = row->pos,
                                              .tok = tok,
                                              .prompt = !step_is_drawn(row)};
        if (row->n_out && a->text.stops.n) step->needs_host = true;
        a->row[e->n_planned % 2] = i;
        sched_commit(&e->sched, row);
    }
    step->waits = step->needs_host;
    if (step->n_drafts) step->needs_host = true; /* how many of them are tokens */
    e->put_off = step->n_drafts > 0;
    engine_count(&e->counters.prefill_tok, step->n_prompt_tok);
    e->n_planned++;
    return step;
}

/* ---- results ---- */

static void step_count(struct rod_engine *e, const struct step *step) {
    struct engine_counters *c = &e->counters;
    const uint64_t begin_ns = step->begin_ns;
    const uint64_t end_ns = clock_now_ns(), last_ns = atomic_load_explicit(&c->last_step_end_ns, memory_order_relaxed);
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
    draft_use_learn(e, step, end_ns - last_ns);
    const uint64_t rest_ns = ns > step->mask_ns ? ns - step->mask_ns : 0;
    mask_pieces_learn(e, rest_ns);
    sched_took(&e->sched, step->site, step->n_decode, step->n_prompt_tok, step->site == SITE_HOST ? rest_ns : ns);
}

static int step_sample(struct rod_engine *e, struct active *a, uint64_t position, const float *logits,
                       struct sampler_output *picked, struct rod_error *err) {
    const struct rod_request *r = a->request;
    const int32_t *banned;
    const size_t n_banned = score_banned(a, &banned);
    const uint64_t *mask = NULL;
    struct rod_error fault;
    if (a->gate.on && grammar_walk_mask(&a->gate.walk, grammar_vocab(r->grammar), &mask, &fault))
        return token_grammar_fault(&fault, err);
    const struct sampler_input in = {
        .sampling = &r->sampling,
        .bias = r->bias,
        .n_bias = r->n_bias,
        .allowed = r->allowed_ids,
        .n_allowed = r->n_allowed_ids,
        .mask = mask,
        .also = a->end_ids,
        .n_also = mask && grammar_gate_accepts(&a->gate) ? a->n_end_ids : 0,
        .banned = banned,
        .n_banned = n_banned,
        .counts = a->counts.n_table ? &a->counts : NULL,
        .position = position,
        .n_logprobs = r->n_logprobs,
    };
    return sampler_pick(&e->sampler, &in, logits, picked, err);
}

static bool step_act(struct rod_engine *e, struct active *a, const struct verdict *v, const struct rod_error *err) {
    const enum verdict_kind kind = v->kind;
    if (kind == VERDICT_ENDS) end_finish(e, a, v);
    if (kind == VERDICT_FAILS) end_fail(e, a, err);
    return kind == VERDICT_GOES_ON;
}

bool step_take_logits(struct rod_engine *e, struct active *a, uint64_t position, const float *logits, uint64_t now_ns) {
    struct sampler_output picked;
    struct rod_error err;
    struct verdict v;
    assert(a->sched.site == SITE_HOST);
    if (a->request->max_tokens == 0) {
        v = token_none(a, now_ns);
    } else if (step_sample(e, a, position, logits, &picked, &err)) {
        step_fail_row(e, a, &err);
        return false;
    } else {
        v = token_take(e, a, &picked, now_ns, &err);
    }
    return step_act(e, a, &v, &err);
}

/* The device waits behind this token until a row names it. So a next row that is on its way did nothing. */
static void step_take_back(struct rod_engine *e, struct active *a) {
    const uint64_t next = e->n_collected + 1;
    a->waits = true;
    if (e->n_planned == next) return;
    struct step *step = &e->steps[next % 2];
    const uint32_t i = a->row[next % 2];
    if (i >= step->n_rows || step->rows[i].req != &a->sched) return;
    step->rows[i].req = NULL;
    sched_uncommit(&e->sched, &a->sched);
}

/* Whether the request goes on. */
static bool step_finish_on_device(struct rod_engine *e, struct active *a, const struct backend_token *token,
                                  uint64_t now_ns) {
    struct rod_error err;
    if (token->masked ? rod_fail(&err, ROD_EDEVICE, "The device ended a request that goes on.")
                      : sampler_check(token->status, &err)) {
        step_fail_row(e, a, &err);
        return false;
    }
    const bool waits = token->waits;
    a->sched.held = false;
    const struct verdict v = token_take(e, a, &token->picked, now_ns, &err);
    if (waits && v.kind == VERDICT_GOES_ON) step_take_back(e, a);
    return step_act(e, a, &v, &err);
}

/* A stream's row with a draft: its tokens as if they had come one by one, as far as the draft is right. logits: or
 * NULL, and the device's tokens; behind the last one that counts they say nothing. */
static void step_finish_drafted(struct rod_engine *e, struct step *step, const struct sched_row *row,
                                const float *logits, const struct backend_token *tokens, uint64_t now_ns) {
    struct active *a = active_of_sched(row->req);
    const uint32_t n_drafts = row->n_tok - 1;
    for (uint32_t i = 1;; i++) {
        const bool goes_on = tokens
                                 ? step_finish_on_device(e, a, &tokens[i - 1], now_ns)
                                 : step_take_logits(e, a, row->pos + i, logits + (size_t)(i - 1) * e->parts.V, now_ns);
        if (!goes_on) return; /* a may be gone */
        if (i <= n_drafts && draft_use_take(e, a, i)) {
            engine_count(&e->counters.decode_tok, 1);
            step->n_accepted++;
            a->waits = false; /* the next row named it */
            continue;
        }
        draft_use_judge(e, a, n_drafts, i - 1);
        return;
    }
}

/* A piece of a prompt whose tokens are scored. */
static int step_score(struct rod_engine *e, struct active *a, const struct sched_row *row, const float *logits,
                      struct rod_error *err) {
    struct event *scored;
    int rc = score_prompt(e, a, row, logits, &scored, err);
    if (rc || !scored) return rc;
    rc = shared_scored(e, a, row, scored, err);
    if (rc)
        event_free(scored);
    else
        score_send(e, a, row->pos, scored);
    return rc;
}

/* A row whose logits the host has. */
static void step_finish_on_host(struct rod_engine *e, struct step *step, const struct sched_row *row,
                                const float *logits, uint64_t now_ns) {
    struct active *a = active_of_sched(row->req);
    const uint64_t position = row->pos + row->n_tok, n_prompt = a->sched.n_prompt;
    struct rod_error err;
    if (a->sched.scored && row->pos < n_prompt && step_score(e, a, row, logits, &err)) {
        step_fail_row(e, a, &err);
        return;
    }
    if (position < n_prompt) return;
    assert(position == n_prompt || a->n_generated > 0);
    if (position != n_prompt && row->n_tok > 1) {
        step_finish_drafted(e, step, row, logits, NULL, now_ns);
        return;
    }
    logits += (size_t)(row->n_out - 1) * e->parts.V;
    if (position == n_prompt) shared_read(e, a, logits);
    step_take_logits(e, a, position, logits, now_ns); /* in order; a may be gone after this */
    if (position != n_prompt) return;
    for (struct active *next; (next = shared_next_started(e));) step_take_logits(e, next, n_prompt, logits, now_ns);
}

/* The oldest step has run: its tokens, or its logits where they are NULL, go to the requests that are still there. */
static void step_finish(struct rod_engine *e, const float *logits, const struct backend_token *tokens) {
    assert(e->n_collected < e->n_planned && !logits != !tokens);
    struct step *step = &e->steps[e->n_collected % 2];
    const uint64_t now_ns = clock_now_ns();
    uint32_t out = 0, n_out = 0;
    for (uint32_t i = 0; i < step->n_rows; i++, out += n_out) {
        const struct sched_row row = step->rows[i];
        n_out = row.n_out;
        if (!row.n_out || !row.req) continue;
        struct active *a = active_of_sched(row.req);
        if (a->n_generated) engine_count(&e->counters.decode_tok, 1);
        if (tokens && row.n_out > 1)
            step_finish_drafted(e, step, &row, NULL, &tokens[out], now_ns);
        else if (tokens)
            step_finish_on_device(e, a, &tokens[out], now_ns);
        else
            step_finish_on_host(e, step, &row, logits + (size_t)out * e->parts.V, now_ns);
    }
    step_count(e, step);
    step->n_rows = 0;
    e->n_collected++;
}

/* ---- run ---- */

/* Prompts that this step, which is planned and launched, brings to where they stop. */
static int step_leave_entries(struct rod_engine *e, const struct step *step, struct rod_error *err) {
    int rc = 0;
    for (uint32_t i = 0; !rc && i < step->n_rows; i++) {
        struct sched_req *r = step->rows[i].req;
        if (r->stop_tok && r->pos == r->stop_tok && r->state == SCHED_PREFILL)
            rc = prefix_use_stop(e, active_of_sched(r), step->begin_ns, err);
    }
    return rc;
}

static int step_run_on_host(struct rod_engine *e, uint64_t now_ns, struct rod_error *err) {
    const float *logits;
    const struct step *step = step_plan(e, SITE_HOST, now_ns);
    if (!step) return 0;
    int rc = e->parts.ops->forward(e->parts.backend, e->segs, step->n_rows, &logits, err);
    if (!rc) rc = step_leave_entries(e, step, err);
    if (!rc) step_finish(e, logits, NULL);
    return rc;
}

static int step_collect(struct rod_engine *e, struct rod_error *err) {
    const struct backend_token *tokens;
    int rc = e->parts.ops->collect(e->parts.backend, &tokens, err);
    if (!rc) step_finish(e, NULL, tokens);
    return rc;
}

/* A large step of a prompt that has the device alone. None is planned behind it, so a request that comes meanwhile
 * waits for one such step and not for two. From its end the device has no work until the host has seen it (100 us at
 * most) and launched. */
static bool step_is_large(const struct rod_engine *e, const struct step *step) {
    return e->backend_info.shared_tok && step->n_prompt_tok > e->backend_info.shared_tok;
}

/* Launches a step if it may, and collects one if two are on their way or there is nothing to launch. */
static int step_run_on_device(struct rod_engine *e, uint64_t now_ns, struct rod_error *err) {
    const uint64_t n_flying = e->n_planned - e->n_collected;
    assert(n_flying < 2);
    const struct step *first = &e->steps[e->n_collected % 2];
    const bool may = n_flying == 0 || (!first->needs_host && !draft_use_expects(e) && !step_is_large(e, first));
    const struct step *step = may ? step_plan(e, SITE_DEVICE, now_ns) : NULL;
    if (step) {
        int rc = e->parts.ops->launch(e->parts.backend, e->segs, step->n_rows, err);
        if (!rc) rc = step_leave_entries(e, step, err);
        if (rc) return rc;
    }
    return n_flying ? step_collect(e, err) : 0; /* with none on its way before, the next turn looks ahead of this one */
}

/* The sampling sites alternate. A step whose rows the host samples begins when nothing is on its way. */
static int step_run_site(struct rod_engine *e, uint64_t now_ns, struct rod_error *err) {
    if (!e->parts.ops->launch) return step_run_on_host(e, now_ns, err);
    const bool host = sched_site_busy(&e->sched, SITE_HOST);
    const bool device = sched_site_busy(&e->sched, SITE_DEVICE) || e->n_planned != e->n_collected;
    e->host_next = host && !e->host_next;
    if (!host || (device && !e->host_next)) return step_run_on_device(e, now_ns, err);
    int rc = 0;
    while (!rc && e->n_planned != e->n_collected) rc = step_collect(e, err);
    return rc ? rc : step_run_on_host(e, now_ns, err);
}

int step_run(struct rod_engine *e, uint64_t now_ns, struct rod_error *err) {
    step_make_masks(e, now_ns);
    const int rc = step_run_site(e, now_ns, err);
    mask_pieces_end(e);
    return rc;
}
