/* sessions_calls.c - the calls of sessions.h beside turns: make, fork, change, look, list, delete, export, import. */
#include "session_internal.h"
#include "engine/base/fail.h"
#include "engine/session/store/session_places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static int calls_set_param(struct rod_error *err, int rc, const char *name) {
    if (err) snprintf(err->param, sizeof err->param, "%s", name);
    return rc;
}

int session_call_check_name(const char *tenant, const char *id, const char *field, struct rod_error *err) {
    if (strlen(tenant) > SESSION_MAX_TENANT)
        return rod_fail(err, ROD_EINVALID, "The tenant's name is longer than %d bytes.", SESSION_MAX_TENANT);
    if (session_id_ok(id)) return 0;
    return rod_fail_at(err, ROD_EINVALID, field, "%s must be 1 to %d letters, digits, '.', '_' or '-'.", field,
                       SESSION_MAX_ID);
}

void session_call_describe(const struct session_metadata *f, bool busy, bool in_host, bool durable,
                           struct rod_session_info *out) {
    *out = (struct rod_session_info){.version = f->version,
                                     .n_tok = f->n_tok,
                                     .pending = f->pending,
                                     .open = f->open,
                                     .tools = f->tools,
                                     .state_bytes = f->state_bytes,
                                     .created_unix_s = f->created_s,
                                     .used_unix_s = f->used_s,
                                     .pinned = f->pinned,
                                     .busy = busy,
                                     .durable = durable};
    if (f->ttl_s && !f->pinned) out->expires_unix_s = session_end_s(f);
    out->keep_turns = f->keep;
    out->n_kept = f->n_kept;
    static_assert(SESSION_MAX_KEPT == ROD_MAX_KEPT_TURNS, "what is kept can be shown");
    for (uint32_t i = 0; i < f->n_kept; i++)
        out->kept[i] = (struct rod_kept_turn){f->kept[i].version, f->turn - f->kept[i].turn};
    memcpy(out->id, f->id, sizeof out->id);
    memcpy(out->parent, f->parent, sizeof out->parent);
    snprintf(out->tier, sizeof out->tier, "%s", in_host ? "host" : "file");
}

/* ---- making ---- */

static int calls_make_id(char id[SESSION_MAX_ID + 1], struct rod_error *err) {
    unsigned char random[16];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return rod_fail(err, ROD_EINTERNAL, "The system has no random numbers for a session's id.");
    size_t n = (size_t)snprintf(id, SESSION_MAX_ID + 1, "ses_");
    for (size_t i = 0; i < sizeof random; i++, n += 2) snprintf(id + n, 3, "%02x", random[i]);
    return 0;
}

/* A link instead of a copy; where no link can be made, a copy is written. A file in the way is of an expired session.
 */
static void calls_link_source(struct sessions *s, struct session *x, const struct fork_source *source,
                              struct session_write *write) {
    struct rod_error err;
    if (!source || !source->file_version.n_bytes || session_fenced(s)) return;
    if (x->file_version.n_bytes && session_store_remove(&s->store, x->name, &x->file_version, &err) &&
        err.code != ROD_ENOTFOUND)
        return;
    if (session_store_link(&s->store, source->name, &source->file_version, write, &err))
        session_log(s, 0, "session %s: the fork is written whole: %s", write->metadata->id, err.message);
}

int session_call_put(struct sessions *s, struct session *x, const struct session_metadata *metadata,
                     struct session_snapshot *snapshot, struct session_answers *answers,
                     const struct fork_source *source, bool later, struct rod_error *err) {
    struct session_write write = {.name = x->name, .metadata = metadata, .snapshot = snapshot, .answers = answers};
    assert(x->hold == SESSION_CALL && x->counted && snapshot);
    const bool on_disk = session_on_disk(s);
    const struct session_file_version replaced = x->file_version;
    if (session_fenced(s)) write.replaces = &replaced;
    if (on_disk && !later) {
        calls_link_source(s, x, source, &write);
        session_budget_reserve(s, &x, &write, 1);
        if (session_fenced(s) && s->config.lazy)
            session_mark_claim(s, &x, &metadata->version, false, &write.rc, &write.err, 1);
        if (!write.rc) session_folder_write(s, &write, 1);
        session_folder_wrote(s, x, &write);
        session_tenants_wrote(s, x, &write);
        session_mark_end(s, x);
        if (write.rc) {
            session_log_trouble(s, SESSION_NOT_MADE, "session %s: not created, or not changed: %s", metadata->id,
                                write.err.message);
            session_snapshot_release(snapshot);
            session_answers_release(answers);
            if (err) *err = write.err;
            return write.rc;
        }
    }
    session_lock(s);
    struct session_snapshot *old = session_table_set(&s->table, x, metadata, snapshot, answers);
    if (on_disk && !later) session_table_set_file(&s->table, x, &write.file_version);
    session_table_set_dirty(&s->table, x, on_disk && later);
    if (x->dirty) session_queue_write_locked(s, x); /* the writer holds it now, with the lease */
    if (s->config.disk_bytes && s->table.files.all > s->config.disk_bytes) pthread_cond_signal(&s->keep);
    session_unlock(s);
    session_snapshot_release(old);
    return 0;
}

int sessions_create(struct sessions *s, const char *tenant, const struct rod_session_new *made,
                    struct rod_session_info *out, struct rod_error *err) {
    char id[SESSION_MAX_ID + 1];
    struct session_metadata f = {.pinned = made->pin, .created_s = session_now_s(s)};
    struct session_snapshot *snapshot = NULL;
    struct fork_source source = {0};
    int rc = made->id ? session_call_check_name(tenant, made->id, "id", err) : calls_make_id(id, err);
    if (!rc && made->id) snprintf(id, sizeof id, "%s", made->id);
    if (!rc && made->from) rc = session_call_check_name(tenant, made->from, "from", err);
    if (rc) return rc;
    if (made->from) {
        struct session_view view;
        rc = session_view_await(s, tenant, made->from, err);
        if (!rc) rc = session_view_fork(s, tenant, made->from, &view, &f, err);
        if (rc) return calls_set_param(err, rc, "from");
        snapshot = session_snapshot_ref(view.snapshot);
        memcpy(source.name, view.name, sizeof source.name);
        source.file_version = view.file_version;
        session_view_fini(&view);
    } else if (!(snapshot = session_snapshot_new(0))) {
        return rod_fail_no_memory(err);
    }
    snprintf(f.tenant, sizeof f.tenant, "%s", tenant);
    snprintf(f.id, sizeof f.id, "%s", id);
    f.used_s = f.created_s;
    f.ttl_s = made->has_ttl ? made->ttl_s : s->config.ttl_s;
    if (made->has_keep || !made->from) f.keep = made->has_keep ? made->keep_turns : s->config.keep_turns;
    struct session *x;
    rc = session_hold_begin(s, tenant, id, &x, err);
    if (rc) {
        session_snapshot_release(snapshot);
        return rc;
    }
    rc = session_hold_check(s, x, err);
    session_lock(s);
    const bool exists = x->exists && !session_expired(&x->metadata, session_now_s(s));
    session_unlock(s);
    const bool later = made->from && s->config.lazy &&
                       !session_fenced(s); /* else the fork is on disk before its answer, as a turn is */
    if (!rc && exists) rc = rod_fail_at(err, ROD_EEXISTS, "id", "There is a session %s already.", id);
    if (!rc) rc = session_budget_claim(s, x, made->max_sessions, err);
    if (rc)
        session_snapshot_release(snapshot);
    else
        rc = session_call_put(s, x, &f, snapshot, NULL, &source, later, err);
    if (rc || !session_on_disk(s) || !later) session_hold_end(s, x);
    if (!rc) session_call_describe(&f, false, true, session_on_disk(s) && !later, out);
    return rc;
}

/* ---- changing ---- */

/* By the holder: the same version with other metadata. The file is written again, with its state. */
static int calls_change_held(struct sessions *s, struct session *x, const char *id,
                             const struct rod_session_change *change, struct session_metadata *f,
                             struct rod_error *err) {
    int rc = session_hold_refresh(s, x, true, err);
    if (rc) return rc;
    session_lock(s);
    const bool exists = x->exists && !session_expired(&x->metadata, session_now_s(s));
    struct session_snapshot *snapshot = exists ? session_snapshot_ref(x->snapshot) : NULL;
    struct session_answers *answers = exists ? session_answers_ref(x->answers) : NULL;
    *f = x->metadata;
    session_unlock(s);
    if (!exists) return session_view_not_found(id, err);
    if (!snapshot) return rod_fail(err, ROD_ENOROOM, "Host memory has no room for the session's state.");
    if (change->has_pin) f->pinned = change->pin;
    if (change->has_ttl) f->ttl_s = change->ttl_s;
    if (change->has_keep) session_places_keep(f, change->keep_turns);
    const int64_t now_s = session_now_s(s);
    if (now_s > f->used_s) f->used_s = now_s; /* as the time of its file will be */
    return session_call_put(s, x, f, snapshot, answers, NULL, false, err);
}

int sessions_change(struct sessions *s, const char *tenant, const char *id, const struct rod_session_change *change,
                    struct rod_session_info *out, struct rod_error *err) {
    struct session *x;
    struct session_metadata f;
    if (!change->has_pin && !change->has_ttl && !change->has_keep) return sessions_get(s, tenant, id, out, err);
    int rc = session_call_check_name(tenant, id, "id", err);
    if (!rc) rc = session_hold_begin(s, tenant, id, &x, err);
    if (rc) return rc;
    rc = calls_change_held(s, x, id, change, &f, err);
    session_hold_end(s, x);
    if (!rc) session_call_describe(&f, false, true, session_on_disk(s), out);
    return rc;
}

/* ---- looking ---- */

int sessions_get(struct sessions *s, const char *tenant, const char *id, struct rod_session_info *out,
                 struct rod_error *err) {
    struct session_view view;
    int rc = session_call_check_name(tenant, id, "id", err);
    if (!rc) rc = session_view_await(s, tenant, id, err);
    if (!rc) rc = session_view_take_live(s, tenant, id, false, &view, err);
    if (rc) return rc;
    session_call_describe(&view.metadata, view.busy, view.in_host, view.durable, out);
    session_view_fini(&view);
    return 0;
}

int sessions_list(struct sessions *s, const char *tenant, const char *after, size_t limit,
                  struct rod_session_info **infos, size_t *n, bool *more, struct rod_error *err) {
    int rc = session_fenced(s) ? session_tenants_read(s, tenant, err) : session_scan_changes(s, true, err);
    if (rc) return rc; /* other servers' too */
    const struct session **found = NULL;
    session_lock(s);
    rc = session_table_list(&s->table, tenant, after, limit, session_now_s(s), &found, n, more, err);
    *infos = rc ? NULL : calloc(*n + 1, sizeof **infos);
    if (!rc && !*infos) rc = rod_fail_no_memory(err);
    for (size_t i = 0; !rc && i < *n; i++)
        session_call_describe(&found[i]->metadata, session_busy(found[i]), found[i]->snapshot != NULL,
                              session_durable(found[i]), &(*infos)[i]);
    session_unlock(s);
    free(found);
    return rc;
}

/* By the holder. live: there was a session to delete. */
static int calls_delete_held(struct sessions *s, struct session *x, bool *live, struct rod_error *err) {
    int rc = session_hold_refresh(s, x, false, err);
    const bool damaged = rc == ROD_ESTATE; /* or another model's; nobody but its owner finds it under this name */
    session_lock(s);
    const bool exists = x->exists || damaged, expired = x->exists && session_expired(&x->metadata, session_now_s(s));
    const bool has_file = x->file_version.n_bytes != 0 || damaged;
    session_unlock(s);
    *live = exists && !expired;
    if ((!rc || damaged) && exists && session_on_disk(s) && has_file)
        rc = session_store_remove(&s->store, x->name, damaged ? NULL : &x->file_version, err);
    if (rc == ROD_ENOTFOUND) rc = 0;
    if (rc || !exists) return rc;
    if (session_fenced(s)) session_tenants_removed(s, x->metadata.tenant);
    session_hold_forget(s, x);
    return 0;
}

int sessions_delete(struct sessions *s, const char *tenant, const char *id, struct rod_error *err) {
    enum { TRIES = 3 };
    struct session *x;
    bool live = false;
    int rc = session_call_check_name(tenant, id, "id", err);
    if (!rc) rc = session_view_await(s, tenant, id, err);
    if (!rc) rc = session_hold_begin(s, tenant, id, &x, err);
    if (rc) return rc;
    for (int i = 0; i < TRIES && (!i || rc == ROD_ECONFLICT); i++) rc = calls_delete_held(s, x, &live, err);
    session_hold_end(s, x);
    return !rc && !live ? session_view_not_found(id, err) : rc;
}

int sessions_answer(struct sessions *s, const char *tenant, const char *id, struct rod_answer *out,
                    struct rod_error *err) {
    struct session_view view;
    struct session_answer_found found;
    *out = (struct rod_answer){0};
    int rc = session_call_check_name(tenant, id, "id", err);
    if (!rc) rc = session_view_await(s, tenant, id, err);
    if (!rc) rc = session_view_take_answers(s, tenant, id, &view, err);
    if (rc) return rc;
    if (session_answers_first(view.answers, &found)) rc = session_answer_read(&found, out, err);
    session_view_fini(&view);
    return rc;
}

/* ---- moving ---- */

int sessions_export(struct sessions *s, const char *tenant, const char *id, void **bytes, size_t *n,
                    struct rod_error *err) {
    struct session_view view;
    int rc = session_call_check_name(tenant, id, "id", err);
    if (!rc) rc = session_view_await(s, tenant, id, err);
    if (!rc) rc = session_view_take_live(s, tenant, id, true, &view, err);
    if (rc) return rc;
    session_places_forget(&view.metadata); /* their states stay */
    const struct session_write write = {.metadata = &view.metadata, .snapshot = view.snapshot, .answers = view.answers};
    rc = session_store_export(&s->store, &write, bytes, n, err);
    session_view_fini(&view);
    return rc;
}

/* By the holder, in a fenced home: which version is there, to be replaced; a damaged one is removed. */
static int calls_meet(struct sessions *s, struct session *x, struct rod_error *err) {
    int rc = session_hold_refresh(s, x, false, err);
    if (rc != ROD_ESTATE) return rc;
    session_hold_forget(s, x);
    rc = session_store_remove(&s->store, x->name, NULL, err);
    return rc == ROD_ENOTFOUND ? 0 : rc;
}

int sessions_import(struct sessions *s, const char *tenant, const char *id, const void *bytes, size_t n,
                    struct rod_session_info *out, struct rod_error *err) {
    struct session_read read;
    struct session *x;
    int rc = session_call_check_name(tenant, id, "id", err);
    if (!rc) rc = session_store_parse(&s->store, bytes, n, "the file", &read, err);
    if (rc) return rc;
    const bool same = !strcmp(read.metadata.id, id) && !strcmp(read.metadata.tenant, tenant);
    if (!same) { /* a copy: the answers were another session's */
        snprintf(read.metadata.parent, sizeof read.metadata.parent, "%s", read.metadata.id);
        session_answers_release(read.answers);
        read.answers = NULL;
    }
    snprintf(read.metadata.tenant, sizeof read.metadata.tenant, "%s", tenant);
    snprintf(read.metadata.id, sizeof read.metadata.id, "%s", id);
    read.metadata.used_s = session_now_s(s);
    session_places_forget(&read.metadata);
    rc = session_hold_begin(s, tenant, id, &x, err);
    if (rc) {
        session_read_fini(&read);
        return rc;
    }
    if (session_fenced(s)) rc = calls_meet(s, x, err);
    if (!rc) rc = session_budget_claim(s, x, UINT64_MAX, err);
    if (rc)
        session_read_fini(&read);
    else
        rc = session_call_put(s, x, &read.metadata, read.snapshot, read.answers, NULL, false, err);
    session_hold_end(s, x);
    if (!rc) session_call_describe(&read.metadata, false, true, session_on_disk(s), out);
    return rc;
}
