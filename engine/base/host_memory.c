/* host_memory.c - see host_memory.h. */
#include "host_memory.h"
#include "control_group.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PATH_BYTES = 4200 };

/* "max" is no number. Version 1 says a number beyond all memory instead. */
static uint64_t read_limit(const char *folder, const char *file) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    uint64_t limit = UINT64_MAX;
    FILE *f = fopen(path, "r");
    if (!f) return UINT64_MAX;
    if (fscanf(f, "%" SCNu64, &limit) != 1) limit = UINT64_MAX;
    fclose(f);
    return limit;
}

static uint64_t memory_of_version_1(const char *folder) { return read_limit(folder, "memory.limit_in_bytes"); }
static uint64_t memory_of_version_2(const char *folder) { return read_limit(folder, "memory.max"); }

uint64_t host_memory_limit_bytes(const char *root) {
    return control_group_least(root, &(struct control_group_limit){"memory", memory_of_version_1, memory_of_version_2});
}

uint64_t host_memory_bytes(void) {
    const uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    const uint64_t group = host_memory_limit_bytes(""), least = group < all ? group : all;
    struct rlimit addresses;
    if (getrlimit(RLIMIT_AS, &addresses) || addresses.rlim_cur == RLIM_INFINITY || addresses.rlim_cur > least)
        return least;
    return addresses.rlim_cur;
}
