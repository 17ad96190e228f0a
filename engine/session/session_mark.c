/* session_mark.c - see session_internal.h: marks of lazy turns in a fenced home.
 *
 * A lazy turn ends before its session is written, so another server must know that a version comes. The mark is a small
 * file beside the session's, made only where there is none: of the servers that ran a turn from one version one gets
 * it, and the others' turns end in ROD_ECONFLICT before anybody was told of them. A server that finds another's mark
 * waits for the write, for a bounded time: then the mark's server is taken for lost, with that turn, as `lazy` says. A
 * mark is no lock: a write's condition alone decides, so a server that comes back too late loses. */
#include "session_internal.h"
#include "engine/base/fail.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MARK_END   ".lazy"
#define MARK_BEGIN "rodimus lazy 1 "
enum { MARK_BYTES = sizeof MARK_BEGIN - 1 + 16 + 1 + 16 + 1 };

static void mark_write(const struct sessions *s, uint64_t version, char text[MARK_BYTES + 1]) {
    const int n = snprintf(text, MARK_BYTES + 1, MARK_BEGIN "%s %016" PRIx64 "\n", s->server_id, version);
    assert(n == MARK_BYTES);
    (void)n;
}

/* What is damaged is nobody's, of version 0. */
static void mark_parse(const struct sessions *s, const char *text, size_t n, struct session_mark *mark) {
    char again[MARK_BYTES + 1];
    *mark = (struct session_mark){.there = true};
    if (n != MARK_BYTES || strncmp(text, MARK_BEGIN, sizeof MARK_BEGIN - 1) != 0) return;
    const char *server = text + sizeof MARK_BEGIN - 1, *digits = server + 16 + 1;
    mark->version = strtoull(digits, NULL, 16);
    snprintf(again, sizeof again, "%016" PRIx64 "\n", mark->version);
    if (memcmp(again, digits, 16 + 1) != 0) mark->version = 0;
    mark->ours = !memcmp(server, s->server_id, 16);
}

int session_mark_look(struct sessions *s, struct session *x, struct session_mark *mark, struct rod_error *err) {
    char name[SESSION_FILE_NAME_BYTES], text[MARK_BYTES + 1] = "";
    struct state_disk_version version;
    size_t n = 0;
    assert(session_fenced(s) && x->named);
    *mark = (struct session_mark){0};
    const int rc = state_home_peek(&s->store.home, session_store_file(&s->store, x->name, MARK_END, name), text,
                                   MARK_BYTES, &n, &version, err);
    if (rc) return rc == ROD_ENOTFOUND ? 0 : rc;
    mark_parse(s, text, n, mark);
    memcpy(mark->etag, version.etag, sizeof mark->etag);
    return 0;
}

void session_mark_remove(struct sessions *s, struct session *x, const struct session_mark *mark) {
    char name[SESSION_FILE_NAME_BYTES];
    struct state_disk_version version = {0};
    memcpy(version.etag, mark->etag, sizeof version.etag);
    state_home_remove(&s->store.home, session_store_file(&s->store, x->name, MARK_END, name), &version, NULL);
}

void session_mark_end(struct sessions *s, struct session *x) {
    struct session_mark mark = {0};
    if (!session_fenced(s) || !*x->mark) return;
    memcpy(mark.etag, x->mark, sizeof mark.etag);
    x->mark[0] = 0;
    session_mark_remove(s, x, &mark);
}

/* The store has the version that the table has. */
static int mark_check_version(struct sessions *s, struct session *x, struct rod_error *err) {
    struct session_file_version found;
    const int rc = session_store_glance(&s->store, x->name, &found, err);
    session_lock(s);
    const bool same = rc ? !x->exists : x->exists && session_file_version_same(&found, &x->file_version);
    session_unlock(s);
    if (rc && rc != ROD_ENOTFOUND) return rc;
    return same ? 0 : ROD_ECONFLICT;
}

static int mark_outcome(struct sessions *s, struct session *x, const struct state_disk_item *item, bool alone,
                        struct rod_error *err) {
    int rc = item->rc == ROD_EEXISTS ? ROD_ECONFLICT : item->rc;
    if (rc && rc != ROD_ECONFLICT) {
        if (err) *err = item->err;
        return rc;
    }
    if (!rc) memcpy(x->mark, item->version.etag, sizeof x->mark);
    if (!rc && alone) rc = mark_check_version(s, x, err);
    if (rc) session_mark_end(s, x);
    if (rc == ROD_ECONFLICT)
        rc = rod_fail(err, rc, "Another server has a turn of session %.64s. Nothing of this one is kept: repeat it.",
                      x->metadata.id);
    return rc;
}

void session_mark_claim(struct sessions *s, struct session *const *sessions, const uint64_t *versions, bool alone,
                        int *rcs, struct rod_error *errs, size_t n) {
    char names[SESSIONS_BATCH][SESSION_FILE_NAME_BYTES], texts[SESSIONS_BATCH][MARK_BYTES + 1];
    struct state_bytes parts[SESSIONS_BATCH];
    struct state_disk_item items[SESSIONS_BATCH];
    size_t of[SESSIONS_BATCH], n_items = 0;
    assert(session_fenced(s) && n <= SESSIONS_BATCH);
    for (size_t i = 0; i < n; i++) {
        rcs[i] = 0;
        if (*sessions[i]->mark) continue; /* it stands since an earlier turn, which is not written yet */
        mark_write(s, versions[i], texts[n_items]);
        parts[n_items] = (struct state_bytes){texts[n_items], MARK_BYTES};
        items[n_items] =
            (struct state_disk_item){.name = session_store_file(&s->store, sessions[i]->name, MARK_END, names[n_items]),
                                     .parts = &parts[n_items],
                                     .n_parts = 1,
                                     .only_new = true};
        of[n_items++] = i;
    }
    state_home_write(&s->store.home, items, n_items);
    for (size_t k = 0; k < n_items; k++) rcs[of[k]] = mark_outcome(s, sessions[of[k]], &items[k], alone, &errs[of[k]]);
}
