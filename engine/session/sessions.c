/* sessions.c - see sessions.h: opening and closing, and a turn's calls. */
#include "session_internal.h"
#include "engine/base/fail.h"
#include "engine/base/utf8.h"
#include "engine/session/store/session_lease.h"
#include "engine/session/store/session_locate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- open and close ---- */

static int sessions_open_folder(struct sessions *s, struct rod_error *err) {
    const char *dir = s->config.dir ? s->config.dir : "";
    if (s->config.home) return session_fence_open(s, err);
    if (!*dir) return 0;
    if (strlen(dir) >= sizeof s->dir) return rod_fail(err, ROD_EINVALID, "state_dir: the path is too long.");
    snprintf(s->dir, sizeof s->dir, "%s", dir);
    s->store.home = state_home_folder(s->dir);
    int rc = session_folder_open(s, dir, err);
    if (rc) return rc;
    uint32_t n_swept = 0;
    struct rod_error left;
    if (state_disk_sweep(dir, &n_swept, &left)) /* other servers' files; the folder can be read all the same */
        session_log(s, 2, "state_dir: %s", left.message);
    session_lease_sweep(dir);
    session_folder_sweep(s);
    if (n_swept) session_log(s, 1, "state_dir: removed %u files that a crash left half written", n_swept);
    const int keyless = session_locate_key(&s->names, &s->store.home, err);
    if (keyless == ROD_EIO)
        session_log(s, 2, "state_dir: %s", err->message);
    else if (keyless)
        return keyless;
    session_watch_open(&s->watch);
    rc = session_scan_changes(s, true, err);
    if (!rc) session_kept_sweep(s);
    if (!rc)
        session_log(s, 1, "state_dir: %llu sessions, %llu files refused", (unsigned long long)s->table.n_exist,
                    (unsigned long long)atomic_load(&s->refused));
    return rc;
}

static void sessions_free(struct sessions *s) {
    session_table_fini(&s->table);
    session_names_fini(&s->names);
    session_watch_close(&s->watch);
    pthread_mutex_destroy(&s->watch_lock);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->keep);
    pthread_cond_destroy(&s->changed);
    session_refusals_fini(&s->refusals);
    if (session_fenced(s)) state_guard_fini(&s->guard);
    if (s->dir_fd >= 0) close(s->dir_fd);
    free(s);
}

static void sessions_stop_threads(struct sessions *s) {
    session_lock(s);
    s->ending = true;
    pthread_cond_broadcast(&s->work);
    pthread_cond_broadcast(&s->keep);
    pthread_cond_broadcast(&s->changed);
    session_unlock(s);
    session_sweep_stop(s);
    session_keep_stop(s);
    session_io_stop(s);
}

int sessions_open(const struct sessions_config *config, struct sessions **out, struct rod_error *err) {
    struct sessions *s = calloc(1, sizeof *s);
    if (!s) return rod_fail_no_memory(err);
    s->config = *config;
    s->dir_fd = -1;
    snprintf(s->layout, sizeof s->layout, "%s", config->form.layout);
    s->config.form.layout = s->layout;
    s->store.form = &s->config.form;
    s->store.pool = config->pool;
    s->store.names = &s->names;
    s->watch.fd = -1;
    list_init(&s->jobs);
    list_init(&s->writes);
    list_init(&s->waiting);
    int rc = session_table_init(&s->table, err);
    if (rc) {
        free(s);
        return rc;
    }
    s->table.pool = config->pool;
    session_refusals_init(&s->refusals, s->table.key);
    session_names_init(&s->names);
    pthread_mutex_init(&s->watch_lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    clock_init_condition(&s->work);
    clock_init_condition(&s->keep);
    clock_init_condition(&s->changed);
    rc = sessions_open_folder(s, err);
    if (!rc) rc = session_io_start(s, err);
    if (!rc) rc = session_keep_start(s, err);
    if (!rc && session_fenced(s)) rc = session_sweep_start(s, err);
    if (rc) {
        sessions_stop_threads(s);
        sessions_free(s);
        return rc;
    }
    *out = s;
    return 0;
}

/* Being written; or dirty, and the keeper has it for a budget and may spare it. */
static bool sessions_unwritten_locked(const struct sessions *s) {
    for (const struct session *x = session_oldest(&s->table, SESSION_DIRTY); x;
         x = session_newer(&s->table, x, SESSION_DIRTY))
        if (x->hold == SESSION_WRITE || x->hold == SESSION_CALL) return true;
    return false;
}

uint64_t sessions_close(struct sessions *s) {
    if (!s) return 0;
    sessions_stop(s);
    if (session_fenced(s)) state_guard_forgive(&s->guard); /* the store may be back since the last trial */
    session_lock(s);
    s->closing = true; /* a session that cannot be written is not tried again */
    for (;;) {
        for (struct session *x; (x = session_table_to_write(&s->table, UINT64_MAX));) session_queue_write_locked(s, x);
        if (!sessions_unwritten_locked(s)) break;
        session_wait_locked(s, &s->changed, 0);
    }
    session_unlock(s);
    sessions_stop_threads(s);
    for (struct session *x = session_oldest(&s->table, SESSION_ALL); x; x = session_newer(&s->table, x, SESSION_ALL))
        if (x->lease_fd >= 0) {
            char name[SESSION_FILE_NAME_BYTES];
            session_lease_end(s->dir, session_store_name(&s->store, x->name, name), x->lease_fd);
            x->lease_fd = -1;
        }
    const uint64_t n_lost = s->n_lost;
    assert(!s->n_out && !s->leaving_bytes);
    sessions_free(s);
    return n_lost;
}

void sessions_stats(struct sessions *s, struct rod_stats *out) {
    session_lock(s);
    out->sessions = s->table.n_exist;
    out->sessions_host = s->table.n_snapshots;
    out->sessions_file = s->table.n_exist - s->table.n_snapshots;
    out->state_file_bytes = s->table.files.all;
    out->kept_turns = s->table.n_kept;
    session_unlock(s);
    struct state_pool_counts counts = {0};
    if (s->store.pool) state_pool_count(s->store.pool, &counts);
    out->state_host_bytes = counts.used_bytes;
    out->session_host_bytes = counts.place_bytes + counts.beside_bytes;
    out->state_saves = atomic_load_explicit(&s->saves, memory_order_relaxed);
    out->state_save_failures = atomic_load_explicit(&s->save_failures, memory_order_relaxed);
    out->state_no_room = atomic_load_explicit(&s->no_room, memory_order_relaxed);
    out->state_loads = atomic_load_explicit(&s->loads, memory_order_relaxed);
    out->state_refused = atomic_load_explicit(&s->refused, memory_order_relaxed);
    out->sessions_expired = atomic_load_explicit(&s->expired, memory_order_relaxed);
    out->sessions_evicted = atomic_load_explicit(&s->evicted, memory_order_relaxed);
    out->session_rewinds = atomic_load_explicit(&s->rewinds, memory_order_relaxed);
    out->session_asks = atomic_load_explicit(&s->asks, memory_order_relaxed);
    out->idempotent_replays = atomic_load_explicit(&s->replays, memory_order_relaxed);
}

void sessions_flush(struct sessions *s) {
    session_lock(s);
    s->flushing = true;
    pthread_cond_signal(&s->keep);
    session_unlock(s);
}

bool sessions_make_room(void *sessions, size_t n_bytes) {
    (void)n_bytes;
    return session_budget_make_room(sessions);
}

/* ---- turns ---- */

int sessions_check(const struct sessions *s, const struct rod_turn *ask, struct rod_error *err) {
    (void)s;
    if (!ask->tenant || strlen(ask->tenant) > SESSION_MAX_TENANT)
        return rod_fail_at(err, ROD_EINVALID, "", "The tenant's name is longer than %d bytes.", SESSION_MAX_TENANT);
    if (!ask->session || !session_id_ok(ask->session))
        return rod_fail_at(err, ROD_EINVALID, "session_id",
                           "session_id must be 1 to %d letters, digits, '.', '_' or '-'.", SESSION_MAX_ID);
    if (ask->beside && (ask->create || ask->idempotency_key))
        return rod_fail_at(err, ROD_EINVALID, "session_id", "A question beside makes no session and keeps no answer.");
    if (ask->from && !session_id_ok(ask->from))
        return rod_fail_at(err, ROD_EINVALID, "from", "from must be 1 to %d letters, digits, '.', '_' or '-'.",
                           SESSION_MAX_ID);
    if (ask->idempotency_key && (!*ask->idempotency_key || strlen(ask->idempotency_key) > SESSION_ANSWER_MAX_KEY))
        return rod_fail_at(err, ROD_EINVALID, "Idempotency-Key", "An idempotency key has 1 to %u bytes.",
                           SESSION_ANSWER_MAX_KEY);
    if (ask->label && (!*ask->label || strlen(ask->label) > SESSION_ANSWER_MAX_LABEL ||
                       utf8_check(ask->label, strlen(ask->label)) != strlen(ask->label)))
        return rod_fail_at(err, ROD_EINVALID, "", "The label of an answer has 1 to %u bytes of UTF-8.",
                           SESSION_ANSWER_MAX_LABEL);
    if (ask->text && (!*ask->text || strlen(ask->text) > ROD_MAX_TURN_TEXT ||
                      utf8_check(ask->text, strlen(ask->text)) != strlen(ask->text)))
        return rod_fail_at(err, ROD_EINVALID, "", "The text of an answer has 1 to %zu bytes of UTF-8.",
                           ROD_MAX_TURN_TEXT);
    return 0;
}

void sessions_arrive(struct sessions *s, struct session_turn *t) {
    session_lock(s);
    assert(t->stage == SESSION_STAGE_NONE && !t->session);
    s->n_out++;
    const struct rod_turn *ask = t->ask;
    struct session *x = ask->beside ? NULL : session_table_find(&s->table, ask->tenant, ask->session);
    if (!x && !ask->beside) x = session_table_add(&s->table, ask->tenant, ask->session);
    t->commit = false;
    if (!x && !ask->beside)
        t->rc = rod_fail_no_memory(&t->err);
    else if (s->stopping)
        t->rc = rod_fail(&t->err, ROD_EDRAINING, "The server is shutting down.");
    else if (x && s->config.reject && session_busy(x))
        t->rc = rod_fail(&t->err, ROD_EBUSY, "Another turn of session %s is running.", ask->session);
    if (t->rc) {
        if (x && session_idle(x) && !x->exists) session_table_remove(&s->table, x);
        session_queue_end_locked(s, t);
    } else if (ask->beside) {
        session_queue_look_locked(s, t);
    } else {
        session_queue_add_locked(s, x, t);
        if (x->hold == SESSION_FREE) session_queue_start_locked(s, x);
    }
    session_unlock(s);
}

bool sessions_cancel(struct sessions *s, struct session_turn *t) {
    bool over = false;
    session_lock(s);
    if (t->stage == SESSION_STAGE_QUEUED) {
        struct session *x = t->session;
        session_queue_remove_locked(s, t);
        if (session_idle(x) && !x->exists) session_table_remove(&s->table, x);
        t->stage = SESSION_STAGE_OVER;
        assert(s->n_out);
        s->n_out--;
        over = true;
        pthread_cond_broadcast(&s->changed);
    } else if (t->stage == SESSION_STAGE_RETRY) {
        t->rc = rod_fail(&t->err, ROD_EDRAINING, "The turn was cancelled.");
        t->cancelled = true;
        session_queue_fail_locked(s, t);
    } else if (t->stage == SESSION_STAGE_OPEN) {
        t->cancelled = true;
    }
    session_unlock(s);
    return over;
}

void sessions_end(struct sessions *s, struct session_turn *t, bool commit) {
    session_lock(s);
    assert(t->stage == SESSION_STAGE_RUN && t->session->hold == SESSION_TURN && (!commit || t->snapshot));
    s->n_out++;
    t->commit = commit;
    session_queue_end_locked(s, t);
    session_unlock(s);
}

void sessions_stop(struct sessions *s) {
    session_lock(s);
    s->stopping = true;
    while (s->waiting.n) {
        struct session_turn *t = LIST_OF(list_first(&s->waiting), struct session_turn, waiting);
        t->rc = rod_fail(&t->err, ROD_EDRAINING, "The server shut down before this turn began.");
        session_queue_fail_locked(s, t);
    }
    while (s->n_out) session_wait_locked(s, &s->changed, 0);
    session_unlock(s);
}
