/* test_conversations_store.c - conversations over several servers of one store: any of them takes any request and reads
 * again what one server alone would; a store that fails, hangs or lies costs reading, and neither an answer nor a token
 * is another one. Over the fake device. */
#include "tests/conversations_store.h"

#include "engine/state/state_cache.h"

enum { N_SERVERS = 3, PATIENCE_MS = 6000 };
static void any_server_takes_any_request(void **state) {
    (void)state;
    struct memory_store m;
    struct server v[N_SERVERS];
    const uint64_t seed = test_seed();
    struct talk t = begun("thread", 1);
    printf("note: seed %llu\n", (unsigned long long)seed);
    memory_open_store(&m);
    for (int i = 0; i < N_SERVERS; i++) serve(&v[i], &m, CACHED());
    for (uint32_t n = 0; n < 20; n++) {
        const uint32_t at = (uint32_t)(philox_uniform(seed, n, 1) * N_SERVERS);
        char what[64];
        snprintf(what, sizeof what, "seed %llu, request %u", (unsigned long long)seed, n);
        assert_read(ask(&v[at], &t), n ? 21 : 120, what);
        talk_text(&t, 20, 2);
    }
    /* beside these there is the key of names alone */
    assert_int_equal(count_below(&m, "/c/") + count_below(&m, "names.key") + memory_count(&m, "clock"), m.n);
    for (int i = 0; i < N_SERVERS; i++) setup_close(&v[i].b);
    memory_close_store(&m);
}

static void what_was_answered_is_in_the_store(void **state) {
    (void)state;
    struct memory_store m;
    struct server v;
    struct talk t = begun("thread", 1);
    memory_open_store(&m);
    for (int turn = 0; turn < 6; turn++) {
        serve(&v, &m, CACHED());
        assert_read(ask(&v, &t), turn ? 21 : 120, "after a kill");
        atomic_store(&v.client.dead, true); /* whatever it does from here on */
        setup_close(&v.b);
        talk_text(&t, 20, 2);
    }
    memory_close_store(&m);
}

/* The states are in memory under the first name; the home copies them. */
static void equal_prompts_are_states_of_each_name(void **state) {
    (void)state;
    struct memory_store m;
    struct server v;
    struct rod_conversation_info info;
    struct rod_error err;
    struct talk one = begun("one", 1), two = begun("two", 1);
    memory_open_store(&m);
    serve(&v, &m, CACHED());
    for (int turn = 0; turn < 3; turn++) {
        ask(&v, &one);
        const uint32_t n_copies = atomic_load(&v.client.n[MEMORY_COPY]);
        if (ask(&v, &two) > 24) fail_msg("turn %d: the second reads more than what no state has", turn);
        if (atomic_load(&v.client.n[MEMORY_COPY]) == n_copies) fail_msg("turn %d: nothing was copied", turn);
        assert_int_equal(rod_conversation_get(v.b.c.engine, "a", "two", &info, &err), 0);
        if (!info.durable || !info.n_states || info.n_tok != two.n - 1)
            fail_msg("turn %d: durable %d, %u states of %llu tokens, want %zu", turn, info.durable,
                     (unsigned)info.n_states, (unsigned long long)info.n_tok, two.n - 1);
        talk_text(&one, 20, 2), talk_text(&two, 20, 2);
    }
    atomic_store(&v.client.dead, true);
    setup_close(&v.b);
    serve(&v, &m, CACHED());
    assert_read(ask(&v, &two), 21, "after a kill");
    assert_int_equal(rod_conversation_delete(v.b.c.engine, "a", "one", &err), 0);
    talk_text(&two, 20, 2);
    assert_read(ask(&v, &two), 21, "the other was removed");
    setup_close(&v.b);
    serve(&v, &m, CACHED());
    talk_text(&two, 20, 2);
    assert_read(ask(&v, &two), 21, "and a restart");
    setup_close(&v.b);
    memory_close_store(&m);
}

static void a_new_conversation_begins_at_anothers_head(void **state) {
    (void)state;
    struct memory_store m;
    struct server v[2];
    struct talk one = begun("one", 1), two = begun("two", 1), three = begun("three", 1);
    two.ids[110]++, three.ids[111]++;
    memory_open_store(&m);
    for (int i = 0; i < 2; i++) serve(&v[i], &m, CACHED());
    assert_read(ask(&v[0], &one), 120, "the first");
    assert_read(ask(&v[1], &two), 24, "another, elsewhere"); /* the head stops at 96 */
    three.tenant = "b";
    assert_read(ask(&v[1], &three), 120, "another tenant's");
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    memory_close_store(&m);
}

static void it_is_listed_and_removed_with_its_objects(void **state) {
    (void)state;
    struct memory_store m;
    struct server v[2];
    struct rod_conversation_info *infos, info;
    struct rod_notes_seen seen = {0};
    struct rod_error err;
    size_t n;
    bool more;
    struct talk one = begun("one", 1), two = begun("two", 5);
    memory_open_store(&m);
    for (int i = 0; i < 2; i++) serve(&v[i], &m, CACHED());
    struct rod_engine *a = v[0].b.c.engine, *b = v[1].b.c.engine;
    ask(&v[0], &one), ask(&v[0], &two);
    assert_int_equal(rod_conversation_note(a, "a", "one", "said", 4, &seen, &err), 0);
    assert_int_equal(rod_conversation_list(b, "a", NULL, 1, &infos, &n, &more, &err), 0); /* it has seen neither */
    assert_int_equal(n, 1);
    assert_true(more);
    assert_string_equal(infos[0].name, "one");
    assert_int_equal(infos[0].n_tok, 128);
    assert_true(infos[0].durable && infos[0].n_states >= 2 && infos[0].state_bytes > 0);
    free(infos);
    assert_int_equal(rod_conversation_list(b, "b", NULL, 9, &infos, &n, &more, &err), 0);
    assert_int_equal(n, 0);
    assert_int_equal(rod_conversation_delete(b, "b", "one", &err), ROD_ENOTFOUND);
    const size_t before = count_below(&m, "/c/");
    assert_int_equal(rod_conversation_delete(b, "a", "one", &err), 0);
    assert_int_equal(rod_conversation_delete(b, "a", "one", &err), ROD_ENOTFOUND);
    assert_int_equal(rod_conversation_get(a, "a", "one", &info, &err), ROD_ENOTFOUND);
    assert_int_equal(rod_conversation_list(a, "a", NULL, 9, &infos, &n, &more, &err), 0);
    assert_int_equal(n, 1);
    assert_string_equal(infos[0].name, "two");
    free(infos);
    assert_true(count_below(&m, "/c/") <= before - 3); /* two states and the notes at least */
    talk_text(&one, 20, 2), talk_text(&two, 20, 2);
    const size_t whole = one.n;
    assert_read(ask(&v[0], &one), whole - 96, "but the head");
    assert_read(ask(&v[1], &two), 21, "the other");
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    memory_close_store(&m);
}

/* The list of a key with more objects than a page, most of them unknown to the server. */
/* Others' states come to memory in place of these. */
static void crowd(struct server *v, uint64_t seed) {
    for (uint64_t i = 0; i < 12; i++) {
        char name[32];
        snprintf(name, sizeof name, "crowd %llu", (unsigned long long)(seed + i));
        struct talk t = begun(name, seed + 2 * i);
        ask(v, &t);
    }
}

/* The server that has them in its table and in its cache. */
static void what_was_removed_elsewhere_is_not_read_from_a_cache(void **state) {
    (void)state;
    enum { FEW = 600 << 10 };
    struct memory_store m;
    struct server v[2];
    struct state_cache *cache;
    struct state_cache_counts before, after;
    struct rod_error err;
    struct talk one = begun("one", 1);
    char *folder = make_dir();
    memory_open_store(&m);
    memory_connect(&v[0].client, &m, 7);
    const struct state_cache_config config = {.home = &v[0].client.as_store.home, .dir = folder, .of = "m"};
    assert_int_equal(state_cache_open(&config, &cache, &err), 0);
    v[0].client.as_store.home = state_cache_home(cache);
    server_start(&v[0], CACHED(.state_host_bytes = FEW));
    serve(&v[1], &m, CACHED());
    ask(&v[0], &one);
    talk_text(&one, 20, 2);
    struct talk nameless = one, again = one;
    *nameless.name = *again.name = 0;
    crowd(&v[0], 100);
    state_cache_count(cache, &before);
    assert_read(talk_ask(&v[0].b, &nameless, 9), 21, "it is there");
    state_cache_count(cache, &after);
    assert_int_equal(after.hits, before.hits + 1);
    assert_int_equal(rod_conversation_delete(v[1].b.c.engine, "a", "one", &err), 0);
    crowd(&v[0], 200);
    const uint64_t read = talk_ask(&v[0].b, &again, 9);
    if (read < again.n - 9 - 96) fail_msg("%llu tokens were read: more than a head is there", (unsigned long long)read);
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    state_cache_close(cache);
    memory_close_store(&m);
    remove_dir(folder);
}

static void a_long_list_has_all(void **state) {
    (void)state;
    enum { N = 40 };
    struct memory_store m;
    struct server v[2];
    struct rod_conversation_info *infos;
    struct rod_error err;
    size_t n;
    bool more;
    memory_open_store(&m);
    for (int i = 0; i < 2; i++) serve(&v[i], &m, CACHED());
    for (int i = 0; i < N; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%02d", i);
        struct talk t = begun(name, (uint64_t)i);
        ask(&v[i % 2], &t);
    }
    for (int i = 0; i < 2; i++) {
        assert_int_equal(rod_conversation_list(v[i].b.c.engine, "a", NULL, N + 1, &infos, &n, &more, &err), 0);
        assert_int_equal(n, N);
        assert_string_equal(infos[N - 1].name, "t39");
        free(infos);
    }
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    memory_close_store(&m);
}

/* ---- notes ---- */

struct noting {
    struct rod_engine *engine;
    int number;
};

static void *note_some(void *arg) {
    const struct noting *n = arg;
    struct rod_notes_seen seen = {0};
    struct rod_error err;
    char note[32];
    for (int i = 0; i < 20; i++) {
        const size_t len = (size_t)snprintf(note, sizeof note, "%d %d", n->number, i);
        if (rod_conversation_note(n->engine, "a", "x", note, len, &seen, &err)) fail_msg("%s", err.message);
    }
    return NULL;
}

static bool has_note(const char *bytes, size_t n, const char *note) {
    for (size_t at = 0; at < n;) {
        uint32_t len;
        memcpy(&len, bytes + at, 4);
        if (len == strlen(note) && !memcmp(bytes + at + 4, note, len)) return true;
        at += 4 + len;
    }
    return false;
}

static void notes_of_several_servers_at_once_are_all_kept(void **state) {
    (void)state;
    struct memory_store m;
    struct server v[N_SERVERS];
    pthread_t threads[N_SERVERS];
    struct noting notings[N_SERVERS];
    struct rod_notes_seen seen = {0};
    struct rod_error err;
    void *bytes;
    size_t n;
    memory_open_store(&m);
    for (int i = 0; i < N_SERVERS; i++) serve(&v[i], &m, CACHED());
    for (int i = 0; i < N_SERVERS; i++) {
        v[i].client.p_unsure = 0.1;
        notings[i] = (struct noting){v[i].b.c.engine, i};
        assert_int_equal(pthread_create(&threads[i], NULL, note_some, &notings[i]), 0);
    }
    for (int i = 0; i < N_SERVERS; i++) pthread_join(threads[i], NULL);
    assert_int_equal(rod_conversation_open(v[0].b.c.engine, "a", "x", &seen, &bytes, &n, &err), 0);
    for (int i = 0; i < N_SERVERS * 20; i++) {
        char note[32];
        snprintf(note, sizeof note, "%d %d", i / 20, i % 20);
        if (!has_note(bytes, n, note)) fail_msg("the note %s is not there", note);
    }
    free(bytes);
    assert_int_equal(rod_conversation_open(v[0].b.c.engine, "a", "x", &seen, &bytes, &n, &err), 0);
    assert_null(bytes); /* what was seen is not read again */
    for (int i = 0; i < N_SERVERS; i++) setup_close(&v[i].b);
    memory_close_store(&m);
}

static void damage(struct memory_store *m, const char *end) {
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < m->n; i++) {
        struct memory_object *o = &m->objects[i];
        const size_t len = strlen(o->name), n_end = strlen(end);
        if (strstr(o->name, "/c/") && len > n_end && !strcmp(o->name + len - n_end, end))
            o->bytes[o->version.n_bytes - 1] ^= 1;
    }
    pthread_mutex_unlock(&m->lock);
}

static void what_is_damaged_is_read_again_and_replaced(void **state) {
    (void)state;
    struct memory_store m;
    struct server v;
    struct setup cold;
    struct rod_notes_seen seen = {0};
    struct rod_error err;
    void *bytes;
    size_t n;
    struct talk t = begun("thread", 1);
    memory_open_store(&m);
    setup_open(&cold, OPTIONS(.kind = FAKE_HASH), CONFIG());
    serve(&v, &m, CACHED());
    ask(&v, &t);
    assert_int_equal(rod_conversation_note(v.b.c.engine, "a", "thread", "one", 3, &seen, &err), 0);
    assert_int_equal(rod_conversation_note(v.b.c.engine, "a", "thread", "two", 3, &seen, &err), 0);
    setup_close(&v.b);
    damage(&m, ".state"), damage(&m, "notes");
    serve(&v, &m, CACHED());
    talk_text(&t, 20, 2);
    look(&v.b, &t);
    talk_ask_beside(&v.b, &cold, &t, 9, "behind damage");
    seen = (struct rod_notes_seen){0};
    assert_int_equal(rod_conversation_open(v.b.c.engine, "a", "thread", &seen, &bytes, &n, &err), 0);
    assert_int_equal(n, 7);
    assert_memory_equal(bytes, "\x03\0\0\0one", 7);
    free(bytes);
    assert_int_equal(rod_conversation_note(v.b.c.engine, "a", "thread", "three", 5, &seen, &err), 0);
    seen = (struct rod_notes_seen){0};
    assert_int_equal(rod_conversation_open(v.b.c.engine, "a", "thread", &seen, &bytes, &n, &err), 0);
    assert_int_equal(n, 16);
    free(bytes);
    setup_close(&v.b);
    serve(&v, &m, CACHED());
    talk_text(&t, 20, 2);
    assert_read(ask(&v, &t), 21, "written anew");
    setup_close(&v.b), setup_close(&cold);
    memory_close_store(&m);
}

/* ---- a store that fails ---- */

/* What a request takes at most, whatever the store does: it goes on from memory. */
static void ask_in_time(struct server *v, struct setup *cold, struct talk *t, uint64_t most_read, const char *what) {
    struct rod_notes_seen seen = {0};
    struct rod_error err;
    const uint64_t began_ns = clock_now_ns();
    look(&v->b, t);
    const uint64_t read = talk_ask_beside(&v->b, cold, t, 9, what);
    if (rod_conversation_note(v->b.c.engine, t->tenant, t->name, "said", 4, &seen, &err)) fail_msg("%s", err.message);
    if (ms_since(began_ns) > PATIENCE_MS) fail_msg("%s: %llu ms", what, (unsigned long long)ms_since(began_ns));
    if (read > most_read) fail_msg("%s: %llu tokens were read", what, (unsigned long long)read);
    talk_text(t, 20, 2);
}

static void a_store_that_is_gone_or_hangs_costs_seconds_once(void **state) {
    (void)state;
    for (int hangs = 0; hangs < 2; hangs++) {
        struct memory_store m;
        struct server v;
        struct setup cold;
        struct talk known = begun("known", 1), strange = begun("strange", 4), new = begun("new", 9);
        memory_open_store(&m);
        setup_open(&cold, OPTIONS(.kind = FAKE_HASH), CONFIG());
        serve(&v, &m, CACHED());
        ask(&v, &strange);
        setup_close(&v.b);
        talk_text(&strange, 20, 2);
        serve(&v, &m, CACHED());
        ask_in_time(&v, &cold, &known, 120, "before");
        if (hangs)
            atomic_store(&v.client.delay_us, 8000000);
        else
            atomic_store(&v.client.dead, true);
        ask_in_time(&v, &cold, &known, 21, "from memory");
        uint64_t began_ns = clock_now_ns();
        for (int i = 0; i < 3; i++) ask_in_time(&v, &cold, &known, 21, "from memory again");
        ask_in_time(&v, &cold, &strange, strange.n, "what it has not");
        ask_in_time(&v, &cold, &new, new.n, "what is new");
        if (ms_since(began_ns) > 2000) fail_msg("five requests took %llu ms", (unsigned long long)ms_since(began_ns));
        atomic_store(&v.client.delay_us, 0);
        atomic_store(&v.client.dead, false);
        began_ns = clock_now_ns();
        for (uint64_t saves = stats_of(v.b.c.engine).lane_saves; stats_of(v.b.c.engine).lane_saves == saves;) {
            if (ms_since(began_ns) > 20000) fail_msg("%s", "the store is well again, and nothing is written");
            usleep(200000);
            ask_in_time(&v, &cold, &new, 21, "well again");
        }
        setup_close(&v.b);
        serve(&v, &m, CACHED());
        assert_read(ask(&v, &new), 21, "after all");
        setup_close(&v.b), setup_close(&cold);
        memory_close_store(&m);
    }
}

static void a_removal_that_is_not_done_is_an_error(void **state) {
    (void)state;
    struct memory_store m;
    struct server v;
    struct rod_error err;
    struct talk t = begun("thread", 1);
    memory_open_store(&m);
    serve(&v, &m, CACHED());
    ask(&v, &t);
    atomic_store(&v.client.dead, true);
    assert_int_equal(rod_conversation_delete(v.b.c.engine, "a", "thread", &err), ROD_EIO);
    atomic_store(&v.client.dead, false);
    usleep(1500000);
    assert_int_equal(rod_conversation_delete(v.b.c.engine, "a", "thread", &err), 0);
    assert_int_equal(count_below(&m, "/c/"), 2); /* the head, and whose it is */
    setup_close(&v.b);
    memory_close_store(&m);
}

/* ---- time ---- */

static void what_nobody_uses_leaves_the_store(void **state) {
    (void)state;
    struct memory_store m;
    struct server v[2];
    struct talk left = begun("left", 1), used = begun("used", 4);
    memory_open_store(&m);
    for (int i = 0; i < 2; i++) serve(&v[i], &m, CACHED(.session_ttl_s = 3));
    ask(&v[0], &left), ask(&v[0], &used);
    char dir_of_left[CONVERSATION_DIR_BYTES];
    conversations_dir(v[0].b.c.engine->conversations, "a", "left", dir_of_left);
    uint64_t began_ns = clock_now_ns();
    if (count_below(&m, dir_of_left) < 3) fail_msg("%zu objects", count_below(&m, dir_of_left));
    while (count_below(&m, dir_of_left) || ms_since(began_ns) < 5000) {
        if (ms_since(began_ns) > 20000) fail_msg("%zu objects are left", count_below(&m, dir_of_left));
        usleep(700000);
        talk_text(&used, 20, 2);
        assert_read(ask(&v[1], &used), 21, "in use elsewhere");
    }
    talk_text(&left, 20, 2);
    const size_t n_left = left.n;
    if (ask(&v[1], &left) < n_left - 96) fail_msg("%s", "it was left for its time, and more than a head is there");
    began_ns = clock_now_ns();
    while (count_below(&m, "/c/")) {
        if (ms_since(began_ns) > 20000) fail_msg("%zu objects are left", count_below(&m, "/c/"));
        usleep(100000);
    }
    assert_int_equal(stats_of(v[0].b.c.engine).conversations, 0);
    for (int i = 0; i < 2; i++) setup_close(&v[i].b);
    memory_close_store(&m);
}

/* ---- lives ---- */

enum { TALKS = 10, FEW = 600 << 10 };

struct life {
    struct memory_store m;
    struct server v[N_SERVERS];
    struct setup cold;
    struct talk talks[TALKS];
    size_t known[TALKS];
    uint64_t seed, n_drawn, n_read, n_new, n_lost;
    bool fails;
};

static uint32_t draw(struct life *l, uint32_t n) {
    return (uint32_t)(philox_uniform(l->seed, l->n_drawn++, 5) * (double)n);
}

static void live_on(struct life *l, uint32_t i) {
    serve(&l->v[i], &l->m, CACHED(.state_host_bytes = FEW));
    if (!l->fails) return;
    l->v[i].client.p_fails = draw(l, 3) ? 0.05 : 0;
    l->v[i].client.p_unsure = draw(l, 3) ? 0.05 : 0;
    atomic_store(&l->v[i].client.delay_us, draw(l, 3) ? 0 : draw(l, 3000));
}

/* A name whose talk is begun, edited, or goes on. True: it goes on. */
static bool talk_goes_on(struct life *l, uint32_t i) {
    struct talk *t = &l->talks[i];
    char name[32];
    if (!t->n || t->n > MOST - 200 || t->n_marks > MAX_MARKS - 4) {
        snprintf(name, sizeof name, "talk %u", i);
        talk_begin(t, name, 20 + 30 * (i % 3), 1 + i % 3);
        l->known[i] = 0;
        return false;
    }
    if (draw(l, 6) || t->n_texts < 2) return true;
    t->n_texts = 1 + draw(l, t->n_texts - 1);
    t->n_marks = 1 + 2 * t->n_texts;
    t->n = t->marks[t->n_marks - 1];
    return false;
}

static void live(struct life *l, uint32_t n_asks) {
    struct rod_error err;
    for (uint32_t k = 0; k < n_asks; k++) {
        const uint32_t i = draw(l, TALKS), at = draw(l, N_SERVERS);
        struct talk *t = &l->talks[i];
        char what[96];
        const bool goes_on = talk_goes_on(l, i) && l->known[i];
        talk_text(t, 1 + draw(l, 40), l->seed + k);
        snprintf(what, sizeof what, "seed %llu, ask %u: talk %u of %zu tokens", (unsigned long long)l->seed, k, i,
                 t->n);
        look(&l->v[at].b, t);
        const size_t n = t->n;
        const uint64_t read = talk_ask_beside(&l->v[at].b, &l->cold, t, 2 + draw(l, 12), what);
        if (goes_on) l->n_read += read, l->n_new += n - l->known[i];
        if (goes_on && !l->fails && read > n - l->known[i])
            fail_msg("%s: %llu tokens were read, %zu are new", what, (unsigned long long)read, n - l->known[i]);
        l->known[i] = t->n - 1;
        if (!draw(l, 30)) {
            rod_conversation_delete(l->v[draw(l, N_SERVERS)].b.c.engine, "a", t->name, &err);
            l->known[i] = 0;
        }
        if (draw(l, 30)) continue;
        atomic_store(&l->v[at].client.dead, true);
        setup_close(&l->v[at].b);
        live_on(l, at);
        l->n_lost++;
    }
}

static void lives(bool fails, uint32_t n_asks, uint64_t seed) {
    struct life *l = calloc(1, sizeof *l);
    *l = (struct life){.seed = seed, .fails = fails};
    memory_open_store(&l->m);
    setup_open(&l->cold, OPTIONS(.kind = FAKE_HASH), CONFIG());
    for (uint32_t i = 0; i < N_SERVERS; i++) live_on(l, i);
    live(l, n_asks);
    printf("note: seed %llu: %llu tokens were read for %llu new ones, %llu servers lost, %zu objects\n",
           (unsigned long long)seed, (unsigned long long)l->n_read, (unsigned long long)l->n_new,
           (unsigned long long)l->n_lost, l->m.n);
    if (l->n_read > 3 * l->n_new) fail_msg("seed %llu: too much is read again", (unsigned long long)seed);
    for (uint32_t i = 0; i < N_SERVERS; i++) setup_close(&l->v[i].b);
    setup_close(&l->cold);
    memory_close_store(&l->m);
    free(l);
}

static void random_lives_read_nothing_again(void **state) {
    (void)state;
    lives(false, 300, test_seed());
}

static void random_lives_say_the_same_whatever_fails(void **state) {
    (void)state;
    for (uint64_t i = 1; i < 4; i++) lives(true, 150, test_seed() + i);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_server_takes_any_request),
        cmocka_unit_test(what_was_answered_is_in_the_store),
        cmocka_unit_test(equal_prompts_are_states_of_each_name),
        cmocka_unit_test(a_new_conversation_begins_at_anothers_head),
        cmocka_unit_test(it_is_listed_and_removed_with_its_objects),
        cmocka_unit_test(what_was_removed_elsewhere_is_not_read_from_a_cache),
        cmocka_unit_test(a_long_list_has_all),
        cmocka_unit_test(notes_of_several_servers_at_once_are_all_kept),
        cmocka_unit_test(what_is_damaged_is_read_again_and_replaced),
        cmocka_unit_test(a_store_that_is_gone_or_hangs_costs_seconds_once),
        cmocka_unit_test(a_removal_that_is_not_done_is_an_error),
        cmocka_unit_test(what_nobody_uses_leaves_the_store),
        cmocka_unit_test(random_lives_read_nothing_again),
        cmocka_unit_test(random_lives_say_the_same_whatever_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
