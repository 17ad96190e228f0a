/* team.c - see team.h. The barrier counts arrivals; the last one opens the next round. A waiter spins while the others
 * are likely to arrive within microseconds, then yields its processor: on a busy machine the others need it. */
#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>

enum { SPIN_BARRIER = 4000, SPIN_IDLE = 20000 };

struct team {
    uint32_t n;
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

struct member { struct team *team; uint32_t index; };

static void pause_briefly(void) {
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

static void *member_main(void *arg) {
    struct member self = *(struct member *)arg;
    struct team *team = self.team;
    free(arg);
    unsigned seen = 0;
    for (;;) {
        for (int i = 0; i < SPIN_IDLE && atomic_load_explicit(&team->round, memory_order_acquire) == seen; i++)
            pause_briefly();
        if (atomic_load(&team->round) == seen) {
            pthread_mutex_lock(&team->lock);
            atomic_fetch_add(&team->n_asleep, 1);
            while (atomic_load(&team->round) == seen) pthread_cond_wait(&team->wake, &team->lock);
            atomic_fetch_sub(&team->n_asleep, 1);
            pthread_mutex_unlock(&team->lock);
        }
        seen++;
        if (atomic_load(&team->stop)) return NULL;
        team->job(team->arg, self.index);
        team_barrier(team);
    }
}

struct team *team_open(uint32_t n_threads) {
    if (n_threads == 0) {
        cpu_set_t set;
        n_threads = sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
    }
    struct team *team = aligned_alloc(64, (sizeof *team + 63) / 64 * 64);
    if (!team) return NULL;
    *team = (struct team){.n = 1, .threads = calloc(n_threads, sizeof *team->threads)};
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
    return team;
}

static void team_start(struct team *team) {
    atomic_fetch_add(&team->round, 1);
    if (atomic_load(&team->n_asleep)) {
        pthread_mutex_lock(&team->lock); /* a member between its check and its wait holds it */
        pthread_cond_broadcast(&team->wake);
        pthread_mutex_unlock(&team->lock);
    }
}

void team_close(struct team *team) {
    if (!team) return;
    atomic_store(&team->stop, true);
    team_start(team);
    for (uint32_t i = 1; i < team->n; i++) pthread_join(team->threads[i], NULL);
    pthread_cond_destroy(&team->wake);
    pthread_mutex_destroy(&team->lock);
    free(team->threads);
    free(team);
}

uint32_t team_size(const struct team *team) { return team->n; }

void team_run(struct team *team, void (*job)(void *arg, uint32_t member), void *arg) {
    if (team->n == 1) {
        job(arg, 0);
        return;
    }
    team->job = job;
    team->arg = arg;
    team_start(team);
    job(arg, 0);
    team_barrier(team); /* orders the members' last writes before the caller's reads */
}

void team_barrier(struct team *team) {
    if (team->n == 1) return;
    unsigned round = atomic_load_explicit(&team->opened, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == team->n) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&team->opened, round + 1, memory_order_release);
        return;
    }
    for (int i = 0; atomic_load_explicit(&team->opened, memory_order_acquire) == round; i++) {
        if (i < SPIN_BARRIER) pause_briefly();
        else sched_yield();
    }
}

void team_share(const struct team *team, uint32_t member, uint32_t n, uint32_t *first, uint32_t *last) {
    *first = (uint32_t)((uint64_t)n * member / team->n);
    *last = (uint32_t)((uint64_t)n * (member + 1) / team->n);
}
