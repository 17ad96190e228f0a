/* test_sessions_files.c - sessions in a folder: restarts, damaged files, full disks, budgets, time, servers that share
 * it. Over the fake device; tests/backend/test_sessions.c has the laws on a real one. */
#include "tests/sessions_bench.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "engine/session_store.h"

static char *dir;
static const int32_t first[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, more[] = {20, 21, 22};

static void begin_with(struct bench *b, struct rod_engine_config config) {
    config.state_dir = dir;
    if (!config.state_host_bytes) config.state_host_bytes = 64u << 20;
    bench_open(b, OPTIONS(.kind = FAKE_HASH), config);
}
#define BEGIN(b) begin_with(b, CONFIG())

static void begin_in_memory(struct bench *b) {
    bench_open(b, OPTIONS(.kind = FAKE_HASH), CONFIG(.state_host_bytes = 64u << 20));
}

/* Turn number n of a conversation that is another one for each id: with penalties, seeds and log-probabilities. */
static struct rod_request *nth_turn(struct answer *a, const char *id, uint32_t n) {
    int32_t ids[16];
    const size_t n_ids = n % 3 == 2 ? 0 : 1 + (size_t)(n * 7 + (unsigned char)id[0]) % 15;
    for (size_t i = 0; i < n_ids; i++) ids[i] = 100 + (id[0] * 31 + id[1] * 7 + (int32_t)(n * 13 + i * 3)) % 1000;
    struct rod_request *r = turn_request(a, id, ids, n_ids, 3 + n % 5);
    r->sampling.temperature = 1;
    r->sampling.seed = 7 + n;
    r->sampling.frequency_penalty = n % 2 ? 1.5f : 0;
    r->sampling.repetition_penalty = n % 4 == 3 ? 1.3f : 1;
    r->n_logprobs = 1;
    return r;
}

static void assert_same(const struct answer *a, const struct answer *want, const char *what) {
    if (want->failed) fail_msg("%s: the undisturbed turn failed: %s", what, want->end.error.message);
    collect_assert_ids(a, want->ids, want->n_ids, what);
    assert_memory_equal(a->logprobs, want->logprobs, want->n_ids * sizeof *want->logprobs);
    assert_int_equal(a->end.session_version, want->end.session_version);
    assert_int_equal(a->end.prompt_tok, want->end.prompt_tok);
    assert_int_equal(a->end.cached_tok, want->end.cached_tok);
}

/* ---- restarts ---- */

static void a_restart_changes_no_token(void **state) {
    (void)state;
    struct bench b, plain;
    struct answer a, want;
    begin_in_memory(&plain);
    for (uint32_t n = 0; n < 9; n++) {
        BEGIN(&b);
        assert_int_equal(stats_of(b.c.engine).sessions, n ? 1 : 0);
        turn_ok(&b.c, nth_turn(&a, "se", n), &a);
        turn_ok(&plain.c, nth_turn(&want, "se", n), &want);
        assert_same(&a, &want, "after a restart");
        const struct rod_stats stats = stats_of(b.c.engine);
        assert_int_equal(stats.state_loads, n ? 1 : 0);
        assert_int_equal(stats.state_saves, 1);
        assert_int_equal(stats.prefill_tok, a.end.prompt_tok - a.end.cached_tok); /* nothing was read again */
        assert_true(n == 0 || a.end.cached_tok > 0);
        collect_free(&a), collect_free(&want);
        bench_close(&b);
        assert_int_equal(count_in(dir, ""), 1);
    }
    bench_close(&plain);
}

/* The device that computes nothing has a state of no bytes; it goes through a file as any other. */
static void a_state_of_no_bytes_goes_through_a_file(void **state) {
    (void)state;
    for (uint64_t n = 0; n < 3; n++) {
        struct rod_error err;
        struct collector c;
        struct answer a;
        struct rod_engine_config config = {
            .model_dir = "config/models/tales", .device = "null", .n_slots = 2, .max_queue = 10, .state_dir = dir};
        void *bytes;
        size_t n_bytes;
        collect_init(&c, &config);
        if (rod_engine_open(&config, &c.engine, &err)) fail_msg("%s", err.message);
        turn_ok(&c, turn_request(&a, "aa", first, 11, 5), &a);
        assert_int_equal(a.end.session_version, n + 1);
        assert_int_equal(a.end.prompt_tok, n * 16 + 11);
        assert_int_equal(a.end.cached_tok, n ? n * 16 - 1 : 0);
        collect_free(&a);
        if (rod_session_export(c.engine, "", "aa", &bytes, &n_bytes, &err)) fail_msg("%s", err.message);
        if (rod_session_import(c.engine, "", "bb", bytes, n_bytes, &(struct rod_session_info){0}, &err))
            fail_msg("%s", err.message);
        free(bytes);
        turn_ok(&c, turn_request(&a, "bb", more, 3, 5), &a);
        assert_int_equal(a.end.session_version, n + 2);
        collect_free(&a);
        collect_close(&c);
    }
}

static struct rod_request *keyed(struct answer *a, const char *key, uint8_t digest, uint32_t n) {
    struct rod_request *r = nth_turn(a, "key", n);
    r->turn->idempotency_key = strdup(key);
    r->turn->digest[15] = digest;
    return r;
}

static void an_answer_survives_a_restart(void **state) {
    (void)state;
    struct bench b;
    struct answer a[3], z;
    char key[] = "k0";
    BEGIN(&b);
    for (uint32_t n = 0; n < 3; n++, key[1]++) turn_ok(&b.c, keyed(&a[n], key, (uint8_t)n, n), &a[n]);
    bench_close(&b);
    BEGIN(&b);
    key[1] = '0';
    for (uint32_t n = 0; n < 3; n++, key[1]++) {
        turn_ok(&b.c, keyed(&z, key, (uint8_t)n, n), &z);
        assert_true(z.end.replayed);
        assert_same(&z, &a[n], "an answer of before");
        assert_string_equal(z.text, a[n].text);
        collect_free(&z), collect_free(&a[n]);
    }
    key[1] = '0';
    turn_fails(&b.c, keyed(&z, key, 9, 0), &z, ROD_EINVALID);
    assert_int_equal(stats_of(b.c.engine).steps, 0);
    assert_int_equal(session_info(b.c.engine, "key").version, 3);
    bench_close(&b);
}

/* ---- files that are not as they were written ---- */

static char *path_of(const char *id, char path[512]) {
    uint8_t name[SESSION_NAME_BYTES];
    char text[SESSION_FILE_NAME_BYTES];
    session_name("", id, name);
    for (int i = 0; i < SESSION_NAME_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", name[i]);
    snprintf(path, 512, "%s/%.32s.state", dir, text);
    return path;
}

static void flip(const char *path, off_t at, unsigned char bits) {
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    if (at < 0) at += lseek(fd, 0, SEEK_END);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= bits;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static void a_damaged_file_is_refused_and_the_rest_goes_on(void **state) {
    (void)state;
    struct bench b, plain;
    struct answer a, want;
    struct rod_session_info info;
    struct rod_error err;
    char path[512];
    static const char *const ids[] = {"aa", "bb", "cc", "dd"};
    begin_in_memory(&plain);
    BEGIN(&b);
    for (int i = 0; i < 4; i++) {
        turn_ok(&b.c, nth_turn(&a, ids[i], 0), &a);
        turn_ok(&plain.c, nth_turn(&want, ids[i], 0), &want);
        collect_free(&a), collect_free(&want);
    }
    bench_close(&b);
    flip(path_of("aa", path), 49, 4);  /* the header */
    flip(path_of("bb", path), -3, 64); /* the payload: seen when it is read */
    assert_int_equal(truncate(path_of("cc", path), 5000), 0);
    BEGIN(&b);
    struct rod_stats stats = stats_of(b.c.engine);
    assert_int_equal(stats.state_refused, 2);
    assert_int_equal(stats.sessions, 2);
    for (int i = 0; i < 3; i++) {
        turn_fails(&b.c, nth_turn(&a, ids[i], 1), &a, ROD_ESTATE); /* not a new session of this name */
        turn_fails(&b.c, nth_turn(&a, ids[i], 1), &a, ROD_ESTATE);
        struct rod_session_new made = {.id = ids[i]};
        assert_int_equal(rod_session_create(b.c.engine, "", &made, &info, &err), i == 1 ? ROD_EEXISTS : ROD_ESTATE);
    }
    assert_int_equal(stats_of(b.c.engine).state_refused, 3); /* each is told once */
    turn_ok(&b.c, nth_turn(&a, "dd", 1), &a);
    turn_ok(&plain.c, nth_turn(&want, "dd", 1), &want);
    assert_same(&a, &want, "beside damaged files");
    collect_free(&a), collect_free(&want);
    assert_int_equal(count_in(dir, ".state"), 4); /* left alone */
    flip(path_of("bb", path), -3, 64);            /* somebody brings the right one back */
    turn_ok(&b.c, nth_turn(&a, "bb", 1), &a);
    turn_ok(&plain.c, nth_turn(&want, "bb", 1), &want);
    assert_same(&a, &want, "a file that came back");
    collect_free(&a), collect_free(&want);
    bench_close(&b), bench_close(&plain);
}

static size_t fake_bytes(const void *arg, uint64_t n_tok) {
    (void)arg, (void)n_tok;
    return sizeof(struct fake_state);
}

/* Each bit's byte in turn, and each length: the read that a turn begins with never takes it for the session. */
static void every_byte_that_changes_is_refused(void **state) {
    (void)state;
    struct bench b;
    struct answer a;
    struct rod_error err;
    struct session_read read;
    char path[512];
    BEGIN(&b);
    struct rod_request *r = nth_turn(&a, "aa", 0);
    r->turn->idempotency_key = strdup("key");
    turn_ok(&b.c, r, &a);
    collect_free(&a);
    bench_close(&b);
    const struct session_form form = {.layout = "fake", .V = V, .state_bytes = fake_bytes};
    struct session_store store = {.form = &form};
    snprintf(store.dir, sizeof store.dir, "%s", dir);
    uint8_t name[SESSION_NAME_BYTES];
    session_name("", "aa", name);
    path_of("aa", path);
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    const int fd = open(path, O_RDWR);
    unsigned char *good = malloc((size_t)info.st_size);
    assert_int_equal(pread(fd, good, (size_t)info.st_size, 0), info.st_size);
    for (off_t at = 0; at < info.st_size; at++) {
        const unsigned char changed = good[at] ^ (unsigned char)(1u << (at % 8));
        assert_int_equal(pwrite(fd, &changed, 1, at), 1);
        const int rc = session_store_read(&store, name, true, &read, &err);
        if (rc != ROD_ESTATE) fail_msg("byte %lld changed: %s", (long long)at, rod_code_name(rc));
        assert_int_equal(pwrite(fd, &good[at], 1, at), 1);
    }
    for (off_t n = info.st_size - 1; n >= 0; n -= n > 600 ? 97 : 1) {
        assert_int_equal(ftruncate(fd, n), 0);
        assert_int_equal(session_store_read(&store, name, true, &read, &err), ROD_ESTATE);
    }
    assert_int_equal(pwrite(fd, good, (size_t)info.st_size, 0), info.st_size);
    assert_int_equal(session_store_read(&store, name, true, &read, &err), 0);
    assert_int_equal(read.facts.version, 1);
    session_read_fini(&read);
    assert_int_equal(pwrite(fd, "x", 1, info.st_size), 1); /* longer */
    assert_int_equal(session_store_read(&store, name, true, &read, &err), ROD_ESTATE);
    close(fd);
    free(good);
}

/* Under another session's name, of another model, in another layout. */
static void a_foreign_file_is_refused(void **state) {
    (void)state;
    struct bench b;
    struct answer a;
    struct rod_error err;
    char from[512], to[512];
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    bench_close(&b);
    path_of("aa", from), path_of("bb", to);
    assert_int_equal(rename(from, to), 0);
    BEGIN(&b);
    assert_int_equal(stats_of(b.c.engine).state_refused, 1);
    turn_fails(&b.c, nth_turn(&a, "bb", 1), &a, ROD_ESTATE);
    bench_close(&b);
    assert_int_equal(rename(to, from), 0);
    for (int kind = 0; kind < 2; kind++) {
        struct rod_engine_config config = CONFIG(.state_dir = dir, .state_host_bytes = 1u << 26);
        struct backend *be = fake_open(&fake_ops, FAKE_HASH, V, 2, 64, 8);
        struct engine_parts parts = {.ops = &fake_ops, .backend = be, .V = V, .fingerprint = {kind == 0}};
        if (kind == 1) snprintf(be->info.state_id, sizeof be->info.state_id, "another layout");
        struct collector c;
        collect_init(&c, &config);
        if (engine_open_parts(&config, &parts, &c.engine, &err)) fail_msg("%s", err.message);
        assert_int_equal(stats_of(c.engine).state_refused, 1);
        turn_fails(&c, nth_turn(&a, "aa", 1), &a, ROD_ESTATE);
        collect_close(&c);
    }
}

static void what_a_crash_left_is_swept(void **state) {
    (void)state;
    struct bench b;
    struct answer a;
    char path[512];
    static const char *const left[] = {"00112233445566778899aabbccddeeff.state.tmp-abcdef",
                                       "00112233445566778899aabbccddeeff.lease", "readme.txt"};
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, left[i]);
        close(open(path, O_CREAT | O_WRONLY, 0600));
    }
    BEGIN(&b);
    assert_int_equal(count_in(dir, ""), 1); /* what is nobody's stays */
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    assert_int_equal(count_in(dir, ""), 2);
    bench_close(&b);
}

/* ---- disks that do not take a file ---- */

static void a_full_disk_fails_that_turn_alone(void **state) {
    (void)state;
    struct bench b, plain;
    struct answer a, want;
    struct rlimit before, little;
    begin_in_memory(&plain);
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    turn_ok(&plain.c, nth_turn(&want, "aa", 0), &want);
    collect_free(&a), collect_free(&want);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little = before;
    little.rlim_cur = 5000;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    struct rod_request *r = nth_turn(&a, "aa", 1);
    r->turn->idempotency_key = strdup("key");
    turn_run(&b.c, r, &a);
    struct rod_session_info info;
    struct rod_error err;
    const int made = rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "empty"}, &info, &err);
    struct answer plain_answer; /* service goes on */
    struct rod_request *one = collect_request(first, 11, &plain_answer);
    one->max_tokens = 3;
    one->ignore_eos = true;
    finish(&b, one, &plain_answer);
    collect_free(&plain_answer);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(made, 0); /* small enough */
    assert_true(a.failed);
    assert_int_equal(a.end.error.code, ROD_EIO);
    assert_non_null(strstr(a.end.error.message, strerror(EFBIG)));
    collect_free(&a);
    assert_int_equal(session_info(b.c.engine, "aa").version, 1);
    assert_int_equal(stats_of(b.c.engine).state_save_failures, 1);
    assert_int_equal(count_in(dir, ""), 2);
    r = nth_turn(&a, "aa", 1);
    r->turn->idempotency_key = strdup("key"); /* what failed was not kept */
    turn_ok(&b.c, r, &a);
    turn_ok(&plain.c, nth_turn(&want, "aa", 1), &want);
    assert_same(&a, &want, "after a full disk");
    collect_free(&a), collect_free(&want);
    bench_close(&b), bench_close(&plain);
}

static void a_folder_that_is_gone_fails_turns_and_nothing_else(void **state) {
    (void)state;
    struct bench b;
    struct answer a;
    char away[512];
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    snprintf(away, sizeof away, "%s-away", dir);
    assert_int_equal(rename(dir, away), 0);
    turn_fails(&b.c, nth_turn(&a, "aa", 1), &a, ROD_EIO);
    turn_fails(&b.c, nth_turn(&a, "zz", 0), &a, ROD_EIO);
    assert_int_equal(rename(away, dir), 0);
    turn_ok(&b.c, nth_turn(&a, "aa", 1), &a);
    assert_int_equal(a.end.session_version, 2);
    collect_free(&a);
    bench_close(&b);
}

/* ---- budgets ---- */

static void more_sessions_than_memory_come_back_from_their_files(void **state) {
    (void)state;
    enum { SESSIONS = 24, ROUNDS = 4 };
    struct bench b, plain;
    struct answer a, want;
    begin_in_memory(&plain);
    begin_with(&b, CONFIG(.state_host_bytes = state_pool_bytes(6, sizeof(struct fake_state))));
    for (uint32_t n = 0; n < ROUNDS; n++)
        for (int i = 0; i < SESSIONS; i++) {
            const char id[] = {(char)('a' + i), 'x', 0};
            turn_ok(&b.c, nth_turn(&a, id, n), &a);
            turn_ok(&plain.c, nth_turn(&want, id, n), &want);
            assert_same(&a, &want, "out of memory and back");
            collect_free(&a), collect_free(&want);
        }
    const struct rod_stats stats = stats_of(b.c.engine);
    assert_int_equal(stats.sessions, SESSIONS);
    assert_int_equal(stats.sessions_host + stats.sessions_file, SESSIONS);
    assert_true(stats.sessions_host <= 6);
    assert_true(stats.state_host_bytes <= state_pool_bytes(6, sizeof(struct fake_state)));
    assert_true(stats.state_loads >= SESSIONS * (ROUNDS - 1) - 6 * ROUNDS);
    assert_int_equal(stats.sessions_evicted, 0);
    bench_close(&b), bench_close(&plain);
}

static void without_files_the_session_used_longest_ago_makes_room(void **state) {
    (void)state;
    struct bench b;
    struct answer a;
    bench_open(&b, OPTIONS(.kind = FAKE_HASH),
               CONFIG(.state_host_bytes = state_pool_bytes(4, sizeof(struct fake_state))));
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "px", .pin = true},
                           &(struct rod_session_info){0}, NULL))
        fail();
    turn_ok(&b.c, nth_turn(&a, "px", 0), &a);
    collect_free(&a);
    for (int i = 0; i < 8; i++) {
        const char id[] = {(char)('a' + i), 'x', 0};
        turn_ok(&b.c, nth_turn(&a, id, 0), &a);
        collect_free(&a);
    }
    struct rod_session_info info;
    assert_int_equal(rod_session_get(b.c.engine, "", "ax", &info, NULL), ROD_ENOTFOUND);
    assert_int_equal(session_info(b.c.engine, "hx").version, 1);
    assert_int_equal(session_info(b.c.engine, "px").version, 1);
    assert_true(stats_of(b.c.engine).sessions_evicted >= 4);
    struct rod_request *r = nth_turn(&a, "ax", 1);
    r->turn->create = false;
    turn_fails(&b.c, r, &a, ROD_ENOTFOUND);
    bench_close(&b);
}

static void wait_for(bool (*good)(struct bench *b), struct bench *b, const char *what) {
    for (int ms = 0; !good(b); ms += 10) {
        if (ms > 10000) fail_msg("after 10 s: %s", what);
        usleep(10000);
    }
}

static bool within_budget(struct bench *b) { return stats_of(b->c.engine).state_file_bytes <= 5 * 20000; }

static void the_oldest_files_go_when_the_disk_budget_is_used_up(void **state) {
    (void)state;
    struct bench b;
    struct answer a;
    struct rod_session_info info;
    begin_with(&b, CONFIG(.state_disk_bytes = 5 * 20000)); /* a file has some 16,700 bytes */
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "px", .pin = true}, &info, NULL)) fail();
    turn_ok(&b.c, nth_turn(&a, "px", 0), &a);
    collect_free(&a);
    for (int i = 0; i < 9; i++) {
        const char id[] = {(char)('a' + i), 'x', 0};
        turn_ok(&b.c, nth_turn(&a, id, 0), &a);
        collect_free(&a);
    }
    wait_for(within_budget, &b, "more bytes of files than the budget");
    assert_int_equal(count_in(dir, ".state"), 5);
    assert_int_equal(stats_of(b.c.engine).sessions_evicted, 5);
    assert_int_equal(stats_of(b.c.engine).sessions, 5);
    assert_int_equal(rod_session_get(b.c.engine, "", "ex", &info, NULL), ROD_ENOTFOUND);
    assert_int_equal(session_info(b.c.engine, "ix").version, 1);
    assert_int_equal(session_info(b.c.engine, "px").version, 1);
    bench_close(&b);
}

static bool one_is_left(struct bench *b) { return stats_of(b->c.engine).sessions == 1; }

static void sessions_expire(void **state) {
    (void)state;
    struct bench b;
    struct answer a;
    struct rod_session_info info, *infos;
    size_t n;
    bool has_more;
    begin_with(&b, CONFIG(.session_ttl_s = 1));
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    turn_ok(&b.c, nth_turn(&a, "bb", 0), &a);
    collect_free(&a);
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "p", .from = "aa", .pin = true}, &info,
                           NULL))
        fail();
    wait_for(one_is_left, &b, "sessions whose time is over are there");
    assert_int_equal(count_in(dir, ".state"), 1);
    assert_int_equal(stats_of(b.c.engine).sessions_expired, 2);
    if (rod_session_list(b.c.engine, "", NULL, 10, &infos, &n, &has_more, NULL)) fail();
    assert_true(n == 1 && !strcmp(infos[0].id, "p"));
    free(infos);
    struct rod_request *r = nth_turn(&a, "aa", 1);
    r->turn->create = false;
    turn_fails(&b.c, r, &a, ROD_ENOTFOUND);
    bench_close(&b);
}

/* ---- later ---- */

static void a_lazy_session_is_written_at_the_end(void **state) {
    (void)state;
    struct bench b, plain;
    struct answer a, want;
    begin_in_memory(&plain);
    begin_with(&b, CONFIG(.session_lazy = true));
    for (uint32_t n = 0; n < 3; n++) {
        turn_ok(&b.c, nth_turn(&a, "aa", n), &a);
        turn_ok(&plain.c, nth_turn(&want, "aa", n), &want);
        assert_same(&a, &want, "a lazy session");
        collect_free(&a), collect_free(&want);
    }
    assert_int_equal(stats_of(b.c.engine).state_saves, 0);
    assert_int_equal(count_in(dir, ".state"), 0);
    bench_close(&b);
    assert_int_equal(count_in(dir, ""), 1);
    begin_with(&b, CONFIG(.session_lazy = true));
    assert_int_equal(session_info(b.c.engine, "aa").version, 3);
    turn_ok(&b.c, nth_turn(&a, "aa", 3), &a);
    turn_ok(&plain.c, nth_turn(&want, "aa", 3), &want);
    assert_same(&a, &want, "a lazy session after a restart");
    collect_free(&a), collect_free(&want);
    bench_close(&b), bench_close(&plain);
}

static void lazy_sessions_are_written_when_memory_is_full(void **state) {
    (void)state;
    enum { SESSIONS = 20, ROUNDS = 3 };
    struct bench b, plain;
    struct answer a, want;
    begin_in_memory(&plain);
    begin_with(&b, CONFIG(.session_lazy = true, .state_host_bytes = state_pool_bytes(5, sizeof(struct fake_state))));
    for (uint32_t n = 0; n < ROUNDS; n++)
        for (int i = 0; i < SESSIONS; i++) {
            const char id[] = {(char)('a' + i), 'x', 0};
            turn_ok(&b.c, nth_turn(&a, id, n), &a);
            turn_ok(&plain.c, nth_turn(&want, id, n), &want);
            assert_same(&a, &want, "lazy, out of memory and back");
            collect_free(&a), collect_free(&want);
        }
    const struct rod_stats stats = stats_of(b.c.engine);
    assert_true(stats.state_saves > 0 && stats.state_saves <= SESSIONS * ROUNDS);
    assert_int_equal(stats.sessions, SESSIONS);
    bench_close(&b), bench_close(&plain);
}

/* A session that is not written yet keeps its lease, and a process has so many files. */
static void many_lazy_sessions_do_not_use_up_the_open_files(void **state) {
    (void)state;
    struct bench b;
    struct answer a;
    struct rlimit before, little;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    little = before;
    little.rlim_cur = 400;
    begin_with(&b, CONFIG(.session_lazy = true));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &little), 0);
    for (int i = 0; i < 1000; i++) {
        char id[16];
        snprintf(id, sizeof id, "ma%d", i);
        turn_ok(&b.c, nth_turn(&a, id, 0), &a);
        collect_free(&a);
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_true(stats_of(b.c.engine).state_saves >= 700);
    bench_close(&b);
    assert_int_equal(count_in(dir, ""), 1000);
}

/* ---- servers that share the folder ---- */

static void a_session_moves_by_its_next_turn(void **state) {
    (void)state;
    struct bench b[2], plain;
    struct answer a, want;
    struct rod_error err;
    struct rod_session_info *infos;
    size_t n_infos;
    bool has_more;
    begin_in_memory(&plain);
    BEGIN(&b[0]);
    BEGIN(&b[1]);
    for (uint32_t n = 0; n < 12; n++) {
        struct bench *at = &b[n % 3 == 1 || n % 5 == 3];
        turn_ok(&at->c, nth_turn(&a, "aa", n), &a);
        turn_ok(&plain.c, nth_turn(&want, "aa", n), &want);
        assert_same(&a, &want, "on another server");
        collect_free(&a), collect_free(&want);
        for (int i = 0; i < 2; i++) assert_int_equal(session_info(b[i].c.engine, "aa").version, n + 1);
    }
    if (rod_session_fork(b[0].c.engine, "", "aa", "bb", &(struct rod_session_info){0}, &err)) fail();
    while (count_in(dir, ".state") < 2 || count_in(dir, ".lease")) usleep(1000);
    if (rod_session_list(b[1].c.engine, "", NULL, 10, &infos, &n_infos, &has_more, &err)) fail();
    assert_int_equal(n_infos, 2);
    free(infos);
    if (rod_session_delete(b[1].c.engine, "", "aa", &err)) fail_msg("%s", err.message);
    struct rod_request *r = nth_turn(&a, "aa", 12);
    r->turn->create = false;
    turn_fails(&b[0].c, r, &a, ROD_ENOTFOUND); /* although it was in its memory */
    assert_int_equal(count_in(dir, ""), 1);
    bench_close(&b[0]), bench_close(&b[1]), bench_close(&plain);
}

static void two_servers_never_have_one_session_at_once(void **state) {
    (void)state;
    struct bench b[2], plain;
    struct answer a, z[2], want;
    begin_in_memory(&plain);
    BEGIN(&b[0]);
    begin_with(&b[1], CONFIG(.session_reject = true));
    collect_submit(&b[0].c, turn_request(&a, "aa", first, 11, 1000000));
    while (!a.n_ids) collect_now(&b[0].c);
    turn_fails(&b[1].c, nth_turn(&z[0], "aa", 1), &z[0], ROD_EBUSY);
    assert_int_equal(rod_session_delete(b[1].c.engine, "", "aa", NULL), ROD_EBUSY);
    rod_cancel(b[0].c.engine, a.ticket);
    collect_until(&b[0].c, &a, 1);
    collect_free(&a);
    bench_close(&b[1]);
    BEGIN(&b[1]);
    collect_submit(&b[0].c, turn_request(&a, "aa", first, 11, 300));
    while (!a.n_ids) collect_now(&b[0].c);
    for (int i = 0; i < 2; i++) collect_submit(&b[1].c, nth_turn(&z[i], "aa", (uint32_t)i)); /* they wait */
    collect_until(&b[0].c, &a, 1);
    collect_until(&b[1].c, z, 2);
    turn_ok(&plain.c, turn_request(&want, "aa", first, 11, 300), &want);
    collect_assert_ids(&a, want.ids, 300, "the first server's turn");
    collect_free(&a), collect_free(&want);
    for (uint32_t i = 0; i < 2; i++) {
        turn_ok(&plain.c, nth_turn(&want, "aa", i), &want);
        assert_same(&z[i], &want, "after the other server's turn");
        collect_free(&z[i]), collect_free(&want);
    }
    assert_int_equal(count_in(dir, ""), 1);
    bench_close(&b[0]), bench_close(&b[1]), bench_close(&plain);
}

/* ---- many at once ---- */

static void turns_that_end_together_are_all_kept(void **state) {
    (void)state;
    enum { SESSIONS = 40, ROUNDS = 3 };
    struct bench b, plain;
    struct answer a[SESSIONS], want;
    begin_in_memory(&plain);
    bench_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 16, .max_batch_tok = 256),
               CONFIG(.state_dir = dir, .state_host_bytes = 64u << 20));
    for (uint32_t n = 0; n < ROUNDS; n++) {
        for (int i = 0; i < SESSIONS; i++)
            collect_submit(&b.c, nth_turn(&a[i], (char[]){(char)('a' + i % 26), (char)('x' + i / 26), 0}, n));
        collect_until(&b.c, a, SESSIONS);
        for (int i = 0; i < SESSIONS; i++) {
            turn_ok(&plain.c, nth_turn(&want, (char[]){(char)('a' + i % 26), (char)('x' + i / 26), 0}, n), &want);
            assert_same(&a[i], &want, "one of many");
            collect_free(&a[i]), collect_free(&want);
        }
        bench_close(&b);
        bench_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 16, .max_batch_tok = 256),
                   CONFIG(.state_dir = dir, .state_host_bytes = 64u << 20));
        assert_int_equal(stats_of(b.c.engine).sessions, SESSIONS);
    }
    bench_close(&b), bench_close(&plain);
}

static void a_close_in_the_middle_loses_no_finished_turn(void **state) {
    (void)state;
    struct bench b;
    struct answer a[12];
    uint64_t versions[4] = {0};
    for (int round = 0; round < 10; round++) {
        BEGIN(&b);
        for (int i = 0; i < 12; i++)
            collect_submit(&b.c, turn_request(&a[i], (char[]){(char)('a' + i % 4), 0}, more, 3, 1 + (uint32_t)i * 20));
        usleep((useconds_t)(round * 700));
        rod_engine_drain(b.c.engine);
        collect_now(&b.c);
        rod_engine_close(b.c.engine);
        sem_destroy(&b.c.woken);
        for (int i = 0; i < 12; i++) {
            if (a[i].ended && !a[i].failed) versions[i % 4] = a[i].end.session_version;
            collect_free(&a[i]);
        }
        BEGIN(&b);
        for (int i = 0; i < 4; i++) {
            struct rod_session_info info = {0};
            const int rc = rod_session_get(b.c.engine, "", (char[]){(char)('a' + i), 0}, &info, NULL);
            if (versions[i] ? rc || info.version < versions[i] : rc && rc != ROD_ENOTFOUND)
                fail_msg("version %llu was told, %llu is there", (unsigned long long)versions[i],
                         (unsigned long long)info.version);
            versions[i] = info.version;
        }
        bench_close(&b);
        assert_int_equal(count_in(dir, ".state"), count_in(dir, ""));
    }
}

static int make(void **state) {
    (void)state;
    bench_on_device = false;
    dir = make_dir();
    return 0;
}
static int unmake(void **state) {
    (void)state;
    remove_dir(dir);
    return 0;
}

#define IN_A_FOLDER(test) cmocka_unit_test_setup_teardown(test, make, unmake)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_restart_changes_no_token),
        IN_A_FOLDER(a_state_of_no_bytes_goes_through_a_file),
        IN_A_FOLDER(an_answer_survives_a_restart),
        IN_A_FOLDER(a_damaged_file_is_refused_and_the_rest_goes_on),
        IN_A_FOLDER(every_byte_that_changes_is_refused),
        IN_A_FOLDER(a_foreign_file_is_refused),
        IN_A_FOLDER(what_a_crash_left_is_swept),
        IN_A_FOLDER(a_full_disk_fails_that_turn_alone),
        IN_A_FOLDER(a_folder_that_is_gone_fails_turns_and_nothing_else),
        IN_A_FOLDER(more_sessions_than_memory_come_back_from_their_files),
        IN_A_FOLDER(without_files_the_session_used_longest_ago_makes_room),
        IN_A_FOLDER(the_oldest_files_go_when_the_disk_budget_is_used_up),
        IN_A_FOLDER(sessions_expire),
        IN_A_FOLDER(a_lazy_session_is_written_at_the_end),
        IN_A_FOLDER(lazy_sessions_are_written_when_memory_is_full),
        IN_A_FOLDER(many_lazy_sessions_do_not_use_up_the_open_files),
        IN_A_FOLDER(a_session_moves_by_its_next_turn),
        IN_A_FOLDER(two_servers_never_have_one_session_at_once),
        IN_A_FOLDER(turns_that_end_together_are_all_kept),
        IN_A_FOLDER(a_close_in_the_middle_loses_no_finished_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
