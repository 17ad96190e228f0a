/* test_sessions_chaos.c - two servers over one folder, one of them lazy, with little room in memory and on disk: turns,
 * cancels and replays, and threads that make, fork, list, look at, export, import and delete the same few sessions,
 * while somebody removes and damages their files. Each error is one of those that have a name; no
 * state is read at a place that is not its own; and in the end nothing runs, and no lease and no half written file is
 * left. */
#include "tests/sessions_folder.h"

enum { N_IDS = 10, N_TURNS = 24, N_CALLERS = 4, N_SERVERS = 2 };
#ifdef __SANITIZE_THREAD__
enum { SECONDS = 8 };
#else
enum { SECONDS = 4 };
#endif

struct chaos {
    struct setup b[N_SERVERS];
    struct answer a[N_TURNS];
    bool busy[N_TURNS];
    int server[N_TURNS];
    uint64_t seed, n_drawn;
    atomic_bool stop;
    atomic_uint n_well, n_refused;
    uint64_t n_turns, n_failed, n_cancelled, n_replayed;
};

struct caller {
    struct chaos *chaos;
    pthread_t thread;
    uint64_t number, n_drawn;
};

static uint32_t draw(uint64_t seed, uint64_t *n_drawn, uint64_t stream, uint32_t n) {
    return (uint32_t)(philox_uniform(seed, (*n_drawn)++, (uint32_t)stream) * (double)n);
}

static const char *id_of(uint32_t i) {
    static const char *const ids[N_IDS] = {"s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9"};
    return ids[i];
}

static void expected(int code, const char *what) {
    static const int known[] = {ROD_ENOTFOUND, ROD_EVERSION, ROD_EBUSY,    ROD_ESTATE,   ROD_ENOROOM,
                                ROD_EIO,       ROD_EEXISTS,  ROD_EINVALID, ROD_ETIMEDOUT};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (code == known[i]) return;
    fprintf(stderr, "%s: %s\n", what, rod_code_name(code));
    abort(); /* a thread of its own cannot fail a test */
}

/* ---- callers ---- */

static void call(struct caller *c) {
#define DRAW(n) draw(c->chaos->seed, &c->n_drawn, 20 + c->number, n)
    struct rod_engine *e = c->chaos->b[DRAW(N_SERVERS)].c.engine;
    const char *id = id_of(DRAW(N_IDS)), *other = id_of(DRAW(N_IDS));
    struct rod_session_info info, *infos;
    struct rod_error err = {0};
    void *bytes;
    size_t n;
    bool more;
    int rc = 0;
    const uint32_t what = DRAW(12);
    if (what < 2) {
        const struct rod_session_new made = {
            .id = DRAW(4) ? id : NULL, .pin = DRAW(6) == 0, .has_ttl = DRAW(3) == 0, .ttl_s = 1};
        rc = rod_session_create(e, "", &made, &info, &err);
        if (!rc && !made.id) rc = rod_session_delete(e, "", info.id, &err);
    } else if (what < 5) {
        rc = rod_session_create(e, "", &(struct rod_session_new){.id = id, .from = other}, &info, &err);
    } else if (what < 7) {
        rc = rod_session_get(e, "", id, &info, &err);
    } else if (what < 8) {
        if (!(rc = rod_session_list(e, "", NULL, 3 + DRAW(10), &infos, &n, &more, &err))) free(infos);
    } else if (what < 10) {
        rc = rod_session_delete(e, "", id, &err);
    } else if (!(rc = rod_session_export(e, "", other, &bytes, &n, &err))) {
        rc = rod_session_import(c->chaos->b[DRAW(N_SERVERS)].c.engine, "", id, bytes, n, &info, &err);
        free(bytes);
    }
    if (rc) expected(rc, err.message);
    atomic_fetch_add(rc ? &c->chaos->n_refused : &c->chaos->n_well, 1);
}

static void *caller_thread(void *arg) {
    struct caller *c = arg;
    while (!atomic_load(&c->chaos->stop)) {
        call(c);
        if (DRAW(3) == 0) usleep(DRAW(3000));
    }
    return NULL;
}

/* A file goes, or one of its bytes changes. */
static void *vandal_thread(void *arg) {
    struct caller *c = arg;
    while (!atomic_load(&c->chaos->stop)) {
        usleep(2000 + DRAW(30000));
        char path[600] = "";
        DIR *list = opendir(dir);
        uint32_t n = DRAW(N_IDS);
        for (struct dirent *e; list && (e = readdir(list));)
            if (strstr(e->d_name, ".state") && !strstr(e->d_name, ".state.") && !n--)
                snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        if (list) closedir(list);
        if (!*path) continue;
        if (DRAW(2)) {
            unlink(path);
            continue;
        }
        FILE *f = fopen(path, "r+");
        if (!f) continue;
        fseek(f, (long)DRAW(20000), SEEK_SET);
        fputc((int)DRAW(256), f);
        fclose(f);
        if (DRAW(3)) unlink(path); /* else its session is refused from now on */
    }
    return NULL;
}
#undef DRAW

/* ---- turns ---- */

static void begin_turn(struct chaos *c, uint32_t i) {
#define DRAW(n) draw(c->seed, &c->n_drawn, 1, n)
    int32_t ids[20];
    const uint32_t n = DRAW(6) ? 1 + DRAW(20) : 0, key = DRAW(6);
    for (uint32_t k = 0; k < n; k++) ids[k] = 100 + (int32_t)DRAW(3000);
    struct rod_request *r = turn_request(&c->a[i], id_of(DRAW(N_IDS)), ids, n, 1 + DRAW(12));
    r->ignore_eos = DRAW(2);
    r->turn->create = DRAW(4) != 0;
    if (r->turn->create && DRAW(4) == 0) r->turn->from = strdup(id_of(DRAW(N_IDS)));
    if (DRAW(5) == 0) r->turn->has_expected = true, r->turn->expected_version = DRAW(8);
    if (key < 2) {
        r->turn->idempotency_key = strdup(key ? "k1" : "k0");
        memset(r->turn->digest, (int)DRAW(2), sizeof r->turn->digest);
    }
    if (DRAW(6) == 0) r->queue_timeout_ns = 1 + DRAW(30000000);
    c->server[i] = (int)DRAW(N_SERVERS);
    c->busy[i] = true;
    collect_submit(&c->b[c->server[i]].c, r);
}

static void end_turn(struct chaos *c, uint32_t i) {
    struct answer *a = &c->a[i];
    c->n_turns++;
    if (a->failed) {
        expected(a->end.error.code, a->end.error.message);
        c->n_failed++;
    }
    c->n_cancelled += !a->failed && a->end.reason == ROD_FINISH_CANCEL;
    c->n_replayed += !a->failed && a->end.replayed;
    collect_free(a);
    c->busy[i] = false;
}

static bool tick(struct chaos *c, bool begins) {
    bool any = false;
    for (uint32_t i = 0; i < N_TURNS; i++) {
        if (c->busy[i] && c->a[i].ended) end_turn(c, i);
        if (!c->busy[i] && begins && DRAW(3)) begin_turn(c, i);
        if (c->busy[i] && DRAW(100) == 0) rod_cancel(c->b[c->server[i]].c.engine, c->a[i].ticket);
        any |= c->busy[i];
    }
    collect_wait(&c->b[0].c, 1);
    for (int k = 0; k < N_SERVERS; k++) collect_now(&c->b[k].c);
    return any;
}

static void open_server(struct chaos *c, int k) {
    const size_t state = state_pool_bytes(1, sizeof(struct fake_state));
    const struct rod_engine_config config = CONFIG(.session_lazy = k == 0, .state_host_bytes = (4 + DRAW(8)) * state,
                                                   .state_disk_bytes = DRAW(2) ? (4 + DRAW(6)) * (state + 8192) : 0,
                                                   .session_ttl_s = DRAW(2) ? 2 : 0, .session_reject = DRAW(3) == 0);
    begin_with(&c->b[k], config);
}

static void assert_all_bases_are_of_sessions(void) {
    DIR *list = opendir(dir);
    for (struct dirent *e; (e = readdir(list));) {
        char path[600];
        const char *end = strstr(e->d_name, ".base");
        if (!end) continue;
        snprintf(path, sizeof path, "%s/%.*s.state", dir, (int)(end - e->d_name), e->d_name);
        if (access(path, F_OK)) fail_msg("%s is left, and no fork needs it", e->d_name);
    }
    closedir(list);
}

static void whatever_happens_to_sessions_and_files_servers_go_on_and_leave_nothing(void **state) {
    (void)state;
    const char *given = getenv("RODIMUS_TEST_SEED");
    struct chaos *c = calloc(1, sizeof *c);
    c->seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    struct caller callers[N_CALLERS + 1];
    for (int k = 0; k < N_SERVERS; k++) open_server(c, k);
    for (uint64_t i = 0; i <= N_CALLERS; i++) {
        callers[i] = (struct caller){.chaos = c, .number = i};
        assert_int_equal(
            pthread_create(&callers[i].thread, NULL, i < N_CALLERS ? caller_thread : vandal_thread, &callers[i]), 0);
    }
    const uint64_t begin_ns = clock_now_ns(), until_ns = begin_ns + (uint64_t)SECONDS * 1000000000u;
    while (clock_now_ns() < until_ns) tick(c, true);
    for (uint64_t n = 0; tick(c, false); n++)
        if (clock_now_ns() > until_ns + 60000000000u) fail_msg("seed %llu: turns hang", (unsigned long long)c->seed);
    atomic_store(&c->stop, true);
    for (uint32_t i = 0; i <= N_CALLERS; i++) pthread_join(callers[i].thread, NULL);
    const size_t bytes = state_pool_bytes(1, sizeof(struct fake_state));
    for (int k = 0; k < N_SERVERS; k++) {
        struct rod_stats s;
        for (int ms = 0;; ms++, usleep(1000)) { /* what is being written has a reference */
            s = stats_of(c->b[k].c.engine);
            if (s.state_host_bytes <= s.sessions_host * bytes && !s.slots_used && !s.queued) break;
            if (ms > 10000)
                fail_msg("seed %llu: %u slots in use, %u in the queue; %llu bytes of states in memory, %llu sessions",
                         (unsigned long long)c->seed, s.slots_used, s.queued, (unsigned long long)s.state_host_bytes,
                         (unsigned long long)s.sessions_host);
        }
    }
    printf("note: seed %llu: %llu turns, %llu failed, %llu cancelled, %llu replayed; %u calls, %u refused\n",
           (unsigned long long)c->seed, (unsigned long long)c->n_turns, (unsigned long long)c->n_failed,
           (unsigned long long)c->n_cancelled, (unsigned long long)c->n_replayed,
           atomic_load(&c->n_well) + atomic_load(&c->n_refused), atomic_load(&c->n_refused));
    assert_true(c->n_turns > c->n_failed && atomic_load(&c->n_well) > 0);
    for (int k = 0; k < N_SERVERS; k++) setup_close(&c->b[k]);
    assert_int_equal(count_in(dir, ".lease"), 0);
    open_server(c, 0); /* of a fork whose record was removed by hand the state goes now */
    setup_close(&c->b[0]);
    assert_int_equal(count_in(dir, ""), count_in(dir, ".state") + count_in(dir, ".base"));
    assert_all_bases_are_of_sessions();
    free(c);
}
#undef DRAW

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(whatever_happens_to_sessions_and_files_servers_go_on_and_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
