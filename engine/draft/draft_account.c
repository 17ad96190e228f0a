/* draft_account.c - the bounds of what drafts may lose. */
#include "draft_account.h"
#include "engine/base/policy.h"

#include <math.h>

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
