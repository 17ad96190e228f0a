/* test_sessions_store.c - servers that share a store with conditional writes, which fences them. Over the fake device.
 */
#include "tests/sessions_store.h"

static const int32_t first[] = {5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

static void any_server_takes_any_turn(void **state) {
    (void)state;
    struct memory_store m;
    struct server v[3];
    struct setup plain;
    struct answer a, want;
    const uint64_t seed = test_seed();
    printf("note: seed %llu\n", (unsigned long long)seed);
    memory_open_store(&m);
    begin_in_memory(&plain);
    for (int i = 0; i < 3; i++) server_open(&v[i], &m, seed, CONFIG());
    for (uint32_t n = 0; n < 30; n++) {
        struct server *at = &v[(uint32_t)(philox_uniform(seed, n, 1) * 3)];
        turn_ok(&at->b.c, nth_turn(&a, "aa", n), &a);
        turn_ok(&plain.c, nth_turn(&want, "aa", n), &want);
        assert_same(&a, &want, "on some server");
        collect_free(&a), collect_free(&want);
        for (int i = 0; i < 3; i++) assert_int_equal(session_info(v[i].b.c.engine, "aa").version, n + 1);
    }
    assert_int_equal(memory_count(&m, ".state"), 1);
    assert_int_equal(m.n, 3); /* the session, the key of the names, the clock */
    for (int i = 0; i < 3; i++) setup_close(&v[i].b);
    setup_close(&plain), memory_close_store(&m);
}

/* One conditional read and one write; nothing is looked at before. */
static void a_turn_takes_one_read_and_one_write(void **state) {
    (void)state;
    struct memory_store m;
    struct server v[2];
    struct answer a;
    memory_open_store(&m);
    for (int i = 0; i < 2; i++) server_open(&v[i], &m, 1, CONFIG());
    for (uint32_t n = 0; n < 4; n++) {
        struct memory_client *c = &v[n / 2].client; /* two turns each: from nothing or the other's, and from its own */
        unsigned before[MEMORY_N];
        for (int k = 0; k < MEMORY_N; k++) before[k] = atomic_load(&c->n[k]);
        turn_ok(&v[n / 2].b.c, nth_turn(&a, "aa", n), &a);
        collect_free(&a);
        for (int k = 0; k < MEMORY_N; k++) {
            const unsigned did = atomic_load(&c->n[k]) - before[k];
            if (k == MEMORY_LIST) continue; /* of the sweep */
            if (did != (k == MEMORY_OPEN || k == MEMORY_WRITE)) fail_msg("turn %u: %u calls of kind %d", n, did, k);
        }
    }
    const uint64_t loads = stats_of(v[1].b.c.engine).state_loads;
    turn_ok(&v[1].b.c, nth_turn(&a, "aa", 4), &a);
    collect_free(&a);
    assert_int_equal(stats_of(v[1].b.c.engine).state_loads, loads); /* its own version is current: not read again */
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    memory_close_store(&m);
}

static void wait_held(struct server *v) {
    for (int ms = 0; !atomic_load(&v->client.n_held); ms++, usleep(1000))
        if (ms > 10000) fail_msg("no write came");
}

/* A server is stopped in the middle of its commit and wakes later. */
static void a_server_that_was_stopped_overwrites_nothing(void **state) {
    (void)state;
    struct memory_store m;
    struct server v[2];
    struct setup plain;
    struct answer a, late, want;
    memory_open_store(&m);
    begin_in_memory(&plain);
    for (int i = 0; i < 2; i++) server_open(&v[i], &m, 1, CONFIG());
    for (uint32_t n = 0; n < 12; n += 2) { /* also where there was no session yet */
        atomic_store(&v[0].client.held, true);
        collect_submit(&v[0].b.c, turn_request(&late, "aa", first, 11, 5));
        wait_held(&v[0]);
        turn_ok(&v[1].b.c, nth_turn(&a, "aa", n), &a);
        turn_ok(&plain.c, nth_turn(&want, "aa", n), &want);
        assert_same(&a, &want, "of the server that was not stopped");
        collect_free(&a), collect_free(&want);
        atomic_store(&v[0].client.held, false);
        collect_until(&v[0].b.c, &late, 1);
        if (!late.failed || late.end.error.code != ROD_ECONFLICT)
            fail_msg("the turn of the stopped server: %d %s", late.failed, rod_code_name(late.end.error.code));
        collect_free(&late);
        turn_ok(&v[0].b.c, nth_turn(&a, "aa", n + 1), &a); /* from what the other has made */
        turn_ok(&plain.c, nth_turn(&want, "aa", n + 1), &want);
        assert_same(&a, &want, "after the conflict");
        collect_free(&a), collect_free(&want);
    }
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    setup_close(&plain), memory_close_store(&m);
}

/* The answer of a write was lost. */
static void a_turn_of_which_nobody_knows_is_found_by_its_key(void **state) {
    (void)state;
    for (int done = 1; done <= 2; done++) {
        struct memory_store m;
        struct server v;
        struct setup plain;
        struct answer a, want;
        memory_open_store(&m);
        begin_in_memory(&plain);
        server_open(&v, &m, 1, CONFIG());
        turn_ok(&v.b.c, nth_turn(&a, "aa", 0), &a);
        turn_ok(&plain.c, nth_turn(&want, "aa", 0), &want);
        collect_free(&a), collect_free(&want);
        v.client.unsure_at = done;
        atomic_store(&v.client.fail_at, 2); /* the read, then the write */
        for (int again = 0; again < 2; again++) {
            struct rod_request *r = nth_turn(&a, "aa", 1);
            r->turn->idempotency_key = strdup("k");
            turn_run(&v.b.c, r, &a);
            if (!again && (!a.failed || a.end.error.code != ROD_EUNSURE))
                fail_msg("%s", rod_code_name(a.end.error.code));
            if (!again) collect_free(&a);
        }
        turn_ok(&plain.c, nth_turn(&want, "aa", 1), &want);
        assert_same(&a, &want, "again, with its key");
        assert_int_equal(a.end.replayed, done == 1);
        collect_free(&a), collect_free(&want);
        setup_close(&v.b), setup_close(&plain), memory_close_store(&m);
    }
}

/* Each call of a store may fail: then so does what needs it, with a name, and everything before it stands. */
static void whichever_call_fails_nothing_is_lost(void **state) {
    (void)state;
    for (int unsure = 0; unsure <= 2; unsure++)
        for (int at = 1; at <= 20; at++) {
            struct memory_store m;
            struct server v[2];
            struct setup plain;
            struct answer a, want;
            uint32_t n_done = 0;
            struct rod_session_info info;
            memory_open_store(&m);
            begin_in_memory(&plain);
            for (int i = 0; i < 2; i++) server_open(&v[i], &m, 1, CONFIG(.session_keep_turns = 3));
            v[0].client.unsure_at = unsure;
            atomic_store(&v[0].client.fail_at, at);
            for (uint32_t n = 0; n < 8; n++) {
                struct rod_request *r = nth_turn(&a, "aa", n_done);
                r->turn->has_expected = true;
                r->turn->expected_version = n_done;
                turn_run(&v[n % 3 == 2].b.c, r, &a);
                const int code = a.end.error.code;
                if (a.failed && code != ROD_EIO && code != ROD_EUNSURE)
                    fail_msg("call %d, turn %u: %s: %s", at, n, rod_code_name(code), a.end.error.message);
                const bool in = a.failed && code == ROD_EUNSURE &&
                                !rod_session_get(v[1].b.c.engine, "", "aa", &info, NULL) && info.version == n_done + 1;
                if (!a.failed || in) {
                    turn_ok(&plain.c, nth_turn(&want, "aa", n_done++), &want);
                    if (!in) assert_same(&a, &want, "with faults");
                    collect_free(&want);
                }
                collect_free(&a);
            }
            assert_true(n_done >= 7);
            for (int i = 0; i < 2; i++) setup_close(&v[i].b);
            setup_close(&plain), memory_close_store(&m);
        }
}

static void create(struct server *v, const char *tenant, const char *id, const char *from, int code) {
    struct rod_session_info info;
    struct rod_error err;
    const int rc =
        rod_session_create(v->b.c.engine, tenant, &(struct rod_session_new){.id = id, .from = from}, &info, &err);
    if (rc != code) fail_msg("%s of %s: %s, want %s", id, tenant, rod_code_name(rc), rod_code_name(code));
}

static void assert_listed(struct server *v, const char *tenant, const char *const *ids, size_t n_ids) {
    struct rod_session_info *infos;
    struct rod_error err;
    char after[SESSION_MAX_ID + 1] = "";
    size_t at = 0, n;
    for (bool more = true; more;) {
        if (rod_session_list(v->b.c.engine, tenant, *after ? after : NULL, 3, &infos, &n, &more, &err))
            fail_msg("%s", err.message);
        for (size_t i = 0; i < n; i++, at++) {
            if (at >= n_ids || strcmp(infos[i].id, ids[at]) != 0)
                fail_msg("of %s: number %zu is %s, want %s", tenant, at, infos[i].id, at < n_ids ? ids[at] : "none");
            snprintf(after, sizeof after, "%s", infos[i].id);
        }
        free(infos);
    }
    assert_int_equal(at, n_ids);
}

static void all_of_a_tenants_sessions_are_listed_wherever_they_were_made(void **state) {
    (void)state;
    struct memory_store m;
    struct server v[2];
    struct answer a;
    static const char *const all[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i"};
    memory_open_store(&m);
    for (int i = 0; i < 2; i++) server_open(&v[i], &m, 1, CONFIG());
    for (int i = 0; i < 9; i++) create(&v[i % 2], "t", all[8 - i], NULL, 0);
    create(&v[0], "other", "x", NULL, 0);
    assert_listed(&v[0], "t", all, 9);
    assert_listed(&v[1], "t", all, 9);
    assert_int_equal(rod_session_delete(v[0].b.c.engine, "t", "a", NULL), 0);
    assert_int_equal(rod_session_delete(v[0].b.c.engine, "t", "a", NULL), ROD_ENOTFOUND);
    assert_listed(&v[0], "t", all + 1, 8);
    sleep(5); /* what was read counts for some seconds */
    assert_listed(&v[1], "t", all + 1, 8);
    create(&v[1], "t", "b", NULL, ROD_EEXISTS);
    create(&v[1], "t", "b2", "b", 0);
    assert_int_equal(memory_count(&m, ".state"), 10);
    struct rod_request *r = nth_turn(&a, "a", 0);
    r->turn->create = false;
    free(r->turn->tenant);
    r->turn->tenant = strdup("t");
    turn_fails(&v[1].b.c, r, &a, ROD_ENOTFOUND);
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    memory_close_store(&m);
}

static void what_another_server_removed_is_listed_no_more_however_many_there_are(void **state) {
    (void)state;
    enum { N = 150 };
    struct memory_store m;
    struct server v[2];
    struct rod_session_info *infos;
    struct rod_error err;
    char id[16];
    size_t n;
    bool more;
    memory_open_store(&m);
    for (int i = 0; i < 2; i++) server_open(&v[i], &m, 1, CONFIG());
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof id, "s%03d", i);
        create(&v[0], "t", id, NULL, 0);
    }
    for (int round = 0; round < 2; round++) {
        if (rod_session_list(v[1].b.c.engine, "t", NULL, 1000, &infos, &n, &more, &err)) fail_msg("%s", err.message);
        free(infos);
        assert_int_equal(n, round ? 1 : N);
        for (int i = 1; i < N && !round; i++) {
            snprintf(id, sizeof id, "s%03d", i);
            if (rod_session_delete(v[0].b.c.engine, "t", id, &err)) fail_msg("%s: %s", id, err.message);
        }
        if (!round) sleep(5);
    }
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    memory_close_store(&m);
}

static void a_keys_limit_of_sessions_holds_over_all_servers(void **state) {
    (void)state;
    struct memory_store m;
    struct server v[2];
    struct answer a;
    memory_open_store(&m);
    for (int i = 0; i < 2; i++) server_open(&v[i], &m, 1, CONFIG());
    static const char *const ids[] = {"s0", "s1", "s2"};
    for (int i = 0; i < 3; i++) {
        struct rod_request *r = nth_turn(&a, ids[i], 0);
        free(r->turn->tenant);
        r->turn->tenant = strdup("t");
        r->turn->max_sessions = 2;
        if (i == 2) sleep(5); /* what was counted counts for some seconds */
        if (i == 2) {
            turn_fails(&v[0].b.c, r, &a, ROD_EKEYSESSIONS);
        } else {
            turn_ok(&v[i].b.c, r, &a);
            collect_free(&a);
        }
    }
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    memory_close_store(&m);
}

/* A session ends by the store's clock, whatever its last server's says, and any server removes it. */
static void what_has_expired_is_swept_by_any_server(void **state) {
    (void)state;
    struct memory_store m;
    struct server v;
    struct answer a;
    memory_open_store(&m);
    m.ahead_s = 3600;
    server_open(&v, &m, 1, CONFIG(.session_ttl_s = 1800, .session_keep_turns = 2));
    for (uint32_t n = 0; n < 3; n++) {
        turn_ok(&v.b.c, nth_turn(&a, "aa", n), &a);
        collect_free(&a);
    }
    const int64_t at_s = session_info(v.b.c.engine, "aa").used_unix_s, now_s = (int64_t)time(NULL);
    if (at_s < now_s + 3590 || at_s > now_s + 3610)
        fail_msg("used at %lld, now %lld", (long long)at_s, (long long)now_s);
    setup_close(&v.b);
    assert_int_equal(memory_count(&m, ".kept"), 2);
    m.ahead_s += 2 * 3600;
    server_open(&v, &m, 1, CONFIG(.session_ttl_s = 1800));
    store_wait(memory_count, &m, ".state", 0, 20000);
    store_wait(memory_count, &m, ".kept", 0, 5000);
    setup_close(&v.b), memory_close_store(&m);
}

static void a_way_back_leads_to_turns_of_other_servers(void **state) {
    (void)state;
    struct memory_store m;
    struct server v[2];
    struct setup plain;
    struct answer a, want;
    struct rod_session_info info;
    struct rod_error err;
    memory_open_store(&m);
    begin_in_memory(&plain);
    for (int i = 0; i < 2; i++) server_open(&v[i], &m, 1, CONFIG(.session_keep_turns = 4));
    for (uint32_t n = 0; n < 4; n++) {
        turn_ok(&v[n % 2].b.c, nth_turn(&a, "aa", n), &a);
        collect_free(&a);
        if (n > 1) continue;
        turn_ok(&plain.c, nth_turn(&want, "aa", n), &want);
        collect_free(&want);
    }
    assert_int_equal(memory_count(&m, ".kept"), 3);
    if (rod_session_rewind(v[0].b.c.engine, "", "aa", &(struct rod_session_rewind){.by_turns = true, .turns = 2}, &info,
                           &err))
        fail_msg("%s", err.message);
    assert_int_equal(info.version, 5);
    turn_ok(&v[1].b.c, nth_turn(&a, "aa", 2), &a);
    turn_ok(&plain.c, nth_turn(&want, "aa", 2), &want);
    collect_assert_ids(&a, want.ids, want.n_ids, "after the way back");
    collect_free(&a), collect_free(&want);
    if (rod_session_delete(v[0].b.c.engine, "", "aa", &err)) fail_msg("%s", err.message);
    store_wait(memory_count, &m, ".kept", 0, 1000);
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    setup_close(&plain), memory_close_store(&m);
}

/* Every call takes long and fails: whoever needs the store hears so after one call's time and a bit, however many there
 * are, and once it is back all goes on. */
static void a_store_that_is_out_of_reach_is_not_waited_for_by_everybody(void **state) {
    (void)state;
    enum { N = 96, CALL_MS = 1500, MOST_MS = 2 * CALL_MS + 1000 };
    struct memory_store m;
    struct server v;
    struct setup plain;
    struct answer a[N], want;
    char id[16];
    memory_open_store(&m);
    begin_in_memory(&plain);
    server_open(&v, &m, 1, CONFIG());
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof id, "s%d", i);
        turn_ok(&v.b.c, nth_turn(&a[i], id, 0), &a[i]);
        collect_free(&a[i]);
    }
    atomic_store(&v.client.delay_us, CALL_MS * 1000);
    atomic_store(&v.client.dead, true);
    const uint64_t begin_ns = clock_now_ns();
    for (int i = 0; i < N; i++) {
        snprintf(id, sizeof id, "s%d", i);
        collect_submit(&v.b.c, nth_turn(&a[i], id, 1));
    }
    collect_until(&v.b.c, a, N);
    const uint64_t ms = (clock_now_ns() - begin_ns) / 1000000;
    if (ms > MOST_MS) fail_msg("%d turns were refused after %llu ms, want %d", N, (unsigned long long)ms, MOST_MS);
    for (int i = 0; i < N; i++) {
        if (!a[i].failed || a[i].end.error.code != ROD_EIO)
            fail_msg("turn %d: %s", i, rod_code_name(a[i].end.error.code));
        collect_free(&a[i]);
    }
    atomic_store(&v.client.dead, false);
    atomic_store(&v.client.delay_us, 0);
    sleep(2);
    for (uint32_t n = 0; n < 2; n++) {
        turn_ok(&plain.c, nth_turn(&want, "s7", n), &want);
        if (n) turn_ok(&v.b.c, nth_turn(&a[0], "s7", n), &a[0]);
        if (n) assert_same(&a[0], &want, "once the store is back");
        if (n) collect_free(&a[0]);
        collect_free(&want);
    }
    setup_close(&v.b), setup_close(&plain), memory_close_store(&m);
}

/* A server that starts finds them; one that runs looks from time to time. */
static void pinned_prefixes_are_shared(void **state) {
    (void)state;
    struct memory_store m;
    struct server v[2];
    struct rod_prefix_info info;
    struct rod_error err;
    int32_t ids[40];
    struct answer a;
    for (int i = 0; i < 40; i++) ids[i] = 100 + i;
    const struct rod_engine_config config = CONFIG(.prefix_cache_bytes = 8 << 20);
    memory_open_store(&m);
    server_open(&v[0], &m, 1, config);
    if (rod_prefix_pin(v[0].b.c.engine, &(struct rod_prefix_new){.id = "p", .ids = ids, .n_ids = 40}, &info, &err))
        fail_msg("%s", err.message);
    assert_int_equal(info.n_tok, 32);
    assert_true(info.durable);
    assert_int_equal(memory_count(&m, "-p.prefix"), 1);
    server_open(&v[1], &m, 1, config);
    if (rod_prefix_get(v[1].b.c.engine, "p", &info, &err)) fail_msg("%s", err.message);
    struct rod_request *r = collect_request(ids, 40, &a);
    r->prompt[3] = 7; /* another beginning */
    turn_ok(&v[1].b.c, r, &a);
    assert_int_equal(a.end.cached_tok, 0);
    collect_free(&a);
    int32_t more[50];
    memcpy(more, ids, sizeof ids);
    for (int i = 40; i < 50; i++) more[i] = 9;
    turn_ok(&v[1].b.c, collect_request(more, 50, &a), &a);
    assert_int_equal(a.end.cached_tok, 32);
    collect_free(&a);
    if (rod_prefix_unpin(v[1].b.c.engine, "p", &err)) fail_msg("%s", err.message);
    assert_int_equal(memory_count(&m, ".prefix"), 0);
    for (int s = 0; !rod_prefix_get(v[0].b.c.engine, "p", &info, NULL); s++, sleep(1))
        if (s > 35) fail_msg("after %d s the other server has it still", s);
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    memory_close_store(&m);
}

static struct memory_object *names_key(struct memory_store *m) {
    for (size_t i = 0; i < m->n; i++)
        if (strstr(m->objects[i].name, "names.key")) return &m->objects[i];
    return NULL;
}

/* Waits until turns do so. */
static void wait_turns(struct server *v, uint32_t *n_turns, int code) {
    for (int i = 0;; i++, usleep(100000)) {
        struct answer a;
        turn_run(&v->b.c, nth_turn(&a, "aa", *n_turns), &a);
        const int found = a.failed ? a.end.error.code : 0;
        *n_turns += !a.failed;
        collect_free(&a);
        if (found == code) return;
        if (i > 100) fail_msg("turns end with %s, not %s", rod_code_name(found), rod_code_name(code));
    }
}

/* Two servers with two keys would keep one session under two names. */
static void a_key_of_names_that_goes_is_put_back_and_another_one_stops_turns(void **state) {
    (void)state;
    struct memory_store m;
    struct server v;
    uint32_t n_turns = 0;
    unsigned char own[128];
    memory_open_store(&m);
    server_open(&v, &m, 1, CONFIG());
    wait_turns(&v, &n_turns, 0);
    pthread_mutex_lock(&m.lock);
    const size_t n = names_key(&m)->version.n_bytes;
    if (n <= 8 || n >= sizeof own) fail_msg("the key has %zu bytes", n);
    memcpy(own, names_key(&m)->bytes, n);
    memory_take(&m, names_key(&m));
    pthread_mutex_unlock(&m.lock);
    for (int i = 0, back = 0; !back; i++, usleep(100000)) {
        pthread_mutex_lock(&m.lock);
        back = names_key(&m) && !memcmp(names_key(&m)->bytes, own, n);
        pthread_mutex_unlock(&m.lock);
        if (i > 100) fail_msg("the key of names is not put back");
    }
    for (int other = 1; other >= 0; other--) {
        pthread_mutex_lock(&m.lock);
        names_key(&m)->bytes[0] = other ? (own[0] == 'a' ? 'b' : 'a') : own[0];
        pthread_mutex_unlock(&m.lock);
        wait_turns(&v, &n_turns, other ? ROD_EIO : 0);
    }
    setup_close(&v.b), memory_close_store(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_server_takes_any_turn),
        cmocka_unit_test(a_turn_takes_one_read_and_one_write),
        cmocka_unit_test(a_server_that_was_stopped_overwrites_nothing),
        cmocka_unit_test(a_turn_of_which_nobody_knows_is_found_by_its_key),
        cmocka_unit_test(whichever_call_fails_nothing_is_lost),
        cmocka_unit_test(all_of_a_tenants_sessions_are_listed_wherever_they_were_made),
        cmocka_unit_test(what_another_server_removed_is_listed_no_more_however_many_there_are),
        cmocka_unit_test(a_keys_limit_of_sessions_holds_over_all_servers),
        cmocka_unit_test(what_has_expired_is_swept_by_any_server),
        cmocka_unit_test(a_way_back_leads_to_turns_of_other_servers),
        cmocka_unit_test(a_store_that_is_out_of_reach_is_not_waited_for_by_everybody),
        cmocka_unit_test(pinned_prefixes_are_shared),
        cmocka_unit_test(a_key_of_names_that_goes_is_put_back_and_another_one_stops_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
