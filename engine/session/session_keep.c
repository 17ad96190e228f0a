/* session_keep.c - see session_internal.h: the keeper, a thread that acts on time. Turns that wait are tried
 * again or time out; idle sessions are written, expired ones removed; the folder is kept within its budget and read. */
#include "session_internal.h"

#define NS_MS ((uint64_t)1000000u)
enum {
    TICK_MS = 250,    /* no turn waits */
    WAIT_MS = 10,     /* turns wait for a lease, for room, or with a deadline */
    EXPIRE_MS = 1000, /* for expired sessions */
    WATCH_MS = 250,   /* for what other servers did in the folder */
    SCAN_MS = 30000,  /* all of the folder, for servers on other machines */
    IDLE_S = 5        /* not used for so long: written */
};

static void keep_write_idle_locked(struct sessions *s, uint64_t now_ns) {
    const int64_t before_s = session_now_s(s) - IDLE_S;
    const bool all = s->flushing || !s->config.lazy || s->table.n_dirty >= SESSIONS_MANY_DIRTY;
    for (struct session *x = session_oldest(&s->table, SESSION_DIRTY); x;
         x = session_newer(&s->table, x, SESSION_DIRTY)) {
        const bool due = all || x->metadata.used_s <= before_s;
        if (due && session_idle(x) && (!x->failed_ns || now_ns - x->failed_ns > SESSIONS_RETRY_WRITE_NS))
            session_queue_write_locked(s, x);
    }
}

/* True: some turn waits for a time. */
static bool keep_retry_turns_locked(struct sessions *s, uint64_t now_ns) {
    bool timed = false;
    for (struct list_link *at = list_first(&s->waiting), *next; at; at = next) {
        struct session_turn *t = LIST_OF(at, struct session_turn, waiting);
        next = list_next(&s->waiting, at);
        timed |= t->deadline_ns || t->stage == SESSION_STAGE_RETRY;
        if (t->deadline_ns && now_ns >= t->deadline_ns) {
            t->rc = rod_fail(&t->err, ROD_ETIMEDOUT, "Session %s did not become free in time.", t->ask->session);
            session_queue_fail_locked(s, t);
        } else if (t->stage == SESSION_STAGE_RETRY && now_ns >= t->retry_ns) {
            session_queue_reopen_locked(s, t);
        }
    }
    return timed;
}

/* Without the lock. failed: the last time; an error is logged once, as each turn that needs the folder reports it. */
static bool keep_watch_folder(struct sessions *s, bool scan, bool failed) {
    struct rod_error err;
    session_budget_keep_host(s);
    const int rc = scan ? session_scan_all(s, &err) : session_scan_changes(s, false, &err);
    if (rc && !failed) session_log(s, 3, "%s", err.message);
    if (!rc && scan) session_folder_sweep(s);
    if (!rc && scan) session_kept_sweep(s);
    return rc != 0;
}

static void *keep_thread(void *arg) {
    struct sessions *s = arg;
    uint64_t expired_ns = 0, watched_ns = 0, scanned_ns = clock_now_ns();
    bool failed = false;
    session_lock(s);
    while (!s->ending) {
        const uint64_t now_ns = clock_now_ns();
        const bool timed = keep_retry_turns_locked(s, now_ns);
        const bool second = now_ns - expired_ns > EXPIRE_MS * NS_MS;
        if (session_on_disk(s) && (second || s->flushing || s->table.n_dirty >= SESSIONS_MANY_DIRTY))
            keep_write_idle_locked(s, now_ns);
        session_budget_keep_disk_locked(s);
        if (second) {
            if (!session_fenced(s))
                session_budget_expire_locked(s); /* a store is waited for elsewhere (session_sweep.c) */
            expired_ns = now_ns;
        }
        if (now_ns - watched_ns > WATCH_MS * NS_MS) {
            const bool scan = session_on_disk(s) && !session_fenced(s) && now_ns - scanned_ns > SCAN_MS * NS_MS;
            session_unlock(s);
            failed = keep_watch_folder(s, scan, failed);
            watched_ns = clock_now_ns();
            if (scan) scanned_ns = watched_ns;
            session_lock(s);
        }
        if (!s->ending) session_wait_locked(s, &s->keep, clock_now_ns() + (timed ? WAIT_MS : TICK_MS) * NS_MS);
    }
    session_unlock(s);
    return NULL;
}

int session_keep_start(struct sessions *s, struct rod_error *err) {
    assert(!s->has_keeper);
    s->has_keeper = !pthread_create(&s->keeper, NULL, keep_thread, s);
    return s->has_keeper ? 0 : rod_fail(err, ROD_EINTERNAL, "The threads of the sessions did not start.");
}

void session_keep_stop(struct sessions *s) {
    if (s->has_keeper) pthread_join(s->keeper, NULL);
    s->has_keeper = false;
}
