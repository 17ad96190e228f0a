/* cpu_move.c - one thread that copies states in and out of slots, so that steps need not wait for it. */
#include "cpu_backend.h"

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
        assert(m->n_done < m->n_begun && m->moving[move.slot]);
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
        return rod_fail(err, ROD_ENOMEM, "The thread that copies states does not start.");
    }
    *out = m;
    return 0;
}

void cpu_mover_close(struct cpu_mover *m) {
    if (!m) return;
    pthread_mutex_lock(&m->lock);
    assert(!m->stop);
    m->stop = true;
    pthread_cond_signal(&m->filled);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    assert(m->n_done == m->n_begun); /* every move that was begun is over */
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->filled);
    free(m->queue);
    free(m->moving);
    free(m);
}

/* ---- the calls ---- */

static void mover_begin(struct cpu_mover *m, const struct cpu_move *move) {
    pthread_mutex_lock(&m->lock);
    assert(!m->stop && !m->moving[move->slot]); /* one move of a slot at a time, none after close */
    assert(m->n_begun - m->n_done < m->be->info.n_slots);
    m->moving[move->slot] = true;
    m->queue[m->n_begun++ % m->be->info.n_slots] = *move;
    pthread_cond_signal(&m->filled);
    pthread_mutex_unlock(&m->lock);
}

int cpu_move_save_begin(struct backend *be, uint32_t slot, uint64_t pos, void *state, size_t bytes,
                        struct rod_error *err) {
    const int rc = cpu_state_check(be, slot, pos, NULL, bytes, err);
    if (rc) return rc;
    cpu_state_settle(be, slot);
    mover_begin(be->mover, &(struct cpu_move){.slot = slot, .pos = pos, .state = state});
    return 0;
}

int cpu_move_load_begin(struct backend *be, uint32_t slot, uint64_t pos, const void *state, size_t bytes,
                        struct rod_error *err) {
    const int rc = cpu_state_check(be, slot, pos, state, bytes, err);
    if (rc) return rc;
    be->deferred[slot] = (struct cpu_deferred){0};
    mover_begin(be->mover, &(struct cpu_move){.slot = slot, .in = true, .pos = pos, .state = CPU_READ_ONLY(state)});
    return 0;
}

int cpu_move_moving(struct backend *be, uint32_t slot, struct rod_error *err) {
    struct cpu_mover *m = be->mover;
    (void)err;
    pthread_mutex_lock(&m->lock);
    const bool moving = slot < m->be->info.n_slots && m->moving[slot];
    pthread_mutex_unlock(&m->lock);
    return moving;
}

void cpu_move_on_moved(struct backend *be, void (*moved)(void *arg), void *arg) {
    struct cpu_mover *m = be->mover;
    pthread_mutex_lock(&m->lock);
    assert(m->n_done == m->n_begun); /* before any copy is under way */
    m->moved = moved;
    m->arg = arg;
    pthread_mutex_unlock(&m->lock);
}
