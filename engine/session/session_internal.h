/* session_internal.h - the parts of sessions.h, for session*.c and sessions*.c of this folder.
 *
 * sessions*.c are the calls of sessions.h; the parts below them are named after their files, in this order, each above
 * those that it may call:
 *
 *   gone < queue, log < kept, folder, fence < mark, hold < view < scan, tenants < budget < turn < io, keep, sweep <
 * sessions
 *
 * Ownership: sessions.c makes and frees struct sessions. Threads: everything is under `lock` but config, the store and
 * the counters; session_table.h says what the holder of a session alone may touch. Functions that end in _locked want
 * the lock; the others take it. No lock is held over a file.
 */
#ifndef SESSION_INTERNAL_H
#define SESSION_INTERNAL_H

#include "session_refusals.h"
#include "session_table.h"
#include "sessions.h"
#include "engine/base/clock.h"
#include "engine/base/log_limit.h"
#include "engine/session/store/session_mark_text.h"
#include "engine/session/store/session_store.h"
#include "engine/session/store/session_watch.h"
#include "engine/state/state_guard.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>

enum {
    SESSIONS_DIR_BYTES = 1024,
    SESSIONS_MAX_THREADS = 32,
    SESSIONS_MAX_LISTED = 16,
    SESSIONS_MAX_SEEN = 64,
    SESSIONS_BATCH = 16
};
/* Each dirty session keeps a lease, which is an open file. At MANY dirty sessions all are written; at MOST a lazy turn
 * is written as any other. */
enum { SESSIONS_MANY_DIRTY = 128, SESSIONS_MOST_DIRTY = 256 };

/* After a failed write the disk, or that session, is not tried again for so long. */
#define SESSIONS_RETRY_WRITE_NS ((uint64_t)5 * 1000000000u)

/* Failures that may come again and again; each is logged once a minute. */
enum session_trouble {
    SESSION_LOST,
    SESSION_NOT_WRITTEN,
    SESSION_NOT_SAVED,
    SESSION_NOT_MADE,
    SESSION_NOT_REMOVED,
    SESSION_NO_ROOM,
    SESSION_REFUSED,
    SESSION_REPLACED,
    SESSION_N_TROUBLES
};

/* When a tenant's sessions in the store were looked at last. */
struct session_listed {
    char tenant[SESSION_MAX_TENANT + 1];
    uint64_t counted_ns, read_ns; /* their number; all of their headers, which the table has; 0 = never */
    uint64_t n;
};

/* When a mark was seen first. */
struct session_mark_seen {
    uint64_t key, first_ns; /* 0 = none */
};

struct sessions {
    struct sessions_config config;
    struct session_store store;   /* whose home may be none */
    char dir[SESSIONS_DIR_BYTES]; /* of a home that is a folder */
    struct session_names names;
    char layout[256];
    pthread_mutex_t lock;
    pthread_t locker; /* while `locked` */
    bool locked;
    pthread_cond_t work;    /* for the threads */
    pthread_cond_t keep;    /* for the keeper */
    pthread_cond_t changed; /* a session is free, a turn came back */
    struct session_table table;
    struct list jobs;    /* turns in OPEN and END */
    struct list writes;  /* sessions whose hold is WRITE */
    struct list waiting; /* turns in QUEUED and RETRY */
    uint64_t n_out;      /* turns between arrive and RUN, and between end and OVER */
    struct session_refusals refusals;
    struct log_limit limits[SESSION_N_TROUBLES];
    uint64_t disk_failed_ns; /* when it last did not take a file; 0 = it took the last one */
    bool stopping;           /* no turn begins */
    bool flushing;           /* write all that is dirty */
    bool starved;            /* host memory is full and nothing there could go: the next session that is written goes */
    bool closing;            /* a session that cannot be written is given up */
    bool ending;             /* the threads end when there is no work */
    uint64_t n_scans, n_rounds;
    uint64_t n_lost; /* at close: sessions that were not written */
    int dir_fd;      /* of the folder at the start: keeps its file system mounted; -1 = none */
    uint64_t dir_device, dir_inode;
    atomic_bool names_other;    /* a store has another key of names than at the start */
    uint64_t leaving_bytes;     /* of files that are being removed for the budget */
    pthread_mutex_t watch_lock; /* over these; before `lock` */
    struct session_watch watch;
    bool unread;                  /* unknown files of the folder have changed */
    uint64_t read_ns, reading_ns; /* when all of it was read last, and how long that took */
    pthread_t threads[SESSIONS_MAX_THREADS], keeper;
    uint32_t n_threads;
    bool has_keeper;
    /* of a fenced home */
    struct state_guard guard;
    char server_id[17];              /* in marks; another one for each start */
    atomic_int_fast64_t clock_ahead; /* seconds by which the store's clock is ahead of this one */
    atomic_uint_fast64_t n_stored;   /* sessions in the store, as the last sweep and what this server did since say */
    struct session_listed listed[SESSIONS_MAX_LISTED];
    struct session_mark_seen seen[SESSIONS_MAX_SEEN];
    pthread_t sweeper;
    bool has_sweeper;
    atomic_uint_fast64_t saves, save_failures, no_room, loads, refused, expired, evicted, replays, asks, rewinds;
};

static inline void session_lock(struct sessions *s) {
    pthread_mutex_lock(&s->lock);
    assert(!s->locked);
    s->locker = pthread_self();
    s->locked = true;
}
/* By this thread. */
static inline bool session_lock_held(const struct sessions *s) {
    return s->locked && pthread_equal(s->locker, pthread_self());
}
/* session_gone.c, without the lock: what the table let go. */
void session_gone(struct sessions *s, struct session_kept *kept);
static inline void session_unlock(struct sessions *s) {
    assert(session_lock_held(s));
    struct session_kept *gone = s->table.gone;
    s->table.gone = NULL;
    s->locked = false;
    pthread_mutex_unlock(&s->lock);
    if (gone) session_gone(s, gone);
}
/* Waits for a condition of `lock`, at most until a time of clock_now_ns; 0 = for ever. */
void session_wait_locked(struct sessions *s, pthread_cond_t *condition, uint64_t until_ns);

static inline void session_count(atomic_uint_fast64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}
static inline bool session_on_disk(const struct sessions *s) { return s->store.home.calls != NULL; }
/* By conditions of its writes instead of leases. */
static inline bool session_fenced(const struct sessions *s) { return s->store.home.fenced; }
static inline struct session_turn *session_turn_of(struct list_link *link) {
    return link ? LIST_OF(link, struct session_turn, link) : NULL;
}

/* ---- session_log.c ---- */

void session_log(const struct sessions *s, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* An error in the log, at most once a minute for each trouble, with how often it was left out. Takes the lock. */
void session_log_trouble(struct sessions *s, enum session_trouble trouble, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* ---- session_queue.c: turns that wait, and the jobs of the threads ---- */

/* The turn waits for its session, behind the others. */
void session_queue_add_locked(struct sessions *s, struct session *session, struct session_turn *turn);
/* A question beside holds nothing, and is to be opened. */
void session_queue_look_locked(struct sessions *s, struct session_turn *turn);
/* The first turn of a free session's wait queue holds it, and is to be opened. */
void session_queue_start_locked(struct sessions *s, struct session *session);
/* The turn holds its session, or is a question beside, and is opened again at retry_ns. */
void session_queue_retry_locked(struct sessions *s, struct session_turn *turn, uint64_t retry_ns);
/* Now. */
void session_queue_reopen_locked(struct sessions *s, struct session_turn *turn);
/* A turn in QUEUED waits no more: it is the caller's. */
void session_queue_remove_locked(struct sessions *s, struct session_turn *turn);
/* A turn in QUEUED or RETRY will not begin; its error is set. It ends as all turns end. */
void session_queue_fail_locked(struct sessions *s, struct session_turn *turn);
/* The turn, of any other stage, is to be ended. */
void session_queue_end_locked(struct sessions *s, struct session_turn *turn);
/* The session is dirty, and held by nobody or the caller: now the threads hold it, and write it. */
void session_queue_write_locked(struct sessions *s, struct session *session);
/* Takes the first job out; of ends one thread's part, at most SESSIONS_BATCH. */
size_t session_queue_take_turns_locked(struct sessions *s, struct session_turn **turns);
size_t session_queue_take_writes_locked(struct sessions *s, struct session **sessions);

/* ---- session_kept.c: the states of earlier turns, which a session can go back to ---- */

/* By the holder, whose turn is about to make the next version: the present one is kept. False: it cannot be, or the
 * session keeps none. */
bool session_kept_begin(struct sessions *s, struct session *session);
/* That turn has failed. */
void session_kept_cancel(struct sessions *s, struct session *session);
/* That turn is committed: places whose state went meanwhile go too; the tenant's quota holds. */
void session_kept_commit_locked(struct sessions *s, struct session *session);
/* The table has read the session from its file: looks which of its places are there. */
void session_kept_learn(struct sessions *s, const char *tenant, const char *id);
/* A file of a kept turn has changed. */
void session_kept_changed(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES], uint64_t version);
/* One place goes, of the session used longest ago; of this tenant, or of all. False: there is none. */
bool session_kept_evict_locked(struct sessions *s, const char *tenant);
/* Removes files that no session lists: a crash of any server left them. */
void session_kept_sweep(struct sessions *s);

/* ---- session_folder.c: the folder, there or not ---- */

/* Makes the folder if it is missing, and tries whether it takes files. */
int session_folder_open(struct sessions *s, const char *dir, struct rod_error *err);
/* 0: the folder of the start is there, with the key of its files' names, or no folder is set. ROD_EIO: another folder,
 * as the empty mount point of a disk: no session is read from it or written to it. */
int session_folder_here(const struct sessions *s, struct rod_error *err);
/* session_store_write, if the folder is there. */
void session_folder_write(const struct sessions *s, struct session_write *writes, size_t n);
/* The outcome of a write: counted, and whether the disk takes files. */
void session_folder_wrote(struct sessions *s, struct session *session, const struct session_write *write);
/* Host memory is full of states that the disk does not take, so none can leave it: waiting is useless. */
bool session_folder_stuck_locked(const struct sessions *s);
/* Some session is being written because of age or budget. */
bool session_folder_writing_locked(const struct sessions *s);
/* A file was refused: counted, once. True: it is new. */
bool session_folder_refuse(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES],
                           const struct session_file_version *file_version);
/* And logged. */
void session_folder_refused(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES],
                            const struct session_file_version *file_version, const struct rod_error *err);
/* Removes states of forks that no file needs: a crash of any server left them. */
void session_folder_sweep(struct sessions *s);

/* ---- session_fence.c: a fenced home ---- */

/* By the store's clock, where there is one: servers may disagree. */
static inline int64_t session_now_s(const struct sessions *s) {
    return clock_unix_s() + (int64_t)atomic_load_explicit(&s->clock_ahead, memory_order_relaxed);
}
int session_fence_open(struct sessions *s, struct rod_error *err);
/* What failed since then failed at once, and the store is not known to be out of reach: to be tried again. */
static inline bool session_fence_is_near(struct sessions *s, uint64_t began_ns) {
    return clock_now_ns() - began_ns < (uint64_t)1000000000u && !state_guard_down(&s->guard, NULL);
}
/* Looks at the store's clock. */
void session_fence_set_clock(struct sessions *s);
/* By the holder: what the table has is out of date, or may be; the next turn reads the session again. */
void session_fence_forget(struct sessions *s, struct session *session);
/* By the holder: the store has the version that a lazy write may have left. */
bool session_fence_find_own(struct sessions *s, struct session *session, struct session_file_version *found);
/* The outcome of a read: bytes that were changed on the way or in the store are the store's failure, no bad state. */
int session_fence_judge(const struct session_read *read, int rc, struct rod_error *err);

/* ---- session_mark.c: which lazy turn of a fenced home comes next ---- */

/* Before its session is read: a version whose mark is gone by then is there. */
int session_mark_look(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES], struct session_mark *mark,
                      struct rod_error *err);
/* A turn waits so long for another server's write, and what holds a thread. */
#define SESSION_MARK_TURN_NS ((uint64_t)8 * 1000000000u)
#define SESSION_MARK_CALL_NS ((uint64_t)2 * 1000000000u)
/* Beyond the stored version the mark's is still to come: ROD_EBUSY, to look again soon; ROD_EIO after most_ns. 0: it is
 * there, or does not come. since_ns: of the first look, 0 before. */
int session_mark_wait(struct sessions *s, const char *id, const struct session_mark *mark, uint64_t stored,
                      uint64_t most_ns, uint64_t *since_ns, struct rod_error *err);
/* For whoever looks at a session that it does not hold. Errors likewise. */
int session_mark_heed(struct sessions *s, const char *tenant, const char *id, uint64_t most_ns, uint64_t *since_ns,
                      struct rod_error *err);
/* The mark is of a version that is written already, or that does not come. */
void session_mark_remove(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES], const struct session_mark *mark);
/* By the holder of these sessions, which are to get the next version: of several servers one gets the mark, and keeps
 * it until its writes are done. alone: the turn ends before its write, so the store must have the known version still.
 */
void session_mark_claim(struct sessions *s, struct session *const *sessions, const uint64_t *versions, bool alone,
                        int *rcs, struct rod_error *errs, size_t n);
/* The write is over, or does not come. */
void session_mark_end(struct sessions *s, struct session *session);

/* ---- session_hold.c: holding a session, its lease, and what its file says ---- */

/* The holder is done: the next turn of the wait queue holds the session, or nobody. The lease is given back already, or
 * kept because the session is dirty. */
void session_hold_release_locked(struct sessions *s, struct session *session);
/* By the holder, without the lock: gives the lease back unless the session is dirty. */
void session_hold_end_lease(struct sessions *s, struct session *session);
/* By the holder; the name of the file is known from then on. 0: it has the lease, or there is no folder; ROD_EBUSY,
 * ROD_EIO. */
int session_hold_take_lease(struct sessions *s, struct session *session, struct rod_error *err);
/* Holds the session for a call, with its lease; an entry is made for a new one. ROD_EBUSY while a turn holds it
 * or waits. */
int session_hold_begin(struct sessions *s, const char *tenant, const char *id, struct session **out,
                       struct rod_error *err);
/* The reverse. */
void session_hold_end(struct sessions *s, struct session *session);
/* By the holder: a lazy turn may go on in memory while the store does not say which version it has. */
bool session_hold_goes_on(struct sessions *s, const struct session *session);
/* By the holder: reads the file, if it is another than the table's. with_snapshot: the snapshot is wanted too.
 * Afterwards `exists` is true to the file. ROD_ESTATE where the file is refused, ROD_ENOROOM without room for its
 * state. */
int session_hold_refresh(struct sessions *s, struct session *session, bool with_snapshot, struct rod_error *err);
/* Without the snapshot, where the caller neither removes nor replaces it. Changed bytes are ROD_EIO, as for a turn. */
int session_hold_check(struct sessions *s, struct session *session, struct rod_error *err);
/* By the holder: the table gets what was read. */
void session_hold_learn(struct sessions *s, struct session *session, bool with_snapshot, struct session_read *read);
/* By the holder: the session exists no more; its entry stays. */
void session_hold_forget(struct sessions *s, struct session *session);
/* The file is of the known version: if another server used it meanwhile, that counts here too. */
void session_hold_met_locked(struct sessions *s, struct session *session,
                             const struct session_file_version *file_version);

/* ---- session_view.c: looking at a session that others may hold ---- */

/* A committed version, out of table or file. */
struct session_view {
    struct session_metadata metadata;
    struct session_snapshot *snapshot;        /* with_snapshot: shared; else NULL */
    struct session_answers *answers;          /* with_snapshot, or where they were at hand */
    struct session_file_version file_version; /* of the file that has this version; n_bytes 0: none */
    uint8_t name[SESSION_NAME_BYTES];         /* of that file */
    bool busy, in_host, durable;
};
int session_view_take(struct sessions *s, const char *tenant, const char *id, bool with_snapshot,
                      struct session_view *out, struct rod_error *err);
void session_view_fini(struct session_view *view);
/* session_view_take, where an expired session that is not busy is ROD_ENOTFOUND. */
int session_view_take_live(struct sessions *s, const char *tenant, const char *id, bool with_snapshot,
                           struct session_view *out, struct rod_error *err);
/* Takes the answers and no snapshot: a state that is on file alone stays there. */
int session_view_take_answers(struct sessions *s, const char *tenant, const char *id, struct session_view *out,
                              struct rod_error *err);
/* Takes the snapshot for a fork: the source counts as used, and the fork's metadata get its version, lengths and
 * parent. */
int session_view_fork(struct sessions *s, const char *tenant, const char *from, struct session_view *view,
                      struct session_metadata *fork, struct rod_error *err);
int session_view_not_found(const char *id, struct rod_error *err); /* ROD_ENOTFOUND */
/* Waits until another server's lazy turn of the session is written, for calls. */
int session_view_await(struct sessions *s, const char *tenant, const char *id, struct rod_error *err);

/* ---- session_scan.c: what the folder holds ---- */

/* Reads the headers of all files. */
int session_scan_all(struct sessions *s, struct rod_error *err);
/* Reads what changed in the folder since the last time; all of it where that is unknown. asked: a caller waits for
 * it. */
int session_scan_changes(struct sessions *s, bool asked, struct rod_error *err);

/* ---- session_tenants.c: a tenant's sessions in a fenced home ---- */

/* The table has the tenant's sessions as they were some seconds ago, or later. */
int session_tenants_read(struct sessions *s, const char *tenant, struct rod_error *err);
/* How many there are, likewise; this server's own are counted at once. */
int session_tenants_count(struct sessions *s, const char *tenant, uint64_t *n, struct rod_error *err);
/* The outcome of a write: what lost, or may have, is forgotten. */
void session_tenants_wrote(struct sessions *s, struct session *session, const struct session_write *write);
void session_tenants_removed(struct sessions *s, const char *tenant);
/* The table gets what was read of the store, unless somebody has that session. */
void session_tenants_learn(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES], const struct session_read *read);
/* Entries of sessions that lie in the store alone go, past a number. */
void session_tenants_trim(struct sessions *s);

/* ---- session_budget.c: how many sessions, how much memory, how much disk ---- */

/* By the holder: the session will be made. It counts from now on, within max_sessions, the tenant's limit (0: its quota
 * of max_sessions) and the memory that sessions may have. ROD_ESESSIONS, ROD_EKEYSESSIONS, ROD_ENOROOM. */
int session_budget_claim(struct sessions *s, struct session *session, uint64_t tenant_max, struct rod_error *err);
/* Host memory is wanted. True: something was released. */
bool session_budget_make_room(struct sessions *s);
/* Drops what was added beside state buffers since they were made. */
void session_budget_keep_host(struct sessions *s);
/* By the holder of these sessions, before their files are written: others make room for the files in the folder's
 * budget. The rc of a write that could never fit becomes ROD_ENOROOM. */
void session_budget_reserve(struct sessions *s, struct session *const *sessions, struct session_write *writes,
                            size_t n);
/* keep_disk and expire give the lock up in between. */
void session_budget_keep_disk_locked(struct sessions *s);
void session_budget_expire_locked(struct sessions *s);

/* ---- session_turn.c: on a thread ---- */

/* The turn is in OPEN, and holds its session. */
void session_turn_open(struct sessions *s, struct session_turn *turn);
/* Turns in END, at most SESSIONS_BATCH. */
void session_turn_end_all(struct sessions *s, struct session_turn **turns, size_t n);

/* ---- sessions_calls.c: for sessions_rewind.c ---- */

int session_call_check_name(const char *tenant, const char *id, const char *field, struct rod_error *err);
void session_call_describe(const struct session_metadata *metadata, bool busy, bool in_host, bool durable,
                           struct rod_session_info *out);
/* A fork's source: the file with the fork's state, if there is one (file_version.n_bytes). */
struct fork_source {
    uint8_t name[SESSION_NAME_BYTES];
    struct session_file_version file_version;
};
/* By the holder: the session is now this, and its file says so. later: it is written in the background, and the writer
 * holds it. snapshot and answers become the table's. */
int session_call_put(struct sessions *s, struct session *session, const struct session_metadata *metadata,
                     struct session_snapshot *snapshot, struct session_answers *answers,
                     const struct fork_source *source, bool later, struct rod_error *err);

/* ---- session_io.c, session_keep.c: the threads ---- */

int session_io_start(struct sessions *s, struct rod_error *err);
void session_io_stop(struct sessions *s); /* `ending` is set */
int session_keep_start(struct sessions *s, struct rod_error *err);
void session_keep_stop(struct sessions *s);
/* session_sweep.c: of a fenced home. */
int session_sweep_start(struct sessions *s, struct rod_error *err);
void session_sweep_stop(struct sessions *s);

#endif
