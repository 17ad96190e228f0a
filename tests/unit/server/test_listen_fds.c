/* test_listen_fds.c - which socket is handed over for which port, from the variables that systemd sets. */
#include "server/base/systemd.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

enum { SELF = 4711 };

static void fail_unless(const char *count, const char *pid, const char *names, int port, int admin) {
    struct listen_fds got = {9, 9};
    char message[256] = "";
    if (listen_fds_parse(count, pid, names, SELF, &got, message, sizeof message))
        fail_msg("%s sockets '%s': %s", count, names ? names : "", message);
    if (got.port != port || got.admin != admin)
        fail_msg("%s sockets '%s': %d and %d, wanted %d and %d", count ? count : "no", names ? names : "", got.port,
                 got.admin, port, admin);
}

static void fail_unless_refused(const char *count, const char *names, const char *wanted) {
    struct listen_fds got;
    char message[256] = "";
    if (!listen_fds_parse(count, "4711", names, SELF, &got, message, sizeof message))
        fail_msg("%s sockets '%s' are taken", count, names ? names : "");
    if (!strstr(message, wanted) || message[strlen(message) - 1] != '.') fail_msg("'%s' without '%s'", message, wanted);
}

static void without_the_variables_or_for_another_process_there_is_no_socket(void **state) {
    (void)state;
    fail_unless(NULL, NULL, NULL, 0, 0);
    fail_unless("1", NULL, NULL, 0, 0);
    fail_unless(NULL, "4711", NULL, 0, 0);
    fail_unless("1", "4712", NULL, 0, 0);
    fail_unless("1", "47110", NULL, 0, 0);
    fail_unless("1", " 4711", NULL, 0, 0);
    fail_unless("1", "", NULL, 0, 0);
    fail_unless("x", "1", "y:z", 0, 0);
    fail_unless("0", "4711", NULL, 0, 0);
    fail_unless("0", "4711", "", 0, 0);
}

static void a_count_that_is_no_number_ends_the_start_whoever_it_is_for(void **state) {
    (void)state;
    static const char *const pids[] = {NULL, "", "x", "4711"};
    for (size_t i = 0; i < 4; i++) {
        struct listen_fds got;
        char message[256] = "";
        assert_int_equal(listen_fds_parse("x", pids[i], NULL, SELF, &got, message, sizeof message), -1);
        assert_string_equal(message, "LISTEN_FDS: 'x' is no number of sockets.");
    }
}

static void one_socket_is_the_ports_unless_it_is_named_admin(void **state) {
    (void)state;
    fail_unless("1", "4711", NULL, 3, 0);
    fail_unless("1", "4711", "rodimus.socket", 3, 0);
    fail_unless("1", "4711", "", 3, 0);
    fail_unless("1", "4711", "administrator", 3, 0);
    fail_unless("1", "4711", "admi", 3, 0);
    fail_unless("1", "4711", "admin", 0, 3);
}

static void of_two_sockets_the_name_decides_and_without_names_the_place(void **state) {
    (void)state;
    fail_unless("2", "4711", NULL, 3, 4);
    fail_unless("2", "4711", "rodimus.socket:admin", 3, 4);
    fail_unless("2", "4711", "admin:rodimus.socket", 4, 3);
    fail_unless("2", "4711", ":admin", 3, 4);
}

static void what_cannot_be_sorted_is_refused(void **state) {
    (void)state;
    fail_unless_refused("", NULL, "LISTEN_FDS: ''");
    fail_unless_refused("-1", NULL, "LISTEN_FDS: '-1'");
    fail_unless_refused("1 ", NULL, "no number");
    fail_unless_refused("01", NULL, "no number");
    fail_unless_refused("99999999999999999999", NULL, "no number");
    fail_unless_refused("3", NULL, "3 sockets");
    fail_unless_refused("3", "a:admin:b", "3 sockets");
    fail_unless_refused("2", "a:b", "names no socket admin");
    fail_unless_refused("2", "admin:admin", "two sockets");
    fail_unless_refused("2", "admin", "one name for each");
    fail_unless_refused("1", "a:admin", "one name for each");
}

static void a_reader_of_the_environment_takes_it_once(void **state) {
    (void)state;
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    char pid[16], message[256] = "";
    struct listen_fds got;
    assert_true(fd >= 0);
    snprintf(pid, sizeof pid, "%d", (int)getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", "1", 1);
    assert_int_equal(listen(dup2(fd, 3), 1), 0);
    assert_int_equal(listen_fds_take(&got, message, sizeof message), 0);
    assert_int_equal(got.port, 3);
    assert_null(getenv("LISTEN_PID"));
    assert_null(getenv("LISTEN_FDS"));
    assert_int_equal(listen_fds_take(&got, message, sizeof message), 0);
    assert_int_equal(got.port, 0);
    close(fd);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_count_that_is_no_number_ends_the_start_whoever_it_is_for),
        cmocka_unit_test(without_the_variables_or_for_another_process_there_is_no_socket),
        cmocka_unit_test(one_socket_is_the_ports_unless_it_is_named_admin),
        cmocka_unit_test(of_two_sockets_the_name_decides_and_without_names_the_place),
        cmocka_unit_test(what_cannot_be_sorted_is_refused),
        cmocka_unit_test(a_reader_of_the_environment_takes_it_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
