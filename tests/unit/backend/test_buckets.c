/* test_buckets.c - the sizes of decode steps that a GPU has graphs for, and rows of a prompt alone by its memory. */
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

/* ---- a prompt alone ---- */

#define MIB ((uint64_t)1 << 20)
/* Twice the rows, twice the workspaces. */
static const struct cuda_large large[] = {{8192, 1400 * MIB}, {4096, 700 * MIB}};
static uint32_t rows_with(uint32_t rows, uint64_t available, uint64_t kept) {
    return cuda_large_rows(rows, available, kept, large, 2);
}

static void a_prompt_alone_has_the_largest_step_that_is_a_small_part_of_what_is_free(void **state) {
    (void)state;
    const uint64_t at_8192 = 1400 * MIB * CUDA_LARGE_PART, at_4096 = 700 * MIB * CUDA_LARGE_PART;
    assert_int_equal(rows_with(2048, 2 * at_8192, 0), 8192);
    assert_int_equal(rows_with(2048, at_8192, 0), 8192);
    assert_int_equal(rows_with(2048, at_8192 - CUDA_LARGE_PART, 0), 4096);
    assert_int_equal(rows_with(2048, at_4096, 0), 4096);
    assert_int_equal(rows_with(2048, at_4096 - CUDA_LARGE_PART, 0), 2048);
    assert_int_equal(rows_with(2048, 700 * MIB, 0), 2048);
    assert_int_equal(rows_with(2048, 0, 0), 2048);
}

/* Slots that were asked for, flights and a reserve come first. */
static void what_is_kept_for_others_comes_before_a_large_step(void **state) {
    (void)state;
    const uint64_t available = 64 * 1024 * MIB;
    assert_int_equal(rows_with(2048, available, available - 1400 * MIB), 8192);
    assert_int_equal(rows_with(2048, available, available - 1400 * MIB + 1), 4096);
    assert_int_equal(rows_with(2048, available, available - 700 * MIB), 4096);
    assert_int_equal(rows_with(2048, available, available - 700 * MIB + 1), 2048);
    assert_int_equal(rows_with(2048, available, available), 2048);
    assert_int_equal(rows_with(2048, available, 100 * available), 2048); /* more than there is: nothing wraps */
}

/* With many slots a step has more rows than 2,048 anyway, and never fewer for a prompt alone. */
static void a_large_step_is_larger_than_others(void **state) {
    (void)state;
    const uint64_t much = 1024 * 1024 * MIB;
    assert_int_equal(rows_with(4095, much, 0), 8192);
    assert_int_equal(rows_with(4096, much, 0), 8192);
    assert_int_equal(rows_with(8191, much, 0), 8192);
    assert_int_equal(rows_with(8192, much, 0), 8192);
    assert_int_equal(rows_with(9000, much, 0), 9000);
    assert_int_equal(rows_with(4096, 1400 * MIB * CUDA_LARGE_PART - CUDA_LARGE_PART, 0), 4096);
    assert_int_equal(cuda_large_rows(2048, much, 0, large, 0), 2048);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_grow_up_to_the_largest),
        cmocka_unit_test(a_step_has_the_smallest_bucket_that_holds_it),
        cmocka_unit_test(padding_is_less_than_eight_rows_or_a_quarter_of_the_step),
        cmocka_unit_test(a_prompt_alone_has_the_largest_step_that_is_a_small_part_of_what_is_free),
        cmocka_unit_test(what_is_kept_for_others_comes_before_a_large_step),
        cmocka_unit_test(a_large_step_is_larger_than_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
