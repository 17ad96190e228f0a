/* session_table.h - the sessions that an engine knows: by tenant and id, by the name of the file, by last use, by end.
 * session_index.c has the tree and the heap of it.
 *
 * Pure: the caller gives the time (wall clock, seconds). The memory that a session takes is counted in the pool, where
 * there is one. Ownership: a table owns its sessions and their references to snapshots and answers; a lease's
 * descriptor is its holder's to close. Threads: none of its own; the caller holds one lock around all calls and around
 * every access to a session, but for lease_fd, which is the holder's alone. Invariants: one session a tenant and id; a
 * session that is held or waited for stays in the table, if only as an entry (exists false) of one that is being made
 * or looked for. Counted are the sessions that exist and those that are sure to be made. The key of the buckets is
 * secret, so nobody can choose ids that share a bucket.
 */
#ifndef SESSION_TABLE_H
#define SESSION_TABLE_H

#include "engine/session/store/session_answer.h"
#include "session_bytes.h"
#include "engine/session/store/session_metadata.h"
#include "engine/session/store/session_snapshot.h"
#include "engine/base/list.h"
#include "engine/base/siphash.h"

enum session_hold {
    SESSION_FREE,
    SESSION_TURN,  /* a turn, from its beginning until it is committed */
    SESSION_WRITE, /* it is being written because of age or budget */
    SESSION_CALL   /* it is being made, replaced or removed */
};

/* Lists by last use, the session used longest ago first: each list has the candidates of one choice alone. */
enum session_order {
    SESSION_ALL,
    SESSION_DROPPABLE, /* with a snapshot that the file has too */
    SESSION_DIRTY,     /* memory is newer than the file */
    SESSION_REMOVABLE, /* exist and are not pinned */
    SESSION_IN_HOST,   /* of those the ones with a state buffer */
    SESSION_KEEPING,   /* exist, with states of earlier turns */
    SESSION_N_ORDERS
};
enum session_hash { SESSION_BY_ID, SESSION_BY_NAME, SESSION_N_HASHES };

/* The state of an earlier turn: a snapshot, or where there is a folder a file of its own. */
struct session_kept {
    struct session_kept *next;
    uint64_t version;
    struct session_snapshot *snapshot; /* NULL: in the file */
    bool open;                         /* with a snapshot: as the metadata were, and tools */
    uint64_t tools;
    struct session_bytes_hold file;
    uint8_t name[SESSION_NAME_BYTES]; /* of the session's file, once it is gone: where the file of this goes */
    bool in_file;
    bool stays; /* its file is not this server's to remove: the session was forgotten, or is another's by now */
    struct session_kept_sum *sum; /* in which it counts */
};

/* Of one tenant's kept states: how many, and bytes, where a file that several have counts for each. */
struct session_kept_sum {
    struct session_kept_sum *next;
    uint64_t n, n_bytes;
    char tenant[SESSION_MAX_TENANT + 1];
};

struct session {
    struct session *chain[SESSION_N_HASHES]; /* of the same bucket */
    uint64_t hash[SESSION_N_HASHES];
    struct list_link by_use[SESSION_N_ORDERS];
    struct session *below[2]; /* in the tree of tenants and ids: before it, behind it */
    size_t n_below;           /* with itself */
    size_t end_at;            /* position in the heap, from 1; 0 = it has none */
    int64_t end_s, due_s;     /* when it expires, INT64_MAX = never; when that is to be checked */
    bool named;               /* name is known: of its file, or of the file that it will have */
    uint8_t name[SESSION_NAME_BYTES];
    bool counted, exists;
    struct session_metadata metadata;
    struct session_snapshot *snapshot; /* NULL: in the file alone */
    struct session_answers *answers;
    struct session_file_version file_version; /* of the file that has this version; n_bytes 0: there is none */
    bool dirty;                               /* memory is newer than the file */
    bool drop;                                /* the snapshot goes as soon as it is written */
    enum session_hold hold;
    bool current;                         /* its holder has the lease and has read the file: nobody else changes it */
    struct list queue;                    /* wait queue: turns, the next one first */
    int lease_fd;                         /* -1 = none */
    struct list_link write;               /* in the caller's list of sessions to write */
    uint64_t failed_ns;                   /* when its write failed; 0 = it did not */
    uint64_t scan;                        /* the last scan that met its file */
    uint64_t tried;                       /* the last round in which its removal was tried */
    uint64_t unsure_hash, unsure_version; /* of the version that a lazy write may have left; 0 = of none */
    char mark[64];                        /* of session_mark.c: etag of this server's mark; "" = none */
    bool unchecked;                       /* the holder's turn began without the store */
    uint64_t reserved_bytes;              /* by which the file being written is larger than the one it replaces */
    struct session_bytes_hold file, base; /* of file_version */
    struct session_kept *kept;            /* known states of places in metadata.kept, and of one that is being made */
};

struct session_table {
    uint8_t key[SIPHASH_KEY_BYTES]; /* of the buckets; of this process alone */
    struct session **buckets[SESSION_N_HASHES];
    size_t n_buckets, n; /* n_buckets: a power of two */
    struct list by_use[SESSION_N_ORDERS];
    struct session *root;  /* of the tree of counted sessions */
    struct session **ends; /* a heap by due_s of the sessions that exist and have an end; all would fit */
    size_t n_ends, ends_cap;
    uint64_t n_exist, n_snapshots, n_dirty; /* sessions that exist; of those: with a snapshot, dirty */
    struct session_bytes files;             /* of all sessions, each file once */
    uint64_t reserved_bytes;                /* of all sessions */
    uint64_t reserved_pinned_bytes;         /* of pinned ones */
    struct state_pool *pool;                /* in whose budget memory is counted; NULL = none */
    struct session_kept *gone;              /* nobody's any more: the caller's to free, without its lock */
    uint64_t n_kept;                        /* of all sessions */
    struct session_kept_sum *kept_sums;     /* of tenants with kept states */
};

/* With a key of its own; the pool is the caller's to set, before there are sessions. */
int session_table_init(struct session_table *t, struct rod_error *err);
void session_table_fini(struct session_table *t);

/* The memory of any session: itself, its part of buckets and heap, what malloc adds. */
#define SESSION_PLACE_BYTES (sizeof(struct session) + 5 * sizeof(void *) + 16)

static inline struct session *session_of_use(const struct list_link *link, enum session_order o) {
    return link ? LIST_OF(link - o, struct session, by_use) : NULL;
}
/* The session used longest ago; the next one. NULL: none. */
static inline struct session *session_oldest(const struct session_table *t, enum session_order o) {
    return session_of_use(list_first(&t->by_use[o]), o);
}
static inline struct session *session_newer(const struct session_table *t, const struct session *s,
                                            enum session_order o) {
    return session_of_use(list_next(&t->by_use[o], &s->by_use[o]), o);
}
/* Nobody holds it and no turn waits for it. */
static inline bool session_idle(const struct session *s) { return s->hold == SESSION_FREE && !s->queue.n; }
/* A turn holds it, or waits for it. */
static inline bool session_busy(const struct session *s) { return s->hold == SESSION_TURN || s->queue.n; }

struct session *session_table_find(const struct session_table *t, const char *tenant, const char *id);
struct session *session_table_find_name(const struct session_table *t, const uint8_t name[SESSION_NAME_BYTES]);
/* Sets the name of its file. */
void session_table_name(struct session_table *t, struct session *s, const uint8_t name[SESSION_NAME_BYTES]);
/* An entry for it, as the newest. NULL without memory; the strings fit. */
struct session *session_table_add(struct session_table *t, const char *tenant, const char *id);
/* Frees it; nobody holds it or waits, and it does not exist. */
void session_table_remove(struct session_table *t, struct session *s);

/* It is sure to be made: from now on it counts, until it is unset or removed. */
void session_table_count(struct session_table *t, struct session *s);
static inline uint64_t session_table_n(const struct session_table *t) { return t->root ? t->root->n_below : 0; }
/* The counted sessions of a tenant. */
uint64_t session_table_n_of(const struct session_table *t, const char *tenant);
/* Sets what the session is now. States of earlier turns that are no places of it go. The references to snapshot and
 * answers go to the table; snapshot NULL: on file alone. By use it stands behind the sessions that were used no later.
 * Returns the snapshot that it had: the caller releases it, without the lock. */
struct session_snapshot *session_table_set(struct session_table *t, struct session *s,
                                           const struct session_metadata *metadata, struct session_snapshot *snapshot,
                                           struct session_answers *answers);
/* Adds what is known of one earlier turn's state; the reference to the snapshot goes to the table. file_version: of its
 * file, n_bytes 0: it has none. False without memory: then it is not known, and the reference stays the caller's. */
bool session_table_keep(struct session_table *t, struct session *s, const struct session_kept *kept,
                        const struct session_file_version *file_version);
struct session_kept *session_table_kept(const struct session *s, uint64_t version);
/* The place goes, if there is one, with its state. */
void session_table_unkeep(struct session_table *t, struct session *s, uint64_t version);
/* What a tenant's kept states are; NULL: it has none. */
struct session_kept_sum *session_table_kept_of(const struct session_table *t, const char *tenant);
/* Whose earlier turns go first: the session used longest ago that has some; of this tenant, NULL = of all. */
struct session *session_table_to_unkeep(const struct session_table *t, const char *tenant);
/* Frees what session_table_set and its like left in `gone`; one after the other, with what is behind it. */
void session_kept_free(struct session_kept *kept);

/* A turn or a fork begins from it. */
void session_table_use(struct session_table *t, struct session *s, int64_t now_s);
/* It exists no more; the entry stays. Returns its snapshot likewise. */
struct session_snapshot *session_table_unset(struct session_table *t, struct session *s);
void session_table_set_dirty(struct session_table *t, struct session *s, bool dirty);
/* It has this file; nothing is reserved for it any more. */
void session_table_set_file(struct session_table *t, struct session *s,
                            const struct session_file_version *file_version);
/* Its next file will have n_bytes; 0: there will be none. */
void session_table_reserve(struct session_table *t, struct session *s, uint64_t n_bytes);
/* Of the files of all pinned sessions but this one. */
static inline uint64_t session_table_pinned_bytes(const struct session_table *t, const struct session *but) {
    return t->files.pinned + t->reserved_pinned_bytes - session_bytes_pinned_alone(&but->file) -
           session_bytes_pinned_alone(&but->base) - (but->metadata.pinned ? but->reserved_bytes : 0);
}
/* What the folder would have less without its files. */
static inline uint64_t session_table_own_bytes(const struct session *s) {
    return session_bytes_alone(&s->file) + session_bytes_alone(&s->base);
}
/* Drops its snapshot from host memory. It must be on file, and not dirty. Returns the snapshot likewise. */
struct session_snapshot *session_table_drop_snapshot(struct session_table *t, struct session *s);

/* The least recently used that could leave host memory: in a file as it is. NULL: none. */
struct session *session_table_to_drop(const struct session_table *t);
/* The least recently used that must be written before it can leave; free, not being written, and not one whose writing
 * failed after failed_ns. */
struct session *session_table_to_write(const struct session_table *t, uint64_t failed_ns);
/* The least recently used that may be removed for a budget, of files or of memory: free, not pinned, and not tried in
 * this round (0 = none). */
struct session *session_table_to_remove(const struct session_table *t, bool on_file, uint64_t round);
/* The least recently used that may be removed for its entry alone: free and not pinned. */
struct session *session_table_to_replace(const struct session_table *t);
/* An expired session that is free; each is given once a second. Others cost nothing. */
struct session *session_table_to_expire(struct session_table *t, int64_t now_s);

/* Its file has what memory has, or memory has nothing. */
static inline bool session_durable(const struct session *s) { return s->file_version.n_bytes && !s->dirty; }

/* The live sessions of a tenant in order of id, behind `after` (NULL = all), at most limit; *more: others follow. The
 * cost grows with the sessions given, not with those of other tenants. */
int session_table_list(const struct session_table *t, const char *tenant, const char *after, size_t limit,
                       int64_t now_s, const struct session ***out, size_t *n, bool *more, struct rod_error *err);

/* ---- session_index.c: for session_table.c ---- */
void session_tree_add(struct session_table *t, struct session *s);
void session_tree_remove(struct session_table *t, struct session *s);
/* How many sessions stand before this one; through: with it. id NULL: before the end of the tenant. */
size_t session_tree_rank(const struct session_table *t, const char *tenant, const char *id, bool through);
/* The session before which `rank` others stand. */
struct session *session_tree_at(const struct session_table *t, size_t rank);
/* due_s INT64_MAX: it has no end. There is room. */
void session_ends_set(struct session_table *t, struct session *s, int64_t due_s);

#endif
