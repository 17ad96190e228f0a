/* test_loading.c - how long loading still takes, from made-up reports: what a client is told beside what then happens.
 */
#include "server/base/loading.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#define S_NS 1000000000ull

static void report(struct loading *l, const char *what, uint64_t done, uint64_t total, double now_s) {
    const struct rod_progress at = {what, "B", done, total};
    loading_report(l, &at, (uint64_t)(now_s * 1e9));
}

static void fail_unless(struct loading *l, double now_s, uint64_t wanted, const char *what) {
    const uint64_t got = loading_retry_s(l, (uint64_t)(now_s * 1e9));
    if (got != wanted)
        fail_msg("%s, at %g s: %llu s, wanted %llu", what, now_s, (unsigned long long)got, (unsigned long long)wanted);
}

static void what_is_left_follows_the_bytes(void **state) {
    (void)state;
    struct loading l;
    loading_begin(&l, 0);
    fail_unless(&l, 0, 1, "at the very start");
    fail_unless(&l, 3, 3, "nothing counted yet");
    report(&l, "reading weights", 0, 1000, 4);
    fail_unless(&l, 4, 1, "a phase begins");
    report(&l, "reading weights", 100, 1000, 6);
    fail_unless(&l, 6, 18, "a tenth of the first in 2 s");
    report(&l, "reading weights", 500, 1000, 14);
    fail_unless(&l, 14, 10, "half of the first");
    report(&l, "reading weights", 1000, 1000, 24);
    fail_unless(&l, 24, 1, "between the phases");
    fail_unless(&l, 27, 3, "something else takes time between them");
    report(&l, "loading weights", 0, 1000, 28);
    fail_unless(&l, 30, 2, "the second has none yet");
    report(&l, "loading weights", 500, 1000, 33);
    fail_unless(&l, 33, 5, "half of the second");
    fail_unless(&l, 43, 15, "it stands: more, bit by bit");
    report(&l, "loading weights", 1000, 1000, 44);
    fail_unless(&l, 44, 1, "nothing is left");
    fail_unless(&l, 49, 5, "something else takes time");
}

static void it_has_bounds(void **state) {
    (void)state;
    struct loading l;
    loading_begin(&l, 0);
    fail_unless(&l, 1e6, LOADING_MAX_S, "hangs before it reads");
    report(&l, "reading weights", 1, UINT64_MAX, 1e6);
    fail_unless(&l, 1e6 + 1, LOADING_MAX_S, "a byte a second");
    report(&l, "reading weights", 0, 0, 1e6 + 2);
    fail_unless(&l, 1e6 + 2, 1, "no bytes at all");
}

/* Phases of random length and steps: what is said of one is right to a tenth and a second, from its tenth part on. */
static void a_steady_phase_is_foretold(void **state) {
    (void)state;
    const char *given = getenv("RODIMUS_TEST_SEED");
    const unsigned first = given ? (unsigned)strtoul(given, NULL, 10) : (unsigned)getpid() * 2654435761u;
    unsigned seed = first;
    printf("note: RODIMUS_TEST_SEED=%u\n", first);
    for (int round = 0; round < 500; round++) {
        const uint64_t steps = 20 + (uint64_t)rand_r(&seed) % 200;
        double now_s = 5;
        struct loading l;
        loading_begin(&l, 0);
        for (int phase = 0; phase < 2; phase++) {
            const double length_s = 1 + rand_r(&seed) % 100, end_s = now_s + length_s;
            for (uint64_t i = 0; i <= steps; i++) {
                report(&l, phase ? "packing weights" : "reading weights", i, steps, now_s);
                const double said = (double)loading_retry_s(&l, (uint64_t)(now_s * 1e9)), left = end_s - now_s;
                if (i * 10 > steps && (said < left * 0.9 || said > left * 1.1 + 1.1))
                    fail_msg("seed %u round %d: %g s are said where %g are left, in phase %d", first, round, said, left,
                             phase);
                if (i < steps) now_s += length_s / (double)steps;
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_left_follows_the_bytes),
        cmocka_unit_test(it_has_bounds),
        cmocka_unit_test(a_steady_phase_is_foretold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
