/* Percentiles of many durations in constant memory. */
#ifndef PS_DURATION_STATS_H
#define PS_DURATION_STATS_H

#include <stdint.h>

/* 100 ns .. 10,000 s in buckets that grow by 0.5%: a percentile is right within 0.25%,
 * and a job of a million steps needs no more memory than one of ten. */
enum { PS_DURATION_BUCKETS = 5120 };

typedef struct ps_duration_stats {
    uint64_t count;
    uint32_t buckets[PS_DURATION_BUCKETS]; // all zero: empty
} ps_duration_stats;

void ps_duration_add(ps_duration_stats *stats, double seconds);

/* The smallest duration that at least share (0 .. 1) of all do not exceed, in seconds; 0
 * when there are none. Durations below 100 ns count as 0. */
double ps_duration_percentile(const ps_duration_stats *stats, double share);

#endif
