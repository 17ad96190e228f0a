/* cpu_team.c - see cpu_team.h. The barrier counts arrivals; the last one opens the next round. A waiter spins while the
 * others are likely to arrive within microseconds, then sleeps.
 *
 * On a busy machine a member that lost its processor in the middle of a stage keeps all the others waiting for a time
 * slice, milliseconds for microseconds of work: beside one busy process on two cores a step of 0.14 ms took 11 ms. So
 * the caller notes how long it slept at barriers; after a run that stalled, it works alone for a while (what a job
 * computes does not depend on the number of members), and then tries the team again. */
#include "cpu_team.h"
#include "engine/base/clock.h"
#include "engine/base/host.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { SPINS = 2000 /* some 20 us */, STALL_NS = 1000000, ALONE_FACTOR = 20, ALONE_MAX_NS = 500000000 };

struct team {
    uint32_t n, n_active;                /* n_active: of this run, n or 1 */
    uint64_t stalled_ns, alone_until_ns; /* the caller's */
    pthread_t *threads;
    void (*job)(void *arg, uint32_t member);
    void *arg;
    _Alignas(64) atomic_uint round;   /* one more for each team_run */
    _Alignas(64) atomic_uint arrived; /* at the barrier */
    _Alignas(64) atomic_uint opened;  /* barriers passed */
    _Alignas(64) atomic_uint n_asleep;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    atomic_bool stop;
};

struct member {
    struct team *team;
    uint32_t index;
};

static void pause_briefly(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* Returns once *counter is no longer `seen`. */
static void team_await(struct team *team, atomic_uint *counter, unsigned seen) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(counter, memory_order_acquire) != seen) return;
        pause_briefly();
    }
    pthread_mutex_lock(&team->lock);
    atomic_fetch_add(&team->n_asleep,
                     1); /* before the next look at the counter: team_announce looks in the other order */
    while (atomic_load(counter) == seen) pthread_cond_wait(&team->wake, &team->lock);
    atomic_fetch_sub(&team->n_asleep, 1);
    pthread_mutex_unlock(&team->lock);
}

static void team_announce(struct team *team, atomic_uint *counter) {
    atomic_fetch_add(counter, 1);
    if (atomic_load(&team->n_asleep)) {
        pthread_mutex_lock(&team->lock); /* a member between its look and its wait holds it */
        pthread_cond_broadcast(&team->wake);
        pthread_mutex_unlock(&team->lock);
    }
}

static void *member_main(void *arg) {
    struct member self = *(struct member *)arg;
    struct team *team = self.team;
    free(arg);
    unsigned seen = 0;
    for (;;) {
        team_await(team, &team->round, seen++);
        if (atomic_load(&team->stop)) return NULL;
        team->job(team->arg, self.index);
        team_barrier(team, self.index);
    }
}

struct team *team_open(uint32_t n_threads) {
    if (n_threads == 0) n_threads = host_cpus();
    struct team *team = aligned_alloc(64, (sizeof *team + 63) / 64 * 64);
    if (!team) return NULL;
    *team = (struct team){.n = 1, .n_active = 1, .threads = calloc(n_threads, sizeof *team->threads)};
    if (!team->threads) {
        free(team);
        return NULL;
    }
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->wake, NULL);
    for (uint32_t i = 1; i < n_threads; i++) {
        struct member *member = malloc(sizeof *member);
        if (member) *member = (struct member){team, i};
        if (!member || pthread_create(&team->threads[i], NULL, member_main, member)) {
            free(member);
            team_close(team);
            return NULL;
        }
        team->n++;
    }
    team->n_active = team->n;
    return team;
}

void team_close(struct team *team) {
    if (!team) return;
    assert(!atomic_load(&team->stop) && atomic_load(&team->arrived) == 0);
    atomic_store(&team->stop, true);
    team_announce(team, &team->round);
    for (uint32_t i = 1; i < team->n; i++) pthread_join(team->threads[i], NULL);
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->lock);
    free(team->threads);
    free(team);
}

uint32_t team_size(const struct team *team) { return team->n_active; }

void team_run(struct team *team, void (*job)(void *arg, uint32_t member), void *arg) {
    assert(team->n_active == team->n && !atomic_load(&team->stop)); /* no run is on */
    team->n_active = team->n == 1 || (team->alone_until_ns && clock_now_ns() < team->alone_until_ns) ? 1 : team->n;
    if (team->n_active > 1) {
        team->job = job;
        team->arg = arg;
        team->stalled_ns = 0;
        team_announce(team, &team->round);
    }
    job(arg, 0);
    if (team->n_active > 1) {
        team_barrier(team, 0); /* orders the members' last writes before the caller's reads */
        team->alone_until_ns = 0;
        if (team->stalled_ns > STALL_NS) {
            uint64_t alone_ns = team->stalled_ns * ALONE_FACTOR;
            team->alone_until_ns = clock_now_ns() + (alone_ns < ALONE_MAX_NS ? alone_ns : ALONE_MAX_NS);
        }
    }
    team->n_active = team->n;
}

void team_barrier(struct team *team, uint32_t member) {
    assert(member < team->n_active);
    if (team->n_active == 1) return;
    unsigned round = atomic_load_explicit(&team->opened, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == team->n) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        team_announce(team, &team->opened);
    } else if (member > 0) {
        team_await(team, &team->opened, round);
    } else {
        uint64_t begin = clock_now_ns();
        team_await(team, &team->opened, round);
        uint64_t waited_ns = clock_now_ns() - begin;
        if (waited_ns > STALL_NS / 10) team->stalled_ns += waited_ns; /* longer than any stage is uneven */
    }
}

void team_range(const struct team *team, uint32_t member, uint32_t n, uint32_t *first, uint32_t *last) {
    assert(member < team->n_active);
    *first = (uint32_t)((uint64_t)n * member / team->n_active);
    *last = (uint32_t)((uint64_t)n * (member + 1) / team->n_active);
}
