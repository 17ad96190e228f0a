/* test_traceparent.c - which headers name a trace: the cases of the standard (W3C Trace Context, 3.2 and 4). */
#include "server/base/traceparent.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define ID     "4bf92f3577b34da6a3ce929d0e0e4736"
#define PARENT "00f067aa0ba902b7"

static void fail_unless(const char *header, const char *wanted) {
    char id[TRACE_ID_BYTES] = "before";
    const bool taken = traceparent_read(header, id);
    if (taken != (*wanted != 0) || strcmp(id, wanted) != 0)
        fail_msg("'%s': '%s', wanted '%s'", header ? header : "no header", id, wanted);
}

static void a_header_of_the_first_version_has_an_id(void **state) {
    (void)state;
    fail_unless("00-" ID "-" PARENT "-01", ID);
    fail_unless("00-" ID "-" PARENT "-00", ID);
    fail_unless("00-" ID "-" PARENT "-ff", ID);
    fail_unless("00-00000000000000000000000000000001-0000000000000001-01", "00000000000000000000000000000001");
    fail_unless(" \t00-" ID "-" PARENT "-01 \t", ID);
}

static void of_a_version_to_come_the_beginning_is_read(void **state) {
    (void)state;
    fail_unless("01-" ID "-" PARENT "-01", ID);
    fail_unless("cc-" ID "-" PARENT "-01-what-the-future-will-be-like", ID);
    fail_unless("cc-" ID "-" PARENT "-01-", ID);
    fail_unless("cc-" ID "-" PARENT "-01.what-the-future-will-be-like", "");
    fail_unless("cc-" ID "-" PARENT "-011", "");
}

static void a_header_with_a_fault_is_none(void **state) {
    (void)state;
    static const char *const faults[] = {
        NULL,
        "",
        " ",
        "00",
        "00-" ID "-" PARENT,
        "00-" ID "-" PARENT "-",
        "00-" ID "-" PARENT "-1",
        "00-" ID "-" PARENT "-01-",
        "00-" ID "-" PARENT "-01-more",
        "00-" ID "-" PARENT "-01 x",
        "ff-" ID "-" PARENT "-01",
        "0-" ID "-" PARENT "-01",
        "000-" ID "-" PARENT "-01",
        "0g-" ID "-" PARENT "-01",
        "FE-" ID "-" PARENT "-01",
        "00-00000000000000000000000000000000-" PARENT "-01",
        "00-" ID "-0000000000000000-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" PARENT "-01",
        "00-" ID "-00F067AA0BA902B7-01",
        "00-" ID "-" PARENT "-0G",
        "00-" ID "-" PARENT "-0A",
        "00-4bf92f3577b34da6a3ce929d0e0e473-" PARENT "-01",
        "00-" ID "0-" PARENT "-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473.-" PARENT "-01",
        "00-" ID "-00f067aa0ba902b-01",
        "00-" ID "-" PARENT "0-01",
        "00_" ID "_" PARENT "_01",
        "00--" ID "-" PARENT "-01",
        "00- " ID "-" PARENT "-01",
    };
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) fail_unless(faults[i], "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_header_of_the_first_version_has_an_id),
        cmocka_unit_test(of_a_version_to_come_the_beginning_is_read),
        cmocka_unit_test(a_header_with_a_fault_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
