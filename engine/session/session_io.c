/* session_io.c - see session_internal.h: the threads that wait for files. They open and end turns, and write sessions
 * because of age or budget. Each thread takes its part of the turns that wait to end, and ends them together: they
 * share the disk's waiting, and no turn waits behind many. */
#include "session_internal.h"
#include "engine/base/store_wait.h"

enum { THREADS = 4, FENCED_THREADS = 24 }; /* a store is far, and a state may come slowly */

/* A write that lost: to itself, where an earlier try was done and the store did not say so. Then that is what the next
 * one replaces; or it was this very version. */
static bool io_lost_to_itself(struct sessions *s, struct session *x, struct session_write *w) {
    struct session_file_version found;
    if (!session_fence_find_own(s, x, &found)) return false;
    if (found.version == w->metadata->version) {
        w->rc = 0;
        w->file_version = found;
        return true;
    }
    w->rc = ROD_EIO; /* again, over what is there */
    session_lock(s);
    session_table_set_file(&s->table, x, &found);
    session_unlock(s);
    return true;
}

/* What a lazy turn was promised is tried again as long as nobody else has the session. */
static void io_judge(struct sessions *s, struct session *x, struct session_write *w) {
    if (!session_fenced(s)) return;
    if (w->rc == ROD_ECONFLICT && io_lost_to_itself(s, x, w)) return;
    if (w->rc != ROD_EUNSURE) return;
    x->unsure_hash = w->snapshot->token_hash;
    x->unsure_version = w->metadata->version;
    w->rc = ROD_EIO;
}

/* Their leases are held since they are dirty. */
static void io_write_sessions(struct sessions *s, struct session **sessions, size_t n) {
    struct session_write writes[SESSIONS_BATCH];
    struct session_metadata metadata[SESSIONS_BATCH]; /* somebody may begin from it meanwhile, which is use */
    struct session_snapshot *snapshots[SESSIONS_BATCH], *old[SESSIONS_BATCH];
    struct session_answers *answers[SESSIONS_BATCH];
    struct session_file_version replaced[SESSIONS_BATCH];
    session_lock(s);
    const bool last_try = s->closing;
    for (size_t i = 0; i < n; i++) {
        struct session *x = sessions[i];
        metadata[i] = x->metadata;
        snapshots[i] = session_snapshot_ref(x->snapshot);
        answers[i] = session_answers_ref(x->answers);
        writes[i] = (struct session_write){
            .name = x->name, .metadata = &metadata[i], .snapshot = snapshots[i], .answers = answers[i]};
        replaced[i] = x->file_version;
        if (session_fenced(s)) writes[i].replaces = &replaced[i];
    }
    session_unlock(s);
    session_budget_reserve(s, sessions, writes, n);
    if (last_try) state_home_hurry(&s->store.home, clock_now_ns() + STORE_WAIT_MOST_NS); /* all of them */
    session_folder_write(s, writes, n);
    state_home_hurry(&s->store.home, 0);
    for (size_t i = 0; i < n; i++) {
        struct session *x = sessions[i];
        io_judge(s, x, &writes[i]);
        session_folder_wrote(s, x, &writes[i]);
        session_tenants_wrote(s, x, &writes[i]);
        const bool gone = session_fenced(s) && writes[i].rc == ROD_ECONFLICT;
        if (!writes[i].rc || gone || last_try) session_mark_end(s, x);
        if (gone)
            session_log_trouble(s, SESSION_LOST, "session %s: lazy turns up to version %llu are lost: %s",
                                metadata[i].id, (unsigned long long)metadata[i].version, writes[i].err.message);
        else if (writes[i].rc)
            session_log_trouble(s, SESSION_NOT_WRITTEN, "session %s is not written and %s: %s", x->metadata.id,
                                last_try ? "lost at its last version" : "stays in memory", writes[i].err.message);
        session_snapshot_release(snapshots[i]);
        session_answers_release(answers[i]);
        session_lock(s);
        old[i] = NULL;
        if (!writes[i].rc) {
            session_table_set_dirty(&s->table, x, false);
            session_table_set_file(&s->table, x, &writes[i].file_version);
            x->failed_ns = 0;
            x->unsure_hash = 0;
            if (x->drop || s->starved) old[i] = session_table_drop_snapshot(&s->table, x);
            s->starved = false;
        } else if (gone) {
            s->n_lost++; /* the table has forgotten it */
        } else if (last_try) {
            session_table_set_dirty(&s->table, x, false); /* lost, and logged as such */
            s->n_lost++;
        } else {
            x->failed_ns = clock_now_ns();
        }
        session_unlock(s);
        session_snapshot_release(old[i]);
        session_hold_end_lease(s, x);
        session_lock(s);
        session_hold_release_locked(s, x);
        session_unlock(s);
    }
}

static void *io_thread(void *arg) {
    struct sessions *s = arg;
    struct session_turn *turns[SESSIONS_BATCH];
    struct session *sessions[SESSIONS_BATCH];
    session_lock(s);
    for (;;) {
        if (s->jobs.n) {
            const size_t n = session_queue_take_turns_locked(s, turns);
            session_unlock(s);
            if (turns[0]->stage == SESSION_STAGE_OPEN)
                session_turn_open(s, turns[0]);
            else
                session_turn_end_all(s, turns, n);
            session_lock(s);
        } else if (s->writes.n) {
            const size_t n = session_queue_take_writes_locked(s, sessions);
            session_unlock(s);
            io_write_sessions(s, sessions, n);
            session_lock(s);
        } else if (s->ending) {
            break;
        } else {
            session_wait_locked(s, &s->work, 0);
        }
    }
    session_unlock(s);
    return NULL;
}

int session_io_start(struct sessions *s, struct rod_error *err) {
    const uint32_t want = s->config.n_threads ? s->config.n_threads : session_fenced(s) ? FENCED_THREADS : THREADS;
    const uint32_t n = want < SESSIONS_MAX_THREADS ? want : SESSIONS_MAX_THREADS;
    int rc = 0;
    session_lock(s); /* threads that begin early see all of n_threads */
    while (!rc && s->n_threads < n) {
        rc = pthread_create(&s->threads[s->n_threads], NULL, io_thread, s);
        s->n_threads += !rc;
    }
    session_unlock(s);
    return rc ? rod_fail(err, ROD_EINTERNAL, "The threads of the sessions did not start.") : 0;
}

void session_io_stop(struct sessions *s) {
    for (uint32_t i = 0; i < s->n_threads; i++) pthread_join(s->threads[i], NULL);
    assert(!s->jobs.n && !s->writes.n);
    s->n_threads = 0;
}
