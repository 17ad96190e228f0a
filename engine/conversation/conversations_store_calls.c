/* conversations_store_calls.c - see conversations_internal.h: the owner's calls in a store. What a request needs waits
 * for a few seconds, and goes on without an answer as if the store had nothing. */
#include "conversations_internal.h"
#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"
#include "engine/base/policy.h"
#include "engine/base/store_wait.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NS_S ((uint64_t)1000000000u)
/* For so long a tenant's heads are as they were; what a call waits at most that says how it went. */
#define FRESH_NS (4 * NS_S)
#define CALL_NS  (9 * NS_S)

static struct conversation_job *job_of(enum conversation_work work, const char *dir, const char *tenant,
                                       const char *name) {
    struct conversation_job *job = conversations_job(work, dir);
    if (!job) return NULL;
    job->whose = conversations_whose(tenant, name, &job->n_whose);
    if (job->whose) return job;
    free(job);
    return NULL;
}

static int not_in_time(struct rod_error *err) {
    return rod_fail(err, ROD_EIO, "The store of conversations does not answer.");
}

/* ---- what a request needs ---- */

static uint64_t wait_until_locked(struct conversations *c, uint64_t waited_ns) {
    return conversations_waits_locked(c, waited_ns) ? conversations_until_locked(c, 0, waited_ns) : 0;
}

static uint64_t waited(const struct conversation_job *job, bool done, uint64_t began_ns, uint64_t before_ns) {
    const bool failed = !done || job->rc == ROD_EIO || job->rc == ROD_EUNSURE;
    return store_wait_add(before_ns, clock_now_ns() - began_ns, failed);
}

/* A new conversation begins at a head; 0: nobody waits for the store now. */
static uint64_t look_until(struct conversations *c, const char *dir, const char *heads, uint64_t waited_ns,
                           bool *wants_heads) {
    pthread_mutex_lock(&c->lock);
    const struct conversation *own = conversation_find(c->table, dir), *of_heads = conversation_find(c->table, heads);
    const bool fresh = of_heads && clock_now_ns() - of_heads->listed_ns < FRESH_NS;
    const uint64_t until_ns = wait_until_locked(c, waited_ns);
    *wants_heads = !own || !own->states.n || !fresh;
    pthread_mutex_unlock(&c->lock);
    return until_ns;
}

int conversations_store_call_look(struct conversations *c, const char *tenant, const char *name,
                                  struct rod_notes_seen *seen, void **bytes, size_t *n, struct rod_error *err) {
    char dir[CONVERSATION_DIR_BYTES], heads[CONVERSATION_DIR_BYTES];
    bool wants_heads;
    conversations_dir(c, tenant, name, dir);
    conversations_dir(c, tenant, "", heads);
    const uint64_t began_ns = clock_now_ns(), until_ns = look_until(c, dir, heads, seen->waited_ns, &wants_heads);
    if (!until_ns) return 0;
    struct conversation_job *own = job_of(CONVERSATION_LOOK, dir, tenant, name);
    if (!own) return rod_fail_no_memory(err);
    own->wants_notes = true;
    own->seen = *seen;
    struct conversation_job *of_heads = wants_heads ? job_of(CONVERSATION_LOOK, heads, tenant, "") : NULL;
    if (of_heads) conversations_ask(c, of_heads);
    conversations_ask(c, own);
    const bool done = conversations_await(c, own, until_ns);
    if (of_heads && conversations_await(c, of_heads, until_ns)) conversations_job_free(of_heads);
    const uint64_t waited_ns = waited(own, done, began_ns, seen->waited_ns);
    if (done && !own->rc) {
        *seen = own->seen;
        *bytes = own->bytes;
        *n = own->n_bytes;
        own->bytes = NULL;
    }
    seen->waited_ns = waited_ns;
    if (done) conversations_job_free(own);
    return 0;
}

/* 0: nobody waits, but it is written if it can be. */
static bool note_until(struct conversations *c, uint64_t waited_ns, uint64_t *until_ns) {
    pthread_mutex_lock(&c->lock);
    const bool has_place = c->queues[0].n < POLICY_CONVERSATION_WRITES;
    *until_ns = wait_until_locked(c, waited_ns);
    pthread_mutex_unlock(&c->lock);
    return has_place;
}

int conversations_store_call_note(struct conversations *c, const char *tenant, const char *name, const void *record,
                                  size_t n, struct rod_notes_seen *seen, struct rod_error *err) {
    char dir[CONVERSATION_DIR_BYTES];
    uint64_t until_ns;
    if (!note_until(c, seen->waited_ns, &until_ns)) return 0;
    conversations_dir(c, tenant, name, dir);
    struct conversation_job *job = job_of(CONVERSATION_NOTE, dir, tenant, name);
    if (!job || !(job->bytes = malloc(n + 1))) {
        if (job) conversations_job_free(job);
        return rod_fail_no_memory(err);
    }
    memcpy(job->bytes, record, n);
    job->n_bytes = n;
    job->seen = *seen;
    const uint64_t began_ns = clock_now_ns();
    conversations_ask(c, job);
    const bool done = conversations_await(c, job, until_ns);
    const uint64_t waited_ns = waited(job, done, began_ns, seen->waited_ns);
    if (done && !job->rc) *seen = job->seen;
    if (until_ns) seen->waited_ns = waited_ns;
    if (done) conversations_job_free(job);
    return 0;
}

/* ---- what somebody asks for ---- */

/* Waits longer, whether the store is stuck or not. */
static int call(struct conversations *c, struct conversation_job *job, struct rod_error *err) {
    if (!job) return rod_fail_no_memory(err);
    conversations_ask(c, job);
    if (!conversations_await(c, job, clock_now_ns() + CALL_NS)) return not_in_time(err);
    const int rc = job->rc;
    if (rc) *err = job->err;
    conversations_job_free(job);
    return rc;
}

int conversations_store_call_learn(struct conversations *c, const char *tenant, const char *name,
                                   struct rod_error *err) {
    char dir[CONVERSATION_DIR_BYTES];
    conversations_dir(c, tenant, name, dir);
    return call(c, job_of(CONVERSATION_LOOK, dir, tenant, name), err);
}

int conversations_store_call_remove(struct conversations *c, const char *dir, struct rod_error *err) {
    return call(c, conversations_job(CONVERSATION_UNLINK, dir), err);
}

/* ---- all of a tenant's ---- */

struct listing {
    struct conversations *c;
    const char *tenant;
    uint64_t began_ns;
    char half[CONVERSATION_DIR_BYTES]; /* "TENANT/" */
    char dir[CONVERSATION_DIR_BYTES];  /* whose objects come; "": none yet */
    struct conversation_scans scans;
    int64_t used_s;
    char last[STATE_HOME_MAX_NAME + 1];
    int rc;
    struct rod_error err;
};

/* Of a known conversation; else its notes say its name. NULL: it has none of ours. */
static char *name_of(struct listing *l) {
    struct conversations *c = l->c;
    const char *name = NULL;
    void *first = NULL;
    size_t n;
    pthread_mutex_lock(&c->lock);
    const struct conversation *of = conversation_find(c->table, l->dir);
    char *known = of ? strdup(of->name) : NULL;
    pthread_mutex_unlock(&c->lock);
    if (known) return known;
    const struct state_home home = conversations_store_home(c, l->dir);
    const int rc = notes_home_read_first(&home, &first, &n, &l->err);
    if (rc && rc != ROD_ENOTFOUND && rc != ROD_ESTATE) l->rc = rc;
    if (rc) return NULL;
    known = conversations_whose_dir(c, l->dir, first, n, &name) ? strdup(name) : NULL;
    free(first);
    return known;
}

static void listing_merge(struct listing *l) {
    char *name = *l->dir && !l->rc ? name_of(l) : NULL;
    l->scans.since_ns = l->began_ns;
    if (name)
        conversations_merge(l->c, l->dir, l->tenant, name, l->used_s, &l->scans);
    else
        free(l->scans.all);
    free(name);
    l->scans = (struct conversation_scans){0};
    l->used_s = 0;
    *l->dir = 0;
}

static void on_object(void *arg, const char *name, const struct state_disk_version *version) {
    struct listing *l = arg;
    const int64_t used_s =
        (int64_t)(version->mtime_ns / NS_S) - atomic_load_explicit(&l->c->ahead_s, memory_order_relaxed);
    const char *last = strrchr(name, '/');
    snprintf(l->last, sizeof l->last, "%s", name);
    if (!last || last - name != CONVERSATION_DIR_BYTES - 1) return;
    if (strncmp(l->dir, name, CONVERSATION_DIR_BYTES - 1) != 0) {
        listing_merge(l);
        memcpy(l->dir, name, CONVERSATION_DIR_BYTES - 1);
    }
    if (used_s > l->used_s) l->used_s = used_s;
    conversations_scan_add(&l->scans, last + 1, version->n_bytes);
}

/* What the table has of the tenant, and the store had not. */
static void forget_missing(struct listing *l) {
    struct conversations *c = l->c;
    pthread_mutex_lock(&c->lock);
    for (struct conversation *of = conversation_first(c->table), *next; of; of = next) {
        next = conversation_after(c->table, of);
        if (of->made && !strcmp(of->tenant, l->tenant) && of->listed_ns < l->began_ns && of->changed_ns < l->began_ns &&
            !conversations_busy_locked(c, of->dir))
            conversations_gone_locked(c, of);
    }
    pthread_mutex_unlock(&c->lock);
}

int conversations_store_call_list(struct conversations *c, const char *tenant, struct rod_error *err) {
    struct listing l = {.c = c, .tenant = tenant, .began_ns = clock_now_ns()};
    bool more = true;
    conversations_tenant_dir(c, tenant, l.half);
    while (!l.rc && more) {
        char after[sizeof l.last];
        memcpy(after, l.last, sizeof after);
        l.rc = state_home_list(&c->home, l.half, after, on_object, &l, &more, &l.err);
        const bool ends = !more || strcmp(after, l.last) != 0;
        if (!l.rc && (!ends || clock_now_ns() - l.began_ns > CALL_NS)) l.rc = not_in_time(&l.err);
    }
    listing_merge(&l);
    if (!l.rc) forget_missing(&l);
    if (l.rc) *err = l.err;
    return l.rc;
}
