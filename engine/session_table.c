/* session_table.c - see session_table.h. */
#include "session_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { FIRST_BUCKETS = 64 };

int session_table_init(struct session_table *t, struct rod_error *err) {
    *t = (struct session_table){.n_buckets = FIRST_BUCKETS};
    t->buckets = calloc(t->n_buckets, sizeof(struct session *));
    return t->buckets ? 0 : rod_fail(err, ROD_ENOMEM, "No memory for the table of sessions.");
}

static void free_session(struct session *s) {
    session_point_release(s->point);
    session_answers_release(s->answers);
    free(s);
}

void session_table_fini(struct session_table *t) {
    for (struct session *s = t->oldest[SESSION_ALL], *next; s; s = next) {
        next = s->newer[SESSION_ALL];
        free_session(s);
    }
    session_bytes_fini(&t->files);
    free(t->buckets);
    *t = (struct session_table){0};
}

/* ---- names ---- */

bool session_id_ok(const char *id) {
    const size_t n = strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-");
    return n > 0 && n <= SESSION_MAX_ID && !id[n];
}

void session_name(const char *tenant, const char *id, uint8_t name[SESSION_NAME_BYTES]) {
    char both[SESSION_MAX_TENANT + 1 + SESSION_MAX_ID];
    const size_t n_tenant = strlen(tenant), n_id = strlen(id);
    assert(n_tenant <= SESSION_MAX_TENANT && n_id <= SESSION_MAX_ID);
    memcpy(both, tenant, n_tenant + 1);
    memcpy(both + n_tenant + 1, id, n_id);
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits(both, n_tenant + 1 + n_id));
    memcpy(name, digest.digest, SESSION_NAME_BYTES);
}

static size_t bucket_of(const struct session_table *t, const uint8_t name[SESSION_NAME_BYTES]) {
    size_t at;
    memcpy(&at, name, sizeof at);
    return at & (t->n_buckets - 1);
}

struct session *session_table_find(const struct session_table *t, const char *tenant, const char *id) {
    uint8_t name[SESSION_NAME_BYTES];
    session_name(tenant, id, name);
    struct session *s = t->buckets[bucket_of(t, name)];
    while (s && (strcmp(s->facts.id, id) || strcmp(s->facts.tenant, tenant))) s = s->chain;
    return s;
}

struct session *session_table_find_name(const struct session_table *t, const uint8_t name[SESSION_NAME_BYTES]) {
    struct session *s = t->buckets[bucket_of(t, name)];
    while (s && memcmp(s->name, name, SESSION_NAME_BYTES)) s = s->chain;
    return s;
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
    while (older && older->facts.used_s > s->facts.used_s) older = older->older[o];
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

/* ---- sessions come and go ---- */

static void grow(struct session_table *t) {
    const size_t n_buckets = t->n_buckets * 2;
    struct session **buckets = calloc(n_buckets, sizeof(struct session *));
    if (!buckets) return; /* longer chains */
    free(t->buckets);
    t->buckets = buckets;
    t->n_buckets = n_buckets;
    for (struct session *s = t->oldest[SESSION_ALL]; s; s = s->newer[SESSION_ALL]) {
        struct session **bucket = &t->buckets[bucket_of(t, s->name)];
        s->chain = *bucket;
        *bucket = s;
    }
}

struct session *session_table_add(struct session_table *t, const char *tenant, const char *id) {
    struct session *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    memcpy(s->facts.tenant, tenant, strlen(tenant) + 1);
    memcpy(s->facts.id, id, strlen(id) + 1);
    session_name(tenant, id, s->name);
    s->lease_fd = -1;
    s->facts.used_s = t->newest[SESSION_ALL] ? t->newest[SESSION_ALL]->facts.used_s : INT64_MIN;
    if (t->n >= t->n_buckets) grow(t);
    struct session **bucket = &t->buckets[bucket_of(t, s->name)];
    s->chain = *bucket;
    *bucket = s;
    t->n++;
    link_use(t, s, SESSION_ALL);
    return s;
}

void session_table_remove(struct session_table *t, struct session *s) {
    assert(s->hold == SESSION_FREE && !s->line.head && s->lease_fd < 0 && !s->exists);
    struct session **at = &t->buckets[bucket_of(t, s->name)];
    while (*at != s) at = &(*at)->chain;
    *at = s->chain;
    unlink_use(t, s, SESSION_ALL);
    t->n--;
    free_session(s);
}

static struct session_point *take_point(struct session_table *t, struct session *s) {
    struct session_point *point = s->point;
    session_answers_release(s->answers);
    s->answers = NULL;
    s->point = NULL;
    if (!point) return NULL;
    unlink_use(t, s, SESSION_IN_HOST);
    t->n_points--;
    return point;
}

struct session_point *session_table_set(struct session_table *t, struct session *s, const struct session_facts *facts,
                                        struct session_point *point, struct session_answers *answers) {
    t->n_exist += !s->exists;
    s->exists = true;
    if (facts->ttl_s && (!t->least_ttl_s || facts->ttl_s < t->least_ttl_s)) t->least_ttl_s = facts->ttl_s;
    struct session_point *old = take_point(t, s);
    unlink_use(t, s, SESSION_ALL);
    if (s->facts.pinned != facts->pinned) {
        session_bytes_pin(&t->files, &s->file, facts->pinned);
        session_bytes_pin(&t->files, &s->base, facts->pinned);
        t->reserved_pinned_bytes += facts->pinned ? s->reserved_bytes : -s->reserved_bytes;
    }
    s->facts = *facts;
    s->point = point;
    s->answers = answers;
    link_use(t, s, SESSION_ALL);
    if (point) {
        link_use(t, s, SESSION_IN_HOST);
        t->n_points++;
    }
    return old;
}

void session_table_use(struct session_table *t, struct session *s, int64_t now_s) {
    if (!s->exists || now_s < s->facts.used_s) return;
    unlink_use(t, s, SESSION_ALL);
    if (s->point) unlink_use(t, s, SESSION_IN_HOST);
    s->facts.used_s = now_s;
    link_use(t, s, SESSION_ALL);
    if (s->point) link_use(t, s, SESSION_IN_HOST);
}

struct session_point *session_table_unset(struct session_table *t, struct session *s) {
    if (s->exists) t->n_exist--;
    session_table_stamp(t, s, &(struct session_stamp){0});
    session_table_set_dirty(t, s, false);
    s->exists = s->leave = false;
    return take_point(t, s);
}

void session_table_set_dirty(struct session_table *t, struct session *s, bool dirty) {
    t->n_dirty += dirty - (uint64_t)s->dirty;
    s->dirty = dirty;
}

void session_table_stamp(struct session_table *t, struct session *s, const struct session_stamp *stamp) {
    session_table_reserve(t, s, 0);
    session_bytes_set(&t->files, &s->file, stamp->inode, stamp->n_bytes, s->facts.pinned);
    session_bytes_set(&t->files, &s->base, stamp->base_inode, stamp->base_bytes, s->facts.pinned);
    s->stamp = *stamp;
}

void session_table_reserve(struct session_table *t, struct session *s, uint64_t n_bytes) {
    const uint64_t own = session_table_own_bytes(s), more = n_bytes > own ? n_bytes - own : 0;
    t->reserved_bytes += more - s->reserved_bytes;
    if (s->facts.pinned) t->reserved_pinned_bytes += more - s->reserved_bytes;
    s->reserved_bytes = more;
}

struct session_point *session_table_drop_point(struct session_table *t, struct session *s) {
    assert(s->point && s->stamp.n_bytes && !s->dirty);
    s->leave = false;
    return take_point(t, s); /* the answers are in the file too */
}

/* ---- who goes first ---- */

static bool idle(const struct session *s) { return s->exists && s->hold == SESSION_FREE && !s->line.head; }

struct session *session_table_to_drop(const struct session_table *t) {
    struct session *s = t->oldest[SESSION_IN_HOST];
    while (s && !(s->stamp.n_bytes && !s->dirty)) s = s->newer[SESSION_IN_HOST];
    return s;
}

struct session *session_table_to_write(const struct session_table *t, uint64_t failed_ns) {
    struct session *s = t->oldest[SESSION_IN_HOST];
    while (s && !(s->dirty && idle(s) && s->failed_ns <= failed_ns)) s = s->newer[SESSION_IN_HOST];
    return s;
}

struct session *session_table_to_remove(const struct session_table *t, bool on_file, uint64_t round) {
    const enum session_order o = on_file ? SESSION_ALL : SESSION_IN_HOST;
    struct session *shared = NULL;
    for (struct session *s = t->oldest[o]; s; s = s->newer[o]) {
        if (!idle(s) || s->facts.pinned || (round && s->tried == round) ||
            (on_file ? !s->stamp.n_bytes : !s->point->image))
            continue;
        /* one whose image nobody else has gives its memory back */
        if (on_file || atomic_load_explicit(&s->point->refs, memory_order_relaxed) == 1) return s;
        if (!shared) shared = s;
    }
    return shared;
}

struct session *session_table_to_expire(const struct session_table *t, int64_t now_s, uint64_t round) {
    struct session *s = t->least_ttl_s ? t->oldest[SESSION_ALL] : NULL;
    for (; s && now_s > s->facts.used_s && (uint64_t)(now_s - s->facts.used_s) >= t->least_ttl_s;
         s = s->newer[SESSION_ALL])
        if (idle(s) && s->tried != round && session_expired(&s->facts, now_s)) return s;
    return NULL; /* who was used after this one, was used too lately for any time to be over */
}

/* ---- lists ---- */

static int by_id(const void *a, const void *b) {
    return strcmp((*(const struct session *const *)a)->facts.id, (*(const struct session *const *)b)->facts.id);
}

int session_table_list(const struct session_table *t, const char *tenant, const char *after, size_t limit,
                       int64_t now_s, const struct session ***out, size_t *n, bool *more, struct rod_error *err) {
    const struct session **all = malloc((t->n + 1) * sizeof *all);
    if (!all) return rod_fail(err, ROD_ENOMEM, "No memory for a list of sessions.");
    size_t n_all = 0;
    for (const struct session *s = t->oldest[SESSION_ALL]; s; s = s->newer[SESSION_ALL])
        if (s->exists && !session_expired(&s->facts, now_s) && !strcmp(s->facts.tenant, tenant) &&
            (!after || strcmp(s->facts.id, after) > 0))
            all[n_all++] = s;
    qsort(all, n_all, sizeof(const struct session *), by_id);
    *more = n_all > limit;
    *n = *more ? limit : n_all;
    *out = all;
    return 0;
}
