/* test_engine_conversations.c - prompts that come again under a name: what was read or said is not read again, whatever
 * host memory has lost and whichever engine of the folder is asked; answers are those of an engine without a cache or,
 * behind an answer, of a session; nothing crosses tenants.
 */
#include "tests/sessions_folder.h"
#include "tests/talks.h"

static void begin(struct setup *b, uint64_t host_bytes) {
    begin_with(b, CONFIG(.state_host_bytes = host_bytes, .prefix_cache_bytes = 64u << 20));
    b->c.engine->copy_ns = 0;
}

enum { ROOM = 64 << 20 };

static void a_restart_reads_nothing_again(void **state) {
    (void)state;
    struct talk t;
    talk_begin(&t, "thread", 100, 1);
    for (int turn = 0; turn < 12; turn++) {
        struct setup b;
        begin(&b, ROOM);
        const uint64_t n_before = turn ? 1 : t.n; /* the answer's last token was not read */
        talk_text(&t, 20, 2);
        const uint64_t read = talk_ask(&b, &t, 9);
        if (read != n_before + 20)
            fail_msg("turn %d: %llu tokens were read, want %llu", turn, (unsigned long long)read,
                     (unsigned long long)n_before + 20);
        setup_close(&b);
    }
}

/* The folder as a killed process leaves it: as it is when the client has its answer. */
static void what_was_answered_is_in_files(void **state) {
    (void)state;
    struct talk t;
    char command[512];
    talk_begin(&t, "thread", 100, 1);
    for (int turn = 0; turn < 6; turn++) {
        struct setup b;
        char *lived_in = dir;
        begin(&b, ROOM);
        talk_text(&t, 20, 2);
        const uint64_t read = talk_ask(&b, &t, 9), want = turn ? 21 : 120;
        if (read != want)
            fail_msg("turn %d: %llu tokens were read, want %llu", turn, (unsigned long long)read,
                     (unsigned long long)want);
        char *next = make_dir();
        snprintf(command, sizeof command, "cp -a %s/. %s", dir, next);
        assert_int_equal(system(command), 0);
        setup_close(&b);
        dir = next;
        remove_dir(lived_in);
    }
}

static void a_conversation_is_listed_and_removed_with_its_states(void **state) {
    (void)state;
    struct setup b;
    struct rod_conversation_info *infos;
    struct rod_error err;
    struct rod_notes_seen seen = {0};
    size_t n, n_bytes;
    void *bytes;
    bool more;
    for (int durable = 0; durable < 2; durable++) {
        char *none = strdup(""), *folder = dir;
        if (!durable) dir = none;
        struct talk one, two;
        begin(&b, ROOM);
        talk_begin(&one, "one", 100, 1), talk_begin(&two, "two", 50, 2);
        talk_text(&one, 20, 2), talk_text(&two, 20, 2);
        talk_ask(&b, &one, 9), talk_ask(&b, &two, 9);
        assert_int_equal(rod_conversation_note(b.c.engine, "a", "one", "said", 4, &seen, &err), 0);
        assert_int_equal(rod_conversation_list(b.c.engine, "a", NULL, 1, &infos, &n, &more, &err), 0);
        assert_int_equal(n, 1);
        assert_true(more);
        assert_string_equal(infos[0].name, "one");
        assert_int_equal(infos[0].n_lanes, 1);
        assert_int_equal(infos[0].n_tok, 128); /* the last token was not read */
        assert_true(infos[0].n_states >= 2 && infos[0].state_bytes > 0);
        assert_int_equal(infos[0].durable, durable);
        free(infos);
        assert_int_equal(rod_conversation_list(b.c.engine, "b", NULL, 9, &infos, &n, &more, &err), 0);
        assert_int_equal(n, 0);
        assert_int_equal(rod_conversation_delete(b.c.engine, "b", "one", &err), ROD_ENOTFOUND);
        assert_int_equal(rod_conversation_delete(b.c.engine, "a", "one", &err), 0);
        assert_int_equal(rod_conversation_delete(b.c.engine, "a", "one", &err), ROD_ENOTFOUND);
        talk_text(&one, 20, 2), talk_text(&two, 20, 2);
        const size_t whole = one.n;
        const uint64_t read = talk_ask(&b, &one, 9), other = talk_ask(&b, &two, 9);
        if (read < whole - 100)
            fail_msg("%llu of %zu tokens were read", (unsigned long long)read, whole); /* the head */
        assert_int_equal(other, 21);
        seen = (struct rod_notes_seen){0};
        assert_int_equal(rod_conversation_open(b.c.engine, "a", "one", &seen, &bytes, &n_bytes, &err), 0);
        assert_null(bytes);
        setup_close(&b);
        dir = folder;
        free(none);
    }
}

/* The states are in memory under the first name, and in its files, which get a second name each. */
static void equal_prompts_are_states_of_each_name(void **state) {
    (void)state;
    struct setup b;
    struct talk one, two;
    struct rod_conversation_info info;
    struct rod_error err;
    talk_begin(&one, "one", 100, 1), talk_begin(&two, "two", 100, 1);
    begin(&b, ROOM);
    for (int turn = 0; turn < 3; turn++) {
        talk_text(&one, 20, 2), talk_text(&two, 20, 2);
        talk_ask(&b, &one, 9);
        const uint64_t read = talk_ask(&b, &two, 9);
        if (read > 24) fail_msg("turn %d: %llu tokens were read", turn, (unsigned long long)read);
        assert_int_equal(rod_conversation_get(b.c.engine, "a", "two", &info, &err), 0);
        if (!info.durable || info.n_states < 2 || info.n_tok != two.n - 1)
            fail_msg("turn %d: durable %d, %u states of %llu tokens, want %zu", turn, info.durable,
                     (unsigned)info.n_states, (unsigned long long)info.n_tok, two.n - 1);
    }
    assert_int_equal(rod_conversation_delete(b.c.engine, "a", "one", &err), 0);
    for (int opened = 0; opened < 2; opened++) {
        talk_text(&two, 20, 2);
        const uint64_t read = talk_ask(&b, &two, 9);
        if (read != 21)
            fail_msg("without the first, opened %d times: %llu were read", opened, (unsigned long long)read);
        setup_close(&b);
        begin(&b, ROOM);
    }
    setup_close(&b);
}

/* The engine sleeps, so this thread may call in its place. */
static void what_ran_while_it_was_removed_is_not_kept(void **state) {
    (void)state;
    struct setup b;
    struct talk t;
    struct rod_conversation_info info;
    struct rod_error err;
    begin(&b, ROOM);
    struct conversations *c = b.c.engine->conversations;
    const uint64_t since = conversations_now(c);
    talk_begin(&t, "thread", 100, 1);
    talk_text(&t, 20, 2);
    talk_ask(&b, &t, 9);
    assert_int_equal(rod_conversation_delete(b.c.engine, "a", "thread", &err), 0);
    const struct conversation_prompt prompt = {
        .tenant = "a", .ids = t.ids, .n = t.n, .n_head = 100, .n_first = 120, .turn = 1};
    const struct conversation_place place = conversations_place(c, &prompt, 112, CONVERSATION_PROMPT, false);
    struct state_buffer *buffer = state_buffer_new(NULL, b.c.engine->parts.ops->state_bytes(b.be, 112));
    memset(buffer->bytes, 0, buffer->n_bytes);
    conversations_keep(c, "a", "thread", &place, buffer, since, 0, NULL);
    assert_int_equal(rod_conversation_get(b.c.engine, "a", "thread", &info, &err), ROD_ENOTFOUND);
    conversations_keep(c, "a", "thread", &place, buffer, conversations_now(c), 0, NULL);
    assert_int_equal(rod_conversation_get(b.c.engine, "a", "thread", &info, &err), 0);
    state_buffer_release(buffer);
    setup_close(&b);
}

static void what_another_engine_removed_is_gone(void **state) {
    (void)state;
    struct setup a, b;
    struct talk t;
    struct rod_conversation_info info, *infos;
    struct rod_error err;
    size_t n;
    bool more;
    talk_begin(&t, "thread", 100, 1);
    talk_text(&t, 20, 2);
    begin(&a, ROOM), begin(&b, ROOM);
    talk_ask(&a, &t, 9);
    assert_int_equal(rod_conversation_get(b.c.engine, "a", "thread", &info, &err), 0);
    assert_int_equal(rod_conversation_delete(b.c.engine, "a", "thread", &err), 0);
    assert_int_equal(rod_conversation_list(a.c.engine, "a", NULL, 9, &infos, &n, &more, &err), 0);
    assert_int_equal(n, 0);
    talk_text(&t, 20, 2);
    look(&a, &t);
    const size_t all = t.n;
    const uint64_t read = talk_ask(&a, &t, 9);
    if (read < all - 100) fail_msg("%llu of %zu tokens were read", (unsigned long long)read, all); /* but the head */
    setup_close(&a), setup_close(&b);
}

static void a_conversation_ends_by_its_time_in_an_idle_engine(void **state) {
    (void)state;
    struct setup b;
    struct talk t;
    struct rod_conversation_info *infos;
    struct rod_error err;
    size_t n = 1;
    bool more;
    const struct rod_engine_config config =
        CONFIG(.state_host_bytes = ROOM, .prefix_cache_bytes = ROOM, .session_ttl_s = 1);
    talk_begin(&t, "thread", 100, 1);
    talk_text(&t, 20, 2);
    begin_with(&b, config);
    talk_ask(&b, &t, 9);
    for (int ms = 0; n || stats_of(b.c.engine).prefix_entries; ms += 100) {
        if (ms > 10000) fail_msg("after 10 s there are %zu conversations and their states", n);
        usleep(100000);
        assert_int_equal(rod_conversation_list(b.c.engine, "a", NULL, 9, &infos, &n, &more, &err), 0);
        free(infos);
    }
    talk_ask(&b, &t, 9);
    setup_close(&b);
    sleep(3); /* it ends while no engine has the folder */
    begin_with(&b, config);
    assert_int_equal(rod_conversation_list(b.c.engine, "a", NULL, 9, &infos, &n, &more, &err), 0);
    assert_int_equal(n, 0);
    setup_close(&b);
}

static void files_of_sessions_and_conversations_have_one_budget(void **state) {
    (void)state;
    enum { BUDGET = 800 << 10 };
    struct setup b;
    begin_with(&b, CONFIG(.state_host_bytes = ROOM, .prefix_cache_bytes = ROOM, .state_disk_bytes = BUDGET));
    uint64_t most_lanes = 0;
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 30; i++) {
            char name[16];
            int32_t ids[20] = {2};
            struct answer a;
            snprintf(name, sizeof name, "s%d-%d", round, i);
            turn_run(&b.c, turn_request(&a, name, ids, 20, 3), &a);
            if (a.failed) fail_msg("%s: %s", name, a.end.error.message);
            collect_free(&a);
            struct talk t;
            talk_begin(&t, name, 20, 1);
            talk_text(&t, 20, (uint64_t)(round * 100 + i));
            talk_ask(&b, &t, 9);
            const uint64_t lanes = stats_of(b.c.engine).lane_file_bytes;
            if (lanes > most_lanes) most_lanes = lanes;
        }
    for (int ms = 0; stats_of(b.c.engine).state_file_bytes + stats_of(b.c.engine).lane_file_bytes > BUDGET; ms += 10) {
        if (ms > 5000)
            fail_msg("sessions take %llu, conversations %llu of %d bytes",
                     (unsigned long long)stats_of(b.c.engine).state_file_bytes,
                     (unsigned long long)stats_of(b.c.engine).lane_file_bytes, BUDGET);
        usleep(10000);
    }
    if (most_lanes > BUDGET / 2 || most_lanes < BUDGET / 4)
        fail_msg("conversations took %llu of %d bytes", (unsigned long long)most_lanes, BUDGET);
    assert_true(stats_of(b.c.engine).state_file_bytes > BUDGET / 4);
    setup_close(&b);
}

static void no_tenant_and_no_salt_finds_anothers(void **state) {
    (void)state;
    struct setup b;
    struct talk t, other;
    talk_begin(&t, "thread", 100, 1);
    talk_text(&t, 20, 2);
    for (int again = 0; again < 2; again++) { /* in memory, then in files alone */
        begin(&b, ROOM);
        other = t;
        if (!again) talk_ask(&b, &t, 9);
        other.tenant = "b";
        const size_t n = other.n;
        if (again) look(&b, &other);
        const uint64_t read = talk_ask(&b, &other, 1);
        if (read != n) fail_msg("%d: %llu of %zu tokens were read", again, (unsigned long long)read, n);
        other = t;
        struct answer a;
        struct rod_request *r = talk_request(&other, &a, 1);
        r->cache_salt = strdup("salt");
        finish(&b, r, &a);
        assert_int_equal(a.end.cached_tok, 0);
        collect_free(&a);
        setup_close(&b);
        remove_dir(dir);
        dir = make_dir();
        begin(&b, ROOM);
        talk_begin(&t, "thread", 100, 1);
        talk_text(&t, 20, 2);
        talk_ask(&b, &t, 9);
        setup_close(&b);
    }
}

static void notes_come_back_in_order_and_once(void **state) {
    (void)state;
    struct setup b;
    struct rod_error err;
    struct rod_notes_seen seen = {0}, other = {0};
    void *bytes;
    size_t n;
    char want[4000];
    size_t n_want = 0;
    begin(&b, ROOM);
    for (int i = 0; i < 100; i++) {
        char note[32];
        const uint32_t len = (uint32_t)snprintf(note, sizeof note, "note %d", i);
        memcpy(want + n_want, &len, 4);
        memcpy(want + n_want + 4, note, len);
        n_want += 4 + len;
        assert_int_equal(rod_conversation_note(b.c.engine, "a", "x", note, len, i % 2 ? &seen : &other, &err), 0);
        if (i % 30 == 29) setup_close(&b), begin(&b, ROOM);
    }
    seen = (struct rod_notes_seen){0};
    assert_int_equal(rod_conversation_open(b.c.engine, "a", "x", &seen, &bytes, &n, &err), 0);
    assert_int_equal(n, n_want);
    assert_memory_equal(bytes, want, n);
    free(bytes);
    assert_int_equal(rod_conversation_open(b.c.engine, "a", "x", &seen, &bytes, &n, &err), 0);
    assert_null(bytes);
    setup_close(&b);
}

/* Two engines of one folder with room for few states, talks that go on, are edited, are begun anew and come to either
 * engine, which is closed and opened now and then. */
static void random_lives(void **state) {
    (void)state;
    const uint64_t seed = getenv("RODIMUS_TEST_SEED") ? strtoull(getenv("RODIMUS_TEST_SEED"), NULL, 10) : 11;
    const size_t n_asks = getenv("RODIMUS_TEST_COUNT") ? strtoull(getenv("RODIMUS_TEST_COUNT"), NULL, 10) : 300;
    enum { TALKS = 12, FEW = 600 << 10 };
    static struct talk talks[TALKS];
    struct setup b[2], cold;
    uint32_t draw = 0;
#define DRAW(n) ((size_t)(philox_uniform(seed, draw++, 0) * (double)(n)))
    uint64_t n_read = 0, n_new = 0, n_edits = 0;
    size_t known[TALKS] = {0};
    begin(&b[0], FEW), begin(&b[1], FEW);
    setup_open(&cold, OPTIONS(.kind = FAKE_HASH), CONFIG());
    for (size_t ask = 0; ask < n_asks; ask++) {
        const size_t i = DRAW(TALKS), at = DRAW(2);
        struct talk *t = &talks[i];
        char what[96];
        bool edited = false;
        if (!t->n || t->n > MOST - 200 || t->n_marks > MAX_MARKS - 4) {
            char name[32];
            snprintf(name, sizeof name, "talk %zu", i);
            talk_begin(t, name, 20 + 30 * (i % 3), 1 + i % 3);
            known[i] = 0;
        } else if (DRAW(6) == 0 && t->n_texts > 1) { /* back behind an earlier answer */
            t->n_texts = 1 + (uint32_t)DRAW(t->n_texts - 1);
            t->n_marks = 1 + 2 * t->n_texts;
            t->n = t->marks[t->n_marks - 1];
            edited = true;
            n_edits++;
        }
        talk_text(t, 1 + DRAW(40), seed + ask);
        snprintf(what, sizeof what, "seed %llu, ask %zu: talk %zu of %zu tokens%s", (unsigned long long)seed, ask, i,
                 t->n, edited ? ", edited" : "");
        look(&b[at], t);
        const size_t n = t->n;
        const uint64_t read = talk_ask_beside(&b[at], &cold, t, 2 + (uint32_t)DRAW(12), what);
        if (!edited && known[i]) {
            n_read += read;
            n_new += n - known[i];
            if (read > n - known[i])
                fail_msg("%s: %llu tokens were read, %zu are new", what, (unsigned long long)read, n - known[i]);
        }
        known[i] = t->n - 1;
        if (DRAW(40) == 0) setup_close(&b[at]), begin(&b[at], FEW);
    }
    if (n_asks > 100) assert_true(n_edits > 5);
    struct rod_stats stats = stats_of(b[0].c.engine);
    print_message("%llu tokens were read for %llu new ones; %llu states in files, %llu in memory, %llu loads\n",
                  (unsigned long long)n_read, (unsigned long long)n_new, (unsigned long long)stats.lane_states_file,
                  (unsigned long long)stats.lane_states_host, (unsigned long long)stats.lane_loads);
    setup_close(&b[0]), setup_close(&b[1]), setup_close(&cold);
#undef DRAW
}

/* The states that a request leaves are still in slots: the next one takes a copy there, and no state comes in. */
static void a_state_that_a_free_slot_has_is_not_loaded(void **state) {
    (void)state;
    struct setup b;
    struct talk t;
    talk_begin(&t, "thread", 100, 1);
    begin(&b, ROOM);
    for (int turn = 0; turn < 5; turn++) {
        const uint32_t copies = atomic_load(&b.be->n_copies);
        talk_text(&t, 20, 2);
        const uint64_t read = talk_ask(&b, &t, 9);
        if (turn) assert_int_equal(read, 21);
        /* the slot's, and at a stop one that goes out: 120 tokens stop at 96, their head, and 112 */
        const uint32_t want = 2, got = atomic_load(&b.be->n_copies) - copies;
        if (got != want) fail_msg("turn %d: %u copies within the device, want %u", turn, got, want);
        for (int i = 0; i < 1000 && stats_of(b.c.engine).slots_used; i++) collect_wait(&b.c, 1);
    }
    setup_close(&b);
}

static int make_folder_on_device(void **state) {
    make_folder(state);
    setup_on_device = true;
    return 0;
}
#define ON_A_DEVICE(test)                                                                                              \
    { #test " on a device that samples", test, make_folder_on_device, remove_folder, NULL }

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_A_FOLDER(a_restart_reads_nothing_again),
        IN_A_FOLDER(what_was_answered_is_in_files),
        IN_A_FOLDER(a_conversation_is_listed_and_removed_with_its_states),
        IN_A_FOLDER(equal_prompts_are_states_of_each_name),
        IN_A_FOLDER(what_ran_while_it_was_removed_is_not_kept),
        IN_A_FOLDER(what_another_engine_removed_is_gone),
        IN_A_FOLDER(a_conversation_ends_by_its_time_in_an_idle_engine),
        IN_A_FOLDER(files_of_sessions_and_conversations_have_one_budget),
        IN_A_FOLDER(no_tenant_and_no_salt_finds_anothers),
        IN_A_FOLDER(notes_come_back_in_order_and_once),
        IN_A_FOLDER(random_lives),
        ON_A_DEVICE(a_restart_reads_nothing_again),
        ON_A_DEVICE(what_was_answered_is_in_files),
        ON_A_DEVICE(a_state_that_a_free_slot_has_is_not_loaded),
        ON_A_DEVICE(random_lives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
