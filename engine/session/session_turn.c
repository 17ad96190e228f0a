/* session_turn.c - a turn's way: it arrives, waits, is opened, runs elsewhere, and is committed or given up. */
#include "session_internal.h"
#include "engine/base/utf8.h"

#include <stdlib.h>
#include <string.h>

/* A lease of another server, or room in host memory: asked for again so often, and for how long. */
enum { RETRY_MS = 10, ROOM_MS = 30000 };

void session_turn_fini(struct session_turn *t) {
    session_snapshot_release(t->snapshot);
    session_answers_release(t->answers);
    session_answer_free(&t->answer);
    for (struct mailbox_event *at = t->replay.head, *next; at; at = next) {
        next = at->next;
        event_free(event_of_link(at));
    }
    *t = (struct session_turn){0};
}

int sessions_check(const struct sessions *s, const struct rod_turn *ask, struct rod_error *err) {
    (void)s;
    const char *param = NULL;
    if (!ask->tenant || strlen(ask->tenant) > SESSION_MAX_TENANT)
        rod_fail(err, ROD_EINVALID, "The tenant's name is longer than %d bytes.", SESSION_MAX_TENANT), param = "";
    else if (!ask->session || !session_id_ok(ask->session))
        rod_fail(err, ROD_EINVALID, "session_id must be 1 to %d letters, digits, '.', '_' or '-'.", SESSION_MAX_ID),
            param = "session_id";
    else if (ask->from && !session_id_ok(ask->from))
        rod_fail(err, ROD_EINVALID, "from must be 1 to %d letters, digits, '.', '_' or '-'.", SESSION_MAX_ID),
            param = "from";
    else if (ask->idempotency_key && (!*ask->idempotency_key || strlen(ask->idempotency_key) > SESSION_ANSWER_MAX_KEY))
        rod_fail(err, ROD_EINVALID, "An idempotency key has 1 to %u bytes.", SESSION_ANSWER_MAX_KEY),
            param = "Idempotency-Key";
    else if (ask->label && (!*ask->label || strlen(ask->label) > SESSION_ANSWER_MAX_LABEL ||
                            utf8_check(ask->label, strlen(ask->label)) != strlen(ask->label)))
        rod_fail(err, ROD_EINVALID, "The label of an answer has 1 to %u bytes of UTF-8.", SESSION_ANSWER_MAX_LABEL),
            param = "";
    if (!param) return 0;
    if (err) memcpy(err->param, param, strlen(param) + 1);
    return ROD_EINVALID;
}

/* ---- who waits ---- */

static void line_push(struct session_line *l, struct session_turn *t) {
    t->next = NULL;
    if (l->tail)
        l->tail->next = t;
    else
        l->head = t;
    l->tail = t;
}

static struct session_turn *line_pop(struct session_line *l) {
    struct session_turn *t = l->head;
    l->head = t->next;
    if (!l->head) l->tail = NULL;
    t->next = NULL;
    return t;
}

static bool line_remove(struct session_line *l, struct session_turn *t) {
    struct session_turn **at = &l->head, *before = NULL;
    while (*at && *at != t) before = *at, at = &(*at)->next;
    if (!*at) return false;
    *at = t->next;
    if (l->tail == t) l->tail = before;
    t->next = NULL;
    return true;
}

void session_turn_park_locked(struct sessions *s, struct session_turn *t) {
    t->parked_prev = NULL;
    t->parked_next = s->parked;
    if (s->parked) s->parked->parked_prev = t;
    s->parked = t;
}

void session_turn_unpark_locked(struct sessions *s, struct session_turn *t) {
    if (t->parked_prev)
        t->parked_prev->parked_next = t->parked_next;
    else
        s->parked = t->parked_next;
    if (t->parked_next) t->parked_next->parked_prev = t->parked_prev;
    t->parked_prev = t->parked_next = NULL;
}

/* The engine's again. After this the turn may be gone. */
static void give_back(struct sessions *s, struct session_turn *t) {
    s->config.back(s->config.arg, t);
    pthread_mutex_lock(&s->lock);
    s->n_out--;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

static void push_job_locked(struct sessions *s, struct session_turn *t, enum session_stage stage) {
    t->stage = stage;
    session_io_push_locked(s, t);
}

/* A turn that waits in line or for its lease, and will not begin: why is in it. It goes the way of all that end. */
void session_turn_fail_locked(struct sessions *s, struct session_turn *t) {
    session_turn_unpark_locked(s, t);
    if (t->stage == SESSION_STAGE_LINE) {
        line_remove(&t->session->line, t);
        t->session = NULL; /* it holds nothing */
    }
    t->commit = false;
    push_job_locked(s, t, SESSION_STAGE_END);
}

void session_turn_start_locked(struct sessions *s, struct session *x) {
    struct session_turn *t = line_pop(&x->line);
    session_turn_unpark_locked(s, t);
    x->hold = SESSION_TURN;
    t->give_up_ns = 0;
    push_job_locked(s, t, SESSION_STAGE_OPEN);
}

void sessions_arrive(struct sessions *s, struct session_turn *t) {
    pthread_mutex_lock(&s->lock);
    s->n_out++;
    const struct rod_turn *ask = t->ask;
    struct session *x = session_table_find(&s->table, ask->tenant, ask->session);
    if (!x) x = session_table_add(&s->table, ask->tenant, ask->session);
    t->session = NULL;
    t->commit = false;
    if (!x)
        t->rc = rod_fail(&t->err, ROD_ENOMEM, "No memory for a session.");
    else if (s->stopping)
        t->rc = rod_fail(&t->err, ROD_EDRAINING, "The server is shutting down.");
    else if (s->config.reject && (x->hold == SESSION_TURN || x->line.head))
        t->rc = rod_fail(&t->err, ROD_EBUSY, "Another turn of session %s is running.", ask->session);
    if (t->rc) {
        if (x && x->hold == SESSION_FREE && !x->line.head && !x->exists) session_table_remove(&s->table, x);
        push_job_locked(s, t, SESSION_STAGE_END);
    } else {
        t->session = x;
        t->stage = SESSION_STAGE_LINE;
        line_push(&x->line, t);
        session_turn_park_locked(s, t);
        if (x->hold == SESSION_FREE) session_turn_start_locked(s, x);
    }
    pthread_mutex_unlock(&s->lock);
}

bool sessions_cancel(struct sessions *s, struct session_turn *t) {
    bool ours = false;
    pthread_mutex_lock(&s->lock);
    if (t->stage == SESSION_STAGE_LINE) { /* it holds nothing */
        session_turn_unpark_locked(s, t);
        line_remove(&t->session->line, t);
        if (t->session->hold == SESSION_FREE && !t->session->exists) session_table_remove(&s->table, t->session);
        t->session = NULL;
        t->stage = SESSION_STAGE_OVER;
        s->n_out--;
        ours = true;
        pthread_cond_broadcast(&s->changed);
    } else if (t->stage == SESSION_STAGE_WAIT) {
        t->rc = rod_fail(&t->err, ROD_EDRAINING, "The turn was cancelled.");
        t->cancelled = true;
        session_turn_fail_locked(s, t);
    } else if (t->stage == SESSION_STAGE_OPEN) {
        t->cancelled = true;
    }
    pthread_mutex_unlock(&s->lock);
    return ours;
}

/* ---- opening ---- */

/* What an unknown session begins with. */
static int make(struct sessions *s, struct session_turn *t, struct rod_error *err) {
    const struct rod_turn *ask = t->ask;
    struct session_metadata *f = &t->metadata;
    *f = (struct session_metadata){.ttl_s = s->config.ttl_s, .created_s = session_now_s()};
    f->used_s = f->created_s;
    memcpy(f->tenant, ask->tenant, strlen(ask->tenant) + 1);
    memcpy(f->id, ask->session, strlen(ask->session) + 1);
    if (!ask->create) return rod_fail(err, ROD_ENOTFOUND, "There is no session %s.", ask->session);
    const int full = session_claim(s, t->session, ask->max_sessions, err);
    if (full) return full;
    if (!ask->from) {
        t->snapshot = session_snapshot_new(0);
        return t->snapshot ? 0 : rod_fail(err, ROD_ENOMEM, "No memory for a session.");
    }
    struct session_view view;
    const int rc = session_look(s, ask->tenant, ask->from, true, &view, err);
    if (rc) {
        if (rc == ROD_ENOTFOUND && err) memcpy(err->param, "from", sizeof "from");
        return rc;
    }
    if (!view.busy && session_expired(&view.metadata, session_now_s())) {
        session_view_fini(&view);
        rod_fail(err, ROD_ENOTFOUND, "There is no session %s.", ask->from);
        if (err) memcpy(err->param, "from", sizeof "from");
        return ROD_ENOTFOUND;
    }
    session_used(s, ask->tenant, ask->from);
    f->version = view.metadata.version;
    f->n_tok = view.metadata.n_tok;
    f->state_bytes = view.metadata.state_bytes;
    f->open = view.metadata.open;
    memcpy(f->parent, ask->from, strlen(ask->from) + 1);
    t->snapshot = session_snapshot_share(view.snapshot);
    session_view_fini(&view);
    return 0;
}

static int replay(struct sessions *s, struct session_turn *t, const struct session_answer_found *found,
                  struct rod_error *err) {
    if (memcmp(found->digest, t->ask->digest, sizeof t->ask->digest)) {
        rod_fail(err, ROD_EINVALID, "This idempotency key was used for another request.");
    } else if (!found->n) {
        rod_fail(err, ROD_EINVALID,
                 "The request of this idempotency key is done, as version %llu; its answer is no "
                 "longer kept.",
                 (unsigned long long)found->version);
    } else {
        const int rc = session_answer_events(found->body, found->n, &t->replay, err);
        if (!rc) session_count(&s->replays, 1);
        t->metadata.version = found->version;
        return rc;
    }
    if (err) memcpy(err->param, "Idempotency-Key", sizeof "Idempotency-Key");
    return ROD_EINVALID;
}

/* Its time is over: it is as if it had been removed when it ended. */
static int expire(struct sessions *s, struct session *x, struct rod_error *err) {
    int rc = session_on_disk(s) ? session_store_remove(&s->store, x->name, err) : 0;
    if (rc == ROD_ENOTFOUND) rc = 0;
    if (rc) return rc;
    pthread_mutex_lock(&s->lock);
    struct session_snapshot *old = session_table_unset(&s->table, x);
    pthread_mutex_unlock(&s->lock);
    session_snapshot_release(old);
    session_count(&s->expired, 1);
    return 0;
}

/* The session is held, with its lease. Fills snapshot, answers, metadata; or replay. */
static int find(struct sessions *s, struct session_turn *t, struct rod_error *err) {
    struct session *x = t->session;
    int rc = session_refresh(s, x, true, err);
    if (rc) return rc;
    pthread_mutex_lock(&s->lock);
    const bool expired = x->exists && session_expired(&x->metadata, session_now_s());
    pthread_mutex_unlock(&s->lock);
    if (expired && (rc = expire(s, x, err))) return rc;
    pthread_mutex_lock(&s->lock);
    x->current = true;
    const bool exists = x->exists;
    if (exists) {
        t->metadata = x->metadata;
        t->snapshot = session_snapshot_share(x->snapshot);
        t->answers = session_answers_share(x->answers);
    }
    pthread_mutex_unlock(&s->lock);
    if (exists && !t->snapshot) return rod_fail(err, ROD_ENOROOM, "No room in host memory for the session's state.");
    if (!exists) return make(s, t, err);
    struct session_answer_found found;
    if (t->ask->idempotency_key && session_answers_find(t->answers, t->ask->idempotency_key, &found))
        return replay(s, t, &found, err);
    return 0;
}

static int check_version(const struct session_turn *t, struct rod_error *err) {
    const struct rod_turn *ask = t->ask;
    if (!ask->has_expected || ask->expected_version == t->metadata.version) return 0;
    rod_fail(err, ROD_EVERSION, "Session %s is at version %llu, not %llu.", ask->session,
             (unsigned long long)t->metadata.version, (unsigned long long)ask->expected_version);
    if (err) memcpy(err->param, "expected_version", sizeof "expected_version");
    return ROD_EVERSION;
}

static void forget_snapshot(struct session_turn *t) {
    session_snapshot_release(t->snapshot);
    session_answers_release(t->answers);
    t->snapshot = NULL;
    t->answers = NULL;
}

/* Where its end would find no room, and nobody could make some, it does not begin: an end that finds none lies outside
 * the budget, which is meant for the moment before somebody leaves. */
static int check_room(struct sessions *s, struct rod_error *err) {
    pthread_mutex_lock(&s->lock);
    const bool stuck = session_stuck_locked(s);
    pthread_mutex_unlock(&s->lock);
    if (!stuck) return 0;
    struct state_buffer *buffer =
        state_buffer_try(s->config.pool, s->config.form.state_bytes(s->config.form.arg, SESSION_MOST_TOK));
    state_buffer_release(buffer);
    return buffer ? 0 : rod_fail(err, ROD_ENOROOM, "No room in host memory for the session's next state.");
}

/* True: it waits, and is opened again later. */
static bool wait_again(struct sessions *s, struct session_turn *t) {
    const uint64_t now_ns = session_now_ns();
    const bool room = t->rc == ROD_ENOROOM;
    bool waits = false;
    pthread_mutex_lock(&s->lock);
    const bool stuck = room && session_stuck_locked(s) && !session_writing_locked(s);
    if (room && !t->give_up_ns) t->give_up_ns = now_ns + (uint64_t)ROOM_MS * 1000000u;
    if (!t->cancelled && !s->stopping && !stuck &&
        (room ? now_ns < t->give_up_ns : t->rc == ROD_EBUSY && !s->config.reject)) {
        waits = true;
        t->rc = 0;
        t->stage = SESSION_STAGE_WAIT;
        t->retry_ns = now_ns + (uint64_t)RETRY_MS * 1000000u;
        session_turn_park_locked(s, t);
        pthread_cond_signal(&s->keep);
    }
    pthread_mutex_unlock(&s->lock);
    if (stuck) {
        session_trouble(s, SESSION_NO_ROOM,
                        "host memory is full of sessions that the disk does not take: turns are refused");
        t->rc = rod_fail(&t->err, ROD_ENOROOM,
                         "Host memory is full of sessions that cannot be written at the moment. Nothing is lost; the "
                         "reason is in the server's log.");
    }
    return waits;
}

static void end_given_up(struct sessions *s, struct session_turn *t);

void session_turn_open(struct sessions *s, struct session_turn *t) {
    t->rc = session_take_lease(s, t->session, &t->err);
    if (t->rc == ROD_EIO) session_count(&s->save_failures, 1); /* nor could its state be written */
    if (!t->rc) t->rc = find(s, t, &t->err);
    if (!t->rc && !t->replay.head) t->rc = check_room(s, &t->err);
    if (t->rc == ROD_EBUSY || t->rc == ROD_ENOROOM) {
        forget_snapshot(t);
        if (wait_again(s, t)) return;
    }
    if (!t->rc && !t->replay.head) {
        t->rc = check_version(t, &t->err);
        t->open = t->metadata.open;
        if (!t->rc) t->rc = s->config.begin(s->config.arg, t, &t->err);
        session_snapshot_release(t->snapshot); /* it may leave host memory while the turn runs */
        t->snapshot = NULL;
    }
    bool runs = false;
    pthread_mutex_lock(&s->lock);
    if (!t->rc && !t->replay.head && t->cancelled) t->rc = rod_fail(&t->err, ROD_EDRAINING, "The turn was cancelled.");
    if (!t->rc && !t->replay.head && s->stopping)
        t->rc = rod_fail(&t->err, ROD_EDRAINING, "The server is shutting down.");
    if (!t->rc && !t->replay.head) {
        t->stage = SESSION_STAGE_RUN;
        runs = true;
    }
    pthread_mutex_unlock(&s->lock);
    if (runs)
        give_back(s, t);
    else
        end_given_up(s, t);
}

/* ---- ending; on a thread ---- */

static void over(struct sessions *s, struct session_turn *t) {
    struct session *x = t->session;
    if (x) session_end_lease(s, x);
    pthread_mutex_lock(&s->lock);
    t->stage = SESSION_STAGE_OVER;
    t->session = NULL;
    if (x) session_release_locked(s, x);
    pthread_mutex_unlock(&s->lock);
    give_back(s, t);
}

static void end_given_up(struct sessions *s, struct session_turn *t) {
    forget_snapshot(t);
    over(s, t);
}

/* What the session will be: in place of what it was when the turn began. */
static int next_version(struct session_turn *t) {
    struct session_metadata *f = &t->metadata;
    f->version++;
    /* Not back with a clock that was set back: when that is right again, the session's time would be over at once. */
    const int64_t now_s = session_now_s();
    if (now_s > f->used_s) f->used_s = now_s;
    f->n_tok = t->snapshot->n_tok;
    f->state_bytes = session_snapshot_bytes(t->snapshot);
    f->open = t->open;
    if (!t->ask->idempotency_key) return 0;
    struct session_answers *answers =
        session_answers_add(t->answers, t->ask->idempotency_key, t->ask->digest, f->version, &t->answer);
    if (!answers) return rod_fail(&t->err, ROD_ENOMEM, "No memory for the answer of an idempotency key.");
    session_answers_release(t->answers);
    t->answers = answers;
    return 0;
}

static void commit(struct sessions *s, struct session_turn *t, const struct session_file_version *file_version) {
    struct session *x = t->session;
    pthread_mutex_lock(&s->lock);
    struct session_snapshot *old = session_table_set(&s->table, x, &t->metadata, t->snapshot, t->answers);
    t->snapshot = NULL; /* the table's */
    t->answers = NULL;
    if (file_version) session_table_set_file(&s->table, x, file_version);
    session_table_set_dirty(&s->table, x, !file_version && session_on_disk(s));
    if (s->table.n_dirty >= SESSIONS_MANY_DIRTY) pthread_cond_signal(&s->keep);
    if (s->config.disk_bytes && s->table.files.all > s->config.disk_bytes) pthread_cond_signal(&s->keep);
    const bool starved = s->starved;
    s->starved = false;
    pthread_mutex_unlock(&s->lock);
    session_snapshot_release(old);
    if (starved) sessions_make_room(s, 0);
}

/* A file in place is what the next turn goes on from, though its end was not promised. */
static void save_failed(struct sessions *s, struct session_turn *t, const struct session_write *w) {
    const struct rod_error *err = &w->err;
    session_trouble(s, SESSION_NOT_SAVED, "session %s: its turn is not saved: %s", t->metadata.id, err->message);
    if (w->in_place)
        t->rc = rod_fail(&t->err, ROD_EUNSURE,
                         "Session %.64s is at version %llu with this turn, but a power cut may undo it; the reason is "
                         "in the server's log.",
                         t->metadata.id, (unsigned long long)t->metadata.version);
    else
        t->rc = rod_fail(&t->err, err->code == ROD_ESTATE ? ROD_EINTERNAL : err->code, /* too large for a file */
                         "The turn could not be saved, so session %.64s stays as it was: %.300s", t->metadata.id,
                         err->message);
}

void session_turns_end(struct sessions *s, struct session_turn **turns, size_t n) {
    struct session_write writes[SESSIONS_BATCH];
    struct session_turn *of[SESSIONS_BATCH];
    struct session *sessions[SESSIONS_BATCH];
    size_t n_writes = 0;
    pthread_mutex_lock(&s->lock);
    const bool on_disk = session_on_disk(s) && (!s->config.lazy || s->table.n_dirty >= SESSIONS_MOST_DIRTY);
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < n; i++) {
        struct session_turn *t = turns[i];
        if (t->commit && !t->rc) t->rc = next_version(t);
        if (!t->commit || t->rc || !on_disk) continue;
        writes[n_writes] = (struct session_write){
            .name = t->session->name, .metadata = &t->metadata, .snapshot = t->snapshot, .answers = t->answers};
        sessions[n_writes] = t->session;
        of[n_writes++] = t;
    }
    session_reserve(s, sessions, writes, n_writes);
    session_write_all(s, writes, n_writes);
    for (size_t i = 0; i < n_writes; i++) {
        session_wrote(s, sessions[i], &writes[i]);
        if (writes[i].rc)
            save_failed(s, of[i], &writes[i]);
        else
            commit(s, of[i], &writes[i].file_version);
    }
    for (size_t i = 0; i < n; i++) {
        if (turns[i]->commit && !turns[i]->rc && !on_disk) commit(s, turns[i], NULL);
        end_given_up(s, turns[i]); /* what was committed has left it */
    }
}

void sessions_end(struct sessions *s, struct session_turn *t, bool do_commit) {
    pthread_mutex_lock(&s->lock);
    s->n_out++;
    t->commit = do_commit;
    push_job_locked(s, t, SESSION_STAGE_END);
    pthread_mutex_unlock(&s->lock);
}

void sessions_stop(struct sessions *s) {
    pthread_mutex_lock(&s->lock);
    s->stopping = true;
    while (s->parked) {
        struct session_turn *t = s->parked;
        t->rc = rod_fail(&t->err, ROD_EDRAINING, "The server shut down before this turn began.");
        session_turn_fail_locked(s, t);
    }
    while (s->n_out) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}
