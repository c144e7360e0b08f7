/* The quota of processor time that a container's or a batch system's cgroup sets. Threads
 * beyond it stand still together for the rest of each period. */
#ifndef PS_CPU_QUOTA_H
#define PS_CPU_QUOTA_H

/* How many cores' time this process may use, whole ones, at least 1; INT_MAX: any. The
 * least of its own cgroup and those above it counts. cgroups: normally /proc/self/cgroup;
 * mount: normally /sys/fs/cgroup. */
int ps_cpu_quota_cores(const char *cgroups, const char *mount);

#endif
