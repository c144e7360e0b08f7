#include "procstat.h"

#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cpu_quota.h"

/* VmHWM rather than getrusage's ru_maxrss: that one survives exec and so starts at the
 * size of the process that launched this one. */
uint64_t ps_procstat_peak_rss(void)
{
    struct rusage usage;
    unsigned long long kib = 0;
    char line[128];
    FILE *f = fopen("/proc/self/status", "re");
    while (f && kib == 0 && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %llu kB", &kib) != 1) kib = 0;
    if (f) fclose(f);
    if (kib) return (uint64_t)kib * 1024;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
    return (uint64_t)usage.ru_maxrss * 1024;
}

uint64_t ps_procstat_rss(void)
{
    unsigned long long size, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%llu %llu", &size, &resident) != 2) resident = 0;
    if (f) fclose(f);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

void ps_read_line(const char *path, char *out, size_t bytes)
{
    FILE *f = fopen(path, "re");
    out[0] = '\0';
    if (!f) return;
    if (!fgets(out, (int)bytes, f)) out[0] = '\0';
    fclose(f);
    out[strcspn(out, "\n")] = '\0';
}

/* "model name\t: AMD EPYC" of /proc/cpuinfo, without runs of blanks. */
static void read_cpu(char *out, size_t bytes)
{
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "re");
    out[0] = '\0';
    while (f && fgets(line, sizeof line, f)) {
        const char *p = strchr(line, ':');
        size_t n = 0;
        if (!p || strncmp(line, "model name", 10) != 0) continue;
        for (p++; *p && n + 1 < bytes; p++) {
            if (isspace((unsigned char)*p) && (n == 0 || out[n - 1] == ' ')) continue;
            out[n++] = isspace((unsigned char)*p) ? ' ' : *p;
        }
        while (n && out[n - 1] == ' ')
            n--;
        out[n] = '\0';
        break;
    }
    if (f) fclose(f);
}

static int count_bound(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    long n = sysconf(_SC_NPROCESSORS_ONLN); // more cores than a cpu_set_t holds
    return n > 0 ? (int)n : 1;
}

int ps_process_cores(void)
{
    const int bound = count_bound();
    const int quota = ps_cpu_quota_cores("/proc/self/cgroup", "/sys/fs/cgroup");
    return quota < bound ? quota : bound;
}

bool ps_cpu_list_next(const char **at, int *first, int *last)
{
    int n = 0;
    if (sscanf(*at, "%d%n", first, &n) != 1) return false;
    *at += n;
    *last = *first;
    if (sscanf(*at, "-%d%n", last, &n) == 1) *at += n;
    if (**at == ',') ++*at;
    return true;
}

int ps_cpu_list_count(const char *list)
{
    int count = 0, first, last;
    while (ps_cpu_list_next(&list, &first, &last))
        count += last - first + 1;
    return *list == '\0' ? count : 0;
}

int ps_machine_cores(void)
{
    char online[4096];
    ps_read_line("/sys/devices/system/cpu/online", online, sizeof online);
    const int listed = ps_cpu_list_count(online);
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return listed > 0 ? listed : n > 0 ? (int)n : 1;
}

void ps_host_find(ps_host *out)
{
    memset(out, 0, sizeof *out);
    if (gethostname(out->name, sizeof out->name - 1) != 0) out->name[0] = '\0';
    ps_read_line("/proc/sys/kernel/random/boot_id", out->boot_id, sizeof out->boot_id);
    if (readlink("/proc/self/ns/net", out->net_ns, sizeof out->net_ns - 1) < 0)
        out->net_ns[0] = '\0';
    read_cpu(out->cpu, sizeof out->cpu);
    out->cores = ps_process_cores();
}
