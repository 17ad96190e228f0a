/* sessions_rewind.c - see sessions.h: back to the state of an earlier turn, as a new version. */
#include "session_internal.h"
#include "engine/base/fail.h"
#include "engine/session/store/session_places.h"

/* Where the session stands, by its holder. Answers that left host memory with the state are read from the file. */
static int rewind_look(struct sessions *s, struct session *x, const char *id, struct session_metadata *f,
                       struct session_answers **answers, struct rod_error *err) {
    int rc = session_hold_check(s, x, err);
    if (rc) return rc;
    session_lock(s);
    const bool exists = x->exists && !session_expired(&x->metadata, session_now_s(s));
    const bool at_hand = x->snapshot != NULL;
    *f = x->metadata;
    *answers = exists ? session_answers_ref(x->answers) : NULL;
    session_unlock(s);
    if (!exists) return session_view_not_found(id, err);
    if (at_hand || *answers) return 0;
    struct session_read read;
    rc = session_store_read(&s->store, x->name, false, &read, err);
    if (rc) return rc;
    *answers = session_answers_ref(read.answers);
    session_read_fini(&read);
    return 0;
}

/* What was asked for, in the words of the request. */
static int rewind_not_kept(const struct session_metadata *f, const struct rod_session_rewind *to, size_t nearest,
                           struct rod_error *err) {
    const char *field = to->by_turns ? "turns" : "version";
    const unsigned long long asked = to->by_turns ? to->turns : to->version;
    if (!f->n_kept)
        return rod_fail_at(err, ROD_ENOTKEPT, field, "%s %llu is not kept: session %s keeps %s.", field, asked, f->id,
                           f->keep ? "no earlier turn now" : "no turns (keep_turns)");
    const struct session_place *at = &f->kept[nearest];
    return rod_fail_at(err, ROD_ENOTKEPT, field,
                       "%s %llu is not kept: of session %s the nearest kept turn is version %llu, %llu turns back.",
                       field, asked, f->id, (unsigned long long)at->version, (unsigned long long)(f->turn - at->turn));
}

static int rewind_find(const struct session_metadata *f, const struct rod_session_rewind *to, size_t *at,
                       struct rod_error *err) {
    const bool before = to->by_turns && to->turns > f->turn;
    const uint64_t value = !to->by_turns ? to->version : before ? 0 : f->turn - to->turns;
    *at = session_places_nearest(f, to->by_turns, value);
    const struct session_place *found = *at < f->n_kept ? &f->kept[*at] : NULL;
    if (found && !before && (to->by_turns ? found->turn : found->version) == value) return 0;
    return rewind_not_kept(f, to, *at, err);
}

/* The state, and in *f what goes with it. ROD_ENOTFOUND: it is gone. */
static int rewind_state(struct sessions *s, struct session *x, uint64_t version, struct session_metadata *f,
                        struct session_snapshot **snapshot, struct rod_error *err) {
    if (session_on_disk(s)) {
        struct session_read read;
        const int rc = session_store_read_kept(&s->store, x->name, version, &read, err);
        if (rc) return rc;
        session_count(&s->loads, 1);
        *snapshot = session_snapshot_ref(read.snapshot);
        f->open = read.metadata.open;
        f->tools = read.metadata.tools;
        session_read_fini(&read);
    } else {
        session_lock(s);
        const struct session_kept *kept = session_table_kept(x, version);
        if (kept) {
            *snapshot = session_snapshot_ref(kept->snapshot);
            f->open = kept->open;
            f->tools = kept->tools;
        }
        session_unlock(s);
        if (!kept) return ROD_ENOTFOUND;
    }
    f->n_tok = (*snapshot)->n_tok;
    f->pending = (*snapshot)->pending >= 0;
    f->state_bytes = session_snapshot_bytes(*snapshot);
    return 0;
}

/* A place whose state another server, or the budget, has removed is none. */
static int rewind_take(struct sessions *s, struct session *x, const struct rod_session_rewind *to,
                       struct session_metadata *f, struct session_snapshot **snapshot, struct rod_error *err) {
    for (;;) {
        size_t at;
        int rc = rewind_find(f, to, &at, err);
        if (rc) return rc;
        const uint64_t version = f->kept[at].version;
        rc = rewind_state(s, x, version, f, snapshot, err);
        if (!rc) session_places_go_back(f, at);
        if (rc != ROD_ENOTFOUND) return rc;
        session_places_drop(f, at);
        session_lock(s);
        session_table_unkeep(&s->table, x, version);
        session_unlock(s);
    }
}

static int rewind_held(struct sessions *s, struct session *x, const struct rod_session_rewind *to,
                       struct session_metadata *f, struct session_answers **answers, struct rod_error *err) {
    struct session_snapshot *snapshot = NULL;
    if (to->has_expected && to->expected_version != f->version)
        return rod_fail_at(err, ROD_EVERSION, "expected_version", "Session %s is at version %llu, not %llu.", f->id,
                           (unsigned long long)f->version, (unsigned long long)to->expected_version);
    const struct session_metadata before = *f;
    int rc = rewind_take(s, x, to, f, &snapshot, err);
    if (rc) return rc;
    const struct session_place *back = &before.kept[session_places_nearest(&before, true, f->turn)];
    struct session_answers *known = *answers ? session_answers_go_back(*answers, back->version) : NULL;
    if (*answers && !known) {
        session_snapshot_release(snapshot);
        return rod_fail_no_memory(err);
    }
    const int64_t now_s = session_now_s(s);
    if (now_s > f->used_s) f->used_s = now_s;
    rc = session_call_put(s, x, f, snapshot, known, NULL, false, err);
    if (!rc) session_count(&s->rewinds, 1);
    return rc;
}

int sessions_rewind(struct sessions *s, const char *tenant, const char *id, const struct rod_session_rewind *to,
                    struct rod_session_info *out, struct rod_error *err) {
    struct session *x;
    struct session_metadata f;
    struct session_answers *answers = NULL;
    int rc = session_call_check_name(tenant, id, "id", err);
    if (!rc) rc = session_hold_begin(s, tenant, id, &x, err);
    if (rc) return rc;
    rc = rewind_look(s, x, id, &f, &answers, err);
    if (!rc) rc = rewind_held(s, x, to, &f, &answers, err);
    session_answers_release(answers);
    session_hold_end(s, x);
    if (!rc) session_call_describe(&f, false, true, session_on_disk(s), out);
    return rc;
}
