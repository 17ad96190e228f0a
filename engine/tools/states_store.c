/* states_store.c - what lies in a store of states, object by object:
 *
 *   v1/MODEL/s/TENANT/SESSION.state, .VERSION.kept, .lazy     v1/MODEL/p/...     v1/MODEL/c/TENANT/CONVERSATION/...
 *
 * A removal says which version it means, and loses where a server has written another one since. */
#include "states_internal.h"
#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"
#include "engine/session/store/session_places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A server writes an earlier turn before the session that lists it, and a lazy turn's mark before its session. */
enum { SETTLED_S = 3600 };

static void take_version(const struct state_disk_version *version, struct rod_state_file *out) {
    out->n_bytes = version->n_bytes;
    out->inode = version->inode;
    out->mtime_ns = version->mtime_ns;
    out->used_unix_s = (int64_t)(version->mtime_ns / 1000000000u);
    memcpy(out->etag, version->etag, sizeof out->etag);
}

static void session_of(const char *name, char *session, size_t size) {
    const char *half = strrchr(name, '/');
    snprintf(session, size, "%.*s/%.*s.state", (int)(half - name), name, STATES_HALF_DIGITS, half + 1);
}

static bool is_left(const struct state_home *home, const struct rod_state_file *out) {
    char session[sizeof out->name + 8];
    struct session_metadata metadata;
    uint64_t version;
    if (out->used_unix_s + SETTLED_S > clock_unix_s()) return false;
    if (out->kind != ROD_STATE_KEPT) return out->kind == ROD_STATE_MARK;
    session_of(out->name, session, sizeof session);
    const int rc = states_metadata_read(home, session, &metadata, NULL);
    if (rc) return rc == ROD_ENOTFOUND;
    return states_is_kept(strrchr(out->name, '/') + 1 + STATES_HALF_DIGITS, &version) &&
           session_places_find(&metadata, version) == metadata.n_kept;
}

static void take_object(const struct state_home *home, struct rod_state_file *out) {
    static const struct states no_key;
    char tenant[sizeof out->tenant];
    memcpy(tenant, out->tenant, sizeof tenant);
    if (out->kind != ROD_STATE_NOTES && out->kind != ROD_STATE_MARK) states_take_header(&no_key, home, out->name, out);
    memcpy(out->tenant, tenant, sizeof tenant);
    out->left = is_left(home, out);
}

int states_store_look(const struct state_home *home, const char *name, struct rod_state_file *out,
                      struct rod_error *err) {
    struct state_disk_version version;
    if (!states_take_name(name, out)) return rod_fail(err, ROD_ENOTFOUND, "%.200s is no state.", name);
    const int rc = state_home_stat(home, name, &version, err);
    if (rc) return rc;
    take_version(&version, out);
    take_object(home, out);
    return 0;
}

/* ---- all ---- */

struct page {
    struct rod_state_file *files; /* [n] */
    size_t n, cap;
    char last[STATE_HOME_MAX_NAME + 1];
    bool no_memory;
};

static void on_found(void *arg, const char *name, const struct state_disk_version *version) {
    struct page *p = arg;
    struct rod_state_file file;
    snprintf(p->last, sizeof p->last, "%s", name);
    if (!states_take_name(name, &file)) return;
    take_version(version, &file);
    if (ARRAY_RESERVE(p->files, p->cap, p->n, 1))
        p->files[p->n++] = file;
    else
        p->no_memory = true;
}

static bool of_one_conversation(const struct rod_state_file *a, const struct rod_state_file *b) {
    const size_t n = (size_t)(strrchr(a->name, '/') - a->name) + 1;
    return (a->kind == ROD_STATE_CONVERSATION || a->kind == ROD_STATE_NOTES) && !strncmp(a->name, b->name, n);
}

/* An object of a conversation was used when the newest was. Returns for how many that is known: the last conversation
 * may go on in the next page. */
static size_t share_times(struct page *p, bool more) {
    size_t begin = 0;
    for (size_t end; begin < p->n; begin = end) {
        int64_t used_s = p->files[begin].used_unix_s;
        for (end = begin + 1; end < p->n && of_one_conversation(&p->files[begin], &p->files[end]); end++)
            if (p->files[end].used_unix_s > used_s) used_s = p->files[end].used_unix_s;
        if (end == p->n && more) break;
        for (size_t i = begin; i < end; i++) p->files[i].used_unix_s = used_s;
    }
    return begin;
}

int states_store_list(const struct state_home *home, void (*found)(void *arg, const struct rod_state_file *file),
                      void *arg, struct rod_error *err) {
    struct page p = {0};
    bool more = true;
    int rc = 0;
    while (!rc && more) {
        char after[sizeof p.last];
        memcpy(after, p.last, sizeof after);
        rc = state_home_list(home, STATES_LAYOUT, after, on_found, &p, &more, err);
        if (!rc && p.no_memory) rc = rod_fail_no_memory(err);
        const size_t n = share_times(&p, more);
        for (size_t i = 0; !rc && i < n; i++) {
            take_object(home, &p.files[i]);
            found(arg, &p.files[i]);
        }
        if (n) memmove(p.files, p.files + n, (p.n - n) * sizeof *p.files);
        p.n -= n;
    }
    free(p.files);
    return rc;
}

/* ---- removing ---- */

struct rest {
    const struct state_home *home;
    char last[STATE_HOME_MAX_NAME + 1];
};

static void drop_own(void *arg, const char *name, const struct state_disk_version *version) {
    struct rest *r = arg;
    struct rod_state_file file;
    snprintf(r->last, sizeof r->last, "%s", name);
    if (states_take_name(name, &file) && (file.kind == ROD_STATE_KEPT || file.kind == ROD_STATE_MARK))
        state_home_remove(r->home, name, version, NULL);
}

int states_store_remove(const struct state_home *home, const struct rod_state_file *seen, struct rod_error *err) {
    struct state_disk_version version = {.inode = seen->inode, .mtime_ns = seen->mtime_ns, .n_bytes = seen->n_bytes};
    struct rod_state_file now;
    struct rest r = {.home = home};
    bool more = seen->kind == ROD_STATE_SESSION;
    memcpy(version.etag, seen->etag, sizeof version.etag);
    int rc = states_store_look(home, seen->name, &now, err);
    if (!rc && (strcmp(now.etag, seen->etag) != 0 || now.left != seen->left)) rc = ROD_ECONFLICT;
    if (!rc) rc = state_home_remove(home, seen->name, &version, err);
    if (rc == ROD_ECONFLICT) return rod_fail(err, rc, "%.200s has been used meanwhile.", seen->name);
    char prefix[sizeof seen->name];
    snprintf(prefix, sizeof prefix, "%.*s", (int)(strlen(seen->name) - strlen("state")), seen->name);
    while (!rc && more) {
        char after[sizeof r.last];
        memcpy(after, r.last, sizeof after);
        if (state_home_list(home, prefix, after, drop_own, &r, &more, NULL)) break; /* gc finds the rest */
    }
    return rc;
}
