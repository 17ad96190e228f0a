/* host.c - see host.h. Control groups of versions 1 and 2: the least limit of the process's and of those above it. */
#include "host.h"

#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct limit {
    const char *controller; /* as version 1 has hierarchies of it */
    /* What the files in a group's folder say; UINT64_MAX: no limit, or no such files. */
    uint64_t (*of_version_1)(const char *folder);
    uint64_t (*of_version_2)(const char *folder);
};

enum { PATH_BYTES = 4096, FILE_BYTES = PATH_BYTES + 64 };

/* ---- control groups ---- */

static uint64_t least_of(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* group: absolute, as the process's namespace sees it. What is not there bounds nothing: a container may see the
 * host's names and its own files, and then its own are those of the root. */
static uint64_t limit_up_to_root(const char *root, const char *mount, const char *group,
                                 uint64_t (*limit)(const char *folder)) {
    uint64_t least = UINT64_MAX;
    size_t n = strstr(group, "/..") ? 0 : strlen(group); /* outside of the namespace's root */
    for (;;) {
        char folder[PATH_BYTES];
        const int len =
            snprintf(folder, sizeof folder, "%s/sys/fs/cgroup%s%s%.*s", root, *mount ? "/" : "", mount, (int)n, group);
        if (len < (int)sizeof folder) least = least_of(least, limit(folder));
        if (!n) return least;
        while (n && group[n - 1] != '/') n--;
        if (n) n--;
    }
}

static bool lists(const char *controllers, const char *wanted) {
    for (const char *at = controllers;; at++) {
        const size_t n = strcspn(at, ",");
        if (n == strlen(wanted) && !strncmp(at, wanted, n)) return true;
        at += n;
        if (!*at) return false;
    }
}

/* A line is hierarchy:controllers:group; that of version 2 is 0::group. A hierarchy of several controllers has the
 * names of all, or one of them, as its folder; version 2 beside version 1 is in a folder of its own. */
static uint64_t limit_of_line(const char *root, char *line, const struct limit *limit) {
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) return UINT64_MAX;
    *controllers++ = 0;
    *group++ = 0;
    if (!strcmp(line, "0") && !*controllers)
        return least_of(limit_up_to_root(root, "", group, limit->of_version_2),
                        limit_up_to_root(root, "unified", group, limit->of_version_2));
    if (!lists(controllers, limit->controller)) return UINT64_MAX;
    return least_of(limit_up_to_root(root, controllers, group, limit->of_version_1),
                    limit_up_to_root(root, limit->controller, group, limit->of_version_1));
}

/* The least limit on the way from the process's control group up to the root that it sees. */
static uint64_t control_group_least(const char *root, const struct limit *limit) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    uint64_t least = UINT64_MAX;
    FILE *f = fopen(path, "r");
    if (!f) return UINT64_MAX;
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, f) > 0) least = least_of(least, limit_of_line(root, line, limit));
    free(line);
    fclose(f);
    return least;
}

/* ---- processors ---- */

/* How many of two numbers a file says. */
static int read_numbers(const char *folder, const char *file, int64_t *first, int64_t *second) {
    char path[FILE_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    const int n = fscanf(f, "%" SCNd64 " %" SCNd64, first, second);
    fclose(f);
    return n;
}

static uint64_t milli_of(int64_t quota_us, int64_t period_us) {
    if (quota_us <= 0 || period_us <= 0 || quota_us > INT64_MAX / 1000) return UINT64_MAX;
    const uint64_t milli = (uint64_t)quota_us * 1000 / (uint64_t)period_us;
    return milli ? milli : 1;
}

/* Without a quota it says -1. */
static uint64_t quota_of_version_1(const char *folder) {
    int64_t quota_us = 0, period_us = 0, none;
    const bool both = read_numbers(folder, "cpu.cfs_quota_us", &quota_us, &none) > 0 &&
                      read_numbers(folder, "cpu.cfs_period_us", &period_us, &none) > 0;
    return both ? milli_of(quota_us, period_us) : UINT64_MAX;
}

/* Without a quota it says max, which is no number. */
static uint64_t quota_of_version_2(const char *folder) {
    int64_t quota_us = 0, period_us = 0;
    return read_numbers(folder, "cpu.max", &quota_us, &period_us) == 2 ? milli_of(quota_us, period_us) : UINT64_MAX;
}

uint64_t host_cpus_quota_milli(const char *root) {
    return control_group_least(root, &(struct limit){"cpu", quota_of_version_1, quota_of_version_2});
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

/* ---- memory ---- */

/* "max" is no number. Version 1 says a number beyond all memory instead. */
static uint64_t read_limit(const char *folder, const char *file) {
    char path[FILE_BYTES];
    uint64_t limit;
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *f = fopen(path, "r");
    const bool said = f && fscanf(f, "%" SCNu64, &limit) == 1;
    if (f) fclose(f);
    return said ? limit : UINT64_MAX;
}

static uint64_t memory_of_version_1(const char *folder) { return read_limit(folder, "memory.limit_in_bytes"); }
static uint64_t memory_of_version_2(const char *folder) { return read_limit(folder, "memory.max"); }

uint64_t host_memory_limit_bytes(const char *root) {
    return control_group_least(root, &(struct limit){"memory", memory_of_version_1, memory_of_version_2});
}

uint64_t host_memory_bytes(void) {
    const uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t group = host_memory_limit_bytes(""), least = group < all ? group : all;
    struct rlimit addresses;
    if (getrlimit(RLIMIT_AS, &addresses) || addresses.rlim_cur == RLIM_INFINITY || addresses.rlim_cur > least)
        return least;
    return addresses.rlim_cur;
}
