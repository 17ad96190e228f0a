/* session_snapshot.h - where a conversation stands: all that its next turn needs, shared and never changed.
 *
 * A session's version is a snapshot; a fork shares its source's. Ownership: a snapshot belongs to all who share it and
 * owns its parts; the last release frees them. Threads: any. Invariant: nobody writes to a shared snapshot but the
 * table, which counts in it.
 */
#ifndef SESSION_SNAPSHOT_H
#define SESSION_SNAPSHOT_H

#include "engine/state/state_buffer.h"

/* A token of the conversation and how often it was generated, for penalties. */
struct session_seen {
    int32_t id;
    uint32_t n_generated; /* 0: in prompts alone */
};

struct session_snapshot {
    atomic_uint refs;
    uint32_t n_sessions; /* that have it in the table; the table's */
    uint64_t n_tok;      /* read */
    uint64_t token_hash; /* of these (state_file.h) */
    uint64_t seed;       /* of the turn that ended here */
    int32_t pending;     /* counted and not read yet, or -1 */
    uint8_t held[4];     /* bytes of a character that is not complete yet */
    uint32_t n_held;
    struct session_seen *seen; /* [n_seen] in order of id */
    size_t n_seen;
    int32_t *recent; /* [n_recent] the last tokens, for drafts: a hint, which no file has */
    uint32_t n_recent;
    struct state_buffer *buffer; /* NULL while n_tok is 0 */
};

/* At the beginning, with room for so many seen tokens. NULL without memory. */
struct session_snapshot *session_snapshot_new(size_t n_seen);
struct session_snapshot *session_snapshot_ref(struct session_snapshot *snapshot); /* NULL gives NULL */
void session_snapshot_release(struct session_snapshot *snapshot);                 /* NULL: nothing */

/* What it takes beside its state buffer, with what malloc adds. */
static inline size_t session_snapshot_own_bytes(const struct session_snapshot *snapshot) {
    const size_t n_seen = snapshot->n_seen ? snapshot->n_seen : 1;
    return sizeof *snapshot + n_seen * sizeof *snapshot->seen + snapshot->n_recent * sizeof *snapshot->recent + 48;
}

static inline size_t session_snapshot_bytes(const struct session_snapshot *snapshot) {
    return snapshot->buffer ? snapshot->buffer->n_bytes : 0;
}

#endif
