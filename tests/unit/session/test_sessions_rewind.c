/* test_sessions_rewind.c - sessions that go back to kept turns, in memory and in a folder: each way back is held
 * against a session that took the turns which count. */
#include "tests/sessions_places.h"

static const int32_t text[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};

static void begin(struct setup *b, struct rod_engine_config config) {
    if (on_file && !dir) dir = make_dir();
    config.state_dir = dir;
    if (!config.state_host_bytes) config.state_host_bytes = 64u << 20;
    setup_open(b, OPTIONS(.kind = FAKE_HASH), config);
}

static struct rod_session_info make_keeping(struct setup *b, const char *id, uint32_t keep_turns) {
    struct rod_session_info info;
    struct rod_error err;
    const struct rod_session_new made = {.id = id, .has_keep = true, .keep_turns = keep_turns};
    if (rod_session_create(b->c.engine, "", &made, &info, &err)) fail_msg("%s: %s", id, err.message);
    assert_int_equal(info.keep_turns, keep_turns);
    assert_int_equal(info.n_kept, 0);
    return info;
}

static void take_turn(struct setup *b, const char *id, unsigned what, struct answer *a) {
    turn_ok(&b->c, turn_request(a, id, text + what % 8, 3 + what % 5, 4), a);
}
static void told(struct setup *b, const char *id, unsigned what) {
    struct answer a;
    take_turn(b, id, what, &a);
    collect_free(&a);
}

static struct rod_session_info go_back(struct setup *b, const char *id, struct rod_session_rewind to) {
    struct rod_session_info info;
    struct rod_error err;
    if (rod_session_rewind(b->c.engine, "", id, &to, &info, &err)) fail_msg("%s: %s", id, err.message);
    return info;
}
#define TURNS(n)   ((struct rod_session_rewind){.by_turns = true, .turns = (n)})
#define VERSION(v) ((struct rod_session_rewind){.version = (v)})

static void refuse_back(struct setup *b, const char *id, struct rod_session_rewind to, int code, const char *names) {
    struct rod_session_info info;
    struct rod_error err;
    const int rc = rod_session_rewind(b->c.engine, "", id, &to, &info, &err);
    if (rc != code) fail_msg("%s, want %s", rod_code_name(rc), rod_code_name(code));
    if (names && !strstr(err.message, names)) fail_msg("\"%s\" is not in: %s", names, err.message);
}

/* The sessions have the same state, to the bit, and say the same next. */
static void assert_same(struct setup *b, const char *one, const char *other) {
    void *bytes[2];
    size_t n[2];
    struct rod_error err;
    const char *ids[] = {one, other};
    for (int i = 0; i < 2; i++)
        if (rod_session_export(b->c.engine, "", ids[i], &bytes[i], &n[i], &err))
            fail_msg("%s: %s", ids[i], err.message);
    const size_t state = session_info(b->c.engine, one).state_bytes;
    assert_int_equal(session_info(b->c.engine, other).state_bytes, state);
    /* all that the fake device goes on from; behind it is what it has noted of its slot */
    assert_memory_equal((char *)bytes[0] + n[0] - state, (char *)bytes[1] + n[1] - state, 2 * sizeof(uint64_t));
    free(bytes[0]), free(bytes[1]);
    struct answer a, z;
    take_turn(b, one, 3, &a);
    take_turn(b, other, 3, &z);
    collect_assert_ids(&a, z.ids, z.n_ids, one);
    collect_free(&a), collect_free(&z);
}

static void back_is_the_state_of_that_time_under_a_new_version(void **state) {
    (void)state;
    struct setup b;
    begin(&b, CONFIG());
    make_keeping(&b, "s", 16);
    for (unsigned i = 0; i < 6; i++) told(&b, "s", i);
    for (unsigned i = 0; i < 4; i++) told(&b, "twin", i);
    struct rod_session_info info = session_info(b.c.engine, "s");
    assert_int_equal(info.n_kept, 6); /* and the beginning */
    assert_int_equal(info.kept[0].version, 0);
    assert_int_equal(info.kept[0].turns, 6);
    assert_int_equal(info.kept[5].version, 5);
    assert_int_equal(stats_of(b.c.engine).kept_turns, 6);
    if (on_file) assert_int_equal(count_in(dir, ".kept"), 6);
    info = go_back(&b, "s", TURNS(2));
    assert_int_equal(info.version, 7);
    assert_int_equal(info.n_tok, session_info(b.c.engine, "twin").n_tok);
    assert_int_equal(info.n_kept, 4);
    if (on_file) assert_int_equal(count_in(dir, ".kept"), 4);
    assert_same(&b, "s", "twin");
    info = session_info(b.c.engine, "s");
    assert_int_equal(info.version, 8);
    assert_int_equal(info.n_kept, 5);
    assert_int_equal(info.kept[4].version, 7); /* the place that it went back to has its new version */
    info = go_back(&b, "s", VERSION(2));
    assert_int_equal(info.version, 9);
    told(&b, "pair", 0), told(&b, "pair", 1);
    assert_same(&b, "s", "pair");
    info = go_back(&b, "s", TURNS(3));
    assert_true(info.version == 11 && info.n_tok == 0 && info.n_kept == 0);
    for (unsigned i = 0; i < 2; i++) told(&b, "s", i), told(&b, "new", i);
    assert_same(&b, "s", "new");
    assert_int_equal(stats_of(b.c.engine).session_rewinds, 3);
    setup_close(&b);
}

static void what_is_not_kept_is_told_with_the_nearest(void **state) {
    (void)state;
    struct setup b;
    struct rod_error err;
    begin(&b, CONFIG());
    refuse_back(&b, "nobody", TURNS(1), ROD_ENOTFOUND, NULL);
    told(&b, "plain", 0), told(&b, "plain", 1);
    assert_int_equal(stats_of(b.c.engine).kept_turns, 0); /* nobody asked for it */
    refuse_back(&b, "plain", TURNS(1), ROD_ENOTKEPT, "keep_turns");
    make_keeping(&b, "s", 2);
    refuse_back(&b, "s", TURNS(1), ROD_ENOTKEPT, "no earlier turn");
    for (unsigned i = 0; i < 5; i++) told(&b, "s", i);
    const struct rod_session_info info = session_info(b.c.engine, "s");
    assert_int_equal(info.n_kept, 2);
    assert_true(info.kept[0].version == 0 && info.kept[1].version == 4); /* the beginning and the last one */
    refuse_back(&b, "s", TURNS(2), ROD_ENOTKEPT, "version 4, 1 turns back");
    refuse_back(&b, "s", TURNS(6), ROD_ENOTKEPT, "version 0, 5 turns back");
    refuse_back(&b, "s", VERSION(1), ROD_ENOTKEPT, "version 0, 5 turns back");
    refuse_back(&b, "s", VERSION(5), ROD_ENOTKEPT, "version 4, 1 turns back"); /* it stands there */
    struct rod_session_rewind to = TURNS(1);
    to.has_expected = true;
    to.expected_version = 4;
    refuse_back(&b, "s", to, ROD_EVERSION, NULL);
    assert_int_equal(session_info(b.c.engine, "s").version, 5);
    to.expected_version = 5;
    assert_int_equal(go_back(&b, "s", to).version, 6);
    refuse_back(&b, "s", to, ROD_EVERSION, NULL); /* repeated, it goes back no further */
    assert_int_equal(rod_session_rewind(b.c.engine, "other", "s", &to, &(struct rod_session_info){0}, &err),
                     ROD_ENOTFOUND);
    struct answer a;
    collect_submit(&b.c, turn_request(&a, "s", text, 4, 1000000));
    while (!a.n_ids) collect_now(&b.c);
    refuse_back(&b, "s", TURNS(1), ROD_EBUSY, NULL);
    rod_cancel(b.c.engine, a.ticket);
    collect_until(&b.c, &a, 1);
    collect_free(&a);
    setup_close(&b);
}

static void kept_turns_thin_out_by_powers_of_two(void **state) {
    (void)state;
    struct setup b;
    begin(&b, CONFIG(.session_keep_turns = 6));
    for (unsigned i = 0; i < 100; i++) told(&b, "s", i);
    struct rod_session_info info = session_info(b.c.engine, "s");
    assert_int_equal(info.keep_turns, 6);
    assert_int_equal(info.n_kept, 6);
    for (uint32_t i = 0; i < 6; i++) { /* none is more than twice as far back as the next one and a half */
        const uint64_t nearer = i + 1 < 6 ? info.kept[i + 1].turns : 0;
        if (info.kept[i].turns > 4 * nearer + 1 && i) /* the beginning of all may be */
            fail_msg("kept %u and %llu turns back, and nothing between", i, (unsigned long long)nearer);
        if (i) assert_true(info.kept[i].version > info.kept[i - 1].version);
    }
    assert_int_equal(info.kept[5].turns, 1);
    if (on_file) assert_int_equal(count_in(dir, ".kept"), 6);
    struct rod_error err;
    if (rod_session_change(b.c.engine, "", "s", &(struct rod_session_change){.has_keep = true, .keep_turns = 2}, &info,
                           &err))
        fail_msg("%s", err.message);
    assert_int_equal(info.n_kept, 2);
    if (on_file) assert_int_equal(count_in(dir, ".kept"), 2);
    if (rod_session_change(b.c.engine, "", "s", &(struct rod_session_change){.has_keep = true}, &info, &err))
        fail_msg("%s", err.message);
    assert_int_equal(info.n_kept, 0);
    assert_int_equal(info.version, 100);
    assert_int_equal(stats_of(b.c.engine).kept_turns, 0);
    if (on_file) assert_int_equal(count_in(dir, ""), 1);
    told(&b, "s", 1);
    assert_int_equal(session_info(b.c.engine, "s").n_kept, 0);
    setup_close(&b);
}

static struct rod_request *keyed(struct answer *a, const char *key, unsigned what) {
    struct rod_request *r = turn_request(a, "s", text + what % 8, 3 + what % 5, 4);
    r->turn->idempotency_key = strdup(key);
    r->turn->digest[0] = (uint8_t)what;
    return r;
}

static void keys_of_turns_that_are_gone_are_known_and_run_no_second_time(void **state) {
    (void)state;
    struct setup b;
    struct answer a, z;
    begin(&b, CONFIG());
    make_keeping(&b, "s", 8);
    turn_ok(&b.c, keyed(&a, "one", 1), &a);
    turn_ok(&b.c, keyed(&z, "two", 2), &z);
    collect_free(&z);
    turn_ok(&b.c, keyed(&z, "three", 3), &z);
    collect_free(&z);
    go_back(&b, "s", VERSION(1));
    for (int i = 0; i < 2; i++) {
        turn_ok(&b.c, keyed(&z, "one", 1), &z);
        assert_true(z.end.replayed);
        collect_assert_ids(&z, a.ids, a.n_ids, "before the place");
        collect_free(&z);
        turn_fails(&b.c, keyed(&z, "two", 2), &z, ROD_EINVALID);
        turn_fails(&b.c, keyed(&z, "three", 3), &z, ROD_EINVALID);
        assert_int_equal(session_info(b.c.engine, "s").version, 4);
        if (!on_file) break;
        setup_close(&b);
        begin(&b, CONFIG());
    }
    collect_free(&a);
    turn_ok(&b.c, keyed(&z, "four", 4), &z);
    assert_int_equal(z.end.session_version, 5);
    collect_free(&z);
    setup_close(&b);
}

static void kept_turns_outlive_the_server_and_are_there_for_another(void **state) {
    (void)state;
    struct setup b, other;
    begin(&b, CONFIG());
    make_keeping(&b, "s", 8);
    for (unsigned i = 0; i < 5; i++) told(&b, "s", i);
    setup_close(&b);
    begin(&b, CONFIG());
    assert_int_equal(stats_of(b.c.engine).kept_turns, 5);
    const uint64_t file_bytes = stats_of(b.c.engine).state_file_bytes;
    assert_true(file_bytes > 5 * session_info(b.c.engine, "s").state_bytes);
    assert_int_equal(go_back(&b, "s", TURNS(1)).version, 6);
    told(&b, "s", 9);
    begin(&other, CONFIG());
    assert_int_equal(session_info(other.c.engine, "s").n_kept, 5);
    assert_int_equal(go_back(&other, "s", TURNS(3)).version, 8);
    told(&other, "s", 7);
    struct rod_session_info info = session_info(b.c.engine, "s");
    assert_int_equal(info.version, 9);
    assert_int_equal(info.n_kept, 3);
    refuse_back(&b, "s", VERSION(3), ROD_ENOTKEPT, NULL);
    go_back(&b, "s", TURNS(1));
    told(&b, "twin", 0), told(&b, "twin", 1);
    assert_same(&b, "s", "twin");
    setup_close(&other), setup_close(&b);
}

static void forks_copies_and_removed_sessions_have_nothing_of_it(void **state) {
    (void)state;
    struct setup b;
    struct rod_session_info info;
    struct rod_error err;
    void *bytes;
    size_t n;
    begin(&b, CONFIG());
    make_keeping(&b, "s", 8);
    for (unsigned i = 0; i < 4; i++) told(&b, "s", i), told(&b, "twin", i);
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "fork", .from = "s"}, &info, &err))
        fail_msg("%s", err.message);
    assert_true(info.keep_turns == 8 && info.n_kept == 0);
    told(&b, "fork", 1); /* its place is the fork itself */
    told(&b, "fork", 2);
    assert_int_equal(session_info(b.c.engine, "fork").n_kept, 2);
    go_back(&b, "fork", TURNS(2));
    assert_same(&b, "fork", "twin");
    if (rod_session_export(b.c.engine, "", "s", &bytes, &n, &err)) fail_msg("%s", err.message);
    if (rod_session_import(b.c.engine, "", "copy", bytes, n, &info, &err)) fail_msg("%s", err.message);
    assert_true(info.keep_turns == 8 && info.n_kept == 0);
    if (rod_session_import(b.c.engine, "", "s", bytes, n, &info, &err)) fail_msg("%s", err.message);
    assert_int_equal(session_info(b.c.engine, "s").n_kept, 0); /* replaced */
    told(&b, "s", 1), told(&b, "copy", 1);
    assert_int_equal(session_info(b.c.engine, "copy").n_kept, 1);
    free(bytes);
    static const char *const all[] = {"s", "fork", "copy", "twin"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (rod_session_delete(b.c.engine, "", all[i], &err)) fail_msg("%s", err.message);
    const struct rod_stats stats = stats_of(b.c.engine);
    assert_int_equal(stats.kept_turns, 0);
    assert_int_equal(stats.state_file_bytes, 0);
    assert_int_equal(stats.session_host_bytes, 0);
    if (on_file) assert_int_equal(count_in(dir, ""), 0);
    setup_close(&b);
}

/* ---- budgets ---- */

static void kept_turns_go_before_sessions_do(void **state) {
    (void)state;
    struct setup b;
    begin(&b, CONFIG());
    told(&b, "measure", 0);
    const struct rod_session_info one = session_info(b.c.engine, "measure");
    const uint64_t file = stats_of(b.c.engine).state_file_bytes;
    setup_close(&b);
    if (dir) remove_dir(dir);
    dir = NULL;
    begin(&b, CONFIG(.state_disk_bytes = 20 * file,
                     .state_host_bytes = on_file ? 64u << 20 : 22 * (one.state_bytes + 4096)));
    for (int i = 0; i < 6; i++) {
        const char id[] = {'s', (char)('0' + i), 0};
        make_keeping(&b, id, 16);
        for (unsigned t = 0; t < 12; t++) told(&b, id, t);
    }
    struct rod_stats stats = stats_of(b.c.engine);
    assert_int_equal(stats.sessions, 6);
    assert_int_equal(stats.sessions_evicted, 0);
    assert_true(stats.kept_turns > 0);
    if (on_file) assert_in_range(stats.state_file_bytes, 6 * one.state_bytes, 20 * file);
    if (on_file) assert_true(stats.kept_turns <= 5); /* a quarter of the disk */
    if (!on_file)                                    /* beginnings take nothing */
        assert_in_range(stats.kept_turns, 7, 6 + 22 * (one.state_bytes + 4096) / 4 / one.state_bytes);
    for (int i = 0; i < 6; i++) {
        const char id[] = {'s', (char)('0' + i), 0};
        const struct rod_session_info info = session_info(b.c.engine, id);
        assert_int_equal(info.version, 12);
        if (info.n_kept) go_back(&b, id, VERSION(info.kept[0].version));
    }
    setup_close(&b);
}

static void a_file_that_no_session_lists_goes_and_one_that_is_missing_is_no_place(void **state) {
    (void)state;
    struct setup b;
    begin(&b, CONFIG());
    make_keeping(&b, "s", 8);
    for (unsigned i = 0; i < 4; i++) told(&b, "s", i);
    setup_close(&b);
    DIR *list = opendir(dir);
    char from[512] = "", to[600];
    for (struct dirent *e; (e = readdir(list));)
        if (strstr(e->d_name, "0000000000000003.kept")) snprintf(from, sizeof from, "%s/%.200s", dir, e->d_name);
    closedir(list);
    assert_true(*from);
    snprintf(to, sizeof to, "%.*s9.kept", (int)strlen(from) - 6, from);
    if (rename(from, to)) fail(); /* as a crash between two steps would leave it */
    begin(&b, CONFIG());
    assert_int_equal(count_in(dir, ".kept"), 3);
    assert_int_equal(session_info(b.c.engine, "s").n_kept, 3);
    refuse_back(&b, "s", TURNS(1), ROD_ENOTKEPT, "version 2, 2 turns back");
    go_back(&b, "s", VERSION(2));
    told(&b, "twin", 0), told(&b, "twin", 1);
    assert_same(&b, "s", "twin");
    setup_close(&b);
}

/* ---- random lives ---- */

enum { MOST_TURNS = 64 };
struct life { /* what counts of a session */
    uint64_t version;
    size_t n;
    unsigned what[MOST_TURNS];
    uint64_t made[MOST_TURNS + 1]; /* the version in which it stood behind so many turns */
};

static void life_check(struct setup *b, const struct life *l, unsigned *round) {
    char id[32];
    snprintf(id, sizeof id, "check-%u", (*round)++);
    for (size_t i = 0; i < l->n; i++) told(b, id, l->what[i]);
    struct rod_session_info fork;
    struct rod_error err;
    if (rod_session_create(b->c.engine, "", &(struct rod_session_new){.from = "s"}, &fork, &err))
        fail_msg("%s", err.message);
    if (l->n) {
        assert_same(b, fork.id, id);
        if (rod_session_delete(b->c.engine, "", id, &err)) fail_msg("%s", err.message);
    }
    if (rod_session_delete(b->c.engine, "", fork.id, &err)) fail_msg("%s", err.message);
}

static void a_life_of_turns_and_ways_back_is_the_turns_that_count(void **state) {
    (void)state;
    enum { STEPS = 220 };
    struct setup b;
    struct life l = {0};
    const unsigned first = (unsigned)getpid();
    unsigned seed = first, round = 0;
    uint64_t n_back = 0;
    print_message("note: seed %u\n", first);
    begin(&b, CONFIG());
    make_keeping(&b, "s", 5);
    for (int step = 0; step < STEPS; step++) {
        const struct rod_session_info info = session_info(b.c.engine, "s");
        const unsigned r = (unsigned)rand_r(&seed) % 20;
        assert_int_equal(info.version, l.version);
        if (r < 11 && l.n < MOST_TURNS) {
            l.what[l.n] = (unsigned)rand_r(&seed);
            told(&b, "s", l.what[l.n++]);
            l.made[l.n] = ++l.version;
        } else if (r < 15 && info.n_kept) {
            const struct rod_kept_turn to = info.kept[(unsigned)rand_r(&seed) % info.n_kept];
            if (l.made[l.n - to.turns] != to.version)
                fail_msg("seed %u: version %llu is kept, want %llu", first, (unsigned long long)to.version,
                         (unsigned long long)l.made[l.n - to.turns]);
            assert_int_equal(go_back(&b, "s", r % 2 ? TURNS(to.turns) : VERSION(to.version)).version, l.version + 1);
            l.n -= to.turns;
            l.made[l.n] = ++l.version;
            n_back++;
        } else if (r < 16) {
            life_check(&b, &l, &round);
        } else if (r < 17) {
            struct answer a;
            struct rod_request *q = turn_request(&a, "s", text, 3, 3);
            q->turn->create = false;
            q->turn->beside = true;
            turn_ok(&b.c, q, &a);
            assert_int_equal(a.end.session_version, l.version);
            collect_free(&a);
        } else if (r < 18) {
            struct rod_session_info changed;
            const struct rod_session_change change = {
                .has_pin = true, .pin = r % 2, .has_keep = true, .keep_turns = 3 + (unsigned)rand_r(&seed) % 5};
            if (rod_session_change(b.c.engine, "", "s", &change, &changed, NULL)) fail();
            assert_true(changed.n_kept <= changed.keep_turns);
        } else if (r < 19 && on_file) {
            setup_close(&b);
            begin(&b, CONFIG());
            assert_int_equal(session_info(b.c.engine, "s").n_kept, info.n_kept);
        } else {
            struct answer a;
            collect_submit(&b.c, turn_request(&a, "s", text, 4, 100000));
            while (!a.n_ids) collect_now(&b.c);
            rod_cancel(b.c.engine, a.ticket);
            collect_until(&b.c, &a, 1);
            collect_free(&a);
        }
        if (l.n == MOST_TURNS) break;
    }
    if (on_file) assert_int_equal(count_in(dir, ".kept"), session_info(b.c.engine, "s").n_kept);
    assert_true(n_back > 5);
    setup_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ALL(back_is_the_state_of_that_time_under_a_new_version),
        ALL(what_is_not_kept_is_told_with_the_nearest),
        ALL(kept_turns_thin_out_by_powers_of_two),
        ALL(keys_of_turns_that_are_gone_are_known_and_run_no_second_time),
        IN_FILES(kept_turns_outlive_the_server_and_are_there_for_another),
        ALL(forks_copies_and_removed_sessions_have_nothing_of_it),
        ALL(kept_turns_go_before_sessions_do),
        IN_FILES(a_file_that_no_session_lists_goes_and_one_that_is_missing_is_no_place),
        ALL(a_life_of_turns_and_ways_back_is_the_turns_that_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
