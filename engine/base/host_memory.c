/* host_memory.c - the least limit on the way from the process's control group up to the root that it sees. */
#include "host_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

/* "max" is no number. Version 1 says a number beyond all memory instead. */
static uint64_t read_limit(const char *path) {
    uint64_t limit = UINT64_MAX;
    FILE *f = fopen(path, "r");
    if (!f) return UINT64_MAX;
    if (fscanf(f, "%" SCNu64, &limit) != 1) limit = UINT64_MAX;
    fclose(f);
    return limit;
}

/* group: absolute, as the process's namespace sees it; it is eaten up. What is not there bounds nothing: a container
 * may see the host's names and its own files, and then its own are those of the root. */
static uint64_t limit_up_to_root(const char *root, const char *mount, char *group, const char *file) {
    uint64_t least = UINT64_MAX;
    if (strstr(group, "/..")) *group = 0; /* outside of the namespace's root */
    for (;;) {
        char path[PATH_BYTES];
        const int n = snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s/%s", root, mount, group, file);
        const uint64_t limit = n < (int)sizeof path ? read_limit(path) : UINT64_MAX;
        if (limit < least) least = limit;
        char *last = strrchr(group, '/');
        if (!last) return least;
        *last = 0;
    }
}

/* A line is hierarchy:controllers:group; that of version 2 is 0::group. */
static uint64_t limit_of_line(const char *root, char *line) {
    line[strcspn(line, "\n")] = 0;
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) return UINT64_MAX;
    *group++ = 0;
    if (!strcmp(line, "0:")) return limit_up_to_root(root, "", group, "memory.max");
    if (!strcmp(controllers, ":memory")) return limit_up_to_root(root, "/memory", group, "memory.limit_in_bytes");
    return UINT64_MAX;
}

uint64_t host_memory_limit_bytes(const char *root) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    uint64_t least = UINT64_MAX;
    FILE *f = fopen(path, "r");
    if (!f) return UINT64_MAX;
    char *line = NULL;
    size_t cap = 0;
    while (getline(&line, &cap, f) > 0) {
        const uint64_t limit = limit_of_line(root, line);
        if (limit < least) least = limit;
    }
    free(line);
    fclose(f);
    return least;
}

uint64_t host_memory_bytes(void) {
    const uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t group = host_memory_limit_bytes(""), least = group < all ? group : all;
    struct rlimit addresses;
    if (getrlimit(RLIMIT_AS, &addresses) || addresses.rlim_cur == RLIM_INFINITY || addresses.rlim_cur > least)
        return least;
    return addresses.rlim_cur;
}
