/* host.h - what this process may have of the machine: how many threads may compute at once (taskset, cpusets), and how
 * much memory; or less where a control group bounds it (docker's --cpus, systemd's CPUQuota= and MemoryMax=,
 * Kubernetes' limits) or its own limit of addresses (ulimit -v). Pools and slots that are sized by memory ask here, so
 * that they fit into the same bound.
 *
 * Threads: any; reads files at each call. root: before the paths of these files, "" = the machine's own.
 */
#ifndef HOST_H
#define HOST_H

#include <stdint.h>

uint32_t host_cpus(void); /* 1 or more */
/* How many of n threads the quota pays for, to the nearest whole number, at least 1. With one more all threads stand
 * still for a part of each period, since they wait for one another; with one less that much time is not used. */
uint32_t host_cpus_within(uint32_t n, uint64_t quota_milli);
/* The least quota of the process's control group and those above it, in thousandths of a processor; UINT64_MAX: none.
 */
uint64_t host_cpus_quota_milli(const char *root);

uint64_t host_memory_bytes(void);
/* The least limit of the process's control group and those above it; UINT64_MAX: none. */
uint64_t host_memory_limit_bytes(const char *root);

#endif
