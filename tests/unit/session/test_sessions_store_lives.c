/* test_sessions_store_lives.c - conversations over several servers of one store, each turn on a server drawn at random,
 * while calls fail, answers of writes are lost, writes come late and servers are lost. A turn is repeated with its key
 * until it is answered: then each answer is that of one server that was never restarted, to the token, and no turn is
 * lost or done twice. */
#include "tests/sessions_store.h"

enum { N_SERVERS = 3, N_TALKS = 8, N_TURNS = 12, N_LIVES = 6 };

struct life {
    struct memory_store m;
    struct server v[N_SERVERS];
    struct setup plain;
    uint64_t seed, n_drawn;
    uint32_t n_done[N_TALKS];
    struct answer want[N_TALKS][N_TURNS];
    struct rod_engine_config config;
    uint64_t n_conflicts, n_unsure, n_io, n_replayed, n_lost_servers, n_busy;
    bool kills;
};

static uint32_t draw(struct life *l, uint32_t n) {
    return (uint32_t)(philox_uniform(l->seed, l->n_drawn++, 3) * (double)n);
}

static void serve(struct life *l, uint32_t i) {
    server_open(&l->v[i], &l->m, l->seed + i + 100 * l->n_drawn, l->config);
    l->v[i].client.p_fails = draw(l, 3) ? 0.02 : 0;
    l->v[i].client.p_unsure = draw(l, 3) ? 0.03 : 0;
    atomic_store(&l->v[i].client.delay_us, draw(l, 3) ? draw(l, 1500) : 0);
}

/* Its process is gone, whatever it was doing; what it had in memory, too. */
static void lose(struct life *l, uint32_t i) {
    atomic_store(&l->v[i].client.dead, true);
    setup_close(&l->v[i].b);
    serve(l, i);
    l->n_lost_servers++;
}

static struct rod_request *ask(struct life *l, struct answer *a, uint32_t talk, uint32_t n) {
    static const char *const ids[N_TALKS] = {"aa", "bb", "cc", "dd", "ee", "ff", "gg", "hh"};
    char key[16];
    (void)l;
    struct rod_request *r = nth_turn(a, ids[talk], n);
    snprintf(key, sizeof key, "k%u", n);
    r->turn->idempotency_key = strdup(key);
    return r;
}

static void count_failure(struct life *l, const struct answer *a, uint32_t talk) {
    const int code = a->end.error.code;
    l->n_conflicts += code == ROD_ECONFLICT;
    l->n_unsure += code == ROD_EUNSURE;
    l->n_io += code == ROD_EIO;
    l->n_busy += code == ROD_EBUSY;
    if (code != ROD_ECONFLICT && code != ROD_EUNSURE && code != ROD_EIO && code != ROD_EBUSY)
        fail_msg("seed %llu, talk %u, turn %u: %s: %s", (unsigned long long)l->seed, talk, l->n_done[talk],
                 rod_code_name(code), a->end.error.message);
}

/* An impatient client: it sends a turn to several servers at once. */
static void step(struct life *l) {
    const uint32_t talk = draw(l, N_TALKS), n = l->n_done[talk], n_at_once = draw(l, 4) ? 1 : 2;
    struct answer a[2];
    uint32_t at[2];
    bool done = false;
    if (n == N_TURNS) return;
    if (l->kills && draw(l, 12) == 0) lose(l, draw(l, N_SERVERS));
    for (uint32_t i = 0; i < n_at_once; i++) {
        at[i] = (draw(l, N_SERVERS) + i) % N_SERVERS;
        if (i && at[i] == at[0]) at[i] = (at[i] + 1) % N_SERVERS;
        collect_submit(&l->v[at[i]].b.c, ask(l, &a[i], talk, n));
    }
    for (uint32_t i = 0; i < n_at_once; i++) {
        collect_until(&l->v[at[i]].b.c, &a[i], 1);
        if (a[i].failed) {
            count_failure(l, &a[i], talk);
        } else {
            char what[64];
            snprintf(what, sizeof what, "seed %llu, talk %u, turn %u", (unsigned long long)l->seed, talk, n);
            assert_same(&a[i], &l->want[talk][n], what);
            l->n_replayed += a[i].end.replayed;
            done = true;
        }
        collect_free(&a[i]);
    }
    l->n_done[talk] += done;
}

static void live(uint64_t seed, struct rod_engine_config config, bool kills) {
    struct life *l = calloc(1, sizeof *l);
    l->seed = seed;
    l->config = config;
    l->kills = kills;
    memory_open_store(&l->m);
    begin_in_memory(&l->plain);
    for (uint32_t talk = 0; talk < N_TALKS; talk++)
        for (uint32_t n = 0; n < N_TURNS; n++)
            turn_ok(&l->plain.c, ask(l, &l->want[talk][n], talk, n), &l->want[talk][n]);
    for (uint32_t i = 0; i < N_SERVERS; i++) serve(l, i);
    for (int steps = 0;; steps++) {
        uint32_t n = 0;
        for (uint32_t talk = 0; talk < N_TALKS; talk++) n += l->n_done[talk];
        if (n == N_TALKS * N_TURNS) break;
        if (steps > 20 * N_TALKS * N_TURNS) fail_msg("seed %llu: no end", (unsigned long long)seed);
        step(l);
    }
    for (uint32_t i = 0; i < N_SERVERS; i++) atomic_store(&l->v[i].client.quiet, true);
    static const char *const ids[N_TALKS] = {"aa", "bb", "cc", "dd", "ee", "ff", "gg", "hh"};
    for (uint32_t talk = 0; talk < N_TALKS; talk++)
        assert_int_equal(session_info(l->v[draw(l, N_SERVERS)].b.c.engine, ids[talk]).version, N_TURNS);
    for (uint32_t i = 0; i < N_SERVERS; i++) setup_close(&l->v[i].b);
    printf("note: seed %llu: %llu conflicts, %llu unsure, %llu failed, %llu busy, %llu replayed, %llu servers lost\n",
           (unsigned long long)seed, (unsigned long long)l->n_conflicts, (unsigned long long)l->n_unsure,
           (unsigned long long)l->n_io, (unsigned long long)l->n_busy, (unsigned long long)l->n_replayed,
           (unsigned long long)l->n_lost_servers);
    assert_int_equal(memory_count(&l->m, ".state"), N_TALKS);
    if (!kills) assert_int_equal(memory_count(&l->m, ".lazy"), 0);
    for (uint32_t talk = 0; talk < N_TALKS; talk++)
        for (uint32_t n = 0; n < N_TURNS; n++) collect_free(&l->want[talk][n]);
    setup_close(&l->plain);
    memory_close_store(&l->m);
    free(l);
}

static void whatever_fails_each_turn_is_done_once(void **state) {
    (void)state;
    for (uint64_t i = 0, seed = test_seed(); i < N_LIVES; i++) live(seed + i, CONFIG(), true);
}

static void whatever_fails_each_turn_is_done_once_with_kept_turns_and_little_memory(void **state) {
    (void)state;
    const size_t bytes = state_pool_bytes(1, sizeof(struct fake_state));
    for (uint64_t i = 0, seed = test_seed() + 1000; i < N_LIVES; i++)
        live(seed + i, CONFIG(.session_keep_turns = 3, .state_host_bytes = 12 * bytes), true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_fails_each_turn_is_done_once),
        cmocka_unit_test(whatever_fails_each_turn_is_done_once_with_kept_turns_and_little_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
