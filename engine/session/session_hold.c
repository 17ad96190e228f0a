/* session_hold.c - see session_internal.h. A holder alone changes `hold`, `current`, `lease_fd` and the file of its
 * session, so it may read these without the lock. */
#include "session_internal.h"
#include "engine/base/fail.h"
#include "engine/session/store/session_lease.h"
#include "engine/session/store/session_locate.h"

#include <string.h>

/* ---- the lease ---- */

void session_hold_release_locked(struct sessions *s, struct session *x) {
    assert(session_lock_held(s) && x->hold != SESSION_FREE && !x->write.next);
    assert(x->lease_fd < 0 || (x->exists && x->dirty)); /* only a dirty session keeps its lease */
    x->hold = SESSION_FREE;
    x->current = false;
    if (x->queue.n && !s->stopping)
        session_queue_start_locked(s, x);
    else if (!x->exists && !x->queue.n)
        session_table_remove(&s->table, x);
    pthread_cond_broadcast(&s->changed);
}

void session_hold_end_lease(struct sessions *s, struct session *x) {
    assert(x->hold != SESSION_FREE);
    if (x->lease_fd < 0) return;
    session_lock(s);
    const bool keep = x->exists && x->dirty;
    x->current = false; /* from here on another server may have it */
    session_unlock(s);
    if (keep) return;
    assert(x->named);
    char name[SESSION_FILE_NAME_BYTES];
    session_lease_end(s->dir, session_store_name(&s->store, x->name, name), x->lease_fd);
    x->lease_fd = -1;
}

/* The name of its file as the folder has it now. */
static int hold_locate(struct sessions *s, struct session *x, bool *changed, struct rod_error *err) {
    uint8_t name[SESSION_NAME_BYTES];
    const int rc = session_locate_name(&s->store, x->metadata.tenant, x->metadata.id, name, err);
    *changed = !x->named || memcmp(name, x->name, sizeof name) != 0;
    if (rc || !*changed) return rc;
    session_lock(s);
    session_table_name(&s->table, x, name);
    session_unlock(s);
    return 0;
}

int session_hold_take_lease(struct sessions *s, struct session *x, struct rod_error *err) {
    assert(x->hold == SESSION_TURN || x->hold == SESSION_CALL);
    if (!session_on_disk(s) || x->lease_fd >= 0) return 0;
    if (session_fenced(s)) { /* nobody holds a session for other servers: its writes are fenced */
        bool changed;
        return x->named ? 0 : hold_locate(s, x, &changed, err);
    }
    int rc = session_folder_here(s, err);
    char text[SESSION_FILE_NAME_BYTES];
    uint8_t earlier[SESSION_NAME_BYTES];
    session_names_earlier(x->metadata.tenant, x->metadata.id, earlier);
    while (!rc) {
        bool changed = false;
        rc = x->named ? 0 : hold_locate(s, x, &changed, err);
        if (!rc) rc = session_lease_take(s->dir, session_store_name(&s->store, x->name, text), &x->lease_fd, err);
        /* A file of an earlier name may have gone since, and other servers hold the session under its other name. */
        if (rc || memcmp(x->name, earlier, sizeof earlier) != 0) return rc;
        rc = hold_locate(s, x, &changed, err);
        if (!rc && !changed) return 0;
        session_lease_end(s->dir, text, x->lease_fd);
        x->lease_fd = -1;
    }
    return rc;
}

/* ---- for a call ---- */

int session_hold_begin(struct sessions *s, const char *tenant, const char *id, struct session **out,
                       struct rod_error *err) {
    int rc = 0;
    session_lock(s);
    struct session *x;
    while ((x = session_table_find(&s->table, tenant, id)) && x->hold != SESSION_FREE && !session_busy(x))
        session_wait_locked(s, &s->changed, 0);
    if (x && session_busy(x))
        rc = rod_fail(err, ROD_EBUSY, "A turn of session %s is running.", id);
    else if (!x && !(x = session_table_add(&s->table, tenant, id)))
        rc = rod_fail_no_memory(err);
    else
        x->hold = SESSION_CALL;
    session_unlock(s);
    if (rc) return rc;
    rc = session_hold_take_lease(s, x, err);
    if (rc == ROD_EBUSY) rod_fail(err, rc, "Another server holds session %s.", id);
    if (rc) {
        session_hold_end(s, x);
        return rc;
    }
    *out = x;
    return 0;
}

void session_hold_end(struct sessions *s, struct session *x) {
    session_hold_end_lease(s, x);
    session_lock(s);
    session_hold_release_locked(s, x);
    session_unlock(s);
}

/* ---- what the file says ---- */

void session_hold_met_locked(struct sessions *s, struct session *x, const struct session_file_version *file_version) {
    assert(session_lock_held(s));
    if (!session_file_version_same(&x->file_version, file_version) ||
        x->file_version.mtime_ns == file_version->mtime_ns)
        return;
    x->file_version.inode = file_version->inode;
    x->file_version.mtime_ns = file_version->mtime_ns;
    session_table_use(&s->table, x, session_file_version_used_s(file_version));
}

void session_hold_forget(struct sessions *s, struct session *x) {
    session_lock(s);
    assert(x->hold == SESSION_TURN || x->hold == SESSION_CALL);
    struct session_snapshot *old = session_table_unset(&s->table, x);
    session_unlock(s);
    session_snapshot_release(old);
}

void session_hold_learn(struct sessions *s, struct session *x, bool with_snapshot, struct session_read *read) {
    if (with_snapshot) session_count(&s->loads, 1);
    struct session_snapshot *snapshot = with_snapshot ? read->snapshot : NULL;
    struct session_answers *answers = with_snapshot ? read->answers : NULL;
    session_lock(s);
    struct session_snapshot *old = session_table_set(&s->table, x, &read->metadata, snapshot, answers);
    session_table_set_file(&s->table, x, &read->file_version);
    if (session_fenced(s)) x->scan = s->n_scans;
    session_unlock(s);
    session_snapshot_release(old);
    session_kept_learn(s, x->metadata.tenant, x->metadata.id);
    if (!with_snapshot) session_read_fini(read);
}

/* Lazy turns that could not be written yet: they count unless the store has another server's version by now. A store
 * that cannot be asked has none that is known. */
static void hold_check_dirty(struct sessions *s, struct session *x) {
    struct session_file_version found = {0};
    struct rod_error err;
    const int rc = session_store_glance(&s->store, x->name, &found, &err);
    if ((rc && rc != ROD_ENOTFOUND) || session_file_version_same(&found, &x->file_version)) return;
    if (session_fence_find_own(s, x, &found)) {
        session_lock(s);
        session_table_set_file(&s->table, x, &found);
        const bool all = found.version == x->metadata.version;
        if (all) session_table_set_dirty(&s->table, x, false);
        if (all) x->failed_ns = x->unsure_hash = 0;
        session_unlock(s);
        if (all) session_mark_end(s, x);
        return;
    }
    session_log_trouble(s, SESSION_LOST, "session %s: lazy turns up to version %llu gave way to another server's",
                        x->metadata.id, (unsigned long long)x->metadata.version);
    session_fence_forget(s, x);
    session_mark_end(s, x);
}

bool session_hold_goes_on(struct sessions *s, const struct session *x) {
    session_lock(s);
    const bool whole = x->exists && x->snapshot && !x->metadata.keep && s->table.n_dirty < SESSIONS_MOST_DIRTY;
    session_unlock(s);
    return whole && session_fenced(s) && s->config.lazy;
}

/* In one conditional read. */
static int hold_refresh_fenced(struct sessions *s, struct session *x, bool with_snapshot, struct rod_error *err) {
    static const struct session_file_version none;
    struct session_read read = {0};
    struct session_file_version found;
    assert(x->hold != SESSION_FREE && x->named);
    if (x->failed_ns) hold_check_dirty(s, x);
    session_lock(s);
    const bool dirty = x->exists && x->dirty, has_snapshot = x->snapshot != NULL;
    const struct session_file_version known = x->exists ? x->file_version : none;
    session_unlock(s);
    if (dirty) return 0; /* its write decides */
    int rc = 0;
    if (with_snapshot) {
        rc = session_store_read_new(&s->store, x->name, has_snapshot ? &known : &none, &read, err);
    } else {
        if (*known.etag) rc = session_store_glance(&s->store, x->name, &found, err);
        if (!rc && *known.etag && session_file_version_same(&found, &known)) return 0;
        if (!rc) rc = session_store_read(&s->store, x->name, false, &read, err);
    }
    if (!rc && read.unchanged) return 0;
    if (with_snapshot && rc == ROD_EIO && !*read.file_version.etag && session_hold_goes_on(s, x)) {
        x->unchecked = true;
        return 0;
    }
    if (rc == ROD_ESTATE) session_folder_refused(s, x->name, &read.file_version, err);
    if (with_snapshot) rc = session_fence_judge(&read, rc, err); /* else its owner deletes it */
    if (!rc) session_hold_learn(s, x, with_snapshot, &read);
    if (rc != ROD_ENOTFOUND) return rc;
    session_fence_forget(s, x);
    return 0;
}

int session_hold_check(struct sessions *s, struct session *x, struct rod_error *err) {
    const int rc = session_hold_refresh(s, x, false, err);
    return rc == ROD_ESTATE && session_fenced(s) ? session_hold_refresh(s, x, true, err) : rc;
}

int session_hold_refresh(struct sessions *s, struct session *x, bool with_snapshot, struct rod_error *err) {
    if (!session_on_disk(s)) return 0;
    if (session_fenced(s)) return hold_refresh_fenced(s, x, with_snapshot, err);
    assert(x->hold != SESSION_FREE && x->lease_fd >= 0 && x->named);
    session_lock(s);
    const bool dirty = x->exists && x->dirty, has_snapshot = x->snapshot != NULL;
    const struct session_file_version known = x->exists ? x->file_version : (struct session_file_version){0};
    session_unlock(s);
    if (dirty) return 0; /* no other server can have written it: the lease is held since then */
    struct session_file_version found;
    int rc = session_store_stat(&s->store, x->name, &found, err);
    if (rc == ROD_ENOTFOUND) {
        session_hold_forget(s, x);
        return 0;
    }
    if (rc) return rc;
    if (session_file_version_same(&found, &known) && (has_snapshot || !with_snapshot)) {
        session_lock(s);
        session_hold_met_locked(s, x, &found);
        session_unlock(s);
        return 0;
    }
    struct session_read read;
    rc = session_store_read(&s->store, x->name, with_snapshot, &read, err);
    if (rc == ROD_ESTATE) session_folder_refused(s, x->name, &found, err);
    if (!rc) session_hold_learn(s, x, with_snapshot, &read);
    return rc;
}
