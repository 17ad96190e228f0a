/* test_team.c - the compute team: everyone runs, the barrier orders memory, shares cover everything once. */
#include "engine/backend/cpu/cpu_team.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { MEMBERS = 3, STAGES = 200 };
struct relay {
    struct team *team;
    int cell[2][MEMBERS];
    int wrong[MEMBERS];
};

/* Each stage writes its own cell and, after the barrier, reads everyone's. */
static void relay_member(void *arg, uint32_t member) {
    struct relay *r = arg;
    for (int stage = 1; stage <= STAGES; stage++) {
        r->cell[stage % 2][member] = stage;
        team_barrier(r->team, member);
        for (uint32_t i = 0; i < team_size(r->team); i++) r->wrong[member] += r->cell[stage % 2][i] != stage;
        team_barrier(r->team, member);
    }
}

static void count_member(void *arg, uint32_t member) {
    struct relay *r = arg;
    r->cell[0][member]++;
    if (member > 0) { /* late, as one that lost its processor */
        struct timespec late = {0, 5000000};
        nanosleep(&late, NULL);
    }
    team_barrier(r->team, member);
}

static void after_a_stall_the_caller_works_alone_for_a_while_and_then_with_the_team_again(void **state) {
    (void)state;
    struct relay r = {.team = team_open(2)};
    for (int i = 0; i < 2000; i++) team_run(r.team, count_member, &r);
    assert_int_equal(r.cell[0][0], 2000);
    if (r.cell[0][1] < 1 || r.cell[0][1] > 1000) fail_msg("the late member ran in %d of 2000 runs", r.cell[0][1]);
    int before = r.cell[0][1];
    struct timespec pause = {0, 600000000};
    nanosleep(&pause, NULL);
    team_run(r.team, count_member, &r);
    assert_int_equal(r.cell[0][1], before + 1);
    team_close(r.team);
}

static void a_barrier_shows_every_write_before_it_to_every_read_after_it(void **state) {
    (void)state;
    struct relay r = {.team = team_open(MEMBERS)};
    assert_non_null(r.team);
    assert_int_equal(team_size(r.team), MEMBERS);
    for (int run = 0; run < 20; run++) team_run(r.team, relay_member, &r);
    for (int i = 0; i < MEMBERS; i++) assert_int_equal(r.wrong[i], 0);
    team_close(r.team);
}

static void shares_cover_every_item_once(void **state) {
    (void)state;
    for (uint32_t size = 1; size <= 5; size++) {
        struct team *team = team_open(size);
        for (uint32_t n = 0; n < 40; n++) {
            uint32_t next = 0;
            for (uint32_t m = 0; m < size; m++) {
                uint32_t first, last;
                team_range(team, m, n, &first, &last);
                assert_int_equal(first, next);
                next = last;
            }
            assert_int_equal(next, n);
        }
        team_close(team);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_barrier_shows_every_write_before_it_to_every_read_after_it),
        cmocka_unit_test(after_a_stall_the_caller_works_alone_for_a_while_and_then_with_the_team_again),
        cmocka_unit_test(shares_cover_every_item_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
