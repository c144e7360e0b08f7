/* What the system says about this process and its host. */
#ifndef PS_PROCSTAT_H
#define PS_PROCSTAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Largest resident set so far, in bytes; shared memory counts. */
uint64_t ps_procstat_peak_rss(void);
/* The present resident set, likewise; 0: unknown. */
uint64_t ps_procstat_rss(void);

/* The host of this process. Two processes are on one host when boot_id and net_ns are
 * equal and known: containers share a boot id but not a network namespace, and may not
 * share memory. "" stands for an unknown text. */
typedef struct ps_host {
    char name[64];
    char boot_id[40];
    char net_ns[40]; // "net:[4026531840]"
    char cpu[96];    // the model's name
    int cores;       // ps_process_cores
} ps_host;

void ps_host_find(ps_host *out);
/* Cores that this process may use, at least 1: those that it is bound to, and no more
 * than its cgroup's quota of time. */
int ps_process_cores(void);
/* Processors of the machine, at least 1: the same for all its processes, however they are
 * bound. (sysconf counts only a process's own in some versions of glibc.) */
int ps_machine_cores(void);
/* The next cores of a list such as "0-3,8,10-11", at *at, which moves on. False: there
 * are no more, or it is no such list. */
bool ps_cpu_list_next(const char **at, int *first, int *last);
/* How many there are in such a list. 0: it is none. */
int ps_cpu_list_count(const char *list);
/* The first line of a file without its newline; "" when there is none. */
void ps_read_line(const char *path, char *out, size_t bytes);

#endif
