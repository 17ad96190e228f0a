/* The text of a custom tool's call comes in pieces of any size, and is the string that JSON says. */
#include "server/api/responses/responses_parts.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void check(const char *arguments, const char *want, size_t n_want) {
    const size_t len = strlen(arguments);
    for (size_t step = 1; step <= len; step++) {
        struct buf out = {0};
        size_t at = 0;
        for (size_t n = step; n < len + step; n += step) {
            const size_t before = at;
            at = responses_custom_input(arguments, n < len ? n : len, at, &out);
            assert_true(at >= before && at <= len);
        }
        assert_int_equal(out.len, n_want);
        assert_memory_equal(out.len ? out.data : "", want, n_want);
        buf_fini(&out);
    }
}

static void the_text_of_the_string_comes(void **state) {
    (void)state;
    check("{\"input\": \"a\"}", "a", 1);
    check("{ \"input\" :\n\"\"}", "", 0);
    check("{\"input\": \"say \\\"a:b\\\"\\n\\tc\\\\d\\/\\b\\f\\r\"}", "say \"a:b\"\n\tc\\d/\b\f\r", 18);
    check("{\"input\": \"\\u0041\\u00e9\\u20ac\\ud83e\\udd8a\"}", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\xa6\x8a", 10);
    check("{\"input\": \"\\ud83ea\\udd8a\\u00g0\"}",
          "\xef\xbf\xbd"
          "a\xef\xbf\xbd\xef\xbf\xbd",
          10);
}

/* A call that is cut has the beginning of its text. */
static void the_beginning_of_a_text_is_read(void **state) {
    (void)state;
    check("{\"inp", "", 0);
    check("{\"input\"", "", 0);
    check("{\"input\": \"ab\\", "ab", 2);
    check("{\"input\": \"ab\\u00", "ab", 2);
    check("{\"input\": \"ab\\ud83e\\u", "ab", 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_text_of_the_string_comes),
                                       cmocka_unit_test(the_beginning_of_a_text_is_read)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
