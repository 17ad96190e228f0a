/* control_group.c - the least limit on the way from the process's control group up to the root that it sees. */
#include "control_group.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

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
static uint64_t limit_of_line(const char *root, char *line, const struct control_group_limit *limit) {
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

uint64_t control_group_least(const char *root, const struct control_group_limit *limit) {
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
