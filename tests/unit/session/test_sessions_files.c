/* test_sessions_files.c - sessions in a folder: restarts, files that are not as they were written, many at once, a
 * close in the middle. Over the fake device; tests/backend/test_sessions.c has the laws on a real one. */
#include "tests/sessions_folder.h"

#include <fcntl.h>

#include "engine/session/store/session_locate.h"

static const int32_t first[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, more[] = {20, 21, 22};

/* ---- restarts ---- */

static void a_restart_changes_no_token(void **state) {
    (void)state;
    struct setup b, plain;
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
        setup_close(&b);
        assert_int_equal(count_in(dir, ""), 1);
    }
    setup_close(&plain);
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
    struct setup b;
    struct answer a[3], z;
    char key[] = "k0";
    BEGIN(&b);
    for (uint32_t n = 0; n < 3; n++, key[1]++) turn_ok(&b.c, keyed(&a[n], key, (uint8_t)n, n), &a[n]);
    setup_close(&b);
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
    setup_close(&b);
}

/* ---- files that are not as they were written ---- */

static void name_of(const char *id, uint8_t name[SESSION_NAME_BYTES]) {
    const struct state_home home = state_home_folder(dir);
    struct session_names names;
    session_names_init(&names);
    assert_int_equal(session_locate_key(&names, &home, NULL), 0);
    session_names_name(&names, "", id, name);
    session_names_fini(&names);
}

static char *path_of(const char *id, char path[512]) {
    uint8_t name[SESSION_NAME_BYTES];
    char text[SESSION_FILE_NAME_BYTES];
    name_of(id, name);
    const struct session_store store = {.home = state_home_folder(dir)};
    snprintf(path, 512, "%s/%s", dir, session_store_name(&store, name, text));
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
    struct setup b, plain;
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
    setup_close(&b);
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
    assert_int_equal(stats_of(b.c.engine).state_refused, 3); /* each is logged once */
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
    setup_close(&b), setup_close(&plain);
}

static size_t fake_bytes(const void *arg, uint64_t n_tok) {
    (void)arg, (void)n_tok;
    return sizeof(struct fake_state);
}

/* Each bit's byte in turn, and each length: the read that a turn begins with never takes it for the session. */
static void every_byte_that_changes_is_refused(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_error err;
    struct session_read read;
    char path[512];
    BEGIN(&b);
    struct rod_request *r = nth_turn(&a, "aa", 0);
    r->turn->idempotency_key = strdup("key");
    turn_ok(&b.c, r, &a);
    collect_free(&a);
    setup_close(&b);
    const struct state_form form = {.layout = "fake", .V = V, .state_bytes = fake_bytes};
    struct session_names names;
    session_names_init(&names);
    const struct state_home home = state_home_folder(dir);
    struct session_store store = {.home = home, .form = &form, .names = &names};
    uint8_t name[SESSION_NAME_BYTES];
    name_of("aa", name);
    assert_int_equal(session_locate_key(&names, &home, &err), 0);
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
    assert_int_equal(read.metadata.version, 1);
    session_read_fini(&read);
    /* Checksums need no key: a file may say anything. The next version must be a number, too. */
    const uint64_t versions[] = {1, INT64_MAX - 1, INT64_MAX, UINT64_MAX};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        struct session_metadata metadata;
        struct state_file made;
        assert_int_equal(
            state_file_parse(good, (size_t)info.st_size, "made", &(struct state_file_expected){0}, &made, &err), 0);
        made.version = versions[i];
        const int rc = session_file_read_metadata(&made, "made", &metadata, &err);
        if (rc != (i < 2 ? 0 : ROD_ESTATE)) fail_msg("version %llu: %d", (unsigned long long)versions[i], rc);
    }
    assert_int_equal(pwrite(fd, "x", 1, info.st_size), 1); /* longer */
    assert_int_equal(session_store_read(&store, name, true, &read, &err), ROD_ESTATE);
    close(fd);
    free(good);
    session_names_fini(&names);
}

/* Its owner may be rid of it: there is no other way to have the name again but to put a state there. */
static void a_damaged_file_is_deleted_as_its_owner_asks(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_session_info info;
    struct rod_error err;
    char path[512];
    static const char *const ids[] = {"aa", "bb", "cc", "dd"};
    for (int met = 0; met < 2; met++) { /* by a server that starts; by one that knew the session */
        BEGIN(&b);
        for (int i = 0; i < 4; i++) {
            turn_ok(&b.c, nth_turn(&a, ids[i], 0), &a);
            collect_free(&a);
        }
        if (!met) setup_close(&b);
        flip(path_of("aa", path), 49, 4);
        flip(path_of("bb", path), -3, 64);
        assert_int_equal(truncate(path_of("cc", path), 5000), 0);
        assert_int_equal(truncate(path_of("dd", path), 10), 0);
        if (!met) BEGIN(&b);
        for (int i = 0; i < 4; i++) {
            const int rc = rod_session_delete(b.c.engine, "", ids[i], &err);
            if (rc) fail_msg("%s: %s", ids[i], err.message);
            assert_int_equal(rod_session_delete(b.c.engine, "", ids[i], &err), ROD_ENOTFOUND);
            struct rod_session_new made = {.id = ids[i]};
            assert_int_equal(rod_session_create(b.c.engine, "", &made, &info, &err), 0);
            assert_int_equal(rod_session_delete(b.c.engine, "", ids[i], &err), 0);
        }
        assert_int_equal(count_in(dir, ".state"), 0);
        setup_close(&b);
    }
}

/* Under another session's name, of another model, in another layout. */
static void a_foreign_file_is_refused(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_error err;
    char from[512], to[512];
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    setup_close(&b);
    path_of("aa", from), path_of("bb", to);
    assert_int_equal(rename(from, to), 0);
    BEGIN(&b);
    assert_int_equal(stats_of(b.c.engine).state_refused, 1);
    turn_fails(&b.c, nth_turn(&a, "bb", 1), &a, ROD_ESTATE);
    setup_close(&b);
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

/* A file that is complete, by its checksums, and says what no session ever was: bytes that are held back for the next
 * turn, and are no beginning of a character. The detokeniser has room for one. */
static void a_file_that_holds_back_no_character_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        bool good;
    } held[] = {{"\xe2", true},      {"\xe2\x82", true},      {"\xf0\x9f\x98", true}, {"\xc3", true},
                {"a", false},        {"a\x80\x80", false},    {"\x80", false},        {"\xff", false},
                {"\xc3\xa9", false}, {"\xe0\x80", false},     {"\xe2\x28", false},    {"\xf4\x90", false},
                {"\xc0", false},     {"\xe2\x82\xac", false}, {"\xed\xa0", false},    {"\xf0\x9f\x98\x80", false}};
    struct setup b;
    struct answer a;
    struct rod_session_info info;
    struct rod_error err;
    void *bytes;
    size_t n;
    begin_with(&b, CONFIG());
    turn_ok(&b.c, turn_request(&a, "s", first, 11, 5), &a);
    collect_free(&a);
    if (rod_session_export(b.c.engine, "", "s", &bytes, &n, &err)) fail_msg("%s", err.message);
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        const struct state_file_expected any = {NULL, NULL};
        struct state_file file;
        if (state_file_parse(bytes, n, "exported", &any, &file, &err)) fail_msg("%s", err.message);
        file.pending_text = (struct state_bytes){held[i].bytes, strlen(held[i].bytes)};
        const size_t n_header = state_file_header_bytes(&file);
        unsigned char *made = malloc(n_header + file.payload.n);
        state_file_write_header(&file, made);
        memcpy(made + n_header, file.payload.data, file.payload.n);
        const int rc = rod_session_import(b.c.engine, "", "s", made, n_header + file.payload.n, &info, &err);
        free(made);
        if (rc != (held[i].good ? 0 : ROD_ESTATE)) fail_msg("%zu: %s", i, rc ? err.message : "taken");
    }
    free(bytes);
    setup_close(&b);
}

static void what_a_crash_left_is_swept(void **state) {
    (void)state;
    struct setup b;
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
    setup_close(&b);
}

/* ---- many at once ---- */

static void turns_that_end_together_are_all_kept(void **state) {
    (void)state;
    enum { SESSIONS = 40, ROUNDS = 3 };
    struct setup b, plain;
    struct answer a[SESSIONS], want;
    begin_in_memory(&plain);
    setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 16, .max_batch_tok = 256),
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
        setup_close(&b);
        setup_open(&b, OPTIONS(.kind = FAKE_HASH, .n_slots = 16, .max_batch_tok = 256),
                   CONFIG(.state_dir = dir, .state_host_bytes = 64u << 20));
        assert_int_equal(stats_of(b.c.engine).sessions, SESSIONS);
    }
    setup_close(&b), setup_close(&plain);
}

static void a_close_in_the_middle_loses_no_finished_turn(void **state) {
    (void)state;
    struct setup b;
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
                fail_msg("version %llu was reported, %llu is there", (unsigned long long)versions[i],
                         (unsigned long long)info.version);
            versions[i] = info.version;
        }
        setup_close(&b);
        assert_int_equal(count_in(dir, ".state"), count_in(dir, ""));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_restart_changes_no_token),
        IN_A_FOLDER(a_state_of_no_bytes_goes_through_a_file),
        IN_A_FOLDER(an_answer_survives_a_restart),
        IN_A_FOLDER(a_damaged_file_is_refused_and_the_rest_goes_on),
        IN_A_FOLDER(a_damaged_file_is_deleted_as_its_owner_asks),
        IN_A_FOLDER(every_byte_that_changes_is_refused),
        IN_A_FOLDER(a_foreign_file_is_refused),
        IN_A_FOLDER(a_file_that_holds_back_no_character_is_refused),
        IN_A_FOLDER(what_a_crash_left_is_swept),
        IN_A_FOLDER(turns_that_end_together_are_all_kept),
        IN_A_FOLDER(a_close_in_the_middle_loses_no_finished_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
