/* Percentiles against their definition on lists whose order is known. */
#include "check.h"
#include "duration_stats.h"

static ps_duration_stats stats;

static int clear(void **state)
{
    memset(&stats, 0, sizeof stats);
    return 0;
}

static void assert_within(double found, double wanted, double share)
{
    assert_true(found >= wanted * (1 - share) && found <= wanted * (1 + share));
}

TEST_WITH(percentiles_of_1_to_1000_ms, clear, NULL)
{
    // The order is scattered, and no number occurs twice: 7 and 1000 have no common
    // divisor.
    for (int i = 0; i < 1000; i++)
        ps_duration_add(&stats, (double)(i * 7 % 1000 + 1) * 1e-3);
    assert_within(ps_duration_percentile(&stats, 0.5), 0.500, 0.003);
    assert_within(ps_duration_percentile(&stats, 0.99), 0.990, 0.003);
    assert_within(ps_duration_percentile(&stats, 1), 1.000, 0.003);
    assert_within(ps_duration_percentile(&stats, 0), 0.001, 0.003);
}

TEST_WITH(nothing_and_next_to_nothing, clear, NULL)
{
    assert_true(ps_duration_percentile(&stats, 0.5) == 0);
    ps_duration_add(&stats, 0);
    ps_duration_add(&stats, 1e-9);
    assert_true(ps_duration_percentile(&stats, 0.99) == 0);
    // More than half below the resolution: the median is 0, the maximum is not.
    ps_duration_add(&stats, 2e-3);
    assert_true(ps_duration_percentile(&stats, 0.5) == 0);
    assert_within(ps_duration_percentile(&stats, 1), 2e-3, 0.003);
}

TEST_WITH(a_duration_beyond_the_last_bucket_is_kept, clear, NULL)
{
    ps_duration_add(&stats, 1e9);
    assert_true(ps_duration_percentile(&stats, 0.5) > 1e3);
    assert_int_equal(stats.count, 1);
}
