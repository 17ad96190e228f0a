/* session_bytes.h - how many bytes the files of sessions have, where several sessions may share one: a fork's state is
 * the file of the session that it was forked from, under a name of its own (session_store.h).
 *
 * A file is known by inode and size, and counts once, however many sessions have it; it counts as pinned while one
 * of its sessions is. Ownership: the count owns its entries; a hold lies in its session. Threads: none of its own.
 */
#ifndef SESSION_BYTES_H
#define SESSION_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct session_bytes_file {
    struct session_bytes_file *chain; /* of the same bucket */
    uint64_t inode, n_bytes;
    uint32_t n_held, n_pinned;
};

struct session_bytes {
    struct session_bytes_file **buckets;
    size_t n_buckets, n;
    uint64_t all, pinned; /* bytes: of all files, of pinned files */
};

/* One session's hold on one file; zeroed = on none. */
struct session_bytes_hold {
    struct session_bytes_file *file; /* NULL without memory for it: then its bytes count as shared with nobody */
    uint64_t n_bytes;
    bool pinned;
};

void session_bytes_fini(struct session_bytes *b);
/* From now on it holds this file; n_bytes 0: none. */
void session_bytes_set(struct session_bytes *b, struct session_bytes_hold *hold, uint64_t inode, uint64_t n_bytes,
                       bool pinned);
void session_bytes_pin(struct session_bytes *b, struct session_bytes_hold *hold, bool pinned);
/* This file counts as pinned already. */
bool session_bytes_pinned(const struct session_bytes *b, uint64_t inode, uint64_t n_bytes);

/* What there would be less without this hold. */
static inline uint64_t session_bytes_alone(const struct session_bytes_hold *h) {
    return !h->file || h->file->n_held == 1 ? h->n_bytes : 0;
}
static inline uint64_t session_bytes_pinned_alone(const struct session_bytes_hold *h) {
    return h->pinned && (!h->file || h->file->n_pinned == 1) ? h->n_bytes : 0;
}

#endif
