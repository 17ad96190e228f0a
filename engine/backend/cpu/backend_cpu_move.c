/* backend_cpu_move.c - one thread that copies states in and out of slots, so that steps need not wait for it. */
#include "backend_cpu.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

struct cpu_mover {
    struct backend *be;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t filled;
    struct cpu_move *queue; /* [n_slots], a ring: a slot has one move at most */
    uint64_t n_begun, n_done;
    bool *moving; /* [n_slots] */
    bool stop;
    void (*moved)(void *arg);
    void *arg;
};

static void *mover_thread(void *arg) {
    struct cpu_mover *m = arg;
    const uint32_t n_slots = m->be->info.n_slots;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (m->n_done == m->n_begun && !m->stop) pthread_cond_wait(&m->filled, &m->lock);
        if (m->n_done == m->n_begun) break;
        const struct cpu_move move = m->queue[m->n_done % n_slots];
        pthread_mutex_unlock(&m->lock);
        cpu_state_copy(m->be, &move);
        pthread_mutex_lock(&m->lock);
        m->moving[move.slot] = false;
        m->n_done++;
        void (*moved)(void *) = m->moved;
        void *moved_arg = m->arg;
        pthread_mutex_unlock(&m->lock);
        if (moved) moved(moved_arg);
        pthread_mutex_lock(&m->lock);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

int cpu_mover_open(struct backend *be, struct cpu_mover **out, struct rod_error *err) {
    struct cpu_mover *m = calloc(1, sizeof *m);
    if (m) {
        *m = (struct cpu_mover){.be = be};
        m->queue = calloc(be->info.n_slots, sizeof *m->queue);
        m->moving = calloc(be->info.n_slots, sizeof *m->moving);
        pthread_mutex_init(&m->lock, NULL);
        pthread_cond_init(&m->filled, NULL);
    }
    if (!m || !m->queue || !m->moving || pthread_create(&m->thread, NULL, mover_thread, m)) {
        if (m) free(m->queue), free(m->moving), free(m);
        return rod_fail(err, ROD_ENOMEM, "the thread that copies states does not start");
    }
    *out = m;
    return 0;
}

void cpu_mover_close(struct cpu_mover *m) {
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_signal(&m->filled);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->filled);
    free(m->queue);
    free(m->moving);
    free(m);
}

void cpu_mover_begin(struct cpu_mover *m, const struct cpu_move *move) {
    pthread_mutex_lock(&m->lock);
    assert(!m->moving[move->slot]);
    m->moving[move->slot] = true;
    m->queue[m->n_begun++ % m->be->info.n_slots] = *move;
    pthread_cond_signal(&m->filled);
    pthread_mutex_unlock(&m->lock);
}

bool cpu_mover_moving(struct cpu_mover *m, uint32_t slot) {
    pthread_mutex_lock(&m->lock);
    const bool moving = slot < m->be->info.n_slots && m->moving[slot];
    pthread_mutex_unlock(&m->lock);
    return moving;
}

void cpu_mover_on_moved(struct cpu_mover *m, void (*moved)(void *arg), void *arg) {
    pthread_mutex_lock(&m->lock);
    m->moved = moved;
    m->arg = arg;
    pthread_mutex_unlock(&m->lock);
}
