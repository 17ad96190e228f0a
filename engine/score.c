/* score.c - what only the host does with a row of logits: the prompt's own tokens are scored, bad words banned.
 */
#include "core.h"

#include <assert.h>
#include <string.h>

/* ---- prompts ---- */

struct event *score_copy(const struct event *scored, struct rod_error *err) {
    const size_t n = scored->pub.n_tokens;
    const uint32_t n_top = n ? scored->pub.tokens[0].n_top : 0;
    struct event *event = event_new(0, n, n_top, 0);
    if (!event) {
        rod_fail_no_memory(err);
        return NULL;
    }
    event->pub.kind = ROD_EVENT_PROMPT;
    for (size_t i = 0; i < n; i++) {
        struct rod_logprob *top = event->pub.tokens[i].top;
        event->pub.tokens[i] = scored->pub.tokens[i];
        event->pub.tokens[i].top = top;
        if (n_top) memcpy(top, scored->pub.tokens[i].top, n_top * sizeof *top);
    }
    return event;
}

/* Token i of the piece gave the logits that token i + 1 of the prompt is scored with. */
static int score_fill(struct rod_engine *e, const struct active *a, const struct sched_row *row, const float *logits,
                      struct event *out, struct rod_error *err) {
    const struct rod_request *r = a->request;
    for (size_t i = 0; i < out->pub.n_tokens; i++) {
        struct rod_token *t = &out->pub.tokens[i];
        struct sampler_output scored;
        const int rc = sampler_score(&e->sampler, logits + i * e->parts.V, r->prompt[row->pos + i + 1],
                                     (uint32_t)r->n_prompt_logprobs, &scored, &t->rank, err);
        if (rc) return rc;
        t->id = scored.id;
        t->logprob = scored.logprob;
        t->n_top = scored.n_top;
        if (t->n_top) memcpy(t->top, scored.top, t->n_top * sizeof *t->top);
    }
    return 0;
}

int score_prompt(struct rod_engine *e, const struct active *a, const struct sched_row *row, const float *logits,
                 struct event **out, struct rod_error *err) {
    const struct rod_request *r = a->request;
    const size_t left = r->n_prompt - 1 - (size_t)row->pos, n = row->n_tok < left ? row->n_tok : left;
    assert(a->sched.scored && row->n_out == row->n_tok && a->base == 0);
    *out = NULL;
    if (n == 0) return 0; /* the last token alone: what comes after it is not the prompt's */
    struct event *scored = event_new(0, n, (uint32_t)r->n_prompt_logprobs, 0);
    if (!scored) return rod_fail_no_memory(err);
    const int rc = score_fill(e, a, row, logits, scored, err);
    if (rc) {
        event_free(scored);
        return rc;
    }
    *out = scored;
    return 0;
}

void score_send(struct rod_engine *e, struct active *a, uint64_t pos, struct event *scored) {
    const size_t n_old = a->score.n_sent > pos ? a->score.n_sent - (size_t)pos : 0;
    if (n_old >= scored->pub.n_tokens) {
        event_free(scored);
        return;
    }
    scored->pub.tokens += n_old; /* what the request has from its source does not come twice */
    scored->pub.n_tokens -= n_old;
    a->score.n_sent += scored->pub.n_tokens;
    assert(a->score.n_sent < a->request->n_prompt); /* the first token has no score */
    scored->pub.kind = ROD_EVENT_PROMPT;
    scored->pub.ticket = a->submission.ticket;
    scored->pub.user = a->request->user;
    mailbox_append(&e->events, &scored->link);
}

/* ---- bad words ---- */

size_t score_banned(struct active *a, const int32_t **ids) {
    const struct rod_request *r = a->request;
    const bool early = a->n_generated < r->min_tokens || (a->gate.on && !grammar_gate_accepts(&a->gate));
    size_t n = a->n_end_ids;
    for (size_t i = 0; i < r->n_bad; i++) {
        const struct rod_ids *bad = &r->bad[i];
        const size_t before = bad->n_ids - 1;
        if (before > a->score.n_recent) continue;
        if (before && memcmp(a->score.recent + a->score.n_recent - before, bad->ids, before * sizeof *bad->ids))
            continue;
        a->end_ids[n++] = bad->ids[before];
    }
    assert(n <= a->n_end_ids + r->n_bad); /* what active_init_end_ids took */
    *ids = early ? a->end_ids : a->end_ids + a->n_end_ids;
    return early ? n : n - a->n_end_ids;
}

void score_generated(struct active *a, int32_t id) {
    if (!a->score.recent_cap) return;
    if (a->score.n_recent == a->score.recent_cap)
        memmove(a->score.recent, a->score.recent + 1, --a->score.n_recent * sizeof *a->score.recent);
    assert(a->score.n_recent < a->score.recent_cap);
    a->score.recent[a->score.n_recent++] = id;
}
