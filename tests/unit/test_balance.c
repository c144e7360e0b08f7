/* The workers' batches follow their speeds. */
#include "balance.h"
#include "check.h"

static void check(const double *speeds, int n, int64_t total, int64_t most,
                  const int64_t *wanted)
{
    int64_t sizes[8], sum = 0;
    ps_balance(speeds, n, total, most, sizes);
    for (int r = 0; r < n; r++) {
        assert_int_equal(sizes[r], wanted[r]);
        sum += sizes[r];
    }
    assert_int_equal(sum, total);
}

TEST(batches_are_in_proportion)
{
    check((double[]){100, 100, 100, 100}, 4, 256, 256, (int64_t[]){64, 64, 64, 64});
    check((double[]){4, 4, 4, 1}, 4, 130, 160, (int64_t[]){40, 40, 40, 10});
    check((double[]){1, 1, 1}, 3, 100, 100, (int64_t[]){34, 33, 33});
}

TEST(every_worker_has_a_sample_and_none_too_many)
{
    check((double[]){1000, 1, 1}, 3, 12, 12, (int64_t[]){10, 1, 1});
    check((double[]){1000, 1, 1}, 3, 12, 6, (int64_t[]){6, 3, 3});
    check((double[]){1e-9, 1}, 2, 2, 2, (int64_t[]){1, 1});
}

TEST(rounds_take_as_long_as_the_fastest_workers)
{
    int64_t steps[3];
    ps_balance_rounds((double[]){40, 10, 20}, 3, 16, steps);
    assert_memory_equal(steps, ((int64_t[]){16, 4, 8}), sizeof steps);
    ps_balance_rounds((double[]){1, 3, 1e-9}, 3, 4, steps);
    assert_memory_equal(steps, ((int64_t[]){1, 4, 1}), sizeof steps);
    ps_balance_rounds((double[]){0, 10, 5}, 3, 8, steps); // the first one's is not known
    assert_memory_equal(steps, ((int64_t[]){1, 8, 4}), sizeof steps);
}
