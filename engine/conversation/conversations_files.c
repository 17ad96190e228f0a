/* conversations_files.c - the folder of conversations and the two threads over it; see conversations.h. */
#include "conversations_internal.h"
#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"
#include "engine/base/file.h"
#include "engine/session/store/session_names.h"
#include "engine/state/state_read.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, LEFT_S = 60 };
#define LOOK_NS ((uint64_t)1000000000) /* between two looks for what its time is over for */

void conversations_say(const struct conversations *c, int level, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (c->config.log) c->config.log(c->config.arg, level, line);
}

/* ---- whose ---- */

char *conversations_whose(const char *tenant, const char *name, size_t *n) {
    const size_t n_tenant = strlen(tenant) + 1, n_name = strlen(name) + 1;
    char *whose = malloc(n_tenant + n_name);
    if (!whose) return NULL;
    memcpy(whose, tenant, n_tenant);
    memcpy(whose + n_tenant, name, n_name);
    *n = n_tenant + n_name;
    return whose;
}

void conversations_dir(const struct conversations *c, const char *tenant, const char *name,
                       char dir[CONVERSATION_DIR_BYTES]) {
    const struct state_form *form = &c->config.form;
    uint8_t hash[SIPHASH_BYTES], model[SIPHASH_BYTES];
    struct {
        uint8_t fingerprint[MODEL_FINGERPRINT_BYTES], layout[SIPHASH_BYTES], tenant[SIPHASH_BYTES], name[SIPHASH_BYTES];
    } all;
    memcpy(all.fingerprint, form->fingerprint, sizeof all.fingerprint);
    siphash(c->key, form->layout, strlen(form->layout), model);
    memcpy(all.layout, model, sizeof model);
    siphash(c->key, tenant, strlen(tenant), all.tenant);
    siphash(c->key, name, strlen(name), all.name);
    siphash(c->key, &all, sizeof all, hash);
    for (int i = 0; i < SIPHASH_BYTES; i++) snprintf(dir + 2 * i, 3, "%02x", hash[i]);
}

static bool dir_path(const struct conversations *c, const char *dir, char path[PATH_BYTES]) {
    const int n = snprintf(path, PATH_BYTES, "%s/%s", c->root, dir);
    return n > 0 && n < PATH_BYTES;
}

/* ---- folders ---- */

int conversations_make_dir(const struct conversations *c, const char *dir, const void *whose, size_t n_whose,
                           struct rod_error *err) {
    char path[PATH_BYTES];
    if (!dir_path(c, dir, path)) return rod_fail(err, ROD_EIO, "state_dir makes too long a path");
    if (mkdir(c->root, 0700) && errno != EEXIST) return rod_fail(err, ROD_EIO, "%.300s: %s", c->root, strerror(errno));
    if (mkdir(path, 0700) && errno != EEXIST) return rod_fail(err, ROD_EIO, "%.300s: %s", path, strerror(errno));
    return notes_make(path, whose, n_whose, err);
}

void conversations_unlink_all(const struct conversations *c, const char *dir) {
    char path[PATH_BYTES];
    DIR *list = dir_path(c, dir, path) ? opendir(path) : NULL;
    if (!list) return;
    for (struct dirent *d; (d = readdir(list));)
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0) unlinkat(dirfd(list), d->d_name, 0);
    closedir(list);
    rmdir(path);
}

/* ---- what is there ---- */

struct scan {
    struct conversation_place place;
    uint64_t bytes;
};

/* malloc'd: the states of a folder. *made false: there is no folder. */
static struct scan *scan_read(const char *path, size_t *n, uint64_t *notes_bytes, bool *made) {
    struct scan *all = NULL;
    size_t cap = 0;
    struct stat info;
    DIR *list = opendir(path);
    *n = 0;
    *notes_bytes = 0;
    *made = list != NULL;
    if (!list) return NULL;
    for (struct dirent *d; (d = readdir(list));) {
        struct scan one;
        const bool is_state = conversation_file_parse(d->d_name, &one.place);
        if ((!is_state && strcmp(d->d_name, CONVERSATION_NOTES_FILE) != 0) || fstatat(dirfd(list), d->d_name, &info, 0))
            continue;
        one.bytes = (uint64_t)info.st_size;
        if (!is_state)
            *notes_bytes = one.bytes;
        else if (ARRAY_RESERVE(all, cap, *n, 1))
            all[(*n)++] = one;
    }
    closedir(list);
    return all;
}

static int by_turn(const void *a, const void *b) {
    const struct scan *x = a, *y = b;
    if (x->place.n_tok != y->place.n_tok) return x->place.n_tok < y->place.n_tok ? -1 : 1;
    return 0;
}

/* States that the folder has and the table has not, and the reverse: another server wrote or removed them. */
static void scan_merge_locked(struct conversations *c, struct conversation *of, const struct scan *all, size_t n) {
    for (struct list_link *l = list_first(&of->states), *next; l; l = next) {
        struct conversation_state *s = LIST_OF(l, struct conversation_state, link);
        bool there = !s->ready;
        next = list_next(&of->states, l);
        for (size_t i = 0; i < n && !there; i++) there = !memcmp(&all[i].place.tokens, &s->place.tokens, 16);
        if (!there) conversation_state_filed(c->table, s, 0, false);
    }
    for (size_t i = 0; i < n; i++) {
        struct conversation_state *s = conversation_state_find(c->table, &all[i].place);
        if (s && s->file_bytes) continue;
        if (!s) s = conversation_state_add(c->table, of, &all[i].place);
        if (s) conversation_state_filed(c->table, s, all[i].bytes, true);
    }
}

/* It had files, none is being written, and its folder is not there: another server has removed it. */
static bool is_gone_locked(const struct conversation *of) {
    bool had = of->notes_bytes > 0;
    for (struct list_link *l = list_first(&of->states); l; l = list_next(&of->states, l)) {
        const struct conversation_state *s = LIST_OF(l, struct conversation_state, link);
        if (s->file_bytes && !s->ready) return false;
        had |= s->ready;
    }
    return had;
}

static void scan_dir(struct conversations *c, const char *dir, const char *tenant, const char *name, int64_t used_s) {
    char path[PATH_BYTES];
    size_t n;
    uint64_t notes_bytes;
    bool made;
    if (!dir_path(c, dir, path)) return;
    struct scan *all = scan_read(path, &n, &notes_bytes, &made);
    if (n) qsort(all, n, sizeof *all, by_turn); /* the longest counts as the latest */
    pthread_mutex_lock(&c->lock);
    struct conversation *of = conversation_find(c->table, dir);
    if (!of && made && (of = conversation_get(c->table, dir, tenant, name, used_s))) of->made = true;
    if (of && made) {
        scan_merge_locked(c, of, all, n);
        conversation_set_notes(c->table, of, notes_bytes);
    } else if (of && is_gone_locked(of)) {
        conversation_remove(c->table, of);
    }
    pthread_mutex_unlock(&c->lock);
    free(all);
}

void conversations_scan(struct conversations *c, const char *dir, const char *tenant, const char *name) {
    if (c->root) scan_dir(c, dir, tenant, name, clock_unix_s());
}

/* The first note, checked: it is of this folder, and so of this model. A folder that does not say whose it is, and that
 * nobody is making just now, is what a crash or a fault of the disk left: nobody would ever find it. */
static char *whose_is(const struct conversations *c, const char *dir, int64_t used_s, const char **name) {
    char path[PATH_BYTES], own[CONVERSATION_DIR_BYTES];
    void *first;
    size_t n;
    struct rod_error err;
    if (!dir_path(c, dir, path)) return NULL;
    const int rc = notes_read_first(path, &first, &n, &err);
    if (rc) {
        if (rc != ROD_EIO && used_s + LEFT_S < clock_unix_s()) conversations_unlink_all(c, dir);
        return NULL;
    }
    char *tenant = first;
    const size_t n_tenant = n ? strnlen(tenant, n) + 1 : 0;
    if (n && n_tenant < n && !tenant[n - 1] && strlen(tenant + n_tenant) + 1 == n - n_tenant) {
        *name = tenant + n_tenant;
        conversations_dir(c, tenant, *name, own);
        if (!strcmp(own, dir)) return tenant;
    }
    free(first);
    return NULL;
}

struct found_dir {
    char dir[CONVERSATION_DIR_BYTES];
    int64_t used_s;
};
static int by_use(const void *a, const void *b) {
    const struct found_dir *x = a, *y = b;
    return (x->used_s > y->used_s) - (x->used_s < y->used_s);
}

/* Conversations that have lost their folders. */
static void scan_known(struct conversations *c) {
    char(*dirs)[CONVERSATION_DIR_BYTES] = NULL;
    size_t n = 0, cap = 0;
    struct stat info;
    pthread_mutex_lock(&c->lock);
    for (struct conversation *of = conversation_first(c->table); of; of = conversation_after(c->table, of))
        if (of->made && ARRAY_RESERVE(dirs, cap, n, 1)) memcpy(dirs[n++], of->dir, sizeof of->dir);
    pthread_mutex_unlock(&c->lock);
    for (size_t i = 0; i < n; i++) {
        char path[PATH_BYTES];
        if (!dir_path(c, dirs[i], path) || !stat(path, &info) || errno != ENOENT) continue;
        pthread_mutex_lock(&c->lock);
        struct conversation *of = conversation_find(c->table, dirs[i]);
        if (of && is_gone_locked(of)) conversation_remove(c->table, of);
        pthread_mutex_unlock(&c->lock);
    }
    free(dirs);
}

void conversations_scan_all(struct conversations *c) {
    if (c->root) scan_known(c);
    struct found_dir *dirs = NULL;
    size_t n = 0, cap = 0;
    struct stat info;
    DIR *list = c->root ? opendir(c->root) : NULL;
    for (struct dirent *d; list && (d = readdir(list));) {
        if (strspn(d->d_name, "0123456789abcdef") != CONVERSATION_DIR_BYTES - 1 ||
            d->d_name[CONVERSATION_DIR_BYTES - 1])
            continue;
        pthread_mutex_lock(&c->lock);
        const bool known = conversation_find(c->table, d->d_name) != NULL;
        pthread_mutex_unlock(&c->lock);
        if (known || fstatat(dirfd(list), d->d_name, &info, 0) || !ARRAY_RESERVE(dirs, cap, n, 1)) continue;
        memcpy(dirs[n].dir, d->d_name, CONVERSATION_DIR_BYTES);
        dirs[n++].used_s = (int64_t)info.st_mtim.tv_sec;
    }
    if (list) closedir(list);
    if (n) qsort(dirs, n, sizeof *dirs, by_use);
    for (size_t i = 0; i < n; i++) {
        const char *name;
        char *tenant = whose_is(c, dirs[i].dir, dirs[i].used_s, &name), path[PATH_BYTES];
        if (tenant && dir_path(c, dirs[i].dir, path)) state_disk_sweep(path, NULL, NULL);
        if (tenant) scan_dir(c, dirs[i].dir, tenant, name, dirs[i].used_s);
        free(tenant);
    }
    free(dirs);
}

/* ---- jobs ---- */

static int job_write(struct conversations *c, struct conversation_job *job, struct rod_error *err) {
    char path[PATH_BYTES];
    void *header;
    size_t n_header;
    int rc = conversations_make_dir(c, job->dir, job->whose, job->n_whose, err);
    if (rc) return rc;
    if (!dir_path(c, job->dir, path)) return rod_fail(err, ROD_EIO, "state_dir makes too long a path");
    if ((rc = conversation_file_write(&c->config.form, &job->place, job->buffer, &header, &n_header, err))) return rc;
    const struct state_bytes parts[] = {{header, n_header}, {job->buffer->bytes, job->buffer->n_bytes}};
    struct state_disk_item item = {.name = job->file, .parts = parts, .n_parts = 2, .not_synced = true};
    state_disk_write_all(path, &item, 1);
    free(header);
    if (item.rc) *err = item.err;
    return item.rc;
}

static int job_read(const struct conversations *c, struct conversation_job *job, struct rod_error *err) {
    const struct state_file_expected here = {c->config.form.fingerprint, c->config.form.layout};
    char path[PATH_BYTES];
    struct state_home_file f;
    struct state_file state;
    void *header = NULL;
    size_t n = 0, got = 0;
    if (!dir_path(c, job->dir, path)) return rod_fail(err, ROD_EIO, "state_dir makes too long a path");
    const struct state_home home = state_home_folder(path);
    int rc = state_home_open(&home, job->file, NULL, &f, err);
    if (rc) return rc;
    rc = state_read_header(&f, job->file, &header, &n, err);
    if (!rc) rc = state_file_parse_header(header, n, f.version.n_bytes, job->file, &here, &state, err);
    if (!rc) rc = conversation_file_check(&c->config.form, &state, job->file, &job->place, err);
    if (!rc && state.payload.n != job->buffer->n_bytes)
        rc = rod_fail(err, ROD_ESTATE, "%.150s: a state of %zu bytes", job->file, state.payload.n);
    if (!rc) rc = state_home_get(&f, job->buffer->bytes, job->buffer->n_bytes, &got, err);
    if (!rc) rc = state_file_check_payload(header, &(struct state_bytes){job->buffer->bytes, got}, job->file, err);
    state_home_close(&f);
    free(header);
    return rc;
}

static void job_unlink(const struct conversations *c, const struct conversation_job *job) {
    char path[PATH_BYTES];
    if (!*job->file)
        conversations_unlink_all(c, job->dir);
    else if (dir_path(c, job->dir, path))
        state_disk_drop(path, job->file);
}

/* A state that could not be read is no state: its tokens are read again. */
static void job_over_locked(struct conversations *c, const struct conversation_job *job, const struct rod_error *err) {
    uint64_t n_left_out = 0;
    struct conversation_state *s = conversation_state_find(c->table, &job->place);
    const bool writes = job->work == CONVERSATION_WRITE;
    if (writes) c->n_saves += !job->rc, c->n_failures += job->rc != 0;
    if (!writes) c->n_loads += !job->rc;
    if (s && s->file_bytes && (writes || job->rc))
        conversation_state_filed(c->table, s, job->rc ? 0 : s->file_bytes, !job->rc);
    if (job->rc && job->rc != ROD_ENOTFOUND && log_limit_due(&c->failed, clock_now_ns(), &n_left_out))
        conversations_say(c, 2,
                          writes ? "A state of a conversation was not written: %s (%llu more since the last such line)"
                                 : "A state of a conversation was not read: %s (%llu more since the last such line)",
                          err->message, (unsigned long long)n_left_out);
}

/* Frees a job without a user. A read always goes to `over`, because the engine owns its buffer. */
static void job_end(struct conversations *c, struct conversation_job *job, const struct rod_error *err) {
    if (job->work == CONVERSATION_WRITE) {
        state_buffer_release(job->buffer);
        job->buffer = NULL;
    }
    pthread_mutex_lock(&c->lock);
    if (job->work != CONVERSATION_UNLINK) job_over_locked(c, job, err);
    const bool told = job->user || job->work == CONVERSATION_READ;
    if (told) list_push_last(&c->over, &job->link);
    if (told) atomic_store(&c->has_news, true);
    pthread_mutex_unlock(&c->lock);
    if (told) {
        c->config.wake(c->config.arg);
        return;
    }
    free(job->whose);
    free(job);
}

static void job_run(struct conversations *c, struct conversation_job *job) {
    struct rod_error err = {0};
    switch (job->work) {
    case CONVERSATION_WRITE: job->rc = job_write(c, job, &err); break;
    case CONVERSATION_READ: job->rc = job_read(c, job, &err); break;
    case CONVERSATION_UNLINK: job_unlink(c, job); break;
    }
    if (job->work == CONVERSATION_READ && job->rc && job->rc != ROD_ENOTFOUND && job->rc != ROD_EIO) job_unlink(c, job);
    job_end(c, job, &err);
}

void conversations_expire_locked(struct conversations *c) {
    if (c->config.ttl_s) conversation_expire(c->table, clock_unix_s() - (int64_t)c->config.ttl_s);
    if (c->n_forgotten) c->config.wake(c->config.arg);
}

void conversations_push_locked(struct conversations *c, struct conversation_job *job) {
    const int queue = job->work == CONVERSATION_READ;
    list_push_last(&c->queues[queue], &job->link);
    pthread_cond_signal(&c->work[queue]);
}

struct thread_of {
    struct conversations *c;
    int queue;
};

/* The thread that writes also looks, once a second, for conversations whose time is over. */
static void wait_locked(struct conversations *c, int queue) {
    if (queue || !c->config.ttl_s) {
        pthread_cond_wait(&c->work[queue], &c->lock);
        return;
    }
    const struct timespec until = clock_timespec(clock_now_ns() + LOOK_NS);
    pthread_cond_timedwait(&c->work[queue], &c->lock, &until);
    conversations_expire_locked(c);
}

static void *files_thread(void *arg) {
    struct thread_of of = *(struct thread_of *)arg;
    struct conversations *c = of.c;
    free(arg);
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->queues[of.queue].n && !c->ends) wait_locked(c, of.queue);
        if (!c->queues[of.queue].n) break;
        struct conversation_job *job = LIST_OF(list_first(&c->queues[of.queue]), struct conversation_job, link);
        list_remove(&c->queues[of.queue], &job->link);
        pthread_mutex_unlock(&c->lock);
        job_run(c, job);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- open and close ---- */

static int start_thread(struct conversations *c, int queue, struct rod_error *err) {
    struct thread_of *of = malloc(sizeof *of);
    if (!of) return rod_fail_no_memory(err);
    *of = (struct thread_of){c, queue};
    const int number = pthread_create(&c->threads[c->n_threads], NULL, files_thread, of);
    if (number) {
        free(of);
        return rod_fail(err, ROD_ENOMEM, "A thread for conversations' files does not start: %s", strerror(number));
    }
    c->n_threads++;
    return 0;
}

int conversations_open_files(struct conversations *c, struct rod_error *err) {
    struct session_names names;
    session_names_init(&names);
    pthread_mutex_lock(&names.lock);
    const struct state_home home = state_home_folder(c->config.state_dir);
    int rc = session_names_read_key_locked(&names, &home, err);
    if (rc == ROD_ENOTFOUND) rc = session_names_make_key_locked(&names, &home, err);
    memcpy(c->key, names.key, sizeof c->key);
    pthread_mutex_unlock(&names.lock);
    session_names_fini(&names);
    if (rc) return rc;
    if (!(c->root = file_path(c->config.state_dir, CONVERSATIONS_FOLDER))) return rod_fail_no_memory(err);
    conversations_scan_all(c);
    pthread_mutex_lock(&c->lock);
    conversations_expire_locked(c); /* a folder's time is its last use */
    pthread_mutex_unlock(&c->lock);
    for (int queue = 0; queue < 2 && !rc; queue++) {
        clock_init_condition(&c->work[queue]);
        rc = start_thread(c, queue, err);
    }
    return rc;
}

void conversations_close_files(struct conversations *c) {
    pthread_mutex_lock(&c->lock);
    c->ends = true;
    for (uint32_t i = 0; i < c->n_threads; i++) pthread_cond_signal(&c->work[i]);
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < c->n_threads; i++) pthread_join(c->threads[i], NULL);
}
