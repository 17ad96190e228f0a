/* conversations_store.c - see conversations_internal.h: conversations as objects of a store,
 *
 *   c/TENANT/HASH/LANE-TOKENS-TURN-N-K.state     states, which never change: the first server to write one has written
 * it c/TENANT/HASH/notes                          what the owner keeps
 *
 * A list of a conversation's objects is its index. Times are the store's. */
#include "conversations_internal.h"
#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLOCK_FILE "clock"
#define NS_S       ((uint64_t)1000000000u)
enum { TOUCHES = 4 }; /* a conversation that is used gets a new time so often in its time to live */

int conversations_store_open(struct conversations *c, struct rod_error *err) {
    state_guard_init(&c->guard, c->config.home);
    c->stored = true;
    const struct state_home home = state_guard_home(&c->guard), sessions = state_home_below(&home, "s/");
    c->home = state_home_below(&home, "c/");
    c->sweep_ns = conversations_sweep_due(c, 0);
    return conversations_read_key(c, &sessions, err); /* that of sessions' names */
}

struct state_home conversations_store_home(const struct conversations *c, const char *dir) {
    char below[CONVERSATION_DIR_BYTES + 1];
    snprintf(below, sizeof below, "%s/", dir);
    return state_home_below(&c->home, below);
}

/* ---- lists ---- */

struct object {
    char file[CONVERSATION_NAME_BYTES];
    struct state_disk_version version;
};
struct objects {
    struct object *all; /* [n], malloc'd */
    size_t n, cap;
    int64_t used_s; /* the newest's time */
    bool no_memory;
    char last[STATE_HOME_MAX_NAME + 1];
};

static void on_object(void *arg, const char *name, const struct state_disk_version *version) {
    struct objects *o = arg;
    const int64_t used_s = (int64_t)(version->mtime_ns / NS_S);
    struct object *all =
        strlen(name) < CONVERSATION_NAME_BYTES && ARRAY_RESERVE(o->all, o->cap, o->n, 1) ? o->all : NULL;
    snprintf(o->last, sizeof o->last, "%s", name);
    o->no_memory |= !all;
    if (used_s > o->used_s) o->used_s = used_s;
    if (!all) return;
    memcpy(all[o->n].file, name, strlen(name) + 1);
    all[o->n++].version = *version;
}

/* All that a conversation has. */
static int objects_list(const struct state_home *home, struct objects *o, struct rod_error *err) {
    bool more = true;
    int rc = 0;
    *o = (struct objects){0};
    while (!rc && more) {
        char after[sizeof o->last];
        memcpy(after, o->last, sizeof after);
        rc = state_home_list(home, "", after, on_object, o, &more, err);
        if (!rc && more && !strcmp(after, o->last))
            rc = rod_fail(err, ROD_EIO, "The store's list of a conversation does not end.");
    }
    if (!rc && o->no_memory) rc = rod_fail_no_memory(err);
    if (rc) free(o->all);
    return rc;
}

/* ---- states ---- */

static void notes_made(struct conversations *c, const struct conversation_job *job, uint64_t bytes) {
    pthread_mutex_lock(&c->lock);
    struct conversation *of = conversation_find(c->table, job->dir);
    if (of) conversation_set_notes(c->table, of, bytes);
    pthread_mutex_unlock(&c->lock);
}

static int make(struct conversations *c, const struct conversation_job *job, const struct state_home *home,
                struct rod_error *err) {
    const uint64_t bytes = NOTES_MARK_BYTES + NOTES_FRAME_BYTES + job->n_whose;
    const int rc = job->makes ? notes_home_make(home, job->whose, job->n_whose, err) : ROD_EEXISTS;
    if (!rc) conversations_stored(c, job->dir, CONVERSATION_NOTES_FILE, (int64_t)bytes);
    if (!rc) notes_made(c, job, bytes);
    return rc == ROD_EEXISTS ? 0 : rc;
}

/* There is one more, or one less. */
static void state_stored(struct conversations *c, const char *dir, const struct conversation_place *place, int more) {
    char file[CONVERSATION_NAME_BYTES];
    conversation_file_name(place, file);
    conversations_stored(c, dir, file, more * (int64_t)conversation_file_bytes(&c->config.form, place));
}

int conversations_store_copy(struct conversations *c, const struct conversation_job *job, struct rod_error *err) {
    const struct state_home home = conversations_store_home(c, job->dir);
    char from[STATE_HOME_MAX_NAME], to[STATE_HOME_MAX_NAME];
    snprintf(from, sizeof from, "%s/%s", job->twin, job->file);
    snprintf(to, sizeof to, "%s/%s", job->dir, job->file);
    int rc = make(c, job, &home, err);
    if (!rc) rc = state_home_copy(&c->home, from, NULL, to, err);
    if (!rc) state_stored(c, job->dir, &job->place, 1);
    return rc;
}

int conversations_store_write(struct conversations *c, const struct conversation_job *job,
                              const struct state_bytes parts[2], struct rod_error *err) {
    const struct state_home home = conversations_store_home(c, job->dir);
    const int rc = make(c, job, &home, err);
    if (rc) return rc;
    struct state_disk_item item = {.name = job->file, .parts = parts, .n_parts = 2, .only_new = true};
    state_home_write(&home, &item, 1);
    if (item.rc == ROD_EEXISTS) return 0; /* another server was first, with the bytes of any */
    if (item.rc) *err = item.err;
    if (item.rc) return item.rc;
    conversations_store_clock(c, &item.version);
    state_stored(c, job->dir, &job->place, 1);
    return 0;
}

/* Damage may be of the way: then the second reading has none. Else the object goes, unless it is another one by now. */
int conversations_store_read(struct conversations *c, struct conversation_job *job, struct rod_error *err) {
    const struct state_home home = conversations_store_home(c, job->dir);
    struct state_disk_version version;
    int rc = 0;
    for (int i = 0; i < 2; i++) {
        rc = conversation_file_read(&c->config.form, &home, &job->place, job->buffer, &version, err);
        if (rc != ROD_ESTATE) return rc;
    }
    if (!state_home_remove(&home, job->file, &version, NULL))
        conversations_stored(c, job->dir, job->file, -(int64_t)version.n_bytes);
    return rc;
}

static int by_age(const void *a, const void *b) {
    const struct object *x = a, *y = b;
    return (x->version.mtime_ns > y->version.mtime_ns) - (x->version.mtime_ns < y->version.mtime_ns);
}

/* How many of them go, which then come first. */
static size_t objects_to_go(struct objects *o, uint64_t part_bytes) {
    if (!part_bytes) return o->n;
    size_t n = 0;
    for (size_t i = 0; i < o->n; i++) /* all but the notes */
        if (strcmp(o->all[i].file, CONVERSATION_NOTES_FILE) != 0) o->all[n++] = o->all[i];
    if (n) qsort(o->all, n, sizeof *o->all, by_age);
    size_t i = 0;
    for (uint64_t bytes = 0; i < n && bytes < part_bytes; i++) bytes += o->all[i].version.n_bytes;
    return i;
}

/* An object that was replaced meanwhile stays, as does, where time is over, whatever was used since. */
static int remove_all(struct conversations *c, const struct conversation_job *job, struct rod_error *err) {
    const struct state_home home = conversations_store_home(c, job->dir);
    struct objects o;
    int rc = objects_list(&home, &o, err);
    if (rc) return rc;
    const bool used = job->work == CONVERSATION_EXPIRE && o.used_s > (int64_t)job->seen.n_bytes;
    const size_t n = objects_to_go(&o, job->part_bytes);
    for (size_t i = 0; i < n && !rc && !used; i++) {
        rc = state_home_remove(&home, o.all[i].file, &o.all[i].version, err);
        if (!rc) conversations_stored(c, job->dir, o.all[i].file, -(int64_t)o.all[i].version.n_bytes);
        if (rc == ROD_ENOTFOUND || rc == ROD_ECONFLICT) rc = 0;
    }
    free(o.all);
    return rc;
}

void conversations_store_unlink(struct conversations *c, struct conversation_job *job) {
    const struct state_home home = conversations_store_home(c, job->dir);
    struct conversation_place place;
    if (!*job->file) {
        job->rc = remove_all(c, job, &job->err);
        return;
    }
    job->rc = state_home_remove(&home, job->file, NULL, &job->err);
    if (!job->rc && conversation_file_parse(job->file, &place)) state_stored(c, job->dir, &place, -1);
}

/* ---- calls ---- */

static bool objects_merge(struct conversations *c, const struct conversation_job *job, struct objects *o,
                          struct state_disk_version *notes) {
    struct conversation_scans scans = {0};
    const char *tenant = job->whose, *name = job->whose + strlen(job->whose) + 1;
    *notes = (struct state_disk_version){0};
    for (size_t i = 0; i < o->n; i++) {
        conversations_scan_add(&scans, o->all[i].file, o->all[i].version.n_bytes);
        if (!strcmp(o->all[i].file, CONVERSATION_NOTES_FILE)) *notes = o->all[i].version;
    }
    free(o->all);
    conversations_merge(c, job->dir, tenant, name, clock_unix_s(), &scans);
    return *notes->etag != 0;
}

static void touch(struct conversations *c, const struct state_home *home, const struct state_disk_version *notes) {
    const uint64_t ttl_s = c->config.ttl_s;
    const int64_t age_s = conversations_store_now(c) - (int64_t)(notes->mtime_ns / NS_S);
    struct rod_error err;
    if (ttl_s && age_s > 0 && (uint64_t)age_s > ttl_s / TOUCHES) notes_home_touch(home, &err);
}

void conversations_store_look(struct conversations *c, struct conversation_job *job) {
    const struct state_home home = conversations_store_home(c, job->dir);
    struct objects o;
    struct state_disk_version notes;
    job->rc = objects_list(&home, &o, &job->err);
    if (job->rc || !objects_merge(c, job, &o, &notes)) return;
    if (job->wants_notes && notes.inode != job->seen.inode)
        job->rc = notes_home_read(&home, &job->seen, &job->bytes, &job->n_bytes, &job->err);
    touch(c, &home, &notes);
}

static void note_over(struct conversations *c, const struct conversation_job *job, uint64_t n_now) {
    pthread_mutex_lock(&c->lock);
    struct conversation *of =
        conversation_get(c->table, job->dir, job->whose, job->whose + strlen(job->whose) + 1, clock_unix_s());
    if (of) {
        of->made = true;
        conversation_set_notes(c->table, of, n_now);
        conversation_room(c->table, of, 0);
    }
    pthread_mutex_unlock(&c->lock);
}

void conversations_store_note(struct conversations *c, struct conversation_job *job) {
    const struct state_home home = conversations_store_home(c, job->dir);
    const struct state_bytes first = {job->whose, job->n_whose}, record = {job->bytes, job->n_bytes};
    struct notes_grown grown;
    job->rc = notes_home_add(&home, &first, &record, &job->seen, &grown, &job->err);
    if (job->rc || !grown.now) return;
    conversations_stored(c, job->dir, CONVERSATION_NOTES_FILE, (int64_t)(grown.now - grown.before));
    note_over(c, job, grown.now);
}

void conversations_store_probe(struct conversations *c, struct conversation_job *job) {
    struct state_disk_version found;
    job->rc = state_home_stat(&c->home, CLOCK_FILE, &found, &job->err);
}
