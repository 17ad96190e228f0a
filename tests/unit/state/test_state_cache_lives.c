/* test_state_cache_lives.c - random lives of states behind caches of one folder, whose files are removed, cut and
 * changed meanwhile: each call has the outcome and the bytes that it has without a cache. And threads. */
#include "tests/cache_setup.h"

enum { N_NAMES = 5, N_STEPS = 4000, N_CACHES = 2 };

struct life {
    struct memory_store with, without;
    struct memory_client client[N_CACHES], twin;
    struct state_cache *cache[N_CACHES];
    struct state_home home[N_CACHES];
    char *dir;
    uint64_t seed, n_drawn;
    struct state_disk_version known[N_NAMES]; /* some version that a caller once met */
};

static uint32_t draw(struct life *l, uint32_t n) {
    return (uint32_t)(philox_uniform(l->seed, l->n_drawn++, 3) * (double)n);
}

static void damage(struct life *l) {
    char paths[64][320];
    struct stat info;
    const unsigned n = list_copies(l->dir, paths, 64);
    if (!n) return;
    const char *path = paths[draw(l, n)], *other = paths[draw(l, n)];
    if (stat(path, &info)) return;
    switch (draw(l, 4)) {
    case 0: remove(path); break;
    case 1: assert_int_equal(rename(other, path), 0); break; /* a whole one, of something else */
    case 2: assert_int_equal(truncate(path, draw(l, (uint32_t)info.st_size + 1)), 0); break;
    default:
        if (info.st_size) change_byte(path, draw(l, (uint32_t)info.st_size));
    }
}

static void same(const struct life *l, const char *what, int a, int b) {
    if (a != b)
        fail_msg("seed %llu, draw %llu: %s is %s, without a cache %s", (unsigned long long)l->seed,
                 (unsigned long long)l->n_drawn, what, rod_code_name(a), rod_code_name(b));
}

static void life_write(struct life *l, const struct state_home *home, uint32_t k, const char *name) {
    struct bytes b;
    struct state_disk_version version = {0};
    const bool only_new = !draw(l, 4), replaces = !draw(l, 2);
    make_state(&b, l->n_drawn, draw(l, 2500));
    if (!draw(l, 10)) b.data[draw(l, (uint32_t)b.n)] ^= 4; /* no state at all */
    const int rc = put(home, name, &b, only_new, replaces ? l->known[k].etag : NULL, &version);
    same(l, "a write", rc, put(&l->twin.as_store.home, name, &b, only_new, replaces ? l->known[k].etag : NULL, NULL));
    if (!rc) l->known[k] = version;
}

static void life_read(struct life *l, const struct state_home *home, uint32_t k, const char *name) {
    struct bytes got, want;
    struct state_disk_version version, of_twin;
    bool unchanged, twin_unchanged;
    const struct state_disk_version *known = draw(l, 2) ? &l->known[k] : NULL;
    const int rc = get(home, name, known, 1 + draw(l, 3000), &got, &version, &unchanged);
    same(l, "a read", rc, get(&l->twin.as_store.home, name, known, FILE_MAX, &want, &of_twin, &twin_unchanged));
    if (rc) return;
    if (unchanged != twin_unchanged || got.n != want.n || memcmp(got.data, want.data, want.n))
        fail_msg("seed %llu, draw %llu: %zu bytes, without a cache %zu", (unsigned long long)l->seed,
                 (unsigned long long)l->n_drawn, got.n, want.n);
    if (unchanged) return;
    if (strcmp(version.etag, of_twin.etag) != 0 || version.inode != of_twin.inode || version.n_bytes != of_twin.n_bytes)
        fail_msg("seed %llu: version %s, without a cache %s", (unsigned long long)l->seed, version.etag, of_twin.etag);
    l->known[k] = version;
}

static void life_step(struct life *l) {
    const uint32_t k = draw(l, N_NAMES), second = draw(l, N_NAMES), at = draw(l, N_CACHES + 1);
    const struct state_home *home = at < N_CACHES ? &l->home[at] : &l->client[0].as_store.home; /* no cache at all */
    char name[8], to[8];
    struct rod_error err;
    snprintf(name, sizeof name, "v1/%u", k);
    snprintf(to, sizeof to, "v1/%u", second);
    switch (draw(l, 10)) {
    case 0: {
        const struct state_disk_version *known = draw(l, 2) ? &l->known[k] : NULL;
        same(l, "a removal", state_home_remove(home, name, known, &err),
             state_home_remove(&l->twin.as_store.home, name, known, &err));
        break;
    }
    case 1:
        same(l, "a copy", state_home_copy(home, name, NULL, to, &err),
             state_home_copy(&l->twin.as_store.home, name, NULL, to, &err));
        break;
    case 2: damage(l); break;
    case 3:
    case 4:
    case 5: life_write(l, home, k, name); break;
    default: life_read(l, home, k, name);
    }
}

static void live(uint64_t seed, uint64_t max_bytes) {
    struct life *l = calloc(1, sizeof *l);
    struct rod_error err;
    struct state_cache_counts c[N_CACHES];
    l->seed = seed;
    l->dir = make_dir();
    memory_open_store(&l->with);
    memory_open_store(&l->without);
    memory_connect(&l->twin, &l->without, 1);
    for (int i = 0; i < N_CACHES; i++) {
        memory_connect(&l->client[i], &l->with, 1);
        const struct state_cache_config config = {
            .home = &l->client[i].as_store.home, .dir = l->dir, .of = "one", .max_bytes = max_bytes};
        assert_int_equal(state_cache_open(&config, &l->cache[i], &err), 0);
        l->home[i] = state_cache_home(l->cache[i]);
    }
    for (int i = 0; i < N_STEPS; i++) life_step(l);
    for (int i = 0; i < N_CACHES; i++) {
        state_cache_count(l->cache[i], &c[i]);
        state_cache_close(l->cache[i]);
    }
    printf("note: seed %llu: %llu hits, %llu misses\n", (unsigned long long)seed,
           (unsigned long long)(c[0].hits + c[1].hits), (unsigned long long)(c[0].misses + c[1].misses));
    assert_true(c[0].hits + c[1].hits > 10 && c[0].misses + c[1].misses > 10);
    memory_close_store(&l->with);
    memory_close_store(&l->without);
    remove_dir(l->dir);
    free(l);
}

static void lives_are_those_without_a_cache(void **state) {
    const char *given = getenv("RODIMUS_TEST_SEED");
    const uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    (void)state;
    for (uint64_t i = 0; i < 6; i++) live(seed + i, i % 2 ? 3 * 4096 : 0);
}

/* ---- threads ---- */

struct worker {
    const struct setup *s;
    uint64_t seed;
    unsigned n_wrong;
};

static void *work(void *arg) {
    struct worker *w = arg;
    const struct state_home *homes[] = {&w->s->home, &w->s->client.as_store.home};
    struct bytes b;
    for (uint64_t i = 0; i < 600; i++) {
        char name[8];
        const double u = philox_uniform(w->seed, i, 1), which = philox_uniform(w->seed, i, 2);
        struct state_disk_version version;
        bool unchanged;
        snprintf(name, sizeof name, "%d", (int)(which * 3));
        if (u < 0.3) {
            make_state(&b, i + 1000 * w->seed, 1 + (size_t)(u * 6000));
            w->n_wrong += put(homes[u < 0.1], name, &b, false, NULL, NULL) != 0;
            continue;
        }
        const int rc = get(&w->s->home, name, NULL, 700, &b, &version, &unchanged);
        if (rc == ROD_ENOTFOUND) continue;
        char etag[24];
        snprintf(etag, sizeof etag, "\"%016llx\"", (unsigned long long)XXH3_64bits(b.data, b.n));
        w->n_wrong += rc || strcmp(etag, version.etag) != 0;
    }
    return NULL;
}

static void many_threads_read_what_the_version_says(void **state) {
    enum { N = 6 };
    struct setup *s = *state;
    struct worker w[N];
    pthread_t threads[N];
    for (uint64_t i = 0; i < N; i++) {
        w[i] = (struct worker){s, i + 1, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        if (w[i].n_wrong) fail_msg("thread %d: %u wrong", i, w[i].n_wrong);
    }
    assert_true(counts(s).hits > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lives_are_those_without_a_cache),
        CACHED(many_threads_read_what_the_version_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
