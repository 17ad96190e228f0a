/* test_ablate.c - what a rule is worth, from pairs of times (tests/bench/ablate_sum.h). */
#include "tests/bench/ablate_sum.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static bool is_near(double a, double b) { return fabs(a - b) < 1e-9; }

static void test_a_loss_is_the_median_of_the_pairs(void **state) {
    (void)state;
    /* The machine grows slower from pair to pair, and one pair was disturbed. */
    const struct ablate_pair pair[] = {{1.0, 1.05}, {1.1, 1.155}, {1.2, 1.26}, {1.3, 9.0}, {1.4, 1.4}};
    const struct ablate_loss loss = ablate_loss(pair, 5);
    assert_true(is_near(loss.percent, 5));
    assert_true(is_near(loss.low, 0));
    assert_true(is_near(loss.high, 100 * (9.0 / 1.3 - 1)));
    assert_true(is_near(loss.with_ms, 1.2));
    assert_true(is_near(loss.without_ms, 1.26));
    assert_true(is_near(ablate_loss(pair, 2).percent, 5));
    assert_true(is_near(ablate_loss(&(struct ablate_pair){2, 1}, 1).percent, -50));
}

static void test_pairs_near_the_bound_are_measured_again(void **state) {
    (void)state;
    const double losses[] = {-1, 0.1, 1, 2, 3.9, 5, 40};
    const int near[] = {0, 0, 1, 1, 1, 0, 0};
    for (int i = 0; i < 7; i++) {
        const struct ablate_pair pair = {1, 1 + losses[i] / 100};
        assert_int_equal(ablate_is_close(&pair, 1), near[i]);
    }
}

static void test_sides_are_whole_rounds_of_four_steps(void **state) {
    (void)state;
    assert_int_equal(ablate_steps(1, 25, 4, 400), 24);
    assert_int_equal(ablate_steps(100, 25, 4, 400), 4);
    assert_int_equal(ablate_steps(0.001, 25, 4, 400), 400);
    assert_int_equal(ablate_steps(0, 25, 4, 400), 400);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_loss_is_the_median_of_the_pairs),
        cmocka_unit_test(test_pairs_near_the_bound_are_measured_again),
        cmocka_unit_test(test_sides_are_whole_rounds_of_four_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
