/* test_base.c - lists whose members carry the links, little-endian numbers, errors with a field. */
#include "engine/base/bytes.h"
#include "engine/base/clock.h"
#include "engine/base/fail.h"
#include "engine/base/list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- list.h ---- */

struct item {
    int number;
    struct list_link one, two;
};

static struct item *item_of(struct list_link *link) { return link ? LIST_OF(link, struct item, one) : NULL; }

/* The numbers of a list as a text, once forwards and once backwards. */
static void expect_order(const struct list *list, const char *numbers) {
    size_t n = 0;
    for (struct list_link *l = list_first(list); l; l = list_next(list, l), n++) {
        assert_int_equal(item_of(l)->number, numbers[n] - '0');
        assert_ptr_equal(l->next->prev, l);
        assert_ptr_equal(l->prev->next, l);
    }
    assert_int_equal(n, strlen(numbers));
    assert_int_equal(list->n, n);
    if (n) assert_int_equal(item_of(list_last(list))->number, numbers[n - 1] - '0');
    if (!n) assert_null(list_last(list));
}

static void a_list_keeps_the_order_of_its_members(void **state) {
    (void)state;
    struct list list;
    struct item items[5] = {{.number = 0}, {.number = 1}, {.number = 2}, {.number = 3}, {.number = 4}};
    list_init(&list);
    expect_order(&list, "");
    list_push_last(&list, &items[1].one);
    expect_order(&list, "1");
    list_push_last(&list, &items[2].one);
    list_push_first(&list, &items[0].one);
    expect_order(&list, "012");
    list_insert_before(&list, &items[1].one, &items[4].one);
    expect_order(&list, "0412");
    list_remove(&list, &items[2].one);
    expect_order(&list, "041");
    list_remove(&list, &items[0].one);
    expect_order(&list, "41");
    list_push_last(&list, &items[0].one);
    expect_order(&list, "410");
    list_remove(&list, &items[1].one);
    list_remove(&list, &items[4].one);
    list_remove(&list, &items[0].one);
    expect_order(&list, "");
}

static void a_member_is_in_two_lists_by_two_links(void **state) {
    (void)state;
    struct list one, two;
    struct item a = {.number = 1}, b = {.number = 2};
    list_init(&one), list_init(&two);
    list_push_last(&one, &a.one), list_push_last(&one, &b.one);
    list_push_first(&two, &a.two), list_push_first(&two, &b.two);
    assert_ptr_equal(LIST_OF(list_first(&two), struct item, two), &b);
    list_remove(&two, &a.two);
    expect_order(&one, "12");
    assert_true(!a.two.next && a.one.next);
    assert_int_equal(two.n, 1);
}

/* Against an array, with members that come and go in any order. */
static void a_list_of_random_lives_is_what_an_array_says(void **state) {
    (void)state;
    struct item items[10];
    char order[11] = "";
    struct list list;
    uint32_t random = 1;
    list_init(&list);
    for (int i = 0; i < 10; i++) items[i] = (struct item){.number = i};
    for (int step = 0; step < 20000; step++) {
        random = random * 1664525u + 1013904223u;
        const int i = (int)(random >> 16) % 10;
        char *at = strchr(order, '0' + i);
        const size_t n = strlen(order);
        if (at) {
            memmove(at, at + 1, strlen(at));
            list_remove(&list, &items[i].one);
        } else if (random >> 31) {
            memmove(order + 1, order, n + 1);
            order[0] = (char)('0' + i);
            list_push_first(&list, &items[i].one);
        } else {
            order[n] = (char)('0' + i);
            order[n + 1] = 0;
            list_push_last(&list, &items[i].one);
        }
        expect_order(&list, order);
    }
}

/* ---- bytes.h ---- */

static void numbers_are_little_endian_at_any_address(void **state) {
    (void)state;
    unsigned char bytes[24];
    for (size_t shift = 0; shift < 8; shift++)
        for (size_t n = 1; n <= 8; n++) {
            memset(bytes, 0xee, sizeof bytes);
            const uint64_t x = UINT64_C(0x8899aabbccddeeff), mask = n == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * n) - 1;
            assert_ptr_equal(bytes_put(bytes + shift, x, n), bytes + shift + n);
            assert_true(bytes_get(bytes + shift, n) == (x & mask));
            for (size_t i = 0; i < n; i++) assert_int_equal(bytes[shift + i], x >> 8 * i & 255);
            assert_int_equal(bytes[shift + n], 0xee);
            if (shift) assert_int_equal(bytes[shift - 1], 0xee);
        }
}

/* ---- fail.h ---- */

static void an_error_names_its_field(void **state) {
    (void)state;
    struct rod_error err = {.param = "old"};
    assert_int_equal(rod_fail(&err, ROD_EINVALID, "has %d bytes", 3), ROD_EINVALID);
    assert_string_equal(err.message, "has 3 bytes");
    assert_string_equal(err.param, "");
    assert_int_equal(rod_fail_at(&err, ROD_EUNSUPPORTED, "seed", "%s is not supported", "seed"), ROD_EUNSUPPORTED);
    assert_int_equal(err.code, ROD_EUNSUPPORTED);
    assert_string_equal(err.param, "seed");
    assert_string_equal(err.message, "seed is not supported");
    assert_int_equal(rod_fail_at(&err, ROD_EINVALID, "schema", "schema: %s", err.message), ROD_EINVALID); /* itself */
    assert_string_equal(err.message, "schema: seed is not supported");
    assert_int_equal(rod_fail_no_memory(&err), ROD_ENOMEM);
    assert_string_equal(err.message, "out of memory");
    assert_string_equal(err.param, "");
    assert_int_equal(rod_fail_at(NULL, ROD_EIO, "x", "y"), ROD_EIO); /* nobody listens */
    assert_int_equal(rod_fail_no_memory(NULL), ROD_ENOMEM);
}

static void a_text_that_is_too_long_is_cut(void **state) {
    (void)state;
    struct rod_error err;
    char text[4096];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    rod_fail_at(&err, ROD_EINVALID, text, "%s", text);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    assert_int_equal(strlen(err.param), sizeof err.param - 1);
}

/* ---- clock.h ---- */

static void the_steady_clock_never_goes_back(void **state) {
    (void)state;
    uint64_t last = clock_now_ns();
    for (int i = 0; i < 10000; i++) {
        const uint64_t now = clock_now_ns();
        assert_true(now >= last);
        last = now;
    }
    assert_true(clock_unix_s() > 1600000000); /* 2020 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_list_keeps_the_order_of_its_members),
        cmocka_unit_test(a_member_is_in_two_lists_by_two_links),
        cmocka_unit_test(a_list_of_random_lives_is_what_an_array_says),
        cmocka_unit_test(numbers_are_little_endian_at_any_address),
        cmocka_unit_test(an_error_names_its_field),
        cmocka_unit_test(a_text_that_is_too_long_is_cut),
        cmocka_unit_test(the_steady_clock_never_goes_back),
    };
    return cmocka_run_group_tests_name("base", tests, NULL, NULL);
}
