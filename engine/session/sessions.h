/* sessions.h - the sessions of an engine: which turn is next, from which state, and where each turn's end is kept.
 *
 * A turn arrives, waits in its session's wait queue, is opened (lease, file, version, idempotency key), runs in the
 * engine, and ends: committed to the table and, with durability `turn`, to its file before the engine may report it; or
 * given up, and the session stays at its last version. A question beside (rod_turn.beside) is opened from the last
 * version, holds nothing, and is the caller's for good once it runs. Opening and ending run on a few threads of this
 * module, because they wait for files; the engine thread only moves turns in and out.
 *
 * Ownership: a turn is the caller's memory. It is in this module's hands from sessions_arrive until back() for a turn
 * that is to run, and again from sessions_end until back(). Sessions, their snapshots and files are this module's.
 * Threads: any may call; back and begin are called on this module's threads, without its lock.
 * Invariants: one turn at a time holds a session; a version is what its file says, or newer where `dirty`; a session
 * that cannot be found or read is an error, never an empty session.
 */
#ifndef SESSIONS_H
#define SESSIONS_H

#include "engine/base/list.h"
#include "engine/session/store/session_file.h"
#include "engine/state/state_home.h"

enum session_stage {
    SESSION_STAGE_NONE,   /* the caller's, not arrived yet */
    SESSION_STAGE_QUEUED, /* waits for its session */
    SESSION_STAGE_RETRY,  /* holds its session, and waits for another server's lease or for room in host memory */
    SESSION_STAGE_OPEN,   /* is to be opened, or is being opened */
    SESSION_STAGE_RUN,    /* the engine's */
    SESSION_STAGE_END,    /* is being committed or given up */
    SESSION_STAGE_OVER    /* the engine's again, for its last event */
};

struct session_turn {
    const struct rod_turn *ask;
    uint64_t deadline_ns; /* of clock_now_ns: a turn that has not begun by then is ROD_ETIMEDOUT; 0 = none */
    void *user;
    /* For begin, and no longer: where the conversation stands; open: an answer was left open; tools: those that were
     * read last. For sessions_end: where it stands now. */
    struct session_snapshot *snapshot;
    bool open;
    uint64_t tools;
    struct session_answer answer; /* written while it runs, where ask has a key */
    uint64_t waited_ns;           /* for a store, as rod_request.waited_ns: before and with these calls */
    /* After back: RUN, or OVER with rc 0 (committed as metadata.version, or replayed as these events) or an error. */
    enum session_stage stage;
    int rc;
    struct rod_error err;
    struct mailbox_events replay;
    struct session_metadata metadata;
    bool unseen; /* committed, lazy, and the store has neither the version nor its mark */
    /* this module's */
    struct list_link link;    /* in its session's wait queue, or among the jobs */
    struct list_link waiting; /* among the turns in QUEUED and RETRY */
    struct session *session;
    struct session_answers *answers;
    uint64_t retry_ns, give_up_ns; /* of RETRY */
    uint64_t mark_ns;              /* when another server's mark (session_mark.c) was seen first; 0 = never */
    bool commit, cancelled;
};
/* Frees what is in a turn that is the caller's. */
void session_turn_fini(struct session_turn *turn);

struct sessions_config {
    const char *dir;                          /* "" = no folder */
    const struct state_home *home;            /* a fenced one, instead of dir; NULL = none. Its names begin with "s/" */
    uint64_t disk_bytes, ttl_s, max_sessions; /* 0 = no limit, never, no limit */
    const atomic_uint_fast64_t *beside_bytes; /* of other files that count in disk_bytes; NULL: there are none */
    uint32_t keep_turns;                      /* of a session that says nothing of it; at most SESSION_MAX_KEPT */
    bool lazy, reject;
    struct state_form form; /* its layout is copied */
    struct state_pool *pool;
    uint32_t n_threads; /* 0 = 4 */
    /* The turn's snapshot is there: the caller makes ready what depends on it. An error ends the turn. */
    int (*begin)(void *arg, struct session_turn *turn, struct rod_error *err);
    void (*back)(void *arg, struct session_turn *turn);
    void (*log)(void *arg, int level, const char *line);
    void *arg;
};

struct sessions;
/* With a dir: makes it if it is missing, removes what crashes left, reads the headers of all files. ROD_EIO where it
 * takes no files; a full disk is no error, as its sessions can be read and deleted. */
int sessions_open(const struct sessions_config *config, struct sessions **out, struct rod_error *err);
/* All turns are over. Writes the dirty sessions; returns how many could not be written. */
uint64_t sessions_close(struct sessions *s);

/* Checks what a turn asks for, before sessions_arrive. */
int sessions_check(const struct sessions *s, const struct rod_turn *ask, struct rod_error *err);
void sessions_arrive(struct sessions *s, struct session_turn *turn);
/* True: the turn had not begun and is the caller's now, at stage OVER. False: back will be called. Not in RUN. */
bool sessions_cancel(struct sessions *s, struct session_turn *turn);
/* A turn that ran, and no question beside: commit with its new snapshot; or as if it had not been. */
void sessions_end(struct sessions *s, struct session_turn *turn, bool commit);
/* No turn begins any more: waiting turns get ROD_EDRAINING. Returns when every turn that is not in RUN has come back.
 */
void sessions_stop(struct sessions *s);
/* Writes all dirty sessions, in the background. */
void sessions_flush(struct sessions *s);
/* n_bytes of the pool are wanted. True: something was released. */
bool sessions_make_room(void *sessions, size_t n_bytes);

void sessions_stats(struct sessions *s, struct rod_stats *out);

/* The calls of rodimus.h. */
int sessions_create(struct sessions *s, const char *tenant, const struct rod_session_new *made,
                    struct rod_session_info *out, struct rod_error *err);
int sessions_get(struct sessions *s, const char *tenant, const char *id, struct rod_session_info *out,
                 struct rod_error *err);
int sessions_change(struct sessions *s, const char *tenant, const char *id, const struct rod_session_change *change,
                    struct rod_session_info *out, struct rod_error *err);
int sessions_rewind(struct sessions *s, const char *tenant, const char *id, const struct rod_session_rewind *to,
                    struct rod_session_info *out, struct rod_error *err);
int sessions_list(struct sessions *s, const char *tenant, const char *after, size_t limit,
                  struct rod_session_info **infos, size_t *n, bool *more, struct rod_error *err);
int sessions_delete(struct sessions *s, const char *tenant, const char *id, struct rod_error *err);
int sessions_answer(struct sessions *s, const char *tenant, const char *id, struct rod_answer *out,
                    struct rod_error *err);
int sessions_export(struct sessions *s, const char *tenant, const char *id, void **bytes, size_t *n,
                    struct rod_error *err);
int sessions_import(struct sessions *s, const char *tenant, const char *id, const void *bytes, size_t n,
                    struct rod_session_info *out, struct rod_error *err);

#endif
