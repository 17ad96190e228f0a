/* test_keys.c - API keys: their file, their limits in a time of our own, and reloads under requests in flight. */
#include "server/settings/keys.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define SECOND 1000000000ull

static const char *write_file(const char *text) {
    static char path[64];
    snprintf(path, sizeof path, "/tmp/test_keys_%d", (int)getpid());
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return path;
}

static struct keys *open_file(const char *text) {
    struct keys *k = calloc(1, sizeof *k);
    struct option_error err;
    const struct option_list none = {0};
    assert_non_null(k);
    if (keys_open(k, &none, write_file(text), "", &err)) fail_msg("%s", err.message);
    return k;
}

static void reload_file(struct keys *k, const char *text) {
    struct option_error err;
    const struct option_list none = {0};
    if (keys_reload(k, &none, write_file(text), "", &err)) fail_msg("%s", err.message);
}

static void close_keys(struct keys *k) {
    keys_fini(k);
    free(k);
    unlink(write_file(""));
}

static void a_line_is_a_key_and_its_fields(void **state) {
    (void)state;
    struct keys *k =
        open_file("# team keys\nk1\n\n  k2\tname=search requests=3  tokens_per_minute=600 sessions=5 priority=7\r\n");
    assert_int_equal(k->n, 2);
    const struct key *plain = keys_find(k, "k1"), *rich = keys_find(k, "k2");
    assert_string_equal(plain->name, "key-1");
    assert_int_equal(plain->priority, 1);
    assert_int_equal(plain->max_requests + plain->tokens_per_minute + plain->max_sessions, 0);
    assert_string_equal(rich->name, "search");
    assert_int_equal(rich->max_requests, 3);
    assert_int_equal(rich->tokens_per_minute, 600);
    assert_int_equal(rich->max_sessions, 5);
    assert_int_equal(rich->priority, 7);
    assert_int_not_equal(plain->index, rich->index);
    close_keys(k);
}

static void keys_of_the_list_and_the_file_come_together(void **state) {
    (void)state;
    char *items[] = {"k0", "k,1"};
    const struct option_list listed = {items, 2};
    struct option_error err;
    struct keys k;
    assert_int_equal(keys_open(&k, &listed, write_file("k2\n"), "", &err), 0);
    assert_int_equal(k.n, 3);
    assert_non_null(keys_find(&k, "k0"));
    assert_non_null(keys_find(&k, "k,1"));
    assert_non_null(keys_find(&k, "k2"));
    keys_fini(&k);
    unlink(write_file(""));
}

static void only_the_very_key_is_found(void **state) {
    (void)state;
    struct keys *k = open_file("abcabc\n");
    const char *wrong[] = {"", "a", "abc", "abcab", "abcabcabc", "abcabd", "ABCABC", "abcabc ", " abcabc"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (keys_find(k, wrong[i])) fail_msg("'%s' is taken for 'abcabc'", wrong[i]);
    assert_null(keys_find(k, NULL));
    assert_non_null(keys_find(k, "abcabc"));
    close_keys(k);
}

/* 1000 keys beside a header of 16 KB would be 16 MB of comparisons for each stranger's request. */
static void what_is_longer_than_any_key_is_not_compared(void **state) {
    (void)state;
    char longest[KEYS_SECRET_MAX + 1], longer[KEYS_SECRET_MAX + 2], *items[1] = {longest};
    memset(longest, 'k', sizeof longest);
    memset(longer, 'k', sizeof longer);
    longest[KEYS_SECRET_MAX] = longer[KEYS_SECRET_MAX + 1] = 0;
    const struct option_list listed = {items, 1};
    struct option_error err;
    struct keys k;
    char boss[KEYS_SECRET_MAX + 1] = {0};
    memset(boss, 'b', KEYS_SECRET_MAX);
    assert_int_equal(keys_open(&k, &listed, "", boss, &err), 0);
    bool needed;
    assert_non_null(keys_find(&k, longest));
    assert_null(keys_find(&k, longer));
    assert_true(keys_is_admin(&k, boss, &needed) && !keys_is_admin(&k, longer, &needed));
    assert_int_equal(keys_reload(&k, &listed, "", longer, &err), -1);
    assert_non_null(strstr(err.message, "admin_key"));
    items[0] = longer;
    assert_int_equal(keys_reload(&k, &listed, "", "", &err), -1);
    assert_non_null(strstr(err.message, "256"));
    assert_non_null(keys_find(&k, longest));
    keys_fini(&k);
}

/* Written by editors of Windows: a mark of UTF-8 is no part of the key, and of UTF-16 no key comes out. */
static void a_mark_of_the_encoding_is_no_part_of_a_key(void **state) {
    (void)state;
    struct keys *k = open_file("\xef\xbb\xbfsk-1 name=a\r\nsk-2\r\n");
    assert_non_null(keys_find(k, "sk-1"));
    assert_non_null(keys_find(k, "sk-2"));
    close_keys(k);
    static const char wide[] = "\xff\xfes\0k\0-\0\x31\0\r\0\n\0s\0k\0-\0\x32\0\r\0\n";
    const char *path = write_file("");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fwrite(wide, 1, sizeof wide, file);
    fclose(file);
    const struct option_list none = {0};
    struct option_error err;
    struct keys keys;
    assert_int_equal(keys_open(&keys, &none, path, "", &err), -1);
    if (!strstr(err.message, "line 1") || !strstr(err.message, "UTF-8")) fail_msg("%s", err.message);
    keys_fini(&keys);
    unlink(path);
}

static void a_fault_names_file_and_line_and_no_key(void **state) {
    (void)state;
    static const struct {
        const char *text, *want[3];
    } cases[] = {
        {"# none\n", {"contains no key"}},
        {"hunter1\nhunter2 requests=x\n", {"line 2", "requests", "'x'"}},
        {"hunter1 requests=-1\n", {"line 1", "requests"}},
        {"hunter1 requests=99999999999999999999999\n", {"line 1", "0 to 1000000"}},
        {"hunter1 sessions=\n", {"line 1", "sessions", "0 to 1000000000"}},
        {"hunter1 sessions=many\n", {"line 1", "sessions", "'many'"}},
        {"hunter1 priority=0\n", {"line 1", "priority", "1 to 100"}},
        {"hunter1 priority=101\n", {"line 1", "priority"}},
        {"hunter1 name=\n", {"line 1", "name"}},
        {"hunter1 name=a/b\n", {"line 1", "name"}},
        {"hunter1 requests\n", {"line 1", "name=value"}},
        {"hunter1 colour=red\n", {"line 1", "unknown field", "tokens_per_minute"}},
        {"search hunter1==\n", {"line 1", "unknown field"}}, /* the fields in the wrong order: the key is not shown */
        {"hunter1\nhunter1\n", {"line 2", "twice"}},
        {"hunter1 name=a\nhunter2 name=a\n", {"two keys", "'a'"}},
        {"hunter\0331\n", {"line 1", "control"}},
        {"hunter1\nhunter\1772\n", {"line 2", "control"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct option_list none = {0};
        struct option_error err;
        struct keys k;
        if (!keys_open(&k, &none, write_file(cases[i].text), "", &err)) fail_msg("'%s' is accepted", cases[i].text);
        for (size_t j = 0; j < 3 && cases[i].want[j]; j++)
            if (!strstr(err.message, cases[i].want[j])) fail_msg("'%s' is not in: %s", cases[i].want[j], err.message);
        if (strstr(err.message, "hunter")) fail_msg("a key is in: %s", err.message);
        keys_fini(&k);
    }
    unlink(write_file(""));
    struct option_error err;
    struct keys k;
    const struct option_list none = {0};
    assert_int_equal(keys_open(&k, &none, "/nowhere/keys", "", &err), -1);
    assert_non_null(strstr(err.message, "/nowhere/keys"));
    keys_fini(&k);
}

/* Read to its end, it would hold the loop up for seconds at SIGHUP, and /dev/zero take all memory. */
static void a_key_file_has_a_largest_size(void **state) {
    (void)state;
    const struct option_list none = {0};
    struct option_error err;
    struct keys k;
    const char *file = write_file("# nothing\n");
    assert_int_equal(truncate(file, 64 << 20), 0);
    assert_int_equal(keys_open(&k, &none, file, "", &err), -1);
    if (!strstr(err.message, file) || !strstr(err.message, "api_key_file") || !strstr(err.message, "4194304"))
        fail_msg("%s", err.message);
    keys_fini(&k);
    FILE *out = fopen(file, "w"); /* the largest list there is, with as much beside it as the bound leaves */
    assert_non_null(out);
    for (int i = 0; i < KEYS_MAX; i++)
        fprintf(out, "%0256d name=%047d requests=1000000 tokens_per_minute=1000000000000 priority=100\n", i, i);
    fputs("# ", out);
    while (ftell(out) < 4194304) fputc('x', out);
    fclose(out);
    if (keys_open(&k, &none, file, "", &err)) fail_msg("%s", err.message);
    assert_int_equal(k.n, KEYS_MAX);
    assert_int_equal(k.list[KEYS_MAX - 1]->priority, 100);
    keys_fini(&k);
    unlink(file);
}

static void the_admin_key_is_apart(void **state) {
    (void)state;
    char *items[] = {"user"};
    const struct option_list listed = {items, 1}, none = {0};
    struct option_error err;
    struct keys k;
    bool needed;
    assert_int_equal(keys_open(&k, &listed, "", "boss", &err), 0);
    assert_true(keys_is_admin(&k, "boss", &needed) && needed);
    assert_true(!keys_is_admin(&k, "user", &needed) && needed);
    assert_true(!keys_is_admin(&k, NULL, &needed) && needed);
    assert_null(keys_find(&k, "boss"));
    assert_true(keys_open_to(&k, "user") && !keys_open_to(&k, "boss") && !keys_open_to(&k, NULL));
    assert_int_equal(keys_reload(&k, &listed, write_file("hunter2 name=search\n"), "hunter2", &err), -1);
    if (!strstr(err.message, "admin_key") || !strstr(err.message, "'search'") || strstr(err.message, "hunter"))
        fail_msg("%s", err.message);
    unlink(write_file(""));
    assert_int_equal(keys_reload(&k, &listed, "", "user", &err), -1);
    assert_true(keys_is_admin(&k, "boss", &needed));
    keys_fini(&k);
    assert_int_equal(keys_open(&k, &none, "", "", &err), 0);
    assert_true(!keys_is_admin(&k, "", &needed) && !needed);
    assert_true(keys_open_to(&k, NULL));
    keys_fini(&k);
}

/* Settings that were written without their secrets would let everybody in; whoever wants that restarts. */
static void a_reload_does_not_take_the_last_key_away(void **state) {
    (void)state;
    char *items[] = {"user"};
    const struct option_list listed = {items, 1}, none = {0};
    struct option_error err;
    struct keys k;
    bool needed;
    assert_int_equal(keys_open(&k, &listed, "", "boss", &err), 0);
    assert_int_equal(keys_reload(&k, &none, "", "boss", &err), -1);
    assert_non_null(strstr(err.message, "api_keys"));
    assert_int_equal(keys_reload(&k, &listed, "", "", &err), -1);
    assert_non_null(strstr(err.message, "admin_key"));
    assert_true(keys_open_to(&k, "user") && !keys_open_to(&k, NULL) && keys_is_admin(&k, "boss", &needed));
    assert_int_equal(keys_reload(&k, &none, write_file("other\n"), "new-boss", &err), 0);
    assert_true(keys_open_to(&k, "other") && !keys_open_to(&k, "user") && keys_is_admin(&k, "new-boss", &needed));
    keys_fini(&k);
    assert_int_equal(keys_open(&k, &none, "", "", &err), 0);
    assert_int_equal(keys_reload(&k, &none, "", "", &err), 0);
    keys_fini(&k);
}

/* Whose sessions are looked up by name, and whose by the key itself. */
static void a_name_that_a_reload_gives_is_the_operators(void **state) {
    (void)state;
    struct keys *k = open_file("secret\n");
    assert_string_equal(keys_find(k, "secret")->name, "key-1");
    assert_false(keys_find(k, "secret")->named);
    reload_file(k, "secret name=key-1\n");
    assert_true(keys_find(k, "secret")->named);
    reload_file(k, "secret\n");
    assert_false(keys_find(k, "secret")->named);
    close_keys(k);
}

static void requests_in_flight_have_a_limit(void **state) {
    (void)state;
    struct keys *k = open_file("k requests=2\n");
    struct key *key = keys_find(k, "k");
    assert_true(key_begin(key) && key_begin(key) && !key_begin(key));
    assert_int_equal(key->rejected_total, 1);
    key_end(key, 1);
    assert_true(key_begin(key) && !key_begin(key));
    key_end(key, 1);
    key_end(key, 1);
    assert_int_equal(key->n_requests, 0);
    assert_int_equal(key->requests_total, 3);
    close_keys(k);
}

static void each_choice_counts_as_a_request_in_flight(void **state) {
    (void)state;
    struct keys *k = open_file("k requests=4\nother\n");
    struct key *key = keys_find(k, "k");
    assert_true(key_begin(key) && key_add(key, 2) && !key_add(key, 2));
    assert_int_equal(key->n_requests, 3); /* all or none */
    assert_true(key_begin(key) && !key_begin(key));
    assert_int_equal(key->requests_total, 2);
    assert_int_equal(key->rejected_total, 2);
    key_end(key, 3);
    key_end(key, 1);
    assert_int_equal(key->n_requests, 0);
    close_keys(k);
}

/* The seconds that key_take says, where what it takes is of no interest any more. */
static uint64_t take(struct key *key, uint64_t n_tok, uint64_t now) {
    struct key_tokens taken = {0};
    return key_take(key, n_tok, now, &taken);
}

static void tokens_of_a_minute_come_back_evenly(void **state) {
    (void)state;
    struct keys *k = open_file("k tokens_per_minute=600\n"); /* ten a second */
    struct key *key = keys_find(k, "k");
    uint64_t now = 1000 * SECOND;
    assert_int_equal(take(key, 500, now), 0);
    assert_int_equal(take(key, 101, now), 1); /* one token is missing: a tenth of a second */
    assert_int_equal(take(key, 200, now), 10);
    assert_int_equal(key->rejected_total, 2);
    now += 10 * SECOND;
    assert_int_equal(take(key, 200, now), 0);
    now += 3600 * SECOND; /* no more than a minute's tokens pile up */
    assert_int_equal(take(key, 600, now), 0);
    assert_int_equal(take(key, 10, now), 1);
    close_keys(k);
}

/* Whatever a hundred requests that come together may use is taken before the first of them has used any. */
static void what_a_request_may_use_is_taken_when_it_comes_and_the_rest_goes_back(void **state) {
    (void)state;
    struct keys *k = open_file("k tokens_per_minute=600\n");
    struct key *key = keys_find(k, "k");
    const uint64_t now = SECOND;
    struct key_tokens taken[4] = {0};
    for (int i = 0; i < 3; i++) assert_int_equal(key_take(key, 200, now, &taken[i]), 0);
    assert_int_equal(key_take(key, 200, now, &taken[3]), 20);
    assert_false(taken[3].taken);
    key_settle(key, &taken[3], 7); /* nothing was taken */
    assert_int_equal(take(key, 1, now), 1);
    key_settle(key, &taken[0], 150);
    key_settle(key, &taken[0], 150); /* once */
    assert_int_equal(take(key, 51, now), 1);
    key_settle(key, &taken[1], 0);
    key_settle(key, &taken[2], 200);
    assert_int_equal(take(key, 251, now), 1);
    assert_int_equal(take(key, 250, now), 0);
    close_keys(k);
}

static void what_goes_back_fills_no_more_than_a_minute(void **state) {
    (void)state;
    struct keys *k = open_file("k tokens_per_minute=60\n");
    struct key *key = keys_find(k, "k");
    uint64_t now = SECOND;
    struct key_tokens taken = {0};
    assert_int_equal(key_take(key, 50, now, &taken), 0);
    now += 3600 * SECOND;
    key_settle(key, &taken, 1);
    assert_int_equal(take(key, 60, now), 0);
    assert_int_equal(take(key, 1, now), 1);
    close_keys(k);
}

static void a_reload_changes_how_many_sessions_a_key_may_have(void **state) {
    (void)state;
    struct keys *k = open_file("k name=a sessions=2\n");
    struct key *key = keys_find(k, "k");
    reload_file(k, "k name=a sessions=7\n");
    assert_ptr_equal(keys_find(k, "k"), key);
    assert_int_equal(key->max_sessions, 7);
    reload_file(k, "k name=a\n");
    assert_int_equal(key->max_sessions, 0);
    close_keys(k);
}

/* How much it was is known later: text becomes more tokens than a guess from its bytes. */
static void what_is_used_beyond_what_was_taken_is_owed(void **state) {
    (void)state;
    struct keys *k = open_file("k tokens_per_minute=60\n");
    struct key *key = keys_find(k, "k");
    const uint64_t now = SECOND;
    struct key_tokens taken = {0};
    assert_int_equal(key_take(key, 10, now, &taken), 0);
    assert_int_equal(key_closed_s(key, now), 0);
    key_settle(key, &taken, 160);
    assert_int_equal(key_closed_s(key, now), 101);
    assert_int_equal(key_closed_s(key, now + 101 * SECOND), 0);
    assert_int_equal(key->rejected_total, 1);
    close_keys(k);
}

/* How an operator opens a key again that a long answer has closed; and what was taken before is not given back after.
 */
static void a_limit_that_a_reload_changes_begins_anew(void **state) {
    (void)state;
    struct keys *k = open_file("k name=a tokens_per_minute=100\n");
    struct key *key = keys_find(k, "k");
    const uint64_t now = SECOND;
    struct key_tokens taken = {0}, unlimited = {0};
    assert_int_equal(key_take(key, 20001, now, &taken), 0);
    assert_int_equal(take(key, 1, now), 11942); /* 19,902 tokens, at 100 a minute */
    reload_file(k, "k name=a tokens_per_minute=100\n");
    assert_int_equal(take(key, 1, now), 11942);
    reload_file(k, "other name=a tokens_per_minute=100 requests=9 priority=2\n");
    assert_int_equal(take(key, 1, now), 11942);
    reload_file(k, "k name=a tokens_per_minute=101\n");
    assert_int_equal(take(key, 101, now), 0);
    key_settle(key, &taken, 0);
    assert_int_equal(take(key, 1, now), 1);
    reload_file(k, "k name=a\n");
    assert_int_equal(key_take(key, 1000000, now, &unlimited), 0);
    reload_file(k, "k name=a tokens_per_minute=60\n");
    assert_int_equal(take(key, 60, now), 0);
    key_settle(key, &unlimited, 0);
    assert_int_equal(take(key, 1, now), 1);
    close_keys(k);
}

static void what_is_beyond_a_minutes_tokens_passes_when_the_minute_is_whole(void **state) {
    (void)state;
    struct keys *k = open_file("k tokens_per_minute=60\n");
    struct key *key = keys_find(k, "k");
    uint64_t now = SECOND;
    struct key_tokens taken = {0};
    assert_int_equal(take(key, 1, now), 0);
    assert_int_equal(key_take(key, 600, now, &taken), 1);
    now += SECOND;
    assert_int_equal(key_take(key, 600, now, &taken), 0);
    assert_int_equal(take(key, 1, now), 541);
    key_settle(key, &taken, 70); /* it ends early: what it has used of the next minute is still owed */
    assert_int_equal(take(key, 1, now), 11);
    now += 11 * SECOND;
    assert_int_equal(take(key, 1, now), 0);
    close_keys(k);
}

static void a_reload_keeps_counts_by_name_and_changes_secret_and_limits(void **state) {
    (void)state;
    struct keys *k = open_file("old name=a requests=1\nx name=b\n");
    struct key *key = keys_find(k, "old");
    const uint32_t index = key->index;
    assert_true(key_begin(key));
    reload_file(k, "new name=a requests=2\ny name=c\n");
    assert_null(keys_find(k, "old"));
    assert_null(keys_find(k, "x"));
    assert_ptr_equal(keys_find(k, "new"), key);
    assert_int_equal(key->index, index);
    assert_int_equal(key->n_requests, 1);
    assert_true(key_begin(key) && !key_begin(key));
    key_end(key, 1);
    key_end(key, 1);
    close_keys(k);
}

static void a_key_that_is_removed_lives_as_long_as_its_requests(void **state) {
    (void)state;
    struct keys *k = open_file("k1\n");
    struct key *key = keys_find(k, "k1");
    key_hold(key);
    assert_true(key_begin(key));
    reload_file(k, "k2 name=other\n");
    assert_null(keys_find(k, "k1"));
    assert_int_not_equal(keys_find(k, "k2")->index, key->index);
    struct key_tokens taken = {0};
    assert_int_equal(key_take(key, 5, SECOND, &taken), 0);
    key_settle(key, &taken, 0);
    key_end(key, 1);
    key_drop(k, key);
    reload_file(k, "k2 name=other\nk3 name=third\n");
    assert_int_equal(k->n, 2);
    close_keys(k);
}

static void a_reload_that_fails_changes_nothing(void **state) {
    (void)state;
    struct keys *k = open_file("k1 name=a\n");
    struct option_error err;
    const struct option_list none = {0};
    assert_int_equal(keys_reload(k, &none, write_file("k2 name=a\nk3 requests=?\n"), "boss", &err), -1);
    bool needed;
    assert_non_null(keys_find(k, "k1"));
    assert_null(keys_find(k, "k2"));
    assert_false(keys_is_admin(k, "boss", &needed) || needed);
    close_keys(k);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_a_key_and_its_fields),
        cmocka_unit_test(keys_of_the_list_and_the_file_come_together),
        cmocka_unit_test(only_the_very_key_is_found),
        cmocka_unit_test(what_is_longer_than_any_key_is_not_compared),
        cmocka_unit_test(a_mark_of_the_encoding_is_no_part_of_a_key),
        cmocka_unit_test(a_fault_names_file_and_line_and_no_key),
        cmocka_unit_test(a_key_file_has_a_largest_size),
        cmocka_unit_test(the_admin_key_is_apart),
        cmocka_unit_test(a_reload_does_not_take_the_last_key_away),
        cmocka_unit_test(a_name_that_a_reload_gives_is_the_operators),
        cmocka_unit_test(requests_in_flight_have_a_limit),
        cmocka_unit_test(each_choice_counts_as_a_request_in_flight),
        cmocka_unit_test(tokens_of_a_minute_come_back_evenly),
        cmocka_unit_test(what_a_request_may_use_is_taken_when_it_comes_and_the_rest_goes_back),
        cmocka_unit_test(what_goes_back_fills_no_more_than_a_minute),
        cmocka_unit_test(what_is_used_beyond_what_was_taken_is_owed),
        cmocka_unit_test(a_reload_changes_how_many_sessions_a_key_may_have),
        cmocka_unit_test(a_limit_that_a_reload_changes_begins_anew),
        cmocka_unit_test(what_is_beyond_a_minutes_tokens_passes_when_the_minute_is_whole),
        cmocka_unit_test(a_reload_keeps_counts_by_name_and_changes_secret_and_limits),
        cmocka_unit_test(a_key_that_is_removed_lives_as_long_as_its_requests),
        cmocka_unit_test(a_reload_that_fails_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
