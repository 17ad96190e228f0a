/* test_sessions.c - turns of sessions, over both kinds of fake device, in memory and in a folder: what they read, what
 * they leave, who may have them. */
#include "tests/sessions_places.h"

static void begin(struct setup *b, struct setup_options o, struct rod_engine_config config) {
    if (on_file && !dir) dir = make_dir();
    config.state_dir = dir;
    if (!config.state_host_bytes) config.state_host_bytes = 64u << 20;
    setup_open(b, o, config);
}

#define BEGIN(b) begin(b, OPTIONS(.kind = FAKE_HASH), CONFIG())

static const int32_t first[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, more[] = {20, 21, 22};

/* A conversation of three turns in one session is what one request after the other without a session gives. */
static void turns_go_on_and_read_their_own_tokens_alone(void **state) {
    (void)state;
    struct setup b, plain;
    struct answer a, whole;
    BEGIN(&b);
    setup_open(&plain, OPTIONS(.kind = FAKE_HASH), CONFIG());
    int32_t all[64];
    size_t n_all = 0;
    for (int turn = 0; turn < 3; turn++) {
        const int32_t *ids = turn ? more : first;
        const size_t n = turn ? 3 : 11, before = n_all;
        memcpy(all + n_all, ids, n * sizeof *ids);
        n_all += n;
        struct rod_request *r = collect_request(all, n_all, &whole);
        r->ignore_eos = true;
        r->max_tokens = 5;
        r->sampling.temperature = 1;
        r->sampling.seed = 99;
        finish(&plain, r, &whole);
        const uint64_t read = stats_of(b.c.engine).prefill_tok;
        turn_ok(&b.c, turn_request(&a, "s", ids, n, 5), &a);
        collect_assert_ids(&a, whole.ids, 5, "a session's turn");
        assert_string_equal(a.end.session, "s");
        assert_int_equal(a.end.session_version, turn + 1);
        assert_false(a.end.replayed);
        assert_null(a.end.state);
        assert_int_equal(a.end.prompt_tok, n_all);
        assert_int_equal(a.end.cached_tok, turn ? before - 1 : 0); /* the last one was pending */
        assert_int_equal(stats_of(b.c.engine).prefill_tok - read, n + (turn > 0));
        memcpy(all + n_all, a.ids, 5 * sizeof *all);
        n_all += 5;
        const struct rod_session_info info = session_info(b.c.engine, "s");
        assert_int_equal(info.version, turn + 1);
        assert_int_equal(info.n_tok, n_all - 1);
        assert_false(info.busy);
        assert_string_equal(info.tier, "host");
        collect_free(&a), collect_free(&whole);
    }
    const struct rod_stats stats = stats_of(b.c.engine);
    assert_int_equal(stats.sessions, 1);
    assert_int_equal(stats.state_saves, on_file ? 3 : 0);
    assert_int_equal(stats.state_loads, 0);
    if (on_file) assert_int_equal(count_in(dir, ""), 1);
    setup_close(&b), setup_close(&plain);
}

static void what_is_wrong_with_a_turn_is_told_and_changes_nothing(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    BEGIN(&b);
    struct rod_request *r = turn_request(&a, "s", first, 11, 5);
    r->turn->create = false;
    turn_fails(&b.c, r, &a, ROD_ENOTFOUND);
    turn_ok(&b.c, turn_request(&a, "s", first, 11, 5), &a);
    collect_free(&a);
    r = turn_request(&a, "s", more, 3, 5);
    free(r->turn->tenant);
    r->turn->tenant = strdup("another");
    r->turn->create = false;
    turn_fails(&b.c, r, &a, ROD_ENOTFOUND);
    r = turn_request(&a, "s", more, 3, 5);
    r->turn->has_expected = true;
    r->turn->expected_version = 2;
    turn_fails(&b.c, r, &a, ROD_EVERSION);
    r = turn_request(&a, "s", more, 3, 5);
    r->turn->has_expected = true;
    r->turn->expected_version = 1;
    turn_ok(&b.c, r, &a);
    assert_int_equal(a.end.session_version, 2);
    collect_free(&a);
    r = turn_request(&a, "new", more, 0, 5); /* nothing to read, and no session */
    turn_fails(&b.c, r, &a, ROD_EINVALID);
    r = turn_request(&a, "new", more, 3, 5);
    r->turn->from = strdup("nobody");
    turn_fails(&b.c, r, &a, ROD_ENOTFOUND);
    struct rod_session_info info;
    assert_int_equal(rod_session_get(b.c.engine, "", "new", &info, NULL), ROD_ENOTFOUND);
    assert_int_equal(session_info(b.c.engine, "s").version, 2);
    struct rod_error err;
    static const char *const bad[] = {"", "a b", "a/b", "\xc3\xa4"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t ticket;
        r = turn_request(&a, bad[i], more, 3, 5);
        assert_int_equal(rod_submit(b.c.engine, r, &ticket, &err), ROD_EINVALID);
        assert_string_equal(err.param, "session_id");
        rod_request_free(r);
        collect_free(&a);
    }
    struct answer other;
    struct rod_request *two[] = {turn_request(&a, "s", more, 3, 5), turn_request(&other, "s", more, 3, 5)};
    uint64_t tickets[2];
    assert_int_equal(rod_submit_all(b.c.engine, two, 2, tickets, &err), ROD_EINVALID);
    assert_string_equal(err.param, "n");
    rod_request_free(two[0]), rod_request_free(two[1]);
    collect_free(&a), collect_free(&other);
    if (on_file) assert_int_equal(count_in(dir, ""), 1);
    setup_close(&b);
}

/* ---- forks ---- */

static void a_fork_and_its_source_do_not_see_each_other(void **state) {
    (void)state;
    struct setup b;
    struct answer a, one, two;
    struct rod_session_info info;
    struct rod_error err;
    BEGIN(&b);
    turn_ok(&b.c, turn_request(&a, "s", first, 11, 5), &a);
    collect_free(&a);
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "t", .from = "s"}, &info, &err))
        fail_msg("%s", err.message);
    assert_string_equal(info.id, "t");
    assert_string_equal(info.parent, "s");
    assert_int_equal(info.version, 1);
    assert_int_equal(rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "t", .from = "s"}, &info, &err),
                     ROD_EEXISTS);
    assert_int_equal(
        rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "u", .from = "nobody"}, &info, &err),
        ROD_ENOTFOUND);
    assert_int_equal(
        rod_session_create(b.c.engine, "other", &(struct rod_session_new){.id = "u", .from = "s"}, &info, &err),
        ROD_ENOTFOUND);
    turn_ok(&b.c, turn_request(&one, "t", more, 3, 6), &one);
    turn_ok(&b.c, turn_request(&a, "s", first, 4, 6), &a); /* goes another way */
    collect_free(&a);
    if (rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = NULL, .from = "t"}, &info, &err))
        fail_msg("%s", err.message);
    assert_int_equal(info.version, 2);
    assert_int_equal(session_info(b.c.engine, "s").version, 2);
    assert_int_equal(session_info(b.c.engine, "t").version, 2);
    struct rod_request *r = turn_request(&two, "from-a-turn", more, 3, 6);
    r->turn->from = strdup("t");
    turn_ok(&b.c, r, &two);
    assert_int_equal(two.end.session_version, 3);
    collect_free(&two);
    turn_ok(&b.c, turn_request(&two, info.id, more, 3, 6), &two);
    turn_ok(&b.c, turn_request(&a, "from-a-turn", NULL, 0, 1), &a); /* goes on from its pending token */
    struct answer c;
    turn_ok(&b.c, turn_request(&c, info.id, NULL, 0, 1), &c);
    assert_int_equal(a.ids[0], c.ids[0]);
    collect_free(&a), collect_free(&c), collect_free(&one), collect_free(&two);
    setup_close(&b);
}

static void sessions_are_made_listed_and_deleted(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    struct rod_session_info info, *infos;
    struct rod_error err;
    size_t n;
    bool has_more;
    begin(&b, OPTIONS(.kind = FAKE_HASH), CONFIG(.session_ttl_s = 1000));
    for (int i = 0; i < 5; i++) {
        const char id[] = {(char)('e' - i), 0};
        const struct rod_session_new made = {.id = id, .pin = i == 1, .ttl_s = 77, .has_ttl = i == 2};
        if (rod_session_create(b.c.engine, "", &made, &info, &err)) fail_msg("%s", err.message);
        assert_int_equal(info.version, 0);
        assert_int_equal(info.expires_unix_s - info.used_unix_s, i == 1 ? -info.used_unix_s : i == 2 ? 77 : 1000);
        assert_int_equal(rod_session_create(b.c.engine, "", &made, &info, &err), ROD_EEXISTS);
    }
    if (rod_session_create(b.c.engine, "other", &(struct rod_session_new){.id = "c"}, &info, &err)) fail();
    if (rod_session_list(b.c.engine, "", NULL, 2, &infos, &n, &has_more, &err)) fail_msg("%s", err.message);
    assert_true(n == 2 && has_more && !strcmp(infos[0].id, "a") && !strcmp(infos[1].id, "b"));
    free(infos);
    if (rod_session_list(b.c.engine, "", "b", 10, &infos, &n, &has_more, &err)) fail_msg("%s", err.message);
    assert_true(n == 3 && !has_more && !strcmp(infos[0].id, "c") && !strcmp(infos[2].id, "e"));
    free(infos);
    struct rod_request *r = turn_request(&a, "c", first, 11, 5);
    r->turn->create = false;
    turn_ok(&b.c, r, &a);
    assert_int_equal(a.end.session_version, 1);
    collect_free(&a);
    assert_int_equal(rod_session_delete(b.c.engine, "another", "c", &err), ROD_ENOTFOUND);
    if (rod_session_delete(b.c.engine, "", "c", &err)) fail_msg("%s", err.message);
    assert_int_equal(rod_session_delete(b.c.engine, "", "c", &err), ROD_ENOTFOUND);
    assert_int_equal(rod_session_get(b.c.engine, "", "c", &info, &err), ROD_ENOTFOUND);
    assert_int_equal(rod_session_get(b.c.engine, "other", "c", &info, &err), 0);
    if (on_file) assert_int_equal(count_in(dir, ""), 5);
    assert_int_equal(stats_of(b.c.engine).sessions, 5);
    setup_close(&b);
}

static void flip_bit(void *bytes, size_t at) {
    unsigned char *b = bytes;
    b[at] = (unsigned char)(b[at] ^ (1u << (at % 8)));
}

static void a_state_moves_as_a_file(void **state) {
    (void)state;
    struct setup b, other;
    struct answer a, whole;
    struct rod_session_info info;
    struct rod_error err;
    void *bytes;
    size_t n;
    BEGIN(&b);
    setup_open(&other, OPTIONS(.kind = FAKE_HASH, .n_slots = 2), CONFIG(.state_host_bytes = 1u << 26));
    turn_ok(&b.c, turn_request(&a, "s", first, 11, 5), &a);
    collect_free(&a);
    if (rod_session_export(b.c.engine, "", "s", &bytes, &n, &err)) fail_msg("%s", err.message);
    assert_int_equal(rod_session_export(b.c.engine, "x", "s", &(void *){0}, &(size_t){0}, &err), ROD_ENOTFOUND);
    turn_ok(&b.c, turn_request(&whole, "s", more, 3, 6), &whole);
    for (int i = 0; i < 3; i++) {
        const char *id = i == 1 ? "copy" : "s";
        if (rod_session_import(other.c.engine, i == 2 ? "tenant" : "", id, bytes, n, &info, &err))
            fail_msg("%s", err.message);
        assert_int_equal(info.version, 1);
        assert_string_equal(info.id, id);
        if (i == 2) continue;
        turn_ok(&other.c, turn_request(&a, id, more, 3, 6), &a);
        collect_assert_ids(&a, whole.ids, 6, "a state that moved");
        assert_int_equal(a.end.session_version, 2);
        collect_free(&a);
    }
    if (rod_session_import(other.c.engine, "", "s", bytes, n, &info, &err)) fail_msg("%s", err.message);
    assert_int_equal(session_info(other.c.engine, "s").version, 1); /* replaced */
    for (size_t i = 0; i < n; i += i < 400 ? 1 : 997) {             /* every byte that is changed is refused */
        flip_bit(bytes, i);
        assert_int_equal(rod_session_import(other.c.engine, "", "bad", bytes, n, &info, &err), ROD_ESTATE);
        flip_bit(bytes, i);
    }
    assert_int_equal(rod_session_import(other.c.engine, "", "bad", bytes, n - 1, &info, &err), ROD_ESTATE);
    assert_int_equal(rod_session_get(other.c.engine, "", "bad", &info, &err), ROD_ENOTFOUND);
    free(bytes);
    collect_free(&whole);
    setup_close(&b), setup_close(&other);
}

/* ---- one turn at a time ---- */

static void turns_of_a_session_run_in_their_order(void **state) {
    (void)state;
    struct setup b;
    struct answer a[4], alone;
    begin(&b, OPTIONS(.kind = FAKE_HASH), CONFIG());
    for (int i = 0; i < 4; i++) collect_submit(&b.c, turn_request(&a[i], "s", i ? more : first, i ? 3 : 11, 5));
    collect_until(&b.c, a, 4);
    for (int i = 0; i < 4; i++) {
        if (a[i].failed) fail_msg("%s", a[i].end.error.message);
        assert_int_equal(a[i].end.session_version, i + 1);
        turn_ok(&b.c, turn_request(&alone, "alone", i ? more : first, i ? 3 : 11, 5), &alone);
        collect_assert_ids(&alone, a[i].ids, a[i].n_ids, "queued");
        collect_free(&alone), collect_free(&a[i]);
    }
    setup_close(&b);
}

static void a_busy_session_is_refused_where_the_config_says_so(void **state) {
    (void)state;
    struct setup b;
    struct answer a, z;
    struct rod_error err;
    begin(&b, OPTIONS(.kind = FAKE_HASH), CONFIG(.session_reject = true));
    collect_submit(&b.c, turn_request(&a, "s", first, 11, 1000000));
    while (!a.n_ids) collect_now(&b.c);
    turn_fails(&b.c, turn_request(&z, "s", more, 3, 5), &z, ROD_EBUSY);
    assert_int_equal(rod_session_get(b.c.engine, "", "s", &(struct rod_session_info){0}, NULL),
                     ROD_ENOTFOUND); /* its first turn is not over */
    assert_int_equal(rod_session_delete(b.c.engine, "", "s", &err), ROD_EBUSY);
    rod_cancel(b.c.engine, a.ticket);
    collect_until(&b.c, &a, 1);
    collect_free(&a);
    for (int i = 0; i < 20; i++) { /* whoever has seen the end may go on */
        turn_ok(&b.c, turn_request(&z, "s", more, 3, 5), &z);
        assert_int_equal(z.end.session_version, i + 1);
        collect_free(&z);
    }
    collect_submit(&b.c, turn_request(&a, "s", first, 11, 1000000));
    while (!a.n_ids) collect_now(&b.c);
    assert_true(session_info(b.c.engine, "s").busy);
    assert_int_equal(session_info(b.c.engine, "s").version, 20);
    rod_cancel(b.c.engine, a.ticket);
    collect_until(&b.c, &a, 1);
    assert_false(session_info(b.c.engine, "s").busy);
    collect_free(&a);
    setup_close(&b);
}

static void a_cancelled_turn_changes_nothing(void **state) {
    (void)state;
    struct setup b, plain;
    struct answer a[3], z, want;
    BEGIN(&b);
    setup_open(&plain, OPTIONS(.kind = FAKE_HASH), CONFIG(.state_host_bytes = 1u << 26));
    turn_ok(&b.c, turn_request(&z, "s", first, 11, 5), &z);
    collect_free(&z);
    turn_ok(&plain.c, turn_request(&z, "s", first, 11, 5), &z);
    collect_free(&z);
    atomic_store(&b.be->gated, true);
    collect_submit(&b.c, turn_request(&a[0], "s", more, 3, 1000));
    sem_wait(&b.be->entered);
    collect_submit(&b.c, turn_request(&a[1], "s", more, 2, 1000)); /* waits in the queue */
    struct rod_request *r = turn_request(&a[2], "new", more, 2, 1000);
    collect_submit(&b.c, r);
    for (int i = 0; i < 3; i++) rod_cancel(b.c.engine, a[i].ticket);
    fake_release(b.be);
    collect_until(&b.c, a, 3);
    for (int i = 0; i < 3; i++) {
        assert_false(a[i].failed);
        assert_int_equal(a[i].end.reason, ROD_FINISH_CANCEL);
        assert_string_equal(a[i].end.session, "");
        collect_free(&a[i]);
    }
    assert_int_equal(session_info(b.c.engine, "s").version, 1);
    assert_int_equal(rod_session_get(b.c.engine, "", "new", &(struct rod_session_info){0}, NULL), ROD_ENOTFOUND);
    turn_ok(&b.c, turn_request(&z, "s", more, 3, 6), &z);
    turn_ok(&plain.c, turn_request(&want, "s", more, 3, 6), &want);
    collect_assert_ids(&z, want.ids, 6, "after a cancel");
    assert_int_equal(z.end.session_version, 2);
    collect_free(&z), collect_free(&want);
    setup_close(&b), setup_close(&plain);
}

/* Cancels that meet a turn anywhere on its way: each ends once, and a version is what was reported as finished. */
static void cancels_come_at_any_moment(void **state) {
    (void)state;
    enum { SESSIONS = 6, AT_ONCE = 24, ROUNDS = 25 };
    struct setup b;
    struct answer a[AT_ONCE];
    unsigned seed = (unsigned)getpid();
    uint64_t versions[SESSIONS] = {0}, n_cancelled = 0, n_finished = 0;
    print_message("note: seed %u\n", seed);
    BEGIN(&b);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < AT_ONCE; i++) {
            const char id[] = {'s', (char)('0' + i % SESSIONS), 0};
            collect_submit(&b.c, turn_request(&a[i], id, more, 3, 1 + (uint32_t)rand_r(&seed) % 6));
        }
        for (int i = 0; i < AT_ONCE; i++) {
            if (rand_r(&seed) % 3 == 0) usleep((useconds_t)rand_r(&seed) % 400);
            collect_now(&b.c);
            const int which = rand_r(&seed) % AT_ONCE;
            if (rand_r(&seed) % 2) rod_cancel(b.c.engine, a[which].ticket); /* also one that is over */
        }
        collect_until(&b.c, a, AT_ONCE);
        for (int i = 0; i < AT_ONCE; i++) {
            if (a[i].failed) fail_msg("%s", a[i].end.error.message);
            const bool cancelled = a[i].end.reason == ROD_FINISH_CANCEL;
            n_cancelled += cancelled, n_finished += !cancelled;
            if (!cancelled && a[i].end.session_version > versions[i % SESSIONS])
                versions[i % SESSIONS] = a[i].end.session_version;
            collect_free(&a[i]);
        }
    }
    uint64_t n_versions = 0;
    for (int i = 0; i < SESSIONS; i++) {
        assert_int_equal(session_info(b.c.engine, (char[]){'s', (char)('0' + i), 0}).version, versions[i]);
        n_versions += versions[i];
    }
    assert_int_equal(n_versions, n_finished);
    assert_true(n_cancelled > 0 && n_finished > 0);
    setup_close(&b);
}

/* ---- idempotency ---- */

static struct rod_request *keyed(struct answer *a, const char *key, uint8_t digest, uint32_t n_tok) {
    struct rod_request *r = turn_request(a, "s", n_tok == 11 ? first : more, n_tok, 5);
    r->turn->idempotency_key = strdup(key);
    r->turn->digest[3] = digest;
    r->n_logprobs = 2;
    return r;
}

static void a_finished_answer_is_given_again(void **state) {
    (void)state;
    struct setup b;
    struct answer a, z;
    BEGIN(&b);
    turn_ok(&b.c, keyed(&a, "one", 1, 11), &a);
    turn_ok(&b.c, keyed(&z, "two", 2, 3), &z);
    collect_free(&z);
    const uint64_t steps = stats_of(b.c.engine).steps;
    for (int i = 0; i < 2; i++) {
        struct rod_request *r = keyed(&z, "one", 1, 11);
        r->turn->has_expected = true; /* of the first time */
        turn_ok(&b.c, r, &z);
        collect_assert_ids(&z, a.ids, a.n_ids, "given again");
        assert_true(z.end.replayed);
        assert_int_equal(z.end.session_version, 1);
        assert_string_equal(z.end.session, "s");
        assert_int_equal(z.end.reason, a.end.reason);
        assert_int_equal(z.end.prompt_tok, a.end.prompt_tok);
        assert_memory_equal(z.logprobs, a.logprobs, a.n_ids * sizeof *a.logprobs);
        assert_int_equal(z.n_top, a.n_top);
        for (uint32_t t = 0; t < a.n_top; t++) {
            assert_int_equal(z.top[t].id, a.top[t].id);
            assert_memory_equal(&z.top[t].logprob, &a.top[t].logprob, sizeof(float));
        }
        collect_free(&z);
    }
    turn_fails(&b.c, keyed(&z, "one", 9, 11), &z, ROD_EINVALID);
    assert_int_equal(stats_of(b.c.engine).steps, steps);
    assert_int_equal(stats_of(b.c.engine).idempotent_replays, 2);
    assert_int_equal(session_info(b.c.engine, "s").version, 2);
    collect_free(&a);
    setup_close(&b);
}

/* ---- what has been said ---- */

/* Tokens of earlier turns count for penalties, as they do in one long answer. */
static void penalties_know_the_earlier_turns(void **state) {
    (void)state;
    struct setup b, plain;
    struct answer whole, a;
    BEGIN(&b);
    setup_open(&plain, OPTIONS(.kind = FAKE_HASH), CONFIG());
    for (int kind = 0; kind < 3; kind++) {
        struct rod_sampling sampling = ROD_SAMPLING_NEUTRAL;
        sampling.temperature = 0.5f;
        sampling.top_k = 40;
        sampling.seed = 3;
        if (kind == 0) sampling.frequency_penalty = 2;
        if (kind == 1) sampling.presence_penalty = 2;
        if (kind == 2) sampling.repetition_penalty = 1.9f;
        char id[] = {'p', (char)('0' + kind), 0};
        struct rod_request *r = collect_request(first, 11, &whole);
        r->ignore_eos = true;
        r->max_tokens = 40;
        r->sampling = sampling;
        r->bias = malloc(40 * sizeof *r->bias); /* few tokens, so that they come again */
        for (r->n_bias = 0; r->n_bias < 40; r->n_bias++)
            r->bias[r->n_bias] = (struct rod_bias){100 + (int32_t)r->n_bias, 9};
        finish(&plain, r, &whole);
        for (size_t at = 0; at < 40; at += 8) {
            r = turn_request(&a, id, first, at ? 0 : 11, 8);
            r->sampling = sampling;
            r->bias = malloc(40 * sizeof *r->bias);
            for (r->n_bias = 0; r->n_bias < 40; r->n_bias++)
                r->bias[r->n_bias] = (struct rod_bias){100 + (int32_t)r->n_bias, 9};
            turn_ok(&b.c, r, &a);
            collect_assert_ids(&a, whole.ids + at, 8, "with a penalty");
            collect_free(&a);
        }
        collect_free(&whole);
    }
    setup_close(&b), setup_close(&plain);
}

/* A character whose bytes are in two turns is complete in the second. */
static void a_character_cut_by_the_end_is_whole_in_the_next_turn(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    const char *text = "x \xf0\x9f\xa6\x8a y"; /* a fox: bytes in several tokens */
    begin(&b, OPTIONS(.kind = FAKE_HASH, .tokenizer = true), CONFIG());
    struct rod_request *r = say(&b, text, &a);
    const size_t n = r->n_prompt;
    int32_t ids[32];
    memcpy(ids, r->prompt, n * sizeof *ids);
    rod_request_free(r);
    collect_free(&a);
    assert_true(n > 4);
    char said[64] = "";
    bool cut = false;
    for (size_t i = 0; i < n; i++) {
        r = turn_request(&a, "s", ids, i ? 0 : n, 1);
        r->sampling.temperature = 0;
        r->bias = malloc(sizeof *r->bias);
        r->bias[0] = (struct rod_bias){ids[i], 100};
        r->n_bias = 1;
        turn_ok(&b.c, r, &a);
        cut |= a.text_len == 0;
        assert_null(strstr(a.text, "\xef\xbf\xbd"));
        strncat(said, a.text, sizeof said - strlen(said) - 1);
        collect_free(&a);
    }
    assert_true(cut);
    assert_string_equal(said, text);
    setup_close(&b);
}

/* An answer that ended by itself inside a character: no turn can go on with it, so its text ends as without a session,
 * and nothing of it is in the next one's. One that max_tokens cut there may be gone on with: its text is cut before the
 * character, which a turn with new tokens drops. */
static void a_character_that_nothing_can_complete_is_replaced(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    begin(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    struct rod_request *r = say(&b, "\xf0\x9f\xa6\x8a", &a);
    int32_t part[8];
    const size_t n_part = r->n_prompt - 1; /* all but its last byte */
    assert_true(n_part >= 1 && n_part <= 8);
    memcpy(part, r->prompt, n_part * sizeof *part);
    rod_request_free(r);
    collect_free(&a);
    r = say(&b, "yes", &a);
    int32_t yes[8];
    const size_t n_yes = r->n_prompt;
    memcpy(yes, r->prompt, n_yes * sizeof *yes);
    rod_request_free(r);
    collect_free(&a);
    for (int cut = 0; cut < 2; cut++) {
        const char *id = cut ? "cut" : "ended";
        r = turn_request(&a, id, part, n_part,
                         cut ? (uint32_t)n_part : 20); /* the fake device says the prompt, then ends */
        r->ignore_eos = false;
        turn_ok(&b.c, r, &a);
        assert_int_equal(a.end.reason, cut ? ROD_FINISH_LENGTH : ROD_FINISH_STOP);
        assert_int_equal(a.n_ids, n_part);
        assert_string_equal(a.text, cut ? "" : "\xef\xbf\xbd");
        collect_free(&a);
        if (!cut) { /* it has no pending token */
            r = turn_request(&a, id, NULL, 0, 1);
            turn_fails(&b.c, r, &a, ROD_EINVALID);
        }
        r = turn_request(&a, id, yes, n_yes, 1);
        r->sampling.temperature = 0;
        r->bias = malloc(sizeof *r->bias);
        r->bias[0] = (struct rod_bias){yes[0], 100};
        r->n_bias = 1;
        turn_ok(&b.c, r, &a);
        if (strncmp(a.text, "yes", a.text_len ? a.text_len : 3))
            fail_msg("the turn after one that %s says \"%s\"", cut ? "was cut" : "ended", a.text);
        collect_free(&a);
    }
    setup_close(&b);
}

/* The state has read every token that was counted: those of a stop string too, the end token not. */
static void a_stop_string_is_read_and_the_end_token_is_not(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    begin(&b, OPTIONS(.kind = FAKE_COPY, .tokenizer = true), CONFIG());
    struct rod_request *r = say(&b, "one two three four", &a);
    const size_t n = r->n_prompt;
    int32_t ids[32];
    memcpy(ids, r->prompt, n * sizeof *ids);
    rod_request_free(r);
    collect_free(&a);
    for (int kind = 0; kind < 2; kind++) {
        const char *id = kind ? "end" : "stop";
        r = turn_request(&a, id, ids, n, 100);
        r->sampling.temperature = 0;
        r->ignore_eos = false;
        if (kind == 0) collect_stop(r, "three");
        turn_ok(&b.c, r, &a);
        assert_string_equal(a.text, kind ? "one two three four" : "one two ");
        assert_int_equal(a.end.stop_id, kind ? EOS : -1);
        const size_t n_said = a.n_ids;
        assert_int_equal(session_info(b.c.engine, id).n_tok, n + n_said - (kind == 0)); /* the last may be pending */
        collect_free(&a);
        turn_ok(&b.c, turn_request(&a, id, more, 3, 1), &a);
        assert_int_equal(a.end.prompt_tok, n + n_said + 3);
        assert_int_equal(a.end.cached_tok, n + n_said - (kind == 0));
        collect_free(&a);
    }
    setup_close(&b);
}

/* Which prompt is read depends on how the session stands. */
static void a_turn_reads_the_prompt_that_fits(void **state) {
    (void)state;
    struct setup b;
    struct answer a;
    BEGIN(&b);
    for (int turn = 0; turn < 4; turn++) {
        struct rod_request *r = turn_request(&a, "s", first, 5, 2);
        r->turn->if_empty = malloc(7 * sizeof(int32_t));
        memcpy(r->turn->if_empty, first, 7 * sizeof(int32_t));
        r->turn->n_if_empty = 7;
        r->turn->if_open = malloc(6 * sizeof(int32_t));
        memcpy(r->turn->if_open, first, 6 * sizeof(int32_t));
        r->turn->n_if_open = 6;
        r->turn->leaves_open = turn == 1;
        const uint64_t read = stats_of(b.c.engine).prefill_tok;
        turn_ok(&b.c, r, &a);
        const uint64_t want[] = {7, 1 + 5, 1 + 6, 1 + 5};
        assert_int_equal(stats_of(b.c.engine).prefill_tok - read, want[turn]);
        collect_free(&a);
    }
    setup_close(&b);
}

static int32_t *copied(const int32_t *ids, size_t n) {
    int32_t *out = malloc(n * sizeof *ids);
    memcpy(out, ids, n * sizeof *ids);
    return out;
}

/* A prompt of 8 tokens has the definitions of tools, the others of 3 and 4 do not. */
static void tools_are_read_once(void **state) {
    (void)state;
    static const struct {
        uint64_t tools;
        bool leaves_open, again; /* again: on an engine that was opened again, where there are files */
        uint64_t want;
    } turns[] = {{7, false, false, 8},     {7, true, false, 1 + 3},  {7, false, true, 1 + 4}, {0, false, false, 1 + 8},
                 {7, false, false, 1 + 3}, {9, false, false, 1 + 8}, {9, false, true, 1 + 3}, {7, false, false, 1 + 8}};
    struct setup b;
    struct answer a;
    BEGIN(&b);
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        if (turns[i].again && on_file) {
            setup_close(&b);
            BEGIN(&b);
        }
        struct rod_request *r = turn_request(&a, "s", first, 8, 2);
        if (turns[i].tools) {
            r->turn->if_known = copied(first, r->turn->n_if_known = 3);
            r->turn->if_known_open = copied(first, r->turn->n_if_known_open = 4);
        }
        r->turn->tools = turns[i].tools;
        r->turn->leaves_open = turns[i].leaves_open;
        const uint64_t read = stats_of(b.c.engine).prefill_tok;
        turn_ok(&b.c, r, &a);
        if (stats_of(b.c.engine).prefill_tok - read != turns[i].want)
            fail_msg("turn %zu read %llu tokens, not %llu", i,
                     (unsigned long long)(stats_of(b.c.engine).prefill_tok - read), (unsigned long long)turns[i].want);
        collect_free(&a);
    }
    struct rod_session_info info; /* a fork knows what its source has read */
    struct rod_error err;
    assert_int_equal(
        rod_session_create(b.c.engine, "", &(struct rod_session_new){.id = "fork", .from = "s"}, &info, &err), 0);
    struct rod_request *r = turn_request(&a, "fork", first, 8, 2);
    r->turn->if_known = copied(first, r->turn->n_if_known = 3);
    r->turn->tools = 7;
    const uint64_t read = stats_of(b.c.engine).prefill_tok;
    turn_ok(&b.c, r, &a);
    assert_int_equal(stats_of(b.c.engine).prefill_tok - read, 1 + 3);
    collect_free(&a);
    setup_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        ALL(turns_go_on_and_read_their_own_tokens_alone),
        ALL(what_is_wrong_with_a_turn_is_told_and_changes_nothing),
        ALL(a_fork_and_its_source_do_not_see_each_other),
        ALL(sessions_are_made_listed_and_deleted),
        ALL(a_state_moves_as_a_file),
        ALL(turns_of_a_session_run_in_their_order),
        ALL(a_busy_session_is_refused_where_the_config_says_so),
        ALL(a_cancelled_turn_changes_nothing),
        ALL(cancels_come_at_any_moment),
        ALL(a_finished_answer_is_given_again),
        ALL(penalties_know_the_earlier_turns),
        ALL(a_character_cut_by_the_end_is_whole_in_the_next_turn),
        ALL(a_character_that_nothing_can_complete_is_replaced),
        ALL(a_stop_string_is_read_and_the_end_token_is_not),
        ALL(a_turn_reads_the_prompt_that_fits),
        ALL(tools_are_read_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
