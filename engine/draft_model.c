/* draft_model.c - drafts by a smaller model with the same tokens, in a backend of its own.
 *
 * Slot i of it has read what the stream in slot i of the model has: the stream's tokens are read when a draft is asked
 * for, the newest MOST_READ of them at most. A draft goes on from a copy in slot n_slots + i, greedily, a step a token,
 * all streams together; so what was wrong is forgotten with the copy. It is a hint: it is in no state and in no file.
 * Where the device draws it draws these, too: the streams' device has nothing else to do meanwhile.
 */
#include "core.h"

#include <assert.h>
#include <stdlib.h>

enum {
    MOST_READ = 512, /* of a stream at once; what it has not read before these is left out */
    FEW_READ = 16,   /* more is read once a stream, and no price of a draft token */
    MOST_COUNTED = 32
};

struct draft_ask {
    struct active *active;
    uint32_t n;
};

struct draft_model {
    struct backend *backend;
    uint32_t V, max_tok;
    struct backend_segment *segs; /* [n_slots] */
    struct draft_ask *asks;       /* [n_slots], n_asks: of the next plan */
    uint32_t n_asks;
    bool warm;       /* it has run: the first time touches new memory */
    uint32_t n_read; /* the most that a stream has read for the drafts at hand */
    double token_ns; /* mean time of a draft token; 0: not known */
    uint32_t n_tok;  /* draft tokens of the mean, up to a bound */
};

/* The likeliest token, always, where the device draws. */
static int draft_sampling(struct rod_engine *e, uint32_t slot, struct rod_error *err) {
    static const struct rod_sampling greedy = {.top_p = 1, .typical_p = 1, .repetition_penalty = 1};
    const struct backend_sampling sampling = {.sampling = &greedy, .max_tokens = UINT32_MAX, .n_logprobs = -1};
    if (!e->parts.ops->launch) return 0;
    return e->parts.ops->slot_sampling(e->draft_model->backend, slot, &sampling, err);
}

int draft_model_open(struct rod_engine *e, struct rod_error *err) {
    if (!e->parts.draft_backend) return 0;
    const struct backend_info *info = e->parts.ops->info(e->parts.draft_backend);
    const uint32_t n = e->backend_info.n_slots;
    struct draft_model *m = e->draft_model = calloc(1, sizeof *m);
    if (!m) return rod_fail_no_memory(err);
    assert(info->n_slots == 2 * n && info->max_out >= n);
    m->backend = e->parts.draft_backend;
    m->V = e->parts.V;
    m->max_tok = info->max_batch_tok;
    m->segs = calloc(n, sizeof *m->segs);
    m->asks = calloc(n, sizeof *m->asks);
    int rc = m->segs && m->asks ? 0 : rod_fail_no_memory(err);
    for (uint32_t i = 0; !rc && i < n; i++) rc = draft_sampling(e, n + i, err);
    return rc;
}

void draft_model_close(struct rod_engine *e) {
    struct draft_model *m = e->draft_model;
    e->draft_model = NULL;
    if (!m) return;
    free(m->segs);
    free(m->asks);
    free(m);
}

double draft_model_token_ns(const struct rod_engine *e) { return e->draft_model->token_ns; }

void draft_model_ask(struct rod_engine *e, struct active *a, uint32_t n) {
    struct draft_model *m = e->draft_model;
    assert(n && n <= BACKEND_MAX_DRAFTS && m->n_asks < e->backend_info.n_slots);
    m->asks[m->n_asks++] = (struct draft_ask){a, n};
}

static int32_t draft_likeliest(const float *logits, uint32_t V) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < V; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* One token of each ask, of its segment. What is no number gives any token: it is a wrong guess. */
static int draft_step(struct rod_engine *e, uint32_t i, struct rod_error *err) {
    const struct backend_ops *ops = e->parts.ops;
    struct draft_model *m = e->draft_model;
    const float *logits = NULL;
    const struct backend_token *tokens = NULL;
    int rc = ops->launch ? ops->launch(m->backend, m->segs, m->n_asks, err)
                         : ops->forward(m->backend, m->segs, m->n_asks, &logits, err);
    if (!rc && ops->launch) rc = ops->collect(m->backend, &tokens, err);
    for (uint32_t k = 0; !rc && k < m->n_asks; k++) {
        const bool drawn = tokens && !tokens[k].masked && tokens[k].status == SAMPLER_OK;
        m->asks[k].active->draft.tok[i] = logits  ? draft_likeliest(logits + (size_t)k * m->V, m->V)
                                          : drawn ? tokens[k].picked.id
                                                  : 0;
    }
    return rc;
}

/* What the streams have read and the draft model has not: as much as a step may have, the other streams wait. The last
 * token is among it, so each gives the first of its draft. */
static int draft_read(struct rod_engine *e, struct rod_error *err) {
    const struct backend_ops *ops = e->parts.ops;
    struct draft_model *m = e->draft_model;
    uint32_t n = 0, n_tok = 0;
    int rc = 0;
    m->n_read = 0;
    for (uint32_t k = 0; k < m->n_asks; k++) {
        struct active *a = m->asks[k].active;
        struct active_draft *d = &a->draft;
        const bool anew = !d->model_reads || d->n_unread > MOST_READ;
        uint32_t n_new = d->n_unread < MOST_READ ? d->n_unread : MOST_READ;
        const int32_t *tok = draft_lookup_recent(&d->lookup, &n_new);
        if (!n_new || n_tok + n_new > m->max_tok) continue;
        if (anew) {
            ops->slot_zero(m->backend, a->sched.slot);
            if ((rc = draft_sampling(e, a->sched.slot, err))) return rc;
            d->model_pos = 0;
        }
        m->segs[n] = (struct backend_segment){
            .slot = a->sched.slot, .n_tok = n_new, .n_out = 1, .pos = d->model_pos, .tok = tok};
        d->model_reads = true;
        d->model_pos += n_new;
        d->n_unread = 0;
        n_tok += n_new;
        if (n_new > m->n_read) m->n_read = n_new;
        m->asks[n++] = m->asks[k];
    }
    m->n_asks = n;
    for (uint32_t k = 0; k < n; k++) m->segs[k].prompt = m->n_read > 1; /* single tokens alone are quicker so */
    return n ? draft_step(e, 1, err) : 0;
}

/* Token i of the drafts that go so far; a draft that is long enough leaves. */
static int draft_go_on(struct rod_engine *e, uint32_t i, struct rod_error *err) {
    const struct backend_ops *ops = e->parts.ops;
    struct draft_model *m = e->draft_model;
    uint32_t n = 0;
    for (uint32_t k = 0; k < m->n_asks; k++) {
        struct active *a = m->asks[k].active;
        const uint32_t slot = a->sched.slot, copy = e->backend_info.n_slots + slot;
        if (m->asks[k].n < i) continue;
        if (i == 2) ops->slot_copy(m->backend, slot, copy, a->draft.model_pos);
        m->segs[n] = (struct backend_segment){
            .slot = copy, .n_tok = 1, .n_out = 1, .pos = a->draft.model_pos + i - 2, .tok = &a->draft.tok[i - 1]};
        m->asks[n++] = m->asks[k];
    }
    m->n_asks = n;
    return n ? draft_step(e, i, err) : 0;
}

bool draft_model_run(struct rod_engine *e) {
    struct draft_model *m = e->draft_model;
    struct rod_error err;
    if (!m || !m->n_asks) return false;
    const uint64_t begin_ns = clock_now_ns();
    int rc = draft_read(e, &err);
    uint32_t n_tok = 0;
    for (uint32_t k = 0; k < m->n_asks; k++) {
        m->asks[k].active->sched.n_drafts = rc ? 0 : m->asks[k].n;
        n_tok += m->asks[k].n;
    }
    for (uint32_t i = 2; !rc && m->n_asks && i <= BACKEND_MAX_DRAFTS; i++) rc = draft_go_on(e, i, &err);
    m->n_asks = 0;
    if (rc) { /* the streams go on without */
        engine_log(e, 3, "the draft model fails and is left out: %s", err.message);
        draft_model_close(e);
        return true;
    }
    const bool counts = n_tok && m->warm && m->n_read <= FEW_READ;
    m->warm |= n_tok > 0;
    if (!counts) return true;
    m->n_tok = m->n_tok + n_tok < MOST_COUNTED ? m->n_tok + n_tok : MOST_COUNTED;
    double each_ns = (double)(clock_now_ns() - begin_ns) / n_tok;
    if (m->token_ns > 0 && each_ns > 2 * m->token_ns) each_ns = 2 * m->token_ns; /* the machine did something else */
    const double part = (double)n_tok / m->n_tok;
    m->token_ns += (each_ns - m->token_ns) * (part < 1 ? part : 1);
    return true;
}
