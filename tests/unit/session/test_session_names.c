/* test_session_names.c - the names of sessions' files: the hash, the folder's key, files of earlier versions. Over the
 * fake device. */
#include "tests/sessions_folder.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "engine/session/store/session_locate.h"

/* ---- the hash ---- */

/* Of the reference implementation: the key 00 01 ... 0f, and as many bytes 00 01 ... as it says. */
static void the_hash_is_siphash_2_4(void **state) {
    (void)state;
    static const struct {
        size_t n;
        const char *digest;
    } rows[] = {{0, "a3817f04ba25a8e66df67214c7550293"},
                {1, "da87c1d86b99af44347659119b22fc45"},
                {2, "8177228da4a45dc7fca38bdef60affe4"},
                {63, "5150d1772f50834a503e069a973fbd7c"}};
    uint8_t key[16], bytes[64], digest[16];
    for (int i = 0; i < 16; i++) key[i] = (uint8_t)i;
    for (int i = 0; i < 64; i++) bytes[i] = (uint8_t)i;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        char text[33];
        siphash(key, bytes, rows[r].n, digest);
        for (int i = 0; i < 16; i++) snprintf(text + 2 * i, 3, "%02x", digest[i]);
        assert_string_equal(text, rows[r].digest);
    }
}

/* ---- the key ---- */

static int open_key(const char *folder, uint8_t key[SIPHASH_KEY_BYTES], struct rod_error *err) {
    const struct state_home home = state_home_folder(folder);
    struct session_names names;
    session_names_init(&names);
    const int rc = session_locate_key(&names, &home, err);
    memcpy(key, names.key, SIPHASH_KEY_BYTES);
    session_names_fini(&names);
    return rc;
}

static char *key_path(char path[512]) {
    snprintf(path, 512, "%s/names.key", dir);
    return path;
}

static void a_folder_has_one_key_and_another_folder_another(void **state) {
    (void)state;
    uint8_t key[SIPHASH_KEY_BYTES], again[SIPHASH_KEY_BYTES], other[SIPHASH_KEY_BYTES];
    char path[512];
    struct stat info;
    assert_int_equal(open_key(dir, key, NULL), 0);
    assert_int_equal(open_key(dir, again, NULL), 0);
    assert_memory_equal(key, again, sizeof key);
    assert_int_equal(stat(key_path(path), &info), 0);
    assert_int_equal(info.st_mode & 07777, 0600);
    char *second = make_dir();
    assert_int_equal(open_key(second, other, NULL), 0);
    assert_memory_not_equal(key, other, sizeof key);
    remove_dir(second);
}

/* Servers that start together on a new folder: each round one of them makes the key, and all have it. */
static void servers_that_start_at_once_have_one_key(void **state) {
    (void)state;
    enum { SERVERS = 6, ROUNDS = 40 };
    for (int round = 0; round < ROUNDS; round++) {
        int start[2], out[2], status;
        char *folder = make_dir(), byte = 0;
        assert_int_equal(pipe(start) | pipe(out), 0);
        for (int i = 0; i < SERVERS; i++)
            if (!fork()) {
                uint8_t key[SIPHASH_KEY_BYTES];
                close(start[1]);
                if (read(start[0], &byte, 1) != 0 || open_key(folder, key, NULL)) _exit(1); /* the end: all at once */
                _exit(write(out[1], key, sizeof key) != (ssize_t)sizeof key);
            }
        close(start[0]), close(start[1]);
        uint8_t first[SIPHASH_KEY_BYTES], key[SIPHASH_KEY_BYTES];
        for (int i = 0; i < SERVERS; i++) {
            assert_true(wait(&status) > 0 && WIFEXITED(status));
            assert_int_equal(WEXITSTATUS(status), 0);
        }
        for (int i = 0; i < SERVERS; i++) {
            assert_int_equal(read(out[0], i ? key : first, sizeof key), sizeof key);
            if (i) assert_memory_equal(key, first, sizeof key);
        }
        close(out[0]), close(out[1]);
        assert_int_equal(count_in(folder, ""), 0); /* but the key itself */
        remove_dir(folder);
    }
}

/* Whenever it is killed, the folder has the whole key or none. */
static void who_is_killed_while_making_the_key_leaves_none_or_all(void **state) {
    (void)state;
    const unsigned seed = (unsigned)getpid();
    unsigned random = seed;
    for (int round = 0; round < 60; round++) {
        char *folder = make_dir(), path[512];
        const pid_t child = fork();
        if (!child) {
            uint8_t key[SIPHASH_KEY_BYTES];
            open_key(folder, key, NULL);
            pause();
        }
        usleep((useconds_t)(rand_r(&random) % 1500));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        struct stat info;
        snprintf(path, sizeof path, "%s/names.key", folder);
        uint8_t before[SIPHASH_KEY_BYTES], key[SIPHASH_KEY_BYTES];
        const bool made = !stat(path, &info);
        struct rod_error err;
        if (made && open_key(folder, before, &err)) fail_msg("seed %u: %s", seed, err.message);
        if (open_key(folder, key, &err)) fail_msg("seed %u: %s", seed, err.message);
        if (made) assert_memory_equal(before, key, sizeof key);
        uint32_t n_swept;
        assert_int_equal(state_disk_sweep(folder, &n_swept, &err), 0);
        assert_int_equal(count_in(folder, ""), 0);
        if (open_key(folder, before, &err)) fail_msg("seed %u: %s", seed, err.message);
        assert_memory_equal(before, key, sizeof key);
        remove_dir(folder);
    }
}

static void a_damaged_key_is_no_key(void **state) {
    (void)state;
    uint8_t key[SIPHASH_KEY_BYTES], again[SIPHASH_KEY_BYTES];
    char path[512], text[128];
    struct rod_error err;
    assert_int_equal(open_key(dir, key, NULL), 0);
    const int fd = open(key_path(path), O_RDWR);
    const ssize_t n = pread(fd, text, sizeof text, 0);
    assert_true(n > 40);
    for (ssize_t at = 0; at < n; at++) {
        const char changed = text[at] == '0' ? '1' : '0';
        assert_int_equal(pwrite(fd, &changed, 1, at), 1);
        if (open_key(dir, again, &err) != ROD_ESTATE) fail_msg("byte %zd changed, and the key is taken", at);
        assert_non_null(strstr(err.message, "names.key"));
        assert_int_equal(pwrite(fd, &text[at], 1, at), 1);
    }
    for (ssize_t cut = 0; cut < n; cut++) {
        assert_int_equal(ftruncate(fd, cut), 0);
        assert_int_equal(open_key(dir, again, &err), ROD_ESTATE);
    }
    assert_int_equal(pwrite(fd, text, (size_t)n, 0), n);
    assert_int_equal(open_key(dir, again, &err), 0);
    assert_memory_equal(key, again, sizeof key);
    close(fd);
}

/* An engine says so at its start, and makes no other key in its place. */
static void a_server_does_not_start_with_a_damaged_key(void **state) {
    (void)state;
    char path[512];
    struct rod_engine_config config = CONFIG(.state_dir = dir, .state_host_bytes = 1u << 26);
    struct backend *be = fake_open(&fake_ops, FAKE_HASH, V, 2, 64, 8);
    struct engine_parts parts = {.ops = &fake_ops, .backend = be, .V = V};
    struct rod_engine *engine;
    struct rod_error err;
    const int fd = open(key_path(path), O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fd, "rubbish", 7), 7);
    close(fd);
    assert_int_equal(engine_open_parts(&config, &parts, &engine, &err), ROD_ESTATE);
    assert_non_null(strstr(err.message, "names.key"));
    fake_close(be);
}

/* At the start, of whatever model the files are. */
static void a_server_does_not_start_without_the_key_of_its_files(void **state) {
    (void)state;
    char path[512], away[512];
    struct setup b;
    struct answer a;
    struct rod_engine_config config = CONFIG(.state_dir = dir, .state_host_bytes = 1u << 26);
    struct rod_engine *engine;
    struct rod_error err;
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    setup_close(&b);
    snprintf(away, sizeof away, "%s/away", dir);
    assert_int_equal(rename(key_path(path), away), 0);
    for (uint32_t vocabulary = V; vocabulary <= V + 1; vocabulary++) {
        struct backend *be = fake_open(&fake_ops, FAKE_HASH, vocabulary, 2, 64, 8);
        struct engine_parts parts = {.ops = &fake_ops, .backend = be, .V = vocabulary};
        assert_int_equal(engine_open_parts(&config, &parts, &engine, &err), ROD_ESTATE);
        assert_non_null(strstr(err.message, "names.key is missing"));
        assert_int_not_equal(access(path, F_OK), 0);
        fake_close(be);
    }
    assert_int_equal(rename(away, path), 0);
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 1), &a);
    assert_int_equal(a.end.session_version, 2);
    collect_free(&a);
    setup_close(&b);
}

static void read_text(const char *path, char text[128]) {
    const int fd = open(path, O_RDONLY);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, 127);
    if (n < 0) fail_msg("%s cannot be read", path);
    text[n] = 0;
    close(fd);
}

static atomic_uint n_put_back;
static void count_put_back(void *arg, int level, const char *line) {
    (void)arg, (void)level;
    if (strstr(line, "put back")) atomic_fetch_add(&n_put_back, 1);
}

static void a_running_server_puts_its_key_back(void **state) {
    (void)state;
    char path[512], before[128], after[128];
    struct setup b;
    struct answer a;
    n_put_back = 0;
    begin_with(&b, CONFIG(.log = count_put_back));
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    read_text(key_path(path), before);
    assert_int_equal(unlink(path), 0);
    for (int ms = 0; access(path, F_OK); ms += 10) { /* though nobody asks */
        if (ms > 10000) fail_msg("after 10 s the key is not back");
        usleep(10000);
    }
    usleep(10000); /* its bytes are there with the name; the line comes behind */
    read_text(path, after);
    assert_string_equal(before, after);
    turn_ok(&b.c, nth_turn(&a, "aa", 1), &a);
    assert_int_equal(a.end.session_version, 2);
    collect_free(&a);
    setup_close(&b);
    assert_int_equal(n_put_back, 1);
}

static atomic_uint n_another;
static void count_another(void *arg, int level, const char *line) {
    (void)arg;
    if (level == 3 && strstr(line, "names.key is another one")) atomic_fetch_add(&n_another, 1);
}

/* Servers with different keys would give one session two files, and two conversations. */
static void a_running_server_takes_no_other_key(void **state) {
    (void)state;
    char path[512], away[512], other[512];
    uint8_t key[SIPHASH_KEY_BYTES];
    struct setup b;
    struct answer a;
    struct rod_session_info info;
    n_another = 0;
    begin_with(&b, CONFIG(.log = count_another));
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    char *second = make_dir();
    assert_int_equal(open_key(second, key, NULL), 0);
    snprintf(away, sizeof away, "%s/away", dir);
    snprintf(other, sizeof other, "%s/names.key", second);
    assert_int_equal(link(key_path(path), away), 0);
    assert_int_equal(rename(other, path), 0);
    turn_fails(&b.c, nth_turn(&a, "aa", 1), &a, ROD_EIO);
    turn_fails(&b.c, nth_turn(&a, "zz", 0), &a, ROD_EIO);
    assert_int_equal(rod_session_get(b.c.engine, "", "aa", &info, NULL), ROD_EIO);
    assert_int_equal(count_in(dir, ".state"), 1);
    usleep(900000); /* looks of the keeper */
    assert_int_equal(n_another, 1);
    assert_int_equal(rename(away, path), 0);
    turn_ok(&b.c, nth_turn(&a, "aa", 1), &a);
    assert_int_equal(a.end.session_version, 2);
    collect_free(&a);
    setup_close(&b);
    remove_dir(second);
}

/* ---- files of earlier versions ---- */

static void path_of(const char *id, bool earlier, char path[512]) {
    uint8_t name[SESSION_NAME_BYTES];
    char text[SESSION_FILE_NAME_BYTES];
    const struct state_home home = state_home_folder(dir);
    const struct session_store store = {.home = home};
    struct session_names names;
    session_names_init(&names);
    assert_int_equal(session_locate_key(&names, &home, NULL), 0);
    if (earlier)
        session_names_earlier("", id, name);
    else
        session_names_name(&names, "", id, name);
    session_names_fini(&names);
    snprintf(path, 512, "%s/%s", dir, session_store_name(&store, name, text));
}

static bool is_there(const char *id, bool earlier) {
    char path[512];
    struct stat info;
    path_of(id, earlier, path);
    return !stat(path, &info);
}

/* Left by an older server. */
static void make_earlier(const char *id) {
    char from[512], to[512];
    path_of(id, false, from), path_of(id, true, to);
    assert_int_equal(rename(from, to), 0);
}

static void a_file_of_an_earlier_version_goes_on_under_its_name(void **state) {
    (void)state;
    struct setup b, plain;
    struct answer a, want;
    struct rod_error err;
    begin_in_memory(&plain);
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    turn_ok(&plain.c, nth_turn(&want, "aa", 0), &want);
    collect_free(&a), collect_free(&want);
    setup_close(&b);
    make_earlier("aa");
    for (uint32_t n = 1; n < 4; n++) {
        BEGIN(&b);
        assert_int_equal(stats_of(b.c.engine).sessions, 1);
        assert_int_equal(stats_of(b.c.engine).state_refused, 0);
        assert_int_equal(session_info(b.c.engine, "aa").version, n);
        turn_ok(&b.c, nth_turn(&a, "aa", n), &a);
        turn_ok(&plain.c, nth_turn(&want, "aa", n), &want);
        assert_same(&a, &want, "of an earlier version");
        collect_free(&a), collect_free(&want);
        assert_true(is_there("aa", true) && !is_there("aa", false));
        assert_int_equal(count_in(dir, ""), 1);
        if (n == 3 && rod_session_delete(b.c.engine, "", "aa", &err)) fail_msg("%s", err.message);
        if (n == 3) assert_int_equal(count_in(dir, ""), 0);
        setup_close(&b);
    }
    setup_close(&plain);
}

/* Two servers know it by the earlier name; then one removes and makes it, so that it has the other name. */
static void two_servers_agree_on_a_file_of_an_earlier_version(void **state) {
    (void)state;
    struct setup b[2];
    struct answer a;
    struct rod_error err;
    BEGIN(&b[0]);
    turn_ok(&b[0].c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    setup_close(&b[0]);
    make_earlier("aa");
    BEGIN(&b[0]);
    BEGIN(&b[1]);
    for (uint32_t n = 1; n < 7; n++) {
        turn_ok(&b[n % 2].c, nth_turn(&a, "aa", n), &a);
        assert_int_equal(a.end.session_version, n + 1);
        collect_free(&a);
        for (int i = 0; i < 2; i++) assert_int_equal(session_info(b[i].c.engine, "aa").version, n + 1);
    }
    assert_int_equal(count_in(dir, ""), 1);
    if (rod_session_delete(b[0].c.engine, "", "aa", &err)) fail_msg("%s", err.message);
    turn_ok(&b[0].c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    assert_true(is_there("aa", false) && !is_there("aa", true));
    turn_ok(&b[1].c, nth_turn(&a, "aa", 1), &a);
    assert_int_equal(a.end.session_version, 2);
    collect_free(&a);
    for (int i = 0; i < 2; i++) assert_int_equal(session_info(b[i].c.engine, "aa").version, 2);
    assert_int_equal(count_in(dir, ""), 1);
    setup_close(&b[0]), setup_close(&b[1]);
}

/* Turns of both at once, from the first on: the lease is the one of the name that the file has. */
static void turns_of_two_servers_never_lose_a_version(void **state) {
    (void)state;
    enum { TURNS = 12 };
    struct setup b[2];
    struct answer a[2][TURNS];
    BEGIN(&b[0]);
    turn_ok(&b[0].c, nth_turn(&a[0][0], "aa", 0), &a[0][0]);
    collect_free(&a[0][0]);
    setup_close(&b[0]);
    make_earlier("aa");
    BEGIN(&b[0]);
    BEGIN(&b[1]);
    for (uint32_t n = 0; n < TURNS; n++)
        for (int i = 0; i < 2; i++) collect_submit(&b[i].c, nth_turn(&a[i][n], "aa", 1 + n));
    for (int i = 0; i < 2; i++) collect_until(&b[i].c, a[i], TURNS);
    bool seen[2 * TURNS + 2] = {false};
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < TURNS; n++) {
            if (a[i][n].failed) fail_msg("%s", a[i][n].end.error.message);
            const uint64_t version = a[i][n].end.session_version;
            assert_in_range(version, 2, 2 * TURNS + 1);
            assert_false(seen[version]);
            seen[version] = true;
            collect_free(&a[i][n]);
        }
    assert_int_equal(count_in(dir, ""), 1);
    setup_close(&b[0]), setup_close(&b[1]);
}

/* Where both names have a file, as a server of an earlier version may leave it beside new ones. */
static void the_file_by_the_key_counts(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    char from[512], kept[512], to[512];
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    path_of("aa", false, from), path_of("aa", true, to);
    snprintf(kept, sizeof kept, "%s/kept", dir);
    assert_int_equal(link(from, kept), 0);
    turn_ok(&b.c, nth_turn(&a, "aa", 1), &a);
    collect_free(&a);
    assert_int_equal(rename(kept, to), 0);
    setup_close(&b);
    BEGIN(&b);
    assert_int_equal(stats_of(b.c.engine).sessions, 1);
    assert_int_equal(stats_of(b.c.engine).state_refused, 1);
    assert_int_equal(session_info(b.c.engine, "aa").version, 2);
    turn_ok(&b.c, nth_turn(&a, "aa", 2), &a);
    assert_int_equal(a.end.session_version, 3);
    collect_free(&a);
    setup_close(&b);
}

/* Who finds an id whose earlier name is that of another one's file has nothing of that file, and cannot remove it. */
static void a_name_of_before_that_two_ids_share_is_the_others(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_session_info info;
    struct rod_error err;
    char from[512], to[512];
    BEGIN(&b);
    turn_ok(&b.c, nth_turn(&a, "aa", 0), &a);
    collect_free(&a);
    path_of("aa", false, from), path_of("thief", true, to);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(rod_session_get(b.c.engine, "", "thief", &info, &err), ROD_ENOTFOUND);
    assert_int_equal(rod_session_delete(b.c.engine, "", "thief", &err), ROD_ENOTFOUND);
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "thief"}, &info, &err))
        fail_msg("%s", err.message);
    assert_int_equal(info.version, 0);
    assert_int_equal(rod_session_delete(b.c.engine, "", "thief", &err), 0);
    assert_int_equal(count_in(dir, ".state"), 1);
    assert_true(is_there("thief", true));
    setup_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_hash_is_siphash_2_4),
        IN_A_FOLDER(a_folder_has_one_key_and_another_folder_another),
        IN_A_FOLDER(servers_that_start_at_once_have_one_key),
        IN_A_FOLDER(who_is_killed_while_making_the_key_leaves_none_or_all),
        IN_A_FOLDER(a_damaged_key_is_no_key),
        IN_A_FOLDER(a_server_does_not_start_with_a_damaged_key),
        IN_A_FOLDER(a_server_does_not_start_without_the_key_of_its_files),
        IN_A_FOLDER(a_running_server_puts_its_key_back),
        IN_A_FOLDER(a_running_server_takes_no_other_key),
        IN_A_FOLDER(a_file_of_an_earlier_version_goes_on_under_its_name),
        IN_A_FOLDER(two_servers_agree_on_a_file_of_an_earlier_version),
        IN_A_FOLDER(turns_of_two_servers_never_lose_a_version),
        IN_A_FOLDER(the_file_by_the_key_counts),
        IN_A_FOLDER(a_name_of_before_that_two_ids_share_is_the_others),
    };
    return cmocka_run_group_tests_name("session_names", tests, NULL, NULL);
}
