/* draft_account.c - the bounds of what drafts may lose. */
#include "draft_account.h"

#include <math.h>

static const double PAID_IN = 0.003;                 /* of the time without drafts: what they may lose of it */
static const double FIRST = 1, MOST = 8, LEAST = -4; /* steps */
static const double MOST_LOST = 4;                   /* by one step: beyond that the machine did something else */

static double account_of(const struct draft_account *a) { return a->opened ? a->steps : FIRST; }

static void account_set(struct draft_account *a, double steps) {
    *a = (struct draft_account){fmin(fmax(steps, LEAST), MOST), true};
}

void draft_account_plain(struct draft_account *a) {
    const double steps = account_of(a);
    account_set(a, steps < FIRST ? fmin(steps + PAID_IN, FIRST) : steps);
}

void draft_account_drafted(struct draft_account *a, double plain_ns, double ns, double step_ns) {
    account_set(a, account_of(a) + fmax((plain_ns - ns) / step_ns, -MOST_LOST));
}

bool draft_account_allows(const struct draft_account *a) { return account_of(a) >= 0; }

bool draft_account_rich(const struct draft_account *a) { return account_of(a) >= FIRST; }
