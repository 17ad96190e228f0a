/* session_keep.c - what time and budgets do to sessions: waiting turns that are asked for again or come too late,
 * sessions that are written when idle, removed when they expire, or to keep the folder within its budget. */
#include "session_internal.h"
#include "session_lease.h"

#include <stdlib.h>
#include <string.h>

#define NS_MS 1000000u
#define NS_S  ((uint64_t)1000000000u)
enum {
    TICK_MS = 250,    /* nobody waits */
    WAIT_MS = 10,     /* turns wait for a lease, for room, or with a deadline */
    EXPIRE_MS = 1000, /* for those whose time is over */
    WATCH_MS = 250,   /* for what other servers did in the folder */
    SCAN_MS = 30000,  /* all of the folder, for servers on other machines */
    IDLE_S = 5        /* not used for so long: written */
};

/* ---- room in host memory ---- */

/* Not while the disk has just failed: it is asked again every few seconds, not by everyone who wants room. */
static struct session *session_to_write_locked(const struct sessions *s, uint64_t now_ns) {
    if (s->disk_failed_ns && now_ns - s->disk_failed_ns < SESSIONS_RETRY_WRITE_NS) return NULL;
    return session_table_to_write(&s->table, now_ns > SESSIONS_RETRY_WRITE_NS ? now_ns - SESSIONS_RETRY_WRITE_NS : 0);
}

static void tell_replaced(struct sessions *s) {
    session_count(&s->evicted, 1);
    session_trouble(s, SESSION_REPLACED, "host memory is full of sessions: the one used longest ago is removed");
}

bool sessions_make_room(void *sessions, size_t n_bytes) {
    (void)n_bytes;
    struct sessions *s = sessions;
    struct session_snapshot *snapshot = NULL;
    bool evicted = false;
    pthread_mutex_lock(&s->lock);
    struct session *x = session_table_to_drop(&s->table);
    if (x) {
        snapshot = session_table_drop_snapshot(&s->table, x);
    } else if (session_on_disk(s)) {
        x = session_to_write_locked(s, session_now_ns());
        if (x) {
            x->leave = true;
            session_io_write_locked(s, x);
        }
        s->starved = true; /* whatever is written next goes */
    } else if ((x = session_table_to_remove(&s->table, false, 0))) {
        snapshot = session_table_unset(&s->table, x);
        session_table_remove(&s->table, x);
        evicted = true;
    }
    pthread_mutex_unlock(&s->lock);
    if (evicted) tell_replaced(s);
    session_snapshot_release(snapshot);
    return snapshot != NULL;
}

bool session_replace(struct sessions *s) {
    struct session_snapshot *snapshot = NULL;
    pthread_mutex_lock(&s->lock);
    struct session *x = session_on_disk(s) ? NULL : session_table_to_replace(&s->table);
    if (x) {
        snapshot = session_table_unset(&s->table, x);
        session_table_remove(&s->table, x);
    }
    pthread_mutex_unlock(&s->lock);
    session_snapshot_release(snapshot);
    if (x) tell_replaced(s);
    return x != NULL;
}

/* What was added beside state buffers since they were made. */
static void keep_host_budget(struct sessions *s) {
    while (s->config.pool && state_pool_over(s->config.pool) && state_pool_ask(s->config.pool, 0)) continue;
}

/* ---- the folder ---- */

struct found {
    uint8_t name[SESSION_NAME_BYTES];
    struct session_metadata metadata;
    struct session_file_version file_version;
};
struct scan {
    struct sessions *s;
    uint64_t number;
    struct found **found;
    size_t n_found, room;
    bool no_memory;
    uint64_t n_refused;
    struct rod_error refused; /* why the first one was */
};

/* Whether the table, or the list of what was refused, has this file already. */
static bool known_file(struct scan *scan, const uint8_t name[SESSION_NAME_BYTES],
                       const struct session_file_version *file_version) {
    struct sessions *s = scan->s;
    pthread_mutex_lock(&s->lock);
    struct session *x = session_table_find_name(&s->table, name);
    if (x) x->scan = scan->number;
    const bool known =
        (x && (x->hold != SESSION_FREE || x->dirty || session_file_version_alike(&x->file_version, file_version))) ||
        session_refusals_know(&s->refusals, name, file_version, scan->number);
    pthread_mutex_unlock(&s->lock);
    return known;
}

/* The table has this version; only somebody used it. */
static bool only_used(struct scan *scan, const uint8_t name[SESSION_NAME_BYTES]) {
    struct sessions *s = scan->s;
    struct session_file_version file_version;
    if (session_store_stat(&s->store, name, &file_version, NULL)) return false;
    pthread_mutex_lock(&s->lock);
    struct session *x = session_table_find_name(&s->table, name);
    const bool known = x && x->exists && session_file_version_same(&x->file_version, &file_version);
    if (known) session_met_locked(s, x, &file_version);
    pthread_mutex_unlock(&s->lock);
    return known;
}

static void refuse(struct scan *scan, const uint8_t name[SESSION_NAME_BYTES], const struct rod_error *err) {
    struct session_file_version file_version;
    if (session_store_stat(&scan->s->store, name, &file_version, NULL) || !session_refuse(scan->s, name, &file_version))
        return;
    if (!scan->n_refused++) scan->refused = *err;
}

static void tell_refused(const struct scan *scan) {
    if (scan->n_refused == 1)
        session_log(scan->s, 2, "state_dir: refused and left alone: %s", scan->refused.message);
    else if (scan->n_refused)
        session_log(scan->s, 2, "state_dir: %llu files are refused and left alone; the first: %s",
                    (unsigned long long)scan->n_refused, scan->refused.message);
}

static void scan_one(void *arg, const uint8_t name[SESSION_NAME_BYTES]) {
    struct scan *scan = arg;
    struct sessions *s = scan->s;
    struct session_file_version file_version;
    struct session_read read;
    struct rod_error err;
    if (session_store_glance(&s->store, name, &file_version, &err) || known_file(scan, name, &file_version)) return;
    if (only_used(scan, name)) return;
    int rc = session_store_read(&s->store, name, false, &read, &err);
    if (!rc && session_names_superseded(&s->store, read.metadata.tenant, read.metadata.id, name)) {
        rc = rod_fail(&err, ROD_ESTATE, "%s: its session has another file, by the folder's key", read.metadata.id);
        session_read_fini(&read);
    }
    if (rc == ROD_ESTATE) refuse(scan, name, &err);
    if (rc) return;
    if (scan->n_found == scan->room) {
        const size_t room = scan->room ? 2 * scan->room : 64;
        struct found **more = realloc(scan->found, room * sizeof(struct found *));
        if (more) scan->found = more, scan->room = room;
    }
    struct found *found = scan->n_found < scan->room ? malloc(sizeof *found) : NULL;
    if (found) {
        *found = (struct found){.metadata = read.metadata, .file_version = read.file_version};
        memcpy(found->name, name, sizeof found->name);
        scan->found[scan->n_found++] = found;
    }
    scan->no_memory |= !found;
    session_read_fini(&read);
}

static int by_use(const void *a, const void *b) {
    const int64_t x = (*(struct found *const *)a)->metadata.used_s, y = (*(struct found *const *)b)->metadata.used_s;
    return (x > y) - (x < y);
}

/* Those used longest ago first, so that each has its place at the end of the table's order. */
static void learn_found(struct scan *scan) {
    struct sessions *s = scan->s;
    if (scan->n_found) qsort(scan->found, scan->n_found, sizeof(struct found *), by_use);
    for (size_t i = 0; i < scan->n_found; i++) {
        const struct found *f = scan->found[i];
        struct session_snapshot *old = NULL;
        pthread_mutex_lock(&s->lock);
        struct session *x = session_table_find(&s->table, f->metadata.tenant, f->metadata.id);
        if (!x) x = session_table_add(&s->table, f->metadata.tenant, f->metadata.id);
        if (x && x->hold == SESSION_FREE && !x->line.head && !(x->exists && x->dirty)) {
            old = session_table_set(&s->table, x, &f->metadata, NULL, NULL);
            session_table_name(&s->table, x, f->name);
            session_table_set_file(&s->table, x, &f->file_version);
            x->scan = scan->number;
        }
        pthread_mutex_unlock(&s->lock);
        session_snapshot_release(old);
        free(scan->found[i]);
    }
    free(scan->found);
}

/* In a file that the scan has not met; EVERY: whatever was met. What is dirty is newer in memory, has its lease, and is
 * written again. */
#define EVERY UINT64_MAX
static bool missing(const struct session *x, uint64_t number) {
    return x->scan < number && x->hold == SESSION_FREE && !x->line.head && x->exists && !x->dirty &&
           x->file_version.n_bytes;
}

static void forget_file(struct sessions *s, uint64_t number, const uint8_t name[SESSION_NAME_BYTES],
                        const struct session_file_version *file_version) {
    struct session_file_version found;
    if (session_store_stat(&s->store, name, &found, NULL) != ROD_ENOTFOUND) return; /* something else is the matter */
    struct session_snapshot *old = NULL;
    pthread_mutex_lock(&s->lock);
    struct session *x = session_table_find_name(&s->table, name);
    if (x && missing(x, number) && session_file_version_alike(&x->file_version, file_version)) {
        old = session_table_unset(&s->table, x);
        session_table_remove(&s->table, x);
    }
    pthread_mutex_unlock(&s->lock);
    session_snapshot_release(old);
}

/* Sessions whose files are gone. */
static void forget_missing(struct sessions *s, uint64_t number) {
    struct lost {
        uint8_t name[SESSION_NAME_BYTES];
        struct session_file_version file_version;
    } *lost = NULL;
    size_t n = 0, room = 0;
    pthread_mutex_lock(&s->lock);
    for (const struct session *x = s->table.oldest[SESSION_ALL]; x; x = x->newer[SESSION_ALL])
        room += missing(x, number);
    if (room) lost = malloc(room * sizeof *lost);
    for (const struct session *x = s->table.oldest[SESSION_ALL]; lost && x; x = x->newer[SESSION_ALL]) {
        if (!missing(x, number)) continue;
        memcpy(lost[n].name, x->name, sizeof x->name);
        lost[n++].file_version = x->file_version;
    }
    pthread_mutex_unlock(&s->lock);
    for (size_t i = 0; i < n; i++) forget_file(s, number, lost[i].name, &lost[i].file_version);
    free(lost);
}

int session_scan(struct sessions *s, struct rod_error *err) {
    if (!session_on_disk(s)) return 0;
    pthread_mutex_lock(&s->lock);
    const uint64_t number = ++s->n_scans;
    pthread_mutex_unlock(&s->lock);
    struct scan scan = {.s = s, .number = number};
    int rc = session_dir_here(s, err);
    if (!rc) rc = session_store_list(&s->store, scan_one, &scan, err);
    learn_found(&scan);
    tell_refused(&scan);
    if (!rc) forget_missing(s, number);
    pthread_mutex_lock(&s->lock);
    if (!rc) session_refusals_keep(&s->refusals, number);
    pthread_mutex_unlock(&s->lock);
    return rc || !scan.no_memory ? rc : rod_fail(err, ROD_ENOMEM, "No memory for the sessions in state_dir.");
}

/* ---- what has changed in it ---- */

static void changed(void *arg, const char *file) {
    struct scan *scan = arg;
    struct sessions *s = scan->s;
    uint8_t name[SESSION_NAME_BYTES];
    struct session_file_version known = {0}, file_version;
    if (!session_store_parse_name(file, name)) return;
    pthread_mutex_lock(&s->lock);
    const struct session *x = session_table_find_name(&s->table, name);
    if (x) known = x->file_version;
    pthread_mutex_unlock(&s->lock);
    const int rc = session_store_glance(&s->store, name, &file_version, NULL);
    if (!rc)
        scan_one(scan, name);
    else if (rc == ROD_ENOTFOUND && !session_dir_here(s, NULL)) /* gone, and not with the whole folder */
        forget_file(s, EVERY, name, &known);
}

/* Reading all of it takes a twentieth of a thread's time at most, whoever asks. */
static bool may_read(const struct sessions *s, uint64_t now_ns) {
    const uint64_t pause_ns = 20 * s->reading_ns > NS_S ? 20 * s->reading_ns : NS_S;
    return !s->read_ns || now_ns - s->read_ns >= pause_ns;
}

int session_catch_up(struct sessions *s, bool asked, struct rod_error *err) {
    if (!session_on_disk(s)) return 0;
    int rc = session_dir_here(s, err);
    if (rc) return rc;
    pthread_mutex_lock(&s->watch_lock);
    pthread_mutex_lock(&s->lock);
    struct scan scan = {.s = s, .number = s->n_scans};
    pthread_mutex_unlock(&s->lock);
    const bool known = session_watch_take(&s->watch, s->store.dir, changed, &scan);
    learn_found(&scan);
    tell_refused(&scan);
    s->unread |= !known;
    const uint64_t begin_ns = session_now_ns();
    if (s->unread && (asked || s->watch.on) && may_read(s, begin_ns)) {
        rc = session_scan(s, err);
        const uint64_t end_ns = session_now_ns();
        s->read_ns = rc ? 0 : end_ns;
        s->reading_ns = end_ns - begin_ns;
        s->unread = rc != 0;
    }
    pthread_mutex_unlock(&s->watch_lock);
    return rc;
}

/* ---- removing ---- */

/* x is free; with the lock, which is given up in between. Its file may have changed in another server's hands, or been
 * used there: then it stays. */
static int remove_locked(struct sessions *s, struct session *x, bool expired) {
    x->hold = SESSION_CALL;
    const struct session_file_version known = x->file_version;
    const int64_t used_s = x->metadata.used_s;
    const uint64_t own_bytes = session_table_own_bytes(x);
    s->leaving_bytes += own_bytes;
    pthread_mutex_unlock(&s->lock);
    struct rod_error err;
    int rc = session_take_lease(s, x, &err);
    if (!rc) rc = session_refresh(s, x, false, &err);
    pthread_mutex_lock(&s->lock);
    const bool same = !rc && x->exists && session_file_version_same(&known, &x->file_version);
    const bool go = same && (expired ? session_expired(&x->metadata, session_now_s()) : x->metadata.used_s == used_s);
    char id[SESSION_MAX_ID + 1];
    memcpy(id, x->metadata.id, sizeof id);
    pthread_mutex_unlock(&s->lock);
    if (go && session_on_disk(s) && known.n_bytes) rc = session_store_remove(&s->store, x->name, &err);
    struct session_snapshot *old = NULL;
    pthread_mutex_lock(&s->lock);
    s->leaving_bytes -= own_bytes;
    if (go && !rc) old = session_table_unset(&s->table, x);
    pthread_mutex_unlock(&s->lock);
    session_snapshot_release(old);
    session_unhold(s, x);
    if (go && !rc) {
        session_count(expired ? &s->expired : &s->evicted, 1);
        session_log(s, expired ? 0 : 1, "session %s is removed: %s", id,
                    expired ? "its time is over" : "state_disk_bytes are used up, and it was used longest ago");
    } else if (rc && rc != ROD_EBUSY && rc != ROD_ESTATE) {
        session_trouble(s, SESSION_NOT_REMOVED, "session %s is not removed: %s", id, err.message);
    }
    pthread_mutex_lock(&s->lock);
    return rc;
}

static void expire_locked(struct sessions *s) {
    struct session *x;
    while (!s->ending && (x = session_table_to_expire(&s->table, session_now_s()))) remove_locked(s, x, true);
}

static bool over_disk_budget(const struct sessions *s) {
    const uint64_t limit = s->config.disk_bytes, n = s->table.files.all + s->table.reserved_bytes;
    return limit && n > limit && n - limit > s->leaving_bytes;
}

static void keep_disk_budget_locked(struct sessions *s) {
    if (!over_disk_budget(s)) return;
    const uint64_t round = ++s->n_rounds;
    struct session *x;
    while (!s->ending && over_disk_budget(s) && (x = session_table_to_remove(&s->table, true, round))) {
        x->tried = round;                                 /* another server may have it */
        if (remove_locked(s, x, false) == ROD_EIO) break; /* so would the others */
    }
}

void session_reserve(struct sessions *s, struct session *const *sessions, struct session_write *writes, size_t n) {
    const uint64_t limit = s->config.disk_bytes;
    if (!limit) return;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < n; i++) {
        struct session_write *w = &writes[i];
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
            w->rc =
                rod_fail(&w->err, ROD_ENOROOM, "%s",
                         pinned ? "Pinned sessions use up state_disk_bytes." : "It has more than state_disk_bytes.");
    }
    keep_disk_budget_locked(s);
    pthread_mutex_unlock(&s->lock);
}

static void write_idle_locked(struct sessions *s, uint64_t now_ns) {
    const int64_t before_s = session_now_s() - IDLE_S;
    const bool all = s->flushing || !s->config.lazy || s->table.n_dirty >= SESSIONS_MANY_DIRTY;
    for (struct session *x = s->table.oldest[SESSION_DIRTY]; x; x = x->newer[SESSION_DIRTY]) {
        const bool due = all || x->metadata.used_s <= before_s;
        if (due && x->hold == SESSION_FREE && !x->line.head &&
            (!x->failed_ns || now_ns - x->failed_ns > SESSIONS_RETRY_WRITE_NS))
            session_io_write_locked(s, x);
    }
}

/* ---- waiting turns ---- */

static bool look_at_parked_locked(struct sessions *s, uint64_t now_ns) {
    bool timed = false;
    for (struct session_turn *t = s->parked, *next; t; t = next) {
        next = t->parked_next;
        timed |= t->deadline_ns || t->stage == SESSION_STAGE_WAIT;
        if (t->deadline_ns && now_ns >= t->deadline_ns) {
            t->rc = rod_fail(&t->err, ROD_ETIMEDOUT, "Session %s did not become free in time.", t->ask->session);
            session_turn_fail_locked(s, t);
        } else if (t->stage == SESSION_STAGE_WAIT && now_ns >= t->retry_ns) {
            session_turn_unpark_locked(s, t);
            t->stage = SESSION_STAGE_OPEN;
            session_io_push_locked(s, t);
        }
    }
    return timed;
}

/* ---- the thread ---- */

static void wait_locked(struct sessions *s, uint32_t ms) {
    const uint64_t until_ns = session_now_ns() + (uint64_t)ms * NS_MS;
    const struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    pthread_cond_timedwait(&s->keep, &s->lock, &until);
}

void *session_keeper(void *arg) {
    struct sessions *s = arg;
    uint64_t expired_ns = 0, watched_ns = 0, scanned_ns = session_now_ns();
    bool failed = false;
    pthread_mutex_lock(&s->lock);
    while (!s->ending) {
        const uint64_t now_ns = session_now_ns();
        const bool timed = look_at_parked_locked(s, now_ns);
        const bool second = now_ns - expired_ns > (uint64_t)EXPIRE_MS * NS_MS;
        if (session_on_disk(s) && (second || s->flushing || s->table.n_dirty >= SESSIONS_MANY_DIRTY))
            write_idle_locked(s, now_ns);
        keep_disk_budget_locked(s);
        if (second) {
            expire_locked(s);
            expired_ns = now_ns;
        }
        if (now_ns - watched_ns > (uint64_t)WATCH_MS * NS_MS) {
            const bool scan = session_on_disk(s) && now_ns - scanned_ns > (uint64_t)SCAN_MS * NS_MS;
            pthread_mutex_unlock(&s->lock);
            struct rod_error err;
            keep_host_budget(s);
            const int rc = scan ? session_scan(s, &err) : session_catch_up(s, false, &err);
            if (rc && !failed) session_log(s, 3, "%s", err.message); /* once: each turn that needs it says so too */
            if (!rc && scan) session_sweep_bases(s);
            failed = rc != 0;
            watched_ns = session_now_ns();
            if (scan) scanned_ns = watched_ns;
            pthread_mutex_lock(&s->lock);
        }
        if (!s->ending) wait_locked(s, timed ? WAIT_MS : TICK_MS);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void sessions_flush(struct sessions *s) {
    pthread_mutex_lock(&s->lock);
    s->flushing = true;
    pthread_cond_signal(&s->keep);
    pthread_mutex_unlock(&s->lock);
}
