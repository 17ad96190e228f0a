/* conversations_internal.h - what the files of conversations.h share; for these alone.
 *
 * Jobs wait for files in place of the engine. A folder has a thread that writes and one that reads. A store has several
 * of each: the jobs of one conversation that write, list or remove go one after the other, so a list is never merged
 * with what changed meanwhile. Whoever waits for a job of a store does so for a few seconds; from then on, and until
 * the store has answered, nobody waits.
 */
#ifndef CONVERSATIONS_INTERNAL_H
#define CONVERSATIONS_INTERNAL_H

#include "conversation_notes.h"
#include "conversation_table.h"
#include "conversations.h"
#include "engine/base/log_limit.h"
#include "engine/base/siphash.h"
#include "engine/state/state_guard.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CONVERSATIONS_REMOVED = 64, CONVERSATIONS_THREADS = 4 };

enum conversation_work {
    CONVERSATION_WRITE,
    CONVERSATION_READ,
    CONVERSATION_UNLINK, /* file "": all that the conversation has */
    /* of a store: */
    CONVERSATION_LOOK,   /* what it has into the table; the notes, if wanted and others than `seen` */
    CONVERSATION_NOTE,   /* bytes are the record */
    CONVERSATION_EXPIRE, /* UNLINK, if it was not used since */
    CONVERSATION_SWEEP,
    CONVERSATION_PROBE /* whether the store answers */
};
struct conversation_job {
    struct list_link link; /* in a queue, while it is done in `going`, then in `over` */
    enum conversation_work work;
    char dir[CONVERSATION_DIR_BYTES], file[CONVERSATION_NAME_BYTES];
    struct conversation_place place;
    char twin[CONVERSATION_DIR_BYTES]; /* WRITE: a conversation with an equal file; "": none */
    char *whose;                       /* of WRITE, LOOK, NOTE: the first note, n_whose bytes */
    size_t n_whose;
    bool makes;          /* WRITE: the conversation has no notes yet */
    uint64_t part_bytes; /* EXPIRE: only the oldest states, of so many bytes; 0 = all */
    struct state_buffer *buffer;
    void *user;
    uint64_t until_ns;                  /* the user waits no longer; 0: as long as it takes */
    struct conversation_job *of, *word; /* this tells the user of that job, which goes on, that it waits no longer */
    bool ended;                         /* it is freed when its word was heard */
    int rc;
    struct rod_error err;
    /* of conversations_ask */
    bool called, done, left; /* left: nobody waits any more */
    bool wants_notes;
    struct rod_notes_seen seen;
    void *bytes; /* malloc'd */
    size_t n_bytes;
};
struct conversations {
    struct conversations_config config; /* its strings are not kept, but the layout's */
    char *root;                         /* the folder; NULL: none */
    bool stored;                        /* in `home` */
    struct state_guard guard;
    struct state_home home; /* fenced, guarded */
    uint8_t key[SIPHASH_KEY_BYTES];
    uint64_t seed;
    pthread_mutex_t lock; /* over what follows; never held over a file */
    struct conversation_table *table;
    struct list queues[2]; /* of what writes, lists and removes; of reads */
    struct list going[2];
    struct list over;    /* jobs with a user, and reads */
    uint64_t *forgotten; /* [n_forgotten] */
    size_t n_forgotten, forgotten_cap;
    atomic_bool has_news; /* over, or forgotten */
    struct log_limit failed;
    uint64_t n_saves, n_failures, n_loads;
    uint64_t patience_ns;   /* of tests; 0: as in conversations_queue.c */
    uint64_t waiting_bytes; /* of states in queues */
    bool stuck;             /* the store let somebody wait too long, and has not answered since */
    bool has_probe, has_sweep;
    uint64_t sweep_ns;                      /* when the next one is due, */
    uint64_t soon_ns;                       /* and at the earliest */
    char swept_to[STATE_HOME_MAX_NAME + 1]; /* by the sweep that runs; what changes behind it */
    int64_t behind_bytes;                   /* counts in its sum, too */
    uint64_t added_bytes;                   /* since it began */
    struct {
        char dir[CONVERSATION_DIR_BYTES];
        uint64_t number;
    } removed[CONVERSATIONS_REMOVED]; /* the latest, a ring */
    uint64_t n_removed;
    bool ends;
    pthread_cond_t work[2], tick, called;
    pthread_t threads[2 * CONVERSATIONS_THREADS + 1];
    uint32_t n_threads;
    atomic_uint_fast64_t
        stored_bytes;            /* of all conversations in the store, as of the last sweep and what was done since */
    atomic_int_fast64_t ahead_s; /* of the store's clock */
};

/* ---- conversations_queue.c ---- */
void conversations_say(const struct conversations *c, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void conversations_expire_locked(struct conversations *c); /* what its time is over for goes */
void conversations_push_locked(struct conversations *c, struct conversation_job *job);
/* Whether a user waits that has waited so long before; and until when, for a job that moves so many bytes; 0: as long
 * as it takes. */
bool conversations_waits_locked(const struct conversations *c, uint64_t waited_ns);
uint64_t conversations_until_locked(const struct conversations *c, uint64_t n_bytes, uint64_t waited_ns);
/* A job of the conversation that is no read is being done; or waits, too. */
bool conversations_goes_on_locked(const struct conversations *c, const char *dir);
bool conversations_busy_locked(const struct conversations *c, const char *dir);
/* A job that removes this file, or all, waits or is done. */
bool conversations_removes_locked(const struct conversations *c, const char *dir, const char *file);
/* NULL: no memory. */
struct conversation_job *conversations_job(enum conversation_work work, const char *dir);
/* A job of the store that the caller waits for, until then (0: not at all). True: it is done, and the caller's; else it
 * frees itself. */
void conversations_ask(struct conversations *c, struct conversation_job *job);
bool conversations_await(struct conversations *c, struct conversation_job *job, uint64_t until_ns);
void conversations_job_free(struct conversation_job *job);

/* ---- conversations_dir.c: the key, names, and what a home has into the table ---- */
int conversations_read_key(struct conversations *c, const struct state_home *home, struct rod_error *err);
/* Name of the folder of this conversation; in a store TENANT/HASH. */
void conversations_dir(const struct conversations *c, const char *tenant, const char *name,
                       char dir[CONVERSATION_DIR_BYTES]);
/* In a store: the folder of all that a tenant has, "TENANT/". */
void conversations_tenant_dir(const struct conversations *c, const char *tenant, char dir[CONVERSATION_DIR_BYTES]);
char *conversations_whose(const char *tenant, const char *name, size_t *n); /* the first note; malloc'd */
/* The tenant in a first note, and *name behind it, if they are those of this folder; else NULL. */
const char *conversations_whose_dir(const struct conversations *c, const char *dir, const char *first, size_t n,
                                    const char **name);

struct conversation_scan { /* a state that a home has */
    struct conversation_place place;
    uint64_t bytes;
};
struct conversation_scans {
    struct conversation_scan *all; /* [n], malloc'd */
    size_t n, cap;
    uint64_t notes_bytes;
    bool made;         /* the conversation has something */
    uint64_t since_ns; /* it may have changed since the list began; 0: the jobs' order forbids that */
};
bool conversations_scan_add(struct conversation_scans *scans, const char *file, uint64_t bytes); /* false: no file of
                                                                                                    a conversation */
/* A whole and current list of one conversation into the table; takes it. */
void conversations_merge(struct conversations *c, const char *dir, const char *tenant, const char *name, int64_t used_s,
                         struct conversation_scans *scans);
void conversations_gone_locked(struct conversations *c, struct conversation *of); /* the home has nothing of it */

/* ---- conversations_folder.c; all without the lock ---- */
int conversations_folder_open(struct conversations *c, struct rod_error *err);
/* The folder of a conversation is there: its states and the size of its notes into the table. */
void conversations_scan(struct conversations *c, const char *dir, const char *tenant, const char *name);
void conversations_scan_all(struct conversations *c); /* folders that are not known yet */
/* Of a folder: all files in it, and itself. */
void conversations_unlink_all(const struct conversations *c, const char *dir);
int conversations_make_dir(const struct conversations *c, const char *dir, const void *whose, size_t n_whose,
                           struct rod_error *err);
int conversations_folder_write(const struct conversations *c, const struct conversation_job *job,
                               const struct state_bytes parts[2], struct rod_error *err);
/* A second name for what another conversation has. Not 0: it is to be written. */
int conversations_folder_link(const struct conversations *c, const struct conversation_job *job, struct rod_error *err);
int conversations_folder_read(const struct conversations *c, const struct conversation_job *job, struct rod_error *err);
void conversations_folder_unlink(const struct conversations *c, const struct conversation_job *job);

/* ---- conversations_store.c: the jobs of a store ---- */
int conversations_store_open(struct conversations *c, struct rod_error *err);
struct state_home conversations_store_home(const struct conversations *c, const char *dir);
int conversations_store_write(struct conversations *c, const struct conversation_job *job,
                              const struct state_bytes parts[2], struct rod_error *err);
int conversations_store_copy(struct conversations *c, const struct conversation_job *job, struct rod_error *err);
int conversations_store_read(struct conversations *c, struct conversation_job *job, struct rod_error *err);
void conversations_store_unlink(struct conversations *c, struct conversation_job *job); /* EXPIRE, too */
void conversations_store_look(struct conversations *c, struct conversation_job *job);
void conversations_store_note(struct conversations *c, struct conversation_job *job);
void conversations_store_probe(struct conversations *c, struct conversation_job *job);

/* ---- conversations_store_calls.c: the calls of conversations.h in a store ---- */
int conversations_store_call_look(struct conversations *c, const char *tenant, const char *name,
                                  struct rod_notes_seen *seen, void **bytes, size_t *n, struct rod_error *err);
int conversations_store_call_note(struct conversations *c, const char *tenant, const char *name, const void *record,
                                  size_t n, struct rod_notes_seen *seen, struct rod_error *err);
/* Makes known what the store has of one conversation; of all of a tenant's. */
int conversations_store_call_learn(struct conversations *c, const char *tenant, const char *name,
                                   struct rod_error *err);
int conversations_store_call_list(struct conversations *c, const char *tenant, struct rod_error *err);
int conversations_store_call_remove(struct conversations *c, const char *dir, struct rod_error *err);

/* ---- conversations_sweep.c: what time and budgets ask for in a store ---- */
void conversations_sweep(struct conversations *c, struct conversation_job *job);
uint64_t conversations_sweep_due(struct conversations *c, uint64_t n_pages); /* when the next one begins */
int64_t conversations_store_now(const struct conversations *c);              /* Unix seconds, by the store's clock */
/* A file is there, or gone, or has another size. Past the budget, or a part of it further, the next sweep comes soon.
 */
void conversations_stored(struct conversations *c, const char *dir, const char *file, int64_t more_bytes);
/* What a write gave says what the store's clock shows. */
void conversations_store_clock(struct conversations *c, const struct state_disk_version *written);

/* ---- conversations_jobs.c ---- */
int conversations_start(struct conversations *c, struct rod_error *err);
void conversations_stop(struct conversations *c); /* all jobs are done */

#endif
