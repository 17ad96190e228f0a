/* session_tenants.c - see session_internal.h: which sessions a tenant has in a fenced home.
 *
 * The table knows what this server used. A tenant's sessions lie in the store under one prefix, so its list is read,
 * and of sessions that the table does not know in that version the header, several at once; for some seconds what was
 * read counts. Entries of sessions that nobody uses here go again, past a number. */
#include "session_internal.h"
#include "engine/base/array.h"
#include "engine/base/fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { READERS = 8, MOST_ENTRIES = 16384 };
#define FRESH_NS ((uint64_t)4 * 1000000000u)

/* ---- what is known ---- */

static struct session_listed *tenants_find_locked(struct sessions *s, const char *tenant) {
    for (int i = 0; i < SESSIONS_MAX_LISTED; i++)
        if (s->listed[i].counted_ns && !strcmp(s->listed[i].tenant, tenant)) return &s->listed[i];
    return NULL;
}

/* In the place of the tenant that was looked at longest ago. */
static struct session_listed *tenants_place_locked(struct sessions *s, const char *tenant) {
    struct session_listed *found = tenants_find_locked(s, tenant);
    for (int i = 0; !found && i < SESSIONS_MAX_LISTED; i++)
        if (!s->listed[i].counted_ns) found = &s->listed[i];
    if (found) return found;
    found = &s->listed[0];
    for (int i = 1; i < SESSIONS_MAX_LISTED; i++)
        if (s->listed[i].counted_ns < found->counted_ns) found = &s->listed[i];
    return found;
}

static void tenants_note(struct sessions *s, const char *tenant, uint64_t n, bool read) {
    const uint64_t now_ns = clock_now_ns();
    session_lock(s);
    struct session_listed *at = tenants_place_locked(s, tenant);
    const uint64_t read_ns = strcmp(at->tenant, tenant) ? 0 : at->read_ns;
    *at = (struct session_listed){.counted_ns = now_ns, .read_ns = read ? now_ns : read_ns, .n = n};
    snprintf(at->tenant, sizeof at->tenant, "%s", tenant);
    session_unlock(s);
}

static bool tenants_fresh(struct sessions *s, const char *tenant, bool read, uint64_t *n) {
    session_lock(s);
    const struct session_listed *at = tenants_find_locked(s, tenant);
    const uint64_t when_ns = !at ? 0 : read ? at->read_ns : at->counted_ns;
    const bool fresh = when_ns && clock_now_ns() - when_ns < FRESH_NS;
    *n = at ? at->n : 0;
    session_unlock(s);
    return fresh;
}

static void tenants_change(struct sessions *s, const char *tenant, bool more) {
    session_lock(s);
    struct session_listed *at = tenants_find_locked(s, tenant);
    if (at) at->n += more ? 1 : at->n ? UINT64_MAX : 0;
    session_unlock(s);
    if (more)
        session_count(&s->n_stored, 1);
    else if (atomic_load_explicit(&s->n_stored, memory_order_relaxed))
        session_count(&s->n_stored, UINT64_MAX);
}

void session_tenants_removed(struct sessions *s, const char *tenant) { tenants_change(s, tenant, false); }

void session_tenants_wrote(struct sessions *s, struct session *x, const struct session_write *w) {
    if (!session_fenced(s)) return;
    if (w->rc == ROD_ECONFLICT || w->rc == ROD_EUNSURE) session_fence_forget(s, x);
    session_lock(s);
    if (!w->rc) x->scan = s->n_scans; /* a list that was read before does not know it */
    session_unlock(s);
    if (!w->rc && w->replaces && !w->replaces->n_bytes) tenants_change(s, w->metadata->tenant, true);
}

/* ---- the list ---- */

struct tenants_file {
    uint8_t name[SESSION_NAME_BYTES];
    char etag[STATE_DISK_ETAG_BYTES];
};

struct tenants_list {
    struct sessions *s;
    struct tenants_file *files;
    size_t n, cap;
    bool no_memory;
    char last[SESSION_FILE_NAME_BYTES];
};

static void tenants_found(void *arg, const char *file, const struct state_disk_version *version) {
    struct tenants_list *list = arg;
    snprintf(list->last, sizeof list->last, "%s", file);
    uint8_t name[SESSION_NAME_BYTES];
    if (!session_store_parse_name(&list->s->store, file, name)) return;
    struct tenants_file *files = ARRAY_RESERVE(list->files, list->cap, list->n, 1) ? list->files : NULL;
    list->no_memory |= !files;
    if (!files) return;
    memcpy(files[list->n].name, name, sizeof name);
    memcpy(files[list->n++].etag, version->etag, sizeof version->etag);
}

static int tenants_list(struct sessions *s, const char *tenant, struct tenants_list *list, struct rod_error *err) {
    uint8_t half[SESSION_NAME_HALF_BYTES];
    char prefix[2 * SESSION_NAME_HALF_BYTES + 2];
    bool more = true;
    int rc = 0;
    *list = (struct tenants_list){.s = s};
    session_names_tenant(&s->names, tenant, half);
    for (size_t i = 0; i < sizeof half; i++) snprintf(prefix + 2 * i, 3, "%02x", half[i]);
    memcpy(prefix + 2 * sizeof half, "/", 2);
    while (!rc && more && !list->no_memory) {
        char after[SESSION_FILE_NAME_BYTES];
        memcpy(after, list->last, sizeof after);
        rc = state_home_list(&s->store.home, prefix, after, tenants_found, list, &more, err);
        if (!rc && more && !strcmp(after, list->last))
            rc = rod_fail(err, ROD_EIO, "The store's list of a key's sessions does not end.");
    }
    return !rc && list->no_memory ? rod_fail_no_memory(err) : rc;
}

int session_tenants_count(struct sessions *s, const char *tenant, uint64_t *n, struct rod_error *err) {
    struct tenants_list list;
    if (tenants_fresh(s, tenant, false, n)) return 0;
    const int rc = tenants_list(s, tenant, &list, err);
    if (!rc) tenants_note(s, tenant, *n = list.n, false);
    free(list.files);
    return rc;
}

/* ---- headers ---- */

static bool tenants_known(struct sessions *s, const struct tenants_file *file) {
    session_lock(s);
    const struct session *x = session_table_find_name(&s->table, file->name);
    const bool known = x && x->exists && (x->dirty || !session_idle(x) || !strcmp(x->file_version.etag, file->etag));
    session_unlock(s);
    return known;
}

void session_tenants_learn(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES],
                           const struct session_read *read) {
    const struct session_metadata *m = &read->metadata;
    struct session_snapshot *old = NULL;
    session_lock(s);
    struct session *x = session_table_find(&s->table, m->tenant, m->id);
    if (!x) x = session_table_add(&s->table, m->tenant, m->id);
    if (x && session_idle(x) && !(x->exists && x->dirty)) {
        old = session_table_set(&s->table, x, m, NULL, NULL);
        session_table_name(&s->table, x, name);
        session_table_set_file(&s->table, x, &read->file_version);
        x->scan = s->n_scans;
    }
    session_unlock(s);
    session_snapshot_release(old);
    session_kept_learn(s, m->tenant, m->id);
}

struct tenants_reader {
    pthread_t thread;
    struct tenants_list *list;
    atomic_size_t *next;
    int rc;
    struct rod_error err;
};

static void *tenants_read_some(void *arg) {
    struct tenants_reader *r = arg;
    struct sessions *s = r->list->s;
    for (size_t i; !r->rc && (i = atomic_fetch_add(r->next, 1)) < r->list->n;) {
        const struct tenants_file *file = &r->list->files[i];
        struct session_read read;
        if (tenants_known(s, file)) continue;
        const int rc = session_store_read(&s->store, file->name, false, &read, &r->err);
        if (rc == ROD_ESTATE) session_folder_refused(s, file->name, &read.file_version, &r->err);
        if (rc && rc != ROD_ESTATE && rc != ROD_ENOTFOUND) r->rc = rc;
        if (rc) continue;
        session_tenants_learn(s, file->name, &read);
        session_read_fini(&read);
    }
    return NULL;
}

static int tenants_read_headers(struct tenants_list *list, struct rod_error *err) {
    struct tenants_reader readers[READERS];
    atomic_size_t next = 0;
    size_t n = 0;
    int rc = 0;
    for (size_t i = 0; i < READERS; i++) readers[i] = (struct tenants_reader){.list = list, .next = &next};
    while (n + 1 < READERS && n + 1 < list->n &&
           !pthread_create(&readers[n + 1].thread, NULL, tenants_read_some, &readers[n + 1]))
        n++;
    tenants_read_some(&readers[0]);
    for (size_t i = 0; i <= n; i++) {
        if (i) pthread_join(readers[i].thread, NULL);
        if (readers[i].rc && !rc) {
            rc = readers[i].rc;
            if (err) *err = readers[i].err;
        }
    }
    return rc;
}

static int tenants_compare(const void *a, const void *b) {
    return memcmp(((const struct tenants_file *)a)->name, ((const struct tenants_file *)b)->name, SESSION_NAME_BYTES);
}

/* Sessions of the tenant that the store has no more go from the table, unless somebody has them, or met them since.
 * True: there may be more. */
static bool tenants_forget_some(struct sessions *s, const char *tenant, const struct tenants_list *list,
                                uint64_t number) {
    enum { SOME = 64 };
    struct session_snapshot *old[SOME];
    size_t n_old = 0;
    session_lock(s);
    const size_t end = session_tree_rank(&s->table, tenant, NULL, true);
    for (size_t at = end, begin = session_tree_rank(&s->table, tenant, "", false); at-- > begin && n_old < SOME;) {
        struct session *x = session_tree_at(&s->table, at);
        if (!x->exists || !x->named || x->dirty || !session_idle(x) || x->scan >= number) continue;
        struct tenants_file key;
        memcpy(key.name, x->name, sizeof key.name);
        if (list->n && bsearch(&key, list->files, list->n, sizeof key, tenants_compare)) continue;
        for (struct session_kept *k = x->kept; k; k = k->next) k->stays = true;
        old[n_old++] = session_table_unset(&s->table, x);
        session_table_remove(&s->table, x);
    }
    session_unlock(s);
    const bool more = n_old == SOME;
    while (n_old) session_snapshot_release(old[--n_old]);
    return more;
}

static void tenants_forget_missing(struct sessions *s, const char *tenant, struct tenants_list *list, uint64_t number) {
    if (list->n) qsort(list->files, list->n, sizeof *list->files, tenants_compare);
    while (tenants_forget_some(s, tenant, list, number)) continue;
}

int session_tenants_read(struct sessions *s, const char *tenant, struct rod_error *err) {
    struct tenants_list list;
    uint64_t n;
    if (tenants_fresh(s, tenant, true, &n)) return 0;
    session_lock(s);
    const uint64_t number = ++s->n_scans;
    session_unlock(s);
    int rc = tenants_list(s, tenant, &list, err);
    if (!rc) rc = tenants_read_headers(&list, err);
    if (!rc) tenants_forget_missing(s, tenant, &list, number);
    if (!rc) tenants_note(s, tenant, list.n, true);
    free(list.files);
    return rc;
}

/* ---- entries ---- */

static bool tenants_read_lately_locked(struct sessions *s, const char *tenant) {
    const struct session_listed *at = tenants_find_locked(s, tenant);
    return at && at->read_ns && clock_now_ns() - at->read_ns < 2 * FRESH_NS;
}

void session_tenants_trim(struct sessions *s) {
    session_lock(s);
    struct session *next, *x = session_oldest(&s->table, SESSION_ALL);
    for (; x && s->table.n_exist - s->table.n_snapshots > MOST_ENTRIES; x = next) {
        next = session_newer(&s->table, x, SESSION_ALL);
        if (!x->exists || x->snapshot || x->dirty || !session_idle(x)) continue;
        if (tenants_read_lately_locked(s, x->metadata.tenant)) continue;
        for (struct session_kept *k = x->kept; k; k = k->next) k->stays = true;
        session_table_unset(&s->table, x); /* it has no snapshot */
        session_table_remove(&s->table, x);
    }
    session_unlock(s);
}
