/* session_snapshot.c - see session_snapshot.h. */
#include "session_snapshot.h"

#include <assert.h>
#include <stdlib.h>

struct session_snapshot *session_snapshot_new(size_t n_seen) {
    struct session_snapshot *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->seen = calloc(n_seen ? n_seen : 1, sizeof *p->seen);
    if (!p->seen) {
        free(p);
        return NULL;
    }
    p->n_seen = n_seen;
    p->pending = -1;
    atomic_init(&p->refs, 1);
    return p;
}

struct session_snapshot *session_snapshot_ref(struct session_snapshot *p) {
    if (p) {
        const unsigned refs = atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
        assert(refs);
    }
    return p;
}

void session_snapshot_release(struct session_snapshot *p) {
    if (!p) return;
    const unsigned refs = atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel);
    assert(refs);
    if (refs != 1) return;
    assert(!p->n_sessions); /* no session of the table has it */
    state_buffer_release(p->buffer);
    free(p->seen);
    free(p->recent);
    free(p);
}
