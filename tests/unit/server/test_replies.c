/* test_replies.c - an answer is repeated to the same request of the same key alone, within its bounds. */
#include "server/completion/replies.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const uint8_t one[16] = {1}, two[16] = {2};

static void end(struct replies *r, const char *tenant, const char *key, const char *text) {
    struct buf answer = {0};
    buf_puts(&answer, text);
    replies_end(r, tenant, key, &answer);
    buf_fini(&answer);
}

static void an_answer_is_repeated_to_its_own_request(void **state) {
    (void)state;
    struct replies *r = replies_new(1 << 20);
    const struct buf *out = NULL;
    assert_int_equal(replies_ask(r, "anna", "k", one, &out), REPLY_NEW);
    assert_int_equal(replies_ask(r, "anna", "k", one, &out), REPLY_RUNS);
    end(r, "anna", "k", "said");
    assert_int_equal(replies_ask(r, "anna", "k", one, &out), REPLY_THERE);
    assert_memory_equal(out->data, "said", 4);
    assert_int_equal(replies_ask(r, "anna", "k", two, &out), REPLY_OTHER);
    assert_int_equal(replies_ask(r, "bert", "k", one, &out), REPLY_NEW);
    assert_int_equal(replies_ask(r, "anna", "l", one, &out), REPLY_NEW);
    end(r, "anna", "k", "another"); /* it has ended */
    assert_int_equal(replies_ask(r, "anna", "k", one, &out), REPLY_THERE);
    assert_int_equal(out->len, 4);
    replies_close(r);
}

static void a_request_that_failed_may_run_again(void **state) {
    (void)state;
    struct replies *r = replies_new(1 << 20);
    const struct buf *out;
    assert_int_equal(replies_ask(r, "", "k", one, &out), REPLY_NEW);
    replies_end(r, "", "k", NULL);
    assert_int_equal(replies_ask(r, "", "k", two, &out), REPLY_NEW);
    replies_close(r);
}

static void a_tenants_oldest_go_first(void **state) {
    (void)state;
    struct replies *r = replies_new(64 << 10);
    const struct buf *out;
    char key[8], text[1001];
    memset(text, 'x', 1000);
    text[1000] = 0;
    assert_int_equal(replies_ask(r, "bert", "k", one, &out), REPLY_NEW);
    end(r, "bert", "k", text);
    for (int i = 0; i < 100; i++) { /* a quarter has room for some 14 */
        snprintf(key, sizeof key, "k%d", i);
        assert_int_equal(replies_ask(r, "anna", key, one, &out), REPLY_NEW);
        end(r, "anna", key, text);
    }
    assert_int_equal(replies_ask(r, "bert", "k", one, &out), REPLY_THERE);
    assert_int_equal(replies_ask(r, "anna", "k99", one, &out), REPLY_THERE);
    assert_int_equal(replies_ask(r, "anna", "k95", one, &out), REPLY_THERE);
    assert_int_equal(replies_ask(r, "anna", "k70", one, &out), REPLY_NEW);
    replies_close(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_repeated_to_its_own_request),
        cmocka_unit_test(a_request_that_failed_may_run_again),
        cmocka_unit_test(a_tenants_oldest_go_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
