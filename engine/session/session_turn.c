/* session_turn.c - see session_internal.h: a turn is opened, and after it ran it is committed or given up. */
#include "session_internal.h"
#include "engine/base/fail.h"
#include "engine/base/store_wait.h"
#include "engine/session/store/session_places.h"

#include <string.h>

/* A lease or mark of another server, or room in host memory: tried again so often, and for how long. */
enum { RETRY_MS = 10, FENCED_RETRY_MS = 100, ROOM_MS = 30000 };

void session_turn_fini(struct session_turn *t) {
    assert(!t->session && !t->link.next && !t->waiting.next); /* the caller's */
    session_snapshot_release(t->snapshot);
    session_answers_release(t->answers);
    session_answer_free(&t->answer);
    events_free(&t->replay);
    *t = (struct session_turn){0};
}

/* ---- opening ---- */

/* What an unknown session begins with. */
static int turn_create_session(struct sessions *s, struct session_turn *t, struct rod_error *err) {
    const struct rod_turn *ask = t->ask;
    struct session_metadata *m = &t->metadata;
    *m = (struct session_metadata){.ttl_s = s->config.ttl_s, .created_s = session_now_s(s)};
    m->used_s = m->created_s;
    if (!ask->from) m->keep = s->config.keep_turns;
    memcpy(m->tenant, ask->tenant, strlen(ask->tenant) + 1);
    memcpy(m->id, ask->session, strlen(ask->session) + 1);
    if (!ask->create) return session_view_not_found(ask->session, err);
    const int full = session_budget_claim(s, t->session, ask->max_sessions, err);
    if (full) return full;
    if (!ask->from) {
        t->snapshot = session_snapshot_new(0);
        return t->snapshot ? 0 : rod_fail_no_memory(err);
    }
    struct session_view view;
    int rc = session_mark_heed(s, ask->tenant, ask->from, SESSION_MARK_TURN_NS, &t->mark_ns, err);
    if (!rc) rc = session_view_fork(s, ask->tenant, ask->from, &view, m, err);
    if (rc == ROD_ENOTFOUND) return rod_fail_at(err, rc, "from", "There is no session %s.", ask->from);
    if (rc) return rc;
    t->snapshot = session_snapshot_ref(view.snapshot);
    session_view_fini(&view);
    return 0;
}

static int turn_replay(struct sessions *s, struct session_turn *t, const struct session_answer_found *found,
                       struct rod_error *err) {
    static const char key[] = "Idempotency-Key";
    if (memcmp(found->digest, t->ask->digest, sizeof t->ask->digest))
        return rod_fail_at(err, ROD_EINVALID, key, "This idempotency key was used for another request.");
    if (!found->n)
        return rod_fail_at(err, ROD_EINVALID, key,
                           "The request of this idempotency key is done, as version %llu; its answer is no longer "
                           "kept.",
                           (unsigned long long)found->version);
    const int rc = session_answer_events(found->body, found->n, &t->replay, err);
    if (!rc) session_count(&s->replays, 1);
    t->metadata.version = found->version;
    return rc;
}

/* The session has expired: it is as if it had been removed then. */
static int turn_expire_session(struct sessions *s, struct session *x, struct rod_error *err) {
    int rc = session_on_disk(s) ? session_store_remove(&s->store, x->name, &x->file_version, err) : 0;
    if (rc == ROD_ENOTFOUND) rc = 0;
    if (rc) return rc;
    if (session_fenced(s)) session_tenants_removed(s, x->metadata.tenant);
    session_hold_forget(s, x);
    session_count(&s->expired, 1);
    return 0;
}

/* Another server's lazy turn is written soon, or its server is lost: then the turn goes on without it. */
static int turn_heed_mark(struct sessions *s, struct session_turn *t, const struct session_mark *mark,
                          struct rod_error *err) {
    struct session *x = t->session;
    session_lock(s);
    const bool dirty = x->exists && x->dirty;
    const uint64_t stored = x->exists ? x->metadata.version : 0;
    session_unlock(s);
    if (dirty) return 0;
    const int rc = session_mark_wait(s, x->metadata.id, mark, stored, SESSION_MARK_TURN_NS, &t->mark_ns, err);
    if (rc) return rc;
    if (!mark->ours && mark->version > stored)
        session_log(s, 2, "session %s: version %llu did not come from the server that has it: goes on without it",
                    x->metadata.id, (unsigned long long)mark->version);
    session_mark_remove(s, x->name, mark);
    return 0;
}

/* The mark is looked at first: a version whose mark is gone by then is there. */
static int turn_read_session(struct sessions *s, struct session_turn *t, struct rod_error *err) {
    struct session *x = t->session;
    const bool lazy = session_fenced(s) && s->config.lazy, marks = lazy && !*x->mark;
    const uint64_t began_ns = clock_now_ns();
    struct session_mark mark = {0};
    x->unchecked = lazy && state_guard_down(&s->guard, NULL) && session_hold_goes_on(s, x);
    if (x->unchecked) return 0;
    int rc = marks ? session_mark_look(s, x->name, &mark, err) : 0;
    x->unchecked = rc == ROD_EIO && session_hold_goes_on(s, x);
    if (!x->unchecked && !rc) rc = session_hold_refresh(s, x, true, err);
    if (x->unchecked) {
        x->unchecked = !session_fence_is_near(s, began_ns); /* else its mark is claimed at the end */
        return 0;
    }
    return rc || !mark.there ? rc : turn_heed_mark(s, t, &mark, err);
}

/* The session is held, with its lease. Fills snapshot, answers, metadata; or replay. */
static int turn_find_session(struct sessions *s, struct session_turn *t, struct rod_error *err) {
    struct session *x = t->session;
    assert(!t->snapshot && !t->answers);
    int rc = turn_read_session(s, t, err);
    if (rc) return rc;
    session_lock(s);
    const bool expired = x->exists && session_expired(&x->metadata, session_now_s(s));
    session_unlock(s);
    if (expired && (rc = turn_expire_session(s, x, err))) return rc;
    session_lock(s);
    x->current = !session_fenced(s);
    const bool exists = x->exists;
    if (exists) {
        t->metadata = x->metadata;
        t->snapshot = session_snapshot_ref(x->snapshot);
        t->answers = session_answers_ref(x->answers);
    }
    session_unlock(s);
    if (exists && !t->snapshot) return rod_fail(err, ROD_ENOROOM, "Host memory has no room for the session's state.");
    if (!exists) return turn_create_session(s, t, err);
    struct session_answer_found found;
    if (t->ask->idempotency_key && session_answers_find(t->answers, t->ask->idempotency_key, &found))
        return turn_replay(s, t, &found, err);
    return 0;
}

/* A question beside begins where the session was committed last, whoever holds it, and is no use of it. */
static int turn_look(struct sessions *s, struct session_turn *t, struct rod_error *err) {
    struct session_view view;
    assert(!t->session && !t->snapshot);
    int rc = session_mark_heed(s, t->ask->tenant, t->ask->session, SESSION_MARK_TURN_NS, &t->mark_ns, err);
    if (!rc) rc = session_view_take_live(s, t->ask->tenant, t->ask->session, true, &view, err);
    if (rc) return rc;
    t->metadata = view.metadata;
    t->snapshot = session_snapshot_ref(view.snapshot);
    session_view_fini(&view);
    assert(t->snapshot);
    return 0;
}

static int turn_check_version(const struct session_turn *t, struct rod_error *err) {
    const struct rod_turn *ask = t->ask;
    if (!ask->has_expected || ask->expected_version == t->metadata.version) return 0;
    return rod_fail_at(err, ROD_EVERSION, "expected_version", "Session %s is at version %llu, not %llu.", ask->session,
                       (unsigned long long)t->metadata.version, (unsigned long long)ask->expected_version);
}

static void turn_forget_snapshot(struct session_turn *t) {
    session_snapshot_release(t->snapshot);
    session_answers_release(t->answers);
    t->snapshot = NULL;
    t->answers = NULL;
}

/* A turn whose end would find no room, where nobody could make some, does not begin: such an end lies outside the
 * budget, which allows that for the moment before another state leaves. */
static int turn_check_room(struct sessions *s, struct rod_error *err) {
    session_lock(s);
    const bool stuck = session_folder_stuck_locked(s);
    session_unlock(s);
    if (!stuck) return 0;
    struct state_buffer *buffer =
        state_buffer_try(s->config.pool, s->config.form.state_bytes(s->config.form.arg, SESSION_MOST_TOK));
    state_buffer_release(buffer);
    return buffer ? 0 : rod_fail(err, ROD_ENOROOM, "Host memory has no room for the session's next state.");
}

/* True: the turn waits, and is opened again later. */
static bool turn_wait_again(struct sessions *s, struct session_turn *t) {
    const uint64_t now_ns = clock_now_ns();
    const bool room = t->rc == ROD_ENOROOM;
    session_lock(s);
    const bool stuck = room && session_folder_stuck_locked(s) && !session_folder_writing_locked(s);
    if (room && !t->give_up_ns) t->give_up_ns = now_ns + (uint64_t)ROOM_MS * 1000000u;
    const bool waits = !t->cancelled && !s->stopping && !stuck &&
                       (room ? now_ns < t->give_up_ns : t->rc == ROD_EBUSY && !s->config.reject);
    if (waits) {
        t->rc = 0;
        const uint64_t ms = session_fenced(s) && !room ? FENCED_RETRY_MS : RETRY_MS;
        session_queue_retry_locked(s, t, now_ns + ms * 1000000u);
    }
    session_unlock(s);
    if (stuck) {
        session_log_trouble(s, SESSION_NO_ROOM,
                            "host memory is full of sessions that the disk does not take: turns are refused");
        t->rc = rod_fail(&t->err, ROD_ENOROOM,
                         "Host memory is full of sessions that cannot be written at the moment. Nothing is lost; the "
                         "reason is in the server's log.");
    }
    return waits;
}

/* The caller's again. After this the turn may be gone. */
static void turn_give_back(struct sessions *s, struct session_turn *t) {
    assert(t->stage == SESSION_STAGE_RUN || t->stage == SESSION_STAGE_OVER);
    s->config.back(s->config.arg, t);
    session_lock(s);
    assert(s->n_out);
    s->n_out--;
    pthread_cond_broadcast(&s->changed);
    session_unlock(s);
}

static void turn_end(struct sessions *s, struct session_turn *t) {
    struct session *x = t->session;
    turn_forget_snapshot(t);
    if (x) session_hold_end_lease(s, x);
    session_lock(s);
    const bool dirty = x && x->exists && x->dirty && session_fenced(s);
    t->stage = SESSION_STAGE_OVER;
    t->session = NULL;
    if (x) session_hold_release_locked(s, x);
    if (dirty && session_idle(x) && !x->failed_ns) session_queue_write_locked(s, x); /* other servers wait for it */
    session_unlock(s);
    turn_give_back(s, t);
}

/* The turn begins, unless it was cancelled meanwhile. */
static void turn_run(struct sessions *s, struct session_turn *t) {
    session_lock(s);
    if (t->cancelled)
        t->rc = rod_fail(&t->err, ROD_EDRAINING, "The turn was cancelled.");
    else if (s->stopping)
        t->rc = rod_fail(&t->err, ROD_EDRAINING, "The server is shutting down.");
    else
        t->stage = SESSION_STAGE_RUN;
    session_unlock(s);
    if (!t->rc && t->ask->beside) session_count(&s->asks, 1);
    if (t->rc)
        turn_end(s, t);
    else
        turn_give_back(s, t);
}

static int turn_find(struct sessions *s, struct session_turn *t, struct rod_error *err) {
    if (t->ask->beside) return turn_look(s, t, err);
    int rc = session_hold_take_lease(s, t->session, err);
    if (rc == ROD_EIO) session_count(&s->save_failures, 1); /* nor could its state be written */
    if (!rc) rc = turn_find_session(s, t, err);
    return rc || t->replay.head ? rc : turn_check_room(s, err);
}

/* Within what its request may wait; another server's turn counts. */
static int turn_find_in_time(struct sessions *s, struct session_turn *t, struct rod_error *err) {
    const uint64_t now_ns = clock_now_ns(), began_ns = t->mark_ns ? t->mark_ns : now_ns;
    const uint64_t waited_ns = store_wait_add(t->waited_ns, now_ns - began_ns, false);
    if (!session_fenced(s)) return turn_find(s, t, err);
    state_home_hurry(&s->store.home, now_ns + store_wait_needed_ns(waited_ns));
    const int rc = turn_find(s, t, err);
    state_home_hurry(&s->store.home, 0);
    if (rc != ROD_EBUSY) t->waited_ns = store_wait_add(t->waited_ns, clock_now_ns() - began_ns, rc == ROD_EIO);
    return rc;
}

/* What waits for the same session of a store that fails would wait as long for the same answer. */
static void turn_fail_queue(struct sessions *s, struct session_turn *t) {
    struct session_turn *next;
    session_lock(s);
    while (t->session && (next = session_turn_of(list_first(&t->session->queue)))) {
        next->rc = t->rc;
        next->err = t->err;
        session_queue_fail_locked(s, next);
    }
    session_unlock(s);
}

void session_turn_open(struct sessions *s, struct session_turn *t) {
    assert(t->stage == SESSION_STAGE_OPEN && (t->ask->beside ? !t->session : t->session->hold == SESSION_TURN));
    t->rc = turn_find_in_time(s, t, &t->err);
    if (t->rc == ROD_EBUSY || t->rc == ROD_ENOROOM) {
        turn_forget_snapshot(t);
        if (turn_wait_again(s, t)) return;
    }
    if (!t->rc && !t->replay.head) {
        t->rc = turn_check_version(t, &t->err);
        t->open = t->metadata.open;
        t->tools = t->metadata.tools;
        if (!t->rc) t->rc = s->config.begin(s->config.arg, t, &t->err);
        session_snapshot_release(t->snapshot); /* it may leave host memory while the turn runs */
        t->snapshot = NULL;
    }
    if (t->rc == ROD_EIO && session_fenced(s)) turn_fail_queue(s, t);
    if (t->rc || t->replay.head)
        turn_end(s, t);
    else
        turn_run(s, t);
}

/* ---- ending ---- */

/* What the session will be. */
static int turn_next_version(struct sessions *s, struct session_turn *t) {
    struct session_metadata *m = &t->metadata;
    assert(t->stage == SESSION_STAGE_END && t->snapshot && t->session->hold == SESSION_TURN);
    /* Not back with a clock that was set back: once that is right again, the session would expire at once. */
    const int64_t now_s = session_now_s(s);
    if (now_s > m->used_s) m->used_s = now_s;
    m->n_tok = t->snapshot->n_tok;
    m->pending = t->snapshot->pending >= 0;
    m->state_bytes = session_snapshot_bytes(t->snapshot);
    m->open = t->open;
    m->tools = t->tools;
    if (t->ask->idempotency_key) {
        struct session_answers *answers =
            session_answers_add(t->answers, t->ask->idempotency_key, t->ask->digest, m->version + 1, &t->answer);
        if (!answers) return rod_fail_no_memory(&t->err);
        session_answers_release(t->answers);
        t->answers = answers;
    }
    session_places_end_turn(m, session_kept_begin(s, t->session));
    return 0;
}

/* file_version NULL: its file is written later, if there is a folder. */
static void turn_commit(struct sessions *s, struct session_turn *t, const struct session_file_version *file_version) {
    struct session *x = t->session;
    session_lock(s);
    assert(x->hold == SESSION_TURN && (!x->exists || x->metadata.version < t->metadata.version));
    struct session_snapshot *old = session_table_set(&s->table, x, &t->metadata, t->snapshot, t->answers);
    t->snapshot = NULL; /* the table's */
    t->answers = NULL;
    if (file_version) session_table_set_file(&s->table, x, file_version);
    session_kept_commit_locked(s, x);
    session_table_set_dirty(&s->table, x, !file_version && session_on_disk(s));
    if (s->table.n_dirty >= SESSIONS_MANY_DIRTY) pthread_cond_signal(&s->keep);
    if (s->config.disk_bytes && s->table.files.all > s->config.disk_bytes) pthread_cond_signal(&s->keep);
    const bool starved = s->starved;
    s->starved = false;
    session_unlock(s);
    session_snapshot_release(old);
    if (starved) session_budget_make_room(s);
}

/* A file that is in place is what the next turn continues from, though its end was not promised. */
static void turn_save_failed(struct sessions *s, struct session_turn *t, const struct session_write *w) {
    const struct rod_error *err = &w->err;
    if (w->rc == ROD_ECONFLICT) { /* no fault: the next turn reads what came first */
        t->rc = w->rc;
        t->err = *err;
        return;
    }
    if (!w->in_place && w->rc != ROD_EUNSURE) session_kept_cancel(s, t->session);
    session_log_trouble(s, SESSION_NOT_SAVED, "session %s: its turn is not saved: %s", t->metadata.id, err->message);
    if (w->rc == ROD_EUNSURE)
        t->rc = rod_fail(&t->err, ROD_EUNSURE,
                         "The store did not say whether it has version %llu of session %.64s, with this turn: %.300s",
                         (unsigned long long)t->metadata.version, t->metadata.id, err->message);
    else if (w->in_place)
        t->rc = rod_fail(&t->err, ROD_EUNSURE,
                         "Session %.64s is at version %llu with this turn, but a power cut may undo it; the reason is "
                         "in the server's log.",
                         t->metadata.id, (unsigned long long)t->metadata.version);
    else
        t->rc = rod_fail(&t->err, err->code == ROD_ESTATE ? ROD_EINTERNAL : err->code, /* too large for a file */
                         "The turn could not be saved, so session %.64s stays as it was: %.300s", t->metadata.id,
                         err->message);
}

/* Before its answer ends, as a kept state is always a file. */
static bool turn_is_written(const struct sessions *s, const struct session_turn *t, bool on_disk) {
    return on_disk || (session_on_disk(s) && t->metadata.keep);
}

/* In a store of lazy servers each turn, lazy or not, gets its session's mark first. What gets none has failed. */
static void turn_claim_marks(struct sessions *s, struct session_turn **turns, size_t n, bool on_disk) {
    struct session *sessions[SESSIONS_BATCH];
    struct session_turn *of[SESSIONS_BATCH];
    struct rod_error errs[SESSIONS_BATCH];
    uint64_t versions[SESSIONS_BATCH];
    int rcs[SESSIONS_BATCH];
    for (int alone = 0; session_fenced(s) && s->config.lazy && alone < 2; alone++) {
        size_t n_claims = 0;
        for (size_t i = 0; i < n; i++) {
            if (!turns[i]->commit || turns[i]->rc || turn_is_written(s, turns[i], on_disk) == alone) continue;
            if (alone && turns[i]->session->unchecked) continue; /* the store was not there a moment ago */
            sessions[n_claims] = turns[i]->session;
            versions[n_claims] = turns[i]->metadata.version;
            of[n_claims++] = turns[i];
        }
        session_mark_claim(s, sessions, versions, alone, rcs, errs, n_claims);
        for (size_t i = 0; i < n_claims; i++) {
            if (!rcs[i]) continue;
            of[i]->rc = rcs[i];
            of[i]->err = errs[i];
            session_kept_cancel(s, sessions[i]);
            if (rcs[i] != ROD_EIO) session_fence_forget(s, sessions[i]);
        }
    }
}

/* Lazy, and other servers know nothing of it. */
static bool turn_unseen(const struct sessions *s, const struct session_turn *t, bool on_disk) {
    return t->commit && !t->rc && !turn_is_written(s, t, on_disk) && !*t->session->mark;
}

/* What the turns of one thread may wait together: as long as that one which may wait least. */
static uint64_t turns_until(struct session_turn *const *turns, size_t n, uint64_t now_ns) {
    uint64_t wait_ns = STORE_WAIT_MOST_NS;
    for (size_t i = 0; i < n; i++) {
        const uint64_t own_ns = store_wait_needed_ns(turns[i]->waited_ns);
        if (turns[i]->commit && own_ns < wait_ns) wait_ns = own_ns;
    }
    return now_ns + wait_ns;
}

static void turn_waited(struct session_turn *t, uint64_t began_ns) {
    const bool failed = t->rc == ROD_EIO || t->rc == ROD_EUNSURE;
    if (t->commit) t->waited_ns = store_wait_add(t->waited_ns, clock_now_ns() - began_ns, failed);
}

void session_turn_end_all(struct sessions *s, struct session_turn **turns, size_t n) {
    struct session_write writes[SESSIONS_BATCH];
    struct session_turn *of[SESSIONS_BATCH];
    struct session *sessions[SESSIONS_BATCH];
    size_t n_writes = 0;
    const uint64_t began_ns = clock_now_ns();
    assert(n <= SESSIONS_BATCH);
    state_home_hurry(&s->store.home, turns_until(turns, n, began_ns));
    session_lock(s);
    const bool on_disk = session_on_disk(s) && (!s->config.lazy || s->table.n_dirty >= SESSIONS_MOST_DIRTY);
    session_unlock(s);
    for (size_t i = 0; i < n; i++) {
        struct session_turn *t = turns[i];
        assert(t->stage == SESSION_STAGE_END);
        if (t->commit && !t->rc) t->rc = turn_next_version(s, t);
    }
    turn_claim_marks(s, turns, n, on_disk);
    for (size_t i = 0; i < n; i++) {
        struct session_turn *t = turns[i];
        if (!t->commit || t->rc || !turn_is_written(s, t, on_disk)) continue;
        writes[n_writes] = (struct session_write){
            .name = t->session->name, .metadata = &t->metadata, .snapshot = t->snapshot, .answers = t->answers};
        if (session_fenced(s)) writes[n_writes].replaces = &t->session->file_version;
        sessions[n_writes] = t->session;
        of[n_writes++] = t;
    }
    session_budget_reserve(s, sessions, writes, n_writes);
    session_folder_write(s, writes, n_writes);
    for (size_t i = 0; i < n_writes; i++) {
        session_folder_wrote(s, sessions[i], &writes[i]);
        session_tenants_wrote(s, sessions[i], &writes[i]);
        session_mark_end(s, sessions[i]);
        if (writes[i].rc)
            turn_save_failed(s, of[i], &writes[i]);
        else
            turn_commit(s, of[i], &writes[i].file_version);
    }
    for (size_t i = 0; i < n; i++) {
        if (turns[i]->commit && !turns[i]->rc && !turn_is_written(s, turns[i], on_disk)) turn_commit(s, turns[i], NULL);
        if (session_fenced(s)) turn_waited(turns[i], began_ns);
        turns[i]->unseen = session_fenced(s) && turn_unseen(s, turns[i], on_disk);
        turn_end(s, turns[i]); /* what was committed has left it */
    }
    state_home_hurry(&s->store.home, 0);
}
