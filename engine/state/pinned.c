/* pinned.c - see pinned.h. */
#include "pinned.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"
#include "engine/base/log_limit.h"
#include "state_read.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#define FOLDER   "prefixes"
#define FILE_END ".prefix"
enum {
    DIR_BYTES = 1024,
    HASH_DIGITS = 16,
    LOOK_S = 1,     /* between two looks at the folder's time */
    SETTLED_S = 2,  /* a change so short before a scan may have come after it */
    SCAN_EACH = 30, /* looks; then the folder is read whatever its time says */
    MAX_REFUSED = 64,
};

struct pinned_entry {
    struct pinned_prefix *prefix; /* NULL: a file that was refused */
    char file[STATE_DISK_MAX_NAME + 1];
    struct state_disk_version version; /* of its file; inode 0: it has none */
    uint64_t n_used;
    bool seen; /* in a scan: its file is there */
};

struct pinned {
    struct pinned_config config;
    struct state_home home;                      /* without calls: in memory alone */
    char dir[DIR_BYTES], start[HASH_DIGITS + 2]; /* dir: "" in a store; start: of the names of its files */
    pthread_mutex_t changing;                    /* held over files; before `lock` */
    pthread_mutex_t lock;                        /* over what follows, held for a moment */
    pthread_cond_t closing;
    bool has_thread;
    atomic_bool ends;
    pthread_t thread;
    struct pinned_entry entries[PINNED_MAX + MAX_REFUSED];
    uint32_t n, n_prefixes; /* n_prefixes: of them not refused */
    struct log_limit left_out;
    uint64_t n_used;
};

static void pinned_log(const struct pinned *p, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void pinned_log(const struct pinned *p, int level, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (p->config.log) p->config.log(p->config.arg, level, line);
}

/* ---- entries, with the lock ---- */

static uint64_t prefix_bytes(size_t n_tok, size_t state_bytes) {
    return sizeof(struct pinned_prefix) + n_tok * sizeof(int32_t) + state_pool_bytes(1, state_bytes);
}

static uint64_t entry_bytes(const struct pinned_entry *e) {
    return e->prefix ? prefix_bytes(e->prefix->n_tok, e->prefix->buffer->n_bytes) : 0;
}

/* The entry of a file, or of an id that is in memory alone; NULL: no such entry. */
static struct pinned_entry *entry_of_file(struct pinned *p, const char *file) {
    for (uint32_t i = 0; i < p->n; i++)
        if (!strcmp(p->entries[i].file, file)) return &p->entries[i];
    return NULL;
}

static struct pinned_prefix *entry_take(struct pinned *p, struct pinned_entry *e) {
    struct pinned_prefix *prefix = e->prefix;
    p->n_prefixes -= prefix != NULL;
    *e = p->entries[--p->n];
    return prefix;
}

/* Takes prefix over, which entry_fits has allowed, or NULL for a file that is refused. Gives back what had this file
 * before. */
static struct pinned_prefix *entry_set(struct pinned *p, const char *file, struct pinned_prefix *prefix,
                                       const struct state_disk_version *version) {
    struct pinned_entry *e = entry_of_file(p, file);
    const bool was_refused = e && !e->prefix;
    if (!prefix && !was_refused &&
        p->n - p->n_prefixes == MAX_REFUSED) /* one more has no place: it is looked at again */
        return e ? entry_take(p, e) : NULL;
    if (!e) {
        assert(p->n < PINNED_MAX + MAX_REFUSED);
        e = &p->entries[p->n++];
        *e = (struct pinned_entry){0};
        snprintf(e->file, sizeof e->file, "%s", file);
    }
    struct pinned_prefix *before = e->prefix;
    p->n_prefixes += prefix != NULL;
    p->n_prefixes -= before != NULL;
    e->prefix = prefix;
    e->version = *version;
    e->seen = true;
    return before;
}

static struct rod_prefix_info entry_info(const struct pinned_entry *e) {
    struct rod_prefix_info info = {.n_tok = e->prefix->n_tok,
                                   .state_bytes = e->prefix->buffer->n_bytes,
                                   .created_unix_s = e->prefix->created_unix_s,
                                   .n_used = e->n_used,
                                   .durable = e->version.inode != 0};
    memcpy(info.id, e->prefix->id, sizeof info.id);
    return info;
}

/* Whether the set may have a prefix of these sizes too, in the place of the one of this file. */
static int entry_fits(const struct pinned *p, const char *file, size_t n_tok, size_t state_bytes,
                      struct rod_error *err) {
    uint64_t bytes = prefix_bytes(n_tok, state_bytes);
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n; i++) {
        const struct pinned_entry *e = &p->entries[i];
        if (!e->prefix || !strcmp(e->file, file)) continue;
        n++;
        bytes += entry_bytes(e);
    }
    if (n >= PINNED_MAX)
        return rod_fail(err, ROD_EINVALID, "There are %u pinned prefixes, and may be %d: remove one first.", n,
                        PINNED_MAX);
    if (bytes > p->config.budget_bytes)
        return rod_fail(err, ROD_EINVALID,
                        "Pinned prefixes would take %llu bytes and may take %llu, a quarter of state_host_bytes: "
                        "remove one first.",
                        (unsigned long long)bytes, (unsigned long long)p->config.budget_bytes);
    return 0;
}

/* ---- files, while `changing` is held ---- */

static void file_name(const struct pinned *p, const char *id, char name[STATE_DISK_MAX_NAME + 1]) {
    snprintf(name, STATE_DISK_MAX_NAME + 1, "%s%s%s", p->start, id, FILE_END);
}

static bool file_is_ours(const struct pinned *p, const char *name) {
    const size_t n = strlen(name), most = STATE_DISK_MAX_NAME, end = strlen(FILE_END);
    return n <= most && n > strlen(p->start) + end && !strncmp(name, p->start, strlen(p->start)) &&
           !strcmp(name + n - end, FILE_END);
}

static int file_read(struct pinned *p, const char *name, struct pinned_prefix **out, struct state_disk_version *version,
                     struct rod_error *err) {
    const struct state_file_expected here = {p->config.form.fingerprint, p->config.form.layout};
    struct state_home_file f;
    struct state_file state;
    struct pinned_prefix *prefix = NULL;
    char own_name[STATE_DISK_MAX_NAME + 1];
    void *header = NULL;
    size_t n = 0;
    int rc = state_home_open(&p->home, name, NULL, &f, err);
    if (rc) return rc;
    *version = f.version;
    rc = state_read_header(&f, name, &header, &n, err);
    if (!rc) rc = state_file_parse_header(header, n, f.version.n_bytes, name, &here, &state, err);
    if (!rc) rc = pinned_file_read(&p->config.form, &state, name, &prefix, err);
    if (!rc) {
        file_name(p, prefix->id, own_name);
        if (strcmp(own_name, name) != 0) rc = rod_fail(err, ROD_ESTATE, "%.180s: the file has another id.", name);
    }
    if (!rc) {
        pthread_mutex_lock(&p->lock);
        struct rod_error full;
        if (entry_fits(p, name, prefix->n_tok, state.payload.n, &full))
            rc = rod_fail(err, full.code, "%.180s: %.200s", name, full.message);
        pthread_mutex_unlock(&p->lock);
    }
    if (!rc) rc = state_read_payload(&f, name, header, state.payload.n, p->config.pool, &prefix->buffer, err);
    state_home_close(&f);
    free(header);
    if (rc) pinned_prefix_free(prefix);
    if (!rc) *out = prefix;
    return rc;
}

static bool version_same(const struct state_disk_version *a, const struct state_disk_version *b) {
    if (*a->etag || *b->etag) return !strcmp(a->etag, b->etag);
    return a->inode == b->inode && a->mtime_ns == b->mtime_ns && a->n_bytes == b->n_bytes;
}

/* A file that is new, or another one under its name, is read. A file at fault is looked at once. A file that
 * finds no room, or a disk at fault, is read again later, and until then the prefix that had the name stays. */
static void scan_file(struct pinned *p, const char *name, const struct state_disk_version *listed) {
    struct state_disk_version now;
    struct rod_error err;
    if (!listed && state_home_stat(&p->home, name, &now, &err)) return; /* it is gone again */
    if (listed) now = *listed;
    pthread_mutex_lock(&p->lock);
    struct pinned_entry *e = entry_of_file(p, name);
    const bool known = e && version_same(&e->version, &now);
    if (e) e->seen = true;
    pthread_mutex_unlock(&p->lock);
    if (known) return;
    struct pinned_prefix *prefix = NULL, *before = NULL;
    const int rc = file_read(p, name, &prefix, &now, &err);
    pthread_mutex_lock(&p->lock);
    if (!rc || rc == ROD_ESTATE) before = entry_set(p, name, prefix, &now);
    e = entry_of_file(p, name);
    const bool kept = e && version_same(&e->version, &now);
    pthread_mutex_unlock(&p->lock);
    pinned_prefix_free(before);
    uint64_t n_left_out = 0;
    if (!rc)
        pinned_log(p, 1, "pinned prefix %s: %zu tokens, from %s", prefix->id, prefix->n_tok, name);
    else if (kept)
        pinned_log(p, 2, "A pinned prefix is left out: %s", err.message);
    else if (log_limit_due(&p->left_out, clock_now_ns(), &n_left_out)) /* it is looked at again */
        pinned_log(p, 2, "A pinned prefix is left out: %s (%llu such looks since the last line)", err.message,
                   (unsigned long long)n_left_out);
}

/* Drops prefixes whose files have left the folder. */
static void scan_drop_unseen(struct pinned *p) {
    struct pinned_prefix *gone[PINNED_MAX + MAX_REFUSED];
    uint32_t n = 0;
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = p->n; i-- > 0;)
        if (!p->entries[i].seen) gone[n++] = entry_take(p, &p->entries[i]);
    pthread_mutex_unlock(&p->lock);
    while (n--) {
        if (gone[n]) pinned_log(p, 1, "pinned prefix %s is removed", gone[n]->id);
        pinned_prefix_free(gone[n]);
    }
}

struct scan {
    struct pinned *p;
    char last[STATE_DISK_MAX_NAME + 1]; /* of the page */
};

static void scan_found(void *arg, const char *name, const struct state_disk_version *version) {
    struct scan *scan = arg;
    if (version) snprintf(scan->last, sizeof scan->last, "%s", name);
    if (!scan->p->ends && file_is_ours(scan->p, name)) scan_file(scan->p, name, version);
}

static int scan_pages(struct pinned *p, struct rod_error *err) {
    struct scan scan = {.p = p};
    bool more = true;
    int rc = 0;
    while (!rc && more && !p->ends) {
        char after[sizeof scan.last];
        memcpy(after, scan.last, sizeof after);
        rc = state_home_list(&p->home, p->start, after, scan_found, &scan, &more, err);
        more = more && strcmp(after, scan.last) != 0;
    }
    return rc;
}

static int scan_folder(struct pinned *p, struct rod_error *err) {
    struct stat info;
    if (!p->home.fenced && stat(p->dir, &info) && errno == ENOENT) return 0; /* it is made with the first file */
    pthread_mutex_lock(&p->changing);
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->n; i++) p->entries[i].seen = false;
    pthread_mutex_unlock(&p->lock);
    const int rc = scan_pages(p, err);
    if (!rc && !p->ends) scan_drop_unseen(p);
    pthread_mutex_unlock(&p->changing);
    return rc;
}

/* ---- the thread ---- */

static uint64_t folder_time_ns(const struct pinned *p) {
    struct stat st;
    return p->home.fenced || stat(p->dir, &st)
               ? 0
               : (uint64_t)st.st_mtim.tv_sec * 1000000000u + (uint64_t)st.st_mtim.tv_nsec;
}

static void *pinned_thread(void *arg) {
    struct pinned *p = arg;
    uint64_t scanned_of_ns = 0; /* the folder's time, once it cannot change unseen */
    bool failed = false;
    pthread_mutex_lock(&p->lock);
    for (uint32_t looks = 0; !p->ends; looks++) {
        const struct timespec until = clock_timespec(clock_now_ns() + LOOK_S * (uint64_t)1000000000u);
        while (!p->ends && pthread_cond_timedwait(&p->closing, &p->lock, &until) != ETIMEDOUT) {}
        if (p->ends) break;
        pthread_mutex_unlock(&p->lock);
        const uint64_t of_ns = folder_time_ns(p);
        if (of_ns != scanned_of_ns || looks % SCAN_EACH == 0) {
            struct rod_error err;
            const bool settled = of_ns + SETTLED_S * (uint64_t)1000000000u < clock_unix_ns();
            const bool fails = scan_folder(p, &err) != 0;
            if (fails && !failed) pinned_log(p, 3, "%s", err.message);
            failed = fails;
            scanned_of_ns = settled && !fails ? of_ns : 0;
        }
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

/* ---- calls ---- */

static int open_folder(struct pinned *p, const char *state_dir, struct rod_error *err) {
    const int n = snprintf(p->dir, sizeof p->dir, "%s/" FOLDER, state_dir);
    if (n < 0 || (size_t)n >= sizeof p->dir)
        return rod_fail_at(err, ROD_EINVALID, "state_dir", "state_dir is too long a path.");
    p->home = state_home_folder(p->dir);
    state_disk_sweep(p->dir, NULL, NULL); /* the folder may not be there yet */
    return 0;
}

int pinned_open(const struct pinned_config *config, struct pinned **out, struct rod_error *err) {
    struct pinned *p = calloc(1, sizeof *p);
    if (!p) return rod_fail_no_memory(err);
    p->config = *config;
    clock_init_condition(&p->closing);
    pthread_mutex_init(&p->lock, NULL);
    pthread_mutex_init(&p->changing, NULL);
    int rc = 0;
    if (config->home)
        p->home = state_home_below(config->home, "p/");
    else if (config->state_dir && *config->state_dir)
        rc = open_folder(p, config->state_dir, err);
    if (!rc && p->home.calls) {
        const struct state_form *form = &config->form;
        const uint64_t model = XXH3_64bits(form->fingerprint, sizeof form->fingerprint);
        const uint64_t hash = XXH3_64bits_withSeed(form->layout, strlen(form->layout), model);
        snprintf(p->start, sizeof p->start, "%016llx-", (unsigned long long)hash);
        rc = scan_folder(p, err);
        if (!rc && !(p->has_thread = !pthread_create(&p->thread, NULL, pinned_thread, p)))
            rc = rod_fail(err, ROD_EINTERNAL, "The thread of the pinned prefixes did not start.");
    }
    p->config.state_dir = NULL; /* the caller's */
    if (rc)
        pinned_close(p);
    else
        *out = p;
    return rc;
}

void pinned_close(struct pinned *p) {
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->ends = true;
    pthread_cond_signal(&p->closing);
    pthread_mutex_unlock(&p->lock);
    if (p->has_thread) pthread_join(p->thread, NULL);
    for (uint32_t i = 0; i < p->n; i++) pinned_prefix_free(p->entries[i].prefix);
    pthread_cond_destroy(&p->closing);
    pthread_mutex_destroy(&p->lock);
    pthread_mutex_destroy(&p->changing);
    free(p);
}

/* The longest prefix of fewer than n tokens that ids begin with, longer than `than`; NULL: none. */
static struct pinned_entry *entry_longest(struct pinned *p, const int32_t *ids, size_t n, uint64_t than) {
    struct pinned_entry *best = NULL;
    for (uint32_t i = 0; i < p->n; i++) {
        struct pinned_entry *e = &p->entries[i];
        if (!e->prefix || e->prefix->n_tok >= n || e->prefix->n_tok <= than) continue;
        if (memcmp(e->prefix->ids, ids, e->prefix->n_tok * sizeof *ids)) continue;
        best = e;
        than = e->prefix->n_tok;
    }
    return best;
}

bool pinned_find(struct pinned *p, const int32_t *ids, size_t n, uint64_t than, struct state_buffer **buffer,
                 uint64_t *n_tok) {
    pthread_mutex_lock(&p->lock);
    const struct pinned_entry *best = entry_longest(p, ids, n, than);
    if (best) {
        *buffer = state_buffer_ref(best->prefix->buffer);
        *n_tok = best->prefix->n_tok;
    }
    pthread_mutex_unlock(&p->lock);
    return best != NULL;
}

/* It may have been removed since it was found. */
void pinned_use(struct pinned *p, const int32_t *ids, uint64_t n_tok) {
    pthread_mutex_lock(&p->lock);
    struct pinned_entry *e = entry_longest(p, ids, n_tok + 1, n_tok - 1);
    if (e) e->n_used++;
    p->n_used++;
    pthread_mutex_unlock(&p->lock);
}

/* The folder is made with its first file, and its own name is synced. */
static int make_folder(const struct pinned *p, struct rod_error *err) {
    if (!mkdir(p->dir, 0700)) {
        char parent[DIR_BYTES];
        memcpy(parent, p->dir, sizeof parent);
        *strrchr(parent, '/') = 0;
        const int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) fsync(fd);
        if (fd >= 0) close(fd);
    } else if (errno != EEXIST) {
        return rod_fail(err, ROD_EIO, "%.300s: %s", p->dir, strerror(errno));
    }
    return 0;
}

static int put_file(struct pinned *p, const char *file, const struct pinned_prefix *prefix,
                    struct state_disk_version *version, struct rod_error *err) {
    void *header;
    size_t n_header;
    int rc = pinned_file_write(&p->config.form, prefix, &header, &n_header, err);
    if (rc) return rc;
    rc = p->home.fenced ? 0 : make_folder(p, err);
    const struct state_bytes parts[] = {{header, n_header}, {prefix->buffer->bytes, prefix->buffer->n_bytes}};
    struct state_disk_item item = {.name = file, .parts = parts, .n_parts = 2};
    if (!rc) {
        state_home_write(&p->home, &item, 1);
        rc = item.rc;
        if (rc) *err = item.err;
        *version = item.version;
    }
    free(header);
    return rc;
}

static int no_such(const char *id, struct rod_error *err) {
    return rod_fail(err, ROD_ENOTFOUND, "There is no pinned prefix %.128s.", id);
}

int pinned_check(struct pinned *p, const char *id, size_t n, struct rod_error *err) {
    char file[STATE_DISK_MAX_NAME + 1];
    if (!pinned_is_id(id))
        return rod_fail_at(err, ROD_EINVALID, "id",
                           "id must be 1 to %d characters of A-Z, a-z, 0-9, '.', '_' and '-', not begin with '.', and "
                           "be without '.tmp-'.",
                           PINNED_MAX_ID);
    file_name(p, id, file);
    pthread_mutex_lock(&p->lock);
    const int rc = n ? entry_fits(p, file, n, p->config.form.state_bytes(p->config.form.arg, n), err) : 0;
    pthread_mutex_unlock(&p->lock);
    return rc;
}

int pinned_put(struct pinned *p, const char *id, const int32_t *ids, size_t n, struct state_buffer *buffer,
               struct rod_prefix_info *out, struct rod_error *err) {
    assert(n && n % p->config.form.chunk_tok == 0 && n <= PINNED_MAX_TOK && pinned_is_id(id));
    struct pinned_prefix *prefix = pinned_prefix_new(id, ids, n);
    if (!prefix) return rod_fail_no_memory(err);
    prefix->created_unix_s = clock_unix_s();
    prefix->buffer = state_buffer_ref(buffer);
    char file[STATE_DISK_MAX_NAME + 1];
    file_name(p, id, file);
    struct state_disk_version version = {0};
    pthread_mutex_lock(&p->changing);
    pthread_mutex_lock(&p->lock);
    int rc = entry_fits(p, file, n, buffer->n_bytes, err);
    pthread_mutex_unlock(&p->lock);
    if (!rc && p->has_thread) rc = put_file(p, file, prefix, &version, err);
    struct pinned_prefix *before = prefix;
    if (!rc) {
        pthread_mutex_lock(&p->lock);
        before = entry_set(p, file, prefix, &version);
        *out = entry_info(entry_of_file(p, file));
        pthread_mutex_unlock(&p->lock);
    }
    pthread_mutex_unlock(&p->changing);
    pinned_prefix_free(before);
    return rc;
}

int pinned_get(struct pinned *p, const char *id, struct rod_prefix_info *out, struct rod_error *err) {
    const int bad = pinned_check(p, id, 0, err);
    if (bad) return bad;
    char file[STATE_DISK_MAX_NAME + 1];
    file_name(p, id, file);
    pthread_mutex_lock(&p->lock);
    const struct pinned_entry *e = entry_of_file(p, file);
    const bool found = e && e->prefix;
    if (found) *out = entry_info(e);
    pthread_mutex_unlock(&p->lock);
    return found ? 0 : no_such(id, err);
}

static int info_order(const void *a, const void *b) {
    return strcmp(((const struct rod_prefix_info *)a)->id, ((const struct rod_prefix_info *)b)->id);
}

int pinned_list(struct pinned *p, struct rod_prefix_info **infos, size_t *n, struct rod_error *err) {
    struct rod_prefix_info *all = calloc(PINNED_MAX, sizeof *all);
    if (!all) return rod_fail_no_memory(err);
    *n = 0;
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->n; i++)
        if (p->entries[i].prefix) all[(*n)++] = entry_info(&p->entries[i]);
    pthread_mutex_unlock(&p->lock);
    qsort(all, *n, sizeof *all, info_order);
    *infos = all;
    return 0;
}

/* Also of a file that was refused. */
int pinned_remove(struct pinned *p, const char *id, struct rod_error *err) {
    const int bad = pinned_check(p, id, 0, err);
    if (bad) return bad;
    char file[STATE_DISK_MAX_NAME + 1];
    file_name(p, id, file);
    pthread_mutex_lock(&p->changing);
    int rc = p->has_thread ? state_home_remove(&p->home, file, NULL, err) : ROD_ENOTFOUND;
    struct pinned_prefix *gone = NULL;
    if (!rc || rc == ROD_ENOTFOUND) { /* another server may have removed the file first, or written it just now */
        pthread_mutex_lock(&p->lock);
        struct pinned_entry *e = entry_of_file(p, file);
        if (e) gone = entry_take(p, e);
        if (e) rc = 0;
        pthread_mutex_unlock(&p->lock);
    }
    pthread_mutex_unlock(&p->changing);
    pinned_prefix_free(gone);
    return rc == ROD_ENOTFOUND ? no_such(id, err) : rc;
}

struct pinned_counts pinned_count(struct pinned *p) {
    struct pinned_counts counts = {0};
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->n; i++) {
        if (!p->entries[i].prefix) continue;
        counts.n++;
        counts.bytes += entry_bytes(&p->entries[i]);
    }
    counts.n_used = p->n_used;
    pthread_mutex_unlock(&p->lock);
    return counts;
}
