/* session_budget.c - see session_internal.h: max_sessions, state_host_bytes, state_disk_bytes, and time to live. */
#include "session_internal.h"
#include "engine/base/quota.h"

#include <string.h>

/* ---- how many ---- */

/* A tenant without a limit of its own has a quota of what others left free, where there are others. */
static int budget_check_tenant_locked(const struct sessions *s, const char *tenant, uint64_t tenant_max,
                                      struct rod_error *err) {
    const uint64_t most = s->config.max_sessions, mine = session_table_n_of(&s->table, tenant);
    if (tenant_max && mine >= tenant_max)
        return rod_fail(err, ROD_EKEYSESSIONS, "This key has its limit of %llu sessions.",
                        (unsigned long long)tenant_max);
    if (!tenant_max && *tenant && most && mine && !quota_fits(mine, session_table_n(&s->table), 1, most))
        return rod_fail(err, ROD_EKEYSESSIONS, "This key has its share of max_sessions: %llu of %llu.",
                        (unsigned long long)mine, (unsigned long long)most);
    return 0;
}

/* 0: the session counts. */
static int budget_count_locked(struct sessions *s, struct session *x, uint64_t tenant_max, enum state_pool_room *room,
                               struct rod_error *err) {
    const uint64_t most = s->config.max_sessions;
    assert(session_lock_held(s) && x->hold != SESSION_FREE);
    *room = STATE_POOL_FITS;
    if (x->counted) return 0;
    if (most && !session_fenced(s) && session_table_n(&s->table) >= most)
        return rod_fail(err, ROD_ESESSIONS, "There are %llu sessions, and max_sessions is %llu.",
                        (unsigned long long)session_table_n(&s->table), (unsigned long long)most);
    const int beyond = session_fenced(s) ? 0 : budget_check_tenant_locked(s, x->metadata.tenant, tenant_max, err);
    if (beyond) return beyond;
    *room = state_pool_place(s->config.pool, SESSION_PLACE_BYTES);
    if (*room != STATE_POOL_FITS)
        return rod_fail(err, ROD_ENOROOM, "state_host_bytes has no room for one more session.");
    session_table_count(&s->table, x);
    return 0;
}

static void budget_log_replaced(struct sessions *s) {
    session_count(&s->evicted, 1);
    session_log_trouble(s, SESSION_REPLACED, "host memory is full of sessions: removed the one used longest ago");
}

/* Without a folder: removes the session used longest ago for its entry alone. False: none can go. */
static bool budget_replace(struct sessions *s) {
    struct session_snapshot *snapshot = NULL;
    session_lock(s);
    struct session *x = session_on_disk(s) ? NULL : session_table_to_replace(&s->table);
    if (x) {
        snapshot = session_table_unset(&s->table, x);
        session_table_remove(&s->table, x);
    }
    session_unlock(s);
    session_snapshot_release(snapshot);
    if (x) budget_log_replaced(s);
    return x != NULL;
}

/* In a store others' sessions count too. */
static int budget_check_store(struct sessions *s, const struct session *x, uint64_t tenant_max, struct rod_error *err) {
    const uint64_t most = s->config.max_sessions, all = atomic_load_explicit(&s->n_stored, memory_order_relaxed);
    uint64_t mine = 0;
    if (most && all >= most)
        return rod_fail(err, ROD_ESESSIONS, "There are %llu sessions, and max_sessions is %llu.",
                        (unsigned long long)all, (unsigned long long)most);
    if (!*x->metadata.tenant && (!tenant_max || tenant_max == UINT64_MAX)) return 0;
    const int rc = session_tenants_count(s, x->metadata.tenant, &mine, err);
    if (rc) return rc;
    if (tenant_max && mine >= tenant_max)
        return rod_fail(err, ROD_EKEYSESSIONS, "This key has its limit of %llu sessions.",
                        (unsigned long long)tenant_max);
    if (!tenant_max && most && mine && !quota_fits(mine, all > mine ? all : mine, 1, most))
        return rod_fail(err, ROD_EKEYSESSIONS, "This key has its share of max_sessions: %llu of %llu.",
                        (unsigned long long)mine, (unsigned long long)most);
    return 0;
}

int session_budget_claim(struct sessions *s, struct session *x, uint64_t tenant_max, struct rod_error *err) {
    const int beyond = session_fenced(s) && !x->counted ? budget_check_store(s, x, tenant_max, err) : 0;
    if (beyond) return beyond;
    for (;;) {
        enum state_pool_room room;
        session_lock(s);
        const int rc = budget_count_locked(s, x, tenant_max, &room, err);
        assert(rc || x->counted);
        session_unlock(s);
        if (rc != ROD_ENOROOM) return rc;
        if (room == STATE_POOL_FULL && state_pool_ask(s->config.pool, SESSION_PLACE_BYTES)) continue;
        if (!budget_replace(s)) return rc;
    }
}

/* ---- host memory ---- */

/* Not while the disk has just failed: it is tried again every few seconds, not by every caller that wants room. */
static struct session *budget_to_write_locked(const struct sessions *s, uint64_t now_ns) {
    assert(session_lock_held(s));
    if (s->disk_failed_ns && now_ns - s->disk_failed_ns < SESSIONS_RETRY_WRITE_NS) return NULL;
    return session_table_to_write(&s->table, now_ns > SESSIONS_RETRY_WRITE_NS ? now_ns - SESSIONS_RETRY_WRITE_NS : 0);
}

bool session_budget_make_room(struct sessions *s) {
    struct session_snapshot *snapshot = NULL;
    bool evicted = false;
    session_lock(s);
    const bool unkept = !session_on_disk(s) && session_kept_evict_locked(s, NULL);
    struct session *x = unkept ? NULL : session_table_to_drop(&s->table);
    if (x) {
        snapshot = session_table_drop_snapshot(&s->table, x);
    } else if (session_on_disk(s)) { /* where kept turns take no memory */
        x = budget_to_write_locked(s, clock_now_ns());
        if (x) {
            x->drop = true;
            session_queue_write_locked(s, x);
        }
        s->starved = true; /* the next session that is written goes */
    } else if (!unkept && (x = session_table_to_remove(&s->table, false, 0))) {
        snapshot = session_table_unset(&s->table, x);
        session_table_remove(&s->table, x);
        evicted = true;
    }
    session_unlock(s);
    if (evicted) budget_log_replaced(s);
    session_snapshot_release(snapshot);
    return unkept || snapshot != NULL;
}

void session_budget_keep_host(struct sessions *s) {
    while (s->config.pool && state_pool_over(s->config.pool) && state_pool_ask(s->config.pool, 0)) continue;
}

/* ---- removing ---- */

/* x is free; the lock is given up in between. Another server may have changed the file, or used it: then it stays. */
static int budget_remove_locked(struct sessions *s, struct session *x, bool expired) {
    assert(session_lock_held(s) && x->exists && session_idle(x));
    x->hold = SESSION_CALL;
    const struct session_file_version known = x->file_version;
    const int64_t used_s = x->metadata.used_s;
    const uint64_t own_bytes = session_table_own_bytes(x);
    s->leaving_bytes += own_bytes;
    session_unlock(s);
    struct rod_error err;
    int rc = session_hold_take_lease(s, x, &err);
    if (!rc) rc = session_hold_refresh(s, x, false, &err);
    session_lock(s);
    const bool same = !rc && x->exists && session_file_version_same(&known, &x->file_version);
    const bool go = same && (expired ? session_expired(&x->metadata, session_now_s(s)) : x->metadata.used_s == used_s);
    char id[SESSION_MAX_ID + 1];
    memcpy(id, x->metadata.id, sizeof id);
    session_unlock(s);
    if (go && session_on_disk(s) && known.n_bytes)
        rc = session_store_remove(&s->store, x->name, &x->file_version, &err);
    struct session_snapshot *old = NULL;
    session_lock(s);
    assert(s->leaving_bytes >= own_bytes);
    s->leaving_bytes -= own_bytes;
    if (go && !rc) old = session_table_unset(&s->table, x);
    session_unlock(s);
    session_snapshot_release(old);
    if (rc == ROD_ECONFLICT) session_fence_forget(s, x); /* another server has it */
    if (go && !rc && session_fenced(s)) session_tenants_removed(s, x->metadata.tenant);
    session_hold_end(s, x);
    if (go && !rc) {
        session_count(expired ? &s->expired : &s->evicted, 1);
        session_log(s, expired ? 0 : 1, "session %s: removed: %s", id,
                    expired ? "it expired" : "state_disk_bytes are used up, and it was used longest ago");
    } else if (rc && rc != ROD_EBUSY && rc != ROD_ESTATE && rc != ROD_ECONFLICT) {
        session_log_trouble(s, SESSION_NOT_REMOVED, "session %s: not removed: %s", id, err.message);
    }
    session_lock(s);
    return rc;
}

void session_budget_expire_locked(struct sessions *s) {
    struct session *x;
    while (!s->ending && (x = session_table_to_expire(&s->table, session_now_s(s)))) budget_remove_locked(s, x, true);
}

/* ---- the disk ---- */

static bool budget_over_disk_locked(const struct sessions *s) {
    assert(session_lock_held(s));
    const uint64_t limit = s->config.disk_bytes,
                   beside = s->config.beside_bytes ? atomic_load(s->config.beside_bytes) : 0,
                   n = s->table.files.all + s->table.reserved_bytes + beside;
    return limit && n > limit && n - limit > s->leaving_bytes;
}

void session_budget_keep_disk_locked(struct sessions *s) {
    while (budget_over_disk_locked(s) && session_kept_evict_locked(s, NULL)) continue;
    if (!budget_over_disk_locked(s)) return;
    const uint64_t round = ++s->n_rounds;
    struct session *x;
    while (!s->ending && budget_over_disk_locked(s) && (x = session_table_to_remove(&s->table, true, round))) {
        x->tried = round;                                        /* another server may hold it */
        if (budget_remove_locked(s, x, false) == ROD_EIO) break; /* the others would fail too */
    }
}

void session_budget_reserve(struct sessions *s, struct session *const *sessions, struct session_write *writes,
                            size_t n) {
    const uint64_t limit = s->config.disk_bytes;
    if (!limit) return;
    session_lock(s);
    for (size_t i = 0; i < n; i++) {
        struct session_write *w = &writes[i];
        assert(sessions[i]->hold != SESSION_FREE && !sessions[i]->reserved_bytes && !w->rc);
        const uint64_t n_file = session_file_bytes(&s->config.form, w->metadata, w->snapshot, w->answers);
        const uint64_t n_bytes = session_store_disk_bytes(n_file);
        const uint64_t n_own =
            w->apart ? session_store_disk_bytes(n_file - session_snapshot_bytes(w->snapshot)) : n_bytes;
        const uint64_t pinned = session_table_pinned_bytes(&s->table, sessions[i]);
        const bool kept =
            w->apart && session_bytes_pinned(&s->table.files, w->file_version.base_inode, w->file_version.base_bytes);
        const uint64_t n_more = !w->apart ? n_bytes : kept ? n_own : n_own + w->file_version.base_bytes;
        if (n_more <= limit && pinned <= limit - n_more)
            session_table_reserve(&s->table, sessions[i], n_own);
        else
            w->rc = rod_fail(&w->err, ROD_ENOROOM, "%s",
                             pinned ? "Pinned sessions use up state_disk_bytes."
                                    : "The session is larger than state_disk_bytes.");
    }
    session_budget_keep_disk_locked(s);
    session_unlock(s);
}
