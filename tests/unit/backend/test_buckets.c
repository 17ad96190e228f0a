/* test_buckets.c - the sizes of decode steps that a GPU has graphs for. */
#include "engine/backend/cuda/cuda_backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { MOST = 512 };

static void buckets_grow_up_to_the_largest(void **state) {
    (void)state;
    assert_int_equal(cuda_bucket_rows(0), 1);
    for (uint32_t b = 1; b < CUDA_N_BUCKETS; b++) assert_true(cuda_bucket_rows(b) > cuda_bucket_rows(b - 1));
    assert_int_equal(cuda_bucket_rows(CUDA_N_BUCKETS - 1), MOST);
}

static void a_step_has_the_smallest_bucket_that_holds_it(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= MOST; n++) {
        const uint32_t b = cuda_bucket_of(n);
        assert_in_range(b, 0, CUDA_N_BUCKETS - 1);
        assert_in_range(n, b ? cuda_bucket_rows(b - 1) + 1 : 1, cuda_bucket_rows(b));
    }
    assert_int_equal(cuda_bucket_of(MOST + 1), CUDA_N_BUCKETS);
}

static void padding_is_less_than_eight_rows_or_a_quarter_of_the_step(void **state) {
    (void)state;
    for (uint32_t n = 1; n <= MOST; n++) {
        const uint32_t padding = cuda_bucket_rows(cuda_bucket_of(n)) - n;
        if (padding >= 8 && 4 * padding >= n) fail_msg("%u rows have %u of padding", n, padding);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_grow_up_to_the_largest),
        cmocka_unit_test(a_step_has_the_smallest_bucket_that_holds_it),
        cmocka_unit_test(padding_is_less_than_eight_rows_or_a_quarter_of_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
