/* host_cpus.h - how many threads may compute at once: the processors that this process may run on (taskset, cpusets),
 * or fewer where a control group bounds its time on them (docker's --cpus, systemd's CPUQuota=, Kubernetes' limits).
 *
 * Threads: any; reads files at each call.
 */
#ifndef HOST_CPUS_H
#define HOST_CPUS_H

#include <stdint.h>

uint32_t host_cpus(void); /* 1 or more */
/* How many of n threads the quota pays for, to the nearest whole number, at least 1. With one more all threads stand
 * still for a part of each period, since they wait for one another; with one less that much time is not used. */
uint32_t host_cpus_within(uint32_t n, uint64_t quota_milli);
/* The least quota of the process's control group and those above it, in thousandths of a processor, as the files under
 * root say ("" = the machine's own); UINT64_MAX: none. */
uint64_t host_cpus_quota_milli(const char *root);

#endif
