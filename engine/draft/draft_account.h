/* draft_account.h - what drafts have won and lost, so that they never cost much: drafts and tries are allowed while the
 * account is not overdrawn. Time without drafts pays a small part of itself in, so all drafts together lose no larger
 * part, whatever chances and prices say. What they win counts up to some steps. Pure; the engine thread.
 */
#ifndef DRAFT_ACCOUNT_H
#define DRAFT_ACCOUNT_H

#include <stdbool.h>

struct draft_account {
    double steps; /* in plain steps */
    bool opened;
};

/* A step that drafts had no part in. */
void draft_account_plain(struct draft_account *account);
/* A step with drafts, or one that was put off for them: the tokens that it gave would have taken plain_ns, and it took
 * ns. step_ns: a plain step. */
void draft_account_drafted(struct draft_account *account, double plain_ns, double ns, double step_ns);
bool draft_account_allows(const struct draft_account *account);
/* Whether it has enough for tries that will hardly pay. */
bool draft_account_rich(const struct draft_account *account);

#endif
