/* object_store.c - see object_store.h: the store, and the calls without a body; object_put.c and object_reader.c have
 * the others. */
#include "object_call.h"
#include "object_memory.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"

#include <stdlib.h>
#include <string.h>

enum { TIMEOUT_MS = 8000, CONNECTIONS = 16 };
#define IN_FLIGHT_BYTES ((uint64_t)1 << 30)

/* ---- open and close ---- */

static const char *environment(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}
static const char *first_of(const char *a, const char *b, const char *c, const char *d) {
    return a && *a ? a : b && *b ? b : c && *c ? c : d;
}

static int check_encryption(const char *encryption, struct object_store *store, struct rod_error *err) {
    if (*encryption && strcmp(encryption, "AES256") != 0 && strcmp(encryption, "aws:kms") != 0)
        return rod_fail_at(
            err, ROD_EINVALID, "state_encryption",
            "state_encryption must be none, AES256 or aws:kms; a key of your own must be the bucket's default.");
    memcpy(store->encryption, encryption, strlen(encryption) + 1);
    return 0;
}

static int open_parts(const struct object_store_config *config, struct object_store *store, struct rod_error *err) {
    const struct object_url_settings settings = {
        config->url, config->endpoint,
        first_of(config->region, environment("AWS_REGION"), environment("AWS_DEFAULT_REGION"), "us-east-1"),
        config->style};
    int rc = object_url_parse(&settings, &store->url, err);
    if (!rc) rc = check_encryption(first_of(config->encryption, "", "", ""), store, err);
    if (rc) return rc;
    snprintf(store->line.provider, sizeof store->line.provider, "aws:amz:%s:s3", store->url.region);
    store->line.is_tls = store->url.is_tls;
    snprintf(store->line.ca_file, sizeof store->line.ca_file, "%s",
             first_of(environment("AWS_CA_BUNDLE"), environment("CURL_CA_BUNDLE"), environment("SSL_CERT_FILE"), ""));
    store->time_ns = (config->timeout_ms ? config->timeout_ms : TIMEOUT_MS) * (uint64_t)1000000;
    store->credentials_file = strdup(config->credentials_file ? config->credentials_file : "");
    if (!store->credentials_file) return rod_fail_no_memory(err);
    rc = object_credentials_load(store->credentials_file, &store->credentials, err);
    return rc ? rc
              : object_pool_open(config->n_connections ? config->n_connections : CONNECTIONS,
                                 config->bytes_in_flight ? config->bytes_in_flight : IN_FLIGHT_BYTES, &store->pool,
                                 err);
}

int object_store_open(const struct object_store_config *config, struct object_store **out, struct rod_error *err) {
    *out = NULL;
    if (!object_memory_begin()) return rod_fail_no_memory(err);
    struct object_store *store = calloc(1, sizeof *store);
    if (!store) {
        curl_global_cleanup();
        return rod_fail_no_memory(err);
    }
    if (pthread_key_create(&store->until, NULL)) {
        free(store);
        curl_global_cleanup();
        return rod_fail_no_memory(err);
    }
    pthread_mutex_init(&store->lock, NULL);
    store->log = config->log;
    store->log_arg = config->log_arg;
    const int rc = open_parts(config, store, err);
    if (rc) {
        object_store_close(store);
        return rc;
    }
    if (!store->url.is_tls)
        object_store_say(store, 2, "object store: %s is not TLS: states can be read on the way", store->url.base);
    *out = store;
    return 0;
}

void object_store_close(struct object_store *store) {
    if (!store) return;
    object_pool_close(store->pool);
    object_credentials_unref(store->credentials);
    free(store->credentials_file);
    pthread_mutex_destroy(&store->lock);
    pthread_key_delete(store->until);
    free(store);
    curl_global_cleanup();
}

int object_store_reload(struct object_store *store, struct rod_error *err) {
    struct object_credentials *fresh, *old;
    const int rc = object_credentials_load(store->credentials_file, &fresh, err);
    if (rc) return rc;
    pthread_mutex_lock(&store->lock);
    old = store->credentials;
    store->credentials = fresh;
    pthread_mutex_unlock(&store->lock);
    object_credentials_unref(old);
    return 0;
}

void object_store_hurry(struct object_store *store, uint64_t until_ns) {
    _Static_assert(sizeof(void *) >= sizeof until_ns, "a thread's value holds a time");
    pthread_setspecific(store->until, (void *)(uintptr_t)until_ns); /* without memory: in their own time */
}

bool object_store_down(struct object_store *store, struct rod_error *err) {
    pthread_mutex_lock(&store->lock);
    const bool down = store->n_failed > 0;
    if (down && err) *err = store->why;
    pthread_mutex_unlock(&store->lock);
    return down;
}

void object_store_count(struct object_store *store, struct object_counts *out) {
    const atomic_uint_fast64_t *n = store->n_requests, *c = store->counters;
    *out = (struct object_counts){.puts = atomic_load(&n[OBJECT_PUT]),
                                  .gets = atomic_load(&n[OBJECT_GET]),
                                  .heads = atomic_load(&n[OBJECT_HEAD]),
                                  .deletes = atomic_load(&n[OBJECT_DELETE]),
                                  .copies = atomic_load(&n[OBJECT_COPY]),
                                  .lists = atomic_load(&n[OBJECT_LIST]),
                                  .conflicts = atomic_load(&c[OBJECT_CONFLICTS]),
                                  .failures = atomic_load(&c[OBJECT_FAILURES]),
                                  .retries = atomic_load(&c[OBJECT_RETRIES]),
                                  .bytes_in = atomic_load(&c[OBJECT_IN]),
                                  .bytes_out = atomic_load(&c[OBJECT_OUT])};
    object_seconds_count(store->seconds, out->times);
}

/* ---- HEAD ---- */

static int no_etag(struct rod_error *err, const char *key) {
    return rod_fail(err, ROD_EIO, "The object store's answer for %.120s has no ETag of 1 to %d characters.", key,
                    OBJECT_ETAG_BYTES - 1);
}

static int not_there(struct rod_error *err, const char *key) {
    return rod_fail(err, ROD_ENOTFOUND, "There is no object %.120s.", key);
}

int object_store_head_mark(struct object_store *store, const char *key, struct object_version *version, char *mark,
                           struct rod_error *err) {
    const struct object_ask ask = {.kind = OBJECT_HEAD, .key = key};
    struct object_call call;
    int rc = object_call_begin(&call, store, &ask, NULL, store->time_ns, NULL, err);
    if (!rc) rc = object_call_run(&call, err);
    if (!rc && call.verdict == OBJECT_MISSING) rc = not_there(err, key);
    if (!rc) {
        const struct object_answer *a = object_call_answer(&call);
        *version = a->version;
        if (mark) memcpy(mark, a->mark, OBJECT_MARK_BYTES);
        if (!a->etag_fits || call.verdict != OBJECT_DONE) rc = no_etag(err, key);
    }
    object_call_end(&call);
    return object_call_note(store, rc, err);
}

int object_store_head(struct object_store *store, const char *key, struct object_version *version,
                      struct rod_error *err) {
    struct rod_error own;
    return object_store_head_mark(store, key, version, NULL, err ? err : &own);
}

/* ---- DELETE ---- */

static int conflict(struct rod_error *err, const char *key) {
    return rod_fail(err, ROD_ECONFLICT, "Another server has changed %.120s in between.", key);
}

/* Some stores answer a condition on what is not there with 412. */
static int lost_delete(struct object_store *store, const char *key, bool maybe_done, struct rod_error *err) {
    struct object_version version;
    const int rc = object_store_head_mark(store, key, &version, NULL, err);
    if (rc == ROD_ENOTFOUND) return maybe_done ? 0 : rc;
    return rc ? rc : conflict(err, key);
}

int object_store_delete_if(struct object_store *store, const char *key, const char *etag, struct rod_error *err) {
    const struct object_ask ask = {
        .kind = OBJECT_DELETE, .key = key, .condition = *etag ? OBJECT_IF_SAME : OBJECT_ANY, .etag = etag};
    struct object_call call;
    int rc = object_call_begin(&call, store, &ask, NULL, store->time_ns, NULL, err);
    if (rc) return rc;
    rc = object_call_run(&call, err);
    const bool maybe_done = call.maybe_done, lost = !rc && call.verdict == OBJECT_LOST;
    if (!rc && call.verdict == OBJECT_MISSING && *etag && !maybe_done) rc = not_there(err, key);
    object_call_end(&call);
    return lost ? lost_delete(store, key, maybe_done, err) : rc;
}

int object_store_delete(struct object_store *store, const char *key, const char *etag, struct rod_error *err) {
    struct rod_error own;
    struct object_version version;
    int rc = 0;
    if (!err) err = &own;
    const bool asks = *etag && atomic_load(&store->delete_asks);
    if (*etag && !asks) {
        rc = object_store_head_mark(store, key, &version, NULL, err);
        if (!rc && strcmp(version.etag, etag) != 0) rc = conflict(err, key);
    }
    if (!rc) rc = object_store_delete_if(store, key, asks ? etag : "", err);
    return object_call_note(store, rc, err);
}

/* ---- COPY ---- */

static int copy_now(struct object_store *store, const char *from, const char *to, struct rod_error *err) {
    const struct object_ask ask = {.kind = OBJECT_COPY, .key = to, .from = from};
    struct object_call call;
    int rc = object_call_begin(&call, store, &ask, NULL, store->time_ns, NULL, err);
    if (!rc) rc = object_call_run(&call, err);
    if (!rc && call.verdict == OBJECT_MISSING) rc = not_there(err, from);
    if (!rc && call.verdict != OBJECT_DONE) rc = conflict(err, to);
    object_call_end(&call);
    return object_call_note(store, rc, err);
}

/* Some stores copy whatever the condition on the source says, and libcurl signs that condition wrongly. A copy has the
 * mark of what it was made from. */
int object_store_copy(struct object_store *store, const char *from, const char *from_etag, const char *to,
                      struct rod_error *err) {
    struct rod_error own;
    struct object_version source, target;
    char mark[OBJECT_MARK_BYTES] = "", copied[OBJECT_MARK_BYTES] = "";
    if (!err) err = &own;
    int rc = *from_etag ? object_store_head_mark(store, from, &source, mark, err) : 0;
    if (!rc && *from_etag && strcmp(source.etag, from_etag) != 0) rc = conflict(err, from);
    if (!rc) rc = copy_now(store, from, to, err);
    if (rc || !*from_etag) return rc;
    rc = object_store_head_mark(store, to, &target, copied, err);
    if (rc || (*mark ? !strcmp(mark, copied) : !strcmp(target.etag, from_etag))) return rc;
    object_store_delete(store, to, target.etag, &own);
    return object_call_note(store, conflict(err, from), err);
}

/* ---- LIST ---- */

static int list_page(struct object_store *store, const char *prefix, struct object_page *page, struct rod_error *err) {
    const struct object_ask ask = {.kind = OBJECT_LIST, .key = prefix, .after = page->after};
    struct object_call call;
    int rc = object_call_begin(&call, store, &ask, NULL, store->time_ns, NULL, err);
    if (!rc) rc = object_call_run(&call, err);
    if (!rc && call.verdict != OBJECT_DONE)
        rc = rod_fail(err, ROD_EIO, "The object store has no bucket %s.", store->url.bucket);
    if (!rc) rc = object_answer_list(call.channel->exchange.kept, call.channel->exchange.n_kept, page, err);
    object_call_end(&call);
    return object_call_note(store, rc, err);
}

struct found {
    void (*found)(void *arg, const char *key, const struct object_version *version);
    void *arg;
    size_t n;
};
static void on_found(void *arg, const char *key, const struct object_version *version) {
    struct found *f = arg;
    f->n++;
    f->found(f->arg, key, version);
}

int object_store_list(struct object_store *store, const char *prefix, const char *after,
                      void (*found)(void *arg, const char *key, const struct object_version *version), void *arg,
                      bool *more, struct rod_error *err) {
    struct rod_error own;
    struct found f = {found, arg, 0};
    char all[sizeof store->url.prefix + OBJECT_MAX_KEY];
    struct object_page page = {.prefix = all, .n_skip = strlen(store->url.prefix), .found = on_found, .arg = &f};
    char behind[sizeof page.last];
    int rc;
    if (!err) err = &own;
    snprintf(all, sizeof all, "%s%s", store->url.prefix, prefix);
    snprintf(behind, sizeof behind, "%s%s", *after ? store->url.prefix : "", after);
    do { /* a page of nothing but others' keys is none */
        page.after = behind;
        rc = list_page(store, prefix, &page, err);
        memcpy(behind, page.last, sizeof behind);
    } while (!rc && page.more && !f.n);
    *more = page.more;
    return rc;
}
