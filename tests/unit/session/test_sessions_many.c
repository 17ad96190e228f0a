/* test_sessions_many.c - many sessions: how many there may be, of all and of a tenant; what they take of memory and of
 * the disk; files that are refused by the thousand; what is changed of one. Over the fake device. */
#include "tests/sessions_folder.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "engine/session/session_table.h"
#include "engine/session/store/session_store.h"

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static int make(struct setup *b, const char *tenant, const char *id, uint64_t max, bool pin, struct rod_error *err) {
    struct rod_session_info info;
    return rod_session_create(b->c.engine, tenant, &(struct rod_session_new){.id = id, .max_sessions = max, .pin = pin},
                              &info, err);
}

static void made(struct setup *b, const char *tenant, const char *id) {
    struct rod_error err;
    if (make(b, tenant, id, 0, false, &err)) fail_msg("%s: %s", id, err.message);
}

/* ---- how many ---- */

static void beyond_the_limit_no_session_is_made(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_session_info info;
    struct rod_error err;
    void *bytes;
    size_t n;
    for (int on_disk = 0; on_disk < 2; on_disk++) {
        setup_open(&b, OPTIONS(.kind = FAKE_HASH),
                   CONFIG(.state_host_bytes = 64u << 20, .state_dir = on_disk ? dir : NULL, .max_sessions = 3));
        assert_int_equal(make(&b, "", "pinned", 0, true, &err), 0);
        made(&b, "other", "of-another");
        turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
        collect_free(&a);
        assert_int_equal(make(&b, "", "more", 0, false, &err), ROD_ESESSIONS);
        assert_non_null(strstr(err.message, "max_sessions is 3"));
        assert_int_equal(make(&b, "", "more", 0, true, &err), ROD_ESESSIONS);
        assert_int_equal(
            rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = NULL, .from = "aa"}, &info, &err),
            ROD_ESESSIONS);
        turn_fails(&b.c, nth_turn(&a, "bb", 0), &a, ROD_ESESSIONS);
        if (rod_session_export(b.c.engine, "", "aa", &bytes, &n, &err)) fail_msg("%s", err.message);
        assert_int_equal(rod_session_import(b.c.engine, "", "copy", bytes, n, &info, &err), ROD_ESESSIONS);
        assert_int_equal(rod_session_import(b.c.engine, "", "aa", bytes, n, &info, &err), 0); /* it is there */
        free(bytes);
        assert_int_equal(make(&b, "", "aa", 0, false, &err), ROD_EEXISTS);
        turn_ok(&b.c, nth_turn(&a, "aa", 1), &a); /* those that are there go on */
        collect_free(&a);
        struct rod_request *r = nth_turn(&a, "cc", 0);
        r->turn->create = false;
        turn_fails(&b.c, r, &a, ROD_ENOTFOUND);
        assert_int_equal(stats_of(b.c.engine).sessions, 3);
        if (rod_session_delete(b.c.engine, "other", "of-another", &err)) fail_msg("%s", err.message);
        turn_ok(&b.c, nth_turn(&a, "bb", 0), &a);
        collect_free(&a);
        assert_int_equal(make(&b, "", "more", 0, false, &err), ROD_ESESSIONS);
        setup_close(&b);
    }
}

static struct rod_request *as(struct rod_request *r, const char *tenant) {
    free(r->turn->tenant);
    r->turn->tenant = strdup(tenant);
    return r;
}

static void a_tenant_has_a_limit_of_its_own(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_error err;
    BEGIN(&b);
    for (int i = 0; i < 5; i++) made(&b, "b", (char[]){(char)('a' + i), 0});
    assert_int_equal(make(&b, "a", "one", 2, false, &err), 0);
    assert_int_equal(make(&b, "a", "two", 2, true, &err), 0);
    assert_int_equal(make(&b, "a", "three", 2, false, &err), ROD_EKEYSESSIONS);
    assert_non_null(strstr(err.message, "limit of 2 sessions"));
    assert_int_equal(make(&b, "a", "three", 2, true, &err), ROD_EKEYSESSIONS);
    struct rod_request *r = as(nth_turn(&a, "three", 0), "a");
    r->turn->max_sessions = 2;
    turn_fails(&b.c, r, &a, ROD_EKEYSESSIONS);
    assert_int_equal(make(&b, "a", "three", 3, false, &err), 0); /* the operator gave it more */
    assert_int_equal(make(&b, "aa", "one", 1, false, &err), 0);
    assert_int_equal(make(&b, "", "one", 1, false, &err), 0);
    assert_int_equal(rod_session_delete(b.c.engine, "a", "one", &err), 0);
    assert_int_equal(rod_session_delete(b.c.engine, "a", "two", &err), 0);
    assert_int_equal(make(&b, "a", "two", 2, false, &err), 0);
    setup_close(&b);
}

/* Sessions that a failed or cancelled first turn would have made do not count. */
/* With a limit of none: four times what is left free. One alone leaves a fifth, and a tenant that has none finds one to
 * the last. A limit of its own goes before, and there is no share where tenants cannot be distinguished. */
static void a_tenant_without_a_limit_has_a_share(void **state) {
    (void)state;
    enum { MOST = 50 };
    static const struct {
        const char *tenant;
        int n;
    } want[] = {{"a", 40}, {"b", 8}, {"c", 1}, {"d", 1}, {"e", 0}};
    struct setup b;
    struct answer a;
    struct rod_error err;
    char id[16];
    begin_with(&b, CONFIG(.max_sessions = MOST));
    for (int t = 0; t < (int)(sizeof want / sizeof *want); t++) {
        int n = 0, rc;
        while (snprintf(id, sizeof id, "%d", n), !(rc = make(&b, want[t].tenant, id, 0, true, &err))) n++;
        if (n != want[t].n) fail_msg("tenant %s has %d sessions, want %d", want[t].tenant, n, want[t].n);
        assert_int_equal(rc, t < 3 ? ROD_EKEYSESSIONS : ROD_ESESSIONS);
        if (t) continue;
        assert_non_null(strstr(err.message, "share of max_sessions"));
        turn_fails(&b.c, as(nth_turn(&a, "more", 0), "a"), &a, ROD_EKEYSESSIONS);
        assert_int_equal(make(&b, "a", "beyond", MOST, false, &err), 0);
        assert_int_equal(rod_session_delete(b.c.engine, "a", "beyond", &err), 0);
        void *bytes;
        size_t n_bytes;
        struct rod_session_info info;
        turn_ok(&b.c, as(nth_turn(&a, "0", 0), "a"), &a);
        collect_free(&a);
        assert_int_equal(rod_session_export(b.c.engine, "a", "0", &bytes, &n_bytes, &err), 0);
        assert_int_equal(rod_session_import(b.c.engine, "a", "moved", bytes, n_bytes, &info, &err),
                         0); /* an operator */
        free(bytes);
        assert_int_equal(rod_session_delete(b.c.engine, "a", "moved", &err), 0);
    }
    setup_close(&b);
}

static void what_was_not_made_takes_no_place(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_error err;
    begin_with(&b, CONFIG(.max_sessions = 1));
    for (int i = 0; i < 3; i++) {
        struct rod_request *r = nth_turn(&a, "aa", 0);
        r->turn->from = strdup("nobody");
        turn_fails(&b.c, r, &a, ROD_ENOTFOUND);
        collect_submit(&b.c, turn_request(&a, "bb", (const int32_t[]){1, 2, 3}, 3, 100000));
        while (!a.n_ids) collect_now(&b.c);
        assert_int_equal(make(&b, "", "beside", 0, false, &err), ROD_ESESSIONS); /* it is sure to be made */
        rod_cancel(b.c.engine, a.ticket);
        collect_until(&b.c, &a, 1);
        collect_free(&a);
    }
    made(&b, "", "last");
    setup_close(&b);
}

enum { MAKERS = 8, EACH = 40, LIMIT = 100 };
struct maker {
    struct setup *b;
    int number;
    atomic_int *n_made;
};
static void *make_some(void *arg) {
    struct maker *m = arg;
    for (int i = 0; i < EACH; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d-%d", m->number, i);
        if (!make(m->b, "", id, 0, i % 2, NULL)) atomic_fetch_add(m->n_made, 1);
    }
    return NULL;
}

static void many_at_once_make_as_many_as_the_limit(void **state) {
    (void)state;
    struct setup b;
    pthread_t threads[MAKERS];
    struct maker makers[MAKERS];
    atomic_int n_made = 0;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG(.state_host_bytes = 64u << 20, .max_sessions = LIMIT));
    for (int i = 0; i < MAKERS; i++) {
        makers[i] = (struct maker){&b, i, &n_made};
        assert_int_equal(pthread_create(&threads[i], NULL, make_some, &makers[i]), 0);
    }
    for (int i = 0; i < MAKERS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(n_made, LIMIT);
    assert_int_equal(stats_of(b.c.engine).sessions, LIMIT);
    setup_close(&b);
}

/* A limit that is smaller than what is there takes nothing away. */
static void a_smaller_limit_keeps_what_is_there(void **state) {
    (void)state;
    struct setup b;
    struct rod_error err;
    BEGIN(&b);
    for (int i = 0; i < 5; i++) made(&b, "", (char[]){(char)('a' + i), 0});
    setup_close(&b);
    begin_with(&b, CONFIG(.max_sessions = 2));
    assert_int_equal(stats_of(b.c.engine).sessions, 5);
    assert_int_equal(make(&b, "", "f", 0, false, &err), ROD_ESESSIONS);
    assert_int_equal(rod_session_delete(b.c.engine, "", "a", &err), 0);
    assert_int_equal(make(&b, "", "f", 0, false, &err), ROD_ESESSIONS);
    setup_close(&b);
}

/* ---- what they take ---- */

enum { MEMORY = 1 << 20 };

/* Empty sessions have no state buffer, and all the same they end within the budget. */
static void sessions_count_in_the_budget_of_memory(void **state) {
    (void)state;
    enum { TRIES = 3000 };
    struct setup b;
    struct answer a;
    struct rod_error err;
    int rc = 0, n = 0;
    setup_open(&b, OPTIONS(.kind = FAKE_HASH), CONFIG(.state_host_bytes = MEMORY)); /* no folder: they replace others */
    for (n = 0; n < TRIES; n++) {
        char id[16];
        snprintf(id, sizeof id, "%d", n);
        made(&b, "", id);
    }
    struct rod_stats stats = stats_of(b.c.engine);
    assert_in_range(stats.session_host_bytes, MEMORY / 8, MEMORY / 2);
    assert_true(stats.session_host_bytes >= stats.sessions * sizeof(struct session));
    assert_int_equal(stats.sessions + stats.sessions_evicted, TRIES);
    struct rod_session_info info;
    assert_int_equal(rod_session_get(b.c.engine, "", "0", &info, NULL), ROD_ENOTFOUND); /* used longest ago */
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    setup_close(&b);
    begin_with(&b, CONFIG(.state_host_bytes = MEMORY)); /* their files are there, so none goes */
    for (n = 0; !rc && n < TRIES; n++) {
        char id[16];
        snprintf(id, sizeof id, "%d", n);
        rc = make(&b, "", id, 0, false, &err);
    }
    assert_int_equal(rc, ROD_ENOROOM);
    assert_non_null(strstr(err.message, "state_host_bytes"));
    stats = stats_of(b.c.engine);
    assert_in_range(stats.session_host_bytes, MEMORY / 8, MEMORY / 2);
    assert_int_equal(stats.sessions, n - 1);
    assert_int_equal(stats.sessions_evicted, 0);
    assert_int_equal(rod_session_delete(b.c.engine, "", "0", &err), 0);
    assert_int_equal(make(&b, "", "new", 0, false, &err), 0);
    setup_close(&b);
}

/* In blocks of the disk, and no file without its inode and its entry in the folder. */
static void small_files_count_as_the_disk_has_them(void **state) {
    (void)state;
    enum { BUDGET = 200000, N = 300 };
    struct setup b;
    begin_with(&b, CONFIG(.state_disk_bytes = BUDGET));
    for (int i = 0; i < N; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i);
        made(&b, "", id);
    }
    const struct rod_stats stats = stats_of(b.c.engine);
    DIR *list = opendir(dir);
    uint64_t n_bytes = 0;
    for (struct dirent *e; (e = readdir(list));) {
        char path[512];
        struct stat info;
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (strstr(e->d_name, ".state") && !stat(path, &info))
            n_bytes += (uint64_t)info.st_blocks * 512 + SESSION_ENTRY_BYTES;
    }
    closedir(list);
    if (n_bytes > BUDGET) fail_msg("%llu bytes of the disk, the budget is %d", (unsigned long long)n_bytes, BUDGET);
    assert_int_equal(stats.state_file_bytes, n_bytes);
    assert_int_equal(stats.sessions + stats.sessions_evicted, N);
    assert_true(stats.sessions > 10);
    setup_close(&b);
}

/* ---- files that are refused ---- */

struct lines {
    atomic_uint refused;
    char last[512];
};
static void take_line(void *arg, int level, const char *line) {
    struct lines *lines = arg;
    (void)level;
    if (!strstr(line, "refused and left alone")) return;
    atomic_fetch_add(&lines->refused, 1);
    snprintf(lines->last, sizeof lines->last, "%s", line);
}

static void thousands_of_files_that_are_refused_cost_one_line(void **state) {
    (void)state;
    enum { FILES = 5000, LISTS = 300 };
    struct setup b;
    struct lines lines = {0};
    struct rod_error err;
    for (int i = 0; i < FILES; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%032x.state", dir, i);
        const int fd = open(path, O_CREAT | O_WRONLY, 0600);
        assert_int_equal(write(fd, "rubbish", 7), 7);
        close(fd);
    }
    uint64_t at_ms = now_ms();
    begin_with(&b, CONFIG(.log = take_line, .log_arg = &lines));
    if (now_ms() - at_ms > 3000) fail_msg("the start took %llu ms", (unsigned long long)(now_ms() - at_ms));
    assert_int_equal(stats_of(b.c.engine).state_refused, FILES);
    assert_int_equal(lines.refused, 1);
    if (!strstr(lines.last, "5000 files")) fail_msg("%s", lines.last);
    made(&b, "", "s");
    at_ms = now_ms();
    for (int i = 0; i < LISTS; i++) {
        struct rod_session_info *infos;
        size_t n;
        bool more;
        if (rod_session_list(b.c.engine, "", NULL, 10, &infos, &n, &more, &err)) fail_msg("%s", err.message);
        assert_int_equal(n, 1);
        free(infos);
    }
    if (now_ms() - at_ms > 1000)
        fail_msg("%d lists took %llu ms, want 1000 at most", LISTS, (unsigned long long)(now_ms() - at_ms));
    assert_int_equal(stats_of(b.c.engine).state_refused, FILES);
    assert_int_equal(lines.refused, 1);
    setup_close(&b);
}

/* ---- what other servers do ---- */

static size_t list_of(struct setup *b) {
    struct rod_session_info *infos;
    struct rod_error err;
    size_t n;
    bool more;
    if (rod_session_list(b->c.engine, "", NULL, 1000, &infos, &n, &more, &err)) fail_msg("%s", err.message);
    free(infos);
    return n;
}

/* At once, though nobody reads the folder for it; and after the folder was another one for a while. */
static void a_list_has_what_another_server_did(void **state) {
    (void)state;
    enum { ROUNDS = 50 };
    struct setup b[2];
    char away[512], id[16];
    struct rod_error err;
    BEGIN(&b[0]);
    BEGIN(&b[1]);
    for (int i = 0; i < ROUNDS; i++) {
        snprintf(id, sizeof id, "%d", i);
        made(&b[i % 2], "", id);
        assert_int_equal(list_of(&b[!(i % 2)]), i + 1);
    }
    for (int i = 0; i < ROUNDS; i++) {
        snprintf(id, sizeof id, "%d", i);
        if (rod_session_delete(b[i % 3 == 0].c.engine, "", id, &err)) fail_msg("%s", err.message);
        assert_int_equal(list_of(&b[i % 3 != 0]), ROUNDS - 1 - i);
    }
    snprintf(away, sizeof away, "%s-away", dir);
    assert_int_equal(rename(dir, away), 0);
    assert_int_equal(rename(away, dir), 0);
    made(&b[0], "", "after");
    for (uint64_t begin_ms = now_ms(); list_of(&b[1]) != 1; usleep(20000))
        if (now_ms() - begin_ms > 10000) fail_msg("after 10 s the list has no session of the other server");
    setup_close(&b[0]), setup_close(&b[1]);
}

/* ---- changing one ---- */

static int change(struct setup *b, const char *tenant, const char *id, struct rod_session_change how,
                  struct rod_session_info *info, struct rod_error *err) {
    return rod_session_change(b->c.engine, tenant, id, &how, info, err);
}

static void pin_and_time_can_be_changed(void **state) {
    (void)state;
    struct setup b, plain;
    struct answer a, want;
    struct rod_session_info info;
    struct rod_error err;
    begin_in_memory(&plain);
    turn_ok(&plain.c, nth_turn(&want, "aa", 0), &want);
    collect_free(&want);
    for (int on_disk = 0; on_disk < 2; on_disk++) {
        struct rod_engine_config config = CONFIG(.state_host_bytes = 64u << 20, .session_ttl_s = 500);
        if (on_disk) config.state_dir = dir;
        setup_open(&b, OPTIONS(.kind = FAKE_HASH), config);
        assert_int_equal(make(&b, "", "aa", 0, true, &err), 0);
        turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
        collect_free(&a);
        assert_int_equal(session_info(b.c.engine, "aa").expires_unix_s, 0);
        const struct rod_session_change unpin = {.has_pin = true}, brief = {.has_ttl = true, .ttl_s = 1000};
        assert_int_equal(change(&b, "", "aa", unpin, &info, &err), 0);
        assert_false(info.pinned);
        assert_int_equal(info.version, 1);
        assert_int_equal(info.expires_unix_s, info.used_unix_s + 500); /* the time that it had */
        assert_int_equal(change(&b, "", "aa", brief, &info, &err), 0);
        assert_int_equal(info.expires_unix_s, info.used_unix_s + 1000);
        assert_false(info.pinned);
        assert_int_equal(change(&b, "", "aa", (struct rod_session_change){0}, &info, &err), 0); /* nothing */
        assert_int_equal(info.expires_unix_s, info.used_unix_s + 1000);
        assert_int_equal(change(&b, "other", "aa", unpin, &info, &err), ROD_ENOTFOUND);
        assert_int_equal(change(&b, "", "nobody", unpin, &info, &err), ROD_ENOTFOUND);
        assert_int_equal(change(&b, "", "a b", unpin, &info, &err), ROD_EINVALID);
        collect_submit(&b.c, turn_request(&a, "busy", (const int32_t[]){1, 2, 3}, 3, 100000));
        while (!a.n_ids) collect_now(&b.c);
        assert_int_equal(change(&b, "", "busy", unpin, &info, &err), ROD_EBUSY);
        rod_cancel(b.c.engine, a.ticket);
        collect_until(&b.c, &a, 1);
        collect_free(&a);
        if (on_disk) { /* and the state with it: the next turn is as if nothing had been */
            setup_close(&b);
            setup_open(&b, OPTIONS(.kind = FAKE_HASH), config);
            info = session_info(b.c.engine, "aa");
            assert_int_equal(info.expires_unix_s, info.used_unix_s + 1000);
            assert_false(info.pinned);
            turn_ok(&b.c, nth_turn(&a, "aa", 1), &a);
            turn_ok(&plain.c, nth_turn(&want, "aa", 1), &want);
            assert_same(&a, &want, "after a change and a restart");
            collect_free(&a), collect_free(&want);
        }
        assert_int_equal(change(&b, "", "aa", (struct rod_session_change){.has_ttl = true, .ttl_s = 1}, &info, &err),
                         0);
        for (uint64_t begin_ms = now_ms(); !rod_session_get(b.c.engine, "", "aa", &info, NULL); usleep(20000))
            if (now_ms() - begin_ms > 10000) fail_msg("after 10 s a session of 1 s is there");
        setup_close(&b);
    }
    setup_close(&plain);
}

/* An answer that is kept for its idempotency key stays with the version. */
static void a_change_keeps_the_answers(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_session_info info;
    struct rod_error err;
    for (int round = 0; round < 2; round++) {
        BEGIN(&b);
        struct rod_request *r = nth_turn(&a, "aa", 0);
        r->turn->idempotency_key = strdup("key");
        turn_ok(&b.c, r, &a);
        assert_int_equal(a.end.replayed, round);
        collect_free(&a);
        if (change(&b, "", "aa", (struct rod_session_change){.has_pin = true, .pin = true}, &info, &err))
            fail_msg("%s", err.message);
        assert_true(info.pinned && info.version == 1);
        setup_close(&b);
    }
}

/* A fork's state lies in its source's file; once it is changed it has a file of its own, and the source goes on. */
static void a_fork_can_be_changed(void **state) {
    (void)state;
    struct setup b, plain;
    struct answer a, want;
    struct rod_session_info info;
    struct rod_error err;
    begin_in_memory(&plain);
    BEGIN(&b);
    for (uint32_t n = 0; n < 2; n++) {
        turn_ok(&plain.c, nth_turn(&want, "aa", n), &want);
        if (!n) collect_free(&want);
    }
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "ab", .from = "aa"}, &info, &err))
        fail_msg("%s", err.message);
    const uint64_t shared = stats_of(b.c.engine).state_file_bytes;
    if (change(&b, "", "ab", (struct rod_session_change){.has_pin = true, .pin = true}, &info, &err))
        fail_msg("%s", err.message);
    assert_true(info.pinned && info.durable && info.version == 1);
    assert_true(stats_of(b.c.engine).state_file_bytes > shared);
    if (rod_session_delete(b.c.engine, "", "aa", &err)) fail_msg("%s", err.message);
    assert_int_equal(count_in(dir, ""), 1);
    setup_close(&b);
    BEGIN(&b);
    assert_true(session_info(b.c.engine, "ab").pinned);
    struct rod_request *r = nth_turn(&a, "aa", 1);
    free(r->turn->session);
    r->turn->session = strdup("ab");
    turn_ok(&b.c, r, &a);
    assert_same(&a, &want, "a fork that was changed");
    collect_free(&a), collect_free(&want);
    setup_close(&b), setup_close(&plain);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(beyond_the_limit_no_session_is_made),
        IN_A_FOLDER(a_tenant_has_a_limit_of_its_own),
        IN_A_FOLDER(a_tenant_without_a_limit_has_a_share),
        IN_A_FOLDER(what_was_not_made_takes_no_place),
        IN_A_FOLDER(many_at_once_make_as_many_as_the_limit),
        IN_A_FOLDER(a_smaller_limit_keeps_what_is_there),
        IN_A_FOLDER(sessions_count_in_the_budget_of_memory),
        IN_A_FOLDER(small_files_count_as_the_disk_has_them),
        IN_A_FOLDER(thousands_of_files_that_are_refused_cost_one_line),
        IN_A_FOLDER(a_list_has_what_another_server_did),
        IN_A_FOLDER(pin_and_time_can_be_changed),
        IN_A_FOLDER(a_change_keeps_the_answers),
        IN_A_FOLDER(a_fork_can_be_changed),
    };
    return cmocka_run_group_tests_name("sessions_many", tests, NULL, NULL);
}
