#include "cpu_quota.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Reads numbers of a file in a folder; returns how many were there. */
static int read_numbers(const char *folder, const char *name, double *a, double *b)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return 0;
    FILE *f = fopen(path, "re");
    const int n = f ? fscanf(f, "%lf %lf", a, b) : 0;
    if (f) fclose(f);
    return n;
}

/* Version 2: cpu.max, "150000 100000" or "max 100000". Version 1: two files, and -1
 * without a quota. Both are in microseconds. */
static int cores_of(const char *folder)
{
    double quota = -1, period = 0, none;
    if (read_numbers(folder, "cpu.max", &quota, &period) != 2 &&
        (read_numbers(folder, "cpu.cfs_quota_us", &quota, &none) < 1 ||
         read_numbers(folder, "cpu.cfs_period_us", &period, &none) < 1))
        return INT_MAX;
    if (quota <= 0 || period <= 0 || quota / period >= INT_MAX) return INT_MAX;
    return quota < period ? 1 : (int)(quota / period);
}

/* Of a cgroup and those above it, up to the one that is mounted. In a container, the path
 * may be the host's: then none but the last is there. */
static int least_of(const char *top, const char *path)
{
    char folder[PATH_MAX];
    int least = INT_MAX;
    if (snprintf(folder, sizeof folder, "%s%s", top, path) >= (int)sizeof folder)
        return INT_MAX;
    for (char *end = folder + strlen(folder); end; end = strrchr(folder, '/')) {
        *end = '\0';
        if (strlen(folder) < strlen(top)) break;
        const int cores = cores_of(folder);
        least = cores < least ? cores : least;
    }
    return least;
}

/* The cpu controller in "cpu,cpuacct". */
static int has_cpu(char *controllers)
{
    char *rest = NULL;
    for (char *word = strtok_r(controllers, ",", &rest); word;
         word = strtok_r(NULL, ",", &rest))
        if (strcmp(word, "cpu") == 0) return 1;
    return 0;
}

int ps_cpu_quota_cores(const char *cgroups, const char *mount)
{
    char line[PATH_MAX + 256], top[PATH_MAX];
    int least = INT_MAX;
    FILE *f = fopen(cgroups, "re");
    while (f && fgets(line, sizeof line, f)) { // "4:cpu,cpuacct:/path", "0::/path"
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        const int unified = *++controllers == '\0';
        if (!unified && !has_cpu(controllers)) continue;
        snprintf(top, sizeof top, "%s%s", mount, unified ? "" : "/cpu");
        const int cores = least_of(top, path);
        least = cores < least ? cores : least;
    }
    if (f) fclose(f);
    return least;
}
