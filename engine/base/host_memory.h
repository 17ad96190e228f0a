/* host_memory.h - how much host memory this process may have: the machine's, or less where a control group bounds it (a
 * container's limit, systemd's MemoryMax=), or its own limit of addresses (ulimit -v). Pools and slots that are sized
 * by memory ask here, so that they fit into the same bound.
 *
 * Threads: any; reads files at each call.
 */
#ifndef HOST_MEMORY_H
#define HOST_MEMORY_H

#include <stdint.h>

uint64_t host_memory_bytes(void);
/* The least limit of the process's control group and those above it, as the files under root say ("" = the machine's
 * own); UINT64_MAX: none. */
uint64_t host_memory_limit_bytes(const char *root);

#endif
