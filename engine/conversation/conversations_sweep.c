/* conversations_sweep.c - see conversations_internal.h: what time and budgets ask for in a store. Any server sweeps: it
 * lists all conversations, and asks for the removal of those that nobody used for their time to live, of what says not
 * whose it is, and past the budget of those used longest ago, first of tenants that have their part. */
#include "conversations_internal.h"
#include "engine/base/array.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define NS_S ((uint64_t)1000000000u)
/* Between sweeps: seconds, while there is too much, and for each page of the list; before the first one at most; the
 * age at which what says not whose it is goes; the oldest conversations that one sweep may remove for the budget, of
 * which so much becomes free at once, and how many wait at once. */
enum { SWEEP_S = 300, SOON_S = 10, PAGE_S = 3, FIRST_S = 16, LEFT_S = 3600 };
enum { MOST_OLD = 4096, SPARE_PARTS = 16, MOST_WAIT = 256 };
enum { HALF_DIGITS = SIPHASH_BYTES };

/* ---- time ---- */

void conversations_store_clock(struct conversations *c, const struct state_disk_version *written) {
    enum { SLACK_S = 10 }; /* that a request may take */
    const int64_t ahead_s = (int64_t)(written->mtime_ns / NS_S) - clock_unix_s();
    if (!written->mtime_ns) return;
    atomic_store_explicit(&c->ahead_s, ahead_s > SLACK_S || ahead_s < -SLACK_S ? ahead_s : 0, memory_order_relaxed);
}

int64_t conversations_store_now(const struct conversations *c) {
    return clock_unix_s() + atomic_load_explicit(&c->ahead_s, memory_order_relaxed);
}

uint64_t conversations_sweep_due(struct conversations *c, uint64_t n_pages) {
    unsigned char random = 0;
    uint64_t s = SWEEP_S > n_pages * PAGE_S ? SWEEP_S : n_pages * PAGE_S;
    if (getrandom(&random, 1, GRND_NONBLOCK) != 1) random = (unsigned char)clock_now_ns();
    if (c->config.ttl_s && c->config.ttl_s / 2 < s && n_pages * PAGE_S < s) s = c->config.ttl_s / 2;
    if (!n_pages && s > FIRST_S) s = 1 + random % FIRST_S; /* servers that start together */
    return clock_now_ns() + (s ? s : 1) * NS_S;
}

void conversations_stored(struct conversations *c, const char *dir, const char *file, int64_t more_bytes) {
    char name[STATE_HOME_MAX_NAME + 1];
    snprintf(name, sizeof name, "%s/%s", dir, file);
    pthread_mutex_lock(&c->lock);
    const int64_t all = (int64_t)atomic_load(&c->stored_bytes) + more_bytes;
    atomic_store(&c->stored_bytes, all > 0 ? (uint64_t)all : 0);
    if (strcmp(name, c->swept_to) <= 0) c->behind_bytes += more_bytes;
    if (more_bytes > 0) c->added_bytes += (uint64_t)more_bytes;
    const uint64_t budget = c->config.disk_bytes; /* others write, too */
    const bool over = budget && (all > (int64_t)budget || c->added_bytes > budget / SPARE_PARTS);
    if (over && c->sweep_ns > c->soon_ns) c->sweep_ns = c->soon_ns;
    pthread_mutex_unlock(&c->lock);
}

/* The page that is on its way counts as before it: the next sweep knows better. */
static void set_swept(struct conversations *c, const char *last) {
    pthread_mutex_lock(&c->lock);
    if (!*last) c->behind_bytes = 0, c->added_bytes = 0;
    snprintf(c->swept_to, sizeof c->swept_to, "%s", last);
    pthread_mutex_unlock(&c->lock);
}

/* ---- a sweep ---- */

struct swept {
    char dir[CONVERSATION_DIR_BYTES];
    int64_t used_s;
    uint64_t bytes;
    bool notes, heads; /* heads: of all of a tenant's conversations */
};
struct swept_tenant {
    char half[HALF_DIGITS + 1];
    uint64_t bytes;
};
struct sweep {
    struct conversations *c;
    struct swept at;   /* the conversation whose objects come */
    struct swept *old; /* [n_old] those used longest ago */
    size_t n_old, old_cap;
    struct swept_tenant *tenants; /* [n_tenants], in order */
    size_t n_tenants, tenants_cap;
    uint64_t bytes, n_pages;
    char last[STATE_HOME_MAX_NAME + 1];
};

/* ---- one conversation ---- */

/* part_bytes: of heads only so much. */
static void push_removal(struct conversations *c, const struct swept *at, int64_t unless_used_s, uint64_t part_bytes) {
    struct conversation_job *job = conversations_job(CONVERSATION_EXPIRE, at->dir);
    if (!job) return;
    job->seen.n_bytes = (uint64_t)unless_used_s;
    job->part_bytes = part_bytes;
    pthread_mutex_lock(&c->lock);
    struct conversation *of = conversation_find(c->table, at->dir);
    const bool goes = !conversations_removes_locked(c, at->dir, "") && c->queues[0].n < MOST_WAIT && !c->ends;
    if (goes) conversations_push_locked(c, job);
    if (goes && of && !part_bytes) conversation_forget(c->table, of);
    pthread_mutex_unlock(&c->lock);
    if (!goes) free(job); /* the next sweep finds it */
}

static int by_use(const void *a, const void *b) {
    const struct swept *x = a, *y = b;
    return (x->used_s > y->used_s) - (x->used_s < y->used_s);
}

static void keep_old(struct sweep *w) {
    if (!w->c->config.disk_bytes || !ARRAY_RESERVE(w->old, w->old_cap, w->n_old, 1)) return;
    w->old[w->n_old++] = w->at;
    if (w->n_old < 2 * MOST_OLD) return;
    qsort(w->old, w->n_old, sizeof *w->old, by_use);
    w->n_old = MOST_OLD;
}

/* Names come in order: a tenant's conversations together. */
static void count_tenant(struct sweep *w) {
    const bool same = w->n_tenants && !memcmp(w->tenants[w->n_tenants - 1].half, w->at.dir, HALF_DIGITS);
    if (!same) {
        if (!ARRAY_RESERVE(w->tenants, w->tenants_cap, w->n_tenants, 1)) return;
        struct swept_tenant *tenant = &w->tenants[w->n_tenants++];
        *tenant = (struct swept_tenant){.bytes = 0};
        memcpy(tenant->half, w->at.dir, HALF_DIGITS);
    }
    w->tenants[w->n_tenants - 1].bytes += w->at.bytes;
}

static void conversation_over(struct sweep *w) {
    const struct swept *at = &w->at;
    const int64_t now_s = conversations_store_now(w->c), ttl_s = (int64_t)w->c->config.ttl_s;
    if (!*at->dir) return;
    w->bytes += at->bytes;
    if (ttl_s && at->used_s + ttl_s < now_s) {
        push_removal(w->c, at, now_s - ttl_s, 0);
    } else if (!at->notes && at->used_s + LEFT_S < now_s) {
        push_removal(w->c, at, now_s - LEFT_S, 0);
    } else {
        count_tenant(w);
        keep_old(w);
    }
}

/* ---- all ---- */

static void on_object(void *arg, const char *name, const struct state_disk_version *version) {
    struct sweep *w = arg;
    const int64_t used_s = (int64_t)(version->mtime_ns / NS_S);
    const char *last = strrchr(name, '/');
    struct conversation_place place;
    snprintf(w->last, sizeof w->last, "%s", name);
    if (!last || last - name != CONVERSATION_DIR_BYTES - 1) return; /* none of ours */
    if (strncmp(w->at.dir, name, CONVERSATION_DIR_BYTES - 1) != 0) {
        conversation_over(w);
        w->at = (struct swept){.used_s = 0};
        memcpy(w->at.dir, name, CONVERSATION_DIR_BYTES - 1);
    }
    if (used_s > w->at.used_s) w->at.used_s = used_s;
    w->at.bytes += version->n_bytes;
    w->at.notes |= !strcmp(last + 1, CONVERSATION_NOTES_FILE);
    w->at.heads |= conversation_file_parse(last + 1, &place) && place.kind == CONVERSATION_HEAD;
}

static bool is_ending(struct conversations *c) {
    pthread_mutex_lock(&c->lock);
    const bool ends = c->ends;
    pthread_mutex_unlock(&c->lock);
    return ends;
}

static int sweep_list(struct sweep *w, struct rod_error *err) {
    bool more = true;
    int rc = 0;
    while (!rc && more && !is_ending(w->c)) {
        char after[sizeof w->last];
        memcpy(after, w->last, sizeof after);
        rc = state_home_list(&w->c->home, "", after, on_object, w, &more, err);
        if (!rc && more && !strcmp(after, w->last)) rc = rod_fail(err, ROD_EIO, "The store's list does not end.");
        set_swept(w->c, w->last);
        w->n_pages++;
    }
    if (!rc && !more) conversation_over(w);
    return rc || !more ? rc : rod_fail(err, ROD_EIO, "The engine ends.");
}

static struct swept_tenant *tenant_of(const struct sweep *w, const struct swept *at) {
    for (size_t i = 0; i < w->n_tenants; i++)
        if (!memcmp(w->tenants[i].half, at->dir, HALF_DIGITS)) return &w->tenants[i];
    return NULL;
}

static void keep_budget(struct sweep *w) {
    const uint64_t budget = w->c->config.disk_bytes, quota = budget / CONVERSATION_TENANT_PARTS;
    if (!budget || w->bytes <= budget) return;
    const uint64_t most = budget - budget / SPARE_PARTS;
    qsort(w->old, w->n_old, sizeof *w->old, by_use);
    for (int all = 0; all < 2; all++)
        for (size_t i = 0; i < w->n_old && w->bytes > most; i++) {
            struct swept *at = &w->old[i];
            struct swept_tenant *tenant = tenant_of(w, at);
            if (!*at->dir || (!all && (!tenant || tenant->bytes < quota))) continue;
            const uint64_t more = w->bytes - most, part = at->heads && at->bytes > more ? more : 0,
                           less = part ? part : at->bytes;
            push_removal(w->c, at, at->used_s, part);
            w->bytes -= less;
            if (tenant) tenant->bytes -= less;
            *at->dir = 0;
        }
}

static void set_sum(struct sweep *w) {
    struct conversations *c = w->c;
    pthread_mutex_lock(&c->lock);
    const int64_t all = (int64_t)w->bytes + c->behind_bytes;
    atomic_store(&c->stored_bytes, all > 0 ? (uint64_t)all : 0);
    pthread_mutex_unlock(&c->lock);
}

/* What a server has just written has the store's time. */
static void set_clock(struct conversations *c) {
    const struct state_bytes bytes = {"clock", 5};
    struct state_disk_item item = {.name = "clock", .parts = &bytes, .n_parts = 1};
    state_home_write(&c->home, &item, 1);
    if (!item.rc) conversations_store_clock(c, &item.version);
}

void conversations_sweep(struct conversations *c, struct conversation_job *job) {
    struct sweep w = {.c = c};
    if (c->config.ttl_s) set_clock(c);
    set_swept(c, "");
    job->rc = sweep_list(&w, &job->err);
    if (!job->rc) {
        set_sum(&w);
        keep_budget(&w);
    }
    free(w.old);
    free(w.tenants);
    const uint64_t due_ns = conversations_sweep_due(c, w.n_pages);
    pthread_mutex_lock(&c->lock);
    c->sweep_ns = due_ns;
    c->soon_ns = clock_now_ns() + (SOON_S > w.n_pages * PAGE_S ? SOON_S : w.n_pages * PAGE_S) * NS_S;
    pthread_mutex_unlock(&c->lock);
}
