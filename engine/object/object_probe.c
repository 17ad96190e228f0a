/* object_probe.c - see object_probe.h. */
#include "object_probe.h"
#include "object_call.h"
#include "engine/base/fail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { WRITERS = 8, FEW_WRITERS = 4, ROUNDS = 3, BODY_BYTES = 64, LARGE_BYTES = 5 << 20, NAME_BYTES = 64 };

struct probe {
    struct object_store *store;
    struct rod_error *err;
    char folder[NAME_BYTES]; /* "probe/RANDOM/" */
    char *large;             /* [LARGE_BYTES] */
};

static int refuse(const struct probe *p, const char *did) {
    return rod_fail_at(p->err, ROD_EUNSUPPORTED, "state_url", "The object store cannot be a home of states: %s.", did);
}

static void name_of(const struct probe *p, const char *name, char key[2 * NAME_BYTES]) {
    snprintf(key, 2 * NAME_BYTES, "%s%s", p->folder, name);
}

/* One PUT of a text. */
static int put(const struct probe *p, const char *name, const char *text, enum object_condition condition,
               const char *etag, struct object_version *version) {
    char key[2 * NAME_BYTES];
    const struct state_bytes part = {text, strlen(text)};
    struct object_put one = {.key = key, .parts = &part, .n_parts = 1, .condition = condition, .etag = etag};
    name_of(p, name, key);
    object_store_put(p->store, &one, 1);
    if (one.rc) *p->err = one.err;
    if (version) *version = one.version;
    return one.rc;
}

/* A put whose condition does not hold: 0 if it lost. */
static int put_lost(const struct probe *p, const char *name, enum object_condition condition, const char *etag,
                    const char *did) {
    const int rc = put(p, name, "lost", condition, etag, NULL);
    return rc == ROD_ECONFLICT ? 0 : rc ? rc : refuse(p, did);
}

static int reads_last(const struct probe *p, const char *name, const char *text) {
    char key[2 * NAME_BYTES], got[BODY_BYTES];
    struct object_version version;
    size_t n;
    name_of(p, name, key);
    const int rc = object_store_get_start(p->store, key, got, sizeof got, &n, &version, p->err);
    if (rc && rc != ROD_ENOTFOUND) return rc;
    return !rc && n == strlen(text) && !memcmp(got, text, n) ? 0 : refuse(p, "a read does not see the last write");
}

/* Some want the ETag in If-Match without its quotes. */
static int learn_spelling(const struct probe *p, struct object_version *version) {
    int rc = put(p, "one", "second", OBJECT_IF_SAME, version->etag, version);
    if (rc != ROD_ECONFLICT) return rc;
    atomic_store(&p->store->bare_etags, true);
    rc = put(p, "one", "second", OBJECT_IF_SAME, version->etag, version);
    return rc == ROD_ECONFLICT ? refuse(p, "PUT with If-Match loses where the version is the one that it names") : rc;
}

static int keeps_metadata(const struct probe *p, const char *name) {
    char key[2 * NAME_BYTES], mark[OBJECT_MARK_BYTES];
    struct object_version version;
    name_of(p, name, key);
    const int rc = object_store_head_mark(p->store, key, &version, mark, p->err);
    return rc ? rc : *mark ? 0 : refuse(p, "HEAD does not tell an object's metadata");
}

static int known_is_not_sent(const struct probe *p, const char *etag) {
    char key[2 * NAME_BYTES];
    struct object_version version;
    struct object_reader *reader;
    name_of(p, "one", key);
    const int rc = object_store_get(p->store, key, etag, &reader, &version, p->err);
    object_reader_close(reader);
    return rc ? rc : reader ? refuse(p, "GET with If-None-Match sends the version that is known") : 0;
}

static int conditions(const struct probe *p) {
    struct object_version first, second;
    int rc = put(p, "one", "first", OBJECT_IF_NEW, NULL, &first);
    if (rc == ROD_ECONFLICT) return refuse(p, "PUT with If-None-Match: * loses where there is nothing");
    second = first;
    if (!rc) rc = keeps_metadata(p, "one");
    if (!rc) rc = put_lost(p, "one", OBJECT_IF_NEW, NULL, "PUT with If-None-Match: * overwrites what is there");
    if (!rc) rc = reads_last(p, "one", "first");
    if (!rc) rc = learn_spelling(p, &second);
    if (!rc) rc = reads_last(p, "one", "second");
    if (!rc)
        rc = put_lost(p, "one", OBJECT_IF_SAME, first.etag,
                      "PUT with If-Match overwrites another version than it names");
    if (!rc) rc = put_lost(p, "none", OBJECT_IF_SAME, first.etag, "PUT with If-Match writes where there is nothing");
    if (!rc) rc = reads_last(p, "one", "second");
    return rc ? rc : known_is_not_sent(p, second.etag);
}

/* ---- of several at once one wins ---- */

/* rc: one won, or too many, or (ROD_EIO) who won is not known. Large bodies make the time longer between a store's look
 * at the condition and its deed. */
static int race(const struct probe *p, const char *name, size_t n_bytes, enum object_condition condition,
                const char *etag, struct object_version *version) {
    char key[2 * NAME_BYTES], heads[WRITERS][BODY_BYTES];
    struct state_bytes parts[WRITERS][2];
    struct object_put puts[WRITERS];
    unsigned n_won = 0, n_unknown = 0;
    const size_t n_writers = n_bytes ? WRITERS : FEW_WRITERS;
    name_of(p, name, key);
    memset(heads, 0, sizeof heads);
    for (size_t i = 0; i < n_writers; i++) {
        /* Other bytes than the version before has, as equal bytes may have one ETag. */
        snprintf(heads[i], sizeof heads[i], "writer %zu of %s, %d", i, name, (int)condition);
        parts[i][0] = (struct state_bytes){heads[i], sizeof heads[i]};
        parts[i][1] = (struct state_bytes){p->large, n_bytes};
        puts[i] =
            (struct object_put){.key = key, .parts = parts[i], .n_parts = 2, .condition = condition, .etag = etag};
    }
    object_store_put(p->store, puts, n_writers);
    for (size_t i = 0; i < n_writers; i++) {
        if (!puts[i].rc) *version = puts[i].version;
        n_won += !puts[i].rc;
        n_unknown += puts[i].rc && puts[i].rc != ROD_ECONFLICT;
        if (puts[i].rc && puts[i].rc != ROD_ECONFLICT) *p->err = puts[i].err;
    }
    if (n_won > 1)
        return refuse(p, condition == OBJECT_IF_NEW ? "of several PUT with If-None-Match: * at once more than one wins"
                                                    : "of several PUT with If-Match at once more than one wins");
    if (n_won || !n_unknown) return n_won ? 0 : refuse(p, "of several PUT with one condition at once none wins");
    return p->err->code;
}

static int races(const struct probe *p) {
    char name[16];
    struct object_version version;
    int rc = 0;
    for (int i = 0; i < ROUNDS && !rc; i++) {
        const size_t n_bytes = i + 1 < ROUNDS ? 0 : LARGE_BYTES;
        snprintf(name, sizeof name, "race%d", i);
        rc = race(p, name, n_bytes, OBJECT_IF_NEW, NULL, &version);
        if (!rc) rc = race(p, name, n_bytes, OBJECT_IF_SAME, version.etag, &version);
    }
    return rc;
}

/* ---- what may be missing ---- */

/* A DELETE that names another version than there is. */
static int learn_delete(const struct probe *p) {
    char key[2 * NAME_BYTES];
    struct object_version version;
    struct rod_error own;
    int rc = put(p, "gone", "first", OBJECT_ANY, NULL, NULL);
    if (rc) return rc;
    name_of(p, "gone", key);
    const bool lost =
        object_store_delete_if(p->store, key, "\"00000000000000000000000000000000\"", &own) == ROD_ECONFLICT;
    rc = object_store_head(p->store, key, &version, p->err);
    const bool asks = lost && !rc && object_store_delete_if(p->store, key, version.etag, &own) == 0;
    atomic_store(&p->store->delete_asks, asks);
    if (!asks) object_store_say(p->store, 1, "object store: DELETE has no condition; HEAD asks before it");
    return rc == ROD_ENOTFOUND ? 0 : rc;
}

static int copies(const struct probe *p) {
    char from[2 * NAME_BYTES], to[2 * NAME_BYTES];
    struct object_version version;
    name_of(p, "one", from);
    name_of(p, "copy", to);
    int rc = object_store_head(p->store, from, &version, p->err);
    if (!rc) rc = object_store_copy(p->store, from, version.etag, to, p->err);
    if (!rc) rc = reads_last(p, "copy", "second");
    return rc == ROD_ECONFLICT || rc == ROD_ENOTFOUND ? refuse(p, "a copy is not of the version that it names") : rc;
}

struct seen {
    char keys[4 * ROUNDS][2 * NAME_BYTES];
    size_t n;
};
static void see(void *arg, const char *key, const struct object_version *version) {
    struct seen *s = arg;
    (void)version;
    if (s->n < sizeof s->keys / sizeof *s->keys) snprintf(s->keys[s->n++], sizeof *s->keys, "%s", key);
}

static int lists(const struct probe *p, struct seen *seen) {
    bool more, found = false;
    char key[2 * NAME_BYTES];
    const int rc = object_store_list(p->store, p->folder, "", see, seen, &more, p->err);
    name_of(p, "copy", key);
    for (size_t i = 0; i < seen->n; i++) found |= !strcmp(seen->keys[i], key);
    return rc ? rc : found ? 0 : refuse(p, "a list does not show the last write");
}

static void clean(const struct probe *p, const struct seen *seen) {
    struct rod_error own;
    for (size_t i = 0; i < seen->n; i++) object_store_delete(p->store, seen->keys[i], "", &own);
}

int object_probe(struct object_store *store, struct rod_error *err) {
    struct probe p = {.store = store, .err = err};
    struct seen seen = {.n = 0};
    const uint64_t n_conflicts = atomic_load(&store->counters[OBJECT_CONFLICTS]);
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random) return rod_fail(err, ROD_EINTERNAL, "No random bytes.");
    snprintf(p.folder, sizeof p.folder, "probe/%016llx/", (unsigned long long)random);
    p.large = calloc(1, LARGE_BYTES);
    if (!p.large) return rod_fail_no_memory(err);
    int rc = conditions(&p);
    if (!rc) rc = races(&p);
    if (!rc) rc = copies(&p);
    if (!rc) rc = learn_delete(&p);
    struct rod_error own;
    struct probe end = p;
    if (rc) end.err = &own;
    const int listed = lists(&end, &seen);
    if (!rc) rc = listed;
    clean(&p, &seen);
    free(p.large);
    atomic_store(&store->counters[OBJECT_CONFLICTS], n_conflicts); /* it asked for them */
    if (!rc) *err = (struct rod_error){0};
    return rc;
}
