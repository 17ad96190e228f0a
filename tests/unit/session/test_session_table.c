/* test_session_table.c - the pure parts of sessions: the table with the time as an argument, leases.
 */
#include "engine/session/store/session_lease.h"
#include "engine/session/session_table.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- the table ---- */

static struct session *put(struct session_table *t, const char *tenant, const char *id, int64_t used_s, bool snapshot) {
    struct session *s = session_table_find(t, tenant, id);
    if (!s) s = session_table_add(t, tenant, id);
    struct session_metadata f = s->metadata;
    f.used_s = used_s;
    struct session_snapshot *p = snapshot ? session_snapshot_new(0) : NULL;
    if (p) p->buffer = state_buffer_new(NULL, 100);
    session_snapshot_release(session_table_set(t, s, &f, p, NULL));
    return s;
}

static void remove_it(struct session_table *t, struct session *s) {
    session_snapshot_release(session_table_unset(t, s));
    session_table_remove(t, s);
}

static void sessions_belong_to_their_tenants(void **state) {
    (void)state;
    struct session_table t;
    assert_int_equal(session_table_init(&t, NULL), 0);
    struct session *a = put(&t, "x", "s", 1, true), *b = put(&t, "", "s", 1, false), *c = put(&t, "xs", "s", 1, false);
    assert_true(a != b && b != c && a != c);
    assert_ptr_equal(session_table_find(&t, "x", "s"), a);
    assert_ptr_equal(session_table_find(&t, "", "s"), b);
    const uint8_t name[SESSION_NAME_BYTES] = {1}, other[SESSION_NAME_BYTES] = {2};
    assert_null(session_table_find_name(&t, name));
    session_table_name(&t, c, name);
    assert_ptr_equal(session_table_find_name(&t, name), c);
    session_table_name(&t, c, other); /* its file has another one now */
    assert_null(session_table_find_name(&t, name));
    assert_ptr_equal(session_table_find_name(&t, other), c);
    assert_null(session_table_find(&t, "x", "t"));
    assert_int_equal(t.n_exist, 3);
    assert_int_equal(t.n_snapshots, 1);
    remove_it(&t, a);
    assert_null(session_table_find(&t, "x", "s"));
    assert_int_equal(t.n_exist, 2);
    assert_int_equal(t.n_snapshots, 0);
    session_table_fini(&t);
}

static void who_was_used_longest_ago_goes_first(void **state) {
    (void)state;
    struct session_table t;
    assert_int_equal(session_table_init(&t, NULL), 0);
    static const char *const ids[] = {"a", "b", "c", "d", "e"};
    static const int64_t used[] = {50, 20, 40, 10, 30};
    struct session *s[5];
    for (int i = 0; i < 5; i++) s[i] = put(&t, "", ids[i], used[i], true);
    assert_null(session_table_to_drop(&t)); /* in no file */
    assert_ptr_equal(session_table_to_remove(&t, false, 0), s[3]);
    assert_null(session_table_to_remove(&t, true, 0));
    for (uint64_t i = 0; i < 5; i++)
        session_table_set_file(
            &t, s[i], &(struct session_file_version){.inode = 1 + i, .mtime_ns = 2, .n_bytes = 90, .disk_bytes = 100});
    assert_int_equal(t.files.all, 500);
    assert_ptr_equal(session_table_to_drop(&t), s[3]);
    session_table_set_dirty(&t, s[3], true); /* must be written first */
    assert_int_equal(t.n_dirty, 1);
    assert_ptr_equal(session_table_to_drop(&t), s[1]);
    assert_ptr_equal(session_table_to_write(&t, 0), s[3]);
    s[3]->failed_ns = 5;
    assert_ptr_equal(session_table_to_write(&t, 5), s[3]); /* long enough ago */
    assert_ptr_not_equal(session_table_to_write(&t, 4), s[3]);
    s[3]->failed_ns = 0;
    s[3]->hold = SESSION_TURN;
    assert_null(session_table_to_write(&t, 0));
    assert_ptr_equal(session_table_to_remove(&t, true, 0), s[1]);
    struct session_metadata pinned = s[1]->metadata;
    pinned.pinned = true;
    session_snapshot_release(session_table_set(&t, s[1], &pinned, session_snapshot_ref(s[1]->snapshot), NULL));
    assert_ptr_equal(session_table_to_remove(&t, true, 0), s[4]);
    session_snapshot_release(session_table_drop_snapshot(&t, s[1])); /* a pinned one leaves memory as any other */
    assert_int_equal(t.n_snapshots, 4);
    assert_ptr_equal(session_table_to_drop(&t), s[4]);
    struct session_metadata f = s[4]->metadata; /* used again */
    f.used_s = 60;
    session_snapshot_release(session_table_set(&t, s[4], &f, session_snapshot_ref(s[0]->snapshot), NULL));
    assert_ptr_equal(session_table_to_remove(&t, true, 0), s[2]);
    session_table_use(&t, s[2], f.used_s + 1); /* somebody began from it */
    assert_ptr_not_equal(session_table_to_remove(&t, true, 0), s[2]);
    assert_int_equal(s[2]->metadata.used_s, f.used_s + 1);
    s[3]->hold = SESSION_FREE;
    session_table_fini(&t);
}

enum { MODELS = 300, BASES = 20 };
struct model {
    bool there, snapshot, pinned;
    int64_t used_s;
    uint64_t bytes, more_bytes, base; /* base: its number, from 1, and it has 100 bytes times that; 0 = none */
};

/* How many have this base; pinned: of these, those that are pinned. */
static uint64_t n_with(const struct model model[MODELS], uint64_t base, bool pinned) {
    uint64_t n = 0;
    for (int i = 0; i < MODELS; i++) n += model[i].there && model[i].base == base && (!pinned || model[i].pinned);
    return n;
}

/* Against a plain array, after many random changes. */
static void counts_and_order_stay_true(void **state) {
    (void)state;
    struct session_table t;
    struct model model[MODELS] = {{0}};
    unsigned seed = 11;
    assert_int_equal(session_table_init(&t, NULL), 0);
    for (int step = 0; step < 20000; step++) {
        const int i = rand_r(&seed) % MODELS;
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        const int what = rand_r(&seed) % 4;
        struct session *s = session_table_find(&t, "t", id);
        assert_int_equal(s != NULL, model[i].there);
        if (what < 2) {
            model[i].there = true;
            model[i].snapshot = rand_r(&seed) % 2;
            model[i].used_s = rand_r(&seed) % 100;
            s = put(&t, "t", id, model[i].used_s, model[i].snapshot);
            struct session_metadata metadata = s->metadata;
            model[i].pinned = metadata.pinned = rand_r(&seed) % 8 == 0;
            session_snapshot_release(session_table_set(&t, s, &metadata, session_snapshot_ref(s->snapshot), NULL));
        } else if (s && what == 2 && rand_r(&seed) % 2) {
            const uint64_t next = (uint64_t)(rand_r(&seed) % 1000);
            const bool alone = model[i].base && n_with(model, model[i].base, false) == 1;
            const uint64_t own = model[i].bytes + (alone ? 100 * model[i].base : 0);
            model[i].more_bytes = next > own ? next - own : 0;
            session_table_reserve(&t, s, next);
        } else if (s && what == 2) {
            model[i].bytes = (uint64_t)(rand_r(&seed) % 1000);
            model[i].more_bytes = 0;
            model[i].base = model[i].bytes && rand_r(&seed) % 2 ? 1 + (uint64_t)(rand_r(&seed) % BASES) : 0;
            session_table_set_file(&t, s,
                                   &(struct session_file_version){.inode = 1000 + (uint64_t)i,
                                                                  .mtime_ns = 1,
                                                                  .n_bytes = model[i].bytes,
                                                                  .disk_bytes = model[i].bytes,
                                                                  .base_inode = model[i].base,
                                                                  .base_bytes = 100 * model[i].base});
        } else if (s) {
            remove_it(&t, s);
            model[i].there = model[i].snapshot = false;
            model[i].bytes = model[i].more_bytes = model[i].base = 0;
        }
        if (step % 100) continue;
        uint64_t n = 0, n_snapshots = 0, bytes = 0, more = 0, pinned = 0;
        int64_t oldest = INT64_MAX;
        for (int k = 0; k < MODELS; k++) {
            n += model[k].there, n_snapshots += model[k].snapshot, bytes += model[k].bytes;
            more += model[k].more_bytes;
            pinned += model[k].there && model[k].pinned ? model[k].bytes + model[k].more_bytes : 0;
            if (model[k].there && !model[k].pinned && model[k].bytes && model[k].used_s < oldest)
                oldest = model[k].used_s;
        }
        for (uint64_t b = 1; b <= BASES; b++) {
            bytes += n_with(model, b, false) ? 100 * b : 0;
            pinned += n_with(model, b, true) ? 100 * b : 0;
        }
        assert_int_equal(t.n_exist, n);
        assert_int_equal(t.n_snapshots, n_snapshots);
        assert_int_equal(t.files.all, bytes);
        assert_int_equal(t.reserved_bytes, more);
        assert_int_equal(t.files.pinned + t.reserved_pinned_bytes, pinned);
        const struct session *first = session_table_to_remove(&t, true, 0);
        if (first) assert_int_equal(first->metadata.used_s, oldest);
        for (const struct session *x = session_oldest(&t, SESSION_ALL), *newer; x; x = newer) {
            newer = session_newer(&t, x, SESSION_ALL);
            assert_true(!newer || x->metadata.used_s <= newer->metadata.used_s);
        }
    }
    session_table_fini(&t);
}

static void a_list_is_in_order_and_in_pieces(void **state) {
    (void)state;
    struct session_table t;
    const struct session **found;
    size_t n;
    bool more;
    assert_int_equal(session_table_init(&t, NULL), 0);
    for (int i = 0; i < 100; i++)
        put(&t, "", (char[]){(char)('0' + i * 37 % 100 / 10), (char)('0' + i * 37 % 10), 0}, i, 0);
    put(&t, "other", "00a", 1, false);
    struct session *gone = put(&t, "", "005", 1, false);
    gone->metadata.ttl_s = 10;
    char last[4] = "";
    size_t n_all = 0;
    do {
        assert_int_equal(session_table_list(&t, "", *last ? last : NULL, 7, 11, &found, &n, &more, NULL), 0);
        for (size_t i = 0; i < n; i++) {
            assert_true(strcmp(found[i]->metadata.id, last) > 0);
            snprintf(last, sizeof last, "%.3s", found[i]->metadata.id);
        }
        n_all += n;
        free(found);
    } while (more);
    assert_int_equal(n_all, 100);
    session_table_fini(&t);
}

static void time_ends_a_session(void **state) {
    (void)state;
    struct session_metadata f = {.ttl_s = 10, .used_s = 100};
    assert_false(session_expired(&f, 109));
    assert_true(session_expired(&f, 110));
    assert_false(session_expired(&f, 50)); /* a clock that was set back ends nothing */
    f.created_s = 1000;                    /* made, then used while the clock was set back, and now it is right again */
    assert_int_equal(session_last_s(&f), 1000);
    assert_false(session_expired(&f, 1009));
    assert_true(session_expired(&f, 1010));
    f.created_s = 0;
    f.pinned = true;
    assert_false(session_expired(&f, 1000));
    f = (struct session_metadata){.used_s = 100};
    assert_false(session_expired(&f, INT64_MAX));
    f.ttl_s = UINT64_MAX;
    assert_false(session_expired(&f, INT64_MAX));
}

/* Against looking at all of them. */
static void those_whose_time_is_over_are_found(void **state) {
    (void)state;
    enum { N = 200 };
    struct session_table t;
    struct session *s[N];
    unsigned seed = 5;
    assert_int_equal(session_table_init(&t, NULL), 0);
    assert_null(session_table_to_expire(&t, 1000));
    for (int i = 0; i < N; i++) {
        char id[8];
        snprintf(id, sizeof id, "%d", i);
        s[i] = put(&t, "", id, rand_r(&seed) % 100, false);
        struct session_metadata f = s[i]->metadata;
        f.ttl_s = (uint64_t)(rand_r(&seed) % 3) * 40;
        f.pinned = rand_r(&seed) % 10 == 0;
        f.created_s = rand_r(&seed) % 4 ? 0 : rand_r(&seed) % 150; /* some were used while the clock was set back */
        session_table_set(&t, s[i], &f, NULL, NULL);
    }
    for (int64_t now_s = 0; now_s < 200; now_s += 7) {
        uint32_t n = 0, n_found = 0;
        for (int i = 0; i < N; i++) n += session_expired(&s[i]->metadata, now_s);
        for (struct session *x; (x = session_table_to_expire(&t, now_s)); n_found++)
            assert_true(session_expired(&x->metadata, now_s));
        assert_int_equal(n_found, n);
    }
    session_table_fini(&t);
}

static uint64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static struct session *numbered(struct session_table *t, const char *tenant, int i, int64_t used_s, uint64_t ttl_s) {
    char id[16];
    snprintf(id, sizeof id, "%07d", i);
    struct session *s = session_table_add(t, tenant, id);
    struct session_metadata f = s->metadata;
    f.used_s = used_s;
    f.ttl_s = ttl_s;
    session_snapshot_release(session_table_set(t, s, &f, NULL, NULL));
    return s;
}

enum { MANY = 65536 };

/* One whose time is short does not make each second walk all the others. */
static void to_ask_whose_time_is_over_costs_what_is_over(void **state) {
    (void)state;
    enum { ASKED = 20000 };
    struct session_table t;
    assert_int_equal(session_table_init(&t, NULL), 0);
    for (int i = 0; i < MANY; i++) numbered(&t, "", i, 1000, 86400);
    struct session *brief = numbered(&t, "", MANY, 1000, 1);
    brief->hold = SESSION_TURN; /* somebody has it, so it stays */
    const uint64_t begin_ms = now_ms();
    for (int i = 0; i < ASKED; i++) assert_null(session_table_to_expire(&t, 2000 + i));
    const uint64_t took_ms = now_ms() - begin_ms;
    if (took_ms > 1000) fail_msg("%d times took %llu ms, want 1000 at most", ASKED, (unsigned long long)took_ms);
    brief->hold = SESSION_FREE;
    assert_ptr_equal(session_table_to_expire(&t, 2000 + ASKED), brief);
    assert_null(session_table_to_expire(&t, 2000 + ASKED)); /* once a second */
    assert_ptr_equal(session_table_to_expire(&t, 2000 + ASKED + 1), brief);
    session_table_fini(&t);
}

/* Two first turns at once, the table else empty: an entry that nobody has used, while another one's time is looked at.
 * Under UBSan each sum is checked. */
static void a_place_that_was_never_used_has_no_time(void **state) {
    (void)state;
    struct session_table t;
    assert_int_equal(session_table_init(&t, NULL), 0);
    assert_non_null(session_table_add(&t, "", "waits"));
    struct session *s = numbered(&t, "", 1, 1000, 1);
    assert_ptr_equal(session_table_to_expire(&t, 2000), s);
    assert_null(session_table_to_expire(&t, 2000));
    struct session_metadata f = s->metadata; /* as a file may say */
    f.ttl_s = UINT64_MAX;
    f.used_s = f.created_s = INT64_MAX;
    session_snapshot_release(session_table_set(&t, s, &f, NULL, NULL));
    assert_int_equal(session_end_s(&f), INT64_MAX);
    assert_null(session_table_to_expire(&t, INT64_MAX));
    session_table_fini(&t);
}

static void a_list_costs_what_it_gives(void **state) {
    (void)state;
    enum { ASKED = 5000 };
    struct session_table t;
    const struct session **found;
    size_t n;
    bool more;
    assert_int_equal(session_table_init(&t, NULL), 0);
    for (int i = 0; i < MANY; i++) numbered(&t, "crowd", i, 1000, 0);
    for (int i = 0; i < 3; i++) numbered(&t, "few", i, 1000, 0);
    const uint64_t begin_ms = now_ms();
    for (int i = 0; i < ASKED; i++) {
        assert_int_equal(session_table_list(&t, i % 2 ? "few" : "crowd", "0000000", 2, 2000, &found, &n, &more, NULL),
                         0);
        assert_int_equal(n, 2);
        assert_int_equal(more, i % 2 == 0);
        assert_string_equal(found[0]->metadata.id, "0000001");
        free(found);
    }
    const uint64_t took_ms = now_ms() - begin_ms;
    if (took_ms > 500) fail_msg("%d lists took %llu ms, want 500 at most", ASKED, (unsigned long long)took_ms);
    assert_int_equal(session_table_n_of(&t, "few"), 3);
    assert_int_equal(session_table_n_of(&t, "crowd"), MANY);
    assert_int_equal(session_table_n_of(&t, "fe"), 0);
    assert_int_equal(session_table_n_of(&t, "fex"), 0);
    assert_int_equal(session_table_n(&t), MANY + 3);
    session_table_fini(&t);
}

/* Against a plain array: what is counted, and a list from any position. */
static void numbers_and_lists_stay_true(void **state) {
    (void)state;
    enum { N = 200, TENANTS = 3 };
    struct session_table t;
    bool there[TENANTS][N] = {{false}};
    unsigned seed = 23;
    assert_int_equal(session_table_init(&t, NULL), 0);
    for (int step = 0; step < 20000; step++) {
        const int k = rand_r(&seed) % TENANTS, i = rand_r(&seed) % N;
        const char tenant[] = {'t', (char)('0' + k), 0};
        char id[16];
        snprintf(id, sizeof id, "%07d", i);
        struct session *s = session_table_find(&t, tenant, id);
        if (!s)
            numbered(&t, tenant, i, rand_r(&seed) % 100, (uint64_t)(rand_r(&seed) % 2) * 10);
        else
            remove_it(&t, s);
        there[k][i] = !s;
        if (step % 50) continue;
        const struct session **found;
        size_t n, n_want = 0, n_behind = 0;
        bool more;
        for (int j = 0; j < N; j++) n_want += there[k][j], n_behind += j > i && there[k][j];
        assert_int_equal(session_table_n_of(&t, tenant), n_want);
        assert_int_equal(session_table_list(&t, tenant, id, 20, 0, &found, &n, &more, NULL), 0);
        assert_int_equal(n, n_behind < 20 ? n_behind : 20);
        assert_int_equal(more, n_behind > 20);
        for (size_t at = 0, j = (size_t)i + 1; at < n; at++, j++) {
            while (!there[k][j]) j++;
            snprintf(id, sizeof id, "%07zu", j);
            assert_string_equal(found[at]->metadata.id, id);
            assert_string_equal(found[at]->metadata.tenant, tenant);
        }
        free(found);
    }
    session_table_fini(&t);
}

/* Who knows the program does not know which ids share a bucket. */
static void each_table_has_buckets_of_its_own(void **state) {
    (void)state;
    struct session_table t[2];
    uint64_t of_id[2], of_name[2];
    const uint8_t name[SESSION_NAME_BYTES] = {1, 2, 3};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(session_table_init(&t[i], NULL), 0);
        struct session *s = put(&t[i], "tenant", "session", 1, false);
        session_table_name(&t[i], s, name);
        of_id[i] = s->hash[SESSION_BY_ID], of_name[i] = s->hash[SESSION_BY_NAME];
    }
    assert_true(of_id[0] != of_id[1] && of_name[0] != of_name[1]);
    for (int i = 0; i < 2; i++) session_table_fini(&t[i]);
}

static void what_sessions_take_of_memory_is_counted(void **state) {
    (void)state;
    struct session_table t;
    struct state_pool *pool;
    struct state_pool_counts counts;
    const struct state_pool_config config = {.bytes = 1 << 20};
    assert_int_equal(state_pool_new(&config, &pool, NULL), 0);
    assert_int_equal(session_table_init(&t, NULL), 0);
    t.pool = pool;
    struct session_snapshot *p = session_snapshot_new(100);
    const size_t own = session_snapshot_own_bytes(p);
    assert_true(own >= 100 * sizeof(struct session_seen));
    struct session *s[3];
    for (int i = 0; i < 3; i++) {
        s[i] = session_table_add(&t, "", (char[]){(char)('a' + i), 0});
        state_pool_count(pool, &counts);
        assert_int_equal(counts.place_bytes, (size_t)i * SESSION_PLACE_BYTES); /* an entry does not count yet */
        const struct session_metadata f = s[i]->metadata;
        session_snapshot_release(session_table_set(&t, s[i], &f, session_snapshot_ref(p), NULL));
    }
    state_pool_count(pool, &counts);
    assert_int_equal(counts.place_bytes, 3 * SESSION_PLACE_BYTES);
    assert_int_equal(counts.beside_bytes, own); /* forks share it */
    session_table_set_file(&t, s[0], &(struct session_file_version){.inode = 1, .n_bytes = 5});
    session_snapshot_release(session_table_drop_snapshot(&t, s[0]));
    remove_it(&t, s[1]);
    state_pool_count(pool, &counts);
    assert_int_equal(counts.place_bytes, 2 * SESSION_PLACE_BYTES);
    assert_int_equal(counts.beside_bytes, own);
    remove_it(&t, s[0]), remove_it(&t, s[2]);
    state_pool_count(pool, &counts);
    assert_int_equal(counts.place_bytes + counts.beside_bytes, 0);
    session_snapshot_release(p);
    session_table_fini(&t);
    state_pool_close(pool);
}

static void ids_are_few_characters(void **state) {
    (void)state;
    char longest[SESSION_MAX_ID + 2];
    memset(longest, 'x', sizeof longest);
    longest[SESSION_MAX_ID + 1] = 0;
    assert_false(session_id_ok(longest));
    longest[SESSION_MAX_ID] = 0;
    assert_true(session_id_ok(longest));
    assert_true(session_id_ok("aZ09._-"));
    static const char *const bad[] = {"", " ", "a/b", "a\n", "\xc3\xa4", "a:b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(session_id_ok(bad[i]));
}

/* ---- leases ---- */

static void a_lease_is_one_processs_and_ends_with_it(void **state) {
    (void)state;
    char dir[] = "/tmp/rodimus-test-XXXXXX", path[64];
    struct rod_error err;
    int fd, other, ends[2], status;
    char byte;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(session_lease_take(dir, "s", &fd, &err), 0);
    assert_int_equal(session_lease_take(dir, "s", &other, &err), ROD_EBUSY);
    assert_int_equal(session_lease_take(dir, "t", &other, &err), 0);
    session_lease_end(dir, "t", other);
    session_lease_sweep(dir); /* takes none from who has it */
    assert_int_equal(session_lease_take(dir, "s", &other, &err), ROD_EBUSY);
    session_lease_end(dir, "s", fd);
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
        if (session_lease_take(dir, "s", &fd, &err) || write(ends[1], "x", 1) != 1) _exit(1);
        pause();
    }
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(session_lease_take(dir, "s", &fd, &err), ROD_EBUSY);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(session_lease_take(dir, "s", &fd, &err), 0); /* although its file is there */
    session_lease_end(dir, "s", fd);
    snprintf(path, sizeof path, "%s/x.lease", dir);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    session_lease_sweep(dir);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(session_lease_take(dir, "s", &fd, &err), ROD_EIO);
    close(ends[0]), close(ends[1]);
}

/* Processes that want one lease never have it together: each adds one to a number that no one else guards.
 */
static void leases_are_never_had_by_two(void **state) {
    (void)state;
    enum { CHILDREN = 4, ROUNDS = 300 };
    char dir[] = "/tmp/rodimus-test-XXXXXX", path[64];
    struct rod_error err;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/n", dir);
    int n_fd = open(path, O_CREAT | O_RDWR, 0600), n = 0, status;
    assert_int_equal(pwrite(n_fd, &n, sizeof n, 0), sizeof n);
    for (int i = 0; i < CHILDREN; i++)
        if (!fork()) {
            for (int round = 0, fd; round < ROUNDS;) {
                const int rc = session_lease_take(dir, "s", &fd, &err);
                if (rc && rc != ROD_EBUSY) _exit(1);
                if (rc) continue;
                if (pread(n_fd, &n, sizeof n, 0) != (ssize_t)sizeof n) _exit(1);
                n++;
                if (round % 10 == 0) usleep(50);
                if (pwrite(n_fd, &n, sizeof n, 0) != (ssize_t)sizeof n) _exit(1);
                session_lease_end(dir, "s", fd);
                round++;
            }
            _exit(0);
        }
    for (int i = 0; i < CHILDREN; i++) {
        assert_true(wait(&status) > 0);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(pread(n_fd, &n, sizeof n, 0), sizeof n);
    assert_int_equal(n, CHILDREN * ROUNDS);
    close(n_fd);
    unlink(path);
    assert_int_equal(rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_belong_to_their_tenants),
        cmocka_unit_test(who_was_used_longest_ago_goes_first),
        cmocka_unit_test(counts_and_order_stay_true),
        cmocka_unit_test(a_list_is_in_order_and_in_pieces),
        cmocka_unit_test(time_ends_a_session),
        cmocka_unit_test(those_whose_time_is_over_are_found),
        cmocka_unit_test(to_ask_whose_time_is_over_costs_what_is_over),
        cmocka_unit_test(a_place_that_was_never_used_has_no_time),
        cmocka_unit_test(a_list_costs_what_it_gives),
        cmocka_unit_test(numbers_and_lists_stay_true),
        cmocka_unit_test(each_table_has_buckets_of_its_own),
        cmocka_unit_test(what_sessions_take_of_memory_is_counted),
        cmocka_unit_test(ids_are_few_characters),
        cmocka_unit_test(a_lease_is_one_processs_and_ends_with_it),
        cmocka_unit_test(leases_are_never_had_by_two),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
