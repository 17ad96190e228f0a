/* active.c - an active request: one that was submitted, with the memory of all its steps. */
#include "core.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int active_init_counts(struct active *a, const struct engine_parts *parts, struct rod_error *err) {
    const struct rod_request *r = a->request;
    const uint32_t V = parts->V;
    const bool device = a->sched.site == SITE_DEVICE; /* it counts itself */
    const struct session_snapshot *from = a->session.turn ? a->session.turn->snapshot : NULL;
    if (!from && (device || !sampler_needs_counts(&r->sampling))) return 0; /* a session's next turn may need them */
    uint64_t n_distinct = (uint64_t)a->n_prompt + r->max_tokens + (from ? from->n_seen : 0) + 1;
    int rc = sampler_counts_init(&a->counts, n_distinct < V ? n_distinct : V, err);
    for (size_t i = 0; !rc && from && i < from->n_seen; i++)
        sampler_counts_add(&a->counts, from->seen[i].id, from->seen[i].n_generated);
    for (size_t i = 0; !rc && i < a->n_prompt; i++) sampler_counts_add(&a->counts, a->prompt[i], 0);
    return rc;
}

void active_add_end_ids(struct active *a, const struct engine_parts *parts) {
    for (uint32_t i = 0; i < parts->n_eos_ids; i++)
        if (parts->eos_ids[i] >= 0 && (uint32_t)parts->eos_ids[i] < parts->V)
            a->end_ids[a->n_end_ids++] = parts->eos_ids[i];
}

static int active_init_end_ids(struct active *a, const struct engine_parts *parts, struct rod_error *err) {
    const struct rod_request *r = a->request;
    a->end_ids = malloc((r->n_stop_ids + parts->n_eos_ids + r->n_bad + 1) * sizeof *a->end_ids);
    if (!a->end_ids) return rod_fail_no_memory(err);
    if (!r->ignore_eos) active_add_end_ids(a, parts);
    for (size_t i = 0; i < r->n_stop_ids; i++) a->end_ids[a->n_end_ids++] = r->stop_ids[i];
    return 0;
}

static int active_init_recent(struct active *a, struct rod_error *err) {
    size_t most = 0;
    for (size_t i = 0; i < a->request->n_bad; i++)
        if (a->request->bad[i].n_ids > most) most = a->request->bad[i].n_ids;
    if (most < 2) return 0;
    assert(most <= REQUEST_MAX_BAD_TOK);
    a->score.recent_cap = (uint32_t)most - 1;
    a->score.recent = malloc(a->score.recent_cap * sizeof *a->score.recent);
    return a->score.recent ? 0 : rod_fail_no_memory(err);
}

/* What a device that samples cannot do by itself. */
static bool active_needs_logits(const struct rod_engine *e, const struct active *a) {
    const struct rod_request *r = a->request;
    if (r->grammar && !e->parts.ops->slot_mask) return true;
    if (a->session.turn && a->session.turn->snapshot->n_seen && sampler_needs_counts(&r->sampling))
        return true; /* of earlier turns */
    return r->n_prompt_logprobs >= 0 || r->n_allowed_ids || r->n_bad || r->max_tokens == 0;
}

/* A session's turn. */
static int active_init_turn(struct active *a, struct rod_error *err) {
    a->session.turn = calloc(1, sizeof *a->session.turn);
    if (!a->session.turn) return rod_fail_no_memory(err);
    a->session.turn->ask = a->request->turn;
    a->session.turn->user = a;
    return 0;
}

int active_new(const struct rod_engine *e, struct rod_request *request, struct active **out, struct rod_error *err) {
    struct active *a = calloc(1, sizeof *a);
    if (!a) return rod_fail_no_memory(err);
    a->request = request;
    struct grammar *grammar = request->grammar ? grammar_of(request->grammar) : NULL;
    grammar_gate_init(&a->gate, grammar, request->grammar_open, request->grammar_again);
    int rc = text_init(&a->text, e->parts.tokenizer, e->max_token_bytes, request, err);
    if (!rc) rc = active_init_end_ids(a, &e->parts, err);
    if (!rc) rc = active_init_recent(a, err);
    if (!rc && (request->keep_state || request->turn) && !(a->output_state = calloc(1, sizeof *a->output_state)))
        rc = rod_fail_no_memory(err);
    if (!rc) {
        a->end = event_new(text_cap(&a->text, e->max_token_bytes), 0, 0, stops_max_len(&a->text.stops) + 1);
        if (!a->end) rc = rod_fail_no_memory(err);
    }
    if (!rc && request->turn) rc = active_init_turn(a, err); /* its state is found later */
    if (!rc && !request->turn) rc = active_bind(e, a, err);
    if (rc) {
        a->request = NULL;
        active_free(a);
        return rc;
    }
    a->submit_ns = clock_now_ns();
    a->waited_ns = request->waited_ns;
    a->submission.n_tok = request->n_prompt;
    a->submission.key = request->key;
    a->submission.quota = request->queue_quota;
    if (request->queue_timeout_ns) {
        bool never = request->queue_timeout_ns > UINT64_MAX - a->submit_ns;
        a->sched.deadline_ns = never ? 0 : a->submit_ns + request->queue_timeout_ns;
        if (a->session.turn) a->session.turn->deadline_ns = a->sched.deadline_ns;
    }
    *out = a;
    return 0;
}

static int active_bind_prompt(struct active *a, struct rod_error *err) {
    const struct rod_request *r = a->request;
    const struct rod_state *s = r->state;
    a->prompt = r->prompt;
    a->n_prompt = r->n_prompt;
    a->base = s ? s->n_tok : 0;
    if (!s || s->pending < 0) return 0;
    a->own_prompt = malloc((r->n_prompt + 1) * sizeof *a->own_prompt);
    if (!a->own_prompt) return rod_fail_no_memory(err);
    a->own_prompt[0] = s->pending;
    if (r->n_prompt) memcpy(a->own_prompt + 1, r->prompt, r->n_prompt * sizeof *a->own_prompt);
    a->prompt = a->own_prompt;
    a->n_prompt = r->n_prompt + 1;
    return 0;
}

/* The device does not draw on behind a token that may open the gate, until the host has read it. */
static int active_init_wait_ids(const struct rod_engine *e, struct active *a, struct rod_error *err) {
    if (!a->gate.open) return 0;
    return grammar_tags_find(e->tags, a->gate.open, &a->wait_ids, &a->n_wait_ids, &a->own_wait_ids, err);
}

int active_bind(const struct rod_engine *e, struct active *a, struct rod_error *err) {
    const struct rod_request *r = a->request;
    a->sched.site = e->parts.ops->launch && !active_needs_logits(e, a) ? SITE_DEVICE : SITE_HOST;
    assert(a->sched.state == SCHED_NONE && !a->own_prompt); /* once */
    int rc = active_bind_prompt(a, err);
    if (!rc) rc = active_init_counts(a, &e->parts, err);
    if (!rc && a->sched.site == SITE_DEVICE) rc = active_init_wait_ids(e, a, err);
    if (!rc) rc = draft_use_bind(e, a, err);
    a->sched.pos = a->base;
    a->sched.n_prompt = a->base + a->n_prompt;
    a->sched.max_out = r->max_tokens ? r->max_tokens : 1; /* logits of the prompt's end, if only for its end */
    a->sched.key = r->key;
    a->sched.weight = r->weight;
    a->sched.scored = r->n_prompt_logprobs >= 0 && r->n_prompt > 1;
    a->sched.may_fly = flight_may_have(e, a);
    return rc;
}

void active_free(struct active *a) {
    assert(a->sched.state == SCHED_NONE && !a->session.in_sessions);
    if (a->session.turn) session_turn_fini(a->session.turn);
    free(a->session.turn);
    grammar_gate_fini(&a->gate);
    rod_request_free(a->request);
    text_fini(&a->text);
    sampler_counts_fini(&a->counts);
    free(a->own_prompt);
    free(a->end_ids);
    free(a->own_wait_ids);
    free(a->score.recent);
    event_free(a->end);
    rod_state_free(a->output_state);
    free(a->cache.generated_ids);
    state_buffer_release(a->lane.loaded);
    draft_lookup_fini(&a->draft.lookup);
    events_free(&a->shared.scores);
    free(a);
}
