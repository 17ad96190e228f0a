/* draft_use.c - requests whose next tokens are drafted: the step reads a draft with the token before it, and the tokens
 * that it draws say how much of the draft was right. So drafts change when a token comes, never which one. */
#include "core.h"
#include "engine/base/test_hooks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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
    d->expected = -1;
    if (!draft_use_possible(e)) return 0;
    d->on = !r->never_speculate && r->max_tokens > 1;
    if (!d->on && !r->turn) return 0;
    const size_t n_prediction = e->config.speculative == ROD_SPECULATIVE_AUTO ? r->n_prediction : 0;
    const uint64_t n_tok = (uint64_t)d->n_before + a->n_prompt + r->max_tokens;
    const int rc = draft_lookup_init(&d->lookup, n_tok, r->prediction, n_prediction, err);
    for (uint32_t i = 0; !rc && i < d->n_before; i++) draft_lookup_add(&d->lookup, d->before[i]);
    /* What it would forget at once is not even added: a prompt may be much longer. */
    const size_t most = d->lookup.cap ? draft_lookup_prompt(&d->lookup) : 0;
    const size_t first = a->n_prompt > most ? a->n_prompt - most : 0;
    for (size_t i = first; !rc && i < a->n_prompt; i++) draft_lookup_add(&d->lookup, a->prompt[i]);
    return rc;
}

void draft_use_generated(struct active *a, int32_t id) {
    if (a->draft.lookup.cap) draft_lookup_generated(&a->draft.lookup, id);
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

/* The most drafts that its next row may have. */
static uint32_t draft_use_most(const struct sched_req *r) {
    return r->max_out ? draft_use_least(BACKEND_MAX_DRAFTS, r->max_out - r->n_out - 1) : BACKEND_MAX_DRAFTS;
}

static bool draft_use_allowed(const struct rod_engine *e) {
    return e->drafts_always || draft_account_allows(&e->draft_account);
}

/* Whether steps of this site begin while the one before runs, but for drafts. */
static bool draft_use_ahead(const struct rod_engine *e, enum sampling_site site) {
    return site == SITE_DEVICE && !e->steps[(e->n_planned + 1) % 2].waits;
}

/* Draft tokens that a step may have beside its streams: more rows than the backend has steps ready for take several
 * times as long. */
static uint32_t draft_use_room(const struct rod_engine *e, enum sampling_site site) {
    const uint32_t most = e->parts.ops->info(e->parts.backend)->draft_rows, streams = e->sched.decode[site].n;
    if (!most || e->drafts_always) return UINT32_MAX;
    return streams < most ? most - streams : 0;
}

/* What the stream's next row may take along. */
static struct draft_offer draft_use_offer(const struct rod_engine *e, struct active *a) {
    struct active_draft *d = &a->draft;
    const uint32_t most = draft_use_most(&a->sched);
    d->tok[0] = a->last;
    const struct draft_found found = draft_lookup_next(&d->lookup, most, d->tok + 1);
    if (found.n) d->kind = draft_kind(found.n_match, found.predicted);
    const double p = found.n ? draft_chance(&d->chances, &e->chances, d->kind) : 0;
    return (struct draft_offer){1, p, p, found.n};
}

/* What the row after the next may take along. Its token is on its way, and the drafts count if it is the expected one.
 */
static struct draft_offer draft_use_offer_expected(const struct rod_engine *e, struct active *a) {
    struct active_draft *d = &a->draft;
    const uint32_t most = draft_use_most(&a->sched);
    int32_t tok[1 + BACKEND_MAX_DRAFTS];
    const struct draft_found found = draft_lookup_next(&d->lookup, 1 + most, tok);
    double p = 0;
    if (found.n) {
        d->expected = tok[0];
        d->kind = d->expected_kind = draft_kind(found.n_match, found.predicted);
        p = draft_chance(&d->chances, &e->chances, d->kind);
    }
    return (struct draft_offer){p, p, p, found.n ? found.n - 1 : 0};
}

/* Whether the expected token came says as much of its kind as a draft that was read. */
static bool draft_use_judge_expected(struct rod_engine *e, struct active *a) {
    struct active_draft *d = &a->draft;
    const bool came = d->expected == a->last;
    if (d->expected < 0) return false;
    d->expected = -1;
    draft_judge(&d->chances, d->expected_kind, 1, came);
    draft_judge(&e->chances, d->expected_kind, 1, came);
    return came;
}

/* The streams' offers, cut to what a step has room for. */
static void draft_use_gather(const struct list *streams, uint32_t room, struct draft_offers *offers) {
    uint32_t n = 0;
    uint64_t tokens = 0;
    for (struct sched_req *r = sched_first(streams); r; r = sched_after(streams, r)) {
        const uint32_t offered = active_of_sched(r)->draft.offer.n;
        n += offered > 0, tokens += offered;
    }
    const uint32_t most = draft_offer_most(n, tokens, room);
    for (struct sched_req *r = sched_first(streams); r; r = sched_after(streams, r)) {
        struct draft_offer *offer = &active_of_sched(r)->draft.offer;
        if (offer->n > most) offer->n = most;
        draft_offer_add(offers, offer);
    }
}

/* How much of its offer a stream's row takes, where the step takes those of this class and has so much room. */
static uint32_t draft_use_count(struct rod_engine *e, struct active *a, uint32_t class, uint32_t room) {
    struct active_draft *d = &a->draft;
    if (e->drafts_always) return d->offer.n;
    uint32_t n = draft_offer_taken(&d->offer, class);
    if (!n) n = draft_try(&d->chances, d->kind);
    if (n > room) n = room;
    if (n) draft_tried(&d->chances, d->kind);
    return n;
}

/* tries: the class is no good one, but one whose price is to be learned. */
static uint32_t draft_use_settle(struct rod_engine *e, enum sampling_site site, const struct draft_offers *offers,
                                 uint32_t room, bool *tries) {
    const uint32_t streams = e->sched.decode[site].n;
    const double plain = draft_price_plain(&e->price[site], streams, draft_use_ahead(e, site));
    uint32_t class = draft_offers_settle(offers, &e->price[site], streams, room, plain);
    *tries = class == DRAFT_CLASSES && plain > 0 && draft_account_rich(&e->draft_account);
    if (class < DRAFT_CLASSES) e->draft_tries.n = 0;
    if (*tries) class = draft_offers_try(offers, &e->draft_tries);
    *tries &= class < DRAFT_CLASSES;
    return class;
}

/* Gives drafts to the streams whose rows the next plan may have, in its order. A draft without room is not read. Where
 * the device draws, a plan ahead of a step on its way has none: the tokens that they would follow are not known. */
void draft_use_plan(struct rod_engine *e, enum sampling_site site) {
    const struct list *streams = &e->sched.decode[site];
    uint32_t room = draft_use_room(e, site);
    struct draft_offers offers = {0};
    if (!draft_use_possible(e)) return;
    for (struct sched_req *r = sched_first(streams); r; r = sched_after(streams, r)) {
        struct active *a = active_of_sched(r);
        struct active_draft *d = &a->draft;
        const uint32_t tried = d->n_expected; /* it was for this plan */
        r->n_drafts = d->n_expected = 0;
        d->offer = (struct draft_offer){0};
        if (!d->on || e->n_planned != e->n_collected) continue;
        const bool came = draft_use_judge_expected(e, a);
        if (!room || !draft_use_most(r) || r->held || !draft_use_allowed(e)) continue;
        d->offer = draft_use_offer(e, a);
        if (came) d->n_expected = draft_use_least(tried, d->offer.n);
    }
    draft_use_gather(streams, room, &offers);
    bool tries;
    const uint32_t class = draft_use_settle(e, site, &offers, room, &tries);
    for (struct sched_req *r = sched_first(streams); r; r = sched_after(streams, r)) {
        struct active *a = active_of_sched(r);
        struct active_draft *d = &a->draft;
        uint32_t n = d->offer.n ? draft_use_count(e, a, class, room) : 0;
        if (n < d->n_expected) n = draft_use_least(d->n_expected, room);
        d->n_expected = 0;
        room -= n;
        r->n_drafts = n;
    }
}

bool draft_use_expects(struct rod_engine *e) {
    const struct list *streams = &e->sched.decode[SITE_DEVICE];
    uint32_t room = draft_use_room(e, SITE_DEVICE);
    struct draft_offers offers = {0};
    if (!room || !draft_use_possible(e)) return false;
    for (struct sched_req *r = sched_first(streams); r; r = sched_after(streams, r)) {
        struct active *a = active_of_sched(r);
        struct active_draft *d = &a->draft;
        d->n_expected = 0, d->expected = -1;
        d->offer = (struct draft_offer){0};
        if (!d->on || r->held || !draft_use_most(r) || !draft_use_allowed(e)) continue;
        /* A grammar lets no row be on its way: the last token is known. */
        d->offer = a->gate.on ? draft_use_offer(e, a) : draft_use_offer_expected(e, a);
    }
    draft_use_gather(streams, room, &offers);
    bool expects = false, tries;
    const uint32_t class = draft_use_settle(e, SITE_DEVICE, &offers, room, &tries);
    for (struct sched_req *r = sched_first(streams); r; r = sched_after(streams, r)) {
        struct active *a = active_of_sched(r);
        struct active_draft *d = &a->draft;
        if (!d->offer.n) continue;
        const uint32_t n = draft_use_count(e, a, class, room);
        room -= n;
        expects |= n > 0;
        if (tries || !draft_offer_taken(&d->offer, class))
            d->n_expected = n; /* a try is one in the next plan as well */
    }
    for (struct sched_req *r = sched_first(streams); r && !expects; r = sched_after(streams, r))
        active_of_sched(r)->draft.expected = -1;
    e->put_off = expects;
    return expects;
}

void draft_use_learn(struct rod_engine *e, const struct step *step, uint64_t ns) {
    struct draft_price *price = &e->price[step->site];
    const uint32_t streams = step->n_decode - step->n_drafts;
    if (step->n_prompt_tok || !streams) return;
    const double plain = draft_price_plain(price, streams, step->site == SITE_DEVICE && !step->waited);
    const double counted = draft_price_learn(price, streams, step->n_drafts, step->ahead, ns);
    if (plain <= 0) return;
    if (step->n_drafts || step->put_off)
        draft_account_drafted(&e->draft_account, plain * (streams + step->n_accepted) / streams, counted, plain);
    else
        draft_account_plain(&e->draft_account);
}

static enum rod_draft draft_use_source(const struct active *a) {
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
