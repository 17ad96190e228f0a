/* session_table.c - see session_table.h. */
#include "session_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { FIRST_BUCKETS = 64 };

int session_table_init(struct session_table *t, struct rod_error *err) {
    *t = (struct session_table){.n_buckets = FIRST_BUCKETS};
    if (getrandom(t->key, sizeof t->key, 0) != (ssize_t)sizeof t->key)
        return rod_fail(err, ROD_EINTERNAL, "There are no random numbers for the table of sessions.");
    for (int h = 0; h < SESSION_N_HASHES; h++) t->buckets[h] = calloc(t->n_buckets, sizeof(struct session *));
    if (t->buckets[SESSION_BY_ID] && t->buckets[SESSION_BY_NAME]) return 0;
    session_table_fini(t);
    return rod_fail(err, ROD_ENOMEM, "No memory for the table of sessions.");
}

static void free_session(struct session *s) {
    session_snapshot_release(s->snapshot);
    session_answers_release(s->answers);
    free(s);
}

void session_table_fini(struct session_table *t) {
    for (struct session *s = t->oldest[SESSION_ALL], *next; s; s = next) {
        next = s->newer[SESSION_ALL];
        free_session(s);
    }
    session_bytes_fini(&t->files);
    for (int h = 0; h < SESSION_N_HASHES; h++) free(t->buckets[h]);
    free(t->ends);
    *t = (struct session_table){0};
}

/* ---- names ---- */

bool session_id_ok(const char *id) {
    const size_t n = strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return n > 0 && n <= SESSION_MAX_ID && !id[n];
}

static uint64_t hash(const struct session_table *t, const void *bytes, size_t n) {
    uint8_t digest[SIPHASH_BYTES];
    uint64_t first;
    siphash(t->key, bytes, n, digest);
    memcpy(&first, digest, sizeof first);
    return first;
}

static uint64_t hash_id(const struct session_table *t, const char *tenant, const char *id) {
    char both[SESSION_MAX_TENANT + 1 + SESSION_MAX_ID];
    const size_t n_tenant = strlen(tenant), n_id = strlen(id);
    assert(n_tenant <= SESSION_MAX_TENANT && n_id <= SESSION_MAX_ID);
    memcpy(both, tenant, n_tenant + 1);
    memcpy(both + n_tenant + 1, id, n_id);
    return hash(t, both, n_tenant + 1 + n_id);
}

static struct session **bucket_of(const struct session_table *t, enum session_hash h, uint64_t of) {
    return &t->buckets[h][of & (t->n_buckets - 1)];
}

static void chain(struct session_table *t, struct session *s, enum session_hash h) {
    struct session **bucket = bucket_of(t, h, s->hash[h]);
    s->chain[h] = *bucket;
    *bucket = s;
}

static void unchain(struct session_table *t, struct session *s, enum session_hash h) {
    struct session **at = bucket_of(t, h, s->hash[h]);
    while (*at != s) at = &(*at)->chain[h];
    *at = s->chain[h];
}

struct session *session_table_find(const struct session_table *t, const char *tenant, const char *id) {
    struct session *s = *bucket_of(t, SESSION_BY_ID, hash_id(t, tenant, id));
    while (s && (strcmp(s->metadata.id, id) || strcmp(s->metadata.tenant, tenant))) s = s->chain[SESSION_BY_ID];
    return s;
}

struct session *session_table_find_name(const struct session_table *t, const uint8_t name[SESSION_NAME_BYTES]) {
    struct session *s = *bucket_of(t, SESSION_BY_NAME, hash(t, name, SESSION_NAME_BYTES));
    while (s && memcmp(s->name, name, SESSION_NAME_BYTES)) s = s->chain[SESSION_BY_NAME];
    return s;
}

void session_table_name(struct session_table *t, struct session *s, const uint8_t name[SESSION_NAME_BYTES]) {
    if (s->named) unchain(t, s, SESSION_BY_NAME);
    memcpy(s->name, name, SESSION_NAME_BYTES);
    s->hash[SESSION_BY_NAME] = hash(t, name, SESSION_NAME_BYTES);
    s->named = true;
    chain(t, s, SESSION_BY_NAME);
}

/* ---- the order of use ---- */

static void unlink_use(struct session_table *t, struct session *s, enum session_order o) {
    if (s->older[o])
        s->older[o]->newer[o] = s->newer[o];
    else
        t->oldest[o] = s->newer[o];
    if (s->newer[o])
        s->newer[o]->older[o] = s->older[o];
    else
        t->newest[o] = s->older[o];
}

/* Behind all that were used no later. What is used now goes to the end at once. */
static void link_use(struct session_table *t, struct session *s, enum session_order o) {
    struct session *older = t->newest[o];
    while (older && older->metadata.used_s > s->metadata.used_s) older = older->older[o];
    s->older[o] = older;
    s->newer[o] = older ? older->newer[o] : t->oldest[o];
    if (s->newer[o])
        s->newer[o]->older[o] = s;
    else
        t->newest[o] = s;
    if (older)
        older->newer[o] = s;
    else
        t->oldest[o] = s;
}

static bool belongs(const struct session *s, enum session_order o) {
    switch (o) {
    case SESSION_SPARE: return s->snapshot && s->file_version.n_bytes && !s->dirty;
    case SESSION_DIRTY: return s->exists && s->dirty;
    case SESSION_LOOSE: return s->exists && !s->metadata.pinned;
    case SESSION_IN_HOST: return s->exists && !s->metadata.pinned && s->snapshot && s->snapshot->buffer;
    default: return true;
    }
}

/* What it is decides which orders it stands in. */
static void settle(struct session_table *t, struct session *s) {
    for (enum session_order o = 0; o < SESSION_N_ORDERS; o++) {
        const bool in = belongs(s, o);
        if (in == s->in[o]) continue;
        if (in)
            link_use(t, s, o);
        else
            unlink_use(t, s, o);
        s->in[o] = in;
    }
    const int64_t end_s = s->exists ? session_end_s(&s->metadata) : INT64_MAX;
    if (end_s != s->end_s) session_ends_set(t, s, end_s); /* else it may have been looked at already */
    s->end_s = end_s;
}

/* Out of all orders, so that its use can change; settle puts it back. */
static void lift(struct session_table *t, struct session *s) {
    for (enum session_order o = 0; o < SESSION_N_ORDERS; o++) {
        if (s->in[o]) unlink_use(t, s, o);
        s->in[o] = false;
    }
}

/* ---- memory ---- */

static void count_memory(struct session_table *t, int64_t place_bytes, int64_t beside_bytes) {
    if (t->pool) state_pool_add(t->pool, place_bytes, beside_bytes);
}

/* A snapshot that several share counts once. */
static void count_snapshot(struct session_table *t, struct session_snapshot *p, bool more) {
    if (!p) return;
    const int64_t n_bytes = (int64_t)session_snapshot_own_bytes(p);
    if (more ? p->n_sessions++ == 0 : --p->n_sessions == 0) count_memory(t, 0, more ? n_bytes : -n_bytes);
}

static void count_answers(struct session_table *t, const struct session_answers *a, bool more) {
    if (a) count_memory(t, 0, more ? (int64_t)a->n : -(int64_t)a->n);
}

/* ---- sessions come and go ---- */

static void grow(struct session_table *t) {
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
    for (struct session *s = t->oldest[SESSION_ALL]; s; s = s->newer[SESSION_ALL]) {
        chain(t, s, SESSION_BY_ID);
        if (s->named) chain(t, s, SESSION_BY_NAME);
    }
}

/* Each may have an end. */
static bool room_for_end(struct session_table *t) {
    if (t->n < t->ends_room) return true;
    const size_t room = t->ends_room ? 2 * t->ends_room : FIRST_BUCKETS;
    struct session **more = realloc(t->ends, room * sizeof(struct session *));
    if (!more) return false;
    t->ends = more;
    t->ends_room = room;
    return true;
}

struct session *session_table_add(struct session_table *t, const char *tenant, const char *id) {
    struct session *s = room_for_end(t) ? calloc(1, sizeof *s) : NULL;
    if (!s) return NULL;
    memcpy(s->metadata.tenant, tenant, strlen(tenant) + 1);
    memcpy(s->metadata.id, id, strlen(id) + 1);
    s->hash[SESSION_BY_ID] = hash_id(t, tenant, id);
    s->lease_fd = -1;
    s->end_s = INT64_MAX;
    s->metadata.used_s = t->newest[SESSION_ALL] ? t->newest[SESSION_ALL]->metadata.used_s : 0;
    if (t->n >= t->n_buckets) grow(t);
    chain(t, s, SESSION_BY_ID);
    t->n++;
    settle(t, s);
    return s;
}

static void uncount(struct session_table *t, struct session *s) {
    if (!s->counted) return;
    s->counted = false;
    session_tree_remove(t, s);
    count_memory(t, -(int64_t)SESSION_PLACE_BYTES, 0);
}

void session_table_count(struct session_table *t, struct session *s) {
    if (s->counted) return;
    s->counted = true;
    session_tree_add(t, s);
    count_memory(t, (int64_t)SESSION_PLACE_BYTES, 0);
}

uint64_t session_table_n_of(const struct session_table *t, const char *tenant) {
    return session_tree_rank(t, tenant, NULL, true) - session_tree_rank(t, tenant, "", false);
}

void session_table_remove(struct session_table *t, struct session *s) {
    assert(s->hold == SESSION_FREE && !s->line.head && s->lease_fd < 0 && !s->exists);
    unchain(t, s, SESSION_BY_ID);
    if (s->named) unchain(t, s, SESSION_BY_NAME);
    uncount(t, s);
    lift(t, s);
    t->n--;
    free_session(s);
}

/* Before it is settled. */
static struct session_snapshot *take_snapshot(struct session_table *t, struct session *s) {
    struct session_snapshot *snapshot = s->snapshot;
    count_answers(t, s->answers, false);
    count_snapshot(t, snapshot, false);
    session_answers_release(s->answers);
    s->answers = NULL;
    s->snapshot = NULL;
    t->n_snapshots -= snapshot != NULL;
    return snapshot;
}

struct session_snapshot *session_table_set(struct session_table *t, struct session *s,
                                           const struct session_metadata *metadata, struct session_snapshot *snapshot,
                                           struct session_answers *answers) {
    session_table_count(t, s);
    lift(t, s);
    t->n_exist += !s->exists;
    s->exists = true;
    count_snapshot(t, snapshot, true); /* before the old one goes, which may be the same */
    struct session_snapshot *old = take_snapshot(t, s);
    if (s->metadata.pinned != metadata->pinned) {
        session_bytes_pin(&t->files, &s->file, metadata->pinned);
        session_bytes_pin(&t->files, &s->base, metadata->pinned);
        t->reserved_pinned_bytes += metadata->pinned ? s->reserved_bytes : -s->reserved_bytes;
    }
    s->metadata = *metadata;
    s->snapshot = snapshot;
    s->answers = answers;
    count_answers(t, answers, true);
    t->n_snapshots += snapshot != NULL;
    settle(t, s);
    return old;
}

void session_table_use(struct session_table *t, struct session *s, int64_t now_s) {
    if (!s->exists || now_s < s->metadata.used_s) return;
    lift(t, s);
    s->metadata.used_s = now_s;
    settle(t, s);
}

struct session_snapshot *session_table_unset(struct session_table *t, struct session *s) {
    if (s->exists) t->n_exist--;
    session_table_set_file(t, s, &(struct session_file_version){0});
    session_table_set_dirty(t, s, false);
    s->exists = s->leave = false;
    uncount(t, s);
    struct session_snapshot *snapshot = take_snapshot(t, s);
    settle(t, s);
    return snapshot;
}

void session_table_set_dirty(struct session_table *t, struct session *s, bool dirty) {
    t->n_dirty += dirty - (uint64_t)s->dirty;
    s->dirty = dirty;
    settle(t, s);
}

void session_table_set_file(struct session_table *t, struct session *s,
                            const struct session_file_version *file_version) {
    session_table_reserve(t, s, 0);
    session_bytes_set(&t->files, &s->file, file_version->inode, file_version->disk_bytes, s->metadata.pinned);
    session_bytes_set(&t->files, &s->base, file_version->base_inode, file_version->base_bytes, s->metadata.pinned);
    s->file_version = *file_version;
    settle(t, s);
}

void session_table_reserve(struct session_table *t, struct session *s, uint64_t n_bytes) {
    const uint64_t own = session_table_own_bytes(s), more = n_bytes > own ? n_bytes - own : 0;
    t->reserved_bytes += more - s->reserved_bytes;
    if (s->metadata.pinned) t->reserved_pinned_bytes += more - s->reserved_bytes;
    s->reserved_bytes = more;
}

struct session_snapshot *session_table_drop_snapshot(struct session_table *t, struct session *s) {
    assert(s->snapshot && s->file_version.n_bytes && !s->dirty);
    s->leave = false;
    struct session_snapshot *snapshot = take_snapshot(t, s); /* the answers are in the file too */
    settle(t, s);
    return snapshot;
}

/* ---- who goes first ---- */

static bool idle(const struct session *s) { return s->exists && s->hold == SESSION_FREE && !s->line.head; }

struct session *session_table_to_drop(const struct session_table *t) {
    return t->oldest[SESSION_SPARE];
}

struct session *session_table_to_write(const struct session_table *t, uint64_t failed_ns) {
    struct session *s = t->oldest[SESSION_DIRTY];
    while (s && !(s->snapshot && idle(s) && s->failed_ns <= failed_ns)) s = s->newer[SESSION_DIRTY];
    return s;
}

struct session *session_table_to_remove(const struct session_table *t, bool on_file, uint64_t round) {
    const enum session_order o = on_file ? SESSION_LOOSE : SESSION_IN_HOST;
    struct session *shared = NULL;
    for (struct session *s = t->oldest[o]; s; s = s->newer[o]) {
        if (!idle(s) || (round && s->tried == round) || (on_file && !s->file_version.n_bytes)) continue;
        /* one whose state buffer nobody else has gives its memory back */
        if (on_file || atomic_load_explicit(&s->snapshot->refs, memory_order_relaxed) == 1) return s;
        if (!shared) shared = s;
    }
    return shared;
}

struct session *session_table_to_replace(const struct session_table *t) {
    struct session *s = t->oldest[SESSION_LOOSE];
    while (s && !idle(s)) s = s->newer[SESSION_LOOSE];
    return s;
}

struct session *session_table_to_expire(struct session_table *t, int64_t now_s) {
    while (t->n_ends && t->ends[0]->due_s <= now_s) {
        struct session *s = t->ends[0];
        const int64_t end_s = session_end_s(&s->metadata);
        const bool over = session_expired(&s->metadata, now_s);
        /* Somebody may have it now: then it is looked at again. */
        session_ends_set(t, s, (over || end_s <= now_s) && now_s < INT64_MAX ? now_s + 1 : end_s);
        if (over && idle(s)) return s;
    }
    return NULL;
}

/* ---- lists ---- */

int session_table_list(const struct session_table *t, const char *tenant, const char *after, size_t limit,
                       int64_t now_s, const struct session ***out, size_t *n, bool *more, struct rod_error *err) {
    size_t at = session_tree_rank(t, tenant, after ? after : "", true);
    const size_t end = session_tree_rank(t, tenant, NULL, true);
    const struct session **found = malloc((limit < end - at ? limit : end - at) * sizeof *found + sizeof *found);
    if (!found) return rod_fail(err, ROD_ENOMEM, "No memory for a list of sessions.");
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
