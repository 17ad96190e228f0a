/* test_progress.c - how far something is: the text, and when it is shown. */
#include "server/base/progress.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define S_NS 1000000000ull

static void the_text_has_amounts_rate_and_what_is_left(void **state) {
    (void)state;
    const struct {
        struct rod_progress at;
        double elapsed_s;
        const char *want;
    } cases[] = {
        {{"reading weights", "B", 1300000000, 3300000000}, 1.1, "reading weights: 1.3 of 3.3 GB, 1.2 GB/s, 2 s left"},
        {{"reading weights", "B", 0, 3300000000}, 0, "reading weights: 0.0 of 3.3 GB"},
        {{"reading weights", "B", 0, 3300000000}, 5, "reading weights: 0.0 of 3.3 GB"},
        {{"packing weights", "B", 20000000, 40000000},
         100,
         "packing weights: 20.0 of 40.0 MB, 200.0 kB/s, 1 min 40 s left"},
        {{"packing weights", "B", 40000000, 40000000}, 2, "packing weights: 40.0 of 40.0 MB, 20.0 MB/s"},
        {{"measuring", "rows", 0, 12}, 3, "measuring: 0 of 12 rows"},
        {{"measuring", "rows", 4, 12}, 8, "measuring: 4 of 12 rows, 16 s left"},
        {{"measuring", "rows", 11, 12}, 1, "measuring: 11 of 12 rows, 1 s left"},
        {{"single steps", "tokens", 1, 4001}, 1.8, "single steps: 1 of 4001 tokens, 2 h 0 min left"},
        {{"single steps", "tokens", 1, UINT64_MAX}, 5, "single steps: 1 of 18446744073709551615 tokens"},
        {{"nothing", "B", 0, 0}, 1, "nothing: 0.0 of 0.0 kB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[PROGRESS_TEXT_BYTES];
        progress_render(&cases[i].at, cases[i].elapsed_s, text);
        if (strcmp(text, cases[i].want) != 0) fail_msg("got \"%s\", want \"%s\"", text, cases[i].want);
    }
}

static void the_longest_text_fits(void **state) {
    (void)state;
    char what[200], unit[200], text[PROGRESS_TEXT_BYTES];
    memset(what, 'w', sizeof what - 1), memset(unit, 'u', sizeof unit - 1);
    what[sizeof what - 1] = unit[sizeof unit - 1] = 0;
    const struct rod_progress at = {what, unit, UINT64_MAX / 2, UINT64_MAX};
    progress_render(&at, 359999, text);
    const char *tail = "h 59 min left";
    if (strcmp(text + strlen(text) - strlen(tail), tail) != 0)
        fail_msg("got \"%s\", want it to end in \"%s\"", text, tail);
}

/* A phase of so many reports at a distance of step_ns: how many are shown. */
static int shown(struct progress *p, const char *what, uint64_t *now, uint64_t step_ns, uint64_t n) {
    int count = 0;
    for (uint64_t i = 0; i <= n; i++, *now += step_ns) {
        const struct rod_progress at = {what, "rows", i, n};
        count += progress_due(p, &at, *now);
    }
    return count;
}

static void plain_lines_are_few_and_none_is_for_what_is_quick(void **state) {
    (void)state;
    struct progress p = {.tty = false};
    uint64_t now = 7 * S_NS;
    assert_int_equal(shown(&p, "quick", &now, S_NS / 100, 190), 0);
    assert_int_equal(shown(&p, "quick too", &now, S_NS / 100, 190), 0); /* each phase has its own clock */
    assert_int_equal(shown(&p, "long", &now, S_NS / 100, 1200), 3);     /* at 2, 6 and 10 s of 12 */
    assert_int_equal(shown(&p, "long", &now, S_NS / 100, 1200), 3);     /* the same once more begins at 0 */
    assert_int_equal(shown(&p, "slow", &now, 10 * S_NS, 4), 3);         /* not at its beginning nor at its end */
}

static void a_terminal_shows_at_once_and_ten_times_a_second(void **state) {
    (void)state;
    struct progress p = {.tty = true};
    uint64_t now = 7 * S_NS;
    assert_int_equal(shown(&p, "quick", &now, S_NS / 1000, 50), 1);
    assert_int_equal(shown(&p, "long", &now, S_NS / 1000, 1000), 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_has_amounts_rate_and_what_is_left),
        cmocka_unit_test(the_longest_text_fits),
        cmocka_unit_test(plain_lines_are_few_and_none_is_for_what_is_quick),
        cmocka_unit_test(a_terminal_shows_at_once_and_ten_times_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
