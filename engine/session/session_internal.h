/* session_internal.h - the parts of sessions.h, for session*.c and sessions.c.
 *
 * Who owns what: struct sessions is made and freed in sessions.c. Threads: everything under `lock`, but config, the
 * store and the counters; what a session's holder alone may touch is said in session_table.h. Functions that end in
 * _locked want the lock.
 */
#ifndef SESSION_INTERNAL_H
#define SESSION_INTERNAL_H

#include "session_refusals.h"
#include "session_store.h"
#include "session_watch.h"
#include "sessions.h"
#include "engine/base/log_limit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { SESSIONS_MAX_THREADS = 8, SESSIONS_BATCH = 16 };
/* Each dirty session keeps a lease, which is an open file. At MANY of them all are written; at MOST a lazy turn is
 * written as any other. */
enum { SESSIONS_MANY_DIRTY = 128, SESSIONS_MOST_DIRTY = 256 };

/* After a write failed the disk, or that session, is not asked again for so long. */
#define SESSIONS_RETRY_WRITE_NS ((uint64_t)5 * 1000000000u)

/* What may go wrong again and again; each is told once a minute. */
enum session_trouble {
    SESSION_NOT_WRITTEN,
    SESSION_NOT_SAVED,
    SESSION_NOT_MADE,
    SESSION_NOT_REMOVED,
    SESSION_NO_ROOM,
    SESSION_REFUSED,
    SESSION_REPLACED,
    SESSION_N_TROUBLES
};

struct sessions {
    struct sessions_config config;
    struct session_store store; /* dir "" = none */
    struct session_names names;
    char layout[256];
    pthread_mutex_t lock;
    pthread_cond_t work;    /* for the threads */
    pthread_cond_t keep;    /* for the keeper */
    pthread_cond_t changed; /* a session is free, a turn came back */
    struct session_table table;
    struct session_line jobs;             /* turns in OPEN and END */
    struct session *writes, *writes_last; /* by next_write, hold is WRITE */
    struct session_turn *parked;          /* in LINE and WAIT */
    uint64_t n_out;                       /* turns between arrive and RUN, and between end and OVER */
    struct session_refusals refusals;
    struct log_limit limits[SESSION_N_TROUBLES];
    uint64_t disk_failed_ns; /* when it last did not take a file; 0 = it took the last one */
    bool stopping;           /* no turn begins */
    bool flushing;           /* write all that is dirty */
    bool starved;            /* make_room found nothing that could go */
    bool scan;               /* the keeper is to read the folder */
    bool closing;            /* what cannot be written is given up */
    bool ending;             /* the threads end when there is no work */
    uint64_t n_scans, n_rounds, n_jobs;
    uint64_t n_lost; /* of closing: not written, and given up */
    int dir_fd;      /* of the folder at the start: its file system is not unmounted meanwhile; -1 = none */
    uint64_t dir_device, dir_inode;
    uint64_t leaving_bytes;     /* of files that are being removed for the budget */
    pthread_mutex_t watch_lock; /* over these; before `lock` */
    struct session_watch watch;
    bool unread;                  /* something has changed in the folder, and nobody knows what */
    uint64_t read_ns, reading_ns; /* when all of it was read last, and how long that took */
    pthread_t threads[SESSIONS_MAX_THREADS], keeper;
    uint32_t n_threads;
    bool has_keeper;
    atomic_uint_fast64_t saves, save_failures, no_room, loads, refused, expired, evicted, replays;
};

static inline void session_count(atomic_uint_fast64_t *counter, uint64_t n) {
    atomic_fetch_add_explicit(counter, n, memory_order_relaxed);
}

static inline int64_t session_now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec;
}

static inline uint64_t session_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline bool session_on_disk(const struct sessions *s) { return s->store.dir[0] != 0; }

void session_log(const struct sessions *s, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* An error in the log, at most once a minute for each trouble, with how often it was left out. Without the lock. */
void session_trouble(struct sessions *s, enum session_trouble what, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* 0: the folder that was there at the start is there, with the key of its files' names, or there is none. ROD_EIO:
 * another one, as an empty place where its disk was mounted, has no session, and is not to get any. */
int session_dir_here(const struct sessions *s, struct rod_error *err);
/* session_store_write, where the folder is there. */
void session_write_all(const struct sessions *s, struct session_write *writes, size_t n);
/* What became of a write: counted, and whether the disk takes files. Without the lock. */
void session_wrote(struct sessions *s, struct session *session, const struct session_write *write);
/* Host memory is full of what the disk does not take, and nothing there can go: nobody waits for that. */
bool session_stuck_locked(const struct sessions *s);
bool session_writing_locked(const struct sessions *s); /* some session is being written because of age or budget */

/* ---- sessions.c: holding ---- */
/* The holder is done: the next in line, or nobody. The lease is closed already, or kept because it is dirty. */
void session_release_locked(struct sessions *s, struct session *session);
/* For whoever holds it, without the lock: gives the lease back unless the session is dirty. */
void session_end_lease(struct sessions *s, struct session *session);
/* For whoever holds it, which has its file's name from then on. 0: it has it, or there is no folder; ROD_EBUSY,
 * ROD_EIO.
 */
int session_take_lease(struct sessions *s, struct session *session, struct rod_error *err);
/* Holds it for a call; a place is made where there is none. ROD_EBUSY while a turn has it or waits. With its lease. */
int session_hold(struct sessions *s, const char *tenant, const char *id, struct session **out, struct rod_error *err);
/* The reverse of session_hold. */
void session_unhold(struct sessions *s, struct session *session);
/* Held: what the file says, if it is another than the table's. with_snapshot: the snapshot is wanted too. Afterwards
 * `exists` is true to the file. ROD_ESTATE where that is refused, ROD_ENOROOM without room for its state. */
int session_refresh(struct sessions *s, struct session *session, bool with_snapshot, struct rod_error *err);

/* A look at its file: if that is the version that is known, whoever used it meanwhile counts here too. */
void session_met_locked(struct sessions *s, struct session *session, const struct session_file_version *file_version);

/* It will be made: it counts from now on, within max_sessions, the tenant's limit (0: its share of max_sessions) and
 * the memory that sessions may have. Held. ROD_ESESSIONS, ROD_EKEYSESSIONS, ROD_ENOROOM. */
int session_claim(struct sessions *s, struct session *session, uint64_t tenant_max, struct rod_error *err);

/* A file was refused: counted, once. True: it is new. */
bool session_refuse(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES],
                    const struct session_file_version *file_version);
/* And told. */
void session_refused(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES],
                     const struct session_file_version *file_version, const struct rod_error *err);

/* A committed version, taken out of table or file; whoever holds the session. */
struct session_view {
    struct session_metadata metadata;
    struct session_snapshot *snapshot; /* with_snapshot: shared; else NULL */
    struct session_answers *answers;
    struct session_file_version file_version; /* of the file that has this version; n_bytes 0: none */
    uint8_t name[SESSION_NAME_BYTES];         /* of that file */
    bool busy, in_host, durable;
};
/* Somebody begins from it: its time begins anew, on all servers. */
void session_used(struct sessions *s, const char *tenant, const char *id);
int session_look(struct sessions *s, const char *tenant, const char *id, bool with_snapshot, struct session_view *out,
                 struct rod_error *err);
void session_view_fini(struct session_view *view);

/* ---- session_turn.c ---- */
void session_turn_start_locked(struct sessions *s, struct session *session);       /* the first of its line holds it */
void session_turn_open(struct sessions *s, struct session_turn *turn);             /* on a thread */
void session_turns_end(struct sessions *s, struct session_turn **turns, size_t n); /* on a thread; END ones */
void session_turn_park_locked(struct sessions *s, struct session_turn *turn);
void session_turn_unpark_locked(struct sessions *s, struct session_turn *turn);
void session_turn_fail_locked(struct sessions *s, struct session_turn *turn);

/* ---- session_io.c: the threads ---- */
int session_io_start(struct sessions *s, struct rod_error *err);
void session_io_stop(struct sessions *s);
void session_io_push_locked(struct sessions *s, struct session_turn *turn);
/* It is dirty, and held by nobody or the caller: it becomes WRITE. */
void session_io_write_locked(struct sessions *s, struct session *session);

/* ---- session_keep.c: time and budgets ---- */
/* Before the files of sessions that the caller holds are written, without the lock: others make room for them in the
 * folder's budget. Where they never could, the write's rc is ROD_ENOROOM. */
void session_reserve(struct sessions *s, struct session *const *sessions, struct session_write *writes, size_t n);
void *session_keeper(void *sessions);
int session_scan(struct sessions *s, struct rod_error *err); /* the folder's headers */
/* Removes states of forks that are none: a crash, of any server, or somebody's hand left them. */
void session_sweep_bases(struct sessions *s);
/* What changed in the folder since the last time; all of it where nobody knows what did. asked: somebody wants to see
 * it now. */
int session_catch_up(struct sessions *s, bool asked, struct rod_error *err);
/* Without a folder: a session goes for the place that it takes. False: none can. */
bool session_replace(struct sessions *s);

#endif
