/* session_kept.c - see session_internal.h: the states of earlier turns. With a folder a state is a file, which is the
 * session's file of that time under one more name, and takes no host memory; the session's file lists the places, so
 * that a crash between any two steps leaves a file too much at most. Without a folder it is the snapshot of that time.
 */
#include "session_internal.h"
#include "engine/session/store/session_lease.h"
#include "engine/session/store/session_places.h"

#include <string.h>

/* A tenant's kept states take at most this part of each budget. */
enum { QUOTA = 4 };

/* ---- a turn's end ---- */

static bool kept_snapshot(struct sessions *s, struct session *x) {
    session_lock(s);
    const struct session_kept kept = {.version = x->metadata.version,
                                      .snapshot = session_snapshot_ref(x->snapshot),
                                      .open = x->metadata.open,
                                      .tools = x->metadata.tools};
    const bool known = session_table_keep(&s->table, x, &kept, &(struct session_file_version){0});
    session_unlock(s);
    if (!known) session_snapshot_release(kept.snapshot);
    return known;
}

/* Of a copy in a store. */
static uint64_t kept_inode(const uint8_t name[SESSION_NAME_BYTES], uint64_t version) {
    uint64_t half;
    memcpy(&half, name + SESSION_NAME_HALF_BYTES, sizeof half);
    return half ^ (version + 1) * UINT64_C(0x9e3779b97f4a7c15);
}

/* v: of the session's file. */
static bool kept_file(struct sessions *s, struct session *x, struct session_file_version v) {
    struct rod_error err;
    const struct session_kept kept = {.version = v.version};
    if (session_store_keep(&s->store, x->name, &v, &err)) {
        session_log(s, 1, "session %s: version %llu is not kept: %s", x->metadata.id, (unsigned long long)v.version,
                    err.message);
        return false;
    }
    if (v.base_inode) {
        v.inode = v.base_inode;
        v.disk_bytes = v.base_bytes;
    }
    if (session_fenced(s)) v.inode = kept_inode(x->name, v.version); /* a copy, and no other name */
    session_lock(s);
    const bool known = session_table_keep(&s->table, x, &kept, &v);
    session_unlock(s);
    if (!known) session_store_drop_kept(&s->store, x->name, v.version);
    return known;
}

bool session_kept_begin(struct sessions *s, struct session *x) {
    assert(x->hold == SESSION_TURN);
    session_lock(s);
    const bool keeps = x->exists && x->metadata.keep && !session_table_kept(x, x->metadata.version);
    const struct session_file_version v = x->file_version;
    const bool durable = session_durable(x) && v.version == x->metadata.version;
    session_unlock(s);
    if (!keeps) return false;
    if (session_on_disk(s)) return durable && kept_file(s, x, v);
    return kept_snapshot(s, x);
}

/* In a fenced home another server may have kept that version with its own turn: a sweep finds what nobody has. */
void session_kept_cancel(struct sessions *s, struct session *x) {
    session_lock(s);
    struct session_kept *kept = session_table_kept(x, x->metadata.version);
    if (kept) kept->stays = session_fenced(s);
    session_table_unkeep(&s->table, x, x->metadata.version);
    session_unlock(s);
}

/* ---- budgets ---- */

bool session_kept_evict_locked(struct sessions *s, const char *tenant) {
    struct session *x = session_table_to_unkeep(&s->table, tenant);
    assert(session_lock_held(s));
    if (x) session_table_unkeep(&s->table, x, x->metadata.kept[session_places_victim(&x->metadata)].version);
    return x != NULL;
}

static bool kept_over_quota_locked(const struct sessions *s, const char *tenant) {
    const struct session_kept_sum *sum = session_table_kept_of(&s->table, tenant);
    struct state_pool_counts pool = {0};
    if (!sum) return false;
    if (!session_on_disk(s) && s->config.pool) state_pool_count(s->config.pool, &pool);
    const uint64_t n_bytes = session_on_disk(s) ? s->config.disk_bytes : pool.bytes, most = s->config.max_sessions;
    return (n_bytes && sum->n_bytes > n_bytes / QUOTA) || (most && sum->n > most / QUOTA);
}

void session_kept_commit_locked(struct sessions *s, struct session *x) {
    for (size_t i = x->metadata.n_kept; i-- > 0;)
        if (!session_table_kept(x, x->metadata.kept[i].version)) session_places_drop(&x->metadata, i);
    while (kept_over_quota_locked(s, x->metadata.tenant) && session_kept_evict_locked(s, x->metadata.tenant)) continue;
}

/* ---- what the folder has ---- */

/* In a store each listed place counts as there: a way back to one that is not finds out. None is left to look at. */
static size_t kept_believe_locked(struct sessions *s, const struct session_place *places, size_t n,
                                  const uint8_t name[SESSION_NAME_BYTES]) {
    struct session *x = n ? session_table_find_name(&s->table, name) : NULL;
    for (size_t i = 0; i < n; i++) {
        const uint64_t n_bytes = x->metadata.state_bytes + SESSION_ENTRY_BYTES;
        const struct session_file_version v = {
            .inode = kept_inode(name, places[i].version), .n_bytes = n_bytes, .disk_bytes = n_bytes};
        session_table_keep(&s->table, x, &(struct session_kept){.version = places[i].version}, &v);
    }
    return 0;
}

void session_kept_learn(struct sessions *s, const char *tenant, const char *id) {
    uint8_t name[SESSION_NAME_BYTES];
    struct session_place unknown[SESSION_MAX_KEPT];
    size_t n = 0;
    session_lock(s);
    const struct session *x = session_table_find(&s->table, tenant, id);
    for (size_t i = 0; x && x->named && i < x->metadata.n_kept; i++)
        if (!session_table_kept(x, x->metadata.kept[i].version)) unknown[n++] = x->metadata.kept[i];
    if (n) memcpy(name, x->name, sizeof name);
    if (session_fenced(s)) n = kept_believe_locked(s, unknown, n, name);
    session_unlock(s);
    for (size_t i = 0; i < n; i++) session_kept_changed(s, name, unknown[i].version);
}

void session_kept_changed(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES], uint64_t version) {
    struct session_file_version found;
    const int rc = session_store_glance_kept(&s->store, name, version, &found);
    session_lock(s);
    struct session *x = session_table_find_name(&s->table, name);
    const bool listed = x && x->exists && session_places_find(&x->metadata, version) < x->metadata.n_kept;
    if (listed && !rc) session_table_keep(&s->table, x, &(struct session_kept){.version = version}, &found);
    if (listed && rc == ROD_ENOTFOUND) session_table_unkeep(&s->table, x, version);
    session_unlock(s);
}

static void kept_sweep_one(void *arg, const uint8_t name[SESSION_NAME_BYTES], uint64_t version) {
    struct sessions *s = arg;
    char text[SESSION_FILE_NAME_BYTES];
    int lease;
    session_lock(s);
    const struct session *x = session_table_find_name(&s->table, name);
    const bool listed = x && x->exists && session_places_find(&x->metadata, version) < x->metadata.n_kept;
    session_unlock(s);
    if (listed || session_lease_take(s->dir, session_store_name(&s->store, name, text), &lease, NULL)) return;
    if (session_store_kept_left(&s->store, name, version)) session_store_drop_kept(&s->store, name, version);
    session_lease_end(s->dir, text, lease);
}

void session_kept_sweep(struct sessions *s) { session_store_list_kept(&s->store, kept_sweep_one, s); }
