/* session_mark.c - see session_internal.h: marks of lazy turns in a fenced home.
 *
 * A lazy turn ends before its session is written, so another server must know that a version comes. The mark is a small
 * file beside the session's, made only where there is none: of the servers that ran a turn from one version one gets
 * it, and the others' turns end in ROD_ECONFLICT before anybody was told of them. A server that finds another's mark
 * waits for the write, for a bounded time, and its client comes again; MARK_NS after the mark was seen first its server
 * is taken for lost, with that turn, as `lazy` says. A mark is no lock: a write's condition alone decides, so a server
 * that comes back too late loses. */
#include "session_internal.h"
#include "engine/base/fail.h"

#include <string.h>
#include <xxhash.h>

#define MARK_END ".lazy"
#define MARK_NS  ((uint64_t)20 * 1000000000u)

int session_mark_look(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES], struct session_mark *mark,
                      struct rod_error *err) {
    char file[SESSION_FILE_NAME_BYTES], text[SESSION_MARK_BYTES + 1] = "";
    struct state_disk_version version;
    size_t n = 0;
    assert(session_fenced(s));
    *mark = (struct session_mark){0};
    const int rc = state_home_peek(&s->store.home, session_store_file(&s->store, name, MARK_END, file), text,
                                   SESSION_MARK_BYTES, &n, &version, err);
    if (rc) return rc == ROD_ENOTFOUND ? 0 : rc;
    session_mark_parse(s->server_id, text, n, mark);
    memcpy(mark->etag, version.etag, sizeof mark->etag);
    mark->key = XXH3_64bits(name, SESSION_NAME_BYTES) ^ XXH3_64bits(version.etag, strlen(version.etag)) ^
                XXH3_64bits(&version.mtime_ns, sizeof version.mtime_ns);
    return 0;
}

void session_mark_remove(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES], const struct session_mark *mark) {
    char file[SESSION_FILE_NAME_BYTES];
    struct state_disk_version version = {0};
    memcpy(version.etag, mark->etag, sizeof version.etag);
    state_home_remove(&s->store.home, session_store_file(&s->store, name, MARK_END, file), &version, NULL);
}

/* In the place of the one that was seen first longest ago. */
static uint64_t mark_seen_ns(struct sessions *s, const struct session_mark *mark, uint64_t now_ns) {
    struct session_mark_seen *oldest = &s->seen[0], *found = NULL;
    session_lock(s);
    for (int i = 0; i < SESSIONS_MAX_SEEN; i++) {
        struct session_mark_seen *at = &s->seen[i];
        if (at->first_ns && at->key == mark->key) found = at;
        if (at->first_ns < oldest->first_ns) oldest = at;
    }
    if (!found) *(found = oldest) = (struct session_mark_seen){mark->key, now_ns};
    const uint64_t first_ns = found->first_ns;
    session_unlock(s);
    return first_ns;
}

int session_mark_wait(struct sessions *s, const char *id, const struct session_mark *mark, uint64_t stored,
                      uint64_t most_ns, uint64_t *since_ns, struct rod_error *err) {
    const uint64_t now_ns = clock_now_ns();
    if (mark->ours || !mark->there || mark->version <= stored) return 0;
    if (!*since_ns) *since_ns = now_ns;
    if (now_ns - mark_seen_ns(s, mark, now_ns) >= MARK_NS) return 0;
    return now_ns - *since_ns < most_ns
               ? rod_fail(err, ROD_EBUSY, "Another server is writing a turn of session %.64s.", id)
               : rod_fail(err, ROD_EIO, "Another server has a turn of session %.64s and has not written it yet.", id);
}

int session_mark_heed(struct sessions *s, const char *tenant, const char *id, uint64_t most_ns, uint64_t *since_ns,
                      struct rod_error *err) {
    uint8_t name[SESSION_NAME_BYTES];
    struct session_mark mark;
    struct session_metadata stored = {0};
    if (!session_fenced(s) || !s->config.lazy) return 0;
    session_names_name(&s->names, tenant, id, name);
    session_lock(s);
    const struct session *x = session_table_find(&s->table, tenant, id);
    const bool dirty = x && x->exists && x->dirty;
    session_unlock(s);
    int rc = dirty ? 0 : session_mark_look(s, name, &mark, err);
    if (rc || dirty || !mark.there || mark.ours) return rc;
    rc = session_store_peek_metadata(&s->store, name, &stored, err);
    if (rc == ROD_EIO) return rc;
    return session_mark_wait(s, id, &mark, rc ? 0 : stored.version, most_ns, since_ns, err);
}

void session_mark_end(struct sessions *s, struct session *x) {
    struct session_mark mark = {0};
    if (!session_fenced(s) || !*x->mark) return;
    memcpy(mark.etag, x->mark, sizeof mark.etag);
    x->mark[0] = 0;
    session_mark_remove(s, x->name, &mark);
}

/* The store has the version that the table has. */
static int mark_check_version(struct sessions *s, struct session *x, struct rod_error *err) {
    struct session_file_version found;
    const int rc = session_store_glance(&s->store, x->name, &found, err);
    session_lock(s);
    const bool same = rc ? !x->exists : x->exists && session_file_version_same(&found, &x->file_version);
    session_unlock(s);
    if (rc && rc != ROD_ENOTFOUND) return rc;
    return same ? 0 : ROD_ECONFLICT;
}

/* Whether the mark that is there is this server's: then it is held. */
static bool mark_is_ours(struct sessions *s, struct session *x) {
    struct session_mark mark;
    if (session_mark_look(s, x->name, &mark, NULL) || !mark.there || !mark.ours) return false;
    memcpy(x->mark, mark.etag, sizeof x->mark);
    return true;
}

/* A claim that failed at once may have met a moment's fault: another server could have the mark meanwhile, so the store
 * is asked until it answers, or is out of reach. */
static void mark_settle(struct sessions *s, struct session *x, struct state_disk_item *item, uint64_t began_ns) {
    while ((item->rc == ROD_EIO || item->rc == ROD_EUNSURE) && session_fence_is_near(s, began_ns)) {
        struct session_mark mark;
        if (session_mark_look(s, x->name, &mark, NULL)) continue;
        if (mark.there)
            item->rc = ROD_EEXISTS;
        else
            state_home_write(&s->store.home, item, 1);
    }
}

/* held: it was before. Where the store does not say whose it is, a lazy turn goes on in memory. */
static int mark_outcome(struct sessions *s, struct session *x, const struct state_disk_item *item, bool held,
                        bool alone, struct rod_error *err) {
    int rc = item->rc;
    if (!rc) memcpy(x->mark, item->version.etag, sizeof x->mark);
    if ((rc == ROD_EEXISTS || rc == ROD_ECONFLICT) && mark_is_ours(s, x)) rc = 0;
    if (alone && (rc == ROD_EIO || rc == ROD_EUNSURE)) return 0;
    if (rc && rc != ROD_EEXISTS && rc != ROD_ECONFLICT) return rod_fail(err, ROD_EIO, "%.400s", item->err.message);
    if (rc) x->mark[0] = 0; /* another server's */
    if (!rc && alone && !held) {
        rc = mark_check_version(s, x, err);
        if (rc) session_mark_end(s, x);
        if (rc && rc != ROD_ECONFLICT) return rc;
    }
    return rc ? rod_fail(err, ROD_ECONFLICT,
                         "Another server has a turn of session %.64s. Nothing of this one is kept: repeat it.",
                         x->metadata.id)
              : 0;
}

void session_mark_claim(struct sessions *s, struct session *const *sessions, const uint64_t *versions, bool alone,
                        int *rcs, struct rod_error *errs, size_t n) {
    char names[SESSIONS_BATCH][SESSION_FILE_NAME_BYTES], texts[SESSIONS_BATCH][SESSION_MARK_BYTES + 1];
    struct state_bytes parts[SESSIONS_BATCH];
    struct state_disk_item items[SESSIONS_BATCH];
    assert(session_fenced(s) && n <= SESSIONS_BATCH);
    for (size_t i = 0; i < n; i++) {
        session_mark_write(s->server_id, versions[i], texts[i]);
        parts[i] = (struct state_bytes){texts[i], SESSION_MARK_BYTES};
        items[i] =
            (struct state_disk_item){.name = session_store_file(&s->store, sessions[i]->name, MARK_END, names[i]),
                                     .parts = &parts[i],
                                     .n_parts = 1,
                                     .only_new = !*sessions[i]->mark,
                                     .replaces = sessions[i]->mark};
    }
    const uint64_t began_ns = clock_now_ns();
    state_home_write(&s->store.home, items, n);
    for (size_t i = 0; alone && i < n; i++) mark_settle(s, sessions[i], &items[i], began_ns);
    for (size_t i = 0; i < n; i++)
        rcs[i] = mark_outcome(s, sessions[i], &items[i], !items[i].only_new, alone, &errs[i]);
}
