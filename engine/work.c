/* work.c - one submitted request with the memory of all its steps. */
#include "core.h"

#include <stdlib.h>
#include <string.h>

static int work_init_counts(struct work *w, const struct engine_parts *parts, struct rod_error *err) {
    const struct rod_request *r = w->request;
    const uint32_t V = parts->V;
    const bool device = parts->ops->launch && w->lane == LANE_FIRST; /* it counts itself */
    const struct session_snapshot *from = w->session.turn ? w->session.turn->snapshot : NULL;
    if (!from && (device || !sampler_needs_counts(&r->sampling))) return 0; /* a session's next turn may need them */
    uint64_t n_distinct = (uint64_t)w->n_prompt + r->max_tokens + (from ? from->n_seen : 0) + 1;
    int rc = sampler_counts_init(&w->counts, n_distinct < V ? n_distinct : V, err);
    for (size_t i = 0; !rc && from && i < from->n_seen; i++)
        sampler_counts_add(&w->counts, from->seen[i].id, from->seen[i].n_generated);
    for (size_t i = 0; !rc && i < w->n_prompt; i++) sampler_counts_add(&w->counts, w->prompt[i], 0);
    return rc;
}

static int work_init_end_ids(struct work *w, const struct engine_parts *parts, struct rod_error *err) {
    const struct rod_request *r = w->request;
    w->end_ids = malloc((r->n_stop_ids + parts->n_eos_ids + r->n_bad + 1) * sizeof *w->end_ids);
    if (!w->end_ids) return rod_fail(err, ROD_ENOMEM, "No memory for a request.");
    for (uint32_t i = 0; i < parts->n_eos_ids && !r->ignore_eos; i++)
        if (parts->eos_ids[i] >= 0 && (uint32_t)parts->eos_ids[i] < parts->V)
            w->end_ids[w->n_end_ids++] = parts->eos_ids[i];
    for (size_t i = 0; i < r->n_stop_ids; i++) w->end_ids[w->n_end_ids++] = r->stop_ids[i];
    return 0;
}

static int work_init_recent(struct work *w, struct rod_error *err) {
    size_t most = 0;
    for (size_t i = 0; i < w->request->n_bad; i++)
        if (w->request->bad[i].n_ids > most) most = w->request->bad[i].n_ids;
    if (most < 2) return 0;
    w->score.recent_cap = (uint32_t)most - 1;
    w->score.recent = malloc(w->score.recent_cap * sizeof *w->score.recent);
    return w->score.recent ? 0 : rod_fail(err, ROD_ENOMEM, "No memory for a request.");
}

/* What a device that samples cannot do by itself. */
static bool work_needs_logits(const struct work *w) {
    const struct rod_request *r = w->request;
    if (w->session.turn && w->session.turn->snapshot->n_seen && sampler_needs_counts(&r->sampling))
        return true; /* of earlier turns */
    return r->n_prompt_logprobs >= 0 || r->n_allowed_ids || r->n_bad || r->grammar || r->max_tokens == 0;
}

/* A session's turn. */
static int work_init_turn(struct work *w, struct rod_error *err) {
    w->session.turn = calloc(1, sizeof *w->session.turn);
    if (!w->session.turn) return rod_fail(err, ROD_ENOMEM, "No memory for a request.");
    w->session.turn->ask = w->request->turn;
    w->session.turn->user = w;
    return 0;
}

int work_new(const struct rod_engine *e, struct rod_request *request, struct work **out, struct rod_error *err) {
    struct work *w = calloc(1, sizeof *w);
    if (!w) return rod_fail(err, ROD_ENOMEM, "No memory for a request.");
    w->request = request;
    if (request->grammar) grammar_walk_init(&w->walk, grammar_of(request->grammar));
    int rc = text_init(&w->text, e->parts.tokenizer, e->max_token_bytes, request, err);
    if (!rc) rc = work_init_end_ids(w, &e->parts, err);
    if (!rc) rc = work_init_recent(w, err);
    if (!rc && (request->keep_state || request->turn) && !(w->output_state = calloc(1, sizeof *w->output_state)))
        rc = rod_fail(err, ROD_ENOMEM, "No memory for a request.");
    if (!rc) {
        w->end = event_new(text_cap(&w->text, e->max_token_bytes), 0, 0, stops_max_len(&w->text.stops) + 1);
        if (!w->end) rc = rod_fail(err, ROD_ENOMEM, "No memory for a request.");
    }
    if (!rc && request->turn) rc = work_init_turn(w, err); /* its state is found later */
    if (!rc && !request->turn) rc = work_bind(e, w, err);
    if (rc) {
        w->request = NULL;
        work_free(w);
        return rc;
    }
    w->submit_ns = engine_now_ns();
    w->mail.n_tok = request->n_prompt;
    if (request->queue_timeout_ns) {
        bool never = request->queue_timeout_ns > UINT64_MAX - w->submit_ns;
        w->sched.deadline_ns = never ? 0 : w->submit_ns + request->queue_timeout_ns;
        if (w->session.turn) w->session.turn->deadline_ns = w->sched.deadline_ns;
    }
    *out = w;
    return 0;
}

static int work_bind_prompt(struct work *w, struct rod_error *err) {
    const struct rod_request *r = w->request;
    const struct rod_state *s = r->state;
    w->prompt = r->prompt;
    w->n_prompt = r->n_prompt;
    w->base = s ? s->n_tok : 0;
    if (!s || s->pending < 0) return 0;
    w->own_prompt = malloc((r->n_prompt + 1) * sizeof *w->own_prompt);
    if (!w->own_prompt) return rod_fail(err, ROD_ENOMEM, "No memory for a request.");
    w->own_prompt[0] = s->pending;
    if (r->n_prompt) memcpy(w->own_prompt + 1, r->prompt, r->n_prompt * sizeof *w->own_prompt);
    w->prompt = w->own_prompt;
    w->n_prompt = r->n_prompt + 1;
    return 0;
}

int work_bind(const struct rod_engine *e, struct work *w, struct rod_error *err) {
    const struct rod_request *r = w->request;
    w->lane = e->parts.ops->launch && work_needs_logits(w) ? LANE_HOST : LANE_FIRST;
    int rc = work_bind_prompt(w, err);
    if (!rc) rc = work_init_counts(w, &e->parts, err);
    w->sched.pos = w->base;
    w->sched.n_prompt = w->base + w->n_prompt;
    w->sched.max_out = r->max_tokens ? r->max_tokens : 1; /* logits of the prompt's end, if only for its end */
    w->sched.lane = (uint8_t)w->lane;
    w->sched.key = r->key;
    w->sched.weight = r->weight;
    w->sched.scored = r->n_prompt_logprobs >= 0 && r->n_prompt > 1;
    return rc;
}

void work_free(struct work *w) {
    if (w->session.turn) session_turn_fini(w->session.turn);
    free(w->session.turn);
    grammar_walk_fini(&w->walk);
    rod_request_free(w->request);
    text_fini(&w->text);
    sampler_counts_fini(&w->counts);
    free(w->own_prompt);
    free(w->end_ids);
    free(w->score.recent);
    event_free(w->end);
    rod_state_free(w->output_state);
    free(w->cache.generated_ids);
    events_free(&w->share.scores);
    free(w);
}
