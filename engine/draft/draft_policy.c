/* draft_policy.c - chances as counts that fade, and the comparison that decides. */
#include "draft_policy.h"
#include "engine/base/policy.h"

#include <assert.h>
#include <math.h>

enum { PRICE_CLASS = DRAFT_CLASSES / 4 };

uint32_t draft_kind(uint32_t n_match, bool predicted) {
    if (predicted) return DRAFT_PREDICTED;
    return n_match < 3 ? 0 : n_match < 4 ? 1 : n_match < 8 ? 2 : n_match < 16 ? 3 : 4;
}

double draft_chance(const struct draft_chances *own, const struct draft_chances *all, uint32_t kind) {
    static const double first[DRAFT_KINDS] = {0.25, 0.35, 0.5, 0.65, 0.75, 0.75};
    const struct draft_chance *a = &all->of[kind], *o = &own->of[kind];
    const double others =
        ((double)a->right + POLICY_DRAFT_OTHERS * first[kind]) / ((double)a->tried + POLICY_DRAFT_OTHERS);
    return ((double)o->right + POLICY_DRAFT_OTHERS * others) / ((double)o->tried + POLICY_DRAFT_OTHERS);
}

void draft_judge(struct draft_chances *chances, uint32_t kind, uint32_t n, uint32_t n_right) {
    struct draft_chance *c = &chances->of[kind];
    assert(kind < DRAFT_KINDS && n_right <= n);
    if (!n) return;
    chances->n_vain[kind] = n_right ? 0 : chances->n_vain[kind] + 1;
    c->right += (float)n_right;
    c->tried += (float)(n_right < n ? n_right + 1 : n_right);
    if (c->tried < POLICY_DRAFT_FADES_FROM) return;
    c->right /= 2;
    c->tried /= 2;
}

static uint32_t class_of(double chance) {
    const uint32_t c = (uint32_t)(chance * DRAFT_CLASSES);
    return c < DRAFT_CLASSES ? c : DRAFT_CLASSES - 1;
}

void draft_offer_add(struct draft_offers *offers, const struct draft_offer *o) {
    double right = o->first, all = 1; /* tokens that the stream gives with them */
    assert(o->first >= 0 && o->first <= 1 && o->next >= 0 && o->next <= 1);
    for (uint32_t i = 0; i < o->n; i++, right *= o->next) {
        const uint32_t c = class_of(right);
        offers->gain[c] += log1p(o->read * right / all);
        all += o->read * right;
        offers->tokens[c] += o->read;
        offers->right[c] += o->read * right;
    }
}

uint32_t draft_offer_most(uint32_t n, uint64_t tokens, uint32_t room) {
    if (tokens <= room) return UINT32_MAX;
    return room > n ? room / n : 1;
}

uint32_t draft_offers_settle(const struct draft_offers *offers, const struct draft_price *price, uint32_t streams,
                             uint32_t room, double plain) {
    double tokens = 0, gain = 0, best = POLICY_DRAFT_MARGIN * streams;
    uint32_t class = DRAFT_CLASSES;
    for (uint32_t c = DRAFT_CLASSES; plain > 0 && tokens < room && c-- > 0;) {
        if (offers->tokens[c] <= 0) continue;
        const double part = fmin(1, (room - tokens) / offers->tokens[c]);
        tokens += part * offers->tokens[c], gain += part * offers->gain[c];
        const double total = gain - streams * log(draft_price_of(price, streams, tokens, plain) / plain);
        if (total > best) best = total, class = c;
    }
    return class;
}

uint32_t draft_offers_try(const struct draft_offers *offers, struct draft_tries *tries) {
    for (uint32_t c = PRICE_CLASS; c < DRAFT_CLASSES; c++) tries->refused += offers->right[c];
    if (tries->refused <
        (POLICY_DRAFT_PRICE_TRY << (tries->n < POLICY_DRAFT_MOST_TRIES ? tries->n : POLICY_DRAFT_MOST_TRIES)))
        return DRAFT_CLASSES;
    *tries = (struct draft_tries){0, tries->n + 1};
    return PRICE_CLASS;
}

uint32_t draft_offer_taken(const struct draft_offer *o, uint32_t class) {
    double right = o->first;
    uint32_t n = 0;
    for (; n < o->n && class < DRAFT_CLASSES && class_of(right) >= class; n++) right *= o->next;
    return n;
}

bool draft_try(struct draft_chances *own, uint32_t kind) {
    const uint32_t tries = own->n_vain[kind] < POLICY_DRAFT_MOST_TRIES ? own->n_vain[kind] : POLICY_DRAFT_MOST_TRIES;
    return ++own->n_refused[kind] >= (uint32_t)POLICY_DRAFT_FIRST_TRY << tries;
}

void draft_tried(struct draft_chances *own, uint32_t kind) { own->n_refused[kind] = 0; }

/* ---- what drafts may lose ---- */

static double account_of(const struct draft_account *a) { return a->opened ? a->steps : POLICY_DRAFT_ACCOUNT_FIRST; }

static void account_set(struct draft_account *a, double steps) {
    *a = (struct draft_account){fmin(fmax(steps, POLICY_DRAFT_ACCOUNT_LEAST), POLICY_DRAFT_ACCOUNT_MOST), true};
}

void draft_account_plain(struct draft_account *a) {
    const double steps = account_of(a);
    account_set(a, steps < POLICY_DRAFT_ACCOUNT_FIRST ? fmin(steps + POLICY_DRAFT_PAID_IN, POLICY_DRAFT_ACCOUNT_FIRST)
                                                      : steps);
}

void draft_account_drafted(struct draft_account *a, double plain_ns, double ns, double step_ns) {
    account_set(a, account_of(a) + fmax((plain_ns - ns) / step_ns, -POLICY_DRAFT_STEP_LOSES));
}

bool draft_account_allows(const struct draft_account *a) { return account_of(a) >= 0; }

bool draft_account_rich(const struct draft_account *a) { return account_of(a) >= POLICY_DRAFT_ACCOUNT_FIRST; }
