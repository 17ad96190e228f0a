/* session_queue.c - see session_internal.h: wait queues, and the jobs of the threads.
 *
 * A turn is in one of four places by its stage: in its session's wait queue and among the waiting (QUEUED), among the
 * waiting alone (RETRY), among the jobs (OPEN, END, until a thread takes it), or in none. */
#include "session_internal.h"

void session_wait_locked(struct sessions *s, pthread_cond_t *condition, uint64_t until_ns) {
    assert(session_lock_held(s));
    s->locked = false;
    if (until_ns) {
        const struct timespec until = clock_timespec(until_ns);
        pthread_cond_timedwait(condition, &s->lock, &until);
    } else {
        pthread_cond_wait(condition, &s->lock);
    }
    assert(!s->locked);
    s->locker = pthread_self();
    s->locked = true;
}

static void queue_push_job_locked(struct sessions *s, struct session_turn *t, enum session_stage stage) {
    assert(session_lock_held(s) && !t->waiting.next);
    t->stage = stage;
    list_push_last(&s->jobs, &t->link);
    pthread_cond_signal(&s->work);
}

void session_queue_add_locked(struct sessions *s, struct session *x, struct session_turn *t) {
    assert(session_lock_held(s) && t->stage == SESSION_STAGE_NONE && !s->stopping);
    t->session = x;
    t->stage = SESSION_STAGE_QUEUED;
    list_push_last(&x->queue, &t->link);
    list_push_first(&s->waiting, &t->waiting);
}

/* A question beside holds no session. */
static bool queue_may_open(const struct session_turn *t) { return !t->session || t->session->hold == SESSION_TURN; }

void session_queue_look_locked(struct sessions *s, struct session_turn *t) {
    assert(t->stage == SESSION_STAGE_NONE && !t->session && !s->stopping);
    queue_push_job_locked(s, t, SESSION_STAGE_OPEN);
}

void session_queue_start_locked(struct sessions *s, struct session *x) {
    assert(session_lock_held(s) && x->hold == SESSION_FREE && x->queue.n);
    struct session_turn *t = session_turn_of(list_first(&x->queue));
    assert(t->stage == SESSION_STAGE_QUEUED && t->session == x);
    list_remove(&x->queue, &t->link);
    list_remove(&s->waiting, &t->waiting);
    x->hold = SESSION_TURN;
    t->give_up_ns = 0;
    queue_push_job_locked(s, t, SESSION_STAGE_OPEN);
}

void session_queue_retry_locked(struct sessions *s, struct session_turn *t, uint64_t retry_ns) {
    assert(session_lock_held(s) && t->stage == SESSION_STAGE_OPEN && queue_may_open(t));
    t->stage = SESSION_STAGE_RETRY;
    t->retry_ns = retry_ns;
    list_push_first(&s->waiting, &t->waiting);
    pthread_cond_signal(&s->keep);
}

void session_queue_reopen_locked(struct sessions *s, struct session_turn *t) {
    assert(session_lock_held(s) && t->stage == SESSION_STAGE_RETRY && queue_may_open(t));
    list_remove(&s->waiting, &t->waiting);
    queue_push_job_locked(s, t, SESSION_STAGE_OPEN);
}

void session_queue_remove_locked(struct sessions *s, struct session_turn *t) {
    assert(session_lock_held(s) && t->stage == SESSION_STAGE_QUEUED);
    list_remove(&t->session->queue, &t->link);
    list_remove(&s->waiting, &t->waiting);
    t->session = NULL; /* it holds nothing */
}

void session_queue_fail_locked(struct sessions *s, struct session_turn *t) {
    assert(t->rc && (t->stage == SESSION_STAGE_QUEUED || t->stage == SESSION_STAGE_RETRY));
    if (t->stage == SESSION_STAGE_QUEUED)
        session_queue_remove_locked(s, t);
    else
        list_remove(&s->waiting, &t->waiting);
    t->commit = false;
    queue_push_job_locked(s, t, SESSION_STAGE_END);
}

void session_queue_end_locked(struct sessions *s, struct session_turn *t) {
    assert(t->stage == SESSION_STAGE_NONE || t->stage == SESSION_STAGE_RUN);
    queue_push_job_locked(s, t, SESSION_STAGE_END);
}

void session_queue_write_locked(struct sessions *s, struct session *x) {
    assert(session_lock_held(s) && x->exists && x->dirty && x->snapshot);
    assert(x->hold == SESSION_FREE || x->hold == SESSION_CALL);
    x->hold = SESSION_WRITE;
    list_push_last(&s->writes, &x->write);
    pthread_cond_signal(&s->work);
}

size_t session_queue_take_turns_locked(struct sessions *s, struct session_turn **turns) {
    assert(session_lock_held(s) && s->jobs.n);
    size_t n = 0, part = s->jobs.n / (s->n_threads ? s->n_threads : 1) + 1;
    if (part > SESSIONS_BATCH) part = SESSIONS_BATCH;
    struct session_turn *next = session_turn_of(list_first(&s->jobs));
    do {
        list_remove(&s->jobs, &next->link);
        turns[n++] = next;
        next = session_turn_of(list_first(&s->jobs));
    } while (n < part && turns[0]->stage == SESSION_STAGE_END && next && next->stage == SESSION_STAGE_END);
    assert(turns[0]->stage == SESSION_STAGE_END || (turns[0]->stage == SESSION_STAGE_OPEN && n == 1));
    return n;
}

size_t session_queue_take_writes_locked(struct sessions *s, struct session **sessions) {
    assert(session_lock_held(s));
    size_t n = 0;
    while (s->writes.n && n < SESSIONS_BATCH) {
        struct session *x = LIST_OF(list_first(&s->writes), struct session, write);
        assert(x->hold == SESSION_WRITE);
        list_remove(&s->writes, &x->write);
        sessions[n++] = x;
    }
    return n;
}
