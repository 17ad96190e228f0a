/* test_object_faults.c - an object store that is slow, forbidden, throttled, silent, broken or gone: each call ends in
 * its time with an error that says why, and a write is done once or not at all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/object_setup.h"

#include "engine/base/clock.h"

#include <pthread.h>

enum { TIMEOUT_MS = 2000 };
/* Of a call without a body, with room for a machine that is busy. */
#define BOUND_NS ((uint64_t)(TIMEOUT_MS + TIMEOUT_MS / 4 + 2000) * 1000000)

static void within(uint64_t begun_ns, const char *what) {
    const uint64_t took_ns = clock_now_ns() - begun_ns;
    if (took_ns > BOUND_NS) fail_msg("%s took %.2f s", what, (double)took_ns / 1e9);
}

static int head(struct object_setup *s, const char *key, struct rod_error *err) {
    struct object_version version;
    const uint64_t begun_ns = clock_now_ns();
    const int rc = object_store_head(s->store, key, &version, err);
    within(begun_ns, "HEAD");
    return rc;
}

/* A GET of all. */
static int get(struct object_setup *s, const char *key, size_t n_bytes, struct rod_error *err) {
    struct object_reader *reader;
    struct object_version version;
    size_t n;
    char *all = malloc(n_bytes + 1);
    const uint64_t begun_ns = clock_now_ns();
    int rc = object_store_get(s->store, key, "", &reader, &version, err);
    if (!rc) rc = object_reader_get(reader, all, n_bytes, &n, err);
    object_reader_close(reader);
    within(begun_ns, "GET");
    free(all);
    return rc;
}

static void ignore(void *arg, const char *key, const struct object_version *version) {
    (void)arg, (void)key, (void)version;
}
static int list(struct object_setup *s, struct rod_error *err) {
    bool more;
    const uint64_t begun_ns = clock_now_ns();
    const int rc = object_store_list(s->store, "f/", "", ignore, NULL, &more, err);
    within(begun_ns, "LIST");
    return rc;
}

static struct object_put put(struct object_setup *s, const char *key, enum object_condition condition,
                             const char *etag) {
    static unsigned n;
    char text[32];
    snprintf(text, sizeof text, "text %u", n++);
    const uint64_t begun_ns = clock_now_ns();
    const struct object_put done = object_setup_put(s->store, key, text, sizeof text, condition, etag);
    within(begun_ns, "PUT");
    return done;
}

#define WANT(rc, want, err)                                                                                            \
    do {                                                                                                               \
        const int got_ = (rc);                                                                                         \
        if (got_ != (want))                                                                                            \
            fail_msg("%s is %s (%s), want %s", #rc, rod_code_name(got_), got_ ? (err).message : "",                    \
                     rod_code_name(want));                                                                             \
    } while (0)
#define SAYS(err, text)                                                                                                \
    do {                                                                                                               \
        if (!strstr((err).message, text)) fail_msg("'%s' does not say '%s'", (err).message, text);                     \
    } while (0)

static void a_store_that_is_busy_for_a_moment_is_asked_again(void **state) {
    static const char *const faults[] = {
        "[{\"do\":\"status\",\"times\":2}]",
        "[{\"do\":\"status\",\"status\":500,\"code\":\"InternalError\",\"times\":2}]",
        "[{\"do\":\"close\",\"times\":2}]", "[{\"do\":\"reset\",\"times\":2}]",
        "[{\"do\":\"status\",\"status\":409,\"code\":\"ConditionalRequestConflict\",\"times\":2}]"};
    struct object_setup *s = *state;
    struct rod_error err;
    struct object_counts before, after;
    object_store_count(s->store, &before);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        object_setup_faults(s, "[]");
        WANT(object_store_delete(s->store, "f/busy", "", &err), 0, err);
        object_setup_faults(s, faults[i]);
        const struct object_put one = put(s, "f/busy", OBJECT_IF_NEW, NULL);
        WANT(one.rc, 0, one.err);
        object_setup_faults(s, faults[i]);
        WANT(head(s, "f/busy", &err), 0, err);
        object_setup_faults(s, faults[i]);
        WANT(get(s, "f/busy", 32, &err), 0, err);
        object_setup_faults(s, faults[i]);
        WANT(list(s, &err), 0, err);
        object_setup_faults(s, faults[i]);
        WANT(object_store_copy(s->store, "f/busy", one.version.etag, "f/busy2", &err), 0, err);
        object_setup_faults(s, faults[i]);
        WANT(object_store_delete(s->store, "f/busy", one.version.etag, &err), 0, err);
    }
    object_store_count(s->store, &after);
    assert_true(after.retries - before.retries >= 5 * 6);
}

static void what_does_not_get_better_ends_in_time(void **state) {
    static const struct {
        const char *fault, *says;
        int rc;
    } all[] = {
        {"[{\"do\":\"status\",\"times\":-1}]", "503 SlowDown", ROD_EIO},
        {"[{\"do\":\"status\",\"times\":-1,\"headers\":{\"Retry-After\":\"60\"}}]", "503 SlowDown", ROD_EIO},
        {"[{\"do\":\"status\",\"status\":403,\"code\":\"AccessDenied\",\"times\":-1}]", "403 AccessDenied", ROD_EIO},
        {"[{\"do\":\"status\",\"status\":507,\"code\":\"QuotaExceeded\",\"times\":-1}]", "507 QuotaExceeded", ROD_EIO},
        {"[{\"do\":\"status\",\"status\":307,\"code\":\"TemporaryRedirect\",\"times\":-1,"
         "\"headers\":{\"Location\":\"http://127.0.0.1:1/\"}}]",
         "another endpoint", ROD_EIO},
        {"[{\"do\":\"status\",\"status\":404,\"code\":\"NoSuchBucket\",\"times\":-1}]", "NoSuchBucket", ROD_EIO},
        {"[{\"do\":\"status\",\"status\":500,\"body_bytes\":9000000,\"times\":-1}]", "too long", ROD_EIO},
        {"[{\"do\":\"close\",\"times\":-1}]", "Empty reply", ROD_EIO},
        {"[{\"do\":\"hang\",\"times\":-1}]", "in time", ROD_EIO},
        {"[{\"do\":\"garbage\",\"times\":-1}]", "no HTTP", ROD_EIO},
        {"[{\"do\":\"headers\",\"times\":-1}]", "too long", ROD_EIO},
        {"[{\"do\":\"endless\",\"times\":-1}]", "", ROD_EIO},
        {"[{\"do\":\"slow\",\"bps\":1024,\"times\":-1}]", "too slowly", ROD_EIO},
        {"[{\"do\":\"truncate\",\"at\":100,\"times\":-1}]", "early", ROD_EIO},
    };
    enum { N = 1 << 20 };
    struct object_setup *s = *state;
    struct rod_error err;
    char *body = object_setup_body(N);
    assert_int_equal(object_setup_put(s->store, "f/large", body, N, OBJECT_ANY, NULL).rc, 0);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        object_setup_faults(s, all[i].fault);
        WANT(get(s, "f/large", N, &err), all[i].rc, err);
        SAYS(err, all[i].says);
        if (!object_store_down(s->store, &err)) fail_msg("%s: the store is not down", all[i].fault);
        object_setup_faults(s, "[]");
        WANT(get(s, "f/large", N, &err), 0, err); /* it comes back by itself */
        if (object_store_down(s->store, NULL)) fail_msg("%s: the store is still down", all[i].fault);
    }
    free(body);
}

/* What its metadata do not fit was changed on the way, or is another version's: it is read once more. */
static void a_body_that_begins_otherwise_than_was_written_is_read_again_and_refused(void **state) {
    static const char *const faults[] = {"{\"do\":\"stale_body\",\"method\":\"GET\"",
                                         "{\"do\":\"flip\",\"at\":7,\"method\":\"GET\"",
                                         "{\"do\":\"no_etag\",\"method\":\"GET\""};
    enum { N = 5000 };
    struct object_setup *s = *state;
    struct rod_error err;
    char old[N] = "old", new[N] = "new", got[40], fault[128];
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct object_version version;
        size_t n;
        assert_int_equal(object_setup_put(s->store, "f/two", old, N, OBJECT_ANY, NULL).rc, 0);
        assert_int_equal(object_setup_put(s->store, "f/two", new, N, OBJECT_ANY, NULL).rc, 0);
        snprintf(fault, sizeof fault, "[%s}]", faults[i]); /* once */
        object_setup_faults(s, fault);
        WANT(object_store_get_start(s->store, "f/two", got, sizeof got, &n, &version, &err), 0, err);
        if (n != sizeof got || memcmp(got, new, n)) fail_msg("%zu bytes: %.10s", n, got);
        object_setup_faults(s, fault);
        WANT(get(s, "f/two", N, &err), 0, err);
        snprintf(fault, sizeof fault, "[%s,\"times\":-1}]", faults[i]);
        object_setup_faults(s, fault);
        WANT(get(s, "f/two", N, &err), ROD_EIO, err);
        WANT(object_store_get_start(s->store, "f/two", got, sizeof got, &n, &version, &err), ROD_EIO, err);
        object_setup_faults(s, "[]");
        WANT(get(s, "f/two", N, &err), 0, err);
    }
}

static void a_list_that_is_none_is_refused(void **state) {
    static const char *const texts[] = {
        "",
        "no XML",
        "<ListBucketResult>",
        "<ListBucketResult></ListBucketResult>",
        "<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>",
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>other/f/x</Key><Size>1</Size></Contents>"
        "</ListBucketResult>",
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>t/est/f/x</Key></Contents></"
        "ListBucketResult>",
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>t/est/f/b</Key><Size>1</Size></Contents>"
        "<Contents><Key>t/est/f/a</Key><Size>1</Size></Contents></ListBucketResult>"};
    struct object_setup *s = *state;
    struct rod_error err;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char fault[600];
        snprintf(fault, sizeof fault, "[{\"do\":\"text\",\"list\":true,\"times\":-1,\"text\":\"%s\"}]", texts[i]);
        object_setup_faults(s, fault);
        WANT(list(s, &err), ROD_EIO, err);
    }
    object_setup_faults(s, "[]");
}

/* Each way to lose the answer of a write that was done. */
static void a_write_whose_answer_is_lost_is_done_once(void **state) {
    static const char *const faults[] = {
        "[{\"do\":\"close_after\",\"method\":\"PUT\"}]", "[{\"do\":\"reset_after\",\"method\":\"PUT\"}]",
        "[{\"do\":\"hang_after\",\"method\":\"PUT\"}]",
        "[{\"do\":\"close_after\",\"method\":\"PUT\"},{\"do\":\"status\",\"method\":\"HEAD\"}]"};
    struct object_setup *s = *state;
    struct rod_error err;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        object_setup_faults(s, "[]");
        WANT(object_store_delete(s->store, "f/lost", "", &err), 0, err);
        object_setup_faults(s, faults[i]);
        const struct object_put one = put(s, "f/lost", OBJECT_IF_NEW, NULL);
        WANT(one.rc, 0, one.err);
        object_setup_faults(s, faults[i]);
        const struct object_put two = put(s, "f/lost", OBJECT_IF_SAME, one.version.etag);
        WANT(two.rc, 0, two.err);
        struct object_version there;
        WANT(object_store_head(s->store, "f/lost", &there, &err), 0, err);
        assert_string_equal(there.etag, two.version.etag);
    }
    object_setup_faults(s, "[]");
}

static void a_write_that_was_not_done_is_repeated_or_unsure(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    object_setup_faults(s, "[{\"do\":\"close\",\"method\":\"PUT\"}]");
    struct object_put one = put(s, "f/again", OBJECT_IF_NEW, NULL);
    WANT(one.rc, 0, one.err);
    object_setup_faults(s, "[{\"do\":\"hang\",\"method\":\"PUT\",\"times\":-1}]");
    one = put(s, "f/silent", OBJECT_IF_NEW, NULL);
    WANT(one.rc, ROD_EUNSURE, one.err);
    object_setup_faults(s, "[{\"do\":\"hang\",\"times\":-1}]");
    one = put(s, "f/silent", OBJECT_IF_NEW, NULL);
    WANT(one.rc, ROD_EUNSURE, one.err);
    object_setup_faults(s, "[]");
    WANT(head(s, "f/silent", &err), ROD_ENOTFOUND, err);
}

/* Each attempt has an answer of the store, and the old version is there: nothing is open. A gateway's 504 says less. */
static void a_write_that_the_store_refuses_each_time_has_failed_and_says_how(void **state) {
    static const char *const faults[] = {
        "[{\"do\":\"status\",\"status\":500,\"code\":\"InternalError\",\"method\":\"PUT\",\"times\":-1}]",
        "[{\"do\":\"status\",\"status\":500,\"code\":\"InternalError\",\"method\":\"PUT\"},"
        "{\"do\":\"status\",\"status\":503,\"code\":\"SlowDown\",\"method\":\"PUT\",\"times\":-1}]",
        "[{\"do\":\"status\",\"status\":504,\"code\":\"GatewayTimeout\",\"method\":\"PUT\",\"times\":-1}]",
        "[{\"do\":\"status\",\"status\":500,\"code\":\"InternalError\",\"times\":-1}]"};
    static const char *const says[] = {"500 InternalError", "503 SlowDown", "504 GatewayTimeout", "500 InternalError"};
    struct object_setup *s = *state;
    struct rod_error err;
    const struct object_put first = put(s, "f/refused", OBJECT_ANY, NULL);
    for (int i = 0; i < 4; i++) {
        object_setup_faults(s, faults[i]);
        const uint64_t begun_ns = clock_now_ns();
        const struct object_put same = put(s, "f/refused", OBJECT_IF_SAME, first.version.etag);
        WANT(same.rc, i < 2 ? ROD_EIO : ROD_EUNSURE, same.err);
        SAYS(same.err, says[i]);
        within(begun_ns, "a PUT that is refused");
        object_setup_faults(s, faults[i]);
        const struct object_put new = put(s, "f/refused_new", OBJECT_IF_NEW, NULL);
        WANT(new.rc, i < 2 ? ROD_EIO : ROD_EUNSURE, new.err);
    }
    object_setup_faults(s, "[{\"do\":\"no_etag\",\"times\":-1}]");
    const struct object_put bare = put(s, "f/refused", OBJECT_IF_SAME, first.version.etag);
    WANT(bare.rc, ROD_EUNSURE, bare.err);
    SAYS(bare.err, "no ETag");
    object_setup_faults(s, "[]");
    WANT(head(s, "f/refused_new", &err), ROD_ENOTFOUND, err);
}

/* A store that answers a lost race with 500, as radosgw does. */
static void an_error_beside_another_servers_write_is_a_conflict(void **state) {
    static const char fault[] = "[{\"do\":\"status\",\"status\":500,\"code\":\"UnknownError\",\"method\":\"PUT\"}]";
    struct object_setup *s = *state;
    const struct object_put first = put(s, "f/raced", OBJECT_IF_NEW, NULL);
    const struct object_put other = put(s, "f/raced", OBJECT_IF_SAME, first.version.etag);
    object_setup_faults(s, fault);
    struct object_put ours = put(s, "f/raced", OBJECT_IF_SAME, first.version.etag);
    WANT(ours.rc, ROD_ECONFLICT, ours.err);
    object_setup_faults(s, fault);
    ours = put(s, "f/raced", OBJECT_IF_NEW, NULL); /* ours may have been what `first` was */
    WANT(ours.rc, ROD_EUNSURE, ours.err);
    const struct object_put next = put(s, "f/raced", OBJECT_IF_SAME, other.version.etag);
    WANT(next.rc, 0, next.err);
    object_setup_faults(s, fault);
    ours = put(s, "f/raced", OBJECT_IF_SAME, first.version.etag); /* it may lie between the others' two */
    WANT(ours.rc, ROD_EUNSURE, ours.err);
    object_setup_faults(s, "[]");
}

static void a_body_that_is_taken_too_slowly_ends_in_time(void **state) {
    enum { N = 30 << 20 };
    struct object_setup *s = *state;
    char *body = object_setup_body(N);
    object_setup_faults(s, "[{\"do\":\"slow_in\",\"bps\":1024,\"method\":\"PUT\",\"times\":-1}]");
    const uint64_t begun_ns = clock_now_ns();
    const struct object_put one = object_setup_put(s->store, "f/slow", body, N, OBJECT_ANY, NULL);
    within(begun_ns, "a slow PUT");
    WANT(one.rc, ROD_EIO, one.err);
    object_setup_faults(s, "[]");
    free(body);
}

static void a_store_that_was_killed_or_stopped_is_used_again_when_it_is_back(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    char dir[64];
    const char *flags[] = {"--dir", dir, NULL};
    snprintf(dir, sizeof dir, "/tmp/test_object_faults_%d", (int)getpid());
    object_setup_end_stand_in(s, SIGTERM);
    WANT(head(s, "f/x", &err), ROD_EIO, err);
    object_setup_stand_in(s, flags);
    WANT(put(s, "f/x", OBJECT_IF_NEW, NULL).rc, 0, err);
    object_setup_end_stand_in(s, SIGKILL);
    WANT(get(s, "f/x", 32, &err), ROD_EIO, err);
    WANT(put(s, "f/x", OBJECT_ANY, NULL).rc, ROD_EIO, err);
    object_setup_stand_in(s, flags);
    WANT(get(s, "f/x", 32, &err), 0, err);
    kill(s->pid, SIGSTOP);
    assert_int_equal(waitpid(s->pid, NULL, WUNTRACED), s->pid); /* a thread that still ran would answer */
    WANT(get(s, "f/x", 32, &err), ROD_EIO, err);
    WANT(list(s, &err), ROD_EIO, err);
    kill(s->pid, SIGCONT);
    WANT(get(s, "f/x", 32, &err), 0, err);
    object_setup_end_stand_in(s, SIGTERM);
    object_setup_stand_in(s, NULL);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* ---- credentials ---- */

static void write_credentials(const char *path, const char *id, const char *secret, const char *more) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "[other]\naws_access_key_id = no\n[default]\naws_access_key_id = %s\naws_secret_access_key=%s\n%s\n", id,
            secret, more);
    fclose(f);
}

static void credentials_that_were_changed_are_read_again(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    struct object_store_config config = object_setup_config(s);
    struct object_version version;
    char path[64];
    snprintf(path, sizeof path, "/tmp/test_object_faults_%d.ini", (int)getpid());
    write_credentials(path, "STANDIN", "stand+in/secret", "");
    config.credentials_file = path;
    struct object_store *store = object_setup_open(&config);
    WANT(object_store_head(store, "f/c", &version, &err), ROD_ENOTFOUND, err);
    write_credentials(path, "NEWKEY", "new/secret", "aws_session_token = to+ken/==");
    free(object_setup_ask(s, "PUT", "/_credentials",
                          "{\"key\":\"NEWKEY\",\"secret\":\"new/secret\",\"token\":\"to+ken/==\"}"));
    bool more;
    WANT(object_store_list(store, "f/", "", ignore, NULL, &more, &err), 0, err); /* refused, read again, done */
    write_credentials(path, "NEWKEY", "spoilt/secret", "");
    WANT(object_store_reload(store, &err), 0, err);
    WANT(object_store_list(store, "f/", "", ignore, NULL, &more, &err), ROD_EIO, err);
    SAYS(err, "InvalidToken");
    write_credentials(path, "NEWKEY", "", "");
    WANT(object_store_reload(store, &err), ROD_EINVALID, err);
    object_store_close(store);
    unlink(path);
    free(object_setup_ask(s, "PUT", "/_credentials", "{\"key\":\"STANDIN\",\"secret\":\"stand+in/secret\"}"));
}

static void no_message_tells_a_secret(void **state) {
    static const char *const secrets[] = {"STANDIN", "stand+in/secret"};
    struct object_setup *s = *state;
    struct rod_error err;
    for (size_t i = 0; i < 2; i++) {
        char fault[256];
        snprintf(fault, sizeof fault,
                 "[{\"do\":\"status\",\"status\":403,\"code\":\"SignatureDoesNotMatch\",\"message\":\"%s is wrong\"}]",
                 secrets[i]);
        object_setup_faults(s, fault);
        WANT(list(s, &err), ROD_EIO, err);
        SAYS(err, "403 SignatureDoesNotMatch");
        for (size_t j = 0; j < 2; j++)
            if (strstr(err.message, secrets[j]) || strstr(s->log, secrets[j])) fail_msg("%s\n%s", err.message, s->log);
    }
    object_setup_faults(s, "[]");
}

static void a_clock_that_is_wrong_is_named(void **state) {
    struct object_setup *s = *state;
    struct rod_error err;
    free(object_setup_ask(s, "PUT", "/_clock", "{\"ahead_s\": 3600}"));
    WANT(list(s, &err), ROD_EIO, err);
    SAYS(err, "the clock of this machine is 36");
    SAYS(err, "behind its own");
    WANT(head(s, "f/x", &err), ROD_EIO, err); /* its answer has no text */
    SAYS(err, "behind its own");
    free(object_setup_ask(s, "PUT", "/_clock", "{\"ahead_s\": 0}"));
    WANT(list(s, &err), 0, err);
}

/* ---- bounds ---- */

struct worker {
    pthread_t thread;
    struct object_store *store;
    int number;
};
static void *work(void *arg) {
    const struct worker *w = arg;
    char key[32];
    for (int i = 0; i < 12; i++) {
        snprintf(key, sizeof key, "w/%d-%d", w->number, i % 3);
        char *body = object_setup_body(100000 + (size_t)w->number);
        const struct object_put one = object_setup_put(w->store, key, body, 100000, OBJECT_ANY, NULL);
        if (one.rc) fail_msg("%s", one.err.message);
        free(object_setup_read(w->store, key, 100000));
        free(body);
    }
    return NULL;
}

static void few_connections_serve_many_threads(void **state) {
    struct object_setup *s = *state;
    struct object_store_config config = object_setup_config(s);
    struct worker workers[8];
    config.n_connections = 2;
    config.bytes_in_flight = 150000;
    config.timeout_ms = 20000;
    struct object_store *store = object_setup_open(&config);
    for (int i = 0; i < 8; i++) {
        workers[i] = (struct worker){.store = store, .number = i};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
    }
    for (int i = 0; i < 8; i++) pthread_join(workers[i].thread, NULL);
    object_store_close(store);
}

static void a_call_waits_for_a_connection_within_its_time(void **state) {
    struct object_setup *s = *state;
    struct object_store_config config = object_setup_config(s);
    struct object_reader *reader;
    struct object_version version;
    struct rod_error err;
    config.n_connections = 1;
    struct object_store *store = object_setup_open(&config);
    char *body = object_setup_body(1 << 20);
    assert_int_equal(object_setup_put(store, "f/one", body, 1 << 20, OBJECT_ANY, NULL).rc, 0);
    assert_int_equal(object_store_get(store, "f/one", "", &reader, &version, &err), 0);
    const uint64_t begun_ns = clock_now_ns();
    WANT(object_store_head(store, "f/one", &version, &err), ROD_EIO, err);
    SAYS(err, "busy");
    within(begun_ns, "the wait for a connection");
    object_reader_close(reader);
    WANT(object_store_head(store, "f/one", &version, &err), 0, err);
    object_store_close(store);
    free(body);
}

/* A read, and two writes at once, of a store that says nothing, with so much time; how long they took. */
static uint64_t take_silence(struct object_setup *s, uint64_t time_ns) {
    static const struct state_bytes part = {"x", 1};
    struct object_version version;
    struct rod_error err;
    struct object_put puts[2];
    for (int i = 0; i < 2; i++)
        puts[i] = (struct object_put){.key = i ? "f/one" : "f/two", .parts = &part, .n_parts = 1};
    const uint64_t began_ns = clock_now_ns();
    object_store_hurry(s->store, time_ns ? began_ns + time_ns : 0);
    WANT(object_store_head(s->store, "f/one", &version, &err), ROD_EIO, err);
    object_store_put(s->store, puts, 2);
    for (int i = 0; i < 2; i++)
        if (!puts[i].rc) fail_msg("put %d went well", i);
    object_store_hurry(s->store, 0);
    return clock_now_ns() - began_ns;
}

static void *in_a_hurry(void *arg) {
    take_silence(arg, 1);
    return NULL;
}

static void a_thread_in_a_hurry_waits_no_longer_and_others_do(void **state) {
    struct object_setup *s = *state;
    struct object_version version;
    struct rod_error err;
    pthread_t other;
    object_setup_faults(s, "[{\"do\":\"hang\",\"s\":60,\"times\":-1}]");
    const uint64_t most_ns = (uint64_t)TIMEOUT_MS * 1000000, own_ns = take_silence(s, 0);
    if (own_ns < most_ns) fail_msg("without a hurry it took %.2f s", (double)own_ns / 1e9);
    assert_int_equal(pthread_create(&other, NULL, in_a_hurry, s), 0);
    pthread_join(other, NULL);
    const uint64_t began_ns = clock_now_ns();
    WANT(object_store_head(s->store, "f/one", &version, &err), ROD_EIO, err);
    if (clock_now_ns() - began_ns < most_ns / 2) fail_msg("another thread's hurry is this one's");
    const uint64_t took_ns = take_silence(s, most_ns / 4);
    if (took_ns > most_ns) fail_msg("with %.2f s it took %.2f s", (double)most_ns / 4e9, (double)took_ns / 1e9);
    WANT(object_store_head(s->store, "f/one", &version, &err), ROD_EIO, err); /* in its own time again */
    SAYS(err, "in time");
    object_setup_faults(s, "[]");
    const struct object_put done = put(s, "f/one", OBJECT_ANY, NULL);
    WANT(done.rc, 0, done.err);
}

static unsigned lines(const char *log, const char *with) {
    unsigned n = 0;
    for (const char *at = log; (at = strstr(at, with)); at++) n++;
    return n;
}

static void an_outage_is_a_line_at_its_begin_and_one_at_its_end_however_often_it_comes(void **state) {
    struct object_setup *s = *state;
    const struct object_store_config config = object_setup_config(s);
    struct object_version version;
    struct rod_error err;
    s->log[0] = 0;
    struct object_store *store = object_setup_open(&config);
    for (int i = 0; i < 12; i++) {
        object_setup_faults(s, "[{\"do\":\"status\",\"status\":403,\"code\":\"AccessDenied\",\"times\":-1}]");
        for (int k = 0; k < 3; k++) WANT(object_store_head(store, "f/none", &version, &err), ROD_EIO, err);
        object_setup_faults(s, "[]");
        WANT(object_store_head(store, "f/none", &version, &err), ROD_ENOTFOUND, err);
    }
    const unsigned begins = lines(s->log, "answers HEAD"), ends = lines(s->log, "answers again");
    if (begins != 1 || ends != 1) fail_msg("%u begins, %u ends:\n%s", begins, ends, s->log);
    object_store_close(store);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_that_is_busy_for_a_moment_is_asked_again),
        cmocka_unit_test(what_does_not_get_better_ends_in_time),
        cmocka_unit_test(a_body_that_begins_otherwise_than_was_written_is_read_again_and_refused),
        cmocka_unit_test(a_list_that_is_none_is_refused),
        cmocka_unit_test(a_write_whose_answer_is_lost_is_done_once),
        cmocka_unit_test(a_write_that_was_not_done_is_repeated_or_unsure),
        cmocka_unit_test(a_write_that_the_store_refuses_each_time_has_failed_and_says_how),
        cmocka_unit_test(an_error_beside_another_servers_write_is_a_conflict),
        cmocka_unit_test(a_body_that_is_taken_too_slowly_ends_in_time),
        cmocka_unit_test(a_store_that_was_killed_or_stopped_is_used_again_when_it_is_back),
        cmocka_unit_test(credentials_that_were_changed_are_read_again),
        cmocka_unit_test(no_message_tells_a_secret),
        cmocka_unit_test(a_clock_that_is_wrong_is_named),
        cmocka_unit_test(few_connections_serve_many_threads),
        cmocka_unit_test(a_call_waits_for_a_connection_within_its_time),
        cmocka_unit_test(a_thread_in_a_hurry_waits_no_longer_and_others_do),
        cmocka_unit_test(an_outage_is_a_line_at_its_begin_and_one_at_its_end_however_often_it_comes),
    };
    return cmocka_run_group_tests(tests, object_setup_begin, object_setup_finish);
}
