/* draft_use.c - requests whose next tokens are drafted: the step reads a draft with the token before it, and the tokens
 * that it draws say how much of the draft was right. So drafts change when a token comes, never which one. */
#include "core.h"
#include "engine/base/test_hooks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Where the device draws, a step with drafts begins only behind the one before it. One session gains by that at any
 * share of right drafts; of 8 and of 32 some lost up to 30 % (tests/bench/README.md), so the price of more streams is
 * not known well enough. */
enum { DEVICE_MOST_STREAMS = 4 };

static bool draft_use_crowded(const struct rod_engine *e, enum sampling_site site) {
    return site == SITE_DEVICE && e->sched.decode[site].n > DEVICE_MOST_STREAMS && !e->drafts_always;
}

void draft_use_open(struct rod_engine *e) {
    e->drafts_always = test_hooks_drafts_pay();
    if (e->drafts_always) engine_log(e, 2, "RODIMUS_TEST_DRAFTS_PAY is set: a draft counts as free");
}

/* Whether drafts are read ahead for any request of this engine. */
static bool draft_use_possible(const struct rod_engine *e) {
    return e->parts.ops->slot_accept && e->config.speculative != ROD_SPECULATIVE_NONE;
}

int draft_use_bind(const struct rod_engine *e, struct active *a, struct rod_error *err) {
    const struct rod_request *r = a->request;
    struct active_draft *d = &a->draft;
    if (!draft_use_possible(e)) return 0;
    /* Under a grammar the device draws from masks, and a draft's rows would each want their own. */
    d->on = !r->never_speculate && r->max_tokens > 1 && (a->sched.site == SITE_HOST || !r->grammar);
    if (!d->on && !r->turn) return 0;
    const size_t n_prediction = e->config.speculative == ROD_SPECULATIVE_AUTO ? r->n_prediction : 0;
    const uint64_t n_tok = (uint64_t)d->n_before + a->n_prompt + r->max_tokens;
    const int rc = draft_lookup_init(&d->lookup, n_tok, r->prediction, n_prediction, err);
    for (uint32_t i = 0; !rc && i < d->n_before; i++) draft_lookup_add(&d->lookup, d->before[i]);
    /* What it would forget at once is not even added: a prompt may be much longer. */
    const size_t first = a->n_prompt > DRAFT_MAX_TOK ? a->n_prompt - DRAFT_MAX_TOK : 0;
    for (size_t i = first; !rc && i < a->n_prompt; i++) draft_lookup_add(&d->lookup, a->prompt[i]);
    d->n_unread = d->n_before + (uint32_t)(a->n_prompt - first);
    return rc;
}

void draft_use_generated(struct active *a, int32_t id) {
    if (!a->draft.lookup.cap) return;
    draft_lookup_generated(&a->draft.lookup, id);
    a->draft.n_unread++;
}

int32_t *draft_use_recent(const struct active *a, uint32_t *n) {
    *n = DRAFT_MAX_RECENT;
    const int32_t *recent = draft_lookup_recent(&a->draft.lookup, n);
    int32_t *copy = *n ? malloc(*n * sizeof *copy) : NULL;
    if (!copy) *n = 0;
    if (copy) memcpy(copy, recent, *n * sizeof *copy);
    return copy;
}

static uint32_t draft_use_least(uint64_t a, uint64_t b) { return (uint32_t)(a < b ? a : b); }

/* Asks the draft model, where its draft is more likely right than the one that was found, and pays with what making it
 * takes. */
static bool draft_use_ask_model(struct rod_engine *e, struct active *a, uint32_t most, bool found,
                                struct draft_step *step) {
    struct active_draft *d = &a->draft;
    if (!e->draft_model) return false;
    const double chance = found ? draft_chance(&d->chances, &e->chances, d->kind) : 0;
    if (draft_chance(&d->chances, &e->chances, DRAFT_BY_MODEL) <= chance) return false;
    struct draft_step with = *step;
    with.token_ns += draft_model_token_ns(e);
    const uint32_t n = e->drafts_always ? most : draft_count(&d->chances, &e->chances, DRAFT_BY_MODEL, most, &with);
    if (!n) return false;
    step->tokens = with.tokens;
    step->ns = with.ns;
    d->kind = DRAFT_BY_MODEL;
    draft_model_ask(e, a, n);
    return true;
}

/* As many as its next row may have. */
static uint32_t draft_use_most(const struct sched_req *r) {
    return r->max_out ? draft_use_least(BACKEND_MAX_DRAFTS, r->max_out - r->n_out - 1) : BACKEND_MAX_DRAFTS;
}

/* Of n draft tokens those that the step takes, or what was hoped for when the token before them was not known; whether
 * that token came says as much of its kind as a draft that was read. */
static uint32_t draft_use_count(struct rod_engine *e, struct active *a, uint32_t n, struct draft_step *step) {
    struct active_draft *d = &a->draft;
    const uint32_t hoped = d->n_hoped;
    d->n_hoped = 0;
    if (hoped) {
        draft_judge(&d->chances, d->hoped_kind, 1, a->last == d->hoped);
        draft_judge(&e->chances, d->hoped_kind, 1, a->last == d->hoped);
    }
    if (!n || e->drafts_always) return n;
    if (!hoped || a->last != d->hoped) return draft_count(&d->chances, &e->chances, d->kind, n, step);
    return n < hoped ? n : hoped;
}

/* Those whose rows the next plan may have, in its order. What it has no room for is not read. Where the device draws, a
 * plan ahead of a step on its way has none: the tokens that they would follow are not known. */
bool draft_use_plan(struct rod_engine *e, enum sampling_site site) {
    const struct sched_list *streams = &e->sched.decode[site];
    struct draft_step step = {.tokens = streams->n};
    if (!draft_use_possible(e)) return false;
    draft_price_of(&e->price[site], streams->n, &step.ns, &step.token_ns);
    for (struct sched_req *r = streams->head; r; r = r->next) {
        struct active *a = active_of_sched(r);
        struct active_draft *d = &a->draft;
        const uint32_t most = draft_use_most(r);
        r->n_drafts = 0;
        if (!d->on || !most || r->held || e->n_planned != e->n_collected || draft_use_crowded(e, site)) {
            d->n_hoped = 0; /* it was for this plan */
            continue;
        }
        d->tok[0] = a->last;
        const struct draft_found found = draft_lookup_next(&d->lookup, most, d->tok + 1);
        if (found.n) d->kind = draft_kind(found.n_match, found.predicted);
        if (draft_use_ask_model(e, a, most, found.n > 0, &step)) continue;
        r->n_drafts = draft_use_count(e, a, found.n, &step);
    }
    return draft_model_run(e);
}

bool draft_use_hopes(struct rod_engine *e) {
    const struct sched_list *streams = &e->sched.decode[SITE_DEVICE];
    struct draft_step step = {.tokens = streams->n};
    bool hopes = false;
    if (!draft_use_possible(e)) return false;
    draft_price_of(&e->price[SITE_DEVICE], streams->n, &step.ns, &step.token_ns);
    for (struct sched_req *r = streams->head; r; r = r->next) {
        struct active_draft *d = &active_of_sched(r)->draft;
        int32_t tok[1 + BACKEND_MAX_DRAFTS];
        d->n_hoped = 0;
        if (!d->on || r->held || !draft_use_most(r) || draft_use_crowded(e, SITE_DEVICE)) continue;
        const struct draft_found found = draft_lookup_next(&d->lookup, 1 + draft_use_most(r), tok);
        if (found.n < 2) continue;
        d->hoped = tok[0]; /* the token on its way */
        d->hoped_kind = draft_kind(found.n_match, found.predicted);
        d->n_hoped =
            e->drafts_always ? found.n - 1 : draft_count(&d->chances, &e->chances, d->hoped_kind, found.n - 1, &step);
        hopes |= d->n_hoped > 0;
    }
    return hopes;
}

static enum rod_draft draft_use_source(const struct active *a) {
    if (a->draft.kind == DRAFT_BY_MODEL) return ROD_DRAFT_MODEL;
    return a->draft.kind == DRAFT_PREDICTED ? ROD_DRAFT_PREDICTION : ROD_DRAFT_LOOKUP;
}

const int32_t *draft_use_tokens(struct rod_engine *e, struct active *a, uint32_t n_drafts) {
    a->draft.n_drafted += n_drafts;
    engine_count(&e->counters.drafted[draft_use_source(a)], n_drafts);
    return a->draft.tok;
}

bool draft_use_take(struct rod_engine *e, struct active *a, uint32_t i) {
    if (a->last != a->draft.tok[i]) return false;
    e->parts.ops->slot_accept(e->parts.backend, a->sched.slot, i);
    sched_advance(&e->sched, &a->sched);
    a->draft.n_accepted++;
    engine_count(&e->counters.accepted[draft_use_source(a)], 1);
    return true;
}

void draft_use_judge(struct rod_engine *e, struct active *a, uint32_t n_drafts, uint32_t n_right) {
    draft_judge(&a->draft.chances, a->draft.kind, n_drafts, n_right);
    draft_judge(&e->chances, a->draft.kind, n_drafts, n_right);
}
