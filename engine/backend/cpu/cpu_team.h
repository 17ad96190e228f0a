/* cpu_team.h - a fixed team of compute threads that run one function together.
 *
 * Who owns what: the team owns n - 1 threads; the caller of team_run is member 0. Threads: team_run from one thread at
 * a time. Invariant: team_run returns after every member has returned. Between runs members spin a moment, then sleep.
 */
#ifndef TEAM_H
#define TEAM_H

#include <stdint.h>

struct team;

/* n_threads >= 1, 0 = as many as may compute at once (host.h). NULL: no memory or no threads. */
struct team *team_open(uint32_t n_threads);
void team_close(struct team *team);
/* Members of the run that is on; between runs the most that a run can have. */
uint32_t team_size(const struct team *team);
/* job(arg, member) on every member, 0 <= member < team_size, which may be 1 while the machine is busy with other work:
 * what a job computes must not depend on it. */
void team_run(struct team *team, void (*job)(void *arg, uint32_t member), void *arg);
/* Inside a job: nobody goes on before all have come; orders all memory written before it before all reads after it. */
void team_barrier(struct team *team, uint32_t member);
/* Member's range of n items: [*first, *last), sizes differ by one at most. */
void team_range(const struct team *team, uint32_t member, uint32_t n, uint32_t *first, uint32_t *last);

#endif
