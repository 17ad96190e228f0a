/* session_table.h - the sessions that an engine knows: by tenant and id, by the name of the file, by when they were
 * last used, by when their time is over. session_index.c has the tree and the heap of it.
 *
 * Pure: the caller gives the time (wall clock, seconds). What a session takes of memory is counted in the pool, where
 * there is one. Who owns what: a table owns its sessions and their shares of
 * snapshots and answers; a lease's descriptor is its holder's to close. Threads: none of its own; the caller holds one
 * lock around all calls and around every access to a session, but for what the holder alone touches (lease_fd).
 * Invariants: one session a tenant and id; a session that somebody holds or waits for stays in the table, if only as a
 * place (exists false) for one that is being made or looked for. Counted are those that exist and those that are sure
 * to be made. Nobody outside knows the key of the buckets, so nobody can choose ids that share one.
 */
#ifndef SESSION_TABLE_H
#define SESSION_TABLE_H

#include "session_answer.h"
#include "session_bytes.h"
#include "session_snapshot.h"
#include "engine/base/siphash.h"

enum { SESSION_NAME_BYTES = 16, SESSION_MAX_ID = 128, SESSION_MAX_TENANT = 255 };

/* What is known of a session without its snapshot; its file's header says the same. */
struct session_metadata {
    char tenant[SESSION_MAX_TENANT + 1];
    char id[SESSION_MAX_ID + 1], parent[SESSION_MAX_ID + 1];
    uint64_t version, n_tok, state_bytes;
    uint64_t ttl_s; /* 0 = never */
    int64_t created_s, used_s;
    bool pinned;
    bool open; /* the last turn left an answer open (rod_turn) */
};

/* Which file it is, and when it was used last: that is its time, which whoever begins from the session sets, so that
 * all servers know of it, and the next ones. */
struct session_file_version {
    uint64_t inode, mtime_ns, n_bytes; /* n_bytes 0: none */
    uint64_t disk_bytes;               /* what it takes of the disk */
    uint64_t version, check;           /* of its header: files of one check are alike */
    uint64_t base_inode, base_bytes;   /* of the file that has its state, where it is apart; else 0 */
};

enum session_hold {
    SESSION_FREE,
    SESSION_TURN,  /* a turn, from its beginning until it is committed */
    SESSION_WRITE, /* it is being written because of age or budget */
    SESSION_CALL   /* it is being made, replaced or removed */
};

/* By use, the one used longest ago first: each choice looks at those alone that it is between. */
enum session_order {
    SESSION_ALL,
    SESSION_SPARE,   /* with a snapshot that is on file as it is */
    SESSION_DIRTY,   /* memory is newer than the file */
    SESSION_LOOSE,   /* exist and are not pinned */
    SESSION_IN_HOST, /* of those the ones that have a state buffer */
    SESSION_N_ORDERS
};
enum session_hash { SESSION_BY_ID, SESSION_BY_NAME, SESSION_N_HASHES };

struct session_turn;
struct session_line {
    struct session_turn *head, *tail;
};

struct session {
    struct session *chain[SESSION_N_HASHES]; /* of the same bucket */
    uint64_t hash[SESSION_N_HASHES];
    struct session *older[SESSION_N_ORDERS], *newer[SESSION_N_ORDERS]; /* by use */
    bool in[SESSION_N_ORDERS];
    struct session *below[2]; /* in the tree of tenants and ids: those before it, those behind */
    size_t n_below;           /* with itself */
    size_t end_at;            /* place in the heap, from 1; 0 = it has none */
    int64_t end_s, due_s;     /* when its time is over, INT64_MAX = never; when that is to be looked at */
    bool named;               /* name is known: of its file, or of the one that it will have */
    uint8_t name[SESSION_NAME_BYTES];
    bool counted, exists;
    struct session_metadata metadata;
    struct session_snapshot *snapshot; /* NULL: in the file alone */
    struct session_answers *answers;
    struct session_file_version file_version; /* of the file that holds this version; n_bytes 0: there is none */
    bool dirty;                               /* memory is newer than the file */
    bool leave;                               /* out of host memory as soon as it is written */
    enum session_hold hold;
    bool current;               /* its holder has the lease and has seen the file: nobody else changes either */
    struct session_line line;   /* turns that wait, in order */
    int lease_fd;               /* -1 = none */
    struct session *next_write; /* in the caller's list of sessions to write */
    uint64_t failed_ns;         /* when it could not be written; 0 = it was not tried */
    uint64_t scan;              /* the last one that met its file */
    uint64_t tried;             /* the last round in which its removal was tried */
    uint64_t reserved_bytes; /* there will be so many more with the file that is being written in the old one's place */
    struct session_bytes_hold file, base; /* of file_version */
};

struct session_table {
    uint8_t key[SIPHASH_KEY_BYTES]; /* of the buckets; of this process alone */
    struct session **buckets[SESSION_N_HASHES];
    size_t n_buckets, n; /* n_buckets: a power of two */
    struct session *oldest[SESSION_N_ORDERS], *newest[SESSION_N_ORDERS];
    struct session *root;  /* of the tree of those that are counted */
    struct session **ends; /* a heap by due_s of those that exist and have a time; room for all */
    size_t n_ends, ends_room;
    uint64_t n_exist, n_snapshots, n_dirty; /* of those that exist: all, those with a snapshot, those that are dirty */
    struct session_bytes files;     /* of all file_version, as the disk has them: what several sessions have once */
    uint64_t reserved_bytes;        /* of all sessions */
    uint64_t reserved_pinned_bytes; /* of pinned ones */
    struct state_pool *pool;        /* in whose budget memory is counted; NULL = none */
};

/* With a key of its own; the pool is the caller's to set, before there are sessions. */
int session_table_init(struct session_table *t, struct rod_error *err);
void session_table_fini(struct session_table *t);

/* What a session takes of memory, whatever it holds: itself, its share of buckets and heap, what malloc adds. */
#define SESSION_PLACE_BYTES (sizeof(struct session) + 5 * sizeof(void *) + 16)

/* [A-Za-z0-9._-]{1,128} */
bool session_id_ok(const char *id);
struct session *session_table_find(const struct session_table *t, const char *tenant, const char *id);
struct session *session_table_find_name(const struct session_table *t, const uint8_t name[SESSION_NAME_BYTES]);
/* Its file has this name; any other is forgotten. */
void session_table_name(struct session_table *t, struct session *s, const uint8_t name[SESSION_NAME_BYTES]);
/* A place for it, as the newest. NULL without memory; the strings fit. */
struct session *session_table_add(struct session_table *t, const char *tenant, const char *id);
/* Frees it; nobody holds it or waits, and it does not exist. */
void session_table_remove(struct session_table *t, struct session *s);

/* It is sure to be made: from now on it counts, until it is unset or removed. */
void session_table_count(struct session_table *t, struct session *s);
static inline uint64_t session_table_n(const struct session_table *t) { return t->root ? t->root->n_below : 0; }
/* Those of a tenant that are counted. */
uint64_t session_table_n_of(const struct session_table *t, const char *tenant);
/* What it is now. Shares of snapshot and answers go to the table; snapshot NULL: on file alone. Its place among the
 * others is after those that were used no later. Returns the snapshot that it had, to be released, without the lock, by
 * the caller.
 */
struct session_snapshot *session_table_set(struct session_table *t, struct session *s,
                                           const struct session_metadata *metadata, struct session_snapshot *snapshot,
                                           struct session_answers *answers);
/* Somebody begins from it: that is use. */
void session_table_use(struct session_table *t, struct session *s, int64_t now_s);
/* It exists no more; the place stays. Returns its snapshot likewise. */
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
/* Out of memory. It must be on file, and not dirty. Returns its snapshot likewise. */
struct session_snapshot *session_table_drop_snapshot(struct session_table *t, struct session *s);

/* The least recently used that could leave host memory: in a file as it is. NULL: none. */
struct session *session_table_to_drop(const struct session_table *t);
/* The least recently used that must be written before it can leave; free, not being written, and not one whose writing
 * failed after failed_ns. */
struct session *session_table_to_write(const struct session_table *t, uint64_t failed_ns);
/* The least recently used that may be removed for a budget, of files or of memory: free, not pinned, and not tried in
 * this round (0 = none). */
struct session *session_table_to_remove(const struct session_table *t, bool on_file, uint64_t round);
/* The least recently used that may be removed for its place alone: free and not pinned. */
struct session *session_table_to_replace(const struct session_table *t);
/* One whose time is over and that is free; each is given once a second. Others cost nothing. */
struct session *session_table_to_expire(struct session_table *t, int64_t now_s);
/* When its time began. Nobody uses what is not made yet: where the clock was wrong in between, the later one counts, so
 * that a session may stay too long and never goes too early. */
static inline int64_t session_last_s(const struct session_metadata *f) {
    return f->used_s > f->created_s ? f->used_s : f->created_s;
}
static inline bool session_expired(const struct session_metadata *f, int64_t now_s) {
    const int64_t last_s = session_last_s(f);
    return !f->pinned && f->ttl_s && now_s >= last_s && (uint64_t)now_s - (uint64_t)last_s >= f->ttl_s;
}
/* When its time is over; INT64_MAX: never. */
static inline int64_t session_end_s(const struct session_metadata *f) {
    const int64_t last_s = session_last_s(f);
    if (f->pinned || !f->ttl_s || (last_s > 0 && f->ttl_s > (uint64_t)(INT64_MAX - last_s))) return INT64_MAX;
    return f->ttl_s > INT64_MAX ? INT64_MAX : last_s + (int64_t)f->ttl_s;
}

/* Its file has what memory has, or memory nothing. */
static inline bool session_durable(const struct session *s) { return s->file_version.n_bytes && !s->dirty; }

/* Of a tenant, in order of id, those after `after` (NULL = all) that are not expired, at most limit; *more: there are
 * others behind. Costs what it gives, whatever others have. */
int session_table_list(const struct session_table *t, const char *tenant, const char *after, size_t limit,
                       int64_t now_s, const struct session ***out, size_t *n, bool *more, struct rod_error *err);

/* ---- session_index.c: for session_table.c ---- */
void session_tree_add(struct session_table *t, struct session *s);
void session_tree_remove(struct session_table *t, struct session *s);
/* How many stand before this one; through: with it. id NULL: before the end of the tenant. */
size_t session_tree_rank(const struct session_table *t, const char *tenant, const char *id, bool through);
/* The one before which so many stand, of those that there are. */
struct session *session_tree_at(const struct session_table *t, size_t rank);
/* due_s INT64_MAX: it has no end. There is room. */
void session_ends_set(struct session_table *t, struct session *s, int64_t due_s);

#endif
