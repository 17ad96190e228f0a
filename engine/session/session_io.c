/* session_io.c - the threads that wait for files: turns that begin or end, sessions that are written because of age or
 * budget. Ends are taken together, as many as a thread's share of those that wait, so that they share the disk's
 * waiting and no one waits behind many. */
#include "session_internal.h"

#include <string.h>

enum { THREADS = 4 };

void session_io_push_locked(struct sessions *s, struct session_turn *t) {
    t->next = NULL;
    if (s->jobs.tail)
        s->jobs.tail->next = t;
    else
        s->jobs.head = t;
    s->jobs.tail = t;
    s->n_jobs++;
    pthread_cond_signal(&s->work);
}

void session_io_write_locked(struct sessions *s, struct session *x) {
    x->hold = SESSION_WRITE;
    x->next_write = NULL;
    if (s->writes_last)
        s->writes_last->next_write = x;
    else
        s->writes = x;
    s->writes_last = x;
    pthread_cond_signal(&s->work);
}

/* The first job; if it is an end, as many ends behind it as are this thread's share. */
static size_t take_jobs(struct sessions *s, struct session_turn **turns) {
    size_t n = 0, share = s->n_jobs / (s->n_threads ? s->n_threads : 1) + 1;
    if (share > SESSIONS_BATCH) share = SESSIONS_BATCH;
    do {
        struct session_turn *t = s->jobs.head;
        s->jobs.head = t->next;
        if (!s->jobs.head) s->jobs.tail = NULL;
        s->n_jobs--;
        t->next = NULL;
        turns[n++] = t;
    } while (n < share && turns[0]->stage == SESSION_STAGE_END && s->jobs.head &&
             s->jobs.head->stage == SESSION_STAGE_END);
    return n;
}

static size_t take_writes(struct sessions *s, struct session **sessions) {
    size_t n = 0;
    while (s->writes && n < SESSIONS_BATCH) {
        sessions[n++] = s->writes;
        s->writes = s->writes->next_write;
    }
    if (!s->writes) s->writes_last = NULL;
    return n;
}

/* Their leases are held since they are dirty. */
static void write_sessions(struct sessions *s, struct session **sessions, size_t n) {
    struct session_write writes[SESSIONS_BATCH];
    struct session_metadata metadata[SESSIONS_BATCH]; /* somebody may begin from it meanwhile, which is use */
    struct session_snapshot *snapshots[SESSIONS_BATCH], *old[SESSIONS_BATCH];
    struct session_answers *answers[SESSIONS_BATCH];
    pthread_mutex_lock(&s->lock);
    const bool last_try = s->closing;
    for (size_t i = 0; i < n; i++) {
        struct session *x = sessions[i];
        metadata[i] = x->metadata;
        snapshots[i] = session_snapshot_share(x->snapshot);
        answers[i] = session_answers_share(x->answers);
        writes[i] = (struct session_write){
            .name = x->name, .metadata = &metadata[i], .snapshot = snapshots[i], .answers = answers[i]};
    }
    pthread_mutex_unlock(&s->lock);
    session_reserve(s, sessions, writes, n);
    session_write_all(s, writes, n);
    for (size_t i = 0; i < n; i++) {
        struct session *x = sessions[i];
        session_wrote(s, x, &writes[i]);
        if (writes[i].rc)
            session_trouble(s, SESSION_NOT_WRITTEN, "session %s is not written and %s: %s", x->metadata.id,
                            last_try ? "lost at its last version" : "stays in memory", writes[i].err.message);
        session_snapshot_release(snapshots[i]);
        session_answers_release(answers[i]);
        pthread_mutex_lock(&s->lock);
        old[i] = NULL;
        if (!writes[i].rc) {
            session_table_set_dirty(&s->table, x, false);
            session_table_set_file(&s->table, x, &writes[i].file_version);
            x->failed_ns = 0;
            if (x->leave || s->starved) old[i] = session_table_drop_snapshot(&s->table, x);
            s->starved = false;
        } else if (last_try) {
            session_table_set_dirty(&s->table, x, false); /* lost, and said so */
            s->n_lost++;
        } else {
            x->failed_ns = session_now_ns();
        }
        pthread_mutex_unlock(&s->lock);
        session_snapshot_release(old[i]);
        session_end_lease(s, x);
        pthread_mutex_lock(&s->lock);
        session_release_locked(s, x);
        pthread_mutex_unlock(&s->lock);
    }
}

static void *io_thread(void *arg) {
    struct sessions *s = arg;
    struct session_turn *turns[SESSIONS_BATCH];
    struct session *sessions[SESSIONS_BATCH];
    pthread_mutex_lock(&s->lock);
    for (;;) {
        if (s->jobs.head) {
            const size_t n = take_jobs(s, turns);
            pthread_mutex_unlock(&s->lock);
            if (turns[0]->stage == SESSION_STAGE_OPEN)
                session_turn_open(s, turns[0]);
            else
                session_turns_end(s, turns, n);
        } else if (s->writes) {
            const size_t n = take_writes(s, sessions);
            pthread_mutex_unlock(&s->lock);
            write_sessions(s, sessions, n);
        } else if (s->ending) {
            break;
        } else {
            pthread_cond_wait(&s->work, &s->lock);
            continue;
        }
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

int session_io_start(struct sessions *s, struct rod_error *err) {
    const uint32_t want = s->config.n_threads ? s->config.n_threads : THREADS;
    const uint32_t n = want < SESSIONS_MAX_THREADS ? want : SESSIONS_MAX_THREADS;
    pthread_mutex_lock(&s->lock); /* those that begin early see all of it */
    int rc = 0;
    while (!rc && s->n_threads < n) {
        rc = pthread_create(&s->threads[s->n_threads], NULL, io_thread, s);
        s->n_threads += !rc;
    }
    if (!rc) {
        rc = pthread_create(&s->keeper, NULL, session_keeper, s);
        s->has_keeper = !rc;
    }
    pthread_mutex_unlock(&s->lock);
    return rc ? rod_fail(err, ROD_EINTERNAL, "The threads of the sessions did not start.") : 0;
}

void session_io_stop(struct sessions *s) {
    pthread_mutex_lock(&s->lock);
    s->ending = true;
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->keep);
    pthread_mutex_unlock(&s->lock);
    if (s->has_keeper) pthread_join(s->keeper, NULL);
    for (uint32_t i = 0; i < s->n_threads; i++) pthread_join(s->threads[i], NULL);
    s->n_threads = 0;
    s->has_keeper = false;
}
