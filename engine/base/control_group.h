/* control_group.h - a limit of the process's control group and of those above it, of which the least holds: for a
 * container's limits, systemd's, Kubernetes'. Versions 1 and 2.
 *
 * Threads: any; reads files at each call.
 */
#ifndef CONTROL_GROUP_H
#define CONTROL_GROUP_H

#include <stdint.h>

struct control_group_limit {
    const char *controller; /* as version 1 has hierarchies of it */
    /* What the files in a group's folder say; UINT64_MAX: no limit, or no such files. */
    uint64_t (*of_version_1)(const char *folder);
    uint64_t (*of_version_2)(const char *folder);
};

/* What the files under root say ("" = the machine's own); UINT64_MAX: there is no limit. */
uint64_t control_group_least(const char *root, const struct control_group_limit *limit);

#endif
