/* sessions.c - see sessions.h: opening and closing, who holds a session, and what its file says of it. */
#include "session_internal.h"
#include "session_lease.h"
#include "engine/base/share.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void session_log(const struct sessions *s, int level, const char *format, ...) {
    if (!s->config.log) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    s->config.log(s->config.arg, level, line);
}

void session_trouble(struct sessions *s, enum session_trouble what, const char *format, ...) {
    uint64_t n_left_out = 0;
    pthread_mutex_lock(&s->lock);
    const bool due =
        s->closing || log_limit_due(&s->limits[what], session_now_ns(), &n_left_out); /* the last word is said */
    pthread_mutex_unlock(&s->lock);
    if (!due) return;
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    const int level = what == SESSION_REFUSED || what == SESSION_REPLACED ? 2 : 3;
    if (n_left_out)
        session_log(s, level, "%s (and %llu times like this since it was last said)", line,
                    (unsigned long long)n_left_out);
    else
        session_log(s, level, "%s", line);
}

/* ---- open and close ---- */

/* No turn of a session could end, so nobody is to believe that the server is ready. */
static int not_writable(const char *dir, const char *what, int number, struct rod_error *err) {
    return rod_fail(err, ROD_EIO,
                    "state_dir %.200s cannot be %s: %s. It must be a folder of uid %u, which the server runs as, on a "
                    "disk that can be written.",
                    dir, what, strerror(number), (unsigned)geteuid());
}

/* The folder exists, and takes files. */
static int try_dir(struct sessions *s, const char *dir, struct rod_error *err) {
    struct stat info;
    if (mkdir(dir, 0700) && errno != EEXIST) return not_writable(dir, "made", errno, err);
    s->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir_fd < 0 || fstat(s->dir_fd, &info)) return not_writable(dir, "read", errno, err);
    s->dir_device = (uint64_t)info.st_dev;
    s->dir_inode = (uint64_t)info.st_ino;
    const int number = state_disk_try(dir);
    if (number == ENOSPC || number == EDQUOT)
        session_log(s, 2, "state_dir: %s is full: turns of sessions fail until there is room", dir);
    else if (number)
        return not_writable(dir, "written", number, err);
    return 0;
}

/* A crash came between the two files of a fork, or before the second of one that is none any more was removed. */
static void sweep_one(void *arg, const uint8_t name[SESSION_NAME_BYTES]) {
    const struct sessions *s = arg;
    char text[SESSION_FILE_NAME_BYTES];
    int lease;
    if (session_lease_take(s->store.dir, session_store_name(name, text), &lease, NULL)) return; /* it is being made */
    session_store_remove_left(&s->store, name);
    session_lease_end(s->store.dir, text, lease);
}

void session_sweep_bases(struct sessions *s) { session_store_list_left(&s->store, sweep_one, s); }

static int open_dir(struct sessions *s, struct rod_error *err) {
    const char *dir = s->config.dir ? s->config.dir : "";
    if (!*dir) return 0;
    if (strlen(dir) >= sizeof s->store.dir) return rod_fail(err, ROD_EINVALID, "The path of state_dir is too long.");
    snprintf(s->store.dir, sizeof s->store.dir, "%s", dir);
    int rc = try_dir(s, dir, err);
    if (rc) return rc;
    uint32_t n_swept = 0;
    struct rod_error left;
    if (state_disk_sweep(dir, &n_swept, &left)) /* the files of others; what the folder holds can be read */
        session_log(s, 2, "state_dir: %s", left.message);
    session_lease_sweep(dir);
    session_sweep_bases(s);
    if (n_swept) session_log(s, 1, "state_dir: removed %u files that a crash left half written", n_swept);
    const int keyless = session_names_open(&s->names, dir, err);
    if (keyless == ROD_EIO)
        session_log(s, 2, "state_dir: %s", err->message);
    else if (keyless)
        return keyless;
    session_watch_open(&s->watch);
    rc = session_catch_up(s, true, err);
    if (!rc)
        session_log(s, 1, "state_dir: %llu sessions, %llu files refused", (unsigned long long)s->table.n_exist,
                    (unsigned long long)atomic_load(&s->refused));
    return rc;
}

static void free_all(struct sessions *s) {
    session_table_fini(&s->table);
    session_names_fini(&s->names);
    session_watch_close(&s->watch);
    pthread_mutex_destroy(&s->watch_lock);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
    pthread_cond_destroy(&s->keep);
    pthread_cond_destroy(&s->changed);
    session_refusals_fini(&s->refusals);
    if (s->dir_fd >= 0) close(s->dir_fd);
    free(s);
}

static void init_condition(pthread_cond_t *c) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(c, &attr);
    pthread_condattr_destroy(&attr);
}

int sessions_open(const struct sessions_config *config, struct sessions **out, struct rod_error *err) {
    struct sessions *s = calloc(1, sizeof *s);
    if (!s) return rod_fail(err, ROD_ENOMEM, "No memory for sessions.");
    s->config = *config;
    s->dir_fd = -1;
    snprintf(s->layout, sizeof s->layout, "%s", config->form.layout);
    s->config.form.layout = s->layout;
    s->store.form = &s->config.form;
    s->store.pool = config->pool;
    s->store.names = &s->names;
    s->watch.fd = -1;
    int rc = session_table_init(&s->table, err);
    if (rc) {
        free(s);
        return rc;
    }
    s->table.pool = config->pool;
    session_refusals_init(&s->refusals, s->table.key);
    session_names_init(&s->names);
    pthread_mutex_init(&s->watch_lock, NULL);
    pthread_mutex_init(&s->lock, NULL);
    init_condition(&s->work);
    init_condition(&s->keep);
    init_condition(&s->changed);
    rc = open_dir(s, err);
    if (!rc) rc = session_io_start(s, err);
    if (rc) {
        session_io_stop(s);
        free_all(s);
        return rc;
    }
    *out = s;
    return 0;
}

bool session_writing_locked(const struct sessions *s) {
    for (const struct session *x = s->table.oldest[SESSION_DIRTY]; x; x = x->newer[SESSION_DIRTY])
        if (x->hold == SESSION_WRITE) return true;
    return false;
}

/* Being written; or dirty, and the keeper has it for a budget and may spare it. */
static bool unwritten_locked(const struct sessions *s) {
    for (const struct session *x = s->table.oldest[SESSION_DIRTY]; x; x = x->newer[SESSION_DIRTY])
        if (x->hold == SESSION_WRITE || x->hold == SESSION_CALL) return true;
    return false;
}

uint64_t sessions_close(struct sessions *s) {
    if (!s) return 0;
    sessions_stop(s);
    pthread_mutex_lock(&s->lock);
    s->closing = true; /* one that cannot be written is not tried again */
    for (;;) {
        for (struct session *x; (x = session_table_to_write(&s->table, UINT64_MAX));) session_io_write_locked(s, x);
        if (!unwritten_locked(s)) break;
        pthread_cond_wait(&s->changed, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    session_io_stop(s);
    for (struct session *x = s->table.oldest[SESSION_ALL]; x; x = x->newer[SESSION_ALL])
        if (x->lease_fd >= 0) {
            char name[SESSION_FILE_NAME_BYTES];
            session_lease_end(s->store.dir, session_store_name(x->name, name), x->lease_fd);
            x->lease_fd = -1;
        }
    const uint64_t n_lost = s->n_lost;
    free_all(s);
    return n_lost;
}

void sessions_stats(struct sessions *s, struct rod_stats *out) {
    pthread_mutex_lock(&s->lock);
    out->sessions = s->table.n_exist;
    out->sessions_host = s->table.n_snapshots;
    out->sessions_file = s->table.n_exist - s->table.n_snapshots;
    out->state_file_bytes = s->table.files.all;
    pthread_mutex_unlock(&s->lock);
    struct state_pool_counts counts = {0};
    if (s->store.pool) state_pool_count(s->store.pool, &counts);
    out->state_host_bytes = counts.used_bytes;
    out->session_host_bytes = counts.place_bytes + counts.beside_bytes;
    out->state_saves = atomic_load_explicit(&s->saves, memory_order_relaxed);
    out->state_save_failures = atomic_load_explicit(&s->save_failures, memory_order_relaxed);
    out->state_no_room = atomic_load_explicit(&s->no_room, memory_order_relaxed);
    out->state_loads = atomic_load_explicit(&s->loads, memory_order_relaxed);
    out->state_refused = atomic_load_explicit(&s->refused, memory_order_relaxed);
    out->sessions_expired = atomic_load_explicit(&s->expired, memory_order_relaxed);
    out->sessions_evicted = atomic_load_explicit(&s->evicted, memory_order_relaxed);
    out->idempotent_replays = atomic_load_explicit(&s->replays, memory_order_relaxed);
}

/* ---- a disk that takes nothing ---- */

/* Nobody can bring that one back: whatever was made in its place is the folder now, as a new one at a start. */
static bool removed_for_good(const struct sessions *s) {
    struct stat info;
    return !fstat(s->dir_fd, &info) && !info.st_nlink;
}

int session_dir_here(const struct sessions *s, struct rod_error *err) {
    struct stat info;
    if (!session_on_disk(s)) return 0;
    if (stat(s->store.dir, &info))
        return rod_fail(err, ROD_EIO, "state_dir %.300s is gone: %s", s->store.dir, strerror(errno));
    if ((uint64_t)info.st_dev != s->dir_device)
        return rod_fail(err, ROD_EIO, "state_dir %.300s is on another disk than at the start: is its own not mounted?",
                        s->store.dir);
    if ((uint64_t)info.st_ino != s->dir_inode && !removed_for_good(s))
        return rod_fail(err, ROD_EIO,
                        "state_dir %.300s is another folder than at the start: bring its own back, or start again",
                        s->store.dir);
    bool restored;
    const int rc = session_names_keep(s->store.names, s->store.dir, &restored, err);
    if (restored) session_log(s, 2, "state_dir: names.key was gone from %.300s, and is put back", s->store.dir);
    return rc;
}

void session_write_all(const struct sessions *s, struct session_write *writes, size_t n) {
    struct rod_error err;
    const int rc = n ? session_dir_here(s, &err) : 0;
    for (size_t i = 0; rc && i < n; i++)
        if (!writes[i].rc) {
            writes[i].rc = rc;
            writes[i].err = err;
        }
    session_store_write(&s->store, writes, n);
}

void session_wrote(struct sessions *s, struct session *x, const struct session_write *w) {
    session_count(w->rc == ROD_ENOROOM ? &s->no_room : w->rc ? &s->save_failures : &s->saves, 1);
    pthread_mutex_lock(&s->lock);
    if (w->rc) session_table_reserve(&s->table, x, 0);
    if (!w->rc)
        s->disk_failed_ns = 0;
    else if (w->rc == ROD_EIO || w->rc == ROD_ENOROOM) /* else it is this session's fault alone */
        s->disk_failed_ns = session_now_ns();
    pthread_mutex_unlock(&s->lock);
}

bool session_stuck_locked(const struct sessions *s) {
    /* Where nothing waits to be written nobody asks the disk again: then the next turn does. */
    const bool fails = s->disk_failed_ns && session_now_ns() - s->disk_failed_ns < 3 * SESSIONS_RETRY_WRITE_NS;
    return session_on_disk(s) && fails && !session_table_to_drop(&s->table);
}

/* ---- holding ---- */

void session_release_locked(struct sessions *s, struct session *x) {
    x->hold = SESSION_FREE;
    x->current = false;
    if (x->line.head && !s->stopping)
        session_turn_start_locked(s, x);
    else if (!x->exists && !x->line.head)
        session_table_remove(&s->table, x);
    pthread_cond_broadcast(&s->changed);
}

void session_end_lease(struct sessions *s, struct session *x) {
    if (x->lease_fd < 0) return;
    pthread_mutex_lock(&s->lock);
    const bool keep = x->exists && x->dirty;
    x->current = false; /* from here on another server may have it */
    pthread_mutex_unlock(&s->lock);
    if (keep) return;
    char name[SESSION_FILE_NAME_BYTES];
    session_lease_end(s->store.dir, session_store_name(x->name, name), x->lease_fd);
    x->lease_fd = -1;
}

/* The name of its file as the folder has it now. Held. */
static int name_it(struct sessions *s, struct session *x, bool *changed, struct rod_error *err) {
    uint8_t name[SESSION_NAME_BYTES];
    const int rc = session_names_find(&s->store, x->metadata.tenant, x->metadata.id, name, err);
    *changed = !x->named || memcmp(name, x->name, sizeof name) != 0;
    if (rc || !*changed) return rc;
    pthread_mutex_lock(&s->lock);
    session_table_name(&s->table, x, name);
    pthread_mutex_unlock(&s->lock);
    return 0;
}

int session_take_lease(struct sessions *s, struct session *x, struct rod_error *err) {
    if (!session_on_disk(s) || x->lease_fd >= 0) return 0;
    int rc = session_dir_here(s, err);
    char text[SESSION_FILE_NAME_BYTES];
    uint8_t earlier[SESSION_NAME_BYTES];
    session_names_earlier(x->metadata.tenant, x->metadata.id, earlier);
    while (!rc) {
        bool changed = false;
        rc = x->named ? 0 : name_it(s, x, &changed, err);
        if (!rc) rc = session_lease_take(s->store.dir, session_store_name(x->name, text), &x->lease_fd, err);
        /* Under an earlier name it may have gone since, and others hold it under the other one. */
        if (rc || memcmp(x->name, earlier, sizeof earlier) != 0) return rc;
        rc = name_it(s, x, &changed, err);
        if (!rc && !changed) return 0;
        session_lease_end(s->store.dir, text, x->lease_fd);
        x->lease_fd = -1;
    }
    return rc;
}

int session_hold(struct sessions *s, const char *tenant, const char *id, struct session **out, struct rod_error *err) {
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    struct session *x;
    while ((x = session_table_find(&s->table, tenant, id)) && x->hold != SESSION_FREE && x->hold != SESSION_TURN &&
           !x->line.head)
        pthread_cond_wait(&s->changed, &s->lock);
    if (x && (x->hold == SESSION_TURN || x->line.head))
        rc = rod_fail(err, ROD_EBUSY, "A turn of session %s is running.", id);
    else if (!x && !(x = session_table_add(&s->table, tenant, id)))
        rc = rod_fail(err, ROD_ENOMEM, "No memory for a session.");
    else
        x->hold = SESSION_CALL;
    pthread_mutex_unlock(&s->lock);
    if (rc) return rc;
    rc = session_take_lease(s, x, err);
    if (rc == ROD_EBUSY) rod_fail(err, rc, "Another server has session %s.", id);
    if (rc) {
        session_unhold(s, x);
        return rc;
    }
    *out = x;
    return 0;
}

void session_unhold(struct sessions *s, struct session *x) {
    session_end_lease(s, x);
    pthread_mutex_lock(&s->lock);
    session_release_locked(s, x);
    pthread_mutex_unlock(&s->lock);
}

/* ---- how many ---- */

/* With the lock: within the limit of its tenant. None of its own: what others left free bounds it, where there are
 * others. */
static int within_tenant(const struct sessions *s, const char *tenant, uint64_t tenant_max, struct rod_error *err) {
    const uint64_t most = s->config.max_sessions, mine = session_table_n_of(&s->table, tenant);
    if (tenant_max && mine >= tenant_max)
        return rod_fail(err, ROD_EKEYSESSIONS, "This key has its limit of %llu sessions.",
                        (unsigned long long)tenant_max);
    if (!tenant_max && *tenant && most && mine && !share_fits(mine, session_table_n(&s->table), 1, most))
        return rod_fail(err, ROD_EKEYSESSIONS, "This key has its share of max_sessions: %llu of %llu.",
                        (unsigned long long)mine, (unsigned long long)most);
    return 0;
}

/* With the lock. 0: it counts. */
static int count_one(struct sessions *s, struct session *x, uint64_t tenant_max, enum state_pool_room *room,
                     struct rod_error *err) {
    const uint64_t most = s->config.max_sessions;
    *room = STATE_POOL_FITS;
    if (x->counted) return 0;
    if (most && session_table_n(&s->table) >= most)
        return rod_fail(err, ROD_ESESSIONS, "There are %llu sessions, and max_sessions is %llu.",
                        (unsigned long long)session_table_n(&s->table), (unsigned long long)most);
    const int beyond = within_tenant(s, x->metadata.tenant, tenant_max, err);
    if (beyond) return beyond;
    *room = state_pool_place(s->config.pool, SESSION_PLACE_BYTES);
    if (*room != STATE_POOL_FITS)
        return rod_fail(err, ROD_ENOROOM, "state_host_bytes have no room for one more session.");
    session_table_count(&s->table, x);
    return 0;
}

int session_claim(struct sessions *s, struct session *x, uint64_t tenant_max, struct rod_error *err) {
    for (;;) {
        enum state_pool_room room;
        pthread_mutex_lock(&s->lock);
        const int rc = count_one(s, x, tenant_max, &room, err);
        pthread_mutex_unlock(&s->lock);
        if (rc != ROD_ENOROOM) return rc;
        if (room == STATE_POOL_FULL && state_pool_ask(s->config.pool, SESSION_PLACE_BYTES)) continue;
        if (!session_replace(s)) return rc;
    }
}

/* ---- what the file says ---- */

bool session_refuse(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES],
                    const struct session_file_version *file_version) {
    pthread_mutex_lock(&s->lock);
    const bool new = session_refusals_add(&s->refusals, name, file_version, s->n_scans);
    pthread_mutex_unlock(&s->lock);
    if (new) session_count(&s->refused, 1);
    return new;
}

void session_refused(struct sessions *s, const uint8_t name[SESSION_NAME_BYTES],
                     const struct session_file_version *file_version, const struct rod_error *err) {
    if (session_refuse(s, name, file_version))
        session_trouble(s, SESSION_REFUSED, "state_dir: refused and left alone: %s", err->message);
}

void session_met_locked(struct sessions *s, struct session *x, const struct session_file_version *file_version) {
    if (!session_file_version_same(&x->file_version, file_version) ||
        x->file_version.mtime_ns == file_version->mtime_ns)
        return;
    x->file_version.inode = file_version->inode;
    x->file_version.mtime_ns = file_version->mtime_ns;
    session_table_use(&s->table, x, session_file_version_used_s(file_version));
}

/* Held, not dirty: nothing of it is there any more. */
static void forget(struct sessions *s, struct session *x) {
    pthread_mutex_lock(&s->lock);
    struct session_snapshot *old = session_table_unset(&s->table, x);
    pthread_mutex_unlock(&s->lock);
    session_snapshot_release(old);
}

int session_refresh(struct sessions *s, struct session *x, bool with_snapshot, struct rod_error *err) {
    if (!session_on_disk(s)) return 0;
    pthread_mutex_lock(&s->lock);
    const bool dirty = x->exists && x->dirty, has_point = x->snapshot != NULL;
    const struct session_file_version known = x->exists ? x->file_version : (struct session_file_version){0};
    pthread_mutex_unlock(&s->lock);
    if (dirty) return 0; /* nobody else can have written it: the lease is ours since then */
    struct session_file_version file_version;
    int rc = session_store_stat(&s->store, x->name, &file_version, err);
    if (rc == ROD_ENOTFOUND) {
        forget(s, x);
        return 0;
    }
    if (rc) return rc;
    if (session_file_version_same(&file_version, &known) && (has_point || !with_snapshot)) {
        pthread_mutex_lock(&s->lock);
        session_met_locked(s, x, &file_version);
        pthread_mutex_unlock(&s->lock);
        return 0;
    }
    struct session_read read;
    rc = session_store_read(&s->store, x->name, with_snapshot, &read, err);
    if (rc == ROD_ESTATE) session_refused(s, x->name, &file_version, err);
    if (rc) return rc;
    if (with_snapshot) session_count(&s->loads, 1);
    struct session_snapshot *snapshot = with_snapshot ? read.snapshot : NULL;
    struct session_answers *answers = with_snapshot ? read.answers : NULL;
    pthread_mutex_lock(&s->lock);
    struct session_snapshot *old = session_table_set(&s->table, x, &read.metadata, snapshot, answers);
    session_table_set_file(&s->table, x, &read.file_version);
    pthread_mutex_unlock(&s->lock);
    session_snapshot_release(old);
    if (!with_snapshot) session_read_fini(&read);
    return 0;
}

/* ---- looking, without holding ---- */

void session_view_fini(struct session_view *v) {
    session_snapshot_release(v->snapshot);
    session_answers_release(v->answers);
    *v = (struct session_view){0};
}

static void view_locked(const struct session *x, bool with_snapshot, struct session_view *out) {
    *out =
        (struct session_view){.metadata = x->metadata, .in_host = x->snapshot != NULL, .durable = session_durable(x)};
    if (out->durable) {
        out->file_version = x->file_version;
        memcpy(out->name, x->name, sizeof out->name);
    }
    out->busy = x->hold == SESSION_TURN || x->line.head;
    if (with_snapshot) {
        out->snapshot = session_snapshot_share(x->snapshot);
        out->answers = session_answers_share(x->answers);
    }
}

/* The table learns what a look found in the file, unless somebody holds the session. */
static void learn(struct sessions *s, const char *tenant, const char *id, const uint8_t name[SESSION_NAME_BYTES],
                  const struct session_read *read, bool with_snapshot) {
    struct session_snapshot *old = NULL;
    pthread_mutex_lock(&s->lock);
    struct session *x = session_table_find(&s->table, tenant, id);
    if (!x) x = session_table_add(&s->table, tenant, id);
    if (x && x->hold == SESSION_FREE && !x->line.head && !(x->exists && x->dirty)) {
        old = session_table_set(&s->table, x, &read->metadata,
                                with_snapshot ? session_snapshot_share(read->snapshot) : NULL,
                                with_snapshot ? session_answers_share(read->answers) : NULL);
        session_table_name(&s->table, x, name);
        session_table_set_file(&s->table, x, &read->file_version);
    }
    pthread_mutex_unlock(&s->lock);
    session_snapshot_release(old);
}

static int not_found(const char *id, struct rod_error *err) {
    return rod_fail(err, ROD_ENOTFOUND, "There is no session %s.", id);
}

/* Its file is gone: by another server, or by somebody's hand. */
static void unlearn(struct sessions *s, const char *tenant, const char *id) {
    struct session_snapshot *old = NULL;
    pthread_mutex_lock(&s->lock);
    struct session *x = session_table_find(&s->table, tenant, id);
    if (x && x->hold == SESSION_FREE && !x->line.head && !x->dirty) {
        old = session_table_unset(&s->table, x);
        session_table_remove(&s->table, x);
    }
    pthread_mutex_unlock(&s->lock);
    session_snapshot_release(old);
}

void session_used(struct sessions *s, const char *tenant, const char *id) {
    const int64_t now_s = session_now_s();
    uint8_t name[SESSION_NAME_BYTES];
    pthread_mutex_lock(&s->lock);
    struct session *x = session_table_find(&s->table, tenant, id);
    const bool touch =
        x && x->file_version.n_bytes && now_s > session_file_version_used_s(&x->file_version); /* once a second */
    if (touch) memcpy(name, x->name, sizeof name);
    if (x) session_table_use(&s->table, x, now_s);
    pthread_mutex_unlock(&s->lock);
    if (touch) session_store_touch(&s->store, name, now_s);
}

int session_look(struct sessions *s, const char *tenant, const char *id, bool with_snapshot, struct session_view *out,
                 struct rod_error *err) {
    *out = (struct session_view){0};
    uint8_t name[SESSION_NAME_BYTES];
    pthread_mutex_lock(&s->lock);
    struct session *x = session_table_find(&s->table, tenant, id);
    const bool exists = x && x->exists, named = x && x->named;
    if (named) memcpy(name, x->name, sizeof name);
    /* ours alone: what the table says is what is */
    const bool ours = exists && (!session_on_disk(s) || x->dirty || x->current);
    const struct session_file_version known = exists ? x->file_version : (struct session_file_version){0};
    const bool enough = exists && (!with_snapshot || x->snapshot);
    if (exists) view_locked(x, with_snapshot, out);
    pthread_mutex_unlock(&s->lock);
    if (ours && enough) return 0;
    session_view_fini(out);
    if (!session_on_disk(s)) return not_found(id, err);
    struct session_file_version file_version;
    int rc = session_dir_here(s, err);
    if (!rc) rc = named ? session_store_stat(&s->store, name, &file_version, err) : ROD_ENOTFOUND;
    if (rc == ROD_ENOTFOUND) { /* nobody has looked, or it has another name by now */
        rc = session_names_find(&s->store, tenant, id, name, err);
        if (!rc) rc = session_store_stat(&s->store, name, &file_version, err);
    }
    if (rc == ROD_ENOTFOUND) {
        unlearn(s, tenant, id);
        return not_found(id, err);
    }
    if (rc) return rc;
    if (enough && session_file_version_same(&file_version, &known)) {
        pthread_mutex_lock(&s->lock);
        x = session_table_find(&s->table, tenant, id);
        const bool still = x && x->exists && (!with_snapshot || x->snapshot);
        if (still) session_met_locked(s, x, &file_version);
        if (still) view_locked(x, with_snapshot, out);
        pthread_mutex_unlock(&s->lock);
        if (still) return 0;
    }
    struct session_read read;
    rc = session_store_read(&s->store, name, with_snapshot, &read, err);
    if (rc == ROD_ESTATE) session_refused(s, name, &file_version, err);
    if (rc == ROD_ENOTFOUND) return not_found(id, err);
    if (rc) return rc;
    if (with_snapshot) session_count(&s->loads, 1);
    learn(s, tenant, id, name, &read, with_snapshot);
    out->metadata = read.metadata;
    out->file_version = read.file_version;
    memcpy(out->name, name, sizeof out->name);
    out->in_host = with_snapshot;
    out->durable = true;
    if (with_snapshot) {
        out->snapshot = session_snapshot_share(read.snapshot);
        out->answers = session_answers_share(read.answers);
    }
    session_read_fini(&read);
    return 0;
}
