/* session_metadata.h - what is known of a session without its state, and which file of the folder says so.
 *
 * Ownership, Threads: plain values. Pure. Invariant: the metadata of a session that exists have an id that
 * session_id_ok accepts, and times that are not negative.
 */
#ifndef SESSION_METADATA_H
#define SESSION_METADATA_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    SESSION_NAME_BYTES = 16,
    SESSION_NAME_HALF_BYTES = 8,
    SESSION_MAX_ID = 128,
    SESSION_MAX_TENANT = 255,
    SESSION_MAX_KEPT = 16
};

/* An earlier version that the session can go back to, and how many turns had been then (session_places.h). */
struct session_place {
    uint64_t version, turn;
};

/* The file's header says the same. */
struct session_metadata {
    char tenant[SESSION_MAX_TENANT + 1];
    char id[SESSION_MAX_ID + 1], parent[SESSION_MAX_ID + 1];
    uint64_t version, n_tok, state_bytes;
    uint64_t ttl_s; /* 0 = never */
    int64_t created_s, used_s;
    bool pinned;
    bool open;      /* the last turn left an answer open (rod_turn) */
    bool pending;   /* its last token was generated and is not read yet */
    uint64_t tools; /* a hash of the tools that it read last; 0 = none */
    uint32_t keep;  /* how many earlier turns are kept at most; 0 = none, and nor are turns counted */
    uint32_t n_kept;
    uint64_t turn; /* turns since it keeps some */
    struct session_place kept[SESSION_MAX_KEPT];
};

/* Which file it is, and when it was used last. The file's time is the time of last use: whoever begins from the session
 * sets it, so that all servers know it, also after a restart. */
struct session_file_version {
    uint64_t inode, mtime_ns, n_bytes; /* n_bytes 0: there is no file */
    uint64_t disk_bytes;               /* what the file takes of the disk */
    uint64_t version, check;           /* of the header: files with the same check are alike */
    uint64_t base_inode, base_bytes;   /* of the file that has the state, where it is apart; else 0 */
    char etag[64];                     /* of an object in a store, which alone tells its versions apart; else "" */
};

/* [A-Za-z0-9._-]{1,128} */
static inline bool session_id_ok(const char *id) {
    const size_t n = strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return n > 0 && n <= SESSION_MAX_ID && !id[n];
}

/* When the time to live began. Nobody uses a session before it is made: where the clock was wrong in between, the later
 * time counts, so that a session may stay too long and never goes too early. */
static inline int64_t session_last_s(const struct session_metadata *m) {
    return m->used_s > m->created_s ? m->used_s : m->created_s;
}
static inline bool session_expired(const struct session_metadata *m, int64_t now_s) {
    const int64_t last_s = session_last_s(m);
    return !m->pinned && m->ttl_s && now_s >= last_s && (uint64_t)now_s - (uint64_t)last_s >= m->ttl_s;
}
/* When the session expires; INT64_MAX: never. */
static inline int64_t session_end_s(const struct session_metadata *m) {
    const int64_t last_s = session_last_s(m);
    if (m->pinned || !m->ttl_s || (last_s > 0 && m->ttl_s > (uint64_t)(INT64_MAX - last_s))) return INT64_MAX;
    return m->ttl_s > INT64_MAX ? INT64_MAX : last_s + (int64_t)m->ttl_s;
}

/* Whether it is one file that nobody used since, as far as inode, time and size tell. */
static inline bool session_file_version_alike(const struct session_file_version *a,
                                              const struct session_file_version *b) {
    return a->inode == b->inode && a->mtime_ns == b->mtime_ns && a->n_bytes == b->n_bytes && !strcmp(a->etag, b->etag);
}
/* Whether it is one version of the session, used since or not. */
static inline bool session_file_version_same(const struct session_file_version *a,
                                             const struct session_file_version *b) {
    if (*a->etag || *b->etag) return !strcmp(a->etag, b->etag);
    return a->n_bytes == b->n_bytes && a->version == b->version && a->check == b->check;
}
static inline int64_t session_file_version_used_s(const struct session_file_version *v) {
    return (int64_t)(v->mtime_ns / 1000000000u);
}

#endif
