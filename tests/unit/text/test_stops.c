/* test_stops.c - stop strings in texts that come in pieces, against a direct search of the whole text. */
#include "engine/base/philox.h"
#include "engine/text/stops.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Feeds text in pieces of n bytes; returns what was released as a stream of text would be; *match: index or -1. */
static char *stream(char *const *strings, size_t n_strings, const char *text, size_t piece, int *match) {
    struct stops stops;
    assert_int_equal(stops_init(&stops, strings, n_strings, NULL), 0);
    size_t len = strlen(text), n_all = 0, n_sent = 0;
    char *out = calloc(len + 1, 1);
    *match = -1;
    while (n_all < len && *match < 0) {
        size_t n = piece < len - n_all ? piece : len - n_all, n_read, n_held;
        *match = stops_scan(&stops, text + n_all, n, &n_read, &n_held);
        size_t until;
        if (*match >= 0)
            until = n_all + n_read - strlen(strings[*match]);
        else
            until = n_all + n - n_held;
        assert_true(until >= n_sent); /* nothing sent is ever taken back */
        n_sent = until;
        n_all += n;
    }
    if (*match < 0) n_sent = len; /* the end releases what is held */
    memcpy(out, text, n_sent);
    stops_fini(&stops);
    return out;
}

static void check(char *const *strings, size_t n_strings, const char *text, const char *want, int want_match) {
    for (size_t piece = 1; piece <= strlen(text); piece++) {
        int match;
        char *got = stream(strings, n_strings, text, piece, &match);
        if (strcmp(got, want) || match != want_match)
            fail_msg("pieces of %zu: got \"%s\" and match %d, want \"%s\" and %d", piece, got, match, want, want_match);
        free(got);
    }
}

#define LIST(...) (char *[]){__VA_ARGS__}, sizeof((char *[]){__VA_ARGS__}) / sizeof(char *)

static void a_stop_string_ends_the_text_before_it_however_it_is_cut(void **state) {
    (void)state;
    check(LIST("END"), "one two END three", "one two ", 0);
    check(LIST("\n\n"), "a\nb\n\nc", "a\nb", 0);
    check(LIST("x"), "xabc", "", 0);
}

static void text_without_a_stop_string_passes_whole(void **state) {
    (void)state;
    check(LIST("END", "ENX"), "EN ENE EEN EN", "EN ENE EEN EN", -1);
    check(LIST("aaab"), "aaaaaaaa", "aaaaaaaa", -1);
}

static void a_match_may_begin_inside_a_failed_one(void **state) {
    (void)state;
    check(LIST("aab"), "aaaab", "aa", 0);
    check(LIST("abac"), "ababac", "ab", 0);
    check(LIST("abcabd"), "abcabcabd", "abc", 0);
}

static void the_match_that_ends_first_wins_and_of_equal_ends_the_longest(void **state) {
    (void)state;
    check(LIST("abcd", "bc"), "xabcd", "xa", 1);
    check(LIST("bc", "abc"), "xabcd", "x", 1);
    check(LIST("abc", "bc"), "xabcd", "x", 0);
}

static void multibyte_stop_strings_match_across_pieces(void **state) {
    (void)state;
    check(LIST("\xe2\x82\xac\xe2\x82\xac"), "1\xe2\x82\xac 2\xe2\x82\xac\xe2\x82\xac 3", "1\xe2\x82\xac 2", 0);
    check(LIST("\xf0\x9f\x90\xba"), "wolf \xf0\x9f\x90\xb9 \xf0\x9f\x90\xba!", "wolf \xf0\x9f\x90\xb9 ", 0);
}

static void what_may_become_a_stop_string_is_held_back_and_no_more(void **state) {
    (void)state;
    struct stops stops;
    assert_int_equal(stops_init(&stops, LIST("hello", "lot"), NULL), 0);
    size_t n_read, n_held;
    assert_int_equal(stops_scan(&stops, "say hel", 7, &n_read, &n_held), -1);
    assert_int_equal(n_held, 3);
    assert_int_equal(stops_scan(&stops, "l", 1, &n_read, &n_held), -1);
    assert_int_equal(n_held, 4);
    assert_int_equal(stops_scan(&stops, "x", 1, &n_read, &n_held), -1);
    assert_int_equal(n_held, 0);
    assert_int_equal(stops_scan(&stops, "hello!", 6, &n_read, &n_held), 0);
    assert_int_equal(n_read, 5);
    stops_fini(&stops);
}

/* The law in words: the smallest end, then the smallest start. */
static int direct(char *const *strings, size_t n, const char *text, size_t *start) {
    size_t len = strlen(text);
    for (size_t end = 1; end <= len; end++) {
        int best = -1;
        for (size_t i = 0; i < n; i++) {
            size_t k = strlen(strings[i]);
            if (k <= end && !memcmp(text + end - k, strings[i], k) && (best < 0 || k > strlen(strings[best])))
                best = (int)i;
        }
        if (best >= 0) {
            *start = end - strlen(strings[best]);
            return best;
        }
    }
    *start = len;
    return -1;
}

static void random_texts_agree_with_a_direct_search(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 3000; seed++) {
        uint64_t at = 0;
        char text[41] = {0}, strings[3][7] = {{0}}, *list[3];
        for (int i = 0; i < 40; i++) text[i] = (char)('a' + (int)(philox_uniform(seed, at++, 0) * 2));
        for (int s = 0; s < 3; s++) {
            int len = 2 + (int)(philox_uniform(seed, at++, 0) * 5);
            for (int i = 0; i < len; i++) strings[s][i] = (char)('a' + (int)(philox_uniform(seed, at++, 0) * 2.1));
            list[s] = strings[s];
        }
        size_t start, piece = 1 + (size_t)(philox_uniform(seed, at++, 0) * 9);
        int want = direct(list, 3, text, &start), match;
        char *got = stream(list, 3, text, piece, &match);
        /* Two equal strings may be named by either index. */
        if (strlen(got) != start || (match < 0) != (want < 0) || (match >= 0 && strcmp(list[match], list[want])))
            fail_msg("seed %llu: got %zu bytes and match %d, want %zu and %d", (unsigned long long)seed, strlen(got),
                     match, start, want);
        free(got);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_string_ends_the_text_before_it_however_it_is_cut),
        cmocka_unit_test(text_without_a_stop_string_passes_whole),
        cmocka_unit_test(a_match_may_begin_inside_a_failed_one),
        cmocka_unit_test(the_match_that_ends_first_wins_and_of_equal_ends_the_longest),
        cmocka_unit_test(multibyte_stop_strings_match_across_pieces),
        cmocka_unit_test(what_may_become_a_stop_string_is_held_back_and_no_more),
        cmocka_unit_test(random_texts_agree_with_a_direct_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
