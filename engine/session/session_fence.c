/* session_fence.c - see session_internal.h: sessions in a fenced home. Nobody else is kept from a session while a turn
 * has it here: the version that a write replaces alone decides, so a read is one request, and what lost is forgotten.
 */
#include "session_internal.h"
#include "engine/base/fail.h"
#include "engine/session/store/session_locate.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#define CLOCK_FILE "clock"

int session_fence_open(struct sessions *s, struct rod_error *err) {
    unsigned char random[8];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return rod_fail(err, ROD_EINTERNAL, "The system has no random numbers for the name of this server.");
    for (size_t i = 0; i < sizeof random; i++) snprintf(s->server_id + 2 * i, 3, "%02x", random[i]);
    state_guard_init(&s->guard, s->config.home);
    const struct state_home home = state_guard_home(&s->guard);
    s->store.home = state_home_below(&home, "s/");
    s->config.disk_bytes = 0; /* a store has no limit of ours */
    assert(session_fenced(s));
    const int rc = session_locate_key(&s->names, &s->store.home, err);
    if (!rc) session_fence_set_clock(s);
    return rc;
}

/* A file that was just written has the store's time. */
void session_fence_set_clock(struct sessions *s) {
    enum { SLACK_S = 2 }; /* that a request may take */
    const struct state_bytes bytes = {s->server_id, strlen(s->server_id)};
    struct state_disk_item item = {.name = CLOCK_FILE, .parts = &bytes, .n_parts = 1};
    struct state_disk_version found;
    const int64_t before_s = clock_unix_s();
    state_home_write(&s->store.home, &item, 1);
    if (item.rc || state_home_stat(&s->store.home, CLOCK_FILE, &found, NULL) || !found.mtime_ns) return;
    const int64_t there_s = (int64_t)(found.mtime_ns / 1000000000u), after_s = clock_unix_s();
    const bool right = there_s >= before_s - SLACK_S && there_s <= after_s + SLACK_S;
    atomic_store_explicit(&s->clock_ahead, right ? 0 : there_s - before_s, memory_order_relaxed);
}

void session_fence_forget(struct sessions *s, struct session *x) {
    session_lock(s);
    assert(x->hold != SESSION_FREE);
    for (struct session_kept *k = x->kept; k; k = k->next) k->stays = true;
    x->failed_ns = x->unsure_hash = 0;
    struct session_snapshot *old = session_table_unset(&s->table, x);
    session_unlock(s);
    session_snapshot_release(old);
}

bool session_fence_find_own(struct sessions *s, struct session *x, struct session_file_version *found) {
    struct session_read read;
    if (!x->unsure_hash || session_store_read(&s->store, x->name, false, &read, NULL)) return false;
    const bool own = read.snapshot->token_hash == x->unsure_hash && read.metadata.version == x->unsure_version;
    *found = read.file_version;
    session_read_fini(&read);
    return own;
}

int session_fence_judge(const struct session_read *read, int rc, struct rod_error *err) {
    char why[300];
    if (rc != ROD_ESTATE || !read->changed) return rc;
    snprintf(why, sizeof why, "%.299s", err->message);
    return rod_fail(err, ROD_EIO, "The store does not give what was written: %s", why);
}
