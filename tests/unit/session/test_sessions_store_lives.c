/* test_sessions_store_lives.c - conversations over several servers of one store, each turn on a server drawn at random,
 * while calls fail, answers of writes are lost, writes come late and servers are lost in the middle of turns. Of two
 * turns that are sent at once from one version one is done; a turn is repeated with its key until it is answered. Each
 * answer is that of one server that was never restarted, to the token, and no turn is lost or done twice. Also with one
 * folder as the cache of all servers, whose files go and change meanwhile. */
#include "tests/sessions_store.h"

#include "engine/state/state_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

enum { N_SERVERS = 3, N_TALKS = 8, N_TURNS = 12, N_LIVES = 6 };

struct life {
    struct memory_store m;
    struct server v[N_SERVERS];
    struct setup plain;
    struct state_cache *cache[N_SERVERS]; /* NULL: none */
    char *cache_dir;
    uint64_t seed, n_drawn;
    uint32_t n_done[N_TALKS];
    struct rod_engine_config config;
    uint64_t n_hits;
    uint64_t n_turns, n_conflicts, n_unsure, n_io, n_late, n_replayed, n_lost_servers;
    bool kills;
};

static const char *const talks[N_TALKS] = {"aa", "bb", "cc", "dd", "ee", "ff", "gg", "hh"};

static uint32_t draw(struct life *l, uint32_t n) {
    return (uint32_t)(philox_uniform(l->seed, l->n_drawn++, 3) * (double)n);
}

static void end_cache(struct life *l, uint32_t i) {
    struct state_cache_counts c = {0};
    if (l->cache[i]) state_cache_count(l->cache[i], &c);
    l->n_hits += c.hits;
    state_cache_close(l->cache[i]);
    l->cache[i] = NULL;
}

static void begin_cache(struct life *l, uint32_t i) {
    struct rod_error err;
    struct state_home *home = &l->v[i].client.as_store.home;
    const struct state_cache_config config = {.home = home, .dir = l->cache_dir, .of = "one", .max_bytes = 64 << 10};
    if (state_cache_open(&config, &l->cache[i], &err)) fail_msg("%s", err.message);
    *home = state_cache_home(l->cache[i]);
}

/* One of the copies goes, or changes. */
static void damage(struct life *l) {
    char path[320];
    DIR *list = opendir(l->cache_dir);
    for (struct dirent *d; (d = readdir(list));) {
        struct stat info;
        if (*d->d_name == '.' || draw(l, 3)) continue;
        snprintf(path, sizeof path, "%s/%s", l->cache_dir, d->d_name);
        const int fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0) continue;
        if (draw(l, 2) || fstat(fd, &info) || info.st_size < 2)
            unlink(path);
        else if (pwrite(fd, "?", 1, draw(l, (uint32_t)info.st_size)) != 1)
            fail_msg("%s cannot be changed", path);
        close(fd);
    }
    closedir(list);
}

static void serve(struct life *l, uint32_t i) {
    memory_connect(&l->v[i].client, &l->m, l->seed + i + 100 * l->n_drawn);
    if (l->cache_dir) end_cache(l, i), begin_cache(l, i);
    server_start(&l->v[i], l->config);
    l->v[i].client.p_fails = !draw(l, 3) ? 0 : l->config.session_lazy ? 0.002 : 0.02;
    l->v[i].client.p_unsure = !draw(l, 3) ? 0 : l->config.session_lazy ? 0.005 : 0.03;
    atomic_store(&l->v[i].client.delay_us, draw(l, 3) ? draw(l, 1500) : 0);
}

/* Its process is gone, whatever it was doing; what it had in memory, too. */
static void lose(struct life *l, uint32_t i) {
    atomic_store(&l->v[i].client.dead, true);
    setup_close(&l->v[i].b);
    serve(l, i);
    l->n_lost_servers++;
}

/* One of two turns that may follow. */
static struct rod_request *ask(struct life *l, struct answer *a, uint32_t talk, uint32_t other) {
    const uint32_t n = l->n_done[talk];
    char key[24];
    struct rod_request *r = nth_turn(a, talks[talk], n);
    r->sampling.seed += 1000 * other;
    snprintf(key, sizeof key, "%s%u", other ? "other" : "one", n);
    r->turn->idempotency_key = strdup(key);
    memset(r->turn->digest, (int)other, sizeof r->turn->digest);
    r->turn->has_expected = true;
    r->turn->expected_version = n;
    return r;
}

/* True: it is known whether the turn is done. */
static bool judge(struct life *l, const struct answer *a, uint32_t talk) {
    const int code = a->failed ? a->end.error.code : 0;
    l->n_conflicts += code == ROD_ECONFLICT;
    l->n_unsure += code == ROD_EUNSURE;
    l->n_io += code == ROD_EIO;
    l->n_late += code == ROD_EVERSION;
    l->n_replayed += !code && a->end.replayed;
    if (code && code != ROD_ECONFLICT && code != ROD_EUNSURE && code != ROD_EIO && code != ROD_EVERSION)
        fail_msg("seed %llu, talk %u, turn %u: %s: %s", (unsigned long long)l->seed, talk, l->n_done[talk],
                 rod_code_name(code), a->end.error.message);
    return !code || code == ROD_EVERSION;
}

/* Turns that are sent at once, each until it is known how it went; servers may be lost meanwhile. */
static void send_all(struct life *l, uint32_t talk, struct answer a[2], uint32_t n) {
    bool known[2] = {false, n < 2};
    for (int tries = 0; !known[0] || !known[1]; tries++) {
        const uint32_t first = draw(l, N_SERVERS), dies = l->kills && !draw(l, 12) ? draw(l, N_SERVERS) : N_SERVERS;
        if (tries > 100) fail_msg("seed %llu: no end", (unsigned long long)l->seed);
        bool sent[2];
        for (uint32_t i = 0; i < 2; i++) {
            sent[i] = !known[i];
            if (sent[i]) collect_submit(&l->v[(first + i) % N_SERVERS].b.c, ask(l, &a[i], talk, i));
        }
        if (dies < N_SERVERS) {
            usleep(draw(l, 3000));
            atomic_store(&l->v[dies].client.dead, true);
        }
        for (uint32_t i = 0; i < 2; i++) {
            if (!sent[i]) continue;
            collect_until(&l->v[(first + i) % N_SERVERS].b.c, &a[i], 1);
            known[i] = judge(l, &a[i], talk);
            if (!known[i]) collect_free(&a[i]);
        }
        if (dies < N_SERVERS) lose(l, dies);
        if (tries > 2) usleep(100000); /* the guard of a store lets one call through at a time */
    }
}

static void step(struct life *l) {
    const uint32_t talk = draw(l, N_TALKS), n = l->n_done[talk], n_at_once = draw(l, 3) ? 1 : 2;
    struct answer a[2], want;
    if (n == N_TURNS) return;
    if (l->cache_dir && !draw(l, 8)) damage(l);
    send_all(l, talk, a, n_at_once);
    uint32_t n_well = 0, which = 0;
    for (uint32_t i = 0; i < n_at_once; i++)
        if (!a[i].failed) n_well++, which = i;
    if (n_well != 1)
        fail_msg("seed %llu, talk %u: of %u turns from version %u %u are done", (unsigned long long)l->seed, talk,
                 n_at_once, n, n_well);
    char what[64];
    snprintf(what, sizeof what, "seed %llu, talk %u, turn %u", (unsigned long long)l->seed, talk, n);
    turn_ok(&l->plain.c, ask(l, &want, talk, which), &want);
    assert_same(&a[which], &want, what);
    collect_free(&want);
    for (uint32_t i = 0; i < n_at_once; i++) collect_free(&a[i]);
    l->n_done[talk]++;
    l->n_turns++;
}

static void live(uint64_t seed, struct rod_engine_config config, bool kills, bool cached) {
    struct life *l = calloc(1, sizeof *l);
    l->seed = seed;
    l->config = config;
    l->kills = kills;
    if (cached) l->cache_dir = make_dir();
    memory_open_store(&l->m);
    begin_in_memory(&l->plain);
    for (uint32_t i = 0; i < N_SERVERS; i++) serve(l, i);
    while (l->n_turns < N_TALKS * N_TURNS) step(l);
    for (uint32_t i = 0; i < N_SERVERS; i++) {
        atomic_store(&l->v[i].client.quiet, true);
        if (config.session_lazy) setup_close(&l->v[i].b), serve(l, i); /* all is written */
        atomic_store(&l->v[i].client.quiet, true);
    }
    usleep(400000);
    for (uint32_t talk = 0; talk < N_TALKS; talk++)
        assert_int_equal(session_info(l->v[draw(l, N_SERVERS)].b.c.engine, talks[talk]).version, N_TURNS);
    for (uint32_t i = 0; i < N_SERVERS; i++) setup_close(&l->v[i].b), end_cache(l, i);
    printf("note: seed %llu: %llu turns, %llu conflicts, %llu unsure, %llu failed, %llu late, %llu replayed, "
           "%llu servers lost, %llu states from copies\n",
           (unsigned long long)seed, (unsigned long long)l->n_turns, (unsigned long long)l->n_conflicts,
           (unsigned long long)l->n_unsure, (unsigned long long)l->n_io, (unsigned long long)l->n_late,
           (unsigned long long)l->n_replayed, (unsigned long long)l->n_lost_servers, (unsigned long long)l->n_hits);
    assert_true(!cached == !l->n_hits);
    if (cached) remove_dir(l->cache_dir);
    assert_int_equal(memory_count(&l->m, ".state"), N_TALKS);
    setup_close(&l->plain);
    memory_close_store(&l->m);
    free(l);
}

static void whatever_fails_each_turn_is_done_once(void **state) {
    (void)state;
    for (uint64_t i = 0, seed = test_seed(); i < N_LIVES; i++) live(seed + i, CONFIG(), true, i % 2);
}

static void whatever_fails_each_turn_is_done_once_with_kept_turns_and_little_memory(void **state) {
    (void)state;
    const size_t bytes = state_pool_bytes(1, sizeof(struct fake_state));
    for (uint64_t i = 0, seed = test_seed() + 1000; i < N_LIVES; i++)
        live(seed + i, CONFIG(.session_keep_turns = 3, .state_host_bytes = 12 * bytes), true, i % 2);
}

/* None of these servers is lost, and their clients are away for a short time at most. */
static void whatever_fails_each_lazy_turn_is_done_once(void **state) {
    (void)state;
    for (uint64_t i = 0, seed = test_seed() + 2000; i < 2; i++)
        live(seed + i, CONFIG(.session_lazy = true), false, i % 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_fails_each_turn_is_done_once),
        cmocka_unit_test(whatever_fails_each_turn_is_done_once_with_kept_turns_and_little_memory),
        cmocka_unit_test(whatever_fails_each_lazy_turn_is_done_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
