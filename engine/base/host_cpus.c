/* host_cpus.c - see host_cpus.h. */
#include "host_cpus.h"
#include "control_group.h"

#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>

enum { PATH_BYTES = 4200 };

static bool read_numbers(const char *folder, const char *file, int wanted, int64_t *first, int64_t *second) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "r");
    if (!f) return false;
    const int n = fscanf(f, "%" SCNd64 " %" SCNd64, first, second);
    fclose(f);
    return n >= wanted;
}

static uint64_t milli_of(int64_t quota_us, int64_t period_us) {
    if (quota_us <= 0 || period_us <= 0 || quota_us > INT64_MAX / 1000) return UINT64_MAX;
    const uint64_t milli = (uint64_t)quota_us * 1000 / (uint64_t)period_us;
    return milli ? milli : 1;
}

/* Without a quota it says -1. */
static uint64_t quota_of_version_1(const char *folder) {
    int64_t quota_us = 0, period_us = 0, none;
    if (!read_numbers(folder, "cpu.cfs_quota_us", 1, &quota_us, &none) ||
        !read_numbers(folder, "cpu.cfs_period_us", 1, &period_us, &none))
        return UINT64_MAX;
    return milli_of(quota_us, period_us);
}

/* Without a quota it says max, which is no number. */
static uint64_t quota_of_version_2(const char *folder) {
    int64_t quota_us = 0, period_us = 0;
    return read_numbers(folder, "cpu.max", 2, &quota_us, &period_us) ? milli_of(quota_us, period_us) : UINT64_MAX;
}

uint64_t host_cpus_quota_milli(const char *root) {
    return control_group_least(root, &(struct control_group_limit){"cpu", quota_of_version_1, quota_of_version_2});
}

uint32_t host_cpus_within(uint32_t n, uint64_t quota_milli) {
    if (quota_milli >= (uint64_t)n * 1000) return n;
    const uint32_t paid = (uint32_t)((quota_milli + 500) / 1000);
    return paid ? paid : 1;
}

uint32_t host_cpus(void) {
    cpu_set_t set;
    const uint32_t n = sched_getaffinity(0, sizeof set, &set) == 0 ? (uint32_t)CPU_COUNT(&set) : 1;
    return host_cpus_within(n, host_cpus_quota_milli(""));
}
