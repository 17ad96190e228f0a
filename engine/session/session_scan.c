/* session_scan.c - see session_internal.h: the files of the folder, as other servers leave them. */
#include "session_internal.h"
#include "engine/base/array.h"
#include "engine/base/fail.h"
#include "engine/session/store/session_locate.h"

#include <stdlib.h>
#include <string.h>

#define NS_S ((uint64_t)1000000000u)

struct scan_found {
    uint8_t name[SESSION_NAME_BYTES];
    struct session_metadata metadata;
    struct session_file_version file_version;
};
struct scan {
    struct sessions *s;
    uint64_t number;
    struct scan_found **found;
    size_t n_found, cap;
    bool no_memory;
    uint64_t n_refused;
    struct rod_error refused; /* of the first refused file */
};

/* ---- one file ---- */

/* Whether the table, or the list of refused files, has this file already. */
static bool scan_is_known(struct scan *scan, const uint8_t name[SESSION_NAME_BYTES],
                          const struct session_file_version *file_version) {
    struct sessions *s = scan->s;
    session_lock(s);
    struct session *x = session_table_find_name(&s->table, name);
    if (x) x->scan = scan->number;
    const bool known =
        (x && (x->hold != SESSION_FREE || x->dirty || session_file_version_alike(&x->file_version, file_version))) ||
        session_refusals_know(&s->refusals, name, file_version, scan->number);
    session_unlock(s);
    return known;
}

/* The table has this version; another server used it alone. */
static bool scan_is_only_used(struct scan *scan, const uint8_t name[SESSION_NAME_BYTES]) {
    struct sessions *s = scan->s;
    struct session_file_version file_version;
    if (session_store_stat(&s->store, name, &file_version, NULL)) return false;
    session_lock(s);
    struct session *x = session_table_find_name(&s->table, name);
    const bool known = x && x->exists && session_file_version_same(&x->file_version, &file_version);
    if (known) session_hold_met_locked(s, x, &file_version);
    session_unlock(s);
    return known;
}

static void scan_refuse(struct scan *scan, const uint8_t name[SESSION_NAME_BYTES], const struct rod_error *err) {
    struct session_file_version file_version;
    if (session_store_stat(&scan->s->store, name, &file_version, NULL) ||
        !session_folder_refuse(scan->s, name, &file_version))
        return;
    if (!scan->n_refused++) scan->refused = *err;
}

static void scan_log_refused(const struct scan *scan) {
    if (scan->n_refused == 1)
        session_log(scan->s, 2, "state_dir: refused and left alone: %s", scan->refused.message);
    else if (scan->n_refused)
        session_log(scan->s, 2, "state_dir: %llu files are refused and left alone; the first: %s",
                    (unsigned long long)scan->n_refused, scan->refused.message);
}

static void scan_add_found(struct scan *scan, const uint8_t name[SESSION_NAME_BYTES], const struct session_read *read) {
    struct scan_found *found = ARRAY_RESERVE(scan->found, scan->cap, scan->n_found, 1) ? malloc(sizeof *found) : NULL;
    scan->no_memory |= !found;
    if (!found) return;
    *found = (struct scan_found){.metadata = read->metadata, .file_version = read->file_version};
    memcpy(found->name, name, sizeof found->name);
    scan->found[scan->n_found++] = found;
}

static void scan_read_file(void *arg, const uint8_t name[SESSION_NAME_BYTES]) {
    struct scan *scan = arg;
    struct sessions *s = scan->s;
    struct session_file_version file_version;
    struct session_read read;
    struct rod_error err;
    if (session_store_glance(&s->store, name, &file_version, &err) || scan_is_known(scan, name, &file_version)) return;
    if (scan_is_only_used(scan, name)) return;
    int rc = session_store_read(&s->store, name, false, &read, &err);
    if (!rc && session_locate_superseded(&s->store, read.metadata.tenant, read.metadata.id, name)) {
        rc = rod_fail(&err, ROD_ESTATE, "%s: its session has another file, named with the folder's key",
                      read.metadata.id);
        session_read_fini(&read);
    }
    if (rc == ROD_ESTATE) scan_refuse(scan, name, &err);
    if (rc) return;
    scan_add_found(scan, name, &read);
    session_read_fini(&read);
}

/* ---- into the table ---- */

static int scan_compare_use(const void *a, const void *b) {
    const int64_t x = (*(struct scan_found *const *)a)->metadata.used_s,
                  y = (*(struct scan_found *const *)b)->metadata.used_s;
    return (x > y) - (x < y);
}

/* The sessions used longest ago first, so that each goes to the end of the table's lists. Frees what was found. */
static void scan_learn(struct scan *scan) {
    struct sessions *s = scan->s;
    if (scan->n_found) qsort(scan->found, scan->n_found, sizeof(struct scan_found *), scan_compare_use);
    for (size_t i = 0; i < scan->n_found; i++) {
        const struct scan_found *f = scan->found[i];
        struct session_snapshot *old = NULL;
        session_lock(s);
        struct session *x = session_table_find(&s->table, f->metadata.tenant, f->metadata.id);
        if (!x) x = session_table_add(&s->table, f->metadata.tenant, f->metadata.id);
        if (x && session_idle(x) && !(x->exists && x->dirty)) {
            old = session_table_set(&s->table, x, &f->metadata, NULL, NULL);
            session_table_name(&s->table, x, f->name);
            session_table_set_file(&s->table, x, &f->file_version);
            x->scan = scan->number;
        }
        session_unlock(s);
        session_snapshot_release(old);
        if (f->metadata.n_kept) session_kept_learn(s, f->metadata.tenant, f->metadata.id);
        free(scan->found[i]);
    }
    free(scan->found);
}

/* Its file was not met by the scan; EVERY: met or not. A dirty session is newer in memory, has its lease, and will be
 * written again. */
#define EVERY UINT64_MAX
static bool scan_is_missing(const struct session *x, uint64_t number) {
    return x->scan < number && session_idle(x) && x->exists && !x->dirty && x->file_version.n_bytes;
}

static void scan_forget_file(struct sessions *s, uint64_t number, const uint8_t name[SESSION_NAME_BYTES],
                             const struct session_file_version *file_version) {
    struct session_file_version found;
    if (session_store_stat(&s->store, name, &found, NULL) != ROD_ENOTFOUND) return; /* there, or another error */
    struct session_snapshot *old = NULL;
    session_lock(s);
    struct session *x = session_table_find_name(&s->table, name);
    if (x && scan_is_missing(x, number) && session_file_version_alike(&x->file_version, file_version)) {
        old = session_table_unset(&s->table, x);
        session_table_remove(&s->table, x);
    }
    session_unlock(s);
    session_snapshot_release(old);
}

/* Sessions whose files are gone. */
static void scan_forget_missing(struct sessions *s, uint64_t number) {
    struct lost {
        uint8_t name[SESSION_NAME_BYTES];
        struct session_file_version file_version;
    } *lost = NULL;
    size_t n = 0, cap = 0;
    session_lock(s);
    const struct session *x;
    for (x = session_oldest(&s->table, SESSION_ALL); x; x = session_newer(&s->table, x, SESSION_ALL))
        cap += scan_is_missing(x, number);
    if (cap) lost = malloc(cap * sizeof *lost);
    for (x = session_oldest(&s->table, SESSION_ALL); lost && x; x = session_newer(&s->table, x, SESSION_ALL)) {
        if (!scan_is_missing(x, number)) continue;
        memcpy(lost[n].name, x->name, sizeof x->name);
        lost[n++].file_version = x->file_version;
    }
    session_unlock(s);
    assert(n <= cap);
    for (size_t i = 0; i < n; i++) scan_forget_file(s, number, lost[i].name, &lost[i].file_version);
    free(lost);
}

int session_scan_all(struct sessions *s, struct rod_error *err) {
    if (!session_on_disk(s) || session_fenced(s)) return 0;
    session_lock(s);
    const uint64_t number = ++s->n_scans;
    session_unlock(s);
    struct scan scan = {.s = s, .number = number};
    int rc = session_folder_here(s, err);
    if (!rc) rc = session_store_list(&s->store, scan_read_file, &scan, err);
    scan_learn(&scan);
    scan_log_refused(&scan);
    if (!rc) scan_forget_missing(s, number);
    session_lock(s);
    if (!rc) session_refusals_keep(&s->refusals, number);
    session_unlock(s);
    return rc || !scan.no_memory ? rc : rod_fail_no_memory(err);
}

/* ---- changes ---- */

static void scan_changed_file(void *arg, const char *file) {
    struct scan *scan = arg;
    struct sessions *s = scan->s;
    uint8_t name[SESSION_NAME_BYTES];
    struct session_file_version known = {0}, file_version;
    uint64_t version;
    if (session_store_parse_kept(&s->store, file, name, &version)) session_kept_changed(s, name, version);
    if (!session_store_parse_name(&s->store, file, name)) return;
    session_lock(s);
    const struct session *x = session_table_find_name(&s->table, name);
    if (x) known = x->file_version;
    session_unlock(s);
    const int rc = session_store_glance(&s->store, name, &file_version, NULL);
    if (!rc)
        scan_read_file(scan, name);
    else if (rc == ROD_ENOTFOUND && !session_folder_here(s, NULL)) /* gone, and not with the whole folder */
        scan_forget_file(s, EVERY, name, &known);
}

/* Reading the whole folder takes a twentieth of one thread's time at most, however many callers want it. */
static bool scan_may_read_all(const struct sessions *s, uint64_t now_ns) {
    const uint64_t pause_ns = 20 * s->reading_ns > NS_S ? 20 * s->reading_ns : NS_S;
    return !s->read_ns || now_ns - s->read_ns >= pause_ns;
}

int session_scan_changes(struct sessions *s, bool asked, struct rod_error *err) {
    if (!session_on_disk(s) || session_fenced(s)) return 0;
    int rc = session_folder_here(s, err);
    if (rc) return rc;
    pthread_mutex_lock(&s->watch_lock);
    session_lock(s);
    struct scan scan = {.s = s, .number = s->n_scans};
    session_unlock(s);
    const bool known = session_watch_take(&s->watch, s->dir, scan_changed_file, &scan);
    scan_learn(&scan);
    scan_log_refused(&scan);
    s->unread |= !known;
    const uint64_t begin_ns = clock_now_ns();
    if (s->unread && (asked || s->watch.on) && scan_may_read_all(s, begin_ns)) {
        rc = session_scan_all(s, err);
        const uint64_t end_ns = clock_now_ns();
        s->read_ns = rc ? 0 : end_ns;
        s->reading_ns = end_ns - begin_ns;
        s->unread = rc != 0;
    }
    pthread_mutex_unlock(&s->watch_lock);
    return rc;
}
