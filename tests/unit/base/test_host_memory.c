/* test_host_memory.c - the limit of memory, from files as a machine or a container has them. */
#include "engine/base/host.h"
#include "tests/unit/base/made_root.h"

#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MIB = 1 << 20 };

static void without_files_there_is_no_limit(void **state) {
    assert_true(host_memory_limit_bytes(*state) == UINT64_MAX);
    made_root_write(*state, "proc/self/cgroup", "0::/a/b\n");
    assert_true(host_memory_limit_bytes(*state) == UINT64_MAX);
    made_root_write(*state, "sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_true(host_memory_limit_bytes(*state) == UINT64_MAX);
    made_root_write(*state, "sys/fs/cgroup/a/b/memory.max", "");
    assert_true(host_memory_limit_bytes(*state) == UINT64_MAX);
}

static void a_containers_limit_is_that_of_its_root(void **state) {
    made_root_write(*state, "proc/self/cgroup", "0::/\n");
    made_root_write(*state, "sys/fs/cgroup/memory.max", "104857600\n");
    assert_int_equal(host_memory_limit_bytes(*state), 100 * MIB);
    /* the host's name for it is not there */
    made_root_write(*state, "proc/self/cgroup", "0::/system.slice/docker-1234.scope\n");
    assert_int_equal(host_memory_limit_bytes(*state), 100 * MIB);
    made_root_write(*state, "proc/self/cgroup", "0::/../../docker-1234.scope\n");
    made_root_write(*state, "sys/docker-1234.scope/memory.max", "1\n");
    assert_int_equal(host_memory_limit_bytes(*state), 100 * MIB);
}

static void a_service_has_the_least_limit_on_its_way_up(void **state) {
    made_root_write(*state, "proc/self/cgroup", "0::/system.slice/rodimus.service\n");
    made_root_write(*state, "sys/fs/cgroup/system.slice/rodimus.service/memory.max", "209715200\n");
    made_root_write(*state, "sys/fs/cgroup/system.slice/memory.max", "max\n");
    assert_int_equal(host_memory_limit_bytes(*state), 200 * MIB);
    made_root_write(*state, "sys/fs/cgroup/system.slice/memory.max", "104857600\n");
    assert_int_equal(host_memory_limit_bytes(*state), 100 * MIB);
    made_root_write(*state, "sys/fs/cgroup/memory.max", "52428800\n");
    assert_int_equal(host_memory_limit_bytes(*state), 50 * MIB);
    made_root_write(*state, "sys/fs/cgroup/system.slice/other.service/memory.max", "1\n"); /* not ours */
    assert_int_equal(host_memory_limit_bytes(*state), 50 * MIB);
}

static void version_1_has_a_hierarchy_for_memory(void **state) {
    made_root_write(*state, "proc/self/cgroup", "9:name=systemd:/a\n4:memory:/a\n1:cpu,cpuacct:/b\n0::/\n");
    made_root_write(*state, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    made_root_write(*state, "sys/fs/cgroup/memory/a/memory.limit_in_bytes", "104857600\n");
    made_root_write(*state, "sys/fs/cgroup/memory/b/memory.limit_in_bytes", "1\n");
    assert_int_equal(host_memory_limit_bytes(*state), 100 * MIB);
}

static void lines_that_say_nothing_are_passed_over(void **state) {
    made_root_write(*state, "sys/fs/cgroup/memory.max", "104857600\n");
    made_root_write(*state, "proc/self/cgroup", "\n0\n0:\n:::\n::\n");
    assert_true(host_memory_limit_bytes(*state) == UINT64_MAX);
    char longest[9000];
    memset(longest, 'a', sizeof longest);
    memcpy(longest, "0::/", 4);
    longest[sizeof longest - 1] = 0;
    made_root_write(*state, "proc/self/cgroup", longest);
    assert_int_equal(host_memory_limit_bytes(*state), 100 * MIB);
}

static void this_machines_memory_is_not_more_than_it_has(void **state) {
    (void)state;
    const uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    assert_in_range(host_memory_bytes(), 1, all);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, made_root_open, made_root_close)
    const struct CMUnitTest tests[] = {
        TEST(without_files_there_is_no_limit),
        TEST(a_containers_limit_is_that_of_its_root),
        TEST(a_service_has_the_least_limit_on_its_way_up),
        TEST(version_1_has_a_hierarchy_for_memory),
        TEST(lines_that_say_nothing_are_passed_over),
        TEST(this_machines_memory_is_not_more_than_it_has),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
