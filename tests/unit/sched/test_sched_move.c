/* test_sched_move.c - the scheduler while states are on their way in and out of slots, in virtual time. */
#include "engine/base/philox.h"
#include "tests/sched_setup.h"

/* A request that came with a state: it holds its slot, others run, and it starts when the state is there. */
static void a_request_whose_state_moves_holds_its_slot_and_has_no_rows(void **state) {
    (void)state;
    struct sched s;
    make(&s, 2, 100, 100, 10);
    struct sched_row rows[2];
    uint32_t n;
    struct sched_req a = request(30), b = request(5), c = request(5);
    a.pos = 20; /* of the state */
    sched_submit(&s, &a, 0), sched_submit(&s, &b, 0), sched_submit(&s, &c, 0);
    assert_ptr_equal(sched_admit(&s, 1), &a);
    sched_move(&s, &a);
    assert_false(sched_site_busy(&s, 0));
    assert_int_equal(sched_plan(&s, 0, rows), 0);
    assert_ptr_equal(sched_admit(&s, 1), &b);
    assert_null(sched_admit(&s, 1)); /* both slots are taken */
    for (int i = 0; i < 3; i++) {
        run_step(&s, rows, &n);
        assert_int_equal(n, 1);
        assert_ptr_equal(rows[0].req, &b);
    }
    sched_moved(&s, &a);
    assert_int_equal(a.state, SCHED_PREFILL);
    run_step(&s, rows, &n);
    assert_int_equal(n, 2);
    assert_int_equal(row_of(rows, n, &a)->pos, 20);
    assert_int_equal(row_of(rows, n, &a)->n_tok, 10);
    sched_remove(&s, &a), sched_remove(&s, &b);
    sched_fini(&s);
}

static void a_state_that_moves_out_keeps_the_slot_until_it_is_over(void **state) {
    (void)state;
    struct sched s;
    make(&s, 1, 100, 100, 10);
    struct sched_row rows[1];
    uint32_t n;
    struct sched_req a = request(5), b = request(5);
    a.max_out = 1;
    sched_submit(&s, &a, 0), sched_submit(&s, &b, 0);
    sched_admit(&s, 1);
    run_step(&s, rows, &n);
    assert_int_equal(a.state, SCHED_LAST);
    sched_move(&s, &a);
    assert_null(sched_admit(&s, 2));
    assert_int_equal(sched_plan(&s, 0, rows), 0);
    sched_remove(&s, &a); /* it is over */
    assert_ptr_equal(sched_admit(&s, 3), &b);
    assert_int_equal(s.n_left, 0);
    sched_remove(&s, &b);
    sched_fini(&s);
}

static void a_request_may_leave_while_its_state_moves(void **state) {
    (void)state;
    struct sched s;
    make(&s, 1, 100, 100, 10);
    struct sched_req a = request(5), b = request(5);
    sched_submit(&s, &a, 0), sched_submit(&s, &b, 0);
    sched_admit(&s, 1);
    sched_move(&s, &a);
    const uint32_t slot = sched_leave(&s, &a);
    assert_int_equal(a.state, SCHED_NONE);
    assert_int_equal(a.slot, SLOTS_NONE);
    assert_int_equal(s.n_left, 1);
    assert_null(sched_admit(&s, 2)); /* nobody has it, and it is not free */
    sched_release(&s, slot);
    assert_int_equal(s.n_left, 0);
    assert_ptr_equal(sched_admit(&s, 3), &b);
    assert_int_equal(b.slot, slot);
    sched_remove(&s, &b);
    sched_fini(&s);
}

/* Random lives: a plan never has a row of a state that moves, a slot never has two owners, all slots come back. */
static void slots_stay_right_whatever_moves(void **state) {
    (void)state;
    enum { N = 40, SLOTS = 6, ROUNDS = 20000 };
    const uint64_t seed = 77;
    struct sched s;
    make(&s, SLOTS, 40, 40, 8);
    struct sched_req r[N];
    memset(r, 0, sizeof r);
    uint32_t left[SLOTS], n_left = 0;
    struct sched_row rows[SLOTS];
    for (uint64_t k = 0; k < ROUNDS; k++) {
        const uint32_t i = (uint32_t)(philox_uniform(seed, k, 0) * N);
        const double luck = philox_uniform(seed, k, 1);
        struct sched_req *q = &r[i];
        const bool runs = q->state == SCHED_PREFILL || q->state == SCHED_DECODE || q->state == SCHED_LAST;
        if (q->state == SCHED_NONE) {
            *q = request(1 + (uint64_t)(luck * 60));
            q->max_out = 1 + k % 9;
            sched_submit(&s, q, k);
        } else if (runs && luck < 0.5) {
            sched_move(&s, q);
        } else if (q->state == SCHED_MOVING && luck < 0.3) {
            left[n_left++] = sched_leave(&s, q);
        } else if (q->state == SCHED_MOVING && luck < 0.7) {
            sched_moved(&s, q);
        } else if (luck > 0.9 || q->state == SCHED_LAST) {
            sched_remove(&s, q);
        }
        if (n_left && luck < 0.4) sched_release(&s, left[--n_left]);
        while (sched_admit(&s, k)) {}
        const uint32_t n = sched_plan(&s, 0, rows);
        for (uint32_t row = 0; row < n; row++) {
            if (rows[row].req->state == SCHED_MOVING)
                fail_msg("seed %llu, round %llu: a row of a state that moves", (unsigned long long)seed,
                         (unsigned long long)k);
            sched_commit(&s, &rows[row]);
        }
        uint32_t owned = n_left;
        bool taken[SLOTS] = {false};
        for (uint32_t l = 0; l < n_left; l++) taken[left[l]] = true;
        for (uint32_t j = 0; j < N; j++) {
            if (r[j].state == SCHED_NONE || r[j].state == SCHED_QUEUED) continue;
            assert_false(taken[r[j].slot]);
            taken[r[j].slot] = true;
            owned++;
        }
        assert_int_equal(owned + s.slots.n_free, SLOTS);
        assert_int_equal(s.n_left, n_left);
    }
    sched_fini(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_whose_state_moves_holds_its_slot_and_has_no_rows),
        cmocka_unit_test(a_state_that_moves_out_keeps_the_slot_until_it_is_over),
        cmocka_unit_test(a_request_may_leave_while_its_state_moves),
        cmocka_unit_test(slots_stay_right_whatever_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
