/* test_utf8.c - messages are cut to the room that they have, and stay UTF-8: as functions, and where messages are made.
 */
#include "engine/base/fail.h"
#include "engine/base/utf8.h"
#include "server/api/request.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FFFD "\xef\xbf\xbd"

static void a_cut_message_ends_with_a_whole_character(void **state) {
    (void)state;
    static const char *const cases[][2] = {{"abc", "abc"},
                                           {"", ""},
                                           {"caf\xc3\xa9", "caf\xc3\xa9"},
                                           {"caf\xc3", "caf"},
                                           {"\xf0\x9f\x98", ""},
                                           {"a\xe2\x82: b", "a: b"},
                                           {"a\xff z\x80", "a" FFFD " z" FFFD},
                                           {"\xed\xa0\x80", FFFD}}; /* its first byte is as of a cut one */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32];
        snprintf(text, sizeof text, "%s", cases[i][0]);
        utf8_mend(text, sizeof text);
        assert_string_equal(text, cases[i][1]);
    }
    char small[] = "ab\xff\xff zz"; /* what stands for a broken byte takes room from the end */
    utf8_mend(small, sizeof small);
    assert_string_equal(small, "ab" FFFD);
    snprintf(small, sizeof small, "abcdef\x80");
    utf8_mend(small, sizeof small);
    assert_string_equal(small, "abcdef");
    static const char word[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80z";
    static const size_t whole[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11};
    for (size_t n = 0; n < sizeof whole / sizeof *whole; n++) assert_int_equal(utf8_complete(word, n), whole[n]);
}

static void expect_whole(const char *what, const char *text, const char *begin) {
    const size_t n = strlen(text);
    if (utf8_check(text, n) != n) fail_msg("%s is cut inside a character: %s", what, text);
    if (strncmp(text, begin, strlen(begin)) != 0) fail_msg("%s is %s", what, text);
}

/* Characters of 1 to 4 bytes at each place of the message's end, and of an argument's. */
static void errors_are_whole_characters_wherever_they_are_cut(void **state) {
    (void)state;
    static const char *const characters[] = {"x", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
    for (size_t k = 0; k < sizeof characters / sizeof *characters; k++)
        for (size_t shift = 0; shift < 8; shift++) {
            char long_text[1200] = "";
            for (size_t n = shift; n + 4 < sizeof long_text; n += strlen(characters[k]))
                memset(long_text, 'a', shift), memcpy(long_text + n, characters[k], strlen(characters[k]) + 1);
            struct rod_error err;
            struct api_error http;
            rod_fail(&err, ROD_EMODEL, "%s", long_text);
            expect_whole("message", err.message, "");
            rod_fail(&err, ROD_EMODEL, "%.64s: %.63s: %.62s.", long_text, long_text, long_text);
            expect_whole("message of cut arguments", err.message, "");
            if (strchr(err.message, '?')) fail_msg("a cut character is shown: %s", err.message);
            rod_fail_at(&err, ROD_EMODEL, long_text, "key %s", long_text);
            expect_whole("message at a key", err.message, "key ");
            expect_whole("key", err.param, "");
            api_error_invalid(&http, long_text, "field %s", long_text);
            expect_whole("message of a route", http.message, "field ");
            expect_whole("param of a route", http.param, "");
            api_error_field(&http, "model", "is %s", long_text);
            expect_whole("message of a field", http.message, "model is ");
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_message_ends_with_a_whole_character),
        cmocka_unit_test(errors_are_whole_characters_wherever_they_are_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
