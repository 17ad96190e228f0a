/* score.c - what only the host does with a row of logits: the prompt's own tokens are scored, bad words banned.
 */
#include "core.h"

#include <string.h>

/* ---- prompts ---- */

struct event *score_copy(const struct event *scored, struct rod_error *err) {
    const size_t n = scored->pub.n_tokens;
    const uint32_t n_top = n ? scored->pub.tokens[0].n_top : 0;
    struct event *event = event_new(0, n, n_top, 0);
    if (!event) {
        rod_fail(err, ROD_ENOMEM, "No memory for the log-probabilities of a prompt.");
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
static int score_fill(struct rod_engine *e, const struct work *w, const struct sched_row *row, const float *logits,
                      struct event *out, struct rod_error *err) {
    const struct rod_request *r = w->request;
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

int score_prompt(struct rod_engine *e, const struct work *w, const struct sched_row *row, const float *logits,
                 struct event **out, struct rod_error *err) {
    const struct rod_request *r = w->request;
    const size_t left = r->n_prompt - 1 - (size_t)row->pos, n = row->n_tok < left ? row->n_tok : left;
    *out = NULL;
    if (n == 0) return 0; /* the last token alone: what comes after it is not the prompt's */
    struct event *scored = event_new(0, n, (uint32_t)r->n_prompt_logprobs, 0);
    if (!scored) return rod_fail(err, ROD_ENOMEM, "No memory for the log-probabilities of a prompt.");
    const int rc = score_fill(e, w, row, logits, scored, err);
    if (rc) {
        event_free(scored);
        return rc;
    }
    *out = scored;
    return 0;
}

void score_send(struct rod_engine *e, struct work *w, uint64_t pos, struct event *scored) {
    const size_t n_old = w->score.n_sent > pos ? w->score.n_sent - (size_t)pos : 0;
    if (n_old >= scored->pub.n_tokens) {
        event_free(scored);
        return;
    }
    scored->pub.tokens += n_old; /* what the work has from one that it followed does not come twice */
    scored->pub.n_tokens -= n_old;
    w->score.n_sent += scored->pub.n_tokens;
    scored->pub.kind = ROD_EVENT_PROMPT;
    scored->pub.ticket = w->mail.ticket;
    scored->pub.user = w->request->user;
    mailbox_append(&e->events, &scored->link);
}

/* ---- bad words ---- */

size_t score_banned(struct work *w, const int32_t **ids) {
    const struct rod_request *r = w->request;
    const bool early = w->n_generated < r->min_tokens || (r->grammar && !grammar_walk_accepts(&w->walk));
    size_t n = w->n_end_ids;
    for (size_t i = 0; i < r->n_bad; i++) {
        const struct rod_ids *bad = &r->bad[i];
        const size_t before = bad->n_ids - 1;
        if (before > w->score.n_recent) continue;
        if (before && memcmp(w->score.recent + w->score.n_recent - before, bad->ids, before * sizeof *bad->ids))
            continue;
        w->end_ids[n++] = bad->ids[before];
    }
    *ids = early ? w->end_ids : w->end_ids + w->n_end_ids;
    return early ? n : n - w->n_end_ids;
}

void score_generated(struct work *w, int32_t id) {
    if (!w->score.recent_cap) return;
    if (w->score.n_recent == w->score.recent_cap)
        memmove(w->score.recent, w->score.recent + 1, --w->score.n_recent * sizeof *w->score.recent);
    w->score.recent[w->score.n_recent++] = id;
}
