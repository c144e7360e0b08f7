#include "duration_stats.h"

#include <math.h>

static const double shortest = 1e-7, growth = 1.005;

void ps_duration_add(ps_duration_stats *stats, double seconds)
{
    int bucket = 0;
    if (seconds >= shortest) {
        double at = 1 + floor(log(seconds / shortest) / log(growth));
        bucket = at < PS_DURATION_BUCKETS ? (int)at : PS_DURATION_BUCKETS - 1;
    }
    stats->buckets[bucket]++;
    stats->count++;
}

double ps_duration_percentile(const ps_duration_stats *stats, double share)
{
    if (stats->count == 0) return 0;
    double wanted = ceil(share * (double)stats->count);
    uint64_t seen = 0;
    int bucket = 0;
    for (; bucket < PS_DURATION_BUCKETS - 1; bucket++) {
        seen += stats->buckets[bucket];
        if (seen > 0 && (double)seen >= wanted) break;
    }
    // The middle of the bucket, by ratio.
    return bucket == 0 ? 0 : shortest * pow(growth, bucket - 0.5);
}
