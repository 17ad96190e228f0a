/* session_view.c - see session_internal.h. */
#include "session_internal.h"
#include "engine/session/store/session_locate.h"

#include <string.h>
#include <unistd.h>

void session_view_fini(struct session_view *v) {
    session_snapshot_release(v->snapshot);
    session_answers_release(v->answers);
    *v = (struct session_view){0};
}

static void view_of_table_locked(const struct sessions *s, const struct session *x, bool with_snapshot,
                                 struct session_view *out) {
    assert(session_lock_held(s) && x->exists);
    *out =
        (struct session_view){.metadata = x->metadata, .in_host = x->snapshot != NULL, .durable = session_durable(x)};
    if (out->durable) {
        out->file_version = x->file_version;
        memcpy(out->name, x->name, sizeof out->name);
    }
    out->busy = session_busy(x);
    out->answers = session_answers_ref(x->answers);
    if (with_snapshot) out->snapshot = session_snapshot_ref(x->snapshot);
}

/* The references of *read go to the view. */
static void view_of_file(struct session_read *read, const uint8_t name[SESSION_NAME_BYTES], bool with_snapshot,
                         struct session_view *out) {
    *out = (struct session_view){
        .metadata = read->metadata, .file_version = read->file_version, .in_host = with_snapshot, .durable = true};
    memcpy(out->name, name, sizeof out->name);
    out->answers = session_answers_ref(read->answers);
    if (with_snapshot) out->snapshot = session_snapshot_ref(read->snapshot);
    session_read_fini(read);
}

/* The table learns what the file says, unless somebody holds the session. */
static void view_learn(struct sessions *s, const char *tenant, const char *id, const uint8_t name[SESSION_NAME_BYTES],
                       const struct session_read *read, bool with_snapshot) {
    struct session_snapshot *old = NULL;
    session_lock(s);
    struct session *x = session_table_find(&s->table, tenant, id);
    if (!x) x = session_table_add(&s->table, tenant, id);
    if (x && session_idle(x) && !(x->exists && x->dirty)) {
        old = session_table_set(&s->table, x, &read->metadata,
                                with_snapshot ? session_snapshot_ref(read->snapshot) : NULL,
                                with_snapshot ? session_answers_ref(read->answers) : NULL);
        session_table_name(&s->table, x, name);
        session_table_set_file(&s->table, x, &read->file_version);
    }
    session_unlock(s);
    session_snapshot_release(old);
}

/* The file is gone: removed by another server, or by hand. */
static void view_unlearn(struct sessions *s, const char *tenant, const char *id) {
    struct session_snapshot *old = NULL;
    session_lock(s);
    struct session *x = session_table_find(&s->table, tenant, id);
    if (x && session_idle(x) && !x->dirty) {
        old = session_table_unset(&s->table, x);
        session_table_remove(&s->table, x);
    }
    session_unlock(s);
    session_snapshot_release(old);
}

/* A fork begins from it: the time of last use is now, on all servers. */
static void view_use(struct sessions *s, const char *tenant, const char *id) {
    const int64_t now_s = session_now_s(s);
    uint8_t name[SESSION_NAME_BYTES];
    session_lock(s);
    struct session *x = session_table_find(&s->table, tenant, id);
    const bool touch =
        x && x->file_version.n_bytes && now_s > session_file_version_used_s(&x->file_version); /* once a second */
    if (touch) memcpy(name, x->name, sizeof name);
    if (x) session_table_use(&s->table, x, now_s);
    session_unlock(s);
    if (touch) session_store_touch(&s->store, name, now_s);
}

int session_view_not_found(const char *id, struct rod_error *err) {
    return rod_fail(err, ROD_ENOTFOUND, "There is no session %s.", id);
}

/* Looks for the file: under the known name, or where the folder has it. */
static int view_find_file(struct sessions *s, const char *tenant, const char *id, bool named,
                          uint8_t name[SESSION_NAME_BYTES], struct session_file_version *found, struct rod_error *err) {
    int rc = session_folder_here(s, err);
    if (!rc) rc = named ? session_store_stat(&s->store, name, found, err) : ROD_ENOTFOUND;
    if (rc != ROD_ENOTFOUND) return rc;
    rc = session_locate_name(&s->store, tenant, id, name, err); /* unknown, or another name by now */
    return rc ? rc : session_store_stat(&s->store, name, found, err);
}

int session_view_take(struct sessions *s, const char *tenant, const char *id, bool with_snapshot,
                      struct session_view *out, struct rod_error *err) {
    *out = (struct session_view){0};
    uint8_t name[SESSION_NAME_BYTES];
    session_lock(s);
    struct session *x = session_table_find(&s->table, tenant, id);
    const bool exists = x && x->exists, named = x && x->named;
    if (named) memcpy(name, x->name, sizeof name);
    /* no other server changes it: the table is right */
    const bool ours = exists && (!session_on_disk(s) || x->dirty || x->current);
    const struct session_file_version known = exists ? x->file_version : (struct session_file_version){0};
    const bool enough = exists && (!with_snapshot || x->snapshot);
    if (exists) view_of_table_locked(s, x, with_snapshot, out);
    session_unlock(s);
    if (ours && enough) return 0;
    session_view_fini(out);
    if (!session_on_disk(s)) return session_view_not_found(id, err);
    static const struct session_file_version none;
    struct session_file_version found = none;
    struct session_read read = {0};
    int rc = 0;
    if (session_fenced(s) && !(rc = session_locate_name(&s->store, tenant, id, name, err)) && with_snapshot) {
        rc = session_store_read_new(&s->store, name, enough ? &known : &none, &read, err);
        if (!rc && read.unchanged) found = known;
    } else if (!session_fenced(s) || (!rc && enough)) {
        rc = view_find_file(s, tenant, id, named, name, &found, err);
    }
    if (rc == ROD_ENOTFOUND) {
        view_unlearn(s, tenant, id);
        return session_view_not_found(id, err);
    }
    if (rc == ROD_ESTATE && session_fenced(s)) session_folder_refused(s, name, &read.file_version, err);
    if (rc) return session_fence_judge(&read, rc, err);
    if (enough && found.n_bytes && session_file_version_same(&found, &known)) {
        session_lock(s);
        x = session_table_find(&s->table, tenant, id);
        const bool still = x && x->exists && (!with_snapshot || x->snapshot);
        if (still) session_hold_met_locked(s, x, &found);
        if (still) view_of_table_locked(s, x, with_snapshot, out);
        session_unlock(s);
        if (still) return 0;
    }
    if (!read.snapshot) rc = session_store_read(&s->store, name, with_snapshot, &read, err);
    if (rc == ROD_ESTATE) session_folder_refused(s, name, session_fenced(s) ? &read.file_version : &found, err);
    if (rc == ROD_ENOTFOUND) return session_view_not_found(id, err);
    if (rc) return session_fence_judge(&read, rc, err);
    if (with_snapshot) session_count(&s->loads, 1);
    view_learn(s, tenant, id, name, &read, with_snapshot);
    session_kept_learn(s, tenant, id);
    view_of_file(&read, name, with_snapshot, out);
    return 0;
}

int session_view_take_live(struct sessions *s, const char *tenant, const char *id, bool with_snapshot,
                           struct session_view *out, struct rod_error *err) {
    const int rc = session_view_take(s, tenant, id, with_snapshot, out, err);
    if (rc || out->busy || !session_expired(&out->metadata, session_now_s(s))) return rc;
    session_view_fini(out);
    return session_view_not_found(id, err);
}

int session_view_await(struct sessions *s, const char *tenant, const char *id, struct rod_error *err) {
    enum { PAUSE_US = 30000 };
    uint64_t since_ns = 0;
    int rc;
    while ((rc = session_mark_heed(s, tenant, id, SESSION_MARK_CALL_NS, &since_ns, err)) == ROD_EBUSY) usleep(PAUSE_US);
    return rc;
}

int session_view_take_answers(struct sessions *s, const char *tenant, const char *id, struct session_view *out,
                              struct rod_error *err) {
    int rc = session_view_take_live(s, tenant, id, false, out, err);
    if (rc || out->in_host || out->answers) return rc;
    assert(out->durable); /* what is not in host memory has a file */
    struct session_read read;
    rc = session_store_read(&s->store, out->name, false, &read, err);
    if (rc == ROD_ESTATE) session_folder_refused(s, out->name, &read.file_version, err);
    if (rc == ROD_ENOTFOUND) session_view_not_found(id, err);
    if (rc) {
        session_view_fini(out);
        return session_fence_judge(&read, rc, err);
    }
    out->answers = session_answers_ref(read.answers);
    session_read_fini(&read);
    return 0;
}

int session_view_fork(struct sessions *s, const char *tenant, const char *from, struct session_view *view,
                      struct session_metadata *fork, struct rod_error *err) {
    const int rc = session_view_take_live(s, tenant, from, true, view, err);
    if (rc) return rc;
    view_use(s, tenant, from);
    fork->version = view->metadata.version;
    fork->n_tok = view->metadata.n_tok;
    fork->pending = view->metadata.pending;
    fork->state_bytes = view->metadata.state_bytes;
    fork->open = view->metadata.open;
    fork->tools = view->metadata.tools;
    fork->keep = view->metadata.keep; /* and nothing of what is behind the source */
    memcpy(fork->parent, from, strlen(from) + 1);
    return 0;
}
