/* test_sessions_kill.c - servers killed with kill -9 at random moments, again and again on one folder: no turn whose
 * end was reported is lost, none is reported twice, no file is half or in the way, and each conversation is the one
 * that nothing disturbed.
 *
 * RODIMUS_TEST_KILLS: how often (20); RODIMUS_TEST_SEED: when (printed). The servers are this program, started anew as
 * `test_sessions_kill serve DIR KIND`: it takes up each session where its file left it, runs one turn after the other
 * in all of them at once, and says what it has, and what has ended, to its standard output. */
#include "tests/sessions_setup.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

enum { SESSIONS = 6, MAX_TURNS = 100000 };

static struct rod_request *nth_turn(struct answer *a, int session, uint32_t n) {
    int32_t ids[16];
    const size_t n_ids = 1 + (n * 7 + (uint32_t)session) % 9;
    for (size_t i = 0; i < n_ids; i++) ids[i] = 100 + (int32_t)((uint32_t)session * 31 + n * 13 + i * 3) % 900;
    const char id[] = {'s', (char)('0' + session), 0};
    struct rod_request *r = turn_request(a, id, ids, n_ids, 2 + n % 3);
    r->sampling.temperature = 0.8f;
    r->sampling.seed = n + 1;
    r->sampling.presence_penalty = 0.5f;
    return r;
}

static uint64_t hash_of(const struct answer *a) { return state_file_hash_tokens(0, a->ids, a->n_ids); }

static void open_engine(struct collector *c, struct backend **be, const char *dir, const char *kind) {
    struct rod_error err;
    struct rod_engine_config config = {
        .n_slots = 4,
        .n_threads = 1,
        .device = "cpu",
        .max_queue = 100,
        .state_dir = dir,
        .session_lazy = !strcmp(kind, "lazy"),
        .session_keep_turns = dir && !strcmp(kind, "keep") ? 3 : 0,
        /* too little for all of them: some are written, whatever the durability */
        .state_host_bytes = strcmp(kind, "demo") ? state_pool_bytes(4, sizeof(struct fake_state)) : 256u << 20};
    collect_init(c, &config);
    if (!strcmp(kind, "demo")) {
        config.model_dir = "config/models/tales";
        if (rod_engine_open(&config, &c->engine, &err)) fail_msg("%s", err.message);
        return;
    }
    *be = fake_open(&fake_ops, FAKE_HASH, V, 4, 64, 8);
    struct engine_parts parts = {.ops = &fake_ops, .backend = *be, .V = V};
    if (engine_open_parts(&config, &parts, &c->engine, &err)) fail_msg("%s", err.message);
}

/* ---- the server ---- */

static void tell(const char *what, int session, uint64_t version, uint64_t hash) {
    char line[96]; /* one write: whole lines, whatever happens */
    const int n = snprintf(line, sizeof line, "%s %d %llu %llx\n", what, session, (unsigned long long)version,
                           (unsigned long long)hash);
    if (write(1, line, (size_t)n) != n) _exit(3);
}

static _Noreturn void serve(const char *dir, const char *kind) {
    struct collector c;
    struct backend *be;
    struct answer a[SESSIONS];
    uint64_t version[SESSIONS] = {0};
    open_engine(&c, &be, dir, kind);
    if (stats_of(c.engine).state_refused) tell("refused", 0, stats_of(c.engine).state_refused, 0);
    for (int i = 0; i < SESSIONS; i++) {
        struct rod_session_info info;
        const char id[] = {'s', (char)('0' + i), 0};
        const int rc = rod_session_get(c.engine, "", id, &info, NULL);
        if (!rc) version[i] = info.version;
        if (rc && rc != ROD_ENOTFOUND) tell("error", i, (uint64_t)-rc, 0);
        tell("has", i, version[i], 0);
        collect_submit(&c, nth_turn(&a[i], i, (uint32_t)version[i]));
    }
    for (;;) {
        collect_now(&c);
        for (int i = 0; i < SESSIONS; i++) {
            if (!a[i].ended) continue;
            if (a[i].failed || a[i].end.session_version != version[i] + 1)
                tell("error", i, a[i].end.session_version, a[i].failed);
            version[i] = a[i].end.session_version;
            tell("done", i, version[i], hash_of(&a[i]));
            collect_free(&a[i]);
            collect_submit(&c, nth_turn(&a[i], i, (uint32_t)version[i]));
        }
        collect_wait(&c, 1000);
    }
}

/* ---- who kills it ---- */

static pid_t start(const char *dir, const char *kind, FILE **out) {
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        dup2(ends[1], 1);
        execl("/proc/self/exe", "test_sessions_kill", "serve", dir, kind, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    *out = fdopen(ends[0], "r");
    return child;
}

static uint32_t from_environment(const char *name, uint32_t otherwise) {
    const char *text = getenv(name);
    return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

/* What the servers have reported of a session: the hash of each version, 0 where its end was not reported. A lazy one
 * may fall back to a version before, and gives the same answers from there. */
struct report {
    uint64_t version, *hash, n_lost;
    bool lazy;
};

/* One line of a server; false: it says no more. */
static bool listen_to(FILE *out, struct report *reported, uint32_t kill_number) {
    char what[16];
    int session;
    unsigned long long version, hash;
    if (fscanf(out, "%15s %d %llu %llx", what, &session, &version, &hash) != 4) return false;
    if (session < 0 || session >= SESSIONS || version >= MAX_TURNS)
        fail_msg("kill %u: %s %d", kill_number, what, session);
    struct report *t = &reported[session];
    if (!strcmp(what, "has")) {
        if (t->lazy && version < t->version)
            t->n_lost += t->version - version;
        else if (version != t->version && version != t->version + 1)
            fail_msg("kill %u: session %d was reported to be at version %llu and is at %llu", kill_number, session,
                     (unsigned long long)t->version, version);
        t->version = version;
    } else if (!strcmp(what, "done")) {
        assert_int_equal(version, t->version + 1);
        t->version = version;
        if (t->hash[version] && t->hash[version] != (hash | 1))
            fail_msg("kill %u: version %llu of session %d is another now", kill_number, version, session);
        t->hash[version] = hash | 1;
    } else {
        fail_msg("kill %u: session %d: %s %llu %llx", kill_number, session, what, version, hash);
    }
    return true;
}

static bool all_began(const struct report *reported) {
    for (int i = 0; i < SESSIONS; i++)
        if (!reported[i].version) return false;
    return true;
}

/* All turns without a break, in memory alone. */
static uint64_t compare(const struct report *reported, const char *kind) {
    struct collector c;
    struct backend *be;
    struct answer a;
    uint64_t n_compared = 0;
    open_engine(&c, &be, NULL, kind);
    for (int i = 0; i < SESSIONS; i++)
        for (uint32_t n = 0; n < reported[i].version; n++) {
            turn_ok(&c, nth_turn(&a, i, n), &a);
            const uint64_t want = reported[i].hash[n + 1], got = hash_of(&a) | 1;
            if (want && want != got)
                fail_msg("session %d, version %u: %llx was reported, undisturbed it is %llx", i, n + 1,
                         (unsigned long long)want, (unsigned long long)got);
            n_compared += want != 0;
            collect_free(&a);
        }
    collect_close(&c);
    return n_compared;
}

/* Each place that is listed has its file, and is the version of that number: its next turn is what it was. */
static void go_back_everywhere(struct collector *c, const struct report *reported, const char *dir) {
    uint32_t n_kept = 0;
    for (int i = 0; i < SESSIONS; i++) n_kept += session_info(c->engine, (char[]){'s', (char)('0' + i), 0}).n_kept;
    assert_int_equal(stats_of(c->engine).kept_turns, n_kept);
    assert_int_equal(count_in(dir, ".kept"), n_kept);
    assert_int_equal(count_in(dir, ""), SESSIONS + n_kept);
    for (int i = 0; i < SESSIONS; i++) {
        const char id[] = {'s', (char)('0' + i), 0};
        struct rod_session_info info = session_info(c->engine, id);
        struct rod_error err;
        struct answer a;
        while (info.n_kept) {
            const uint64_t version = info.kept[info.n_kept - 1].version;
            const struct rod_session_rewind to = {.version = version};
            if (rod_session_rewind(c->engine, "", id, &to, &info, &err)) fail_msg("%s: %s", id, err.message);
            struct rod_request *r = nth_turn(&a, i, (uint32_t)version);
            r->turn->beside = true;
            r->turn->create = false;
            turn_ok(c, r, &a);
            const uint64_t want = reported[i].hash[version + 1], got = hash_of(&a) | 1;
            if (want && want != got)
                fail_msg("%s went back to version %llu, and is at another place", id, (unsigned long long)version);
            collect_free(&a);
        }
    }
}

static void killed_again_and_again(const char *kind, uint32_t n_kills, uint32_t most_ms) {
    unsigned seed = from_environment("RODIMUS_TEST_SEED", (unsigned)getpid());
    const unsigned first_seed = seed;
    char *dir = make_dir();
    struct report reported[SESSIONS];
    const bool lazy = !strcmp(kind, "lazy");
    for (int i = 0; i < SESSIONS; i++)
        reported[i] = (struct report){.hash = calloc(MAX_TURNS, sizeof(uint64_t)), .lazy = lazy};
    uint32_t n_leftovers = 0;
    print_message("note: seed %u\n", first_seed);
    for (uint32_t k = 0; k <= n_kills; k++) {
        FILE *out;
        int status;
        const pid_t child = start(dir, kind, &out);
        const uint32_t ms = (uint32_t)rand_r(&seed) % most_ms;
        if (rand_r(&seed) % 4)
            poll(&(struct pollfd){.fd = fileno(out), .events = POLLIN}, 1, -1); /* else while it starts */
        usleep(ms * 1000 + (uint32_t)rand_r(&seed) % 1000);
        while (k == n_kills && !all_began(reported) && listen_to(out, reported, k)) {}
        assert_int_equal(kill(child, SIGKILL), 0);
        while (listen_to(out, reported, k)) {}
        fclose(out);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) fail_msg("the server ended by itself: %x", status);
        n_leftovers += count_in(dir, "") - count_in(dir, ".state");
    }
    uint64_t n_turns = 0, n_lost = 0;
    for (int i = 0; i < SESSIONS; i++) n_turns += reported[i].version, n_lost += reported[i].n_lost;
    if (!lazy) assert_int_equal(count_in(dir, ".state"), SESSIONS);
    const uint32_t n_files = count_in(dir, ".state");
    const uint64_t n_compared = compare(reported, kind);
    struct collector c; /* the last one leaves nothing but the sessions */
    struct backend *be;
    open_engine(&c, &be, dir, kind);
    assert_int_equal(stats_of(c.engine).sessions, n_files);
    assert_int_equal(stats_of(c.engine).state_refused, 0);
    if (!strcmp(kind, "keep")) go_back_everywhere(&c, reported, dir);
    collect_close(&c);
    assert_int_equal(count_in(dir, ""), n_files);
    assert_true(lazy || !n_lost);
    printf("note: %s, seed %u: %u kills, %llu turns kept, %llu compared, %llu fell back, %u leftovers swept\n", kind,
           first_seed, n_kills, (unsigned long long)n_turns, (unsigned long long)n_compared, (unsigned long long)n_lost,
           n_leftovers);
    assert_true(n_turns >= SESSIONS && (n_compared > n_turns / 2 || n_turns < 100));
    for (int i = 0; i < SESSIONS; i++) free(reported[i].hash);
    remove_dir(dir);
}

static void a_killed_server_loses_no_turn(void **state) {
    (void)state;
    killed_again_and_again("fake", from_environment("RODIMUS_TEST_KILLS", 20), 120);
}

static void a_lazy_one_falls_back_to_what_it_wrote(void **state) {
    (void)state;
    killed_again_and_again("lazy", from_environment("RODIMUS_TEST_KILLS", 20) / 2, 200);
}

static void nor_one_that_keeps_turns_and_the_kept_ones_are_whole(void **state) {
    (void)state;
    killed_again_and_again("keep", from_environment("RODIMUS_TEST_KILLS", 20), 120);
}

static void nor_does_one_with_a_model(void **state) {
    (void)state;
    killed_again_and_again("demo", from_environment("RODIMUS_TEST_KILLS", 20) / 4, 700);
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "serve")) serve(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_server_loses_no_turn),
        cmocka_unit_test(a_lazy_one_falls_back_to_what_it_wrote),
        cmocka_unit_test(nor_one_that_keeps_turns_and_the_kept_ones_are_whole),
        cmocka_unit_test(nor_does_one_with_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
