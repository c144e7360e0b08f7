#include "numa.h"

#include <ctype.h>
#include <dirent.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "procstat.h"

enum { MAX_NODE = 1024, NUMA_BITS = 8 * sizeof(unsigned long) };

bool ps_numa_of_pci(const char *sys, const char *address, ps_numa *out)
{
    char path[512], text[512];
    *out = (ps_numa){.node = -1};
    for (size_t i = 0; address[i] && i < sizeof out->address - 1; i++)
        out->address[i] = (char)tolower((unsigned char)address[i]);
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", sys, out->address);
    ps_read_line(path, text, sizeof text);
    if (sscanf(text, "%d", &out->node) != 1 || out->node < 0 || out->node >= MAX_NODE)
        return false; // -1: the firmware does not say
    snprintf(path, sizeof path, "%s/devices/system/node/online", sys);
    ps_read_line(path, text, sizeof text);
    out->n_nodes = ps_cpu_list_count(text);
    snprintf(path, sizeof path, "%s/devices/system/cpu/online", sys);
    ps_read_line(path, out->online, sizeof out->online);
    snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", sys, out->node);
    ps_read_line(path, out->cores, sizeof out->cores);
    return out->n_nodes > 1 && ps_cpu_list_count(out->cores) > 0 &&
           ps_cpu_list_count(out->online) > 0;
}

/* False: one of them is beyond what a set holds. */
static bool numa_set_of(const char *list, cpu_set_t *set)
{
    int first, last;
    CPU_ZERO(set);
    while (ps_cpu_list_next(&list, &first, &last)) {
        if (first < 0 || last >= CPU_SETSIZE) return false;
        for (int core = first; core <= last; core++)
            CPU_SET(core, set);
    }
    return true;
}

/* A thread that ends meanwhile is no error. */
static void numa_bind_others(const cpu_set_t *set)
{
    DIR *tasks = opendir("/proc/self/task");
    for (const struct dirent *e; tasks && (e = readdir(tasks));)
        if (isdigit((unsigned char)e->d_name[0]))
            sched_setaffinity((pid_t)atoi(e->d_name), sizeof *set, set);
    if (tasks) closedir(tasks);
}

typedef struct numa_set {
    unsigned long words[MAX_NODE / NUMA_BITS];
} numa_set;

static numa_set numa_set_with(int node)
{
    numa_set set = {{0}};
    set.words[(size_t)node / NUMA_BITS] = 1ul << ((size_t)node % NUMA_BITS);
    return set;
}

/* By system calls: glibc has no functions, and libnuma would be one more library. */
static bool numa_prefer(int node)
{
    const numa_set set = numa_set_with(node);
    return syscall(SYS_set_mempolicy, MPOL_PREFERRED, set.words, MAX_NODE) == 0;
}

bool ps_numa_move(const ps_numa *numa, void *at, size_t bytes)
{
    const numa_set set = numa_set_with(numa->node);
    return syscall(SYS_mbind, at, bytes, MPOL_PREFERRED, set.words, MAX_NODE,
                   MPOL_MF_MOVE) == 0;
}

ps_numa_result ps_numa_bind(const ps_numa *numa, bool *memory)
{
    cpu_set_t own, all, wanted;
    *memory = false;
    if (!numa_set_of(numa->online, &all) || !numa_set_of(numa->cores, &wanted) ||
        sched_getaffinity(0, sizeof own, &own) != 0)
        return PS_NUMA_WAS_BOUND;
    if (!CPU_EQUAL(&own, &all)) return PS_NUMA_WAS_BOUND;
    if (sched_setaffinity(0, sizeof wanted, &wanted) != 0) return PS_NUMA_REFUSED;
    numa_bind_others(&wanted);
    *memory = numa_prefer(numa->node);
    return PS_NUMA_BOUND;
}
