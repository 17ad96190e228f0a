/* test_host_cpus.c - the quota of processor time, from files as a machine or a container has them. */
#include "engine/base/host.h"
#include "tests/unit/base/made_root.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void write_quota(const char *root, const char *folder, const char *quota, const char *period) {
    char name[256];
    snprintf(name, sizeof name, "sys/fs/cgroup/%s/cpu.cfs_quota_us", folder);
    made_root_write(root, name, quota);
    snprintf(name, sizeof name, "sys/fs/cgroup/%s/cpu.cfs_period_us", folder);
    made_root_write(root, name, period);
}

static void fail_unless(const char *root, uint64_t milli) {
    const uint64_t got = host_cpus_quota_milli(root);
    if (got != milli) fail_msg("%llu thousandths, wanted %llu", (unsigned long long)got, (unsigned long long)milli);
}

static void without_files_there_is_no_quota(void **state) {
    fail_unless(*state, UINT64_MAX);
    made_root_write(*state, "proc/self/cgroup", "0::/a\n1:cpu,cpuacct:/a\n");
    fail_unless(*state, UINT64_MAX);
    for (int i = 0; i < 6; i++) {
        static const char *const texts[] = {"max 100000\n", "", "max\n", "100000\n", "0 100000\n", "150000 0\n"};
        made_root_write(*state, "sys/fs/cgroup/a/cpu.max", texts[i]);
        fail_unless(*state, UINT64_MAX);
    }
    write_quota(*state, "cpu,cpuacct/a", "-1\n", "100000\n");
    fail_unless(*state, UINT64_MAX);
    write_quota(*state, "cpu,cpuacct/a", "100000\n", "0\n");
    fail_unless(*state, UINT64_MAX);
    write_quota(*state, "cpu,cpuacct/a", "100000\n", "");
    fail_unless(*state, UINT64_MAX);
}

static void of_version_2_the_least_on_the_way_up_holds(void **state) {
    made_root_write(*state, "proc/self/cgroup", "0::/kubepods/pod1/c1\n");
    made_root_write(*state, "sys/fs/cgroup/kubepods/pod1/c1/cpu.max", "400000 100000\n");
    fail_unless(*state, 4000);
    made_root_write(*state, "sys/fs/cgroup/kubepods/pod1/cpu.max", "75000 50000\n");
    fail_unless(*state, 1500);
    made_root_write(*state, "sys/fs/cgroup/kubepods/cpu.max", "max 100000\n");
    fail_unless(*state, 1500);
    made_root_write(*state, "sys/fs/cgroup/kubepods/pod2/cpu.max", "1000 100000\n"); /* not ours */
    fail_unless(*state, 1500);
    made_root_write(*state, "sys/fs/cgroup/cpu.max", "120000 100000\n");
    fail_unless(*state, 1200);
}

static void of_version_1_the_least_on_the_way_up_holds(void **state) {
    made_root_write(*state, "proc/self/cgroup",
                    "9:name=systemd:/a\n4:memory:/a\n3:cpuset:/x\n1:cpu,cpuacct:/a/b\n0::/\n");
    write_quota(*state, "cpu,cpuacct/a/b", "300000\n", "100000\n");
    fail_unless(*state, 3000);
    write_quota(*state, "cpu,cpuacct/a", "250000\n", "100000\n");
    fail_unless(*state, 2500);
    write_quota(*state, "cpu,cpuacct", "-1\n", "100000\n");
    fail_unless(*state, 2500);
    write_quota(*state, "cpuset/x", "1000\n", "100000\n");
    write_quota(*state, "cpu,cpuacct/x", "1000\n", "100000\n");
    fail_unless(*state, 2500);
}

static void the_hierarchy_of_version_1_may_have_any_of_its_names(void **state) {
    made_root_write(*state, "proc/self/cgroup", "1:cpuacct,cpu:/docker/1234\n");
    write_quota(*state, "cpu", "200000\n", "100000\n"); /* a container's own, under the host's name for it */
    fail_unless(*state, 2000);
    write_quota(*state, "cpuacct,cpu", "100000\n", "100000\n");
    fail_unless(*state, 1000);
    made_root_write(*state, "proc/self/cgroup", "1:cpuacct:/docker/1234\n2:cpuset:/\n"); /* neither is that of cpu */
    fail_unless(*state, UINT64_MAX);
}

static void version_2_may_stand_beside_version_1(void **state) {
    made_root_write(*state, "proc/self/cgroup", "4:memory:/\n0::/a\n");
    made_root_write(*state, "sys/fs/cgroup/unified/a/cpu.max", "200000 100000\n");
    fail_unless(*state, 2000);
}

static void a_container_has_the_quota_of_its_root(void **state) {
    made_root_write(*state, "sys/fs/cgroup/cpu.max", "200000 100000\n");
    static const char *const groups[] = {"0::/\n", "0::/system.slice/docker-1234.scope\n", "0::/../../docker-1234\n"};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        made_root_write(*state, "proc/self/cgroup", groups[i]);
        fail_unless(*state, 2000);
    }
}

static void threads_are_as_many_as_the_quota_pays_for_to_the_nearest(void **state) {
    (void)state;
    static const struct {
        uint32_t n;
        uint64_t milli;
        uint32_t wanted;
    } cases[] = {{8, UINT64_MAX, 8}, {8, 8000, 8},   {8, 9000, 8}, {8, 7400, 7},       {8, 7500, 8}, {8, 2000, 2},
                 {8, 1499, 1},       {8, 1500, 2},   {8, 500, 1},  {8, 1, 1},          {1, 500, 1},  {2, 1999, 2},
                 {1, UINT64_MAX, 1}, {1024, 100, 1}, {8, 0, 1},    {1024, 512400, 512}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(host_cpus_within(cases[i].n, cases[i].milli), cases[i].wanted);
}

static void this_machine_has_no_more_than_its_processors(void **state) {
    (void)state;
    assert_in_range(host_cpus(), 1, sysconf(_SC_NPROCESSORS_CONF));
    cpu_set_t all, one;
    assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(host_cpus(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup_teardown(f, made_root_open, made_root_close)
    const struct CMUnitTest tests[] = {
        TEST(without_files_there_is_no_quota),
        TEST(of_version_2_the_least_on_the_way_up_holds),
        TEST(of_version_1_the_least_on_the_way_up_holds),
        TEST(the_hierarchy_of_version_1_may_have_any_of_its_names),
        TEST(version_2_may_stand_beside_version_1),
        TEST(a_container_has_the_quota_of_its_root),
        TEST(threads_are_as_many_as_the_quota_pays_for_to_the_nearest),
        TEST(this_machine_has_no_more_than_its_processors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
