/* test_session_places.c - which earlier turns a session keeps: pure. */
#include "engine/session/store/session_places.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static void turns(struct session_metadata *m, int n) {
    for (int i = 0; i < n; i++) session_places_end_turn(m, true);
}

static void assert_back(const struct session_metadata *m, const uint64_t *back, size_t n) {
    if (m->n_kept != n) fail_msg("%u turns are kept, want %zu", m->n_kept, n);
    for (size_t i = 0; i < n; i++)
        if (m->turn - m->kept[i].turn != back[i])
            fail_msg("place %zu is %llu turns back, want %llu", i, (unsigned long long)(m->turn - m->kept[i].turn),
                     (unsigned long long)back[i]);
}

static void they_thin_out_by_powers_of_two(void **state) {
    (void)state;
    struct session_metadata m = {0};
    session_places_keep(&m, 8);
    turns(&m, 7);
    assert_back(&m, (uint64_t[]){7, 6, 5, 4, 3, 2, 1}, 7);
    turns(&m, 43);
    assert_back(&m, (uint64_t[]){50, 34, 18, 10, 6, 4, 2, 1}, 8);
    turns(&m, 950);
    assert_back(&m, (uint64_t[]){1000, 232, 104, 40, 8, 4, 2, 1}, 8);
    assert_int_equal(m.version, 1000);
    session_places_keep(&m, 4);
    assert_true(m.n_kept == 4 && m.kept[0].turn == 0 && m.kept[3].turn == 999); /* the beginning and the last stay */
    session_places_keep(&m, 0);
    assert_true(!m.n_kept && !m.turn && m.version == 1000 && session_places_ok(&m));
}

static void a_session_that_keeps_none_counts_its_versions_alone(void **state) {
    (void)state;
    struct session_metadata m = {.version = 6};
    turns(&m, 5);
    assert_true(m.version == 11 && !m.turn && !m.n_kept && session_places_ok(&m));
    session_places_keep(&m, 2);
    session_places_end_turn(&m, false); /* its state could not be kept */
    assert_true(m.version == 12 && m.turn == 1 && !m.n_kept);
    session_places_end_turn(&m, true);
    assert_true(m.n_kept == 1 && m.kept[0].version == 12 && m.kept[0].turn == 1);
}

static void the_nearest_is_found_by_turn_and_by_version(void **state) {
    (void)state;
    struct session_metadata m = {.version = 100};
    assert_int_equal(session_places_nearest(&m, true, 0), 0); /* none */
    session_places_keep(&m, 3);
    turns(&m, 9);
    assert_back(&m, (uint64_t[]){9, 3, 1}, 3); /* versions 100, 106, 108 */
    static const struct {
        bool by_turn;
        uint64_t value;
        size_t want;
    } asked[] = {{true, 0, 0}, {true, 3, 0},  {true, 4, 1},    {true, 7, 1},
                 {true, 9, 2}, {false, 1, 0}, {false, 107, 1}, {false, 900, 2}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        const size_t got = session_places_nearest(&m, asked[i].by_turn, asked[i].value);
        if (got != asked[i].want)
            fail_msg("nearest to %llu: %zu, want %zu", (unsigned long long)asked[i].value, got, asked[i].want);
    }
}

/* A life at random: places are always ones that a session can have, and each is the version that it stood in. */
static void places_are_true_through_any_life(void **state) {
    (void)state;
    enum { STEPS = 20000, MOST = 4000 };
    unsigned seed = (unsigned)getpid();
    const unsigned first = seed;
    struct session_metadata m = {.version = 3};
    static uint64_t made[MOST]; /* by turn */
    print_message("note: seed %u\n", first);
    session_places_keep(&m, 6);
    made[0] = m.version;
    for (int i = 0; i < STEPS; i++) {
        const int r = rand_r(&seed) % 16;
        if (r == 0 && m.n_kept) {
            const size_t at = (size_t)rand_r(&seed) % m.n_kept;
            const uint64_t version = m.version, turn = m.kept[at].turn;
            session_places_go_back(&m, at);
            assert_true(m.version == version + 1 && m.turn == turn && m.n_kept == at);
            made[turn] = m.version;
        } else if (r == 1) {
            session_places_keep(&m, 1 + (uint32_t)rand_r(&seed) % SESSION_MAX_KEPT);
        } else if (r == 2 && m.n_kept) {
            session_places_drop(&m, session_places_victim(&m));
        } else if (m.turn + 1 < MOST) {
            session_places_end_turn(&m, rand_r(&seed) % 8 != 0);
            made[m.turn] = m.version;
        }
        if (!session_places_ok(&m)) fail_msg("seed %u, step %d: places out of order", first, i);
        for (size_t k = 0; k < m.n_kept; k++) {
            if (made[m.kept[k].turn] != m.kept[k].version)
                fail_msg("seed %u, step %d: turn %llu was version %llu, and is listed as %llu", first, i,
                         (unsigned long long)m.kept[k].turn, (unsigned long long)made[m.kept[k].turn],
                         (unsigned long long)m.kept[k].version);
            assert_int_equal(session_places_find(&m, m.kept[k].version), k);
            assert_int_equal(session_places_nearest(&m, true, m.kept[k].turn), k);
            assert_int_equal(session_places_nearest(&m, false, m.kept[k].version), k);
        }
    }
}

static void lists_that_no_session_can_have_are_refused(void **state) {
    (void)state;
    const struct session_metadata good = {.version = 9, .keep = 3, .turn = 5, .n_kept = 2, .kept = {{4, 1}, {8, 4}}};
    assert_true(session_places_ok(&good));
    struct session_metadata bad[7];
    for (size_t i = 0; i < 7; i++) bad[i] = good;
    bad[0].keep = 1; /* fewer than there are */
    bad[1].keep = SESSION_MAX_KEPT + 1;
    bad[2].kept[1].version = 9; /* its own */
    bad[3].kept[1].turn = 5;
    bad[4].kept[1].version = 4; /* twice */
    bad[5].kept[0].turn = 4;
    bad[6].keep = bad[6].n_kept = 0; /* and yet turns */
    for (size_t i = 0; i < 7; i++)
        if (session_places_ok(&bad[i])) fail_msg("list %zu is taken", i);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_thin_out_by_powers_of_two),
        cmocka_unit_test(a_session_that_keeps_none_counts_its_versions_alone),
        cmocka_unit_test(the_nearest_is_found_by_turn_and_by_version),
        cmocka_unit_test(places_are_true_through_any_life),
        cmocka_unit_test(lists_that_no_session_can_have_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
