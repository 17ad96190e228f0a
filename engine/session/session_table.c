/* session_table.c - see session_table.h. */
#include "session_table.h"
#include "engine/session/store/session_places.h"
#include "engine/base/array.h"
#include "engine/base/fail.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { FIRST_BUCKETS = 64 };
#define KEPT_BYTES (sizeof(struct session_kept) + 16) /* with what malloc adds */

int session_table_init(struct session_table *t, struct rod_error *err) {
    *t = (struct session_table){.n_buckets = FIRST_BUCKETS};
    for (enum session_order o = 0; o < SESSION_N_ORDERS; o++) list_init(&t->by_use[o]);
    if (getrandom(t->key, sizeof t->key, 0) != (ssize_t)sizeof t->key)
        return rod_fail(err, ROD_EINTERNAL, "The system has no random numbers for the table of sessions.");
    for (int h = 0; h < SESSION_N_HASHES; h++) t->buckets[h] = calloc(t->n_buckets, sizeof(struct session *));
    if (t->buckets[SESSION_BY_ID] && t->buckets[SESSION_BY_NAME]) return 0;
    session_table_fini(t);
    return rod_fail_no_memory(err);
}

static void session_free(struct session *s) {
    session_snapshot_release(s->snapshot);
    session_answers_release(s->answers);
    session_kept_free(s->kept);
    free(s);
}

void session_table_fini(struct session_table *t) {
    for (struct session *s = session_oldest(t, SESSION_ALL), *next; s; s = next) {
        next = session_newer(t, s, SESSION_ALL);
        if (s->snapshot) s->snapshot->n_sessions--;
        for (struct session_kept *k = s->kept; k; k = k->next)
            if (k->snapshot) k->snapshot->n_sessions--;
        session_free(s);
    }
    session_kept_free(t->gone);
    for (struct session_kept_sum *sum = t->kept_sums, *next; sum; sum = next) {
        next = sum->next;
        free(sum);
    }
    session_bytes_fini(&t->files);
    for (int h = 0; h < SESSION_N_HASHES; h++) free(t->buckets[h]);
    free(t->ends);
    *t = (struct session_table){0};
}

/* ---- names ---- */

static uint64_t table_hash(const struct session_table *t, const void *bytes, size_t n) {
    uint8_t digest[SIPHASH_BYTES];
    uint64_t first;
    siphash(t->key, bytes, n, digest);
    memcpy(&first, digest, sizeof first);
    return first;
}

static uint64_t table_hash_id(const struct session_table *t, const char *tenant, const char *id) {
    char both[SESSION_MAX_TENANT + 1 + SESSION_MAX_ID];
    const size_t n_tenant = strlen(tenant), n_id = strlen(id);
    assert(n_tenant <= SESSION_MAX_TENANT && n_id <= SESSION_MAX_ID);
    memcpy(both, tenant, n_tenant + 1);
    memcpy(both + n_tenant + 1, id, n_id);
    return table_hash(t, both, n_tenant + 1 + n_id);
}

static struct session **table_bucket(const struct session_table *t, enum session_hash h, uint64_t of) {
    return &t->buckets[h][of & (t->n_buckets - 1)];
}

static void table_chain(struct session_table *t, struct session *s, enum session_hash h) {
    struct session **bucket = table_bucket(t, h, s->hash[h]);
    s->chain[h] = *bucket;
    *bucket = s;
}

static void table_unchain(struct session_table *t, struct session *s, enum session_hash h) {
    struct session **at = table_bucket(t, h, s->hash[h]);
    while (*at != s) at = &(*at)->chain[h];
    *at = s->chain[h];
}

struct session *session_table_find(const struct session_table *t, const char *tenant, const char *id) {
    struct session *s = *table_bucket(t, SESSION_BY_ID, table_hash_id(t, tenant, id));
    while (s && (strcmp(s->metadata.id, id) || strcmp(s->metadata.tenant, tenant))) s = s->chain[SESSION_BY_ID];
    return s;
}

struct session *session_table_find_name(const struct session_table *t, const uint8_t name[SESSION_NAME_BYTES]) {
    struct session *s = *table_bucket(t, SESSION_BY_NAME, table_hash(t, name, SESSION_NAME_BYTES));
    while (s && memcmp(s->name, name, SESSION_NAME_BYTES)) s = s->chain[SESSION_BY_NAME];
    return s;
}

void session_table_name(struct session_table *t, struct session *s, const uint8_t name[SESSION_NAME_BYTES]) {
    if (s->named) table_unchain(t, s, SESSION_BY_NAME);
    memcpy(s->name, name, SESSION_NAME_BYTES);
    s->hash[SESSION_BY_NAME] = table_hash(t, name, SESSION_NAME_BYTES);
    s->named = true;
    table_chain(t, s, SESSION_BY_NAME);
}

/* ---- the order of use ---- */

/* Behind all that were used no later. A session that is used now goes to the end at once. */
static void table_link_use(struct session_table *t, struct session *s, enum session_order o) {
    struct list *list = &t->by_use[o];
    struct list_link *at = &list->ends;
    while (at->prev != &list->ends && session_of_use(at->prev, o)->metadata.used_s > s->metadata.used_s) at = at->prev;
    list_insert_before(list, at, &s->by_use[o]);
}

static bool session_belongs(const struct session *s, enum session_order o) {
    switch (o) {
    case SESSION_DROPPABLE: return s->snapshot && s->file_version.n_bytes && !s->dirty;
    case SESSION_DIRTY: return s->exists && s->dirty;
    case SESSION_REMOVABLE: return s->exists && !s->metadata.pinned;
    case SESSION_KEEPING: return s->exists && s->kept;
    case SESSION_IN_HOST: return s->exists && !s->metadata.pinned && s->snapshot && s->snapshot->buffer;
    default: return true;
    }
}

/* After a change: the lists that it belongs to, and its end. */
static void table_settle(struct session_table *t, struct session *s) {
    for (enum session_order o = 0; o < SESSION_N_ORDERS; o++) {
        const bool in = session_belongs(s, o);
        if (in == (s->by_use[o].next != NULL)) continue;
        if (in)
            table_link_use(t, s, o);
        else
            list_remove(&t->by_use[o], &s->by_use[o]);
    }
    const int64_t end_s = s->exists ? session_end_s(&s->metadata) : INT64_MAX;
    if (end_s != s->end_s) session_ends_set(t, s, end_s); /* else it may have been looked at already */
    s->end_s = end_s;
    assert(t->n_exist <= t->n && t->n_snapshots <= t->n && t->n_dirty <= t->n);
}

/* Out of all lists, so that the time of its use can change; table_settle puts it back. */
static void table_unsettle(struct session_table *t, struct session *s) {
    for (enum session_order o = 0; o < SESSION_N_ORDERS; o++)
        if (s->by_use[o].next) list_remove(&t->by_use[o], &s->by_use[o]);
}

/* ---- memory ---- */

static void table_count_memory(struct session_table *t, int64_t place_bytes, int64_t beside_bytes) {
    if (t->pool) state_pool_add(t->pool, place_bytes, beside_bytes);
}

/* A snapshot that several share counts once. */
static void table_count_snapshot(struct session_table *t, struct session_snapshot *p, bool more) {
    if (!p) return;
    const int64_t n_bytes = (int64_t)session_snapshot_own_bytes(p);
    assert(more || p->n_sessions); /* no session gives back what it has not */
    if (more ? p->n_sessions++ == 0 : --p->n_sessions == 0) table_count_memory(t, 0, more ? n_bytes : -n_bytes);
}

static void table_count_answers(struct session_table *t, const struct session_answers *a, bool more) {
    if (a) table_count_memory(t, 0, more ? (int64_t)a->n : -(int64_t)a->n);
}

/* ---- sessions come and go ---- */

static void table_grow(struct session_table *t) {
    const size_t n_buckets = t->n_buckets * 2;
    struct session **buckets[SESSION_N_HASHES];
    for (int h = 0; h < SESSION_N_HASHES; h++) buckets[h] = calloc(n_buckets, sizeof(struct session *));
    if (!buckets[SESSION_BY_ID] || !buckets[SESSION_BY_NAME]) { /* longer chains */
        for (int h = 0; h < SESSION_N_HASHES; h++) free(buckets[h]);
        return;
    }
    for (int h = 0; h < SESSION_N_HASHES; h++) {
        free(t->buckets[h]);
        t->buckets[h] = buckets[h];
    }
    t->n_buckets = n_buckets;
    for (struct session *s = session_oldest(t, SESSION_ALL); s; s = session_newer(t, s, SESSION_ALL)) {
        table_chain(t, s, SESSION_BY_ID);
        if (s->named) table_chain(t, s, SESSION_BY_NAME);
    }
}

struct session *session_table_add(struct session_table *t, const char *tenant, const char *id) {
    struct session *s =
        ARRAY_RESERVE(t->ends, t->ends_cap, t->n, 1) ? calloc(1, sizeof *s) : NULL; /* may have an end */
    if (!s) return NULL;
    memcpy(s->metadata.tenant, tenant, strlen(tenant) + 1);
    memcpy(s->metadata.id, id, strlen(id) + 1);
    s->hash[SESSION_BY_ID] = table_hash_id(t, tenant, id);
    s->lease_fd = -1;
    s->end_s = INT64_MAX;
    const struct session *newest = session_of_use(list_last(&t->by_use[SESSION_ALL]), SESSION_ALL);
    s->metadata.used_s = newest ? newest->metadata.used_s : 0;
    list_init(&s->queue);
    if (t->n >= t->n_buckets) table_grow(t);
    table_chain(t, s, SESSION_BY_ID);
    t->n++;
    table_settle(t, s);
    return s;
}

static void table_uncount(struct session_table *t, struct session *s) {
    if (!s->counted) return;
    s->counted = false;
    assert(session_table_n(t));
    session_tree_remove(t, s);
    table_count_memory(t, -(int64_t)SESSION_PLACE_BYTES, 0);
}

void session_table_count(struct session_table *t, struct session *s) {
    if (s->counted) return;
    s->counted = true;
    session_tree_add(t, s);
    table_count_memory(t, (int64_t)SESSION_PLACE_BYTES, 0);
}

uint64_t session_table_n_of(const struct session_table *t, const char *tenant) {
    return session_tree_rank(t, tenant, NULL, true) - session_tree_rank(t, tenant, "", false);
}

void session_table_remove(struct session_table *t, struct session *s) {
    assert(s->hold == SESSION_FREE && !s->queue.n && s->lease_fd < 0 && !s->exists);
    assert(t->n && !s->write.next && !s->snapshot && !s->dirty && !s->reserved_bytes && !s->kept);
    table_unchain(t, s, SESSION_BY_ID);
    if (s->named) table_unchain(t, s, SESSION_BY_NAME);
    table_uncount(t, s);
    table_unsettle(t, s);
    t->n--;
    session_free(s);
}

/* ---- earlier turns ---- */

void session_kept_free(struct session_kept *k) {
    for (struct session_kept *next; k; k = next) {
        next = k->next;
        session_snapshot_release(k->snapshot);
        free(k);
    }
}

struct session_kept *session_table_kept(const struct session *s, uint64_t version) {
    struct session_kept *k = s->kept;
    while (k && k->version != version) k = k->next;
    return k;
}

struct session_kept_sum *session_table_kept_of(const struct session_table *t, const char *tenant) {
    struct session_kept_sum *sum = t->kept_sums;
    while (sum && strcmp(sum->tenant, tenant) != 0) sum = sum->next;
    return sum;
}

static uint64_t kept_bytes(const struct session_kept *k) {
    return k->in_file ? k->file.n_bytes : session_snapshot_bytes(k->snapshot);
}

/* Before the first one: the tenant has a sum. NULL without memory. */
static struct session_kept_sum *table_kept_sum(struct session_table *t, const char *tenant) {
    struct session_kept_sum *sum = session_table_kept_of(t, tenant);
    if (sum || !(sum = calloc(1, sizeof *sum))) return sum;
    memcpy(sum->tenant, tenant, strlen(tenant) + 1);
    sum->next = t->kept_sums;
    t->kept_sums = sum;
    return sum;
}

static void table_leave_sum(struct session_table *t, const struct session_kept *k) {
    struct session_kept_sum *sum = k->sum, **at = &t->kept_sums;
    assert(sum->n && sum->n_bytes >= kept_bytes(k));
    sum->n_bytes -= kept_bytes(k);
    if (--sum->n) return;
    while (*at != sum) at = &(*at)->next;
    *at = sum->next;
    free(sum);
}

bool session_table_keep(struct session_table *t, struct session *s, const struct session_kept *kept,
                        const struct session_file_version *v) {
    struct session_kept *k = session_table_kept(s, kept->version) ? NULL : malloc(sizeof *k);
    struct session_kept_sum *sum = k ? table_kept_sum(t, s->metadata.tenant) : NULL;
    if (!sum) {
        free(k);
        return false;
    }
    *k = *kept;
    k->sum = sum;
    k->file = (struct session_bytes_hold){0};
    k->in_file = v->n_bytes != 0;
    k->next = s->kept;
    s->kept = k;
    t->n_kept++;
    session_bytes_set(&t->files, &k->file, v->inode, v->disk_bytes, false);
    table_count_snapshot(t, k->snapshot, true);
    table_count_memory(t, 0, (int64_t)KEPT_BYTES);
    sum->n++;
    sum->n_bytes += kept_bytes(k);
    table_settle(t, s);
    return true;
}

/* Before the session is settled. */
static void table_take_kept(struct session_table *t, struct session *s, struct session_kept **at) {
    struct session_kept *k = *at;
    *at = k->next;
    assert(t->n_kept);
    t->n_kept--;
    table_leave_sum(t, k);
    session_bytes_set(&t->files, &k->file, 0, 0, false);
    table_count_snapshot(t, k->snapshot, false);
    table_count_memory(t, 0, -(int64_t)KEPT_BYTES);
    memcpy(k->name, s->name, sizeof k->name);
    k->next = t->gone;
    t->gone = k;
}

/* States of no place of the session go; all: every one. */
static void table_sift_kept(struct session_table *t, struct session *s, bool all) {
    for (struct session_kept **at = &s->kept; *at;)
        if (all || session_places_find(&s->metadata, (*at)->version) == s->metadata.n_kept)
            table_take_kept(t, s, at);
        else
            at = &(*at)->next;
}

void session_table_unkeep(struct session_table *t, struct session *s, uint64_t version) {
    const size_t place = session_places_find(&s->metadata, version);
    if (place < s->metadata.n_kept) session_places_drop(&s->metadata, place);
    struct session_kept **at = &s->kept;
    while (*at && (*at)->version != version) at = &(*at)->next;
    if (*at) table_take_kept(t, s, at);
    table_settle(t, s);
}

struct session *session_table_to_unkeep(const struct session_table *t, const char *tenant) {
    struct session *s = session_oldest(t, SESSION_KEEPING);
    while (s && (!s->metadata.n_kept || (tenant && strcmp(s->metadata.tenant, tenant) != 0)))
        s = session_newer(t, s, SESSION_KEEPING);
    return s;
}

/* ---- what a session is ---- */

/* Before it is settled. */
static struct session_snapshot *table_take_snapshot(struct session_table *t, struct session *s) {
    struct session_snapshot *snapshot = s->snapshot;
    table_count_answers(t, s->answers, false);
    table_count_snapshot(t, snapshot, false);
    session_answers_release(s->answers);
    s->answers = NULL;
    s->snapshot = NULL;
    assert(!snapshot || t->n_snapshots);
    t->n_snapshots -= snapshot != NULL;
    return snapshot;
}

struct session_snapshot *session_table_set(struct session_table *t, struct session *s,
                                           const struct session_metadata *metadata, struct session_snapshot *snapshot,
                                           struct session_answers *answers) {
    session_table_count(t, s);
    table_unsettle(t, s);
    t->n_exist += !s->exists;
    s->exists = true;
    table_count_snapshot(t, snapshot, true); /* before the old one goes, which may be the same */
    struct session_snapshot *old = table_take_snapshot(t, s);
    if (s->metadata.pinned != metadata->pinned) {
        session_bytes_pin(&t->files, &s->file, metadata->pinned);
        session_bytes_pin(&t->files, &s->base, metadata->pinned);
        t->reserved_pinned_bytes += metadata->pinned ? s->reserved_bytes : -s->reserved_bytes;
    }
    s->metadata = *metadata;
    table_sift_kept(t, s, false);
    s->snapshot = snapshot;
    s->answers = answers;
    table_count_answers(t, answers, true);
    t->n_snapshots += snapshot != NULL;
    table_settle(t, s);
    return old;
}

void session_table_use(struct session_table *t, struct session *s, int64_t now_s) {
    if (!s->exists || now_s < s->metadata.used_s) return;
    table_unsettle(t, s);
    s->metadata.used_s = now_s;
    table_settle(t, s);
}

struct session_snapshot *session_table_unset(struct session_table *t, struct session *s) {
    assert(!s->exists || t->n_exist);
    t->n_exist -= s->exists;
    session_table_set_file(t, s, &(struct session_file_version){0});
    session_table_set_dirty(t, s, false);
    s->exists = s->drop = false;
    table_sift_kept(t, s, true);
    table_uncount(t, s);
    struct session_snapshot *snapshot = table_take_snapshot(t, s);
    table_settle(t, s);
    return snapshot;
}

void session_table_set_dirty(struct session_table *t, struct session *s, bool dirty) {
    assert(!dirty || s->exists);
    t->n_dirty += dirty - (uint64_t)s->dirty;
    s->dirty = dirty;
    table_settle(t, s);
}

void session_table_set_file(struct session_table *t, struct session *s,
                            const struct session_file_version *file_version) {
    session_table_reserve(t, s, 0);
    session_bytes_set(&t->files, &s->file, file_version->inode, file_version->disk_bytes, s->metadata.pinned);
    session_bytes_set(&t->files, &s->base, file_version->base_inode, file_version->base_bytes, s->metadata.pinned);
    s->file_version = *file_version;
    table_settle(t, s);
}

void session_table_reserve(struct session_table *t, struct session *s, uint64_t n_bytes) {
    const uint64_t own = session_table_own_bytes(s), more = n_bytes > own ? n_bytes - own : 0;
    t->reserved_bytes += more - s->reserved_bytes;
    if (s->metadata.pinned) t->reserved_pinned_bytes += more - s->reserved_bytes;
    s->reserved_bytes = more;
    assert(t->reserved_bytes >= more && t->reserved_pinned_bytes <= t->reserved_bytes);
}

struct session_snapshot *session_table_drop_snapshot(struct session_table *t, struct session *s) {
    assert(s->snapshot && s->file_version.n_bytes && !s->dirty);
    s->drop = false;
    struct session_snapshot *snapshot = table_take_snapshot(t, s); /* the answers are in the file too */
    table_settle(t, s);
    return snapshot;
}

/* ---- who goes first ---- */

struct session *session_table_to_drop(const struct session_table *t) {
    return session_oldest(t, SESSION_DROPPABLE);
}

struct session *session_table_to_write(const struct session_table *t, uint64_t failed_ns) {
    struct session *s = session_oldest(t, SESSION_DIRTY);
    while (s && !(s->snapshot && s->exists && session_idle(s) && s->failed_ns <= failed_ns))
        s = session_newer(t, s, SESSION_DIRTY);
    return s;
}

struct session *session_table_to_remove(const struct session_table *t, bool on_file, uint64_t round) {
    const enum session_order o = on_file ? SESSION_REMOVABLE : SESSION_IN_HOST;
    struct session *shared = NULL;
    for (struct session *s = session_oldest(t, o); s; s = session_newer(t, s, o)) {
        assert(s->exists && !s->metadata.pinned);
        if (!session_idle(s) || (round && s->tried == round) || (on_file && !s->file_version.n_bytes)) continue;
        /* a state buffer that no other session has gives its memory back */
        if (on_file || atomic_load_explicit(&s->snapshot->refs, memory_order_relaxed) == 1) return s;
        if (!shared) shared = s;
    }
    return shared;
}

struct session *session_table_to_replace(const struct session_table *t) {
    struct session *s = session_oldest(t, SESSION_REMOVABLE);
    while (s && !session_idle(s)) s = session_newer(t, s, SESSION_REMOVABLE);
    return s;
}

struct session *session_table_to_expire(struct session_table *t, int64_t now_s) {
    while (t->n_ends && t->ends[0]->due_s <= now_s) {
        struct session *s = t->ends[0];
        const int64_t end_s = session_end_s(&s->metadata);
        const bool over = session_expired(&s->metadata, now_s);
        /* Somebody may have it now: then it is looked at again. */
        session_ends_set(t, s, (over || end_s <= now_s) && now_s < INT64_MAX ? now_s + 1 : end_s);
        if (over && s->exists && session_idle(s)) return s;
    }
    return NULL;
}

/* ---- lists ---- */

int session_table_list(const struct session_table *t, const char *tenant, const char *after, size_t limit,
                       int64_t now_s, const struct session ***out, size_t *n, bool *more, struct rod_error *err) {
    size_t at = session_tree_rank(t, tenant, after ? after : "", true);
    const size_t end = session_tree_rank(t, tenant, NULL, true);
    const struct session **found = malloc((limit < end - at ? limit : end - at) * sizeof *found + sizeof *found);
    if (!found) return rod_fail_no_memory(err);
    *n = 0;
    *more = false;
    for (; at < end && !*more; at++) {
        const struct session *s = session_tree_at(t, at);
        if (!s->exists || session_expired(&s->metadata, now_s)) continue;
        *more = *n == limit;
        if (!*more) found[(*n)++] = s;
    }
    *out = found;
    return 0;
}
